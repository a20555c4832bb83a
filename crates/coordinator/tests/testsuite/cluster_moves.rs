//! Moves that somebody asks for, what nodes hold of streamlets that others own, and what becomes of it when they are lost.

use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{CalledOff, ClusterState, HandedOn, Join, LogView, MOVES_MAX, Move};
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, Roles};
use kera_format::{GroupId, LaneId, StreamId, StreamOptions, StreamletId, level};
use kera_protocol::limits::FLOORS_MAX;
use kera_protocol::placement::{LaneState, Memory};
use kera_protocol::{
    CreateStream, GroupsGone, HeldGroups, LaneFloor, RebuildRange, SetFloors, StreamletState, StreamletsRebuilt,
};

use crate::support::finishing::finishes;

const LOG: LogName = LogName { node: 1, epoch: 1, log: 0 };

struct Cluster(ClusterState);

fn join(node: NodeNumber, has_all: bool) -> Join {
    let doors = Doors { cluster: format!("10.0.0.{node}:7072"), ..Doors::default() };
    let (uuid, roles, rack, settings) = ([node as u8; 16], Roles::ALL, String::new(), Vec::new());
    Join { node, uuid, roles, rack, doors, settings, epoch_min: 1, has_all, levels: (1, level::NEWEST) }
}

impl Cluster {
    fn new(nodes: NodeNumber) -> Cluster {
        let mut cluster = Cluster(ClusterState::default());
        let founded = cluster.0.plan_found([9; 16], &join(1, true), 0).unwrap();
        cluster.apply(&founded);
        (2..=nodes).for_each(|node| cluster.join(node, true));
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        for entry in entries {
            self.0.apply(entry).unwrap_or_else(|refused| panic!("{entry:?}: {refused}"));
        }
        let mut copy = ClusterState::default();
        self.0.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
        assert_eq!(copy.snapshot(), self.0.snapshot(), "a snapshot has all of it");
    }

    fn join(&mut self, node: NodeNumber, has_all: bool) {
        let joined = self.0.plan_join(&join(node, has_all), 0).unwrap();
        self.apply(&joined);
    }

    fn stream(&mut self, name: &str, streamlets: u32, replication: u32) -> StreamId {
        let options = StreamOptions { streamlets, replication, ..StreamOptions::default() };
        let request = CreateStream { name: name.into(), options, if_not_exists: false };
        let most = Limits { streams: 100, nodes: 16 };
        let created = self.0.plan_create_stream(&request, &most, 0, false).unwrap();
        self.apply(&created);
        self.0.catalog.find(&name.into()).unwrap().id
    }

    fn owner(&self, stream: StreamId, streamlet: u32) -> NodeNumber {
        self.0.owner(stream, streamlet).expect("an owner").node
    }

    fn finish(&mut self, number: u64) {
        let finished = finishes(&self.0, number);
        self.apply(&finished);
    }

    fn move_to(&mut self, stream: StreamId, streamlet: u32, to: NodeNumber) {
        let noted = self.0.plan_move(&stream.into(), streamlet, to).unwrap();
        self.apply(&noted);
        self.finish(self.0.move_of(stream, streamlet).expect("it is noted"));
        let placed = self.0.placed(to, stream).expect("users' streams have owners");
        assert_eq!(self.0.told_owner(stream, StreamletId(streamlet)), placed.owners[streamlet as usize]);
    }

    /// A move of a streamlet to the node that owns it. The owner epoch that ends with it.
    fn renew(&mut self, stream: StreamId, streamlet: u32) -> u32 {
        let owner = self.0.owner(stream, streamlet).expect("an owner");
        let noted = self.0.plan_renew(stream, streamlet, (owner.node, owner.epoch)).unwrap();
        self.apply(&noted);
        self.finish(self.0.move_of(stream, streamlet).expect("it is noted"));
        owner.owner_epoch
    }

    /// A move of streamlet 0 whose first lane stands at an ordinal. The owner epoch that begins with it.
    fn hand_on(&mut self, stream: StreamId, to: NodeNumber, next_ordinal: u64) -> u32 {
        let noted = self.0.plan_move(&stream.into(), 0, to).unwrap();
        self.apply(&noted);
        let number = self.0.move_of(stream, 0).expect("it is noted");
        let lane = |lane| LaneState {
            lane,
            next_ordinal,
            last_append_ms: 0,
            memory: Memory::Whole,
            producers: Vec::new(),
            groups: Vec::new(),
        };
        let (lanes, progress) = (vec![lane(LaneId(0)), lane(LaneId::PROGRESS)], Vec::new());
        let epoch = self.0.owner(stream, 0).expect("an owner").owner_epoch;
        let state = StreamletState { stream, streamlet: StreamletId(0), epoch, lanes, progress };
        let (of, state) = (self.0.node(to).expect("a node").epoch, kera_protocol::codec::bytes_of(&state));
        let finished = self.0.plan_finish_move(number, to, of, &state).unwrap();
        self.apply(&finished);
        self.0.owner(stream, 0).expect("an owner").owner_epoch
    }

    fn fence(&mut self, node: NodeNumber) {
        let fenced = self.0.plan_fence(node, self.0.node(node).unwrap().epoch).unwrap();
        self.apply(&fenced);
    }

    fn raise(&mut self, to: u32) {
        (self.0.level() + 1..=to).for_each(|level| self.apply(&[ClusterEntry::LevelRaised { level }]));
    }

    fn refused(&self, entry: &ClusterEntry) -> String {
        self.0.check(entry).expect_err("it breaks a rule").to_string()
    }
}

/// So that it can tell what its disks give again of older groups from what it had then.
#[test]
fn a_node_with_older_groups_is_told_where_the_lanes_stood_when_the_streamlet_went_to_its_owner() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("handed-on", 1, 1);
    let first = cluster.owner(stream, 0);
    let others: Vec<NodeNumber> = (1..=3).filter(|node| *node != first).collect();
    let told = |cluster: &Cluster, node| {
        let of = |of: HandedOn| (of.streamlet, of.owner_epoch, of.ends.into_iter().collect::<Vec<_>>());
        cluster.0.handed_on(node).into_iter().map(of).collect::<Vec<_>>()
    };
    assert!(told(&cluster, first).is_empty());
    let second_epoch = cluster.hand_on(stream, others[0], 100);
    assert_eq!(told(&cluster, first), [(StreamletId(0), second_epoch, vec![(LaneId(0), 100)])]);
    assert!(told(&cluster, others[0]).is_empty(), "it has nothing of what was before");
    let before = GroupId::new(second_epoch - 1, 1);
    assert_eq!(cluster.0.handed_on(first)[0].owner.holder(before), first);
    // Of the one before nobody knows any more: what both have is in front of this all the same.
    let third_epoch = cluster.hand_on(stream, others[1], 150);
    for node in [first, others[0]] {
        assert_eq!(told(&cluster, node), [(StreamletId(0), third_epoch, vec![(LaneId(0), 150)])]);
    }
    assert!(told(&cluster, others[1]).is_empty());
}

#[test]
fn a_drained_node_gives_its_streamlets_away_a_few_at_a_time_and_gets_none() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("drained", 18, 1);
    let drain = cluster.0.plan_drain(2, true).unwrap();
    cluster.apply(&drain);
    assert_eq!(cluster.0.plan_drain(2, true).unwrap(), [], "asking twice is answered like asking once");
    let mut turns = 0;
    while cluster.0.node(2).unwrap().streamlets > 0 {
        let noted = cluster.0.plan_drain_moves(&CalledOff::default(), 0).unwrap();
        cluster.apply(&noted);
        assert!(cluster.0.moves().len() <= MOVES_MAX, "{}", cluster.0.moves().len());
        let first = *cluster.0.moves().keys().next().expect("something moves");
        cluster.finish(first);
        turns += 1;
    }
    assert_eq!(turns, 6);
    assert_eq!(cluster.0.plan_drain_moves(&CalledOff::default(), 0).unwrap(), []);
    let has = |node| cluster.0.node(node).unwrap().streamlets;
    assert_eq!([has(1), has(2), has(3)], [9, 0, 9]);
    assert!((0..18).all(|at| cluster.owner(stream, at) != 2));
    let left = cluster.0.holdings()[1];
    assert_eq!((left.draining, left.streamlets, left.held), (true, 0, 6), "the old groups stay");

    cluster.stream("made-later", 6, 1);
    assert_eq!(cluster.0.node(2).unwrap().streamlets, 0);
    let refused = cluster.0.plan_move(&stream.into(), 0, 2).unwrap_err().to_string();
    assert!(refused.contains("drained/0") && refused.contains("kera node drain 2 --undo"), "{refused}");
    // It comes back drained, until somebody says otherwise.
    cluster.join(2, true);
    assert!(cluster.0.node(2).unwrap().draining);
    let used = cluster.0.plan_drain(2, false).unwrap();
    cluster.apply(&used);
    cluster.move_to(stream, 0, 2);
}

/// As many as move at a time, in front of one that could.
#[test]
fn streamlets_that_cannot_be_moved_do_not_keep_others_from_leaving_a_drained_node() {
    let mut cluster = Cluster::new(3);
    let (stuck, other) = (cluster.stream("a", 12, 1), cluster.stream("b", 3, 1));
    let drain = cluster.0.plan_drain(2, true).unwrap();
    cluster.apply(&drain);
    let mut called_off = CalledOff::default();
    let noted = cluster.0.plan_drain_moves(&called_off, 0).unwrap();
    cluster.apply(&noted);
    let moves: Vec<_> = cluster.0.moves().iter().map(|(number, of)| (*number, *of)).collect();
    assert_eq!((moves.len(), moves.iter().all(|(_, of)| of.stream == stuck)), (MOVES_MAX, true));
    for (number, of) in moves {
        called_off.note(&of, 10_000_000);
        let entries = cluster.0.plan_call_off(number).unwrap();
        cluster.apply(&entries);
    }
    let noted = cluster.0.plan_drain_moves(&called_off, 10_000_000).unwrap();
    assert!(matches!(noted[..], [ClusterEntry::MoveNoted { stream, .. }] if stream == other), "{noted:?}");
    assert_eq!(cluster.0.plan_drain_moves(&called_off, 70_000_000).unwrap().len(), MOVES_MAX, "they are tried again");
}

/// So many that the first of them have rested before all were tried.
#[test]
fn each_streamlet_of_a_drained_node_has_its_turn_before_any_has_another_one() {
    let mut cluster = Cluster::new(3);
    let (stuck, other) = (cluster.stream("a", 120, 1), cluster.stream("b", 3, 1));
    let drain = cluster.0.plan_drain(2, true).unwrap();
    cluster.apply(&drain);
    let of_it = (0..120).filter(|at| cluster.owner(stuck, *at) == 2).count();
    assert_eq!(of_it, 40);
    let (mut called_off, mut tried) = (CalledOff::default(), Vec::new());
    for round in 0.. {
        let now_us = round * 10_000_000;
        let noted = cluster.0.plan_drain_moves(&called_off, now_us).unwrap();
        cluster.apply(&noted);
        let moves: Vec<_> = cluster.0.moves().iter().map(|(number, of)| (*number, *of)).collect();
        assert_eq!(moves.len(), MOVES_MAX);
        tried.extend(moves.iter().map(|(_, of)| (of.stream, of.streamlet)));
        if moves.iter().any(|(_, of)| of.stream == other) {
            break;
        }
        assert!(tried.len() <= of_it, "tried so far: {tried:?}");
        for (number, of) in moves {
            called_off.note(&of, now_us + 10_000_000);
            let entries = cluster.0.plan_call_off(number).unwrap();
            cluster.apply(&entries);
        }
    }
    // Beside it come those that have waited longest.
    let again: Vec<_> = tried[of_it..].iter().filter(|(stream, _)| *stream == stuck).collect();
    assert_eq!(again, tried.iter().take(MOVES_MAX - 1).collect::<Vec<_>>());
}

#[test]
fn others_leave_a_drained_node_for_where_no_move_was_called_off() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("a", 60, 1);
    let drain = cluster.0.plan_drain(2, true).unwrap();
    cluster.apply(&drain);
    let mut called_off = CalledOff::default();
    let at = (0..60).find(|at| cluster.owner(stream, *at) == 2).expect("it has some");
    called_off.note(&Move { stream, streamlet: at, from: 2, to: 1 }, 0);
    let noted = cluster.0.plan_drain_moves(&called_off, 1).unwrap();
    assert!(noted.iter().all(|entry| matches!(entry, ClusterEntry::MoveNoted { to: 3, .. })), "{noted:?}");
}

#[test]
fn the_last_broker_is_not_drained() {
    let mut cluster = Cluster::new(2);
    cluster.stream("here", 2, 1);
    let first = cluster.0.plan_drain(1, true).unwrap();
    cluster.apply(&first);
    let refused = cluster.0.plan_drain(2, true).unwrap_err().to_string();
    assert!(refused.contains("no other live broker"), "{refused}");
}

#[test]
fn a_new_node_gets_its_share_of_each_stream() {
    let mut cluster = Cluster::new(2);
    let streams = [cluster.stream("a", 6, 1), cluster.stream("b", 6, 1)];
    assert_eq!(cluster.0.rebalance(0), [], "nothing is to be done");
    cluster.join(3, true);
    let plan = cluster.0.rebalance(0);
    assert_eq!(plan.len(), 4);
    assert!(plan.iter().all(|of| of.to == 3 && cluster.owner(of.stream, of.streamlet.0) == of.from), "{plan:?}");
    let of = |stream| plan.iter().filter(|of| of.stream == stream).count();
    assert_eq!(streams.map(of), [2, 2]);
    for of in plan {
        cluster.move_to(of.stream, of.streamlet.0, of.to);
    }
    assert_eq!(cluster.0.rebalance(0), []);
    assert!(cluster.0.nodes().values().all(|node| node.streamlets == 4));
}

#[test]
fn nothing_moves_that_is_rebuilt_and_nothing_moves_to_a_node_that_is_lost() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("copied", 3, 2);
    let lost = cluster.owner(stream, 2);
    let (other, third) = (cluster.owner(stream, 0), cluster.owner(stream, 1));
    let noted = cluster.0.plan_move(&stream.into(), 0, lost).unwrap();
    cluster.apply(&noted);
    cluster.fence(lost);
    assert!(cluster.0.moves().is_empty(), "it is called off");
    let refused = cluster.0.plan_move(&stream.into(), 0, lost).unwrap_err().to_string();
    assert!(refused.contains("is lost"), "{refused}");
    let recovered = cluster.0.plan_recover(lost, 1).unwrap();
    cluster.apply(&recovered);
    let has = cluster.owner(stream, 2);
    let to = if has == other { third } else { other };
    let refused = cluster.0.plan_move(&stream.into(), 2, to).unwrap_err().to_string();
    assert!(refused.contains("still rebuilds"), "{refused}");
    let refused = cluster.0.plan_move(&stream.into(), 7, to).unwrap_err().to_string();
    assert!(refused.contains("has 3 streamlets, 0 to 2"), "{refused}");
}

/// A streamlet that has moved from node 1 to node 2, and node 1 is lost with its log.
fn moved_and_lost(replication: u32) -> (Cluster, StreamId) {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, replication);
    assert_eq!(cluster.owner(stream, 0), 1);
    let agreed = cluster.0.plan_view(&LogView { log: LOG, view: 1, first: 1, backups: vec![2, 3] }).unwrap();
    cluster.apply(&agreed);
    cluster.move_to(stream, 0, 2);
    cluster.fence(1);
    (cluster, stream)
}

#[test]
fn groups_of_a_lost_node_come_to_the_owner_and_its_logs_are_kept_until_it_has_them() {
    let (mut cluster, stream) = moved_and_lost(2);
    assert_eq!(cluster.0.plan_gather().unwrap(), [], "the end of the log is not decided");
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), []);
    assert!(cluster.refused(&ClusterEntry::LogGivenUp { log: LOG }).contains("are lost there"));
    let before = cluster.0.owner(stream, 0).unwrap();
    let gathered = cluster.0.plan_gather().unwrap();
    cluster.apply(&gathered);
    let owner = cluster.0.owner(stream, 0).unwrap();
    assert_eq!((owner.node, owner.epoch, owner.rebuilding), (before.node, before.epoch, true));
    assert!(owner.owner_epoch > before.owner_epoch);
    let held: Vec<_> = cluster.0.owners(stream).unwrap().held().iter().map(|held| held.node).collect();
    assert_eq!(held, [2, 2], "those of node 1, and its own of the epoch before");
    assert_eq!(cluster.0.plan_gather().unwrap(), [], "once is enough");
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), [], "it rebuilds from them");
    let streamlets = vec![RebuildRange { stream, first: 0, count: 1, owner_epoch: 0 }];
    let rebuilt = cluster.0.plan_rebuilt(&StreamletsRebuilt { node: 2, epoch: 1, streamlets }).unwrap();
    cluster.apply(&rebuilt);
    let over = cluster.0.plan_give_up_lost().unwrap();
    assert_eq!(over, [ClusterEntry::LogGivenUp { log: LOG }]);
    cluster.apply(&over);
    let removed = cluster.0.plan_remove(1).unwrap();
    cluster.apply(&removed);
}

/// A report that came late, or twice: the first leader that was asked had not answered, the next one did it, and the owner gathers since.
#[test]
fn what_was_rebuilt_before_does_not_count_for_what_is_gathered_later() {
    for level in [level::REBUILT_IN - 1, level::REBUILT_IN] {
        let (mut cluster, stream) = moved_and_lost(2);
        cluster.raise(level);
        cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
        let before = cluster.0.owner(stream, 0).unwrap().owner_epoch;
        let gathered = cluster.0.plan_gather().unwrap();
        cluster.apply(&gathered);
        let rebuilt = |owner_epoch: u32| StreamletsRebuilt {
            node: 2,
            epoch: 1,
            streamlets: vec![RebuildRange { stream, first: 0, count: 1, owner_epoch }],
        };
        assert_eq!(cluster.0.plan_rebuilt(&rebuilt(before)).unwrap(), []);
        // Two leaders may both have planned it.
        let (first, count, node, epoch, owner_epoch) = (0, 1, 2, 1, before);
        let late = ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch };
        let why = if level < level::REBUILT_IN { "needs level 8" } else { "what is rebuilt is of" };
        assert!(cluster.refused(&late).contains(why), "{}", cluster.refused(&late));
        assert!(cluster.0.owner(stream, 0).unwrap().rebuilding);
        assert_eq!(cluster.0.plan_give_up_lost().unwrap(), [], "it has not gathered them yet");
        let now = cluster.0.owner(stream, 0).unwrap().owner_epoch;
        let done = cluster.0.plan_rebuilt(&rebuilt(now)).unwrap();
        assert_eq!(done[0].level(), if level < level::REBUILT_IN { level::FIRST } else { level::REBUILT_IN });
        cluster.apply(&done);
        assert!(!cluster.0.owner(stream, 0).unwrap().rebuilding);
        assert_eq!(cluster.0.plan_rebuilt(&rebuilt(now)).unwrap(), [], "twice is once");
        assert_eq!(cluster.0.plan_give_up_lost().unwrap(), [ClusterEntry::LogGivenUp { log: LOG }]);
    }
}

#[test]
fn who_is_started_again_while_it_rebuilds_holds_only_what_it_goes_on_to_rebuild() {
    for goes_on in [true, false] {
        let (mut cluster, stream) = moved_and_lost(2);
        let own = LogName { node: 2, ..LOG };
        let agreed = cluster.0.plan_view(&LogView { log: own, view: 1, first: 1, backups: vec![3] }).unwrap();
        cluster.apply(&agreed);
        cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
        let gathered = cluster.0.plan_gather().unwrap();
        cluster.apply(&gathered);
        if !goes_on {
            cluster.fence(2);
            cluster.apply(&[ClusterEntry::LogEnded { log: own, end: 3 }]);
        }
        // Its memory is there, with what it had rebuilt until then, which is not all.
        cluster.join(2, true);
        let held: Vec<_> = cluster.0.owners(stream).unwrap().held().iter().map(|held| (held.node, held.lost)).collect();
        // Who goes on also has the groups of the epoch that is over.
        assert_eq!(held, vec![(2, !goes_on); if goes_on { 3 } else { 2 }]);
        let owner = cluster.0.owner(stream, 0).unwrap();
        assert_eq!((owner.node, owner.epoch, owner.rebuilding), (2, if goes_on { 2 } else { 1 }, true));
        if !goes_on {
            let recovered = cluster.0.plan_recover(2, 1).unwrap();
            cluster.apply(&recovered);
            let has = cluster.owner(stream, 0);
            let held: Vec<_> =
                cluster.0.owners(stream).unwrap().held().iter().map(|held| (held.node, held.lost)).collect();
            assert_eq!(held, [(has, false); 3], "all of it comes to the next owner");
        }
    }
}

/// Until something is written to a log its views change all the same, and backups that never had a block may be gone for good.
#[test]
fn groups_are_gathered_whatever_became_of_backups_that_never_had_a_block() {
    let mut cluster = Cluster::new(4);
    let stream = cluster.stream("moved", 1, 2);
    for (view, backup) in [(1, 2), (2, 3)] {
        let agreed = cluster.0.plan_view(&LogView { log: LOG, view, first: 1, backups: vec![backup] }).unwrap();
        cluster.apply(&agreed);
    }
    cluster.move_to(stream, 0, 4);
    cluster.fence(1);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.fence(2);
    assert!(!cluster.0.plan_gather().unwrap().is_empty(), "all blocks are at node 3");
}

#[test]
fn an_owner_does_not_stop_for_groups_that_no_backup_has() {
    let (mut cluster, stream) = moved_and_lost(2);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.join(4, true);
    cluster.move_to(stream, 0, 4);
    (2..4).for_each(|node| cluster.fence(node));
    assert_eq!(cluster.0.plan_gather().unwrap(), [], "both backups of the log are lost");
    cluster.join(3, true);
    assert!(!cluster.0.plan_gather().unwrap().is_empty());
    let accepted = cluster.0.plan_accept_loss(&stream.into(), 0).unwrap();
    cluster.apply(&accepted);
    assert_eq!((cluster.owner(stream, 0), cluster.0.plan_gather().unwrap()), (4, vec![]), "a person gives them up");
}

#[test]
fn groups_go_with_the_owner_if_that_one_is_lost_as_well() {
    let (mut cluster, stream) = moved_and_lost(3);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.fence(2);
    let recovered = cluster.0.plan_recover(2, 1).unwrap();
    cluster.apply(&recovered);
    let held: Vec<_> = cluster.0.owners(stream).unwrap().held().iter().map(|held| held.node).collect();
    assert_eq!((cluster.owner(stream, 0), held), (3, vec![3, 3]));
}

#[test]
fn what_an_owner_has_rebuilt_stays_with_it_when_the_streamlet_moves_on() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, 2);
    cluster.fence(1);
    let recovered = cluster.0.plan_recover(1, 1).unwrap();
    cluster.apply(&recovered);
    let streamlets = vec![RebuildRange { stream, first: 0, count: 1, owner_epoch: 0 }];
    let node = cluster.owner(stream, 0);
    let rebuilt = cluster.0.plan_rebuilt(&StreamletsRebuilt { node, epoch: 1, streamlets }).unwrap();
    cluster.apply(&rebuilt);
    let before = cluster.0.owner(stream, 0).unwrap().owner_epoch;
    cluster.move_to(stream, 0, 5 - node);
    let held: Vec<_> = cluster.0.owners(stream).unwrap().held_of(0).collect();
    assert!(held.len() == 1 && held[0].node == node && held[0].owner_epoch < before, "{held:?}");
    cluster.move_to(stream, 0, node);
    let held: Vec<_> = cluster.0.owners(stream).unwrap().held_of(0).map(|held| held.node).collect();
    assert_eq!(held, [node, 5 - node]);
}

#[test]
fn a_node_that_comes_back_with_its_memory_goes_on_holding_and_one_without_does_not() {
    for has_all in [true, false] {
        let (mut cluster, _) = moved_and_lost(2);
        cluster.join(1, has_all);
        cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
        assert_eq!(cluster.0.plan_gather().unwrap().is_empty(), has_all);
        let why = if has_all { "holds groups" } else { "are lost there" };
        assert!(cluster.refused(&ClusterEntry::LogGivenUp { log: LOG }).contains(why));
    }
}

/// There may be as many as there are streamlets, and each entry is one more walk through them on every node.
#[test]
fn what_a_node_has_lost_of_neighbours_is_said_in_one_entry() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 12, 2);
    let own: Vec<u32> = (0..12).filter(|at| cluster.owner(stream, *at) == 1).collect();
    assert_eq!(own.len(), 4);
    own.iter().for_each(|at| cluster.move_to(stream, *at, 2));
    let joined = cluster.0.plan_join(&join(1, false), 0).unwrap();
    let lost: Vec<_> = joined.iter().filter(|entry| matches!(entry, ClusterEntry::GroupsLost { .. })).collect();
    assert!(matches!(lost[..], [ClusterEntry::GroupsLost { count: 4, .. }]), "{lost:?}");
    cluster.apply(&joined);
    let held = cluster.0.owners(stream).unwrap().held();
    assert_eq!((held.len(), held.iter().all(|held| held.lost)), (4, true));
}

#[test]
fn a_node_that_holds_groups_of_several_epochs_of_a_streamlet_comes_back_with_it_once() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, 2);
    for to in [2, 1, 2, 1] {
        cluster.move_to(stream, 0, to);
    }
    cluster.join(1, true);
    let epoch = cluster.0.node(1).unwrap().epoch;
    let held = cluster.0.owners(stream).unwrap().held().iter().filter(|held| held.node == 1).count();
    assert!(held > 1, "{held}");
    assert_eq!(cluster.0.came_back_with(1, epoch).0, [(stream, 0..1)], "what it owns, and what it holds");
    let other = cluster.stream("other", 6, 2);
    let own: Vec<u32> = (0..6).filter(|at| cluster.owner(other, *at) == 1).collect();
    cluster.move_to(other, own[0], 2);
    cluster.join(1, true);
    let (back, _) = cluster.0.came_back_with(1, epoch + 1);
    let of_other = back.iter().filter(|(of, _)| *of == other).flat_map(|(_, range)| range.clone());
    assert_eq!(of_other.collect::<Vec<_>>(), own);
}

/// Node 1 has come back with what it holds, and has copied it again in its new log.
#[test]
fn a_node_has_old_logs_given_up_although_it_holds_groups_and_nobody_else_does() {
    let (mut cluster, stream) = moved_and_lost(2);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.raise(level::HOLDERS_GIVE_UP);
    let given_up = ClusterEntry::LogGivenUp { log: LOG };
    assert!(cluster.refused(&given_up).contains("are lost there"), "node 1 is fenced");
    cluster.join(1, true);
    // Who leads does not know what the node has copied: it owns nothing, and holds something.
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), []);
    assert_eq!(
        cluster.0.own_lost_logs(1, 1),
        [],
        "a process that was declared lost does not know what the next one has"
    );
    assert_eq!(cluster.0.own_lost_logs(1, 2), [LOG]);
    assert_eq!(cluster.0.plan_give_up_log(LOG).unwrap(), std::slice::from_ref(&given_up));
    // Back without its memory it holds nothing any more, and the owner looks in all its logs.
    let held = cluster.0.owners(stream).unwrap().held()[0];
    let (first, count, owner_epoch) = (held.first, held.count, held.owner_epoch);
    cluster.apply(&[ClusterEntry::GroupsLost { stream, first, count, owner_epoch }]);
    assert!(cluster.refused(&given_up).contains("are lost there"));
    let gathered = cluster.0.plan_gather().unwrap();
    cluster.apply(&gathered);
    assert!(cluster.refused(&given_up).contains("still rebuilds"));
}

#[test]
fn below_the_level_that_knows_it_a_node_that_holds_groups_keeps_its_logs() {
    let (mut cluster, _) = moved_and_lost(2);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.raise(level::HOLDERS_GIVE_UP - 1);
    cluster.join(1, true);
    assert!(cluster.refused(&ClusterEntry::LogGivenUp { log: LOG }).contains("holds groups"));
}

#[test]
fn a_streamlet_that_its_owner_gets_back_has_its_own_groups_too() {
    let mut cluster = Cluster::new(2);
    let stream = cluster.stream("moved", 1, 1);
    cluster.move_to(stream, 0, 2);
    let before = cluster.0.owner(stream, 0).unwrap().owner_epoch;
    cluster.join(2, true);
    let held: Vec<_> = cluster.0.owners(stream).unwrap().held_of(0).map(|held| (held.owner_epoch, held.node)).collect();
    assert_eq!(held.last(), Some(&(before, 2)), "{held:?}");
    assert_eq!(held.first().map(|held| held.1), Some(1));
}

/// Node 2 went on with the streamlet after a kill, and did not get it back after the next one, before it had another owner.
#[test]
fn what_an_owner_wrote_last_before_it_went_on_is_rebuilt_if_it_does_not_go_on_again() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, 2);
    for to in [2, 1, 2] {
        cluster.move_to(stream, 0, to);
    }
    let own = LogName { node: 2, ..LOG };
    let agreed = cluster.0.plan_view(&LogView { log: own, view: 1, first: 1, backups: vec![1, 3] }).unwrap();
    cluster.apply(&agreed);
    cluster.join(2, true);
    let of = |cluster: &Cluster| -> Vec<(NodeNumber, bool)> {
        cluster.0.owners(stream).unwrap().held_of(0).map(|held| (held.node, held.lost)).collect()
    };
    assert_eq!(of(&cluster), [(1, false), (2, false), (1, false), (2, false)]);
    cluster.apply(&[ClusterEntry::LogEnded { log: own, end: 3 }]);
    cluster.join(2, true);
    // What it had before the last move was acknowledged when it moved.
    assert_eq!(of(&cluster), [(1, false), (2, false), (1, false), (2, true)]);
    let recovered = cluster.0.plan_recover(2, 2).unwrap();
    cluster.apply(&recovered);
    let has = cluster.owner(stream, 0);
    assert_eq!(
        of(&cluster)[3..],
        [(has, false), (has, false)],
        "they come to the next owner, and those of its last life"
    );
}

#[test]
fn a_node_is_given_up_when_nothing_of_it_is_needed_and_the_error_says_what_is() {
    let mut cluster = Cluster::new(3);
    let single = cluster.stream("single", 3, 1);
    let remove = ClusterEntry::NodeRemoved { node: 1 };
    assert!(cluster.refused(&remove).contains("kera node drain 1"), "{}", cluster.refused(&remove));
    let at = (0..3).find(|at| cluster.owner(single, *at) == 1).unwrap();
    cluster.fence(1);
    let refused = cluster.refused(&remove);
    assert!(refused.contains(&format!("single/{at}")) && refused.contains("accept-loss"), "{refused}");
    let accepted = cluster.0.plan_accept_loss(&single.into(), at).unwrap();
    cluster.apply(&accepted);
    assert_ne!(cluster.owner(single, at), 1);
    let refused = cluster.0.plan_accept_loss(&single.into(), at).unwrap_err().to_string();
    assert!(refused.contains("nothing of single/"), "{refused}");
    cluster.apply(&[remove]);
    assert!(cluster.0.node(1).is_none());
}

#[test]
fn what_was_given_up_is_told_from_what_is_lost_and_from_what_is_back() {
    for is_given_up in [true, false] {
        let mut cluster = Cluster::new(3);
        let stream = cluster.stream("single", 1, 1);
        let node = cluster.owner(stream, 0);
        assert_eq!(cluster.0.loss_of(&stream.into(), 0), None);
        cluster.fence(node);
        let loss = cluster.0.loss_of(&stream.into(), 0).expect("its owner is over");
        assert!(!cluster.0.goes_on_without(&loss), "it is lost still");
        if is_given_up {
            let accepted = cluster.0.plan_accept_loss(&stream.into(), 0).unwrap();
            cluster.apply(&accepted);
        } else {
            cluster.join(node, true);
        }
        assert_eq!(cluster.0.loss_of(&stream.into(), 0), None);
        assert_eq!(cluster.0.goes_on_without(&loss), is_given_up);
    }
}

/// The owner holds groups in front of those, and is said to have both.
#[test]
fn groups_that_were_given_up_are_not_taken_for_lost_where_the_owner_is_said_to_have_them() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, 1);
    if cluster.owner(stream, 0) != 1 {
        cluster.move_to(stream, 0, 1);
    }
    cluster.move_to(stream, 0, 2);
    cluster.move_to(stream, 0, 1);
    cluster.fence(2);
    let loss = cluster.0.loss_of(&stream.into(), 0).expect("groups that another node held");
    assert!(!cluster.0.goes_on_without(&loss), "they are lost still");
    let accepted = cluster.0.plan_accept_loss(&stream.into(), 0).unwrap();
    assert!(matches!(accepted[..], [ClusterEntry::GroupsHeld { node: 1, .. }]), "{accepted:?}");
    cluster.apply(&accepted);
    assert_eq!(cluster.0.loss_of(&stream.into(), 0), None);
    assert!(cluster.0.goes_on_without(&loss));
}

/// It looks as if it had been: another node owns it.
#[test]
fn what_another_node_rebuilds_is_not_taken_for_given_up() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("copied", 1, 2);
    let node = cluster.owner(stream, 0);
    let epoch = cluster.0.node(node).unwrap().epoch;
    cluster.fence(node);
    let loss = cluster.0.loss_of(&stream.into(), 0);
    let recovered = cluster.0.plan_recover(node, epoch).unwrap();
    cluster.apply(&recovered);
    assert_ne!(cluster.owner(stream, 0), node);
    assert!(loss.is_none_or(|loss| !cluster.0.goes_on_without(&loss)));
}

#[test]
fn a_streamlet_that_is_given_up_goes_on_where_it_last_moved() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("moved", 1, 1);
    cluster.move_to(stream, 0, 2);
    let handed = cluster.0.handed(stream, 0).expect("what it took along");
    cluster.fence(2);
    let accepted = cluster.0.plan_accept_loss(&stream.into(), 0).unwrap();
    cluster.apply(&accepted);
    assert_ne!(cluster.owner(stream, 0), 2);
    assert_eq!(cluster.0.handed(stream, 0), Some(handed), "node 1 holds what was before");
    assert!(cluster.0.holds(1, stream, 0));
}

/// Lanes and positions of applications, which cannot be left out, take more than what most streamlets take along.
#[test]
fn a_streamlet_takes_more_along_from_its_level_on() {
    let mut cluster = Cluster::new(3);
    let stream = cluster.stream("large", 1, 2);
    let owner = cluster.0.owner(stream, 0).expect("an owner");
    let (to, epoch) = (owner.node % 3 + 1, owner.owner_epoch);
    let noted = cluster.0.plan_move(&stream.into(), 0, to).unwrap();
    cluster.apply(&noted);
    let number = cluster.0.move_of(stream, 0).expect("it is noted");
    let (streamlet, lanes, progress) = (StreamletId(0), Vec::new(), vec![7; 300 << 10]);
    let state = kera_protocol::codec::bytes_of(&StreamletState { stream, streamlet, epoch, lanes, progress });
    let finish = |cluster: &Cluster| {
        let epoch = cluster.0.node(to).expect("a node").epoch;
        cluster.0.plan_finish_move(number, to, epoch, &state)
    };
    let refused = finish(&cluster).unwrap_err().to_string();
    assert!(refused.contains("the limit is 65536"), "{refused}");
    let entry = ClusterEntry::StreamletHanded { stream, streamlet: 0, owner_epoch: epoch, state: state.clone() };
    let refused = cluster.refused(&entry);
    assert!(refused.contains(&format!("needs level {}", level::LARGE_MOVES)), "{refused}");
    cluster.raise(level::LARGE_MOVES);
    let finished = finish(&cluster).unwrap();
    cluster.apply(&finished);
    assert_eq!((cluster.owner(stream, 0), cluster.0.handed(stream, 0).as_deref()), (to, Some(&state[..])));
}

#[test]
fn groups_that_have_expired_are_nobodys() {
    let mut cluster = Cluster::new(2);
    let stream = cluster.stream("moved", 1, 1);
    let owner_epoch = 1;
    cluster.move_to(stream, 0, 2);
    let gone = |node, epoch, owner_epoch| GroupsGone {
        node,
        epoch,
        groups: vec![HeldGroups { stream, first: 0, count: 1, owner_epoch }],
    };
    for (node, epoch, of) in [(2, 1, owner_epoch), (1, 7, owner_epoch), (1, 1, owner_epoch + 1)] {
        assert_eq!(cluster.0.plan_groups_gone(&gone(node, epoch, of)).unwrap(), [], "{node} {epoch} {of}");
    }
    let entries = cluster.0.plan_groups_gone(&gone(1, 1, owner_epoch)).unwrap();
    cluster.apply(&entries);
    assert_eq!(cluster.0.owners(stream).unwrap().held(), []);
    assert_eq!(cluster.0.plan_groups_gone(&gone(1, 1, owner_epoch)).unwrap(), []);
}

/// A node has looked what retention has taken of what it holds, and says so after it has gone on with the streamlet by a move to itself: what it wrote before
/// that is with the groups that it holds by then.
#[test]
fn groups_to_which_others_came_are_not_gone() {
    let mut cluster = Cluster::new(3);
    cluster.raise(level::NEWEST);
    let stream = cluster.stream("moved", 1, 2);
    let node = cluster.owner(stream, 0);
    let other = node % 3 + 1;
    cluster.move_to(stream, 0, other);
    cluster.move_to(stream, 0, node);
    // Of this one nothing is there any more when the node looks, and of the next one there is.
    let owner_epoch = cluster.renew(stream, 0);
    let gone = GroupsGone { node, epoch: 1, groups: vec![HeldGroups { stream, first: 0, count: 1, owner_epoch }] };
    assert!(
        cluster.0.held_by(node).iter().all(|(of, _)| of.owner_epoch < owner_epoch),
        "it is not asked for these yet"
    );
    let there = GroupId::new(cluster.renew(stream, 0), 1);
    let entries = cluster.0.plan_groups_gone(&gone).unwrap();
    cluster.apply(&entries);
    cluster.move_to(stream, 0, other);
    assert_eq!(
        cluster.0.told_owner(stream, StreamletId(0)).holder(there),
        node,
        "readers are not sent to the one before"
    );
    // When the streamlet is another node's nothing comes to them any more.
    let held = cluster.0.held_by(node).len();
    let entries = cluster.0.plan_groups_gone(&gone).unwrap();
    cluster.apply(&entries);
    assert_eq!(cluster.0.held_by(node).len(), held - 1);
}

/// A node has looked while another one owns the streamlet, and is heard of when the streamlet has come to it and gone again. Nothing is left of what that other one has
/// written: so what the node wrote was part of what it had held before, and nobody's when it was heard of.
#[test]
fn what_an_owner_writes_is_no_part_of_what_it_held_before() {
    let mut cluster = Cluster::new(3);
    cluster.raise(level::NEWEST);
    let stream = cluster.stream("moved", 1, 2);
    let other = cluster.owner(stream, 0);
    let node = other % 3 + 1;
    let says = |cluster: &mut Cluster, node, of: HeldGroups| {
        let entries = cluster.0.plan_groups_gone(&GroupsGone { node, epoch: 1, groups: vec![of] }).unwrap();
        cluster.apply(&entries);
        entries.len()
    };
    cluster.move_to(stream, 0, node);
    cluster.move_to(stream, 0, other);
    let (late, _) = cluster.0.held_by(node)[0];
    let owner_epoch = cluster.0.owner(stream, 0).expect("an owner").owner_epoch;
    cluster.move_to(stream, 0, node);
    let others = HeldGroups { owner_epoch, ..late };
    assert_eq!(says(&mut cluster, other, others), 1);
    assert_eq!(says(&mut cluster, other, others), 0, "it is not its to tell any more");
    let there: Vec<u32> = (0..3).map(|_| cluster.renew(stream, 0)).collect();
    cluster.move_to(stream, 0, other);
    assert_eq!(says(&mut cluster, node, late), 1, "nothing is there of that");
    let told = cluster.0.told_owner(stream, StreamletId(0));
    for epoch in there {
        assert_eq!(told.holder(GroupId::new(epoch, 1)), node, "readers are not sent to the one before: {told:?}");
    }
    // They go one after the other, and nobody is said to hold them any more.
    for (of, _) in cluster.0.held_by(node) {
        assert_eq!(says(&mut cluster, node, of), 1);
    }
    assert!(!cluster.0.holds(node, stream, 0));
}

/// The same where the other one is lost and a person has given up what it had: as the owner, or as who holds what is between.
#[test]
fn what_an_owner_writes_behind_what_was_given_up_is_no_part_of_what_it_held_before() {
    for is_owner_lost in [true, false] {
        let mut cluster = Cluster::new(3);
        cluster.raise(level::NEWEST);
        let stream = cluster.stream("moved", 1, 2);
        if cluster.owner(stream, 0) != 1 {
            cluster.move_to(stream, 0, 1);
        }
        cluster.move_to(stream, 0, 2);
        let late: Vec<HeldGroups> = cluster.0.held_by(1).into_iter().map(|(of, _)| of).collect();
        assert!(!late.is_empty());
        if !is_owner_lost {
            cluster.move_to(stream, 0, 1);
        }
        cluster.fence(2);
        let accepted = cluster.0.plan_accept_loss(&stream.into(), 0).unwrap();
        cluster.apply(&accepted);
        assert_eq!((cluster.owner(stream, 0), cluster.0.holds(2, stream, 0)), (1, false), "{is_owner_lost}");
        let there: Vec<u32> = (0..3).map(|_| cluster.renew(stream, 0)).collect();
        cluster.move_to(stream, 0, 3);
        let gone = cluster.0.plan_groups_gone(&GroupsGone { node: 1, epoch: 1, groups: late.clone() }).unwrap();
        assert_eq!(gone.len(), late.len());
        cluster.apply(&gone);
        let told = cluster.0.told_owner(stream, StreamletId(0));
        for epoch in there {
            assert_eq!(told.holder(GroupId::new(epoch, 1)), 1, "{is_owner_lost}: {told:?}");
        }
    }
}

#[test]
fn where_a_lane_begins_is_said_by_its_owner_and_kept_for_the_next_one() {
    let mut cluster = Cluster::new(3);
    let (stream, other) = (cluster.stream("deleted-from", 2, 2), cluster.stream("other", 1, 1));
    let floor =
        |owner_epoch, ordinal| LaneFloor { stream, streamlet: StreamletId(1), lane: LaneId(0), owner_epoch, ordinal };
    let plan = |cluster: &Cluster, floors: &[LaneFloor]| cluster.0.plan_floors(&SetFloors { floors: floors.to_vec() });
    let first = cluster.0.owner(stream, 1).expect("an owner");
    let begins = ClusterEntry::LaneBegins {
        stream,
        streamlet: 1,
        lane: LaneId(0),
        owner_epoch: first.owner_epoch,
        ordinal: 100,
    };
    assert!(cluster.refused(&begins).contains("needs level 6"));
    cluster.raise(6);
    let asked = [floor(first.owner_epoch, 100)];
    assert_eq!(plan(&cluster, &asked).unwrap(), [begins]);
    let noted = plan(&cluster, &asked).unwrap();
    cluster.apply(&noted);
    assert_eq!(plan(&cluster, &asked).unwrap(), [], "asking twice is answered like asking once");
    assert_eq!(plan(&cluster, &[floor(first.owner_epoch, 99)]).unwrap(), [], "deleted records stay deleted");
    assert_eq!(plan(&cluster, &[floor(first.owner_epoch + 7, 200)]).unwrap(), [], "who is not the owner says nothing");
    let wrong = LaneFloor { lane: LaneId(1), ..floor(first.owner_epoch, 1) };
    assert!(plan(&cluster, &[wrong]).unwrap_err().to_string().contains("has 1 lanes"));
    let many = vec![floor(first.owner_epoch, 1); FLOORS_MAX + 1];
    assert!(plan(&cluster, &many).unwrap_err().to_string().contains("the limit is 1000"));
    let to = if first.node == 3 { 2 } else { 3 };
    cluster.move_to(stream, 1, to);
    let next = cluster.0.owner(stream, 1).expect("an owner").owner_epoch;
    assert_eq!(cluster.0.floor(stream, 1, LaneId(0)).map(|floor| floor.ordinal), Some(100));
    assert_eq!(plan(&cluster, &asked).unwrap(), [], "the last owner says nothing any more");
    // It came shorter than it was.
    let lower = plan(&cluster, &[floor(next, 60)]).unwrap();
    cluster.apply(&lower);
    let floors = |state: &ClusterState, stream| {
        state.floors(stream).map(|(at, _, floor)| (at, floor.ordinal)).collect::<Vec<_>>()
    };
    assert_eq!(floors(&cluster.0, stream), [(1, 60)]);
    assert_eq!(floors(&cluster.0, other), []);
    let gone = cluster.0.plan_delete_stream(&stream.into(), 0).unwrap();
    cluster.apply(&gone);
    assert_eq!(floors(&cluster.0, stream), []);
}

#[test]
fn what_is_kept_for_kafka_clients_goes_to_nodes_that_they_reach() {
    let mut cluster = Cluster(ClusterState::default());
    let with_door = |node: NodeNumber| {
        let doors = Doors { kafka: format!("10.0.0.{node}:9092"), ..join(node, true).doors };
        Join { doors, ..join(node, true) }
    };
    let founded = cluster.0.plan_found([9; 16], &join(1, true), 0).unwrap();
    cluster.apply(&founded);
    for node in 2..=3 {
        let joined = cluster.0.plan_join(&with_door(node), 0).unwrap();
        cluster.apply(&joined);
    }
    let system = |cluster: &mut Cluster, name: &str| {
        let options = StreamOptions { streamlets: 16, replication: 3, ..StreamOptions::default() };
        let request = CreateStream { name: name.into(), options, if_not_exists: false };
        let most = Limits { streams: 100, nodes: 16 };
        let created = cluster.0.plan_create_stream(&request, &most, 0, true).unwrap();
        cluster.apply(&created);
        cluster.0.catalog.find(&name.into()).unwrap().id
    };
    let groups = system(&mut cluster, "_kera.cluster.groups");
    let users = cluster.stream("users", 6, 3);
    let owners = |cluster: &Cluster, stream, count| (0..count).map(|at| cluster.owner(stream, at)).collect::<Vec<_>>();
    assert!(!owners(&cluster, groups, 16).contains(&1));
    assert!(owners(&cluster, users, 6).contains(&1), "other streams go anywhere");
    assert!(cluster.0.rebalance(0).iter().all(|of| of.stream != groups), "not even to even out");
    cluster.fence(3);
    let recovered = cluster.0.plan_recover(3, 1).unwrap();
    cluster.apply(&recovered);
    assert_eq!(owners(&cluster, groups, 16), [2; 16]);
    // Somebody has to have them.
    cluster.fence(2);
    let recovered = cluster.0.plan_recover(2, 1).unwrap();
    cluster.apply(&recovered);
    assert_eq!(owners(&cluster, groups, 16), [1; 16]);
}
