//! One node's part of the coordinators' group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::{ClusterState, EndLooks, Join, NodeState, Rates, Refused, roles_of};
use kera_coordinator::loads::Loads;
use kera_env::{Clock, Disk, Folder};
use kera_format::cluster::{ClusterEntry, NodeNumber, RaftPlace, Roles};
use kera_format::{StreamId, level};
use kera_protocol::{
    Body, ClusterDescription, DescribeCluster, ErrorBody, ForwardCommand, MemberNode, Message, NodeAlive, NodeHeard,
    NodeLoad, Op, ProtocolError, RaftAppend, RaftBallot, RaftSnapshot, RaftSnapshotTaken, RaftVote, Status,
};
use openraft::{BasicNode, Config, Raft, ServerState, Snapshot, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::beats::Beats;
use crate::bygone::check_group;
use crate::commands::Leading;
use crate::file::{self, LogFile, OpenError};
use crate::machine::{Machine, Observer, Shared};
use crate::network::{Links, Transport, append_answer, append_request, ask, vote_answer, vote_request};
use crate::snapshot::{self, Carried};
use crate::store::{ASKED, Kept, LogStore, Looker, Writing, given_up};
use crate::types::{Batch, TypeConfig, ballot_of, check_readable, vote};

/// The largest snapshot that is taken from a leader.
const SNAPSHOT_BYTES_MAX: usize = 1 << 30;

/// Most moves that are remembered for the driver.
const NOTED_MAX: usize = 16_384;

/// How fast a group is. All nodes have the same.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Time between two signs of life, of the leader and of nodes, in milliseconds.
    pub heartbeat_ms: u64,
    /// A leader that has been silent for two and a half to three times this is lost, and another one is elected. Whoever asks for votes waits for so long for them; where disks are
    /// slower than that votes are written ahead. A leader whose disk is as slow goes on to say that it leads while it writes.
    pub election_ms: u64,
    /// A node is lost after this.
    pub lost_after_ms: u64,
    /// How long a command waits for a leader and for its answer.
    pub command_ms: u64,
    /// A node whose disk has not answered for so long takes itself for lost.
    pub stands_still_ms: u64,
}

/// A disk that has not answered for so long is not merely slow, in milliseconds. Nobody has to be in a hurry: until then producers and consumers
/// of what the node has are served.
const STANDS_STILL_MS: u64 = 10_000;

impl Default for Timing {
    fn default() -> Timing {
        use kera_coordinator::detector::{HEARTBEAT_MS, LOST_AFTER_MS};
        Timing {
            heartbeat_ms: HEARTBEAT_MS,
            election_ms: 200,
            lost_after_ms: LOST_AFTER_MS,
            command_ms: 10_000,
            stands_still_ms: STANDS_STILL_MS,
        }
    }
}

/// What a group is told about its node.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The node's number.
    pub node: NodeNumber,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Where other nodes reach it.
    pub address: String,
    /// Most streams of the cluster.
    pub streams_max: usize,
    /// Most copies that a stream may ask for, however many nodes there are.
    pub copies_max: u32,
    /// Entries after which the next snapshot is made.
    pub snapshot_entries: u64,
    /// Bytes of entries after which the next snapshot is made, however few entries these are.
    pub snapshot_bytes: u64,
    /// How fast.
    pub timing: Timing,
    /// The highest [level](kera_format::level) that this node lets the cluster be raised to.
    pub level_max: u32,
    /// For how long the cluster has to be calm before this node, as the leader, evens out the brokers by itself, in milliseconds; `None`: it does not.
    pub balance_after_ms: Option<u64>,
}

/// A node of which coordinators say for so long that it takes no part, and none that it does, is lost, in microseconds. One that is behind says so of a node that has just
/// joined, but not for long; and if it is cut off together with the node, the node serves nobody after as long anyway.
const REFUSED_US_MAX: u64 = 5_000_000;

/// Whoever has not answered a sign of life for so long is not there, in microseconds. As long as a node goes on serving that no majority answers, so that one that has
/// stopped can always say why.
const AWAY_US: u64 = 5_000_000;

/// A leader of whom no majority has taken anything for so long is not followed, in milliseconds. It sends something at each heartbeat.
const FOLLOWED_MS: u64 = 2_000;

/// What coordinators have answered to this node's signs of life, by when they were asked, on the [clock](Clock::since_boot_us) that goes on while the machine is suspended.
#[derive(Default)]
struct Confirmed {
    /// When they said last that it takes part.
    at_us: BTreeMap<u64, u64>,
    /// When the first and the last of them said that it does not, since one said that it does.
    refused_us: Option<(u64, u64)>,
    /// Whether one of those leads.
    is_refused_by_leader: bool,
}

/// A snapshot that comes in parts.
struct Incoming {
    ballot: RaftBallot,
    index: u64,
    bytes: Vec<u8>,
}

/// See the crate. Any task may call any method.
pub struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) raft: Raft<TypeConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) leading: tokio::sync::Mutex<Leading>,
    pub(crate) heard: Mutex<BTreeMap<NodeNumber, (u32, u64)>>,
    /// Up to which level nodes let the cluster be raised, with the epochs in which they have said so. Only heard, never written: below
    /// the level there is no entry for it, and above that nobody asks.
    levels: Mutex<BTreeMap<NodeNumber, (u32, u32)>>,
    confirmed: Arc<Mutex<Confirmed>>,
    beats: Beats,
    /// Since when this node has known of incarnations that are fenced.
    pub(crate) fenced_us: Mutex<BTreeMap<(NodeNumber, u32), u64>>,
    /// Whom this node has asked how far lost logs go, as long as it leads.
    pub(crate) looks: Mutex<EndLooks>,
    /// What brokers say that they take, as long as this node leads.
    pub(crate) loads: Mutex<Loads>,
    /// Streamlets that this node has had moved as the leader since its driver looked last, at most [`NOTED_MAX`].
    pub(crate) noted: Mutex<Vec<(StreamId, u32)>>,
    /// Moves that it has begun by itself to even out the brokers.
    pub(crate) balance_moves: AtomicU64,
    incoming: Mutex<Option<Incoming>>,
    /// Leaders that have another log than this node, as it has said.
    pub(crate) contradicting: Mutex<BTreeSet<u64>>,
    /// Where its log and its snapshots are.
    folder: Arc<Folder>,
    pub(crate) entries: Kept,
    /// Who joins just now, or joined last, with its uuid: it is sent the log before that says who it is.
    pub(crate) joining: Mutex<Option<(NodeNumber, [u8; 16])>>,
    looker: Mutex<Looker>,
    /// The node stops: nothing waits for room on its disk any more.
    closing: Arc<AtomicBool>,
    pub(crate) writing: Arc<Writing>,
    /// Who leads, as soon as this node's log knows it.
    pub(crate) leaders: watch::Receiver<Option<RaftBallot>>,
    /// For how long what else the node writes has come no further, in microseconds.
    others_wait_us: AtomicU64,
    /// It has fallen silent because its disk stands still.
    pub(crate) is_silent: AtomicBool,
    /// When the [driver](Group::drive) had its last turn, in microseconds of the monotonic clock; 0: none yet.
    pub(crate) turned_us: AtomicU64,
}

impl Group {
    /// Goes on with what is on the disk, or waits to be told of a cluster by [`found`](Group::found) or by a leader. Must be called
    /// on a `tokio` runtime, and blocks while it reads.
    pub async fn start(
        config: GroupConfig,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Group>, OpenError> {
        let folder = file::folder(disk);
        file::check_number(&folder, config.node)?;
        let log = LogFile::open(folder.clone(), config.uuid)?;
        let closing = Arc::new(AtomicBool::new(false));
        let machine = Machine::open(folder.clone(), config.uuid, closing.clone())?;
        let shared = machine.shared.clone();
        log.check_cut(shared.current.read().applied.map(|place| place.index))?;
        let failed = |error| OpenError::Disk { path: snapshot::DIR.to_owned(), error };
        let writing = Arc::new(Writing::new(clock.clone()));
        let mut store = LogStore::start(log, closing.clone(), writing.clone()).map_err(failed)?;
        store.wait_for_snapshots(shared.durable.subscribe());
        let applied = shared.current.read().applied;
        store.begin_behind(applied).await.map_err(|error| failed(std::io::Error::other(error)))?;
        let (entries, looker, leaders) = (store.entries(), Mutex::new(store.looker()), store.leaders());
        let timing = config.timing;
        let settings = Config {
            cluster_name: "kera".into(),
            heartbeat_interval: timing.heartbeat_ms,
            election_timeout_min: timing.election_ms,
            // For as long as this nobody votes against a leader that was heard; what is chosen between the two comes on top of it.
            election_timeout_max: timing.election_ms * 3 / 2,
            // A part of a snapshot may be written to a slow disk.
            install_snapshot_timeout: 60_000,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_entries),
            max_in_snapshot_log_to_keep: config.snapshot_entries / 5,
            replication_lag_threshold: config.snapshot_entries,
            ..Config::default()
        };
        let settings = Arc::new(settings.validate().map_err(|error| failed(std::io::Error::other(error)))?);
        let links = Links(transport.clone());
        let raft = Raft::new(config.node.into(), settings, links, store, machine).await;
        let raft = raft.map_err(|error| failed(std::io::Error::other(error)))?;
        Ok(Arc::new(Group {
            config,
            raft,
            shared,
            transport,
            clock,
            leading: tokio::sync::Mutex::default(),
            heard: Mutex::default(),
            levels: Mutex::default(),
            confirmed: Arc::default(),
            beats: Beats::default(),
            fenced_us: Mutex::default(),
            looks: Mutex::default(),
            loads: Mutex::default(),
            noted: Mutex::default(),
            balance_moves: AtomicU64::new(0),
            incoming: Mutex::default(),
            contradicting: Mutex::default(),
            folder,
            entries,
            joining: Mutex::default(),
            looker,
            closing,
            writing,
            leaders,
            others_wait_us: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            turned_us: AtomicU64::new(0),
        }))
    }

    /// Whether the node has been told of a cluster, so that it needs nobody's address to go on.
    pub async fn is_member(&self) -> bool {
        self.raft.is_initialized().await.unwrap_or(false)
    }

    /// Makes this node the first of a cluster, with the streams that `catalog` has. Doing it again after a crash is fine.
    pub async fn found(
        &self,
        catalog: &kera_coordinator::catalog::Catalog,
        cluster: [u8; 16],
        join: &Join,
    ) -> Result<(), CoordinatorError> {
        if !self.is_member().await {
            let first = BTreeMap::from([(u64::from(self.config.node), BasicNode::new(&self.config.address))]);
            self.raft.initialize(first).await.map_err(|error| self.no_leader(&error))?;
        }
        self.wait_for_leader().await?;
        let catalog = catalog.clone();
        let (join, now_ms) = (join.clone(), self.clock.now_ms());
        self.commit(&mut *self.leading.lock().await, |state| {
            if state.cluster() != [0; 16] {
                return Ok(Vec::new());
            }
            // Nobody else is there who would have to understand it, and streams may need it.
            let levels = level::FIRST + 1..=self.config.level_max;
            let mut entries: Vec<_> = levels.map(|level| ClusterEntry::LevelRaised { level }).collect();
            entries.extend(snapshot::of_catalog(&catalog, self.config.level_max));
            entries.extend(ClusterState::with_catalog(catalog.clone()).plan_found(cluster, &join, now_ms)?);
            Ok(entries)
        })
        .await
        .map(drop)
    }

    /// Reads the state. Keep it short: nothing becomes true meanwhile. In there wait for nobody who may want to read it as well, nor for a lock that such a one may
    /// hold: once somebody waits to change it, who comes later waits behind that.
    pub fn read<T>(&self, read: impl FnOnce(&ClusterState) -> T) -> T {
        read(&self.shared.current.read().state)
    }

    /// The same, with the entry up to which the state is.
    pub fn read_at<T>(&self, read: impl FnOnce(&ClusterState, u64) -> T) -> T {
        let current = self.shared.current.read();
        read(&current.state, current.applied.map_or(0, |place| place.index))
    }

    /// The level of the cluster that is in force.
    pub fn level(&self) -> u32 {
        self.read(ClusterState::level)
    }

    /// Up to which level an incarnation of a node lets the cluster be raised, as far as this node has heard.
    pub(crate) fn level_max_of(&self, node: NodeNumber, epoch: u32) -> Option<u32> {
        if node == self.config.node {
            return Some(self.config.level_max);
        }
        self.levels.lock().get(&node).filter(|(of, _)| *of == epoch).map(|(_, level_max)| *level_max)
    }

    /// Says who is told of changes from now on. What was being told when it was called all others have been told when it returns: it waits for that, and no observer may call it.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.shared.observe(observer);
    }

    /// Up to which entry this node's observers have been told. The [state](Group::read) may be further.
    pub fn followed(&self) -> u64 {
        *self.shared.followed.borrow()
    }

    /// Up to which entry the state is.
    pub fn applied(&self) -> u64 {
        self.shared.current.read().applied.map_or(0, |place| place.index)
    }

    /// The leader that the node knows of, with its address for other nodes.
    pub fn leader(&self) -> Option<(NodeNumber, String)> {
        let metrics = self.raft.metrics().borrow().clone();
        // Who has ended knows of nothing that came later.
        metrics.running_state.as_ref().ok()?;
        let leader = metrics.current_leader?;
        let address = metrics.membership_config.membership().get_node(&leader)?.addr.clone();
        Some((leader as NodeNumber, address))
    }

    /// Whether this node is the leader, as far as it knows, and can lead.
    pub fn is_leader(&self) -> bool {
        !self.stands_still() && self.raft.metrics().borrow().state == ServerState::Leader
    }

    /// For how long the [driver](Group::drive) has had no turn, in microseconds; 0 before its first. It has one each half heartbeat. If it has none, what it runs on does not run: the node hears and
    /// answers nobody, and can say nothing of it. To be asked by another thread.
    pub fn without_turn_us(&self) -> u64 {
        match self.turned_us.load(Ordering::Acquire) {
            0 => 0,
            at_us => self.clock.monotonic_us().saturating_sub(at_us),
        }
    }

    /// Whether this node does not [lead](Group::is_leader), or has been followed by a majority of those who vote a moment ago. That others answer its signs of life says nothing of it:
    /// they may not take what it sends them of the log. One whose disk stands still sends nothing, and has said why. Any thread.
    pub fn is_followed(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let was_followed = metrics.millis_since_quorum_ack.is_some_and(|ms| ms <= FOLLOWED_MS);
        metrics.state != ServerState::Leader || was_followed || self.stands_still()
    }

    /// Whether its disk has not answered for so long that the node is to be taken for lost.
    ///
    /// It learns nothing from the coordinators any more: what is given to it is never opened, and it lets nothing go. What it owns is served from
    /// memory until that is full. So for all that is new it is as if it were gone, but nobody takes its place as long as it says
    /// that it lives. It falls silent, and what becomes of it is what becomes of any node that does: others fence it and take over. When the disk
    /// answers again it learns that it was fenced, and starts again (decision 18), or that nobody noticed, as when all disks of a
    /// cluster stood still.
    pub(crate) fn stands_still(&self) -> bool {
        self.disk_wait_us() >= self.config.timing.stands_still_ms * 1000
    }

    /// Waits until the node's part in the coordinators' log has ended by itself, which it does when the log or a snapshot cannot be written or read, and tells
    /// why. The node learns of nothing from then on, and its state stays as it is: it would answer as if it took part, hold on to what it should let go, and
    /// never open what it is given. It has fallen silent, as one does that is gone, so that others take over what it owns; whoever runs it ends it.
    ///
    /// Stays without an answer if the node is [told to stop](Group::stop).
    pub async fn ended(&self) -> String {
        let mut metrics = self.raft.metrics();
        loop {
            let why = metrics.borrow_and_update().running_state.clone().err().map(|why| why.to_string());
            let is_gone = why.is_none() && metrics.changed().await.is_err();
            match why.or_else(|| is_gone.then(|| "it ended with a panic".into())) {
                Some(_) if self.closing.load(Ordering::Acquire) => std::future::pending().await,
                Some(why) => return why,
                None => {}
            }
        }
    }

    /// For how long the write of the log that is under way has been, or what was noted of others, in microseconds; 0 if none is.
    pub fn disk_wait_us(&self) -> u64 {
        self.writing.for_us().max(self.others_wait_us.load(Ordering::Acquire))
    }

    /// Says for how long what else the node writes has come no further: a log to which nothing is written does not tell.
    pub fn note_others(&self, wait_us: u64) {
        self.others_wait_us.store(wait_us, Ordering::Release);
    }

    /// Falls silent, or is not any more.
    fn set_silent(&self, silent: bool) {
        if self.is_silent.swap(silent, Ordering::AcqRel) == silent {
            return;
        }
        // Who leads has others elect somebody else.
        let raft = self.raft.runtime_config();
        raft.heartbeat(!silent);
        if silent {
            raft.elect(false);
            let ms = self.config.timing.stands_still_ms;
            tracing::error!(
                ms,
                "the disk does not answer: this node falls silent, so that others take over what it owns"
            );
        } else {
            // It tries to be elected once it has looked at what has come meanwhile: `settle` says when that is.
            tracing::warn!("the disk answers again");
        }
    }

    /// Everybody that the log knows: number and address for other nodes.
    pub fn peers(&self) -> Vec<(u64, String)> {
        let current = self.shared.current.read();
        current.members.membership().nodes().map(|(node, at)| (*node, at.addr.clone())).collect()
    }

    /// Waits until the node knows a leader.
    pub(crate) async fn wait_for_leader(&self) -> Result<(), CoordinatorError> {
        let timeout = Duration::from_millis(self.config.timing.command_ms);
        let waited =
            self.raft.wait(Some(timeout)).metrics(|metrics| metrics.current_leader.is_some(), "a leader").await;
        waited.map(drop).map_err(|error| self.no_leader(&error))
    }

    /// Waits until this node's observers have been told of everything up to an entry.
    pub async fn wait_followed(&self, index: u64) -> Result<(), CoordinatorError> {
        let mut followed = self.shared.followed.clone();
        let timeout = Duration::from_millis(self.config.timing.command_ms);
        match tokio::time::timeout(timeout, followed.wait_for(|told| *told >= index)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(CoordinatorError::NoLeader(format!(
                "it is done, but node {} does not know it yet",
                self.config.node
            ))),
        }
    }

    /// Makes sure that this node leads and knows all that was decided; tells up to which entry.
    pub(crate) async fn make_sure(&self, alone: &mut Leading) -> Result<u64, CoordinatorError> {
        self.commit(alone, |_| Ok(Vec::new())).await
    }

    /// Proposes what `plan` makes of the state, and waits until it is true: tells up to which entry. Only the leader can; the
    /// caller holds what makes commands go one at a time, so nothing changes between plan and entry unless the leader does. What the rules would not refuse then is the caller's to
    /// look at ([`Leading::check_wrote_in`]).
    pub(crate) async fn commit(
        &self,
        alone: &mut Leading,
        plan: impl Fn(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) -> Result<u64, CoordinatorError> {
        alone.wrote_in = 0;
        let mut why = String::new();
        for _ in 0..3 {
            let place = self.in_time(self.raft.ensure_linearizable()).await?;
            alone.led_in = place.map_or(0, |place| place.leader_id.term);
            let entries = self.read(&plan)?;
            if entries.is_empty() {
                return Ok(place.map_or(0, |place| place.index));
            }
            check_readable(&entries).map_err(|error| {
                tracing::error!(%error, "a command is refused: no node could read what it would put into the log");
                CoordinatorError::Refused(Refused(error.to_string()))
            })?;
            let moves = moves_away(&entries);
            alone.begun.store(true, Ordering::Relaxed);
            let written = self.in_time(self.raft.client_write(Batch(entries))).await?;
            match written.data.refused {
                None => {
                    self.note_moves(&moves);
                    alone.wrote_in = written.log_id.leader_id.term;
                    return Ok(written.log_id.index);
                }
                // Another leader was quicker; look again.
                Some(reason) => {
                    tracing::info!(reason, "a command is planned again");
                    why = reason;
                }
            }
        }
        // Nothing is wrong with the command: whoever gave it gives it again.
        Err(CoordinatorError::NoLeader(format!("the cluster changes faster than this can be planned: {why}")))
    }

    /// Waits for what the log is asked for, for as long as a command waits and no longer: whoever asks holds what makes commands go one at a time.
    ///
    /// `openraft` answers who waits for an entry when that is applied or cut off, and one that has reached nobody may never be either: another node leads meanwhile and its log
    /// begins far behind, so that this one gets a snapshot in place of all that, which goes further than its own log. Nothing is cut then, and of what the snapshot has nobody is told.
    ///
    /// Whether it was done is not known then, as wherever an answer is lost. Of a change of who is in the group or votes, which takes two entries, whoever leads ends what is half done.
    pub(crate) async fn in_time<T, E: std::fmt::Display>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CoordinatorError> {
        let timeout = Duration::from_millis(self.config.timing.command_ms);
        match tokio::time::timeout(timeout, asked).await {
            Ok(answered) => answered.map_err(|error| self.no_leader(&error)),
            Err(error) => Err(self.no_leader(&error)),
        }
    }

    /// The log does not take what it is asked for. Who is to hear of it is told who is not there: what `openraft` says is its own state, for its developers.
    fn no_leader(&self, error: &dyn std::fmt::Display) -> CoordinatorError {
        tracing::debug!(%error, "the coordinators' log does not take a command");
        let lacking = self.lacks_majority();
        CoordinatorError::NoLeader(lacking.unwrap_or_else(|| "the coordinators have no leader at the moment".into()))
    }

    /// Remembers moves that begin: what the streamlets take now, they take at the other brokers.
    fn note_moves(&self, moves: &[(StreamId, u32, NodeNumber)]) {
        if moves.is_empty() {
            return;
        }
        let now_us = self.clock.monotonic_us();
        self.read(|state| self.loads.lock().moving(state, moves, now_us));
        let mut noted = self.noted.lock();
        let room = NOTED_MAX.saturating_sub(noted.len());
        noted.extend(moves.iter().take(room).map(|(stream, streamlet, _)| (*stream, *streamlet)));
    }

    /// What brokers take, once enough of them have said it.
    pub(crate) fn heard_rates(&self, state: &ClusterState, now_us: u64) -> Option<Rates> {
        let loads = self.loads.lock();
        loads.has_heard(state, now_us).then(|| loads.rates(state, now_us))
    }

    /// A broker says what it takes. Who does not lead has no use for it.
    fn hear_load(&self, said: &NodeLoad) {
        if self.is_leader() {
            let now_us = self.clock.monotonic_us();
            self.read(|state| self.loads.lock().hear(state, said, now_us));
        }
    }

    /// Tells the leader what this node's broker takes: whom it has told. One of an earlier version refuses, and evens out brokers by the number of
    /// streamlets alone.
    pub async fn tell_load(&self, said: &NodeLoad) -> Result<NodeNumber, String> {
        let Some((leader, address)) = self.leader() else { return Err("there is no leader".into()) };
        if leader == self.config.node {
            self.hear_load(said);
            return Ok(leader);
        }
        ask(&*self.transport, leader.into(), &address, said).await.map(|_| leader)
    }

    /// Moves that this node has begun as the leader without being asked, to even out the brokers, since it started.
    pub fn balance_moves(&self) -> u64 {
        self.balance_moves.load(Ordering::Relaxed)
    }

    /// Answers a request of another node.
    pub async fn handle(&self, op: Op, version: u8, body: &[u8]) -> Result<Vec<u8>, (Status, ErrorBody)> {
        let answer = self.answer(op, version, body).await;
        answer.map_err(|error| (error.status(), error.body()))
    }

    async fn answer(&self, op: Op, version: u8, body: &[u8]) -> Result<Vec<u8>, CoordinatorError> {
        op.check_version(version)?;
        let gone =
            |error: &dyn std::fmt::Display| CoordinatorError::NoLeader(format!("the coordinator has stopped: {error}"));
        match op {
            Op::RaftVote => {
                let message = RaftVote::decode(version, body)?;
                self.check_group(message.ballot, message.last)?;
                let answer = self.raft.vote(vote_request(&message)).await.map_err(|error| gone(&error))?;
                Ok(encoded(&vote_answer(&answer), version))
            }
            Op::RaftAppend => {
                let message = RaftAppend::decode(version, body)?;
                self.check_group(message.ballot, message.decided)?;
                self.check_same(message.ballot, message.before)?;
                self.check_same(message.ballot, message.decided)?;
                let request = append_request(message).map_err(malformed)?;
                let answer = self.raft.append_entries(request).await.map_err(|error| gone(&error))?;
                Ok(encoded(&append_answer(answer), version))
            }
            Op::RaftSnapshot => {
                let ballot = self.take_part(RaftSnapshot::decode(version, body)?).await?;
                Ok(encoded(&RaftSnapshotTaken { ballot }, version))
            }
            Op::ForwardCommand => {
                let command = ForwardCommand::decode(version, body)?;
                Ok(encoded(&self.execute_forwarded(&command, &Arc::default()).await, version))
            }
            Op::NodeAlive => Ok(encoded(&self.hear(NodeAlive::decode(version, body)?), version)),
            Op::NodeLoad => {
                self.hear_load(&NodeLoad::decode(version, body)?);
                Ok(encoded(&kera_protocol::Empty, version))
            }
            Op::DescribeCluster => {
                DescribeCluster::decode(version, body)?;
                Ok(encoded(&self.describe(), version))
            }
            Op::JoinCluster | Op::ChangeLog | Op::StreamletsRebuilt => self.request(op, version, body, false).await,
            other => Err(CoordinatorError::Refused(Refused(format!("{other} is not for this address")))),
        }
    }

    /// See [`check_group`].
    fn check_group(&self, ballot: RaftBallot, at: Option<RaftPlace>) -> Result<(), CoordinatorError> {
        let applied = self.shared.current.read().applied;
        check_group(applied, ballot.term, at)
    }

    async fn take_part(&self, message: RaftSnapshot) -> Result<RaftBallot, CoordinatorError> {
        let RaftSnapshot { ballot, place, offset, part, last } = message;
        self.check_group(ballot, Some(place))?;
        self.check_same(ballot, Some(place))?;
        let whole = {
            let mut incoming = self.incoming.lock();
            if offset == 0 {
                *incoming = Some(Incoming { ballot, index: place.index, bytes: Vec::new() });
            }
            let follows =
                |one: &Incoming| one.ballot == ballot && one.index == place.index && one.bytes.len() as u64 == offset;
            let Some(one) = incoming.as_mut().filter(|one| follows(one)) else {
                return Err(malformed(format!("part {offset} of the snapshot does not follow")));
            };
            if one.bytes.len() + part.len() > SNAPSHOT_BYTES_MAX {
                *incoming = None;
                return Err(malformed("the snapshot is too large".into()));
            }
            one.bytes.extend_from_slice(&part);
            if last { incoming.take().map(|one| one.bytes) } else { None }
        };
        let Some(bytes) = whole else { return Ok(ballot) };
        // On another thread: this one says that the node lives.
        let read = tokio::task::spawn_blocking(move || snapshot::decode(&bytes).map(|loaded| (loaded, bytes))).await;
        let (loaded, bytes) = read.map_err(|error| malformed(error.to_string()))?.map_err(malformed)?;
        let (meta, carried) = (loaded.meta(), Carried::Came(Box::new(loaded), bytes));
        let taken =
            self.raft.install_full_snapshot(vote(&ballot), Snapshot { meta, snapshot: Box::new(carried) }).await;
        let taken = taken.map_err(|error| CoordinatorError::NoLeader(error.to_string()))?;
        Ok(ballot_of(&taken.vote))
    }

    fn hear(&self, alive: NodeAlive) -> NodeHeard {
        if self.read(|state| state.node(alive.node).is_some()) {
            note_newest(&mut self.heard.lock(), alive.node, alive.epoch, self.clock.monotonic_us());
            note_newest(&mut self.levels.lock(), alive.node, alive.epoch, alive.level_max);
        }
        let leader = self.leader().map_or(0, |(node, _)| node);
        NodeHeard { leader, live: self.read(|state| state.is_live(alive.node, alive.epoch)) }
    }

    /// Sends a sign of life to all coordinators, unless its disk does not answer or its part in the log [has ended](Group::ended); the answer, the leader's, says whether the node is still part of the cluster.
    pub async fn beat(&self, epoch: u32) -> Result<NodeHeard, String> {
        let stands_still = self.stands_still();
        self.set_silent(stands_still);
        if stands_still {
            return Err("its disk does not answer".into());
        }
        if self.raft.metrics().borrow().running_state.is_err() {
            return Err("its part in the coordinators' log has ended".into());
        }
        let alive = NodeAlive { node: self.config.node, epoch, level_max: self.config.level_max };
        let leading = self.leader().map(|(leader, _)| leader);
        let is_other = |(number, node): &(&NodeNumber, &NodeState)| {
            node.is_live(Roles::COORDINATOR) && **number != self.config.node && Some(**number) != leading
        };
        let others: Vec<(NodeNumber, String)> = self.read(|state| {
            let found = state.nodes().iter().filter(is_other);
            found.map(|(number, node)| (*number, node.doors.cluster.clone())).collect()
        });
        let asked_us = self.clock.since_boot_us();
        self.beats.sent(asked_us);
        for (other, address) in others {
            let (transport, confirmed, me) = (self.transport.clone(), self.confirmed.clone(), self.config.node);
            tokio::spawn(async move {
                // One that does not hear it is not the leader, or not for long.
                if let Ok(heard) = ask(&*transport, other.into(), &address, &alive).await {
                    confirm(&confirmed, me, other, heard, asked_us);
                }
            });
        }
        let Some((leader, address)) = self.leader() else { return Err("there is no leader".into()) };
        if leader == self.config.node {
            return Ok(self.hear(alive));
        }
        // A leader that is silent must not keep the next one from hearing this node.
        let wait = Duration::from_millis(self.config.timing.heartbeat_ms);
        let asked = tokio::time::timeout(wait, ask(&*self.transport, leader.into(), &address, &alive)).await;
        let heard = asked.unwrap_or_else(|_| Err("the leader does not answer".into()))?;
        confirm(&self.confirmed, self.config.node, leader, heard, asked_us);
        Ok(heard)
    }

    /// When a majority of the coordinators was asked, at the latest, that has said that this node takes part, on the [clock](Clock::since_boot_us) that goes on while
    /// the machine is suspended; `None`: there has been none. Whoever fences the node needs a majority as well, so one of these knows of it then, or soon.
    pub fn confirmed_us(&self, epoch: u32) -> Option<u64> {
        let (me, confirmed) = (u64::from(self.config.node), self.confirmed.lock().at_us.clone());
        let current = self.shared.current.read();
        let voters: Vec<u64> = current.members.membership().voter_ids().collect();
        let own = current.state.is_live(self.config.node, epoch).then(|| self.clock.since_boot_us());
        let asked = voters.iter().filter_map(|voter| if *voter == me { own } else { confirmed.get(voter).copied() });
        nth_latest(asked.collect(), voters.len() / 2)
    }

    /// Whether this node has sent signs of life for so long without a pause that it [would be known](Group::lacks_majority) if no majority answered. Any thread.
    pub fn would_miss_majority(&self) -> bool {
        !self.stands_still() && self.beats.for_us(self.clock.since_boot_us()) > AWAY_US
    }

    /// That no majority of the coordinators has answered this node for some seconds, with who has not, as a sentence without its end. Nothing while most of
    /// them do, and while they say that this node takes no part: then they are there.
    ///
    /// Who is not asked does not answer. So nothing is said either before the node has sent signs of life for as long without a pause: it may not have joined yet, or its own disk may stand
    /// still, or have stood still a moment ago.
    pub fn lacks_majority(&self) -> Option<String> {
        let (me, now_us) = (u64::from(self.config.node), self.clock.since_boot_us());
        if !self.would_miss_majority() {
            return None;
        }
        let (refused, heard) = {
            let confirmed = self.confirmed.lock();
            (confirmed.refused_us, confirmed.at_us.clone())
        };
        let voters: BTreeSet<u64> = self.shared.current.read().members.membership().voter_ids().collect();
        let has_answered = |voter: u64| heard.get(&voter).is_some_and(|at_us| now_us.saturating_sub(*at_us) <= AWAY_US);
        match refused {
            Some(_) => None,
            None => crate::votes::lacking(me, &voters, has_answered),
        }
    }

    /// Whether this node's incarnation is over: its own state says so, or the coordinators do. A node that is given up while it is cut off is told of nothing any more,
    /// so that its state stays as it is.
    pub fn is_over(&self, epoch: u32) -> bool {
        let refused = self.confirmed.lock().refused_us;
        !self.read(|state| state.is_live(self.config.node, epoch))
            || refused.is_some_and(|(first, last)| last - first > REFUSED_US_MAX)
    }

    /// How the cluster is, as this node knows it.
    pub fn describe(&self) -> ClusterDescription {
        let (metrics, cluster) = (self.raft.metrics().borrow().clone(), self.cluster());
        let current = self.shared.current.read();
        let lists = current.members.membership().get_joint_config();
        // While one list of voters gives way to another, those of both.
        let votes = |node: NodeNumber| !lists.is_empty() && lists.iter().all(|list| list.contains(&node.into()));
        let state = &current.state;
        let nodes = state.nodes().iter().map(|(number, node)| MemberNode {
            node: *number,
            epoch: node.epoch,
            uuid: node.uuid,
            fenced: node.fenced,
            votes: votes(*number),
            roles: roles_of(node.roles),
            rack: node.rack.clone(),
            cluster_address: node.doors.cluster.clone(),
            native_address: node.doors.native.clone(),
            streamlets: node.streamlets,
            level_max: self.level_max_of(*number, node.epoch).unwrap_or(0),
        });
        let lost = state.nodes().values().filter(|node| node.fenced);
        ClusterDescription {
            cluster: cluster.unwrap_or_default(),
            leader: metrics.current_leader.unwrap_or(0) as u32,
            term: metrics.current_term,
            applied: current.applied.map_or(0, |place| place.index),
            nodes: nodes.collect(),
            logs: state.logs().len() as u64,
            waiting_streamlets: lost.map(|node| node.streamlets).sum(),
            level: state.level(),
        }
    }

    /// Reads the log, the snapshot and the node's number with their copies, and writes anew what a disk has changed: how many bytes, and whether that was so. Blocks, and what is
    /// written to the log waits for a moment. Whoever writes just now is waited for, as long as it `goes_on`, which is asked a few times a second: what finds no room on a full disk
    /// waits for that without end.
    ///
    /// # Errors
    /// Something cannot be read or not be written anew, or who writes was not waited for to its end.
    pub fn look_at_disk(&self, goes_on: &dyn Fn() -> bool) -> Result<(u64, bool), OpenError> {
        let failed = |error| OpenError::Disk { path: snapshot::DIR.to_owned(), error };
        file::check_number(&self.folder, self.config.node)?;
        let looker = self.looker.lock().clone();
        let of_log = looker.look(goes_on).map_err(failed)?;
        let of_snapshot = {
            let _alone = loop {
                match self.shared.snapshots.try_lock_for(ASKED) {
                    Some(alone) => break alone,
                    None if goes_on() => {}
                    None => return Err(failed(given_up("a snapshot of the coordinators"))),
                }
            };
            snapshot::look(&self.folder).map_err(failed)?
        };
        Ok((of_log.0 + of_snapshot.0, of_log.1 || of_snapshot.1))
    }

    /// Stops taking part. What was answered stays.
    pub async fn stop(&self) {
        self.closing.store(true, Ordering::Release);
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "the coordinator ended with a panic");
        }
    }
}

/// Remembers what an incarnation has said, unless a later one was heard: an earlier one may live on beside it for a while, and what it says comes late or all the time.
fn note_newest<T>(said: &mut BTreeMap<NodeNumber, (u32, T)>, node: NodeNumber, epoch: u32, what: T) {
    if said.get(&node).is_none_or(|(known, _)| *known <= epoch) {
        said.insert(node, (epoch, what));
    }
}

/// A coordinator that was asked by `me` then has answered.
///
/// Each answers by what it has applied itself. Who does not lead may have been given up together with this node, and then knows of it as little as this one: what a leader
/// has refused, only who leads says otherwise, or who follows this node.
fn confirm(confirmed: &Mutex<Confirmed>, me: NodeNumber, coordinator: NodeNumber, heard: NodeHeard, asked_us: u64) {
    let mut confirmed = confirmed.lock();
    let leads = heard.leader == coordinator;
    if heard.live {
        let at = confirmed.at_us.entry(coordinator.into()).or_insert(asked_us);
        *at = asked_us.max(*at);
        if leads || heard.leader == me || !confirmed.is_refused_by_leader {
            (confirmed.refused_us, confirmed.is_refused_by_leader) = (None, false);
        }
    } else {
        let (_, last) = confirmed.refused_us.get_or_insert((asked_us, asked_us));
        *last = asked_us.max(*last);
        confirmed.is_refused_by_leader |= leads;
    }
}

/// The time since which more than `n` have answered.
fn nth_latest(mut times: Vec<u64>, n: usize) -> Option<u64> {
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.get(n).copied()
}

/// Streamlets that go from one node to another by these entries, each with the node that has it.
fn moves_away(entries: &[ClusterEntry]) -> Vec<(StreamId, u32, NodeNumber)> {
    let one = |entry: &ClusterEntry| match entry {
        ClusterEntry::MoveNoted { stream, streamlet, from, to, .. } if from != to => Some((*stream, *streamlet, *from)),
        _ => None,
    };
    entries.iter().filter_map(one).collect()
}

/// Roles as messages name them.
pub(crate) fn encoded<B: Body>(body: &B, version: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.encode(version, &mut bytes);
    bytes
}

pub(crate) fn malformed(reason: String) -> CoordinatorError {
    tracing::warn!(reason, "a message of another node is refused");
    CoordinatorError::Protocol(ProtocolError::BadField {
        field: "cluster message",
        value: 0,
        allowed: "one that is whole",
    })
}

/// A message as operation, version and body.
pub(crate) fn packed<M: Message>(message: &M) -> (Op, u8, Vec<u8>) {
    let version = M::OP.version_max();
    (M::OP, version, encoded(message, version))
}

#[cfg(test)]
mod tests {
    use kera_coordinator::catalog::PRODUCER_BLOCK;
    use kera_env::{MemoryDisk, SystemClock};
    use kera_format::ProducerId;
    use kera_format::raft::{LogEntry, Payload, Record};

    use super::*;
    use crate::network::Pending;
    use crate::snapshot::CODED;
    use crate::types::{Place, StoredMembers, log_id, members};

    #[test]
    fn a_majority_has_answered_when_more_than_half_have() {
        assert_eq!(nth_latest(vec![7], 0), Some(7), "one coordinator");
        assert_eq!(nth_latest(vec![], 0), None);
        assert_eq!(nth_latest(vec![9], 1), None, "one of two or three");
        assert_eq!(nth_latest(vec![3, 9, 5], 1), Some(5), "two of three since then");
        assert_eq!(nth_latest(vec![1, 2, 3, 4, 5], 2), Some(3));
    }

    #[test]
    fn an_answer_that_says_lost_and_one_that_comes_late_confirm_nothing() {
        let confirmed = Mutex::default();
        confirm(&confirmed, 1, 2, NodeHeard { leader: 2, live: true }, 50);
        confirm(&confirmed, 1, 2, NodeHeard { leader: 2, live: true }, 40);
        confirm(&confirmed, 1, 2, NodeHeard { leader: 2, live: false }, 60);
        assert_eq!(confirmed.lock().at_us.get(&2), Some(&50));
        assert_eq!(confirmed.lock().refused_us, Some((60, 60)));
        confirm(&confirmed, 1, 3, NodeHeard { leader: 2, live: false }, 70);
        assert_eq!(confirmed.lock().refused_us, Some((60, 70)));
        confirm(&confirmed, 1, 2, NodeHeard { leader: 2, live: true }, 80);
        assert_eq!(confirmed.lock().refused_us, None);
    }

    /// As two nodes that were given up while they were cut off together: each has applied that the other takes part.
    #[test]
    fn what_a_leader_has_refused_nobody_takes_back_who_knows_as_little_as_the_node_itself() {
        let confirmed: Mutex<Confirmed> = Mutex::default();
        let refused_us = || confirmed.lock().refused_us;
        confirm(&confirmed, 1, 2, NodeHeard { leader: 3, live: false }, 10);
        confirm(&confirmed, 1, 4, NodeHeard { leader: 0, live: true }, 20);
        assert_eq!(refused_us(), None, "one that has not come as far as another");
        confirm(&confirmed, 1, 3, NodeHeard { leader: 3, live: false }, 30);
        for leader in [0, 3] {
            confirm(&confirmed, 1, 4, NodeHeard { leader, live: true }, 40);
        }
        confirm(&confirmed, 1, 3, NodeHeard { leader: 3, live: false }, 50);
        assert_eq!(refused_us(), Some((30, 50)));
        confirm(&confirmed, 1, 4, NodeHeard { leader: 1, live: true }, 60);
        assert_eq!(refused_us(), None, "it follows this node");
        confirm(&confirmed, 1, 3, NodeHeard { leader: 3, live: false }, 70);
        confirm(&confirmed, 1, 4, NodeHeard { leader: 4, live: true }, 80);
        assert_eq!(refused_us(), None, "it leads");
    }

    #[test]
    fn signs_of_life_of_an_earlier_incarnation_do_not_hide_those_of_the_one_that_takes_part() {
        let mut said = BTreeMap::new();
        for (epoch, at_us) in [(3, 10), (4, 20), (3, 30)] {
            note_newest(&mut said, 2, epoch, at_us);
        }
        assert_eq!(said[&2], (4, 20));
        note_newest(&mut said, 2, 4, 40);
        assert_eq!(said[&2], (4, 40));
    }

    /// Reaches nobody.
    struct Nowhere;

    impl Transport for Nowhere {
        fn call(&self, _: u64, _: &str, _: Op, _: Vec<u8>) -> Pending<Vec<u8>> {
            Box::pin(async { Err("nobody is there".into()) })
        }
    }

    fn place(term: u64, index: u64) -> RaftPlace {
        RaftPlace { term, leader: 1, index }
    }

    fn blank(term: u64, index: u64) -> Record {
        Record::Appended(LogEntry { place: place(term, index), payload: Payload::Blank })
    }

    /// A snapshot that goes so far, with this node as the one that votes.
    fn snapshot_until(applied: Place) -> Vec<u8> {
        let alone = members(&[vec![1]], &[(1, "1".into())]);
        snapshot::encode([1; 16], &ClusterState::default(), applied, &StoredMembers::new(Some(applied), alone))
    }

    async fn starts(disk: &Arc<MemoryDisk>) -> Arc<Group> {
        let config = GroupConfig {
            node: 1,
            uuid: [1; 16],
            address: "1".into(),
            streams_max: 1,
            copies_max: 1,
            snapshot_entries: 1000,
            snapshot_bytes: 1 << 20,
            timing: Timing { command_ms: 120_000, stands_still_ms: 120_000, ..Timing::default() },
            level_max: level::NEWEST,
            balance_after_ms: None,
        };
        let clock = Arc::new(SystemClock::new());
        Group::start(config, disk.clone(), Arc::new(Nowhere), clock).await.unwrap()
    }

    /// Starts the node on its disk, until it leads and has applied something behind a place.
    async fn leads_behind(disk: &Arc<MemoryDisk>, applied: Place) -> Arc<Group> {
        let group = starts(disk).await;
        group.wait_for_leader().await.unwrap();
        let leads = group.raft.wait(None).metrics(|metrics| metrics.last_applied > Some(applied), "its entry").await;
        leads.unwrap();
        group
    }

    /// The same, and stops it.
    async fn goes_on_behind(disk: &Arc<MemoryDisk>, applied: Place) {
        leads_behind(disk, applied).await.stop().await;
    }

    /// The log of a node that has voted in term 9, and a snapshot that goes further.
    fn disk_with_snapshot(applied: Place) -> Arc<MemoryDisk> {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(file::folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![Record::Vote { term: 9, node: 1, committed: false }, blank(0, 0), blank(9, 1)]).unwrap();
        drop(log);
        snapshot::write(&file::folder(disk.clone()), applied.index, &snapshot_until(applied)).unwrap();
        disk
    }

    /// However large it is, the node says meanwhile that it lives.
    #[tokio::test]
    async fn a_snapshot_that_comes_is_read_on_another_thread() {
        let group = starts(&Arc::new(MemoryDisk::new())).await;
        let (place, nodes) =
            (RaftPlace { term: 5, leader: 2, index: 100 }, [(1_u64, "1".to_owned()), (2, "2".to_owned())]);
        let applied = log_id(&place);
        let voters = StoredMembers::new(Some(applied), members(&[vec![2]], &nodes));
        let part = snapshot::encode([2; 16], &ClusterState::default(), applied, &voters);
        let ballot = RaftBallot { term: 5, node: 2, committed: true };
        let before = CODED.get();
        group.take_part(RaftSnapshot { ballot, place, offset: 0, part, last: true }).await.unwrap();
        group.wait_followed(100).await.unwrap();
        assert_eq!(CODED.get(), before);
        group.stop().await;
    }

    /// Another leader was in between, and has given that to somebody.
    #[tokio::test]
    async fn what_was_planned_of_producers_in_one_term_and_written_in_another_one_is_given_to_nobody() {
        let applied = log_id(&place(5, 100));
        let group = leads_behind(&disk_with_snapshot(applied), applied).await;
        let term = group.raft.metrics().borrow().current_term;
        let mut leading = group.leading.lock().await;
        assert!(group.allocate_in(term - 1, &mut leading, None).await.is_err(), "a block");
        let given = group.allocate_in(term, &mut leading, None).await.unwrap().0.producer_id;
        assert!(group.allocate_in(term - 1, &mut leading, Some(given)).await.is_err(), "an epoch");
        let raised = group.allocate_in(term, &mut leading, Some(given)).await.unwrap().0;
        assert_eq!((raised.producer_id, raised.producer_epoch.0), (given, 2), "the one before is left out");
        // Who leads knows which ids nobody has. Who has led in a term before that does not: whoever has led in between may have given it to somebody.
        let unknown = Some(ProducerId(given.0 + 2 * PRODUCER_BLOCK));
        let error = group.allocate_in(term - 1, &mut leading, unknown).await.unwrap_err();
        assert!(matches!(error, CoordinatorError::NoLeader(_)), "{error}");
        let error = group.allocate_in(term, &mut leading, unknown).await.unwrap_err();
        assert!(matches!(error, CoordinatorError::NoSuchProducer(_)), "{error}");
        drop(leading);
        group.stop().await;
    }

    /// Nothing is wrong with it: a native client or a Kafka client that took it for its mistake would end, and so would a node that starts.
    #[tokio::test]
    async fn a_command_that_others_are_quicker_than_each_time_is_to_be_given_again() {
        let applied = log_id(&place(5, 100));
        let group = leads_behind(&disk_with_snapshot(applied), applied).await;
        let mut leading = group.leading.lock().await;
        let planned = AtomicU64::new(0);
        let plan = |_: &ClusterState| {
            planned.fetch_add(1, Ordering::Relaxed);
            // Levels are raised one by one.
            Ok(vec![ClusterEntry::LevelRaised { level: level::NEWEST }])
        };
        let error = group.commit(&mut leading, plan).await.unwrap_err();
        assert_eq!((planned.load(Ordering::Relaxed), error.status()), (3, Status::NotReady), "{error}");
        assert!(error.to_string().contains("so the next one is"), "{error}");
        drop(leading);
        group.stop().await;
    }

    /// What a kill leaves between the rename of a snapshot and the sync of the directory. The next start goes on with it and cuts the log behind it, and then the power goes.
    #[tokio::test]
    async fn a_snapshot_behind_which_a_start_has_cut_the_log_survives_a_power_cut() {
        for seed in 0..8 {
            let disk = Arc::new(MemoryDisk::new());
            // Whatever else a start would sync is there for good.
            file::check_number(&file::folder(disk.clone()), 1).unwrap();
            let mut log = LogFile::open(file::folder(disk.clone()), [1; 16]).unwrap();
            let vote = Record::Vote { term: 5, node: 1, committed: false };
            log.write(vec![vote, blank(0, 0), blank(5, 1), blank(5, 2), blank(5, 3)]).unwrap();
            log.copy();
            drop(log);
            snapshot::write(&file::folder(disk.clone()), 2, &snapshot_until(log_id(&place(5, 2)))).unwrap();
            let (applied, path) = (log_id(&place(5, 100)), format!("{}/{:016}.snapshot", snapshot::DIR, 100));
            let unfinished = format!("{path}.tmp");
            disk.create_with(&unfinished, &snapshot_until(applied)).unwrap().sync_data().unwrap();
            disk.rename(&unfinished, &path).unwrap();
            for _ in 0..2 {
                goes_on_behind(&disk, applied).await;
                disk.crash(seed);
            }
        }
    }

    /// What a kill leaves between a snapshot that has come and the cut of the log that it replaces, where that was written in a later term.
    #[tokio::test]
    async fn a_log_that_ends_in_front_of_a_snapshot_of_an_earlier_term_begins_behind_it() {
        let applied = log_id(&place(5, 100));
        let disk = disk_with_snapshot(applied);
        goes_on_behind(&disk, applied).await;
        let log = LogFile::open(file::folder(disk), [1; 16]).unwrap();
        assert_eq!(log.contents().purged, Some(place(5, 100)));
        assert_eq!(log.contents().entries.first_key_value().map(|(index, _)| *index), Some(101));
    }
}
