//! The state itself, and how an entry that is allowed makes it another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, OwnerReason, Roles};
use kera_format::{LaneId, StreamId, level};

use super::copies::CopiesChange;
use super::given_back::{Seen, is_gone};
use super::handed::HandedStates;
use super::lost_for_one::GivenUpFor;
use super::needs::Needs;
use super::numbers::joined_as;
use super::owners::{Held, Owner, RebuiltFrom, Run, StreamOwners};
use super::rules::Refused;
use crate::catalog::Catalog;

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeState {
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Its epoch: one for each time it joined.
    pub epoch: u32,
    /// Whether that incarnation is fenced: lost, as far as the others are concerned.
    pub fenced: bool,
    /// What it does.
    pub roles: Roles,
    /// When it joined, milliseconds since 1970.
    pub joined_ms: i64,
    /// Its rack; empty: none.
    pub rack: String,
    /// Where it is reached.
    pub doors: Doors,
    /// Streamlets that it owns.
    pub streamlets: u64,
    /// It is to own nothing: its streamlets move to others, and it gets none.
    pub draining: bool,
}

impl NodeState {
    /// Whether it takes part, in this role.
    pub fn is_live(&self, role: Roles) -> bool {
        !self.fenced && self.roles.has(role)
    }

    /// Whether it is lost, and to come back in this role: it is not being emptied as well.
    pub fn is_away(&self, role: Roles) -> bool {
        self.fenced && !self.draining && self.roles.has(role)
    }
}

/// Who has a virtual log from which block on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The first block, from 1.
    pub first: u64,
    /// The backups. None: nobody needs its blocks.
    pub backups: Vec<NodeNumber>,
}

/// A virtual log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogState {
    /// Its views: number 1 first, the newest last.
    pub views: Vec<View>,
    /// Its last block, once that is decided.
    pub end: Option<u64>,
    /// The end that was decided first, if that was taken back since: a backup had it.
    pub first_end: u64,
    /// Who first said to open streamlets with that end: then it stays. 0: all backups of the newest view have shown it, so nobody need say so.
    pub used: Option<NodeNumber>,
    /// A person has given up what backups had of that end which are gone: nobody uses it any more, and it may be taken back also to what a backup has that is
    /// not certain of it. Until somebody uses an end again.
    pub end_given_up: bool,
}

/// A move that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Of which stream.
    pub stream: StreamId,
    /// Which streamlet.
    pub streamlet: u32,
    /// Who has it.
    pub from: NodeNumber,
    /// Who gets it.
    pub to: NodeNumber,
}

/// Where a lane begins whose records were deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Floor {
    /// The owner epoch of whoever has said so.
    pub owner_epoch: u32,
    /// The ordinal of the first record that is there.
    pub ordinal: u64,
}

/// All lanes of a stream.
fn floors_of(stream: StreamId) -> RangeInclusive<(StreamId, u32, LaneId)> {
    (stream, 0, LaneId(0))..=(stream, u32::MAX, LaneId(u32::MAX))
}

/// All that a cluster agrees on. See the module.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// Streams and producers.
    pub catalog: Catalog,
    pub(super) cluster: [u8; 16],
    pub(super) settings: Vec<(String, String)>,
    pub(super) nodes: BTreeMap<NodeNumber, NodeState>,
    /// Who had numbers last that nobody has now: nodes that were given up.
    pub(super) removed: BTreeMap<NodeNumber, NodeState>,
    pub(super) owners: HashMap<StreamId, StreamOwners>,
    pub(super) logs: BTreeMap<LogName, LogState>,
    pub(super) moves: BTreeMap<u64, Move>,
    /// The same by what moves.
    pub(super) moving: BTreeMap<(StreamId, u32), u64>,
    /// What streamlets took along when they moved last.
    pub(super) handed: HandedStates,
    /// Where lanes begin whose records were deleted, with the owner epoch in which that was said.
    pub(super) floors: BTreeMap<(StreamId, u32, LaneId), Floor>,
    /// Streams that are to have another number of copies.
    pub(super) copies: BTreeMap<StreamId, CopiesChange>,
    /// What a person has given up for single streamlets.
    pub(super) given_up_for: GivenUpFor,
    /// What nodes have said of their rebuilds.
    pub(super) needs: BTreeMap<NodeNumber, Needs>,
    /// What this node has seen of what snapshots do not tell.
    pub(super) seen: Seen,
    pub(super) next_move: u64,
    pub(super) next_owner_epoch: u32,
    /// Above every epoch that ids of groups had before there was a cluster.
    pub(super) first_owner_epoch: u32,
    /// The level in force; 0: none was raised, so the first.
    pub(super) level: u32,
}

impl ClusterState {
    /// A cluster that begins with the streams that are in `catalog`.
    pub fn with_catalog(catalog: Catalog) -> ClusterState {
        ClusterState { catalog, ..ClusterState::default() }
    }

    /// The cluster's uuid; zeros: it has not been founded.
    pub fn cluster(&self) -> [u8; 16] {
        self.cluster
    }

    /// Settings that all nodes share.
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// All nodes, by number.
    pub fn nodes(&self) -> &BTreeMap<NodeNumber, NodeState> {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, node: NodeNumber) -> Option<&NodeState> {
        self.nodes.get(&node)
    }

    /// Whether this incarnation takes part.
    pub fn is_live(&self, node: NodeNumber, epoch: u32) -> bool {
        self.nodes.get(&node).is_some_and(|known| known.epoch == epoch && !known.fenced)
    }

    /// Whether an incarnation is over for good: fenced, followed by another one, or removed with its node. One that this state has not heard of yet is
    /// neither live nor over.
    pub fn is_over(&self, node: NodeNumber, epoch: u32) -> bool {
        match self.nodes.get(&node) {
            Some(known) => known.epoch > epoch || (known.epoch == epoch && known.fenced),
            None => self.epoch_before(node) >= epoch,
        }
    }

    /// The owners of a stream's streamlets.
    pub fn owners(&self, stream: StreamId) -> Option<&StreamOwners> {
        self.owners.get(&stream)
    }

    /// Who owns a streamlet.
    pub fn owner(&self, stream: StreamId, streamlet: u32) -> Option<Owner> {
        self.owners.get(&stream).and_then(|owners| owners.owner(streamlet))
    }

    /// All virtual logs.
    pub fn logs(&self) -> &BTreeMap<LogName, LogState> {
        &self.logs
    }

    /// The logs of an incarnation of a broker.
    pub fn logs_of(&self, node: NodeNumber, epoch: u32) -> impl Iterator<Item = (LogName, &LogState)> {
        let (from, to) = (LogName { node, epoch, log: 0 }, LogName { node, epoch, log: u32::MAX });
        self.logs.range(from..=to).map(|(name, log)| (*name, log))
    }

    /// Moves under way, by number.
    pub fn moves(&self) -> &BTreeMap<u64, Move> {
        &self.moves
    }

    /// The move of a streamlet, if it moves.
    pub fn move_of(&self, stream: StreamId, streamlet: u32) -> Option<u64> {
        self.moving.get(&(stream, streamlet)).copied()
    }

    /// Where a lane begins, if records of it were deleted.
    pub fn floor(&self, stream: StreamId, streamlet: u32, lane: LaneId) -> Option<Floor> {
        self.floors.get(&(stream, streamlet, lane)).copied()
    }

    /// Where the lanes of a stream begin whose records were deleted.
    pub fn floors(&self, stream: StreamId) -> impl Iterator<Item = (u32, LaneId, Floor)> + '_ {
        self.floors.range(floors_of(stream)).map(|((_, streamlet, lane), floor)| (*streamlet, *lane, *floor))
    }

    /// The [level](kera_format::level) in force: what all nodes of the cluster understand.
    pub fn level(&self) -> u32 {
        self.level.max(level::FIRST)
    }

    /// The owner epoch that the next change of an owner uses.
    pub fn next_owner_epoch(&self) -> u32 {
        self.next_owner_epoch
    }

    /// Makes an entry true, if the rules allow it. What is refused has changed nothing.
    pub fn apply(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        self.check(entry)?;
        let mut seen = std::mem::take(&mut self.seen);
        seen.note(entry, self);
        self.seen = seen;
        self.set(entry)
    }

    /// Takes one entry of a snapshot.
    pub fn restore(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::Catalog(entry) => self.catalog.restore(entry).map_err(Refused),
            other => self.set(other),
        }
    }

    fn set(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::Catalog(entry) => {
                match entry {
                    // How the streams of a single node come along.
                    kera_format::catalog::Entry::Counters { .. } => self.catalog.restore(entry),
                    entry => self.catalog.apply(entry),
                }
                .map_err(Refused)?;
                if let kera_format::catalog::Entry::StreamDeleted { stream, .. } = entry {
                    self.forget_stream(*stream);
                }
            }
            ClusterEntry::Founded { cluster, owner_epoch, settings } => {
                (self.cluster, self.settings) = (*cluster, settings.clone());
                self.first_owner_epoch = *owner_epoch;
                self.next_owner_epoch = self.next_owner_epoch.max(*owner_epoch);
            }
            ClusterEntry::NodeJoined { node, .. } => {
                self.set_joined(entry);
                self.needs.remove(node);
                // What was said in them was said to or by an incarnation that is over.
                self.end_moves(|of| of.from == *node || of.to == *node);
            }
            ClusterEntry::NodeFenced { node, .. } => {
                if let Some(known) = self.nodes.get_mut(node) {
                    known.fenced = true;
                }
                // Whoever takes over from it asks all logs again.
                self.needs.remove(node);
                // Who was to get a streamlet does not: its owner goes on.
                self.end_moves(|of| of.to == *node);
            }
            ClusterEntry::NodeRemoved { node } => self.set_removed(*node),
            ClusterEntry::OwnerChanged { .. } => self.set_owner_changed(entry),
            ClusterEntry::OwnerReturned { node, epoch, owner_epoch, all } => {
                self.give_back(*node, *epoch, *owner_epoch, *all);
            }
            ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch } => {
                if let Some(owners) = self.owners.get_mut(stream) {
                    owners.update_within(*first, *count, |owner| {
                        let is_its = owner.has_rebuilt_in((*node, *epoch), *owner_epoch);
                        Owner { rebuilding: owner.rebuilding && !is_its, ..owner }
                    });
                }
                self.forget_needs(*node);
                self.forget_given_up_for(*stream);
            }
            other => return self.set_log_or_move(other),
        }
        Ok(())
    }

    fn set_owner_changed(&mut self, entry: &ClusterEntry) {
        let ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, .. } = entry else {
            return;
        };
        let range = *first..first + count;
        let rebuilding = match reason {
            OwnerReason::Recovered | OwnerReason::Gathered => true,
            // Nothing is moved that is being rebuilt; in a snapshot the reason is one of the others.
            OwnerReason::First | OwnerReason::Moved | OwnerReason::LossAccepted => false,
            OwnerReason::Copied | OwnerReason::GivenBack => false,
        };
        if rebuilding {
            self.note_sources(*stream, *first, *count);
            self.gather(*stream, range.clone(), *node);
        }
        if *reason == OwnerReason::GivenBack {
            self.hand_back(*stream, *first, *node);
        }
        if *reason == OwnerReason::LossAccepted {
            self.handed.forget(*stream, range.clone());
        }
        for (first, count, copies) in self.copies_from_now_on(*stream, range.clone(), *reason) {
            let owner = Owner { node: *node, epoch: *epoch, owner_epoch: *owner_epoch, rebuilding, copies };
            self.give(*stream, first, count, owner);
        }
        self.forget_given_up_for(*stream);
        self.end_moves(|of| of.stream == *stream && range.contains(&of.streamlet));
    }

    fn set_joined(&mut self, entry: &ClusterEntry) {
        let ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms, rack, doors } = entry else { return };
        let before = self.nodes.get(node);
        let known = NodeState {
            uuid: *uuid,
            epoch: *epoch,
            fenced: false,
            roles: *roles,
            joined_ms: *at_ms,
            rack: rack.clone(),
            doors: doors.clone(),
            streamlets: before.map_or(0, |known| known.streamlets),
            draining: before.is_some_and(|known| known.draining),
        };
        self.removed.remove(node);
        self.nodes.insert(*node, known);
    }

    fn set_log_or_move(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::GroupsHeld { stream, first, count, owner_epoch, node } => {
                let held = Held { first: *first, count: *count, owner_epoch: *owner_epoch, node: *node, lost: false };
                self.owners.entry(*stream).or_default().hold(held);
            }
            ClusterEntry::ViewAgreed { log, first, backups, .. } => {
                let view = View { first: *first, backups: backups.clone() };
                self.logs.entry(*log).or_default().views.push(view);
            }
            ClusterEntry::BackupAdded { log, view, backup } => {
                let views = self.logs.get_mut(log).map(|log| &mut log.views);
                if let Some(view) = views.and_then(|views| views.get_mut(*view as usize - 1)) {
                    view.backups.push(*backup);
                }
            }
            ClusterEntry::LogEnded { log, end } => {
                let log = self.logs.entry(*log).or_default();
                (log.end, log.first_end) = (Some(*end), *end);
            }
            ClusterEntry::EndsUsed { node, ends, .. } => self.set_used(*node, ends),
            ClusterEntry::EndTakenBack { log, end } => self.logs.entry(*log).or_default().end = Some(*end),
            ClusterEntry::EndGivenUp { log } => self.give_up_end(*log),
            ClusterEntry::ViewGivenUp { log, view } => {
                let views = self.logs.get_mut(log).map(|log| &mut log.views);
                if let Some(view) = views.and_then(|views| views.get_mut((*view as usize).wrapping_sub(1))) {
                    view.backups.clear();
                }
            }
            ClusterEntry::LogGivenUp { log } => {
                self.logs.remove(log);
                self.forget_given_up_of(*log);
            }
            ClusterEntry::MoveNoted { number, stream, streamlet, from, to } => {
                self.moves.insert(*number, Move { stream: *stream, streamlet: *streamlet, from: *from, to: *to });
                self.moving.insert((*stream, *streamlet), *number);
                self.next_move = self.next_move.max(number + 1);
            }
            ClusterEntry::MoveCalledOff { number } => self.end_move(*number),
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state } => {
                self.handed.set(*stream, *streamlet, *owner_epoch, state);
            }
            ClusterEntry::NodeDraining { node, draining } => {
                if let Some(known) = self.nodes.get_mut(node) {
                    known.draining = *draining;
                }
            }
            ClusterEntry::GroupsLost { stream, first, count, owner_epoch } => {
                self.owners.entry(*stream).or_default().lose(*first, *count, *owner_epoch);
            }
            ClusterEntry::LevelRaised { level } => self.set_level(*level),
            ClusterEntry::GroupsReturned { stream, streamlet, node, .. } => {
                self.owners.entry(*stream).or_default().bring_back(*streamlet, *node);
            }
            other => return self.set_of_streamlets(other),
        }
        Ok(())
    }

    /// Where lanes begin, and what is rebuilt from which logs.
    fn set_of_streamlets(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::LaneBegins { stream, streamlet, lane, owner_epoch, ordinal } => {
                let floor = Floor { owner_epoch: *owner_epoch, ordinal: *ordinal };
                self.floors.insert((*stream, *streamlet, *lane), floor);
            }
            ClusterEntry::RebuildNeeds { node, epoch, runs, logs } => {
                self.set_needs(*node, Needs::new(*epoch, runs, logs));
            }
            ClusterEntry::RebuiltFrom { stream, first, count, node, epoch } => {
                let from = RebuiltFrom { node: *node, first: *first, count: *count, epoch: *epoch };
                self.owners.entry(*stream).or_default().rebuild_from(from);
            }
            ClusterEntry::CopiesWanted { stream, copies } => self.set_copies_wanted(*stream, *copies),
            ClusterEntry::CopiesMade { stream, streamlet, node, epoch, .. } => {
                if let Some(change) = self.copies.get_mut(stream) {
                    change.note_made(*streamlet, *node, *epoch);
                }
            }
            ClusterEntry::StreamletCopies { stream, first, count, copies } => {
                let owners = self.owners.entry(*stream).or_default();
                owners.update_within(*first, *count, |owner| Owner { copies: *copies, ..owner });
            }
            ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log, view } => {
                self.give_up_for((*stream, *streamlet), *owner_epoch, (*log, *view));
            }
            ClusterEntry::ClusterCounters { next_move, next_owner_epoch } => {
                (self.next_move, self.next_owner_epoch) = (*next_move, *next_owner_epoch);
            }
            _ => {
                return Err(Refused("an entry of the coordinators' log is no part of the state".into()));
            }
        }
        Ok(())
    }

    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        self.copies.remove(&stream);
        self.handed.forget(stream, 0..u32::MAX);
        _ = self.floors.extract_if(floors_of(stream), |_, _| is_gone()).count();
        self.seen.forget_stream(stream);
        self.given_up_for.retain(|(of, _), _| *of != stream);
        let Some(owners) = self.owners.remove(&stream) else { return };
        owners.runs().iter().for_each(|run| self.count(run.owner.node, -i64::from(run.count)));
        self.end_moves(|of| of.stream == stream);
    }

    fn end_moves(&mut self, which: impl Fn(&Move) -> bool) {
        let over: Vec<u64> = self.moves.iter().filter(|(_, of)| which(of)).map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.end_move(number));
    }

    fn end_move(&mut self, number: u64) {
        if let Some(ended) = self.moves.remove(&number) {
            self.moving.remove(&(ended.stream, ended.streamlet));
        }
    }

    /// Whether groups are lost where they are held, so that somebody else is to have them.
    pub(super) fn is_lost(&self, held: &Held) -> bool {
        held.lost || self.nodes.get(&held.node).is_none_or(|node| node.fenced)
    }

    /// A node is about to own these streamlets and to rebuild what is lost of them: groups of the owner before are with it then, and
    /// those that others held and have lost.
    fn gather(&mut self, stream: StreamId, range: std::ops::Range<u32>, node: NodeNumber) {
        let Some(owners) = self.owners.get(&stream) else { return };
        let mut come: Vec<Held> = Vec::new();
        for streamlet in range.filter(|_| !owners.held().is_empty()) {
            let held: Vec<Held> = owners.held_of(streamlet).collect();
            let before = owners.owner(streamlet).filter(|_| !held.is_empty()).map(|owner| owner.owner_epoch);
            let lost = held.iter().filter(|held| self.is_lost(held)).map(|held| held.owner_epoch);
            come.extend(lost.chain(before).map(|owner_epoch| Held {
                first: streamlet,
                count: 1,
                owner_epoch,
                node,
                lost: false,
            }));
        }
        let owners = self.owners.entry(stream).or_default();
        come.into_iter().for_each(|held| owners.hold(held));
    }

    /// Notes of whose logs streamlets are rebuilt that are about to get another owner, or to be gathered by theirs.
    fn note_sources(&mut self, stream: StreamId, first: u32, count: u32) {
        if !self.knows_sources() {
            return;
        }
        // In a snapshot they have no owner yet, and entries behind these say it.
        let Some(mut owners) = self.owners.remove(&stream) else { return };
        // Who is back has lost in an earlier life what is rebuilt: logs of the present one have nothing of it.
        let lives = |known: &NodeState| u32::from(self.passes_over_the_living() && !known.fenced);
        let newest =
            |node: NodeNumber| self.nodes.get(&node).map_or(u32::MAX, |known| known.epoch.saturating_sub(lives(known)));
        for run in owners.within(first, count).collect::<Vec<Run>>() {
            let lives = self.passes_over_the_living() && self.is_live(run.owner.node, run.owner.epoch);
            owners.begin_rebuild(&run, !lives, |held| self.counts(held), newest);
        }
        self.owners.insert(stream, owners);
    }

    fn count(&mut self, node: NodeNumber, by: i64) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.streamlets = known.streamlets.saturating_add_signed(by);
        }
    }

    fn give(&mut self, stream: StreamId, first: u32, count: u32, owner: Owner) {
        let owners = self.owners.entry(stream).or_default();
        let before: Vec<_> = owners.within(first, count).collect();
        owners.set(first, count, owner);
        before.iter().for_each(|run| self.count(run.owner.node, -i64::from(run.count)));
        self.count(owner.node, i64::from(count));
        self.next_owner_epoch = self.next_owner_epoch.max(owner.owner_epoch.saturating_add(1));
    }

    fn give_back(&mut self, node: NodeNumber, epoch: u32, owner_epoch: u32, all: bool) {
        let needs_own = (level::LIVING_HOLDERS..level::OWN_LIVES).contains(&self.level());
        let stays_here = self.level() >= level::OWN_LIVES;
        for owners in self.owners.values_mut() {
            // Those with copies only if it has all: others may take them over.
            let is_its = |owner: &Owner| owner.node == node && owner.epoch < epoch && (all || !owner.is_copied());
            // Groups of owners before are elsewhere: those of the epoch that is over are here.
            let runs: Vec<Run> = owners.runs().iter().filter(|run| is_its(&run.owner)).copied().collect();
            for run in &runs {
                // What it has written itself in the life that is over it has; the rest of what it rebuilds it may not have.
                let is_told = |at: &u32| owners.held_of(*at).next().is_some() || stays_here && run.owner.rebuilding;
                for streamlet in (run.first..run.end()).filter(is_told).collect::<Vec<_>>() {
                    let holds = |owner_epoch| Held { first: streamlet, count: 1, owner_epoch, node, lost: false };
                    if owners.held_of(streamlet).next().is_none() {
                        // Of a streamlet that has never moved it rebuilds all that is older.
                        owners.hold(holds(1));
                    }
                    owners.hold(holds(run.owner.owner_epoch));
                }
            }
            if needs_own {
                runs.iter().for_each(|run| owners.goes_on_rebuilding(run));
            }
            if !runs.is_empty() {
                owners.update(|owner| if is_its(&owner) { Owner { epoch, owner_epoch, ..owner } } else { owner });
            }
        }
        self.next_owner_epoch = self.next_owner_epoch.max(owner_epoch.saturating_add(1));
    }

    /// The whole state as entries of a snapshot, the catalog's counters first, without an end.
    pub fn snapshot(&self) -> Vec<ClusterEntry> {
        let mut entries: Vec<ClusterEntry> = self.catalog.snapshot().into_iter().map(ClusterEntry::Catalog).collect();
        let settings = self.settings.clone();
        let owner_epoch = self.first_owner_epoch;
        entries.push(ClusterEntry::Founded { cluster: self.cluster, owner_epoch, settings });
        // Nodes of a cluster on the first level may not know the entry.
        entries.extend(
            Some(self.level()).filter(|level| *level > level::FIRST).map(|level| ClusterEntry::LevelRaised { level }),
        );
        entries.extend(self.removed_entries());
        for (node, known) in &self.nodes {
            entries.push(joined_as(*node, known));
            if known.fenced {
                entries.push(ClusterEntry::NodeFenced { node: *node, epoch: known.epoch });
            }
            if known.draining {
                entries.push(ClusterEntry::NodeDraining { node: *node, draining: true });
            }
        }
        for stream in self.owners.keys().copied().collect::<BTreeSet<_>>() {
            entries.extend(owner_entries(stream, &self.owners[&stream]));
        }
        for (log, known) in &self.logs {
            entries.extend(known.views.iter().zip(1..).map(|(view, number)| ClusterEntry::ViewAgreed {
                log: *log,
                view: number,
                first: view.first,
                backups: view.backups.clone(),
            }));
            entries.extend(known.end.map(|_| ClusterEntry::LogEnded { log: *log, end: known.first_end }));
        }
        entries.extend(self.copies_entries());
        entries.extend(self.end_entries());
        entries.extend(self.moves.iter().map(|(number, of)| ClusterEntry::MoveNoted {
            number: *number,
            stream: of.stream,
            streamlet: of.streamlet,
            from: of.from,
            to: of.to,
        }));
        entries.extend(self.handed.iter().map(|(stream, streamlet, of)| {
            let (owner_epoch, state) = (of.owner_epoch, of.state.to_vec());
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state }
        }));
        entries.extend(self.floors.iter().map(|((stream, streamlet, lane), floor)| ClusterEntry::LaneBegins {
            stream: *stream,
            streamlet: *streamlet,
            lane: *lane,
            owner_epoch: floor.owner_epoch,
            ordinal: floor.ordinal,
        }));
        entries.extend(self.needs_entries());
        entries.extend(self.given_up_for_entries());
        let (next_move, next_owner_epoch) = (self.next_move, self.next_owner_epoch);
        entries.push(ClusterEntry::ClusterCounters { next_move, next_owner_epoch });
        entries
    }
}

fn owner_entries(stream: StreamId, owners: &StreamOwners) -> impl Iterator<Item = ClusterEntry> {
    let runs = owners.runs().iter().map(move |run| ClusterEntry::OwnerChanged {
        stream,
        first: run.first,
        count: run.count,
        node: run.owner.node,
        epoch: run.owner.epoch,
        owner_epoch: run.owner.owner_epoch,
        reason: if run.owner.rebuilding { OwnerReason::Recovered } else { OwnerReason::First },
        number: 0,
    });
    let held = owners.held().iter().map(move |held| ClusterEntry::GroupsHeld {
        stream,
        first: held.first,
        count: held.count,
        owner_epoch: held.owner_epoch,
        node: held.node,
    });
    let lost = owners.held().iter().filter(|held| held.lost).map(move |held| ClusterEntry::GroupsLost {
        stream,
        first: held.first,
        count: held.count,
        owner_epoch: held.owner_epoch,
    });
    let sources = owners.sources().iter().map(move |from| ClusterEntry::RebuiltFrom {
        stream,
        first: from.first,
        count: from.count,
        node: from.node,
        epoch: from.epoch,
    });
    runs.chain(held).chain(lost).chain(sources)
}
