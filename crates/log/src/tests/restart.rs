//! What the next process makes of what it finds.

use std::os::unix::fs::FileExt;

use kera_format::arena::{ArenaHeader, BlockSize};
use kera_format::{GroupId, SegmentIndex};

use super::moving::streamlet;
use super::*;

/// The process dies; the next one attaches the arena. What it found, and the log before it is rebuilt.
fn restart(node: Node, options: StreamOptions) -> (Node, Vec<AttachedSegment>, Arc<Sink>) {
    restart_as(node, options, LogConfig::default())
}

pub(super) fn restart_as(
    node: Node,
    options: StreamOptions,
    config: LogConfig,
) -> (Node, Vec<AttachedSegment>, Arc<Sink>) {
    let dir = Arc::clone(&node.dir);
    drop(node);
    let (arena, attach) = Arena::create_or_attach(arena_config(&dir, 8 << 20)).unwrap();
    let segments = match attach {
        Attach::Attached { segments, set_aside, .. } => {
            assert_eq!(set_aside, []);
            segments
        }
        Attach::Created => Vec::new(),
    };
    let log = Log::new(config, arena);
    let sink = Arc::new(Sink::default());
    log.set_sinks(Arc::new(vec![Arc::clone(&sink) as Arc<dyn DurabilitySink>]));
    log.create_stream(STREAM, options).unwrap();
    (Node { log, dir }, segments, sink)
}

/// Changes a byte of a block of the arena file, from outside.
fn tamper(node: &Node, block: u64, at: u64) {
    let path = arena_config(&node.dir, 0).path;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let blocks =
        ArenaHeader { node: [3; 16], boot_id: [0; 16], blocks: BlockSize::Plain, bytes: 8 << 20 }.blocks_offset();
    let mut byte = [0];
    file.read_at(&mut byte, blocks + block * 65536 + at).unwrap();
    file.write_at(&[byte[0] ^ 1], blocks + block * 65536 + at).unwrap();
}

#[test]
fn everything_is_there_after_a_kill_and_the_open_segment_goes_on() {
    let node = node();
    let before = fill(&node.lane(), 0..7, 30_000);
    let (node, segments, _) = restart(node, options());
    assert_eq!(segments.len(), 4);
    let report = node.log.recover(Vec::new(), segments);
    assert_eq!((report.lanes, report.attached_segments, report.records, report.problems.len()), (1, 4, 7, 0));
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    let lane = node.lane();
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), (0..7).collect::<Vec<_>>());
    let retry = append(&lane, &chunk(6, 30_000), 9).unwrap();
    assert!(retry.duplicate);
    assert_eq!((retry.cursor, retry.base_ordinal), (before[6].cursor, 6));
    let next = append(&lane, &chunk(7, 30_000), 9).unwrap();
    assert_eq!((next.base_ordinal, next.cursor.group), (7, before[6].cursor.group));
    assert_eq!(next.cursor.segment, before[6].cursor.segment, "in the same segment");
    let later = append(&lane, &chunk(8, 30_000), 9).unwrap();
    assert_eq!(later.cursor.group, GroupId::new(1, 1), "groups of this process have its epoch");
}

#[test]
fn a_chunk_that_was_being_copied_when_the_process_died_is_not_there() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..2, 100);
    // Killed between the copy and the store of the head: bytes behind the head, which is as if they were never sent.
    let segment = node.log.segment(lane.segment_id(GroupId::new(0, 1), 0)).unwrap();
    let torn = chunk(2, 100);
    let part = kera_format::BrokerPart {
        group: GroupId::new(0, 1),
        position: segment.head(),
        base_ordinal: 2,
        ..Default::default()
    };
    segment.put_chunk(segment.head(), &ChunkView::parse(&torn).unwrap(), &part).unwrap();
    drop((lane, segment));
    let (node, segments, _) = restart(node, options());
    node.log.recover(Vec::new(), segments);
    node.log.finish_recovery(1);
    assert_eq!(node.lane().latest().1, 2);
    assert_eq!(append(&node.lane(), &torn, 0).unwrap().base_ordinal, 2);
}

#[test]
fn fields_that_lag_behind_the_head_are_computed_again() {
    let node = node();
    let lane = node.lane();
    fill(&lane, 0..3, 100);
    let segment = node.log.segment(lane.segment_id(GroupId::new(0, 1), 0)).unwrap();
    // Killed in the middle of the stores behind a chunk: the head is not moved, some of the rest is.
    let head = segment.head();
    segment.advance(head, 99, 77, 55, 44);
    drop((lane, segment));
    let (_node, segments, _) = restart(node, options());
    let progress = segments[0].segment.progress();
    assert_eq!((progress.next_ordinal, progress.chunk_count, progress.last_append_ms), (3, 3, 2));
    assert_eq!(progress.max_timestamp_ms, NO_TIMESTAMP);
}

#[test]
fn a_damaged_end_is_cut_off_reported_and_never_written_again() {
    let node = node();
    let places = fill(&node.lane(), 0..5, 1000);
    tamper(&node, 0, u64::from(places[3].cursor.position) + 500);
    let (node, segments, _) = restart(node, options());
    let cut = segments[0].cut.clone().unwrap();
    assert_eq!((cut.position, cut.lost_bytes), (places[3].cursor.position, 2 * 1096));
    assert!(cut.reason.contains("producer_checksum"));
    let report = node.log.recover(Vec::new(), segments);
    assert!(report.problems[0].contains("damaged"), "{:?}", report.problems);
    node.log.finish_recovery(1);
    let lane = node.lane();
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
    assert!(matches!(lane.read(places[4].cursor, 1, true), Err(ReadError::Gone { .. })));
    let next = append(&lane, &chunk(3, 10), 0).unwrap();
    assert_eq!((next.base_ordinal, next.cursor.group), (3, GroupId::new(1, 1)));
}

#[test]
fn a_damaged_chunk_header_in_a_closed_segment_is_found_too() {
    let node = node();
    let places = fill(&node.lane(), 0..5, 30_000);
    tamper(&node, 0, u64::from(places[1].cursor.position) + 20);
    let (node, segments, _) = restart(node, options());
    assert_eq!(segments.iter().filter(|s| s.cut.is_some()).count(), 1);
    let report = node.log.recover(Vec::new(), segments);
    assert_eq!(report.problems.len(), 1);
    let holes = node.log.finish_recovery(1);
    assert_eq!(holes.len(), 1, "{holes:?}");
    assert_eq!(ordinals(&node.lane().read(start(), 1 << 20, true).unwrap()), [0, 2, 3, 4]);
}

#[test]
fn what_another_owner_wrote_in_between_is_no_hole() {
    for has_owner_epochs in [true, false] {
        let node = node();
        let lane = node.lane();
        append(&lane, &chunk(0, 10), 0).unwrap();
        let place = node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap().clone();
        place.leave();
        // Two records more, elsewhere.
        let mut state = place.hand_over();
        state[0].next_ordinal += 2;
        place.receive(&state).unwrap();
        place.open(9, true).unwrap();
        let next = append(&lane, &chunk(1, 10), 0).unwrap();
        assert_eq!((next.base_ordinal, next.cursor.group.epoch()), (3, 9));
        drop((lane, place));
        let config = LogConfig { has_owner_epochs, ..LogConfig::default() };
        let (node, segments, _) = restart_as(node, options(), config);
        node.log.recover(Vec::new(), segments);
        let problems = node.log.finish_recovery(1);
        let holes = problems.iter().filter(|problem| problem.contains("starts at ordinal 3")).count();
        assert_eq!(holes, usize::from(!has_owner_epochs), "{problems:?}");
    }
}

/// A streamlet that came with producers 7 and 8, and was let go again with groups of which the first has the last chunk of producer 7; its log
/// after retention and a restart, when it has come back.
fn back_after_retention(producers_kept_ms: u64) -> Node {
    let config = LogConfig { producers_kept_ms, has_owner_epochs: true, ..LogConfig::default() };
    let options = StreamOptions { retention_ms: Some(1_000), ..options() };
    let (first, node) = (node(), node_configured(config.clone(), options.clone(), 8 << 20));
    append(&first.lane(), &chunk_of(7, 0, 0, 100), 0).unwrap();
    append(&first.lane(), &chunk_of(8, 0, 0, 100), 0).unwrap();
    streamlet(&first).let_go().unwrap();
    let came = streamlet(&first).hand_over();
    streamlet(&node).leave();
    streamlet(&node).receive(&came).unwrap();
    streamlet(&node).open(9, true).unwrap();
    append(&node.lane(), &chunk_of(7, 0, 1, 30_000), 0).unwrap();
    (1..9).for_each(|n| _ = append(&node.lane(), &chunk_of(8, 0, n, 30_000), n as i64 * 12_400).unwrap());
    node.log.retain(100_000);
    back_without_harm((node, options, config), &came, 10)
}

/// A node of a cluster starts again, is told once more what came with its streamlet, and owns it in another epoch.
pub(super) fn back_without_harm(
    (node, options, config): (Node, StreamOptions, LogConfig),
    came: &[LaneHandover],
    epoch: u32,
) -> Node {
    let (node, segments, _) = restart_as(node, options, config);
    node.log.recover(Vec::new(), segments);
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    streamlet(&node).leave();
    streamlet(&node).receive(came).unwrap();
    streamlet(&node).open(epoch, true).unwrap();
    node
}

#[test]
fn a_producer_whose_chunks_retention_took_goes_on_whatever_it_had_when_the_streamlet_came() {
    let node = back_after_retention(0);
    let lane = node.lane();
    assert!(lane.stats().first_ordinal > 3, "its last chunk is gone");
    assert_eq!(append(&lane, &chunk_of(7, 0, 2, 100), 100_000).map(|next| next.base_ordinal), Ok(11));
    assert!(append(&lane, &chunk_of(8, 0, 8, 100), 100_000).unwrap().duplicate);
    let gap = append(&lane, &chunk_of(8, 0, 10, 100), 100_000);
    assert!(matches!(gap, Err(AppendError::SequenceGap { expected: 9, .. })), "{gap:?}: it is known");
}

#[test]
fn a_chunk_that_comes_again_is_recognised_although_retention_was_due() {
    let node = back_after_retention(200_000);
    let lane = node.lane();
    let again = append(&lane, &chunk_of(7, 0, 1, 30_000), 100_000).unwrap();
    assert_eq!((again.duplicate, again.base_ordinal, lane.stats().first_ordinal), (true, 2, 2));
    assert_eq!(append(&lane, &chunk_of(7, 0, 2, 100), 100_000).map(|next| next.base_ordinal), Ok(11));
    assert!(append(&lane, &chunk_of(8, 0, 8, 100), 100_000).unwrap().duplicate);
}

#[test]
fn a_stored_copy_replaces_a_damaged_one_in_memory() {
    let (node, store) = node().with_store();
    let places = fill(&node.lane(), 0..5, 30_000);
    let stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(stored, _)| stored).collect();
    drop(store);
    tamper(&node, 0, u64::from(places[1].cursor.position) + 20);
    let (node, segments, _) = restart(node, options());
    let (node, _) = node.with_store();
    let report = node.log.recover(stored, segments);
    assert!(report.problems[0].contains("the one on disk is used"), "{:?}", report.problems);
    assert!(node.log.finish_recovery(1).is_empty());
    assert!(node.lane().read(start(), 1, true).unwrap().loading);
    assert_eq!(node.lane().stats().segments, 3);
}

#[test]
fn what_is_on_disk_is_enough_after_a_loss_of_power() {
    let (node, store) = node().with_store();
    fill(&node.lane(), 0..6, 30_000);
    node.log.close_all();
    let stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(stored, _)| stored).collect();
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    drop(store);
    let (node, segments, _) = restart(node, options());
    assert!(segments.is_empty());
    let (node, _store) = node.with_store();
    let report = node.log.recover(stored, segments);
    assert_eq!((report.stored_segments, report.records), (3, 6));
    assert!(node.log.finish_recovery(2).is_empty());
    let lane = node.lane();
    assert!(append(&lane, &chunk(5, 30_000), 0).unwrap().duplicate, "deduplication goes on from the stored marks");
    assert_eq!(
        append(&lane, &chunk(7, 10), 0),
        Err(AppendError::SequenceGap { producer: 7, found: 7, expected: 6, forgot: false })
    );
    let next = append(&lane, &chunk(6, 10), 0).unwrap();
    assert_eq!((next.base_ordinal, next.cursor.group), (6, GroupId::new(2, 1)), "never into a group of before");
}

/// A disk has changed its index, and what is in it. Who wrote in front of it may have gone on in it, and has nothing to send that would fill the gap. One that was
/// written by nobody who numbers his chunks says as little, and hides no gap.
#[test]
fn a_producer_goes_on_behind_a_segment_of_which_nobody_knows_who_wrote_it() {
    for lacks_marks in [true, false] {
        let (node, store) = node().with_store();
        fill(&node.lane(), 0..4, 30_000);
        (0..2).for_each(|n| _ = append(&node.lane(), &chunk_of(9, 0, n, 30_000), 9).unwrap());
        node.log.close_all();
        let mut stored: Vec<StoredSegment> =
            store.persist_all(&node.log).into_iter().map(|(stored, _)| stored).collect();
        assert_eq!(stored.len(), 3);
        (stored[1].producers, stored[1].lacks_marks) = (Vec::new(), lacks_marks);
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop(store);
        let (node, segments, _) = restart(node, options());
        let (node, _store) = node.with_store();
        assert_eq!(node.log.recover(stored, segments).stored_segments, 3);
        assert_eq!(node.log.finish_recovery(2), [""; 0]);
        let gap = |producer, expected| AppendError::SequenceGap { producer, found: 4, expected, forgot: false };
        let next = append(&node.lane(), &chunk(4, 10), 10).map(|next| next.base_ordinal);
        assert_eq!(next, if lacks_marks { Ok(6) } else { Err(gap(7, 2)) });
        assert!(append(&node.lane(), &chunk(0, 30_000), 10).unwrap().duplicate, "what is in front of it is known");
        assert_eq!(append(&node.lane(), &chunk_of(9, 0, 4, 10), 10), Err(gap(9, 2)), "all of it is behind");
    }
}

#[test]
fn the_virtual_log_puts_chunks_back_where_they_were() {
    let (node, sink) = power_node();
    let places: Vec<_> = (0..9).map(|n| append(&node.lane(), &chunk(n, 25_000), n as i64).unwrap().cursor).collect();
    let synced = sink.sync();
    let lost = append(&node.lane(), &chunk(9, 100), 9).unwrap();
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    sink.pending.lock().clear();
    drop(sink);
    let power = StreamOptions { durability: Durability::Power, ..options() };
    let (node, segments, _) = restart(node, power);
    let (node, store) = node.with_store();
    node.log.recover(Vec::new(), segments);
    for chunk in &synced {
        assert_eq!(node.log.restore_chunk(0, chunk).unwrap(), Restored::Restored);
    }
    assert_eq!(node.log.restore_chunk(0, &synced[0]).unwrap(), Restored::AlreadyThere);
    assert!(node.log.finish_recovery(1).is_empty());
    assert_eq!(store.closed.lock().len(), 5, "each segment goes to the store once");
    let lane = node.lane();
    let read = lane.read(start(), 1 << 20, true).unwrap();
    assert_eq!(ordinals(&read), (0..9).collect::<Vec<_>>());
    assert_eq!(read.data.iter().map(|b| b.len()).sum::<usize>(), synced.iter().map(Vec::len).sum());
    assert_eq!(ordinals(&lane.read(places[5], 1, true).unwrap()), [5], "cursors of before are good");
    assert!(matches!(lane.read(lost.cursor, 1, true), Ok(outcome) if outcome.data.is_empty()));
    assert!(append(&lane, &chunk(8, 25_000), 0).unwrap().duplicate);
    assert_eq!(append(&lane, &chunk(9, 100), 0).unwrap().cursor.group, GroupId::new(1, 1));
}

/// The store's threads make room while the replay goes on. With `is_first_stored` one of the producers is known from what was on disk before, too.
#[test]
fn chunks_that_leave_memory_before_the_replay_ends_are_recognised_when_they_come_again() {
    for is_first_stored in [false, true] {
        let (node, sink) = power_node();
        let (node, store) = node.with_store();
        append(&node.lane(), &chunk_of(8, 0, 0, 100), 0).unwrap();
        fill(&node.lane(), 0..8, 25_000);
        append(&node.lane(), &chunk_of(0, 0, 0, 60_000), 9).unwrap();
        let synced = sink.sync();
        let mut stored: Vec<StoredSegment> =
            store.persist_all(&node.log).into_iter().map(|(stored, _)| stored).collect();
        stored.truncate(usize::from(is_first_stored));
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop((sink, store));
        let (node, segments, _) = restart(node, power());
        let (node, store) = node.with_store();
        node.log.recover(stored, segments);
        synced.iter().for_each(|chunk| _ = node.log.restore_chunk(0, chunk).unwrap());
        let written = store.persist_all(&node.log);
        assert!(written.len() >= 3, "all but the last one");
        written.iter().for_each(|(of, _)| assert!(node.log.evict(of.header.id)));
        assert_eq!(node.log.finish_recovery(1), Vec::<String>::new());
        let lane = node.lane();
        assert!(append(&lane, &chunk_of(8, 0, 0, 100), 10).unwrap().duplicate, "{is_first_stored}");
        for sequence in 3..8 {
            let again = append(&lane, &chunk(sequence, 25_000), 10).unwrap();
            assert_eq!((again.duplicate, again.base_ordinal), (true, sequence + 1), "{is_first_stored}");
        }
        let next = append(&lane, &chunk(8, 100), 10).unwrap();
        assert_eq!((next.duplicate, next.base_ordinal), (false, 10), "{is_first_stored}");
    }
}

#[test]
fn a_replay_refuses_what_does_not_fit() {
    let (node, sink) = power_node();
    (0..3).for_each(|n| _ = append(&node.lane(), &chunk(n, 100), 0).unwrap());
    let synced = sink.sync();
    drop((node, sink));
    let (node, sink) = power_node();
    assert!(matches!(node.log.restore_chunk(0, &synced[1]), Err(RestoreError::Hole { .. })));
    node.log.restore_chunk(0, &synced[0]).unwrap();
    assert!(matches!(node.log.restore_chunk(0, &synced[2]), Err(RestoreError::Hole { .. })));
    let mut other = chunk(9, 100);
    let part = kera_format::BrokerPart { group: GroupId::new(0, 1), position: 128, ..Default::default() };
    part.stamp(&mut other);
    assert!(matches!(node.log.restore_chunk(0, &other), Err(RestoreError::Conflict(_))));
    assert!(matches!(node.log.restore_chunk(0, &chunk(3, 100)), Err(RestoreError::Format(_))), "not stamped");
    node.log.delete_stream(STREAM).unwrap();
    assert_eq!(node.log.restore_chunk(0, &synced[1]).unwrap(), Restored::UnknownStream);
    drop(sink);
}

/// A node has appended five chunks, and its next life knew the first `known` of them only and gave the ordinals of the others again; then that one is gone, too, but for its
/// arena. What the two have synced.
fn given_again(known: u64) -> (Node, [Vec<Vec<u8>>; 2]) {
    let (node, sink) = power_node();
    fill(&node.lane(), 0..5, 25_000);
    let synced = sink.sync();
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    drop(sink);
    let (node, segments, sink) = restart(node, power());
    node.log.recover(Vec::new(), segments);
    synced[..known as usize].iter().for_each(|chunk| _ = node.log.restore_chunk(0, chunk).unwrap());
    assert_eq!(node.log.finish_recovery(1), Vec::<String>::new());
    fill(&node.lane(), known..3, 100);
    let since = sink.sync();
    (node, [synced, since])
}

fn power() -> StreamOptions {
    StreamOptions { durability: Durability::Power, ..options() }
}

/// What was left out, if only the first lane is said to lack something.
fn left_out(node: &Node) -> std::ops::Range<u64> {
    let told = node.log.given_again();
    let [GivenAgain { stream: STREAM, lane: LaneId(0), ordinals, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(node.log.given_again(), [], "it is told once");
    ordinals.clone()
}

#[test]
fn what_a_log_has_that_no_start_read_does_not_come_back_once_its_ordinals_were_given_again() {
    for known in [0, 1] {
        let (node, [synced, _]) = given_again(known);
        let (node, segments, _) = restart(node, power());
        node.log.recover(Vec::new(), segments);
        for (at, chunk) in (0..).zip(&synced) {
            let expected = if at < known { Restored::AlreadyThere } else { Restored::GivenAgain };
            assert_eq!(node.log.restore_chunk(1, chunk), Ok(expected), "{at} of {known}");
        }
        assert_eq!(left_out(&node), known..5);
        assert_eq!(node.log.finish_recovery(2), Vec::<String>::new());
        assert_eq!(ordinals(&node.lane().read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
    }
}

/// A disk does not give at one start what tells of some segments, and gives it at the next one.
#[test]
fn what_a_start_could_not_read_on_disk_does_not_come_back_once_its_ordinals_were_given_again() {
    for (given, is_stored) in [(3, true), (3, false), (0, true)] {
        let (node, store) = node().with_store();
        fill(&node.lane(), 0..6, 30_000);
        node.log.close_all();
        let mut stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
        assert_eq!(stored.len(), 3);
        let lost: Vec<SegmentId> = stored[1..].iter().map(|of| of.header.id).collect();
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop(store);
        let (node, segments, _) = restart(node, options());
        let (node, store) = node.with_store();
        node.log.recover(stored[..1].to_vec(), segments);
        assert_eq!(node.log.finish_recovery(1), [""; 0]);
        fill(&node.lane(), 2..2 + given, 100);
        if is_stored {
            node.log.close_all();
            stored.extend(store.persist_all(&node.log).into_iter().map(|(of, _)| of));
            std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        }
        drop(store);
        let (node, segments, _) = restart(node, options());
        let (node, store) = node.with_store();
        let problems = node.log.recover(stored, segments).problems;
        assert_eq!(node.log.finish_recovery(2), [""; 0], "{given} were given again");
        let lane = node.lane();
        let mut released = std::mem::take(&mut *store.released.lock());
        released.sort();
        match given {
            0 => assert_eq!((problems.len(), released.len(), lane.next_ordinal()), (0, 0, 6), "all of it is there"),
            _ => {
                assert!(problems.len() == 1 && problems[0].contains("from 2 to 5 are left out"), "{problems:?}");
                assert_eq!((released, lane.next_ordinal()), (lost, 5));
            }
        }
        let next = lane.next_ordinal();
        assert_eq!(append(&lane, &chunk(next, 100), 9).map(|of| of.base_ordinal), Ok(next));
    }
}

/// The same on a node of a cluster: of a stream that it has for itself, and of streamlets with one copy and their progress. Also if they have got more copies since: what comes back has none.
#[test]
fn what_comes_back_on_a_node_of_a_cluster_goes_where_its_ordinals_were_given_again() {
    for (is_own, is_progress, copies) in [(true, false, 1), (false, false, 1), (false, true, 1), (false, false, 2)] {
        let what = format!("own: {is_own}, progress: {is_progress}, copies: {copies}");
        let configured = LogConfig { has_owner_epochs: true, ..config() };
        let tell = |node: &Node| {
            if is_own {
                node.log.stream(STREAM).unwrap().keep_room();
            }
        };
        let open = |node: &Node, epoch: u32| {
            if !is_own {
                streamlet(node).leave();
                streamlet(node).open(epoch, false).unwrap();
            }
        };
        let lane = |node: &Node| match is_progress {
            true => Arc::clone(streamlet(node).progress_lane()),
            false => node.lane(),
        };
        let (node, store) = node_configured(configured.clone(), options(), 8 << 20).with_store();
        tell(&node);
        open(&node, 4);
        fill(&lane(&node), 0..6, 30_000);
        node.log.close_all();
        let mut stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
        assert_eq!(stored.len(), 3, "{what}");
        let lost: Vec<SegmentId> = stored[1..].iter().map(|of| of.header.id).collect();
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop(store);
        let (node, segments, _) = restart_as(node, options(), configured.clone());
        let (node, store) = node.with_store();
        tell(&node);
        node.log.recover(stored[..1].to_vec(), segments);
        assert_eq!(node.log.finish_recovery(1), [""; 0], "{what}");
        open(&node, 5);
        fill(&lane(&node), 2..5, 100);
        node.log.close_all();
        stored.extend(store.persist_all(&node.log).into_iter().map(|(of, _)| of));
        assert_eq!(stored.len(), 4, "{what}");
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop(store);
        let (node, segments, _) = restart_as(node, options(), configured);
        let (node, store) = node.with_store();
        tell(&node);
        node.log.set_copies(&[(STREAM, 0, 1, copies)]);
        let problems = node.log.recover(stored, segments).problems;
        assert_eq!(node.log.finish_recovery(2), [""; 0], "{what}");
        let mut released = std::mem::take(&mut *store.released.lock());
        released.sort();
        let lane = lane(&node);
        assert_eq!((released, lane.next_ordinal()), (lost, 5), "{what}");
        // Nobody misses progress, which is not told of.
        assert_eq!(problems.len(), usize::from(!is_progress), "{what}: {problems:?}");
        assert!(problems.iter().all(|problem| problem.contains("from 2 to 5 are left out")), "{what}: {problems:?}");
        open(&node, 6);
        assert_eq!(append(&lane, &chunk(5, 100), 9).map(|of| of.base_ordinal), Ok(5), "{what}");
    }
}

/// Nobody was told of what a life has appended at these ordinals, if it was killed before any of it was durable.
#[test]
fn what_comes_back_counts_where_nothing_that_was_given_its_ordinals_was_durable() {
    for durable in [0, 1] {
        let (node, sink) = power_node();
        let (node, store) = node.with_store();
        fill(&node.lane(), 0..6, 30_000);
        sink.sync();
        node.log.close_all();
        let stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
        assert_eq!(stored.len(), 3);
        let lost: Vec<SegmentId> = stored[1..].iter().map(|of| of.header.id).collect();
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop((sink, store));
        let (node, segments, sink) = restart(node, power());
        let (node, store) = node.with_store();
        node.log.recover(stored[..1].to_vec(), segments);
        assert_eq!(node.log.finish_recovery(1), [""; 0]);
        fill(&node.lane(), 2..5, 100);
        let pending = std::mem::take(&mut *sink.pending.lock());
        assert_eq!(pending.len(), 3);
        made_durable(&pending[..durable]);
        drop((pending, sink, store));
        let (node, segments, _sink) = restart(node, power());
        let (node, store) = node.with_store();
        let found = node.log.recover(stored, segments).problems;
        let at_the_end = node.log.finish_recovery(2);
        let mut released = std::mem::take(&mut *store.released.lock());
        released.sort();
        let lane = node.lane();
        if durable > 0 {
            assert!(found.len() == 1 && found[0].contains("from 2 to 5 are left out"), "{found:?}");
            assert_eq!((at_the_end.len(), released, lane.next_ordinal()), (0, lost, 5));
        } else {
            assert!(found.is_empty() && at_the_end.len() == 1, "{found:?} {at_the_end:?}");
            let said = &at_the_end[0];
            assert!(said.contains("from 2 to 4 are left out") && said.contains("were not acknowledged"), "{said}");
            assert_eq!((released, lane.next_ordinal()), (Vec::new(), 6));
        }
        let next = lane.next_ordinal();
        assert_eq!(append(&lane, &chunk(next, 100), 9).map(|of| of.base_ordinal), Ok(next));
    }
}

/// The same of a virtual log that an earlier start did not read. What has its ordinals may be in another one that is read later, though no head says so: the process was killed in between.
#[test]
fn what_a_log_has_that_no_start_read_comes_back_where_nothing_that_was_given_its_ordinals_was_durable() {
    for is_synced in [false, true] {
        let (node, sink) = power_node();
        fill(&node.lane(), 0..5, 25_000);
        let synced = sink.sync();
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        drop(sink);
        let (node, segments, sink) = restart(node, power());
        node.log.recover(Vec::new(), segments);
        assert_eq!(node.log.finish_recovery(1), [""; 0]);
        fill(&node.lane(), 0..3, 100);
        let since: Vec<Vec<u8>> = sink.pending.lock().drain(..).map(|of| of.chunk().to_vec()).collect();
        drop(sink);
        let (node, segments, _sink) = restart(node, power());
        assert_eq!(node.log.recover(Vec::new(), segments).problems, [""; 0]);
        synced.iter().for_each(|chunk| assert_eq!(node.log.restore_chunk(1, chunk), Ok(Restored::Restored)));
        let in_log = since.iter().filter(|_| is_synced);
        in_log.for_each(|chunk| assert_eq!(node.log.restore_chunk(0, chunk), Ok(Restored::AlreadyThere)));
        assert_eq!(node.log.given_again(), []);
        let said = node.log.finish_recovery(2);
        let (what, end) = if is_synced { ("from 0 to 4 are left out", 3) } else { ("from 0 to 2 are left out", 5) };
        assert!(said.len() == 1 && said[0].contains(what), "{said:?}");
        let lane = node.lane();
        let expected: Vec<u64> = (0..end).collect();
        assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), expected, "in another log: {is_synced}");
        assert_eq!(append(&lane, &chunk(end, 100), 9).map(|of| of.base_ordinal), Ok(end));
    }
}

/// A start closes what it has put back, so what the next one finds may belong behind a closed end. So it is here, of five records of which the start in between has known the first: that one
/// has closed its segment, and stored it and let go of its memory, and its life has given so many of the other ordinals again. Of that nothing was durable, or turns out to be.
fn comes_back_behind_a_closed_end(payload: usize, (is_stored, is_evicted): (bool, bool), given: u64, is_synced: bool) {
    let what = format!("{payload} bytes, stored: {is_stored}, evicted: {is_evicted}, {given}, synced: {is_synced}");
    let (node, sink) = power_node();
    fill(&node.lane(), 0..5, payload);
    let synced = sink.sync();
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    drop(sink);
    let (node, segments, sink) = restart(node, power());
    let (node, store) = node.with_store();
    node.log.recover(Vec::new(), segments);
    assert_eq!(node.log.restore_chunk(0, &synced[0]), Ok(Restored::Restored), "{what}");
    assert_eq!(node.log.finish_recovery(1), [""; 0], "{what}");
    fill(&node.lane(), 1..1 + given, 100);
    let since: Vec<Vec<u8>> = sink.pending.lock().drain(..).map(|of| of.chunk().to_vec()).collect();
    let written = if is_stored { store.persist_all(&node.log) } else { Vec::new() };
    let stored: Vec<StoredSegment> = written.into_iter().map(|(of, _)| of).collect();
    let shorter: Vec<SegmentId> = stored.iter().map(|of| of.header.id).collect();
    assert_eq!(stored.len(), usize::from(is_stored), "{what}");
    assert!(!is_evicted || node.log.evict(shorter[0]), "{what}");
    store.closed.lock().clear();
    drop(sink);

    let (node, segments, sink) = restart(node, power());
    node.log.set_store(Arc::clone(&store) as _);
    assert_eq!(node.log.recover(stored.clone(), segments).problems, [""; 0], "{what}");
    let first = if is_stored { Restored::Stored } else { Restored::AlreadyThere };
    assert_eq!(node.log.restore_chunk(1, &synced[0]), Ok(first), "{what}");
    let rest = synced[1..].iter();
    rest.for_each(|chunk| assert_eq!(node.log.restore_chunk(1, chunk), Ok(Restored::Restored), "{what}"));
    let in_log = since.iter().filter(|_| is_synced);
    in_log.for_each(|chunk| assert_eq!(node.log.restore_chunk(0, chunk), Ok(Restored::AlreadyThere), "{what}"));
    let told: Vec<u64> = node.log.given_again().iter().map(|of| of.ordinals.start).collect();
    assert_eq!(told, Vec::from_iter(is_synced.then_some(1)), "{what}");
    let said = node.log.finish_recovery(2);
    assert!(is_synced || said.len() == usize::from(given > 0), "{what}: {said:?}");
    assert!(said.iter().all(|said| said.contains("are left out")), "{what}: {said:?}");
    let end = if is_synced { 1 + given } else { 5 };
    let expected: Vec<u64> = (0..end).collect();
    let lane = node.lane();
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), expected, "{what}");
    assert_eq!(append(&lane, &chunk(end, 100), 9).map(|of| of.base_ordinal), Ok(end), "{what}");
    drop(lane);
    if is_synced {
        return;
    }
    // Killed before the longer one is stored: the shorter image is still there.
    store.closed.lock().clear();
    sink.pending.lock().clear();
    drop(sink);
    let (node, segments, _sink) = restart(node, power());
    node.log.set_store(Arc::clone(&store) as _);
    node.log.recover(stored, segments);
    synced.iter().for_each(|chunk| assert!(node.log.restore_chunk(1, chunk).is_ok(), "{what}"));
    assert_eq!((node.log.given_again(), node.log.finish_recovery(3)), (Vec::new(), Vec::new()), "{what}");
    assert_eq!(ordinals(&node.lane().read(start(), 1 << 20, true).unwrap()), expected, "{what}");
    store.persist_all(&node.log);
    assert_eq!(*store.released.lock(), shorter, "{what}");
}

#[test]
fn what_comes_back_behind_a_closed_end_counts_where_nothing_that_was_given_its_ordinals_was_durable() {
    for payload in [100, 25_000] {
        for place in [(false, false), (true, false), (true, true)] {
            for (given, is_synced) in [(0, false), (2, false), (2, true)] {
                comes_back_behind_a_closed_end(payload, place, given, is_synced);
            }
        }
    }
}

/// Opens the streamlet in an owner epoch.
fn open_as(node: &Node, epoch: u32) {
    streamlet(node).leave();
    streamlet(node).open(epoch, true).unwrap();
}

/// A node that reads from its disk, in a start that is under way, so many segments of what it had as the owner in epoch 4; and what has to live as long.
fn reads_again(segments: usize, write: impl FnOnce(&Arc<Lane>)) -> (Node, impl Sized) {
    let configured = LogConfig { has_owner_epochs: true, ..config() };
    let (node, store) = node_configured(configured.clone(), options(), 8 << 20).with_store();
    open_as(&node, 4);
    write(&node.lane());
    node.log.close_all();
    let stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
    assert_eq!(stored.len(), segments);
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    let (node, attached, sink) = restart_as(node, options(), configured);
    node.log.set_store(Arc::clone(&store) as _);
    assert_eq!(node.log.recover(stored, attached).problems, [""; 0]);
    (node, (store, sink))
}

/// A node has handed a streamlet on without the last of what it had had, and reads that again. Nothing here says where the next owner began, but the coordinators do.
#[test]
fn what_comes_back_of_a_streamlet_that_has_moved_ends_where_its_next_owner_began() {
    for (end, gone) in [(0, Some(0..6)), (2, Some(2..6)), (3, Some(3..6)), (6, None), (9, None)] {
        let (node, _kept) = reads_again(3, |lane| _ = fill(lane, 0..6, 30_000));
        let lane = node.lane();
        assert_eq!(lane.end_older(0, |group| group.epoch() < 4), Ok(None), "nothing is of that time");
        assert_eq!(lane.end_older(end, |group| group.epoch() < 7), Ok(gone));
        assert_eq!(node.log.finish_recovery(1), [""; 0], "{end}");
        let next = end.min(6);
        assert_eq!(lane.next_ordinal(), next);
        open_as(&node, 9);
        assert_eq!(append(&lane, &chunk(next, 100), 9).map(|of| of.base_ordinal), Ok(next));
    }
}

/// Four records, of a producer of its own.
fn four_records(producer: u64) -> Vec<u8> {
    let mut buffer = vec![7; CHUNK_HEADER_BYTES + 30_000];
    let target = ChunkTarget { stream: STREAM, producer_id: ProducerId(producer), ..ChunkTarget::default() };
    seal_in_place(&mut buffer, &target, PayloadKind::Records, Compression::None, 4, NO_TIMESTAMP).unwrap();
    buffer
}

/// It has moved once more, so the present owner begins in the midst of a chunk that nobody had then. Who got the chunk would pass over what the owner has of its ordinals.
#[test]
fn a_chunk_in_the_midst_of_which_the_next_owner_began_goes_as_a_whole() {
    for (end, gone) in [(2, 0..12), (6, 4..12), (8, 8..12), (10, 8..12)] {
        let (node, _kept) = reads_again(2, |lane| {
            (10..13).for_each(|producer| _ = append(lane, &four_records(producer), 9).unwrap());
        });
        let lane = node.lane();
        assert_eq!(lane.end_older(end, |group| group.epoch() < 7), Ok(Some(gone.clone())));
        assert_eq!(node.log.finish_recovery(1), [""; 0], "{end}");
        assert_eq!(lane.next_ordinal(), gone.start);
    }
}

/// Retention has left nothing of a lane but a segment without records, which says where it goes on.
#[test]
fn an_end_that_a_start_could_not_read_does_not_stand_in_front_of_ordinals_that_were_given_again() {
    let kept = StreamOptions { retention_ms: Some(1_000), ..options() };
    let (node, store) = node_with(kept.clone(), 8 << 20).with_store();
    fill(&node.lane(), 0..6, 30_000);
    node.log.close_all();
    store.persist_all(&node.log);
    assert_eq!(node.log.retain(9_000), 2);
    let end: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
    assert_eq!((node.log.retain(9_000), node.lane().earliest().1), (1, 6));
    assert_eq!((end.len(), end[0].header.base_ordinal, end[0].progress.next_ordinal), (1, 6, 6));
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    drop(store);
    let (node, segments, _) = restart(node, kept.clone());
    node.log.recover(Vec::new(), segments);
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    fill(&node.lane(), 0..3, 100);
    let (node, segments, _) = restart(node, kept);
    let (node, store) = node.with_store();
    assert_eq!(node.log.recover(end.clone(), segments).problems, [""; 0], "nothing is lost with it");
    assert_eq!(node.log.finish_recovery(2), [""; 0]);
    assert_eq!(*store.released.lock(), [end[0].header.id]);
    let lane = node.lane();
    assert_eq!((lane.earliest().1, lane.next_ordinal()), (0, 3));
    assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
}

/// What was left out told of a producer what made needless what is in front of it. It is not held to what nobody knows any more.
#[test]
fn a_producer_whose_last_records_are_left_out_goes_on() {
    let (node, store) = node().with_store();
    append(&node.lane(), &chunk(0, 30_000), 0).unwrap();
    append(&node.lane(), &chunk_of(8, 0, 0, 30_000), 0).unwrap();
    fill(&node.lane(), 1..7, 30_000);
    node.log.close_all();
    let mut stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(of, _)| of).collect();
    assert_eq!((stored.len(), stored[0].producers.len()), (4, 2));
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    drop(store);
    let (node, segments, _) = restart(node, options());
    let (node, store) = node.with_store();
    node.log.recover(stored[..1].to_vec(), segments);
    assert_eq!(node.log.finish_recovery(1), [""; 0]);
    assert_eq!(append(&node.lane(), &chunk_of(8, 0, 1, 100), 1).map(|of| of.base_ordinal), Ok(2));
    drop(store);
    let (node, segments, _) = restart(node, options());
    let (node, _store) = node.with_store();
    // As a start leaves it that has found five later ones of the same producer.
    stored[0].producers.remove(0);
    assert_eq!(node.log.recover(stored, segments).problems.len(), 1);
    assert_eq!(node.log.finish_recovery(2), [""; 0]);
    assert_eq!(append(&node.lane(), &chunk(7, 100), 9).map(|of| of.base_ordinal), Ok(3));
}

/// The power goes before anything is stored, so that what was given again comes from a virtual log as well: behind what it takes the place of.
#[test]
fn what_no_start_read_goes_again_when_what_has_its_ordinals_comes_behind_it() {
    for (known, stored, evicted) in
        [0, 1, 2].map(|known| [(known, false, false), (known, true, false), (known, true, true)]).concat()
    {
        let what = format!("{known} were known, stored: {stored}, evicted: {evicted}");
        let (node, [synced, since]) = given_again(known);
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        let (node, segments, _) = restart(node, power());
        let (node, store) = node.with_store();
        node.log.recover(Vec::new(), segments);
        synced.iter().for_each(|chunk| assert_eq!(node.log.restore_chunk(1, chunk), Ok(Restored::Restored)));
        // The store's threads have made room meanwhile.
        let written = if stored { store.persist_all(&node.log) } else { Vec::new() };
        assert_eq!(written.len(), if stored { 2 } else { 0 }, "{what}");
        // Not what stays as it is, which is read below.
        let leaves = written.iter().filter(|(of, _)| evicted && of.progress.next_ordinal > known);
        leaves.for_each(|(of, _)| assert!(node.log.evict(of.header.id)));
        since.iter().for_each(|chunk| assert_eq!(node.log.restore_chunk(0, chunk), Ok(Restored::Restored)));
        assert_eq!(left_out(&node), known..5, "{what}");
        assert_eq!(node.log.finish_recovery(2), Vec::<String>::new(), "{what}");
        let lane = node.lane();
        assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2], "{what}");
        assert_eq!(append(&lane, &chunk(3, 100), 9).map(|next| next.base_ordinal), Ok(3), "{what}");
        // Nothing longer is left on the disk once all of it is stored.
        node.log.close_all();
        let mut on_disk = written;
        on_disk.extend(store.persist_all(&node.log));
        let released = std::mem::take(&mut *store.released.lock());
        released.iter().for_each(|id| {
            let at = on_disk.iter().position(|(of, _)| of.header.id == *id).expect("what is released is there");
            on_disk.remove(at);
        });
        let last = on_disk.iter().map(|(of, _)| of.progress.next_ordinal).max();
        let records: u64 = on_disk.iter().map(|(of, _)| of.progress.next_ordinal - of.header.base_ordinal).sum();
        assert_eq!((last, records), (Some(3), 3), "{what}: {on_disk:?}");
    }
}

/// A start that has cut a segment which was on disk is killed before what is left is stored: the longer image is still there.
#[test]
fn what_is_left_of_a_segment_that_was_cut_counts_beside_the_longer_image() {
    let (node, [synced, since]) = given_again(1);
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    let (node, segments, _) = restart(node, power());
    let (node, store) = node.with_store();
    node.log.recover(Vec::new(), segments);
    synced.iter().for_each(|chunk| _ = node.log.restore_chunk(1, chunk).unwrap());
    let longer = store.persist_all(&node.log).remove(0).0;
    since.iter().for_each(|chunk| _ = node.log.restore_chunk(0, chunk).unwrap());
    assert_eq!(node.log.finish_recovery(2), Vec::<String>::new());
    drop(store);
    let (node, segments, _) = restart(node, power());
    let (node, store) = node.with_store();
    assert_eq!(node.log.recover(vec![longer.clone()], segments).problems, Vec::<String>::new());
    synced.iter().for_each(|chunk| _ = node.log.restore_chunk(1, chunk).unwrap());
    assert_eq!(node.log.finish_recovery(3), Vec::<String>::new());
    assert_eq!(ordinals(&node.lane().read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
    // Its write may have been under way when it was cut.
    node.log.persisted(longer.header.id, longer.at);
    assert_eq!(*store.released.lock(), [longer.header.id]);
    store.persist_all(&node.log);
    assert_eq!(*store.released.lock(), [longer.header.id; 2]);
    assert_eq!(ordinals(&node.lane().read(start(), 1 << 20, true).unwrap()), [0, 1, 2]);
}

#[test]
fn what_a_virtual_log_has_behind_a_segment_that_was_cut_and_stored_is_left_out() {
    for known in [1, 2] {
        let (node, [synced, since]) = given_again(known);
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        let (node, segments, _) = restart(node, power());
        let (node, store) = node.with_store();
        node.log.recover(Vec::new(), segments);
        synced.iter().for_each(|chunk| _ = node.log.restore_chunk(1, chunk).unwrap());
        // The power goes again when the shorter one is stored, and what has taken the ordinals of the others is not.
        assert_eq!(node.log.restore_chunk(0, &since[0]), Ok(Restored::Restored));
        let short = store.persist_all(&node.log).pop().unwrap().0;
        assert_eq!(short.progress.next_ordinal, known);
        drop(store);
        std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
        let (node, segments, _) = restart(node, power());
        let (node, _store) = node.with_store();
        assert_eq!(node.log.recover(vec![short], segments).problems, Vec::<String>::new());
        for (at, chunk) in (0..).zip(&synced) {
            let restored = node.log.restore_chunk(1, chunk);
            assert!(
                restored.is_ok() && (at >= known || restored == Ok(Restored::Stored)),
                "{at} of {known}: {restored:?}"
            );
        }
        since.iter().for_each(|chunk| assert_eq!(node.log.restore_chunk(0, chunk), Ok(Restored::Restored)));
        assert_eq!(left_out(&node), known..5);
        assert_eq!(node.log.finish_recovery(3), Vec::<String>::new());
        let lane = node.lane();
        assert_eq!(lane.next_ordinal(), 3);
        assert_eq!(append(&lane, &chunk(3, 100), 9).map(|next| next.base_ordinal), Ok(3));
    }
}

#[test]
fn what_was_not_durable_when_the_process_died_goes_to_the_sink_again() {
    for in_logs in [&[0][..], &[1], &[0, 1], &[1, 0], &[]] {
        let (node, sink) = power_node();
        fill(&node.lane(), 0..2, 100);
        let synced = sink.sync();
        fill(&node.lane(), 2..5, 30_000);
        sink.pending.lock().clear();
        drop(sink);
        let power = StreamOptions { durability: Durability::Power, ..options() };
        let (node, segments, sink) = restart(node, power);
        node.log.recover(Vec::new(), segments);
        for vlog in in_logs {
            synced.iter().for_each(|chunk| _ = node.log.restore_chunk(*vlog, chunk).unwrap());
        }
        node.log.finish_recovery(1);
        let lane = node.lane();
        assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1]);
        // In front of what goes to a log nothing of its segment may be missing there. What another one has, too, may be more.
        let expected = if in_logs == [0] { 3 } else { 5 };
        assert_eq!((lane.durable_ordinal(), sink.pending.lock().len()), (2, expected), "{in_logs:?}");
        let retry = append(&lane, &chunk(4, 30_000), 0).unwrap();
        assert!(retry.duplicate && retry.ticket.is_some(), "its ack waits until the first is durable");
        sink.sync();
        assert_eq!(ordinals(&lane.read(start(), 1 << 20, true).unwrap()), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn segments_of_streams_that_are_gone_give_their_space_back() {
    let (node, store) = node().with_store();
    fill(&node.lane(), 0..5, 30_000);
    let stored: Vec<StoredSegment> = store.persist_all(&node.log).into_iter().map(|(stored, _)| stored).collect();
    drop(store);
    let (node, segments, _) = restart(node, options());
    let (node, store) = node.with_store();
    node.log.delete_stream(STREAM).unwrap();
    let report = node.log.recover(stored, segments);
    assert_eq!(report.dropped_segments, 5);
    assert_eq!(store.released.lock().len(), 2);
    assert_eq!(node.log.stats().arena.used_bytes, 0);
}

#[test]
fn an_epoch_that_is_not_higher_is_corrected() {
    let node = node();
    node.log.finish_recovery(5);
    fill(&node.lane(), 0..1, 100);
    node.log.close_all();
    let (node, segments, _) = restart(node, options());
    node.log.recover(Vec::new(), segments);
    let problems = node.log.finish_recovery(4);
    assert!(problems[0].contains("epoch is 4"), "{problems:?}");
    assert_eq!(append(&node.lane(), &chunk(1, 10), 0).unwrap().cursor.group, GroupId::new(6, 1));
}

#[test]
fn a_reader_of_what_was_lost_is_sent_on() {
    let node = node();
    node.log.finish_recovery(1);
    let lost = fill(&node.lane(), 0..3, 100)[2].cursor;
    std::fs::remove_file(arena_config(&node.dir, 0).path).unwrap();
    let (node, segments, _) = restart(node, options());
    node.log.recover(Vec::new(), segments);
    node.log.finish_recovery(2);
    let lane = node.lane();
    assert_eq!(lane.read(lost, 1, true).unwrap_err(), ReadError::Gone { asked: lost, earliest: start() });
    let first = append(&lane, &chunk(0, 10), 0).unwrap();
    assert_eq!(lane.read(lost, 1, true).unwrap_err(), ReadError::Gone { asked: lost, earliest: first.cursor });
}

#[test]
fn an_idle_lanes_group_ends_with_the_process() {
    let node = node();
    fill(&node.lane(), 0..1, 100);
    node.log.close_idle(1_000_000, 10);
    let (node, segments, _) = restart(node, options());
    node.log.recover(Vec::new(), segments);
    node.log.finish_recovery(1);
    let next = append(&node.lane(), &chunk(1, 100), 0).unwrap().cursor;
    assert_eq!((next.group, next.segment), (GroupId::new(1, 1), SegmentIndex(0)));
}
