//! Says in the node's log for which limit a request was refused where its answer has a code alone: clients make `POLICY_VIOLATION` of it, and nobody
//! could find out what to change. And what else clients can have happen again and again is said so often at most.

use std::time::{Duration, Instant};

use kera_coordinator::CoordinatorError;
use parking_lot::Mutex;

/// A client that asks again and again does not fill the log.
const EVERY: Duration = Duration::from_secs(1);

static SAID: Mutex<Said> = Mutex::new(Said { at: None, suppressed: 0 });

/// When something was said last that clients can have happen again and again, and how often it was not since then.
#[derive(Default)]
pub(crate) struct Said {
    at: Option<Instant>,
    suppressed: u64,
}

impl Said {
    /// How often it was not said since the last time, if it may be now.
    pub(crate) fn say(&mut self, now: Instant) -> Option<u64> {
        if self.at.is_some_and(|last| now < last + EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A request about `of`, a group or a transactional id, was refused: there may be `limit` of `what` and no more. Logged once a second at most.
pub(crate) fn tell(what: &str, of: &str, limit: usize) {
    let Some(suppressed) = SAID.lock().say(Instant::now()) else { return };
    tracing::warn!(of, what, limit, suppressed, "a Kafka client was refused for a limit that its answer cannot name");
}

static NO_ID_SAID: Mutex<Said> = Mutex::new(Said { at: None, suppressed: 0 });

/// The catalog gives no id for a transactional producer, which asks again. Logged once a second at most.
pub(crate) fn tell_no_id(error: &CoordinatorError) {
    let Some(suppressed) = NO_ID_SAID.lock().say(Instant::now()) else { return };
    tracing::warn!(%error, suppressed, "there is no id for a transactional producer");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_in_a_second_and_then_how_often_it_was_not() {
        let (mut said, now) = (Said { at: None, suppressed: 0 }, Instant::now());
        assert_eq!([now, now, now + EVERY / 2].map(|at| said.say(at)), [Some(0), None, None]);
        assert_eq!([now + EVERY, now + EVERY].map(|at| said.say(at)), [Some(2), None]);
    }
}
