//! The yardstick: what this machine can do without KerA.
//!
//! What a bare server takes that only receives frames, copies them into memory and compares their checksum is what a
//! simple broker of one thread could take (a node can be ahead of it, see `loopback`); loopback, memory and checksum
//! speed bound all of them. A log on disk cannot write faster than the disk. And a measurement cannot show more than the
//! load generator makes. All of these are measured here, each alone, in the same run, so that a figure of KerA can be
//! given as a share of something that the machine does.

mod disk;
mod loopback;
mod memory;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Frame sizes of the bare server, in bytes; each from 64 bytes to 16 MiB.
    pub frame_bytes: Vec<usize>,
    /// How long each point is measured.
    pub time: Duration,
    /// Times that each point of the bare server is measured; the median counts.
    pub rounds: usize,
    /// Where to measure the disk; `None` leaves it out.
    pub disk_dir: Option<PathBuf>,
    /// Bytes of the file that is written and read there; it is deleted afterwards.
    pub disk_bytes: u64,
}

impl Default for LimitConfig {
    fn default() -> Self {
        LimitConfig {
            frame_bytes: vec![1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10],
            time: Duration::from_secs(2),
            rounds: 3,
            disk_dir: None,
            disk_bytes: 1 << 30,
        }
    }
}

/// What the machine can do. Rates are per second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LimitReport {
    /// Bytes that one thread sends and another takes over loopback, in pieces of 256 KiB.
    pub loopback_bytes_per_s: f64,
    /// The bare server: one thread receives, copies and checks.
    pub server: Vec<FrameRate>,
    /// Bytes that one thread copies between two areas larger than the nearer caches.
    pub copy_bytes_per_s: f64,
    /// Bytes of which one thread computes the CRC-32C, in pieces of 16 KiB.
    pub checksum_bytes_per_s: f64,
    /// The load generator without anything behind it.
    pub generator: GeneratorCost,
    /// Cores that there are; 0 if that was not looked for.
    #[serde(default)]
    pub cores: usize,
    /// The disk, if it was asked for.
    pub disk: Option<DiskRate>,
}

/// What the bare server takes at one frame size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FrameRate {
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Bytes received, copied and checked: the median of the rounds.
    pub bytes_per_s: f64,
    /// The same in records of 100 bytes, 108 with their header.
    pub records_per_s: f64,
}

/// Nanoseconds of one thread for a record of 100 bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GeneratorCost {
    /// Making the record.
    pub make_ns: f64,
    /// Making it, encoding it into a chunk of 16 KiB and sealing that with its checksum.
    pub encode_ns: f64,
    /// Iterating over chunks and looking for stamps, as a consumer of the load does.
    pub scan_ns: f64,
}

/// What the disk does with O_DIRECT (where the file system has it) in pieces of 1 MiB.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DiskRate {
    /// The directory.
    pub dir: PathBuf,
    /// Whether the page cache was out of the way.
    pub direct: bool,
    /// Sequential writes over space that was written before, from one piece of memory, with a sync at the end, by one thread
    /// or by four, whichever was faster.
    pub write_bytes_per_s: f64,
    /// Appends of new bytes to space that was never written, with a sync every 8 MiB, before the next write or during it,
    /// whichever was faster: what a log could reach.
    #[serde(default)]
    pub append_bytes_per_s: f64,
    /// Sequential reads, likewise.
    pub read_bytes_per_s: f64,
    /// Microseconds of a write of 4 KiB with fdatasync: the median.
    pub sync_us_p50: f64,
    /// The same, 99 of 100.
    pub sync_us_p99: f64,
}

/// Measures everything, one after the other; `progress` is told what comes next.
pub fn run(config: &LimitConfig, mut progress: impl FnMut(&str)) -> Result<LimitReport, BenchError> {
    check(config)?;
    let mut report = LimitReport::default();
    progress("loopback");
    report.loopback_bytes_per_s = loopback::raw(config.time)?;
    for &frame_bytes in &config.frame_bytes {
        progress(&format!("bare server, frames of {frame_bytes} bytes"));
        let mut rates = Vec::new();
        for _ in 0..config.rounds.max(1) {
            rates.push(loopback::bare_server(frame_bytes, config.time)?);
        }
        let bytes_per_s = median(&mut rates);
        report.server.push(FrameRate { frame_bytes, bytes_per_s, records_per_s: bytes_per_s / 108.0 });
    }
    progress("memory and checksum");
    report.copy_bytes_per_s = memory::copy(config.time / 2);
    report.checksum_bytes_per_s = memory::checksum(config.time / 2);
    progress("load generator");
    report.generator = memory::generator(config.time / 2)?;
    report.cores = std::thread::available_parallelism().map_or(0, usize::from);
    if let Some(dir) = &config.disk_dir {
        progress("disk");
        report.disk = Some(disk::measure(dir, config.disk_bytes)?);
    }
    Ok(report)
}

fn check(config: &LimitConfig) -> Result<(), BenchError> {
    for &frame_bytes in &config.frame_bytes {
        if !(loopback::FRAME_BYTES_MIN..=loopback::FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(BenchError::setting(
                "frame-bytes",
                format!("{frame_bytes} is not between {} and {}", loopback::FRAME_BYTES_MIN, loopback::FRAME_BYTES_MAX),
            ));
        }
    }
    if config.disk_dir.is_some() && config.disk_bytes < disk::BYTES_MIN {
        let message = format!("{} is less than {}, too little to measure a disk", config.disk_bytes, disk::BYTES_MIN);
        return Err(BenchError::setting("disk-bytes", message));
    }
    Ok(())
}

/// The median, of an even number the mean of the two in the middle; zero of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

impl LimitReport {
    /// A table for people.
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let gb = |bytes_per_s: f64| format!("{:.2} GB/s", bytes_per_s / 1e9);
        let mut text = String::new();
        let mut row = |what: &str, figure: String, note: String| {
            let _ = writeln!(text, "{what:<34} {figure:>14}  {note}");
        };
        row("loopback, 256 KiB pieces", gb(self.loopback_bytes_per_s), String::new());
        for point in &self.server {
            let what = format!("bare server, frames of {}", frame_name(point.frame_bytes));
            let note = format!("{:.1} million records/s of 100 bytes", point.records_per_s / 1e6);
            row(&what, gb(point.bytes_per_s), note);
        }
        row("copy in memory, one thread", gb(self.copy_bytes_per_s), String::new());
        row("CRC-32C, one thread", gb(self.checksum_bytes_per_s), String::new());
        let ns = |ns: f64| format!("{ns:.1} ns");
        row("generator: make a record", ns(self.generator.make_ns), "100 bytes".into());
        row("generator: make, encode, seal", ns(self.generator.encode_ns), "chunks of 16 KiB".into());
        row("generator: read a record", ns(self.generator.scan_ns), String::new());
        if let Some(disk) = &self.disk {
            let how = if disk.direct { "O_DIRECT" } else { "through the page cache: no O_DIRECT here" };
            row("disk, sequential write", gb(disk.write_bytes_per_s), how.into());
            row("disk, append", gb(disk.append_bytes_per_s), "never written space, a sync every 8 MiB".into());
            row("disk, sequential read", gb(disk.read_bytes_per_s), how.into());
            let note = format!("99 of 100 within {:.0} us", disk.sync_us_p99);
            row("disk, 4 KiB with fdatasync", format!("{:.0} us", disk.sync_us_p50), note);
        }
        text
    }
}

fn frame_name(bytes: usize) -> String {
    match bytes {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_measured_in_a_tiny_run() {
        let dir = tempfile::tempdir().unwrap();
        let config = LimitConfig {
            frame_bytes: vec![64, 1000, 16 << 10, 1 << 20],
            time: Duration::from_millis(20),
            rounds: 1,
            disk_dir: Some(dir.path().to_owned()),
            disk_bytes: disk::BYTES_MIN,
        };
        let mut steps = Vec::new();
        let report = run(&config, |step| steps.push(step.to_owned())).unwrap();
        assert_eq!(report.server.len(), 4);
        assert!(report.server.iter().all(|point| point.bytes_per_s > 0.0));
        let disk = report.disk.as_ref().unwrap();
        for figure in [
            report.loopback_bytes_per_s,
            report.copy_bytes_per_s,
            report.checksum_bytes_per_s,
            report.generator.make_ns,
            report.generator.encode_ns,
            report.generator.scan_ns,
            disk.write_bytes_per_s,
            disk.append_bytes_per_s,
            disk.read_bytes_per_s,
            disk.sync_us_p50,
        ] {
            assert!(figure > 0.0, "{report:?}");
        }
        assert!(steps.len() >= 4 && report.table().contains("16 KiB"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn absurd_settings_are_refused() {
        let small = LimitConfig { frame_bytes: vec![1], ..LimitConfig::default() };
        assert!(run(&small, |_| ()).unwrap_err().to_string().contains("frame-bytes"));
        let disk = LimitConfig { disk_dir: Some("/tmp".into()), disk_bytes: 1, ..LimitConfig::default() };
        assert!(run(&disk, |_| ()).unwrap_err().to_string().contains("disk-bytes"));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
