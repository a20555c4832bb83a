//! What goes from one owner of a streamlet to the next: as lanes keep it, and as it is sent and logged.

use std::sync::Arc;

use kera_format::StreamId;
use kera_log::{ChunkPlace, GroupInfo, LaneHandover, ProducerHandover, Streamlet};
use kera_protocol::StreamletState;
use kera_protocol::placement::{ChunkMark, KeptGroup, LaneState, Memory, ProducerState};

/// What a streamlet that was let go hands over.
/// `progress`: how far applications are in it.
pub(crate) fn to_state(stream: StreamId, streamlet: &Arc<Streamlet>, progress: Vec<u8>) -> StreamletState {
    let lanes = streamlet.hand_over().into_iter().map(to_lane).collect();
    StreamletState { stream, streamlet: streamlet.id(), epoch: streamlet.owner_epoch(), lanes, progress }
}

fn to_lane(lane: LaneHandover) -> LaneState {
    let mark = |place: &ChunkPlace| ChunkMark {
        sequence: place.sequence,
        base_ordinal: place.base_ordinal,
        cursor: place.cursor,
    };
    let producer = |producer: &ProducerHandover| ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        sequence: producer.sequence,
        chunks: producer.chunks.iter().map(mark).collect(),
    };
    let group = |group: &GroupInfo| KeptGroup {
        group: group.id,
        first_ordinal: group.first_ordinal,
        next_ordinal: group.next_ordinal,
    };
    LaneState {
        lane: lane.lane,
        next_ordinal: lane.next_ordinal,
        last_append_ms: lane.last_append_ms,
        memory: if lane.forgot { Memory::Forgotten } else { Memory::Whole },
        producers: lane.producers.iter().map(producer).collect(),
        groups: lane.groups.iter().map(group).collect(),
    }
}

/// What lanes take of what came.
pub(crate) fn from_state(state: &StreamletState) -> Vec<LaneHandover> {
    let place =
        |mark: &ChunkMark| ChunkPlace { sequence: mark.sequence, base_ordinal: mark.base_ordinal, cursor: mark.cursor };
    let producer = |producer: &ProducerState| ProducerHandover {
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        sequence: producer.sequence,
        chunks: producer.chunks.iter().map(place).collect(),
    };
    let lane = |lane: &LaneState| LaneHandover {
        lane: lane.lane,
        next_ordinal: lane.next_ordinal,
        last_append_ms: lane.last_append_ms,
        forgot: lane.memory == Memory::Forgotten,
        producers: lane.producers.iter().map(producer).collect(),
        groups: Vec::new(),
    };
    state.lanes.iter().map(lane).collect()
}
