//! How much one answer to a fetch carries at most, for one connection.
//!
//! A client takes an answer as a whole before it asks for the next. If it is near, small answers are best: what it has just
//! received is still in its caches when it takes it apart. If it is far away every answer costs it a round trip, and large
//! ones are best. How soon it asks again tells which it is, whatever the reason: who takes long for a MiB loses nothing by
//! getting more at a time.

const MIB: u64 = 1 << 20;
/// The least. It fits into a core's own cache; smaller ones cost more in requests than they save.
const BYTES_MIN: usize = 1 << 20;
/// The least is so much more for each partition of the fetch: all of them are named in it and in its answer, and looked at by both
/// sides, which costs more than to lose a cache.
const PARTITION_BYTES: usize = 3 << 10;
/// A client that takes longer for a MiB than this gets twice as much next time: less than 64 MiB/s.
const SLOW_US: u64 = 16_000;
/// A client that takes less time than this gets half as much: more than 200 MiB/s. Far from the other, so that a client that
/// gets more is not given less for having become faster by it.
const FAST_US: u64 = 5_000;

/// The pace of a connection's fetches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    bytes: usize,
    /// The last answer: when it was made, and its data bytes.
    last: Option<(u64, usize)>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { bytes: BYTES_MIN, last: None }
    }
}

impl Pace {
    /// A fetch of so many partitions has come: how many data bytes its answer may have, `most` at most.
    pub(crate) fn asked(&mut self, now_us: u64, partitions: usize, most: usize) -> usize {
        // An answer that was not full says nothing: there was no more, and its client did not ask for want of anything.
        if let Some((at_us, bytes)) = self.last.take().filter(|(_, bytes)| *bytes >= self.bytes / 2) {
            let us_per_mib = now_us.saturating_sub(at_us).saturating_mul(MIB) / bytes.max(1) as u64;
            if us_per_mib > SLOW_US {
                self.bytes = (self.bytes * 2).min(most);
            } else if us_per_mib < FAST_US {
                self.bytes /= 2;
            }
        }
        self.bytes = self.bytes.max(BYTES_MIN + partitions * PARTITION_BYTES);
        self.bytes.min(most)
    }

    /// A fetch is answered with so many data bytes.
    pub(crate) fn answered(&mut self, now_us: u64, bytes: usize) {
        self.last = Some((now_us, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 16 << 20;

    /// What a client is given at last that takes so long for each answer, and so long for each MiB of it.
    fn settles_at(from: usize, trip_us: u64, mib_us: u64) -> usize {
        let mut pace = Pace { bytes: from, last: None };
        let (mut now_us, mut bytes) = (0, 0);
        for _ in 0..20 {
            bytes = pace.asked(now_us, 0, MOST);
            pace.answered(now_us, bytes);
            now_us += trip_us + mib_us * bytes as u64 / MIB;
        }
        bytes
    }

    #[test]
    fn who_is_near_gets_little_at_a_time_and_who_is_far_much() {
        for from in [BYTES_MIN, 4 << 20, MOST] {
            assert_eq!(settles_at(from, 100, 3_000), BYTES_MIN, "near and fast");
            assert_eq!(settles_at(from, 100, 100_000), MOST, "slow, for which it makes no difference");
            assert!(settles_at(from, 50_000, 2_000) >= 4 << 20, "far away");
        }
        assert_eq!(settles_at(BYTES_MIN, 5_000, 3_000), BYTES_MIN, "near enough");
        assert_eq!(settles_at(MOST, 200_000, 100), MOST, "far and fast");
    }

    #[test]
    fn what_was_not_full_says_nothing() {
        let mut pace = Pace::default();
        for second in 0..20 {
            assert_eq!(pace.asked(second * 1_000_000, 0, MOST), BYTES_MIN);
            pace.answered(second * 1_000_000, 100);
        }
        assert_eq!(pace.asked(30_000_000, 1024, MOST), 4 << 20, "more where there are many partitions");
        assert_eq!(pace.asked(30_000_000, 1024, 1000), 1000, "never more than may be");
    }
}
