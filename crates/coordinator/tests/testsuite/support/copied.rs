//! A cluster with a stream whose streamlets have copies, one at each node: what tests of lost nodes begin with.

use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{ClusterState, Join, LogView};
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, Roles};
use kera_format::options::ReplicationMode;
use kera_format::{StreamId, StreamOptions, level};
use kera_protocol::CreateStream;

/// How a node joins. `has_all`: with all that it had acknowledged.
pub(crate) fn join(node: NodeNumber, has_all: bool) -> Join {
    let doors = Doors { cluster: format!("10.0.0.{node}:7072"), ..Doors::default() };
    let (uuid, roles, rack, settings) = ([node as u8; 16], Roles::ALL, String::new(), Vec::new());
    Join { node, uuid, roles, rack, doors, settings, epoch_min: 1, has_all, levels: (1, level::NEWEST) }
}

/// So many nodes at this level, and a stream with so many copies of which each owns one streamlet.
#[allow(dead_code)] // Some ask for the mode.
pub(crate) fn cluster(nodes: NodeNumber, replication: u32, level: u32) -> (ClusterState, StreamId) {
    cluster_in(nodes, replication, ReplicationMode::Sync, level)
}

/// The same, with a stream that is replicated so.
pub(crate) fn cluster_in(
    nodes: NodeNumber,
    replication: u32,
    replication_mode: ReplicationMode,
    level: u32,
) -> (ClusterState, StreamId) {
    let mut state = ClusterState::default();
    let founded = state.plan_found([9; 16], &join(1, true), 0).unwrap();
    apply(&mut state, &founded);
    for node in 2..=nodes {
        let joined = state.plan_join(&join(node, true), 0).unwrap();
        apply(&mut state, &joined);
    }
    (state.level() + 1..=level).for_each(|level| apply(&mut state, &[ClusterEntry::LevelRaised { level }]));
    let options = StreamOptions { streamlets: nodes, replication, replication_mode, ..StreamOptions::default() };
    let request = CreateStream { name: "copied".into(), options, if_not_exists: false };
    let created = state.plan_create_stream(&request, &Limits { streams: 100, nodes: 16 }, 0, false).unwrap();
    apply(&mut state, &created);
    let stream = state.catalog.find(&"copied".into()).unwrap().id;
    (state, stream)
}

/// Makes entries true. What is true in the state is so in a snapshot of it.
pub(crate) fn apply(state: &mut ClusterState, entries: &[ClusterEntry]) {
    for entry in entries {
        state.apply(entry).unwrap_or_else(|refused| panic!("{entry:?}: {refused}"));
    }
    let mut copy = ClusterState::default();
    state.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
    assert_eq!(copy.logs(), state.logs(), "a snapshot has all of it");
    assert_eq!(copy.snapshot(), state.snapshot());
    assert_eq!(copy.plan_gather().unwrap(), state.plan_gather().unwrap(), "and means the same");
    assert_eq!(copy.plan_give_up_lost().unwrap(), state.plan_give_up_lost().unwrap(), "and means the same");
}

/// Has a log begin its next view.
#[allow(dead_code)] // Some have no logs.
pub(crate) fn begin_view(state: &mut ClusterState, log: LogName, first: u64, backups: Vec<NodeNumber>) {
    let view = state.logs().get(&log).map_or(0, |of| of.views.len()) as u32 + 1;
    let agreed = state.plan_view(&LogView { log, view, first, backups }).unwrap();
    apply(state, &agreed);
}

/// Fences a node as it is now.
pub(crate) fn fence(state: &mut ClusterState, node: NodeNumber) {
    let epoch = state.node(node).unwrap().epoch;
    let fenced = state.plan_fence(node, epoch).unwrap();
    apply(state, &fenced);
}

/// Fences a node, ends its logs of that epoch at block 5, and has others take over what it owned.
#[allow(dead_code)] // Some do it step by step.
pub(crate) fn lose(state: &mut ClusterState, node: NodeNumber, epoch: u32) {
    fence(state, node);
    let open: Vec<LogName> =
        state.logs_of(node, epoch).filter(|(_, log)| log.end.is_none()).map(|(log, _)| log).collect();
    open.into_iter().for_each(|log| apply(state, &[ClusterEntry::LogEnded { log, end: 5 }]));
    let recovered = state.plan_recover(node, epoch).unwrap();
    apply(state, &recovered);
}

/// A node comes back.
#[allow(dead_code)] // Some plan it themselves.
pub(crate) fn joins(state: &mut ClusterState, node: NodeNumber, has_all: bool) {
    let joined = state.plan_join(&join(node, has_all), 0).unwrap();
    apply(state, &joined);
}
