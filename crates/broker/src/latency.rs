//! How long requests take on the server, in a few buckets each. Counted once per request on its I/O thread, with two
//! relaxed additions; read for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets but the last, which has none, in microseconds.
pub const BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 1_000_000, 10_000_000];

/// Counts of one kind of request.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// The same counts at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HistogramCounts {
    /// Requests in each bucket, not added up.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// Microseconds of all together.
    pub sum_us: u64,
}

impl LatencyHistogram {
    /// Counts a request that took so long.
    #[inline]
    pub fn observe(&self, took_us: u64) {
        let bucket = BOUNDS_US.iter().position(|bound| took_us <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took_us, Ordering::Relaxed);
    }

    /// The counts as they are now, each for itself.
    pub fn read(&self) -> HistogramCounts {
        HistogramCounts {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

/// What is measured of a broker, from a request's arrival as a whole frame to its answer in the connection's outbox.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Writes of streams with durability `process`.
    pub write_process: LatencyHistogram,
    /// Writes with at least one chunk of a stream with durability `power`: the sync is in it.
    pub write_power: LatencyHistogram,
    /// Reads; the time that they wait for data is in it.
    pub read: LatencyHistogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket_and_what_is_beyond_all_to_the_last() {
        let histogram = LatencyHistogram::default();
        for took_us in [0, 100, 101, 10_000_000, 10_000_001] {
            histogram.observe(took_us);
        }
        let counts = histogram.read();
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[11], counts.buckets[12]), (2, 1, 1, 1));
        assert_eq!((counts.buckets.iter().sum::<u64>(), counts.sum_us), (5, 20_000_202));
        assert!(BOUNDS_US.is_sorted());
    }
}
