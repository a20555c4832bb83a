//! Where lanes begin whose records were deleted, from the coordinators' log to the lanes of this node
//! (`docs/decisions/0012-where-deleted-records-end.md`).
//!
//! Every node that has groups of a lane is told, so that the next owner shows nothing that was deleted and earlier ones let go of it. The other way
//! go two messages: an owner that got less of a lane than its floor says where it begins now, and one whose applications have read all that earlier
//! owners have of a stream with `retention_consumed` says that the lane begins with what is its own. So does one that keeps the state of Kafka groups or
//! transactions in the lane, once it has written all of that anew.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_broker::Broker;
use kera_coordinator::cluster::ClusterState;
use kera_format::{Cursor, LaneId, StreamId, StreamletId, level};
use kera_log::{Log, Stream, Tenure};
use kera_protocol::limits::FLOORS_MAX;
use kera_protocol::{LaneFloor, SetFloors};
use kera_raft::Group;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How often lanes are looked for that begin before where the others think.
const LOOK: Duration = Duration::from_secs(1);

/// Tells the lanes of a stream. To be called before any of its streamlets is opened.
pub(super) fn agree(log: &Log, state: &ClusterState, stream: StreamId) {
    let mut floors = state.floors(stream).peekable();
    if floors.peek().is_none() {
        return;
    }
    let Some(found) = log.stream(stream) else { return };
    floors.for_each(|(streamlet, lane, floor)| tell(&found, StreamletId(streamlet), lane, floor.ordinal));
}

/// Tells one lane.
pub(super) fn agree_one(log: &Log, stream: StreamId, streamlet: u32, lane: LaneId, ordinal: u64) {
    if let Some(found) = log.stream(stream) {
        tell(&found, StreamletId(streamlet), lane, ordinal);
    }
}

fn tell(stream: &Stream, streamlet: StreamletId, lane: LaneId, ordinal: u64) {
    if let Some(lane) = stream.streamlet(streamlet).and_then(|place| place.lane(lane)) {
        lane.agree_floor(ordinal);
    }
}

/// Looks now and then whether lanes of this node have come back shorter than their floors, or all was read that others have of them, and has that noted.
pub(super) fn watch(
    node: u32,
    group: &Arc<Group>,
    broker: &Arc<Broker>,
    runtime: &Handle,
    mut stop: watch::Receiver<bool>,
) {
    let (group, broker) = (Arc::downgrade(group), Arc::downgrade(broker));
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let (Some(group), Some(broker)) = (Weak::upgrade(&group), Weak::upgrade(&broker)) else { return };
            if group.level() < level::AGREED_FLOORS {
                continue;
            }
            let lower = lower(broker.log(), &group);
            if !lower.is_empty() {
                tracing::warn!(
                    lanes = lower.len(),
                    "lanes came back shorter than what was deleted of them; they begin earlier"
                );
                note(&group, lower).await;
            }
            let read = read_by_all(node, &broker, &group);
            if !read.is_empty() {
                tracing::debug!(lanes = read.len(), "nobody needs any more what earlier owners have of lanes");
                note(&group, read).await;
            }
        }
    });
}

/// Asked again the next time if nobody hears it.
async fn note(group: &Group, floors: Vec<LaneFloor>) {
    if let Err(error) = group.ask(&SetFloors { floors }).await {
        tracing::info!(%error, "the coordinators do not know yet where these lanes begin");
    }
}

/// Lanes of which other nodes have groups that no application needs any more, nor anybody else, each with where what this node has of it begins. A lane is one
/// entry for each time that it moves, at most.
fn read_by_all(node: u32, broker: &Broker, group: &Group) -> Vec<LaneFloor> {
    let mut read = Vec::new();
    for stream in broker.log().streams().into_iter().filter(|stream| stream.options().retention_consumed) {
        let id = stream.id();
        let others: BTreeSet<u32> = group.read(|state| {
            let held = state.owners(id).into_iter().flat_map(|of| of.held());
            let others = held.filter(|held| held.node != node && !held.lost);
            others.flat_map(|held| held.first..held.first + held.count).collect()
        });
        let places = others.into_iter().filter_map(|at| stream.streamlet(StreamletId(at)));
        for place in places.filter(|place| place.tenure() == Tenure::Here) {
            let (owner_epoch, streamlet) = (place.owner_epoch(), place.id());
            for lane in place.lanes() {
                let (first, ordinal) = lane.earliest();
                // With older groups of its own in front what the others have may be behind these.
                let is_its = first == Cursor::default() || first.group.epoch() >= owner_epoch;
                let known = || group.read(|state| state.floor(id, streamlet.0, lane.id()));
                let below = || broker.consumed_below(id, streamlet, lane.id());
                let is_read = || lane.says_everything() || below().is_some_and(|below| below >= ordinal);
                if is_its && known().is_none_or(|floor| floor.ordinal < ordinal) && ordinal > 0 && is_read() {
                    read.push(LaneFloor { stream: id, streamlet, lane: lane.id(), owner_epoch, ordinal });
                }
            }
        }
    }
    read.truncate(FLOORS_MAX);
    read
}

/// Lanes of this node that begin before where an earlier owner has said.
fn lower(log: &Log, group: &Group) -> Vec<LaneFloor> {
    let mut lower = Vec::new();
    for stream in log.streams().into_iter().filter(|stream| stream.has_floors()) {
        let agreed: Vec<_> = group.read(|state| state.floors(stream.id()).collect());
        for (streamlet, lane, floor) in agreed {
            let streamlet = StreamletId(streamlet);
            let Some(place) = stream.streamlet(streamlet).filter(|place| place.tenure() == Tenure::Here) else {
                continue;
            };
            let owner_epoch = place.owner_epoch();
            let ordinal = place.lane(lane).map_or(floor.ordinal, |lane| lane.floor_ordinal());
            if floor.owner_epoch < owner_epoch && ordinal < floor.ordinal {
                lower.push(LaneFloor { stream: stream.id(), streamlet, lane, owner_epoch, ordinal });
            }
        }
    }
    lower.truncate(FLOORS_MAX);
    lower
}
