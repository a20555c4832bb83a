//! What waits in the outboxes of all connections of a server: how many bytes of memory of its own it takes, and which
//! connections have not taken theirs for longest.
//!
//! Outboxes count themselves on the I/O threads of their connections. Data of segments is not counted: it is the log's, and
//! [copied](crate::Outbox::detach) out of it only if it is not taken soon.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Outbox, SessionWaker};

/// What has lain in an outbox for so long is not taken soon: a peer that reads has it within a fraction of that.
const TAKEN_SOON: Duration = Duration::from_secs(1);

/// The bound on the memory of its own that a server's outboxes take together.
///
/// A connection's own bound is not enough: a thousand connections that ask and never read would have a thousand times as much.
/// Beyond the sum a connection that has anything in its outbox counts as full, so that nothing more is made for it before that
/// has left. So whoever reads is served, one answer after the other, and the sum is passed by one answer of each connection at
/// most. What is copied out of segments does not pass it: the connection that has taken nothing for longest is
/// [closed](Unsent::close_first) for it.
#[derive(Debug)]
pub(crate) struct Unsent {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Connections that are slow to take what waits for them, by when it was there, and their numbers.
    line: Mutex<BTreeMap<(Instant, u64), Slow>>,
}

#[derive(Debug)]
struct Slow {
    is_to_close: Arc<AtomicBool>,
    waker: SessionWaker,
}

impl Unsent {
    pub(crate) fn new(bytes_max: usize) -> Arc<Unsent> {
        Arc::new(Unsent { bytes: AtomicUsize::new(0), bytes_max, line: Mutex::default() })
    }

    /// Whether there is no more than one answer for each connection.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max
    }

    /// An outbox that was counted with `before` bytes has `now`.
    pub(crate) fn count(&self, before: usize, now: usize) {
        if now > before {
            self.bytes.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Counts so many bytes more, unless that passes the sum.
    pub(crate) fn try_add(&self, bytes: usize) -> bool {
        let added = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn line(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Slow>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line_up(self: &Arc<Self>, since: Instant, connection: u64, waker: &SessionWaker) -> InLine {
        let is_to_close = Arc::new(AtomicBool::new(false));
        let slow = Slow { is_to_close: Arc::clone(&is_to_close), waker: waker.clone() };
        self.line().insert((since, connection), slow);
        InLine { unsent: Arc::clone(self), at: (since, connection), is_to_close }
    }

    /// Has the connection closed whose outbox has waited longest. One at a time: until it is gone it stays the first.
    pub(crate) fn close_first(&self) {
        if let Some((_, first)) = self.line().first_key_value() {
            first.is_to_close.store(true, Ordering::Release);
            first.waker.wake();
        }
    }
}

/// A connection's place among those that are slow; dropped, it is given up.
#[derive(Debug)]
struct InLine {
    unsent: Arc<Unsent>,
    at: (Instant, u64),
    is_to_close: Arc<AtomicBool>,
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.unsent.line().remove(&self.at);
    }
}

/// How a peer takes what waits for it: all that waited at one time, until the last byte of it has left.
///
/// What comes behind it leaves later still. So one time is enough to tell of the whole outbox, and bytes that leave one by one
/// do not move it.
#[derive(Debug)]
pub(crate) struct Taking {
    pub(crate) since: Instant,
    pub(crate) bytes: usize,
    /// Its end among all bytes of the connection.
    end: u64,
    /// When to see again whether something of it belongs to segments.
    look_at: Instant,
    in_line: Option<InLine>,
}

impl Taking {
    /// What waits now.
    pub(crate) fn new(out: &Outbox, now: Instant) -> Taking {
        let bytes = out.queued_bytes();
        Taking { since: now, bytes, end: out.left_bytes() + bytes as u64, look_at: now + TAKEN_SOON, in_line: None }
    }

    /// Whether all of it has left.
    #[inline]
    pub(crate) fn is_over(&self, out: &Outbox) -> bool {
        out.left_bytes() >= self.end
    }

    /// When [`look`](Taking::look) is due.
    pub(crate) fn look_at(&self, out: &Outbox) -> Option<Instant> {
        (self.in_line.is_none() || out.has_shared()).then_some(self.look_at)
    }

    /// It was not taken soon: lets go of what the outbox keeps of segments, and stands in line for the case that somebody has to
    /// go for that.
    pub(crate) fn look(&mut self, out: &mut Outbox, now: Instant, unsent: &Arc<Unsent>, who: (u64, &SessionWaker)) {
        self.look_at = now + TAKEN_SOON;
        self.in_line.get_or_insert_with(|| unsent.line_up(self.since, who.0, who.1));
        if out.has_shared() && !out.detach() {
            unsent.close_first();
        }
    }

    /// Whether the connection is to be closed, so that others get room.
    pub(crate) fn is_to_close(&self) -> bool {
        self.in_line.as_ref().is_some_and(|in_line| in_line.is_to_close.load(Ordering::Acquire))
    }
}

/// How long so many bytes may take on a connection that may stand still for `stall_timeout`.
pub(crate) fn time_for(bytes: usize, stall_timeout: Duration, bytes_per_s: u64) -> Duration {
    stall_timeout + Duration::from_millis((bytes as u64).saturating_mul(1_000) / bytes_per_s.max(1))
}
