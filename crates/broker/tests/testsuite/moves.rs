//! Streamlets that move between brokers: who takes writes, who is sent on, and what a reader sees of it.

use std::sync::Arc;

use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_log::DurabilitySink;
use kera_protocol::limits::OWNER_STREAMS_MAX;
use kera_protocol::{
    AvailableGroups, FindOwners, GroupList, Lookup, NodeInfo, OlderGroups, Owner, Role, Start, Status, StreamRef,
    StreamletState,
};
use kera_rpc::Flow;
use proptest::prelude::*;

use crate::common::cloud::{CLUSTER, X, owner};
use crate::common::*;

/// Two brokers that know of each other; the first one owns the stream's only streamlet since epoch 2.
struct Pair {
    houses: [House; 2],
    version: u64,
    epoch: u32,
    owner: Owner,
}

impl Pair {
    fn new(options: kera_format::StreamOptions) -> Pair {
        let houses = [House::new(), House::new()];
        for (number, house) in (1..).zip(&houses) {
            house.stream(STREAM, options.clone());
            house.broker.join_cluster(CLUSTER, number);
            house.broker.place_stream(1, STREAM, vec![owner(1, 2, &[])]).unwrap();
        }
        houses[0].broker.open_streamlet(STREAM, X, 2, None).unwrap();
        Pair { houses, version: 1, epoch: 2, owner: owner(1, 2, &[]) }
    }

    fn house(&self, node: u32) -> &House {
        &self.houses[node as usize - 1]
    }

    /// Steps 2 to 5 of a move, with the state sent as bytes.
    fn move_to(&mut self, to: u32) {
        let from = self.owner.node;
        self.house(from).broker.let_go(STREAM, X).unwrap();
        self.finish_move(to);
    }

    fn finish_move(&mut self, to: u32) {
        let state = self.next_owner(to);
        for node in [1, 2] {
            self.tell(node);
        }
        self.house(to).broker.open_streamlet(STREAM, X, self.epoch, Some(&state)).unwrap();
    }

    /// The coordinators make a node the owner. What was handed over to it.
    fn next_owner(&mut self, to: u32) -> StreamletState {
        let from = self.owner.node;
        let state = self.house(from).broker.handed_over(STREAM, X).unwrap().expect("all is durable");
        let bytes = kera_protocol::codec::bytes_of(&state);
        let state = <StreamletState as kera_protocol::Body>::decode(1, &bytes).unwrap();
        (self.version, self.epoch) = (self.version + 1, self.epoch + 1);
        let mut older = self.owner.older.clone();
        older.push(OlderGroups { first_epoch: self.owner.epoch, node: from });
        self.owner = Owner { node: to, epoch: self.epoch, older };
        state
    }

    /// A node hears who the owner is.
    fn tell(&self, node: u32) {
        self.house(node).broker.set_owner(self.version, STREAM, X, self.owner.clone()).unwrap();
    }

    /// Reads everything from a cursor on, at whichever node has it: ordinals, and the nodes in turn.
    fn read_all(&self, from: Cursor) -> (Vec<u64>, Vec<u32>) {
        let (mut cursor, mut all, mut nodes) = (from, Vec::new(), Vec::new());
        let mut node = self.owner.holder(cursor.group);
        for _ in 0..1_000 {
            if nodes.last() != Some(&node) {
                nodes.push(node);
            }
            let mut answers = self.house(node).peer().read(STREAM, cursor).answers;
            let Some((answer, data)) = answers.pop() else { return (all, nodes) };
            all.extend(ordinals(&data));
            cursor = answer.next;
            match answer.status() {
                Some(Status::Ok) => {}
                Some(Status::NotOwner) => {
                    let next = self.owner.holder(cursor.group);
                    assert_ne!(next, node, "sent on to itself");
                    node = next;
                }
                status => panic!("{status:?} at node {node}, next {cursor:?}"),
            }
        }
        panic!("the reader never comes to the end");
    }
}

fn write(house: &House, sequence: u64) -> (Status, u64, bool) {
    let written = house.peer().write(&[chunk_of(target(STREAM, 0, 7, sequence), 1, 40)]);
    let result = written.results[0];
    (result.status().unwrap(), result.base_ordinal, result.duplicate)
}

#[test]
fn only_the_owner_takes_writes_and_others_say_who_it_is() {
    let pair = Pair::new(options(1, 1));
    assert_eq!(write(pair.house(1), 0), (Status::Ok, 0, false));
    assert_eq!(write(pair.house(2), 1), (Status::NotOwner, 1 << 32 | 2, false));
    // What nobody has placed stays the node's own.
    pair.house(2).stream(StreamId(9), options(1, 1));
    let own = pair.house(2).peer().write(&[chunk_of(target(StreamId(9), 0, 7, 0), 1, 40)]);
    assert_eq!(statuses(&own), [Status::Ok]);
}

#[test]
fn writes_wait_while_a_streamlet_is_let_go_and_go_on_if_it_stays() {
    let pair = Pair::new(options(1, 1));
    let house = pair.house(1);
    assert_eq!(write(house, 0).0, Status::Ok);
    house.broker.let_go(STREAM, X).unwrap();
    let mut peer = house.peer();
    let next = write_request(&[chunk_of(target(STREAM, 0, 7, 1), 1, 40)], 1_000);
    assert_eq!(peer.send(&next), Flow::Blocked);
    peer.run(house);
    assert!(peer.is_blocked());
    house.broker.keep_streamlet(STREAM, X).unwrap();
    peer.run(house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
    assert_eq!(write(house, 1), (Status::Ok, 1, true));
}

#[test]
fn writes_that_waited_are_sent_to_the_next_owner() {
    let mut pair = Pair::new(options(1, 1));
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    let mut peer = pair.house(1).peer();
    let request = write_request(&[chunk_of(target(STREAM, 0, 7, 1), 1, 40)], 1_000);
    assert_eq!(peer.send(&request), Flow::Blocked);
    pair.finish_move(2);
    peer.run(pair.house(1));
    let answer: kera_protocol::WriteChunksResponse = peer.frame().decode();
    assert_eq!((statuses(&answer), answer.results[0].base_ordinal), (vec![Status::NotOwner], 2 << 32 | 3));
    // A retry of what was acknowledged, and what was not appended.
    assert_eq!(write(pair.house(2), 0), (Status::Ok, 0, true));
    assert_eq!(write(pair.house(2), 1), (Status::Ok, 1, false));
}

/// Nobody is told any more how the move ended.
#[test]
fn writes_that_wait_for_a_move_are_told_at_once_that_their_stream_is_gone() {
    let pair = Pair::new(options(1, 1));
    let house = pair.house(1);
    assert_eq!(write(house, 0).0, Status::Ok);
    house.broker.let_go(STREAM, X).unwrap();
    let mut peer = house.peer();
    assert_eq!(peer.send(&write_request(&[chunk_of(target(STREAM, 0, 7, 1), 1, 40)], 60_000)), Flow::Blocked);
    peer.run(house);
    assert!(peer.is_blocked());
    house.broker.stream_deleted(STREAM).unwrap();
    peer.run(house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::UnknownStream]);
}

#[test]
fn writes_do_not_wait_for_ever_for_a_move() {
    let pair = Pair::new(options(1, 1));
    let house = pair.house(1);
    house.broker.let_go(STREAM, X).unwrap();
    let mut peer = house.peer();
    assert_eq!(peer.send(&write_request(&[chunk_of(target(STREAM, 0, 7, 0), 1, 40)], 50)), Flow::Blocked);
    house.clock.advance_ms(60);
    peer.run(house);
    let frame = peer.frame();
    assert_eq!(frame.status(), Status::NotOwner);
    assert!(frame.error().message.contains("being moved"), "{:?}", frame.error());
}

#[test]
fn a_streamlet_goes_on_in_another_log_once_all_in_the_first_one_is_durable() {
    let mut pair = Pair::new(power(options(1, 1)));
    let other = Arc::new(ManualSink::default());
    let own = || Some((0, Arc::clone(&other) as Arc<dyn DurabilitySink>));
    let send =
        |peer: &mut Peer, sequence| peer.send(&write_request(&[chunk_of(target(STREAM, 0, 7, sequence), 1, 40)], 0));
    let mut peer = pair.house(1).peer();
    send(&mut peer, 0);
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    assert!(pair.house(1).broker.put_in_log(STREAM, X, own()).is_err(), "a chunk in the first log is not durable");
    pair.house(1).sink.sync();
    peer.run(pair.house(1));
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
    // The node moves it to itself.
    let state = pair.next_owner(1);
    [1, 2].into_iter().for_each(|node| pair.tell(node));
    let house = pair.house(1);
    house.broker.put_in_log(STREAM, X, own()).unwrap();
    house.broker.open_streamlet(STREAM, X, pair.epoch, Some(&state)).unwrap();
    assert_eq!(write(house, 0), (Status::Ok, 0, true), "a retry of what is in the first log");
    let mut peer = house.peer();
    send(&mut peer, 1);
    house.sink.sync();
    peer.run(house);
    assert!(peer.frames().is_empty(), "the first log says nothing of it");
    other.sync();
    peer.run(house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
    assert_eq!(pair.read_all(Cursor::default()), (vec![0, 1], vec![1]));
    // And back.
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    let state = pair.next_owner(1);
    pair.tell(1);
    let house = pair.house(1);
    house.broker.put_in_log(STREAM, X, None).unwrap();
    house.broker.open_streamlet(STREAM, X, pair.epoch, Some(&state)).unwrap();
    let mut peer = house.peer();
    send(&mut peer, 2);
    other.sync();
    assert_eq!(house.sink.pending(), 1);
    house.sink.sync();
    peer.run(house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
    assert_eq!(pair.read_all(Cursor::default()).0, [0, 1, 2]);
}

#[test]
fn nothing_is_handed_over_before_it_is_durable() {
    let mut pair = Pair::new(power(options(1, 1)));
    let mut peer = pair.house(1).peer();
    peer.send(&write_request(&[chunk_of(target(STREAM, 0, 7, 0), 1, 40)], 0));
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    assert_eq!(pair.house(1).broker.handed_over(STREAM, X).unwrap(), None);
    pair.house(1).sink.sync();
    pair.finish_move(2);
    peer.run(pair.house(1));
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok], "what was appended before is acknowledged");
    let place = pair.house(2).log.stream(STREAM).unwrap().streamlet(X).unwrap().clone();
    assert!(place.lanes().all(|lane| lane.groups(GroupId::NONE, 1).is_empty()), "its bytes stay where they are");
}

#[test]
fn a_reader_goes_from_owner_to_owner_in_the_lanes_order() {
    let mut pair = Pair::new(options(1, 1));
    let mut sequence = 0;
    for to in [2, 1, 2, 2] {
        for _ in 0..3 {
            assert_eq!(write(pair.house(pair.owner.node), sequence), (Status::Ok, sequence, false));
            sequence += 1;
        }
        if to != pair.owner.node {
            pair.move_to(to);
        }
    }
    let (all, nodes) = pair.read_all(Cursor::default());
    assert_eq!(all, (0..sequence).collect::<Vec<_>>());
    assert_eq!(nodes, [1, 2, 1, 2]);
    // A move in which nothing was written.
    pair.move_to(1);
    pair.move_to(2);
    assert_eq!(write(pair.house(2), sequence).0, Status::Ok);
    assert_eq!(pair.read_all(Cursor::default()).0, (0..=sequence).collect::<Vec<_>>());
}

/// Node 1 holds groups again that node 2 was to rebuild, and the streamlet is to move back to it, before its broker has been told of the first.
#[test]
fn what_a_node_holds_again_stays_although_its_broker_was_not_told_yet() {
    let mut pair = Pair::new(options(1, 1));
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.move_to(2);
    let house = pair.house(1);
    let (holds, rebuilt) = (pair.owner.clone(), owner(2, pair.epoch, &[(2, 2)]));
    assert_eq!(holds, owner(2, pair.epoch, &[(2, 1)]));
    house.broker.place_stream(pair.version + 1, STREAM, vec![rebuilt.clone()]).unwrap();
    let place = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().clone();
    let has_any = || place.lanes().any(|lane| !lane.groups(GroupId::NONE, 1).is_empty());
    house.broker.forget_leftovers(STREAM, X, &holds).unwrap();
    assert!(has_any(), "the coordinators have it hold these");
    house.broker.forget_leftovers(STREAM, X, &rebuilt).unwrap();
    assert!(!has_any(), "others have them");
}

#[test]
fn a_reader_that_waits_at_the_end_is_sent_on() {
    let mut pair = Pair::new(options(1, 1));
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    let mut peer = pair.house(1).peer();
    let end = peer.read(STREAM, Cursor::default()).answers[0].0.next;
    peer.send(&read_request(&[entry(STREAM, 0, 0, end)], 60_000));
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    peer.run(pair.house(1));
    assert!(peer.frames().is_empty(), "the move may be called off");
    pair.finish_move(2);
    peer.run(pair.house(1));
    let answer: kera_protocol::ReadChunksResponse = peer.frame().decode();
    let answer = answer.answers[0].0;
    assert_eq!((answer.status(), answer.next.group), (Some(Status::NotOwner), GroupId::new(3, 0)));
    assert_eq!(answer.durable_ordinal, 2 << 32 | 3, "who owns it now");
    // The wrong node for a group says so, and where to ask stays with the cursor.
    let old = Cursor { group: GroupId::new(2, 1), ..Cursor::default() };
    let sent = pair.house(2).peer().read(STREAM, old).answers[0].0;
    assert_eq!((sent.status(), sent.next), (Some(Status::NotOwner), old));
}

#[test]
fn readers_who_know_a_later_owner_than_the_node_wait_until_it_knows_too() {
    let mut pair = Pair::new(options(1, 1));
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.house(1).broker.let_go(STREAM, X).unwrap();
    let state = pair.next_owner(2);
    pair.tell(1);
    let end = pair.house(1).peer().read(STREAM, Cursor::default()).answers[0].0.next;
    let next = pair.house(1).peer().read(STREAM, end).answers[0].0.next;
    assert_eq!(next.group, GroupId::new(3, 0));
    let (mut polling, mut subscribed) = (pair.house(2).peer(), pair.house(2).peer());
    polling.send(&read_request(&[entry(STREAM, 0, 0, next)], 60_000));
    let entries = vec![entry(STREAM, 0, 0, next)];
    subscribed.send(&kera_protocol::Subscribe { credit_bytes: 1 << 20, push_bytes_max: 0, entries });
    assert!(subscribed.frames().iter().all(|frame| !frame.header.is_push()));
    assert!(polling.frames().is_empty(), "it is not sent back to whoever sent it here");
    pair.tell(2);
    pair.house(2).broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    assert_eq!(write(pair.house(2), 1), (Status::Ok, 1, false));
    for peer in [&mut polling, &mut subscribed] {
        peer.run(pair.house(2));
        let answer: kera_protocol::ReadChunksResponse = peer.frame().decode();
        assert_eq!((answer.answers[0].0.status(), ordinals(&answer.answers[0].1)), (Some(Status::Ok), vec![1]));
    }
}

#[test]
fn readers_who_wait_for_an_owner_that_was_one_only_meanwhile_are_sent_on() {
    let mut pair = Pair::new(options(1, 1));
    pair.owner = owner(1, 4, &[(2, 1), (3, 2)]);
    let mut peer = pair.house(2).peer();
    let next = Cursor { group: GroupId::new(3, 0), ..Cursor::default() };
    peer.send(&read_request(&[entry(STREAM, 0, 0, next)], 60_000));
    assert!(peer.frames().is_empty());
    pair.tell(2);
    peer.run(pair.house(2));
    let answer: kera_protocol::ReadChunksResponse = peer.frame().decode();
    let answer = answer.answers[0].0;
    assert_eq!((answer.status(), answer.next.group), (Some(Status::NotOwner), GroupId::new(4, 0)));
    assert_eq!(answer.durable_ordinal, 1 << 32 | 4);
}

#[test]
fn groups_that_are_gone_are_passed_over() {
    let mut pair = Pair::new(options(1, 1));
    let first = pair.read_all(Cursor::default());
    assert!(first.0.is_empty());
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.move_to(2);
    assert_eq!(write(pair.house(2), 1).0, Status::Ok);
    let stream = pair.house(1).log.stream(STREAM).unwrap();
    stream.streamlet(X).unwrap().lane(LaneId(0)).unwrap().raise_floor(1);
    // Longer than it is kept for what it tells of its producer.
    assert_eq!(pair.house(1).log.retain(10_000_000), 1);
    // From the first there is, and from what was there.
    assert_eq!(pair.read_all(Cursor::default()), (vec![1], vec![1, 2]));
    let old = Cursor { group: GroupId::new(2, 1), ..Cursor::default() };
    let gone = pair.house(1).peer().read(STREAM, old).answers[0].0;
    // All that was here is gone: what comes behind it is with the next owner.
    assert_eq!((gone.status(), gone.next.group.epoch()), (Some(Status::CursorGone), 3));
    assert_eq!(pair.read_all(gone.next), (vec![1], vec![2]));
}

#[test]
fn places_are_told_by_the_node_that_has_them() {
    let mut pair = Pair::new(options(1, 1));
    let look = |pair: &Pair, node: u32, at: Start| {
        let lookup = Lookup { stream: STREAM, streamlet: X, lane: LaneId(0), at };
        let mut peer = pair.house(node).peer();
        peer.send(&lookup);
        let frame = peer.frame();
        match frame.status() {
            Status::Ok => Ok(frame.decode::<kera_protocol::LookupResult>()),
            status => Err(status),
        }
    };
    (0..3).for_each(|sequence| assert_eq!(write(pair.house(1), sequence).0, Status::Ok));
    pair.move_to(2);
    let latest = look(&pair, 2, Start::Latest).unwrap();
    assert_eq!((latest.cursor.group, latest.ordinal, latest.durable_ordinal), (GroupId::new(3, 0), 3, 3));
    assert_eq!(look(&pair, 2, Start::Ordinal(1)), Err(Status::NotOwner), "its end is behind what the other node has");
    (3..6).for_each(|sequence| assert_eq!(write(pair.house(2), sequence).0, Status::Ok));
    pair.move_to(1);
    (6..9).for_each(|sequence| assert_eq!(write(pair.house(1), sequence).0, Status::Ok));
    assert_eq!(look(&pair, 1, Start::Ordinal(1)).unwrap().cursor.group.epoch(), 2);
    assert_eq!(look(&pair, 2, Start::Ordinal(4)).unwrap().ordinal, 4);
    assert_eq!(look(&pair, 1, Start::Ordinal(4)), Err(Status::NotOwner), "the next one it has would be ordinal 6");
    assert_eq!(look(&pair, 2, Start::Ordinal(1)), Err(Status::NotOwner));
    assert_eq!(look(&pair, 2, Start::Ordinal(8)), Err(Status::NotOwner));
    assert_eq!(look(&pair, 1, Start::Ordinal(99)).unwrap().ordinal, 9);
    assert_eq!(look(&pair, 1, Start::Earliest), Err(Status::NotOwner), "with several holders their groups tell");
    assert_eq!(look(&pair, 2, Start::Latest), Err(Status::NotOwner));
}

/// A node that has taken a streamlet over may have got groups from the logs of lost nodes that another one has held since a move. Readers are
/// sent there, and there retention may have taken them: they must not be told to begin with them.
#[test]
fn groups_that_readers_are_sent_away_from_are_not_told() {
    let mut pair = Pair::new(options(1, 1));
    (0..3).for_each(|sequence| assert_eq!(write(pair.house(1), sequence).0, Status::Ok));
    pair.move_to(2);
    let groups = |pair: &Pair| {
        let mut peer = pair.house(1).peer();
        peer.send(&AvailableGroups { stream: STREAM, streamlet: X, after: GroupId::NONE, limit: 1 });
        let list: GroupList = peer.frame().decode();
        (list.groups.iter().map(|group| group.group.epoch()).collect::<Vec<_>>(), list.more)
    };
    assert_eq!(groups(&pair), (vec![2], false));
    pair.version += 1;
    pair.owner = owner(2, 4, &[(2, 9), (3, 1)]);
    pair.tell(1);
    assert_eq!(groups(&pair), (vec![], false));
}

#[test]
fn a_node_that_knows_of_no_group_of_its_own_does_not_say_that_there_is_none() {
    let mut pair = Pair::new(options(1, 1));
    let asked = AvailableGroups { stream: STREAM, streamlet: X, after: GroupId::NONE, limit: 0 };
    let groups = |pair: &Pair| {
        let mut peer = pair.house(1).peer();
        peer.send(&asked);
        let frame = peer.frame();
        (frame.status() == Status::Ok).then(|| frame.decode::<GroupList>().groups.len()).ok_or(frame.status())
    };
    assert_eq!(groups(&pair), Ok(0), "its owner");
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.owner = owner(2, 3, &[]);
    pair.tell(1);
    assert_eq!(groups(&pair), Err(Status::NotOwner), "who asks may have heard that it holds them");
    pair.owner = owner(2, 3, &[(1, 1)]);
    pair.tell(1);
    assert_eq!(groups(&pair), Ok(1));
}

/// Whoever rebuilds a streamlet may have heard that this node holds its older groups before this node has, and sends readers to it.
#[test]
fn readers_of_what_a_node_has_offered_to_hold_wait_there_until_it_is_decided() {
    for is_taken in [true, false] {
        let mut pair = Pair::new(options(1, 1));
        assert_eq!(write(pair.house(1), 0).0, Status::Ok);
        let begin = Cursor { group: GroupId::new(2, 1), ..Cursor::default() };
        pair.owner = owner(2, 3, &[]);
        pair.tell(1);
        let sent_on = |pair: &Pair, from| pair.house(1).peer().read(STREAM, from).answers[0].0.status();
        assert_eq!(sent_on(&pair, begin), Some(Status::NotOwner));
        pair.house(1).broker.offers(STREAM, X, Some(3));
        let mut waiting: Vec<Peer> = Vec::new();
        for from in [Cursor::default(), begin] {
            let mut peer = pair.house(1).peer();
            peer.send(&read_request(&[entry(STREAM, 0, 0, from)], 60_000));
            assert!(peer.frames().is_empty(), "neither sent back nor told that this is all");
            waiting.push(peer);
        }
        let of_owner = Cursor { group: GroupId::new(3, 0), ..Cursor::default() };
        assert_eq!(sent_on(&pair, of_owner), Some(Status::NotOwner));
        if is_taken {
            pair.owner = owner(2, 3, &[(1, 1)]);
            pair.tell(1);
        } else {
            pair.house(1).broker.offers(STREAM, X, None);
        }
        for mut peer in waiting {
            peer.run(pair.house(1));
            let answer: kera_protocol::ReadChunksResponse = peer.frame().decode();
            let (status, read) = (answer.answers[0].0.status(), ordinals(&answer.answers[0].1));
            let expected = if is_taken { (Some(Status::Ok), vec![0]) } else { (Some(Status::NotOwner), vec![]) };
            assert_eq!((status, read), expected);
        }
    }
}

fn find(house: &House, streams: Vec<StreamRef>, after: Option<(StreamId, StreamletId)>, limit: u32) -> FindOwners {
    let _ = house;
    FindOwners { streams, after, limit }
}

#[test]
fn a_node_alone_owns_everything() {
    let house = House::new();
    house.stream(STREAM, options(4, 1));
    let owners = house.peer().call(&find(&house, vec![], None, 0));
    assert_eq!((owners.node, owners.cluster, owners.nodes.len()), (0, [0; 16], 1));
    assert_eq!((owners.nodes[0].node, owners.nodes[0].address.as_str()), (0, ""));
    let stream = owners.streams.iter().find(|stream| stream.stream == STREAM).unwrap();
    assert_eq!((stream.streamlets, stream.runs.len(), stream.runs[0].count, stream.runs[0].epoch), (4, 1, 4, 0));
    assert!(owners.streams.iter().all(|stream| stream.stream != SYSTEM));
}

/// Numbers of streams rise: one with a higher number than all that the node has heard of may have been made a moment ago.
#[test]
fn a_stream_that_a_node_has_not_heard_of_yet_is_asked_for_again() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    house.broker.join_cluster(CLUSTER, 1);
    house.broker.place_stream(1, STREAM, vec![owner(1, 2, &[])]).unwrap();
    let made = StreamId(STREAM.0 + 1);
    let mut peer = house.peer();
    for expected in [Status::NotReady, Status::UnknownStream] {
        let written = chunk_of(target(made, 0, 0, 0), 1, 10);
        assert_eq!(statuses(&peer.write(&[written])), [expected]);
        assert_eq!(peer.refused(&find(&house, vec![made.into()], None, 0)), expected);
        assert_eq!(
            peer.refused(&Lookup { stream: made, streamlet: X, lane: LaneId(0), at: Start::Earliest }),
            expected
        );
        // It was made and has been deleted: that is known.
        house.broker.heard_of_streams(StreamId(made.0 + 1));
    }
    let alone = House::new();
    let written = chunk_of(target(made, 0, 0, 0), 1, 10);
    assert_eq!(statuses(&alone.peer().write(&[written])), [Status::UnknownStream], "it knows all that there are");
}

/// A node makes a stream and is told whose its streamlets are a moment later. In between somebody may have heard of it elsewhere.
#[test]
fn a_stream_takes_nothing_and_tells_nothing_before_it_is_known_whose_it_is() {
    let house = House::new();
    house.broker.join_cluster(CLUSTER, 1);
    house.broker.stream_comes(STREAM, options(1, 1)).unwrap();
    let place = Lookup { stream: STREAM, streamlet: X, lane: LaneId(0), at: Start::Latest };
    let groups = AvailableGroups { stream: STREAM, streamlet: X, after: GroupId::NONE, limit: 0 };
    let mut peer = house.peer();
    assert_eq!(write(&house, 0).0, Status::NotOwner);
    assert_eq!(peer.refused(&place), Status::NotOwner, "that nothing is here does not say that there is nothing");
    assert_eq!(peer.refused(&groups), Status::NotOwner);
    assert_eq!(peer.refused(&find(&house, vec![STREAM.into()], None, 0)), Status::NotReady);
    assert!(peer.call(&find(&house, vec![], None, 0)).streams.is_empty());
    house.broker.place_stream(1, STREAM, vec![owner(1, 2, &[])]).unwrap();
    house.broker.open_streamlet(STREAM, X, 2, None).unwrap();
    assert_eq!(write(&house, 0), (Status::Ok, 0, false));
    assert_eq!(peer.call(&place).durable_ordinal, 1);
    assert_eq!(peer.call(&groups).groups.len(), 1);
    let told = peer.call(&find(&house, vec![STREAM.into()], None, 0)).streams;
    assert_eq!(told.iter().map(|stream| stream.runs[0].epoch).collect::<Vec<_>>(), [2]);
}

/// A client that has the number asks again when there is a later one.
#[test]
fn a_state_has_its_number_when_all_that_has_changed_in_it_was_told() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    house.broker.join_cluster(CLUSTER, 1);
    house.broker.place_stream(3, STREAM, vec![owner(1, 2, &[]), owner(2, 2, &[])]).unwrap();
    house.broker.told_up_to(4);
    let told = |house: &House| {
        let told = house.peer().call(&find(house, vec![STREAM.into()], None, 0));
        let epochs: Vec<u32> = told.streams[0].runs.iter().map(|run| run.epoch).collect();
        (told.version, epochs)
    };
    assert_eq!(told(&house), (4, vec![2, 2]));
    for (streamlet, epochs) in [(0, vec![5, 2]), (1, vec![5, 6])] {
        let next = owner(2 - streamlet, 5 + streamlet, &[]);
        house.broker.set_owner(0, STREAM, StreamletId(streamlet), next).unwrap();
        assert_eq!(told(&house), (4, epochs));
    }
    house.broker.told_up_to(9);
    assert_eq!(told(&house), (9, vec![5, 6]));
}

#[test]
fn owners_come_in_pages_and_by_name() {
    let house = House::new();
    house.stream(STREAM, options(30, 1));
    house.stream(StreamId(8), options(1, 1));
    house.broker.join_cluster(CLUSTER, 2);
    let node = |node: u32| NodeInfo {
        node,
        node_epoch: 1,
        address: format!("127.0.0.1:{node}"),
        kafka_address: String::new(),
        http_address: String::new(),
        rack: String::new(),
        roles: vec![Role::Broker],
    };
    house.broker.set_nodes(5, vec![node(1), node(2)]);
    let all: Vec<Owner> = (0..30_u32).map(|at| owner(1 + at * at % 3, 5 + at % 4, &[])).collect();
    house.broker.place_stream(7, STREAM, all.clone()).unwrap();
    house.broker.set_names(|name| (name == "there").then_some(STREAM));
    let mut peer = house.peer();
    let (mut after, mut found, mut pages) = (None, vec![Owner::default(); 30], 0);
    loop {
        let page = peer.call(&find(&house, vec!["there".into()], after, 3));
        assert_eq!((page.version, page.node, page.nodes.len()), (7, 2, 2));
        assert!(page.streams.iter().map(|stream| stream.runs.len()).sum::<usize>() <= 3);
        for run in page.streams.iter().flat_map(|stream| &stream.runs) {
            after = Some((STREAM, run.first));
            run.streamlets().for_each(|at| found[at.0 as usize] = owner(run.node, run.epoch, &[]));
        }
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(found, all);
    assert!(pages > 2);
    let all = peer.call(&find(&house, vec![], None, 0));
    assert_eq!(all.streams.iter().map(|stream| stream.stream).collect::<Vec<_>>(), [STREAM, StreamId(8)]);
    assert_eq!(peer.refused(&find(&house, vec!["nobody".into()], None, 0)), Status::UnknownStream);
    assert_eq!(peer.refused(&find(&house, vec![StreamId(6).into()], None, 0)), Status::UnknownStream);
    let many = vec![StreamRef::Id(STREAM); OWNER_STREAMS_MAX + 1];
    assert_eq!(peer.refused(&find(&house, many, None, 0)), Status::LimitReached);
}

#[test]
fn wrong_steps_are_refused_and_change_nothing() {
    let mut pair = Pair::new(options(1, 1));
    let broker = &pair.houses[0].broker;
    assert_eq!(broker.handed_over(STREAM, X).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(broker.keep_streamlet(STREAM, X).unwrap_err().status, Status::NotReady);
    assert_eq!(broker.let_go(STREAM, StreamletId(1)).unwrap_err().status, Status::UnknownStreamlet);
    assert_eq!(broker.let_go(StreamId(77), X).unwrap_err().status, Status::UnknownStream);
    assert_eq!(broker.open_streamlet(STREAM, X, 9, None).unwrap_err().status, Status::NotReady, "it is open");
    let state = StreamletState { stream: STREAM, streamlet: StreamletId(3), epoch: 1, lanes: vec![], progress: vec![] };
    let refused = pair.houses[1].broker.open_streamlet(STREAM, X, 9, Some(&state)).unwrap_err();
    assert_eq!(refused.status, Status::InvalidArgument);
    assert_eq!(write(pair.house(1), 0).0, Status::Ok);
    pair.move_to(2);
    assert_eq!(write(pair.house(2), 1).0, Status::Ok);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Several producers, retries at any node, moves and moves that are called off: each chunk is there once, in its producer's order.
    #[test]
    fn chunks_are_there_once_and_in_order(steps in prop::collection::vec((0..10_u8, 1..4_u64), 1..120)) {
        let mut pair = Pair::new(options(1, 2));
        let mut next = [0_u64; 4];
        let mut places = std::collections::HashMap::new();
        for (step, producer) in steps {
            match step {
                0 => pair.move_to(3 - pair.owner.node),
                1 => {
                    let house = pair.house(pair.owner.node);
                    house.broker.let_go(STREAM, X).unwrap();
                    house.broker.keep_streamlet(STREAM, X).unwrap();
                }
                _ => {
                    // The last acknowledged one again, or the next; at the owner or not.
                    let last = next[producer as usize];
                    let sequence = if step < 4 { last.saturating_sub(1) } else { last };
                    let node = if step == 9 { 3 - pair.owner.node } else { pair.owner.node };
                    let written = pair.house(node).peer().write(&[chunk_of(target(STREAM, 0, producer, sequence), 1, 20)]);
                    let result = written.results[0];
                    if node != pair.owner.node {
                        prop_assert_eq!(result.status(), Some(Status::NotOwner));
                        continue;
                    }
                    prop_assert_eq!(result.status(), Some(Status::Ok));
                    prop_assert_eq!(result.duplicate, sequence < last);
                    let place = *places.entry((producer, sequence)).or_insert(result.base_ordinal);
                    prop_assert_eq!(place, result.base_ordinal);
                    next[producer as usize] = last.max(sequence + 1);
                }
            }
        }
        let even = places.keys().filter(|(producer, _)| producer % 2 == 0).count() as u64;
        let (all, _) = pair.read_all(Cursor::default());
        prop_assert_eq!(all, (0..even).collect::<Vec<_>>());
    }
}
