//! A lane that is filled from copies of its chunks while it is written and read, and one that forgets what was not acknowledged.

use kera_format::chunk::Chunks;
use kera_format::{GroupId, SegmentIndex};

use super::*;

fn streamlet(node: &Node) -> Arc<Streamlet> {
    Arc::clone(node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap())
}

/// The chunks of a lane as they lie in its segments, and the segments.
fn copies_of(node: &Node) -> (Vec<Vec<u8>>, Vec<AwaitedSegment>) {
    let (lane, mut chunks, mut segments) = (node.lane(), Vec::new(), Vec::new());
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        for index in group.first_segment.0..=group.last_segment.0 {
            let id = lane.segment_id(group.id, index);
            let segment = node.log.segment(id).unwrap();
            let (end, base_ordinal, next_ordinal) = (segment.head(), segment.base_ordinal(), segment.next_ordinal());
            let index = SegmentIndex(index);
            segments.push(AwaitedSegment { group: group.id, index, end, base_ordinal, next_ordinal, rewrite: 0 });
            chunks.extend(Chunks::new(segment.bytes(128, end)).map(|chunk| chunk.unwrap().as_bytes().to_vec()));
        }
    }
    (chunks, segments)
}

/// A node that takes over what another one had.
fn taken_over(of: &Node, epoch: u32) -> (Node, Vec<Vec<u8>>) {
    taken_over_by(node(), of, epoch)
}

fn taken_over_by(next: Node, of: &Node, epoch: u32) -> (Node, Vec<Vec<u8>>) {
    let (chunks, segments) = copies_of(of);
    next.log.stream(STREAM).unwrap().place_elsewhere();
    let state = LaneHandover { groups: Vec::new(), ..streamlet(of).hand_over().remove(0) };
    streamlet(&next).receive_lost(&[LostLane { state, segments }]).unwrap();
    streamlet(&next).open(epoch, false).unwrap();
    (next, chunks)
}

#[test]
fn chunks_may_come_in_any_order_and_twice_and_a_segment_is_shown_when_it_is_whole() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    let (next, chunks) = taken_over(&lost, 5);
    assert_eq!(append(&next.lane(), &chunk(9, 100), 20).unwrap().base_ordinal, 9);
    let awaited = streamlet(&next).awaited().len();
    assert!(awaited > 1);
    let mut order: Vec<usize> = (0..chunks.len()).rev().collect();
    order.swap(1, 4);
    let mut whole = 0;
    for at in order {
        let read = next.lane().read(start(), 1 << 20, true).unwrap();
        assert!(whole == awaited || (read.loading && read.data.is_empty()));
        match next.log.rebuild_chunk(&chunks[at]).unwrap() {
            Rebuilt::Put => assert_eq!(next.log.rebuild_chunk(&chunks[at]).unwrap(), Rebuilt::NotAwaited),
            Rebuilt::Whole { .. } => whole += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(streamlet(&next).awaited().len(), awaited - whole);
    }
    assert_eq!(next.log.rebuild_chunk(&chunks[0]).unwrap(), Rebuilt::NotAwaited);
    assert_eq!(ordinals(&next.lane().read(start(), 1 << 20, true).unwrap()), (0..10).collect::<Vec<_>>());
    let of_lost: Vec<_> = copies_of(&next).0;
    assert_eq!(of_lost[..9], chunks[..]);
}

#[test]
fn what_does_not_belong_there_is_refused_and_the_right_one_taken() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    let (next, chunks) = taken_over(&lost, 5);
    let mut flipped = chunks[0].clone();
    flipped[200] ^= 1;
    assert!(matches!(next.log.rebuild_chunk(&flipped), Err(RebuildError::Format(_))));
    // A whole chunk that says it is elsewhere.
    let other = |position: u32, base_ordinal: u64| {
        let mut bytes = chunks[1].clone();
        let part = ChunkView::parse(&bytes).unwrap().broker().unwrap();
        kera_format::BrokerPart { position, base_ordinal, ..part }.stamp(&mut bytes);
        bytes
    };
    let position = ChunkView::parse(&chunks[1]).unwrap().broker().unwrap().position;
    assert!(matches!(next.log.rebuild_chunk(&other(64, 1)), Err(RebuildError::Conflict { .. })));
    assert!(matches!(next.log.rebuild_chunk(&other(position, 700)), Err(RebuildError::Conflict { .. })));
    assert_eq!(next.log.rebuild_chunk(&chunks[0]).unwrap(), Rebuilt::Put);
    assert!(matches!(next.log.rebuild_chunk(&other(136, 1)), Err(RebuildError::Conflict { .. })));
    // An ordinal that only the whole segment shows to be wrong: all of it comes again.
    assert_eq!(next.log.rebuild_chunk(&other(position, 0)).unwrap(), Rebuilt::Put);
    let results: Vec<_> = chunks[2..].iter().map(|chunk| next.log.rebuild_chunk(chunk)).collect();
    assert!(results.iter().any(|result| matches!(result, Err(RebuildError::Conflict { .. }))));
    for chunk in &chunks {
        next.log.rebuild_chunk(chunk).unwrap();
    }
    assert_eq!(ordinals(&next.lane().read(start(), 1 << 20, true).unwrap()), (0..9).collect::<Vec<_>>());
}

/// What was handed over to the lost owner ends before the first segment that its log still has.
#[test]
fn a_producer_that_is_known_from_before_a_gap_alone_goes_on_with_any_number() {
    let (before, lost) = (node(), node());
    for producer in [7, 8] {
        append(&before.lane(), &chunk_of(producer, 0, 0, 10), 0).unwrap();
    }
    let told = streamlet(&before).hand_over();
    streamlet(&lost).leave();
    streamlet(&lost).receive(&told).unwrap();
    streamlet(&lost).open(4, false).unwrap();
    append(&lost.lane(), &chunk_of(7, 0, 1, 30_000), 1).unwrap();
    (1..9).for_each(|n| _ = append(&lost.lane(), &chunk_of(8, 0, n, 30_000), 1).unwrap());
    let (_, mut segments) = copies_of(&lost);
    // Retention took the chunk of producer 7 at the lost owner, so its backups tell of the other one alone.
    segments.drain(..2);
    let mut state = LaneHandover { groups: Vec::new(), ..streamlet(&lost).hand_over().remove(0) };
    state.producers.retain(|one| one.producer_id.0 == 8);
    let next = node();
    streamlet(&next).leave();
    streamlet(&next).receive(&told).unwrap();
    streamlet(&next).receive_lost(&[LostLane { state, segments }]).unwrap();
    streamlet(&next).open(5, false).unwrap();
    assert_eq!(append(&next.lane(), &chunk_of(7, 0, 2, 100), 20).map(|next| next.base_ordinal), Ok(11));
    assert!(append(&next.lane(), &chunk_of(8, 0, 8, 30_000), 20).unwrap().duplicate);
    let gap = append(&next.lane(), &chunk_of(8, 0, 10, 100), 20);
    assert!(matches!(gap, Err(AppendError::SequenceGap { expected: 9, .. })), "{gap:?}");
}

#[test]
fn what_is_begun_takes_a_part_of_the_arena_and_the_rest_is_put_off() {
    let large = || node_with(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 64 << 20);
    let lost = large();
    fill(&lost.lane(), 0..200, 200_000);
    let (next, chunks) = taken_over_by(large(), &lost, 5);
    let begins = |chunk: &&Vec<u8>| ChunkView::parse(chunk).unwrap().broker().unwrap().position == 128;
    let put: Vec<Rebuilt> = chunks.iter().filter(begins).map(|chunk| next.log.rebuild_chunk(chunk).unwrap()).collect();
    assert!(put.contains(&Rebuilt::Put) && put.contains(&Rebuilt::Later));
    let used = next.log.stats().arena.used_bytes;
    assert!(used <= 20 << 20, "{used} bytes are used");
    let mut passes = 0;
    while !streamlet(&next).awaited().is_empty() {
        passes += 1;
        assert!(passes < 10);
        for chunk in &chunks {
            next.log.rebuild_chunk(chunk).unwrap();
        }
    }
    assert_eq!(ordinals(&next.lane().read(start(), 64 << 20, true).unwrap()).len(), 200);
}

#[test]
fn what_lacks_chunks_that_nobody_gives_holds_up_nothing_else() {
    let large = || node_with(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 64 << 20);
    let lost = large();
    fill(&lost.lane(), 0..200, 200_000);
    let (next, chunks) = taken_over_by(large(), &lost, 5);
    let part = |chunk: &[u8]| ChunkView::parse(chunk).unwrap().broker().unwrap();
    let of = |chunk: &[u8]| (part(chunk).group, part(chunk).segment);
    // Of as many as may be begun only the first chunk is there.
    let begins = |chunk: &&Vec<u8>| part(chunk).position == 128;
    let is_put = |chunk: &&Vec<u8>| next.log.rebuild_chunk(chunk).unwrap() == Rebuilt::Put;
    let mut stuck: Vec<_> = chunks.iter().filter(begins).filter(is_put).map(|chunk| of(chunk)).collect();
    assert!(stuck.len() > 12 && stuck.len() < streamlet(&next).awaited().len() / 2);
    let read = |stuck: &[_]| {
        for chunk in chunks.iter().filter(|chunk| !stuck.contains(&of(chunk)) || part(chunk).position == 128) {
            next.log.rebuild_chunk(chunk).unwrap();
        }
        next.log.give_back_begun(|_, _| true);
        streamlet(&next).awaited().len()
    };
    let before = streamlet(&next).awaited().len();
    assert_eq!(read(&stuck), before, "all that may be begun is");
    let left = (0..4).fold(0, |_, _| read(&stuck));
    assert_eq!(left, stuck.len());
    // What is read last of it is there again. The others take what what has waited may take, and have had their turn.
    stuck.truncate(stuck.len() - 3);
    let left = (0..4).fold(0, |_, _| read(&stuck));
    assert_eq!(left, stuck.len());
    stuck.clear();
    let left = (0..4).fold(0, |_, _| read(&stuck));
    assert_eq!(left, 0);
    assert_eq!(ordinals(&next.lane().read(start(), 64 << 20, true).unwrap()).len(), 200);
}

/// When what is awaited was written nobody knows: its producers may have been told a moment ago that they have to try again.
#[test]
fn who_wrote_what_is_still_to_be_rebuilt_is_not_silent() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    lost.log.close_idle(1_000_000, 0);
    let (next, _) = taken_over(&lost, 5);
    let known = |node: &Node| {
        node.lane().forget_silent_producers(0, &1_800_000_000_000.into());
        node.lane().state.lock().producers.len()
    };
    assert_eq!((known(&next), known(&lost)), (1, 0));
}

#[test]
fn what_is_begun_keeps_what_it_has_while_nothing_is_put_off() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    let (next, chunks) = taken_over(&lost, 5);
    assert_eq!(next.log.rebuild_chunk(&chunks[0]).unwrap(), Rebuilt::Put);
    next.log.give_back_begun(|_, _| true);
    assert_eq!(next.log.rebuild_chunk(&chunks[0]).unwrap(), Rebuilt::NotAwaited, "it is there");
}

/// What is at one backup alone, perhaps, stays; and what others read for is theirs.
#[test]
fn ends_of_logs_and_what_others_have_begun_are_not_given_back() {
    let large = || node_with(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 64 << 20);
    let lost = large();
    fill(&lost.lane(), 0..200, 200_000);
    let (next, chunks) = taken_over_by(large(), &lost, 5);
    let begins = |chunk: &&Vec<u8>| ChunkView::parse(chunk).unwrap().broker().unwrap().position == 128;
    let first: Vec<_> = chunks.iter().filter(begins).collect();
    let put = |chunk: &Vec<u8>| next.log.rebuild_chunk(chunk).unwrap();
    let tails: Vec<Rebuilt> = first.iter().map(|chunk| next.log.rebuild_tail(chunk).unwrap()).collect();
    let begun = tails.iter().filter(|tail| **tail == Rebuilt::Put).count();
    assert!(tails.contains(&Rebuilt::Later) && begun > 12, "{tails:?}");
    let used = next.log.stats().arena.used_bytes;
    assert!(used <= 20 << 20, "{used} bytes are used");
    next.log.give_back_begun(|_, _| false);
    assert!(first[..begun].iter().all(|chunk| put(chunk) == Rebuilt::NotAwaited), "all is there");
    next.log.give_back_begun(|_, _| true);
    let there = first.iter().filter(|chunk| put(chunk) == Rebuilt::NotAwaited).count();
    assert!(there > begun / 3 && there < begun * 2 / 3, "{there} of {begun} hold ends of logs, half of the room");
    // They leave room for the rest, and are done with it.
    for _ in 0..9 {
        chunks.iter().for_each(|chunk| _ = put(chunk));
        next.log.give_back_begun(|_, _| true);
    }
    assert_eq!(ordinals(&next.lane().read(start(), 64 << 20, true).unwrap()).len(), 200);
    assert!(streamlet(&next).awaited().is_empty());
}

/// Before it is given up: each has had room, however little there is, and whatever order they come in.
#[test]
fn all_is_looked_through_for_what_nobody_has() {
    let large = || node_with(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 64 << 20);
    let lost = large();
    fill(&lost.lane(), 0..260, 200_000);
    let (next, chunks) =
        taken_over_by(node_with(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 16 << 20), &lost, 5);
    let part = |chunk: &[u8]| ChunkView::parse(chunk).unwrap().broker().unwrap();
    let (last, all) = (part(chunks.last().unwrap()).group, streamlet(&next).awaited().len());
    // Nobody has the first chunks of any segment but the last ones.
    let there = |chunk: &&Vec<u8>| part(chunk).position != 128 || part(chunk).group == last;
    let whole = streamlet(&next).awaited().iter().filter(|(_, segment)| segment.group == last).count();
    assert!(whole > 0 && all > 40, "{whole} of {all}");
    let (mut rounds, mut left) = (0, all);
    streamlet(&next).look_anew();
    while left > 0 {
        rounds += 1;
        chunks.iter().filter(there).for_each(|chunk| _ = next.log.rebuild_chunk(chunk).unwrap());
        let before = std::mem::replace(&mut left, streamlet(&next).looked_through());
        assert!(left < before, "{left} lack room after {rounds} rounds");
    }
    assert!(rounds > 5, "{rounds}");
    assert_eq!(streamlet(&next).awaited().len(), all - whole);
    let lacking = chunks.iter().find(there).unwrap();
    assert_eq!(next.log.rebuild_chunk(lacking).unwrap(), Rebuilt::Later, "it leaves the room to others");
    streamlet(&next).look_anew();
    assert_eq!(next.log.rebuild_chunk(lacking).unwrap(), Rebuilt::Put);
}

#[test]
fn a_write_of_an_older_copy_that_comes_late_does_not_count() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    let (next, _) = taken_over(&lost, 5);
    let (next, store) = next.with_store();
    let (_, segment) = streamlet(&next).awaited()[0];
    let id = next.lane().segment_id(segment.group, segment.index.0);
    next.log.persisted(id, Location { disk: 0, container: 1, offset: 0, bytes: 64 << 10 });
    assert_eq!(*store.released.lock(), [id]);
    assert!(next.lane().read(start(), 1, true).unwrap().loading);
    assert_eq!(*store.loads.lock(), []);
}

#[test]
fn a_fenced_broker_forgets_what_was_not_acknowledged() {
    let (node, sink) = power_node();
    let lane = node.lane();
    fill(&lane, 0..4, 10_000);
    sink.sync();
    let durable = copies_of(&node).0;
    fill(&lane, 4..20, 10_000);
    assert!(append(&lane, &chunk(3, 10_000), 9).unwrap().duplicate);
    let held: Vec<_> = sink.pending.lock().clone();
    assert!(streamlet(&node).has_unacknowledged());
    streamlet(&node).forget_unacknowledged().unwrap();
    assert!(!streamlet(&node).has_unacknowledged());
    assert_eq!(streamlet(&node).tenure(), Tenure::Elsewhere);
    assert_eq!(copies_of(&node).0, durable);
    assert_eq!((lane.stats().next_ordinal, lane.durable_ordinal()), (4, 4));
    let read = lane.read(start(), 1 << 20, true).unwrap();
    assert_eq!((ordinals(&read), read.at_durable_end), (vec![0, 1, 2, 3], true));
    // Blocks that are on their way still have their bytes.
    assert!(held.iter().all(|reference| !reference.chunk().is_empty()));
    // Twice is like once; and what is then written goes on where it ended.
    streamlet(&node).forget_unacknowledged().unwrap();
    streamlet(&node).open(6, false).unwrap();
    assert!(append(&lane, &chunk(3, 10_000), 9).unwrap().duplicate);
    let next = append(&lane, &chunk(4, 10_000), 9).unwrap();
    assert_eq!((next.base_ordinal, next.duplicate, next.cursor.group.epoch()), (4, false, 6));
}

/// What the lane of progress has under way is cut as well, and kept by nobody.
#[test]
fn what_is_under_way_in_any_lane_is_not_acknowledged() {
    for of_progress in [false, true] {
        let (node, sink) = power_node();
        let lane = match of_progress {
            true => Arc::clone(streamlet(&node).progress_lane()),
            false => node.lane(),
        };
        assert!(!streamlet(&node).has_unacknowledged(), "of progress: {of_progress}");
        fill(&lane, 0..1, 100);
        assert!(streamlet(&node).has_unacknowledged(), "of progress: {of_progress}");
        sink.sync();
        assert!(!streamlet(&node).has_unacknowledged(), "of progress: {of_progress}");
    }
}

/// An owner gets its own streamlet again in a later epoch while something is on its way: that is kept, and still not durable.
#[test]
fn what_is_on_its_way_stays_so_when_other_groups_go() {
    let (node, sink) = power_node();
    let lane = node.lane();
    fill(&lane, 0..4, 10_000);
    sink.sync();
    fill(&lane, 4..6, 10_000);
    streamlet(&node).leave();
    streamlet(&node).forget_groups(|_| true);
    assert_eq!((lane.stats().next_ordinal, lane.durable_ordinal()), (6, 4));
    assert!(!streamlet(&node).is_settled());
    streamlet(&node).open(6, false).unwrap();
    fill(&lane, 6..7, 10_000);
    assert_eq!((lane.stats().next_ordinal, lane.durable_ordinal()), (7, 4));
    sink.sync();
    assert_eq!((ordinals(&lane.read(start(), 1 << 20, true).unwrap()).len(), lane.durable_ordinal()), (7, 7));
}

/// The segment that ends earlier has the name of the one that goes, of which the store forgets what it was given.
#[test]
fn what_is_left_of_a_segment_that_was_cut_goes_to_the_store() {
    let (node, sink) = power_node();
    let (node, store) = node.with_store();
    let lane = node.lane();
    fill(&lane, 0..4, 10_000);
    sink.sync();
    fill(&lane, 4..5, 10_000);
    streamlet(&node).forget_unacknowledged().unwrap();
    let closed: Vec<u64> = store.closed.lock().iter().map(|segment| segment.next_ordinal()).collect();
    assert_eq!(closed, [4]);
}

#[test]
fn groups_that_are_not_kept_go_with_their_producers() {
    let node = node();
    fill(&node.lane(), 0..4, 10_000);
    streamlet(&node).leave();
    streamlet(&node).forget_groups(|_| true);
    assert_eq!((copies_of(&node).0.len(), node.lane().stats().next_ordinal), (4, 4));
    streamlet(&node).forget_groups(|_| false);
    assert_eq!((copies_of(&node).0.len(), node.lane().stats().next_ordinal), (0, 0));
    assert_eq!(node.log.stats().arena.used_bytes, 0);
    streamlet(&node).open(6, false).unwrap();
    assert!(!append(&node.lane(), &chunk(0, 10_000), 9).unwrap().duplicate);
}

#[test]
fn what_a_holder_has_is_awaited_no_more_and_what_is_new_stays() {
    let lost = node();
    fill(&lost.lane(), 0..9, 10_000);
    let (next, chunks) = taken_over(&lost, 5);
    assert_eq!(append(&next.lane(), &chunk(9, 100), 20).unwrap().base_ordinal, 9);
    let half = chunks.len() / 2;
    for chunk in &chunks[..half] {
        next.log.rebuild_chunk(chunk).unwrap();
    }
    assert!(streamlet(&next).is_awaiting() && streamlet(&next).whole_lanes().is_none());
    let left = streamlet(&next).groups_but(|group| group.epoch() >= 5);
    streamlet(&next).leave_to_holder(|group| group.epoch() >= 5);
    let [(lane, groups)] = &left[..] else { panic!("{left:?}") };
    assert_eq!((*lane, groups[0].first_ordinal, groups.last().unwrap().next_ordinal), (next.lane().id(), 0, 9));
    assert!(!streamlet(&next).is_awaiting());
    assert_eq!(next.log.rebuilt_bytes(), 0, "what was whole waits for no copy");
    for chunk in &chunks[half..] {
        assert_eq!(next.log.rebuild_chunk(chunk).unwrap(), Rebuilt::NotAwaited);
    }
    assert_eq!(append(&next.lane(), &chunk(10, 100), 21).unwrap().base_ordinal, 10);
    let first = kera_format::Cursor { group: GroupId::new(5, 0), ..Default::default() };
    assert_eq!(ordinals(&next.lane().read(first, 1 << 20, true).unwrap()), [9, 10]);
    assert!(streamlet(&next).groups_but(|group| group.epoch() >= 5).is_empty());
}

#[test]
fn a_lane_is_whole_without_a_hole_and_with_nothing_that_is_not_durable() {
    let node = node();
    assert_eq!(streamlet(&node).whole_lanes(), Some(Vec::new()));
    fill(&node.lane(), 0..9, 10_000);
    assert_eq!(streamlet(&node).whole_lanes(), None, "its last segment is open");
    streamlet(&node).leave();
    assert_eq!(streamlet(&node).whole_lanes(), Some(vec![(node.lane().id(), 0, 9)]));
}
