//! What the state means for one node: what its broker is told of owners, what it has to take over, where its virtual logs may be
//! copied to, what it has left from before. Pure questions: who asks them does the rest, with sockets or in a simulator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use kera_format::cluster::{LogName, NodeNumber, Rack, Roles};
use kera_format::options::ReplicationMode;
use kera_format::vlog_replica::BLOCKS_UNDER_WAY_MAX;
use kera_format::{LaneId, StreamId, StreamletId};
use kera_protocol::placement::OlderGroups;
use kera_protocol::{LogEnd, NodeInfo, Owner, StreamletState};

use super::{ClusterState, Held, LogState, NodeState, Sources, StreamOwners, roles_of};
use crate::catalog::has_owners;

/// A stream as a node's broker is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Who owns each streamlet, from 0 on.
    pub owners: Vec<Owner>,
    /// Streamlets that the live incarnation of this node owns and opens by itself.
    pub mine: Vec<u32>,
    /// Those that it is to take over.
    pub lost: Vec<u32>,
}

/// A streamlet of which a node cuts what was under way when it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToBeCut {
    /// Of which stream.
    pub stream: StreamId,
    /// Which one.
    pub streamlet: StreamletId,
    /// Nothing is cut unless something is under way in a group of an owner epoch below this.
    pub own_from: Option<u32>,
}

/// Where the lanes of a streamlet stood when it went to another owner last, for a node that has groups from before that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandedOn {
    /// Of which stream.
    pub stream: StreamId,
    /// Which streamlet.
    pub streamlet: StreamletId,
    /// Who has the groups of which owner epochs, as a broker is told of it.
    pub owner: Owner,
    /// The owner epoch that began there.
    pub owner_epoch: u32,
    /// The ordinal that the next record got, of the lanes that readers see. Those that are not in it nothing had been written to.
    pub ends: BTreeMap<LaneId, u64>,
}

/// A backup, its address, and the logs whose ends it is asked for, each with the first block of its newest view.
pub type EndsAsked = (NodeNumber, String, Vec<(LogName, u64)>);

/// A streamlet, and the owner epoch in which a node has it.
pub type Owned = (StreamId, StreamletId, u32);

/// How far a backup has a log, as it tells when it has fenced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToldEnd {
    /// The last block without a hole.
    pub through: u64,
    /// Whether the log ends there for sure. It may go on if the backup's disk has changed blocks, or if the backup lost its power and had not
    /// synced what it answered for.
    pub certain: bool,
    /// The last block behind that was begun and does not read back; zero: none.
    pub begun: u64,
}

impl From<LogEnd> for ToldEnd {
    fn from(LogEnd { through, certain, begun, .. }: LogEnd) -> ToldEnd {
        ToldEnd { through, certain, begun }
    }
}

/// Where a log ends, from how far backups of its newest view say for certain that they have it.
///
/// All of them have what was acknowledged, so that any answer is right, and the least one is best: what only some have would be served with
/// fewer copies than what comes behind it, and when those few were lost too, nobody could show the end of the log and a recovery would wait
/// for ever. A backup that is further behind than blocks can be under way has lost some: it is not believed.
///
/// A block that was begun behind the end of one of them and does not read back was torn by a loss of power or a kill before it was answered for; or a disk has changed a bit of
/// it since, and it was answered for. Nobody can tell, so such an end counts as if it had what was begun, as far as another one that is certain has it.
///
/// As long as one of the `expected` backups of the view has not answered it may be the one that is certain. When all have, and none is, then
/// nobody has more than the one that has most.
pub fn agreed_end(told: &[ToldEnd], expected: usize) -> Option<u64> {
    let certain = || told.iter().filter(|end| end.certain);
    match certain().map(|end| end.through).max() {
        Some(furthest) => {
            let counts = certain().map(|end| end.begun.min(furthest).max(end.through));
            counts.filter(|end| end + BLOCKS_UNDER_WAY_MAX >= furthest).min()
        }
        None if told.len() < expected => None,
        None => told.iter().map(|end| end.through).max(),
    }
}

impl ClusterState {
    /// All nodes as a broker is told of them.
    pub fn node_infos(&self) -> Vec<NodeInfo> {
        self.nodes.iter().map(|(number, node)| node_info(*number, node)).collect()
    }

    /// The owner of one streamlet, as a broker is told of it; node 0 if nobody owns it.
    pub fn told_owner(&self, stream: StreamId, streamlet: StreamletId) -> Owner {
        let owner = self.owner(stream, streamlet.0);
        let told =
            |held: Held| OlderGroups { first_epoch: held.owner_epoch, node: if held.lost { 0 } else { held.node } };
        let mut older: Vec<OlderGroups> = self.held_of(stream, streamlet.0).map(told).collect();
        older.sort_unstable_by_key(|older| older.first_epoch);
        owner.map_or_else(Owner::default, |owner| Owner { node: owner.node, epoch: owner.owner_epoch, older })
    }

    /// A stream's owners, one for each streamlet; nothing for streams of the system, which each node has for itself.
    pub fn placed(&self, node: NodeNumber, stream: StreamId) -> Option<Placed> {
        let info = self.catalog.find(&stream.into()).ok().filter(|info| has_owners(&info.name))?;
        let nobody = StreamOwners::default();
        let known = self.owners(stream).unwrap_or(&nobody);
        let mut owners = vec![Owner::default(); info.options.streamlets as usize];
        let (mut mine, mut lost) = (Vec::new(), Vec::new());
        for run in known.runs() {
            for streamlet in run.first..run.end().min(info.options.streamlets) {
                let owner = Owner { node: run.owner.node, epoch: run.owner.owner_epoch, older: Vec::new() };
                owners[streamlet as usize] = owner;
                if run.owner.node == node && self.is_live(node, run.owner.epoch) {
                    let its = if run.owner.rebuilding { &mut lost } else { &mut mine };
                    its.push(streamlet);
                }
            }
        }
        for held in known.held() {
            for streamlet in held.first..(held.first + held.count).min(info.options.streamlets) {
                // Nobody serves what is lost there: a part of it would look like all.
                let node = if held.lost { 0 } else { held.node };
                let older = OlderGroups { first_epoch: held.owner_epoch, node };
                owners[streamlet as usize].older.push(older);
            }
        }
        owners.iter_mut().for_each(|owner| owner.older.sort_unstable_by_key(|older| older.first_epoch));
        Some(Placed { owners, mine, lost })
    }

    /// What an incarnation has had before it began: ranges of streamlets with copies that it owns without having to rebuild them, or holds
    /// groups of, each streamlet in one of them; and below which owner epoch the groups of that time are. Asked when it begins.
    pub fn came_back_with(&self, node: NodeNumber, epoch: u32) -> (Vec<(StreamId, Range<u32>)>, u32) {
        let back: Vec<_> = self.to_recover(node, epoch).filter(|(_, run)| !run.owner.rebuilding).collect();
        let began = back.iter().map(|(_, run)| run.owner.owner_epoch).min().unwrap_or(self.next_owner_epoch);
        let mut ranges: Vec<_> = back.into_iter().map(|(stream, run)| (stream, run.first..run.end())).collect();
        let by_node = self.held_copied().filter(|(_, held)| held.node == node);
        ranges.extend(by_node.map(|(stream, held)| (stream, held.first..held.first + held.count)));
        (united(ranges), began)
    }

    /// Streamlets of an incarnation of which a lost broker had something that is not rebuilt yet, each with its owner epoch.
    pub fn to_rebuild(&self, node: NodeNumber, epoch: u32) -> Vec<Owned> {
        let mut owned = Vec::new();
        for info in self.catalog.streams() {
            let runs = self.owners(info.id).into_iter().flat_map(|owners| owners.runs());
            for run in runs.filter(|run| run.owner.rebuilding && (run.owner.node, run.owner.epoch) == (node, epoch)) {
                let end = run.end().min(info.options.streamlets);
                owned.extend((run.first..end).map(|at| (info.id, StreamletId(at), run.owner.owner_epoch)));
            }
        }
        owned
    }

    /// Streamlets that an incarnation takes over, those together that may need something of the same nodes' logs: what one of these waits for does not hold up
    /// the others.
    pub fn by_sources(&self, owned: Vec<Owned>) -> Vec<(Sources, Vec<Owned>)> {
        let mut parts: BTreeMap<Sources, Vec<Owned>> = BTreeMap::new();
        for one in owned {
            parts.entry(self.rebuilt_from(one.0, one.1.0)).or_default().push(one);
        }
        parts.into_iter().collect()
    }

    /// Live backups for a log of a node and where they stand, the best first: those on other racks, then those that have the fewest logs. Which of them
    /// are on different racks the log looks at when it knows who answers.
    pub fn backups_for(&self, node: NodeNumber, vlog: u32) -> Vec<(NodeNumber, Rack)> {
        let own = self.node(node).map(|known| known.rack.as_str()).unwrap_or_default();
        let names: BTreeSet<&str> = self.nodes.values().map(|known| known.rack.as_str()).collect();
        let numbers: BTreeMap<&str, u32> = names.into_iter().zip(1..).collect();
        let rack_of = |rack: &str| match rack {
            "" => Rack::Unknown,
            rack if rack == own => Rack::Own,
            rack => Rack::Other(numbers[rack]),
        };
        let mut loads: HashMap<NodeNumber, usize> = HashMap::new();
        for view in self.logs.values().filter_map(|log| log.views.last()) {
            view.backups.iter().for_each(|backup| *loads.entry(*backup).or_default() += 1);
        }
        let is_one = |(number, known): &(&NodeNumber, &NodeState)| **number != node && known.is_live(Roles::BACKUP);
        let mut found: Vec<_> = (self.nodes.iter().filter(is_one))
            .map(|(number, known)| {
                let turn = number.wrapping_sub(node).wrapping_add(vlog) % 1024;
                let rack = rack_of(&known.rack);
                (rack == Rack::Own, loads.get(number).copied().unwrap_or(0), turn, *number, rack)
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(.., number, rack)| (number, rack)).collect()
    }

    /// Which backups are asked for which logs of an incarnation that is over and that have no end yet: all of a newest view, so
    /// that one of them answers.
    pub fn ends_to_ask(&self, node: NodeNumber, epoch: u32) -> Vec<EndsAsked> {
        self.ends_asked(node, epoch, |log| log.end.is_none())
    }

    /// The same for logs that `which` says.
    pub(super) fn ends_asked(&self, node: NodeNumber, epoch: u32, which: impl Fn(&LogState) -> bool) -> Vec<EndsAsked> {
        let mut asked: Vec<EndsAsked> = Vec::new();
        for (log, known) in self.logs_of(node, epoch).filter(|(_, log)| which(log)) {
            let Some(view) = known.views.last() else { continue };
            for backup in &view.backups {
                let Some(address) = self.node(*backup).map(|node| node.doors.cluster.clone()) else { continue };
                match asked.iter_mut().find(|(number, ..)| number == backup) {
                    Some((.., logs)) => logs.push((log, view.first)),
                    None => asked.push((*backup, address, vec![(log, view.first)])),
                }
            }
        }
        asked
    }

    /// Of what backups have told of the end of a log that which counts by now: not what somebody said who is lost since. As the only answer it
    /// could end the log at a block that nobody else has, and if that backup does not come back nobody could show the end. If it does,
    /// it is asked again.
    pub fn ends_that_count(&self, told: &[(NodeNumber, ToldEnd)]) -> Vec<ToldEnd> {
        let is_there = |backup: NodeNumber| self.node(backup).is_some_and(|node| !node.fenced);
        told.iter().filter(|(backup, _)| is_there(*backup)).map(|(_, end)| *end).collect()
    }

    /// Streamlets with copies that an incarnation does not simply go on with: others own them, or it must take them over like anybody.
    pub fn not_gone_on_with(&self, node: NodeNumber, epoch: u32) -> Vec<(StreamId, StreamletId)> {
        let mut others = Vec::new();
        for info in self.catalog.streams() {
            for streamlet in (0..info.options.streamlets).map(StreamletId) {
                if !self.is_copied(info, streamlet.0) {
                    continue;
                }
                let owner = self.owner(info.id, streamlet.0);
                let goes_on =
                    owner.is_some_and(|owner| (owner.node, owner.epoch) == (node, epoch) && !owner.rebuilding);
                if !goes_on {
                    others.push((info.id, streamlet));
                }
            }
        }
        others
    }

    /// What a node cuts of [them](ClusterState::not_gone_on_with): what was under way when it ended. From level [`OWN_LIVES`](kera_format::level::OWN_LIVES) on not what it has
    /// written to asynchronous streams since it took them over, and goes on rebuilding: it may have acknowledged that, and it gets its copies like anything that was under way.
    ///
    /// What it wrote before that goes, whoever waits for it: another node has been the owner since, and has given its ordinals to other records. As it is not known of a state
    /// from a snapshot when a streamlet was taken over, all goes then.
    pub fn to_be_cut(&self, node: NodeNumber, epoch: u32) -> Vec<ToBeCut> {
        let tells = self.level() >= kera_format::level::OWN_LIVES;
        let is_early = |stream: StreamId| {
            let info = self.catalog.find(&stream.into());
            info.is_ok_and(|info| info.options.replication_mode == ReplicationMode::Async)
        };
        let goes_on = |owner: super::Owner| (owner.node, owner.epoch) == (node, epoch);
        let of = |(stream, streamlet): (StreamId, StreamletId)| {
            let keeps = tells && is_early(stream) && self.owner(stream, streamlet.0).is_some_and(goes_on);
            let own_from = self.seen.taken_in(stream, streamlet.0).filter(|_| keeps);
            ToBeCut { stream, streamlet, own_from }
        };
        self.not_gone_on_with(node, epoch).into_iter().map(of).collect()
    }

    /// Streamlets of which a node has groups from before they went to another owner, each with where it stood then: all that had been acknowledged until then is in front of that. Only of the last
    /// time, for what was handed over before that is not kept.
    pub fn handed_on(&self, node: NodeNumber) -> Vec<HandedOn> {
        let mut found = Vec::new();
        for (stream, at, handed) in self.handed.iter() {
            let (streamlet, owner) = (StreamletId(at), self.told_owner(stream, StreamletId(at)));
            if !owner.older.iter().any(|older| older.node == node) {
                continue;
            }
            // It was read where the entry was planned.
            let Ok(state) = <StreamletState as kera_protocol::Body>::decode(1, &handed.state) else { continue };
            let lanes = state.lanes.iter().filter(|lane| lane.lane != LaneId::PROGRESS);
            let ends = lanes.map(|lane| (lane.lane, lane.next_ordinal)).collect();
            found.push(HandedOn { stream, streamlet, owner, owner_epoch: handed.owner_epoch, ends });
        }
        found
    }

    /// Streamlets that others have with all their copies, so that a node needs nothing of what it has of them from before.
    ///
    /// None that it owns itself, also if others had it whole in between: the table of owners says of all that the lost owner had that it is with the node, and of what the node has held all the
    /// time it says the same.
    pub fn rebuilt_by_others(&self, node: NodeNumber, epoch: u32) -> Vec<(StreamId, StreamletId)> {
        if self.keeps_leftovers(node) {
            return Vec::new();
        }
        let mut found = self.not_gone_on_with(node, epoch);
        found.retain(|&(stream, streamlet)| self.is_whole_with_others(node, stream, streamlet));
        found
    }

    /// Whether somebody else has all of a streamlet with all its copies, and this node holds nothing of it. What it still has of it must go then, before it owns it
    /// again: it would be taken for what it holds.
    pub fn is_rebuilt_by_others(&self, node: NodeNumber, stream: StreamId, streamlet: StreamletId) -> bool {
        !self.keeps_leftovers(node) && self.is_whole_with_others(node, stream, streamlet)
    }

    fn is_whole_with_others(&self, node: NodeNumber, stream: StreamId, streamlet: StreamletId) -> bool {
        let at = streamlet.0;
        let is_with_others =
            |owner: super::Owner| owner.node != node && !(owner.rebuilding && self.passes_over_the_living());
        let holds = || self.held_of(stream, at).any(|held| held.node == node);
        self.owner(stream, at).is_none_or(is_with_others) && !holds()
    }

    /// Below level [`LIVING_HOLDERS`](kera_format::level::LIVING_HOLDERS) nothing goes while a log of an earlier incarnation of the node is kept. From it on it is known
    /// of each streamlet whether its owner still rebuilds it.
    fn keeps_leftovers(&self, node: NodeNumber) -> bool {
        !self.passes_over_the_living() && self.lost_logs().any(|(lost, _)| lost.node == node)
    }

    /// Logs of the incarnations of a node before this one that nobody rebuilds from: it may give them up once it has nothing of that time any
    /// more, or once that is in its logs of today. Never the present one's: a process that was declared lost knows nothing of what
    /// the next one has.
    pub fn own_lost_logs(&self, node: NodeNumber, epoch: u32) -> Vec<LogName> {
        if !self.may_give_up_some() {
            return Vec::new();
        }
        let needed = self.needed_logs();
        let own = self.lost_logs().filter(|(name, _)| name.node == node && name.epoch < epoch);
        own.filter(|(name, state)| !needed.has(*name, state)).map(|(name, _)| name).collect()
    }
}

/// The same streamlets, each once.
fn united(mut ranges: Vec<(StreamId, Range<u32>)>) -> Vec<(StreamId, Range<u32>)> {
    ranges.sort_unstable_by_key(|(stream, range)| (*stream, range.start));
    let mut united: Vec<(StreamId, Range<u32>)> = Vec::with_capacity(ranges.len());
    for (stream, range) in ranges {
        match united.last_mut() {
            Some((of, last)) if *of == stream && range.start <= last.end => last.end = last.end.max(range.end),
            _ => united.push((stream, range)),
        }
    }
    united
}

fn node_info(number: NodeNumber, node: &NodeState) -> NodeInfo {
    NodeInfo {
        node: number,
        node_epoch: node.epoch,
        address: node.doors.native.clone(),
        kafka_address: node.doors.kafka.clone(),
        http_address: node.doors.http.clone(),
        rack: node.rack.clone(),
        roles: roles_of(node.roles),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_where_all_that_have_lost_nothing_have_it() {
        let certain = |ends: &[u64]| {
            let told = ends.iter().map(|through| ToldEnd { through: *through, certain: true, begun: 0 });
            let told: Vec<ToldEnd> = told.collect();
            agreed_end(&told, 3)
        };
        assert_eq!(certain(&[]), None);
        assert_eq!(certain(&[7]), Some(7));
        assert_eq!(certain(&[67, 66]), Some(66));
        assert_eq!(certain(&[66, 70]), Some(66));
        assert_eq!(certain(&[3, 67, 66]), Some(66), "one has lost its blocks");
    }

    #[test]
    fn a_block_that_was_begun_counts_if_somebody_has_it() {
        let ends = |ends: &[(u64, u64)]| {
            let told = ends.iter().map(|(through, begun)| ToldEnd { through: *through, certain: true, begun: *begun });
            agreed_end(&told.collect::<Vec<_>>(), 3)
        };
        assert_eq!(ends(&[(23, 0), (22, 23)]), Some(23), "it was answered for, for all that one can see");
        assert_eq!(ends(&[(25, 0), (22, 23)]), Some(23), "and those behind it were not");
        assert_eq!(ends(&[(22, 0), (22, 23)]), Some(22));
        assert_eq!(ends(&[(22, 23)]), Some(22), "nobody has it");
        assert_eq!(ends(&[(22, 23), (25, 26)]), Some(23));
        assert_eq!(ends(&[(30, 31), (28, 0)]), Some(28));
        assert_eq!(ends(&[(23, 0), (22, 40)]), Some(23));
        assert_eq!(ends(&[(3, 4), (90, 0)]), Some(90), "it has lost blocks");
    }

    #[test]
    fn an_end_that_nobody_is_certain_of_waits_for_all_and_is_where_most_is() {
        let told = |through, certain| ToldEnd { through, certain, begun: 0 };
        assert_eq!(agreed_end(&[told(65, false), told(67, true)], 2), Some(67));
        assert_eq!(agreed_end(&[told(70, false), told(67, true)], 3), Some(67));
        assert_eq!(agreed_end(&[told(65, false)], 2), None, "the other one may have more");
        assert_eq!(agreed_end(&[told(65, false), told(66, false)], 2), Some(66));
        assert_eq!(agreed_end(&[told(65, false)], 1), Some(65));
    }
}
