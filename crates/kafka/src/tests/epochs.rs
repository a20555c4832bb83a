//! Epochs of leaders: what clients are told of them, and who is refused because of them.

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kera_format::StreamletId;
use kera_log::store::DiskStore;

use super::parts::{ME, Nobody, OTHER, owner, together};
use super::transactions::{World, topic};
use super::*;

/// A node that has had partition 0 of `t` in epochs 5 and 9, with two records in each, while another one had it in 7.
fn led_twice() -> World {
    let mut world = World::new();
    assert_eq!(world.plain("t", 1), 0);
    let (broker, coordinator) = together(&world);
    let stream = coordinator.stream(&kera_protocol::StreamRef::Name("t".into())).unwrap().id;
    broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
    for streamlet in [0, 1] {
        broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap();
    }
    world.restart();
    (0..2).for_each(|at| assert_eq!(world.plain("t", 0), at));
    broker.set_owner(2, stream, StreamletId(0), owner(OTHER, 7)).unwrap();
    assert_eq!(world.ends(-1, 5), (Code::NotLeaderOrFollower.code(), -1, -1));
    assert_eq!(world.asked_elsewhere(), [Code::NotLeaderOrFollower.code(); 2]);
    broker.set_owner(3, stream, StreamletId(0), owner(ME, 9)).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 9, None).unwrap();
    (2..4).for_each(|at| assert_eq!(world.plain("t", 0), at));
    world
}

impl World {
    /// The errors of requests about what a partition holds, to who does not lead it.
    fn asked_elsewhere(&mut self) -> [i16; 2] {
        let one = DeleteRecordsPartition::default().with_offset(1);
        let one = DeleteRecordsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        let deleted = self.call(1, &DeleteRecordsRequest::default().with_topics(vec![one]));
        let one = TopicRequest::default().with_name(topic("t")).with_partition_indexes(vec![0]);
        let producers = self.call(0, &DescribeProducersRequest::default().with_topics(vec![one]));
        [deleted.topics[0].partitions[0].error_code, producers.topics[0].partitions[0].error_code]
    }

    /// What OffsetForLeaderEpoch says of an epoch to who takes `known` for the current one: error, epoch, offset.
    fn ends(&mut self, known: i32, epoch: i32) -> (i16, i32, i64) {
        let one = OffsetForLeaderPartition::default().with_partition(0).with_current_leader_epoch(known);
        let one =
            OffsetForLeaderTopic::default().with_topic(topic("t")).with_partitions(vec![one.with_leader_epoch(epoch)]);
        let answer = self.call(4, &OffsetForLeaderEpochRequest::default().with_topics(vec![one]));
        let one = &answer.topics[0].partitions[0];
        (one.error_code, one.leader_epoch, one.end_offset)
    }

    /// The first offset from a time on, and its epoch.
    fn listed(&mut self, known: i32, timestamp: i64) -> (i16, i64, i32) {
        let one = ListOffsetsPartition::default().with_current_leader_epoch(known).with_timestamp(timestamp);
        let one = ListOffsetsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        let answer = self.call(4, &ListOffsetsRequest::default().with_topics(vec![one]));
        let one = &answer.topics[0].partitions[0];
        (one.error_code, one.offset, one.leader_epoch)
    }

    /// The error of a fetch from the start, and the epochs of the batches in it.
    fn fetched(&mut self, known: i32, partition: i32) -> (i16, Vec<i32>) {
        let mut request = fetch_request("t", partition, 0, 0);
        request.topics[0].partitions[0].current_leader_epoch = known;
        let answer = self.call(11, &request);
        let one = &answer.responses[0].partitions[0];
        let (records, mut at, mut epochs) = (one.records.clone().unwrap_or_default(), 0, Vec::new());
        while let Some(head) = records.get(at..at + 16) {
            let word = |from: usize| i32::from_be_bytes(head[from..from + 4].try_into().unwrap());
            epochs.push(word(12));
            at += 12 + word(8) as usize;
        }
        (one.error_code, epochs)
    }

    /// The epoch of partition 0, and its replicas: all, and those in sync.
    fn led(&mut self) -> (i32, Vec<i32>, Vec<i32>) {
        let one = MetadataRequestTopic::default().with_name(Some(topic("t")));
        let answer = self.call(9, &MetadataRequest::default().with_topics(Some(vec![one])));
        let one = &answer.topics[0].partitions[0];
        let ids = |nodes: &[BrokerId]| nodes.iter().map(|node| node.0).collect();
        (one.leader_epoch, ids(&one.replica_nodes), ids(&one.isr_nodes))
    }
}

#[test]
fn an_epoch_is_that_of_the_owner() {
    let mut world = led_twice();
    assert_eq!(world.led(), (9, vec![1], vec![1]));
    assert_eq!(world.fetched(9, 0), (0, vec![5, 5, 9, 9]));
    // What was written before there was a cluster is older than all owners.
    let (error, epochs) = world.fetched(5, 1);
    assert!(error == 0 && epochs.len() == 1 && epochs[0] < 5, "{epochs:?}");
    assert_eq!((world.listed(9, -1), world.listed(9, -2)), ((0, 4, 9), (0, 0, 5)));
}

#[test]
fn a_node_that_hears_no_coordinators_does_not_name_itself() {
    let mut world = led_twice();
    let (broker, coordinator) = world.parts();
    for name in ["u", "safe"] {
        let stream = coordinator.stream(&name.into()).unwrap().id;
        broker.place_stream(4, stream, vec![owner(OTHER, 5), owner(OTHER, 5)]).unwrap();
    }
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(world.led().0, 9);
    let told = |world: &mut World| {
        let partitions = TopicPartitions::default().with_topic(topic("t")).with_partitions(vec![0, 2]);
        let asked = [(0, Some(vec![partitions.clone()])), (1, Some(vec![partitions])), (0, None), (7, None)];
        asked.map(|(kind, partitions)| {
            let asked = ElectLeadersRequest::default().with_election_type(kind).with_topic_partitions(partitions);
            let answer = world.call(2, &asked);
            let results = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
            let told: Vec<_> = results.map(|one| (one.partition_id, one.error_code)).collect();
            (answer.error_code, told)
        })
    };
    let (unneeded, unknown) = ((0, Code::ElectionNotNeeded.code()), (2, Code::UnknownTopicOrPartition.code()));
    let (preferred, eligible) = (Code::PreferredLeaderNotAvailable.code(), Code::EligibleLeadersNotAvailable.code());
    let invalid = (Code::InvalidRequest.code(), vec![]);
    let led = (0, vec![unneeded, unknown]);
    assert_eq!(told(&mut world), [led.clone(), led, (0, vec![]), invalid.clone()]);
    world.clock.advance_ms(5_000);
    assert_eq!(world.led(), (-1, vec![], vec![]));
    let all = (0, vec![(0, preferred), (1, preferred)]);
    assert_eq!(told(&mut world), [(0, vec![(0, preferred), unknown]), (0, vec![(0, eligible), unknown]), all, invalid]);
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(world.led(), (9, vec![1], vec![1]));
}

/// Of what has copies backups say no to a node that was declared lost. Partitions come to another number of them one after the other, and their topic says so when all have.
#[test]
fn a_node_that_hears_no_coordinators_takes_batches_only_where_there_are_copies() {
    let mut world = led_twice();
    let (broker, coordinator) = world.parts();
    let stream = coordinator.stream(&"t".into()).unwrap().id;
    broker.set_copies(stream, StreamletId(1), 2).unwrap();
    broker.confirmed(world.clock.since_boot_us());
    let written = |world: &mut World| {
        [0, 1].map(|partition| {
            let produce = World::produce_request(None, "t", partition, batch(&[b"p"], (-1, -1, -1)));
            world.call(9, &produce).responses[0].partition_responses[0].error_code
        })
    };
    assert_eq!(written(&mut world), [0, 0]);
    world.clock.advance_ms(kera_broker::SERVES_MS);
    assert_eq!(written(&mut world), [Code::NotLeaderOrFollower.code(), 0]);
}

/// A topic may have been made since. librdkafka gives up the records of a topic of which it is told once that there is none, also of one that it knows.
#[test]
fn a_node_that_hears_no_coordinators_does_not_say_that_there_is_no_such_topic() {
    let mut world = led_twice();
    let broker = world.parts().0;
    broker.confirmed(world.clock.since_boot_us());
    let told = |world: &mut World| {
        let names = ["new", "a name", "t"].map(topic);
        let wanted = names.clone().map(|name| MetadataRequestTopic::default().with_name(Some(name)));
        let asked = MetadataRequest::default().with_topics(Some(wanted.to_vec()));
        let answer = world.call(9, &asked.with_allow_auto_topic_creation(false));
        let told: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
        let wanted = names.map(|name| describe_topic_partitions_request::TopicRequest::default().with_name(name));
        let asked = DescribeTopicPartitionsRequest::default().with_topics(wanted.to_vec());
        let answer = world.call(0, &asked.with_response_partition_limit(100));
        let described: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
        // Those are in the order of their names.
        let described = [1, 0, 2].map(|at: usize| described[at]).to_vec();
        assert_eq!(described, told);
        told
    };
    let (unknown, invalid) = (Code::UnknownTopicOrPartition.code(), Code::InvalidTopicException.code());
    assert_eq!(told(&mut world), [unknown, invalid, 0]);
    world.clock.advance_ms(5_000);
    assert_eq!(told(&mut world), [Code::LeaderNotAvailable.code(), invalid, 0]);
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(told(&mut world), [unknown, invalid, 0]);
}

#[test]
fn an_epoch_ends_where_the_next_one_begins() {
    let mut world = led_twice();
    // The one of which nothing is here ends where the one before it does.
    let told: Vec<_> = [5, 7, 9, 10, -1].map(|epoch| world.ends(9, epoch)).to_vec();
    assert_eq!(told, [(0, 5, 2), (0, 5, 2), (0, 9, 4), (0, -1, -1), (0, -1, -1)]);
    // Before all that there is: nothing of it is left. Who was told 0 of everything, by a node that was alone, goes on where it was.
    assert_eq!([3, 0].map(|epoch| world.ends(9, epoch)), [(0, 3, 0), (0, 0, 4)]);
}

#[test]
fn who_knows_another_leader_is_refused() {
    let mut world = led_twice();
    for (known, error) in [(5, Code::FencedLeaderEpoch), (10, Code::UnknownLeaderEpoch)] {
        assert_eq!(world.fetched(known, 0).0, error.code());
        assert_eq!(world.listed(known, -1).0, error.code());
        assert_eq!(world.ends(known, 5).0, error.code());
    }
    assert_eq!((world.fetched(-1, 0).0, world.listed(-1, -1).0, world.ends(-1, 5).0), (0, 0, 0));
}

/// A node that is alone, in its epoch 1, and its disk.
fn alone() -> (World, Arc<MemoryDisk>, Arc<DiskStore>) {
    let (mut world, disk) = (World::new(), Arc::new(MemoryDisk::default()));
    let store = world.power_on(&disk, 1);
    (world, disk, store)
}

fn write(world: &mut World, offsets: std::ops::Range<i64>) {
    offsets.for_each(|at| assert_eq!(world.plain("t", 0), at));
}

/// Everything that is closed by now is on disk.
fn store_all(world: &World, store: &DiskStore) {
    world.parts().0.log().close_all();
    store.flush_all().unwrap();
}

#[test]
fn a_node_that_is_alone_leads_in_its_own_epoch() {
    let (mut world, ..) = alone();
    assert_eq!(world.plain("t", 0), 0);
    assert_eq!((world.led(), world.fetched(1, 0)), ((1, vec![1], vec![1]), (0, vec![1])));
    assert_eq!((world.ends(1, 1), world.ends(1, 2)), ((0, 1, 1), (0, -1, -1)));
    assert_eq!(world.fetched(0, 0).0, Code::FencedLeaderEpoch.code());
    assert_eq!(world.fetched(2, 0).0, Code::UnknownLeaderEpoch.code());
}

#[test]
fn what_a_loss_of_power_takes_from_a_node_that_is_alone_ends_an_epoch() {
    let (mut world, disk, store) = alone();
    write(&mut world, 0..3);
    store_all(&world, &store);
    write(&mut world, 3..5);
    assert_eq!((world.led().0, world.ends(1, 1)), (1, (0, 1, 5)));
    world.power_on(&disk, 2);
    // Before anything is written again, and after it: whoever had read all goes back to where the lane has come back.
    assert_eq!((world.led().0, world.listed(2, -1), world.ends(2, 1)), (2, (0, 3, 2), (0, 1, 3)));
    write(&mut world, 3..6);
    assert_eq!((world.listed(2, -1), world.ends(2, 1), world.ends(2, 2)), ((0, 6, 2), (0, 1, 3), (0, 2, 6)));
    for (known, error) in [(1, Code::FencedLeaderEpoch), (3, Code::UnknownLeaderEpoch)] {
        let told = [world.fetched(known, 0).0, world.listed(known, -1).0, world.ends(known, 1).0];
        assert_eq!(told, [error.code(); 3]);
    }
}

#[test]
fn of_an_epoch_of_which_all_was_lost_nothing_is_left() {
    let (mut world, disk, _store) = alone();
    write(&mut world, 0..5);
    world.power_on(&disk, 2);
    assert_eq!(world.ends(2, 1), (0, 1, 0));
    write(&mut world, 0..8);
    assert_eq!((world.ends(2, 1), world.fetched(2, 0)), ((0, 1, 0), (0, vec![2; 8])));
    // An earlier version told 0 of everything, and of that nobody knows where it ends.
    assert_eq!(world.ends(2, 0), (0, 0, 8));
}

#[test]
fn an_epoch_that_lost_nothing_ends_where_it_did() {
    let (mut world, disk, store) = alone();
    write(&mut world, 0..5);
    store_all(&world, &store);
    world.power_on(&disk, 2);
    assert_eq!((world.led().0, world.ends(2, 1)), (2, (0, 1, 5)));
    write(&mut world, 5..8);
    assert_eq!((world.ends(2, 1), world.ends(2, 2)), ((0, 1, 5), (0, 2, 8)));
}

#[test]
fn replicas_are_told_of_topics_with_copies_only() {
    let mut world = led_twice();
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nobody::default()));
    assert_eq!(world.led(), (9, vec![1], vec![1]));
    let ids = |nodes: Vec<BrokerId>| nodes.into_iter().map(|node| node.0).collect::<Vec<_>>();
    let (replicas, in_sync) = door.copies_of(2, 3);
    assert_eq!((ids(replicas), ids(in_sync)), (vec![2, 3, 4], vec![2]));
    assert_eq!(door.copies_of(-1, 3), (vec![], vec![]));
}
