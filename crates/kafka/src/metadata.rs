//! Metadata: which topics there are, with which partitions, and where. A node that is alone leads them all, in a cluster the owner of
//! its streamlet leads a partition, in the owner's epoch, and the nodes that have copies of its logs are replicas: as many as the partition has now,
//! also while its topic gets another number. Nodes that are lost are told as replicas that are offline, and otherwise not.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, MetadataRequest, MetadataResponse,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_format::StreamOptions;
use kera_format::limits::name_is_valid;
use kera_protocol::admin::StreamInfo;
use uuid::Uuid;

use crate::access::{CLUSTER_OPERATIONS, TOPIC_OPERATIONS, told_if};
use crate::copies::{Copies, Known};
use crate::door::{Door, Live, may_be_topic};
use crate::numbering::partitions_of;
use crate::once::once;

/// From this version on a topic that is named by its id need not have a name in the answer.
const VERSION_NO_NAME: i16 = 12;
/// Partitions in one answer to DescribeTopicPartitions, whatever the client allows: as in Kafka.
const DESCRIBED_MAX: usize = 2000;

/// The topics that are asked for: none, or in version 0 an empty list, means all.
fn names_all(version: i16, asked: &MetadataRequest) -> bool {
    asked.topics.as_ref().is_none_or(|topics| version == 0 && topics.is_empty())
}

/// The names that are asked for, are not there, and could be made.
fn missing<'a>(door: &'a Door, asked: &'a MetadataRequest) -> impl Iterator<Item = &'a str> {
    let named = asked.topics.iter().flatten().filter_map(|topic| topic.name.as_ref()).map(|name| &***name);
    once(named.filter(|name| may_be_topic(name) && door.info(name).is_none()), |name| *name)
}

/// Whether answering makes a topic.
pub(crate) fn creates(door: &Door, version: i16, asked: &MetadataRequest) -> bool {
    let wanted = door.config.auto_create && (version < 4 || asked.allow_auto_topic_creation);
    wanted && missing(door, asked).next().is_some()
}

/// Makes the topics that are asked for and not there. Waits for the disk, or the coordinators; for these once, not for each name, if nobody
/// leads them.
pub(crate) fn create(door: &Door, asked: &MetadataRequest) {
    let (streamlets, replication) = (door.config.partitions_default, crate::admin::copies_default(door));
    let options = StreamOptions { streamlets, replication, ..StreamOptions::default() };
    for name in missing(door, asked) {
        // Somebody else may have been quicker; what is there in the end is told.
        if let Err((error, why)) = crate::admin::create_topic(door, name, options.clone(), false) {
            tracing::debug!(topic = name, ?error, why, "a topic was not made on request");
            if matches!(error, ResponseError::NotController | ResponseError::RequestTimedOut) {
                break;
            }
        }
    }
}

/// The answer.
pub(crate) fn answer(door: &Door, version: i16, asked: MetadataRequest) -> MetadataResponse {
    let live = door.live();
    let mut brokers = door.brokers();
    brokers.retain(|(id, ..)| live.has(*id));
    let controller = door.controller_id(&brokers);
    let brokers = brokers.into_iter().map(|(id, host, port)| {
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(id));
        broker.with_host(StrBytes::from_string(host)).with_port(port)
    });
    let (tells_topics, tells_cluster) =
        (asked.include_topic_authorized_operations, asked.include_cluster_authorized_operations);
    let mut known = Known::default();
    let mut topics: Vec<MetadataResponseTopic> = if names_all(version, &asked) {
        door.catalog.infos().iter().map(|info| topic(door, &live, info, &mut known)).collect()
    } else {
        let named = once(asked.topics.unwrap_or_default(), |wanted| (wanted.name.clone(), wanted.topic_id));
        named.map(|wanted| asked_for(door, &live, version, (wanted.name, wanted.topic_id), &mut known)).collect()
    };
    // Of a name that is not there, too, as Kafka does; of an id that is not there nothing can be told.
    let has_name = |topic: &&mut MetadataResponseTopic| topic.error_code != ResponseError::UnknownTopicId.code();
    for topic in topics.iter_mut().filter(|topic| tells_topics && has_name(topic)) {
        topic.topic_authorized_operations = TOPIC_OPERATIONS;
    }
    MetadataResponse::default()
        .with_cluster_authorized_operations(told_if(tells_cluster, CLUSTER_OPERATIONS))
        .with_brokers(brokers.collect())
        .with_cluster_id(Some(StrBytes::from_string(door.cluster_id())))
        .with_controller_id(BrokerId(controller))
        .with_topics(topics)
}

fn asked_for(
    door: &Door,
    live: &Live,
    version: i16,
    (name, id): (Option<TopicName>, Uuid),
    known: &mut Known,
) -> MetadataResponseTopic {
    let refuse = |error: ResponseError| MetadataResponseTopic::default().with_error_code(error.code());
    match name {
        Some(name) => match door.info(&name) {
            Some(info) => topic(door, live, &info, known),
            None if name_is_valid(&name) => refuse(not_there(door)).with_name(Some(name)),
            None => refuse(ResponseError::InvalidTopicException).with_name(Some(name)),
        },
        None => match door.info_of(id) {
            Some(info) => topic(door, live, &info, known),
            None => {
                let name = (version < VERSION_NO_NAME).then(TopicName::default);
                refuse(ResponseError::UnknownTopicId).with_topic_id(id).with_name(name)
            }
        },
    }
}

/// What is told of a name that no topic has, for all that the node knows. One that has not heard from the coordinators for so long that it does not serve its partitions may not
/// have heard of the topic: clients that are told that there is none give up what they have for it, also of one that they know. So they are told what has them ask again, another
/// node too.
fn not_there(door: &Door) -> ResponseError {
    match door.broker.is_confirmed() {
        true => ResponseError::UnknownTopicOrPartition,
        false => ResponseError::LeaderNotAvailable,
    }
}

fn topic(door: &Door, live: &Live, info: &StreamInfo, known: &mut Known) -> MetadataResponseTopic {
    let mut copies = Copies::with(door, info, std::mem::take(known));
    let partitions = (0..partitions_of(&info.options) as i32).map(|index| {
        let owner = door.leader_of(info, index);
        let (leader, epoch) = live.leader(owner);
        let error = if leader < 0 { ResponseError::LeaderNotAvailable.code() } else { 0 };
        let (replicas, in_sync) = copies.replicas(index, owner.0);
        MetadataResponsePartition::default()
            .with_error_code(error)
            .with_partition_index(index)
            .with_leader_id(BrokerId(leader))
            .with_leader_epoch(epoch)
            .with_offline_replicas(live.without(&replicas))
            .with_replica_nodes(replicas)
            .with_isr_nodes(live.of(&in_sync))
    });
    let partitions = partitions.collect();
    *known = copies.known();
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(info.name.clone()))))
        .with_topic_id(door.topic_id(info.id))
        .with_partitions(partitions)
}

/// DescribeTopicPartitions (KIP-966): topics in the order of their names, from the cursor on, a bounded number of partitions.
pub(crate) fn describe_partitions(
    door: &Door,
    asked: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let (after, first) = asked.cursor.map_or((String::new(), 0), |at| (at.topic_name.to_string(), at.partition_index));
    let limit = usize::try_from(asked.response_partition_limit).map_or(DESCRIBED_MAX, |most| most.min(DESCRIBED_MAX));
    let mut names: Vec<String> = if asked.topics.is_empty() {
        door.catalog.infos().into_iter().map(|info| info.name).collect()
    } else {
        asked.topics.iter().map(|topic| topic.name.to_string()).collect()
    };
    names.sort_unstable();
    names.dedup();
    names.retain(|name| *name >= after);
    let mut answer = DescribeTopicPartitionsResponse::default();
    let (mut left, live, mut known) = (limit.max(1), door.live(), Known::default());
    for name in names {
        let wire_name = TopicName(StrBytes::from_string(name.clone()));
        let from = if name == after { first.max(0) } else { 0 };
        if left == 0 {
            let cursor = Cursor::default().with_topic_name(wire_name).with_partition_index(from);
            return answer.with_next_cursor(Some(cursor));
        }
        let Some(info) = door.info(&name) else {
            let error = if name_is_valid(&name) { not_there(door) } else { ResponseError::InvalidTopicException };
            let topic = DescribeTopicPartitionsResponseTopic::default().with_name(Some(wire_name));
            let topic = topic.with_topic_authorized_operations(TOPIC_OPERATIONS);
            answer.topics.push(topic.with_error_code(error.code()));
            continue;
        };
        let partitions = partitions_of(&info.options) as i32;
        let until = partitions.min(from.saturating_add(left as i32));
        let mut copies = Copies::with(door, &info, known);
        let described = (from..until).map(|index| {
            let owner = door.leader_of(&info, index);
            let (leader, epoch) = live.leader(owner);
            let (replicas, in_sync) = copies.replicas(index, owner.0);
            DescribeTopicPartitionsResponsePartition::default()
                .with_partition_index(index)
                .with_leader_id(BrokerId(leader))
                .with_leader_epoch(epoch)
                .with_offline_replicas(live.without(&replicas))
                .with_replica_nodes(replicas)
                .with_isr_nodes(live.of(&in_sync))
                // Java's client takes them for lists.
                .with_eligible_leader_replicas(Some(Vec::new()))
                .with_last_known_elr(Some(Vec::new()))
        });
        let described: Vec<_> = described.collect();
        known = copies.known();
        left -= described.len();
        let topic = DescribeTopicPartitionsResponseTopic::default()
            .with_name(Some(wire_name.clone()))
            .with_topic_id(door.topic_id(info.id))
            .with_topic_authorized_operations(TOPIC_OPERATIONS)
            .with_partitions(described);
        answer.topics.push(topic);
        if until < partitions {
            return answer
                .with_next_cursor(Some(Cursor::default().with_topic_name(wire_name).with_partition_index(until)));
        }
    }
    answer
}
