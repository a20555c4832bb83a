//! What is known of transactions in the partitions of a node, each under a lock of its own.

use std::collections::HashMap;
use std::sync::Arc;

use kera_format::StreamId;
use kera_format::kafka_transactions::AbortedRange;
use parking_lot::{Mutex, RwLock};

use crate::transactions::PartitionTransactions;

/// A partition's transactions, under its lock.
pub(crate) type SharedPartition = Arc<Mutex<PartitionTransactions>>;

/// The partitions that transactions have written to. One stays until its stream is gone: who finds none knows that nobody has
/// begun a transaction there before.
#[derive(Default)]
pub(crate) struct Partitions(RwLock<HashMap<(StreamId, u32), SharedPartition>>);

impl Partitions {
    /// A partition's transactions, if there ever were any.
    pub(crate) fn get(&self, stream: StreamId, partition: i32) -> Option<SharedPartition> {
        let partition = u32::try_from(partition).ok()?;
        self.0.read().get(&(stream, partition)).cloned()
    }

    /// Up to where every transaction of a partition has ended; `durable` is the partition's end, looked at before. `None`: that is not
    /// known yet.
    pub(crate) fn stable(&self, stream: StreamId, partition: i32, durable: u64) -> Option<u64> {
        let Some(of) = self.get(stream, partition) else { return Some(durable) };
        let mut of = of.lock();
        (!of.is_loading()).then(|| of.stable(durable))
    }

    /// The same; there are some now.
    pub(crate) fn get_or_make(&self, stream: StreamId, partition: u32) -> SharedPartition {
        if let Some(known) = self.0.read().get(&(stream, partition)) {
            return Arc::clone(known);
        }
        let mut all = self.0.write();
        let made = || Arc::new(Mutex::new(PartitionTransactions::new(stream, partition)));
        Arc::clone(all.entry((stream, partition)).or_insert_with(made))
    }

    pub(crate) fn all(&self) -> Vec<((StreamId, u32), SharedPartition)> {
        self.0.read().iter().map(|(of, partition)| (*of, Arc::clone(partition))).collect()
    }

    /// Forgets a partition, whose stream is gone.
    pub(crate) fn remove(&self, of: (StreamId, u32)) {
        self.0.write().remove(&of);
    }

    /// Takes what aborted transactions have left: of each partition in one go.
    pub(crate) fn restore(&self, ranges: impl IntoIterator<Item = AbortedRange>) {
        let mut of_partitions: HashMap<(StreamId, u32), Vec<AbortedRange>> = HashMap::new();
        for range in ranges {
            of_partitions.entry((range.stream, range.partition)).or_default().push(range);
        }
        for ((stream, partition), ranges) in of_partitions {
            self.get_or_make(stream, partition).lock().restore(ranges);
        }
    }
}
