//! The coordinator itself: takes commands, one at a time, and answers questions, any number at a time.

use std::sync::Arc;

use kera_env::{Clock, Disk};
use kera_format::catalog::Entry;
use kera_format::{ProducerEpoch, ProducerId, ReplicationMode, StreamId, StreamOptions, level};
use kera_protocol::limits::FLOORS_MAX;
use kera_protocol::{
    AllocateProducer, AllocatedProducer, AlterStream, Body, CreateStream, DeleteStream, DescribeMoves, LaneFloor,
    ListStreams, Message, MoveInfo, MoveStreamlet, MovesDescription, Op, SetFloors, StreamChanges, StreamInfo,
    StreamList, StreamRef,
};
use parking_lot::{Mutex, RwLock};

use crate::catalog::{Catalog, Limits};
use crate::cluster::Refused;
use crate::journal::{Journal, Opened};
use crate::{CoordinatorError, OpenError};

/// What a coordinator is told about its node.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// The node's uuid: a catalog of another node is refused.
    pub node: [u8; 16],
    /// Most streams, the system's included.
    pub streams_max: usize,
    /// Nodes that can hold a copy of a stream: more copies than that are refused.
    pub nodes: u32,
}

impl CoordinatorConfig {
    /// One node with room for 100,000 streams.
    pub fn single(node: [u8; 16]) -> CoordinatorConfig {
        CoordinatorConfig { node, streams_max: 100_000, nodes: 1 }
    }
}

/// What happened to a stream. On the disk by the time anybody is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEvent {
    /// There is one more.
    Created(StreamInfo),
    /// It has other options.
    Altered {
        /// As it was.
        before: StreamInfo,
        /// As it is.
        after: StreamInfo,
    },
    /// It is gone; nobody can find it any more.
    Deleted(StreamInfo),
}

/// Who wants to know of changes: the broker, to open and drop logs.
pub trait StreamObserver: Send + Sync {
    /// Called on the thread of the command, before its answer, one event at a time and in order. May read from the
    /// coordinator, must not give it commands.
    fn stream_changed(&self, event: &StreamEvent);
}

/// A node that takes part in a cluster now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveNode {
    /// Its number.
    pub node: u32,
    /// It may be given streamlets: it is a broker that is not drained.
    pub takes: bool,
}

/// The log of a cluster, as a node's coordinator uses it instead of a journal of its own.
pub trait ClusterLog: Send + Sync {
    /// Has the leader do a request; the body of the answer. Blocks until it is done and this node knows of it; of what clients ask for that is not the `system`'s, until it is done
    /// and the node has had some seconds to hear of it.
    fn request(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError>;
    /// The [level](kera_format::level) of the cluster, as far as this node knows.
    fn level(&self) -> u32;
    /// Reads the streams that this node knows of.
    fn read(&self, read: &mut dyn FnMut(&Catalog));
    /// How many copies there are of what is acknowledged in a streamlet, its owner's included; zero: there is no such stream.
    fn copies_of(&self, stream: StreamId, streamlet: u32) -> u32;
    /// How many copies a stream is to have while that changes.
    fn wanted_copies(&self, stream: StreamId) -> Option<u32>;
    /// The nodes that take part now, by their numbers.
    fn live_nodes(&self) -> Vec<LiveNode>;
    /// Says who is told of streams from now on. Whatever is different from `known` by then is told first.
    fn observe(&self, observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>);
}

/// See the crate. Any thread may call any method.
///
/// Two locks keep readers away from the disk: `commands` is held for a whole command, disk and observer included;
/// `catalog` only to read it, and for an instant to apply an entry that is on the disk already.
pub struct Coordinator {
    commands: Mutex<Option<Commands>>,
    catalog: RwLock<Catalog>,
    /// In a cluster: where commands go and what is known comes from; then the two above are empty.
    cluster: Option<Arc<dyn ClusterLog>>,
    /// The streams that were told last, in a cluster, until there is an observer: they may be ten thousand, and are asked for each second.
    known: Mutex<Option<Vec<StreamInfo>>>,
    observer: RwLock<Option<Arc<dyn StreamObserver>>>,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

struct Commands {
    journal: Journal,
    /// The next id to give out; below the catalog's `producers_reserved` or equal to it.
    next_producer: ProducerId,
    /// The last entry could not be written, which was told.
    fails: bool,
}

/// Asynchronous replication cannot be said in the version of a request that a leader of an earlier version understands: it would be taken
/// for synchronous.
fn check_level(cluster: &dyn ClusterLog, mode: Option<ReplicationMode>) -> Result<(), CoordinatorError> {
    let level = cluster.level();
    if mode != Some(ReplicationMode::Async) || level >= level::ASYNCHRONOUS {
        return Ok(());
    }
    let needs = level::ASYNCHRONOUS;
    let reason = format!(
        "the cluster is at level {level}, and asynchronous replication needs level {needs}: it is there when all nodes run a version \
         that speaks it; `kera cluster level` shows which do not"
    );
    Err(CoordinatorError::Refused(Refused(reason)))
}

fn alone() -> CoordinatorError {
    let reason = "this node is alone, in no cluster: there is no other node to move anything to or from; \
                  docs/operations.md says how to start several";
    CoordinatorError::Refused(Refused(reason.into()))
}

impl Coordinator {
    /// Opens the catalog in the directory `catalog` of `disk`, or starts an empty one. Blocks while it reads.
    pub fn open(
        config: &CoordinatorConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<Coordinator, OpenError> {
        let (journal, catalog, opened) = Journal::open(disk, config.node)?;
        let Opened { entries, torn_bytes, mended } = opened;
        tracing::info!(streams = catalog.stream_count(), entries, torn_bytes, mended, "catalog is open");
        // What is left of the last block may have been given out: it is skipped.
        let next_producer = catalog.producers_reserved();
        Ok(Coordinator {
            commands: Mutex::new(Some(Commands { journal, next_producer, fails: false })),
            catalog: RwLock::new(catalog),
            cluster: None,
            known: Mutex::new(None),
            observer: RwLock::new(None),
            clock,
            limits: Limits { streams: config.streams_max, nodes: config.nodes },
        })
    }

    /// The coordinator of a node of a cluster. It has no files of its own.
    pub fn of_cluster(log: Arc<dyn ClusterLog>, clock: Arc<dyn Clock>) -> Coordinator {
        Coordinator {
            commands: Mutex::new(None),
            catalog: RwLock::new(Catalog::default()),
            cluster: Some(log),
            known: Mutex::new(Some(Vec::new())),
            observer: RwLock::new(None),
            clock,
            limits: Limits { streams: 0, nodes: 0 },
        }
    }

    /// Whether all nodes understand what needs this [level](kera_format::level); a node that is alone has nobody to ask.
    pub fn all_understand(&self, level: u32) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.level() >= level)
    }

    /// How many copies there are of what is acknowledged in a streamlet: another number than its stream says while that changes. Takes a lock: ask for the
    /// stream's [change](Coordinator::wanted_copies) first, of which there nearly never is one.
    pub fn copies_of(&self, stream: StreamId, streamlet: u32) -> u32 {
        match &self.cluster {
            Some(cluster) => cluster.copies_of(stream, streamlet),
            None => self.stream(&stream.into()).map_or(0, |info| info.options.replication),
        }
    }

    /// How many copies a stream is to have while that changes; `None`: it does not. It may be as many as the stream says, if a change is turned back.
    pub fn wanted_copies(&self, stream: StreamId) -> Option<u32> {
        self.cluster.as_ref().and_then(|cluster| cluster.wanted_copies(stream))
    }

    /// The nodes that take part in the cluster now; `None`: this one is alone.
    pub fn live_nodes(&self) -> Option<Vec<LiveNode>> {
        self.cluster.as_ref().map(|cluster| cluster.live_nodes())
    }

    /// Whether settings of streams are kept as they were given; otherwise they are left out of what is asked for.
    pub fn keeps_settings(&self) -> bool {
        level::spoken().contains(&level::SETTINGS) && self.all_understand(level::SETTINGS)
    }

    /// Reads the catalog's files and their copies, and writes them anew if a disk has changed one: how many bytes, and whether that was so. In a cluster there are none. Blocks;
    /// commands wait.
    pub fn look_at_disk(&self) -> std::io::Result<(u64, bool)> {
        match &mut *self.commands.lock() {
            Some(commands) => commands.journal.look(&self.catalog.read()),
            None => Ok((0, false)),
        }
    }

    /// Reads the catalog of a single node, so that it can come along to the cluster that the node founds. Changes nothing.
    pub fn catalog(&self) -> Catalog {
        self.with(Catalog::clone)
    }

    fn with<T>(&self, read: impl FnOnce(&Catalog) -> T) -> T {
        let Some(cluster) = &self.cluster else { return read(&self.catalog.read()) };
        let (mut read, mut answer) = (Some(read), None);
        cluster.read(&mut |catalog| answer = read.take().map(|read| read(catalog)));
        answer.expect("the log reads once")
    }

    /// Has the leader do what a message asks for, in a cluster.
    fn ask<M: Message>(cluster: &dyn ClusterLog, message: &M, system: bool) -> Result<M::Response, CoordinatorError> {
        // Whoever leads may be of an earlier version of kera until the level has risen.
        let (version, mut body) = (M::OP.version_at(cluster.level()), Vec::new());
        message.encode(version, &mut body);
        Ok(M::Response::decode(version, &cluster.request(M::OP, version, &body, system)?)?)
    }

    /// Begins to move a streamlet to a node, unless it is there. Blocks until the leader of the coordinators has it in their log.
    ///
    /// # Errors
    /// A node that is alone, no leader, or the leader's refusal: the node is not live, or the streamlet cannot be moved now.
    pub fn move_streamlet(&self, message: &MoveStreamlet) -> Result<MoveInfo, CoordinatorError> {
        Coordinator::ask(self.cluster.as_deref().ok_or_else(alone)?, message, false)
    }

    /// Which streamlets move. Blocks until the leader of the coordinators has answered.
    ///
    /// # Errors
    /// A node that is alone, or no leader.
    pub fn moves(&self, message: &DescribeMoves) -> Result<MovesDescription, CoordinatorError> {
        Coordinator::ask(self.cluster.as_deref().ok_or_else(alone)?, message, false)
    }

    /// Has the leader of the cluster answer a request, as it came. A node that is alone has nobody to ask.
    pub(crate) fn ask_cluster(&self, op: Op, version: u8, body: &[u8]) -> Result<Vec<u8>, CoordinatorError> {
        self.cluster.as_ref().ok_or_else(alone)?.request(op, version, body, false)
    }

    /// Says who learns of changes from now on. Streams that are there already are not told of; see
    /// [`streams`](Coordinator::streams).
    pub fn set_observer(&self, observer: Arc<dyn StreamObserver>) {
        match &self.cluster {
            Some(cluster) => cluster.observe(observer, self.known.lock().take().unwrap_or_default()),
            None => *self.observer.write() = Some(observer),
        }
    }

    /// All streams, the system's included, in the order of their names.
    pub fn streams(&self) -> Vec<StreamInfo> {
        let streams: Vec<StreamInfo> = self.with(|catalog| catalog.streams().cloned().collect());
        if let Some(known) = &mut *self.known.lock() {
            known.clone_from(&streams);
        }
        streams
    }

    /// A stream by name or id.
    pub fn stream(&self, stream: &StreamRef) -> Result<StreamInfo, CoordinatorError> {
        self.with(|catalog| catalog.find(stream).cloned())
    }

    /// A page of streams in the order of their names.
    pub fn list_streams(&self, request: &ListStreams) -> StreamList {
        self.with(|catalog| catalog.list(request))
    }

    /// Whether there may be so many lanes more in all streams, as far as this node knows; see [`Catalog::check_lanes`].
    ///
    /// # Errors
    /// There are too many.
    pub fn check_lanes(&self, more: u64) -> Result<(), CoordinatorError> {
        self.with(|catalog| catalog.check_lanes(more))
    }

    /// Makes a stream, or finds the one that is there if `if_not_exists` is set. Blocks until it is on the disk.
    pub fn create_stream(&self, request: &CreateStream) -> Result<StreamInfo, CoordinatorError> {
        self.create(request, false)
    }

    /// Finds a stream of the system, whose name starts with `_kera.`, or makes it. Blocks until it is on the disk.
    ///
    /// Nobody is asked for one that this node knows of: none of them is ever deleted, so it is there whether or not anybody leads the coordinators.
    pub fn system_stream(&self, name: &str, options: &StreamOptions) -> Result<StreamInfo, CoordinatorError> {
        if let Ok(known) = self.stream(&name.into()) {
            return Ok(known);
        }
        let request = CreateStream { name: name.to_owned(), options: options.clone(), if_not_exists: true };
        self.create(&request, true)
    }

    /// The same for a start, which does not go on without it: while there is no leader that makes it `pause` is told, and it is asked for again.
    ///
    /// # Errors
    /// Those that do not pass when there is a leader.
    pub fn awaited_system_stream(
        &self,
        name: &str,
        options: &StreamOptions,
        mut pause: impl FnMut(&CoordinatorError),
    ) -> Result<StreamInfo, CoordinatorError> {
        loop {
            match self.system_stream(name, options) {
                Err(error @ CoordinatorError::NoLeader(_)) => pause(&error),
                told => return told,
            }
        }
    }

    fn create(&self, request: &CreateStream, system: bool) -> Result<StreamInfo, CoordinatorError> {
        let request = request.with_settings_if(self.keeps_settings());
        if let Some(cluster) = &self.cluster {
            check_level(&**cluster, Some(request.options.replication_mode))?;
            return Coordinator::ask(&**cluster, &*request, system);
        }
        let mut commands = self.commands.lock();
        let name = StreamRef::Name(request.name.clone());
        let planned = self.catalog.read().plan_create(&request, &self.limits, self.clock.now_ms(), system);
        let entry = match planned {
            Err(CoordinatorError::StreamExists { .. }) if request.if_not_exists => return self.stream(&name),
            other => other?,
        };
        self.commit(&mut commands, &entry)?;
        let info = self.stream(&name)?;
        tracing::info!(stream = %info.name, id = %info.id, "stream created");
        self.tell(&StreamEvent::Created(info.clone()));
        Ok(info)
    }

    /// Changes options of a stream; all or none. Blocks until it is on the disk.
    pub fn alter_stream(&self, stream: &StreamRef, changes: &StreamChanges) -> Result<StreamInfo, CoordinatorError> {
        let changes = changes.with_settings_if(self.keeps_settings());
        if let Some(cluster) = &self.cluster {
            check_level(&**cluster, changes.replication_mode)?;
            let message = AlterStream { stream: stream.clone(), changes: changes.into_owned() };
            return Coordinator::ask(&**cluster, &message, false);
        }
        let mut commands = self.commands.lock();
        let before = self.stream(stream)?;
        let now_ms = self.clock.now_ms();
        let planned = self.catalog.read().plan_alter(stream, &changes, &self.limits, now_ms, false)?;
        let Some(entry) = planned else { return Ok(before) };
        self.commit(&mut commands, &entry)?;
        let after = self.stream(stream)?;
        tracing::info!(stream = %after.name, id = %after.id, "stream altered");
        self.tell(&StreamEvent::Altered { before, after: after.clone() });
        Ok(after)
    }

    /// Deletes a stream. Blocks until that is on the disk; the observer drops the data.
    pub fn delete_stream(&self, stream: &StreamRef) -> Result<(), CoordinatorError> {
        if let Some(cluster) = &self.cluster {
            // Whether there is one is for the leader to say: this node may not have heard of it yet.
            return Coordinator::ask(&**cluster, &DeleteStream { stream: stream.clone() }, false).map(drop);
        }
        let mut commands = self.commands.lock();
        let info = self.stream(stream)?;
        let entry = self.catalog.read().plan_delete(stream, self.clock.now_ms(), false)?;
        self.commit(&mut commands, &entry)?;
        tracing::info!(stream = %info.name, id = %info.id, "stream deleted");
        self.tell(&StreamEvent::Deleted(info));
        Ok(())
    }

    /// Whether the nodes of a cluster agree on where lanes begin whose records were deleted; otherwise each keeps that for itself.
    pub fn agrees_on_floors(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.level() >= level::AGREED_FLOORS)
    }

    /// Has the coordinators note where lanes begin, each named once. Blocks until that is done and the lanes of this node know of it: one that does
    /// not is another owner's by now.
    pub fn set_floors(&self, floors: &[LaneFloor]) -> Result<(), CoordinatorError> {
        let Some(cluster) = &self.cluster else {
            return Err(CoordinatorError::Refused(Refused(
                "this node is alone and asks nobody where lanes begin".into(),
            )));
        };
        for floors in floors.chunks(FLOORS_MAX) {
            Coordinator::ask(&**cluster, &SetFloors { floors: floors.to_vec() }, false)?;
        }
        Ok(())
    }

    /// An id that nobody has had, at epoch 0; or for a producer that has one, its next epoch, which fences the
    /// incarnation before it. A producer that has used up its epochs gets another id. Blocks on the disk for every
    /// epoch and for one id in a thousand.
    pub fn allocate_producer(&self, producer: Option<ProducerId>) -> Result<AllocatedProducer, CoordinatorError> {
        if let Some(cluster) = &self.cluster {
            return Coordinator::ask(&**cluster, &AllocateProducer { producer_id: producer }, false);
        }
        let mut commands = self.commands.lock();
        let next_producer = commands.as_ref().map_or(ProducerId(0), |commands| commands.next_producer);
        if let Some(producer_id) = producer {
            let planned = self.catalog.read().plan_raise(producer_id, next_producer)?;
            if let Some(entry) = planned {
                self.commit(&mut commands, &entry)?;
                let producer_epoch = self.catalog.read().epoch(producer_id);
                return Ok(AllocatedProducer { producer_id, producer_epoch });
            }
        }
        if next_producer >= self.catalog.read().producers_reserved() {
            let entry = self.catalog.read().plan_reserve();
            self.commit(&mut commands, &entry)?;
        }
        let producer_id = next_producer;
        if let Some(commands) = commands.as_mut() {
            commands.next_producer = ProducerId(producer_id.0 + 1);
        }
        Ok(AllocatedProducer { producer_id, producer_epoch: ProducerEpoch(0) })
    }

    /// Journals a planned entry, then makes it true.
    fn commit(&self, commands: &mut Option<Commands>, entry: &Entry) -> Result<(), CoordinatorError> {
        let Some(commands) = commands else { unreachable!("a node of a cluster has no journal") };
        // Nobody else applies entries: the command lock is held. Readers go on while the disk is at work.
        let written = commands.journal.append(entry, &self.catalog.read());
        if let Err(error) = written {
            // Once: clients ask again, many of them several times a second, and the disk may be full for days.
            if !std::mem::replace(&mut commands.fails, true) {
                tracing::error!(%error, "the catalog could not be written; commands are refused until it can");
            }
            return Err(CoordinatorError::Disk(error));
        }
        if std::mem::take(&mut commands.fails) {
            tracing::info!("the catalog is written again");
        }
        self.catalog.write().apply(entry).unwrap_or_else(|reason| panic!("a planned entry does not apply: {reason}"));
        Ok(())
    }

    fn tell(&self, event: &StreamEvent) {
        let observer = self.observer.read().clone();
        if let Some(observer) = observer {
            observer.stream_changed(event);
        }
    }
}
