//! What a cluster of one node tells.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;

use super::partitions::flexible;
use super::*;

fn name(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

#[test]
fn nothing_is_elected_and_nothing_moves() {
    let mut client = Client::new();
    client.create("t", 2);
    let wanted =
        ["t", "nowhere"].map(|topic| TopicPartitions::default().with_topic(name(topic)).with_partitions(vec![1]));
    let asked = ElectLeadersRequest::default().with_topic_partitions(Some(wanted.to_vec()));
    let answer: ElectLeadersResponse = flexible(&client.ask(ApiKey::ElectLeaders, 2, &asked), 2);
    let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
    let codes: Vec<i16> = results.map(|one| one.error_code).collect();
    assert_eq!(codes, [ResponseError::ElectionNotNeeded.code(), ResponseError::UnknownTopicOrPartition.code()]);

    // Of a kind that there is not, each partition is told so, and nobody if there is none.
    for (topics, code) in [(wanted.to_vec(), ResponseError::InvalidRequest.code()), (Vec::new(), 0)] {
        let count = topics.len();
        let asked = ElectLeadersRequest::default().with_election_type(2).with_topic_partitions(Some(topics));
        let answer: ElectLeadersResponse = flexible(&client.ask(ApiKey::ElectLeaders, 2, &asked), 2);
        let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
        assert_eq!(answer.error_code, code);
        assert_eq!(results.map(|one| one.error_code).collect::<Vec<_>>(), vec![code; count]);
    }

    let to = |index, nodes: Option<&[i32]>| {
        let replicas = nodes.map(|nodes| nodes.iter().copied().map(BrokerId).collect());
        ReassignablePartition::default().with_partition_index(index).with_replicas(replicas)
    };
    let partitions = vec![to(0, Some(&[1])), to(1, Some(&[1, 2])), to(1, None), to(2, Some(&[1]))];
    let topic = ReassignableTopic::default().with_name(name("t")).with_partitions(partitions);
    let asked = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
    let answer = client.ask(ApiKey::AlterPartitionReassignments, 1, &asked);
    let answer: AlterPartitionReassignmentsResponse = flexible(&answer, 1);
    let codes: Vec<i16> = answer.responses[0].partitions.iter().map(|one| one.error_code).collect();
    let refused = [
        ResponseError::InvalidReplicaAssignment,
        ResponseError::NoReassignmentInProgress,
        ResponseError::UnknownTopicOrPartition,
    ];
    assert_eq!((codes[0], &codes[1..]), (0, &refused.map(|error| error.code())[..]));
    let answer = client.ask(ApiKey::ListPartitionReassignments, 0, &ListPartitionReassignmentsRequest::default());
    let answer: ListPartitionReassignmentsResponse = flexible(&answer, 0);
    assert_eq!((answer.error_code, answer.topics.len()), (0, 0));
}

/// As Kafka has it: of a name it is told what could be done, whether or not the topic is there, of an id that nobody has nothing is.
#[test]
fn operations_are_told_of_topics_that_are_not_there_and_not_of_unknown_ids() {
    let mut client = Client::new();
    client.create("t", 1);
    let names = ["t", "nowhere", "bad name"].map(|topic| MetadataRequestTopic::default().with_name(Some(name(topic))));
    let id = MetadataRequestTopic::default().with_topic_id(uuid::Uuid::from_u128(77)).with_name(None);
    let wanted: Vec<_> = names.into_iter().chain([id]).collect();
    for tells in [true, false] {
        let asked = MetadataRequest::default()
            .with_topics(Some(wanted.clone()))
            .with_allow_auto_topic_creation(false)
            .with_include_topic_authorized_operations(tells);
        let answer: MetadataResponse = flexible(&client.ask(ApiKey::Metadata, 12, &asked), 12);
        let told: Vec<(i16, bool)> = answer
            .topics
            .iter()
            .map(|topic| (topic.error_code, topic.topic_authorized_operations != i32::MIN))
            .collect();
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        let codes = [0, unknown, ResponseError::InvalidTopicException.code(), ResponseError::UnknownTopicId.code()];
        let are_told = [tells, tells, tells, false];
        assert_eq!(told, codes.into_iter().zip(are_told).collect::<Vec<_>>());
    }
}

#[test]
fn partitions_stay_in_their_directory() {
    let mut client = Client::new();
    client.create("t", 1);
    let dirs = ["data", "/elsewhere"].map(|path| {
        let topic = AlterReplicaLogDirTopic::default().with_name(name("t")).with_partitions(vec![0, 1]);
        AlterReplicaLogDir::default().with_path(StrBytes::from_static_str(path)).with_topics(vec![topic])
    });
    let asked = AlterReplicaLogDirsRequest::default().with_dirs(dirs.to_vec());
    let answer: AlterReplicaLogDirsResponse = flexible(&client.ask(ApiKey::AlterReplicaLogDirs, 2, &asked), 2);
    let codes: Vec<i16> = answer.results.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code).collect();
    let (unknown, no_dir) = (ResponseError::UnknownTopicOrPartition.code(), ResponseError::LogDirNotFound.code());
    assert_eq!(codes, [0, unknown, no_dir, no_dir]);
}

#[test]
fn the_node_is_its_own_quorum_and_has_configurations() {
    use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
    let mut client = Client::new();
    client.create("t", 1);
    let topics = ["__cluster_metadata", "t"]
        .map(|topic| TopicData::default().with_topic_name(name(topic)).with_partitions(vec![PartitionData::default()]));
    let asked = DescribeQuorumRequest::default().with_topics(topics.to_vec());
    let answer: DescribeQuorumResponse = flexible(&client.ask(ApiKey::DescribeQuorum, 2, &asked), 2);
    let [known, other] = [0, 1].map(|at| &answer.topics[at].partitions[0]);
    assert_eq!((known.error_code, known.leader_id, known.current_voters.len()), (0, BrokerId(1), 1));
    assert_eq!(other.error_code, ResponseError::UnknownTopicOrPartition.code());
    assert_eq!(answer.nodes.len(), 0, "where the controllers are is told with what they know");
    let asked = DescribeQuorumRequest::default().with_topics(topics[..1].to_vec());
    let answer: DescribeQuorumResponse = flexible(&client.ask(ApiKey::DescribeQuorum, 2, &asked), 2);
    assert_eq!(answer.nodes.len(), 1);
    for (kinds, wanted) in [(vec![], vec![(2, "t"), (4, "1")]), (vec![4], vec![(4, "1")]), (vec![32], vec![])] {
        let asked = ListConfigResourcesRequest::default().with_resource_types(kinds);
        let answer: ListConfigResourcesResponse = flexible(&client.ask(ApiKey::ListConfigResources, 1, &asked), 1);
        let told: Vec<(i8, &str)> =
            answer.config_resources.iter().map(|one| (one.resource_type, &*one.resource_name)).collect();
        assert_eq!((answer.error_code, told), (0, wanted));
    }
    let asked = ListConfigResourcesRequest::default().with_resource_types(vec![99]);
    let answer: ListConfigResourcesResponse = flexible(&client.ask(ApiKey::ListConfigResources, 1, &asked), 1);
    assert_eq!(answer.error_code, ResponseError::UnsupportedVersion.code());
}
