//! The tormentor: a server under load is killed, frozen, starved of disk and stopped, again and again at random moments,
//! and in the end everything it ever acknowledged has to be there, once, in order.
//!
//! All the while producers write, and an application whose members now and then go away without a word reads. After
//! each fault acknowledgements have to go on within a time. In the end the application must have had everything that
//! was acknowledged, it must be given nothing again of what it has committed, the server killed once more in between,
//! and a reader of the whole stream must find all of it. The moments and the kinds of faults follow from a seed; what the
//! machine does meanwhile does not, so a seed repeats the plan and not the run.
//!
//! The faults, and what they stand for:
//!
//! - `kill`: kill -9 of the server, then a start. The arena stays: `durability = process` must survive it.
//! - `power`: kill -9, and the arena is deleted: what was only in memory is gone, as after a loss of power. Only
//!   `durability = power` survives it. (What the disk itself loses is shown by tests with a disk that forgets.)
//! - `freeze`: SIGSTOP for a while, then SIGCONT: clients wait or reconnect.
//! - `full-disk`: the file system of the data directory is filled to the last byte and kept full. Acknowledgements have
//!   to stop, or the fault has proved nothing and the run fails; a while later space is given back, and they go on.
//! - `stop`: SIGTERM, a graceful stop, then a start.

mod check;
mod disk;
mod large;
mod run;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::{Durability, Order};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::experiment::Stop;

pub use run::run;

/// Something that is done to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// kill -9.
    Kill,
    /// kill -9, and what was only in memory is gone.
    Power,
    /// SIGSTOP.
    Freeze,
    /// No space left.
    FullDisk,
    /// SIGTERM.
    Stop,
}

/// What files that are allocated ahead take on a small disk.
const FILES_BYTES: u64 = 64 << 20;

impl Fault {
    /// Its name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Power => "power",
            Fault::Freeze => "freeze",
            Fault::FullDisk => "full-disk",
            Fault::Stop => "stop",
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let all = [Fault::Kill, Fault::Power, Fault::Freeze, Fault::FullDisk, Fault::Stop];
        let names = || all.map(Fault::name).join(", ");
        all.into_iter().find(|fault| fault.name() == text).ok_or_else(|| format!("`{text}` is none of: {}", names()))
    }
}

/// What to do to which server.
#[derive(Clone, Debug)]
pub struct ChaosConfig {
    /// The `kera` program.
    pub program: PathBuf,
    /// Where everything is kept meanwhile; a directory of its own is made in it, and removed if all went well.
    pub dir: PathBuf,
    /// How many faults.
    pub rounds: u32,
    /// Which kinds, each as likely as the others.
    pub faults: Vec<Fault>,
    /// Decides moments and kinds.
    pub seed: u64,
    /// The stream's durability.
    pub durability: Durability,
    /// The stream's order.
    pub order: Order,
    /// Its streamlets.
    pub streamlets: u32,
    /// Its lanes.
    pub lanes: u32,
    /// Producers.
    pub producers: u32,
    /// Members of the application.
    pub consumers: u32,
    /// Records per second of all producers together; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// Bytes of a record's value.
    pub record_bytes: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Bytes of the stream's largest segments; `None`: small ones, so that there is always one about to be closed, opened,
    /// stored.
    pub segment_bytes: Option<u32>,
    /// The server's arena.
    pub arena_bytes: u64,
    /// Time between two faults, at least and at most.
    pub between: (Duration, Duration),
    /// How long a frozen server stays frozen, or a disk full after acknowledgements have stopped.
    pub hold: Duration,
    /// How long it may take until records are acknowledged again after a fault, or are not any more with a full disk.
    pub recovery: Duration,
    /// Bytes of the file system that is made for `full-disk`; `None`: as many as all rounds need.
    pub disk_bytes: Option<u64>,
    /// Whether the directory stays although all went well.
    pub keep: bool,
    /// Asked when the user has had enough: the server is ended then, and what was made for the run is deleted.
    pub stop: Stop,
}

impl ChaosConfig {
    /// Fifty kills of `program`, everything else as `kera verify chaos` has it.
    pub fn new(program: PathBuf) -> ChaosConfig {
        ChaosConfig {
            program,
            dir: std::env::temp_dir(),
            rounds: 50,
            faults: vec![Fault::Kill],
            seed: 1,
            durability: Durability::Process,
            order: Order::Lane,
            streamlets: 4,
            lanes: 2,
            producers: 4,
            consumers: 2,
            rate: Some(20_000.0),
            record_bytes: 100,
            chunk_bytes: 2 << 10,
            segment_bytes: None,
            arena_bytes: 256 << 20,
            between: (Duration::from_millis(200), Duration::from_millis(2000)),
            hold: Duration::from_secs(5),
            recovery: Duration::from_secs(60),
            disk_bytes: None,
            keep: false,
            stop: Stop::new(),
        }
    }

    /// The same for a full disk, if that is among the `faults`: so many records that arena and disk are full soon.
    pub fn for_faults(program: PathBuf, faults: Vec<Fault>) -> ChaosConfig {
        let mut config = ChaosConfig { faults, ..ChaosConfig::new(program) };
        if config.faults.contains(&Fault::FullDisk) {
            (config.rate, config.chunk_bytes, config.arena_bytes) = (Some(100_000.0), 16 << 10, 32 << 20);
        }
        config
    }

    /// More flags of the server. What it allocates ahead on the disk it can still write to when the disk is full.
    fn server_flags(&self) -> Vec<String> {
        if !self.faults.contains(&Fault::FullDisk) {
            return Vec::new();
        }
        let small = ["--container-bytes", "16MiB", "--virtual-log-file-bytes", "4MiB", "--virtual-log-keep-bytes"];
        small.into_iter().chain(["16MiB"]).map(String::from).collect()
    }

    /// Bytes of the stream's largest segments: as asked for, or small ones that hold a few chunks.
    fn segment_bytes(&self) -> u32 {
        const SMALL: u32 = 128 << 10;
        const CHUNKS: usize = 4;
        let chunk = self.chunk_bytes.max(self.record_bytes);
        let few = chunk.saturating_mul(CHUNKS).min(SEGMENT_BYTES_MAX).next_power_of_two() as u32;
        self.segment_bytes.unwrap_or(few.max(SMALL))
    }

    /// Bytes of the small file system.
    fn disk_bytes(&self) -> u64 {
        let all = 4 * FILES_BYTES + u64::from(self.rounds) * self.round_bytes();
        self.disk_bytes.unwrap_or(all)
    }

    /// The least that the small file system can do with.
    fn disk_bytes_min(&self) -> u64 {
        FILES_BYTES + self.round_bytes()
    }

    /// What a round leaves on the disk: the records of the time between two faults, then what waits in the arena and has
    /// room in files that are allocated ahead.
    fn round_bytes(&self) -> u64 {
        let record_bytes = 2 * self.record_bytes as u64;
        let between = self.rate.unwrap_or(0.0) * self.between.1.as_secs_f64() * record_bytes as f64;
        (between as u64).saturating_add(self.arena_bytes).saturating_add(FILES_BYTES)
    }

    /// The faults and how long to wait before each: the same for the same seed.
    fn plan(&self) -> Vec<(Duration, Fault)> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        (0..self.rounds)
            .map(|_| {
                let wait = random.random_range(self.between.0..=self.between.1);
                (wait, self.faults[random.random_range(0..self.faults.len())])
            })
            .collect()
    }
}

/// How it went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChaosReport {
    /// Whether every promise held.
    pub holds: bool,
    /// Faults done, by kind.
    pub faults: std::collections::BTreeMap<&'static str, u32>,
    /// Records acknowledged.
    pub acknowledged: u64,
    /// Records handed over.
    pub sent: u64,
    /// Records given up.
    pub given_up: u64,
    /// Chunks that were sent again and recognised.
    pub duplicate_chunks: u64,
    /// Times that producers connected again.
    pub reconnects: u64,
    /// From the start of a server that was killed or stopped until it listened, in milliseconds.
    pub start_ms: Vec<f64>,
    /// From the end of a fault (the start of a server, SIGCONT, space given back) until the next acknowledgement, in
    /// milliseconds.
    pub recovery_ms: Vec<f64>,
    /// From a full disk until nothing was acknowledged any more, in milliseconds.
    pub stopped_ms: Vec<f64>,
    /// For how long nothing was acknowledged while the disk was full, in milliseconds.
    pub stood_still_ms: Vec<f64>,
    /// Whether the stream's segments were to be large enough to be written through to their containers (durability `power`).
    pub large_segments: bool,
    /// Bytes of large segments that were, as far as was seen: each life of the server is asked before it is tormented.
    pub through_bytes: u64,
    /// Lives of the server in which some were.
    pub through_lives: u32,
    /// What the application was given.
    pub application: String,
    /// What is in the stream.
    pub stream: String,
    /// What went wrong, the first thing first.
    pub problems: Vec<String>,
    /// How long all of it took.
    pub seconds: f64,
    /// Where server log, data and acknowledgements are, if they were kept.
    pub kept: Option<PathBuf>,
}

impl std::fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let done: Vec<String> = self.faults.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(f, "faults: {}; in {:.0} s", done.join(", "), self.seconds)?;
        writeln!(
            f,
            "producers: {} records sent, {} acknowledged, {} given up; {} retries recognised, {} reconnects",
            self.sent, self.acknowledged, self.given_up, self.duplicate_chunks, self.reconnects
        )?;
        let line = |name: &str, times: &[f64]| {
            let mut times = times.to_vec();
            let median = crate::limit::median(&mut times);
            match times.last() {
                None => String::new(),
                Some(longest) => format!("{name}: median {median:.0} ms, longest {longest:.0} ms\n"),
            }
        };
        f.write_str(&line("start of the server", &self.start_ms))?;
        f.write_str(&line("full disk: acknowledgements stopped after", &self.stopped_ms))?;
        f.write_str(&line("full disk: they stood still for", &self.stood_still_ms))?;
        f.write_str(&line("acknowledging again after", &self.recovery_ms))?;
        if self.through_bytes > 0 {
            let (mib, lives) = (self.through_bytes as f64 / f64::from(1 << 20), self.through_lives);
            writeln!(
                f,
                "large segments: {mib:.1} MiB written through to containers, in {lives} of the server's lives"
            )?;
        } else if self.large_segments {
            f.write_str(
                "large segments: none was written through; that takes 4 MB/s in each lane and an arena of 64 of them: \
                 higher --rate, fewer --lanes, larger --arena-bytes\n",
            )?;
        }
        writeln!(f, "application: {}", self.application)?;
        writeln!(f, "stream: {}", self.stream)?;
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        if let Some(dir) = &self.kept {
            writeln!(f, "kept for a look: {}", dir.display())?;
        }
        f.write_str(if self.holds {
            "everything that was promised holds"
        } else {
            "NOT everything that was promised holds"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_plan() {
        let mut config = ChaosConfig::new("kera".into());
        config.faults = vec![Fault::Kill, Fault::Freeze, Fault::Stop];
        let plan = config.plan();
        assert_eq!(plan.len(), 50);
        assert_eq!(plan, config.plan());
        assert!(plan.iter().all(|(wait, _)| (config.between.0..=config.between.1).contains(wait)));
        assert!(config.faults.iter().all(|fault| plan.iter().any(|(_, planned)| planned == fault)));
        config.seed += 1;
        assert_ne!(plan, config.plan());
    }

    #[test]
    fn a_full_disk_gets_a_load_and_files_that_fill_it_and_has_room_for_all_rounds() {
        let config = ChaosConfig::for_faults("kera".into(), vec![Fault::Kill, Fault::FullDisk]);
        config.check().unwrap();
        assert!(config.rate > ChaosConfig::new("kera".into()).rate);
        assert!(config.server_flags().join(" ").contains("--container-bytes 16MiB"));
        let more = ChaosConfig { rounds: 2 * config.rounds, ..config.clone() };
        assert!(more.disk_bytes() > config.disk_bytes());
        assert_eq!(ChaosConfig { disk_bytes: Some(5), ..more }.disk_bytes(), 5);
        assert!(ChaosConfig::for_faults("kera".into(), vec![Fault::Kill]).server_flags().is_empty());
    }

    #[test]
    fn faults_have_names() {
        for fault in [Fault::Kill, Fault::Power, Fault::Freeze, Fault::FullDisk, Fault::Stop] {
            assert_eq!(fault.name().parse::<Fault>(), Ok(fault));
        }
        assert!("fire".parse::<Fault>().unwrap_err().contains("full-disk"));
    }

    #[test]
    fn a_report_says_whether_large_segments_were_written_through() {
        let mut report = ChaosReport { large_segments: true, ..ChaosReport::default() };
        assert!(report.to_string().contains("none was written through"));
        (report.through_bytes, report.through_lives) = (3 << 20, 2);
        assert!(report.to_string().contains("3.0 MiB written through to containers, in 2 of"), "{report}");
        report.large_segments = false;
        report.through_bytes = 0;
        assert!(!report.to_string().contains("written through"));
    }
}
