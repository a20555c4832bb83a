//! What a node has under way of streamlets that move from it and to it (`docs/replication.md`, "A streamlet moves"), between what the
//! coordinators have noted and what the broker does. Whoever follows the coordinators' log has one, tells it of every change, and carries
//! what nodes say to each other.
//!
//! Nothing here outlives the process: whoever is started again finds the moves that are still noted in the coordinators' state.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kera_format::{StreamId, StreamletId};
use kera_log::Tenure;
use kera_protocol::{Body, HeldGroups, LetGo, MoveInfo, ProtocolError, StreamletState};

use crate::broker::Broker;
use crate::handover::kept_state;

type Place = (StreamId, StreamletId);

/// See the module. Not shared by itself: a node whose threads do that keeps it under a lock.
#[derive(Default)]
pub struct Moving {
    /// Streamlets that this node is letting go, with the numbers of their moves.
    going: BTreeMap<Place, u64>,
    /// Moves to this node that somebody is busy with.
    coming: BTreeSet<u64>,
    /// For how many bytes there was room when they were told of first, by the numbers of their moves.
    rooms: BTreeMap<u64, usize>,
    /// What was handed over, until it is opened: more than what the coordinators keep of it, which is with it.
    handed: HashMap<Place, (StreamletState, Vec<u8>)>,
}

impl Moving {
    /// The streamlets that [`look`](Moving::look) asks about: for who must not wait for anybody while it has the state before it.
    pub fn places(&self) -> BTreeSet<(StreamId, StreamletId)> {
        self.going.keys().chain(self.handed.keys()).copied().collect()
    }

    /// Moves may have been noted or called off. `coming`: those to this node; the answer is those of them that nobody is busy with yet,
    /// and whoever asks is from now on, until it says that they are [over](Moving::over). `is_moving`: whether a move of a streamlet
    /// is noted; `owned`: the owner epoch in which this incarnation owns it. Waits for lanes.
    pub fn look(
        &mut self,
        broker: &Broker,
        coming: impl IntoIterator<Item = MoveInfo>,
        is_moving: impl Fn(StreamId, StreamletId) -> bool,
        owned: impl Fn(StreamId, StreamletId) -> Option<u32>,
    ) -> Vec<MoveInfo> {
        self.going.retain(|&(stream, streamlet), _| {
            let goes = is_moving(stream, streamlet);
            // A streamlet that has moved to its own node has a later owner epoch, and is opened in that.
            let stays = owned(stream, streamlet).is_some_and(|epoch| broker.is_of_epoch(stream, streamlet, epoch));
            if !goes && stays {
                match broker.keep_streamlet(stream, streamlet) {
                    Ok(()) => tracing::info!(%stream, %streamlet, "a move is called off; the streamlet stays"),
                    Err(failure) => {
                        tracing::debug!(%stream, %streamlet, error = %failure, "the streamlet was not let go");
                    }
                }
            }
            goes
        });
        self.handed.retain(|&(stream, streamlet), _| is_moving(stream, streamlet));
        coming.into_iter().filter(|of| self.coming.insert(of.number)).collect()
    }

    /// Nobody is busy with a move to this node any more.
    pub fn over(&mut self, number: u64) {
        self.coming.remove(&number);
        self.rooms.remove(&number);
    }

    /// Lets go of a streamlet for a move: what the next owner must know, when it is final; `None`: not yet, ask again. `noted`: how many bytes the
    /// coordinators keep of that, if they have noted this very move, away from this node. Nothing may come between that look and this call that
    /// [`look`](Moving::look) would not be told of afterwards.
    pub fn let_go(
        &mut self,
        broker: &Broker,
        asked: &LetGo,
        noted: Option<usize>,
    ) -> Result<Option<StreamletState>, String> {
        let LetGo { number, stream, streamlet } = *asked;
        let Some(most) = noted else {
            let node = broker.ownership().node();
            return Err(format!("node {node} does not know of move {number}, or it was called off"));
        };
        let found = broker.log().stream(stream).ok_or("the stream is gone")?;
        let place = found.streamlet(streamlet).ok_or("the stream has no such streamlet here")?;
        if place.tenure() != Tenure::LettingGo {
            broker.let_go_within(stream, streamlet, most).map_err(|failure| failure.to_string())?;
        }
        self.going.insert((stream, streamlet), number);
        broker.handed_over(stream, streamlet).map_err(|failure| failure.to_string())
    }

    /// The owner before has told what this node must know of a streamlet that comes to it: what of that the coordinators are to keep.
    /// `state`: a `StreamletState`, version 1. `most`: how many bytes they keep.
    ///
    /// That is more or less whenever another streamlet has moved. Who is told again, since nobody has said whether the first try is done, has the same kept of it: it may be done, and
    /// what is [opened](Moving::handed) would lack the producers that were left out.
    pub fn told(&mut self, of: &MoveInfo, state: &[u8], most: usize) -> Result<Vec<u8>, ProtocolError> {
        let state = StreamletState::decode(1, state)?;
        let kept = kept_state(&state, *self.rooms.entry(of.number).or_insert(most));
        self.handed.insert((of.stream, of.streamlet), (state, kept.clone()));
        Ok(kept)
    }

    /// What the last owner of a streamlet handed over, for this node to open it: all of it if it was told just now, otherwise `kept`, which
    /// is what the coordinators keep.
    pub fn handed(
        &mut self,
        stream: StreamId,
        streamlet: StreamletId,
        kept: &[u8],
    ) -> Result<StreamletState, ProtocolError> {
        let told = self.handed.remove(&(stream, streamlet));
        match told.filter(|(_, is_kept)| is_kept == kept) {
            Some((told, _)) => Ok(told),
            None => StreamletState::decode(1, kept),
        }
    }
}

impl Broker {
    /// Whether a streamlet was opened here in this owner epoch, and in no later one.
    pub fn is_of_epoch(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> bool {
        let found = self.log().stream(stream);
        found.is_some_and(|found| found.streamlet(streamlet).is_some_and(|place| place.owner_epoch() == epoch))
    }

    /// Those of the groups that this node holds for others which retention has taken. `held`: each with the owner epoch behind it.
    pub fn gone_groups(&self, held: Vec<(HeldGroups, u32)>) -> Vec<HeldGroups> {
        let is_gone = |(of, end): &(HeldGroups, u32)| {
            let streamlet = StreamletId(of.first);
            // What is not there yet is not gone.
            let is_whole = self
                .log()
                .stream(of.stream)
                .is_some_and(|found| found.streamlet(streamlet).is_some_and(|place| place.awaited().is_empty()));
            is_whole && !self.has_groups(of.stream, streamlet, of.owner_epoch, *end)
        };
        held.into_iter().filter(is_gone).map(|(of, _)| of).collect()
    }
}

#[cfg(test)]
mod tests {
    use kera_format::{Cursor, LaneId, ProducerEpoch, ProducerId};
    use kera_protocol::placement::{ChunkMark, LaneState, Memory, ProducerState};

    use super::*;

    fn state() -> StreamletState {
        let producer = |id| ProducerState {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(0),
            sequence: 0,
            chunks: vec![ChunkMark { sequence: 0, base_ordinal: id, cursor: Cursor::default() }],
        };
        let lane = LaneState {
            lane: LaneId(0),
            next_ordinal: 101,
            last_append_ms: 1,
            memory: Memory::Whole,
            producers: (1..=100).map(producer).collect(),
            groups: Vec::new(),
        };
        StreamletState {
            stream: StreamId(1),
            streamlet: StreamletId(0),
            epoch: 2,
            lanes: vec![lane],
            progress: Vec::new(),
        }
    }

    /// The coordinators have made the first try true, and its answer was lost. Others have moved meanwhile, so there is less room.
    #[test]
    fn who_is_told_again_opens_with_all_that_it_was_told_also_if_less_would_be_kept_by_then() {
        let of = MoveInfo { number: 7, stream: StreamId(1), streamlet: StreamletId(0), from: 1, to: 2 };
        let (state, mut moving) = (state(), Moving::default());
        let bytes = kera_protocol::codec::bytes_of(&state);
        let first = moving.told(&of, &bytes, 3_000).expect("a state");
        assert!(first.len() <= 3_000 && first.len() > 1_000, "{}", first.len());
        assert_eq!(moving.told(&of, &bytes, 1_000).expect("a state"), first);
        let opened = moving.handed(of.stream, of.streamlet, &first).expect("a state");
        assert!(opened == state, "with {} producers", opened.lanes[0].producers.len());
        moving.over(of.number);
        let next = MoveInfo { number: 8, ..of };
        assert!(moving.told(&next, &bytes, 1_000).expect("a state").len() <= 1_000, "another move has its own room");
    }
}
