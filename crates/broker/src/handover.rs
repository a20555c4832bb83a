//! What goes from one owner of a streamlet to the next: as lanes keep it, and as it is sent and logged.
//!
//! Where chunks are missing in a lane is said in the list of its producers, as the chunk of producer 0, which is nobody: the last entry, so that it is
//! the last to be left out. Nodes that do not know of that pass over it, so no level of the cluster and no version of the state is needed; an
//! owner that runs such a version does not hand it on, and its lane is one that has forgotten producers, as before.

use std::sync::Arc;

use kera_format::cluster::{HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX};
use kera_format::level::LARGE_MOVES;
use kera_format::{Cursor, GroupId, ProducerEpoch, ProducerId, StreamId, StreamletId};
use kera_log::{ChunkPlace, GroupInfo, Lane, LaneHandover, ProducerHandover, Streamlet};
use kera_protocol::placement::{ChunkMark, KeptGroup, LaneState, Memory, ProducerState};
use kera_protocol::{Owner, Status, StreamletState};

use crate::applications;
use crate::broker::Broker;
use crate::failure::Failure;

/// What a lane takes of what goes along, without producers.
const LANE_BYTES: usize = 29;
/// More than what is told of a streamlet's own groups takes, which is not recorded before it moves.
const OWN_BYTES: usize = 64 << 10;

/// What a streamlet that was let go hands over.
/// `progress`: how far applications are in it.
pub(crate) fn to_state(stream: StreamId, streamlet: &Arc<Streamlet>, progress: Vec<u8>) -> StreamletState {
    let lanes = streamlet.hand_over().into_iter().map(to_lane).collect();
    StreamletState { stream, streamlet: streamlet.id(), epoch: streamlet.owner_epoch(), lanes, progress }
}

/// A group, as other nodes are told of it.
pub(crate) fn kept_group(group: &GroupInfo) -> KeptGroup {
    KeptGroup { group: group.id, first_ordinal: group.first_ordinal, next_ordinal: group.next_ordinal }
}

pub(crate) fn to_lane(lane: LaneHandover) -> LaneState {
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
    let hole = (lane.hole_end > 0).then(|| hole_to(lane.hole_end));
    LaneState {
        lane: lane.lane,
        next_ordinal: lane.next_ordinal,
        last_append_ms: lane.last_append_ms,
        memory: if lane.forgot { Memory::Forgotten } else { Memory::Whole },
        producers: lane.producers.iter().map(producer).chain(hole).collect(),
        groups: lane.groups.iter().map(kept_group).collect(),
    }
}

/// What says that chunks in front of this ordinal are missing.
fn hole_to(end: u64) -> ProducerState {
    let mark = ChunkMark { sequence: 0, base_ordinal: end, cursor: Cursor::default() };
    ProducerState { producer_id: ProducerId(0), producer_epoch: ProducerEpoch(0), sequence: 0, chunks: vec![mark] }
}

/// In front of which ordinal chunks are missing; zero: none are.
fn hole_end(lane: &LaneState) -> u64 {
    let nobody = lane.producers.iter().filter(|producer| producer.producer_id.0 == 0);
    let ends = nobody.flat_map(|nobody| &nobody.chunks).map(|chunk| chunk.base_ordinal);
    ends.max().unwrap_or(0).min(lane.next_ordinal)
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
        hole_end: hole_end(lane),
        producers: lane.producers.iter().filter(|one| one.producer_id.0 != 0).map(producer).collect(),
        groups: Vec::new(),
    };
    state.lanes.iter().map(lane).collect()
}

/// Refuses if the coordinators would not keep what is to be told of a streamlet: writers would wait for a move that cannot be. `progress`: what is told of
/// applications. `most`: how many bytes the coordinators keep. Producers go along as far as there is room, so a state without any, compressed as [`kept_state`] does it, is the least that
/// there can be. Of lanes those count that are [handed over](Streamlet::hand_over): whoever reads looks at all others too.
pub(crate) fn check_fits(
    stream: StreamId,
    streamlet: &Streamlet,
    progress: Vec<u8>,
    most: usize,
) -> Result<(), Failure> {
    let (count, bytes) = least(stream, streamlet, progress, most);
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "streamlet {} of stream {stream} has {count} lanes that were written to, which take {bytes} bytes with the positions of applications, compressed, and \
         {most} at most go along when it moves{}; it stays where it is: delete applications that are not used any more, or make a stream \
         with more streamlets and fewer lanes, and write to that",
        streamlet.id(),
        why_no_more(most)
    );
    Err(Failure::new(Status::LimitReached, message))
}

/// The least that goes along with a streamlet: how many lanes were written to, and how many bytes they and what is told of applications take.
/// `most`: with more than that `progress` is compressed.
fn least(stream: StreamId, streamlet: &Streamlet, progress: Vec<u8>, most: usize) -> (usize, usize) {
    let lane = |lane: &Arc<Lane>| LaneState {
        lane: lane.id(),
        next_ordinal: lane.next_ordinal(),
        last_append_ms: 0,
        memory: Memory::Forgotten,
        producers: Vec::new(),
        groups: Vec::new(),
    };
    let lanes: Vec<LaneState> = streamlet.all_lanes().map(lane).filter(|lane| lane.next_ordinal > 0).collect();
    let (count, epoch) = (lanes.len(), streamlet.owner_epoch());
    let mut state = StreamletState { stream, streamlet: streamlet.id(), epoch, lanes, progress };
    (count, compress_beyond(&mut state, most))
}

/// Why the coordinators keep no more than `most` bytes of a streamlet now, if it may be more at another time.
pub(crate) fn why_no_more(most: usize) -> String {
    if most >= HANDED_LARGE_BYTES_MAX {
        return String::new();
    }
    format!(
        " (more from level {LARGE_MOVES} of the cluster on, as long as not too many streamlets take that much along)"
    )
}

impl Broker {
    /// Drops what this node has of a streamlet that is about to come to it, but for groups that it is known to hold: what it had in an
    /// earlier time and others have rebuilt since. Nothing if the streamlet is here.
    ///
    /// `owner`: as the coordinators have it now, with the move that is noted. What the broker was told may be older: that this node holds groups again may
    /// be true and not told yet, and they would be dropped.
    pub fn forget_leftovers(&self, stream: StreamId, streamlet: StreamletId, owner: &Owner) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        let me = self.ownership().node();
        let has_any = place.lanes().any(|lane| !lane.groups(GroupId::NONE, 1).is_empty());
        if owner.node != me && has_any {
            place.forget_groups(|group| owner.holder(group) == me);
        }
        Ok(())
    }

    /// Streamlets of this node of which more than `above` bytes would have to go along if they moved now, with how many that are. None of a node that
    /// is alone, and none of which it is not known yet how far applications are in it.
    ///
    /// Closely it looks only at those of which much was recorded, or which have many lanes. These are compressed, which takes milliseconds for each: not
    /// for a thread that others wait for.
    pub fn take_along(&self, above: usize) -> Vec<(StreamId, StreamletId, usize)> {
        let mut much = Vec::new();
        if self.ownership().node() == 0 {
            return much;
        }
        for stream in self.log().streams() {
            for place in stream.streamlets() {
                let Some(recorded) = self.applications.recorded_bytes(stream.id(), place.id()) else { continue };
                if place.all_lanes().count() * LANE_BYTES + recorded + OWN_BYTES <= above {
                    continue;
                }
                let Ok(progress) = self.applications.handed_over(stream.id(), place.id()) else { continue };
                let (_, bytes) = least(stream.id(), place, progress, above);
                if bytes > above {
                    much.push((stream.id(), place.id(), bytes));
                }
            }
        }
        much
    }

    /// Whether this node has groups of a streamlet with owner epochs from `first` on and below `end`.
    pub fn has_groups(&self, stream: StreamId, streamlet: StreamletId, first: u32, end: u32) -> bool {
        let Some(place) = self.log().stream(stream).and_then(|found| found.streamlet(streamlet).cloned()) else {
            return false;
        };
        let behind = GroupId(GroupId::new(first, 0).0.saturating_sub(1));
        place.lanes().any(|lane| lane.groups(behind, 1).first().is_some_and(|group| group.id.epoch() < end))
    }
}

/// What of a state is kept for the case that the next owner is lost before it has written anything: at most `most` bytes, unless lanes and the positions of
/// applications alone take more, compressed ([`Broker::let_go_within`] sees to that). It takes 64 KiB, [as many as most need](HANDED_BYTES_MAX), if the lanes and applications fit into
/// that, and otherwise as much again for producers, as far as `most` goes. Groups are known otherwise; of producers first all but the last chunk are left out, and then those that were silent longest, which are marked as
/// forgotten. Where chunks are missing stays as long as any producer does.
pub fn kept_state(state: &StreamletState, most: usize) -> Vec<u8> {
    let (mut kept, least_bound) = (state.clone(), HANDED_BYTES_MAX.min(most));
    kept.lanes.iter_mut().for_each(|lane| lane.groups.clear());
    // Once for both bounds: nothing else here takes as long, and the thread may be the one that says that the node lives.
    compress_beyond(&mut kept, least_bound);
    let usual = kept_within(kept.clone(), least_bound);
    if usual.len() <= HANDED_BYTES_MAX || usual.len() > most {
        return usual;
    }
    // No producer is in it any more.
    kept_within(kept, most.min(usual.len() + HANDED_BYTES_MAX))
}

/// Compresses what a state tells of applications if it takes more than `most` bytes. How many it takes then.
fn compress_beyond(state: &mut StreamletState, most: usize) -> usize {
    let bytes = kera_protocol::codec::bytes_of(state).len();
    if bytes > most
        && let Ok(fewer) = applications::compressed(state.stream, state.streamlet, &state.progress)
    {
        state.progress = fewer;
        return kera_protocol::codec::bytes_of(state).len();
    }
    bytes
}

/// As much of a state as goes into `most` bytes: see [`kept_state`].
fn kept_within(mut kept: StreamletState, most: usize) -> Vec<u8> {
    let mut bytes = kera_protocol::codec::bytes_of(&kept);
    if bytes.len() > most {
        let producers = kept.lanes.iter_mut().flat_map(|lane| &mut lane.producers);
        producers.for_each(|producer| drop(producer.chunks.drain(..producer.chunks.len().saturating_sub(1))));
        bytes = kera_protocol::codec::bytes_of(&kept);
    }
    while bytes.len() > most && kept.lanes.iter().any(|lane| !lane.producers.is_empty()) {
        for lane in kept.lanes.iter_mut().filter(|lane| !lane.producers.is_empty()) {
            let silent = lane.producers.len().div_ceil(4);
            lane.producers.drain(..silent);
            lane.memory = Memory::Forgotten;
        }
        bytes = kera_protocol::codec::bytes_of(&kept);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::{Cursor, LaneId, ProducerEpoch, ProducerId};

    fn state(producers: u64) -> StreamletState {
        let chunk = |sequence| ChunkMark { sequence, base_ordinal: sequence, cursor: Cursor::default() };
        let producer = |id| ProducerState {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(0),
            sequence: 4,
            chunks: (0..5).map(chunk).collect(),
        };
        let lane = LaneState {
            lane: LaneId(0),
            next_ordinal: 9,
            last_append_ms: 1,
            memory: Memory::Whole,
            producers: (1..=producers).map(producer).collect(),
            groups: vec![KeptGroup { group: GroupId::new(1, 1), first_ordinal: 0, next_ordinal: 9 }],
        };
        StreamletState {
            stream: StreamId(1),
            streamlet: StreamletId(0),
            epoch: 2,
            lanes: vec![lane],
            progress: Vec::new(),
        }
    }

    #[test]
    fn a_state_that_is_kept_is_bounded_and_says_what_it_lacks() {
        let read = |bytes: &[u8]| <StreamletState as kera_protocol::Body>::decode(1, bytes).expect("a state");
        let all = read(&kept_state(&state(10), 64 << 10));
        assert_eq!((all.lanes[0].producers.len(), all.lanes[0].memory), (10, Memory::Whole));
        assert_eq!((all.lanes[0].producers[0].chunks.len(), all.lanes[0].groups.len()), (5, 0));
        let last = read(&kept_state(&state(800), 64 << 10));
        assert_eq!((last.lanes[0].producers.len(), last.lanes[0].memory), (800, Memory::Whole));
        assert_eq!(last.lanes[0].producers[0].chunks[0].sequence, 4);
        let bytes = kept_state(&state(5_000), 64 << 10);
        let some = read(&bytes);
        assert!(bytes.len() <= 64 << 10, "{}", bytes.len());
        assert_eq!((some.lanes[0].next_ordinal, some.lanes[0].memory), (9, Memory::Forgotten));
        assert_eq!(
            some.lanes[0].producers.last().map(|one| one.producer_id),
            Some(ProducerId(5_000)),
            "the newest stay"
        );
    }

    #[test]
    fn lanes_that_take_more_than_most_streamlets_do_go_along_whole_and_producers_as_far_as_there_is_room() {
        let read = |bytes: &[u8]| <StreamletState as kera_protocol::Body>::decode(1, bytes).expect("a state");
        let lanes = |has: u32, written: u32| {
            let with = |producers: u64, at: u32| LaneState { lane: LaneId(at), ..state(producers).lanes.remove(0) };
            let lane = |at: u32| with(u64::from(at < written), at);
            StreamletState { lanes: (0..has).map(lane).collect(), ..state(0) }
        };
        let bytes = kept_state(&lanes(3_000, 500), HANDED_LARGE_BYTES_MAX);
        assert!(bytes.len() > HANDED_BYTES_MAX, "{}", bytes.len());
        let kept = read(&bytes);
        assert!(kept.lanes.len() == 3_000 && kept.lanes.iter().all(|lane| lane.memory == Memory::Whole));
        assert!(kept.lanes[..500].iter().all(|lane| lane.producers.len() == 1));
        let least = kept_state(&lanes(3_000, 500), HANDED_BYTES_MAX);
        assert!(least.len() > HANDED_BYTES_MAX, "this is what is refused: {} bytes", least.len());
        assert_eq!(read(&least).lanes[0].memory, Memory::Forgotten);
        // Not so much that others have no room.
        let all = kept_state(&lanes(3_000, 3_000), HANDED_LARGE_BYTES_MAX);
        assert!(all.len() <= least.len() + HANDED_BYTES_MAX, "{}", all.len());
        assert_eq!(read(&all).lanes.len(), 3_000);
        // Producers alone take no more than before.
        assert_eq!(kept_state(&state(5_000), HANDED_LARGE_BYTES_MAX), kept_state(&state(5_000), HANDED_BYTES_MAX));
    }

    /// As where the coordinators keep much of very many streamlets already.
    #[test]
    fn of_a_state_for_which_there_is_little_room_lanes_go_along_and_few_producers_or_none() {
        let read = |bytes: &[u8]| <StreamletState as kera_protocol::Body>::decode(1, bytes).expect("a state");
        let bytes = kept_state(&state(5_000), 1_000);
        assert!(bytes.len() <= 1_000, "{}", bytes.len());
        let lane = read(&bytes).lanes.remove(0);
        assert_eq!((lane.next_ordinal, lane.memory), (9, Memory::Forgotten));
        assert_eq!(lane.producers.last().map(|one| one.producer_id), Some(ProducerId(5_000)), "the newest stay");
        let lane = read(&kept_state(&state(5_000), 0)).lanes.remove(0);
        assert_eq!((lane.next_ordinal, lane.memory, lane.producers.len()), (9, Memory::Forgotten, 0));
    }

    #[test]
    fn where_chunks_are_missing_goes_along() {
        let read = |bytes: &[u8]| <StreamletState as kera_protocol::Body>::decode(1, bytes).expect("a state");
        let mut lane = from_state(&state(5_000)).remove(0);
        assert_eq!((lane.producers.len(), lane.hole_end), (5_000, 0));
        (lane.hole_end, lane.forgot) = (7, true);
        let with_hole = StreamletState { lanes: vec![to_lane(lane.clone())], ..state(0) };
        assert_eq!(from_state(&with_hole), [lane]);
        let kept = from_state(&read(&kept_state(&with_hole, 64 << 10))).remove(0);
        assert_eq!((kept.hole_end, kept.forgot), (7, true));
        assert!(!kept.producers.is_empty() && kept.producers.iter().all(|one| one.producer_id.0 != 0));
        // What comes from outside is bounded by the lane's end.
        let beyond =
            StreamletState { lanes: vec![LaneState { next_ordinal: 3, ..with_hole.lanes[0].clone() }], ..with_hole };
        assert_eq!(from_state(&beyond)[0].hole_end, 3);
    }
}
