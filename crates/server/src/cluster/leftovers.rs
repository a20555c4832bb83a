//! What this node still has of streamlets that it owned in an earlier incarnation and that are others' now, or that it has to take
//! over like anybody else.
//!
//! Lost brokers are recovered from their logs, up to the ends that were decided. What a node has behind, because it was appended and
//! never acknowledged, must not get into any log again: others have given its ordinals away since. What it has before is the same as
//! what its successor rebuilds, and is kept until all of that is done: until then it may be the only other copy.

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::cluster::{ClusterState, HandedOn, ToBeCut};
use kera_format::cluster::NodeNumber;
use kera_format::{GroupId, StreamId, StreamletId};
use kera_log::{ArenaFull, CutOffRoom, Log, Stream, Streamlet};

use super::returning::CutOff;

/// Time between two tries to get memory.
const RETRY: Duration = Duration::from_millis(10);
/// After so many the node does not start.
const TRIES: u32 = 3000;

/// Cuts what was never acknowledged of streamlets that this incarnation does not simply go on with. Between the steps of the log's
/// recovery: after what there is is in its lanes, and before it goes to sinks. Blocks while the arena is full. `keeps`: what is cut off may turn out to count,
/// and is kept; the streamlets of which something is.
pub(super) fn cut(log: &Log, others: &[ToBeCut], keeps: bool) -> Result<CutOff, String> {
    let (mut room, mut kept) = (CutOffRoom::of(log), CutOff::new());
    for cut in others {
        let other = (cut.stream, cut.streamlet);
        let Some(place) = of(log, other) else { continue };
        if cut.own_from.is_some_and(|from| !place.has_unacknowledged_before(from)) {
            continue;
        }
        when_there_is_room(|| match keeps {
            true => place.cut_off_unacknowledged(&mut room),
            false => place.forget_unacknowledged(),
        })?;
        kept.extend((!place.cut_off().is_empty()).then_some(other));
    }
    Ok(kept)
}

/// Cuts what this node has again of streamlets that have gone to other owners since its disks did not give it: the next owners have given its ordinals to others, and readers of older groups come here.
/// Between the steps of the log's recovery, like [`cut`]. A sentence for each lane of which something has gone.
pub(super) fn cut_given_again(log: &Log, all: &[HandedOn], node: NodeNumber) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    for handed in all {
        let Some(place) = of(log, (handed.stream, handed.streamlet)) else { continue };
        let is_older = |group: GroupId| group.epoch() < handed.owner_epoch && handed.owner.holder(group) == node;
        for lane in place.lanes() {
            let end = handed.ends.get(&lane.id()).copied().unwrap_or(0);
            let gone = when_there_is_room(|| lane.end_older(end, is_older))?;
            said.extend(gone.map(|ordinals| {
                let (first, last) = (ordinals.start, ordinals.end - 1);
                format!(
                    "{lane:?}: records with ordinals from {first} to {last} are left out and their space is given back, since an earlier start could not read them and the next owner \
                     of the streamlet has given their ordinals to others"
                )
            }));
        }
    }
    Ok(said)
}

/// Does something that needs memory once there is some. Blocks.
fn when_there_is_room<T>(mut step: impl FnMut() -> Result<T, ArenaFull>) -> Result<T, String> {
    let mut tries = 0;
    loop {
        match step() {
            Ok(done) => return Ok(done),
            Err(full) if tries == TRIES => {
                return Err(format!("there is no room in the arena for {} bytes; give it more", full.bytes));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
        tries += 1;
    }
}

/// Drops groups that others have with all their copies: nothing of what this node has of them is needed any more.
///
/// Not under the look at the coordinators' state that has named them, which whoever changes it waits for: this waits for lanes, and may for a disk. Nothing of
/// them may be opened here meanwhile, whatever becomes true: who tells the broker what it owns does it one at a time with this, from the look on, and before anybody
/// tells it nothing runs yet.
pub(super) fn drop_rebuilt(log: &Log, rebuilt: Vec<(StreamId, StreamletId)>) {
    for place in rebuilt.into_iter().filter_map(|other| of(log, other)) {
        place.forget_groups(|_| false);
    }
}

/// Of streamlets that this incarnation may get back from others as they are, the ends of lanes stay: nothing else tells where they go on, and who gives them back may never have known.
/// To be told before the broker is told of their owners.
pub(super) fn keep_ends(stream: &Stream, state: &ClusterState, me: (NodeNumber, u32)) {
    for place in stream.streamlets() {
        place.set_may_return(state.may_come_back(stream.id(), place.id().0, me));
    }
}

fn of(log: &Log, (stream, streamlet): (StreamId, StreamletId)) -> Option<Arc<Streamlet>> {
    log.stream(stream)?.streamlet(streamlet).cloned()
}
