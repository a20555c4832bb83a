//! The outcome of a load, as `--json` prints it.

use serde::Serialize;

use super::config::LoadConfig;
use crate::latency::LatencySummary;
use crate::process::ProcessUsage;

/// What one side did while the clock ran.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SideReport {
    /// Records acknowledged, or received.
    pub records: u64,
    /// Bytes of their values and keys.
    pub bytes: u64,
    /// How long the clock ran.
    pub seconds: f64,
    /// Records per second.
    pub records_per_s: f64,
    /// Bytes per second, in MiB.
    pub mib_per_s: f64,
    /// From send to acknowledgement, or from send to receipt. At a rate, from when the record was due, and of all records that were due
    /// while the clock ran, also of those that came behind its end; one that was given up counts with what it had waited by then.
    pub latency_us: LatencySummary,
    /// Records that were given up, or failures of a consumer.
    pub errors: u64,
    /// Of consumers: records that retention removed before they were read, warm-up included. They are neither in `records` nor errors.
    pub removed: u64,
}

impl SideReport {
    /// Fills in what follows from counts and time.
    pub(super) fn new(records: u64, bytes_per_record: u64, seconds: f64) -> SideReport {
        let bytes = records * bytes_per_record;
        let seconds_or_tick = seconds.max(1e-9);
        SideReport {
            records,
            bytes,
            seconds,
            records_per_s: records as f64 / seconds_or_tick,
            mib_per_s: bytes as f64 / seconds_or_tick / f64::from(1 << 20),
            ..SideReport::default()
        }
    }
}

/// The outcome of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// The producers, or the consumers if there are no producers.
    #[serde(flatten)]
    pub main: SideReport,
    /// The consumers, if producers ran too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consume: Option<SideReport>,
    /// The server's process, if it is known and on this host: CPU time while the clock ran, memory at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ProcessUsage>,
    /// This process, likewise.
    pub client: ProcessUsage,
    /// What went wrong first, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<LoadConfig>,
}

impl LoadReport {
    /// For people.
    pub fn table(&self, consumed_only: bool) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let name = if consumed_only { "consumed" } else { "produced" };
        for (name, to, side) in [(name, if consumed_only { "receipt" } else { "ack" }, Some(&self.main))]
            .into_iter()
            .chain([("consumed", "receipt", self.consume.as_ref())])
        {
            let Some(side) = side else { continue };
            let _ = writeln!(
                text,
                "{name}: {} records in {:.2} s = {} records/s, {:.1} MiB/s, {} errors",
                side.records,
                side.seconds,
                short(side.records_per_s),
                side.mib_per_s,
                side.errors
            );
            if side.removed > 0 {
                let _ = writeln!(
                    text,
                    "  {} records were gone before they were read: consumers fell behind by more than the streams keep (--retention-bytes)",
                    short(side.removed as f64).trim_end()
                );
            }
            let l = &side.latency_us;
            if l.samples > 0 {
                let _ = writeln!(
                    text,
                    "  send to {to}: p50 {}, p90 {}, p99 {}, p99.9 {}, max {} ({} samples)",
                    time(l.p50),
                    time(l.p90),
                    time(l.p99),
                    time(l.p999),
                    time(l.max),
                    l.samples
                );
            }
        }
        let mut cost = |who: &str, usage: &ProcessUsage| {
            let mib = |bytes: u64| bytes >> 20;
            let _ = writeln!(
                text,
                "  {who}: {:.2} CPU seconds, {} MiB in RAM, {} MiB of it shared",
                usage.cpu_seconds,
                mib(usage.resident_bytes),
                mib(usage.resident_shared_bytes)
            );
        };
        if let Some(server) = &self.server {
            cost("server", server);
        }
        cost("client", &self.client);
        if let Some(error) = &self.first_error {
            let _ = writeln!(text, "  first error: {error}");
        }
        text
    }
}

/// A count with a unit that fits: 12.3 M.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} G", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.0} "),
    }
}

/// Microseconds with a unit that fits.
pub(crate) fn time(us: f64) -> String {
    match us {
        v if v >= 1e6 => format!("{:.2} s", v / 1e6),
        v if v >= 1e3 => format!("{:.2} ms", v / 1e3),
        v => format!("{v:.0} us"),
    }
}
