//! A run of a cluster: nodes, clients and everything that goes wrong between them, from a seed.
//!
//! First faults happen. Then everything is healed: all that producers want to write must be acknowledged, and all copies be there
//! again, within simulated minutes. Then everything is killed, loses power or burns once more as far as copies allow, and every
//! lane is read from its beginning to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kera_coordinator::cluster::{EndLooks, Join, LogState};
use kera_env::{Clock, ManualClock, Random, SeededRandom};
use kera_format::cluster::{ClusterEntry, Doors, LogName, Roles};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamOptions, level};
use kera_protocol::{FrameHeader, LetGo};

use super::CLUSTER;
use super::away::Away;
use super::client::{Client, REPORT, Seen, Told as TellTale};
use super::coordinators::Coordinators;
use super::early::Left;
use super::faults::{Fault, faults_of};
use super::floors::Floors;
use super::leading::Fencing;
use super::losses::{Losses, may_lose};
use super::majority::LostMajority;
use super::member::Member;
use super::network::{Cuts, Packet};
use super::node::Node;
use super::people::COMING_MAX;
use super::plan::{Kind, Plan, Planted, Report};
use super::producer::Producer;
use super::reader::Reader;
use super::streams::Streams;
use super::unread::Unread;
use super::voting::Voting;
use crate::cluster::client::Answer;
use crate::cluster::schedule::{Schedule, Trace};
use crate::cluster::truth::{Truth, Violation};
use crate::faults::Faults;

/// Simulated time within which everything must be done once all is well, in microseconds.
const HEALED_US: u64 = 60_000_000;
const EVENTS_MAX: u64 = 20_000_000;
pub(super) const BEAT_US: u64 = 100_000;
/// How long a recovery waits for a backup, and how long it pauses.
pub(super) const ASK_US: u64 = 2_000_000;
pub(super) const PAUSE_US: u64 = 100_000;

#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A frame arrives at a node, or at a client; a connection is there, or is gone.
    ToNode(u64, FrameHeader, Bytes),
    ToClient(u64, FrameHeader, Bytes),
    Connected(u64),
    LostAtNode(u64),
    LostAtClient(u64),
    Timer(usize, u64),
    /// Something another node said arrives: from, to, and the life of the process that it was said to.
    Packet(u32, u32, u32, Packet),
    /// Turns of a node's threads, with the process's life.
    Logs(u32, u32),
    LogTimers(u32, u32),
    Backup(u32, u32),
    Store(u32, u32),
    OwnLogs(u32, u32),
    Tick(u32, u32),
    Compact(u32, u32),
    Beat(u32, u32),
    Deadline(u32, u32),
    Recover(u32, u32),
    Coordinate(u32, u32),
    /// A node begins to follow what becomes true, and is told more of it.
    Follow(u32, u32),
    Hear(u32, u32),
    Retry(u32, u32, u64),
    /// The owner of a streamlet looks again whether it has let go: who asked, the number of the question, what, and how often it has looked.
    LettingGo(u32, u32, (u32, u64, LetGo, u32)),
    /// A move to a node goes on: its number, and that of the question that nobody has answered.
    Take(u32, u32, u64, u64),
    /// It is looked whether the last copies of a streamlet are there that is let go for them, by the move's number.
    LastCopies(u32, u32, u64),
    /// A node that is being stopped looks how far it is.
    Stopping(u32, u32),
    /// A node that was drained may own streamlets again, unless it is to be empty when everything is healed.
    Undrain(u32),
    /// A person looks whether something is lost for good.
    Losses,
    /// A person wants all streams to have several copies.
    CopyAll,
    /// It is looked how far those are who took over from a node that is away.
    Away,
    /// A person looks how far the removal of a node is.
    Leaving(u32),
    /// A person has a coordinator go on alone, and looks how far that is.
    GoesOnAlone(u32),
    /// Clients look for streams that were made, or deleted.
    Streams,
    GoOn(u32, u32, usize, u64),
    Start(u32),
    Thaw(u32, u32),
    Heal(u32, Fault),
    Fault,
    Elect,
}

impl Event {
    /// The connection by which it comes to a node, if it does.
    fn to_node(&self) -> Option<u64> {
        match self {
            Event::ToNode(wire, ..) | Event::LostAtNode(wire) => Some(*wire),
            _ => None,
        }
    }

    /// The process that it is a turn of, if it is one: its node, and its life.
    fn turn_of(&self) -> Option<(u32, u32)> {
        use Event as Is;
        match self {
            Is::Logs(node, life) | Is::LogTimers(node, life) | Is::Backup(node, life) | Is::Store(node, life) => {
                Some((*node, *life))
            }
            Is::OwnLogs(node, life) | Is::Tick(node, life) | Is::Compact(node, life) | Is::Beat(node, life) => {
                Some((*node, *life))
            }
            Is::Deadline(node, life) | Is::Recover(node, life) | Is::Coordinate(node, life) => Some((*node, *life)),
            Is::Follow(node, life) | Is::Hear(node, life) | Is::Retry(node, life, _) => Some((*node, *life)),
            Is::GoOn(node, life, ..) | Is::LettingGo(node, life, _) | Is::Take(node, life, ..) => Some((*node, *life)),
            Is::LastCopies(node, life, _) | Is::Stopping(node, life) => Some((*node, *life)),
            _ => None,
        }
    }
}

/// A connection, as both sides see it.
pub(super) struct Wire {
    pub(super) client: usize,
    pub(super) node: u32,
    pub(super) is_open_at_client: bool,
    pub(super) is_open_at_node: bool,
    /// When the last frame arrives at the node, and at the client: none overtakes another.
    pub(super) last_us: [u64; 2],
}

pub(super) struct Slot {
    pub(super) client: Box<dyn Client>,
    pub(super) wires: BTreeMap<u32, u64>,
    pub(super) correlation: u64,
    pub(super) timer: u64,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: SeededRandom,
    pub(super) schedule: Schedule<Event>,
    pub(super) trace: Trace,
    pub(super) clock: Arc<ManualClock>,
    pub(super) nodes: Vec<Node>,
    pub(super) voters: Vec<u32>,
    pub(super) replication: u32,
    pub(super) coordinators: Coordinators,
    /// Their logs on disks, in runs in which they have them there.
    pub(super) voting: Option<Voting>,
    /// Most of them, if they were lost.
    pub(super) majority: Option<LostMajority>,
    /// What leaders have asked backups to fence: by the leader, and the node and epoch that are over.
    pub(super) fencing: BTreeMap<(u32, u32, u32), Fencing>,
    /// Whom they have asked how far lost logs go.
    pub(super) looks: BTreeMap<u32, EndLooks>,
    pub(super) cuts: Cuts,
    /// Since when disks stand still, and until when, by the node.
    pub(super) stuck: BTreeMap<u32, (u64, u64)>,
    pub(super) held: Vec<(u32, u32, Event)>,
    pub(super) clients: Vec<Slot>,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) next_number: u64,
    pub(super) truth: Truth,
    pub(super) told: TellTale,
    pub(super) faults: Faults<Fault>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) events_of: BTreeMap<&'static str, u64>,
    pub(super) events: u64,
    pub(super) is_troubled: bool,
    /// In the end all streams are to have several copies.
    pub(super) copies_all: bool,
    pub(super) is_compacting: bool,
    /// Who is to own nothing when everything is healed.
    pub(super) emptied: Option<u32>,
    /// Moves that whoever leads has asked for to even out the nodes, and that are not known to be done.
    pub(super) evening: BTreeSet<u64>,
    pub(super) power: bool,
    /// When answers left their nodes that are on their way, by connection and request, if asynchronous streams are looked at; and when the one
    /// that has just arrived did.
    pub(super) left: BTreeMap<(u64, u64), Left>,
    pub(super) left_of_answer: Left,
    /// Backups that may have lost something of a log's view: the node, the log, and which view of it.
    pub(super) lossy: BTreeSet<(u32, LogName, usize)>,
    /// What the disks of backups have lost, and who goes on without.
    pub(super) unread: Unread,
    /// A node that is away while nobody can open what it had.
    pub(super) away: Option<Away>,
    /// How many nodes there were first.
    pub(super) founded: u32,
    /// Nodes that a person is removing, and until when they are waited for to be empty.
    pub(super) leaving: BTreeMap<u32, u64>,
    /// The streams, and what was made and deleted of them.
    pub(super) streams: Streams,
    dir: tempfile::TempDir,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Report {
    let mut world = World::new(plan);
    let violation = world.run().err().map(|violation| violation.0);
    world.events_of.insert("owner changes", world.coordinators.owner_changes());
    world.events_of.insert("views changed", world.coordinators.views_changed);
    world.events_of.insert("gave up logs while others were rebuilt from", world.coordinators.given_up_meanwhile);
    world.events_of.insert("logs of lost nodes, at most", world.coordinators.lost_logs_most);
    world.events_of.insert("took ends back", world.coordinators.taken_back);
    world.events_of.insert("began to rebuild beside logs without an end", world.coordinators.passed_over);
    world.events_of.insert("gave up logs without an end", world.coordinators.open_given_up);
    world.events_of.insert("copied what is held", world.coordinators.held_copied);
    world.events_of.append(&mut world.told.did);
    Report {
        seed: plan.seed,
        trace: world.trace.value(),
        events: world.events,
        simulated_ms: world.now_us() / 1000,
        acknowledged: world.truth.acknowledged(),
        checks: world.truth.checks(),
        faults: std::mem::take(&mut world.counts),
        did: std::mem::take(&mut world.events_of),
        violation,
    }
}

/// The rack of a node: three of them for more than three nodes, none for fewer.
pub(super) fn rack_of(node: u32, count: u32) -> String {
    if count > 3 { ["a", "b", "c"][node as usize % 3].to_owned() } else { String::new() }
}

/// A machine of a cluster, with nothing on it.
fn machine(plan: &Plan, number: u32, clock: &ManualClock, dir: &std::path::Path) -> Node {
    let clock = Arc::new(ManualClock::new(clock.now_ms()));
    let mut node = Node::new(number, plan.seed, &clock, dir);
    node.tells_of_boots = plan.planted != Some(Planted::ForgetsPowerCuts);
    node.forgets_held = plan.planted == Some(Planted::ForgetsHeld);
    node.gives_up_held = plan.planted == Some(Planted::GivesUpHeld);
    node.changes_unsettled = plan.planted == Some(Planted::ChangesUnsettled);
    // One of three may have to take over all streamlets while they are read.
    node.arena_bytes *= if plan.three { 4 } else { 1 };
    node.consumes_early = plan.planted == Some(Planted::ConsumesEarly);
    node.planted = plan.planted;
    node.own_logs_lie = plan.planted == Some(Planted::AcknowledgesUnwritten);
    node.leaves_out_own_logs = plan.planted == Some(Planted::LeavesOutOwnLogs);
    node.forgets_memory = plan.planted == Some(Planted::ForgetsMemory);
    node.mends_nothing = plan.planted == Some(Planted::MendsNothing);
    node.ages.believes_all = plan.planted == Some(Planted::BelievesItsClock);
    node.believes_its_disk = plan.planted == Some(Planted::BelievesItsDisk);
    node.removes_blindly = plan.planted == Some(Planted::RemovesBlindly);
    node.believes_the_removed = plan.planted == Some(Planted::BelievesTheRemoved);
    node.forgets_floors = plan.planted == Some(Planted::ForgetsFloors);
    node.has_own_logs = plan.has_one_copy();
    node.in_pieces = plan.in_pieces;
    node.tells_little = plan.tells_little;
    node
}

impl World {
    fn new(plan: &Plan) -> World {
        let shared = std::path::Path::new("/dev/shm");
        let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let dir = dir.expect("a directory for arenas");
        let random = SeededRandom::new(plan.seed);
        // A stream that survives kills only is not to be tried with power cuts of all machines: half of the seeds each.
        // Nothing would be left of what is acknowledged without copies, so that is refused with durability `power`.
        let power = plan.seed.is_multiple_of(2) && plan.kind != Kind::Async;
        let replication = 2 + Random::below(&random, 2) as u32;
        let count = replication + 1 + Random::below(&random, 2) as u32;
        // There must be machines left for copies when several burn at once.
        let burns = may_lose(&plan.only) || plan.only.contains(&Fault::MajorityLost);
        let count = count + if burns { 2 } else { 0 };
        let count = if plan.three { 3 } else { count };
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        // Machines that come under the number of another one have nothing of what that had answered for: not played with it.
        let has_disks = plan.coordinator_disks && !plan.only.contains(&Fault::Remove);
        World {
            nodes: (1..=count).map(|number| machine(plan, number, &clock, dir.path())).collect(),
            voters: (1..=3).collect(),
            replication,
            faults: faults_of(&plan.only, power, plan.changes_copies),
            plan: plan.clone(),
            random,
            schedule: Schedule::default(),
            trace: Trace::default(),
            clock,
            coordinators: Coordinators::new(plan.planted == Some(Planted::ForgetsNumbers), has_disks),
            voting: has_disks.then(Voting::default),
            majority: None,
            fencing: BTreeMap::new(),
            looks: BTreeMap::new(),
            cuts: Cuts::new(count + COMING_MAX),
            stuck: BTreeMap::new(),
            held: Vec::new(),
            clients: Vec::new(),
            wires: BTreeMap::new(),
            next_number: 1,
            truth: Truth::default(),
            told: TellTale::new(Losses::new(may_lose(&plan.only)), Floors::new(&plan.only)),
            counts: BTreeMap::new(),
            events_of: BTreeMap::new(),
            events: 0,
            is_troubled: true,
            copies_all: false,
            is_compacting: plan.kind.is_compacted(),
            emptied: None,
            evening: BTreeSet::new(),
            power,
            left: BTreeMap::new(),
            left_of_answer: Left::default(),
            lossy: BTreeSet::new(),
            unread: Unread::new(&plan.only),
            away: None,
            founded: count,
            leaving: BTreeMap::new(),
            streams: Streams::new(&plan.only),
            dir,
        }
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        Random::below(&self.random, limit)
    }

    pub(super) fn now_us(&self) -> u64 {
        self.schedule.now_us()
    }

    pub(super) fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    pub(super) fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize - 1]
    }

    pub(super) fn node_mut(&mut self, number: u32) -> &mut Node {
        &mut self.nodes[number as usize - 1]
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// One that comes later.
    pub(super) fn machine(&self, number: u32) -> Node {
        let founded = ManualClock::new(self.clock.now_ms() - (self.now_us() / 1000) as i64);
        let node = machine(&self.plan, number, &founded, self.dir.path());
        node.clock.advance_us(self.now_us());
        node
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.found()?;
        (1..=self.count()).for_each(|node| self.schedule.after(1_000, Event::Start(node)));
        self.schedule.after(1, Event::Elect);
        self.run_until(2_000_000)?;
        // One that has joined twice, as an answer was lost, may not have heard yet that its first life is over; and streams want as many nodes as they have copies.
        let is_there = |world: &World| {
            let nodes = world.coordinators.state.nodes();
            nodes.len() as u32 == world.count() && nodes.values().all(|node| !node.fenced)
        };
        while self.now_us() < 20_000_000 && !is_there(self) {
            self.run_until(self.now_us() + 100_000)?;
        }
        let streams = self.create_streams()?;
        for (number, (stream, options)) in (0..).zip(&streams) {
            for of in 0..2 {
                self.add(Box::new(Producer::new(2 * number + of, *stream, options.streamlets, &self.plan)))?;
            }
            self.streams.begin(*stream, options);
        }
        for place in self.streams.places() {
            self.add(Box::new(Reader::new(place)))?;
        }
        let members = self.members(&streams);
        for (application, stream, streamlets) in &members {
            self.add(Box::new(Member::new(application, *stream, *streamlets, self.plan.kind)))?;
        }
        self.schedule.after(500_000, Event::Fault);
        self.begin_losses();
        self.begin_to_look_at_streams();
        self.run_until(self.plan.trouble_ms * 1000)?;
        self.heal();
        self.until_done("everything is healed")?;
        self.told.early.is_settled = true;
        self.fill_again();
        if self.plan.changes_copies {
            self.copy_all();
            self.until_done("everything was to have copies")?;
        }
        self.once_more();
        if self.plan.kind.is_compacted() {
            // What came back is compacted, too. Then no more: a tombstone must not go while somebody reads who has read what it hides.
            self.run_until(self.now_us() + 8_000_000)?;
            self.is_compacting = false;
        }
        for slot in std::mem::take(&mut self.clients) {
            self.wires.retain(|wire, _| !slot.wires.values().any(|own| own == wire));
        }
        for place in self.streams.places() {
            self.add(Box::new(Reader::last(place)))?;
        }
        for (application, stream, streamlets) in members {
            self.add(Box::new(Member::new(application, stream, streamlets, self.plan.kind)))?;
        }
        self.until_done("everything was lost once more that may be")
    }

    /// Who reads the streams together: one application with some members, and another one with one: sometimes, or always if what both have read goes.
    fn members(&self, streams: &[(StreamId, StreamOptions)]) -> Vec<(&'static str, StreamId, u32)> {
        let mut members = Vec::new();
        let is_usual = !self.plan.kind.is_of_applications();
        for (stream, options) in streams.iter().filter(|_| self.plan.applications || !is_usual) {
            let of = |application| (application, *stream, options.streamlets);
            members.extend((0..2 + self.below(2)).map(|_| of(REPORT)));
            // What has gone before an application is there it never gets.
            let others = self.below(2);
            let others = if self.plan.kind.is_consumed() { 1 } else { others };
            members.extend((0..others).filter(|_| is_usual || self.plan.kind.is_consumed()).map(|_| of("audit")));
        }
        members
    }

    pub(super) fn run_until(&mut self, until_us: u64) -> Result<(), Violation> {
        while self.now_us() < until_us {
            self.step()?;
        }
        Ok(())
    }

    fn until_done(&mut self, since: &str) -> Result<(), Violation> {
        let end_us = self.now_us() + HEALED_US * if self.plan.three { 5 } else { 1 };
        loop {
            // The look at all nodes costs more than most events.
            for _ in 0..200 {
                self.step()?;
            }
            let waiting = self.waiting();
            if waiting.is_empty() {
                self.truth.checked();
                return Ok(());
            }
            if self.now_us() > end_us || self.events > EVENTS_MAX {
                return Err(Violation(format!("not done for long after {since}: {}", waiting.join("; "))));
            }
        }
    }

    /// What is not as it must become when all is well.
    fn waiting(&self) -> Vec<String> {
        let (gone, now_ms) = (&self.coordinators.gone, self.clock.now_ms());
        let seen = Seen { truth: &self.truth, told: &self.told, gone, now_ms };
        let slots = self.clients.iter().filter(|slot| !slot.client.is_done(&seen));
        let mut waiting: Vec<String> = slots.map(|slot| slot.client.state()).collect();
        let state = &self.coordinators.state;
        for node in self.nodes.iter().filter(|node| !node.is_gone) {
            let number = node.number;
            let Some(running) = node.process.as_ref().and_then(|process| process.running.as_ref()) else {
                waiting.push(format!("node {number} does not run"));
                continue;
            };
            if !state.is_live(number, running.epoch) {
                waiting.push(format!("node {number} is lost in its epoch {}", running.epoch));
            }
            let left = state.to_rebuild(number, running.epoch).len();
            if left > 0 {
                waiting.push(format!("node {number} has {left} streamlets to rebuild: {}", running.recovery.why));
            }
            if running.own.pending() > 0 {
                waiting.push(format!("the disk of node {number} has not taken all of its own logs"));
            }
            for log in running.copies.all() {
                let stats = log.stats();
                if stats.under_way + stats.pending_references > 0 {
                    let (acknowledged, view) = log.state();
                    let under_way = stats.under_way;
                    waiting
                        .push(format!("a log of node {number}: {under_way} blocks behind {acknowledged} in {view:?}"));
                }
            }
        }
        waiting.extend(self.without_all_copies());
        waiting.extend(self.without_copies());
        waiting.extend(self.crowded());
        waiting.extend(self.without_last_blocks());
        waiting.extend(self.moving());
        waiting.extend(self.to_be_copied());
        waiting.extend(self.named());
        waiting.extend(self.missing());
        waiting.extend(self.without_majority());
        waiting.extend(self.unheard());
        for (node, epoch) in state.lost() {
            waiting.push(format!("what node {node} had in its epoch {epoch} has no live owner"));
        }
        waiting.extend(self.without_end());
        if waiting.is_empty() {
            waiting.extend(self.damaged());
        }
        waiting
    }

    /// Logs of lost nodes that have no end, with what their backups would say.
    fn without_end(&self) -> Vec<String> {
        let logs = self.coordinators.state.lost_logs().filter(|(_, log)| log.end.is_none());
        let told = |(name, log): (LogName, &LogState)| {
            let (first, backups) = log.views.last().map_or((0, &[][..]), |view| (view.first, &view.backups));
            let id = LogId::from(name);
            let one = |backup: &u32| {
                let running = self.node(*backup).process.as_ref().and_then(|process| process.running.as_ref());
                match running.map(|running| running.backup.end_now(id, first)) {
                    Some(end) if end.certain => format!("node {backup} has it to {}", end.through),
                    Some(end) => format!("node {backup} has it to {} or further", end.through),
                    None => format!("node {backup} is not there"),
                }
            };
            let backups: Vec<String> = backups.iter().map(one).collect();
            format!("{name} has no end from block {first} on: {}", backups.join(", "))
        };
        logs.map(told).collect()
    }

    /// Everything is lost that copies allow to lose: one machine for good, or the memory or the processes of all.
    fn once_more(&mut self) {
        let all: Vec<u32> = (1..=self.count()).collect();
        let from = self.below(all.len() as u64) as usize;
        let has_one_copy = self.plan.has_one_copy() && !self.plan.changes_copies;
        let may_burn = |node: &u32| {
            !has_one_copy
                && !self.node(*node).is_gone
                && self.is_spare(*node)
                && self.survives(&[*node], &[*node], true)
        };
        let one = all[from..].iter().chain(&all[..from]).copied().find(may_burn);
        match one.filter(|_| self.below(2) == 0) {
            Some(node) => {
                *self.events_of.entry("burned once more").or_default() += 1;
                self.destroy(node);
            }
            None if self.power && self.survives(&all, &[], false) => {
                all.into_iter().for_each(|node| self.lose_power(node))
            }
            None => all.into_iter().for_each(|node| self.kill(node, None)),
        }
    }

    fn found(&mut self) -> Result<(), Violation> {
        let join = self.join_of(1);
        let now_ms = self.clock.now_ms();
        let newest = self.plan.level;
        let told = self.coordinators.commit(|state| {
            let mut entries = state.plan_found(CLUSTER, &join, now_ms)?;
            entries.extend((level::FIRST + 1..=newest).map(|level| ClusterEntry::LevelRaised { level }));
            Ok(entries)
        })?;
        told.map(drop).map_err(Violation)?;
        self.found_on_disks()
    }

    pub(super) fn join_of(&self, number: u32) -> Join {
        let node = self.node(number);
        let roles = match node.is_coordinator {
            true => Roles::COORDINATOR.0 | Roles::BROKER.0 | Roles::BACKUP.0,
            false => Roles::BROKER.0 | Roles::BACKUP.0,
        };
        let door = format!("node-{number}:1");
        Join {
            node: number,
            uuid: node.id,
            roles: Roles(roles),
            rack: rack_of(number, self.founded),
            doors: Doors { cluster: door.clone(), native: door, kafka: String::new(), http: String::new() },
            settings: Vec::new(),
            epoch_min: node.epoch + 1,
            has_all: node.has_all(),
            levels: (level::FIRST, level::NEWEST),
        }
    }

    pub(super) fn add(&mut self, client: Box<dyn Client>) -> Result<(), Violation> {
        self.clients.push(Slot { client, wires: BTreeMap::new(), correlation: 0, timer: 0 });
        let at = self.clients.len() - 1;
        self.with(at, |client, around| client.timer(around))
    }

    fn step(&mut self) -> Result<(), Violation> {
        self.events += 1;
        let before_us = self.now_us();
        let event = self.schedule.take().ok_or_else(|| Violation("nothing is left to happen".to_owned()))?;
        let passed_us = self.now_us() - before_us;
        self.clock.advance_us(passed_us);
        self.nodes.iter().for_each(|node| node.clock.advance_us(passed_us));
        self.take(event)
    }

    /// The node that an event is for, if it is for a process that may stand still.
    fn process_of(&self, event: &Event) -> Option<u32> {
        use Event as Is;
        match event {
            Is::ToNode(wire, ..) | Is::Connected(wire) | Is::LostAtNode(wire) => {
                self.wires.get(wire).map(|wire| wire.node)
            }
            Is::Packet(_, to, ..) => Some(*to),
            turn => turn.turn_of().map(|(node, _)| node),
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Violation> {
        let of = self.process_of(&event);
        if let Some(node) = of
            && self.now_us() < self.node(node).frozen_until_us
        {
            self.held.push((node, self.node(node).life, event));
            return Ok(());
        }
        if let Some(until_us) = self.waits_for_disk(&event) {
            self.schedule.at(until_us, event);
            return Ok(());
        }
        self.note(&event);
        // The logs' own turn says itself whether there is another one.
        let is_turn_of_logs = matches!(event, Event::Logs(..) | Event::LogTimers(..));
        self.act(event)?;
        self.end_fallen();
        self.note_losses();
        match of {
            Some(node) if !is_turn_of_logs => self.after_turn(node),
            _ => Ok(()),
        }
    }

    fn note(&mut self, event: &Event) {
        self.trace.add(self.now_us());
        match event {
            Event::ToNode(wire, header, body) | Event::ToClient(wire, header, body) => {
                self.trace.add(*wire);
                self.trace.add(header.correlation);
                self.trace.add_bytes(body);
            }
            Event::Packet(from, to, _, packet) => {
                self.trace.add(u64::from(*from) << 32 | u64::from(*to));
                if let Packet::Block(head, _) = packet {
                    self.trace.add(u64::from(head.chunks_checksum));
                }
            }
            Event::Backup(node, _) | Event::Store(node, _) | Event::OwnLogs(node, _) | Event::Compact(node, _) => {
                self.trace.add(self.node(*node).memory.steps())
            }
            _ => self.trace.add(self.events),
        }
    }

    /// Whether a turn is of the process that runs.
    pub(super) fn is_of(&self, node: u32, life: u32) -> bool {
        self.node(node).life == life && self.node(node).process.is_some()
    }

    fn act(&mut self, event: Event) -> Result<(), Violation> {
        use Event as Is;
        match event {
            Is::ToNode(wire, header, body) => {
                let Some(node) = self.wires.get(&wire).map(|wire| wire.node) else { return Ok(()) };
                let mut said = Vec::new();
                if let Some(running) = self.node_mut(node).running() {
                    running.sessions.request(wire, header, body, &mut said);
                }
                self.send_all(said);
                Ok(())
            }
            Is::LostAtNode(wire) => {
                self.lost_at_node(wire);
                Ok(())
            }
            Is::Connected(wire) => self.connected(wire),
            Is::ToClient(wire, header, body) => self.answered(wire, header, body),
            Is::LostAtClient(wire) => {
                let Some((at, node)) = self.client_of(wire) else { return Ok(()) };
                self.wires.remove(&wire);
                self.clients[at].wires.remove(&node);
                self.with(at, |client, around| {
                    client.lost(node, around);
                    Ok(())
                })
            }
            Is::Timer(at, number) => match self.clients.get(at) {
                Some(slot) if slot.timer == number => self.with(at, |client, around| client.timer(around)),
                _ => Ok(()),
            },
            Is::Packet(from, to, life, packet) => self.arrive(from, to, life, packet),
            Is::Start(node) => self.start(node),
            Is::Thaw(node, life) => self.thaw(node, life),
            Is::Heal(node, fault) => {
                self.heal_one(node, fault);
                Ok(())
            }
            Is::Fault => self.fault(),
            Is::Elect => self.elect(),
            Is::GoesOnAlone(node) => self.go_on_alone(node),
            Is::Undrain(_) | Is::Leaving(_) | Is::Losses | Is::CopyAll | Is::Away => {
                self.person(&event);
                Ok(())
            }
            Is::Streams => self.look_at_streams(),
            event => match event.turn_of() {
                Some((node, life)) if !self.is_of(node, life) => Ok(()),
                _ => self.turn(event),
            },
        }
    }

    fn answered(&mut self, wire: u64, header: FrameHeader, body: Bytes) -> Result<(), Violation> {
        self.left_of_answer = self.left.remove(&(wire, header.correlation)).unwrap_or_default();
        let Some((at, node)) = self.client_of(wire) else { return Ok(()) };
        self.with(at, |client, around| client.answer(node, &Answer { header, body }, around))
    }

    fn lost_at_node(&mut self, wire: u64) {
        let node = self.wires.get(&wire).map(|wire| wire.node);
        if let Some(running) = node.and_then(|node| self.node_mut(node).running()) {
            running.sessions.lost(wire);
        }
    }

    fn turn(&mut self, event: Event) -> Result<(), Violation> {
        use Event as Is;
        match event {
            Is::Logs(node, life) => self.run_logs(node, life),
            Is::LogTimers(node, life) => {
                self.schedule.after(25_000, Is::LogTimers(node, life));
                self.run_logs(node, life)
            }
            Is::Backup(node, life) => self.run_backup(node, life),
            Is::OwnLogs(node, life) => self.run_own_logs(node, life),
            Is::Store(node, life) => {
                let disk_us = self.node(node).disk_us;
                let more = self.node_mut(node).running().is_some_and(|running| running.step_store());
                let pause_us = if more { disk_us + self.below(disk_us) } else { 20_000 };
                self.schedule.after(pause_us, Is::Store(node, life));
                Ok(())
            }
            Is::Tick(node, life) => self.tick(node, life),
            Is::Compact(node, life) => self.compact(node, life),
            Is::Beat(node, life) => self.beat(node, life),
            Is::Deadline(node, _) => {
                if let Some(running) = self.node_mut(node).running() {
                    running.turns.deadline_us = None;
                }
                Ok(())
            }
            Is::Recover(node, life) => self.recover(node, life),
            Is::Coordinate(node, life) => {
                self.schedule.after(BEAT_US / 2, Is::Coordinate(node, life));
                self.coordinate(node)
            }
            Is::Follow(node, _) => self.follow(node),
            Is::Hear(node, _) => self.hear(node),
            Is::Retry(node, _, number) => self.retry(node, number),
            Is::LettingGo(node, _, (from, question, asked, looks)) => {
                self.let_go(node, from, question, asked, looks);
                Ok(())
            }
            Is::Take(node, _, number, question) => {
                let running = self.node_mut(node).running();
                if running.is_some_and(|running| running.takes.get(&number).is_some_and(|take| take.asked == question))
                {
                    self.take_moved(node, number);
                }
                Ok(())
            }
            Is::LastCopies(node, _, number) => {
                self.make_last_copies(node, number);
                Ok(())
            }
            Is::Stopping(node, _) => {
                self.go_on_stopping(node);
                Ok(())
            }
            Is::GoOn(node, _, which, number) => {
                let running = self.node_mut(node).running();
                if running.is_none_or(|running| running.recovery.asked[which] != number) {
                    return Ok(());
                }
                self.resume(node, which, None)
            }
            other => unreachable!("{other:?} is no turn"),
        }
    }

    fn tick(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        self.schedule.after(500_000, Event::Tick(node, life));
        // Until it serves it does nothing of this.
        let Some(running) = self.node_mut(node).serving() else { return Ok(()) };
        running.tick();
        self.tell_gone(node);
        self.scrub(node);
        self.look_at_floors(node);
        self.copy_again(node)?;
        self.change_copies(node);
        Ok(())
    }

    /// Whether the client of a connection does not wait for it any more; in runs whose clients go on behind that.
    fn is_given_up(&self, wire: u64) -> bool {
        self.plan.impatient && self.wires.get(&wire).is_some_and(|known| !known.is_open_at_client)
    }

    fn thaw(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        if self.node(node).life != life {
            // What was frozen is gone; if the next process stands still too, its turns wait for its own end of that.
            return Ok(());
        }
        let mut held = Vec::new();
        std::mem::swap(&mut held, &mut self.held);
        let (own, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(of, ..)| *of == node);
        self.held = others;
        let mut late: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, of_life, event) in own {
            // What had come by connections that clients have given up since is treated when the process gets to it, which may be after what comes by new ones.
            if let Some(wire) = event.to_node().filter(|wire| self.is_given_up(*wire)) {
                let random_us = self.below(400_000);
                let after_us = late.entry(wire).or_insert(random_us);
                *after_us += 1;
                let after_us = *after_us;
                self.schedule.after(after_us, event);
                continue;
            }
            // What was for a process that is gone meanwhile: its turns are over, and the connections are the world's.
            if of_life == life || matches!(event, Event::Connected(_)) {
                self.take(event)?;
            }
        }
        Ok(())
    }
}
