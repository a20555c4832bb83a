//! From an ordinal or a time to a cursor, without an index: a binary search over groups and segments, then a walk over
//! chunk headers of one segment.

use kera_format::Cursor;

use crate::waiters::LaneVersion;

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The chunk is here.
    Found {
        /// Where it starts.
        cursor: Cursor,
        /// Ordinal of its first record, at most the one asked for; or the lane's durable end.
        ordinal: u64,
    },
    /// The segment is on its way from disk: wait for the lane and ask again.
    Loading(LaneVersion),
}
