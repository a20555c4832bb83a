//! What is in the lanes of a stream, and where in a lane something is.

use crate::Start;
use crate::codec::wire_struct;
use crate::message::{messages, responses};
use kera_format::{Cursor, LaneId, StreamId, StreamletId};

wire_struct! {
    /// Finds a place in a lane.
    pub struct Lookup {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// What to find.
        pub at: Start,
    }
}

wire_struct! {
    /// A place in a lane.
    #[derive(Copy)]
    pub struct LookupResult {
        /// Where to read on: the chunk that holds the record.
        pub cursor: Cursor,
        /// Ordinal of that chunk's first record, or of the next record to come.
        pub ordinal: u64,
        /// Ordinal of the first record there is in the lane.
        pub first_ordinal: u64,
        /// Ordinal of the record after the last one that can be read.
        pub durable_ordinal: u64,
    }
}

wire_struct! {
    /// Asks how much is in the lanes of a stream. Lanes that were never written to are left out.
    pub struct StreamStats {
        /// The stream.
        pub stream: StreamId,
        /// Only these streamlets; empty: all.
        pub streamlets: Vec<StreamletId>,
        /// Only lanes after this one, in the order of streamlet and lane.
        pub after: Option<(StreamletId, LaneId)>,
        /// Most lanes in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// How much is in one lane.
    #[derive(Copy)]
    pub struct LaneStats {
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// Ordinal of the first record that retention has left.
        pub first_ordinal: u64,
        /// Ordinal of the record after the last one that can be read.
        pub durable_ordinal: u64,
        /// Ordinal of the next record to be appended.
        pub next_ordinal: u64,
        /// Bytes of its chunks.
        pub bytes: u64,
        /// Of its segments' bytes, those in memory.
        pub memory_bytes: u64,
        /// Of its segments' bytes, those on disk.
        pub disk_bytes: u64,
        /// Its groups.
        pub groups: u32,
        /// Its segments.
        pub segments: u32,
        /// When its last chunk was appended, milliseconds since 1970.
        pub last_append_ms: i64,
        /// Compaction has compared records below with all that came after them up to here.
        pub compacted_ordinal: u64,
        /// Bytes of segments behind, the open one included.
        pub uncompacted_bytes: u64,
    }
}

wire_struct! {
    /// A page of lanes.
    pub struct StreamStatsResponse {
        /// In the order of streamlet and lane.
        pub lanes: Vec<LaneStats>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

messages! {
    Lookup => LookupResult;
    StreamStats => StreamStatsResponse;
}
responses!(LookupResult, StreamStatsResponse);
