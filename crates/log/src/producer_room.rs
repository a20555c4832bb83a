//! Memory for what the lanes of a log know of producers, all together.
//!
//! A lane by itself remembers so many producers (`producers_per_lane_max`), whether they come back or not: programs that run for a moment, each
//! under an id of its own, would make gigabytes of that in a thousand lanes. So all lanes together have a limit as well, in proportion to the arena.
//!
//! * At the limit a lane that wants to know one more throws out its own oldest, as it does at its own limit. But each may know a
//!   [few](ProducerRoom::least), so that lanes that come late are not left without. Of very many lanes these take more than the limit.
//! * Near it lanes are trimmed by the maintenance thread, so that those that nobody writes to any more give way: first go producers that do not try
//!   again what they have sent (`producers_kept_ms`), of lanes that know more than a few; if that is not enough, such producers of all lanes; then a
//!   part of what each lane knows above the few. At a start, when lanes learn from their chunks whom they know, the [same](RoomAtStart) is done lane by lane.
//!
//! What is counted is the room that lanes have made, used or not. A lane counts itself, whenever that changes and when it goes.
//!
//! A lane that has thrown out somebody says so to whom it does not know ([`producers`](crate::producers)). Compaction takes chunks that the lane does
//! not remember and says so in what is left ([`SegmentHeader::has_forgotten`](kera_format::segment::SegmentHeader::has_forgotten)), so that it is
//! known after a start, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use kera_env::Believed;

use crate::lane::{Lane, LaneState};
use crate::log::Log;
use crate::producers::ENTRY_BYTES;
use crate::retention::note_ahead;

/// Beside the arena one part in this many of its size: whoever has memory for the arena has that, too. With 1 GiB it is some 290,000 producers: close to
/// three hundred that are there at the same time in each of a thousand lanes.
const ARENA_SHARE: u64 = 16;
/// A lane may know so many, whatever others do: it takes less for them than for one segment.
const LEAST: u64 = 64;
/// With so many lanes that these would take more than half of it, a lane may know fewer, and always so many.
const LEAST_OF_MANY: u64 = 8;
/// How often lanes are asked for a quarter at a time: that leaves little of what is above the least, and ends while others write.
const ROUNDS: usize = 4;
/// Trimming all lanes is worth it if it makes room for one part in this many of the producers that there is memory for.
const WORTH_SHARE: u64 = 64;
/// If it was not, it is done again after so many milliseconds: there may be very many lanes, and each is looked at.
const PAUSE_MS: i64 = 10_000;

/// Shared by the lanes of a log.
#[derive(Debug)]
pub(crate) struct ProducerRoom {
    /// Producers for which there is memory.
    most: u64,
    /// For how many lanes have made room.
    taken: AtomicU64,
    /// How many lanes have any.
    lanes: AtomicU64,
    /// Producers that were thrown out, here or at a lane's own limit.
    forgotten: AtomicU64,
    /// Lanes are not trimmed before, by the clock that never goes back.
    due_ms: AtomicI64,
}

impl Default for ProducerRoom {
    /// Without a limit.
    fn default() -> ProducerRoom {
        ProducerRoom::for_bytes(u64::MAX)
    }
}

impl ProducerRoom {
    /// Beside an arena, and of at least so many bytes.
    pub(crate) fn beside(arena_bytes: u64, bytes_min: u64) -> Arc<ProducerRoom> {
        Arc::new(ProducerRoom::for_bytes((arena_bytes / ARENA_SHARE).max(bytes_min)))
    }

    fn for_bytes(bytes: u64) -> ProducerRoom {
        let zero = || AtomicU64::new(0);
        let due_ms = AtomicI64::new(i64::MIN);
        ProducerRoom { most: bytes / ENTRY_BYTES, taken: zero(), lanes: zero(), forgotten: zero(), due_ms }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether lanes that know more than the least get no more.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.most
    }

    /// Whether it is nearly full, so that lanes are to be trimmed.
    fn is_scarce(&self) -> bool {
        self.taken() > self.most / 8 * 7
    }

    /// How many are to go until it takes a while to be nearly full again.
    fn excess(&self) -> u64 {
        self.taken().saturating_sub(self.most / 4 * 3)
    }

    /// Whether it is nearly full, and trimming lanes was not in vain just now.
    pub(crate) fn is_to_be_trimmed(&self, now: &Believed) -> bool {
        self.is_scarce() && now.mono_ms() >= self.due_ms.load(Ordering::Relaxed)
    }

    /// Lanes were trimmed, and had taken so much before.
    fn was_trimmed(&self, before: u64, now: &Believed) {
        if before.saturating_sub(self.taken()) < self.most / WORTH_SHARE {
            self.due_ms.store(now.mono_ms().saturating_add(PAUSE_MS), Ordering::Relaxed);
        }
    }

    /// How many a lane may know however full it is.
    pub(crate) fn least(&self) -> usize {
        let share = self.most / 2 / self.lanes.load(Ordering::Relaxed).max(1);
        share.clamp(LEAST_OF_MANY, LEAST) as usize
    }

    /// Bytes that lanes have taken, and may take: with very many lanes what all of them may know in any case is more than there is memory for.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let most = self.most.max(self.lanes.load(Ordering::Relaxed) * LEAST_OF_MANY);
        (self.taken() * ENTRY_BYTES, most * ENTRY_BYTES)
    }

    /// Producers that lanes have thrown out.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

/// What a lane has taken. Dropped with it.
#[derive(Default, Debug)]
pub(crate) struct Taken {
    pub(crate) room: Arc<ProducerRoom>,
    count: u64,
}

impl Taken {
    pub(crate) fn none(room: Arc<ProducerRoom>) -> Taken {
        Taken { room, count: 0 }
    }

    /// It is room for so many producers from here on.
    pub(crate) fn set(&mut self, count: usize) {
        let (was, count) = (std::mem::replace(&mut self.count, count as u64), count as u64);
        // Wraps around where it is less, and the sum is right.
        self.room.taken.fetch_add(count.wrapping_sub(was), Ordering::Relaxed);
        let lanes = u64::from(count > 0).wrapping_sub(u64::from(was > 0));
        if lanes != 0 {
            self.room.lanes.fetch_add(lanes, Ordering::Relaxed);
        }
    }

    /// One was thrown out.
    pub(crate) fn forgets(&self) {
        self.room.forgotten.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Log {
    /// If there is nearly no room left, has lanes forget the producers that do not try again what they have sent; and if that is not enough, some of
    /// the others. One lane's lock at a time, for as long as it takes to copy what stays, two megabytes at most.
    pub(crate) fn forget_silent_producers(&self, now: &Believed) {
        let room = &self.shared.producer_room;
        if !room.is_to_be_trimmed(now) {
            return;
        }
        let (lanes, before) = (self.lanes(), room.taken());
        for least in [room.least(), 0] {
            // Of lanes that know a few alone there may be so many that they take all.
            if room.is_scarce() {
                lanes.iter().for_each(|lane| lane.forget_silent_producers(least, now));
            }
        }
        self.make_room_for_producers(&lanes);
        room.was_trimmed(before, now);
    }

    /// Takes from each lane a quarter of what it has above the least, as long as there is nearly no room left. Whether there is room then.
    pub(crate) fn make_room_for_producers(&self, lanes: &[Arc<Lane>]) -> bool {
        let room = &self.shared.producer_room;
        for _ in 0..ROUNDS {
            if !room.is_scarce() {
                return true;
            }
            let (least, before) = (room.least(), room.taken());
            for lane in lanes {
                let mut state = lane.state.lock();
                let above = state.producers.room().saturating_sub(least);
                if above > 0 {
                    state.producers.shrink_to(least + above * 3 / 4);
                }
            }
            if room.taken() >= before {
                break;
            }
        }
        !room.is_scarce()
    }
}

/// Room while lanes learn one after the other at a start what their chunks tell of producers, which may be more than was known when the process ended.
///
/// Those that do not try again go first, as they do later. Or those of lanes that nobody writes to any more would push out producers that were trying again when the node was
/// killed, and what these had under way would be appended twice. How long ago it all was no clock says: while the node was off nobody could try. What counts is how long before the
/// newest append somebody was silent.
///
/// That one may be from a clock that was ahead, by years perhaps, and beside it all others are old. So the oldest of the old go first, by the append times of their segments, from all
/// lanes that are known by then, and no more than have to. Such a time then costs those that wrote last no more than that they have no advantage over lanes with times like it.
pub(crate) struct RoomAtStart {
    /// What was appended to last by then is old.
    old_ms: i64,
    /// Of so many lanes all have gone that may.
    looked_to: usize,
    /// All lanes have given up what they could, and there is no room.
    is_in_vain: bool,
}

impl RoomAtStart {
    /// Before any of these lanes has learned of producers.
    pub(crate) fn of(log: &Log, lanes: &[Arc<Lane>]) -> RoomAtStart {
        let kept_ms = i64::try_from(log.shared.config.producers_kept_ms).unwrap_or(i64::MAX);
        let newest = |lane: &Arc<Lane>| {
            let state = lane.state.lock();
            let slots = state.chain.groups.iter().flat_map(|group| &group.slots);
            slots.map(|slot| slot.summary().last_append_ms).max()
        };
        let newest_ms = lanes.iter().filter_map(newest).max().unwrap_or(0);
        RoomAtStart { old_ms: newest_ms.saturating_sub(kept_ms), looked_to: 0, is_in_vain: false }
    }

    /// The last of these lanes has learned of its producers: the first ones leave some room to those that come.
    pub(crate) fn make(&mut self, log: &Log, lanes: &[Arc<Lane>]) {
        let room = &log.shared.producer_room;
        if !room.is_scarce() {
            return;
        }
        for least in [room.least(), 0] {
            self.forget_oldest(room, &lanes[self.looked_to..], least);
        }
        if room.excess() > 0 {
            self.looked_to = lanes.len();
        }
        self.is_in_vain = self.is_in_vain || !log.make_room_for_producers(lanes);
    }

    fn forget_oldest(&self, room: &ProducerRoom, lanes: &[Arc<Lane>], least: usize) {
        let mut old: Vec<(i64, usize, u64)> = Vec::new();
        for (at, lane) in lanes.iter().enumerate().filter(|_| room.excess() > 0) {
            let state = lane.state.lock();
            let slots = state.chain.groups.iter().flat_map(|group| &group.slots).filter(|slot| !slot.open);
            let ends = slots.map(|slot| (slot.summary().last_append_ms, slot.summary().next_ordinal));
            old.extend(ends.filter(|(ms, _)| *ms <= self.old_ms).map(|(ms, ordinal)| (ms, at, ordinal)));
        }
        old.sort_unstable();
        for (_, at, ordinal) in old {
            let excess = room.excess();
            if excess == 0 {
                return;
            }
            forget_silent(&mut lanes[at].state.lock(), ordinal, least, excess as usize);
        }
    }
}

impl Lane {
    /// So many it may know in any case.
    pub(crate) fn forget_silent_producers(&self, least: usize, now: &Believed) {
        let kept_ms = i64::try_from(self.log().config.producers_kept_ms).unwrap_or(i64::MAX);
        let mut state = self.state.lock();
        // Of segments that are still to be rebuilt nobody knows when they were written: it may have been a moment before their owner was lost.
        if state.producers.room() <= least || state.is_rebuilding() {
            return;
        }
        note_ahead(&mut state, now);
        let old_to = old_to(&state, kept_ms, now);
        forget_silent(&mut state, old_to, least, usize::MAX);
    }
}

/// Throws out so many at most of those that have written nothing from this ordinal on. So many the lane may know in any case.
fn forget_silent(state: &mut LaneState, ordinal: u64, least: usize, most: usize) {
    let (known, silent) = (state.producers.len(), state.producers.silent_before(ordinal));
    // For a few it is not worth copying all others.
    if silent > known / 8 {
        state.producers.shrink_to((known - silent.min(most)).max(least));
    }
}

/// The end of the last closed segment that was appended to so many milliseconds ago or more; zero: there is none.
fn old_to(state: &LaneState, kept_ms: i64, now: &Believed) -> u64 {
    let mut slots = state.chain.groups.iter().rev().flat_map(|group| group.slots.iter().rev());
    let old = slots.find(|slot| !slot.open && slot.age_ms(slot.summary().last_append_ms, now) >= kept_ms);
    old.map_or(0, |slot| slot.summary().next_ordinal)
}

#[cfg(test)]
mod tests {
    use kera_env::{Random, SeededRandom};
    use kera_format::{Cursor, ProducerEpoch, ProducerId};

    use super::*;
    use crate::producers::{Place, Producers, Reach};

    fn room_for(producers: u64) -> Arc<ProducerRoom> {
        ProducerRoom::beside(0, producers * ENTRY_BYTES)
    }

    fn note(producers: &mut Producers, id: u64, ordinal: u64, limit: usize) {
        let place = Place { cursor: Cursor::default(), base_ordinal: ordinal };
        producers.note(ProducerId(id), ProducerEpoch(0), 0, place, limit);
    }

    #[test]
    fn what_lanes_have_taken_is_what_is_counted_whatever_becomes_of_them() {
        let (room, random) = (room_for(300), SeededRandom::new(7));
        let below = |limit| random.below(limit);
        let mut lanes: Vec<Producers> = (0..5).map(|_| Producers::within(Arc::clone(&room))).collect();
        for ordinal in 1..20_000 {
            let at = below(5) as usize;
            let lane = &mut lanes[at];
            match below(1000) {
                0 => lane.reset(),
                1 => lane.shrink_to(below(100) as usize),
                2 => drop(lane.end_at(below(ordinal), 150)),
                3 => {
                    let some = lane.hand_over().0.into_iter().filter(|one| one.producer_id.0 % 2 == 0);
                    lane.forget_others(&some.collect::<Vec<_>>(), 150);
                }
                4 => {
                    let handed = lane.hand_over();
                    lanes[(at + 1) % 5].receive(&handed.0, handed.1, Reach::Further, 150);
                }
                5 => lanes[at] = Producers::within(Arc::clone(&room)),
                _ => note(lane, 1 + below(1000), ordinal, 150),
            }
            let taken: usize = lanes.iter().map(Producers::room).sum();
            let used = lanes.iter().filter(|lane| lane.room() > 0).count();
            assert_eq!(room.bytes().0, taken as u64 * ENTRY_BYTES);
            assert_eq!(room.lanes.load(Ordering::Relaxed), used as u64);
            assert!(lanes.iter().all(|lane| lane.len() <= 150 && lane.len() <= lane.room()));
        }
        assert!(room.forgotten() > 0);
        drop(lanes);
        assert_eq!((room.bytes().0, room.lanes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_lane_that_comes_late_gets_the_least_and_throws_out_its_own() {
        let room = room_for(200);
        let mut lanes = [0; 2].map(|_| Producers::within(Arc::clone(&room)));
        for lane in &mut lanes {
            (1..=1000).for_each(|id| note(lane, id, id, 10_000));
        }
        let [first, late] = &lanes;
        assert!((200..=250).contains(&first.len()), "{}", first.len());
        assert!((50..=64).contains(&late.len()), "{}", late.len());
        assert!(first.knows(ProducerId(1000)) && late.knows(ProducerId(1000)) && !late.knows(ProducerId(1)));
        assert!(first.has_thrown_out() && late.has_thrown_out());
    }

    #[test]
    fn very_many_lanes_may_take_eight_each() {
        let room = room_for(100);
        let mut lanes: Vec<Producers> = (0..50).map(|_| Producers::within(Arc::clone(&room))).collect();
        for id in 1..=20 {
            lanes.iter_mut().for_each(|lane| note(lane, id, id, 10_000));
        }
        assert!(lanes.iter().all(|lane| lane.len() == 8));
        assert_eq!(room.bytes(), (400 * ENTRY_BYTES, 400 * ENTRY_BYTES));
        lanes.truncate(3);
        assert_eq!(room.bytes(), (24 * ENTRY_BYTES, 100 * ENTRY_BYTES));
    }

    #[test]
    fn what_is_left_is_in_order_and_takes_no_more_than_it_needs() {
        let room = room_for(1000);
        let mut lane = Producers::within(Arc::clone(&room));
        (1..=100).for_each(|id| note(&mut lane, id, id, 1000));
        note(&mut lane, 95, 101, 1000);
        lane.shrink_to(200);
        assert!((lane.len(), lane.has_thrown_out()) == (100, false), "there is no more than that");
        assert_eq!((lane.silent_before(1), lane.silent_before(51), lane.silent_before(200)), (0, 50, 100));
        lane.shrink_to(10);
        assert_eq!((lane.len(), room.bytes().0), (10, 10 * ENTRY_BYTES));
        let order = |lane: &Producers| lane.latest(99).iter().map(|one| one.producer_id.0).collect::<Vec<_>>();
        assert_eq!(order(&lane), [95, 100, 99, 98, 97, 96, 94, 93, 92, 91]);
        note(&mut lane, 91, 102, 1000);
        note(&mut lane, 5, 103, 1000);
        assert_eq!(order(&lane), [5, 91, 95, 100, 99, 98, 97, 96, 94, 93, 92]);
        assert!(lane.marks_in(Default::default(), Default::default(), 90).is_none(), "90 may be from there");
        assert!(lane.marks_in(Default::default(), Default::default(), 91).is_some());
        lane.reset();
        assert_eq!((lane.len(), lane.room(), lane.has_thrown_out()), (0, 0, false));
        note(&mut lane, 1, 1, 1000);
        assert_eq!(order(&lane), [1]);
    }
}
