//! AlterPartitionReassignments and ListPartitionReassignments: partitions that move or get another number of copies, and those that are to.
//!
//! In a cluster a partition moves with its streamlet, and no data is copied for it: the first of the replicas that a tool names is the node that is to lead, the others are
//! where the copies of what that node owns are. Which these are is the coordinators' business, for virtual logs have copies and partitions have none of
//! their own. So a reassignment is taken if it names just them, and refused with their numbers otherwise: what a tool has been told stays true.
//!
//! Partitions that share a streamlet, lanes of it, move together: all of them have to be named then, with one first replica.
//!
//! With another number of nodes for each partition a topic gets as many copies. The number is the whole topic's, so all partitions have to be named. Where its copies will
//! be nobody knows before they are made: of the others only their number counts then, and while that goes on.
//!
//! On the commands thread, for the leader of the coordinators is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
use kera_format::{LaneId, level};
use kera_protocol::admin::{StreamChanges, StreamInfo};
use kera_protocol::{DescribeMoves, MoveInfo, StreamRef};

use crate::admin::{Refusal, Unled, refusal, to_change, told};
use crate::assignments::{self, Leads, as_assignment};
use crate::copies::Copies;
use crate::door::Door;
use crate::numbering::{has, partition_at, partitions_of};

pub(crate) fn alter(door: &Door, asked: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse {
    let may_change = asked.allow_replication_factor_change;
    let (mut leads, mut unled, since) = (Leads::new(door), Unled::default(), door.hears.begun());
    let topics = asked.topics.into_iter().map(|topic| {
        let has_all = |info: &StreamInfo| topic.partitions.iter().all(|of| has(&info.options, of.partition_index));
        let done = match unled.or(|| to_change(door, since, &topic.name, has_all)) {
            Ok(info) => Reassigning::of(door, &info, may_change).run(&mut leads, &topic.partitions),
            Err(refused) => vec![Err(refused); topic.partitions.len()],
        };
        let partitions = topic.partitions.iter().zip(done).map(|(partition, done)| {
            let (error, why) = told(done);
            ReassignablePartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error)
                .with_error_message(why)
        });
        let partitions = partitions.collect();
        ReassignableTopicResponse::default().with_name(topic.name).with_partitions(partitions)
    });
    let answer = AlterPartitionReassignmentsResponse::default().with_responses(topics.collect());
    answer.with_allow_replication_factor_change(may_change).with_error_message(None)
}

fn no_partition() -> Refusal {
    (ResponseError::UnknownTopicOrPartition, "there is no such partition".to_owned())
}

/// What is wanted of a partition.
enum Wanted {
    /// This node leads, and as many copies as there are, or are to be.
    Led(BrokerId),
    /// Another number of copies, of which the first is this one.
    Copied(BrokerId),
    /// It stays as it is.
    CalledOff,
}

/// Partitions of one topic that are to go elsewhere.
struct Reassigning<'a> {
    door: &'a Door,
    info: &'a StreamInfo,
    copies: Copies<'a>,
    nodes: Vec<i32>,
    /// Who is to lead each partition that is named.
    leaders: BTreeMap<i32, BrokerId>,
    /// Whether another number of copies may be named.
    may_change: bool,
}

impl<'a> Reassigning<'a> {
    fn of(door: &'a Door, info: &'a StreamInfo, may_change: bool) -> Reassigning<'a> {
        let (copies, nodes) = (Copies::of(door, info), assignments::nodes(door));
        Reassigning { door, info, copies, nodes, leaders: BTreeMap::new(), may_change }
    }

    /// Has partitions go where they are wanted, those that can be there. What became of each.
    fn run(mut self, leads: &mut Leads<'_>, partitions: &[ReassignablePartition]) -> Vec<Result<(), Refusal>> {
        let first = |partition: &ReassignablePartition| {
            Some((partition.partition_index, *partition.replicas.as_ref()?.first()?))
        };
        self.leaders = partitions.iter().filter_map(first).collect();
        let wanted: Vec<_> = partitions.iter().map(|partition| self.wanted(partition)).collect();
        let is_any = |is: fn(&Wanted) -> bool| wanted.iter().flatten().any(is);
        let called_off = match is_any(|of| matches!(of, Wanted::CalledOff)) {
            true => self.ask(self.info.options.replication),
            false => Ok(()),
        };
        let copied = match is_any(|of| matches!(of, Wanted::Copied(_))) {
            true => self.copy(partitions),
            false => Ok(()),
        };
        let is_changing = self.copies.wanted().is_some();
        let done = partitions.iter().zip(wanted).map(|(partition, wanted)| {
            let index = partition.partition_index.cast_unsigned();
            match wanted? {
                Wanted::CalledOff => called_off.clone(),
                Wanted::Led(to) => leads.lead(self.info, index, to, is_changing),
                Wanted::Copied(to) => copied.clone().and_then(|()| leads.lead(self.info, index, to, true)),
            }
        });
        done.collect()
    }

    /// What is wanted of a partition, unless it cannot be.
    fn wanted(&mut self, partition: &ReassignablePartition) -> Result<Wanted, Refusal> {
        let refuse = |why: String| Err((ResponseError::InvalidReplicaAssignment, why));
        if !has(&self.info.options, partition.partition_index) {
            return Err(no_partition());
        }
        let Some(wanted) = &partition.replicas else {
            if self.copies.wanted().is_some() {
                return Ok(Wanted::CalledOff);
            }
            let why = "nothing is being moved that could be called off: a move takes some milliseconds";
            return Err((ResponseError::NoReassignmentInProgress, why.to_owned()));
        };
        let leader = assignments::first_of(wanted, &self.nodes)?;
        let together = siblings(partition.partition_index, self.info.options.lanes);
        if self.door.is_in_cluster() && together.clone().any(|at| self.leaders.get(&at) != Some(&leader)) {
            let (first, last, name) = (together.start, together.end - 1, &self.info.name);
            return refuse(format!(
                "partitions {first} to {last} of {name} share a streamlet and move together: name all of them, with the same first node"
            ));
        }
        let copies = if self.door.is_in_cluster() { self.copies.in_the_end() } else { 1 };
        if wanted.len() != copies as usize {
            self.check_may_change(wanted.len(), copies)?;
            return Ok(Wanted::Copied(leader));
        }
        if self.copies.wanted().is_some() {
            return Ok(Wanted::Led(leader));
        }
        let (has, _) = self.copies.at(leader.0, copies);
        let sorted = |all: &[BrokerId]| {
            let mut all: Vec<i32> = all.iter().map(|node| node.0).collect();
            all.sort_unstable();
            all
        };
        if sorted(&has) != sorted(wanted) {
            let at: Vec<i32> = has.iter().map(|node| node.0).collect();
            let leader = leader.0;
            return refuse(format!(
                "the copies of what node {leader} leads are at {at:?}: name these, in any order behind it"
            ));
        }
        Ok(Wanted::Led(leader))
    }

    /// Whether the number of copies may be another one.
    fn check_may_change(&self, named: usize, copies: u32) -> Result<(), Refusal> {
        let needs = level::CHANGED_COPIES;
        let why = if !self.may_change {
            "and the request does not allow another number".to_owned()
        } else if !self.door.is_in_cluster() {
            "as everything on a node that is alone".to_owned()
        } else if !self.door.coordinator.all_understand(needs) {
            format!(
                "and that changes from level {needs} of the cluster on; `kera cluster level` shows what holds it back"
            )
        } else {
            return Ok(());
        };
        let why = format!("{named} nodes are named; the topic has {copies} copies, {why}");
        Err((ResponseError::InvalidReplicationFactor, why))
    }

    /// Has the topic get as many copies as there are nodes named for each of its partitions.
    fn copy(&self, partitions: &[ReassignablePartition]) -> Result<(), Refusal> {
        let refuse = |why: String| Err((ResponseError::InvalidReplicaAssignment, why));
        let named: BTreeSet<i32> = partitions.iter().map(|partition| partition.partition_index).collect();
        let wanted: Option<Vec<&[BrokerId]>> = partitions.iter().map(|of| of.replicas.as_deref()).collect();
        let (name, copies, all) = (&self.info.name, self.copies.in_the_end(), partitions_of(&self.info.options));
        let is_whole = partitions.len() == all as usize && named.into_iter().eq(0..all.cast_signed());
        let is_one_number = |wanted: &Vec<&[BrokerId]>| wanted.iter().all(|nodes| nodes.len() == wanted[0].len());
        let wanted = wanted.filter(|wanted| is_whole && is_one_number(wanted));
        let Some(wanted) = wanted else {
            return refuse(format!(
                "the number of copies belongs to the whole topic, and {name} has {copies}: name all of its {all} partitions, each once and with the same \
                 number of nodes, or {copies} nodes for these"
            ));
        };
        self.ask(assignments::check(self.door, wanted.into_iter())?)
    }

    /// Has the topic get so many copies. That goes on for as long as there is something to copy; who asks again is told the same.
    fn ask(&self, copies: u32) -> Result<(), Refusal> {
        let changes = StreamChanges { replication: Some(copies), ..StreamChanges::default() };
        let asked = self.door.coordinator.alter_stream(&StreamRef::Id(self.info.id), &changes);
        asked.map(drop).map_err(|error| as_assignment(&error))
    }
}

/// The partitions that share a streamlet with one, itself among them.
fn siblings(partition: i32, lanes: u32) -> Range<i32> {
    let lanes = lanes.max(1).cast_signed();
    let first = partition - partition % lanes;
    first..first + lanes
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
    let nodes = assignments::nodes(door);
    match node.parse::<i32>() {
        Ok(id) if nodes.contains(&id) => Ok(()),
        _ if node.is_empty() => Ok(()),
        _ => Err((ResponseError::InvalidRequest, assignments::not_there(&node, &nodes))),
    }
}

/// What moves just now, of which the node that a partition leaves is one of its replicas until it is gone there, and what does not have as many copies
/// as it is to have.
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
    let mut wanted: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
    for topic in asked.topics.iter().flatten() {
        wanted.entry(&topic.name).or_default().extend(&topic.partition_indexes);
    }
    let infos = match &asked.topics {
        Some(_) => wanted.keys().filter_map(|name| door.info(name)).collect(),
        None => door.catalog.infos(),
    };
    let mut topics: Vec<OngoingTopicReassignment> = Vec::new();
    for info in infos {
        let mut found = of_topic(door, &info, moves.iter().filter(|one| one.stream == info.id));
        if let Some(asked) = wanted.get(&*info.name) {
            found.retain(|partition, _| asked.contains(partition));
        }
        if !found.is_empty() {
            let name = TopicName(StrBytes::from_string(info.name));
            let partitions = found.into_values().collect();
            topics.push(OngoingTopicReassignment::default().with_name(name).with_partitions(partitions));
        }
    }
    answer.with_topics(topics)
}

/// Partitions of a topic that are not where they are to be, or have not as many copies.
fn of_topic<'a>(
    door: &Door,
    info: &StreamInfo,
    moves: impl Iterator<Item = &'a MoveInfo>,
) -> BTreeMap<i32, OngoingPartitionReassignment> {
    let (mut copies, lanes) = (Copies::of(door, info), info.options.lanes.max(1).cast_signed());
    let mut found = BTreeMap::new();
    let of = |partition, replicas, adding, removing| {
        OngoingPartitionReassignment::default()
            .with_partition_index(partition)
            .with_replicas(replicas)
            .with_adding_replicas(adding)
            .with_removing_replicas(removing)
    };
    let wanted = copies.wanted();
    for one in moves {
        let first = partition_at((one.streamlet, LaneId(0)), info.options.lanes).cast_signed();
        // It gets its other number of copies by a move to its own node.
        if one.from == one.to && wanted.is_some_and(|wanted| wanted != copies.in_force(first)) {
            continue;
        }
        let (to, _) = copies.replicas(first, one.to.cast_signed());
        let [from, node] = [one.from, one.to].map(|node| BrokerId(node.cast_signed()));
        let removing = Vec::from_iter((!to.contains(&from)).then_some(from));
        let adding = if from == node { Vec::new() } else { vec![node] };
        let replicas: Vec<BrokerId> = to.iter().chain(&removing).copied().collect();
        let partitions = first..first + lanes;
        found.extend(partitions.map(|at| (at, of(at, replicas.clone(), adding.clone(), removing.clone()))));
    }
    let Some(wanted) = wanted else { return found };
    let without = |all: &[BrokerId], other: &[BrokerId]| -> Vec<BrokerId> {
        all.iter().copied().filter(|node| !other.contains(node)).collect()
    };
    for at in 0..partitions_of(&info.options).cast_signed() {
        if copies.in_force(at) == wanted || found.contains_key(&at) {
            continue;
        }
        let (leader, _) = door.leader_of(info, at);
        let ((now, _), (then, _)) = (copies.replicas(at, leader), copies.at(leader, wanted));
        let (adding, removing) = (without(&then, &now), without(&now, &then));
        let replicas = now.iter().chain(&adding).copied().collect();
        found.insert(at, of(at, replicas, adding, removing));
    }
    found
}
