//! Reading lanes whose streamlet has moved: groups of several owners, each where it was written. A reader goes through them by
//! owner epoch, and is sent on where another node has what comes next.

use kera_format::{Cursor, GroupId, StreamId, StreamletId};
use kera_log::{Lane, LaneVersion, ReadError, ReadOutcome, Tenure};
use kera_protocol::Owner;

use crate::broker::Broker;
use crate::ownership::{Ownership, first_of};

/// What a read has come to.
#[derive(Debug)]
pub enum Reading {
    /// What is here.
    Here(ReadOutcome),
    /// Another node has what is there.
    Elsewhere(Cursor),
}

/// The owner epochs of a streamlet in turn: where each run of them begins, and the node that has its groups.
struct Epochs {
    runs: Vec<(u32, u32)>,
}

impl Epochs {
    fn new(owner: &Owner) -> Epochs {
        Epochs { runs: owner.runs().collect() }
    }

    /// The node that has a group, the first epoch of its run, and that of the next run.
    fn of(&self, group: GroupId) -> (u32, u32, Option<u32>) {
        let behind = self.runs.partition_point(|(first, _)| group != GroupId::NONE && *first <= group.epoch());
        let at = behind.saturating_sub(1);
        let (first, node) = self.runs[at];
        (node, first, self.runs.get(at + 1).map(|(next, _)| *next))
    }
}

impl Broker {
    /// Reads a lane of a streamlet of this node, groups of several owners in their turn, as far as they are here. Where other nodes have
    /// what is next: the cursor to go on from there.
    pub fn read_here(&self, lane: &Lane, cursor: Cursor, max_bytes: usize) -> Result<Reading, ReadError> {
        read(self.ownership(), lane, cursor, max_bytes, true)
    }

    /// The node that has what is at a cursor of a lane.
    pub fn node_of(&self, lane: &Lane, cursor: Cursor) -> Option<u32> {
        let owner = self.ownership().owner(lane.stream_id(), lane.streamlet_id())?;
        Some(Epochs::new(&owner).of(cursor.group).0)
    }
}

/// Of which groups of a streamlet readers are not sent on from here.
pub(crate) fn read_here(ownership: &Ownership, stream: StreamId, streamlet: StreamletId) -> impl Fn(GroupId) -> bool {
    let epochs = ownership.owner(stream, streamlet).map(|owner| Epochs::new(&owner));
    let me = ownership.node();
    move |group| epochs.as_ref().is_none_or(|epochs| epochs.of(group).0 == me)
}

/// Nothing for now: a reader waits for the lane.
fn not_yet(lane: &Lane, cursor: Cursor, version: LaneVersion) -> ReadOutcome {
    ReadOutcome {
        start: cursor,
        data: Vec::new(),
        data_bytes: 0,
        next: cursor,
        end_of_group: false,
        at_durable_end: false,
        loading: true,
        durable_ordinal: lane.durable_ordinal(),
        version,
    }
}

/// What a reader is told at a node that is not known to have its group. One who has heard of a later owner than the node, likely that it is
/// the node itself, waits until the node has heard of it too.
fn elsewhere(lane: &Lane, cursor: Cursor, known: &Owner, version: LaneVersion) -> Reading {
    if cursor.group.epoch() > known.epoch {
        Reading::Here(not_yet(lane, cursor, version))
    } else {
        Reading::Elsewhere(cursor)
    }
}

/// The first of a lane's groups here from `from` on, if it is of an epoch below `end`.
fn group_from(lane: &Lane, from: GroupId, end: Option<u32>) -> Option<GroupId> {
    let group = lane.groups(GroupId(from.0.saturating_sub(1)), 1).first()?.id;
    end.is_none_or(|end| group.epoch() < end).then_some(group)
}

/// [`Lane::read`] of a lane of which nobody else has anything, as nearly all are, without a look at the owners. `None`: it is none of these, before or behind it. Older groups that
/// another node holds after all leave the lane when it has been said that others have some: what lies behind them would be taken for what comes next. `meanwhile` is for tests:
/// it comes in front of the read.
#[inline]
pub(crate) fn read_plain(
    lane: &Lane,
    cursor: Cursor,
    max_bytes: usize,
    follow: bool,
    meanwhile: impl FnOnce(),
) -> Option<Result<Reading, ReadError>> {
    if !lane.is_plain() {
        return None;
    }
    meanwhile();
    let read = lane.read(cursor, max_bytes, follow);
    lane.is_plain().then(|| read.map(Reading::Here))
}

/// As [`Lane::read`], for a lane of which others may have groups.
pub(crate) fn read(
    ownership: &Ownership,
    lane: &Lane,
    cursor: Cursor,
    max_bytes: usize,
    follow: bool,
) -> Result<Reading, ReadError> {
    let owner_now = || ownership.owner(lane.stream_id(), lane.streamlet_id());
    read_while(ownership, &owner_now, lane, cursor, max_bytes, follow)
}

/// The same, asking `owner_now` who the owners are.
///
/// Who leaves older groups to another node has the table of owners say so first, and then has them go. In a lane that is read with what the table said
/// before, they may be missing in between, and what follows them would be taken for what comes next. So what was read of older groups
/// counts if the owners are the same afterwards.
fn read_while(
    ownership: &Ownership,
    owner_now: &dyn Fn() -> Option<Owner>,
    lane: &Lane,
    cursor: Cursor,
    max_bytes: usize,
    follow: bool,
) -> Result<Reading, ReadError> {
    loop {
        // Seen before the owners are looked at: whoever tells of another one changes the lanes after that.
        let before = lane.version();
        let Some(owner) = owner_now() else {
            return lane.read(cursor, max_bytes, follow).map(Reading::Here);
        };
        let reading = read_as(ownership, &owner, before, lane, cursor, max_bytes, follow);
        if cursor.group.epoch() >= owner.epoch || owner_now().as_ref() == Some(&owner) {
            return reading;
        }
    }
}

/// The same by what is known of its owners.
fn read_as(
    ownership: &Ownership,
    owner: &Owner,
    before: LaneVersion,
    lane: &Lane,
    mut cursor: Cursor,
    max_bytes: usize,
    follow: bool,
) -> Result<Reading, ReadError> {
    if cursor.group.epoch() < owner.epoch && ownership.is_offered(lane.stream_id(), lane.streamlet_id(), owner) {
        // Whoever comes for it may have heard that it is held here. If it is, this node hears it soon; if it is not, what is here may not be all.
        return Ok(Reading::Here(not_yet(lane, cursor, before)));
    }
    let (me, epochs) = (ownership.node(), Epochs::new(owner));
    // Each turn goes on to a later run.
    for _ in 0..=epochs.runs.len() {
        let (node, first, end) = epochs.of(cursor.group);
        if node != me {
            return Ok(elsewhere(lane, cursor, owner, before));
        }
        // Seen before the tenure is looked at: whoever opens the streamlet changes that first.
        let version = lane.version();
        if owner.node == me && lane.tenure() == Tenure::Elsewhere {
            // What it has is not known yet: it is being taken over.
            return Ok(Reading::Here(not_yet(lane, cursor, version)));
        }
        let from_the_first = cursor.group == GroupId::NONE;
        if from_the_first {
            cursor = first_of(first);
        }
        let Some(end) = end else {
            // The last run: its owner's. At its end a reader waits for more.
            return lane.read(cursor, max_bytes, follow).map(Reading::Here);
        };
        match group_from(lane, cursor.group, Some(end)) {
            Some(group) if from_the_first => cursor = Cursor { group, ..Cursor::default() },
            Some(_) => {}
            None if cursor.group.number() != 0 => {
                return Err(ReadError::Gone { asked: cursor, earliest: first_of(end) });
            }
            None => {
                cursor = first_of(end);
                continue;
            }
        }
        let mut outcome = match lane.read(cursor, max_bytes, false) {
            Err(ReadError::Gone { asked, earliest }) if earliest.group.epoch() >= end => {
                return Err(ReadError::Gone { asked, earliest: first_of(end) });
            }
            outcome => outcome?,
        };
        if !outcome.end_of_group || !follow {
            return Ok(Reading::Here(outcome));
        }
        let next = group_from(lane, GroupId(outcome.next.group.0 + 1), Some(end));
        cursor = next.map_or(first_of(end), |group| Cursor { group, ..Cursor::default() });
        if outcome.data_bytes > 0 {
            (outcome.next, outcome.end_of_group, outcome.at_durable_end) = (cursor, false, false);
            return Ok(Reading::Here(outcome));
        }
        if next.is_some() {
            // Nothing was left of its group: on with the next one of the same run.
            return read_as(ownership, owner, before, lane, cursor, max_bytes, follow);
        }
    }
    Ok(Reading::Elsewhere(cursor))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a reader at `cursor` is told if, between its look at the owners and its look at the lane, `meanwhile` happens.
    pub(crate) fn read_meanwhile(broker: &Broker, lane: &Lane, cursor: Cursor, meanwhile: &dyn Fn()) -> Reading {
        let looks = std::cell::Cell::new(0);
        let owner_now = || {
            let owner = broker.ownership().owner(lane.stream_id(), lane.streamlet_id());
            if looks.replace(looks.get() + 1) == 0 {
                meanwhile();
            }
            owner
        };
        read_while(broker.ownership(), &owner_now, lane, cursor, 1 << 20, true).expect("it is somewhere")
    }
}
