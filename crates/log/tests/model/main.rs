//! The log against a naive model: random operations on both, which must agree on every answer.
//!
//! Appends (with retries, gaps, stale epochs, changed bits), reads from any cursor with any limit, lookups by ordinal and
//! time, syncs of the virtual log, writing out, evicting and loading segments, retention, idle closing, altering and deleting
//! streams, kill -9 and loss of power, on an arena that is too small. `KERA_MODEL_OPS` sets the number of operations per
//! seed, `KERA_MODEL_SEED` runs one seed only. Large segments, with the real store and virtual log, are in `large`.

#![allow(unreachable_pub)]

mod check;
mod fakes;
mod large;
mod liar;
mod model;
mod stress;
mod world;

use world::{Planted, World};

const OPERATIONS: u64 = 60_000;
const SEEDS: u64 = 4;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.replace('_', "").parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn run(seed: u64, operations: u64, planted: Option<Planted>) -> World {
    let mut world = World::new(seed, planted);
    for operation in 0..operations {
        step(&mut world);
        if operation % 16 == 0 {
            world.check_waiting();
            world.check_pins();
        }
    }
    world.finish();
    world
}

fn step(world: &mut World) {
    match world.random.below(10_000) {
        0..5_200 => world.append(),
        5_200..8_200 => world.read(),
        8_200..8_500 => world.lookup(),
        8_500..8_600 => world.read_nonsense(),
        8_600..9_000 => {
            let count = world.random.below(30) as usize;
            world.sync(count);
        }
        9_000..9_300 => {
            world.store.persist_one(world.log());
        }
        9_300..9_500 => {
            world.store.load_one(world.log(), false);
        }
        9_500..9_800 => evict(world),
        9_800..9_900 => world.retain(),
        9_900..9_950 => {
            let idle = world.random.below(3_000) as i64;
            world.log().close_idle(world.now_ms, idle);
        }
        9_950..9_960 => world.sink.lock().sick ^= true,
        9_960..9_975 => {
            if let Some(name) = world.any_lane() {
                world.alter_stream(name.0);
            }
        }
        9_975..9_985 => {
            let name = world.any_lane();
            if let Some(name) = name.filter(|_| world.streams.len() > 2) {
                world.delete_stream(name.0);
            }
            if world.streams.len() < 4 {
                world.create_stream();
            }
        }
        9_985..9_995 => world.kill(),
        _ => world.reboot(),
    }
}

fn evict(world: &mut World) {
    let mut stored: Vec<_> = world.store.lock().disk.keys().copied().collect();
    stored.sort_unstable();
    if stored.is_empty() {
        return;
    }
    let at = world.random.below(stored.len() as u64) as usize;
    if world.random.one_in(2) {
        world.log().evict(stored[at]);
    } else {
        for (id, at) in world.log().read_ahead(stored[at], 2) {
            world.store.lock().loads.push_back((id, at));
        }
    }
}

#[test]
fn the_log_and_the_model_agree() {
    let operations = number("KERA_MODEL_OPS").map_or(OPERATIONS, |all| all / SEEDS);
    let seeds = number("KERA_MODEL_SEED").map_or(1..=SEEDS, |seed| seed..=seed);
    for seed in seeds {
        println!("seed {seed}");
        let world = run(seed, operations, None);
        let mut counts: Vec<_> = world.counts.iter().collect();
        counts.sort();
        println!("seed {seed}: arena full {}, {counts:?}", world.full);
        for what in ["append", "duplicate", "gap", "stale", "corrupt", "read", "gone", "load", "kill", "reboot"] {
            assert!(world.counts.get(what).is_some_and(|&n| n > 5), "{what} hardly happened: {counts:?}");
        }
        assert!(world.full > 0, "the arena was never full");
    }
}

/// The checker is worth something: it fails for each of these bugs, of which the world pretends the log has one.
#[test]
fn planted_bugs_are_found() {
    for planted in [
        Planted::SkippedDedupe,
        Planted::SkippedChunk,
        Planted::EarlyEnd,
        Planted::LostWakeUp,
        Planted::RecycledTooEarly,
        Planted::ForgottenTail,
        Planted::GreedyRetention,
    ] {
        let found = std::panic::catch_unwind(|| run(1, 30_000, Some(planted)));
        let message = match found {
            Ok(_) => panic!("{planted:?} was not found"),
            Err(message) => message,
        };
        let text = message.downcast_ref::<String>().cloned().unwrap_or_default();
        println!("{planted:?} is found: {text}");
    }
}
