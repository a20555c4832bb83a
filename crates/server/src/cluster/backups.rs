//! The role *backup* of this node, and how its coordinator reaches the backups of others.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use kera_backup::{Backup, BackupConfig, BackupService, BackupSession, BackupStats, OpenError};
use kera_coordinator::cluster::{ClusterState, ToldEnd};
use kera_env::{Clock, Disk, MachineProcessors, SystemRandom, boot_id};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_log::store::ComesFirst;
use kera_protocol::{BlockRange, Body, FenceNode, ListReplicas, LogView, NodeFenced, Op, ReleaseBlocks};
use kera_raft::{Backups, Change, Group, Observer, Pending, SKIPPED, Transport, in_versions};
use kera_rpc::SessionWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::fatal::{Fatal, MAY_PASS, OWN_DISKS};

/// Has backups fence, over connections that nothing else goes through.
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

/// Producers wait for copies of others, readers for what is rebuilt from them, and nobody for what the store writes.
impl ComesFirst for BackupRole {
    fn bytes(&self, disk: usize) -> u64 {
        self.backup().map_or(0, |backup| backup.first_bytes(disk))
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
        let (backup, report) = opened.map_err(not_opened)?;
        tracing::info!(?report, "copies of other nodes");
        let service = BackupService::new(backup.clone());
        let mut threads = Vec::new();
        for disk in 0..backup.disk_count() {
            let (writes, syncs) = (backup.clone(), backup.clone());
            threads.push(spawn("kera-backup", move || writes.run(disk))?);
            threads.push(spawn("kera-backup-sync", move || syncs.run_syncs(disk))?);
        }
        for thread in service.threads() {
            let service = service.clone();
            threads.push(spawn("kera-backup-ask", move || service.run(thread))?);
        }
        // First: of what is given up while the rest is looked through somebody is told.
        let needed = {
            let group = Arc::downgrade(group);
            Arc::new(move |log| group.upgrade().map_or(Needed::All, |group| group.read(|state| needed(state, log))))
        };
        group.observe(Arc::new(Follow { backup: backup.clone(), needed, runtime: runtime.clone() }));
        // Blocks of a log come after its first view was agreed to, and the node has joined since it stored its last one: what the
        // coordinators do not know now was given up.
        forget_given_up(&backup, group);
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

/// Why a backup does not open. Only its fences are damaged when it says so: blocks that do not read back it leaves out, so what else keeps it from opening is that a disk cannot be used
/// for now, or is another node's.
fn not_opened(error: OpenError) -> Fatal {
    let message = format!("copies of other nodes: {error}");
    match error {
        OpenError::Disk { .. } => Fatal::not_here(message, MAY_PASS),
        OpenError::Foreign { .. } => Fatal::not_here(message, OWN_DISKS),
        OpenError::Fences { .. } | OpenError::NoDisk => Fatal::Data { message },
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Fatal> {
    let no_thread = |error: io::Error| Fatal::Resources { what: "a thread of the backup", error };
    std::thread::Builder::new().name(name.into()).stack_size(1 << 20).spawn(work).map_err(no_thread)
}

/// Before the backup serves.
fn forget_given_up(backup: &Backup, group: &Group) {
    each_log(backup, |log| match group.read(|state| needed_at_start(state, log.into())) {
        Needed::All => backup.keep_whole(log),
        needed => forget_unneeded(backup, log, &needed),
    });
}

fn each_log(backup: &Backup, mut each: impl FnMut(LogId)) {
    let mut after = None;
    loop {
        let page = backup.list(&ListReplicas { after, limit: 0 });
        page.replicas.iter().for_each(|replica| each(replica.log));
        after = page.replicas.last().map(|replica| replica.log);
        if !page.more {
            return;
        }
    }
}

/// What of a log may be asked for yet.
enum Needed {
    /// It was given up.
    Nothing,
    /// Nobody can say: the coordinators know nothing of it, and may never have.
    Unknown,
    /// The blocks of the views that were not given up; those of the newest one have no end.
    Blocks(Vec<BlockRange>),
    /// Others take over from it, or nothing is known of it yet.
    All,
}

/// What is needed of a log that a backup has, by a state that may be behind what the backup was sent.
///
/// A block may come before this node knows that its log's first view was agreed to, so that a log is not in the state says nothing by itself. But who
/// is over in this state gets no view from then on: all logs of that incarnation have been in the state, up to this one or in what a
/// snapshot has passed over, and those that are not there any more were given up. There is one exception: after a lost majority of the coordinators the state goes on from one that may be
/// behind (`docs/replication.md`), and then there may be logs that only those knew who are gone. Of an incarnation from before that nothing is given back for not being known.
///
/// A view that this node does not know yet begins no earlier than the newest one that it knows, and is in the blocks of that. Who recovers a log asks for the
/// views of a state in which its owner is over, so behind all that the owner gave up while it was live.
fn needed(state: &ClusterState, log: LogName) -> Needed {
    let Some(known) = state.logs().get(&log) else {
        return match state.is_over(log.node, log.epoch) {
            true if is_from_before(state, log) => Needed::Unknown,
            true => Needed::Nothing,
            false => Needed::All,
        };
    };
    if !state.is_live(log.node, log.epoch) {
        return Needed::All;
    }
    let nexts = known.views.iter().skip(1).map(|view| view.first - 1).chain([u64::MAX]);
    let blocks = known.views.iter().zip(nexts).map(|(view, last)| (view, BlockRange { first: view.first, last }));
    Needed::Blocks(blocks.filter(|(view, _)| !view.backups.is_empty()).map(|(_, blocks)| blocks).collect())
}

/// Whether so many epochs of the node are over since this one that a recovery of the coordinators has skipped them. Of the node that went on none are: it knew of its logs.
fn is_from_before(state: &ClusterState, log: LogName) -> bool {
    state.is_over(log.node, log.epoch.saturating_add(SKIPPED / 2))
}

/// The same at a start, behind the node's joining: nothing is on its way, so that an incarnation of which nothing is known is one that nobody knew of who is left.
fn needed_at_start(state: &ClusterState, log: LogName) -> Needed {
    match needed(state, log) {
        Needed::All if state.logs().contains_key(&log) => Needed::All,
        Needed::All if state.is_live(log.node, log.epoch) => Needed::Nothing,
        Needed::All => Needed::Unknown,
        needed => needed,
    }
}

fn forget_unneeded(backup: &Backup, log: LogId, needed: &Needed) {
    match needed {
        Needed::Nothing => forget(backup, log),
        Needed::Unknown => set_aside(backup, log),
        Needed::Blocks(blocks) => {
            let released = backup.forget_rows(log, blocks);
            tracing::debug!(%log, files = released.files, bytes = released.bytes, "copies of older views were given back");
        }
        Needed::All => {}
    }
}

fn forget(backup: &Backup, log: LogId) {
    let released = backup.release(&ReleaseBlocks { log, through_block: u64::MAX });
    if released.files > 0 {
        tracing::info!(%log, files = released.files, bytes = released.bytes, "copies of a log were given back");
    }
}

/// What is in them may have been acknowledged, and be nowhere else: a person may still go back to coordinators that knew of it.
fn set_aside(backup: &Backup, log: LogId) {
    let aside = backup.set_aside(log);
    if aside.files > 0 {
        tracing::warn!(
            %log,
            files = aside.files,
            bytes = aside.bytes,
            "copies of a log that the coordinators do not know are set aside, for a majority of them was lost: their files in `replicas` get .unknown behind their names; \
             remove these when nothing is missing (docs/operations.md, When most coordinators are lost)"
        );
    }
}

/// Gives files back when a log is given up, or an older view of one.
struct Follow {
    backup: Arc<Backup>,
    /// See [`needed`].
    needed: Arc<dyn Fn(LogName) -> Needed + Send + Sync>,
    runtime: Handle,
}

impl Observer for Follow {
    fn changed(&self, _index: u64, change: &Change) {
        let (backup, needed) = (self.backup.clone(), self.needed.clone());
        match change {
            Change::Cluster(ClusterEntry::LogGivenUp { log }) => {
                let log = LogId::from(*log);
                self.runtime.spawn_blocking(move || forget(&backup, log));
            }
            Change::Cluster(ClusterEntry::ViewGivenUp { log, .. }) => {
                let log = *log;
                self.runtime.spawn_blocking(move || forget_unneeded(&backup, log.into(), &needed(log)));
            }
            // Nobody is told one by one of what was given up before it.
            Change::Replaced => {
                self.runtime.spawn_blocking(move || {
                    each_log(&backup, |log| forget_unneeded(&backup, log, &needed(log.into())));
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use kera_backup::{StoreDone, Taken};
    use kera_env::{ManualClock, MemoryDisk, SeededRandom};
    use kera_format::checksum::crc32c;
    use kera_protocol::{BlockStored, StoreHead};
    use parking_lot::RwLock;

    use super::super::testing::{apply, joined};
    use super::*;

    struct Nobody;

    impl StoreDone for Nobody {
        fn stored(&self, _: u64, result: Result<BlockStored, kera_backup::BackupError>) {
            result.expect("stored");
        }
        fn room(&self) {}
    }

    /// A backup that has a block of each of these logs.
    fn with_logs(logs: &[LogId]) -> Arc<Backup> {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let clock = Arc::new(ManualClock::new(1_000_000));
        let config = BackupConfig::new([9; 16], 4);
        let (backup, _) = Backup::open(config, vec![disk], clock, Arc::new(SeededRandom::new(1))).expect("open");
        let done: Arc<dyn StoreDone> = Arc::new(Nobody);
        for &log in logs {
            let head = StoreHead {
                cluster: [9; 16],
                log,
                view: 1,
                view_first: 1,
                block: 1,
                written_ms: 7,
                chunk_count: 0,
                chunk_bytes: 0,
                chunks_checksum: crc32c(&[]),
                flags: 0,
            };
            assert_eq!(backup.store(&head, &[], &done, 1), Taken::Queued);
        }
        backup.run_once(0);
        backup
    }

    fn has(backup: &Backup) -> Vec<LogId> {
        let mut logs = Vec::new();
        each_log(backup, |log| logs.push(log));
        logs
    }

    #[test]
    fn copies_that_cannot_be_read_for_now_are_not_called_damaged_nor_are_those_of_another_node() {
        let said = |error| {
            let fatal = not_opened(error);
            assert_eq!(fatal.exit_status(), 16);
            (matches!(fatal, Fatal::Data { .. }), format!("{fatal}: {}", fatal.next_step()))
        };
        let path = || "replicas/7.replica".to_owned();
        // There may be too many files open.
        let (is_damaged, told) = said(OpenError::Disk { path: path(), error: io::Error::from_raw_os_error(24) });
        let parts = ["7.replica", "how many files may be open", "start again"];
        assert!(!is_damaged && parts.iter().all(|part| told.contains(part)), "{told}");
        let (is_damaged, told) = said(OpenError::Foreign { path: path() });
        assert!(!is_damaged && told.contains("7.replica") && told.contains("this node's own disks"), "{told}");
        let (is_damaged, told) = said(OpenError::Fences { path: "replicas/fences".into(), reason: "torn".into() });
        assert!(is_damaged && told.contains("replicas/fences"), "{told}");
    }

    #[test]
    fn what_was_given_up_before_a_snapshot_goes_and_what_the_state_has_yet_to_hear_of_stays() {
        let log = |node, epoch, vlog| LogId { node, epoch, vlog };
        let lost = log(1, 7, 0);
        // Node 1 is lost, node 2 was, and has come back, and node 3 is live. Of node 3 in another epoch, of its log and of a node 5 nothing is known yet.
        let not_known_yet = [log(3, 7, 0), log(3, 8, 0), log(5, 9, 0)];
        let given_up = [log(1, 7, 1), log(2, 6, 0)];
        let all = [&[lost][..], &not_known_yet, &given_up].concat();
        let backup = with_logs(&all);
        let mut state = joined(4, 7);
        apply(&mut state, &[ClusterEntry::ViewAgreed { log: lost.into(), view: 1, first: 1, backups: vec![4] }]);
        apply(&mut state, &[ClusterEntry::NodeFenced { node: 1, epoch: 7 }]);
        let state = Arc::new(RwLock::new(state));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let follow = Follow {
            backup: backup.clone(),
            needed: Arc::new(move |log| needed(&state.read(), log)),
            runtime: runtime.handle().clone(),
        };
        assert_eq!(has(&backup).len(), all.len());
        follow.changed(99, &Change::Replaced);
        let until = Instant::now() + Duration::from_secs(60);
        while has(&backup).len() > 4 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(runtime);
        assert_eq!(has(&backup), [&[lost][..], &not_known_yet].concat());
    }

    /// As node 4 goes on from the log that it has, which knows nothing of what the others have decided since.
    #[test]
    fn what_those_who_are_gone_may_have_known_is_set_aside_and_not_given_back() {
        let log = |node, epoch, vlog| LogId { node, epoch, vlog };
        let known = log(1, 7, 0);
        let mut state = joined(4, 7);
        apply(&mut state, &[ClusterEntry::ViewAgreed { log: known.into(), view: 1, first: 1, backups: vec![4] }]);
        state.end_incarnations(4, SKIPPED).expect("there are epochs left");
        // A log and an incarnation that it has not heard of, and a node.
        let unknown = [log(1, 7, 1), log(2, 8, 0), log(5, 3, 0)];
        // What has begun since, and was given up, is known to have been.
        let given_up = [log(3, 7 + SKIPPED - 1, 0), log(4, 7, 0)];
        let backup = with_logs(&[&[known][..], &unknown, &given_up].concat());
        each_log(&backup, |log| forget_unneeded(&backup, log, &needed_at_start(&state, log.into())));
        assert_eq!(has(&backup), [known]);
        let needed = |log: LogId| needed_at_start(&state, log.into());
        assert!(unknown.iter().all(|log| matches!(needed(*log), Needed::Unknown)));
        assert!(given_up.iter().all(|log| matches!(needed(*log), Needed::Nothing)));
        assert!(matches!(super::needed(&state, unknown[1].into()), Needed::Unknown), "for who follows, too");
        assert!(matches!(super::needed(&state, unknown[2].into()), Needed::All), "it may be about to join");
    }

    #[test]
    fn what_may_be_asked_for_are_the_blocks_of_views_that_were_not_given_up() {
        let log: LogName = LogId { node: 1, epoch: 7, vlog: 0 }.into();
        let mut state = joined(4, 7);
        assert!(matches!(needed(&state, log), Needed::All), "its first view may be on its way");
        for (view, first) in (1..=4).zip([1, 11, 11, 21]) {
            apply(&mut state, &[ClusterEntry::ViewAgreed { log, view, first, backups: vec![view + 1 - view / 4] }]);
        }
        apply(&mut state, &[1, 3].map(|view| ClusterEntry::ViewGivenUp { log, view }));
        let Needed::Blocks(blocks) = needed(&state, log) else { panic!("it goes on") };
        assert_eq!(blocks, [BlockRange { first: 11, last: 10 }, BlockRange { first: 21, last: u64::MAX }]);
        apply(&mut state, &[ClusterEntry::NodeFenced { node: 1, epoch: 7 }]);
        assert!(matches!(needed(&state, log), Needed::All), "others take over from it");
    }
}
