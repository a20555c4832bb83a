//! What a session has promised to come back to: reads that wait, subscriptions, requests that are tried again.
//!
//! Each has a number that stays the same while it waits; lanes and applications call back with it.

use kera_protocol::{FrameHeader, Op};

use crate::read::WaitingRead;
use crate::subscribe::Subscription;

/// A request that is tried again when something it needs has moved: as a whole, from its bytes. For rare operations.
pub(crate) struct Retry {
    pub(crate) op: Op,
    pub(crate) request: FrameHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) deadline_us: u64,
    /// Slots of the lanes that it waits for.
    pub(crate) slots: Vec<u32>,
}

/// Something that waits.
pub(crate) enum Waiter {
    Read(WaitingRead),
    Subscription(Subscription),
    Retry(Retry),
}

impl Waiter {
    /// When it is answered in any case.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        match self {
            Waiter::Read(read) => read.deadline_us(),
            Waiter::Subscription(_) => None,
            Waiter::Retry(retry) => Some(retry.deadline_us),
        }
    }

    fn is_held_back(&self) -> bool {
        matches!(self, Waiter::Read(read) if read.is_held_back())
    }

    /// Entries that count against the connection's limit.
    fn entries(&self) -> usize {
        match self {
            Waiter::Read(read) => read.entries.list.len(),
            Waiter::Subscription(subscription) => subscription.entries.list.len(),
            Waiter::Retry(_) => 0,
        }
    }

    /// Bytes of a request that is kept to be tried again.
    fn kept_bytes(&self) -> usize {
        match self {
            Waiter::Retry(retry) => retry.body.len(),
            Waiter::Read(_) | Waiter::Subscription(_) => 0,
        }
    }
}

/// The waiters of one session by number.
#[derive(Default)]
pub(crate) struct Waiters {
    slots: Vec<Option<Waiter>>,
    free: Vec<u32>,
    /// Of all that wait, out ones included.
    entries: usize,
    subscriptions: usize,
    /// Bytes of the requests that are kept to be tried again.
    kept_bytes: usize,
    /// Reads that the outbox had no room for.
    held_back: usize,
}

impl Waiters {
    /// A number for something that will wait. Ends with [`release`](Waiters::release).
    pub(crate) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        })
    }

    /// Puts a waiter at a number that was reserved or taken.
    pub(crate) fn put(&mut self, number: u32, waiter: Waiter) {
        self.entries += waiter.entries();
        self.subscriptions += usize::from(matches!(waiter, Waiter::Subscription(_)));
        self.kept_bytes += waiter.kept_bytes();
        self.held_back += usize::from(waiter.is_held_back());
        self.slots[number as usize] = Some(waiter);
    }

    /// Takes a waiter out to work on it; its number stays reserved.
    pub(crate) fn take(&mut self, number: u32) -> Option<Waiter> {
        let waiter = self.slots.get_mut(number as usize)?.take()?;
        self.entries -= waiter.entries();
        self.subscriptions -= usize::from(matches!(waiter, Waiter::Subscription(_)));
        self.kept_bytes -= waiter.kept_bytes();
        self.held_back -= usize::from(waiter.is_held_back());
        Some(waiter)
    }

    /// Looks at a waiter. Whether it is held back is changed only while it is taken out, for those are counted.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Waiter> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Gives a number back whose waiter was taken.
    pub(crate) fn release(&mut self, number: u32) {
        debug_assert!(self.slots[number as usize].is_none());
        self.free.push(number);
    }

    /// All that wait, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Waiter)> {
        self.slots.iter().enumerate().filter_map(|(number, waiter)| Some((number as u32, waiter.as_ref()?)))
    }

    /// Requests that wait, subscriptions not counted.
    pub(crate) fn waiting(&self) -> usize {
        self.slots.len() - self.free.len() - self.subscriptions
    }

    /// Subscriptions.
    pub(crate) fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Bytes of the requests that are kept to be tried again.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// The numbers of reads that are held back.
    pub(crate) fn held_back(&self) -> Vec<u32> {
        if self.held_back == 0 {
            return Vec::new();
        }
        self.iter().filter_map(|(number, waiter)| waiter.is_held_back().then_some(number)).collect()
    }

    /// Entries of reads and subscriptions.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }
}
