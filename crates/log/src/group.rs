//! A group: a bounded run of a lane's segments, the unit that is handed to one consumer.

use kera_format::{GroupId, SegmentIndex};

/// A group, as consumers are told about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupInfo {
    /// Its name.
    pub id: GroupId,
    /// Ordinal of the first record that is still there.
    pub first_ordinal: u64,
    /// Ordinal of the record after the last appended.
    pub next_ordinal: u64,
    /// The first segment that is still there.
    pub first_segment: SegmentIndex,
    /// Segments that are there.
    pub segments: u32,
    /// Bytes of them, headers included.
    pub bytes: u64,
    /// Whether it takes no more appends.
    pub closed: bool,
}
