//! Requests about the node and its topics: what is answered from memory, and what is a command that waits for a disk.
//!
//! [`answer`] runs on the I/O thread of the connection; what [`command`] makes runs on the door's thread for commands.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse as Altered;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse as AlteredOne;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, StrBytes};
use kera_coordinator::CoordinatorError;
use kera_format::limits::name_is_valid;
use kera_format::{ProducerId as LogProducerId, StreamOptions};
use kera_protocol::admin::{AllocatedProducer, CreateStream, StreamChanges, StreamInfo, StreamRef};
use kera_protocol::{DescribeMoves, Status};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::access::{CLUSTER_OPERATIONS, told_if};
use crate::assignments::{self, Leads};
use crate::cluster;
use crate::config_words::documentation;
use crate::configs::{self, Described, Type};
use crate::copies::Copies;
use crate::door::{After, Command, Door, may_be_topic};
use crate::numbering::partitions_of;
use crate::once::once;
use crate::reassignments;
use crate::session::{Request, decode, encode};
use crate::wire::Malformed;

/// Copies that a topic gets by itself where there are as many nodes.
const COPIES_AUTO: u32 = 3;

/// Kinds of resources that have configurations.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Where a setting comes from: set on the topic, the node's own, the default.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_NODE: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;
/// What IncrementalAlterConfigs can do with a setting.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// The id, and the epoch, of who is no producer yet.
const NO_PRODUCER: i64 = -1;

pub(crate) type Refusal = (ResponseError, String);

fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// Answers a request from memory.
pub(crate) fn answer(door: &Door, request: &Request, body: &[u8]) -> Result<Vec<u8>, Malformed> {
    match request.api.key {
        ApiKey::Metadata => encode(request, &crate::metadata::answer(door, request.version, decode(request, body)?)),
        ApiKey::DescribeCluster => encode(request, &describe_cluster(door, &decode(request, body)?)),
        ApiKey::FindCoordinator => {
            let asked = decode(request, body)?;
            encode(request, &crate::group_door::find_coordinator(door, request.version, asked))
        }
        ApiKey::DescribeTopicPartitions => {
            encode(request, &crate::metadata::describe_partitions(door, decode(request, body)?))
        }
        ApiKey::DescribeConfigs => encode(request, &describe_configs(door, decode(request, body)?, Ok(()))),
        ApiKey::ElectLeaders => encode(request, &cluster::elect_leaders(door, decode(request, body)?, Ok(()))),
        ApiKey::AlterReplicaLogDirs => encode(request, &cluster::alter_replica_log_dirs(door, decode(request, body)?)),
        ApiKey::DescribeQuorum => {
            encode(request, &cluster::describe_quorum(door, request.version, decode(request, body)?))
        }
        ApiKey::ListConfigResources => {
            encode(request, &cluster::list_config_resources(door, request.version, decode(request, body)?))
        }
        ApiKey::DescribeClientQuotas => encode(request, &crate::access::quotas(&decode(request, body)?)),
        ApiKey::DescribeAcls => encode(request, &crate::access::describe_acls(&decode(request, body)?)),
        ApiKey::CreateAcls => encode(request, &crate::access::create_acls(&decode(request, body)?)),
        ApiKey::DeleteAcls => encode(request, &crate::access::delete_acls(&decode(request, body)?)),
        key => Err(Malformed::Decode(format!("{key:?} is advertised and not served"))),
    }
}

/// The command that a request is, if it may have to wait for a disk.
pub(crate) fn command(door: &Door, request: &Request, body: &[u8]) -> Result<Option<Command>, Malformed> {
    let request = *request;
    Ok(Some(match request.api.key {
        ApiKey::Metadata | ApiKey::DescribeConfigs | ApiKey::ElectLeaders => {
            return about_unheard(door, request, body);
        }
        ApiKey::CreateTopics => {
            let asked: CreateTopicsRequest = decode(&request, body)?;
            run(request, move |door| create_topics(door, &asked))
        }
        ApiKey::DeleteTopics => {
            let asked: DeleteTopicsRequest = decode(&request, body)?;
            run(request, move |door| delete_topics(door, request.version, &asked))
        }
        ApiKey::CreatePartitions => {
            let asked: CreatePartitionsRequest = decode(&request, body)?;
            run(request, move |door| create_partitions(door, &asked))
        }
        ApiKey::AlterPartitionReassignments => {
            let asked: AlterPartitionReassignmentsRequest = decode(&request, body)?;
            run(request, move |door| reassignments::alter(door, asked))
        }
        ApiKey::ListPartitionReassignments => {
            let asked: ListPartitionReassignmentsRequest = decode(&request, body)?;
            run(request, move |door| reassignments::list(door, &asked))
        }
        ApiKey::AlterConfigs => {
            let asked: AlterConfigsRequest = decode(&request, body)?;
            run(request, move |door| alter_configs(door, asked))
        }
        ApiKey::IncrementalAlterConfigs => {
            let asked: IncrementalAlterConfigsRequest = decode(&request, body)?;
            run(request, move |door| incremental_alter_configs(door, asked))
        }
        ApiKey::DeleteRecords => {
            let asked: DeleteRecordsRequest = decode(&request, body)?;
            run_after(request, move |door| crate::partitions::delete_records(door, &asked))
        }
        ApiKey::DescribeProducers => {
            let asked: DescribeProducersRequest = decode(&request, body)?;
            run(request, move |door| crate::partitions::describe_producers(door, &asked))
        }
        ApiKey::DescribeLogDirs => {
            let asked: DescribeLogDirsRequest = decode(&request, body)?;
            run(request, move |door| crate::partitions::describe_log_dirs(door, asked))
        }
        ApiKey::InitProducerId => {
            let asked: InitProducerIdRequest = decode(&request, body)?;
            run_after(request, move |door| init_producer(door, request.version, &asked))
        }
        _ => return Ok(None),
    }))
}

/// The same of what is answered from memory, unless a topic is named that this node does not know.
fn about_unheard(door: &Door, request: Request, body: &[u8]) -> Result<Option<Command>, Malformed> {
    let since = door.hears.begun();
    Ok(match request.api.key {
        ApiKey::Metadata => {
            let asked = decode(&request, body)?;
            let creates = crate::metadata::creates(door, request.version, &asked);
            let command = move |door: &Door| {
                crate::metadata::create(door, &asked);
                crate::metadata::answer(door, request.version, asked)
            };
            creates.then(|| run(request, command))
        }
        ApiKey::DescribeConfigs => {
            let asked: DescribeConfigsRequest = decode(&request, body)?;
            let topics = asked.resources.iter().filter(|resource| resource.resource_type == TOPIC);
            let is_unheard = names_unheard(door, topics.map(|resource| &*resource.resource_name));
            is_unheard.then(|| run(request, move |door| describe_configs(door, asked, door.hears.hear(door, since))))
        }
        ApiKey::ElectLeaders => {
            let asked: ElectLeadersRequest = decode(&request, body)?;
            let is_unheard = names_unheard(door, asked.topic_partitions.iter().flatten().map(|of| &**of.topic));
            is_unheard
                .then(|| run(request, move |door| cluster::elect_leaders(door, asked, door.hears.hear(door, since))))
        }
        _ => None,
    })
}

fn run<R: Encodable + 'static>(request: Request, work: impl FnOnce(&Door) -> R + Send + 'static) -> Command {
    run_after(request, move |door| (work(door), None))
}

fn run_after<R: Encodable + 'static>(
    request: Request,
    work: impl FnOnce(&Door) -> (R, Option<After>) + Send + 'static,
) -> Command {
    Box::new(move |door| {
        let (answer, after) = work(door);
        let body = encode(&request, &answer).unwrap_or_else(|error| {
            tracing::error!(key = ?request.api.key, version = request.version, %error, "an answer cannot be encoded");
            Vec::new()
        });
        (body, after)
    })
}

/// What clients are told of an error, whether it is this node's or comes from the leader of the coordinators. While nobody leads them clients
/// are to ask again, as those of Kafka do while it has no controller.
pub(crate) fn refusal(error: &CoordinatorError) -> Refusal {
    let code = match (error, error.status()) {
        (CoordinatorError::Protocol(_), _) => ResponseError::InvalidRequest,
        (_, Status::StreamExists) => ResponseError::TopicAlreadyExists,
        (_, Status::UnknownStream) => ResponseError::UnknownTopicOrPartition,
        (_, Status::InvalidName) => ResponseError::InvalidTopicException,
        (_, Status::InvalidOptions) => ResponseError::InvalidConfig,
        (_, Status::UnknownProducer) => ResponseError::UnknownProducerId,
        (_, Status::DiskFull | Status::DiskFailed) => ResponseError::KafkaStorageError,
        (_, Status::NotReady) => ResponseError::NotController,
        // It may be done: who asks again by itself is refused because of that.
        (_, Status::Timeout) => ResponseError::RequestTimedOut,
        (_, Status::Overloaded) => ResponseError::NotEnoughReplicas,
        _ => ResponseError::PolicyViolation,
    };
    (code, error.to_string())
}

/// Leaves the rest of a request undone when nobody leads the coordinators: each question to them waits for a leader for seconds, and other commands
/// wait behind it.
#[derive(Default)]
pub(crate) struct Unled {
    refused: Option<Refusal>,
    /// Something of the request is done, or may be, that is refused when it is asked for again.
    is_begun: bool,
}

impl Unled {
    pub(crate) fn or<T>(&mut self, ask: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let done = ask();
        self.refused = match &done {
            Err(refused @ (ResponseError::NotController, _)) => Some(refused.clone()),
            Err((ResponseError::RequestTimedOut, _)) => {
                let why = "it was not begun with, for nobody has told what became of one before it";
                Some((ResponseError::RequestTimedOut, why.to_owned()))
            }
            _ => None,
        };
        done
    }

    /// The same of what is refused when it is asked for again. For one that has no controller admin clients ask for all of the request again, and their programs are told that what is done by then
    /// is there, or is not. So behind such a one the rest has no answer instead, which programs are told of.
    fn once<T>(&mut self, ask: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        let done = self.or(ask).map_err(|(error, why)| match error {
            ResponseError::NotController if self.is_begun => (ResponseError::RequestTimedOut, why),
            error => (error, why),
        });
        self.is_begun |= matches!(done, Ok(_) | Err((ResponseError::RequestTimedOut, _)));
        done
    }
}

/// What CreateTopics answers. That too few nodes are live for the copies of a topic passes, but of all errors that pass only the one of a cluster that has no controller is one
/// after which admin clients ask again by themselves: Java's, franz-go and Sarama. With any other one programs end that make their topics at their start. KafkaJS since 1.16 and
/// librdkafka give the program whichever error a topic has.
fn of_new_topic(error: ResponseError) -> ResponseError {
    match error {
        ResponseError::NotEnoughReplicas => ResponseError::NotController,
        other => other,
    }
}

/// What was done as answers tell it: the error's code, 0 for none, and a sentence.
pub(crate) fn told(done: Result<(), Refusal>) -> (i16, Option<StrBytes>) {
    match done {
        Ok(()) => (0, None),
        Err((error, why)) => (error.code(), Some(text(why))),
    }
}

fn describe_cluster(door: &Door, asked: &DescribeClusterRequest) -> DescribeClusterResponse {
    let live = door.live();
    let mut brokers = door.brokers();
    brokers.retain(|(id, ..)| asked.include_fenced_brokers || live.has(*id));
    let controller = door.controller_id(&brokers);
    let brokers = brokers.into_iter().map(|(id, host, port)| {
        let broker = DescribeClusterBroker::default().with_broker_id(BrokerId(id)).with_is_fenced(!live.has(id));
        broker.with_host(text(host)).with_port(port)
    });
    DescribeClusterResponse::default()
        .with_endpoint_type(asked.endpoint_type)
        .with_cluster_id(text(door.cluster_id()))
        .with_controller_id(BrokerId(controller))
        .with_brokers(brokers.collect())
        .with_cluster_authorized_operations(told_if(asked.include_cluster_authorized_operations, CLUSTER_OPERATIONS))
}

/// Copies of a topic whose maker does not say how many. Nodes that are lost count: they are to come back.
pub(crate) fn copies_default(door: &Door) -> u32 {
    let nodes = door.broker.ownership().nodes().len();
    door.config.copies_default.unwrap_or(if nodes >= COPIES_AUTO as usize { COPIES_AUTO } else { 1 })
}

/// The options of a topic that is to be made.
fn options_of(door: &Door, topic: &CreatableTopic) -> Result<StreamOptions, Refusal> {
    let refuse = |error, why: &str| Err((error, why.to_owned()));
    let assigned = topic.assignments.iter().map(|assigned| &assigned.broker_ids[..]);
    let assigned = if topic.assignments.is_empty() { None } else { Some(assignments::check(door, assigned)?) };
    let nodes = door.broker.ownership().nodes().len().max(1);
    let copies = match topic.replication_factor {
        -1 => assigned.unwrap_or_else(|| copies_default(door)),
        factor => u32::try_from(factor).unwrap_or(0),
    };
    if copies == 0 || copies as usize > nodes {
        let there = if nodes == 1 { "there is one node".to_owned() } else { format!("there are {nodes} nodes") };
        let why = format!("{there}: the replication factor is 1 to {nodes}, or -1 for {}", copies_default(door));
        return refuse(ResponseError::InvalidReplicationFactor, &why);
    }
    let mut partitions = topic.num_partitions;
    if let Some(assigned) = assigned {
        if copies != assigned {
            let why = format!("the replication factor is {copies}, and {assigned} nodes are named for each partition");
            return refuse(ResponseError::InvalidReplicaAssignment, &why);
        }
        let mut seen: Vec<i32> = topic.assignments.iter().map(|assigned| assigned.partition_index).collect();
        seen.sort_unstable();
        if seen.iter().enumerate().any(|(at, index)| usize::try_from(*index) != Ok(at)) {
            return refuse(ResponseError::InvalidReplicaAssignment, "partitions are numbered from 0 on");
        }
        partitions = seen.len() as i32;
    }
    let streamlets = door.config.partitions_default;
    let mut options = StreamOptions { streamlets, replication: copies, ..StreamOptions::default() };
    if partitions != -1 {
        match u32::try_from(partitions) {
            Ok(count @ 1..=kera_format::limits::STREAMLETS_MAX) => options.streamlets = count,
            _ => return refuse(ResponseError::InvalidPartitions, "a topic has 1 to 131072 partitions"),
        }
    }
    for config in &topic.configs {
        let value = config.value.as_deref();
        configs::set(&mut options, &config.name, value).map_err(|why| (ResponseError::InvalidConfig, why))?;
    }
    check_kept(door, &mut options)?;
    Ok(options)
}

/// Drops what clients have said where it is not kept, and refuses more of it than may be.
fn check_kept(door: &Door, options: &mut StreamOptions) -> Result<(), Refusal> {
    if !door.coordinator.keeps_settings() {
        options.settings.clear();
    }
    configs::check_kept(options).map_err(|why| (ResponseError::InvalidConfig, why))
}

fn bad_name() -> Refusal {
    let why = "a topic's name has 1 to 249 of a-z A-Z 0-9 . _ - and does not start with `_kera.`";
    (ResponseError::InvalidTopicException, why.to_owned())
}

/// Makes a stream for a topic, or only looks whether it could be made.
pub(crate) fn create_topic(
    door: &Door,
    name: &str,
    options: StreamOptions,
    validate_only: bool,
) -> Result<Option<StreamInfo>, Refusal> {
    if !may_be_topic(name) {
        return Err(bad_name());
    }
    if validate_only {
        let wrong = options.check();
        if door.info(name).is_some() {
            return Err((ResponseError::TopicAlreadyExists, format!("topic `{name}` exists")));
        }
        let sentences: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        if !wrong.is_empty() {
            return Err((ResponseError::InvalidConfig, sentences.join("; ")));
        }
        let has_room = door.coordinator.check_lanes(partitions_of(&options).into());
        return has_room.map(|()| None).map_err(|error| refusal(&error));
    }
    let create = CreateStream { name: name.to_owned(), options, if_not_exists: false };
    door.coordinator.create_stream(&create).map(Some).map_err(|error| refusal(&error))
}

fn create_topics(door: &Door, asked: &CreateTopicsRequest) -> CreateTopicsResponse {
    let (mut leads, mut unled, since) = (Leads::new(door), Unled::default(), door.hears.begun());
    let mut times: HashMap<&TopicName, usize> = HashMap::new();
    asked.topics.iter().for_each(|topic| *times.entry(&topic.name).or_default() += 1);
    let mut one = |topic: &CreatableTopic| -> Result<CreatableTopicResult, Refusal> {
        if times.get(&topic.name).is_some_and(|times| *times > 1) {
            return Err((ResponseError::InvalidRequest, "the topic is named twice".to_owned()));
        }
        if !name_is_valid(&topic.name) {
            return Err(bad_name());
        }
        if is_there(door, since, &topic.name)? {
            return Err((ResponseError::TopicAlreadyExists, format!("topic `{}` exists", &**topic.name)));
        }
        let options = options_of(door, topic)?;
        let made = create_topic(door, &topic.name, options.clone(), asked.validate_only)?;
        if let Some(made) = &made {
            let mut assigned: Vec<_> = topic.assignments.iter().collect();
            assigned.sort_unstable_by_key(|assigned| assigned.partition_index);
            leads.lead_new(made, 0, assigned.iter().map(|assigned| &assigned.broker_ids[..]));
        }
        let configs = configs::describe(&options).into_iter().map(|one| {
            CreatableTopicConfigs::default()
                .with_name(text(one.name))
                .with_config_source(source_of(&one))
                .with_value(Some(text(one.value)))
        });
        Ok(CreatableTopicResult::default()
            .with_topic_id(made.map(|info| door.topic_id(info.id)).unwrap_or_default())
            .with_num_partitions(partitions_of(&options) as i32)
            .with_replication_factor(i16::try_from(options.replication).unwrap_or(i16::MAX))
            .with_configs(Some(configs.collect())))
    };
    // A topic that is named twice is told about once.
    let topics = once(&asked.topics, |topic| topic.name.clone()).map(|topic| {
        let result = match asked.validate_only {
            true => unled.or(|| one(topic)),
            false => unled.once(|| one(topic)),
        };
        let result = result.unwrap_or_else(|(error, why)| {
            CreatableTopicResult::default()
                .with_error_code(of_new_topic(error).code())
                .with_error_message(Some(text(why)))
                .with_num_partitions(-1)
                .with_replication_factor(-1)
                .with_configs(None)
        });
        result.with_name(topic.name.clone())
    });
    CreateTopicsResponse::default().with_topics(topics.collect())
}

/// A topic that is to be deleted: what this node knows of it, what the coordinators are asked to delete, if there may be one, and what they are asked to delete if there is no such one.
type Doomed = (Option<StreamInfo>, Option<StreamRef>, Option<StreamRef>);

/// Whether there is one that this node does not know the coordinators' leader says: the node may not have heard of it yet.
fn doomed_by_name(door: &Door, name: &str) -> Doomed {
    let info = door.info(name);
    let by_name = may_be_topic(name).then(|| StreamRef::from(name));
    match &info {
        // By its number first: by its name it could be one that is made while this is asked for again.
        Some(known) => {
            let by_number = known.id.into();
            (info, Some(by_number), by_name.filter(|_| door.is_in_cluster()))
        }
        None => (info, by_name, None),
    }
}

fn doomed_by_id(door: &Door, id: Uuid) -> Doomed {
    let Some(stream) = door.catalog.stream_of(id).map(StreamRef::Id) else { return (None, None, None) };
    match door.coordinator.stream(&stream) {
        Ok(info) if may_be_topic(&info.name) => (Some(info), Some(stream), None),
        Ok(_) => (None, None, None),
        Err(_) => (None, Some(stream), None),
    }
}

fn delete_topics(door: &Door, version: i16, asked: &DeleteTopicsRequest) -> DeleteTopicsResponse {
    let (mut unled, mut gone) = (Unled::default(), BTreeSet::new());
    let mut delete = |(info, stream, again): Doomed, unknown: ResponseError| {
        let answer = match &info {
            Some(info) => DeletableTopicResult::default()
                .with_name(Some(TopicName(text(info.name.clone()))))
                .with_topic_id(door.topic_id(info.id)),
            None => DeletableTopicResult::default().with_name(None),
        };
        let missing = || (unknown, "there is no such topic".to_owned());
        let ask = |stream: &StreamRef| {
            door.coordinator.delete_stream(stream).map_err(|error| match error.status() {
                Status::UnknownStream => missing(),
                _ => refusal(&error),
            })
        };
        let deleted = stream.ok_or_else(missing).and_then(|stream| {
            unled.once(|| match (ask(&stream), again) {
                // The node knew one of that name that is gone, and another one may have been made since.
                (Err((error, _)), Some(again)) if error == unknown => ask(&again),
                (deleted, _) => deleted,
            })
        });
        match deleted {
            Ok(()) => {
                // Of one that this node did not know the coordinators of groups hear as of one that another node deletes.
                gone.extend(info.map(|info| info.name));
                answer
            }
            Err((code, why)) => answer.with_error_code(code.code()).with_error_message(Some(text(why))),
        }
    };
    let by_name = ResponseError::UnknownTopicOrPartition;
    let responses = if version >= 6 {
        let topics = asked.topics.iter().map(|topic| match &topic.name {
            Some(name) => delete(doomed_by_name(door, name), by_name).with_name(Some(name.clone())),
            None => {
                let doomed = doomed_by_id(door, topic.topic_id);
                delete(doomed, ResponseError::UnknownTopicId).with_topic_id(topic.topic_id)
            }
        });
        topics.collect()
    } else {
        let topics = asked.topic_names.iter();
        topics.map(|name| delete(doomed_by_name(door, name), by_name).with_name(Some(name.clone()))).collect()
    };
    // Of all at once: each time all groups are looked through.
    if !gone.is_empty() {
        door.groups.topics_deleted(&gone);
    }
    DeleteTopicsResponse::default().with_responses(responses)
}

fn unknown_topic() -> Refusal {
    (ResponseError::UnknownTopicOrPartition, "there is no such topic".to_owned())
}

/// What a node has heard of all that the coordinators' leader knows. What is heard for one request does for all that had come when it was asked for, and for each topic of that request: the thread for
/// commands and the leader have a question of it each time, and where there is no leader the thread waits for one each time.
#[derive(Default)]
pub(crate) struct Hears {
    begun: AtomicU64,
    /// Which of them was the last, and what came of it.
    last: Mutex<Option<(u64, Result<(), Refusal>)>>,
}

impl Hears {
    /// How often it has been asked for. What it is asked for later tells all that is so now.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Hears it, unless it has been asked for [since](Hears::begun). Waits for a leader.
    pub(crate) fn hear(&self, door: &Door, since: u64) -> Result<(), Refusal> {
        let last = self.last.lock().clone();
        if let Some((_, told)) = last.filter(|(number, _)| *number > since) {
            return told;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // As with all that the leader is asked, it is answered when this node knows what the leader did.
        let told = door.coordinator.moves(&DescribeMoves { limit: 1 }).map(drop).map_err(|error| refusal(&error));
        *self.last.lock() = Some((number, told.clone()));
        told
    }
}

/// Whether some of the topics that are named are none that this node knows, and may have been made a moment ago by way of another one.
fn names_unheard<'a>(door: &Door, mut names: impl Iterator<Item = &'a str>) -> bool {
    door.is_in_cluster() && names.any(|name| may_be_topic(name) && door.info(name).is_none())
}

/// Whether there is a topic. What this node knows may be gone by way of another one: it hears first then what the leader knows, if it has not [since](Hears::begun).
fn is_there(door: &Door, since: u64, name: &str) -> Result<bool, Refusal> {
    if door.info(name).is_some() && door.is_in_cluster() {
        door.hears.hear(door, since)?;
    }
    Ok(door.info(name).is_some())
}

/// A topic that is to be changed, with what of it is asked for, where this node knows that. Else it hears first of all what the coordinators' leader knows: it may have been made a moment ago by way
/// of another node. Waits for a leader then, if it has not heard it [since](Hears::begun).
pub(crate) fn to_change(
    door: &Door,
    since: u64,
    name: &str,
    has_all: impl Fn(&StreamInfo) -> bool,
) -> Result<StreamInfo, Refusal> {
    let known = door.info(name);
    if known.as_ref().is_some_and(has_all) || !may_be_topic(name) || !door.is_in_cluster() {
        return known.ok_or_else(unknown_topic);
    }
    door.hears.hear(door, since)?;
    door.info(name).ok_or_else(unknown_topic)
}

/// Whether new partitions of a topic may be where they are wanted.
fn check_new<'a>(
    door: &Door,
    info: &StreamInfo,
    wanted: impl ExactSizeIterator<Item = &'a [BrokerId]> + Clone,
) -> Result<(), Refusal> {
    let refuse = |why: String| Err((ResponseError::InvalidReplicaAssignment, why));
    let (named, copies) = (assignments::check(door, wanted.clone())?, Copies::of(door, info).in_the_end());
    // The partitions that a topic has are whole streamlets, so new ones begin with one.
    let (firsts, lanes) = (wanted.map(|nodes| nodes.first()).collect::<Vec<_>>(), info.options.lanes.max(1) as usize);
    if firsts.chunks(lanes).any(|together| together.iter().any(|first| *first != together[0])) {
        let name = &info.name;
        return refuse(format!(
            "each {lanes} partitions of {name} share a streamlet: name the same first node for them"
        ));
    }
    if door.is_in_cluster() && named != copies {
        return refuse(format!("{named} nodes are named for each partition, and the topic has {copies} copies"));
    }
    Ok(())
}

fn create_partitions(door: &Door, asked: &CreatePartitionsRequest) -> CreatePartitionsResponse {
    let (mut leads, mut unled, since) = (Leads::new(door), Unled::default(), door.hears.begun());
    let mut grow = |topic: &CreatePartitionsTopic| -> Result<(), Refusal> {
        let (name, count) = (&topic.name, topic.count);
        let info = to_change(door, since, name, |_| true)?;
        let has = partitions_of(&info.options);
        let refuse = |why: String| Err((ResponseError::InvalidPartitions, why));
        let Some(count) = u32::try_from(count).ok().filter(|count| *count > has) else {
            return refuse(format!("the topic has {has} partitions, and can only get more"));
        };
        if !count.is_multiple_of(info.options.lanes) {
            return refuse(format!("the topic's partitions are a multiple of its {} lanes", info.options.lanes));
        }
        if let Some(assigned) = &topic.assignments {
            if assigned.len() != (count - has) as usize {
                let why = format!("the topic gets {} partitions, and {} are assigned", count - has, assigned.len());
                return Err((ResponseError::InvalidReplicaAssignment, why));
            }
            check_new(door, &info, assigned.iter().map(|one| &one.broker_ids[..]))?;
        }
        if asked.validate_only {
            return door.coordinator.check_lanes((count - has).into()).map_err(|error| refusal(&error));
        }
        let changes = StreamChanges { streamlets: Some(count / info.options.lanes), ..StreamChanges::default() };
        let grown = match door.coordinator.alter_stream(&StreamRef::Id(info.id), &changes) {
            Ok(grown) => grown,
            Err(error) if error.status() == Status::InvalidOptions => return refuse(error.to_string()),
            Err(error) => return Err(refusal(&error)),
        };
        let assigned = topic.assignments.iter().flatten();
        leads.lead_new(&grown, has, assigned.map(|one| &one.broker_ids[..]));
        Ok(())
    };
    let results = asked.topics.iter().map(|topic| {
        let (error, why) = told(match asked.validate_only {
            true => unled.or(|| grow(topic)),
            false => unled.once(|| grow(topic)),
        });
        let answer = CreatePartitionsTopicResult::default().with_name(topic.name.clone());
        answer.with_error_code(error).with_error_message(why)
    });
    CreatePartitionsResponse::default().with_results(results.collect())
}

/// `heard`: whether this node has heard of all topics that there are, where it does not know one of them.
fn describe_configs(door: &Door, asked: DescribeConfigsRequest, heard: Result<(), Refusal>) -> DescribeConfigsResponse {
    let of = |resource: &DescribeConfigsResource| (resource.resource_type, resource.resource_name.clone());
    let results = once(asked.resources, of).map(|resource| {
        let answer = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match described(door, &resource, asked.include_synonyms, &heard) {
            Ok(mut configs) => {
                for config in configs.iter_mut().filter(|_| asked.include_documentation) {
                    config.documentation = Some(StrBytes::from_static_str(documentation(&config.name)));
                }
                answer.with_configs(configs)
            }
            Err((error, why)) => answer.with_error_code(error.code()).with_error_message(Some(text(why))),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

fn source_of(described: &Described) -> i8 {
    if described.is_set { SOURCE_TOPIC } else { SOURCE_DEFAULT }
}

/// A topic's setting, and where its value comes from if that is asked: first what the topic says, then the default.
fn topic_entry(described: Described, tells_synonyms: bool) -> DescribeConfigsResourceResult {
    let source = source_of(&described);
    let Described { name, value, is_set, default, of_broker, kind } = described;
    let synonym = |name: &'static str, value: &str, source| {
        DescribeConfigsSynonym::default().with_name(text(name)).with_value(Some(text(value))).with_source(source)
    };
    let mut synonyms = Vec::new();
    if tells_synonyms {
        synonyms.extend(is_set.then(|| synonym(name, &value, SOURCE_TOPIC)));
        synonyms.extend((!of_broker.is_empty()).then(|| synonym(of_broker, &default, SOURCE_DEFAULT)));
    }
    DescribeConfigsResourceResult::default()
        .with_name(text(name))
        .with_value(Some(text(value)))
        .with_config_source(source)
        .with_synonyms(synonyms)
        .with_config_type(kind as i8)
}

fn described(
    door: &Door,
    resource: &DescribeConfigsResource,
    tells_synonyms: bool,
    heard: &Result<(), Refusal>,
) -> Result<Vec<DescribeConfigsResourceResult>, Refusal> {
    let of_node = |name: &'static str, value: String, kind: Type| {
        DescribeConfigsResourceResult::default()
            .with_name(text(name))
            .with_value(Some(text(value)))
            .with_config_source(SOURCE_NODE)
            .with_read_only(true)
            .with_config_type(kind as i8)
    };
    let mut entries = match resource.resource_type {
        TOPIC => {
            let unknown = || heard.clone().err().unwrap_or_else(unknown_topic);
            let info = door.info(&resource.resource_name).ok_or_else(unknown)?;
            configs::describe(&info.options).into_iter().map(|one| topic_entry(one, tells_synonyms)).collect()
        }
        BROKER => {
            // Whoever wants another's asks that one, as with Kafka; and what has many names is told as often.
            let (name, id) = (&*resource.resource_name, door.node_id().to_string());
            if !name.is_empty() && name != id {
                let why = format!("{name:?} is not this node: it is {id:?}, and of others they tell themselves");
                return Err((ResponseError::InvalidRequest, why));
            }
            let config = &door.config;
            let (host, port) = door.advertised();
            let advertised = format!("PLAINTEXT://{host}:{port}");
            vec![
                of_node("advertised.listeners", advertised, Type::String),
                of_node("auto.create.topics.enable", config.auto_create.to_string(), Type::Boolean),
                of_node("num.partitions", config.partitions_default.to_string(), Type::Int),
                of_node("default.replication.factor", copies_default(door).to_string(), Type::Int),
            ]
        }
        _ => return Err((ResponseError::InvalidRequest, "topics (2) and brokers (4) have configurations".to_owned())),
    };
    // A list of none stands for all, as in Kafka.
    if let Some(keys) = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty()) {
        entries.retain(|entry: &DescribeConfigsResourceResult| keys.contains(&entry.name));
    }
    Ok(entries)
}

/// Changes the options of a topic.
fn alter(
    door: &Door,
    since: u64,
    (kind, name): (i8, &str),
    validate_only: bool,
    change: impl FnOnce(&mut StreamOptions) -> Result<(), String>,
) -> Result<(), Refusal> {
    if kind != TOPIC {
        let why = "only the settings of topics can be changed; those of the node are in its configuration";
        return Err((ResponseError::InvalidRequest, why.to_owned()));
    }
    // What is to change follows from what is so: by what this node knows that may be nothing, where it was changed a moment ago by way of another one.
    let info = to_change(door, since, name, |_| false)?;
    let mut options = info.options.clone();
    change(&mut options).map_err(|why| (ResponseError::InvalidConfig, why))?;
    check_kept(door, &mut options)?;
    let changes = configs::changes(&info.options, &options);
    if validate_only || changes.is_empty() {
        return Ok(());
    }
    let altered = door.coordinator.alter_stream(&StreamRef::Id(info.id), &changes);
    altered.map(drop).map_err(|error| refusal(&error))
}

fn alter_configs(door: &Door, asked: AlterConfigsRequest) -> AlterConfigsResponse {
    let (validate_only, mut unled, since) = (asked.validate_only, Unled::default(), door.hears.begun());
    let responses = asked.resources.into_iter().map(|resource| {
        let change = |options: &mut StreamOptions| {
            // What is not named goes back to its default.
            configs::unset_all(options);
            let mut all = resource.configs.iter();
            all.try_for_each(|one| configs::set(options, &one.name, one.value.as_deref()))
        };
        let named = (resource.resource_type, &*resource.resource_name);
        let done = unled.or(|| alter(door, since, named, validate_only, change));
        let (error, why) = told(done);
        Altered::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone())
            .with_error_code(error)
            .with_error_message(why)
    });
    AlterConfigsResponse::default().with_responses(responses.collect())
}

fn incremental_alter_configs(door: &Door, asked: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse {
    let (validate_only, mut unled, since) = (asked.validate_only, Unled::default(), door.hears.begun());
    let responses = asked.resources.into_iter().map(|resource| {
        let names = resource.configs.iter().map(|one| &*one.name);
        let bounds_copies = resource.resource_type == BROKER && reassignments::are_limits(names);
        let change = |options: &mut StreamOptions| {
            resource.configs.iter().try_for_each(|one| match one.config_operation {
                SET => configs::set(options, &one.name, one.value.as_deref()),
                DELETE => {
                    configs::unset(options, &one.name);
                    Ok(())
                }
                APPEND => configs::add(options, &one.name, one.value.as_deref()),
                SUBTRACT => configs::take_away(options, &one.name, one.value.as_deref()),
                other => Err(format!("{}: {other} is no operation", &*one.name)),
            })
        };
        let named = (resource.resource_type, &*resource.resource_name);
        let (error, why) = told(match bounds_copies {
            true => reassignments::limit(door, &resource.resource_name),
            false => unled.or(|| alter(door, since, named, validate_only, change)),
        });
        AlteredOne::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone())
            .with_error_code(error)
            .with_error_message(why)
    });
    IncrementalAlterConfigsResponse::default().with_responses(responses.collect())
}

/// An id for a producer, or the next epoch of one that has an id.
fn init_producer(door: &Door, version: i16, asked: &InitProducerIdRequest) -> (InitProducerIdResponse, Option<After>) {
    let failed = |error: ResponseError| {
        InitProducerIdResponse::default()
            .with_error_code(error.code())
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    };
    if (asked.producer_id.0 == NO_PRODUCER) != (i64::from(asked.producer_epoch) == NO_PRODUCER) {
        return (failed(ResponseError::InvalidRequest), None);
    }
    if asked.transactional_id.is_some() {
        return door.transactions.init(version, asked);
    }
    let known = (asked.producer_id.0 > 0).then(|| LogProducerId(asked.producer_id.0.cast_unsigned()));
    let mut allocated = door.coordinator.allocate_producer(known);
    let is_over = match &allocated {
        // Kafka's epochs are signed, so half of them are there.
        Ok(one) => i16::try_from(one.producer_epoch.0).is_err(),
        // An id of another cluster, or no more epochs are kept: a new id does as well, and clients ask again for ever otherwise.
        Err(error) => known.is_some() && matches!(error.status(), Status::UnknownProducer | Status::LimitReached),
    };
    if is_over {
        allocated = door.coordinator.allocate_producer(None);
    }
    let answer = match allocated {
        Ok(AllocatedProducer { producer_id, producer_epoch }) => InitProducerIdResponse::default()
            .with_producer_id(ProducerId(producer_id.0.cast_signed()))
            .with_producer_epoch(producer_epoch.0.cast_signed()),
        // There is no controller in it that a producer could look for: as Kafka's brokers while they have no ids. A full disk passes as well, and a producer that is told of its
        // storage ends for good in some clients.
        Err(error) if matches!(error.status(), Status::NotReady | Status::DiskFull) => {
            failed(ResponseError::CoordinatorLoadInProgress)
        }
        Err(error) => failed(refusal(&error).0),
    };
    (answer, None)
}
