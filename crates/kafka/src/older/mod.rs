//! What earlier owners of a partition have of it. A move leaves groups where they were written, and Kafka's clients ask the present owner for
//! everything: it gets older chunks from the nodes that hold them, as native readers do (docs/decisions/0023-older-records-through-the-owner.md).
//!
//! The groups of a lane are in the order of their owners' epochs, so that runs of them are at one node after the other, its own
//! among them. Which ordinals a run at another node has is asked for and kept for a little while; chunks are asked for a piece at a time, one
//! ahead of the reader, and kept in bounded memory ([`asking`]). Whoever needs what is not here waits for the lane, as for a segment
//! that comes from disk: only readers of that partition wait for a node that is slow.
//!
//! Called on I/O threads; never waits. No lock of a lane is taken under the one here, nor the other way round.

mod asking;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kera_broker::Whose;
use kera_format::{GroupId, LaneId, SegmentIndex, StreamId, StreamletId};
use kera_log::{Lane, Lookup, ReadError, Tenure};
use kera_protocol::Owner;
use parking_lot::Mutex;

use crate::door::Door;
use crate::fetch::{LOOKUP_LOADS, Loads};

pub(crate) use asking::Older;

type Place = (StreamId, StreamletId);
type LaneKey = (StreamId, StreamletId, LaneId);

fn key_of(lane: &Lane) -> LaneKey {
    (lane.stream_id(), lane.streamlet_id(), lane.id())
}

/// The owners of a lane's streamlet, if other nodes have some of its groups and this one owns it.
pub(crate) struct Shared {
    owner: Owner,
    me: u32,
}

/// A partition has another owner by now: what is here of it is not all, and this node does not look for the rest.
#[derive(Debug)]
pub(crate) struct NotOwner;

/// A group with records of an epoch before the present owner's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) node: u32,
    pub(crate) first: u64,
    /// Behind its last record.
    pub(crate) end: u64,
    first_segment: SegmentIndex,
    pub(crate) last_append_ms: i64,
}

/// The groups of one owner in turn, as far as they are known.
type Run = Option<Vec<Group>>;

/// Where an offset is.
#[derive(PartialEq, Eq, Debug)]
enum At {
    /// In this group, or in front of it where nothing is left before; and where the groups end that its node has behind it.
    Group(Group, u64),
    /// In the present owner's epoch.
    Present,
    /// That is not known yet.
    Unknown,
}

/// What is next at an offset.
pub(crate) enum Step {
    /// Whole chunks, the first one with the offset in it unless that is gone.
    Data(Vec<Bytes>),
    /// It is on its way: the lane is woken when it has come. What comes from this node's disk.
    Wait(Loads),
    /// Nothing older: the present owner has what comes next.
    Present,
    /// It cannot be read.
    Failed(ReadError),
}

/// Where a time was found by another node.
pub(crate) type Answer = Arc<Mutex<Option<Result<u64, String>>>>;

/// Where other nodes have records that were appended at a time or later.
pub(crate) enum Time {
    At(u64),
    Nowhere,
    Wait,
}

/// Whose a partition is, and who has what of it. What is found in its lane counts only if that is [the same](Standing::holds) before and behind.
///
/// That a lane is open here does not say whose it is: the table of owners names another one before the lane hears of it. Nor that all which is said to be here is here: who leaves older
/// groups to another node has the table say so first, and then has them go. In between they look like what retention has taken, so that the partition seems to begin behind them,
/// and readers would pass over them.
pub(crate) struct Standing(Whose);

impl Standing {
    /// As it is now. No look in the table for nearly all lanes.
    pub(crate) fn of(door: &Door, lane: &Lane) -> Result<Standing, NotOwner> {
        let ownership = door.broker.ownership();
        let whose = Whose::of(ownership, lane);
        let is_others = || whose.owner.as_ref().is_some_and(|owner| owner.node != ownership.node());
        if !whose.is_plain && (whose.tenure == Tenure::Elsewhere || is_others()) {
            return Err(NotOwner);
        }
        Ok(Standing(whose))
    }

    /// Whether it still is so.
    pub(crate) fn holds(&self, door: &Door, lane: &Lane) -> bool {
        Whose::of(door.broker.ownership(), lane) == self.0
    }

    /// What other nodes have of it; `None` for nearly all lanes: all that there is of them is here.
    pub(crate) fn shared(&self, door: &Door) -> Option<Shared> {
        let owner = self.0.owner.as_ref()?;
        let me = door.broker.ownership().node();
        let elsewhere = owner.older.iter().any(|older| older.node != me);
        elsewhere.then(|| Shared { owner: owner.clone(), me })
    }
}

impl Shared {
    /// `None` for nearly all lanes: see [`Standing::shared`]. Who goes on to look at the lane takes the [`Standing`].
    pub(crate) fn of(door: &Door, lane: &Lane) -> Result<Option<Shared>, NotOwner> {
        Standing::of(door, lane).map(|standing| standing.shared(door))
    }

    /// The first offset of the present owner.
    pub(crate) fn present_first(&self, lane: &Lane) -> u64 {
        let groups = lane.groups(before(self.owner.epoch), 1);
        groups.first().map_or_else(|| lane.durable_ordinal(), |group| group.first_ordinal)
    }

    /// All runs but the present owner's. What is not known is asked for.
    fn runs(&self, door: &Door, lane: &Arc<Lane>) -> Vec<Run> {
        let mut runs = Vec::with_capacity(self.owner.older.len());
        for (epochs, node) in self.owner.older_runs() {
            runs.push(match node {
                // It is lost, and nobody has rebuilt it yet. Readers wait for it, as native ones do: nothing would look like what retention has taken.
                0 => None,
                node if node == self.me => Some(own(lane, &epochs, node)),
                node => door.older.groups(door, node, lane, &self.owner, &epochs),
            });
        }
        runs
    }

    /// Where the partition begins, if that is known; the lane is woken when it is.
    pub(crate) fn first(&self, door: &Door, lane: &Arc<Lane>) -> Option<u64> {
        let first = first_of(&self.runs(door, lane))?.unwrap_or_else(|| self.present_first(lane));
        Some(first.max(lane.floor_ordinal()).min(lane.durable_ordinal()))
    }

    /// The groups of epochs before the present one that are known, in order.
    pub(crate) fn groups(&self, door: &Door, lane: &Arc<Lane>) -> Vec<Group> {
        self.runs(door, lane).into_iter().flatten().flatten().collect()
    }

    /// What is next from an offset on, of what was written before the present owner; up to `max_bytes`, but at least a chunk.
    pub(crate) fn step(&self, door: &Door, lane: &Arc<Lane>, offset: u64, max_bytes: usize, may_load: bool) -> Step {
        match locate(&self.runs(door, lane), offset) {
            At::Unknown => Step::Wait(Loads::default()),
            At::Present => Step::Present,
            At::Group(group, _) if group.node == self.me => self.own_step(lane, offset, max_bytes, may_load),
            At::Group(group, end) => match door.older.piece(door, lane, &group, offset..end, max_bytes) {
                Some(data) => Step::Data(vec![data]),
                None => Step::Wait(Loads::default()),
            },
        }
    }

    fn own_step(&self, lane: &Lane, offset: u64, max_bytes: usize, may_load: bool) -> Step {
        let cursor = match lane.lookup_ordinal(offset) {
            Ok(Lookup::Found { cursor, .. }) => cursor,
            Ok(Lookup::Loading(_)) => return Step::Wait(LOOKUP_LOADS),
            Err(error) => return Step::Failed(error),
        };
        match lane.read_and_load(cursor, max_bytes, false, may_load) {
            Ok((outcome, loading)) if outcome.data.is_empty() => Step::Wait(Loads::of(loading, max_bytes)),
            Ok((outcome, _)) => Step::Data(outcome.data),
            Err(error) => Step::Failed(error),
        }
    }

    /// An offset that nothing of what other nodes have is in front of that was appended at a time or later. `answer` is the caller's own, and
    /// the same each time.
    pub(crate) fn find_time(&self, door: &Door, lane: &Arc<Lane>, time_ms: i64, answer: &mut Option<Answer>) -> Time {
        let mut found = None;
        for run in self.runs(door, lane) {
            let Some(groups) = run else { return Time::Wait };
            found = groups.into_iter().find(|group| group.node != self.me && group.last_append_ms >= time_ms);
            if found.is_some() {
                break;
            }
        }
        let Some(group) = found else { return Time::Nowhere };
        let answer = answer.get_or_insert_with(|| door.older.ask_time(door, lane, group.node, time_ms));
        match &*answer.lock() {
            Some(Ok(offset)) => Time::At((*offset).max(group.first)),
            // What comes before such records is passed over.
            Some(Err(_)) => Time::At(group.first),
            None => Time::Wait,
        }
    }

    /// The group of another node that was appended to last, if there is one; `None`: that is not known yet, and the lane is woken when it is.
    pub(crate) fn last_elsewhere(&self, door: &Door, lane: &Arc<Lane>) -> Option<Option<Group>> {
        let mut last: Option<Group> = None;
        for run in self.runs(door, lane) {
            let elsewhere = run?.into_iter().filter(|group| group.node != self.me);
            last = last.into_iter().chain(elsewhere).max_by_key(|group| group.last_append_ms);
        }
        Some(last)
    }
}

/// The id that is before all of an owner epoch's.
fn before(epoch: u32) -> GroupId {
    GroupId(GroupId::new(epoch, 0).0.saturating_sub(1))
}

/// The groups with records that this node has of some epochs.
fn own(lane: &Lane, epochs: &Range<u32>, node: u32) -> Vec<Group> {
    let groups = lane.groups(before(epochs.start), usize::MAX).into_iter();
    let groups = groups.take_while(|group| group.id.epoch() < epochs.end);
    let group = |group: kera_log::GroupInfo| Group {
        id: group.id,
        node,
        first: group.first_ordinal,
        end: group.durable_ordinal,
        first_segment: group.first_segment,
        last_append_ms: group.last_append_ms,
    };
    groups.map(group).filter(|group| group.end > group.first).collect()
}

/// The first offset of runs: `None` if it is not known, an inner `None` if they have none.
fn first_of(runs: &[Run]) -> Option<Option<u64>> {
    for run in runs {
        if let Some(group) = run.as_ref()?.first() {
            return Some(Some(group.first));
        }
    }
    Some(None)
}

/// Where an offset is that is not in the present owner's epoch, or what is next behind a place that is gone.
fn locate(runs: &[Run], offset: u64) -> At {
    let mut unknown = false;
    for run in runs {
        let Some(groups) = run else {
            unknown = true;
            continue;
        };
        let at = groups.partition_point(|group| group.end <= offset);
        if let Some(group) = groups.get(at) {
            // What is before it may be in a run of which nothing is known.
            let is_in = group.first <= offset || !unknown;
            let end = groups.last().map_or(group.end, |last| last.end);
            return if is_in { At::Group(*group, end) } else { At::Unknown };
        }
    }
    if unknown { At::Unknown } else { At::Present }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(epoch: u32, first: u64, end: u64) -> Group {
        let (id, first_segment) = (GroupId::new(epoch, 1), SegmentIndex(0));
        Group { id, node: epoch, first, end, first_segment, last_append_ms: 0 }
    }

    fn found(runs: &[Run], offset: u64) -> Option<u32> {
        match locate(runs, offset) {
            At::Group(group, _) => Some(group.node),
            At::Present => Some(0),
            At::Unknown => None,
        }
    }

    #[test]
    fn an_offset_is_in_the_run_that_has_it_or_the_next_one_behind() {
        let one = Some(vec![group(1, 10, 20), group(1, 20, 30)]);
        let two = Some(vec![group(2, 40, 50)]);
        let all = [one.clone(), two.clone()];
        assert_eq!([0, 10, 29, 30, 39, 40, 49, 50].map(|at| found(&all, at).unwrap()), [1, 1, 1, 2, 2, 2, 2, 0]);
        assert_eq!(locate(&all, 12), At::Group(group(1, 10, 20), 30));
        assert_eq!(first_of(&all), Some(Some(10)));
        // A run without records, and one of which nothing is known.
        assert_eq!(first_of(&[Some(vec![]), two.clone()]), Some(Some(40)));
        assert_eq!((first_of(&[Some(vec![])]), found(&[Some(vec![])], 5)), (Some(None), Some(0)));
        let first_unknown = [None, two.clone()];
        assert_eq!([30, 40, 50].map(|at| found(&first_unknown, at)), [None, Some(2), None]);
        assert_eq!(first_of(&first_unknown), None);
        let last_unknown = [one, None];
        assert_eq!([0, 25, 30].map(|at| found(&last_unknown, at)), [Some(1), Some(1), None]);
    }
}
