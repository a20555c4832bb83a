//! The time by which things are deleted for their age: the wall clock, as far as it is believed.
//!
//! A wall clock may be wrong for a second, for an hour or since the machine started: a time server that lies, a machine that was stopped and goes on, a battery that
//! is empty. What was deleted in that second is gone for good. So a clock that jumps forward is believed once that has held for an hour, and until then
//! time goes on from what was believed before, as the monotonic clock counts it. A clock that is set back is believed at once: by it less is deleted, not more.
//!
//! # What was written by a clock that was behind
//!
//! A machine starts in 1970, takes records, and then its clock is set: these records are minutes old and seem to be 56 years old. When they are appended nobody knows. But when
//! the jump is believed it is known by how much the clock was behind from its first moment in this process on: what says to be from then is as old as the
//! monotonic clock says ([`Believed::age_ms`]). If the clock was right before and the machine had stood still, what was written before is deleted later by as much, and nothing earlier.
//!
//! # What cannot be known
//!
//! At a start there is only the wall clock. What is stored says when it was appended last: if that was long ago, the node was off for long or its clock is ahead by as
//! much, and nobody can tell which. Whoever was off for long loses nothing by deleting an hour later; whoever has a wrong clock gets an hour to set it, which a time
//! server does within a minute. So that counts as a jump, too ([`Reckoning::begin`]). It is an hour and not for ever, because what nobody looks at must not fill disks.
//!
//! What was appended while a clock is doubted carries its time, and would vouch for it at the next start. So a node keeps the doubt itself on disk ([`Doubted`]), and goes on with
//! it ([`Clock::begin`](crate::Clock::begin)).
//!
//! Called from any thread; nothing here waits.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A wall clock that moves by no more than this beside the monotonic one is followed at once.
pub(crate) const STEP_MS: i64 = 600_000;
/// A jump forward is believed when it has held for so long on the monotonic clock.
pub(crate) const HELD_MS: i64 = 3_600_000;
/// A node whose newest data are older than this when it starts may have a clock that is ahead.
const OFF_MS: i64 = 30 * 24 * HELD_MS;
/// So many times at which the clock was behind are remembered, the last ones. There is one an hour at most.
const ERAS: usize = 4;

/// A time in this process at which the wall clock was behind, in what it said then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Era {
    from_ms: i64,
    to_ms: i64,
    /// What it was ahead of the monotonic clock.
    offset_ms: i64,
}

/// A wall clock that is not believed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// It is ahead by so much of what is believed.
    pub ahead_ms: i64,
    /// It, or as much of it as has held, is believed in so much.
    pub left_ms: i64,
}

/// What the next process of a node has to know of a doubt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubted {
    /// The time that was believed, milliseconds since 1970. While no process runs it stands still.
    pub believed_ms: i64,
    /// The wall clock has yet to hold for so long.
    pub left_ms: i64,
    /// It was ahead by so much at least. What it is further ahead in the next process has yet to hold by itself.
    pub ahead_ms: i64,
}

/// What time it is as far as ages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Believed {
    now_ms: i64,
    wall_ms: i64,
    mono_ms: i64,
    eras: [Era; ERAS],
    doubt: Option<Doubt>,
    doubted: Option<Doubted>,
}

impl Believed {
    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// What the wall clock says, be it right or not: for what is compared with other times that it has said, and deletes nothing.
    pub fn wall_ms(&self) -> i64 {
        self.wall_ms
    }

    /// Milliseconds of a clock that never goes back.
    pub fn mono_ms(&self) -> i64 {
        self.mono_ms
    }

    /// How old is what was written when the wall clock said this; negative if that is ahead of now.
    pub fn age_ms(&self, since_ms: i64) -> i64 {
        let then = self.eras.iter().filter(|era| (era.from_ms..era.to_ms).contains(&since_ms));
        let now_ms = then.map(|era| era.offset_ms.saturating_add(self.mono_ms)).fold(self.now_ms, i64::min);
        now_ms.saturating_sub(since_ms)
    }

    /// Whether the wall clock says something else that is not believed yet.
    pub fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// The same for the next process.
    pub fn doubted(&self) -> Option<Doubted> {
        self.doubted
    }
}

/// A time of which nothing is doubted.
impl From<i64> for Believed {
    fn from(now_ms: i64) -> Believed {
        Believed { now_ms, wall_ms: now_ms, mono_ms: now_ms, ..Believed::default() }
    }
}

/// What a process believes of its wall clock.
#[derive(Debug, Default)]
pub struct Reckoning {
    state: Mutex<Option<State>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// What the believed time is ahead of the monotonic clock.
    offset_ms: i64,
    /// The least that the wall clock has said since it was believed to be right.
    begun_ms: i64,
    jump: Option<Jump>,
    /// When both clocks were looked at last, on the monotonic one.
    looked_ms: i64,
    eras: [Era; ERAS],
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    /// Since when the wall clock is ahead, on the monotonic one, and when it was not yet.
    since_ms: i64,
    before_ms: i64,
    /// The least that it was ahead of the monotonic clock since.
    least_ms: i64,
}

impl State {
    fn new(offset_ms: i64, begun_ms: i64) -> State {
        State { offset_ms, begun_ms, jump: None, looked_ms: 0, eras: [Era::default(); ERAS] }
    }

    /// Looks at both clocks. That a jump has held says: the wall clock was never less ahead since. So one that jumps again within the hour, as it does on machines that
    /// are stopped often, is believed as far as it jumped first, and does not stay behind for ever.
    fn look(&mut self, wall_ms: i64, mono_ms: i64) {
        let offset_ms = wall_ms.saturating_sub(mono_ms);
        if let Some(jump) = self.jump
            && mono_ms.saturating_sub(jump.since_ms) >= HELD_MS
        {
            self.believe(jump, jump.least_ms.min(offset_ms));
        }
        let before_ms = std::mem::replace(&mut self.looked_ms, mono_ms);
        if offset_ms <= self.offset_ms.saturating_add(STEP_MS) {
            (self.offset_ms, self.jump) = (offset_ms, None);
            self.begun_ms = self.begun_ms.min(wall_ms);
            return;
        }
        let jump = self.jump.get_or_insert(Jump { since_ms: mono_ms, before_ms, least_ms: offset_ms });
        jump.least_ms = jump.least_ms.min(offset_ms);
    }

    /// What was written between the last look before the jump and the first one after it was written by either.
    fn believe(&mut self, jump: Jump, offset_ms: i64) {
        self.jump = None;
        if offset_ms <= self.offset_ms {
            return;
        }
        let to_ms = self.offset_ms.saturating_add(jump.since_ms).saturating_add(1);
        self.eras.rotate_right(1);
        self.eras[0] = Era { from_ms: self.begun_ms, to_ms, offset_ms: self.offset_ms };
        (self.offset_ms, self.begun_ms) = (offset_ms, offset_ms.saturating_add(jump.before_ms));
    }

    fn believed(&self, wall_ms: i64, mono_ms: i64) -> Believed {
        let now_ms = self.offset_ms.saturating_add(mono_ms);
        let left_ms = |jump: Jump| HELD_MS.saturating_sub(mono_ms.saturating_sub(jump.since_ms)).max(0);
        let doubt = self.jump.map(|jump| Doubt { ahead_ms: wall_ms.saturating_sub(now_ms), left_ms: left_ms(jump) });
        let doubted = self.jump.map(|jump| Doubted {
            believed_ms: now_ms,
            left_ms: left_ms(jump),
            ahead_ms: jump.least_ms.saturating_sub(self.offset_ms),
        });
        Believed { now_ms, wall_ms, mono_ms, eras: self.eras, doubt, doubted }
    }
}

impl Reckoning {
    /// Looks at both clocks, the monotonic one in microseconds. The first look believes the wall clock.
    pub(crate) fn look(&self, wall_ms: i64, monotonic_us: u64) -> Believed {
        let mono_ms = (monotonic_us / 1000) as i64;
        let mut state = self.state();
        let state = state.get_or_insert_with(|| State::new(wall_ms.saturating_sub(mono_ms), wall_ms));
        state.look(wall_ms, mono_ms);
        state.believed(wall_ms, mono_ms)
    }

    /// A process that has just started has data, the newest of which were appended then. If that was long ago the wall clock has yet to hold. So it has if the process before
    /// did not believe it, for the rest of its time.
    pub(crate) fn begin(&self, newest_ms: Option<i64>, doubted: Option<Doubted>, wall_ms: i64, monotonic_us: u64) {
        let mono_ms = (monotonic_us / 1000) as i64;
        let long_ago = newest_ms.filter(|newest_ms| wall_ms.saturating_sub(*newest_ms) > OFF_MS);
        let Some(before_ms) = doubted.map(|doubted| doubted.believed_ms).or(long_ago) else { return };
        // Nothing was written by this process then.
        let begun_ms = before_ms.saturating_add(mono_ms + 1);
        let mut state = State::new(before_ms.saturating_sub(mono_ms), begun_ms);
        if let Some(doubted) = doubted {
            let since_ms = mono_ms.saturating_sub(HELD_MS.saturating_sub(doubted.left_ms.clamp(0, HELD_MS)));
            let least_ms = wall_ms.min(before_ms.saturating_add(doubted.ahead_ms)).saturating_sub(mono_ms);
            state.jump = Some(Jump { since_ms, before_ms: since_ms, least_ms });
        }
        *self.state() = Some(state);
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Clock, ManualClock};

    use super::*;

    const DAY_MS: i64 = 24 * HELD_MS;
    const YEAR_MS: i64 = 365 * DAY_MS;
    const NOW_MS: i64 = 1_800_000_000_000;

    /// Looks at the clock every minute for so long.
    fn pass(clock: &ManualClock, ms: i64) -> Believed {
        for _ in 0..ms / 60_000 {
            clock.advance_ms(60_000);
            clock.believed();
        }
        clock.believed()
    }

    #[test]
    fn a_clock_that_keeps_time_is_believed_and_so_are_small_steps() {
        let clock = ManualClock::new(NOW_MS);
        for by_ms in [0, 500_000, -500_000, 599_000] {
            clock.set_now_ms(clock.now_ms() + by_ms);
            let believed = pass(&clock, DAY_MS);
            assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
            assert_eq!(believed.age_ms(NOW_MS), clock.now_ms() - NOW_MS);
        }
    }

    #[test]
    fn a_jump_that_is_taken_back_changes_nothing() {
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        clock.set_now_ms(NOW_MS + YEAR_MS);
        clock.believed();
        let believed = pass(&clock, HELD_MS - 60_000);
        assert_eq!(believed.now_ms(), NOW_MS + HELD_MS - 60_000, "time goes on as it did before");
        assert_eq!(believed.doubt(), Some(Doubt { ahead_ms: YEAR_MS, left_ms: 60_000 }));
        clock.set_now_ms(clock.now_ms() - YEAR_MS);
        let believed = pass(&clock, 2 * HELD_MS);
        assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
        assert_eq!(believed.age_ms(NOW_MS), 3 * HELD_MS - 60_000);
    }

    #[test]
    fn a_jump_that_has_held_for_an_hour_is_believed() {
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        clock.set_now_ms(NOW_MS + YEAR_MS);
        clock.believed();
        let believed = pass(&clock, HELD_MS);
        assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
        assert_eq!(
            believed.age_ms(NOW_MS - DAY_MS),
            YEAR_MS + HELD_MS + DAY_MS,
            "what was there before is as old as it says"
        );
        assert_eq!(believed.age_ms(NOW_MS), HELD_MS, "what was written by this clock is not");
        assert_eq!(believed.age_ms(NOW_MS + YEAR_MS), HELD_MS);
    }

    #[test]
    fn what_was_written_before_a_clock_was_set_is_as_old_as_the_monotonic_clock_says() {
        let clock = ManualClock::new(0);
        clock.believed();
        pass(&clock, 10 * HELD_MS);
        clock.set_now_ms(NOW_MS);
        let believed = pass(&clock, 2 * HELD_MS);
        assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
        assert_eq!((believed.age_ms(0), believed.age_ms(10 * HELD_MS)), (12 * HELD_MS, 2 * HELD_MS));
        // It stays so when it jumps once more, and what was written in between is known, too.
        clock.set_now_ms(clock.now_ms() + YEAR_MS);
        let believed = pass(&clock, 3 * HELD_MS);
        assert_eq!((believed.age_ms(0), believed.age_ms(NOW_MS)), (15 * HELD_MS, 5 * HELD_MS));
    }

    #[test]
    fn a_clock_that_is_set_back_is_believed_at_once() {
        let clock = ManualClock::new(NOW_MS + YEAR_MS);
        pass(&clock, DAY_MS);
        clock.set_now_ms(NOW_MS);
        let believed = clock.believed();
        assert_eq!((believed.now_ms(), believed.doubt()), (NOW_MS, None));
        assert_eq!(believed.age_ms(NOW_MS + YEAR_MS), -YEAR_MS);
    }

    #[test]
    fn a_machine_that_is_stopped_every_half_hour_does_not_stay_behind() {
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        for _ in 0..100 {
            clock.set_now_ms(clock.now_ms() + 8 * HELD_MS);
            let believed = pass(&clock, HELD_MS / 2);
            assert!(clock.now_ms() - believed.now_ms() <= 24 * HELD_MS, "{believed:?}");
        }
    }

    #[test]
    fn a_start_long_after_the_newest_data_believes_the_clock_an_hour_later() {
        let clock = ManualClock::new(NOW_MS);
        clock.begin(Some(NOW_MS - 29 * DAY_MS), None);
        assert_eq!(clock.believed().now_ms(), NOW_MS);
        let clock = ManualClock::new(NOW_MS);
        let newest_ms = NOW_MS - YEAR_MS;
        clock.begin(Some(newest_ms), None);
        let believed = pass(&clock, HELD_MS / 2);
        assert_eq!(believed.now_ms(), newest_ms + HELD_MS / 2);
        assert_eq!(believed.doubt().map(|doubt| doubt.ahead_ms), Some(YEAR_MS));
        let believed = pass(&clock, HELD_MS);
        assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
        assert_eq!(believed.age_ms(newest_ms), YEAR_MS + HELD_MS * 3 / 2);
    }

    #[test]
    fn a_process_that_starts_goes_on_with_the_doubt_of_the_one_before() {
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        clock.set_now_ms(NOW_MS + YEAR_MS);
        clock.believed();
        let doubted = pass(&clock, HELD_MS / 4).doubted().unwrap();
        assert_eq!(doubted, Doubted { believed_ms: NOW_MS + HELD_MS / 4, left_ms: HELD_MS / 4 * 3, ahead_ms: YEAR_MS });
        // What was appended meanwhile says what the clock says.
        let newest_ms = Some(NOW_MS + YEAR_MS + 1_000);
        let again = || {
            let again = ManualClock::new(clock.now_ms() + 60_000);
            again.advance_ms(5_000);
            again.begin(newest_ms, Some(doubted));
            again
        };
        let held = again();
        let believed = pass(&held, HELD_MS / 2);
        assert_eq!(believed.now_ms(), doubted.believed_ms + HELD_MS / 2);
        assert_eq!(believed.doubt().unwrap().left_ms, HELD_MS / 4);
        let believed = pass(&held, HELD_MS / 2);
        assert_eq!((believed.now_ms(), believed.doubt()), (held.now_ms(), None));
        assert!(believed.age_ms(NOW_MS + YEAR_MS + 1_000) < 3 * HELD_MS, "it was written by this clock");
        // Whose clock was set while it was off has nothing to doubt, nor has one whose time is up.
        let set = again();
        set.set_now_ms(doubted.believed_ms + STEP_MS);
        assert_eq!((set.believed().now_ms(), set.believed().doubt()), (set.now_ms(), None));
        let over = ManualClock::new(clock.now_ms());
        over.begin(newest_ms, Some(Doubted { left_ms: 0, ..doubted }));
        assert_eq!((over.believed().now_ms(), over.believed().doubt()), (over.now_ms(), None));
    }

    #[test]
    fn what_a_clock_is_further_ahead_at_a_start_has_an_hour_of_its_own() {
        let doubted = Doubted { believed_ms: NOW_MS, left_ms: 60_000, ahead_ms: 30 * DAY_MS };
        let clock = ManualClock::new(NOW_MS + 31 * DAY_MS + 10 * YEAR_MS);
        clock.begin(Some(clock.now_ms()), Some(doubted));
        let believed = pass(&clock, 120_000);
        assert_eq!(believed.now_ms(), NOW_MS + 30 * DAY_MS + 120_000);
        assert!(believed.doubt().is_some());
        let believed = pass(&clock, HELD_MS + 60_000);
        assert_eq!((believed.now_ms(), believed.doubt()), (clock.now_ms(), None));
    }
}
