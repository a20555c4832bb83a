//! What the door counts, for metrics: a relaxed addition or two for each request, on its I/O thread.

use std::sync::atomic::{AtomicU64, Ordering};

use kafka_protocol::messages::ApiKey;
use kera_broker::{HistogramCounts, LatencyHistogram};

use crate::apis::APIS;
use crate::door::Door;

/// Requests have keys below this.
const KEYS: usize = 128;

/// The counters.
pub(crate) struct Counts {
    requests: [AtomicU64; KEYS],
    pub(crate) produce: LatencyHistogram,
    pub(crate) fetch: LatencyHistogram,
    batches_refused: AtomicU64,
    fetch_errors: AtomicU64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
            produce: LatencyHistogram::default(),
            fetch: LatencyHistogram::default(),
            batches_refused: AtomicU64::new(0),
            fetch_errors: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// A request was taken off a connection, and is answered or will be.
    #[inline]
    pub(crate) fn request(&self, key: ApiKey) {
        if let Some(count) = self.requests.get(key as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn batch_refused(&self) {
        self.batches_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fetch_errors(&self, partitions: u64) {
        self.fetch_errors.fetch_add(partitions, Ordering::Relaxed);
    }
}

/// What the door has counted since the start, and what it holds.
#[derive(Clone, Debug, Default)]
pub struct DoorStats {
    /// Requests of each kind that is served, by Kafka's name of it.
    pub requests: Vec<(String, u64)>,
    /// How long produce requests took that were answered, from the first look at them to the answer.
    pub produce: HistogramCounts,
    /// The same of fetches; the time that they waited for data is in it.
    pub fetch: HistogramCounts,
    /// Batches refused, whatever the reason.
    pub batches_refused: u64,
    /// Partitions in answers to fetches that have an error.
    pub fetch_errors: u64,
    /// Consumer groups.
    pub groups: u64,
    /// Fetch sessions.
    pub fetch_sessions: u64,
    /// Partitions in them.
    pub fetch_session_partitions: u64,
}

impl Door {
    /// Reads the counters. Takes the locks of groups and of fetch sessions for a moment.
    pub fn stats(&self) -> DoorStats {
        let counts = &self.counts;
        let of = |key: ApiKey| counts.requests.get(key as usize).map_or(0, |count| count.load(Ordering::Relaxed));
        let (fetch_sessions, partitions) = self.fetch_sessions.counts();
        DoorStats {
            requests: APIS.iter().map(|api| (format!("{:?}", api.key), of(api.key))).collect(),
            produce: counts.produce.read(),
            fetch: counts.fetch.read(),
            batches_refused: counts.batches_refused.load(Ordering::Relaxed),
            fetch_errors: counts.fetch_errors.load(Ordering::Relaxed),
            groups: self.groups.count() as u64,
            fetch_sessions: fetch_sessions as u64,
            fetch_session_partitions: partitions as u64,
        }
    }
}
