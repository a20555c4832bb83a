//! What leaves a lane, and when: by age, by size, because everybody has read it, because it was deleted; and closing what lies
//! idle.
//!
//! On the maintenance thread, one lane's lock at a time. Only whole closed segments go, from the oldest on; by "everybody has
//! read it" only whole closed groups.
//!
//! # A lane's last segment stays
//!
//! In streams with copies on other nodes the last one with records does: its next owner is told by the copies where the lane goes on, and
//! an empty segment has none. It goes once a later one has durable records, or when the streamlet has another owner: where the lane goes on
//! was handed over to that one, whose records go by their age like these and would leave a hole behind what stays here. Not if that one may give the streamlet back, as it was: then it was
//! handed over to nobody.
//!
//! In all others:
//!
//! Ordinals go on after a restart from the last segment that there is, and after a loss of power from the last one on disk. So
//! a segment only goes once a later one is on disk. When even the last one is due, an empty closed segment is put behind it
//! first: a lane that lost all its records still knows their number, for one page of disk.
//!
//! A lane of which nothing is on disk, and which never had durability `power`, has no number that a loss of power could take
//! back: all of it would be gone anyway (decision 0007). Its segments go without waiting for the disk, so that what is kept for
//! less time than the store waits before it writes is never written. Was any of it ever on disk, then the last of that still
//! is, by the rule above.
//!
//! # What tells of producers stays for a while
//!
//! A producer that was told nothing of its last chunks sends them again. That they are there is known from the lane's table of producers,
//! and after a restart or a loss of the owner from the chunks alone ([`producers`](crate::producers)). So what has a chunk that the table
//! remembers stays for some minutes after its last append (`producers_kept_ms`), for longer than producers try again; by size at most as
//! much again as the limit (decision 0030).

use std::sync::atomic::Ordering;

use kera_env::Believed;
use kera_format::{Cursor, LaneId, SegmentId, SegmentIndex, StreamOptions};

use parking_lot::MutexGuard;

use crate::arena::Purpose;
use crate::group::At;
use crate::lane::{Lane, LaneState, Open};
use crate::rebuild::Rebuilding;
use crate::segment::FIRST_CHUNK;
use crate::storage::Location;
use crate::stream::Stream;
use crate::streamlet::Streamlet;
use crate::tenure::Tenure;

/// What is kept for long is looked through for what is too old once in this share of that time, and at least so often: there may be a hundred thousand lanes, and
/// they are looked at each second otherwise. What is not kept for long enough for that to be a second is looked at each time.
const AGE_SHARE: u64 = 10_000;
const AGE_PAUSE_MS: [i64; 2] = [1_000, 60_000];

#[cfg(test)]
thread_local! {
    /// How many lanes were looked through for what is not kept.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// How many segments were looked at for how much there is.
    pub(crate) static SUMMED_UP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A segment that was dropped, to be released once the lock is.
type Dropped = (SegmentId, Option<Location>);

/// The oldest segment of a lane, if it may go.
#[derive(Clone, Copy)]
struct Front {
    age_ms: i64,
    bytes: u64,
}

impl Lane {
    /// Drops what is too old, what everybody has read, and what was deleted. Returns the number of segments dropped.
    pub(crate) fn retain(&self, options: &StreamOptions, now: &Believed) -> u64 {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        let mut dropped = Vec::new();
        let mut state = self.state.lock();
        if state.is_rebuilding() {
            return 0;
        }
        let version = state.version;
        note_ahead(&mut state, now);
        if let Some(ms) = options.retention_ms.filter(|_| options.cleanup.deletes()) {
            let kept_ms = i64::try_from(ms).unwrap_or(i64::MAX);
            if state.open.as_ref().is_some_and(|open| now.age_ms(open.opened_ms) > kept_ms) {
                self.close_open(&mut state, now.wall_ms());
            }
            let is_over = |state: &LaneState, at| age_ms(state, at, now) > kept_ms;
            self.make_way(&mut state, is_over, now.wall_ms());
            while self.front(&state, now).is_some()
                && state.chain.first().is_some_and(|first| is_over(&state, first))
                && !self.remembers_front(&state, now)
            {
                self.drop_front(&mut state, &mut dropped);
            }
        }
        if let (true, Some(floor)) = (options.retention_consumed, state.consumed_floor) {
            let read = |state: &LaneState, group: usize| is_below(state, group, floor);
            self.make_way(&mut state, |state, last| read(state, last.group), now.wall_ms());
            while !state.chain.groups.is_empty() && read(&state, 0) && self.group_may_go(&state, now) {
                for _ in 0..state.chain.groups[0].slots.len() {
                    self.drop_front(&mut state, &mut dropped);
                }
            }
        }
        let floor = self.floor_ordinal();
        if floor > 0 {
            let below = |state: &LaneState, at| state.chain.slot(at).summary().next_ordinal <= floor;
            self.make_way(&mut state, |state, last| below(state, last), now.wall_ms());
            while self.front(&state, now).is_some()
                && state.chain.first().is_some_and(|first| below(&state, first))
                && !self.remembers_front(&state, now)
            {
                self.drop_front(&mut state, &mut dropped);
            }
        }
        let_go(&mut state, &dropped);
        self.finish(state, version, dropped)
    }

    /// If the last segment is due and has records, puts an empty closed one behind it. Not where groups are others' to open: its group would be
    /// of this node's epoch after a restart, and in front of those that are there.
    fn make_way(&self, state: &mut LaneState, due: impl Fn(&LaneState, At) -> bool, now_ms: i64) {
        if self.is_copied() || self.tenure() != Tenure::Here {
            return;
        }
        let Some(last) = state.chain.last() else { return };
        if state.open.is_some() || state.chain.slot(last).summary().head == FIRST_CHUNK || !due(state, last) {
            return;
        }
        // In a full arena it is tried again next time.
        let Ok(block) = self.log().arena.allocate(FIRST_CHUNK as usize, Purpose::Write) else { return };
        let options = self.home.stream.options();
        let segment = self.start_segment(state, block, &options, now_ms);
        let (head, capacity) = (FIRST_CHUNK, segment.room_bytes());
        self.set_open(
            state,
            Open { segment, head, capacity, chunk_count: 0, opened_ms: now_ms, used_ms: now_ms, sink: None },
        );
        self.close_open(state, now_ms);
    }

    /// Whether the streamlet has another owner, who knows where lanes go on, so that what is here is older groups of it.
    fn is_others(&self) -> bool {
        let may_return = self.home.may_return.load(Ordering::Acquire);
        self.tenure() == Tenure::Elsewhere && self.home.is_others.load(Ordering::Acquire) && !may_return
    }

    /// The oldest segment, if it may go: not open, not waited for by a sink, and not what keeps the lane's ordinals.
    fn front(&self, state: &LaneState, now: &Believed) -> Option<Front> {
        if state.is_rebuilding() {
            return None;
        }
        let first = state.chain.first()?;
        let slot = state.chain.slot(first);
        let settled = slot.memory.as_ref().is_none_or(|segment| segment.is_settled());
        let may_go = match state.chain.next(first) {
            Some(next) => self.keeps_ordinals(state, next),
            None => self.is_others(),
        };
        if slot.open || !settled || !may_go {
            return None;
        }
        Some(Front { age_ms: age_ms(state, first, now), bytes: slot.summary().head.into() })
    }

    /// Whether the oldest segment is kept for what it tells of producers.
    fn remembers_front(&self, state: &LaneState, now: &Believed) -> bool {
        state.chain.first().is_some_and(|first| self.is_remembered(state, first, now))
    }

    /// Whether a segment has one of the last chunks of a producer that may still send it again. Looks at all producers of a lane.
    fn is_remembered(&self, state: &LaneState, at: At, now: &Believed) -> bool {
        let summary = state.chain.slot(at).summary();
        let kept_ms = self.log().config.producers_kept_ms;
        let is_young = age_ms(state, at, now) < i64::try_from(kept_ms).unwrap_or(i64::MAX);
        kept_ms > 0 && is_young && state.producers.remembers_any(summary.base_ordinal..summary.next_ordinal)
    }

    /// Whether other nodes have copies.
    fn is_copied(&self) -> bool {
        self.home.copies() > 1
    }

    /// Whether ordinals survive a restart, or the loss of the node, without what is before this segment.
    fn keeps_ordinals(&self, state: &LaneState, from: At) -> bool {
        let has_durable = |at: At| {
            let slot = state.chain.slot(at);
            let head = slot.summary().head;
            slot.memory.as_ref().map_or(head, |segment| segment.durable_head()) > FIRST_CHUNK
        };
        if self.is_copied() && !self.is_others() && !state.chain.from(Some(from)).any(has_durable) {
            return false;
        }
        let is_stored = |at: &At| state.chain.slot(*at).at.is_some();
        if self.log().store.get().is_none() || state.chain.from(Some(from)).any(|at| is_stored(&at)) {
            return true;
        }
        let mut before = state.chain.from(state.chain.first()).take_while(|at| *at != from);
        !before.any(|at| is_stored(&at)) && self.sink().is_none()
    }

    /// Whether all of the oldest group may go.
    fn group_may_go(&self, state: &LaneState, now: &Believed) -> bool {
        let slots = &state.chain.groups[0].slots;
        let settled =
            slots.iter().all(|slot| !slot.open && slot.memory.as_ref().is_none_or(|segment| segment.is_settled()));
        settled
            && state.chain.groups.len() > 1
            && self.keeps_ordinals(state, At { group: 1, slot: 0 })
            && !(0..slots.len()).any(|slot| self.is_remembered(state, At { group: 0, slot }, now))
    }

    fn drop_front(&self, state: &mut LaneState, dropped: &mut Vec<Dropped>) {
        if let Some((group, slot)) = state.chain.pop_front() {
            if let Some(segment) = &slot.memory {
                segment.disown();
            }
            dropped.extend(slot.stale.map(|stale| (self.segment_id(group, slot.index), Some(stale))));
            dropped.push((self.segment_id(group, slot.index), slot.at));
        }
    }

    /// Tells readers, if anything changed since `version`, and gives disk space back.
    fn finish(&self, mut state: MutexGuard<'_, LaneState>, version: u64, dropped: Vec<Dropped>) -> u64 {
        if dropped.is_empty() && state.version == version {
            return 0;
        }
        state.version += 1;
        let (wake, let_go_to) = (state.waiters.take(), state.let_go_to);
        drop(state);
        wake.call();
        if !dropped.is_empty() && let_go_to > 0 && self.is_copied() && self.id != LaneId::PROGRESS {
            self.log().let_go(self, let_go_to);
        }
        for &(id, at) in &dropped {
            self.log().release(id, at);
        }
        dropped.len() as u64
    }

    /// Drops the segments that are awaited, and all in front of the last of them.
    pub(crate) fn give_up_awaited(&self) -> u64 {
        let mut dropped = Vec::new();
        let mut guard = self.state.lock();
        let version = guard.version;
        let state = &mut *guard;
        let Some(last) = state.rebuilding.as_deref().and_then(Rebuilding::last_awaited) else { return 0 };
        let mut records = 0;
        while let Some(first) = state.chain.first() {
            let slot = state.chain.slot(first);
            if (state.chain.groups[first.group].id, slot.index) > last {
                break;
            }
            let summary = slot.summary();
            records += summary.next_ordinal - summary.base_ordinal;
            self.drop_front(state, &mut dropped);
        }
        if let Some(rebuilding) = &mut state.rebuilding {
            rebuilding.give_up_to(last);
        }
        self.finish(guard, version, dropped);
        records
    }

    /// Bytes of all its segments, and the oldest of them if it may go.
    fn size(&self, now: &Believed) -> (u64, Option<Front>) {
        let mut state = self.state.lock();
        note_ahead(&mut state, now);
        let all = state.chain.from(state.chain.first());
        #[cfg(test)]
        let all = all.inspect(|_| SUMMED_UP.set(SUMMED_UP.get() + 1));
        let bytes = all.map(|at| u64::from(state.chain.slot(at).summary().head)).sum();
        (bytes, self.front(&state, now))
    }

    /// Drops the oldest segment if it may go. What it had, and the one that is the oldest then.
    fn drop_oldest(&self, now: &Believed) -> (u64, Option<Front>) {
        let mut state = self.state.lock();
        let Some(front) = self.front(&state, now) else { return (0, None) };
        let mut dropped = Vec::new();
        self.drop_front(&mut state, &mut dropped);
        let_go(&mut state, &dropped);
        let next = self.front(&state, now);
        let version = state.version;
        self.finish(state, version, dropped);
        (front.bytes, next)
    }

    /// Closes the open segment if nothing was appended to it since `before_ms`.
    pub(crate) fn close_if_idle(&self, before_ms: i64, now_ms: i64) -> bool {
        self.close_if(Some(now_ms), |open| {
            open.set_back(now_ms);
            open.used_ms <= before_ms
        })
    }

    /// Closes the open segment if nothing was appended to it since [`open_since`](Lane::open_since) has told this time. Not by its age: to a time that is past
    /// what came since would be ahead of the clock, and old.
    pub(crate) fn close_if_unused(&self, since_ms: i64) -> bool {
        self.close_if(Some(since_ms), |open| open.used_ms == since_ms)
    }

    /// Closes the open segment if it has records and was opened before `before_ms`.
    pub(crate) fn close_if_old(&self, before_ms: i64, now_ms: i64) -> bool {
        self.close_if(Some(now_ms), |open| {
            open.set_back(now_ms);
            open.chunk_count > 0 && open.opened_ms < before_ms
        })
    }

    /// Closes the open segment if it is this one.
    pub(crate) fn close_segment(&self, id: SegmentId) {
        self.close_if(None, |open| open.segment.id() == id);
    }

    /// Closes the open segment if it is such a one, now; `None`: as if its last append were now. Whether it was.
    fn close_if(&self, now_ms: Option<i64>, is_one: impl FnOnce(&mut Open) -> bool) -> bool {
        let mut state = self.state.lock();
        let closes = state.open.as_mut().is_some_and(is_one);
        if closes {
            let now_ms = now_ms.unwrap_or(state.last_append_ms);
            self.close_open(&mut state, now_ms);
            let wake = state.waiters.take();
            drop(state);
            wake.call();
        }
        closes
    }

    /// When the open segment was last appended to, and the bytes of its block.
    pub(crate) fn open_since(&self) -> Option<(i64, u64)> {
        let state = self.state.lock();
        state.open.as_ref().map(|open| (open.used_ms, open.segment.block_bytes()))
    }
}

/// For what comes before a look at ages: what is ahead of the clock has none by its times.
pub(crate) fn note_ahead(state: &mut LaneState, now: &Believed) {
    if let Some(open) = &mut state.open {
        open.set_back(now.wall_ms());
    }
    state.chain.note_ahead(state.last_append_ms, now);
}

/// How long ago a segment was appended to last.
///
/// Not by the times of its records, as in Kafka, although it knows the largest: records without one, which have that of their append, may lie beside others that were copied here
/// with old ones, and no segment says that it has any ([`lookup_timestamp`](Lane::lookup_timestamp)). By the largest of the old ones they would go before
/// their time.
fn age_ms(state: &LaneState, at: At, now: &Believed) -> i64 {
    let slot = state.chain.slot(at);
    slot.age_ms(slot.summary().last_append_ms, now)
}

/// Notes that the node has let go of what was in front of the lane, if it has.
fn let_go(state: &mut LaneState, dropped: &[Dropped]) {
    if !dropped.is_empty() {
        state.let_go_to = state.let_go_to.max(state.first_ordinal());
    }
}

/// Whether a closed group is read to its end by everybody.
fn is_below(state: &LaneState, group: usize, floor: Cursor) -> bool {
    let group = &state.chain.groups[group];
    let end = group.slots.back().map(|slot| (SegmentIndex(slot.index), slot.last_position()));
    group.closed
        && (group.id < floor.group || (group.id == floor.group && end <= Some((floor.segment, floor.position))))
}

/// Whether all lanes of a stream are to be looked through for what is too old.
pub(crate) fn is_due(stream: &Stream, options: &StreamOptions, now: &Believed) -> bool {
    let Some(kept_ms) = options.retention_ms else { return false };
    let [least_ms, most_ms] = AGE_PAUSE_MS;
    let pause_ms = i64::try_from(kept_ms / AGE_SHARE).map_or(most_ms, |pause_ms| pause_ms.min(most_ms));
    pause_ms < least_ms || stream.has_aged(pause_ms, now.mono_ms())
}

/// A streamlet had room for so much more below its limit.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    limit: u64,
    bytes: u64,
    /// What had been appended to it by then, and when that was on the monotonic clock.
    appended: u64,
    mono_ms: i64,
}

impl Room {
    /// Whether nobody can have filled it with what has been appended since. It is looked again now and then all the same: segments have headers, and some come from elsewhere.
    fn is_left(&self, limit: u64, appended: u64, mono_ms: i64) -> bool {
        let [_, most_ms] = AGE_PAUSE_MS;
        self.limit == limit
            && (self.appended..self.appended.saturating_add(self.bytes)).contains(&appended)
            && (self.mono_ms..self.mono_ms.saturating_add(most_ms)).contains(&mono_ms)
    }
}

/// Drops the oldest segments of a streamlet's lanes until it keeps at most about `limit` bytes; as much again if the oldest tell of producers.
///
/// All segments are summed up for that, of which there may be very many, under the locks that appends take: not while there must be room.
pub(crate) fn retain_bytes(streamlet: &Streamlet, limit: u64, now: &Believed) -> u64 {
    let (appended, mono_ms) = (streamlet.appended_bytes(), now.mono_ms());
    if streamlet.room.lock().is_some_and(|room| room.is_left(limit, appended, mono_ms)) {
        return 0;
    }
    let mut lanes: Vec<_> = streamlet.lanes().map(|lane| (lane, lane.size(now))).collect();
    let mut total: u64 = lanes.iter().map(|(_, (bytes, _))| bytes).sum();
    let mut dropped = 0;
    while total > limit {
        let oldest = lanes
            .iter_mut()
            .filter_map(|(lane, (_, front))| front.map(|f| (f.age_ms, lane, front)))
            .max_by_key(|(age_ms, ..)| *age_ms);
        let Some((_, lane, front)) = oldest else { break };
        // No younger one of another lane goes in its place.
        if total <= limit.saturating_mul(2) && lane.remembers_front(&lane.state.lock(), now) {
            break;
        }
        let (bytes, next) = lane.drop_oldest(now);
        dropped += u64::from(bytes > 0);
        total = total.saturating_sub(bytes);
        *front = next;
    }
    *streamlet.room.lock() = limit.checked_sub(total).map(|bytes| Room { limit, bytes, appended, mono_ms });
    dropped
}
