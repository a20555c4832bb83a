//! The virtual logs of a simulated node: real ones, whose blocks and questions are put on their way by the world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use kera_coordinator::cluster::ClusterState;
use kera_env::Clock;
use kera_format::cluster::{LogName, Rack};
use kera_format::vlog_replica::LogId;
use kera_format::{Durability, SegmentId, StreamId, StreamOptions, StreamletId};
use kera_log::{ChunkReference, DurabilitySink, Observer, SinkDirectory, SinkError, Ticket};
use kera_protocol::replication::STORE_SYNCED;
use kera_protocol::{ReleaseBlocks, StoreHead};
use kera_vlog::{BackupId, BackupLink, Block, ReplicatedConfig, ReplicatedLog, View, Views};

use super::CLUSTER;
use super::plan::Planted;

/// Logs that streams share.
const SHARED_LOGS: u32 = 2;
/// As `cluster.lag_max` comes.
const LAG_US_MAX: u64 = 1_000_000;

/// What a node's logs want of the world.
#[derive(Debug)]
pub(super) enum Out {
    Block(BackupId, StoreHead, Bytes),
    Release(BackupId, ReleaseBlocks),
    Ask(LogId, View),
    GiveUpView(LogId, u32),
    /// This incarnation was declared lost.
    Fenced,
}

/// A lock of one thread: whoever panicked under it ends the run anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Segments and references lead back to the log: it must not keep those alive that keep it.
struct WeakSink {
    of: Weak<dyn DurabilitySink>,
    behind: Option<Arc<dyn DurabilitySink>>,
}

impl WeakSink {
    fn new(log: &Arc<ReplicatedLog>) -> WeakSink {
        let behind = WeakSink { of: Arc::downgrade(&log.behind()), behind: None };
        let of: Arc<dyn DurabilitySink> = log.clone();
        WeakSink { of: Arc::downgrade(&of), behind: Some(Arc::new(behind)) }
    }

    fn get(&self) -> Arc<dyn DurabilitySink> {
        self.of.upgrade().expect("a process that runs has its virtual logs")
    }
}

impl DurabilitySink for WeakSink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        self.get().appended(reference)
    }
    fn durable_through(&self) -> Ticket {
        self.get().durable_through()
    }
    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        self.get().wait(ticket, observer, token)
    }
    fn healthy(&self) -> Result<(), SinkError> {
        self.get().healthy()
    }
    fn behind(&self) -> Option<Arc<dyn DurabilitySink>> {
        self.behind.clone()
    }
    fn may_answer_early(&self) -> bool {
        self.get().may_answer_early()
    }
    fn segment_safe(&self, id: SegmentId) {
        if let Some(log) = self.of.upgrade() {
            log.segment_safe(id);
        }
    }
    fn segment_gone(&self, id: SegmentId) {
        if let Some(log) = self.of.upgrade() {
            log.segment_gone(id);
        }
    }
}

/// How blocks leave, and whom views are asked of.
struct Outside {
    node: u32,
    out: Arc<Mutex<Vec<Out>>>,
    known: Arc<Mutex<ClusterState>>,
    synced: bool,
    /// As long as one backup of the newest view is there nobody else may be chosen: a defect.
    takes_none_back: bool,
}

impl BackupLink for Outside {
    fn send(&self, to: BackupId, view: &View, block: &Arc<Block>) {
        let chunks: Vec<u8> = block.parts.iter().flat_map(|part| part.iter().copied()).collect();
        let head = StoreHead {
            cluster: CLUSTER,
            log: block.log,
            view: view.number,
            view_first: view.first,
            block: block.number,
            written_ms: block.written_ms,
            chunk_count: block.chunk_count,
            chunk_bytes: block.chunk_bytes,
            chunks_checksum: block.chunks_checksum,
            flags: if self.synced { STORE_SYNCED } else { 0 },
        };
        lock(&self.out).push(Out::Block(to, head, chunks.into()));
    }

    fn release(&self, to: BackupId, log: LogId, through: u64) {
        lock(&self.out).push(Out::Release(to, ReleaseBlocks { log, through_block: through }));
    }
}

impl Views for Outside {
    fn candidates(&self, log: LogId) -> Vec<(BackupId, Rack)> {
        let known = lock(&self.known);
        let mut found = known.backups_for(self.node, log.vlog);
        let view = known.logs().get(&LogName::from(log)).and_then(|log| log.views.last());
        if let Some(view) = view.filter(|_| self.takes_none_back)
            && found.iter().any(|(backup, _)| view.backups.contains(backup))
        {
            found.retain(|(backup, _)| view.backups.contains(backup));
        }
        found
    }
    fn ask(&self, log: LogId, view: &View) {
        lock(&self.out).push(Out::Ask(log, view.clone()));
    }
    fn fenced(&self, _: LogId) {
        lock(&self.out).push(Out::Fenced);
    }
    fn give_up_view(&self, log: LogId, view: u32) {
        lock(&self.out).push(Out::GiveUpView(log, view));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pool {
    copies: u32,
    synced: bool,
    stream: Option<StreamId>,
    own: Option<u8>,
}

struct OneLog {
    log: Arc<ReplicatedLog>,
    sink: Arc<WeakSink>,
    copies: u32,
}

#[derive(Default)]
struct Logs {
    pools: BTreeMap<Pool, Vec<usize>>,
    all: Vec<OneLog>,
}

/// All virtual logs of a process, made when the first stream needs them.
pub(super) struct Copies {
    me: LogId,
    clock: Arc<dyn Clock>,
    known: Arc<Mutex<ClusterState>>,
    pub(super) out: Arc<Mutex<Vec<Out>>>,
    logs: Mutex<Logs>,
    planted: Option<Planted>,
    /// Logs that wait for an answer of the coordinators.
    pub(super) asking: Mutex<BTreeSet<LogId>>,
}

impl Copies {
    pub(super) fn new(
        (node, epoch): (u32, u32),
        clock: Arc<dyn Clock>,
        known: Arc<Mutex<ClusterState>>,
        planted: Option<Planted>,
    ) -> Copies {
        let me = LogId { node, epoch, vlog: 0 };
        let (out, logs, asking) = (Arc::default(), Mutex::default(), Mutex::default());
        Copies { me, clock, known, out, logs, planted, asking }
    }

    pub(super) fn all(&self) -> Vec<Arc<ReplicatedLog>> {
        lock(&self.logs).all.iter().map(|one| one.log.clone()).collect()
    }

    /// The same, each with how many copies its blocks are to have.
    pub(super) fn all_wanted(&self) -> Vec<(Arc<ReplicatedLog>, u32)> {
        lock(&self.logs).all.iter().map(|one| (one.log.clone(), one.copies)).collect()
    }

    /// The name of one of [all](Copies::all), by its place.
    pub(super) fn id(&self, at: u32) -> LogId {
        LogId { vlog: at, ..self.me }
    }

    pub(super) fn get(&self, log: LogId) -> Option<Arc<ReplicatedLog>> {
        let is_own = (log.node, log.epoch) == (self.me.node, self.me.epoch);
        lock(&self.logs).all.get(log.vlog as usize).filter(|_| is_own).map(|one| one.log.clone())
    }

    fn open(&self, logs: &mut Logs, pool: Pool) -> usize {
        let id = LogId { vlog: logs.all.len() as u32, ..self.me };
        let config = ReplicatedConfig {
            block_bytes_max: 8 << 10,
            stretch_bytes: 64 << 10,
            spread_after_us: 500_000,
            lag_us_max: if self.planted == Some(Planted::NeverLate) { u64::MAX } else { LAG_US_MAX },
            ..ReplicatedConfig::new(id, pool.copies)
        };
        let outside = Arc::new(Outside {
            node: self.me.node,
            out: self.out.clone(),
            known: self.known.clone(),
            synced: pool.synced,
            takes_none_back: self.planted == Some(Planted::TakesNoneBack),
        });
        let log = ReplicatedLog::new(config, View::NONE, self.clock.clone(), outside.clone(), outside);
        let sink = Arc::new(WeakSink::new(&log));
        logs.all.push(OneLog { log, sink, copies: pool.copies });
        logs.all.len() - 1
    }
}

/// The same for the log, which must not keep its virtual logs alive: what waits in them leads back to it.
pub(super) struct Directory {
    pub(super) copies: Weak<Copies>,
    /// For streams with one copy, if there are any.
    pub(super) own: Vec<Arc<dyn DurabilitySink>>,
}

impl SinkDirectory for Directory {
    fn sink(&self, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> Arc<dyn DurabilitySink> {
        if options.replication == 1 && !self.own.is_empty() {
            return self.own.sink(stream, streamlet, options);
        }
        self.copies.upgrade().expect("a process that runs has its virtual logs").sink(stream, streamlet, options)
    }

    fn sinks(&self) -> Vec<Arc<dyn DurabilitySink>> {
        let copies = self.copies.upgrade().map_or_else(Vec::new, |copies| copies.sinks());
        self.own.iter().cloned().chain(copies).collect()
    }
}

impl Copies {
    fn sink(&self, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> Arc<dyn DurabilitySink> {
        let mut logs = lock(&self.logs);
        let at = self.place(&mut logs, stream, streamlet, options);
        logs.all[at].sink.clone()
    }

    /// The log that a streamlet's chunks go to.
    pub(super) fn log_of(&self, stream: StreamId, streamlet: StreamletId, of: &StreamOptions) -> Arc<ReplicatedLog> {
        let mut logs = lock(&self.logs);
        let at = self.place(&mut logs, stream, streamlet, of);
        logs.all[at].log.clone()
    }

    fn place(&self, logs: &mut Logs, stream: StreamId, streamlet: StreamletId, options: &StreamOptions) -> usize {
        let own = (options.virtual_logs > 0).then_some(stream);
        let synced = options.durability == Durability::Power;
        let pool = Pool { copies: options.replication, synced, stream: own, own: None };
        let wanted = own.map_or(SHARED_LOGS, |_| options.virtual_logs.min(options.streamlets));
        let at = match own {
            Some(_) => u64::from(streamlet.0),
            None => stream.0.wrapping_add(streamlet.0.into()),
        };
        if !logs.pools.contains_key(&pool) {
            let made: Vec<usize> = (0..wanted).map(|_| self.open(logs, pool)).collect();
            logs.pools.insert(pool, made);
        }
        let of_pool = &logs.pools[&pool];
        of_pool[(at % of_pool.len() as u64) as usize]
    }

    /// A log that streamlets are put into one at a time.
    pub(super) fn own_sink(&self, number: u8, options: &StreamOptions) -> Arc<dyn DurabilitySink> {
        let synced = options.durability == Durability::Power;
        let pool = Pool { copies: options.replication, synced, stream: None, own: Some(number) };
        let mut logs = lock(&self.logs);
        let known = logs.pools.get(&pool).and_then(|at| at.first()).copied();
        let at = known.unwrap_or_else(|| self.open(&mut logs, pool));
        logs.pools.insert(pool, vec![at]);
        logs.all[at].sink.clone()
    }

    fn sinks(&self) -> Vec<Arc<dyn DurabilitySink>> {
        lock(&self.logs).all.iter().map(|one| one.sink.clone() as Arc<dyn DurabilitySink>).collect()
    }
}
