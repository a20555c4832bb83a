//! The transaction coordinator of the Kafka door: which producer has a transactional id, and what its transaction has touched.
//!
//! Logic only, as the [groups](crate::groups): the door calls one method per request and gets what to answer, and after
//! which record; it takes out the transactions that are to be ended, writes their markers, and says when that is done.
//!
//! ```text
//!           add partitions, groups           end, or time is up          markers are written
//!   Empty ────────────────────────▶ Ongoing ───────────────────▶ Ending ─────────────────────▶ Ended
//!     ▲                                ▲                                                          │
//!     └── the producer begins anew ────┴──────────────── add partitions, groups ──────────────────┘
//! ```
//! That a transaction will commit is decided by one record: before it is durable no marker is written, and after it nothing
//! aborts the transaction, whatever dies. Markers may be written twice; then they say the same. The argument as a whole is
//! docs/decisions/0013-kafka-transactions.md.

mod coordinator;
mod partition;
mod producer;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{Entry, Touched};

use crate::groups::{AppendFailed, Mark};

pub(crate) use coordinator::is_at_rest;
pub use coordinator::{Claim, Transactions, Unfinished};
pub use partition::PartitionTransactions;
pub(crate) use producer::marked;

/// Where a transaction has written in a partition that it may write to and has not: in a cluster that is learnt from the
/// partition's owner with the first batch.
pub const NOT_WRITTEN: u64 = u64::MAX;

/// Where changes are kept.
pub trait TransactionJournal {
    /// Appends entries in this order, behind all earlier ones: after a crash all of them are there or none. Does not wait
    /// until they are durable.
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed>;
}

/// Where partitions are.
pub trait Places {
    /// What a transaction is to know of a partition that is added to it: its stream, and where it ends now. `None` if there
    /// is no such partition.
    fn place(&self, topic: &str, partition: i32) -> Option<Touched>;
}

/// Where ids of producers come from.
pub trait ProducerIds {
    /// An id that no producer has had, if there are any to be had now.
    fn next(&mut self) -> Option<i64>;
}

/// Something to answer. It may leave when the journal is durable up to `after`.
#[derive(Clone, PartialEq, Debug)]
pub struct Reply<T> {
    /// What must be durable.
    pub after: Option<Mark>,
    /// The answer.
    pub response: T,
}

/// A transaction whose outcome is decided. The door writes a marker to each partition and tells each group, then calls
/// [`Transactions::ended`]. It begins when the journal is durable up to `after`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ending {
    /// The transactional id.
    pub id: String,
    /// The producer whose transaction it is.
    pub producer_id: i64,
    /// The epoch of the markers.
    pub epoch: i16,
    /// Whether it commits.
    pub commit: bool,
    /// The transaction's number among those of its id, which grow.
    pub number: i64,
    /// Where markers go.
    pub partitions: BTreeMap<OffsetKey, Touched>,
    /// The groups whose pending offsets count now, or never do.
    pub groups: BTreeSet<String>,
    /// What must be durable.
    pub after: Option<Mark>,
}

/// Limits and delays. The names in the comments are those of Kafka's broker settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionConfig {
    /// How long a transaction may ask to run (`transaction.max.timeout.ms`).
    pub timeout_ms_max: i32,
    /// How long an id without a transaction is remembered (`transactional.id.expiration.ms`).
    pub expiration_ms: i64,
    /// Ids at most: for another one that is forgotten which has been at rest longest.
    pub ids_max: usize,
    /// Ranges of aborted records that are remembered at most, 64 bytes each: what is more must not begin.
    pub aborted_max: usize,
}

impl Default for TransactionConfig {
    fn default() -> TransactionConfig {
        TransactionConfig {
            timeout_ms_max: 900_000,
            expiration_ms: 7 * 24 * 3_600_000,
            ids_max: 100_000,
            aborted_max: 2 << 20,
        }
    }
}
