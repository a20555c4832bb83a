//! Counting while a load runs: which records are within the measured stretch, and when it began and ended.
//!
//! Every producer and consumer thread adds what it did, once for each chunk or batch; the thread that runs the load
//! looks on. The stretch begins when the warm-up is over (a number of records, or a time) and ends with the last
//! record, or when the time is up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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
    /// When the stretch began; zero: it has not.
    began_ns: AtomicU64,
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
    /// The warm-up is over after this many records; `None`: when [`begin`](Meter::begin) is called.
    pub(super) fn new(warmup_records: Option<u64>) -> Meter {
        let meter = Meter::default();
        meter.warmup_records.store(warmup_records.unwrap_or(u64::MAX), Relaxed);
        meter
    }

    /// Nothing was done yet, and the clock starts with what comes: called when everybody is ready.
    pub(super) fn ready(&self) {
        if self.warmup_records.load(Relaxed) == 0 {
            self.begin();
        }
    }

    /// Starts the stretch now.
    pub(super) fn begin(&self) {
        self.before.store(self.records.load(Relaxed), Relaxed);
        self.began_ns.store(now_ns(), Relaxed);
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
            self.before.store(after, Relaxed);
            self.began_ns.store(now_ns, Relaxed);
        }
        after
    }

    /// Whether what happens now is within the stretch.
    pub(super) fn measures(&self) -> bool {
        self.began_ns.load(Relaxed) != 0 && !self.over.load(Relaxed)
    }

    /// Hands the histogram out if what happens now is within the stretch.
    pub(super) fn latencies(&self) -> Option<parking_lot::MutexGuard<'_, Latencies>> {
        self.measures().then(|| self.latencies.lock())
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
        let began = self.began_ns.load(Relaxed);
        if began == 0 {
            return (0, 0.0);
        }
        let (records, ended) = self.ended.lock().unwrap_or((self.records.load(Relaxed), self.last_ns.load(Relaxed)));
        let records = records.saturating_sub(self.before.load(Relaxed));
        (records, ended.saturating_sub(began) as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stretch_begins_after_the_records_of_the_warm_up() {
        let meter = Meter::new(Some(10));
        meter.ready();
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
        let meter = Meter::new(Some(0));
        meter.ready();
        meter.add(5, now_ns());
        assert_eq!(meter.stretch().0, 5);
    }

    #[test]
    fn a_stretch_by_time_ends_when_told() {
        let meter = Meter::new(None);
        meter.ready();
        meter.add(5, now_ns());
        assert_eq!(meter.stretch(), (0, 0.0));
        meter.begin();
        meter.add(7, now_ns());
        meter.end();
        meter.add(9, now_ns());
        assert_eq!(meter.stretch().0, 7);
        assert!(!meter.measures());
        meter.fail(2, || "first".into());
        meter.fail(1, || "second".into());
        assert_eq!((meter.errors(), meter.first_error().as_deref()), (3, Some("first")));
    }
}
