//! What is well if it passes soon, and is to be said if it does not.

/// Since when something has been so without a break, and when that was said last. Time is what the caller gives, in microseconds of one monotonic clock
/// ([`Clock::monotonic_us`](crate::Clock::monotonic_us)); nothing here reads one. Not shared between threads.
///
/// It is said when it has lasted for a time that is given once, then again each time as long, and once when it is over, if it was said at all. A break, however short,
/// begins it anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lasting {
    after_us: u64,
    since_us: Option<u64>,
    said_us: Option<u64>,
}

/// What is to be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasts {
    /// It has been so for so long, in microseconds.
    For(u64),
    /// It was said to last, and is not so any more.
    Over,
}

impl Lasting {
    /// Something that is not so yet, and is to be said when it has lasted for `after_us` microseconds.
    pub const fn new(after_us: u64) -> Lasting {
        Lasting { after_us, since_us: None, said_us: None }
    }

    /// It is so now, or it is not: what is to be said, if something is. Between two looks it counts as it was at the first of them. A time before that of an earlier look counts as
    /// that one.
    pub fn look(&mut self, is_so: bool, now_us: u64) -> Option<Lasts> {
        if !is_so {
            self.since_us = None;
            return self.said_us.take().map(|_| Lasts::Over);
        }
        let since_us = *self.since_us.get_or_insert(now_us);
        if now_us.saturating_sub(self.said_us.unwrap_or(since_us)) < self.after_us {
            return None;
        }
        self.said_us = Some(now_us);
        Some(Lasts::For(now_us.saturating_sub(since_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_soon_is_not_said_and_what_lasts_is_said_again_and_again_and_when_it_is_over() {
        let mut lasting = Lasting::new(10);
        let mut at = |now_us, is_so| lasting.look(is_so, now_us);
        assert_eq!([at(5, false), at(100, true), at(109, true), at(109, false)], [None; 4], "it passes");
        assert_eq!([at(112, true), at(121, true)], [None; 2], "it begins anew");
        assert_eq!([at(122, true), at(131, true), at(133, true)], [Some(Lasts::For(10)), None, Some(Lasts::For(21))]);
        assert_eq!([at(134, false), at(135, false)], [Some(Lasts::Over), None]);
        assert_eq!([at(136, true), at(145, true), at(146, true)], [None, None, Some(Lasts::For(10))], "as at first");
    }

    #[test]
    fn a_look_that_comes_late_says_for_how_long_it_has_been_so() {
        let mut lasting = Lasting::new(10);
        assert_eq!(lasting.look(true, 7), None);
        assert_eq!(lasting.look(true, 1_007), Some(Lasts::For(1_000)));
        assert_eq!(lasting.look(true, 3), None, "a time before that says nothing");
        assert_eq!(lasting.look(true, 1_017), Some(Lasts::For(1_010)));
    }
}
