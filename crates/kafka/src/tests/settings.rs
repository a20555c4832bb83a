//! Settings of topics: what clients find of what they have set.

use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig as Given};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource as Resource, AlterableConfig as Change,
};
use kera_protocol::{StreamChanges, StreamRef};

use super::partitions::flexible;
use super::*;
use crate::batch::CHECKED_FROM;

/// Where a value comes from: the topic, the default.
const TOPIC: i8 = 1;
const DEFAULT: i8 = 5;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

impl Client {
    /// Makes a topic with these settings: the error, what is said, and the settings that it is told to have.
    fn make(&mut self, name: &str, given: &[(&str, &str)]) -> (i16, String, Vec<(String, String, i8)>) {
        let config = |(name, value): &(&str, &str)| {
            CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
        };
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(name)))
            .with_num_partitions(1)
            .with_replication_factor(1)
            .with_configs(given.iter().map(config).collect());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
        let answer: CreateTopicsResponse = flexible(&self.ask(ApiKey::CreateTopics, 7, &request), 7);
        let topic = &answer.topics[0];
        let told = topic.configs.iter().flatten();
        let told = told.map(|one| (one.name.to_string(), one.value.clone().unwrap().to_string(), one.config_source));
        (topic.error_code, topic.error_message.clone().unwrap_or_default().to_string(), told.collect())
    }

    fn describe(
        &mut self,
        name: &str,
        synonyms: bool,
    ) -> Vec<describe_configs_response::DescribeConfigsResourceResult> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_configuration_keys(None);
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]).with_include_synonyms(synonyms);
        let answer: DescribeConfigsResponse = flexible(&self.ask(ApiKey::DescribeConfigs, 4, &request), 4);
        assert_eq!(answer.results[0].error_code, 0);
        answer.results[0].configs.clone()
    }

    /// A setting and where it comes from.
    fn setting(&mut self, topic: &str, name: &str) -> (String, i8) {
        let all = self.describe(topic, false);
        let found = all.iter().find(|one| &*one.name == name).unwrap();
        (found.value.clone().unwrap().to_string(), found.config_source)
    }

    /// Changes settings one by one: the error, and what is said.
    fn change(&mut self, topic: &str, changes: &[(i8, &str, Option<&str>)]) -> (i16, String) {
        self.change_of(2, topic, changes)
    }

    /// The same of a topic (2) or a node (4).
    fn change_of(&mut self, kind: i8, of: &str, changes: &[(i8, &str, Option<&str>)]) -> (i16, String) {
        let change = |(operation, name, value): &(i8, &str, Option<&str>)| {
            Change::default().with_config_operation(*operation).with_name(text(name)).with_value(value.map(text))
        };
        let changes = changes.iter().map(change).collect();
        let resource = Resource::default().with_resource_type(kind).with_resource_name(text(of)).with_configs(changes);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let answer = self.ask(ApiKey::IncrementalAlterConfigs, 1, &request);
        let answer: IncrementalAlterConfigsResponse = flexible(&answer, 1);
        let one = &answer.responses[0];
        (one.error_code, one.error_message.clone().unwrap_or_default().to_string())
    }

    /// Gives a topic these settings and no others.
    fn replace(&mut self, topic: &str, given: &[(&str, &str)]) -> i16 {
        let config =
            |(name, value): &(&str, &str)| Given::default().with_name(text(name)).with_value(Some(text(value)));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(topic))
            .with_configs(given.iter().map(config).collect());
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        let answer: AlterConfigsResponse = flexible(&self.ask(ApiKey::AlterConfigs, 2, &request), 2);
        answer.responses[0].error_code
    }
}

/// Tools set them before they reassign partitions with a bound, and take them back whenever they look whether a reassignment is over.
#[test]
fn what_reassignments_copy_may_be_bounded_and_nothing_else_of_a_node_is_changed() {
    let mut client = Client::new();
    let rate = "leader.replication.throttled.rate";
    let bounds = [(0, rate, Some("1000")), (1, "follower.replication.throttled.rate", None)];
    assert_eq!(client.change_of(4, "1", &bounds), (0, String::new()));
    assert_eq!(client.change_of(4, "", &bounds), (0, String::new()));
    let (code, why) = client.change_of(4, "7", &bounds);
    assert_eq!(code, ResponseError::InvalidRequest.code());
    assert!(why.contains("node 7") && why.contains("[1]"), "{why}");
    for changes in [&[(0, "num.partitions", Some("2"))][..], &[bounds[0], (1, "num.partitions", None)]] {
        assert_eq!(client.change_of(4, "1", changes).0, ResponseError::InvalidRequest.code());
    }
    assert_eq!(client.change("t", &bounds).0, ResponseError::UnknownTopicOrPartition.code());
}

#[test]
fn what_is_described_says_what_it_is_for_to_who_asks() {
    let mut client = Client::new();
    client.create("t", 1);
    for (kind, name) in [(2, "t"), (4, "1")] {
        let resource = DescribeConfigsResource::default().with_resource_type(kind).with_resource_name(text(name));
        let resource = resource.with_configuration_keys(None);
        for asks in [true, false] {
            let request = DescribeConfigsRequest::default().with_resources(vec![resource.clone()]);
            let request = request.with_include_documentation(asks);
            let answer: DescribeConfigsResponse = flexible(&client.ask(ApiKey::DescribeConfigs, 4, &request), 4);
            let configs = &answer.results[0].configs;
            assert!(!configs.is_empty());
            for config in configs {
                let words = config.documentation.as_ref().map_or(0, |words| words.len());
                assert_eq!(words > 20, asks, "{}: {:?}", config.name, config.documentation);
            }
        }
    }
}

const GIVEN: [(&str, &str); 5] = [
    ("max.message.bytes", "1000000"),
    ("min.cleanable.dirty.ratio", "0.304"),
    ("min.insync.replicas", "1"),
    ("retention.ms", "604800000"),
    ("segment.bytes", "1073741824"),
];

fn as_set(name: &str, value: &str) -> (String, String, i8) {
    (name.to_owned(), value.to_owned(), TOPIC)
}

#[test]
fn what_was_set_is_described_as_it_was_set_and_everything_else_as_the_default() {
    let mut client = Client::new();
    let (error, said, told) = client.make("t", &GIVEN);
    assert_eq!(error, 0, "{said}");
    let described: Vec<_> = client.describe("t", false);
    let described: Vec<(String, String, i8)> = described
        .into_iter()
        .map(|one| (one.name.to_string(), one.value.unwrap().to_string(), one.config_source))
        .collect();
    assert_eq!(told, described, "who makes it is told the same");
    let set: Vec<_> = described.iter().filter(|(_, _, source)| *source == TOPIC).cloned().collect();
    assert_eq!(set, GIVEN.map(|(name, value)| as_set(name, value)));
    let by_default = |name: &str| described.iter().find(|one| one.0 == name).map(|one| (one.1.as_str(), one.2));
    assert_eq!(by_default("flush.ms"), Some(("9223372036854775807", DEFAULT)));
    assert_eq!(by_default("message.timestamp.after.max.ms"), Some(("9223372036854775807", DEFAULT)));
    assert_eq!(by_default("unclean.leader.election.enable"), Some(("false", DEFAULT)));

    assert_eq!(client.change("t", &[(DELETE, "retention.ms", None), (DELETE, "segment.bytes", None)]).0, 0);
    assert_eq!(client.setting("t", "retention.ms"), ("604800000".to_owned(), DEFAULT));
    assert_eq!(client.setting("t", "segment.bytes"), ("1048576".to_owned(), DEFAULT), "its largest segment");
    assert_eq!(client.change("t", &[(APPEND, "cleanup.policy", Some("compact"))]).0, 0);
    assert_eq!(client.setting("t", "cleanup.policy"), ("delete,compact".to_owned(), TOPIC));
    assert_eq!(client.replace("t", &[("flush.ms", "1000"), ("retention.bytes", "-1")]), 0);
    let all = client.describe("t", false).into_iter().filter(|one| one.config_source == TOPIC);
    let set: Vec<_> = all.map(|one| (one.name.to_string(), one.value.unwrap().to_string())).collect();
    assert_eq!(set, [("flush.ms", "1000"), ("retention.bytes", "-1")].map(|(n, v)| (n.to_owned(), v.to_owned())));
}

#[test]
fn where_a_value_comes_from_is_told_whoever_asks() {
    let mut client = Client::new();
    assert_eq!(client.make("t", &[("segment.ms", "1000")]).0, 0);
    let without = client.describe("t", false);
    assert!(!without.is_empty() && without.iter().all(|one| one.synonyms.is_empty()), "{without:?}");
    let all = client.describe("t", true);
    let of = |name: &str| {
        let one = all.iter().find(|one| &*one.name == name).unwrap();
        let told =
            one.synonyms.iter().map(|of| (of.name.to_string(), of.value.clone().unwrap().to_string(), of.source));
        told.collect::<Vec<_>>()
    };
    let by_default = |name: &str, value: &str| (name.to_owned(), value.to_owned(), DEFAULT);
    assert_eq!(of("segment.ms"), [as_set("segment.ms", "1000"), by_default("log.roll.ms", "604800000")]);
    assert_eq!(of("retention.ms"), [by_default("log.retention.ms", "604800000")]);
    assert_eq!(of("leader.replication.throttled.replicas"), []);
}

#[test]
fn an_option_that_a_native_command_changes_has_the_last_word() {
    let mut client = Client::new();
    assert_eq!(client.make("t", &GIVEN).0, 0);
    let coordinator = client.door.as_ref().unwrap().0.coordinator.clone();
    let changes = StreamChanges { retention_ms: Some(Some(60_000)), ..StreamChanges::default() };
    coordinator.alter_stream(&StreamRef::Name("t".into()), &changes).unwrap();
    assert_eq!(client.setting("t", "retention.ms"), ("60000".to_owned(), TOPIC));
    let changes = StreamChanges { segment_bytes_max: Some(8 << 20), ..StreamChanges::default() };
    coordinator.alter_stream(&StreamRef::Name("t".into()), &changes).unwrap();
    let (value, source) = client.setting("t", "max.message.bytes");
    assert!(value.parse::<u64>().unwrap() > 8_000_000 && source == DEFAULT, "{value}");
    assert_eq!(client.setting("t", "segment.bytes"), ("1073741824".to_owned(), TOPIC), "nobody else speaks of it");
    assert_eq!(client.change("t", &[(SET, "retention.ms", Some("604800000"))]).0, 0);
    assert_eq!(client.setting("t", "retention.ms"), ("604800000".to_owned(), TOPIC));
}

#[test]
fn more_than_is_kept_is_refused_and_changes_nothing() {
    let mut client = Client::new();
    let invalid = ResponseError::InvalidConfig.code();
    let (name, large) = ("leader.replication.throttled.replicas", vec!["0:1"; 2000].join(","));
    let (error, said, _) = client.make("t", &[("retention.ms", "5"), (name, &large)]);
    assert_eq!(error, invalid);
    assert!(said.contains(name) && said.contains("4096 bytes in all"), "{said}");
    assert_eq!(client.make("t", &[("retention.ms", "5")]).0, 0);
    let (error, said) = client.change("t", &[(SET, "retention.ms", Some("6")), (SET, name, Some(&large))]);
    assert_eq!(error, invalid);
    assert!(said.contains(name) && said.contains("4096 bytes in all"), "{said}");
    assert_eq!(client.setting("t", "retention.ms"), ("5".to_owned(), TOPIC));
    assert_eq!(client.make("u", &[("no.such.setting", "1")]).0, invalid);
}

/// A batch whose records have these times.
fn at(first_ms: i64, latest_ms: i64) -> Vec<u8> {
    let mut batch = batch(&[b"a", b"b"], (-1, -1, -1));
    batch[27..35].copy_from_slice(&first_ms.to_be_bytes());
    batch[35..43].copy_from_slice(&latest_ms.to_be_bytes());
    let crc = kera_format::checksum::crc32c(&batch[CHECKED_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

#[test]
fn batches_that_a_setting_does_not_allow_are_refused() {
    const HOUR: i64 = 3_600_000;
    let mut client = Client::new();
    let now_ms = SystemClock::new().now_ms();
    let (far, large) = (ResponseError::InvalidTimestamp.code(), ResponseError::MessageTooLarge.code());
    assert_eq!(client.make("t", &[]).0, 0);
    assert_eq!(client.produce("t", 0, &at(0, now_ms + 100 * HOUR)), (0, 0), "nobody has set a limit");

    let limits = [
        (SET, "message.timestamp.before.max.ms", Some("3600000")),
        (SET, "message.timestamp.after.max.ms", Some("3600000")),
        (SET, "max.message.bytes", Some("90")),
    ];
    assert_eq!(client.change("t", &limits).0, 0);
    assert_eq!(client.produce("t", 0, &at(now_ms, now_ms + 2 * HOUR)), (far, -1));
    assert_eq!(client.produce("t", 0, &at(now_ms - 2 * HOUR, now_ms)), (far, -1));
    assert_eq!(client.produce("t", 0, &at(now_ms - HOUR / 2, now_ms + HOUR / 2)), (0, 2));
    assert_eq!(client.produce("t", 0, &at(-1, -1)), (0, 4), "records without a time");
    assert_eq!(client.produce("t", 0, &batch(&[&[b'x'; 90]], (-1, -1, -1))), (large, -1));

    assert_eq!(client.change("t", &[(SET, "message.timestamp.type", Some("LogAppendTime"))]).0, 0);
    assert_eq!(client.produce("t", 0, &at(0, now_ms + 2 * HOUR)), (0, 6), "the time of append is always now");
    let limits = limits.map(|(_, name, _)| (DELETE, name, None));
    assert_eq!(client.change("t", &limits).0, 0);
    assert_eq!(client.change("t", &[(DELETE, "message.timestamp.type", None)]).0, 0);
    assert_eq!(client.produce("t", 0, &at(0, now_ms + 100 * HOUR)), (0, 8));
    assert_eq!(client.produce("t", 0, &batch(&[&[b'x'; 90]], (-1, -1, -1))).0, 0);
}
