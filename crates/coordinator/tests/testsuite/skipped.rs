//! With what state coordinators go on of whom the majority is gone.

use kera_coordinator::cluster::{ClusterState, Join};
use kera_format::cluster::{ClusterEntry, LogName};
use kera_format::vlog_replica::LogId;
use kera_format::{ProducerId, level};
use kera_protocol::AcceptLogLoss;

use crate::support::copied::{apply, begin_view, cluster, fence, join};

/// What is given out next: an owner epoch, a move, a stream, a producer id.
fn next(state: &ClusterState) -> [u64; 4] {
    let counters = |entry: &ClusterEntry| match entry {
        ClusterEntry::ClusterCounters { next_move, next_owner_epoch } => {
            Some([u64::from(*next_owner_epoch), *next_move])
        }
        _ => None,
    };
    let [owner_epoch, number] = state.snapshot().iter().find_map(counters).unwrap();
    [owner_epoch, number, state.catalog.next_stream().0, state.catalog.producers_reserved().0]
}

#[test]
fn numbers_that_others_may_have_given_out_are_never_given_out_again() {
    let (mut state, _) = cluster(3, 2, level::NEWEST);
    let before = next(&state);
    state.skip_numbers(1000).unwrap();
    let after = next(&state);
    assert_eq!(after, [before[0] + 1000, before[1] + 1000, before[2] + 1000, before[3] + 1_000_000]);
    apply(&mut state, &[]);
    fence(&mut state, 2);
    let joined = state.plan_join(&join(2, true), 0).unwrap();
    let is_above = |entry: &ClusterEntry| matches!(entry, ClusterEntry::OwnerReturned { owner_epoch, .. } if u64::from(*owner_epoch) >= after[0]);
    assert!(joined.iter().any(is_above), "{joined:?}");
    assert!(state.skip_numbers(u32::MAX).is_err());
    assert_eq!(next(&state), after, "nothing is changed");
}

/// A producer has had its epoch raised, which only those knew who are gone.
#[test]
fn no_epoch_of_a_producer_is_given_out_that_others_may_have_given() {
    let (mut state, _) = cluster(3, 2, level::NEWEST);
    let reserve = |state: &mut ClusterState| {
        let reserved = ClusterEntry::Catalog(state.catalog.plan_reserve());
        apply(state, &[reserved]);
    };
    reserve(&mut state);
    let known = state.catalog.producers_reserved();
    let raised = |state: &ClusterState, id: u64| {
        state.catalog.plan_raise(ProducerId(id), state.catalog.producers_reserved()).unwrap().is_some()
    };
    assert!(raised(&state, 5));
    state.skip_numbers(1000).unwrap();
    apply(&mut state, &[]);
    let first = state.catalog.producers_reserved().0;
    assert!(!raised(&state, 5), "its next epoch may have been given");
    assert!(!raised(&state, known.0 + 5), "an id that others may have given");
    reserve(&mut state);
    assert!(raised(&state, first));
    let mut copy = ClusterState::default();
    state.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
    assert!(!raised(&copy, 5) && raised(&copy, first));
}

#[test]
fn no_incarnation_goes_on_but_that_of_the_node_that_is_left() {
    let (mut state, _) = cluster(3, 2, level::NEWEST);
    fence(&mut state, 2);
    state.end_incarnations(3, 1000).unwrap();
    assert!([1, 2].iter().all(|node| state.node(*node).unwrap().fenced) && !state.node(3).unwrap().fenced);
    assert_eq!([1, 2, 3].map(|node| state.node(node).unwrap().epoch), [1001, 1001, 1]);
    assert!(state.is_over(1, 1) && state.is_over(1, 700), "also what this state has never heard of");
    assert!(state.end_incarnations(3, u32::MAX).is_err());
    assert_eq!(state.node(1).unwrap().epoch, 1001, "nothing is changed");
    assert!(state.lost().contains(&(1, 1)), "what it owned is taken over: {:?}", state.lost());
    apply(&mut state, &[]);
}

/// The two that are gone had the log of one of them between them.
#[test]
fn what_only_those_had_who_are_gone_is_given_up_as_after_any_loss() {
    let (mut state, stream) = cluster(3, 2, level::NEWEST);
    let log = LogName { node: 1, epoch: 1, log: 0 };
    begin_view(&mut state, log, 1, vec![3]);
    begin_view(&mut state, log, 8, vec![2]);
    state.skip_numbers(1000).unwrap();
    state.end_incarnations(3, 1000).unwrap();
    apply(&mut state, &[]);
    let lost = state.lost_log_infos(10).logs;
    let [of] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!((of.log, of.missing[0].first, &of.lost_nodes[..]), (LogId::from(log), 8, &[1, 2][..]));
    assert_eq!(state.plan_recover(1, 1).unwrap(), [], "nobody knows how far it went");
    let says = |gone: &[u32]| AcceptLogLoss { log: LogId::from(log), gone: gone.to_vec() };
    let refused = state.plan_accept_log_loss(&says(&[1])).unwrap_err().to_string();
    assert!(refused.contains("node 2 may come back"), "that they are gone is said again: {refused}");
    let ended = state.plan_accept_log_loss(&says(&[1, 2])).unwrap();
    assert_eq!(ended, [ClusterEntry::LogEnded { log, end: 7 }], "node 3 has what was before");
    apply(&mut state, &ended);
    assert_eq!(state.plan_accept_log_loss(&says(&[1, 2])).unwrap(), [], "asking twice is answered like asking once");
    let recovered = state.plan_recover(1, 1).unwrap();
    apply(&mut state, &recovered);
    let runs = state.owners(stream).unwrap().runs();
    assert!(runs.iter().any(|run| run.owner.node == 3 && run.owner.rebuilding), "{runs:?}");
}

/// Node 1 has had another epoch, which only those knew who are gone: others have blocks of its logs.
#[test]
fn no_machine_that_comes_under_a_number_begins_an_epoch_that_the_node_before_may_have_had() {
    let mut state = ClusterState::default();
    let founded = state.plan_found([9; 16], &join(1, true), 0).unwrap();
    apply(&mut state, &founded);
    for node in [2, 3, 4] {
        let joined = state.plan_join(&join(node, true), 0).unwrap();
        apply(&mut state, &joined);
    }
    let remove = |state: &mut ClusterState, node| {
        if !state.node(node).unwrap().fenced {
            fence(state, node);
        }
        apply(state, &[ClusterEntry::NodeRemoved { node }]);
    };
    let begins = |state: &ClusterState, node| {
        let joined = state.plan_join(&Join { uuid: [77; 16], ..join(node, true) }, 0).unwrap();
        let epoch = |entry: &ClusterEntry| match entry {
            ClusterEntry::NodeJoined { epoch, .. } => Some(*epoch),
            _ => None,
        };
        joined.iter().find_map(epoch).unwrap()
    };
    remove(&mut state, 4);
    state.skip_numbers(1000).unwrap();
    state.end_incarnations(3, 1000).unwrap();
    apply(&mut state, &[]);
    remove(&mut state, 1);
    assert!(begins(&state, 1) > 1001, "given up after the recovery");
    assert!(begins(&state, 4) > 1001, "and before it");
}
