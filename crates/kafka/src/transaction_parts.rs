//! Which transactional ids are this node's to coordinate.
//!
//! A node that is alone has all of them, in its own `_kera.transactions`. In a cluster an id belongs to a streamlet of
//! `_kera.cluster.transactions`, chosen by its hash, and is coordinated by that streamlet's owner, as [groups](crate::group_parts) are. Whoever
//! becomes the owner reads the streamlet before it serves and goes on with what was decided; whoever has been it cannot append any
//! more, so it decides nothing. Nobody else serves (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafka_protocol::ResponseError as Code;
use kera_broker::Broker;
use kera_env::Clock;
use kera_format::kafka_transactions::{AbortedRange, Entry};
use kera_format::{StreamId, StreamOptions, StreamletId, murmur2};
use kera_log::{Stream, Streamlet, Tenure};
use parking_lot::{Mutex, RwLock};

use crate::door::{After, OtherNodes};
use crate::groups::{AppendFailed, Mark, Now};
use crate::state_log::{StateLog, state_stream_options};
use crate::transactions::{Ending, Transactions};

/// Where the transactions of a cluster are kept.
pub(crate) const STREAM: &str = "_kera.cluster.transactions";
/// Its streamlets: how many nodes can share the work, and how much a node has to read before it serves. Never changes.
const STREAMLETS: u32 = 16;

/// The options of the stream: logs of its own, so that decisions do not wait behind records.
pub(crate) fn stream_options(copies: u32) -> StreamOptions {
    StreamOptions { streamlets: STREAMLETS, replication: copies, virtual_logs: 1, ..state_stream_options() }
}

/// The streamlet of a transactional id, of `count`.
pub(crate) fn streamlet_of(id: &str, count: usize) -> usize {
    (murmur2(id.as_bytes()) & 0x7fff_ffff) as usize % count.max(1)
}

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
    /// [partitions](crate::transaction_door::Partitions) know it.
    pub(crate) left: Left,
    /// In which epoch the owner of a streamlet was that asked last and was told of something open. An owner before that has ended
    /// nothing there that the one who asked knows.
    pub(crate) asked: HashMap<(StreamId, u32), u32>,
}

/// Ranges of aborted records, by partition, producer and first offset.
#[derive(Default)]
pub(crate) struct Left(BTreeMap<(StreamId, u32), BTreeMap<(i64, u64), AbortedRange>>);

impl Left {
    /// One more. Of one producer and first offset the later counts.
    pub(crate) fn put(&mut self, range: AbortedRange) {
        let of = self.0.entry((range.stream, range.partition)).or_default();
        of.insert((range.producer_id, range.first_offset), range);
    }

    /// The partition starts at `start` now.
    pub(crate) fn trim(&mut self, stream: StreamId, partition: u32, start: u64) {
        if let Some(of) = self.0.get_mut(&(stream, partition)) {
            of.retain(|_, range| range.marker_offset >= start);
            if of.is_empty() {
                self.0.remove(&(stream, partition));
            }
        }
    }

    /// Forgets what is left in streams that are gone, and says how much there is.
    pub(crate) fn keep(&mut self, is_there: impl Fn(StreamId) -> bool) -> usize {
        self.0.retain(|(stream, _), _| is_there(*stream));
        self.0.values().map(BTreeMap::len).sum()
    }

    /// What is left in partitions `first..end` of a stream.
    pub(crate) fn of(&self, stream: StreamId, first: u32, end: u32) -> impl Iterator<Item = &AbortedRange> {
        self.0.range((stream, first)..(stream, end)).flat_map(|(_, of)| of.values())
    }

    /// Everything.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AbortedRange> {
        self.0.values().flat_map(BTreeMap::values)
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

/// Where the ids of a streamlet are.
enum Place {
    /// At another node, or nowhere.
    Elsewhere,
    /// Here, in this owner epoch, and on their way.
    Loading(u32),
    /// Here.
    Here(u32, Arc<TransactionPart>),
}

#[derive(Default)]
struct Table {
    /// The cluster's stream; `None`: the node is alone, or the cluster has none yet.
    stream: Option<Arc<Stream>>,
    places: Vec<Place>,
}

/// The parts of a node.
pub(crate) struct TransactionParts {
    table: RwLock<Table>,
    elsewhere: Arc<TransactionPart>,
    loading: Arc<TransactionPart>,
    clock: Arc<dyn Clock>,
}

/// A streamlet whose ids are to be read.
pub(crate) struct TransactionLoad {
    place: usize,
    pub(crate) epoch: u32,
    stream: StreamId,
    pub(crate) streamlet: Arc<Streamlet>,
    pub(crate) log: Arc<StateLog<Entry>>,
}

impl TransactionParts {
    /// None are here yet. `refusing` makes coordinators that refuse everything.
    pub(crate) fn new(refusing: impl Fn(Code) -> Transactions, clock: &Arc<dyn Clock>) -> TransactionParts {
        let part = |code| TransactionPart::new((0, 0), refusing(code), Left::default(), None);
        TransactionParts {
            table: RwLock::default(),
            elsewhere: part(Code::NotCoordinator),
            loading: part(Code::CoordinatorLoadInProgress),
            clock: Arc::clone(clock),
        }
    }

    /// All ids are here, of a node that is alone.
    pub(crate) fn set_alone(&self, part: Arc<TransactionPart>) {
        self.table.write().places = vec![Place::Here(0, part)];
    }

    /// The ids are the cluster's from here on, if there is its stream.
    pub(crate) fn set_shared(&self, stream: Option<Arc<Stream>>) {
        let count = stream.as_ref().map_or(0, |stream| stream.streamlet_count());
        let places = (0..count).map(|_| Place::Elsewhere).collect();
        *self.table.write() = Table { stream, places };
    }

    /// The cluster's stream, once this node knows of it.
    pub(crate) fn stream(&self) -> Option<Arc<Stream>> {
        self.table.read().stream.clone()
    }

    /// Whether all ids are here.
    pub(crate) fn is_alone(&self) -> bool {
        let table = self.table.read();
        table.stream.is_none() && !table.places.is_empty()
    }

    /// The streamlet that an id's coordinator owns, in a cluster that has the stream.
    pub(crate) fn streamlet_of(&self, id: &str) -> Option<(Arc<Stream>, StreamletId)> {
        let table = self.table.read();
        let streamlet = streamlet_of(id, table.places.len());
        Some((table.stream.clone()?, StreamletId(streamlet as u32)))
    }

    /// The part that answers for an id, if only that it is not here.
    pub(crate) fn find(&self, id: &str) -> Arc<TransactionPart> {
        let table = self.table.read();
        self.at(&table, streamlet_of(id, table.places.len()))
    }

    /// The part of a streamlet, in the same way.
    pub(crate) fn part(&self, number: u32) -> Arc<TransactionPart> {
        self.at(&self.table.read(), number as usize)
    }

    fn at(&self, table: &Table, place: usize) -> Arc<TransactionPart> {
        match table.places.get(place) {
            Some(Place::Here(_, part)) => Arc::clone(part),
            Some(Place::Loading(_)) => Arc::clone(&self.loading),
            Some(Place::Elsewhere) | None => Arc::clone(&self.elsewhere),
        }
    }

    /// The parts that are here.
    pub(crate) fn here(&self) -> Vec<Arc<TransactionPart>> {
        let table = self.table.read();
        let here = table.places.iter().filter_map(|place| match place {
            Place::Here(_, part) => Some(Arc::clone(part)),
            Place::Loading(_) | Place::Elsewhere => None,
        });
        here.collect()
    }

    /// The same, and while some are on their way the one that says so.
    pub(crate) fn listed(&self) -> Vec<Arc<TransactionPart>> {
        let mut parts = self.here();
        if self.table.read().places.iter().any(|place| matches!(place, Place::Loading(_))) {
            parts.push(Arc::clone(&self.loading));
        }
        parts
    }

    /// Looks at who owns the streamlets now. Parts that have left are closed; what has come is to be read.
    pub(crate) fn follow(&self) -> Vec<TransactionLoad> {
        let mut table = self.table.write();
        let (mut left, mut loads) = (Vec::new(), Vec::new());
        let Table { stream: Some(stream), places } = &mut *table else { return loads };
        for (at, place) in places.iter_mut().enumerate() {
            let Some(streamlet) = stream.streamlet(StreamletId(at as u32)) else { continue };
            let epoch = streamlet.owner_epoch();
            let mine = streamlet.tenure() != Tenure::Elsewhere && epoch != 0;
            if matches!(*place, Place::Here(known, _) | Place::Loading(known) if mine && known == epoch) {
                continue;
            }
            if let Place::Here(_, part) = std::mem::replace(place, Place::Elsewhere) {
                left.push(part);
            }
            if let (true, Some(log)) = (mine, StateLog::of(STREAM, stream, StreamletId(at as u32), &self.clock)) {
                *place = Place::Loading(epoch);
                let streamlet = Arc::clone(streamlet);
                loads.push(TransactionLoad { place: at, epoch, stream: stream.id(), streamlet, log });
            }
        }
        drop(table);
        left.iter().for_each(|part| part.close());
        loads
    }

    /// The ids of a streamlet are read: they are served, if it is still this node's in the same epoch. Whether it is.
    pub(crate) fn loaded(&self, load: &TransactionLoad, part: &Arc<TransactionPart>) -> bool {
        if let Some(place) = self.table.write().places.get_mut(load.place)
            && matches!(place, Place::Loading(epoch) if *epoch == load.epoch)
        {
            *place = Place::Here(load.epoch, Arc::clone(part));
            return true;
        }
        false
    }
}

impl TransactionLoad {
    /// Reads the ids, those that older owners have from `others`. Blocks the thread while they come from disk or from other nodes;
    /// `None` if the streamlet is not this node's any more, or when nobody wants them.
    pub(crate) fn run(
        &self,
        broker: &Broker,
        empty: impl Fn(Arc<StateLog<Entry>>) -> Transactions,
        others: impl Fn() -> Option<Arc<dyn OtherNodes>>,
        go_on: impl Fn() -> bool,
    ) -> Option<Arc<TransactionPart>> {
        let elsewhere = |node, from| {
            let others = others().ok_or("the node does not reach others yet")?;
            others.read(node, self.stream, self.streamlet.id(), from)
        };
        let is_mine =
            || self.streamlet.tenure() != Tenure::Elsewhere && self.streamlet.owner_epoch() == self.epoch && go_on();
        while is_mine() {
            let log = Arc::clone(&self.log);
            let (mut all, mut left) = (empty(Arc::clone(&log)), Left::default());
            let each = |entry| match entry {
                Entry::Transaction(id, transaction) => all.replay(id, transaction),
                Entry::Aborted(range) => left.put(range),
            };
            match log.replay_while(broker, each, elsewhere, is_mine) {
                Ok(read) => {
                    let (records, passed_over) = read?;
                    let (streamlet, ranges) = (self.streamlet.id(), left.all().count());
                    all.count_aborted(ranges);
                    tracing::info!(%streamlet, epoch = self.epoch, ranges, records, passed_over, "Kafka transactions are here");
                    return Some(TransactionPart::new((streamlet.0, self.epoch), all, left, Some(log)));
                }
                Err(error) => {
                    tracing::warn!(streamlet = %self.streamlet.id(), %error, "Kafka transactions cannot be read yet");
                    log.rest();
                }
            }
        }
        None
    }
}
