//! A streamlet is rebuilt from the logs of those who had something of it, and no other log holds it back or is held by it.

use kera_coordinator::cluster::{ClusterState, Owner, Sources};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason};
use kera_format::options::ReplicationMode;
use kera_format::{StreamId, StreamletId, level};
use kera_protocol::{RebuildRange, StreamletsRebuilt};

use crate::support::copied::{apply, begin_view, cluster_in, fence, join};
use crate::support::moved;

/// The log of a node's first life.
fn log(node: NodeNumber) -> LogName {
    LogName { node, epoch: 1, log: 0 }
}

struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

impl Cluster {
    /// Five nodes, each with a log with two backups, and a stream of which each owns one streamlet.
    fn new(level: u32) -> Cluster {
        Cluster::of_stream(ReplicationMode::Sync, level)
    }

    fn of_stream(mode: ReplicationMode, level: u32) -> Cluster {
        let (mut state, stream) = cluster_in(5, 2, mode, level);
        (1..=5).for_each(|node| begin_view(&mut state, log(node), 1, vec![1 + node % 5, 1 + (node + 1) % 5]));
        Cluster { state, stream }
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        apply(&mut self.state, entries);
    }

    fn owner(&self, streamlet: u32) -> Owner {
        self.state.owner(self.stream, streamlet).expect("an owner")
    }

    /// The streamlet that a node owned at first.
    fn of(&self, node: NodeNumber) -> u32 {
        (0..5).find(|at| self.owner(*at).node == node).expect("each has one")
    }

    /// A node is lost in the life that it has, its logs end, and others get its streamlets.
    fn loses(&mut self, node: NodeNumber) {
        let epoch = self.state.node(node).unwrap().epoch;
        fence(&mut self.state, node);
        let ends: Vec<ClusterEntry> = (self.state.logs_of(node, epoch))
            .filter(|(_, state)| state.end.is_none())
            .map(|(log, _)| ClusterEntry::LogEnded { log, end: 5 })
            .collect();
        self.apply(&ends);
        let recovered = self.state.plan_recover(node, epoch).unwrap();
        self.apply(&recovered);
    }

    fn returns(&mut self, node: NodeNumber) {
        let joined = self.state.plan_join(&join(node, false), 0).unwrap();
        self.apply(&joined);
    }

    /// With its memory.
    fn comes_back(&mut self, node: NodeNumber) {
        let joined = self.state.plan_join(&join(node, true), 0).unwrap();
        self.apply(&joined);
    }

    fn rebuilds(&mut self, first: u32) {
        let Owner { node, epoch, owner_epoch, .. } = self.owner(first);
        let streamlets = vec![RebuildRange { stream: self.stream, first, count: 1, owner_epoch }];
        let rebuilt = self.state.plan_rebuilt(&StreamletsRebuilt { node, epoch, streamlets }).unwrap();
        self.apply(&rebuilt);
    }

    fn moves(&mut self, streamlet: u32, to: NodeNumber) {
        moved::moves(&mut self.state, self.stream, streamlet, to);
    }

    /// Of which of the nodes' first logs a streamlet may need something.
    fn needs(&self, streamlet: u32) -> Vec<NodeNumber> {
        let sources = self.state.rebuilt_from(self.stream, streamlet);
        (1..=5).filter(|node| sources.have(log(*node))).collect()
    }

    fn may_go(&self, log: LogName) -> bool {
        self.state.check(&ClusterEntry::LogGivenUp { log }).is_ok()
    }
}

fn sorted(mut nodes: Vec<NodeNumber>) -> Vec<NodeNumber> {
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_log_goes_although_somebody_rebuilds_who_has_not_said_from_what() {
    for (level, goes) in [(level::REBUILT_FROM, true), (level::REBUILT_FROM - 1, false)] {
        let mut cluster = Cluster::new(level);
        let (first, second) = (cluster.of(1), cluster.of(2));
        cluster.loses(1);
        cluster.loses(2);
        assert!(!cluster.may_go(log(1)) && !cluster.may_go(log(2)), "what was in them is rebuilt from them");
        cluster.rebuilds(first);
        assert!(cluster.owner(second).rebuilding);
        assert_eq!(cluster.may_go(log(1)), goes, "at level {level}");
        assert!(!cluster.may_go(log(2)));
        let planned = cluster.state.plan_give_up_lost().unwrap();
        assert_eq!(planned.contains(&ClusterEntry::LogGivenUp { log: log(1) }), goes, "at level {level}");
    }
}

/// Each owner that was lost before it had rebuilt everything is asked for what it wrote, and those before it for the rest.
#[test]
fn who_is_lost_while_it_rebuilds_adds_its_own_logs() {
    let mut cluster = Cluster::new(level::NEWEST);
    let at = cluster.of(1);
    assert_eq!(cluster.state.rebuilt_from(cluster.stream, at), Sources::Any, "it is not rebuilt");
    cluster.loses(1);
    let second = cluster.owner(at).node;
    assert_eq!(cluster.needs(at), [1]);
    cluster.loses(second);
    let third = cluster.owner(at).node;
    assert_eq!(cluster.needs(at), sorted(vec![1, second]));
    assert!(!cluster.may_go(log(1)) && !cluster.may_go(log(second)));
    // With what the third one has rebuilt it begins anew.
    cluster.rebuilds(at);
    assert!(cluster.may_go(log(1)));
    cluster.loses(third);
    let fourth = cluster.owner(at).node;
    assert_eq!(cluster.needs(at), [third], "and not {fourth}");
    assert!(!cluster.may_go(log(third)));
}

/// Two copies: all are killed and come back with what they had, and before that has been copied again one burns that had the only copy of what another one wrote in
/// its life before. That one has all of it itself, and takes over what it never had anything to do with.
#[test]
fn who_takes_over_needs_no_log_of_an_earlier_life_of_its_own() {
    for (level, needs) in [(level::LIVING_HOLDERS, false), (level::LIVING_HOLDERS - 1, true)] {
        let mut cluster = Cluster::new(level);
        let at = cluster.of(1);
        for node in 1..=5 {
            fence(&mut cluster.state, node);
            cluster.apply(&[ClusterEntry::LogEnded { log: log(node), end: 5 }]);
            cluster.comes_back(node);
            assert_eq!(cluster.state.node(node).unwrap().streamlets, 1, "it goes on with it");
        }
        cluster.loses(1);
        let owner = cluster.owner(at).node;
        assert_ne!(owner, 1);
        assert_eq!(cluster.needs(at), sorted(if needs { vec![1, owner] } else { vec![1] }), "at level {level}");
    }
}

#[test]
fn who_goes_on_with_what_it_was_rebuilding_needs_what_it_had_rebuilt() {
    // Also if the level was raised in between.
    for raised_between in [false, true] {
        let mut cluster = Cluster::new(if raised_between { level::LIVING_HOLDERS - 1 } else { level::LIVING_HOLDERS });
        let at = cluster.of(1);
        cluster.loses(1);
        let owner = cluster.owner(at).node;
        for _ in 0..2 {
            fence(&mut cluster.state, owner);
            cluster.comes_back(owner);
            assert!((cluster.owner(at).node, cluster.owner(at).rebuilding) == (owner, true));
        }
        if raised_between {
            cluster.apply(&[ClusterEntry::LevelRaised { level: level::LIVING_HOLDERS }]);
        }
        assert_eq!(cluster.needs(at), sorted(vec![1, owner]));
        let sources = cluster.state.rebuilt_from(cluster.stream, at);
        assert!(sources.have(LogName { node: owner, epoch: 2, log: 0 }), "{sources:?}");
    }
}

/// It has what it has written since it took it over, and rebuilds the rest from where that was: whatever becomes of its own log.
#[test]
fn who_goes_on_with_what_it_was_rebuilding_needs_none_of_its_own_logs() {
    let mut cluster = Cluster::new(level::NEWEST);
    let at = cluster.of(1);
    cluster.loses(1);
    let owner = cluster.owner(at).node;
    let taken_in = cluster.owner(at).owner_epoch;
    for life in 0..2 {
        fence(&mut cluster.state, owner);
        cluster.comes_back(owner);
        assert!((cluster.owner(at).node, cluster.owner(at).rebuilding) == (owner, true));
        assert_eq!(cluster.needs(at), [1]);
        // It has what it has written since then, and what is older it rebuilds.
        let held: Vec<_> = cluster.state.owners(cluster.stream).unwrap().held_of(at).collect();
        assert_eq!((held.len(), held[0].owner_epoch, held[1].owner_epoch), (life + 2, 1, taken_in), "{held:?}");
        assert!(held.iter().all(|held| held.node == owner && !held.lost), "{held:?}");
    }
    // Without its memory it is rebuilt from all of them.
    cluster.loses(owner);
    let sources = cluster.state.rebuilt_from(cluster.stream, at);
    let epoch = cluster.state.node(owner).unwrap().epoch;
    assert!(
        sources.have(log(1)) && (1..=epoch).all(|epoch| sources.have(LogName { node: owner, epoch, log: 0 })),
        "{sources:?}"
    );
}

/// What was under way of its own since it took it over stays, of an asynchronous stream; of what it wrote before that others have given the ordinals away.
#[test]
fn who_goes_on_with_what_it_was_rebuilding_keeps_nothing_that_was_under_way_before_it_took_it_over() {
    for (mode, level) in [
        (ReplicationMode::Async, level::NEWEST),
        (ReplicationMode::Async, level::OWN_LIVES - 1),
        (ReplicationMode::Sync, level::NEWEST),
    ] {
        let mut cluster = Cluster::of_stream(mode, level);
        let at = cluster.of(1);
        let own_from = |state: &ClusterState, node: NodeNumber| {
            let epoch = state.node(node).unwrap().epoch;
            let cut = state.to_be_cut(node, epoch).into_iter().find(|cut| cut.streamlet.0 == at).expect("it is cut");
            cut.own_from
        };
        // Who wrote to it first, and comes back, takes it over from whoever took it over.
        cluster.loses(1);
        let other = cluster.owner(at).node;
        cluster.comes_back(1);
        assert_eq!(own_from(&cluster.state, 1), None, "it is another node's");
        cluster.rebuilds(at);
        while cluster.owner(at).node != 1 {
            let owner = cluster.owner(at).node;
            cluster.loses(owner);
        }
        assert_ne!(other, 1);
        let kept = (mode == ReplicationMode::Async && level >= level::OWN_LIVES).then(|| cluster.owner(at).owner_epoch);
        let taken = cluster.state.clone();
        for _ in 0..2 {
            assert_eq!(own_from(&cluster.state, 1), kept, "since it took it over, whatever life that was in");
            fence(&mut cluster.state, 1);
            cluster.comes_back(1);
            assert!((cluster.owner(at).node, cluster.owner(at).rebuilding) == (1, true));
        }
        // A snapshot does not tell, and who was sent one has seen what was before.
        let in_snapshot_sent_after = |before: &ClusterState| {
            let mut copy = ClusterState::default();
            cluster.state.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
            copy.takes_place_of(before);
            own_from(&copy, 1)
        };
        assert_eq!(in_snapshot_sent_after(&ClusterState::default()), None);
        assert_eq!(in_snapshot_sent_after(&cluster.state), kept);
        assert_eq!(in_snapshot_sent_after(&taken), None, "others may have owned it in between");
        cluster.rebuilds(at);
        let epoch = cluster.state.node(1).unwrap().epoch;
        assert!(cluster.state.to_be_cut(1, epoch).iter().all(|cut| cut.streamlet.0 != at), "it goes on with it");
    }
}

#[test]
fn logs_of_a_later_life_of_who_owned_it_are_not_needed() {
    let mut cluster = Cluster::new(level::NEWEST);
    let at = cluster.of(1);
    cluster.loses(1);
    cluster.returns(1);
    let epoch = cluster.state.node(1).unwrap().epoch;
    let later = LogName { node: 1, epoch, log: 0 };
    begin_view(&mut cluster.state, later, 1, vec![2, 3]);
    cluster.loses(1);
    let sources = cluster.state.rebuilt_from(cluster.stream, at);
    assert!(sources.have(log(1)) && !sources.have(later), "{sources:?}");
    assert!(!cluster.may_go(log(1)) && cluster.may_go(later));
}

#[test]
fn logs_of_who_holds_groups_of_it_are_needed_once_it_has_lost_them() {
    for (level, needs) in [(level::LIVING_HOLDERS, vec![3]), (level::LIVING_HOLDERS - 1, vec![1, 3])] {
        let mut cluster = Cluster::new(level);
        let at = cluster.of(1);
        cluster.moves(at, 3);
        cluster.loses(3);
        let owner = cluster.owner(at).node;
        let needed: Vec<NodeNumber> =
            cluster.needs(at).into_iter().filter(|node| *node != owner || owner == 1).collect();
        assert_eq!(needed, needs, "other logs of the holder may tell of a part of what it has");
    }
    let mut cluster = Cluster::new(level::NEWEST);
    let at = cluster.of(1);
    cluster.moves(at, 3);
    // Others have fewer, and get it next.
    [cluster.of(2), cluster.of(4)].into_iter().for_each(|other| cluster.moves(other, 1));
    cluster.loses(3);
    assert!(cluster.may_go(log(1)), "who holds groups of it has them");
    // The holder loses it: whoever rebuilds gathers it next.
    cluster.loses(1);
    cluster.returns(1);
    assert!(!cluster.may_go(log(1)));
    cluster.rebuilds(at);
    let gathers = cluster.state.plan_gather().unwrap();
    assert!(matches!(gathers[..], [ClusterEntry::OwnerChanged { reason: OwnerReason::Gathered, .. }]), "{gathers:?}");
    cluster.apply(&gathers);
    assert!(cluster.needs(at).contains(&1) && !cluster.needs(at).contains(&3));
    assert!(!cluster.may_go(log(1)));
}

/// Of two that have lost what they held, one of them with a log that nobody can read.
#[test]
fn who_gathers_waits_for_logs_of_its_own_holders_alone() {
    for (level, waits) in [(level::REBUILT_FROM, false), (level::REBUILT_FROM - 1, true)] {
        let mut cluster = Cluster::new(level);
        let (held, other) = (cluster.of(4), cluster.of(2));
        cluster.moves(held, 5);
        cluster.moves(other, 5);
        for node in [4, 2] {
            fence(&mut cluster.state, node);
            cluster.apply(&[ClusterEntry::LogEnded { log: log(node), end: 5 }]);
        }
        // The backups of the second one's log are 3 and 4, those of the first one's 5 and 1.
        fence(&mut cluster.state, 3);
        let gathered: Vec<u32> = (cluster.state.plan_gather().unwrap().iter())
            .filter_map(|entry| match entry {
                ClusterEntry::OwnerChanged { first, .. } => Some(*first),
                _ => None,
            })
            .collect();
        assert!(!gathered.contains(&other), "its owner would wait without taking writes");
        assert_eq!(gathered, if waits { vec![] } else { vec![held] }, "at level {level}");
    }
}

#[test]
fn what_was_rebuilt_below_the_level_needs_any_log_until_it_is_whole() {
    let mut cluster = Cluster::new(level::REBUILT_FROM - 1);
    let (early, late) = (cluster.of(1), cluster.of(2));
    cluster.loses(1);
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::REBUILT_FROM }]);
    assert_eq!(cluster.state.rebuilt_from(cluster.stream, early), Sources::Any);
    let second = cluster.owner(early).node;
    cluster.loses(2);
    assert!(matches!(cluster.state.rebuilt_from(cluster.stream, late), Sources::Of(_)));
    if second != 2 {
        cluster.loses(second);
    }
    assert_eq!(cluster.state.rebuilt_from(cluster.stream, early), Sources::Any, "its next owner does not know either");
    let parts =
        cluster.state.by_sources(vec![(cluster.stream, StreamletId(early), 1), (cluster.stream, StreamletId(late), 1)]);
    assert_eq!(parts.len(), 2, "they wait for different logs: {parts:?}");
}

#[test]
fn what_is_rebuilt_from_whom_is_said_in_snapshots_alone() {
    let cluster = Cluster::new(level::NEWEST);
    let entry = ClusterEntry::RebuiltFrom { stream: cluster.stream, first: 0, count: 1, node: 2, epoch: 1 };
    assert!(cluster.state.check(&entry).unwrap_err().to_string().contains("snapshots"));
}
