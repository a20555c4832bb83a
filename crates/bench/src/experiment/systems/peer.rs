//! Peers whose server is one program with a load generator beside it (NATS, Redis): they differ in a command and in words. And what all
//! adapters of peers have in common: servers as child processes, free ports, flags that load generators share.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::kera::without_load;
use super::{Job, Load, Outcome, System, drive, read_json, remake};
use crate::BenchError;
use crate::experiment::workload::{Mode, Safety, Workload};
use crate::ports;
use crate::process::ProcessUsage;
use crate::server::end_with_parent;

/// What is particular about a peer.
#[derive(Debug)]
pub(super) struct About {
    pub(super) name: &'static str,
    /// What loads it, for people.
    pub(super) loaded_by: &'static str,
    pub(super) settings: &'static str,
    /// What an acknowledgement means.
    pub(super) guarantees: fn(Safety) -> &'static str,
    /// Partitions that it is asked for at most, and why.
    pub(super) partitions_max: Option<(u64, &'static str)>,
    /// Adds what its server needs to the program's command: an address, and an empty folder for its data.
    pub(super) serve: fn(&mut Command, SocketAddr, &Path, Safety) -> Result<(), BenchError>,
}

/// A peer. Its server is kept from one run to the next as long as both want the same safety.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) about: &'static About,
    pub(super) program: PathBuf,
    pub(super) load: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) version: String,
    pub(super) server: Option<(Safety, PeerServer)>,
}

impl Peer {
    fn start(&mut self, safety: Safety) -> Result<&PeerServer, BenchError> {
        if self.server.as_ref().is_none_or(|(with, _)| *with != safety) {
            self.stop();
            remake(&self.dir)?;
            let [address] = ports::free()?;
            let mut command = Command::new(&self.program);
            (self.about.serve)(&mut command, address, &self.dir, safety)?;
            self.server = Some((safety, PeerServer::start(command, address, &self.dir)?));
        }
        Ok(&self.server.as_ref().expect("it was just started").1)
    }

    fn measure_start(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        self.stop();
        let server = self.start(Safety::Process)?;
        let (took, pid) = (server.took, server.pid());
        std::thread::sleep(Duration::from_secs_f64(job.warmup_seconds));
        let resident = ProcessUsage::of(pid).map_or(0, |usage| usage.resident_bytes);
        self.stop();
        Ok(without_load(took, resident))
    }
}

impl System for Peer {
    fn name(&self) -> &'static str {
        self.about.name
    }

    fn version(&self) -> String {
        format!("{}, loaded by {}", self.version, self.about.loaded_by)
    }

    fn settings(&self) -> String {
        self.about.settings.to_owned()
    }

    fn guarantees(&self, workload: &Workload) -> String {
        (self.about.guarantees)(workload.durability).to_owned()
    }

    fn leaves_out(&self, workload: &Workload) -> Option<String> {
        if let Some((most, why)) = self.about.partitions_max
            && workload.partitions() > most
        {
            return Some(format!("more than {most} partitions: {why}"));
        }
        if workload.mode == Mode::Consume {
            return Some("its load generator has no run that only consumes".into());
        }
        if workload.nodes > 1 {
            return Some("it is measured as one server".into());
        }
        if workload.mode == Mode::Outage {
            return Some("a single server is killed and started again on KerA only".into());
        }
        only_kera(workload)
    }

    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        if job.workload.mode == Mode::Start {
            return self.measure_start(job);
        }
        let server = self.start(job.workload.durability)?;
        let (address, pid) = (server.address, server.pid());
        let mut command = Command::new(&self.load);
        common_flags(&mut command, job, address, pid);
        let load = Load { command, servers: vec![pid], dir: &self.dir, metrics: vec![], read: read_json };
        drive(load, job, |_| Ok(()))
    }

    fn stop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The longest that a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server of a peer. It is stopped when dropped.
#[derive(Debug)]
pub(super) struct PeerServer {
    child: Child,
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// From exec to an open port.
    pub(super) took: Duration,
}

impl PeerServer {
    /// Starts a program and waits until its port is open. Its output goes to a file in `dir`.
    pub(super) fn start(mut command: Command, address: SocketAddr, dir: &Path) -> Result<PeerServer, BenchError> {
        let log = dir.join("server.log");
        let file = std::fs::File::create(&log).map_err(|e| BenchError::io_at("creating", &log, e))?;
        let other = file.try_clone().map_err(|e| BenchError::io_at("sharing", &log, e))?;
        command.stdin(Stdio::null()).stdout(file).stderr(other);
        end_with_parent(&mut command);
        let name = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let child = command.spawn().map_err(|e| BenchError::io(format!("starting {name}"), e))?;
        let mut server = PeerServer { child, address, took: Duration::ZERO };
        loop {
            if TcpStream::connect(address).is_ok() {
                server.took = started.elapsed();
                return Ok(server);
            }
            let ended = server.child.try_wait().map_err(|e| BenchError::io(format!("looking after {name}"), e))?;
            if ended.is_some() || started.elapsed() > PATIENCE {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let tail: String = text.lines().rev().take(5).collect::<Vec<_>>().join("; ");
                return Err(BenchError::server(format!("starting {name}"), format!("it does not serve: {tail}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // The child has not been waited for, so its id cannot have gone to another process.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that has to be there, or how to make it.
pub(super) fn needed(path: PathBuf, how: &str) -> Result<PathBuf, BenchError> {
    if path.is_file() { Ok(path) } else { Err(BenchError::server(format!("no {}", path.display()), how)) }
}

/// What a script prints.
pub(super) fn script(path: &Path, words: &[&str]) -> Result<String, BenchError> {
    let mut command = Command::new(path);
    command.args(words).stdin(Stdio::null());
    output_of(command)
}

/// What a command prints; an error with what it says if it fails.
pub(super) fn output_of(mut command: Command) -> Result<String, BenchError> {
    let shown: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let shown = shown.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.output().map_err(|e| BenchError::io(format!("running {shown}"), e))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(BenchError::server(shown, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// The word for what a load generator is to do.
pub(super) fn command_of(workload: &Workload) -> &'static str {
    match workload.mode {
        Mode::Consume => "consume",
        Mode::Both => "both",
        _ => "produce",
    }
}

/// Why a peer cannot do what only KerA has, if the workload asks for that.
pub(super) fn only_kera(workload: &Workload) -> Option<String> {
    if workload.lanes > 1 {
        return Some("it has no lanes within a partition".into());
    }
    match workload.mode {
        Mode::Restart => Some("only nodes of KerA are killed and started again".into()),
        _ => None,
    }
}

/// Flags that the load generators of NATS and Redis share.
pub(super) fn common_flags(command: &mut Command, job: &Job<'_>, address: SocketAddr, server: u32) {
    let workload = job.workload;
    let partitions = workload.partitions();
    let chunk_records = workload.records_per_chunk(8);
    let request_records =
        (workload.request_bytes() / (workload.record_bytes + 8)).min(chunk_records * partitions).max(1);
    command.arg(command_of(workload));
    let mut flag = |name: &str, value: String| {
        command.arg(name).arg(value);
    };
    flag("--address", address.to_string());
    flag("--partitions", partitions.to_string());
    flag("--record-bytes", workload.record_bytes.to_string());
    flag("--chunk-records", chunk_records.to_string());
    flag("--request-records", request_records.to_string());
    flag("--in-flight", workload.in_flight.to_string());
    flag("--producers", workload.producers.to_string());
    flag("--consumers", workload.consumers.to_string());
    flag("--seconds", job.seconds.to_string());
    flag("--warmup-seconds", job.warmup_seconds.to_string());
    flag("--records", workload.records.to_string());
    flag("--kept-bytes", (workload.kept_bytes / partitions).max(1 << 20).to_string());
    flag("--server-pid", server.to_string());
    if let Some(rate) = workload.rate {
        flag("--rate", rate.to_string());
    }
}
