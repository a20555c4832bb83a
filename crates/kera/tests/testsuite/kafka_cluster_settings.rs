//! Settings of topics in a cluster of three nodes in three processes: described as they were set by whichever node is asked, after all of them were
//! killed, and when the cluster has come from the version before, which keeps none.

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::*;
use kera_format::level::{NEWEST, SETTINGS};

use crate::common::eventually;
use crate::common::kafka::{Kafka, Three, name, text};
use crate::common::members::live;

/// An explicit default, two that are rounded, one that is less than what holds, and one without effect.
const GIVEN: [(&str, &str); 5] = [
    ("max.message.bytes", "1000000"),
    ("min.cleanable.dirty.ratio", "0.304"),
    ("min.insync.replicas", "1"),
    ("retention.ms", "604800000"),
    ("segment.bytes", "1073741824"),
];

fn make(three: &Three, at: usize, topic: &str) {
    let config = |(name, value): &(&str, &str)| {
        CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
    };
    let topic = CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(3)
        .with_replication_factor(3)
        .with_configs(GIVEN.iter().map(config).collect());
    let asked = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
    let answer = three.until(5, &asked, || at, |answer| answer.topics[0].error_code);
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
}

/// What a node describes as set on a topic.
fn set(three: &Three, at: usize, topic: &str) -> Option<Vec<(String, String)>> {
    let resource = DescribeConfigsResource::default().with_resource_type(2).with_resource_name(text(topic));
    let asked = DescribeConfigsRequest::default().with_resources(vec![resource.with_configuration_keys(None)]);
    let answer = Kafka::connect(three.kafka[at])?.call(3, &asked)?;
    let of = answer.results.first().filter(|of| of.error_code == 0)?;
    let set = of.configs.iter().filter(|one| one.config_source == 1);
    Some(set.map(|one| (one.name.to_string(), one.value.clone().unwrap_or_default().to_string())).collect())
}

fn all_describe(three: &Three, topic: &str, given: &[(&str, &str)]) {
    let given: Vec<_> = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    eventually(&format!("all nodes describe {given:?}"), || {
        three.running().iter().all(|at| set(three, *at, topic).as_ref() == Some(&given))
    });
}

fn change(three: &Three, at: usize, topic: &str, (operation, setting, value): (i8, &str, Option<&str>)) {
    let change = AlterableConfig::default().with_config_operation(operation).with_name(text(setting));
    let resource = AlterConfigsResource::default().with_resource_type(2).with_resource_name(text(topic));
    let resource = resource.with_configs(vec![change.with_value(value.map(text))]);
    let asked = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let answer = three.until(0, &asked, || at, |answer| answer.responses[0].error_code);
    assert_eq!(answer.responses[0].error_code, 0, "{:?}", answer.responses[0].error_message);
}

#[test]
fn settings_are_described_as_they_were_set_by_every_node_and_after_all_were_killed() {
    let mut three = Three::start();
    make(&three, 1, "declared");
    all_describe(&three, "declared", &GIVEN);
    change(&three, 2, "declared", (1, "max.message.bytes", None));
    change(&three, 0, "declared", (0, "min.insync.replicas", Some("2")));
    three.node(1).ok("stream alter declared --retention-time 1h");
    let given = [GIVEN[1], ("min.insync.replicas", "2"), ("retention.ms", "3600000"), GIVEN[4]];
    all_describe(&three, "declared", &given);
    let said = three.node(2).ok("stream describe declared");
    assert!(said.contains("segment.bytes=1073741824"), "{said}");
    let said = three.node(2).json("stream describe declared");
    assert_eq!(said["options"]["settings"]["segment.bytes"], "1073741824", "{said}");
    assert_eq!(said["options"]["settings"]["retention.ms"], "604800000", "what was said is there: {said}");
    three.kill_all_and_start_again();
    all_describe(&three, "declared", &given);
}

#[test]
fn a_cluster_of_the_version_before_keeps_none_and_begins_to_when_its_last_node_is_upgraded() {
    let before = (SETTINGS - 1).to_string();
    let mut three = Three::with(None, &["--speak-level", &before]);
    make(&three, 1, "declared");
    // What is no default is described as set, in the words of what holds; what has no effect is not.
    let rounded = ("min.cleanable.dirty.ratio", "0.3");
    eventually("all nodes know it", || (0..3).all(|at| set(&three, at, "declared").is_some()));
    let described = set(&three, 2, "declared").expect("an answer");
    let names: Vec<&str> = described.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["max.message.bytes", rounded.0], "{described:?}");
    assert_eq!(described[1].1, rounded.1);
    for at in 0..3 {
        assert_eq!(three.nodes[at].take().expect("it runs").stop(), 0);
        let flags = &mut three.members[at].flags;
        let spoken = flags.iter().position(|flag| flag == "--speak-level").expect("it is there");
        flags.drain(spoken..spoken + 2);
        three.start_node(at);
        eventually("it is back", || (0..3).all(|node| live(three.node(node)) == 3));
        // A node that could keep them is one of a cluster that does not yet.
        if at < 2 {
            change(&three, at, "declared", (0, "flush.ms", Some("7")));
            let described = set(&three, at, "declared").expect("an answer");
            assert_eq!(described.len(), names.len(), "{described:?}");
        }
    }
    eventually("the next level", || (0..3).all(|at| three.node(at).json("cluster level")["level"] == NEWEST));
    change(&three, 1, "declared", (0, "flush.ms", Some("7")));
    change(&three, 2, "declared", (0, "max.message.bytes", Some("1000000")));
    all_describe(&three, "declared", &[("flush.ms", "7"), GIVEN[0], rounded]);
    make(&three, 0, "later");
    all_describe(&three, "later", &GIVEN);
}
