//! Randomness: from the operating system for ids, from a seed for tests and the simulator.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rand::rngs::{OsRng, StdRng};
use rand::{Rng, RngCore, SeedableRng, TryRngCore};

/// A source of random bytes, shared by threads.
pub trait Random: Send + Sync + fmt::Debug {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);

    /// A number from the whole range.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number from 0 up to, but not, `limit`; 0 if `limit` is 0.
    fn below(&self, limit: u64) -> u64 {
        // The multiplication maps the whole range onto `limit` values, with a bias of at most limit / 2^64.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

/// The operating system's randomness: good enough for ids and secrets.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        // On Linux this cannot fail but for a kernel without the system call and without /dev/urandom: no place to run.
        OsRng.try_fill_bytes(bytes).expect("the kernel gives random bytes");
    }
}

/// The same numbers for the same seed. Not for ids that must be unique, nor for secrets.
#[derive(Debug)]
pub struct SeededRandom {
    generator: Mutex<StdRng>,
}

impl SeededRandom {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> SeededRandom {
        SeededRandom { generator: Mutex::new(StdRng::seed_from_u64(seed)) }
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }

    fn next_u64(&self) -> u64 {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner).random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let take = |seed| {
            let random = SeededRandom::new(seed);
            (0..4).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn below_stays_below() {
        let random = SeededRandom::new(3);
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }

    #[test]
    fn system_randomness_is_not_constant() {
        assert_ne!(SystemRandom.next_u64(), SystemRandom.next_u64());
    }
}
