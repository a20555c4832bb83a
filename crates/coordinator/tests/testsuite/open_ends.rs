//! A log of a lost node without an end holds back those alone who may need something of it, and goes when its node has copied again what it had.

use kera_coordinator::cluster::{ClusterState, Owner};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::{RebuildNeeds, RebuildRange};

use crate::support::copied::{apply, begin_view, cluster, fence, join};
use crate::support::moved;

/// The log of node 1, which nobody can show the end of: its backup is gone.
const OPEN: LogName = LogName { node: 1, epoch: 1, log: 0 };
/// That of node 3, which is lost later.
const ENDED: LogName = LogName { node: 3, epoch: 1, log: 0 };
const END: ClusterEntry = ClusterEntry::LogEnded { log: ENDED, end: 5 };

struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

impl Cluster {
    /// Five nodes, of which the fifth burns; it is the backup of node 1, which is killed and goes on with all that it had. Its log stays without an end.
    fn new(level: u32) -> Cluster {
        let mut cluster = Cluster::without_loss(level);
        cluster.loses_its_end();
        cluster
    }

    fn without_loss(level: u32) -> Cluster {
        let (mut state, stream) = cluster(5, 2, level);
        begin_view(&mut state, OPEN, 1, vec![5]);
        begin_view(&mut state, ENDED, 1, vec![4]);
        Cluster { state, stream }
    }

    fn loses_its_end(&mut self) {
        fence(&mut self.state, 5);
        fence(&mut self.state, 1);
        self.returns(1, true);
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        apply(&mut self.state, entries);
    }

    fn returns(&mut self, node: NodeNumber, has_all: bool) {
        let joined = self.state.plan_join(&join(node, has_all), 0).unwrap();
        self.apply(&joined);
    }

    /// The streamlet that a node owns.
    fn of(&self, node: NodeNumber) -> u32 {
        (0..5).find(|at| self.owner(*at).node == node).expect("each has one")
    }

    fn waits(&self, streamlet: u32) -> bool {
        self.state.waits_for_ends()(self.stream, streamlet)
    }

    fn owner(&self, streamlet: u32) -> Owner {
        self.state.owner(self.stream, streamlet).expect("an owner")
    }

    fn moves(&mut self, streamlet: u32, to: NodeNumber) {
        moved::moves(&mut self.state, self.stream, streamlet, to);
    }

    /// Node 3 is lost, and its log has an end.
    fn loses_another(&mut self) {
        fence(&mut self.state, 3);
        self.apply(&[END]);
    }

    fn recovers(&mut self, node: NodeNumber, epoch: u32) {
        let recovered = self.state.plan_recover(node, epoch).unwrap();
        self.apply(&recovered);
    }

    /// An owner says that it has taken over what it is to, and which logs that needs.
    fn says(&mut self, streamlet: u32, log: LogName) {
        let Owner { node, epoch, owner_epoch, .. } = self.owner(streamlet);
        let streamlets = vec![RebuildRange { stream: self.stream, first: streamlet, count: 1, owner_epoch }];
        let logs = vec![LogId::from(log)];
        let said = self.state.plan_needs(&RebuildNeeds { node, epoch, streamlets, logs }).unwrap();
        self.apply(&said);
    }

    /// Whether node 1 may have its log without an end given up, once it has copied again what is in it.
    fn may_give_up(&self) -> Result<(), String> {
        let epoch = self.state.node(1).unwrap().epoch;
        let is_told = self.state.own_lost_logs(1, epoch).contains(&OPEN);
        let checked = self.state.check(&ClusterEntry::LogGivenUp { log: OPEN });
        assert_eq!(is_told, checked.is_ok(), "it is asked when it may be: {checked:?}");
        checked.map_err(|refused| refused.to_string())
    }
}

#[test]
fn others_go_on_and_the_log_goes_when_its_node_says_so() {
    let mut cluster = Cluster::new(level::OPEN_ENDS);
    let lost = cluster.of(3);
    cluster.loses_another();
    cluster.recovers(3, 1);
    // Node 1 would wait with it.
    assert!([2, 4].contains(&cluster.owner(lost).node), "{:?}", cluster.owner(lost));
    assert!(cluster.owner(lost).rebuilding && !cluster.waits(lost));
    // Nobody has said yet what it needs: the log with an end stays, the other one may go.
    assert!(cluster.state.check(&ClusterEntry::LogGivenUp { log: ENDED }).is_err());
    cluster.may_give_up().unwrap();
    cluster.says(lost, ENDED);
    cluster.may_give_up().unwrap();
    cluster.apply(&[ClusterEntry::LogGivenUp { log: OPEN }]);
}

#[test]
fn below_the_level_all_wait_for_it() {
    let mut cluster = Cluster::new(level::OPEN_ENDS - 1);
    let lost = cluster.of(3);
    cluster.loses_another();
    cluster.recovers(3, 1);
    assert!(cluster.owner(lost).rebuilding && cluster.waits(lost));
    let refused = cluster.may_give_up().unwrap_err();
    assert!(refused.contains(&format!("node {}", cluster.owner(lost).node)), "{refused}");
}

#[test]
fn the_level_comes_when_what_is_rebuilt_needs_no_such_log() {
    let raised = ClusterEntry::LevelRaised { level: level::OPEN_ENDS };
    let mut cluster = Cluster::new(level::OPEN_ENDS - 1);
    let speaks = |_, _| Some(level::NEWEST);
    assert_eq!(cluster.state.plan_raise_level(speaks).unwrap(), std::slice::from_ref(&raised), "nothing is rebuilt");
    cluster.loses_another();
    cluster.recovers(3, 1);
    assert_eq!(cluster.state.plan_raise_level(speaks).unwrap(), [], "from what nobody knows");
    let refused = cluster.state.check(&raised).unwrap_err().to_string();
    assert!(refused.contains("when nothing is rebuilt"), "{refused}");
    let mut cluster = Cluster::without_loss(level::OPEN_ENDS - 1);
    cluster.loses_another();
    cluster.recovers(3, 1);
    assert_eq!(cluster.state.plan_raise_level(speaks).unwrap(), [raised], "all logs have their ends");
}

/// A life that went on with what it had and made no log of its own: what it had is in the log of the one before.
#[test]
fn what_its_node_owned_in_a_later_life_waits() {
    for (level, waits) in [(level::OPEN_ENDS, true), (level::OPEN_ENDS - 1, false)] {
        let mut cluster = Cluster::new(level);
        let lost = cluster.of(1);
        let epoch = cluster.state.node(1).unwrap().epoch;
        fence(&mut cluster.state, 1);
        cluster.recovers(1, epoch);
        assert_eq!(cluster.owner(lost).node == 1, waits, "at level {level}");
        assert!(cluster.state.check(&ClusterEntry::LogGivenUp { log: OPEN }).is_err(), "it is all there is");
        if waits {
            cluster.apply(&[ClusterEntry::LogEnded { log: OPEN, end: 0 }]);
            cluster.recovers(1, epoch);
            assert_ne!(cluster.owner(lost).node, 1);
        }
    }
}

#[test]
fn what_its_node_holds_waits_whether_or_not_it_is_lost() {
    let mut cluster = Cluster::new(level::OPEN_ENDS);
    let (moved, other) = (cluster.of(1), cluster.of(3));
    cluster.moves(moved, 3);
    cluster.loses_another();
    cluster.recovers(3, 1);
    assert_eq!(cluster.owner(moved).node, 3, "other logs of node 1 may tell of a part of what it holds");
    assert!(cluster.owner(other).node != 3 && !cluster.waits(other), "nothing of it was there");
    // The log goes when node 1 has copied again what it holds: until then nobody has begun who would look for it.
    cluster.may_give_up().unwrap();
    cluster.apply(&[ClusterEntry::LogGivenUp { log: OPEN }]);
    cluster.recovers(3, 1);
    assert!(cluster.owner(moved).node != 3 && !cluster.waits(moved));
}

/// Node 1 has all that is in that log, and nobody asks what others of its logs have.
#[test]
fn nobody_waits_for_a_log_of_a_node_that_lives() {
    let mut cluster = Cluster::new(level::LIVING_HOLDERS);
    let (moved, other) = (cluster.of(1), cluster.of(2));
    cluster.moves(moved, 3);
    cluster.loses_another();
    cluster.recovers(3, 1);
    assert!([2, 4].contains(&cluster.owner(moved).node) && cluster.owner(moved).rebuilding);
    assert!(!cluster.waits(moved), "what node 1 holds it has");
    cluster.may_give_up().unwrap();
    // Nobody is left but node 1 itself, which needs nothing of its life before.
    [2, 4].into_iter().for_each(|node| fence(&mut cluster.state, node));
    cluster.recovers(2, 1);
    assert!(cluster.owner(other).node == 1 && !cluster.waits(other));
    cluster.may_give_up().unwrap();
    // Once it is lost what it held is needed of all of its logs.
    let epoch = cluster.state.node(1).unwrap().epoch;
    fence(&mut cluster.state, 1);
    assert!(cluster.waits(moved) && cluster.waits(other) && cluster.may_give_up().is_err());
    cluster.returns(2, true);
    cluster.recovers(1, epoch);
    assert_eq!(cluster.owner(other).node, 1, "its log has no end yet");
}

/// Who is back without what it had when somebody takes it over writes logs that have nothing of it.
#[test]
fn logs_of_who_is_back_already_are_not_waited_for() {
    let mut cluster = Cluster::without_loss(level::LIVING_HOLDERS);
    let lost = cluster.of(3);
    cluster.loses_another();
    cluster.returns(3, false);
    let epoch = cluster.state.node(3).unwrap().epoch;
    let later = LogName { epoch, ..ENDED };
    begin_view(&mut cluster.state, later, 1, vec![2]);
    cluster.recovers(3, 1);
    assert!(cluster.owner(lost).node != 3 && cluster.owner(lost).rebuilding);
    // All that had the later log is gone, and its node goes on.
    fence(&mut cluster.state, 2);
    fence(&mut cluster.state, 3);
    cluster.returns(3, true);
    let owner = cluster.owner(lost);
    assert!(!cluster.waits(lost));
    fence(&mut cluster.state, owner.node);
    assert_eq!(owner.node, OPEN.node);
    cluster.apply(&[ClusterEntry::LogEnded { log: OPEN, end: 5 }]);
    cluster.recovers(owner.node, owner.epoch);
    assert_ne!(cluster.owner(lost).node, owner.node);
}

#[test]
fn what_its_node_held_and_has_lost_is_not_taken_over_before_the_end_is_known() {
    [level::OPEN_ENDS, level::LIVING_HOLDERS].into_iter().for_each(held_and_lost);
}

fn held_and_lost(level: u32) {
    let mut cluster = Cluster::new(level);
    let (moved, other) = (cluster.of(1), cluster.of(3));
    cluster.moves(moved, 3);
    cluster.loses_another();
    fence(&mut cluster.state, 1);
    cluster.recovers(3, 1);
    assert_eq!(cluster.owner(moved).node, 3);
    assert_ne!(cluster.owner(other).node, 3, "nothing of it was at node 1");
    let owner_epoch = 100;
    let (stream, epoch, reason) = (cluster.stream, cluster.state.node(2).unwrap().epoch, OwnerReason::Recovered);
    let asked =
        ClusterEntry::OwnerChanged { stream, first: moved, count: 1, node: 2, epoch, owner_epoch, reason, number: 0 };
    let refused = cluster.state.check(&asked).unwrap_err().to_string();
    assert!(refused.contains("the end of log 0 of node 1"), "{refused}");
    // It comes back without what it had. What it held is in that log only.
    let mut cluster = Cluster::new(level);
    cluster.moves(moved, 3);
    fence(&mut cluster.state, 1);
    cluster.returns(1, false);
    assert_eq!(cluster.state.plan_gather().unwrap(), [], "the owner would wait for the end without taking writes");
    assert!(cluster.state.check(&ClusterEntry::LogGivenUp { log: OPEN }).is_err());
    cluster.apply(&[ClusterEntry::LogEnded { log: OPEN, end: 0 }]);
    assert!(!cluster.state.plan_gather().unwrap().is_empty());
}
