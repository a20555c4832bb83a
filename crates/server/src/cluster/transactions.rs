//! What other nodes ask the Kafka door of this one about transactions, and the way there: see `crates/kafka/src/node_requests.rs`.

use std::sync::{Arc, OnceLock, Weak};

use kera_kafka::Door;
use kera_protocol::{ErrorBody, Op, Status};

/// The cluster's [level](kera_format::level) from which on its nodes coordinate transactions together.
pub(super) const LEVEL: u32 = 2;

/// The node's door, as its sessions find it: there once it listens.
#[derive(Default)]
pub(super) struct KafkaRole(OnceLock<Weak<Door>>);

impl KafkaRole {
    pub(super) fn set(&self, door: &Arc<Door>) {
        let _ = self.0.set(Arc::downgrade(door));
    }

    /// Whether it is the door that answers this.
    pub(super) fn serves(op: Op) -> bool {
        matches!(op, Op::TransactionsIn | Op::ClaimPartition | Op::ClaimGroup | Op::EndInPartitions | Op::EndInGroup)
    }

    /// Answers another node.
    pub(super) async fn answer(&self, op: Op, version: u8, body: Vec<u8>) -> Result<Vec<u8>, (Status, ErrorBody)> {
        let later = |reason: String| (Status::NotReady, ErrorBody::new(reason));
        let door = self.0.get().and_then(Weak::upgrade);
        let door = door.ok_or_else(|| later("the node does not serve Kafka clients now".into()))?;
        let (sender, answer) = tokio::sync::oneshot::channel();
        door.answer(op, version, body, Box::new(move |answer| drop(sender.send(answer))));
        drop(door);
        answer.await.unwrap_or_else(|_| Err("the node is stopping".into())).map_err(later)
    }
}
