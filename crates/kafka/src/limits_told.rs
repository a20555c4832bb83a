//! Says in the node's log for which limit a request was refused where its answer has a code alone: clients make `POLICY_VIOLATION` of it, and nobody
//! could find out what to change.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A client that asks again and again does not fill the log.
const EVERY: Duration = Duration::from_secs(1);

/// When it was said last, and how often it was not since then.
static SAID: Mutex<(Option<Instant>, u64)> = Mutex::new((None, 0));

/// A request about `of`, a group or a transactional id, was refused: there may be `limit` of `what` and no more. Logged once a second at most.
pub(crate) fn tell(what: &str, of: &str, limit: usize) {
    let now = Instant::now();
    let mut said = SAID.lock();
    if said.0.is_some_and(|last| now < last + EVERY) {
        said.1 += 1;
        return;
    }
    let suppressed = std::mem::take(&mut said.1);
    said.0 = Some(now);
    drop(said);
    tracing::warn!(of, what, limit, suppressed, "a Kafka client was refused for a limit that its answer cannot name");
}
