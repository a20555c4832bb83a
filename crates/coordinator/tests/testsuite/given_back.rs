//! Who has taken over what it cannot open gives it back to the node that it came from; and in no other case.

use kera_coordinator::cluster::{ClusterState, Held, Offerable};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, OwnerReason};
use kera_format::{LaneId, StreamId, StreamletId, level};
use kera_protocol::{GiveBack, RebuildRange, StreamletState, StreamletsRebuilt};

use crate::support::changing::{owner_makes, wants};
use crate::support::copied::{self, begin_view, fence};

#[derive(Clone)]
struct Cluster {
    state: ClusterState,
}

/// The log of node 1 before it was lost. Node 2 is its only backup.
const LOG: LogName = LogName { node: 1, epoch: 1, log: 0 };

impl Cluster {
    /// Three nodes, each with a streamlet. Node 1 is lost, somebody takes over what it had, and cannot read it any more.
    fn lost(level: u32) -> Cluster {
        let mut cluster = Cluster::with_log(level);
        cluster.lose(1, 1);
        cluster
    }

    fn with_log(level: u32) -> Cluster {
        let (mut state, _) = copied::cluster(3, 2, level);
        begin_view(&mut state, LOG, 1, vec![2]);
        Cluster { state }
    }

    /// Four nodes, each with a streamlet, of which [`LOG`] may be lost.
    fn of_four(level: u32) -> (Cluster, StreamId) {
        let (mut state, stream) = copied::cluster(4, 2, level);
        begin_view(&mut state, LOG, 1, vec![2]);
        (Cluster { state }, stream)
    }

    /// The first node has had the second one's streamlet for a while when it is lost and comes back with all. Meanwhile the second one took it over again, and
    /// cannot read what the first one wrote.
    fn lost_after_a_move(level: u32) -> (Cluster, Offerable) {
        let (mut cluster, stream) = Cluster::of_four(level);
        let at = cluster.streamlet_of(stream, 2);
        cluster.moves(stream, at, 1);
        cluster.lose(1, 1);
        cluster.joins(1, true);
        let of = cluster.may_get_back_of(at);
        assert_eq!(of.owner, 2, "this is about an owner that had it before");
        (cluster, of)
    }

    /// The streamlet that a node owns, which is one.
    fn streamlet_of(&self, stream: StreamId, node: NodeNumber) -> u32 {
        (0..4).find(|at| self.state.owner(stream, *at).unwrap().node == node).unwrap()
    }

    /// A streamlet that was never written to moves to a node. Its owner epoch there.
    fn moves(&mut self, stream: StreamId, at: u32, to: NodeNumber) -> u32 {
        let epoch = self.state.owner(stream, at).unwrap().owner_epoch;
        let moved = self.state.plan_move(&stream.into(), at, to).unwrap();
        self.apply(&moved);
        let number = self.state.move_of(stream, at).unwrap();
        let (lanes, progress) = (Vec::new(), Vec::new());
        let state = StreamletState { stream, streamlet: StreamletId(at), epoch, lanes, progress };
        let state = kera_protocol::codec::bytes_of(&state);
        let done = self.state.plan_finish_move(number, to, self.epoch(to), &state).unwrap();
        self.apply(&done);
        self.state.owner(stream, at).unwrap().owner_epoch
    }

    /// The same, as whoever has begun with a snapshot of it knows it.
    fn in_snapshot(&self) -> Cluster {
        let mut state = ClusterState::default();
        self.state.snapshot().iter().for_each(|entry| state.restore(entry).unwrap());
        Cluster { state }
    }

    /// A later state, as whoever has followed the log up to this one knows it, and was sent a snapshot then.
    fn is_sent(&self, later: &Cluster) -> Cluster {
        let mut cluster = later.in_snapshot();
        cluster.state.takes_place_of(&self.state);
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        copied::apply(&mut self.state, entries);
    }

    fn lose(&mut self, node: NodeNumber, epoch: u32) {
        copied::lose(&mut self.state, node, epoch);
    }

    fn joins(&mut self, node: NodeNumber, has_all: bool) {
        copied::joins(&mut self.state, node, has_all);
    }

    fn epoch(&self, node: NodeNumber) -> u32 {
        self.state.node(node).unwrap().epoch
    }

    /// What node 1 may get back.
    fn may_get_back(&self) -> Vec<Offerable> {
        self.state.may_get_back(1, self.epoch(1)).into_iter().collect()
    }

    fn may_get_back_of(&self, streamlet: u32) -> Offerable {
        let back = self.may_get_back();
        back.iter().find(|of| of.streamlet == streamlet).copied().unwrap_or_else(|| panic!("{back:?}"))
    }

    fn asked(&self, of: &Offerable) -> GiveBack {
        GiveBack {
            node: of.owner,
            epoch: self.epoch(of.owner),
            stream: of.stream,
            streamlet: StreamletId(of.streamlet),
            owner_epoch: of.owner_epoch,
            to: 1,
            to_epoch: self.epoch(1),
            keeps: self.state.kept_by_giver(of.stream, StreamletId(of.streamlet), of.owner_epoch),
        }
    }

    fn gives_back(&mut self, asked: &GiveBack) {
        assert!(self.state.may_give_back(asked));
        let entries = self.state.plan_given_back(asked).unwrap();
        assert_eq!(entries.len(), 1 + asked.keeps.len(), "{entries:?}");
        self.apply(&entries);
        assert_eq!(self.state.plan_given_back(asked).unwrap(), [], "asking twice is answered like asking once");
        assert!(!self.state.may_be_given_back(asked), "it has another owner");
    }

    fn refuses(&self, asked: &GiveBack, words: &str) {
        let refused = self.state.plan_given_back(asked).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
        assert!(!self.state.may_give_back(asked));
    }

    /// A node is killed, and comes back with all it had.
    fn starts_again(&mut self, node: NodeNumber) {
        fence(&mut self.state, node);
        self.joins(node, true);
    }

    /// What node 1 may get back of a streamlet, whose owner is started again first.
    fn asked_of_started_again(&mut self, streamlet: u32) -> GiveBack {
        let owner = self.may_get_back_of(streamlet).owner;
        self.starts_again(owner);
        let of = self.may_get_back_of(streamlet);
        assert_eq!(of.owner, owner, "it goes on with it");
        let asked = self.asked(&of);
        assert!(!self.state.may_give_back(&asked), "it was taken over in an earlier life");
        asked
    }

    /// Whether the only owner of what node 1 may get back gives it back if it is started again first.
    fn gives_back_after_start(&mut self) -> bool {
        let [of] = self.may_get_back()[..] else { panic!("{:?}", self.may_get_back()) };
        let asked = self.asked_of_started_again(of.streamlet);
        self.state.may_give_back_after_start(&asked)
    }

    /// A node says that it has rebuilt a streamlet.
    fn rebuilt(&mut self, stream: StreamId, first: u32) {
        let owner = self.state.owner(stream, first).unwrap();
        let streamlets = vec![RebuildRange { stream, first, count: 1, owner_epoch: owner.owner_epoch }];
        let rebuilt = StreamletsRebuilt { node: owner.node, epoch: owner.epoch, streamlets };
        let entries = self.state.plan_rebuilt(&rebuilt).unwrap();
        self.apply(&entries);
    }

    /// A node takes over a streamlet whose owner is lost.
    fn taken_over_by(&mut self, stream: StreamId, first: u32, node: NodeNumber) {
        let (epoch, owner_epoch, reason) = (self.epoch(node), self.state.next_owner_epoch(), OwnerReason::Recovered);
        self.apply(&[ClusterEntry::OwnerChanged {
            stream,
            first,
            count: 1,
            node,
            epoch,
            owner_epoch,
            reason,
            number: 0,
        }]);
    }

    /// Who has older groups of a streamlet, by the table: owner epochs and nodes.
    fn held(&self, asked: &GiveBack) -> Vec<(u32, NodeNumber)> {
        let held = self.state.owners(asked.stream).unwrap().held_of(asked.streamlet.0);
        held.map(|Held { owner_epoch, node, .. }| (owner_epoch, node)).collect()
    }
}

#[test]
fn a_node_that_has_all_gets_back_what_nobody_can_open() {
    let mut cluster = Cluster::lost(level::NEWEST);
    assert_eq!(cluster.may_get_back(), [], "it is not there");
    cluster.joins(1, true);
    let [of] = cluster.may_get_back()[..] else { panic!("{:?}", cluster.may_get_back()) };
    let asked = cluster.asked(&of);
    assert!(cluster.state.may_be_given_back(&asked), "from here on its owner does not open it");
    cluster.gives_back(&asked);
    let owner = cluster.state.owner(of.stream, of.streamlet).unwrap();
    assert_eq!((owner.node, owner.epoch, owner.rebuilding), (1, 2, false));
    assert!(owner.owner_epoch > of.owner_epoch, "groups of both would have the same ids");
    assert_eq!(cluster.held(&asked), [], "it has never moved: all of it is the owner's");
    assert_eq!(cluster.may_get_back(), []);
    // Its copies are in the log of its first life, which stays until it has copied them again.
    assert_eq!(cluster.state.plan_give_up_lost().unwrap(), []);
    // Lost again, nobody is given what nobody can read.
    fence(&mut cluster.state, 2);
    cluster.lose(1, 2);
    assert_eq!(cluster.state.owner(of.stream, of.streamlet).unwrap().node, 1);
}

/// Below the level others would know another state.
#[test]
fn it_comes_with_its_level() {
    let mut cluster = Cluster::lost(level::GIVEN_BACK - 1);
    cluster.joins(1, true);
    assert_eq!(cluster.may_get_back(), []);
    let of = cluster.state.offerable(1, 2)[0];
    cluster.refuses(&cluster.asked(&of), "needs level 23");
}

#[test]
fn who_has_lost_something_gets_nothing_back() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, false);
    let asked = cluster.asked(&cluster.may_get_back()[0]);
    assert!(!cluster.state.may_give_back(&asked));
    // The memory of that life survives a kill like any other, and says nothing about what was lost before it.
    fence(&mut cluster.state, 1);
    cluster.joins(1, true);
    assert!(!cluster.state.may_give_back(&cluster.asked(&cluster.may_get_back()[0])));
}

#[test]
fn who_has_had_all_in_each_life_gets_it_back() {
    let mut cluster = Cluster::lost(level::NEWEST);
    for _ in 0..2 {
        cluster.joins(1, true);
        fence(&mut cluster.state, 1);
    }
    cluster.joins(1, true);
    cluster.gives_back(&cluster.asked(&cluster.may_get_back()[0]));
}

/// Who has followed the log from a snapshot on does not know how a streamlet was taken over before that, nor which lives of the node had all.
#[test]
fn who_has_not_seen_it_gives_nothing_back() {
    let mut cluster = Cluster::lost(level::NEWEST).in_snapshot();
    cluster.joins(1, true);
    assert!(!cluster.state.may_give_back(&cluster.asked(&cluster.may_get_back()[0])));

    // The node was lost after that: that its next life has all says it itself.
    let mut cluster = Cluster::with_log(level::NEWEST).in_snapshot();
    cluster.lose(1, 1);
    cluster.joins(1, true);
    cluster.gives_back(&cluster.asked(&cluster.may_get_back()[0]));

    // It came without its memory, which was not seen, and what it had before it waits to be taken over.
    let mut cluster = Cluster::with_log(level::NEWEST);
    fence(&mut cluster.state, 1);
    cluster.joins(1, false);
    let mut cluster = cluster.in_snapshot();
    cluster.lose(1, 1);
    assert_eq!(cluster.may_get_back(), [], "it is lost");
    cluster.joins(1, true);
    let back = cluster.may_get_back();
    assert!(!back.is_empty() && back.iter().all(|of| !cluster.state.may_give_back(&cluster.asked(of))));
}

/// Who is far behind is sent a snapshot in the place of entries. It has seen others before.
#[test]
fn who_is_sent_a_snapshot_knows_what_it_has_seen_before() {
    let mut cluster = Cluster::lost(level::NEWEST);
    let mut sent = cluster.is_sent(&cluster);
    sent.joins(1, true);
    sent.gives_back(&sent.asked(&sent.may_get_back()[0]));

    cluster.joins(1, true);
    let mut sent = cluster.is_sent(&cluster);
    sent.gives_back(&sent.asked(&sent.may_get_back()[0]));

    // Also what it held before it took over.
    let (cluster, of) = Cluster::lost_after_a_move(level::NEWEST);
    let mut sent = cluster.is_sent(&cluster);
    let asked = sent.asked(&of);
    assert_eq!(asked.keeps, [1]);
    sent.gives_back(&asked);
}

#[test]
fn of_what_happened_in_front_of_a_snapshot_that_is_sent_nothing_counts_as_seen() {
    // The node has come back, and nobody has heard whether it had all.
    let before = Cluster::lost(level::NEWEST);
    for has_all in [true, false] {
        let mut later = before.clone();
        later.joins(1, has_all);
        let mut sent = before.is_sent(&later);
        assert!(!sent.state.may_give_back(&sent.asked(&sent.may_get_back()[0])));
        // That its next life has all which that one had says nothing of what it lost before.
        fence(&mut sent.state, 1);
        sent.joins(1, true);
        assert!(!sent.state.may_give_back(&sent.asked(&sent.may_get_back()[0])));
    }

    // The streamlet was taken over from it.
    let before = Cluster::with_log(level::NEWEST);
    let mut later = before.clone();
    later.lose(1, 1);
    let mut sent = before.is_sent(&later);
    sent.joins(1, true);
    assert!(!sent.state.may_give_back(&sent.asked(&sent.may_get_back()[0])));
}

/// The entry may come late: neither another life of the node counts, nor another owner, nor the same one in a later owner epoch.
#[test]
fn what_was_asked_before_somebody_was_lost_comes_too_late() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let of = cluster.may_get_back()[0];
    let asked = cluster.asked(&of);
    let entry = cluster.state.plan_given_back(&asked).unwrap().remove(0);
    fence(&mut cluster.state, 1);
    assert!(cluster.state.check(&entry).is_err());
    assert!(!cluster.state.may_be_given_back(&asked), "its owner may open it: the entry is refused wherever it comes");
    cluster.joins(1, true);
    assert!(cluster.state.check(&entry).is_err());

    // The owner is killed, and goes on: what it has opened or written in between nobody knows.
    let entry = cluster.state.plan_given_back(&cluster.asked(&of)).unwrap().remove(0);
    fence(&mut cluster.state, of.owner);
    cluster.joins(of.owner, true);
    assert!(cluster.state.check(&entry).is_err());
    let again = cluster.may_get_back()[0];
    assert_eq!(again.owner, of.owner);
    assert!(!cluster.state.may_give_back(&cluster.asked(&again)));
    cluster.refuses(&GiveBack { owner_epoch: of.owner_epoch, ..cluster.asked(&again) }, "in owner epoch");
}

#[test]
fn what_is_rebuilt_is_not_given_back() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let of = cluster.may_get_back()[0];
    cluster.rebuilt(of.stream, of.streamlet);
    assert_eq!(cluster.may_get_back(), []);
    cluster.refuses(&cluster.asked(&of), "is not being rebuilt");
}

/// It was lost in the middle of a rebuild: what it had not rebuilt is in logs of others.
#[test]
fn what_its_node_was_rebuilding_is_not_given_back_to_it() {
    let (mut state, stream) = copied::cluster(3, 2, level::NEWEST);
    begin_view(&mut state, LogName { node: 3, epoch: 1, log: 0 }, 1, vec![2]);
    begin_view(&mut state, LOG, 1, vec![2]);
    let mut cluster = Cluster { state };
    let of_third = (0..3).find(|at| cluster.state.owner(stream, *at).unwrap().node == 3).unwrap();
    fence(&mut cluster.state, 2);
    cluster.joins(2, true);
    cluster.lose(3, 1);
    let mut taken = cluster.state.owner(stream, of_third).unwrap();
    if taken.node != 1 {
        // Whoever has it now is lost, so that node 1 takes it over from both.
        cluster.lose(taken.node, taken.epoch);
        taken = cluster.state.owner(stream, of_third).unwrap();
    }
    assert_eq!((taken.node, taken.rebuilding), (1, true));
    cluster.joins(3, false);
    cluster.joins(2, true);
    cluster.lose(1, 1);
    let owner = cluster.state.owner(stream, of_third).unwrap();
    assert!(owner.node != 1 && owner.rebuilding, "{owner:?}");
    cluster.joins(1, true);
    assert!(cluster.may_get_back().iter().all(|of| of.streamlet != of_third));
    let of = Offerable { stream, streamlet: of_third, owner: owner.node, owner_epoch: owner.owner_epoch };
    cluster.refuses(&cluster.asked(&of), "is rebuilt from others");
}

/// What was with another node before it came to the one that was lost stays there, and what that one had of it goes back with the rest.
#[test]
fn what_others_hold_stays_with_them() {
    let (mut cluster, stream) = Cluster::of_four(level::NEWEST);
    let at = cluster.streamlet_of(stream, 4);
    let second = cluster.moves(stream, at, 1);
    cluster.lose(1, 1);
    cluster.joins(1, true);
    let of = cluster.may_get_back_of(at);
    let asked = cluster.asked(&of);
    // From the first owner epoch on.
    assert_eq!((of.owner, cluster.held(&asked)), (2, vec![(1, 4), (second, 2)]));
    cluster.gives_back(&asked);
    assert_eq!(cluster.held(&asked), [(1, 4), (second, 1)]);
}

/// By the table it holds both since it took the streamlet over, what it had before and what the other one had.
#[test]
fn what_its_owner_held_before_stays_with_it() {
    let (mut cluster, of) = Cluster::lost_after_a_move(level::NEWEST);
    let asked = cluster.asked(&of);
    let [(1, 2), (second, 2)] = cluster.held(&asked)[..] else { panic!("{:?}", cluster.held(&asked)) };
    assert_eq!(asked.keeps, [1]);
    // Neither all of it goes back, nor nothing.
    assert!(!cluster.state.may_give_back(&GiveBack { keeps: Vec::new(), ..asked.clone() }));
    cluster.refuses(&GiveBack { keeps: vec![1, second], ..asked.clone() }, "gives nothing back");
    cluster.gives_back(&asked);
    assert_eq!(cluster.held(&asked), [(1, 2), (second, 1)]);
    let owner = cluster.state.owner(of.stream, of.streamlet).unwrap();
    assert_eq!((owner.node, owner.epoch, owner.rebuilding), (1, 2, false));
}

/// The node that gets it back has held some of it too, from before its owner had it.
#[test]
fn what_its_owner_held_in_between_stays_with_it() {
    let (mut cluster, stream) = Cluster::of_four(level::NEWEST);
    let at = cluster.streamlet_of(stream, 1);
    let second = cluster.moves(stream, at, 2);
    let third = cluster.moves(stream, at, 1);
    cluster.lose(1, 1);
    cluster.joins(1, true);
    let of = cluster.may_get_back_of(at);
    let asked = cluster.asked(&of);
    assert_eq!(cluster.held(&asked), [(1, 2), (second, 2), (third, 2)]);
    assert_eq!(asked.keeps, [second]);
    cluster.gives_back(&asked);
    assert_eq!(cluster.held(&asked), [(1, 1), (second, 2), (third, 1)]);
}

/// Retention has taken it since: nobody is said to have it again.
#[test]
fn what_its_owner_held_and_has_no_more_is_not_kept() {
    let (mut cluster, of) = Cluster::lost_after_a_move(level::NEWEST);
    let asked = cluster.asked(&of);
    let (stream, first) = (of.stream, of.streamlet);
    cluster.apply(&[ClusterEntry::GroupsHeld { stream, first, count: 1, owner_epoch: 1, node: 0 }]);
    assert!(cluster.state.may_give_back(&asked));
    let entries = cluster.state.plan_given_back(&asked).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    cluster.apply(&entries);
    let held = cluster.held(&asked);
    assert!(matches!(held[..], [(2.., 1)]), "{held:?}");
}

/// A leader that does not know what is kept would say that all of it is with the node that gets the streamlet.
#[test]
fn what_its_owner_keeps_comes_with_its_level() {
    let (cluster, of) = Cluster::lost_after_a_move(level::GIVEN_BACK_IN_PART - 1);
    cluster.refuses(&cluster.asked(&of), "needs level 26");
    assert!(!cluster.state.may_give_back(&GiveBack { keeps: Vec::new(), ..cluster.asked(&of) }));
}

/// That it keeps something is believed when it becomes true: it must not have lost it by then.
#[test]
fn who_may_have_lost_what_it_keeps_gives_nothing_back() {
    let (mut cluster, of) = Cluster::lost_after_a_move(level::NEWEST);
    let asked = cluster.asked(&of);
    let entries = cluster.state.plan_given_back(&asked).unwrap();
    cluster.state.check(&entries[0]).unwrap();
    fence(&mut cluster.state, 2);
    let refused = cluster.state.check(&entries[0]).expect_err("its owner is lost").to_string();
    assert!(refused.contains("node 2 is lost, which holds groups"), "{refused}");
    cluster.joins(2, false);
    assert!(cluster.state.check(&entries[0]).is_err(), "it has lost what it held");

    // Of what has never moved its owner holds nothing that it could keep.
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let of = cluster.may_get_back()[0];
    let entries = cluster.state.plan_given_back(&cluster.asked(&of)).unwrap();
    fence(&mut cluster.state, of.owner);
    cluster.state.check(&entries[0]).unwrap();
}

/// The node held older groups that it had lost when the streamlet came to it again. With the streamlet they would be said to be there.
#[test]
fn what_its_node_had_lost_before_is_not_given_back_to_it() {
    let (mut cluster, stream) = Cluster::of_four(level::NEWEST);
    let at = cluster.streamlet_of(stream, 1);
    cluster.moves(stream, at, 2);
    fence(&mut cluster.state, 1);
    cluster.joins(1, false);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.moves(stream, at, 1);
    cluster.lose(1, 2);
    cluster.joins(1, true);
    let of = cluster.may_get_back_of(at);
    assert!(!cluster.state.may_give_back(&cluster.asked(&of)));
}

/// What it told in an earlier life the other node has, and what it wrote would be there.
#[test]
fn who_was_started_again_gives_back_what_the_other_node_has_cut_nothing_of() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let [first] = cluster.may_get_back()[..] else { panic!("{:?}", cluster.may_get_back()) };
    assert!(!cluster.state.may_give_back_after_start(&cluster.asked(&first)), "it was not started again");
    assert_eq!(cluster.state.taken_over_before(first.owner, cluster.epoch(first.owner)), []);
    let mut before = cluster.asked(&first);
    for _ in 0..2 {
        let asked = cluster.asked_of_started_again(first.streamlet);
        assert!(cluster.state.may_give_back_after_start(&asked));
        assert!(!cluster.state.may_give_back_after_start(&before), "that is over");
        let known = cluster.state.taken_over_before(asked.node, asked.epoch);
        let one = (asked.stream, asked.streamlet, asked.owner_epoch);
        assert_eq!(known, [(one, first.owner_epoch)], "what it has written since is asked for from there on");
        before = asked;
    }
    let asked = before;
    let entries = cluster.state.plan_given_back(&asked).unwrap();
    cluster.apply(&entries);
    let owner = cluster.state.owner(first.stream, first.streamlet).unwrap();
    assert_eq!((owner.node, owner.epoch, owner.rebuilding), (1, 2, false));
    let held = cluster.held(&asked);
    assert!(!held.is_empty() && held.iter().all(|(_, node)| *node == 1), "{held:?}");
    // What it has rebuilt of it in an earlier life is of no use to anybody, and would be taken for what it holds.
    assert!(cluster.state.rebuilt_by_others(asked.node, asked.epoch).contains(&(asked.stream, asked.streamlet)));
}

/// Its newest snapshot is from behind the entry with which it took the streamlet over.
#[test]
fn who_was_started_again_and_has_not_seen_how_it_took_over_gives_nothing_back() {
    let mut cluster = Cluster::lost(level::NEWEST).in_snapshot();
    cluster.joins(1, true);
    assert!(!cluster.gives_back_after_start());
    // Sent one while it ran it knows what it had seen before.
    let cluster = Cluster::lost(level::NEWEST);
    let mut sent = cluster.is_sent(&cluster);
    sent.joins(1, true);
    assert!(sent.gives_back_after_start());
}

/// Below the level its next lives drop what it has written, and read it again.
#[test]
fn who_was_started_again_keeps_what_it_wrote_from_a_level_on() {
    for level in [level::OWN_LIVES - 1, level::OWN_LIVES] {
        let mut cluster = Cluster::lost(level);
        (level + 1..=level::NEWEST).for_each(|level| cluster.apply(&[ClusterEntry::LevelRaised { level }]));
        cluster.joins(1, true);
        assert_eq!(cluster.gives_back_after_start(), level >= level::OWN_LIVES);
    }
}

/// What the first start has cut is gone with its process, and the next one finds nothing to cut.
#[test]
fn the_word_of_a_life_that_is_not_the_next_one_does_not_count() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    cluster.starts_again(1);
    let of = cluster.may_get_back()[0];
    assert!(cluster.state.may_give_back(&cluster.asked(&of)), "it has had all in each of them");
    assert!(!cluster.gives_back_after_start());
    // Nor that of one that was started again behind its owner.
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    assert!(cluster.gives_back_after_start());
    cluster.starts_again(1);
    let asked = cluster.asked(&cluster.may_get_back()[0]);
    assert!(!cluster.state.may_give_back_after_start(&asked));
}

#[test]
fn who_came_without_its_memory_gets_nothing_back_from_who_was_started_again() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, false);
    assert!(!cluster.gives_back_after_start());
}

/// Beside it there may be parts of what it has rebuilt in an earlier life.
#[test]
fn who_was_started_again_and_held_some_of_it_before_gives_nothing_back() {
    let (mut cluster, of) = Cluster::lost_after_a_move(level::NEWEST);
    let asked = cluster.asked_of_started_again(of.streamlet);
    assert!(!cluster.state.may_give_back_after_start(&asked));
    assert!(!cluster.state.may_give_back_after_start(&GiveBack { keeps: vec![1], ..asked }));
}

/// Of what an earlier life has deleted, and may have written, nothing is left where the next one looks.
#[test]
fn of_what_records_were_deleted_since_nothing_goes_back_after_a_start() {
    for since in [false, true] {
        let mut cluster = Cluster::with_log(level::NEWEST);
        let stream = cluster.state.catalog.find(&"copied".into()).unwrap().id;
        let streamlet = (0..3).find(|at| cluster.state.owner(stream, *at).unwrap().node == 1).unwrap();
        let delete = |cluster: &mut Cluster| {
            let owner_epoch = cluster.state.owner(stream, streamlet).unwrap().owner_epoch;
            cluster.apply(&[ClusterEntry::LaneBegins { stream, streamlet, lane: LaneId(0), owner_epoch, ordinal: 3 }]);
        };
        if !since {
            delete(&mut cluster);
        }
        cluster.lose(1, 1);
        if since {
            delete(&mut cluster);
        }
        cluster.joins(1, true);
        assert_eq!(cluster.gives_back_after_start(), !since);
    }
}

/// Node 1 was started again before it was lost, and went on with all it had: what is in the log of its first life it had in the second one as well.
fn lost_in_its_second_life(is_seen: bool, is_sent: bool) -> Cluster {
    let mut cluster = Cluster::with_log(level::NEWEST);
    cluster.starts_again(1);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    if !is_seen {
        cluster = cluster.in_snapshot();
    }
    if is_sent {
        cluster = cluster.is_sent(&cluster);
    }
    cluster.lose(1, 2);
    cluster.joins(1, true);
    cluster
}

#[test]
fn what_earlier_lives_had_in_their_logs_must_be_known_to_have_come_along() {
    assert!(lost_in_its_second_life(true, false).gives_back_after_start());
    // In its second life somebody may have given it back what it had cut some of. Of the log of that life alone it has all.
    for (is_seen, is_sent) in [(false, false), (true, true)] {
        assert!(!lost_in_its_second_life(is_seen, is_sent).gives_back_after_start());
    }
    let (state, _) = copied::cluster(3, 2, level::NEWEST);
    let mut cluster = Cluster { state };
    cluster.starts_again(1);
    begin_view(&mut cluster.state, LogName { epoch: 2, ..LOG }, 1, vec![2]);
    let mut cluster = cluster.in_snapshot();
    cluster.lose(1, 2);
    cluster.joins(1, true);
    assert!(cluster.gives_back_after_start());
}

/// The life of which a snapshot tells was over by then, and what became of its streamlets was not seen.
#[test]
fn what_a_life_had_in_its_logs_that_was_over_before_anything_was_seen_is_not_known() {
    for is_over in [false, true] {
        let mut cluster = Cluster::with_log(level::NEWEST);
        if !is_over {
            cluster = cluster.in_snapshot();
        }
        fence(&mut cluster.state, 1);
        cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
        if is_over {
            cluster = cluster.in_snapshot();
        }
        let recovered = cluster.state.plan_recover(1, 1).unwrap();
        cluster.apply(&recovered);
        cluster.joins(1, true);
        assert_eq!(cluster.gives_back_after_start(), !is_over);
    }
}

/// A streamlet has one copy, and some copies more of it are in the log of its node's first life when that node is lost. If the second life comes without the disk it goes on with nothing,
/// gets all copies that are wanted, and is lost as well: who takes over then reads what that log has, and may tell of it.
#[test]
fn what_a_life_lacks_that_came_without_its_disk_is_no_copy_of_what_its_earlier_logs_have() {
    for (has_all, life_of_log) in [(true, 1), (false, 1), (false, 2)] {
        let (state, stream) = copied::cluster(3, 1, level::NEWEST);
        let mut cluster = Cluster { state };
        let at = cluster.streamlet_of(stream, 1);
        wants(&mut cluster.state, stream, 2);
        if life_of_log == 1 {
            begin_view(&mut cluster.state, LOG, 1, vec![2]);
        }
        fence(&mut cluster.state, 1);
        if life_of_log == 1 {
            cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
        }
        cluster.joins(1, has_all);
        let owner = cluster.state.owner(stream, at).unwrap();
        assert_eq!((owner.node, owner.epoch, owner.copies), (1, 2, 1), "what has one copy waits for its node");
        if life_of_log == 2 {
            begin_view(&mut cluster.state, LogName { epoch: 2, ..LOG }, 1, vec![2]);
        }
        owner_makes(&mut cluster.state, stream, at).unwrap();
        assert_eq!(cluster.state.copies_of(stream, at), 2);
        cluster.lose(1, 2);
        cluster.joins(1, true);
        assert_eq!(cluster.gives_back_after_start(), has_all || life_of_log == 2, "{has_all}, {life_of_log}");
    }
}

/// What owners ask, those that were started again since they took over and those that were not.
#[test]
fn an_owner_gives_back_what_is_uncut_and_unwritten_after_a_start_and_else_in_one_life_alone() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let of = cluster.may_get_back()[0];
    let asked = cluster.asked(&of);
    let said = [(false, false), (true, false), (false, true), (true, true)];
    let gives = |cluster: &Cluster, asked: &GiveBack| {
        said.map(|(is_uncut, is_unwritten)| cluster.state.gives_back(asked, is_uncut, is_unwritten))
    };
    assert_eq!(gives(&cluster, &asked), [true; 4]);
    let asked = cluster.asked_of_started_again(of.streamlet);
    assert_eq!(gives(&cluster, &asked), [false, false, false, true]);
}

/// It had cut what was under way when it got it back, and the log of its first life still has that.
#[test]
fn what_was_given_back_before_does_not_go_back_after_a_start() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    cluster.gives_back(&cluster.asked(&cluster.may_get_back()[0]));
    cluster.lose(1, 2);
    cluster.joins(1, true);
    assert!(cluster.state.may_give_back(&cluster.asked(&cluster.may_get_back()[0])));
    assert!(!cluster.gives_back_after_start());
}

/// It decided in its second life once more what it rebuilt, and the log of its first one has what it had decided then. What it simply went on with is not like that.
#[test]
fn what_its_node_went_on_rebuilding_does_not_go_back_after_a_start() {
    let (state, stream) = copied::cluster(3, 2, level::NEWEST);
    let mut cluster = Cluster { state };
    let (own, third) = (cluster.streamlet_of(stream, 1), cluster.streamlet_of(stream, 3));
    begin_view(&mut cluster.state, LOG, 1, vec![2]);
    fence(&mut cluster.state, 3);
    cluster.taken_over_by(stream, third, 1);
    cluster.starts_again(1);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 5 }]);
    cluster.rebuilt(stream, third);
    cluster.joins(3, false);
    fence(&mut cluster.state, 1);
    for streamlet in [own, third] {
        cluster.taken_over_by(stream, streamlet, 2);
    }
    cluster.joins(1, true);
    let asked = cluster.asked_of_started_again(own);
    assert!(cluster.state.may_give_back_after_start(&asked));
    let asked = cluster.asked(&cluster.may_get_back_of(third));
    assert!(!cluster.state.may_give_back_after_start(&asked));
}

/// Another one had it in between, and has decided what there was.
#[test]
fn what_others_have_taken_over_in_between_does_not_go_back_after_a_start() {
    let mut cluster = Cluster::lost(level::NEWEST);
    cluster.joins(1, true);
    let Offerable { stream, streamlet, owner, .. } = cluster.may_get_back()[0];
    cluster.rebuilt(stream, streamlet);
    cluster.moves(stream, streamlet, 1);
    fence(&mut cluster.state, 1);
    cluster.taken_over_by(stream, streamlet, 5 - owner);
    cluster.joins(1, true);
    let asked = cluster.asked_of_started_again(streamlet);
    assert!(!cluster.state.may_give_back_after_start(&asked));
}
