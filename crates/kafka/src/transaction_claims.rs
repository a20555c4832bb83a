//! Claims of partitions at the coordinator of a transaction: what their owners ask before a producer's first batch there
//! (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).
//!
//! A transaction's record names all of its partitions. With one for each claim a transaction of ten thousand partitions would write ten thousand of them, half of that
//! long on average. So all that has come for the node's thread by then is recorded together.

use std::collections::BTreeMap;

use kafka_protocol::ResponseError;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::Touched;
use kera_protocol::{ClaimPartition, PartitionClaimed};

use crate::node_requests::{Awaited, Replying, Served};
use crate::transaction_door::TransactionDoor;
use crate::transactions::Claim;

/// A claim that has come.
pub(crate) struct Claiming {
    pub(crate) asked: ClaimPartition,
    pub(crate) replying: Replying,
    /// It may wait for the end of the producer's transaction before.
    pub(crate) waits: bool,
}

/// A claim whose answer waits for the end of the producer's transaction before.
pub(crate) struct WaitingClaim {
    pub(crate) since_ms: u64,
    asked: ClaimPartition,
    replying: Replying,
}

impl TransactionDoor {
    /// Claims of partitions' owners, in the order in which they have come.
    pub(crate) fn claim_all(&self, awaited: &mut Awaited, claims: Vec<Claiming>) {
        let mut of_ids: BTreeMap<String, Vec<Claiming>> = BTreeMap::new();
        for claiming in claims {
            of_ids.entry(claiming.asked.id.clone()).or_default().push(claiming);
        }
        for (id, claims) in of_ids {
            self.claim(awaited, &id, claims);
        }
    }

    fn claim(&self, awaited: &mut Awaited, id: &str, claims: Vec<Claiming>) {
        let part = self.parts.find(id);
        let wanted: Vec<Claim> = claims.iter().map(|claiming| wanted(&claiming.asked)).collect();
        let mut answers = Vec::with_capacity(claims.len());
        let mut state = part.state.lock();
        let claimed = state.all.claim(self.now(), id, &wanted);
        for (Claiming { asked, replying, waits }, claimed) in claims.into_iter().zip(claimed) {
            if waits && asked.adds && claimed == Err(ResponseError::ConcurrentTransactions) {
                // Under the part's lock: whoever ends the transaction looks at this behind it.
                let since_ms = self.now().mono_ms;
                self.claims.add(asked.id.clone(), WaitingClaim { since_ms, asked, replying });
            } else {
                answers.push((replying, claimed));
            }
        }
        drop(state);
        for (replying, claimed) in answers {
            let (error, from_offset, mark) = match claimed {
                Ok((mark, from_offset)) => (0, from_offset, mark),
                Err(code) => (code.code(), 0, None),
            };
            let answer = PartitionClaimed { error: error.cast_unsigned(), from_offset, part_epoch: part.epoch };
            replying.give(awaited, Served::Now(answer, part.after(mark).into_iter().collect()));
        }
    }

    /// Looks at claims again that have waited for the end of a transaction.
    pub(crate) fn claim_again(&self, again: Vec<WaitingClaim>, waits: bool) {
        for WaitingClaim { asked, replying, .. } in again {
            self.requests.run(Box::new(move |_, awaited| awaited.claim(Claiming { asked, replying, waits })));
        }
    }
}

fn wanted(asked: &ClaimPartition) -> Claim {
    Claim {
        producer: (asked.producer_id.0.cast_signed(), asked.producer_epoch.0.cast_signed()),
        of: OffsetKey { topic: asked.topic.clone(), partition: asked.partition.cast_signed() },
        touched: Touched { stream: asked.stream, from_offset: asked.from_offset },
        adds: asked.adds,
    }
}
