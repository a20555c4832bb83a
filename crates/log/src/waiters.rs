//! Being called back, once: when a lane has moved, when the arena has room again.
//!
//! The broker's sessions wait here. A registration is one-shot and weak: it goes when it fires, and an observer that was
//! dropped is forgotten. Call-backs run on whatever thread made the change: those of a lane with no lock held, those of the
//! arena possibly under a lane's lock.
//!
//! # No wake-up is lost
//!
//! Whoever waits says in which state (a version) it found nothing. The version, the list of waiters and the check are under
//! one lock, and every change first makes itself visible, then takes that lock, raises the version and takes the list. So
//! either the change's turn comes first, and the waiter is told at once that its version is old; or the waiter is on the list
//! when the change takes it. There is no third case, and nobody needs to look again after registering.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

/// Something that can be told to look again. A session of the broker is one.
pub trait Observer: Send + Sync {
    /// What was waited for may have happened. `token` is what the observer gave when it registered.
    ///
    /// Runs on the thread that made the change (an appender, a virtual log's writer, a loader): note it, wake somebody, and
    /// return. It must not call the log here, since a lock may be held. May be called without need.
    fn advanced(&self, token: u64);
}

/// A state of a lane: it changes whenever a reader could see something else than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneVersion(pub(crate) u64);

/// A state of the arena: it changes whenever a block is given back, or, for who has found none of that, when the machine may have memory for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceVersion {
    pub(crate) version: u64,
    pub(crate) of_memory: bool,
}

struct Waiter {
    observer: Weak<dyn Observer>,
    token: u64,
}

/// Registrations below this number are kept as they come, doubles included.
const PURGE_AT_LEAST: usize = 32;

/// Who waits, in the order of registration. Lives under the lock of what is waited for.
///
/// One waiter, the usual case, takes no memory of its own. A session that waits for many lanes registers again and again at
/// those that stay silent; its doubles, and the dropped ones, are thrown out whenever the list has doubled, so that the
/// list stays within twice the number of those who really wait, at constant cost per registration.
#[derive(Default)]
pub struct Waiters {
    first: Option<Waiter>,
    more: Vec<Waiter>,
    purge_at: usize,
}

impl Waiters {
    /// Has an observer called once, when those who wait are taken.
    pub fn push(&mut self, observer: &Arc<dyn Observer>, token: u64) {
        let waiter = Waiter { observer: Arc::downgrade(observer), token };
        if self.first.is_none() {
            self.first = Some(waiter);
            return;
        }
        self.more.push(waiter);
        if self.more.len() >= self.purge_at.max(PURGE_AT_LEAST) {
            let mut seen = HashSet::with_capacity(self.more.len());
            self.more.retain(|w| w.observer.strong_count() > 0 && seen.insert((w.observer.as_ptr().addr(), w.token)));
            self.purge_at = self.more.len() * 2;
        }
    }

    /// Takes a registration back, with its doubles.
    pub fn remove(&mut self, observer: &Arc<dyn Observer>, token: u64) {
        let observer = Arc::downgrade(observer);
        let is_it = |w: &Waiter| w.token == token && w.observer.as_ptr().addr() == observer.as_ptr().addr();
        self.more.retain(|w| !is_it(w));
        if self.first.as_ref().is_some_and(is_it) {
            self.first = (!self.more.is_empty()).then(|| self.more.remove(0));
        }
    }

    /// Registrations, those included that are gone or doubles and were not thrown out yet.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Everybody who waits, to be called once the lock is released.
    #[inline]
    pub fn take(&mut self) -> Wake {
        if self.is_empty() {
            return Wake(Waiters::default());
        }
        Wake(std::mem::take(self))
    }
}

/// Waiters that are due.
#[derive(Default)]
#[must_use = "those who wait are called by `call`"]
pub struct Wake(Waiters);

impl Wake {
    /// Calls them. Not under a lock.
    #[inline]
    pub fn call(self) {
        if let Some(first) = self.0.first {
            for waiter in std::iter::once(first).chain(self.0.more) {
                if let Some(observer) = waiter.observer.upgrade() {
                    observer.advanced(waiter.token);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts its calls.
    #[derive(Default)]
    pub(crate) struct Counter(pub(crate) AtomicU64);

    impl Counter {
        pub(crate) fn pair() -> (Arc<Counter>, Arc<dyn Observer>) {
            let counter = Arc::new(Counter::default());
            (Arc::clone(&counter), counter)
        }
        pub(crate) fn calls(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    impl Observer for Counter {
        fn advanced(&self, _: u64) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_registration_fires_once() {
        let mut waiters = Waiters::default();
        let (counter, observer) = Counter::pair();
        waiters.push(&observer, 1);
        waiters.push(&observer, 2);
        waiters.take().call();
        assert_eq!(counter.calls(), 2);
        waiters.take().call();
        assert_eq!(counter.calls(), 2);
        assert!(waiters.is_empty());
    }

    #[test]
    fn the_dropped_are_forgotten_and_doubles_do_not_pile_up() {
        let mut waiters = Waiters::default();
        let (counter, observer) = Counter::pair();
        for round in 0..10_000 {
            waiters.push(&observer, round % 40);
            let (_, gone) = Counter::pair();
            waiters.push(&gone, 0);
        }
        assert!(waiters.more.len() < 2 * 40 + PURGE_AT_LEAST, "{}", waiters.more.len());
        waiters.take().call();
        assert!((40..200).contains(&counter.calls()), "{}", counter.calls());
    }
}
