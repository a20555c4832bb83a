//! The names of things: streams, streamlets, lanes, groups, segments, producers, applications, and the cursor that
//! points into them.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id!(/// A stream, given by the coordinator, never reused. Zero is no stream.
    StreamId(u64));
id!(/// A streamlet's number in its stream, from 0.
    StreamletId(u32));
id!(/// A lane's number in its streamlet, from 0. The papers' "entry" (thesis 6.2.1).
    LaneId(u32));
id!(/// A segment's number in its group, from 0.
    SegmentIndex(u32));
id!(/// A producer, given by the coordinator, never reused. Zero asks for no deduplication.
    ProducerId(u64));
id!(/// An incarnation of a producer: a higher epoch fences the lower ones.
    ProducerEpoch(u16));
id!(/// An application (a named set of consumers), given by the broker when the name is first seen.
    ApplicationId(u64));

/// A group, unique and increasing within its streamlet.
///
/// The upper 32 bits are the epoch of the owner that opened the group, the lower 32 count from 1 within it. So two
/// owners, or one owner before and after it lost its memory, never give the same id to different bytes, and ids order
/// as the groups were opened (thesis 6.2.2 has a plain counter; DESIGN of recovery needs the epoch).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(pub u64);

impl LaneId {
    /// The lane of a streamlet in which its owner in a cluster keeps how far applications are; the records are those of
    /// [`applications`](crate::applications). No producer writes to it and no reader sees it: the number is none that a stream can have.
    pub const PROGRESS: LaneId = LaneId(u32::MAX);
}

impl GroupId {
    /// Before every group: in a [`Cursor`] it means "the first group there is".
    pub const NONE: GroupId = GroupId(0);

    /// The `number`th group of an owner's `epoch`.
    pub const fn new(epoch: u32, number: u32) -> GroupId {
        GroupId((epoch as u64) << 32 | number as u64)
    }
    /// The epoch of the owner that opened it.
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// Its number within the epoch.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.number())
    }
}
impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupId({self})")
    }
}

/// A segment's whole name. `lane` follows from `group`, and is carried so that nobody has to look it up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletId,
    /// The lane in the streamlet.
    pub lane: LaneId,
    /// The group in the streamlet.
    pub group: GroupId,
    /// The segment in the group.
    pub index: SegmentIndex,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}/{}", self.stream, self.streamlet, self.lane, self.group, self.index)
    }
}

/// Where a reader of one lane is: the papers' application offset [stream, streamlet, group, segment, position]
/// (thesis 6.2.2) without the first two. Kept by readers, never per record by the broker.
///
/// `position` is a byte offset in the segment at a chunk boundary; zero means the segment's first chunk. `group`
/// [`GroupId::NONE`] means the first group there is. Orders as the lane's bytes do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cursor {
    /// The group.
    pub group: GroupId,
    /// The segment in it.
    pub segment: SegmentIndex,
    /// Bytes from the start of the segment.
    pub position: u32,
}
