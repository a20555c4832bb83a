//! What this node still has of streamlets that it owned in an earlier incarnation and that are others' now, or that it has to take
//! over like anybody else.
//!
//! Lost brokers are recovered from their logs, up to the ends that were decided. What a node has behind, because it was appended and
//! never acknowledged, must not get into any log again: others have given its ordinals away since. What it has before is the same as
//! what its successor rebuilds, and is kept until all of that is done: until then it may be the only other copy.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kera_coordinator::cluster::{ClusterState, HandedOn, ToBeCut};
use kera_format::cluster::NodeNumber;
use kera_format::{GroupId, StreamId, StreamletId};
use kera_log::{ArenaFull, CutOffRoom, Log, Stream, Streamlet};
use kera_raft::Group;

use super::restart;
use super::returning::CutOff;
use crate::fatal::Fatal;

/// Time between two tries to get memory.
const RETRY: Duration = Duration::from_millis(10);
/// After so many the node does not start.
const TRIES: u32 = 3000;

/// What a start has cut.
#[derive(Default)]
pub(super) struct Cut {
    /// Of which streamlets.
    pub(super) of: HashSet<(StreamId, StreamletId)>,
    /// Those of which something is kept.
    pub(super) kept: CutOff,
}

/// Cuts and drops all that this incarnation may not have any more, or must not: see the module. What was cut of what may come back, and a sentence for each thing that is not as it should be.
///
/// If it was declared lost by now it starts again before anything is cut: see [`to_be_cut`].
pub(super) fn cut_all(
    log: &Log,
    group: &Group,
    me: (NodeNumber, u32),
    has_all: bool,
    stopping: &AtomicBool,
) -> Result<(Cut, Vec<String>), Fatal> {
    let no_room = |message| Fatal::Data { message };
    let Some(others) = group.read(|state| to_be_cut(state, me)) else {
        restart("the coordinators took it for lost while it started", stopping);
        return Err(Fatal::not_here(
            "this node was declared lost while it started, and told to stop",
            "start it again",
        ));
    };
    let mut done = cut(log, &others, has_all).map_err(no_room)?;
    drop_rebuilt(log, group.read(|state| state.rebuilt_by_others(me.0, me.1)));
    let handed = group.read(|state| state.handed_on(me.0));
    let said = cut_given_again(log, &handed, me.0, &mut done.of).map_err(no_room)?;
    Ok((done, said))
}

/// What an incarnation has to cut; nothing is to be said of that any more if it is over.
///
/// While it started others may have taken over what it owned, with what it had under way. If it cut that now, its next life would find nothing to cut, say so, and be
/// [given back](ClusterState::may_give_back_after_start) what it does not have. As long as it is not over, what it goes on with is its own: whoever takes over comes behind that.
fn to_be_cut(state: &ClusterState, (node, epoch): (NodeNumber, u32)) -> Option<Vec<ToBeCut>> {
    (!state.is_over(node, epoch)).then(|| state.to_be_cut(node, epoch))
}

/// Cuts what was never acknowledged of streamlets that this incarnation does not simply go on with. Between the steps of the log's
/// recovery: after what there is is in its lanes, and before it goes to sinks. Blocks while the arena is full. `keeps`: what is cut off may turn out to count,
/// and is kept.
fn cut(log: &Log, others: &[ToBeCut], keeps: bool) -> Result<Cut, String> {
    let (mut room, mut done) = (CutOffRoom::of(log), Cut::default());
    for cut in others {
        let other = (cut.stream, cut.streamlet);
        let Some(place) = of(log, other) else { continue };
        if cut.own_from.is_some_and(|from| !place.has_unacknowledged_before(from)) {
            continue;
        }
        if place.has_unacknowledged() {
            done.of.insert(other);
        }
        when_there_is_room(|| match keeps {
            true => place.cut_off_unacknowledged(&mut room),
            false => place.forget_unacknowledged(),
        })?;
        done.kept.extend((!place.cut_off().is_empty()).then_some(other));
    }
    Ok(done)
}

/// Cuts what this node has again of streamlets that have gone to other owners since its disks did not give it: the next owners have given its ordinals to others, and readers of older groups come here.
/// Between the steps of the log's recovery, like [`cut`]. A sentence for each lane of which something has gone; `of_what`: its streamlet is put there, for a log of this node may have had that.
fn cut_given_again(
    log: &Log,
    all: &[HandedOn],
    node: NodeNumber,
    of_what: &mut HashSet<(StreamId, StreamletId)>,
) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    for handed in all {
        let Some(place) = of(log, (handed.stream, handed.streamlet)) else { continue };
        let is_older = |group: GroupId| group.epoch() < handed.owner_epoch && handed.owner.holder(group) == node;
        for lane in place.lanes() {
            let end = handed.ends.get(&lane.id()).copied().unwrap_or(0);
            let gone = when_there_is_room(|| lane.end_older(end, is_older))?;
            of_what.extend(gone.is_some().then_some((handed.stream, handed.streamlet)));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kera_format::LaneId;
    use kera_format::cluster::ClusterEntry;
    use kera_protocol::Owner;
    use kera_protocol::placement::OlderGroups;

    use super::super::testing::{apply, joined, with_unacknowledged};
    use super::*;

    #[test]
    fn of_which_streamlets_a_start_has_cut_something_is_known_whether_or_not_it_is_kept() {
        for keeps in [true, false] {
            let (log, _dir) = with_unacknowledged();
            let of = |streamlet| (StreamId(1), StreamletId(streamlet));
            let to_be_cut =
                |streamlet| ToBeCut { stream: StreamId(1), streamlet: StreamletId(streamlet), own_from: None };
            let others = [0, 1].map(to_be_cut);
            let done = cut(&log, &others, keeps).expect("there is room");
            assert_eq!(done.of, HashSet::from([of(1)]));
            assert_eq!(done.kept, if keeps { vec![of(1)] } else { Vec::new() });
            let again = cut(&log, &others, keeps).expect("there is room");
            assert!(again.of.is_empty(), "the next start finds nothing to cut: {:?}", again.of);
        }
    }

    #[test]
    fn a_start_that_was_declared_lost_meanwhile_cuts_nothing() {
        let mut state = joined(3, 1);
        assert!(to_be_cut(&state, (2, 1)).is_some() && to_be_cut(&state, (2, 2)).is_some());
        apply(&mut state, &[ClusterEntry::NodeFenced { node: 2, epoch: 1 }]);
        let is_to_be = [(1, 1), (2, 1), (2, 2), (3, 1)].map(|me| to_be_cut(&state, me).is_some());
        assert_eq!(is_to_be, [true, false, true, true]);
    }

    /// It may be in a log of the node's, and whoever took the streamlet over have told of it.
    #[test]
    fn of_what_was_given_again_since_a_streamlet_moved_it_is_known_that_a_start_has_cut_it() {
        let (log, _dir) = with_unacknowledged();
        log.close_all();
        let (stream, owner_epoch) = (StreamId(1), 5);
        let handed = |streamlet, end| {
            let older = vec![OlderGroups { first_epoch: 0, node: 1 }];
            let owner = Owner { node: 2, epoch: owner_epoch, older };
            let ends = BTreeMap::from([(LaneId(0), end)]);
            HandedOn { stream, streamlet: StreamletId(streamlet), owner, owner_epoch, ends }
        };
        let mut of_what = HashSet::new();
        let mut cut = |end| {
            let said =
                cut_given_again(&log, &[handed(0, end), handed(1, end)], 1, &mut of_what).expect("there is room");
            (said.len(), of_what.len())
        };
        assert_eq!((cut(1), cut(0), cut(0)), ((0, 0), (1, 1), (0, 1)));
        assert!(of_what.contains(&(stream, StreamletId(1))));
    }
}
