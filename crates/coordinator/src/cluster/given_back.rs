//! Who has taken a streamlet over, and cannot open it because nobody shows blocks that it would have to read, gives it back to the node that it came
//! from, once that is back with all of it: `docs/replication.md`, "Its node alone has it", has the argument.
//!
//! The rule, which all nodes check, is about the table of owners. Whether the node that came back has all is known to those who have followed the log since that node
//! owned the streamlet ([`Seen`]); the owner that gives it back is one, or does not do so. Who is sent a snapshot in the place of entries knows what it has seen before of what is
//! [as it was](ClusterState::takes_place_of).
//!
//! Who takes a streamlet over is said to hold what its owner before held and wrote, and by the table that looks like what it held itself all the time. The one goes back, the
//! other stays. Which is which the owner has seen as well, and says so.
//!
//! # An owner that was started again
//!
//! An earlier life of it may have opened the streamlet, and have told others what is in it. It gives it back only if the other node has whatever that may have been
//! ([`may_give_back_after_start`](ClusterState::may_give_back_after_start)). [`gives_back`](ClusterState::gives_back) is what owners ask, whichever they are.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason, Roles};
use kera_format::{StreamId, StreamletId, level};
use kera_protocol::GiveBack;

use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, Held, NodeState, Offerable, Owned, Owner, Sources, StreamOwners};

/// What a node has seen entries say that a snapshot does not tell. Nothing that nodes agree on depends on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// How streamlets that are being rebuilt were taken over.
    taken: BTreeMap<(StreamId, u32), Taken>,
    lives: BTreeMap<NodeNumber, Lives>,
    /// Streamlets that somebody was seen to get anew, last in this life of this node: who decided then what there is, or had cut some of it.
    anew: BTreeMap<(StreamId, u32), (NodeNumber, u32)>,
}

/// How a streamlet was taken over. Its owner may have been killed since, and have come back with later owner epochs.
#[derive(Clone, Debug)]
struct Taken {
    owner_epoch: u32,
    /// The owner before, if that had all but what others were said to hold.
    from: Option<CameFrom>,
    /// What its owner writes stays with it from one life to the next.
    keeps_own: bool,
}

/// From whom a streamlet came that had all of it but what others were said to hold.
#[derive(Clone, Debug)]
struct CameFrom {
    node: NodeNumber,
    /// Its epoch when it owned the streamlet.
    epoch: u32,
    /// The owner epochs of what the next owner held by then, and has not from it.
    keeps: Vec<u32>,
    /// In that life it had appended all of it that was in any of its logs.
    has_its_logs: bool,
}

/// The lives of a node, as far as they were seen to begin, and the one before.
#[derive(Clone, Copy, Debug)]
struct Lives {
    /// Each from this one on has come with all that the one before it had.
    whole_since: u32,
    /// The same before the present one, which has not been said to have all.
    before: Option<u32>,
    /// The first one of which it is known what became of streamlets since.
    first: u32,
    /// The one before the present one, if there was one.
    follows: Option<u32>,
}

/// The life that a node is in, or if that one is over the next.
fn not_over(known: &NodeState) -> u32 {
    known.epoch.saturating_add(u32::from(known.fenced))
}

/// What is of a stream that is gone goes too. It is found by the stream: thousands may be deleted one after the other, and much may be known of all others.
pub(super) fn is_gone() -> bool {
    #[cfg(test)]
    tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
    true
}

/// What is asked back, as its owner has it.
pub fn asked_back(asked: &GiveBack) -> Owned {
    (asked.stream, asked.streamlet, asked.owner_epoch)
}

impl Seen {
    /// An entry is about to become true of this state.
    pub(super) fn note(&mut self, entry: &ClusterEntry, known: &ClusterState) {
        match entry {
            ClusterEntry::OwnerChanged { stream, first, count, .. } => {
                (*first..first + count).for_each(|at| self.note_owner((*stream, at), entry, known));
            }
            ClusterEntry::StreamletsRebuilt { stream, first, count, .. } => {
                for at in *first..first + count {
                    self.taken.remove(&(*stream, at));
                }
            }
            ClusterEntry::NodeJoined { node, epoch, .. } => {
                // Of a life that a snapshot tells of, what it had of those before it is not known.
                let follows = known.nodes.get(node).map(|known| known.epoch);
                let before = self.lives.get(node).map(|lives| lives.whole_since).or(follows);
                let first = self.first_life(known, *node).unwrap_or(*epoch);
                self.lives.insert(*node, Lives { whole_since: *epoch, before, first, follows });
            }
            ClusterEntry::OwnerReturned { node, epoch, all: true, .. } => {
                if let Some(lives) = self.lives.get_mut(node) {
                    lives.whole_since = lives.before.take().unwrap_or(lives.whole_since);
                }
                // What it was rebuilding it decides once more.
                for (stream, run) in known.rebuilding().filter(|(_, run)| run.owner.node == *node) {
                    self.anew.extend((run.first..run.end()).map(|at| ((stream, at), (*node, *epoch))));
                }
            }
            ClusterEntry::NodeFenced { node, epoch } if known.is_live(*node, *epoch) => {
                // It was live when the first entry was seen, if nothing is known of its lives.
                let lives = Lives { whole_since: *epoch, before: None, first: *epoch, follows: None };
                self.lives.entry(*node).or_insert(lives);
            }
            ClusterEntry::NodeRemoved { node } => drop(self.lives.remove(node)),
            _ => {}
        }
    }

    /// A streamlet is about to get another owner, or the same one anew.
    fn note_owner(&mut self, what: (StreamId, u32), entry: &ClusterEntry, known: &ClusterState) {
        let ClusterEntry::OwnerChanged { node, epoch, owner_epoch, reason, .. } = entry else { return };
        let from = match reason {
            OwnerReason::Recovered => known.had_all(what, *node).map(|from| {
                let has_its_logs = self.has_its_logs(known, what, from.node);
                CameFrom { has_its_logs, ..from }
            }),
            _ => None,
        };
        match reason {
            OwnerReason::Recovered | OwnerReason::Gathered => {
                let keeps_own = known.level() >= level::OWN_LIVES;
                self.taken.insert(what, Taken { owner_epoch: *owner_epoch, from, keeps_own });
            }
            _ => drop(self.taken.remove(&what)),
        }
        // Who gets it in one of the other ways gets what its owner before has acknowledged, or what has never been anybody's.
        if !matches!(reason, OwnerReason::First | OwnerReason::Moved | OwnerReason::Copied) {
            self.anew.insert(what, (*node, *epoch));
        }
    }

    /// The first life of a node of which it is known what became of streamlets since: the one that it was in when the first entry was seen, or if that one was over the next.
    fn first_life(&self, known: &ClusterState, node: NodeNumber) -> Option<u32> {
        let seen = self.lives.get(&node).map(|lives| lives.first);
        seen.or_else(|| known.nodes.get(&node).map(not_over))
    }

    /// Whether the owner of a streamlet, which has all of it that was acknowledged, has appended in its last life all that any log of the node has of it.
    ///
    /// What is in a log of a life its node had appended in that life, and it lets go of nothing of that before somebody has acknowledged it. A later life has what the one before it
    /// had, as long as it simply goes on with the streamlet. Who gets it anew decides what there is, and who gets it back has cut what was under way: so from then on logs of lives before say nothing
    /// any more about what it has. They may all be gone.
    ///
    /// Nor do they once a life has come without all that the one before it had. That one goes on as well, with what has one copy: it owns that with whatever it has. If copies of it were
    /// being made, some are in those logs, and when the next ones are there the streamlet is taken over from all of them.
    fn has_its_logs(&self, known: &ClusterState, what: (StreamId, u32), node: NodeNumber) -> bool {
        let Some(first) = self.first_life(known, node) else { return false };
        let whole_since = self.lives.get(&node).map_or(first, |lives| lives.whole_since);
        let anew = match self.anew.get(&what) {
            None => first,
            Some((of, epoch)) if *of == node => *epoch,
            Some(_) => return false,
        };
        let since = first.max(whole_since).max(anew);
        let log = |epoch| LogName { node, epoch, log: 0 };
        known.logs.range(log(0)..log(since)).next().is_none()
    }

    /// A stream is gone.
    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        let of = (stream, 0)..=(stream, u32::MAX);
        _ = self.taken.extract_if(of.clone(), |_, _| is_gone()).count();
        _ = self.anew.extract_if(of, |_, _| is_gone()).count();
    }

    /// In which owner epoch a streamlet that is being rebuilt was taken over, if that was seen.
    pub(super) fn taken_in(&self, stream: StreamId, streamlet: u32) -> Option<u32> {
        self.taken.get(&(stream, streamlet)).map(|taken| taken.owner_epoch)
    }

    /// From whom a streamlet was taken over in that very owner epoch.
    fn came_from(&self, stream: StreamId, streamlet: StreamletId, owner_epoch: u32) -> Option<&CameFrom> {
        let taken = self.taken.get(&(stream, streamlet.0)).filter(|taken| taken.owner_epoch == owner_epoch);
        taken?.from.as_ref()
    }

    /// Whether a streamlet was taken over in that very owner epoch from a node that has had all of it in all of its lives since, but for what the asker keeps.
    fn came_whole_from(&self, of: &GiveBack) -> bool {
        let from = self.came_from(of.stream, of.streamlet, of.owner_epoch);
        let from = from.filter(|from| from.node == of.to && from.keeps == of.keeps);
        from.zip(self.lives.get(&of.to)).is_some_and(|(from, lives)| lives.whole_since <= from.epoch)
    }

    /// In which earlier owner epoch of the asker a streamlet was taken over from a node that had appended all of it that is in any of its logs, and whose present life, which has had
    /// all, follows the one that did. What the asker held before it does not give back then: beside it there may be what it has rebuilt since.
    fn came_before_start(&self, of: &GiveBack) -> Option<u32> {
        let taken = self.taken.get(&(of.stream, of.streamlet.0)).filter(|taken| taken.keeps_own)?;
        let is_whole = |from: &&CameFrom| from.node == of.to && from.has_its_logs && from.keeps.is_empty();
        let from = taken.from.as_ref().filter(is_whole)?;
        let lives = self.lives.get(&of.to)?;
        let is_next = lives.follows == Some(from.epoch) && lives.whole_since <= from.epoch;
        (is_next && taken.owner_epoch < of.owner_epoch).then_some(taken.owner_epoch)
    }
}

impl ClusterState {
    /// This state is what a snapshot says, and takes the place of an earlier one that this node knows. What was seen by then still counts where the entries in between, which were
    /// not seen, cannot have made it something else: how a streamlet was taken over, if it has the same owner in the same owner epoch, for each change of the owner has a
    /// higher one; and the lives of a node, if it is in the same one, for each has a higher epoch. That this one has come with all may be among what was missed, and does not count then.
    pub fn takes_place_of(&mut self, before: &ClusterState) {
        let is_owned_as_before = |(stream, streamlet): &(StreamId, u32)| {
            let owner = self.owner(*stream, *streamlet);
            owner.is_some() && owner == before.owner(*stream, *streamlet)
        };
        let is_in_same_life = |node: &NodeNumber| {
            let epoch = |state: &ClusterState| state.nodes.get(node).map(|known| known.epoch);
            epoch(self).is_some() && epoch(self) == epoch(before)
        };
        let mut seen = before.seen.clone();
        seen.taken.retain(|of, _| is_owned_as_before(of));
        seen.lives.retain(|node, _| is_in_same_life(node));
        // What became of streamlets in between was not seen.
        seen.anew.clear();
        for (node, lives) in &mut seen.lives {
            lives.first = self.nodes.get(node).map_or(lives.first, not_over);
        }
        self.seen = seen;
    }

    /// The owner of a streamlet, if it had all of it but what others are said to hold, with what of that `next` holds, who is about to own it. Not if some of it is
    /// lost where it was held.
    fn had_all(&self, (stream, streamlet): (StreamId, u32), next: NodeNumber) -> Option<CameFrom> {
        let owner = self.owner(stream, streamlet).filter(|owner| !owner.rebuilding && owner.is_copied())?;
        let mut keeps = Vec::new();
        for held in self.held_of(stream, streamlet) {
            if held.lost {
                return None;
            }
            keeps.extend((held.node == next).then_some(held.owner_epoch));
        }
        Some(CameFrom { node: owner.node, epoch: owner.epoch, keeps, has_its_logs: false })
    }

    /// A streamlet goes back to the node that it came from: the owner epoch that is given up is the one in force, so nobody else has taken it over since, and all that its
    /// owner would rebuild was that node's.
    ///
    /// From level [`GIVEN_BACK_IN_PART`](level::GIVEN_BACK_IN_PART) on entries behind it may say that its owner still has what it held itself. They are believed as they are, so
    /// it must not have lost that since: an owner that is said to hold something gives it back in its own life alone.
    pub(super) fn check_given_back(
        &self,
        (stream, streamlet, count): (StreamId, u32, u32),
        before: &Owner,
        to: NodeNumber,
        given_up: u64,
    ) -> Result<(), Refused> {
        must(count == 1, || "streamlets are given back one by one".into())?;
        let has = before.owner_epoch;
        must(u64::from(has) == given_up, || {
            format!("streamlet {streamlet} has owner epoch {has}, and {given_up} is given up")
        })?;
        must(before.rebuilding, || format!("streamlet {streamlet} is not being rebuilt"))?;
        must(before.node != to, || format!("node {to} owns streamlet {streamlet}"))?;
        let holds_some = || self.held_of(stream, streamlet).any(|held| held.node == before.node);
        let may_have_lost =
            self.level() >= level::GIVEN_BACK_IN_PART && !self.is_live(before.node, before.epoch) && holds_some();
        must(!may_have_lost, || format!("node {} is lost, which holds groups of streamlet {streamlet}", before.node))?;
        let is_all_of = |owners: &StreamOwners| match owners.noted_sources(streamlet) {
            Sources::Any => false,
            Sources::Of(nodes) => nodes.keys().eq([&to]),
        };
        must(self.owners.get(&stream).is_some_and(is_all_of), || {
            format!("streamlet {streamlet} is rebuilt from others than node {to}")
        })
    }

    /// What its owner was said to have of a streamlet that it gives back, it had from the node that gets it.
    pub(super) fn hand_back(&mut self, stream: StreamId, streamlet: u32, to: NodeNumber) {
        let Some(owners) = self.owners.get_mut(&stream) else { return };
        let Some(from) = owners.owner(streamlet).map(|owner| owner.node) else { return };
        let held: Vec<_> = owners.held_of(streamlet).filter(|held| held.node == from).collect();
        for one in held {
            owners.hold(Held { first: streamlet, count: 1, node: to, lost: false, ..one });
        }
    }

    /// The owner of a streamlet gives it back. What it [keeps](ClusterState::kept_by_giver) of it is said in the same batch, and the first entry is the one that may be
    /// refused: so nobody ever takes that for the other node's.
    pub fn plan_given_back(&self, asked: &GiveBack) -> Planned {
        let GiveBack { node, epoch, stream, streamlet, owner_epoch: given_up, to, to_epoch, .. } = *asked;
        let refused = |why: String| crate::CoordinatorError::Refused(Refused(why));
        let Some(owner) = self.owner(stream, streamlet.0) else {
            return Err(refused(format!("nobody owns streamlet {streamlet} of stream {stream}")));
        };
        if (owner.node, owner.epoch, owner.rebuilding) == (to, to_epoch, false) {
            return Ok(Vec::new());
        }
        if (owner.node, owner.epoch, owner.owner_epoch) != (node, epoch, given_up) {
            return Err(refused(format!(
                "node {node} epoch {epoch} does not own streamlet {streamlet} of {stream} in owner epoch {given_up}"
            )));
        }
        let mut entries = self.one(ClusterEntry::OwnerChanged {
            stream,
            first: streamlet.0,
            count: 1,
            node: to,
            epoch: to_epoch,
            owner_epoch: self.next_owner_epoch.max(1),
            reason: OwnerReason::GivenBack,
            number: u64::from(given_up),
        })?;
        entries.extend(self.stays_with_giver(asked)?);
        Ok(entries)
    }

    /// What an owner was said to hold before it took a streamlet over stays with it, as far as it is still there: retention may have taken some of it since.
    fn stays_with_giver(&self, asked: &GiveBack) -> Planned {
        if asked.keeps.is_empty() {
            return Ok(Vec::new());
        }
        let (stream, first, node) = (asked.stream, asked.streamlet.0, asked.node);
        let its: Vec<Held> = self.held_of(stream, first).filter(|held| held.node == node).collect();
        let stays = |held: &&Held| asked.keeps.contains(&held.owner_epoch);
        let allowed = || {
            let (has, needs) = (self.level(), level::GIVEN_BACK_IN_PART);
            must(has >= needs, || format!("what its owner keeps of streamlet {first} needs level {needs}, not {has}"))?;
            // What the node wrote that gets it back is listed as well, as its owner's.
            must(its.iter().any(|held| !stays(&held)), || {
                format!("node {node} keeps all of streamlet {first} that it is said to hold, and gives nothing back")
            })
        };
        allowed().map_err(crate::CoordinatorError::Refused)?;
        let mut entries = Vec::new();
        for Held { owner_epoch, .. } in its.iter().filter(stays) {
            let owner_epoch = *owner_epoch;
            entries.extend(self.one(ClusterEntry::GroupsHeld { stream, first, count: 1, owner_epoch, node })?);
        }
        Ok(entries)
    }

    /// Of which owner epochs the owner of a streamlet has held groups since before it took the streamlet over in this owner epoch, by what was seen: it
    /// [keeps](GiveBack::keeps) these if it gives the streamlet back.
    pub fn kept_by_giver(&self, stream: StreamId, streamlet: StreamletId, owner_epoch: u32) -> Vec<u32> {
        let from = self.seen.came_from(stream, streamlet, owner_epoch);
        from.map_or_else(Vec::new, |from| from.keeps.clone())
    }

    /// Streamlets that others have taken over from a node and rebuild: it may get back what these cannot open, if it has had all of it since.
    pub fn may_get_back(&self, node: NodeNumber, epoch: u32) -> BTreeSet<Offerable> {
        let mut found = BTreeSet::new();
        let is_there = |known: &NodeState| known.epoch == epoch && known.is_live(Roles::BROKER);
        if self.level() < level::GIVEN_BACK || !self.nodes.get(&node).is_some_and(is_there) {
            return found;
        }
        for (stream, run) in self.rebuilding() {
            let Owner { node: owner, owner_epoch, .. } = run.owner;
            let is_its =
                |at: &u32| self.check_given_back((stream, *at, 1), &run.owner, node, owner_epoch.into()).is_ok();
            let of = |streamlet| Offerable { stream, streamlet, owner, owner_epoch };
            found.extend((run.first..run.end()).filter(is_its).map(of));
        }
        found
    }

    /// Whether the owner of a streamlet that it cannot open, and does not open from here on, may give it back: the node that asks has had all of it in all of its lives since,
    /// but for what the owner [held](ClusterState::kept_by_giver) before, and keeps.
    pub fn may_give_back(&self, asked: &GiveBack) -> bool {
        self.seen.came_whole_from(asked) && self.plan_given_back(asked).is_ok_and(|entries| !entries.is_empty())
    }

    /// Streamlets that an incarnation goes on rebuilding, and of these the owner epoch in which an earlier life of the node took them over, as far as that was seen.
    pub fn taken_over_before(&self, node: NodeNumber, epoch: u32) -> Vec<(Owned, u32)> {
        let since = |one: &Owned| self.seen.taken_in(one.0, one.1.0).filter(|since| *since < one.2);
        let all = self.to_rebuild(node, epoch).into_iter();
        all.filter_map(|one| since(&one).map(|since| (one, since))).collect()
    }

    /// The same of an owner that was started again since it [took the streamlet over](ClusterState::taken_over_before), if it has nothing of it that was written since, and the node that asks
    /// says that its start [has cut nothing](kera_protocol::OfferGroups::is_uncut) of it.
    ///
    /// An earlier life of the owner may have opened it. What it wrote would be there. What it told of was in logs of the other node, and that node has appended, and not cut, all that was in them:
    /// so it has that too, and goes on where that life of the owner would have. Nobody must have deleted anything of it since: of that nothing is left at the owner, and its ordinals would be
    /// given again.
    pub fn may_give_back_after_start(&self, asked: &GiveBack) -> bool {
        let Some(since) = self.seen.came_before_start(asked) else { return false };
        let mut floors = self.floors(asked.stream).filter(|(streamlet, ..)| *streamlet == asked.streamlet.0);
        floors.all(|(.., floor)| floor.owner_epoch < since)
            && self.plan_given_back(asked).is_ok_and(|entries| !entries.is_empty())
    }

    /// Whether the owner of a streamlet that it cannot open gives it back to the node that offers it. `is_uncut`: that node says that its start has cut nothing of it. `is_unwritten`: the owner was
    /// started again since it [took the streamlet over](ClusterState::taken_over_before), and came with nothing of it that was written since.
    pub fn gives_back(&self, asked: &GiveBack, is_uncut: bool, is_unwritten: bool) -> bool {
        self.may_give_back(asked) || (is_uncut && is_unwritten && self.may_give_back_after_start(asked))
    }

    /// Whether an owner that has asked to give a streamlet back must not open it: the entry may come to be true as long as it is owned like that and the node that is to get it
    /// lives.
    pub fn may_be_given_back(&self, asked: &GiveBack) -> bool {
        let owner = self.owner(asked.stream, asked.streamlet.0);
        let is_as_it_was = |owner: Owner| (owner.node, owner.owner_epoch) == (asked.node, asked.owner_epoch);
        owner.is_some_and(is_as_it_was) && self.is_live(asked.to, asked.to_epoch)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kera_format::LaneId;

    use super::*;
    use crate::cluster::Floor;

    thread_local! {
        /// How much was looked at for what is of a stream that is gone.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn of_a_stream_that_is_gone_all_is_forgotten_and_nothing_of_others_is_looked_at() {
        let mut state = ClusterState::default();
        for stream in (1..=100).map(StreamId) {
            for streamlet in [0, 7, u32::MAX] {
                state.seen.taken.insert((stream, streamlet), Taken { owner_epoch: 1, from: None, keeps_own: true });
                for lane in [0, 5, u32::MAX].map(LaneId) {
                    state.floors.insert((stream, streamlet, lane), Floor { owner_epoch: 1, ordinal: 9 });
                }
            }
        }
        for gone in [1, 50, 100].map(StreamId) {
            LOOKED_AT.set(0);
            state.forget_stream(gone);
            assert_eq!(LOOKED_AT.get(), 3 + 9);
            assert!(state.floors(gone).next().is_none() && state.seen.taken_in(gone, 7).is_none());
        }
        assert_eq!((state.seen.taken.len(), state.floors.len()), (97 * 3, 97 * 9));
        assert!(state.floor(StreamId(51), 0, LaneId(0)).is_some() && state.floor(StreamId(49), 7, LaneId(5)).is_some());
    }
}
