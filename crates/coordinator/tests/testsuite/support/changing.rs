//! Streams that get another number of copies.

use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::{ClusterEntry, NodeNumber};
use kera_format::{StreamId, StreamletId};
use kera_protocol::{CopiesMade, StreamChanges, StreamletState};

use super::copied::apply;

pub(crate) const MOST: Limits = Limits { streams: 100, nodes: 16 };

/// The entries with which a stream is to have so many copies, or why it is not to.
pub(crate) fn ask(state: &ClusterState, stream: StreamId, copies: u32) -> Result<Vec<ClusterEntry>, String> {
    let changes = StreamChanges { replication: Some(copies), ..StreamChanges::default() };
    state.plan_alter_stream(&stream.into(), &changes, &MOST, 0).map_err(|error| error.to_string())
}

/// A stream is to have so many copies.
pub(crate) fn wants(state: &mut ClusterState, stream: StreamId, copies: u32) {
    let entries = ask(state, stream, copies).unwrap();
    assert!(!entries.is_empty());
    apply(state, &entries);
}

/// What a node says of the copies that it has made of a streamlet. `number`: that of the move with which its owner does.
pub(crate) fn made(state: &ClusterState, what: (StreamId, u32), node: NodeNumber, number: u64) -> CopiesMade {
    let ((stream, streamlet), epoch) = (what, state.node(node).unwrap().epoch);
    let copies = state.wanted_copies(stream).unwrap_or(9);
    let owner_epoch = state.owner(stream, streamlet).map_or(0, |owner| owner.owner_epoch);
    let (lanes, progress) = (Vec::new(), Vec::new());
    let handed = StreamletState { stream, streamlet: StreamletId(streamlet), epoch: owner_epoch, lanes, progress };
    let state = if number == 0 { Vec::new() } else { kera_protocol::codec::bytes_of(&handed) };
    CopiesMade { node, epoch, stream, streamlet: StreamletId(streamlet), copies, number, state, owner_epoch }
}

/// The owner of a streamlet moves it to itself and says that it has made the copies.
pub(crate) fn owner_makes(state: &mut ClusterState, stream: StreamId, streamlet: u32) -> Result<(), String> {
    let owner = state.owner(stream, streamlet).unwrap();
    let noted = state.plan_renew(stream, streamlet, (owner.node, owner.epoch)).map_err(|error| error.to_string())?;
    apply(state, &noted);
    let number = state.move_of(stream, streamlet).expect("it is noted");
    let ends = state.plan_copies_made(&made(state, (stream, streamlet), owner.node, number));
    let ends = ends.map_err(|error| error.to_string());
    if ends.is_err() {
        let off = state.plan_call_off(number).unwrap();
        apply(state, &off);
    }
    apply(state, &ends?);
    Ok(())
}
