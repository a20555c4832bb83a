//! Blocks of lost logs that nobody has any more: a person may give them up, and nothing as long as somebody could have it.

use kera_coordinator::cluster::{AgreedEnd, ClusterState};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::{AcceptLogLoss, MissingBlocks, RebuildNeeds, RebuildRange, StreamletRange};

use crate::support::copied::{self, begin_view, fence};

/// The log of node 1: blocks 1 to 89 are at nodes 3 and 4, those from 90 on at 2 and 3.
const LOST: LogName = LogName { node: 1, epoch: 1, log: 0 };

struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

impl Cluster {
    /// Five nodes with a streamlet each.
    fn new(level: u32) -> Cluster {
        let (mut state, stream) = copied::cluster(5, 3, level);
        begin_view(&mut state, LOST, 1, vec![3, 4]);
        begin_view(&mut state, LOST, 90, vec![2, 3]);
        Cluster { state, stream }
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    fn joins(&mut self, node: NodeNumber) {
        copied::joins(&mut self.state, node, false);
    }

    fn fences(&mut self, lost: &[NodeNumber]) {
        lost.iter().for_each(|node| fence(&mut self.state, *node));
    }

    fn ends(&mut self, end: u64) {
        let ended = self.state.plan_end_log(LOST, AgreedEnd { end, at_all: false, certain: true }).unwrap();
        self.apply(&ended);
    }

    fn recovers(&mut self, node: NodeNumber) {
        let recovered = self.state.plan_recover(node, 1).unwrap();
        self.apply(&recovered);
    }

    /// The streamlet that is being rebuilt, its owner and its owner epoch.
    fn rebuilt(&self) -> (u32, NodeNumber, u32) {
        let runs = self.state.owners(self.stream).unwrap().runs();
        let run = runs.iter().find(|run| run.owner.rebuilding).expect("somebody rebuilds");
        (run.first, run.owner.node, run.owner.owner_epoch)
    }

    fn accepts(&mut self, gone: &[NodeNumber]) -> Vec<ClusterEntry> {
        let entries = self.state.plan_accept_log_loss(&says(gone)).unwrap();
        self.apply(&entries);
        entries
    }

    fn refuses(&self, gone: &[NodeNumber], words: &str) {
        let refused = self.state.plan_accept_log_loss(&says(gone)).expect_err("it may be there").to_string();
        assert!(refused.contains(words), "{refused}");
    }

    fn refuses_entry(&self, view: u32, words: &str) {
        let refused = self.state.check(&ClusterEntry::ViewGivenUp { log: LOST, view }).expect_err("it breaks a rule");
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

fn says(gone: &[NodeNumber]) -> AcceptLogLoss {
    AcceptLogLoss { log: LogId { node: 1, epoch: 1, vlog: 0 }, gone: gone.to_vec() }
}

fn blocks(view: u32, first: u64, last: u64, backups: &[NodeNumber]) -> MissingBlocks {
    MissingBlocks { view, first, last, backups: backups.to_vec() }
}

#[test]
fn a_log_without_an_end_ends_where_its_newest_view_began_once_all_who_had_it_are_said_to_be_gone() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.refuses(&[2, 3], "node 1 is live and writes to log 0 of node 1 epoch 1");
    cluster.fences(&[1]);
    cluster.refuses(&[1, 2, 3], "has no end yet, and nodes 2, 3 can say it");
    assert_eq!(cluster.state.lost_log_infos(10).logs, [], "somebody is there who has it");
    cluster.fences(&[2, 3]);
    let infos = cluster.state.lost_log_infos(10).logs;
    let [info] = &infos[..] else { panic!("{infos:?}") };
    assert_eq!((info.end, &info.missing[..]), (0, &[blocks(2, 90, 0, &[2, 3])][..]), "4 has what was before");
    assert_eq!((&info.lost_nodes[..], &info.live_nodes[..]), (&[1, 2, 3][..], &[][..]));
    let (stream, owned) = (cluster.stream, cluster.state.owners(cluster.stream).unwrap().runs());
    let first = owned.iter().find(|run| run.owner.node == 1).expect("it owned one").first;
    assert_eq!(info.streamlets, [StreamletRange { stream, first, count: 1 }]);

    cluster.refuses(&[], "nodes 1, 2, 3 may come back with what is missing of log 0 of node 1 epoch 1");
    cluster.refuses(&[2, 3], "node 1 may come back");
    cluster.refuses(&[3, 1], "node 2 may come back with what is missing of log 0 of node 1 epoch 1: start it");
    cluster.refuses(&[3, 1], "--gone 1,2,3");
    cluster.refuses(&[1, 2, 3, 4], "node 4 is live, so it is not gone");
    assert_eq!(cluster.state.plan_recover(1, 1).unwrap(), [], "what was in it waits");
    assert_eq!(cluster.accepts(&[1, 2, 3]), [ClusterEntry::LogEnded { log: LOST, end: 89 }]);
    assert_eq!(cluster.accepts(&[1, 2, 3]), [], "asking twice is answered like asking once");
    cluster.recovers(1);
    assert_eq!(cluster.rebuilt().0, first, "others go on with what was in it");
    assert_eq!(cluster.state.lost_log_infos(10).logs, []);
}

#[test]
fn a_log_whose_node_is_back_is_not_given_up_for_it_may_have_all_that_was_in_it() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.fences(&[1, 2, 3]);
    cluster.joins(1);
    let info = cluster.state.lost_log_infos(10).logs.remove(0);
    assert_eq!((&info.lost_nodes[..], &info.live_nodes[..]), (&[2, 3][..], &[1][..]));
    cluster.refuses(&[2, 3], "node 1 is live again, and may have all that was in log 0 of node 1 epoch 1");
    cluster.refuses(&[1, 2, 3], "node 1 is live, so it is not gone");
    cluster.fences(&[1]);
    assert_eq!(cluster.accepts(&[1, 2, 3]), [ClusterEntry::LogEnded { log: LOST, end: 89 }]);
}

#[test]
fn blocks_of_a_log_with_an_end_are_given_up_view_by_view_and_only_those_that_nobody_has() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.fences(&[1]);
    cluster.ends(95);
    cluster.recovers(1);
    let (streamlet, owner, _) = cluster.rebuilt();
    assert_eq!(cluster.accepts(&[1]), [], "all of it is there");
    cluster.refuses_entry(1, "node 3 is live and has view 1");
    cluster.fences(&[3, 4]);
    let infos = cluster.state.lost_log_infos(10).logs;
    assert_eq!((infos[0].end, &infos[0].missing[..]), (95, &[blocks(1, 1, 89, &[3, 4])][..]), "2 has the rest");
    let rebuilds = infos[0].streamlets.iter().any(|of| (of.first..of.first + of.count).contains(&streamlet));
    assert!(rebuilds, "its owner has not said that it does not need the log: {infos:?}");
    cluster.refuses_entry(2, "node 2 is live and has view 2");
    if owner == 2 || owner == 5 {
        let asked = cluster.state.plan_accept_loss(&cluster.stream.into(), streamlet).unwrap_err().to_string();
        assert!(asked.contains("blocks 1 to 89 (at nodes 3, 4) of log 0 of node 1 epoch 1"), "{asked}");
        assert!(asked.contains("kera log accept-loss 1/1/0"), "{asked}");
    }
    cluster.refuses(&[1, 3], "node 4 may come back");
    assert_eq!(cluster.accepts(&[1, 3, 4]), [ClusterEntry::ViewGivenUp { log: LOST, view: 1 }]);
    assert_eq!(cluster.accepts(&[1, 3, 4]), []);
    let views = &cluster.state.logs()[&LOST].views;
    assert_eq!((&views[0].backups[..], &views[1].backups[..]), (&[][..], &[2, 3][..]));
    cluster.fences(&[2]);
    assert_eq!(cluster.accepts(&[1, 2, 3]), [ClusterEntry::ViewGivenUp { log: LOST, view: 2 }], "the newest as well");
    assert_eq!(cluster.state.with_unused_ends(), [], "and nobody is asked for its end any more");
}

#[test]
fn an_owner_that_does_not_need_the_log_does_not_wait_for_it() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.fences(&[1]);
    cluster.ends(95);
    cluster.recovers(1);
    let (first, node, owner_epoch) = cluster.rebuilt();
    let streamlets = vec![RebuildRange { stream: cluster.stream, first, count: 1, owner_epoch }];
    let said = RebuildNeeds { node, epoch: 1, streamlets, logs: Vec::new() };
    let entries = cluster.state.plan_needs(&said).unwrap();
    cluster.apply(&entries);
    let others: Vec<NodeNumber> = (2..=4).filter(|other| *other != node).collect();
    cluster.fences(&others);
    let infos = cluster.state.lost_log_infos(10).logs;
    let waits = infos.iter().flat_map(|info| &info.streamlets).any(|of| of.first == first);
    assert!(!waits, "{infos:?}");
}

/// Nodes of an earlier version refuse to give up a view of a lost log, and understand an end.
#[test]
fn below_the_level_a_log_ends_and_its_blocks_stay() {
    let mut cluster = Cluster::new(level::LOST_BLOCKS - 1);
    cluster.fences(&[1, 2, 3, 4]);
    assert_eq!(cluster.accepts(&[1, 2, 3, 4]), [ClusterEntry::LogEnded { log: LOST, end: 89 }]);
    cluster.refuses(&[1, 2, 3, 4], "giving up blocks of a lost log needs level 12");
    cluster.refuses_entry(1, "is fenced");
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::LOST_BLOCKS }]);
    assert_eq!(cluster.accepts(&[1, 2, 3, 4]), [ClusterEntry::ViewGivenUp { log: LOST, view: 1 }]);
}

#[test]
fn all_of_a_log_goes_at_once_where_nothing_is_left() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.fences(&[1, 2, 3, 4]);
    cluster.refuses_entry(2, "says where it ends");
    let late = cluster.state.plan_give_up_view(LOST, 1).unwrap_err().to_string();
    assert!(late.contains("node 1 epoch 1 is over"), "what its broker asked for is no word of a person: {late}");
    let given_up = [ClusterEntry::LogEnded { log: LOST, end: 89 }, ClusterEntry::ViewGivenUp { log: LOST, view: 1 }];
    assert_eq!(cluster.accepts(&[1, 2, 3, 4]), given_up);
    cluster.recovers(1);
    cluster.joins(1);
    cluster.refuses_entry(1, "node 1 is live, and may have what was in log 0 of node 1 epoch 1");
    let other = AcceptLogLoss { log: LogId { node: 5, epoch: 9, vlog: 0 }, gone: Vec::new() };
    let refused = cluster.state.plan_accept_log_loss(&other).unwrap_err().to_string();
    assert!(refused.contains("there is no log 0 of node 5 epoch 9; `kera log list`"), "{refused}");
}
