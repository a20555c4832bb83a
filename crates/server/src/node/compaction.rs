//! The thread that compacts: of low priority, and with a share of one processor core that it does not go beyond.
//!
//! After each segment it sleeps for as long as it has to, so that what it has taken of a processor stays within the share. It
//! may wait for the disk; it holds a lane's lock for a look only. Whatever fails is tried again: nothing is lost by that, a lane
//! just stays larger.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use kera_log::compact::Stepped;
use rustix::time::{ClockId, clock_gettime};

use super::Parts;
use super::background::Background;

/// Between two looks whether a lane is worth a pass.
const REST: Duration = Duration::from_secs(1);
/// After all disks have refused a segment.
const DISK_REST: Duration = Duration::from_secs(30);

/// Starts the thread, unless it is turned off. Transactions of Kafka clients must be known.
pub(super) fn start(parts: &Arc<Parts>) -> io::Result<Option<Background>> {
    let Some(percent) = parts.config.compaction.cpu_percent else { return Ok(None) };
    let names = ("kera-compact", "compaction");
    Background::start(names, parts, move |parts, stopped| run(parts, percent, stopped)).map(Some)
}

/// Whether disks take nothing of what compaction leaves. That they do again is known when one has taken something: a pass also ends, and is no failure, because
/// retention came in between or because there was nothing to write.
#[derive(Default)]
struct Refused {
    /// How many segments they had taken when they last refused one.
    at: Option<u64>,
}

/// What has become of that.
#[derive(PartialEq, Eq, Debug)]
enum News {
    Waits,
    GoesOn,
}

impl Refused {
    /// A step was made, and so many segments have been rewritten by now.
    fn stepped(&mut self, stepped: Stepped, segments: u64) -> Option<News> {
        if stepped == Stepped::DiskFailed {
            return self.at.replace(segments).is_none().then_some(News::Waits);
        }
        self.at.take_if(|at| segments > *at).map(|_| News::GoesOn)
    }
}

fn run(parts: &Parts, percent: u64, stopped: &Receiver<()>) {
    let mut taken_before_us = taken_us();
    // Sleeps for what was taken since the last time. False: it is time to end.
    let mut pace = || {
        let now_us = taken_us();
        let more_us = now_us - std::mem::replace(&mut taken_before_us, now_us);
        parts.compaction_us.fetch_add(more_us, Ordering::Relaxed);
        let rest = Duration::from_micros(rest_us(more_us, percent));
        stopped.recv_timeout(rest) == Err(RecvTimeoutError::Timeout)
    };
    let mut refused = Refused::default();
    loop {
        let stepped = parts.compactor.step(&mut pace);
        let stats = parts.compactor.stats();
        match refused.stepped(stepped, stats.segments) {
            Some(News::Waits) => {
                let error = stats.last_error.unwrap_or_default();
                tracing::warn!(error, "compaction waits for disks that take nothing at the moment");
            }
            Some(News::GoesOn) => tracing::info!("compaction goes on"),
            None => {}
        }
        let rest = match stepped {
            Stepped::Passed => Duration::ZERO,
            Stepped::Rested | Stepped::Failed => REST,
            Stepped::DiskFailed => DISK_REST,
        };
        if !pace() || stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// How long to sleep after so much of a processor.
fn rest_us(taken_us: u64, percent: u64) -> u64 {
    taken_us * (100 - percent.min(100)) / percent.max(1)
}

/// What this thread has taken of a processor.
fn taken_us() -> u64 {
    let taken = clock_gettime(ClockId::ThreadCPUTime);
    taken.tv_sec.cast_unsigned() * 1_000_000 + taken.tv_nsec.cast_unsigned() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_kept() {
        for percent in [1, 10, 33, 50, 99] {
            let taken_us = 12_345;
            let share = taken_us * 100 / (taken_us + rest_us(taken_us, percent));
            assert!(share.abs_diff(percent) <= 1, "{share} instead of {percent}");
        }
        assert_eq!((rest_us(5_000, 100), rest_us(0, 10)), (0, 0));
    }

    #[test]
    fn compaction_goes_on_when_a_disk_has_taken_something_and_not_when_a_pass_was_overtaken() {
        let mut refused = Refused::default();
        let mut said = |stepped, segments| refused.stepped(stepped, segments);
        assert_eq!(said(Stepped::Passed, 1), None);
        assert_eq!(said(Stepped::DiskFailed, 3), Some(News::Waits));
        assert_eq!(said(Stepped::Passed, 3), None, "it had nothing to write, or was overtaken");
        assert_eq!(said(Stepped::DiskFailed, 4), None, "it is known");
        assert_eq!(said(Stepped::Rested, 4), None);
        assert_eq!(said(Stepped::Passed, 5), Some(News::GoesOn));
        assert_eq!(said(Stepped::Passed, 6), None);
    }

    #[test]
    fn the_thread_knows_what_it_takes() {
        let before_us = taken_us();
        let mut sum = 1_u64;
        while taken_us() < before_us + 2_000 {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        assert_ne!(sum, 0);
    }
}
