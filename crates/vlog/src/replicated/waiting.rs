//! Since when chunks wait for which no block could be made because too much was under way. Appenders take no time; what they have appended by a moment is
//! told by the last ticket that was given then.

use std::collections::VecDeque;

use kera_log::Ticket;

/// Moments that are remembered. What comes behind the last one counts as old as that.
const MARKS_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Waiting {
    /// The last ticket that was given at a moment, in microseconds: neither falls. What waited at the first of them waits for as long at least, so that one stays as it is.
    marks: VecDeque<(Ticket, u64)>,
}

impl Waiting {
    /// No block can be made now. Moments are `every_us` apart, unless nothing was appended in between.
    pub(super) fn no_room(&mut self, last: Ticket, now_us: u64, every_us: u64) {
        let (is_first, is_full) = (self.marks.len() == 1, self.marks.len() == MARKS_MAX);
        match self.marks.back_mut() {
            Some((ticket, at_us)) if *ticket == last && !is_first => *at_us = now_us,
            Some((_, at_us)) if is_full || now_us < *at_us + every_us => {}
            _ => self.marks.push_back((last, now_us)),
        }
    }

    /// Everything is in blocks.
    pub(super) fn nothing_waits(&mut self) {
        self.marks.clear();
    }

    /// Since when the chunk with this ticket may have been waiting, which comes into a block now: it was appended behind that. Tickets rise from call to call.
    pub(super) fn since(&mut self, ticket: Ticket, now_us: u64) -> u64 {
        while self.marks.get(1).is_some_and(|(last, _)| *last < ticket) {
            self.marks.pop_front();
        }
        self.marks.front().map_or(now_us, |(_, at_us)| *at_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_while_there_is_no_room_is_as_old_as_that() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.since(1, 500), 500, "there was room");
        waiting.no_room(3, 1_000, 100);
        waiting.no_room(3, 1_050, 100);
        waiting.no_room(5, 1_120, 100);
        waiting.no_room(9, 1_200, 100);
        waiting.no_room(20, 1_400, 100);
        // Appended before all moments, and between them.
        assert_eq!(
            [3, 4, 9, 10, 20, 21].map(|ticket| waiting.since(ticket, 2_000)),
            [1_000, 1_000, 1_120, 1_120, 1_120, 1_400]
        );
        waiting.nothing_waits();
        assert_eq!(waiting.since(22, 2_100), 2_100);
    }

    #[test]
    fn what_waits_grows_old_also_if_nothing_comes() {
        let mut waiting = Waiting::default();
        [3_000, 3_050, 3_200, 5_000].into_iter().for_each(|now_us| waiting.no_room(30, now_us, 100));
        assert_eq!(waiting.since(30, 6_000), 3_000);
        assert_eq!(waiting.since(31, 6_000), 5_000, "it has come since");
    }

    #[test]
    fn moments_are_bounded_and_what_comes_behind_is_not_taken_for_younger() {
        let mut waiting = Waiting::default();
        (1..10_000).for_each(|at| waiting.no_room(at, 1_000 * at, 100));
        assert_eq!(waiting.marks.len(), MARKS_MAX);
        assert_eq!(waiting.since(9_999, 20_000_000), 1_000 * MARKS_MAX as u64);
    }
}
