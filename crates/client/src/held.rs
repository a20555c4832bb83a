//! What there is of a stream, wherever it lies: every node of a cluster that has groups of it is asked, and what they say is put
//! together. For people and their tools; readers and writers need none of it.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::{GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::{AvailableGroups, AvailableSegments, GroupInfo, LaneStats, SegmentInfo, StreamStats};
use kera_rpc::RpcError;

use crate::placement::Placement;
use crate::{Admin, ClientError};

/// The lanes of a stream, as all nodes together have them.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct StreamLanes {
    /// Those that were ever written to, in the order of streamlet and lane.
    pub lanes: Vec<LaneStats>,
    /// Nodes that have some of it and could not be asked, or are lost: what they have is not in the figures.
    pub unheard: Vec<u32>,
}

impl StreamLanes {
    /// Records that can be read; of a compacted stream those before they were compacted.
    pub fn records(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.durable_ordinal.saturating_sub(lane.first_ordinal)).sum()
    }
}

/// Adds what another node has of the same lane. Where the lane ends, and how far it is compacted, its owner knows: whoever is the
/// furthest. Where it begins is said by those who [have](has_some) some of it.
fn add((whole, has): &mut (LaneStats, bool), part: &LaneStats) {
    whole.first_ordinal = match (*has, has_some(part)) {
        (false, false) => whole.first_ordinal.max(part.first_ordinal),
        (false, true) => part.first_ordinal,
        (true, false) => whole.first_ordinal,
        (true, true) => whole.first_ordinal.min(part.first_ordinal),
    };
    *has |= has_some(part);
    if part.next_ordinal > whole.next_ordinal {
        whole.compacted_ordinal = part.compacted_ordinal;
    }
    whole.next_ordinal = whole.next_ordinal.max(part.next_ordinal);
    whole.durable_ordinal = whole.durable_ordinal.max(part.durable_ordinal);
    whole.last_append_ms = whole.last_append_ms.max(part.last_append_ms);
    whole.bytes = whole.bytes.saturating_add(part.bytes);
    whole.memory_bytes = whole.memory_bytes.saturating_add(part.memory_bytes);
    whole.disk_bytes = whole.disk_bytes.saturating_add(part.disk_bytes);
    whole.uncompacted_bytes = whole.uncompacted_bytes.saturating_add(part.uncompacted_bytes);
    whole.groups = whole.groups.saturating_add(part.groups);
    whole.segments = whole.segments.saturating_add(part.segments);
}

/// Whether a node has something of a lane that can be read: segments in which all is deleted stay for a while.
fn has_some(of: &LaneStats) -> bool {
    of.segments > 0 && of.first_ordinal < of.durable_ordinal
}

/// What nodes have of lanes, each lane once.
fn summed_up(parts: impl IntoIterator<Item = LaneStats>) -> Vec<LaneStats> {
    let mut lanes: BTreeMap<(StreamletId, LaneId), (LaneStats, bool)> = BTreeMap::new();
    for part in parts {
        let has = has_some(&part);
        lanes.entry((part.streamlet, part.lane)).and_modify(|whole| add(whole, &part)).or_insert((part, has));
    }
    lanes.into_values().map(|(whole, _)| whole).collect()
}

impl Admin {
    /// How much is in each lane of a stream that was ever written to, at all nodes that have some of it. One that cannot be asked is
    /// named instead of being waited for. Errors: no such stream; no node answers.
    pub async fn stream_stats(&self, stream: StreamId) -> Result<StreamLanes, ClientError> {
        let placement = self.newest_placement(stream).await?;
        let (nodes, lost) = placement.holders_of_all();
        let (mut parts, mut failed, mut heard) = (Vec::new(), None, 0);
        let mut unheard: BTreeSet<u32> = lost;
        for node in nodes {
            match self.stats_of(&placement, node, stream).await {
                Ok(lanes) => {
                    heard += 1;
                    // A node that was lost and came back may still have what others have rebuilt.
                    parts.extend(lanes.into_iter().filter(|lane| placement.holders(lane.streamlet).contains(&node)));
                }
                Err(error) => {
                    unheard.insert(node);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if heard == 0 => Err(error.into()),
            _ => Ok(StreamLanes { lanes: summed_up(parts), unheard: unheard.into_iter().collect() }),
        }
    }

    /// The groups of a streamlet, in the order of their ids, of all nodes that have some. Errors: a node that cannot be asked.
    pub async fn groups(&self, stream: StreamId, streamlet: StreamletId) -> Result<Vec<GroupInfo>, ClientError> {
        let placement = self.newest_placement(stream).await?;
        let mut all: BTreeMap<GroupId, GroupInfo> = BTreeMap::new();
        for node in placement.holders(streamlet) {
            let mut after = GroupId::NONE;
            loop {
                let asked = AvailableGroups { stream, streamlet, after, limit: 0 };
                let page = self.client.call_node(&placement, node, &asked).await?;
                let last = page.groups.last().map(|group| group.group);
                // The owner comes last: of a group that two have it is the one to be believed.
                all.extend(page.groups.into_iter().map(|group| (group.group, group)));
                match last {
                    Some(last) if page.more && last > after => after = last,
                    _ => break,
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// The segments of a group, in their order, from the node that has the group. Errors: it cannot be asked.
    pub async fn segments(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        group: GroupId,
    ) -> Result<Vec<SegmentInfo>, ClientError> {
        let placement = self.newest_placement(stream).await?;
        let node = placement.holder(streamlet, group);
        let mut all: Vec<SegmentInfo> = Vec::new();
        loop {
            let after = all.last().map(|segment| segment.index);
            let asked = AvailableSegments { stream, streamlet, group, after, limit: 0 };
            let page = self.client.call_node(&placement, node, &asked).await?;
            let more = page.more && !page.segments.is_empty();
            all.extend(page.segments);
            if !more {
                return Ok(all);
            }
        }
    }

    /// What one node has of a stream's lanes.
    async fn stats_of(&self, placement: &Placement, node: u32, stream: StreamId) -> Result<Vec<LaneStats>, RpcError> {
        let mut all: Vec<LaneStats> = Vec::new();
        loop {
            let after = all.last().map(|lane| (lane.streamlet, lane.lane));
            let asked = StreamStats { stream, streamlets: Vec::new(), after, limit: 0 };
            let page = self.client.call_node(placement, node, &asked).await?;
            let more = page.more && !page.lanes.is_empty();
            all.extend(page.lanes);
            if !more {
                return Ok(all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(streamlet: u32, ordinals: [u64; 3], segments: u32, bytes: u64) -> LaneStats {
        LaneStats {
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            first_ordinal: ordinals[0],
            durable_ordinal: ordinals[1],
            next_ordinal: ordinals[2],
            bytes,
            memory_bytes: bytes,
            disk_bytes: 0,
            groups: segments,
            segments,
            last_append_ms: ordinals[2] as i64,
            compacted_ordinal: ordinals[0],
            uncompacted_bytes: bytes,
        }
    }

    #[test]
    fn a_lane_is_what_all_nodes_have_of_it() {
        let (older, owner, other) =
            (part(3, [100, 500, 500], 4, 40), part(3, [500, 800, 820], 2, 32), part(1, [0, 7, 7], 1, 7));
        for order in [[&older, &owner, &other], [&other, &owner, &older], [&owner, &older, &other]] {
            let lanes = summed_up(order.into_iter().cloned());
            assert_eq!(lanes[0], other);
            let whole = LaneStats { compacted_ordinal: 500, ..part(3, [100, 800, 820], 6, 72) };
            assert_eq!(lanes[1..], [whole]);
            assert_eq!(StreamLanes { lanes, unheard: Vec::new() }.records(), 707);
        }
    }

    #[test]
    fn a_node_without_segments_does_not_say_where_a_lane_begins() {
        let (gone, owner) = (part(0, [0, 500, 500], 0, 0), part(0, [500, 900, 900], 1, 4));
        for order in [[&gone, &owner], [&owner, &gone]] {
            assert_eq!(summed_up(order.into_iter().cloned())[0].first_ordinal, 500);
        }
        // All of it was taken by retention: there is nothing to be read.
        let (gone, owner) = (part(0, [0, 500, 500], 0, 0), part(0, [900, 900, 900], 0, 0));
        assert_eq!(summed_up([gone, owner])[0].first_ordinal, 900);
    }

    #[test]
    fn a_node_with_deleted_records_only_does_not_say_where_a_lane_begins() {
        let (deleted, owner) = (part(0, [500, 500, 500], 2, 8), part(0, [600, 900, 900], 2, 8));
        for order in [[&deleted, &owner], [&owner, &deleted]] {
            assert_eq!(summed_up(order.into_iter().cloned())[0].first_ordinal, 600);
        }
        let owner = part(0, [900, 900, 900], 1, 4);
        for order in [[&deleted, &owner], [&owner, &deleted]] {
            assert_eq!(summed_up(order.into_iter().cloned())[0].first_ordinal, 900);
        }
    }
}
