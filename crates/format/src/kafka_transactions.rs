//! The records that keep the transactions of Kafka producers, in the system stream `_kera.transactions`.
//!
//! Ordinary KerA records in ordinary chunks. The primary key is `transaction/ID`, where `ID` is the transactional id and
//! may hold any character. The last record of a key counts; one without a value says that the id is forgotten. The value:
//!
//! ```text
//! offset  bytes  field
//!      0      1  version               1
//!      1      1  state                 0 empty, 1 ongoing, 2 committing, 3 aborting, 4 committed, 5 aborted
//!      2      2  epoch                 of the producer
//!      4      4  timeout_ms
//!      8      8  producer_id
//!     16      8  previous_producer_id  -1: none
//!     24      8  started_ms            since 1970; of the transaction that runs, or -1
//!     32      8  changed_ms            since 1970
//!     40      2  last_epoch            the one before, for retries; -1: none
//!     42      2  zero
//!     44      4  partitions
//!     48      4  groups
//!     52      …  for each partition: topic's length (2), topic, partition (4); then for each group: length (2), name
//! ```

use std::collections::BTreeSet;

use crate::kafka_groups::{GROUP_NAME_BYTES_MAX, OffsetKey};
use crate::wire::{i64_at, put, u16_at, u32_at};
use crate::{ChunkBuilder, FormatError, Record, RecordView, limits};

/// The version of the value's layout.
pub const KAFKA_TRANSACTIONS_VERSION: u8 = 1;
/// The most bytes that a transactional id may have.
pub const TRANSACTIONAL_ID_BYTES_MAX: usize = 1_024;
/// The most partitions of one transaction.
pub const PARTITIONS_MAX: usize = 10_000;
/// The most groups of one transaction.
pub const GROUPS_MAX: usize = 1_000;
/// Bytes of a value before its lists.
const HEAD_BYTES: usize = 52;

/// How far a producer's transaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransactionState {
    /// There has been none of this producer's epoch.
    #[default]
    Empty,
    /// It runs.
    Ongoing,
    /// It will be committed: markers are being written.
    Committing,
    /// It will be aborted: markers are being written.
    Aborting,
    /// It is committed.
    Committed,
    /// It is aborted.
    Aborted,
}

/// What is kept of a transactional id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// How far it is.
    pub state: TransactionState,
    /// The producer that has the id.
    pub producer_id: i64,
    /// Its epoch; earlier ones are fenced.
    pub epoch: i16,
    /// The epoch before, which a retry may name; -1: none.
    pub last_epoch: i16,
    /// The producer before this one ran out of epochs; -1: none.
    pub previous_producer_id: i64,
    /// How long it may run, milliseconds.
    pub timeout_ms: i32,
    /// When it began, milliseconds since 1970; -1: none runs.
    pub started_ms: i64,
    /// When it changed to this, milliseconds since 1970.
    pub changed_ms: i64,
    /// What it has written to.
    pub partitions: BTreeSet<OffsetKey>,
    /// The groups that it commits offsets for.
    pub groups: BTreeSet<String>,
}

/// One record: an id, and what is known of it; `None`: it is forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The transactional id.
    pub id: String,
    /// What is known of it.
    pub transaction: Option<Transaction>,
}

impl Entry {
    /// Appends the record of this entry to a chunk. The caller has checked the limits.
    pub fn encode(&self, into: &mut ChunkBuilder) {
        let key = format!("transaction/{}", self.id);
        let value = self.transaction.as_ref().map(Transaction::to_bytes);
        into.push(&Record { keys: &[key.as_bytes()], value: value.as_deref(), ..Record::default() });
    }

    /// What a record tells.
    pub fn decode(record: &RecordView<'_>) -> Result<Entry, FormatError> {
        let bytes = record.key().unwrap_or_default();
        let key = std::str::from_utf8(bytes).ok().and_then(|key| key.strip_prefix("transaction/"));
        let id = key.ok_or_else(|| bad("transactions.key", bytes.len() as u64, "transaction/…"))?;
        at_most("transactions.key", id.len(), TRANSACTIONAL_ID_BYTES_MAX)?;
        Ok(Entry { id: id.to_owned(), transaction: record.value().map(Transaction::parse).transpose()? })
    }
}

fn bad(field: &'static str, value: u64, allowed: &'static str) -> FormatError {
    FormatError::BadField { field, value, allowed }
}

fn at_most(field: &'static str, value: usize, limit: usize) -> Result<(), FormatError> {
    if value > limit { Err(FormatError::OverLimit { field, value: value as u64, limit: limit as u64 }) } else { Ok(()) }
}

impl Transaction {
    /// The value of its record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = vec![0; HEAD_BYTES];
        value[0] = KAFKA_TRANSACTIONS_VERSION;
        value[1] = match self.state {
            TransactionState::Empty => 0,
            TransactionState::Ongoing => 1,
            TransactionState::Committing => 2,
            TransactionState::Aborting => 3,
            TransactionState::Committed => 4,
            TransactionState::Aborted => 5,
        };
        put(&mut value, 2, &self.epoch.to_le_bytes());
        put(&mut value, 4, &self.timeout_ms.to_le_bytes());
        put(&mut value, 8, &self.producer_id.to_le_bytes());
        put(&mut value, 16, &self.previous_producer_id.to_le_bytes());
        put(&mut value, 24, &self.started_ms.to_le_bytes());
        put(&mut value, 32, &self.changed_ms.to_le_bytes());
        put(&mut value, 40, &self.last_epoch.to_le_bytes());
        put(&mut value, 44, &(self.partitions.len() as u32).to_le_bytes());
        put(&mut value, 48, &(self.groups.len() as u32).to_le_bytes());
        let push = |value: &mut Vec<u8>, name: &str| {
            value.extend_from_slice(&(name.len() as u16).to_le_bytes());
            value.extend_from_slice(name.as_bytes());
        };
        for of in &self.partitions {
            push(&mut value, &of.topic);
            value.extend_from_slice(&of.partition.to_le_bytes());
        }
        for group in &self.groups {
            push(&mut value, group);
        }
        value
    }

    /// Reads the value of its record.
    pub fn parse(value: &[u8]) -> Result<Transaction, FormatError> {
        FormatError::need("transaction", HEAD_BYTES, value.len())?;
        if value[0] != KAFKA_TRANSACTIONS_VERSION {
            return Err(bad("transaction.version", value[0].into(), "1"));
        }
        let state = match value[1] {
            0 => TransactionState::Empty,
            1 => TransactionState::Ongoing,
            2 => TransactionState::Committing,
            3 => TransactionState::Aborting,
            4 => TransactionState::Committed,
            5 => TransactionState::Aborted,
            other => return Err(bad("transaction.state", other.into(), "0 to 5")),
        };
        if u16_at(value, 42) != 0 {
            return Err(bad("transaction.zero", u16_at(value, 42).into(), "0"));
        }
        let (partitions, groups) = (u32_at(value, 44) as usize, u32_at(value, 48) as usize);
        at_most("transaction.partitions", partitions, PARTITIONS_MAX)?;
        at_most("transaction.groups", groups, GROUPS_MAX)?;
        let mut rest = &value[HEAD_BYTES..];
        let mut transaction = Transaction {
            state,
            producer_id: i64_at(value, 8),
            epoch: u16_at(value, 2) as i16,
            last_epoch: u16_at(value, 40) as i16,
            previous_producer_id: i64_at(value, 16),
            timeout_ms: u32_at(value, 4) as i32,
            started_ms: i64_at(value, 24),
            changed_ms: i64_at(value, 32),
            partitions: BTreeSet::new(),
            groups: BTreeSet::new(),
        };
        for _ in 0..partitions {
            let topic = take_name(&mut rest)?;
            if !limits::name_is_valid(topic) {
                return Err(bad("transaction.topic", topic.len() as u64, "a name of a stream"));
            }
            let partition = i32::from_le_bytes(*take::<4>(&mut rest)?);
            transaction.partitions.insert(OffsetKey { topic: topic.to_owned(), partition });
        }
        for _ in 0..groups {
            let group = take_name(&mut rest)?;
            at_most("transaction.group", group.len(), GROUP_NAME_BYTES_MAX)?;
            transaction.groups.insert(group.to_owned());
        }
        if !rest.is_empty() {
            return Err(bad("transaction (bytes behind its lists)", rest.len() as u64, "0"));
        }
        Ok(transaction)
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], FormatError> {
    let have = rest.len();
    let (taken, left) =
        rest.split_first_chunk().ok_or(FormatError::Truncated { what: "transaction", need: N, have })?;
    *rest = left;
    Ok(taken)
}

fn take_name<'a>(rest: &mut &'a [u8]) -> Result<&'a str, FormatError> {
    let length = usize::from(u16::from_le_bytes(*take::<2>(rest)?));
    FormatError::need("transaction", length, rest.len())?;
    let (name, left) = rest.split_at(length);
    *rest = left;
    std::str::from_utf8(name).map_err(|error| bad("transaction.name", error.valid_up_to() as u64, "UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkView, Records};
    use proptest::prelude::*;

    fn transactions() -> impl Strategy<Value = Transaction> {
        let state = (0..6usize).prop_map(|at| {
            use TransactionState::{Aborted, Aborting, Committed, Committing, Empty, Ongoing};
            [Empty, Ongoing, Committing, Aborting, Committed, Aborted][at]
        });
        let key = ("[a-z]{3,9}", any::<i32>()).prop_map(|(topic, partition)| OffsetKey { topic, partition });
        let partitions = proptest::collection::btree_set(key, 0..6);
        let groups = proptest::collection::btree_set("(.|/){0,9}", 0..4);
        let ids = (any::<i64>(), any::<i64>(), any::<i16>(), any::<i16>(), any::<i32>(), any::<i64>(), any::<i64>());
        (state, ids, partitions, groups).prop_map(|(state, ids, partitions, groups)| Transaction {
            state,
            producer_id: ids.0,
            previous_producer_id: ids.1,
            epoch: ids.2,
            last_epoch: ids.3,
            timeout_ms: ids.4,
            started_ms: ids.5,
            changed_ms: ids.6,
            partitions,
            groups,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(id in "(.|/){0,60}", transaction in proptest::option::of(transactions())) {
            let entry = Entry { id, transaction };
            let mut chunk = ChunkBuilder::default();
            entry.encode(&mut chunk);
            let sealed = chunk.seal(&Default::default(), Default::default()).expect("it fits");
            let view = ChunkView::parse(&sealed).expect("sealed");
            let record = Records::new(view.payload()).next().expect("one record").expect("well-formed");
            prop_assert_eq!(Entry::decode(&record), Ok(entry));
        }

        #[test]
        fn bytes_from_outside_never_panic(
            transaction in transactions(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            end in any::<prop::sample::Index>(),
        ) {
            let mut bytes = transaction.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = Transaction::parse(&bytes);
            prop_assert!(Transaction::parse(&transaction.to_bytes()[..end.index(bytes.len())]).is_err());
        }
    }
}
