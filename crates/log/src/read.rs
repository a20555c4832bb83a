//! Reading a lane from a cursor: pins segments under the lane's lock, cuts the data outside it.

use bytes::Bytes;
use kera_format::Cursor;

use crate::waiters::LaneVersion;

/// What a read found, and where to go on.
#[derive(Clone, Debug)]
pub struct ReadOutcome {
    /// Where the data starts: the cursor asked for, with "the first there is" resolved.
    pub start: Cursor,
    /// Whole chunks, in order, without a copy; each buffer keeps its segment in memory until it is dropped.
    pub data: Vec<Bytes>,
    /// Bytes of `data`.
    pub data_bytes: usize,
    /// Where the next read goes on.
    pub next: Cursor,
    /// `next` is at the end of a closed group.
    pub end_of_group: bool,
    /// There is nothing readable at `next` now: [`Lane::wait`](crate::Lane::wait) with `version`.
    pub at_durable_end: bool,
    /// What is at `next` is on its way from disk: [`Lane::wait`](crate::Lane::wait) with `version`.
    pub loading: bool,
    /// Up to which ordinal the lane is readable.
    pub durable_ordinal: u64,
    /// The state of the lane that this outcome saw.
    pub version: LaneVersion,
}

/// Why a cursor cannot be read from. A retry with the same cursor does not help, except after [`ReadError::LoadFailed`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// What the cursor points to is no longer there: retention took it, or it was lost and set aside.
    #[error("cursor {group}/{segment}/{position} is gone, the next that is there is {}/{}/{}", earliest.group, earliest.segment, earliest.position, group = asked.group, segment = asked.segment, position = asked.position)]
    Gone {
        /// The cursor asked for.
        asked: Cursor,
        /// The first behind it that is there.
        earliest: Cursor,
    },
    /// The lane never had what the cursor points to.
    #[error("cursor {}/{}/{} is past the end of the lane", .0.group, .0.segment, .0.position)]
    Unknown(Cursor),
    /// The position is not the start of a chunk.
    #[error("cursor {}/{}/{}: the position is not the start of a chunk", .0.group, .0.segment, .0.position)]
    NotAChunkBoundary(Cursor),
    /// The disk did not give the segment back. The next read tries again.
    #[error("segment cannot be loaded: {0}")]
    LoadFailed(String),
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
}
