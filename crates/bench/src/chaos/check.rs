//! What is refused before a server starts: settings that cannot work, contradict one another or prove nothing. Each refusal
//! names the flag, the limit and what to do.

use std::time::Duration;

use kera_format::Durability;
use kera_format::limits::{LANES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, STREAM_LANES_MAX, STREAMLETS_MAX};
use kera_format::segment::SEGMENT_HEADER_BYTES;

use super::{ChaosConfig, Fault};
use crate::BenchError;
use crate::verify::{CHUNK_BYTES_MIN, THREADS_MAX, check_record_bytes};

const ROUNDS_MAX: u32 = 1_000_000;
/// Longer than this clients do not wait for a server.
const HOLD_MAX: Duration = Duration::from_secs(300);
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Segments that a lane needs room for at least: one that is open, one that is being written.
const SEGMENTS_PER_LANE: u64 = 2;

impl ChaosConfig {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        self.check_faults()?;
        self.check_times()?;
        self.check_load()?;
        self.check_sizes()?;
        let program = &self.program;
        // A name without a directory is looked for by the system.
        if program.components().count() > 1 && !program.is_file() {
            let message = format!("{} is not a file; give the path of the `kera` program", program.display());
            return Err(BenchError::setting("program", message));
        }
        Ok(())
    }

    fn check_faults(&self) -> Result<(), BenchError> {
        if self.rounds == 0 || self.rounds > ROUNDS_MAX {
            let message = format!("{} faults; give 1 to {ROUNDS_MAX}", self.rounds);
            return Err(BenchError::setting("rounds", message));
        }
        if self.faults.is_empty() {
            return Err(BenchError::setting("faults", "name at least one"));
        }
        if self.durability == Durability::Process && self.faults.contains(&Fault::Power) {
            let message =
                "durability `process` does not survive a loss of power; give --durability power, or other faults";
            return Err(BenchError::setting("faults", message));
        }
        if self.disk_bytes.is_some() && !self.faults.contains(&Fault::FullDisk) {
            let message = "only full-disk makes a file system; give --faults full-disk, or leave it out";
            return Err(BenchError::setting("disk-bytes", message));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), BenchError> {
        let (least, longest) = self.between;
        if least > longest {
            let message = format!("{least:?} to {longest:?}: the least time comes first; swap them");
            return Err(BenchError::setting("between-ms", message));
        }
        if longest > WAIT_MAX {
            return Err(BenchError::setting("between-ms", format!("{longest:?} is long; give at most {WAIT_MAX:?}")));
        }
        if self.hold > HOLD_MAX {
            let message = format!("clients give up after {HOLD_MAX:?}; give that or less, not {:?}", self.hold);
            return Err(BenchError::setting("hold-seconds", message));
        }
        if self.recovery < Duration::from_secs(1) || self.recovery > WAIT_MAX {
            let message = format!("{:?} is out of range; give 1 to {} seconds", self.recovery, WAIT_MAX.as_secs());
            return Err(BenchError::setting("recovery-seconds", message));
        }
        Ok(())
    }

    fn check_load(&self) -> Result<(), BenchError> {
        let counts = [
            ("streamlets", self.streamlets, STREAMLETS_MAX),
            ("lanes", self.lanes, LANES_MAX),
            ("producers", self.producers, THREADS_MAX),
            ("consumers", self.consumers, THREADS_MAX),
        ];
        for (flag, count, most) in counts {
            if !(1..=most).contains(&count) {
                return Err(BenchError::setting(flag, format!("{count} is out of range; give 1 to {most}")));
            }
        }
        if self.stream_lanes() > STREAM_LANES_MAX.into() {
            let message = format!("{} streamlets of {} lanes are too many", self.streamlets, self.lanes);
            let message = format!("{message}; together they may have {STREAM_LANES_MAX}");
            return Err(BenchError::setting("lanes", message));
        }
        match self.rate {
            None if self.faults.contains(&Fault::FullDisk) => {
                let message =
                    "full-disk needs a rate, or the records themselves fill the disk for good; give 1 or more";
                Err(BenchError::setting("rate", message))
            }
            Some(rate) if !rate.is_finite() || rate < 1.0 => {
                let message = format!("{rate} records per second prove little; give 1 or more, or 0 for no limit");
                Err(BenchError::setting("rate", message))
            }
            _ => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), BenchError> {
        check_record_bytes(self.record_bytes)?;
        let segment = self.segment_bytes() as usize;
        if !segment.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment) {
            let message = format!("{segment} is no size of segments; give a power of two from 64KiB to 16MiB");
            return Err(BenchError::setting("segment-bytes", message));
        }
        let most = segment - SEGMENT_HEADER_BYTES;
        let more = if segment < SEGMENT_BYTES_MAX { ", or give larger --segment-bytes" } else { "" };
        if !(CHUNK_BYTES_MIN..=most).contains(&self.chunk_bytes) {
            let message = format!(
                "a chunk of {} bytes does not work with segments of {segment}; give {CHUNK_BYTES_MIN} to {most}{more}",
                self.chunk_bytes
            );
            return Err(BenchError::setting("chunk-bytes", message));
        }
        // A record that is larger than a chunk gets one of its own.
        let chunk = self.chunk_bytes.max(self.record_bytes + CHUNK_BYTES_MIN);
        if chunk > most {
            let message = format!("{} do not fit into segments of {segment}; give less{more}", self.record_bytes);
            return Err(BenchError::setting("record-bytes", message));
        }
        let holds_chunk = (chunk + SEGMENT_HEADER_BYTES).next_power_of_two().max(SEGMENT_BYTES_MIN) as u64;
        let least = SEGMENTS_PER_LANE * self.stream_lanes() * holds_chunk;
        if self.arena_bytes < least {
            let message = format!(
                "{} is too little for {} lanes with chunks of {}; give {least} or more, or fewer --streamlets and --lanes",
                self.arena_bytes,
                self.stream_lanes(),
                chunk
            );
            return Err(BenchError::setting("arena-bytes", message));
        }
        self.check_disk()
    }

    /// The small file system is in memory, and is filled.
    fn check_disk(&self) -> Result<(), BenchError> {
        if !self.faults.contains(&Fault::FullDisk) {
            return Ok(());
        }
        let (disk, least) = (self.disk_bytes(), self.disk_bytes_min());
        if disk < least {
            let message = format!("{disk} is not enough for one round; give {least} or more, or leave it out");
            return Err(BenchError::setting("disk-bytes", message));
        }
        let Some(memory) = available_memory() else { return Ok(()) };
        let needed = disk.saturating_add(self.arena_bytes);
        if needed > memory {
            let message = format!(
                "a file system of {disk} bytes and the arena do not fit into the {memory} bytes of memory that are \
                 available; give fewer --rounds, a lower --rate, smaller --arena-bytes, or --disk-bytes"
            );
            return Err(BenchError::setting("disk-bytes", message));
        }
        Ok(())
    }

    fn stream_lanes(&self) -> u64 {
        u64::from(self.streamlets) * u64::from(self.lanes)
    }
}

/// Bytes of memory that this machine can still give, if it says so.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ChaosConfig {
        ChaosConfig::new("kera".into())
    }

    fn refused(config: &ChaosConfig) -> String {
        config.check().expect_err("it cannot work").to_string()
    }

    #[test]
    fn what_cannot_hold_is_refused() {
        let power = ChaosConfig { faults: vec![Fault::Power], ..config() };
        assert!(refused(&power).contains("--durability power"));
        ChaosConfig { durability: Durability::Power, ..power }.check().unwrap();
        let unlimited = ChaosConfig { faults: vec![Fault::FullDisk], rate: None, ..config() };
        assert!(refused(&unlimited).starts_with("--rate: full-disk needs a rate"));
        let refusals = [
            ("--faults: ", ChaosConfig { faults: Vec::new(), ..config() }),
            ("--rounds: 0 ", ChaosConfig { rounds: 0, ..config() }),
            ("--rounds: ", ChaosConfig { rounds: u32::MAX, ..config() }),
            ("--disk-bytes: only full-disk", ChaosConfig { disk_bytes: Some(1), ..config() }),
            ("--between-ms: ", ChaosConfig { between: (Duration::from_secs(2), Duration::from_secs(1)), ..config() }),
            ("--between-ms: ", ChaosConfig { between: (Duration::ZERO, Duration::from_secs(1 << 40)), ..config() }),
            ("--hold-seconds: ", ChaosConfig { hold: Duration::from_secs(1 << 40), ..config() }),
            ("--recovery-seconds: ", ChaosConfig { recovery: Duration::ZERO, ..config() }),
            ("--streamlets: 0 ", ChaosConfig { streamlets: 0, ..config() }),
            ("--lanes: 5000 ", ChaosConfig { lanes: 5000, ..config() }),
            ("--lanes: 131072 ", ChaosConfig { streamlets: 131_072, lanes: 4096, ..config() }),
            ("--producers: 0 ", ChaosConfig { producers: 0, ..config() }),
            ("--consumers: 0 ", ChaosConfig { consumers: 0, ..config() }),
            ("--rate: -5 ", ChaosConfig { rate: Some(-5.0), ..config() }),
            ("--rate: NaN ", ChaosConfig { rate: Some(f64::NAN), ..config() }),
            ("--record-bytes: ", ChaosConfig { record_bytes: 31, ..config() }),
            ("--segment-bytes: 100000 ", ChaosConfig { segment_bytes: Some(100_000), ..config() }),
            ("--chunk-bytes: ", ChaosConfig { chunk_bytes: 0, ..config() }),
            ("--chunk-bytes: ", ChaosConfig { chunk_bytes: 16 << 20, ..config() }),
            ("--chunk-bytes: ", ChaosConfig { chunk_bytes: 64 << 10, segment_bytes: Some(64 << 10), ..config() }),
            ("--arena-bytes: 1024 ", ChaosConfig { arena_bytes: 1024, ..config() }),
            ("--arena-bytes: ", ChaosConfig { chunk_bytes: 1 << 20, arena_bytes: 16 << 20, ..config() }),
            ("--program: ", ChaosConfig { program: "/no/such/kera".into(), ..config() }),
        ];
        for (text, config) in refusals {
            let refusal = refused(&config);
            assert!(refusal.starts_with(text), "{refusal}");
        }
    }

    #[test]
    fn a_small_disk_that_cannot_work_is_refused() {
        let config = ChaosConfig::for_faults("kera".into(), vec![Fault::FullDisk]);
        let small = ChaosConfig { disk_bytes: Some(1 << 20), ..config.clone() };
        assert!(refused(&small).contains("not enough for one round"));
        let large = ChaosConfig { disk_bytes: Some(1 << 60), ..config };
        assert!(refused(&large).contains("fewer --rounds"));
    }

    #[test]
    fn segments_hold_a_few_of_the_chunks_and_any_chunk_has_some() {
        for chunk_bytes in [2 << 10, 64 << 10, 256 << 10, 1 << 20, SEGMENT_BYTES_MAX - SEGMENT_HEADER_BYTES] {
            let config = ChaosConfig { chunk_bytes, arena_bytes: 1 << 30, ..config() };
            config.check().unwrap();
            let few = (4 * chunk_bytes).min(SEGMENT_BYTES_MAX - SEGMENT_HEADER_BYTES);
            assert!(config.segment_bytes() as usize >= few, "{chunk_bytes}");
        }
    }
}
