//! The coordinators: the real state, rules and plans, on a log that is simulated.
//!
//! What stands in for Raft is its promise: one order of entries, which an incarnation that does not reach a majority of the
//! coordinators can add nothing to, and of which every node learns a prefix, sooner or later. Which node leads, how long there is
//! none, and who learns when is up to the world.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use kera_coordinator::CoordinatorError;
use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{ClusterState, Join, LogView, Owner};
use kera_format::StreamId;
use kera_format::catalog::Entry as CatalogEntry;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason};
use kera_protocol::{
    AcceptLogLoss, AcceptStreamletLoss, CopiesMade, CreateStream, FinishMove, GiveBack, GroupsGone, RebuildNeeds,
    ReturnGroups, SetFloors, StreamletsRebuilt, UseEnds,
};

use super::changing::copies;
use super::unread::ForOne;
use crate::cluster::truth::Violation;

/// What a node asks of the leader.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Join(Join),
    View(LogView),
    /// Of an earlier epoch of the node that asks, and its own.
    GiveUp(LogName, u32),
    GiveUpView(LogName, u32),
    Rebuilt(StreamletsRebuilt),
    Needs(RebuildNeeds),
    UseEnds(UseEnds),
    /// A person wants a streamlet to be somewhere else.
    Move(StreamId, u32, NodeNumber),
    /// A node wants a streamlet of its own to have a new owner epoch. The last number is the node's epoch.
    Renew(StreamId, u32, NodeNumber, u32),
    /// A person wants a node to own nothing, or lets it own streamlets again.
    Drain(NodeNumber, bool),
    /// Records of lanes were deleted.
    SetFloors(SetFloors),
    /// A person gives up what nobody has any more of a log.
    AcceptLoss(AcceptLogLoss),
    /// A person has one streamlet go on without what nobody gives it.
    AcceptStreamletLoss(AcceptStreamletLoss),
    /// A person gives a node up that is gone for good.
    Remove(NodeNumber),
    /// The new owner of what moves has what it needs.
    FinishMove(FinishMove),
    GroupsGone(GroupsGone),
    /// A person wants a stream to have another number of copies.
    Alter(StreamId, u32),
    /// A node has made the copies that are wanted.
    Made(CopiesMade),
    /// A node has come back with what is being rebuilt.
    Returned(ReturnGroups),
    /// A node has come back with what cannot be opened.
    GiveBack(GiveBack),
    /// A person wants a stream to be made, or to be deleted.
    Create(Box<CreateStream>),
    Delete(StreamId),
}

/// What became of a command: up to which entry it is true, or why it is refused.
pub(super) type Told = Result<usize, String>;

/// See the module.
#[derive(Default)]
pub(super) struct Coordinators {
    pub(super) state: ClusterState,
    /// Entries that became true together, the first at 1, or behind the snapshot that one of them has gone on alone with.
    log: Vec<Vec<ClusterEntry>>,
    /// Those that were true before.
    past: Vec<Vec<ClusterEntry>>,
    /// That snapshot, and the entry that it goes to.
    pub(super) began: ClusterState,
    pub(super) began_at: usize,
    /// What was given out before, or is skipped: owner epochs, and epochs of nodes.
    skipped: (u32, BTreeMap<NodeNumber, u32>),
    pub(super) leader: Option<u32>,
    /// When the next one is chosen.
    pub(super) elect_at_us: Option<u64>,
    /// All owners that each streamlet ever had, in order.
    owners: BTreeMap<(StreamId, u32), Vec<Owner>>,
    /// With which batch each of them became one.
    owned_since: BTreeMap<(StreamId, u32), Vec<usize>>,
    /// Streams that were deleted, each with the batch by which it was.
    pub(super) gone: BTreeMap<StreamId, usize>,
    /// Logs of lost nodes that were given up while something was being rebuilt.
    pub(super) given_up_meanwhile: u64,
    /// Views that followed another one of their log.
    pub(super) views_changed: u64,
    /// Most logs of lost nodes that there were at a time.
    pub(super) lost_logs_most: u64,
    /// Ends of logs that were taken back.
    pub(super) taken_back: u64,
    /// Streamlets that others began to rebuild beside a log of a lost node without an end.
    pub(super) passed_over: u64,
    /// Such logs that were given up.
    pub(super) open_given_up: u64,
    /// How often a node has said that there are as many copies as are wanted of what it holds, and had not said so before.
    pub(super) held_copied: u64,
    /// Numbers of nodes that were removed and have not joined since.
    pub(super) removed: BTreeSet<u32>,
    /// Whoever comes under the number of a node that was removed is taken for a node that never had another number: a defect.
    pub(super) forgets_numbers: bool,
    /// Blocks of lost logs that a person has given up, as long as nobody has looked.
    pub(super) given_up_blocks: Vec<(LogName, RangeInclusive<u64>)>,
    /// Views that a person has given up for single streamlets, each with the owner epoch, as long as nobody has looked.
    pub(super) given_up_for: Vec<(ForOne, u32)>,
    /// What is planned becomes true when a majority has it on its disks, and not at once.
    has_disks: bool,
    /// Entries that are planned and are not true yet.
    pub(super) proposed: Option<Vec<ClusterEntry>>,
}

impl Coordinators {
    pub(super) fn new(forgets_numbers: bool, has_disks: bool) -> Coordinators {
        Coordinators { forgets_numbers, has_disks, ..Coordinators::default() }
    }

    /// The last batch of entries.
    pub(super) fn index(&self) -> usize {
        self.began_at + self.log.len()
    }

    /// The entries of a batch.
    pub(super) fn batch(&self, index: usize) -> &[ClusterEntry] {
        &self.log[index - self.began_at - 1]
    }

    /// One that was left goes on alone, from this state and behind this entry; so many of all numbers are skipped.
    pub(super) fn begin_anew(&mut self, began: ClusterState, began_at: usize, (alone, skipped): (NodeNumber, u32)) {
        let given = self.owners.values().flatten().map(|owner| owner.owner_epoch).max().unwrap_or(0);
        let others = self.state.nodes().iter().filter(|(node, _)| **node != alone);
        let epochs = others.map(|(node, known)| (*node, known.epoch + skipped)).collect();
        self.skipped = (given + skipped, epochs);
        self.past.append(&mut self.log);
        self.state = began.clone();
        (self.began, self.began_at) = (began, began_at);
        (self.leader, self.elect_at_us, self.proposed) = (None, None, None);
    }

    /// All entries that ever became true.
    fn all_entries(&self) -> impl Iterator<Item = &ClusterEntry> {
        self.past.iter().chain(&self.log).flatten()
    }

    /// Makes true what `plan` makes of the state. Whoever calls makes sure that the leader may, and has a majority write it first if coordinators have disks.
    pub(super) fn commit(
        &mut self,
        plan: impl FnOnce(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) -> Result<Told, Violation> {
        let entries = match plan(&self.state) {
            Ok(entries) => entries,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if entries.is_empty() {
            return Ok(Ok(self.index()));
        }
        if self.has_disks {
            self.proposed = Some(entries);
            return Ok(Ok(self.index() + 1));
        }
        self.make_true(entries)?;
        Ok(Ok(self.index()))
    }

    /// Makes entries true that were planned against this state; none: a leader has begun.
    pub(super) fn make_true(&mut self, entries: Vec<ClusterEntry>) -> Result<(), Violation> {
        let is_lost = |entry: &ClusterEntry| matches!(entry, ClusterEntry::LogGivenUp { log } if !self.state.is_live(log.node, log.epoch));
        let given_up = entries.iter().filter(|entry| is_lost(entry)).count() as u64;
        self.given_up_meanwhile += if self.is_rebuilding() { given_up } else { 0 };
        let is_open = |log: &LogName| self.state.logs().get(log).is_some_and(|state| state.end.is_none());
        let is_open_lost =
            |entry: &&ClusterEntry| is_lost(entry) && matches!(entry, ClusterEntry::LogGivenUp { log } if is_open(log));
        self.open_given_up += entries.iter().filter(is_open_lost).count() as u64;
        let begins = |entry: &&ClusterEntry| {
            let reasons = [OwnerReason::Recovered, OwnerReason::Gathered];
            matches!(entry, ClusterEntry::OwnerChanged { reason, .. } if reasons.contains(reason))
        };
        if self.state.lost_logs().any(|(_, state)| state.end.is_none()) {
            self.passed_over += entries.iter().filter(begins).count() as u64;
        }
        let is_next = |entry: &&ClusterEntry| matches!(entry, ClusterEntry::ViewAgreed { view: 2.., .. });
        self.views_changed += entries.iter().filter(is_next).count() as u64;
        self.look_at_only_copies(&entries)?;
        self.look_at_epochs(&entries)?;
        self.note_given_up(&entries);
        for entry in &entries {
            if let Err(refused) = self.state.apply(entry) {
                // Planned against this very state.
                return Err(Violation(format!("the rules refuse {entry:?}, which was planned: {}", refused.0)));
            }
        }
        let index = self.index() + 1;
        for entry in &entries {
            match entry {
                ClusterEntry::NodeRemoved { node } => drop(self.removed.insert(*node)),
                ClusterEntry::NodeJoined { node, .. } => drop(self.removed.remove(node)),
                ClusterEntry::Catalog(CatalogEntry::StreamDeleted { stream, .. }) => {
                    self.gone.insert(*stream, index);
                }
                _ => {}
            }
        }
        self.taken_back +=
            entries.iter().filter(|entry| matches!(entry, ClusterEntry::EndTakenBack { .. })).count() as u64;
        // Those that are noted once more when something is taken back are behind another entry.
        self.held_copied += u64::from(matches!(entries.as_slice(), [ClusterEntry::CopiesMade { .. }]));
        self.log.push(entries);
        self.lost_logs_most = self.lost_logs_most.max(self.state.lost_logs().count() as u64);
        self.note_owners()
    }

    /// Executes what a node asked for.
    pub(super) fn execute(&mut self, command: &Command, now_ms: i64) -> Result<Told, Violation> {
        match command {
            Command::Join(join) if self.forgets_numbers => self.commit(|state| forgetful(state, join, now_ms)),
            Command::Join(join) => self.commit(|state| {
                state.check_disks(join).map_err(CoordinatorError::Refused)?;
                state.plan_join(join, now_ms)
            }),
            Command::View(view) => self.commit(|state| state.plan_view(view)),
            Command::GiveUp(log, by) => self.commit(|state| state.plan_give_up_old_log(*log, *by)),
            Command::GiveUpView(log, view) => self.commit(|state| state.plan_give_up_view(*log, *view)),
            Command::Rebuilt(rebuilt) => self.commit(|state| state.plan_rebuilt(rebuilt)),
            Command::Needs(said) => self.commit(|state| state.plan_needs(said)),
            Command::UseEnds(said) => self.commit(|state| state.plan_use_ends(said)),
            Command::Move(stream, streamlet, to) => {
                self.commit(|state| state.plan_move(&(*stream).into(), *streamlet, *to))
            }
            Command::Renew(stream, streamlet, node, epoch) => {
                self.commit(|state| state.plan_renew(*stream, *streamlet, (*node, *epoch)))
            }
            Command::Drain(node, draining) => self.commit(|state| state.plan_drain(*node, *draining)),
            Command::SetFloors(asked) => self.commit(|state| state.plan_floors(asked)),
            Command::AcceptLoss(asked) => self.commit(|state| state.plan_accept_log_loss(asked)),
            Command::AcceptStreamletLoss(asked) => self.commit(|state| state.plan_accept_streamlet_loss(asked)),
            Command::Remove(node) => self.commit(|state| state.plan_remove(*node)),
            Command::FinishMove(FinishMove { number, node, epoch, state: kept }) => {
                self.commit(|state| state.plan_finish_move(*number, *node, *epoch, kept))
            }
            Command::Alter(stream, wanted) => {
                let (most, changes) = (Limits { streams: 10, nodes: 16 }, copies(*wanted));
                self.commit(|state| state.plan_alter_stream(&(*stream).into(), &changes, &most, now_ms))
            }
            Command::Made(made) => self.commit(|state| state.plan_copies_made(made)),
            Command::GroupsGone(gone) => self.commit(|state| state.plan_groups_gone(gone)),
            Command::Returned(asked) => self.commit(|state| state.plan_returned(asked)),
            Command::GiveBack(asked) => self.commit(|state| state.plan_given_back(asked)),
            Command::Create(asked) => {
                let most = Limits { streams: 10, nodes: 16 };
                self.commit(|state| state.plan_create_stream(asked, &most, now_ms, false))
            }
            Command::Delete(stream) => self.commit(|state| state.plan_delete_stream(&(*stream).into(), now_ms)),
        }
    }

    /// Notes which blocks of lost logs nobody is asked for any more since a person has said so.
    fn note_given_up(&mut self, entries: &[ClusterEntry]) {
        for entry in entries {
            if let ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log, view } = entry {
                self.given_up_for.push(((*stream, *streamlet, *log, *view), *owner_epoch));
            }
            let (ClusterEntry::ViewGivenUp { log, .. }
            | ClusterEntry::LogEnded { log, .. }
            | ClusterEntry::EndTakenBack { log, .. }) = entry
            else {
                continue;
            };
            let Some(state) = self.state.logs().get(log).filter(|_| !self.state.is_live(log.node, log.epoch)) else {
                continue;
            };
            let is_there = |node: &u32| self.state.node(*node).is_some_and(|node| !node.fenced);
            let blocks = match entry {
                ClusterEntry::ViewGivenUp { view, .. } => {
                    let next = state.views.get(*view as usize).map_or(u64::MAX, |next| next.first - 1);
                    Some(state.views[*view as usize - 1].first..=next)
                }
                ClusterEntry::LogEnded { end, .. } => {
                    let newest = state.views.last().filter(|view| !view.backups.iter().any(is_there));
                    newest.map(|_| end + 1..=u64::MAX)
                }
                ClusterEntry::EndTakenBack { end, .. } => state.end_given_up.then_some(end + 1..=u64::MAX),
                _ => None,
            };
            self.given_up_blocks.extend(blocks.map(|blocks| (*log, blocks)));
        }
    }

    /// What has one copy waits for its node, unless a person says something else.
    fn look_at_only_copies(&self, entries: &[ClusterEntry]) -> Result<(), Violation> {
        for entry in entries {
            let ClusterEntry::OwnerChanged { stream, first, count, reason, .. } = entry else { continue };
            let is_only = (*first..first + count).any(|at| self.state.copies_of(*stream, at) == 1);
            if is_only && matches!(reason, OwnerReason::Recovered | OwnerReason::Gathered) {
                return Err(Violation(format!("{entry:?} gives away what has one copy")));
            }
        }
        Ok(())
    }

    /// Once one has gone on alone nobody begins an epoch that whoever is gone may have had.
    fn look_at_epochs(&self, entries: &[ClusterEntry]) -> Result<(), Violation> {
        for entry in entries {
            let ClusterEntry::NodeJoined { node, epoch, .. } = entry else { continue };
            if self.skipped.1.get(node).is_some_and(|skipped| epoch <= skipped) {
                return Err(Violation(format!(
                    "node {node} begins its epoch {epoch}, which may have been given before"
                )));
            }
        }
        Ok(())
    }

    /// Why a streamlet got an owner in an owner epoch; nothing if the owner before it came back.
    pub(super) fn reason_of(&self, of: StreamId, streamlet: u32, in_epoch: u32) -> Option<OwnerReason> {
        self.all_entries().find_map(|entry| match entry {
            ClusterEntry::OwnerChanged { stream, first, count, owner_epoch, reason, .. } => {
                let is_it = *stream == of && *owner_epoch == in_epoch && (*first..first + count).contains(&streamlet);
                is_it.then_some(*reason)
            }
            _ => None,
        })
    }

    /// The last owner epoch before one in which a streamlet got an owner who did not just come back.
    pub(super) fn changed_before(&self, of: StreamId, streamlet: u32, epoch: u32) -> Option<u32> {
        let changed = self.all_entries().filter_map(|entry| match entry {
            ClusterEntry::OwnerChanged { stream, first, count, owner_epoch, .. } => {
                (*stream == of && (*first..first + count).contains(&streamlet)).then_some(*owner_epoch)
            }
            _ => None,
        });
        changed.filter(|changed| *changed < epoch).max()
    }

    fn is_rebuilding(&self) -> bool {
        let owners = self.state.catalog.streams().filter_map(|info| self.state.owners(info.id));
        owners.flat_map(|of| of.runs()).any(|run| run.owner.rebuilding)
    }

    /// Each change of an owner has a higher owner epoch, which no other owner of the streamlet ever had.
    fn note_owners(&mut self) -> Result<(), Violation> {
        let index = self.index();
        for info in self.state.catalog.streams() {
            for streamlet in 0..info.options.streamlets {
                let Some(owner) = self.state.owner(info.id, streamlet) else { continue };
                let known = self.owners.entry((info.id, streamlet)).or_default();
                match known.last() {
                    Some(last)
                        if (last.node, last.epoch, last.owner_epoch)
                            == (owner.node, owner.epoch, owner.owner_epoch) => {}
                    Some(last) if last.owner_epoch >= owner.owner_epoch => {
                        return Err(Violation(format!("streamlet {streamlet}: {owner:?} comes after {last:?}")));
                    }
                    _ if self.began_at > 0 && owner.owner_epoch <= self.skipped.0 => {
                        return Err(Violation(format!(
                            "streamlet {streamlet}: {owner:?} has an owner epoch that may have been given before"
                        )));
                    }
                    _ => {
                        known.push(owner);
                        self.owned_since.entry((info.id, streamlet)).or_default().push(index);
                    }
                }
            }
        }
        Ok(())
    }

    /// Which owner of a streamlet opened groups of an owner epoch: its place among all of them.
    pub(super) fn owner_of_epoch(&self, stream: StreamId, streamlet: u32, owner_epoch: u32) -> Option<Owner> {
        let known = self.owners.get(&(stream, streamlet))?;
        known.iter().find(|owner| owner.owner_epoch == owner_epoch).copied()
    }

    /// In which owner epoch a streamlet was as of a batch; zero: it had no owner yet.
    pub(super) fn owner_epoch_as_of(&self, stream: StreamId, streamlet: u32, index: u64) -> u32 {
        let known = self.owners.get(&(stream, streamlet)).into_iter().flatten();
        let since = self.owned_since.get(&(stream, streamlet)).into_iter().flatten();
        let by_then = known.zip(since).take_while(|(_, since)| **since as u64 <= index);
        by_then.last().map_or(0, |(owner, _)| owner.owner_epoch)
    }

    /// How often streamlets have changed their owner.
    pub(super) fn owner_changes(&self) -> u64 {
        self.owners.values().map(|known| known.len() as u64 - 1).sum()
    }
}

/// The joining of a machine whose number nobody ever had, as far as the leader knows.
fn forgetful(state: &ClusterState, join: &Join, now_ms: i64) -> Result<Vec<ClusterEntry>, CoordinatorError> {
    if state.node(join.node).is_some() {
        return state.plan_join(join, now_ms);
    }
    let (node, epoch, uuid, roles) = (join.node, join.epoch_min, join.uuid, join.roles);
    let (rack, doors) = (join.rack.clone(), join.doors.clone());
    Ok(vec![ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms: now_ms, rack, doors }])
}
