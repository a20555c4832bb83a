//! Epochs of leaders, which clients compare: that of a partition's leader is the owner epoch of its streamlet, of a node that is alone the
//! node's, which rises with each start; and that of a record the one that its group's id tells.
//!
//! Owners take over all that was acknowledged. Only a node that is alone comes back from a loss of power without the end of what it acknowledged
//! with durability `process`, and gives these offsets away again, in groups of a later epoch (docs/decisions/0007-what-a-reboot-keeps.md). So where an
//! earlier epoch ends is always where the first group of a later one begins, and whoever asks before it goes on reads nothing that is not
//! there any more, and passes over nothing.

use kafka_protocol::ResponseError;
use kera_format::GroupId;
use kera_log::Lane;

use crate::older::Group;

/// An epoch, or an offset, that is not known.
pub(crate) const UNKNOWN: i32 = -1;

/// The epoch in which a partition is led here.
pub(crate) fn current(lane: &Lane) -> i32 {
    lane.epoch().cast_signed()
}

/// The epoch that clients are told of what is in a group. A node that was killed goes on in groups that were open, so of a node that is alone it may
/// be an earlier one than that in which it was appended.
pub(crate) fn of_group(group: GroupId) -> i32 {
    group.epoch().cast_signed()
}

/// Whether a client knows the leader that it asks: `known` is its epoch, or -1.
pub(crate) fn check(lane: &Lane, known: i32) -> Result<(), ResponseError> {
    let current = current(lane);
    match known {
        UNKNOWN => Ok(()),
        known if known < current => Err(ResponseError::FencedLeaderEpoch),
        known if known > current => Err(ResponseError::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}

/// The groups of a lane in order, with their first ordinals and what comes behind their last: those that are here, and what is known of
/// those that `older` owners have.
fn groups(lane: &Lane, older: &[Group]) -> Vec<(GroupId, u64, u64)> {
    let here = lane.groups(GroupId::NONE, usize::MAX);
    let mut groups: Vec<_> = here.iter().map(|group| (group.id, group.first_ordinal, group.next_ordinal)).collect();
    groups.extend(older.iter().map(|group| (group.id, group.first, group.end)));
    groups.sort_unstable();
    groups.dedup_by_key(|(id, ..)| *id);
    groups
}

/// The epoch in which the record at an offset was appended; of one that is not there yet, the current one.
pub(crate) fn at(lane: &Lane, offset: i64, older: &[Group]) -> i32 {
    let Ok(offset) = u64::try_from(offset) else { return current(lane) };
    let older = older.iter().filter(|group| group.end > offset).map(|group| group.id);
    // Not by a list of all groups here, in which what each takes up is summed up: the ends of many partitions are asked for again and again.
    lane.group_at(offset).into_iter().chain(older).min().map_or(current(lane), of_group)
}

/// Where an epoch ends, and the last one up to it that has records; nothing if it is later than the current one. While not all `older` groups
/// are known it may be told to end later than it does: no client goes back for that, and none is to.
///
/// An epoch that is earlier than all that there is ends in front of the first group: retention has taken all of it, or it was lost. Whoever
/// stands behind that has read what was given away again. Epoch 0 is none: earlier versions told it of everything on a node that is alone, also of records which
/// carry epochs now. Who comes with it stands anywhere: the end is told, for with any earlier offset clients go back to that.
pub(crate) fn end_of(lane: &Lane, epoch: i32, older: &[Group]) -> Option<(i32, i64)> {
    let (current, durable) = (current(lane), lane.durable_ordinal());
    if epoch < 0 || epoch > current {
        return None;
    }
    if epoch == current {
        return Some((epoch, durable.cast_signed()));
    }
    let groups = groups(lane, older);
    let behind = groups.partition_point(|(id, ..)| of_group(*id) <= epoch);
    let end = groups.get(behind).map_or(durable, |(_, first, _)| (*first).min(durable));
    match groups[..behind].last() {
        Some((last, ..)) => Some((of_group(*last), end.cast_signed())),
        None if epoch == 0 => Some((epoch, durable.cast_signed())),
        None => Some((epoch, end.cast_signed())),
    }
}
