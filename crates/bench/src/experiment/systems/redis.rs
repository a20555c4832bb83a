//! Redis Streams, loaded by `peers/redis`: a stream is a key, records are entries with one field, pipelined.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::kera::without_load;
use super::peer::{PeerServer, common_flags, free_address, needed, only_kera, script};
use super::{Job, Load, Outcome, Places, System, drive, read_json, remake};
use crate::BenchError;
use crate::experiment::workload::{Mode, Safety, Workload};
use crate::process::ProcessUsage;

/// Redis.
#[derive(Debug)]
pub struct Redis {
    program: PathBuf,
    load: PathBuf,
    dir: PathBuf,
    version: String,
    server: Option<(Safety, PeerServer)>,
}

impl Redis {
    /// Looks for the server and the load generator.
    pub fn new(places: &Places) -> Result<Redis, BenchError> {
        let path = needed(places.peers.join("redis/redis.sh"), "run it in the repository's root, or give --peers-dir")?;
        let how = "build it: cargo build --release --manifest-path peers/redis/Cargo.toml";
        let load = needed(places.peers.join("redis/target/release/redis-bench"), how)?;
        let program = PathBuf::from(script(&path, &["program"])?);
        let version = script(&path, &["version"])?;
        Ok(Redis { program, load, dir: places.dir.join("redis"), version, server: None })
    }

    fn start(&mut self, safety: Safety) -> Result<&PeerServer, BenchError> {
        if self.server.as_ref().is_none_or(|(with, _)| *with != safety) {
            self.stop();
            remake(&self.dir)?;
            let address = free_address()?;
            let mut command = Command::new(&self.program);
            let fsync = if safety == Safety::Power { "always" } else { "no" };
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
            command.arg("--dir").arg(&self.dir).args(["--appendonly", "yes", "--appendfsync", fsync]);
            self.server = Some((safety, PeerServer::start(command, address, &self.dir)?));
        }
        Ok(&self.server.as_ref().expect("it was just started").1)
    }
}

impl System for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn version(&self) -> String {
        format!("{}, loaded by peers/redis (the crate redis)", self.version)
    }

    fn settings(&self) -> String {
        "one server, appendonly yes, snapshots off, otherwise its own settings; each partition is a stream (a key) that XADD trims \
         with MAXLEN ~; a producer pipelines as many records as a request of KerA has"
            .into()
    }

    fn guarantees(&self, workload: &Workload) -> String {
        match workload.durability {
            Safety::Process => {
                "one copy, appendfsync no: written to the page cache before it is acknowledged, survives kill -9"
            }
            Safety::Power => "one copy, appendfsync always: synced before it is acknowledged",
        }
        .into()
    }

    fn leaves_out(&self, workload: &Workload) -> Option<String> {
        if workload.mode == Mode::Consume {
            return Some("its load generator has no run that only consumes".into());
        }
        only_kera(workload)
    }

    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        if job.workload.mode == Mode::Start {
            self.stop();
            let server = self.start(Safety::Process)?;
            let (took, pid) = (server.took, server.pid());
            std::thread::sleep(Duration::from_secs_f64(job.warmup_seconds));
            let resident = ProcessUsage::of(pid).map_or(0, |usage| usage.resident_bytes);
            self.stop();
            return Ok(without_load(took, resident));
        }
        let server = self.start(job.workload.durability)?;
        let (address, pid) = (server.address, server.pid());
        let mut command = Command::new(&self.load);
        common_flags(&mut command, job, address, pid);
        drive(Load { command, server: Some(pid), dir: &self.dir, metrics: None, read: read_json }, job, |_| Ok(()))
    }

    fn stop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop();
    }
}
