//! Writing to where applications are kept, the system stream of a node that is alone or the progress lane of a streamlet: appends,
//! the copy of everything that keeps it short, and its trimming.
//!
//! Called with the application's lock held, so that records stand in the order in which states changed; takes its own
//! lock, then the lane's. Only appends, never waits: what must be durable is answered through tickets.

use std::sync::Arc;

use kera_format::applications::{Entry, RECORD_BYTES_MAX};
use kera_format::chunk::ChunkTarget;
use kera_format::limits::SEGMENT_BYTES_MIN;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{ChunkBuilder, ChunkView, Compression, Cursor, LaneId, StreamId, StreamletId};
use kera_log::{Lane, Stream, Streamlet, Ticket};
use kera_protocol::Status;
use parking_lot::Mutex;

use crate::acks::Answer;
use crate::failure::{Failure, append_status};

/// The most bytes of one chunk of records: it fits into the smallest segment, which a full arena has longest.
const CHUNK_BYTES: usize = 32 << 10;
const _: () = assert!(CHUNK_BYTES + SEGMENT_HEADER_BYTES <= SEGMENT_BYTES_MIN);

/// What is written to, once it is open.
#[derive(Default)]
pub(super) struct Journal {
    open: Mutex<Option<Open>>,
}

/// Where records go.
enum Place {
    /// A lane of the node's own.
    Lane(Arc<Lane>),
    /// The progress lane of a streamlet, which is made with the first record.
    Progress(Arc<Streamlet>),
}

impl Place {
    fn used(&self) -> Option<&Arc<Lane>> {
        match self {
            Place::Lane(lane) => Some(lane),
            Place::Progress(streamlet) => streamlet.used_progress_lane(),
        }
    }

    fn lane(&self) -> &Arc<Lane> {
        match self {
            Place::Lane(lane) => lane,
            Place::Progress(streamlet) => streamlet.progress_lane(),
        }
    }
}

/// A ticket and which of the streamlet's logs it is of.
type InLog = (u8, Ticket);

struct Open {
    stream: StreamId,
    place: Place,
    buffer: Vec<u8>,
    /// Of the last chunk that was appended.
    last_ticket: Option<InLog>,
    /// Bytes appended since the last copy, and what that copy took.
    added_bytes: u64,
    copy_bytes: u64,
    /// Somebody writes a copy.
    is_copying: bool,
    /// A copy that is written and not yet durable: where it starts, its last ticket.
    copied: Option<(Cursor, Option<InLog>)>,
    copy_wanted: bool,
}

/// How far an append came.
pub(super) struct Written {
    /// Entries that are appended, from the front.
    pub(super) entries: usize,
    /// Why the others are not.
    pub(super) failure: Option<Failure>,
}

impl Journal {
    /// Opens the stream for appends. `bytes` are in it already.
    pub(super) fn open(&self, stream: &Stream, bytes: u64) -> Result<(), Failure> {
        let place = Place::Lane(lane(stream)?);
        *self.open.lock() = Some(Open::new(stream.id(), place, bytes));
        Ok(())
    }

    /// Opens the progress lane of a streamlet for appends. `bytes` are in it already.
    pub(super) fn open_progress(&self, stream: StreamId, streamlet: &Arc<Streamlet>, bytes: u64) {
        *self.open.lock() = Some(Open::new(stream, Place::Progress(Arc::clone(streamlet)), bytes));
    }

    /// Refuses while the stream is not open.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        if self.open.lock().is_some() { Ok(()) } else { Err(not_ready()) }
    }

    /// Appends entries of one application, in as few chunks as they fit into.
    pub(super) fn append(&self, name: &str, of: StreamId, entries: &[Entry], now_ms: i64) -> Written {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return Written { entries: 0, failure: Some(not_ready()) } };
        let mut done = 0;
        while done < entries.len() {
            let mut chunk = ChunkBuilder::with_buffer(std::mem::take(&mut open.buffer));
            let mut next = done;
            while next < entries.len() && chunk.bytes() + RECORD_BYTES_MAX <= CHUNK_BYTES {
                entries[next].encode(name, of, &mut chunk);
                next += 1;
            }
            if let Err(failure) = open.append(chunk, now_ms) {
                return Written { entries: done, failure: Some(failure) };
            }
            done = next;
        }
        Written { entries: done, failure: None }
    }

    /// Has `answer` wait for everything that was appended so far. Also when a request changed nothing itself: what it
    /// repeats may not be durable yet.
    pub(super) fn wait_for_all(&self, answer: &mut Answer) {
        if let Some(open) = self.open.lock().as_ref()
            && let Some((log, ticket)) = open.last_ticket
            && let Some(sink) = open.place.used().and_then(|lane| lane.sink_of(log))
        {
            answer.tickets.add(sink, ticket);
        }
    }

    /// Whether it is time to write everything anew: where the copy will start, if so. Who is told so [ends](Journal::end_copy) the copy or
    /// [gives it up](Journal::give_up_copy); until then nobody else is: several threads look.
    pub(super) fn begin_copy(&self, bytes_min: u64) -> Option<Cursor> {
        let mut guard = self.open.lock();
        let open = guard.as_mut()?;
        let is_long = open.added_bytes > bytes_min.max(open.copy_bytes);
        let due = open.copied.is_none() && !open.is_copying && (is_long || open.copy_wanted);
        if !due {
            return None;
        }
        open.is_copying = true;
        let Some(lane) = open.place.used() else { return Some(Cursor::default()) };
        if matches!(open.place, Place::Progress(_)) {
            // Only whole groups can go.
            lane.close_group();
        }
        Some(lane.latest().0)
    }

    /// The copy that starts at `from` is written; it took everything appended since `bytes_before`.
    pub(super) fn end_copy(&self, from: Cursor, bytes_before: u64) {
        if let Some(open) = self.open.lock().as_mut() {
            open.copied = Some((from, open.last_ticket));
            open.copy_bytes = open.added_bytes - bytes_before;
            (open.added_bytes, open.copy_wanted, open.is_copying) = (0, false, false);
        }
    }

    /// The copy could not be written to its end. The next one is due at once.
    pub(super) fn give_up_copy(&self) {
        if let Some(open) = self.open.lock().as_mut() {
            (open.copy_wanted, open.is_copying) = (true, false);
        }
    }

    /// The next copy is due at once, if anything was ever written.
    pub(super) fn want_copy(&self) {
        if let Some(open) = self.open.lock().as_mut() {
            open.copy_wanted = true;
        }
    }

    /// Bytes appended since the last copy.
    pub(super) fn added_bytes(&self) -> u64 {
        self.open.lock().as_ref().map_or(0, |open| open.added_bytes)
    }

    /// Bytes of the last copy, and of what was appended since: whatever is recorded is among them.
    pub(super) fn recorded_bytes(&self) -> u64 {
        self.open.lock().as_ref().map_or(0, |open| open.copy_bytes + open.added_bytes)
    }

    /// Lets go of what a durable copy has replaced. Whether there was one.
    pub(super) fn trim(&self) -> bool {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return false };
        let Some((from, ticket)) = open.copied else { return false };
        let Some(lane) = open.place.used() else { return false };
        let durable =
            ticket.is_none_or(|(log, ticket)| lane.sink_of(log).is_none_or(|sink| sink.durable_through() >= ticket));
        if durable {
            lane.set_consumed_floor(Some(from));
            open.copied = None;
        }
        durable
    }
}

/// Records in chunks, for whoever is the next owner of a streamlet.
#[derive(Default)]
pub(super) struct Chunked {
    full: Vec<ChunkBuilder>,
    filling: ChunkBuilder,
}

impl Chunked {
    pub(super) fn push(&mut self, name: &str, stream: StreamId, entries: &[Entry]) {
        for entry in entries {
            if self.filling.bytes() + RECORD_BYTES_MAX > CHUNK_BYTES {
                self.full.push(std::mem::take(&mut self.filling));
            }
            entry.encode(name, stream, &mut self.filling);
        }
    }

    /// The chunks, one after the other.
    pub(super) fn seal(
        self,
        stream: StreamId,
        streamlet: StreamletId,
        compression: Compression,
    ) -> Result<Vec<u8>, Failure> {
        let mut all = Vec::new();
        let target = ChunkTarget { stream, streamlet, ..ChunkTarget::default() };
        for chunk in self.full.into_iter().chain([self.filling]).filter(|chunk| chunk.record_count() > 0) {
            let sealed = chunk.seal(&target, compression);
            all.extend(sealed.map_err(|error| Failure::new(Status::Internal, error.to_string()))?);
        }
        Ok(all)
    }
}

impl Open {
    fn new(stream: StreamId, place: Place, bytes: u64) -> Open {
        let (added_bytes, copy_bytes, last_ticket) = (bytes, 0, None);
        let (buffer, copied, copy_wanted) = (Vec::new(), None, false);
        let is_copying = false;
        Open { stream, place, buffer, last_ticket, added_bytes, copy_bytes, is_copying, copied, copy_wanted }
    }

    fn append(&mut self, chunk: ChunkBuilder, now_ms: i64) -> Result<(), Failure> {
        let lane = self.place.lane();
        let target = ChunkTarget { stream: self.stream, streamlet: lane.streamlet_id(), ..ChunkTarget::default() };
        let defect = |error: kera_format::FormatError| Failure::new(Status::Internal, error.to_string());
        let bytes = chunk.seal(&target, Compression::None).map_err(defect)?;
        let view = ChunkView::parse(&bytes).map_err(defect)?;
        let appended = lane.append(&view, now_ms);
        self.added_bytes += bytes.len() as u64;
        self.buffer = bytes;
        let appended = appended.map_err(|error| {
            let (status, _) = append_status(&error);
            Failure::later(status, format!("committed offsets cannot be written: {error}"))
        })?;
        self.last_ticket = appended.ticket.map(|ticket| (appended.log, ticket)).or(self.last_ticket);
        Ok(())
    }
}

/// The one lane of the system stream.
pub(super) fn lane(stream: &Stream) -> Result<Arc<Lane>, Failure> {
    let lane = stream.streamlet(StreamletId(0)).and_then(|streamlet| streamlet.lane(LaneId(0)));
    lane.cloned().ok_or_else(|| Failure::unknown_stream(stream.id()))
}

fn not_ready() -> Failure {
    Failure::later(Status::NotReady, "applications are being read from their stream")
}
