//! What a start has cut off lanes behind their durable heads, kept until it is known whether it counts (`docs/replication.md`, "A returning node holds
//! again what it has").
//!
//! What an owner had under way when it was killed is in the lost logs or not. Whoever took the streamlet over has decided that, and often some of it
//! is: without that, all that a node comes back with would be rebuilt elsewhere for the sake of a few records. So a start keeps what it cuts, up to
//! a bound, and [takes up again](Streamlet::take_up_again) as much as the owner says that there is. An ordinal is given to one chunk in the life of an owner, so
//! what is taken up is what the logs have there.
//!
//! # What is kept, and where
//!
//! The chunks behind the cut are copied out of the arena, for which they are gone: a process that attaches it next finds the shorter lane, whatever this one was
//! about to do. What is left of the segment that was cut is not given to the store, so that it stays in memory and in one place only: the longer one takes its
//! name. Both ends with [`Streamlet::let_go_of_cut_off`], and with everything that changes the lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::chunk::Chunks;
use kera_format::segment::SegmentHeader;
use kera_format::{GroupId, LaneId};

use crate::arena::ArenaFull;
use crate::forget::Gone;
use crate::group::{At, Slot};
use crate::lane::{Lane, LaneState};
use crate::log::Log;
use crate::producers::Place;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::streamlet::Streamlet;
use crate::tenure::Tenure;

/// Bytes of chunks that are kept at most: as many as logs have under way, for any sensible number of them.
const CHUNK_BYTES_MAX: u64 = 64 << 20;
/// What is left of segments that were cut takes at most one part in this many of the arena.
const LEFT_SHARE: u64 = 4;

/// How much more of what is cut off may be kept, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct CutOffRoom {
    pub(crate) chunks: u64,
    pub(crate) left: u64,
}

impl CutOffRoom {
    /// What all lanes of a log may keep together.
    pub fn of(log: &Log) -> CutOffRoom {
        CutOffRoom { chunks: CHUNK_BYTES_MAX, left: log.shared.arena.bytes() / LEFT_SHARE }
    }

    fn take(&mut self, chunks: u64, left: u64) -> bool {
        let (Some(chunks), Some(left)) = (self.chunks.checked_sub(chunks), self.left.checked_sub(left)) else {
            return false;
        };
        (self.chunks, self.left) = (chunks, left);
        true
    }
}

/// Chunks that were cut off a lane, in order.
pub(crate) struct CutOff {
    parts: Vec<Part>,
    /// Where the lane ends without them, and with them.
    next_ordinal: u64,
    end: u64,
    /// The lane's last segment since. Behind another one they have no place.
    last: Option<(GroupId, u32)>,
    /// What is left of the segment that the first of them was in, if anything is.
    left: Option<Arc<Segment>>,
}

/// Those of one segment.
struct Part {
    header: SegmentHeader,
    /// Segments that its group may have.
    limit: u32,
    bytes: Box<[u8]>,
}

impl CutOff {
    /// What is at `at` behind the durable head, and all that follows; nothing if that is too much. Nothing is changed.
    pub(crate) fn of(state: &LaneState, at: At, room: &mut CutOffRoom) -> Option<CutOff> {
        let (mut parts, mut bytes, mut left_bytes) = (Vec::new(), 0, 0);
        for here in state.chain.from(Some(at)) {
            let Some(segment) = &state.chain.slot(here).memory else { break };
            let from = if here == at { segment.durable_head() } else { FIRST_CHUNK };
            if here == at && from > FIRST_CHUNK {
                left_bytes = from.into();
            }
            let chunks = segment.bytes(from, segment.head());
            bytes += chunks.len() as u64;
            if bytes > room.chunks {
                return None;
            }
            let limit = state.chain.groups[here.group].limit;
            parts.push(Part { header: *segment.header(), limit, bytes: chunks.into() });
        }
        let first = parts.iter().find_map(|part| Chunks::new(&part.bytes).next()?.ok()?.broker().ok())?;
        let next_ordinal = first.base_ordinal;
        let mut cut = CutOff { parts, next_ordinal, end: next_ordinal, last: None, left: None };
        cut.end = cut.ends().last().map_or(next_ordinal, |(.., end)| end);
        (cut.end > next_ordinal && room.take(bytes, left_bytes)).then_some(cut)
    }

    /// The lane is as long as it is without this from here on.
    pub(crate) fn is_cut(&mut self, state: &LaneState, left: Option<&Arc<Segment>>) {
        (self.last, self.left) = (last_of(state), left.cloned());
    }

    /// Where its chunks end, as far as they are sound and follow each other: in which part, at which byte of it, and before which ordinal.
    fn ends(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let chunks = self.parts.iter().enumerate().flat_map(|(at, part)| {
            let whole = Chunks::new(&part.bytes).map_while(Result::ok);
            whole.scan(0, move |end, chunk| {
                *end += chunk.as_bytes().len();
                Some((at, *end, chunk))
            })
        });
        chunks.scan(self.next_ordinal, |next, (at, end, chunk)| {
            let follows = chunk.broker().is_ok_and(|part| part.base_ordinal == *next) && chunk.verify().is_ok();
            *next += u64::from(chunk.header().record_count);
            follows.then_some((at, end, *next))
        })
    }

    /// The lane's segments with what was cut off them, up to an ordinal at which a chunk ends; `None` if none does.
    fn segments(&self, lane: &Lane, to: u64) -> Result<Option<Vec<Arc<Segment>>>, ArenaFull> {
        let Some((last, end, _)) = self.ends().find(|(.., next)| *next == to) else { return Ok(None) };
        let segments = self.parts[..=last].iter().enumerate().map(|(at, part)| {
            let bytes = &part.bytes[..if at == last { end } else { part.bytes.len() }];
            match self.left.as_ref().filter(|_| at == 0) {
                Some(left) => lane.of_chunks(&part.header, &[left.bytes(FIRST_CHUNK, left.head()), bytes].concat()),
                None => lane.of_chunks(&part.header, bytes),
            }
        });
        segments.collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Whether the lane is as it was when this was cut off.
    fn fits(&self, state: &LaneState) -> bool {
        state.next_ordinal == self.next_ordinal && last_of(state) == self.last && state.open.is_none()
    }
}

/// The lane's last segment.
fn last_of(state: &LaneState) -> Option<(GroupId, u32)> {
    state.chain.last().map(|at| (state.chain.groups[at.group].id, state.chain.slot(at).index))
}

impl Streamlet {
    /// Like [`forget_unacknowledged`](Streamlet::forget_unacknowledged), but what is cut off the lanes that readers see is kept as far as there is room. To be followed
    /// by [`let_go_of_cut_off`](Streamlet::let_go_of_cut_off) some time.
    pub fn cut_off_unacknowledged(&self, room: &mut CutOffRoom) -> Result<(), ArenaFull> {
        self.cut_to_durable(Some(room))
    }

    /// Lanes of which something that was cut off is kept, with the ordinal behind what is there and the one behind what is kept.
    pub fn cut_off(&self) -> Vec<(LaneId, u64, u64)> {
        let of = |lane: &Arc<Lane>| {
            let state = lane.state.lock();
            state.cut_off.as_ref().map(|cut| (lane.id(), cut.next_ordinal, cut.end))
        };
        self.lanes().filter_map(of).collect()
    }

    /// Has lanes end where they were found to end by whoever took the streamlet over: what is kept of them up to there is durable from here on. False: a lane
    /// does not end there and cannot. With a full arena it is to be called again when there is room. The streamlet must be elsewhere.
    pub fn take_up_again(&self, ends: &[(LaneId, u64)]) -> Result<bool, ArenaFull> {
        for (lane, to) in ends {
            let Some(lane) = self.any_lane(*lane).filter(|_| self.tenure() == Tenure::Elsewhere) else {
                return Ok(false);
            };
            if !lane.take_up_again(*to)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is kept is not needed any more.
    pub fn let_go_of_cut_off(&self) {
        self.lanes().for_each(|lane| lane.let_go_of_cut_off(&mut lane.state.lock()));
    }
}

impl Lane {
    fn take_up_again(&self, to: u64) -> Result<bool, ArenaFull> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.next_ordinal == to {
            return Ok(true);
        }
        let Some(cut) = state.cut_off.as_ref().filter(|cut| cut.fits(state)) else { return Ok(false) };
        // Before anything is changed.
        let Some(segments) = cut.segments(self, to)? else { return Ok(false) };
        let mut gone: Gone = Vec::new();
        if let (Some(_), Some(last)) = (&cut.left, state.chain.last()) {
            let group = &mut state.chain.groups[last.group];
            gone.extend(group.slots.pop_back().map(|slot| (group.id, slot)));
        }
        let limit = self.log().config.producers_per_lane_max;
        for (segment, part) in segments.iter().zip(&cut.parts) {
            let id = segment.id();
            let slot = Slot::resident(Arc::clone(segment), false);
            let at = state.chain.insert(id.group, part.limit, slot).expect("nothing is behind the cut");
            state.chain.groups[at.group].closed = true;
            for mark in segment.producer_marks().into_iter().filter(|mark| mark.base_ordinal >= cut.next_ordinal) {
                let place = Place { cursor: state.chain.cursor(at, mark.position), base_ordinal: mark.base_ordinal };
                state.producers.note(mark.producer_id, mark.producer_epoch, mark.sequence, place, limit);
            }
            state.last_append_ms = state.last_append_ms.max(segment.last_append_ms());
        }
        (state.cut_off, state.next_ordinal) = (None, to);
        state.reshaped += 1;
        state.version += 1;
        self.durable_ordinal.store(to, Ordering::Release);
        self.release_gone(guard, gone);
        // The shorter one of the same name goes before it comes.
        segments.iter().for_each(|segment| self.log().hand_over(segment));
        Ok(true)
    }

    /// What was cut off the lane is gone, and what is left of the segment that it was in goes to the store, if the lane still has it.
    pub(crate) fn let_go_of_cut_off(&self, state: &mut LaneState) {
        let Some(left) = state.cut_off.take().and_then(|cut| cut.left) else { return };
        let id = left.id();
        let slot = state.chain.find(id.group, id.index).map(|at| state.chain.slot(at));
        if slot.and_then(|slot| slot.memory.as_ref()).is_some_and(|segment| Arc::ptr_eq(segment, &left)) {
            self.log().hand_over_late(&left);
        }
    }
}
