//! Moving a streamlet by the entries that a move takes.

use kera_coordinator::cluster::ClusterState;
use kera_format::StreamId;
use kera_format::cluster::NodeNumber;

use super::copied::apply;
use super::finishing::finishes;

/// Moves a streamlet with empty lanes.
pub(crate) fn moves(state: &mut ClusterState, stream: StreamId, streamlet: u32, to: NodeNumber) {
    let noted = state.plan_move(&stream.into(), streamlet, to).unwrap();
    apply(state, &noted);
    let number = state.move_of(stream, streamlet).expect("it is noted");
    let finished = finishes(state, number);
    apply(state, &finished);
}
