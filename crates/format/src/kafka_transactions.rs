//! The records that keep the transactions of Kafka producers, in the system stream `_kera.transactions`.
//!
//! Ordinary KerA records in ordinary chunks. The primary key says in text what is told about; the last record of a key counts:
//!
//! ```text
//! transaction/ID                                a transactional id, which may hold any character; without a value: forgotten
//! aborted/STREAM/PARTITION/PRODUCER/FIRST       records of an aborted transaction in a partition, from offset FIRST on
//! ```
//! `STREAM`, `PARTITION`, `PRODUCER` and `FIRST` are decimal. Values:
//!
//! ```text
//! transaction
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
//!     52      …  for each partition: topic's length (2), topic, partition (4), stream (8), from_offset (8); then for each
//!                group: length (2), name
//!
//! aborted
//!      0      1  version               1
//!      1      1  zero
//!      2      2  epoch                 of the marker
//!      4      4  zero
//!      8      8  marker_offset         of the marker that ends it
//!     16      8  stable_offset         up to where no transaction ran when it was written
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::kafka_groups::{GROUP_NAME_BYTES_MAX, OffsetKey};
use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{ChunkBuilder, FormatError, Record, RecordView, StreamId, limits};

/// The version of the layouts of values.
pub const KAFKA_TRANSACTIONS_VERSION: u8 = 1;
/// The most bytes that a transactional id may have.
pub const TRANSACTIONAL_ID_BYTES_MAX: usize = 1_024;
/// The most partitions of one transaction.
pub const PARTITIONS_MAX: usize = 10_000;
/// The most groups of one transaction.
pub const GROUPS_MAX: usize = 1_000;
/// Bytes of a value before its lists.
const HEAD_BYTES: usize = 52;
/// Bytes of the value of an aborted range.
const ABORTED_BYTES: usize = 24;

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
    pub partitions: BTreeMap<OffsetKey, Touched>,
    /// The groups that it commits offsets for.
    pub groups: BTreeSet<String>,
}

/// Where a transaction writes to a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched {
    /// The stream behind the topic's name: another topic of the same name has another.
    pub stream: StreamId,
    /// The transaction has written nothing before this offset, and its producer's earlier transactions nothing from it on.
    pub from_offset: u64,
}

/// Records of an aborted transaction in one partition: those of the producer's transactional batches between two offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortedRange {
    /// The stream.
    pub stream: StreamId,
    /// The partition.
    pub partition: u32,
    /// The producer.
    pub producer_id: i64,
    /// The transaction has written nothing before this offset; it names the range among those of the producer.
    pub first_offset: u64,
    /// The offset of the marker that ends it.
    pub marker_offset: u64,
    /// Transactions that ended later have written nothing before this offset.
    pub stable_offset: u64,
    /// The epoch of the marker.
    pub epoch: i16,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A transactional id, and what is known of it; `None`: it is forgotten.
    Transaction(String, Option<Transaction>),
    /// Records that an aborted transaction has left.
    Aborted(AbortedRange),
}

impl Entry {
    /// Appends the record of this entry to a chunk. The caller has checked the limits.
    pub fn encode(&self, into: &mut ChunkBuilder) {
        let (key, value) = match self {
            Entry::Transaction(id, transaction) => {
                (format!("transaction/{id}"), transaction.as_ref().map(Transaction::to_bytes))
            }
            Entry::Aborted(range) => {
                let AbortedRange { stream, partition, producer_id, first_offset, .. } = range;
                let key = format!("aborted/{}/{partition}/{producer_id}/{first_offset}", stream.0);
                (key, Some(range.to_bytes()))
            }
        };
        into.push(&Record { keys: &[key.as_bytes()], value: value.as_deref(), ..Record::default() });
    }

    /// What a record tells.
    pub fn decode(record: &RecordView<'_>) -> Result<Entry, FormatError> {
        let bytes = record.key().unwrap_or_default();
        let key = std::str::from_utf8(bytes).unwrap_or_default();
        let unknown = || bad("transactions.key", bytes.len() as u64, "transaction/… or aborted/…");
        if let Some(id) = key.strip_prefix("transaction/") {
            at_most("transactions.key", id.len(), TRANSACTIONAL_ID_BYTES_MAX)?;
            return Ok(Entry::Transaction(id.to_owned(), record.value().map(Transaction::parse).transpose()?));
        }
        let name = key.strip_prefix("aborted/").ok_or_else(unknown)?;
        AbortedRange::parse(name, record.value().unwrap_or_default()).map(Entry::Aborted)
    }
}

impl AbortedRange {
    /// The value of its record.
    fn to_bytes(self) -> Vec<u8> {
        let mut value = vec![0; ABORTED_BYTES];
        value[0] = KAFKA_TRANSACTIONS_VERSION;
        put(&mut value, 2, &self.epoch.to_le_bytes());
        put(&mut value, 8, &self.marker_offset.to_le_bytes());
        put(&mut value, 16, &self.stable_offset.to_le_bytes());
        value
    }

    /// Reads what its record's key says behind `aborted/`, and its value.
    fn parse(name: &str, value: &[u8]) -> Result<AbortedRange, FormatError> {
        const ALLOWED: &str = "aborted/STREAM/PARTITION/PRODUCER/FIRST";
        let wrong = || bad("aborted.key", name.len() as u64, ALLOWED);
        let mut parts = name.split('/');
        let mut next = || parts.next().ok_or_else(wrong);
        let stream = next()?.parse().map_err(|_| wrong())?;
        let partition = next()?.parse().map_err(|_| wrong())?;
        let producer_id = next()?.parse().map_err(|_| wrong())?;
        let first_offset = next()?.parse().map_err(|_| wrong())?;
        if parts.next().is_some() {
            return Err(wrong());
        }
        FormatError::need("aborted range", ABORTED_BYTES, value.len())?;
        if value.len() > ABORTED_BYTES {
            return Err(bad("aborted range (bytes behind it)", (value.len() - ABORTED_BYTES) as u64, "0"));
        }
        if value[0] != KAFKA_TRANSACTIONS_VERSION {
            return Err(bad("aborted.version", value[0].into(), "1"));
        }
        let zero = u64::from(value[1]) | u64::from(u32_at(value, 4));
        if zero != 0 {
            return Err(bad("aborted.zero", zero, "0"));
        }
        let (marker_offset, epoch) = (u64_at(value, 8), u16_at(value, 2) as i16);
        if marker_offset < first_offset {
            return Err(bad("aborted.marker_offset", marker_offset, "not before FIRST"));
        }
        let stable_offset = u64_at(value, 16);
        let stream = StreamId(stream);
        Ok(AbortedRange { stream, partition, producer_id, first_offset, marker_offset, stable_offset, epoch })
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
        for (of, touched) in &self.partitions {
            push(&mut value, &of.topic);
            value.extend_from_slice(&of.partition.to_le_bytes());
            value.extend_from_slice(&touched.stream.0.to_le_bytes());
            value.extend_from_slice(&touched.from_offset.to_le_bytes());
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
            partitions: BTreeMap::new(),
            groups: BTreeSet::new(),
        };
        for _ in 0..partitions {
            let topic = take_name(&mut rest)?;
            if !limits::name_is_valid(topic) {
                return Err(bad("transaction.topic", topic.len() as u64, "a name of a stream"));
            }
            let partition = i32::from_le_bytes(*take::<4>(&mut rest)?);
            let stream = StreamId(u64::from_le_bytes(*take::<8>(&mut rest)?));
            let touched = Touched { stream, from_offset: u64::from_le_bytes(*take::<8>(&mut rest)?) };
            transaction.partitions.insert(OffsetKey { topic: topic.to_owned(), partition }, touched);
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
        let touched =
            any::<(u64, u64)>().prop_map(|(stream, from_offset)| Touched { stream: StreamId(stream), from_offset });
        let partitions = proptest::collection::btree_map(key, touched, 0..6);
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

    fn entries() -> impl Strategy<Value = Entry> {
        let transaction = ("(.|/){0,60}", proptest::option::of(transactions()))
            .prop_map(|(id, transaction)| Entry::Transaction(id, transaction));
        let offsets = (any::<u64>(), any::<u64>(), any::<u64>());
        let aborted = (any::<(u64, u32, i64, i16)>(), offsets).prop_map(|(ids, (first, marker, stable))| {
            Entry::Aborted(AbortedRange {
                stream: StreamId(ids.0),
                partition: ids.1,
                producer_id: ids.2,
                first_offset: first.min(marker),
                marker_offset: first.max(marker),
                stable_offset: stable,
                epoch: ids.3,
            })
        });
        prop_oneof![transaction, aborted]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entry in entries()) {
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
            let _ = AbortedRange::parse("1/2/3/4", &bytes[..end.index(bytes.len())]);
        }
    }
}
