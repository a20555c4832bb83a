//! The end of a move.

use kera_coordinator::cluster::ClusterState;
use kera_format::StreamletId;
use kera_format::cluster::ClusterEntry;
use kera_protocol::StreamletState;

/// What is true once a move that is noted has come to its end, with empty lanes.
pub(crate) fn finishes(state: &ClusterState, number: u64) -> Vec<ClusterEntry> {
    let of = state.moves()[&number];
    let epoch = state.owner(of.stream, of.streamlet).expect("an owner").owner_epoch;
    let (streamlet, lanes, progress) = (StreamletId(of.streamlet), Vec::new(), Vec::new());
    let handed = StreamletState { stream: of.stream, streamlet, epoch, lanes, progress };
    let epoch = state.node(of.to).expect("a node").epoch;
    state.plan_finish_move(number, of.to, epoch, &kera_protocol::codec::bytes_of(&handed)).unwrap()
}
