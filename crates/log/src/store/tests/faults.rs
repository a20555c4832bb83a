//! Disks that are full, broken, tear writes and flip bits.

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use kera_env::{FaultyDisk, Folder, LOST_ERRNOS, OpenMode};
use kera_format::container::ContainerEntry;
use rustix::io::Errno;

use super::*;
use crate::arena::{Arena, Purpose};
use crate::segment::{FIRST_CHUNK, Segment};
use crate::store::DiskState;
use crate::store::container::{CONTAINER_DIR, container_path};
use crate::store::recover::{KNOWN, LOST, Lack, SYNCED, note};

fn faulty(count: usize) -> Vec<FaultyDisk> {
    memory_disks(count).into_iter().map(|disk| FaultyDisk::new(Arc::new(disk))).collect()
}

#[test]
fn full_disk_says_so_keeps_everything_in_memory_and_goes_on_when_there_is_room() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    disks[0].set_space(Some(100_000));
    (0..20).for_each(|n| bench.close(id(0, n), 20_000));
    bench.settle();
    let status = bench.core.status();
    assert_eq!((status.disks[0].state, status.can_write()), (DiskState::Full, false));
    assert!(status.disks[0].error.is_some());
    let before = bench.persisted();
    assert_eq!(before.len() as u64 + status.dirty_segments, 20);
    assert!((0..20).all(|n| bench.is_in_memory(id(0, n))));
    match bench.core.flush_all() {
        Err(error @ StoreError::NotFlushed { .. }) => assert!(error.to_string().contains("space"), "{error}"),
        _ => panic!("flushed to a full disk"),
    }
    disks[0].set_space(None);
    bench.clock.advance_ms(1_001);
    bench.settle();
    assert_eq!(bench.persisted().len(), 20);
    assert_eq!(bench.core.status().disks[0].state, DiskState::Working);
    bench.evict_all();
    (0..20).for_each(|n| bench.check(id(0, n), 20_000));
}

#[test]
fn small_free_space_is_used_with_smaller_containers() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    disks[0].set_space(Some(60_000));
    (0..2).for_each(|n| bench.close(id(0, n), 10_000));
    bench.settle();
    assert_eq!(bench.persisted().len(), 2);
}

#[test]
fn failed_write_torn_write_and_failed_sync_count_for_nothing() {
    for fault in 0..3 {
        for nth in 1..8 {
            let disks = faulty(1);
            let mut bench = Bench::fresh(as_disks(&disks));
            match fault {
                0 => disks[0].fail_write(nth),
                1 => disks[0].tear_write(nth),
                _ => disks[0].fail_sync(nth),
            }
            (0..12).for_each(|n| bench.close(id(n % 3, n / 3), 25_000));
            bench.settle();
            let status = bench.core.status();
            assert_eq!(status.disks[0].counters.write_errors, 1, "fault {fault} {nth}");
            assert_eq!(bench.persisted().len() as u64 + status.dirty_segments, 12);
            bench.clock.advance_ms(1_001);
            bench.settle();
            assert_eq!(bench.persisted().len(), 12, "fault {fault} {nth}");
            // Everything is found again once, and as it was.
            let (again, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
            assert_eq!(recovery.segments.len(), 12);
            assert_eq!(recovery.problems, Vec::<String>::new());
            (0..12).for_each(|n| again.check(id(n % 3, n / 3), 25_000));
        }
    }
}

/// Has a sync of the folder that somebody else asks for fail when a container gets its name. Who asked is told, and nobody once more.
fn lose_name(bench: &Bench, disk: &FaultyDisk, container: u64) {
    let (broken, folder) = (disk.clone(), Arc::clone(&bench.core.disks[0].containers.folder));
    disk.once_named(&container_path(container), move || {
        broken.fail_sync_dir(1);
        assert!(folder.sync().is_err());
    });
}

#[test]
fn nothing_is_stored_in_a_container_whose_name_a_sync_of_somebody_else_may_have_lost() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    lose_name(&bench, &disks[0], 1);
    bench.close(id(0, 0), 10_000);
    bench.settle();
    assert_eq!((bench.persisted(), bench.core.status().disks[0].state), (vec![], DiskState::Failed));
    assert!(bench.is_in_memory(id(0, 0)));
    bench.clock.advance_ms(1_001);
    bench.settle();
    assert_eq!(bench.location(id(0, 0)).map(|at| at.container), Some(2));
}

#[test]
fn no_large_segment_is_written_through_to_a_container_whose_name_may_be_lost() {
    let disks = faulty(1);
    let mut bench = with_large_lanes(&disks);
    lose_name(&bench, &disks[0], 1);
    let dir = tempfile::tempdir().unwrap();
    let (arena, _) = Arena::create_or_attach(crate::tests::arena_config(&dir, 8 << 20)).unwrap();
    let segment = bench.put(id(0, 0), 9_000);
    let block = arena.allocate(64 << 10, Purpose::Write).unwrap();
    let chunks = &segment.image()[FIRST_CHUNK as usize..];
    let open = Segment::copy_of(block, segment.header(), chunks, &segment.progress());
    assert!(bench.core.begin_through(&open).is_none());
    assert!(bench.core.begin_through(&open).is_some(), "the next container is made behind that");
    assert_eq!(bench.core.disks[0].containers.containers.lock().keys().copied().collect::<Vec<_>>(), [2]);
}

#[test]
fn broken_disk_is_set_aside_and_the_other_takes_over() {
    let disks = faulty(2);
    let mut bench = Bench::fresh(as_disks(&disks));
    disks[0].set_broken(true);
    (0..30).for_each(|n| bench.close(id(n % 5, n / 5), 25_000));
    bench.settle();
    let status = bench.core.status();
    assert_eq!((status.disks[0].state, status.disks[1].state), (DiskState::Failed, DiskState::Working));
    assert!(status.disks[0].error.as_ref().is_some_and(|(error, _)| error.contains("error")));
    assert_eq!(bench.persisted().len(), 30);
    assert!(bench.persisted().iter().all(|id| bench.location(*id).unwrap().disk == 1));
    bench.core.flush_all().unwrap();
    disks[0].set_broken(false);
    bench.clock.advance_ms(60_000);
    (30..60).for_each(|n| bench.close(id(n % 5, n / 5), 25_000));
    bench.settle();
    assert_eq!(bench.core.status().disks[0].state, DiskState::Working);
    assert!(bench.core.status().disks[0].segments > 0);
}

#[test]
fn corrupt_segment_is_reported_and_its_neighbours_are_served() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    (0..5).for_each(|n| bench.close(id(0, n), 10_000));
    bench.settle();
    bench.evict_all();
    let at = bench.location(id(0, 2)).unwrap();
    disks[0].flip_bit_on_read(&container_path(at.container), at.offset + 5_000, 3);
    (0..5).for_each(|n| bench.demand(id(0, n)));
    bench.settle();
    let failed = |n| bench.log.segments.lock()[&id(0, n)].failed.clone();
    assert!(failed(2).unwrap().contains("checksum"));
    assert!([0, 1, 3, 4].into_iter().all(|n| failed(n).is_none() && bench.is_in_memory(id(0, n))));
    let status = bench.core.status();
    assert_eq!(status.disks[0].counters.corrupt_segments, 1);
    assert!(status.load_error.is_some_and(|error| error.contains("1/0/0/1.1/2")));
    // What was wrong with the reading passes with it.
    disks[0].heal_reads();
    bench.check(id(0, 2), 10_000);
}

#[test]
fn unreadable_place_does_not_take_its_neighbours_with_it() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    (0..4).for_each(|n| bench.close(id(0, n), 10_000));
    bench.settle();
    bench.evict_all();
    (0..4).for_each(|n| bench.demand(id(0, n)));
    // The read of all four, then the first of the single ones.
    disks[0].fail_read(1);
    bench.settle();
    assert!((0..4).all(|n| bench.is_in_memory(id(0, n))));
    bench.evict_all();
    bench.demand(id(0, 3));
    disks[0].fail_read(1);
    bench.settle();
    assert!(bench.log.segments.lock()[&id(0, 3)].failed.is_some());
    assert_eq!(bench.core.status().disks[0].counters.read_errors, 1);
}

#[test]
fn a_file_that_could_not_be_read_is_opened_anew_since_its_disk_may_have_been_away() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    bench.close(id(0, 0), 10_000);
    bench.settle();
    let at = bench.location(id(0, 0)).unwrap();
    let (opens, mut page) = (disks[0].opens(), AlignedBuffer::zeroed(4096));
    let mut read = || bench.core.disks[0].containers.read_prefix(at.container, at.offset, &mut page);
    read().unwrap();
    disks[0].fail_read(1);
    read().unwrap_err();
    assert_eq!(disks[0].opens(), opens, "it was open");
    read().unwrap();
    assert_eq!(disks[0].opens(), opens + 1);
}

#[test]
fn damaged_footer_and_damaged_index_are_covered_by_each_other() {
    let disk = MemoryDisk::new();
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
    for round in 0..3 {
        (0..3).for_each(|n| bench.close(id(n, round), 10_000));
        bench.settle();
    }
    bench.core.flush_all().unwrap();
    let container = bench.location(id(0, 0)).unwrap().container;
    let path = container_path(container);
    let bytes = disk.read_all(&path, 1 << 20).unwrap();
    // The index in the middle: the footer has it all.
    let second = (4096..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"KCBA")).nth(1).unwrap();
    disk.flip_bit(&path, second as u64 + 100, 0).unwrap();
    let (_, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
    assert_eq!((recovery.segments.len(), recovery.problems.len()), (9, 0));
    // The footer instead: the indexes have it all, and it is written again.
    disk.flip_bit(&path, second as u64 + 100, 0).unwrap();
    disk.flip_bit(&path, bytes.len() as u64 - 4000, 0).unwrap();
    let (_, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
    assert_eq!((recovery.segments.len(), recovery.unfinished, recovery.problems.len()), (9, 1, 0));
    assert_eq!(disk.read_all(&path, 1 << 20).unwrap(), bytes);
    // Both: the images say what the index did.
    disk.flip_bit(&path, second as u64 + 100, 0).unwrap();
    disk.flip_bit(&path, bytes.len() as u64 - 4000, 0).unwrap();
    let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
    assert_eq!((recovery.segments.len(), recovery.unfinished, recovery.problems.len()), (9, 1, 0));
    recovery.segments.iter().for_each(|segment| bench.check(segment.header.id, 10_000));
    drop(bench);
    let (_, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
    assert_eq!((recovery.segments.len(), recovery.unfinished), (9, 0), "there is a footer again");
}

/// A container of so many batches of three segments: its path, its bytes, and where its indexes are. One that is not full is as a kill leaves it.
fn filled(batches: u32, is_full: bool) -> (String, Vec<u8>, Vec<usize>) {
    let disk = MemoryDisk::new();
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
    for batch in 0..batches {
        (0..3).for_each(|n| bench.close(id(n, batch), 10_000));
        bench.settle();
    }
    if is_full {
        bench.core.flush_all().unwrap();
    }
    let path = container_path(bench.location(id(0, 0)).unwrap().container);
    let bytes = disk.read_all(&path, 1 << 20).unwrap();
    let indexes = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"KCBA")).collect();
    (path, bytes, indexes)
}

/// A disk with this container alone.
fn disk_with(path: &str, bytes: &[u8]) -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir_all("containers").unwrap();
    disk.replace(path, bytes).unwrap();
    disk
}

/// A container that was being filled when the process was killed, and one that is full, with what tells of segments in them changed in one place.
#[test]
fn no_byte_of_what_tells_of_segments_is_needed_but_the_last_index_of_a_container_that_was_being_filled() {
    for is_full in [false, true] {
        let (path, bytes, indexes) = filled(3, is_full);
        let footer = bytes.len() - 4096;
        assert_eq!(indexes.len(), 3);
        let last = indexes[2];
        let mut places: Vec<usize> = (0..64).collect();
        places.extend(indexes.iter().flat_map(|at| *at..*at + 64 + 3 * (144 + 32)));
        if is_full {
            places.extend((footer..footer + 9 * (144 + 32)).chain(bytes.len() - 64..bytes.len()));
        }
        for place in places {
            let disk = disk_with(&path, &bytes);
            disk.flip_bit(&path, place as u64, (place % 8) as u8).unwrap();
            for start in 0..2 {
                let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
                let expected = if is_full || place < last { 9 } else { 6 };
                let problems = &recovery.problems;
                assert_eq!(
                    recovery.segments.len(),
                    expected,
                    "{is_full} {place} of {}, start {start}: {problems:?}",
                    bytes.len()
                );
                assert!(problems.is_empty() && recovery.lacks.is_empty(), "{place} {problems:?}");
                if start == 1 && place % 7 == 0 {
                    recovery.segments.iter().for_each(|segment| bench.check(segment.header.id, 10_000));
                }
            }
        }
    }
}

/// Pages that the disk cannot read are what it has lost, and no more. What it gives again is there again.
#[test]
fn a_page_that_a_disk_cannot_read_costs_what_is_in_it_alone() {
    for (is_full, errno) in [false, true].into_iter().flat_map(|is_full| LOST_ERRNOS.map(|errno| (is_full, errno))) {
        let (path, bytes, indexes) = filled(3, is_full);
        for page in (0..bytes.len()).step_by(4096) {
            let disk = FaultyDisk::new(Arc::new(disk_with(&path, &bytes)));
            disk.set_lost_errno(errno);
            disk.set_unreadable(&path, page as u64 + 10);
            let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
            let (found, problems) = (recovery.segments.len(), &recovery.problems);
            // The first page has what was let go of.
            let of_map = |problem: &String| page == 0 && problem.contains("released map");
            // Of the last batch of one that was being filled nobody can tell whether it was all written.
            let is_sure = is_full || page < indexes[2];
            let of_last = |problem: &String| problem.contains(&format!("{path}: the disk cannot read all"));
            // Nor of one whose footer it cannot read, behind which nothing is.
            let may_be_told = !is_sure || page >= bytes.len() - 4096;
            let are_expected = problems.iter().all(|problem| of_map(problem) || may_be_told && of_last(problem));
            assert!(are_expected, "{is_full} {page}: {problems:?}");
            let lacks = (recovery.lacks.len(), bench.core.lacks_some);
            assert_eq!(lacks, (usize::from(!is_sure), !is_sure), "{is_full} {page}: it may have been stored");
            let told = problems.iter().filter(|problem| of_last(problem)).count();
            assert!(told == usize::from(!is_sure) || is_sure && may_be_told && told == 1, "{is_full} {page}: {told}");
            match is_sure {
                true => assert_eq!(found, 9, "{is_full} {page}"),
                false => assert!((6..9).contains(&found), "{is_full} {page}: {found}"),
            }
            let whole = recovery.segments.iter().filter(|segment| {
                let at = segment.at.offset as usize;
                !(at..at + segment.at.bytes as usize).contains(&page)
            });
            whole.for_each(|segment| bench.check(segment.header.id, 10_000));
            drop(bench);
            disk.heal_reads();
            let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
            assert_eq!((recovery.segments.len(), recovery.lacks), (9, vec![]), "{is_full} {page}");
            recovery.segments.iter().for_each(|segment| bench.check(segment.header.id, 10_000));
        }
    }
}

/// Of two indexes in a row nobody can tell which images were of which, and what was let go of is a hole that nobody can see the size of.
#[test]
fn what_images_cannot_tell_is_lost_and_said_to_be() {
    let (path, bytes, indexes) = filled(4, false);
    let (bench, _) = Bench::open(config(), as_disks(&[disk_with(&path, &bytes)])).unwrap();
    let image = bench.location(id(1, 1)).unwrap().offset as usize + 5_000;
    assert!(!bench.core.lacks_some);
    drop(bench);
    for (places, expected) in [([indexes[0], indexes[1]], 6), ([indexes[1], image], 9), ([indexes[1], indexes[2]], 6)] {
        let disk = disk_with(&path, &bytes);
        places.iter().for_each(|place| disk.flip_bit(&path, *place as u64 + 70, 1).unwrap());
        let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
        assert_eq!(
            (recovery.segments.len(), recovery.problems.len(), recovery.lacks.len()),
            (expected, 1, 1),
            "{places:?}"
        );
        assert!(recovery.problems[0].contains("lost"), "{}", recovery.problems[0]);
        assert!(bench.core.lacks_some);
        recovery.segments.iter().for_each(|segment| bench.check(segment.header.id, 10_000));
    }
}

/// Everything is in memory, since nothing of a batch leaves it before all of it is synced. A file that has the whole batch is no such file: there a disk has changed
/// what tells of segments.
#[test]
fn an_index_that_a_kill_has_cut_off_tells_of_nothing_that_is_lost() {
    let disk = MemoryDisk::new();
    let config = StoreConfig { batch_bytes: 1 << 20, container_bytes: 4 << 20, ..config() };
    let (mut bench, _) = Bench::open(config.clone(), as_disks(std::slice::from_ref(&disk))).unwrap();
    bench.close(id(1, 0), 10_000);
    bench.settle();
    (0..40).for_each(|n| bench.close(id(0, n), 200));
    bench.settle();
    let (path, index) = (container_path(1), 4096 + 4096 + 12288);
    let bytes = disk.read_all(&path, 1 << 20).unwrap();
    assert!(bytes[index..].starts_with(b"KCBA") && bytes.len() == index + 2 * 4096 + 40 * 4096);
    let in_memory = bench.persisted().into_iter().collect();
    let found = |bytes: &[u8], changed: Option<usize>| {
        let disk = disk_with(&path, bytes);
        changed.into_iter().for_each(|at| disk.flip_bit(&path, at as u64, 3).unwrap());
        let (disks, clock) = (as_disks(&[disk]), Arc::new(ManualClock::new(1)));
        let random = Arc::new(SeededRandom::new(1));
        let (_, recovery) = Core::<Arc<FakeLog>>::open(config.clone(), disks, clock, random, Some(&in_memory)).unwrap();
        assert_eq!(recovery.problems.len(), recovery.lacks.len(), "{:?}", recovery.problems);
        (recovery.segments.len(), recovery.lacks.len())
    };
    assert_eq!(found(&bytes, None), (41, 0));
    assert_eq!(found(&bytes[..index + 4096], None), (1, 0), "in the middle of the index");
    assert_eq!(found(&bytes[..index + 5 * 4096], None), (4, 0), "behind it");
    for changed in [index + 10, index + 100, index + 4096 + 10] {
        assert_eq!(found(&bytes, Some(changed)), (1, 1), "all was written, and byte {changed} has changed since");
    }
    // Nobody can tell any more what this was.
    assert_eq!(found(&bytes[..index + 4096], Some(index + 10)), (1, 1));
}

/// A later container with the number would pass for one that others have already when it does not read back.
#[test]
fn the_number_of_a_container_that_others_know_to_be_lacking_is_not_given_out_again() {
    for name in [KNOWN, LOST, SYNCED] {
        let disks = as_disks(&memory_disks(2));
        drop(Bench::fresh(disks.clone()));
        note(&Folder::new(disks[1].clone(), CONTAINER_DIR), name, [(7, 4096), (3, 0)].into_iter()).unwrap();
        let mut bench = Bench::fresh(disks);
        bench.close(id(0, 0), 10_000);
        bench.settle();
        assert_eq!(bench.location(id(0, 0)).unwrap().container, 8, "{name}");
    }
}

#[test]
fn two_copies_of_a_segment_are_one_after_a_start() {
    let disk = MemoryDisk::new();
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
    bench.close(id(0, 0), 10_000);
    bench.close(id(0, 1), 10_000);
    bench.core.flush_all().unwrap();
    // The same segment again, as after a crash between write and bookkeeping.
    bench.log.segments.lock().remove(&id(0, 0));
    bench.close(id(0, 0), 10_000);
    bench.core.flush_all().unwrap();
    let later = bench.location(id(0, 0)).unwrap();
    let (bench, recovery) = Bench::open(config(), as_disks(std::slice::from_ref(&disk))).unwrap();
    assert_eq!(recovery.segments.len(), 2);
    assert_eq!(bench.location(id(0, 0)), Some(later));
    bench.settle();
    assert_eq!(bench.core.status().disks[0].segments, 2, "the other copy is given back");
    (0..2).for_each(|n| bench.check(id(0, n), 10_000));
}

/// What is in front of a footer was synced, so no kill has torn it. The older one may have what was deleted since, and would come back with it.
#[test]
fn an_image_that_a_disk_has_changed_is_not_taken_for_one_that_a_kill_has_cut_off() {
    for is_readable in [true, false] {
        let disks = faulty(1);
        let mut bench = Bench::fresh(as_disks(&disks));
        bench.close(id(0, 0), 10_000);
        bench.core.flush_all().unwrap();
        let (mut entry, mut image) = image_of(id(0, 0), 10_000);
        entry.header = entry.header.rewritten(7, true).unwrap();
        entry.header.write(&mut image);
        let newer = bench.core.write_image(0, entry, &image).unwrap();
        bench.core.flush_all().unwrap();
        let path = container_path(newer.container);
        match is_readable {
            true => disks[0].flip_bit_on_read(&path, newer.offset + 5_000, 3),
            false => disks[0].set_unreadable(&path, newer.offset + 5_000),
        }
        for _ in 0..2 {
            let (bench, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
            assert_eq!(recovery.unfinished, 0, "all have footers");
            assert_eq!(bench.location(id(0, 0)), Some(newer), "it is there to be mended");
            bench.settle();
            assert_eq!(bench.core.status().disks[0].segments, 1, "the other one is given back");
        }
    }
}

/// Where an older and a newer copy of a segment are, on one disk: of the newer one, whose container has no footer and another segment, the write may have
/// been cut off.
fn rewritten(disk: &FaultyDisk, is_cut_off: bool) -> [Location; 2] {
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(disk)));
    bench.close(id(0, 0), 10_000);
    bench.core.flush_all().unwrap();
    let older = bench.location(id(0, 0)).unwrap();
    let (entry, image) = image_of(id(1, 0), 10_000);
    bench.core.write_image(0, entry, &image).unwrap();
    let (mut entry, mut image) = image_of(id(0, 0), 10_000);
    entry.header = entry.header.rewritten(7, true).unwrap();
    entry.header.write(&mut image);
    let newer = bench.core.write_image(0, entry, &image).unwrap();
    if is_cut_off {
        let file = disk.open(&container_path(newer.container), OpenMode::ReadWrite, false).unwrap();
        file.write_at(newer.offset + 4096, &[0; 4096]).unwrap();
    }
    [older, newer]
}

/// A start after a kill: the store, where the segment is that there are two copies of, and how many containers had no footer. The arena has outlived the process,
/// and says nothing of a segment that was read from the disk.
fn start_after_kill(disk: &FaultyDisk) -> (Core<Arc<FakeLog>>, Location, u64) {
    let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
    let disks = as_disks(std::slice::from_ref(disk));
    let (core, recovery) = Core::open(config(), disks, clock, random, Some(&HashSet::new())).unwrap();
    let found: BTreeMap<_, _> = recovery.segments.iter().map(|segment| (segment.header.id, segment.at)).collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), [&id(0, 0), &id(1, 0)]);
    (core, found[&id(0, 0)], recovery.unfinished)
}

/// Nothing is given back between the starts.
#[test]
fn what_a_kill_has_cut_off_is_not_taken_by_a_later_start_for_what_was_synced() {
    for is_cut_off in [true, false] {
        let disk = faulty(1).remove(0);
        let [older, newer] = rewritten(&disk, is_cut_off);
        for unfinished in [1, 0, 0] {
            let (_, found, without_footer) = start_after_kill(&disk);
            assert_eq!((found, without_footer), (if is_cut_off { older } else { newer }, unfinished));
        }
    }
}

/// What a start can do only once, it does not do while it lacks what it would have to look at.
#[test]
fn what_a_kill_has_cut_off_takes_the_place_of_nothing_that_a_disk_does_not_give_for_a_while() {
    let (open, read) = ("the older one's file cannot be opened", "the older one cannot be read");
    for (is_cut_off, fault) in [(true, open), (true, read), (true, "the newer one cannot be read"), (false, open)] {
        let disk = faulty(1).remove(0);
        let [older, newer] = rewritten(&disk, is_cut_off);
        let of = if fault == open || fault == read { older } else { newer };
        match fault == open {
            true => disk.set_unopenable(&container_path(of.container)),
            false => disk.set_unreadable(&container_path(of.container), of.offset + 5_000),
        }
        for start in 0..4 {
            let (core, found, unfinished) = start_after_kill(&disk);
            // At the first one nobody can tell of the newer one, unless it is seen not to be whole beside the other.
            let is_newer = !is_cut_off || (start == 0 && fault != read);
            let expected = (if is_newer { newer } else { older }, u64::from(start == 0 || (start == 1 && is_cut_off)));
            assert_eq!((found, unfinished), expected, "{fault}, start {start}");
            assert!(core.attach(Arc::new(FakeLog::default())));
            while core.step() == Step::Again {}
            disk.heal_reads();
        }
        let mut page = [0; 4096];
        let file = disk.open(&container_path(newer.container), OpenMode::Read, false).unwrap();
        file.read_at(newer.offset, &mut page).unwrap();
        assert_eq!(page == [0; 4096], is_cut_off, "{fault}: its space is given back");
    }
}

/// A start: where the segments are, how many containers had no footer, and what is lacking. `after_kill`: the arena has outlived the process, and says nothing of
/// what was read from the disk.
fn start(disk: &FaultyDisk, after_kill: bool) -> (Core<Arc<FakeLog>>, BTreeMap<SegmentId, Location>, u64, Vec<Lack>) {
    let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
    let (disks, nothing) = (as_disks(std::slice::from_ref(disk)), HashSet::new());
    let (core, recovery) = Core::open(config(), disks, clock, random, after_kill.then_some(&nothing)).unwrap();
    assert!(core.attach(Arc::new(FakeLog::default())));
    while core.step() == Step::Again {}
    let found = recovery.segments.iter().map(|segment| (segment.header.id, segment.at)).collect();
    (core, found, recovery.unfinished, recovery.lacks)
}

/// A disk with a segment in a container that has a footer, and one in a batch and two of one lane in the next, in one that has none.
fn with_batch() -> (FaultyDisk, BTreeMap<SegmentId, Location>) {
    let disk = faulty(1).remove(0);
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
    bench.close(id(1, 0), 10_000);
    bench.core.flush_all().unwrap();
    bench.close(id(2, 0), 10_000);
    bench.settle();
    (0..2).for_each(|n| bench.close(id(0, n), 10_000));
    bench.settle();
    let found: BTreeMap<_, _> = bench.persisted().into_iter().map(|id| (id, bench.location(id).unwrap())).collect();
    let [first, second] = [0, 1].map(|n| found[&id(0, n)]);
    assert_eq!((first.container, first.offset + 12_288), (second.container, second.offset), "one batch");
    assert_ne!(found[&id(1, 0)].container, first.container);
    (disk, found)
}

/// A start that forgot them would not say what the node has lost.
#[test]
fn what_is_noted_as_lost_is_told_however_much_is_noted() {
    let (disk, stored) = with_batch();
    let at = stored[&id(1, 0)];
    disk.flip_bit_on_read(&container_path(at.container), at.offset + 5_000, 3);
    let folder = Folder::new(Arc::new(disk.clone()), CONTAINER_DIR);
    note(&folder, LOST, [(at.container, at.offset)].into_iter()).unwrap();
    let lack = Lack { disk: 0, container: at.container, at: at.offset };
    // The next note is behind more than a MiB.
    for many in [1, 100_000, 2] {
        note(&folder, LOST, (0..many).map(|n| (1_000_000 + n, many))).unwrap();
        assert_eq!(start(&disk, true).3, [lack], "{many}");
    }
    // Where the disk does not give them any more, that is told.
    disk.set_unopenable(&format!("{CONTAINER_DIR}/{LOST}"));
    let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
    let disks = as_disks(std::slice::from_ref(&disk));
    let (_, recovery) = Core::<Arc<FakeLog>>::open(config(), disks, clock, random, None).unwrap();
    assert!(recovery.lacks.is_empty(), "{:?}", recovery.lacks);
    assert!(recovery.problems.iter().any(|problem| problem.contains("lost is damaged")), "{:?}", recovery.problems);
}

/// What the first start has synced and goes on with is not lost by the next one, for which no arena says what was stored.
#[test]
fn what_a_start_has_left_without_a_footer_is_not_taken_by_a_later_one_for_cut_off() {
    for is_rotten in [true, false] {
        let (disk, stored) = with_batch();
        let [first, other] = [id(0, 0), id(1, 0)].map(|id| stored[&id]);
        let damage = || match is_rotten {
            true => disk.flip_bit_on_read(&container_path(first.container), first.offset + 5_000, 3),
            false => disk.set_unreadable(&container_path(first.container), first.offset + 5_000),
        };
        disk.set_unopenable(&container_path(other.container));
        damage();
        let lack = Lack { disk: 0, container: other.container, at: 0 };
        let batch: BTreeMap<_, _> = stored.iter().filter(|(_, at)| **at != other).map(|(id, at)| (*id, *at)).collect();
        for after_kill in [true, false, false] {
            let (_, found, unfinished, lacks) = start(&disk, after_kill);
            assert_eq!((found, unfinished, lacks), (batch.clone(), 1, vec![lack]), "{is_rotten}");
        }
        // Nor if it is found lost while the node runs, and others have heard of that.
        for name in [LOST, KNOWN] {
            let place = [(first.container, first.offset)].into_iter();
            note(&Folder::new(Arc::new(disk.clone()), CONTAINER_DIR), name, place).unwrap();
        }
        for after_kill in [true, false] {
            let (_, found, unfinished, lacks) = start(&disk, after_kill);
            assert_eq!((found, unfinished, lacks), (batch.clone(), 1, vec![lack]), "{is_rotten}, known");
        }
        // With all of it there is nothing that it could be beside.
        disk.heal_reads();
        damage();
        for unfinished in [1, 0] {
            let (_, found, without_footer, lacks) = start(&disk, false);
            assert_eq!((&found, without_footer, lacks), (&stored, unfinished, vec![]), "{is_rotten}");
        }
        assert_eq!(disk.read_all(&format!("{CONTAINER_DIR}/{SYNCED}"), 100).unwrap(), b"");
    }
}

/// It may have been synced before the power went, and the virtual log have let go of it. Until it can be read it is left out, with what follows it in its lane, and nobody is told that it is gone, whether
/// or not the next arena outlives its process.
#[test]
fn what_a_disk_does_not_give_of_a_last_batch_is_left_out_and_stays_until_it_does() {
    for (is_image, after_kill_at_last) in [(true, false), (true, true), (false, false), (false, true)] {
        let (disk, stored) = with_batch();
        let first = stored[&id(0, 0)];
        let path = container_path(first.container);
        let at = if is_image { first.offset } else { first.offset - 4096 };
        disk.set_unreadable(&path, if is_image { at + 5_000 } else { at });
        let lack = Lack { disk: 0, container: first.container, at };
        let rest: BTreeMap<_, _> = [id(1, 0), id(2, 0)].into_iter().map(|id| (id, stored[&id])).collect();
        for (number, after_kill) in [false, true, false, true].into_iter().enumerate() {
            let (core, found, unfinished, lacks) = start(&disk, after_kill);
            let what = format!("an image: {is_image}, start {number}");
            assert_eq!((&found, unfinished, core.lacks_some), (&rest, 1, true), "{what}");
            // As others hear of it before there is an arena.
            let expected = if number == 0 { vec![lack] } else { vec![] };
            assert_eq!(lacks, expected, "{what}");
            let places = lacks.iter().map(|lack| (lack.container, lack.at));
            note(&Folder::new(Arc::new(disk.clone()), CONTAINER_DIR), KNOWN, places).unwrap();
        }
        disk.heal_reads();
        let (core, found, _, lacks) = start(&disk, after_kill_at_last);
        assert_eq!((found, lacks, core.lacks_some), (stored, vec![], false), "an image: {is_image}");
    }
}

/// Lanes would go on without it, and give ordinals of acknowledged records once more.
#[test]
fn what_a_start_cannot_read_for_a_reason_that_may_pass_ends_it_and_costs_nothing() {
    let (disk, stored) = with_batch();
    let [first, other] = [id(0, 0), id(1, 0)].map(|id| stored[&id]);
    let (open, full) = (container_path(first.container), container_path(other.container));
    let refused = |path: &str, at: u64| {
        let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
        let opened = Core::<Arc<FakeLog>>::open(config(), as_disks(std::slice::from_ref(&disk)), clock, random, None);
        disk.heal_reads();
        opened.err().unwrap_or_else(|| panic!("{path} {at}: it went on"))
    };
    let of_open = [0, first.offset - 4096, first.offset + 5_000].map(|at| (&open, at));
    let places = [&of_open[..], &[(&full, 0), (&full, other.offset + pages(other.bytes))]].concat();
    for errno in [Errno::ROFS, Errno::MFILE, Errno::NOMEM, Errno::ACCESS] {
        disk.set_lost_errno(errno.raw_os_error());
        for (path, at) in
            [(&open, None), (&full, None)].into_iter().chain(places.iter().map(|(path, at)| (*path, Some(*at))))
        {
            match at {
                Some(at) => disk.set_unreadable(path, at),
                None => disk.set_unopenable(path),
            }
            let error = refused(path, at.unwrap_or(0));
            assert!(
                matches!(&error, StoreError::Container { path: told, .. } if told.ends_with(path)),
                "{path} {at:?}: {error}"
            );
        }
    }
    // What is noted of containers says which of them were synced, and is written anew.
    for name in [SYNCED, LOST, KNOWN] {
        note(&Folder::new(Arc::new(disk.clone()), CONTAINER_DIR), name, [(9_999, 0)].into_iter()).unwrap();
        let path = format!("{CONTAINER_DIR}/{name}");
        disk.set_unreadable(&path, 0);
        assert!(matches!(refused(&path, 0), StoreError::Disk { .. }));
    }
    let (_, found, _, lacks) = start(&disk, false);
    assert_eq!((found, lacks), (stored, vec![]));
}

/// Nor is it overwritten by a footer where its index does not read back.
#[test]
fn a_batch_that_a_start_has_synced_is_lacking_when_its_index_cannot_be_read() {
    let (disk, stored) = with_batch();
    let [first, other] = [id(0, 0), id(1, 0)].map(|id| stored[&id]);
    disk.set_unopenable(&container_path(other.container));
    disk.set_unreadable(&container_path(first.container), first.offset + 5_000);
    assert_eq!(start(&disk, true).2, 1);
    disk.heal_reads();
    let index = first.offset - 4096;
    disk.set_unreadable(&container_path(first.container), index);
    let (_, found, _, lacks) = start(&disk, false);
    assert_eq!(found.keys().collect::<Vec<_>>(), [&id(1, 0), &id(2, 0)]);
    assert_eq!(lacks, [Lack { disk: 0, container: first.container, at: index }]);
    disk.heal_reads();
    let (_, found, _, lacks) = start(&disk, false);
    assert_eq!((found, lacks), (stored, vec![]));
}

/// Nobody would miss the file by what is known of it. But a start may end before anybody has heard that something in it cannot be read.
#[test]
fn a_container_in_which_nothing_else_is_live_stays_while_an_index_in_it_cannot_be_read() {
    for batches in [1, 2] {
        let disk = faulty(1).remove(0);
        let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
        (0..batches).for_each(|n| {
            bench.close(id(n, 0), 10_000);
            bench.settle();
        });
        let last = bench.location(id(batches - 1, 0)).unwrap();
        (0..batches - 1).for_each(|n| bench.release(id(n, 0)));
        bench.settle();
        drop(bench);
        let lack = Lack { disk: 0, container: last.container, at: last.offset - 4096 };
        disk.set_unreadable(&container_path(lack.container), lack.at);
        for _ in 0..2 {
            let (_, found, _, lacks) = start(&disk, true);
            assert_eq!((found, lacks), (BTreeMap::new(), vec![lack]), "{batches}");
        }
        disk.heal_reads();
        let (_, found, _, lacks) = start(&disk, true);
        assert_eq!((found, lacks), (BTreeMap::from([(id(batches - 1, 0), last)]), vec![]), "{batches}");
    }
}

/// What was let go of is a hole, so no image says what the index did; but the container's first page says that nobody is to have any of it. Only where some of it was
/// not let go of is something lost.
#[test]
fn an_index_of_what_was_let_go_of_is_missed_by_nobody() {
    for (batch, is_all) in [(1, true), (2, true), (1, false), (2, false)] {
        let disk = faulty(1).remove(0);
        let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
        for n in 0..3 {
            (0..2).for_each(|lane| bench.close(id(lane, n), 10_000));
            bench.settle();
        }
        let placed: BTreeMap<_, _> =
            (0..6).map(|n| id(n % 2, n / 2)).map(|of| (of, bench.location(of).unwrap())).collect();
        let [first, second] = [0, 1].map(|lane| placed[&id(lane, batch)]);
        let path = container_path(first.container);
        assert!(placed.values().all(|at| at.container == first.container));
        (0..if is_all { 2 } else { 1 }).for_each(|lane| bench.release(id(lane, batch)));
        bench.settle();
        drop(bench);
        let index = first.offset.min(second.offset) - 4096;
        // In what it tells of segments, behind its header.
        disk.flip_bit_on_read(&path, index + 70, 1);
        let rest: BTreeMap<_, _> = placed.into_iter().filter(|(of, _)| of.index.0 != batch).collect();
        let lack = Lack { disk: 0, container: first.container, at: index };
        for _ in 0..2 {
            let (_, found, _, lacks) = start(&disk, true);
            assert_eq!((&found, lacks), (&rest, Vec::from_iter((!is_all).then_some(lack))), "{batch}");
        }
        let (core, found, _, _) = start(&disk, true);
        found.into_iter().for_each(|(of, at)| core.release(of, at));
        while core.step() == Step::Again {}
        let is_gone = disk.open(&path, OpenMode::Read, false).is_err();
        assert_eq!(is_gone, is_all, "{batch}: the rest of it was let go of, too");
    }
}

/// Nor does what was cut off come back: its container gets no footer, since a batch in front of it is missing.
#[test]
fn what_a_loss_of_power_has_cut_off_stays_away_without_a_footer_too() {
    let disk = faulty(1).remove(0);
    let mut bench = Bench::fresh(as_disks(std::slice::from_ref(&disk)));
    let placed: Vec<Location> = (0..3)
        .map(|n| {
            bench.close(id(n, 0), 10_000);
            bench.settle();
            bench.location(id(n, 0)).unwrap()
        })
        .collect();
    drop(bench);
    let file = disk.open(&container_path(placed[0].container), OpenMode::ReadWrite, false).unwrap();
    // The index and the image of the second one, and the end of the third one.
    for at in [placed[1].offset - 4096, placed[1].offset, placed[2].offset + 4096] {
        file.write_at(at, &[0; 4096]).unwrap();
    }
    for _ in 0..3 {
        let (_, found, unfinished, lacks) = start(&disk, false);
        assert_eq!((found.into_keys().collect::<Vec<_>>(), unfinished, lacks.len()), (vec![id(0, 0)], 1, 1));
    }
}

/// It goes with the one that is served in its place: a later start would find it alone, and serve what was deleted.
#[test]
fn a_copy_of_which_nobody_could_tell_whether_it_counts_goes_with_its_segment() {
    for is_cut_off in [true, false] {
        let disk = faulty(1).remove(0);
        let [_, newer] = rewritten(&disk, is_cut_off);
        disk.set_unreadable(&container_path(newer.container), newer.offset + 5_000);
        let (core, found, _, _) = start(&disk, true);
        assert_eq!(found[&id(0, 0)], newer);
        disk.heal_reads();
        core.release(id(0, 0), newer);
        while core.step() == Step::Again {}
        drop(core);
        for after_kill in [true, false] {
            assert_eq!(start(&disk, after_kill).1.keys().collect::<Vec<_>>(), [&id(1, 0)], "{is_cut_off}");
        }
    }
}

#[test]
fn failed_release_is_tried_again() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    (0..3).for_each(|n| bench.close(id(0, n), 10_000));
    bench.settle();
    disks[0].fail_write(1);
    bench.release(id(0, 1));
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.release_errors, 1);
    bench.clock.advance_ms(1_001);
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.released_segments, 1);
    let (_, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    assert_eq!(recovery.segments.len(), 2);
}

#[test]
fn a_container_whose_space_cannot_be_given_back_holds_up_no_other() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    (0..40).for_each(|n| bench.close(id(0, n), 20_000));
    bench.core.flush_all().unwrap();
    let container = |bench: &Bench, n: u32| bench.location(id(0, n)).unwrap().container;
    assert!(container(&bench, 0) < container(&bench, 39));
    // The first page of the first container is written first.
    disks[0].fail_write(1);
    [0, 39].into_iter().for_each(|n| bench.release(id(0, n)));
    bench.settle();
    let counts = bench.core.status().disks[0].counters;
    assert_eq!((counts.released_segments, counts.release_errors), (1, 1));
    bench.clock.advance_ms(1_001);
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.released_segments, 2);
    // A file that somebody has removed has nothing to give back.
    let (bench, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    assert_eq!(recovery.segments.len(), 38);
    disks[0].remove(&container_path(container(&bench, 1))).unwrap();
    [1, 38].into_iter().for_each(|n| bench.release(id(0, n)));
    bench.settle();
    let counts = bench.core.status().disks[0].counters;
    assert_eq!((counts.released_segments, counts.release_errors), (2, 0));
    let (_, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    let mut left: Vec<_> = recovery.segments.iter().map(|segment| segment.header.id).collect();
    left.sort();
    assert!(!left.is_empty() && !left.contains(&id(0, 38)));
}

/// Two disks, of which the first one's turn it is, with a segment on each.
fn in_turns(disks: &[FaultyDisk]) -> Bench {
    disks.iter().for_each(|disk| disk.set_space(Some(64 << 20)));
    let mut bench = Bench::fresh(as_disks(disks));
    for (disk, bytes) in [(0, 5_000), (1, 40_000)] {
        bench.close(id(disk, 0), bytes);
        bench.core.step_write(disk as usize);
        assert_eq!(bench.location(id(disk, 0)).unwrap().disk, disk as u16);
    }
    bench
}

/// Does something that the first disk does not come to the end of. The other one is woken, and takes what waits.
fn is_not_waited_for(bench: &Bench, disks: &[FaultyDisk], work: impl FnOnce() + Send) {
    let other = &bench.core.disks[1].write_signal;
    other.was_raised();
    assert_eq!((bench.core.step_write(1), bench.core.status().dirty_segments), (Step::Idle, 1), "not its turn");
    disks[0].set_stuck(true);
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        disks[0].wait_until_stuck();
        let done = (other.was_raised(), bench.core.step_write(1), bench.core.status().dirty_segments);
        disks[0].set_stuck(false);
        working.join().unwrap();
        assert_eq!(done, (true, Step::Again, 0));
    });
}

#[test]
fn a_disk_that_does_not_come_to_the_end_of_giving_space_back_is_not_waited_for() {
    let disks = faulty(2);
    let mut bench = in_turns(&disks);
    bench.close(id(2, 0), 5_000);
    bench.release(id(0, 0));
    is_not_waited_for(&bench, &disks, || _ = bench.core.step_write(0));
    assert_eq!(bench.location(id(2, 0)).unwrap().disk, 1);
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.released_segments, 1);
}

#[test]
fn a_disk_that_does_not_come_to_the_end_of_a_rewritten_segment_is_not_waited_for() {
    let disks = faulty(2);
    let mut bench = in_turns(&disks);
    bench.close(id(2, 0), 5_000);
    let (entry, image) = image_of(id(3, 0), 5_000);
    is_not_waited_for(&bench, &disks, || _ = bench.core.write_image(0, entry, &image).unwrap());
    assert_eq!(bench.location(id(2, 0)).unwrap().disk, 1);
}

/// Writes segments through to the disk with the most room, one of each lane, as a virtual log does.
fn write_through(bench: &mut Bench, segments: &[(SegmentId, usize)]) -> Vec<Arc<FakeSegment>> {
    let dir = tempfile::tempdir().unwrap();
    let (arena, _) = Arena::create_or_attach(crate::tests::arena_config(&dir, 8 << 20)).unwrap();
    let mut put = Vec::new();
    for (id, bytes) in segments {
        let segment = bench.put(*id, *bytes);
        let block = arena.allocate(64 << 10, Purpose::Write).unwrap();
        let chunks = &segment.image()[FIRST_CHUNK as usize..];
        let open = Segment::copy_of(block, segment.header(), chunks, &segment.progress());
        let mut extent = bench.core.begin_through(&open).expect("there is room for its lane");
        extent.write(&open, open.head()).unwrap();
        extent.sync().unwrap();
        put.push(segment);
    }
    put
}

fn with_large_lanes(disks: &[FaultyDisk]) -> Bench {
    Bench::open(StoreConfig { through_segment_bytes_min: 1, ..config() }, as_disks(disks)).unwrap().0
}

#[test]
fn a_disk_that_stands_still_with_what_was_written_through_to_it_holds_up_no_other_one() {
    let disks = faulty(2);
    disks[1].set_space(Some(1 << 20));
    let mut bench = with_large_lanes(&disks);
    let large = write_through(&mut bench, &[(id(0, 0), 9_000), (id(1, 0), 9_000)]);
    disks[0].set_stuck(true);
    // The last one goes while it waits for that disk.
    for segment in large {
        bench.core.closed(segment);
    }
    bench.close(id(2, 0), 5_000);
    bench.log.segments.lock().remove(&id(1, 0));
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        let core = &bench.core;
        scope.spawn(move || {
            let step = core.step_write(1);
            let _ = done.send(step);
        });
        let step = is_done.recv_timeout(Duration::from_secs(120));
        disks[0].set_stuck(false);
        assert_eq!(step, Ok(Step::Again), "it waits for the other disk");
    });
    assert_eq!(bench.location(id(2, 0)).unwrap().disk, 1);
    assert_eq!(bench.location(id(0, 0)), None, "that is for the disk that has it");
    bench.settle();
    assert_eq!(bench.location(id(0, 0)).unwrap().disk, 0);
    assert_eq!(bench.core.status().disks[0].counters.released_segments, 1, "of what is gone");
    bench.evict_all();
    [(0, 9_000), (2, 5_000)].into_iter().for_each(|(lane, bytes)| bench.check(id(lane, 0), bytes));
}

/// Whoever begins it makes durable what all producers of a virtual log wait for.
#[test]
fn a_large_lane_begins_on_no_disk_that_stands_still_while_another_one_does_not() {
    let disks = faulty(2);
    disks[1].set_space(Some(1 << 20));
    let mut bench = with_large_lanes(&disks);
    bench.close(id(2, 0), 5_000);
    disks[0].set_stuck(true);
    std::thread::scope(|scope| {
        let core = Arc::clone(&bench.core);
        scope.spawn(move || core.step_write(0));
        disks[0].wait_until_stuck();
        bench.clock.advance_ms(2_000);
        let (done, is_done) = channel();
        let bench = &mut bench;
        scope.spawn(move || {
            write_through(bench, &[(id(0, 0), 9_000)]);
            let _ = done.send(());
        });
        let begun = is_done.recv_timeout(Duration::from_secs(120));
        disks[0].set_stuck(false);
        assert_eq!(begun, Ok(()), "it waits for the disk with the most room");
    });
    assert_eq!(bench.core.through.disk_of(id(0, 0)), Some(1));
    // It is the one with the most room again.
    bench.settle();
    write_through(&mut bench, &[(id(1, 0), 9_000)]);
    assert_eq!(bench.core.through.disk_of(id(1, 0)), Some(0));
}

#[test]
fn what_was_written_through_to_a_disk_that_fails_since_is_written_to_another_one() {
    let disks = faulty(2);
    disks[1].set_space(Some(1 << 20));
    let mut bench = with_large_lanes(&disks);
    let large = write_through(&mut bench, &[(id(0, 0), 9_000), (id(1, 0), 9_000)]);
    disks[0].set_broken(true);
    // Of one it finds that out, and of the other one it is known.
    for segment in large {
        let of = segment.id();
        bench.core.closed(segment);
        [0, 1].into_iter().for_each(|disk| _ = bench.core.step_write(disk));
        assert_eq!(bench.location(of).unwrap().disk, 1, "{of}");
    }
    disks[0].set_broken(false);
    bench.settle();
    bench.evict_all();
    (0..2).for_each(|lane| bench.check(id(lane, 0), 9_000));
}

#[test]
fn a_disk_is_told_of_each_segment_when_nothing_else_waits_that_it_could_write() {
    let disks = faulty(2);
    (0..2).for_each(|disk| disks[disk].set_space(Some((4 << 20) >> disk)));
    let mut bench = with_large_lanes(&disks);
    bench.close(id(3, 0), 40_000);
    bench.core.step_write(0);
    let large = write_through(&mut bench, &[(id(0, 0), 9_000)]);
    let other = |bench: &Bench| bench.core.disks[1].write_signal.was_raised();
    large.into_iter().for_each(|segment| bench.core.closed(segment));
    other(&bench);
    assert_eq!(bench.core.step_write(1), Step::Idle, "all that waits is for the first disk");
    bench.close(id(2, 0), 5_000);
    assert!(other(&bench), "nobody else says so");
    assert_eq!((bench.core.step_write(1), bench.location(id(2, 0)).unwrap().disk), (Step::Again, 1));
    // It is not the first disk's turn, which takes what it alone can finish.
    assert_eq!(bench.core.step_write(0), Step::Again);
    assert_eq!(bench.location(id(0, 0)).unwrap().disk, 0);
}

/// The lane has to hear of it at each start, so no footer has it as a segment that was written by nobody.
#[test]
fn a_large_segment_of_which_index_and_image_are_damaged_is_said_to_tell_of_nobody() {
    let disks = faulty(1);
    let mut bench = with_large_lanes(&disks);
    let large = write_through(&mut bench, &[(id(0, 0), 9_000), (id(1, 0), 9_000)]);
    large.into_iter().for_each(|segment| bench.core.closed(segment));
    bench.settle();
    let damaged = bench.location(id(0, 0)).unwrap();
    assert!(bench.location(id(1, 0)).is_some());
    drop(bench);
    // The index is two pages in front of the image.
    for at in [damaged.offset - 2 * 4096 + 70, damaged.offset + 5_000] {
        disks[0].flip_bit_on_read(&container_path(damaged.container), at, 3);
    }
    for unfinished in [2, 1, 1] {
        let (_, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
        let found: BTreeMap<_, _> =
            recovery.segments.iter().map(|segment| (segment.header.id, segment.lacks_marks)).collect();
        assert_eq!(found, BTreeMap::from([(id(0, 0), true), (id(1, 0), false)]));
        assert_eq!((recovery.unfinished, recovery.lacks.len()), (unfinished, 0), "{:?}", recovery.problems);
    }
}

/// A segment that was rewritten, as it is given to a disk.
fn image_of(id: SegmentId, bytes: usize) -> (ContainerEntry, AlignedBuffer) {
    let (contents, header, progress) = contents(id, bytes);
    let mut image = AlignedBuffer::zeroed(pages(contents.len() as u64) as usize);
    image[..contents.len()].copy_from_slice(&contents);
    (ContainerEntry { header, progress, at: 0, marks: Vec::new() }, image)
}

/// All that is on the disks tells of producers may be a tenth of what is stored.
#[test]
fn a_start_keeps_what_a_producer_wrote_last_and_not_what_each_segment_tells_of_it() {
    let disks = faulty(1);
    let bench = Bench::fresh(as_disks(&disks));
    let marks = |index: u32| -> Vec<ProducerMark> {
        let mark = |n: u32| ProducerMark { sequence: (5 * index + n).into(), ..mark_of(id(0, index)) };
        (0..5).map(mark).collect()
    };
    for index in 0..200 {
        let (mut entry, image) = image_of(id(0, index), 1_000);
        entry.marks = marks(index).iter().map(Into::into).collect();
        bench.core.write_image(0, entry, &image).unwrap();
    }
    let (_, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    let told: usize = recovery.segments.iter().map(|segment| segment.producers.len()).sum();
    assert!(recovery.segments.len() == 200 && told <= 500, "{told} of 1000");
    let last = recovery.segments.iter().find(|segment| segment.header.id == id(0, 199)).unwrap();
    assert_eq!(last.producers, marks(199));
}

/// A kill comes before the space of what was replaced is given back.
#[test]
fn of_a_damaged_image_and_what_takes_its_place_a_start_takes_that() {
    // On the other disk, whose container was begun before that of the damaged one; behind it in its own.
    for fails in [true, false] {
        let disks = faulty(2);
        let bench = Bench::fresh(as_disks(&disks));
        let (entry, image) = image_of(id(1, 0), 10_000);
        let before = bench.core.write_image(0, entry, &image).unwrap();
        let (entry, image) = image_of(id(0, 0), 10_000);
        let damaged = bench.core.write_image(1, entry.clone(), &image).unwrap();
        assert!(before.container < damaged.container);
        disks[1].flip_bit_on_read(&container_path(damaged.container), damaged.offset + 5_000, 3);
        if fails {
            disks[1].fail_write(1);
        }
        let mended = bench.core.write_again(entry, &image, damaged).unwrap();
        assert_eq!((mended.disk, mended.container == damaged.container), if fails { (0, false) } else { (1, true) });
        let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
        let after_kill = Core::<Arc<FakeLog>>::open(config(), as_disks(&disks), clock, random, Some(&HashSet::new()));
        let segments = after_kill.unwrap().1.segments;
        let found = segments.iter().find(|segment| segment.header.id == id(0, 0)).map(|segment| segment.at);
        assert_eq!(found, Some(mended), "where the disk fails: {fails}");
    }
}

#[test]
fn a_full_disk_that_has_room_again_is_known_to_by_a_rewritten_segment_too() {
    let disks = faulty(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    disks[0].set_space(Some(0));
    bench.close(id(0, 0), 10_000);
    bench.settle();
    assert_eq!(bench.core.status().disks[0].state, DiskState::Full);
    // Retention takes what waits: nothing else is to be written.
    bench.log.segments.lock().remove(&id(0, 0));
    bench.core.dropped(id(0, 0));
    let (entry, image) = image_of(id(1, 0), 10_000);
    let write = || bench.core.write_image(0, entry.clone(), &image);
    bench.clock.advance_ms(1_001);
    assert!(write().is_err(), "it is tried and is still full");
    disks[0].set_space(None);
    assert!(write().is_err(), "it is left alone for a while");
    bench.clock.advance_ms(1_001);
    assert_eq!(write().unwrap().disk, 0);
    let disk = &bench.core.status().disks[0];
    assert_eq!((disk.state, disk.segments, disk.counters.write_errors), (DiskState::Working, 1, 2));
}
