//! Power cuts at every step, full and failing disks, flipped bits: what was acknowledged is there, in order, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kera_coordinator::{Coordinator, CoordinatorError, OpenError};
use kera_env::{Disk, FaultyDisk, MemoryDisk, OpenMode, Random, SeededRandom, copy_path, read_twice};
use kera_format::ProducerId;
use kera_protocol::{Status, StreamChanges, StreamInfo};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::support::{create, only_file, open, open_on};

/// What a client of the coordinator knows: the streams, and the highest producer id it was given.
#[derive(Clone, PartialEq, Debug, Default)]
struct Known {
    streams: Vec<StreamInfo>,
    producer: u64,
}

impl Known {
    fn read(coordinator: &Coordinator, producer: u64) -> Known {
        Known { streams: coordinator.streams(), producer }
    }
}

/// One command out of a few names, so that they meet.
fn command(coordinator: &Coordinator, random: &SeededRandom, known: &mut Known) -> Result<(), CoordinatorError> {
    let name = format!("s{}", random.below(6));
    let changes = StreamChanges { segments_per_group: Some(1 + random.below(9) as u32), ..StreamChanges::default() };
    let done = match random.below(4) {
        0 => coordinator.create_stream(&create(&name)).map(drop),
        1 => coordinator.alter_stream(&name.as_str().into(), &changes).map(drop),
        2 => coordinator.delete_stream(&name.as_str().into()),
        _ => coordinator.allocate_producer(None).map(|given| {
            assert!(given.producer_id.0 > known.producer, "{given:?} was given before, {known:?}");
            known.producer = given.producer_id.0;
        }),
    };
    match done {
        Err(error) if error.status() == Status::DiskFailed || error.status() == Status::DiskFull => Err(error),
        // Refusals are answers like others.
        _ => Ok(()),
    }
}

/// Runs commands until the disk fails or `count` are done: how many were answered.
fn run(coordinator: &Coordinator, seed: u64, count: usize, known: &mut Known) -> usize {
    let random = SeededRandom::new(seed);
    for answered in 0..count {
        if command(coordinator, &random, known).is_err() {
            return answered;
        }
        *known = Known::read(coordinator, known.producer);
    }
    count
}

/// The streams in front of each of so many commands and behind the last one, where no disk fails.
fn states(coordinator: &Coordinator, seed: u64, count: usize) -> Vec<Vec<StreamInfo>> {
    let (random, mut known) = (SeededRandom::new(seed), Known::default());
    let mut states = vec![coordinator.streams()];
    for _ in 0..count {
        command(coordinator, &random, &mut known).expect("nothing fails");
        states.push(coordinator.streams());
    }
    states
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_acknowledged() {
    for seed in 0..12 {
        let whole = MemoryDisk::new();
        let coordinator = open(&whole).expect("open");
        let states = states(&coordinator, seed, 40);
        for step in 1..=whole.steps() {
            let disk = MemoryDisk::new();
            disk.cut_power_at(step);
            let (mut known, mut answered) = (Known::default(), 0);
            if let Ok(coordinator) = open(&disk) {
                answered = run(&coordinator, seed, 40, &mut known);
            }
            assert!(disk.is_off(), "seed {seed} step {step}");
            assert_eq!(known.streams, states[answered], "seed {seed} step {step}: it is the same run");
            disk.crash(seed * 1000 + step);
            let coordinator = open(&disk).unwrap_or_else(|error| panic!("seed {seed} step {step}: {error}"));
            check(&coordinator, &known, states.get(answered + 1), &format!("seed {seed} step {step}"));
            // And it goes on, and comes back once more.
            let mut known = Known::read(&coordinator, known.producer);
            run(&coordinator, seed + 1, 5, &mut known);
            drop(coordinator);
            disk.crash(seed + step);
            let coordinator = open(&disk).expect("open once more");
            assert_eq!(coordinator.streams(), known.streams, "seed {seed} step {step}");
        }
    }
}

/// What is known is there, or that with the one command that was under way. A stream that is missing may be an acknowledged one that was
/// lost as well as one that was being deleted: only what that command does tells them apart.
fn check(coordinator: &Coordinator, known: &Known, with_next: Option<&Vec<StreamInfo>>, what: &str) {
    let streams = coordinator.streams();
    let is_one_of_them = streams == known.streams || Some(&streams) == with_next;
    assert!(is_one_of_them, "{what}: {streams:?} is neither {:?} nor {with_next:?}", known.streams);
    let given = coordinator.allocate_producer(None).expect("a producer id").producer_id;
    assert!(given > ProducerId(known.producer), "{what}: {given} was given before");
}

#[test]
fn commands_are_refused_while_the_disk_is_full_and_taken_again_after() {
    let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let coordinator = open_on(Arc::new(disk.clone())).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    disk.set_space(Some(10));
    for _ in 0..3 {
        let refused = coordinator.create_stream(&create("b")).expect_err("full");
        assert_eq!(refused.status(), Status::DiskFull, "{refused}");
        assert_eq!(coordinator.streams().len(), 1);
    }
    disk.set_space(None);
    coordinator.create_stream(&create("b")).expect("created");
    let again = open_on(Arc::new(disk)).expect("open");
    assert_eq!(again.streams(), coordinator.streams());
}

/// Counts the errors of a log.
struct Errors(Arc<AtomicUsize>);

impl Subscriber for Errors {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.0.fetch_add(usize::from(*event.metadata().level() == Level::ERROR), Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A log that has a line for each of them takes what room there is left.
#[test]
fn that_commands_are_refused_is_told_once_for_all_and_again_when_one_was_taken_since() {
    let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let coordinator = open_on(Arc::new(disk.clone())).expect("open");
    let errors = Arc::new(AtomicUsize::new(0));
    // While there is one log alone, a line that another test comes by first is taken for one that nobody wants, for good.
    let _another = Dispatch::new(Errors(Arc::default()));
    tracing::subscriber::with_default(Errors(errors.clone()), || {
        for (told, name) in [(1, "a"), (2, "b")] {
            disk.set_space(Some(10));
            (0..100).for_each(|_| _ = coordinator.create_stream(&create(name)).expect_err("full"));
            assert_eq!(errors.load(Ordering::Relaxed), told);
            disk.set_space(None);
            coordinator.create_stream(&create(name)).expect("created");
        }
    });
}

#[test]
fn an_entry_whose_sync_failed_does_not_come_back_behind_later_ones() {
    for seed in 0..20 {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::new(Arc::new(memory.clone()));
        let coordinator = open_on(Arc::new(disk.clone())).expect("open");
        coordinator.create_stream(&create("a")).expect("created");
        disk.fail_sync(1);
        let refused = coordinator.delete_stream(&"a".into()).expect_err("failed sync");
        assert_eq!(refused.status(), Status::DiskFailed);
        assert!(coordinator.stream(&"a".into()).is_ok(), "a refused command has no effect");
        coordinator.create_stream(&create("b")).expect("created");
        memory.crash(seed);
        let coordinator = open(&memory).expect("open");
        let names: Vec<_> = coordinator.streams().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["a", "b"], "seed {seed}");
    }
}

#[test]
fn a_disk_that_does_not_take_writes_at_the_start_can_still_be_read() {
    let memory = MemoryDisk::new();
    open(&memory).expect("open").create_stream(&create("a")).expect("created");
    let disk = FaultyDisk::new(Arc::new(memory));
    disk.set_space(Some(0));
    let coordinator = open_on(Arc::new(disk.clone())).expect("open");
    assert_eq!(coordinator.streams().len(), 1);
    coordinator.create_stream(&create("b")).expect_err("full");
    disk.set_space(None);
    coordinator.create_stream(&create("b")).expect("created");
}

/// What is in the catalog's directory, each file with its bytes.
fn files(disk: &MemoryDisk) -> Vec<(String, Vec<u8>)> {
    let paths = disk.list("catalog").expect("list").into_iter().map(|name| format!("catalog/{name}"));
    paths.map(|path| (path.clone(), disk.read_all(&path, 1 << 20).expect("read"))).collect()
}

#[test]
fn no_byte_of_a_file_is_needed_that_is_in_its_copy_and_behind_it_both_are_there_again() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    for name in ["a", "b", "c"] {
        coordinator.create_stream(&create(name)).expect("created");
    }
    let before = coordinator.streams();
    drop(coordinator);
    let whole = files(&disk);
    assert_eq!(whole.len(), 4, "{:?}", disk.list("catalog"));
    for (path, bytes) in &whole {
        for offset in 0..bytes.len() as u64 {
            let disk = MemoryDisk::new();
            disk.create_dir_all("catalog").expect("made");
            whole.iter().for_each(|(path, bytes)| disk.replace(path, bytes).expect("written"));
            disk.flip_bit(path, offset, (offset % 8) as u8).expect("flip");
            let coordinator = open(&disk).unwrap_or_else(|error| panic!("{path} {offset}: {error}"));
            assert_eq!(coordinator.streams(), before, "{path} {offset}");
            coordinator.create_stream(&create("d")).expect("created");
            drop(coordinator);
            for path in [only_file(&disk, ".snapshot"), only_file(&disk, ".journal")] {
                assert!(read_twice(&disk, &path, 1 << 20).expect("read").are_same(), "{path} {offset}");
            }
        }
    }
}

/// Before the other one is changed as well.
#[test]
fn who_looks_finds_what_a_disk_has_changed_and_both_are_there_again() {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::new(Arc::new(memory.clone()));
    let coordinator = open_on(Arc::new(disk.clone())).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    let (bytes, is_damaged) = coordinator.look_at_disk().expect("read");
    assert!(bytes > 4 * 64 && !is_damaged);
    for suffix in [".journal", ".journal.copy", ".snapshot", ".snapshot.copy"] {
        let is = |name: &&String| name.ends_with(suffix);
        let name = memory.list("catalog").expect("list").iter().rfind(is).cloned().expect("there");
        memory.flip_bit(&format!("catalog/{name}"), 20, 1).expect("flip");
        disk.set_space(Some(0));
        coordinator.look_at_disk().expect_err("full");
        disk.set_space(None);
        coordinator.create_stream(&create(&suffix[1..])).expect("created all the same");
        let looked = coordinator.look_at_disk().expect("read");
        assert!(!looked.1, "{suffix}");
        memory.flip_bit(&only_file(&memory, ".journal"), 70, 1).expect("flip in the entry");
        assert!(coordinator.look_at_disk().expect("read").1, "{suffix}");
        assert!(!coordinator.look_at_disk().expect("read").1, "{suffix}");
    }
    assert_eq!(open(&memory).expect("open").streams(), coordinator.streams());
    assert_eq!(coordinator.streams().len(), 5);
}

#[test]
fn what_is_damaged_in_both_is_refused_and_the_place_is_named() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    for name in ["a", "b", "c"] {
        coordinator.create_stream(&create(name)).expect("created");
    }
    drop(coordinator);
    let journal = only_file(&disk, ".journal");
    let snapshot = only_file(&disk, ".snapshot");
    let first_entry = 64;
    for (path, offset) in [(&journal, 10), (&journal, first_entry + 30), (&snapshot, 10), (&snapshot, first_entry + 30)]
    {
        let flip =
            || [path.clone(), copy_path(path)].iter().for_each(|path| disk.flip_bit(path, offset, 3).expect("flip"));
        flip();
        let error = open(&disk).map(drop).expect_err("damaged");
        assert!(matches!(&error, OpenError::Damaged { .. }), "{path} {offset}: {error}");
        assert!(error.to_string().contains(path.as_str()), "{error}");
        // Nothing was changed: with the bits back, all is well.
        flip();
    }
    assert_eq!(open(&disk).expect("open").streams().len(), 3);
}

#[test]
fn the_last_entry_alone_may_be_torn() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    coordinator.create_stream(&create("b")).expect("created");
    drop(coordinator);
    let journal = only_file(&disk, ".journal");
    let length = disk.open(&journal, OpenMode::Read, false).expect("open").len().expect("length");
    // As a power cut leaves it before the entry was synced, which its copy does not have then.
    disk.flip_bit(&journal, length - 10, 0).expect("flip");
    disk.open(&copy_path(&journal), OpenMode::ReadWrite, false).expect("open").set_len(length - 100).expect("cut");
    let names: Vec<_> = open(&disk).expect("open").streams().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a"]);
}

/// A directory of a build that kept them once, and one in which such a build went on.
#[test]
fn a_catalog_without_copies_or_with_old_ones_is_read_and_gets_new_ones() {
    for old in [false, true] {
        let disk = MemoryDisk::new();
        let coordinator = open(&disk).expect("open");
        coordinator.create_stream(&create("a")).expect("created");
        let journal = only_file(&disk, ".journal");
        let copied = disk.read_all(&copy_path(&journal), 1 << 20).expect("read");
        coordinator.create_stream(&create("b")).expect("created");
        drop(coordinator);
        for path in [only_file(&disk, ".snapshot"), journal.clone()] {
            disk.remove(&copy_path(&path)).expect("removed");
        }
        if old {
            disk.replace(&copy_path(&journal), &copied).expect("written");
        }
        assert_eq!(open(&disk).expect("open").streams().len(), 2);
        for path in [only_file(&disk, ".snapshot"), only_file(&disk, ".journal")] {
            assert!(read_twice(&disk, &path, 1 << 20).expect("read").are_same(), "{path}");
        }
    }
}

#[test]
fn a_copy_that_cannot_be_written_is_made_anew_and_refuses_no_command() {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::new(Arc::new(memory.clone()));
    let coordinator = open_on(Arc::new(disk.clone())).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    // The second write of a command is that of the copy.
    disk.fail_write(2);
    coordinator.create_stream(&create("b")).expect("created all the same");
    let (journal, same) =
        (only_file(&memory, ".journal"), |path: &str| read_twice(&memory, path, 1 << 20).expect("read").are_same());
    assert!(!same(&journal));
    coordinator.create_stream(&create("c")).expect("created");
    assert_ne!(only_file(&memory, ".journal"), journal);
    assert!(same(&only_file(&memory, ".journal")) && same(&only_file(&memory, ".snapshot")));
    assert_eq!(open(&memory).expect("open").streams().len(), 3);
}

#[test]
fn a_catalog_of_another_node_is_refused() {
    let disk = MemoryDisk::new();
    open(&disk).expect("open");
    let config = kera_coordinator::CoordinatorConfig::single([9; 16]);
    let clock = Arc::new(kera_env::ManualClock::default());
    let error = Coordinator::open(&config, Arc::new(disk.clone()), clock).map(drop).expect_err("other node");
    assert!(matches!(error, OpenError::OtherNode { .. }), "{error}");
}

#[test]
fn a_journal_without_its_snapshot_is_refused() {
    let disk = MemoryDisk::new();
    open(&disk).expect("open").create_stream(&create("a")).expect("created");
    let snapshot = only_file(&disk, ".snapshot");
    [copy_path(&snapshot), snapshot].iter().for_each(|path| disk.remove(path).expect("remove"));
    let error = open(&disk).map(drop).expect_err("no snapshot");
    assert!(matches!(error, OpenError::Contradiction { .. }), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn a_long_journal_gives_way_to_a_snapshot() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    let first = only_file(&disk, ".journal");
    for n in 0..10_050_u32 {
        let changes = StreamChanges { segments_per_group: Some(1 + n % 2), ..StreamChanges::default() };
        coordinator.alter_stream(&"a".into(), &changes).expect("altered");
    }
    assert_ne!(only_file(&disk, ".journal"), first);
    assert_eq!(open(&disk).expect("open").streams(), coordinator.streams());
}
