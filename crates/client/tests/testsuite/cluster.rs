//! Several real brokers in one process, on loopback, and a table of owners that the test changes: what clients see of moves, of
//! cut connections and of nodes that do not know better.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use kera_broker::{Broker, BrokerConfig, BrokerSession, applications_stream_options};
use kera_client::{Client, ClientError, Consumer, Record, Start, Status};
use kera_env::SystemClock;
use kera_format::{Durability, LaneId, ProducerEpoch, ProducerId, StreamId, StreamOptions, StreamletId};
use kera_log::{Arena, ArenaConfig, Log, LogConfig};
use kera_protocol::{
    AllocatedProducer, ErrorBody, FetchOffsets, FrameHeader, JoinApplication, LeaveApplication, NodeInfo, OlderGroups,
    Op, Owner, Owners, Role, StreamInfo, StreamletState,
};
use kera_rpc::{
    ClientConfig, Connection, Flow, Outbox, Peer, RunningServer, Server, ServerConfig, Session, SessionWaker,
};
use parking_lot::Mutex;
use rand::Rng;

use crate::door::Door;
use crate::fake::hello;
use crate::steady::Port;

const STREAM: StreamId = StreamId(17);
const SYSTEM: StreamId = StreamId(1);
const CLUSTER: [u8; 16] = *b"cluster-16-bytes";

struct Node {
    broker: Arc<Broker>,
    address: SocketAddr,
    server: Option<RunningServer>,
    /// Its own also while it is not served.
    _port: Port,
    _dir: tempfile::TempDir,
}

/// What the coordinator would know.
struct Table {
    owners: Vec<Owner>,
    version: u64,
    epoch: u32,
}

struct Cluster {
    nodes: Mutex<Vec<Node>>,
    brokers: Vec<Arc<Broker>>,
    table: Mutex<Table>,
    info: StreamInfo,
    producers: Arc<AtomicU64>,
    /// No node says who owns what to whoever asks for it.
    secretive: Arc<AtomicBool>,
    /// The node that greets and does not say what streams are; 0: all do.
    mute: Arc<AtomicU32>,
    /// How often nodes were asked who owns what.
    asked: Arc<AtomicU64>,
    /// Connections that nodes have taken.
    opened: Arc<AtomicU64>,
    /// What happens before the next request of a kind comes to a node.
    before: Arc<Mutex<Option<Before>>>,
}

/// At which node, before which request, what.
type Before = (u32, Op, Box<dyn FnOnce() + Send>);

/// A node's session: its broker's, and as much of a coordinator as clients need.
struct NodeSession {
    broker: BrokerSession,
    node: Arc<Broker>,
    info: StreamInfo,
    producers: Arc<AtomicU64>,
    secretive: Arc<AtomicBool>,
    /// It does not say what streams are.
    is_mute: Box<dyn Fn() -> bool + Send>,
    asked: Arc<AtomicU64>,
    before: Box<dyn Fn(Op) + Send>,
}

impl Session for NodeSession {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        Op::from_u16(header.op).into_iter().for_each(|op| (self.before)(op));
        self.asked.fetch_add(u64::from(header.op == Op::FindOwners as u16), Ordering::SeqCst);
        match Op::from_u16(header.op) {
            Some(Op::GetStream) if (self.is_mute)() => {}
            Some(Op::GetStream) => {
                let mut info = self.info.clone();
                info.options.streamlets = self.node.log().stream(STREAM).unwrap().streamlet_count();
                out.respond(header, &info);
            }
            Some(Op::AllocateProducer) => {
                let producer_id = ProducerId(self.producers.fetch_add(1, Ordering::SeqCst));
                out.respond(header, &AllocatedProducer { producer_id, producer_epoch: ProducerEpoch(0) });
            }
            Some(Op::FindOwners) if self.secretive.load(Ordering::SeqCst) => {
                out.error(header, Status::NotReady, &ErrorBody::new("not told"));
            }
            Some(op) if BrokerSession::serves(op) => return self.broker.handle(op, header, body, out),
            _ => out.error(header, Status::NotSupported, &ErrorBody::new("not in this test")),
        }
        Flow::Done
    }
    fn on_wake(&mut self, out: &mut Outbox) {
        self.broker.on_wake(out);
    }
    fn on_drained(&mut self, out: &mut Outbox) {
        self.broker.on_drained(out);
    }
    fn deadline_us(&self) -> Option<u64> {
        self.broker.deadline_us()
    }
    fn on_deadline(&mut self, _: u64, out: &mut Outbox) {
        self.broker.on_deadline(out);
    }
    fn is_busy(&self) -> bool {
        self.broker.is_busy()
    }
    fn on_stop(&mut self, out: &mut Outbox) {
        self.broker.on_stop(out);
    }
    fn on_close(&mut self) {
        self.broker.on_close();
    }
}

impl Cluster {
    /// So many nodes; streamlets are dealt out in turn.
    fn start(nodes: u32, streamlets: u32, lanes: u32) -> Arc<Cluster> {
        Cluster::start_with(nodes, streamlets, lanes, |_| BrokerConfig::default())
    }

    /// The same with limits for each node.
    fn start_with(nodes: u32, streamlets: u32, lanes: u32, config: impl Fn(u32) -> BrokerConfig) -> Arc<Cluster> {
        let segment_bytes_max = 64 << 10;
        let options =
            StreamOptions { streamlets, lanes, segments_per_group: 2, segment_bytes_max, ..StreamOptions::default() };
        let info = StreamInfo { id: STREAM, name: "moving".into(), created_ms: 1, options: options.clone() };
        let owners: Vec<Owner> =
            (0..streamlets).map(|at| Owner { node: at % nodes + 1, epoch: 1, older: Vec::new() }).collect();
        let (mut all, mut brokers) = (Vec::new(), Vec::new());
        for number in 1..=nodes {
            let dir = tempfile::tempdir().unwrap();
            let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 64 << 20, node: [number as u8; 16] };
            let (arena, _) = Arena::create_or_attach(arena).unwrap();
            let log = Log::new(LogConfig::default(), arena);
            let broker = Broker::new(config(number), log, Arc::new(SystemClock::new()));
            broker.stream_created(STREAM, options.clone()).unwrap();
            let system = StreamOptions { durability: Durability::Process, ..applications_stream_options() };
            broker.stream_created(SYSTEM, system).unwrap();
            broker.open_applications(SYSTEM).unwrap();
            broker.join_cluster(CLUSTER, number);
            broker.place_stream(1, STREAM, owners.clone()).unwrap();
            for streamlet in (0..streamlets).filter(|at| at % nodes + 1 == number) {
                broker.open_streamlet(STREAM, StreamletId(streamlet), 1, None).unwrap();
            }
            brokers.push(Arc::clone(&broker));
            let port = Port::reserve();
            all.push(Node { broker, address: port.address, server: None, _port: port, _dir: dir });
        }
        let table = Table { owners, version: 1, epoch: 1 };
        let cluster = Cluster {
            nodes: Mutex::new(all),
            brokers,
            table: Mutex::new(table),
            info,
            producers: Arc::new(AtomicU64::new(1)),
            secretive: Arc::default(),
            mute: Arc::default(),
            asked: Arc::default(),
            opened: Arc::default(),
            before: Arc::default(),
        };
        (0..nodes as usize).for_each(|at| cluster.serve(at));
        let infos: Vec<NodeInfo> = (1..).zip(cluster.nodes.lock().iter()).map(|(n, node)| node_info(n, node)).collect();
        for broker in &cluster.brokers {
            broker.set_nodes(1, infos.clone());
        }
        Arc::new(cluster)
    }

    /// Serves a node; if it was served, its connections break first.
    fn serve(&self, at: usize) {
        let node = &mut self.nodes.lock()[at];
        node.server = None;
        let config = ServerConfig::new(node.address, hello(at), Arc::new(SystemClock::new()));
        let (broker, info, producers) = (Arc::clone(&node.broker), self.info.clone(), Arc::clone(&self.producers));
        let (secretive, asked) = (Arc::clone(&self.secretive), Arc::clone(&self.asked));
        let (mute, number) = (Arc::clone(&self.mute), at as u32 + 1);
        let (opened, what_comes_before) = (Arc::clone(&self.opened), Arc::clone(&self.before));
        let factory = Arc::new(move |peer: Peer, waker: SessionWaker| {
            opened.fetch_add(1, Ordering::SeqCst);
            let (node, broker) = (Arc::clone(&broker), broker.session(peer.address, waker));
            let (producers, secretive, asked) = (Arc::clone(&producers), Arc::clone(&secretive), Arc::clone(&asked));
            let (info, mute) = (info.clone(), Arc::clone(&mute));
            let is_mute = Box::new(move || mute.load(Ordering::SeqCst) == number);
            let due = Arc::clone(&what_comes_before);
            let before = Box::new(move |op: Op| {
                let due = due.lock().take_if(|(node, which, _)| (*node, *which) == (number, op));
                due.into_iter().for_each(|(.., happens)| happens());
            });
            Box::new(NodeSession { broker, node, info, producers, secretive, is_mute, asked, before })
                as Box<dyn Session>
        });
        let server = Server::start(config, factory).unwrap();
        (node.address, node.server) = (server.local_addr(), Some(server));
    }

    /// Stops serving a node: its connections break, and there are no new ones.
    fn stop(&self, at: usize) {
        self.nodes.lock()[at].server = None;
    }

    /// A door before each node, by which clients reach it from here on.
    fn behind_doors(&self) -> Vec<Door> {
        self.behind(Door::before)
    }

    /// The same with doors of another kind.
    fn behind(&self, door: impl Fn(SocketAddr) -> Door) -> Vec<Door> {
        let doors: Vec<Door> = self.nodes.lock().iter().map(|node| door(node.address)).collect();
        let nodes = self.nodes.lock();
        let infos: Vec<NodeInfo> = (1..)
            .zip(nodes.iter())
            .zip(&doors)
            .map(|((number, node), door)| NodeInfo { address: door.address.to_string(), ..node_info(number, node) })
            .collect();
        drop(nodes);
        for broker in &self.brokers {
            broker.set_nodes(1, infos.clone());
        }
        doors
    }

    /// A node is lost, and all that it owned is another's, as after a recovery of groups that everybody had read: the others hear of it,
    /// the lost one does not.
    fn lose(&self, lost: u32, to: u32) {
        let mut table = self.table.lock();
        for streamlet in 0..table.owners.len() {
            let at = StreamletId(streamlet as u32);
            if table.owners[streamlet].node != lost {
                continue;
            }
            let old = &self.brokers[lost as usize - 1];
            old.let_go(STREAM, at).unwrap();
            let state = loop {
                match old.handed_over(STREAM, at).unwrap() {
                    Some(state) => break state,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            (table.version, table.epoch) = (table.version + 1, table.epoch + 1);
            let next = Owner { node: to, epoch: table.epoch, older: Vec::new() };
            table.owners[streamlet] = next.clone();
            for (_, broker) in (1..).zip(&self.brokers).filter(|(number, _)| *number != lost) {
                broker.set_owner(table.version, STREAM, at, next.clone()).unwrap();
            }
            self.brokers[to as usize - 1].open_streamlet(STREAM, at, table.epoch, Some(&state)).unwrap();
        }
    }

    /// The stream gets more streamlets, dealt out in turn like those before. Nodes [hear](Cluster::hear_of_growth) of it one by one.
    fn grow(&self, streamlets: u32) {
        let mut table = self.table.lock();
        let (first, nodes) = (table.owners.len() as u32, self.brokers.len() as u32);
        let owner = |at: u32| Owner { node: at % nodes + 1, epoch: 1, older: Vec::new() };
        table.owners.extend((first..streamlets).map(owner));
        table.version += 1;
    }

    fn hear_of_growth(&self, node: u32) {
        let (table, broker) = (self.table.lock(), &self.brokers[node as usize - 1]);
        let first = broker.log().stream(STREAM).unwrap().streamlet_count();
        let streamlets = table.owners.len() as u32;
        broker.stream_altered(STREAM, StreamOptions { streamlets, ..self.info.options.clone() }).unwrap();
        broker.place_stream(table.version, STREAM, table.owners.clone()).unwrap();
        for at in (first..streamlets).filter(|at| table.owners[*at as usize].node == node) {
            broker.open_streamlet(STREAM, StreamletId(at), 1, None).unwrap();
        }
    }

    fn address(&self, at: usize) -> String {
        self.nodes.lock()[at].address.to_string()
    }

    /// Moves a streamlet as the coordinator and two nodes do, with a pause where clients notice it.
    fn move_to(&self, streamlet: u32, to: u32, pause: Duration) {
        let at = StreamletId(streamlet);
        let mut table = self.table.lock();
        let owner = table.owners[streamlet as usize].clone();
        if owner.node == to {
            return;
        }
        let (old, new) = (&self.brokers[owner.node as usize - 1], &self.brokers[to as usize - 1]);
        old.let_go(STREAM, at).unwrap();
        std::thread::sleep(pause);
        let state = loop {
            match old.handed_over(STREAM, at).unwrap() {
                Some(state) => break state,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        (table.version, table.epoch) = (table.version + 1, table.epoch + 1);
        let mut older = owner.older;
        older.push(OlderGroups { first_epoch: owner.epoch, node: owner.node });
        let next = Owner { node: to, epoch: table.epoch, older };
        table.owners[streamlet as usize] = next.clone();
        // Nodes hear of it one after the other.
        for broker in &self.brokers {
            broker.set_owner(table.version, STREAM, at, next.clone()).unwrap();
        }
        new.open_streamlet(STREAM, at, table.epoch, Some(&state)).unwrap();
    }
}

/// A node of no cluster, which knows no stream.
struct Stranger;

impl Session for Stranger {
    fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
        match Op::from_u16(header.op) {
            Some(Op::FindOwners) => {
                let (nodes, streams) = (Vec::new(), Vec::new());
                out.respond(header, &Owners { cluster: [0; 16], version: 0, node: 0, nodes, streams, more: false });
            }
            _ => out.error(header, Status::UnknownStream, &ErrorBody::new("there is no stream")),
        }
        Flow::Done
    }
    fn on_wake(&mut self, _: &mut Outbox) {}
}

fn node_info(node: u32, of: &Node) -> NodeInfo {
    NodeInfo {
        node,
        node_epoch: 1,
        address: of.address.to_string(),
        kafka_address: String::new(),
        http_address: String::new(),
        rack: String::new(),
        roles: vec![Role::Broker],
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(600), test).await.expect("the test hangs")
    });
}

/// A client that tries again what fails while nodes are away, for longer than a machine stands still.
async fn patient(addresses: String) -> Client {
    Client::builder(addresses).retry_timeout(Duration::from_secs(300)).connect().await.unwrap()
}

/// Reads until so many records were there, and checks what every lane and every producer promises.
async fn read_and_check(mut consumer: Consumer, records: usize) {
    let mut lanes: HashMap<(StreamletId, LaneId), u64> = HashMap::new();
    let mut producers: HashMap<(String, StreamletId), u64> = HashMap::new();
    let mut count = 0;
    while count < records {
        let batch = consumer.next_batch().await.unwrap().expect("it never ends");
        for record in batch.records() {
            let next = lanes.entry((batch.streamlet(), batch.lane())).or_default();
            assert_eq!(record.ordinal, *next, "streamlet {} lane {}", batch.streamlet(), batch.lane());
            *next += 1;
            let value = String::from_utf8(record.view.value().unwrap().to_vec()).unwrap();
            let (producer, number) = value.split_once(' ').unwrap();
            let next = producers.entry((producer.to_owned(), batch.streamlet())).or_default();
            assert_eq!(number.parse::<u64>().unwrap(), *next, "{producer} in streamlet {}", batch.streamlet());
            *next += 1;
            count += 1;
        }
    }
    assert_eq!(count, records);
}

async fn produce(client: Client, name: String, streamlets: u32, records: u64) {
    let mut tries = 0;
    let mut producer = loop {
        // A node may be away just now, and on a slow machine connections may break about as often as they are made.
        let builder = client.producer("moving").chunk_bytes(512).in_flight(4);
        match builder.delivery_timeout(Duration::from_secs(600)).build().await {
            Ok(producer) => break producer,
            Err(error) if error.retryable() && tries < 1_000 => tries += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for number in 0..records {
        for streamlet in 0..streamlets {
            let value = format!("{name} {number}");
            producer.send_to(StreamletId(streamlet), &Record::value(value.as_bytes())).await.unwrap();
        }
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    producer.close().await.unwrap();
}

#[test]
fn nothing_is_lost_doubled_or_reordered_while_streamlets_move_and_connections_break() {
    const STREAMLETS: u32 = 4;
    const RECORDS: u64 = 1_500;
    let cluster = Cluster::start(3, STREAMLETS, 2);
    let done = Arc::new(AtomicBool::new(false));
    let mover = {
        let (cluster, done) = (Arc::clone(&cluster), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut random = rand::rng();
            let mut moves = 0;
            while !done.load(Ordering::SeqCst) || moves < 20 {
                cluster.move_to(
                    random.random_range(0..STREAMLETS),
                    random.random_range(1..=3),
                    Duration::from_millis(random.random_range(0..4)),
                );
                moves += 1;
                if moves % 15 == 0 {
                    cluster.serve(random.random_range(0..3));
                }
                std::thread::sleep(Duration::from_millis(random.random_range(1..12)));
            }
        })
    };
    run(async {
        let mut tasks = Vec::new();
        for reader in 0..2 {
            let client = patient(cluster.address(reader)).await;
            let consumer = client.consumer("moving").long_poll(reader == 1).build().await.unwrap();
            tasks.push(tokio::task::spawn_local(read_and_check(
                consumer,
                (3 * RECORDS * u64::from(STREAMLETS)) as usize,
            )));
        }
        for at in 0..3 {
            let all = format!("{},{}", cluster.address(at), cluster.address((at + 1) % 3));
            let client = patient(all).await;
            tasks.push(tokio::task::spawn_local(produce(client, format!("p{at}"), STREAMLETS, RECORDS)));
        }
        for task in tasks {
            task.await.unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    mover.join().unwrap();
    // Who comes later reads the same through all owners.
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        let consumer = client.consumer("moving").build().await.unwrap();
        read_and_check(consumer, (3 * RECORDS * u64::from(STREAMLETS)) as usize).await;
    });
}

async fn write(client: &Client, from: u64, to: u64) {
    let mut producer = client.producer("moving").chunk_bytes(8 << 10).build().await.unwrap();
    for number in from..to {
        let value = number.to_string();
        producer.deliver(&Record::value(value.as_bytes())).await.unwrap();
    }
}

async fn first_from(client: &Client, from: Start) -> u64 {
    let mut consumer = client.consumer("moving").from(from).build().await.unwrap();
    consumer.next().await.unwrap().unwrap().ordinal
}

#[test]
fn places_are_found_at_whichever_node_has_them() {
    let cluster = Cluster::start(2, 1, 1);
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        // This one is going to be behind by all moves.
        let stale = Client::connect(cluster.address(0)).await.unwrap();
        let mut reader = stale.consumer("moving").build().await.unwrap();
        for turn in 0..4_u64 {
            write(&client, 10 * turn, 10 * turn + 10).await;
            cluster.move_to(0, 2 - (turn % 2) as u32, Duration::ZERO);
        }
        write(&client, 40, 41).await;
        for ordinal in [0, 5, 10, 19, 20, 25, 38, 40] {
            assert_eq!(first_from(&client, Start::Ordinal(ordinal)).await, ordinal);
            assert_eq!(first_from(&stale, Start::Ordinal(ordinal)).await, ordinal, "with owners of long ago");
        }
        assert_eq!(first_from(&stale, Start::Earliest).await, 0);
        assert_eq!(first_from(&stale, Start::TimeMs(0)).await, 0);
        for expected in 0..41 {
            assert_eq!(reader.next().await.unwrap().unwrap().ordinal, expected);
        }
        let consumer = client.consumer("moving").from(Start::Latest).until_end(true).build().await.unwrap();
        assert_eq!(consumer.positions()[0].ordinal, 41);
        let mut all = client.consumer("moving").until_end(true).build().await.unwrap();
        let mut count = 0;
        while let Some(batch) = all.next_batch().await.unwrap() {
            count += batch.len();
        }
        assert_eq!(count, 41);
    });
}

/// Node 3 was thought to have what is with node 1 in truth: as if it had been lost and started again, and had forgotten what others have rebuilt.
#[test]
fn who_has_forgotten_groups_is_not_taken_for_one_that_never_had_any() {
    let cluster = Cluster::start(3, 1, 1);
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        write(&client, 0, 10).await;
        cluster.move_to(0, 2, Duration::ZERO);
        let client = Client::connect(cluster.address(1)).await.unwrap();
        write(&client, 10, 20).await;
        let (is, at) = (cluster.table.lock().owners[0].clone(), StreamletId(0));
        let was = Owner { older: vec![OlderGroups { first_epoch: 1, node: 3 }], ..is.clone() };
        for (turn, from) in (0..).zip([Start::Earliest, Start::Ordinal(0), Start::Ordinal(7), Start::TimeMs(0)]) {
            let number = 10 + 2 * turn;
            cluster.brokers[1].set_owner(number, STREAM, at, was.clone()).unwrap();
            cluster.brokers[2].set_owner(number + 1, STREAM, at, is.clone()).unwrap();
            // Node 2 hears of it as well, a moment later.
            let (broker, is) = (Arc::clone(&cluster.brokers[1]), is.clone());
            let hears = tokio::task::spawn_local(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                broker.set_owner(number + 1, STREAM, at, is).unwrap();
            });
            // It has heard of node 2 only.
            let late = Client::connect(cluster.address(1)).await.unwrap();
            let expected = if from == Start::Ordinal(7) { 7 } else { 0 };
            assert_eq!(first_from(&late, from).await, expected, "{from:?}");
            hears.await.unwrap();
        }
    });
}

/// Reads and writes while a streamlet goes around, and nobody is told who owns what but by the owners before.
async fn follow_what_owners_say(cluster: &Cluster, long_poll: bool) {
    let client = Client::connect(cluster.address(0)).await.unwrap();
    let never = Duration::from_secs(600);
    let mut producer = client
        .producer("moving")
        .chunk_bytes(512)
        .delivery_timeout(never)
        .request_timeout(never)
        .build()
        .await
        .unwrap();
    let mut reader = client.consumer("moving").from(Start::Latest).long_poll(long_poll).build().await.unwrap();
    let start = reader.positions()[0].ordinal;
    cluster.secretive.store(true, Ordering::SeqCst);
    for turn in 0..7_u64 {
        producer.deliver(&Record::value(turn.to_string().as_bytes())).await.unwrap();
        let record = reader.next().await.unwrap().unwrap();
        assert_eq!((record.ordinal, record.view().value()), (start + turn, Some(turn.to_string().as_bytes())));
        let owner = cluster.table.lock().owners[0].node;
        // At the end of what there is, and before anything is written at the next owner.
        let quiet = tokio::time::timeout(Duration::from_millis(5), reader.next()).await;
        assert!(quiet.is_err(), "nothing was written");
        cluster.move_to(0, owner % 3 + 1, Duration::ZERO);
    }
    cluster.secretive.store(false, Ordering::SeqCst);
    producer.close().await.unwrap();
}

#[test]
fn who_is_at_the_end_of_a_lane_goes_where_its_last_owner_says() {
    let cluster = Cluster::start(3, 1, 1);
    run(async {
        follow_what_owners_say(&cluster, false).await;
        follow_what_owners_say(&cluster, true).await;
    });
}

#[test]
fn a_node_that_is_never_the_owner_is_given_up_in_time_and_named() {
    let cluster = Cluster::start(2, 1, 1);
    // The table says that node 1 owns it, and node 1 says that it does not.
    let log = cluster.brokers[0].log();
    log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().leave();
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        let producer = client.producer("moving").chunk_bytes(512).delivery_timeout(Duration::from_millis(400));
        let mut producer = producer.build().await.unwrap();
        let is_named = |reason: &str| reason.contains("NotOwner") && reason.contains("node 1");
        let mut tries = 0;
        loop {
            match producer.deliver(&Record::value(b"0")).await {
                Err(ClientError::DeliveryTimeout { reason, .. }) if is_named(&reason) => break,
                // The machine may have stood still for all of its time, and the node has not been asked.
                Err(ClientError::DeliveryTimeout { .. }) if tries < 20 => tries += 1,
                other => panic!("{other:?}"),
            }
        }
        let lookup = client.consumer("moving").from(Start::Latest).build().await;
        match lookup.err() {
            Some(ClientError::Rpc(error)) => assert_eq!(error.status(), Some(Status::NotOwner)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn one_of_several_addresses_is_enough() {
    let cluster = Cluster::start(2, 2, 1);
    run(async {
        let client = Client::connect(format!("127.0.0.1:1, {}", cluster.address(1))).await.unwrap();
        write(&client, 0, 5).await;
        assert!(matches!(Client::connect(" , ").await, Err(ClientError::Invalid { field: "client.address", .. })));
    });
}

#[test]
fn the_first_connection_to_a_node_is_none_that_was_made_again() {
    let cluster = Cluster::start(2, 2, 1);
    run(async {
        let client = patient(cluster.address(0)).await;
        let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
        for streamlet in [0, 1] {
            producer.send_to(StreamletId(streamlet), &Record::value(b"a record")).await.unwrap();
        }
        producer.flush().await.unwrap();
        assert_eq!(producer.stats().reconnects, 0);
    });
}

async fn expect(reader: &mut Consumer, ordinals: std::ops::Range<u64>) {
    for expected in ordinals {
        let record = reader.next().await.unwrap().unwrap();
        assert_eq!(record.ordinal, expected);
        assert_eq!(record.view().value(), Some(expected.to_string().as_bytes()));
    }
}

/// Writes ten records, loses the first node by `lose` while ten more are on their way to it, and reads all of them.
async fn lose_the_owner(cluster: &Cluster, producing: Client, reading: Client, lose: impl FnOnce()) {
    // Nothing here may be saved by a time that is up: what follows hangs unless it is found out that the node is gone.
    let never = Duration::from_secs(600);
    let producer = producing.producer("moving").chunk_bytes(512).request_timeout(never).delivery_timeout(never);
    let mut producer = producer.build().await.unwrap();
    let mut reader = reading.consumer("moving").build().await.unwrap();
    for number in 0..10 {
        producer.deliver(&Record::value(number.to_string().as_bytes())).await.unwrap();
    }
    expect(&mut reader, 0..10).await;
    lose();
    for number in 10..20 {
        producer.send(&Record::value(number.to_string().as_bytes())).await.unwrap();
    }
    // They are on their way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    cluster.lose(1, 2);
    let written = tokio::task::spawn_local(async move { producer.close().await.unwrap() });
    expect(&mut reader, 10..20).await;
    written.await.unwrap();
}

#[test]
fn an_owner_that_only_seems_to_be_there_is_left_for_the_next_one() {
    let cluster = Cluster::start(3, 1, 1);
    let doors = cluster.behind_doors();
    run(async {
        // Both ask the node that is going to be gone first.
        let all = format!("{},{}", doors[0].address, doors[2].address);
        let (producing, reading) = (Client::connect(&all).await.unwrap(), Client::connect(&all).await.unwrap());
        lose_the_owner(&cluster, producing, reading, || doors[0].frozen.store(true, Ordering::SeqCst)).await;
    });
    doors[0].frozen.store(false, Ordering::SeqCst);
}

#[test]
fn an_owner_that_cannot_be_reached_is_asked_for_at_other_nodes() {
    let cluster = Cluster::start(3, 1, 1);
    run(async {
        // The only address that they were told goes away; others they have heard of.
        let (producing, reading) = (cluster.address(0), cluster.address(0));
        let (producing, reading) = (patient(producing).await, patient(reading).await);
        let admin = producing.admin();
        lose_the_owner(&cluster, producing, reading, || cluster.stop(0)).await;
        assert_eq!(admin.stream("moving").await.unwrap().id, STREAM);
    });
}

/// Loses the first node, and has whoever waits for its successor ask a hundred times, or more on a slow machine, where nodes take longer to
/// answer. Tries to connect to it get as rare as one a second; were a successor asked for only when one has failed, it would be found that
/// late.
async fn a_successor_is_asked_for(cluster: &Cluster) {
    let lost = cluster.address(0);
    cluster.stop(0);
    // Whoever comes is counted and sent away.
    let (tried, listener) = (Arc::new(AtomicU64::new(0)), TcpListener::bind(lost).unwrap());
    let counted = Arc::clone(&tried);
    std::thread::spawn(move || listener.incoming().for_each(|_| _ = counted.fetch_add(1, Ordering::SeqCst)));
    cluster.asked.store(0, Ordering::SeqCst);
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (asked, tried) = (cluster.asked.load(Ordering::SeqCst), tried.load(Ordering::SeqCst));
        // Who asks goes to each of the three nodes, the lost one too.
        if asked >= 100 && asked > 2 * tried {
            break;
        }
        // From here on those who ask are in no hurry either.
        assert!(asked < 300, "asked {asked} times, tried to connect {tried} times");
    }
    cluster.lose(1, 2);
}

#[test]
fn producers_ask_for_a_successor_more_often_than_they_try_a_lost_node() {
    let cluster = Cluster::start(3, 1, 1);
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
        producer.deliver(&Record::value(b"0")).await.unwrap();
        cluster.stop(0);
        producer.send(&Record::value(b"1")).await.unwrap();
        a_successor_is_asked_for(&cluster).await;
        producer.close().await.unwrap();
    });
}

#[test]
fn consumers_ask_for_a_successor_more_often_than_they_try_a_lost_node() {
    let cluster = Cluster::start(3, 1, 1);
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        write(&client, 0, 1).await;
        let mut reader = client.consumer("moving").build().await.unwrap();
        expect(&mut reader, 0..1).await;
        let reading = tokio::task::spawn_local(async move { expect(&mut reader, 1..2).await });
        a_successor_is_asked_for(&cluster).await;
        write(&client, 1, 2).await;
        reading.await.unwrap();
    });
}

/// A connection to the one is being made for as long as the client has patience, and a request to the other is under way at any time.
#[test]
fn records_for_a_node_that_never_greets_are_given_up_in_their_time_while_another_node_is_busy() {
    let cluster = Cluster::start(2, 2, 1);
    let doors = cluster.behind(|node| Door::slow(node, Duration::from_millis(100)));
    run(async {
        let client = Client::builder(cluster.address(0)).connect_timeout(Duration::from_secs(600));
        let client = client.connect().await.unwrap();
        let given_up = Arc::new(Mutex::new(None));
        let told = Arc::clone(&given_up);
        let mut producer = client
            .producer("moving")
            .chunk_bytes(512)
            .delivery_timeout(Duration::from_secs(2))
            .on_report(move |report| {
                // Of those for the other some are given up as well where the machine stands still for as long.
                if let (StreamletId(1), Err(error)) = (report.streamlet, &report.result) {
                    told.lock().get_or_insert(error.clone());
                }
            })
            .build()
            .await
            .unwrap();
        doors[1].frozen.store(true, Ordering::SeqCst);
        producer.send_to(StreamletId(1), &Record::value(b"for nobody")).await.unwrap();
        let giving_up = async {
            while given_up.lock().is_none() {
                producer.send_to(StreamletId(0), &Record::value(b"for the other")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(300), giving_up).await.expect("its time is up long ago");
        let error = given_up.lock().take().unwrap();
        assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}");
    });
}

#[test]
fn an_address_where_nobody_answers_holds_nobody_up() {
    let cluster = Cluster::start(1, 1, 1);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    run(async {
        let all = format!("{},{}", silent.local_addr().unwrap(), cluster.address(0));
        let client = Client::builder(all).connect_timeout(Duration::from_secs(600)).connect().await.unwrap();
        write(&client, 0, 5).await;
        assert_eq!(first_from(&client, Start::Earliest).await, 0);
    });
}

/// Turned back to the one that it turns from, the client would wait for as long as any call may take, until its time is up.
#[test]
fn who_was_told_one_address_turns_to_a_node_that_it_has_heard_of_when_that_one_says_nothing() {
    let cluster = Cluster::start(2, 2, 1);
    run(async {
        // Where the machine stands still the mute node may be connected to sooner than the other one: it is turned from once more.
        let client = Client::builder(cluster.address(0)).call_timeout(Duration::from_secs(60));
        let client = client.retry_timeout(Duration::from_secs(300)).connect().await.unwrap();
        // It hears of the other node.
        client.consumer("moving").build().await.unwrap();
        cluster.mute.store(1, Ordering::SeqCst);
        assert_eq!(client.admin().stream("moving").await.unwrap().id, STREAM);
        // And goes on there.
        assert_eq!(client.admin().stream(STREAM).await.unwrap().name, "moving");
    });
}

#[test]
fn lanes_that_are_looked_up_at_one_time_share_their_nodes_connections() {
    let cluster = Cluster::start(2, 64, 1);
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        client.consumer("moving").build().await.unwrap();
        let opened = cluster.opened.load(Ordering::SeqCst);
        assert!(opened <= 8, "{opened} connections");
    });
}

/// The numbers that members read, with so many of them, until there are so many.
async fn read_as_members(members: &mut [Consumer], count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        for member in &mut *members {
            // Another one may have all that there is.
            let next = tokio::time::timeout(Duration::from_millis(20), member.next_batch()).await;
            let Ok(batch) = next else { continue };
            let batch = batch.unwrap().expect("it never ends");
            let values = batch.records().map(|record| record.view.value().unwrap().to_vec());
            numbers.extend(values.map(|value| String::from_utf8(value).unwrap().parse::<u64>().unwrap()));
        }
    }
    numbers.sort_unstable();
    numbers
}

async fn write_to_all(client: &Client, numbers: std::ops::Range<u64>) {
    let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
    for number in numbers {
        let value = number.to_string();
        producer.send_to(StreamletId(number as u32 % 4), &Record::value(value.as_bytes())).await.unwrap();
    }
    producer.close().await.unwrap();
}

#[test]
fn members_share_what_several_nodes_own_and_go_on_where_they_have_committed() {
    let cluster = Cluster::start(2, 4, 1);
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        write_to_all(&client, 0..40).await;
        let member = || client.consumer("moving").application("report").build();
        let mut one = [member().await.unwrap()];
        assert_eq!(read_as_members(&mut one, 40).await, (0..40).collect::<Vec<_>>());
        let [one] = one;
        one.close().await.unwrap();
        write_to_all(&client, 40..80).await;
        let mut two = [member().await.unwrap(), member().await.unwrap()];
        assert_eq!(read_as_members(&mut two, 40).await, (40..80).collect::<Vec<_>>());
        // A node that was away is joined again, and nothing is read twice.
        cluster.serve(1);
        write_to_all(&client, 80..120).await;
        assert_eq!(read_as_members(&mut two, 40).await, (80..120).collect::<Vec<_>>());
        for member in two {
            member.close().await.unwrap();
        }
        let offsets = client.admin().offsets(STREAM, "report").await.unwrap().offsets;
        let known: Vec<(u32, u64)> = offsets.iter().map(|offset| (offset.streamlet.0, offset.ordinal)).collect();
        assert_eq!(known, [(0, 30), (1, 30), (2, 30), (3, 30)], "of both owners");
        let mut end = client.consumer("moving").application("report").until_end(true).build().await.unwrap();
        assert!(end.next_batch().await.unwrap().is_none(), "all of it is committed");
    });
}

async fn committed(client: &Client) -> Vec<(u32, u64)> {
    let offsets = client.admin().offsets(STREAM, "report").await.unwrap().offsets;
    offsets.iter().map(|offset| (offset.streamlet.0, offset.ordinal)).collect()
}

#[test]
fn what_members_have_committed_moves_with_the_streamlet() {
    let cluster = Cluster::start(2, 4, 1);
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        let member = || client.consumer("moving").application("report").build();
        let mut two = [member().await.unwrap(), member().await.unwrap()];
        for (round, streamlet, to) in [(0, 2, 2), (1, 0, 2), (2, 2, 1), (3, 1, 1), (4, 3, 1), (5, 1, 2)] {
            let numbers = round * 40..(round + 1) * 40;
            write_to_all(&client, numbers.clone()).await;
            assert_eq!(read_as_members(&mut two, 40).await, numbers.collect::<Vec<_>>(), "round {round}");
            for member in &mut two {
                member.commit().await.unwrap();
            }
            cluster.move_to(streamlet, to, Duration::ZERO);
            assert_eq!(committed(&client).await.iter().map(|(_, ordinal)| ordinal).sum::<u64>(), (round + 1) * 40);
        }
        for member in two {
            member.close().await.unwrap();
        }
        assert_eq!(committed(&client).await, [(0, 60), (1, 60), (2, 60), (3, 60)]);
        let mut end = client.consumer("moving").application("report").until_end(true).build().await.unwrap();
        assert!(end.next_batch().await.unwrap().is_none(), "all of it is committed");
    });
}

#[test]
fn members_read_what_earlier_owners_have_kept() {
    let cluster = Cluster::start(3, 4, 1);
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        // Nobody has read any of it when it moves, from node to node.
        for (round, to) in [(0, 2), (1, 3), (2, 1)] {
            write_to_all(&client, round * 400..(round + 1) * 400).await;
            (0..4).for_each(|streamlet| cluster.move_to(streamlet, to, Duration::ZERO));
        }
        write_to_all(&client, 1_200..1_600).await;
        let mut member = client.consumer("moving").application("report").until_end(true).build().await.unwrap();
        let (mut numbers, mut last): (Vec<u64>, HashMap<StreamletId, u64>) = Default::default();
        while let Some(batch) = member.next_batch().await.unwrap() {
            for record in batch.records() {
                let number = String::from_utf8(record.view.value().unwrap().to_vec()).unwrap().parse().unwrap();
                let before = last.insert(batch.streamlet(), number);
                assert!(before.is_none_or(|before| before < number), "order = lane, over all owners");
                numbers.push(number);
            }
        }
        member.close().await.unwrap();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..1_600), "{} numbers", numbers.len());
        assert_eq!(committed(&client).await, [(0, 400), (1, 400), (2, 400), (3, 400)]);
    });
}

/// Whether the stream has grown is asked by the connection for short calls, and that goes to the node that is gone.
#[test]
fn what_other_nodes_have_is_read_while_nobody_says_whether_the_stream_has_grown() {
    let cluster = Cluster::start(3, 3, 1);
    let doors = cluster.behind_doors();
    run(async {
        // Nothing here may be saved by a time that is up.
        let never = Duration::from_secs(600);
        let reading = Client::builder(doors[0].address.to_string()).call_timeout(never).connect().await.unwrap();
        let mut reader = reading.consumer("moving").refresh(Duration::from_millis(100)).build().await.unwrap();
        let writing = Client::connect(doors[1].address.to_string()).await.unwrap();
        let mut producer = writing.producer("moving").chunk_bytes(512).build().await.unwrap();
        for number in 0..40_u64 {
            if number == 10 {
                doors[0].frozen.store(true, Ordering::SeqCst);
            }
            // What the first node owns is left alone.
            let streamlet = StreamletId(1 + number as u32 % 2);
            producer.send_to(streamlet, &Record::value(number.to_string().as_bytes())).await.unwrap();
            let record = reader.next().await.unwrap().unwrap();
            assert_eq!((record.streamlet, record.view().value()), (streamlet, Some(number.to_string().as_bytes())));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        producer.close().await.unwrap();
    });
    doors[0].frozen.store(false, Ordering::SeqCst);
}

/// Records for it were dropped, who read it ended, and nobody could begin to, while an owner had not heard yet of what it owns.
#[test]
fn streamlets_of_which_their_owner_hears_late_are_written_and_read() {
    for long_poll in [false, true] {
        let cluster = Cluster::start(2, 2, 1);
        run(async {
            let client = Client::connect(cluster.address(0)).await.unwrap();
            let builder = || client.consumer("moving").long_poll(long_poll).refresh(Duration::from_millis(5));
            let early = builder().build().await.unwrap();
            cluster.grow(4);
            cluster.hear_of_growth(1);
            let late = builder();
            let tasks = [
                tokio::task::spawn_local(read_and_check(early, 40)),
                tokio::task::spawn_local(async { read_and_check(late.build().await.unwrap(), 40).await }),
                tokio::task::spawn_local(produce(client.clone(), "p".into(), 4, 10)),
            ];
            // They are all refused meanwhile.
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.hear_of_growth(2);
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}

/// None of the nodes that it is at has anything of what that owner has, and none of them is ever quiet.
#[test]
fn a_member_whose_nodes_are_all_busy_reads_what_an_owner_has_at_which_it_is_not_yet() {
    let cluster = Cluster::start(3, 5, 1);
    cluster.move_to(2, 1, Duration::ZERO);
    let done = Arc::new(AtomicBool::new(false));
    run(async {
        let client = Client::connect(cluster.address(0)).await.unwrap();
        let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
        let is_done = Arc::clone(&done);
        let writing = tokio::task::spawn_local(async move {
            while !is_done.load(Ordering::SeqCst) {
                for streamlet in [0, 1] {
                    producer.send_to(StreamletId(streamlet), &Record::value(b"busy")).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            producer.close().await.unwrap();
        });
        let member = client.consumer("moving").application("report").refresh(Duration::from_millis(100));
        let mut member = member.build().await.unwrap();
        let mut read = async |wanted: u32| {
            while member.next_batch().await.unwrap().expect("it never ends").streamlet() != StreamletId(wanted) {}
        };
        read(0).await;
        read(1).await;
        // The third node has owned nothing until now, and nobody has ever written to this one.
        cluster.move_to(3, 3, Duration::ZERO);
        let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
        producer.send_to(StreamletId(3), &Record::value(b"seldom")).await.unwrap();
        producer.close().await.unwrap();
        read(3).await;
        done.store(true, Ordering::SeqCst);
        writing.await.unwrap();
    });
}

#[test]
fn members_go_on_at_whoever_takes_over_from_a_lost_node() {
    let cluster = Cluster::start(3, 6, 1);
    run(async {
        let addresses = format!("{},{}", cluster.address(1), cluster.address(2));
        let client = patient(addresses).await;
        write_to_all(&client, 0..40).await;
        let member = || client.consumer("moving").application("report").build();
        let mut two = [member().await.unwrap(), member().await.unwrap()];
        assert_eq!(read_as_members(&mut two, 40).await, (0..40).collect::<Vec<_>>());
        for member in &mut two {
            member.commit().await.unwrap();
        }
        cluster.stop(0);
        cluster.lose(1, 2);
        write_to_all(&client, 40..80).await;
        assert_eq!(read_as_members(&mut two, 40).await, (40..80).collect::<Vec<_>>());
        for member in two {
            member.close().await.unwrap();
        }
        assert_eq!(committed(&client).await.iter().map(|(_, ordinal)| ordinal).sum::<u64>(), 80);
    });
}

/// Two nodes that own two streamlets each; the first has room for one application of these.
fn with_a_small_first_owner() -> Arc<Cluster> {
    let small = BrokerConfig { applications_bytes_max: 2 << 8, ..BrokerConfig::default() };
    Cluster::start_with(2, 4, 1, |number| if number == 1 { small.clone() } else { BrokerConfig::default() })
}

impl Cluster {
    /// A connection of its own to a node, for what clients do not ask.
    async fn connection(&self, at: usize) -> Connection {
        Connection::connect(&self.address(at), ClientConfig::default()).await.unwrap()
    }

    /// Whether a node knows an application, which is asked for a streamlet that it owns.
    async fn knows(&self, at: usize, application: &str) -> bool {
        let (application, streamlets) = (application.to_owned(), vec![StreamletId(at as u32)]);
        let asked = FetchOffsets { application, stream: STREAM, streamlets };
        match self.connection(at).await.call(&asked).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.status(), Some(Status::UnknownApplication), "{error}");
                false
            }
        }
    }

    /// Lets a member go on until nodes have taken so many more connections.
    async fn go_on_until_opened(&self, member: &mut Consumer, more: u64) {
        let until = self.opened.load(Ordering::SeqCst) + more;
        while self.opened.load(Ordering::SeqCst) < until {
            let next = tokio::time::timeout(Duration::from_millis(20), member.next_batch()).await;
            assert!(next.is_err(), "there is nothing to read: {next:?}");
        }
    }
}

async fn write_to_second_node(client: &Client, numbers: std::ops::Range<u64>) {
    let mut producer = client.producer("moving").chunk_bytes(512).build().await.unwrap();
    for number in numbers {
        let value = number.to_string();
        producer.send_to(StreamletId(1), &Record::value(value.as_bytes())).await.unwrap();
    }
    producer.close().await.unwrap();
}

/// The other owners made it at the same time, and kept it for good, with what it would have read.
#[test]
fn an_application_for_which_the_first_owner_has_no_room_is_made_nowhere() {
    let cluster = with_a_small_first_owner();
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        write_to_all(&client, 0..8).await;
        let mut one = [client.consumer("moving").application("one").build().await.unwrap()];
        assert_eq!(read_as_members(&mut one, 8).await, (0..8).collect::<Vec<_>>());
        let mut two = client.consumer("moving").application("two").build().await.unwrap();
        let ended = two.next_batch().await.unwrap_err();
        assert_eq!(ended.status(), Some(Status::LimitReached), "{ended}");
        assert!(cluster.knows(1, "one").await && !cluster.knows(1, "two").await);

        for streamlets in [vec![], vec![StreamletId(0), StreamletId(1)]] {
            let refused = client.admin().reset_offsets(STREAM, "two", streamlets, Start::Earliest, false).await;
            let refused = refused.unwrap_err();
            assert!(matches!(refused, ClientError::Rpc(_)), "it is done nowhere: {refused}");
            assert_eq!(refused.status(), Some(Status::LimitReached), "{refused}");
        }
        let without_first = vec![StreamletId(1)];
        let refused = client.admin().reset_offsets(STREAM, "two", without_first, Start::Earliest, false).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("streamlet 0") && refused.contains("set it as well"), "{refused}");
        assert!(!cluster.knows(1, "two").await);
    });
}

/// Only new applications need the first owner's word.
#[test]
fn members_go_on_without_the_first_owner_where_others_know_their_application() {
    let cluster = with_a_small_first_owner();
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        let one = client.consumer("moving").application("one").until_end(true).build().await;
        let mut one = one.unwrap();
        assert!(one.next_batch().await.unwrap().is_none());
        one.close().await.unwrap();
        // As one that the first owner does not know, because it was away.
        let join = JoinApplication {
            application: "report".into(),
            stream: STREAM,
            member_name: String::new(),
            member: 0,
            start: Start::Earliest,
            lease_ms: 0,
            leases: None,
        };
        let connection = cluster.connection(1).await;
        let joined = connection.call(&join).await.unwrap();
        let (application, member) = (joined.application, joined.member);
        connection.call(&LeaveApplication { application, member }).await.unwrap();
        cluster.stop(0);
        write_to_second_node(&client, 0..10).await;
        let its_own = vec![StreamletId(1)];
        client.admin().reset_offsets(STREAM, "report", its_own, Start::Earliest, false).await.unwrap();

        let mut members = [client.consumer("moving").application("report").build().await.unwrap()];
        assert_eq!(read_as_members(&mut members, 10).await, (0..10).collect::<Vec<_>>());
        let mut new = client.consumer("moving").application("new").build().await.unwrap();
        cluster.go_on_until_opened(&mut new, 6).await;
        drop(new);
        assert!(!cluster.knows(1, "new").await, "whether there is room for it has nobody said");

        cluster.serve(0);
        cluster.go_on_until_opened(&mut members[0], 6).await;
        assert!(!cluster.knows(0, "report").await, "there is no room for it");
        write_to_second_node(&client, 10..20).await;
        assert_eq!(read_as_members(&mut members, 10).await, (10..20).collect::<Vec<_>>());
        client.admin().delete_application(STREAM, "one").await.unwrap();
        write_to_all(&client, 20..28).await;
        assert_eq!(read_as_members(&mut members, 8).await, (20..28).collect::<Vec<_>>());
        assert!(cluster.knows(0, "report").await);
    });
}

/// Other nodes have told of it before, and it said that all was deleted that it knew to be its own: the application came back with the streamlet.
/// What the owner of a streamlet that it lets go of hands over, once all of it is durable.
async fn handed_over(broker: &Broker, streamlet: StreamletId) -> StreamletState {
    loop {
        match broker.handed_over(STREAM, streamlet).unwrap() {
            Some(state) => return state,
            None => tokio::task::yield_now().await,
        }
    }
}

#[test]
fn an_application_is_not_deleted_at_an_owner_that_has_not_heard_of_all_that_it_owns() {
    let cluster = Cluster::start(2, 2, 1);
    run(async {
        let moved = StreamletId(1);
        let client = patient(cluster.address(1)).await;
        write_to_second_node(&client, 0..8).await;
        client.admin().reset_offsets(STREAM, "report", vec![], Start::Earliest, false).await.unwrap();
        let (next, old) = (&cluster.brokers[0], &cluster.brokers[1]);
        old.let_go(STREAM, moved).unwrap();
        let state = handed_over(old, moved).await;
        let owner = Owner { node: 1, epoch: 2, older: vec![OlderGroups { first_epoch: 1, node: 2 }] };
        old.set_owner(2, STREAM, moved, owner.clone()).unwrap();
        let hasty =
            Client::builder(cluster.address(1)).retry_timeout(Duration::from_millis(1)).connect().await.unwrap();
        let refused = hasty.admin().delete_application(STREAM, "report").await.unwrap_err();
        assert_eq!(refused.status(), Some(Status::NotReady), "{refused}");
        assert!(refused.to_string().contains("has not heard yet that it owns streamlet 1"), "{refused}");
        assert!(matches!(refused, ClientError::Rpc(_)), "it is done nowhere: {refused}");
        assert!(cluster.knows(0, "report").await);
        next.set_owner(2, STREAM, moved, owner).unwrap();
        next.open_streamlet(STREAM, moved, 2, Some(&state)).unwrap();
        client.admin().delete_application(STREAM, "report").await.unwrap();
        assert!(!cluster.knows(0, "report").await);
    });
}

/// It leaves between the look whether its owner knows all that it owns and the deletion, for a node that has deleted what it had before.
#[test]
fn an_application_is_deleted_also_in_a_streamlet_that_leaves_just_before_it_is_deleted_there() {
    let cluster = Cluster::start(2, 2, 1);
    run(async {
        let moved = StreamletId(1);
        let client = patient(cluster.address(1)).await;
        client.admin().reset_offsets(STREAM, "report", vec![], Start::Earliest, false).await.unwrap();
        let (next, old) = (Arc::clone(&cluster.brokers[0]), Arc::clone(&cluster.brokers[1]));
        let happened = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&happened);
        let moves: Box<dyn FnOnce() + Send> = Box::new(move || {
            old.let_go(STREAM, moved).unwrap();
            let state = loop {
                match old.handed_over(STREAM, moved).unwrap() {
                    Some(state) => break state,
                    None => std::thread::yield_now(),
                }
            };
            let owner = Owner { node: 1, epoch: 2, older: vec![OlderGroups { first_epoch: 1, node: 2 }] };
            for broker in [&old, &next] {
                broker.set_owner(2, STREAM, moved, owner.clone()).unwrap();
            }
            next.open_streamlet(STREAM, moved, 2, Some(&state)).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        });
        *cluster.before.lock() = Some((2, Op::DeleteApplication, moves));
        client.admin().delete_application(STREAM, "report").await.unwrap();
        assert_eq!(happened.load(Ordering::SeqCst), 1);
        assert!(!cluster.knows(0, "report").await, "it came back with the streamlet");
    });
}

/// Others have told of it, and what it had heard of it had given: who read to the end ended in front of what has moved.
#[test]
fn who_reads_to_the_end_waits_for_an_owner_that_has_not_heard_of_all_that_it_owns() {
    let cluster = Cluster::start(3, 4, 1);
    run(async {
        let client = patient(cluster.address(1)).await;
        write_to_all(&client, 0..40).await;
        let mut member = client.consumer("moving").application("report").until_end(true).build().await.unwrap();
        let moved = StreamletId(2);
        let (next, old) = (&cluster.brokers[0], &cluster.brokers[2]);
        old.let_go(STREAM, moved).unwrap();
        let state = handed_over(old, moved).await;
        let owner = Owner { node: 1, epoch: 2, older: vec![OlderGroups { first_epoch: 1, node: 3 }] };
        for broker in &cluster.brokers[1..] {
            broker.set_owner(2, STREAM, moved, owner.clone()).unwrap();
        }
        let read: Arc<Mutex<Vec<u64>>> = Arc::default();
        let numbers = Arc::clone(&read);
        let reading = tokio::task::spawn_local(async move {
            while let Some(batch) = member.next_batch().await.unwrap() {
                let values = batch.records().map(|record| record.view.value().unwrap().to_vec());
                let values = values.map(|value| String::from_utf8(value).unwrap().parse::<u64>().unwrap());
                numbers.lock().extend(values);
            }
            member.close().await.unwrap();
        });
        let mut asked = None;
        // It has all that the others have, and goes on asking what they have heard.
        while asked.is_none_or(|before| cluster.asked.load(Ordering::SeqCst) < before + 12) {
            assert!(!reading.is_finished(), "{} numbers", read.lock().len());
            if asked.is_none() && read.lock().len() == 30 {
                asked = Some(cluster.asked.load(Ordering::SeqCst));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read.lock().len(), 30);
        next.set_owner(2, STREAM, moved, owner).unwrap();
        next.open_streamlet(STREAM, moved, 2, Some(&state)).unwrap();
        reading.await.unwrap();
        let mut numbers = std::mem::take(&mut *read.lock());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    });
}

/// It has lost its data directory, say, and was started without its cluster. Reading ended with that, and what was to be written was refused for good.
#[test]
fn a_node_that_is_of_no_cluster_any_more_is_taken_for_one_that_is_away() {
    let cluster = Cluster::start(2, 1, 1);
    let never = Duration::from_secs(600);
    run(async {
        let client = Client::connect(cluster.address(1)).await.unwrap();
        let mut producer =
            client.producer("moving").delivery_timeout(never).request_timeout(never).build().await.unwrap();
        let mut reader = client.consumer("moving").from(Start::Earliest).build().await.unwrap();
        producer.deliver(&Record::value(b"before")).await.unwrap();
        assert_eq!(reader.next().await.unwrap().unwrap().view().value(), Some(&b"before"[..]));
        let address = cluster.nodes.lock()[0].address;
        cluster.stop(0);
        let came = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&came);
        let factory = Arc::new(move |_: Peer, _: SessionWaker| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::new(Stranger) as Box<dyn Session>
        });
        let stranger =
            Server::start(ServerConfig::new(address, hello(0), Arc::new(SystemClock::new())), factory).unwrap();
        let clients = async {
            let after = Record::value(b"after");
            let (written, read) = tokio::join!(producer.deliver(&after), reader.next());
            assert_eq!(written.unwrap().base_ordinal, Some(1));
            assert_eq!(read.unwrap().unwrap().view().value(), Some(&b"after"[..]));
        };
        let comes_back = async {
            while came.load(Ordering::SeqCst) < 6 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(stranger);
            cluster.serve(0);
        };
        tokio::join!(clients, comes_back);
    });
}

#[test]
fn what_clients_do_can_be_done_on_any_thread() {
    fn can_be_sent<T: Send>(_: &T) {}
    async fn all(client: Client, mut producer: kera_client::Producer, mut consumer: Consumer) {
        let _ = (client.admin().stream("moving").await, producer.flush().await, consumer.next_batch().await.is_ok());
        let _ = client.consumer("moving").build().await.is_ok();
    }
    can_be_sent(&all);
    let _ = |client, producer, consumer| can_be_sent(&all(client, producer, consumer));
}
