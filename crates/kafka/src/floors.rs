//! Where partitions begin once records were deleted from their front: the system stream `_kera.floors` (decision 12), read once
//! at start, and appended to on the door's thread for commands.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kera_broker::Broker;
use kera_env::Clock;
use kera_format::kafka_floors::Entry;
use kera_format::{ChunkBuilder, FormatError, LaneId, RecordView, StreamId, StreamletId};
use kera_log::{Arrived, Lane, Observer};
use parking_lot::Mutex;

use crate::door::{After, Catalog};
use crate::groups::{AppendFailed, Mark};
use crate::state_log::{Kept, StateLog};

/// The stream's name.
const FLOORS_STREAM: &str = "_kera.floors";
/// The log is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 1 << 20;
/// Entries of one append.
const STEP_ENTRIES: usize = 8_192;

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
    all: Mutex<BTreeMap<Key, u64>>,
}

/// The offset at which a partition begins.
pub(crate) fn first_offset(lane: &Lane) -> u64 {
    lane.earliest().1.max(lane.floor_ordinal()).min(lane.durable_ordinal())
}

fn lane_of(broker: &Broker, (stream, streamlet, lane): Key) -> Option<Arc<Lane>> {
    broker.log().stream(stream)?.streamlet(streamlet)?.lane(lane).cloned()
}

fn entry(((stream, streamlet, lane), ordinal): (Key, u64)) -> Entry {
    Entry { stream, streamlet, lane, ordinal: Some(ordinal) }
}

impl Floors {
    /// Opens the stream, reads what is in it and tells the lanes. Blocks the thread while segments come from disk. A lane that
    /// came back shorter than its floor gets a lower one, which is durable on return: what is appended to it must not hide.
    ///
    /// # Errors
    /// The stream cannot be made, read, or written to.
    pub(crate) fn open(catalog: &Catalog, broker: &Arc<Broker>, clock: &Arc<dyn Clock>) -> io::Result<Floors> {
        let other = |error: String| io::Error::other(error);
        let log = StateLog::open(FLOORS_STREAM, catalog, broker, clock)?;
        let mut all = BTreeMap::new();
        let each = |entry: Entry| {
            let key = (entry.stream, entry.streamlet, entry.lane);
            match entry.ordinal {
                Some(ordinal) => all.insert(key, ordinal),
                None => all.remove(&key),
            };
        };
        log.replay(each).map_err(|error| other(error.to_string()))?;
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
        let floors = Floors { log, broker: Arc::clone(broker), all: Mutex::new(all) };
        if let Some(mark) = floors.append(&lowered).map_err(|_| other(format!("{FLOORS_STREAM} takes nothing")))? {
            floors.wait(mark);
        }
        Ok(floors)
    }

    /// Deletes the records of lanes below ordinals, and says what must be durable before that is told. On failure those in
    /// front may be deleted.
    pub(crate) fn raise(&self, lanes: &[(Arc<Lane>, u64)]) -> Result<Option<After>, AppendFailed> {
        let mut all = self.all.lock();
        let mut higher: BTreeMap<Key, (&Arc<Lane>, u64)> = BTreeMap::new();
        // Of what other nodes have it is not known here whether it is there.
        let known = |lane: &Lane| if lane.is_plain() { first_offset(lane) } else { lane.floor_ordinal() };
        for (lane, ordinal) in lanes.iter().filter(|(lane, ordinal)| *ordinal > known(lane)) {
            let key = (lane.stream_id(), lane.streamlet_id(), lane.id());
            let (_, highest) = higher.entry(key).or_insert((lane, *ordinal));
            *highest = (*highest).max(*ordinal);
        }
        let entries: Vec<Entry> = higher.iter().map(|(key, (_, ordinal))| entry((*key, *ordinal))).collect();
        let mark = self.append(&entries)?;
        for (key, (lane, ordinal)) in higher {
            all.insert(key, ordinal);
            lane.raise_floor(ordinal);
        }
        let after = |mark: Mark| Some(After { sink: Arc::clone(self.log.sink()?), ticket: mark.0 });
        Ok(mark.and_then(after))
    }

    fn append(&self, entries: &[Entry]) -> Result<Option<Mark>, AppendFailed> {
        let mut last = None;
        for step in entries.chunks(STEP_ENTRIES) {
            last = Some(self.log.append(step)?);
        }
        Ok(last)
    }

    /// Writes everything anew if the log has grown; lets go of what a durable copy has replaced.
    pub(crate) fn tick(&self) {
        let mut all = self.all.lock();
        if let Some((from, added)) = self.log.begin_copy(COPY_BYTES_MIN) {
            all.retain(|key, _| lane_of(&self.broker, *key).is_some());
            let entries: Vec<Entry> = all.iter().map(|(key, floor)| entry((*key, *floor))).collect();
            if self.append(&entries).is_ok() {
                self.log.end_copy(from, added);
            }
        }
        drop(all);
        self.log.trim();
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
