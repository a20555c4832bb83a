//! Ends of lost logs that somebody has opened streamlets with, and that backups alone had which are gone: a person may give them up, and nothing as long as
//! somebody could have them whom nobody has named, or nobody waits for them.

use kera_coordinator::cluster::{AgreedEnd, ClusterState, ToldEnd};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::{AcceptLogLoss, LostLog, MissingBlocks, RebuildNeeds, RebuildRange, UseEnds, UsedEnd};

use crate::support::copied::{self, begin_view, fence};

/// The log of node 1: blocks from 90 on are at nodes 2 and 3, and so were those before.
const LOST: LogName = LogName { node: 1, epoch: 1, log: 0 };
const GIVEN_UP: ClusterEntry = ClusterEntry::EndGivenUp { log: LOST };

/// The log ends at block 100, which one backup alone had; an owner has opened what node 1 had with that.
struct Cluster {
    state: ClusterState,
    stream: StreamId,
    /// Who has used the end.
    owner: NodeNumber,
    /// The backup that had it, and the other one.
    had: NodeNumber,
    other: NodeNumber,
}

impl Cluster {
    fn new(level: u32) -> Cluster {
        let (mut state, stream) = copied::cluster(6, 3, level);
        for first in [1, 90] {
            begin_view(&mut state, LOST, first, vec![2, 3]);
        }
        fence(&mut state, 1);
        let mut cluster = Cluster { state, stream, owner: 0, had: 2, other: 3 };
        let ended = cluster.state.plan_end_log(LOST, AgreedEnd { end: 100, at_all: false, certain: true }).unwrap();
        cluster.apply(&ended);
        cluster.recovers(1);
        cluster.owner = cluster.rebuilt().1;
        (cluster.had, cluster.other) = if cluster.owner == 3 { (3, 2) } else { (2, 3) };
        cluster.uses(cluster.owner, 100).unwrap();
        cluster
    }

    /// The backup is lost, and so is the owner before it has copied anything: the next one waits.
    fn with_a_loss(level: u32) -> Cluster {
        let mut cluster = Cluster::new(level);
        let lost = [cluster.had, cluster.owner];
        cluster.fences(&lost);
        cluster.recovers(cluster.owner);
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    fn fences(&mut self, lost: &[NodeNumber]) {
        for node in lost {
            if !self.state.node(*node).unwrap().fenced {
                fence(&mut self.state, *node);
            }
        }
    }

    fn joins(&mut self, node: NodeNumber) {
        copied::joins(&mut self.state, node, false);
    }

    fn recovers(&mut self, node: NodeNumber) {
        let recovered = self.state.plan_recover(node, 1).unwrap();
        self.apply(&recovered);
    }

    /// What is being rebuilt of what node 1 had, its owner and its owner epoch.
    fn rebuilt(&self) -> (u32, NodeNumber, u32) {
        let runs = self.state.owners(self.stream).unwrap().runs();
        let run = runs.iter().find(|run| run.owner.rebuilding).expect("somebody rebuilds");
        (run.first, run.owner.node, run.owner.owner_epoch)
    }

    fn uses(&mut self, node: NodeNumber, end: u64) -> Result<(), String> {
        let said = UseEnds { node, epoch: 1, ends: vec![UsedEnd { log: LogId::from(LOST), end }] };
        let entries = self.state.plan_use_ends(&said).map_err(|error| error.to_string())?;
        self.apply(&entries);
        Ok(())
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

    fn refuses_entry(&self, words: &str) {
        let refused = self.state.check(&GIVEN_UP).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
    }

    /// What the backup that is left tells when it is asked again, as far as it counts.
    fn shows(&self, through: u64, certain: bool) -> Option<AgreedEnd> {
        self.state.end_told(LOST, &[(self.other, ToldEnd { through, certain, begun: 0 })], 2)
    }

    fn end(&self) -> Option<u64> {
        self.state.logs()[&LOST].end
    }

    fn infos(&self) -> Vec<LostLog> {
        self.state.lost_log_infos(10).logs
    }
}

fn says(gone: &[NodeNumber]) -> AcceptLogLoss {
    AcceptLogLoss { log: LogId::from(LOST), gone: gone.to_vec() }
}

#[test]
fn the_end_of_a_log_that_one_backup_alone_had_is_given_up_and_the_next_owner_opens_with_what_the_other_one_has() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let (had, other, next) = (cluster.had, cluster.other, cluster.rebuilt().1);
    assert_eq!(cluster.state.with_unused_ends(), [], "the end stays as long as nobody says that it is gone");
    assert_eq!(cluster.shows(98, false), None, "whoever is lost may be certain");
    cluster.refuses(&[], &format!("nodes 1, {had} may come back with what is missing of log 0 of node 1 epoch 1"));
    cluster.refuses(&[1], &format!("node {had} may come back"));
    cluster.refuses(&[had], "node 1 may come back");
    cluster.refuses(&[had], &format!("--gone 1,{had}"));
    cluster.refuses(&[1, had, other], &format!("node {other} is live, so it is not gone"));

    assert_eq!(cluster.accepts(&[1, had]), [GIVEN_UP]);
    assert_eq!(cluster.accepts(&[1, had]), [], "asking twice is answered like asking once");
    assert_eq!((cluster.end(), cluster.state.with_unused_ends()), (Some(100), vec![(1, 1)]), "others are asked again");
    let asked = cluster.state.ends_to_ask_again(1, 1);
    assert!(asked.iter().any(|(backup, _, logs)| (*backup, &logs[..]) == (other, &[(LOST, 90)][..])), "{asked:?}");

    let told = cluster.shows(98, false).expect("there is nobody else");
    assert!(!told.certain);
    let taken_back = cluster.state.plan_take_back(LOST, told).unwrap();
    assert_eq!(taken_back, [ClusterEntry::EndTakenBack { log: LOST, end: 98 }], "an uncertain answer will do");
    cluster.apply(&taken_back);
    assert!(cluster.uses(next, 100).unwrap_err().contains("ends at block 98 by now, not at 100"));
    cluster.uses(next, 98).unwrap();
    let state = &cluster.state.logs()[&LOST];
    assert_eq!((state.end, state.used, state.end_given_up), (Some(98), Some(next), false), "and it stays again");
    let again = cluster.state.plan_take_back(LOST, AgreedEnd { end: 97, at_all: false, certain: true }).unwrap();
    assert_eq!(again, []);
}

#[test]
fn an_end_that_was_given_up_stays_if_somebody_shows_it_after_all() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let had = cluster.had;
    cluster.accepts(&[1, had]);
    let next = cluster.rebuilt().1;
    let all = cluster.shows(100, true).expect("it is certain");
    assert_eq!(cluster.state.plan_take_back(LOST, all).unwrap(), [], "it has it too");
    // The one that was said to be gone is back with its disk: it is waited for again as long as it tells nothing.
    cluster.joins(had);
    assert_eq!(cluster.shows(98, false), None);
    cluster.uses(next, 100).unwrap();
    let state = &cluster.state.logs()[&LOST];
    assert_eq!((state.end, state.used, state.end_given_up), (Some(100), Some(next), false));
}

#[test]
fn an_end_that_was_given_up_goes_back_by_no_more_blocks_than_are_under_way() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let had = cluster.had;
    cluster.accepts(&[1, had]);
    let far = cluster.shows(95, false).expect("there is nobody else");
    assert_eq!(cluster.state.plan_take_back(LOST, far).unwrap(), [], "what is up to 96 was acknowledged");
    let near = cluster.shows(96, false).expect("there is nobody else");
    assert_eq!(cluster.state.plan_take_back(LOST, near).unwrap().len(), 1);
}

#[test]
fn a_log_whose_end_is_waited_for_is_listed_with_the_blocks_that_may_be_gone() {
    let mut cluster = Cluster::new(level::NEWEST);
    assert_eq!(cluster.infos(), [], "both backups are there");
    let (had, owner, other) = (cluster.had, cluster.owner, cluster.other);
    let (first, _, owner_epoch) = cluster.rebuilt();
    // The owner has opened what it took over, and has the last blocks.
    let streamlets = vec![RebuildRange { stream: cluster.stream, first, count: 1, owner_epoch }];
    let said = RebuildNeeds { node: owner, epoch: 1, streamlets, logs: vec![LogId::from(LOST)] };
    let needs = cluster.state.plan_needs(&said).unwrap();
    cluster.apply(&needs);
    if owner != had {
        cluster.fences(&[had]);
        assert_eq!(cluster.infos(), [], "nobody waits to be opened");
        cluster.refuses(&[1, had], "no streamlet waits for the last blocks of log 0 of node 1 epoch 1, 97 to 100");
    }
    cluster.fences(&[had, owner]);
    cluster.recovers(owner);
    let infos = cluster.infos();
    let [info] = &infos[..] else { panic!("{infos:?}") };
    let last = MissingBlocks { view: 2, first: 97, last: 100, backups: vec![2, 3] };
    assert_eq!((info.end, &info.missing[..]), (100, &[last][..]));
    assert_eq!((&info.lost_nodes[..], &info.live_nodes[..]), (&[1, had][..], &[other][..]), "{other} has less");
    assert!(info.streamlets.iter().any(|range| range.first == first));
    cluster.accepts(&[1, had]);
    assert_eq!(cluster.infos(), [], "it has been given up");
}

#[test]
fn an_end_is_not_given_up_while_its_log_s_node_is_live() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let had = cluster.had;
    cluster.joins(1);
    cluster.refuses(&[had], "node 1 is live, and may have all that was in log 0 of node 1 epoch 1");
    cluster.refuses(&[1, had], "node 1 is live, so it is not gone");
    cluster.refuses_entry("node 1 is live, and may have all");
    cluster.fences(&[1]);
    assert_eq!(cluster.accepts(&[1, had]), [GIVEN_UP]);
}

#[test]
fn an_end_is_not_given_up_that_nobody_has_used_or_that_all_backups_have_shown_or_nobody_is_left_to_show() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let (had, other) = (cluster.had, cluster.other);
    cluster.fences(&[other]);
    cluster.refuses_entry("no backup that is there has any of the view that ends with block 100");
    cluster.joins(other);
    cluster.accepts(&[1, had]);
    cluster.refuses_entry("nobody has opened anything with its end, block 100");

    let mut cluster = Cluster::new(level::NEWEST);
    cluster.refuses_entry("all backups that could have block 100 are there");
    fence(&mut cluster.state, 4);
    let other_log = LogName { node: 4, epoch: 1, log: 0 };
    assert!(cluster.state.check(&ClusterEntry::EndGivenUp { log: other_log }).is_err(), "there is no such log");

    let (mut state, _) = copied::cluster(6, 3, level::NEWEST);
    begin_view(&mut state, LOST, 1, vec![2, 3]);
    fence(&mut state, 1);
    let refused = state.check(&GIVEN_UP).unwrap_err().to_string();
    assert!(refused.contains("its end is not decided"), "{refused}");
    let ended = state.plan_end_log(LOST, AgreedEnd { end: 5, at_all: true, certain: true }).unwrap();
    copied::apply(&mut state, &ended);
    fence(&mut state, 2);
    let refused = state.check(&GIVEN_UP).unwrap_err().to_string();
    assert!(refused.contains("all its backups have shown block 5"), "{refused}");
}

#[test]
fn below_the_level_an_end_stays() {
    let mut cluster = Cluster::with_a_loss(level::LOST_ENDS - 1);
    let had = cluster.had;
    cluster.refuses(&[1, had], "the cluster is at level 14, and this needs level 15");
    cluster.refuses_entry("needs level 15");
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::LOST_ENDS }]);
    assert_eq!(cluster.accepts(&[1, had]), [GIVEN_UP]);
}

/// `copied::apply` compares the state with one from its snapshot after each entry.
#[test]
fn a_snapshot_has_an_end_that_was_taken_back_and_given_up_and_is_used_again() {
    let mut cluster = Cluster::new(level::NEWEST);
    let (had, owner) = (cluster.had, cluster.owner);
    cluster.fences(&[had, owner]);
    cluster.recovers(owner);
    cluster.accepts(&[1, had]);
    cluster.apply(&[ClusterEntry::EndTakenBack { log: LOST, end: 98 }]);
    let next = cluster.rebuilt().1;
    cluster.uses(next, 98).unwrap();
    let snapshot = cluster.state.snapshot();
    assert!(!snapshot.contains(&GIVEN_UP), "it is used again");
    // Used, and given up once more: after a lower end, and with nobody who uses it.
    cluster.apply(&[GIVEN_UP]);
    let snapshot = cluster.state.snapshot();
    let at = |entry: &ClusterEntry| snapshot.iter().position(|one| one == entry);
    let taken_back = at(&ClusterEntry::EndTakenBack { log: LOST, end: 98 }).expect("the lower end");
    assert!(at(&GIVEN_UP).expect("and that it is given up") > taken_back);
    let mut copy = ClusterState::default();
    snapshot.iter().for_each(|entry| copy.restore(entry).unwrap());
    let log = &copy.logs()[&LOST];
    assert_eq!((log.end, log.first_end, log.used, log.end_given_up), (Some(98), 100, None, true));
}

#[test]
fn other_blocks_are_given_up_although_the_end_may_still_come_back() {
    let (mut state, _) = copied::cluster(6, 3, level::NEWEST);
    begin_view(&mut state, LOST, 1, vec![4, 5]);
    begin_view(&mut state, LOST, 90, vec![2, 3]);
    fence(&mut state, 1);
    let ended = state.plan_end_log(LOST, AgreedEnd { end: 100, at_all: false, certain: true }).unwrap();
    copied::apply(&mut state, &ended);
    let recovered = state.plan_recover(1, 1).unwrap();
    copied::apply(&mut state, &recovered);
    let used = ClusterEntry::EndsUsed { node: 6, epoch: 1, ends: vec![(LOST, 100)] };
    copied::apply(&mut state, &[used]);
    for node in [2, 4, 5] {
        fence(&mut state, node);
    }
    let view = ClusterEntry::ViewGivenUp { log: LOST, view: 1 };
    assert_eq!(state.plan_accept_log_loss(&says(&[1, 2, 4, 5])).unwrap(), [view.clone(), GIVEN_UP]);
    assert_eq!(state.plan_accept_log_loss(&says(&[1, 4, 5])).unwrap(), [view], "node 2 is not named");
}
