//! What is read off a run, what it is compared with, and how both are written for people.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::workload::{Safety, Workload};
use crate::limit::LimitReport;

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Records per second of the run's main side: acknowledged, or received where there are only consumers.
    RecordsPerS,
    /// Records per second that consumers received beside producers.
    ReceivedPerS,
    /// Records per second for each producer, as the papers plot it.
    RecordsPerSPerClient,
    /// MiB of values per second of the main side.
    MibPerS,
    /// Send to acknowledgement, half of all, in microseconds.
    AckP50,
    /// The same, 99 of 100.
    AckP99,
    /// Send to receipt, half of all, in microseconds.
    ReceiptP50,
    /// The same, 99 of 100.
    ReceiptP99,
    /// CPU of the server for a record, in nanoseconds.
    ServerNsPerRecord,
    /// Resident memory of the server at the end, in MiB.
    ServerMib,
    /// From exec to serving, in milliseconds.
    StartMs,
    /// Longest time that a record had to wait for its acknowledgement, in milliseconds: how long nobody could write.
    LongestMs,
}

impl Metric {
    /// Reads it off a run; `None` if the run does not say.
    pub fn of(self, figures: &Value) -> Option<f64> {
        let at = |pointer: &str| figures.pointer(pointer).and_then(Value::as_f64);
        let some = |value: Option<f64>| value.filter(|value| *value > 0.0);
        match self {
            Metric::RecordsPerS => at("/records_per_s"),
            Metric::ReceivedPerS => at("/consume/records_per_s"),
            Metric::RecordsPerSPerClient => Some(at("/records_per_s")? / at("/clients")?.max(1.0)),
            Metric::MibPerS => at("/mib_per_s"),
            Metric::AckP50 => some(at("/latency_us/p50")),
            Metric::AckP99 => some(at("/latency_us/p99")),
            Metric::ReceiptP50 => some(at("/consume/latency_us/p50")),
            Metric::ReceiptP99 => some(at("/consume/latency_us/p99")),
            Metric::ServerNsPerRecord => Some(at("/server_cores")? * 1e9 / some(at("/records_per_s"))?),
            Metric::ServerMib => Some(at("/server_bytes")? / f64::from(1 << 20)),
            Metric::StartMs => at("/start_ms"),
            Metric::LongestMs => Some(at("/latency_us/max")? / 1e3),
        }
    }

    /// Whether less is better.
    pub fn is_cost(self) -> bool {
        !matches!(self, Metric::RecordsPerS | Metric::ReceivedPerS | Metric::RecordsPerSPerClient | Metric::MibPerS)
    }

    /// What stands on the axis.
    pub fn label(self) -> &'static str {
        match self {
            Metric::RecordsPerS => "records per second",
            Metric::ReceivedPerS => "records received per second",
            Metric::RecordsPerSPerClient => "records per second and producer",
            Metric::MibPerS => "MiB of values per second",
            Metric::AckP50 => "send to acknowledgement, median",
            Metric::AckP99 => "send to acknowledgement, 99 of 100",
            Metric::ReceiptP50 => "send to receipt, median",
            Metric::ReceiptP99 => "send to receipt, 99 of 100",
            Metric::ServerNsPerRecord => "server CPU for a record",
            Metric::ServerMib => "server's resident memory, MiB",
            Metric::StartMs => "from exec to serving",
            Metric::LongestMs => "longest wait for an acknowledgement",
        }
    }

    /// A value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Metric::RecordsPerS | Metric::ReceivedPerS | Metric::RecordsPerSPerClient => {
                format!("{}/s", count(value))
            }
            Metric::MibPerS => format!("{}/s", bytes(value * f64::from(1 << 20))),
            Metric::AckP50 | Metric::AckP99 | Metric::ReceiptP50 | Metric::ReceiptP99 => micros(value),
            Metric::ServerNsPerRecord => micros(value / 1e3),
            Metric::ServerMib => bytes(value * f64::from(1 << 20)),
            Metric::StartMs | Metric::LongestMs => micros(value * 1e3),
        }
    }
}

/// A limit of the machine, measured in the same run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// A server of one thread that only receives frames of a chunk's size, copies them and checks them.
    BareServer,
    /// Bytes over loopback from one thread to another.
    Loopback,
    /// One thread that copies memory.
    MemoryCopy,
    /// The load generator of KerA with nothing behind it, one thread for each producer, no more than there are cores.
    Generator,
    /// New bytes to disk, synced as a log does.
    DiskAppend,
    /// Reading from disk.
    DiskRead,
    /// One write of 4 KiB and a sync: what an acknowledgement that survives loss of power takes at least.
    DiskSync,
}

impl Limit {
    /// What the plot calls it.
    pub fn label(self) -> &'static str {
        match self {
            Limit::BareServer => "limit: a bare server",
            Limit::Loopback => "limit: loopback TCP",
            Limit::MemoryCopy => "limit: copying memory",
            Limit::Generator => "limit: the load generator",
            Limit::DiskAppend => "limit: appending to disk",
            Limit::DiskRead => "limit: reading from disk",
            Limit::DiskSync => "limit: one sync of the disk",
        }
    }

    /// Whether it needs the disk measured.
    pub fn is_disk(self) -> bool {
        matches!(self, Limit::DiskAppend | Limit::DiskRead | Limit::DiskSync)
    }

    /// The most (or for times the least) that a metric of this workload can be; `None` if the limit says nothing about it. Copies are
    /// received once each, on the same machine.
    pub fn of(self, metric: Metric, workload: &Workload, report: &LimitReport) -> Option<f64> {
        // 8 bytes of header for each record: `kera_format::record`.
        let record_bytes = (workload.record_bytes + kera_format::record::RECORD_HEADER_BYTES as u64) as f64;
        let (disk, copies) = (report.disk.as_ref(), f64::from(workload.copies.max(1)));
        if self == Limit::DiskSync {
            let is_ack = matches!(metric, Metric::AckP50 | Metric::AckP99 | Metric::ReceiptP50 | Metric::ReceiptP99);
            return (is_ack && workload.durability == Safety::Power).then_some(disk?.sync_us_p50);
        }
        let records_per_s = match self {
            Limit::BareServer => report.server.first()?.bytes_per_s / record_bytes / copies,
            Limit::Loopback => report.loopback_bytes_per_s / record_bytes / copies,
            Limit::MemoryCopy => report.copy_bytes_per_s / record_bytes,
            Limit::Generator => {
                let cores = if report.cores == 0 { u32::MAX } else { u32::try_from(report.cores).unwrap_or(u32::MAX) };
                f64::from(workload.producers.min(cores)) * 1e9 / report.generator.encode_ns
            }
            Limit::DiskAppend => disk?.append_bytes_per_s / record_bytes / copies,
            Limit::DiskRead => disk?.read_bytes_per_s / record_bytes,
            Limit::DiskSync => return None,
        };
        match metric {
            Metric::RecordsPerS | Metric::ReceivedPerS => Some(records_per_s),
            Metric::RecordsPerSPerClient => Some(records_per_s / f64::from(workload.producers.max(1))),
            Metric::MibPerS => Some(records_per_s * workload.record_bytes as f64 / f64::from(1 << 20)),
            _ => None,
        }
    }
}

/// A count with a unit that fits.
pub fn count(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} G", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Bytes with a unit that fits.
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let unit = UNITS.iter().enumerate().rev().find(|(n, _)| value >= 1024f64.powi(*n as i32));
    let (power, name) = unit.map_or((0, "B"), |(n, name)| (n as i32, *name));
    let scaled = value / 1024f64.powi(power);
    if scaled.fract() == 0.0 || scaled >= 100.0 { format!("{scaled:.0} {name}") } else { format!("{scaled:.1} {name}") }
}

/// Microseconds with a unit that fits.
pub fn micros(us: f64) -> String {
    match us {
        v if v >= 1e6 => format!("{:.2} s", v / 1e6),
        v if v >= 1e3 => format!("{:.2} ms", v / 1e3),
        v if v >= 10.0 => format!("{v:.0} us"),
        v if v >= 1.0 => format!("{v:.1} us"),
        v => format!("{:.0} ns", v * 1e3),
    }
}

/// A value of an axis: bytes where the knob's name says so.
pub fn axis_value(knob: &str, value: f64) -> String {
    if knob.ends_with("_bytes") {
        bytes(value)
    } else if knob.ends_with("_mib") {
        bytes(value * f64::from(1 << 20))
    } else if knob.ends_with("_ms") {
        micros(value * 1e3)
    } else {
        match value {
            v if v >= 1e6 && v % 1e5 == 0.0 => format!("{} M", v / 1e6),
            v if v >= 1e4 && v % 1e3 == 0.0 => format!("{} k", v / 1e3),
            v => format!("{v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_where_load_generators_put_them() {
        let run = serde_json::json!({
            "records_per_s": 2e6, "mib_per_s": 190.0, "clients": 4, "latency_us": {"p50": 5.0, "p99": 0.0, "max": 2500.0},
            "consume": {"records_per_s": 1e6}, "server_cores": 0.5, "server_bytes": 2_097_152,
        });
        assert_eq!(Metric::RecordsPerS.of(&run), Some(2e6));
        assert_eq!(Metric::RecordsPerSPerClient.of(&run), Some(5e5));
        assert_eq!(Metric::ReceivedPerS.of(&run), Some(1e6));
        assert_eq!(Metric::ServerNsPerRecord.of(&run), Some(250.0));
        assert_eq!((Metric::ServerMib.of(&run), Metric::LongestMs.of(&run)), (Some(2.0), Some(2.5)));
        assert_eq!(Metric::AckP99.of(&run), None, "nothing was sampled");
        assert_eq!(Metric::StartMs.of(&run), None);
    }

    #[test]
    fn limits_are_in_the_metrics_units() {
        let mut report = LimitReport { copy_bytes_per_s: 1.08e9, ..LimitReport::default() };
        let workload = Workload { producers: 2, ..Workload::default() };
        assert_eq!(Limit::MemoryCopy.of(Metric::RecordsPerS, &workload, &report), Some(1e7));
        assert_eq!(Limit::MemoryCopy.of(Metric::RecordsPerSPerClient, &workload, &report), Some(5e6));
        assert_eq!(Limit::MemoryCopy.of(Metric::AckP99, &workload, &report), None);
        assert_eq!(Limit::DiskAppend.of(Metric::RecordsPerS, &workload, &report), None, "no disk was measured");
        report.loopback_bytes_per_s = 1.08e9;
        let copied = Workload { nodes: 3, copies: 2, ..workload.clone() };
        assert_eq!(Limit::Loopback.of(Metric::RecordsPerS, &copied, &report), Some(5e6), "each copy is received");
        report.generator.encode_ns = 100.0;
        assert_eq!(Limit::Generator.of(Metric::RecordsPerS, &workload, &report), Some(2e7));
        report.cores = 1;
        let capped = Limit::Generator.of(Metric::RecordsPerS, &workload, &report);
        assert_eq!(capped, Some(1e7), "two producers share one core");
        report.disk = Some(crate::limit::DiskRate { sync_us_p50: 70.0, ..Default::default() });
        let safe = Workload { durability: Safety::Power, ..workload.clone() };
        assert_eq!(Limit::DiskSync.of(Metric::AckP99, &safe, &report), Some(70.0));
        assert_eq!(Limit::DiskSync.of(Metric::AckP99, &workload, &report), None, "nobody waits for a sync there");
    }

    #[test]
    fn units_fit() {
        assert_eq!([count(1234.0), count(2.5e6), count(7.0)], ["1.2 k", "2.50 M", "7"]);
        assert_eq!([bytes(1024.0), bytes(1536.0), bytes(512.0)], ["1 KiB", "1.5 KiB", "512 B"]);
        assert_eq!(
            [micros(0.25), micros(25.0), micros(2500.0), micros(2.5e6)],
            ["250 ns", "25 us", "2.50 ms", "2.50 s"]
        );
        assert_eq!([axis_value("chunk_bytes", 65536.0), axis_value("rate", 1e5)], ["64 KiB", "100 k"]);
    }
}
