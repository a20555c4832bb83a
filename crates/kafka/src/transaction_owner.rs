//! What the owner of a partition has to do with transactions whose coordinators are other nodes
//! (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).
//!
//! What it knows of them is in memory. When a streamlet comes to this node all coordinators are asked what they know of it; until they have
//! answered, readers of committed records, native readers and transactional producers of the streamlet's partitions wait. Then the first
//! batch of a producer's transaction has its coordinator asked, once, whether it belongs to one; and markers are written when the
//! coordinator says so.
//!
//! A cluster has coordinators once somebody wants them, and streamlets may have come to this node before: with what was aborted at a node that
//! was alone, which no coordinator told. So those are remembered, and asked about when there are coordinators. What was shown of them stays
//! shown meanwhile ([`TransactionOwner::look_at_early`]).
//!
//! Called on I/O threads, on the thread for what other nodes ask and on the one that follows owners; never waits. Order of locks: a
//! partition's, then those here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use kafka_protocol::ResponseError;
use kera_broker::Opening;
use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_format::kafka_transactions::AbortedRange;
use kera_format::{GroupId, ProducerEpoch, ProducerId, StreamId, StreamletId};
use kera_log::{AppendError, Lane, Observer, Stream, Streamlet, Tenure};
use kera_protocol::admin::{StreamInfo, StreamRef};
use kera_protocol::{
    AbortedRecords, ClaimPartition, EndInPartitions, EndedPartition, OwnedStreamlet, PartitionClaimed, PartitionEnded,
    PartitionsEnded, TransactionsHeld, TransactionsIn,
};
use parking_lot::Mutex;

use crate::door::{After, Door};
use crate::endings::append_marker;
use crate::floors::first_here;
use crate::node_requests::Served;
use crate::numbering::partition_at;
use crate::state_parts::streamlet_of;
use crate::transaction_door::{MayWrite, produce_error};
use crate::transaction_partitions::SharedPartition;
use crate::transaction_parts::STREAM;
use crate::transactions::PartitionTransactions;
use crate::visibility::only_committed;

/// Streamlets of which all coordinators are asked at once, if that goes well.
const ASKED_MAX: usize = 4_096;
/// How often what earlier owners still show of transactions that had not ended is asked for again, in looks.
const REFRESH_LOOKS: u32 = 50;

type Place = (StreamId, StreamletId);

/// See the module.
#[derive(Default)]
pub(crate) struct TransactionOwner {
    loads: Mutex<Loads>,
    early: Mutex<Early>,
    /// The highest owner epoch that was heard of, by streamlet of the coordinators' stream.
    epochs: Mutex<HashMap<u32, u32>>,
    /// Sessions that are to look again a little later.
    later: Mutex<Vec<Arc<dyn Observer>>>,
}

/// Streamlets that have come with records while the cluster had no coordinators, until these have told what they know of them.
#[derive(Default)]
struct Early {
    places: BTreeSet<Place>,
    /// There are coordinators now, and they are to be asked: no more come.
    are_asked: bool,
}

#[derive(Default)]
struct Loads {
    /// What coordinators are to be asked about, with this node's owner epoch; 0: another node owns it, this one has a part.
    queue: BTreeMap<Place, u32>,
    /// They are being asked. An answer that comes to an earlier batch does not count.
    asking: Option<Asking>,
    /// How many are asked about less than that, by halves: what a coordinator knows of many may be too much for an answer.
    halved: u32,
    looks: u32,
}

impl Loads {
    /// They are to be asked about once more, unless something else has come up of them since.
    fn again(&mut self, streamlets: &[OwnedStreamlet]) {
        for OwnedStreamlet { stream, streamlet, owner_epoch } in streamlets {
            self.queue.entry((*stream, *streamlet)).or_insert(*owner_epoch);
        }
    }
}

/// Coordinators that are being asked.
struct Asking {
    /// The node that was asked for each part.
    nodes: Vec<Option<u32>>,
    batch: Arc<Mutex<Batch>>,
}

/// What all coordinators are asked in one go.
struct Batch {
    streamlets: Vec<OwnedStreamlet>,
    left: usize,
    failed: bool,
    told: Vec<TransactionsHeld>,
}

/// A coordinator's answer to a session that waits for it.
#[derive(Default)]
pub(crate) struct Question(Mutex<Option<Result<(), ResponseError>>>);

impl Question {
    /// The answer, once.
    pub(crate) fn take(&self) -> Option<Result<(), ResponseError>> {
        self.0.lock().take()
    }

    /// Whether it is there.
    pub(crate) fn is_answered(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(crate) fn answer(&self, answer: Result<(), ResponseError>, observer: &Arc<dyn Observer>) {
        *self.0.lock() = Some(answer);
        observer.advanced(0);
    }
}

/// A batch that wants to be part of a transaction.
pub(crate) struct Wish<'a> {
    pub(crate) id: &'a str,
    pub(crate) producer: (i64, i16),
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    /// The partition is added to the transaction if it is not in it.
    pub(crate) adds: bool,
}

/// Tells a door of streamlets that come to the node.
struct Watch(Weak<Door>);

impl Opening for Watch {
    fn opening(&self, stream: StreamId, streamlet: &Streamlet, epoch: u32) {
        if let Some(door) = self.0.upgrade()
            && let Some(stream) = door.broker.log().stream(stream)
            && may_have_transactions(&door, &stream)
            && !door.owner.is_early(&door, stream.id(), streamlet)
        {
            // From here on it is as any that comes. Until it is loading it stays early: nothing begins or ends in it in between.
            let place = (stream.id(), streamlet.id());
            let was_early = door.owner.early.lock().places.contains(&place);
            door.owner.begin(&door, &stream, streamlet, epoch, was_early);
            door.owner.early.lock().places.remove(&place);
        }
    }
}

impl TransactionOwner {
    /// Has the broker tell of streamlets that come, and looks at those that are here. Before anybody is served.
    pub(crate) fn watch(door: &Arc<Door>) {
        door.broker.set_opening(Arc::new(Watch(Arc::downgrade(door))));
        for stream in door.broker.log().streams().iter().filter(|stream| may_have_transactions(door, stream)) {
            for number in 0..stream.streamlet_count() {
                let Some(streamlet) = stream.streamlet(StreamletId(number)) else { continue };
                if !door.owner.is_early(door, stream.id(), streamlet) {
                    let epoch = if streamlet.tenure() == Tenure::Elsewhere { 0 } else { streamlet.owner_epoch() };
                    door.owner.begin(door, stream, streamlet, epoch, true);
                }
            }
        }
    }

    /// Whether a streamlet comes before there are coordinators; it is remembered. Under the lock, so that whoever finds that there are some finds it.
    fn is_early(&self, door: &Door, stream: StreamId, streamlet: &Streamlet) -> bool {
        let mut early = self.early.lock();
        let is_early = coordinators(door).is_none();
        if is_early && streamlet.lanes().any(|lane| lane.next_ordinal() > 0) {
            early.places.insert((stream, streamlet.id()));
        }
        is_early
    }

    /// Whether a streamlet came early, and coordinators have not told of it yet: what happens in it meanwhile would be taken for all that there is.
    fn came_early(&self, lane: &Lane) -> bool {
        self.early.lock().places.contains(&(lane.stream_id(), lane.streamlet_id()))
    }

    /// The cluster may have coordinators now: they are asked about the streamlets that came before.
    ///
    /// What was shown of these stays shown until the coordinators have told, for the first producer with a transaction would hold back all
    /// readers of all streams otherwise, for as long as it takes to found coordinators, of whom some wait for nodes that are lost. Nothing
    /// is shown by that which was not shown before: no coordinator has granted anything in them, since claims are refused where a
    /// streamlet came early, so the cluster's transactions have written nothing there. What a node that was alone has open is hidden at that node by its own
    /// journal, as is what was aborted there; where such a streamlet has gone by now it was shown without it ever since it came, and a cluster that is
    /// founded with transactions has coordinators before anything moves by itself. Markers wait like claims: one that is written before what
    /// was told is taken in would look like the first that there is.
    fn look_at_early(&self, door: &Door) {
        let mut early = self.early.lock();
        if early.are_asked || coordinators(door).is_none() {
            return;
        }
        early.are_asked = true;
        let ownership = door.broker.ownership();
        let mut loads = self.loads.lock();
        for place in &early.places {
            // By who owns it, for it may just be coming once more.
            let owner = ownership.owner(place.0, place.1).filter(|owner| owner.node == ownership.node());
            loads.queue.insert(*place, owner.map_or(0, |owner| owner.epoch));
        }
    }

    /// Forgets the early ones of which nothing is here any more: nobody reads them here, and if they come again that is noticed. Whoever owns one keeps
    /// it, since it may just be coming.
    pub(crate) fn trim_early(&self, door: &Door) {
        let ownership = door.broker.ownership();
        self.early.lock().places.retain(|(stream, number)| {
            let Some(stream) = door.broker.log().stream(*stream) else { return false };
            let Some(streamlet) = stream.streamlet(*number) else { return false };
            let is_mine = ownership.owner(stream.id(), *number).is_none_or(|owner| owner.node == ownership.node());
            let has_some = |lane: &Arc<Lane>| !lane.groups(GroupId::NONE, 1).is_empty();
            is_mine || streamlet.tenure() != Tenure::Elsewhere || streamlet.lanes().any(has_some)
        });
    }

    /// How many are early.
    #[cfg(test)]
    pub(crate) fn early_count(&self) -> usize {
        self.early.lock().places.len()
    }

    /// A streamlet comes to this node, or is here at its start: nothing is shown of it until coordinators have told what they know.
    fn begin(&self, door: &Door, stream: &Stream, streamlet: &Streamlet, epoch: u32, keeps: bool) {
        let lanes = stream.options().lanes.max(1);
        let mut has_some = false;
        for lane in streamlet.lanes() {
            let partition = partition_at((streamlet.id(), lane.id()), lanes);
            let known = door.transactions.partitions.get(stream.id(), partition.cast_signed());
            if known.is_none() && lane.next_ordinal() == 0 {
                continue;
            }
            has_some = true;
            let of = door.transactions.partitions.get_or_make(stream.id(), partition);
            of.lock().begin_load(epoch, keeps);
            only_committed(lane, &of);
        }
        if has_some {
            self.loads.lock().queue.insert((stream.id(), streamlet.id()), epoch);
        }
    }

    /// Asks for what is not known yet. Called again and again, by the thread that follows owners.
    pub(crate) fn follow(&self, door: &Arc<Door>) {
        for observer in std::mem::take(&mut *self.later.lock()) {
            observer.advanced(0);
        }
        self.look_at_early(door);
        let mut loads = self.loads.lock();
        loads.looks = loads.looks.wrapping_add(1);
        if loads.looks.is_multiple_of(REFRESH_LOOKS) {
            let held = held_open(door);
            held.into_iter().for_each(|place| {
                loads.queue.entry(place).or_insert(0);
            });
        }
        if loads.asking.is_none() && loads.queue.is_empty() {
            return;
        }
        let Some((info, parts)) = coordinators(door) else { return };
        let nodes: Vec<Option<u32>> = (0..parts as u32).map(|part| node_of(door, &info, part)).collect();
        if let Some(asking) = &loads.asking {
            if asking.nodes == nodes {
                return;
            }
            // Whoever was asked is not who knows any more, and may never answer.
            let streamlets = asking.batch.lock().streamlets.clone();
            loads.again(&streamlets);
        }
        let mut streamlets = Vec::new();
        while let Some(((stream, streamlet), owner_epoch)) = loads.queue.pop_first() {
            streamlets.push(OwnedStreamlet { stream, streamlet, owner_epoch });
            if streamlets.len() >= (ASKED_MAX >> loads.halved.min(ASKED_MAX.ilog2())).max(1) {
                break;
            }
        }
        let told = Vec::with_capacity(parts);
        let batch = Batch { streamlets: streamlets.clone(), left: parts, failed: false, told };
        let batch = Arc::new(Mutex::new(batch));
        loads.asking = Some(Asking { nodes: nodes.clone(), batch: Arc::clone(&batch) });
        drop(loads);
        for (part, node) in (0..).zip(nodes) {
            let asked = TransactionsIn { part, streamlets: streamlets.clone() };
            let batch = Arc::clone(&batch);
            let done = move |door: &Arc<Door>, told: Result<TransactionsHeld, String>| {
                door.owner.told(door, &batch, part, told);
            };
            match node {
                Some(node) => door.ask(node, &asked, move |door, _, told| done(door, told)),
                None => done(door, Err("nobody owns it".to_owned())),
            }
        }
    }

    /// A coordinator has told what it knows.
    fn told(&self, door: &Arc<Door>, of: &Arc<Mutex<Batch>>, part: u32, told: Result<TransactionsHeld, String>) {
        let mut batch = of.lock();
        batch.left -= 1;
        match told {
            Ok(told) if self.has_heard_of(door, part, told.epoch) => batch.told.push(told),
            Ok(_) => batch.failed = true,
            Err(error) => {
                tracing::debug!(part, %error, "what transactions have written is not known yet");
                batch.failed = true;
            }
        }
        if batch.left > 0 {
            return;
        }
        let (streamlets, failed) = (batch.streamlets.clone(), batch.failed);
        let told = std::mem::take(&mut batch.told);
        drop(batch);
        let mut loads = self.loads.lock();
        if !loads.asking.as_ref().is_some_and(|asking| Arc::ptr_eq(&asking.batch, of)) {
            return;
        }
        if failed {
            loads.again(&streamlets);
        }
        loads.halved = if failed { loads.halved.saturating_add(1) } else { 0 };
        loads.asking = None;
        drop(loads);
        if !failed {
            let known = Known::new(told);
            for of in &streamlets {
                take_in(door, of, &known);
                self.early.lock().places.remove(&(of.stream, of.streamlet));
            }
        }
    }

    /// Notes a coordinator's owner epoch. False if there is a later one.
    pub(crate) fn has_heard_of(&self, door: &Door, part: u32, epoch: u32) -> bool {
        let known = coordinators(door).and_then(|(info, _)| {
            let owner = door.broker.ownership().owner(info.id, StreamletId(part))?;
            Some(owner.epoch)
        });
        let mut epochs = self.epochs.lock();
        let highest = epochs.entry(part).or_insert(0);
        *highest = (*highest).max(epoch).max(known.unwrap_or(0));
        *highest == epoch
    }

    /// Has a session called a little later.
    pub(crate) fn call_later(&self, observer: &Arc<dyn Observer>) {
        self.later.lock().push(Arc::clone(observer));
    }
}

/// The streamlets that other nodes own by now and whose transactions had not ended when they left: what is here of them is still read.
fn held_open(door: &Door) -> Vec<Place> {
    let mut held = Vec::new();
    for ((stream, partition), of) in door.transactions.partitions.all() {
        let has_open = {
            let of = of.lock();
            of.has_open() && !of.is_loading()
        };
        // Of all partitions that ever had a transaction few have one that is open.
        if has_open
            && let Some(lane) = door.transactions.lane(stream, partition.cast_signed())
            && lane.tenure() == Tenure::Elsewhere
        {
            held.push((stream, lane.streamlet_id()));
        }
    }
    held.dedup();
    held
}

/// Whether coordinators may know something of a stream, once there are some: not of one of the system, in which there are no transactions. The coordinators' own would wait for themselves,
/// where a node holds what others have to read before they can tell. By its name, since which streams have room kept for them is known only once this node has
/// had something of them.
fn may_have_transactions(door: &Door, stream: &Stream) -> bool {
    let is_of_system = || {
        let info = door.coordinator.stream(&StreamRef::Id(stream.id()));
        stream.is_system() || info.is_ok_and(|info| info.name.starts_with(SYSTEM_PREFIX))
    };
    !is_of_system()
}

/// The coordinators' stream and how many there are, once the cluster has it.
fn coordinators(door: &Door) -> Option<(StreamInfo, usize)> {
    let info = door.coordinator.stream(&StreamRef::Name(STREAM.to_owned())).ok()?;
    let parts = info.options.streamlets as usize;
    Some((info, parts))
}

fn node_of(door: &Door, coordinators: &StreamInfo, part: u32) -> Option<u32> {
    let owner = door.broker.ownership().owner(coordinators.id, StreamletId(part))?;
    Some(owner.node).filter(|node| *node != 0)
}

/// The streamlet of a transactional id's coordinator, and the node that owns it.
pub(crate) fn coordinator_of(door: &Door, id: &str) -> Option<(u32, u32)> {
    let (info, parts) = coordinators(door)?;
    let part = streamlet_of(id, parts) as u32;
    Some((part, node_of(door, &info, part)?))
}

/// Whether an error says that another node is to be asked, or later: nothing that clients of partitions or groups could do about.
pub(crate) fn is_about_coordinators(code: ResponseError) -> bool {
    use ResponseError::{CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator};
    matches!(code, CoordinatorLoadInProgress | CoordinatorNotAvailable | NotCoordinator)
}

/// What all coordinators have told, by stream and partition.
#[derive(Default)]
struct Known(HashMap<(StreamId, u32), Written>);

/// What transactions have written to a partition.
#[derive(Clone, Default)]
struct Written {
    /// Producers, and where their transactions have begun that have not ended.
    open: Vec<(i64, u64)>,
    aborted: Vec<AbortedRange>,
}

impl Known {
    fn new(told: Vec<TransactionsHeld>) -> Known {
        let mut known = Known::default();
        for TransactionsHeld { open, aborted, .. } in told {
            for of in open {
                let begun = (of.producer_id.0.cast_signed(), of.from_offset);
                known.0.entry((of.stream, of.partition)).or_default().open.push(begun);
            }
            for of in aborted {
                known.0.entry((of.stream, of.partition)).or_default().aborted.push(to_range(&of));
            }
        }
        known
    }
}

/// All coordinators have told what they know of a streamlet.
fn take_in(door: &Door, of: &OwnedStreamlet, known: &Known) {
    let Some(stream) = door.broker.log().stream(of.stream) else { return };
    let Some(streamlet) = stream.streamlet(of.streamlet) else { return };
    let lanes = stream.options().lanes.max(1);
    for lane in streamlet.lanes() {
        let number = partition_at((of.streamlet, lane.id()), lanes);
        let told = known.0.get(&(of.stream, number)).cloned();
        // What came early was shown without: where nothing is told nothing is to be known.
        let is_early = door.owner.came_early(lane);
        let shared = match door.transactions.partitions.get(of.stream, number.cast_signed()) {
            Some(shared) => shared,
            None if is_early && told.is_some() => door.transactions.partitions.get_or_make(of.stream, number),
            None => continue,
        };
        let Written { open, aborted } = told.unwrap_or_default();
        let mut partition = shared.lock();
        let is_held = of.owner_epoch == 0 && lane.tenure() == Tenure::Elsewhere;
        if is_early && !partition.is_loading() {
            partition.learn(open, aborted);
            only_committed(lane, &shared);
        } else if is_held && !partition.is_loading() {
            partition.refresh(open, aborted);
        } else if !partition.load(of.owner_epoch, open, aborted) {
            continue;
        }
        drop(partition);
        lane.wake();
    }
}

fn to_range(left: &AbortedRecords) -> AbortedRange {
    AbortedRange {
        stream: left.stream,
        partition: left.partition,
        producer_id: left.producer_id.0.cast_signed(),
        first_offset: left.first_offset,
        marker_offset: left.marker_offset,
        stable_offset: left.stable_offset,
        epoch: left.producer_epoch.0.cast_signed(),
    }
}

/// What is told of an aborted range to other nodes.
pub(crate) fn to_records(range: &AbortedRange) -> AbortedRecords {
    AbortedRecords {
        stream: range.stream,
        partition: range.partition,
        producer_id: ProducerId(range.producer_id.cast_unsigned()),
        producer_epoch: ProducerEpoch(range.epoch.cast_unsigned()),
        first_offset: range.first_offset,
        marker_offset: range.marker_offset,
        stable_offset: range.stable_offset,
    }
}

/// Whether a batch belongs to a transaction that its coordinator knows; under the partition's lock, so that the answer holds until the
/// batch is there. The coordinator is asked once for each transaction: the session waits with its `question`.
pub(crate) fn may_write(
    door: &Arc<Door>,
    (shared, of): (&SharedPartition, &mut PartitionTransactions),
    lane: &Lane,
    wish: &Wish<'_>,
    question: &mut Option<Arc<Question>>,
    observer: &Arc<dyn Observer>,
) -> MayWrite {
    let (producer_id, epoch) = wish.producer;
    // A coordinator believes what the owner tells it of a transaction's beginning.
    if of.is_loading() || lane.tenure() != Tenure::Here {
        return MayWrite::No(ResponseError::NotLeaderOrFollower);
    }
    if of.is_claimed(producer_id, epoch) {
        *question = None;
        return MayWrite::Yes;
    }
    let coordinator = coordinator_of(door, wish.id).filter(|_| !door.owner.came_early(lane));
    let Some((part, node)) = coordinator else {
        *question = None;
        return MayWrite::No(ResponseError::NotEnoughReplicas);
    };
    match question.as_ref().map(|asked| asked.take()) {
        Some(Some(Err(code))) => {
            *question = None;
            return MayWrite::No(code);
        }
        // Another session's, or still on its way. A node that does not coordinate it any more may never answer.
        None | Some(None) if of.is_asked(producer_id, node) => {
            door.owner.call_later(observer);
            return MayWrite::Later(None);
        }
        _ => {}
    }
    let (number, from_offset) = of.ask(producer_id, lane.durable_ordinal(), node);
    let asked = ClaimPartition {
        id: wish.id.to_owned(),
        producer_id: ProducerId(producer_id.cast_unsigned()),
        producer_epoch: ProducerEpoch(epoch.cast_unsigned()),
        topic: wish.topic.to_owned(),
        partition: wish.partition.cast_unsigned(),
        stream: lane.stream_id(),
        from_offset,
        adds: wish.adds,
    };
    let waits = Arc::new(Question::default());
    *question = Some(Arc::clone(&waits));
    let (shared, observer, adds) = (Arc::clone(shared), Arc::clone(observer), wish.adds);
    door.ask(node, &asked, move |door, _, answer| {
        let granted = of_answer(door, part, answer);
        let told = granted.ok().map(|from_offset| (epoch, from_offset));
        shared.lock().answered(producer_id, number, told);
        match granted {
            // The producer's transaction before is being ended.
            Err(ResponseError::ConcurrentTransactions) if adds => {
                *waits.0.lock() = Some(Ok(()));
                door.owner.call_later(&observer);
            }
            granted => waits.answer(granted.map(drop).map_err(produce_error), &observer),
        }
    });
    MayWrite::Later(None)
}

/// Asks for a batch whose turn has not come, unless that was done or need not be: one after the other would take as many round trips as a request has partitions, and have the
/// coordinator record the whole transaction for each.
pub(crate) fn ask_ahead(
    door: &Arc<Door>,
    shared: &SharedPartition,
    lane: &Lane,
    wish: &Wish<'_>,
    observer: &Arc<dyn Observer>,
) -> Option<Arc<Question>> {
    let ((producer_id, epoch), mut of) = (wish.producer, shared.lock());
    if of.is_claimed(producer_id, epoch) || of.is_asking(producer_id) {
        return None;
    }
    let mut question = None;
    // Whether it may is looked at in its turn.
    let _ = may_write(door, (shared, &mut of), lane, wish, &mut question, observer);
    question
}

/// What a coordinator's answer to a claim means: before where the transaction has written nothing, or why the producer may not write.
fn of_answer(door: &Door, part: u32, answer: Result<PartitionClaimed, String>) -> Result<u64, ResponseError> {
    let claimed = answer.map_err(|error| {
        tracing::debug!(%error, "a transaction's coordinator does not answer");
        ResponseError::NotEnoughReplicas
    })?;
    match ResponseError::try_from_code(claimed.error.cast_signed()) {
        None if door.owner.has_heard_of(door, part, claimed.part_epoch) => Ok(claimed.from_offset),
        None => Err(ResponseError::NotEnoughReplicas),
        Some(code) if is_about_coordinators(code) => Err(ResponseError::NotEnoughReplicas),
        Some(code) => Err(code),
    }
}

impl Door {
    /// Writes the markers of a transaction that is decided, at its coordinator's request.
    pub(crate) fn end_in_partitions(&self, asked: &EndInPartitions) -> Served<PartitionsEnded> {
        let fenced = !self.owner.has_heard_of(self, asked.part, asked.part_epoch);
        let mut written = Vec::new();
        let ended = asked.partitions.iter().map(|of| {
            let ended = if fenced {
                Err(ResponseError::TransactionCoordinatorFenced)
            } else {
                self.end_in_partition(asked, of, &mut written)
            };
            match ended {
                Ok((start, aborted)) => PartitionEnded { error: 0, start, aborted },
                Err(code) => PartitionEnded { error: code.code().cast_unsigned(), start: 0, aborted: None },
            }
        });
        let partitions = ended.collect();
        Served::Now(PartitionsEnded { partitions }, written)
    }

    fn end_in_partition(
        &self,
        asked: &EndInPartitions,
        EndedPartition { stream, partition, owner_epoch, from_offset }: &EndedPartition,
        written: &mut Vec<After>,
    ) -> Result<(u64, Option<AbortedRecords>), ResponseError> {
        let (producer_id, epoch) = (asked.producer_id.0.cast_signed(), asked.producer_epoch.0.cast_signed());
        let lane = self.transactions.lane(*stream, partition.cast_signed());
        let lane = lane.ok_or(ResponseError::UnknownTopicOrPartition)?;
        if lane.tenure() != Tenure::Here || lane.owner_epoch() != *owner_epoch {
            return Err(ResponseError::NotLeaderOrFollower);
        }
        // What is left at other nodes is still read there.
        let start = first_here(&lane).unwrap_or(0);
        let of = self.transactions.partitions.get_or_make(*stream, *partition);
        only_committed(&lane, &of);
        let mut of = of.lock();
        if of.is_loading() || self.owner.came_early(&lane) {
            return Err(ResponseError::CoordinatorLoadInProgress);
        }
        if of.is_late(producer_id, *from_offset) {
            return Ok((start, None));
        }
        if of.begun(producer_id).is_none()
            && !asked.commit
            && let Some(range) = of.left(producer_id, *from_offset)
        {
            // Asked again: the marker is there, and may not be durable.
            if range.marker_offset >= lane.durable_ordinal() {
                return Err(ResponseError::RequestTimedOut);
            }
            return Ok((start, Some(to_records(&range))));
        }
        match append_marker(&lane, (producer_id, epoch), asked.commit, self.clock.now_ms()) {
            Ok(appended) => {
                let aborted = of.ended((producer_id, epoch), asked.commit, appended.base_ordinal);
                // What its producer sent before and comes late belongs to no transaction any more.
                lane.raise_producer_epoch(asked.producer_id, asked.producer_epoch);
                if let (Some(ticket), Some(sink)) = (appended.ticket, lane.sink_of(appended.log)) {
                    written.push(After { sink: Arc::clone(sink), ticket });
                }
                Ok((start, aborted.as_ref().map(to_records)))
            }
            Err(AppendError::Elsewhere { .. }) => Err(ResponseError::NotLeaderOrFollower),
            Err(AppendError::Closed) => Err(ResponseError::UnknownTopicOrPartition),
            Err(error) => {
                tracing::debug!(%stream, partition, %error, "a marker has to wait");
                Err(ResponseError::RequestTimedOut)
            }
        }
    }
}
