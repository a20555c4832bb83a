//! Where partitions begin once records were deleted from their front (decision 12). A node that is alone keeps it in the system stream
//! `_kera.floors`, read once at start, and appended to on the door's thread for commands. Nodes of a cluster agree on it in the coordinators' log; what
//! is in the stream from before goes there as soon as its streamlets are here.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_broker::Broker;
use kera_coordinator::{Coordinator, CoordinatorError};
use kera_env::Clock;
use kera_format::kafka_floors::Entry;
use kera_format::{ChunkBuilder, FormatError, LaneId, RecordView, StreamId, StreamletId};
use kera_log::{Arrived, Lane, Observer, ReadError, Tenure};
use kera_protocol::LaneFloor;
use parking_lot::Mutex;

use crate::door::{After, Catalog};
use crate::groups::{AppendFailed, Mark};
use crate::state_log::{Damage, Edge, Kept, StateLog, cannot_be_read};

/// The stream's name.
const FLOORS_STREAM: &str = "_kera.floors";
/// The log is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 1 << 20;
/// Entries of one append.
const STEP_ENTRIES: usize = 8_192;
/// Time until the coordinators are asked again to take over what is in the stream.
const BRING_AGAIN_US: u64 = 5_000_000;

type Key = (StreamId, StreamletId, LaneId);

impl Kept for Entry {
    fn encode(&self, into: &mut ChunkBuilder) {
        self.encode(into);
    }
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError> {
        Self::decode(record)
    }
}

/// The floors of a node's partitions.
pub(crate) struct Floors {
    log: Arc<StateLog<Entry>>,
    broker: Arc<Broker>,
    coordinator: Arc<Coordinator>,
    clock: Arc<dyn Clock>,
    all: Mutex<BTreeMap<Key, u64>>,
    /// When the coordinators are asked next to take over what is in the stream.
    bring_us: AtomicU64,
}

/// Why records were not deleted.
#[derive(Debug)]
pub(crate) enum NotRaised {
    /// The stream takes nothing.
    Append,
    /// The coordinators have not done it, as far as is known.
    Coordinators(CoordinatorError),
}

/// The offset at which a partition begins.
pub(crate) fn first_offset(lane: &Lane) -> u64 {
    lane.earliest().1.max(lane.floor_ordinal()).min(lane.durable_ordinal())
}

/// The same as far as it is known here: of what other nodes have it is not known whether it is there.
pub(crate) fn known_first(lane: &Lane) -> u64 {
    of_plain(lane, first_offset).unwrap_or_else(|| lane.floor_ordinal())
}

/// The first ordinal that is here of a lane of which no other node has anything; `None` of all others. What is deleted in front of a
/// [floor](Lane::floor_ordinal) is still here until retention has been there.
pub(crate) fn first_here(lane: &Lane) -> Option<u64> {
    of_plain(lane, |lane| lane.earliest().1)
}

/// Before which offset nobody gets anything of a partition that is here: native readers may still be given what is deleted and lies there, others are given what other
/// nodes have of it, as far as it is not deleted.
pub(crate) fn shown_from(lane: &Lane) -> u64 {
    first_here(lane).unwrap_or_else(|| lane.floor_ordinal().min(lane.earliest().1))
}

/// What `look` finds in a lane of which no other node has anything, before the look and behind it.
///
/// Older groups that another node holds after all leave the lane when it has been said that others have some. Whoever asked before that and looked behind it would take them
/// for what retention has taken: forget what is aborted in them, or tell readers that the partition begins behind them.
pub(crate) fn of_plain<T>(lane: &Lane, look: impl FnOnce(&Lane) -> T) -> Option<T> {
    let found = lane.is_plain().then(|| look(lane))?;
    lane.is_plain().then_some(found)
}

fn lane_of(broker: &Broker, (stream, streamlet, lane): Key) -> Option<Arc<Lane>> {
    broker.log().stream(stream)?.streamlet(streamlet)?.lane(lane).cloned()
}

fn agreed(lane: &Lane, ordinal: u64) -> LaneFloor {
    let (stream, streamlet, owner_epoch) = (lane.stream_id(), lane.streamlet_id(), lane.owner_epoch());
    LaneFloor { stream, streamlet, lane: lane.id(), owner_epoch, ordinal }
}

fn entry(((stream, streamlet, lane), ordinal): (Key, u64)) -> Entry {
    Entry { stream, streamlet, lane, ordinal: Some(ordinal) }
}

/// The record in front of a copy of everything, and that behind it. No stream has the number: to earlier versions it says that a lane begins where its
/// log does that is not there.
fn edge(edge: Edge) -> Entry {
    let lane = match edge {
        Edge::Begin => LaneId(0),
        Edge::End => LaneId(1),
    };
    Entry { stream: StreamId(0), streamlet: StreamletId(0), lane, ordinal: None }
}

/// What is in the stream, and whether some of it could not be read and is done without. What stands in front of a whole copy is not needed.
fn read(log: &StateLog<Entry>, accept_damage: bool) -> io::Result<(BTreeMap<Key, u64>, bool)> {
    let what = "where partitions begin from which records were deleted";
    let unread_error = |why: &ReadError| cannot_be_read(FLOORS_STREAM, what, why);
    let (mut all, mut damage) = (BTreeMap::new(), Damage::default());
    let each = |entry: Result<Entry, ReadError>| match entry {
        Ok(entry) if entry == edge(Edge::Begin) => _ = damage.pass(Edge::Begin),
        Ok(entry) if entry == edge(Edge::End) => _ = damage.pass(Edge::End),
        Ok(Entry { stream, streamlet, lane, ordinal: Some(ordinal) }) => {
            all.insert((stream, streamlet, lane), ordinal);
        }
        Ok(Entry { stream, streamlet, lane, ordinal: None }) => {
            all.remove(&(stream, streamlet, lane));
        }
        Err(error) => damage.meet(error),
    };
    log.replay_past_damage(each).map_err(|error| unread_error(&error))?;
    match &damage.unread {
        Some(error) if !accept_damage => return Err(unread_error(error)),
        Some(error) => tracing::error!(
            %error,
            "{FLOORS_STREAM} could not be read as a whole, and the node goes on without, as it was told: partitions may show again what was \
             deleted from them"
        ),
        None => {}
    }
    Ok((all, damage.unread.is_some()))
}

impl Floors {
    /// Opens the stream, reads what is in it and tells the lanes. Blocks the thread while segments come from disk. A lane that
    /// came back shorter than its floor gets a lower one, which is durable on return: what is appended to it must not hide.
    ///
    /// Without a part of it partitions may show once more what was deleted from them. So that is for a person to decide, who says so with
    /// `accept_damage`; then the rest is written anew, and the next start does without that part.
    ///
    /// # Errors
    /// The stream cannot be made, read, or written to.
    pub(crate) fn open(
        catalog: &Catalog,
        broker: &Arc<Broker>,
        clock: &Arc<dyn Clock>,
        accept_damage: bool,
    ) -> io::Result<Floors> {
        let refused = |AppendFailed| io::Error::other(format!("{FLOORS_STREAM} takes no records"));
        let log = StateLog::open(FLOORS_STREAM, catalog, broker, clock)?;
        let (mut all, unread) = read(&log, accept_damage)?;
        all.retain(|key, _| lane_of(broker, *key).is_some());
        let mut lowered = Vec::new();
        for (key, floor) in &mut all {
            let Some(lane) = lane_of(broker, *key) else { continue };
            if *floor > lane.durable_ordinal() {
                *floor = lane.durable_ordinal();
                lowered.push(entry((*key, *floor)));
            }
            lane.raise_floor(*floor);
        }
        let (coordinator, clock) = (Arc::clone(&catalog.coordinator), Arc::clone(clock));
        let (all, bring_us) = (Mutex::new(all), AtomicU64::new(0));
        let floors = Floors { log, broker: Arc::clone(broker), coordinator, clock, all, bring_us };
        if let Some(mark) = floors.append(&lowered).map_err(refused)? {
            floors.wait(mark);
        }
        if unread {
            // So that there is something to write, also if nothing could be read.
            floors.append(&[edge(Edge::Begin)]).map_err(refused)?;
            floors.copy(&mut floors.all.lock(), 0);
        }
        Ok(floors)
    }

    /// Deletes the records of lanes below ordinals, and says what must be durable before that is told. On failure those in
    /// front may be deleted. In a cluster it blocks until the coordinators have noted it; a lane whose floor is not raised then has
    /// come to another owner.
    pub(crate) fn raise(&self, lanes: &[(Arc<Lane>, u64)]) -> Result<Option<After>, NotRaised> {
        let mut all = self.all.lock();
        let mut higher: BTreeMap<Key, (&Arc<Lane>, u64)> = BTreeMap::new();
        for (lane, ordinal) in lanes.iter().filter(|(lane, ordinal)| *ordinal > known_first(lane)) {
            let key = (lane.stream_id(), lane.streamlet_id(), lane.id());
            let (_, highest) = higher.entry(key).or_insert((lane, *ordinal));
            *highest = (*highest).max(*ordinal);
        }
        if self.coordinator.agrees_on_floors() {
            let floors: Vec<_> = higher.values().map(|(lane, ordinal)| agreed(lane, *ordinal)).collect();
            self.coordinator.set_floors(&floors).map_err(NotRaised::Coordinators)?;
            return Ok(None);
        }
        let entries: Vec<Entry> = higher.iter().map(|(key, (_, ordinal))| entry((*key, *ordinal))).collect();
        let mark = self.append(&entries).map_err(|_| NotRaised::Append)?;
        for (key, (lane, ordinal)) in higher {
            all.insert(key, ordinal);
            lane.raise_floor(ordinal);
        }
        let after = |mark: Mark| Some(After { sink: Arc::clone(self.log.sink()?), ticket: mark.0 });
        Ok(mark.and_then(after))
    }

    /// Where partitions begin, as far as the stream says.
    #[cfg(test)]
    pub(crate) fn known(&self) -> Vec<(Key, u64)> {
        self.all.lock().iter().map(|(key, floor)| (*key, *floor)).collect()
    }

    fn append(&self, entries: &[Entry]) -> Result<Option<Mark>, AppendFailed> {
        let mut last = None;
        for step in entries.chunks(STEP_ENTRIES) {
            last = Some(self.log.append(step)?);
        }
        Ok(last)
    }

    /// Has the coordinators take over where partitions of this node begin: what it kept when it was alone, or when the cluster was at a lower
    /// level. What they have taken over is forgotten here, so that it never stands against what is said there later.
    fn bring(&self, all: &mut BTreeMap<Key, u64>) {
        let now_us = self.clock.monotonic_us();
        if all.is_empty() || now_us < self.bring_us.load(Ordering::Relaxed) || !self.coordinator.agrees_on_floors() {
            return;
        }
        self.bring_us.store(now_us + BRING_AGAIN_US, Ordering::Relaxed);
        let here = |key: &Key| lane_of(&self.broker, *key).filter(|lane| lane.tenure() == Tenure::Here);
        let lanes: Vec<(Key, Arc<Lane>)> = all.keys().filter_map(|key| Some((*key, here(key)?))).collect();
        if lanes.is_empty() {
            return;
        }
        let floors: Vec<_> = lanes.iter().map(|(_, lane)| agreed(lane, lane.floor_ordinal())).collect();
        if let Err(error) = self.coordinator.set_floors(&floors) {
            return tracing::info!(%error, "the coordinators do not know yet where partitions of this node begin");
        }
        let over: Vec<Entry> = lanes
            .into_iter()
            .map(|((stream, streamlet, lane), _)| {
                all.remove(&(stream, streamlet, lane));
                Entry { stream, streamlet, lane, ordinal: None }
            })
            .collect();
        tracing::info!(
            partitions = over.len(),
            "the coordinators know where partitions begin whose records were deleted"
        );
        // What is not written is brought again after the next start.
        let _ = self.append(&over);
    }

    /// Writes everything anew if the log has grown; lets go of what a durable copy has replaced.
    pub(crate) fn tick(&self) {
        let mut all = self.all.lock();
        self.bring(&mut all);
        self.copy(&mut all, COPY_BYTES_MIN);
        drop(all);
        self.log.trim();
    }

    /// Writes everything anew if the log has grown by `bytes_min`.
    fn copy(&self, all: &mut BTreeMap<Key, u64>, bytes_min: u64) {
        if let Some((from, added)) = self.log.begin_copy(bytes_min) {
            all.retain(|key, _| lane_of(&self.broker, *key).is_some());
            let floors = all.iter().map(|(key, floor)| entry((*key, *floor)));
            let entries: Vec<Entry> =
                std::iter::once(edge(Edge::Begin)).chain(floors).chain(std::iter::once(edge(Edge::End))).collect();
            if self.append(&entries).is_ok() {
                self.log.end_copy(from, added);
            }
        }
    }

    fn wait(&self, mark: Mark) {
        let arrived = Arc::new(Arrived::default());
        let observer: Arc<dyn Observer> = Arc::clone(&arrived) as _;
        while let Some(sink) = self.log.sink().filter(|_| !self.log.is_durable(mark)) {
            if sink.wait(mark.0, &observer, 0) {
                arrived.wait();
            }
        }
    }
}
