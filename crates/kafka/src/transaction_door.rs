//! The transaction coordinator behind the door: its lock, its clock, its answers, and what it knows of the partitions that
//! transactions write to.
//!
//! Requests come in on I/O threads; InitProducerId on the door's thread for commands, since it may need another id from the
//! catalog's disk. What is decided is carried out by [`crate::endings`], on a thread of its own. Order of locks: a partition's
//! or the groups', then the coordinator's; whoever holds the coordinator's takes none of the others.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, InitProducerIdResponse, TxnOffsetCommitRequest};
use kera_broker::Broker;
use kera_env::Clock;
use kera_format::StreamId;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Entry, Touched};
use kera_log::{Lane, Observer};
use kera_protocol::admin::StreamRef;
use parking_lot::{Mutex, RwLock};

use crate::door::{After, Catalog, Reply, topic_of};
use crate::endings::{Event, append_marker};
use crate::groups::{AppendFailed, Mark, Now};
use crate::session::{Request, decode, encode};
use crate::state_log::StateLog;
use crate::transactions::{
    Ending, PartitionTransactions, Places, ProducerIds, Reply as Replied, TransactionConfig, TransactionJournal,
    Transactions,
};
use crate::visibility::only_committed;
use crate::wire::Malformed;

/// Where transactional ids and aborted ranges are kept.
const TRANSACTIONS_STREAM: &str = "_kera.transactions";
/// That log is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 4 << 20;
/// Bytes of one append of a copy, and aborted ranges.
const COPY_STEP_BYTES: usize = 256 << 10;
const COPY_STEP_RANGES: usize = 2_048;

/// Whether requests with this key are the coordinator's.
pub(crate) fn serves(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::AddPartitionsToTxn
            | ApiKey::AddOffsetsToTxn
            | ApiKey::EndTxn
            | ApiKey::DescribeTransactions
            | ApiKey::ListTransactions
    )
}

/// Whether a producer may write now.
pub(crate) enum MayWrite {
    Yes,
    /// When this is durable, which says that its transaction has begun; or, if there is none, when the transaction before has
    /// ended: the observer is called then.
    Later(Option<After>),
    No(ResponseError),
}

/// Ids that the catalog has given and no producer has.
#[derive(Default)]
struct StockedIds {
    ids: Vec<i64>,
    /// Somebody has found none.
    wanted: bool,
}

/// The transactions of a node.
pub(crate) struct TransactionDoor {
    coordinator: Mutex<Transactions>,
    pub(crate) partitions: Partitions,
    ids: Arc<Mutex<StockedIds>>,
    /// Who waits for the end of a transaction.
    waiting: Mutex<Vec<Arc<dyn Observer>>>,
    log: Arc<StateLog<Entry>>,
    catalog: Arc<Catalog>,
    broker: Arc<Broker>,
    clock: Arc<dyn Clock>,
    events: Sender<Event>,
}

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

    /// Up to where every transaction of a partition has ended; `durable` is the partition's end, looked at before.
    pub(crate) fn stable(&self, stream: StreamId, partition: i32, durable: u64) -> u64 {
        self.get(stream, partition).map_or(durable, |of| of.lock().stable(durable))
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

    fn all(&self) -> Vec<((StreamId, u32), SharedPartition)> {
        self.0.read().iter().map(|(of, partition)| (*of, Arc::clone(partition))).collect()
    }
}

/// The coordinator's handle on its log.
struct Handle(Arc<StateLog<Entry>>);

impl TransactionJournal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.0.append(entries)
    }
}

/// The coordinator's handle on the ids.
struct Ids(Arc<Mutex<StockedIds>>);

impl ProducerIds for Ids {
    fn next(&mut self) -> Option<i64> {
        let mut stock = self.0.lock();
        stock.wanted |= stock.ids.is_empty();
        stock.ids.pop()
    }
}

struct KnownPlaces {
    catalog: Arc<Catalog>,
    broker: Arc<Broker>,
}

impl Places for KnownPlaces {
    fn place(&self, topic: &str, partition: i32) -> Option<Touched> {
        let info = self.catalog.info(topic)?;
        let topic = topic_of(&self.broker, &info)?;
        // Markers are durable before a transaction is over, so those of the producer's earlier ones are before this.
        let from_offset = topic.lane(partition)?.durable_ordinal();
        Some(Touched { stream: info.id, from_offset })
    }
}

impl TransactionDoor {
    /// Opens the stream of transactions and reads what is in it, and gives to `events` what was decided and is not carried out.
    /// Blocks the thread while segments come from disk.
    pub(crate) fn open(
        catalog: &Arc<Catalog>,
        broker: &Arc<Broker>,
        clock: &Arc<dyn Clock>,
        events: Sender<Event>,
    ) -> io::Result<TransactionDoor> {
        let log = StateLog::open(TRANSACTIONS_STREAM, catalog, broker, clock)?;
        let ids = Arc::new(Mutex::new(StockedIds::default()));
        let places = Arc::new(KnownPlaces { catalog: Arc::clone(catalog), broker: Arc::clone(broker) });
        let journal = Box::new(Handle(Arc::clone(&log)));
        let config = TransactionConfig::default();
        let mut coordinator = Transactions::new(config, journal, Box::new(Ids(Arc::clone(&ids))), places);
        let mut aborted = HashMap::new();
        let replayed = log.replay(|entry| match entry {
            Entry::Transaction(id, transaction) => coordinator.replay(id, transaction),
            Entry::Aborted(range) => {
                let AbortedRange { stream, partition, producer_id, first_offset, .. } = range;
                aborted.insert((stream, partition, producer_id, first_offset), range);
            }
        });
        let (records, passed_over) = replayed.map_err(|error| io::Error::other(error.to_string()))?;
        let transactions = TransactionDoor {
            coordinator: Mutex::new(coordinator),
            partitions: Partitions::default(),
            ids,
            waiting: Mutex::default(),
            log,
            catalog: Arc::clone(catalog),
            broker: Arc::clone(broker),
            clock: Arc::clone(clock),
            events,
        };
        let ranges = aborted.len();
        aborted.into_values().for_each(|range| transactions.partitions.restore(range));
        transactions.coordinator.lock().count_aborted(ranges);
        let refused = |AppendFailed| io::Error::other(format!("{TRANSACTIONS_STREAM} takes no records"));
        transactions.start().map_err(refused)?;
        tracing::info!(records, passed_over, ranges, "Kafka transactions are open");
        Ok(transactions)
    }

    /// Brings what the journal says in line with what the partitions hold, and goes on with it.
    fn start(&self) -> Result<(), AppendFailed> {
        for ((stream, partition), of) in self.partitions.all() {
            let Some(lane) = self.lane(stream, partition as i32) else {
                self.partitions.0.write().remove(&(stream, partition));
                continue;
            };
            let cut = of.lock().take_cut(lane.stats().next_ordinal);
            for range in cut {
                self.end_again(&lane, &of, &range)?;
            }
            of.lock().trim(lane.earliest().1);
        }
        let mut coordinator = self.coordinator.lock();
        let end_of = |of: &OffsetKey, touched: &Touched| {
            self.lane(touched.stream, of.partition).map(|lane| lane.stats().next_ordinal)
        };
        coordinator.lower(end_of)?;
        for (producer_id, of, touched) in coordinator.unfinished() {
            if let Ok(partition) = u32::try_from(of.partition) {
                let of = self.partitions.get_or_make(touched.stream, partition);
                of.lock().wrote(producer_id, touched.from_offset);
            }
        }
        coordinator.start(self.now());
        let endings = coordinator.take_endings();
        drop(coordinator);
        // Before anybody is served.
        for ((stream, partition), of) in self.partitions.all() {
            if let Some(lane) = self.lane(stream, partition as i32) {
                only_committed(&lane, &of);
            }
        }
        self.carry_out(endings);
        Ok(())
    }

    /// The partition has lost a marker with the machine's power, and not all of what it ended: there is another one.
    fn end_again(&self, lane: &Arc<Lane>, of: &SharedPartition, range: &AbortedRange) -> Result<(), AppendFailed> {
        let producer = (range.producer_id, range.epoch);
        let mut of = of.lock();
        of.wrote(range.producer_id, range.first_offset);
        let appended = append_marker(lane, producer, false, self.clock.now_ms()).map_err(|error| {
            tracing::error!(%error, "a marker that was lost with the machine's power cannot be written again");
            AppendFailed
        })?;
        let ended = of.ended(producer, false, appended.base_ordinal);
        drop(of);
        self.log.append(&ended.map(Entry::Aborted).into_iter().collect::<Vec<_>>()).map(drop)
    }

    /// The lane of a partition, if its stream is there.
    pub(crate) fn lane(&self, stream: StreamId, partition: i32) -> Option<Arc<Lane>> {
        let info = self.catalog.coordinator.stream(&StreamRef::Id(stream)).ok()?;
        topic_of(&self.broker, &info)?.lane(partition).cloned()
    }

    pub(crate) fn now(&self) -> Now {
        Now { mono_ms: self.clock.monotonic_us() / 1000, wall_ms: self.clock.now_ms() }
    }

    /// What an answer that rests on `mark` waits for.
    pub(crate) fn after(&self, mark: Option<Mark>) -> Option<After> {
        let (mark, sink) = (mark?, self.log.sink()?);
        Some(After { sink: Arc::clone(sink), ticket: mark.0 })
    }

    fn carry_out(&self, endings: Vec<Ending>) {
        for ending in endings {
            // If nobody listens the node stops: what is decided is carried out after its next start.
            let _ = self.events.send(Event::Ending(Box::new(ending)));
        }
    }

    /// Calls the coordinator, and has carried out what it decides.
    fn call<T>(&self, act: impl FnOnce(&mut Transactions, Now) -> T) -> T {
        let mut coordinator = self.coordinator.lock();
        let done = act(&mut coordinator, self.now());
        let endings = coordinator.take_endings();
        drop(coordinator);
        self.carry_out(endings);
        done
    }

    /// Gives a request to the coordinator. Its answer comes through `reply`.
    pub(crate) fn handle(&self, request: &Request, body: &[u8], reply: &Reply) -> Result<(), Malformed> {
        let version = request.version;
        macro_rules! call {
            ($method:ident) => {{
                let asked = decode(request, body)?;
                let Replied { after, response } = self.call(|all, now| all.$method(now, version, &asked));
                (after, encode(request, &response)?)
            }};
        }
        let (after, answer) = match request.api.key {
            ApiKey::AddPartitionsToTxn => call!(add_partitions),
            ApiKey::AddOffsetsToTxn => call!(add_offsets),
            ApiKey::EndTxn => call!(end),
            ApiKey::DescribeTransactions => {
                let asked = decode(request, body)?;
                (None, encode(request, &self.coordinator.lock().describe(&asked))?)
            }
            ApiKey::ListTransactions => {
                let asked = decode(request, body)?;
                (None, encode(request, &self.coordinator.lock().list(self.now(), &asked))?)
            }
            key => return Err(Malformed::Decode(format!("{key:?} is not the transaction coordinator's"))),
        };
        reply.put_after(answer, self.after(after));
        Ok(())
    }

    /// InitProducerId with a transactional id. Blocks while another id comes from the catalog.
    pub(crate) fn init(&self, version: i16, asked: &InitProducerIdRequest) -> (InitProducerIdResponse, Option<After>) {
        self.stock_ids();
        let Replied { after, response } = self.call(|all, now| all.init(now, version, asked));
        (response, self.after(after))
    }

    /// Has an id for a producer ready. Blocks while it comes from the catalog.
    fn stock_ids(&self) {
        if !self.ids.lock().ids.is_empty() {
            return;
        }
        match self.catalog.coordinator.allocate_producer(None) {
            Ok(allocated) => {
                let mut stock = self.ids.lock();
                stock.ids.push(allocated.producer_id.0.cast_signed());
                stock.wanted = false;
            }
            Err(error) => tracing::warn!(%error, "there is no id for a transactional producer"),
        }
    }

    /// Whether a producer may write to a partition in its transaction now; under the partition's lock, so that the answer
    /// holds until the batch is there. `adds`: the partition is added to the transaction if it is not in it.
    pub(crate) fn may_write(
        &self,
        id: &str,
        producer: (i64, i16),
        (topic, partition): (&str, i32),
        lane: &Lane,
        adds: bool,
        observer: &Arc<dyn Observer>,
    ) -> MayWrite {
        let of = OffsetKey { topic: topic.to_owned(), partition };
        let stream = lane.stream_id();
        let mut coordinator = self.coordinator.lock();
        let mut checked = coordinator.check_produce(id, producer, &of, stream);
        if adds && checked == Err(ResponseError::InvalidTxnState) {
            let touched = Touched { stream, from_offset: lane.durable_ordinal() };
            let added = coordinator.add_partition(self.now(), id, producer, of.clone(), touched);
            // A topic that was made again under its name is not the one that is in it.
            checked = added.and_then(|_| coordinator.check_produce(id, producer, &of, stream));
        }
        match checked {
            Ok(mark) => self
                .after(mark)
                .filter(|after| !after.is_durable())
                .map_or(MayWrite::Yes, |after| MayWrite::Later(Some(after))),
            Err(ResponseError::ConcurrentTransactions) if adds => {
                // Under the coordinator's lock: whoever ends the transaction looks at this behind it.
                self.waiting.lock().push(Arc::clone(observer));
                MayWrite::Later(None)
            }
            Err(code) => MayWrite::No(produce_error(code)),
        }
    }

    /// Whether a producer may commit offsets of a group in its transaction now; under the groups' lock. `adds`: the group is
    /// added to the transaction if it is not in it.
    pub(crate) fn may_commit(&self, asked: &TxnOffsetCommitRequest, adds: bool) -> MayWrite {
        let producer = (asked.producer_id.0, asked.producer_epoch);
        let id = &**asked.transactional_id;
        let mut coordinator = self.coordinator.lock();
        let mut checked = coordinator.check_group(id, producer, &asked.group_id);
        if adds && checked == Err(ResponseError::InvalidTxnState) {
            checked = coordinator.add_group(self.now(), id, producer, &asked.group_id);
        }
        match checked {
            Ok(mark) => self
                .after(mark)
                .filter(|after| !after.is_durable())
                .map_or(MayWrite::Yes, |after| MayWrite::Later(Some(after))),
            Err(ResponseError::ProducerFenced) => MayWrite::No(ResponseError::InvalidProducerEpoch),
            Err(code) => MayWrite::No(code),
        }
    }

    /// A transaction's markers are durable and its groups know.
    pub(crate) fn ended(&self, ending: &Ending, aborted: &[AbortedRange]) -> Result<(), AppendFailed> {
        let ended = self.call(|all, now| all.ended(now, ending, aborted)).map(drop);
        for waiting in std::mem::take(&mut *self.waiting.lock()) {
            waiting.advanced(0);
        }
        ended
    }

    /// What time brings: transactions that ran too long, ids that nobody uses, a copy of the log when it has grown.
    pub(crate) fn tick(&self) {
        let is_due = |all: &Transactions, now: Now| all.next_deadline_ms().is_some_and(|at| at <= now.mono_ms);
        self.call(|all, now| {
            if is_due(all, now) {
                all.tick(now);
            }
        });
        self.copy(COPY_BYTES_MIN);
        self.log.trim();
        let wanted = self.ids.lock().wanted;
        if wanted {
            self.stock_ids();
        }
    }

    /// Writes everything anew if the log has grown by `bytes_min`. If it breaks off, what is there stays and counts. Whether it
    /// was done, and how many records were written.
    ///
    /// Aborted ranges are told by the partitions, which are not looked at under the coordinator's lock. None is missed: those
    /// in the log before the copy were in their partitions before that, and those behind it stay.
    pub(crate) fn copy(&self, bytes_min: u64) -> (bool, usize) {
        let coordinator = self.coordinator.lock();
        let Some((from, added)) = self.log.begin_copy(bytes_min) else { return (false, 0) };
        let (mut behind, mut copied) = (None, 0);
        loop {
            let (entries, next) = coordinator.snapshot(behind.as_deref(), COPY_STEP_BYTES);
            if self.log.append(&entries).is_err() {
                return (false, copied);
            }
            copied += entries.len();
            behind = next;
            if behind.is_none() {
                break;
            }
        }
        drop(coordinator);
        for (_, of) in self.partitions.all() {
            let ranges: Vec<Entry> = of.lock().ranges().iter().copied().map(Entry::Aborted).collect();
            if ranges.chunks(COPY_STEP_RANGES).any(|piece| self.log.append(piece).is_err()) {
                return (false, copied);
            }
            copied += ranges.len();
        }
        self.log.end_copy(from, added);
        (true, copied)
    }

    /// Forgets what partitions no longer have, and counts what they still remember.
    pub(crate) fn trim_partitions(&self) {
        let mut ranges = 0;
        for ((stream, partition), of) in self.partitions.all() {
            match self.lane(stream, partition as i32) {
                Some(lane) => {
                    let mut of = of.lock();
                    of.trim(lane.earliest().1);
                    ranges += of.ranges().len();
                }
                None => drop(self.partitions.0.write().remove(&(stream, partition))),
            }
        }
        self.coordinator.lock().count_aborted(ranges);
    }

    #[cfg(test)]
    pub(crate) fn stream_of(&self, topic: &str) -> StreamId {
        self.catalog.info(topic).unwrap().id
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> &Arc<StateLog<Entry>> {
        &self.log
    }
}

impl Partitions {
    fn restore(&self, range: AbortedRange) {
        self.get_or_make(range.stream, range.partition).lock().restore(range);
    }
}

/// What Produce answers where the coordinator refuses: as Kafka's brokers, whose producers know these.
fn produce_error(code: ResponseError) -> ResponseError {
    match code {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        ResponseError::ConcurrentTransactions | ResponseError::CoordinatorLoadInProgress => {
            ResponseError::NotEnoughReplicas
        }
        code => code,
    }
}
