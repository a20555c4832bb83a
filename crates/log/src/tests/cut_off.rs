//! What a start cuts off lanes, and takes up again as far as it turns out to count; and what lanes have let go of.

use kera_format::GroupId;
use kera_format::chunk::Chunks;

use super::restart::restart_as;
use super::*;

const PAYLOAD: usize = 10_000;

fn streamlet(node: &Node) -> Arc<Streamlet> {
    Arc::clone(node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap())
}

/// Chunks, each with the name of the segment that it is in.
type Placed = Vec<(SegmentId, Vec<u8>)>;

/// The chunks of the lane as they lie in its segments, with the names of these.
fn chunks_of(node: &Node) -> Placed {
    let (lane, mut chunks) = (node.lane(), Vec::new());
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        for index in group.first_segment.0..=group.last_segment.0 {
            let id = lane.segment_id(group.id, index);
            let segment = node.log.segment(id).unwrap();
            let of_segment = Chunks::new(segment.bytes(128, segment.head()));
            chunks.extend(of_segment.map(|chunk| (id, chunk.unwrap().as_bytes().to_vec())));
        }
    }
    chunks
}

/// A node of which 4 chunks are durable and 16 were under way, over several segments and groups, when what is not durable is cut off.
fn cut(durable: u64) -> (Node, Arc<Store>, Placed) {
    let (node, sink) = power_node();
    let (node, store) = node.with_store();
    let lane = node.lane();
    fill(&lane, 0..durable, PAYLOAD);
    sink.sync();
    fill(&lane, durable..20, PAYLOAD);
    let before = chunks_of(&node);
    assert!(lane.groups(GroupId::NONE, usize::MAX).len() > 1, "the chunks take several groups");
    streamlet(&node).cut_off_unacknowledged(&mut CutOffRoom::of(&node.log)).unwrap();
    (node, store, before)
}

fn take_up(node: &Node, to: u64) -> bool {
    streamlet(node).take_up_again(&[(LaneId(0), to)]).unwrap()
}

#[test]
fn what_was_cut_off_is_taken_up_to_where_the_lane_is_found_to_end() {
    for (durable, to) in [(4, 4), (4, 5), (4, 6), (4, 9), (4, 20), (0, 1), (0, 13), (6, 20)] {
        let (node, store, before) = cut(durable);
        let lane = node.lane();
        assert_eq!(chunks_of(&node), before[..durable as usize], "it is cut");
        assert_eq!(streamlet(&node).cut_off(), [(LaneId(0), durable, 20)]);
        assert!(take_up(&node, to), "{durable} to {to}");
        assert_eq!(chunks_of(&node), before[..to as usize], "{durable} to {to}");
        assert_eq!((lane.stats().next_ordinal, lane.durable_ordinal()), (to, to));
        let read = lane.read(start(), 1 << 20, true).unwrap();
        assert_eq!((ordinals(&read), read.at_durable_end), ((0..to).collect(), true));
        assert_eq!(streamlet(&node).whole_lanes(), Some(vec![(LaneId(0), 0, to)]));
        // The store has all of it, each segment once and as long as it is now.
        streamlet(&node).let_go_of_cut_off();
        let closed: u64 =
            store.closed.lock().iter().map(|segment| segment.next_ordinal() - segment.base_ordinal()).sum();
        assert_eq!(closed, to);
        // Producers know what is there, and nothing else.
        streamlet(&node).open(6, false).unwrap();
        assert!(append(&lane, &chunk(to - 1, PAYLOAD), 30).unwrap().duplicate);
        let next = append(&lane, &chunk(to, PAYLOAD), 30).unwrap();
        assert_eq!((next.base_ordinal, next.duplicate), (to, false));
    }
}

/// By the group of the first of what is not durable.
#[test]
fn it_is_known_since_which_owner_epoch_something_is_under_way() {
    let (node, sink) = power_node();
    let lane = node.lane();
    assert!(!streamlet(&node).has_unacknowledged_before(u32::MAX));
    fill(&lane, 0..4, PAYLOAD);
    let epoch = lane.groups(GroupId::NONE, usize::MAX)[0].id.epoch();
    assert!(streamlet(&node).has_unacknowledged_before(epoch + 1));
    assert!(!streamlet(&node).has_unacknowledged_before(epoch));
    sink.sync();
    assert!(!streamlet(&node).has_unacknowledged_before(u32::MAX));
    // The next owner's own, behind what is durable of the one before.
    streamlet(&node).leave();
    streamlet(&node).open(epoch + 3, false).unwrap();
    fill(&lane, 4..6, PAYLOAD);
    assert!(!streamlet(&node).has_unacknowledged_before(epoch + 3));
    assert!(streamlet(&node).has_unacknowledged_before(epoch + 4));
}

#[test]
fn a_lane_ends_where_a_chunk_does_and_not_behind_what_is_kept() {
    let (node, _, before) = cut(4);
    let records = |to| take_up(&node, to);
    assert!(!records(3), "what is there is not cut any more");
    assert!(!records(21), "more than there was");
    assert_eq!(chunks_of(&node), before[..4]);
    assert!(records(7) && records(7), "twice is like once");
    assert!(!records(8), "what was not taken up is gone");
    assert_eq!(chunks_of(&node), before[..7]);
}

/// Until then what is left of the segment that was cut is nowhere but in memory.
#[test]
fn what_is_let_go_of_leaves_the_lane_as_it_was_cut() {
    let (node, store, before) = cut(4);
    assert!(store.closed.lock().is_empty());
    streamlet(&node).let_go_of_cut_off();
    streamlet(&node).let_go_of_cut_off();
    let closed: Vec<u64> = store.closed.lock().iter().map(|segment| segment.next_ordinal()).collect();
    assert_eq!(closed, [4]);
    assert!(!take_up(&node, 5));
    assert_eq!(chunks_of(&node), before[..4]);
    // A stop needs all of it on disk.
    let (node, store, _) = cut(4);
    node.log.close_all();
    assert_eq!(store.closed.lock().iter().map(|segment| segment.next_ordinal()).collect::<Vec<_>>(), [4]);
}

#[test]
fn nothing_has_a_place_in_a_lane_that_has_changed() {
    // It was opened, and closed again.
    let (node, store, _) = cut(4);
    streamlet(&node).open(6, false).unwrap();
    assert_eq!(store.closed.lock().len(), 1);
    streamlet(&node).leave();
    assert!(!take_up(&node, 5));
    // Its groups have gone, and with them what is left of the segment.
    let (node, store, _) = cut(4);
    streamlet(&node).forget_groups(|_| false);
    assert!(store.closed.lock().is_empty());
    assert!(!take_up(&node, 5));
    // It is here.
    let (node, _, _) = cut(4);
    streamlet(&node).open(6, false).unwrap();
    assert!(!take_up(&node, 5));
}

#[test]
fn only_so_much_is_kept() {
    let (node, sink) = power_node();
    fill(&node.lane(), 0..4, PAYLOAD);
    append(&node.lane_number(1), &chunk_of(8, 0, 0, PAYLOAD), 0).unwrap();
    sink.sync();
    fill(&node.lane(), 4..6, PAYLOAD);
    append(&node.lane_number(1), &chunk_of(8, 0, 1, PAYLOAD), 0).unwrap();
    let mut room = CutOffRoom::of(&node.log);
    // There is room for what the second lane has, and not for what the first one has.
    room = CutOffRoom { chunks: PAYLOAD as u64 + 1000, ..room };
    streamlet(&node).cut_off_unacknowledged(&mut room).unwrap();
    assert_eq!(streamlet(&node).cut_off(), [(LaneId(1), 1, 2)]);
    assert_eq!(node.lane().stats().next_ordinal, 4);
    assert!(!take_up(&node, 5));
    // Nor for what is left of a segment.
    let (node, sink) = power_node();
    fill(&node.lane(), 0..4, PAYLOAD);
    sink.sync();
    fill(&node.lane(), 4..6, PAYLOAD);
    let mut room = CutOffRoom { left: PAYLOAD as u64, ..CutOffRoom::of(&node.log) };
    streamlet(&node).cut_off_unacknowledged(&mut room).unwrap();
    assert_eq!(streamlet(&node).cut_off(), []);
}

/// Between the steps of a start, as a node does it. The next start finds the lane as it was cut, or with all that was taken up.
#[test]
fn a_start_cuts_and_the_next_one_finds_what_is_there() {
    let restarted = |node: Node| {
        let options = StreamOptions { durability: Durability::Power, ..options() };
        let (node, segments, sink) = restart_as(node, options, config());
        let (node, store) = node.with_store();
        assert_eq!(node.log.recover(Vec::new(), segments).problems, [""; 0]);
        (node, store, sink)
    };
    for (to, expected) in [(None, 4), (Some(5), 5), (Some(20), 20)] {
        let (node, sink) = power_node();
        fill(&node.lane(), 0..4, PAYLOAD);
        sink.sync();
        fill(&node.lane(), 4..20, PAYLOAD);
        let before = chunks_of(&node);
        sink.pending.lock().clear();
        drop(sink);
        let (node, store, sink) = restarted(node);
        streamlet(&node).cut_off_unacknowledged(&mut CutOffRoom::of(&node.log)).unwrap();
        assert_eq!(node.log.finish_recovery(2), [""; 0]);
        assert_eq!(chunks_of(&node), before[..4]);
        assert!(sink.pending.lock().is_empty() && store.closed.lock().is_empty());
        if let Some(to) = to {
            assert!(take_up(&node, to));
            assert!(!store.closed.lock().is_empty());
        }
        drop((sink, store));
        let (node, ..) = restarted(node);
        assert_eq!(node.log.finish_recovery(3), [""; 0]);
        assert_eq!(chunks_of(&node), before[..expected]);
        assert_eq!(node.lane().durable_ordinal(), expected as u64);
    }
}

/// Who goes on with a lane that its start has cut takes what comes again for what it is: it is not there.
#[test]
fn what_a_start_has_cut_is_no_duplicate() {
    for durable in [1, 4, 7, 13] {
        let (node, sink) = power_node();
        fill(&node.lane(), 0..durable, PAYLOAD);
        sink.sync();
        fill(&node.lane(), durable..20, PAYLOAD);
        sink.pending.lock().clear();
        let options = StreamOptions { durability: Durability::Power, ..options() };
        let (node, segments, _) = restart_as(node, options, config());
        assert_eq!(node.log.recover(Vec::new(), segments).problems, [""; 0]);
        streamlet(&node).cut_off_unacknowledged(&mut CutOffRoom::of(&node.log)).unwrap();
        assert_eq!(node.log.finish_recovery(2), [""; 0]);
        streamlet(&node).open(6, false).unwrap();
        assert!(append(&node.lane(), &chunk(durable - 1, PAYLOAD), 30).unwrap().duplicate);
        for again in durable..20 {
            let appended = append(&node.lane(), &chunk(again, PAYLOAD), 30).unwrap();
            assert_eq!((appended.base_ordinal, appended.duplicate), (again, false), "{durable} were durable");
        }
    }
}

/// What retention has taken is noted, in streams with copies, and known to the next life.
#[test]
fn a_lane_says_that_it_has_let_go_of_its_front_itself() {
    let retained = |replication| {
        let options = StreamOptions { retention_bytes: Some(150_000), replication, ..options() };
        let sink = Arc::new(Sink::default());
        let (node, store) = node_through(&sink, options).with_store();
        fill(&node.lane(), 0..40, PAYLOAD);
        sink.sync();
        let stored = store.persist_all(&node.log);
        assert!(node.log.retain(1_000) > 0);
        (node, store, stored)
    };
    let (node, store, stored) = retained(3);
    let first = node.lane().stats().first_ordinal;
    assert!(first > 0);
    assert_eq!(streamlet(&node).let_go_lanes(), [LaneId(0)]);
    assert_eq!(store.let_go.lock().last(), Some(&((STREAM, StreamletId(0), LaneId(0)), first)));
    let told: Vec<_> = store.let_go.lock().clone();
    assert!(retained(1).1.let_go.lock().is_empty(), "nobody is offered what has no copies");
    drop(store);
    let (again, segments, _) = restart_as(node, StreamOptions { replication: 3, ..options() }, config());
    let stored = stored.into_iter().map(|(segment, _)| segment).filter(|of| of.header.base_ordinal >= first);
    assert_eq!(again.log.recover(stored.collect(), segments).problems, [""; 0]);
    assert_eq!(streamlet(&again).let_go_lanes(), []);
    // That it had let go of less does not tell what became of the rest.
    again.log.let_go_before(&[
        ((STREAM, StreamletId(0), LaneId(0)), first - 1),
        ((StreamId(9), StreamletId(0), LaneId(0)), 1),
    ]);
    assert_eq!(streamlet(&again).let_go_lanes(), []);
    again.log.let_go_before(&told);
    assert_eq!(again.log.finish_recovery(2), [""; 0]);
    assert_eq!(streamlet(&again).let_go_lanes(), [LaneId(0)]);
}
