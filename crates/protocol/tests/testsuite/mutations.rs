//! The fuzz targets over mutated good bytes, the same ones in every run: a second of what `fuzz/` does for as long as one
//! likes.

#[path = "../../../../fuzz/src/seeds.rs"]
#[allow(unreachable_pub)]
mod seeds;
#[path = "../../../../fuzz/src/targets.rs"]
#[allow(unreachable_pub)]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Mutations of each target; `KERA_MUTATIONS` asks for another number.
const ROUNDS: u64 = 60_000;
/// Mutated bytes are not longer.
const BYTES_MAX: usize = 4_096 * 5;

/// Bytes that made a target fail once: target and hex.
const REGRESSIONS: &[(&str, &str)] = &[(
    // An extent without room for its index.
    "container",
    "4b43455801004000070000000000000088776655443322110050000000000000003001000000000000000000401f0000000008200000030000004500\
     0000000000000000000075fdaf43",
)];

/// Small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

const INTERESTING: [u64; 12] =
    [0, 1, 7, 8, 9, 127, 128, 255, u16::MAX as u64, i32::MAX as u64, u32::MAX as u64, u64::MAX];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(3) {
        let length = bytes.len();
        match random.below(7) {
            0 if length > 0 => bytes[random.below(length)] ^= 1 << random.below(8),
            1 if length > 0 => bytes[random.below(length)] = random.next() as u8,
            2 => bytes.truncate(random.below(length + 1)),
            3 => {
                let (size, at) = ([1, 2, 4, 8][random.below(4)], random.below(length));
                let near = (length as u64).wrapping_sub(random.next() % 17).wrapping_add(8);
                let value = if random.below(2) == 0 { near } else { INTERESTING[random.below(INTERESTING.len())] };
                if let Some(place) = bytes.get_mut(at..at + size) {
                    place.copy_from_slice(&value.to_le_bytes()[..size]);
                }
            }
            4 => {
                let (from, at) = (random.below(other.len()), random.below(length));
                let piece: Vec<u8> = other[from..].iter().copied().take(random.below(64)).collect();
                bytes.splice(at..at, piece);
            }
            5 if length > 0 => {
                let from = random.below(length);
                let to = from + random.below(length - from);
                bytes.drain(from..to);
            }
            _ => bytes.extend_from_slice(&other[..random.below(other.len() + 1)]),
        }
    }
    bytes.truncate(BYTES_MAX);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a target, and on failure says with which bytes.
fn run((name, target): targets::Target, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
        panic!("target `{name}` failed; keep this in REGRESSIONS: (\"{name}\", \"{}\")", hex(bytes));
    }
}

fn target(name: &str) -> targets::Target {
    *targets::ALL.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no target `{name}`"))
}

#[test]
fn every_target_survives_mutations_of_good_bytes() {
    let spec = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec");
    let rounds = std::env::var("KERA_MUTATIONS").map_or(ROUNDS, |n| n.parse().expect("KERA_MUTATIONS is a number"));
    let all = seeds::all(&spec);
    assert_eq!(all.len(), targets::ALL.len(), "every target has seeds");
    for (name, seeds) in all {
        let (target, mut random) = (target(name), Random(0x6b65_7261 ^ rounds));
        seeds.iter().for_each(|seed| run(target, seed));
        for _ in 0..rounds {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            let other = &seeds[random.below(seeds.len())];
            mutate(&mut random, &mut bytes, other);
            run(target, &bytes);
        }
    }
}

#[test]
fn bytes_that_failed_once_do_not_fail_again() {
    for (name, bytes) in REGRESSIONS {
        let bytes: Vec<u8> =
            (0..bytes.len()).step_by(2).map(|i| u8::from_str_radix(&bytes[i..i + 2], 16).expect("hex")).collect();
        run(target(name), &bytes);
    }
}
