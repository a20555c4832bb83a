//! A node that is killed and comes back while others rebuild what it had holds that again: less is rebuilt, and everybody reads every record once
//! and in order, wherever it is.

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::records::RecordBatchDecoder;
use serde_json::Value;

use crate::common::kafka::{Three, name};
use crate::common::members::cluster;
use crate::common::{self, eventually};

const STREAM: &str = "kept";
const STREAMLETS: i32 = 6;
const RECORDS: u64 = 50_000;
/// Times that a node is killed until it comes back in the middle of a rebuild.
const ROUNDS: usize = 12;
/// Everything that a Kafka client reads of a partition: it must be each offset once.
fn read_as_kafka(three: &Three, partition: i32) -> u64 {
    let end = three.end_of(STREAM, partition);
    let mut at = 0;
    while at < end {
        let of = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(at)
            .with_partition_max_bytes(4 << 20)
            .with_log_start_offset(-1);
        let topic = FetchTopic::default().with_topic(name(STREAM)).with_partitions(vec![of]);
        let asked = FetchRequest::default()
            .with_max_bytes(4 << 20)
            .with_min_bytes(1)
            .with_max_wait_ms(500)
            .with_session_epoch(-1)
            .with_topics(vec![topic]);
        let leader = || three.leader(STREAM, partition);
        let answer = three.until(11, &asked, leader, |answer| answer.responses[0].partitions[0].error_code);
        let one = &answer.responses[0].partitions[0];
        assert_eq!(one.error_code, 0, "at {at} of {end} of partition {partition}");
        let sets = RecordBatchDecoder::decode_all(&mut one.records.clone().unwrap_or_default()).expect("batches");
        let from = at;
        for record in sets.into_iter().flat_map(|set| set.records).filter(|record| record.offset >= from) {
            assert_eq!(record.offset, at, "partition {partition}");
            at += 1;
        }
    }
    end as u64
}

/// Native and Kafka readers get every record that was acknowledged, once and in order.
fn check(three: &Three, log: &str) {
    let node = three.node(0);
    let consumed = node.run(&format!("verify consume --stream {STREAM} --log {log}"));
    let said = common::stdout(&consumed);
    assert!(consumed.status.success(), "{said}{}", common::stderr(&consumed));
    assert!(said.contains(&format!("{RECORDS} records acknowledged, {RECORDS} read")), "{said}");
    assert_eq!((0..STREAMLETS).map(|partition| read_as_kafka(three, partition)).sum::<u64>(), RECORDS);
}

#[test]
fn what_a_node_comes_back_with_is_not_rebuilt_and_read_from_where_it_is() {
    let mut three = Three::start();
    let log = three.members[0].place.file("acks").display().to_string();
    three.node(0).ok(&format!("stream create {STREAM} --streamlets {STREAMLETS} --replication 2"));
    let line = format!(
        "verify produce --stream {STREAM} --log {log} --records {RECORDS} --record-bytes 2048 --chunk-bytes 64KiB"
    );
    let produced = three.node(0).run(&line);
    assert!(produced.status.success(), "{}", common::stderr(&produced));

    // After a return without a rebuild the others have its streamlets.
    let lost = (0..ROUNDS).map(|round| 1 + round % 2).find(|lost| three.kill_and_bring_back(*lost));
    let lost = lost.expect("it comes back in the middle of a rebuild");
    let others = [0, 3 - lost];
    let of = |line: &Value, field: &str| line[field].as_u64().expect("a number");
    eventually("less is rebuilt than there was", || {
        let rebuilt = others.iter().flat_map(|at| three.said(*at, "what a lost broker had is rebuilt"));
        rebuilt.into_iter().any(|line| of(&line, "read_bytes") < of(&line, "bytes"))
    });
    let holds = |three: &Three| cluster(three.node(0))["nodes"][lost]["held_streamlets"].as_u64().unwrap_or(0);
    assert!(holds(&three) > 0);
    check(&three, &log);
    three.node(0).ok(&format!("node drain {}", lost + 1));
    eventually("it owns nothing", || cluster(three.node(0))["nodes"][lost]["streamlets"] == 0);
    assert!(holds(&three) > 0, "what it holds stays where it is");
    check(&three, &log);
}
