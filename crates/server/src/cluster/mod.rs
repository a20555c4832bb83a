//! A node's part of a cluster: the coordinators' log with a runtime and an address of its own, joining, signs of life, and what the
//! broker is told of owners. A node without a number (`cluster.node`) has none of it.
//!
//! One thread runs the log's runtime and another the connections of other nodes, so that neither waits for clients.

mod adaptive;
mod ask_backups;
mod backups;
mod changing;
mod copier;
mod copies;
mod elsewhere;
mod feed;
mod floors;
mod follow;
mod leftovers;
mod load;
mod mender;
mod moves;
mod others;
mod quorum;
mod reached;
mod recovery;
mod retries;
mod returning;
mod sessions;
#[cfg(test)]
mod testing;
mod transactions;
mod transport;
mod waiting;

use std::cell::Cell;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_backup::Backup;
use kera_broker::{AdaptiveConfig, Broker};
use kera_coordinator::catalog::{Catalog, SYSTEM_PREFIX};
use kera_coordinator::cluster::{ClusterState, Join};
use kera_coordinator::{ClusterLog, Coordinator, CoordinatorError, LiveNode, StreamObserver};
use kera_env::{Clock, Disk, Lasting, Lasts, Random, SystemRandom};
use kera_format::cluster::Roles;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_log::Log;
use kera_log::store::ComesFirst;
use kera_protocol::frame::FRAME_BYTES_MAX;
use kera_protocol::{
    Body, ClusterDescription, CopiesDescription, CopyChange, HelloResponse, JoinCluster, JoinedCluster,
    LogsDescription, Message, Op, Role, SharedSetting, Status, StreamInfo,
};
use kera_raft::file::OpenError;
use kera_raft::{Group, GroupConfig, Timing, Transport, in_versions};
use kera_rpc::{ConnectionRoom, RunningServer, Server, ServerConfig};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::again;
use crate::config::{Config, SETTINGS};
use crate::fatal::{Door, Fatal};
use crate::identity::{Identity, uuid_text};
use crate::machine::{connections_of, files_max};
use crate::metrics::ClusterNumbers;
use adaptive::Adapting;
use backups::{BackupRole, RpcBackups};
use changing::Changing;
use copier::Copier;
use copies::CopiesSettings;
pub(crate) use copies::{Copies, NodeSinks};
pub(crate) use elsewhere::Elsewhere;
use feed::Feed;
use mender::Mending;
use moves::{Moves, MovesRole};
pub(crate) use others::Others;
use quorum::Unfounded;
use recovery::Recovery;
use returning::{Returning, ReturningRole};
use sessions::ClusterSessions;
use transactions::KafkaRole;
use transport::RpcTransport;

/// Time between two tries to join.
const RETRY: Duration = Duration::from_millis(200);
/// Entries of the log after which the next snapshot is made.
const SNAPSHOT_ENTRIES: u64 = 5000;
/// Bytes of the log after which it is made, however few entries they are.
const SNAPSHOT_BYTES: u64 = 32 << 20;
/// Most copies that a stream may ask for, its owner's included.
const COPIES_MAX: u32 = 16;
/// How often who waits for an answer is asked whether to go on with that.
const ASKED: Duration = Duration::from_millis(100);
/// So long a command that is under way is waited for when the node stops. With a leader that takes milliseconds.
const COMMAND: Duration = Duration::from_secs(1);
/// From a signal to the beginning of the stop: more than it takes.
const SIGNAL: Duration = Duration::from_millis(50);
/// Threads for the connections of other nodes.
const IO_THREADS: usize = 2;
/// When it is said that the thread of the coordinators' log takes no turns, and again each time, in microseconds.
const STUCK_US: u64 = 10_000_000;
/// A turn of it that has not come for so long does not come, in microseconds.
const TURN_US: u64 = 2_000_000;
/// By so much is the thread nicer to itself that sends signs of life, on the scale of `nice`.
const NICER: i32 = 10;
/// Settings that all nodes of a cluster share.
const SHARED: [&str; 2] = ["streams.streams_max", "network.frame_bytes_max"];

/// See the module.
pub(crate) struct Cluster {
    node: u32,
    group: Arc<Group>,
    runtime: Handle,
    epoch: u32,
    stop: watch::Sender<bool>,
    /// The node was told to stop: nothing starts it again.
    stopping: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    server: Mutex<Option<RunningServer>>,
    copies: Arc<Copies>,
    backup: Arc<BackupRole>,
    recovery: Mutex<Option<Recovering>>,
    clock: Arc<dyn Clock>,
    /// Who is told that coordinators have heard of the node; there once it is fed.
    broker: Arc<OnceLock<Weak<Broker>>>,
    copier: Mutex<Option<(Arc<Copier>, JoinHandle<()>)>>,
    mender: Mutex<Option<(Arc<Mending>, JoinHandle<()>)>>,
    moves: Arc<MovesRole>,
    returning: Arc<ReturningRole>,
    came: Came,
    /// What its start has cut, until the broker is told who owns what.
    cut: Mutex<leftovers::Cut>,
    kafka: Arc<KafkaRole>,
    adaptive: AdaptiveConfig,
    adapting: OnceLock<Arc<Adapting>>,
    /// That the thread of the coordinators' log does not run.
    stuck: Mutex<Lasting>,
}

type Answering<'a> = (&'a Arc<BackupRole>, &'a Arc<MovesRole>, &'a Arc<KafkaRole>, &'a Arc<ReturningRole>);
type Recovering = (Arc<Recovery>, Vec<JoinHandle<()>>);

/// What joining needs to know.
struct Joining<'a> {
    config: &'a Config,
    identity: &'a Identity,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    has_all: bool,
}

/// How many milliseconds a node is silent until it is lost, if not as many as usual. For tests of something else, on machines that stand still for longer than
/// that themselves; whoever runs a cluster is not to know of it, since a longer time does not make it safer.
const LOST_AFTER: &str = "_KERA_LOST_AFTER_MS";

fn timing() -> Timing {
    let usual = Timing::default();
    let told = std::env::var(LOST_AFTER).ok().and_then(|told| told.parse().ok());
    Timing { lost_after_ms: told.unwrap_or(usual.lost_after_ms).clamp(usual.lost_after_ms, 60_000), ..usual }
}

/// How the node takes part in the coordinators' log.
fn group_config(config: &Config, identity: &Identity, node: u32) -> GroupConfig {
    GroupConfig {
        node,
        uuid: identity.node,
        address: config.cluster_address().to_owned(),
        streams_max: config.streams.streams_max as usize,
        copies_max: COPIES_MAX,
        snapshot_entries: SNAPSHOT_ENTRIES,
        snapshot_bytes: SNAPSHOT_BYTES,
        timing: timing(),
        level_max: config.cluster.level_max.map_or(u32::MAX, |most| most as u32).min(*level::spoken().end()),
        balance_after_ms: config.cluster.balance.then_some(config.cluster.balance_after),
    }
}

/// How a node has joined.
#[derive(Clone, Copy)]
struct Came {
    node: u32,
    epoch: u32,
    /// With all that it had acknowledged.
    has_all: bool,
    /// Its logs of before may have lacked copies of that by then.
    may_lack_copies: bool,
    /// When it asked the coordinators for that, on the clock that goes on while the machine is suspended.
    joined_us: u64,
}

impl Cluster {
    /// Starts the node's part and returns when the cluster has given it an epoch, which is in `identity` and on disk then. Blocks for as long
    /// as there is no majority of coordinators. `has_all`: the node still has all that it has acknowledged; `single` reads the
    /// catalog of a node that was alone so far.
    pub(crate) fn start(
        config: &Config,
        identity: &mut Identity,
        disks: &[Arc<dyn Disk>],
        clock: &Arc<dyn Clock>,
        has_all: bool,
        single: impl FnOnce() -> Result<Catalog, Fatal>,
    ) -> Result<Arc<Cluster>, Fatal> {
        let Some(node) = config.cluster.node else {
            return Err(Fatal::Data { message: "a node of a cluster has a number".into() });
        };
        let (runtime, thread, stop) = start_runtime("kera-cluster")?;
        let messages = Arc::new(RpcTransport::new(runtime.clone()));
        let transport: Arc<dyn Transport> = messages.clone();
        let settings = group_config(config, identity, node as u32);
        let started = Group::start(settings, disks[0].clone(), transport.clone(), clock.clone());
        let group = wait(&runtime, started).map_err(|error| not_opened(&config.node.data, error))?;
        messages.knows(&group);
        let stopping = Arc::new(AtomicBool::new(false));
        runtime.spawn(end_with(group.clone(), stopping.clone()));
        check_level(group.level())?;
        let (backup, moves) = (Arc::<BackupRole>::default(), Arc::<MovesRole>::default());
        let (kafka, returning) = (Arc::<KafkaRole>::default(), Arc::<ReturningRole>::default());
        let server = listen(config, identity, &group, (&backup, &moves, &kafka, &returning), &runtime, clock)?;
        drive(&group, &runtime, clock, stop.subscribe());
        let joining = Joining { config, identity, transport, clock: clock.clone(), has_all };
        let (epoch, joined_us) = join(&group, &runtime, &joining, single)?;
        let me = (node as u32, epoch);
        let may_lack_copies = group.read(|state| state.may_lack_copies(node as u32, epoch));
        let came = Came { node: node as u32, epoch, has_all, may_lack_copies, joined_us };
        let broker = Arc::default();
        // From here on it is missed. What follows takes as long as there is much to be opened.
        beat(&runtime, &group, epoch, stop.subscribe(), (&broker, &backup), &stopping);
        // Nothing was done in it so far, and there may be no arena yet: see [`crate::node`]'s start.
        identity.epoch = epoch;
        identity.persist_joined(&*disks[0], has_all)?;
        if roles(config).contains(&Role::Backup) {
            backup.start(&group, node as u32, disks, clock, &runtime)?;
        }
        let told = stopping.clone();
        let lost = Arc::new(move || restart("a backup or the coordinators have fenced it", &told));
        let copies = Copies::start(&group, &runtime, me, copies_settings(config), clock, lost)?;
        let cluster = Arc::new(Cluster {
            node: node as u32,
            group,
            runtime,
            epoch,
            stop,
            stopping,
            thread: Mutex::new(Some(thread)),
            server: Mutex::new(Some(server)),
            copies,
            backup,
            recovery: Mutex::new(None),
            clock: clock.clone(),
            broker,
            copier: Mutex::new(None),
            mender: Mutex::new(None),
            moves,
            returning,
            came,
            cut: Mutex::default(),
            kafka,
            adaptive: adaptive_config(config),
            adapting: OnceLock::new(),
            stuck: Mutex::new(Lasting::new(STUCK_US)),
        });
        Ok(cluster)
    }

    /// Streamlets that have another number of copies than their streams say, for [`Log::set_copies`].
    pub(crate) fn other_copies(&self) -> Vec<(StreamId, u32, u32, u32)> {
        self.group.read(ClusterState::other_copies)
    }

    /// Cuts what this node has of streamlets that it does not simply go on with: see [`leftovers`]. Between the log's recovery and
    /// its end. What is not as it should be, a sentence each.
    pub(crate) fn cut_leftovers(&self, log: &Log) -> Result<Vec<String>, Fatal> {
        let me = (self.node, self.epoch);
        let (cut, said) = leftovers::cut_all(log, &self.group, me, self.came.has_all, &self.stopping)?;
        *self.cut.lock() = cut;
        Ok(said)
    }

    /// Compares what is on the disk of the coordinators' decisions with the copies of it, as long as it `goes_on`: see [`Group::look_at_disk`].
    pub(crate) fn look_at_disk(&self, goes_on: &dyn Fn() -> bool) -> Result<(u64, bool), String> {
        self.group.look_at_disk(goes_on).map_err(|error| error.to_string())
    }

    /// The node's Kafka door is there: it answers those of other nodes.
    pub(crate) fn set_kafka(&self, door: &Arc<kera_kafka::Door>) {
        self.kafka.set(door);
    }

    /// The virtual logs that have copies on other nodes.
    pub(crate) fn copies(&self) -> &Arc<Copies> {
        &self.copies
    }

    /// The node's coordinator.
    pub(crate) fn coordinator(self: &Arc<Self>, clock: &Arc<dyn Clock>) -> Arc<Coordinator> {
        Arc::new(Coordinator::of_cluster(self.clone(), clock.clone()))
    }

    /// Tells the broker who owns what, now and whenever it changes. To be called when its log is whole.
    pub(crate) fn feed(&self, broker: &Arc<Broker>) -> Result<(), Fatal> {
        let links = self.copies.runtime().clone();
        // Blocks that are read must not hold up what the coordinators say to each other.
        let transport = Arc::new(RpcTransport::new(links.clone()));
        transport.knows(&self.group);
        let me = (self.node, self.epoch);
        let (came, runtime) = (self.came, &self.runtime);
        let own = self.backup.clone();
        let recovering = Recovery::start(came, &self.group, broker, own, (transport.clone(), links), runtime)?;
        let changing = Changing::new(me, &self.group, broker, &self.copies, &self.runtime);
        *self.copier.lock() = Some(Copier::start(broker.log(), &self.copies, &recovering.0, changing.clone())?);
        *self.mender.lock() = Some(Mending::start(broker.log(), &self.copies, &recovering.0)?);
        let carried = (transport.clone() as Arc<dyn Transport>, changing);
        let moves = Moves::start(me, &self.group, broker, carried, &self.runtime, self.stop.subscribe());
        let cut = std::mem::take(&mut *self.cut.lock());
        let (with, stop) = ((&recovering.0, transport as Arc<dyn Transport>, cut), self.stop.subscribe());
        let returning = Returning::start(came, &self.group, broker, with, &self.runtime, stop);
        let (whence, stop) = ((&self.copies, &self.clock), self.stop.subscribe());
        let adapting = Adapting::start(me, self.adaptive, &self.group, broker, whence, &self.runtime, stop);
        let _ = self.adapting.set(adapting.clone());
        let followers = (recovering.0.clone(), moves.clone(), adapting, returning.clone());
        load::tell(me, &self.group, broker, &self.clock, &self.runtime, self.stop.subscribe());
        floors::watch(self.node, &self.group, broker, &self.runtime, self.stop.subscribe());
        // It may have been cut off since it has joined.
        broker.confirmed(quorum::heard_us(came.joined_us, self.group.confirmed_us(self.epoch)));
        let _ = self.broker.set(Arc::downgrade(broker));
        let feed =
            Arc::new(Feed::new(me, (broker.clone(), self.copies.clone()), Arc::downgrade(&self.group), followers));
        self.moves.set(moves);
        self.returning.set(returning);
        *self.recovery.lock() = Some(recovering);
        feed.begin();
        Ok(())
    }

    /// Says when the thread of the coordinators' log does not run, which it cannot say itself. To be called about once a second, by another thread.
    pub(crate) fn look_at_thread(&self) {
        let is_stuck = !self.is_stopping() && self.group.without_turn_us() > TURN_US;
        match self.stuck.lock().look(is_stuck, self.clock.monotonic_us()) {
            Some(Lasts::For(since_us)) => tracing::warn!(
                seconds = since_us / 1_000_000,
                "the thread that speaks with the coordinators does not run: this node hears and answers nobody there, and other nodes take over what it owns if they are most of them"
            ),
            Some(Lasts::Over) => tracing::info!("the thread that speaks with the coordinators runs again"),
            None => {}
        }
    }

    /// The [level] of the cluster that is in force.
    pub(crate) fn level(&self) -> u32 {
        self.group.level()
    }

    /// Its backup, if it runs.
    pub(crate) fn own_backup(&self) -> Option<Arc<Backup>> {
        self.backup.shared()
    }

    /// What comes before what the store writes to the node's disks.
    pub(crate) fn comes_first(&self) -> Arc<dyn ComesFirst> {
        self.backup.clone()
    }

    /// How the cluster is, as this node knows it.
    pub(crate) fn describe(&self) -> ClusterDescription {
        self.group.describe()
    }

    /// What it counts.
    pub(crate) fn numbers(&self) -> ClusterNumbers {
        let recovery = self.recovery.lock().as_ref().map(|(recovery, _)| recovery.clone());
        let (number, known) = (self.node, self.describe());
        let mine = known.nodes.iter().find(|node| node.node == number);
        let mut numbers = ClusterNumbers {
            nodes: known.nodes.len() as u64,
            nodes_lost: known.nodes.iter().filter(|node| node.fenced).count() as u64,
            has_leader: known.leader != 0,
            level: known.level.into(),
            owned_streamlets: mine.map_or(0, |node| node.streamlets),
            lost_streamlets: known.waiting_streamlets,
            copy_changes: self.group.read(copies_change) as u64,
            backup: self.backup.stats(),
            rebuild_left_bytes: recovery.as_ref().map_or(0, |recovery| recovery.left_bytes()),
            waiting_streamlets: recovery.as_ref().map_or(0, |recovery| recovery.left_to_open()),
            balance_moves: self.group.balance_moves(),
            disk_wait_ms: self.group.disk_wait_us() / 1000,
            ..ClusterNumbers::default()
        };
        let kept = self.backup.backup().map(Backup::log_bytes).unwrap_or_default();
        (numbers.lost_logs, numbers.lost_log_bytes) = self.group.read(|state| of_lost(state, &kept));
        numbers.adaptive = self.adapting.get().map(|adapting| adapting.stats()).unwrap_or_default();
        numbers.mend_failures = self.mender.lock().as_ref().map_or(0, |(mender, _)| mender.failures());
        if let Some((copier, _)) = self.copier.lock().as_ref() {
            numbers.under_replicated_blocks = copier.old_lacking();
            numbers.heard_age_ms = copier.heard_age().as_millis() as u64;
        }
        for log in self.copies.stats() {
            numbers.logs += 1;
            numbers.blocks += log.blocks;
            numbers.chunk_bytes += log.chunk_bytes;
            numbers.pending_bytes += log.pending_bytes + log.bytes_under_way;
            numbers.lag_ms = numbers.lag_ms.max(log.lag_us / 1000);
            numbers.views_changed += log.views_changed;
            numbers.under_replicated_blocks += log.under_replicated;
        }
        numbers
    }

    /// Streams that are to have another number of copies, and how far that is, as this node knows it. Asks nobody.
    pub(crate) fn copy_changes(&self) -> Vec<CopyChange> {
        self.group
            .read(|state| if copies_change(state) == 0 { Vec::new() } else { state.copy_changes(usize::MAX).changes })
    }

    /// What waits for lost nodes, and for which, and producers for copies; a sentence each.
    pub(crate) fn waits(&self) -> Vec<String> {
        let undecided = self
            .group
            .read(|state| waiting::undecided(state).into_iter().chain(waiting::unreadable(state)).collect::<Vec<_>>());
        let here = self.recovery.lock().as_ref().map_or_else(Vec::new, |(recovery, _)| recovery.waits());
        let lost = self.mender.lock().as_ref().and_then(|(mender, _)| mender.lacks());
        let broker = self.broker.get().and_then(Weak::upgrade);
        let few = broker.and_then(|broker| self.copies.lacks(broker.log()));
        undecided.into_iter().chain(here).chain(lost).chain(few).collect()
    }

    /// The part of that which operators look at.
    pub(crate) fn copied(&self) -> CopiesDescription {
        let numbers = self.numbers();
        CopiesDescription {
            logs: numbers.logs,
            pending_bytes: numbers.pending_bytes,
            under_replicated_blocks: numbers.under_replicated_blocks,
            rebuild_left_bytes: numbers.rebuild_left_bytes,
            backup_logs: numbers.backup.logs,
            backup_bytes: numbers.backup.file_bytes,
            lost_logs: numbers.lost_logs,
            lost_log_bytes: numbers.lost_log_bytes,
        }
    }

    /// Streamlets that have virtual logs of their own.
    pub(crate) fn own_logs(&self) -> LogsDescription {
        LogsDescription { own: self.adapting.get().map(|adapting| adapting.own_logs()).unwrap_or_default() }
    }

    /// The node begins to stop. It may be taken for lost from now on, and stops nevertheless.
    pub(crate) fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Nothing is taken over or rebuilt from here on; what is not rebuilt by now is at the next start. Blocks, but does not wait for what is under way: a rebuild
    /// may take hours, in which the node refuses everybody and nobody takes its streamlets over, since it still says that it lives.
    pub(crate) fn stop_recovering(&self) {
        let recovering = self.recovery.lock().take();
        if let Some((recovery, threads)) = recovering {
            recovery.stop();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    /// Stops taking part; the others find out by themselves. Blocks.
    pub(crate) fn stop(&self) {
        // First: what mends segments asks backups through the same door.
        self.stop_recovering();
        if let Some((copier, thread)) = self.copier.lock().take() {
            copier.stop();
            drop(thread.join());
        }
        if let Some((mender, thread)) = self.mender.lock().take() {
            mender.stop();
            drop(thread.join());
        }
        self.copies.stop();
        if let Some(server) = self.server.lock().take() {
            server.stop(Duration::from_secs(1));
        }
        self.backup.stop();
        let group = self.group.clone();
        wait(&self.runtime, async move { group.stop().await });
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the coordinators' log ended with a panic");
        }
    }
}

/// How many of these logs are of incarnations that are over, and their bytes.
fn of_lost(state: &ClusterState, logs: &[(LogId, u64)]) -> (u64, u64) {
    let lost = logs.iter().filter(|(log, _)| !state.is_live(log.node, log.epoch));
    lost.fold((0, 0), |(count, all), (_, bytes)| (count + 1, all + bytes))
}

/// How many streams are to have another number of copies.
fn copies_change(state: &ClusterState) -> usize {
    state.catalog.streams().filter(|info| state.wanted_copies(info.id).is_some()).count()
}

/// Sends signs of life from its joining on. A node that was fenced meanwhile starts again.
///
/// Not only when it serves: opening what it keeps for others may take longer than a node may be silent, and one that is taken for lost
/// each time it starts never comes back.
fn beat(
    runtime: &Handle,
    group: &Arc<Group>,
    epoch: u32,
    mut stopped: watch::Receiver<bool>,
    (broker, backup): (&Arc<OnceLock<Weak<Broker>>>, &Arc<BackupRole>),
    stopping: &Arc<AtomicBool>,
) {
    let (group, broker, backup, stopping) = (group.clone(), broker.clone(), backup.clone(), stopping.clone());
    runtime.spawn(async move {
        go_first();
        let pause = Duration::from_millis(Timing::default().heartbeat_ms);
        loop {
            group.note_others(backup.stands_still_us());
            let _ = group.beat(epoch).await;
            if let Some(broker) = broker.get().and_then(Weak::upgrade) {
                if let Some(at_us) = group.confirmed_us(epoch) {
                    broker.confirmed(at_us);
                }
                broker.set_lacking(group.lacks_majority());
            }
            if group.is_over(epoch) {
                restart("the coordinators took it for lost", &stopping);
                return;
            }
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    });
}

/// Does what a leader does, whenever this node is the leader, and says so when there is none.
///
/// Fences have connections of their own: a backup that cannot answer them, because its first disk stands still, reads no further when it has enough of
/// them, and what the coordinators say to that node must not wait behind them.
fn drive(group: &Arc<Group>, runtime: &Handle, clock: &Arc<dyn Clock>, stopped: watch::Receiver<bool>) {
    let fencing = Arc::new(RpcTransport::new(runtime.clone()));
    fencing.knows(group);
    runtime.spawn(group.clone().drive(Arc::new(RpcBackups(fencing)), stopped.clone()));
    let (group, clock, mut stopped) = (group.clone(), clock.clone(), stopped);
    runtime.spawn(async move {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => {}
            () = quorum::watch_leader(&group, &*clock) => {}
        }
    });
}

/// Ends the process when the node's part in the coordinators' log has ended, which an error of its disk does: see [`Group::ended`]. As after a kill, all that it has promised is
/// there at its next start, which tells whether the disk can be read and written; that is left to whoever supervises it, because by itself it
/// would begin a life a second on a disk that is broken.
async fn end_with(group: Arc<Group>, stopping: Arc<AtomicBool>) {
    let ended = Fatal::PartEnded { what: "the coordinators' log", reason: group.ended().await };
    if stopping.load(Ordering::Acquire) {
        tracing::info!(%ended, "the node stops all the same");
        return;
    }
    tracing::error!(%ended, next_step = ended.next_step(), "this node ends, so that others take over what it owns");
    std::process::exit(ended.exit_status().into());
}

/// Lets this thread, which sends signs of life, hears those of others and elects leaders, run before others of the machine: with builds
/// and streams on all cores it would wait its turn for so long that a node is taken for lost that only is busy. It does little, so
/// nobody waits for it. Not everybody may: then it goes on as it is.
fn go_first() {
    let this = rustix::thread::gettid();
    let nice = rustix::process::getpriority_process(Some(this)).unwrap_or(0);
    if let Err(error) = rustix::process::setpriority_process(Some(this), (nice - NICER).max(-20)) {
        tracing::debug!(%error, "signs of life are sent at ordinary priority");
    }
}

/// Ends this incarnation of the node, which others take for lost, and begins the next one: the program is executed again in this very
/// process, with the same words. What its arena and its disks have stays, exactly as after a kill, which is what all that it
/// owns, has promised and has under way is made for; nothing has to be taken back piece by piece while sessions and threads still use it
/// (`docs/decisions/0018-a-fenced-node-starts-again.md`).
///
/// Returns if the node was told to stop: that is what it goes on with then. A signal that has just come is waited for, because a program that is
/// executed again does not know of it.
fn restart(why: &str, stopping: &AtomicBool) {
    std::thread::sleep(SIGNAL);
    if stopping.load(Ordering::Acquire) {
        tracing::info!(why, "this node was declared lost while it stops; its next start is its next incarnation");
        return;
    }
    tracing::warn!(why, "this node was declared lost; it starts again as its next incarnation");
    let error = again::execute(1);
    tracing::error!(%error, "the node cannot start again by itself; start it");
    std::process::abort();
}

/// What is left to a node that has lost what the coordinators have decided. It does not go on as the coordinator that it was: it has forgotten what it has agreed to.
const JOINS_ANEW: &str = "it joins anew, as another machine would: wait until `kera status` at another node says that nothing waits for this one, give its number up there \
                          (`kera node remove`), move its data directory and its other disks away, and start it with empty ones, --node and --join. Records that no other \
                          node has a copy of, as those of streams with one copy, are lost with that; keep what was moved away until you miss nothing";

/// Why the coordinators' log of a node cannot be gone on with.
pub(crate) fn not_opened(data: &Path, error: OpenError) -> Fatal {
    match error {
        OpenError::Disk { path, error } => Fatal::Directory { path: data.join(path), error },
        OpenError::Number { ref path, .. } => {
            let noted = std::fs::read_to_string(data.join(path)).unwrap_or_default();
            let number =
                noted.trim().parse::<u32>().map_or_else(|_| "and its number".to_owned(), |has| has.to_string());
            let step = format!("start it with --node {number}, or choose another data directory with --data");
            Fatal::not_here(error.to_string(), step)
        }
        damaged @ OpenError::Damaged { .. } => Fatal::Data { message: damaged.to_string() },
        cut @ OpenError::Cut { .. } => Fatal::not_here(cut.to_string(), JOINS_ANEW),
    }
}

/// A node of a cluster that has gone on to a level which this build does not speak must not read on: it would be refused, and does not
/// understand all of its own log.
pub(crate) fn check_level(level: u32) -> Result<(), Fatal> {
    let spoken = level::spoken();
    if spoken.contains(&level) {
        return Ok(());
    }
    let message = format!(
        "the cluster of this node is at level {level} and this version of kera speaks levels {} to {}",
        spoken.start(),
        spoken.end()
    );
    Err(Fatal::not_here(message, "run a version that speaks it"))
}

/// Founds a cluster, joins one, or comes back to one: the epoch, and when it asked for it.
fn join(
    group: &Arc<Group>,
    runtime: &Handle,
    joining: &Joining<'_>,
    single: impl FnOnce() -> Result<Catalog, Fatal>,
) -> Result<(u32, u64), Fatal> {
    let (seed, asked, clock) = (joining.config.cluster.join.clone(), group.clone(), joining.clock.clone());
    let is_member = wait(runtime, async move { asked.is_member().await });
    let node = joining.config.cluster.node.unwrap_or(0) as u32;
    reached::tell_unheard(joining.config);
    if seed.is_none() {
        quorum::check_address(joining.config, node, &group.members())?;
    }
    if seed.is_none() && group.read(|state| state.cluster()) == [0; 16] {
        let mut cluster = [0; 16];
        SystemRandom.fill(&mut cluster);
        let (asked, catalog, first) = (group.clone(), single()?, Join::from(&join_message(joining)));
        let asked_us = clock.since_boot_us();
        let untold = Unfounded::said_after(quorum::UNDECIDED_US);
        let founding =
            async move { quorum::told(&asked, node, found_until(&asked, &catalog, cluster, &first, untold)).await };
        let epoch = wait(runtime, founding).map_err(|error| not_let_in(error.to_string()))?;
        tell_founded(group, cluster);
        // Otherwise the cluster was founded at an earlier start, whose epoch is over.
        if epoch == Some(joining.identity.epoch) {
            return Ok((joining.identity.epoch, asked_us));
        }
    } else if seed.is_some() && !is_member {
        check_empty(&single()?)?;
        reached::check_reachable(joining.config)?;
    } else if seed.is_some() {
        check_founded(group, node)?;
    }
    let message = join_message(joining);
    let (asked, transport) = (group.clone(), joining.transport.clone());
    let joined =
        async move { quorum::told(&asked, node, join_until(&asked, &*transport, seed, &message, &*clock)).await };
    let (epoch, asked_us) = wait(runtime, joined).map_err(not_let_in)?;
    if is_member {
        joining.identity.tell_unknown_starts(epoch);
    }
    Ok((epoch, asked_us))
}

/// Nothing is damaged where a cluster refuses a node, or cannot be founded.
fn not_let_in(why: String) -> Fatal {
    Fatal::not_here(why, "correct what is named, and start the node again; what is on its disks stays as it is")
}

/// Says that this node has founded a cluster, if it has: one that was in another cluster before has lost its data directory, and it alone does not know.
fn tell_founded(group: &Group, cluster: [u8; 16]) {
    if group.cluster() == Some(cluster) {
        tracing::warn!(
            cluster = uuid_text(&cluster),
            "this node has founded a cluster and is its first node. If it was in one before, stop it: it does not find its data directory (--data). Once there are \
             other nodes, give it --join with the address of one, so that it does not found another cluster without its data directory"
        );
    }
}

/// Only the first node of a cluster brings its streams along: one that has some of its own would lose them. That it has only those that
/// each node makes for itself says nothing of what is in them.
fn check_empty(catalog: &Catalog) -> Result<(), Fatal> {
    let all = catalog.stream_count();
    if all == 0 {
        return Ok(());
    }
    let system = catalog.streams().filter(|info| info.name.starts_with(SYSTEM_PREFIX)).count();
    let which = if system == all { " (those of the system, which a node that is alone makes for itself)" } else { "" };
    let message = format!(
        "this node was alone before and has {all} streams of its own{which}, and only the first node of a cluster brings its streams along"
    );
    Err(Fatal::not_here(message, "join with an empty data directory, named with --data; this one can stay"))
}

/// Whether a node's log knows of no other node.
fn is_alone(group: &Group, node: u32) -> bool {
    let members = group.members();
    !members.is_empty() && members.iter().all(|member| member.node == node)
}

/// One that was to found a cluster, and was killed before that was in its log, has a log of its own in which nothing leads to a cluster: who has it can be let in nowhere, and
/// it lets nobody in.
fn check_founded(group: &Group, node: u32) -> Result<(), Fatal> {
    if group.cluster().is_some() || !is_alone(group, node) {
        return Ok(());
    }
    let message = "an earlier start of this node, without --join, was to found a cluster and did not come to its end";
    let step = "to join a cluster start it with an empty data directory, named with --data; without --join it founds the cluster now";
    Err(Fatal::not_here(message, step))
}

/// Founds a cluster unless the node is told of one that was founded before; the node's epoch in it, if it has one. Goes on for as long
/// as there is no leader: a node that has lost its power while it founded a cluster, or has been in one for long.
async fn found_until(
    group: &Group,
    catalog: &Catalog,
    cluster: [u8; 16],
    first: &Join,
    mut unfounded: Unfounded,
) -> Result<Option<u32>, CoordinatorError> {
    while group.read(|state| state.cluster()) == [0; 16] {
        match group.found(catalog, cluster, first).await {
            Ok(()) => break,
            Err(CoordinatorError::NoLeader(reason)) => {
                tracing::debug!(reason, "the node waits for the coordinators");
                unfounded.look(group, &reason);
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(group.read(|state| state.node(first.node).map(|node| node.epoch)))
}

/// Tries until it is in, or is refused: its epoch, and when it was asked for, which is when the coordinators have heard of the node for certain. The answer is that of the leader, and
/// this node knows all that led to it.
async fn join_until(
    group: &Group,
    transport: &dyn Transport,
    seed: Option<String>,
    message: &JoinCluster,
    clock: &dyn Clock,
) -> Result<(u32, u64), String> {
    let (mut tries, newest) = (0u64, Op::JoinCluster.version_max());
    let bodies = in_versions(message);
    loop {
        let asked_us = clock.since_boot_us();
        let answer = match &seed {
            // A node that was told of nobody yet has only the address, and one that hears of no leader may have moved. One that is alone leads itself: it asks once, lest it be
            // meant for another cluster. Who is there is of its cluster: see [`transport`].
            Some(seed) if group.leader().is_none() || (tries == 0 && is_alone(group, message.node)) => {
                transport.call_versions(0, seed, Op::JoinCluster, bodies.clone()).await
            }
            _ => match group.request(Op::JoinCluster, newest, &bodies[usize::from(newest) - 1], false).await {
                Ok(answer) => Ok((newest, answer)),
                Err(error) if error.status() != Status::NotReady => return Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            },
        };
        match answer {
            Ok((version, answer)) => {
                let joined = JoinedCluster::decode(version, &answer).map_err(|e| e.to_string())?;
                let followed = async {
                    while group.wait_followed(joined.index).await.is_err() {
                        tracing::info!("the node waits for the coordinators' log");
                    }
                };
                // It is missed from its joining on, however much there is to follow.
                let alive = async {
                    loop {
                        let _ = group.beat(joined.epoch).await;
                        tokio::time::sleep(Duration::from_millis(Timing::default().heartbeat_ms)).await;
                    }
                };
                tokio::select! {
                    () = followed => return Ok((joined.epoch, asked_us)),
                    () = alive => unreachable!("it goes on until it is not needed"),
                }
            }
            Err(reason) if reason.starts_with(transport::REFUSED) => {
                return Err(reason[transport::REFUSED.len()..].to_owned());
            }
            Err(reason) => {
                // That there is no leader of those that it knows is said by [`quorum::told`], and better.
                let is_said = seed.is_none() && group.leader().is_none();
                if tries.is_multiple_of(25) && !is_said {
                    tracing::warn!(reason, "the node cannot join yet; it goes on trying");
                }
                tries += 1;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn copies_settings(config: &Config) -> CopiesSettings {
    CopiesSettings {
        shared_logs: config.virtual_logs.count as u32,
        lag_bytes_max: config.cluster.lag_bytes_max,
        lag_us_max: config.cluster.lag_max * 1000,
    }
}

fn adaptive_config(config: &Config) -> AdaptiveConfig {
    AdaptiveConfig {
        logs_max: config.cluster.own_logs_max as usize,
        interval_us: config.cluster.own_logs_interval * 1000,
        bytes_per_s: config.cluster.own_logs_rate,
    }
}

impl ClusterLog for Cluster {
    fn request(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError> {
        let stopped = |why: String| match kera_raft::is_refused_again(op, version, body) {
            true => CoordinatorError::MayBeDone(why),
            false => CoordinatorError::NoLeader(why),
        };
        let (group, since) = (self.group.clone(), Cell::new(None));
        let goes_on = || {
            !self.is_stopping() || {
                let began = since.get().unwrap_or_else(Instant::now);
                since.set(Some(began));
                began.elapsed() < COMMAND
            }
        };
        let owned = body.to_vec();
        let asked = async move { group.request(op, version, &owned, system).await };
        let told = wait_while(&self.runtime, asked, goes_on);
        told.unwrap_or_else(|| Err(stopped(STOPPING.into())))
    }

    fn level(&self) -> u32 {
        self.group.level()
    }

    fn read(&self, read: &mut dyn FnMut(&Catalog)) {
        self.group.read(|state| read(&state.catalog));
    }

    fn copies_of(&self, stream: StreamId, streamlet: u32) -> u32 {
        self.group.read(|state| state.copies_of(stream, streamlet))
    }

    fn wanted_copies(&self, stream: StreamId) -> Option<u32> {
        self.group.read(|state| state.wanted_copies(stream))
    }

    fn live_nodes(&self) -> Vec<LiveNode> {
        self.group.read(|state| {
            let live = state.nodes().iter().filter(|(_, of)| !of.fenced);
            live.map(|(node, of)| LiveNode { node: *node, takes: of.is_live(Roles::BROKER) && !of.draining }).collect()
        })
    }

    fn observe(&self, observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) {
        follow::observe(&self.group, observer, known);
    }
}

/// Waits on an ordinary thread for what runs on the log's runtime.
fn wait<T: Send + 'static>(runtime: &Handle, future: impl Future<Output = T> + Send + 'static) -> T {
    wait_while(runtime, future, || true).expect("it goes on to its end")
}

/// The same for a thread that a stop waits for: no longer than it `goes_on`, which is asked a few times a second. `None`: what was waited for comes to its end by itself, and
/// nobody hears of it.
fn wait_while<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
    goes_on: impl Fn() -> bool,
) -> Option<T> {
    let (sender, done) = sync_channel(1);
    runtime.spawn(async move {
        let _ = sender.send(future.await);
    });
    loop {
        match done.recv_timeout(ASKED) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Timeout) if goes_on() => {}
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => panic!("the runtime ends after everybody who uses it"),
        }
    }
}

/// What is said instead of an answer when the node stops.
const STOPPING: &str = "this node is stopping";

/// Has the coordinators do what a message asks for, as long as it `goes_on`: for a thread that a stop waits for, which would wait for a leader for as long as a command
/// may take. They may do it all the same, as after any error.
fn ask_while<M: Message<Response: Send> + Send + Sync + 'static>(
    (group, runtime): (&Arc<Group>, &Handle),
    message: M,
    goes_on: impl Fn() -> bool,
) -> Result<M::Response, CoordinatorError> {
    let group = group.clone();
    let asked = wait_while(runtime, async move { group.ask(&message).await }, goes_on);
    asked.unwrap_or_else(|| Err(CoordinatorError::NoLeader(STOPPING.into())))
}

type Runtime = (Handle, JoinHandle<()>, watch::Sender<bool>);

fn start_runtime(name: &str) -> Result<Runtime, Fatal> {
    let cannot = |error| Fatal::Resources { what: "the coordinators' log", error };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let handle = runtime.handle().clone();
    let (stop, mut stopped) = watch::channel(false);
    let spawn = std::thread::Builder::new().name(name.into());
    let run = move || {
        runtime.block_on(async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        });
    };
    Ok((handle, spawn.spawn(run).map_err(cannot)?, stop))
}

fn listen(
    config: &Config,
    identity: &Identity,
    group: &Arc<Group>,
    (backup, moves, kafka, returning): Answering<'_>,
    runtime: &Handle,
    clock: &Arc<dyn Clock>,
) -> Result<RunningServer, Fatal> {
    let address = &config.cluster.listen;
    let failed = |error| Fatal::listen(Door::Cluster, address, error);
    let hello = HelloResponse {
        server_name: "kera".into(),
        server_version: env!("CARGO_PKG_VERSION").into(),
        node_id: identity.node,
        node_epoch: identity.epoch,
        ops: HelloResponse::ops_spoken(),
        frame_bytes_max: FRAME_BYTES_MAX as u32,
        chunk_bytes_max: 0,
        in_flight_bytes_max: 0,
        in_flight_requests_max: 0,
        subscriptions_max: 0,
        idle_timeout_ms: 0,
    };
    let server = ServerConfig {
        io_threads: IO_THREADS,
        connections_max: config.network.connections_max as usize,
        room: Some(Arc::new(ConnectionRoom::new(connections_of(files_max()).nodes))),
        stall_timeout: Duration::from_millis(config.network.stall_timeout),
        ..ServerConfig::new(crate::node::resolve(address).map_err(failed)?, hello, clock.clone())
    };
    let sessions = ClusterSessions {
        group: group.clone(),
        backup: backup.clone(),
        moves: moves.clone(),
        returning: returning.clone(),
        kafka: kafka.clone(),
        runtime: runtime.clone(),
    };
    Server::start(server, Arc::new(sessions)).map_err(failed)
}

/// The roles that the configuration names; which words are allowed was checked with it.
pub(crate) fn roles(config: &Config) -> Vec<Role> {
    let all = [Role::Coordinator, Role::Broker, Role::Backup];
    let is_named = |role: &Role| config.cluster.roles.split(',').any(|word| word.trim() == role.name());
    all.into_iter().filter(is_named).collect()
}

fn join_message(joining: &Joining<'_>) -> JoinCluster {
    let (config, identity) = (joining.config, joining.identity);
    let shared = SETTINGS.iter().filter(|setting| SHARED.contains(&setting.name().as_str()));
    JoinCluster {
        node: config.cluster.node.unwrap_or(0) as u32,
        uuid: identity.node,
        roles: roles(config),
        rack: Some(&config.cluster.rack).filter(|rack| *rack != "none").cloned().unwrap_or_default(),
        cluster_address: config.cluster_address().to_owned(),
        native_address: config.native_address().to_owned(),
        kafka_address: reached::kafka_told(config).unwrap_or_default().to_owned(),
        http_address: config.http.listen.clone().unwrap_or_default(),
        settings: shared.map(|one| SharedSetting { name: one.name(), value: one.shown(config) }).collect(),
        epoch_min: identity.epoch,
        has_all: joining.has_all,
        level_min: *level::spoken().start(),
        level_max: *level::spoken().end(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use kera_env::{ManualClock, MemoryDisk, SystemClock};
    use kera_format::catalog::Entry;
    use kera_format::cluster::{ClusterEntry, Doors, RaftPlace};
    use kera_format::raft::{FileHeader, LogEntry, Payload, Record, encode_blocks};
    use kera_format::{ReplicationMode, StreamOptions};
    use kera_protocol::AllocateProducer;
    use kera_raft::Pending;

    use super::*;

    /// Reaches nobody.
    struct Nowhere;

    impl Transport for Nowhere {
        fn call(&self, _: u64, _: &str, _: Op, _: Vec<u8>) -> Pending<Vec<u8>> {
            Box::pin(async { Err("nobody is there".into()) })
        }
    }

    fn config() -> GroupConfig {
        GroupConfig {
            node: 1,
            uuid: [1; 16],
            address: String::new(),
            streams_max: 1,
            copies_max: COPIES_MAX,
            snapshot_entries: SNAPSHOT_ENTRIES,
            snapshot_bytes: SNAPSHOT_BYTES,
            // No command is given up before a test has looked for how long it is waited for.
            timing: Timing { command_ms: 600_000, ..Timing::default() },
            level_max: *level::spoken().end(),
            balance_after_ms: None,
        }
    }

    /// As an earlier build left a node that was killed when it had cut its log, and had not yet written the snapshot of the leader that takes the place of what was there.
    #[test]
    fn a_coordinator_with_neither_snapshot_nor_log_is_told_how_it_joins_anew() {
        let (runtime, thread, stop) = start_runtime("unit").expect("a thread");
        let records = [
            Record::Vote { term: 3, node: 2, committed: true },
            Record::Purged { place: RaftPlace { term: 3, leader: 2, index: 5000 } },
        ];
        let header = FileHeader { node: [1; 16], generation: 1 }.encode().to_vec();
        let bytes = [vec![header], encode_blocks(1, &records).expect("blocks")].concat().concat();
        let disk = Arc::new(MemoryDisk::new());
        disk.create_dir_all("raft").expect("a disk");
        disk.replace("raft/0000000000000001.log", &bytes).expect("a disk");
        let started = Group::start(config(), disk.clone(), Arc::new(Nowhere), Arc::new(SystemClock::new()));
        let told = |error: OpenError| {
            let fatal = not_opened(Path::new("/var/lib/kera"), error);
            assert!(fatal.to_string().contains("begins behind entry 5000, and no snapshot"), "{fatal}");
            let step = fatal.next_step();
            assert!(
                step.contains("`kera node remove`") && step.contains("with empty ones, --node and --join"),
                "{step}"
            );
            assert!(step.contains("Records that no other node has a copy of"), "{step}");
        };
        told(wait(&runtime, started).err().expect("nothing is left to go on with"));
        told(kera_raft::Survivor::open(disk, [1; 16]).err().expect("it knows nothing that others could go on with"));
        stop.send_replace(true);
        thread.join().expect("it ends");
    }

    /// Killed behind the first entry of its log, which says that it votes, or behind the next, which founds the cluster.
    #[test]
    fn who_was_killed_while_it_founded_a_cluster_is_told_how_it_joins_another_one() {
        let (runtime, thread, stop) = start_runtime("unit").expect("a thread");
        for is_founded in [false, true] {
            let votes = ClusterEntry::Membership { place: None, voters: vec![vec![1]], nodes: vec![(1, "1".into())] };
            let founded = ClusterEntry::Founded { cluster: [9; 16], owner_epoch: 1, settings: Vec::new() };
            let entries = [votes, founded].into_iter().take(1 + usize::from(is_founded));
            let place = |index| RaftPlace { term: 0, leader: 0, index };
            let record = |(index, entry)| {
                Record::Appended(LogEntry { place: place(index), payload: Payload::Entries(vec![entry]) })
            };
            let records: Vec<Record> = (0..).zip(entries).map(record).collect();
            let header = FileHeader { node: [1; 16], generation: 1 }.encode().to_vec();
            let bytes = [vec![header], encode_blocks(1, &records).expect("blocks")].concat().concat();
            let disk = Arc::new(MemoryDisk::new());
            disk.create_dir_all("raft").expect("a disk");
            disk.replace("raft/0000000000000001.log", &bytes).expect("a disk");
            let group = wait(&runtime, Group::start(config(), disk, Arc::new(Nowhere), Arc::new(SystemClock::new())));
            let group = group.expect("it starts");
            // As a start does: who the others are is known when that is answered.
            let asked = group.clone();
            assert!(wait(&runtime, async move { asked.is_member().await }));
            assert!(is_alone(&group, 1) && !is_alone(&group, 2));
            match check_founded(&group, 1) {
                Ok(()) => assert!(is_founded),
                Err(error) => assert!(!is_founded && error.next_step().contains("an empty data directory"), "{error}"),
            }
            wait(&runtime, async move { group.stop().await });
        }
        stop.send_replace(true);
        thread.join().expect("it ends");
    }

    /// The lines of a log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// It was tried again and again without a word.
    #[test]
    fn that_what_a_cluster_begins_with_is_refused_each_time_is_said() {
        let (lines, mut catalog) = (Lines::default(), Catalog::default());
        let (replication, replication_mode) = (2, ReplicationMode::Async);
        let options = StreamOptions { replication, replication_mode, ..StreamOptions::default() };
        let made = Entry::StreamCreated { stream: StreamId(1), at_ms: 1, options, name: "a".into() };
        catalog.apply(&made).expect("a stream");
        // Such a stream needs a higher one.
        let low = GroupConfig { level_max: level::FIRST, ..config() };
        let first = Join {
            node: 1,
            uuid: [1; 16],
            roles: Roles::ALL,
            rack: String::new(),
            doors: Doors::default(),
            settings: Vec::new(),
            epoch_min: 1,
            has_all: true,
            levels: (level::FIRST, level::FIRST),
        };
        let (has_said, looks) =
            (|| String::from_utf8_lossy(&lines.0.lock()).contains("cannot found its cluster"), 3_000);
        let founding = async {
            let started =
                Group::start(low, Arc::new(MemoryDisk::new()), Arc::new(Nowhere), Arc::new(SystemClock::new()));
            let group = started.await.expect("it starts");
            let said = async {
                for _ in 0..looks {
                    if has_said() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                founded = found_until(&group, &catalog, [9; 16], &first, Unfounded::said_after(0)) => panic!("{founded:?}"),
                () = said => {}
            }
            group.stop().await;
        };
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
        let log = log.with_writer(move || writer.clone()).finish();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        // While there is one log alone, a line that another test comes by first is taken for one that nobody wants, for good.
        let _another = tracing::Dispatch::new(tracing_subscriber::fmt().finish());
        tracing::subscriber::with_default(log, || runtime.block_on(founding));
        assert!(has_said());
    }

    /// Lets a node in, whose machine is suspended for an hour behind that.
    struct Suspends(Arc<ManualClock>);

    impl Transport for Suspends {
        fn call(&self, _: u64, _: &str, op: Op, _: Vec<u8>) -> Pending<Vec<u8>> {
            assert_eq!(op, Op::JoinCluster);
            let mut answer = Vec::new();
            JoinedCluster { cluster: [9; 16], epoch: 3, index: 0 }.encode(op.version_max(), &mut answer);
            self.0.suspend_ms(3_600_000);
            Box::pin(async move { Ok(answer) })
        }
    }

    /// It took itself for one that was heard just now, and served what others may own by then.
    #[test]
    fn a_node_was_heard_when_it_asked_to_be_let_in_and_not_when_it_hears_that_it_was() {
        let (runtime, thread, stop) = start_runtime("unit").expect("a thread");
        let disk = Arc::new(MemoryDisk::new());
        let group = wait(&runtime, Group::start(config(), disk, Arc::new(Nowhere), Arc::new(SystemClock::new())));
        let (group, clock) = (group.expect("it starts"), Arc::new(ManualClock::new(0)));
        let message = JoinCluster {
            node: 1,
            uuid: [1; 16],
            roles: vec![Role::Broker],
            rack: String::new(),
            cluster_address: String::new(),
            native_address: String::new(),
            kafka_address: String::new(),
            http_address: String::new(),
            settings: Vec::new(),
            epoch_min: 1,
            has_all: true,
            level_min: level::FIRST,
            level_max: level::NEWEST,
        };
        let (asked, ticking) = (group.clone(), clock.clone());
        let joins = async move {
            let transport = Suspends(ticking.clone());
            join_until(&asked, &transport, Some("seed:1".into()), &message, &*ticking).await
        };
        assert_eq!(wait(&runtime, joins), Ok((3, 0)));
        assert_eq!(clock.since_boot_us(), 3_600_000_000);
        wait(&runtime, async move { group.stop().await });
        stop.send_replace(true);
        thread.join().expect("it ends");
    }

    #[test]
    fn a_thread_that_a_stop_waits_for_waits_for_no_leader() {
        let (runtime, thread, stop) = start_runtime("unit").expect("a thread");
        let started =
            Group::start(config(), Arc::new(MemoryDisk::new()), Arc::new(Nowhere), Arc::new(SystemClock::new()));
        let group = wait(&runtime, started).expect("it starts");
        // Nobody leads: an answer takes as long as a command may.
        let looks = AtomicU32::new(0);
        let goes_on = || looks.fetch_add(1, Ordering::Relaxed) < 2;
        let told = ask_while((&group, &runtime), AllocateProducer { producer_id: None }, goes_on);
        let error = told.expect_err("nobody leads").to_string();
        assert!(error.contains(STOPPING), "{error}");
        assert_eq!(looks.into_inner(), 3);
        wait(&runtime, async move { group.stop().await });
        stop.send_replace(true);
        thread.join().expect("it ends");
    }
}
