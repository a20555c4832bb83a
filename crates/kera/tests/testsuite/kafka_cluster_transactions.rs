//! Transactions of Kafka producers on three nodes in three processes: the coordinator of the transaction, the leaders of its partitions and
//! the coordinator of its group are lost at each step, and what is read for committed is what was committed, all of it and nothing else
//! (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).

use crate::common::kafka::{Kafka, Producer, Three};
use crate::common::members::live;
use crate::common::{self, eventually};

const TOPIC: &str = "t";

/// An id whose coordinator is that node.
fn id_at(three: &Three, node: usize) -> String {
    let mut ids = (0..200).map(|number| format!("id-{number}"));
    ids.find(|id| three.coordinator(1, id) == node).expect("each node coordinates some")
}

/// One record in each partition.
fn write_all(three: &Three, producer: &mut Producer, value: &str) {
    for partition in 0..3 {
        assert_eq!(producer.write(three, TOPIC, partition, value), 0, "{value} into {partition}");
    }
}

/// What is committed in each partition, once nothing is open.
fn expect(three: &Three, values: &[&str]) {
    for partition in 0..3 {
        assert_eq!(three.settled(TOPIC, partition), values, "partition {partition}");
    }
}

/// Nothing after `values` is read, since a transaction is open.
fn expect_open(three: &Three, values: &[&str]) {
    for partition in 0..3 {
        assert_eq!(three.committed(TOPIC, partition).1, values, "partition {partition}");
    }
}

/// Transactions of both versions over partitions and a group at all nodes.
#[test]
fn transactions_end_at_all_nodes_alike() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let mut values: Vec<String> = Vec::new();
    for (number, second) in [false, true].into_iter().enumerate() {
        for node in 0..3 {
            let id = format!("{}-{number}", id_at(&three, node));
            let mut producer = Producer::begin(&three, &id, second);
            for commit in [true, false, true] {
                let value = format!("{id} {}", values.len());
                write_all(&three, &mut producer, &value);
                write_all(&three, &mut producer, &format!("{value} again"));
                let committed = values.len() as i64;
                let before = three.offset("g", TOPIC, 0);
                assert_eq!(producer.commit_offset(&three, "g", TOPIC, 0, committed + 1_000), 0);
                let known: Vec<&str> = values.iter().map(String::as_str).collect();
                expect_open(&three, &known);
                assert_eq!(producer.end(&three, commit), 0);
                if commit {
                    values.extend([value.clone(), format!("{value} again")]);
                }
                let known: Vec<&str> = values.iter().map(String::as_str).collect();
                expect(&three, &known);
                let offset = if commit { committed + 1_000 } else { before };
                assert_eq!(three.offset("g", TOPIC, 0), offset);
            }
            // Whoever begins anew under the id fences this one.
            Producer::begin(&three, &id, second);
            assert_ne!(producer.write(&three, TOPIC, 0, "fenced"), 0);
        }
    }
}

/// Each node, with what it coordinates and leads, is lost with a transaction open, and right behind the answer to its end.
#[test]
fn a_node_is_lost_before_and_after_the_decision() {
    let mut three = Three::start();
    three.make_topic(TOPIC);
    let mut values: Vec<String> = Vec::new();
    for round in 0..6 {
        let (lost, second) = (round % 3, round >= 3);
        let (commit, early) = (round % 2 == 0, round % 4 < 2);
        let id = id_at(&three, if early { lost } else { (lost + 1) % 3 });
        let mut producer = Producer::begin(&three, &id, second);
        write_all(&three, &mut producer, &format!("round {round}"));
        assert_eq!(producer.commit_offset(&three, "g", TOPIC, 0, round as i64), 0);
        if early {
            three.kill(lost);
            let known: Vec<&str> = values.iter().map(String::as_str).collect();
            expect_open(&three, &known);
            // It goes on where others have taken over.
            write_all(&three, &mut producer, &format!("round {round}, more"));
            assert_eq!(producer.end(&three, commit), 0, "round {round}");
        } else {
            write_all(&three, &mut producer, &format!("round {round}, more"));
            assert_eq!(producer.end(&three, commit), 0, "round {round}");
            three.kill(lost);
        }
        if commit {
            values.extend([format!("round {round}"), format!("round {round}, more")]);
        }
        let known: Vec<&str> = values.iter().map(String::as_str).collect();
        expect(&three, &known);
        // The next one of the same producer follows.
        write_all(&three, &mut producer, &format!("round {round}, next"));
        assert_eq!(producer.end(&three, true), 0);
        values.push(format!("round {round}, next"));
        let known: Vec<&str> = values.iter().map(String::as_str).collect();
        expect(&three, &known);
        let offset = three.offset("g", TOPIC, 0);
        let expected = (0..=round).rev().find(|round| round % 2 == 0).map_or(-1, |round| round as i64);
        assert_eq!(offset, expected, "round {round}");
        three.start_again(lost);
        eventually("nothing waits", || common::members::cluster(three.node(lost))["waiting_streamlets"] == 0);
        expect(&three, &known);
    }
}

/// What is open moves with its partitions and its coordinator, and ends where they are then. What was written before a move Kafka's readers do
/// not get at the next owner; `kafka_cluster_transactions_recovery.rs` reads it natively.
#[test]
fn transactions_move_with_partitions_and_coordinators() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let id = id_at(&three, 0);
    let mut producer = Producer::begin(&three, &id, false);
    for (round, commit) in [true, false, true].into_iter().enumerate() {
        write_all(&three, &mut producer, &format!("round {round}, before"));
        let left = three.coordinator(1, &id);
        three.node(left).ok(&format!("node drain {} --no-wait", left + 1));
        let owns = || common::members::cluster(three.node(left))["nodes"][left]["streamlets"].clone();
        eventually("it owns nothing", || owns() == 0);
        assert_ne!(three.coordinator(1, &id), left);
        let ends: Vec<i64> = (0..3).map(|partition| three.end_of(TOPIC, partition)).collect();
        let value = format!("round {round}, behind");
        write_all(&three, &mut producer, &value);
        for partition in 0..3 {
            let (stable, read) = three.committed_from(TOPIC, partition, ends[partition as usize]);
            assert!(stable < ends[partition as usize], "it is open from before the move");
            assert_eq!(read, Vec::<String>::new());
        }
        assert_eq!(producer.end(&three, commit), 0);
        let expected = if commit { vec![value] } else { Vec::new() };
        for partition in 0..3 {
            assert_eq!(three.settled_from(TOPIC, partition, ends[partition as usize]), expected);
        }
        three.node(left).ok(&format!("node drain {} --undo", left + 1));
    }
}

/// A transaction that runs too long is aborted by whoever coordinates it then.
#[test]
fn time_runs_out_at_the_next_coordinator() {
    let mut three = Three::start();
    three.make_topic(TOPIC);
    let id = id_at(&three, 1);
    // Where the machine stands still for long, the time may be over before all of it is written: that one is aborted by whoever begins anew.
    let begun = (0..5).find_map(|_| {
        let mut producer = Producer::begin_within(&three, &id, false, 15_000);
        (0..3).all(|partition| producer.write(&three, TOPIC, partition, "late") == 0).then_some(producer)
    });
    let mut producer = begun.expect("all of it is written in time");
    three.kill(1);
    expect_open(&three, &[]);
    expect(&three, &[]);
    assert_ne!(producer.end(&three, true), 0, "it is fenced");
    let mut next = Producer::begin(&three, &id, false);
    write_all(&three, &mut next, "in time");
    assert_eq!(next.end(&three, true), 0);
    expect(&three, &["in time"]);
}

/// A coordinator that stands still while another one takes over decides nothing when it wakes up.
#[test]
fn a_coordinator_that_was_frozen_decides_nothing_any_more() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let id = id_at(&three, 2);
    let mut producer = Producer::begin(&three, &id, false);
    write_all(&three, &mut producer, "aborted");
    let mut old = Kafka::connect(three.kafka[2]).expect("it runs");
    three.node(2).signal("STOP");
    // The wish to commit lies at the frozen one while the next one aborts.
    old.send(3, &producer.end_request(true)).expect("the system takes it");
    let ask_others = |what: &str, holds: &dyn Fn(usize) -> bool| eventually(what, || (0..2).all(holds));
    ask_others("it is lost", &|at| live(three.node(at)) == 2);
    let next = |kafka: &mut Kafka| kafka.call(3, &producer.end_request(false)).map(|answer| answer.error_code);
    eventually("another one aborts", || {
        (0..2).any(|at| Kafka::connect(three.kafka[at]).is_some_and(|mut kafka| next(&mut kafka) == Some(0)))
    });
    three.node(2).signal("CONT");
    let answer = old.answer::<kafka_protocol::messages::EndTxnRequest>(3);
    assert!(answer.as_ref().is_none_or(|answer| answer.error_code != 0), "{answer:?}");
    eventually("it is back", || live(three.node(0)) == 3);
    expect(&three, &[]);
    let mut producer = Producer::begin(&three, &id, true);
    write_all(&three, &mut producer, "committed");
    assert_eq!(producer.end(&three, true), 0);
    expect(&three, &["committed"]);
}

/// A node without an address for Kafka clients gets a partition while a transaction runs in it: the transaction ends there all the same.
#[test]
fn transactions_end_at_a_node_that_no_kafka_client_reaches() {
    let three = Three::without_door(Some(2));
    three.make_topic(TOPIC);
    let partition = (0..3).find(|partition| three.leader(TOPIC, *partition) != 2).expect("two have a door");
    let home = three.leader(TOPIC, partition);
    for id in 0..20 {
        assert_ne!(three.coordinator(1, &format!("id-{id}")), 2, "whom clients cannot ask coordinates nothing");
        assert_ne!(three.coordinator(0, &format!("group-{id}")), 2);
    }
    let mut producer = Producer::begin(&three, "id", false);
    let mut expected = Vec::new();
    let other = (0..3).find(|other| *other != partition && three.leader(TOPIC, *other) != 2).expect("another one");
    for (turn, commit) in [true, false, true].into_iter().enumerate() {
        let value = format!("turn {turn}");
        assert_eq!(producer.write(&three, TOPIC, partition, &value), 0);
        three.node(0).ok(&format!("streamlet move {TOPIC}/{partition} --to 3"));
        eventually("it is led there", || three.leader(TOPIC, partition) == 2);
        assert_eq!(producer.end(&three, commit), 0);
        // The next one of the producer begins when this one has ended everywhere.
        assert_eq!(producer.write(&three, TOPIC, other, &format!("behind {turn}")), 0);
        assert_eq!(producer.end(&three, true), 0);
        three.node(0).ok(&format!("streamlet move {TOPIC}/{partition} --to {}", home + 1));
        eventually("it is back", || three.leader(TOPIC, partition) == home);
        if commit {
            expected.push(value);
        }
        assert_eq!(three.settled(TOPIC, partition), expected);
    }
    assert_eq!(three.settled(TOPIC, other), ["behind 0", "behind 1", "behind 2"]);
}
