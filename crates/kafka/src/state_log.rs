//! What a coordinator keeps: a system stream of one lane, durable before anything that rests on it is answered. Read once at
//! start; from then on only appended to, and written anew when it has grown, so that what stands before can go.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use kera_broker::{Broker, applications_stream_options};
use kera_env::Clock;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Cursor, FormatError, LaneId, RecordView, StreamId, StreamOptions, StreamletId,
};
use kera_log::{DurabilitySink, Lane, ReadError, Ticket};
use parking_lot::Mutex;

use crate::door::Catalog;
use crate::groups::{AppendFailed, Mark};

/// Bytes of records in one chunk: what is recorded in one go is there as a whole or not at all.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// The options of such a stream: as those of the stream of applications, with room for larger chunks.
fn state_stream_options() -> StreamOptions {
    StreamOptions { segment_bytes_max: 8 << 20, ..applications_stream_options() }
}

/// What is kept, a record each.
pub(crate) trait Kept: Sized {
    fn encode(&self, into: &mut ChunkBuilder);
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError>;
}

impl Kept for kera_format::kafka_groups::Entry {
    fn encode(&self, into: &mut ChunkBuilder) {
        self.encode(into);
    }
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError> {
        Self::decode(record)
    }
}

impl Kept for kera_format::kafka_transactions::Entry {
    fn encode(&self, into: &mut ChunkBuilder) {
        self.encode(into);
    }
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError> {
        Self::decode(record)
    }
}

/// The stream, open for appends.
pub(crate) struct StateLog<E> {
    name: &'static str,
    stream: StreamId,
    lane: Arc<Lane>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    entries: PhantomData<fn(E)>,
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

impl<E: Kept> StateLog<E> {
    /// The log in the system stream of that name, which is made if it is not there.
    ///
    /// # Errors
    /// The stream cannot be made.
    pub(crate) fn open(
        name: &'static str,
        catalog: &Catalog,
        broker: &Broker,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<Arc<StateLog<E>>> {
        let made = catalog.coordinator.system_stream(name, &state_stream_options());
        let info = made.map_err(|error| io::Error::other(error.to_string()))?;
        let stream = broker.log().stream(info.id);
        let stream = stream.ok_or_else(|| io::Error::other(format!("{name} is not in the log")))?;
        stream.keep_room();
        let lane = stream.streamlet(StreamletId(0)).and_then(|streamlet| streamlet.lane(LaneId(0)).cloned());
        let lane = lane.ok_or_else(|| io::Error::other(format!("{name} has no lane")))?;
        let (stream, clock) = (stream.id(), Arc::clone(clock));
        Ok(Arc::new(StateLog { name, stream, lane, clock, state: Mutex::default(), entries: PhantomData }))
    }

    /// Gives out what is in the stream, oldest first. Blocks the thread while segments come from disk. How many records were
    /// read, and how many of them are not understood and were passed over.
    pub(crate) fn replay(&self, mut each: impl FnMut(E)) -> Result<(u64, u64), ReadError> {
        let (mut records, mut passed_over) = (0, 0);
        self.lane.replay(|data| {
            self.state.lock().added_bytes += data.len() as u64;
            for chunk in Chunks::new(data) {
                let Ok(chunk) = chunk else {
                    passed_over += 1;
                    continue;
                };
                for record in chunk.records() {
                    records += 1;
                    match record.and_then(|record| E::decode(&record)) {
                        Ok(entry) => each(entry),
                        Err(error) => {
                            passed_over += 1;
                            tracing::warn!(stream = self.name, %error, "a record is passed over");
                        }
                    }
                }
            }
        })?;
        Ok((records, passed_over))
    }

    /// What makes its records durable.
    pub(crate) fn sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        self.lane.sink()
    }

    /// Whether it is durable up to a mark.
    pub(crate) fn is_durable(&self, mark: Mark) -> bool {
        self.sink().is_none_or(|sink| sink.durable_through() >= mark.0)
    }

    /// Appends entries, in one chunk.
    pub(crate) fn append(&self, entries: &[E]) -> Result<Mark, AppendFailed> {
        let mut state = self.state.lock();
        let mut chunk = ChunkBuilder::with_buffer(std::mem::take(&mut state.buffer));
        for entry in entries {
            entry.encode(&mut chunk);
            if chunk.bytes() > CHUNK_BYTES_MAX {
                let (stream, entries) = (self.name, entries.len());
                tracing::warn!(stream, entries, limit = CHUNK_BYTES_MAX, "too much to record at a time");
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
                tracing::warn!(stream = self.name, %error, "nothing can be recorded");
                Err(AppendFailed)
            }
        }
    }

    /// Whether it is time to write everything anew, since `bytes_min` and at least as much as a copy takes were added: where
    /// the copy will start, and what was added until then. Under the coordinator's lock.
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
        if self.is_durable(Mark(ticket)) {
            self.lane.set_consumed_floor(Some(from));
            state.copied = None;
        }
    }
}
