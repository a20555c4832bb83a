//! Writing to the system stream of applications: appends, the copy of everything that keeps it short, and its trimming.
//!
//! Called with the application's lock held, so that records stand in the order in which states changed; takes its own
//! lock, then the lane's. Only appends, never waits: what must be durable is answered through tickets.

use std::sync::Arc;

use kera_format::applications::{Entry, RECORD_BYTES_MAX};
use kera_format::chunk::ChunkTarget;
use kera_format::limits::SEGMENT_BYTES_MIN;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{ChunkBuilder, ChunkView, Compression, Cursor, LaneId, StreamId, StreamletId};
use kera_log::{Lane, Stream, Ticket};
use kera_protocol::Status;
use parking_lot::Mutex;

use crate::acks::Answer;
use crate::failure::{Failure, append_status};

/// The most bytes of one chunk of records: it fits into the smallest segment, which a full arena has longest.
const CHUNK_BYTES: usize = 32 << 10;
const _: () = assert!(CHUNK_BYTES + SEGMENT_HEADER_BYTES <= SEGMENT_BYTES_MIN);

/// The system stream, once it is open.
#[derive(Default)]
pub(super) struct Journal {
    open: Mutex<Option<Open>>,
}

struct Open {
    stream: StreamId,
    lane: Arc<Lane>,
    buffer: Vec<u8>,
    /// Of the last chunk that was appended.
    last_ticket: Option<Ticket>,
    /// Bytes appended since the last copy, and what that copy took.
    added_bytes: u64,
    copy_bytes: u64,
    /// A copy that is written and not yet durable: where it starts, its last ticket.
    copied: Option<(Cursor, Option<Ticket>)>,
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
        let lane = lane(stream)?;
        *self.open.lock() = Some(Open {
            stream: stream.id(),
            lane,
            buffer: Vec::new(),
            last_ticket: None,
            added_bytes: bytes,
            copy_bytes: 0,
            copied: None,
        });
        Ok(())
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
            && let (Some(ticket), Some(sink)) = (open.last_ticket, open.lane.sink())
        {
            answer.tickets.add(sink, ticket);
        }
    }

    /// Whether it is time to write everything anew: where the copy will start, if so.
    pub(super) fn begin_copy(&self, bytes_min: u64) -> Option<Cursor> {
        let guard = self.open.lock();
        let open = guard.as_ref()?;
        let due = open.copied.is_none() && open.added_bytes > bytes_min.max(open.copy_bytes);
        due.then(|| open.lane.latest().0)
    }

    /// The copy that starts at `from` is written; it took everything appended since `bytes_before`.
    pub(super) fn end_copy(&self, from: Cursor, bytes_before: u64) {
        if let Some(open) = self.open.lock().as_mut() {
            open.copied = Some((from, open.last_ticket));
            open.copy_bytes = open.added_bytes - bytes_before;
            open.added_bytes = 0;
        }
    }

    /// Bytes appended since the last copy.
    pub(super) fn added_bytes(&self) -> u64 {
        self.open.lock().as_ref().map_or(0, |open| open.added_bytes)
    }

    /// Lets go of what a durable copy has replaced. Whether there was one.
    pub(super) fn trim(&self) -> bool {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return false };
        let Some((from, ticket)) = open.copied else { return false };
        let durable = match (ticket, open.lane.sink()) {
            (Some(ticket), Some(sink)) => sink.durable_through() >= ticket,
            _ => true,
        };
        if durable {
            open.lane.set_consumed_floor(Some(from));
            open.copied = None;
        }
        durable
    }
}

impl Open {
    fn append(&mut self, chunk: ChunkBuilder, now_ms: i64) -> Result<(), Failure> {
        let target = ChunkTarget { stream: self.stream, ..ChunkTarget::default() };
        let defect = |error: kera_format::FormatError| Failure::new(Status::Internal, error.to_string());
        let bytes = chunk.seal(&target, Compression::None).map_err(defect)?;
        let view = ChunkView::parse(&bytes).map_err(defect)?;
        let appended = self.lane.append(&view, now_ms);
        self.added_bytes += bytes.len() as u64;
        self.buffer = bytes;
        let appended = appended.map_err(|error| {
            let (status, _) = append_status(&error);
            Failure::later(status, format!("committed offsets cannot be written: {error}"))
        })?;
        self.last_ticket = appended.ticket.or(self.last_ticket);
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
