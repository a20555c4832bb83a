//! What clients are told while nobody leads the coordinators, and of what their leader refuses.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_coordinator::CoordinatorError;

use super::copies::{Cluster, FRESH_PRODUCER};
use super::transactions::topic;
use super::*;

fn no_leader() -> CoordinatorError {
    CoordinatorError::NoLeader("nobody leads".into())
}

/// An id for a producer without transactions.
fn init() -> InitProducerIdRequest {
    InitProducerIdRequest::default().with_transactional_id(None)
}

#[test]
fn clients_ask_again_while_nobody_leads_the_coordinators() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1]], false).0, 0);
    cluster.leader.answer_instead(|| Some(no_leader()));
    let unled = ResponseError::NotController.code();
    assert_eq!(cluster.create("new", 1, &[], false).0, unled);
    assert_eq!(cluster.grow("t", 2, &[&[1]], false), unled);
    assert_eq!(cluster.codes("t", &[(0, Some(&[2]))]), [unled]);
    let world = &mut cluster.world;
    let deleted = world.call(1, &DeleteTopicsRequest::default().with_topic_names(vec![topic("t")]));
    assert_eq!(deleted.responses[0].error_code, unled);
    let listed = world.call(0, &ListPartitionReassignmentsRequest::default());
    assert_eq!(listed.error_code, unled);
    let producer = world.call(2, &init());
    let loading = ResponseError::CoordinatorLoadInProgress.code();
    assert_eq!((producer.error_code, producer.producer_id.0), (loading, -1));
}

#[test]
fn what_the_leader_of_the_coordinators_refuses_is_told_as_if_this_node_did() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1]], false).0, 0);
    let mistakes = || vec!["streamlets: 2 is not between 1 and 1".to_owned()];
    cluster.leader.answer_instead(move || Some(CoordinatorError::BadOptions { mistakes: mistakes() }));
    assert_eq!(cluster.grow("t", 2, &[&[1]], false), ResponseError::InvalidPartitions.code());
    assert_eq!(cluster.create("new", 1, &[], false).0, ResponseError::InvalidConfig.code());
    cluster.leader.answer_instead(|| Some(CoordinatorError::Disk(io::ErrorKind::StorageFull.into())));
    assert_eq!(cluster.create("new", 1, &[], false).0, ResponseError::KafkaStorageError.code());
}

/// A producer of a cluster that is no more, or one too many of those whose epochs are kept.
#[test]
fn a_producer_that_cannot_keep_its_id_gets_another_one() {
    let mut cluster = Cluster::new();
    let mut told = |instead: Option<fn() -> CoordinatorError>| {
        let first = AtomicBool::new(true);
        cluster.leader.answer_instead(move || instead.filter(|_| first.swap(false, Ordering::Relaxed)).map(|of| of()));
        let asked = init().with_producer_id(ProducerId(1_000_000_000_000));
        let answer = cluster.world.call(4, &asked.with_producer_epoch(0));
        (answer.error_code, answer.producer_id.0, answer.producer_epoch)
    };
    let fresh = (0, FRESH_PRODUCER.cast_signed(), 0);
    assert_eq!(told(None), fresh);
    assert_eq!(told(Some(|| CoordinatorError::Limit { what: "producers", limit: 1, advice: "" })), fresh);
}
