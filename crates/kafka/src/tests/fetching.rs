//! How much a fetch waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP};
use kera_format::record::REMOVED_RECORD;
use kera_format::{
    BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkView, Compression, Cursor, LaneId, Record, SegmentIndex,
    StreamId, StreamletId,
};
use kera_log::Lane;
use kera_protocol::admin::StreamRef;
use kera_protocol::placement::{LaneState, Memory, OlderGroups, OwnerRun, StreamOwners, StreamletState};
use kera_protocol::{
    AvailableGroups, Body, FindOwners, GroupInfo, GroupList, Op, Owner, Owners, ReadAnswer, ReadChunks,
    ReadChunksResponse, ReadEntry, Status,
};

use super::parts::{ME, OTHER, owner, together};
use super::transactions::owners::{Asked, bytes};
use super::transactions::{NOW_MS, World, topic};
use super::*;
use crate::Answered;
use crate::batch::tests::MADE;
use crate::door::{Coordinators, OtherNodes};
use crate::fetch::tests::read_meanwhile;
use crate::floors::of_plain;
use crate::offsets::tests::{begins_meanwhile, found_behind};
use crate::older::{Shared, Step};
use crate::session::KafkaSession;

impl World {
    /// Appends one batch of so many bytes, more or less.
    fn put(&mut self, name: &str, bytes: usize) {
        self.put_in(name, 0, bytes);
    }

    fn put_in(&mut self, name: &str, partition: i32, bytes: usize) {
        let request = World::produce_request(None, name, partition, batch(&[&vec![7; bytes]], (-1, -1, -1)));
        assert_eq!(self.call(9, &request).responses[0].partition_responses[0].error_code, 0);
    }

    /// Appends one chunk of so many native records of so many bytes each.
    fn put_native(&mut self, name: &str, partition: i32, records: usize, bytes: usize, compression: Compression) {
        let mut chunk = ChunkBuilder::default();
        let value = vec![7; bytes];
        (0..records).for_each(|_| chunk.push(&Record { timestamp_ms: Some(NOW_MS), ..Record::value(&value) }));
        self.append_native(name, partition, chunk, compression);
    }

    /// Appends what compaction leaves of a chunk of one native record that it takes.
    fn put_removed(&mut self, name: &str, partition: i32) {
        let mut bytes = vec![0; CHUNK_HEADER_BYTES];
        bytes.extend_from_slice(&REMOVED_RECORD);
        self.append_native(name, partition, ChunkBuilder::filled(bytes, 1, NO_TIMESTAMP), Compression::None);
    }

    fn append_native(&mut self, name: &str, partition: i32, chunk: ChunkBuilder, compression: Compression) {
        let door = &self.running().door;
        let lane = door.topic(&door.info(name).unwrap()).unwrap().lane(partition).unwrap().clone();
        let (stream, streamlet) = (lane.stream_id(), lane.streamlet_id());
        let chunk = chunk.seal(&ChunkTarget { stream, streamlet, ..ChunkTarget::default() }, compression).unwrap();
        lane.append(&ChunkView::parse(&chunk).unwrap(), NOW_MS).unwrap();
        self.sink.release();
    }

    /// A topic with so many partitions.
    fn create(&mut self, name: &str, partitions: i32) {
        let one = create_topics_request::CreatableTopic::default()
            .with_name(topic(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let made = self.call(5, &CreateTopicsRequest::default().with_topics(vec![one]).with_timeout_ms(1_000));
        assert_eq!(made.topics[0].error_code, 0);
    }
}

/// A fetch of the start of "t", which waits for `least` bytes and may have `most`.
fn fetch_of(least: i32, most: i32, of_partition: i32) -> FetchRequest {
    let partition = fetch_request::FetchPartition::default().with_partition_max_bytes(of_partition);
    let one = fetch_request::FetchTopic::default().with_topic(topic("t")).with_partitions(vec![partition]);
    FetchRequest::default().with_max_wait_ms(60_000).with_min_bytes(least).with_max_bytes(most).with_topics(vec![one])
}

/// Time does not pass here: what is not answered at once is not answered.
#[test]
fn a_reader_that_lags_does_not_wait_for_what_no_answer_can_hold() {
    let mut world = World::new();
    (0..4 << 6).for_each(|_| world.put("t", 16 << 10));
    let mib = 1 << 20;
    // Whole batches are a little less than what it asks for; and more than an answer may have cannot be waited for.
    for (least, most, of_partition) in [(mib, 50 * mib, mib), (2 * mib, mib, mib), (2 * mib, mib, 2 * mib)] {
        world.send(11, &fetch_of(least, most, of_partition));
        let answer = world.answer::<FetchRequest>(11).expect("it is answered at once");
        let records = answer.responses[0].partitions[0].records.as_ref().map_or(0, |records| records.len());
        assert!(records > (15 << 16) && records <= 1 << 20, "{records}");
    }
}

impl World {
    /// The bytes that an answer of `least` and `most` bytes has of partitions of "t" and "u", in the order in which they are asked for. It comes at once.
    fn fetched_of(&mut self, (least, most): (i32, i32), of_partition: i32, order: &[(&str, i32)]) -> Vec<usize> {
        let one = |(name, at): &(&str, i32)| {
            let partition = fetch_request::FetchPartition::default().with_partition(*at);
            let partitions = vec![partition.with_partition_max_bytes(of_partition)];
            fetch_request::FetchTopic::default().with_topic(topic(name)).with_partitions(partitions)
        };
        let asked = fetch_of(least, most, 0).with_topics(order.iter().map(one).collect());
        self.send(11, &asked);
        let answer = self.answer::<FetchRequest>(11).expect("it is answered at once");
        let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|one| one.records.as_ref().map_or(0, |records| records.len())).collect()
    }
}

/// Clients close the connection then, and come again for the same.
#[test]
fn no_answer_has_more_bytes_than_may_be_in_it() {
    const LARGE: usize = 900_000;
    let mut world = World::new();
    (0..2).for_each(|at| world.put_in("t", at, LARGE));
    world.put_in("u", 0, 10_000);
    let large = |bytes: &usize| (LARGE..LARGE + 1_000).contains(bytes);
    let small = |bytes: &usize| (10_000..11_000).contains(bytes);
    // No more fits, so nobody waits for more. Whoever has no room left is passed over, and what comes behind it may have some.
    let all = (1_000_000, 1_000_000);
    for [first, second] in [[0, 1], [1, 0]] {
        let told = world.fetched_of(all, 20 << 20, &[("t", first), ("t", second), ("u", 0)]);
        assert!(large(&told[0]) && told[1] == 0 && small(&told[2]), "{told:?}");
        let told = world.fetched_of(all, 20 << 20, &[("u", 0), ("t", first), ("t", second)]);
        assert!(small(&told[0]) && large(&told[1]) && told[2] == 0, "{told:?}");
    }
    // What comes first is told even so: the client would never get on.
    for of_partition in [1, 20 << 20] {
        let told = world.fetched_of((1, 1_000), of_partition, &[("t", 1), ("u", 0), ("t", 0)]);
        assert!(large(&told[0]) && told[1..] == [0, 0], "{told:?}");
    }
    // The limit of a partition keeps nobody from getting on where the answer has room.
    let told = world.fetched_of((1, 1_000_000), 1, &[("u", 0), ("t", 0)]);
    assert!(small(&told[0]) && large(&told[1]), "{told:?}");
}

#[test]
fn a_limit_of_nothing_keeps_nobody_from_getting_on() {
    let mut world = World::new();
    world.put_in("t", 0, 10_000);
    world.put_in("t", 1, 20_000);
    let one = |bytes: usize, told: usize| (bytes..bytes + 1_000).contains(&told);
    for (most, of_partition) in [(1 << 20, 0), (0, 1 << 20), (0, 0)] {
        let told = world.fetched_of((1, most), of_partition, &[("u", 0), ("t", 0), ("t", 1)]);
        assert!(told[0] == 0 && one(10_000, told[1]) && told[2] == 0, "{most} {of_partition}: {told:?}");
    }
}

/// A client that names partitions in the same order each time would have the second only when the first has nothing.
#[test]
fn an_answer_goes_beyond_its_pace_by_one_batch_where_its_client_allows_that() {
    let mut world = World::new();
    world.put_in("t", 0, 200_000);
    (0..2).for_each(|_| world.put_in("t", 1, 900_000));
    world.put_in("u", 0, 10_000);
    let one = |bytes: usize, told: usize| (bytes..bytes + 1_000).contains(&told);
    let told = world.fetched_of((1, 50 << 20), 1 << 20, &[("t", 0), ("t", 1), ("u", 0)]);
    assert!(one(200_000, told[0]) && one(900_000, told[1]) && told[2] == 0, "{told:?}");
    let told = world.fetched_of((1, 1_050_000), 1 << 20, &[("t", 0), ("t", 1), ("u", 0)]);
    assert!(one(200_000, told[0]) && told[1] == 0 && one(10_000, told[2]), "{told:?}");
}

/// Of hundreds of partitions behind a full answer each would be made into a batch, for nothing.
#[test]
fn native_records_for_which_no_room_is_left_are_not_made_into_batches() {
    const PARTITIONS: i32 = 50;
    let mut world = World::new();
    for (name, records, bytes) in [("large", 1, 900_000), ("tiny", 7_000, 10)] {
        world.create(name, PARTITIONS);
        let compression = |at| if at < 2 { Compression::None } else { Compression::Lz4 };
        (0..PARTITIONS).for_each(|at| world.put_native(name, at, records, bytes, compression(at)));
    }
    world.put_native("u", 0, 1, 10_000, Compression::None);
    let mut fetched = |order: &[(&str, i32)]| {
        let before = MADE.get();
        let told = world.fetched_of((1, 1_000_000), 1 << 20, order);
        (told, MADE.get() - before)
    };
    let all = |name| (0..PARTITIONS).map(move |at| (name, at));
    let order: Vec<_> = all("large").chain(all("tiny")).chain([("u", 0)]).collect();
    let (told, made) = fetched(&order);
    let with_data: Vec<_> = (0..order.len()).filter(|at| told[*at] > 0).collect();
    assert_eq!((with_data, made), (vec![0, order.len() - 1], 2), "what is small fills the gap");
    // Of records that are tiny the chunk does not say enough, but only one is made that does not fit.
    let order: Vec<_> = [("large", 0)].into_iter().chain(all("tiny")).chain([("u", 0)]).collect();
    let (told, made) = fetched(&order);
    let with_data: Vec<_> = (0..order.len()).filter(|at| told[*at] > 0).collect();
    assert_eq!((with_data, made), (vec![0, order.len() - 1], 3));
    // Whoever is first has its turn, however long that is.
    for at in [1, PARTITIONS - 1] {
        let (told, made) = fetched(&[("large", at), ("large", 0)]);
        assert!(told[0] > 900_000 && told[1] == 0 && made == 1, "{told:?} {made}");
    }
}

#[test]
fn batches_of_several_partitions_fill_an_answer_and_not_more() {
    let mut world = World::new();
    for at in [0, 1] {
        (0..20).for_each(|_| world.put_in("t", at, 16 << 10));
    }
    for most in [100_000, 250_000, 400_000] {
        let told = world.fetched_of((1, most), 180_000, &[("t", 0), ("t", 1)]);
        let all: usize = told.iter().sum();
        assert!(all <= most as usize && all + (17 << 10) > (most as usize).min(2 * 180_000 - (17 << 10)), "{told:?}");
    }
}

/// The same of partitions 0 and 1.
fn of_two_partitions(mut asked: FetchRequest) -> FetchRequest {
    let one = asked.topics[0].partitions[0].clone();
    asked.topics[0].partitions = [0, 1].map(|at| one.clone().with_partition(at)).to_vec();
    asked
}

/// Another connection writes a record of so many bytes to a partition of topic `t`.
fn somebody_else_produces(world: &mut World, partition: i32, bytes: usize) {
    let door = world.running().door.clone();
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    let mut other = KafkaSessions(door).open(peer, SessionWaker::detached());
    let mut out = Outbox::new(1 << 20);
    let produce = produce_frame("t", partition, -1, &batch(&[&vec![7; bytes]], (-1, -1, -1)));
    assert_eq!(other.on_frame(&FrameHeader::default(), &produce, &mut out), Flow::Done);
}

/// A part of the answer is held while segments come from disk, or the fetch waits for more: nobody gets more by looking again.
#[test]
fn a_fetch_that_looks_again_keeps_to_what_may_be_in_its_answer() {
    let mut world = World::new();
    world.put_in("t", 1, 500_000);
    world.send(11, &of_two_partitions(fetch_of(900_000, 1_000_000, 20 << 20)));
    assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
    somebody_else_produces(&mut world, 0, 600_000);
    let answer = world.answer::<FetchRequest>(11).expect("more does not fit");
    let told = answer.responses[0].partitions.iter().map(|one| one.records.as_ref().map_or(0, |records| records.len()));
    let told: Vec<usize> = told.collect();
    assert!(told[0] == 0 && (500_000..501_000).contains(&told[1]), "{told:?}");
}

/// It was counted as if it came first. What others had was left out for it when all was read, and then it had no room either.
#[test]
fn a_batch_that_has_no_room_behind_what_a_fetch_has_found_takes_that_of_no_other_partition() {
    let mut world = World::new();
    world.put_in("t", 0, 100_000);
    world.put_in("t", 1, 150_000);
    world.send(11, &of_two_partitions(fetch_of(300_000, 4 << 20, 4 << 20)));
    assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
    // The client would take it, but an answer at its pace has about a MiB.
    somebody_else_produces(&mut world, 1, 940_000);
    let answer = world.answer::<FetchRequest>(11).expect("more does not fit");
    let told = answer.responses[0].partitions.iter();
    let told: Vec<usize> = told.map(|one| one.records.as_ref().map_or(0, |records| records.len() / 50_000)).collect();
    assert_eq!(told, [2, 3]);
}

#[test]
fn a_reader_that_has_found_something_waits_for_more_at_the_same_place() {
    let mut world = World::new();
    world.put("t", 1_000);
    world.send(11, &fetch_of(10_000, 1 << 20, 1 << 20));
    assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
    // Somebody else produces.
    somebody_else_produces(&mut world, 0, 20_000);
    world.sink.release();
    let answer = world.answer::<FetchRequest>(11).expect("there is enough");
    assert!(answer.responses[0].partitions[0].records.as_ref().is_some_and(|records| records.len() > 20_000));
}

/// With each wake-up all that there was became batches again.
#[test]
fn native_records_that_a_fetch_waits_with_become_batches_twice_at_most() {
    const CHUNKS: usize = 20;
    let mut world = World::new();
    let before = MADE.get();
    // A batch of one such record has 1,045 to 1,100 bytes.
    world.send(11, &fetch_of(20_900, 1 << 20, 1 << 20));
    for at in 0..CHUNKS {
        assert!(world.answer::<FetchRequest>(11).is_none(), "{at} are too few");
        world.put_native("t", 0, 1, 1_000, Compression::None);
    }
    let answer = world.answer::<FetchRequest>(11).expect("there is enough");
    let one = &answer.responses[0].partitions[0];
    assert_eq!((one.error_code, one.high_watermark), (0, CHUNKS as i64));
    assert!(one.records.as_ref().is_some_and(|records| (20_900..22_000).contains(&records.len())));
    assert!(MADE.get() - before <= 2 * CHUNKS, "{}", MADE.get() - before);
}

#[test]
fn what_a_fetch_has_waited_with_is_told_when_its_time_is_over_unless_it_is_gone() {
    for is_deleted in [false, true] {
        let mut world = World::new();
        world.put_native("t", 1, 1, 1_000, Compression::None);
        let mut asked = fetch_of(500_000, 1 << 20, 1 << 20);
        let one = asked.topics[0].partitions[0].clone();
        asked.topics[0].partitions = [0, 1].map(|at| one.clone().with_partition(at)).to_vec();
        world.send(11, &asked);
        for partition in [1, 0, 1] {
            assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
            world.put_native("t", partition, 1, 1_000, Compression::None);
        }
        assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
        if is_deleted {
            let (_, coordinator) = world.parts();
            coordinator.delete_stream(&StreamRef::Name("t".to_owned())).unwrap();
        }
        world.clock.advance_ms(60_000);
        let running = world.running();
        running.session.on_wake(&mut running.out);
        let answer = world.answer::<FetchRequest>(11).expect("its time is over");
        let told = answer.responses[0].partitions.iter();
        let told: Vec<(i16, usize)> =
            told.map(|one| (one.error_code, one.records.as_ref().map_or(0, |records| records.len() / 1_000))).collect();
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        assert_eq!(told, if is_deleted { [(unknown, 0); 2] } else { [(0, 1), (0, 3)] });
    }
}

#[test]
fn an_offset_that_is_appended_and_not_durable_yet_is_waited_for() {
    let mut world = World::new();
    let produce = World::produce_request(None, "safe", 0, batch(&[b"x"], (-1, -1, -1))).with_acks(0);
    world.send(9, &produce);
    let at = |world: &mut World, offset| {
        let answer = world.call(11, &fetch_request("safe", 0, offset, 0));
        let one = &answer.responses[0].partitions[0];
        (one.error_code, one.high_watermark, one.records.as_ref().is_some_and(|records| !records.is_empty()))
    };
    assert_eq!((at(&mut world, 0), at(&mut world, 1)), ((0, 0, false), (0, 0, false)));
    assert_eq!(at(&mut world, 2), (ResponseError::OffsetOutOfRange.code(), -1, false), "nobody has been told of it");
    world.sink.release();
    assert_eq!((at(&mut world, 0), at(&mut world, 1)), ((0, 1, true), (0, 1, false)));
}

/// Of thousands of compacted segments the first had gone from memory when the last had come: it was brought back, and then those behind it, without an end.
#[test]
fn a_reader_passes_once_over_batches_of_which_only_places_are_left() {
    const CHUNKS: usize = 20;
    let mut world = World::new();
    (0..CHUNKS).for_each(|_| world.put_removed("t", 0));
    let (all, before) = ((0, 1 << 20), MADE.get());
    for _ in 0..3 {
        assert_eq!(world.fetched_of(all, 1 << 20, &[("t", 0)]), [0]);
    }
    assert_eq!(MADE.get() - before, CHUNKS, "each was looked at once");
    world.put_native("t", 0, 1, 10, Compression::None);
    assert!(world.fetched_of(all, 1 << 20, &[("t", 0)])[0] > 0, "what comes behind them is found");
}

/// A node that has a partition again which another one had meanwhile. From before that it has so many batches of which only places are left.
fn with_removed_before(chunks: usize) -> World {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let stream = coordinator.stream(&StreamRef::Name("t".into())).unwrap().id;
    broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
    (0..2).for_each(|streamlet| broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap());
    world.restart();
    (0..chunks).for_each(|_| world.put_removed("t", 0));
    broker.set_owner(2, stream, StreamletId(0), owner(OTHER, 7)).unwrap();
    let older = [(5, ME), (7, OTHER)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
    broker.set_owner(3, stream, StreamletId(0), Owner { older: older.to_vec(), ..owner(ME, 9) }).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 9, None).unwrap();
    world
}

/// What a node has of a partition from before another one had it is read in the same way.
#[test]
fn a_reader_of_what_was_written_before_passes_once_over_batches_of_which_only_places_are_left() {
    const CHUNKS: usize = 20;
    let mut world = with_removed_before(CHUNKS);
    let before = MADE.get();
    for _ in 0..3 {
        assert_eq!(world.fetched_of((0, 1 << 20), 1 << 20, &[("t", 0)]), [0]);
    }
    assert_eq!(MADE.get() - before, CHUNKS, "each was looked at once");
}

/// While it waits for what the present owner has, nothing of what was written before is looked at again.
#[test]
fn a_reader_that_has_passed_over_what_was_written_before_goes_on_at_the_present_owner() {
    const CHUNKS: usize = 20;
    let mut world = with_removed_before(CHUNKS);
    world.put_removed("t", 0);
    let (door, asked) = (world.running().door.clone(), Arc::new(Asked::default()));
    door.set_others(asked.clone());
    // The other node has nothing of it, and that is known before the first look.
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
    assert_eq!(Shared::of(&door, &lane).unwrap().unwrap().first(&door, &lane), Some(0));
    let questions = asked.take::<AvailableGroups>();
    assert_eq!(questions.len(), 1);
    questions.into_iter().for_each(|(_, done)| done(bytes(&GroupList { groups: Vec::new(), more: false })));
    world.nodes();
    let known = door.broker.ownership().owner(lane.stream_id(), lane.streamlet_id()).unwrap();
    world.says_owners(&asked, &lane, &known);
    let before = MADE.get();
    for _ in 0..3 {
        assert_eq!(world.fetched_of((0, 1 << 20), 1 << 20, &[("t", 0)]), [0]);
    }
    assert_eq!(MADE.get() - before, CHUNKS + 1, "each was looked at once");
}

/// The owner of partition 1 of "t" is this node. Two runs of older groups are at these nodes.
fn after_two_runs(nodes: [u32; 2]) -> Owner {
    let older = [(3, nodes[0]), (5, nodes[1])].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
    Owner { older: older.to_vec(), ..owner(ME, 9) }
}

/// A node that knows this of partition 1 of "t", of which it has no record and others had twenty when it came to this one.
fn behind_others(known: Owner) -> World {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let (stream, streamlet) = (coordinator.stream(&StreamRef::Name("t".into())).unwrap().id, StreamletId(1));
    broker.place_stream(1, stream, vec![owner(ME, 5), known]).unwrap();
    let (lane, memory) = (LaneId(0), Memory::Whole);
    let lane =
        LaneState { lane, next_ordinal: 20, last_append_ms: 0, memory, producers: Vec::new(), groups: Vec::new() };
    let state = StreamletState { stream, streamlet, epoch: 5, lanes: vec![lane], progress: Vec::new() };
    broker.open_streamlet(stream, StreamletId(0), 5, None).unwrap();
    broker.open_streamlet(stream, streamlet, 9, Some(&state)).unwrap();
    world.restart();
    world
}

/// The same, what it asks, and the partition.
fn after_others(known: Owner) -> (World, Arc<Asked>, Arc<Lane>) {
    let mut world = behind_others(known);
    let (door, asked) = (world.running().door.clone(), Arc::new(Asked::default()));
    door.set_others(asked.clone());
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(1).unwrap().clone();
    (world, asked, lane)
}

/// Another node, which has thirty records of a partition in a group of owner epoch 5, each in a chunk of its own.
struct GoesFurther;

impl OtherNodes for GoesFurther {
    fn leading_coordinator(&self) -> Option<u32> {
        None
    }
    fn coordinators(&self) -> Coordinators {
        Coordinators::default()
    }
    fn copies_of(&self, owner: u32, _: u32) -> (Vec<u32>, Vec<u32>) {
        (vec![owner], vec![owner])
    }
    fn read(&self, _: u32, _: StreamId, _: StreamletId, at: Cursor) -> Result<crate::Given, String> {
        Ok(crate::Given { next: at, ..crate::Given::default() })
    }
    fn ask(&self, _: u32, _: Op, _: Vec<u8>, done: Answered) {
        done(Err("it is not asked for that".into()));
    }
    fn ask_native(&self, _: u32, op: Op, body: Vec<u8>, done: Answered) {
        match op {
            Op::AvailableGroups => done(bytes(&GroupList { groups: vec![group_of(5, 0, 30)], more: false })),
            Op::ReadChunks => {
                let asked = ReadChunks::decode(op.version_max(), &body).unwrap();
                done(bytes(&ReadChunksResponse { answers: vec![thirty_chunks(&asked.entries[0])] }));
            }
            _ => done(Err("it is not asked for that".into())),
        }
    }
    fn serves_transactions(&self) -> bool {
        true
    }
}

/// What it answers for an entry.
fn thirty_chunks(entry: &ReadEntry) -> (ReadAnswer, bytes::Bytes) {
    let chunk = |base_ordinal: u64| {
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record { timestamp_ms: Some(NOW_MS), ..Record::value(b"other") });
        let target = ChunkTarget { stream: entry.stream, streamlet: entry.streamlet, ..ChunkTarget::default() };
        let mut chunk = chunk.seal(&target, Compression::None).unwrap();
        let group = kera_format::GroupId::new(5, 1);
        BrokerPart { group, base_ordinal, append_time_ms: NOW_MS, ..BrokerPart::default() }.stamp(&mut chunk);
        chunk
    };
    let data: Vec<u8> = (0..30).flat_map(chunk).collect();
    let (status, start, next, data_bytes) = (Status::Ok as u16, entry.cursor, entry.cursor, data.len() as u32);
    let answer = ReadAnswer { index: 0, status, flags: 0, start, next, durable_ordinal: 30, data_bytes };
    (answer, data.into())
}

/// A group of lane 0 with one segment.
fn group_of(epoch: u32, first_ordinal: u64, durable_ordinal: u64) -> GroupInfo {
    GroupInfo {
        group: kera_format::GroupId::new(epoch, 1),
        lane: LaneId(0),
        first_segment: SegmentIndex(0),
        last_segment: SegmentIndex(0),
        first_ordinal,
        durable_ordinal,
        bytes: 100,
        closed: true,
        first_append_ms: 0,
        last_append_ms: 0,
    }
}

/// It lacked the last ten of them when it gave the partition away, and its disk has given them again since.
#[test]
fn what_another_node_has_behind_where_the_present_owner_begins_is_not_read() {
    let older = vec![OlderGroups { first_epoch: 5, node: OTHER }];
    let mut world = behind_others(Owner { older, ..owner(ME, 9) });
    let door = world.running().door.clone();
    door.set_others(Arc::new(GoesFurther));
    (0..15).for_each(|_| world.put_native("t", 1, 1, 10, Compression::None));
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(1).unwrap().clone();
    assert_eq!(world.begins(&lane), None);
    world.nodes();
    assert_eq!(world.begins(&lane), Some(0));
    // Each batch, by its first offset and the owner epoch that it is of.
    let (mut read, mut turns): (Vec<(i64, i32)>, u32) = (Vec::new(), 0);
    while read.len() < 35 && turns < 35 {
        let next = read.last().map_or(0, |(offset, _)| offset + 1);
        world.send(11, &fetch_request("t", 1, next, 60_000));
        world.nodes();
        let answer = world.answer::<FetchRequest>(11).expect("it is answered");
        let records = answer.responses[0].partitions[0].records.clone().unwrap_or_default();
        let mut at = 0;
        while let Some(head) = records.get(at..at + 16) {
            let word = |from: usize| i32::from_be_bytes(head[from..from + 4].try_into().unwrap());
            read.push((i64::from_be_bytes(head[..8].try_into().unwrap()), word(12)));
            at += 12 + word(8) as usize;
        }
        turns += 1;
    }
    let expected: Vec<(i64, i32)> = (0..35).map(|offset| (offset, if offset < 20 { 5 } else { 9 })).collect();
    assert_eq!(read, expected);
}

impl World {
    /// Where a partition begins, if that is known.
    fn begins(&mut self, lane: &Arc<Lane>) -> Option<u64> {
        let door = self.running().door.clone();
        Shared::of(&door, lane).unwrap().unwrap().first(&door, lane)
    }

    /// The other node is asked for its groups, and has one of each of these owner epochs: the first ten records in 3, ten more in 5.
    fn says_groups(&mut self, asked: &Asked, epochs: &[u32]) {
        self.says_page(asked, epochs, false);
    }

    fn says_page(&mut self, asked: &Asked, epochs: &[u32], more: bool) {
        let group = |epoch: &u32| {
            let first_ordinal = if *epoch == 3 { 0 } else { 10 };
            group_of(*epoch, first_ordinal, first_ordinal + 10)
        };
        let (_, done) = asked.take::<AvailableGroups>().pop().expect("it is asked");
        done(bytes(&GroupList { groups: epochs.iter().map(group).collect(), more }));
        self.nodes();
    }

    /// The other node is asked for the owners behind that, and knows this one of the partition. It tells of each streamlet on a page.
    fn says_owners(&mut self, asked: &Asked, lane: &Lane, known: &Owner) {
        let (stream, last) = (lane.stream_id(), lane.streamlet_id().0);
        for at in 0..=last {
            let (of, done) = asked.take::<FindOwners>().pop().expect("it is asked");
            assert_eq!(of.streams, [StreamRef::Id(stream)]);
            assert_eq!(of.after, at.checked_sub(1).map(|before| (stream, StreamletId(before))));
            let Owner { node, epoch, older } = if at == last { known.clone() } else { owner(OTHER, 1) };
            let run = OwnerRun { first: StreamletId(at), count: 1, step: 1, node, epoch, older };
            let page = Owners {
                cluster: [7; 16],
                version: 8,
                node: OTHER,
                nodes: Vec::new(),
                streams: vec![StreamOwners { stream, streamlets: 2, runs: vec![run] }],
                more: at < last,
            };
            done(bytes(&page));
            self.nodes();
        }
    }
}

/// The other node has heard that a third one has the first ten records, and this node has not.
#[test]
fn records_that_have_gone_from_the_node_that_should_have_them_are_not_passed_over() {
    const THIRD: u32 = 3;
    let (mut world, asked, lane) = after_others(after_two_runs([OTHER, OTHER]));
    assert_eq!(world.begins(&lane), None);
    world.says_groups(&asked, &[5]);
    assert_eq!(world.begins(&lane), None, "where the first ten are is not known");
    world.says_owners(&asked, &lane, &after_two_runs([THIRD, OTHER]));
    assert_eq!(world.begins(&lane), None);
    assert!(asked.take::<AvailableGroups>().is_empty(), "it is asked again a little later");
    world.clock.advance_ms(200);
    assert_eq!(world.begins(&lane), None);
    world.says_groups(&asked, &[3, 5]);
    assert!(asked.take::<FindOwners>().is_empty(), "it has told of all that it should have");
    assert_eq!(world.begins(&lane), Some(0));
}

/// The rest of what it has told on one page may have gone to a third node before it tells the next one.
#[test]
fn a_list_of_older_groups_of_two_pages_counts_if_its_node_has_heard_of_nothing_new_behind_it() {
    const THIRD: u32 = 3;
    for (says, begins) in [([OTHER, OTHER], Some(0)), ([THIRD, OTHER], None)] {
        let (mut world, asked, lane) = after_others(after_two_runs([OTHER, OTHER]));
        assert_eq!(world.begins(&lane), None);
        world.says_page(&asked, &[3], true);
        world.says_page(&asked, &[5], false);
        assert_eq!(world.begins(&lane), None, "it is asked what it has heard of");
        world.says_owners(&asked, &lane, &after_two_runs(says));
        assert_eq!(world.begins(&lane), begins, "{says:?}");
    }
}

/// Retention has taken the first ten records. The other node knows the same of the owners, or has not heard yet that it is not the owner any more.
#[test]
fn records_that_are_gone_for_good_are_passed_over() {
    let before = Owner { older: vec![OlderGroups { first_epoch: 3, node: OTHER }], ..owner(OTHER, 5) };
    for says in [after_two_runs([OTHER, OTHER]), before] {
        let (mut world, asked, lane) = after_others(after_two_runs([OTHER, OTHER]));
        assert_eq!(world.begins(&lane), None);
        world.says_groups(&asked, &[5]);
        world.says_owners(&asked, &lane, &says);
        assert_eq!(world.begins(&lane), Some(10), "{says:?}");
        world.clock.advance_ms(9_000);
        assert_eq!(world.begins(&lane), Some(10));
        assert!(asked.take::<AvailableGroups>().is_empty(), "that is kept for a while");
    }
}

/// The first ten records come to the other node, which had the last ten of the older ones and has told so. The owner is the same.
#[test]
fn a_node_that_has_got_more_older_groups_is_asked_again() {
    let (mut world, asked, lane) = after_others(after_two_runs([ME, OTHER]));
    assert_eq!(world.begins(&lane), None);
    world.says_groups(&asked, &[5]);
    assert!(asked.take::<FindOwners>().is_empty(), "it has told of all that it should have");
    assert_eq!(world.begins(&lane), Some(10));
    let known = after_two_runs([OTHER, OTHER]);
    world.parts().0.set_owner(2, lane.stream_id(), lane.streamlet_id(), known).unwrap();
    assert_eq!(world.begins(&lane), None);
    world.says_groups(&asked, &[3, 5]);
    assert_eq!(world.begins(&lane), Some(0));
}

/// It was the owner when the request came. What it has of the partition would look like all of it, and its readers would begin behind what another node has.
#[test]
fn a_node_that_a_partition_leaves_while_it_looks_does_not_take_what_it_has_for_all() {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let stream = coordinator.stream(&StreamRef::Name("t".into())).unwrap().id;
    broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
    (0..2).for_each(|streamlet| broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap());
    world.restart();
    let older = || vec![OlderGroups { first_epoch: 3, node: OTHER }];
    broker.set_owner(2, stream, StreamletId(0), Owner { older: older(), ..owner(ME, 5) }).unwrap();
    let door = world.running().door.clone();
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
    assert!(matches!(Shared::of(&door, &lane), Ok(Some(_))));
    broker.set_owner(3, stream, StreamletId(0), Owner { older: older(), ..owner(OTHER, 7) }).unwrap();
    assert!(Shared::of(&door, &lane).is_err());
}

/// Nobody can say here where what others have of it begins.
#[test]
fn where_a_partition_begins_is_not_known_if_others_come_to_have_some_of_it_meanwhile() {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let stream = coordinator.stream(&StreamRef::Name("t".into())).unwrap().id;
    broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
    (0..2).for_each(|streamlet| broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap());
    world.restart();
    let door = world.running().door.clone();
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
    let first = |meanwhile: &dyn Fn()| {
        of_plain(&lane, |lane| {
            meanwhile();
            lane.earliest().1
        })
    };
    let share = || {
        let older = vec![OlderGroups { first_epoch: 3, node: OTHER }];
        broker.set_owner(2, stream, StreamletId(0), Owner { older, ..owner(ME, 5) }).unwrap();
    };
    assert_eq!(first(&|| ()), Some(0));
    assert_eq!(first(&share), None);
    assert_eq!(first(&|| ()), None);
}

/// A node that has taken partition 0 of "t" over has three older records as well, until another node that came back with them holds them.
struct Leaving {
    broker: Arc<Broker>,
    session: KafkaSession,
    lane: Arc<Lane>,
    _world: World,
}

impl Leaving {
    fn new() -> Leaving {
        let mut world = World::new();
        let (broker, coordinator) = together(&world);
        let (stream, streamlet) = (coordinator.stream(&StreamRef::Name("t".into())).unwrap().id, StreamletId(0));
        broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
        (0..2).for_each(|streamlet| broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap());
        world.restart();
        (0..3).for_each(|_| world.put_native("t", 0, 1, 10, Compression::None));
        broker.set_owner(2, stream, streamlet, owner(OTHER, 7)).unwrap();
        let older = vec![OlderGroups { first_epoch: 5, node: ME }];
        broker.set_owner(3, stream, streamlet, Owner { older, ..owner(ME, 9) }).unwrap();
        broker.open_streamlet(stream, streamlet, 9, None).unwrap();
        world.put_native("t", 0, 1, 10, Compression::None);
        let door = world.running().door.clone();
        door.set_others(Arc::new(Asked::default()));
        let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
        let session = session_at(door);
        Leaving { broker, session, lane, _world: world }
    }

    /// What happens when the other node is found to hold them.
    fn leaves(broker: &Broker, lane: &Lane) {
        let older = vec![OlderGroups { first_epoch: 5, node: OTHER }];
        let (stream, streamlet) = (lane.stream_id(), lane.streamlet_id());
        broker.set_owner(4, stream, streamlet, Owner { older, ..owner(ME, 9) }).unwrap();
        broker.leave_to_holder(stream, streamlet);
    }
}

fn session_at(door: Arc<Door>) -> KafkaSession {
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    KafkaSession::new(door, peer, SessionWaker::detached())
}

/// The table of owners says so first, and then they go. In between a reader would take them for what retention has taken.
#[test]
fn who_reads_while_older_groups_leave_does_not_take_what_stays_for_all() {
    let Leaving { broker, mut session, lane, _world } = Leaving::new();
    assert_eq!(read_meanwhile(&mut session.core, &lane, &|| ()), (0, 0, true));
    let leaves = || Leaving::leaves(&broker, &lane);
    assert_eq!(read_meanwhile(&mut session.core, &lane, &leaves), (0, 0, false), "it waits for the other node");
    assert_eq!(lane.earliest().1, 3);
}

#[test]
fn who_asks_where_a_partition_begins_while_older_groups_leave_waits_for_who_has_them() {
    let Leaving { broker, session, lane, _world } = Leaving::new();
    assert_eq!(begins_meanwhile(&session.core, &lane, &|| ()), Some(0));
    let leaves = || Leaving::leaves(&broker, &lane);
    assert_eq!(begins_meanwhile(&session.core, &lane, &leaves), None);
    assert_eq!(lane.earliest().1, 3);
}

/// While it waits for what comes from disk.
#[test]
fn a_lookup_by_time_begins_anew_in_a_topic_that_was_made_again() {
    let mut world = World::new();
    (0..2).for_each(|_| world.put_native("t", 0, 1, 10, Compression::None));
    let door = world.running().door.clone();
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
    let session = session_at(door);
    let found = |of| found_behind(&session.core, &lane, (of, 1), 0);
    assert_eq!(found(lane.stream_id()), Some(1), "it goes on where it was");
    assert_eq!(found(StreamId(lane.stream_id().0 + 1)), Some(0));
}

/// Until its groups are rebuilt, or somebody gives them up.
#[test]
fn what_a_lost_node_had_of_a_partition_is_waited_for() {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let stream = coordinator.stream(&StreamRef::Name("t".into())).unwrap().id;
    broker.place_stream(1, stream, vec![owner(ME, 5), owner(ME, 5)]).unwrap();
    (0..2).for_each(|streamlet| broker.open_streamlet(stream, StreamletId(streamlet), 5, None).unwrap());
    world.restart();
    let held_by = |version, older: &[u32]| {
        let older = older.iter().map(|node| OlderGroups { first_epoch: 3, node: *node }).collect();
        broker.set_owner(version, stream, StreamletId(0), Owner { older, ..owner(ME, 5) }).unwrap();
    };
    let door = world.running().door.clone();
    let lane = door.topic(&door.info("t").unwrap()).unwrap().lane(0).unwrap().clone();
    held_by(2, &[0]);
    let shared = Shared::of(&door, &lane).unwrap().expect("some of it is not here");
    assert_eq!(shared.first(&door, &lane), None, "where it begins is not known");
    assert!(matches!(shared.step(&door, &lane, 0, 1 << 20, true), Step::Wait(_)));
    held_by(3, &[]);
    assert!(matches!(Shared::of(&door, &lane), Ok(None)));
}

/// As under transactions that run for long: lanes move, and there is nothing to read for readers of committed records.
#[test]
fn a_fetch_of_lanes_one_of_which_always_moves_lets_others_have_the_thread_and_ends_in_time() {
    const PARTITIONS: i32 = 64;
    let mut world = World::new();
    world.create("many", PARTITIONS);
    let (door, clock) = (world.running().door.clone(), world.clock.clone());
    let topic_of = door.topic(&door.info("many").unwrap()).unwrap();
    let lanes: Vec<_> = (0..PARTITIONS).map(|at| topic_of.lane(at).unwrap().clone()).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let movers = [0, 1].map(|_| {
        let (lanes, is_over) = (lanes.clone(), is_over.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                lanes.iter().for_each(|lane| lane.wake());
            }
        })
    });

    let (told, answers) = channel();
    std::thread::spawn(move || {
        let open = |connection| {
            let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection, io_thread: 0 };
            let session = KafkaSessions(door.clone()).open(peer, SessionWaker::detached());
            (session, Outbox::new(1 << 20))
        };
        let ((mut reader, mut read), (mut other, mut answered)) = (open(2), open(3));
        let partition = |at| fetch_request::FetchPartition::default().with_partition(at);
        let partitions = (0..PARTITIONS).map(|at| partition(at).with_partition_max_bytes(1 << 20)).collect();
        let one = fetch_request::FetchTopic::default().with_topic(topic("many")).with_partitions(partitions);
        let asked = FetchRequest::default().with_max_wait_ms(100).with_min_bytes(1).with_max_bytes(1 << 20);
        let asked = frame(ApiKey::Fetch, 11, 7, &asked.with_isolation_level(1).with_topics(vec![one]));
        assert_eq!(reader.on_frame(&FrameHeader::default(), &asked, &mut read), Flow::Done);
        assert!(read.to_vec().is_empty(), "there is nothing");
        let asked = frame(ApiKey::ApiVersions, 0, 8, &ApiVersionsRequest::default());
        assert_eq!(other.on_frame(&FrameHeader::default(), &asked, &mut answered), Flow::Done);
        clock.advance_ms(100);
        reader.on_wake(&mut read);
        told.send([read, answered].map(|out| !out.to_vec().is_empty()))
    });
    let answers = answers.recv_timeout(Duration::from_secs(180));
    is_over.store(true, Ordering::Relaxed);
    movers.into_iter().for_each(|mover| mover.join().unwrap());
    assert_eq!(answers.expect("the fetch lets go of the thread"), [true, true]);
}

/// Each keeps the lanes of its stream.
#[test]
fn a_connection_does_not_keep_all_topics_that_were_deleted_since() {
    let client = Client::new();
    let door = &client.door.as_ref().unwrap().0;
    let (mut session, mut streams) = (session_at(door.clone()), Vec::new());
    for number in 0..200 {
        let (name, options) = (format!("t{number}"), StreamOptions { replication: 1, ..StreamOptions::default() });
        let create = CreateStream { name: name.clone(), options, if_not_exists: false };
        door.coordinator.create_stream(&create).unwrap();
        let topic = session.core.topic(&name).expect("it is there");
        assert!(session.core.topic_of(door.topic_id(topic.stream.id())).is_some());
        streams.push(Arc::downgrade(&topic.stream));
        drop(topic);
        door.coordinator.delete_stream(&StreamRef::Name(name)).unwrap();
    }
    let kept = streams.iter().filter(|stream| stream.strong_count() > 0).count();
    assert!(kept < 20, "{kept}");
}
