//! Virtual logs with copies on other nodes (thesis 5.3.3, 7.3; `docs/replication.md`): which of them serves a stream, how they reach
//! backups, and how the coordinators are asked for views.
//!
//! Logs are made when the first stream needs them: one pool for all streams with the same number of copies and the same durability, and
//! some of its own for a stream that asks for them, and a few for single streamlets that fill one alone (`adaptive`). Each has a thread; all share one connection to each backup and one thread for all
//! connections. A log lives as long as the process: those of a stream that is gone serve the next one that asks for such.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_broker::LogKind;
use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::ClusterState;
use kera_env::Clock;
use kera_format::cluster::{LogName, NodeNumber, Rack};
use kera_format::vlog_replica::LogId;
use kera_format::{Durability, SegmentId, StreamId, StreamOptions, StreamletId};
use kera_link::{LinkConfig, RpcLinks};
use kera_log::{DurabilitySink, Log, SinkDirectory, SinkError, SinkErrorKind, Tenure};
use kera_protocol::{ChangeLog, LogChange, StreamRef};
use kera_raft::Group;
use kera_vlog::{BackupId, ReplicatedConfig, ReplicatedLog, ReplicatedStats, View, ViewAnswer, Views};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Runtime;
use crate::fatal::Fatal;

/// How long connecting to a backup may take.
const CONNECT: Duration = Duration::from_millis(500);
/// The coordinators are asked again to give up an older view, which they have refused, after this at the latest.
const GIVE_UP_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Which logs serve a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pool {
    copies: u32,
    synced: bool,
    /// Whose alone, if it has logs of its own.
    stream: Option<StreamId>,
    /// Its number, if it is one of those that single streamlets are put into.
    own: Option<u8>,
}

/// The logs of a pool.
struct Serving {
    logs: Vec<Arc<ReplicatedLog>>,
    /// The pool's stream is known to be gone.
    is_left: bool,
}

#[derive(Default)]
struct Logs {
    pools: HashMap<Pool, Serving>,
    all: Vec<(LogId, Arc<ReplicatedLog>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Logs {
    /// Takes up to `most` logs of this kind from streams that are known to be gone. What is left of those in them goes when its segments do, as in
    /// a log that streams share.
    fn left_over(&mut self, kind: Pool, most: usize) -> Vec<Arc<ReplicatedLog>> {
        let mut found = Vec::new();
        self.pools.retain(|pool, serving| {
            if serving.is_left && *pool == (Pool { stream: pool.stream, ..kind }) {
                found.extend(serving.logs.drain(..serving.logs.len().min(most - found.len())));
            }
            !serving.logs.is_empty()
        });
        found
    }

    fn serve(&mut self, pool: Pool, logs: Vec<Arc<ReplicatedLog>>) {
        self.pools.insert(pool, Serving { logs, is_left: false });
    }
}

/// What the node's configuration says about them.
#[derive(Clone, Copy)]
pub(super) struct CopiesSettings {
    /// Logs that streams share.
    pub(super) shared_logs: u32,
    /// See [`ReplicatedConfig::lag_bytes_max`].
    pub(super) lag_bytes_max: u64,
    /// See [`ReplicatedConfig::lag_us_max`].
    pub(super) lag_us_max: u64,
}

/// See the module.
pub(crate) struct Copies {
    /// The node, its epoch, and 0.
    me: LogId,
    settings: CopiesSettings,
    clock: Arc<dyn Clock>,
    views: Arc<GroupViews>,
    /// Blocks that count when they survive a kill, and those that count when they are synced.
    links: [Arc<RpcLinks>; 2],
    logs: Mutex<Logs>,
    runtime: Handle,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Copies {
    /// The logs of node `me.0` in its epoch `me.1`. `fenced` is told once when a backup or the coordinators say that it is fenced.
    pub(super) fn start(
        group: &Arc<Group>,
        cluster_runtime: &Handle,
        me: (u32, u32),
        settings: CopiesSettings,
        clock: &Arc<dyn Clock>,
        fenced: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<Copies>, Fatal> {
        let (runtime, thread, stop): Runtime = super::start_runtime("kera-links")?;
        let cluster = group.read(ClusterState::cluster);
        let link = |synced| {
            let group = Arc::downgrade(group);
            let address = move |backup: BackupId| {
                let group = group.upgrade()?;
                group.read(|state| state.node(backup).map(|node| (node.doors.cluster.clone(), node.uuid)))
            };
            let config = LinkConfig { cluster, synced, connect_timeout: CONNECT };
            RpcLinks::new(config, runtime.clone(), Arc::new(address))
        };
        let views = GroupViews {
            node: me.0,
            epoch: me.1,
            group: Arc::downgrade(group),
            runtime: cluster_runtime.clone(),
            logs: Mutex::default(),
            asking: Arc::default(),
            giving_up: Arc::default(),
            fenced,
        };
        Ok(Arc::new(Copies {
            me: LogId { node: me.0, epoch: me.1, vlog: 0 },
            settings,
            clock: clock.clone(),
            views: Arc::new(views),
            links: [link(false), link(true)],
            logs: Mutex::default(),
            runtime,
            stop,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Where the connections to backups run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// A log that streamlets are put into one at a time, by its number: always the same one.
    pub(super) fn own_log(&self, number: u8, (copies, synced): LogKind) -> Arc<ReplicatedLog> {
        let pool = Pool { copies, synced, stream: None, own: Some(number) };
        let mut logs = self.logs.lock();
        if let Some(log) = logs.pools.get(&pool).and_then(|serving| serving.logs.first()) {
            return Arc::clone(log);
        }
        let made = self.open(&mut logs, pool);
        logs.serve(pool, vec![made.clone()]);
        made
    }

    /// What logs serve a stream.
    pub(super) fn kind(options: &StreamOptions) -> LogKind {
        (options.replication, options.durability == Durability::Power)
    }

    /// The log that a streamlet is in if it was not put into one of its own, made if it is the first of its kind.
    ///
    /// Called under a lane's lock, so nobody is asked here what the coordinators' state says: behind somebody who waits to change that all wait who want to
    /// look at it, and who is looking may wait for a lane, or for the logs. Which streams are gone was [looked for](Copies::look_for_gone) before.
    pub(super) fn log(&self, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> Arc<ReplicatedLog> {
        let own = (options.virtual_logs > 0).then_some(stream);
        let (copies, synced) = Copies::kind(options);
        let pool = Pool { copies, synced, stream: own, own: None };
        let wanted = own.map_or(self.settings.shared_logs.max(1), |_| options.virtual_logs.min(options.streamlets));
        let at = match own {
            Some(_) => u64::from(streamlet.0),
            None => stream.0.wrapping_add(streamlet.0.into()),
        };
        let mut logs = self.logs.lock();
        if !logs.pools.contains_key(&pool) {
            let mut made = match own {
                Some(_) => logs.left_over(pool, wanted as usize),
                None => Vec::new(),
            };
            made.extend((made.len()..wanted as usize).map(|_| self.open(&mut logs, pool)).collect::<Vec<_>>());
            logs.serve(pool, made);
        }
        let of = &logs.pools[&pool].logs;
        Arc::clone(&of[(at % of.len() as u64) as usize])
    }

    /// Looks which streams are gone of those that have logs of their own: these serve the next ones that ask for such. For who follows the coordinators, whenever
    /// a stream was deleted; not under a lock.
    ///
    /// Logs that a last append makes for a stream that is gone already are found the next time.
    pub(super) fn look_for_gone(&self) {
        self.leave_logs_of(|stream| self.views.is_gone(stream));
    }

    /// Nobody is asked while the logs are locked: see [`log`](Copies::log).
    fn leave_logs_of(&self, is_gone: impl Fn(StreamId) -> bool) {
        let served: HashSet<StreamId> = {
            let logs = self.logs.lock();
            logs.pools.iter().filter(|(_, serving)| !serving.is_left).filter_map(|(pool, _)| pool.stream).collect()
        };
        let gone: HashSet<StreamId> = served.into_iter().filter(|stream| is_gone(*stream)).collect();
        for (pool, serving) in &mut self.logs.lock().pools {
            serving.is_left |= pool.stream.is_some_and(|stream| gone.contains(&stream));
        }
    }

    /// Makes a log. It has no view yet: it asks for its first one by itself, and takes nothing before.
    fn open(&self, logs: &mut Logs, pool: Pool) -> Arc<ReplicatedLog> {
        let id = LogId { vlog: logs.all.len() as u32, ..self.me };
        let links = &self.links[usize::from(pool.synced)];
        let config = ReplicatedConfig {
            lag_bytes_max: self.settings.lag_bytes_max,
            lag_us_max: self.settings.lag_us_max,
            ..ReplicatedConfig::new(id, pool.copies)
        };
        let log = ReplicatedLog::new(config, View::NONE, self.clock.clone(), links.clone(), self.views.clone());
        links.attach(id, &log);
        self.views.logs.lock().insert(id, Arc::downgrade(&log));
        logs.all.push((id, log.clone()));
        let running = log.clone();
        let spawned = std::thread::Builder::new().name("kera-copies".into()).stack_size(512 << 10);
        match spawned.spawn(move || running.run()) {
            Ok(thread) => logs.threads.push(thread),
            // Nothing is ever acknowledged by it then, and its streams say so.
            Err(error) => tracing::error!(%error, log = %id, "no thread for a virtual log; restart the node"),
        }
        log
    }

    /// The log of a segment's streamlet, if that has copies.
    pub(super) fn log_of(&self, log: &Log, id: SegmentId) -> Option<Arc<ReplicatedLog>> {
        let stream = log.stream(id.stream)?;
        let copies = stream.streamlet(id.streamlet)?.copies();
        (copies > 1).then(|| self.log_with(copies, id.stream, id.streamlet, &stream.options()))
    }

    /// The same as [`log`](Copies::log) with another number of copies than the stream says.
    pub(super) fn log_with(
        &self,
        copies: u32,
        stream: StreamId,
        streamlet: StreamletId,
        options: &StreamOptions,
    ) -> Arc<ReplicatedLog> {
        self.log(stream, streamlet, &StreamOptions { replication: copies, ..options.clone() })
    }

    /// A node is lost: logs that have it as a backup take another one, also if nothing is written to them now.
    pub(super) fn lost(&self, node: NodeNumber) {
        for (_, log) in self.all() {
            if log.state().1.backups.contains(&node) {
                log.broken(node, "the coordinators have fenced it".into());
            }
        }
    }

    /// All logs there are.
    pub(crate) fn all(&self) -> Vec<(LogId, Arc<ReplicatedLog>)> {
        self.logs.lock().all.clone()
    }

    /// What they have done, together.
    pub(crate) fn stats(&self) -> Vec<ReplicatedStats> {
        self.all().iter().map(|(_, log)| log.stats()).collect()
    }

    /// That writes wait for copies, if that lasts in logs of streamlets that are here. A log goes on looking for backups when its streamlets have moved or their streams were
    /// deleted: nobody waits for that.
    pub(super) fn lacks(&self, log: &Log) -> Option<String> {
        let of = |(_, copied): (LogId, Arc<ReplicatedLog>)| {
            let why = lacking(DurabilitySink::healthy(&*copied))?;
            Some((Arc::as_ptr(&copied).cast::<()>(), why))
        };
        let lacking: Vec<(*const (), String)> = self.all().into_iter().filter_map(of).collect();
        if lacking.is_empty() {
            return None;
        }
        let serving = serving(log);
        told_of(lacking.into_iter().filter(|(copied, _)| serving.contains(copied)).map(|(_, why)| why).collect())
    }

    /// Stops all logs: what is not acknowledged stays so. Blocks.
    pub(super) fn stop(&self) {
        let (all, threads) = {
            let mut logs = self.logs.lock();
            (logs.all.clone(), std::mem::take(&mut logs.threads))
        };
        all.iter().for_each(|(_, log)| log.stop());
        self.stop.send_replace(true);
        for thread in threads.into_iter().chain(self.thread.lock().take()) {
            if thread.join().is_err() {
                tracing::error!("a thread of the virtual logs with copies ended with a panic");
            }
        }
    }
}

/// The coordinators, as the logs know them.
struct GroupViews {
    node: u32,
    epoch: u32,
    group: Weak<Group>,
    runtime: Handle,
    logs: Mutex<HashMap<LogId, Weak<ReplicatedLog>>>,
    /// Logs that wait for an answer: asking again is of no use before.
    asking: Arc<Mutex<HashSet<LogId>>>,
    /// Views that the coordinators are being asked to give up: whoever finds that they have not done it yet need not ask as well.
    giving_up: Arc<Mutex<HashSet<(LogId, u32)>>>,
    fenced: Arc<dyn Fn() + Send + Sync>,
}

impl GroupViews {
    /// Whether a stream was there and is not any more.
    fn is_gone(&self, stream: StreamId) -> bool {
        let is_gone = |state: &ClusterState| {
            stream < state.catalog.next_stream() && state.catalog.find(&StreamRef::Id(stream)).is_err()
        };
        self.group.upgrade().is_some_and(|group| group.read(is_gone))
    }
}

impl Views for GroupViews {
    fn candidates(&self, log: LogId) -> Vec<(BackupId, Rack)> {
        let group = self.group.upgrade();
        group.map_or_else(Vec::new, |group| group.read(|state| state.backups_for(self.node, log.vlog)))
    }

    fn ask(&self, log: LogId, view: &View) {
        let (Some(group), Some(replicated)) =
            (self.group.upgrade(), self.logs.lock().get(&log).and_then(Weak::upgrade))
        else {
            return;
        };
        if !self.asking.lock().insert(log) {
            return;
        }
        let (view, asking, me) = (view.clone(), self.asking.clone(), (self.node, self.epoch));
        self.runtime.spawn(async move {
            let message = ChangeLog {
                log,
                change: LogChange::View,
                view: view.number,
                first_block: view.first,
                backups: view.backups.clone(),
            };
            let answer = match group.ask(&message).await {
                Ok(_) => Some(ViewAnswer::Agreed(view)),
                // Nobody has decided; it is asked again.
                Err(CoordinatorError::NoLeader(_)) => None,
                Err(error) => {
                    tracing::warn!(%log, view = view.number, %error, "the coordinators refuse a view");
                    Some(group.read(|state| refusal(state, me, log, view)))
                }
            };
            asking.lock().remove(&log);
            if let Some(answer) = answer {
                replicated.view_answered(answer);
            }
        });
    }

    fn fenced(&self, log: LogId) {
        tracing::error!(%log, "this node was declared lost");
        (self.fenced)();
    }

    /// Until the coordinators have done it, or the log is over: a recovery would ask for the view for as long as they know it, and wait for backups that may have lost what
    /// nobody needs.
    fn give_up_view(&self, log: LogId, view: u32) {
        let Some(group) = self.group.upgrade() else { return };
        if !self.giving_up.lock().insert((log, view)) {
            return;
        }
        let giving_up = self.giving_up.clone();
        self.runtime.spawn(async move {
            let message = ChangeLog { log, change: LogChange::GiveUpView, view, first_block: 0, backups: Vec::new() };
            let mut pause = CONNECT;
            while let Err(error) = group.ask(&message).await {
                let is_there =
                    |state: &ClusterState| state.is_live(log.node, log.epoch) && state.logs().contains_key(&log.into());
                if !group.read(is_there) {
                    tracing::debug!(%log, view, %error, "an old view stays");
                    break;
                }
                tracing::info!(%log, view, %error, "an old view is to be given up once more");
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(GIVE_UP_PAUSE_MAX);
            }
            giving_up.lock().remove(&(log, view));
        });
    }
}

/// Why a log takes nothing that has had too few copies for long.
fn lacking(health: Result<(), SinkError>) -> Option<String> {
    health.err().filter(|error| error.kind == SinkErrorKind::TooFewCopies).map(|trouble| trouble.reason)
}

/// The logs of streamlets that are here, each by where it is in memory.
fn serving(log: &Log) -> HashSet<*const ()> {
    let streams = log.streams();
    let all = streams.iter().flat_map(|stream| stream.streamlets());
    let here = all.filter(|streamlet| streamlet.tenure() != Tenure::Elsewhere);
    here.filter_map(|streamlet| streamlet.sink()).map(|sink| Arc::as_ptr(sink).cast::<()>()).collect()
}

/// What is said of logs that take nothing. Producers only wait, and where the nodes that are missing were given up nothing else tells why. One sentence, for the
/// logs mostly lack the same nodes, and streams may have many of their own.
fn told_of(why: Vec<String>) -> Option<String> {
    let others = why.len().saturating_sub(1);
    let first = why.into_iter().next()?;
    Some(match others {
        0 => format!("producers wait: {first}"),
        1 => format!("producers wait: {first}. So it is with one more log"),
        _ => format!("producers wait: {first}. So it is with {others} more logs"),
    })
}

/// What a refusal means, by what this node knows: that may be a little old, and then it asks once more.
fn refusal(state: &ClusterState, me: (u32, u32), log: LogId, asked: View) -> ViewAnswer {
    if !state.is_live(me.0, me.1) {
        return ViewAnswer::Fenced;
    }
    ViewAnswer::Refused { asked, newest: newest_view(state, log) }
}

/// The newest view of a log that the coordinators have agreed to, as far as this node knows.
fn newest_view(state: &ClusterState, log: LogId) -> View {
    let agreed = state.newest_view(log.into());
    agreed.map_or(View::NONE, |(number, view)| View { number, first: view.first, backups: view.backups.clone() })
}

/// The views of a log for which the coordinators name backups, as far as this node knows: a recovery asks each of them for all of its blocks.
pub(super) fn named_views(state: &ClusterState, log: LogId) -> Vec<u32> {
    let views = state.logs().get(&LogName::from(log)).map_or(&[][..], |known| &known.views[..]);
    (1..).zip(views).filter(|(_, view)| !view.backups.is_empty()).map(|(number, _)| number).collect()
}

/// Which sink serves a streamlet of this node: streams with one copy go to the virtual logs on its own disk, all others to backups.
pub(crate) struct NodeSinks {
    pub(crate) own: Vec<Arc<dyn DurabilitySink>>,
    /// Of an earlier life that had more of them: nothing is appended there, and what they have is kept for as long as its segments need it.
    pub(crate) left_over: Vec<Arc<dyn DurabilitySink>>,
    pub(crate) copies: Option<Arc<Copies>>,
}

impl SinkDirectory for NodeSinks {
    fn sink(&self, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> Arc<dyn DurabilitySink> {
        match &self.copies {
            Some(copies) if options.replication > 1 => copies.log(stream, streamlet, options),
            _ => self.own.sink(stream, streamlet, options),
        }
    }

    fn sinks(&self) -> Vec<Arc<dyn DurabilitySink>> {
        let copies = self.copies.iter().flat_map(|copies| copies.all()).map(|(_, log)| log as Arc<dyn DurabilitySink>);
        self.own.iter().chain(&self.left_over).cloned().chain(copies).collect()
    }
}

#[cfg(test)]
mod tests {
    use kera_env::SystemClock;
    use kera_format::chunk::ChunkTarget;
    use kera_format::cluster::ClusterEntry;
    use kera_format::{ChunkBuilder, ChunkView, Compression, LaneId, ProducerEpoch, ProducerId, Record};
    use kera_log::{Arena, ArenaConfig, LogConfig};

    use super::super::testing::{apply, joined};
    use super::*;

    /// Of a node that nobody has told of a cluster.
    fn copies(runtime: &Handle) -> Copies {
        let me = LogId { node: 1, epoch: 7, vlog: 0 };
        let views = GroupViews {
            node: me.node,
            epoch: me.epoch,
            group: Weak::new(),
            runtime: runtime.clone(),
            logs: Mutex::default(),
            asking: Arc::default(),
            giving_up: Arc::default(),
            fenced: Arc::new(|| {}),
        };
        let nobody = |_: BackupId| None::<(String, [u8; 16])>;
        let config = LinkConfig { cluster: [9; 16], synced: false, connect_timeout: CONNECT };
        let link = || RpcLinks::new(config.clone(), runtime.clone(), Arc::new(nobody));
        Copies {
            me,
            settings: CopiesSettings { shared_logs: 2, lag_bytes_max: 1 << 20, lag_us_max: 1_000 },
            clock: Arc::new(SystemClock::new()),
            views: Arc::new(views),
            links: [link(), link()],
            logs: Mutex::default(),
            runtime: runtime.clone(),
            stop: watch::channel(false).0,
            thread: Mutex::new(None),
        }
    }

    #[test]
    fn what_lasts_is_told_and_what_passes_is_not() {
        let trouble = |kind| Err(SinkError { kind, reason: "start backups".into(), retry_after_ms: 20 });
        assert_eq!(lacking(trouble(SinkErrorKind::TooFewCopies)).as_deref(), Some("start backups"));
        for other in [Ok(()), trouble(SinkErrorKind::Behind), trouble(SinkErrorKind::Fenced)] {
            assert_eq!(lacking(other), None);
        }
        let told = |logs: usize| told_of((1..=logs).map(|log| format!("log {log} lacks copies")).collect());
        assert_eq!(told(0), None);
        assert_eq!(told(1).as_deref(), Some("producers wait: log 1 lacks copies"));
        assert_eq!(told(2).as_deref(), Some("producers wait: log 1 lacks copies. So it is with one more log"));
        assert_eq!(told(9).as_deref(), Some("producers wait: log 1 lacks copies. So it is with 8 more logs"));
    }

    /// It said that producers wait until the node was started again.
    #[test]
    fn of_a_log_whose_streams_were_deleted_nothing_is_told() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let copies = Arc::new(copies(runtime.handle()));
        let dir = tempfile::tempdir().expect("a directory");
        let config = ArenaConfig { path: dir.path().join("copies.arena"), bytes: 16 << 20, node: [1; 16] };
        let (arena, _) = Arena::create_or_attach(config).expect("an arena");
        let log = Log::new(LogConfig::default(), arena);
        log.set_sinks(Arc::new(NodeSinks { own: Vec::new(), left_over: Vec::new(), copies: Some(copies.clone()) }));
        let options = StreamOptions { streamlets: 2, replication: 2, ..StreamOptions::default() };
        let streams = [3, 5].map(|id| log.create_stream(StreamId(id), options.clone()).expect("it is new"));
        assert!(serving(&log).is_empty(), "nothing was to be appended");
        for (stream, at) in [(&streams[0], 0), (&streams[0], 1), (&streams[1], 0)] {
            let streamlet = StreamletId(at);
            let mut chunk = ChunkBuilder::default();
            chunk.push(&Record::value(b"waits"));
            let (stream_id, producer_id, producer_epoch) = (stream.id(), ProducerId(2), ProducerEpoch(0));
            let target = ChunkTarget { stream: stream_id, streamlet, producer_id, producer_epoch, sequence: 0 };
            let chunk = chunk.seal(&target, Compression::None).expect("it fits");
            let lane = stream.streamlet(streamlet).and_then(|place| place.lane(LaneId(0))).expect("a lane");
            // Taken or not: it is of that log.
            let _ = lane.append(&ChunkView::parse(&chunk).expect("a chunk"), 5);
        }
        let of = |stream: u64, at: u32| {
            let copied = copies.log(StreamId(stream), StreamletId(at), &options);
            Arc::as_ptr(&copied).cast::<()>()
        };
        // Streams share two logs.
        assert_eq!(serving(&log), HashSet::from([of(3, 0), of(3, 1)]));
        log.delete_stream(StreamId(3)).expect("it was there");
        assert_eq!(serving(&log), HashSet::from([of(5, 0)]));
        log.stream(StreamId(5)).expect("it is there").place_elsewhere();
        assert!(serving(&log).is_empty());
        assert_eq!(copies.all().len(), 2, "they are there as long as the process lives");
        copies.stop();
    }

    #[test]
    fn a_view_is_named_until_the_coordinators_have_given_it_up() {
        let log = LogId { node: 1, epoch: 7, vlog: 3 };
        let mut state = joined(3, 7);
        assert!(named_views(&state, log).is_empty());
        let agreed =
            |view: u32| ClusterEntry::ViewAgreed { log: log.into(), view, first: view.into(), backups: vec![2] };
        apply(&mut state, &[1, 2, 3].map(agreed));
        assert_eq!(named_views(&state, log), vec![1, 2, 3]);
        apply(&mut state, &[ClusterEntry::ViewGivenUp { log: log.into(), view: 2 }]);
        assert_eq!(named_views(&state, log), vec![1, 3]);
    }

    #[test]
    fn the_logs_of_a_stream_that_is_gone_serve_the_next_one() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let copies = copies(runtime.handle());
        let options = |virtual_logs, replication| StreamOptions {
            streamlets: 8,
            virtual_logs,
            replication,
            ..StreamOptions::default()
        };
        let logs_of = |stream: u64, options: &StreamOptions| {
            let of = |streamlet| copies.log(StreamId(stream), StreamletId(streamlet), options).id().vlog;
            (0..8).map(of).collect::<std::collections::BTreeSet<u32>>()
        };
        let are_gone = |below: u64| {
            copies.leave_logs_of(|stream| {
                // Who says what is gone may have to wait for somebody who asks for a log.
                assert!(copies.logs.try_lock().is_some(), "nobody is asked while logs are kept from others");
                2 < stream.0 && stream.0 < below
            });
        };
        // One that stays, and one without logs of its own.
        let stays = logs_of(1, &options(3, 3));
        let shared = logs_of(2, &options(0, 3));
        assert_eq!((stays.len(), shared.len(), copies.all().len()), (3, 2, 5));
        for stream in 3..53 {
            are_gone(stream);
            let logs = logs_of(stream, &options(4, 3));
            assert_eq!(logs.len(), 4);
            assert!(logs.is_disjoint(&stays) && logs.is_disjoint(&shared), "stream {stream}: {logs:?}");
        }
        assert_eq!(copies.all().len(), 9);
        // Of another kind, and more of this one than are left.
        are_gone(53);
        assert_eq!((logs_of(53, &options(2, 2)).len(), copies.all().len()), (2, 11));
        assert_eq!((logs_of(54, &options(6, 3)).len(), copies.all().len()), (6, 13));
        assert_eq!(logs_of(1, &options(3, 3)), stays);
        copies.stop();
    }
}
