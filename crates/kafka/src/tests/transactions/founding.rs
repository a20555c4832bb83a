//! What becomes of the transactions of a node that was alone when it is one of several: producers go on, what ran is aborted, what was
//! decided is carried out, and coordinators know what is left.

use std::sync::atomic::{AtomicU32, Ordering};

use kera_format::kafka_groups::{self, CommittedOffset, Fact, OffsetKey};
use kera_format::kafka_transactions::{PARTITIONS_MAX, Touched, Transaction, TransactionState};
use kera_format::{Cursor, StreamId, StreamOptions, StreamletId};
use kera_log::ReadError;
use kera_protocol::{EndInGroup, EndInPartitions, OwnedStreamlet, PartitionEnded, PartitionsEnded, TransactionsIn};

use super::super::parts::{ME, OTHER, owner, together};
use super::owners::{Asked, bytes};
use super::*;
use crate::Answered;
use crate::door::{Coordinators, OtherNodes};
use crate::node_requests::Served;
use crate::state_log::{Edge, Patience, StateLog, Unread};
use crate::transaction_door::TransactionDoor;
use crate::transaction_founding::wound_down;
use crate::transactions::NOT_WRITTEN;
use crate::{group_door, group_parts, state_parts, transaction_parts};

const PARTS: u32 = 16;
const OWNER: u32 = 3;
const WAIT: std::time::Duration = std::time::Duration::from_millis(10);
/// Times that a thread is waited for: two minutes, for a machine may have no time for it for long.
const WAITS: u32 = 12_000;

/// The other node: it has kept nothing.
struct Nothing;

impl OtherNodes for Nothing {
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
    fn ask(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: Answered) {
        done(Err("it says nothing".into()));
    }
    fn ask_native(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: Answered) {
        done(Err("it says nothing".into()));
    }
    fn serves_transactions(&self) -> bool {
        true
    }
}

/// One transaction of a record in partition 0 of `t`.
fn written(world: &mut World, id: &str) -> ((i64, i16), i64) {
    let producer = world.init(id).unwrap();
    assert_eq!(world.add(id, producer, "t", 0), 0);
    let (error, offset) = world.write(id, producer, "t", 0, 0);
    assert_eq!(error, 0);
    (producer, offset)
}

/// The node is one of two, and owns everything in the cluster.
fn found(world: &mut World) -> StreamId {
    let stream = world.running().door.transactions.stream_of("t");
    let (broker, coordinator) = together(world);
    let own = |stream, count: u32| {
        broker.place_stream(1, stream, vec![owner(ME, OWNER); count as usize]).unwrap();
        (0..count).for_each(|at| broker.open_streamlet(stream, StreamletId(at), OWNER, None).unwrap());
    };
    own(stream, 2);
    for name in [group_parts::STREAM, transaction_parts::STREAM] {
        let options = StreamOptions { replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
        own(coordinator.system_stream(name, &options).unwrap().id, PARTS);
    }
    stream
}

/// Groups that have come to the node are taken over and served. False if that broke off.
fn read_groups(world: &mut World) -> bool {
    // It goes on as long as something is read, and not as long as something cannot be appended.
    read_groups_with(world, 50)
}

/// The same. Of each streamlet it is given up when it has been asked so often whether it is to go on.
fn read_groups_with(world: &mut World, looks: u32) -> bool {
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nothing));
    let loads = door.groups.follow(&door.catalog, &door.broker);
    assert_eq!(loads.len(), PARTS as usize);
    loads.into_iter().all(|load| {
        let looked = AtomicU32::new(0);
        door.groups.read(&door, &load, || looked.fetch_add(1, Ordering::Relaxed) < looks);
        looked.load(Ordering::Relaxed) < looks
    })
}

/// What the node commits for groups while it is alone, with so much metadata; each group is of the first streamlet.
fn committed(world: &mut World, count: usize, metadata: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("g{number}"));
    let names: Vec<String> =
        names.filter(|name| state_parts::streamlet_of(name, PARTS as usize) == 0).take(count).collect();
    let door = world.running().door.clone();
    let log = StateLog::find("_kera.groups", &door.catalog, &door.broker, &door.clock).unwrap();
    let of = OffsetKey { topic: "t".to_owned(), partition: 0 };
    let offset = CommittedOffset {
        offset: 7,
        leader_epoch: -1,
        committed_ms: NOW_MS,
        expires_ms: None,
        topic_id: 0,
        metadata: "m".repeat(metadata),
    };
    for name in &names {
        let fact = Fact::Offset(of.clone(), Some(offset.clone()));
        log.append(&[kafka_groups::Entry { group: name.clone(), fact }]).unwrap();
    }
    world.sink.release();
    names
}

/// Reads what has come, on a thread, while the endings go on.
fn read(world: &mut World) {
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nothing));
    let loads = door.transactions.follow();
    assert_eq!(loads.len(), PARTS as usize);
    let reading = {
        let door = door.clone();
        std::thread::spawn(move || loads.iter().for_each(|load| door.transactions.read(&door, load, || true)))
    };
    assert!(world.init("rests").is_err(), "it is on its way");
    for _ in 0..20 {
        world.sink.release();
        std::thread::sleep(WAIT);
    }
    assert!(!reading.is_finished(), "what is decided has not ended");
    for _ in 0..WAITS {
        world.sink.release();
        world.go_on();
        door.transactions.tick();
        if reading.is_finished() {
            break;
        }
        std::thread::sleep(WAIT);
    }
    assert!(reading.is_finished(), "nothing comes along");
    reading.join().unwrap();
    world.sink.release();
}

/// Producers, and the first offsets of what they have left aborted in partition 0, as all coordinators tell.
fn left(world: &mut World, stream: StreamId) -> BTreeSet<(i64, i64)> {
    let door = world.running().door.clone();
    let streamlets = vec![OwnedStreamlet { stream, streamlet: StreamletId(0), owner_epoch: OWNER }];
    let known = (0..PARTS).flat_map(|part| {
        let asked = TransactionsIn { part, streamlets: streamlets.clone() };
        let Served::Now(known, _) = door.transactions.known_in(&asked) else { panic!("{part} is not served") };
        assert!(known.open.is_empty());
        known.aborted.into_iter().map(|range| (range.producer_id.0.cast_signed(), range.first_offset.cast_signed()))
    });
    known.collect()
}

#[test]
fn transactions_of_a_node_that_was_alone_come_along() {
    for restarts in [false, true] {
        let mut world = World::new();
        let (rests, kept) = written(&mut world, "rests");
        assert_eq!(world.end("rests", rests, true), 0);
        let (fails, gone) = written(&mut world, "fails");
        assert_eq!(world.end("fails", fails, false), 0);
        world.finish();
        let (decided, late) = written(&mut world, "decided");
        let (runs, open) = written(&mut world, "runs");
        assert_eq!(world.end("decided", decided, true), 0);

        let stream = found(&mut world);
        if restarts {
            world.restart();
        }
        read(&mut world);
        assert!(world.go_on(), "nothing is left to do");
        assert_eq!(left(&mut world, stream), BTreeSet::from([(fails.0, gone), (runs.0, open)]));

        // Whose transaction was over goes on as who it is.
        assert_eq!(world.state("rests"), "CompleteCommit");
        assert_eq!(world.add("rests", rests, "t", 1), 0);
        assert_eq!(world.end("rests", rests, true), 0);
        assert_eq!(world.state("decided"), "CompleteCommit");
        assert_eq!(world.init("decided"), Ok((decided.0, decided.1 + 1)));
        // Whose transaction ran is fenced, and begins anew as itself.
        assert_eq!(world.state("runs"), "CompleteAbort");
        assert_eq!(world.end("runs", runs, true), Code::ProducerFenced.code());
        assert_eq!(world.init("runs"), Ok((runs.0, runs.1 + 2)));

        if !restarts {
            assert_eq!(world.committed("t", 0), [kept, late]);
        }
        // Nothing comes along twice, or what has changed since would be undone.
        world.finish();
        world.restart();
        let door = world.running().door.clone();
        let loads = door.transactions.follow();
        world.sink.release();
        loads.iter().for_each(|load| door.transactions.read(&door, load, || true));
        world.sink.release();
        assert_eq!(world.init("runs"), Ok((runs.0, runs.1 + 3)));
    }
}

/// The node is one of two, and owns everything in the cluster but partition 0 of `t`, which is the other's.
fn found_without_one(world: &mut World) {
    let stream = world.running().door.transactions.stream_of("t");
    let (broker, coordinator) = together(world);
    broker.place_stream(1, stream, vec![owner(OTHER, OWNER), owner(ME, OWNER)]).unwrap();
    broker.open_streamlet(stream, StreamletId(1), OWNER, None).unwrap();
    let options = StreamOptions { replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
    let coordinators = coordinator.system_stream(transaction_parts::STREAM, &options).unwrap().id;
    broker.place_stream(1, coordinators, vec![owner(ME, OWNER); PARTS as usize]).unwrap();
    (0..PARTS).for_each(|at| broker.open_streamlet(coordinators, StreamletId(at), OWNER, None).unwrap());
}

#[test]
fn what_was_decided_ends_in_a_partition_that_left_before_its_marker_was_written() {
    for (commits, restarts) in [(true, false), (true, true), (false, true)] {
        let mut world = World::new();
        let (of, _) = written(&mut world, "decided");
        assert_eq!((world.add("decided", of, "t", 1), world.write("decided", of, "t", 1, 0)), (0, (0, 0)));
        assert_eq!((world.add_group("decided", of, "g"), world.commit_offset("decided", of, "g", 7)), (0, 0));
        assert_eq!(world.end("decided", of, commits), 0);
        found_without_one(&mut world);
        let mut loads = world.running().door.transactions.follow();
        // The node does what it can: the rest is nobody's before it has recorded that.
        for _ in 0..4 {
            world.sink.release();
            world.go_on();
        }
        let door = world.running().door.clone();
        assert!(door.transactions.own_is_at_rest(), "it waits for a partition that is another's");
        door.transactions.tick();
        world.sink.release();
        if restarts {
            world.restart();
            assert!(world.go_on(), "what is the coordinators' is carried out here too");
            loads = world.running().door.transactions.follow();
        }
        let (door, asked) = (world.running().door.clone(), Arc::new(Asked::default()));
        door.set_others(asked.clone());
        loads.iter().for_each(|load| door.transactions.read(&door, load, || true));
        world.sink.release();
        assert!(!world.go_on());
        assert_eq!(world.state("decided"), if commits { "PrepareCommit" } else { "PrepareAbort" });
        let mut asks = asked.take::<EndInPartitions>();
        let (marker, done) = asks.pop().expect("its owner is asked");
        let places: Vec<_> = marker.partitions.iter().map(|of| (of.partition, of.owner_epoch)).collect();
        assert_eq!((asks.len(), places, marker.commit), (0, vec![(0, OWNER)], commits));
        assert_eq!(asked.take::<EndInGroup>().len(), 0, "its group knows");
        done(bytes(&PartitionsEnded { partitions: vec![PartitionEnded { error: 0, start: 0, aborted: None }] }));
        world.nodes();
        assert!(world.go_on());
        world.sink.release();
        assert_eq!(world.state("decided"), if commits { "CompleteCommit" } else { "CompleteAbort" });
        assert_eq!(world.markers("t", 1), [(1, Kind::Marker(commits, of.1))]);
        assert_eq!(world.init("decided"), Ok((of.0, of.1 + 1)));
        // What is here of the partition is read up to where coordinators say, and they know of nothing open.
        let stream = door.transactions.stream_of("t");
        let left = door.transactions.partitions.get(stream, 0).unwrap();
        left.lock().begin_load(0, true);
        assert!(left.lock().load(0, [], []) && !left.lock().has_open(), "readers wait for ever");
    }
}

/// What is in the node's own journal.
fn journal(world: &mut World) -> Vec<Entry> {
    let mut all = Vec::new();
    world.running().door.transactions.log().replay(|entry| all.push(entry)).unwrap();
    all
}

#[test]
fn what_was_handed_over_is_not_ended_again_when_its_partition_comes_back() {
    let mut world = World::new();
    let (of, _) = written(&mut world, "decided");
    assert_eq!(world.end("decided", of, false), 0);
    found_without_one(&mut world);
    // What is here of the partition ends before the transaction began, as when its groups are gone.
    let Some(Entry::Transaction(id, Some(mut decided))) = journal(&mut world).pop() else { panic!("it is decided") };
    decided.partitions.values_mut().for_each(|touched| touched.from_offset = 9);
    let log = Arc::clone(world.running().door.transactions.log());
    log.append(&[Entry::Transaction(id.clone(), Some(decided.clone()))]).unwrap();
    world.sink.release();
    world.restart();
    world.running().door.transactions.follow();
    world.finish();
    world.running().door.transactions.tick();
    world.sink.release();
    let kept = journal(&mut world);
    let ends = &kept[kept.len() - 2..];
    assert!(matches!(&ends[0], Entry::Transaction(of, Some(it)) if *of == id && it.partitions == decided.partitions));
    assert_eq!(ends[1], wound_down());

    let stream = world.running().door.transactions.stream_of("t");
    let (broker, _) = world.parts();
    for comes_back in [false, true] {
        if comes_back {
            broker.place_stream(2, stream, vec![owner(ME, OWNER + 2), owner(ME, OWNER)]).unwrap();
            broker.open_streamlet(stream, StreamletId(0), OWNER + 2, None).unwrap();
        }
        world.restart();
        assert!(world.go_on(), "it is ended again");
        world.running().door.transactions.tick();
        assert_eq!(journal(&mut world), kept, "something is behind the end");
        let door = world.running().door.clone();
        assert_eq!(door.transactions.lane(stream, 0).unwrap().stats().next_ordinal, 1, "there is another marker");
        assert!(door.transactions.partitions.get(stream, 0).unwrap().lock().ranges().is_empty());
    }
}

#[test]
fn who_waits_for_the_end_of_a_transaction_looks_again_when_nothing_begins_any_more() {
    let mut world = World::new();
    let (of, _) = written(&mut world, "decided");
    assert_eq!(world.add("decided", of, "t", 1), 0);
    assert_eq!(world.end("decided", of, true), 0);
    let told = Arc::new(Told::default());
    let observer: Arc<dyn Observer> = told.clone();
    let transactions = &world.running().door.transactions;
    let lane = transactions.lane(transactions.stream_of("t"), 1).unwrap();
    let may_write =
        |transactions: &TransactionDoor| transactions.may_write("decided", of, ("t", 1), &lane, true, &observer);
    assert!(matches!(may_write(transactions), MayWrite::Later(None)));
    found_without_one(&mut world);
    let transactions = &world.running().door.transactions;
    transactions.follow();
    assert_eq!(told.0.load(Ordering::Relaxed), 1, "nothing begins here any more");
    assert!(matches!(may_write(transactions), MayWrite::No(_)), "it would wait for ever");
}

/// Two ids of one streamlet, each with as many partitions as a transaction may have, take more than a chunk together.
#[test]
fn transactions_with_many_partitions_come_along() {
    let mut world = World::new();
    let stream = world.running().door.transactions.stream_of("t");
    let names = (0..).map(|number| format!("id{number}"));
    let names = names.filter(|name| state_parts::streamlet_of(name, PARTS as usize) == 0).take(2);
    let names: Vec<String> = names.collect();
    let (of, _) = written(&mut world, "some");
    let Some(Entry::Transaction(_, Some(some))) = journal(&mut world).pop() else { panic!("it runs") };
    assert_eq!(world.end("some", of, true), 0);
    world.finish();
    let topic = "t".repeat(200);
    let touched = Touched { stream, from_offset: NOT_WRITTEN };
    let partition = |partition| (OffsetKey { topic: topic.clone(), partition }, touched);
    for (producer_id, name) in (1_000..).zip(&names) {
        let partitions = (0..PARTITIONS_MAX as i32).map(partition).collect();
        let large = Transaction { producer_id, state: TransactionState::Aborting, partitions, ..some.clone() };
        world.running().door.transactions.log().append(&[Entry::Transaction(name.clone(), Some(large))]).unwrap();
    }
    world.running().door.transactions.log().append(&[wound_down()]).unwrap();
    world.sink.release();
    found(&mut world);
    world.restart();
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nothing));
    for load in door.transactions.follow() {
        // As with groups: not as long as something cannot be appended.
        let looks = AtomicU32::new(0);
        door.transactions.read(&door, &load, || looks.fetch_add(1, Ordering::Relaxed) < 50);
    }
    world.sink.release();
    for name in names {
        assert_eq!(world.state(&name), "PrepareAbort", "it cannot be recorded");
    }
}

#[test]
fn offsets_of_a_transaction_that_was_decided_come_along() {
    for restarts in [false, true] {
        let mut world = World::new();
        let (decided, _) = written(&mut world, "decided");
        let (runs, _) = written(&mut world, "runs");
        for (id, producer, group) in [("decided", decided, "done"), ("runs", runs, "undone")] {
            assert_eq!(world.add_group(id, producer, group), 0);
            assert_eq!(world.commit_offset(id, producer, group, 7), 0);
        }
        assert_eq!(world.end("decided", decided, true), 0);

        found(&mut world);
        if restarts {
            world.restart();
        }
        let door = world.running().door.clone();
        door.set_others(Arc::new(Nothing));
        let loads = door.groups.follow(&door.catalog, &door.broker);
        assert_eq!(loads.len(), PARTS as usize);
        door.transactions.follow();
        let reading = {
            let door = door.clone();
            std::thread::spawn(move || {
                loads.iter().for_each(|load| door.groups.read(&door, load, || true));
            })
        };
        for _ in 0..20 {
            world.sink.release();
            std::thread::sleep(WAIT);
        }
        assert!(!reading.is_finished(), "groups have not heard of what is decided");
        for _ in 0..WAITS {
            world.sink.release();
            world.go_on();
            if reading.is_finished() {
                break;
            }
            std::thread::sleep(WAIT);
        }
        assert!(reading.is_finished(), "nothing comes along");
        reading.join().unwrap();
        assert_eq!((world.offset("done"), world.offset("undone")), (Ok(7), Ok(-1)));
    }
}

/// What a node kept of groups when it was alone cannot be read any more.
#[test]
fn a_node_starts_without_old_groups_unless_offsets_may_be_pending_in_them() {
    let mut world = World::new();
    let producer = world.init("id").unwrap();
    assert_eq!(world.add_group("id", producer, "g"), 0);
    assert_eq!(world.commit_offset("id", producer, "g", 7), 0);
    found(&mut world);
    let is_refused = |world: &mut World| {
        world.restart();
        let unread = ReadError::LoadFailed("the disk does not give it".to_owned());
        let door = &world.running().door;
        let is_at_rest = door.transactions.own_is_at_rest();
        let without = |is_founded| {
            assert!(group_door::may_do_without(Some(unread.clone()), is_founded, is_at_rest, true).is_ok());
            group_door::may_do_without(Some(unread.clone()), is_founded, is_at_rest, false).is_err()
        };
        assert!(without(false), "nobody else has what was committed");
        without(true)
    };
    assert!(is_refused(&mut world), "it is aborted, and the group has not heard of it");
    world.go_on();
    assert!(is_refused(&mut world), "that is not durable");
    world.finish();
    world.sink.release();
    assert!(!is_refused(&mut world));
}

#[test]
fn groups_with_more_metadata_than_a_chunk_takes_come_along() {
    let mut world = World::new();
    let groups = committed(&mut world, 1_100, 4_000);
    found(&mut world);
    assert!(read_groups(&mut world), "they cannot be recorded");
    for group in [&groups[0], &groups[1_099]] {
        assert_eq!(world.offset(group), Ok(7));
    }
    // The next owner reads what the first one has recorded.
    world.sink.release();
    world.restart();
    assert!(read_groups(&mut world));
    assert_eq!(world.offset(&groups[1_099]), Ok(7));
}

/// The node that takes over what another one has kept is killed in the middle.
#[test]
fn what_came_along_in_part_comes_along_as_a_whole() {
    let mut world = World::new();
    let groups = committed(&mut world, 2, 0);
    let (fails, gone) = written(&mut world, "fails");
    assert_eq!(world.end("fails", fails, false), 0);
    world.finish();
    world.sink.release();
    let stream = found(&mut world);
    world.restart();
    let door = world.running().door.clone();
    let info = door.catalog.info_of_groups().unwrap();
    let place = door.broker.log().stream(info.id).unwrap();
    let log = StateLog::of(group_parts::STREAM, &place, StreamletId(0), &door.clock).unwrap();
    log.append_edge(Edge::Begin).unwrap();
    let state = kafka_groups::Fact::Offset(OffsetKey { topic: "t".to_owned(), partition: 1 }, None);
    log.append(&[kafka_groups::Entry { group: groups[0].clone(), fact: state }]).unwrap();
    let info = door.catalog.info_of_transactions().unwrap();
    let place = door.broker.log().stream(info.id).unwrap();
    for part in 0..PARTS {
        let log: Arc<StateLog<Entry>> =
            StateLog::of(transaction_parts::STREAM, &place, StreamletId(part), &door.clock).unwrap();
        log.append_edge(Edge::Begin).unwrap();
    }
    world.sink.release();

    assert!(read_groups(&mut world));
    let door = world.running().door.clone();
    let loads = door.transactions.follow();
    door.transactions.tick();
    world.sink.release();
    loads.iter().for_each(|load| door.transactions.read(&door, load, || true));
    world.sink.release();
    assert_eq!((world.offset(&groups[0]), world.offset(&groups[1])), (Ok(7), Ok(7)));
    assert_eq!(left(&mut world, stream), BTreeSet::from([(fails.0, gone)]));
    // It is whole now: what changes is not undone by who owns it next.
    assert_eq!(world.init("fails"), Ok((fails.0, fails.1 + 1)));
    world.restart();
    let door = world.running().door.clone();
    let loads = door.transactions.follow();
    world.sink.release();
    loads.iter().for_each(|load| door.transactions.read(&door, load, || true));
    world.sink.release();
    assert_eq!(world.init("fails"), Ok((fails.0, fails.1 + 2)));
}

/// Asked so often whether it goes on, a node reads a streamlet and waits for what has not ended.
const LOOKS: u32 = 10;

/// The node stops while a transaction is waited for.
#[test]
fn groups_whose_founding_broke_off_are_not_served_as_empty() {
    let mut world = World::new();
    let group = committed(&mut world, 1, 0).pop().unwrap();
    let decided = world.init("decided").unwrap();
    assert_eq!(world.add_group("decided", decided, &group), 0);
    assert_eq!(world.commit_offset("decided", decided, &group, 9), 0);
    assert_eq!(world.end("decided", decided, true), 0);
    found(&mut world);
    assert!(!read_groups_with(&mut world, LOOKS));
    assert_eq!(world.offset(&group), Err(Code::CoordinatorLoadInProgress), "it has committed something");
    world.running().door.transactions.follow();
    world.finish();
    world.sink.release();
    world.restart();
    assert!(read_groups(&mut world));
    assert_eq!(world.offset(&group), Ok(9));
}

/// The same. What the node has would be gone for good: nobody asks for it once it is recorded that all of it has come along.
#[test]
fn transactions_whose_founding_broke_off_come_along_later() {
    let mut world = World::new();
    let (rests, _) = written(&mut world, "rests");
    assert_eq!(world.end("rests", rests, true), 0);
    let (fails, gone) = written(&mut world, "fails");
    assert_eq!(world.end("fails", fails, false), 0);
    world.finish();
    let (decided, _) = written(&mut world, "decided");
    assert_eq!(world.end("decided", decided, true), 0);
    let stream = found(&mut world);
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nothing));
    for load in door.transactions.follow() {
        let looked = AtomicU32::new(0);
        door.transactions.read(&door, &load, || looked.fetch_add(1, Ordering::Relaxed) < LOOKS);
    }
    let is_refused = world.init("rests") == Err(Code::CoordinatorLoadInProgress);

    world.finish();
    door.transactions.tick();
    world.sink.release();
    world.restart();
    let door = world.running().door.clone();
    door.set_others(Arc::new(Nothing));
    door.transactions.follow().iter().for_each(|load| door.transactions.read(&door, load, || true));
    world.sink.release();
    assert_eq!(left(&mut world, stream), BTreeSet::from([(fails.0, gone)]));
    for (id, of) in [("rests", rests), ("fails", fails), ("decided", decided)] {
        assert_eq!(world.init(id), Ok((of.0, of.1 + 1)), "{id}");
    }
    assert!(is_refused, "it was served before");
}

/// What a node that gives all of it slowly has left was acknowledged.
#[test]
fn a_node_that_has_just_answered_is_waited_for_as_long_as_any() {
    let mut world = World::new();
    let door = world.running().door.clone();
    let slow = Unread::Slow("there is more".to_owned());
    let refused = Unread::Refused("it is restarted".to_owned());
    let mut patience = Patience::new(&door, OTHER);
    let mut is_over_in = |ms: u64, why: &Unread| {
        world.clock.advance_ms(ms);
        patience.is_over(&door, why, "what it has")
    };
    assert!(!is_over_in(29_000, &slow));
    assert!(!is_over_in(2_000, &refused) && !is_over_in(28_000, &refused), "it answered 30 s ago");
    assert!(is_over_in(1, &refused));
    assert!(!is_over_in(0, &slow) && !is_over_in(30_000, &refused) && is_over_in(1, &refused));
}

/// Where its partitions go nobody but the coordinators tells what was aborted in them.
#[test]
fn a_cluster_gets_coordinators_for_the_transactions_that_it_is_founded_with() {
    for (has_some, restarts) in [(false, false), (true, false), (true, true)] {
        let mut world = World::new();
        assert_eq!(world.plain("t", 0), 0);
        if has_some {
            let (fails, _) = written(&mut world, "fails");
            assert_eq!(world.end("fails", fails, false), 0);
            world.finish();
        }
        together(&world);
        if restarts {
            world.restart();
        }
        let door = world.running().door.clone();
        door.set_others(Arc::new(Nothing));
        door.transactions.follow();
        door.transactions.bring_along(&door);
        assert_eq!(door.transactions.is_wanted(), has_some);
    }
}

/// The other node: it gives one after the other.
struct Gives(parking_lot::Mutex<std::collections::VecDeque<crate::Given>>);

impl OtherNodes for Gives {
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
        let given = self.0.lock().pop_front().ok_or("it has been asked too often")?;
        Ok(if given.data.is_empty() { crate::Given { next: at, ..given } } else { given })
    }
    fn ask(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: Answered) {
        done(Err("it says nothing".into()));
    }
    fn ask_native(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: Answered) {
        done(Err("it says nothing".into()));
    }
    fn serves_transactions(&self) -> bool {
        true
    }
}

/// What a node that was alone gives of its groups: their stream, all of it in one piece, the cursor behind it, and where it ends.
fn given_of_groups(world: &mut World) -> (StreamId, Vec<u8>, Cursor, u64) {
    let door = world.running().door.clone();
    let stream = door.coordinator.stream(&kera_protocol::StreamRef::Name("_kera.groups".to_owned())).unwrap().id;
    let lane = door.broker.log().stream(stream).unwrap();
    let lane = lane.streamlet(StreamletId(0)).unwrap().lane(kera_format::LaneId(0)).unwrap();
    let outcome = lane.read(Cursor::default(), 1 << 20, true).unwrap();
    (stream, outcome.data.concat(), outcome.next, lane.durable_ordinal())
}

/// A node is read once more since it has not given everything: it has deleted the group by then, and let go of what said so.
#[test]
fn a_group_that_is_deleted_between_two_readings_does_not_come_along() {
    let mut other = World::new();
    let groups = committed(&mut other, 1, 10);
    let (_, data, next, durable_ordinal) = given_of_groups(&mut other);
    let all = crate::Given { data, next, durable_ordinal };
    let more = crate::Given { data: Vec::new(), durable_ordinal: durable_ordinal + 1, ..all.clone() };
    let nothing = crate::Given { durable_ordinal: 0, ..more.clone() };
    for (given, offset) in [(vec![all.clone(), nothing.clone()], 7), (vec![all, more, nothing], -1)] {
        let mut world = World::new();
        world.sink.release();
        found(&mut world);
        let door = world.running().door.clone();
        door.set_others(Arc::new(Gives(parking_lot::Mutex::new(given.into()))));
        let loads = door.groups.follow(&door.catalog, &door.broker);
        let load = loads.iter().find(|load| load.number() == 0).unwrap();
        door.groups.read(&door, load, || true);
        assert_eq!(world.offset(&groups[0]), Ok(offset));
    }
}

/// Its disk took longer than it waits with an answer: what groups had committed in the rest would have been gone.
#[test]
fn what_another_node_has_not_given_yet_is_not_taken_for_its_end() {
    let mut world = World::new();
    committed(&mut world, 3, 10);
    let door = world.running().door.clone();
    let log = StateLog::find("_kera.groups", &door.catalog, &door.broker, &door.clock).unwrap();
    let (stream, data, next, durable_ordinal) = given_of_groups(&mut world);
    let first = kera_format::chunk::Chunks::new(&data).next().unwrap().unwrap().header().total_bytes();
    let give = |data: &[u8]| crate::Given { data: data.to_vec(), next, durable_ordinal };
    let other = Arc::new(Gives(parking_lot::Mutex::default()));
    door.set_others(other.clone());
    let read = |given: Vec<crate::Given>| {
        *other.0.lock() = given.into();
        let mut count = 0;
        let each = |_: kafka_groups::Entry| count += 1;
        let read = log.read_before(&door, 9, ("_kera.groups", stream), each, || true);
        (read.is_ok(), count)
    };
    let nothing = give(&[]);
    assert_eq!(read(vec![give(&data[..first]), nothing.clone()]), (false, 1));
    assert_eq!(read(vec![give(&data[..first]), give(&data[first..]), nothing.clone()]), (true, 3));
    assert_eq!(read(vec![nothing.clone()]), (false, 0), "its first segment takes its time");
    let next = crate::Given { durable_ordinal: 0, ..give(&[]) };
    assert_eq!(read(vec![give(&data[..first]), next.clone()]), (false, 1), "what it has said holds");
    assert_eq!(read(vec![next]), (true, 0), "it has none");
}
