//! What stays in memory, what comes back, and what disk space is given back.

use super::*;
use crate::store::ComesFirst;
use crate::store::evict::LOOKED_AT;

fn disk() -> (MemoryDisk, Vec<Arc<dyn Disk>>) {
    let disk = MemoryDisk::new();
    let disks = as_disks(std::slice::from_ref(&disk));
    (disk, disks)
}

fn in_memory(bench: &Bench, lane: u32, indexes: std::ops::Range<u32>) -> Vec<u32> {
    indexes.filter(|n| bench.is_in_memory(id(lane, *n))).collect()
}

#[test]
fn segments_wait_for_others_before_they_are_written_unless_memory_is_short() {
    let (disk, disks) = disk();
    let config = StoreConfig { write_delay_ms: 2_000, dirty_percent_max: 25, ..config() };
    let (mut bench, _) = Bench::open(config, disks).unwrap();
    let steps = disk.steps();
    bench.close(id(0, 0), 10_000);
    bench.clock.advance_ms(1_000);
    bench.close(id(1, 0), 10_000);
    bench.settle();
    assert_eq!((bench.persisted().len(), disk.steps()), (0, steps));
    assert_eq!(bench.core.step(), Step::Until(2_000_000));
    bench.clock.advance_ms(1_000);
    bench.settle();
    assert_eq!(bench.persisted().len(), 2, "the second goes along");
    assert_eq!(bench.core.status().disks[0].counters.batches, 1);
    // A quarter of the memory is dirty.
    bench.log.bytes.store(64 << 10, Ordering::Relaxed);
    bench.evict_all();
    bench.close(id(2, 0), 16_000);
    bench.settle();
    assert_eq!(bench.persisted().len(), 2);
    bench.close(id(2, 1), 3_000);
    bench.settle();
    assert_eq!(bench.persisted().len(), 4);
    // A writer finds no room.
    bench.close(id(2, 2), 3_000);
    bench.core.want_space(64 << 10);
    bench.settle();
    assert_eq!(bench.persisted().len(), 5);
}

/// What a backup writes and reads.
#[derive(Default)]
struct Copies(AtomicU64);

impl ComesFirst for Copies {
    fn bytes(&self, _disk: usize) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn segments_wait_while_a_backup_keeps_the_disk_busy_but_not_for_ever_and_not_when_memory_is_short() {
    let (_, disks) = disk();
    let config = StoreConfig { write_delay_ms: 2_000, dirty_percent_max: 25, ..config() };
    let (mut bench, _) = Bench::open(config, disks).unwrap();
    let copies = Arc::new(Copies::default());
    bench.core.give_way(copies.clone());
    let pass = |bench: &Bench, ms: u64, bytes_per_ms: u64| {
        for _ in 0..ms / 100 {
            bench.clock.advance_ms(100);
            copies.0.fetch_add(100 * bytes_per_ms, Ordering::Relaxed);
            bench.settle();
        }
    };
    // A few copies hold up nothing.
    bench.close(id(0, 0), 10_000);
    bench.settle();
    pass(&bench, 2_000, 10_000);
    assert_eq!(bench.persisted().len(), 1);
    // Many do, for a while.
    pass(&bench, 100, 100_000);
    bench.close(id(1, 0), 10_000);
    bench.settle();
    pass(&bench, 9_900, 100_000);
    assert_eq!(bench.persisted().len(), 1);
    pass(&bench, 100, 100_000);
    assert_eq!(bench.persisted().len(), 2, "five times as long, and no longer");
    // When they end it is written at once.
    bench.close(id(2, 0), 10_000);
    bench.settle();
    pass(&bench, 4_000, 100_000);
    assert_eq!(bench.persisted().len(), 2);
    pass(&bench, 100, 0);
    assert_eq!(bench.persisted().len(), 3);
    // And when memory is short.
    pass(&bench, 100, 100_000);
    bench.log.bytes.store(64 << 10, Ordering::Relaxed);
    bench.evict_all();
    bench.close(id(3, 0), 20_000);
    bench.settle();
    assert_eq!(bench.persisted().len(), 4);
}

#[test]
fn memory_of_what_is_dropped_does_not_wait_for_the_disk() {
    let (_, disks) = disk();
    let (mut bench, _) = Bench::open(StoreConfig { write_delay_ms: 2_000, ..config() }, disks).unwrap();
    (0..4).for_each(|n| bench.close(id(0, n), 16_000));
    let free = |bench: &Bench| bench.log.memory().free_bytes;
    let before = free(&bench);
    for n in 0..3 {
        bench.log.segments.lock().remove(&id(0, n));
        bench.core.dropped(id(0, n));
    }
    assert_eq!(free(&bench), before + 3 * 16_384, "nothing else keeps them");
    assert_eq!(bench.core.queue.lock().dirty(), (1, 16_384));
    bench.clock.advance_ms(2_000);
    bench.settle();
    assert_eq!(bench.persisted(), [id(0, 3)]);
    assert!(bench.core.queue.lock().is_clean());
}

#[test]
fn batches_keep_neighbours_of_a_lane_together_and_in_order() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..12).for_each(|n| bench.close(id(n % 3, n / 3), 4_000));
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.batches, 1);
    for lane in 0..3 {
        let places: Vec<u64> = (0..4).map(|n| bench.location(id(lane, n)).unwrap().offset).collect();
        assert!(places.windows(2).all(|pair| pair[1] == pair[0] + 4096), "{places:?}");
    }
}

#[test]
fn space_is_made_by_evicting_what_was_read_first_and_never_what_is_dirty() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..8).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    for n in [1, 4, 6] {
        bench.log.segment(id(0, n)).unwrap().set_read();
    }
    bench.log.bytes.store(8 * 16_384, Ordering::Relaxed);
    bench.core.want_space(2 * 16_384);
    bench.settle();
    assert_eq!(in_memory(&bench, 0, 0..8), [0, 2, 3, 5, 6, 7]);
    bench.close(id(0, 8), 16_000);
    bench.core.want_space(4 * 16_384);
    bench.core.step_keep();
    assert_eq!(in_memory(&bench, 0, 0..9), [3, 5, 7, 8]);
    assert_eq!(bench.core.status().evicted_segments, 5);
}

/// Whoever lacks memory asks once, and waits for the arena to have some.
#[test]
fn what_writers_lack_is_not_forgotten_while_all_is_on_its_way_to_disk() {
    let (_, disks) = disk();
    let (mut bench, _) = Bench::open(StoreConfig { write_delay_ms: 2_000, ..config() }, disks).unwrap();
    bench.log.bytes.store(4 * 16_384, Ordering::Relaxed);
    (0..4).for_each(|n| bench.close(id(0, n), 16_000));
    bench.core.want_space(2 * 16_384);
    // The keeper has its turns before the disk's thread has one.
    assert_eq!((bench.core.step_keep(), bench.core.step_keep()), (Step::Again, Step::Idle));
    bench.settle();
    assert!(bench.persisted().len() >= 2, "it is not waited for others");
    assert_eq!((bench.log.memory().free_bytes, bench.core.status().evicted_segments), (2 * 16_384, 2));
    // Once.
    bench.close(id(0, 4), 16_000);
    bench.core.flush_all().unwrap();
    bench.settle();
    assert_eq!(bench.core.status().evicted_segments, 2);
    assert!(!bench.core.keeper.is_pressed.load(Ordering::Relaxed));
}

/// It is gone for the log, and its memory is not: an outbox has it, of a reader that does not take it.
#[test]
fn what_writers_lack_is_not_forgotten_for_what_a_reader_still_holds() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    bench.log.bytes.store(3 * 16_384, Ordering::Relaxed);
    (0..2).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    let held: Vec<_> = (0..2).map(|n| bench.log.segment(id(0, n))).collect();
    bench.core.want_space(2 * 16_384);
    bench.settle();
    assert_eq!((in_memory(&bench, 0, 0..2), bench.log.memory().free_bytes), (vec![], 16_384));
    bench.close(id(0, 2), 16_000);
    bench.settle();
    assert_eq!((in_memory(&bench, 0, 0..3), bench.log.memory().free_bytes), (vec![], 16_384), "it is wanted still");
    drop(held);
    // That is enough.
    bench.close(id(0, 3), 16_000);
    bench.settle();
    assert_eq!(in_memory(&bench, 0, 0..4), [3]);
}

#[test]
fn what_a_reader_will_need_next_stays_longest() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..8).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    bench.core.reading(id(0, 2));
    bench.log.bytes.store(8 * 16_384, Ordering::Relaxed);
    bench.core.want_space(4 * 16_384);
    bench.settle();
    assert_eq!(in_memory(&bench, 0, 0..8), [2, 3, 4, 5]);
}

#[test]
fn a_share_of_memory_is_kept_free_without_being_asked() {
    let (_, disks) = disk();
    let (mut bench, _) = Bench::open(StoreConfig { free_percent_min: 25, ..config() }, disks).unwrap();
    bench.log.bytes.store(16 * 16_384, Ordering::Relaxed);
    (0..15).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    assert_eq!(in_memory(&bench, 0, 0..15).len(), 12);
}

#[test]
fn memory_that_is_always_full_is_not_looked_through_for_each_segment() {
    let (_, disks) = disk();
    let (mut bench, _) = Bench::open(StoreConfig { free_percent_min: 50, ..config() }, disks).unwrap();
    bench.log.bytes.store(1_024 * 4_096, Ordering::Relaxed);
    (0..512).for_each(|n| bench.close(id(0, n), 1_000));
    bench.settle();
    assert_eq!(bench.core.status().evicted_segments, 0);
    LOOKED_AT.set(0);
    for n in 512..1_152 {
        bench.close(id(0, n), 1_000);
        bench.settle();
        let free = bench.log.memory().free_bytes / 4_096;
        assert!((448..=512).contains(&free), "{free} after {n}");
    }
    let (evicted, looked_at) = (bench.core.status().evicted_segments, LOOKED_AT.get());
    assert!((576..=640).contains(&evicted) && looked_at < 10 * 640, "{evicted} of {looked_at}");
}

#[test]
fn cold_open_segments_are_closed_only_when_nothing_else_helps() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    let calls = |bench: &Bench| bench.log.close_coldest_calls.load(Ordering::Relaxed);
    bench.log.bytes.store(4 * 16_384, Ordering::Relaxed);
    bench.close(id(0, 0), 16_000);
    bench.settle();
    bench.core.want_space(4 * 16_384);
    bench.core.step_keep();
    assert_eq!((calls(&bench), in_memory(&bench, 0, 0..1).len()), (0, 0));
    let _open = Charged::new(4 * 16_384, &bench.log.used);
    bench.core.want_space(4 * 16_384);
    bench.core.step_keep();
    bench.core.want_space(4 * 16_384);
    bench.core.step_keep();
    assert_eq!(calls(&bench), 1, "not again before what was closed could be written");
}

#[test]
fn segments_in_memory_at_the_start_can_be_evicted() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks.clone());
    (0..3).for_each(|n| bench.close(id(0, n), 16_000));
    bench.core.flush_all().unwrap();
    let (again, _) = Bench::open(config(), disks).unwrap();
    // As after a restart that attached the arena: the log has them in memory, the store has found them on disk.
    for n in 0..3 {
        let memory = bench.log.segment(id(0, n));
        again.log.segments.lock().get_mut(&id(0, n)).unwrap().memory = memory;
    }
    again.log.bytes.store(0, Ordering::Relaxed);
    again.core.want_space(1 << 30);
    again.core.step_keep();
    assert_eq!(in_memory(&again, 0, 0..3), Vec::<u32>::new());
}

#[test]
fn catch_up_reads_ahead_with_few_large_reads_and_never_runs_dry() {
    let (_, disks) = disk();
    let config = StoreConfig { container_bytes: 16 << 20, batch_bytes: 1 << 20, ..config() };
    let (mut bench, _) = Bench::open(config, disks).unwrap();
    (0..100).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    bench.evict_all();
    let mut waits = 0;
    for n in 0..100 {
        if !bench.is_in_memory(id(0, n)) {
            waits += 1;
            bench.demand(id(0, n));
            bench.settle();
        }
        bench.core.reading(id(0, n));
        let segment = bench.log.segment(id(0, n)).unwrap();
        assert!(segment.image() == contents(id(0, n), 16_000).0);
        segment.set_read();
        bench.settle();
    }
    let counters = bench.core.status().disks[0].counters;
    assert_eq!((waits, counters.loaded_segments), (1, 100));
    assert!(counters.reads < 20, "{} reads", counters.reads);
}

#[test]
fn a_read_leaves_something_for_the_next_loader() {
    let (_, disks) = disk();
    let config = StoreConfig { container_bytes: 16 << 20, batch_bytes: 16 << 20, ..config() };
    let (mut bench, _) = Bench::open(config, disks).unwrap();
    (0..8).for_each(|n| bench.close(id(0, n), 1_000_000));
    bench.settle();
    bench.evict_all();
    (0..8).for_each(|n| bench.demand(id(0, n)));
    bench.core.step_load(0);
    assert_eq!(in_memory(&bench, 0, 0..8), [0, 1, 2, 3]);
    bench.core.step_load(0);
    assert_eq!(in_memory(&bench, 0, 0..8).len(), 8);
    assert_eq!(bench.core.status().disks[0].counters.reads, 2);
}

#[test]
fn a_reader_that_catches_up_finds_memory_without_asking() {
    const BLOCK: u64 = 16_384;
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..150).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    bench.evict_all();
    // Loads are to have four blocks ahead of them, and two at least.
    bench.log.bytes.store(64 * BLOCK, Ordering::Relaxed);
    bench.core.keeper.load_bytes.store(8 * BLOCK, Ordering::Relaxed);
    bench.demand(id(0, 0));
    for n in 0..150 {
        bench.settle();
        assert!(bench.log.memory().load_free_bytes >= 2 * BLOCK, "a load has to wait at {n}");
        bench.core.reading(id(0, n));
        bench.log.segment(id(0, n)).unwrap().set_read();
    }
}

#[test]
fn memory_for_loads_is_not_made_of_what_readers_come_to() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..20).for_each(|n| bench.close(id(0, n), 16_000));
    bench.settle();
    bench.log.evict(id(0, 19));
    bench.log.bytes.store(20 * 16_384, Ordering::Relaxed);
    bench.core.reading(id(0, 1));
    bench.demand(id(0, 19));
    bench.settle();
    assert_eq!(in_memory(&bench, 0, 0..20), (1..20).collect::<Vec<u32>>());
}

#[test]
fn loads_that_find_no_memory_wait_for_eviction() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..6).for_each(|n| bench.close(id(n, 0), 16_000));
    bench.settle();
    bench.evict_all();
    bench.log.bytes.store(2 * 16_384, Ordering::Relaxed);
    for n in 0..6 {
        bench.check(id(n, 0), 16_000);
    }
    // All at once: each gets its turn as those before were read.
    bench.evict_all();
    (0..6).for_each(|n| bench.demand(id(n, 0)));
    for _ in 0..6 {
        bench.settle();
        bench.log.segments.lock().values().filter_map(|known| known.memory.clone()).for_each(|s| s.set_read());
    }
    assert_eq!(bench.core.status().loads_waiting, 0);
    assert!(bench.log.segments.lock().values().all(|known| known.failed.is_none()));
}

#[test]
fn released_segments_give_their_space_back_and_empty_containers_go() {
    let (disk, disks) = disk();
    let mut bench = Bench::fresh(disks.clone());
    (0..40).for_each(|n| bench.close(id(0, n), 16_000));
    bench.core.flush_all().unwrap();
    let full_bytes = disk.used_bytes();
    let containers = disk.list("containers").unwrap().len();
    assert!(containers >= 3, "{containers}");
    // Every other one: holes, and no file goes.
    (0..40).filter(|n| n % 2 == 0).for_each(|n| bench.release(id(0, n)));
    bench.settle();
    assert_eq!(disk.list("containers").unwrap().len(), containers);
    assert!(disk.used_bytes() + 20 * 16_384 <= full_bytes);
    let (again, recovery) = Bench::open(config(), disks).unwrap();
    assert_eq!(recovery.segments.len(), 20);
    (0..40).filter(|n| n % 2 == 1).for_each(|n| again.check(id(0, n), 16_000));
    (0..40).filter(|n| n % 2 == 1).for_each(|n| again.release(id(0, n)));
    again.settle();
    assert_eq!(disk.list("containers").unwrap(), Vec::<String>::new());
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn segments_dropped_before_their_turn_are_not_written() {
    let (_, disks) = disk();
    let mut bench = Bench::fresh(disks);
    (0..4).for_each(|n| bench.close(id(0, n), 16_000));
    bench.release(id(0, 1));
    bench.settle();
    assert_eq!(bench.core.status().disks[0].counters.written_segments, 3);
    assert_eq!(bench.core.status().dirty_segments, 0);
}

#[test]
fn disks_are_filled_by_their_free_space() {
    let disks = [MemoryDisk::with_capacity(96 << 20), MemoryDisk::with_capacity(32 << 20)];
    let mut bench = Bench::fresh(as_disks(&disks));
    for n in 0..200 {
        bench.close(id(n, 0), 60_000);
        bench.settle();
    }
    let on: Vec<u64> = bench.core.status().disks.iter().map(|disk| disk.segments).collect();
    assert!((140..=160).contains(&on[0]), "{on:?}");
}
