//! What was appended and is not durable yet, and who waits for it.
//!
//! Appenders push on I/O threads, under the lock of a lane; the writer takes everything at once. Sessions register for
//! tickets. Nothing here touches a disk, and no lock here is held while anybody else is called.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_format::SegmentId;
use kera_log::{ChunkReference, Observer, Ticket};
use parking_lot::{Condvar, Mutex};

/// Chunks that follow one another in a segment.
pub(crate) struct Pending {
    /// The first chunk's place, the bytes of all, the last one's ordinal.
    pub(crate) reference: ChunkReference,
    /// Chunks in it: as many tickets.
    pub(crate) chunks: u32,
}

/// See the module.
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    /// Signalled when the writer sleeps and there is something for it.
    arrived: Condvar,
    durable: AtomicU64,
    waiters: Mutex<Waiters>,
    /// Neighbouring chunks of a segment become one reference up to this many bytes.
    merged_bytes_max: u32,
}

struct Queue {
    pending: VecDeque<Pending>,
    bytes: u64,
    last_ticket: Ticket,
    /// Segments that need not be kept, with the last ticket at that moment.
    safe: Vec<(SegmentId, Ticket)>,
    /// Segments of which a start has left out something.
    given_again: HashSet<SegmentId>,
    writer_sleeps: bool,
    /// The writer has something to do that is not in here.
    nudged: bool,
    stopping: bool,
}

/// Who waits, and the token that it gave.
type Waiter = (Weak<dyn Observer>, u64);

#[derive(Default)]
struct Waiters {
    by_ticket: BTreeMap<Ticket, Vec<Waiter>>,
    count: usize,
    /// When there are this many, those that were dropped are looked for, and those that are there twice.
    sweep_at: usize,
}

/// How much waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) references: usize,
    pub(crate) bytes: u64,
}

impl Backlog {
    pub(crate) fn new(merged_bytes_max: u32) -> Backlog {
        let queue = Queue {
            pending: VecDeque::new(),
            bytes: 0,
            last_ticket: 0,
            safe: Vec::new(),
            given_again: HashSet::new(),
            writer_sleeps: false,
            nudged: false,
            stopping: false,
        };
        Backlog {
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            durable: AtomicU64::new(0),
            waiters: Mutex::new(Waiters::default()),
            merged_bytes_max,
        }
    }

    /// Takes a chunk and gives it the next ticket.
    pub(crate) fn push(&self, reference: ChunkReference) -> (Ticket, Depth) {
        let mut queue = self.queue.lock();
        queue.last_ticket += 1;
        queue.bytes += u64::from(reference.bytes);
        match queue.pending.back_mut() {
            Some(last) if last.takes(&reference, self.merged_bytes_max) => {
                last.reference.bytes += reference.bytes;
                last.reference.next_ordinal = reference.next_ordinal;
                last.chunks += 1;
            }
            _ => queue.pending.push_back(Pending { reference, chunks: 1 }),
        }
        let depth = Depth { references: queue.pending.len(), bytes: queue.bytes };
        let ticket = queue.last_ticket;
        self.wake_writer(queue);
        (ticket, depth)
    }

    /// The last ticket that was given.
    pub(crate) fn last_ticket(&self) -> Ticket {
        self.queue.lock().last_ticket
    }

    /// Notes that a segment need not be kept. It counts once everything that was appended so far is durable: until then
    /// chunks of a deleted stream may still be on their way into a file.
    pub(crate) fn note_safe(&self, id: SegmentId) {
        let mut queue = self.queue.lock();
        let last_ticket = queue.last_ticket;
        queue.safe.push((id, last_ticket));
        // Files wait for this only when space is short, so the writer is not woken for every one of them.
        if queue.safe.len().is_multiple_of(64) {
            self.wake_writer(queue);
        }
    }

    /// Notes that a start has left out some of a segment, or all of it.
    pub(crate) fn note_given_again(&self, id: SegmentId) {
        self.queue.lock().given_again.insert(id);
    }

    /// The segments of which a start has left out something, once.
    pub(crate) fn take_given_again(&self) -> HashSet<SegmentId> {
        std::mem::take(&mut self.queue.lock().given_again)
    }

    /// Tells the writer to finish.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.arrived.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.queue.lock().stopping
    }

    fn wake_writer(&self, mut queue: parking_lot::MutexGuard<'_, Queue>) {
        if std::mem::take(&mut queue.writer_sleeps) {
            drop(queue);
            self.arrived.notify_one();
        }
    }

    /// Wakes the writer, or has its next sleep end at once: something has happened that is not in here.
    pub(crate) fn nudge(&self) {
        self.queue.lock().nudged = true;
        self.arrived.notify_one();
    }

    /// Everything that waits goes to `taken`, which is empty, and whose memory is used for what comes next. How many bytes that are.
    pub(crate) fn take(&self, taken: &mut VecDeque<Pending>) -> u64 {
        let mut queue = self.queue.lock();
        std::mem::swap(&mut queue.pending, taken);
        std::mem::take(&mut queue.bytes)
    }

    /// The segments that need not be kept and whose chunks have all arrived.
    pub(crate) fn take_safe(&self) -> Vec<SegmentId> {
        let durable = self.durable_through();
        let mut queue = self.queue.lock();
        if queue.safe.is_empty() {
            return Vec::new();
        }
        let (ready, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut queue.safe).into_iter().partition(|(_, ticket)| *ticket <= durable);
        queue.safe = later;
        ready.into_iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn depth(&self) -> Depth {
        let queue = self.queue.lock();
        Depth { references: queue.pending.len(), bytes: queue.bytes }
    }

    /// The writer sleeps until something arrives, `timeout` is over, or it is to stop. With `for_more`, what waits
    /// already does not count: the disk is not ready for it.
    pub(crate) fn sleep(&self, timeout: Duration, for_more: bool) {
        let mut queue = self.queue.lock();
        if queue.stopping || std::mem::take(&mut queue.nudged) || (!for_more && !queue.pending.is_empty()) {
            return;
        }
        queue.writer_sleeps = !for_more;
        self.arrived.wait_for(&mut queue, timeout);
        (queue.writer_sleeps, queue.nudged) = (false, false);
    }

    pub(crate) fn durable_through(&self) -> Ticket {
        self.durable.load(Ordering::Acquire)
    }

    /// Registers an observer, once. False if the ticket is durable already.
    ///
    /// No wake-up is lost: [`advance`](Backlog::advance) stores first and takes the waiters second, both it and this
    /// function look at the waiters under their lock. If this function has the lock first, its entry is there when
    /// `advance` takes the waiters. If it has the lock second, the store happened before, the lock makes it visible,
    /// and the second look below finds it.
    pub(crate) fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        if self.durable_through() >= ticket {
            return false;
        }
        let mut waiters = self.waiters.lock();
        if self.durable_through() >= ticket {
            return false;
        }
        waiters.add(ticket, Arc::downgrade(observer), token);
        true
    }

    /// Everything up to `through` is durable: says so, then calls who waits for it, in the order of their tickets.
    pub(crate) fn advance(&self, through: Ticket) {
        self.durable.store(through, Ordering::Release);
        let woken = self.waiters.lock().take_through(through);
        for (observer, token) in woken.into_values().flatten() {
            if let Some(observer) = observer.upgrade() {
                observer.advanced(token);
            }
        }
    }
}

impl Backlog {
    /// Calls all who wait: what they wait for never comes.
    pub(crate) fn wake_waiters(&self) {
        let woken = self.waiters.lock().take_through(Ticket::MAX - 1);
        for (observer, token) in woken.into_values().flatten() {
            if let Some(observer) = observer.upgrade() {
                observer.advanced(token);
            }
        }
    }
}

impl Pending {
    fn takes(&self, next: &ChunkReference, bytes_max: u32) -> bool {
        let reference = &self.reference;
        reference.is_followed_by(next) && reference.bytes.saturating_add(next.bytes) <= bytes_max
    }
}

impl Waiters {
    fn add(&mut self, ticket: Ticket, observer: Weak<dyn Observer>, token: u64) {
        if self.count >= self.sweep_at {
            // Observers that went away while the disk was stuck: connections come and go meanwhile. And those that asked again since they were woken by something else.
            self.by_ticket.retain(|_, list| {
                let mut seen = HashSet::with_capacity(list.len());
                list.retain(|(observer, token)| {
                    observer.strong_count() > 0 && seen.insert((observer.as_ptr().addr(), *token))
                });
                !list.is_empty()
            });
            self.count = self.by_ticket.values().map(Vec::len).sum();
            self.sweep_at = (2 * self.count).max(1024);
        }
        self.by_ticket.entry(ticket).or_default().push((observer, token));
        self.count += 1;
    }

    fn take_through(&mut self, through: Ticket) -> BTreeMap<Ticket, Vec<Waiter>> {
        let later = self.by_ticket.split_off(&(through + 1));
        let woken = std::mem::replace(&mut self.by_ticket, later);
        self.count = self.by_ticket.values().map(Vec::len).sum();
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Calls(AtomicU64);

    impl Observer for Calls {
        fn advanced(&self, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_asks_again_while_a_disk_stands_still_does_not_fill_the_memory() {
        let backlog = Backlog::new(1);
        let calls: [Arc<Calls>; 3] = Default::default();
        let observers = calls.clone().map(|calls| calls as Arc<dyn Observer>);
        for at in 0..100_000 {
            assert!(backlog.wait(1 + at as u64 % 2, &observers[at % 3], 0));
        }
        let kept = |backlog: &Backlog| backlog.waiters.lock().by_ticket.values().map(Vec::len).sum::<usize>();
        assert!(kept(&backlog) <= 1024, "{}", kept(&backlog));
        backlog.advance(2);
        assert!(calls.iter().all(|calls| calls.0.load(Ordering::Relaxed) > 0));
        assert_eq!(kept(&backlog), 0);
    }
}
