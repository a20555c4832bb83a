//! Streams that get another number of copies: streamlet by streamlet, and in all that losses mean only when everybody has made them.

use kera_coordinator::cluster::{ClusterState, ToCopy};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::{Durability, StreamId, StreamOptions, level};
use kera_protocol::{CopiesMade, CreateStream, Status, StreamChanges};

use crate::support::changing::{MOST, ask, made, owner_makes, wants};
use crate::support::copied::{self, apply, begin_view, fence, join};
use crate::support::moved::moves;

/// Three nodes at a level, and a stream with so many copies of which each owns two streamlets.
fn cluster(copies: u32, level: u32) -> (ClusterState, StreamId) {
    let (mut state, stream) = copied::cluster(3, copies, level);
    let changes = StreamChanges { streamlets: Some(6), ..StreamChanges::default() };
    let altered = state.plan_alter_stream(&stream.into(), &changes, &MOST, 0).unwrap();
    apply(&mut state, &altered);
    (state, stream)
}

fn says(state: &ClusterState, stream: StreamId) -> u32 {
    state.catalog.find(&stream.into()).unwrap().options.replication
}

/// What is taken over from a lost node, all of whose logs have ended.
fn recovered(state: &ClusterState, node: NodeNumber) -> Vec<u32> {
    let entries = state.plan_recover(node, state.node(node).unwrap().epoch).unwrap();
    let of = |entry: &ClusterEntry| match entry {
        ClusterEntry::OwnerChanged { first, count, .. } => *first..first + count,
        other => panic!("{other:?}"),
    };
    entries.iter().flat_map(of).collect()
}

#[test]
fn a_streamlet_waits_for_its_node_until_its_copies_are_made() {
    let (mut state, stream) = cluster(1, level::NEWEST);
    let mine: Vec<u32> = (0..6).filter(|at| state.owner(stream, *at).unwrap().node == 2).collect();
    wants(&mut state, stream, 3);
    assert_eq!(ask(&state, stream, 3), Ok(Vec::new()), "asking twice is answered like asking once");
    assert_eq!((says(&state, stream), state.wanted_copies(stream)), (1, Some(3)));
    let epoch = state.node(2).unwrap().epoch;
    let of = |at: &u32| {
        let owner_epoch = state.owner(stream, *at).unwrap().owner_epoch;
        ToCopy { stream, streamlet: *at, copies: 1, wanted: 3, is_owner: true, owner_epoch }
    };
    assert_eq!(state.to_copy(2, epoch), mine.iter().map(of).collect::<Vec<_>>());
    let log = LogName { node: 2, epoch, log: 0 };
    begin_view(&mut state, log, 1, vec![1, 3]);
    owner_makes(&mut state, stream, mine[0]).unwrap();
    assert_eq!((state.copies_of(stream, mine[0]), state.copies_of(stream, mine[1])), (3, 1));
    assert_eq!((says(&state, stream), state.plan_say_copies(0).unwrap()), (1, Vec::new()), "not all are there");
    assert_eq!(state.copy_changes(9).changes[0].there, 1);

    let mut lost = state.clone();
    fence(&mut lost, 2);
    apply(&mut lost, &[ClusterEntry::LogEnded { log, end: 5 }]);
    assert_eq!(recovered(&lost, 2), [mine[0]], "the others have one copy");
    assert_eq!(lost.copy_changes(9).changes[0].waits_for, [2]);
    // It is back without what it had: what has copies is the others', the rest it gets with what it has.
    let mut back = lost.clone();
    let joined = back.plan_join(&join(2, false), 0).unwrap();
    apply(&mut back, &joined);
    let owner = |at: &u32| (back.owner(stream, *at).unwrap().epoch, back.copies_of(stream, *at));
    assert_eq!(owner(&mine[0]), (epoch, 3));
    assert!(mine[1..].iter().all(|at| owner(at) == (epoch + 1, 1)), "it has those of one copy again");

    (0..6).filter(|at| *at != mine[0]).for_each(|at| owner_makes(&mut state, stream, at).unwrap());
    let said = state.plan_say_copies(0).unwrap();
    apply(&mut state, &said);
    assert_eq!((says(&state, stream), state.wanted_copies(stream)), (3, None));
    assert_eq!(state.to_copy(2, epoch), []);
    fence(&mut state, 2);
    apply(&mut state, &[ClusterEntry::LogEnded { log, end: 5 }]);
    assert_eq!(recovered(&state, 2), mine);
}

/// What was written before a move is at another node: the owner does not have all of the streamlet.
#[test]
fn who_holds_older_groups_makes_its_copies_first_and_in_a_life_that_lasts() {
    let (mut state, stream) = cluster(1, level::NEWEST);
    let from = state.owner(stream, 0).unwrap().node;
    let to = from % 3 + 1;
    moves(&mut state, stream, 0, to);
    wants(&mut state, stream, 2);
    assert!(!state.may_be_copied(stream, 0));
    let refused = owner_makes(&mut state, stream, 0).unwrap_err();
    assert!(refused.contains(&format!("node {from} holds older groups")), "{refused}");
    let epoch = state.node(from).unwrap().epoch;
    let holds =
        |state: &ClusterState, epoch| state.to_copy(from, epoch).iter().any(|of| of.streamlet == 0 && !of.is_owner);
    assert!(holds(&state, epoch));
    let told = state.plan_copies_made(&made(&state, (stream, 0), from, 0)).unwrap();
    apply(&mut state, &told);
    assert!(!holds(&state, epoch) && state.may_be_copied(stream, 0));
    assert_eq!(state.plan_copies_made(&made(&state, (stream, 0), from, 0)).unwrap(), [], "asked twice");

    // Its next life has its copies in logs of one that is over, which may go: it makes them again.
    let mut again = state.clone();
    let joined = again.plan_join(&join(from, true), 0).unwrap();
    apply(&mut again, &joined);
    assert!(holds(&again, epoch + 1) && !again.may_be_copied(stream, 0));
    owner_makes(&mut again, stream, 0).unwrap_err();
    // So it is if it is lost.
    let mut lost = state.clone();
    fence(&mut lost, from);
    owner_makes(&mut lost, stream, 0).unwrap_err();
    // What it said of another number says nothing of this one.
    let mut other = state.clone();
    wants(&mut other, stream, 3);
    owner_makes(&mut other, stream, 0).unwrap_err();

    // Nor does what the owner says that has copied for another number.
    let mut late = state.clone();
    let owner = late.owner(stream, 0).unwrap();
    let noted = late.plan_renew(stream, 0, (owner.node, owner.epoch)).unwrap();
    apply(&mut late, &noted);
    let said = made(&late, (stream, 0), owner.node, late.move_of(stream, 0).unwrap());
    assert!(late.plan_copies_made(&said).is_ok());
    let other = CopiesMade { copies: 3, ..said };
    let refused = late.plan_copies_made(&other).unwrap_err().to_string();
    assert!(refused.contains("is not to have 3 copies"), "{refused}");

    owner_makes(&mut state, stream, 0).unwrap();
    assert_eq!(state.copies_of(stream, 0), 2);
    let held: Vec<_> = state.held_by(from);
    assert_eq!(held.len(), 1, "it holds what it held");
    let (back, _) = state.came_back_with(from, epoch);
    assert!(back.iter().any(|(of, range)| *of == stream && range.contains(&0)), "and that has copies: {back:?}");
}

/// A node that has made the copies of what it held gets the streamlet, and holds more when it has gone on: what it wrote with one copy.
#[test]
fn who_comes_to_hold_more_makes_its_copies_once_more() {
    let (mut state, stream) = cluster(1, level::NEWEST);
    let from = state.owner(stream, 0).unwrap().node;
    let to = from % 3 + 1;
    moves(&mut state, stream, 0, to);
    // Two more streamlets of which others hold something: what is said of those stays true.
    let others: Vec<u32> = (1..6).filter(|at| state.owner(stream, *at).unwrap().node == to).collect();
    others.iter().for_each(|at| moves(&mut state, stream, *at, from));
    wants(&mut state, stream, 2);
    let says = |state: &mut ClusterState, at, node| {
        let told = state.plan_copies_made(&made(state, (stream, at), node, 0)).unwrap();
        apply(state, &told);
    };
    says(&mut state, 0, from);
    others.iter().for_each(|at| says(&mut state, *at, to));
    let waits = |state: &ClusterState, node| {
        let work = state.to_copy(node, state.node(node).unwrap().epoch);
        work.iter().filter(|of| !of.is_owner).map(|of| of.streamlet).collect::<Vec<_>>()
    };
    assert_eq!((waits(&state, from), waits(&state, to)), (vec![], vec![]));

    moves(&mut state, stream, 0, from);
    let refused = state.plan_copies_made(&made(&state, (stream, 0), from, 0)).unwrap_err().to_string();
    assert!(refused.contains(&format!("node {from} owns streamlet 0")), "{refused}");
    moves(&mut state, stream, 0, to);
    assert_eq!((waits(&state, from), waits(&state, to)), (vec![0], vec![]));
    let refused = owner_makes(&mut state, stream, 0).unwrap_err();
    assert!(refused.contains(&format!("node {from} holds older groups")), "{refused}");
    others.iter().for_each(|at| owner_makes(&mut state, stream, *at).unwrap());

    says(&mut state, 0, from);
    owner_makes(&mut state, stream, 0).unwrap();
    assert_eq!(state.copies_of(stream, 0), 2);
}

/// It was believed, and what it wrote in the meantime was said to have two copies and had one.
#[test]
fn what_was_said_before_the_streamlet_came_and_went_again_counts_for_nothing() {
    for level in [level::NEWEST, level::COPIED_IN - 1] {
        let (mut state, stream) = cluster(1, level);
        let from = state.owner(stream, 0).unwrap().node;
        let to = from % 3 + 1;
        moves(&mut state, stream, 0, to);
        wants(&mut state, stream, 2);
        let late = made(&state, (stream, 0), from, 0);
        moves(&mut state, stream, 0, from);
        moves(&mut state, stream, 0, to);
        let refused = state.plan_copies_made(&late).unwrap_err().to_string();
        assert!(refused.contains(&format!("as it was in owner epoch {}", late.owner_epoch)), "{refused}");
        // One of an earlier version does not say it, and is believed until all nodes say it.
        let earlier = CopiesMade { owner_epoch: 0, ..late };
        assert_eq!(state.plan_copies_made(&earlier).is_ok(), level < level::COPIED_IN);
        owner_makes(&mut state, stream, 0).unwrap_err();
        let again = state.plan_copies_made(&made(&state, (stream, 0), from, 0)).unwrap();
        apply(&mut state, &again);
        owner_makes(&mut state, stream, 0).unwrap();
    }
}

#[test]
fn only_a_move_to_the_same_node_for_it_changes_the_number() {
    let (mut state, stream) = cluster(2, level::NEWEST);
    wants(&mut state, stream, 3);
    let owner = state.owner(stream, 0).unwrap();
    let to = owner.node % 3 + 1;
    moves(&mut state, stream, 0, to);
    assert_eq!(state.copies_of(stream, 0), 2, "who has it next copies it as often as before");
    let noted = state.plan_move(&stream.into(), 0, owner.node).unwrap();
    apply(&mut state, &noted);
    let number = state.move_of(stream, 0).unwrap();
    let refused = state.plan_copies_made(&made(&state, (stream, 0), owner.node, number)).unwrap_err().to_string();
    assert!(refused.contains("is not to the node that has the streamlet"), "{refused}");
    // Nobody asks holders when there are to be fewer.
    let off = state.plan_call_off(number).unwrap();
    apply(&mut state, &off);
    owner_makes(&mut state, stream, 0).unwrap_err();
    let changed = ask(&state, stream, 2).unwrap();
    assert_eq!(changed, [ClusterEntry::CopiesWanted { stream, copies: 0 }], "it has them already");
}

#[test]
fn fewer_copies_are_there_at_once_and_one_is_refused() {
    let (mut state, stream) = cluster(3, level::NEWEST);
    let from = state.owner(stream, 0).unwrap().node;
    moves(&mut state, stream, 0, from % 3 + 1);
    let refused = ask(&state, stream, 1).unwrap_err();
    assert!(refused.contains("2 is the least"), "{refused}");
    wants(&mut state, stream, 2);
    (0..6).for_each(|at| owner_makes(&mut state, stream, at).unwrap());
    let said = state.plan_say_copies(0).unwrap();
    apply(&mut state, &said);
    assert_eq!(says(&state, stream), 2);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let (state, stream) = cluster(1, level::NEWEST);
    let says_why = |copies| ask(&state, stream, copies).unwrap_err();
    assert!(says_why(4).contains("there are 3 nodes to hold copies; ask for 3 at most"), "{}", says_why(4));
    assert!(says_why(17).contains("replication"), "{}", says_why(17));
    let changes =
        StreamChanges { replication: Some(3), durability: Some(Durability::Power), ..StreamChanges::default() };
    let both = state.plan_alter_stream(&stream.into(), &changes, &MOST, 0).unwrap_err().to_string();
    assert!(both.contains("cannot change while its number of copies does"), "{both}");
    let (earlier, stream) = cluster(1, level::CHANGED_COPIES - 1);
    let low = ask(&earlier, stream, 3).unwrap_err();
    assert!(low.contains(&format!("needs level {}", level::CHANGED_COPIES)), "{low}");
}

/// All of it would be copied twice: now with fewer copies than are wanted, and again when the node is back.
#[test]
fn a_stream_gets_no_more_copies_for_now_than_there_are_live_nodes() {
    let (mut state, stream) = cluster(1, level::NEWEST);
    fence(&mut state, 3);
    let changes = StreamChanges { replication: Some(3), ..StreamChanges::default() };
    let later = state.plan_alter_stream(&stream.into(), &changes, &MOST, 0).unwrap_err();
    assert_eq!((later.status(), later.body().retry_after_ms > 0), (Status::Overloaded, true));
    assert_eq!(
        later.to_string(),
        "replication is 3, which needs 3 live nodes to hold copies, and there are 2; start node 3, or ask for 2 at most for now"
    );
    assert!(ask(&state, stream, 4).unwrap_err().contains("there are 3 nodes to hold copies; ask for 3 at most"));
    assert!(ask(&state, stream, 2).is_ok());
    let joined = state.plan_join(&join(3, true), 0).unwrap();
    apply(&mut state, &joined);
    wants(&mut state, stream, 3);
    // To call a change off of which nothing has come takes nobody.
    let (mut state, stream) = cluster(3, level::NEWEST);
    wants(&mut state, stream, 2);
    fence(&mut state, 3);
    wants(&mut state, stream, 3);
    assert_eq!(state.wanted_copies(stream), None);
}

/// A change that nobody wants any more is over if nothing came of it, and is turned back otherwise; to one copy there is no way back.
#[test]
fn a_change_is_called_off_by_asking_for_what_there_was() {
    let (mut state, stream) = cluster(1, level::NEWEST);
    wants(&mut state, stream, 3);
    wants(&mut state, stream, 1);
    assert_eq!(state.wanted_copies(stream), None);
    wants(&mut state, stream, 3);
    owner_makes(&mut state, stream, 0).unwrap();
    let refused = ask(&state, stream, 1).unwrap_err();
    assert!(refused.contains("cannot become one node's alone"), "{refused}");
    wants(&mut state, stream, 2);
    owner_makes(&mut state, stream, 0).unwrap();
    assert_eq!(state.copies_of(stream, 0), 2);
    let deleted = state.plan_delete_stream(&stream.into(), 0).unwrap();
    apply(&mut state, &deleted);
    assert_eq!((state.wanted_copies(stream), state.copy_changes(9).changes), (None, Vec::new()));
}

/// What the cluster keeps for itself was made when there was one node, and gets its copies when others come.
#[test]
fn what_the_cluster_keeps_for_itself_gets_more_copies_with_more_nodes() {
    let mut state = ClusterState::default();
    let founded = state.plan_found([9; 16], &join(1, true), 0).unwrap();
    apply(&mut state, &founded);
    (state.level() + 1..=level::NEWEST).for_each(|level| apply(&mut state, &[ClusterEntry::LevelRaised { level }]));
    let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
    let request = CreateStream { name: "_kera.cluster.groups".into(), options, if_not_exists: false };
    let created = state.plan_create_stream(&request, &MOST, 0, true).unwrap();
    apply(&mut state, &created);
    let stream = state.catalog.find(&"_kera.cluster.groups".into()).unwrap().id;
    assert_eq!(state.plan_more_copies(&MOST).unwrap(), [], "there is nobody");
    for node in 2..=4 {
        let joined = state.plan_join(&join(node, true), 0).unwrap();
        apply(&mut state, &joined);
        let more = state.plan_more_copies(&MOST).unwrap();
        apply(&mut state, &more);
        assert_eq!(state.wanted_copies(stream), Some(node.min(3)));
        assert_eq!(state.plan_more_copies(&MOST).unwrap(), []);
    }
    (0..2).for_each(|at| owner_makes(&mut state, stream, at).unwrap());
    let said = state.plan_say_copies(0).unwrap();
    apply(&mut state, &said);
    assert_eq!((says(&state, stream), state.plan_more_copies(&MOST).unwrap()), (3, Vec::new()));
}
