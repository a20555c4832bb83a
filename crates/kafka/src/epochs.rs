//! Epochs of leaders, which clients compare: that of a partition's leader is the owner epoch of its streamlet, and that of a record the
//! one in which its owner appended it, which its group's id tells. On a node that is alone all are 0.
//!
//! Owners take over all that was acknowledged, so no offset that a client has read is ever given away again: where an earlier epoch
//! ends is where the first group of a later one begins.

use kafka_protocol::ResponseError;
use kera_format::GroupId;
use kera_log::Lane;

/// An epoch, or an offset, that is not known.
pub(crate) const UNKNOWN: i32 = -1;

/// The epoch in which a partition is led here.
pub(crate) fn current(lane: &Lane) -> i32 {
    lane.owner_epoch().cast_signed()
}

/// The epoch in which what is in a group was appended.
pub(crate) fn of_group(lane: &Lane, group: GroupId) -> i32 {
    // The groups of a node that is alone carry its own epochs, of which clients know nothing.
    if lane.owner_epoch() == 0 { 0 } else { group.epoch().cast_signed() }
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

/// The epoch in which the record at an offset was appended; of one that is not there yet, the current one.
pub(crate) fn at(lane: &Lane, offset: i64) -> i32 {
    let groups = lane.groups(GroupId::NONE, usize::MAX);
    let of = groups.iter().find(|group| u64::try_from(offset).is_ok_and(|offset| group.next_ordinal > offset));
    of.map_or(current(lane), |group| of_group(lane, group.id))
}

/// Where an epoch ends, and the last one up to it that has records; nothing if it is later than the current one.
pub(crate) fn end_of(lane: &Lane, epoch: i32) -> Option<(i32, i64)> {
    let (current, durable) = (current(lane), lane.durable_ordinal());
    if epoch < 0 || epoch > current {
        return None;
    }
    if epoch == current {
        return Some((epoch, durable.cast_signed()));
    }
    let groups = lane.groups(GroupId::NONE, usize::MAX);
    let behind = groups.partition_point(|group| of_group(lane, group.id) <= epoch);
    let end = groups.get(behind).map_or(durable, |group| group.first_ordinal.min(durable));
    let known = groups[..behind].last().map_or(epoch, |group| of_group(lane, group.id));
    Some((known, end.cast_signed()))
}
