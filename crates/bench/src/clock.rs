//! The load generator's clock and its alarm: `CLOCK_MONOTONIC` in nanoseconds.
//!
//! The monotonic clock is the same in every process of a host, so a consumer in one process can take the time that a
//! producer in another wrote into a record. Across hosts the two mean nothing to each other.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds since the host started, as every process of the host sees them. Never zero.
#[inline]
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64).max(1)
}

/// An alarm that rings within microseconds of its time, where tokio's timers are as fine as a millisecond. For senders
/// at a fixed rate: at 10,000 records per second a record is due every 100 microseconds.
#[derive(Debug)]
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// An alarm of the current tokio runtime, which must have I/O enabled.
    pub fn new() -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, nobody else knows it, and it is never replaced: it stays open
        // and the same until the registration ends.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Alarm { timer })
    }

    /// Waits until [`now_ns`] is `at_ns` or later. Other tasks of the runtime run meanwhile.
    pub async fn until(&mut self, at_ns: u64) -> io::Result<()> {
        if now_ns() >= at_ns {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: (at_ns / NS_PER_S) as i64, tv_nsec: (at_ns % NS_PER_S) as _ },
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut expirations)?));
            if let Ok(outcome) = read {
                outcome?;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_rings_at_its_time_or_later_and_can_be_set_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::new().unwrap();
            for wait_ns in [0, 50_000, 2_000_000] {
                let at = now_ns() + wait_ns;
                alarm.until(at).await.unwrap();
                assert!(now_ns() >= at);
            }
            alarm.until(1).await.unwrap();
        });
    }
}
