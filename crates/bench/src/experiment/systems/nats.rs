//! NATS JetStream, loaded by `peers/nats`: a partition is a stream of its own, because a JetStream stream is one log.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::kera::without_load;
use super::peer::{PeerServer, common_flags, free_address, needed, only_kera, script};
use super::{Job, Load, Outcome, Places, System, drive, read_json, remake};
use crate::BenchError;
use crate::experiment::workload::{Mode, Safety, Workload};
use crate::process::ProcessUsage;

/// Streams that are made for a run at most: making one takes a while.
const PARTITIONS_MAX: u64 = 1024;

/// NATS JetStream.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    load: PathBuf,
    dir: PathBuf,
    version: String,
    server: Option<(Safety, PeerServer)>,
}

impl Nats {
    /// Looks for the server and the load generator.
    pub fn new(places: &Places) -> Result<Nats, BenchError> {
        let path = needed(places.peers.join("nats/nats.sh"), "run it in the repository's root, or give --peers-dir")?;
        let program = PathBuf::from(script(&path, &["program"])?);
        let load = PathBuf::from(script(&path, &["load"])?);
        let version = script(&path, &["version"])?;
        Ok(Nats { program, load, dir: places.dir.join("nats"), version, server: None })
    }

    fn start(&mut self, safety: Safety) -> Result<&PeerServer, BenchError> {
        if self.server.as_ref().is_none_or(|(with, _)| *with != safety) {
            self.stop();
            remake(&self.dir)?;
            let address = free_address()?;
            let sync = if safety == Safety::Power { "always" } else { "2m" };
            let settings = format!(
                "listen: \"{address}\"\njetstream {{\n  store_dir: \"{}\"\n  sync_interval: {sync}\n  max_file_store: 100GB\n}}\n",
                self.dir.display()
            );
            let file = self.dir.join("nats.conf");
            std::fs::write(&file, settings).map_err(|e| BenchError::io_at("writing", &file, e))?;
            let mut command = Command::new(&self.program);
            command.arg("-c").arg(&file);
            self.server = Some((safety, PeerServer::start(command, address, &self.dir)?));
        }
        Ok(&self.server.as_ref().expect("it was just started").1)
    }
}

impl System for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn version(&self) -> String {
        format!("{}, loaded by peers/nats (its own Go client)", self.version)
    }

    fn settings(&self) -> String {
        "one server, file storage, one replica, otherwise its own settings; each partition is a stream of its own with max_bytes; \
         producers publish asynchronously with as many messages under way as KerA has in its requests, at most 4,000 each"
            .into()
    }

    fn guarantees(&self, workload: &Workload) -> String {
        match workload.durability {
            Safety::Process => {
                "one copy, sync_interval 2m (its default): written to the page cache before it is acknowledged"
            }
            Safety::Power => "one copy, sync_interval always: synced before it is acknowledged",
        }
        .into()
    }

    fn leaves_out(&self, workload: &Workload) -> Option<String> {
        if workload.partitions() > PARTITIONS_MAX {
            return Some(format!("more than {PARTITIONS_MAX} streams take long to make"));
        }
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

impl Drop for Nats {
    fn drop(&mut self) {
        self.stop();
    }
}
