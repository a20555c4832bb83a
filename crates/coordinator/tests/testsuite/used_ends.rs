//! Ends of lost logs: nobody has to wait for one that nobody has used and nobody shows, and none goes that somebody has opened streamlets with.

use kera_coordinator::cluster::{AgreedEnd, ClusterState, EndLooks, LogView, ToldEnd};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, USED_ENDS_MAX};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, level};
use kera_protocol::{RebuildNeeds, RebuildRange, UseEnds, UsedEnd};

use crate::support::copied::{self, begin_view, fence, join};

/// The log of node 1, which is lost; its backups are 2 and 3.
const LOST: LogName = LogName { node: 1, epoch: 1, log: 0 };
/// A log of node 4, with backups 5 and 2.
const OTHER: LogName = LogName { node: 4, epoch: 1, log: 0 };

struct Cluster {
    state: ClusterState,
    stream: StreamId,
}

impl Cluster {
    /// Five nodes. The log of node 1 ends at block 100, which 2 had alone when it was asked, and others own what it had.
    fn with_a_loss(level: u32) -> Cluster {
        let (mut state, stream) = copied::cluster(5, 3, level);
        for (log, backups) in [(LOST, vec![2, 3]), (OTHER, vec![5, 2])] {
            begin_view(&mut state, log, 1, backups.clone());
            begin_view(&mut state, log, 90, backups);
        }
        fence(&mut state, 1);
        let mut cluster = Cluster { state, stream };
        let ended = cluster.state.plan_end_log(LOST, AgreedEnd { end: 100, at_all: false, certain: true }).unwrap();
        cluster.apply(&ended);
        let recovered = cluster.state.plan_recover(1, 1).unwrap();
        cluster.apply(&recovered);
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    fn end(&self) -> Option<u64> {
        self.state.logs()[&LOST].end
    }

    /// The owner of what node 1 had.
    fn owner(&self) -> NodeNumber {
        let owners = self.state.owners(self.stream).unwrap();
        let rebuilding = owners.runs().iter().find(|run| run.owner.rebuilding).expect("somebody rebuilds");
        rebuilding.owner.node
    }

    fn uses(&mut self, node: NodeNumber, end: u64) -> Result<(), String> {
        let entries = self.state.plan_use_ends(&says(node, &[(LOST, end)])).map_err(|error| error.to_string())?;
        self.apply(&entries);
        assert_eq!(
            self.state.plan_use_ends(&says(node, &[(LOST, end)])).unwrap(),
            [],
            "asking twice is answered like once"
        );
        Ok(())
    }

    fn takes_back(&mut self, end: u64) -> Option<u64> {
        let entries = self.state.plan_take_back(LOST, shown(end)).unwrap();
        self.apply(&entries);
        self.end()
    }

    fn refuses(&self, end: u64, words: &str) {
        let entry = ClusterEntry::EndTakenBack { log: LOST, end };
        let refused = self.state.check(&entry).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(self.state.plan_take_back(LOST, shown(end)).unwrap(), [], "nor is it planned");
    }
}

/// As one backup shows it that is certain.
fn shown(end: u64) -> AgreedEnd {
    AgreedEnd { end, at_all: false, certain: true }
}

fn says(node: NodeNumber, ends: &[(LogName, u64)]) -> UseEnds {
    let one = |(log, end): &(LogName, u64)| UsedEnd { log: LogId::from(*log), end: *end };
    UseEnds { node, epoch: 1, ends: ends.iter().map(one).collect() }
}

#[test]
fn an_end_that_nobody_has_used_goes_back_to_what_others_have() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    // Node 2, which had block 100, burns before anybody was shown it.
    let fenced = cluster.state.plan_fence(2, 1).unwrap();
    cluster.apply(&fenced);
    assert_eq!(cluster.state.with_unused_ends(), [(1, 1)]);
    let asked = cluster.state.ends_to_ask_again(1, 1);
    assert_eq!(
        asked.iter().map(|(backup, _, logs)| (*backup, logs.clone())).collect::<Vec<_>>(),
        [(2, vec![(LOST, 90)]), (3, vec![(LOST, 90)])]
    );
    assert_eq!(cluster.state.ends_to_ask(1, 1), [], "it has an end");
    let told = [(3, ToldEnd { through: 98, certain: true, begun: 0 })];
    let agreed = cluster.state.end_told(LOST, &told, 2).expect("3 is certain");
    assert_eq!(cluster.takes_back(agreed.end), Some(98));
    assert_eq!(cluster.takes_back(98), Some(98), "once is enough");
    assert!(
        cluster.uses(3, 100).unwrap_err().contains("ends at block 98 by now, not at 100"),
        "it asks again what there is"
    );
    cluster.uses(3, 98).unwrap();
    cluster.refuses(97, "up to block 98; that end stays");
    assert_eq!(cluster.state.with_unused_ends(), []);
}

/// Node 3 has lost its power: it may have had more than now, and that may have been acknowledged.
#[test]
fn an_end_that_nobody_has_used_does_not_go_back_to_what_is_left_of_a_loss_of_power() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let fenced = cluster.state.plan_fence(2, 1).unwrap();
    cluster.apply(&fenced);
    let doubts = [(3, ToldEnd { through: 98, certain: false, begun: 0 })];
    assert_eq!(cluster.state.end_told(LOST, &doubts, 2), None, "2 may be certain");
    // Node 2 is given up, so nobody else is asked.
    let left = cluster.state.end_told(LOST, &doubts, 1).expect("there is nobody else");
    assert_eq!(left, AgreedEnd { end: 98, at_all: false, certain: false });
    assert_eq!(cluster.state.plan_take_back(LOST, left).unwrap(), []);
    assert_eq!(cluster.takes_back(98), Some(98), "one that is certain has all that was acknowledged");
}

#[test]
fn an_end_that_somebody_has_used_stays_whatever_happens_to_who_did() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let owner = cluster.owner();
    cluster.uses(owner, 100).unwrap();
    cluster.refuses(98, "streamlets were opened with log 0 of node 1 epoch 1 up to block 100");
    let fenced = cluster.state.plan_fence(owner, 1).unwrap();
    cluster.apply(&fenced);
    cluster.refuses(98, "that end stays");
    assert_eq!((cluster.state.with_unused_ends(), cluster.end()), (Vec::new(), Some(100)));
    assert_eq!(cluster.state.ends_to_ask_again(1, 1), []);
}

#[test]
fn an_end_that_all_backups_have_shown_stays_and_nobody_has_to_say_that_it_is_used() {
    let certain = |through| ToldEnd { through, certain: true, begun: 0 };
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let fenced = cluster.state.plan_fence(4, 1).unwrap();
    cluster.apply(&fenced);
    let not_at_all = Some(AgreedEnd { end: 100, at_all: false, certain: true });
    let told = |cluster: &Cluster, told: &[_]| cluster.state.end_told(LOST, told, 2);
    assert_eq!(told(&cluster, &[(5, certain(100))]), not_at_all, "2 has not answered");
    let doubts = ToldEnd { through: 100, certain: false, begun: 0 };
    assert_eq!(told(&cluster, &[(5, certain(100)), (2, doubts)]), not_at_all, "2 may have lost it");
    assert_eq!(told(&cluster, &[(5, certain(100)), (2, certain(90))]), not_at_all, "2 has lost it");
    assert_eq!(told(&cluster, &[(5, certain(100)), (1, certain(100))]), not_at_all, "1 is lost since");
    let agreed = told(&cluster, &[(5, certain(102)), (2, certain(100))]).expect("both are certain");
    assert_eq!(agreed, AgreedEnd { end: 100, at_all: true, certain: true });
    let ended = cluster.state.plan_end_log(OTHER, agreed).unwrap();
    cluster.apply(&ended);
    let taken_back = ClusterEntry::EndTakenBack { log: OTHER, end: 99 };
    let refused = cluster.state.check(&taken_back).unwrap_err().0;
    assert!(refused.contains("all backups of log 0 of node 4 epoch 1 have shown block 100"), "{refused}");
    assert_eq!(cluster.state.with_unused_ends(), [(1, 1)]);
    assert_eq!(cluster.state.plan_use_ends(&says(3, &[(OTHER, 100)])).unwrap(), [], "that is known");
    // Of others it counts who says so, also in snapshots.
    cluster.uses(3, 100).unwrap();
    let at_all = |log: LogName| cluster.state.logs()[&log].ends_at_all();
    assert_eq!((at_all(OTHER), at_all(LOST)), (true, false));
}

#[test]
fn below_the_level_nothing_is_said_of_ends_that_all_have() {
    let mut cluster = Cluster::with_a_loss(level::USED_ENDS - 1);
    let fenced = cluster.state.plan_fence(4, 1).unwrap();
    cluster.apply(&fenced);
    let ended = cluster.state.plan_end_log(OTHER, AgreedEnd { end: 100, at_all: true, certain: true }).unwrap();
    assert_eq!(ended, [ClusterEntry::LogEnded { log: OTHER, end: 100 }]);
}

#[test]
fn nobody_says_it_for_all_backups() {
    let cluster = Cluster::with_a_loss(level::NEWEST);
    let refused = cluster.state.plan_use_ends(&says(0, &[(LOST, 100)])).unwrap_err().to_string();
    assert!(refused.contains("node 0"), "{refused}");
}

#[test]
fn who_is_lost_opens_nothing_and_binds_nobody() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let owner = cluster.owner();
    let fenced = cluster.state.plan_fence(owner, 1).unwrap();
    cluster.apply(&fenced);
    assert!(cluster.uses(owner, 100).unwrap_err().contains("is fenced"));
    // It is back with another epoch: what the earlier incarnation says late does not count.
    let back = cluster.state.plan_join(&join(owner, true), 0).unwrap();
    cluster.apply(&back);
    assert!(cluster.uses(owner, 100).unwrap_err().contains("epoch 1 is over"));
    assert_eq!(cluster.takes_back(99), Some(99));
}

#[test]
fn nothing_goes_back_behind_what_was_acknowledged() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    cluster.refuses(100, "is not before its end");
    cluster.refuses(101, "is not before its end");
    cluster.refuses(95, "so what is up to 96 was acknowledged");
    assert_eq!(cluster.takes_back(98), Some(98));
    // Not step by step either.
    cluster.refuses(95, "so what is up to 96 was acknowledged");
    assert_eq!(cluster.takes_back(96), Some(96));
    cluster.refuses(95, "so what is up to 96 was acknowledged");
    let other = ClusterEntry::EndTakenBack { log: OTHER, end: 5 };
    assert!(cluster.state.check(&other).unwrap_err().0.contains("is not decided"));
}

#[test]
fn no_end_goes_behind_the_first_block_of_the_newest_view() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let fenced = cluster.state.plan_fence(4, 1).unwrap();
    cluster.apply(&fenced);
    cluster.apply(&[ClusterEntry::LogEnded { log: OTHER, end: 91 }]);
    let back = |end| ClusterEntry::EndTakenBack { log: OTHER, end };
    assert!(cluster.state.check(&back(88)).unwrap_err().0.contains("what is before block 90 was acknowledged"));
    cluster.apply(&[back(89)]);
}

#[test]
fn what_was_opened_below_the_level_binds_all_ends_that_there_were() {
    let mut cluster = Cluster::with_a_loss(level::USED_ENDS - 1);
    assert!(!cluster.state.takes_used_ends());
    let owner = cluster.owner();
    assert!(cluster.uses(owner, 100).unwrap_err().contains("needs level 10"));
    cluster.refuses(98, "needs level 10");
    cluster.apply(&[ClusterEntry::LevelRaised { level: level::USED_ENDS }]);
    cluster.refuses(98, "that end stays");
    // What ends from here on is used when somebody says so.
    let fenced = cluster.state.plan_fence(4, 1).unwrap();
    cluster.apply(&fenced);
    cluster.apply(&[ClusterEntry::LogEnded { log: OTHER, end: 100 }]);
    assert_eq!(cluster.state.with_unused_ends(), [(4, 1)]);
}

#[test]
fn backups_are_asked_again_while_streamlets_wait_to_be_opened() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    assert!(cluster.state.waits_to_be_opened());
    let owners = cluster.state.owners(cluster.stream).unwrap().runs().to_vec();
    for run in owners.iter().filter(|run| run.owner.rebuilding) {
        let (first, count, owner_epoch) = (run.first, run.count, run.owner.owner_epoch);
        let streamlets = vec![RebuildRange { stream: cluster.stream, first, count, owner_epoch }];
        let said = RebuildNeeds { node: run.owner.node, epoch: 1, streamlets, logs: Vec::new() };
        let entries = cluster.state.plan_needs(&said).unwrap();
        cluster.apply(&entries);
    }
    assert!(!cluster.state.waits_to_be_opened(), "all have said what they rebuild from");
}

#[test]
fn a_log_of_which_one_backup_has_all_there_can_be_is_not_asked_for_again() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let fenced = cluster.state.plan_fence(5, 1).unwrap();
    let alone = LogName { node: 5, epoch: 1, log: 0 };
    let view = LogView { log: alone, view: 1, first: 1, backups: vec![4] };
    let agreed = cluster.state.plan_view(&view).unwrap();
    cluster.apply(&agreed);
    cluster.apply(&fenced);
    cluster.apply(&[ClusterEntry::LogEnded { log: alone, end: 7 }]);
    assert_eq!(cluster.state.with_unused_ends(), [(1, 1)]);
}

#[test]
fn too_many_ends_at_once_are_refused_and_many_are_in_snapshots_in_parts() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let ends = vec![(LOST, 100); USED_ENDS_MAX + 1];
    let refused = cluster.state.plan_use_ends(&says(cluster.owner(), &ends)).unwrap_err().to_string();
    assert!(refused.contains("ends has 1001 logs, the limit is 1000"), "{refused}");
    let many = |log| LogName { node: 5, epoch: 1, log };
    for log in 0..USED_ENDS_MAX as u32 + 5 {
        let view = LogView { log: many(log), view: 1, first: 1, backups: vec![2, 3] };
        let agreed = cluster.state.plan_view(&view).unwrap();
        agreed.iter().for_each(|entry| cluster.state.apply(entry).unwrap());
    }
    let fenced = cluster.state.plan_fence(5, 1).unwrap();
    fenced.iter().for_each(|entry| cluster.state.apply(entry).unwrap());
    for log in 0..USED_ENDS_MAX as u32 + 5 {
        cluster.state.apply(&ClusterEntry::LogEnded { log: many(log), end: 3 }).unwrap();
        let used = ClusterEntry::EndsUsed { node: 2, epoch: 1, ends: vec![(many(log), 3)] };
        cluster.state.apply(&used).unwrap();
    }
    cluster.apply(&[]);
    let parts = cluster.state.snapshot();
    assert_eq!(parts.iter().filter(|entry| matches!(entry, ClusterEntry::EndsUsed { .. })).count(), 2);
}

/// Node 2 alone has told where the log ends. Node 3 takes part and may have less, so it is asked first: once for each time that it joins.
#[test]
fn whoever_takes_part_and_has_not_told_is_asked_before_an_end_is_used() {
    let mut cluster = Cluster::with_a_loss(level::NEWEST);
    let (mut looks, said) = (EndLooks::default(), says(4, &[(LOST, 100)]));
    looks.told(LOST, [(2, 1)]);
    assert!(looks.is_before(&cluster.state, &said, 0));
    assert_eq!(looks.wanted(), [(1, 1)]);
    looks.looked(&cluster.state, 1_000_000);
    assert!(looks.is_before(&cluster.state, &said, 1_000_000), "it has not answered");
    looks.told(LOST, [(3, 1)]);
    looks.looked(&cluster.state, 1_000_001);
    assert_eq!(looks.wanted(), []);
    assert!(!looks.is_before(&cluster.state, &said, 1_000_001));
    let fenced = cluster.state.plan_fence(3, 1).unwrap();
    cluster.apply(&fenced);
    assert!(!looks.is_before(&cluster.state, &said, 1_000_002), "nobody waits for who is lost");
    let joined = cluster.state.plan_join(&join(3, true), 0).unwrap();
    cluster.apply(&joined);
    assert!(looks.is_before(&cluster.state, &said, 1_000_003), "what it has now it has not told");
    cluster.uses(4, 100).unwrap();
    assert!(!looks.is_before(&cluster.state, &said, 1_000_004), "the end stays, whatever it has");
}

#[test]
fn who_keeps_silent_is_not_waited_for_without_end() {
    let cluster = Cluster::with_a_loss(level::NEWEST);
    let (mut looks, said) = (EndLooks::default(), says(4, &[(LOST, 100)]));
    looks.told(LOST, [(2, 1)]);
    for now_us in [0, 2_000_000, 2_500_000] {
        assert!(looks.is_before(&cluster.state, &said, now_us));
        looks.looked(&cluster.state, now_us);
    }
    looks.looked(&cluster.state, 2_500_001);
    assert!(!looks.is_before(&cluster.state, &said, 2_500_001));
    assert_eq!(looks.wanted(), []);
}

/// A leader that is new has asked nobody.
#[test]
fn another_leader_asks_again() {
    let cluster = Cluster::with_a_loss(level::NEWEST);
    let mut looks = EndLooks::default();
    assert!(looks.is_before(&cluster.state, &says(4, &[(LOST, 100)]), 0));
    assert!(!looks.is_before(&cluster.state, &says(4, &[(LOST, 99)]), 0), "it is refused as it is");
}
