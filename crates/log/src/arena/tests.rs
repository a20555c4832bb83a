//! The arena as lanes and loaders see it, and what the next process finds.

use std::os::unix::fs::FileExt;

use kera_format::segment::{SegmentHeader, SegmentState};
use kera_format::{GroupId, LaneId, SegmentId, SegmentIndex, StreamId, StreamletId};

use super::*;
use crate::segment::Segment;
use crate::waiters::tests::Counter;

const MIB: u64 = 1 << 20;
const SMALL: usize = 64 << 10;

fn config(dir: &tempfile::TempDir, bytes: u64) -> ArenaConfig {
    ArenaConfig { path: dir.path().join("test.arena"), bytes, node: [5; 16] }
}

fn open(dir: &tempfile::TempDir, bytes: u64) -> Arc<Arena> {
    Arena::create_or_attach(config(dir, bytes)).expect("an arena").0
}

fn segment(arena: &Arc<Arena>, bytes: usize, group: u64) -> Arc<Segment> {
    let block = arena.allocate(bytes, Purpose::Write).expect("a block");
    let id = SegmentId {
        stream: StreamId(1),
        streamlet: StreamletId(0),
        lane: LaneId(0),
        group: GroupId(group),
        index: SegmentIndex(0),
    };
    let header = SegmentHeader { id, capacity_bytes: bytes as u32, base_ordinal: group, created_ms: 0, flags: 0 };
    Segment::create(block, header)
}

fn found(attach: Attach) -> (Vec<AttachedSegment>, Vec<SetAside>) {
    match attach {
        Attach::Attached { segments, set_aside, same_boot: true, .. } => (segments, set_aside),
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_are_aligned_writable_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 32 * MIB);
    let block = arena.allocate(300_000, Purpose::Write).unwrap();
    assert_eq!(block.bytes(), 512 << 10);
    assert_eq!(block.base().as_ptr().addr() % (64 << 10), 0);
    // SAFETY: this is the block's only handle.
    unsafe { block.base().as_ptr().write_bytes(0xab, block.bytes()) };
    assert_eq!(arena.stats().used_bytes, 512 << 10);
    assert!(arena.stats().resident_bytes >= 512 << 10);
    drop(block);
    assert_eq!(arena.stats().used_bytes, 0);
    assert_eq!(arena.stats().largest_free_bytes, 16 * MIB);
    let again = arena.allocate(SMALL, Purpose::Write).unwrap();
    assert_eq!(arena.stats().cold_allocations, 1, "the warm block is used again");
    drop(again);
}

fn open_roomy(dir: &tempfile::TempDir, bytes: u64) -> (Arc<Arena>, Attach) {
    Arena::create_or_attach_with(config(dir, bytes), BlockSize::Roomy).expect("an arena")
}

#[test]
fn a_roomy_block_holds_what_is_a_power_of_two_and_its_headers() {
    let dir = tempfile::tempdir().unwrap();
    let (arena, _) = open_roomy(&dir, 32 * MIB);
    let block = arena.allocate(SMALL + 200, Purpose::Write).unwrap();
    assert_eq!((block.bytes(), block.capacity_bytes()), (72 << 10, 128 << 10));
    assert_eq!(arena.block_bytes(SMALL as u64 + 200), 72 << 10);
    let small = arena.allocate((32 << 10) + 200, Purpose::Write).unwrap();
    assert_eq!((small.bytes(), small.capacity_bytes()), (36 << 10, 64 << 10));
    for (bytes, within) in [(1, 36 << 10), (71 << 10, 36 << 10), (72 << 10, 72 << 10), (8 << 20, 4608 << 10)] {
        assert_eq!(arena.block_bytes_within(bytes), within, "of at most {bytes}");
    }
    let large = arena.allocate(16 << 20, Purpose::Write).unwrap();
    assert_eq!((large.bytes(), large.capacity_bytes()), (18 << 20, 16 << 20));
    drop((block, small, large));
    // All of them lie beside each other, from the first byte to the last.
    let blocks: Vec<Block> = std::iter::from_fn(|| arena.allocate(1, Purpose::Write).ok()).collect();
    for (block, number) in blocks.iter().zip((0..=u8::MAX).cycle()) {
        assert_eq!(block.base().as_ptr().addr() % 4096, 0);
        // SAFETY: this is the block's only handle.
        unsafe { block.base().as_ptr().write_bytes(number, block.bytes()) };
    }
    for (block, number) in blocks.iter().zip((0..=u8::MAX).cycle()) {
        // SAFETY: nobody writes to it any more.
        let bytes = unsafe { block.as_slice(block.bytes()) };
        assert!(bytes.iter().all(|byte| *byte == number), "block {number}");
    }
    assert_eq!(arena.stats().used_bytes, blocks.len() as u64 * (36 << 10));
    assert_eq!(arena.stats().bytes, 910 * (36 << 10), "whole blocks");
}

#[test]
fn an_arena_that_is_attached_keeps_the_size_of_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let kept = segment(&arena, 1 << 20, 1);
    arena.freeze();
    drop((kept, arena));
    let (arena, attach) = open_roomy(&dir, 8 * MIB);
    let Attach::Attached { kept_bytes, .. } = &attach else { panic!("{attach:?}") };
    assert_eq!(*kept_bytes, None, "as large as was asked for");
    let (segments, set_aside) = found(attach);
    assert_eq!((segments.len(), set_aside.len(), arena.stats().bytes), (1, 0, 8 * MIB));
    assert_eq!(arena.allocate(SMALL + 200, Purpose::Write).unwrap().bytes(), 128 << 10);
    arena.remove().unwrap();
    drop((segments, arena));
    assert!(!Arena::has_survived(&config(&dir, 0).path, [5; 16]).unwrap(), "nothing is there");
    let (arena, _) = open_roomy(&dir, 8 * MIB);
    let kept = segment(&arena, 128 << 10, 2);
    assert_eq!(kept.block_bytes(), 144 << 10);
    arena.freeze();
    drop((kept, arena));
    assert!(Arena::has_survived(&config(&dir, 0).path, [5; 16]).unwrap());
    let (arena, attach) = Arena::create_or_attach(config(&dir, 8 * MIB)).unwrap();
    let (segments, set_aside) = found(attach);
    assert_eq!((segments.len(), set_aside.len()), (1, 0));
    assert_eq!(arena.stats().used_bytes, 144 << 10);
    assert_eq!(segments[0].segment.id().group.0, 2);
}

#[test]
fn an_arena_of_a_version_that_is_not_known_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let kept = segment(&arena, 1 << 20, 1);
    arena.freeze();
    drop((kept, arena));
    let path = config(&dir, 0).path;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 3;
    let checksum = kera_format::checksum::crc32c(&bytes[..76]);
    bytes[76..80].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let error = Arena::create_or_attach(config(&dir, 8 * MIB)).err().unwrap();
    assert!(matches!(error, ArenaError::OtherVersion { found: 3, .. }), "{error}");
    let survived = Arena::has_survived(&path, [5; 16]);
    assert!(matches!(survived, Err(ArenaError::OtherVersion { found: 3, .. })), "it is not lost: {survived:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_full_arena_says_so_and_calls_back_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, MIB);
    let mut blocks: Vec<Block> = Vec::new();
    let full = loop {
        match arena.allocate(SMALL, Purpose::Write) {
            Ok(block) => blocks.push(block),
            Err(full) => break full,
        }
    };
    assert_eq!(blocks.len(), 14, "an eighth is kept for loads");
    let (counter, observer) = Counter::pair();
    assert!(arena.wait_for_space(full.seen, &observer, 1));
    assert_eq!(counter.calls(), 0);
    blocks.pop();
    assert_eq!(counter.calls(), 1);
    assert!(!arena.wait_for_space(full.seen, &observer, 1), "there was room since");
    assert!(arena.allocate(SMALL, Purpose::Write).is_ok());
}

/// As if the machine had no memory for blocks, or had some again: the file ends in front of them.
fn give_memory(dir: &tempfile::TempDir, arena: &Arena, there_is_some: bool) {
    let file = std::fs::OpenOptions::new().write(true).open(config(dir, 0).path).unwrap();
    let bytes = if there_is_some { arena.header.file_bytes() } else { arena.header.blocks_offset() };
    file.set_len(bytes).unwrap();
}

/// What each gives back since there was none wakes those who wait for a block, and none of those who wait for memory: they would wake one another for ever.
#[test]
fn who_finds_no_memory_waits_until_there_may_be_some() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    give_memory(&dir, &arena, false);
    let fails = || arena.allocate(SMALL, Purpose::Write).err().expect("there is no memory");
    let full = fails();
    assert!(full.lacks_memory() && arena.stats().lacks_memory);
    assert_eq!(arena.stats().free_bytes, 8 * MIB, "the block is free again");
    let (counter, observer) = Counter::pair();
    assert!(arena.wait_for_space(full.seen, &observer, 1), "nothing has come since");
    (0..10).for_each(|_| assert!(fails().lacks_memory()));
    assert_eq!(arena.warm_if_there_is_memory(MIB), Err(0));
    assert_eq!(counter.calls(), 0);
    // What others of the machine have left nobody tells.
    arena.give_back(false);
    assert_eq!((counter.calls(), arena.stats().lacks_memory), (1, false));
    let full = fails();
    assert!(arena.wait_for_space(full.seen, &observer, 1));
    give_memory(&dir, &arena, true);
    let block = arena.allocate(SMALL, Purpose::Write).unwrap();
    assert_eq!(counter.calls(), 1);
    drop(block);
    assert_eq!(counter.calls(), 2, "it has memory, whoever gets it");
    assert!(!arena.wait_for_space(full.seen, &observer, 1), "there may have been some since");
    assert!(arena.allocate(SMALL, Purpose::Write).is_ok());
}

/// Or else what is evicted would be of no use, for as long as there are blocks that were never touched: to lanes that are hardly written to, which get these first, and to all
/// if it is in the midst of them.
#[test]
fn where_others_get_no_memory_a_block_that_has_some_is_found() {
    for filling in [Filling::Sparse, Filling::Whole] {
        let dir = tempfile::tempdir().unwrap();
        let arena = open(&dir, 8 * MIB);
        let mut blocks: Vec<_> = (0..4).map(|_| arena.allocate(SMALL, Purpose::Write).unwrap()).collect();
        let kept = blocks.remove(3);
        // As if they had never been touched.
        arena.state.lock().buddy.set_empty(0, 3);
        blocks.clear();
        give_memory(&dir, &arena, false);
        let allocate = || arena.allocate_with(SMALL, SMALL, (Purpose::Write, filling));
        assert!(allocate().err().expect("none has memory").lacks_memory());
        let at = kept.offset();
        drop(kept);
        assert_eq!(allocate().expect("this one was touched").offset(), at, "{filling:?}");
    }
}

#[test]
fn a_block_that_gets_no_more_memory_is_told_to_who_found_no_block() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let block = arena.allocate_to_fill(MIB as usize, Purpose::Write, Filling::Whole).unwrap();
    assert!(block.touched() < block.bytes());
    give_memory(&dir, &arena, false);
    let full = block.touch(0, block.bytes()).expect_err("there is no memory");
    let found_none = SpaceVersion { version: arena.state.lock().version, of_memory: false };
    let ((for_memory, waits), (for_block, waits_too)) = (Counter::pair(), Counter::pair());
    assert!(arena.wait_for_space(full.seen, &waits, 1));
    assert!(arena.wait_for_space(found_none, &waits_too, 1));
    drop(block);
    assert_eq!((for_memory.calls(), for_block.calls()), (0, 1));
}

#[test]
fn the_systems_streams_find_room_when_writers_and_loads_have_taken_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 16 * MIB);
    let take = |purpose| std::iter::from_fn(|| arena.allocate(SMALL, purpose).ok()).collect::<Vec<_>>();
    let (writes, loads) = (take(Purpose::Write), take(Purpose::Load));
    assert_eq!(writes.len() + loads.len(), 252, "a 64th of 256 blocks is kept");
    let system = take(Purpose::System);
    assert_eq!(system.len(), 4);
    drop(system);
    assert!(arena.allocate(SMALL, Purpose::Write).is_err() && arena.allocate(SMALL, Purpose::Load).is_err());
    // Beyond their share they are writers like others.
    drop(writes);
    assert_eq!(take(Purpose::System).len(), 256 - loads.len());
}

#[test]
fn writers_and_loads_leave_each_other_an_eighth() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, MIB);
    let take = |purpose| {
        let mut blocks = Vec::new();
        while let Ok(block) = arena.allocate(SMALL, purpose) {
            blocks.push(block);
        }
        blocks
    };
    let writes = take(Purpose::Write);
    let loads = take(Purpose::Load);
    assert_eq!((writes.len(), loads.len()), (14, 2));
    drop((writes, loads));
    let loads = take(Purpose::Load);
    let writes = take(Purpose::Write);
    assert_eq!((writes.len(), loads.len()), (2, 14));
    assert_eq!(arena.stats().loaded_bytes, 14 * SMALL as u64);
}

#[test]
fn warming_makes_allocation_free_of_faults() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 64 * MIB);
    assert_eq!(arena.warm(4 * MIB), 4 * MIB);
    let mut all = 4 * MIB;
    while let more @ 1.. = arena.warm(4 * MIB) {
        all += more;
    }
    assert_eq!(all, 8 * MIB, "an eighth of the arena is kept warm");
    let block = arena.allocate(2 << 20, Purpose::Write).unwrap();
    assert_eq!(arena.stats().cold_allocations, 0);
    drop(block);
}

#[test]
fn the_next_process_finds_the_segments_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let kept = [segment(&arena, SMALL, 1), segment(&arena, 1 << 20, 2)];
    let dropped = segment(&arena, SMALL, 3);
    let unpublished = arena.allocate(SMALL, Purpose::Load).unwrap();
    drop(dropped);
    arena.freeze();
    drop((kept, unpublished, arena));
    let (arena, attach) = Arena::create_or_attach(config(&dir, 8 * MIB)).unwrap();
    let (segments, set_aside) = found(attach);
    let mut groups: Vec<u64> = segments.iter().map(|s| s.segment.id().group.0).collect();
    groups.sort_unstable();
    assert_eq!((groups, set_aside), (vec![1, 2], vec![]));
    assert_eq!(arena.stats().used_bytes, MIB + SMALL as u64);
    drop(segments);
    assert_eq!(arena.stats().used_bytes, 0);
}

#[test]
fn a_closed_segment_gives_its_empty_end_back() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let segment = segment(&arena, 1 << 20, 1);
    segment.close(SegmentState::Closed);
    assert_eq!(segment.block_bytes(), SMALL as u64);
    assert_eq!(arena.stats().used_bytes, SMALL as u64);
    assert_eq!(segment.as_padded_image(4096).len(), 4096);
    arena.freeze();
    drop((segment, arena));
    let (_arena, attach) = Arena::create_or_attach(config(&dir, 8 * MIB)).unwrap();
    let (segments, set_aside) = found(attach);
    assert_eq!((segments.len(), set_aside.len()), (1, 0));
    assert_eq!(segments[0].segment.state(), SegmentState::Closed);
}

#[test]
fn what_is_no_segment_is_set_aside_and_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, 8 * MIB);
    let (first, second) = (segment(&arena, SMALL, 1), segment(&arena, SMALL, 2));
    arena.freeze();
    drop((first, second, arena));
    let file = std::fs::OpenOptions::new().write(true).open(config(&dir, 0).path).unwrap();
    let blocks =
        ArenaHeader { node: [5; 16], boot_id: [0; 16], blocks: BlockSize::Plain, bytes: 8 * MIB }.blocks_offset();
    // A header bit of the first segment, and a byte of the table that means nothing.
    file.write_at(&[0xff], blocks + 40).unwrap();
    file.write_at(&[0x3f], ARENA_TABLE_OFFSET + 9).unwrap();
    drop(file);
    let (arena, attach) = Arena::create_or_attach(config(&dir, 8 * MIB)).unwrap();
    let (segments, set_aside) = found(attach);
    assert_eq!(segments.len(), 1);
    assert_eq!(set_aside.len(), 2);
    assert!(set_aside.iter().any(|s| s.reason.contains("checksum")), "{set_aside:?}");
    assert!(set_aside.iter().any(|s| s.reason.contains("table")), "{set_aside:?}");
    assert_eq!(arena.stats().set_aside_bytes, 2 * SMALL as u64);
    drop(segments);
    let blocks: Vec<_> = std::iter::from_fn(|| arena.allocate(SMALL, Purpose::Write).ok()).collect();
    assert_eq!(blocks.len() as u64, 128 - 16 - 2 - 2, "less what is kept for loads and for the system");
}

#[test]
fn no_segment_has_more_blocks_than_the_largest_takes() {
    let dir = tempfile::tempdir().unwrap();
    for (blocks, problems) in [(BlockSize::Plain, 1), (BlockSize::Roomy, 0)] {
        let (arena, _) = Arena::create_or_attach_with(config(&dir, 64 * MIB), blocks).unwrap();
        arena.table(0).store(TableEntry::Reserved(9).to_byte(), Ordering::Relaxed);
        arena.freeze();
        drop(arena);
        let (arena, attach) = Arena::create_or_attach(config(&dir, 64 * MIB)).unwrap();
        assert_eq!(found(attach).1.len(), problems, "{blocks:?}");
        arena.remove().unwrap();
    }
}

#[test]
fn somebody_elses_file_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, MIB));
    let other = ArenaConfig { node: [6; 16], ..config(&dir, MIB) };
    let error = Arena::create_or_attach(other).err().unwrap().to_string();
    assert!(error.contains("another node"), "{error}");
    std::fs::write(config(&dir, 0).path, [b'x'; 5000]).unwrap();
    let error = Arena::create_or_attach(config(&dir, MIB)).err().unwrap().to_string();
    assert!(error.contains("arena.magic") && error.contains("move the file away"), "{error}");
    assert_eq!(std::fs::read(config(&dir, 0).path).unwrap(), [b'x'; 5000]);
}

#[test]
fn a_second_process_is_refused_while_the_first_lives() {
    let dir = tempfile::tempdir().unwrap();
    let arena = open(&dir, MIB);
    assert!(matches!(Arena::create_or_attach(config(&dir, MIB)), Err(ArenaError::Busy { .. })));
    drop(arena);
    assert!(Arena::create_or_attach(config(&dir, MIB)).is_ok());
}

#[test]
fn a_half_made_file_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(config(&dir, 0).path, vec![0; 1 << 20]).unwrap();
    assert!(matches!(Arena::create_or_attach(config(&dir, MIB)), Ok((_, Attach::Created))));
}

#[test]
fn a_file_cut_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, MIB));
    std::fs::OpenOptions::new().write(true).open(config(&dir, 0).path).unwrap().set_len(MIB).unwrap();
    let error = Arena::create_or_attach(config(&dir, MIB)).err().unwrap().to_string();
    assert!(error.contains("its header says"), "{error}");
}

#[test]
fn another_configured_size_waits_for_an_empty_arena() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, 4 * MIB));
    let (arena, attach) = Arena::create_or_attach(config(&dir, 8 * MIB)).unwrap();
    assert!(matches!(attach, Attach::Attached { kept_bytes: Some(bytes), .. } if bytes == 4 * MIB));
    assert_eq!(arena.bytes(), 4 * MIB);
    arena.remove().unwrap();
    drop(arena);
    assert_eq!(open(&dir, 8 * MIB).bytes(), 8 * MIB);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [0, MIB - 1, (1 << 40) + 1] {
        let error = Arena::create_or_attach(config(&dir, bytes)).err().unwrap().to_string();
        assert!(error.contains("arena_bytes"), "{error}");
    }
}

/// Where files take memory page by page, as they do in use.
fn shared_memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("shared memory")
}

/// Calls for as many turns as memory has to be free, and one more. The bytes given back.
fn wait_out(arena: &Arena, is_quiet: bool) -> u64 {
    (0..=super::give_back::TURNS).map(|_| arena.give_back(is_quiet)).sum()
}

#[test]
fn free_memory_goes_back_but_for_a_reserve_and_what_is_in_use_stays() {
    let dir = shared_memory_dir();
    let arena = open(&dir, 64 * MIB);
    let mut blocks: Vec<Block> = (0..52).map(|_| arena.allocate(1 << 20, Purpose::Write).unwrap()).collect();
    for (n, block) in blocks.iter().enumerate() {
        // SAFETY: this is the block's only handle.
        unsafe { block.base().as_ptr().write_bytes(n as u8 + 1, block.bytes()) };
    }
    let kept: Vec<Block> = (0..13).rev().map(|n| blocks.remove(n * 4)).collect();
    drop(blocks);
    assert_eq!(wait_out(&arena, false), (39 - 8) * MIB, "an eighth stays for writers");
    assert_eq!(wait_out(&arena, true), 7 * MIB, "a 64th stays for those who come");
    let stats = arena.stats();
    assert_eq!((stats.held_free_bytes, stats.given_back_bytes), (MIB, 38 * MIB));
    assert!(stats.resident_bytes <= (13 + 1) * MIB + MIB / 8, "{}", stats.resident_bytes);
    for (n, block) in (0..13).rev().zip(&kept) {
        // SAFETY: nobody writes to it.
        let bytes = unsafe { block.as_slice(block.bytes()) };
        assert!(bytes.iter().all(|&byte| byte == n * 4 + 1), "block {n}");
    }
    let cold = stats.cold_allocations;
    let again: Vec<Block> = (0..8).map(|_| arena.allocate(1 << 20, Purpose::Write).unwrap()).collect();
    assert!(arena.stats().cold_allocations >= cold + 7, "what was given back is touched before it is used");
    drop(again);
}

#[test]
fn what_was_needed_lately_stays() {
    let dir = shared_memory_dir();
    let arena = open(&dir, 64 * MIB);
    let take = || (0..3).map(|_| arena.allocate(16 << 20, Purpose::Write).unwrap()).collect::<Vec<_>>();
    drop(take());
    let mut given = 0;
    for turn in 0..4 * super::give_back::TURNS {
        given += arena.give_back(true);
        if turn % (super::give_back::TURNS - 2) == 0 {
            drop(take());
        }
    }
    assert_eq!(given, 0);
    assert!(wait_out(&arena, true) > 40 * MIB);
}

#[test]
fn the_next_process_gives_back_what_the_one_before_had_touched() {
    let dir = shared_memory_dir();
    let arena = open(&dir, 16 * MIB);
    let (kept, dropped) = (segment(&arena, 4 << 20, 1), arena.allocate(8 << 20, Purpose::Write).unwrap());
    drop(dropped);
    arena.freeze();
    drop((kept, arena));
    let (arena, attach) = Arena::create_or_attach(config(&dir, 16 * MIB)).unwrap();
    let (segments, set_aside) = found(attach);
    assert_eq!((segments.len(), set_aside.len()), (1, 0));
    assert!(arena.stats().resident_bytes > 12 * MIB);
    let given = wait_out(&arena, true);
    let resident = arena.stats().resident_bytes;
    assert!(resident < 5 * MIB, "{resident} {given} {:?}", arena.stats());
    arena.freeze();
    drop((segments, arena));
    let (_arena, attach) = Arena::create_or_attach(config(&dir, 16 * MIB)).unwrap();
    assert_eq!(found(attach).0.len(), 1);
}

#[test]
fn quiet_lanes_have_little_memory_and_leave_what_was_touched_to_others() {
    let dir = shared_memory_dir();
    let arena = open(&dir, 64 * MIB);
    while arena.warm(4 * MIB) > 0 {}
    let before = arena.stats();
    let blocks: Vec<Block> =
        (0..400).map(|_| arena.allocate_to_fill(SMALL, Purpose::Write, Filling::Sparse).unwrap()).collect();
    let after = arena.stats();
    assert_eq!(after.warm_free_bytes, before.warm_free_bytes);
    assert_eq!(after.resident_bytes - before.resident_bytes, 400 * (16 << 10));
    assert!(blocks[0].touch(0, 20 << 10).is_ok() && blocks[0].touched() == 32 << 10);
    assert!(blocks[0].touch(0, SMALL).is_ok() && blocks[0].touched() == SMALL);
}

/// Threads that take, fill, verify and drop blocks, while another gives back all that is free: nobody may find his bytes
/// gone.
#[test]
fn nothing_that_is_in_use_is_given_back() {
    let dir = shared_memory_dir();
    let arena = open(&dir, 16 * MIB);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u8)
            .map(|n| {
                let arena = &arena;
                scope.spawn(move || {
                    let mut blocks: std::collections::VecDeque<(Block, u8)> = Default::default();
                    for round in 0..3000u32 {
                        let fill = (round % 120) as u8 * 2 + n + 1;
                        if let Ok(block) = arena.allocate(SMALL << (round % 4), Purpose::Write) {
                            // SAFETY: this is the block's only handle.
                            unsafe { block.base().as_ptr().write_bytes(fill, block.bytes()) };
                            blocks.push_back((block, fill));
                        }
                        if blocks.len() > 4 {
                            let (block, fill) = blocks.pop_front().unwrap();
                            // SAFETY: nobody writes to it.
                            let bytes = unsafe { block.as_slice(block.bytes()) };
                            assert!(bytes.iter().all(|&byte| byte == fill), "bytes of a block in use are gone");
                        }
                    }
                })
            })
            .collect();
        let giving = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // As if nobody had needed anything for long.
                arena.state.lock().lows = Lows::plenty();
                arena.give_back(true);
            }
        });
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        giving.join().unwrap();
        assert!(results.iter().all(Result::is_ok));
    });
    assert!(arena.stats().given_back_bytes > 16 * MIB, "all of it once over: {:?}", arena.stats());
}
