//! How long to wait before trying again: longer each time, and never the same for all. And how long anything is waited for at most.

use std::time::Duration;

use rand::Rng;

/// The first wait: a streamlet that moves is at its next owner after about so long.
const FIRST: Duration = Duration::from_millis(5);
/// No wait is longer, unless the server asks for it.
const LONGEST: Duration = Duration::from_secs(1);
/// While another owner is soon to be found no wait is longer: a lost one has a successor after about three quarters of a second, and
/// whoever looks for it then is not to sleep past that. The question is small and any node answers it from memory.
const LONGEST_SOON: Duration = Duration::from_millis(100);
/// So many questions are asked soon: for at least four seconds. After that more is wrong than one lost node.
const SOON: u32 = 80;

/// Longer than anybody waits, and short enough to be counted from now on.
const LONGEST_SETTING: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A time that somebody has set. `Duration::MAX` is what one sets who means for ever, and no clock can add that to what it shows.
pub(crate) fn within_reason(set: Duration) -> Duration {
    set.min(LONGEST_SETTING)
}

/// Waits that double up to a second, each between half and all of its length, so that clients that failed together do not
/// come back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Waits stay short for some seconds.
    soon: bool,
}

impl Backoff {
    /// For questions who owns what.
    pub(crate) fn for_owners() -> Backoff {
        Backoff { failures: 0, soon: true }
    }

    /// Nothing has failed since it worked.
    pub(crate) fn is_first(&self) -> bool {
        self.failures == 0
    }

    /// It worked: the next failure starts over.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// It failed once more: how long to wait. What the server `asked` for is not undercut.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let longest = if self.soon && self.failures < SOON { LONGEST_SOON } else { LONGEST };
        let full = FIRST.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        let wait = full.mul_f64(rand::rng().random_range(0.5..=1.0));
        wait.max(asked.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_second_and_start_over() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.next(None)).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits[10..].iter().all(|wait| *wait >= LONGEST / 2 && *wait <= LONGEST));
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
        assert_eq!(backoff.next(Some(Duration::from_secs(3))), Duration::from_secs(3));
    }

    #[test]
    fn owners_are_asked_for_often_for_some_seconds_and_then_seldom() {
        let mut backoff = Backoff::for_owners();
        let waits: Vec<_> = (0..SOON + 10).map(|_| backoff.next(None)).collect();
        let (soon, later) = waits.split_at(SOON as usize);
        assert!(soon.iter().all(|wait| *wait <= LONGEST_SOON));
        assert!(soon.iter().sum::<Duration>() > Duration::from_millis(3500));
        assert!(later.iter().all(|wait| *wait >= LONGEST / 2));
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
    }
}
