//! Counting while a load runs: which records are within the measured stretch, and when it began and ended.
//!
//! Every producer and consumer thread adds what it did, once for each chunk or batch; the thread that runs the load
//! looks on. The stretch begins when the warm-up is over (a number of records, or a time) and ends with the last
//! record, or when the time is up.
//!
//! Rates are of what was acknowledged, or received, within the stretch. So are latencies at full speed. At a rate a
//! latency is judged by when its record was *due*: all records that were due within the stretch count, also those that
//! are acknowledged behind its end. Judged by when they were acknowledged, a server that stands still from the midst of
//! the stretch until behind its end would have no latency at all to show for that: the longer it stood still, the better
//! it would look.

use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::now_ns;
use crate::latency::Latencies;

/// The counts of one side. Shared by its threads.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Records so far, warm-up included.
    records: AtomicU64,
    /// Records that do not count: those up to the start of the stretch.
    before: AtomicU64,
    /// When the stretch began; zero: it has not. Written behind `ends_ns`, so that who sees the one sees the other.
    began_ns: AtomicU64,
    /// How long the stretch is, if it goes by time.
    time: Option<Duration>,
    /// When it ends then, known as soon as it has begun; `u64::MAX` before that, and if it ends with the last record.
    ends_ns: AtomicU64,
    /// Whether latencies are judged by when their records were due.
    by_due: bool,
    /// When the last record was counted.
    last_ns: AtomicU64,
    /// Set when the time is up: the counts at that moment.
    ended: Mutex<Option<(u64, u64)>>,
    over: AtomicBool,
    /// Records of the warm-up; `u64::MAX`: the warm-up ends by [`Meter::begin`].
    warmup_records: AtomicU64,
    errors: AtomicU64,
    /// Records that nobody will get: retention removed them before they were read.
    removed: AtomicU64,
    latencies: Mutex<Latencies>,
    first_error: Mutex<Option<String>>,
}

impl Meter {
    /// The warm-up is over after this many records; `None`: when [`begin`](Meter::begin) is called. The stretch takes `time`; `None`:
    /// until the last record.
    pub(super) fn new(warmup_records: Option<u64>, time: Option<Duration>) -> Meter {
        let meter = Meter { time, ..Meter::default() };
        meter.warmup_records.store(warmup_records.unwrap_or(u64::MAX), Relaxed);
        meter.ends_ns.store(u64::MAX, Relaxed);
        meter
    }

    /// The same, with latencies judged by when their records were due.
    pub(super) fn judged_by_due(self, by_due: bool) -> Meter {
        Meter { by_due, ..self }
    }

    /// Nothing was done yet, and the clock starts with what comes: called when everybody is ready.
    pub(super) fn ready(&self, now_ns: u64) {
        if self.warmup_records.load(Relaxed) == 0 {
            self.begin(now_ns);
        }
    }

    /// Starts the stretch now.
    pub(super) fn begin(&self, now_ns: u64) {
        self.begin_behind(self.records.load(Relaxed), now_ns);
    }

    /// Starts the stretch behind so many records.
    fn begin_behind(&self, records: u64, now_ns: u64) {
        self.before.store(records, Relaxed);
        if let Some(time) = self.time {
            self.ends_ns.store(now_ns.saturating_add(time.as_nanos() as u64), Relaxed);
        }
        self.began_ns.store(now_ns, Release);
    }

    /// When the stretch ends, if it goes by time and has begun; otherwise `u64::MAX`.
    pub(super) fn ends_ns(&self) -> u64 {
        self.ends_ns.load(Relaxed)
    }

    /// Ends the stretch now, whatever still comes.
    pub(super) fn end(&self) {
        self.ended.lock().get_or_insert_with(|| (self.records.load(Relaxed), now_ns()));
        self.over.store(true, Relaxed);
    }

    /// Counts records, of which one chunk or batch consisted. Gives how many there are in all.
    pub(super) fn add(&self, records: u64, now_ns: u64) -> u64 {
        let before = self.records.fetch_add(records, Relaxed);
        let after = before + records;
        self.last_ns.fetch_max(now_ns, Relaxed);
        let warmup = self.warmup_records.load(Relaxed);
        if before < warmup && after >= warmup && self.began_ns.load(Relaxed) == 0 {
            self.begin_behind(after, now_ns);
        }
        after
    }

    fn has_begun(&self) -> bool {
        self.began_ns.load(Acquire) != 0
    }

    /// Whether what happens now is within the stretch.
    pub(super) fn measures(&self) -> bool {
        self.has_begun() && !self.over.load(Relaxed)
    }

    /// Hands the histogram out if something that ends now may be within the stretch.
    pub(super) fn latencies(&self) -> Option<Within<'_>> {
        let may_count = if self.by_due { self.has_begun() } else { self.measures() };
        may_count.then(|| Within { begins_ns: self.begins_ns(), latencies: self.latencies.lock() })
    }

    /// When something has to begin so that its latency counts.
    fn begins_ns(&self) -> Range<u64> {
        if !self.by_due {
            return 0..u64::MAX;
        }
        // A warm-up that goes by records is over when these are acknowledged, and what is acknowledged from then on counts, however
        // long ago it was due: of a server that stands still at that moment nothing is left out.
        let by_records = self.warmup_records.load(Relaxed) != u64::MAX;
        (if by_records { 0 } else { self.began_ns.load(Relaxed) })..self.ends_ns()
    }

    /// Counts records that were given up, or a failure.
    pub(super) fn fail(&self, count: u64, why: impl FnOnce() -> String) {
        self.errors.fetch_add(count, Relaxed);
        self.first_error.lock().get_or_insert_with(why);
    }

    /// Counts records that nobody will get.
    pub(super) fn pass_over(&self, removed: u64) {
        self.removed.fetch_add(removed, Relaxed);
    }

    /// Records that retention removed before they were read.
    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Relaxed)
    }

    /// How far a consumer has come, warm-up included: what it got, and what it will never get.
    pub(super) fn settled(&self) -> u64 {
        self.records() + self.removed()
    }

    /// Records so far, warm-up included.
    pub(super) fn records(&self) -> u64 {
        self.records.load(Relaxed)
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) fn first_error(&self) -> Option<String> {
        self.first_error.lock().clone()
    }

    pub(super) fn summary(&self) -> crate::LatencySummary {
        self.latencies.lock().summary()
    }

    /// Records within the stretch and its seconds. If it never began, nothing.
    pub(super) fn stretch(&self) -> (u64, f64) {
        if !self.has_begun() {
            return (0, 0.0);
        }
        let began = self.began_ns.load(Relaxed);
        let (records, ended) = self.ended.lock().unwrap_or((self.records.load(Relaxed), self.last_ns.load(Relaxed)));
        let records = records.saturating_sub(self.before.load(Relaxed));
        (records, ended.saturating_sub(began) as f64 / 1e9)
    }
}

/// The histogram, and which latencies go into it.
pub(super) struct Within<'a> {
    begins_ns: Range<u64>,
    latencies: parking_lot::MutexGuard<'a, Latencies>,
}

impl Within<'_> {
    /// Counts a latency from the one time to the other, if it is within the stretch.
    #[inline]
    pub(super) fn record(&mut self, from_ns: u64, to_ns: u64) {
        if self.begins_ns.contains(&from_ns) {
            self.latencies.record_ns(to_ns.saturating_sub(from_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stretch_begins_after_the_records_of_the_warm_up() {
        let meter = Meter::new(Some(10), None);
        meter.ready(500);
        meter.add(6, 1_000);
        assert!(!meter.measures() && meter.latencies().is_none());
        meter.add(6, 2_000);
        assert!(meter.measures());
        meter.add(100, 1_000_002_000);
        assert_eq!(meter.stretch(), (100, 1.0));
        assert_eq!(meter.records(), 112);
    }

    #[test]
    fn without_a_warm_up_everything_counts() {
        let meter = Meter::new(Some(0), None);
        meter.ready(500);
        meter.add(5, 1_000);
        assert_eq!(meter.stretch().0, 5);
    }

    #[test]
    fn a_stretch_by_time_ends_when_told() {
        let meter = Meter::new(None, Some(Duration::from_secs(3600)));
        meter.ready(now_ns());
        meter.add(5, now_ns());
        assert_eq!(meter.stretch(), (0, 0.0));
        meter.begin(now_ns());
        meter.add(7, now_ns());
        meter.end();
        meter.add(9, now_ns());
        assert_eq!(meter.stretch().0, 7);
        assert!(!meter.measures());
        meter.fail(2, || "first".into());
        meter.fail(1, || "second".into());
        assert_eq!((meter.errors(), meter.first_error().as_deref()), (3, Some("first")));
    }

    fn recorded(meter: &Meter, from_ns: u64, to_ns: u64) -> u64 {
        let before = meter.summary().samples;
        if let Some(mut within) = meter.latencies() {
            within.record(from_ns, to_ns);
        }
        meter.summary().samples - before
    }

    /// A stall that lasts beyond the end of the stretch shows in all that was due meanwhile.
    #[test]
    fn at_a_rate_it_counts_when_a_record_was_due_and_not_when_it_was_acknowledged() {
        const SECOND: u64 = 1_000_000_000;
        let meter = Meter::new(None, Some(Duration::from_secs(10))).judged_by_due(true);
        assert_eq!((meter.ends_ns(), recorded(&meter, 1, 2)), (u64::MAX, 0), "it has not begun");
        meter.begin(100 * SECOND);
        assert_eq!(meter.ends_ns(), 110 * SECOND);
        assert_eq!(recorded(&meter, 100 * SECOND - 1, 101 * SECOND), 0, "due in the warm-up");
        assert_eq!(recorded(&meter, 100 * SECOND, 101 * SECOND), 1);
        meter.end();
        assert_eq!(recorded(&meter, 104 * SECOND, 130 * SECOND), 1, "acknowledged long behind the end");
        assert_eq!(recorded(&meter, 110 * SECOND, 130 * SECOND), 0, "due behind the end");
        let max_s = meter.summary().max / 1e6;
        assert!((26.0..26.1).contains(&max_s), "{max_s}");
    }

    #[test]
    fn behind_a_warm_up_of_records_all_that_is_acknowledged_counts() {
        let meter = Meter::new(Some(10), None).judged_by_due(true);
        meter.add(9, 1_000);
        assert_eq!(recorded(&meter, 1, 1_000), 0);
        meter.add(1, 2_000);
        assert_eq!(recorded(&meter, 1, 3_000), 1, "due before the warm-up was over, and waited for since");
    }
}
