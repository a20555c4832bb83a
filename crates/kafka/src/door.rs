//! What all Kafka connections of a node share: the topics, the thread for commands that wait for a disk, what clients are told
//! about the node.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::BrokerId;
use kera_broker::Broker;
use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_coordinator::{Coordinator, LiveNode};
use kera_env::{Clock, Random};
use kera_format::limits::name_is_valid;
use kera_format::{Cursor, StreamId, StreamletId};
use kera_log::{DurabilitySink, Lane, Observer, Stream, Ticket};
use kera_protocol::Op;
use kera_protocol::admin::{StreamInfo, StreamRef};
use kera_rpc::{Peer, Session, SessionFactory, SessionWaker};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::admin::Hears;
use crate::counts::Counts;
use crate::endings::{self, Endings, Event};
use crate::epochs;
use crate::fetch_sessions::FetchSessions;
use crate::floors::Floors;
use crate::gone_topics::GoneTopics;
use crate::group_door::{self, GroupDoor};
use crate::group_parts;
use crate::node_requests::{self, Answered, NodeRequests, NodeWork};
use crate::numbering::{has, place_of, streamlet_of};
use crate::older::Older;
use crate::session::KafkaSession;
use crate::starts::Starts;
use crate::transaction_door::{self, TransactionDoor};
use crate::transaction_owner::TransactionOwner;
use crate::transaction_parts;
use crate::wire::Malformed;

/// The id of a broker that is alone, in the eyes of Kafka clients; in a cluster it is the node's number.
const ALONE_ID: i32 = 1;

/// How often what time brings is looked at while there are no commands.
const TICK: Duration = Duration::from_millis(50);
/// Bytes of the requests whose commands wait for their turn, of all connections, those included that have ended: these are left out when their turn comes, which may be long after.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// What a command takes that waits, beside its request: more than it does.
const WAITING_BYTES: usize = 256;

/// Bytes that are counted as long as a command is there.
struct Waits {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Limits and defaults of the door. [`Default`] works; `node` is the node's id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoorConfig {
    /// The node's id: the cluster's id and the ids of topics are made of it.
    pub node: [u8; 16],
    /// What DescribeLogDirs calls the place of all partitions: the directory of the node's data.
    pub data_dir: String,
    /// The name that clients are told to connect to; `None`: the address that is listened on.
    pub advertised: Option<String>,
    /// Whether a topic that a producer or consumer names is made when it is not there.
    pub auto_create: bool,
    /// What a disk does not give of the transactions that the node has kept is done without.
    pub accept_damage: bool,
    /// Partitions of a topic that is made without saying how many.
    pub partitions_default: u32,
    /// Copies of a topic that is made without saying how many; `None`: three where there are as many nodes, otherwise one.
    pub copies_default: Option<u32>,
    /// Data bytes of one fetch answer; a request that asks for more gets this.
    pub fetch_bytes_max: usize,
    /// Longest that a fetch waits, in milliseconds.
    pub fetch_wait_ms_max: u32,
    /// Fetch sessions of all connections; who gets none names all partitions each time.
    pub fetch_sessions_max: usize,
    /// Partitions in all fetch sessions together, about a hundred bytes each, and up to 249 for the name of a topic.
    pub fetch_session_partitions_max: usize,
    /// Chunks of partitions that moved here which are kept in memory, in bytes; the nodes that they were written at hold them.
    pub older_bytes_max: usize,
    /// Longest that a produce request waits for room or for its disk, in milliseconds.
    pub produce_wait_ms_max: u32,
    /// Produce requests of one connection that may wait for the disk, or answers to commits of offsets.
    pub in_flight_requests_max: usize,
    /// The largest request that is not Produce, in bytes, and the most that answers which wait for the disk may have.
    pub control_bytes_max: usize,
}

impl Default for DoorConfig {
    fn default() -> DoorConfig {
        DoorConfig {
            node: [0; 16],
            data_dir: "data".into(),
            advertised: None,
            auto_create: true,
            accept_damage: false,
            partitions_default: 1,
            copies_default: None,
            fetch_bytes_max: 16 << 20,
            fetch_wait_ms_max: 60_000,
            fetch_sessions_max: 1_000,
            fetch_session_partitions_max: 250_000,
            older_bytes_max: 64 << 20,
            produce_wait_ms_max: 60_000,
            in_flight_requests_max: 256,
            control_bytes_max: 4 << 20,
        }
    }
}

/// A topic, looked up once per connection.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) stream: Arc<Stream>,
    lanes: u32,
}

impl Topic {
    /// The lane that is partition `partition`.
    pub(crate) fn lane(&self, partition: i32) -> Option<&Arc<Lane>> {
        let partition = u32::try_from(partition).ok()?;
        let (streamlet, lane) = place_of(partition, self.lanes);
        self.stream.streamlet(streamlet)?.lane(lane)
    }

    /// How many partitions it has now; never less than before.
    pub(crate) fn partitions(&self) -> u32 {
        self.stream.streamlet_count().saturating_mul(self.lanes)
    }
}

/// The lanes of a stream.
pub(crate) fn topic_of(broker: &Broker, info: &StreamInfo) -> Option<Topic> {
    let stream = broker.log().stream(info.id)?;
    Some(Topic { name: info.name.clone(), stream, lanes: info.options.lanes.max(1) })
}

/// Something that is to become durable.
#[derive(Clone)]
pub(crate) struct After {
    pub(crate) sink: Arc<dyn DurabilitySink>,
    pub(crate) ticket: Ticket,
}

impl After {
    pub(crate) fn is_durable(&self) -> bool {
        self.sink.durable_through() >= self.ticket
    }
}

/// Adds what is waited for to the sinks that are, each with the ticket that comes first.
pub(crate) fn first_of(waits: &mut Vec<After>, after: &After) {
    match waits.iter_mut().find(|known| Arc::ptr_eq(&known.sink, &after.sink)) {
        Some(known) => known.ticket = known.ticket.min(after.ticket),
        None => waits.push(after.clone()),
    }
}

/// Has a thread called when what it waits for is durable, which it says in each of its turns: a sink that stands still is asked once for each ticket.
pub(crate) struct Calls {
    observer: Arc<dyn Observer>,
    /// By which ticket of which sink, by its address, the thread is to be called.
    called: HashMap<usize, Ticket>,
}

impl Calls {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Calls {
        Calls { observer, called: HashMap::new() }
    }

    pub(crate) fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    /// All that is waited for now, [a ticket of each sink](first_of).
    pub(crate) fn wait(&mut self, waits: Vec<After>) {
        let mut called = HashMap::new();
        for After { sink, ticket } in waits {
            let place = Arc::as_ptr(&sink).cast::<()>() as usize;
            if self.called.get(&place) == Some(&ticket) || sink.wait(ticket, &self.observer, 0) {
                called.insert(place, ticket);
            } else {
                self.observer.advanced(0);
            }
        }
        self.called = called;
    }
}

/// What a command leaves for its connection.
pub(crate) type Reply = Arc<ReplySlot>;

/// An answer on its way from another thread to a session.
pub(crate) struct ReplySlot {
    body: Mutex<Option<(Vec<u8>, Vec<After>)>>,
    waker: SessionWaker,
}

impl ReplySlot {
    pub(crate) fn new(waker: SessionWaker) -> Reply {
        Arc::new(ReplySlot { body: Mutex::new(None), waker })
    }
    /// It may leave when what it rests on is durable.
    pub(crate) fn put_after(&self, body: Vec<u8>, after: impl IntoIterator<Item = After>) {
        *self.body.lock() = Some((body, after.into_iter().collect()));
        self.waker.wake();
    }
    pub(crate) fn take(&self) -> Option<(Vec<u8>, Vec<After>)> {
        self.body.lock().take()
    }
    /// Whether somebody else has it, too: its session, which is there for as long as its connection.
    fn is_awaited(reply: &Reply) -> bool {
        Arc::strong_count(reply) > 1
    }
}

/// Something that waits for a disk, done on the commands thread: makes the body of an answer, and says what it waits for.
pub(crate) type Command = Box<dyn FnOnce(&Door) -> (Vec<u8>, Option<After>) + Send>;

/// The topics of a node: its streams but for those of the system.
pub(crate) struct Catalog {
    node: [u8; 16],
    pub(crate) coordinator: Arc<Coordinator>,
}

/// The coordinators of a cluster, as a node knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coordinators {
    /// The one that leads, if that is known.
    pub leader: Option<u32>,
    /// In which term it does.
    pub term: u64,
    /// The nodes that have a vote.
    pub voters: Vec<u32>,
    /// The other nodes that follow their log.
    pub observers: Vec<u32>,
}

/// The nodes that take part now. Clients are told of no others, as Kafka tells of no fenced brokers: whoever asks each node that it is told of would
/// wait for those that are lost.
pub(crate) struct Live {
    me: i32,
    nodes: Option<Vec<LiveNode>>,
}

impl Live {
    /// Whether a node is one of them. This one, which answers, always is; and so are all where there are no coordinators to say.
    pub(crate) fn has(&self, node: i32) -> bool {
        let told = |nodes: &Vec<LiveNode>| nodes.iter().any(|of| of.node.cast_signed() == node);
        node == self.me || self.nodes.as_ref().is_none_or(told)
    }

    /// Who leads a partition [of an owner](Door::leader_of), and in which epoch: nobody, if the owner is lost.
    pub(crate) fn leader(&self, (owner, epoch): (i32, i32)) -> (i32, i32) {
        if self.has(owner) { (owner, epoch) } else { (-1, epochs::UNKNOWN) }
    }

    /// Those of the nodes that have records which take part.
    pub(crate) fn of(&self, nodes: &[BrokerId]) -> Vec<BrokerId> {
        nodes.iter().copied().filter(|node| self.has(node.0)).collect()
    }

    /// Those of the nodes that are to have records which are lost.
    pub(crate) fn without(&self, nodes: &[BrokerId]) -> Vec<BrokerId> {
        nodes.iter().copied().filter(|node| !self.has(node.0)).collect()
    }
}

/// What a door asks the node about the others of its cluster.
pub trait OtherNodes: Send + Sync {
    /// The coordinator that leads, if that is known. Asked for every Metadata.
    fn leading_coordinator(&self) -> Option<u32>;
    /// All coordinators.
    fn coordinators(&self) -> Coordinators;
    /// The nodes that are to have what `owner` writes to streams with so many `copies`, and those of them that have it, the owner
    /// first in both.
    fn copies_of(&self, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>);
    /// Chunks of lane 0 of a streamlet from a cursor on that another node has. Blocks.
    ///
    /// # Errors
    /// The node cannot be reached, or says why not, in words.
    fn read(&self, node: u32, stream: StreamId, streamlet: StreamletId, from: Cursor) -> Result<Given, String>;
    /// Asks the Kafka door of another node, which [answers](Door::answer). `done` is called on some thread, with why there is no answer
    /// otherwise, and must not block.
    fn ask(&self, node: u32, op: Op, body: Vec<u8>, done: Answered);
    /// Asks another node what its native clients ask. `done` as with [`ask`](OtherNodes::ask).
    fn ask_native(&self, node: u32, op: Op, body: Vec<u8>, done: Answered);
    /// Whether all nodes know how to coordinate transactions together.
    fn serves_transactions(&self) -> bool;
}

/// What another node has given of a lane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// Whole chunks.
    pub data: Vec<u8>,
    /// Where to go on: at the same place if it could give nothing just then.
    pub next: Cursor,
    /// Ordinal behind the last durable record of the lane at that node; 0 if the node has none of it.
    pub durable_ordinal: u64,
}

/// The Kafka door of a node.
pub struct Door {
    pub(crate) config: DoorConfig,
    pub(crate) broker: Arc<Broker>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) groups: GroupDoor,
    pub(crate) transactions: TransactionDoor,
    pub(crate) owner: TransactionOwner,
    pub(crate) starts: Starts,
    pub(crate) fetch_sessions: FetchSessions,
    pub(crate) floors: Floors,
    pub(crate) older: Older,
    pub(crate) counts: Counts,
    pub(crate) hears: Hears,
    /// Bytes that fetches wait for from disk: see [`crate::fetch`].
    pub(crate) loads_awaited: AtomicUsize,
    pub(crate) clock: Arc<dyn Clock>,
    commands: Sender<(Command, Reply)>,
    /// Bytes of the commands that wait.
    waiting: Arc<AtomicUsize>,
    address: OnceLock<SocketAddr>,
    others: OnceLock<Arc<dyn OtherNodes>>,
    pub(crate) node_requests: NodeRequests,
    /// Nobody has it any more but its own threads.
    is_closing: AtomicBool,
}

/// The threads of a door: one runs commands, one keeps time for groups, one ends transactions, and in a cluster one follows which
/// groups and transactions are this node's, and one answers others. They end when the door and its sessions are gone.
pub struct DoorThread {
    threads: Vec<JoinHandle<()>>,
    door: Weak<Door>,
}

/// Why a door does not open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The streams of groups and transactions cannot be made, read or written to. One of [`NOT_GIVEN`](crate::NOT_GIVEN) is no fault of the disk.
    #[error(transparent)]
    Kept(#[from] io::Error),
    /// The operating system gives no thread. Nothing is wrong with what is kept.
    #[error("there is no thread: {0}")]
    NoThread(#[source] io::Error),
}

/// What the threads of a door wait for.
pub(crate) struct Waiting {
    pub(crate) commands: Receiver<(Command, Reply)>,
    pub(crate) events: Receiver<Event>,
    pub(crate) endings: Endings,
    pub(crate) node_work: NodeWork,
}

impl DoorThread {
    /// Waits until the threads have ended. The door is to be dropped before.
    pub fn join(self) {
        // Whoever reads what has come to the door keeps it for as long as that takes, which may be for ever when other nodes are gone.
        if let Some(door) = self.door.upgrade() {
            door.is_closing.store(true, Ordering::Release);
        }
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a thread of the Kafka door ended with a panic");
            }
        }
    }
}

impl Door {
    /// A door onto a broker's log and the catalog. Blocks while groups and transactions are read from their streams, so the log
    /// must be whole and its store running.
    ///
    /// # Errors
    /// Their streams cannot be made or read, or the operating system gives no thread: [`StartError`] tells which.
    pub fn start(
        config: DoorConfig,
        broker: Arc<Broker>,
        coordinator: Arc<Coordinator>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<(Arc<Door>, DoorThread), StartError> {
        let (door, waiting) = Door::open(config, broker, coordinator, clock, random)?;
        // Those that have started end with the door if another one does not.
        let threads = Door::start_threads(&door, waiting).map_err(StartError::NoThread)?;
        let thread = DoorThread { threads, door: Arc::downgrade(&door) };
        Ok((door, thread))
    }

    fn start_threads(door: &Arc<Door>, waiting: Waiting) -> io::Result<Vec<JoinHandle<()>>> {
        let Waiting { commands, events, endings, node_work } = waiting;
        let (weak, weak_too) = (Arc::downgrade(door), Arc::downgrade(door));
        let named = |name: &str| std::thread::Builder::new().name(name.into()).stack_size(1 << 20);
        let commands = named("kera-kafka").spawn(move || work(&weak, &commands))?;
        let ends = named("kera-kafka-ends").spawn(move || endings::work(&weak_too, &events, endings))?;
        let weak = Arc::downgrade(door);
        let time = named("kera-kafka-time").spawn(move || group_door::keep_time(&weak))?;
        let mut threads = vec![commands, ends, time];
        if door.is_in_cluster() {
            let weak = Arc::downgrade(door);
            threads.push(named("kera-kafka-groups").spawn(move || group_door::follow(&weak))?);
            let (weak, weak_too) = (Arc::downgrade(door), Arc::downgrade(door));
            threads.push(named("kera-kafka-txns").spawn(move || transaction_door::follow(&weak))?);
            threads.push(named("kera-kafka-nodes").spawn(move || node_requests::work(&weak_too, node_work))?);
        }
        Ok(threads)
    }

    /// A door, and what its threads do.
    pub(crate) fn open(
        config: DoorConfig,
        broker: Arc<Broker>,
        coordinator: Arc<Coordinator>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> io::Result<(Arc<Door>, Waiting)> {
        let (commands, receiver) = channel();
        let (events, event_receiver) = channel();
        let catalog = Arc::new(Catalog { node: config.node, coordinator: Arc::clone(&coordinator) });
        let (sessions, partitions) = (config.fetch_sessions_max, config.fetch_session_partitions_max);
        let fetch_sessions = FetchSessions::new(sessions, partitions, Arc::clone(&random));
        let (groups, unread) = GroupDoor::open(&catalog, &broker, &clock, random, config.accept_damage)?;
        let older = Older::new(config.older_bytes_max);
        let floors = Floors::open(&catalog, &broker, &clock, config.accept_damage)?;
        let endings = Endings::new(events.clone());
        let (node_requests, node_work) = NodeRequests::new();
        let (requests, accept) = (node_requests.clone(), config.accept_damage);
        let transactions =
            TransactionDoor::open(&catalog, &broker, &clock, events, requests, accept, &groups.own_pending())?;
        let (is_founded, is_at_rest) = (catalog.info_of_groups().is_some(), transactions.own_is_at_rest());
        group_door::may_do_without(unread, is_founded, is_at_rest, accept)?;
        groups.end_unknown(&transactions.own_groups())?;
        let address = OnceLock::new();
        let door = Door {
            config,
            broker,
            coordinator,
            catalog,
            groups,
            transactions,
            owner: TransactionOwner::default(),
            starts: Starts::default(),
            fetch_sessions,
            floors,
            older,
            counts: Counts::default(),
            hears: Hears::default(),
            loads_awaited: AtomicUsize::new(0),
            clock,
            commands,
            waiting: Arc::default(),
            address,
            others: OnceLock::new(),
            node_requests,
            is_closing: AtomicBool::new(false),
        };
        let door = Arc::new(door);
        if door.is_in_cluster() {
            TransactionOwner::watch(&door);
        }
        Ok((door, Waiting { commands: receiver, events: event_receiver, endings, node_work }))
    }

    /// Whether nobody wants anything of it any more: what reads for it ends.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Says where it listens, once that is known: what clients are told to connect to.
    pub fn listens_on(&self, address: SocketAddr) {
        let _ = self.address.set(address);
    }

    /// The host and port that clients are told.
    pub(crate) fn advertised(&self) -> (String, i32) {
        let address = self.address.get();
        let port = address.map_or(9092, |address| i32::from(address.port()));
        if let Some(advertised) = &self.config.advertised {
            return host_and_port(advertised).unwrap_or_else(|| (advertised.clone(), port));
        }
        (address.map_or_else(|| "127.0.0.1".to_owned(), |address| address.ip().to_string()), port)
    }

    /// The node's id.
    pub(crate) fn node_id(&self) -> i32 {
        match self.broker.ownership().node() {
            0 => ALONE_ID,
            number => number as i32,
        }
    }

    /// The nodes that serve Kafka clients, by their ids: with host and port. Those that are lost are among them.
    pub(crate) fn brokers(&self) -> Vec<(i32, String, i32)> {
        let me = self.node_id();
        let (host, port) = self.advertised();
        let others = self.broker.ownership().nodes().into_iter().filter(|node| node.node as i32 != me);
        let mut brokers: Vec<_> = others
            .filter_map(|node| {
                let (host, port) = host_and_port(&node.kafka_address)?;
                Some((node.node as i32, host, port))
            })
            .collect();
        brokers.push((me, host, port));
        brokers.sort_unstable();
        brokers
    }

    /// Which nodes take part now, as far as this one has heard.
    pub(crate) fn live(&self) -> Live {
        Live { me: self.node_id(), nodes: self.coordinator.live_nodes() }
    }

    /// The node that clients are told is the controller: the coordinator that leads, if it serves them, as they look for its address among
    /// the brokers' and wait until there is one. This node otherwise: it takes commands as any other.
    pub(crate) fn controller_id(&self, brokers: &[(i32, String, i32)]) -> i32 {
        let leader = self.others.get().and_then(|known| known.leading_coordinator()).map(|node| node as i32);
        leader.filter(|leader| brokers.iter().any(|(id, ..)| id == leader)).unwrap_or_else(|| self.node_id())
    }

    /// The coordinators; of a node that is alone, itself.
    pub(crate) fn coordinators(&self) -> Coordinators {
        let me = self.node_id().cast_unsigned();
        let alone = || Coordinators { leader: Some(me), voters: vec![me], ..Coordinators::default() };
        self.others.get().map_or_else(alone, |known| known.coordinators())
    }

    /// Who leads a partition, and in which epoch: its streamlet's owner, unless that is [lost](Live::leader); -1 if there is none, or it is not known yet. A node that has not heard from the coordinators
    /// for so long that it does not serve its partitions does not name itself: others know better.
    pub(crate) fn leader_of(&self, info: &StreamInfo, partition: i32) -> (i32, i32) {
        let streamlet = streamlet_of(partition.cast_unsigned(), &info.options);
        match self.broker.ownership().owner(info.id, streamlet) {
            // A node of a cluster is told a moment later whose it is what the catalog has.
            None if self.is_in_cluster() => (-1, epochs::UNKNOWN),
            None => (self.node_id(), self.broker.log().epoch().cast_signed()),
            Some(owner) if owner.node == 0 => (-1, epochs::UNKNOWN),
            Some(owner) if owner.node as i32 == self.node_id() && !self.broker.is_confirmed() => (-1, epochs::UNKNOWN),
            Some(owner) => (owner.node as i32, owner.epoch.cast_signed()),
        }
    }

    /// What is told of a partition whose lane is not here, by what the catalog has of its topic behind that.
    ///
    /// The catalog has what is made at once, the log is told of it a moment later, and so is whose it is: until then the partition is there, and not led here. Clients look again for
    /// who leads it. Of one that is said not to be there they may give up what they have for it, or the whole request. So that is not said either by a node that has not heard from the
    /// coordinators for so long that it does not serve its partitions: it may have been made since.
    pub(crate) fn not_here(&self, info: Option<&StreamInfo>, partition: i32) -> ResponseError {
        match info {
            Some(info) if has(&info.options, partition) => ResponseError::NotLeaderOrFollower,
            _ if !self.broker.is_confirmed() => ResponseError::NotLeaderOrFollower,
            _ => ResponseError::UnknownTopicOrPartition,
        }
    }

    /// Says whom to ask about other nodes, once the node is part of a cluster.
    pub fn set_others(&self, others: Arc<dyn OtherNodes>) {
        let _ = self.others.set(others);
    }

    /// Whom to ask about other nodes.
    pub(crate) fn others(&self) -> Option<Arc<dyn OtherNodes>> {
        self.others.get().cloned()
    }

    /// The nodes that are to have the records of a leader's partitions with so many copies, and those that have them.
    pub(crate) fn copies_of(&self, leader: i32, copies: u32) -> (Vec<BrokerId>, Vec<BrokerId>) {
        let ids = |nodes: Vec<u32>| nodes.into_iter().map(|node| BrokerId(node as i32)).collect();
        match (u32::try_from(leader), self.others.get()) {
            (Err(_), _) => (Vec::new(), Vec::new()),
            (Ok(leader), Some(known)) if copies > 1 => {
                let (wanted, has) = known.copies_of(leader, copies);
                (ids(wanted), ids(has))
            }
            (Ok(leader), _) => (ids(vec![leader]), ids(vec![leader])),
        }
    }

    /// Whether it is one of a cluster.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.broker.ownership().node() != 0
    }

    /// Runs a command on the thread for it, for which a request of so many bytes asks. False: the node stops.
    ///
    /// # Errors
    /// Too many wait.
    pub(crate) fn command(&self, reply: &Reply, command: Command, bytes: usize) -> Result<bool, Malformed> {
        let (bytes, limit) = (WAITING_BYTES + bytes, WAITING_BYTES_MAX);
        let waits = Waits { all: Arc::clone(&self.waiting), bytes };
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if waiting > limit {
            return Err(Malformed::Crowded { waiting, limit });
        }
        let command: Command = Box::new(move |door: &Door| {
            let _waits = waits;
            command(door)
        });
        Ok(self.commands.send((command, Arc::clone(reply))).is_ok())
    }

    /// The cluster's id: the node's, in hexadecimal.
    pub(crate) fn cluster_id(&self) -> String {
        self.config.node.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A topic's id.
    pub(crate) fn topic_id(&self, stream: StreamId) -> Uuid {
        self.catalog.topic_id(stream)
    }

    /// The stream behind a topic's name, unless it is the system's.
    pub(crate) fn info(&self, name: &str) -> Option<StreamInfo> {
        self.catalog.info(name)
    }

    /// The stream behind a topic's id, unless it is the system's.
    pub(crate) fn info_of(&self, id: Uuid) -> Option<StreamInfo> {
        self.catalog.info_of(id)
    }

    /// The lanes of a topic.
    pub(crate) fn topic(&self, info: &StreamInfo) -> Option<Arc<Topic>> {
        topic_of(&self.broker, info).map(Arc::new)
    }
}

impl Catalog {
    /// A topic's id: half of it is the node's, half the stream's, so it is stable and no other topic ever has it.
    pub(crate) fn topic_id(&self, stream: StreamId) -> Uuid {
        let node = u128::from_be_bytes(self.node) >> 64 << 64;
        Uuid::from_u128(node | u128::from(stream.0))
    }

    /// The stream behind a topic's id.
    pub(crate) fn stream_of(&self, id: Uuid) -> Option<StreamId> {
        let stream = StreamId(id.as_u128() as u64);
        (self.topic_id(stream) == id).then_some(stream)
    }

    /// The stream behind a topic's name, unless it is the system's.
    pub(crate) fn info(&self, name: &str) -> Option<StreamInfo> {
        if !may_be_topic(name) {
            return None;
        }
        self.coordinator.stream(&StreamRef::Name(name.to_owned())).ok()
    }

    /// The stream of a cluster's groups, once there is one.
    pub(crate) fn info_of_groups(&self) -> Option<StreamInfo> {
        self.coordinator.stream(&StreamRef::Name(group_parts::STREAM.to_owned())).ok()
    }

    /// The stream of a cluster's transactions, once there is one.
    pub(crate) fn info_of_transactions(&self) -> Option<StreamInfo> {
        self.coordinator.stream(&StreamRef::Name(transaction_parts::STREAM.to_owned())).ok()
    }

    /// The stream behind a topic's id, unless it is the system's.
    pub(crate) fn info_of(&self, id: Uuid) -> Option<StreamInfo> {
        let info = self.coordinator.stream(&StreamRef::Id(self.stream_of(id)?)).ok()?;
        (!info.name.starts_with(SYSTEM_PREFIX)).then_some(info)
    }

    /// All topics.
    pub(crate) fn infos(&self) -> Vec<StreamInfo> {
        let mut infos = self.coordinator.streams();
        infos.retain(|info| !info.name.starts_with(SYSTEM_PREFIX));
        infos
    }
}

/// Whether a topic may have this name: those of the system are no topics.
pub(crate) fn may_be_topic(name: &str) -> bool {
    name_is_valid(name) && !name.starts_with(SYSTEM_PREFIX)
}

/// The thread for commands: one that waits for a leader of the coordinators holds up those behind it, and nothing else. What a node wants of the coordinators
/// without a command is asked for on [another thread](transaction_door::follow). Commands of connections
/// that have ended meanwhile are left out: nobody has been told of them, and clients that come again ask anew.
fn work(door: &Weak<Door>, receiver: &Receiver<(Command, Reply)>) {
    let mut gone = GoneTopics::default();
    loop {
        let received = receiver.recv_timeout(TICK);
        let Some(door) = door.upgrade() else { return };
        match received {
            Ok((command, reply)) if ReplySlot::is_awaited(&reply) => {
                let (body, after) = command(&door);
                reply.put_after(body, after);
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        door.floors.tick();
        gone.look(&door);
    }
}

/// Host and port of an address as it is written in a configuration, as clients are told of them: there an IPv6 address has no brackets.
fn host_and_port(address: &str) -> Option<(String, i32)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some((bare.unwrap_or(host).to_owned(), port.parse::<u16>().ok()?.into()))
}

/// Makes the sessions of a door.
pub struct KafkaSessions(pub Arc<Door>);

impl SessionFactory for KafkaSessions {
    fn open(&self, peer: Peer, waker: SessionWaker) -> Box<dyn Session> {
        Box::new(KafkaSession::new(Arc::clone(&self.0), peer, waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_of_hosts_as_they_are_written_and_without_brackets() {
        let told = |address: &str| host_and_port(address);
        assert_eq!(told("node-1:9092"), Some(("node-1".into(), 9092)));
        assert_eq!(told("[::1]:19092"), Some(("::1".into(), 19092)));
        assert_eq!([told(""), told("node-1"), told("node-1:x")], [None, None, None]);
    }
}
