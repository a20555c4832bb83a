//! Lanes that know more producers than there is memory for, all together.

use super::restart::restart_as;
use super::*;

/// Lanes know some 2,000 producers together, and five minutes count as long.
fn config() -> LogConfig {
    LogConfig { producers_bytes_min: 0, producers_kept_ms: 300_000, ..LogConfig::default() }
}

fn small() -> Node {
    node_configured(config(), options(), 8 << 20)
}

/// A chunk of each of these producers, and every now and then what the maintenance thread does.
fn sessions(node: &Node, lane: u32, producers: std::ops::Range<u64>, now_ms: i64) {
    let lane = node.lane_number(lane);
    for producer in producers {
        append(&lane, &chunk_of(producer, 0, 0, 16), now_ms).unwrap();
        if producer % 100 == 0 {
            node.log.retain(now_ms);
        }
    }
}

fn known(node: &Node, lane: u32, producers: std::ops::Range<u64>) -> usize {
    let lane = node.lane_number(lane);
    producers.filter(|producer| lane.knows_producer(ProducerId(*producer))).count()
}

/// What a lane says to a producer of which it knows nothing, and which has sent something before.
fn says(node: &Node, lane: u32, producer: u64) -> AppendError {
    let sent = chunk_of(producer, 0, 5, 16);
    node.lane_number(lane).append_skipping(&ChunkView::parse(&sent).unwrap(), 0, None).unwrap_err()
}

fn gap(producer: u64, forgot: bool) -> AppendError {
    AppendError::SequenceGap { producer, found: 5, expected: 0, forgot }
}

#[test]
fn sessions_in_many_lanes_take_no_more_than_there_is_memory_for() {
    let node = node_configured(config(), StreamOptions { lanes: 20, ..options() }, 8 << 20);
    for lane in 0..20 {
        sessions(&node, lane, 1..401, 0);
    }
    let stats = node.log.stats();
    assert!(stats.producer_bytes <= stats.producer_bytes_max, "{stats:?}");
    assert!(stats.producers * 200 <= stats.producer_bytes && stats.producers > 1_000, "{stats:?}");
    assert!(stats.producers + stats.producers_forgotten == 20 * 400, "{stats:?}");
    // Each lane knows those that wrote last, and says of others that they may be forgotten.
    for lane in 0..20 {
        assert_eq!(known(&node, lane, 360..401), 41);
        assert_eq!(says(&node, lane, 1), gap(1, true));
    }
    node.log.delete_stream(STREAM).unwrap();
    assert_eq!(node.log.stats().producer_bytes, 0);
}

#[test]
fn those_that_do_not_try_again_give_way_to_those_that_may() {
    let node = small();
    sessions(&node, 0, 1..1_501, 0);
    assert_eq!(known(&node, 0, 1..1_501), 1_500, "there is room");
    node.log.close_idle(1_000, 0);
    sessions(&node, 1, 2_001..3_501, 300_001);
    assert_eq!((known(&node, 0, 1..1_501), known(&node, 0, 1_437..1_501)), (64, 64));
    assert_eq!(known(&node, 1, 2_001..3_501), 1_500);
    assert_eq!((says(&node, 0, 1), says(&node, 1, 1)), (gap(1, true), gap(1, false)));
}

#[test]
fn if_all_may_try_again_each_lane_keeps_those_that_wrote_last() {
    let node = small();
    sessions(&node, 0, 1..1_501, 0);
    sessions(&node, 1, 2_001..3_501, 1_000);
    let (first, second) = (known(&node, 0, 1..1_501), known(&node, 1, 2_001..3_501));
    assert!(first >= 64 && second > first && first + second > 1_000, "{first} {second}");
    assert_eq!((known(&node, 0, 1_437..1_501), known(&node, 1, 3_437..3_501)), (64, 64));
    assert_eq!((says(&node, 0, 1), says(&node, 1, 1)), (gap(1, true), gap(1, true)));
}

/// All of them know as few as a lane may in any case, and take all there is together.
#[test]
fn lanes_that_nobody_writes_to_give_way_however_little_each_knows() {
    let lanes = 300;
    let options = StreamOptions { lanes: lanes + 1, ..options() };
    let (node, store) = node_configured(config(), options, 8 << 20).with_store();
    let room = &node.log.shared.producer_room;
    for lane in 0..lanes {
        sessions(&node, lane, 1..9, 0);
        // There is not memory for segments of all of them.
        node.log.close_idle(1_000, 0);
        store.persist_all(&node.log).iter().for_each(|stored| _ = node.log.evict(stored.0.header.id));
    }
    assert!(room.is_full());
    node.log.retain(0);
    assert_eq!((known(&node, 0, 1..9), known(&node, lanes - 1, 1..9)), (8, 8), "they may try again");
    assert!(!room.is_to_be_trimmed(&9_999.into()), "it was in vain just now");
    assert!(room.is_to_be_trimmed(&10_000.into()));
    sessions(&node, lanes, 1..41, 0);
    assert_eq!(known(&node, lanes, 1..41), 8, "there is no room");
    node.log.close_idle(1_000, 0);
    node.log.retain(300_001);
    assert!(!room.is_full());
    sessions(&node, lanes, 1_001..1_201, 300_001);
    assert_eq!((known(&node, 0, 1..9), known(&node, lanes, 1_001..1_201)), (0, 200));
    assert_eq!(says(&node, 0, 1), gap(1, true));
}

#[test]
fn a_lane_with_one_producer_takes_room_for_one() {
    let node = node_configured(config(), StreamOptions { lanes: 20, ..options() }, 8 << 20);
    (0..20).for_each(|lane| sessions(&node, lane, 1..2, 0));
    let stats = node.log.stats();
    assert_eq!((stats.producers, stats.producer_bytes), (20, 20 * crate::producers::ENTRY_BYTES));
}

/// What the chunks tell is more than was known, and comes lane by lane.
#[test]
fn at_a_start_lanes_that_come_first_leave_room_to_those_that_come_later() {
    let node = small();
    sessions(&node, 0, 1..3_001, 0);
    sessions(&node, 1, 4_001..4_501, 0);
    let (node, segments, _) = restart_as(node, options(), config());
    node.log.recover(Vec::new(), segments);
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    let (first, later) = (known(&node, 0, 1..3_001), known(&node, 1, 4_001..4_501));
    assert!(first > 200 && later > 200, "{first} {later}");
    assert_eq!((known(&node, 0, 2_937..3_001), known(&node, 1, 4_437..4_501)), (64, 64));
    let stats = node.log.stats();
    assert!(stats.producer_bytes <= stats.producer_bytes_max, "{stats:?}");
}

/// A node that was killed and starts, with so many producers in each lane, which have sent a chunk each at a time.
fn started_with(lanes: &[(u64, i64)]) -> Node {
    let options = StreamOptions { lanes: lanes.len() as u32, ..options() };
    let node = node_configured(config(), options.clone(), 8 << 20);
    for (number, (producers, at_ms)) in (0..).zip(lanes) {
        let lane = node.lane_number(number);
        (1..=*producers).for_each(|producer| _ = append(&lane, &chunk_of(producer, 0, 0, 16), *at_ms).unwrap());
    }
    node.log.close_idle(i64::MAX, 0);
    let (node, segments, _) = restart_as(node, options, config());
    node.log.recover(Vec::new(), segments);
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    node
}

/// What they sent last may be under way once more.
fn all_are_told_of_duplicates(node: &Node, lane: u32, producers: std::ops::Range<u64>) {
    let lane = node.lane_number(lane);
    for producer in producers {
        assert!(append(&lane, &chunk_of(producer, 0, 0, 16), 700_000).unwrap().duplicate, "{producer}");
    }
}

#[test]
fn at_a_start_those_that_do_not_try_again_give_way_to_those_that_may() {
    for live in [0, 5] {
        let mut lanes = [(1_000, 0); 10];
        lanes[live] = (300, 600_000);
        let node = started_with(&lanes);
        assert_eq!(known(&node, live as u32, 1..301), 300);
        all_are_told_of_duplicates(&node, live as u32, 1..301);
        let stats = node.log.stats();
        assert!(stats.producer_bytes <= stats.producer_bytes_max, "{stats:?}");
    }
}

/// A clock was ahead by years when a lane was written to. Beside that all others are old, and not all of them go.
#[test]
fn at_a_start_a_time_that_is_far_ahead_takes_no_room_from_those_that_wrote_last() {
    let mut lanes = [(1_000, 0); 10];
    (lanes[2], lanes[6]) = ((300, 600_000), (10, i64::MAX / 2));
    let node = started_with(&lanes);
    assert_eq!((known(&node, 2, 1..301), known(&node, 6, 1..11)), (300, 10));
    all_are_told_of_duplicates(&node, 2, 1..301);
}

#[test]
fn a_closed_segment_tells_of_those_that_were_thrown_out_behind_it_too() {
    let (node, store) = node_configured(
        LogConfig { producers_per_lane_max: 2, ..config() },
        StreamOptions { segments_per_group: 9, ..options() },
        8 << 20,
    )
    .with_store();
    let lane = node.lane();
    let of =
        |segment: &Arc<Segment>| segment.producer_marks().iter().map(|mark| mark.producer_id.0).collect::<Vec<_>>();
    for (sequence, producers) in [(0, 7..=9), (1, 8..=9), (2, 9..=10)] {
        for producer in producers {
            let sequence = if producer == 10 { 0 } else { sequence };
            append(&lane, &chunk_of(producer, 0, sequence, 16), 0).unwrap();
        }
        node.log.close_idle(1_000, 0);
    }
    let closed = store.closed.lock();
    assert_eq!(closed.iter().map(of).collect::<Vec<_>>(), [vec![7, 8, 9], vec![8, 9], vec![9, 10]]);
    // Only of the first segment one was thrown out that wrote there.
    assert_eq!(closed.iter().map(|segment| segment.has_marks()).collect::<Vec<_>>(), [false, true, true]);
}

/// What a lane remembers of it is cut, and no segment in memory has more of it: compaction, which does not know it, is to say that some were forgotten when it takes
/// what is on disk.
#[test]
fn a_producer_of_which_only_what_is_on_disk_is_left_is_one_that_was_thrown_out() {
    for is_in_memory in [true, false] {
        let (node, sink) = power_node();
        let (node, store) = node.with_store();
        let lane = node.lane();
        fill(&lane, 0..3, 10_000);
        sink.sync();
        node.log.close_all();
        let stored = store.persist_all(&node.log);
        assert_eq!(stored.len(), 1);
        if !is_in_memory {
            stored.iter().for_each(|(segment, _)| assert!(node.log.evict(segment.header.id)));
        }
        fill(&lane, 3..8, 10_000);
        let streamlet = Arc::clone(node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap());
        streamlet.forget_unacknowledged().unwrap();
        assert_eq!(lane.stats().next_ordinal, 3);
        assert_eq!(lane.knows_producer(ProducerId(7)), is_in_memory);
        assert_eq!(lane.state.lock().producers.has_thrown_out(), !is_in_memory);
    }
}
