//! A broker's log, its replicated virtual logs, a coordinator that agrees, and backups behind TCP servers.
#![allow(dead_code, unreachable_pub)] // Each program uses its part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_backup::{Backup, BackupConfig, BackupService, BackupSession, OpenReport};
use kera_env::{Clock, Disk, RealDisk, SystemClock, SystemRandom};
use kera_format::chunk::ChunkTarget;
use kera_format::cluster::Rack;
use kera_format::vlog_replica::LogId;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Durability, LaneId, ProducerId, Record, StreamId, StreamOptions, StreamletId,
};
use kera_link::{LinkConfig, RpcLinks};
use kera_log::{Arena, ArenaConfig, DurabilitySink, Log, LogConfig, Ticket};
use kera_protocol::HelloResponse;
use kera_protocol::frame::FRAME_BYTES_MAX;
use kera_rpc::{Peer, RunningServer, Server, ServerConfig, Session, SessionWaker};
use kera_vlog::{BackupId, BackupLink, ReplicatedConfig, ReplicatedLog, View, ViewAnswer, Views};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::oneshot;

pub const CLUSTER: [u8; 16] = *b"cluster-16-bytes";
pub const LOG: LogId = LogId { node: 9, epoch: 1, vlog: 0 };
pub const STREAM: StreamId = StreamId(1);

/// What a test or a measurement wants otherwise.
#[derive(Clone)]
pub struct Settings {
    pub synced: bool,
    pub logs: u32,
    pub streamlets: u32,
    pub arena_bytes: u64,
    pub block_bytes: usize,
    pub blocks_under_way: usize,
    pub io_threads: usize,
    pub retention_bytes: Option<u64>,
    /// Where backups keep their files.
    pub folder: std::path::PathBuf,
    /// Who stands at each address, as the broker knows.
    pub uuid: [u8; 16],
}

/// A coordinator that agrees to everything.
struct Agrees {
    logs: OnceLock<Vec<Arc<ReplicatedLog>>>,
    backups: Vec<BackupId>,
}

impl Views for Agrees {
    fn candidates(&self, _: LogId) -> Vec<(BackupId, Rack)> {
        self.backups.iter().map(|backup| (*backup, Rack::Unknown)).collect()
    }
    fn ask(&self, log: LogId, view: &View) {
        if let Some(logs) = self.logs.get() {
            logs[log.vlog as usize].view_answered(ViewAnswer::Agreed(view.clone()));
        }
    }
    fn fenced(&self, _: LogId) {}
}

struct Node {
    backup: Arc<Backup>,
    service: Arc<BackupService>,
    server: Option<RunningServer>,
    threads: Vec<JoinHandle<()>>,
}

pub struct Cluster {
    pub log: Arc<Log>,
    pub replicated: Vec<Arc<ReplicatedLog>>,
    pub clock: Arc<SystemClock>,
    settings: Settings,
    nodes: HashMap<BackupId, Node>,
    addresses: Arc<Mutex<HashMap<BackupId, String>>>,
    stop_links: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    sequence: AtomicU64,
    folder: TempDir,
    _arena: TempDir,
}

impl Cluster {
    /// `backups` of them, and a broker that wants `copies`.
    pub fn start(backups: u32, copies: u32, adjust: impl Fn(&mut Settings)) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = Settings {
            synced: false,
            logs: 1,
            streamlets: 4,
            arena_bytes: 64 << 20,
            block_bytes: 64 << 10,
            blocks_under_way: 4,
            io_threads: 1,
            retention_bytes: None,
            folder: folder.path().to_owned(),
            uuid: CLUSTER,
        };
        adjust(&mut settings);
        let arena_folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let arena = ArenaConfig { path: arena_folder.path().join("arena"), bytes: settings.arena_bytes, node: CLUSTER };
        let (arena, _) = Arena::create_or_attach(arena).expect("arena");
        let log = Log::new(LogConfig::default(), arena);
        let clock = Arc::new(SystemClock::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (stop_links, stopped) = oneshot::channel::<()>();
        let of_links = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let addresses: Arc<Mutex<HashMap<BackupId, String>>> = Arc::default();
        let known = Arc::clone(&addresses);
        // No test is about backups that are slow, and on a busy machine one may be held up for long.
        let (connect_timeout, late_us, ask_again_us) = (Duration::from_secs(60), 60_000_000, 10_000_000);
        let link = LinkConfig { cluster: CLUSTER, synced: settings.synced, connect_timeout };
        let uuid = settings.uuid;
        let address = move |backup: BackupId| known.lock().get(&backup).map(|address| (address.clone(), uuid));
        let links = RpcLinks::new(link, handle, Arc::new(address));
        let views = Arc::new(Agrees { logs: OnceLock::new(), backups: (1..=backups).collect() });
        let first = View { number: 1, first: 1, backups: (1..copies).collect() };
        let replicated: Vec<Arc<ReplicatedLog>> = (0..settings.logs)
            .map(|vlog| {
                let id = LogId { vlog, ..LOG };
                let config = ReplicatedConfig {
                    block_bytes_max: settings.block_bytes,
                    blocks_under_way_max: settings.blocks_under_way,
                    late_us,
                    ask_again_us,
                    ..ReplicatedConfig::new(id, copies)
                };
                let links_of = Arc::clone(&links) as Arc<dyn BackupLink>;
                let views = Arc::clone(&views) as Arc<dyn Views>;
                let clock = Arc::clone(&clock) as Arc<dyn Clock>;
                let replicated = ReplicatedLog::new(config, first.clone(), clock, links_of, views);
                links.attach(id, &replicated);
                replicated
            })
            .collect();
        views.logs.set(replicated.clone()).ok().expect("set once");
        let sinks: Vec<_> = replicated.iter().map(|log| Arc::clone(log) as Arc<dyn DurabilitySink>).collect();
        log.set_sinks(Arc::new(sinks));
        let options = StreamOptions {
            streamlets: settings.streamlets,
            durability: Durability::Power,
            segment_bytes_max: 1 << 20,
            retention_bytes: settings.retention_bytes,
            ..StreamOptions::default()
        };
        log.create_stream(STREAM, options).expect("stream");
        log.recover(Vec::new(), Vec::new());
        log.finish_recovery(1);
        let mut cluster = Cluster {
            log,
            replicated: replicated.clone(),
            clock,
            settings,
            nodes: HashMap::new(),
            addresses,
            stop_links: Some(stop_links),
            threads: Vec::new(),
            sequence: AtomicU64::new(0),
            folder,
            _arena: arena_folder,
        };
        (1..=backups).for_each(|backup| drop(cluster.restart(backup)));
        cluster.threads = replicated.into_iter().map(|log| std::thread::spawn(move || log.run())).collect();
        cluster.threads.push(of_links);
        cluster
    }

    pub fn address(&self, backup: BackupId) -> String {
        self.addresses.lock()[&backup].clone()
    }

    /// Starts a backup over what its folder has.
    pub fn restart(&mut self, number: BackupId) -> OpenReport {
        let root = self.settings.folder.join(format!("backup-{number}"));
        std::fs::create_dir_all(&root).expect("a folder");
        let disk = Arc::new(RealDisk::open_buffered(&root).expect("a disk")) as Arc<dyn Disk>;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let config = BackupConfig::new(CLUSTER, number);
        let (backup, report) =
            Backup::open(config, vec![disk], Arc::clone(&clock), Arc::new(SystemRandom)).expect("open");
        let service = BackupService::new(Arc::clone(&backup));
        let hello = HelloResponse {
            server_name: "backup".into(),
            server_version: "0".into(),
            node_id: CLUSTER,
            node_epoch: 1,
            ops: HelloResponse::ops_spoken(),
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            chunk_bytes_max: 1 << 20,
            in_flight_bytes_max: 1 << 30,
            in_flight_requests_max: 1000,
            subscriptions_max: 0,
            idle_timeout_ms: 0,
        };
        let mut config = ServerConfig::new("127.0.0.1:0".parse().expect("an address"), hello, clock);
        config.io_threads = self.settings.io_threads;
        let of_sessions = Arc::clone(&service);
        let factory = move |_: Peer, waker: SessionWaker| -> Box<dyn Session> {
            Box::new(BackupSession::new(Arc::clone(&of_sessions), waker))
        };
        let server = Server::start(config, Arc::new(factory)).expect("a server");
        self.addresses.lock().insert(number, server.local_addr().to_string());
        let writer = Arc::clone(&backup);
        let mut threads = vec![std::thread::spawn(move || writer.run(0))];
        threads.extend(service.threads().into_iter().map(|thread| {
            let service = Arc::clone(&service);
            std::thread::spawn(move || service.run(thread))
        }));
        self.nodes.insert(number, Node { backup, service, server: Some(server), threads });
        report
    }

    /// Stops a backup.
    pub fn stop(&mut self, number: BackupId) {
        let Some(mut node) = self.nodes.remove(&number) else { return };
        if let Some(server) = node.server.take() {
            server.stop(Duration::from_millis(200));
        }
        node.backup.stop();
        node.service.stop();
        node.threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
    }

    pub fn backup(&self, number: BackupId) -> &Arc<Backup> {
        &self.nodes[&number].backup
    }

    /// Appends a chunk of one record. The ticket, or `None` if it is refused.
    pub fn append(&self, streamlet: u32, record_bytes: usize) -> Option<Ticket> {
        let chunk = self.chunk(streamlet, record_bytes);
        let stream = self.log.stream(STREAM)?;
        let lane = Arc::clone(stream.streamlet(StreamletId(streamlet))?.lane(LaneId(0))?);
        lane.append(&ChunkView::parse(&chunk).ok()?, self.clock.now_ms()).ok()?.ticket
    }

    pub fn chunk(&self, streamlet: u32, record_bytes: usize) -> Vec<u8> {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(&vec![7; record_bytes]));
        let target = ChunkTarget {
            stream: STREAM,
            streamlet: StreamletId(streamlet),
            producer_id: ProducerId(0),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
            ..ChunkTarget::default()
        };
        builder.seal(&target, Compression::None).expect("sealed")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.replicated.iter().for_each(|log| log.stop());
        drop(self.stop_links.take());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        let numbers: Vec<BackupId> = self.nodes.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.stop(number));
    }
}
