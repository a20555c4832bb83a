//! KerA: nodes as `kera serve`, alone or in a cluster, loaded by `kera bench`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nodes::{Nodes, Started};
use super::{Job, Load, Outcome, Places, System, drive, output, read_json, remake};
use crate::BenchError;
use crate::experiment::sample::Usage;
use crate::experiment::workload::{Mode, Safety, Workload};
use crate::process::ProcessUsage;

/// Where arenas are when there is a shared memory file system, which is where a node keeps them by default.
const SHARED_MEMORY: &str = "/dev/shm";
/// The part of a run after which the server of an outage is killed.
pub(super) const OUTAGE_AT: f64 = 0.4;

/// KerA on one node or several.
#[derive(Debug)]
pub struct Kera {
    program: PathBuf,
    dir: PathBuf,
    arena_dir: Option<PathBuf>,
    version: String,
    /// The nodes that run and what they were started with.
    running: Option<(Started, Nodes)>,
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
            running: None,
        })
    }

    fn remake(&self) -> Result<(), BenchError> {
        remake(&self.dir)?;
        self.arena_dir.as_deref().map_or(Ok(()), remake)
    }

    fn start_nodes(&self, how: Started) -> Result<(Nodes, Duration), BenchError> {
        self.remake()?;
        Nodes::start(&self.program, &self.dir, self.arena_dir.as_deref(), how)
    }

    /// Nodes on empty directories, or those that run if they are the same.
    fn nodes(&mut self, how: Started) -> Result<&mut Nodes, BenchError> {
        if self.running.as_ref().is_none_or(|(started, _)| *started != how) {
            self.stop();
            self.running = Some((how, self.start_nodes(how)?.0));
        }
        let (_, nodes) = self.running.as_mut().expect("they were just started");
        Ok(nodes)
    }

    fn bench(&self, address: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("bench").args(words).args(["--json", "--connect", address]);
        command
    }

    fn started(job: &Job<'_>) -> Started {
        let Workload { nodes, arena_bytes, virtual_logs, .. } = *job.workload;
        Started { nodes, arena_bytes, virtual_logs, http: job.profile }
    }

    fn load(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let nodes = self.nodes(Kera::started(job))?;
        let (addresses, servers, metrics) = (nodes.addresses(), nodes.pids(), nodes.http_addresses());
        let command = self.bench(&addresses, &flags(job));
        drive(Load { command, servers, dir: &self.dir, metrics, read: read_json }, job, |_| Ok(()))
    }

    fn start(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        self.stop();
        let (mut nodes, took) = self.start_nodes(Kera::started(job))?;
        std::thread::sleep(Duration::from_secs_f64(job.warmup_seconds));
        let resident = resident_bytes(&nodes.pids());
        nodes.stop(Duration::from_secs(120))?;
        Ok(without_load(took, resident))
    }

    fn restart(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        self.stop();
        let how = Kera::started(job);
        let fill = (job.workload.fill_mib << 20) / (job.workload.record_bytes + 8);
        let mut words = ["produce", "--keep", "--records", &fill.max(1).to_string()].map(str::to_owned).to_vec();
        words.extend(shape(job.workload));
        let addresses = self.nodes(how)?.addresses();
        output(self.bench(&addresses, &words), job.stop)?;
        let (_, nodes) = self.running.as_mut().expect("they were just filled");
        nodes.first().kill()?;
        let took = nodes.first().start_again()?;
        let resident = resident_bytes(&nodes.pids());
        self.stop();
        Ok(without_load(took, resident))
    }

    fn outage(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let how = Kera::started(job);
        let addresses = self.nodes(how)?.addresses();
        let command = self.bench(&addresses, &flags(job));
        let (_, nodes) = self.running.as_mut().expect("they were just started");
        let at = Duration::from_secs_f64(job.warmup_seconds + job.seconds * OUTAGE_AT);
        let load = Load { command, servers: nodes.pids(), dir: &self.dir, metrics: vec![], read: read_json };
        let mut took = None;
        let outcome = drive(load, job, |elapsed| {
            if took.is_none() && elapsed >= at {
                let killed = Instant::now();
                nodes.first().kill()?;
                if how.nodes == 1 {
                    nodes.first().start_again()?;
                }
                took = Some(killed.elapsed());
            }
            Ok(())
        });
        if how.nodes > 1 {
            // The next one begins with nodes that have lost nothing.
            self.stop();
        }
        let mut outcome = outcome?;
        let took = took.ok_or_else(nobody_was_killed)?;
        if how.nodes == 1 {
            outcome.figures["start_ms"] = json!(took.as_secs_f64() * 1e3);
        }
        Ok(outcome)
    }
}

/// The load of an outage was over too soon.
pub(super) fn nobody_was_killed() -> BenchError {
    BenchError::server("an outage", "the load ended before the server was killed; give it more seconds")
}

fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| ProcessUsage::of(*pid)).map(|usage| usage.resident_bytes).sum()
}

/// A measurement without a load generator.
pub(crate) fn without_load(took: Duration, resident_bytes: u64) -> Outcome {
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
        "`kera serve` with its defaults but for arena and virtual logs, which each run's workload says; in a cluster each node is \
         coordinator, broker and backup, a process of its own on this machine; checksums on, idempotent producers on; loaded by `kera bench`"
            .into()
    }

    fn guarantees(&self, workload: &Workload) -> String {
        match (workload.copies, workload.durability) {
            (1, Safety::Process) => {
                "one copy; acknowledged when it is in the arena: survives kill -9, not loss of power".into()
            }
            (1, Safety::Power) => "one copy; acknowledged when it is on disk and synced: survives loss of power".into(),
            (copies, Safety::Process) => format!(
                "{copies} copies; acknowledged when all have it, in the owner's arena and in files of the others, not synced: survives the \
                 loss of {} nodes",
                copies - 1
            ),
            (copies, Safety::Power) => format!("{copies} copies; acknowledged when all have it on disk and synced"),
        }
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
        if let Some((_, mut nodes)) = self.running.take() {
            // One that does not stop is killed.
            let _ = nodes.stop(Duration::from_secs(60));
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
    flag("--replication", workload.copies.to_string());
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
