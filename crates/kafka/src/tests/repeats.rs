//! Requests that name something again and again: it is answered once, or refused, and never as often as it is named.

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};

use super::transactions::{World, text, topic};
use super::*;

const TIMES: usize = 3;

fn repeated<T: Clone>(of: &[T]) -> Vec<T> {
    (0..TIMES).flat_map(|_| of.to_vec()).collect()
}

#[test]
fn topics_and_their_settings_are_told_once() {
    let mut world = World::new();
    let names: Vec<_> =
        ["u", "t", "none"].map(|name| MetadataRequestTopic::default().with_name(Some(topic(name)))).to_vec();
    let asked = MetadataRequest::default().with_topics(Some(repeated(&names))).with_allow_auto_topic_creation(false);
    let told = world.call(12, &asked).topics;
    let id = told[0].topic_id;
    assert_eq!(told.iter().map(|one| one.name.as_ref().unwrap().to_string()).collect::<Vec<_>>(), ["u", "t", "none"]);
    let by_id = MetadataRequestTopic::default().with_topic_id(id);
    let asked = MetadataRequest::default().with_topics(Some(repeated(&[by_id])));
    assert_eq!(world.call(12, &asked).topics.len(), 1);

    let resource = |kind, name| {
        let resource = DescribeConfigsResource::default().with_resource_type(kind).with_resource_name(text(name));
        resource.with_configuration_keys(None)
    };
    let resources = repeated(&[resource(2, "t"), resource(4, "1"), resource(2, "none"), resource(2, "1")]);
    let told = world.call(4, &DescribeConfigsRequest::default().with_resources(resources)).results;
    let told: Vec<_> = told.iter().map(|one| (one.resource_type, one.resource_name.to_string())).collect();
    let of = |kind, name: &str| (kind, name.to_owned());
    assert_eq!(told, [of(2, "t"), of(4, "1"), of(2, "none"), of(2, "1")]);
}

#[test]
fn a_node_tells_of_its_own_settings() {
    let mut world = World::new();
    let me = world.running().door.node_id();
    let of = |name: String| {
        let resource = DescribeConfigsResource::default().with_resource_type(4).with_resource_name(text(&name));
        resource.with_configuration_keys(None)
    };
    let names = [me.to_string(), String::new(), format!("0{me}"), (me + 1).to_string(), "x".to_owned()];
    let asked = DescribeConfigsRequest::default().with_resources(names.map(of).to_vec());
    let told = world.call(4, &asked).results;
    let told: Vec<_> = told.iter().map(|one| (one.error_code, one.configs.is_empty())).collect();
    let refused = (ResponseError::InvalidRequest.code(), true);
    assert_eq!(told, [(0, false), (0, false), refused, refused, refused]);
}

#[test]
fn ends_of_epochs_are_told_once() {
    let mut world = World::new();
    let of = |at| offset_for_leader_epoch_request::OffsetForLeaderPartition::default().with_partition(at);
    let one = offset_for_leader_epoch_request::OffsetForLeaderTopic::default().with_topic(topic("t"));
    let topics = repeated(&[one.clone().with_partitions(repeated(&[of(1)])), one.with_partitions(vec![of(1), of(0)])]);
    let told = world.call(4, &OffsetForLeaderEpochRequest::default().with_topics(topics)).topics;
    let told: Vec<_> = told.iter().flat_map(|topic| &topic.partitions).map(|one| one.partition).collect();
    assert_eq!(told, [1, 0]);
}

#[test]
fn groups_are_told_once() {
    let mut world = World::new();
    let groups = repeated(&["a", "b"].map(|name| GroupId(text(name))));
    let told = world.call(5, &DescribeGroupsRequest::default().with_groups(groups.clone())).groups;
    assert_eq!(told.iter().map(|one| one.group_id.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    let told = world.call(1, &ConsumerGroupDescribeRequest::default().with_group_ids(groups.clone())).groups;
    assert_eq!(told.iter().map(|one| one.group_id.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    let told = world.call(2, &DeleteGroupsRequest::default().with_groups_names(groups)).results;
    assert_eq!(told.iter().map(|one| one.group_id.to_string()).collect::<Vec<_>>(), ["a", "b"]);

    // Of a group that is there and of one that is not.
    let of = offset_commit_request::OffsetCommitRequestPartition::default().with_committed_offset(1);
    let of = offset_commit_request::OffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![of]);
    let commit = OffsetCommitRequest::default().with_group_id(GroupId(text("a"))).with_topics(vec![of]);
    assert_eq!(world.call(2, &commit.with_generation_id_or_member_epoch(-1)).topics[0].partitions[0].error_code, 0);
    let one = OffsetFetchRequestTopics::default().with_name(topic("t"));
    let topics = repeated(&[one.with_partition_indexes(repeated(&[1, 0]))]);
    let of = |name| OffsetFetchRequestGroup::default().with_group_id(GroupId(text(name)));
    let groups = ["a", "b"].map(|name| of(name).with_topics(Some(topics.clone()))).to_vec();
    // Offsets are told as often as they are asked for, as by Kafka; each counts.
    for group in world.call(8, &OffsetFetchRequest::default().with_groups(groups)).groups {
        let told = group.topics.iter().map(|topic| topic.partitions.iter().map(|one| one.partition_index).collect());
        assert_eq!(told.collect::<Vec<Vec<i32>>>(), [[1, 0].repeat(TIMES * TIMES)], "{:?}", group.group_id);
    }
}

#[test]
fn what_writes_to_partitions_is_told_once() {
    let mut world = World::new();
    let one = describe_producers_request::TopicRequest::default().with_name(topic("t"));
    let topics = repeated(&[one.with_partition_indexes(repeated(&[1, 0]))]);
    let told = world.call(0, &DescribeProducersRequest::default().with_topics(topics)).topics;
    let told = told.iter().map(|topic| topic.partitions.iter().map(|one| one.partition_index).collect());
    assert_eq!(told.collect::<Vec<Vec<i32>>>(), [[1, 0]]);
    let ids = repeated(&["a", "b"].map(|id| TransactionalId(text(id))));
    let asked = DescribeTransactionsRequest::default().with_transactional_ids(ids);
    let told = world.call(0, &asked).transaction_states;
    assert_eq!(told.iter().map(|one| one.transactional_id.to_string()).collect::<Vec<_>>(), ["a", "b"]);
    let cluster = describe_quorum_request::TopicData::default().with_topic_name(topic("__cluster_metadata"));
    let topics = repeated(&[cluster.with_partitions(repeated(&[Default::default()]))]);
    let told = world.call(2, &DescribeQuorumRequest::default().with_topics(topics)).topics;
    assert_eq!(told.iter().map(|topic| topic.partitions.len()).collect::<Vec<_>>(), [1]);
}

#[test]
fn who_names_too_many_transactional_ids_is_told_so_of_each() {
    const WITHIN: usize = 10_000;
    let mut world = World::new();
    let ids: Vec<_> = (0..WITHIN + 2).map(|at| TransactionalId(text(&at.to_string()))).collect();
    let asked = DescribeTransactionsRequest::default().with_transactional_ids(ids.clone());
    let told = world.call(0, &asked).transaction_states;
    assert_eq!(told.iter().map(|one| one.transactional_id.clone()).collect::<Vec<_>>(), ids);
    let refused = ResponseError::InvalidRequest.code();
    assert!(told.iter().enumerate().all(|(at, one)| (one.error_code == refused) == (at >= WITHIN)));
}

/// As Kafka does it.
#[test]
fn offsets_of_a_partition_that_is_named_twice_are_refused() {
    let mut world = World::new();
    world.plain("t", 0);
    let of = |partitions| ListOffsetsTopic::default().with_name(topic("t")).with_partitions(partitions);
    let (one, two) = (ListOffsetsPartition::default(), ListOffsetsPartition::default().with_partition_index(1));
    let topics = vec![of(vec![one.clone(), two.with_timestamp(-1)]), of(vec![one.with_timestamp(-1)])];
    let told = world.call(7, &ListOffsetsRequest::default().with_topics(topics)).topics;
    let told: Vec<_> =
        told.iter().flat_map(|topic| &topic.partitions).map(|one| (one.error_code, one.offset)).collect();
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(told, [(invalid, -1), (0, 0), (invalid, -1)]);
}
