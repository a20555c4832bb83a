//! What adapters of peers have in common: servers as child processes, free ports, flags that load generators share.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Job;
use crate::BenchError;
use crate::experiment::workload::{Mode, Workload};
use crate::server::end_with_parent;

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

/// An address of loopback whose port is free right now.
pub(super) fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(|e| BenchError::io("looking for a free port", e))
}

/// A file that has to be there, or how to make it.
pub(super) fn needed(path: PathBuf, how: &str) -> Result<PathBuf, BenchError> {
    if path.is_file() { Ok(path) } else { Err(BenchError::server(format!("no {}", path.display()), how)) }
}

/// What a script prints.
pub(super) fn script(path: &Path, words: &[&str]) -> Result<String, BenchError> {
    let output = Command::new(path).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|e| BenchError::io_at("running", path, e))?;
    let shown = format!("{} {}", path.display(), words.join(" "));
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
        Mode::Restart | Mode::Outage => Some("only nodes of KerA are killed so far".into()),
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
