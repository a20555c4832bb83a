//! What is printed, and what the broker's process cost meanwhile. Times come from CLOCK_MONOTONIC, so that a producer
//! and a consumer in two processes of one host agree.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Load;

/// One run of one side.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) records_per_s: f64,
    pub(crate) mib_per_s: f64,
    pub(crate) latency_us: Latency,
    pub(crate) errors: u64,
    /// All that were acknowledged, also before and after the measured time.
    #[serde(skip)]
    pub(crate) acknowledged: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consume: Option<Box<Report>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<ServerCost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<Load>,
}

/// Percentiles in microseconds; zero when nothing was sampled.
#[derive(Serialize, Default)]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// CPU seconds during the run and resident bytes at its end.
#[derive(Serialize)]
pub(crate) struct ServerCost {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
}

impl Report {
    pub(crate) fn new(load: &Load, records: u64, took: Duration, nanos: &Histogram<u64>, errors: u64) -> Report {
        let seconds = took.as_secs_f64().max(1e-9);
        let bytes = records * load.record_bytes as u64;
        let at = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
        let latency_us = match nanos.len() {
            0 => Latency::default(),
            samples => Latency { samples, p50: at(0.5), p99: at(0.99), p999: at(0.999), max: nanos.max() as f64 / 1e3 },
        };
        Report {
            records,
            bytes,
            seconds,
            records_per_s: records as f64 / seconds,
            mib_per_s: bytes as f64 / seconds / f64::from(1 << 20),
            latency_us,
            errors,
            acknowledged: records,
            consume: None,
            server: None,
            config: Some(load.clone()),
        }
    }

    pub(crate) fn with_consumed(mut self, consumed: Report) -> Report {
        self.consume = Some(Box::new(Report { config: None, ..consumed }));
        self
    }
}

/// A histogram of nanoseconds up to ten minutes, three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are constants");
    histogram.auto(true);
    histogram
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `at_ns` of CLOCK_MONOTONIC, without the scheduler's usual slack of 50 microseconds.
pub(crate) fn sleep_until(at_ns: u64) {
    let time = libc::timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
    // SAFETY: `time` is live, and no remainder is asked for. The slack applies to this thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut());
    }
}

/// CPU seconds that a process has used so far, user and system, all its threads and those that have ended; zero if there is
/// no such process. From the process's own clock, in nanoseconds: `/proc` counts steps of 10 ms, of which a server takes a
/// handful for a run of half a million records.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    // Zero would be this process.
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else { return 0.0 };
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are live for the calls that write them, and the clock is read only if the first call has given one.
    let is_read =
        unsafe { libc::clock_getcpuclockid(pid, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0 };
    if is_read { time.tv_sec as f64 + time.tv_nsec as f64 / 1e9 } else { 0.0 }
}

/// Resident bytes of a process; zero if there is no such process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_process_goes_on_while_it_works_and_no_process_has_number_zero() {
        let own = std::process::id();
        let before = cpu_seconds(own);
        assert!(before > 0.0);
        while cpu_seconds(own) == before {}
        assert_eq!((cpu_seconds(0), cpu_seconds(u32::MAX)), (0.0, 0.0));
    }
}
