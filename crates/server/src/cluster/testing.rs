//! What tests of this folder share: the state of a cluster, without a log of entries behind it.

use kera_coordinator::cluster::{ClusterState, Join};
use kera_format::cluster::{ClusterEntry, Doors, Roles};
use kera_format::level;

/// So many nodes, from number 1 on, all of them live in that epoch.
pub(super) fn joined(nodes: u32, epoch: u32) -> ClusterState {
    let mut state = ClusterState::default();
    for node in 1..=nodes {
        let join = Join {
            node,
            uuid: [node as u8; 16],
            roles: Roles::ALL,
            rack: String::new(),
            doors: Doors::default(),
            settings: Vec::new(),
            epoch_min: epoch,
            has_all: true,
            levels: (level::FIRST, level::NEWEST),
        };
        let entries = if node == 1 { state.plan_found([9; 16], &join, 0) } else { state.plan_join(&join, 0) };
        apply(&mut state, &entries.expect("a node"));
    }
    state
}

pub(super) fn apply(state: &mut ClusterState, entries: &[ClusterEntry]) {
    entries.iter().for_each(|entry| state.apply(entry).expect("allowed"));
}
