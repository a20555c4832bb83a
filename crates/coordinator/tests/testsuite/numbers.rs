//! Another machine under the number of a node that was given up: nothing that is said of the number is taken to be true of it.

use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::{AgreedEnd, ClusterState, Join};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::level;
use kera_protocol::{AcceptLogLoss, UseEnds, UsedEnd};

use crate::support::copied::{apply, begin_view, cluster, fence, join};

const LOG: LogName = LogName { node: 1, epoch: 1, log: 0 };

/// Node 3, which owned nothing, was given up in its epoch 5. The log of node 1 has its newest view at it and at others.
fn given_up(newest: &[NodeNumber]) -> ClusterState {
    let (mut state, stream) = cluster(4, 2, level::NEWEST);
    begin_view(&mut state, LOG, 1, newest.to_vec());
    let deleted = state.plan_delete_stream(&stream.into(), 0).unwrap();
    apply(&mut state, &deleted);
    let again = Join { epoch_min: 5, ..join(3, true) };
    let joined = state.plan_join(&again, 0).unwrap();
    apply(&mut state, &joined);
    fence(&mut state, 3);
    let removed = state.plan_remove(3).unwrap();
    apply(&mut state, &removed);
    state
}

/// Its leader may have been lost before it could say so, and the next one is asked again.
#[test]
fn a_node_that_was_given_up_is_given_up_once_more_by_whoever_asks_again() {
    let mut state = given_up(&[2, 3]);
    assert_eq!(state.plan_remove(3).unwrap(), []);
    assert!(state.plan_remove(9).unwrap_err().to_string().contains("there is no node 9"));
    let joined = state.plan_join(&Join { epoch_min: 6, ..join(3, true) }, 0).unwrap();
    apply(&mut state, &joined);
    assert!(state.plan_remove(3).unwrap_err().to_string().contains("is not lost"), "somebody has the number");
}

fn another() -> Join {
    Join { uuid: [33; 16], ..join(3, false) }
}

fn waits(state: &ClusterState) -> bool {
    match state.plan_join(&another(), 0) {
        Ok(_) => false,
        Err(later @ CoordinatorError::NoLeader(_)) => {
            let words = ["log 0 of node 1 epoch 1 may have its end", "at the node that was number 3 before"];
            assert!(words.iter().all(|words| later.to_string().contains(words)), "{later}");
            true
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn another_machine_waits_while_it_would_be_asked_for_ends_of_logs() {
    let mut state = given_up(&[2, 3]);
    assert!(waits(&state), "it would say that the log ends at 0");
    let own = Join { node: 9, ..another() };
    assert!(state.plan_join(&own, 0).is_ok(), "under a number of its own it need not wait");
    begin_view(&mut state, LOG, 10, vec![2, 4]);
    assert!(!waits(&state), "of blocks 1 to 9 it says that it does not have them");
}

#[test]
fn the_end_of_a_lost_log_is_settled_without_it() {
    let mut state = given_up(&[2, 3]);
    fence(&mut state, 1);
    let told = AgreedEnd { end: 8, at_all: false, certain: true };
    let ended = state.plan_end_log(LOG, told).unwrap();
    apply(&mut state, &ended);
    assert!(waits(&state), "the end may be taken back");
    let (node, epoch) = (2, 1);
    let used = state.plan_use_ends(&UseEnds { node, epoch, ends: vec![UsedEnd { log: LOG.into(), end: 8 }] }).unwrap();
    apply(&mut state, &used);
    assert!(!waits(&state));
}

#[test]
fn a_log_that_has_nobody_else_does_not_hold_it_up_as_long_as_its_node_lives() {
    let mut state = given_up(&[3]);
    assert!(!waits(&state), "the log may need this very machine");
    fence(&mut state, 1);
    assert!(waits(&state), "now only a person can say where it ends");
}

#[test]
fn what_it_alone_would_be_taken_to_have_is_given_up_first() {
    let mut state = given_up(&[3]);
    begin_view(&mut state, LOG, 10, vec![2, 4]);
    assert!(!waits(&state), "the log's node lives, and copies blocks 1 to 9 again");
    fence(&mut state, 1);
    let ended = state.plan_end_log(LOG, AgreedEnd { end: 12, at_all: true, certain: true }).unwrap();
    apply(&mut state, &ended);
    assert!(waits(&state), "nobody could say any more that they are gone");
    let asked = AcceptLogLoss { log: LOG.into(), gone: vec![1] };
    let accepted = state.plan_accept_log_loss(&asked).unwrap();
    apply(&mut state, &accepted);
    assert!(!waits(&state));
}

#[test]
fn it_begins_above_what_is_fenced_of_its_number() {
    let mut state = given_up(&[2, 4]);
    let joined = state.plan_join(&another(), 0).unwrap();
    assert!(matches!(joined[..], [ClusterEntry::NodeJoined { node: 3, epoch: 6, .. }]), "{joined:?}");
    apply(&mut state, &joined);
    let again = state.plan_join(&another(), 0).unwrap();
    assert!(matches!(again[0], ClusterEntry::NodeJoined { node: 3, epoch: 7, .. }), "{again:?}");
}

#[test]
fn the_node_itself_comes_back_at_any_time() {
    let state = given_up(&[2, 3]);
    let joined = state.plan_join(&Join { epoch_min: 2, ..join(3, true) }, 0).unwrap();
    assert!(matches!(joined[..], [ClusterEntry::NodeJoined { node: 3, epoch: 6, .. }]), "{joined:?}");
}

/// What has not been heard of yet may begin at any moment, or has begun.
#[test]
fn an_incarnation_is_over_that_is_fenced_followed_or_removed_and_not_one_that_comes_yet() {
    let mut state = given_up(&[2, 3]);
    let is_over = |state: &ClusterState, node, epochs: [u32; 3]| epochs.map(|epoch| state.is_over(node, epoch));
    assert_eq!(is_over(&state, 3, [4, 5, 6]), [true, true, false]);
    let joined = state.plan_join(&join(3, true), 0).unwrap();
    apply(&mut state, &joined);
    assert_eq!(is_over(&state, 3, [5, 6, 7]), [true, false, false]);
    fence(&mut state, 3);
    assert_eq!(is_over(&state, 3, [5, 6, 7]), [true, true, false]);
    assert_eq!(is_over(&state, 9, [1, 2, 3]), [false; 3]);
}

/// As a snapshot of its machine that somebody has gone back to: what it acknowledged since is not on it.
#[test]
fn a_node_with_an_older_copy_of_its_disks_is_told_so() {
    let (mut state, _) = cluster(4, 2, level::NEWEST);
    let of_epoch = |epoch_min| Join { epoch_min, ..join(3, true) };
    assert!(state.check_disks(&of_epoch(1)).is_ok(), "it has joined, and may have ended before it did anything");
    begin_view(&mut state, LogName { node: 3, epoch: 1, log: 0 }, 1, vec![1, 2]);
    let said = state.check_disks(&of_epoch(1)).unwrap_err().0;
    assert!(said.contains("up to epoch 0, and it has written in epoch 1 since"), "{said}");
    assert!(state.check_disks(&of_epoch(2)).is_ok());
    // Another machine has another name.
    assert!(state.check_disks(&Join { uuid: [33; 16], ..of_epoch(1) }).is_ok());
    fence(&mut state, 3);
    assert!(state.check_disks(&of_epoch(1)).is_err(), "it is the same while its log is there");
}
