//! What this node still has of streamlets that it owned in an earlier incarnation and that are others' now, or that it has to take
//! over like anybody else.
//!
//! Lost brokers are recovered from their logs, up to the ends that were decided. What a node has behind, because it was appended and
//! never acknowledged, must not get into any log again: others have given its ordinals away since. What it has before is the same as
//! what its successor rebuilds, and is kept until all of that is done: until then it may be the only other copy.

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::cluster::ClusterState;
use kera_format::{StreamId, StreamletId};
use kera_log::{Log, Streamlet};

/// Time between two tries to get memory.
const RETRY: Duration = Duration::from_millis(10);
/// After so many the node does not start.
const TRIES: u32 = 3000;

/// Cuts what was never acknowledged of streamlets that this incarnation does not simply go on with. Between the steps of the log's
/// recovery: after what there is is in its lanes, and before it goes to sinks. Blocks while the arena is full.
pub(super) fn cut(log: &Log, others: &[Other]) -> Result<(), String> {
    for place in others.iter().filter_map(|other| other.of(log)) {
        let mut tries = 0;
        while let Err(full) = place.forget_unacknowledged() {
            tries += 1;
            if tries == TRIES {
                return Err(format!("there is no room in the arena for {} bytes; give it more", full.bytes));
            }
            std::thread::sleep(RETRY);
        }
    }
    Ok(())
}

/// Drops groups that others have with all their copies: nothing of this node's earlier logs is needed any more.
pub(super) fn drop_rebuilt(log: &Log, state: &ClusterState, node: u32, epoch: u32) {
    if state.lost_logs().any(|(lost, _)| lost.node == node) {
        return;
    }
    for other in others(state, node, epoch) {
        let at = other.streamlet.0;
        let is_mine = state.owner(other.stream, at).is_some_and(|owner| owner.node == node);
        let holds = state.owners(other.stream).is_some_and(|owners| {
            let mut held = owners.held().iter().filter(|held| held.node == node);
            held.any(|held| (held.first..held.first + held.count).contains(&at))
        });
        if let Some(place) = other.of(log).filter(|_| !is_mine && !holds) {
            place.forget_groups(|_| false);
        }
    }
}

/// A streamlet of a stream with copies that this incarnation does not own, or must take over.
pub(super) struct Other {
    stream: StreamId,
    streamlet: StreamletId,
}

impl Other {
    fn of(&self, log: &Log) -> Option<Arc<Streamlet>> {
        log.stream(self.stream)?.streamlet(self.streamlet).cloned()
    }
}

/// All of them.
pub(super) fn others(state: &ClusterState, node: u32, epoch: u32) -> Vec<Other> {
    let mut others = Vec::new();
    for info in state.catalog.streams().filter(|info| info.options.replication > 1) {
        for streamlet in (0..info.options.streamlets).map(StreamletId) {
            let owner = state.owner(info.id, streamlet.0);
            let goes_on = owner.is_some_and(|owner| (owner.node, owner.epoch) == (node, epoch) && !owner.rebuilding);
            if !goes_on {
                others.push(Other { stream: info.id, streamlet });
            }
        }
    }
    others
}
