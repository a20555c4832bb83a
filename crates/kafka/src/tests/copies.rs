//! Topics of three nodes, with real coordinators behind the door of the first: where their partitions are wanted, and how many copies they get.

use std::collections::BTreeSet;

use create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
use create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use kera_coordinator::catalog::{Catalog, Limits};
use kera_coordinator::cluster::{ClusterState, Join};
use kera_coordinator::{ClusterLog, CoordinatorError, LiveNode};
use kera_format::cluster::{ClusterEntry, Doors, Roles};
use kera_format::{Cursor, ProducerEpoch, ProducerId, StreamId, StreamletId, level};
use kera_protocol::codec::bytes_of;
use kera_protocol::{
    AllocateProducer, AllocatedProducer, AlterStream, Body, CopiesMade, DescribeMoves, Message, MoveStreamlet,
    MovesDescription, Op, StreamletState,
};
use parking_lot::Mutex;

use super::transactions::{World, topic};
use super::*;
use crate::copies::LOOKED_UP;
use crate::door::{Coordinators, OtherNodes};

const NODES: u32 = 3;
const MOST: Limits = Limits { streams: 100, nodes: 16 };
const BAD_FACTOR: i16 = 38;
const BAD_ASSIGNMENT: i16 = 39;
const NOTHING_MOVES: i16 = 85;
/// The producer that the leader gives out.
pub(super) const FRESH_PRODUCER: u64 = 3_000;

/// What is answered in place of the leader; `None`: it answers itself.
type Instead = dyn Fn() -> Option<CoordinatorError> + Send + Sync;

/// The coordinators' log of three nodes, where everybody knows at once what is in it.
pub(super) struct Leader {
    state: Mutex<(u64, ClusterState)>,
    broker: Arc<Broker>,
    instead: Mutex<Option<Arc<Instead>>>,
}

impl Leader {
    fn join(node: u32) -> Join {
        let doors = Doors { kafka: format!("10.0.0.{node}:9092"), ..Doors::default() };
        let (rack, settings, levels) = (String::new(), Vec::new(), (level::FIRST, level::NEWEST));
        Join {
            node,
            uuid: [node as u8; 16],
            roles: Roles::ALL,
            rack,
            doors,
            settings,
            epoch_min: 1,
            has_all: true,
            levels,
        }
    }

    fn begin(broker: &Arc<Broker>, until: u32) -> Arc<Leader> {
        let leader = Leader::found(broker, until);
        broker.join_cluster([9; 16], 1);
        broker.set_nodes(1, leader.state.lock().1.node_infos());
        leader
    }

    /// The same, of which the broker is not told: it serves as one that is alone.
    pub(super) fn found(broker: &Arc<Broker>, until: u32) -> Arc<Leader> {
        let leader = Leader { state: Mutex::default(), broker: broker.clone(), instead: Mutex::default() };
        leader.apply(|state| state.plan_found([9; 16], &Leader::join(1), 0)).unwrap();
        (2..=NODES).for_each(|node| leader.apply(|state| state.plan_join(&Leader::join(node), 0)).unwrap());
        let low = leader.state.lock().1.level();
        (low + 1..=until).for_each(|level| leader.apply(|_| Ok(vec![ClusterEntry::LevelRaised { level }])).unwrap());
        Arc::new(leader)
    }

    /// Nobody leads the coordinators from here on, or their leader refuses what it is asked.
    pub(super) fn answer_instead(&self, instead: impl Fn() -> Option<CoordinatorError> + Send + Sync + 'static) {
        *self.instead.lock() = Some(Arc::new(instead));
    }

    /// Makes true what is planned, and tells the broker.
    fn apply(
        &self,
        plan: impl FnOnce(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) -> Result<(), CoordinatorError> {
        let mut known = self.state.lock();
        let (version, state) = &mut *known;
        for entry in plan(state)? {
            state.apply(&entry).unwrap_or_else(|refused| panic!("{entry:?}: {refused}"));
        }
        *version += 1;
        for info in state.catalog.streams() {
            match self.broker.log().stream(info.id) {
                None => self.broker.stream_created(info.id, info.options.clone()).unwrap(),
                Some(_) => self.broker.stream_altered(info.id, info.options.clone()).unwrap(),
            }
            if let Some(placed) = state.placed(1, info.id) {
                self.broker.place_stream(*version, info.id, placed.owners).unwrap();
            }
        }
        Ok(())
    }

    fn read<T>(&self, read: impl FnOnce(&ClusterState) -> T) -> T {
        read(&self.state.lock().1)
    }

    fn stream(&self, name: &str) -> StreamId {
        self.read(|state| state.catalog.find(&name.into()).unwrap().id)
    }

    /// A move is over: nothing was written.
    fn finish_move(&self, name: &str, streamlet: u32) {
        let stream = self.stream(name);
        self.apply(|state| {
            let number = state.move_of(stream, streamlet).expect("it moves");
            let to = state.moves()[&number].to;
            state.plan_finish_move(number, to, state.node(to).unwrap().epoch, &handed(state, stream, streamlet))
        })
        .unwrap();
    }

    /// The copies of a streamlet are made: its owner moves it to itself.
    fn make_copies(&self, name: &str, streamlet: u32) {
        let stream = self.stream(name);
        let owner = self.read(|state| state.owner(stream, streamlet).unwrap());
        self.apply(|state| state.plan_renew(stream, streamlet, (owner.node, owner.epoch))).unwrap();
        self.apply(|state| {
            let (node, epoch, copies) = (owner.node, owner.epoch, state.wanted_copies(stream).unwrap());
            let (number, state_of) = (state.move_of(stream, streamlet).unwrap(), handed(state, stream, streamlet));
            let (streamlet, owner_epoch) = (StreamletId(streamlet), owner.owner_epoch);
            let made = CopiesMade { node, epoch, stream, streamlet, copies, number, state: state_of, owner_epoch };
            state.plan_copies_made(&made)
        })
        .unwrap();
        self.apply(|state| state.plan_say_copies(0)).unwrap();
    }
}

fn handed(state: &ClusterState, stream: StreamId, streamlet: u32) -> Vec<u8> {
    let epoch = state.owner(stream, streamlet).unwrap().owner_epoch;
    let (lanes, progress) = (Vec::new(), Vec::new());
    bytes_of(&StreamletState { stream, streamlet: StreamletId(streamlet), epoch, lanes, progress })
}

fn answered<M: Message>(version: u8, of: &M::Response) -> Vec<u8> {
    let mut body = Vec::new();
    of.encode(version, &mut body);
    body
}

impl Leader {
    fn execute(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError> {
        let find = |stream: &kera_protocol::StreamRef| self.read(|state| state.catalog.find(stream).cloned());
        match op {
            Op::CreateStream => {
                let asked = CreateStream::decode(version, body)?;
                if !asked.if_not_exists || find(&asked.name.as_str().into()).is_err() {
                    self.apply(|state| state.plan_create_stream(&asked, &MOST, 0, system))?;
                }
                Ok(answered::<CreateStream>(version, &find(&asked.name.as_str().into())?))
            }
            Op::AlterStream => {
                let asked = AlterStream::decode(version, body)?;
                self.apply(|state| state.plan_alter_stream(&asked.stream, &asked.changes, &MOST, 0))?;
                Ok(answered::<AlterStream>(version, &find(&asked.stream)?))
            }
            Op::MoveStreamlet => {
                let MoveStreamlet { stream, streamlet, to } = MoveStreamlet::decode(version, body)?;
                self.apply(|state| state.plan_move(&stream, streamlet.0, to))?;
                let info = self.read(|state| state.move_info(&stream, streamlet.0)).expect("somebody owns it");
                Ok(answered::<MoveStreamlet>(version, &info))
            }
            Op::DescribeMoves => {
                // Who is answered knows all that the leader does.
                self.apply(|_| Ok(Vec::new()))?;
                let moves: Vec<_> = self.read(|state| state.move_infos().collect());
                let (under_way, nodes) = (moves.len() as u64, Vec::new());
                Ok(answered::<DescribeMoves>(version, &MovesDescription { moves, under_way, nodes }))
            }
            Op::AllocateProducer => {
                let known = AllocateProducer::decode(version, body)?.producer_id;
                // As the leader that has given out ids below this one.
                let given = ProducerId(FRESH_PRODUCER);
                known.map_or(Ok(None), |known| self.read(|state| state.catalog.plan_raise(known, given)))?;
                let answer = AllocatedProducer { producer_id: given, producer_epoch: ProducerEpoch(0) };
                Ok(answered::<AllocateProducer>(version, &answer))
            }
            other => panic!("{other} is not asked for"),
        }
    }
}

impl ClusterLog for Leader {
    fn request(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError> {
        let instead = self.instead.lock().clone();
        let refused = instead.and_then(|instead| instead());
        refused.map_or_else(|| self.execute(op, version, body, system), Err).map_err(|error| match error {
            CoordinatorError::NoLeader(_) | CoordinatorError::MayBeDone(_) => error,
            // What it refuses comes from another node.
            error => CoordinatorError::Leader { status: error.status(), body: error.body() },
        })
    }
    fn level(&self) -> u32 {
        self.read(ClusterState::level)
    }
    fn read(&self, read: &mut dyn FnMut(&Catalog)) {
        read(&self.state.lock().1.catalog);
    }
    fn copies_of(&self, stream: StreamId, streamlet: u32) -> u32 {
        self.read(|state| state.copies_of(stream, streamlet))
    }
    fn wanted_copies(&self, stream: StreamId) -> Option<u32> {
        self.read(|state| state.wanted_copies(stream))
    }
    fn live_nodes(&self) -> Vec<LiveNode> {
        let of = |state: &ClusterState| {
            let live = state.nodes().iter().filter(|(_, of)| !of.fenced);
            live.map(|(node, of)| LiveNode { node: *node, takes: !of.draining }).collect()
        };
        self.read(of)
    }
    fn observe(&self, _: Arc<dyn StreamObserver>, _: Vec<kera_protocol::StreamInfo>) {}
}

/// Copies are at the nodes with the next numbers.
struct Next;

impl OtherNodes for Next {
    fn leading_coordinator(&self) -> Option<u32> {
        Some(1)
    }
    fn coordinators(&self) -> Coordinators {
        Coordinators::default()
    }
    fn copies_of(&self, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
        let all: Vec<u32> = (owner..owner + copies).map(|node| (node - 1) % NODES + 1).collect();
        (all.clone(), all)
    }
    fn read(&self, _: u32, _: StreamId, _: StreamletId, _: Cursor) -> Result<crate::Given, String> {
        Err("nobody is there".into())
    }
    fn ask(&self, _: u32, _: Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("nobody is there".into()));
    }
    fn ask_native(&self, _: u32, _: Op, _: Vec<u8>, done: crate::Answered) {
        done(Err("nobody is there".into()));
    }
    fn serves_transactions(&self) -> bool {
        false
    }
}

pub(super) struct Cluster {
    pub(super) world: World,
    pub(super) leader: Arc<Leader>,
}

type Replicas = Vec<Vec<i32>>;

fn ids(nodes: &[BrokerId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

impl Cluster {
    pub(super) fn new() -> Cluster {
        Cluster::at(level::NEWEST)
    }

    fn at(level: u32) -> Cluster {
        let mut leader = None;
        let mut world = World::with(|broker, clock| {
            let made = leader.insert(Leader::begin(broker, level));
            Arc::new(Coordinator::of_cluster(made.clone(), clock.clone()))
        });
        world.running().door.set_others(Arc::new(Next));
        Cluster { world, leader: leader.expect("it is made") }
    }

    /// Makes a topic, or only asks whether it could be made, with these nodes for its partitions: the error and a sentence.
    pub(super) fn create(
        &mut self,
        name: &str,
        factor: i16,
        assigned: &[&[i32]],
        validate_only: bool,
    ) -> (i16, String) {
        let of = |(at, nodes): (i32, &&[i32])| {
            CreatableReplicaAssignment::default().with_partition_index(at).with_broker_ids(brokers(nodes))
        };
        let assigned: Vec<_> = (0..).zip(assigned).map(of).collect();
        let one = CreatableTopic::default().with_name(topic(name)).with_replication_factor(factor);
        let one = one.with_num_partitions(if assigned.is_empty() { 3 } else { -1 }).with_assignments(assigned);
        let asked = CreateTopicsRequest::default().with_topics(vec![one]).with_validate_only(validate_only);
        let answer = self.world.call(5, &asked);
        let one = &answer.topics[0];
        (one.error_code, one.error_message.clone().unwrap_or_default().to_string())
    }

    pub(super) fn grow(&mut self, name: &str, count: i32, assigned: &[&[i32]], validate_only: bool) -> i16 {
        let of = |nodes: &&[i32]| CreatePartitionsAssignment::default().with_broker_ids(brokers(nodes));
        let assigned = assigned.iter().map(of).collect();
        let one = CreatePartitionsTopic::default().with_name(topic(name)).with_count(count);
        let one = one.with_assignments(Some(assigned));
        let asked = CreatePartitionsRequest::default().with_topics(vec![one]).with_validate_only(validate_only);
        self.world.call(1, &asked).results[0].error_code
    }

    /// The replicas of each partition, the same in both requests that tell them; the leader first.
    fn replicas(&mut self, name: &str) -> Replicas {
        let wanted = metadata_request::MetadataRequestTopic::default().with_name(Some(topic(name)));
        let told = self.world.call(5, &MetadataRequest::default().with_topics(Some(vec![wanted])));
        let replicas: Replicas = told.topics[0].partitions.iter().map(|of| ids(&of.replica_nodes)).collect();
        let wanted = describe_topic_partitions_request::TopicRequest::default().with_name(topic(name));
        let asked = DescribeTopicPartitionsRequest::default().with_topics(vec![wanted]);
        let told = self.world.call(0, &asked.with_response_partition_limit(100));
        let described: Replicas = told.topics[0].partitions.iter().map(|of| ids(&of.replica_nodes)).collect();
        assert_eq!(replicas, described);
        replicas
    }

    fn reassign(&mut self, name: &str, wanted: &[(i32, Option<&[i32]>)]) -> Vec<(i16, String)> {
        self.reassign_if(name, wanted, true)
    }

    fn reassign_if(&mut self, name: &str, wanted: &[(i32, Option<&[i32]>)], may_change: bool) -> Vec<(i16, String)> {
        let of = |(at, nodes): &(i32, Option<&[i32]>)| {
            ReassignablePartition::default().with_partition_index(*at).with_replicas(nodes.map(brokers))
        };
        let one = ReassignableTopic::default().with_name(topic(name));
        let one = one.with_partitions(wanted.iter().map(of).collect());
        let asked = AlterPartitionReassignmentsRequest::default().with_topics(vec![one]);
        let answer = self.world.call(1, &asked.with_allow_replication_factor_change(may_change));
        let told = &answer.responses[0].partitions;
        assert_eq!(told.len(), wanted.len(), "each partition has its answer: {told:?}");
        let told = told.iter();
        told.map(|of| (of.error_code, of.error_message.clone().unwrap_or_default().to_string())).collect()
    }

    pub(super) fn codes(&mut self, name: &str, wanted: &[(i32, Option<&[i32]>)]) -> Vec<i16> {
        self.reassign(name, wanted).into_iter().map(|(code, _)| code).collect()
    }

    /// What is under way: of each partition its replicas, those that it gets, and those that it loses.
    fn listed(&mut self, asked: Option<(&str, &[i32])>) -> Vec<(i32, Replicas)> {
        let topics = asked.map(|(name, partitions)| {
            let of = ListPartitionReassignmentsTopics::default().with_name(topic(name));
            vec![of.with_partition_indexes(partitions.to_vec())]
        });
        let answer = self.world.call(0, &ListPartitionReassignmentsRequest::default().with_topics(topics));
        assert_eq!(answer.error_code, 0);
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let of = |of: &list_partition_reassignments_response::OngoingPartitionReassignment| {
            vec![ids(&of.replicas), ids(&of.adding_replicas), ids(&of.removing_replicas)]
        };
        partitions.map(|one| (one.partition_index, of(one))).collect()
    }

    fn finish_moves(&self, name: &str, streamlets: &[u32]) {
        streamlets.iter().for_each(|at| self.leader.finish_move(name, *at));
    }
}

/// As Kafka tells of no fenced brokers: tools that ask each node that there is wait for the lost one, and clients for a leader that is none.
#[test]
fn a_lost_node_is_told_as_an_offline_replica_and_otherwise_not() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1], &[2], &[3]], false).0, 0);
    let stream = cluster.leader.stream("t");
    for at in 0..3 {
        if cluster.leader.read(|state| state.move_of(stream, at)).is_some() {
            cluster.leader.finish_move("t", at);
        }
    }
    // The brokers, those that are told on request, and each partition's error, leader, replicas, those in sync, and those that are lost.
    type Partition = (i16, i32, [Vec<i32>; 3]);
    let told = |world: &mut World| {
        let wanted = metadata_request::MetadataRequestTopic::default().with_name(Some(topic("t")));
        let metadata = world.call(9, &MetadataRequest::default().with_topics(Some(vec![wanted])));
        let of = |of: &metadata_response::MetadataResponsePartition| {
            (
                of.error_code,
                of.leader_id.0,
                [&of.replica_nodes, &of.isr_nodes, &of.offline_replicas].map(|nodes| ids(nodes)),
            )
        };
        let partitions: Vec<Partition> = metadata.topics[0].partitions.iter().map(of).collect();
        let brokers: Vec<i32> = metadata.brokers.iter().map(|broker| broker.node_id.0).collect();
        let described = world.call(1, &DescribeClusterRequest::default());
        assert_eq!(described.brokers.iter().map(|broker| broker.broker_id.0).collect::<Vec<_>>(), brokers);
        let described = world.call(2, &DescribeClusterRequest::default().with_include_fenced_brokers(true));
        let all: Vec<_> = described.brokers.iter().map(|broker| (broker.broker_id.0, broker.is_fenced)).collect();
        (brokers, all, partitions)
    };
    let led = |node: i32| (0, node, [vec![node], vec![node], vec![]]);
    let (brokers, all, partitions) = told(&mut cluster.world);
    assert_eq!((brokers, all), (vec![1, 2, 3], vec![(1, false), (2, false), (3, false)]));
    assert_eq!(partitions, [led(1), led(2), led(3)]);

    cluster.leader.apply(|state| state.plan_fence(2, state.node(2).unwrap().epoch)).unwrap();
    let (brokers, all, partitions) = told(&mut cluster.world);
    assert_eq!((brokers, all), (vec![1, 3], vec![(1, false), (2, true), (3, false)]));
    let unled = (ResponseError::LeaderNotAvailable.code(), -1, [vec![2], vec![], vec![2]]);
    assert_eq!(partitions, [led(1), unled, led(3)]);
    // This one answers, whatever the coordinators think of it.
    cluster.leader.apply(|state| state.plan_fence(1, state.node(1).unwrap().epoch)).unwrap();
    assert_eq!(told(&mut cluster.world).0, [1, 3]);
}

#[test]
fn where_copies_are_is_looked_up_once_for_each_leader_however_many_topics_are_told() {
    let mut cluster = Cluster::new();
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(cluster.create(name, 3, &[&[1, 2, 3], &[2, 3, 1]], false).0, 0);
    }
    let expected: Vec<Replicas> = ["a", "b", "c", "d", "e"].map(|name| cluster.replicas(name)).to_vec();
    let leaders: BTreeSet<i32> = expected.iter().flatten().map(|of| of[0]).collect();
    LOOKED_UP.set(0);
    let told = cluster.world.call(9, &MetadataRequest::default().with_topics(None));
    let of =
        |of: &metadata_response::MetadataResponseTopic| of.partitions.iter().map(|of| ids(&of.replica_nodes)).collect();
    assert_eq!((told.topics.iter().map(of).collect::<Vec<Replicas>>(), LOOKED_UP.get()), (expected, leaders.len()));
    LOOKED_UP.set(0);
    let asked = DescribeTopicPartitionsRequest::default().with_response_partition_limit(100);
    assert_eq!((cluster.world.call(0, &asked).topics.len(), LOOKED_UP.get()), (5, leaders.len()));
}

#[test]
fn a_topic_gets_another_number_of_copies_partition_by_partition() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1], &[2], &[3]], false).0, 0);
    cluster.replicas("t");
    let stream = cluster.leader.stream("t");
    for at in 0..3 {
        if cluster.leader.read(|state| state.move_of(stream, at)).is_some() {
            cluster.leader.finish_move("t", at);
        }
    }
    assert_eq!(cluster.replicas("t"), [[1], [2], [3]]);
    let wanted: [(i32, Option<&[i32]>); 3] = [(0, Some(&[1, 2, 3])), (1, Some(&[2, 3, 1])), (2, Some(&[3, 1, 2]))];
    assert_eq!(cluster.codes("t", &wanted), [0; 3]);
    assert_eq!(cluster.replicas("t"), [[1], [2], [3]], "none has its copies yet");
    let begun = |at: i32, all: [i32; 3]| (at, vec![all.to_vec(), all[1..].to_vec(), vec![]]);
    let all = [begun(0, [1, 2, 3]), begun(1, [2, 3, 1]), begun(2, [3, 1, 2])];
    assert_eq!(cluster.listed(None), all);
    assert_eq!(cluster.codes("t", &wanted), [0; 3], "asked twice");

    cluster.leader.make_copies("t", 1);
    assert_eq!(cluster.replicas("t"), [vec![1], vec![2, 3, 1], vec![3]]);
    assert_eq!(cluster.listed(None), [all[0].clone(), all[2].clone()]);
    assert_eq!(cluster.listed(Some(("t", &[0, 1]))), [all[0].clone()]);
    assert_eq!(cluster.listed(Some(("nowhere", &[0]))), []);

    [0, 2].into_iter().for_each(|at| cluster.leader.make_copies("t", at));
    assert_eq!(cluster.replicas("t"), [[1, 2, 3], [2, 3, 1], [3, 1, 2]]);
    assert_eq!(cluster.listed(None), []);
    assert_eq!(cluster.codes("t", &wanted), [0; 3], "all is as it is wanted");
    // Fewer, and other leaders.
    let wanted: [(i32, Option<&[i32]>); 3] = [(0, Some(&[2, 3])), (1, Some(&[2, 3])), (2, Some(&[3, 1]))];
    assert_eq!(cluster.codes("t", &wanted), [0; 3]);
    // A partition that moves is listed as one that does.
    assert_eq!(cluster.listed(Some(("t", &[0]))), [(0, vec![vec![2, 3, 1], vec![2], vec![]])]);
    cluster.finish_moves("t", &[0]);
    assert_eq!(
        cluster.listed(Some(("t", &[0, 1]))),
        [(0, vec![vec![2, 3, 1], vec![], vec![1]]), (1, vec![vec![2, 3, 1], vec![], vec![1]]),]
    );
    (0..3).for_each(|at| cluster.leader.make_copies("t", at));
    assert_eq!(cluster.replicas("t"), [[2, 3], [2, 3], [3, 1]]);
}

/// By what this node had heard it was where it was wanted.
#[test]
fn a_partition_that_has_gone_or_is_about_to_is_not_told_as_led_where_it_was() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1], &[2], &[3]], false).0, 0);
    let stream = cluster.leader.stream("t");
    let moves = |cluster: &Cluster, at: u32| cluster.leader.read(|state| state.move_of(stream, at)).is_some();
    for at in 0..3 {
        if moves(&cluster, at) {
            cluster.leader.finish_move("t", at);
        }
    }
    assert_eq!(cluster.codes("t", &[(0, Some(&[1])), (1, Some(&[2]))]), [0, 0], "they are there");
    assert_eq!(cluster.codes("t", &[(0, Some(&[2]))]), [0]);
    let told = cluster.reassign("t", &[(0, Some(&[1])), (1, Some(&[2]))]);
    assert!(told[0].0 == BAD_ASSIGNMENT && told[0].1.contains("moves already"), "{told:?}");
    assert_eq!(told[1].0, 0, "that one stays");
    cluster.finish_moves("t", &[0]);
    // This node has yet to hear of it.
    let before = kera_protocol::Owner { node: 1, epoch: 1, older: Vec::new() };
    cluster.leader.broker.set_owner(0, stream, StreamletId(0), before).unwrap();
    assert_eq!(cluster.codes("t", &[(0, Some(&[1]))]), [0]);
    assert!(moves(&cluster, 0), "it is moved back");
}

#[test]
fn another_number_of_copies_is_the_whole_topics_and_of_nodes_that_are_there() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 2, &[], false).0, 0);
    let before = cluster.replicas("t");
    let stream = cluster.leader.stream("t");
    let (one, two, three): (&[i32], &[i32], &[i32]) = (&[1], &[1, 2], &[1, 2, 3]);
    let some = cluster.reassign("t", &[(0, Some(three)), (1, Some(three))]);
    assert!(some.iter().all(|(code, why)| *code == BAD_ASSIGNMENT && why.contains("whole topic")), "{some:?}");
    let four: &[i32] = &[1, 2, 3, 4];
    for wrong in [
        [(0, Some(three)), (1, Some(three)), (2, Some(one))],
        [(0, Some(three)), (1, Some(three)), (1, Some(three))],
        [(0, Some(three)), (1, Some(three)), (2, None)],
        [(0, Some(three)), (1, Some(three)), (2, Some(four))],
        [(0, Some(three)), (1, Some(three)), (2, Some(&[1, 2, 2]))],
        [(0, Some(three)), (1, Some(three)), (7, Some(three))],
        [(0, Some(one)), (1, Some(one)), (2, Some(one))],
    ] {
        let told = cluster.codes("t", &wrong);
        assert!(!told.contains(&0), "{wrong:?}: {told:?}");
        assert_eq!(cluster.leader.read(|state| state.wanted_copies(stream)), None, "{wrong:?}");
    }
    let all = [0, 1, 2].map(|at| (at, Some(three)));
    let told = cluster.reassign("t", &[0, 1, 2].map(|at| (at, Some(one))));
    assert!(told.iter().all(|(code, why)| *code == BAD_ASSIGNMENT && why.contains("2 is the least")), "{told:?}");
    let told = cluster.reassign_if("t", &all, false);
    assert!(told.iter().all(|(code, why)| *code == BAD_FACTOR && why.contains("does not allow")), "{told:?}");
    // As many as there are have to be where they are.
    assert_eq!(cluster.codes("t", &[(0, Some(&[1, 3]))]), [BAD_ASSIGNMENT]);
    let led = before.iter().position(|nodes| nodes[0] == 1).expect("each node leads one") as i32;
    assert_eq!(cluster.codes("t", &[(led, Some(two))]), [0]);
    cluster.leader.apply(|state| state.plan_fence(3, 1)).unwrap();
    let told = cluster.reassign("t", &all);
    assert!(told.iter().all(|(code, why)| *code == BAD_ASSIGNMENT && why.contains("3 is lost")), "{told:?}");
    assert_eq!(cluster.leader.read(|state| state.wanted_copies(stream)), None);
    assert_eq!(cluster.replicas("t"), before);

    let mut earlier = Cluster::at(level::CHANGED_COPIES - 1);
    assert_eq!(earlier.create("t", 2, &[], false).0, 0);
    let told = earlier.reassign("t", &all);
    assert!(told.iter().all(|(code, why)| *code == BAD_FACTOR && why.contains("level 21")), "{told:?}");
}

#[test]
fn another_number_of_copies_is_called_off() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 2, &[], false).0, 0);
    let before = cluster.replicas("t");
    assert_eq!(cluster.codes("t", &[(0, None)]), [NOTHING_MOVES]);
    let led: Vec<[i32; 3]> = before.iter().map(|of| [of[0], of[0] % 3 + 1, (of[0] + 1) % 3 + 1]).collect();
    let all = [0, 1, 2].map(|at| (at, Some(&led[at as usize][..])));
    assert_eq!(cluster.codes("t", &all), [0; 3]);
    // Those alone are named that have not changed yet, as tools do it; nothing has come of it.
    assert_eq!(cluster.codes("t", &[(0, None), (2, None)]), [0, 0]);
    assert_eq!(cluster.listed(None), []);
    assert_eq!(cluster.codes("t", &[(0, None)]), [NOTHING_MOVES]);

    assert_eq!(cluster.codes("t", &all), [0; 3]);
    cluster.leader.make_copies("t", 1);
    assert_eq!(cluster.codes("t", &[(0, None)]), [0]);
    let listed = cluster.listed(None);
    assert_eq!(listed.iter().map(|(at, of)| (*at, of[2].len())).collect::<Vec<_>>(), [(1, 1)], "it goes back");
    assert_eq!(cluster.replicas("t")[1].len(), 3);
    cluster.leader.make_copies("t", 1);
    assert_eq!((cluster.listed(None), cluster.replicas("t")), (Vec::new(), before));
}

#[test]
fn new_topics_are_led_where_they_are_assigned() {
    let mut cluster = Cluster::new();
    let wanted: [&[i32]; 4] = [&[2, 1], &[2, 3], &[2, 1], &[3, 1]];
    assert_eq!(cluster.create("t", -1, &wanted, true), (0, String::new()));
    assert_eq!(cluster.world.running().door.info("t"), None, "it was only asked about");
    assert_eq!(cluster.create("t", -1, &wanted, false).0, 0);
    let stream = cluster.leader.stream("t");
    let moved: Vec<u32> =
        (0..4).filter(|at| cluster.leader.read(|state| state.move_of(stream, *at)).is_some()).collect();
    assert!(!moved.is_empty());
    cluster.finish_moves("t", &moved);
    let told = cluster.replicas("t");
    assert_eq!(told.iter().map(|of| (of[0], of.len())).collect::<Vec<_>>(), [(2, 2), (2, 2), (2, 2), (3, 2)]);

    // New partitions, too.
    for (count, wanted, code) in [
        (5, &[&[1, 2][..], &[1, 2]][..], BAD_ASSIGNMENT),
        (5, &[&[1]], BAD_ASSIGNMENT),
        (5, &[&[1, 2, 3]], BAD_ASSIGNMENT),
        (5, &[&[1, 9]], BAD_ASSIGNMENT),
        (6, &[&[1, 2], &[1]], BAD_ASSIGNMENT),
        (6, &[&[1, 3], &[1, 2]], 0),
    ] {
        for validate_only in [true, false] {
            assert_eq!(cluster.grow("t", count, wanted, validate_only), code, "{wanted:?}");
        }
    }
    let moved: Vec<u32> =
        (4..6).filter(|at| cluster.leader.read(|state| state.move_of(stream, *at)).is_some()).collect();
    cluster.finish_moves("t", &moved);
    assert_eq!(cluster.replicas("t")[4..].iter().map(|of| of[0]).collect::<Vec<_>>(), [1, 1]);

    cluster.leader.apply(|state| state.plan_drain(2, true)).unwrap();
    cluster.leader.apply(|state| state.plan_fence(3, 1)).unwrap();
    let wrong: [(&[&[i32]], i16, &str); 8] = [
        (&[&[1, 2], &[1]], -1, "as many copies"),
        (&[&[1, 1]], -1, "named twice"),
        (&[&[1, 4]], -1, "node 4"),
        (&[&[]], -1, "no node"),
        (&[&[1, 3]], -1, "3 is lost"),
        (&[&[3, 1]], -1, "3 is lost"),
        (&[&[2, 1]], -1, "drained"),
        (&[&[1, 2]], 1, "replication factor is 1"),
    ];
    for (wanted, factor, why) in wrong {
        for validate_only in [true, false] {
            let (code, told) = cluster.create("u", factor, wanted, validate_only);
            assert!(code == BAD_ASSIGNMENT && told.contains(why), "{wanted:?}: {code} {told}");
        }
    }
    assert_eq!(cluster.world.running().door.info("u"), None);
    // A node that is drained keeps copies.
    assert_eq!(cluster.create("u", 2, &[&[1, 2]], false).0, 0);
}

#[test]
fn partitions_that_share_a_streamlet_go_together() {
    let mut cluster = Cluster::new();
    let options = StreamOptions { streamlets: 2, lanes: 2, replication: 2, ..StreamOptions::default() };
    let create = CreateStream { name: "wide".into(), options, if_not_exists: false };
    cluster.world.running().door.coordinator.create_stream(&create).unwrap();
    let next = |node: i32| node % 3 + 1;
    let all_led_by = |first: i32| [first, next(first), next(next(first))];
    // They get another number of copies together.
    let led: Vec<[i32; 3]> = cluster.replicas("wide").iter().map(|of| all_led_by(of[0])).collect();
    assert!(led[0] == led[1] && led[2] == led[3], "{led:?}");
    let all = [0, 1, 2, 3].map(|at| (at, Some(&led[at as usize][..])));
    assert_eq!(cluster.codes("wide", &all), [0; 4]);
    (0..2).for_each(|at| cluster.leader.make_copies("wide", at));
    assert_eq!(cluster.replicas("wide"), led);

    let (to, stays) = (all_led_by(next(led[0][0])), led[1]);
    for wrong in [&[(0, Some(&to[..])), (1, Some(&stays))][..], &[(0, Some(&to))], &[(1, Some(&to))]] {
        let told = cluster.reassign("wide", wrong);
        let (code, why) = &told[0];
        assert!(*code == BAD_ASSIGNMENT && why.contains("0 to 1 of wide"), "{wrong:?}: {told:?}");
    }
    assert_eq!(cluster.listed(None), []);
    // One streamlet goes while the other, of which only one partition is named, stays.
    let told = cluster.codes("wide", &[(1, Some(&to)), (0, Some(&to)), (3, Some(&to))]);
    assert_eq!(told, [0, 0, BAD_ASSIGNMENT]);
    assert_eq!(cluster.listed(None).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1]);
    cluster.finish_moves("wide", &[0]);
    assert_eq!(cluster.replicas("wide"), [to, to, led[2], led[3]]);

    // So do new ones.
    for (wanted, code) in [(&[&[1, 2, 3][..], &[2, 3, 1]], BAD_ASSIGNMENT), (&[&[3, 1, 2], &[3, 1, 2]], 0)] {
        for validate_only in [true, false] {
            assert_eq!(cluster.grow("wide", 6, wanted, validate_only), code, "{wanted:?}");
        }
    }
    let stream = cluster.leader.stream("wide");
    if cluster.leader.read(|state| state.move_of(stream, 2)).is_some() {
        cluster.finish_moves("wide", &[2]);
    }
    assert_eq!(cluster.replicas("wide")[4..].iter().map(|of| of[0]).collect::<Vec<_>>(), [3, 3]);
}
