//! From what somebody asks for to the entries that do it. Nothing here changes the state; an empty list says that it is done
//! already: asking twice is answered like asking once.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::catalog::Entry;
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, OwnerReason, Roles};
use kera_format::{StreamId, StreamOptions, copies_min, level};
use kera_protocol::{CreateStream, JoinCluster, Role, StreamChanges, StreamInfo, StreamRef, StreamletsRebuilt};

use super::rules::Refused;
use super::{ClusterState, LogState, NodeState, Run, View};
use crate::CoordinatorError;
use crate::catalog::{CLUSTER_PREFIX, Limits, has_owners};

/// Most lost nodes that are named in why something is refused.
const NAMED_MAX: usize = 16;
/// Most ranges of streamlets that get new owners in one step of a recovery.
pub const OWNER_RUNS_MAX: usize = 1000;

/// Who wants to join, and with what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The number that it has, or wants.
    pub node: NodeNumber,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// What it does.
    pub roles: Roles,
    /// Its rack; empty: none.
    pub rack: String,
    /// Where it is reached.
    pub doors: Doors,
    /// The settings that all nodes share, as it has them.
    pub settings: Vec<(String, String)>,
    /// An epoch that it has not used: what it is given is this or more.
    pub epoch_min: u32,
    /// Whether it has all that it acknowledged before, so that it can go on with its streamlets.
    pub has_all: bool,
    /// The lowest and the highest [level](kera_format::level) that it speaks.
    pub levels: (u32, u32),
}

/// Roles as they are kept and as they are told.
const ROLES: [(Roles, Role); 3] =
    [(Roles::COORDINATOR, Role::Coordinator), (Roles::BROKER, Role::Broker), (Roles::BACKUP, Role::Backup)];

/// Roles as they are told.
pub fn roles_of(roles: Roles) -> Vec<Role> {
    ROLES.into_iter().filter(|(bit, _)| roles.has(*bit)).map(|(_, role)| role).collect()
}

impl From<&JoinCluster> for Join {
    fn from(request: &JoinCluster) -> Join {
        let asked = ROLES.into_iter().filter(|(_, role)| request.roles.contains(role));
        Join {
            node: request.node,
            uuid: request.uuid,
            roles: Roles(asked.fold(0, |roles, (bit, _)| roles | bit.0)),
            rack: request.rack.clone(),
            doors: Doors {
                cluster: request.cluster_address.clone(),
                native: request.native_address.clone(),
                kafka: request.kafka_address.clone(),
                http: request.http_address.clone(),
            },
            settings: request.settings.iter().map(|setting| (setting.name.clone(), setting.value.clone())).collect(),
            epoch_min: request.epoch_min,
            has_all: request.has_all,
            levels: (request.level_min, request.level_max),
        }
    }
}

/// What a broker asks for its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogView {
    /// Which log.
    pub log: LogName,
    /// Number of the view, from 1.
    pub view: u32,
    /// The first block in it.
    pub first: u64,
    /// Who is to have it.
    pub backups: Vec<NodeNumber>,
}

pub(super) type Planned = Result<Vec<ClusterEntry>, CoordinatorError>;

impl ClusterState {
    /// The founding of a cluster by its first node, which owns all streams that are there.
    pub fn plan_found(&self, cluster: [u8; 16], join: &Join, now_ms: i64) -> Planned {
        let owner_epoch = join.epoch_min.max(1).saturating_add(1);
        let mut entries = vec![
            ClusterEntry::Founded { cluster, owner_epoch, settings: join.settings.clone() },
            joined(join, join.epoch_min.max(1), now_ms),
        ];
        if join.roles.has(Roles::BROKER) {
            entries.extend(self.catalog.streams().filter(is_owned).map(|info| ClusterEntry::OwnerChanged {
                stream: info.id,
                first: 0,
                count: info.options.streamlets,
                node: join.node,
                epoch: join.epoch_min.max(1),
                owner_epoch,
                reason: OwnerReason::First,
                number: 0,
            }));
        }
        Ok(entries)
    }

    /// The joining of a node, for the first time or again: its epoch, and what of its streamlets it gets back.
    pub fn plan_join(&self, join: &Join, now_ms: i64) -> Planned {
        if self.cluster == [0; 16] {
            return Err(CoordinatorError::NoLeader("the cluster is not founded yet".into()));
        }
        let differ: Vec<String> = (self.settings.iter())
            .filter_map(|(name, value)| {
                let has = join.settings.iter().find(|(its, _)| its == name).map_or("nothing", |(_, has)| has);
                (has != value).then(|| format!("{name} is {value} in the cluster and {has} on this node"))
            })
            .collect();
        if !differ.is_empty() {
            let reason = format!("{}; all nodes share these settings", differ.join(", "));
            return Err(CoordinatorError::Refused(Refused(reason)));
        }
        let ((low, high), level) = (join.levels, self.level());
        if !(low..=high).contains(&level) {
            let reason = format!(
                "the cluster is at level {level} and this node speaks levels {low} to {high}; run a version of kera that speaks \
                 level {level}"
            );
            return Err(CoordinatorError::Refused(Refused(reason)));
        }
        let before = self.nodes.get(&join.node).map_or(0, |known| known.epoch);
        let epoch = join.epoch_min.max(self.epoch_before(join.node).saturating_add(1));
        let mut entries = vec![joined(join, epoch, now_ms)];
        self.check(&entries[0]).map_err(CoordinatorError::Refused)?;
        self.check_number_is_free(join)?;
        let mut goes_on = false;
        if join.roles.has(Roles::BROKER) && before != 0 {
            let owner_epoch = self.next_owner_epoch.max(1);
            goes_on = join.has_all
                && self.check_goes_on(join.node, epoch).is_ok()
                && self.has_what_it_owns(join.node, before);
            entries.push(ClusterEntry::OwnerReturned { node: join.node, epoch, owner_epoch, all: goes_on });
        }
        // Who goes on with its streamlets goes on with what it was rebuilding.
        if !goes_on {
            entries.extend(self.plan_lose_held(join.node, join.has_all));
        }
        Ok(entries)
    }

    /// Whether a node that comes back with all it had may go on with what it still owns. It stays the owner until an entry names another one, so nobody
    /// has appended behind what it has: `docs/replication.md`, "Who comes back in time goes on", has the argument. Below level [`level::OWNED_UNTIL_TAKEN`]
    /// not once the end of one of its logs is decided, which comes before that.
    pub(super) fn check_goes_on(&self, node: NodeNumber, epoch: u32) -> Result<(), Refused> {
        let is_before = |log: &LogName| log.node == node && log.epoch < epoch;
        let ended = || self.logs.iter().find(|(log, state)| is_before(log) && state.end.is_some());
        match ended().filter(|_| self.level() < level::OWNED_UNTIL_TAKEN) {
            Some((log, _)) => Err(Refused(format!("the end of {log} is decided, so its streamlets are recovered"))),
            None => Ok(()),
        }
    }

    /// Whether the newest incarnation of a node had all that the node owns: what an incarnation did not have it did not get back. The
    /// memory of one that came without anything survives a kill like any other, and says nothing about what was lost before it.
    fn has_what_it_owns(&self, node: NodeNumber, epoch: u32) -> bool {
        self.copied_runs().all(|(_, run)| run.owner.node != node || run.owner.epoch == epoch)
    }

    /// The next level, if every node of the cluster speaks it. `speaks`: up to which level an incarnation of a node lets the cluster
    /// be raised, `None` if it has not been heard to say so. Nodes that are lost count like all others until they are given up: they
    /// come back, and would be refused.
    pub fn plan_raise_level(&self, speaks: impl Fn(NodeNumber, u32) -> Option<u32>) -> Planned {
        let next = self.level() + 1;
        let do_all = self.nodes.iter().all(|(number, node)| speaks(*number, node.epoch).is_some_and(|to| to >= next));
        if self.nodes.is_empty() || !do_all || (next == level::OPEN_ENDS && self.check_open_ends().is_err()) {
            Ok(Vec::new())
        } else {
            self.one(ClusterEntry::LevelRaised { level: next })
        }
    }

    /// The fencing of an incarnation.
    pub fn plan_fence(&self, node: NodeNumber, epoch: u32) -> Planned {
        let is_over =
            self.nodes.get(&node).is_some_and(|known| known.epoch > epoch || (known.epoch == epoch && known.fenced));
        if is_over { Ok(Vec::new()) } else { self.one(ClusterEntry::NodeFenced { node, epoch }) }
    }

    /// The end of a node that is lost for good. Asked again while nobody has the number since, nothing is to do: a leader may have done it and been lost before
    /// it could say so.
    pub fn plan_remove(&self, node: NodeNumber) -> Planned {
        if self.is_given_up(node) {
            return Ok(Vec::new());
        }
        self.one(ClusterEntry::NodeRemoved { node })
    }

    /// What the nodes that there are can give: a broker's own copy and one on each other backup. Those that are lost count, for they are to come back, unless they are
    /// being emptied as well. `most`: what they may be asked for at all.
    pub fn limits(&self, most: &Limits) -> Limits {
        let nodes = self.nodes_for_copies(|node| node.is_live(Roles::BACKUP) || node.is_away(Roles::BACKUP));
        Limits { streams: most.streams, nodes: nodes.clamp(1, most.nodes.max(1)) }
    }

    /// How many copies there can be at the backups that count.
    fn nodes_for_copies(&self, counts: impl Fn(&NodeState) -> bool) -> u32 {
        let (mut backups, mut is_any_both) = (0, false);
        for node in self.nodes.values().filter(|node| counts(node)) {
            backups += 1;
            // A broker that is a backup too is none for itself.
            is_any_both |= node.roles.has(Roles::BROKER);
        }
        backups + u32::from(!is_any_both)
    }

    /// Whether as many nodes are live as that number of copies `needs`. Whoever asks has looked that there are enough if those that are lost come back, so it is
    /// refused for the moment only.
    ///
    /// Only a leader that plans asks this, and never who applies an entry: who is live is no part of what an entry may depend on in another version.
    pub(super) fn check_live_nodes(&self, copies: u32, needs: fn(u32) -> u32) -> Result<(), CoordinatorError> {
        let (live, needed) = (self.nodes_for_copies(|node| node.is_live(Roles::BACKUP)), needs(copies));
        if live >= needed {
            return Ok(());
        }
        let away = self.nodes.iter().filter(|(_, node)| node.is_away(Roles::BACKUP));
        let away = away.map(|(number, _)| number.to_string());
        let away: Vec<String> = away.take(NAMED_MAX).collect();
        let nodes = if away.len() == 1 { "node" } else { "nodes" };
        let there = if live == 1 { "there is" } else { "there are" };
        let fewer = (1..copies).rev().find(|fewer| needs(*fewer) <= live).unwrap_or(1);
        Err(CoordinatorError::TooFewLive(format!(
            "replication is {copies}, which needs {needed} live nodes to hold copies, and {there} {live}; start {nodes} {}, or ask for \
             {fewer} at most for now",
            away.join(", ")
        )))
    }

    /// The making of a stream, its streamlets spread over the live brokers. Most of the system's have no owner: each node has
    /// its own. Of its copies as many nodes are live as writes need; the others come when the lost nodes are back, as they do for a stream that had them.
    pub fn plan_create_stream(&self, request: &CreateStream, most: &Limits, now_ms: i64, system: bool) -> Planned {
        let request = request.with_settings_if(self.keeps_settings());
        let created = self.catalog.plan_create(&request, &self.limits(most), now_ms, system)?;
        self.check_live_nodes(request.options.replication, copies_min)?;
        let Entry::StreamCreated { stream, .. } = &created else {
            return Err(CoordinatorError::Refused(Refused("a stream is made by the entry that makes one".into())));
        };
        let ranges: &[_] = if has_owners(&request.name) { &[(0, request.options.streamlets)] } else { &[] };
        let mut entries = self.plan_spread((*stream, &request.name), ranges, &[])?;
        entries.insert(0, ClusterEntry::Catalog(created));
        Ok(entries)
    }

    /// Whether what settings of streams say is put into entries: otherwise not all nodes could read them.
    fn keeps_settings(&self) -> bool {
        self.level() >= level::SETTINGS
    }

    /// Changes to a stream; streamlets that it gets are spread.
    pub fn plan_alter_stream(
        &self,
        stream: &StreamRef,
        changes: &StreamChanges,
        most: &Limits,
        now_ms: i64,
    ) -> Planned {
        let changes = changes.with_settings_if(self.keeps_settings());
        let info = self.catalog.find(stream)?;
        self.refuse_with_copies(info, &changes)?;
        // How many copies there are the stream says when all of its streamlets have them.
        let others = StreamChanges { replication: None, ..changes.clone().into_owned() };
        let planned = self.catalog.plan_alter(stream, &others, &self.limits(most), now_ms, false)?;
        let mut entries: Vec<ClusterEntry> = planned.into_iter().map(ClusterEntry::Catalog).collect();
        let (id, has) = (info.id, info.options.streamlets);
        let options = changes.apply(&info.options);
        if options.streamlets > has {
            entries.extend(self.plan_spread((id, &info.name), &[(has, options.streamlets - has)], &[])?);
        }
        if changes.replication.is_some() {
            check_limits(&options)?;
            entries.extend(self.plan_copies(info, &options, most)?);
        }
        Ok(entries)
    }

    /// The deletion of a stream.
    pub fn plan_delete_stream(&self, stream: &StreamRef, now_ms: i64) -> Planned {
        Ok(vec![ClusterEntry::Catalog(self.catalog.plan_delete(stream, now_ms, false)?)])
    }

    /// Owners for streamlets that have none, because there was no broker when their stream was made.
    pub fn plan_adopt(&self) -> Planned {
        let mut entries = Vec::new();
        for info in self.catalog.streams().filter(is_owned) {
            let gaps = match self.owners.get(&info.id) {
                Some(owners) => owners.unowned(info.options.streamlets),
                None => vec![(0, info.options.streamlets)],
            };
            if !gaps.is_empty() && entries.len() < OWNER_RUNS_MAX {
                entries.extend(self.plan_spread((info.id, &info.name), &gaps, &entries)?);
            }
        }
        Ok(entries)
    }

    /// Gives ranges of a stream's streamlets to the live brokers that have least, `planned` counted: neighbours together, so
    /// that each broker takes one range of each gap. Nothing if there is no broker.
    fn plan_spread(
        &self,
        (stream, name): (StreamId, &str),
        ranges: &[(u32, u32)],
        planned: &[ClusterEntry],
    ) -> Planned {
        let owner_epoch = self.next_owner_epoch.max(self.first_owner_epoch).max(1);
        let mut load = self.loads(planned);
        let mut entries = Vec::new();
        for &(first, count) in ranges {
            let mut at = first;
            for (node, share) in self.shares_of(name, &mut load, count) {
                let epoch = self.nodes[&node].epoch;
                let reason = OwnerReason::First;
                entries.push(ClusterEntry::OwnerChanged {
                    stream,
                    first: at,
                    count: share,
                    node,
                    epoch,
                    owner_epoch,
                    reason,
                    number: 0,
                });
                at += share;
            }
        }
        Ok(entries)
    }

    /// Streamlets of each live broker, with what is planned.
    pub(super) fn loads(&self, planned: &[ClusterEntry]) -> BTreeMap<NodeNumber, u64> {
        let live = || self.nodes.iter().filter(|(_, node)| node.is_live(Roles::BROKER));
        // Brokers that are being drained get nothing, unless there is no other.
        let some = live().any(|(_, node)| !node.draining);
        let taking = live().filter(|(_, node)| !some || !node.draining);
        let mut load: BTreeMap<_, _> = taking.map(|(number, node)| (*number, node.streamlets)).collect();
        for entry in planned {
            if let ClusterEntry::OwnerChanged { node, count, .. } = entry
                && let Some(has) = load.get_mut(node)
            {
                *has += u64::from(*count);
            }
        }
        load
    }

    /// Whether a broker is one for a stream: what is kept for Kafka clients goes to those that they reach, for they ask its owners.
    pub(super) fn suits(&self, name: &str, node: NodeNumber) -> bool {
        !name.starts_with(CLUSTER_PREFIX) || self.nodes.get(&node).is_some_and(|node| !node.doors.kafka.is_empty())
    }

    /// Who is to take a streamlet of a stream: whoever has least of those that suit it, or of all if none does.
    pub(super) fn best_of(&self, name: &str, load: &BTreeMap<NodeNumber, u64>) -> Option<NodeNumber> {
        let order = |(node, has): &(&NodeNumber, &u64)| (!self.suits(name, **node), **has, **node);
        load.iter().min_by_key(order).map(|(node, _)| *node)
    }

    /// A stream's name; empty if it is gone.
    pub(super) fn name_of(&self, stream: StreamId) -> &str {
        self.catalog.find(&stream.into()).map_or("", |info| &info.name)
    }

    /// Who gets how many of so many streamlets of a stream: those that suit it, or all if none does.
    fn shares_of(&self, name: &str, load: &mut BTreeMap<NodeNumber, u64>, count: u32) -> Vec<(NodeNumber, u32)> {
        let mut suiting: BTreeMap<_, _> =
            load.iter().filter(|(node, _)| self.suits(name, **node)).map(|(node, has)| (*node, *has)).collect();
        if suiting.is_empty() {
            return shares(load, count);
        }
        let given = shares(&mut suiting, count);
        load.extend(suiting);
        given
    }

    /// A view of a log: its first, or the next.
    pub fn plan_view(&self, asked: &LogView) -> Planned {
        let LogView { log, view, first, backups } = asked;
        if let Some((number, last)) = self.newest_view(*log)
            && number == *view
            && last.first == *first
            && last.backups == *backups
        {
            return Ok(Vec::new());
        }
        self.one(ClusterEntry::ViewAgreed { log: *log, view: *view, first: *first, backups: backups.clone() })
    }

    /// The newest view of a log that was agreed to, and its number.
    pub fn newest_view(&self, log: LogName) -> Option<(u32, &View)> {
        let views = &self.logs.get(&log)?.views;
        Some((views.len() as u32, views.last()?))
    }

    /// A backup that has got the blocks of an older view.
    pub fn plan_add_backup(&self, log: LogName, view: u32, backup: NodeNumber) -> Planned {
        let of_view = self.logs.get(&log).and_then(|state| state.views.get((view as usize).wrapping_sub(1)));
        if of_view.is_some_and(|of| of.backups.contains(&backup)) {
            return Ok(Vec::new());
        }
        self.one(ClusterEntry::BackupAdded { log, view, backup })
    }

    /// An older view whose blocks nobody needs.
    pub fn plan_give_up_view(&self, log: LogName, view: u32) -> Planned {
        let of_view = self.logs.get(&log).and_then(|state| state.views.get((view as usize).wrapping_sub(1)));
        if of_view.is_some_and(|of| of.backups.is_empty()) {
            return Ok(Vec::new());
        }
        // Of a log that is over only a person gives up something: what its broker has asked for comes too late.
        if !self.is_live(log.node, log.epoch) {
            let why = format!("node {} epoch {} is over, and so is {log}", log.node, log.epoch);
            return Err(CoordinatorError::Refused(Refused(why)));
        }
        self.one(ClusterEntry::ViewGivenUp { log, view })
    }

    /// A log that nobody needs any more.
    pub fn plan_give_up_log(&self, log: LogName) -> Planned {
        if self.logs.contains_key(&log) { self.one(ClusterEntry::LogGivenUp { log }) } else { Ok(Vec::new()) }
    }

    /// The same, asked by an incarnation of the log's node, or by whoever does not say so (0). What an earlier one has asked for comes too late: the
    /// present one may have come to hold what has its copies there.
    pub fn plan_give_up_old_log(&self, log: LogName, by_epoch: u32) -> Planned {
        let epoch = self.nodes.get(&log.node).map_or(0, |node| node.epoch);
        if by_epoch != 0 && by_epoch != epoch {
            let why = format!("node {} is in epoch {epoch}, and epoch {by_epoch} of it has asked", log.node);
            return Err(CoordinatorError::Refused(Refused(why)));
        }
        self.plan_give_up_log(log)
    }

    /// New owners for streamlets of a lost broker whose logs have ended and can be read: up to [`OWNER_RUNS_MAX`] ranges at a time. Streams with
    /// one copy wait for their node. Empty: there are none, or there is no broker to take them.
    ///
    /// Where blocks are with nobody who is there, whoever took over could open nothing, and its node could [go on](ClusterState::check_goes_on) no more when it is back with
    /// all of it: that is why such streamlets wait with it. Leaders alone look at that: each entry is right without it, and the others need not know.
    pub fn plan_recover(&self, node: NodeNumber, epoch: u32) -> Planned {
        let owner_epoch = self.next_owner_epoch.max(1);
        let mut load = self.loads(&[]);
        // What somebody with a log without an end gets waits for that log once its owner is lost without its memory, and below level 22 also if it goes on.
        if load.keys().any(|node| !self.has_open_end(*node)) {
            load.retain(|node, _| !self.has_open_end(*node));
        }
        let mut entries = Vec::new();
        let ready = self.to_recover(node, epoch);
        let ready = ready
            .flat_map(|(stream, run)| self.without_open_ends(stream, run).into_iter().map(move |run| (stream, run)));
        let unreadable = self.unreadable_logs();
        let ready = ready.flat_map(|(stream, run)| {
            self.parts_without(&unreadable, stream, run).into_iter().map(move |run| (stream, run))
        });
        for (stream, run) in ready {
            let mut at = run.first;
            for (to, share) in self.shares_of(self.name_of(stream), &mut load, run.count) {
                let epoch = self.nodes[&to].epoch;
                let reason = OwnerReason::Recovered;
                let entry = ClusterEntry::OwnerChanged {
                    stream,
                    first: at,
                    count: share,
                    node: to,
                    epoch,
                    owner_epoch,
                    reason,
                    number: 0,
                };
                self.check(&entry).map_err(CoordinatorError::Refused)?;
                entries.push(entry);
                at += share;
            }
            if entries.len() >= OWNER_RUNS_MAX {
                break;
            }
        }
        Ok(entries)
    }

    /// What an owner has rebuilt; of what is not its any more nothing is noted, and neither of what it has in a later owner epoch: that is
    /// told when it is rebuilt as well.
    pub fn plan_rebuilt(&self, rebuilt: &StreamletsRebuilt) -> Planned {
        let (node, epoch) = (rebuilt.node, rebuilt.epoch);
        let mut entries = Vec::new();
        for range in &rebuilt.streamlets {
            let Some(owners) = self.owners.get(&range.stream) else { continue };
            let is_its = |run: &Run| run.owner.has_rebuilt_in((node, epoch), range.owner_epoch) && run.owner.rebuilding;
            for run in owners.within(range.first, range.count).filter(is_its) {
                let (stream, first, count) = (range.stream, run.first, run.count);
                // Who does not know the owner epoch in the entry would know another state.
                let owner_epoch = if self.level() >= level::REBUILT_IN { run.owner.owner_epoch } else { 0 };
                let entry = ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch };
                entries.extend(self.one(entry)?);
            }
        }
        Ok(entries)
    }

    /// Logs of incarnations that are over which nobody needs any more. Whoever takes over from an owner that dies while it rebuilds asks them again:
    /// so none goes before all who rebuild have said which of them they need, and those stay until they have. Of the others those of a node that owns nothing with copies, and holds
    /// nothing of what others own, go, and the others when that node says so: it may have come back with what is in them, and be
    /// the only other one that has it.
    pub fn plan_give_up_lost(&self) -> Planned {
        if !self.may_give_up_some() {
            return Ok(Vec::new());
        }
        let needed = self.needed_logs();
        let mut having: BTreeSet<NodeNumber> = self.copied_runs().map(|(_, run)| run.owner.node).collect();
        having.extend(self.held_copied().map(|(_, held)| held.node));
        let over = self.lost_logs().filter(|(log, state)| !having.contains(&log.node) && !needed.has(*log, state));
        let over = over.map(|(log, _)| ClusterEntry::LogGivenUp { log }).filter(|entry| self.check(entry).is_ok());
        Ok(over.take(OWNER_RUNS_MAX).collect())
    }

    /// Logs of incarnations that are over.
    pub fn lost_logs(&self) -> impl Iterator<Item = (LogName, &LogState)> {
        self.logs.iter().filter(|(log, _)| !self.is_live(log.node, log.epoch)).map(|(log, state)| (*log, state))
    }

    /// Streamlets with several copies whose owner is this incarnation.
    pub fn to_recover(&self, node: NodeNumber, epoch: u32) -> impl Iterator<Item = (StreamId, Run)> {
        let its = self.copied_runs().filter(move |(_, run)| run.owner.node == node && run.owner.epoch == epoch);
        its.map(|(stream, run)| (stream, *run))
    }

    /// Incarnations that are over and still own what others could serve, with those of their logs that have no end yet.
    pub fn lost(&self) -> Vec<(NodeNumber, u32)> {
        let mut lost = Vec::new();
        for owners in self.owners.values() {
            for owner in owners.runs().iter().map(|run| run.owner) {
                if !self.is_live(owner.node, owner.epoch) && !lost.contains(&(owner.node, owner.epoch)) {
                    lost.push((owner.node, owner.epoch));
                }
            }
        }
        for log in self.logs.iter().filter(|(_, state)| state.end.is_none()).map(|(log, _)| log) {
            if !self.is_live(log.node, log.epoch) && !lost.contains(&(log.node, log.epoch)) {
                lost.push((log.node, log.epoch));
            }
        }
        lost.sort_unstable();
        lost
    }

    pub(super) fn one(&self, entry: ClusterEntry) -> Planned {
        self.check(&entry).map_err(CoordinatorError::Refused)?;
        Ok(vec![entry])
    }
}

/// What is wrong with options, whoever has them.
fn check_limits(options: &StreamOptions) -> Result<(), CoordinatorError> {
    let mistakes: Vec<String> = options.check().iter().map(ToString::to_string).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(CoordinatorError::BadOptions { mistakes }) }
}

/// Most streams of the system belong to nobody: each node has its own.
fn is_owned(info: &&StreamInfo) -> bool {
    has_owners(&info.name)
}

fn joined(join: &Join, epoch: u32, at_ms: i64) -> ClusterEntry {
    let Join { node, uuid, roles, rack, doors, .. } = join.clone();
    ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms, rack, doors }
}

/// Shares `count` out so that all end up as even as can be, and adds them to `load`. By node number, without empty shares.
fn shares(load: &mut BTreeMap<NodeNumber, u64>, count: u32) -> Vec<(NodeNumber, u32)> {
    if load.is_empty() {
        return Vec::new();
    }
    let mut by_load: Vec<(u64, NodeNumber)> = load.iter().map(|(node, has)| (*has, *node)).collect();
    by_load.sort_unstable();
    // The lowest are filled up to a common level; whoever is above it gets nothing.
    let (mut sum, mut filled) = (0u64, 0u64);
    for (has, _) in &by_load {
        if filled > 0 && *has * filled >= sum + u64::from(count) {
            break;
        }
        (sum, filled) = (sum + has, filled + 1);
    }
    let total = sum + u64::from(count);
    let (level, over) = (total / filled, total % filled);
    let mut shares = Vec::new();
    for (place, (has, node)) in by_load.iter().take(filled as usize).enumerate() {
        let share = level + u64::from((place as u64) < over) - has;
        if share > 0 {
            shares.push((*node, share as u32));
            load.insert(*node, has + share);
        }
    }
    shares.sort_unstable();
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_are_all_and_as_even_as_can_be(
            has in proptest::collection::vec(0u64..50, 1..8), count in 0u32..200,
        ) {
            let mut load: BTreeMap<_, _> = (1..).zip(has.iter().copied()).collect();
            let given = shares(&mut load, count);
            prop_assert_eq!(given.iter().map(|(_, share)| *share).sum::<u32>(), count);
            let most = given.iter().map(|(node, _)| load[node]).max();
            let least = load.values().min().copied();
            prop_assert!(most.is_none_or(|most| most <= least.unwrap_or(0) + 1), "{load:?}");
        }
    }
}
