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

/// CPU seconds that a process has used so far, user and system; zero if there is no such process.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the command in parentheses and may hold spaces; utime and stime are the 14th and 15th.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Resident bytes of a process; zero if there is no such process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
