//! A node that comes back with all it had goes on with what nobody has taken over, whatever ends of its logs are decided; and never with anything else.

use kera_coordinator::cluster::{AgreedEnd, ClusterState};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::AcceptLogLoss;

use crate::support::copied::{self, begin_view, fence};

/// Four nodes with a streamlet each. Node 1 has written to two logs, with their copies at nodes 2 and 3.
struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

fn log(epoch: u32, log: u32) -> LogName {
    LogName { node: 1, epoch, log }
}

impl Cluster {
    fn new(level: u32) -> Cluster {
        let (state, stream) = copied::cluster(4, 2, level);
        let mut cluster = Cluster { state, stream };
        cluster.writes(1);
        cluster
    }

    /// Node 1 writes to both of its logs.
    fn writes(&mut self, epoch: u32) {
        begin_view(&mut self.state, log(epoch, 0), 1, vec![2]);
        begin_view(&mut self.state, log(epoch, 1), 1, vec![3]);
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    /// A backup has shown where a log of node 1 ends.
    fn ends(&mut self, log: LogName) {
        let ended = self.state.plan_end_log(log, AgreedEnd { end: 7, at_all: true, certain: true }).unwrap();
        self.apply(&ended);
    }

    fn joins(&mut self, node: NodeNumber, has_all: bool) {
        copied::joins(&mut self.state, node, has_all);
    }

    /// Streamlets of node 1 and the epochs of it that own them.
    fn owned(&self) -> Vec<(u32, u32)> {
        let runs = self.state.owners(self.stream).unwrap().runs();
        runs.iter().filter(|run| run.owner.node == 1).map(|run| (run.first, run.owner.epoch)).collect()
    }

    fn recovers(&mut self, epoch: u32) -> usize {
        let recovered = self.state.plan_recover(1, epoch).unwrap();
        self.apply(&recovered);
        recovered.len()
    }
}

/// The only backup of one of its logs burned, so that nobody can say where that ends. The node has all of it.
#[test]
fn a_node_that_comes_back_before_anybody_has_taken_over_goes_on() {
    for (level, epoch) in [(level::OWNED_UNTIL_TAKEN - 1, 1), (level::OWNED_UNTIL_TAKEN, 2)] {
        let mut cluster = Cluster::new(level);
        let of = cluster.owned()[0].0;
        fence(&mut cluster.state, 3);
        fence(&mut cluster.state, 1);
        cluster.ends(log(1, 0));
        assert_eq!(cluster.recovers(1), 0, "what may be in the other log waits for its end");
        cluster.joins(1, true);
        assert_eq!(cluster.owned(), [(of, epoch)], "level {level}");
        let all = ClusterEntry::OwnerReturned { node: 1, epoch: 2, owner_epoch: 1000, all: true };
        assert_eq!(cluster.state.check(&all).is_ok(), level == level::OWNED_UNTIL_TAKEN);
    }
}

/// The only backup of what it wrote first burned. Whoever took its streamlets over could not open them, and it has all.
#[test]
fn what_was_in_blocks_that_nobody_has_waits_for_its_node() {
    let lost = |level| {
        let mut cluster = Cluster::new(level);
        begin_view(&mut cluster.state, log(1, 1), 5, vec![2]);
        fence(&mut cluster.state, 3);
        fence(&mut cluster.state, 1);
        cluster.ends(log(1, 0));
        cluster.ends(log(1, 1));
        cluster
    };
    let mut cluster = lost(level::NEWEST);
    let of = cluster.owned()[0].0;
    assert_eq!(cluster.recovers(1), 0);
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [(of, 2)]);
    // Or for the backup.
    let mut cluster = lost(level::NEWEST);
    cluster.joins(3, false);
    assert_eq!(cluster.recovers(1), 1);
    // Or for somebody who says that it is gone.
    let mut cluster = lost(level::NEWEST);
    let asked = AcceptLogLoss { log: LogId::from(log(1, 1)), gone: vec![1, 3] };
    let given_up = cluster.state.plan_accept_log_loss(&asked).unwrap();
    cluster.apply(&given_up);
    assert_eq!(cluster.recovers(1), 1);
    // It is not known from which logs a streamlet is rebuilt.
    assert_eq!(lost(level::REBUILT_FROM - 1).recovers(1), 1);
    // A view of which nothing is left has no blocks.
    let mut cluster = Cluster::new(level::NEWEST);
    begin_view(&mut cluster.state, log(1, 1), 1, vec![2]);
    fence(&mut cluster.state, 3);
    fence(&mut cluster.state, 1);
    cluster.ends(log(1, 0));
    cluster.ends(log(1, 1));
    assert_eq!(cluster.recovers(1), 1);
}

#[test]
fn who_comes_back_too_late_does_not() {
    let mut cluster = Cluster::new(level::NEWEST);
    fence(&mut cluster.state, 1);
    cluster.ends(log(1, 0));
    cluster.ends(log(1, 1));
    assert_eq!(cluster.recovers(1), 1);
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [], "somebody else has appended behind what it has");
}

/// Ends of its first life are decided while it is back; that says nothing about what it has owned since.
#[test]
fn a_node_that_is_killed_twice_goes_on_twice() {
    let mut cluster = Cluster::new(level::NEWEST);
    let of = cluster.owned()[0].0;
    fence(&mut cluster.state, 1);
    cluster.joins(1, true);
    cluster.ends(log(1, 0));
    cluster.ends(log(1, 1));
    cluster.writes(2);
    fence(&mut cluster.state, 1);
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [(of, 3)]);
    // Who looks at the second life finds another owner.
    cluster.ends(log(2, 0));
    cluster.ends(log(2, 1));
    assert_eq!(cluster.recovers(2), 0);
}

/// It was without its memory for a life, and has all of that life.
#[test]
fn what_a_life_did_not_have_the_next_one_does_not_get() {
    let mut cluster = Cluster::new(level::NEWEST);
    let of = cluster.owned()[0].0;
    fence(&mut cluster.state, 1);
    cluster.joins(1, false);
    cluster.writes(2);
    fence(&mut cluster.state, 1);
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [(of, 1)], "it is recovered from the logs of the first life");
    [log(1, 0), log(1, 1)].into_iter().for_each(|log| cluster.ends(log));
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [(of, 1)]);
    assert_eq!(cluster.recovers(1), 0, "what its second life wrote may be of this streamlet");
    [log(2, 0), log(2, 1)].into_iter().for_each(|log| cluster.ends(log));
    assert_eq!(cluster.recovers(1), 1);
}

/// A node that was given up with what it had comes back with it: it goes on, and nobody else has a copy.
#[test]
fn what_comes_back_although_it_was_given_up_is_copied_again() {
    let mut cluster = Cluster::new(level::NEWEST);
    let of = cluster.owned()[0].0;
    [1, 2, 3].into_iter().for_each(|node| fence(&mut cluster.state, node));
    assert!(
        !cluster.state.may_lack_copies(1, 2),
        "as long as nobody has said anything it is with backups that are away"
    );
    let asked = AcceptLogLoss { log: LogId { node: 1, epoch: 1, vlog: 0 }, gone: vec![1, 2] };
    let accepted = cluster.state.plan_accept_log_loss(&asked).unwrap();
    assert_eq!(accepted, [ClusterEntry::LogEnded { log: log(1, 0), end: 0 }]);
    cluster.apply(&accepted);
    cluster.joins(1, true);
    assert_eq!(cluster.owned(), [(of, 2)]);
    assert!(cluster.state.may_lack_copies(1, 2));
    assert!(!cluster.state.may_lack_copies(1, 1), "its present life is not meant");
}

#[test]
fn what_comes_back_is_not_copied_again_because_ends_are_decided() {
    let mut cluster = Cluster::new(level::NEWEST);
    fence(&mut cluster.state, 1);
    [log(1, 0), log(1, 1)].into_iter().for_each(|log| cluster.ends(log));
    cluster.joins(1, true);
    assert!(!cluster.state.may_lack_copies(1, 2), "backups have it");
    // One that a backup alone had is lower by now.
    let mut cluster = Cluster::new(level::NEWEST);
    begin_view(&mut cluster.state, log(1, 0), 20, vec![2, 3]);
    fence(&mut cluster.state, 1);
    let certain = AgreedEnd { end: 25, at_all: false, certain: true };
    let ended = cluster.state.plan_end_log(log(1, 0), certain).unwrap();
    cluster.apply(&ended);
    assert!(!cluster.state.may_lack_copies(1, 2));
    cluster.apply(&[ClusterEntry::EndTakenBack { log: log(1, 0), end: 24 }]);
    assert!(cluster.state.may_lack_copies(1, 2), "a person may have had it taken back");
}

/// A backup that was replaced, all of whose blocks the broker has copied again, looks like one that a person has given up.
#[test]
fn a_view_without_backups_is_copied_again_once_its_log_has_an_end() {
    let mut cluster = Cluster::new(level::NEWEST);
    begin_view(&mut cluster.state, log(1, 0), 20, vec![4]);
    let given_up = cluster.state.plan_give_up_view(log(1, 0), 1).unwrap();
    cluster.apply(&given_up);
    fence(&mut cluster.state, 1);
    assert!(!cluster.state.may_lack_copies(1, 2), "nobody gives up views of a lost log before it has an end");
    let ended = cluster.state.plan_end_log(log(1, 0), AgreedEnd { end: 25, at_all: true, certain: true }).unwrap();
    cluster.apply(&ended);
    assert!(cluster.state.may_lack_copies(1, 2));
}
