//! The owner of partitions and of groups whose transactions other nodes coordinate: what it waits for, what it asks, and what it does with
//! requests that come late or from who is not the coordinator any more. The coordinators are the test's.

use kera_format::chunk::ChunkTarget;
use kera_format::kafka_transactions::AbortedRange;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Cursor, LaneId, ProducerEpoch, Record, StreamId, StreamOptions, StreamletId,
};
use kera_log::LaneHandover;
use kera_protocol::placement::{LaneState, Memory, OlderGroups, StreamletState};
use kera_protocol::{
    AbortedRecords, Body, ClaimGroup, ClaimPartition, EndInGroup, EndInPartitions, EndedPartition, GroupClaimed,
    Message, OpenTransaction, Owner, PartitionClaimed, PartitionEnded, TransactionsHeld, TransactionsIn,
};

use super::super::parts::{ME, OTHER, owner, together};
use super::*;
use crate::Answered;
use crate::door::{Coordinators, OtherNodes};
use crate::node_requests::Served;
use crate::transaction_door::LOOKED_UP;
use crate::{group_parts, state_parts, transaction_parts};

const PARTS: u32 = 16;
/// The owner epochs of the coordinators and of the partitions.
const COORDINATORS: u32 = 5;
const OWNER: u32 = 3;

/// What the node has asked, until it is answered.
#[derive(Default)]
pub(in crate::tests) struct Asked(Mutex<Vec<(kera_protocol::Op, Vec<u8>, Answered)>>);

impl OtherNodes for Asked {
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
    fn ask(&self, node: u32, op: kera_protocol::Op, body: Vec<u8>, done: Answered) {
        assert_eq!(node, OTHER);
        self.0.lock().push((op, body, done));
    }
    fn ask_native(&self, node: u32, op: kera_protocol::Op, body: Vec<u8>, done: crate::Answered) {
        match op {
            kera_protocol::Op::AvailableGroups | kera_protocol::Op::FindOwners => self.ask(node, op, body, done),
            _ => done(Err("nobody is there".into())),
        }
    }
    fn serves_transactions(&self) -> bool {
        true
    }
}

impl Asked {
    /// Takes the questions of a kind.
    pub(in crate::tests) fn take<M: Message>(&self) -> Vec<(M, Answered)> {
        let all = std::mem::take(&mut *self.0.lock());
        let (these, others) = all.into_iter().partition(|(op, ..)| *op == M::OP);
        *self.0.lock() = others;
        let these: Vec<(kera_protocol::Op, Vec<u8>, Answered)> = these;
        these.into_iter().map(|(op, body, done)| (M::decode(op.version_max(), &body).unwrap(), done)).collect()
    }
}

pub(in crate::tests) fn bytes<B: Body>(body: &B) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    body.encode(1, &mut bytes);
    Ok(bytes)
}

/// A node of two that owns the partitions of `t`, with three records in partition 0, and the groups; the other one coordinates.
fn owning() -> (World, Arc<Asked>) {
    let mut world = World::new();
    (0..3).for_each(|at| assert_eq!(world.plain("t", 0), at));
    let stream = world.running().door.transactions.stream_of("t");
    let (broker, coordinator) = together(&world);
    let alone = |options| StreamOptions { replication: 1, virtual_logs: 0, ..options };
    let made = |name, options| coordinator.system_stream(name, &alone(options)).unwrap().id;
    let coordinators = made(transaction_parts::STREAM, state_parts::stream_options(1));
    let groups = made(group_parts::STREAM, state_parts::stream_options(1));
    broker.place_stream(1, coordinators, vec![owner(OTHER, COORDINATORS); PARTS as usize]).unwrap();
    for (stream, count) in [(stream, 2), (groups, 16)] {
        broker.place_stream(1, stream, vec![owner(ME, OWNER); count]).unwrap();
        (0..count as u32).for_each(|at| broker.open_streamlet(stream, StreamletId(at), OWNER, None).unwrap());
    }
    world.restart();
    let asked = Arc::new(Asked::default());
    let door = world.running().door.clone();
    door.set_others(asked.clone());
    door.transactions.follow();
    for load in door.groups.follow(&door.catalog, &door.broker) {
        door.groups.loaded(&load, load.run(&door.broker, || door.others(), || true).unwrap());
    }
    (world, asked)
}

fn held() -> TransactionsHeld {
    TransactionsHeld { epoch: COORDINATORS, open: Vec::new(), aborted: Vec::new() }
}

impl World {
    /// What has come for the node's thread is done.
    pub(in crate::tests) fn nodes(&mut self) {
        let Running { door, waiting, .. } = self.running();
        while waiting.node_work.go_on(door) > 0 {}
    }

    /// The coordinators are asked what they know, and tell this; the first of them has `some`.
    fn load(&mut self, asked: &Asked, some: TransactionsHeld) {
        let door = self.running().door.clone();
        door.owner.follow(&door);
        let questions = asked.take::<TransactionsIn>();
        assert_eq!(questions.len(), PARTS as usize);
        let mut some = Some(some);
        for (_, done) in questions {
            done(bytes(&some.take().unwrap_or_else(held)));
        }
        self.nodes();
    }

    fn error(&mut self, isolation: i8) -> i16 {
        let request = fetch_request("t", 0, 0, 0).with_isolation_level(isolation);
        self.call(11, &request).responses[0].partitions[0].error_code
    }

    /// Sends a transactional batch, and answers its claim.
    fn claim(&mut self, asked: &Asked, producer: (i64, i16), sequence: i32) -> (ClaimPartition, Answered) {
        let batch = transactional(&[b"x"], (producer.0, producer.1, sequence));
        let request = World::produce_request(Some("id"), "t", 0, batch);
        let running = self.running();
        let frame = frame(ApiKey::Produce, 9, 7, &request);
        assert_eq!(running.session.on_frame(&FrameHeader::default(), &frame, &mut running.out), Flow::Blocked);
        asked.take::<ClaimPartition>().pop().expect("it asks")
    }

    /// The blocked request is offered again, as its connection does.
    fn offer(&mut self, producer: (i64, i16), sequence: i32) -> Flow {
        self.nodes();
        let batch = transactional(&[b"x"], (producer.0, producer.1, sequence));
        let frame = frame(ApiKey::Produce, 9, 7, &World::produce_request(Some("id"), "t", 0, batch));
        let running = self.running();
        running.session.on_frame(&FrameHeader::default(), &frame, &mut running.out)
    }

    fn produced(&mut self) -> (i16, i64) {
        self.sink.release();
        let answer = self.answer::<ProduceRequest>(9).expect("it is answered");
        let one = &answer.responses[0].partition_responses[0];
        (one.error_code, one.base_offset)
    }

    fn end_at(&mut self, of: (i64, i16), commit: bool, from_offset: u64, epochs: (u32, u32)) -> PartitionEnded {
        let door = self.running().door.clone();
        let stream = door.transactions.stream_of("t");
        let asked = EndInPartitions {
            part: 0,
            part_epoch: epochs.0,
            producer_id: kera_format::ProducerId(of.0 as u64),
            producer_epoch: ProducerEpoch(of.1 as u16),
            commit,
            partitions: vec![EndedPartition { stream, partition: 0, owner_epoch: epochs.1, from_offset }],
        };
        let Served::Now(told, after) = door.end_in_partitions(&asked) else { panic!("it is not answered") };
        let is_written = !after.is_empty();
        self.sink.release();
        assert!(after.iter().all(|after| after.is_durable()));
        assert!(told.partitions[0].error == 0 || !is_written);
        told.partitions[0]
    }
}

/// Coordinators read what the one before has of their own stream before they can tell anything.
#[test]
fn what_is_held_of_a_stream_of_the_system_waits_for_no_coordinator() {
    let (mut world, asked) = owning();
    let (broker, coordinator) = world.parts();
    let options = StreamOptions { replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
    let of_system = coordinator.system_stream("_kera.cluster.other", &options).unwrap().id;
    broker.place_stream(9, of_system, vec![owner(OTHER, COORDINATORS); PARTS as usize]).unwrap();
    let place = broker.log().stream(of_system).unwrap();
    assert!(!place.is_system(), "nothing of it has been read here");
    let older = vec![OlderGroups { first_epoch: COORDINATORS + 1, node: ME }];
    broker.set_owner(10, of_system, StreamletId(0), owner(ME, COORDINATORS + 1)).unwrap();
    broker.open_streamlet(of_system, StreamletId(0), COORDINATORS + 1, None).unwrap();
    let lane = place.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap().clone();
    let mut chunk = ChunkBuilder::default();
    chunk.push(&Record::value(b"what it knows"));
    let target = ChunkTarget { stream: of_system, streamlet: StreamletId(0), ..ChunkTarget::default() };
    let chunk = chunk.seal(&target, Compression::None).unwrap();
    lane.append(&ChunkView::parse(&chunk).unwrap(), 5).unwrap();
    broker.set_owner(11, of_system, StreamletId(0), Owner { older, ..owner(OTHER, COORDINATORS + 2) }).unwrap();

    world.restart();
    assert!(lane.visibility().is_none());
    let door = world.running().door.clone();
    door.set_others(asked.clone());
    door.owner.follow(&door);
    let topic = door.transactions.stream_of("t");
    let questions = asked.take::<TransactionsIn>();
    let about = |questions: &[(TransactionsIn, Answered)]| -> Vec<StreamId> {
        questions.iter().flat_map(|(asked, _)| asked.streamlets.iter().map(|of| of.stream)).collect()
    };
    assert_eq!(about(&questions), vec![topic; PARTS as usize], "of topics they are asked");
}

#[test]
fn only_partitions_with_something_open_are_looked_up_for_what_earlier_owners_still_show() {
    let (mut world, asked) = owning();
    world.load(&asked, held());
    let door = world.running().door.clone();
    let stream = door.transactions.stream_of("t");
    let second = door.transactions.partitions.get_or_make(stream, 1);
    assert_eq!(door.transactions.partitions.all().len(), 2);
    let looked_up = || {
        LOOKED_UP.set(0);
        (0..100).for_each(|_| door.owner.follow(&door));
        LOOKED_UP.get()
    };
    assert_eq!(looked_up(), 0);
    second.lock().wrote(P.0, 0);
    assert_eq!(looked_up(), 2, "that is looked at once in 50 times");
}

fn granted(from_offset: u64) -> Result<Vec<u8>, String> {
    bytes(&PartitionClaimed { error: 0, from_offset, part_epoch: COORDINATORS })
}

const P: (i64, i16) = (77, 0);

#[test]
fn nothing_is_shown_for_committed_before_all_coordinators_have_told() {
    let (mut world, asked) = owning();
    let door = world.running().door.clone();
    let stream = door.transactions.stream_of("t");
    let lane = door.transactions.lane(stream, 0).unwrap();
    let native = |durable| lane.visibility().unwrap().end(durable);
    let elsewhere = Code::NotLeaderOrFollower.code();
    assert_eq!((world.error(1), world.error(0), native(3)), (elsewhere, 0, 0));
    door.owner.follow(&door);
    let mut questions = asked.take::<TransactionsIn>();
    let of = &questions[0].0.streamlets;
    assert_eq!((of.len(), of[0].stream, of[0].owner_epoch), (1, stream, OWNER), "one streamlet has records");
    door.owner.follow(&door);
    assert!(asked.take::<TransactionsIn>().is_empty(), "they are being asked");
    // One of them is not to be had.
    questions.pop().unwrap().1(Err("it is away".into()));
    questions.into_iter().for_each(|(_, done)| done(bytes(&held())));
    world.nodes();
    assert_eq!((world.error(1), native(3)), (elsewhere, 0));
    let [producer_id, epoch] = [kera_format::ProducerId(77), kera_format::ProducerId(78)];
    let range = AbortedRecords {
        stream,
        partition: 0,
        producer_id: epoch,
        producer_epoch: ProducerEpoch(0),
        first_offset: 0,
        marker_offset: 1,
        stable_offset: 2,
    };
    let producer_epoch = ProducerEpoch(0);
    let open = OpenTransaction { stream, partition: 0, producer_id, producer_epoch, from_offset: 2 };
    world.load(&asked, TransactionsHeld { open: vec![open], aborted: vec![range], ..held() });
    let seen = world.fetch("t", 0, 0, 1);
    assert_eq!((seen.stable, seen.aborted, native(3)), (2, vec![(78, 0)], 2));
    // It ends, and the marker is the only one.
    assert_eq!(world.end_at(P, true, 2, (COORDINATORS, OWNER)).error, 0);
    assert_eq!((world.fetch("t", 0, 0, 1).stable, native(4)), (4, 4));
    assert_eq!(world.markers("t", 0), [(3, Kind::Marker(true, 0))]);
    // It goes and comes back: what was known before is asked for again.
    let (broker, _) = world.parts();
    broker.set_owner(2, stream, StreamletId(0), owner(OTHER, 4)).unwrap();
    broker.set_owner(3, stream, StreamletId(0), owner(ME, 6)).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 6, None).unwrap();
    assert_eq!((world.error(1), native(4)), (elsewhere, 0));
    // What is told of the epoch before does not count.
    world.load(&asked, held());
    assert_eq!((world.error(1), native(4)), (0, 4));
}

/// A partition of a node that was alone moves before anybody asks for a coordinator of the cluster.
#[test]
fn what_came_before_there_were_coordinators_is_asked_of_them() {
    for restarts in [false, true] {
        let mut world = World::new();
        (0..3).for_each(|at| assert_eq!(world.plain("t", 0), at));
        let stream = world.running().door.transactions.stream_of("t");
        let (broker, coordinator) = together(&world);
        world.restart();
        broker.place_stream(1, stream, vec![owner(ME, OWNER); 2]).unwrap();
        (0..2).for_each(|at| broker.open_streamlet(stream, StreamletId(at), OWNER, None).unwrap());
        if restarts {
            world.restart();
        }
        let asked = Arc::new(Asked::default());
        let door = world.running().door.clone();
        door.set_others(asked.clone());
        door.transactions.follow();
        door.owner.follow(&door);
        assert!(asked.0.lock().is_empty(), "there is nobody to ask");
        assert_eq!((world.error(1), world.committed("t", 0)), (0, vec![0, 1, 2]));

        let options = StreamOptions { replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
        let coordinators = coordinator.system_stream(transaction_parts::STREAM, &options).unwrap().id;
        broker.place_stream(1, coordinators, vec![owner(OTHER, COORDINATORS); PARTS as usize]).unwrap();
        door.transactions.follow();
        let late = world.end_at(P, false, 0, (COORDINATORS, OWNER));
        assert_eq!(late.error, Code::CoordinatorLoadInProgress.code() as u16, "others may have ended here");
        let range = AbortedRecords {
            stream,
            partition: 0,
            producer_id: kera_format::ProducerId(78),
            producer_epoch: ProducerEpoch(0),
            first_offset: 0,
            marker_offset: 2,
            stable_offset: 3,
        };
        door.owner.follow(&door);
        let lane = door.transactions.lane(stream, 0).unwrap();
        let native = |durable| lane.visibility().map_or(durable, |seen| seen.end(durable));
        assert_eq!((world.error(1), native(3)), (0, 3), "what was shown stays shown while they are asked");
        assert_eq!(world.committed("t", 0), [0, 1, 2]);
        let late = world.end_at(P, false, 0, (COORDINATORS, OWNER));
        assert_eq!(late.error, Code::CoordinatorLoadInProgress.code() as u16, "they have not told");
        let questions = asked.take::<TransactionsIn>();
        let of = &questions[0].0.streamlets;
        assert_eq!((of.len(), of[0].stream, of[0].owner_epoch), (1, stream, OWNER), "one streamlet has records");
        let mut some = Some(TransactionsHeld { aborted: vec![range], ..held() });
        questions.into_iter().for_each(|(_, done)| done(bytes(&some.take().unwrap_or_else(held))));
        world.nodes();
        assert_eq!(world.fetch("t", 0, 0, 1).aborted, [(78, 0)]);
        assert_eq!(lane.visibility().unwrap().hidden(0, 3), [(78, 0)]);
        assert_eq!(world.end_at(P, true, 3, (COORDINATORS, OWNER)).error, 0);
        door.owner.follow(&door);
        assert!(asked.0.lock().is_empty(), "they are asked once");
    }
}

/// What runs at a node that was alone when the cluster gets coordinators is aborted there.
#[test]
fn what_a_node_that_was_alone_has_open_stays_hidden_until_it_has_ended() {
    let mut world = World::new();
    assert_eq!(world.plain("t", 0), 0);
    let producer = world.init("id").unwrap();
    assert_eq!((world.add("id", producer, "t", 0), world.write("id", producer, "t", 0, 0)), (0, (0, 1)));
    let stream = world.running().door.transactions.stream_of("t");
    let (broker, coordinator) = together(&world);
    world.restart();
    broker.place_stream(1, stream, vec![owner(ME, OWNER); 2]).unwrap();
    (0..2).for_each(|at| broker.open_streamlet(stream, StreamletId(at), OWNER, None).unwrap());
    let options = StreamOptions { replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
    let coordinators = coordinator.system_stream(transaction_parts::STREAM, &options).unwrap().id;
    broker.place_stream(1, coordinators, vec![owner(OTHER, COORDINATORS); PARTS as usize]).unwrap();
    let asked = Arc::new(Asked::default());
    let door = world.running().door.clone();
    door.set_others(asked.clone());
    door.transactions.follow();
    door.owner.follow(&door);
    assert_eq!((world.fetch("t", 0, 0, 1).stable, world.committed("t", 0)), (1, vec![0]), "they are being asked");
    asked.take::<TransactionsIn>().into_iter().for_each(|(_, done)| done(bytes(&held())));
    world.nodes();
    assert_eq!((world.fetch("t", 0, 0, 1).stable, door.owner.early_count()), (1, 0), "they know nothing of it");
    world.finish();
    let seen = world.fetch("t", 0, 0, 1);
    assert_eq!((seen.stable, seen.aborted), (3, vec![(producer.0, 1)]));
}

#[test]
fn what_came_early_is_forgotten_when_nothing_of_it_is_here() {
    let mut world = World::new();
    assert_eq!((world.plain("t", 0), world.plain("u", 0)), (0, 0));
    let streams = ["t", "u"].map(|name| world.running().door.transactions.stream_of(name));
    let (broker, _) = together(&world);
    world.restart();
    for stream in streams {
        broker.place_stream(1, stream, vec![owner(ME, OWNER); 2]).unwrap();
        (0..2).for_each(|at| broker.open_streamlet(stream, StreamletId(at), OWNER, None).unwrap());
    }
    let door = world.running().door.clone();
    let count = || {
        door.owner.trim_early(&door);
        door.owner.early_count()
    };
    assert_eq!(count(), 2, "those with records");
    broker.set_owner(2, streams[0], StreamletId(0), owner(OTHER, OWNER + 1)).unwrap();
    assert_eq!(count(), 2, "what is left here is read");
    let left = broker.log().stream(streams[0]).unwrap();
    left.streamlet(StreamletId(0)).unwrap().forget_groups(|_| false);
    assert_eq!(count(), 1);
    let deleted = world.call(1, &DeleteTopicsRequest::default().with_topic_names(vec![topic("u")]));
    assert_eq!((deleted.responses[0].error_code, count()), (0, 0));
}

#[test]
fn a_coordinator_is_asked_once_for_each_transaction() {
    let (mut world, asked) = owning();
    world.load(&asked, held());
    let (claim, done) = world.claim(&asked, P, 0);
    assert_eq!((&*claim.id, claim.from_offset, claim.adds), ("id", 3, false));
    done(granted(3));
    assert_eq!(world.offer(P, 0), Flow::Done);
    assert_eq!(world.produced(), (0, 3));
    assert_eq!(world.fetch("t", 0, 0, 1).stable, 3);
    assert_eq!((world.offer(P, 1), world.produced()), (Flow::Done, (0, 4)), "it knows");
    assert!(asked.0.lock().is_empty());
    let ended = world.end_at(P, false, 3, (COORDINATORS, OWNER));
    let range = ended.aborted.unwrap();
    assert_eq!((range.first_offset, range.marker_offset, range.stable_offset), (3, 5, 6));
    assert_eq!(world.end_at(P, false, 3, (COORDINATORS, OWNER)).aborted, Some(range), "asked again it says the same");
    assert_eq!(world.fetch("t", 0, 0, 1).aborted, [(77, 3)]);
    // The next one is another.
    let (claim, done) = world.claim(&asked, P, 2);
    assert_eq!(claim.from_offset, 6);
    done(bytes(&PartitionClaimed { error: 48, from_offset: 0, part_epoch: COORDINATORS }));
    assert_eq!(world.offer(P, 2), Flow::Done);
    assert_eq!(world.produced().0, Code::InvalidTxnState.code());
    assert_eq!(world.markers("t", 0).len(), 1);
}

/// One after the other they would take a round trip each, and have the coordinator record the whole transaction each time.
#[test]
fn what_a_request_needs_of_a_coordinator_is_asked_for_at_once() {
    let (mut world, asked) = owning();
    world.load(&asked, held());
    let offer = |world: &mut World| {
        world.nodes();
        let batch = || transactional(&[b"x"], (P.0, P.1, 0));
        let mut request = World::produce_request(Some("id"), "t", 0, batch());
        let second = PartitionProduceData::default().with_index(1).with_records(Some(batch().into()));
        request.topic_data[0].partition_data.push(second);
        let frame = frame(ApiKey::Produce, 9, 7, &request);
        let running = world.running();
        running.session.on_frame(&FrameHeader::default(), &frame, &mut running.out)
    };
    assert_eq!(offer(&mut world), Flow::Blocked);
    let mut claims = asked.take::<ClaimPartition>();
    let of: Vec<_> = claims.iter().map(|(claim, _)| (claim.partition, claim.from_offset)).collect();
    assert_eq!(of, [(0, 3), (1, 0)]);
    assert_eq!((offer(&mut world), asked.take::<ClaimPartition>().len()), (Flow::Blocked, 0), "once");
    let (_, second) = claims.pop().unwrap();
    let (_, first) = claims.pop().unwrap();
    first(granted(3));
    assert_eq!((offer(&mut world), asked.take::<ClaimPartition>().len()), (Flow::Blocked, 0), "still once");
    second(granted(0));
    assert_eq!((offer(&mut world), asked.take::<ClaimPartition>().len()), (Flow::Done, 0));
    world.sink.release();
    let answer = world.answer::<ProduceRequest>(9).expect("it is answered");
    let told: Vec<_> =
        answer.responses[0].partition_responses.iter().map(|of| (of.error_code, of.base_offset)).collect();
    assert_eq!(told, [(0, 3), (0, 0)]);
}

#[test]
fn a_marker_voids_a_claim_that_is_under_way() {
    let (mut world, asked) = owning();
    world.load(&asked, held());
    let (_, done) = world.claim(&asked, P, 0);
    // That of the transaction before.
    assert_eq!(world.end_at(P, true, 1, (COORDINATORS, OWNER)).error, 0);
    done(granted(3));
    assert_eq!(world.offer(P, 0), Flow::Blocked, "the answer may be about what has ended");
    let (claim, done) = asked.take::<ClaimPartition>().pop().expect("it asks again");
    assert_eq!(claim.from_offset, 4, "behind the marker");
    done(granted(4));
    assert_eq!((world.offer(P, 0), world.produced()), (Flow::Done, (0, 4)));
}

#[test]
fn what_comes_late_or_from_before_changes_nothing() {
    let (mut world, asked) = owning();
    world.load(&asked, held());
    let (_, done) = world.claim(&asked, P, 0);
    done(granted(3));
    assert_eq!((world.offer(P, 0), world.produced()), (Flow::Done, (0, 3)));
    // A late copy of the marker of the transaction before, which began earlier.
    assert_eq!(world.end_at(P, true, 1, (COORDINATORS, OWNER)).error, 0);
    let fenced = Code::TransactionCoordinatorFenced.code().cast_unsigned();
    assert_eq!(world.end_at(P, true, 3, (COORDINATORS - 1, OWNER)).error, fenced);
    let elsewhere = Code::NotLeaderOrFollower.code().cast_unsigned();
    assert_eq!(world.end_at(P, true, 3, (COORDINATORS, OWNER + 1)).error, elsewhere);
    assert_eq!((world.markers("t", 0), world.fetch("t", 0, 0, 1).stable), (vec![], 3));
    // A later coordinator is heard of by its request; the one before is not believed any more.
    assert_eq!(world.end_at(P, true, 3, (COORDINATORS + 2, OWNER)).error, 0);
    assert_eq!(world.end_at((78, 0), true, 3, (COORDINATORS, OWNER)).error, fenced);
    assert_eq!(world.markers("t", 0), [(4, Kind::Marker(true, 0))]);
}

#[test]
fn groups_ask_once_and_are_not_ended_by_late_copies() {
    let (mut world, asked) = owning();
    let commit = |world: &mut World, offset| world.send(3, &World::offset_request("id", P, "g", offset));
    let error = |world: &mut World| {
        world.nodes();
        let mut answer = world.answer::<TxnOffsetCommitRequest>(3);
        world.sink.release();
        answer = answer.or_else(|| world.answer::<TxnOffsetCommitRequest>(3));
        answer.map(|answer| answer.topics[0].partitions[0].error_code)
    };
    let end = |world: &mut World, number: i64, part_epoch: u32, owner_epoch: u32| {
        let door = world.running().door.clone();
        let producer_id = kera_format::ProducerId(77);
        let group = "g".to_owned();
        let asked = EndInGroup { part: 0, part_epoch, group, owner_epoch, producer_id, number, commit: true };
        let Served::Now(told, _) = door.end_in_group(&asked) else { panic!("it is not answered") };
        world.sink.release();
        told.error.cast_signed()
    };
    commit(&mut world, 7);
    assert_eq!(error(&mut world), None);
    let (claim, done) = asked.take::<ClaimGroup>().pop().expect("it asks");
    assert_eq!((&*claim.id, &*claim.group), ("id", "g"));
    done(bytes(&GroupClaimed { error: 0, number: 100, part_epoch: COORDINATORS }));
    assert_eq!((error(&mut world), world.offset("g")), (Some(0), Err(Code::UnstableOffsetCommit)));
    commit(&mut world, 8);
    assert_eq!(error(&mut world), Some(0), "it knows");
    assert_eq!(end(&mut world, 99, COORDINATORS, OWNER), 0, "a late copy");
    assert_eq!(end(&mut world, 100, COORDINATORS - 1, OWNER), Code::TransactionCoordinatorFenced.code());
    assert_eq!(end(&mut world, 100, COORDINATORS, OWNER - 1), Code::NotCoordinator.code());
    assert_eq!(world.offset("g"), Err(Code::UnstableOffsetCommit));
    assert_eq!((end(&mut world, 100, COORDINATORS, OWNER), world.offset("g")), (0, Ok(8)));
    // An end that comes while the coordinator is asked voids the answer.
    commit(&mut world, 9);
    let (_, done) = asked.take::<ClaimGroup>().pop().expect("it asks");
    assert_eq!(end(&mut world, 101, COORDINATORS, OWNER), 0);
    done(bytes(&GroupClaimed { error: 0, number: 101, part_epoch: COORDINATORS }));
    assert_eq!(error(&mut world), None);
    let (_, done) = asked.take::<ClaimGroup>().pop().expect("it asks again");
    done(bytes(&GroupClaimed { error: 47, number: 0, part_epoch: COORDINATORS }));
    assert_eq!((error(&mut world), world.offset("g")), (Some(47), Ok(8)));
}

#[test]
fn nobody_is_asked_for_a_group_of_another_node() {
    let (mut world, asked) = owning();
    let door = world.running().door.clone();
    let (stream, streamlet) = door.groups.streamlet_of("g").unwrap();
    let (broker, _) = world.parts();
    broker.set_owner(2, stream.id(), streamlet, owner(OTHER, OWNER + 1)).unwrap();
    assert!(door.groups.follow(&door.catalog, &door.broker).is_empty());
    world.send(3, &World::offset_request("id", P, "g", 7));
    let answer = world.answer::<TxnOffsetCommitRequest>(3).expect("at once");
    assert_eq!(answer.topics[0].partitions[0].error_code, Code::NotCoordinator.code());
    assert!(asked.take::<ClaimGroup>().is_empty());
}

#[test]
fn what_was_aborted_at_an_earlier_owner_is_passed_over_for_as_long_as_it_is_read() {
    let (mut world, _) = owning();
    let door = world.running().door.clone();
    let (stream, streamlet) = (door.transactions.stream_of("t"), StreamletId(1));
    let (broker, _) = world.parts();
    // The other node had the partition, and keeps its first ten records.
    broker.set_owner(2, stream, streamlet, owner(OTHER, 4)).unwrap();
    let older = vec![OlderGroups { first_epoch: 4, node: OTHER }];
    broker.set_owner(3, stream, streamlet, Owner { older, ..owner(ME, 6) }).unwrap();
    let (lane, memory) = (LaneId(0), Memory::Whole);
    let lane =
        LaneState { lane, next_ordinal: 10, last_append_ms: 0, memory, producers: Vec::new(), groups: Vec::new() };
    let state = StreamletState { stream, streamlet, epoch: 4, lanes: vec![lane], progress: Vec::new() };
    broker.open_streamlet(stream, streamlet, 6, Some(&state)).unwrap();
    let range = |first_offset, marker_offset| AbortedRange {
        stream,
        partition: 1,
        producer_id: 77,
        first_offset,
        marker_offset,
        stable_offset: marker_offset + 1,
        epoch: 0,
    };
    let of = door.transactions.partitions.get_or_make(stream, 1);
    assert!(of.lock().load(6, [], [range(1, 3), range(5, 7)]), "what coordinators know of it has come");
    door.transactions.trim_partitions();
    assert_eq!(of.lock().ranges(), [range(1, 3), range(5, 7)]);
    // Until it is deleted there.
    door.transactions.lane(stream, 1).unwrap().raise_floor(4);
    door.transactions.trim_partitions();
    assert_eq!(of.lock().ranges(), [range(5, 7)]);
}

/// It is emptied and told where it ends a moment before it is opened. In that moment nothing seems to be in front of its end.
#[test]
fn what_was_aborted_in_a_partition_that_comes_is_not_forgotten_before_it_is_here() {
    let (mut world, _) = owning();
    let door = world.running().door.clone();
    let (stream, streamlet) = (door.transactions.stream_of("t"), StreamletId(1));
    let (broker, _) = world.parts();
    broker.set_owner(2, stream, streamlet, owner(OTHER, 4)).unwrap();
    let range = AbortedRange {
        stream,
        partition: 1,
        producer_id: 77,
        first_offset: 1,
        marker_offset: 3,
        stable_offset: 4,
        epoch: 0,
    };
    let of = door.transactions.partitions.get_or_make(stream, 1);
    of.lock().refresh([], [range]);
    assert!(!of.lock().is_loading());
    let older = vec![OlderGroups { first_epoch: 4, node: OTHER }];
    broker.set_owner(3, stream, streamlet, Owner { older, ..owner(ME, 6) }).unwrap();
    let (lane, producers, groups) = (LaneId(0), Vec::new(), Vec::new());
    let (next_ordinal, last_append_ms, forgot, hole_end) = (10, 0, false, 0);
    let ends = LaneHandover { lane, next_ordinal, last_append_ms, forgot, hole_end, producers, groups };
    broker.log().stream(stream).unwrap().streamlet(streamlet).unwrap().receive(&[ends]).unwrap();
    assert_eq!(door.transactions.lane(stream, 1).unwrap().earliest().1, 10);
    door.transactions.trim_partitions();
    assert_eq!(of.lock().ranges(), [range]);
    // Of another node's this one shows what it has, which is nothing.
    broker.set_owner(4, stream, streamlet, owner(OTHER, 7)).unwrap();
    door.transactions.trim_partitions();
    assert_eq!(of.lock().ranges(), []);
}

#[test]
fn a_group_that_has_left_since_it_was_found_has_not_ended() {
    let (mut world, asked) = owning();
    world.send(3, &World::offset_request("id", P, "g", 7));
    world.nodes();
    let (_, done) = asked.take::<ClaimGroup>().pop().expect("it asks");
    done(bytes(&GroupClaimed { error: 0, number: 100, part_epoch: COORDINATORS }));
    world.nodes();
    world.answer::<TxnOffsetCommitRequest>(3);
    world.sink.release();
    let door = world.running().door.clone();
    door.groups.close_group("g");
    let (producer_id, group) = (kera_format::ProducerId(77), "g".to_owned());
    let end = EndInGroup {
        part: 0,
        part_epoch: COORDINATORS,
        group,
        owner_epoch: OWNER,
        producer_id,
        number: 100,
        commit: true,
    };
    let Served::Now(told, _) = door.end_in_group(&end) else { panic!("it is not answered") };
    assert_eq!(told.error.cast_signed(), Code::NotCoordinator.code(), "the next owner has it to do");
}

#[test]
fn who_may_have_been_replaced_says_of_no_transaction_that_it_has_ended() {
    let (mut world, _) = owning();
    let door = world.running().door.clone();
    let end = || {
        let (producer_id, group) = (kera_format::ProducerId(77), "g".to_owned());
        let (part, part_epoch, owner_epoch) = (0, COORDINATORS, OWNER);
        let asked = EndInGroup { part, part_epoch, group, owner_epoch, producer_id, number: 100, commit: true };
        let Served::Now(told, _) = door.end_in_group(&asked) else { panic!("it is not answered") };
        told.error.cast_signed()
    };
    let (broker, _) = world.parts();
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(end(), 0, "nothing is pending");
    // It has heard of no coordinator for too long.
    world.clock.advance_ms(kera_broker::SERVES_MS);
    assert_eq!(end(), Code::NotCoordinator.code());
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(end(), 0);
    // It has been replaced, and nobody has looked yet.
    let (stream, streamlet) = door.groups.streamlet_of("g").unwrap();
    broker.set_owner(2, stream.id(), streamlet, owner(OTHER, OWNER + 1)).unwrap();
    assert_eq!(end(), Code::NotCoordinator.code());
}
