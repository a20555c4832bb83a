//! Where partitions begin in which transactions of this node's ids have left aborted records, so that what retention has taken is forgotten.
//!
//! A partition's owner tells it with each marker. Where no id of this node writes any more nobody tells, and what was aborted there would be
//! remembered for as long as the topic is there, and count. So owners are asked, some of them every few minutes.
//!
//! Called on the thread for ends; answers come on the one for what nodes ask each other. Neither waits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use kera_format::{GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::admin::StreamRef;
use kera_protocol::{AvailableGroups, GroupList, Owner};
use parking_lot::Mutex;

use crate::door::Door;
use crate::floors::first_here;
use crate::numbering::{partition_at, place_of};

/// Streamlets that are asked about in one go.
const ASKED_MAX: usize = 1_024;

type Place = (StreamId, StreamletId);

/// What owners have told.
#[derive(Default)]
pub(crate) struct Starts(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By whom, and the first ordinals of lanes.
    told: BTreeMap<Place, (Owner, BTreeMap<LaneId, u64>)>,
    /// The last one that was asked about.
    behind: Option<Place>,
}

/// Asks owners where the next partitions begin.
pub(crate) fn look(door: &Arc<Door>) {
    let places = places(door);
    let mut known = door.starts.0.lock();
    known.told.retain(|place, _| places.contains(place));
    let from = known.behind.map_or(Bound::Unbounded, Bound::Excluded);
    let next: Vec<Place> = places.range((from, Bound::Unbounded)).take(ASKED_MAX).copied().collect();
    known.behind = next.last().copied().filter(|_| next.len() == ASKED_MAX);
    drop(known);
    next.into_iter().for_each(|place| ask(door, place));
}

/// The streamlets in which something is left.
fn places(door: &Door) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    for (stream, partition) in door.transactions.left_in() {
        if let Some(lanes) = lanes_of(door, stream) {
            places.insert((stream, place_of(partition, lanes).0));
        }
    }
    places
}

fn lanes_of(door: &Door, stream: StreamId) -> Option<u32> {
    Some(door.coordinator.stream(&StreamRef::Id(stream)).ok()?.options.lanes)
}

/// The owner of a streamlet of which no other node has a part: what it has is all there is.
fn only_owner(door: &Door, (stream, streamlet): Place) -> Option<Owner> {
    let owner = door.broker.ownership().owner(stream, streamlet)?;
    (owner.node != 0 && owner.older.is_empty()).then_some(owner)
}

fn ask(door: &Arc<Door>, place: Place) {
    let Some(owner) = only_owner(door, place) else { return };
    if owner.node == door.broker.ownership().node() {
        let stream = door.broker.log().stream(place.0);
        let Some(streamlet) = stream.as_ref().and_then(|stream| stream.streamlet(place.1)) else { return };
        let starts = streamlet.lanes().filter_map(|lane| Some((lane.id(), first_here(lane)?)));
        return trim(door, place, starts);
    }
    let asked = AvailableGroups { stream: place.0, streamlet: place.1, after: GroupId::NONE, limit: 0 };
    door.ask_native(owner.node, &asked, move |door, told: Result<GroupList, String>| match told {
        Ok(groups) => take(door, place, owner, &groups),
        Err(error) => tracing::debug!(stream = %place.0, streamlet = %place.1, %error, "where it begins is not known"),
    });
}

/// An owner has told which groups it has.
///
/// This node may be behind, and take for the only one who has something of the streamlet a node that is not: what aborted transactions
/// have left at another one must not be forgotten. So an answer counts when the same owner has told the same the time before, minutes
/// ago, and nothing has been heard since then that says otherwise.
fn take(door: &Door, place: Place, owner: Owner, groups: &GroupList) {
    let mut lanes = BTreeMap::new();
    for group in &groups.groups {
        lanes.entry(group.lane).or_insert(group.first_ordinal);
    }
    let is_known = only_owner(door, place).as_ref() == Some(&owner);
    let mut known = door.starts.0.lock();
    let before = known.told.remove(&place).filter(|(by, _)| is_known && *by == owner);
    if is_known {
        known.told.insert(place, (owner, lanes.clone()));
    }
    drop(known);
    let Some((_, before)) = before else { return };
    let starts = lanes.into_iter().filter_map(|(lane, start)| Some((lane, start.min(*before.get(&lane)?))));
    trim(door, place, starts);
}

/// Lanes of a streamlet begin there.
fn trim(door: &Door, (stream, streamlet): Place, starts: impl Iterator<Item = (LaneId, u64)>) {
    let Some(lanes) = lanes_of(door, stream) else { return };
    for (lane, start) in starts {
        door.transactions.trim_left(stream, partition_at((streamlet, lane), lanes), start);
    }
}
