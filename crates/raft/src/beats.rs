//! Signs of life that this node has sent: since when without a pause.

use parking_lot::Mutex;

/// Two signs of life that lie further apart have a pause between them, in microseconds: ten times what they usually do.
const PAUSE_US: u64 = 1_000_000;

/// When the first of those without a pause was sent, and the last.
#[derive(Default)]
pub(crate) struct Beats(Mutex<Option<(u64, u64)>>);

impl Beats {
    /// One is sent.
    pub(crate) fn sent(&self, now_us: u64) {
        let mut sent = self.0.lock();
        let since_us = sent.filter(|(_, last)| now_us.saturating_sub(*last) <= PAUSE_US).map(|(since, _)| since);
        *sent = Some((since_us.unwrap_or(now_us), now_us));
    }

    /// For how long they have been sent, in microseconds; 0 if none was a moment ago.
    pub(crate) fn for_us(&self, now_us: u64) -> u64 {
        let sent = self.0.lock().filter(|(_, last)| now_us.saturating_sub(*last) <= PAUSE_US);
        sent.map_or(0, |(since, _)| now_us.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_a_pause_does_not_count() {
        let beats = Beats::default();
        assert_eq!(beats.for_us(1), 0, "none was sent");
        (10..=60).for_each(|at| beats.sent(at * PAUSE_US / 10));
        assert_eq!(beats.for_us(6 * PAUSE_US), 5 * PAUSE_US);
        assert_eq!(beats.for_us(7 * PAUSE_US + 1), 0, "none was a moment ago");
        beats.sent(8 * PAUSE_US);
        assert_eq!(beats.for_us(8 * PAUSE_US + 5), 5);
    }
}
