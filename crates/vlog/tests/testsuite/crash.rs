//! Power cuts at every step, full and failing disks, torn writes, flipped bits. After each: everything acknowledged is
//! replayed, nothing twice, in the order of its lane.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_env::{Disk, FaultyDisk, LOST_ERRNOS, MemoryDisk, Random, SeededRandom};
use kera_format::{ChunkView, LaneId, SegmentId, StreamletId};
use kera_log::{DurabilitySink, Restored};
use kera_vlog::{Ran, ReplayError, VirtualLogConfig};

use crate::support::{self, Rig, STREAMLETS, config, open, replay};

/// What was appended to each lane, and how much of it was acknowledged.
#[derive(Default, Debug)]
struct Sent {
    texts: BTreeMap<u32, Vec<String>>,
    acknowledged: BTreeMap<u32, usize>,
    waiting: Vec<(u64, u32, usize)>,
}

impl Sent {
    fn append(&mut self, rig: &Rig, random: &SeededRandom) {
        let streamlet = random.below(STREAMLETS.into()) as u32;
        let texts = self.texts.entry(streamlet).or_default();
        let text = format!("{streamlet}/{} {}", texts.len(), "x".repeat(random.below(3000) as usize));
        let ticket = rig.append(streamlet, &text).ticket.expect("not durable yet");
        texts.push(text);
        self.waiting.push((ticket, streamlet, texts.len()));
    }

    /// As a session: whatever is durable is acknowledged.
    fn acknowledge(&mut self, durable: u64) {
        for (_, streamlet, count) in self.waiting.extract_if(.., |(ticket, ..)| *ticket <= durable) {
            self.acknowledged.insert(streamlet, count);
        }
    }

    /// What came back of each lane starts with everything acknowledged, in order, and goes on with nothing but what was
    /// sent after it.
    fn check(&self, came_back: &BTreeMap<u32, Vec<String>>, what: &str) {
        for streamlet in 0..STREAMLETS {
            let none = Vec::new();
            let sent = self.texts.get(&streamlet).unwrap_or(&none);
            let back = came_back.get(&streamlet).unwrap_or(&none);
            let acknowledged = self.acknowledged.get(&streamlet).copied().unwrap_or(0);
            assert!(back.len() >= acknowledged, "{what}: lane {streamlet} lost {acknowledged} > {}", back.len());
            assert!(back.len() <= sent.len() && back[..] == sent[..back.len()], "{what}: lane {streamlet} differs");
        }
    }
}

/// Appends in bursts and writes in between until `turns` are done or the disk is off.
fn work(rig: &Rig, random: &SeededRandom, turns: u64, sent: &mut Sent, off: impl Fn() -> bool) {
    for _ in 0..turns {
        for _ in 0..random.below(6) {
            sent.append(rig, random);
        }
        rig.vlog.run_once();
        sent.acknowledge(rig.vlog.durable_through());
        rig.clock.advance_ms(1000);
        if off() {
            return;
        }
    }
}

fn readable(rig: &Rig) -> BTreeMap<u32, Vec<String>> {
    (0..STREAMLETS).map(|streamlet| (streamlet, rig.readable(streamlet))).collect()
}

/// The file with a segment's first chunk goes when the segment is dropped. One with chunks behind it may have to stay for others.
#[test]
fn the_rest_of_a_segment_that_was_dropped_keeps_no_node_from_starting() {
    let memory = MemoryDisk::new();
    let rig = Rig::new(Arc::new(memory.clone()));
    let files = || memory.list("vlog").expect("list").into_iter().filter(|name| name.ends_with(".vlog")).count();
    let first = rig.append(0, "the first").cursor;
    let mut last = first;
    while files() < 2 {
        last = rig.append(0, &"x".repeat(500)).cursor;
        assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
    }
    assert_eq!((first.group, first.segment), (last.group, last.segment), "a segment over two files");
    rig.append(1, "of another lane");
    assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
    let (stream, streamlet, lane) = (support::STREAM, StreamletId(0), LaneId(0));
    rig.vlog.segment_safe(SegmentId { stream, streamlet, lane, group: first.group, index: first.segment });
    rig.vlog.run_once();
    assert_eq!(files(), 1);
    drop(rig);
    let rig = Rig::with(Arc::new(memory), config(), 2).expect("a start");
    assert_eq!((rig.readable(0), rig.readable(1)), (Vec::new(), vec!["of another lane".to_owned()]));
}

/// What a process wrote and did not sync is there for the next one, which counts on from it. Then the power goes.
#[test]
fn a_block_that_a_killed_process_had_not_synced_is_not_missed_after_a_power_cut() {
    let mut unsynced = 0;
    for seed in 0..60 {
        let memory = MemoryDisk::new();
        let faulty = FaultyDisk::new(Arc::new(memory.clone()));
        let rig = Rig::new(Arc::new(faulty.clone()));
        for _ in 0..1 + seed % 4 {
            rig.append(0, "synced");
            assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
        }
        rig.append(0, "written and not synced");
        faulty.fail_sync(1 + seed % 3);
        let was_written = matches!(rig.vlog.run_once(), Ran::Stuck { .. });
        drop(rig);
        let rig = Rig::with(Arc::new(memory.clone()), config(), 2).expect("a start after the kill");
        let before = rig.readable(0);
        unsynced += u64::from(was_written && before.last().is_some_and(|text| text.contains("not synced")));
        rig.append(1, "in the next file");
        assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
        drop(rig);
        memory.crash(seed);
        let rig = Rig::with(Arc::new(memory), config(), 3).expect("a start after the power cut");
        assert_eq!((rig.readable(0), rig.readable(1).len()), (before, 1), "seed {seed}");
    }
    assert!(unsynced > 5, "{unsynced}");
}

/// What it takes the place of may be given back before the rest is read, and the power go then.
#[test]
fn a_block_that_a_killed_process_had_not_synced_is_synced_before_anything_is_done_for_it() {
    let mut met = 0;
    for seed in 0..60 {
        let memory = MemoryDisk::new();
        let faulty = FaultyDisk::new(Arc::new(memory.clone()));
        let rig = Rig::new(Arc::new(faulty.clone()));
        for _ in 0..1 + seed % 4 {
            rig.append(0, "synced");
            assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
        }
        rig.append(0, "written and not synced");
        faulty.fail_sync(1 + seed % 3);
        rig.vlog.run_once();
        drop(rig);
        let (vlog, _) = open(&(Arc::new(memory.clone()) as Arc<dyn Disk>), config(), 2);
        let is_it = |text: &String| text.contains("not synced");
        let mut is_met = false;
        // The files that were open are dead behind that.
        let _ = vlog.replay(&mut |bytes| {
            let chunk = ChunkView::parse(bytes).expect("chunk");
            if is_it(&support::text_of(&chunk)) {
                is_met = true;
                memory.crash(seed);
            }
            Ok(Restored::Restored)
        });
        drop(vlog);
        met += u64::from(is_met);
        let rig = Rig::with(Arc::new(memory), config(), 3).expect("a start after the power cut");
        assert!(!is_met || rig.readable(0).last().is_some_and(is_it), "seed {seed}");
    }
    assert!(met > 5, "{met}");
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_acknowledged() {
    for seed in 0..4 {
        let whole = MemoryDisk::new();
        let rig = Rig::new(Arc::new(whole.clone()));
        let opened = whole.steps();
        work(&rig, &SeededRandom::new(seed), 30, &mut Sent::default(), || false);
        drop(rig);
        for step in 1..=whole.steps() - opened {
            let disk = MemoryDisk::new();
            let rig = Rig::new(Arc::new(disk.clone()));
            disk.cut_power_at(step);
            let mut sent = Sent::default();
            work(&rig, &SeededRandom::new(seed), 30, &mut sent, || disk.is_off());
            let what = format!("seed {seed} step {step}");
            assert!(disk.is_off(), "{what}");
            drop(rig);
            disk.crash(seed * 10_000 + step);
            let rig = Rig::with(Arc::new(disk.clone()), config(), 2).unwrap_or_else(|e| panic!("{what}: {e}"));
            let after = readable(&rig);
            sent.check(&after, &what);
            // It goes on from there, and comes back once more with both.
            rig.append(0, "after");
            assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }), "{what}");
            let expected = readable(&rig);
            drop(rig);
            disk.crash(seed + step);
            let rig = Rig::with(Arc::new(disk), config(), 3).unwrap_or_else(|e| panic!("{what}, again: {e}"));
            assert_eq!(readable(&rig), expected, "{what}");
        }
    }
}

#[test]
fn a_full_disk_refuses_and_keeps_what_waits_until_there_is_space() {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::new(Arc::new(memory.clone()));
    let rig = Rig::new(Arc::new(disk.clone()));
    let mut sent = Sent::default();
    let random = SeededRandom::new(1);
    disk.set_space(Some(200_000));
    for turn in 0.. {
        sent.append(&rig, &random);
        if let Ran::Stuck { .. } = rig.vlog.run_once() {
            break;
        }
        sent.acknowledge(rig.vlog.durable_through());
        assert!(turn < 10_000, "the disk never gets full");
    }
    let durable = rig.vlog.durable_through();
    let trouble = rig.vlog.healthy().expect_err("full");
    assert!(trouble.reason.contains("is full") && trouble.retry_after_ms > 0, "{trouble}");
    assert!(rig.append_error(0).contains("is full"));
    for _ in 0..5 {
        rig.clock.advance_ms(1000);
        assert!(matches!(rig.vlog.run_once(), Ran::Stuck { .. }));
    }
    assert_eq!(rig.vlog.durable_through(), durable);
    let used = memory.used_bytes();
    disk.set_space(None);
    assert!(matches!(rig.vlog.run_once(), Ran::Stuck { .. }), "the next try is not due");
    rig.clock.advance_ms(1000);
    assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
    assert!(memory.used_bytes() <= used + (128 << 10), "failed tries leave nothing behind");
    rig.vlog.healthy().expect("healthy again");
    sent.append(&rig, &random);
    rig.vlog.run_once();
    sent.acknowledge(rig.vlog.durable_through());
    assert!(sent.waiting.is_empty());
    memory.crash(5);
    sent.check(&readable(&Rig::with(Arc::new(memory), config(), 2).expect("replay")), "after");
}

#[test]
fn a_block_whose_write_or_sync_failed_goes_to_a_fresh_file_and_comes_once() {
    type Fault = fn(&FaultyDisk);
    let faults: [(&str, usize, Fault); 4] = [
        ("sync", 1, |disk| disk.fail_sync(1)),
        ("write", 1, |disk| disk.fail_write(1)),
        ("torn write", 1, |disk| disk.tear_write(1)),
        ("three syncs", 3, |disk| disk.fail_sync(1)),
    ];
    for (name, times, fault) in faults {
        for seed in 0..10 {
            let what = format!("{name}, seed {seed}");
            let memory = MemoryDisk::new();
            let disk = FaultyDisk::new(Arc::new(memory.clone()));
            let rig = Rig::new(Arc::new(disk.clone()));
            let random = SeededRandom::new(seed);
            let mut sent = Sent::default();
            work(&rig, &random, 5, &mut sent, || false);
            sent.append(&rig, &random);
            let durable = rig.vlog.durable_through();
            let newest = |disk: &MemoryDisk| files(disk).into_iter().filter(|name| name.ends_with(".vlog")).max();
            for _ in 0..times {
                fault(&disk);
                assert!(matches!(rig.vlog.run_once(), Ran::Stuck { .. }), "{what}");
                assert_eq!(rig.vlog.durable_through(), durable, "{what}: nothing is acknowledged that is not synced");
                assert!(rig.vlog.healthy().is_err(), "{what}");
                rig.clock.advance_ms(1000);
            }
            let failed = newest(&memory);
            for _ in 0..3 {
                rig.clock.advance_ms(1000);
                rig.vlog.run_once();
            }
            rig.vlog.healthy().expect("healthy again");
            assert!(newest(&memory) > failed, "{what}: the file of the failure is not used again");
            work(&rig, &random, 5, &mut sent, || false);
            drop(rig);
            memory.crash(seed);
            let rig = Rig::with(Arc::new(memory), config(), 2).unwrap_or_else(|e| panic!("{what}: {e}"));
            sent.check(&readable(&rig), &what);
        }
    }
}

/// A disk with several files of acknowledged blocks, and what each lane has.
fn written() -> (MemoryDisk, BTreeMap<u32, Vec<String>>) {
    let disk = MemoryDisk::new();
    let plain = VirtualLogConfig { spares: 0, ..config() };
    let rig = Rig::with(Arc::new(disk.clone()), plain, 1).expect("open");
    let mut sent = Sent::default();
    work(&rig, &SeededRandom::new(7), 60, &mut sent, || false);
    while rig.vlog.run_once() != Ran::Idle {}
    (disk, sent.texts)
}

fn files(disk: &MemoryDisk) -> Vec<String> {
    disk.list("vlog").expect("list").into_iter().map(|name| format!("vlog/{name}")).collect()
}

#[test]
fn a_flipped_bit_in_the_middle_is_refused_and_named_or_accepted_and_reported() {
    let count = files(&written().0).len();
    for (file, offset) in [(0, 4096 + 70), (0, 4096 + 20), (count / 2, 4096 + 100)] {
        let (disk, texts) = written();
        let path = files(&disk)[file].clone();
        let damaged: Arc<dyn Disk> = Arc::new(disk.clone());
        disk.flip_bit(&path, offset, 2).expect("flip");
        let error = replay(&damaged, config()).expect_err("damage");
        let ReplayError::Damaged(damage) = &error else { panic!("{error}") };
        assert_eq!(damage.path, path);
        assert_eq!(damage.offset, offset & !4095, "the block");
        assert!(error.to_string().contains("was acknowledged"), "{error}");
        // Nothing was changed: with the bit back, all is well.
        disk.flip_bit(&path, offset, 2).expect("flip back");
        assert_eq!(replay(&damaged, config()).expect("whole").0.texts, texts);

        disk.flip_bit(&path, offset, 2).expect("flip again");
        let accept = VirtualLogConfig { accept_damage: true, ..config() };
        let (replayed, report) = replay(&damaged, accept).expect("accepted");
        assert_eq!(report.damage[0], *damage);
        // All that is lost is what was in that block; and the file is still there for a look.
        let lost: usize = texts.iter().map(|(lane, texts)| texts.len() - replayed.texts[lane].len()).sum();
        assert!((1..=20).contains(&lost), "{path} {offset}: {lost}");
        assert!(files(&disk).iter().any(|name| name.starts_with(&path)), "{:?}", files(&disk));
    }
}

/// Whether the log leaves a record out as it comes, or learns later that it should have.
#[test]
fn files_with_records_whose_ordinals_were_given_again_are_kept_aside() {
    let (disk, _) = written();
    let before = files(&disk);
    let aside: Vec<String> = before.iter().map(|path| format!("{path}.damaged")).collect();
    let all: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = open(&all, config(), 9).0.replay(&mut |_| Ok(Restored::GivenAgain)).expect("read");
    assert!(report.chunks > 0 && (report.given_again, report.restored) == (report.chunks, 0), "{report:?}");
    assert_eq!(files(&disk), aside);

    let (disk, _) = written();
    let all: Arc<dyn Disk> = Arc::new(disk.clone());
    let segments = replay(&all, config()).expect("read").0.segments;
    let (vlog, _) = open(&all, VirtualLogConfig { spares: 0, ..config() }, 9);
    vlog.replay(&mut |_| Ok(Restored::Restored)).expect("read");
    // Of the first segment alone, which is in the first file.
    vlog.segment_given_again(segments[0]);
    vlog.run_once();
    assert_eq!(files(&disk), before, "they are needed");
    segments.iter().for_each(|id| vlog.segment_safe(*id));
    vlog.run_once();
    let left = files(&disk);
    assert!(left.contains(&aside[0]) && left.iter().all(|path| aside.contains(path)), "{left:?}");
    assert!(left.len() < before.len(), "{left:?} of {before:?}");
}

/// All that it says the first block says as well.
#[test]
fn no_bit_of_a_files_header_is_needed_unless_its_first_block_is_gone_too() {
    let files_before = files(&written().0);
    for (file, path) in files_before.iter().enumerate() {
        for offset in 0..64 {
            let (disk, texts) = written();
            let damaged: Arc<dyn Disk> = Arc::new(disk.clone());
            disk.flip_bit(path, offset, (offset % 8) as u8).expect("flip");
            let (replayed, report) =
                replay(&damaged, config()).unwrap_or_else(|error| panic!("{path} {offset}: {error}"));
            assert!(replayed.texts == texts && report.damage.is_empty(), "{path} {offset}");
        }
        // Nobody misses the first block of all, or the last one.
        if (1..files_before.len() - 1).contains(&file) {
            let (disk, _) = written();
            disk.flip_bit(path, 30, 2).expect("flip");
            disk.flip_bit(path, 4096 + 70, 2).expect("flip");
            let error = replay(&(Arc::new(disk) as Arc<dyn Disk>), config()).err();
            assert!(matches!(&error, Some(ReplayError::Damaged(_))), "{path}: {error:?}");
        }
    }
}

/// A page that the disk cannot read is damage wherever blocks may be, for nobody can tell it from one that was never written; but a header that its first block makes up for.
#[test]
fn a_page_that_a_disk_cannot_read_is_refused_and_named_or_accepted_and_reported() {
    let count = files(&written().0).len();
    let places = [(0, 0), (0, 4096), (count / 2, 0), (count / 2, 4096), (count - 1, 4096)];
    for (errno, (file, page)) in LOST_ERRNOS.iter().flat_map(|errno| places.map(|place| (*errno, place))) {
        let (memory, texts) = written();
        let path = files(&memory)[file].clone();
        let disk = FaultyDisk::new(Arc::new(memory));
        disk.set_lost_errno(errno);
        disk.set_unreadable(&path, page + 100);
        let faulty: Arc<dyn Disk> = Arc::new(disk.clone());
        if page == 0 {
            let (replayed, report) = replay(&faulty, config()).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(replayed.texts == texts && report.damage.is_empty(), "{path}");
            continue;
        }
        let error = replay(&faulty, config()).err();
        assert!(matches!(&error, Some(ReplayError::Damaged(damage)) if damage.path == path), "{path}: {error:?}");
        let accept = VirtualLogConfig { accept_damage: true, ..config() };
        let (replayed, report) = replay(&faulty, accept).expect("accepted");
        assert!(report.damage.iter().any(|damage| damage.path == path && damage.offset == page), "{:?}", report.damage);
        let lost: usize = texts.iter().map(|(lane, texts)| texts.len() - replayed.texts[lane].len()).sum();
        assert!((1..=20).contains(&lost), "{path} {page}: {lost}");
        let names = faulty.list("vlog").expect("list");
        assert!(
            names.iter().any(|name| format!("vlog/{name}").starts_with(&path)),
            "it is there for a look: {names:?}"
        );
    }
}

#[test]
fn the_last_block_alone_may_be_torn() {
    let (disk, texts) = written();
    let all: Arc<dyn Disk> = Arc::new(disk.clone());
    let (_, whole) = replay(&all, config()).expect("replay");
    // The last block that has bytes in the last file.
    let last = files(&disk).pop().expect("a file");
    let file = disk.open(&last, kera_env::OpenMode::Read, false).expect("open");
    let mut page = [0; 64];
    let mut at = 0;
    for offset in (4096..file.len().expect("length")).step_by(4096) {
        file.read_at(offset, &mut page).expect("read");
        if page[..4] == *b"KVBL" {
            at = offset;
        }
    }
    disk.flip_bit(&last, at + 100, 0).expect("flip");
    let (replayed, report) = replay(&all, config()).expect("a torn end is no damage");
    assert_eq!(report.blocks, whole.blocks - 1);
    for (lane, texts) in &texts {
        assert_eq!(replayed.texts[lane][..], texts[..replayed.texts[lane].len()]);
    }
}

#[test]
fn a_file_that_is_missing_is_damage_unless_it_is_the_oldest() {
    let (disk, _) = written();
    let files = files(&disk);
    assert!(files.len() > 3, "{files:?}");
    let all: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.remove(&files[0]).expect("remove");
    replay(&all, config()).expect("the oldest go first");
    disk.remove(&files[2]).expect("remove");
    let error = replay(&all, config()).expect_err("a hole");
    assert!(error.to_string().contains("are missing"), "{error}");
}

#[test]
fn files_of_another_node_are_refused() {
    let (disk, _) = written();
    let other = VirtualLogConfig { node: [1; 16], ..config() };
    let all: Arc<dyn Disk> = Arc::new(disk);
    let error = replay(&all, other).expect_err("foreign");
    assert!(matches!(error, ReplayError::Foreign { .. }), "{error}");
}

#[test]
fn replaying_twice_gives_the_same_and_changes_nothing() {
    let (disk, texts) = written();
    let all: Arc<dyn Disk> = Arc::new(disk.clone());
    let first = replay(&all, config()).expect("replay");
    let steps = disk.steps();
    let second = replay(&all, config()).expect("replay");
    assert_eq!((&first.0, &first.1), (&second.0, &second.1));
    assert_eq!(first.0.texts, texts);
    // It syncs what it counts on, which changes nothing.
    assert_eq!(disk.steps(), steps + second.1.files);
}

#[test]
fn what_is_in_the_arena_still_is_not_put_back_twice() {
    let (disk, texts) = written();
    let rig = Rig::with(Arc::new(disk.clone()), config(), 2).expect("replay");
    assert_eq!(rig.report.restored, rig.report.chunks);
    assert_eq!(readable(&rig), texts);
    // The same log once more, as after the death of the process alone: everything is there.
    let again = support::open(&(Arc::new(disk) as Arc<dyn Disk>), config(), 5).0;
    let report = again.replay_into(&rig.log).expect("replay");
    assert_eq!((report.chunks, report.restored), (rig.report.chunks, 0));
    assert_eq!(readable(&rig), texts);
}

/// Files of 16 MiB, since there is no spare: several times what the mark is ahead of the blocks.
fn large() -> VirtualLogConfig {
    VirtualLogConfig { file_bytes: 128 << 20, block_bytes_max: 64 << 10, spares: 0, ..config() }
}

#[test]
fn damage_is_found_however_much_of_it_there_is() {
    const BLOCKS: u64 = 190;
    const BLOCK_BYTES: u64 = 13 * 4096;
    let disk = MemoryDisk::new();
    let rig = Rig::with(Arc::new(disk.clone()), large(), 1).expect("open");
    for n in 0..BLOCKS {
        rig.append(n as u32 % STREAMLETS, &"x".repeat(50_000));
        assert_eq!(rig.vlog.run_once(), Ran::Wrote { chunks: 1, bytes: BLOCK_BYTES });
    }
    let path = files(&disk).pop().expect("a file");
    let file = disk.open(&path, kera_env::OpenMode::ReadWrite, false).expect("open");
    // All but the first block and the last: nine megabytes.
    for block in 1..BLOCKS - 1 {
        file.write_at(4096 + block * BLOCK_BYTES, &vec![0; BLOCK_BYTES as usize]).expect("write");
    }
    let all: Arc<dyn Disk> = Arc::new(disk);
    let ReplayError::Damaged(damage) = replay(&all, large()).expect_err("damage") else { panic!("another error") };
    assert_eq!((damage.path, damage.offset), (path, 4096 + BLOCK_BYTES));
}

#[test]
fn what_was_never_written_is_not_searched_unless_the_mark_is_damaged() {
    const STEP: u64 = 1 << 20;
    let memory = MemoryDisk::new();
    let rig = Rig::with(Arc::new(memory.clone()), large(), 1).expect("open");
    rig.append(0, "a");
    rig.vlog.run_once();
    let path = files(&memory).pop().expect("a file");
    let bytes = memory.open(&path, kera_env::OpenMode::Read, false).and_then(|file| file.len()).expect("length");
    let disk = FaultyDisk::new(Arc::new(memory.clone()));
    let counted: Arc<dyn Disk> = Arc::new(disk.clone());
    let reads = || {
        let before = disk.counts().2;
        assert_eq!(replay(&counted, large()).expect("replay").0.texts[&0], ["a"]);
        disk.counts().2 - before
    };
    assert!(reads() < bytes / STEP);
    memory.flip_bit(&path, bytes - 4096 + 34, 1).expect("flip");
    assert!(reads() >= bytes / STEP);
}

#[test]
fn small_blocks_are_read_back_many_at_a_time() {
    const BLOCKS: u32 = 500;
    let memory = MemoryDisk::new();
    let rig = Rig::with(Arc::new(memory.clone()), large(), 1).expect("open");
    for n in 0..BLOCKS {
        rig.append(n % STREAMLETS, "a");
        rig.vlog.run_once();
    }
    let disk = FaultyDisk::new(Arc::new(memory));
    let counted: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = replay(&counted, large()).expect("replay").1;
    assert_eq!(report.blocks, BLOCKS.into());
    // Two megabytes of blocks, and the four that the mark is ahead of them.
    assert!(disk.counts().2 < 20, "{} reads", disk.counts().2);
}
