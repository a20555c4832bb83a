//! What goes, what stays, and what is closed because nobody writes to it.

use kera_env::{Clock, ManualClock};
use kera_format::GroupId;

use super::*;
use crate::lane::LOOKED_AT;
use crate::retention::{LOOKED_AT as RETAINED, SUMMED_UP};
use crate::waiters::tests::Counter;

fn retention(ms: Option<u64>, bytes: Option<u64>, consumed: bool) -> StreamOptions {
    StreamOptions { retention_ms: ms, retention_bytes: bytes, retention_consumed: consumed, ..options() }
}

#[test]
fn what_is_too_old_goes_and_waiting_readers_are_told() {
    let (node, store) = node_with(retention(Some(1000), None, false), 8 << 20).with_store();
    let lane = node.lane();
    let mut ids: Vec<SegmentId> = Vec::new();
    (0..3).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    ids.extend(store.persist_all(&node.log).iter().map(|s| s.0.header.id));
    (3..7).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    assert_eq!(node.log.retain(6_000), 0, "nothing behind is on disk yet");
    ids.extend(store.persist_all(&node.log).iter().map(|s| s.0.header.id));
    let version = lane.version();
    let (counter, observer) = Counter::pair();
    assert!(lane.wait(version, &observer, 1));
    assert_eq!(node.log.retain(5_500), 2, "segments that end at 1000 and 3000");
    assert_eq!((counter.calls(), store.released.lock().clone()), (1, ids[..2].to_vec()));
    assert_eq!(lane.earliest().1, 4);
    let gone = Cursor { group: ids[0].group, segment: ids[0].index, position: 128 };
    assert!(matches!(lane.read(gone, 1, true), Err(ReadError::Gone { earliest, .. }) if earliest == lane.earliest().0));
}

const DAY_MS: u64 = 86_400_000;
const NOW_MS: i64 = 1_800_000_000_000;

/// Lets so much time pass, with a look at what is too old every minute: how many segments have gone.
fn turns(node: &Node, clock: &ManualClock, minutes: u64) -> u64 {
    let turn = |_| {
        clock.advance_ms(60_000);
        node.log.retain(clock.believed())
    };
    (0..minutes).map(turn).sum()
}

#[test]
fn a_clock_that_jumps_deletes_nothing_before_that_has_held_and_nothing_that_it_wrote_itself() {
    let node = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20);
    let (clock, lane) = (ManualClock::new(NOW_MS), node.lane());
    clock.begin(None, None);
    // Some is from before the process began.
    (0..4).for_each(|n| _ = append(&lane, &chunk(n, 30_000), NOW_MS - 3 * DAY_MS as i64).unwrap());
    (4..9).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(turns(&node, &clock, 1), 0);
    let year_ms = 365 * DAY_MS as i64;
    clock.set_now_ms(clock.now_ms() + year_ms);
    assert_eq!(turns(&node, &clock, 50), 0);
    clock.set_now_ms(clock.now_ms() - year_ms);
    assert_eq!(turns(&node, &clock, 120), 0);
    assert_eq!((lane.stats().first_ordinal, lane.stats().next_ordinal), (0, 9), "it was taken back");
    clock.set_now_ms(clock.now_ms() + year_ms);
    assert_eq!(turns(&node, &clock, 61), 2);
    assert_eq!(lane.stats().first_ordinal, 4, "it has held, and what this process wrote is hours old");
    assert!(turns(&node, &clock, 8 * 24 * 60) > 0);
    assert_eq!(lane.stats().first_ordinal, 9);
}

#[test]
fn what_is_kept_for_days_is_looked_through_once_a_minute_and_all_else_each_time() {
    let node = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20);
    let lane = node.lane();
    append(&lane, &chunk(0, 100), 0).unwrap();
    let mut now_ms = 0;
    let mut seconds = |count: i64| {
        let before = RETAINED.get();
        let dropped = (0..count).map(|_| {
            now_ms += 1_000;
            node.log.retain(now_ms)
        });
        (dropped.sum::<u64>(), RETAINED.get() - before)
    };
    assert_eq!(seconds(120), (0, 2));
    node.log.alter_stream(STREAM, retention(Some(DAY_MS), None, false)).unwrap();
    assert_eq!(seconds(90), (0, 10), "nine seconds are a second more than a ten thousandth of a day");
    node.log.alter_stream(STREAM, retention(Some(DAY_MS / 24), None, false)).unwrap();
    assert_eq!(seconds(10), (0, 10));
    // What is deleted, or read by everybody, goes at once.
    node.log.alter_stream(STREAM, retention(Some(7 * DAY_MS), None, true)).unwrap();
    assert_eq!(seconds(10), (0, 10));
    node.log.alter_stream(STREAM, retention(Some(7 * DAY_MS), None, false)).unwrap();
    assert_eq!(seconds(60), (0, 1));
    append(&lane, &chunk(1, 100), 300_000).unwrap();
    node.log.close_idle(300_000, 0);
    lane.raise_floor(2);
    assert_eq!(seconds(1).0, 1);
}

#[test]
fn what_a_node_takes_before_its_clock_is_set_is_not_older_for_that() {
    let node = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20);
    let (clock, lane) = (ManualClock::new(0), node.lane());
    clock.begin(None, None);
    (0..4).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(turns(&node, &clock, 10), 0);
    clock.set_now_ms(NOW_MS);
    (4..9).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(turns(&node, &clock, 6 * 24 * 60), 0);
    assert!(turns(&node, &clock, 2 * 24 * 60) > 0);
    assert_eq!(lane.stats().first_ordinal, 9);
}

#[test]
fn what_a_lane_with_old_records_takes_before_the_clock_is_set_is_not_as_old_as_those() {
    let (node, store) = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20).with_store();
    let (clock, lane) = (ManualClock::new(0), node.lane());
    (0..4).for_each(|n| _ = append(&lane, &chunk(n, 30_000), NOW_MS - 8 * DAY_MS as i64).unwrap());
    clock.begin(Some(NOW_MS - 8 * DAY_MS as i64), None);
    (4..9).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(turns(&node, &clock, 10), 0);
    node.log.close_idle(clock.now_ms(), 0);
    store.persist_all(&node.log);
    clock.set_now_ms(NOW_MS);
    assert_eq!(turns(&node, &clock, 59), 0, "it is not believed yet");
    assert!(turns(&node, &clock, 6 * 24 * 60) > 0);
    let first = lane.stats().first_ordinal;
    assert!((1..=4).contains(&first), "the old ones go, and none of the others: {first}");
    assert!(turns(&node, &clock, 2 * 24 * 60) > 0);
    assert_eq!(lane.stats().first_ordinal, 8, "all but the last, which says where the lane goes on");
}

#[test]
fn of_a_lane_whose_times_are_ahead_as_much_goes_by_size_as_its_age_says() {
    let (node, store) = node_with(retention(None, Some(400_000), false), 8 << 20).with_store();
    let clock = ManualClock::new(NOW_MS);
    let lanes = [node.lane_number(0), node.lane_number(1)];
    // The clock was two years ahead for a second, long ago; the other lane is younger.
    (0..6).for_each(|n| _ = append(&lanes[0], &chunk(n, 30_000), clock.now_ms() + 730 * DAY_MS as i64).unwrap());
    assert_eq!(turns(&node, &clock, 60), 0);
    (0..9).for_each(|n| _ = append(&lanes[1], &chunk(n, 30_000), clock.now_ms()).unwrap());
    store.persist_all(&node.log);
    assert!(turns(&node, &clock, 1) > 0);
    assert_eq!(lanes[1].stats().first_ordinal, 0, "{:?}", lanes[0].stats());
}

#[test]
fn a_clock_that_is_doubted_closes_no_segment_for_that() {
    let node = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20);
    let (clock, lane) = (ManualClock::new(NOW_MS), node.lane());
    clock.begin(None, None);
    append(&lane, &chunk(0, 100), clock.now_ms()).unwrap();
    clock.set_now_ms(clock.now_ms() + 8 * 3_600_000);
    clock.believed();
    for n in 1..60 {
        append(&lane, &chunk(n, 100), clock.now_ms()).unwrap();
        clock.advance_ms(1_000);
        node.log.retain(clock.believed());
        let state = lane.state.lock();
        let open = state.open.as_ref().unwrap();
        assert_eq!((open.opened_ms, open.used_ms), (NOW_MS, clock.now_ms() - 1_000));
    }
}

#[test]
fn append_times_that_are_ahead_of_the_clock_keep_nothing_for_ever() {
    let (node, store) = node_with(retention(Some(7 * DAY_MS), None, false), 8 << 20).with_store();
    let (clock, lane) = (ManualClock::new(NOW_MS), node.lane());
    (0..3).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(turns(&node, &clock, 1), 0);
    append(&lane, &chunk(3, 30_000), clock.now_ms() + 730 * DAY_MS as i64).unwrap();
    (4..9).for_each(|n| _ = append(&lane, &chunk(n, 30_000), clock.now_ms()).unwrap());
    assert_eq!(node.log.close_idle(clock.now_ms() + 1_001, 1_000), 1, "it was appended to a second ago");
    store.persist_all(&node.log);
    let options = |after_ms| StreamOptions {
        cleanup: kera_format::Cleanup::Compact,
        compact_after_ms: after_ms,
        compact_within_ms: Some(2 * DAY_MS),
        compact_dirty_percent: 100,
        ..options()
    };
    let worth = |after_ms| lane.compactable(&options(after_ms), &clock.believed()).worth(&options(after_ms));
    assert_eq!((worth(0), worth(DAY_MS)), (Some(100), None));
    assert_eq!(turns(&node, &clock, 6 * 24 * 60), 0);
    assert_eq!(worth(5 * DAY_MS), Some(200), "it is old enough, and late");
    assert!(turns(&node, &clock, 2 * 24 * 60) > 0);
    assert_eq!(lane.stats().first_ordinal, 8, "all but the last, which says where the lane goes on");
}

/// A member of an application has a lease on one group: what it is given of the next one somebody else is given, too.
#[test]
fn who_reads_one_group_gets_nothing_of_the_next_when_its_own_has_gone() {
    let (node, store) = node_with(retention(Some(1000), None, false), 8 << 20).with_store();
    let lane = node.lane();
    (0..12).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    store.persist_all(&node.log);
    let groups = lane.groups(GroupId::NONE, 9);
    assert!(groups.len() > 1, "{groups:?}");
    let mut read = lane.read(Cursor { group: groups[0].id, ..Cursor::default() }, 1 << 20, false).unwrap();
    while !read.end_of_group {
        read = lane.read(read.next, 1 << 20, false).unwrap();
    }
    let end = read.next;
    assert_eq!(end.group, groups[0].id);
    assert!(node.log.retain(groups[0].last_append_ms + 1_500) > 0);
    assert_eq!(lane.earliest().0.group, groups[1].id);
    let behind = lane.read(end, 1 << 20, false).unwrap();
    assert_eq!((behind.end_of_group, behind.data_bytes, behind.next), (true, 0, end));
    let follows = lane.read(end, 1 << 20, true).unwrap();
    assert!(follows.data_bytes > 0 && follows.start.group == groups[1].id);
}

fn remembering(options: StreamOptions) -> Node {
    node_configured(LogConfig { producers_kept_ms: 60_000, ..LogConfig::default() }, options, 8 << 20)
}

/// Two chunks of producer 7 in the first segment, then more of producer 8 in others.
fn silent_and_busy(lane: &Arc<Lane>) {
    (0..2).for_each(|n| _ = append(lane, &chunk(n, 30_000), 0).unwrap());
    (0..16).for_each(|n| _ = append(lane, &chunk_of(8, 0, n, 30_000), 100).unwrap());
}

#[test]
fn what_tells_of_a_producer_stays_as_long_as_that_may_send_it_again() {
    for (age, consumed) in [(Some(1_000), false), (None, true), (None, false)] {
        let node = remembering(retention(age, None, consumed));
        let lane = node.lane();
        silent_and_busy(&lane);
        let end = lane.latest().0;
        if consumed {
            lane.set_consumed_floor(Some(end));
        } else if age.is_none() {
            lane.raise_floor(18);
        }
        assert_eq!(
            node.log.retain(59_999),
            0,
            "{age:?} {consumed}: the first segment has the last chunks of producer 7"
        );
        assert!(node.log.retain(60_000) > 0);
        assert_eq!(
            (lane.stats().first_ordinal, lane.stats().next_ordinal),
            (12, 18),
            "{age:?} {consumed}: the last five"
        );
        assert!(node.log.retain(60_100) > 0, "what busy producers wrote last goes in its time, too");
    }
}

#[test]
fn what_a_producer_wrote_before_its_last_five_chunks_tells_nothing_of_it() {
    let node = remembering(retention(Some(1_000), None, false));
    fill(&node.lane(), 0..16, 30_000);
    assert!(node.log.retain(5_000) > 0);
    assert_eq!(node.lane().stats().first_ordinal, 10);
}

#[test]
fn what_tells_of_producers_takes_as_much_again_as_a_streamlet_may_have_and_no_more() {
    let node = remembering(retention(None, Some(200_000), false));
    let (first, second) = (node.lane(), node.lane_number(1));
    append(&second, &chunk_of(9, 0, 0, 30_000), 0).unwrap();
    append(&second, &chunk_of(9, 0, 1, 40_000), 0).unwrap();
    (0..9).for_each(|n| _ = append(&first, &chunk(n, 30_000), 100).unwrap());
    assert_eq!(node.log.retain(1_000), 0, "340,000 bytes, and nothing goes in its place");
    (9..14).for_each(|n| _ = append(&first, &chunk(n, 30_000), 200).unwrap());
    assert!(node.log.retain(1_000) > 0);
    assert_eq!(second.stats().first_ordinal, 1);
    let bytes = first.stats().bytes + second.stats().bytes;
    assert!(bytes > 200_000 && bytes <= 400_000, "{bytes}");
}

#[test]
fn a_streamlet_is_not_summed_up_again_before_it_can_have_come_to_its_limit() {
    let node = node_with(retention(None, Some(400_000), false), 8 << 20);
    let lanes = [node.lane_number(0), node.lane_number(1)];
    (0..6).for_each(|n| _ = append(&lanes[0], &chunk(n, 30_000), 0).unwrap());
    append(&lanes[1], &chunk_of(9, 0, 0, 30_000), 0).unwrap();
    let retain = |now_ms: i64| {
        let before = SUMMED_UP.get();
        (node.log.retain(now_ms), SUMMED_UP.get() - before)
    };
    assert_eq!((retain(1_000), retain(2_000)), ((0, 4), (0, 0)), "three segments and one");
    append(&lanes[1], &chunk_of(9, 0, 1, 30_000), 0).unwrap();
    assert_eq!(retain(3_000), (0, 0));
    (6..13).for_each(|n| _ = append(&lanes[0], &chunk(n, 30_000), 4_000).unwrap());
    let (dropped, looked) = retain(5_000);
    assert!(dropped > 0 && looked >= 8, "{dropped} {looked}");
    let bytes = || lanes.iter().map(|lane| lane.stats().bytes).sum::<u64>();
    assert!(bytes() <= 400_000, "{}", bytes());
    // With another limit, and after a minute, it is summed up in any case.
    node.log.alter_stream(STREAM, retention(None, Some(100_000), false)).unwrap();
    assert!(retain(6_000).0 > 0 && bytes() <= 100_000, "{}", bytes());
    assert_eq!(retain(7_000), (0, 0));
    let (dropped, looked) = retain(66_000);
    assert!(dropped == 0 && looked > 0);
}

#[test]
fn what_never_was_on_disk_goes_without_it_unless_power_must_not_take_it() {
    let (node, store) = node_with(retention(Some(1000), None, false), 8 << 20).with_store();
    let lane = node.lane();
    (0..7).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    assert_eq!(node.log.retain(5_500), 2);
    assert_eq!((lane.earliest().1, lane.latest().1), (4, 7));
    assert!(store.released.lock().is_empty(), "there is nothing to give back");
    let (node, sink) = power_node();
    let (node, _store) = node.with_store();
    node.log
        .alter_stream(STREAM, StreamOptions { durability: Durability::Power, ..retention(Some(1000), None, false) })
        .unwrap();
    let lane = node.lane();
    (0..7).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    sink.sync();
    assert_eq!(node.log.retain(5_500), 0, "its numbers are promised");
}

#[test]
fn with_copies_the_last_segment_with_records_stays_and_says_where_the_lane_goes_on() {
    let sink = Arc::new(Sink::default());
    let node = node_through(&sink, StreamOptions { replication: 2, ..retention(Some(1000), None, false) });
    let (node, store) = node.with_store();
    let lane = node.lane();
    (0..7).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    sink.sync();
    store.persist_all(&node.log);
    (0..3).for_each(|_| {
        node.log.retain(60_000);
        store.persist_all(&node.log);
    });
    let last = lane.earliest();
    assert_eq!((last.1, lane.latest().1), (6, 7), "a lane with nothing but a number has no copy of it");
    append(&lane, &chunk(7, 100), 61_000).unwrap();
    node.log.retain(61_500);
    assert_eq!(lane.earliest().1, 6, "nothing behind it is durable");
    sink.sync();
    store.persist_all(&node.log);
    node.log.close_idle(90_000, 1);
    store.persist_all(&node.log);
    node.log.retain(61_500);
    assert_eq!(lane.earliest().1, 7);
}

#[test]
fn what_another_node_goes_on_with_keeps_no_last_segment() {
    let sink = Arc::new(Sink::default());
    let node = node_through(&sink, StreamOptions { replication: 2, ..retention(Some(1000), None, false) });
    let (node, store) = node.with_store();
    let lane = node.lane();
    (0..7).for_each(|n| _ = append(&lane, &chunk(n, 30_000), n as i64 * 1000).unwrap());
    sink.sync();
    let streamlet = node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().clone();
    streamlet.leave();
    store.persist_all(&node.log);
    node.log.retain(60_000);
    assert_eq!(lane.earliest().1, 6, "it may come back to this node, which has to know where the lane goes on");
    streamlet.set_may_return(true);
    streamlet.set_others(true);
    node.log.retain(60_000);
    assert_eq!(
        lane.earliest().1,
        6,
        "its owner may give it back as it was, and a start finds nothing else that tells it"
    );
    streamlet.set_may_return(false);
    node.log.retain(60_000);
    assert_eq!((lane.stats().segments, lane.stats().next_ordinal), (0, 7));
}

/// The present owner knows where the lane goes on, with one copy as well. An empty segment here would be in a group of this node's epoch, after a restart
/// one in front of those that are there.
#[test]
fn with_one_copy_nothing_is_opened_behind_what_another_node_goes_on_with() {
    let (node, store) = node_with(retention(Some(1000), None, false), 8 << 20).with_store();
    let lane = node.lane();
    fill(&lane, 0..3, 100);
    let streamlet = node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().clone();
    node.log.close_idle(5_000, 100);
    streamlet.leave();
    store.persist_all(&node.log);
    let groups = lane.groups(GroupId::NONE, 9);
    (0..3).for_each(|_| {
        node.log.retain(60_000);
        store.persist_all(&node.log);
    });
    assert_eq!(lane.groups(GroupId::NONE, 9), groups, "it may come back to this node");
    streamlet.set_others(true);
    node.log.retain(60_000);
    assert_eq!((lane.stats().segments, lane.stats().next_ordinal), (0, 3));
}

#[test]
fn a_lane_that_loses_everything_keeps_counting() {
    let (node, store) = node_with(retention(Some(1000), None, false), 8 << 20).with_store();
    let lane = node.lane();
    fill(&lane, 0..3, 100);
    let read = lane.read(start(), 1 << 20, true).unwrap();
    node.log.close_idle(5_000, 100);
    assert_eq!(store.persist_all(&node.log).len(), 1);
    assert_eq!(node.log.retain(10_000), 0);
    assert_eq!(store.persist_all(&node.log).len(), 1, "an empty one behind it");
    assert_eq!(node.log.retain(10_000), 1);
    assert_eq!((lane.earliest().1, lane.latest().1, lane.stats().segments), (3, 3, 1));
    assert_eq!(node.log.retain(20_000), 0, "what keeps the number stays");
    let more = lane.read(read.next, 100, true).unwrap();
    assert!(more.data.is_empty() && more.at_durable_end, "a reader at the end has missed nothing");
    assert_eq!(append(&lane, &chunk(3, 10), 30_000).unwrap().base_ordinal, 3);
    assert_eq!(ordinals(&lane.read(read.next, 100, true).unwrap()), [3]);
}

#[test]
fn an_open_segment_older_than_the_limit_is_closed_so_that_it_can_go() {
    let node = node_with(retention(Some(1000), None, false), 8 << 20);
    let lane = node.lane();
    (0..30).for_each(|n| _ = append(&lane, &chunk(n, 10), n as i64 * 100).unwrap());
    node.log.retain(2_900);
    assert!(lane.segments(GroupId::new(0, 1), None, 9).unwrap().iter().all(|s| !s.open));
    append(&lane, &chunk(30, 10), 4_000).unwrap();
    assert_eq!(node.log.retain(4_000), 1);
    assert_eq!(lane.earliest().1, 30);
}

#[test]
fn a_streamlet_keeps_to_its_bytes_the_oldest_of_all_lanes_first() {
    let node = node_with(retention(None, Some(130_000), false), 8 << 20);
    let (first, second) = (node.lane(), node.lane_number(1));
    for n in 0..5 {
        append(&first, &chunk(n, 30_000), n as i64 * 10).unwrap();
        append(&second, &chunk_of(8, 0, n, 30_000), n as i64 * 10 + 5).unwrap();
    }
    assert_eq!(node.log.retain(100), 3);
    assert_eq!((first.earliest().1, second.earliest().1), (4, 2));
    assert!(first.stats().bytes + second.stats().bytes <= 130_000);
}

#[test]
fn groups_that_everybody_has_read_go_whole() {
    let node = node_with(retention(None, None, true), 8 << 20);
    let lane = node.lane();
    let places = fill(&lane, 0..10, 30_000);
    assert_eq!(node.log.retain(0), 0, "no application is known");
    lane.set_consumed_floor(Some(places[7].cursor));
    assert_eq!(node.log.retain(0), 2, "the first group; the second is not read to its end");
    let end = lane.read(places[7].cursor, 1 << 20, false).unwrap().next;
    lane.set_consumed_floor(Some(end));
    assert_eq!(node.log.retain(0), 2);
    assert_eq!(lane.earliest().1, 8);
    lane.set_consumed_floor(None);
    assert_eq!(node.log.retain(0), 0);
}

#[test]
fn segments_whose_records_were_all_deleted_go_and_others_stay() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..7, 30_000);
    store.persist_all(&node.log);
    assert_eq!(node.log.retain(0), 0);
    let segments = lane.stats().segments;
    lane.raise_floor(3);
    let dropped = node.log.retain(0);
    assert!(dropped > 0 && lane.earliest().1 <= 3 && lane.stats().segments == segments - dropped);
    lane.raise_floor(1);
    assert_eq!((lane.floor_ordinal(), node.log.retain(0)), (3, 0), "it never falls");
    lane.raise_floor(7);
    node.log.close_idle(1_000, 100);
    store.persist_all(&node.log);
    node.log.retain(1_000);
    store.persist_all(&node.log);
    node.log.retain(1_000);
    assert_eq!((lane.earliest().1, lane.latest().1), (7, 7), "an empty segment keeps the count");
}

#[test]
fn an_agreed_floor_goes_no_further_than_what_there_is_of_the_lane() {
    let (node, _store) = node().with_store();
    let stream = node.log.stream(STREAM).expect("it is there");
    let place = stream.streamlet(StreamletId(0)).expect("it has one");
    place.leave();
    let lane = node.lane();
    // While it is elsewhere, its owner alone knows.
    lane.agree_floor(40);
    lane.agree_floor(5);
    assert_eq!(lane.floor_ordinal(), 5);
    lane.agree_floor(40);
    place.open(9, true).expect("it is nobody's");
    assert_eq!(lane.floor_ordinal(), 0, "what is appended is seen");
    fill(&lane, 0..7, 100);
    lane.agree_floor(4);
    lane.agree_floor(2);
    assert_eq!(lane.floor_ordinal(), 4, "what its owner deletes stays deleted");
    lane.agree_floor(40);
    assert_eq!(lane.floor_ordinal(), 7);
}

#[test]
fn what_is_not_durable_does_not_go() {
    let (node, sink) = power_node();
    let lane = node.lane();
    fill(&lane, 0..5, 30_000);
    node.log
        .alter_stream(STREAM, StreamOptions { durability: Durability::Power, ..retention(Some(1), None, false) })
        .unwrap();
    assert_eq!(node.log.retain(1_000_000), 0);
    sink.sync();
    assert!(node.log.retain(1_000_000) > 0);
}

#[test]
fn idle_lanes_take_no_open_segment_and_stay_in_their_group() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..1, 100);
    assert_eq!(node.log.close_idle(50, 100), 0);
    assert_eq!(node.log.close_idle(150, 100), 1);
    assert_eq!((store.closed.lock().len(), node.log.stats().segments_open), (1, 0));
    let next = append(&lane, &chunk(1, 100), 200).unwrap().cursor;
    assert_eq!((next.group, next.segment.0), (GroupId::new(0, 1), 1));
    node.log.close_segments(&[lane.segment_id(next.group, 1), lane.segment_id(next.group, 7)]);
    assert_eq!(store.closed.lock().len(), 2);
}

#[test]
fn lanes_without_an_open_segment_are_not_looked_at_for_idle_and_cold_ones() {
    let (node, store) = node_with(StreamOptions { lanes: 40, ..options() }, 8 << 20).with_store();
    (0..40).for_each(|lane| _ = append(&node.lane_number(lane), &chunk_of(9, 0, 0, 10), i64::from(lane)).unwrap());
    let looked = |act: &dyn Fn() -> u64| {
        let before = LOOKED_AT.get();
        (act(), LOOKED_AT.get() - before)
    };
    assert_eq!(looked(&|| node.log.close_idle(29, 0)), (30, 40));
    // Those that were closed are known to be when they are looked at once more.
    assert_eq!(looked(&|| node.log.close_idle(29, 0)), (0, 40));
    assert_eq!(looked(&|| node.log.close_idle(29, 0)), (0, 10));
    // One of them is written to again, and is found again; so is that of progress.
    append(&node.lane_number(3), &chunk_of(9, 0, 1, 10), 50).unwrap();
    let progress = node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().progress_lane().clone();
    append(&progress, &chunk_of(9, 0, 0, 10), 50).unwrap();
    node.log.shared.lacked_bytes.store(1, std::sync::atomic::Ordering::Relaxed);
    let (closed, looked_at) = looked(&|| node.log.close_coldest());
    assert_eq!((closed > 0, looked_at), (false, 12), "there is much to write out");
    assert_eq!(looked(&|| node.log.close_idle(100, 0)), (12, 12));
    assert_eq!((store.closed.lock().len(), node.log.stats().segments_open), (42, 0));
    node.log.close_idle(100, 0);
    assert_eq!(looked(&|| node.log.close_idle(100, 0)), (0, 0));
    // What is deleted is forgotten.
    append(&node.lane_number(3), &chunk_of(9, 0, 2, 10), 200).unwrap();
    node.log.delete_stream(STREAM).unwrap();
    assert_eq!(looked(&|| node.log.close_idle(300, 0)), (0, 0));
    assert!(node.log.shared.open_lanes.lock().is_empty());
}

#[test]
fn what_was_appended_to_since_it_was_looked_at_is_not_closed_as_cold() {
    let (node, _) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..1, 100);
    let (since_ms, _) = lane.open_since().unwrap();
    append(&lane, &chunk(1, 100), since_ms + 10_000_000).unwrap();
    assert!(!lane.close_if_unused(since_ms));
    let (since_ms, _) = lane.open_since().unwrap();
    assert!(lane.close_if_unused(since_ms));
    assert_eq!(node.log.stats().segments_open, 0);
}

#[test]
fn a_full_arena_closes_what_is_coldest() {
    let options = StreamOptions { lanes: 64, ..options() };
    let (node, store) = node_with(options, 1 << 20).with_store();
    let mut lanes = 0;
    while append(&node.lane_number(lanes), &chunk_of(9, 0, 0, 10), i64::from(lanes)).is_ok() {
        lanes += 1;
    }
    assert_eq!(lanes, 14);
    assert_eq!(node.log.close_coldest(), 1);
    let closed = store.closed.lock()[0].id();
    assert_eq!(closed.lane, LaneId(0), "nobody wrote there for the longest time");
    assert_eq!(node.log.close_coldest(), 0, "nobody lacked room since");
    store.persist_all(&node.log);
    assert!(node.log.evict(closed));
    append(&node.lane_number(lanes), &chunk_of(9, 0, 0, 10), 99).unwrap();
}

/// Chunks of which a segment has room for one: of many lanes, more than the arena has room for segments.
#[test]
fn a_segment_without_room_for_another_chunk_is_closed_when_memory_is_short() {
    let options = StreamOptions { lanes: 64, ..options() };
    let (node, store) = node_with(options, 1 << 20).with_store();
    for lane in 0..14 {
        append(&node.lane_number(lane), &chunk_of(9, 0, 0, 60_000), 1).unwrap();
    }
    let open = node.log.stats().segments_open;
    assert_eq!(
        (open, store.closed.lock().len()),
        (9, 5),
        "while half of the arena was free nothing was hurried, and one waits"
    );
    let small = append(&node.lane_number(13), &chunk_of(9, 0, 1, 1_000), 1).unwrap();
    assert_eq!(small.cursor.segment.0, 0, "what comes behind a batch at once takes no segment of its own");
    let write_out = || {
        let written = store.persist_all(&node.log);
        written.iter().for_each(|(stored, _)| assert!(node.log.evict(stored.header.id)));
    };
    write_out();
    for lane in 14..19 {
        append(&node.lane_number(lane), &chunk_of(9, 0, 0, 60_000), 1).unwrap();
    }
    assert_eq!(ordinals(&node.lane_number(18).read(start(), 1 << 20, true).unwrap()), [0]);
    write_out();
    let lane = node.lane_number(13);
    assert_eq!(append(&lane, &chunk_of(9, 0, 2, 10), 2).map(|next| next.base_ordinal), Ok(2), "the lane goes on");
}
