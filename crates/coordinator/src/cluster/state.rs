//! The state itself, and how an entry that is allowed makes it another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kera_format::StreamId;
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, OwnerReason, Roles};

use super::owners::{Held, Owner, StreamOwners};
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
}

impl NodeState {
    /// Whether it takes part, in this role.
    pub fn is_live(&self, role: Roles) -> bool {
        !self.fenced && self.roles.has(role)
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

/// All that a cluster agrees on. See the module.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// Streams and producers.
    pub catalog: Catalog,
    pub(super) cluster: [u8; 16],
    pub(super) settings: Vec<(String, String)>,
    pub(super) nodes: BTreeMap<NodeNumber, NodeState>,
    pub(super) owners: HashMap<StreamId, StreamOwners>,
    pub(super) logs: BTreeMap<LogName, LogState>,
    pub(super) moves: BTreeMap<u64, Move>,
    /// The same by what moves.
    pub(super) moving: BTreeMap<(StreamId, u32), u64>,
    pub(super) next_move: u64,
    pub(super) next_owner_epoch: u32,
    /// Above every epoch that ids of groups had before there was a cluster.
    pub(super) first_owner_epoch: u32,
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

    /// The owner epoch that the next change of an owner uses.
    pub fn next_owner_epoch(&self) -> u32 {
        self.next_owner_epoch
    }

    /// Makes an entry true, if the rules allow it. What is refused has changed nothing.
    pub fn apply(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        self.check(entry)?;
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
            ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms, rack, doors } => {
                let streamlets = self.nodes.get(node).map_or(0, |known| known.streamlets);
                let (rack, doors, joined_ms) = (rack.clone(), doors.clone(), *at_ms);
                let known = NodeState {
                    uuid: *uuid,
                    epoch: *epoch,
                    fenced: false,
                    roles: *roles,
                    joined_ms,
                    rack,
                    doors,
                    streamlets,
                };
                self.nodes.insert(*node, known);
                // What was said in them was said to or by an incarnation that is over.
                self.end_moves(|of| of.from == *node || of.to == *node);
            }
            ClusterEntry::NodeFenced { node, .. } => {
                if let Some(known) = self.nodes.get_mut(node) {
                    known.fenced = true;
                }
            }
            ClusterEntry::NodeRemoved { node } => drop(self.nodes.remove(node)),
            ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, .. } => {
                let rebuilding = *reason == OwnerReason::Recovered;
                let owner = Owner { node: *node, epoch: *epoch, owner_epoch: *owner_epoch, rebuilding };
                self.give(*stream, *first, *count, owner);
                let range = *first..first + count;
                self.end_moves(|of| of.stream == *stream && range.contains(&of.streamlet));
            }
            ClusterEntry::OwnerReturned { node, epoch, owner_epoch, all } => {
                self.give_back(*node, *epoch, *owner_epoch, *all);
            }
            ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch } => {
                if let Some(owners) = self.owners.get_mut(stream) {
                    owners.update_within(*first, *count, |owner| {
                        let is_its = (owner.node, owner.epoch) == (*node, *epoch);
                        Owner { rebuilding: owner.rebuilding && !is_its, ..owner }
                    });
                }
            }
            other => return self.set_log_or_move(other),
        }
        Ok(())
    }

    fn set_log_or_move(&mut self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::GroupsHeld { stream, first, count, owner_epoch, node } => {
                let held = Held { first: *first, count: *count, owner_epoch: *owner_epoch, node: *node };
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
            ClusterEntry::LogEnded { log, end } => self.logs.entry(*log).or_default().end = Some(*end),
            ClusterEntry::ViewGivenUp { log, view } => {
                let views = self.logs.get_mut(log).map(|log| &mut log.views);
                if let Some(view) = views.and_then(|views| views.get_mut((*view as usize).wrapping_sub(1))) {
                    view.backups.clear();
                }
            }
            ClusterEntry::LogGivenUp { log } => drop(self.logs.remove(log)),
            ClusterEntry::MoveNoted { number, stream, streamlet, from, to } => {
                self.moves.insert(*number, Move { stream: *stream, streamlet: *streamlet, from: *from, to: *to });
                self.moving.insert((*stream, *streamlet), *number);
                self.next_move = self.next_move.max(number + 1);
            }
            ClusterEntry::MoveCalledOff { number } => self.end_move(*number),
            ClusterEntry::ClusterCounters { next_move, next_owner_epoch } => {
                (self.next_move, self.next_owner_epoch) = (*next_move, *next_owner_epoch);
            }
            _ => {
                return Err(Refused("an entry of the coordinators' log is no part of the state".into()));
            }
        }
        Ok(())
    }

    fn forget_stream(&mut self, stream: StreamId) {
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
        for (stream, owners) in &mut self.owners {
            let copies = self.catalog.find(&(*stream).into()).map_or(1, |info| info.options.replication);
            if copies > 1 && !all {
                continue;
            }
            let is_its = |owner: &Owner| owner.node == node && owner.epoch < epoch;
            if owners.runs().iter().any(|run| is_its(&run.owner)) {
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
        for (node, known) in &self.nodes {
            entries.push(ClusterEntry::NodeJoined {
                node: *node,
                epoch: known.epoch,
                uuid: known.uuid,
                roles: known.roles,
                at_ms: known.joined_ms,
                rack: known.rack.clone(),
                doors: known.doors.clone(),
            });
            if known.fenced {
                entries.push(ClusterEntry::NodeFenced { node: *node, epoch: known.epoch });
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
            entries.extend(known.end.map(|end| ClusterEntry::LogEnded { log: *log, end }));
        }
        entries.extend(self.moves.iter().map(|(number, of)| ClusterEntry::MoveNoted {
            number: *number,
            stream: of.stream,
            streamlet: of.streamlet,
            from: of.from,
            to: of.to,
        }));
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
    runs.chain(held)
}
