//! Kafka transactions of three nodes in three processes: the coordinator of a transaction, the leader of a partition and the coordinator of a
//! group are lost behind each of its steps, one after the other, and partitions move with what they have. What is committed is there once and in
//! order, at whoever owns it then, what is aborted or runs is not, and nobody waits for ever; so too for native readers.

use std::time::Duration;

use serde_json::Value;

use crate::common::kafka::{Kafka, Producer, Three};
use crate::common::members::cluster;
use crate::common::{self, eventually};

const TOPIC: &str = "t";
const ID: &str = "id";
const GROUP: &str = "readers";

/// Who is lost.
#[derive(Clone, Copy, Debug)]
enum Party {
    Coordinator,
    Leader,
    GroupCoordinator,
}

/// Behind what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Begun,
    Written,
    OffsetsCommitted,
    /// While the end is being asked for.
    Ending,
    /// Markers may be written partly.
    Ended,
}

fn find(three: &Three, party: Party) -> usize {
    match party {
        Party::Coordinator => three.coordinator(1, ID),
        Party::Leader => three.leader(TOPIC, 0),
        Party::GroupCoordinator => three.coordinator(0, GROUP),
    }
}

/// What must be there.
struct Expected {
    values: Vec<String>,
    offset: i64,
    /// Transactions so far.
    number: i64,
}

impl Expected {
    fn nothing() -> Expected {
        Expected { values: Vec::new(), offset: -1, number: 0 }
    }

    fn check(&self, three: &Three, when: &str) {
        for partition in 0..3 {
            assert_eq!(three.settled(TOPIC, partition), self.values, "partition {partition} {when}");
        }
        assert_eq!(three.offset(GROUP, TOPIC, 0), self.offset, "{when}");
    }

    /// One transaction, of which every other one is aborted. `lose` is called behind `step`.
    fn transact(&mut self, three: &mut Three, producer: &mut Producer, step: Step, mut lose: impl FnMut(&mut Three)) {
        self.number += 1;
        let (number, commit, value) = (self.number, self.number % 2 == 0, format!("v{}", self.number));
        let mut at = |three: &mut Three, now: Step| {
            if now == step {
                lose(three);
            }
        };
        assert_eq!(producer.write(three, TOPIC, 0, &value), 0);
        at(three, Step::Begun);
        for partition in 1..3 {
            assert_eq!(producer.write(three, TOPIC, partition, &value), 0);
        }
        at(three, Step::Written);
        assert_eq!(producer.commit_offset(three, GROUP, TOPIC, 0, number), 0);
        at(three, Step::OffsetsCommitted);
        for partition in 0..3 {
            assert_eq!(three.committed(TOPIC, partition).1, self.values, "a transaction that runs is seen: {number}");
        }
        let mut asking = Kafka::connect(three.kafka[three.coordinator(1, ID)]).expect("it runs");
        if step == Step::Ending {
            asking.send(if producer.second { 5 } else { 3 }, &producer.end_request(commit)).expect("it runs");
            // Some are lost before the decision, some behind it.
            std::thread::sleep(Duration::from_millis(number as u64));
        }
        at(three, Step::Ending);
        assert_eq!(producer.end(three, commit), 0);
        at(three, Step::Ended);
        if commit {
            self.values.push(value);
            self.offset = number;
        }
    }
}

/// Each loss comes once to a transaction that is aborted and once to one that is committed.
fn survive(second: bool, losses: &[(Party, Step)]) {
    let mut three = Three::start();
    three.make_topic(TOPIC);
    let mut producer = Producer::begin(&three, ID, second);
    let mut expected = Expected::nothing();
    for (party, step) in losses.iter().flat_map(|loss| [loss, loss]) {
        let mut lost = 0;
        expected.transact(&mut three, &mut producer, *step, |three| {
            lost = find(three, *party);
            three.kill(lost);
        });
        expected.check(&three, &format!("behind the loss of the {party:?} when it was {step:?}"));
        three.start_again(lost);
        eventually("nothing waits", || cluster(three.node(lost))["waiting_streamlets"] == 0);
    }
    expected.check(&three, "in the end");
}

#[test]
fn transactions_survive_the_loss_of_their_coordinator_at_each_step() {
    let steps = [Step::Begun, Step::Written, Step::OffsetsCommitted, Step::Ending, Step::Ended];
    survive(false, &steps.map(|step| (Party::Coordinator, step)));
}

#[test]
fn transactions_survive_the_loss_of_a_leader_at_each_step() {
    let steps = [Step::Begun, Step::Written, Step::OffsetsCommitted, Step::Ending, Step::Ended];
    survive(false, &steps.map(|step| (Party::Leader, step)));
}

#[test]
fn transactions_survive_the_loss_of_a_group_s_coordinator_at_each_step() {
    let steps = [Step::Written, Step::OffsetsCommitted, Step::Ending, Step::Ended];
    survive(false, &steps.map(|step| (Party::GroupCoordinator, step)));
}

#[test]
fn transactions_of_the_second_version_survive_losses() {
    let losses = [
        (Party::Leader, Step::Begun),
        (Party::Coordinator, Step::Written),
        (Party::GroupCoordinator, Step::OffsetsCommitted),
        (Party::Coordinator, Step::Ending),
        (Party::Leader, Step::Ended),
    ];
    survive(true, &losses);
}

/// What native readers get of all partitions.
fn read_natively(three: &Three, at: usize) -> Vec<String> {
    let addresses: Vec<String> = three.nodes.iter().flatten().map(|node| node.address()).collect();
    let line = format!("consume {TOPIC} --from earliest --format json --connect {}", addresses.join(","));
    let output = three.node(at).run(&line);
    assert!(output.status.success(), "{}", common::stderr(&output));
    let value =
        |line: &str| serde_json::from_str::<Value>(line).expect("a record")["value"].as_str().map(str::to_owned);
    let mut values: Vec<String> = common::stdout(&output).lines().filter_map(value).collect();
    values.sort();
    values
}

/// Parts of the partitions stay at the nodes that they leave: what is open there when they leave is shown when it is committed, and not before.
#[test]
fn native_readers_are_told_what_is_committed_of_partitions_that_have_moved() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let mut producer = Producer::begin(&three, ID, false);
    let mut committed: Vec<String> = Vec::new();
    for number in 0..4 {
        let value = format!("v{number}");
        for partition in 0..3 {
            assert_eq!(producer.write(&three, TOPIC, partition, &value), 0);
        }
        let left = three.leader(TOPIC, 0);
        three.node(left).ok(&format!("node drain {}", left + 1));
        assert_eq!(read_natively(&three, 0), committed, "a transaction that runs is seen: {number}");
        assert_eq!(producer.write(&three, TOPIC, 0, &value), 0, "it goes on at the next owner");
        let commit = number % 2 == 0;
        assert_eq!(producer.end(&three, commit), 0);
        if commit {
            committed.extend(vec![value; 4]);
        }
        eventually("all of it is read", || read_natively(&three, 0) == committed);
        three.node(left).ok(&format!("node drain {} --undo", left + 1));
    }
}
