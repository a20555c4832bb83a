//! Waking a thread of the store: from any thread, under any lock, without ever being missed.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// One thread waits, others notify. A notification before the wait ends that wait at once.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    condvar: Condvar,
}

impl Signal {
    pub(crate) fn notify(&self) {
        let mut raised = self.raised.lock();
        if !*raised {
            *raised = true;
            self.condvar.notify_all();
        }
    }

    /// Whether a wait would end at once, which the next one would not any more.
    #[cfg(test)]
    pub(crate) fn was_raised(&self) -> bool {
        std::mem::take(&mut *self.raised.lock())
    }

    /// Waits for a notification, at most this long.
    pub(crate) fn wait(&self, at_most: Option<Duration>) {
        let mut raised = self.raised.lock();
        if !*raised {
            match at_most {
                Some(timeout) => {
                    self.condvar.wait_for(&mut raised, timeout);
                }
                None => self.condvar.wait(&mut raised),
            }
        }
        *raised = false;
    }
}

/// What a step of a state machine says about the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Something was done, and there may be more to do now.
    Again,
    /// Nothing to do before this time of the monotonic clock, unless something new comes in.
    Until(u64),
    /// Nothing to do until something new comes in.
    Idle,
}

impl Step {
    /// The one that comes first.
    pub fn or(self, other: Step) -> Step {
        match (self, other) {
            (Step::Again, _) | (_, Step::Again) => Step::Again,
            (Step::Until(a), Step::Until(b)) => Step::Until(a.min(b)),
            (Step::Until(at), Step::Idle) | (Step::Idle, Step::Until(at)) => Step::Until(at),
            (Step::Idle, Step::Idle) => Step::Idle,
        }
    }
}
