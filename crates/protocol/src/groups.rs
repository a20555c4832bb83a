//! Groups and segments: what there is, and which of it a member of an application reads (thesis tables 6.1 and 6.2).

use crate::codec::{wire_enum, wire_struct};
use crate::message::{messages, responses};
use kera_format::{ApplicationId, Cursor, GroupId, LaneId, SegmentIndex, StreamId, StreamletId};

wire_struct! {
    /// Leases groups to a member. With order `lane` a lane's next group is not given before the one before it is done;
    /// the lane's open group is given too, and read as it fills.
    pub struct NextGroups {
        /// The application.
        pub application: ApplicationId,
        /// The member.
        pub member: u64,
        /// Most groups in the answer; zero: one.
        pub max_groups: u32,
        /// How long to wait for the first one, in milliseconds. Cut to [`crate::limits::WAIT_MS_MAX`].
        pub max_wait_ms: u32,
    }
}

wire_struct! {
    /// A group that a member may read until its lease runs out or is given back.
    #[derive(Copy)]
    pub struct LeasedGroup {
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// The group.
        pub group: GroupId,
        /// Where to start: after what the application has committed, or where it was told to start.
        pub start: Cursor,
        /// Ordinal of the first record to process; records of the chunk at `start` with lower ones are skipped.
        pub start_ordinal: u64,
        /// The lease; commits must name it.
        pub lease: u64,
    }
}

wire_struct! {
    /// Groups leased.
    pub struct LeasedGroups {
        /// None if the time was up before there was one.
        pub groups: Vec<LeasedGroup>,
    }
}

wire_struct! {
    /// Lists the segments of a group behind one that is known; waits when there is none yet.
    pub struct NextSegments {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The group.
        pub group: GroupId,
        /// The last segment that is known; `None`: from the first.
        pub after: Option<SegmentIndex>,
        /// Most segments in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
        /// How long to wait for one, in milliseconds. Cut to [`crate::limits::WAIT_MS_MAX`].
        pub max_wait_ms: u32,
    }
}

wire_struct! {
    /// Lists the groups of a streamlet in the order of their ids, of all lanes.
    pub struct AvailableGroups {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// Only groups after this one; [`GroupId::NONE`]: from the first.
        pub after: GroupId,
        /// Most groups in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// A group.
    #[derive(Copy)]
    pub struct GroupInfo {
        /// The group.
        pub group: GroupId,
        /// Its lane.
        pub lane: LaneId,
        /// Its first segment that retention has left.
        pub first_segment: SegmentIndex,
        /// Its last segment so far.
        pub last_segment: SegmentIndex,
        /// Ordinal of its first record that retention has left.
        pub first_ordinal: u64,
        /// Ordinal of the record after its last one that can be read.
        pub durable_ordinal: u64,
        /// Bytes of its chunks.
        pub bytes: u64,
        /// Whether it takes no more chunks.
        pub closed: bool,
        /// Append time of its first chunk, milliseconds since 1970; zero if it has none.
        pub first_append_ms: i64,
        /// Append time of its last chunk.
        pub last_append_ms: i64,
    }
}

wire_struct! {
    /// A page of groups.
    pub struct GroupList {
        /// In the order of their ids.
        pub groups: Vec<GroupInfo>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

wire_struct! {
    /// Lists the segments of a group.
    pub struct AvailableSegments {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The group.
        pub group: GroupId,
        /// Only segments after this one; `None`: from the first.
        pub after: Option<SegmentIndex>,
        /// Most segments in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_enum! {
    /// Where a segment is.
    pub enum SegmentPlace, "0 (open), 1 (memory), 2 (memory and disk) or 3 (disk)" {
        /// In memory and taking chunks.
        Open = 0 => "open",
        /// Closed, in memory only.
        Memory = 1 => "memory",
        /// Closed, in memory and on disk.
        Both = 2 => "memory and disk",
        /// Closed, on disk only.
        Disk = 3 => "disk",
    }
}

wire_struct! {
    /// A segment.
    #[derive(Copy)]
    pub struct SegmentInfo {
        /// Its number in the group.
        pub index: SegmentIndex,
        /// Where it is.
        pub place: SegmentPlace,
        /// Ordinal of its first record.
        pub base_ordinal: u64,
        /// Ordinal of the record after its last one that can be read.
        pub durable_ordinal: u64,
        /// Position up to which it can be read; the first chunk is at 128.
        pub durable_head: u32,
        /// Bytes of its buffer.
        pub capacity_bytes: u32,
        /// Append time of its first chunk, milliseconds since 1970; zero if it has none.
        pub first_append_ms: i64,
        /// Append time of its last chunk.
        pub last_append_ms: i64,
    }
}

wire_struct! {
    /// A page of segments.
    pub struct SegmentList {
        /// The lane that the group is of.
        pub lane: LaneId,
        /// In their order.
        pub segments: Vec<SegmentInfo>,
        /// Whether the group takes no more segments: the last one here, or the one asked from, is its last.
        pub complete: bool,
        /// Whether there are more after the last one here.
        pub more: bool,
    }
}

messages! {
    NextGroups => LeasedGroups;
    NextSegments => SegmentList;
    AvailableGroups => GroupList;
    AvailableSegments => SegmentList;
}
responses!(LeasedGroups, GroupList, SegmentList);
