//! Carrying out what is decided of transactions: markers into partitions, groups told, then the end recorded.
//!
//! On a thread of its own, which waits for nothing but its events: whatever has to become durable first calls it. Each step
//! begins when the one before is durable (docs/decisions/0013-kafka-transactions.md): decision, markers and groups, end.
//! What cannot be done now is tried again at the next tick. In a cluster others have a part in it: [`crate::far_endings`]. What a node has decided while it was
//! alone, of partitions that have left it since, is for the coordinators of the cluster ([`crate::transaction_founding`]).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_format::chunk::{ChunkTarget, KafkaChunk};
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Touched};
use kera_format::{ProducerEpoch, ProducerId};
use kera_log::{AppendError, Appended, Lane, Observer};

use crate::batch::{self, CHECKED_FROM};
use crate::door::{After, Calls, Door, first_of};
use crate::far_endings::{FarEnding, Told};
use crate::groups::AppendFailed;
use crate::starts;
use crate::transaction_parts::TransactionPart;
use crate::transactions::Ending;

/// How late a transaction times out, and what could not be done is tried again.
const TICK: Duration = Duration::from_millis(50);
/// How often partitions are looked at for what retention has taken, in ticks.
const TRIM_TICKS: u32 = 200;
/// How often owners are asked where partitions begin, in ticks.
const STARTS_TICKS: u32 = 6_000;

/// What the thread is woken by.
pub(crate) enum Event {
    /// An outcome is decided, by the coordinator of this part.
    Ending(Arc<TransactionPart>, Box<Ending>),
    /// Another node has answered, about the ending of that number.
    Told(u64, Told),
    /// Something is durable now that was not, or there is room.
    Look,
}

/// Wakes the thread.
struct Wake(Sender<Event>);

impl Observer for Wake {
    fn advanced(&self, _: u64) {
        // If nobody listens the node stops.
        let _ = self.0.send(Event::Look);
    }
}

/// The endings that are under way.
pub(crate) struct Endings {
    under_way: Vec<UnderWay>,
    /// Those of a cluster.
    far: Vec<FarEnding>,
    last_number: u64,
    calls: Calls,
    events: Sender<Event>,
}

/// A transaction whose outcome is decided.
struct UnderWay {
    ending: Ending,
    /// The decision is durable.
    decided: bool,
    partitions: Vec<(OffsetKey, Touched)>,
    /// Those of them that another node owned when they were looked at last.
    left: Vec<(OffsetKey, Touched)>,
    groups: Vec<String>,
    /// What was written for it and may not be durable.
    written: Vec<After>,
    aborted: Vec<AbortedRange>,
}

/// Why a marker is not written.
enum Unwritten {
    /// It could not be done now.
    Later,
    /// Another node owns the partition.
    Left,
}

impl Endings {
    /// None. `events` is what its thread listens to.
    pub(crate) fn new(events: Sender<Event>) -> Endings {
        let observer = Arc::new(Wake(events.clone()));
        Endings { under_way: Vec::new(), far: Vec::new(), last_number: 0, calls: Calls::new(observer), events }
    }

    /// Takes what is decided, and what others say.
    pub(crate) fn hear(&mut self, event: Event, now_ms: u64) {
        let (part, ending) = match event {
            Event::Look => return,
            Event::Told(number, told) => {
                // They are in the order of their numbers.
                if let Ok(at) = self.far.binary_search_by_key(&number, |far| far.number) {
                    self.far[at].hear(told, now_ms);
                }
                return;
            }
            Event::Ending(part, ending) => (part, *ending),
        };
        if part.epoch != 0 {
            self.last_number += 1;
            self.far.push(FarEnding::new(self.last_number, part, ending));
            return;
        }
        let partitions = ending.partitions.iter().map(|(of, touched)| (of.clone(), *touched)).collect();
        let groups = ending.groups.iter().cloned().collect();
        let (left, written, aborted) = (Vec::new(), Vec::new(), Vec::new());
        self.under_way.push(UnderWay { ending, decided: false, partitions, left, groups, written, aborted });
    }

    /// Goes on with all of them as far as it can.
    pub(crate) fn go_on(&mut self, door: &Door) {
        // The sinks that are waited for, each with the ticket that comes first.
        let mut waits: Vec<After> = Vec::new();
        let observer = self.calls.observer();
        self.under_way.retain_mut(|one| {
            let is_over = one.go_on(door, observer);
            one.written.iter().for_each(|after| first_of(&mut waits, after));
            !is_over
        });
        let events = &self.events;
        self.far.retain_mut(|one| !one.go_on(door, events, &mut waits));
        self.calls.wait(waits);
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.under_way.len() + self.far.len()
    }
}

impl UnderWay {
    /// True if it is over.
    fn go_on(&mut self, door: &Door, observer: &Arc<dyn Observer>) -> bool {
        if !self.decided {
            match door.transactions.after(self.ending.after).filter(|after| !after.is_durable()) {
                Some(decision) => {
                    self.written = vec![decision];
                    return false;
                }
                None => self.decided = true,
            }
        }
        // It may have come back.
        self.partitions.append(&mut self.left);
        while let Some((of, touched)) = self.partitions.pop() {
            match self.write_marker(door, &of, touched, observer) {
                Ok(()) => {}
                Err(Unwritten::Left) => self.left.push((of, touched)),
                Err(Unwritten::Later) => {
                    self.partitions.push((of, touched));
                    break;
                }
            }
        }
        while let Some(group) = self.groups.pop() {
            let (producer_id, commit) = (self.ending.producer_id, self.ending.commit);
            match door.groups.end_transaction(&group, producer_id, commit) {
                Ok(after) => self.written.extend(after),
                Err(AppendFailed) => {
                    self.groups.push(group);
                    break;
                }
            }
        }
        self.written.retain(|after| !after.is_durable());
        if !(self.partitions.is_empty() && self.groups.is_empty() && self.written.is_empty()) {
            return false;
        }
        match &self.left[..] {
            [] => door.transactions.ended(&self.ending, &self.aborted).is_ok(),
            left => door.transactions.hand_over(&self.ending, left, &self.aborted).is_ok(),
        }
    }

    /// Ends the transaction in one partition, if the topic is still the same.
    fn write_marker(
        &mut self,
        door: &Door,
        of: &OffsetKey,
        touched: Touched,
        observer: &Arc<dyn Observer>,
    ) -> Result<(), Unwritten> {
        let Ending { producer_id, epoch, commit, .. } = self.ending;
        let Some(lane) = door.transactions.lane(touched.stream, of.partition) else { return Ok(()) };
        // Also where it has written nothing, as in Kafka: whatever it sent and comes late is fenced there, too.
        let Ok(index) = u32::try_from(of.partition) else { return Ok(()) };
        let partition = door.transactions.partitions.get_or_make(touched.stream, index);
        let mut partition = partition.lock();
        match append_marker(&lane, (producer_id, epoch), commit, door.clock.now_ms()) {
            Ok(appended) => {
                self.aborted.extend(partition.ended((producer_id, epoch), commit, appended.base_ordinal));
                // What its producer sent before and comes late belongs to no transaction any more.
                let known = (ProducerId(producer_id.cast_unsigned()), ProducerEpoch(epoch.cast_unsigned()));
                lane.raise_producer_epoch(known.0, known.1);
                if let (Some(ticket), Some(sink)) = (appended.ticket, lane.sink_of(appended.log)) {
                    self.written.push(After { sink: Arc::clone(sink), ticket });
                }
                Ok(())
            }
            Err(AppendError::Closed) => Ok(()),
            Err(AppendError::ArenaFull(full)) => {
                drop(partition);
                if !door.broker.log().wait_for_space(full.seen, observer, 0) {
                    observer.advanced(0);
                }
                Err(Unwritten::Later)
            }
            // The node is one of several by now, and the partition has left before its marker was written.
            Err(AppendError::Elsewhere { letting_go: false }) if is_others(door, &lane) => Err(Unwritten::Left),
            Err(error) => {
                tracing::debug!(topic = of.topic, partition = of.partition, %error, "a marker has to wait");
                Err(Unwritten::Later)
            }
        }
    }
}

/// Whether another node is known to own a lane.
fn is_others(door: &Door, lane: &Lane) -> bool {
    let ownership = door.broker.ownership();
    let owner = ownership.owner(lane.stream_id(), lane.streamlet_id());
    owner.is_some_and(|owner| owner.node != 0 && owner.node != ownership.node())
}

/// Appends the marker of a transaction's end to a lane. It is no chunk of the producer's in the eyes of deduplication: the
/// producer's numbers go on behind it.
pub(crate) fn append_marker(
    lane: &Arc<Lane>,
    producer: (i64, i16),
    commit: bool,
    now_ms: i64,
) -> Result<Appended, AppendError> {
    let marker = batch::marker(producer, commit, now_ms);
    let crc = batch::crc_of(&marker);
    let target = ChunkTarget { stream: lane.stream_id(), streamlet: lane.streamlet_id(), ..ChunkTarget::default() };
    lane.append(&KafkaChunk::new(&marker, &target, 1, now_ms, CHECKED_FROM, crc)?, now_ms)
}

/// The thread. It ends when the door is gone.
pub(crate) fn work(door: &Weak<Door>, receiver: &Receiver<Event>, mut endings: Endings) {
    let (mut next_tick_ms, mut ticks) = (0, 0_u32);
    loop {
        let received = receiver.recv_timeout(TICK);
        let Some(door) = door.upgrade() else { return };
        match received {
            Ok(event) => endings.hear(event, door.transactions.now().mono_ms),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        receiver.try_iter().for_each(|event| endings.hear(event, door.transactions.now().mono_ms));
        endings.go_on(&door);
        let now_ms = door.transactions.now().mono_ms;
        if now_ms >= next_tick_ms {
            next_tick_ms = now_ms + TICK.as_millis() as u64;
            door.transactions.tick();
            if !door.is_in_cluster() {
                // From this node's own disk; a cluster's come from a leader, for whom another thread waits.
                door.transactions.stock_wanted();
            }
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(TRIM_TICKS) {
                door.transactions.trim_partitions();
                door.owner.trim_early(&door);
            }
            if ticks.is_multiple_of(STARTS_TICKS) {
                starts::look(&door);
            }
        }
    }
}
