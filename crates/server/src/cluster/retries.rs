//! When what has failed is tried again: soon at first, and then less and less often, until something is heard that may be what it waits for.
//!
//! For what may wait for a person, and asks every backup for much each time: who takes over what lost nodes had. Plain state, without a
//! clock of its own.

use std::time::{Duration, Instant};

/// Time until something that failed is tried again: at first and behind news, and at most.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How often the time doubles: beyond the most.
const DOUBLES_MAX: u32 = 7;

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Retries {
    /// How often it has failed since the last news, and when it did last.
    failed: u32,
    at: Option<Instant>,
    /// What had been heard when that try began.
    heard: u64,
}

impl Retries {
    /// It has failed once more. `heard`: counts the news, as of when the try began: what came while it was under way may have come too late for it.
    pub(super) fn failed(&mut self, heard: u64, now: Instant) {
        let is_first = self.at.is_none() || self.heard != heard;
        let failed = if is_first { 1 } else { self.failed.saturating_add(1) };
        *self = Retries { failed, at: Some(now), heard };
    }

    /// When it is to be tried again, by what has been heard by now. `None`: at once, for it has not failed. News make nothing wait for longer, and
    /// have nothing tried without a pause.
    pub(super) fn due(&self, heard: u64) -> Option<Instant> {
        let doubles = if self.heard == heard { self.failed.saturating_sub(1).min(DOUBLES_MAX) } else { 0 };
        self.at.map(|at| at + (RETRY * (1 << doubles)).min(RETRY_MAX))
    }

    /// Whether it is to be tried now.
    pub(super) fn is_due(&self, heard: u64, now: Instant) -> bool {
        self.due(heard).is_none_or(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries within so many seconds, of something that goes on failing.
    fn tries(retries: &mut Retries, heard: u64, now: &mut Instant, seconds: u64) -> u32 {
        let (mut tries, end) = (0, *now + Duration::from_secs(seconds));
        loop {
            let due = retries.due(heard).map_or(*now, |at| at.max(*now));
            if due >= end {
                *now = end;
                return tries;
            }
            *now = due;
            assert!(retries.is_due(heard, due));
            retries.failed(heard, due);
            assert!(!retries.is_due(heard, due));
            tries += 1;
        }
    }

    #[test]
    fn what_fails_for_long_is_tried_often_at_first_and_then_every_ten_seconds() {
        let (mut retries, mut now) = (Retries::default(), Instant::now());
        assert_eq!(tries(&mut retries, 0, &mut now, 1), 4, "at once, and after 100, 300 and 700 ms");
        tries(&mut retries, 0, &mut now, 20);
        assert_eq!(tries(&mut retries, 0, &mut now, 3600), 360);
    }

    #[test]
    fn news_have_it_tried_as_soon_as_at_first_and_not_without_a_pause() {
        let (mut retries, mut now) = (Retries::default(), Instant::now());
        tries(&mut retries, 0, &mut now, 3600);
        assert!(!retries.is_due(0, now + Duration::from_millis(1)));
        assert!(retries.is_due(1, now), "its last try was long ago");
        assert_eq!(tries(&mut retries, 1, &mut now, 1), 4);
        // Something is heard all the time.
        let mut many = 0;
        for heard in 2..10_002 {
            if retries.is_due(heard, now) {
                retries.failed(heard, now);
                many += 1;
            }
            now += Duration::from_millis(1);
        }
        assert!((90..=101).contains(&many), "{many} tries in ten seconds");
    }
}
