//! What happens when: one queue of events in the order of simulated time, and a fingerprint of all that has happened.
//!
//! Events of the same moment happen in the order in which they were planned. Nothing else decides the order, so a run
//! is a function of its seed; [`Trace`] is how that is checked.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events by time.
#[derive(Debug)]
pub struct Schedule<E> {
    now_us: u64,
    planned: u64,
    queue: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    at_us: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.number).cmp(&(other.at_us, other.number))
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Schedule { now_us: 0, planned: 0, queue: BinaryHeap::new() }
    }
}

impl<E> Schedule<E> {
    /// Microseconds since the run began.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Plans an event in `delay_us` microseconds from now.
    pub fn after(&mut self, delay_us: u64, event: E) {
        self.at(self.now_us + delay_us, event);
    }

    /// Plans an event at a time; now, if that has passed.
    pub fn at(&mut self, at_us: u64, event: E) {
        self.planned += 1;
        let entry = Entry { at_us: at_us.max(self.now_us), number: self.planned, event };
        self.queue.push(Reverse(entry));
    }

    /// Takes the next event, and moves time to it.
    pub fn take(&mut self) -> Option<E> {
        let Reverse(entry) = self.queue.pop()?;
        self.now_us = entry.at_us;
        Some(entry.event)
    }
}

/// A fingerprint of a run: equal for two runs that did the same, and different, but for an accident, for any others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds a number.
    pub fn add(&mut self, number: u64) {
        // FNV-1a by words, with a shift so that high bits come down.
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    /// Adds bytes.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        self.add(kera_format::checksum::crc32c(bytes).into());
    }

    /// The fingerprint so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let mut schedule = Schedule::default();
        schedule.after(20, 'c');
        schedule.after(10, 'a');
        schedule.after(10, 'b');
        assert_eq!(schedule.take(), Some('a'));
        // The past is over: what is planned for it happens now, behind what was planned before.
        schedule.at(3, 'x');
        assert_eq!((schedule.take(), schedule.take()), (Some('b'), Some('x')));
        assert_eq!((schedule.take(), schedule.now_us(), schedule.take()), (Some('c'), 20, None));
    }

    #[test]
    fn a_trace_tells_orders_apart() {
        let of = |numbers: &[u64]| {
            let mut trace = Trace::default();
            numbers.iter().for_each(|number| trace.add(*number));
            trace.value()
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[1, 3, 2]));
        assert_ne!(of(&[0]), of(&[0, 0]));
    }
}
