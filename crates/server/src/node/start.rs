//! The start of a node, step by step.
//!
//! | step | why here |
//! | --- | --- |
//! | lock the data directory | before anything in it is read: two nodes on one directory would destroy it |
//! | look whether ports are free | before anything is made that a start which fails would leave behind |
//! | HTTP | so that `/readyz` tells what the rest waits for |
//! | identity, next epoch | synced while the rest is read, and before anything of this incarnation is written; in a cluster once that has given the epoch |
//! | catalog, system streams | says which streams there are; segments of others are given back |
//! | containers | what is on disk; read before the arena, so that what is in both is known to be safe |
//! | arena | what the process before left in memory; once it is there the note of a graceful stop goes |
//! | log: recover | lanes from both |
//! | store threads | from here on the arena can be emptied, which the next step may need |
//! | virtual logs: replay | what was acknowledged as durable and is in neither |
//! | log: finish | appends may begin, in groups of this epoch |
//! | virtual log writers | what was not durable yet becomes so |
//! | applications | read from a stream, so the log must be whole |
//! | Kafka's transactions | they say what is committed: native readers and compaction ask |
//! | compaction | once that is known |
//! | listen, for Kafka clients too | last: whoever connects is served |

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_broker::{APPLICATIONS_STREAM, Broker, BrokerConfig, applications_stream_options};
use kera_coordinator::catalog::has_owners;
use kera_coordinator::{Coordinator, CoordinatorConfig, CoordinatorError, OpenError, StreamEvent, StreamObserver};
use kera_env::{Clock, DirLock, DirectIo, Disk, Folder, RealDisk, SystemClock, SystemRandom};
use kera_format::SegmentId;
use kera_format::arena::BlockSize;
use kera_kafka::DoorConfig;
use kera_log::compact::{CompactionConfig, Compactor};
use kera_log::store::{DiskStore, StoreConfig, StoreError, StoreRecovery, StoreThreads};
use kera_log::{
    Arena, ArenaConfig, ArenaError, Attach, AttachedSegment, DurabilitySink, GivenAgain, Log, LogConfig, SetAside,
};
use kera_protocol::write::WRITE_FRONT_BYTES_MAX;
use kera_protocol::{FRAME_HEADER_BYTES, HelloResponse, StreamRef};
use kera_rpc::{ConnectionRoom, RunningServer, Server, ServerConfig, SessionFactory};
use kera_vlog::{ReplayError, SegmentCloser, VirtualLog, VirtualLogConfig};
use parking_lot::Mutex;

use super::disks::KnownDisks;
use super::kafka::Kafka;
use super::maintenance::Maintenance;
use super::scrub::ScrubCounts;
use super::{Node, Parts, doubt, orphans};
use crate::cluster::{Cluster, Elsewhere, NodeSinks};
use crate::config::Config;
use crate::fatal::{Door, Fatal, MAY_PASS, OWN_DISKS};
use crate::http::{HttpNode, HttpServer, HttpState};
use crate::identity::Identity;
use crate::logs;
use crate::machine;
use crate::metrics::Metrics;
use crate::readiness::{Phase, Readiness};
use crate::session::{Commands, NodeSessions, StatusSource};
use crate::units::human_bytes;

/// What recovery found, for the one line at the end.
#[derive(Default)]
pub(super) struct Summary {
    arena: &'static str,
    attached_segments: u64,
    stored_segments: u64,
    replayed_chunks: u64,
    records: u64,
    bytes: u64,
    problems: u64,
}

pub(super) fn start(config: &Config) -> Result<Node, Fatal> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let room = connection_room(config);
    let lock = begin_in(config)?;
    let readiness = Arc::new(Readiness::default());
    let http_state = Arc::new(HttpState { readiness: readiness.clone(), node: OnceLock::new() });
    let http = start_http(config, &http_state)?;

    let mut summary = Summary::default();
    let Opened { identity, cluster, coordinator, recovered, writers, disk } =
        open(config, &clock, &readiness, &mut summary)?;
    let Recovered { log, store, store_threads, virtual_logs, broker } = recovered;
    let compactor = Arc::new(compactor(config, &log, &store, &clock, cluster.as_ref()));
    let parts = Arc::new(Parts {
        config: config.clone(),
        identity,
        started_ms: clock.now_ms(),
        started_us: clock.monotonic_us(),
        clock: clock.clone(),
        readiness: readiness.clone(),
        coordinator: coordinator.clone(),
        cluster: cluster.clone(),
        disk,
        log,
        store,
        virtual_logs,
        broker: broker.clone(),
        compactor,
        compaction_us: Arc::new(AtomicU64::new(0)),
        scrub: ScrubCounts::default(),
        room,
        server: Mutex::new(None),
        kafka: Mutex::new(None),
    });
    follow(&coordinator, cluster.as_deref(), &broker)?;
    let status: StatusSource = {
        let parts = Arc::downgrade(&parts);
        Arc::new(move || parts.upgrade().map(|parts| parts.status()))
    };
    let commands =
        Commands::start(coordinator.clone(), status).map_err(|error| no_thread("the threads for commands", error))?;
    let sessions: Arc<dyn SessionFactory> =
        Arc::new(NodeSessions { broker, coordinator, cluster, commands: commands.0.clone() });
    // First, because it knows which records of transactions native readers may see.
    let kafka = Kafka::start(config, &parts)?;
    let compaction = super::compaction::start(&parts).map_err(|error| no_thread("compaction", error))?;
    let scrub = super::scrub::start(&parts).map_err(|error| no_thread("looking through the disks", error))?;
    let server = listen(config, &parts, sessions.clone())?;
    let address = server.local_addr();
    *parts.server.lock() = Some(server);
    let maintenance = Maintenance::start(parts.clone()).map_err(|error| no_thread("maintenance", error))?;
    let _ = http_state.node.set(http_node(sessions, clock, &parts));
    readiness.enter(Phase::Serving);
    Ok(Node {
        parts,
        address,
        http,
        kafka,
        commands,
        maintenance,
        compaction,
        scrub,
        writers,
        store_threads,
        lock,
        found: summary,
    })
}

/// Locks the data directory, and looks whether all ports are free: where they are not nothing has been made yet. Who has the directory is said
/// first: a node that is started twice has both.
fn begin_in(config: &Config) -> Result<DirLock, Fatal> {
    check_disks_are_there(config)?;
    let data = &config.node.data;
    let is_known = data.exists();
    if !is_known {
        check_ports(config)?;
    }
    std::fs::create_dir_all(data).map_err(|error| Fatal::directory(data, error))?;
    let lock = lock(data)?;
    if is_known {
        check_ports(config)?;
    }
    Ok(lock)
}

/// An extra disk is a directory that is there. The name of one that is not has a slip in it, or its disk is not mounted. Made by the start it would be a disk of
/// this node from then on, in the wrong place, and no start without it would go well: so the person who wants it makes it. What else is wrong with one is told
/// by whoever opens it.
fn check_disks_are_there(config: &Config) -> Result<(), Fatal> {
    let is_missing =
        |root: &&PathBuf| std::fs::metadata(root).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    let Some(root) = config.node.disks.iter().find(is_missing) else { return Ok(()) };
    let message = format!("--disks {}: there is no such directory", root.display());
    Err(Fatal::not_here(message, "mount it, or make it; one that is gone for good is left out of --disks"))
}

/// All ports that are taken, at once. All are bound before any is given back, so that one that two doors want is found here, whatever their addresses: the other one finds it taken when
/// the node may be in its cluster. What takes one before it is listened on is told then.
fn check_ports(config: &Config) -> Result<(), Fatal> {
    let cluster = config.cluster.node.map(|_| &config.cluster.listen);
    // A node that is alone does without a port for Kafka clients that nobody asked for.
    let kafka = config.kafka.listen.as_ref().filter(|_| cluster.is_some() || !config.kafka_by_default);
    let doors = [
        (Door::Native, Some(&config.network.listen)),
        (Door::Http, config.http.listen.as_ref()),
        (Door::Kafka, kafka),
        (Door::Cluster, cluster),
    ];
    let mut held: Vec<(Door, SocketAddr, TcpListener)> = Vec::new();
    let mut taken = Vec::new();
    for (door, address) in doors.into_iter().filter_map(|(door, address)| Some((door, address?))) {
        let Ok(at) = resolve(address) else { continue };
        match TcpListener::bind(at) {
            Ok(bound) => held.push((door, at, bound)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                // Who looks for another process that has it would find none.
                let by = held.iter().find(|(_, other, _)| are_one_port(*other, at)).map(|(by, _, _)| *by);
                taken.push((door, address.clone(), by));
            }
            Err(_) => {}
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(Fatal::PortInUse { taken }) }
}

/// Whether who listens on one of two addresses keeps the other one from others: one that is unspecified is all of its kind, and that of IPv6 those of IPv4 as well.
fn are_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let has = |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port() && (one.ip() == other.ip() || has(one, other) || has(other, one))
}

/// A node whose log is whole.
struct Opened {
    identity: Identity,
    cluster: Option<Arc<Cluster>>,
    coordinator: Arc<Coordinator>,
    recovered: Recovered,
    writers: Vec<JoinHandle<()>>,
    disk: Arc<dyn Disk>,
}

/// Finds out what there is, tells the cluster that the node is back, and puts the log together.
fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    readiness: &Readiness,
    summary: &mut Summary,
) -> Result<Opened, Fatal> {
    let disks = open_disks(config)?;
    check_is_named(config, &disks[0])?;
    let (mut identity, persisting) = begin(config, &disks[0])?;
    let kept = open_kept(config, &identity, &disks, clock, readiness, summary)?;
    readiness.enter(Phase::Starting("reading the catalog"));
    let (cluster, coordinator) = open_coordinator(config, &mut identity, kept.has_all, &disks, clock, readiness)?;
    kept.others_know()?;
    let applications_stream = coordinator
        .awaited_system_stream(APPLICATIONS_STREAM, &applications_stream_options(), wait_for_leader)
        .map_err(|error| not_made(&config.node.data, error))?
        .id;
    let who = (&identity, &*coordinator, cluster.as_deref());
    let recovered = recover(config, who, kept, &disks, clock, readiness, summary)?;
    find_by_names(&recovered.broker, &coordinator);
    persisting.finish()?;
    finish_log(&recovered.log, cluster.as_deref(), &identity, summary)?;
    // Before anything is deleted for its age, and before anything new is appended, as the progress of applications is when their streamlets are opened.
    doubt::begin(&**clock, recovered.log.newest_append_ms(clock.now_ms()), &*disks[0])?;
    let writers = recovered.virtual_logs.iter().map(start_writer).collect::<Result<Vec<_>, _>>()?;
    readiness.enter(Phase::Starting("reading the applications' offsets"));
    let replayed = recovered.broker.open_applications(applications_stream);
    replayed.map_err(|failure| Fatal::Data { message: format!("the offsets of applications: {failure}") })?;
    Ok(Opened { identity, cluster, coordinator, recovered, writers, disk: disks[0].clone() })
}

/// The coordinator knows the names of streams. It has whoever follows streams, and so the broker, to itself: the broker does not keep it.
fn find_by_names(broker: &Broker, coordinator: &Arc<Coordinator>) {
    let coordinator = Arc::downgrade(coordinator);
    broker.set_names(move |name| Some(coordinator.upgrade()?.stream(&StreamRef::from(name)).ok()?.id));
}

/// Time between two tries to have a stream made while nobody leads the coordinators.
const RETRY: Duration = Duration::from_millis(200);

/// The coordinators may lose their leader while a node starts: that passes, and is nothing to end for.
fn wait_for_leader(error: &CoordinatorError) {
    tracing::warn!(%error, "the node waits for the coordinators");
    std::thread::sleep(RETRY);
}

/// Why there is no stream for the applications' offsets. That it was refused says nothing of what is on the disks.
fn not_made(data: &Path, error: CoordinatorError) -> Fatal {
    match error {
        CoordinatorError::Disk(error) => Fatal::directory(data, error),
        other => Fatal::not_here(
            format!("the stream {APPLICATIONS_STREAM} cannot be made: {other}"),
            "see to what is named, and start the node again; what is on its disks stays as it is",
        ),
    }
}

fn http_node(sessions: Arc<dyn SessionFactory>, clock: Arc<dyn Clock>, parts: &Arc<Parts>) -> HttpNode {
    let (metrics, parts) = (Arc::new(metrics(parts)), Arc::downgrade(parts));
    let changes = move || Some(parts.upgrade()?.cluster.as_ref()?.copy_changes());
    HttpNode { sessions, clock, metrics, copy_changes: Box::new(move || changes().unwrap_or_default()) }
}

fn metrics(parts: &Arc<Parts>) -> Metrics {
    let parts = Arc::downgrade(parts);
    Metrics::new(move || parts.upgrade().map_or_else(Default::default, |parts| parts.snapshot()))
}

pub(super) fn tell(node: &Node) {
    let (parts, summary) = (&node.parts, &node.found);
    let text = |door: Option<SocketAddr>| door.map_or_else(|| "none".to_owned(), |address| address.to_string());
    let (http, kafka) = (text(node.http_address()), text(node.kafka_address()));
    let data = parts.config.node.data.display();
    // At a terminal all of it is half a dozen lines, in which nobody finds where the node listens. Programs wait for the whole one.
    if logs::are_for_a_person() && summary.problems == 0 {
        tracing::info!("ready: clients {}, HTTP {http}, Kafka {kafka}, data {data}", node.address);
        return;
    }
    tracing::info!(
        listen = %node.address,
        http,
        kafka,
        data = %data,
        node = parts.identity.node_text(),
        epoch = parts.identity.epoch,
        arena = summary.arena,
        arena_size = human_bytes(parts.log.arena().stats().bytes),
        streams = parts.log.stats().streams,
        records = summary.records,
        bytes = summary.bytes,
        attached_segments = summary.attached_segments,
        stored_segments = summary.stored_segments,
        replayed_chunks = summary.replayed_chunks,
        problems = summary.problems,
        took_ms = parts.clock.monotonic_us() / 1000,
        "ready"
    );
}

pub(crate) fn lock(data: &Path) -> Result<DirLock, Fatal> {
    DirLock::acquire(&data.join("LOCK")).map_err(|error| Fatal::locked(data, error))
}

fn no_thread(what: &'static str, error: std::io::Error) -> Fatal {
    Fatal::Resources { what, error }
}

fn start_http(config: &Config, state: &Arc<HttpState>) -> Result<Option<HttpServer>, Fatal> {
    let Some(address) = &config.http.listen else { return Ok(None) };
    let started = HttpServer::start(address, state.clone());
    started.map(Some).map_err(|error| Fatal::listen(Door::Http, address, error))
}

/// The data directory first, then the extra disks, each of them once.
fn open_disks(config: &Config) -> Result<Vec<Arc<dyn Disk>>, Fatal> {
    let roots = std::iter::once(&config.node.data).chain(&config.node.disks);
    let open = |root: &PathBuf| -> Result<Arc<dyn Disk>, Fatal> {
        let disk = RealDisk::open(root).map_err(|error| Fatal::directory(root, error))?;
        let disk = disk.keep_free(machine::disk_free_min(root));
        if let DirectIo::Buffered(reason) = disk.direct_io() {
            tracing::info!(path = %root.display(), reason, "disk I/O goes through the page cache");
        }
        Ok(Arc::new(disk))
    };
    let disks = roots.map(open).collect::<Result<Vec<_>, _>>()?;
    check_are_apart(&disks)?;
    if disks.len() > 1 {
        let names: Vec<String> = disks.iter().map(|disk| disk.root().display().to_string()).collect();
        tracing::info!(disks = names.join(", "), "data is kept on several disks");
    }
    Ok(disks)
}

/// A directory has several names: relative and absolute ones, symbolic links, mounts. Under two of them it would be two disks, every segment be found on both, and the
/// space of one of the two places be given back, which is that of the other. So not the names are compared, but what the system takes them for.
fn check_are_apart(disks: &[Arc<dyn Disk>]) -> Result<(), Fatal> {
    let mut seen: Vec<((u64, u64), &Path)> = Vec::new();
    for root in disks.iter().map(|disk| disk.root()) {
        let found = std::fs::metadata(root).map_err(|error| Fatal::directory(root, error))?;
        let directory = (found.dev(), found.ino());
        if let Some((_, other)) = seen.iter().find(|(before, _)| *before == directory) {
            let message = format!("{} and {} are the same directory", other.display(), root.display());
            return Err(Fatal::not_here(message, NAME_ONCE));
        }
        seen.push((directory, root));
    }
    Ok(())
}

const NAME_ONCE: &str = "name each disk once with --disks, and not the data directory, which is a disk by itself";

/// A node of a cluster that is started without its number is refused: its journal does not know what the cluster has done since, and what nobody knows is
/// thrown away. Before its epoch begins, so that its disk says what it said before.
fn check_is_named(config: &Config, disk: &Arc<dyn Disk>) -> Result<(), Fatal> {
    let is_member = || disk.list(kera_raft::file::DIR).is_ok_and(|files| !files.is_empty());
    if config.cluster.node.is_none() && is_member() {
        return Err(Fatal::not_here("this node is part of a cluster", "start it with its number, --node"));
    }
    Ok(())
}

type OpenCoordinator = (Option<Arc<Cluster>>, Arc<Coordinator>);

/// Who knows the node's streams: its own catalog, or the cluster that it has a number in, which gives the epoch too. `has_all`: nothing is missing of what it had.
fn open_coordinator(
    config: &Config,
    identity: &mut Identity,
    has_all: bool,
    disks: &[Arc<dyn Disk>],
    clock: &Arc<dyn Clock>,
    readiness: &Readiness,
) -> Result<OpenCoordinator, Fatal> {
    let disk = &disks[0];
    if config.cluster.node.is_none() {
        return Ok((None, open_catalog(config, identity, disk, clock)?));
    }
    // Before anything else: the cluster gives the epoch, and knows the streams.
    readiness.enter(Phase::Starting("waiting for the cluster"));
    let alone = *identity;
    let single = || Ok(open_catalog(config, &alone, disk, clock)?.catalog());
    let cluster = Cluster::start(config, identity, disks, clock, has_all, single)?;
    let coordinator = cluster.coordinator(clock);
    Ok((Some(cluster), coordinator))
}

fn open_catalog(
    config: &Config,
    identity: &Identity,
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<Coordinator>, Fatal> {
    let streams_max = config.streams.streams_max as usize;
    let settings = CoordinatorConfig { streams_max, ..CoordinatorConfig::single(identity.node) };
    let opened = Coordinator::open(&settings, disk.clone(), clock.clone());
    opened.map(Arc::new).map_err(|error| match error {
        OpenError::Disk { error, .. } => Fatal::directory(&config.node.data, error),
        other => Fatal::Data { message: other.to_string() },
    })
}

/// The epoch on its way to disk.
struct Persisting(Option<JoinHandle<Result<(), Fatal>>>);

impl Persisting {
    fn finish(self) -> Result<(), Fatal> {
        let panicked = |_| Fatal::PartEnded { what: "writing the identity", reason: "it panicked".to_owned() };
        self.0.map_or(Ok(()), |thread| thread.join().map_err(panicked)?)
    }
}

/// Reads the identity. A node that is alone and started again syncs its epoch while it reads everything else; one that never was must be known by its
/// name before any file carries it.
///
/// One that comes back to its cluster has its epoch on disk when the cluster has let it in, which is [`Cluster::start`]'s part: a start that ends before
/// that, because it waits for others and is told to stop or because a disk is missing, leaves what the disk says. It says whether the node was stopped with
/// everything on disk, without which others rebuild all that it has, and which starts of it these disks know, by which the cluster tells an older copy of
/// them. Nothing carries an epoch before that: the arena and the files that are opened until then are named for the node, and whoever is let in gets an
/// epoch above every one that it was given before, whether its disk knows of that or not.
fn begin(config: &Config, disk: &Arc<dyn Disk>) -> Result<(Identity, Persisting), Fatal> {
    let identity = Identity::begin(&**disk, &SystemRandom)?;
    if identity.first_start {
        identity.persist(&**disk)?;
    }
    if identity.first_start || config.cluster.node.is_some() {
        return Ok((identity, Persisting(None)));
    }
    let disk = disk.clone();
    let thread = std::thread::Builder::new().name("kera-identity".into()).spawn(move || identity.persist(&*disk));
    thread.map(|thread| (identity, Persisting(Some(thread)))).map_err(|error| no_thread("writing the identity", error))
}

struct Recovered {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    store_threads: StoreThreads,
    virtual_logs: Vec<Arc<VirtualLog>>,
    broker: Arc<Broker>,
}

fn not_served(aside: &SetAside) -> String {
    let bytes = human_bytes(aside.bytes);
    format!("{bytes} of the arena at byte {} are not served: {}", aside.offset, aside.reason)
}

/// The arena, and the segments that were in it.
type Memory = (Arc<Arena>, Vec<AttachedSegment>);

/// An arena that has outlived its process, until its segments are in a log. If that never comes they stay in its file.
struct KeptMemory(Option<Memory>);

impl KeptMemory {
    /// The arena, or one that is made now.
    fn arena_or(&mut self, attach: impl FnOnce() -> Result<Memory, Fatal>) -> Result<Arc<Arena>, Fatal> {
        let memory = self.0.take().map_or_else(attach, Ok)?;
        Ok(self.0.insert(memory).0.clone())
    }

    /// Its segments, for a log, which keeps them from here on.
    fn take_segments(&mut self) -> Vec<AttachedSegment> {
        self.0.take().map(|(_, segments)| segments).unwrap_or_default()
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        if let Some((arena, _)) = &self.0 {
            arena.freeze();
        }
    }
}

/// What the process before has left in memory and on the disks.
struct Kept {
    memory: KeptMemory,
    store: Arc<DiskStore>,
    stored: StoreRecovery,
    disks: KnownDisks,
    /// All that it has acknowledged is there: in the arena, after a kill, or on disk, after a stop, as far as what is on the disks can be read. Otherwise the power was
    /// lost, or a disk has lost something, and the others know better.
    has_all: bool,
}

impl Kept {
    /// The cluster has been told that something is missing, if something is: the next start need not say so once more.
    fn others_know(&self) -> Result<(), Fatal> {
        if let Err(error) = self.store.others_have(&self.stored.lacks) {
            tracing::warn!(%error, "the next start will miss the same once more");
        }
        self.disks.accepted()
    }
}

/// Reads what there is. The arena first: what a disk has damaged is told by it from what a loss of power has torn. But one that is not there is not made before others know
/// what was lost with it: the next start would take it for one that has outlived its process.
fn open_kept(
    config: &Config,
    identity: &Identity,
    disks: &[Arc<dyn Disk>],
    clock: &Arc<dyn Clock>,
    readiness: &Readiness,
    summary: &mut Summary,
) -> Result<Kept, Fatal> {
    let known = KnownDisks::look(&identity.node, disks, &SystemRandom, config.virtual_logs.accept_damage)?;
    readiness.enter(Phase::Starting("attaching the arena"));
    let has_survived = Arena::has_survived(&arena_path(config, identity), identity.node);
    let has_survived = has_survived.map_err(|error| no_arena(config, &error))?;
    let memory = KeptMemory(has_survived.then(|| attach(config, identity, summary)).transpose()?);
    readiness.enter(Phase::Starting("reading the containers on disk"));
    let (settings, random) = (store_config(config, identity), Arc::new(SystemRandom));
    let opened = match &memory.0 {
        Some((_, attached)) => {
            let in_memory = attached.iter().map(|attached| attached.segment.id()).collect();
            DiskStore::open_after_kill(settings, disks.to_vec(), clock.clone(), random, &in_memory)
        }
        None => DiskStore::open(settings, disks.to_vec(), clock.clone(), random),
    };
    let (store, stored) = opened.map_err(|error| store_error(&config.node.data, error))?;
    warn_all(&stored.problems, summary);
    let is_whole = stored.lacks.is_empty() && known.lost.is_empty();
    let has_all = (identity.first_start || identity.stopped || has_survived) && is_whole;
    known.lost.iter().for_each(|path| tracing::warn!(path = %path.display(), "what was on this disk is given up"));
    if !is_whole && config.cluster.node.is_some() {
        tracing::error!(
            "a disk has lost some of what this node had: others take over what has copies, as if its power had been lost"
        );
    }
    Ok(Kept { memory, store, stored, disks: known, has_all })
}

/// Attaches the arena, or makes one.
fn attach(config: &Config, identity: &Identity, summary: &mut Summary) -> Result<Memory, Fatal> {
    let (arena, attach) = open_arena(config, identity)?;
    let attached = match attach {
        Attach::Created => {
            summary.arena = if identity.first_start { "new" } else { "created" };
            Vec::new()
        }
        Attach::Attached { segments, set_aside, same_boot, kept_bytes } => {
            summary.arena = "attached";
            warn_all(&set_aside.iter().map(not_served).collect::<Vec<_>>(), summary);
            tracing::debug!(segments = segments.len(), same_boot, "arena attached");
            // A size that nobody asked for is not worth a word: `auto` finds less memory free while the old file is there.
            if let Some(bytes) = kept_bytes.filter(|_| config.arena.bytes.is_some()) {
                tracing::info!(bytes, "the arena keeps its size until the next graceful stop");
            }
            segments
        }
    };
    summary.attached_segments = attached.len() as u64;
    Ok((arena, attached))
}

/// Takes the note of a graceful stop from the disk of a node of a cluster. To be called when its arena is there, and before anything is appended.
///
/// The stop has removed the arena, so the note alone says that the node has all that it had ([`open_kept`]); without it others rebuild all of that. A start may end anywhere, killed, told
/// to stop, taken for lost, or without room for its arena. The next one then finds, if this one has ended
///
/// * before its epoch was on disk: what the stop has left;
/// * before the arena had its header, for which it is mapped and has memory: the note, beside an epoch in which nothing was written ([`Identity::persist_joined`]). A file without header is no arena that has survived;
/// * before the note was gone: note and arena, which say the same. Without power since it finds the note alone, and nothing was appended of which that does not know;
/// * behind that: the arena. Without power neither, as of any node that was running.
///
/// What it holds for others as a backup it answers for itself, in none of these cases by the note. A node that lacks something has no note from its joining on, and its arena is made when others know of that: the other
/// way round the next start would say that it has all.
fn take_note_away(identity: &Identity, disk: &dyn Disk) -> Result<(), Fatal> {
    if identity.stopped { identity.persist(disk) } else { Ok(()) }
}

/// Puts the log together from disk, arena and virtual logs.
fn recover(
    config: &Config,
    (identity, coordinator, cluster): (&Identity, &Coordinator, Option<&Cluster>),
    Kept { mut memory, store, stored, .. }: Kept,
    disks: &[Arc<dyn Disk>],
    clock: &Arc<dyn Clock>,
    readiness: &Readiness,
    summary: &mut Summary,
) -> Result<Recovered, Fatal> {
    let arena = memory.arena_or(|| attach(config, identity, summary))?;
    if cluster.is_some() {
        take_note_away(identity, &*disks[0])?;
    }
    let log = Log::new(LogConfig { has_owner_epochs: cluster.is_some(), ..LogConfig::default() }, arena);
    log.set_store(store.clone());
    store.attach(&log);
    if let Some(cluster) = cluster {
        store.give_way(cluster.comes_first());
    }
    let (virtual_logs, left_over) = open_virtual_logs(config, identity, &disks[0], clock)?;
    let as_sinks = |logs: &[Arc<VirtualLog>]| logs.iter().map(|v| v.clone() as Arc<dyn DurabilitySink>).collect();
    let (own, copies) = (as_sinks(&virtual_logs), cluster.map(|cluster| cluster.copies().clone()));
    log.set_sinks(Arc::new(NodeSinks { own, left_over: as_sinks(&left_over), copies }));
    let virtual_logs = [left_over, virtual_logs].concat();
    for virtual_log in &virtual_logs {
        virtual_log.set_closer(Arc::new(Close(Arc::downgrade(&log))));
        virtual_log.set_write_through(store.clone());
    }
    let broker = Broker::new(broker_config(config, identity, log.arena().bytes()), log.clone(), clock.clone());
    // Asked before the streams are: one of which all streamlets have got their number of copies in between says it itself.
    let other_copies = cluster.map(Cluster::other_copies).unwrap_or_default();
    for stream in coordinator.streams() {
        let created = broker.stream_created(stream.id, stream.options.clone());
        created.map_err(|error| Fatal::Data { message: format!("stream {}: {error}", stream.name) })?;
        // Whoever reads it says so too, but the recovery has to know before.
        if let Some(own) = log.stream(stream.id).filter(|_| !has_owners(&stream.name)) {
            own.keep_room();
        }
    }
    log.set_copies(&other_copies);
    readiness.enter(Phase::Starting("putting the lanes together"));
    let report = log.recover(stored.segments, memory.take_segments());
    log.let_go_before(&stored.let_go);
    (summary.stored_segments, summary.records, summary.bytes) = (report.stored_segments, report.records, report.bytes);
    warn_all(&report.problems, summary);
    let store_threads = store.start().map_err(|error| store_error(&config.node.data, error))?;
    readiness.enter(Phase::Starting("reading the virtual logs"));
    for virtual_log in &virtual_logs {
        replay(virtual_log, &log, summary)?;
    }
    store.replayed();
    Ok(Recovered { log, store, store_threads, virtual_logs, broker })
}

/// Appends may begin. What was never acknowledged of streamlets that are others' now goes before it gets to a log again.
fn finish_log(log: &Log, cluster: Option<&Cluster>, identity: &Identity, summary: &mut Summary) -> Result<(), Fatal> {
    if let Some(cluster) = cluster {
        warn_all(&cluster.cut_leftovers(log)?, summary);
    }
    warn_all(&log.finish_recovery(identity.epoch), summary);
    Ok(())
}

fn warn_all(problems: &[String], summary: &mut Summary) {
    for problem in problems {
        tracing::warn!("recovery: {problem}");
    }
    summary.problems += problems.len() as u64;
}

fn store_config(config: &Config, identity: &Identity) -> StoreConfig {
    StoreConfig {
        node: identity.node,
        container_bytes: config.storage.container_bytes,
        write_delay_ms: config.storage.write_delay,
        free_percent_min: config.storage.free_percent_min,
        loaders_per_disk: config.storage.loaders_per_disk as usize,
        ..StoreConfig::default()
    }
}

fn store_error(data: &Path, error: StoreError) -> Fatal {
    match error {
        StoreError::Disk { path, error, .. } => Fatal::Directory { path, error },
        StoreError::Container { .. } => Fatal::not_here(error.to_string(), MAY_PASS),
        StoreError::Thread(error) => no_thread("a thread of the store", error),
        StoreError::Foreign { .. } => Fatal::not_here(error.to_string(), OWN_DISKS),
        StoreError::Twice { .. } => Fatal::not_here(error.to_string(), NAME_ONCE),
        other => Fatal::directory(data, std::io::Error::other(other.to_string())),
    }
}

/// Where the arena's file lies: as configured, or in shared memory if there is some.
pub(crate) fn arena_dir(config: &Config) -> PathBuf {
    config.arena.dir.clone().unwrap_or_else(|| {
        let shared = Path::new("/dev/shm");
        if shared.is_dir() { shared.to_owned() } else { config.node.data.clone() }
    })
}

/// The arena's file: named for the node, so that several can share a directory.
fn arena_path(config: &Config, identity: &Identity) -> PathBuf {
    arena_dir(config).join(format!("kera-{}.arena", identity.node_text()))
}

/// Names arenas whose data directories are gone: they take memory that nobody will ask for again.
fn tell_orphans(dir: &Path) {
    for orphan in orphans::find(dir) {
        let (arena, link) = (orphan.arena.display(), orphan.link.display());
        tracing::warn!(
            arena = %arena,
            memory = human_bytes(orphan.bytes),
            data = %orphan.data.display(),
            "an arena is left whose data directory is gone; if that does not come back: rm {arena} {link}"
        );
    }
}

/// Notes that the node was stopped with everything on disk.
pub(super) fn stopped(config: &Config, identity: &Identity) -> Result<(), Fatal> {
    let disk =
        RealDisk::open_buffered(&config.node.data).map_err(|error| Fatal::directory(&config.node.data, error))?;
    identity.persist_stopped(&disk)
}

/// Takes the link to the data directory away from beside an arena whose file is gone.
pub(super) fn arena_removed(config: &Config, identity: &Identity) {
    orphans::unmark(&arena_path(config, identity));
}

/// Gives the memory of a node back that was killed and is not to be started again: its arena's file. Nothing happens if
/// there is no such node. The caller makes sure that it does not run.
pub fn forget_arena(config: &Config) {
    let known =
        RealDisk::open_buffered(&config.node.data).ok().and_then(|disk| Identity::begin(&disk, &SystemRandom).ok());
    if let Some(identity) = known {
        // It may have been stopped in good order, or never have had one.
        let _ = std::fs::remove_file(arena_path(config, &identity));
        arena_removed(config, &identity);
    }
}

fn open_arena(config: &Config, identity: &Identity) -> Result<(Arc<Arena>, Attach), Fatal> {
    let dir = arena_dir(config);
    if config.arena.dir.is_none() && dir == config.node.data {
        tracing::warn!("there is no /dev/shm; the arena lies in the data directory, which is slower; see --arena-dir");
    }
    std::fs::create_dir_all(&dir).map_err(|error| Fatal::directory(&dir, error))?;
    tell_orphans(&dir);
    let path = arena_path(config, identity);
    orphans::mark(&path, &config.node.data);
    let bytes = config.arena.bytes.unwrap_or_else(|| machine::arena_bytes_auto(&dir));
    let arena = ArenaConfig { path, bytes, node: identity.node };
    Arena::create_or_attach_with(arena, BlockSize::Roomy).map_err(|error| no_arena(config, &error))
}

fn no_arena(config: &Config, error: &ArenaError) -> Fatal {
    let dir = arena_dir(config);
    let next_step = match error {
        ArenaError::Bytes { .. } => "choose another size with --arena-bytes".to_owned(),
        ArenaError::Io { error, .. } if error.kind() == std::io::ErrorKind::StorageFull => format!(
            "{} has no room for {}; choose less with --arena-bytes, or another place with --arena-dir",
            dir.display(),
            human_bytes(config.arena.bytes.unwrap_or_else(|| machine::arena_bytes_auto(&dir)))
        ),
        ArenaError::Busy { .. } => "stop the process that uses it".to_owned(),
        ArenaError::Io { .. } => "choose another place with --arena-dir".to_owned(),
        ArenaError::OtherVersion { .. } => return Fatal::OtherBuild { message: error.to_string() },
        ArenaError::Foreign { .. } => "choose another place with --arena-dir, or move the file away".to_owned(),
    };
    Fatal::Arena { message: error.to_string(), next_step }
}

type VirtualLogs = Vec<Arc<VirtualLog>>;

/// The virtual logs that take what is appended, and those that an earlier life of the node has left, which had more of them.
///
/// Who appends to a streamlet, and so in which log its chunks are, changes with their number. One that nobody reads may be all that has what was acknowledged; and a replay that
/// does not ask for the extents of its segments has the store [give them back](DiskStore::replayed). So those that have files are read whatever the number is now, before
/// the others: they have what was appended before. They take nothing, need no spares, and are gone with their last file.
fn open_virtual_logs(
    config: &Config,
    identity: &Identity,
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
) -> Result<(VirtualLogs, VirtualLogs), Fatal> {
    let settings = &config.virtual_logs;
    let directory = VirtualLogConfig::new(0, identity.node).directory;
    let folder = Arc::new(Folder::new(Arc::clone(disk), &directory));
    let open = |(id, spares): (u32, Option<usize>)| {
        let with_defaults = VirtualLogConfig::new(id, identity.node);
        let own = VirtualLogConfig {
            file_bytes: config.virtual_log_file_bytes(),
            keep_bytes: settings.keep_bytes,
            accept_damage: settings.accept_damage,
            spares: spares.unwrap_or(with_defaults.spares),
            ..with_defaults
        };
        let opened = VirtualLog::open_in(folder.clone(), own, clock.clone(), Arc::new(SystemRandom));
        opened.map_err(|kera_vlog::OpenError::Disk { error, .. }| Fatal::directory(disk.root(), error))
    };
    let count = settings.count as u32;
    let found = VirtualLog::numbers(&**disk, &directory).map_err(|error| Fatal::directory(disk.root(), error))?;
    let left_over: Vec<u32> = found.range(count..).rev().copied().collect();
    if !left_over.is_empty() {
        tracing::info!(logs = ?left_over, "there were more virtual logs before; what they have is kept until it is stored");
    }
    let left_over = left_over.into_iter().map(|id| open((id, Some(0)))).collect::<Result<_, _>>()?;
    Ok(((0..count).map(|id| open((id, None))).collect::<Result<_, _>>()?, left_over))
}

/// Brings back what a virtual log has and nobody else. The store's threads make room meanwhile.
fn replay(virtual_log: &VirtualLog, log: &Log, summary: &mut Summary) -> Result<(), Fatal> {
    let report = virtual_log.replay_into(log).map_err(|error| match error {
        ReplayError::Disk { path, error } => Fatal::directory(Path::new(&path), error),
        ReplayError::Damaged(_) => Fatal::Data { message: format!("{error} (--accept-damage)") },
        other => Fatal::Data { message: other.to_string() },
    })?;
    summary.replayed_chunks += report.restored;
    let lost =
        |d: &kera_vlog::Damage| format!("{} is damaged at byte {} and was accepted so: {}", d.path, d.offset, d.reason);
    warn_all(&report.damage.iter().map(lost).collect::<Vec<_>>(), summary);
    warn_all(left_out(virtual_log.virtual_log(), &log.given_again()).as_slice(), summary);
    Ok(())
}

/// So many lanes are named of those of which something was left out.
const LEFT_OUT_LANES_TOLD_MAX: usize = 8;

/// What was left out while a virtual log was read, in one sentence, however much it is.
fn left_out(number: u32, lanes: &[GivenAgain]) -> Option<String> {
    let of = |lane: &GivenAgain| {
        let GivenAgain { stream, streamlet, lane, ordinals } = lane;
        format!("{stream}/{streamlet}/{lane} (ordinals {} to {})", ordinals.start, ordinals.end - 1)
    };
    let named: Vec<String> = lanes.iter().take(LEFT_OUT_LANES_TOLD_MAX).map(of).collect();
    let more = match lanes.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!lanes.is_empty()).then(|| {
        format!(
            "records are left out while virtual log {number} is read, since an earlier start did not have them and gave their ordinals to others: those of the lanes {}{more}. \
             Files of virtual logs that have some of them get .damaged behind their names when nothing else needs them; remove them when you need none of it",
            named.join(", ")
        )
    })
}

fn start_writer(virtual_log: &Arc<VirtualLog>) -> Result<JoinHandle<()>, Fatal> {
    let virtual_log = virtual_log.clone();
    let thread =
        std::thread::Builder::new().name("kera-vlog".into()).stack_size(512 << 10).spawn(move || virtual_log.run());
    thread.map_err(|error| no_thread("a virtual log's writer", error))
}

/// Without the Kafka door nobody knows how transactions ended: what they wrote is left as it is.
fn compactor(
    config: &Config,
    log: &Arc<Log>,
    store: &Arc<DiskStore>,
    clock: &Arc<dyn Clock>,
    cluster: Option<&Arc<Cluster>>,
) -> Compactor {
    let settings = CompactionConfig {
        keys_bytes: config.compaction.keys_bytes,
        knows_transactions: config.kafka.listen.is_some() || config.cluster.node.is_some(),
        ..CompactionConfig::default()
    };
    let compactor = Compactor::new(log.clone(), store.clone(), clock.clone(), &SystemRandom, settings);
    match cluster {
        Some(cluster) => compactor.with_others(Arc::new(Elsewhere::new(cluster))),
        None => compactor,
    }
}

/// What applications know of lanes is in memory beside the arena, as what lanes know of producers is, and may take as much: one part in
/// this many of its size, or what a broker has unless it is told, if that is more.
const APPLICATIONS_ARENA_SHARE: u64 = 16;

fn broker_config(config: &Config, identity: &Identity, arena_bytes: u64) -> BrokerConfig {
    let applications_bytes_min = BrokerConfig::default().applications_bytes_max;
    BrokerConfig {
        applications_bytes_max: applications_bytes_min.max(arena_bytes / APPLICATIONS_ARENA_SHARE),
        epoch: identity.epoch,
        frame_bytes_max: config.network.frame_bytes_max as usize,
        in_flight_requests_max: config.writes.in_flight_requests_max as usize,
        in_flight_bytes_max: config.writes.in_flight_bytes_max as usize,
        write_timeout_ms_default: config.writes.timeout as u32,
        read_bytes_max: config.reads.answer_bytes_max as usize,
        push_bytes_max: config.reads.push_bytes_max as usize,
        waiting_max: config.reads.waiting_max as usize,
        subscriptions_max: config.reads.subscriptions_max as usize,
        applications_max: config.applications.applications_max as usize,
        members_max: config.applications.members_max as usize,
        lease_ms_default: config.applications.lease as u32,
        ..BrokerConfig::default()
    }
}

fn listen(config: &Config, parts: &Parts, sessions: Arc<dyn SessionFactory>) -> Result<RunningServer, Fatal> {
    let address = &config.network.listen;
    let socket_address = resolve(address).map_err(|error| Fatal::listen(Door::Native, address, error))?;
    let broker = parts.broker.config();
    let hello = HelloResponse {
        server_name: "kera".into(),
        server_version: env!("CARGO_PKG_VERSION").into(),
        node_id: parts.identity.node,
        node_epoch: parts.identity.epoch,
        ops: HelloResponse::ops_spoken(),
        frame_bytes_max: config.network.frame_bytes_max as u32,
        chunk_bytes_max: chunk_bytes_max(config.network.frame_bytes_max) as u32,
        in_flight_bytes_max: broker.in_flight_bytes_max as u64,
        in_flight_requests_max: broker.in_flight_requests_max as u32,
        subscriptions_max: broker.subscriptions_max as u32,
        idle_timeout_ms: config.network.idle_timeout.map_or(0, |ms| u32::try_from(ms).unwrap_or(u32::MAX)),
    };
    let server = server_config(parts, socket_address, hello);
    Server::start(server, sessions).map_err(|error| Fatal::listen(Door::Native, address, error))
}

/// The largest chunk that a client can send: alone in a frame, behind what stands in front of it there, padded to whole words.
fn chunk_bytes_max(frame_bytes_max: u64) -> usize {
    let room = frame_bytes_max as usize - FRAME_HEADER_BYTES - WRITE_FRONT_BYTES_MAX;
    kera_format::limits::CHUNK_BYTES_MAX.min(room) & !7
}

/// Lets the process open as many files as it may; how many of them clients' connections may be.
fn connection_room(config: &Config) -> Arc<ConnectionRoom> {
    machine::raise_file_limit();
    let (files, wanted) = (machine::files_max(), config.network.connections_max);
    let machine::Connections { clients, nodes } = machine::connections_of(files);
    if config.cluster.node.is_some() && (nodes as u64) < wanted.min(machine::NODES_FEW) {
        too_few_files(files, wanted, &format!("the connections of other nodes: they have {nodes}"));
    }
    if (clients as u64) < wanted {
        too_few_files(files, wanted, &format!("network.connections_max: clients have {clients} connections"));
    }
    Arc::new(ConnectionRoom::new(clients))
}

/// `short`: what there are too few for, and how many connections those have whose they are.
fn too_few_files(files_max: u64, connections_max: u64, short: &str) {
    tracing::warn!(
        connections_max,
        files_max,
        "the process may open too few files for {short} together at most; raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)"
    );
}

/// The largest answer at any of the doors, but for a chunk that is larger by itself: that fits into a frame.
fn answer_bytes_max(config: &Config) -> usize {
    let native = config.reads.answer_bytes_max.max(config.reads.push_bytes_max) as usize;
    native.max(DoorConfig::default().fetch_bytes_max)
}

/// What every door for clients may take of threads, connections and memory.
pub(super) fn server_config(parts: &Parts, listen: SocketAddr, hello: HelloResponse) -> ServerConfig {
    let (config, network) = (&parts.config, &parts.config.network);
    ServerConfig {
        io_threads: config.node.io_threads.map_or_else(machine::cores, |n| n as usize),
        connections_max: network.connections_max as usize,
        room: Some(parts.room.clone()),
        inflight_bytes_max: network.receive_bytes_max as usize,
        outbox_bytes_max: network.unsent_bytes_max as usize,
        answer_bytes_max: answer_bytes_max(config),
        stall_timeout: Duration::from_millis(network.stall_timeout),
        ..ServerConfig::new(listen, hello, parts.clock.clone())
    }
}

pub(crate) fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let found = address.to_socket_addrs()?.next();
    found.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address"))
}

/// From here on the broker is told of streams, and in a cluster of owners.
fn follow(coordinator: &Coordinator, cluster: Option<&Cluster>, broker: &Arc<Broker>) -> Result<(), Fatal> {
    coordinator.set_observer(Arc::new(Follow(broker.clone())));
    cluster.map_or(Ok(()), |cluster| cluster.feed(broker))
}

/// Tells the broker what happens in the catalog.
struct Follow(Arc<Broker>);

impl StreamObserver for Follow {
    fn stream_changed(&self, event: &StreamEvent) {
        let done = match event {
            StreamEvent::Created(info) => self.0.hear_of_stream(info.id, info.options.clone(), has_owners(&info.name)),
            StreamEvent::Altered { after, .. } => self.0.stream_altered(after.id, after.options.clone()),
            StreamEvent::Deleted(info) => self.0.stream_deleted(info.id),
        };
        if let Err(error) = done {
            tracing::error!(%error, "the log does not follow the catalog; restart the node");
        }
    }
}

/// Closes segments that keep old files of a virtual log. The log, which has that one among its sinks, is not kept alive.
struct Close(Weak<Log>);

impl SegmentCloser for Close {
    fn close_segments(&self, ids: &[SegmentId]) {
        if let Some(log) = self.0.upgrade() {
            log.close_segments(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use kera_coordinator::journal::DIR as CATALOG;
    use kera_env::copy_path;
    use kera_format::catalog::{Entry, FILE_HEADER_BYTES};
    use kera_format::chunk::ChunkTarget;
    use kera_format::{
        ChunkBuilder, ChunkView, Compression, Durability, LaneId, Record, StreamId, StreamOptions, StreamletId,
    };
    use kera_log::{Lane, Tenure};
    use kera_protocol::admin::StreamInfo;
    use kera_protocol::{CreateStream, FindOwners, Status};

    use super::*;

    /// A node without doors.
    fn config(dir: &Path) -> Config {
        let mut config = Config::default();
        config.node.data = dir.join("data");
        config.arena.bytes = Some(128 << 20);
        config.arena.dir = Some(dir.join("arena"));
        config.virtual_logs.file_bytes = Some(4 << 20);
        config
    }

    fn started(config: &Config) -> Result<Opened, Fatal> {
        std::fs::create_dir_all(&config.node.data).expect("a directory");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        open(config, &clock, &Readiness::default(), &mut Summary::default())
    }

    /// What has been appended becomes durable. Nothing is closed, nothing goes to disk that is not on its way, and the arena stays.
    fn killed(Opened { recovered, writers, .. }: Opened) {
        recovered.virtual_logs.iter().for_each(|virtual_log| virtual_log.stop());
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        recovered.store_threads.stop();
    }

    fn make(opened: &Opened, streamlets: u32, durability: Durability) -> StreamId {
        let options = StreamOptions { streamlets, durability, ..StreamOptions::default() };
        let request = CreateStream { name: "a".into(), options: options.clone(), if_not_exists: false };
        let made = opened.coordinator.create_stream(&request).expect("made").id;
        opened.recovered.broker.stream_created(made, options).expect("made");
        made
    }

    fn lane(opened: &Opened, stream: StreamId, streamlet: u32) -> Arc<Lane> {
        let stream = opened.recovered.log.stream(stream).expect("it is there");
        let streamlet = stream.streamlet(StreamletId(streamlet)).expect("it is there");
        streamlet.lane(LaneId(0)).expect("it is there").clone()
    }

    fn append(opened: &Opened, stream: StreamId, streamlet: u32, value: &[u8]) {
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record::value(value));
        let target = ChunkTarget { stream, streamlet: StreamletId(streamlet), ..ChunkTarget::default() };
        let chunk = chunk.seal(&target, Compression::None).expect("a chunk");
        lane(opened, stream, streamlet).append(&ChunkView::parse(&chunk).expect("one"), 1).expect("room");
    }

    #[test]
    fn the_owners_of_a_stream_are_found_by_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let opened = started(&config(dir.path())).expect("started");
        let stream = make(&opened, 1, Durability::Process);
        let find = |name: &str| {
            let asked = FindOwners { streams: vec![name.into()], after: None, limit: 0 };
            let found = opened.recovered.broker.find_owners(&asked);
            found.map(|owners| owners.streams.iter().map(|of| of.stream).collect::<Vec<_>>()).map_err(|e| e.status)
        };
        assert_eq!(find("a"), Ok(vec![stream]));
        assert_eq!(find("b"), Err(Status::UnknownStream));
        killed(opened);
    }

    /// The broker is told whose they are behind that, and a client may have heard of the stream from another node.
    #[test]
    fn streamlets_of_a_stream_that_comes_in_a_cluster_are_nobodys_until_it_is_known_whose_they_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("follow.arena"), bytes: 16 << 20, node: [1; 16] };
        let (arena, _) = Arena::create_or_attach(arena).expect("an arena");
        let log = Log::new(LogConfig::default(), arena);
        let broker = Broker::new(BrokerConfig::default(), log.clone(), Arc::new(SystemClock::new()));
        let follow = Follow(broker.clone());
        let comes = |id, name: &str| {
            let (id, options) = (StreamId(id), StreamOptions::default());
            let info = StreamInfo { id, name: name.into(), created_ms: 0, options };
            follow.stream_changed(&StreamEvent::Created(info));
            let stream = log.stream(id).expect("it is there");
            stream.streamlet(StreamletId(0)).expect("it has one").tenure()
        };
        assert_eq!(comes(1, "a"), Tenure::Here, "a node that is alone has everything");
        broker.join_cluster([1; 16], 1);
        assert_eq!(comes(2, "a"), Tenure::Elsewhere);
        assert_eq!(comes(3, "_kera.floors"), Tenure::Here, "each node has one for itself");
    }

    #[test]
    fn what_virtual_logs_have_comes_back_when_there_are_fewer_and_they_go_when_it_is_stored() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        config.virtual_logs.count = 2;
        // Nothing that a replay has put back is stored before it is asked for.
        config.storage.write_delay = 3_600_000;
        let opened = started(&config).expect("started");
        let stream = make(&opened, 2, Durability::Power);
        // Large segments are written through to extents, which a replay has to ask for.
        let value = vec![7; 5 << 20];
        (0..6).for_each(|n| append(&opened, stream, n % 2, &value));
        let logs = opened.recovered.virtual_logs.clone();
        killed(opened);
        let through: Vec<u64> = logs.iter().map(|log| log.stats().through_bytes).collect();
        assert!(through.iter().all(|bytes| *bytes > 0), "{through:?}");
        drop(logs);
        // The power goes.
        std::fs::remove_dir_all(dir.path().join("arena")).expect("removed");
        config.virtual_logs.count = 1;
        let names = |opened: &Opened| VirtualLog::numbers(&*opened.disk, "vlog").expect("listed");
        for start in 0..2 {
            let opened = started(&config).expect("started");
            let ends = [0, 1].map(|streamlet| lane(&opened, stream, streamlet)).map(|lane| lane.durable_ordinal());
            assert_eq!(ends, [3; 2], "start {start}");
            let counters = opened.recovered.store.status().disks[0].counters;
            assert_eq!(counters.released_segments, 0, "start {start}");
            assert_eq!(names(&opened).into_iter().collect::<Vec<_>>(), [0, 1]);
            killed(opened);
        }
        let opened = started(&config).expect("started");
        append(&opened, stream, 1, b"more");
        opened.recovered.log.close_all();
        opened.recovered.store.flush_all().expect("flushed");
        let disk = opened.disk.clone();
        killed(opened);
        assert_eq!(VirtualLog::numbers(&*disk, "vlog").expect("listed").into_iter().collect::<Vec<_>>(), [0]);
        let opened = started(&config).expect("started");
        assert_eq!([0, 1].map(|streamlet| lane(&opened, stream, streamlet).durable_ordinal()), [3, 4]);
        killed(opened);
    }

    /// In a cluster the recovery asks for that, and comes before whoever reads them.
    #[test]
    fn streams_that_a_node_has_for_itself_are_known_before_anybody_reads_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let opened = started(&config).expect("started");
        let made = |name: &str| {
            let made = opened.coordinator.system_stream(name, &applications_stream_options());
            made.expect("made").id
        };
        let (own, of_cluster) = (made("_kera.groups"), made("_kera.cluster.groups"));
        let of_users = make(&opened, 1, Durability::Power);
        killed(opened);
        let opened = started(&config).expect("started");
        let is_own = |stream| opened.recovered.log.stream(stream).expect("it is there").is_system();
        assert_eq!([own, of_cluster, of_users].map(is_own), [true, false, false]);
        killed(opened);
    }

    /// Builds before this one did not read the virtual logs that are left over. What has the ordinals of their records since is in the arena, or in a virtual log that is read later.
    #[test]
    fn what_no_start_has_read_is_left_out_and_kept_aside_where_its_ordinals_were_given_again() {
        for is_power_lost in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut config = config(dir.path());
            config.virtual_logs.count = 2;
            config.storage.write_delay = 3_600_000;
            let opened = started(&config).expect("started");
            let stream = make(&opened, 2, Durability::Power);
            (0..4).for_each(|n| append(&opened, stream, n % 2, b"the first"));
            let disk = opened.disk.clone();
            killed(opened);
            let lose_power = || std::fs::remove_dir_all(dir.path().join("arena")).expect("removed");
            lose_power();
            config.virtual_logs.count = 1;
            let of_second = |name: &String| name.strip_prefix("0001-").is_some_and(|name| name.ends_with(".vlog"));
            let names: Vec<String> = disk.list("vlog").expect("listed").into_iter().filter(of_second).collect();
            let rename = |from: &str, to: &str| {
                let renamed = |name| disk.rename(&format!("vlog/{from}{name}"), &format!("vlog/{to}{name}"));
                names.iter().for_each(|name| renamed(name).expect("renamed"));
            };
            rename("", "not-read-");
            let opened = started(&config).expect("started");
            (0..2).for_each(|n| append(&opened, stream, n, b"given again"));
            killed(opened);
            rename("not-read-", "");
            if is_power_lost {
                lose_power();
            }
            let opened = started(&config).expect("started");
            let mut ends = [0, 1].map(|streamlet| lane(&opened, stream, streamlet).durable_ordinal());
            ends.sort_unstable();
            assert_eq!(ends, [1, 3], "the power went: {is_power_lost}");
            (0..2).for_each(|n| append(&opened, stream, n, b"goes on"));
            opened.recovered.log.close_all();
            opened.recovered.store.flush_all().expect("flushed");
            killed(opened);
            let left: Vec<String> =
                disk.list("vlog").expect("listed").into_iter().filter(|name| name.starts_with("0001-")).collect();
            let aside: Vec<String> = names.iter().map(|name| format!("{name}.damaged")).collect();
            assert_eq!(left, aside, "the power went: {is_power_lost}");
        }
    }

    #[test]
    fn what_is_left_out_is_told_in_one_sentence_however_many_lanes_lack_something() {
        let of = |streamlet| GivenAgain {
            stream: StreamId(3),
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            ordinals: 5..8,
        };
        assert_eq!(left_out(1, &[]), None);
        let one = left_out(1, &[of(2)]).expect("told");
        assert!(one.contains("virtual log 1 ") && one.contains(" 3/2/0 (ordinals 5 to 7). Files"), "{one}");
        let many = left_out(1, &(0..100).map(of).collect::<Vec<_>>()).expect("told");
        assert!(many.contains(" and 92 more. Files") && many.len() < 1000, "{many}");
    }

    /// A second name of the data directory is no second disk: what is in it would be found twice, and both places be given back with one.
    #[test]
    fn the_data_directory_under_another_name_is_no_extra_disk_and_what_is_stored_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let opened = started(&config).expect("started");
        let stream = make(&opened, 1, Durability::Power);
        append(&opened, stream, 0, b"a");
        opened.recovered.log.close_all();
        // What no virtual log has synced yet the store knows nothing of.
        let began = std::time::Instant::now();
        while !opened.recovered.log.is_settled() {
            assert!(began.elapsed().as_secs() < 120, "it never becomes durable");
            std::thread::yield_now();
        }
        opened.recovered.store.flush_all().expect("flushed");
        let disk = opened.disk.clone();
        killed(opened);
        let containers = || -> Vec<String> {
            let names = disk.list("containers").expect("listed");
            names.into_iter().filter(|name| name.ends_with(".kera")).collect()
        };
        let before = containers();
        assert!(!before.is_empty());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&config.node.data, &link).expect("a link");
        for other in [link.clone(), config.node.data.join("../data")] {
            config.node.disks = vec![other];
            let refused = started(&config).err();
            let said = refused.map(|error| format!("{error}; {}", error.next_step())).expect("refused");
            assert!(said.contains("are the same directory; name each disk once"), "{said}");
            assert_eq!(containers(), before);
        }
        // Nor are two names of an extra disk two disks.
        let extra = dir.path().join("extra");
        std::os::unix::fs::symlink(&extra, dir.path().join("link of extra")).expect("a link");
        std::fs::create_dir_all(&extra).expect("a directory");
        config.node.disks = vec![extra, dir.path().join("link of extra")];
        assert!(started(&config).err().is_some_and(|error| error.to_string().contains("are the same directory")));
        config.node.disks.clear();
        let opened = started(&config).expect("started");
        assert_eq!(lane(&opened, stream, 0).durable_ordinal(), 1);
        killed(opened);
    }

    /// A segment that was open in one log does not go on in another one, which would have its end without its beginning.
    #[test]
    fn what_was_open_while_the_number_of_virtual_logs_changed_comes_back_when_the_power_goes() {
        for (counts, name) in
            [(&[3, 2][..], 4), (&[4, 3], 3), (&[2, 3], 3), (&[2, 3], 4), (&[2, 1, 2], 3), (&[4, 3, 4, 2], 3)]
        {
            let dir = tempfile::tempdir().expect("a directory");
            let mut config = config(dir.path());
            config.storage.write_delay = 3_600_000;
            let mut made = None;
            for count in counts {
                config.virtual_logs.count = *count;
                let opened = started(&config).expect("started");
                let stream = *made.get_or_insert_with(|| make(&opened, 12, Durability::Power));
                append(&opened, stream, streamlet_called(stream, name), b"a");
                killed(opened);
            }
            let stream = made.expect("made");
            std::fs::remove_dir_all(dir.path().join("arena")).expect("removed");
            let opened = started(&config).unwrap_or_else(|error| panic!("{counts:?} {name}: {error}"));
            let end = lane(&opened, stream, streamlet_called(stream, name)).durable_ordinal();
            assert_eq!(end, counts.len() as u64, "{counts:?} {name}");
            killed(opened);
        }
    }

    /// The one of twelve streamlets by whose number, modulo a divisor of twelve, a pool of so many virtual logs has it where it would have `number`.
    fn streamlet_called(stream: StreamId, number: u32) -> u32 {
        (number + 12 - (stream.0 % 12) as u32) % 12
    }

    /// What is in memory alone stays there for a start that ends well.
    #[test]
    fn a_start_that_ends_before_the_log_is_there_leaves_the_arena_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let opened = started(&config).expect("started");
        let stream = make(&opened, 1, Durability::Process);
        append(&opened, stream, 0, b"it is in the arena alone");
        let disk = opened.disk.clone();
        killed(opened);
        // The catalog has a stream that no log takes.
        let names = disk.list(CATALOG).expect("listed");
        let journal = names.iter().filter(|name| name.ends_with(".journal")).max().expect("a journal");
        let journal = format!("{CATALOG}/{journal}");
        let whole = disk.read_all(&journal, 1 << 20).expect("read");
        let (mut changed, mut at, mut next) = (whole.clone(), FILE_HEADER_BYTES, 0);
        while let Ok((index, _, bytes)) = Entry::parse(&whole[at..]) {
            (at, next) = (at + bytes, index + 1);
        }
        let options = StreamOptions { segments_per_group: 0, ..StreamOptions::default() };
        let odd = Entry::StreamCreated { stream: StreamId(stream.0 + 1), at_ms: 1, options, name: "odd".into() };
        changed.truncate(at);
        odd.encode(next, &mut changed);
        let put = |bytes: &[u8]| {
            [journal.clone(), copy_path(&journal)].map(|path| disk.replace(&path, bytes).expect("written"))
        };
        put(&changed);
        let refused = started(&config).err();
        assert!(matches!(&refused, Some(Fatal::Data { message }) if message.contains("odd")), "{refused:?}");
        put(&whole);
        let opened = started(&config).expect("started");
        assert_eq!(lane(&opened, stream, 0).durable_ordinal(), 1);
        killed(opened);
    }

    /// Nothing is made, neither there nor anywhere else: the next start has nothing to miss.
    #[test]
    fn an_extra_disk_whose_directory_is_not_there_is_refused_and_not_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let (there, missing) = (dir.path().join("there"), dir.path().join("not/there"));
        std::fs::create_dir(&there).expect("a directory");
        config.node.disks = vec![there, missing.clone()];
        let refused = begin_in(&config).expect_err("refused");
        let said = format!("{refused}; {}", refused.next_step());
        let wanted = format!("--disks {}: there is no such directory; mount it, or make it", missing.display());
        assert!(said.starts_with(&wanted) && refused.exit_status() == 16, "{said}");
        assert!(!config.node.data.exists() && !dir.path().join("not").exists());
        std::fs::create_dir_all(&missing).expect("a directory");
        assert!(check_disks_are_there(&config).is_ok());
    }

    #[test]
    fn a_port_that_two_doors_want_is_found_before_the_node_is_anything() {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a free one").port();
        let mut config = Config::default();
        config.network.listen = format!("127.0.0.1:{port}");
        config.http.listen = None;
        config.kafka.listen = None;
        config.cluster.node = Some(1);
        config.cluster.listen = format!("0.0.0.0:{port}");
        // As text they are two addresses.
        match check_ports(&config) {
            Err(Fatal::PortInUse { taken }) => assert!(taken.iter().any(|(door, _, _)| *door == Door::Cluster)),
            other => panic!("{other:?}"),
        }
        let refused = check_ports(&config).expect_err("it is one port");
        let said = format!("{refused}; {}", refused.next_step());
        let wanted = format!(
            "other nodes cannot listen on 0.0.0.0:{port}: the port is that of --listen of this node; give --cluster-listen or --listen another port"
        );
        assert_eq!(said, wanted);
        // One that somebody else has is told as before.
        let other = TcpListener::bind("127.0.0.1:0").expect("a free one");
        config.cluster.listen = other.local_addr().expect("it has one").to_string();
        let refused = check_ports(&config).expect_err("somebody has it").to_string();
        assert!(refused.ends_with(&format!("{}: the port is in use", config.cluster.listen)), "{refused}");
    }

    #[test]
    fn who_cannot_have_a_stream_made_is_not_told_that_data_is_damaged() {
        let full = CoordinatorError::Disk(std::io::ErrorKind::StorageFull.into());
        let limit = CoordinatorError::Limit { what: "streams", limit: 7, advice: "delete one first" };
        for (error, said) in [(full, "free space"), (limit, "delete one first")] {
            let fatal = not_made(Path::new("/d"), error);
            assert!(!matches!(fatal, Fatal::Data { .. }), "{fatal}");
            assert!(format!("{fatal}: {}", fatal.next_step()).contains(said), "{fatal}: {}", fatal.next_step());
        }
    }

    #[test]
    fn a_store_that_cannot_read_a_container_for_now_gives_up_nothing_and_says_what_to_do() {
        let error = std::io::Error::from_raw_os_error(24);
        let refused =
            store_error(Path::new("/d"), StoreError::Container { path: "/d/containers/1.kera".into(), error });
        let said = format!("{refused}: {}", refused.next_step());
        assert!(["/d/containers/1.kera", "open files", "start again"].iter().all(|part| said.contains(part)), "{said}");
    }

    #[test]
    fn the_largest_chunk_fits_into_a_frame_also_when_it_is_padded() {
        for frame_bytes_max in (64 << 10)..(64 << 10) + 16 {
            let padded = chunk_bytes_max(frame_bytes_max).next_multiple_of(8);
            assert!(
                FRAME_HEADER_BYTES + WRITE_FRONT_BYTES_MAX + padded <= frame_bytes_max as usize,
                "{frame_bytes_max}"
            );
        }
        assert_eq!(chunk_bytes_max(256 << 20), kera_format::limits::CHUNK_BYTES_MAX);
    }
}
