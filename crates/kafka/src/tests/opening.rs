//! A start: streams that the node knows of, and its broker not yet.

use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kera_coordinator::catalog::Catalog;
use kera_coordinator::{ClusterLog, CoordinatorError, LiveNode};
use kera_format::catalog::Entry;
use kera_format::{StreamId, StreamletId, kafka_groups, level};
use kera_protocol::{
    AlterStream, Body, DeleteStream, Empty, ErrorBody, MovesDescription, Op, Status, StreamInfo, StreamRef,
};
use parking_lot::{Mutex, RwLock};

use super::parts::{ME, owner, together};
use super::transactions::{World, text, topic};
use super::*;
use crate::group_door::GROUPS_STREAM;
use crate::state_log::{StateLog, state_stream_options};
use crate::transaction_door::TRANSACTIONS_STREAM;

const NAME: &str = "_kera.floors";
const STREAM: StreamId = StreamId(1);
const TOPIC: StreamId = StreamId(4);

/// The coordinators' log, as a node knows it whose broker is told later.
#[derive(Default)]
struct Known {
    catalog: RwLock<Catalog>,
    /// What their leader knows, and this node does not yet.
    elsewhere: Mutex<Vec<StreamRef>>,
    /// The same, of which this node has heard when the leader has told how something is.
    comes: Mutex<Vec<Entry>>,
    /// What the leader was asked for, but for deletions.
    asked: Mutex<Vec<Op>>,
}

impl Known {
    fn of(streams: &[(StreamId, &str, StreamOptions)]) -> Arc<Known> {
        let mut known = Known::default();
        for (stream, name, options) in streams.iter().cloned() {
            let made = Entry::StreamCreated { stream, at_ms: 1_000, options, name: name.into() };
            known.catalog.get_mut().apply(&made).unwrap();
        }
        Arc::new(known)
    }
}

/// The options of a topic of two partitions.
fn of_two() -> StreamOptions {
    StreamOptions { streamlets: 2, lanes: 1, replication: 1, ..StreamOptions::default() }
}

impl Known {
    /// A topic is made by way of another node.
    fn comes(&self, stream: u64, name: &str, options: StreamOptions) {
        let made = Entry::StreamCreated { stream: StreamId(stream), at_ms: 2_000, options, name: name.into() };
        self.comes.lock().push(made);
    }
}

impl ClusterLog for Known {
    fn request(&self, op: Op, version: u8, body: &[u8], _: bool) -> Result<Vec<u8>, CoordinatorError> {
        let mut answer = Vec::new();
        if op != Op::DeleteStream {
            self.asked.lock().push(op);
            match op {
                Op::DescribeMoves => {
                    self.comes.lock().drain(..).for_each(|made| self.catalog.write().apply(&made).unwrap());
                    let (moves, under_way, nodes) = (Vec::new(), 0, Vec::new());
                    MovesDescription { moves, under_way, nodes }.encode(version, &mut answer);
                }
                Op::AlterStream => {
                    let AlterStream { stream, changes } = AlterStream::decode(version, body)?;
                    let before = self.catalog.read().find(&stream)?.clone();
                    StreamInfo { options: changes.apply(&before.options), ..before }.encode(version, &mut answer);
                }
                other => panic!("{other}"),
            }
            return Ok(answer);
        }
        let stream = DeleteStream::decode(version, body)?.stream;
        let mut elsewhere = self.elsewhere.lock();
        let Some(at) = elsewhere.iter().position(|known| *known == stream) else {
            let body = ErrorBody::new("there is none");
            return Err(CoordinatorError::Leader { status: Status::UnknownStream, body });
        };
        elsewhere.swap_remove(at);
        Empty.encode(version, &mut answer);
        Ok(answer)
    }
    fn level(&self) -> u32 {
        level::NEWEST
    }
    fn read(&self, read: &mut dyn FnMut(&Catalog)) {
        read(&self.catalog.read());
    }
    fn copies_of(&self, _: StreamId, _: u32) -> u32 {
        0
    }
    fn wanted_copies(&self, _: StreamId) -> Option<u32> {
        None
    }
    fn live_nodes(&self) -> Vec<LiveNode> {
        Vec::new()
    }
    fn observe(&self, _: Arc<dyn StreamObserver>, _: Vec<StreamInfo>) {}
}

/// A start ended with the advice to move the data directory away.
#[test]
fn a_stream_that_the_node_knows_of_is_waited_for_until_its_broker_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unit.arena");
    let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 16 << 20, node: [3; 16] }).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(1_700_000_000_000));
    let log = Log::new(LogConfig::default(), arena);
    log.set_sinks(Arc::new(vec![Arc::new(Instant) as Arc<dyn DurabilitySink>]));
    let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
    let coordinator = Coordinator::of_cluster(Known::of(&[(STREAM, NAME, state_stream_options())]), clock.clone());
    let mut rests = 0;
    let opened = StateLog::<kafka_groups::Entry>::open_when_told(NAME, &coordinator, &broker, &clock, || {
        rests += 1;
        if rests == 3 {
            broker.stream_created(STREAM, state_stream_options()).unwrap();
        }
    });
    assert!(opened.is_ok(), "{:?}", opened.err());
    assert_eq!(rests, 3);
    // That it is told of nothing says nothing of its disk.
    broker.log().delete_stream(STREAM).unwrap();
    let opened = StateLog::<kafka_groups::Entry>::open_when_told(NAME, &coordinator, &broker, &clock, || {});
    assert_eq!(opened.err().expect("nobody tells it").kind(), crate::NOT_GIVEN);
}

/// A node of two that knows of topic `t`, which has two partitions, and whose broker has not been told of it.
fn untold() -> (World, Arc<Known>) {
    knowing(&[(TOPIC, "t", of_two())])
}

/// A node of two that knows of these topics, and whose broker has not been told of them.
fn knowing(topics: &[(StreamId, &str, StreamOptions)]) -> (World, Arc<Known>) {
    let of_system = |stream, name| (StreamId(stream), name, state_stream_options());
    let of_system = [of_system(1, NAME), of_system(2, TRANSACTIONS_STREAM), of_system(3, GROUPS_STREAM)];
    let known = Known::of(&[&of_system[..], topics].concat());
    let mut world = World::with(|broker, clock| {
        of_system.into_iter().for_each(|(stream, _, options)| broker.stream_created(stream, options).unwrap());
        Arc::new(Coordinator::of_cluster(known.clone(), clock.clone()))
    });
    together(&world);
    world.restart();
    (world, known)
}

/// The errors of all that is asked of a partition's leader: to write and to read, by the topic's name and by its id; offsets, the end of an epoch; to delete records; producers.
fn told(world: &mut World, partition: i32) -> [i16; 8] {
    let id = world.running().door.topic_id(TOPIC);
    let mut produce = World::produce_request(None, "t", partition, batch(&[b"p"], (-1, -1, -1)));
    let written = world.call(9, &produce).responses[0].partition_responses[0].error_code;
    (produce.topic_data[0].name, produce.topic_data[0].topic_id) = (TopicName::default(), id);
    let written_by_id = world.call(13, &produce).responses[0].partition_responses[0].error_code;
    let mut fetch = fetch_request("t", partition, 0, 0);
    let read = world.call(11, &fetch).responses[0].partitions[0].error_code;
    (fetch.topics[0].topic, fetch.topics[0].topic_id) = (TopicName::default(), id);
    let read_by_id = world.call(13, &fetch).responses[0].partitions[0].error_code;
    let one = ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(-1);
    let one = one.with_current_leader_epoch(-1);
    let one = ListOffsetsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
    let listed = world.call(4, &ListOffsetsRequest::default().with_topics(vec![one]));
    let one = OffsetForLeaderPartition::default().with_partition(partition).with_current_leader_epoch(-1);
    let one = OffsetForLeaderTopic::default().with_topic(topic("t")).with_partitions(vec![one.with_leader_epoch(5)]);
    let ends = world.call(4, &OffsetForLeaderEpochRequest::default().with_topics(vec![one]));
    let one = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(0);
    let one = DeleteRecordsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
    let deleted = world.call(1, &DeleteRecordsRequest::default().with_topics(vec![one]));
    let one = TopicRequest::default().with_name(topic("t")).with_partition_indexes(vec![partition]);
    let producers = world.call(0, &DescribeProducersRequest::default().with_topics(vec![one]));
    [
        written,
        written_by_id,
        read,
        read_by_id,
        listed.topics[0].partitions[0].error_code,
        ends.topics[0].partitions[0].error_code,
        deleted.topics[0].partitions[0].error_code,
        producers.topics[0].partitions[0].error_code,
    ]
}

/// It may have been made since, or its topic have grown.
#[test]
fn a_node_that_hears_no_coordinators_does_not_say_that_there_is_no_such_partition() {
    let (unheard, unknown) = (ResponseError::NotLeaderOrFollower.code(), ResponseError::UnknownTopicOrPartition.code());
    let no_id = ResponseError::UnknownTopicId.code();
    let no_topic = [unknown, no_id, unknown, no_id, unknown, unknown, unknown, unknown];
    for ((mut world, _), partition, says) in [(knowing(&[]), 0, no_topic), (untold(), 2, [unknown; 8])] {
        let broker = world.parts().0;
        broker.confirmed(world.clock.since_boot_us());
        assert_eq!(told(&mut world, partition), says);
        world.clock.advance_ms(kera_broker::SERVES_MS);
        assert_eq!(told(&mut world, partition), [unheard; 8]);
        broker.confirmed(world.clock.since_boot_us());
        assert_eq!(told(&mut world, partition), says);
    }
}

/// Each partition's error, leader and epoch.
fn led(world: &mut World) -> Vec<(i16, i32, i32)> {
    let one = MetadataRequestTopic::default().with_name(Some(topic("t")));
    let answer = world.call(9, &MetadataRequest::default().with_topics(Some(vec![one])));
    assert_eq!(answer.topics[0].error_code, 0);
    let of = |of: &metadata_response::MetadataResponsePartition| (of.error_code, of.leader_id.0, of.leader_epoch);
    answer.topics[0].partitions.iter().map(of).collect()
}

/// Clients were sent to whoever they had asked, and told there that there is no such partition, also while the topic was only growing. librdkafka ends a lookup of offsets with that.
#[test]
fn a_partition_of_which_only_the_catalog_knows_is_there_and_led_by_nobody_yet() {
    let (mut world, _) = untold();
    let (unheard, unknown) = (ResponseError::NotLeaderOrFollower.code(), ResponseError::UnknownTopicOrPartition.code());
    let unled = (ResponseError::LeaderNotAvailable.code(), -1, -1);
    assert_eq!([0, 1, 2].map(|partition| told(&mut world, partition)), [[unheard; 8], [unheard; 8], [unknown; 8]]);
    assert_eq!(led(&mut world), [unled; 2]);
    // It has had one partition until just now.
    let (broker, _) = world.parts();
    let options = StreamOptions { streamlets: 1, lanes: 1, replication: 1, ..StreamOptions::default() };
    broker.stream_comes(TOPIC, options).unwrap();
    assert_eq!([0, 1, 2].map(|partition| told(&mut world, partition)), [[unheard; 8], [unheard; 8], [unknown; 8]]);
    broker.place_stream(2, TOPIC, vec![owner(ME, 5)]).unwrap();
    broker.open_streamlet(TOPIC, StreamletId(0), 5, None).unwrap();
    assert_eq!(told(&mut world, 0)[..6], [0; 6]);
    assert_eq!([1, 2].map(|partition| told(&mut world, partition)), [[unheard; 8], [unknown; 8]]);
    assert_eq!(led(&mut world), [(0, ME.cast_signed(), 5), unled]);
}

/// It was told that there is none by the node that it had asked, which had not heard of it yet.
#[test]
fn a_topic_that_only_the_coordinators_leader_knows_is_deleted_by_way_of_this_node() {
    let (mut world, known) = untold();
    let new = StreamId(9);
    let id = world.running().door.topic_id(new);
    *known.elsewhere.lock() = vec!["new".into(), new.into(), "_kera.new".into()];
    let mut by_name = |name: &str| {
        let asked = DeleteTopicsRequest::default().with_topic_names(vec![topic(name)]);
        let one = world.call(5, &asked).responses.remove(0);
        assert_eq!(one.name, Some(topic(name)));
        one.error_code
    };
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let names = ["new", "new", "_kera.new", "a name"];
    assert_eq!(names.map(&mut by_name), [0, unknown, unknown, unknown]);
    let mut by_id = || {
        let wanted = DeleteTopicState::default().with_name(None).with_topic_id(id);
        let one = world.call(6, &DeleteTopicsRequest::default().with_topics(vec![wanted])).responses.remove(0);
        assert_eq!((one.name, one.topic_id), (None, id));
        one.error_code
    };
    assert_eq!([by_id(), by_id()], [0, ResponseError::UnknownTopicId.code()]);
    assert_eq!(*known.elsewhere.lock(), [StreamRef::Name("_kera.new".into())], "what is the system's is no topic");
}

/// Kafka's nodes ask their controller. It was told that there is none by the node that it had asked, which had not heard of it yet.
#[test]
fn a_topic_that_was_made_a_moment_ago_by_way_of_another_node_is_changed_by_way_of_this_one() {
    let (mut world, known) = untold();
    let comes = |stream, name: &str| known.comes(stream, name, of_two());
    let set = |world: &mut World, name: &str| {
        let one = AlterableConfig::default().with_name(text("retention.ms")).with_value(Some(text("60000")));
        let one = AlterConfigsResource::default().with_resource_type(2).with_configs(vec![one]);
        let asked = IncrementalAlterConfigsRequest::default().with_resources(vec![one.with_resource_name(text(name))]);
        world.call(0, &asked).responses[0].error_code
    };
    let grow = |world: &mut World, name: &str| {
        let one = CreatePartitionsTopic::default().with_name(topic(name)).with_count(3).with_assignments(None);
        world.call(1, &CreatePartitionsRequest::default().with_topics(vec![one])).results[0].error_code
    };
    let asked = || std::mem::take(&mut *known.asked.lock());
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    comes(5, "new");
    assert_eq!((set(&mut world, "new"), asked()), (0, vec![Op::DescribeMoves, Op::AlterStream]));
    comes(6, "newer");
    assert_eq!((grow(&mut world, "newer"), asked()), (0, vec![Op::DescribeMoves, Op::AlterStream]));
    assert_eq!((grow(&mut world, "newer"), asked()), (0, vec![Op::AlterStream]), "it is known");
    // What is to change of a setting follows from what is set: that has to be known.
    assert_eq!((set(&mut world, "newer"), asked()), (0, vec![Op::DescribeMoves, Op::AlterStream]));
    let changes: [fn(&mut World, &str) -> i16; 2] = [set, grow];
    for change in changes {
        assert_eq!((change(&mut world, "none"), asked()), (unknown, vec![Op::DescribeMoves]));
        assert_eq!((change(&mut world, "_kera.new"), asked()), (unknown, vec![]), "what is the system's is no topic");
    }
}

/// Each topic of a request, and each request that waited meanwhile, held up the commands of all connections for as long as the leader took.
#[test]
fn what_the_leader_knows_is_heard_once_for_all_that_has_come_by_then() {
    let (mut world, known) = untold();
    let asked = || std::mem::take(&mut *known.asked.lock());
    let one = AlterableConfig::default().with_name(text("retention.ms")).with_value(Some(text("60000")));
    let one = AlterConfigsResource::default().with_resource_type(2).with_configs(vec![one]);
    let all = ["none", "t", "neither"].map(|name| one.clone().with_resource_name(text(name)));
    let all = IncrementalAlterConfigsRequest::default().with_resources(all.to_vec());
    let told: Vec<i16> = world.call(0, &all).responses.iter().map(|one| one.error_code).collect();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!((told, asked()), (vec![unknown, 0, unknown], vec![Op::DescribeMoves, Op::AlterStream]));
    let door = Arc::clone(&world.running().door);
    let came = door.hears.begun();
    assert!((0..3).all(|_| door.hears.hear(&door, came).is_ok()));
    assert_eq!(asked(), [Op::DescribeMoves]);
    assert!(door.hears.hear(&door, door.hears.begun()).is_ok());
    assert_eq!(asked(), [Op::DescribeMoves], "this one has come since");
}

/// What becomes of a partition whose move is to be called off.
fn called_off_at(world: &mut World, name: &str, partition: i32) -> i16 {
    let one = ReassignablePartition::default().with_partition_index(partition).with_replicas(None);
    let one = ReassignableTopic::default().with_name(topic(name)).with_partitions(vec![one]);
    let asked = AlterPartitionReassignmentsRequest::default().with_topics(vec![one]);
    world.call(0, &asked).responses[0].partitions[0].error_code
}

/// The same where it is only named.
#[test]
fn a_topic_that_was_made_a_moment_ago_by_way_of_another_node_is_told_of_by_way_of_this_one() {
    let (mut world, known) = untold();
    let described = |world: &mut World, name: &str| {
        let one = DescribeConfigsResource::default().with_resource_type(2).with_configuration_keys(None);
        let asked = DescribeConfigsRequest::default().with_resources(vec![one.with_resource_name(text(name))]);
        world.call(1, &asked).results[0].error_code
    };
    let elected = |world: &mut World, name: &str| {
        let one = TopicPartitions::default().with_topic(topic(name)).with_partitions(vec![0]);
        let asked = ElectLeadersRequest::default().with_election_type(0).with_topic_partitions(Some(vec![one]));
        world.call(1, &asked).replica_election_results[0].partition_result[0].error_code
    };
    let called_off = |world: &mut World, name: &str| called_off_at(world, name, 0);
    let asked = || std::mem::take(&mut *known.asked.lock());
    let (unknown, heard) = (ResponseError::UnknownTopicOrPartition.code(), vec![Op::DescribeMoves]);
    let nothing_moves = ResponseError::NoReassignmentInProgress.code();
    let tells: [fn(&mut World, &str) -> i16; 3] = [described, elected, called_off];
    let told = [0, ResponseError::PreferredLeaderNotAvailable.code(), nothing_moves];
    let names = [(5, "new"), (6, "newer"), (7, "newest")];
    for ((tell, told), (stream, name)) in tells.into_iter().zip(told).zip(names) {
        known.comes(stream, name, of_two());
        assert_eq!((tell(&mut world, name), asked()), (told, heard.clone()), "{name}");
        assert_eq!((tell(&mut world, name), asked()), (told, vec![]), "{name} is known");
        assert_eq!((tell(&mut world, "none"), asked()), (unknown, heard.clone()));
        assert_eq!((tell(&mut world, "_kera.new"), asked()), (unknown, vec![]), "what is the system's is no topic");
    }
    // It has grown by way of another one.
    let options = StreamOptions { streamlets: 3, ..of_two() };
    known.comes.lock().push(Entry::StreamAltered { stream: StreamId(7), at_ms: 3_000, options });
    assert_eq!((called_off_at(&mut world, "newest", 2), asked()), (nothing_moves, heard.clone()));
    assert_eq!((called_off_at(&mut world, "newest", 3), asked()), (unknown, heard));
}

/// It was told as not there, or as there, by what the node had heard.
#[test]
fn a_topic_that_has_the_place_of_one_that_is_gone_is_deleted_and_one_that_is_gone_is_made_anew() {
    let (mut world, known) = untold();
    // The node knows number 4 of that name.
    *known.elsewhere.lock() = vec!["t".into()];
    let delete = DeleteTopicsRequest::default().with_topic_names(vec![topic("t")]);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!([0; 2].map(|_| world.call(5, &delete).responses[0].error_code), [0, unknown]);
    assert!(known.elsewhere.lock().is_empty());
    let one = CreatableTopic::default().with_name(topic("t")).with_num_partitions(1).with_replication_factor(1);
    let create = CreateTopicsRequest::default().with_topics(vec![one]).with_validate_only(true);
    assert_eq!(world.call(5, &create).topics[0].error_code, ResponseError::TopicAlreadyExists.code());
    known.comes.lock().push(Entry::StreamDeleted { stream: TOPIC, at_ms: 2_000 });
    assert_eq!(world.call(5, &create).topics[0].error_code, 0);
}
