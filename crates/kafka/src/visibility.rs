//! What native readers are told of the transactions of a partition: the same as a Kafka reader of committed records.

use std::sync::Arc;

use kera_log::{Lane, Visibility};

use crate::transaction_partitions::SharedPartition;

/// A partition's transactions, as its lane's readers see through them.
#[derive(Debug)]
struct Committed(SharedPartition);

impl Visibility for Committed {
    fn end(&self, durable: u64) -> u64 {
        self.0.lock().stable(durable)
    }

    fn is_known(&self) -> bool {
        !self.0.lock().is_loading()
    }

    fn hidden(&self, from: u64, to: u64) -> Vec<(i64, u64)> {
        self.0.lock().aborted(from, to)
    }
}

/// Readers of the lane see what is committed. Before the first record of a transaction is appended to it.
pub(crate) fn only_committed(lane: &Lane, partition: &SharedPartition) {
    lane.set_visibility(|| Arc::new(Committed(Arc::clone(partition))));
}
