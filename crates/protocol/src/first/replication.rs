//! Of [`crate::replication`]: what a log has of lanes, before compacted segments were copied again; and where logs end, before it was told what was begun
//! behind.

use kera_format::{GroupId, LaneId, SegmentIndex};

use super::bodies;
use crate::codec::wire_struct;
use crate::{LaneStateList, LogEnd, NodeFenced, ProducerPlace, ReplicatedLane, SegmentPart, StreamletRef};

wire_struct! {
    /// [`SegmentPart`] in version 1 of [`LaneStateList`].
    #[derive(Copy)]
    pub struct SegmentPartV1 {
        /// The group.
        pub group: GroupId,
        /// The segment in it.
        pub segment: SegmentIndex,
        /// Where the first chunk starts.
        pub position: u32,
        /// Where the last chunk ends.
        pub end: u32,
        /// Ordinal of the first record.
        pub base_ordinal: u64,
        /// Ordinal of the record after the last.
        pub next_ordinal: u64,
    }
}

wire_struct! {
    /// [`ReplicatedLane`] in version 1 of [`LaneStateList`].
    pub struct ReplicatedLaneV1 {
        /// The streamlet.
        pub streamlet: StreamletRef,
        /// The lane in it.
        pub lane: LaneId,
        /// Ordinal of the record after the last one that the log has.
        pub next_ordinal: u64,
        /// What of the lane is in the log, in the order of its places.
        pub parts: Vec<SegmentPartV1>,
        /// The last chunks of each producer, at most five of each, in the order of their ordinals.
        pub producers: Vec<ProducerPlace>,
    }
}

wire_struct! {
    /// [`LaneStateList`], version 1.
    pub struct LaneStateListV1 {
        /// Those that have something in the blocks asked for.
        pub lanes: Vec<ReplicatedLaneV1>,
    }
}

impl From<&LaneStateList> for LaneStateListV1 {
    /// Without pieces of compacted segments: there are none below the level of the cluster at which everybody speaks version 2.
    fn from(current: &LaneStateList) -> LaneStateListV1 {
        let part = |of: &SegmentPart| SegmentPartV1 {
            group: of.group,
            segment: of.segment,
            position: of.position,
            end: of.end,
            base_ordinal: of.base_ordinal,
            next_ordinal: of.next_ordinal,
        };
        let lane = |of: &ReplicatedLane| ReplicatedLaneV1 {
            streamlet: of.streamlet,
            lane: of.lane,
            next_ordinal: of.next_ordinal,
            parts: of.parts.iter().filter(|part| part.rewrite == 0).map(part).collect(),
            producers: of.producers.clone(),
        };
        LaneStateListV1 { lanes: current.lanes.iter().map(lane).collect() }
    }
}

impl From<LaneStateListV1> for LaneStateList {
    fn from(first: LaneStateListV1) -> LaneStateList {
        let part = |of: SegmentPartV1| SegmentPart {
            group: of.group,
            segment: of.segment,
            position: of.position,
            end: of.end,
            base_ordinal: of.base_ordinal,
            next_ordinal: of.next_ordinal,
            rewrite: 0,
            row_end: 0,
        };
        let lane = |of: ReplicatedLaneV1| ReplicatedLane {
            streamlet: of.streamlet,
            lane: of.lane,
            next_ordinal: of.next_ordinal,
            parts: of.parts.into_iter().map(part).collect(),
            producers: of.producers,
        };
        LaneStateList { lanes: first.lanes.into_iter().map(lane).collect() }
    }
}

wire_struct! {
    /// [`LogEnd`] in version 1 of [`NodeFenced`].
    #[derive(Copy)]
    pub struct LogEndV1 {
        /// Number of the virtual log.
        pub vlog: u32,
        /// The last block without a hole.
        pub through: u64,
        /// Whether it was never further.
        pub certain: bool,
    }
}

wire_struct! {
    /// [`NodeFenced`], version 1.
    pub struct NodeFencedV1 {
        /// One for each log.
        pub ends: Vec<LogEndV1>,
    }
}

impl From<&NodeFenced> for NodeFencedV1 {
    fn from(current: &NodeFenced) -> NodeFencedV1 {
        let end = |end: &LogEnd| LogEndV1 { vlog: end.vlog, through: end.through, certain: end.certain };
        NodeFencedV1 { ends: current.ends.iter().map(end).collect() }
    }
}

impl From<NodeFencedV1> for NodeFenced {
    fn from(first: NodeFencedV1) -> NodeFenced {
        let end = |end: LogEndV1| LogEnd { vlog: end.vlog, through: end.through, certain: end.certain, begun: 0 };
        NodeFenced { ends: first.ends.into_iter().map(end).collect() }
    }
}

bodies!(LaneStateListV1, NodeFencedV1);
