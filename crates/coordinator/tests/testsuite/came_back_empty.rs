//! A node that lost its memory, and then is killed with memory that is new.

use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{ClusterState, Join};
use kera_format::StreamOptions;
use kera_format::cluster::{ClusterEntry, Doors, Roles};
use kera_protocol::CreateStream;

fn join(node: u32, has_all: bool) -> Join {
    Join {
        node,
        uuid: [node as u8; 16],
        roles: Roles::ALL,
        rack: String::new(),
        doors: Doors { cluster: format!("10.0.0.{node}:7072"), ..Doors::default() },
        settings: Vec::new(),
        epoch_min: 1,
        has_all,
        levels: (1, 1),
    }
}

#[test]
fn what_a_node_did_not_have_when_it_came_back_it_does_not_get_after_the_next_kill_either() {
    let mut state = ClusterState::default();
    let apply = |state: &mut ClusterState, entries: Vec<ClusterEntry>| {
        entries.iter().for_each(|entry| state.apply(entry).expect("it was planned"));
    };
    let founded = state.plan_found([9; 16], &join(1, true), 0).expect("founded");
    apply(&mut state, founded);
    let joined = state.plan_join(&join(2, true), 0).expect("joined");
    apply(&mut state, joined);
    let options = StreamOptions { streamlets: 2, replication: 2, ..StreamOptions::default() };
    let request = CreateStream { name: "events".into(), options, if_not_exists: false };
    let created = state.plan_create_stream(&request, &Limits { streams: 10, nodes: 16 }, 0, false).expect("created");
    apply(&mut state, created);
    let stream = state.catalog.find(&"events".into()).expect("it was made").id;
    let of_two = (0..2).find(|at| state.owner(stream, *at).is_some_and(|owner| owner.node == 2)).expect("its share");
    let epoch_of = |state: &ClusterState| state.owner(stream, of_two).map(|owner| owner.epoch);

    // A kill: it has all.
    let again = state.plan_join(&join(2, true), 0).expect("joined");
    apply(&mut state, again);
    assert_eq!(epoch_of(&state), Some(2));
    // The power goes, and then, with an arena that was made since, a kill, before any end of a log is decided.
    let empty = state.plan_join(&join(2, false), 0).expect("joined");
    apply(&mut state, empty);
    assert_eq!(epoch_of(&state), Some(2), "it waits for those who have it");
    let killed = state.plan_join(&join(2, true), 0).expect("joined");
    apply(&mut state, killed);
    assert_eq!(
        (epoch_of(&state), state.node(2).map(|node| node.epoch)),
        (Some(2), Some(4)),
        "it still has nothing of it"
    );
}
