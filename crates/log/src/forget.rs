//! Letting go of what a node has of a streamlet and may not keep: what was never acknowledged, and groups that another owner
//! has rebuilt (`docs/replication.md`, "The lost node returns").
//!
//! For streamlets that are elsewhere: of a broker that was fenced, and of a new owner that was an owner before. What was
//! appended and is not durable may be in the lost log or not: who took the streamlet over has decided, and a lane that kept
//! more than that would show records that nobody else has, at places that others have given away.
//!
//! And of one that is being rebuilt here, letting go of older groups that a node has come back with.
//!
//! And of a start, letting go of what it has put back of a segment that an earlier life has dropped.

use kera_format::chunk::Chunks;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{GroupId, LaneId, SegmentId};

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::arena::{ArenaFull, Purpose};
use crate::cut_off::{CutOff, CutOffRoom};
use crate::group::{At, Group, GroupInfo, Slot};
use crate::lane::{Lane, LaneState};
use crate::producers::Place;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::storage::Location;
use crate::streamlet::Streamlet;
use crate::tenure::Tenure;

/// What was taken out of a lane, to be released once its lock is.
pub(crate) type Gone = Vec<(GroupId, Slot)>;

impl Streamlet {
    /// Whether the first of what is not durable of a lane is in a group of an owner epoch below `owner_epoch`.
    pub fn has_unacknowledged_before(&self, owner_epoch: u32) -> bool {
        self.all_lanes().any(|lane| {
            let state = lane.state.lock();
            let at = Lane::first_pending(&state);
            at.is_some_and(|at| state.chain.groups[at.group].id.epoch() < owner_epoch)
        })
    }

    /// Whether something of a lane, that of progress included, is not durable.
    pub fn has_unacknowledged(&self) -> bool {
        self.all_lanes().any(|lane| Lane::first_pending(&lane.state.lock()).is_some())
    }

    /// Cuts everything behind the durable heads: of a broker that was fenced, whose sink will make nothing durable any more. The
    /// streamlet is elsewhere afterwards. With a full arena it is to be called again when there is room: nothing is lost by that.
    pub fn forget_unacknowledged(&self) -> Result<(), ArenaFull> {
        self.cut_to_durable(None)
    }

    /// `keep`: as far as there is room what is cut off the lanes that readers see is [kept](crate::cut_off).
    pub(crate) fn cut_to_durable(&self, mut keep: Option<&mut CutOffRoom>) -> Result<(), ArenaFull> {
        if self.tenure() != Tenure::Elsewhere {
            self.leave();
        }
        self.lanes().try_for_each(|lane| lane.cut_to_durable(keep.as_deref_mut()))?;
        self.used_progress_lane().map_or(Ok(()), |lane| lane.cut_to_durable(None))
    }

    /// Of the lane of progress, drops all groups that `keep` does not name: what they say the last owner has said again since. The
    /// streamlet must be elsewhere: otherwise nothing happens.
    pub fn forget_progress(&self, keep: impl Fn(GroupId) -> bool) {
        if let Some(lane) = self.used_progress_lane().filter(|_| self.tenure() == Tenure::Elsewhere) {
            lane.forget_groups(&keep);
        }
    }

    /// Of the lanes that readers see, drops all groups that `keep` does not name, whole, begun or awaited; all else goes on, appends too. For older
    /// groups that another node holds after all, while the streamlet is rebuilt here.
    pub fn leave_to_holder(&self, keep: impl Fn(GroupId) -> bool) {
        self.lanes().for_each(|lane| lane.leave_to_holder(&keep));
    }

    /// Of the lanes that readers see, those that have groups which `keep` does not name, with these.
    pub fn groups_but(&self, keep: impl Fn(GroupId) -> bool) -> Vec<(LaneId, Vec<GroupInfo>)> {
        let others = |lane: &Arc<Lane>| {
            let groups = lane.groups(GroupId::NONE, usize::MAX).into_iter();
            (lane.id(), groups.filter(|group| !keep(group.id)).collect::<Vec<_>>())
        };
        self.lanes().map(others).filter(|(_, groups)| !groups.is_empty()).collect()
    }

    /// Of the lanes that readers see, those that have records: the first ordinal that is here and the one behind the last. `None`: something is
    /// missing in between, or not durable.
    pub fn whole_lanes(&self) -> Option<Vec<(LaneId, u64, u64)>> {
        let mut whole = Vec::new();
        for lane in self.lanes() {
            whole.extend(lane.whole()?.map(|(first, next)| (lane.id(), first, next)));
        }
        Some(whole)
    }

    /// Of the lanes that readers see, those of which all that was in front of what is here was let go of by this node itself.
    pub fn let_go_lanes(&self) -> Vec<LaneId> {
        let begins = |lane: &&Arc<Lane>| {
            let state = lane.state.lock();
            let first = state.first_ordinal();
            state.chain.first().is_some() && 0 < first && first <= state.let_go_to
        };
        self.lanes().filter(begins).map(|lane| lane.id()).collect()
    }

    /// Drops all groups that `keep` does not name, with what is known of their producers. The streamlet must be elsewhere:
    /// otherwise nothing happens.
    pub fn forget_groups(&self, keep: impl Fn(GroupId) -> bool) {
        if self.tenure() == Tenure::Elsewhere {
            self.all_lanes().for_each(|lane| lane.forget_groups(&keep));
        }
    }
}

impl Lane {
    /// The first segment that is not durable to its end.
    fn first_pending(state: &LaneState) -> Option<At> {
        let pending = |slot: &Slot| slot.memory.as_ref().is_some_and(|segment| segment.durable_head() < segment.head());
        state.chain.from(state.chain.first()).find(|&at| pending(state.chain.slot(at)))
    }

    fn cut_to_durable(&self, keep: Option<&mut CutOffRoom>) -> Result<(), ArenaFull> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(at) = Lane::first_pending(state) else { return Ok(()) };
        let slot = state.chain.slot(at);
        let Some(segment) = slot.memory.clone() else { return Ok(()) };
        let base_ordinal = slot.summary().base_ordinal;
        let durable = match segment.durable_head() {
            FIRST_CHUNK => None,
            to => Some(self.of_chunks(segment.header(), segment.bytes(FIRST_CHUNK, to))?),
        };
        let mut cut_off = keep.and_then(|room| CutOff::of(state, at, room));
        let mut gone: Gone = Vec::new();
        for group in state.chain.groups.split_off(at.group + 1) {
            gone.extend(group.slots.into_iter().map(|slot| (group.id, slot)));
        }
        let group = &mut state.chain.groups[at.group];
        group.closed = true;
        gone.extend(group.slots.split_off(at.slot).into_iter().map(|slot| (group.id, slot)));
        let next_ordinal = durable.as_ref().map_or(base_ordinal, |segment| segment.next_ordinal());
        if let Some(segment) = &durable {
            group.slots.push_back(Slot::resident(Arc::clone(segment), false));
        }
        if group.slots.is_empty() {
            state.chain.groups.pop_back();
        }
        self.forgotten(state, next_ordinal, VecDeque::new());
        if let Some(cut) = &mut cut_off {
            cut.is_cut(state, durable.as_ref());
        }
        let is_kept = cut_off.is_some();
        state.cut_off = cut_off.map(Box::new);
        self.release_gone(guard, gone);
        if let Some(segment) = durable {
            if is_kept {
                segment.hold_back();
            }
            // The longer one of the same name goes before it comes: the store forgets what it has of that.
            self.log().hand_over(&segment);
        }
        Ok(())
    }

    /// A closed segment of another one's name with these chunks, all of them durable. The other one is not changed: blocks that are on their way
    /// still name its bytes.
    pub(crate) fn of_chunks(&self, header: &SegmentHeader, chunks: &[u8]) -> Result<Arc<Segment>, ArenaFull> {
        let end = FIRST_CHUNK as usize + chunks.len();
        let block = self.log().arena.allocate(end, Purpose::Write)?;
        let header = SegmentHeader { capacity_bytes: block.capacity_bytes(), ..*header };
        let mut progress = SegmentProgress::empty(header.base_ordinal);
        (progress.head, progress.durable_head) = (end as u64, end as u64);
        for chunk in Chunks::new(chunks).map_while(Result::ok) {
            let Ok(part) = chunk.broker() else { break };
            progress.chunk_count += 1;
            progress.next_ordinal = part.base_ordinal + u64::from(chunk.header().record_count);
            progress.max_timestamp_ms = progress.max_timestamp_ms.max(chunk.header().max_timestamp_ms);
            progress.last_append_ms = part.append_time_ms;
            if progress.chunk_count == 1 {
                progress.first_append_ms = part.append_time_ms;
            }
        }
        let segment = Segment::copy_of(block, header, chunks, &progress);
        segment.close(SegmentState::ClosedGroup);
        Ok(segment)
    }

    fn forget_groups(&self, keep: &dyn Fn(GroupId) -> bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (kept, dropped): (Vec<Group>, Vec<Group>) =
            std::mem::take(&mut state.chain.groups).into_iter().partition(|group| keep(group.id));
        state.chain.groups = kept.into();
        state.rebuilding = None;
        let next_ordinal = state.chain.last().map_or(0, |last| state.chain.slot(last).summary().next_ordinal);
        let mut gone: Gone = Vec::new();
        for group in dropped {
            gone.extend(group.slots.into_iter().map(|slot| (group.id, slot)));
        }
        // What is kept may have something at its end that is still on its way to being durable.
        let mut under_way = std::mem::take(&mut state.unsettled);
        under_way.retain(|segment| keep(segment.id().group));
        self.forgotten(state, next_ordinal, under_way);
        self.release_gone(guard, gone);
    }

    fn leave_to_holder(&self, keep: &dyn Fn(GroupId) -> bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (kept, left): (Vec<Group>, Vec<Group>) =
            std::mem::take(&mut state.chain.groups).into_iter().partition(|group| keep(group.id));
        state.chain.groups = kept.into();
        if left.is_empty() {
            return;
        }
        if let Some(rebuilding) = &mut state.rebuilding {
            rebuilding.leave(keep);
        }
        state.version += 1;
        let mut gone: Gone = Vec::new();
        for group in left {
            gone.extend(group.slots.into_iter().map(|slot| (group.id, slot)));
        }
        self.release_gone(guard, gone);
    }

    /// Where its records begin and end; nothing if it never had any. Compaction takes records and leaves each segment its ordinals, if need be with an empty chunk as its
    /// last, so a segment that is missing shows in a compacted lane as well.
    fn whole(&self) -> Option<Option<(u64, u64)>> {
        let state = self.state.lock();
        let first = state.first_ordinal();
        let mut next = first;
        for at in state.chain.from(state.chain.first()) {
            let slot = state.chain.slot(at);
            let (summary, is_settled) =
                (slot.summary(), slot.memory.as_ref().is_none_or(|segment| segment.is_settled()));
            if slot.open || slot.is_awaited() || !is_settled || summary.base_ordinal != next {
                return None;
            }
            next = summary.next_ordinal;
        }
        (next == state.next_ordinal).then_some((next > 0).then_some((first, next)))
    }

    /// The lane ends at `next_ordinal` from here on, and knows nothing of what was behind. `under_way`: of what it has, the segments that have chunks which
    /// are not durable yet.
    fn forgotten(&self, state: &mut LaneState, next_ordinal: u64, under_way: VecDeque<Arc<Segment>>) {
        self.let_go_of_cut_off(state);
        self.take_open(state);
        let durable = if under_way.is_empty() { next_ordinal } else { self.durable_ordinal().min(next_ordinal) };
        state.unsettled = under_way;
        state.next_ordinal = next_ordinal;
        state.compacted_to = state.compacted_to.min(next_ordinal);
        state.reshaped += 1;
        self.durable_ordinal.store(durable, Ordering::Release);
        if state.chain.groups.is_empty() {
            // What was dropped here says nothing about what comes in the next owner's groups.
            (state.chain.dropped_to, state.last_append_ms) = (None, 0);
            state.producers.reset();
        } else {
            self.forget_producers(state, next_ordinal);
        }
        state.version += 1;
    }

    /// Producers know what they knew when the lane ended there. Of those whose remembered chunks are all cut, the chunks that
    /// are left say it; those whose chunks are on disk alone are thrown out, and compaction, which takes these, is to say so in what it leaves.
    fn forget_producers(&self, state: &mut LaneState, next_ordinal: u64) {
        let limit = self.log().config.producers_per_lane_max;
        let mut lacking = state.producers.end_at(next_ordinal, limit);
        if lacking.is_empty() {
            return;
        }
        let asked = lacking.clone();
        for at in state.chain.from(state.chain.first()).collect::<Vec<_>>() {
            let Some(segment) = state.chain.slot(at).memory.clone() else { continue };
            for mark in segment.producer_marks() {
                if asked.contains(&mark.producer_id.0) {
                    lacking.remove(&mark.producer_id.0);
                    let place =
                        Place { cursor: state.chain.cursor(at, mark.position), base_ordinal: mark.base_ordinal };
                    state.producers.note(mark.producer_id, mark.producer_epoch, mark.sequence, place, limit);
                }
            }
        }
        if !lacking.is_empty() {
            state.producers.set_thrown_out();
        }
    }

    /// Drops a segment that a start has put back, unless it is on disk.
    pub(crate) fn forget_restored(&self, id: SegmentId) {
        let mut guard = self.state.lock();
        let chain = &mut guard.chain;
        let is_on_disk = |at: At| chain.slot(at).at.or(chain.slot(at).stale).is_some();
        let Some(at) = chain.find(id.group, id.index).filter(|&at| !is_on_disk(at)) else { return };
        let Some(slot) = chain.take_out(at) else { return };
        self.release_gone(guard, vec![(id.group, slot)]);
    }

    pub(crate) fn release_gone(&self, mut state: parking_lot::MutexGuard<'_, LaneState>, gone: Gone) {
        let wake = state.waiters.take();
        drop(state);
        wake.call();
        for (group, slot) in gone {
            let id = self.segment_id(group, slot.index);
            if let Some(segment) = slot.memory {
                segment.disown();
            }
            let places: [Option<Location>; 2] = [slot.stale, slot.at];
            for at in places.into_iter().flatten() {
                self.log().release(id, Some(at));
            }
            if places == [None, None] {
                self.log().release(id, None);
            }
        }
    }
}
