//! With what state coordinators go on of whom the majority is gone.

#[path = "support/copied.rs"]
mod copied;

use copied::{apply, cluster, fence, join};
use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::ClusterEntry;
use kera_format::level;

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

#[test]
fn no_incarnation_goes_on_but_that_of_the_node_that_is_left() {
    let (mut state, _) = cluster(3, 2, level::NEWEST);
    fence(&mut state, 2);
    state.end_incarnations(3).unwrap();
    assert!([1, 2].iter().all(|node| state.node(*node).unwrap().fenced) && !state.node(3).unwrap().fenced);
}
