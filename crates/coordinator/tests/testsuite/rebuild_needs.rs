//! Logs of lost nodes go although others are rebuilt from, when all who rebuild have said what they need; and not before.

use kera_coordinator::cluster::{ClusterState, Owner};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, REBUILD_LOGS_MAX, REBUILD_RUNS_MAX, RebuildRun};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::{RebuildNeeds, RebuildRange, StreamletsRebuilt};

use crate::support::copied::{self, begin_view, fence, join};

/// Below the level from which on it is known of whose logs a streamlet is rebuilt: it may be any that no owner has said not to need.
const FROM_ANY: u32 = level::REBUILT_FROM - 1;

/// The log of a node's first life.
fn log(node: NodeNumber) -> LogName {
    LogName { node, epoch: 1, log: 0 }
}

fn id(log: LogName) -> LogId {
    LogId::from(log)
}

fn given_up(node: NodeNumber) -> ClusterEntry {
    ClusterEntry::LogGivenUp { log: log(node) }
}

struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

impl Cluster {
    /// Five nodes, each with a log, and a stream of which each owns one streamlet. Nodes 1 and 2 are lost with their logs, and what they owned is
    /// others'.
    fn with_losses(level: u32) -> Cluster {
        let (mut state, stream) = copied::cluster(5, 2, level);
        // Their backups are among the others.
        (1..=5).for_each(|node| begin_view(&mut state, log(node), 1, vec![3 + (node + 1) % 3]));
        let mut cluster = Cluster { state, stream };
        cluster.lose(1);
        cluster.lose(2);
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    /// A node is fenced, its log ends, and others get its streamlets.
    fn lose(&mut self, node: NodeNumber) {
        fence(&mut self.state, node);
        self.apply(&[ClusterEntry::LogEnded { log: log(node), end: 5 }]);
        let recovered = self.state.plan_recover(node, 1).unwrap();
        self.apply(&recovered);
    }

    /// Streamlets that are rebuilt, with their owners.
    fn rebuilding(&self) -> Vec<(u32, Owner)> {
        let owners = self.state.owners(self.stream).unwrap();
        let all = (0..5).filter_map(|at| Some((at, owners.owner(at)?)));
        all.filter(|(_, owner)| owner.rebuilding).collect()
    }

    /// What a node says that has taken over all that it is to, and needs these logs for it.
    fn said(&self, node: NodeNumber, logs: &[LogName]) -> RebuildNeeds {
        let own = self.rebuilding().into_iter().filter(|(_, owner)| owner.node == node);
        let range = |(first, owner): (u32, Owner)| RebuildRange {
            stream: self.stream,
            first,
            count: 1,
            owner_epoch: owner.owner_epoch,
        };
        let logs = logs.iter().map(|log| id(*log)).collect();
        RebuildNeeds { node, epoch: 1, streamlets: own.map(range).collect(), logs }
    }

    fn says(&mut self, said: &RebuildNeeds) {
        let entries = self.state.plan_needs(said).unwrap();
        self.apply(&entries);
        assert_eq!(self.state.plan_needs(said).unwrap(), [], "asking twice is answered like asking once");
    }

    /// All who rebuild say that they need these logs.
    fn all_say(&mut self, logs: &[LogName]) {
        let nodes: Vec<NodeNumber> = self.rebuilding().iter().map(|(_, owner)| owner.node).collect();
        for node in nodes {
            let said = self.said(node, logs);
            self.says(&said);
        }
    }

    fn go(&self) -> Vec<ClusterEntry> {
        self.state.plan_give_up_lost().unwrap()
    }

    fn refuses(&self, entry: &ClusterEntry, words: &str) {
        let refused = self.state.check(entry).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_log_goes_that_nobody_needs_who_rebuilds() {
    let mut cluster = Cluster::with_losses(FROM_ANY);
    let owners: Vec<NodeNumber> = cluster.rebuilding().iter().map(|(_, owner)| owner.node).collect();
    assert_eq!(owners.len(), 2, "what two lost nodes owned");
    assert_ne!(owners[0], owners[1]);
    assert_eq!(cluster.go(), [], "nobody has said anything");
    let said = cluster.said(owners[0], &[log(2)]);
    cluster.says(&said);
    assert_eq!(cluster.go(), [], "one of two has");
    cluster.refuses(&given_up(1), &format!("node {} still rebuilds streamlets, perhaps from", owners[1]));
    let said = cluster.said(owners[1], &[log(2)]);
    cluster.says(&said);
    assert_eq!(cluster.go(), [given_up(1)]);
    cluster.refuses(&given_up(2), "rebuilds from log 0 of node 2");
    assert!(cluster.state.plan_give_up_log(log(2)).is_err(), "whoever asks for it");
    let over = cluster.go();
    cluster.apply(&over);
    assert!(!cluster.rebuilding().is_empty());
    assert_eq!(cluster.go(), []);
}

#[test]
fn what_is_taken_over_later_and_not_spoken_of_keeps_all_logs() {
    let mut cluster = Cluster::with_losses(FROM_ANY);
    cluster.all_say(&[]);
    assert_eq!(cluster.go(), [given_up(1), given_up(2)]);
    // A third one is lost that rebuilt nothing: what it owned comes to those who have said something, and not of this.
    let (_, owner) = cluster.rebuilding()[0];
    let idle = (3..=5).find(|node| cluster.rebuilding().iter().all(|(_, owner)| owner.node != *node)).unwrap();
    cluster.lose(idle);
    assert!(cluster.rebuilding().len() > 2 && cluster.rebuilding().iter().any(|(_, of)| of.node == owner.node));
    assert_eq!(cluster.go(), []);
    cluster.refuses(&given_up(1), "perhaps from");
    cluster.all_say(&[log(idle)]);
    assert_eq!(cluster.go(), [given_up(1), given_up(2)]);
}

#[test]
fn what_was_said_in_an_earlier_owner_epoch_does_not_count() {
    let mut cluster = Cluster::with_losses(FROM_ANY);
    cluster.all_say(&[log(2)]);
    let (at, owner) = cluster.rebuilding()[0];
    let early = RebuildRange { stream: cluster.stream, first: at, count: 1, owner_epoch: owner.owner_epoch - 1 };
    let said = RebuildNeeds { streamlets: vec![early], ..cluster.said(owner.node, &[]) };
    // A node that says it late is not heard at all, and a coordinator that has it in its log takes it for nothing.
    let run = RebuildRun { stream: cluster.stream, first: at, count: 1, owner_epoch: owner.owner_epoch - 1 };
    let forgets = cluster.state.plan_needs(&said).unwrap();
    assert_eq!(forgets, [ClusterEntry::RebuildNeeds { node: owner.node, epoch: 1, runs: vec![], logs: vec![] }]);
    let (node, epoch, logs) = (owner.node, 1, Vec::new());
    cluster.apply(&[ClusterEntry::RebuildNeeds { node, epoch, runs: vec![run], logs }]);
    assert_eq!(cluster.go(), []);
    cluster.refuses(&given_up(1), "perhaps from");
    cluster.refuses(&given_up(2), "perhaps from");
}

#[test]
fn what_a_lost_owner_has_said_is_forgotten() {
    for comes_back in [false, true] {
        let mut cluster = Cluster::with_losses(level::NEWEST);
        cluster.all_say(&[]);
        let (_, owner) = cluster.rebuilding()[0];
        if comes_back {
            let joined = cluster.state.plan_join(&join(owner.node, true), 0).unwrap();
            cluster.apply(&joined);
        } else {
            let fenced = cluster.state.plan_fence(owner.node, 1).unwrap();
            cluster.apply(&fenced);
        }
        assert_eq!(cluster.state.needs(owner.node), None);
        assert_eq!(cluster.go(), []);
        cluster.refuses(&given_up(1), "perhaps from");
        // It says it again, late: it is over.
        let said = cluster.said(owner.node, &[]);
        assert!(cluster.state.plan_needs(&said).is_err());
    }
}

#[test]
fn what_is_rebuilt_needs_nothing() {
    let mut cluster = Cluster::with_losses(level::NEWEST);
    cluster.all_say(&[log(1), log(2)]);
    assert_eq!(cluster.go(), []);
    for (first, owner) in cluster.rebuilding() {
        let streamlets = vec![RebuildRange { stream: cluster.stream, first, count: 1, owner_epoch: owner.owner_epoch }];
        let rebuilt = StreamletsRebuilt { node: owner.node, epoch: owner.epoch, streamlets };
        let entries = cluster.state.plan_rebuilt(&rebuilt).unwrap();
        cluster.apply(&entries);
        assert_eq!(cluster.state.needs(owner.node), None);
    }
    assert_eq!(cluster.go(), [given_up(1), given_up(2)]);
}

#[test]
fn one_report_speaks_of_several_streamlets_or_of_none_that_it_does_not_name() {
    let mut cluster = Cluster::with_losses(FROM_ANY);
    cluster.all_say(&[]);
    let owners: Vec<NodeNumber> = cluster.rebuilding().iter().map(|(_, owner)| owner.node).collect();
    let idle = (3..=5).find(|node| !owners.contains(node)).unwrap();
    cluster.lose(idle);
    let node = cluster
        .rebuilding()
        .iter()
        .map(|(_, owner)| owner.node)
        .max_by_key(|node| cluster.said(*node, &[]).streamlets.len());
    let node = node.unwrap();
    let all = cluster.said(node, &[]);
    assert!(all.streamlets.len() > 1, "{all:?}");
    for at in 0..all.streamlets.len() {
        let mut some = all.clone();
        some.streamlets.remove(at);
        cluster.all_say(&[]);
        assert_ne!(cluster.go(), []);
        cluster.says(&some);
        assert_eq!(cluster.go(), [], "streamlet {} may need any log", all.streamlets[at].first);
    }
}

#[test]
fn below_its_level_nothing_is_said_and_all_logs_wait() {
    let mut cluster = Cluster::with_losses(level::REBUILD_NEEDS - 1);
    assert!(!cluster.state.takes_needs());
    let (_, owner) = cluster.rebuilding()[0];
    let refused = cluster.state.plan_needs(&cluster.said(owner.node, &[])).unwrap_err().to_string();
    assert!(refused.contains("this needs level 7"), "{refused}");
    assert_eq!(cluster.go(), []);
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::REBUILD_NEEDS }]);
    cluster.all_say(&[]);
    assert_eq!(cluster.go(), [given_up(1), given_up(2)]);
}

#[test]
fn what_is_too_much_is_refused() {
    let cluster = Cluster::with_losses(level::NEWEST);
    let (_, owner) = cluster.rebuilding()[0];
    let run = RebuildRun { stream: cluster.stream, first: 0, count: 1, owner_epoch: owner.owner_epoch };
    let (node, epoch) = (owner.node, 1);
    let runs = vec![run; REBUILD_RUNS_MAX + 1];
    cluster.refuses(&ClusterEntry::RebuildNeeds { node, epoch, runs, logs: Vec::new() }, "the limit is 1000");
    let logs = vec![log(1); REBUILD_LOGS_MAX + 1];
    cluster.refuses(&ClusterEntry::RebuildNeeds { node, epoch, runs: Vec::new(), logs }, "the limit is 1000");
}

/// A node that came back asks for its own logs of before.
#[test]
fn a_node_has_its_own_old_logs_given_up_that_nobody_needs() {
    let mut cluster = Cluster::with_losses(level::NEWEST);
    let joined = cluster.state.plan_join(&join(1, true), 0).unwrap();
    cluster.apply(&joined);
    assert_eq!(cluster.state.own_lost_logs(1, 2), []);
    cluster.all_say(&[log(1)]);
    assert_eq!(cluster.state.own_lost_logs(1, 2), []);
    cluster.all_say(&[log(2)]);
    assert_eq!(cluster.state.own_lost_logs(1, 2), [log(1)]);
    assert_eq!(cluster.state.own_lost_logs(2, 1), []);
}
