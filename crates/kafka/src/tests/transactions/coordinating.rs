//! The coordinator of transactions whose partitions and groups other nodes own: what it records before it grants, whom it has write markers
//! and how often, and what the next coordinator goes on with. The owners are the test's.

use kera_format::{LaneId, ProducerEpoch, SegmentIndex, StreamId, StreamOptions, StreamletId};
use kera_protocol::admin::{CreateStream, StreamRef};
use kera_protocol::placement::OlderGroups;
use kera_protocol::{
    AbortedRecords, AvailableGroups, Body, ClaimPartition, EndInGroup, EndInPartitions, GroupEnded, GroupInfo,
    GroupList, OwnedStreamlet, Owner, PartitionClaimed, PartitionEnded, PartitionsEnded, TransactionsHeld,
    TransactionsIn,
};

use super::super::parts::{ME, OTHER, owner, together};
use super::owners::{Asked, bytes};
use super::*;
use crate::Answered;
use crate::far_endings::LOOKED_AT;
use crate::{group_parts, starts, state_parts, transaction_parts};

const PARTS: u32 = 16;
/// The owner epochs of this node as the coordinator and of the partitions' owner.
const COORDINATOR: u32 = 5;
const OWNER: u32 = 3;
const ID: &str = "id";

/// What was answered to another node.
type Answer = Arc<Mutex<Option<Result<Vec<u8>, String>>>>;

fn answer() -> (Answer, Answered) {
    let told = Answer::default();
    let into = Arc::clone(&told);
    (told, Box::new(move |answer| *into.lock() = Some(answer)))
}

/// A node of two that coordinates all ids; the other one owns the partitions of `t` and the groups.
fn coordinating() -> (World, Arc<Asked>) {
    let mut world = World::new();
    let stream = world.running().door.transactions.stream_of("t");
    let (broker, coordinator) = together(&world);
    let alone = |options| StreamOptions { replication: 1, virtual_logs: 0, ..options };
    let made = |name, options| coordinator.system_stream(name, &alone(options)).unwrap().id;
    let coordinators = made(transaction_parts::STREAM, state_parts::stream_options(1));
    let groups = made(group_parts::STREAM, state_parts::stream_options(1));
    broker.place_stream(1, stream, vec![owner(OTHER, OWNER); 2]).unwrap();
    broker.place_stream(1, groups, vec![owner(OTHER, OWNER); 16]).unwrap();
    broker.place_stream(1, coordinators, vec![owner(ME, COORDINATOR); PARTS as usize]).unwrap();
    (0..PARTS).for_each(|at| broker.open_streamlet(coordinators, StreamletId(at), COORDINATOR, None).unwrap());
    world.restart();
    let asked = Arc::new(Asked::default());
    let door = world.running().door.clone();
    door.set_others(asked.clone());
    door.groups.follow(&door.catalog, &door.broker);
    world.read_parts();
    (world, asked)
}

impl World {
    /// Reads the ids of streamlets that have come.
    fn read_parts(&mut self) -> usize {
        let door = self.running().door.clone();
        let loads = door.transactions.follow();
        // What the one before has appended is durable, or it would not have come.
        self.sink.release();
        loads.iter().for_each(|load| door.transactions.read(&door, load, || true));
        loads.len()
    }

    /// The streamlet of the id goes to the other node and comes back.
    fn lose_part(&mut self) -> u32 {
        let door = self.running().door.clone();
        let stream = door.catalog.info_of_transactions().unwrap().id;
        let (broker, _) = self.parts();
        let epoch = broker.ownership().owner(stream, StreamletId(0)).unwrap().epoch;
        let version = u64::from(epoch);
        for at in (0..PARTS).map(StreamletId) {
            broker.set_owner(version, stream, at, owner(OTHER, epoch + 1)).unwrap();
        }
        assert!(door.transactions.follow().is_empty());
        assert!(self.init(ID).is_err_and(|code| code == Code::NotCoordinator));
        for at in (0..PARTS).map(StreamletId) {
            broker.set_owner(version + 1, stream, at, owner(ME, epoch + 2)).unwrap();
            broker.open_streamlet(stream, at, epoch + 2, None).unwrap();
        }
        assert_eq!(self.read_parts(), PARTS as usize);
        epoch + 2
    }

    fn send_claim(&mut self, producer: (i64, i16), from_offset: u64, adds: bool) -> Answer {
        let stream = self.running().door.transactions.stream_of("t");
        self.send_claim_of(("t", stream), producer, from_offset, adds)
    }

    fn send_claim_of(
        &mut self,
        (topic, stream): (&str, StreamId),
        producer: (i64, i16),
        from_offset: u64,
        adds: bool,
    ) -> Answer {
        let door = self.running().door.clone();
        let claim = ClaimPartition {
            id: ID.to_owned(),
            producer_id: kera_format::ProducerId(producer.0 as u64),
            producer_epoch: ProducerEpoch(producer.1 as u16),
            topic: topic.to_owned(),
            partition: 0,
            stream,
            from_offset,
            adds,
        };
        let (told, done) = answer();
        door.answer(kera_protocol::Op::ClaimPartition, 1, bytes(&claim).unwrap(), done);
        self.nodes();
        told
    }

    /// The same, once it is durable.
    fn claimed(&mut self, producer: (i64, i16), from_offset: u64, adds: bool) -> PartitionClaimed {
        let told = self.send_claim(producer, from_offset, adds);
        self.sink.release();
        self.nodes();
        let told = told.lock().take().expect("it is answered").unwrap();
        PartitionClaimed::decode(1, &told).unwrap()
    }

    /// What the coordinator of the id tells whoever owns partition 0 in that epoch.
    fn known(&mut self, owner_epoch: u32) -> TransactionsHeld {
        let stream = self.running().door.transactions.stream_of("t");
        self.known_of(stream, owner_epoch).unwrap()
    }

    fn known_of(&mut self, stream: StreamId, owner_epoch: u32) -> Result<TransactionsHeld, String> {
        let door = self.running().door.clone();
        let (_, part) = door.transactions.part_of(ID);
        let of = OwnedStreamlet { stream, streamlet: StreamletId(0), owner_epoch };
        let (told, done) = answer();
        let asked = TransactionsIn { part, streamlets: vec![of] };
        door.answer(kera_protocol::Op::TransactionsIn, 1, bytes(&asked).unwrap(), done);
        self.sink.release();
        self.nodes();
        let told = told.lock().take().expect("it is answered");
        told.map(|told| TransactionsHeld::decode(1, &told).unwrap())
    }

    /// What was decided is carried out as far as it can be: the markers that are asked for.
    fn markers_asked(&mut self, asked: &Asked) -> Vec<(EndInPartitions, Answered)> {
        self.sink.release();
        self.go_on();
        asked.take::<EndInPartitions>()
    }
}

fn written(stream: StreamId, aborted: Option<(i64, u64)>) -> Result<Vec<u8>, String> {
    let aborted = aborted.map(|(producer, first_offset)| AbortedRecords {
        stream,
        partition: 0,
        producer_id: kera_format::ProducerId(producer as u64),
        producer_epoch: ProducerEpoch(0),
        first_offset,
        marker_offset: first_offset + 3,
        stable_offset: first_offset + 4,
    });
    bytes(&PartitionsEnded { partitions: vec![PartitionEnded { error: 0, start: 0, aborted }] })
}

#[test]
fn markers_go_where_something_was_written_and_name_what_the_owner_was_told() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    assert_eq!((world.add(ID, producer, "t", 0), world.add(ID, producer, "t", 1)), (0, 0));
    assert_eq!(world.known(OWNER).open, []);
    // Nothing is granted before it is durable that there may be records.
    let told = world.send_claim(producer, 7, false);
    assert!(told.lock().is_none());
    world.sink.release();
    world.nodes();
    let told = told.lock().take().expect("it is answered").unwrap();
    let claimed = PartitionClaimed { error: 0, from_offset: 7, part_epoch: COORDINATOR };
    assert_eq!(PartitionClaimed::decode(1, &told).unwrap(), claimed);
    // The owner has promised more the second time, or less after another one was here.
    assert_eq!(world.claimed(producer, 9, false), PartitionClaimed { from_offset: 9, ..claimed });
    assert_eq!(world.claimed(producer, 8, false), PartitionClaimed { from_offset: 9, ..claimed });
    let open = &world.known(OWNER).open;
    assert_eq!((open.len(), open[0].partition, open[0].from_offset), (1, 0, 9));
    assert_eq!(world.claimed((producer.0, producer.1 + 1), 9, false).error, Code::ProducerFenced.code() as u16);
    assert_eq!(world.end(ID, producer, false), 0);
    let mut markers = world.markers_asked(&asked);
    let (marker, done) = markers.pop().expect("one owner is asked");
    assert!(markers.is_empty());
    assert_eq!((marker.part_epoch, marker.commit, marker.partitions.len()), (COORDINATOR, false, 1));
    let of = &marker.partitions[0];
    assert_eq!((of.stream, of.partition, of.owner_epoch, of.from_offset), (stream, 0, OWNER, 9));
    assert_eq!(world.state(ID), "PrepareAbort");
    // What could not be done is asked for again a little later, of whoever owns it then.
    done(Err("it is away".into()));
    world.nodes();
    assert!(world.markers_asked(&asked).is_empty());
    world.clock.advance_ms(60);
    let (_, done) = world.markers_asked(&asked).pop().expect("it is asked again");
    done(written(stream, Some((producer.0, 9))));
    world.nodes();
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteAbort");
    let known = world.known(OWNER);
    assert_eq!((known.open.len(), known.aborted.len(), known.aborted[0].first_offset), (0, 1, 9));
    // The next coordinator tells the same.
    world.lose_part();
    let again = world.known(OWNER);
    assert_eq!((again.aborted, again.epoch), (known.aborted, COORDINATOR + 2));
}

#[test]
fn a_group_of_another_node_is_not_added_by_who_commits_for_it_here() {
    let (mut world, _) = coordinating();
    let producer = world.init(ID).unwrap();
    world.send(5, &World::offset_request(ID, producer, "g", 7));
    let answer = world.answer::<TxnOffsetCommitRequest>(5).expect("at once");
    assert_eq!(answer.topics[0].partitions[0].error_code, Code::NotCoordinator.code());
    world.sink.release();
    world.nodes();
    assert_eq!(world.state(ID), "Empty");
}

#[test]
fn a_marker_of_an_owner_before_the_last_that_asked_is_written_again() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    assert_eq!(world.add(ID, producer, "t", 0), 0);
    assert_eq!(world.claimed(producer, 2, false).error, 0);
    assert_eq!(world.end(ID, producer, true), 0);
    let (_, done) = world.markers_asked(&asked).pop().expect("it is asked");
    // The partition has gone to another owner, which is told that the transaction is open and waits for its marker.
    assert_eq!(world.known(OWNER + 1).open.len(), 1);
    let (broker, _) = world.parts();
    broker.set_owner(2, stream, StreamletId(0), owner(OTHER, OWNER + 1)).unwrap();
    done(written(stream, None));
    world.nodes();
    assert!(!world.go_on());
    assert_eq!(world.state(ID), "PrepareCommit");
    let (marker, done) = world.markers_asked(&asked).pop().expect("the next owner is asked");
    assert_eq!(marker.partitions[0].owner_epoch, OWNER + 1);
    done(written(stream, None));
    world.nodes();
    assert!(world.go_on());
    assert_eq!((world.state(ID), world.known(OWNER + 1).open.len()), ("CompleteCommit".to_owned(), 0));
}

/// The owners of a topic hear of it before this node does, and so do producers, whose claims name it.
#[test]
fn a_topic_that_the_coordinator_has_not_heard_of_is_waited_for_and_one_that_is_gone_is_not() {
    let (mut world, asked) = coordinating();
    let (broker, coordinator) = world.parts();
    let last = coordinator.streams().iter().map(|info| info.id.0).max().unwrap();
    let new = StreamId(last + 1);
    let end = |world: &mut World, commit| {
        let producer = world.init(ID).unwrap();
        let told = world.send_claim_of(("new", new), producer, 0, true);
        world.sink.release();
        world.nodes();
        let told = PartitionClaimed::decode(1, &told.lock().take().expect("it is answered").unwrap()).unwrap();
        assert_eq!((told.error, world.end(ID, producer, commit)), (0, 0));
        producer
    };
    let producer = end(&mut world, false);
    assert!(world.markers_asked(&asked).is_empty());
    world.clock.advance_ms(60);
    assert!(world.markers_asked(&asked).is_empty());
    assert_eq!(world.state(ID), "PrepareAbort");
    assert!(world.known_of(new, OWNER).is_err(), "it may be one that has ended");

    let options = StreamOptions { replication: 1, virtual_logs: 0, ..StreamOptions::default() };
    let made =
        coordinator.create_stream(&CreateStream { name: "new".to_owned(), options, if_not_exists: false }).unwrap();
    assert_eq!(made.id, new);
    let mark = |world: &mut World| {
        world.clock.advance_ms(60);
        let (marker, done) = world.markers_asked(&asked).pop().expect("its owner is asked");
        assert_eq!((marker.partitions[0].stream, marker.partitions[0].owner_epoch), (new, OWNER));
        done
    };
    broker.place_stream(1, new, vec![owner(OTHER, OWNER)]).unwrap();
    let done = mark(&mut world);
    assert_eq!(world.known_of(new, OWNER).unwrap().open.len(), 1);
    done(written(new, Some((producer.0, 0))));
    world.nodes();
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteAbort");
    assert_eq!(world.known_of(new, OWNER).unwrap().aborted.len(), 1);

    end(&mut world, true);
    coordinator.delete_stream(&StreamRef::Id(new)).unwrap();
    world.sink.release();
    // Nobody has it any more who could wait for a marker, although its owner had asked what is open there.
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteCommit");
    let known = world.known_of(new, OWNER).unwrap();
    assert_eq!((known.open, known.aborted), (vec![], vec![]));
}

/// What is told of aborted records is not forgotten by a node that starts, and has heard of nothing.
#[test]
fn what_is_left_in_a_topic_that_the_coordinator_has_not_heard_of_is_kept() {
    let (mut world, _) = coordinating();
    let (broker, _) = world.parts();
    let door = world.running().door.clone();
    let (_, part) = door.transactions.part_of(ID);
    let part = door.transactions.part(part);
    let new = StreamId(1_000);
    let range = AbortedRange {
        stream: new,
        partition: 0,
        producer_id: 4,
        first_offset: 1,
        marker_offset: 3,
        stable_offset: 4,
        epoch: 0,
    };
    part.state.lock().left.put(range);
    part.state.lock().asked.insert((new, 0), OWNER);
    let kept = || {
        door.transactions.trim_partitions();
        let state = part.state.lock();
        (state.left.all().count(), state.asked.len())
    };
    assert_eq!(kept(), (1, 1));
    broker.heard_of_streams(StreamId(new.0 + 1));
    assert_eq!(kept(), (0, 0), "it is gone");
}

/// No id of this node writes to the partition any more, so that no marker tells where it begins.
#[test]
fn what_retention_has_taken_is_forgotten_once_the_only_owner_has_told_so_twice() {
    let (mut world, asked) = coordinating();
    let (broker, _) = world.parts();
    let door = world.running().door.clone();
    let stream = door.transactions.stream_of("t");
    let (_, part) = door.transactions.part_of(ID);
    let part = door.transactions.part(part);
    for (partition, marker_offset) in [(0, 3), (0, 8), (1, 3)] {
        let range = AbortedRange {
            stream,
            partition,
            producer_id: 4,
            first_offset: marker_offset - 1,
            marker_offset,
            stable_offset: marker_offset + 1,
            epoch: 0,
        };
        part.state.lock().left.put(range);
    }
    // Each of the two partitions is a streamlet.
    let mut tell = |first_ordinal: u64| {
        starts::look(&door);
        let questions = asked.take::<AvailableGroups>();
        let count = questions.len();
        for (of, done) in questions {
            let first_ordinal = if of.streamlet == StreamletId(0) { first_ordinal } else { 2 };
            let group = GroupInfo {
                group: kera_format::GroupId::new(OWNER, 1),
                lane: LaneId(0),
                first_segment: SegmentIndex(0),
                last_segment: SegmentIndex(0),
                first_ordinal,
                durable_ordinal: 20,
                bytes: 0,
                closed: false,
                first_append_ms: 0,
                last_append_ms: 0,
            };
            let later = GroupInfo { group: kera_format::GroupId::new(OWNER, 2), first_ordinal: 15, ..group };
            done(bytes(&GroupList { groups: vec![group, later], more: false }));
        }
        world.nodes();
        door.transactions.trim_partitions();
        (count, part.state.lock().left.all().count())
    };
    assert_eq!(tell(6), (2, 3), "it may not be the only one that has something");
    let older = vec![OlderGroups { first_epoch: 1, node: ME }];
    broker.set_owner(2, stream, StreamletId(0), Owner { older, ..owner(OTHER, OWNER) }).unwrap();
    assert_eq!(tell(6), (1, 3), "it is not");
    broker.set_owner(3, stream, StreamletId(0), owner(OTHER, OWNER + 1)).unwrap();
    assert_eq!(tell(6), (2, 3), "it is another one");
    assert_eq!(tell(2), (2, 3), "what it had and what it has");
    assert_eq!(tell(6), (2, 3));
    assert_eq!(tell(9), (2, 2));
    assert_eq!(tell(9), (2, 1));
}

#[test]
fn the_next_coordinator_goes_on_with_what_was_decided_and_the_last_one_ends_nothing() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    assert_eq!(world.add(ID, producer, "t", 0), 0);
    assert_eq!(world.claimed(producer, 2, false).error, 0);
    assert_eq!(world.end(ID, producer, true), 0);
    let (_, late) = world.markers_asked(&asked).pop().expect("it is asked");
    let epoch = world.lose_part();
    let (marker, done) = world.markers_asked(&asked).pop().expect("it is asked again");
    assert_eq!((marker.part_epoch, marker.commit), (epoch, true));
    late(written(stream, None));
    world.nodes();
    world.go_on();
    drop(done);
    let next = world.lose_part();
    assert_eq!(world.state(ID), "PrepareCommit");
    let (marker, done) = world.markers_asked(&asked).pop().expect("it is asked again");
    assert_eq!(marker.part_epoch, next);
    done(written(stream, None));
    world.nodes();
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteCommit");
}

#[test]
fn markers_that_are_asked_for_are_not_looked_at_until_they_are_answered() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    assert_eq!(world.claimed(producer, 0, true).error, 0);
    assert_eq!(world.end(ID, producer, true), 0);
    let (_, done) = world.markers_asked(&asked).pop().expect("it is asked");
    let looked_at = |world: &mut World| {
        LOOKED_AT.set(0);
        (0..100).for_each(|_| assert!(!world.go_on()));
        LOOKED_AT.get()
    };
    assert_eq!(looked_at(&mut world), 0);
    done(Err("it is away".into()));
    world.nodes();
    assert_eq!(looked_at(&mut world), 1, "it is not to be asked for yet");
    world.clock.advance_ms(60);
    assert_eq!((looked_at(&mut world), world.state(ID)), (1, "PrepareCommit".to_owned()));
    let (_, done) = asked.take::<EndInPartitions>().pop().expect("it is asked again");
    done(written(stream, None));
    world.nodes();
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteCommit");
}

#[test]
fn claims_that_come_together_are_recorded_once() {
    let (mut world, _) = coordinating();
    let door = world.running().door.clone();
    let stream = door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    world.sink.release();
    let claim = |partition: u32| {
        let claim = ClaimPartition {
            id: ID.to_owned(),
            producer_id: kera_format::ProducerId(producer.0 as u64),
            producer_epoch: ProducerEpoch(producer.1 as u16),
            topic: "t".to_owned(),
            partition,
            stream,
            from_offset: partition.into(),
            adds: true,
        };
        let (told, done) = answer();
        door.answer(kera_protocol::Op::ClaimPartition, 1, bytes(&claim).unwrap(), done);
        told
    };
    let told: Vec<Answer> = (0..40).map(claim).collect();
    world.nodes();
    assert_eq!(world.sink.state.lock().pending.len(), 1);
    assert!(told.iter().all(|told| told.lock().is_none()), "not before that is durable");
    world.sink.release();
    world.nodes();
    for (partition, told) in (0..).zip(told) {
        let told = PartitionClaimed::decode(1, &told.lock().take().expect("it is answered").unwrap()).unwrap();
        assert_eq!(told, PartitionClaimed { error: 0, from_offset: partition, part_epoch: COORDINATOR });
    }
}

#[test]
fn a_claim_of_the_next_transaction_waits_for_the_end_of_the_last() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    // The partition is added with what is written to it.
    assert_eq!(world.claimed(producer, 0, false).error, Code::InvalidTxnState.code() as u16);
    assert_eq!(world.claimed(producer, 0, true).error, 0);
    let ended = world.call(5, &World::end_request(ID, producer, true));
    let next = (ended.producer_id.0, ended.producer_epoch);
    assert_eq!((ended.error_code, next), (0, (producer.0, producer.1 + 1)));
    let waits = world.send_claim(next, 4, true);
    world.sink.release();
    world.nodes();
    assert!(waits.lock().is_none());
    let (_, done) = world.markers_asked(&asked).pop().expect("it is asked");
    done(written(stream, None));
    world.nodes();
    assert!(world.go_on());
    world.nodes();
    world.sink.release();
    world.nodes();
    let told = PartitionClaimed::decode(1, &waits.lock().take().expect("it is answered").unwrap()).unwrap();
    assert_eq!((told.error, told.from_offset), (0, 4));
    // One that waits for too long is told so.
    let ended = world.call(5, &World::end_request(ID, next, false));
    let waits = world.send_claim((ended.producer_id.0, ended.producer_epoch), 6, true);
    world.clock.advance_ms(1_100);
    world.running().door.transactions.tick();
    world.nodes();
    let told = PartitionClaimed::decode(1, &waits.lock().take().expect("it is answered").unwrap()).unwrap();
    assert_eq!(told.error, Code::ConcurrentTransactions.code() as u16);
}

/// It was asked for again at each end of any, and had waited for nothing then.
#[test]
fn a_claim_that_has_waited_for_too_long_is_told_so_although_other_transactions_end() {
    let (mut world, _) = coordinating();
    let producer = world.init(ID).unwrap();
    assert_eq!(world.claimed(producer, 0, true).error, 0);
    let ended = world.call(5, &World::end_request(ID, producer, true));
    let waits = world.send_claim((ended.producer_id.0, ended.producer_epoch), 4, true);
    world.clock.advance_ms(900);
    let other = world.init("other").unwrap();
    assert_eq!((world.add("other", other, "t", 1), world.end("other", other, true)), (0, 0));
    assert!(!world.go_on(), "the marker of the first is not written");
    assert_eq!((world.state(ID), world.state("other")), ("PrepareCommit".to_owned(), "CompleteCommit".to_owned()));
    world.nodes();
    assert!(waits.lock().is_none());
    world.clock.advance_ms(200);
    world.running().door.transactions.tick();
    world.nodes();
    let told = PartitionClaimed::decode(1, &waits.lock().take().expect("it is answered").unwrap()).unwrap();
    assert_eq!(told.error, Code::ConcurrentTransactions.code() as u16);
}

/// It was asked for again each time that the end could not be recorded, and had waited for nothing then.
#[test]
fn a_claim_that_has_waited_for_too_long_is_told_so_although_a_marker_is_written_again() {
    let (mut world, asked) = coordinating();
    let stream = world.running().door.transactions.stream_of("t");
    let producer = world.init(ID).unwrap();
    assert_eq!(world.claimed(producer, 2, true).error, 0);
    let ended = world.call(5, &World::end_request(ID, producer, true));
    let (_, done) = world.markers_asked(&asked).pop().expect("it is asked");
    let waits = world.send_claim((ended.producer_id.0, ended.producer_epoch), 4, true);
    world.clock.advance_ms(900);
    // Another owner takes the transaction for open, and needs a marker of its own.
    assert_eq!(world.known(OWNER + 1).open.len(), 1);
    done(written(stream, None));
    world.nodes();
    assert!(!world.go_on());
    world.nodes();
    assert_eq!(world.state(ID), "PrepareCommit");
    assert!(waits.lock().is_none());
    world.clock.advance_ms(200);
    world.running().door.transactions.tick();
    world.nodes();
    let told = PartitionClaimed::decode(1, &waits.lock().take().expect("it is answered").unwrap()).unwrap();
    assert_eq!(told.error, Code::ConcurrentTransactions.code() as u16);
}

/// Owners hear of a topic that was made again before the coordinator does, or after.
#[test]
fn a_topic_that_is_made_again_has_the_place_of_the_one_before_which_does_not_come_back() {
    let (mut world, asked) = coordinating();
    let (_, coordinator) = world.parts();
    let again = StreamId(coordinator.streams().iter().map(|info| info.id.0).max().unwrap() + 1);
    let claimed = |world: &mut World, stream, producer, from_offset, adds| {
        let told = world.send_claim_of(("t", stream), producer, from_offset, adds);
        world.sink.release();
        world.nodes();
        let told = PartitionClaimed::decode(1, &told.lock().take().expect("it is answered").unwrap()).unwrap();
        (told.error, told.from_offset)
    };
    let producer = world.init(ID).unwrap();
    let before = world.running().door.transactions.stream_of("t");
    assert_eq!(world.add(ID, producer, "t", 0), 0);
    assert_eq!(claimed(&mut world, before, producer, 7, false), (0, 7));
    assert_eq!(claimed(&mut world, again, producer, 0, false), (0, 0));
    let not_in = (Code::InvalidTxnState.code() as u16, 0);
    for adds in [false, true] {
        assert_eq!(claimed(&mut world, before, producer, 9, adds), not_in);
    }
    // This node still takes the one before for the topic.
    assert_eq!(world.add(ID, producer, "t", 0), 0);
    assert_eq!(claimed(&mut world, again, producer, 0, false), (0, 0));
    assert_eq!(world.end(ID, producer, false), 0);
    assert!(world.markers_asked(&asked).is_empty(), "its owner is asked once this node has heard of it");
}

#[test]
fn groups_at_other_nodes_are_told_under_a_number_that_grows() {
    let (mut world, asked) = coordinating();
    let producer = world.init(ID).unwrap();
    let mut numbers = Vec::new();
    for commit in [true, false] {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(TransactionalId(text(ID)))
            .with_producer_id(ProducerId(producer.0))
            .with_producer_epoch(producer.1)
            .with_group_id(GroupId(text("g")));
        assert_eq!(world.call(3, &request).error_code, 0);
        assert_eq!(world.end(ID, producer, commit), 0);
        world.sink.release();
        world.go_on();
        let (told, done) = asked.take::<EndInGroup>().pop().expect("it is told");
        assert_eq!((&*told.group, told.commit, told.part_epoch, told.owner_epoch), ("g", commit, COORDINATOR, OWNER));
        numbers.push(told.number);
        done(bytes(&GroupEnded { error: 0 }));
        world.nodes();
        assert!(world.go_on());
    }
    assert!(numbers[0] < numbers[1], "{numbers:?}");
    assert_eq!(world.state(ID), "CompleteAbort");
}

#[test]
fn what_an_owner_of_a_group_has_said_that_was_replaced_does_not_count() {
    let (mut world, asked) = coordinating();
    let producer = world.init(ID).unwrap();
    assert_eq!(world.add_group(ID, producer, "g"), 0);
    assert_eq!(world.end(ID, producer, true), 0);
    world.sink.release();
    world.go_on();
    let (_, done) = asked.take::<EndInGroup>().pop().expect("it is told");
    let (stream, streamlet) = world.running().door.groups.streamlet_of("g").unwrap();
    world.parts().0.set_owner(2, stream.id(), streamlet, owner(OTHER, OWNER + 1)).unwrap();
    done(bytes(&GroupEnded { error: 0 }));
    world.nodes();
    assert!(!world.go_on() && !world.go_on());
    assert_eq!(world.state(ID), "PrepareCommit");
    let (told, done) = asked.take::<EndInGroup>().pop().expect("the next one is told");
    assert_eq!(told.owner_epoch, OWNER + 1);
    done(bytes(&GroupEnded { error: 0 }));
    world.nodes();
    assert!(world.go_on());
    assert_eq!(world.state(ID), "CompleteCommit");
}

/// An end that has happened is answered from memory; but whether the id is still this node's is known only when something is recorded.
#[test]
fn an_end_that_has_happened_is_told_by_who_still_coordinates_alone() {
    let (mut world, asked) = coordinating();
    let producer = world.init(ID).unwrap();
    assert_eq!(world.add_group(ID, producer, "g"), 0);
    assert_eq!(world.end(ID, producer, true), 0);
    world.sink.release();
    world.go_on();
    let (_, done) = asked.take::<EndInGroup>().pop().expect("it is told");
    done(bytes(&GroupEnded { error: 0 }));
    world.nodes();
    world.go_on();
    world.sink.release();
    assert_eq!(world.state(ID), "CompleteCommit");
    world.send(3, &World::end_request(ID, producer, true));
    assert!(world.answer::<EndTxnRequest>(3).is_none(), "nobody has agreed to that");
    world.sink.release();
    assert_eq!(world.answer::<EndTxnRequest>(3).expect("it is answered").error_code, 0);
}

#[test]
fn a_cluster_without_groups_makes_their_stream_for_a_transaction_that_ends() {
    let mut world = World::new();
    together(&world);
    world.restart();
    let door = world.running().door.clone();
    assert!(door.groups.owner_of(&door.broker, "g").is_none());
    assert!(door.groups.is_wanted());
}
