//! Which transactional ids are this node's to coordinate.
//!
//! A node that is alone has all of them, in its own `_kera.transactions`. In a cluster an id belongs to a streamlet of
//! `_kera.cluster.transactions`, chosen by its hash, and is coordinated by that streamlet's owner, as [groups](crate::group_parts) are. Whoever
//! becomes the owner reads the streamlet before it serves and goes on with what was decided; whoever has been it cannot append any
//! more, so it decides nothing. Nobody else serves (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafka_protocol::ResponseError as Code;
use kera_broker::Broker;
use kera_env::Clock;
use kera_format::StreamId;
use kera_format::kafka_transactions::{AbortedRange, Entry};
use parking_lot::Mutex;

use crate::door::{After, OtherNodes};
use crate::groups::{AppendFailed, Mark, Now};
use crate::state_log::StateLog;
use crate::state_parts::{Coming, StateParts};
use crate::transactions::{Ending, Transactions};

/// Where the transactions of a cluster are kept.
pub(crate) const STREAM: &str = "_kera.cluster.transactions";

/// Ids that are coordinated together.
pub(crate) struct TransactionPart {
    /// The streamlet of the cluster's stream, and the epoch in which the node owns it; of a node that is alone both are 0.
    pub(crate) number: u32,
    pub(crate) epoch: u32,
    pub(crate) state: Mutex<PartState>,
    /// `None`: nothing is kept, for all is refused.
    pub(crate) log: Option<Arc<StateLog<Entry>>>,
    closed: AtomicBool,
}

/// What a part knows, under one lock.
pub(crate) struct PartState {
    pub(crate) all: Transactions,
    /// What aborted transactions have left in partitions that other nodes may own. Of a node that is alone its
    /// [partitions](crate::transaction_partitions::Partitions) know it.
    pub(crate) left: Left,
    /// In which epoch the owner of a streamlet was that asked last and was told of something open. An owner before that has ended
    /// nothing there that the one who asked knows.
    pub(crate) asked: HashMap<(StreamId, u32), u32>,
}

/// Ranges of aborted records, by partition.
#[derive(Default)]
pub(crate) struct Left(BTreeMap<(StreamId, u32), LeftIn>);

/// What is left in one partition.
struct LeftIn {
    /// By producer and first offset.
    ranges: BTreeMap<(i64, u64), AbortedRange>,
    /// None of them has its marker in front of this.
    first_marker: u64,
}

impl Left {
    /// One more. Of one producer and first offset the later counts.
    pub(crate) fn put(&mut self, range: AbortedRange) {
        let nothing = || LeftIn { ranges: BTreeMap::new(), first_marker: range.marker_offset };
        let of = self.0.entry((range.stream, range.partition)).or_insert_with(nothing);
        of.first_marker = of.first_marker.min(range.marker_offset);
        of.ranges.insert((range.producer_id, range.first_offset), range);
    }

    /// The partition starts at `start` now. That is told with each marker, under the lock of the part, and rarely later than the time before: what is left
    /// is looked at only if some of it goes.
    pub(crate) fn trim(&mut self, stream: StreamId, partition: u32, start: u64) {
        if let Some(of) = self.0.get_mut(&(stream, partition)).filter(|of| of.first_marker < start) {
            of.first_marker = u64::MAX;
            of.ranges.retain(|_, range| {
                #[cfg(test)]
                tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
                let stays = range.marker_offset >= start;
                if stays {
                    of.first_marker = of.first_marker.min(range.marker_offset);
                }
                stays
            });
            if of.ranges.is_empty() {
                self.0.remove(&(stream, partition));
            }
        }
    }

    /// Forgets what is left in streams that are gone, and says how much there is.
    pub(crate) fn keep(&mut self, is_there: impl Fn(StreamId) -> bool) -> usize {
        self.0.retain(|(stream, _), _| is_there(*stream));
        self.0.values().map(|of| of.ranges.len()).sum()
    }

    /// Where something is left.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = (StreamId, u32)> {
        self.0.keys().copied()
    }

    /// What is left in partitions `first..end` of a stream.
    pub(crate) fn of(&self, stream: StreamId, first: u32, end: u32) -> impl Iterator<Item = &AbortedRange> {
        self.0.range((stream, first)..(stream, end)).flat_map(|(_, of)| of.ranges.values())
    }

    /// Everything.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AbortedRange> {
        self.0.values().flat_map(|of| of.ranges.values())
    }
}

/// A partition in which a transaction has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    pub(crate) stream: StreamId,
    pub(crate) streamlet: u32,
    /// The epoch of the owner that has written the marker.
    pub(crate) owner_epoch: u32,
}

impl TransactionPart {
    pub(crate) fn new(
        (number, epoch): (u32, u32),
        all: Transactions,
        left: Left,
        log: Option<Arc<StateLog<Entry>>>,
    ) -> Arc<TransactionPart> {
        let state = PartState { all, left, asked: HashMap::new() };
        Arc::new(TransactionPart { number, epoch, state: Mutex::new(state), log, closed: AtomicBool::new(false) })
    }

    /// What an answer that rests on `mark` waits for.
    pub(crate) fn after(&self, mark: Option<Mark>) -> Option<After> {
        let (mark, sink) = (mark?, self.log.as_ref()?.sink()?);
        Some(After { sink: Arc::clone(sink), ticket: mark.0 })
    }

    /// Whether it is this node's no more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// It is this node's no more: it serves nothing, and goes on with nothing.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.state.lock().all.close(Code::NotCoordinator);
    }

    /// All markers of a transaction are durable, and its groups know: it is over, unless a partition has got another owner that has asked
    /// since then what is known of it, and so takes the transaction for open. Those need another marker, by their places in `marked`.
    ///
    /// # Errors
    /// It cannot be recorded now, and is to be said again.
    pub(crate) fn ended(
        &self,
        now: Now,
        ending: &Ending,
        marked: &[Marked],
        aborted: &[AbortedRange],
    ) -> Result<Vec<usize>, AppendFailed> {
        let mut state = self.state.lock();
        let is_behind =
            |of: &Marked| state.asked.get(&(of.stream, of.streamlet)).is_some_and(|asked| of.owner_epoch < *asked);
        let again: Vec<usize> = marked.iter().enumerate().filter(|(_, of)| is_behind(of)).map(|(at, _)| at).collect();
        if again.is_empty() && state.all.ended(now, ending, aborted)? {
            aborted.iter().for_each(|range| state.left.put(*range));
        }
        Ok(again)
    }
}

/// The parts of a node.
pub(crate) struct TransactionParts {
    places: StateParts<TransactionPart>,
    clock: Arc<dyn Clock>,
}

/// A streamlet whose ids are to be read.
pub(crate) type TransactionLoad = Coming<Entry>;

impl Deref for TransactionParts {
    type Target = StateParts<TransactionPart>;

    fn deref(&self) -> &StateParts<TransactionPart> {
        &self.places
    }
}

impl TransactionParts {
    /// None are here yet. `refusing` makes coordinators that refuse everything.
    pub(crate) fn new(
        refusing: impl Fn(Code) -> Transactions,
        broker: &Arc<Broker>,
        clock: &Arc<dyn Clock>,
    ) -> TransactionParts {
        let part = |code| TransactionPart::new((0, 0), refusing(code), Left::default(), None);
        let places = StateParts::new(part(Code::NotCoordinator), part(Code::CoordinatorLoadInProgress), broker);
        TransactionParts { places, clock: Arc::clone(clock) }
    }

    /// Looks at who owns the streamlets now. Parts that have left are closed; what has come is to be read.
    pub(crate) fn follow(&self) -> Vec<TransactionLoad> {
        let (left, loads) = self.places.follow(STREAM, &self.clock);
        left.iter().for_each(|part| part.close());
        loads
    }
}

impl TransactionLoad {
    /// Reads the ids ([`Coming::read`]). Blocks the thread.
    pub(crate) fn run(
        &self,
        broker: &Broker,
        empty: impl Fn(Arc<StateLog<Entry>>) -> Transactions,
        others: impl Fn() -> Option<Arc<dyn OtherNodes>>,
        go_on: impl Fn() -> bool,
    ) -> Option<Arc<TransactionPart>> {
        let begin = || (empty(Arc::clone(&self.log)), Left::default());
        let each = |(all, left): &mut (Transactions, Left), entry| match entry {
            Entry::Transaction(id, transaction) => all.replay(id, transaction),
            Entry::Aborted(range) => left.put(range),
        };
        let ((mut all, left), records, passed_over) =
            self.read(broker, "Kafka transactions", (begin, each), others, go_on)?;
        let (streamlet, ranges) = (self.streamlet.id(), left.all().count());
        all.count_aborted(ranges);
        tracing::info!(%streamlet, epoch = self.epoch, ranges, records, passed_over, "Kafka transactions are here");
        Some(TransactionPart::new((streamlet.0, self.epoch), all, left, Some(Arc::clone(&self.log))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kera_env::{Random, SeededRandom};

    use super::*;

    thread_local! {
        /// How many ranges were looked at to forget some.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    fn range(partition: u32, first_offset: u64) -> AbortedRange {
        let (stream, marker_offset) = (StreamId(1), first_offset + 2);
        AbortedRange {
            stream,
            partition,
            producer_id: 4,
            first_offset,
            marker_offset,
            stable_offset: marker_offset + 1,
            epoch: 0,
        }
    }

    #[test]
    fn where_a_partition_starts_is_told_again_and_again_and_what_is_left_is_looked_at_when_some_of_it_goes() {
        let mut left = Left::default();
        // Those of a later one are known first.
        (0..1_000).rev().for_each(|at| left.put(range(0, 10 * at)));
        left.put(range(1, 0));
        let mut trim = |start| {
            LOOKED_AT.set(0);
            left.trim(StreamId(1), 0, start);
            (LOOKED_AT.get(), left.of(StreamId(1), 0, 1).count())
        };
        assert_eq!([0, 1, 2].map(&mut trim), [(0, 1_000); 3], "the marker at 2 is still there");
        assert_eq!(trim(3), (1_000, 999));
        assert_eq!([3, 11, 12].map(&mut trim), [(0, 999); 3]);
        assert_eq!(trim(5_003), (999, 499));
        assert_eq!([5_003, 7, 5_012].map(&mut trim), [(0, 499); 3]);
        assert_eq!((trim(u64::MAX), trim(u64::MAX)), ((499, 0), (0, 0)));
        // One that is put in front later is found as well, and one in place of another.
        left.put(range(0, 100));
        left.put(range(0, 50));
        left.put(AbortedRange { marker_offset: 70, ..range(0, 50) });
        left.trim(StreamId(1), 0, 60);
        assert_eq!(left.of(StreamId(1), 0, 1).count(), 2);
        left.trim(StreamId(1), 0, 71);
        assert_eq!(left.all().map(|of| (of.partition, of.first_offset)).collect::<Vec<_>>(), [(0, 100), (1, 0)]);
    }

    #[test]
    fn what_goes_when_partitions_start_later_is_what_a_look_at_all_that_is_left_finds() {
        let random = SeededRandom::new(5);
        let (mut left, mut plain, mut gone) = (Left::default(), BTreeMap::new(), 0);
        for _ in 0..4_000 {
            let partition = random.below(3) as u32;
            if random.below(8) > 0 {
                let first_offset = random.below(200);
                let (producer_id, marker_offset) = (random.below(3) as i64, first_offset + random.below(50));
                let one = AbortedRange { producer_id, marker_offset, ..range(partition, first_offset) };
                left.put(one);
                plain.insert((partition, producer_id, first_offset), marker_offset);
            } else {
                let (start, before) = (random.below(260), plain.len());
                left.trim(StreamId(1), partition, start);
                plain.retain(|(of, ..), marker_offset| *of != partition || *marker_offset >= start);
                gone += before - plain.len();
            }
            let found = left.all().map(|of| ((of.partition, of.producer_id, of.first_offset), of.marker_offset));
            assert_eq!(found.collect::<Vec<_>>(), plain.iter().map(|(of, at)| (*of, *at)).collect::<Vec<_>>());
        }
        assert!(gone > 1_000, "{gone}");
    }
}
