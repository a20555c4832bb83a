//! What Kafka 4.1 has answered to a random sequence of requests, asked of a node: `spec/kafka/oracle.txt`, which
//! `peers/kafka/oracle.sh record` writes. Its first line is the seed and the number of steps, each further one an answer.

#[path = "../../examples/kafka-oracle/answer.rs"]
mod answer;
#[path = "../../examples/kafka-oracle/batches.rs"]
mod batches;
#[path = "../../examples/kafka-oracle/requests.rs"]
mod requests;
#[path = "../../examples/kafka-oracle/scenes.rs"]
#[allow(dead_code)] // Scenes that take minutes are not replayed.
mod scenes;
#[path = "../../examples/kafka-oracle/side.rs"]
mod side;
#[path = "../../examples/kafka-oracle/steps.rs"]
#[allow(dead_code)]
mod steps;

use kera_server::Node;

use crate::common;

const RECORDED: &str = include_str!("../../../../spec/kafka/oracle.txt");

#[test]
fn a_node_answers_as_kafka_has_answered() {
    let mut lines = RECORDED.lines();
    let head: Vec<u64> = lines.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut config = common::config(dir.path());
    config.kafka.auto_create = false;
    config.arena.bytes = Some(64 << 20);
    let node = Node::start(&config).unwrap();
    let mut side = side::Side::new(node.kafka_address().unwrap());
    // Nobody has died in what was recorded, so nobody is waited for; and this machine may hold up for seconds who is to join.
    side.rebalance_ms_min = 600_000;
    let count = steps::prologue().len() as u64 + head[1];
    let mut compared = 0;
    for (number, recorded) in (0..count).zip(lines) {
        let asked = steps::nth(head[0], number, &side.memory);
        let shown = asked.shown();
        let answered = side.ask(&asked).unwrap_or_else(|error| panic!("{number}: {shown}: {error}"));
        assert_eq!(answered, recorded, "{number}: {shown}");
        compared += 1;
    }
    assert_eq!(compared, count, "an answer for each request");
    node.stop();
}
