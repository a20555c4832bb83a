//! Where groups and their offsets are kept: the system stream `_kera.groups`, one lane, durable before anything that rests on
//! it is answered. Read once at start; from then on only appended to, under the coordinator's lock.

use std::sync::Arc;

use kera_broker::applications_stream_options;
use kera_env::Clock;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::kafka_groups::Entry;
use kera_format::{ChunkBuilder, ChunkView, Compression, Cursor, LaneId, StreamId, StreamOptions, StreamletId};
use kera_log::{DurabilitySink, Lane, Observer, ReadError, Stream, Ticket};
use parking_lot::{Condvar, Mutex};

use crate::groups::{AppendFailed, Journal, Mark};

/// The stream's name.
pub(crate) const GROUPS_STREAM: &str = "_kera.groups";
/// Bytes of records in one chunk: what is recorded in one go is there as a whole or not at all.
const CHUNK_BYTES_MAX: usize = 4 << 20;
const READ_BYTES: usize = 1 << 20;

/// The options of [`GROUPS_STREAM`]: as those of the stream of applications, with room for larger chunks.
pub(crate) fn groups_stream_options() -> StreamOptions {
    StreamOptions { segment_bytes_max: 8 << 20, ..applications_stream_options() }
}

/// The stream, open for appends.
pub(crate) struct GroupLog {
    stream: StreamId,
    lane: Arc<Lane>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    last_ticket: Ticket,
    /// Bytes appended since the last copy of everything, and what that copy took.
    added_bytes: u64,
    copy_bytes: u64,
    /// A copy that is written and not yet durable: where it starts, its last ticket.
    copied: Option<(Cursor, Ticket)>,
}

impl GroupLog {
    /// The log of groups in its stream.
    pub(crate) fn new(stream: &Stream, clock: Arc<dyn Clock>) -> Option<Arc<GroupLog>> {
        stream.keep_room();
        let lane = Arc::clone(stream.streamlet(StreamletId(0))?.lane(LaneId(0))?);
        Some(Arc::new(GroupLog { stream: stream.id(), lane, clock, state: Mutex::default() }))
    }

    /// Gives out what is in the stream, oldest first. Blocks the thread while segments come from disk. How many records were
    /// read, and how many of them are not understood and were passed over.
    pub(crate) fn replay(&self, mut each: impl FnMut(Entry)) -> Result<(u64, u64), ReadError> {
        let arrived = Arc::new(Arrived::default());
        let observer: Arc<dyn Observer> = Arc::clone(&arrived) as _;
        let (mut records, mut passed_over) = (0, 0);
        let mut cursor = Cursor::default();
        loop {
            let outcome = self.lane.read(cursor, READ_BYTES, true)?;
            self.state.lock().added_bytes += outcome.data_bytes as u64;
            for chunk in outcome.data.iter().flat_map(|data| Chunks::new(data)) {
                let Ok(chunk) = chunk else {
                    passed_over += 1;
                    continue;
                };
                for record in chunk.records() {
                    records += 1;
                    match record.and_then(|record| Entry::decode(&record)) {
                        Ok(entry) => each(entry),
                        Err(error) => {
                            passed_over += 1;
                            tracing::warn!(%error, "a record of Kafka groups is passed over");
                        }
                    }
                }
            }
            cursor = outcome.next;
            if outcome.loading {
                if self.lane.wait(outcome.version, &observer, 0) {
                    arrived.wait();
                }
            } else if outcome.at_durable_end {
                return Ok((records, passed_over));
            }
        }
    }

    /// What makes its records durable.
    pub(crate) fn sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        self.lane.sink()
    }

    fn append(&self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        let mut state = self.state.lock();
        let mut chunk = ChunkBuilder::with_buffer(std::mem::take(&mut state.buffer));
        for entry in entries {
            entry.encode(&mut chunk);
            if chunk.bytes() > CHUNK_BYTES_MAX {
                tracing::warn!(entries = entries.len(), limit = CHUNK_BYTES_MAX, "too much of one group at a time");
                return Err(AppendFailed);
            }
        }
        if chunk.record_count() == 0 {
            return Ok(Mark(state.last_ticket));
        }
        let target = ChunkTarget { stream: self.stream, ..ChunkTarget::default() };
        let bytes = chunk.seal(&target, Compression::None).map_err(|_| AppendFailed)?;
        let view = ChunkView::parse(&bytes).map_err(|_| AppendFailed)?;
        let appended = self.lane.append(&view, self.clock.now_ms());
        let added = bytes.len() as u64;
        state.buffer = bytes;
        match appended {
            Ok(appended) => {
                state.added_bytes += added;
                state.last_ticket = appended.ticket.unwrap_or(state.last_ticket);
                Ok(Mark(state.last_ticket))
            }
            Err(error) => {
                tracing::warn!(%error, "the offsets of Kafka groups cannot be written");
                Err(AppendFailed)
            }
        }
    }

    /// Whether it is time to write everything anew, since `bytes_min` and at least as much as a copy takes were added: where
    /// the copy will start, and what was added until then. Under the coordinator's lock, until [`end_copy`](Self::end_copy).
    pub(crate) fn begin_copy(&self, bytes_min: u64) -> Option<(Cursor, u64)> {
        let state = self.state.lock();
        let due = state.copied.is_none() && state.added_bytes > bytes_min.max(state.copy_bytes);
        due.then(|| (self.lane.latest().0, state.added_bytes))
    }

    /// Everything is written anew from `from` on.
    pub(crate) fn end_copy(&self, from: Cursor, added_before: u64) {
        let mut state = self.state.lock();
        state.copied = Some((from, state.last_ticket));
        state.copy_bytes = state.added_bytes - added_before;
        state.added_bytes = 0;
    }

    /// Lets go of what a durable copy has replaced.
    pub(crate) fn trim(&self) {
        let mut state = self.state.lock();
        let Some((from, ticket)) = state.copied else { return };
        if self.sink().is_none_or(|sink| sink.durable_through() >= ticket) {
            self.lane.set_consumed_floor(Some(from));
            state.copied = None;
        }
    }
}

/// The coordinator's handle.
pub(crate) struct Handle(pub(crate) Arc<GroupLog>);

impl Journal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.0.append(entries)
    }
}

impl GroupLog {
    /// Appends entries of a copy.
    pub(crate) fn append_copy(&self, entries: &[Entry]) -> bool {
        self.append(entries).is_ok()
    }
}

/// Lets the starting thread wait for a segment.
#[derive(Default)]
struct Arrived {
    arrived: Mutex<bool>,
    changed: Condvar,
}

impl Arrived {
    fn wait(&self) {
        let mut arrived = self.arrived.lock();
        while !*arrived {
            self.changed.wait(&mut arrived);
        }
        *arrived = false;
    }
}

impl Observer for Arrived {
    fn advanced(&self, _: u64) {
        *self.arrived.lock() = true;
        self.changed.notify_all();
    }
}
