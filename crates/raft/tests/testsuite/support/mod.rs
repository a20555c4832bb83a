//! Groups in one process: nodes on disks in memory, over a network that loses, delays, doubles and parts. Faults come from a seed;
//! who is quicker when is up to the machine, so a seed gives the same faults and not the same run.

#![allow(unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_coordinator::catalog::Catalog;
use kera_coordinator::cluster::{Join, NodeState, ToldEnd};
use kera_env::{Disk as _, FaultyDisk, MemoryDisk, SystemClock};
use kera_format::StreamOptions;
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, Roles};
use kera_format::raft::{LogEntry, Payload};
use kera_protocol::{
    Body, CreateStream, ErrorBody, ForwardCommand, ForwardedCommand, JoinCluster, JoinedCluster, Message, Op,
    RaftAppend, Role, Status, StreamInfo,
};
use kera_raft::{Backups, Change, Group, GroupConfig, NOT_SENT, Observer, Pending, Timing, Transport};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

/// Who is gone is noticed soon. A command waits for long, and a thread that writes may stand still for long before its node falls silent: on a busy machine
/// any thread may be held up for seconds, which is not what a test is about.
pub const TIMING: Timing =
    Timing { heartbeat_ms: 30, election_ms: 120, lost_after_ms: 1_500, command_ms: 30_000, stands_still_ms: 10_000 };

/// Longer than any command waits.
const SILENCE: Duration = Duration::from_secs(600);

/// How often it is looked for what is waited for, and how long until it is looked for again.
const LOOKS: u32 = 6_000;
const LOOK: Duration = Duration::from_millis(20);

/// Whether a message, with its version, is the last that a leader has to do with.
pub type IsLast = fn(Op, u8, &[u8]) -> bool;

/// What the network does to messages.
pub struct Faults {
    pub rng: StdRng,
    /// Of a hundred messages so many are lost, doubled, or lose their answer.
    pub lose: u32,
    pub double: u32,
    pub delay_ms_max: u64,
    /// Pairs that do not reach each other.
    pub parted: BTreeSet<(u64, u64)>,
    /// What is sent to who is not reached stands for long, as by a connection that nobody has closed.
    pub silent: bool,
    /// What each KiB of a message takes on the way, in microseconds.
    pub us_per_kib: u64,
    /// The leader is cut off behind the first message like this: it has come, and its answer does not.
    pub last: Option<IsLast>,
    /// Who sends the first message like this is cut off in front of it: it comes to nobody.
    pub lost: Option<IsLast>,
}

/// Whether a message has an entry like this.
fn has_entry(op: Op, version: u8, body: &[u8], is_it: fn(&ClusterEntry) -> bool) -> bool {
    let has_it = |entry: &LogEntry| match &entry.payload {
        Payload::Entries(entries) => entries.iter().any(is_it),
        Payload::Blank => false,
    };
    let entries = |message: RaftAppend| message.entries.into_iter().map(|bytes| LogEntry::parse(&bytes).expect("one"));
    op == Op::RaftAppend && entries(RaftAppend::decode(version, body).expect("one")).any(|entry| has_it(&entry))
}

/// Whether a message has the first half of a change of who votes: two lists that both count.
pub fn has_half_of_votes(op: Op, version: u8, body: &[u8]) -> bool {
    has_entry(op, version, body, |entry| matches!(entry, ClusterEntry::Membership { voters, .. } if voters.len() > 1))
}

/// Whether a message has a fourth node in the group.
pub fn has_fourth_node(op: Op, version: u8, body: &[u8]) -> bool {
    has_entry(op, version, body, |entry| matches!(entry, ClusterEntry::Membership { nodes, .. } if nodes.len() > 3))
}

/// Whether a message has a leader change something, and not only tell how it is.
pub fn is_change(op: Op, version: u8, body: &[u8]) -> bool {
    let asked = |command: ForwardCommand| command.op != Op::DescribeMoves as u16;
    op == Op::ForwardCommand && asked(ForwardCommand::decode(version, body).expect("a command"))
}

pub struct Net {
    pub faults: Mutex<Faults>,
    groups: Mutex<BTreeMap<u64, Arc<Group>>>,
    /// Nodes of an earlier version: they speak the first version of everything, and the first level.
    pub old: Mutex<BTreeSet<u64>>,
    /// Which machine has a number.
    uuids: Mutex<BTreeMap<u64, [u8; 16]>>,
}

impl Net {
    fn is_old(&self, node: u64) -> bool {
        self.old.lock().contains(&node)
    }

    /// What a node of an earlier version says to a command that it does not speak.
    fn unknown_there(&self, to: u64, op: Op, body: &[u8]) -> Option<Vec<u8>> {
        let command = Some(body).filter(|_| self.is_old(to) && op == Op::ForwardCommand);
        let command = ForwardCommand::decode(1, command?).expect("a command");
        let (mut body, mut answer) = (Vec::new(), Vec::new());
        ErrorBody::new("the version is not spoken").encode(&mut body);
        let status = Status::UnsupportedVersion as u16;
        ForwardedCommand { status, body, index: 0 }.encode(1, &mut answer);
        (command.version > 1).then_some(answer)
    }

    fn roll(&self, percent: u32) -> bool {
        percent > 0 && self.faults.lock().rng.random_range(0..100) < percent
    }

    /// Whether who sends does not know the machine that has a number for the node of that number: nothing is sent to that one.
    fn is_another(&self, from: u64, to: u64, op: Op) -> bool {
        let sender = self.groups.lock().get(&from).cloned();
        let uuid = self.uuids.lock().get(&to).copied();
        sender.zip(uuid).is_some_and(|(group, uuid)| group.check_is(to as NodeNumber, op, uuid).is_err())
    }

    fn is_parted(&self, from: u64, to: u64) -> bool {
        let parted = &self.faults.lock().parted;
        parted.contains(&(from, to)) || parted.contains(&(to, from))
    }

    /// Cuts a node off if this is the message behind which it is, or in front of which.
    fn cut_leader(&self, leader: u64, is_behind: bool, op: Op, version: u8, body: &[u8]) {
        let others: Vec<u64> = self.groups.lock().keys().copied().filter(|node| *node != leader).collect();
        let faults = &mut *self.faults.lock();
        let awaited = if is_behind { &mut faults.last } else { &mut faults.lost };
        if awaited.is_some_and(|is_it| is_it(op, version, body)) {
            *awaited = None;
            faults.parted.extend(others.into_iter().map(|other| (leader, other)));
        }
    }

    async fn delay(&self) {
        let ms = {
            let mut faults = self.faults.lock();
            let most = faults.delay_ms_max;
            if most == 0 { 0 } else { faults.rng.random_range(0..=most) }
        };
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

struct Wire {
    net: Arc<Net>,
    from: u64,
}

impl Transport for Wire {
    fn call(&self, to: u64, _address: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
        self.send(to, op, 1, body)
    }

    fn call_versions(&self, to: u64, _address: &str, op: Op, mut bodies: Vec<Vec<u8>>) -> Pending<(u8, Vec<u8>)> {
        let both = bodies.len().min(if self.net.is_old(self.from) || self.net.is_old(to) { 1 } else { bodies.len() });
        let answer = self.send(to, op, both as u8, bodies.swap_remove(both - 1));
        Box::pin(async move { Ok((both as u8, answer.await?)) })
    }
}

impl Wire {
    fn send(&self, to: u64, op: Op, version: u8, body: Vec<u8>) -> Pending<Vec<u8>> {
        let (net, from) = (self.net.clone(), self.from);
        Box::pin(async move {
            let (lose, us_per_kib) = {
                let faults = net.faults.lock();
                (faults.lose, faults.us_per_kib)
            };
            net.delay().await;
            tokio::time::sleep(Duration::from_micros(us_per_kib * (body.len() as u64 >> 10))).await;
            net.cut_leader(from, false, op, version, &body);
            let reached = net.groups.lock().get(&to).cloned();
            let is_reached =
                |_: &Arc<Group>| !net.is_parted(from, to) && !net.is_another(from, to, op) && !net.roll(lose);
            let Some(group) = reached.filter(is_reached) else {
                let silent = net.faults.lock().silent;
                let is_unsent = op == Op::ForwardCommand && !silent && net.is_parted(from, to);
                tokio::time::sleep(if silent { SILENCE } else { Duration::from_millis(20) }).await;
                return Err(if is_unsent { format!("{NOT_SENT}nobody is reached") } else { "lost".into() });
            };
            if let Some(answer) = net.unknown_there(to, op, &body) {
                return Ok(answer);
            }
            let double = net.faults.lock().double;
            if net.roll(double) {
                let (net, group, body) = (net.clone(), group.clone(), body.clone());
                tokio::spawn(async move {
                    // Late: other messages overtake it.
                    net.delay().await;
                    net.delay().await;
                    let _ = group.handle(op, version, &body).await;
                });
            }
            let answer = group.handle(op, version, &body).await.map_err(|(status, _)| status.name().to_owned());
            net.cut_leader(if op == Op::ForwardCommand { to } else { from }, true, op, version, &body);
            net.delay().await;
            if net.is_parted(from, to) || net.roll(lose) { Err("the answer is lost".into()) } else { answer }
        })
    }
}

/// What each node's observers were told, by the index of the entry.
#[derive(Default)]
pub struct Told(pub Mutex<BTreeMap<u64, Vec<String>>>);

impl Observer for Told {
    fn changed(&self, index: u64, change: &Change) {
        if !matches!(change, Change::Replaced) {
            self.0.lock().entry(index).or_default().push(format!("{change:?}"));
        }
    }
}

/// Whether a snapshot has replaced the state.
#[derive(Default)]
pub struct Replaced(pub Mutex<u32>);

impl Observer for Replaced {
    fn changed(&self, _index: u64, change: &Change) {
        *self.0.lock() += u32::from(matches!(change, Change::Replaced));
    }
}

/// Backups that answer with a fixed end, and remember whom they have fenced.
#[derive(Default)]
pub struct FakeBackups {
    pub fenced: Mutex<Vec<(NodeNumber, NodeNumber, u32)>>,
    pub end: u64,
    /// Those that do not answer.
    pub silent: Mutex<BTreeSet<NodeNumber>>,
    /// Those of which nothing is heard, not even that they do not answer: their machines have no power.
    pub off: Mutex<BTreeSet<NodeNumber>>,
}

impl Backups for FakeBackups {
    fn fence(
        &self,
        backup: NodeNumber,
        _address: &str,
        node: NodeNumber,
        epoch: u32,
        logs: Vec<(LogName, u64)>,
    ) -> Pending<Vec<(LogName, ToldEnd)>> {
        self.fenced.lock().push((backup, node, epoch));
        if self.off.lock().contains(&backup) {
            return Box::pin(std::future::pending());
        }
        if self.silent.lock().contains(&backup) {
            return Box::pin(async { Err("it does not answer".into()) });
        }
        // The first one and the fifth have blocks that no other got.
        let end = self.end + if [1, 5].contains(&backup) { 2 } else { 0 };
        let told = move |first: u64| ToldEnd { through: end.max(first - 1), certain: true, begun: 0 };
        Box::pin(async move { Ok(logs.into_iter().map(|(log, first)| (log, told(first))).collect()) })
    }
}

pub struct Node {
    pub group: Arc<Group>,
    pub told: Arc<Told>,
    pub replaced: Arc<Replaced>,
    pub epoch: u32,
    stop: watch::Sender<bool>,
}

pub struct World {
    pub net: Arc<Net>,
    pub nodes: BTreeMap<NodeNumber, Node>,
    pub disks: BTreeMap<NodeNumber, Arc<MemoryDisk>>,
    /// The same, as the nodes that run now have them.
    pub faulty: BTreeMap<NodeNumber, Arc<FaultyDisk>>,
    pub backups: Arc<FakeBackups>,
    /// What nodes that are gone were told.
    pub past: Vec<Arc<Told>>,
    pub snapshot_entries: u64,
    pub snapshot_bytes: u64,
    /// Up to which level nodes that are started from here on let the cluster be raised.
    pub level_max: u32,
    /// Numbers that are given to another machine: the byte of its uuid, which is the number otherwise.
    pub machines: BTreeMap<NodeNumber, u8>,
    /// How fast nodes are that are started from here on.
    pub timing: Timing,
    /// How much longer each sync of their disks takes.
    pub slow_syncs: Option<Duration>,
}

fn roles(node: NodeNumber, voters: NodeNumber) -> Vec<Role> {
    let mut roles = vec![Role::Broker, Role::Backup];
    if node <= voters {
        roles.insert(0, Role::Coordinator);
    }
    roles
}

impl World {
    pub fn new(seed: u64) -> World {
        let rng = StdRng::seed_from_u64(seed);
        let faults = Faults {
            rng,
            lose: 0,
            double: 0,
            delay_ms_max: 0,
            parted: BTreeSet::new(),
            silent: false,
            us_per_kib: 0,
            last: None,
            lost: None,
        };
        World {
            net: Arc::new(Net {
                faults: Mutex::new(faults),
                groups: Mutex::default(),
                old: Mutex::default(),
                uuids: Mutex::default(),
            }),
            nodes: BTreeMap::new(),
            disks: BTreeMap::new(),
            faulty: BTreeMap::new(),
            backups: Arc::new(FakeBackups { end: 7, ..FakeBackups::default() }),
            past: Vec::new(),
            snapshot_entries: 1000,
            snapshot_bytes: 32 << 20,
            level_max: kera_format::level::NEWEST,
            machines: BTreeMap::new(),
            timing: TIMING,
            slow_syncs: None,
        }
    }

    fn uuid(&self, node: NodeNumber) -> [u8; 16] {
        [self.machines.get(&node).copied().unwrap_or(node as u8); 16]
    }

    /// A cluster of `voters` coordinators, all of them voting, and `others`.
    pub async fn cluster(seed: u64, voters: NodeNumber, others: NodeNumber) -> World {
        World::cluster_at(seed, voters, others, TIMING).await
    }

    /// The same, as fast as `timing` says.
    pub async fn cluster_at(seed: u64, voters: NodeNumber, others: NodeNumber, timing: Timing) -> World {
        let mut world = World::new(seed);
        world.timing = timing;
        world.found(Catalog::default()).await;
        for node in 2..=voters + others {
            world.start(node).await;
            world.join(node, voters).await;
        }
        let all: Vec<NodeNumber> = (1..=voters).collect();
        for _ in 0..LOOKS {
            let fenced = world.fenced();
            if fenced.is_empty() && world.nodes.keys().all(|at| world.voters(*at) == all) {
                return world;
            }
            // One that was held up for so long that it was given up joins again, as nodes do.
            for node in fenced {
                world.join(node, voters).await;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("not all coordinators vote");
    }

    /// Nodes that are fenced as what they are now.
    fn fenced(&self) -> Vec<NodeNumber> {
        let is_fenced = |number: NodeNumber, epoch: u32| {
            let is_it = |node: &Node| {
                let known = |known: &NodeState| known.fenced && known.epoch == epoch;
                node.group.read(|state| state.node(number).is_some_and(known))
            };
            self.nodes.values().any(is_it)
        };
        self.nodes.iter().filter(|(number, node)| is_fenced(**number, node.epoch)).map(|(number, _)| *number).collect()
    }

    /// Who votes, as a node knows it.
    pub fn voters(&self, at: NodeNumber) -> Vec<NodeNumber> {
        let nodes = self.nodes[&at].group.describe().nodes;
        nodes.iter().filter(|node| node.votes).map(|node| node.node).collect()
    }

    pub async fn found(&mut self, catalog: Catalog) {
        self.start(1).await;
        let join = Join {
            node: 1,
            uuid: [1; 16],
            roles: Roles::ALL,
            rack: String::new(),
            doors: Doors { cluster: "1".into(), ..Doors::default() },
            settings: Vec::new(),
            epoch_min: 1,
            has_all: true,
            levels: (1, kera_format::level::NEWEST),
        };
        self.nodes[&1].group.found(&catalog, [9; 16], &join).await.unwrap();
        self.nodes.get_mut(&1).unwrap().epoch = 1;
        self.beat(1);
    }

    /// Starts a node on its disk.
    pub async fn start(&mut self, node: NodeNumber) {
        assert!(self.try_start(node).await, "node {node} starts");
    }

    /// Starts a node on its disk, whose power may go meanwhile: whether it has started.
    pub async fn try_start(&mut self, node: NodeNumber) -> bool {
        let disk = self.disks.entry(node).or_insert_with(|| Arc::new(MemoryDisk::new())).clone();
        let config = GroupConfig {
            node,
            uuid: self.uuid(node),
            address: node.to_string(),
            streams_max: 100_000,
            copies_max: 16,
            snapshot_entries: self.snapshot_entries,
            snapshot_bytes: self.snapshot_bytes,
            timing: self.timing,
            level_max: if self.net.is_old(node.into()) { 1 } else { self.level_max },
            balance_after_ms: None,
        };
        let transport = Arc::new(Wire { net: self.net.clone(), from: node.into() });
        let disk = Arc::new(FaultyDisk::new(disk));
        disk.set_slow_syncs(self.slow_syncs);
        self.faulty.insert(node, disk.clone());
        let group = match Group::start(config, disk, transport, Arc::new(SystemClock::new())).await {
            Ok(group) => group,
            Err(_) if self.disks[&node].is_off() => return false,
            Err(error) => panic!("node {node}: {error}"),
        };
        let (told, replaced) = (Arc::new(Told::default()), Arc::new(Replaced::default()));
        group.observe(told.clone());
        group.observe(replaced.clone());
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(group.clone().drive(self.backups.clone(), stopped));
        self.net.uuids.lock().insert(node.into(), self.uuid(node));
        self.net.groups.lock().insert(node.into(), group.clone());
        self.nodes.insert(node, Node { group, told, replaced, epoch: 0, stop });
        true
    }

    /// Lets signs of life of a node go, as what it knows itself to be, until it is stopped. From before it joins on: it may be long until it is told that
    /// it has, and by then it would be lost.
    fn beat(&self, node: NodeNumber) {
        let Node { group, stop, .. } = &self.nodes[&node];
        let (group, mut stopped) = (group.clone(), stop.subscribe());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(Duration::from_millis(TIMING.heartbeat_ms)) => {}
                }
                let epoch = group.read(|state| state.node(node).map_or(0, |known| known.epoch));
                if epoch > 0 {
                    let _ = group.beat(epoch).await;
                }
            }
        });
    }

    pub fn join_message(&self, node: NodeNumber, voters: NodeNumber) -> JoinCluster {
        JoinCluster {
            node,
            uuid: self.uuid(node),
            roles: roles(node, voters),
            rack: String::new(),
            cluster_address: node.to_string(),
            native_address: String::new(),
            kafka_address: String::new(),
            http_address: String::new(),
            settings: Vec::new(),
            epoch_min: 1,
            has_all: true,
            level_min: 1,
            level_max: kera_format::level::NEWEST,
        }
    }

    /// Has a node join through the group of another one, whatever the network is like.
    pub async fn join_at(&mut self, at: NodeNumber, node: NodeNumber, voters: NodeNumber) {
        self.beat(node);
        let joined = self.nodes[&at].group.ask(&self.join_message(node, voters)).await.unwrap();
        self.nodes.get_mut(&node).unwrap().epoch = joined.epoch;
    }

    /// Has a node join through any other.
    pub async fn join(&mut self, node: NodeNumber, voters: NodeNumber) -> JoinedCluster {
        self.beat(node);
        let message = self.join_message(node, voters);
        let bodies = kera_raft::in_versions(&message);
        let others: Vec<u64> = self.nodes.keys().filter(|other| **other != node).map(|other| (*other).into()).collect();
        let wire = Wire { net: self.net.clone(), from: node.into() };
        for _ in 0..20 {
            for other in &others {
                if let Ok((version, answer)) = wire.call_versions(*other, "", Op::JoinCluster, bodies.clone()).await {
                    let joined = <JoinCluster as Message>::Response::decode(version, &answer).unwrap();
                    self.nodes.get_mut(&node).unwrap().epoch = joined.epoch;
                    return joined;
                }
            }
        }
        panic!("node {node} cannot join");
    }

    /// Ends a node; with `crash` its disk loses what was not synced, and its power has gone in the middle of whatever it does next, if it had not before.
    pub async fn kill(&mut self, node: NodeNumber, crash: Option<u64>) {
        let disk = self.disks[&node].clone();
        if crash.is_some() && !disk.is_off() {
            disk.cut_power_at(1);
        }
        self.net.groups.lock().remove(&node.into());
        if let Some(ended) = self.nodes.remove(&node) {
            ended.stop.send_replace(true);
            ended.group.stop().await;
            // The threads that write are done then, with the copies too: they would go on beside those of the next start, and with its files.
            let group = ended.group.clone();
            let _ = tokio::task::spawn_blocking(move || group.look_at_disk(&|| true)).await;
            // A snapshot tells what is different, not what has happened.
            if *ended.replaced.0.lock() == 0 {
                self.past.push(ended.told);
            }
        }
        if crash.is_some() {
            // The thread that writes has had its errors.
            tokio::time::sleep(LOOK).await;
        }
        // Or has them when it goes on: nothing of what has ended comes to the disk that the next start finds.
        self.faulty[&node].set_broken(true);
        if let Some(seed) = crash {
            disk.crash(seed);
        }
    }

    /// Changes one bit of one of the files of a node that has ended.
    pub fn rot(&self, node: NodeNumber, rng: &mut impl rand::Rng) {
        let disk = &self.disks[&node];
        let length = |path: &String| disk.read_all(path, 1 << 30).unwrap().len() as u64;
        let paths = disk.list("raft").unwrap().into_iter().map(|name| format!("raft/{name}"));
        // A power cut may have left some without a byte.
        let files: Vec<(String, u64)> =
            paths.map(|path| (path.clone(), length(&path))).filter(|(_, bytes)| *bytes > 0).collect();
        let (path, bytes) = files[rng.random_range(0..files.len())].clone();
        // The last bytes are what looks torn.
        let from = if rng.random() { 0 } else { bytes - bytes.min(100) };
        disk.flip_bit(&path, rng.random_range(from..bytes), rng.random_range(0..8)).unwrap();
    }

    pub fn part(&self, one: &[u64], others: &[u64]) {
        let pairs = one.iter().flat_map(|a| others.iter().map(move |b| (*a, *b)));
        self.net.faults.lock().parted = pairs.collect();
    }

    pub fn heal(&self) {
        let faults = &mut *self.net.faults.lock();
        faults.parted.clear();
        (faults.lose, faults.double, faults.delay_ms_max, faults.silent) = (0, 0, 0, false);
    }

    pub async fn create(&self, at: NodeNumber, name: &str) -> Result<StreamInfo, CoordinatorError> {
        create(&self.nodes[&at].group, name, 1).await
    }

    pub fn leader(&self) -> Option<NodeNumber> {
        self.nodes.iter().find(|(_, node)| node.group.is_leader()).map(|(number, _)| *number)
    }

    /// The same, when there is one: while another one is elected nobody leads.
    pub async fn leading(&self) -> NodeNumber {
        for _ in 0..LOOKS {
            if let Some(leader) = self.leader() {
                return leader;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("nobody leads");
    }

    /// Has a node lead: the disks of all others do not answer as far as they know, until it does.
    pub async fn have_lead(&self, node: NodeNumber) {
        let say = |wait_us| {
            let others = self.nodes.iter().filter(|(other, _)| **other != node);
            others.for_each(|(_, other)| other.group.note_others(wait_us));
        };
        say(u64::MAX);
        self.until("it leads", |world| world.nodes[&node].group.is_leader()).await;
        say(0);
    }

    /// Waits for something, and tells what when it does not come.
    pub async fn until(&self, what: &str, is: impl Fn(&World) -> bool) {
        for _ in 0..LOOKS {
            if is(self) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        let states: Vec<_> = self.nodes.values().map(|node| node.group.describe()).collect();
        panic!("{what}: not in {:?}. {states:#?}", LOOK * LOOKS);
    }

    /// Waits until all nodes have the same state, and checks that nobody was ever told anything else at the same place.
    pub async fn agree(&self) {
        let snapshot = |node: &Node| (node.group.applied(), node.group.read(|state| state.snapshot()));
        self.until("all nodes have the same state", |world| {
            let mut all = world.nodes.values().map(snapshot);
            let first: Option<(u64, Vec<ClusterEntry>)> = all.next();
            world.leader().is_some() && all.all(|other| Some(&other) == first.as_ref())
        })
        .await;
        // Observers are told by a thread of their own, and last of all that a snapshot has replaced everything.
        for node in self.nodes.values() {
            node.group.wait_followed(node.group.applied()).await.expect("observers are told");
        }
        let mut of_all: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for told in
            self.nodes.values().filter(|node| *node.replaced.0.lock() == 0).map(|node| &node.told).chain(&self.past)
        {
            for (index, changes) in told.0.lock().iter() {
                // One that was killed between two changes of an entry was told the first of them.
                let known = of_all.entry(*index).or_insert_with(|| changes.clone());
                let both = known.len().min(changes.len());
                assert_eq!(known[..both], changes[..both], "entry {index}");
                if changes.len() > known.len() {
                    *known = changes.clone();
                }
            }
        }
    }
}

pub async fn create(group: &Group, name: &str, replication: u32) -> Result<StreamInfo, CoordinatorError> {
    let options = StreamOptions { replication, ..StreamOptions::default() };
    group.ask(&CreateStream { name: name.into(), options, if_not_exists: true }).await
}
