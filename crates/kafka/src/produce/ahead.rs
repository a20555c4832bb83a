//! What the batches of a request will need of the coordinator of their transaction, asked for when the first of them waits for it.
//!
//! One after the other they would take as many round trips, or waits for a disk, as there are partitions, and have the coordinator record the whole transaction for each. Whether
//! they may be written is looked at in their turn all the same.

use std::sync::Arc;

use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::Touched;

use super::Appending;
use crate::transaction_owner::{self, Wish};
use crate::transactions::Claim;
use crate::visibility::only_committed;

/// Batches of one request for which that is done at a time. In a cluster each has the request looked through when it is answered.
const ASKED_AHEAD_MAX: usize = if cfg!(test) { 2 } else { 256 };
/// The same in a cluster before one of them was let into the transaction. Until then all of them may wait at the coordinator for the end of the one before, and a node reads no
/// further from another one of which a thousand requests wait: what would end that transaction comes behind them.
const ASKED_FIRST_MAX: usize = if cfg!(test) { 1 } else { 16 };

impl Appending<'_> {
    /// The batch at a place has to wait. Whether those behind it are asked for meanwhile.
    pub(super) fn goes_ahead(&mut self, place: usize) -> bool {
        self.is_ahead = std::mem::take(&mut self.is_asking) && place >= self.partial.asked_to;
        if self.is_ahead {
            let runs = self.partial.is_let_in || self.core.door.transactions.is_alone();
            self.partial.asked_to = place + 1 + if runs { ASKED_AHEAD_MAX } else { ASKED_FIRST_MAX };
        }
        self.is_ahead
    }

    /// Asks for a batch whose turn has not come. False if that was done for enough of them.
    pub(super) fn ask_ahead(&mut self, place: usize, partition: i32, records: Option<&[u8]>) -> bool {
        if place >= self.partial.asked_to || !self.core.door.broker.is_confirmed() {
            return false;
        }
        let topic = self.topic.clone();
        let lane = topic.as_ref().and_then(|topic| Some((topic, topic.lane(partition)?)));
        let (Some((topic, lane)), Some(id)) = (lane, self.transactional_id) else { return true };
        let Ok(header) = self.check(records.unwrap_or_default()) else { return true };
        let door = Arc::clone(&self.core.door);
        let (producer, adds) = ((header.producer_id, header.producer_epoch), self.adds_partitions);
        if door.transactions.is_alone() {
            let of = OffsetKey { topic: topic.name.clone(), partition };
            let touched = Touched { stream: lane.stream_id(), from_offset: lane.durable_ordinal() };
            self.ahead.push(Claim { producer, of, touched, adds });
            return true;
        }
        let wish = Wish { id, producer, topic: &topic.name, partition, adds };
        let shared = door.transactions.partitions.get_or_make(lane.stream_id(), partition.cast_unsigned());
        only_committed(lane, &shared);
        let asked = transaction_owner::ask_ahead(&door, &shared, lane, &wish, &self.core.observer);
        self.partial.questions.extend(asked.map(|asked| (place, asked)));
        true
    }

    /// The request was looked through. Whether that was for what is asked for ahead; where this node is alone it is added to the transaction in one go.
    pub(super) fn add_ahead(&mut self) -> bool {
        if let Some(id) = self.transactional_id.filter(|_| !self.ahead.is_empty()) {
            self.core.door.transactions.add_ahead(id, &self.ahead);
        }
        self.is_ahead
    }
}
