//! Latencies: a histogram of nanoseconds, and the percentiles of it that a report shows.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart from longer ones: an hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds with three digits. Recording takes a few nanoseconds and no memory.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, NS_MAX, 3).expect("the bounds are constants that fit"))
    }

    /// Counts one latency. Zero counts as one nanosecond, more than an hour as an hour.
    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns.clamp(1, NS_MAX));
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Forgets everything: what came before was the warm-up.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// The percentiles.
    pub fn summary(&self) -> LatencySummary {
        if self.0.is_empty() {
            return LatencySummary::default();
        }
        let us = |ns: u64| ns as f64 / 1e3;
        LatencySummary {
            samples: self.0.len(),
            mean: self.0.mean() / 1e3,
            p50: us(self.0.value_at_quantile(0.5)),
            p90: us(self.0.value_at_quantile(0.9)),
            p99: us(self.0.value_at_quantile(0.99)),
            p999: us(self.0.value_at_quantile(0.999)),
            max: us(self.0.max()),
        }
    }
}

/// Percentiles in microseconds. All zero when nothing was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// How many latencies were measured.
    pub samples: u64,
    /// Their mean.
    #[serde(default)]
    pub mean: f64,
    /// Half of them took no longer.
    pub p50: f64,
    /// Nine of ten took no longer.
    #[serde(default)]
    pub p90: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.summary(), LatencySummary::default());
        (1..=1000u64).for_each(|us| latencies.record_ns(us * 1000));
        let summary = latencies.summary();
        for (found, right) in [(summary.p50, 500.0), (summary.p99, 990.0), (summary.p999, 999.0), (summary.max, 1000.0)]
        {
            assert!((found - right).abs() <= right / 500.0, "{found} is about {right}");
        }
        assert_eq!(summary.samples, 1000);
    }

    #[test]
    fn out_of_bounds_counts_at_the_bound() {
        let mut latencies = Latencies::new();
        latencies.record_ns(0);
        latencies.record_ns(u64::MAX);
        assert_eq!(latencies.summary().samples, 2);
        let mut sum = Latencies::new();
        sum.add(&latencies);
        sum.add(&latencies);
        assert_eq!(sum.summary().samples, 4);
        sum.clear();
        assert_eq!(sum.summary().samples, 0);
    }
}
