//! What streamlets took along when they moved last, and how much of it there may be.
//!
//! The rules bound one state, the plans all of them together. An entry that the rules refuse ends its batch, and behind a change of owner that would leave
//! an owner without what its lanes begin with; and a bound on memory is nothing that the argument of `docs/replication.md` needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_format::cluster::{
    HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX, HANDED_LARGE_TOTAL_BYTES_MAX, HANDED_USUAL_TOTAL_BYTES_MAX,
};
use kera_format::{StreamId, level};

use super::ClusterState;
use super::rules::{Refused, must};

/// A state that leaves producers out may have one part in so many of what all have left of [`HANDED_USUAL_TOTAL_BYTES_MAX`]. So there is always something left for the next one.
const SHARES: usize = 1024;

/// What a streamlet took along.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    /// The owner epoch in which it was taken over.
    pub(super) owner_epoch: u32,
    /// A `StreamletState` of the protocol, version 1.
    pub(super) state: Arc<[u8]>,
}

impl Handed {
    /// What of it counts towards [`HANDED_LARGE_TOTAL_BYTES_MAX`].
    fn large_bytes(&self) -> usize {
        if self.state.len() > HANDED_BYTES_MAX { self.state.len() } else { 0 }
    }

    /// What of it counts towards [`HANDED_USUAL_TOTAL_BYTES_MAX`].
    fn usual_bytes(&self) -> usize {
        self.state.len() - self.large_bytes()
    }
}

/// That of all streamlets.
#[derive(Clone, Debug, Default)]
pub(super) struct HandedStates {
    of: BTreeMap<(StreamId, u32), Handed>,
    /// Bytes of those that are [large](Handed::large_bytes).
    large_bytes: usize,
    /// Bytes of all others.
    usual_bytes: usize,
}

impl HandedStates {
    pub(super) fn get(&self, stream: StreamId, streamlet: u32) -> Option<&Handed> {
        self.of.get(&(stream, streamlet))
    }

    /// In place of what was there before. Empty: nobody needs it any more.
    pub(super) fn set(&mut self, stream: StreamId, streamlet: u32, owner_epoch: u32, state: &[u8]) {
        let before = if state.is_empty() {
            self.of.remove(&(stream, streamlet))
        } else {
            let handed = Handed { owner_epoch, state: state.into() };
            self.large_bytes += handed.large_bytes();
            self.usual_bytes += handed.usual_bytes();
            self.of.insert((stream, streamlet), handed)
        };
        self.large_bytes -= before.as_ref().map_or(0, Handed::large_bytes);
        self.usual_bytes -= before.as_ref().map_or(0, Handed::usual_bytes);
    }

    /// Forgets that of a range of a stream's streamlets.
    pub(super) fn forget(&mut self, stream: StreamId, range: std::ops::Range<u32>) {
        let (large_bytes, usual_bytes) = (&mut self.large_bytes, &mut self.usual_bytes);
        self.of.extract_if((stream, range.start)..(stream, range.end), |_, _| true).for_each(|(_, gone)| {
            *large_bytes -= gone.large_bytes();
            *usual_bytes -= gone.usual_bytes();
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, u32, &Handed)> {
        self.of.iter().map(|((stream, streamlet), handed)| (*stream, *streamlet, handed))
    }
}

/// How many bytes a state may have of which something can be left out, beside others that have so many.
fn share(others: usize) -> usize {
    (HANDED_USUAL_TOTAL_BYTES_MAX.saturating_sub(others) / SHARES).min(HANDED_BYTES_MAX)
}

/// Whether a state is small enough for an entry: with more no node could read it. Below [`LARGE_MOVES`](level::LARGE_MOVES) the entry's own level says the rest.
pub(super) fn check_handed_bytes(bytes: usize) -> Result<(), Refused> {
    must(bytes <= HANDED_LARGE_BYTES_MAX, || {
        format!("the state has {bytes} bytes, the limit is {HANDED_LARGE_BYTES_MAX}")
    })
}

impl ClusterState {
    /// What a streamlet took along when it moved last: a `StreamletState` of the protocol, version 1. Whoever owns it now began with
    /// that or behind it.
    pub fn handed(&self, stream: StreamId, streamlet: u32) -> Option<Arc<[u8]>> {
        self.handed.get(stream, streamlet).map(|handed| handed.state.clone())
    }

    /// How many bytes a streamlet may take along if it moves now. It may be less by the time it does, if others take much along meanwhile; then its move is
    /// refused, and called off.
    pub fn handed_room(&self, stream: StreamId, streamlet: u32) -> usize {
        if self.level() < level::LARGE_MOVES {
            return HANDED_BYTES_MAX;
        }
        let own = self.handed.get(stream, streamlet).map_or(0, Handed::large_bytes);
        let others = self.handed.large_bytes - own;
        HANDED_LARGE_TOTAL_BYTES_MAX.saturating_sub(others).clamp(HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX)
    }

    /// How many bytes are kept of what a streamlet takes along that moves now, unless what must go along takes more: as many as there is [room](ClusterState::handed_room) for,
    /// and fewer where those of all streamlets have so many that producers are left out.
    ///
    /// Nobody takes a state out before the streamlet moves again: of producers that came once, as most do that have no name, it would be told for ever. All that have moved
    /// together would take more than a snapshot may have, and then the coordinators end.
    pub fn handed_kept(&self, stream: StreamId, streamlet: u32) -> usize {
        let own = self.handed.get(stream, streamlet).map_or(0, Handed::usual_bytes);
        match share(self.handed.usual_bytes - own) {
            HANDED_BYTES_MAX => self.handed_room(stream, streamlet),
            less => less,
        }
    }

    /// Whether there is [room](ClusterState::handed_room) for what a streamlet takes along.
    pub(super) fn check_handed_room(&self, stream: StreamId, streamlet: u32, bytes: usize) -> Result<(), Refused> {
        let room = self.handed_room(stream, streamlet);
        must(bytes <= room, || format!("the state has {bytes} bytes, the limit is {room}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(1);

    #[test]
    fn there_is_room_for_large_states_from_their_level_on_and_not_without_end() {
        let mut state = ClusterState::default();
        assert_eq!(state.handed_room(STREAM, 0), HANDED_BYTES_MAX);
        state.level = level::LARGE_MOVES;
        assert_eq!(state.handed_room(STREAM, 0), HANDED_LARGE_BYTES_MAX);
        let large = vec![7; HANDED_LARGE_BYTES_MAX];
        let fit = (HANDED_LARGE_TOTAL_BYTES_MAX / HANDED_LARGE_BYTES_MAX) as u32;
        // Those that take no more than most do count for nothing.
        (0..100).for_each(|at| state.handed.set(StreamId(2), at, 1, &large[..HANDED_BYTES_MAX]));
        (0..fit).for_each(|at| state.handed.set(STREAM, at, 1, &large));
        assert_eq!(state.handed_room(STREAM, fit), HANDED_BYTES_MAX);
        assert!(state.check_handed_room(STREAM, fit, HANDED_BYTES_MAX).is_ok());
        let refused = state.check_handed_room(STREAM, fit, HANDED_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(refused.contains("65537 bytes, the limit is 65536"), "{refused}");
        assert_eq!(state.handed_room(STREAM, 0), HANDED_LARGE_BYTES_MAX, "in place of what it took along last");
        state.handed.set(STREAM, 0, 2, &large[..HANDED_LARGE_BYTES_MAX - 100_000]);
        assert_eq!(state.handed_room(STREAM, fit), 100_000);
        state.handed.set(STREAM, 0, 3, &[]);
        assert_eq!(state.handed_room(STREAM, fit), HANDED_LARGE_BYTES_MAX, "nobody needs that any more");
    }

    #[test]
    fn what_streamlets_take_along_does_not_grow_with_how_many_have_moved() {
        let (mut all, mut whole) = (0, 0);
        for _ in 0..1_000_000 {
            let most = share(all);
            whole += usize::from(most == HANDED_BYTES_MAX);
            all += most;
        }
        assert!(all <= HANDED_USUAL_TOTAL_BYTES_MAX, "{all}");
        assert!(whole * HANDED_BYTES_MAX >= HANDED_USUAL_TOTAL_BYTES_MAX / 4 * 3, "{whole} take all that they want");
    }

    #[test]
    fn producers_are_left_out_where_all_have_much_and_the_rest_has_its_room() {
        let mut state = ClusterState { level: level::LARGE_MOVES, ..ClusterState::default() };
        state.handed.set(STREAM, 0, 1, &[7; 1000]);
        assert_eq!(state.handed_kept(STREAM, 1), HANDED_LARGE_BYTES_MAX);
        // As much as others would have that are not made here.
        let others = HANDED_USUAL_TOTAL_BYTES_MAX - (1 << 20);
        state.handed.usual_bytes += others;
        assert_eq!(state.handed_kept(STREAM, 0), 1024, "in place of what it took along last");
        assert_eq!(state.handed_kept(STREAM, 1), 1023);
        assert_eq!(state.handed_room(STREAM, 1), HANDED_LARGE_BYTES_MAX);
        state.handed.set(STREAM, 0, 2, &[7; HANDED_BYTES_MAX + 1]);
        assert_eq!((state.handed.usual_bytes, state.handed.large_bytes), (others, HANDED_BYTES_MAX + 1));
        state.handed.set(STREAM, 1, 2, &[7; 2 << 10]);
        state.handed.forget(STREAM, 0..u32::MAX);
        assert_eq!((state.handed.usual_bytes, state.handed.large_bytes), (others, 0));
    }

    #[test]
    fn what_is_forgotten_makes_room() {
        let mut handed = HandedStates::default();
        let large = vec![7; HANDED_BYTES_MAX + 1];
        (0..9).for_each(|at| handed.set(STREAM, at, 1, &large));
        handed.set(StreamId(2), 4, 1, &large);
        handed.forget(STREAM, 3..5);
        let left: Vec<_> = handed.iter().map(|(stream, streamlet, _)| (stream.0, streamlet)).collect();
        assert_eq!(left, [(1, 0), (1, 1), (1, 2), (1, 5), (1, 6), (1, 7), (1, 8), (2, 4)]);
        assert_eq!(handed.large_bytes, 8 * large.len());
        handed.forget(STREAM, 0..u32::MAX);
        assert_eq!((handed.iter().count(), handed.large_bytes), (1, large.len()));
    }
}
