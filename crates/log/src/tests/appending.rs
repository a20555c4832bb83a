//! Appending: what is refused, what rolls, what is durable when.

use kera_format::arena::BlockSize;
use kera_format::checksum::crc32c;
use kera_format::chunk::KafkaChunk;
use kera_format::{FormatError, GroupId, SegmentIndex};

use super::*;
use crate::producers::{ProducerMark, marks_of};
use crate::segment::FIRST_CHUNK;
use crate::waiters::tests::Counter;

#[test]
fn the_first_chunk_opens_the_first_group() {
    let node = node();
    let appended = append(&node.lane(), &chunk(0, 100), 5).unwrap();
    let cursor = Cursor { group: GroupId::new(0, 1), segment: SegmentIndex(0), position: 128 };
    assert_eq!(appended, Appended { cursor, base_ordinal: 0, duplicate: false, ticket: None, log: 0 });
    assert_eq!(node.lane().durable_ordinal(), 1);
}

/// Small ones and those that are copied past the caches.
#[test]
fn a_batch_beside_its_header_is_stored_in_one_piece() {
    let node = node();
    let lane = node.lane();
    let batches: Vec<Vec<u8>> = [61_u32, 1000, 8191, 8193, 30_011]
        .iter()
        .map(|bytes| (0..*bytes).map(|n| ((n * 7) >> 2) as u8).collect())
        .collect();
    let chunk = |batch: &[u8], crc| {
        let target = ChunkTarget { stream: STREAM, ..ChunkTarget::default() };
        lane.append(&KafkaChunk::new(batch, &target, 1, 3, 21, crc).unwrap(), 5)
    };
    for batch in &batches {
        let crc = crc32c(&batch[21..]);
        let refused = chunk(batch, crc ^ 1);
        assert!(matches!(refused, Err(AppendError::Format(FormatError::Checksum { .. }))), "{refused:?}");
        chunk(batch, crc).unwrap();
    }
    let read = lane.read(start(), 1 << 20, true).unwrap();
    let stored = read.data.iter().flat_map(|bytes| kera_format::chunk::Chunks::new(bytes)).map(Result::unwrap);
    let stored: Vec<_> = stored.collect();
    assert_eq!(stored.len(), batches.len());
    for (chunk, batch) in stored.iter().zip(&batches) {
        assert_eq!(
            (chunk.payload(), chunk.verify(), chunk.header().kind),
            (&batch[..], Ok(()), PayloadKind::KafkaBatch)
        );
        assert!(chunk.broker().is_ok());
    }
}

#[test]
fn groups_end_after_their_number_of_segments_and_lanes_share_the_numbers() {
    let node = node();
    let places = fill(&node.lane(), 0..10, 30_000);
    append(&node.lane_number(1), &chunk_of(8, 0, 0, 10), 0).unwrap();
    let names: Vec<(u32, u32)> = places.iter().map(|a| (a.cursor.group.number(), a.cursor.segment.0)).collect();
    assert_eq!(names, [(1, 0), (1, 0), (1, 1), (1, 1), (2, 0), (2, 0), (2, 1), (2, 1), (3, 0), (3, 0)]);
    assert_eq!(node.lane_number(1).latest().0.group, GroupId::new(0, 4));
    let groups = node.lane().groups(GroupId::NONE, 10);
    assert_eq!(groups.iter().map(|g| g.closed).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((groups[1].first_ordinal, groups[1].next_ordinal), (4, 8));
    assert_eq!(node.lane().groups(GroupId::new(0, 1), 1)[0].id, GroupId::new(0, 2));
}

#[test]
fn a_chunk_larger_than_a_segment_may_be_is_refused() {
    let node = node();
    let error = append(&node.lane(), &chunk(0, 70_000), 0).unwrap_err();
    assert_eq!(error, AppendError::ChunkTooLarge { bytes: 70_096, limit: 65_408 });
    assert!(error.to_string().contains("segment_bytes_max"));
    append(&node.lane(), &chunk(0, 65_408 - 96), 0).unwrap();
}

#[test]
fn a_chunk_of_a_megabyte_opens_a_segment_that_holds_it() {
    let node = node_with(StreamOptions { segment_bytes_max: 2 << 20, ..options() }, 16 << 20);
    let appended = append(&node.lane(), &chunk(0, 1 << 20), 0).unwrap();
    let id = node.lane().segment_id(appended.cursor.group, 0);
    assert_eq!(node.log.segment(id).unwrap().capacity_bytes(), 2 << 20);
    let read = node.lane().read(start(), 10, true).unwrap();
    assert_eq!(read.data_bytes, (1 << 20) + 96, "at least one chunk, however large");
}

/// A batch of a power of two and its headers: of plain blocks it would take 128 KiB.
#[test]
fn a_chunk_of_64_kib_takes_little_more_of_roomy_blocks_and_is_read_after_a_kill() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let open = || {
        let (arena, attach) = Arena::create_or_attach_with(arena_config(&dir, 8 << 20), BlockSize::Roomy).unwrap();
        (Log::new(LogConfig::default(), arena), attach)
    };
    let (log, _) = open();
    let stream_options = StreamOptions { segment_bytes_max: 1 << 20, ..options() };
    log.create_stream(STREAM, stream_options.clone()).unwrap();
    let node = Node { log, dir: Arc::clone(&dir) };
    let used_bytes = node.log.arena().stats().used_bytes;
    append(&node.lane(), &chunk(0, 64 << 10), 0).unwrap();
    assert_eq!(node.log.arena().stats().used_bytes - used_bytes, 72 << 10);
    append(&node.lane(), &chunk(1, 64 << 10), 0).unwrap();
    append(&node.lane(), &chunk(2, 600 << 10), 0).unwrap();
    assert_eq!(ordinals(&node.lane().read(start(), 8 << 20, true).unwrap()), [0, 1, 2]);
    drop(node);
    let (log, attach) = open();
    let Attach::Attached { segments, set_aside, .. } = attach else { panic!("{attach:?}") };
    assert_eq!((segments.len(), set_aside.len()), (3, 0));
    log.create_stream(STREAM, stream_options).unwrap();
    log.recover(Vec::new(), segments);
    assert_eq!(log.finish_recovery(1), [""; 0]);
    let node = Node { log, dir };
    assert_eq!(ordinals(&node.lane().read(start(), 8 << 20, true).unwrap()), [0, 1, 2]);
    append(&node.lane(), &chunk(3, 100 << 10), 0).unwrap();
    assert_eq!(node.lane().durable_ordinal(), 4);
}

fn roomy_node(options: StreamOptions, bytes: u64) -> Node {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (arena, _) = Arena::create_or_attach_with(arena_config(&dir, bytes), BlockSize::Roomy).unwrap();
    let log = Log::new(config(), arena);
    log.create_stream(STREAM, options).unwrap();
    Node { log, dir }
}

#[test]
fn a_segment_is_as_large_as_its_stream_says_whatever_its_block_has() {
    let segments_of_two = |segment_bytes_max| {
        let node = roomy_node(StreamOptions { segment_bytes_max, ..options() }, 8 << 20);
        append(&node.lane(), &chunk(0, 40 << 10), 0).unwrap();
        let last = append(&node.lane(), &chunk(1, 26 << 10), 0).unwrap().cursor;
        let first = node.log.segment(node.lane().segment_id(last.group, 0)).unwrap();
        (last.segment.0, first.capacity_bytes() >> 10, first.block_bytes() >> 10)
    };
    assert_eq!(segments_of_two(64 << 10), (1, 64, 72), "its second chunk goes to the next one");
    assert_eq!(segments_of_two(128 << 10), (0, 128, 72), "both and their headers fit");
}

#[test]
fn a_lane_has_the_smallest_segments_when_memory_is_short() {
    let node = roomy_node(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 8 << 20);
    let block_kib = |cursor: Cursor| {
        let id = node.lane().segment_id(cursor.group, cursor.segment.0);
        node.log.segment(id).unwrap().block_bytes() >> 10
    };
    let first = append(&node.lane(), &chunk(0, 60 << 10), 0).unwrap().cursor;
    assert_eq!(block_kib(first), 72);
    let taken = node.log.arena().allocate(4 << 20, crate::arena::Purpose::Write).unwrap();
    let second = append(&node.lane(), &chunk(1, 20 << 10), 60_000).unwrap().cursor;
    assert_eq!((second.segment.0, block_kib(second)), (1, 36));
    drop(taken);
    let third = append(&node.lane(), &chunk(2, 20 << 10), 120_000).unwrap().cursor;
    assert_eq!((third.segment.0, block_kib(third)), (0, 72), "of the next group");
}

#[test]
fn a_busy_lanes_segments_are_as_large_as_its_stream_and_the_arena_let_them_be() {
    let last_of = |segment_bytes_max, arena_bytes| {
        let options = StreamOptions { segment_bytes_max, segments_per_group: 100, ..options() };
        let node = roomy_node(options, arena_bytes);
        // All in one millisecond: as fast as the clock can see.
        (0..4000).for_each(|n| _ = append(&node.lane(), &chunk(n, 900), 1).unwrap());
        let lane = node.lane();
        let state = lane.state.lock();
        let open = state.open.as_ref().unwrap();
        (open.capacity >> 10, open.segment.block_bytes() >> 10)
    };
    assert_eq!(last_of(64 << 10, 128 << 20), (64, 72), "as the stream says");
    assert_eq!(last_of(1 << 20, 128 << 20), (1024, 1152), "as the stream says");
    assert_eq!(last_of(4 << 20, 128 << 20), (1152, 1152), "a 64th of the arena and no more, filled to its end");
}

#[test]
fn a_quiet_lane_has_no_more_memory_put_behind_it_than_it_fills() {
    let node = roomy_node(StreamOptions { segment_bytes_max: 1 << 20, ..options() }, 8 << 20);
    let before = node.log.arena().stats().resident_bytes;
    let added = || {
        let stats = node.log.arena().stats();
        (stats.used_bytes >> 10, (stats.resident_bytes - before) >> 10)
    };
    append(&node.lane(), &chunk(0, 900), 0).unwrap();
    assert_eq!(added(), (72, 8));
    append(&node.lane(), &chunk(1, 9 << 10), 0).unwrap();
    assert_eq!(added(), (72, 16));
    append(&node.lane(), &chunk(2, 9 << 10), 0).unwrap();
    assert_eq!(added(), (72, 32));
}

#[test]
fn nothing_is_written_where_there_may_be_no_memory() {
    let node = node_with(StreamOptions { segment_bytes_max: 2 << 20, ..options() }, 64 << 20);
    let lane = node.lane();
    // The segment is larger than what is touched of it when it is opened, and than what is touched of it now.
    append(&lane, &chunk(0, 600_000), 0).unwrap();
    append(&lane, &chunk(1, 100_000), 0).unwrap();
    let state = lane.state.lock();
    let open = state.open.as_ref().unwrap();
    assert!(open.segment.has_memory(open.head));
    assert!(!open.segment.has_memory(open.capacity));
}

#[test]
fn a_closed_segment_knows_its_producers_last_chunks_without_being_read() {
    let (node, store) = node().with_store();
    let lane = node.lane();
    // Producer 7 writes to every segment, 8 to the first only; 9 comes back with another epoch.
    let mut sequences = [0; 3];
    for round in 0..40 {
        for producer in 7..10 {
            let epoch = u16::from(producer == 9 && round >= 8);
            if producer == 8 && round >= 3 {
                continue;
            }
            let sequence = &mut sequences[producer as usize - 7];
            *sequence *= u64::from(round != 8 || producer != 9);
            append(&lane, &chunk_of(producer, epoch, *sequence, 4000), 0).unwrap();
            *sequence += 1;
        }
    }
    let closed = store.closed.lock();
    assert!(closed.len() >= 3);
    for segment in closed.iter() {
        let walked = marks_of(segment.bytes(FIRST_CHUNK, segment.head()));
        let newest = |of: &ProducerMark| {
            walked.iter().filter(|mark| mark.producer_id == of.producer_id).map(|mark| mark.producer_epoch).max()
        };
        let expected: Vec<_> =
            walked.iter().filter(|mark| Some(mark.producer_epoch) == newest(mark)).copied().collect();
        assert_eq!(segment.producer_marks(), expected, "{segment:?}");
        assert!(segment.has_marks());
    }
}

#[test]
fn segments_grow_with_the_rate_and_shrink_again() {
    let node = node_with(StreamOptions { segment_bytes_max: 1 << 20, segments_per_group: 100, ..options() }, 64 << 20);
    let lane = node.lane();
    // All in one millisecond: as fast as the clock can see.
    (0..3000).for_each(|n| _ = append(&lane, &chunk(n, 900), 1).unwrap());
    let capacities = |lane: &Lane| -> Vec<u32> {
        lane.segments(GroupId::new(0, 1), None, 100).unwrap().iter().map(|s| s.capacity_bytes >> 10).collect()
    };
    let fast = capacities(&lane);
    assert_eq!((fast[0], fast[1], fast[2]), (64, 512, 1024), "at most eight times as large each time");
    // A chunk a second.
    (3000..5000).for_each(|n| _ = append(&lane, &chunk(n, 900), n as i64 * 1000).unwrap());
    assert_eq!(capacities(&lane).last(), Some(&64));
}

#[test]
fn changed_bytes_leave_no_trace() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..2, 100);
    let mut bad = chunk(2, 100);
    bad[150] ^= 1;
    assert!(matches!(append(&lane, &bad, 9), Err(AppendError::Format(FormatError::Checksum { .. }))));
    let mut large = chunk(2, 60_000);
    large[60_000] ^= 1;
    assert!(matches!(append(&lane, &large, 9), Err(AppendError::Format(FormatError::Checksum { .. }))));
    let next = append(&lane, &chunk(2, 100), 9).unwrap();
    assert_eq!(next.base_ordinal, 2);
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
}

#[test]
fn a_changed_sequence_does_not_pass_for_a_duplicate() {
    let node = node();
    fill(&node.lane(), 0..3, 100);
    let mut bad = chunk(3, 100);
    bad[80] = 1;
    assert!(matches!(append(&node.lane(), &bad, 9), Err(AppendError::Format(FormatError::Checksum { .. }))));
}

#[test]
fn what_a_client_sends_in_the_padding_is_not_kept() {
    let node = node();
    let mut odd = chunk(0, 101);
    let end = odd.len();
    odd[end - 3..].fill(0xee);
    append(&node.lane(), &odd, 0).unwrap();
    let read = node.lane().read(start(), 1000, true).unwrap();
    assert!(read.data[0].ends_with(&[0, 0, 0]));
}

#[test]
fn chunks_for_others_are_refused() {
    let node = node();
    let mut other = chunk(0, 10);
    other[64] = 9;
    let error = append(&node.lane(), &other, 0).unwrap_err();
    assert!(error.to_string().contains("chunk.stream"), "{error}");
}

#[test]
fn time_never_falls_within_a_lane() {
    let node = node();
    append(&node.lane(), &chunk(0, 10), 100).unwrap();
    append(&node.lane(), &chunk(1, 10), 50).unwrap();
    let read = node.lane().read(start(), 1000, true).unwrap();
    let times: Vec<i64> = kera_format::chunk::Chunks::new(&read.data[0])
        .map(|chunk| chunk.unwrap().broker().unwrap().append_time_ms)
        .collect();
    assert_eq!(times, [100, 100]);
}

#[test]
fn with_durability_power_nothing_is_read_before_it_is_synced() {
    let (node, sink) = power_node();
    let lane = node.lane();
    let appended = fill(&lane, 0..3, 100);
    assert_eq!(appended.iter().map(|a| a.ticket).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    let read = lane.read(start(), 1000, true).unwrap();
    assert!(read.data.is_empty() && read.at_durable_end);
    let (counter, observer) = Counter::pair();
    assert!(lane.wait(read.version, &observer, 1));
    sink.sync();
    assert_eq!(counter.calls(), 1, "three chunks wake a reader once");
    assert_eq!(ordinals(&lane.read(start(), 1000, true).unwrap()), [0, 1, 2]);
    let again = append(&lane, &chunk(2, 100), 0).unwrap();
    assert!(again.duplicate && again.ticket.is_some(), "the ack of a retry waits as that of the first");
}

#[test]
fn a_sink_in_trouble_refuses_appends() {
    let (node, sink) = power_node();
    fill(&node.lane(), 0..1, 100);
    *sink.sick.lock() = true;
    let error = append(&node.lane(), &chunk(1, 100), 0).unwrap_err();
    assert!(matches!(&error, AppendError::SinkUnhealthy(e) if e.kind == SinkErrorKind::Full), "{error}");
    *sink.sick.lock() = false;
    assert_eq!(append(&node.lane(), &chunk(1, 100), 0).unwrap().base_ordinal, 1);
}

#[test]
fn without_a_sink_durability_power_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (arena, _) = Arena::create_or_attach(arena_config(&dir, 1 << 20)).unwrap();
    let log = Log::new(LogConfig::default(), arena);
    let stream = log.create_stream(STREAM, StreamOptions { durability: Durability::Power, ..options() }).unwrap();
    let lane = Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap());
    assert!(append(&lane, &chunk(0, 10), 0).unwrap_err().to_string().contains("no virtual log"));
}

#[test]
fn a_change_of_durability_starts_a_group() {
    let (node, sink) = power_node();
    let lane = node.lane();
    fill(&lane, 0..2, 100);
    node.log.alter_stream(STREAM, options()).unwrap();
    let now = append(&lane, &chunk(2, 100), 0).unwrap();
    assert_eq!((now.ticket, now.cursor.group), (None, GroupId::new(0, 2)));
    assert_eq!(lane.durable_ordinal(), 0, "what is before is not durable yet");
    sink.sync();
    assert_eq!(lane.durable_ordinal(), 3);
    assert_eq!(ordinals(&lane.read(start(), 1000, true).unwrap()), [0, 1, 2]);
}

#[test]
fn a_full_arena_tells_the_store_and_the_writer() {
    let (node, store) = node_with(options(), 1 << 20).with_store();
    let lane = node.lane();
    let mut sequence = 0;
    let full = loop {
        match append(&lane, &chunk(sequence, 30_000), 0) {
            Ok(_) => sequence += 1,
            Err(AppendError::ArenaFull(full)) => break full,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(store.wanted.load(std::sync::atomic::Ordering::Relaxed) > 0);
    let (counter, observer) = Counter::pair();
    assert!(node.log.wait_for_space(full.seen, &observer, 3));
    let stored = store.persist_all(&node.log);
    assert!(node.log.evict(stored[0].0.header.id));
    assert_eq!(counter.calls(), 1);
    append(&lane, &chunk(sequence, 30_000), 0).unwrap();
}

/// What is evicted keeps the memory that it has, so there may be none for the rest of a block for as long as nothing goes back to the machine.
#[test]
fn a_lane_whose_block_gets_no_more_memory_goes_on_in_one_that_has_some() {
    const SMALL: u64 = 64 << 10;
    let node = node_with(options(), 256 * SMALL);
    let touched = node.log.arena().allocate(SMALL as usize, crate::arena::Purpose::Write).unwrap();
    let lane = node.lane();
    let before = append(&lane, &chunk(0, 10_000), 0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(arena_config(&node.dir, 0).path).unwrap();
    // Blocks begin at 2 MiB. Behind the first one, all of which was touched, the lane has 16 KiB, and nobody gets more.
    file.set_len((2 << 20) + SMALL + (16 << 10)).unwrap();
    drop(touched);
    let behind = append(&lane, &chunk(1, 10_000), 0).unwrap();
    let place = |of: &Appended| (of.cursor.group, of.cursor.segment);
    assert!(place(&before) < place(&behind) && behind.base_ordinal == 1, "{before:?} {behind:?}");
}

/// There may be room for the chunk and none for its block.
#[test]
fn a_writer_that_finds_no_room_asks_for_a_whole_block() {
    let (node, store) = node_with(StreamOptions { segment_bytes_max: 256 << 10, ..options() }, 1 << 20).with_store();
    let lane = node.lane();
    let full = (0..).find_map(|sequence| match append(&lane, &chunk(sequence, 70_000), 0) {
        Ok(_) => None,
        Err(AppendError::ArenaFull(full)) => Some(full),
        Err(error) => panic!("{error}"),
    });
    assert!((70_000..80_000).contains(&full.expect("it is full").bytes), "{full:?}");
    assert_eq!(store.wanted.load(std::sync::atomic::Ordering::Relaxed), 128 << 10);
}

#[test]
fn options_are_checked_and_shape_stays() {
    let node = node();
    let wrong = StreamOptions { lanes: 0, segment_bytes_max: 5, ..options() };
    let error = node.log.create_stream(StreamId(2), wrong).unwrap_err().to_string();
    assert!(error.contains("lanes") && error.contains("segment_bytes"), "all mistakes at once: {error}");
    assert_eq!(node.log.create_stream(STREAM, options()).unwrap_err(), StreamError::Exists(STREAM));
    let error = node.log.alter_stream(STREAM, StreamOptions { lanes: 5, ..options() }).unwrap_err().to_string();
    assert_eq!(error, "lanes is 2 and stays so while the stream lives, not 5");
    assert_eq!(node.log.delete_stream(StreamId(5)).unwrap_err(), StreamError::Unknown(StreamId(5)));
}

#[test]
fn a_deleted_stream_gives_its_memory_back_when_the_last_reader_is_done() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..5, 1000);
    let read = lane.read(start(), 1 << 20, true).unwrap();
    let copy = read.data[0].to_vec();
    node.log.delete_stream(STREAM).unwrap();
    assert_eq!(append(&lane, &chunk(5, 10), 0), Err(AppendError::Closed));
    assert_eq!(lane.read(start(), 1, true).unwrap_err(), ReadError::Deleted);
    assert_eq!(node.log.stats().arena.used_bytes, 64 << 10, "a reader is still sending");
    assert_eq!(read.data[0], copy);
    drop(read);
    assert_eq!(node.log.stats().arena.used_bytes, 0);
    assert_eq!(node.log.stats().chunks_appended, 5, "counters do not fall");
}

#[test]
fn a_stream_grows_and_never_shrinks() {
    let node = node_with(StreamOptions { streamlets: 3, ..options() }, 64 << 20);
    let stream = node.log.stream(STREAM).unwrap();
    let first = std::sync::Arc::clone(stream.streamlet(StreamletId(1)).unwrap());
    assert!(stream.streamlet(StreamletId(3)).is_none());
    for count in [4, 5, 200] {
        node.log.alter_stream(STREAM, StreamOptions { streamlets: count, ..options() }).unwrap();
        assert_eq!((stream.streamlet_count(), stream.options().streamlets), (count, count));
        assert!(stream.streamlet(StreamletId(count)).is_none());
        assert_eq!(stream.streamlet(StreamletId(count - 1)).unwrap().id(), StreamletId(count - 1));
    }
    assert!(std::sync::Arc::ptr_eq(&first, stream.streamlet(StreamletId(1)).unwrap()), "they stay where they are");
    for id in 0..200 {
        assert_eq!(stream.streamlet(StreamletId(id)).unwrap().id(), StreamletId(id));
    }
    let found: Vec<u32> = stream.streamlets().map(|streamlet| streamlet.id().0).collect();
    assert_eq!(found, (0..200).collect::<Vec<_>>());
    let error = node.log.alter_stream(STREAM, StreamOptions { streamlets: 199, ..options() }).unwrap_err();
    assert!(error.to_string().contains("streamlets is 200 and cannot shrink to 199"), "{error}");
}

#[test]
fn a_log_is_settled_when_the_store_has_been_given_everything() {
    let (node, sink) = power_node();
    assert!(node.log.is_settled(), "there is nothing yet");
    fill(&node.lane(), 0..3, 100);
    assert!(!node.log.is_settled(), "a segment is open");
    node.log.close_all();
    let store = node.log.stats();
    assert!(!node.log.is_settled(), "the sink has not answered, and until then the store is given nothing: {store:?}");
    sink.sync();
    assert!(node.log.is_settled());
}
