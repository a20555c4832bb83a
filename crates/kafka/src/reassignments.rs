//! AlterPartitionReassignments and ListPartitionReassignments: partitions that move, and those that are to.
//!
//! In a cluster a partition moves with its streamlet, and no data is copied for it: the first of the replicas that a tool names is the node that is to lead, the others are
//! where the copies of what that node owns are. Which these are is the coordinators' business, for virtual logs have copies and partitions have none of
//! their own. So a reassignment is taken if it names just them, and refused with their numbers otherwise: what a tool has been told stays true.
//!
//! On the commands thread, for the leader of the coordinators is asked.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::CoordinatorError;
use kera_format::StreamletId;
use kera_protocol::admin::StreamInfo;
use kera_protocol::{DescribeMoves, MoveStreamlet, StreamRef};

use crate::admin::{Refusal, refusal, told};
use crate::door::{Door, partitions_of};

pub(crate) fn alter(door: &Door, asked: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse {
    let topics = asked.topics.into_iter().map(|topic| {
        let info = door.info(&topic.name);
        let partitions = topic.partitions.iter().map(|partition| {
            let (error, why) = told(reassign(door, info.as_ref(), partition));
            ReassignablePartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error)
                .with_error_message(why)
        });
        let partitions = partitions.collect();
        ReassignableTopicResponse::default().with_name(topic.name).with_partitions(partitions)
    });
    let answer = AlterPartitionReassignmentsResponse::default().with_responses(topics.collect());
    answer.with_allow_replication_factor_change(asked.allow_replication_factor_change).with_error_message(None)
}

/// Has a partition go where it is wanted, if it can be there.
fn reassign(door: &Door, info: Option<&StreamInfo>, partition: &ReassignablePartition) -> Result<(), Refusal> {
    let index = u32::try_from(partition.partition_index).unwrap_or(u32::MAX);
    let Some(info) = info.filter(|info| index < partitions_of(&info.options)) else {
        return Err((ResponseError::UnknownTopicOrPartition, "there is no such partition".to_owned()));
    };
    let Some(wanted) = &partition.replicas else {
        let why = "nothing is being moved that could be called off: a move takes some milliseconds";
        return Err((ResponseError::NoReassignmentInProgress, why.to_owned()));
    };
    let to = check(door, info, wanted)?;
    if !door.is_in_cluster() || door.leader_of(info, partition.partition_index).0 == to.0 {
        return Ok(());
    }
    let streamlet = StreamletId(index / info.options.lanes.max(1));
    let message = MoveStreamlet { stream: StreamRef::Id(info.id), streamlet, to: to.0.cast_unsigned() };
    match door.coordinator.move_streamlet(&message) {
        Ok(_) => Ok(()),
        // The node is lost or drained, or the streamlet is being rebuilt or moves already.
        Err(error @ (CoordinatorError::Refused(_) | CoordinatorError::Leader { .. })) => {
            Err((ResponseError::InvalidReplicaAssignment, error.to_string()))
        }
        Err(error) => Err(refusal(&error)),
    }
}

/// The nodes that serve Kafka clients.
fn nodes(door: &Door) -> Vec<i32> {
    door.brokers().into_iter().map(|(id, ..)| id).collect()
}

fn not_there(node: &dyn std::fmt::Display, nodes: &[i32]) -> String {
    format!("node {node} serves no Kafka clients or is not there; nodes that do are {nodes:?}")
}

/// The node that is to lead, if the others are where the copies of what it owns are.
fn check(door: &Door, info: &StreamInfo, wanted: &[BrokerId]) -> Result<BrokerId, Refusal> {
    let refuse = |why: String| Err((ResponseError::InvalidReplicaAssignment, why));
    let Some(leader) = wanted.first().copied() else {
        return refuse("no node is named that is to have the partition".to_owned());
    };
    let nodes = nodes(door);
    if let Some(unknown) = wanted.iter().find(|node| !nodes.contains(&node.0)) {
        return refuse(not_there(&unknown.0, &nodes));
    }
    if wanted.iter().enumerate().any(|(at, node)| wanted[..at].contains(node)) {
        return refuse("a node is named twice".to_owned());
    }
    if door.is_in_cluster() && info.options.lanes > 1 {
        let (partitions, name) = (info.options.lanes, &info.name);
        return refuse(format!("{partitions} partitions of {name} move together: `kera streamlet move` moves them"));
    }
    let copies = if door.is_in_cluster() { info.options.replication } else { 1 };
    if wanted.len() != copies as usize {
        let why = format!("{} nodes are named; the topic has {copies} copies, and that does not change", wanted.len());
        return Err((ResponseError::InvalidReplicationFactor, why));
    }
    let (has, _) = door.copies_of(leader.0, copies);
    let sorted = |all: &[BrokerId]| {
        let mut all: Vec<i32> = all.iter().map(|node| node.0).collect();
        all.sort_unstable();
        all
    };
    if sorted(&has) != sorted(wanted) {
        let at: Vec<i32> = has.iter().map(|node| node.0).collect();
        return refuse(format!(
            "the copies of what node {} leads are at {at:?}: name these, in any order behind it",
            leader.0
        ));
    }
    Ok(leader)
}

/// Whether settings of a node are those by which tools bound what their reassignments copy.
pub(crate) fn are_limits<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    const LIMITS: [&str; 3] = [
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ];
    names.all(|name| LIMITS.contains(&name))
}

/// A tool bounds what a reassignment copies at a node, or takes that back when it is over. Nothing is copied: any bound is kept, and none has to be.
pub(crate) fn limit(door: &Door, node: &str) -> Result<(), Refusal> {
    let nodes = nodes(door);
    match node.parse::<i32>() {
        Ok(id) if nodes.contains(&id) => Ok(()),
        _ if node.is_empty() => Ok(()),
        _ => Err((ResponseError::InvalidRequest, not_there(&node, &nodes))),
    }
}

/// What moves just now: the node that a partition leaves is one of its replicas until it is gone there.
pub(crate) fn list(door: &Door, asked: &ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse {
    let answer = ListPartitionReassignmentsResponse::default().with_error_message(None);
    if !door.is_in_cluster() {
        return answer;
    }
    // As many as a page of others has.
    let moves = match door.coordinator.moves(&DescribeMoves { limit: 0 }) {
        Ok(described) => described.moves,
        Err(error) => {
            let (error, why) = refusal(&error);
            return answer.with_error_code(error.code()).with_error_message(Some(StrBytes::from_string(why)));
        }
    };
    let mut topics: Vec<OngoingTopicReassignment> = Vec::new();
    for one in moves {
        let Some(info) = door.info_of(door.topic_id(one.stream)) else { continue };
        let name = TopicName(StrBytes::from_string(info.name.clone()));
        let is_asked = |partition: i32| match &asked.topics {
            Some(wanted) => {
                wanted.iter().any(|topic| topic.name == name && topic.partition_indexes.contains(&partition))
            }
            None => true,
        };
        let lanes = info.options.lanes.max(1);
        let (to, _) = door.copies_of(one.to as i32, info.options.replication);
        let (from, node) = (BrokerId(one.from as i32), BrokerId(one.to as i32));
        let replicas: Vec<BrokerId> = to.iter().copied().chain((!to.contains(&from)).then_some(from)).collect();
        let of = |partition: i32| {
            OngoingPartitionReassignment::default()
                .with_partition_index(partition)
                .with_replicas(replicas.clone())
                .with_adding_replicas(if one.from == one.to { Vec::new() } else { vec![node] })
                .with_removing_replicas(if to.contains(&from) { Vec::new() } else { vec![from] })
        };
        let first = (one.streamlet.0 * lanes).cast_signed();
        let partitions: Vec<_> = (first..first + lanes.cast_signed()).filter(|at| is_asked(*at)).map(of).collect();
        if partitions.is_empty() {
            continue;
        }
        match topics.iter_mut().find(|topic| topic.name == name) {
            Some(topic) => topic.partitions.extend(partitions),
            None => topics.push(OngoingTopicReassignment::default().with_name(name).with_partitions(partitions)),
        }
    }
    answer.with_topics(topics)
}
