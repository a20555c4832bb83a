//! What waits in the outboxes of all connections of a server: how many bytes of memory of its own it takes, and which
//! connections take theirs too slowly.
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
/// A peer may stand still for so long before it counts as too slow, or for as long as it may take for a [piece](PIECE_BYTES) if that is longer.
const STANDS_STILL_MAX: Duration = Duration::from_secs(5);
/// The socket tells of bytes that are taken in pieces of up to a third of its buffer, which has 4 MiB: on a line of a few Mbit/s there are seconds
/// between them.
const PIECE_BYTES: usize = 1536 << 10;

/// The bound on the memory of its own that a server's outboxes take together.
///
/// A connection's own bound is not enough: a thousand connections that ask and never read would have a thousand times as much.
/// Beyond the sum a connection that has anything in its outbox counts as full, so that nothing more is made for it before that
/// has left. So whoever reads is served, one answer after the other, and the sum is passed by one answer of each connection at
/// most.
///
/// What is copied out of segments does not pass it. Where there is no room for all of that, the rest stays in the segments and is
/// looked at again, and of the connections that are [too slow](Taking::is_slow_from) the one that has taken nothing for longest
/// is [closed](Unsent::close_first); where one has more than all may have, no other makes room for it, and it goes itself if it is too slow. Nobody
/// else is closed: a healthy reader has an answer of many megabytes for longer than a
/// [moment](TAKEN_SOON), and closed for it would ask for the same one again, for ever. All the same no segment is kept for good:
///
/// - one that is too slow stands in line and goes, if not at once then by one of the looks that follow, each of which has one
///   closed while there is no room;
/// - one that is not has taken so many bytes per second since what waits was first seen, and while the outbox finds no room all
///   of that has to leave within the time that its size sets.
#[derive(Debug)]
pub(crate) struct Unsent {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Connections that are too slow to take what waits for them, by when they last took something, and their numbers.
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

    fn line_up(self: &Arc<Self>, took_at: Instant, connection: u64, waker: &SessionWaker) -> InLine {
        let is_to_close = Arc::new(AtomicBool::new(false));
        let slow = Slow { is_to_close: Arc::clone(&is_to_close), waker: waker.clone() };
        self.line().insert((took_at, connection), slow);
        InLine { unsent: Arc::clone(self), at: (took_at, connection), is_to_close }
    }

    /// Has the connection closed that is too slow and has taken nothing for longest, if one is. One at a time: until it is gone,
    /// or has taken something, it stays the first.
    fn close_first(&self) {
        if let Some((_, first)) = self.line().first_key_value() {
            first.is_to_close.store(true, Ordering::Release);
            first.waker.wake();
        }
    }
}

/// A connection's place among those that are too slow; dropped, it is given up.
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
    /// When to see again how slow it is, and whether something of the outbox belongs to segments.
    look_at: Instant,
    in_line: Option<InLine>,
    found_no_room: bool,
}

impl Taking {
    /// What waits now.
    pub(crate) fn new(out: &Outbox, now: Instant) -> Taking {
        let bytes = out.queued_bytes();
        let end = out.left_bytes() + bytes as u64;
        Taking { since: now, bytes, end, look_at: now + TAKEN_SOON, in_line: None, found_no_room: false }
    }

    /// Whether all of it has left.
    #[inline]
    pub(crate) fn is_over(&self, out: &Outbox) -> bool {
        out.left_bytes() >= self.end
    }

    /// From when on the peer is too slow if it takes nothing more: what it has taken would have been there long before at
    /// `bytes_per_s`.
    pub(crate) fn is_slow_from(&self, out: &Outbox, bytes_per_s: u64) -> Instant {
        let waited = self.end - self.bytes as u64;
        let still_max = STANDS_STILL_MAX.max(time_for(PIECE_BYTES, Duration::ZERO, bytes_per_s));
        self.since + time_for((out.left_bytes() - waited) as usize, still_max, bytes_per_s)
    }

    /// When [`look`](Taking::look) is due.
    pub(crate) fn look_at(&self) -> Instant {
        self.look_at
    }

    /// It was not taken soon: lets go of what the outbox keeps of segments. `slow_since`: when the peer last took something, if it
    /// is too slow; then it stands in line for the case that somebody has to go for that.
    pub(crate) fn look(
        &mut self,
        out: &mut Outbox,
        now: Instant,
        slow_since: Option<Instant>,
        unsent: &Arc<Unsent>,
        (connection, waker): (u64, &SessionWaker),
    ) {
        self.look_at = now + TAKEN_SOON;
        if self.in_line.as_ref().map(|in_line| in_line.at.0) != slow_since {
            self.in_line = slow_since.map(|took_at| unsent.line_up(took_at, connection, waker));
        }
        self.found_no_room = out.has_shared() && !out.detach();
        if !self.found_no_room {
            return;
        }
        if out.all_bytes() <= unsent.bytes_max {
            unsent.close_first();
        } else if let Some(in_line) = &self.in_line {
            in_line.is_to_close.store(true, Ordering::Release);
        }
    }

    /// Whether the outbox keeps segments because there was no room to copy what it has of them.
    pub(crate) fn found_no_room(&self) -> bool {
        self.found_no_room
    }

    /// Whether the connection is to be closed, so that others get room.
    pub(crate) fn is_to_close(&self) -> bool {
        self.in_line.as_ref().is_some_and(|in_line| in_line.is_to_close.load(Ordering::Acquire))
    }
}

/// How long so many bytes may take on a connection that may stand still for `still_max`.
pub(crate) fn time_for(bytes: usize, still_max: Duration, bytes_per_s: u64) -> Duration {
    still_max + Duration::from_millis((bytes as u64).saturating_mul(1_000) / bytes_per_s.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::FrameHeader;

    fn waiting(bytes: usize) -> Outbox {
        let mut out = Outbox::new(1);
        let mut frame = out.begin(&FrameHeader::default());
        frame.attach_own(vec![0; bytes].into());
        frame.finish();
        out
    }

    /// Linux tells of a full buffer of 4 MiB when a third of it is free.
    #[test]
    fn who_takes_more_than_the_least_is_not_too_slow_between_two_pieces() {
        for bytes_per_s in [64 << 10, 1 << 20, 64 << 20] {
            let (mut out, now) = (waiting(64 << 20), Instant::now());
            let taking = Taking::new(&out, now);
            let piece = (4 << 20) / 3;
            for count in 1..40 {
                let comes_at = now + time_for(count * piece, Duration::ZERO, bytes_per_s);
                assert!(taking.is_slow_from(&out, bytes_per_s) > comes_at, "piece {count}");
                out.advance(piece);
            }
        }
    }

    #[test]
    fn who_takes_nothing_is_too_slow_after_the_time_for_a_piece() {
        let (out, now) = (waiting(1 << 20), Instant::now());
        let still = |bytes_per_s| Taking::new(&out, now).is_slow_from(&out, bytes_per_s) - now;
        assert_eq!([64 << 10, 1 << 20].map(still), [24, 5].map(Duration::from_secs));
    }
}
