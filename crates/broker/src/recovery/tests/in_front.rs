//! An owner that was started again since it took a streamlet over has what it wrote in its life before. A node that came back with what is in front of that holds it again.

use super::*;

const AGAIN: u32 = 5;

/// The lost node as it comes back, and the owner of after it, which took the streamlet over in owner epoch 3, wrote two records, and takes it over once more in epoch 5.
fn started_again() -> (Node, Node, Memory, Vec<EndedLog>) {
    let (back, memory, logs) = lost_node();
    back.broker.let_go(STREAM, X).expect("it is its own");
    let state = back.broker.handed_over(STREAM, X).expect("let go").expect("durable");
    let owner = Node::new(2);
    owner.is_owner(2, 3);
    owner.broker.open_streamlet(STREAM, X, 3, Some(&state)).expect("opened");
    assert_eq!([10, 11].map(|sequence| owner.append(sequence).base_ordinal), [10, 11]);
    owner.is_owner(99, 4);
    let held = |first_epoch| OlderGroups { first_epoch, node: 2 };
    for node in [&back, &owner] {
        let told = Owner { node: 2, epoch: AGAIN, older: vec![held(1), held(3)] };
        node.broker.set_owner(AGAIN.into(), STREAM, X, told).expect("a streamlet");
    }
    (back, owner, memory, logs)
}

/// What the node that came back offers it.
fn offer_again(back: &Node) -> OfferGroups {
    offer_of(AGAIN, back.broker.whole_lanes(STREAM, X).expect("it is whole"), Vec::new(), Vec::new())
}

#[test]
fn what_is_in_front_of_what_an_owner_wrote_before_its_start_is_held_again() {
    let (back, owner, memory, logs) = started_again();
    let rebuild = owner.broker.take_over(&[(STREAM, X, AGAIN)], &logs, &memory).expect("taken over");
    assert!(rebuild.keeps_own(STREAM, X));
    assert_eq!(owner.append(12).base_ordinal, 12);
    let offered = offer_again(&back);
    assert_eq!(rebuild.whole(STREAM, X), offered.lanes, "up to where its own begins");
    let kept = owner.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX).expect("it is all of it");
    let kept = <StreamletState as kera_protocol::Body>::decode(1, &kept).expect("a state");
    let [lane] = &kept.lanes[..] else { panic!("{kept:?}") };
    assert_eq!(lane.next_ordinal, 12, "as it was when it was taken over once more");
    let own: Vec<(u32, u64)> = lane.groups.iter().map(|own| (own.group.epoch(), own.first_ordinal)).collect();
    assert_eq!(own, [(3, 10)], "from here on it is with its owner");
    for node in [&back, &owner] {
        let older = vec![OlderGroups { first_epoch: 1, node: 1 }, OlderGroups { first_epoch: 3, node: 2 }];
        node.broker.set_owner(6, STREAM, X, Owner { node: 2, epoch: AGAIN, older }).expect("a streamlet");
    }
    assert!(owner.broker.leave_to_holder(STREAM, X) >= 170_000);
    let progress = RecoveryProgress::default();
    owner.broker.rebuild(&rebuild, &logs, &memory, &progress).expect("nothing is left to rebuild");
    assert_eq!(progress.bytes_read.load(Ordering::SeqCst), 0);
    assert_eq!((back.readable(), owner.readable()), ((0..10).collect(), vec![10, 11, 12]));
}

#[test]
fn a_node_must_have_all_that_is_in_front_and_nothing_of_what_the_owner_wrote() {
    let (back, owner, memory, logs) = started_again();
    let rebuild = owner.broker.take_over(&[(STREAM, X, AGAIN)], &logs, &memory).expect("taken over");
    let offered = offer_again(&back);
    let all = offered.lanes[0];
    assert_eq!((all.first_ordinal, all.next_ordinal), (0, 10));
    let asks = |lane: WholeLane, cut_off: &[WholeLane]| {
        let offered = OfferGroups { lanes: vec![lane], cut_off: cut_off.to_vec(), ..offered.clone() };
        owner.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX)
    };
    for wrong in [
        WholeLane { next_ordinal: 9, ..all },
        WholeLane { next_ordinal: 12, ..all },
        WholeLane { first_ordinal: 3, ..all },
        WholeLane { lane: LaneId(1), ..all },
    ] {
        let Err(NotTaken::Never(refused)) = asks(wrong, &[]) else { panic!("it is not all of it: {wrong:?}") };
        assert!(refused.contains("goes from 0 to 10"), "{refused}");
    }
    // What it has cut off and has been given away since stays cut.
    let (lane, cut_off) =
        (WholeLane { next_ordinal: 8, ..all }, WholeLane { first_ordinal: 8, next_ordinal: 12, ..all });
    let Err(NotTaken::Lacking(lacking)) = asks(lane, &[cut_off]) else { panic!("it could be whole") };
    assert_eq!(lacking, [WholeLane { first_ordinal: 8, ..all }]);
}

/// Its log ends in front of where the owner went on: something is lacking in between, of which nobody knows.
#[test]
fn what_does_not_reach_to_what_the_owner_wrote_is_not_all() {
    let (back, owner, memory, logs) = started_again();
    let (memory, logs) =
        (Memory { chunks: memory.chunks[..7].to_vec(), ..memory }, [EndedLog { end: 7, ..logs[0].clone() }]);
    let rebuild = owner.broker.take_over(&[(STREAM, X, AGAIN)], &logs, &memory).expect("taken over");
    assert!(!rebuild.keeps_own(STREAM, X));
    let refused = owner
        .broker
        .check_offer(&rebuild, &offer_again(&back), None, HANDED_BYTES_MAX)
        .expect_err("nobody knows where it ends");
    assert!(matches!(refused, NotTaken::Never(_)), "{refused}");
}

/// Of records, or of what applications have read.
#[test]
fn what_a_node_has_written_itself_since_an_owner_epoch_is_known() {
    let (back, owner, ..) = started_again();
    let since = |node: &Node| [2, 3, 4].map(|epoch| node.broker.has_since(STREAM, X, epoch));
    assert_eq!((since(&back), since(&owner)), ([true, false, false], [true, true, false]));
    let next = Node::new(4);
    next.is_owner(4, 6);
    next.broker.open_streamlet(STREAM, X, 6, None).expect("opened");
    assert!(!next.broker.has_since(STREAM, X, 1), "it was opened, and nobody wrote to it");
    let stream = next.log.stream(STREAM).expect("a stream");
    append_in(stream.streamlet(X).expect("a streamlet").progress_lane(), 0);
    assert_eq!([6, 7].map(|epoch| next.broker.has_since(STREAM, X, epoch)), [true, false]);
    assert!(next.broker.has_since(StreamId(8), X, 7), "of what is not known here nobody can say so");
}
