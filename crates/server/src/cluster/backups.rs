//! The role *backup* of this node, and how its coordinator reaches the backups of others.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use kera_backup::{Backup, BackupConfig, BackupService, BackupSession, BackupStats};
use kera_coordinator::cluster::{ClusterState, ToldEnd};
use kera_env::{Clock, Disk, MachineProcessors, SystemRandom, boot_id};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_log::store::FirstWrites;
use kera_protocol::{Body, FenceNode, ListReplicas, LogView, NodeFenced, Op, ReleaseBlocks};
use kera_raft::{Backups, Change, Group, Observer, Pending, Transport, in_versions};
use kera_rpc::SessionWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::fatal::Fatal;

/// Threads for what may wait for disks: fences go first, and one that reads for a recovery must not hold them up.
const SERVICE_THREADS: usize = 2;

/// Has backups fence, over the connections of the coordinators' log.
pub(super) struct RpcBackups(pub(super) Arc<dyn Transport>);

impl Backups for RpcBackups {
    fn fence(
        &self,
        backup: NodeNumber,
        address: &str,
        node: NodeNumber,
        epoch: u32,
        logs: Vec<(LogName, u64)>,
    ) -> Pending<Vec<(LogName, ToldEnd)>> {
        let views = logs.iter().map(|(log, first)| LogView { vlog: log.log, first_block: *first }).collect();
        let bodies = in_versions(&FenceNode { node, epoch, logs: views });
        let asked = self.0.call_versions(backup.into(), address, Op::FenceNode, bodies);
        Box::pin(async move {
            let (version, answer) = asked.await?;
            let fenced = NodeFenced::decode(version, &answer).map_err(|error| error.to_string())?;
            Ok(fenced.ends.into_iter().map(|end| (LogName { node, epoch, log: end.vlog }, end.into())).collect())
        })
    }
}

/// Producers wait for copies of others, and for nothing that the store writes.
impl FirstWrites for BackupRole {
    fn written_bytes(&self, disk: usize) -> u64 {
        self.backup().map_or(0, |backup| backup.written_bytes(disk))
    }
}

/// A backup that runs.
struct Running {
    service: Arc<BackupService>,
    threads: Vec<JoinHandle<()>>,
}

/// The node's backup: there once the node has joined, if that is one of its roles.
#[derive(Default)]
pub(super) struct BackupRole {
    service: OnceLock<Arc<BackupService>>,
    running: Mutex<Option<Running>>,
}

impl BackupRole {
    /// Opens what the disks have, gives back what was given up while the node was away, and follows the coordinators from then on.
    /// `group` must know of the node's joining.
    pub(super) fn start(
        self: &Arc<Self>,
        group: &Arc<Group>,
        node: u32,
        disks: &[Arc<dyn Disk>],
        clock: &Arc<dyn Clock>,
        runtime: &Handle,
    ) -> Result<(), Fatal> {
        let config = BackupConfig {
            boot_id: Some(boot_id()),
            processors: Some(Arc::new(MachineProcessors)),
            ..BackupConfig::new(group.read(ClusterState::cluster), node)
        };
        let opened = Backup::open(config, disks.to_vec(), clock.clone(), Arc::new(SystemRandom));
        let (backup, report) = opened.map_err(|error| Fatal::Data { message: format!("copies: {error}") })?;
        tracing::info!(?report, "copies of other nodes");
        let service = BackupService::new(backup.clone());
        let mut threads = Vec::new();
        for disk in 0..backup.disk_count() {
            let (writes, syncs) = (backup.clone(), backup.clone());
            threads.push(spawn("kera-backup", move || writes.run(disk))?);
            threads.push(spawn("kera-backup-sync", move || syncs.run_syncs(disk))?);
        }
        for _ in 0..SERVICE_THREADS {
            let service = service.clone();
            threads.push(spawn("kera-backup-ask", move || service.run())?);
        }
        // Blocks of a log come after its first view was agreed to, and the node has joined since it stored its last one: what the
        // coordinators do not know now was given up.
        forget_given_up(&backup, group);
        group.observe(Arc::new(Follow { backup: backup.clone(), runtime: runtime.clone() }));
        *self.running.lock() = Some(Running { service: service.clone(), threads });
        let _ = self.service.set(service);
        Ok(())
    }

    /// Once it runs.
    pub(super) fn backup(&self) -> Option<&Backup> {
        self.service.get().map(|service| &**service.backup())
    }

    /// The same to keep.
    pub(super) fn shared(&self) -> Option<Arc<Backup>> {
        self.service.get().map(|service| service.backup().clone())
    }

    /// A session's part, if the backup runs.
    pub(super) fn session(&self, waker: SessionWaker) -> Option<BackupSession> {
        self.service.get().map(|service| BackupSession::new(service.clone(), waker))
    }

    /// What it holds and does; zeros if this node is none.
    pub(super) fn stats(&self) -> BackupStats {
        self.service.get().map(|service| service.backup().stats()).unwrap_or_default()
    }

    /// For how long no disk of it has come any further; 0 if this node is none.
    pub(super) fn stands_still_us(&self) -> u64 {
        self.backup().map_or(0, Backup::stands_still_us)
    }

    /// Writes what was taken and stops. Blocks.
    pub(super) fn stop(&self) {
        let Some(Running { service, threads }) = self.running.lock().take() else { return };
        service.backup().stop();
        service.stop();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the backup ended with a panic");
            }
        }
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Fatal> {
    let no_thread = |error: io::Error| Fatal::Resources { what: "a thread of the backup", error };
    std::thread::Builder::new().name(name.into()).stack_size(1 << 20).spawn(work).map_err(no_thread)
}

fn forget_given_up(backup: &Backup, group: &Group) {
    let mut after = None;
    loop {
        let page = backup.list(&ListReplicas { after, limit: 0 });
        for replica in &page.replicas {
            let name = LogName::from(replica.log);
            let (is_known, is_live) =
                group.read(|state| (state.logs().contains_key(&name), state.is_live(name.node, name.epoch)));
            if !is_known {
                forget(backup, replica.log);
            } else if !is_live {
                backup.keep_whole(replica.log);
            }
        }
        after = page.replicas.last().map(|replica| replica.log);
        if !page.more {
            return;
        }
    }
}

fn forget(backup: &Backup, log: LogId) {
    let released = backup.release(&ReleaseBlocks { log, through_block: u64::MAX });
    if released.files > 0 {
        tracing::info!(%log, files = released.files, bytes = released.bytes, "copies of a log were given back");
    }
}

/// Gives files back when a log is given up.
struct Follow {
    backup: Arc<Backup>,
    runtime: Handle,
}

impl Observer for Follow {
    fn changed(&self, _index: u64, change: &Change) {
        if let Change::Cluster(ClusterEntry::LogGivenUp { log }) = change {
            let (backup, log) = (self.backup.clone(), LogId::from(*log));
            self.runtime.spawn_blocking(move || forget(&backup, log));
        }
    }
}
