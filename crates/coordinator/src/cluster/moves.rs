//! Streamlets that move because somebody wants it: one, or all of a node that is drained (`balance.rs` has those that even out the brokers); what
//! nodes hold of streamlets that others own, and what becomes of that when such a node is lost.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::StreamId;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason, Roles};
use kera_protocol::limits::FLOORS_MAX;
use kera_protocol::{GroupsGone, HeldGroups, LaneFloor, MoveInfo, NodeHoldings, SetFloors, StreamRef, StreamletState};

use super::plan::{OWNER_RUNS_MAX, Planned};
use super::rules::Refused;
use super::{ClusterState, Held, LogState, Move, Owner};
use crate::CoordinatorError;

/// Moves that are under way at a time for nodes that are drained.
pub const MOVES_MAX: usize = 4;

/// A streamlet of a drained node whose move was called off stays where it is for so long, in microseconds: its writers wait each time.
const CALLED_OFF_US: u64 = 60_000_000;

/// So long it is remembered that one was, in microseconds: a few are tried at a time, so that as many of them as are in a day wait for each other.
const REMEMBERED_US: u64 = 24 * 60 * CALLED_OFF_US;

/// Moves that a leader has called off, and when. It alone remembers them, and whoever leads next tries them anew.
#[derive(Clone, Debug, Default)]
pub struct CalledOff(BTreeMap<(StreamId, u32), (NodeNumber, u64)>);

impl CalledOff {
    /// Notes that a move is called off.
    pub fn note(&mut self, of: &Move, now_us: u64) {
        self.0.retain(|_, (_, at_us)| now_us.saturating_sub(*at_us) < REMEMBERED_US);
        self.0.insert((of.stream, of.streamlet), (of.to, now_us));
    }

    /// Where that was to go which is not tried again yet.
    fn lately(&self, now_us: u64) -> impl Iterator<Item = NodeNumber> + '_ {
        let lately = self.0.values().filter(move |(_, at_us)| now_us.saturating_sub(*at_us) < CALLED_OFF_US);
        lately.map(|(to, _)| *to)
    }

    /// What is tried again by now, those first that have waited longest.
    fn rested(&self, now_us: u64) -> Vec<(StreamId, u32)> {
        let rested = self.0.iter().filter(|(_, (_, at_us))| now_us.saturating_sub(*at_us) >= CALLED_OFF_US);
        let mut rested: Vec<(u64, (StreamId, u32))> = rested.map(|(what, (_, at_us))| (*at_us, *what)).collect();
        rested.sort_unstable();
        rested.into_iter().map(|(_, what)| what).collect()
    }
}

/// What of a streamlet a person may give up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    stream: StreamId,
    streamlet: u32,
    /// Its owner, if that is over.
    owner: Option<NodeNumber>,
    /// The owner epochs of groups that others held, and have lost, and who held them.
    held: Vec<(u32, NodeNumber)>,
}

fn refused(reason: impl Into<String>) -> CoordinatorError {
    CoordinatorError::Refused(Refused(reason.into()))
}

impl ClusterState {
    /// A move of a streamlet. Asked again while it is under way, or when it is there, nothing is to do.
    pub fn plan_move(&self, stream: &StreamRef, streamlet: u32, to: NodeNumber) -> Planned {
        let info = self.catalog.find(stream)?;
        let has = info.options.streamlets;
        if streamlet >= has {
            return Err(refused(format!(
                "stream `{}` has {has} streamlets, 0 to {}, so there is no streamlet {streamlet}",
                info.name,
                has - 1
            )));
        }
        let (what, from) = ((info.id, streamlet), self.owner(info.id, streamlet).map_or(0, |owner| owner.node));
        let is_moving = self.moving.get(&what).is_some_and(|number| self.moves[number].to == to);
        if is_moving || (from == to && !self.moving.contains_key(&what)) {
            return Ok(Vec::new());
        }
        let name =
            |Refused(why): Refused| refused(format!("{}/{streamlet} cannot be moved to node {to}: {why}", info.name));
        self.check_may_move(what, from, to).map_err(name)?;
        let (stream, number) = (info.id, self.next_move.max(1));
        self.one(ClusterEntry::MoveNoted { number, stream, streamlet, from, to })
    }

    /// A move of a streamlet from its owner to itself, so that it begins a new owner epoch with all that was before it acknowledged, and may go
    /// on in another virtual log. Only that owner asks for it. Asked again while it is under way nothing is to do.
    pub fn plan_renew(&self, stream: StreamId, streamlet: u32, (node, epoch): (NodeNumber, u32)) -> Planned {
        let what = (stream, streamlet);
        if !self.is_owner((node, epoch), stream, streamlet) {
            return Err(refused(format!("node {node} epoch {epoch} does not own streamlet {streamlet} of {stream}")));
        }
        if self.moving.get(&what).is_some_and(|number| self.moves[number].to == node) {
            return Ok(Vec::new());
        }
        let info = self.catalog.find(&stream.into())?;
        if info.options.replication < 2 && self.wanted_copies(stream).is_none() {
            return Err(refused(format!(
                "stream `{}` has no copies, so it is in no log that could be another",
                info.name
            )));
        }
        self.check_may_move(what, node, node).map_err(|Refused(why)| refused(why))?;
        self.one(ClusterEntry::MoveNoted { number: self.next_move.max(1), stream, streamlet, from: node, to: node })
    }

    /// The move of a streamlet that is under way; its number is zero if there is none.
    pub fn move_info(&self, stream: &StreamRef, streamlet: u32) -> Option<MoveInfo> {
        let stream = self.catalog.find(stream).ok()?.id;
        let number = self.moving.get(&(stream, streamlet)).copied().unwrap_or(0);
        let node = self.owner(stream, streamlet)?.node;
        let (from, to) = self.moves.get(&number).map_or((node, node), |of| (of.from, of.to));
        Some(MoveInfo { number, stream, streamlet: kera_format::StreamletId(streamlet), from, to })
    }

    /// All moves under way, by number.
    pub fn move_infos(&self) -> impl Iterator<Item = MoveInfo> + '_ {
        self.moves.iter().map(|(number, of)| MoveInfo {
            number: *number,
            stream: of.stream,
            streamlet: kera_format::StreamletId(of.streamlet),
            from: of.from,
            to: of.to,
        })
    }

    /// Whether a node is to let go of a streamlet for a move.
    pub fn is_to_let_go(&self, number: u64, stream: StreamId, streamlet: u32, node: NodeNumber) -> bool {
        let noted = self.moves.get(&number);
        noted.is_some_and(|of| (of.stream, of.streamlet, of.from) == (stream, streamlet, node))
    }

    /// Whether an incarnation is the owner of a streamlet.
    pub fn is_owner(&self, (node, epoch): (NodeNumber, u32), stream: StreamId, streamlet: u32) -> bool {
        self.owner(stream, streamlet).is_some_and(|owner| (owner.node, owner.epoch) == (node, epoch))
    }

    /// The owner epoch in which an incarnation owns a streamlet, if it does.
    pub fn owned_in(&self, (node, epoch): (NodeNumber, u32), stream: StreamId, streamlet: u32) -> Option<u32> {
        let owner = self.owner(stream, streamlet).filter(|owner| (owner.node, owner.epoch) == (node, epoch));
        owner.map(|owner| owner.owner_epoch)
    }

    /// Groups that a node holds, streamlet by streamlet, each with the owner epoch behind them. Without what it rebuilds, and without the newest of what it
    /// owns, which [grow](ClusterState::grows_with_moves).
    pub fn held_by(&self, node: NodeNumber) -> Vec<(HeldGroups, u32)> {
        let mut found = Vec::new();
        for info in self.catalog.streams() {
            let Some(owners) = self.owners.get(&info.id) else { continue };
            for held in owners.held().iter().filter(|held| held.node == node && !held.lost) {
                for first in held.first..held.first + held.count {
                    let Some(owner) = owners.owner(first).filter(|owner| !owner.rebuilding) else { continue };
                    let behind =
                        owners.held_of(first).map(|other| other.owner_epoch).filter(|at| *at > held.owner_epoch).min();
                    if self.grows_with_moves(info.id, first, held) {
                        continue;
                    }
                    let of = HeldGroups { stream: info.id, first, count: 1, owner_epoch: held.owner_epoch };
                    found.push((of, behind.unwrap_or(owner.owner_epoch)));
                }
            }
        }
        found
    }

    /// The end of a move: the node that it goes to has what it needs, and `state` of it is kept with the new owner, in one entry of
    /// the log. The node before keeps the old groups.
    pub fn plan_finish_move(&self, number: u64, node: NodeNumber, epoch: u32, state: &[u8]) -> Planned {
        self.plan_end_of_move(number, (node, epoch), state, OwnerReason::Moved)
    }

    /// The same of a move, or of one with which a streamlet gets another number of copies.
    pub(super) fn plan_end_of_move(
        &self,
        number: u64,
        (node, epoch): (NodeNumber, u32),
        state: &[u8],
        reason: OwnerReason,
    ) -> Planned {
        let Some(noted) = self.moves.get(&number) else {
            return Err(refused(format!("move {number} is not noted; it was called off")));
        };
        let (stream, first, count) = (noted.stream, noted.streamlet, 1);
        let handed = <StreamletState as kera_protocol::Body>::decode(1, state)?;
        let before = self.owner(stream, first).map(|owner| (owner.node, owner.owner_epoch));
        if (handed.stream, handed.streamlet.0) != (stream, first) || before != Some((noted.from, handed.epoch)) {
            return Err(refused(format!("the state is not that of what move {number} moves")));
        }
        self.check_handed_room(stream, first, state.len()).map_err(CoordinatorError::Refused)?;
        let owner_epoch = self.next_owner_epoch.max(1);
        let mut entries =
            self.one(ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number })?;
        // Of a streamlet that has never moved the owner has all groups, those that it rebuilt or got back included.
        let newest = self.owners.get(&stream).and_then(|of| of.held_of(first).max_by_key(|held| held.owner_epoch));
        let from_epoch = if newest.is_some() { handed.epoch } else { 1 };
        // What follows groups that the new owner holds already is with them.
        let is_known = noted.from == node && newest.is_some_and(|held| held.node == node && !held.lost);
        if !is_known {
            entries.push(ClusterEntry::GroupsHeld { stream, first, count, owner_epoch: from_epoch, node: noted.from });
        }
        entries.push(ClusterEntry::StreamletHanded { stream, streamlet: first, owner_epoch, state: state.to_vec() });
        if noted.from != node {
            entries.extend(self.plan_unsay_copies((stream, first), noted.from));
        }
        Ok(entries)
    }

    /// The calling off of a move.
    pub fn plan_call_off(&self, number: u64) -> Planned {
        if self.moves.contains_key(&number) { self.one(ClusterEntry::MoveCalledOff { number }) } else { Ok(Vec::new()) }
    }

    /// Whether a node is to own nothing.
    pub fn plan_drain(&self, node: NodeNumber, draining: bool) -> Planned {
        let Some(known) = self.nodes.get(&node) else {
            return self.one(ClusterEntry::NodeDraining { node, draining });
        };
        if known.draining == draining {
            return Ok(Vec::new());
        }
        let takes = |(number, other): (&NodeNumber, &super::NodeState)| {
            *number != node && other.is_live(Roles::BROKER) && !other.draining
        };
        if draining && !self.nodes.iter().any(takes) {
            return Err(refused(format!(
                "node {node} cannot be drained: there is no other live broker that could take its {} streamlets; start one with \
                 `kera serve --node N --join HOST:PORT`",
                known.streamlets
            )));
        }
        self.one(ClusterEntry::NodeDraining { node, draining })
    }

    /// The next moves away from nodes that are drained, a few at a time. Those of which no move was `called_off` are first, and then those whose was
    /// called off longest ago, when they have rested. So each streamlet has its turn before any has another one, and however many cannot be moved, the others
    /// are tried. And where it was to go others go last, for that may be why.
    pub fn plan_drain_moves(&self, called_off: &CalledOff, now_us: u64) -> Planned {
        let mut room = MOVES_MAX.saturating_sub(self.moves.len());
        let is_one = |node: &super::NodeState| node.draining && node.streamlets > 0 && node.is_live(Roles::BROKER);
        if room == 0 || !self.nodes.values().any(is_one) {
            return Ok(Vec::new());
        }
        let mut load = self.loads(&[]);
        load.retain(|node, _| self.nodes.get(node).is_some_and(|node| !node.draining));
        self.moves.values().for_each(|of| *load.entry(of.to).or_default() += 1);
        let weight = 1 + load.values().max().copied().unwrap_or(0) / MOVES_MAX as u64;
        called_off.lately(now_us).for_each(|to| {
            load.entry(to).and_modify(|has| *has += weight);
        });
        let drained = |from: NodeNumber| self.nodes.get(&from).is_some_and(is_one);
        let runs = self.catalog.streams().filter_map(|info| Some((info.id, self.owners.get(&info.id)?)));
        let runs = runs.flat_map(|(stream, of)| of.runs().iter().map(move |run| (stream, run)));
        let all = runs.filter(|(_, run)| drained(run.owner.node)).flat_map(|(stream, run)| {
            let from = run.owner.node;
            (run.first..run.end()).map(move |streamlet| ((stream, streamlet), from))
        });
        let first = all.filter(|(what, _)| !called_off.0.contains_key(what));
        let again = called_off.rested(now_us).into_iter().filter_map(|what| {
            let from = self.owner(what.0, what.1)?.node;
            drained(from).then_some((what, from))
        });
        let mut entries = Vec::new();
        for (what @ (stream, streamlet), from) in first.chain(again) {
            let Some(to) = self.best_of(self.name_of(stream), &load) else { break };
            if self.check_may_move(what, from, to).is_ok() {
                let number = self.next_move.max(1) + entries.len() as u64;
                entries.push(ClusterEntry::MoveNoted { number, stream, streamlet, from, to });
                *load.entry(to).or_default() += 1;
                room -= 1;
                if room == 0 {
                    break;
                }
            }
        }
        Ok(entries)
    }

    /// What a node that comes back does not hold any more, or not yet, of streamlets of streams with copies: all if it is without its
    /// memory. If it has that, what it was to gather for streamlets of its own and had not rebuilt: it is said to hold that from the
    /// moment on in which it becomes the owner, so that readers wait for it there, and its incarnation that rebuilt it is over. Said
    /// to be there it would look like groups without a record, and readers would pass over it. And what it wrote last to streamlets that it
    /// owned, in however many lives in which it went on with them: backups may not have answered for the end of that. It cuts that off
    /// now, and whoever takes the streamlets over may find it in the logs and serve it, behind what would be said to be here.
    pub(super) fn plan_lose_held(&self, node: NodeNumber, has_all: bool) -> Vec<ClusterEntry> {
        let mut lost: BTreeMap<(StreamId, u32), Vec<(u32, u32)>> = BTreeMap::new();
        let mut lose = |stream, owner_epoch, first, count| {
            // Neighbours in one entry, for there may be as many as there are streamlets.
            let ranges = lost.entry((stream, owner_epoch)).or_default();
            match ranges.last_mut() {
                Some((from, has)) if *from + *has == first => *has += count,
                _ => ranges.push((first, count)),
            }
        };
        for (stream, held) in self.held_copied().filter(|(_, held)| held.node == node && !held.lost) {
            let Held { first, count, owner_epoch, .. } = held;
            if !has_all {
                lose(stream, owner_epoch, first, count);
                continue;
            }
            let owners = &self.owners[&stream];
            for run in owners.within(first, count).filter(|run| run.owner.node == node) {
                // What another node held or lost behind it joins what was decided before it.
                let is_last =
                    |at: &u32| owners.held_of(*at).all(|other| other.owner_epoch <= owner_epoch || other.node == node);
                let is_lost = |at: &u32| run.owner.rebuilding || is_last(at);
                (run.first..run.end()).filter(is_lost).for_each(|at| lose(stream, owner_epoch, at, 1));
            }
        }
        let entries = lost.into_iter().flat_map(|((stream, owner_epoch), ranges)| {
            let one = move |(first, count)| ClusterEntry::GroupsLost { stream, first, count, owner_epoch };
            ranges.into_iter().map(one)
        });
        entries.collect()
    }

    /// Has present owners rebuild groups that nodes held for them and have lost: each gets a new owner epoch, and the groups. Nothing
    /// before the logs of lost nodes that may have something of it have their ends and can be read (below level 14 all that have ends), and nothing of what
    /// is rebuilt already.
    pub fn plan_gather(&self) -> Planned {
        if !self.held_copied().any(|(_, held)| self.is_lost(&held)) {
            return Ok(Vec::new());
        }
        let unreadable = self.unreadable_logs();
        if !unreadable.is_empty() && !self.knows_sources() {
            return Ok(Vec::new());
        }
        let mut lost: BTreeSet<(StreamId, u32)> = BTreeSet::new();
        for (stream, held) in self.held_copied().filter(|(_, held)| self.is_lost(held)) {
            lost.extend((held.first..held.first + held.count).map(|streamlet| (stream, streamlet)));
        }
        let (owner_epoch, reason) = (self.next_owner_epoch.max(1), OwnerReason::Gathered);
        let mut entries: Vec<ClusterEntry> = Vec::new();
        for (stream, streamlet) in lost {
            let Some(Owner { node, epoch, .. }) = self.owner(stream, streamlet) else { continue };
            if unreadable.iter().any(|log| self.may_have_of(*log, &self.owners[&stream], streamlet, 1)) {
                continue;
            }
            let (first, count, number) = (streamlet, 1, 0);
            let one = ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number };
            if entries.len() < OWNER_RUNS_MAX && self.check(&one).is_ok() {
                entries.push(one);
            }
        }
        Ok(entries)
    }

    /// Logs of lost nodes of which a view that has blocks has no backup that is there: an owner that gathers takes no writes until it has been told
    /// what there is. Below level 13 those without an end as well: from it on the rules look after these.
    pub(super) fn unreadable_logs(&self) -> Vec<LogName> {
        let is_there = |node: &NodeNumber| self.nodes.get(node).is_some_and(|node| !node.fenced);
        let can_be_read = |log: &LogState| {
            let Some(end) = log.end else { return self.knows_open_ends() };
            log.views.iter().enumerate().all(|(at, view)| {
                let behind = log.views.get(at + 1).map_or(u64::MAX, |next| next.first);
                let has_blocks = view.first <= end && view.first < behind;
                !has_blocks || view.backups.is_empty() || view.backups.iter().any(is_there)
            })
        };
        self.lost_logs().filter(|(_, log)| !can_be_read(log)).map(|(name, _)| name).collect()
    }

    /// Whether groups that are held are the newest of their streamlet, and with its owner: with a move of it to the same node what that wrote since
    /// belongs to them as well. So they are not gone for good before the streamlet goes to another node, and who says that they are may have looked before such
    /// a move: taken at its word nobody would look for what was written since.
    fn grows_with_moves(&self, stream: StreamId, streamlet: u32, held: &Held) -> bool {
        let is_owner = self.owner(stream, streamlet).is_some_and(|owner| owner.node == held.node);
        is_owner && self.held_of(stream, streamlet).all(|other| other.owner_epoch <= held.owner_epoch)
    }

    /// Who is said to have groups of a streamlet when their holder has none of them any more; zero: nobody.
    ///
    /// The owner if they are the newest that are held and it holds some in front of them: so what it writes stays apart from those. With nobody in between its next
    /// move to itself would make it part of them. What a node says of groups that it held while another one owned the streamlet may be under way for long, and heard of when the
    /// streamlet has come to it and gone again: taken at its word nobody would look for what it wrote in between.
    fn heir(&self, stream: StreamId, streamlet: u32, owner_epoch: u32) -> NodeNumber {
        let is_newest = self.held_of(stream, streamlet).all(|other| other.owner_epoch <= owner_epoch);
        let owner = self.owner(stream, streamlet).map_or(0, |owner| owner.node);
        if is_newest && self.holds(owner, stream, streamlet) { owner } else { 0 }
    }

    /// Groups that a node has no more. What is not its to tell is left out.
    pub fn plan_groups_gone(&self, gone: &GroupsGone) -> Planned {
        let mut entries = Vec::new();
        for HeldGroups { stream, first, count, owner_epoch } in gone.groups.iter().copied() {
            let held = self.owners.get(&stream).into_iter().flat_map(|of| of.held_within(first, count));
            let is_its = |held: &&Held| {
                held.node == gone.node
                    && held.owner_epoch == owner_epoch
                    && held.first <= first
                    && first.saturating_add(count) <= held.first + held.count
            };
            let is_done = |held: &Held| {
                !held.lost && !(first..first.saturating_add(count)).any(|at| self.grows_with_moves(stream, at, held))
            };
            if self.is_live(gone.node, gone.epoch) && held.filter(is_its).any(is_done) {
                let heirs: Vec<_> = (first..first + count).map(|at| self.heir(stream, at, owner_epoch)).collect();
                let mut first = first;
                for of_one in heirs.chunk_by(|one, next| one == next) {
                    let (count, node) = (of_one.len() as u32, of_one[0]);
                    entries.extend(self.one(ClusterEntry::GroupsHeld { stream, first, count, owner_epoch, node })?);
                    first += count;
                }
            }
        }
        Ok(entries)
    }

    /// What owners say of where their lanes begin. Those of streamlets that are in another owner epoch by now are left out, and those that say
    /// nothing that is not known.
    pub fn plan_floors(&self, asked: &SetFloors) -> Planned {
        let (has, most) = (asked.floors.len(), FLOORS_MAX);
        if has > most {
            return Err(refused(format!("floors has {has} lanes, the limit is {most}; ask for fewer at a time")));
        }
        let mut entries = Vec::new();
        for LaneFloor { stream, streamlet, lane, owner_epoch, ordinal } in asked.floors.iter().copied() {
            let at = streamlet.0;
            let is_its = self.owner(stream, at).is_some_and(|owner| owner.owner_epoch == owner_epoch);
            let known = self.floor(stream, at, lane).filter(|floor| floor.owner_epoch == owner_epoch);
            if is_its && known.is_none_or(|floor| floor.ordinal < ordinal) {
                let entry = ClusterEntry::LaneBegins { stream, streamlet: at, lane, owner_epoch, ordinal };
                entries.extend(self.one(entry)?);
            }
        }
        Ok(entries)
    }

    /// A person gives up what only a lost node had of a streamlet: the broker that has fewest gets it, and what it had lost, it has no more.
    ///
    /// What is given up may have been all that was between groups which the owner holds and what it writes from here on. So, [as with any other that are gone](Self::heir),
    /// the owner is said to have these, of which it has none: else its next move to itself would make what it has written part of those groups, and
    /// what it said of them earlier, heard of late, would take that with them.
    pub fn plan_accept_loss(&self, stream: &StreamRef, streamlet: u32) -> Planned {
        let info = self.catalog.find(stream)?;
        let name = format!("{}/{streamlet}", info.name);
        let Some(owner) = self.owner(info.id, streamlet) else {
            return Err(refused(format!("nobody owns {name}, so nothing of it is lost")));
        };
        let lost: Vec<Held> = self.owners[&info.id].held_of(streamlet).filter(|held| self.is_lost(held)).collect();
        let is_lost = !self.is_live(owner.node, owner.epoch);
        if !is_lost && lost.is_empty() {
            let why = match self.waits_in_vain(info.id, streamlet) {
                Some(waits) => format!("node {} has {name} and is live, but {waits}", owner.node),
                None => format!("nothing of {name} is lost: node {} has it and is live", owner.node),
            };
            return Err(refused(why));
        }
        let (stream, first, count, number) = (info.id, streamlet, 1, 0);
        // Of a lost owner the groups that it wrote last are newer than all that anybody holds.
        let heir = |held: &Held| if is_lost { 0 } else { self.heir(stream, streamlet, held.owner_epoch) };
        let gone = lost.iter().map(|held| (held.owner_epoch, heir(held)));
        let held = |(owner_epoch, node)| ClusterEntry::GroupsHeld { stream, first, count, owner_epoch, node };
        let mut entries: Vec<ClusterEntry> = gone.map(held).collect();
        if is_lost {
            let load = self.loads(&[]);
            let Some(node) = self.best_of(&info.name, &load) else {
                return Err(refused(format!("there is no live broker that could take {name}; start one")));
            };
            let (epoch, owner_epoch) = (self.nodes[&node].epoch, self.next_owner_epoch.max(1));
            let reason = OwnerReason::LossAccepted;
            entries.extend(self.one(ClusterEntry::OwnerChanged {
                stream,
                first,
                count,
                node,
                epoch,
                owner_epoch,
                reason,
                number,
            })?);
            if self.holds(node, stream, streamlet) {
                entries.push(held((owner.owner_epoch, node)));
            }
            // The change takes what was handed over from whoever looks for it. Where the streamlet last moved is where it goes on nevertheless: nodes
            // hold what was before, or it has expired, and its numbers must not be given out again.
            if let Some(state) = self.handed(stream, streamlet) {
                entries.push(ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state: state.to_vec() });
            }
        }
        Ok(entries)
    }

    /// What of a streamlet is lost, as far as this state goes; `None`: nothing, or nobody could tell later whether it was given up. With copies that is so: a node that takes over what a lost
    /// one had, and rebuilds it, looks here as one does that goes on without it.
    pub fn loss_of(&self, stream: &StreamRef, streamlet: u32) -> Option<Loss> {
        let stream = self.catalog.find(stream).ok()?.id;
        let owner = self.owner(stream, streamlet).filter(|owner| !owner.is_copied())?;
        let owner = (!self.is_live(owner.node, owner.epoch)).then_some(owner.node);
        let held = self.held_of(stream, streamlet).filter(|held| self.is_lost(held));
        let held: Vec<_> = held.map(|held| (held.owner_epoch, held.node)).collect();
        (owner.is_some() || !held.is_empty()).then_some(Loss { stream, streamlet, owner, held })
    }

    /// Whether a streamlet goes on without what was lost of it: another node owns it, and who had the groups is not to have them any more. That [the owner](Self::heir) may be said to have
    /// them in its place is part of giving them up. Not so if who had it is back, and has it: then nothing was given up.
    pub fn goes_on_without(&self, loss: &Loss) -> bool {
        let Some(owner) = self.owner(loss.stream, loss.streamlet) else { return false };
        let mut held = self.held_of(loss.stream, loss.streamlet).map(|held| (held.owner_epoch, held.node));
        loss.owner.is_none_or(|lost| lost != owner.node) && !held.any(|held| loss.held.contains(&held))
    }

    /// What each node has.
    pub fn holdings(&self) -> Vec<NodeHoldings> {
        let mut held: BTreeMap<NodeNumber, BTreeSet<(StreamId, u32)>> = BTreeMap::new();
        for (stream, owners) in &self.owners {
            for of in owners.held() {
                let others = (of.first..of.first + of.count)
                    .filter(|at| owners.owner(*at).is_none_or(|owner| owner.node != of.node));
                held.entry(of.node).or_default().extend(others.map(|at| (*stream, at)));
            }
        }
        let of = |(node, known): (&NodeNumber, &super::NodeState)| NodeHoldings {
            node: *node,
            draining: known.draining,
            streamlets: known.streamlets,
            held: held.get(node).map_or(0, BTreeSet::len) as u64,
            logs: self.logs.keys().filter(|log| log.node == *node).count() as u64,
        };
        self.nodes.iter().map(of).collect()
    }
}
