//! Segments that the disks have changed or do not give back, and that are found elsewhere.

use std::collections::VecDeque;

use kera_env::FaultyDisk;
use kera_format::SegmentId;
use kera_format::container::{PAGE_BYTES, Trailer};
use kera_format::segment::SEGMENT_MAGIC;
use kera_log::{Gathering, Mender, ReadError, Scrubber};

use super::*;

/// Chunks of each lane: a few segments.
const CHUNKS: u64 = 200;

/// What is asked to be looked for, as long as it takes anything.
#[derive(Default)]
struct Asked {
    waiting: Mutex<VecDeque<SegmentId>>,
    refuses: bool,
}

impl Mender for Asked {
    fn damaged(&self, id: SegmentId, error: &str) -> bool {
        assert!(!error.is_empty());
        if !self.refuses {
            self.waiting.lock().unwrap().push_back(id);
        }
        !self.refuses
    }
}

impl Asked {
    fn next(&self) -> Option<SegmentId> {
        self.waiting.lock().unwrap().pop_front()
    }
}

/// A node on disks in memory, with copies of all that it has.
struct Rotten {
    node: Node,
    dir: tempfile::TempDir,
    memory: Vec<MemoryDisk>,
    disks: Vec<Arc<FaultyDisk>>,
    clock: Arc<ManualClock>,
    asked: Arc<Asked>,
    copies: Vec<Vec<u8>>,
}

fn all_of(disks: &[Arc<FaultyDisk>]) -> Vec<Arc<dyn Disk>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn Disk>).collect()
}

impl Rotten {
    /// Everything is on disk, and on nothing else.
    fn new(asked: Asked) -> Rotten {
        let (dir, memory, asked) = (dir(), vec![MemoryDisk::new(), MemoryDisk::new()], Arc::new(asked));
        let disks: Vec<_> = memory.iter().map(|disk| Arc::new(FaultyDisk::new(Arc::new(disk.clone())))).collect();
        let clock = Arc::new(ManualClock::new(1_000));
        let mut node = open_on(all_of(&disks), dir.path(), 1, clock.clone());
        assert_eq!(node.log.finish_recovery(1), Vec::<String>::new());
        (0..CHUNKS).for_each(|_| (0..LANES).for_each(|lane| node.append(lane)));
        let copies = chunks(&node);
        node.log.close_all();
        node.store.flush_all().unwrap();
        node.log.mend_with(asked.clone());
        let mut rotten = Rotten { node, dir, memory, disks, clock, asked, copies };
        rotten.forget();
        rotten
    }

    /// Whatever can be read again leaves memory.
    fn forget(&mut self) {
        // Readers are not waited for any more.
        self.clock.advance_ms(11_000);
        self.node.store.evict_unused();
        while self.node.store.step() == kera_log::store::Step::Again {}
        assert_eq!(self.node.arena.stats().used_bytes, 0);
    }

    /// Changes a bit in the first chunk of each image that lies on the disks.
    fn rot(&self) -> usize {
        let mut changed = 0;
        for disk in &self.memory {
            for name in disk.list("containers").unwrap().into_iter().filter(|name| name.ends_with(".kera")) {
                let path = format!("containers/{name}");
                let file = disk.open(&path, kera_env::OpenMode::Read, false).unwrap();
                let mut bytes = kera_env::AlignedBuffer::zeroed(PAGE_BYTES);
                let pages = file.len().unwrap() / 4096;
                file.read_at((pages - 1) * 4096, &mut bytes).unwrap();
                // A footer begins as an image does.
                let end = Trailer::parse(&bytes, pages * 4096).unwrap().at / 4096;
                for page in 0..end {
                    file.read_at(page * 4096, &mut bytes).unwrap();
                    if bytes[..4] == SEGMENT_MAGIC.to_le_bytes() {
                        disk.flip_bit(&path, page * 4096 + 300, 3).unwrap();
                        changed += 1;
                    }
                }
            }
        }
        changed
    }

    /// Gathers a segment from the copies that `which` names by their places among all.
    fn gather(&self, id: SegmentId, which: impl Fn(usize) -> bool) -> Gathering {
        let of = self.node.log.damaged_segment(id).expect("it is damaged");
        assert_eq!(of.id(), id);
        let mut found = Gathering::new(of);
        // The last first, and each twice.
        for (at, copy) in self.copies.iter().enumerate().rev().chain(self.copies.iter().enumerate()) {
            if which(at) {
                found.put(&ChunkView::parse(copy).unwrap()).unwrap();
            }
        }
        found
    }

    /// Reads a lane while everything that is asked for is found. How many chunks it has, and how many segments were found.
    fn read(&self, lane: u32) -> (u64, usize) {
        let (mut cursor, mut sequence, mut found) = (Cursor::default(), 0, 0);
        loop {
            let outcome = self.node.lane(lane).read(cursor, 100_000, true).unwrap();
            for chunk_found in outcome.data.iter().flat_map(|data| Chunks::new(data)) {
                assert!(chunk_found.unwrap().as_bytes()[40..] == chunk(lane, sequence)[40..], "chunk {sequence}");
                sequence += 1;
            }
            if outcome.at_durable_end {
                return (sequence, found);
            }
            cursor = outcome.next;
            self.node.store.step();
            while let Some(id) = self.asked.next() {
                let gathering = self.gather(id, |_| true);
                assert!(gathering.is_whole());
                self.node.log.mended(gathering).unwrap();
                found += 1;
            }
        }
    }

    /// The first read of a lane, whose first segment cannot be loaded.
    fn first_of(&self, lane: u32) -> SegmentId {
        let outcome = self.node.lane(lane).read(Cursor::default(), 100_000, true).unwrap();
        assert!(outcome.loading && outcome.data.is_empty());
        while self.node.store.step() == kera_log::store::Step::Again {}
        let first = self.asked.next().expect("it was asked for");
        // What is read ahead is damaged as well.
        std::iter::from_fn(|| self.asked.next()).for_each(|other| self.node.log.not_mended(other, "later".to_owned()));
        first
    }

    fn corrupt(&self) -> u64 {
        self.node.store.status().disks.iter().map(|disk| disk.counters.corrupt_segments).sum()
    }
}

/// All chunks as they lie in the segments.
fn chunks(node: &Node) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for lane in 0..LANES {
        let mut cursor = Cursor::default();
        loop {
            let outcome = node.lane(lane).read(cursor, 400_000, true).unwrap();
            let found = outcome.data.iter().flat_map(|data| Chunks::new(data));
            all.extend(found.map(|chunk| chunk.unwrap().as_bytes().to_vec()));
            if outcome.at_durable_end {
                break;
            }
            cursor = outcome.next;
            node.store.step();
        }
    }
    all
}

#[test]
fn what_the_disks_have_changed_is_read_from_copies_and_lies_on_the_disks_again() {
    let mut rotten = Rotten::new(Asked::default());
    let changed = rotten.rot();
    assert!(changed > 3 * LANES as usize, "{changed}");
    let mut found = 0;
    for lane in 0..LANES {
        let (chunks, of_lane) = rotten.read(lane);
        assert_eq!(chunks, CHUNKS);
        found += of_lane;
    }
    assert_eq!((found, rotten.corrupt()), (changed, changed as u64));
    assert_eq!(rotten.node.log.stats().segments_mended, changed as u64);
    rotten.forget();
    for lane in 0..LANES {
        assert_eq!(rotten.read(lane), (CHUNKS, 0), "it is on disk, and whole");
    }
    // What was damaged was given back: the next start finds each segment once.
    rotten.node.store.flush_all().unwrap();
    let segments = |node: &Node| node.store.status().disks.iter().map(|disk| disk.segments).sum::<u64>();
    assert_eq!(segments(&rotten.node), changed as u64);
    rotten.node.arena.remove().unwrap();
    let again = open_on(all_of(&rotten.disks), rotten.dir.path(), 2, rotten.clock.clone());
    assert_eq!(again.log.finish_recovery(2), Vec::<String>::new());
    assert_eq!(segments(&again), changed as u64);
    (0..LANES).for_each(|lane| assert_eq!(again.check(lane), CHUNKS));
}

/// Both images are there after a kill between the two: it does not matter which one the start takes.
#[test]
fn a_kill_before_the_damaged_place_is_given_back_loses_nothing() {
    let rotten = Rotten::new(Asked::default());
    let changed = rotten.rot();
    let before: Vec<u64> = rotten.node.store.status().disks.iter().map(|disk| disk.segments).collect();
    let of_disk = |disk: u64| move |node: &Node| node.store.status().disks[disk as usize].segments;
    let first = rotten.first_of(0);
    // Nothing is given back from here on.
    let found = rotten.gather(first, |_| true);
    rotten.node.log.mended(found).unwrap();
    let after: u64 = (0..2).map(|disk| of_disk(disk)(&rotten.node)).sum();
    assert_eq!(after, before.iter().sum::<u64>() + 1, "both are there");
    rotten.node.arena.freeze();
    std::fs::remove_file(rotten.dir.path().join("arena")).unwrap();
    let node = open_on(all_of(&rotten.disks), rotten.dir.path(), 2, rotten.clock.clone());
    assert_eq!(node.log.finish_recovery(2), Vec::<String>::new());
    node.log.mend_with(rotten.asked.clone());
    let again = Rotten { node, ..rotten };
    let found: usize = (0..LANES)
        .map(|lane| (lane, again.read(lane)))
        .map(|(_, (chunks, found))| {
            assert_eq!(chunks, CHUNKS);
            found
        })
        .sum();
    assert!((changed - 1..=changed).contains(&found), "{found} of {changed}");
}

#[test]
fn what_is_not_all_of_it_is_not_taken_and_readers_are_told() {
    let rotten = Rotten::new(Asked::default());
    rotten.rot();
    let first = rotten.first_of(1);
    // The second chunk of it is missing.
    let of_segment = |copy: &Vec<u8>| {
        let view = ChunkView::parse(copy).unwrap();
        let part = view.broker().unwrap();
        (part.lane, part.group, part.segment) == (first.lane, first.group, first.index) && part.position > 128
    };
    let missing = rotten.copies.iter().position(of_segment).expect("it has several");
    let found = rotten.gather(first, |at| at != missing);
    assert!(!found.is_whole());
    let reason = rotten.node.log.mended(found).unwrap_err();
    assert!(reason.contains("bytes were found"), "{reason}");
    // A copy that is damaged as well is no copy.
    let mut copy = rotten.copies[missing].clone();
    let last = copy.len() - 9;
    copy[last] ^= 1;
    let mut found = rotten.gather(first, |at| at != missing);
    assert!(found.put(&ChunkView::parse(&copy).unwrap()).is_err() && !found.is_whole());
    rotten.node.log.not_mended(first, "nobody has it".to_owned());
    let read = || rotten.node.lane(1).read(Cursor::default(), 100_000, true);
    assert_eq!(read().unwrap_err(), ReadError::LoadFailed("nobody has it".to_owned()));
    // Whoever asks again has it looked for again.
    assert_eq!(rotten.first_of(1), first);
    rotten.node.log.mended(rotten.gather(first, |_| true)).unwrap();
    assert_eq!(rotten.read(1).0, CHUNKS);
}

#[test]
fn without_anybody_who_looks_for_it_readers_are_told_as_before() {
    let rotten = Rotten::new(Asked { refuses: true, ..Asked::default() });
    rotten.rot();
    let read = || rotten.node.lane(0).read(Cursor::default(), 100_000, true);
    assert!(read().unwrap().loading);
    while rotten.node.store.step() == kera_log::store::Step::Again {}
    let error = read().unwrap_err();
    assert!(matches!(&error, ReadError::LoadFailed(reason) if reason.contains("checksum")), "{error}");
}

#[test]
fn when_no_disk_takes_it_it_is_read_from_memory() {
    let mut rotten = Rotten::new(Asked::default());
    let changed = rotten.rot();
    rotten.disks.iter().for_each(|disk| disk.set_space(Some(0)));
    let read: Vec<(u64, usize)> = (0..LANES).map(|lane| rotten.read(lane)).collect();
    assert!(read.iter().all(|(chunks, _)| *chunks == CHUNKS), "{read:?}");
    assert_eq!(read.iter().map(|(_, found)| found).sum::<usize>(), changed);
    // Once it has left memory it is looked for again, and put on a disk that has room.
    rotten.disks.iter().for_each(|disk| disk.heal());
    rotten.forget();
    let again: usize = (0..LANES).map(|lane| rotten.read(lane).1).sum();
    assert_eq!(again, changed);
    rotten.forget();
    (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
}

/// Copies have it only as it was before, as of a segment that was compacted: whoever starts next has to know.
#[test]
fn what_is_noted_as_lost_is_told_by_the_next_start_until_others_know() {
    let rotten = Rotten::new(Asked::default());
    rotten.rot();
    let first = rotten.first_of(0);
    let of = rotten.node.log.damaged_segment(first).unwrap();
    (0..2).for_each(|_| rotten.node.log.note_lost(&of).unwrap());
    rotten.node.log.not_mended(first, "it is there as it was".to_owned());
    rotten.node.arena.freeze();
    for _ in 0..2 {
        let (_, found) = after_kill(&rotten, &[]);
        assert_eq!((found.lacks.len(), found.problems.len()), (1, 0), "{found:?}");
    }
    let (store, found) = after_kill(&rotten, &[]);
    let lack = found.lacks[0];
    let path = format!("containers/{:016}.kera", lack.container);
    rotten.memory[usize::from(lack.disk)].flip_bit(&path, lack.at + 300, 3).unwrap();
    assert_eq!(after_kill(&rotten, &[]).1.lacks, [], "the disk gives it after all");
    rotten.memory[usize::from(lack.disk)].flip_bit(&path, lack.at + 300, 3).unwrap();
    store.others_have(&found.lacks).unwrap();
    drop(store);
    assert_eq!(after_kill(&rotten, &[]).1.lacks, []);
}

/// The stream is deleted while a segment of it is looked for: nothing of it stays on the disks.
#[test]
fn what_nobody_wants_any_more_is_given_back() {
    let rotten = Rotten::new(Asked::default());
    rotten.rot();
    let first = rotten.first_of(2);
    let found = rotten.gather(first, |_| true);
    rotten.node.log.delete_stream(STREAM).unwrap();
    assert!(rotten.node.log.damaged_segment(first).is_none());
    rotten.node.log.mended(found).unwrap();
    rotten.node.log.not_mended(first, "it comes too late".to_owned());
    rotten.node.store.flush_all().unwrap();
    assert_eq!(rotten.node.store.status().disks.iter().map(|disk| disk.segments).sum::<u64>(), 0);
}

/// Reads everything that is on the disks: how much of it is damaged.
fn scrub(node: &Node) -> u64 {
    let mut scrubber = Scrubber::new(node.log.clone(), node.store.clone());
    let (mut bytes, mut damaged) = (0, 0);
    while let Some((of_one, is_damaged)) = scrubber.step() {
        (bytes, damaged) = (bytes + of_one, damaged + is_damaged);
    }
    assert!(bytes > 3_000 * CHUNKS * u64::from(LANES), "{bytes}");
    damaged
}

#[test]
fn what_nobody_reads_is_found_and_mended() {
    let rotten = Rotten::new(Asked::default());
    assert_eq!(scrub(&rotten.node), 0);
    let changed = rotten.rot() as u64;
    assert_eq!(scrub(&rotten.node), changed);
    assert_eq!(scrub(&rotten.node), 0, "it is looked for already");
    let mut found = 0;
    while let Some(id) = rotten.asked.next() {
        rotten.node.log.mended(rotten.gather(id, |_| true)).unwrap();
        found += 1;
    }
    assert_eq!((found, scrub(&rotten.node)), (changed, 0));
    (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
}

/// Nobody need be asked for what is in memory.
#[test]
fn what_is_in_memory_as_well_is_written_again_from_there() {
    let mut rotten = Rotten::new(Asked::default());
    let chunks: u64 = (0..LANES).map(|lane| rotten.read(lane).0).sum();
    assert_eq!(chunks, CHUNKS * u64::from(LANES));
    let changed = rotten.rot() as u64;
    assert_eq!(scrub(&rotten.node), changed);
    assert!(rotten.asked.next().is_none());
    rotten.forget();
    assert_eq!(scrub(&rotten.node), 0);
    (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
}

#[test]
fn without_anybody_who_looks_for_it_readers_try_the_disk_themselves() {
    let rotten = Rotten::new(Asked { refuses: true, ..Asked::default() });
    let changed = rotten.rot() as u64;
    assert_eq!((scrub(&rotten.node), scrub(&rotten.node)), (changed, changed));
    let read = || rotten.node.lane(0).read(Cursor::default(), 100_000, true);
    assert!(read().unwrap().loading, "the disk is asked");
}

/// Opens a store over what a process has left that was killed, with the segments that are in its arena.
fn after_kill(rotten: &Rotten, in_memory: &[SegmentId]) -> (Arc<DiskStore>, kera_log::store::StoreRecovery) {
    let config = StoreConfig { node: NODE, container_bytes: 4 << 20, ..StoreConfig::default() };
    let (clock, random) = (rotten.clock.clone(), Arc::new(SeededRandom::new(2)));
    let in_memory = in_memory.iter().copied().collect();
    DiskStore::open_after_kill(config, all_of(&rotten.disks), clock, random, &in_memory).unwrap()
}

/// A disk with a copy of one file.
fn copy_of(disk: &MemoryDisk, path: &str) -> MemoryDisk {
    let (copy, bytes) = (MemoryDisk::new(), disk.read_all(path, 64 << 20).unwrap());
    copy.create_dir_all("containers").unwrap();
    copy.open(path, kera_env::OpenMode::Create, false).unwrap().write_at(0, &bytes).unwrap();
    copy
}

/// The last batch of a container without a footer: after a loss of power what does not read back there may never have got to the disk. A kill takes nothing
/// that is not in memory.
#[test]
fn a_kill_does_not_tear_what_has_left_memory() {
    let (dir, memory) = (dir(), MemoryDisk::new());
    let clock = Arc::new(ManualClock::new(1_000));
    let mut node = open_on(vec![Arc::new(memory.clone()) as Arc<dyn Disk>], dir.path(), 1, clock.clone());
    assert_eq!(node.log.finish_recovery(1), Vec::<String>::new());
    (0..CHUNKS).for_each(|_| node.append(0));
    node.log.close_all();
    clock.advance_ms(11_000);
    while node.store.step() == kera_log::store::Step::Again {}
    let segments = node.store.status().disks[0].segments as usize;
    assert!(segments > 2 && node.store.status().dirty_segments == 0);
    node.arena.freeze();
    let path = "containers/0000000000000001.kera";
    let file = memory.open(path, kera_env::OpenMode::Read, false).unwrap();
    let mut page = kera_env::AlignedBuffer::zeroed(PAGE_BYTES);
    let last = (0..file.len().unwrap() / 4096).rfind(|at| {
        file.read_at(at * 4096, &mut page).unwrap();
        page[..4] == SEGMENT_MAGIC.to_le_bytes()
    });
    memory.flip_bit(path, last.expect("an image") * 4096 + 300, 1).unwrap();
    let config = || StoreConfig { node: NODE, container_bytes: 4 << 20, ..StoreConfig::default() };
    let found = |in_memory: Option<&[SegmentId]>| {
        // Each start finds the disk as the process before has left it.
        let disks = vec![Arc::new(copy_of(&memory, path)) as Arc<dyn Disk>];
        let random = Arc::new(SeededRandom::new(2));
        let opened = match in_memory {
            Some(ids) => {
                DiskStore::open_after_kill(config(), disks, clock.clone(), random, &ids.iter().copied().collect())
            }
            None => DiskStore::open(config(), disks, clock.clone(), random),
        };
        let (_, recovery) = opened.unwrap();
        assert!(recovery.lacks.is_empty() && recovery.problems.is_empty(), "{recovery:?}");
        recovery.segments
    };
    let all = found(Some(&[]));
    assert_eq!(all.len(), segments, "nothing is torn");
    let damaged = all.iter().max_by_key(|segment| segment.at.offset).unwrap().header.id;
    assert_eq!(found(Some(&[damaged])).len(), segments - 1, "it is in memory, and goes to a disk once more");
    assert_eq!(found(None).len(), segments - 1, "the power was lost");
}

/// What says where segments are is damaged: nobody can tell what was there, and somebody must be told that.
#[test]
fn what_cannot_be_read_at_a_start_is_told_until_others_know() {
    // The header and what says the same, the index that follows it; or an index and an image that it tells of.
    for (says, places) in [("has no readable header", [20, 4096 + 40]), ("cannot be read", [4096 + 40, 8192 + 300])] {
        let rotten = Rotten::new(Asked::default());
        let path = "containers/0000000000000001.kera";
        let file = rotten.memory[0].open(path, kera_env::OpenMode::Read, false).unwrap();
        let bytes = file.len().unwrap();
        // Without its footer the batches are followed.
        rotten.memory[0].flip_bit(path, bytes - 40, 1).unwrap();
        places.iter().for_each(|place| rotten.memory[0].flip_bit(path, *place, 1).unwrap());
        rotten.node.arena.freeze();
        let (store, found) = after_kill(&rotten, &[]);
        assert_eq!(found.lacks.len(), 1, "{found:?}");
        assert!(found.problems.iter().any(|problem| problem.contains(says)), "{found:?}");
        drop(store);
        // It was killed before anybody heard of it.
        let (store, found) = after_kill(&rotten, &[]);
        assert_eq!(found.lacks.len(), 1, "{found:?}");
        store.others_have(&found.lacks).unwrap();
        drop(store);
        let (_, found) = after_kill(&rotten, &[]);
        assert_eq!(found.lacks, [], "{found:?}");
    }
}

/// The first container that a node has made.
const FIRST: &str = "containers/0000000000000001.kera";

/// Segments that live on the disks.
fn live(node: &Node) -> u64 {
    node.store.status().disks.iter().map(|disk| disk.segments).sum()
}

/// A start would read the indexes instead, or take for there what was let go of: both are there again before another place goes bad.
#[test]
fn a_first_page_and_a_footer_that_a_disk_has_changed_are_written_anew_while_the_node_runs() {
    let rotten = Rotten::new(Asked::default());
    let all = || rotten.memory[0].read_all(FIRST, 64 << 20).unwrap();
    let before = all();
    let bytes = before.len() as u64;
    let footer = Trailer::parse(&before[before.len() - PAGE_BYTES..], bytes).unwrap().at;
    // The header, the map of what was released, what the footer says of segments, and its end.
    for place in [20, 600, footer + 10, bytes - 40] {
        rotten.memory[0].flip_bit(FIRST, place, 1).unwrap();
        assert_eq!((scrub(&rotten.node), all() == before), (1, true), "{place}");
        assert_eq!(scrub(&rotten.node), 0, "{place}");
    }
    // No disk takes it: it is found once more.
    rotten.memory[0].flip_bit(FIRST, 20, 1).unwrap();
    rotten.disks[0].fail_write(1);
    assert_eq!([0, 1, 2].map(|_| scrub(&rotten.node)), [1, 1, 0]);
    assert!(all() == before);
    (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
}

/// The node knows what a start would not: where the segments are that the index told of.
#[test]
fn what_an_index_told_of_that_a_disk_has_changed_lies_elsewhere_before_a_start_looks_for_it() {
    // With a footer that says the same; without it; and with an image damaged, so that a start could not tell what was there.
    for (with_footer, with_image) in [(true, true), (false, true), (false, false)] {
        let mut rotten = Rotten::new(Asked::default());
        let (segments, bytes) = (live(&rotten.node), rotten.memory[0].read_all(FIRST, 64 << 20).unwrap().len() as u64);
        let places = [(false, 4096 + 40), (with_footer, bytes - 40), (with_image, 8192 + 300)];
        for (_, place) in places.iter().filter(|(is_whole, _)| !is_whole) {
            rotten.memory[0].flip_bit(FIRST, *place, 1).unwrap();
        }
        // The image, and what tells of it.
        assert_eq!(scrub(&rotten.node), 1 + u64::from(!with_image));
        while let Some(id) = rotten.asked.next() {
            rotten.node.log.mended(rotten.gather(id, |_| true)).unwrap();
        }
        rotten.forget();
        assert!(rotten.memory[0].read_all(FIRST, 64 << 20).is_err(), "nothing is in it any more");
        assert_eq!((scrub(&rotten.node), live(&rotten.node)), (0, segments));
        (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
        rotten.node.store.flush_all().unwrap();
        rotten.node.arena.freeze();
        let (_, found) = after_kill(&rotten, &[]);
        assert_eq!((found.lacks.len(), found.problems.len(), found.segments.len() as u64), (0, 0, segments));
        // Who wrote them is known as before.
        assert!(found.segments.iter().all(|segment| !segment.producers.is_empty() && !segment.lacks_marks));
    }
}

/// No disk has room for what is to leave it: it stays where it is, and readers do not notice.
#[test]
fn what_no_disk_takes_stays_where_no_index_tells_of_it() {
    let mut rotten = Rotten::new(Asked::default());
    let segments = live(&rotten.node);
    rotten.memory[0].flip_bit(FIRST, 4096 + 40, 1).unwrap();
    rotten.disks.iter().for_each(|disk| disk.set_space(Some(0)));
    assert_eq!([scrub(&rotten.node), scrub(&rotten.node)], [1, 1]);
    (0..LANES).for_each(|lane| assert_eq!(rotten.read(lane), (CHUNKS, 0)));
    rotten.disks.iter().for_each(|disk| disk.heal());
    rotten.clock.advance_ms(60_000);
    assert_eq!(scrub(&rotten.node), 1);
    rotten.forget();
    assert_eq!((scrub(&rotten.node), live(&rotten.node)), (0, segments));
    assert!(rotten.memory[0].read_all(FIRST, 64 << 20).is_err(), "nothing is in it any more");
}

/// Batches are still appended to the container, and it has no footer.
#[test]
fn an_index_that_a_disk_has_changed_behind_a_writer_is_found_too() {
    let (dir, memory) = (dir(), MemoryDisk::new());
    let clock = Arc::new(ManualClock::new(1_000));
    let mut node = open_on(vec![Arc::new(memory.clone()) as Arc<dyn Disk>], dir.path(), 1, clock.clone());
    assert_eq!(node.log.finish_recovery(1), Vec::<String>::new());
    (0..CHUNKS).for_each(|_| (0..LANES).for_each(|lane| node.append(lane)));
    node.log.close_all();
    clock.advance_ms(11_000);
    let settle = |node: &Node| while node.store.step() == kera_log::store::Step::Again {};
    settle(&node);
    let segments = live(&node);
    assert_eq!((scrub(&node), node.store.status().dirty_segments), (0, 0));
    memory.flip_bit(FIRST, 4096 + 40, 1).unwrap();
    assert_eq!(scrub(&node), 1);
    settle(&node);
    assert!(memory.read_all(FIRST, 64 << 20).is_err(), "nothing is in it any more");
    assert_eq!((scrub(&node), live(&node)), (0, segments));
    node.arena.freeze();
    let config = StoreConfig { node: NODE, container_bytes: 4 << 20, ..StoreConfig::default() };
    let (disks, random) = (vec![Arc::new(memory.clone()) as Arc<dyn Disk>], Arc::new(SeededRandom::new(2)));
    let (_, found) = DiskStore::open_after_kill(config, disks, clock, random, &Default::default()).unwrap();
    assert_eq!((found.lacks.len(), found.problems.len(), found.segments.len() as u64), (0, 0, segments));
}

/// The node came back with it in between, and may be the only one that has it since.
#[test]
fn what_reads_back_and_then_does_not_any_more_is_told_once_more() {
    let rotten = Rotten::new(Asked::default());
    let path = "containers/0000000000000001.kera";
    rotten.node.arena.freeze();
    let starts = |is_readable: bool| {
        match is_readable {
            true => rotten.disks[0].heal_reads(),
            false => rotten.disks[0].set_unopenable(path),
        }
        let (store, found) = after_kill(&rotten, &[]);
        store.others_have(&found.lacks).unwrap();
        found.lacks.len()
    };
    assert_eq!([false, false, true, false, false].map(starts), [1, 0, 0, 1, 0]);
}

/// A loss of power has torn it, and the next start could not write it anew.
#[test]
fn what_is_left_of_a_footer_is_not_taken_for_segments_that_are_lost() {
    let rotten = Rotten::new(Asked::default());
    let path = "containers/0000000000000001.kera";
    let file = rotten.memory[0].open(path, kera_env::OpenMode::ReadWrite, false).unwrap();
    let bytes = file.len().unwrap();
    let mut page = kera_env::AlignedBuffer::zeroed(PAGE_BYTES);
    file.read_at(bytes - PAGE_BYTES as u64, &mut page).unwrap();
    let footer = Trailer::parse(&page, bytes).unwrap().at;
    file.write_at(footer, &[0; 512]).unwrap();
    rotten.node.arena.freeze();
    rotten.disks[0].fail_write(1);
    let config = StoreConfig { node: NODE, container_bytes: 4 << 20, ..StoreConfig::default() };
    let (clock, random) = (rotten.clock.clone(), Arc::new(SeededRandom::new(2)));
    let (store, found) = DiskStore::open(config, all_of(&rotten.disks), clock, random).unwrap();
    assert!(found.problems.iter().any(|problem| problem.contains("could not be given a footer")), "{found:?}");
    drop(store);
    let (_, again) = after_kill(&rotten, &[]);
    let count = found.segments.len();
    assert_eq!((again.lacks.len(), again.problems.len(), again.segments.len()), (0, 0, count), "{again:?}");
}
