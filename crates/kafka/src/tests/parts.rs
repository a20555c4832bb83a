//! Groups of a node that shares them with others: which it serves, and what becomes of those that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopic};
use kera_format::kafka_groups::{CommittedOffset, Entry, Fact, OffsetKey};
use kera_format::{Cursor, StreamId, StreamOptions, StreamletId};
use kera_protocol::placement::OlderGroups;
use kera_protocol::{NodeInfo, Owner};
use parking_lot::{Mutex, MutexGuard};

use super::transactions::{World, text, topic};
use super::*;
use crate::door::{Coordinators, OtherNodes};
use crate::group_door::{copy, copy_resting};
use crate::group_parts::{self, Load};
use crate::groups::{GroupConfig, Now};
use crate::state_log::{Edge, StateLog, Stopped, Unreadable};
use crate::{admin, state_parts, transaction_parts};

pub(super) const ME: u32 = 1;
pub(super) const OTHER: u32 = 2;
/// A coordinator that serves no Kafka clients.
const ELSEWHERE: u32 = 3;
const STREAMLETS: u32 = 4;

pub(super) fn owner(node: u32, epoch: u32) -> Owner {
    Owner { node, epoch, older: Vec::new() }
}

/// Groups by their streamlets, two of each.
fn groups_of(world: &mut World) -> Vec<[GroupId; 2]> {
    let door = world.running().door.clone();
    let of = |streamlet| {
        let names = (0..).map(|number| format!("g{number}"));
        let here =
            names.filter(|name| door.groups.streamlet_of(name).is_some_and(|(_, is)| is == StreamletId(streamlet)));
        let mut here = here.map(|name| GroupId(text(&name)));
        [here.next().unwrap(), here.next().unwrap()]
    };
    (0..STREAMLETS).map(of).collect()
}

/// The node is one of two from here on.
pub(super) fn together(world: &World) -> (Arc<Broker>, Arc<Coordinator>) {
    let (broker, coordinator) = world.parts();
    broker.join_cluster([7; 16], ME);
    let node = |node| NodeInfo {
        node,
        node_epoch: 1,
        address: String::new(),
        kafka_address: format!("127.0.0.1:{node}"),
        http_address: String::new(),
        rack: String::new(),
        roles: Vec::new(),
    };
    broker.set_nodes(1, vec![node(ME), node(OTHER)]);
    (broker, coordinator)
}

/// A node of two; streamlet 3 of the groups is the other one's.
fn shared() -> (World, StreamId) {
    let mut world = World::new();
    let (broker, coordinator) = together(&world);
    let options =
        StreamOptions { streamlets: STREAMLETS, replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
    let stream = coordinator.system_stream(group_parts::STREAM, &options).unwrap().id;
    let owners = (0..STREAMLETS).map(|at| if at < 3 { owner(ME, 5) } else { owner(OTHER, 5) });
    broker.place_stream(1, stream, owners.collect()).unwrap();
    (0..3).for_each(|at| broker.open_streamlet(stream, StreamletId(at), 5, None).unwrap());
    world.restart();
    (world, stream)
}

impl World {
    fn follow(&mut self) -> Vec<Load> {
        let door = self.running().door.clone();
        door.groups.follow(&door.catalog, &door.broker)
    }

    /// Follows, and reads what has come.
    fn read(&mut self) {
        let door = self.running().door.clone();
        for load in self.follow() {
            if let Some(part) = load.run(&door.broker, || door.others(), || true) {
                door.groups.loaded(&load, part);
            }
        }
    }

    /// Another node has streamlet 0 for a while, with what is in a lane, and cannot be reached so many times less one. What has come is read.
    fn comes_back(&mut self, stream: StreamId, lane: Arc<kera_log::Lane>, failures: u32) {
        let (broker, _) = self.parts();
        broker.set_owner(2, stream, StreamletId(0), owner(OTHER, 7)).unwrap();
        self.follow();
        let older = [(5, ME), (7, OTHER)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
        broker.set_owner(3, stream, StreamletId(0), Owner { older: older.to_vec(), ..owner(ME, 9) }).unwrap();
        broker.open_streamlet(stream, StreamletId(0), 9, None).unwrap();
        self.running().door.set_others(Arc::new(Older { lane, failures: AtomicU32::new(failures) }));
        self.read();
    }

    fn commit(&mut self, group: &GroupId, offset: i64) -> i16 {
        let one = OffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(offset);
        let one = OffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group.clone())
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![one]);
        self.call(2, &request).topics[0].partitions[0].error_code
    }

    /// What several groups have committed of partition 0, asked for with one request; or the errors.
    fn offsets(&mut self, groups: &[&GroupId]) -> BTreeMap<String, Result<i64, i16>> {
        let group = |id: &&GroupId| OffsetFetchRequestGroup::default().with_group_id((*id).clone()).with_topics(None);
        let request = OffsetFetchRequest::default().with_groups(groups.iter().map(group).collect());
        let answer = self.call(8, &request);
        let told = answer.groups.iter().map(|group| {
            let offset = group.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset);
            let told = if group.error_code == 0 { Ok(offset) } else { Err(group.error_code) };
            (group.group_id.to_string(), told)
        });
        told.collect()
    }

    fn found(&mut self, group: &GroupId) -> (i16, i32) {
        let answer = self.call(1, &FindCoordinatorRequest::default().with_key(group.0.clone()));
        (answer.error_code, answer.node_id.0)
    }
}

/// No other node answers; who should have copies is known all the same. What was to be read there is noted.
#[derive(Default)]
pub(super) struct Nobody {
    asked: Mutex<BTreeSet<(StreamId, StreamletId)>>,
    /// The coordinator that leads.
    leader: Mutex<Option<u32>>,
}

impl OtherNodes for Nobody {
    fn leading_coordinator(&self) -> Option<u32> {
        *self.leader.lock()
    }
    fn coordinators(&self) -> Coordinators {
        let leader = self.leading_coordinator();
        Coordinators { leader, term: 4, voters: vec![ME, OTHER, ELSEWHERE], observers: vec![9] }
    }
    fn copies_of(&self, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
        ((owner..owner + copies).collect(), vec![owner])
    }
    fn read(&self, _: u32, stream: StreamId, at: StreamletId, _: Cursor) -> Result<crate::Given, String> {
        self.asked.lock().insert((stream, at));
        Err("nobody is there".into())
    }
    fn ask(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("nobody is there".into()));
    }
    fn ask_native(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("nobody is there".into()));
    }
    fn serves_transactions(&self) -> bool {
        false
    }
}

#[test]
fn the_coordinator_that_leads_is_the_controller_if_clients_reach_it() {
    let mut world = World::new();
    together(&world);
    world.restart();
    let nobody = Arc::new(Nobody::default());
    world.running().door.set_others(nobody.clone());
    for (leader, controller) in [(None, ME), (Some(OTHER), OTHER), (Some(ELSEWHERE), ME)] {
        *nobody.leader.lock() = leader;
        let told = world.call(1, &MetadataRequest::default().with_topics(None)).controller_id;
        assert_eq!(told, BrokerId(controller as i32), "{leader:?}");
        let told = world.call(0, &DescribeClusterRequest::default()).controller_id;
        assert_eq!(told, BrokerId(controller as i32), "{leader:?}");
        let asked = describe_quorum_request::TopicData::default()
            .with_topic_name(topic("__cluster_metadata"))
            .with_partitions(vec![describe_quorum_request::PartitionData::default()]);
        let told = world.call(2, &DescribeQuorumRequest::default().with_topics(vec![asked]));
        let quorum = &told.topics[0].partitions[0];
        let Some(leader) = leader else {
            assert_eq!(quorum.error_code, ResponseError::NotLeaderOrFollower.code());
            continue;
        };
        assert_eq!((quorum.error_code, quorum.leader_id, quorum.leader_epoch), (0, BrokerId(leader as i32), 4));
        let ids =
            |of: &[describe_quorum_response::ReplicaState]| of.iter().map(|one| one.replica_id.0).collect::<Vec<_>>();
        assert_eq!((ids(&quorum.current_voters), ids(&quorum.observers)), (vec![1, 2, 3], vec![9]));
        assert_eq!(
            told.nodes.iter().map(|node| node.node_id.0).collect::<Vec<_>>(),
            [1, 2],
            "where clients reach them"
        );
    }
}

/// The last node of a cluster stops: what others have of its groups and transactions nobody tells it.
#[test]
fn a_door_closes_while_what_has_come_to_it_cannot_be_read() {
    let world = World::new();
    let (broker, coordinator) = together(&world);
    let options =
        StreamOptions { streamlets: STREAMLETS, replication: 1, virtual_logs: 0, ..state_parts::stream_options(1) };
    for name in [group_parts::STREAM, transaction_parts::STREAM] {
        let stream = coordinator.system_stream(name, &options).unwrap().id;
        let mine = || Owner { older: vec![OlderGroups { first_epoch: 1, node: OTHER }], ..owner(ME, 5) };
        broker.place_stream(1, stream, (0..STREAMLETS).map(|_| mine()).collect()).unwrap();
        (0..STREAMLETS).for_each(|at| broker.open_streamlet(stream, StreamletId(at), 5, None).unwrap());
    }
    let config = DoorConfig { node: [3; 16], ..DoorConfig::default() };
    let (door, threads) =
        Door::start(config, broker, coordinator, world.clock.clone(), Arc::new(SystemRandom)).unwrap();
    let nobody = Arc::new(Nobody::default());
    door.set_others(nobody.clone());
    while nobody.asked.lock().len() < 2 * STREAMLETS as usize {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(door);
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        threads.join();
        told.send(())
    });
    ended.recv_timeout(Duration::from_secs(180)).expect("whoever reads for it ends");
}

#[test]
fn transactions_wait_for_the_last_node_of_an_older_version() {
    let asked = FindCoordinatorRequest::default().with_key_type(1);
    let found = |world: &mut World| {
        let old = world.call(1, &asked.clone().with_key(text("id")));
        let new = world.call(4, &asked.clone().with_coordinator_keys(vec![text("id")]));
        let new = new.coordinators.into_iter().next().unwrap();
        assert_eq!(
            (old.error_code, old.node_id, &old.error_message),
            (new.error_code, new.node_id, &new.error_message)
        );
        (old.error_code, old.node_id.0, old.error_message)
    };
    let (mut world, _) = shared();
    assert_eq!(found(&mut world), (NOT_AVAILABLE, -1, None), "the stream is not made yet");
    world.running().door.clone().set_others(Arc::new(Nobody::default()));
    let (error, node, why) = found(&mut world);
    assert_eq!((error, node), (42, -1));
    assert!(why.as_ref().is_some_and(|why| why.contains("this version")), "{why:?}");
    let id = Some(TransactionalId(text("id")));
    let answer = world.call(3, &InitProducerIdRequest::default().with_transactional_id(id));
    assert_eq!((answer.error_code, answer.producer_id.0), (NOT_COORDINATOR, -1));
}

fn told<const N: usize>(told: [(&GroupId, Result<i64, i16>); N]) -> BTreeMap<String, Result<i64, i16>> {
    told.into_iter().map(|(group, told)| (group.to_string(), told)).collect()
}

/// Codes of errors.
const LOADING: i16 = 14;
const NOT_AVAILABLE: i16 = 15;
const NOT_COORDINATOR: i16 = 16;

#[test]
fn a_request_about_groups_of_several_parts_is_answered_once() {
    let (mut world, _) = shared();
    // Nothing is known of the stream before the first look at it.
    assert_eq!(world.found(&GroupId(text("g"))), (NOT_AVAILABLE, -1));
    let loads = world.follow();
    let groups = groups_of(&mut world);
    let [mine, second, other] = [&groups[0][0], &groups[1][0], &groups[3][0]];
    assert_eq!((world.found(mine), world.found(other)), ((0, 1), (0, 2)));
    assert_eq!(world.commit(mine, 1), LOADING, "what was committed before is not read yet");
    let listed = world.call(2, &ListGroupsRequest::default());
    assert_eq!((listed.error_code, listed.groups.len()), (LOADING, 0));
    let door = world.running().door.clone();
    for load in &loads {
        door.groups.loaded(load, load.run(&door.broker, || door.others(), || true).expect("it is here"));
    }

    assert_eq!((world.commit(mine, 1), world.commit(second, 2), world.commit(other, 3)), (0, 0, NOT_COORDINATOR));
    let expected = told([(mine, Ok(1)), (second, Ok(2)), (other, Err(NOT_COORDINATOR)), (&groups[2][1], Ok(-1))]);
    assert_eq!(world.offsets(&[mine, other, &groups[2][1], second]), expected);
    let listed = world.call(2, &ListGroupsRequest::default());
    assert_eq!((listed.error_code, listed.groups.len()), (0, 2));
    let described = world.call(2, &DescribeGroupsRequest::default().with_groups(vec![mine.clone(), other.clone()]));
    assert_eq!(described.groups.iter().map(|group| group.error_code).collect::<Vec<_>>(), [0, NOT_COORDINATOR]);
    let gone = DeleteGroupsRequest::default().with_groups_names(vec![mine.clone(), second.clone(), other.clone()]);
    let deleted = world.call(1, &gone);
    assert_eq!(deleted.results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [0, 0, NOT_COORDINATOR]);
    assert_eq!(world.offsets(&[mine, second]), told([(mine, Ok(-1)), (second, Ok(-1))]));
    assert!(world.call(1, &DescribeGroupsRequest::default()).groups.is_empty());
}

/// The first version that groups are asked with has no error of its own: who is told of no partition takes it that nothing was committed.
#[test]
fn an_error_of_a_group_is_told_with_each_partition_where_there_is_no_other_place() {
    let (mut world, _) = shared();
    let loads = world.follow();
    let groups = groups_of(&mut world);
    let fetched = |world: &mut World, version: i16, group: &GroupId| {
        let asked = ["t", "u"]
            .map(|name| OffsetFetchRequestTopic::default().with_name(topic(name)).with_partition_indexes(vec![0, 1]));
        let request = OffsetFetchRequest::default().with_group_id(group.clone()).with_topics(Some(asked.to_vec()));
        let answer = world.call(version, &request);
        let told = answer.topics.iter().flat_map(|topic| {
            let partitions = topic.partitions.iter();
            partitions.map(|of| (topic.name.to_string(), of.partition_index, of.committed_offset, of.error_code))
        });
        (answer.error_code, told.collect::<Vec<_>>())
    };
    let each = |code: i16| {
        let of = |(name, at): (&str, i32)| (name.to_owned(), at, -1, code);
        [("t", 0), ("t", 1), ("u", 0), ("u", 1)].map(of).to_vec()
    };
    let [mine, other] = [&groups[0][0], &groups[3][0]];
    assert_eq!(fetched(&mut world, 1, mine), (0, each(LOADING)));
    assert_eq!(fetched(&mut world, 1, other), (0, each(NOT_COORDINATOR)));
    assert_eq!(fetched(&mut world, 2, other), (NOT_COORDINATOR, Vec::new()));
    let door = world.running().door.clone();
    for load in &loads {
        door.groups.loaded(load, load.run(&door.broker, || door.others(), || true).expect("it is here"));
    }
    assert_eq!(fetched(&mut world, 1, mine), (0, each(0)));
}

/// It has not heard of the coordinators for so long that others may have its groups, and what it knows of them may be of the past.
#[test]
fn who_may_have_been_replaced_tells_nothing_of_groups() {
    let (mut world, _) = shared();
    world.read();
    let groups = groups_of(&mut world);
    let mine = &groups[0][0];
    assert_eq!(world.commit(mine, 1), 0);
    let broker = Arc::clone(&world.running().door.broker);
    broker.confirmed(world.clock.since_boot_us());
    world.clock.advance_ms(kera_broker::SERVES_MS - 1);
    assert_eq!(world.offsets(&[mine]), told([(mine, Ok(1))]));
    world.clock.advance_ms(1);
    assert_eq!(world.offsets(&[mine]), told([(mine, Err(NOT_COORDINATOR))]));
    assert_eq!((world.commit(mine, 2), world.found(mine)), (NOT_COORDINATOR, (NOT_AVAILABLE, -1)));
    let described = world.call(2, &DescribeGroupsRequest::default().with_groups(vec![mine.clone()]));
    assert_eq!(described.groups[0].error_code, NOT_COORDINATOR);
    let beat = HeartbeatRequest::default().with_group_id(mine.clone()).with_member_id(text("m"));
    assert_eq!(world.call(3, &beat).error_code, NOT_COORDINATOR);
    let listed = world.call(2, &ListGroupsRequest::default());
    assert_eq!((listed.error_code, listed.groups.len()), (LOADING, 0));
    broker.confirmed(world.clock.since_boot_us());
    assert_eq!(world.offsets(&[mine]), told([(mine, Ok(1))]));
    assert_eq!(world.call(2, &ListGroupsRequest::default()).groups.len(), 1);
}

#[test]
fn an_answer_about_several_parts_waits_for_all_of_them() {
    let (mut world, _) = shared();
    world.read();
    let groups = groups_of(&mut world);
    let (mine, second) = (&groups[0][0], &groups[1][0]);
    assert_eq!((world.commit(mine, 1), world.commit(second, 2)), (0, 0));
    let gone = DeleteGroupsRequest::default().with_groups_names(vec![mine.clone(), second.clone()]);
    world.send(1, &gone);
    assert!(world.answer::<DeleteGroupsRequest>(1).is_none(), "neither is durable");
    world.sink.release_first(1);
    assert!(world.answer::<DeleteGroupsRequest>(1).is_none(), "the second one is not");
    world.sink.release();
    assert!(world.answer::<DeleteGroupsRequest>(1).is_some());
}

#[test]
fn groups_come_and_go_with_their_streamlet() {
    let (mut world, stream) = shared();
    world.read();
    let groups = groups_of(&mut world);
    let [first, stays] = [&groups[0][0], &groups[1][0]];
    assert_eq!((world.commit(first, 7), world.commit(stays, 8)), (0, 0));
    // Somebody waits for the others of its group when the streamlet leaves.
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata("m".into());
    let join = JoinGroupRequest::default()
        .with_group_id(first.clone())
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    world.send(3, &join);
    assert!(world.answer::<JoinGroupRequest>(3).is_none());
    let (broker, _) = world.parts();
    broker.set_owner(2, stream, StreamletId(0), owner(OTHER, 6)).unwrap();
    assert!(world.follow().is_empty());
    assert_eq!(world.answer::<JoinGroupRequest>(3).expect("it is told").error_code, NOT_COORDINATOR);
    assert_eq!(world.offsets(&[first, stays]), told([(first, Err(NOT_COORDINATOR)), (stays, Ok(8))]));

    // It comes back in a later epoch: from the log, not from memory.
    broker.set_owner(3, stream, StreamletId(0), owner(ME, 7)).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 7, None).unwrap();
    let loads = world.follow();
    assert_eq!(loads.len(), 1);
    assert_eq!(world.offsets(&[first]), told([(first, Err(LOADING))]));
    // The streamlet goes again while it is read: what was read is not served.
    broker.set_owner(4, stream, StreamletId(0), owner(OTHER, 8)).unwrap();
    let door = world.running().door.clone();
    assert!(loads[0].run(&door.broker, || door.others(), || true).is_none());
    world.read();
    assert_eq!(world.offsets(&[first]), told([(first, Err(NOT_COORDINATOR))]));
    // The same when it goes behind the end of reading.
    broker.set_owner(5, stream, StreamletId(0), owner(ME, 9)).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 9, None).unwrap();
    let loads = world.follow();
    let part = loads[0].run(&door.broker, || door.others(), || true).expect("it is here");
    broker.set_owner(6, stream, StreamletId(0), owner(OTHER, 10)).unwrap();
    assert!(world.follow().is_empty());
    door.groups.loaded(&loads[0], part);
    assert_eq!(world.offsets(&[first]), told([(first, Err(NOT_COORDINATOR))]));

    broker.set_owner(7, stream, StreamletId(0), owner(ME, 11)).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 11, None).unwrap();
    world.read();
    assert_eq!(world.offsets(&[first]), told([(first, Ok(7))]));
}

/// Another node, which has what a lane of another world has, and cannot be reached at first.
struct Older {
    lane: Arc<kera_log::Lane>,
    failures: AtomicU32,
}

impl OtherNodes for Older {
    fn leading_coordinator(&self) -> Option<u32> {
        None
    }
    fn coordinators(&self) -> Coordinators {
        Coordinators::default()
    }
    fn copies_of(&self, owner: u32, _: u32) -> (Vec<u32>, Vec<u32>) {
        (vec![owner], vec![owner])
    }
    fn read(&self, node: u32, _: StreamId, at: StreamletId, from: Cursor) -> Result<crate::Given, String> {
        assert_eq!((node, at, from.group.epoch()), (OTHER, StreamletId(0), 7));
        if self.failures.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Err("it is not there".into());
        }
        self.failures.store(1, Ordering::Relaxed);
        let outcome = self.lane.read(Cursor::default(), 1 << 20, true).unwrap();
        let next = Cursor { group: kera_format::GroupId::new(9, 0), ..Cursor::default() };
        Ok(crate::Given { data: outcome.data.concat(), next, durable_ordinal: 0 })
    }
    fn ask(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("it is not there".into()));
    }
    fn ask_native(&self, _: u32, _: kera_protocol::Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("nobody is there".into()));
    }
    fn serves_transactions(&self) -> bool {
        false
    }
}

#[test]
fn groups_that_older_owners_have_are_read_there() {
    // What the other node has had in between.
    let (mut other, stream) = shared();
    other.read();
    let groups = groups_of(&mut other);
    let [moved, only_before] = [&groups[0][0], &groups[0][1]];
    assert_eq!(other.commit(moved, 8), 0);
    let lane = lane_of(&other, stream, 0);

    let (mut world, stream) = shared();
    world.read();
    assert_eq!((world.commit(moved, 7), world.commit(only_before, 3)), (0, 0));
    world.comes_back(stream, lane, 3);
    assert_eq!(world.offsets(&[moved, only_before]), told([(moved, Ok(8)), (only_before, Ok(3))]));
    assert_eq!(world.commit(moved, 9), 0, "and it goes on from there");
    assert_eq!(world.offsets(&[moved]), told([(moved, Ok(9))]));
}

/// Else earlier owners keep for good what they have, and each later one reads it once more.
#[test]
fn what_earlier_owners_have_is_written_anew_at_once_and_needed_no_more() {
    let (mut other, stream) = shared();
    other.read();
    let groups = groups_of(&mut other);
    let [moved, stays] = [&groups[0][0], &groups[1][0]];
    assert_eq!(other.commit(moved, 8), 0);
    let lane = lane_of(&other, stream, 0);

    let (mut world, stream) = shared();
    world.read();
    assert_eq!((world.commit(moved, 7), world.commit(stays, 3)), (0, 0));
    world.comes_back(stream, lane, 1);
    let door = world.running().door.clone();
    let lanes = [0, 1].map(|at| lane_of(&world, stream, at));
    let ends = || lanes.each_ref().map(|lane| lane.stats().next_ordinal);
    let say_everything = || lanes.each_ref().map(|lane| lane.says_everything());
    let before = ends();
    door.groups.tick();
    let copied = ends();
    assert!(copied[0] > before[0], "{copied:?}");
    assert_eq!(copied[1], before[1], "nobody else has anything of that");
    assert_eq!(say_everything(), [false, false], "it is not durable");
    world.sink.release();
    door.groups.tick();
    assert_eq!(say_everything(), [true, false]);
    door.groups.tick();
    assert_eq!(ends(), copied, "once");
    // Another one writes to it in between.
    let (broker, _) = world.parts();
    broker.set_owner(4, stream, StreamletId(0), owner(OTHER, 11)).unwrap();
    let older = [(9, ME), (11, OTHER)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
    broker.set_owner(5, stream, StreamletId(0), Owner { older: older.to_vec(), ..owner(ME, 13) }).unwrap();
    broker.open_streamlet(stream, StreamletId(0), 13, None).unwrap();
    assert_eq!(say_everything(), [false, false], "it was said in an earlier epoch");
}

fn lane_of(world: &World, stream: StreamId, streamlet: u32) -> Arc<kera_log::Lane> {
    let found = world.parts().0.log().stream(stream).unwrap();
    found.streamlet(StreamletId(streamlet)).unwrap().lane(kera_format::LaneId(0)).unwrap().clone()
}

fn log_of(world: &World, stream: StreamId) -> Arc<StateLog<Entry>> {
    let (broker, _) = world.parts();
    let clock: Arc<dyn kera_env::Clock> = Arc::new(kera_env::SystemClock::new());
    StateLog::of(group_parts::STREAM, &broker.log().stream(stream).unwrap(), StreamletId(0), &clock).unwrap()
}

fn offset(offset: i64, metadata: &str) -> Option<CommittedOffset> {
    let (leader_epoch, committed_ms, expires_ms, topic_id) = (-1, 0, None, 0);
    Some(CommittedOffset { offset, leader_epoch, committed_ms, expires_ms, topic_id, metadata: metadata.to_owned() })
}

/// An earlier owner has that offsets of a transaction are pending; that they are not any more stood where its successor has let go of it.
#[test]
fn what_stands_in_front_of_a_whole_copy_does_not_count() {
    let (mut other, stream) = shared();
    other.read();
    let group = groups_of(&mut other)[0][0].to_string();
    let of = || OffsetKey { topic: "t".to_owned(), partition: 0 };
    let fact = |fact| Entry { group: group.clone(), fact };
    let log = log_of(&other, stream);
    // One that breaks off, and one that is whole.
    log.append_edge(Edge::Begin).unwrap();
    log.append_edge(Edge::Begin).unwrap();
    log.append(&[fact(Fact::Offset(of(), offset(8, "")))]).unwrap();
    log.append_edge(Edge::End).unwrap();
    other.sink.release();
    let lane = lane_of(&other, stream, 0);

    let (mut world, stream) = shared();
    world.read();
    log_of(&world, stream).append(&[fact(Fact::Pending(77, of(), offset(100, "")))]).unwrap();
    world.sink.release();
    world.comes_back(stream, lane, 1);
    assert_eq!(world.offset(&group), Ok(8), "nothing is pending");
}

/// Its disk has lost it, or it is gone for good. Nobody needs that any more where a later owner has written all of it anew; where it has not, that one may have been told of something that stood there.
#[test]
fn what_an_earlier_owner_does_not_give_is_waited_for_only_where_no_whole_copy_stands_behind_it() {
    for edges in [&[Edge::Begin, Edge::End][..], &[Edge::Begin], &[]] {
        let (mut other, stream) = shared();
        other.read();
        let group = groups_of(&mut other)[0][0].to_string();
        let lane = lane_of(&other, stream, 0);
        let (mut world, stream) = shared();
        world.read();
        world.comes_back(stream, lane, 1);
        let key = OffsetKey { topic: "t".to_owned(), partition: 0 };
        let kept = [Entry { group: group.clone(), fact: Fact::Offset(key, offset(8, "")) }];
        let log = log_of(&world, stream);
        let (before, behind) = edges.split_at(edges.len().min(1));
        before.iter().for_each(|edge| _ = log.append_edge(*edge).unwrap());
        log.append(&kept).unwrap();
        behind.iter().for_each(|edge| _ = log.append_edge(*edge).unwrap());
        world.sink.release();
        // The node starts again, in a later owner epoch, and the other one does not answer.
        let (broker, _) = world.parts();
        let older = [(5, ME), (7, OTHER), (9, ME)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
        broker.set_owner(4, stream, StreamletId(0), Owner { older: older.to_vec(), ..owner(ME, 11) }).unwrap();
        broker.open_streamlet(stream, StreamletId(0), 11, None).unwrap();
        world.restart();
        let door = world.running().door.clone();
        door.set_others(Arc::new(Nobody::default()));
        let is_whole = edges.len() == 2;
        let looks = std::cell::Cell::new(0);
        let go_on = || {
            looks.set(looks.get() + 1);
            is_whole || looks.get() < 20
        };
        let load = world.follow().into_iter().find(|load| load.number() == 0).expect("it has come");
        let part = load.run(&door.broker, || door.others(), go_on);
        assert_eq!(part.is_some(), is_whole, "{edges:?}");
        if let Some(part) = part {
            door.groups.loaded(&load, part);
            assert_eq!(world.offset(&group), Ok(8));
        }
    }
}

/// What this node has itself may be what cannot be read, and the whole copy be another node's.
#[test]
fn behind_a_segment_that_a_disk_has_lost_comes_what_another_node_has() {
    let (mut other, stream) = shared();
    other.read();
    let group = groups_of(&mut other)[0][0].clone();
    let lane = lane_of(&other, stream, 0);
    let (mut world, stream) = shared();
    world.read();
    assert_eq!(world.commit(&group, 7), 0);
    world.comes_back(stream, lane, 1);
    let (broker, _) = world.parts();
    let log = log_of(&world, stream);
    let behind = |at: Cursor| log.behind(&broker, &Stopped::at(at, Unreadable::Segment, "lost"));
    let runs: Vec<u32> =
        std::iter::successors(behind(log.start(&broker)), |at| behind(*at)).map(|at| at.group.epoch()).collect();
    assert_eq!(runs, [5, 7, 9]);
}

/// Its groups are another node's, which reads what is here: a copy of nothing must not have it let go.
#[test]
fn a_part_that_has_left_copies_nothing() {
    let (mut world, stream) = shared();
    let loads = world.follow();
    let coordinator = Mutex::new(loads[0].making().coordinator(GroupConfig::default(), None));
    let log = log_of(&world, stream);
    let metadata = "x".repeat(4000);
    let fact = |at| Fact::Offset(OffsetKey { topic: "t".to_owned(), partition: at }, offset(1, &metadata));
    let entries: Vec<Entry> = (0..500).map(|at| Entry { group: "g".to_owned(), fact: fact(at) }).collect();
    for _ in 0..3 {
        log.append(&entries).unwrap();
    }
    let end = log.last_mark();
    copy(&log, &coordinator, 4 << 20);
    assert_eq!(log.last_mark(), end);
    coordinator.lock().start(Now::default());
    copy(&log, &coordinator, 4 << 20);
    assert!(log.last_mark() > end, "it was due");
}

/// Who commits waits for a step of a copy and not for all of it.
#[test]
fn groups_are_served_between_the_steps_of_a_copy_and_one_whose_part_leaves_meanwhile_has_no_end() {
    let (mut world, stream) = shared();
    let loads = world.follow();
    let (log, metadata) = (log_of(&world, stream), "x".repeat(4000));
    let fact = || Fact::Offset(OffsetKey { topic: "t".to_owned(), partition: 0 }, offset(1, &metadata));
    let entries: Vec<Entry> = (0..200).map(|at| Entry { group: format!("g{at:03}"), fact: fact() }).collect();
    let grow = || (0..2).for_each(|_| _ = log.append(&entries).unwrap());
    let coordinator = Mutex::new(loads[0].making().coordinator(GroupConfig::default(), None));
    entries.iter().for_each(|entry| coordinator.lock().replay(entry.clone()));
    coordinator.lock().start(Now::default());
    grow();
    let mut rests = 0;
    copy_resting(&log, &coordinator, 1 << 20, |coordinator_of| {
        MutexGuard::unlocked(coordinator_of, || rests += usize::from(coordinator.try_lock().is_some()));
    });
    assert!(rests >= 2, "{rests}");
    // That one is whole: the next one may begin once it is durable.
    world.sink.release();
    log.trim();
    grow();
    let mut rests = 0;
    copy_resting(&log, &coordinator, 1 << 20, |coordinator| {
        coordinator.close(ResponseError::NotCoordinator);
        rests += 1;
    });
    assert_eq!(rests, 1);
}

#[test]
fn topics_get_three_copies_by_themselves_where_there_are_as_many_nodes() {
    let mut world = World::new();
    let door = world.running().door.clone();
    assert_eq!(admin::copies_default(&door), 1);
    let (broker, _) = together(&world);
    assert_eq!(admin::copies_default(&door), 1, "a loss would stop two of two");
    let mut nodes = broker.ownership().nodes().to_vec();
    nodes.push(NodeInfo { node: 3, ..nodes[0].clone() });
    broker.set_nodes(2, nodes);
    assert_eq!(admin::copies_default(&door), 3);
}
