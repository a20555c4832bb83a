//! A node that came back holds again what it had, instead of the owner who rebuilds that; and not in any other case.

use kera_coordinator::cluster::{ClusterState, Offerable, Offers};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::{GroupId, LaneId, StreamletId, level};
use kera_protocol::placement::{KeptGroup, LaneState, Memory};
use kera_protocol::{RebuildRange, ReturnGroups, StreamletState, StreamletsRebuilt, WholeLane};

use crate::support::copied::{self, begin_view, fence};

struct Cluster {
    state: ClusterState,
}

/// The log of node 1 before it was lost.
const LOG: LogName = LogName { node: 1, epoch: 1, log: 0 };

impl Cluster {
    /// Three nodes, each with a streamlet. Node 1 is lost, node 2 or 3 rebuilds what it had, and it is back.
    fn with_return(level: u32) -> Cluster {
        let (mut state, _) = copied::cluster(3, 2, level);
        begin_view(&mut state, LOG, 1, vec![2]);
        let mut cluster = Cluster { state };
        cluster.lose(1, 1);
        cluster.joins(1, true);
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

    /// What node 1 may offer.
    fn offerable(&self) -> Vec<Offerable> {
        let epoch = self.state.node(1).unwrap().epoch;
        self.state.offerable(1, epoch)
    }

    /// What the owner of an offered streamlet asks for.
    fn asked(&self, of: &Offerable) -> ReturnGroups {
        let state = StreamletState {
            stream: of.stream,
            streamlet: StreamletId(of.streamlet),
            epoch: 0,
            lanes: Vec::new(),
            progress: Vec::new(),
        };
        ReturnGroups {
            node: of.owner,
            epoch: self.state.node(of.owner).unwrap().epoch,
            stream: of.stream,
            streamlet: StreamletId(of.streamlet),
            owner_epoch: of.owner_epoch,
            holder: 1,
            holder_epoch: self.state.node(1).unwrap().epoch,
            state: kera_protocol::codec::bytes_of(&state),
        }
    }

    /// The same of an owner that has written two records itself in an earlier owner epoch.
    fn asked_beside(&self, of: &Offerable, own_epoch: u32) -> ReturnGroups {
        let own = KeptGroup { group: GroupId::new(own_epoch, 1), first_ordinal: 10, next_ordinal: 12 };
        let lane = LaneState {
            lane: LaneId(0),
            next_ordinal: 12,
            last_append_ms: 0,
            memory: Memory::Whole,
            producers: Vec::new(),
            groups: vec![own],
        };
        let asked = self.asked(of);
        let state = StreamletState { lanes: vec![lane], ..read(&asked.state) };
        ReturnGroups { state: kera_protocol::codec::bytes_of(&state), ..asked }
    }

    /// The owner of an offered streamlet is killed, comes back with all it had, and goes on.
    fn starts_again(&mut self, of: &Offerable) {
        fence(&mut self.state, of.owner);
        self.joins(of.owner, true);
    }

    /// Who has older groups of a streamlet, by the table: owner epochs and nodes.
    fn held(&self, of: &Offerable) -> Vec<(u32, NodeNumber)> {
        let held = self.state.owners(of.stream).unwrap().held_of(of.streamlet);
        held.map(|held| (held.owner_epoch, if held.lost { 0 } else { held.node })).collect()
    }

    fn gives_back(&mut self, of: &Offerable) {
        let asked = self.asked(of);
        let entries = self.state.plan_returned(&asked).unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        self.apply(&entries);
        assert_eq!(self.state.plan_returned(&asked).unwrap(), [], "asking twice is answered like asking once");
    }

    fn refuses(&self, asked: &ReturnGroups, words: &str) {
        let refused = self.state.plan_returned(asked).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
    }

    fn rebuilt(&mut self, of: &Offerable) {
        let (node, epoch) = (of.owner, self.state.node(of.owner).unwrap().epoch);
        let Offerable { stream, streamlet: first, owner_epoch, .. } = *of;
        let streamlets = vec![RebuildRange { stream, first, count: 1, owner_epoch }];
        let entries = self.state.plan_rebuilt(&StreamletsRebuilt { node, epoch, streamlets }).unwrap();
        self.apply(&entries);
    }

    /// Who has the groups of node 1's first life, by the table.
    fn holder(&self, of: &Offerable) -> NodeNumber {
        let held: Vec<_> = self.state.owners(of.stream).unwrap().held_of(of.streamlet).collect();
        held.first().map_or(0, |held| if held.lost { 0 } else { held.node })
    }
}

#[test]
fn a_node_that_came_back_holds_what_it_had_and_the_owner_stays_the_owner() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let [of] = cluster.offerable()[..] else { panic!("{:?}", cluster.offerable()) };
    cluster.gives_back(&of);
    assert_eq!(cluster.holder(&of), 1);
    let owner = cluster.state.owner(of.stream, of.streamlet).unwrap();
    assert_eq!((owner.node, owner.owner_epoch, owner.rebuilding), (of.owner, of.owner_epoch, true));
    assert!(cluster.state.handed(of.stream, of.streamlet).is_some(), "where its lanes went on is known");
    assert_eq!(cluster.offerable(), [], "once");
    // Its copies are in the node's old log: that stays, for the node alone knows when they are elsewhere.
    cluster.rebuilt(&of);
    assert_eq!(cluster.state.plan_give_up_lost().unwrap(), []);
}

fn read(state: &[u8]) -> StreamletState {
    <StreamletState as kera_protocol::Body>::decode(1, state).unwrap()
}

/// It would be looked for at the node that came back, which has nothing of it, and would be lost with its owner.
#[test]
fn what_the_owner_wrote_before_it_was_started_again_stays_with_it() {
    let mut cluster = Cluster::with_return(level::NEWEST);
    let first = cluster.offerable()[0];
    cluster.starts_again(&first);
    let [of] = cluster.offerable()[..] else { panic!("{:?}", cluster.offerable()) };
    assert!(of.owner == first.owner && of.owner_epoch > first.owner_epoch, "{of:?}");
    let asked = cluster.asked_beside(&of, first.owner_epoch);
    let entries = cluster.state.plan_returned(&asked).unwrap();
    assert!(matches!(entries[0], ClusterEntry::GroupsReturned { .. }), "what may be refused comes first: {entries:?}");
    cluster.apply(&entries);
    assert_eq!(cluster.held(&of), [(1, 1), (first.owner_epoch, of.owner)]);
    assert_eq!(cluster.state.plan_returned(&asked).unwrap(), [], "asking twice is answered like asking once");
    let handed = read(&cluster.state.handed(of.stream, of.streamlet).unwrap());
    assert_eq!((handed.lanes[0].next_ordinal, handed.lanes[0].groups.len()), (12, 0));
    // In yet another life it is told apart like that, too.
    cluster.starts_again(&of);
    let own = [(1, 1), (first.owner_epoch, of.owner), (of.owner_epoch, of.owner)];
    assert_eq!(cluster.held(&of), own);
}

#[test]
fn what_an_owner_wrote_in_each_of_its_lives_stays_with_it() {
    let mut cluster = Cluster::with_return(level::NEWEST);
    let first = cluster.offerable()[0];
    cluster.starts_again(&first);
    let second = cluster.offerable()[0];
    cluster.starts_again(&second);
    let of = cluster.offerable()[0];
    let entries = cluster.state.plan_returned(&cluster.asked_beside(&of, first.owner_epoch)).unwrap();
    cluster.apply(&entries);
    assert_eq!(cluster.held(&of), [(1, 1), (first.owner_epoch, of.owner), (second.owner_epoch, of.owner)]);
}

#[test]
fn what_is_not_in_front_of_what_the_owner_wrote_is_not_given_back() {
    for level in [level::RETURNED_IN_FRONT - 1, level::RETURNED_IN_FRONT] {
        let mut cluster = Cluster::with_return(level);
        let first = cluster.offerable()[0];
        cluster.starts_again(&first);
        let of = cluster.offerable()[0];
        if level < level::RETURNED_IN_FRONT {
            cluster.refuses(&cluster.asked_beside(&of, first.owner_epoch), "needs level 25");
            continue;
        }
        cluster.refuses(&cluster.asked_beside(&of, of.owner_epoch), "are not older than");
        cluster.refuses(&cluster.asked_beside(&of, 1), "nothing of streamlet");
        assert_eq!(cluster.held(&of), [(1, of.owner), (first.owner_epoch, of.owner)]);
    }
}

#[test]
fn what_is_rebuilt_is_not_given_back() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let of = cluster.offerable()[0];
    let asked = cluster.asked(&of);
    cluster.rebuilt(&of);
    cluster.refuses(&asked, "is not being rebuilt");
    assert_eq!(cluster.offerable(), []);
}

#[test]
fn neither_an_earlier_life_of_the_node_nor_one_of_the_owner_counts() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let of = cluster.offerable()[0];
    let asked = cluster.asked(&of);
    let entry = ClusterEntry::GroupsReturned {
        stream: of.stream,
        streamlet: of.streamlet,
        owner_epoch: of.owner_epoch - 1,
        node: 1,
        epoch: asked.holder_epoch,
    };
    let refused = cluster.state.apply(&entry).expect_err("the owner epoch is over");
    assert!(refused.to_string().contains("has owner epoch"), "{refused}");
    cluster.lose(1, asked.holder_epoch);
    cluster.refuses(&asked, "is over");
    cluster.joins(1, true);
    cluster.refuses(&asked, "is over");
    let asked = cluster.asked(&of);
    cluster.lose(of.owner, asked.epoch);
    cluster.refuses(&asked, "does not own");
    // The next owner has another owner epoch, and is asked itself.
    let next = cluster.offerable();
    assert!(next.iter().all(|next| next.owner_epoch > of.owner_epoch && next.owner != of.owner), "{next:?}");
}

#[test]
fn what_came_back_is_gathered_if_the_node_is_lost_again() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let of = cluster.offerable()[0];
    cluster.gives_back(&of);
    let epoch = cluster.state.node(1).unwrap().epoch;
    cluster.lose(1, epoch);
    assert_eq!(cluster.state.plan_gather().unwrap(), [], "not before the rest is rebuilt");
    cluster.rebuilt(&of);
    assert!(cluster.state.plan_give_up_lost().unwrap().is_empty(), "it is gathered from the node's old log");
    let gathered = cluster.state.plan_gather().unwrap();
    assert_eq!(gathered.len(), 1, "{gathered:?}");
    cluster.apply(&gathered);
    assert_eq!(cluster.holder(&of), of.owner);
}

#[test]
fn a_node_that_comes_back_again_without_its_memory_has_lost_it() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let of = cluster.offerable()[0];
    cluster.gives_back(&of);
    cluster.joins(1, true);
    assert_eq!(cluster.holder(&of), 1, "with its memory it still has it");
    cluster.joins(1, false);
    assert_eq!(cluster.holder(&of), 0);
}

#[test]
fn the_next_owner_leaves_what_came_back_where_it_is() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let of = cluster.offerable()[0];
    cluster.gives_back(&of);
    cluster.lose(of.owner, 1);
    let owner = cluster.state.owner(of.stream, of.streamlet).unwrap();
    assert!(owner.node != of.owner && owner.rebuilding, "{owner:?}");
    assert_eq!(cluster.holder(&of), 1);
    let newer = cluster.state.owners(of.stream).unwrap().held_of(of.streamlet).last().unwrap();
    assert_eq!((newer.owner_epoch, newer.node), (of.owner_epoch, owner.node), "it has what the last owner wrote");
}

#[test]
fn below_its_level_nothing_is_offered() {
    let cluster = Cluster::with_return(level::RETURNED_GROUPS - 1);
    assert_eq!(cluster.offerable(), []);
    let above = Cluster::with_return(level::RETURNED_GROUPS);
    cluster.refuses(&above.asked(&above.offerable()[0]), "needs level");
}

/// What a node has of a lane.
fn some() -> Option<Vec<WholeLane>> {
    Some(vec![WholeLane { lane: LaneId(0), first_ordinal: 0, next_ordinal: 9 }])
}

#[test]
fn old_logs_are_kept_while_something_that_is_offered_may_come_to_be_held() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let me = (1, cluster.state.node(1).unwrap().epoch);
    let [of] = cluster.offerable()[..] else { panic!("{:?}", cluster.offerable()) };
    let mut offers = Offers::default();
    assert!(!offers.give_up_old_logs(&cluster.state, me, true), "it is offered in a moment");
    assert_eq!(offers.make(of, some), some());
    assert_eq!(offers.make(of, || None), some(), "the same as before, whatever retention has taken since");
    assert!(!offers.give_up_old_logs(&cluster.state, me, false));
    cluster.gives_back(&of);
    assert_eq!(offers.held(&cluster.state, 1).into_iter().collect::<Vec<_>>(), [(of.stream, of.streamlet)]);
    assert!(offers.give_up_old_logs(&cluster.state, me, true), "it knows what it holds");
}

#[test]
fn what_is_refused_keeps_no_old_logs_and_is_not_offered_again() {
    let cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let me = (1, cluster.state.node(1).unwrap().epoch);
    let of = cluster.offerable()[0];
    let mut offers = Offers::default();
    assert_eq!(offers.make(of, some), some());
    offers.refuse(of);
    assert_eq!(offers.make(of, some), None);
    assert!(offers.give_up_old_logs(&cluster.state, me, true));
    let mut offers = Offers::default();
    assert_eq!(offers.make(of, || None), None, "it has not all of it");
    assert!(offers.give_up_old_logs(&cluster.state, me, true));
}

/// The question whether old logs may go may be answered late.
#[test]
fn nothing_is_offered_once_old_logs_were_given_up() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let me = (1, cluster.state.node(1).unwrap().epoch);
    let of = cluster.offerable()[0];
    cluster.rebuilt(&of);
    let mut offers = Offers::default();
    assert!(offers.give_up_old_logs(&cluster.state, me, true));
    // Whoever rebuilds it next, should its owner be lost.
    let next = Offerable { owner_epoch: of.owner_epoch + 1, ..of };
    assert_eq!(offers.make(next, some), None);
}

#[test]
fn what_waits_for_an_owner_may_be_offered_yet() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let (of, epoch) = (cluster.offerable()[0], cluster.state.node(1).unwrap().epoch);
    cluster.rebuilt(&of);
    // Lost with what it got, and back before anybody has that.
    let owner = cluster.state.node(of.owner).unwrap().epoch;
    let fenced = cluster.state.plan_fence(of.owner, owner).unwrap();
    cluster.apply(&fenced);
    cluster.joins(of.owner, true);
    let me = (of.owner, cluster.state.node(of.owner).unwrap().epoch);
    let mine = cluster.state.owner(of.stream, of.streamlet).unwrap();
    let may = Offers::default().give_up_old_logs(&cluster.state, me, true);
    assert_eq!(may, mine.epoch == me.1, "{mine:?}");
    assert!(Offers::default().give_up_old_logs(&cluster.state, (1, epoch), true), "that is another node's");
}

#[test]
fn an_earlier_life_of_a_node_gives_up_nothing_of_it() {
    let mut cluster = Cluster::with_return(level::RETURNED_GROUPS);
    let (of, epoch) = (cluster.offerable()[0], cluster.state.node(1).unwrap().epoch);
    cluster.gives_back(&of);
    cluster.rebuilt(&of);
    assert_eq!(cluster.state.plan_give_up_old_log(LOG, epoch).unwrap().len(), 1, "it has copied that again");
    cluster.joins(1, true);
    let refused = cluster.state.plan_give_up_old_log(LOG, epoch).expect_err("it comes late").to_string();
    assert!(refused.contains("has asked"), "{refused}");
    assert_eq!(cluster.state.plan_give_up_old_log(LOG, epoch + 1).unwrap().len(), 1);
}
