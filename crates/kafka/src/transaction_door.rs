//! The transaction coordinator behind the door: its lock, its clock, its answers, and what it knows of the partitions that
//! transactions write to. Each [part](crate::transaction_parts) of the transactional ids has a coordinator of its own.
//!
//! Requests come in on I/O threads; InitProducerId on the door's thread for commands, since it may need another id from the
//! catalog's disk. What is decided is carried out by [`crate::endings`], on a thread of its own. Order of locks: a partition's
//! or the groups', then the coordinator's; whoever holds the coordinator's takes none of the others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ApiKey, DescribeTransactionsRequest,
    DescribeTransactionsResponse, EndTxnRequest, InitProducerIdRequest, InitProducerIdResponse,
    ListTransactionsRequest, ListTransactionsResponse, TxnOffsetCommitRequest,
};
use kera_broker::{Broker, Heard};
use kera_env::Clock;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Entry, Touched};
use kera_format::{ProducerEpoch, ProducerId, StreamId};
use kera_log::{Lane, Observer, Tenure};
use kera_protocol::admin::{StreamInfo, StreamRef};
use kera_protocol::{ClaimGroup, GroupClaimed, OpenTransaction, TransactionsHeld, TransactionsIn};
use parking_lot::Mutex;

use crate::door::{After, Catalog, Door, Reply, topic_of};
use crate::endings::{Event, append_marker};
use crate::floors::shown_from;
use crate::groups::{AppendFailed, Mark, Now};
use crate::limits_told::{tell, tell_no_id};
use crate::node_requests::{Awaited, NodeRequests, Replying, Served};
use crate::numbering::{has, place_of};
use crate::once::once;
use crate::session::{Request, decode, encode};
use crate::state_log::{Edge, StateLog};
use crate::state_parts::stream_options;
use crate::transaction_claims::WaitingClaim;
use crate::transaction_doubt::settle;
use crate::transaction_founding::{take_over, wound_down};
use crate::transaction_journal::{Handle, Own, copy_ids, read_own};
use crate::transaction_owner::{is_about_coordinators, to_records};
use crate::transaction_partitions::{Partitions, SharedPartition};
use crate::transaction_parts::{Left, Marked, STREAM, TransactionLoad, TransactionPart, TransactionParts};
use crate::transaction_waits::EndWaits;
use crate::transactions::{
    Claim, Ending, NOT_WRITTEN, PartitionTransactions, Places, ProducerIds, Reply as Replied, TransactionConfig,
    Transactions, Unfinished,
};
use crate::visibility::only_committed;
use crate::wire::Malformed;

/// Where transactional ids and aborted ranges are kept.
pub(crate) const TRANSACTIONS_STREAM: &str = "_kera.transactions";
/// That log is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 4 << 20;
/// What one streamlet's ids may take of what a node that is alone allows for all.
const SHARE: usize = 4;
/// Copies of what a cluster keeps of its transactions, where there are so many nodes.
const COPIES_MAX: usize = 3;
/// For how long more nodes are waited for before it is kept in fewer copies.
const NODES_WAIT_MS: u64 = 10_000;
/// How often it is looked at whose the transactional ids are.
const FOLLOW: Duration = Duration::from_millis(20);
/// How long a claim waits for the end of the transaction before.
const CLAIM_WAIT_MS: u64 = 1_000;
/// Ids that one request may ask about; of the others it is told that they are too many.
const DESCRIBED_MAX: usize = 10_000;
/// Aborted ranges of one append of a copy.
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
    /// Those of a node that is alone. In a cluster what ran then comes to its end there, and nothing begins.
    own: Arc<TransactionPart>,
    /// It is recorded that nothing begins there any more.
    wound_down: AtomicBool,
    /// There is something that the coordinators of the cluster are to know.
    has_kept: AtomicBool,
    pub(crate) parts: TransactionParts,
    pub(crate) partitions: Partitions,
    ids: Arc<Mutex<StockedIds>>,
    waiting: EndWaits<Arc<dyn Observer>>,
    /// Owners of partitions that wait for it.
    pub(crate) claims: EndWaits<WaitingClaim>,
    pub(crate) requests: NodeRequests,
    /// Since when somebody has asked for a coordinator in a cluster that keeps no transactions yet.
    wanted_ms: Mutex<Option<u64>>,
    catalog: Arc<Catalog>,
    broker: Arc<Broker>,
    clock: Arc<dyn Clock>,
    events: Sender<Event>,
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

/// Partitions of a cluster, which other nodes own: where they end is learnt with the first batch.
struct NamedPlaces(Arc<Catalog>);

impl Places for NamedPlaces {
    fn place(&self, topic: &str, partition: i32) -> Option<Touched> {
        let info = self.0.info(topic)?;
        has(&info.options, partition).then_some(Touched { stream: info.id, from_offset: NOT_WRITTEN })
    }
}

impl TransactionDoor {
    /// Opens the stream of transactions and reads what is in it, and gives to `events` what was decided and is not carried out.
    /// Blocks the thread while segments come from disk. If `accept_damage`, what the disk does not give is done without; `pending` are the groups here that have
    /// offsets pending then, each with their producer.
    ///
    /// # Errors
    /// The stream cannot be made, read, or written to.
    pub(crate) fn open(
        catalog: &Arc<Catalog>,
        broker: &Arc<Broker>,
        clock: &Arc<dyn Clock>,
        events: Sender<Event>,
        requests: NodeRequests,
        accept_damage: bool,
        pending: &[(String, i64)],
    ) -> io::Result<TransactionDoor> {
        let log = StateLog::open(TRANSACTIONS_STREAM, catalog, broker, clock)?;
        let ids = Arc::new(Mutex::new(StockedIds::default()));
        let places = Arc::new(KnownPlaces { catalog: Arc::clone(catalog), broker: Arc::clone(broker) });
        let journal = Box::new(Handle(Some(Arc::clone(&log))));
        let config = TransactionConfig::default();
        let mut coordinator = Transactions::new(config, journal, Box::new(Ids(Arc::clone(&ids))), places);
        let Own { aborted, wound_down, is_damaged, in_doubt } = read_own(&log, &mut coordinator, accept_damage)?;
        let own = TransactionPart::new((0, 0), coordinator, Left::default(), Some(log));
        let refusing = |code| {
            let mut coordinator = shared(catalog, &ids, None);
            coordinator.close(code);
            coordinator
        };
        let parts = TransactionParts::new(refusing, broker, clock);
        if catalog.info_of_transactions().is_none() && broker.ownership().nodes().len() < 2 {
            parts.set_alone(Arc::clone(&own));
        }
        let transactions = TransactionDoor {
            own,
            // It is said again behind what is written anew.
            wound_down: AtomicBool::new(wound_down && !is_damaged),
            has_kept: AtomicBool::new(false),
            parts,
            partitions: Partitions::default(),
            ids,
            waiting: EndWaits::default(),
            claims: EndWaits::default(),
            requests,
            wanted_ms: Mutex::default(),
            catalog: Arc::clone(catalog),
            broker: Arc::clone(broker),
            clock: Arc::clone(clock),
            events,
        };
        transactions.partitions.restore(aborted.into_values());
        let refused = |AppendFailed| io::Error::other(format!("{TRANSACTIONS_STREAM} takes no records"));
        transactions.settle(&in_doubt, pending).map_err(refused)?;
        transactions.start().map_err(refused)?;
        if !transactions.is_alone() {
            transactions.wind_down();
        }
        if is_damaged {
            transactions.write_anew().map_err(refused)?;
        }
        Ok(transactions)
    }

    /// Asks the partitions what has become of transactions whose end the journal may have lost.
    fn settle(&self, in_doubt: &BTreeSet<String>, pending: &[(String, i64)]) -> Result<(), AppendFailed> {
        let mut state = self.own.state.lock();
        let aborted = settle(&mut state.all, in_doubt, pending, |stream, partition| self.lane(stream, partition))?;
        drop(state);
        self.partitions.restore(aborted);
        Ok(())
    }

    /// Brings what the journal says in line with what the partitions hold, and goes on with it.
    fn start(&self) -> Result<(), AppendFailed> {
        for ((stream, partition), of) in self.partitions.all() {
            let Some(lane) = self.lane(stream, partition as i32) else {
                self.partitions.remove((stream, partition));
                continue;
            };
            if is_shared(&lane) {
                continue;
            }
            let cut = of.lock().take_cut(lane.next_ordinal());
            for range in cut {
                self.end_again(&lane, &of, &range)?;
            }
            of.lock().trim(lane.earliest().1);
        }
        let mut state = self.own.state.lock();
        let end_of = |of: &OffsetKey, touched: &Touched| {
            let lane = self.lane(touched.stream, of.partition).filter(|lane| !is_shared(lane));
            lane.map(|lane| lane.next_ordinal())
        };
        if state.all.lower(end_of)? {
            // That stands behind the record now, which is to be the last.
            self.wound_down.store(false, Ordering::Relaxed);
        }
        for Unfinished { producer_id, of, touched, is_handed_over, .. } in state.all.unfinished() {
            if let Ok(partition) = u32::try_from(of.partition) {
                let of = self.partitions.get_or_make(touched.stream, partition);
                let mut of = of.lock();
                of.wrote(producer_id, touched.from_offset);
                if is_handed_over {
                    of.hand_over(producer_id, touched.from_offset);
                }
            }
        }
        state.all.start(self.now());
        let endings = state.all.take_endings();
        drop(state);
        // Before anybody is served.
        for ((stream, partition), of) in self.partitions.all() {
            if let Some(lane) = self.lane(stream, partition as i32) {
                only_committed(&lane, &of);
            }
        }
        self.carry_out(&self.own, endings);
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
        self.own_log()?.append(&ended.map(Entry::Aborted).into_iter().collect::<Vec<_>>()).map(drop)
    }

    fn own_log(&self) -> Result<&Arc<StateLog<Entry>>, AppendFailed> {
        self.own.log.as_ref().ok_or(AppendFailed)
    }

    /// The lane of a partition, if its stream is there.
    pub(crate) fn lane(&self, stream: StreamId, partition: i32) -> Option<Arc<Lane>> {
        #[cfg(test)]
        LOOKED_UP.set(LOOKED_UP.get() + 1);
        let info = self.catalog.coordinator.stream(&StreamRef::Id(stream)).ok()?;
        topic_of(&self.broker, &info)?.lane(partition).cloned()
    }

    pub(crate) fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    /// What an answer that rests on `mark` of a node that is alone waits for.
    pub(crate) fn after(&self, mark: Option<Mark>) -> Option<After> {
        self.own.after(mark)
    }

    /// Whether the node coordinates all transactions.
    pub(crate) fn is_alone(&self) -> bool {
        self.parts.is_alone()
    }

    fn carry_out(&self, part: &Arc<TransactionPart>, endings: Vec<Ending>) {
        for ending in endings {
            // If nobody listens the node stops: what is decided is carried out after its next start.
            let _ = self.events.send(Event::Ending(Arc::clone(part), Box::new(ending)));
        }
    }

    /// Calls a coordinator, and has carried out what it decides.
    fn call<T>(&self, part: &Arc<TransactionPart>, act: impl FnOnce(&mut Transactions, Now) -> T) -> T {
        let mut state = part.state.lock();
        let done = act(&mut state.all, self.now());
        let endings = state.all.take_endings();
        drop(state);
        self.carry_out(part, endings);
        done
    }

    /// Gives a request to the coordinator. Its answer comes through `reply`.
    pub(crate) fn handle(&self, request: &Request, body: &[u8], reply: &Reply) -> Result<(), Malformed> {
        let version = request.version;
        macro_rules! call {
            ($method:ident, $request:ty, $id:ident) => {{
                let asked: $request = decode(request, body)?;
                let part = self.parts.find(&asked.$id);
                let Replied { after, response } = self.call(&part, |all, now| all.$method(now, version, &asked));
                (part.after(after), encode(request, &response)?)
            }};
        }
        let (after, answer) = match request.api.key {
            ApiKey::AddPartitionsToTxn => {
                call!(add_partitions, AddPartitionsToTxnRequest, v3_and_below_transactional_id)
            }
            ApiKey::AddOffsetsToTxn => call!(add_offsets, AddOffsetsToTxnRequest, transactional_id),
            ApiKey::EndTxn => call!(end, EndTxnRequest, transactional_id),
            ApiKey::DescribeTransactions => (None, encode(request, &self.describe(&decode(request, body)?))?),
            ApiKey::ListTransactions => (None, encode(request, &self.list(&decode(request, body)?))?),
            key => return Err(Malformed::Decode(format!("{key:?} is not the transaction coordinator's"))),
        };
        reply.put_after(answer, after);
        Ok(())
    }

    /// DescribeTransactions: each id is described, or not, by the part that it belongs to.
    fn describe(&self, asked: &DescribeTransactionsRequest) -> DescribeTransactionsResponse {
        let states = once(&asked.transactional_ids, |id| (*id).clone()).enumerate().flat_map(|(at, id)| {
            if at >= DESCRIBED_MAX {
                if at == DESCRIBED_MAX {
                    tell("transactional ids of one request", id, DESCRIBED_MAX);
                }
                let refused = TransactionState::default().with_transactional_id(id.clone());
                return vec![refused.with_error_code(ResponseError::InvalidRequest.code())];
            }
            let one = DescribeTransactionsRequest::default().with_transactional_ids(vec![id.clone()]);
            self.parts.find(id).state.lock().all.describe(&one).transaction_states
        });
        DescribeTransactionsResponse::default().with_transaction_states(states.collect())
    }

    /// ListTransactions: those that this node coordinates.
    fn list(&self, asked: &ListTransactionsRequest) -> ListTransactionsResponse {
        let mut listed = ListTransactionsResponse::default();
        for part in self.parts.listed() {
            let more = part.state.lock().all.list(self.now(), asked);
            if more.error_code != 0 {
                return more;
            }
            listed.unknown_state_filters = more.unknown_state_filters;
            listed.transaction_states.extend(more.transaction_states);
        }
        listed
    }

    /// InitProducerId with a transactional id. Blocks while another id comes from the catalog.
    pub(crate) fn init(&self, version: i16, asked: &InitProducerIdRequest) -> (InitProducerIdResponse, Option<After>) {
        self.stock_ids();
        let part = self.parts.find(asked.transactional_id.as_deref().map_or("", |id| id));
        let Replied { after, response } = self.call(&part, |all, now| all.init(now, version, asked));
        (response, part.after(after))
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
            Err(error) => tell_no_id(&error),
        }
    }

    /// Whether a producer may write to a partition in its transaction now; under the partition's lock, so that the answer
    /// holds until the batch is there. `adds`: the partition is added to the transaction if it is not in it, as where its topic was made again.
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
        let mut state = self.own.state.lock();
        let coordinator = &mut state.all;
        let mut checked = coordinator.check_produce(id, producer, &of, stream);
        if checked == Err(ResponseError::InvalidTxnState) && coordinator.may_add(id, producer, &of, stream, adds) {
            let touched = Touched { stream, from_offset: lane.durable_ordinal() };
            let added = coordinator.add_partition(self.now(), id, producer, of.clone(), touched);
            checked = added.and_then(|_| coordinator.check_produce(id, producer, &of, stream));
        }
        match checked {
            Ok(mark) => self
                .after(mark)
                .filter(|after| !after.is_durable())
                .map_or(MayWrite::Yes, |after| MayWrite::Later(Some(after))),
            Err(ResponseError::ConcurrentTransactions) if adds => {
                // Under the coordinator's lock: whoever ends the transaction looks at this behind it.
                self.waiting.add(id.to_owned(), Arc::clone(observer));
                MayWrite::Later(None)
            }
            Err(code) => MayWrite::No(produce_error(code)),
        }
    }

    /// Adds the partitions of batches that wait for their turn to the producer's transaction, as far as they may be: why one may not is said in its turn.
    pub(crate) fn add_ahead(&self, id: &str, claims: &[Claim]) {
        self.own.state.lock().all.add_ahead(self.now(), id, claims);
    }

    /// Whether a producer may commit offsets of a group in its transaction now; under the groups' lock. `adds`: the group is
    /// added to the transaction if it is not in it.
    pub(crate) fn may_commit(&self, asked: &TxnOffsetCommitRequest, adds: bool) -> MayWrite {
        let producer = (asked.producer_id.0, asked.producer_epoch);
        let id = &**asked.transactional_id;
        let mut state = self.own.state.lock();
        let coordinator = &mut state.all;
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

    /// A transaction's markers are durable and its groups know, on a node that is alone.
    pub(crate) fn ended(&self, ending: &Ending, aborted: &[AbortedRange]) -> Result<(), AppendFailed> {
        let ended = self.call(&self.own, |all, now| all.ended(now, ending, aborted)).map(drop);
        look_again(&self.waiting.take(&ending.id));
        ended
    }

    /// What is left of it is for the coordinators of the cluster to end, since other nodes own the partitions.
    pub(crate) fn hand_over(
        &self,
        ending: &Ending,
        left: &[(OffsetKey, Touched)],
        aborted: &[AbortedRange],
    ) -> Result<(), AppendFailed> {
        let is_handed_over = self.call(&self.own, |all, now| all.hand_over(now, ending, left, aborted))?;
        for (of, touched) in left.iter().filter(|_| is_handed_over) {
            if let Some(partition) = self.partitions.get(touched.stream, of.partition) {
                partition.lock().hand_over(ending.producer_id, touched.from_offset);
            }
        }
        // Its end is not told here: who waits for it asks elsewhere.
        look_again(&self.waiting.take(&ending.id));
        Ok(())
    }

    /// A transaction of a cluster has ended: see [`TransactionPart::ended`].
    pub(crate) fn ended_far(
        &self,
        part: &TransactionPart,
        ending: &Ending,
        marked: &[Marked],
        aborted: &[AbortedRange],
    ) -> Result<Vec<usize>, AppendFailed> {
        let ended = part.ended(self.now(), ending, marked, aborted);
        // Not before: until then each would wait once more, as one that has just come.
        if ended.as_ref().is_ok_and(|again| again.is_empty()) {
            self.claim_again(self.claims.take(&ending.id), true);
        }
        ended
    }

    /// A claim of a group's coordinator.
    pub(crate) fn claim_group(&self, awaited: &mut Awaited, asked: &ClaimGroup, replying: Replying) {
        let part = self.parts.find(&asked.id);
        let producer = (asked.producer_id.0.cast_signed(), asked.producer_epoch.0.cast_signed());
        let mut state = part.state.lock();
        let mut checked = state.all.check_group(&asked.id, producer, &asked.group);
        if asked.adds && checked == Err(ResponseError::InvalidTxnState) {
            checked = state.all.add_group(self.now(), &asked.id, producer, &asked.group);
        }
        let number = state.all.number(&asked.id);
        drop(state);
        let (error, mark) = match checked {
            Ok(mark) => (0, mark),
            Err(code) => (code.code(), None),
        };
        let answer = GroupClaimed { error: error.cast_unsigned(), number, part_epoch: part.epoch };
        replying.give(awaited, Served::Now(answer, part.after(mark).into_iter().collect()));
    }

    /// A stream as the catalog has it, or whether it may still come.
    fn find(&self, stream: StreamId) -> Heard<StreamInfo> {
        let coordinator = &self.catalog.coordinator;
        self.broker.ownership().find(stream, || coordinator.stream(&StreamRef::Id(stream)).ok())
    }

    /// What a part that is here knows of streamlets, for whoever has become their owner.
    pub(crate) fn known_in(&self, asked: &TransactionsIn) -> Served<TransactionsHeld> {
        let part = self.parts.part(asked.part);
        let Some(log) = part.log.as_ref().filter(|_| part.number == asked.part) else {
            return Served::Later(format!("streamlet {} of {STREAM} is not served here now", asked.part));
        };
        let mut lanes = HashMap::new();
        for of in &asked.streamlets {
            match self.find(of.stream) {
                Heard::Of(info) => _ = lanes.insert(of.stream, info.options.lanes.max(1)),
                // Its owner has heard of it before this node, and so may producers that have claimed it here.
                Heard::NotYet => {
                    return Served::Later(format!("this node has not heard of stream {} yet", of.stream));
                }
                Heard::Gone => {}
            }
        }
        let mut state = part.state.lock();
        if part.is_closed() {
            return Served::Later("the node is not the coordinator any more".to_owned());
        }
        let mut known = TransactionsHeld { epoch: part.epoch, open: Vec::new(), aborted: Vec::new() };
        let wanted: HashMap<_, _> =
            asked.streamlets.iter().map(|of| ((of.stream, of.streamlet.0), of.owner_epoch)).collect();
        let mut told_open = HashSet::new();
        for Unfinished { producer_id, epoch, of, touched, .. } in state.all.unfinished() {
            let (Some(lanes), Ok(partition)) = (lanes.get(&touched.stream), u32::try_from(of.partition)) else {
                continue;
            };
            let streamlet = (touched.stream, place_of(partition, *lanes).0.0);
            if wanted.contains_key(&streamlet) {
                told_open.insert(streamlet);
                known.open.push(OpenTransaction {
                    stream: touched.stream,
                    partition,
                    producer_id: ProducerId(producer_id.cast_unsigned()),
                    producer_epoch: ProducerEpoch(epoch.cast_unsigned()),
                    from_offset: touched.from_offset,
                });
            }
        }
        // Whoever was not told of anything open waits for no marker.
        for streamlet in told_open {
            let epoch = state.asked.entry(streamlet).or_default();
            *epoch = (*epoch).max(wanted[&streamlet]);
        }
        for of in &asked.streamlets {
            let Some(lanes) = lanes.get(&of.stream) else { continue };
            let first = of.streamlet.0.saturating_mul(*lanes);
            let left = state.left.of(of.stream, first, first.saturating_add(*lanes));
            known.aborted.extend(left.map(to_records));
        }
        let after = part.after(Some(log.last_mark()));
        drop(state);
        Served::Now(known, after.into_iter().collect())
    }

    /// Whether transactions are served: not while a node of the cluster runs a version that does not know how.
    pub(crate) fn are_served(&self, door: &Door) -> bool {
        !door.is_in_cluster() || door.others().is_none_or(|others| others.serves_transactions())
    }

    /// The node that coordinates a transactional id.
    pub(crate) fn node_of(&self, door: &Door, id: &str) -> Result<i32, ResponseError> {
        if self.is_alone() {
            return Ok(door.node_id());
        }
        if !self.are_served(door) {
            return Err(ResponseError::InvalidRequest);
        }
        let Some((stream, streamlet)) = self.parts.streamlet_of(id) else {
            self.wanted_ms.lock().get_or_insert_with(|| self.now().mono_ms);
            return Err(ResponseError::CoordinatorNotAvailable);
        };
        let owner = door.broker.ownership().owner(stream.id(), streamlet).filter(|owner| owner.node != 0);
        // It may be another one by now than this node has heard of.
        let owner = owner.filter(|_| door.broker.is_confirmed());
        owner.map(|owner| owner.node as i32).ok_or(ResponseError::CoordinatorNotAvailable)
    }

    /// Has coordinators made of a cluster to which this node has brought transactions, before any partition moves: its next owner learns from them alone
    /// what was aborted there.
    pub(crate) fn bring_along(&self, door: &Door) {
        if self.has_kept.load(Ordering::Relaxed) && self.are_served(door) {
            self.wanted_ms.lock().get_or_insert_with(|| self.now().mono_ms);
        }
    }

    /// Looks at whose the transactional ids are now: what is to be read. In a cluster, on one thread; blocks while the coordinators of
    /// the cluster make the stream.
    pub(crate) fn follow(&self) -> Vec<TransactionLoad> {
        let nodes = self.broker.ownership().nodes().len();
        if self.parts.stream().is_none() {
            let info = self.catalog.info_of_transactions();
            let stream = info.and_then(|info| self.broker.log().stream(info.id));
            if stream.is_none() && nodes < 2 {
                return Vec::new();
            }
            let is_made = stream.is_some();
            if is_made || self.parts.is_alone() {
                self.parts.set_shared(stream);
                self.wind_down();
            }
            if !is_made {
                self.make_stream(nodes);
                return Vec::new();
            }
        }
        self.parts.follow()
    }

    /// The node is one of several: what it has kept for itself comes to its end, and then belongs to the coordinators of the cluster
    /// ([`crate::transaction_founding`]).
    fn wind_down(&self) {
        let has_ids = !self.own.state.lock().all.is_empty();
        let has_some = has_ids || self.partitions.all().iter().any(|(_, of)| !of.lock().ranges().is_empty());
        self.has_kept.store(has_some, Ordering::Relaxed);
        self.call(&self.own, |all, now| all.wind_down(now, ResponseError::NotCoordinator));
        look_again(&self.waiting.take_all());
    }

    /// Whether all transactions of a node that is or was alone are over: recorded as such, and so told to their groups.
    pub(crate) fn own_is_at_rest(&self) -> bool {
        self.own.state.lock().all.is_at_rest()
    }

    /// The groups of transactions that have not ended there, each with its producer.
    pub(crate) fn own_groups(&self) -> HashSet<(String, i64)> {
        self.own.state.lock().all.unfinished_groups()
    }

    /// Records that nothing is left to do there, once that is so.
    fn record_wound_down(&self) {
        if self.wound_down.load(Ordering::Relaxed) {
            return;
        }
        let state = self.own.state.lock();
        let is_recorded = state.all.is_at_rest() && self.own_log().and_then(|log| log.append(&[wound_down()])).is_ok();
        drop(state);
        self.wound_down.store(is_recorded, Ordering::Relaxed);
    }

    /// Has the stream of the cluster's transactions made if somebody wants it, in as many copies as there are nodes for.
    fn make_stream(&self, nodes: usize) {
        let Some(since_ms) = *self.wanted_ms.lock() else { return };
        let most = nodes.min(COPIES_MAX);
        let copies = if self.now().mono_ms.saturating_sub(since_ms) < NODES_WAIT_MS { COPIES_MAX } else { 2 };
        if copies > most {
            return;
        }
        match self.catalog.coordinator.system_stream(STREAM, &stream_options(copies as u32)) {
            Ok(info) => {
                tracing::info!(copies = info.options.replication, "the cluster keeps Kafka transactions from here on");
            }
            Err(error) => tracing::debug!(%error, "the cluster cannot keep Kafka transactions yet"),
        }
    }

    /// Reads what has come to a door, unless it leaves before: see [`TransactionLoad::run`]. Of a streamlet that nobody has written to that is
    /// what a node has kept that was alone.
    pub(crate) fn read(&self, door: &Door, load: &TransactionLoad, go_on: impl Fn() -> bool + Sync) {
        let empty = |log| shared(&self.catalog, &self.ids, Some(log));
        let Some(part) = load.run(&self.broker, empty, || door.others(), &go_on) else { return };
        // What was decided is ended once the part is served: its first marker names an owner that does not decide any more.
        if take_over(door, &part, go_on) && self.parts.loaded(load, &part) {
            self.call(&part, |all, now| all.start(now));
        }
    }

    /// What time brings: transactions that ran too long, ids that nobody uses, a copy of the log when it has grown. Waits for nobody: markers are
    /// written on the same thread.
    pub(crate) fn tick(&self) {
        let is_due = |all: &Transactions, now: Now| all.next_deadline_ms().is_some_and(|at| at <= now.mono_ms);
        let act = |part: &Arc<TransactionPart>| {
            self.call(part, |all, now| {
                if is_due(all, now) {
                    all.tick(now);
                }
            });
        };
        act(&self.own);
        if self.own_is_shared() {
            self.record_wound_down();
            self.own.log.iter().for_each(|log| log.trim());
            for part in self.parts.here() {
                act(&part);
                self.copy_far(&part);
            }
        } else {
            self.copy(COPY_BYTES_MIN);
        }
        let late_ms = self.now().mono_ms.saturating_sub(CLAIM_WAIT_MS);
        self.claim_again(self.claims.take_if(|claim| claim.since_ms <= late_ms), false);
    }

    /// Has an id for a producer ready if somebody has found none. Blocks while it comes from the catalog: of a cluster that has no leader, for ten
    /// seconds, and again at once.
    pub(crate) fn stock_wanted(&self) {
        let wanted = self.ids.lock().wanted;
        if wanted {
            self.stock_ids();
        }
    }

    /// Whether the node is one of a cluster, so that its partitions know what other coordinators keep.
    fn own_is_shared(&self) -> bool {
        self.broker.ownership().node() != 0 && !self.is_alone()
    }

    /// Writes everything of a node that is alone anew if the log has grown by `bytes_min`. If it breaks off, what is there stays and
    /// counts. Whether it was done, and how many records were written.
    ///
    /// Aborted ranges are told by the partitions, which are not looked at under the coordinator's lock. None is missed: those
    /// in the log before the copy were in their partitions before that, and those behind it stay.
    pub(crate) fn copy(&self, bytes_min: u64) -> (bool, usize) {
        let Some(log) = &self.own.log else { return (false, 0) };
        log.trim();
        let state = self.own.state.lock();
        let Some((from, added)) = log.begin_copy(bytes_min) else { return (false, 0) };
        let Ok(mut copied) = copy_ids(log, &state.all) else { return (false, 0) };
        drop(state);
        for (_, of) in self.partitions.all() {
            let ranges: Vec<Entry> = of.lock().ranges().iter().copied().map(Entry::Aborted).collect();
            if ranges.chunks(COPY_STEP_RANGES).any(|piece| log.append(piece).is_err()) {
                return (false, copied);
            }
            copied += ranges.len();
        }
        log.end_copy(from, added);
        (true, copied)
    }

    /// Writes what is known anew, and where that begins and ends: once it is durable the next start does without what could not be read.
    fn write_anew(&self) -> Result<(), AppendFailed> {
        let log = self.own_log()?;
        log.append_edge(Edge::Begin)?;
        if !self.copy(0).0 {
            return Err(AppendFailed);
        }
        log.append_edge(Edge::End).map(drop)
    }

    /// The same of a part of a cluster, which knows its aborted ranges itself. It says where it begins and ends, for an earlier owner may keep what this node's log
    /// need not repeat.
    fn copy_far(&self, part: &TransactionPart) {
        let Some(log) = &part.log else { return };
        log.trim();
        let state = part.state.lock();
        let Some((from, added)) = log.begin_copy(log.copied_from(COPY_BYTES_MIN)) else { return };
        let left: Vec<Entry> = state.left.all().copied().map(Entry::Aborted).collect();
        let is_copied = log.append_edge(Edge::Begin).is_ok()
            && copy_ids(log, &state.all).is_ok()
            && left.chunks(COPY_STEP_RANGES).all(|piece| log.append(piece).is_ok())
            && log.append_edge(Edge::End).is_ok();
        if is_copied {
            log.end_copy(from, added);
        }
    }

    /// Forgets what a partition no longer has.
    ///
    /// Where it begins and ends is looked at under the lock under which coordinators tell what they know of a partition that has come. A streamlet that is taken over is emptied and
    /// told where it ends: whoever looked then, and forgot behind that what is in front, would forget what they have told, and its readers would be shown what was aborted.
    fn trim_partition(&self, lane: &Lane, of: &mut PartitionTransactions) {
        if of.is_loading() {
            return;
        }
        let first = match lane.tenure() {
            Tenure::Elsewhere => {
                let (ownership, stream, streamlet) = (self.broker.ownership(), lane.stream_id(), lane.streamlet_id());
                // One that is named for this node is about to be opened here.
                let is_others = ownership.owner(stream, streamlet).is_some_and(|owner| owner.node != ownership.node());
                is_others.then(|| lane.earliest().1)
            }
            // What other nodes have of a partition that is here is read through here, and what was aborted in it is to be passed over.
            Tenure::Here | Tenure::LettingGo => Some(shown_from(lane)),
        };
        first.into_iter().for_each(|first| of.trim(first));
        of.take_out_ended(lane.durable_ordinal());
    }

    /// Forgets what partitions no longer have, and counts what they still remember.
    pub(crate) fn trim_partitions(&self) {
        let mut ranges = 0;
        for ((stream, partition), of) in self.partitions.all() {
            match self.lane(stream, partition as i32) {
                Some(lane) => {
                    let mut of = of.lock();
                    self.trim_partition(&lane, &mut of);
                    ranges += of.ranges().len();
                }
                None => self.partitions.remove((stream, partition)),
            }
        }
        self.own.state.lock().all.count_aborted(ranges);
        if self.own_is_shared() {
            // What this node has not heard of is not gone.
            let is_there = |stream| self.find(stream) != Heard::Gone;
            for part in self.parts.here() {
                let mut state = part.state.lock();
                let ranges = state.left.keep(is_there);
                state.asked.retain(|(stream, _), _| is_there(*stream));
                state.all.count_aborted(ranges);
            }
        }
    }

    /// The partitions in which transactions of the parts that are here have left something.
    pub(crate) fn left_in(&self) -> BTreeSet<(StreamId, u32)> {
        let parts = self.parts.here();
        parts.iter().flat_map(|part| part.state.lock().left.partitions().collect::<Vec<_>>()).collect()
    }

    /// A partition starts at `start` now.
    pub(crate) fn trim_left(&self, stream: StreamId, partition: u32, start: u64) {
        self.parts.here().iter().for_each(|part| part.state.lock().left.trim(stream, partition, start));
    }

    /// The streamlet of an id in a cluster.
    #[cfg(test)]
    pub(crate) fn part_of(&self, id: &str) -> (StreamId, u32) {
        let (stream, streamlet) = self.parts.streamlet_of(id).unwrap();
        (stream.id(), streamlet.0)
    }

    /// Whether the cluster is to have a stream of transactions.
    #[cfg(test)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_ms.lock().is_some()
    }

    /// Somebody has found no id.
    #[cfg(test)]
    pub(crate) fn want_id(&self) {
        self.ids.lock().wanted = true;
    }

    /// A part that is here.
    #[cfg(test)]
    pub(crate) fn part(&self, number: u32) -> Arc<TransactionPart> {
        self.parts.part(number)
    }

    #[cfg(test)]
    pub(crate) fn stream_of(&self, topic: &str) -> StreamId {
        self.catalog.info(topic).unwrap().id
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> &Arc<StateLog<Entry>> {
        self.own.log.as_ref().unwrap()
    }
}

/// The coordinator of a part of a cluster's ids, with nothing in it. Without a log nothing can be recorded.
fn shared(catalog: &Arc<Catalog>, ids: &Arc<Mutex<StockedIds>>, log: Option<Arc<StateLog<Entry>>>) -> Transactions {
    let all = TransactionConfig::default();
    let (ids_max, aborted_max) = (all.ids_max / SHARE, all.aborted_max / SHARE);
    let config = TransactionConfig { ids_max, aborted_max, ..all };
    let places = Arc::new(NamedPlaces(Arc::clone(catalog)));
    Transactions::new(config, Box::new(Handle(log)), Box::new(Ids(Arc::clone(ids))), places)
}

#[cfg(test)]
thread_local! {
    /// How many partitions were looked up in the catalog and the log.
    pub(crate) static LOOKED_UP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Who has waited for the end of a transaction looks whether it may write now.
fn look_again(waited: &[Arc<dyn Observer>]) {
    waited.iter().for_each(|one| one.advanced(0));
}

/// Whether a lane is a cluster's, whose owners take over all that was acknowledged: nothing of it is lost with the power of one. What is here of
/// one that is elsewhere, or not opened yet since the node has started, says nothing of where it ends.
fn is_shared(lane: &Lane) -> bool {
    lane.owner_epoch() != 0 || lane.tenure() == Tenure::Elsewhere
}

/// The thread that follows whose the transactional ids are, and asks the cluster's coordinators for what the node wants without a command: streams to keep
/// groups and transactions in, ids for producers. Each of these waits for a leader, and holds up that ids are read which have come just before; readers
/// do not wait here ([`crate::group_door::follow`]). It ends when the door is gone, and so do those that read for it.
pub(crate) fn follow(door: &Weak<Door>) {
    let mut readers: Vec<JoinHandle<()>> = Vec::new();
    while let Some(strong) = door.upgrade().filter(|door| !door.is_closing()) {
        strong.transactions.bring_along(&strong);
        for load in strong.transactions.follow() {
            let weak = Weak::clone(door);
            let thread = std::thread::Builder::new().name("kera-kafka-load".into()).stack_size(1 << 20);
            let read = move || {
                if let Some(door) = weak.upgrade() {
                    door.transactions.read(&door, &load, || !door.is_closing());
                }
            };
            match thread.spawn(read) {
                Ok(reader) => readers.push(reader),
                Err(error) => tracing::error!(%error, "no thread to read Kafka transactions with; restart the node"),
            }
        }
        strong.groups.make_wanted(&strong.catalog, &strong.broker);
        strong.transactions.stock_wanted();
        drop(strong);
        readers.retain(|reader| !reader.is_finished());
        std::thread::sleep(FOLLOW);
    }
    for reader in readers {
        if reader.join().is_err() {
            tracing::error!("a thread that read Kafka transactions ended with a panic");
        }
    }
}

/// What Produce answers where the coordinator refuses: as Kafka's brokers, whose producers know these. Of what is wrong with a coordinator, here or at another
/// node, they hear nothing but to try again: they have asked a partition's leader.
pub(crate) fn produce_error(code: ResponseError) -> ResponseError {
    match code {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        ResponseError::ConcurrentTransactions => ResponseError::NotEnoughReplicas,
        code if is_about_coordinators(code) => ResponseError::NotEnoughReplicas,
        code => code,
    }
}
