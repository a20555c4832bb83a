//! Keys of the load: none, uniform, or Zipf.
//!
//! Picking a key costs a random number and one or two loads, whatever the distribution, so that the load generator
//! stays out of the way of what it measures.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// The exponent of the Zipf distribution, the one of YCSB: with a million keys the most frequent one gets about 7% of
/// the records.
const ZIPF_EXPONENT: f64 = 0.99;

/// The most keys that can be asked for: the table of a Zipf distribution takes 8 bytes for each.
pub const KEYS_MAX: u64 = 16 << 20;

/// How keys are spread over records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyDistribution {
    /// Records have no key.
    #[default]
    None,
    /// Every key is as likely as any other.
    Uniform,
    /// The n-th most frequent key is about n times rarer than the most frequent one.
    Zipf,
}

impl FromStr for KeyDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyDistribution, String> {
        match text {
            "none" => Ok(KeyDistribution::None),
            "uniform" => Ok(KeyDistribution::Uniform),
            "zipf" => Ok(KeyDistribution::Zipf),
            _ => Err(format!("`{text}` is none of: none, uniform, zipf")),
        }
    }
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KeyDistribution::None => "none",
            KeyDistribution::Uniform => "uniform",
            KeyDistribution::Zipf => "zipf",
        })
    }
}

/// Picks keys. The same seed gives the same keys.
#[derive(Debug)]
pub struct Keys {
    random: SmallRng,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    None,
    Uniform(u64),
    /// Walker's alias method: entry i is taken with the probability beside it, its alias otherwise.
    Table(Vec<(u32, u32)>),
}

impl Keys {
    /// Keys 0 to `count - 1` (at least one key, at most [`KEYS_MAX`]).
    pub fn new(distribution: KeyDistribution, count: u64, seed: u64) -> Keys {
        let count = count.clamp(1, KEYS_MAX);
        let kind = match distribution {
            KeyDistribution::None => Kind::None,
            KeyDistribution::Uniform => Kind::Uniform(count),
            KeyDistribution::Zipf => {
                Kind::Table(alias_table(&(1..=count).map(|n| (n as f64).powf(-ZIPF_EXPONENT)).collect::<Vec<_>>()))
            }
        };
        Keys { random: SmallRng::seed_from_u64(seed), kind }
    }

    /// The next record's key number, if records have keys.
    #[inline]
    pub fn pick(&mut self) -> Option<u64> {
        match &self.kind {
            Kind::None => None,
            Kind::Uniform(count) => {
                // The upper half of a 64 by 32 bit product: as even as it needs to be, without a division.
                let random = u64::from(self.random.random::<u32>());
                Some((random * count) >> 32)
            }
            Kind::Table(table) => {
                let random = self.random.random::<u64>();
                let at = (((random >> 32) * table.len() as u64) >> 32) as usize;
                let (keep, alias) = table[at];
                Some(if (random as u32) <= keep { at as u64 } else { u64::from(alias) })
            }
        }
    }
}

/// Builds the table for picking i with a probability proportional to `weights[i]`.
fn alias_table(weights: &[f64]) -> Vec<(u32, u32)> {
    let scale = weights.len() as f64 / weights.iter().sum::<f64>();
    let mut share: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
    let mut table = vec![(u32::MAX, 0); weights.len()];
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..share.len()).partition(|&i| share[i] < 1.0);
    while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
        small.pop();
        table[s] = ((share[s] * f64::from(u32::MAX)) as u32, l as u32);
        share[l] -= 1.0 - share[s];
        if share[l] < 1.0 {
            large.pop();
            small.push(l);
        }
    }
    for rest in small.into_iter().chain(large) {
        table[rest] = (u32::MAX, rest as u32);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: KeyDistribution, keys: u64, picks: usize) -> Vec<u64> {
        let mut source = Keys::new(distribution, keys, 7);
        let mut counts = vec![0; keys as usize];
        (0..picks).for_each(|_| counts[source.pick().unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn uniform_keys_are_about_even() {
        let counts = counts(KeyDistribution::Uniform, 100, 100_000);
        assert!(counts.iter().all(|&n| (800..1200).contains(&n)), "{counts:?}");
    }

    #[test]
    fn zipf_keys_follow_their_weights() {
        let counts = counts(KeyDistribution::Zipf, 1000, 1_000_000);
        let sum: f64 = (1..=1000).map(|n| f64::from(n).powf(-ZIPF_EXPONENT)).sum();
        for rank in [1usize, 2, 10, 100] {
            let expected = 1e6 * (rank as f64).powf(-ZIPF_EXPONENT) / sum;
            let found = counts[rank - 1] as f64;
            assert!((found / expected - 1.0).abs() < 0.15, "rank {rank}: {found} is about {expected}");
        }
    }

    #[test]
    fn one_key_and_no_key() {
        assert_eq!(Keys::new(KeyDistribution::Zipf, 1, 1).pick(), Some(0));
        assert_eq!(Keys::new(KeyDistribution::Uniform, 0, 1).pick(), Some(0));
        assert_eq!(Keys::new(KeyDistribution::None, 5, 1).pick(), None);
        for name in ["none", "uniform", "zipf"] {
            assert_eq!(name.parse::<KeyDistribution>().unwrap().to_string(), name);
        }
        assert!("pareto".parse::<KeyDistribution>().unwrap_err().contains("zipf"));
    }
}
