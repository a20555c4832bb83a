//! What time it is: for logic, never for measuring in tests. Read from any thread.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::believed::{Believed, Doubted, Reckoning};

/// Tells the time. Cheap enough to be asked once per request; not meant to be asked per record.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall time in milliseconds since 1970. May jump either way when the machine's clock is set.
    fn now_ms(&self) -> i64;
    /// Microseconds since some moment in the past, the same for all callers of one clock. Never goes back.
    fn monotonic_us(&self) -> u64;
    /// The same, of another moment, and while the machine is suspended it goes on, too, as the clocks of other machines do: for how long somebody may go on who was told
    /// so by others. To be compared with nothing but itself.
    fn since_boot_us(&self) -> u64;
    /// What is believed of the wall time.
    fn reckoning(&self) -> &Reckoning;

    /// The time by which something may be deleted for its age: the wall time, without jumps that have not held yet. To be looked at about once a second.
    fn believed(&self) -> Believed {
        self.reckoning().look(self.now_ms(), self.monotonic_us())
    }

    /// For a start, before anything is appended or deleted: the newest of the data that there are, if there are any, were appended at this wall time; and the process
    /// before has left this doubt, if it had one.
    fn begin(&self, newest_ms: Option<i64>, doubted: Option<Doubted>) {
        self.reckoning().begin(newest_ms, doubted, self.now_ms(), self.monotonic_us());
        self.believed();
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    reckoning: Reckoning,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> SystemClock {
        SystemClock { started: Instant::now(), reckoning: Reckoning::default() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }

    fn monotonic_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn since_boot_us(&self) -> u64 {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        tv_sec.cast_unsigned() * 1_000_000 + tv_nsec.cast_unsigned() / 1_000
    }

    fn reckoning(&self) -> &Reckoning {
        &self.reckoning
    }
}

/// A clock that stands still until it is moved. For tests and the simulator.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall_us: AtomicI64,
    monotonic_us: AtomicU64,
    suspended_us: AtomicU64,
    reckoning: Reckoning,
}

impl ManualClock {
    /// Stands at `now_ms` since 1970; its monotonic time starts at zero.
    pub fn new(now_ms: i64) -> ManualClock {
        ManualClock { wall_us: AtomicI64::new(now_ms * 1000), ..ManualClock::default() }
    }

    /// Moves both times forward.
    pub fn advance_ms(&self, by: u64) {
        self.advance_us(by * 1000);
    }

    /// Moves both times forward.
    pub fn advance_us(&self, by: u64) {
        self.wall_us.fetch_add(by as i64, Ordering::SeqCst);
        self.monotonic_us.fetch_add(by, Ordering::SeqCst);
    }

    /// The machine is suspended for so long: the monotonic clock stands still, the others go on.
    pub fn suspend_ms(&self, by: u64) {
        self.wall_us.fetch_add((by * 1000) as i64, Ordering::SeqCst);
        self.suspended_us.fetch_add(by * 1000, Ordering::SeqCst);
    }

    /// Sets the wall clock, as a user or a time server does; monotonic time is not touched.
    pub fn set_now_ms(&self, now_ms: i64) {
        self.wall_us.store(now_ms * 1000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.wall_us.load(Ordering::SeqCst).div_euclid(1000)
    }

    fn monotonic_us(&self) -> u64 {
        self.monotonic_us.load(Ordering::SeqCst)
    }

    fn since_boot_us(&self) -> u64 {
        self.monotonic_us() + self.suspended_us.load(Ordering::SeqCst)
    }

    fn reckoning(&self) -> &Reckoning {
        &self.reckoning
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.monotonic_us();
        assert!(clock.monotonic_us() >= first);
        let first = clock.since_boot_us();
        assert!(first > 0 && clock.since_boot_us() >= first);
        assert!(clock.now_ms() > 1_600_000_000_000);
    }

    #[test]
    fn manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(5_000);
        assert_eq!((clock.now_ms(), clock.monotonic_us()), (5_000, 0));
        clock.advance_ms(7);
        clock.advance_us(1_500);
        assert_eq!((clock.now_ms(), clock.monotonic_us()), (5_008, 8_500));
        assert_eq!(clock.since_boot_us(), 8_500);
        clock.suspend_ms(2);
        assert_eq!((clock.now_ms(), clock.monotonic_us(), clock.since_boot_us()), (5_010, 8_500, 10_500));
        clock.set_now_ms(-3);
        assert_eq!((clock.now_ms(), clock.monotonic_us()), (-3, 8_500));
    }
}
