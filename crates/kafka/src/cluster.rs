//! Requests about the cluster: who leads, who votes. Tools and consoles ask; there is little to tell.
//!
//! Answered from memory, on the I/O thread of the connection.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData as QuorumTopic,
};
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use kera_protocol::admin::StreamInfo;

use crate::admin::Refusal;
use crate::door::Door;
use crate::numbering::partitions_of;
use crate::once::once;

/// Kinds of elections: the preferred leader, or whoever is there.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;
/// Kinds of resources that have configurations here.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Kinds that have none here, but may be asked for: loggers of a broker, metrics of clients, groups.
const WITHOUT_CONFIGS: [i8; 3] = [8, 16, 32];
/// What Kafka calls the log of its controllers, the only topic of DescribeQuorum.
const METADATA_TOPIC: &str = "__cluster_metadata";

/// From this version on DescribeQuorum tells where the controllers are.
const VERSION_QUORUM_NODES: i16 = 2;

/// Whether a topic has such a partition.
fn exists(door: &Door, topic: &str, partition: i32) -> bool {
    let partitions = door.info(topic).map_or(0, |info| partitions_of(&info.options));
    u32::try_from(partition).is_ok_and(|partition| partition < partitions)
}

/// ElectLeaders: whoever owns a streamlet leads its partitions and is their preferred leader, so an election is needed only where nobody leads. Then
/// nobody can be made to either: the coordinators give such a streamlet to a live node as soon as one may have it, so the answer is which kind of
/// leader there is not, and the client asks again. Without a list of partitions those that need no election are not told, as in Kafka.
///
/// `heard`: whether this node has heard of all topics that there are, where it does not know one of them.
pub(crate) fn elect_leaders(
    door: &Door,
    asked: ElectLeadersRequest,
    heard: Result<(), Refusal>,
) -> ElectLeadersResponse {
    let missing = match asked.election_type {
        PREFERRED => (ResponseError::PreferredLeaderNotAvailable, "nobody leads the partition at present"),
        UNCLEAN => (ResponseError::EligibleLeadersNotAvailable, "no live node has all that was acknowledged"),
        _ => return no_such_election(asked),
    };
    let live = door.live();
    let is_led = |info: &StreamInfo, partition: i32| live.leader(door.leader_of(info, partition)).0 >= 0;
    let Some(wanted) = asked.topic_partitions else {
        let topics = door.catalog.infos().into_iter().filter_map(|info| {
            let partitions = 0..partitions_of(&info.options).cast_signed();
            let unled = partitions.filter(|partition| !is_led(&info, *partition));
            let results: Vec<_> = unled.map(|partition| not_elected(partition, missing)).collect();
            let topic = TopicName(StrBytes::from_string(info.name.clone()));
            (!results.is_empty()).then(|| of_topic(topic, results))
        });
        return ElectLeadersResponse::default().with_replica_election_results(topics.collect());
    };
    let unknown = match heard {
        Ok(()) => (ResponseError::UnknownTopicOrPartition, "The topic or partition does not exist."),
        Err((error, _)) => (error, "whether there is such a topic the coordinators do not say at present"),
    };
    let topics = wanted.into_iter().map(|one| {
        let info = door.info(&one.topic);
        let partitions = info.as_ref().map_or(0, |info| partitions_of(&info.options));
        let results = one.partitions.iter().map(|partition| match &info {
            Some(info) if u32::try_from(*partition).is_ok_and(|partition| partition < partitions) => {
                let unneeded = (ResponseError::ElectionNotNeeded, "Leader election not needed for topic partition.");
                not_elected(*partition, if is_led(info, *partition) { unneeded } else { missing })
            }
            _ => not_elected(*partition, unknown),
        });
        let results = results.collect();
        of_topic(one.topic, results)
    });
    ElectLeadersResponse::default().with_replica_election_results(topics.collect())
}

fn not_elected(partition: i32, (error, why): (ResponseError, &'static str)) -> PartitionResult {
    PartitionResult::default()
        .with_partition_id(partition)
        .with_error_code(error.code())
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

fn of_topic(topic: TopicName, results: Vec<PartitionResult>) -> ReplicaElectionResult {
    ReplicaElectionResult::default().with_topic(topic).with_partition_result(results)
}

/// There is no such kind of election, which each partition is told, and the request as a whole if there is one.
fn no_such_election(asked: ElectLeadersRequest) -> ElectLeadersResponse {
    let refused =
        (ResponseError::InvalidRequest, "elections are of kind 0, the preferred leader, or 1, any that there is");
    let topics: Option<Vec<_>> = asked.topic_partitions.map(|wanted| {
        let of = |one: elect_leaders_request::TopicPartitions| {
            of_topic(one.topic, one.partitions.iter().map(|partition| not_elected(*partition, refused)).collect())
        };
        wanted.into_iter().map(of).collect()
    });
    // Who asks for no election at all may ask for any kind of it.
    let is_empty = topics.as_ref().is_some_and(Vec::is_empty);
    let error = if is_empty { 0 } else { refused.0.code() };
    ElectLeadersResponse::default().with_error_code(error).with_replica_election_results(topics.unwrap_or_default())
}

/// AlterReplicaLogDirs: all partitions are in the one directory that DescribeLogDirs tells, and stay there.
pub(crate) fn alter_replica_log_dirs(door: &Door, asked: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse {
    let topics = asked.dirs.into_iter().flat_map(|dir| {
        let is_known = *dir.path == *door.config.data_dir;
        dir.topics.into_iter().map(move |topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let error = match (is_known, exists(door, &topic.name, *partition)) {
                    (false, _) => ResponseError::LogDirNotFound.code(),
                    (true, false) => ResponseError::UnknownTopicOrPartition.code(),
                    (true, true) => 0,
                };
                AlterReplicaLogDirPartitionResult::default().with_partition_index(*partition).with_error_code(error)
            });
            let partitions = partitions.collect();
            AlterReplicaLogDirTopicResult::default().with_topic_name(topic.name).with_partitions(partitions)
        })
    });
    AlterReplicaLogDirsResponse::default().with_results(topics.collect())
}

/// DescribeQuorum: the coordinators, who are what Kafka's controllers are; a node that is alone is its own. Their log is not one that Kafka's
/// clients could follow, so its offsets are 0. While nobody is known to lead them clients ask again.
pub(crate) fn describe_quorum(door: &Door, version: i16, asked: DescribeQuorumRequest) -> DescribeQuorumResponse {
    let known = door.coordinators();
    let replicas = |nodes: &[u32]| {
        let replica = |node: &u32| ReplicaState::default().with_replica_id(BrokerId(*node as i32));
        nodes.iter().map(replica).collect::<Vec<_>>()
    };
    let topics = once(asked.topics, |topic| topic.topic_name.clone()).map(|topic| {
        let is_known = &*topic.topic_name.0 == METADATA_TOPIC;
        let partitions = once(&topic.partitions, |partition| partition.partition_index).map(|partition| {
            let answer = PartitionData::default().with_partition_index(partition.partition_index);
            if !is_known || partition.partition_index != 0 {
                return answer.with_error_code(ResponseError::UnknownTopicOrPartition.code());
            }
            let Some(leader) = known.leader else {
                return answer.with_error_code(ResponseError::NotLeaderOrFollower.code());
            };
            answer
                .with_leader_id(BrokerId(leader as i32))
                .with_leader_epoch(i32::try_from(known.term).unwrap_or(i32::MAX))
                .with_current_voters(replicas(&known.voters))
                .with_observers(replicas(&known.observers))
        });
        let partitions = partitions.collect();
        QuorumTopic::default().with_topic_name(topic.topic_name).with_partitions(partitions)
    });
    let votes = |id: i32| known.voters.contains(&id.cast_unsigned());
    let nodes = door.brokers().into_iter().filter(|(id, ..)| votes(*id)).map(|(id, host, port)| {
        let listener = Listener::default()
            .with_name(StrBytes::from_static_str("PLAINTEXT"))
            .with_host(StrBytes::from_string(host))
            .with_port(u16::try_from(port).unwrap_or_default());
        Node::default().with_node_id(BrokerId(id)).with_listeners(vec![listener])
    });
    let topics: Vec<QuorumTopic> = topics.collect();
    // Where the controllers are is told with what they know of a partition, as in Kafka.
    let mut partitions = topics.iter().flat_map(|topic| &topic.partitions).peekable();
    let is_told = partitions.peek().is_some() && partitions.all(|partition| partition.error_code == 0);
    let answer = DescribeQuorumResponse::default().with_topics(topics);
    if version < VERSION_QUORUM_NODES || !is_told { answer } else { answer.with_nodes(nodes.collect()) }
}

/// ListConfigResources: topics, and the node. Version 0 asks for metrics of clients only, and there are none.
pub(crate) fn list_config_resources(
    door: &Door,
    version: i16,
    asked: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    if version == 0 {
        return ListConfigResourcesResponse::default();
    }
    let is_known = |kind: &i8| [TOPIC, BROKER].contains(kind) || WITHOUT_CONFIGS.contains(kind);
    if !asked.resource_types.iter().all(is_known) {
        return ListConfigResourcesResponse::default().with_error_code(ResponseError::UnsupportedVersion.code());
    }
    let wants = |kind| asked.resource_types.is_empty() || asked.resource_types.contains(&kind);
    let resource = |kind, name| ConfigResource::default().with_resource_type(kind).with_resource_name(name);
    let mut resources = Vec::new();
    if wants(TOPIC) {
        let topics = door.catalog.infos().into_iter();
        resources.extend(topics.map(|info| resource(TOPIC, StrBytes::from_string(info.name))));
    }
    if wants(BROKER) {
        resources.push(resource(BROKER, StrBytes::from_string(door.node_id().to_string())));
    }
    ListConfigResourcesResponse::default().with_config_resources(resources)
}
