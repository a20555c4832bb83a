//! Blocks of lost logs that one streamlet goes on without, as a person has said; the others wait for them as before.

use kera_coordinator::cluster::{AgreedEnd, ClusterState, Views};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId, level};
use kera_protocol::{AcceptStreamletLoss, RebuildNeeds, RebuildRange};

use crate::support::copied::{self, begin_view, fence};

/// The log of node 1: blocks 1 to 89 are at nodes 3 and 4, those up to 95 at 2 and 3.
const LOST: LogName = LogName { node: 1, epoch: 1, log: 0 };

struct Cluster {
    state: ClusterState,
    stream: StreamId,
    /// What node 1 had, its owner and its owner epoch.
    streamlet: u32,
    owner: NodeNumber,
    owner_epoch: u32,
}

impl Cluster {
    /// Five nodes, of which the first one is lost.
    fn new(level: u32) -> Cluster {
        let (mut state, stream) = copied::cluster(5, 3, level);
        begin_view(&mut state, LOST, 1, vec![3, 4]);
        begin_view(&mut state, LOST, 90, vec![2, 3]);
        fence(&mut state, 1);
        let ended = state.plan_end_log(LOST, AgreedEnd { end: 95, at_all: true, certain: true }).unwrap();
        copied::apply(&mut state, &ended);
        let mut cluster = Cluster { state, stream, streamlet: 0, owner: 0, owner_epoch: 0 };
        cluster.recovers(1);
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    /// Others take over what a node had.
    fn recovers(&mut self, node: NodeNumber) {
        let recovered = self.state.plan_recover(node, 1).unwrap();
        self.apply(&recovered);
        let runs = self.state.owners(self.stream).unwrap().runs();
        let is_it = |first: u32| self.owner == 0 || first == self.streamlet;
        let run = runs.iter().find(|run| run.owner.rebuilding && is_it(run.first)).expect("somebody rebuilds");
        (self.streamlet, self.owner, self.owner_epoch) = (run.first, run.owner.node, run.owner.owner_epoch);
    }

    fn asks(&self, (first, last): (u64, u64), gone: &[NodeNumber]) -> AcceptStreamletLoss {
        let (log, streamlet) = (LogId::from(LOST), StreamletId(self.streamlet));
        AcceptStreamletLoss { stream: self.stream, streamlet, log, first, last, gone: gone.to_vec() }
    }

    fn accepts(&mut self, blocks: (u64, u64), gone: &[NodeNumber]) -> Vec<ClusterEntry> {
        let entries = self.state.plan_accept_streamlet_loss(&self.asks(blocks, gone)).unwrap();
        self.apply(&entries);
        entries
    }

    fn refuses(&self, asked: &AcceptStreamletLoss, words: &str) {
        let refused = self.state.plan_accept_streamlet_loss(asked).expect_err("it may be there").to_string();
        assert!(refused.contains(words), "{refused}");
    }

    fn entry(&self, view: u32) -> ClusterEntry {
        let Cluster { stream, streamlet, owner_epoch, .. } = *self;
        ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log: LOST, view }
    }

    fn given_up(&self, streamlet: u32) -> Vec<(LogName, u32, u32)> {
        self.state.given_up_for(self.stream, streamlet).collect()
    }
}

#[test]
fn one_streamlet_goes_on_without_blocks_whose_backups_are_live_and_the_person_repeats_which() {
    let mut cluster = Cluster::new(level::NEWEST);
    let of_view = cluster.asks((1, 89), &[1]);
    cluster.refuses(&cluster.asks((1, 95), &[1]), "views have blocks 1-89, 90-95: say again which of them");
    cluster
        .refuses(&cluster.asks((1, 89), &[]), "node 1 may come back with what is missing of log 0 of node 1 epoch 1");
    cluster.refuses(&cluster.asks((1, 89), &[1, 3]), "node 3 is live, so it is not gone");
    let other = (0..5).find(|at| *at != cluster.streamlet).unwrap();
    cluster.refuses(&AcceptStreamletLoss { streamlet: StreamletId(other), ..of_view.clone() }, "is not being rebuilt");
    let unknown = LogId { node: 1, epoch: 9, vlog: 0 };
    cluster.refuses(&AcceptStreamletLoss { log: unknown, ..of_view }, "there is no log 0 of node 1 epoch 9");

    let (streamlet, owner_epoch) = (cluster.streamlet, cluster.owner_epoch);
    let entry = cluster.entry(1);
    assert_eq!(cluster.accepts((1, 89), &[1]), [entry]);
    assert_eq!(cluster.accepts((1, 89), &[1]), [], "asking twice is answered like asking once");
    assert_eq!(cluster.given_up(streamlet), [(LOST, 1, owner_epoch)]);
    assert_eq!(cluster.given_up(other), [], "nobody else goes on without");
    assert_eq!(cluster.state.logs()[&LOST].views[0].backups, [3, 4], "and the backups keep what they have");
    let entry = cluster.entry(2);
    assert_eq!(cluster.accepts((90, 95), &[1]), [entry]);
    assert_eq!(cluster.given_up(streamlet).len(), 2);
}

#[test]
fn a_backup_that_may_come_back_is_named_and_the_log_s_node_is_not_live() {
    let mut cluster = Cluster::new(level::NEWEST);
    let backup = if cluster.owner == 4 { 3 } else { 4 };
    fence(&mut cluster.state, backup);
    cluster.refuses(&cluster.asks((1, 89), &[1]), &format!("node {backup} may come back"));
    copied::joins(&mut cluster.state, 1, false);
    cluster.refuses(
        &cluster.asks((1, 89), &[backup]),
        "node 1 is live again, and may have all that was in log 0 of node 1",
    );
    fence(&mut cluster.state, 1);
    let entry = cluster.entry(1);
    assert_eq!(cluster.accepts((1, 89), &[1, backup]), [entry]);
}

#[test]
fn it_stays_for_later_owners_until_the_streamlet_is_rebuilt() {
    let mut cluster = Cluster::new(level::NEWEST);
    let (streamlet, said_in) = (cluster.streamlet, cluster.owner_epoch);
    cluster.accepts((1, 89), &[1]);
    let lost = cluster.owner;
    fence(&mut cluster.state, lost);
    cluster.refuses(&cluster.asks((90, 95), &[1, 2, 3]), "and is lost: nobody rebuilds it");
    cluster.recovers(lost);
    assert_eq!(cluster.streamlet, streamlet);
    assert!(cluster.owner_epoch > said_in);
    assert_eq!(cluster.given_up(streamlet), [(LOST, 1, said_in)], "the next owner asks for it no more");
    let gone: Vec<NodeNumber> = [1, lost].into();
    assert_eq!(cluster.accepts((1, 89), &gone), [], "that is done");
    let (stream, owner_epoch, node) = (cluster.stream, cluster.owner_epoch, cluster.owner);
    let rebuilt = ClusterEntry::StreamletsRebuilt { stream, first: streamlet, count: 1, node, epoch: 1, owner_epoch };
    cluster.apply(&[rebuilt]);
    assert_eq!(cluster.given_up(streamlet), []);
    assert!(!cluster.state.is_rebuilt(stream, streamlet));
    cluster.refuses(&cluster.asks((1, 89), &gone), "is not being rebuilt: it waits for no block");
}

#[test]
fn what_a_streamlet_needs_nothing_of_is_not_given_up_for_it() {
    let mut cluster = Cluster::new(level::NEWEST);
    let Cluster { stream, streamlet: first, owner: node, owner_epoch, .. } = cluster;
    let streamlets = vec![RebuildRange { stream, first, count: 1, owner_epoch }];
    let said = RebuildNeeds { node, epoch: 1, streamlets, logs: Vec::new() };
    let entries = cluster.state.plan_needs(&said).unwrap();
    cluster.apply(&entries);
    cluster.refuses(&cluster.asks((1, 89), &[1]), "needs nothing of log 0 of node 1 epoch 1");
}

#[test]
fn below_the_level_nothing_is_given_up_for_one_streamlet() {
    let mut cluster = Cluster::new(level::LOST_FOR_ONE - 1);
    let words =
        format!("the cluster is at level {}, and this needs level {}", level::LOST_FOR_ONE - 1, level::LOST_FOR_ONE);
    cluster.refuses(&cluster.asks((1, 89), &[1]), &words);
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::LOST_FOR_ONE }]);
    let entry = cluster.entry(1);
    assert_eq!(cluster.accepts((1, 89), &[1]), [entry]);
}

#[test]
fn what_was_given_up_for_one_streamlet_is_left_out_for_it_alone() {
    let mut cluster = Cluster::new(level::NEWEST);
    cluster.accepts((1, 89), &[1]);
    let Cluster { ref state, stream, streamlet, owner_epoch, .. } = cluster;
    let owned = |at| (stream, StreamletId(at), owner_epoch);
    let (one, other) = (owned(streamlet), owned((0..5).find(|at| *at != streamlet).unwrap()));
    assert_eq!(state.taken_alone(vec![one, other]), [[other], [one]]);
    assert_eq!(state.taken_alone(vec![other]), [[other]]);
    let views = Views::from([(LogId::from(LOST), 1)]);
    let left_out = |at, owner_epoch| state.views_left_out((stream, StreamletId(at)), owner_epoch);
    assert_eq!(left_out(streamlet, owner_epoch), (Views::new(), views.clone()), "it is asked for once more");
    assert_eq!(left_out(streamlet, owner_epoch + 1), (views.clone(), views), "an owner may have gone on without");
    assert_eq!(left_out(other.1.0, owner_epoch), (Views::new(), Views::new()));
}
