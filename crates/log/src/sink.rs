//! Where acknowledged bytes must also go before they count as durable: the seam to the virtual log (thesis 7.3.2).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{SegmentId, StreamId, StreamOptions, StreamletId};

use crate::lane::Lane;
use crate::segment::Segment;
use crate::waiters::Observer;

/// A place in a sink's order. Tickets of one sink increase; everything up to [`DurabilitySink::durable_through`] is safe.
pub type Ticket = u64;

/// A chunk that was appended and is not durable yet, or a run of chunks that follow each other in one segment; or pieces of a compacted
/// segment. Keeps its segment in memory.
#[derive(Clone)]
pub struct ChunkReference {
    /// Where it is.
    pub segment: Arc<Segment>,
    /// Its first byte in the segment.
    pub position: u32,
    /// Its bytes, padding included: a multiple of 8.
    pub bytes: u32,
    /// Ordinal of the record after its last.
    pub next_ordinal: u64,
    /// The lane it was appended to.
    pub lane: Arc<Lane>,
    /// Of a compacted segment that is copied again its [row](kera_format::piece::row_of): the place is in there, as if a segment's header were
    /// in front of it.
    pub row: Option<Arc<Vec<u8>>>,
}

impl ChunkReference {
    /// The chunk or chunks, stamped.
    #[inline]
    pub fn chunk(&self) -> &[u8] {
        match &self.row {
            None => self.segment.bytes(self.position, self.position + self.bytes),
            Some(row) => &row[self.range_in_row()],
        }
    }

    /// The same as a buffer that keeps what it is of, without a copy.
    pub fn to_bytes(&self) -> Bytes {
        match &self.row {
            None => self.segment.into_bytes(self.position, self.position + self.bytes),
            Some(row) => Bytes::from_owner(OfRow(Arc::clone(row))).slice(self.range_in_row()),
        }
    }

    fn range_in_row(&self) -> Range<usize> {
        let from = self.position as usize - SEGMENT_HEADER_BYTES;
        from..from + self.bytes as usize
    }

    /// Whether `next` lies right behind it.
    pub fn is_followed_by(&self, next: &ChunkReference) -> bool {
        let is_in_one = match (&self.row, &next.row) {
            (None, None) => Arc::ptr_eq(&self.segment, &next.segment),
            (Some(row), Some(of_next)) => Arc::ptr_eq(row, of_next),
            _ => false,
        };
        is_in_one && self.position + self.bytes == next.position
    }
}

struct OfRow(Arc<Vec<u8>>);

impl AsRef<[u8]> for OfRow {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What is wrong with a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkErrorKind {
    /// There is no room left where it writes.
    Full,
    /// Writing fails.
    Failed,
    /// Too much waits to be written: back-pressure, as when the arena is full.
    Behind,
    /// There have been too few copies for longer than it takes to replace one, and nothing is acknowledged. It may last: whoever can tell their client
    /// so does that, and everybody else waits as behind too much.
    TooFewCopies,
    /// The node was declared lost: nothing it takes can be acknowledged any more.
    Fenced,
}

impl SinkErrorKind {
    /// Whether it passes by itself, and calls those who [wait](DurabilitySink::wait) when it has.
    pub fn passes(self) -> bool {
        matches!(self, SinkErrorKind::Behind | SinkErrorKind::TooFewCopies)
    }
}

/// Why nothing can be made durable now. The log refuses appends with it instead of taking what it cannot keep.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SinkError {
    /// What kind of trouble it is.
    pub kind: SinkErrorKind,
    /// What is wrong, with the disk or the backup, and what to do.
    pub reason: String,
    /// When a retry is sensible.
    pub retry_after_ms: u32,
}

/// Makes chunks durable in the order in which they were appended.
pub trait DurabilitySink: Send + Sync {
    /// Takes a chunk. Called under the lane's lock, in the lane's order: must only enqueue. The ticket is durable when all
    /// lower ones are.
    fn appended(&self, reference: ChunkReference) -> Ticket;

    /// The highest ticket that is durable, with all below. The durable heads were moved before it moves.
    fn durable_through(&self) -> Ticket;

    /// Calls `observer` once when `ticket` is durable. False, and no call, if it is already.
    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool;

    /// Whether appends make sense. Called for every append before anything is changed: one atomic load when all is well.
    fn healthy(&self) -> Result<(), SinkError>;

    /// A sink with the same copies for what nobody waits for, as what is rebuilt or copied again: what is appended here does not wait behind that. It
    /// has tickets of its own, and is one and the same for as long as this one is there. `None`: there is only this one.
    fn behind(&self) -> Option<Arc<dyn DurabilitySink>> {
        None
    }

    /// Its number among the virtual logs on this node's disk, which a start reads back: see [`Log::restore_chunk`](crate::Log::restore_chunk). Of what has copies
    /// elsewhere nobody asks.
    fn virtual_log(&self) -> u32 {
        0
    }

    /// Whether what was appended to a stream with asynchronous replication may be acknowledged before it is durable: the copies of what was
    /// appended before do not lag too far behind, and there is no reason to think that nothing is copied any more. A few atomic loads.
    fn may_answer_early(&self) -> bool {
        false
    }

    /// The sink need not keep the chunks of this segment any more: the segment is stored elsewhere, or gone. May be
    /// called for segments that it never saw, and more than once. May be called under the lane's lock.
    fn segment_safe(&self, id: SegmentId);

    /// A start leaves out some of the segment, or all of it, since its ordinals were given again: what the sink has of it is kept aside, for a person to look at, when it need not be kept
    /// otherwise. Before [`segment_safe`](DurabilitySink::segment_safe) of what goes. May be called under the lane's lock, and in the middle of a replay.
    fn segment_given_again(&self, id: SegmentId) {
        let _ = id;
    }

    /// The segment is gone for good, by retention or with its stream: copies of its chunks elsewhere may go too. May be called for
    /// segments that it never saw, and more than once; always after or together with
    /// [`segment_safe`](DurabilitySink::segment_safe). May be called under the lane's lock.
    fn segment_gone(&self, id: SegmentId) {
        let _ = id;
    }

    /// Compaction has left so many bytes of a segment: a copy of it that is made now takes no more. May be called for segments that it never
    /// saw. Not under the lane's lock.
    fn segment_smaller(&self, id: SegmentId, bytes: u64) {
        let _ = (id, bytes);
    }
}

/// The sink for what nobody waits for: see [`DurabilitySink::behind`].
pub fn behind(sink: &Arc<dyn DurabilitySink>) -> Arc<dyn DurabilitySink> {
    sink.behind().unwrap_or_else(|| Arc::clone(sink))
}

/// Which sink serves a streamlet's lanes: a pool shared by all, or some of the stream's own
/// ([`StreamOptions::virtual_logs`]). The same for a streamlet as long as the process lives.
pub trait SinkDirectory: Send + Sync {
    /// The sink of a streamlet.
    fn sink(&self, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> Arc<dyn DurabilitySink>;
    /// All sinks there are.
    fn sinks(&self) -> Vec<Arc<dyn DurabilitySink>>;
}

/// A pool: streamlets are spread over it by number.
impl SinkDirectory for Vec<Arc<dyn DurabilitySink>> {
    fn sink(&self, stream: StreamId, streamlet: StreamletId, _: &StreamOptions) -> Arc<dyn DurabilitySink> {
        let at = stream.0.wrapping_add(streamlet.0.into()) % self.len() as u64;
        Arc::clone(&self[at as usize])
    }
    fn sinks(&self) -> Vec<Arc<dyn DurabilitySink>> {
        self.clone()
    }
}

/// Moves the durable heads of chunks that became durable, in the order of [`DurabilitySink::appended`], then wakes the
/// readers of their lanes, each lane once however many chunks it had. For the sink's writer, after its sync and before it
/// moves [`DurabilitySink::durable_through`], with no lock held. May call [`DurabilitySink::segment_safe`].
pub fn made_durable(references: &[ChunkReference]) {
    let mut lanes = Vec::new();
    for reference in references {
        if reference.row.is_none() {
            reference.segment.advance_durable(reference.position + reference.bytes);
        }
        reference.lane.durable_ordinal.fetch_max(reference.next_ordinal, Ordering::Release);
        if !reference.lane.settling.swap(true, Ordering::AcqRel) {
            lanes.push(&reference.lane);
        }
    }
    lanes.iter().for_each(|lane| lane.settle());
    // Chunks of a stream that was deleted while they waited: nobody will say later that they are not needed.
    for reference in references {
        if reference.lane.home.stream.deleted.load(Ordering::Acquire) {
            reference.lane.log().segment_gone(reference.segment.id());
        }
    }
}
