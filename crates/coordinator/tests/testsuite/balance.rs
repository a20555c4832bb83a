//! Brokers that are evened out: what is planned from rates, what the leader remembers of them, and when it does it by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use kera_coordinator::balancer::{BalanceConfig, Balancer};
use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{ClusterState, Join, MOVES_MAX, NOTICEABLE, Rates, moves_by_itself};
use kera_coordinator::loads::Loads;
use kera_format::cluster::{ClusterEntry, Doors, NodeNumber, Roles};
use kera_format::{Cleanup, StreamId, StreamOptions, StreamletId, level};
use kera_protocol::{BalancePlan, CreateStream, MoveInfo, NodeLoad, StreamletLoad};
use proptest::prelude::*;

use crate::support::finishing::finishes;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000;
const AFTER: u64 = 60 * SECOND;

struct Cluster(ClusterState);

fn join(node: NodeNumber) -> Join {
    let doors = Doors { cluster: format!("10.0.0.{node}:7072"), ..Doors::default() };
    let (uuid, roles, rack, settings) = ([node as u8; 16], Roles::ALL, String::new(), Vec::new());
    Join { node, uuid, roles, rack, doors, settings, epoch_min: 1, has_all: true, levels: (1, level::NEWEST) }
}

impl Cluster {
    fn new(nodes: NodeNumber) -> Cluster {
        let mut cluster = Cluster(ClusterState::default());
        let founded = cluster.0.plan_found([9; 16], &join(1), 0).unwrap();
        cluster.apply(&founded);
        (2..=nodes).for_each(|node| cluster.join(node));
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        entries.iter().for_each(|entry| self.0.apply(entry).unwrap_or_else(|refused| panic!("{entry:?}: {refused}")));
    }

    fn join(&mut self, node: NodeNumber) {
        let joined = self.0.plan_join(&join(node), 0).unwrap();
        self.apply(&joined);
    }

    fn make(&mut self, name: &str, options: StreamOptions) -> StreamId {
        let request = CreateStream { name: name.into(), options, if_not_exists: false };
        let most = Limits { streams: 1000, nodes: 16 };
        let created = self.0.plan_create_stream(&request, &most, 0, name.starts_with("_kera.")).unwrap();
        self.apply(&created);
        self.0.catalog.find(&name.into()).unwrap().id
    }

    fn stream(&mut self, name: &str, streamlets: u32) -> StreamId {
        self.make(name, StreamOptions { streamlets, replication: 2, ..StreamOptions::default() })
    }

    fn finish_all(&mut self) {
        let numbers: Vec<u64> = self.0.moves().keys().copied().collect();
        for number in numbers {
            let finished = finishes(&self.0, number);
            self.apply(&finished);
        }
    }

    fn begin(&mut self, moves: &[MoveInfo]) {
        let noted = self.0.plan_moves(moves).unwrap();
        assert_eq!(noted.len(), moves.len(), "all of them can be made");
        self.apply(&noted);
    }

    fn carry_out(&mut self, plan: &BalancePlan) {
        self.begin(&infos(plan));
        self.finish_all();
    }

    fn fence(&mut self, node: NodeNumber) {
        let fenced = self.0.plan_fence(node, self.0.node(node).unwrap().epoch).unwrap();
        self.apply(&fenced);
    }

    fn has(&self) -> Vec<u64> {
        self.0.nodes().values().map(|node| node.streamlets).collect()
    }

    fn plan(&self, rates: &Rates) -> BalancePlan {
        self.0.plan_balance(rates, 0, &|_, _| true)
    }

    fn owner(&self, stream: StreamId, streamlet: u32) -> NodeNumber {
        self.0.owner(stream, streamlet).expect("an owner").node
    }

    /// Bytes a second that each node takes.
    fn takes(&self, rates: &Rates) -> BTreeMap<NodeNumber, u64> {
        self.plan(rates).nodes.iter().map(|node| (node.node, node.bytes_per_s)).collect()
    }
}

fn infos(plan: &BalancePlan) -> Vec<MoveInfo> {
    plan.moves.iter().map(kera_coordinator::cluster::move_info).collect()
}

/// All brokers tell, and nobody takes anything but these.
fn rates(nodes: NodeNumber, of: &[((StreamId, u32), u64)]) -> Rates {
    Rates { streamlets: of.iter().copied().collect(), others: (1..=nodes).map(|node| (node, 0)).collect() }
}

/// What nodes weigh, as the plan says it: streamlets and shares.
fn weights(plan: &BalancePlan, after: bool) -> Vec<f64> {
    let total: u64 = plan.nodes.iter().map(|node| node.bytes_per_s).sum();
    let count: u64 = plan.nodes.iter().map(|node| node.streamlets).sum();
    let weight = |(has, takes): (u64, u64)| {
        let share = if total >= NOTICEABLE { 4.0 * count as f64 * takes as f64 / total as f64 } else { 0.0 };
        has as f64 + share
    };
    let of = |node: &kera_protocol::PlannedNode| match after {
        true => (node.streamlets_after, node.bytes_per_s_after),
        false => (node.streamlets, node.bytes_per_s),
    };
    plan.nodes.iter().map(|node| weight(of(node))).collect()
}

fn squares(weights: &[f64]) -> f64 {
    weights.iter().map(|weight| weight * weight).sum()
}

#[test]
fn a_busy_streamlet_has_its_node_nearly_to_itself() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("one-is-busy", 12);
    let busy = (stream, 0);
    let node = cluster.owner(stream, 0);
    let rates = rates(3, &[(busy, 100 * MIB)]);
    let plan = cluster.plan(&rates);
    assert!(!plan.moves.is_empty());
    assert!(plan.moves.iter().all(|of| of.from == node && of.streamlet != StreamletId(0)), "{plan:?}");
    cluster.carry_out(&plan);
    assert_eq!(cluster.owner(stream, 0), node, "it is not moved: that would only move what is uneven");
    assert_eq!(cluster.plan(&rates).moves, [], "and nothing goes back");
    assert_eq!(cluster.has().iter().sum::<u64>(), 12);
    assert_eq!(cluster.0.node(node).unwrap().streamlets, 1, "{:?}", cluster.has());
    // When it is quiet again all of that is undone.
    let quiet = Rates::default();
    let back = cluster.plan(&quiet);
    cluster.carry_out(&back);
    assert_eq!(cluster.has(), [4, 4, 4]);
}

#[test]
fn busy_streamlets_of_one_node_are_spread() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("some-are-busy", 30);
    let mine: Vec<u32> = (0..30).filter(|at| cluster.owner(stream, *at) == 1).take(3).collect();
    let rates = rates(3, &mine.iter().map(|at| ((stream, *at), 50 * MIB)).collect::<Vec<_>>());
    let plan = cluster.plan(&rates);
    let before: Vec<u64> = plan.nodes.iter().map(|node| node.bytes_per_s).collect();
    assert_eq!(before, [150 * MIB, 0, 0]);
    assert!(plan.nodes.iter().all(|node| node.told && node.bytes_per_s_after == 50 * MIB), "{plan:?}");
    cluster.carry_out(&plan);
    assert_eq!(cluster.plan(&rates).moves, []);
    assert!(cluster.has().iter().all(|has| (8..=11).contains(has)), "{:?}", cluster.has());
}

#[test]
fn without_noticeable_load_only_numbers_count() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("quiet", 9);
    let rates = rates(3, &[((stream, 0), NOTICEABLE - 1)]);
    assert_eq!(cluster.plan(&rates).moves, []);
    cluster.join(4);
    let plan = cluster.plan(&rates);
    assert_eq!(infos(&plan), cluster.0.rebalance(0), "what it was without rates");
    assert_eq!(plan.nodes.iter().map(|node| node.streamlets_after).collect::<Vec<_>>(), [2, 2, 3, 2]);
    assert_eq!(cluster.0.rebalance(1).len(), 1);
}

#[test]
fn who_has_told_nothing_counts_like_the_average() {
    let mut cluster = Cluster::new(3);
    cluster.stream("some-tell", 30);
    // 10 streamlets with a MiB each at the two that tell: the third, of an earlier version, takes as much for all that anybody knows.
    let rates = Rates { streamlets: BTreeMap::new(), others: [(1, MIB), (2, MIB)].into() };
    let plan = cluster.plan(&rates);
    assert_eq!(plan.moves, []);
    let told: Vec<(bool, u64)> = plan.nodes.iter().map(|node| (node.told, node.bytes_per_s)).collect();
    assert_eq!(told, [(true, 10 * MIB), (true, 10 * MIB), (false, 10 * MIB)]);
}

#[test]
fn moves_under_way_count_as_done_and_a_drained_node_gets_nothing() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moving", 9);
    cluster.join(4);
    let plan = cluster.plan(&Rates::default());
    cluster.begin(&infos(&plan)[..1]);
    let next = cluster.plan(&Rates::default());
    assert_eq!(next.moves.len(), plan.moves.len() - 1, "{next:?}");
    assert!(next.moves.iter().all(|of| of.streamlet != plan.moves[0].streamlet));
    cluster.finish_all();
    let drain = cluster.0.plan_drain(4, true).unwrap();
    cluster.apply(&drain);
    let busy: Vec<_> = (0..9).map(|at| ((stream, at), u64::from(at) * MIB)).collect();
    let drained = cluster.plan(&rates(4, &busy)).moves;
    assert!(!drained.is_empty(), "nothing is moved, so nothing is shown");
    assert!(drained.iter().all(|of| of.to != 4 && of.from != 4), "{drained:?}");
}

/// Plans of the tests below that move something: by what brokers take, by numbers only, and behind a first piece.
static BY_LOAD: AtomicU64 = AtomicU64::new(0);
static BY_NUMBER: AtomicU64 = AtomicU64::new(0);
static MORE_PIECES: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    fn plans_even_out_end_and_leave_nothing_to_do(
        nodes in 3u32..6,
        streams in proptest::collection::vec(1u32..24, 1..6),
        loads in prop_oneof![
            // Then only numbers count.
            1 => Just(Vec::<u64>::new()),
            4 => proptest::collection::vec(prop_oneof![3 => Just(0u64), 2 => 0u64..3 * MIB, 1 => 0u64..300 * MIB], 0..60),
        ],
        late in any::<bool>(),
        telling in any::<bool>(),
    ) {
        let first = if late { nodes - 1 } else { nodes };
        let mut cluster = Cluster::new(first);
        let ids: Vec<StreamId> =
            streams.iter().enumerate().map(|(at, count)| cluster.stream(&format!("s{at}"), *count)).collect();
        if late {
            cluster.join(nodes);
        }
        let all: Vec<(StreamId, u32)> =
            ids.iter().zip(&streams).flat_map(|(id, count)| (0..*count).map(|at| (*id, at))).collect();
        let mut rates = rates(nodes, &all.iter().copied().zip(loads.iter().copied()).collect::<Vec<_>>());
        if !telling {
            rates.others.remove(&1);
        }
        let plan = cluster.plan(&rates);
        prop_assert!(plan.moves.iter().all(|of| cluster.owner(of.stream, of.streamlet.0) == of.from && of.from != of.to));
        let different: BTreeSet<_> = plan.moves.iter().map(|of| (of.stream, of.streamlet)).collect();
        prop_assert_eq!(different.len(), plan.moves.len(), "each streamlet is in it once");
        if !plan.moves.is_empty() {
            let is_by_load = plan.nodes.iter().map(|node| node.bytes_per_s).sum::<u64>() >= NOTICEABLE;
            (if is_by_load { &BY_LOAD } else { &BY_NUMBER }).fetch_add(1, Ordering::Relaxed);
        }
        if telling && !plan.moves.is_empty() {
            let (before, after) = (weights(&plan, false), weights(&plan, true));
            // What a streamlet takes is weighed in parts of a streamlet.
            prop_assert!(squares(&after) < squares(&before) * 1.01, "{before:?} {after:?}");
        }
        cluster.carry_out(&plan);
        let then: Vec<(u64, u64)> = plan.nodes.iter().map(|node| (node.streamlets_after, node.bytes_per_s_after)).collect();
        let next = cluster.plan(&rates);
        if telling {
            prop_assert_eq!(next.nodes.iter().map(|node| (node.streamlets, node.bytes_per_s)).collect::<Vec<_>>(), then);
            prop_assert_eq!(next.moves, []);
        }
        if plan.nodes.iter().map(|node| node.bytes_per_s).sum::<u64>() < NOTICEABLE {
            let (least, most) = (cluster.has().into_iter().min(), cluster.has().into_iter().max());
            prop_assert!(most <= least.map(|least| least + 1), "{:?}", cluster.has());
        }
    }

    fn plans_in_pieces_end_as_well(
        streams in proptest::collection::vec(4u32..24, 1..5),
        loads in proptest::collection::vec(0u64..100 * MIB, 0..60),
        piece in 1usize..5,
    ) {
        let mut cluster = Cluster::new(4);
        let ids: Vec<StreamId> =
            streams.iter().enumerate().map(|(at, count)| cluster.stream(&format!("s{at}"), *count)).collect();
        let all = ids.iter().zip(&streams).flat_map(|(id, count)| (0..*count).map(|at| (*id, at)));
        let rates = rates(4, &all.zip(loads).collect::<Vec<_>>());
        let (mut pieces, mut last) = (0, Vec::new());
        loop {
            let plan = cluster.0.plan_balance(&rates, piece, &|_, _| true);
            if plan.moves.is_empty() {
                break;
            }
            let back = |of: &kera_protocol::PlannedMove| (of.stream, of.streamlet, of.to, of.from);
            let goes = |of: &kera_protocol::PlannedMove| (of.stream, of.streamlet, of.from, of.to);
            prop_assert!(piece > 1 || plan.moves.iter().all(|of| !last.contains(&back(of))), "{plan:?}");
            last = plan.moves.iter().map(goes).collect();
            cluster.carry_out(&plan);
            pieces += 1;
            prop_assert!(pieces < 500, "it does not end");
        }
        MORE_PIECES.fetch_add(u64::from(pieces > 1), Ordering::Relaxed);
    }
}

#[test]
fn a_plan_evens_out_ends_and_leaves_nothing_to_do() {
    plans_even_out_end_and_leave_nothing_to_do();
    let (by_load, by_number) = (BY_LOAD.load(Ordering::Relaxed), BY_NUMBER.load(Ordering::Relaxed));
    assert!(by_load > 10 && by_number > 0, "plans that move nothing show nothing: {by_load}, {by_number}");
}

#[test]
fn a_plan_in_pieces_ends_as_well() {
    plans_in_pieces_end_as_well();
    let more = MORE_PIECES.load(Ordering::Relaxed);
    assert!(more > 10, "hardly any plan has a second piece: {more}");
}

fn load(node: NodeNumber, bytes_per_s: u64, streamlets: &[(StreamId, u32, u64)]) -> NodeLoad {
    let one =
        |of: &(StreamId, u32, u64)| StreamletLoad { stream: of.0, streamlet: StreamletId(of.1), bytes_per_s: of.2 };
    NodeLoad { node, epoch: 1, bytes_per_s, streamlets: streamlets.iter().map(one).collect() }
}

#[test]
fn a_leader_remembers_what_it_was_told_and_what_has_moved() {
    let mut cluster = Cluster::new(2);
    let stream = cluster.stream("told", 8);
    let mine = |node| (0..8).filter(|at| cluster.owner(stream, *at) == node).collect::<Vec<u32>>();
    let (ones, twos) = (mine(1), mine(2));
    let mut loads = Loads::default();
    assert!(!loads.has_heard(&cluster.0, 0), "it does not lead");
    loads.leads(0);
    loads.hear(&cluster.0, &load(1, 10 * MIB, &[(stream, ones[0], 7 * MIB), (stream, twos[0], 99 * MIB)]), 1);
    assert!(!loads.has_heard(&cluster.0, 1), "the other one has said nothing");
    loads.hear(&cluster.0, &load(2, 0, &[]), 1);
    assert!(loads.has_heard(&cluster.0, 1));
    let rates = loads.rates(&cluster.0, 2);
    assert_eq!(rates.of((stream, ones[0]), 1), Some(7 * MIB));
    assert_eq!(rates.of((stream, ones[1]), 1), Some(MIB), "an equal part of what the others take");
    assert_eq!(rates.of((stream, twos[0]), 2), Some(0), "nobody tells of what is another's");

    // What moves takes at the new owner what it took, until that one has measured it.
    let to_two = [MoveInfo { number: 0, stream, streamlet: StreamletId(ones[1]), from: 1, to: 2 }];
    cluster.begin(&to_two);
    loads.moving(&cluster.0, &[(stream, ones[1], 1)], 2);
    cluster.finish_all();
    assert_eq!(loads.rates(&cluster.0, 3).of((stream, ones[1]), 2), Some(MIB));
    loads.hear(&cluster.0, &load(1, 9 * MIB, &[(stream, ones[0], 7 * MIB)]), 5 * SECOND);
    loads.hear(&cluster.0, &load(2, 0, &[]), 5 * SECOND);
    assert_eq!(loads.rates(&cluster.0, 5 * SECOND).of((stream, ones[1]), 2), Some(MIB));
    loads.hear(&cluster.0, &load(2, 2 * MIB, &[(stream, ones[1], 2 * MIB)]), 10 * SECOND);
    assert_eq!(loads.rates(&cluster.0, 10 * SECOND).of((stream, ones[1]), 2), Some(2 * MIB));
    loads.hear(&cluster.0, &load(2, 0, &[]), 15 * SECOND);
    assert_eq!(loads.rates(&cluster.0, 15 * SECOND).of((stream, ones[1]), 2), Some(0));

    // Who is silent says nothing, nor does an incarnation that is over.
    assert_eq!(loads.rates(&cluster.0, 40 * SECOND).of((stream, ones[0]), 1), None);
    loads.hear(&cluster.0, &load(1, MIB, &[]), 41 * SECOND);
    cluster.fence(1);
    assert_eq!(loads.rates(&cluster.0, 41 * SECOND).others, BTreeMap::from([(2, 0)]));
    loads.hear(&cluster.0, &load(1, MIB, &[]), 42 * SECOND);
    assert_eq!(loads.rates(&cluster.0, 42 * SECOND).of((stream, ones[0]), 1), None);
    loads.forget();
    assert!(!loads.has_heard(&cluster.0, 43 * SECOND));
    loads.leads(43 * SECOND);
    assert!(!loads.has_heard(&cluster.0, 44 * SECOND) && loads.has_heard(&cluster.0, 60 * SECOND), "some never say it");
}

#[test]
fn what_is_told_beyond_all_bounds_is_cut() {
    let mut cluster = Cluster::new(2);
    let stream = cluster.stream("huge", 4096);
    let all: Vec<_> = (0..4096).filter(|at| cluster.owner(stream, *at) == 1).map(|at| (stream, at, u64::MAX)).collect();
    let mut loads = Loads::default();
    loads.hear(&cluster.0, &load(1, u64::MAX, &all), 1);
    loads.hear(&cluster.0, &load(2, 0, &[]), 1);
    let rates = loads.rates(&cluster.0, 1);
    assert_eq!(rates.streamlets.len(), 64);
    let plan = cluster.plan(&rates);
    assert!(plan.moves.len() <= 256 && !plan.moves.is_empty());
}

/// A leader that looks each half second, whose moves come at once.
struct World {
    cluster: Cluster,
    balancer: Balancer,
    rates: Rates,
    now_us: u64,
    /// When which streamlet moved where.
    moved: Vec<(u64, StreamId, u32, NodeNumber)>,
}

impl World {
    fn new(cluster: Cluster) -> World {
        let balancer = Balancer::new(BalanceConfig { after_us: Some(AFTER) });
        World { cluster, balancer, rates: Rates::default(), now_us: 0, moved: Vec::new() }
    }

    /// Goes on for so many seconds; how many streamlets moved.
    fn pass(&mut self, seconds: u64) -> usize {
        let before = self.moved.len();
        for _ in 0..seconds * 2 {
            self.now_us += SECOND / 2;
            let rates = self.rates.clone();
            let moves = self.balancer.look(self.now_us, &self.cluster.0, || Some(rates));
            assert!(moves.len() + self.cluster.0.moves().len() <= MOVES_MAX);
            self.moved.extend(moves.iter().map(|of| (self.now_us, of.stream, of.streamlet.0, of.to)));
            self.cluster.begin(&moves);
            self.cluster.finish_all();
        }
        self.moved.len() - before
    }
}

#[test]
fn a_node_that_is_added_gets_its_share_when_the_cluster_has_been_calm() {
    let mut cluster = Cluster::new(3);
    cluster.stream("shared", 60);
    let mut world = World::new(cluster);
    assert_eq!(world.pass(300), 0, "it is even");
    world.cluster.join(4);
    assert_eq!(world.pass(59), 0, "not yet");
    assert_eq!(world.pass(60), 15);
    assert_eq!(world.cluster.has(), [15, 15, 15, 15]);
    let per_second = |at: u64| world.moved.iter().filter(|of| (at..at + SECOND).contains(&of.0)).count();
    assert!(world.moved.iter().all(|of| per_second(of.0) <= 8));
    assert_eq!(world.pass(900), 0);
}

#[test]
fn a_node_that_comes_back_gets_its_share_and_one_that_comes_and_goes_does_not() {
    let mut cluster = Cluster::new(3);
    cluster.stream("shared", 30);
    let mut world = World::new(cluster);
    world.pass(100);
    let lose = |world: &mut World| {
        world.cluster.fence(3);
        let epoch = world.cluster.0.node(3).unwrap().epoch;
        let recovered = world.cluster.0.plan_recover(3, epoch).unwrap();
        world.cluster.apply(&recovered);
        let rebuilt: Vec<ClusterEntry> = (world.cluster.0.catalog.streams())
            .flat_map(|info| world.cluster.0.owners(info.id).unwrap().runs().iter().map(move |run| (info.id, *run)))
            .filter(|(_, run)| run.owner.rebuilding)
            .map(|(stream, run)| ClusterEntry::StreamletsRebuilt {
                stream,
                first: run.first,
                count: run.count,
                node: run.owner.node,
                epoch: run.owner.epoch,
                owner_epoch: 0,
            })
            .collect();
        assert_eq!(world.pass(20), 0, "nothing moves while something is rebuilt");
        world.cluster.apply(&rebuilt);
        assert_eq!(world.pass(200), 0, "nor while a node is lost");
    };
    lose(&mut world);
    world.cluster.join(3);
    assert_eq!(world.cluster.has(), [15, 15, 0]);
    assert_eq!(world.pass(59), 0);
    assert_eq!(world.pass(30), 10);
    assert_eq!(world.cluster.has(), [10, 10, 10]);
    // The second time in half an hour it has to stay for two minutes, then for four.
    lose(&mut world);
    world.cluster.join(3);
    assert_eq!((world.pass(119), world.pass(30)), (0, 10));
    lose(&mut world);
    world.cluster.join(3);
    assert_eq!((world.pass(239), world.pass(30)), (0, 10));
    // That is forgotten.
    world.pass(1800);
    lose(&mut world);
    world.cluster.join(3);
    assert_eq!((world.pass(59), world.pass(30)), (0, 10));
}

#[test]
fn what_takes_most_is_spread_after_a_while_and_each_streamlet_moves_once_in_minutes() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("busy", 30);
    let mine: Vec<u32> = (0..30).filter(|at| cluster.owner(stream, *at) == 1).take(3).collect();
    let mut world = World::new(cluster);
    world.pass(100);
    let busy: Vec<_> = mine.iter().map(|at| ((stream, *at), 50 * MIB)).collect();
    world.rates = rates(3, &busy);
    assert_eq!(world.pass(30), 0, "it may be over soon");
    world.rates = rates(3, &[]);
    assert_eq!(world.pass(100), 0);
    world.rates = rates(3, &busy);
    assert_eq!(world.pass(59), 0);
    assert!(world.pass(30) >= 2);
    assert!(world.cluster.takes(&world.rates).values().all(|takes| *takes == 50 * MIB));
    assert_eq!(world.pass(300), 0);
    // Load that goes round and round does not take streamlets along with it.
    let began = world.moved.len();
    for turn in 0..40 {
        world.rates = rates(3, &[((stream, turn % 30), 200 * MIB), ((stream, (turn + 7) % 30), 150 * MIB)]);
        world.pass(90);
    }
    let moved = &world.moved[began..];
    let mut twice = 0;
    for (at, of) in moved.iter().enumerate() {
        let Some(again) = moved[at + 1..].iter().find(|later| (later.1, later.2) == (of.1, of.2)) else { continue };
        assert!(again.0 - of.0 >= 300 * SECOND, "{of:?} {again:?}");
        twice += 1;
    }
    // Some of them move in each of the twelve times five minutes that this takes.
    assert!(twice > 100, "hardly anything moves again, so hardly anything is shown: {twice} of {}", moved.len());
}

#[test]
fn one_streamlet_that_is_all_there_is_stays_where_it_is() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("all", 3);
    let mut world = World::new(cluster);
    world.rates = rates(3, &[((stream, 0), 500 * MIB)]);
    assert_eq!(world.pass(2000), 0);
    assert_eq!(world.cluster.has(), [1, 1, 1]);
}

#[test]
fn noise_moves_nothing() {
    let mut cluster = Cluster::new(4);
    let stream = cluster.stream("noisy", 32);
    let mut world = World::new(cluster);
    for turn in 0..60u64 {
        let noisy = |at: u32| 10 * MIB + (u64::from(at) * 7919 + turn * 104_729) % (2 * MIB);
        world.rates = rates(4, &(0..32).map(|at| ((stream, at), noisy(at))).collect::<Vec<_>>());
        assert_eq!(world.pass(30), 0);
    }
}

#[test]
fn what_would_leave_something_behind_for_ever_is_not_moved_unasked() {
    let mut cluster = Cluster::new(2);
    let copied = StreamOptions { streamlets: 6, replication: 2, ..StreamOptions::default() };
    let compacted = StreamOptions { cleanup: Cleanup::Compact, ..copied.clone() };
    let kept = [
        cluster.make("one-copy", StreamOptions { replication: 1, ..copied.clone() }),
        cluster.make("compacted", compacted.clone()),
        cluster.make("for-ever", StreamOptions { retention_ms: None, ..copied.clone() }),
        cluster.make("_kera.cluster.groups", copied.clone()),
    ];
    let moves = cluster.make("usual", copied);
    cluster.join(3);
    let mut world = World::new(cluster);
    // A third of all would be its share; it gets what there is to get.
    assert_eq!(world.pass(300), 6);
    assert!(world.moved.iter().all(|of| of.1 == moves));
    assert_eq!(world.pass(1000), 0);
    assert!(kept.iter().all(|stream| (0..6).all(|at| world.cluster.owner(*stream, at) != 3)));
    let names: Vec<bool> = world.cluster.0.catalog.streams().map(moves_by_itself).collect();
    assert_eq!(names.iter().filter(|moves| **moves).count(), 1);
    // A person may want it.
    assert!(world.cluster.0.rebalance(0).iter().any(|of| kept.contains(&of.stream)));
}

#[test]
fn what_a_person_has_moved_stays_there_and_what_they_do_comes_first() {
    let mut cluster = Cluster::new(2);
    let stream = cluster.stream("placed", 4);
    let mut world = World::new(cluster);
    world.pass(100);
    let given = (0..4).find(|at| world.cluster.owner(stream, *at) == 1).unwrap();
    let noted = world.cluster.0.plan_move(&stream.into(), given, 2).unwrap();
    world.cluster.apply(&noted);
    world.balancer.rest((stream, given), world.now_us);
    let now_us = world.now_us + 20 * SECOND;
    assert_eq!(world.balancer.look(now_us, &world.cluster.0, || panic!("it is not calm")), []);
    world.cluster.finish_all();
    assert_eq!(world.cluster.has(), [1, 3]);
    world.pass(200);
    assert_eq!(world.cluster.owner(stream, given), 2);
    assert_eq!(world.cluster.has(), [2, 2], "another one goes");
}

#[test]
fn it_is_left_to_people_if_it_is_off_and_waits_for_what_it_has_not_heard() {
    let mut cluster = Cluster::new(2);
    cluster.stream("left", 12);
    cluster.join(3);
    let mut off = Balancer::new(BalanceConfig { after_us: None });
    let mut on = Balancer::new(BalanceConfig { after_us: Some(AFTER) });
    for second in 0..300 {
        assert_eq!(off.look(second * SECOND, &cluster.0, || Some(Rates::default())), []);
        assert_eq!(on.look(second * SECOND, &cluster.0, || None), []);
    }
    assert!(!on.look(320 * SECOND, &cluster.0, || Some(Rates::default())).is_empty());
    // Another leader waits anew.
    on.forget();
    assert_eq!(on.look(330 * SECOND, &cluster.0, || Some(Rates::default())), []);
}
