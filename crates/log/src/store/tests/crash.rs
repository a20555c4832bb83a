//! Power cuts at every step: what was reported as persisted is there, bit for bit, and nothing else is served that is not
//! what was closed under its name.

use std::collections::{BTreeMap, BTreeSet};

use kera_env::{MemoryDisk, Random, SeededRandom};

use super::super::container::container_path;
use super::*;

/// What a run did before the power went.
struct Run {
    persisted: BTreeSet<SegmentId>,
    released: BTreeSet<SegmentId>,
    sizes: BTreeMap<SegmentId, usize>,
}

/// Closes, writes, releases and finishes segments, the same for the same seed, until it is through or the power goes.
fn run(mut bench: Bench, disks: &[MemoryDisk], seed: u64, rounds: u32, lanes: std::ops::Range<u32>) -> Run {
    let random = SeededRandom::new(seed);
    let mut next_index: BTreeMap<u32, u32> = BTreeMap::new();
    let mut released = BTreeSet::new();
    for _ in 0..rounds {
        for _ in 0..random.below(4) {
            let lane = lanes.start + random.below((lanes.end - lanes.start).into()) as u32;
            let index = next_index.entry(lane).or_default();
            let bytes = [200, 5_000, 12_288, 40_000][random.below(4) as usize];
            bench.close(id(lane, *index), bytes);
            *index += 1;
        }
        if random.below(3) == 0 {
            let persisted = bench.persisted();
            if !persisted.is_empty() {
                let id = persisted[random.below(persisted.len() as u64) as usize];
                released.insert(id);
                bench.release(id);
            }
        }
        for _ in 0..2 {
            bench.core.step();
        }
        if random.below(8) == 0 {
            let _ = bench.core.flush_all();
        }
        bench.clock.advance_ms(1500);
        if disks.iter().any(MemoryDisk::is_off) {
            break;
        }
    }
    Run { persisted: bench.persisted().into_iter().collect(), released, sizes: bench.sizes }
}

fn check(disks: &[MemoryDisk], run: &Run, what: &str) -> Bench {
    let (bench, recovery) = Bench::open(config(), as_disks(disks)).unwrap();
    assert_eq!(recovery.problems, Vec::<String>::new(), "{what}");
    let found: BTreeSet<SegmentId> = recovery.segments.iter().map(|segment| segment.header.id).collect();
    let lost: Vec<_> = run.persisted.difference(&found).collect();
    assert!(lost.is_empty(), "{what}: persisted and lost: {lost:?}");
    for at in &found {
        let before = (0..at.index.0).map(|index| SegmentId { index: SegmentIndex(index), ..*at });
        let missing: Vec<_> = before.filter(|id| !found.contains(id) && !run.released.contains(id)).collect();
        assert!(missing.is_empty(), "{what}: {at} is there and {missing:?} before it are not");
    }
    for segment in &recovery.segments {
        assert_eq!(segment.producers, [mark_of(segment.header.id)], "{what}");
        bench.check(segment.header.id, run.sizes[&segment.header.id]);
    }
    bench.evict_all();
    bench
}

/// Steps that the run takes on the first disk when nothing goes wrong.
fn steps_of(seed: u64, disk_count: usize, rounds: u32) -> u64 {
    let disks = memory_disks(disk_count);
    let bench = Bench::fresh(as_disks(&disks));
    run(bench, &disks, seed, rounds, 0..3);
    disks[0].steps()
}

fn crash_at_every_step(disk_count: usize, seeds: std::ops::Range<u64>, rounds: u32) {
    for seed in seeds {
        let steps = steps_of(seed, disk_count, rounds);
        assert!(steps > 30, "the run does too little: {steps}");
        for step in 1..=steps {
            let disks = memory_disks(disk_count);
            let bench = Bench::fresh(as_disks(&disks));
            let opened_at = disks[0].steps();
            disks[0].cut_power_at(step.saturating_sub(opened_at).max(1));
            let first = run(bench, &disks, seed, rounds, 0..3);
            disks.iter().for_each(|disk| disk.crash(seed * 1000 + step));
            let what = format!("seed {seed} step {step}");
            let bench = check(&disks, &first, &what);
            drop(bench);
            // A second life on the same disks, cut off too, in other lanes so that names differ.
            let (bench, _) = Bench::open(config(), as_disks(&disks)).unwrap();
            disks[0].cut_power_at(step % 23 + 1);
            let mut second = run(bench, &disks, seed + 1, rounds, 3..6);
            second.released.extend(first.released);
            disks.iter().for_each(|disk| disk.crash(seed * 7000 + step));
            second.persisted.retain(|id| !second.released.contains(id));
            second.sizes.extend(first.sizes);
            check(&disks, &second, &format!("{what}, second life"));
        }
    }
}

#[test]
fn one_disk_cut_at_every_step_keeps_what_was_persisted() {
    crash_at_every_step(1, 0..3, 14);
}

#[test]
fn two_disks_cut_at_every_step_keep_what_was_persisted() {
    crash_at_every_step(2, 100..102, 14);
}

#[test]
fn recovery_that_is_cut_off_itself_loses_nothing() {
    let mut cut_off = 0;
    for seed in 0..10 {
        let steps = steps_of(seed, 1, 10);
        let disks = memory_disks(1);
        let bench = Bench::fresh(as_disks(&disks));
        disks[0].cut_power_at((steps * 2 / 3).max(1));
        let first = run(bench, &disks, seed, 10, 0..3);
        disks[0].crash(seed);
        for step in 1..12 {
            disks[0].cut_power_at(step);
            if let Err(error) = Bench::open(config(), as_disks(&disks)) {
                assert!(disks[0].is_off(), "seed {seed} step {step}: {error}");
            }
            cut_off += u32::from(disks[0].is_off());
            disks[0].crash(seed * 100 + step);
        }
        check(&disks, &first, &format!("seed {seed}"));
    }
    assert!(cut_off > 5, "recovery hardly changes anything: it was cut off {cut_off} times");
}

#[test]
fn a_stopped_store_finds_everything_in_footers() {
    let disks = memory_disks(2);
    let mut bench = Bench::fresh(as_disks(&disks));
    for lane in 0..4 {
        for index in 0..20 {
            bench.close(id(lane, index), 9_000);
        }
    }
    bench.core.flush_all().unwrap();
    assert_eq!(bench.persisted().len(), 80);
    assert!(bench.core.disks.iter().all(|part| !part.writer.lock().is_open()));
    let counts = bench.core.status().disks.iter().map(|disk| disk.segments).collect::<Vec<_>>();
    assert!(counts.iter().all(|many| *many > 20), "both disks are used: {counts:?}");
    drop(bench);
    let (bench, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    assert_eq!((recovery.segments.len(), recovery.unfinished), (80, 0));
    for segment in &recovery.segments {
        bench.check(segment.header.id, 9_000);
    }
}

#[test]
fn containers_of_another_node_are_refused() {
    let disks = memory_disks(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    bench.close(id(0, 0), 5_000);
    bench.core.flush_all().unwrap();
    let other = StoreConfig { node: [9; 16], ..config() };
    match Bench::open(other, as_disks(&disks)) {
        Err(error @ StoreError::Foreign { .. }) => assert!(error.to_string().contains("0909"), "{error}"),
        _ => panic!("opened the containers of another node"),
    }
}

/// Of two places of a segment the space of one is given back, which in one directory is that of both.
#[test]
fn a_disk_that_is_given_twice_is_refused_and_loses_nothing() {
    let disks = memory_disks(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    bench.close(id(0, 0), 5_000);
    bench.core.flush_all().unwrap();
    drop(bench);
    match Bench::open(config(), as_disks(&[disks[0].clone(), disks[0].clone()])) {
        Err(error @ StoreError::Twice { .. }) => assert!(error.to_string().contains("same container"), "{error}"),
        _ => panic!("opened the same containers twice"),
    }
    let (bench, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
    assert_eq!(recovery.segments.len(), 1);
    bench.check(id(0, 0), 5_000);
}

#[test]
fn a_batch_torn_in_the_middle_leaves_no_hole_in_a_lane() {
    let mut partly = 0;
    for seed in 0..1000 {
        let disks = memory_disks(1);
        let mut bench = Bench::fresh(as_disks(&disks));
        // Of small segments every single one may or may not have made it.
        (0..3).for_each(|n| bench.close(id(0, n), 200));
        // Making the container takes five changes, then come the write and its sync.
        disks[0].cut_power_at(7);
        bench.settle();
        assert!(disks[0].is_off() && bench.persisted().is_empty());
        disks[0].crash(seed);
        let run = Run { persisted: BTreeSet::new(), released: BTreeSet::new(), sizes: bench.sizes };
        let found = check(&disks, &run, &format!("seed {seed}")).persisted().len();
        partly += u32::from((1..3).contains(&found));
    }
    assert!(partly > 5, "{partly}");
}

/// The rule at its plainest: of three images of a lane that one write brought, the middle one is not what was written.
#[test]
fn what_follows_a_torn_image_in_its_lane_goes_with_it_and_other_lanes_stay() {
    let disks = memory_disks(1);
    let mut bench = Bench::fresh(as_disks(&disks));
    for (lane, index) in [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)] {
        bench.close(id(lane, index), 5_000);
    }
    bench.settle();
    assert_eq!(bench.persisted().len(), 5);
    let at = bench.location(id(0, 1)).unwrap();
    drop(bench);
    // As if the power had gone before this page was on the disk: there is no footer yet that would vouch for it.
    disks[0].flip_bit(&container_path(at.container), at.offset + 4_200, 3).unwrap();
    for start in 0..2 {
        let (_, recovery) = Bench::open(config(), as_disks(&disks)).unwrap();
        let found: BTreeSet<SegmentId> = recovery.segments.iter().map(|segment| segment.header.id).collect();
        assert_eq!(found, BTreeSet::from([id(0, 0), id(1, 0), id(1, 1)]), "start {start}");
    }
}
