//! What a node that has come back has of streamlets that others took over and are rebuilding: it may hold that again, instead of being rebuilt
//! (`docs/replication.md`, "A returning node holds again what it has").

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use kera_format::StreamId;
use kera_format::cluster::{ClusterEntry, NodeNumber, Roles};
use kera_format::level;
use kera_format::vlog_replica::LogId;
use kera_protocol::{ReturnGroups, StreamletState, WholeLane};

use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, Held, Owner};
use crate::CoordinatorError;
use crate::catalog::CLUSTER_PREFIX;

/// A streamlet that a node may offer to have older groups of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Offerable {
    /// Of which stream.
    pub stream: StreamId,
    /// Which streamlet.
    pub streamlet: u32,
    /// Who rebuilds it.
    pub owner: NodeNumber,
    /// In which owner epoch.
    pub owner_epoch: u32,
}

/// What an incarnation has offered to those who rebuild it, and when the logs of earlier ones, which have the copies of that, may be given up.
#[derive(Default, Debug)]
pub struct Offers {
    /// What was said of each. It is said again like that, so that all that is under way is answered in one way.
    made: BTreeMap<Offerable, Vec<WholeLane>>,
    /// What the owner has refused for good, or of which this node has not all.
    refused: BTreeSet<Offerable>,
    /// Old logs were asked to be given up. The question may come late, so nothing may be offered any more of which they have the copies.
    is_over: bool,
}

impl Offers {
    /// What to offer of a streamlet, of which this node has `lanes`, if that is all of it. From here on the old logs are kept until it is decided.
    pub fn make(&mut self, of: Offerable, lanes: impl FnOnce() -> Option<Vec<WholeLane>>) -> Option<Vec<WholeLane>> {
        if self.is_over || self.refused.contains(&of) {
            return None;
        }
        if let Some(made) = self.made.get(&of) {
            return Some(made.clone());
        }
        match lanes() {
            Some(lanes) => drop(self.made.insert(of, lanes)),
            None => self.refuse(of),
        }
        self.made.get(&of).cloned()
    }

    /// What there is of a streamlet that is offered is more by now: its owner has said where lanes end, and what had been cut off was taken up again.
    pub fn has_taken_up(&mut self, of: Offerable, lanes: Vec<WholeLane>) {
        if let Some(made) = self.made.get_mut(&of) {
            *made = lanes;
        }
    }

    /// A streamlet is not held again as long as it is owned as it is.
    pub fn refuse(&mut self, of: Offerable) {
        self.refused.insert(of);
    }

    /// Streamlets of which the node holds older groups since it has offered them.
    pub fn held(&self, known: &ClusterState, node: NodeNumber) -> BTreeSet<(StreamId, u32)> {
        // It owns what it was given back, with what it had of it before.
        let is_its = |of: &&Offerable| {
            known.owner(of.stream, of.streamlet).is_some_and(|owner| owner.node == node && !owner.rebuilding)
        };
        let held = self.made.keys().filter(|of| known.holds(node, of.stream, of.streamlet) || is_its(of));
        held.map(|of| (of.stream, of.streamlet)).collect()
    }

    /// Whether logs of earlier incarnations may be given up as far as this node does not need them for what it holds. Not while something that
    /// is offered, or may be, can come to be held. From the first time on nothing is offered any more.
    pub fn give_up_old_logs(
        &mut self,
        known: &ClusterState,
        (node, epoch): (NodeNumber, u32),
        offers_any: bool,
    ) -> bool {
        let may_come = |of: &Offerable| !self.refused.contains(of);
        let is_open = self.made.keys().any(|of| may_come(of) && known.is_open_offer(of, node));
        let comes = || known.waits_to_be_recovered(node, epoch) || known.offerable(node, epoch).iter().any(may_come);
        self.is_over = self.is_over || !(is_open || (offers_any && comes()));
        self.is_over
    }
}

impl ClusterState {
    /// Blocks of logs of a node's lives that are over, view by view, with who has them. Of a log whose end is not decided the last view has all from its first on.
    pub fn blocks_of_earlier_lives(&self, node: NodeNumber) -> Vec<(LogId, RangeInclusive<u64>, Vec<NodeNumber>)> {
        let mut found = Vec::new();
        for (name, log) in self.lost_logs().filter(|(name, _)| name.node == node) {
            let last = log.end.unwrap_or(u64::MAX);
            let nexts = log.views.iter().skip(1).map(|view| view.first.saturating_sub(1)).chain([last]);
            let views = log.views.iter().zip(nexts).map(|(view, last)| (name.into(), view.first..=last, view));
            let views = views.filter(|(_, blocks, view)| !blocks.is_empty() && !view.backups.is_empty());
            found.extend(views.map(|(id, blocks, view)| (id, blocks, view.backups.clone())));
        }
        found
    }

    /// Streamlets that others took over and have not rebuilt, of which this incarnation may have all that there was.
    pub fn offerable(&self, node: NodeNumber, epoch: u32) -> Vec<Offerable> {
        let mut found = Vec::new();
        if self.level() < level::RETURNED_GROUPS {
            return found;
        }
        for (stream, run) in self.rebuilding() {
            let of =
                |streamlet| Offerable { stream, streamlet, owner: run.owner.node, owner_epoch: run.owner.owner_epoch };
            let all = (run.first..run.end()).map(of);
            found.extend(all.filter(|of| {
                self.check_groups_returned((of.stream, of.streamlet), of.owner_epoch, (node, epoch)).is_ok()
            }));
        }
        found
    }

    /// Whether streamlets with copies that earlier incarnations of a node owned wait for another owner.
    fn waits_to_be_recovered(&self, node: NodeNumber, epoch: u32) -> bool {
        self.copied_runs().any(|(_, run)| run.owner.node == node && run.owner.epoch != epoch)
    }

    /// Whether it may be yet that what an incarnation has of a streamlet which it does not own comes to be held there: its owner rebuilds it, or it waits for one.
    pub fn may_come_back(&self, stream: StreamId, streamlet: u32, (node, epoch): (NodeNumber, u32)) -> bool {
        let waits = |owner: Owner| match owner.node == node {
            true => owner.epoch != epoch,
            false => owner.rebuilding,
        };
        self.owner(stream, streamlet).is_some_and(waits) && !self.holds(node, stream, streamlet)
    }

    /// Whether an offer of a node that lives may still be agreed to: otherwise it was, or never will be.
    pub fn is_open_offer(&self, of: &Offerable, node: NodeNumber) -> bool {
        let owner = self.owner(of.stream, of.streamlet).filter(|owner| owner.owner_epoch == of.owner_epoch);
        owner.is_some_and(|owner| owner.rebuilding) && !self.holds(node, of.stream, of.streamlet)
    }

    /// Whether a node holds older groups of a streamlet that another one owns.
    pub fn holds(&self, node: NodeNumber, stream: StreamId, streamlet: u32) -> bool {
        self.held_of(stream, streamlet).any(|held| held.node == node && !held.lost)
    }

    /// Groups of a streamlet that are not with its owner.
    pub(super) fn held_of(&self, stream: StreamId, streamlet: u32) -> impl Iterator<Item = Held> + '_ {
        self.owners.get(&stream).into_iter().flat_map(move |of| of.held_of(streamlet))
    }

    /// Groups are with a node that came back only instead of being rebuilt: all that are older than the owner that rebuilds them, and nobody else
    /// has some of them. Both the owner epoch and the node's own must be in force: what either knew before says nothing.
    pub(super) fn check_groups_returned(
        &self,
        (stream, streamlet): (StreamId, u32),
        owner_epoch: u32,
        (node, epoch): (NodeNumber, u32),
    ) -> Result<(), Refused> {
        let Some(owner) = self.owner(stream, streamlet) else {
            return Err(Refused(format!("nobody owns streamlet {streamlet} of stream {stream}")));
        };
        let Owner { node: owned_by, epoch: owned_in, owner_epoch: has, rebuilding, .. } = owner;
        must(has == owner_epoch, || format!("streamlet {streamlet} has owner epoch {has}, not {owner_epoch}"))?;
        must(rebuilding, || format!("streamlet {streamlet} is not being rebuilt"))?;
        must(self.is_live(owned_by, owned_in), || format!("node {owned_by}, which rebuilds it, is lost"))?;
        must(self.is_live(node, epoch), || format!("node {node} epoch {epoch} is over"))?;
        must(node != owned_by, || format!("node {node} rebuilds streamlet {streamlet} itself"))?;
        // These are small, and their owner reads all of them before it serves what they are for.
        let is_users = !self.name_of(stream).starts_with(CLUSTER_PREFIX);
        must(is_users, || format!("stream {stream} is one of the system's"))?;
        let is_broker = self.nodes.get(&node).is_some_and(|known| known.roles.has(Roles::BROKER));
        must(is_broker, || format!("node {node} is no broker"))?;
        match self.held_of(stream, streamlet).find(|held| held.lost || held.node != owned_by) {
            Some(other) => Err(Refused(format!(
                "groups of owner epoch {} of streamlet {streamlet} are with node {}, not with who rebuilds it",
                other.owner_epoch, other.node
            ))),
            None => Ok(()),
        }
    }

    /// The owner that rebuilds a streamlet has found that a node which came back has all older groups of it. `state` is kept as after a move: where
    /// the lanes went on, for a node may hold groups with their copies in logs of its own present life, where nobody would look for them.
    ///
    /// Groups in it are those that the owner has written itself in earlier owner epochs, the first of them at least: older than the present one, and with the owner all the
    /// same. One batch says both, and its first entry is the one that may be refused, so nobody ever takes them for the other node's.
    pub fn plan_returned(&self, asked: &ReturnGroups) -> Planned {
        let ReturnGroups { node, epoch, stream, owner_epoch, holder, holder_epoch, .. } = *asked;
        let streamlet = asked.streamlet.0;
        let owner = self.owner(stream, streamlet);
        let is_its =
            owner.is_some_and(|owner| (owner.node, owner.epoch, owner.owner_epoch) == (node, epoch, owner_epoch));
        if is_its && self.holds(holder, stream, streamlet) {
            return Ok(Vec::new());
        }
        let refused = |why: String| CoordinatorError::Refused(Refused(why));
        if !is_its {
            return Err(refused(format!("node {node} epoch {epoch} does not own streamlet {streamlet} of {stream}")));
        }
        let mut state = <StreamletState as kera_protocol::Body>::decode(1, &asked.state)?;
        if (state.stream, state.streamlet.0) != (stream, streamlet) {
            return Err(refused("the state is not that of the streamlet".into()));
        }
        let own = state.lanes.iter_mut().flat_map(|lane| lane.groups.drain(..)).map(|kept| kept.group.epoch()).min();
        // What is kept of a state has no groups.
        let kept = if own.is_some() { kera_protocol::codec::bytes_of(&state) } else { asked.state.clone() };
        self.check_handed_room(stream, streamlet, kept.len()).map_err(CoordinatorError::Refused)?;
        let mut entries = self.one(ClusterEntry::GroupsReturned {
            stream,
            streamlet,
            owner_epoch,
            node: holder,
            epoch: holder_epoch,
        })?;
        if let Some(from) = own {
            entries.extend(self.stays_with_owner((stream, streamlet), (node, owner_epoch), from)?);
        }
        entries.extend(self.one(ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state: kept })?);
        Ok(entries)
    }

    /// What the owner of a streamlet has written itself since an earlier owner epoch of its own, `from`, is with it when all that is older comes to be with a node that came
    /// back: each owner epoch that the table tells apart, and `from` itself, for of a streamlet that has never moved the table may name none.
    fn stays_with_owner(
        &self,
        (stream, first): (StreamId, u32),
        (node, owner_epoch): (NodeNumber, u32),
        from: u32,
    ) -> Planned {
        let held: BTreeSet<u32> = self.held_of(stream, first).map(|held| held.owner_epoch).collect();
        let allowed = || {
            let (has, needs) = (self.level(), level::RETURNED_IN_FRONT);
            must(has >= needs, || format!("what its owner has written itself needs level {needs}, not {has}"))?;
            must(from < owner_epoch, || {
                format!("groups of owner epoch {from} are not older than owner epoch {owner_epoch}")
            })?;
            must(held.first().copied().unwrap_or(1) < from, || {
                format!("nothing of streamlet {first} is older than owner epoch {from}, which its owner has itself")
            })
        };
        allowed().map_err(CoordinatorError::Refused)?;
        let own = held.into_iter().filter(|epoch| *epoch >= from).chain([from]).collect::<BTreeSet<u32>>();
        let stays = |owner_epoch| ClusterEntry::GroupsHeld { stream, first, count: 1, owner_epoch, node };
        let mut entries = Vec::with_capacity(own.len());
        for entry in own.into_iter().map(stays) {
            entries.extend(self.one(entry)?);
        }
        Ok(entries)
    }
}
