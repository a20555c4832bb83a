//! Reading, waiting and looking up.

use kera_format::{GroupId, SegmentIndex};

use super::*;
use crate::lookup::LOOKED_AT;
use crate::waiters::tests::Counter;

#[test]
fn reads_are_cut_at_chunks_and_only_when_they_must_be() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..10, 904);
    let all = lane.read(start(), 10_000, true).unwrap();
    assert_eq!((all.data_bytes, all.data.len(), all.at_durable_end), (10_000, 1, true));
    let some = lane.read(start(), 3_500, true).unwrap();
    assert_eq!((some.data_bytes, some.at_durable_end), (3_000, false));
    assert_eq!(ordinals(&lane.read(some.next, 1, true).unwrap()), [3], "at least one");
    assert_eq!(ordinals(&lane.read(some.next, 0, true).unwrap()), [3]);
    assert_eq!(all.next, lane.latest().0);
}

#[test]
fn a_read_follows_segments_and_groups() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..10, 30_000);
    let all = lane.read(start(), 1 << 20, true).unwrap();
    assert_eq!(ordinals(&all), (0..10).collect::<Vec<_>>());
    assert_eq!(all.data.len(), 5, "a buffer per segment, no copy");
    let group = lane.read(start(), 1 << 20, false).unwrap();
    assert_eq!((ordinals(&group), group.end_of_group, group.at_durable_end), (vec![0, 1, 2, 3], true, false));
    let again = lane.read(group.next, 1 << 20, false).unwrap();
    assert!(again.data.is_empty() && again.end_of_group);
    assert_eq!(ordinals(&lane.read(group.next, 1, true).unwrap()), [4], "on to the next group");
}

#[test]
fn the_group_of_an_ordinal_is_found_without_a_look_at_all_segments() {
    let node = node_with(options(), 16 << 20);
    let lane = node.lane();
    assert_eq!(lane.group_at(0), None);
    fill(&lane, 0..200, 30_000);
    let groups = lane.groups(GroupId::NONE, usize::MAX);
    assert_eq!((groups.len(), groups[0].first_ordinal, groups[49].next_ordinal), (50, 0, 200));
    LOOKED_AT.set(0);
    for ordinal in 0..202 {
        let of = groups.iter().find(|group| group.next_ordinal > ordinal);
        assert_eq!(lane.group_at(ordinal), of.map(|group| group.id), "{ordinal}");
    }
    // Of 100 segments in 50 groups.
    assert!((1..202 * 16).contains(&LOOKED_AT.get()), "{}", LOOKED_AT.get());
}

#[test]
fn the_start_of_an_empty_lane_is_waited_for() {
    let node = node();
    let lane = node.lane();
    let nothing = lane.read(start(), 100, true).unwrap();
    assert!(nothing.data.is_empty() && nothing.at_durable_end);
    let (counter, observer) = Counter::pair();
    assert!(lane.wait(nothing.version, &observer, 1));
    fill(&lane, 0..1, 10);
    assert_eq!(counter.calls(), 1);
    assert!(!lane.wait(nothing.version, &observer, 1), "it has happened already");
    assert_eq!(ordinals(&lane.read(nothing.next, 100, true).unwrap()), [0]);
}

#[test]
fn a_bad_position_is_refused_and_says_so() {
    let node = node();
    let lane = node.lane();
    let places = fill(&lane, 0..3, 100);
    let inside = Cursor { position: places[1].cursor.position + 8, ..places[1].cursor };
    assert_eq!(lane.read(inside, 1, true).unwrap_err(), ReadError::NotAChunkBoundary(inside));
    let behind = Cursor { position: 60_000, ..inside };
    assert_eq!(lane.read(behind, 1, true).unwrap_err(), ReadError::Unknown(behind));
    let never = Cursor { group: GroupId::new(0, 9), ..inside };
    assert!(lane.read(never, 1, true).unwrap_err().to_string().contains("past the end of the lane"));
}

#[test]
fn a_payload_that_looks_like_a_chunk_is_not_one() {
    let node = node();
    let lane = node.lane();
    // A real, stamped chunk as the payload of another.
    fill(&lane, 0..1, 100);
    let stamped = lane.read(start(), 1000, true).unwrap().data[0].to_vec();
    let mut outer = vec![0; CHUNK_HEADER_BYTES];
    outer.extend_from_slice(&stamped);
    let target = ChunkTarget { stream: STREAM, streamlet: StreamletId(0), ..ChunkTarget::default() };
    seal_in_place(&mut outer, &target, PayloadKind::Records, Compression::None, 1, NO_TIMESTAMP).unwrap();
    let place = append(&lane, &outer, 0).unwrap().cursor;
    let fake = Cursor { position: place.position + CHUNK_HEADER_BYTES as u32, ..place };
    assert_eq!(lane.read(fake, 1, true).unwrap_err(), ReadError::NotAChunkBoundary(fake));
}

#[test]
fn an_evicted_segment_is_loaded_and_its_reader_woken() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..5, 30_000);
    let stored = store.persist_all(&node.log);
    assert_eq!(stored.len(), 2);
    let id = stored[0].0.header.id;
    assert!(node.log.evict(id));
    assert!(!node.log.evict(id), "it is not in memory");
    let read = lane.read(start(), 1 << 20, true).unwrap();
    assert!(read.loading && read.data.is_empty());
    assert!(lane.read(start(), 1, true).unwrap().loading);
    assert_eq!(*store.loads.lock(), [id], "asked for once");
    let (counter, observer) = Counter::pair();
    assert!(lane.wait(read.version, &observer, 1));
    let mut buffer = node.log.allocate_for_load(stored[0].1.len() as u64).unwrap();
    buffer[..stored[0].1.len()].copy_from_slice(&stored[0].1);
    node.log.loaded(id, buffer).unwrap();
    assert_eq!(counter.calls(), 1);
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2, 3, 4]);
    assert_eq!(*store.reading.lock(), [stored[1].0.header.id], "where the reader is");
}

#[test]
fn a_load_that_fails_is_told_once_and_tried_again() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..5, 30_000);
    let stored = store.persist_all(&node.log);
    let id = stored[0].0.header.id;
    node.log.evict(id);
    assert!(lane.read(start(), 1, true).unwrap().loading);
    let mut buffer = node.log.allocate_for_load(stored[0].1.len() as u64).unwrap();
    buffer[..stored[0].1.len()].copy_from_slice(&stored[0].1);
    buffer[9_000] ^= 1;
    assert!(node.log.loaded(id, buffer).unwrap_err().contains("checksum"));
    assert!(lane.read(start(), 1, true).unwrap_err().to_string().contains("checksum"));
    assert!(lane.read(start(), 1, true).unwrap().loading);
    assert_eq!(store.loads.lock().len(), 2);
}

#[test]
fn a_replay_may_go_on_behind_what_cannot_be_read() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..9, 30_000);
    let stored = store.persist_all(&node.log);
    assert_eq!(stored.len(), 4, "of two chunks each");
    [0, 2, 3].iter().for_each(|at: &usize| assert!(node.log.evict(stored[*at].0.header.id)));
    let failing = |replay: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let replaying = scope.spawn(replay);
            while !replaying.is_finished() {
                let asked = std::mem::take(&mut *store.loads.lock());
                asked.into_iter().for_each(|id| node.log.load_failed(id, "it is gone".to_owned()));
                std::thread::yield_now();
            }
        });
    };
    let seen = parking_lot::Mutex::new(Vec::new());
    failing(&|| {
        let each = |data: Result<&[u8], ReadError>| match data {
            Ok(data) => seen.lock().extend(
                kera_format::chunk::Chunks::new(data).map(|chunk| Some(chunk.unwrap().broker().unwrap().base_ordinal)),
            ),
            Err(error) => {
                assert_eq!(error, ReadError::LoadFailed("it is gone".to_owned()));
                seen.lock().push(None);
            }
        };
        lane.replay_past_damage(each).unwrap();
    });
    assert_eq!(*seen.lock(), [None, Some(2), Some(3), None, None, Some(8)]);
    failing(&|| assert!(matches!(lane.replay(|_| {}), Err(ReadError::LoadFailed(_)))));
}

#[test]
fn read_ahead_names_what_follows_and_is_not_in_memory() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..12, 30_000);
    let ids: Vec<SegmentId> = store.persist_all(&node.log).iter().map(|s| s.0.header.id).collect();
    ids[..4].iter().for_each(|&id| assert!(node.log.evict(id)));
    assert!(lane.read(start(), 1, true).unwrap().loading);
    let ahead: Vec<SegmentId> = node.log.read_ahead(ids[0], 2).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ahead, ids[1..3]);
    let ahead: Vec<SegmentId> = node.log.read_ahead(ids[2], 9).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ahead, ids[3..4], "up to the one that is in memory");
    assert!(node.log.read_ahead(ids[0], 9).is_empty(), "they are on their way");
}

#[test]
fn ordinals_and_times_are_found_across_groups() {
    let node = node();
    let lane = node.lane();
    let places = fill(&lane, 0..40, 9_000);
    let found = |lookup| match lookup {
        Ok(Lookup::Found { cursor, ordinal }) => (cursor, ordinal),
        other => panic!("{other:?}"),
    };
    for place in &places {
        assert_eq!(found(lane.lookup_ordinal(place.base_ordinal)), (place.cursor, place.base_ordinal));
        assert_eq!(found(lane.lookup_time(place.base_ordinal as i64)), (place.cursor, place.base_ordinal));
    }
    assert_eq!(found(lane.lookup_ordinal(1000)), lane.latest());
    assert_eq!(found(lane.lookup_time(1000)), lane.latest());
    assert_eq!(found(lane.lookup_time(-5)), lane.earliest());
    assert_eq!(lane.latest().1, 40);
    let empty = node.lane_number(1);
    assert_eq!(found(empty.lookup_ordinal(3)), (start(), 0));
    assert_eq!(found(empty.lookup_time(3)), (start(), 0));
}

#[test]
fn segments_are_listed() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..3, 30_000);
    store.persist_all(&node.log);
    let group = lane.latest().0.group;
    let segments = lane.segments(group, None, 10).unwrap();
    assert_eq!(
        segments.iter().map(|s| (s.index.0, s.open, s.on_disk)).collect::<Vec<_>>(),
        [(0, false, true), (1, true, false)]
    );
    assert_eq!(lane.segments(group, Some(SegmentIndex(0)), 10).unwrap()[0], segments[1]);
    assert_eq!(lane.segments(GroupId::new(7, 7), None, 10), None);
    assert_eq!(lane.stats().disk_bytes, u64::from(segments[0].durable_head));
}

/// What a move would take along: whoever reads what is old reads it where it is.
#[test]
fn readers_of_what_is_new_are_counted_each() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    fill(&lane, 0..4, 30_000);
    let read = |max| lane.read(start(), max, true).unwrap().data_bytes as u64;
    let followed = || node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().followed_bytes();
    assert_eq!((read(1 << 20), followed()), (4 * 30_096, 4 * 30_096));
    // A read that ends inside of a segment, and one that finds nothing.
    assert_eq!((read(50_000), followed()), (30_096, 5 * 30_096));
    assert_eq!((lane.read(lane.latest().0, 1 << 20, true).unwrap().data_bytes, followed()), (0, 5 * 30_096));
    // It goes to disk and comes back.
    let stored = store.persist_all(&node.log);
    let id = stored[0].0.header.id;
    assert!(node.log.evict(id));
    assert!(lane.read(start(), 1, true).unwrap().loading);
    let mut buffer = node.log.allocate_for_load(stored[0].1.len() as u64).unwrap();
    buffer[..stored[0].1.len()].copy_from_slice(&stored[0].1);
    node.log.loaded(id, buffer).unwrap();
    assert_eq!((read(1), followed()), (30_096, 5 * 30_096), "half of a segment that is old");
    assert_eq!((read(1 << 20), followed()), (4 * 30_096, 7 * 30_096), "all of it, and one that is new");
}

/// A chunk of one record with a time of its own.
fn timed(sequence: u64, timestamp_ms: i64) -> Vec<u8> {
    let mut buffer = vec![0; CHUNK_HEADER_BYTES + 30_000];
    let (producer_id, producer_epoch) = (ProducerId(7), ProducerEpoch(0));
    let target = ChunkTarget { stream: STREAM, streamlet: StreamletId(0), producer_id, producer_epoch, sequence };
    seal_in_place(&mut buffer, &target, PayloadKind::KafkaBatch, Compression::None, 1, timestamp_ms).unwrap();
    buffer
}

/// The ordinal of the first chunk, from one on, that says to have a record with a time or later.
fn find(lane: &Arc<Lane>, mut from: u64, time_ms: i64) -> Result<Option<u64>, LaneVersion> {
    loop {
        match lane.lookup_timestamp(from, time_ms).unwrap() {
            FoundTime::Chunk { cursor, ordinal, next_ordinal } => {
                assert_eq!(ordinals(&lane.read(cursor, 1, true).unwrap()), [ordinal]);
                assert_eq!(next_ordinal, ordinal + 1);
                return Ok(Some(ordinal));
            }
            FoundTime::Passed(next) if next > from => from = next,
            FoundTime::Passed(next) => panic!("{next} is not behind {from}"),
            FoundTime::Nothing => return Ok(None),
            FoundTime::Loading(version) => return Err(version),
        }
    }
}

#[test]
fn records_are_found_by_their_own_times_and_only_segments_that_have_them_come_from_disk() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    assert_eq!((find(&lane, 0, 0), lane.largest_timestamp(i64::MAX)), (Ok(None), Ok(None)));
    // Two in each segment.
    for (sequence, time) in [8, 5, 30, 20, 7, 7, 40].into_iter().enumerate() {
        append(&lane, &timed(sequence as u64, time), 1_000).unwrap();
    }
    for (from, time, found) in [(0, 6, 0), (1, 6, 2), (0, 9, 2), (3, 9, 3), (3, 21, 6), (4, 9, 6), (0, 40, 6)] {
        assert_eq!(find(&lane, from, time), Ok(Some(found)), "{time} from {from} on");
    }
    assert_eq!((find(&lane, 0, 41), find(&lane, 7, 1), find(&lane, 9, 1)), (Ok(None), Ok(None), Ok(None)));
    let largest = |below| lane.largest_timestamp(below).unwrap();
    assert_eq!([i64::MAX, 40, 30, 8, 7].map(largest), [Some(40), Some(30), Some(8), Some(7), None]);

    let ids: Vec<SegmentId> = store.persist_all(&node.log).iter().map(|stored| stored.0.header.id).collect();
    ids.iter().for_each(|&id| assert!(node.log.evict(id)));
    assert_eq!((find(&lane, 4, 9), find(&lane, 0, 31), find(&lane, 0, 41)), (Ok(Some(6)), Ok(Some(6)), Ok(None)));
    assert!(store.loads.lock().is_empty());
    assert!(find(&lane, 0, 9).is_err());
    assert_eq!(*store.loads.lock(), [ids[1]]);
    assert_eq!(largest(40), Some(30));
}

#[test]
fn records_without_a_time_have_that_of_their_append() {
    let node = node();
    let lane = node.lane();
    append(&lane, &timed(0, 5), 100).unwrap();
    append(&lane, &chunk(1, 16), 200).unwrap();
    append(&lane, &timed(2, 6), 300).unwrap();
    assert_eq!([5, 6, 200, 201].map(|time| find(&lane, 0, time)), [Ok(Some(0)), Ok(Some(1)), Ok(Some(1)), Ok(None)]);
    let plain = node.lane_number(1);
    fill(&plain, 0..3, 30_000);
    assert_eq!((find(&plain, 0, 2), plain.largest_timestamp(i64::MAX)), (Ok(Some(2)), Ok(Some(2))));
}

#[test]
fn a_time_that_is_not_durable_yet_is_not_found() {
    let (node, sink) = power_node();
    let lane = node.lane();
    append(&lane, &timed(0, 5), 1).unwrap();
    append(&lane, &timed(1, 9), 1).unwrap();
    assert_eq!((find(&lane, 0, 5), lane.largest_timestamp(i64::MAX)), (Ok(None), Ok(Some(9))));
    sink.sync();
    assert_eq!((find(&lane, 0, 5), find(&lane, 0, 6)), (Ok(Some(0)), Ok(Some(1))));
    append(&lane, &timed(2, 7), 1).unwrap();
    assert_eq!((find(&lane, 2, 7), lane.floor_ordinal()), (Ok(None), 0));
    sink.sync();
    lane.raise_floor(2);
    assert_eq!(find(&lane, 0, 5), Ok(Some(2)), "what is deleted does not count");
}
