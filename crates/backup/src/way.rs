//! Which way much goes to a disk: past the page cache, or through it.
//!
//! Past it costs least of the processors, and each byte waits for the disk. Through it costs a copy and pages that nobody has used, and waits
//! for the disk only when the kernel has more to write than it likes: a burst goes at the speed of memory. So much goes past it, but where the
//! disk is what holds the writer up and the processors have nothing to do meanwhile (decision 38). Nothing that is promised depends on it: who
//! asked for a sync is answered behind one, and a kill takes neither.

use std::sync::Arc;

use kera_env::{ProcessorTimes, Processors};

/// Microseconds that are looked at together, before the page cache is gone through and while it is. Within a tenth of a second processors may be
/// idle or busy all the time, whatever they are otherwise.
const LOOK_US: [u64; 2] = [250_000, 1_000_000];
/// The disk holds the writer up: at least so much of its time it waits for writes past the page cache, in percent.
const WAITS_PERCENT: u64 = 60;
/// Processors have nothing to do for at least so much of their time, in percent: what the page cache costs of it is to be had.
const IDLE_PERCENT: u64 = 35;
/// The page cache was of no use: so long it is not tried again.
const PAUSE_US: u64 = 5_000_000;
/// So long it is gone through at a time: then it is seen again what the disk takes. The first time for as long as the first, for a disk may
/// have stood still for just that moment, and twice as long each time that it is seen to be as slow as before, up to the second.
const THROUGH_US: [u64; 2] = [1_000_000, 10_000_000];

/// See the module. One for each writer of a disk.
pub(crate) struct Way {
    processors: Option<Arc<dyn Processors>>,
    through: bool,
    look: Option<Look>,
    /// What the disk took past the page cache when it held the writer up, in bytes a second.
    past_bytes_per_s: u64,
    /// Through it until then; past it until then at least.
    until_us: u64,
    /// So long it is gone through the next time.
    through_us: u64,
}

/// What was seen since a moment.
struct Look {
    since_us: u64,
    times: ProcessorTimes,
    /// In writes of much.
    writing_us: u64,
    bytes: u64,
}

impl Way {
    /// Past the page cache always if nobody knows of the processors.
    pub(crate) fn new(processors: Option<Arc<dyn Processors>>) -> Way {
        Way { processors, through: false, look: None, past_bytes_per_s: 0, until_us: 0, through_us: THROUGH_US[0] }
    }

    /// Whether the next write of much goes through the page cache.
    pub(crate) fn is_through(&self) -> bool {
        self.through
    }

    /// So much was written, from one moment to another.
    pub(crate) fn note(&mut self, from_us: u64, to_us: u64, bytes: usize) {
        let Some(processors) = &self.processors else { return };
        let stale = |look: &Look| to_us.saturating_sub(look.since_us) > 4 * LOOK_US[1];
        if self.look.as_ref().is_none_or(stale) {
            // The first of a burst, and what lies before it tells nothing.
            let Some(times) = processors.times() else { return };
            self.through = false;
            self.look = Some(Look { since_us: from_us, times, writing_us: 0, bytes: 0 });
        }
        let Some(look) = &mut self.look else { return };
        look.writing_us += to_us.saturating_sub(from_us);
        look.bytes += bytes as u64;
        let for_us = to_us.saturating_sub(look.since_us);
        if for_us < LOOK_US[usize::from(self.through)] {
            return;
        }
        let Some(times) = processors.times() else { return };
        let idle_percent = times.idle_percent_since(&look.times);
        let (writing_us, bytes) = (look.writing_us.max(1), look.bytes);
        *look = Look { since_us: to_us, times, writing_us: 0, bytes: 0 };
        self.decide(to_us, for_us, writing_us, bytes, idle_percent);
    }

    fn decide(&mut self, now_us: u64, for_us: u64, writing_us: u64, bytes: u64, idle_percent: u64) {
        let per_s = u64::try_from(u128::from(bytes) * 1_000_000 / u128::from(for_us)).unwrap_or(u64::MAX);
        let is_held_up = writing_us * 100 >= for_us * WAITS_PERCENT;
        if !self.through {
            if !is_held_up || idle_percent < IDLE_PERCENT {
                self.through_us = THROUGH_US[0];
            } else if now_us >= self.until_us {
                (self.through, self.past_bytes_per_s, self.until_us) = (true, per_s, now_us + self.through_us);
                self.through_us = (2 * self.through_us).min(THROUGH_US[1]);
            }
            return;
        }
        // The disk would take as much, so nothing is gained; or nothing more is there to be written.
        let is_of_no_use = per_s <= self.past_bytes_per_s;
        if is_of_no_use || now_us >= self.until_us {
            self.through = false;
            self.until_us = if is_of_no_use && is_held_up { now_us + PAUSE_US } else { now_us };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Processors that are idle for so many percent.
    #[derive(Debug, Default)]
    struct Idle {
        percent: AtomicU64,
        times: parking_lot::Mutex<ProcessorTimes>,
    }

    impl Processors for Idle {
        fn times(&self) -> Option<ProcessorTimes> {
            let mut times = self.times.lock();
            times.total += 100;
            times.idle += self.percent.load(Ordering::Relaxed);
            Some(*times)
        }
    }

    struct Rig {
        idle: Arc<Idle>,
        way: Way,
        now_us: u64,
    }

    impl Rig {
        fn new(idle_percent: u64) -> Rig {
            let idle = Arc::new(Idle::default());
            idle.percent.store(idle_percent, Ordering::Relaxed);
            let processors: Arc<dyn Processors> = idle.clone();
            Rig { idle, way: Way::new(Some(processors)), now_us: 1_000_000 }
        }

        /// Writes for `for_us`: a MiB takes `past_us` past the page cache and `through_us` through it, and nothing is there to write for
        /// `pause_us` behind it.
        fn writes(&mut self, for_us: u64, past_us: u64, through_us: u64, pause_us: u64) -> bool {
            let until_us = self.now_us + for_us;
            while self.now_us < until_us {
                let write_us = if self.way.is_through() { through_us } else { past_us };
                self.way.note(self.now_us, self.now_us + write_us, 1 << 20);
                self.now_us += write_us + pause_us;
            }
            self.way.is_through()
        }

        /// As fast as the disk takes it.
        fn is_slow(&mut self, for_us: u64) -> bool {
            self.writes(for_us, 5_000, 1_000, 100)
        }

        /// The same. For how long of it past the page cache.
        fn is_slow_past_ms(&mut self, for_ms: u64) -> u64 {
            50 * (0..for_ms / 50).filter(|_| !self.is_slow(50_000)).count() as u64
        }
    }

    #[test]
    fn a_slow_disk_and_idle_processors_have_much_go_through_the_page_cache() {
        let mut rig = Rig::new(50);
        assert!(!rig.is_slow(240_000));
        assert!(rig.is_slow(100_000));
        // A quarter of a second each time to see what the disk takes: behind 1, 2, 4 and 8 seconds, and then behind ten each.
        assert!((750..=1_250).contains(&rig.is_slow_past_ms(17_000)));
        assert!((500..=1_000).contains(&rig.is_slow_past_ms(31_000)));
    }

    #[test]
    fn a_disk_that_stood_still_for_a_moment_is_soon_written_to_past_it_again() {
        let mut rig = Rig::new(50);
        assert!(!rig.writes(10_000_000, 1_000, 200, 1_000));
        // One write that takes a third of a second. Through it goes more than that, and less than the disk takes otherwise.
        assert!(rig.writes(1, 330_000, 0, 0));
        rig.idle.percent.store(5, Ordering::Relaxed);
        assert!(rig.writes(900_000, 1_000, 3_000, 0));
        assert!(!rig.writes(10_000_000, 1_000, 3_000, 0));
        // And much later as soon.
        rig.idle.percent.store(50, Ordering::Relaxed);
        assert!(rig.writes(1, 330_000, 0, 0));
        assert!(rig.writes(900_000, 1_000, 3_000, 0));
        assert!(!rig.writes(300_000, 1_000, 3_000, 1_000));
    }

    #[test]
    fn busy_processors_have_it_go_past() {
        let mut rig = Rig::new(IDLE_PERCENT - 1);
        assert!(!rig.is_slow(2_000_000));
        rig.idle.percent.store(IDLE_PERCENT, Ordering::Relaxed);
        assert!(rig.is_slow(300_000));
        // With more under way they are busy. That is what it is for.
        rig.idle.percent.store(0, Ordering::Relaxed);
        assert!(rig.is_slow(600_000));
    }

    #[test]
    fn now_and_then_the_disk_is_seen_again() {
        let mut rig = Rig::new(50);
        assert!(rig.is_slow(300_000));
        assert!(!rig.writes(2_100_000, 1_000, 200, 1_500));
    }

    #[test]
    fn a_disk_that_keeps_up_is_written_to_past_it() {
        assert!(!Rig::new(90).writes(3_000_000, 1_000, 200, 1_000));
    }

    #[test]
    fn a_page_cache_that_brings_nothing_is_left_for_a_while() {
        let mut rig = Rig::new(50);
        assert!(rig.writes(300_000, 5_000, 5_500, 100));
        assert!(!rig.writes(2_200_000, 5_000, 5_500, 100));
        assert_eq!(rig.is_slow_past_ms(3_000), 3_000);
        assert!(rig.is_slow_past_ms(4_000) < 2_800);
    }

    #[test]
    fn with_little_to_write_and_behind_a_pause_it_goes_past() {
        let mut rig = Rig::new(50);
        assert!(rig.is_slow(300_000));
        assert!(!rig.writes(1_100_000, 5_000, 1_000, 20_000));
        assert!(rig.is_slow(550_000));
        rig.now_us += 60_000_000;
        assert!(!rig.is_slow(5_000));
    }

    #[test]
    fn nothing_is_known_of_the_processors() {
        let mut way = Way::new(None);
        for at in 0..1_000 {
            way.note(at * 10_000, (at + 1) * 10_000, 1 << 20);
            assert!(!way.is_through());
        }
    }
}
