//! A lane: one append position of a streamlet (the papers' "entry", thesis 6.2.1), a chain of groups of segments.
//!
//! One lock per lane. Appends hold it for the copy; reads hold it to find and pin segments, and copy nothing.

use std::sync::Arc;

use kera_format::{ChunkView, Cursor, FormatError, GroupId, LaneId, StreamId, StreamletId};

use crate::arena::ArenaFull;
use crate::group::GroupInfo;
use crate::lookup::Lookup;
use crate::read::{ReadError, ReadOutcome};
use crate::sink::{DurabilitySink, SinkError, Ticket};
use crate::waiters::{LaneVersion, Observer};

/// A chunk's place, once it is appended. Appended is not durable: see [`Appended::ticket`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Where the chunk starts. For a duplicate of long ago, of which only that it was appended is known,
    /// [`GroupId::NONE`].
    pub cursor: Cursor,
    /// Ordinal of its first record; [`Appended::UNKNOWN_ORDINAL`] for a duplicate of long ago.
    pub base_ordinal: u64,
    /// The chunk was there already and was not appended again.
    pub duplicate: bool,
    /// What to wait for in [`Lane::sink`] before acknowledging; `None`: it is durable.
    pub ticket: Option<Ticket>,
}

impl Appended {
    /// The place of a duplicate that is too old to be remembered.
    pub const UNKNOWN_ORDINAL: u64 = u64::MAX;
}

/// Why a chunk was not appended. Nothing is changed; a retry cannot duplicate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// No arena block: wait with [`crate::Log::wait_for_space`], then try again.
    #[error("the arena has no free block of {} bytes", .0.bytes)]
    ArenaFull(ArenaFull),
    /// It does not fit into the largest segment of the stream. Do not retry.
    #[error("the chunk has {bytes} bytes, the limit of this stream is {limit} (segment_bytes_max less 128)")]
    ChunkTooLarge {
        /// The chunk's bytes.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// The chunk is for another stream or streamlet, or its bytes changed on the way. Send it again from the source.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Chunks before this one are missing. Send from `expected` on.
    #[error("producer {producer} sent sequence {found}, expected is {expected}")]
    SequenceGap {
        /// The producer.
        producer: u64,
        /// The sequence that it sent.
        found: u64,
        /// The one that comes next.
        expected: u64,
    },
    /// A later incarnation of the producer has written. Stop: this one is fenced.
    #[error("producer {producer} wrote with epoch {found}, its current epoch is {current}")]
    StaleEpoch {
        /// The producer.
        producer: u64,
        /// The epoch that it sent.
        found: u16,
        /// The highest seen.
        current: u16,
    },
    /// What makes chunks durable cannot now. Retry later.
    #[error(transparent)]
    SinkUnhealthy(#[from] SinkError),
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Closed,
}

/// How much is in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// Ordinal of the first record that is there.
    pub first_ordinal: u64,
    /// Ordinal that the next record gets.
    pub next_ordinal: u64,
    /// Up to which ordinal readers see.
    pub durable_ordinal: u64,
    /// Bytes of all segments, headers included.
    pub bytes: u64,
    /// Of those, in memory.
    pub memory_bytes: u64,
    /// Groups.
    pub groups: u64,
    /// Segments.
    pub segments: u64,
}

/// A lane of a streamlet.
pub struct Lane {}

impl Lane {
    /// The stream.
    pub fn stream_id(&self) -> StreamId {
        todo!()
    }
    /// The streamlet.
    pub fn streamlet_id(&self) -> StreamletId {
        todo!()
    }
    /// Its number in the streamlet.
    pub fn id(&self) -> LaneId {
        todo!()
    }
    /// What makes its chunks durable; `None` while the stream's durability is `process`.
    pub fn sink(&self) -> Option<Arc<dyn DurabilitySink>> {
        todo!()
    }

    /// Appends a chunk that was parsed but not verified: checks its checksum while copying it, under the lane's lock.
    ///
    /// With durability `process` it is readable, and may be acknowledged, on return. With `power` it is appended, and
    /// readable and acknowledged when its ticket is durable. An error leaves no trace.
    pub fn append(self: &Arc<Self>, chunk: &ChunkView<'_>, now_ms: i64) -> Result<Appended, AppendError> {
        let _ = (chunk, now_ms);
        todo!()
    }

    /// Reads whole chunks from `cursor` on: up to `max_bytes`, but at least one chunk if there is one. With `follow_groups`
    /// it goes on in the next group of the lane, else it ends with its group.
    pub fn read(&self, cursor: Cursor, max_bytes: usize, follow_groups: bool) -> Result<ReadOutcome, ReadError> {
        let _ = (cursor, max_bytes, follow_groups);
        todo!()
    }

    /// Calls `observer` once when a reader could see something else than in state `seen` (data, a loaded segment, retention,
    /// the stream's end). False, and no call, if it could already: read again instead.
    ///
    /// The observer is kept weakly; registering again with the same token replaces nothing and costs little, so a session
    /// that waits for many lanes may register at all of them each time.
    pub fn wait(&self, seen: LaneVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        let _ = (seen, observer, token);
        todo!()
    }

    /// The first chunk that is there, and its ordinal.
    pub fn earliest(&self) -> (Cursor, u64) {
        todo!()
    }
    /// Behind the last durable chunk, and the ordinal that comes there.
    pub fn latest(&self) -> (Cursor, u64) {
        todo!()
    }
    /// The chunk that holds record `ordinal`; the earliest or latest place if it is before or behind what is readable.
    pub fn lookup_ordinal(&self, ordinal: u64) -> Result<Lookup, ReadError> {
        let _ = ordinal;
        todo!()
    }
    /// The first chunk appended at or after `time_ms`; the latest place if there is none.
    pub fn lookup_time(&self, time_ms: i64) -> Result<Lookup, ReadError> {
        let _ = time_ms;
        todo!()
    }
    /// Up to `limit` of its groups, in order, from the first with an id above `after` on.
    pub fn groups(&self, after: GroupId, limit: usize) -> Vec<GroupInfo> {
        let _ = (after, limit);
        todo!()
    }
    /// One of its groups.
    pub fn group(&self, id: GroupId) -> Option<GroupInfo> {
        let _ = id;
        todo!()
    }
    /// How much is in it.
    pub fn stats(&self) -> LaneStats {
        todo!()
    }
    /// Where the slowest named application is: with `retention_consumed` closed groups below may go. `None`: no
    /// application is known, nothing goes for that reason.
    pub fn set_consumed_floor(&self, floor: Option<Cursor>) {
        let _ = floor;
        todo!()
    }
}
