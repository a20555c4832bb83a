//! What was known of Kafka transactions at a node that was alone comes along when it founds a cluster.
//!
//! The node's ids are in its own `_kera.transactions`, those of the cluster in `_kera.cluster.transactions`, whose streamlets any node may own. A node
//! that is one of several begins no transaction any more, aborts what runs there and carries out what is decided
//! ([`Transactions::wind_down`]); when nothing is left to do it records that ([`wound_down`]). Who reads a streamlet that nobody has ever
//! served asks all nodes for what they have in a stream of their own, waits for that record, and takes over the ids that belong to the
//! streamlet, and its share of what aborted transactions have left, before it serves. So producers go on with the ids and epochs that
//! they have, but for those whose transaction ran: they are fenced, as if their time had been up.
//!
//! A partition may leave the node before it has written the marker of what was decided there. Then the node does all the rest, tells the groups, and
//! records the transaction with these partitions alone ([`Transactions::hand_over`]): whoever takes the id over goes on with it like a coordinator that
//! follows a lost one, and has their owners write the markers.
//!
//! On a thread of its own for each streamlet, which may block.
//!
//! [`Transactions::hand_over`]: crate::transactions::Transactions::hand_over
//! [`Transactions::wind_down`]: crate::transactions::Transactions::wind_down

use std::collections::BTreeMap;

use kera_format::StreamId;
use kera_format::kafka_transactions::{AbortedRange, Entry, Transaction};
use kera_protocol::admin::StreamRef;

use crate::door::Door;
use crate::state_log::{Patience, Told, Unread, pieces};
use crate::state_parts::{of_nodes, streamlet_of};
use crate::transaction_door::TRANSACTIONS_STREAM;
use crate::transaction_parts::TransactionPart;
use crate::transactions::is_at_rest;

/// The id of the record that ends what a node has kept, and of the one that ends what was taken over. It says that the id is forgotten.
const NOBODY: &str = "_kera.founded";

/// The record behind which a node that was alone keeps nothing more.
pub(crate) fn wound_down() -> Entry {
    Entry::Transaction(NOBODY.to_owned(), None)
}

/// Whether it is that record.
pub(crate) fn is_wound_down(entry: &Entry) -> bool {
    matches!(entry, Entry::Transaction(id, None) if id == NOBODY)
}

/// What a node has kept, as far as it belongs to one streamlet: ids by their names, and what producers have left by their numbers.
struct Before {
    streamlet: u32,
    /// How many streamlets there are.
    streamlets: usize,
    /// Of the ids of other streamlets nothing but that they are there.
    ids: BTreeMap<String, Option<Transaction>>,
    ranges: BTreeMap<(StreamId, u32, i64, u64), AbortedRange>,
    /// Nothing has begun since the node has recorded that nothing would.
    is_over: bool,
}

impl Before {
    /// Nothing yet.
    fn of(streamlet: u32, streamlets: usize) -> Before {
        Before { streamlet, streamlets, ids: BTreeMap::new(), ranges: BTreeMap::new(), is_over: false }
    }

    /// How much there is of it.
    fn count(&self) -> usize {
        self.ids.len() + self.ranges.len()
    }

    fn take(&mut self, entry: Entry) {
        let is_end = is_wound_down(&entry);
        match entry {
            Entry::Transaction(id, Some(transaction)) => {
                let is_ours = streamlet_of(&id, self.streamlets) == self.streamlet as usize;
                self.ids.insert(id, is_ours.then_some(transaction));
                self.is_over = false;
            }
            Entry::Transaction(id, None) => {
                self.ids.remove(&id);
                self.is_over |= is_end;
            }
            Entry::Aborted(range) => {
                let AbortedRange { stream, partition, producer_id, first_offset, .. } = range;
                if producer_id.cast_unsigned() % self.streamlets.max(1) as u64 == u64::from(self.streamlet) {
                    self.ranges.insert((stream, partition, producer_id, first_offset), range);
                }
            }
        }
    }
}

/// Fills the ids of a streamlet that nobody has ever served. False if that broke off: then nobody knows yet what belongs there, nothing is recorded as all of it,
/// and the part is not to be served.
#[must_use]
pub(crate) fn take_over(door: &Door, part: &TransactionPart, go_on: impl Fn() -> bool + Sync) -> bool {
    let Some(log) = part.log.as_ref().filter(|log| log.is_new()) else { return true };
    let go_on = &(|| go_on() && log.is_ours());
    let name = || StreamRef::Name(TRANSACTIONS_STREAM.to_owned());
    let Ok(info) = door.catalog.coordinator.stream(&name()) else { return true };
    let info_of_all = door.catalog.info_of_transactions();
    let Some(count) = info_of_all.map(|info| info.options.streamlets as usize) else { return true };
    let of_node = |node: u32| {
        let mut patience = Patience::new(door, node);
        let mut told = Told::new(Before::of(part.number, count));
        while go_on() {
            let mut next = Before::of(part.number, count);
            let stream = (TRANSACTIONS_STREAM, info.id);
            let read = log.read_before(door, node, stream, |entry| next.take(entry), go_on);
            told.hear(next, read.is_ok(), Before::count);
            let why = match read {
                Ok(()) if told.best.is_over || told.best.ids.is_empty() => break,
                Ok(()) => Unread::Refused("its transactions have not ended".to_owned()),
                Err(why) => why,
            };
            if patience.is_over(door, &why, "what was known of Kafka transactions") {
                break;
            }
            log.rest();
        }
        share(told.best).collect()
    };
    let told: Vec<Vec<Entry>> = of_nodes(door, of_node);
    // It may not be all that they have.
    if !go_on() {
        return false;
    }
    let mut entries: Vec<Entry> = told.into_iter().flatten().collect();
    entries.push(wound_down());
    if !log.found(pieces(&entries), go_on) {
        return false;
    }
    let mut state = part.state.lock();
    let mut ids = 0;
    for entry in entries {
        match entry {
            Entry::Transaction(id, transaction) => {
                ids += usize::from(transaction.is_some());
                state.all.replay(id, transaction);
            }
            Entry::Aborted(range) => state.left.put(range),
        }
    }
    let ranges = state.left.all().count();
    state.all.count_aborted(ranges);
    drop(state);
    if ids + ranges > 0 {
        let streamlet = part.number;
        tracing::info!(streamlet, ids, ranges, "Kafka transactions of a node that was alone have come along");
    }
    true
}

/// What comes along of it. An id whose transaction has not ended stays where it is, unless the node has nothing more to do: then the rest was
/// handed over.
fn share(before: Before) -> impl Iterator<Item = Entry> {
    let is_over = before.is_over;
    let may_come = move |transaction: &Transaction| is_over || is_at_rest(transaction);
    let ids = before.ids.into_iter().filter_map(|(id, transaction)| Some((id, transaction?)));
    let ids = ids.filter(move |(_, transaction)| may_come(transaction));
    let ranges = before.ranges.into_values().map(Entry::Aborted);
    ids.map(|(id, transaction)| Entry::Transaction(id, Some(transaction))).chain(ranges)
}

#[cfg(test)]
mod tests {
    use kera_format::kafka_groups::OffsetKey;
    use kera_format::kafka_transactions::{Touched, TransactionState};

    use super::*;

    #[test]
    fn of_the_ids_of_other_streamlets_nothing_is_kept_but_that_they_are_waited_for() {
        const COUNT: usize = 16;
        let id = "id".to_owned();
        let of = OffsetKey { topic: "t".to_owned(), partition: 0 };
        let touched = Touched { stream: StreamId(7), from_offset: 0 };
        let transaction = Transaction {
            state: TransactionState::Aborting,
            producer_id: 3,
            epoch: 0,
            last_epoch: -1,
            previous_producer_id: -1,
            timeout_ms: 1,
            started_ms: 1,
            changed_ms: 1,
            partitions: BTreeMap::from([(of, touched)]),
            groups: std::collections::BTreeSet::new(),
        };
        let range = AbortedRange {
            stream: StreamId(7),
            partition: 0,
            producer_id: 3,
            first_offset: 0,
            marker_offset: 1,
            stable_offset: 2,
            epoch: 0,
        };
        for streamlet in 0..COUNT as u32 {
            let (has_id, has_range) = (streamlet_of(&id, COUNT) == streamlet as usize, streamlet == 3);
            let mut before = Before::of(streamlet, COUNT);
            before.take(Entry::Transaction(id.clone(), Some(transaction.clone())));
            before.take(Entry::Aborted(range));
            assert_eq!((before.ids[&id].is_some(), before.ranges.len()), (has_id, usize::from(has_range)));
            assert!(!before.is_over);
            before.take(wound_down());
            assert!(before.is_over);
            assert_eq!(share(before).count(), usize::from(has_id) + usize::from(has_range));
        }
    }
}
