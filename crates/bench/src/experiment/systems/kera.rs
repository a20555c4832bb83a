//! KerA: a node as `kera serve`, loaded by `kera bench`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Job, Load, Outcome, Places, System, drive, output, read_json, remake};
use crate::BenchError;
use crate::experiment::sample::Usage;
use crate::experiment::workload::{Mode, Safety, Workload};
use crate::process::ProcessUsage;
use crate::server::{Server, ServerConfig};

/// Where arenas are when there is a shared memory file system, which is where a node keeps them by default.
const SHARED_MEMORY: &str = "/dev/shm";
/// The part of a run after which the server of an outage is killed.
const OUTAGE_AT: f64 = 0.4;

/// KerA on one node.
#[derive(Debug)]
pub struct Kera {
    program: PathBuf,
    dir: PathBuf,
    arena_dir: Option<PathBuf>,
    version: String,
    /// The node that runs and what it was started with.
    node: Option<(Started, Server)>,
}

/// What a node is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Started {
    arena_bytes: u64,
    virtual_logs: u32,
    http: bool,
}

impl Kera {
    /// The program is asked for its version: an error if it does not run.
    pub fn new(places: &Places) -> Result<Kera, BenchError> {
        let mut ask = Command::new(&places.kera);
        let answer = ask.arg("--version").output().map_err(|e| {
            let message = format!("{}: {e}; build it with `cargo build --release -p kera`", places.kera.display());
            BenchError::setting("kera", message)
        })?;
        let shared = std::path::Path::new(SHARED_MEMORY);
        let number = std::process::id();
        // Another one for every adapter of a process: tests have several at once.
        let unique = format!("kera-bench-{number}-{:x}", crate::clock::now_ns());
        Ok(Kera {
            program: places.kera.clone(),
            dir: places.dir.join("kera"),
            arena_dir: shared.is_dir().then(|| shared.join(unique)),
            version: String::from_utf8_lossy(&answer.stdout).trim().to_owned(),
            node: None,
        })
    }

    fn config(&self, how: Started) -> ServerConfig {
        ServerConfig {
            arena_bytes: Some(how.arena_bytes),
            arena_dir: self.arena_dir.clone(),
            http: how.http,
            flags: vec!["--virtual-logs".into(), how.virtual_logs.to_string()],
            ..ServerConfig::in_dir(&self.program, &self.dir)
        }
    }

    fn remake(&self) -> Result<(), BenchError> {
        remake(&self.dir)?;
        self.arena_dir.as_deref().map_or(Ok(()), remake)
    }

    /// A node on an empty directory, or the one that runs if it is the same.
    fn node(&mut self, how: Started) -> Result<&mut Server, BenchError> {
        if self.node.as_ref().is_none_or(|(started, _)| *started != how) {
            self.stop();
            self.remake()?;
            self.node = Some((how, Server::start(self.config(how))?.0));
        }
        let (_, server) = self.node.as_mut().expect("it was just started");
        Ok(server)
    }

    fn bench(&self, address: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("bench").args(words).args(["--json", "--connect", address]);
        command
    }

    fn started(job: &Job<'_>) -> Started {
        let workload = job.workload;
        Started { arena_bytes: workload.arena_bytes, virtual_logs: workload.virtual_logs, http: job.profile }
    }

    fn load(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let server = self.node(Kera::started(job))?;
        let (address, pid, metrics) = (server.address(), server.pid(), server.http_address());
        let command = self.bench(&address, &flags(job));
        let load = Load { command, server: pid, dir: &self.dir, metrics, read: read_json };
        drive(load, job, |_| Ok(()))
    }

    fn start(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        self.stop();
        self.remake()?;
        let (mut server, took) = Server::start(self.config(Kera::started(job)))?;
        std::thread::sleep(Duration::from_secs_f64(job.warmup_seconds));
        let resident = server.pid().and_then(ProcessUsage::of).map_or(0, |usage| usage.resident_bytes);
        server.stop(Duration::from_secs(30))?;
        Ok(without_load(took, resident))
    }

    fn restart(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        self.stop();
        let how = Kera::started(job);
        let fill = (job.workload.fill_mib << 20) / (job.workload.record_bytes + 8);
        let mut words = ["produce", "--keep", "--records", &fill.max(1).to_string()].map(str::to_owned).to_vec();
        words.extend(shape(job.workload));
        let address = self.node(how)?.address();
        output(self.bench(&address, &words), job.stop)?;
        let (_, server) = self.node.as_mut().expect("it was just filled");
        server.kill()?;
        let took = server.start_again()?;
        let resident = server.pid().and_then(ProcessUsage::of).map_or(0, |usage| usage.resident_bytes);
        self.stop();
        Ok(without_load(took, resident))
    }

    fn outage(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let how = Kera::started(job);
        let address = self.node(how)?.address();
        let command = self.bench(&address, &flags(job));
        let (_, server) = self.node.as_mut().expect("it was just started");
        let at = Duration::from_secs_f64(job.warmup_seconds + job.seconds * OUTAGE_AT);
        let load = Load { command, server: server.pid(), dir: &self.dir, metrics: None, read: read_json };
        let mut took = None;
        let mut outcome = drive(load, job, |elapsed| {
            if took.is_none() && elapsed >= at {
                let killed = Instant::now();
                server.kill()?;
                server.start_again()?;
                took = Some(killed.elapsed());
            }
            Ok(())
        })?;
        let Some(took) = took else {
            return Err(BenchError::server(
                "an outage",
                "the load ended before the server was killed; give it more seconds",
            ));
        };
        outcome.figures["start_ms"] = json!(took.as_secs_f64() * 1e3);
        Ok(outcome)
    }
}

/// A measurement without a load generator.
pub(super) fn without_load(took: Duration, resident_bytes: u64) -> Outcome {
    Outcome {
        figures: json!({ "start_ms": took.as_secs_f64() * 1e3, "errors": 0 }),
        usage: Usage { server_bytes: resident_bytes, ..Usage::default() },
        command: vec![],
        seen: vec![],
    }
}

impl System for Kera {
    fn name(&self) -> &'static str {
        "kera"
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        "`kera serve` with its defaults but for arena and virtual logs, which each run's workload says; checksums on, idempotent \
         producers on; loaded by `kera bench`"
            .into()
    }

    fn guarantees(&self, workload: &Workload) -> String {
        match workload.durability {
            Safety::Process => "one copy; acknowledged when it is in the arena: survives kill -9, not loss of power",
            Safety::Power => "one copy; acknowledged when it is on disk and synced: survives loss of power",
        }
        .into()
    }

    fn leaves_out(&self, _workload: &Workload) -> Option<String> {
        None
    }

    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        match job.workload.mode {
            Mode::Produce | Mode::Consume | Mode::Both => self.load(job),
            Mode::Start => self.start(job),
            Mode::Restart => self.restart(job),
            Mode::Outage => self.outage(job),
        }
    }

    fn stop(&mut self) {
        if let Some((_, mut server)) = self.node.take()
            && server.stop(Duration::from_secs(60)).is_err()
        {
            let _ = server.kill();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(dir) = &self.arena_dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Kera {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Flags for what the workload looks like, without how long it takes.
fn shape(workload: &Workload) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
    flag("--streams", workload.streams.to_string());
    flag("--streamlets", workload.streamlets.to_string());
    flag("--lanes", workload.lanes.to_string());
    flag("--chunk-bytes", workload.chunk_bytes.to_string());
    flag("--request-bytes", workload.request_bytes().to_string());
    flag("--record-bytes", workload.record_bytes.to_string());
    flag("--producers", workload.producers.to_string());
    flag("--consumers", workload.consumers.to_string());
    flag("--linger-ms", workload.linger_ms.to_string());
    flag("--in-flight", workload.in_flight.to_string());
    flag("--durability", workload.durability.name().into());
    if let Some(bytes) = workload.segment_bytes {
        flag("--segment-bytes", bytes.to_string());
    }
    let switches = [
        (workload.record_checksum, "--checksum"),
        (!workload.verify_checksums, "--no-verify"),
        (!workload.idempotent, "--no-idempotence"),
        (workload.long_poll, "--long-poll"),
    ];
    words.extend(switches.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()));
    words
}

/// All words behind `kera bench`.
fn flags(job: &Job<'_>) -> Vec<String> {
    let workload = job.workload;
    let mut words = vec![
        match workload.mode {
            Mode::Consume => "consume",
            Mode::Both => "both",
            _ => "produce",
        }
        .to_owned(),
    ];
    words.extend(shape(workload));
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if workload.mode == Mode::Consume {
        flag("--records", workload.records.to_string());
    } else if let Some(records) = job.records.filter(|_| workload.mode != Mode::Outage) {
        flag("--records", records.to_string());
    } else {
        flag("--seconds", job.seconds.to_string());
        flag("--warmup-seconds", job.warmup_seconds.to_string());
        flag("--retention-bytes", workload.kept_bytes_each().to_string());
    }
    if let Some(rate) = workload.rate {
        flag("--rate", rate.to_string());
    }
    words
}

/// How many clients of the main side there were: what rates for each client are divided by.
pub(crate) fn clients(workload: &Workload) -> Value {
    json!(if workload.mode == Mode::Consume { workload.consumers } else { workload.producers })
}
