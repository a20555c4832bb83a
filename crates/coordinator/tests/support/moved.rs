//! Moving a streamlet by the entries that a move takes.

use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::NodeNumber;
use kera_format::{StreamId, StreamletId};
use kera_protocol::StreamletState;

use crate::copied::apply;

/// Moves a streamlet with empty lanes.
pub(crate) fn moves(state: &mut ClusterState, stream: StreamId, streamlet: u32, to: NodeNumber) {
    let noted = state.plan_move(&stream.into(), streamlet, to).unwrap();
    apply(state, &noted);
    let number = state.move_of(stream, streamlet).expect("it is noted");
    let epoch = state.owner(stream, streamlet).expect("an owner").owner_epoch;
    let (lanes, progress) = (Vec::new(), Vec::new());
    let handed = StreamletState { stream, streamlet: StreamletId(streamlet), epoch, lanes, progress };
    let epoch = state.node(to).unwrap().epoch;
    let finished = state.plan_finish_move(number, to, epoch, &kera_protocol::codec::bytes_of(&handed)).unwrap();
    apply(state, &finished);
}
