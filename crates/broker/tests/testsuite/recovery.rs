//! A broker is lost, and another one takes its streamlets over: real logs, real backups on simulated disks, no network. What was
//! acknowledged is served, once and in order, whatever the lost logs look like and whoever fails meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_broker::{Copies, EndedLog, EndedView, HandedStates, NoStates, Rebuild, RecoveryProgress};
use kera_env::Clock;
use kera_format::chunk::{Chunks, Skip};
use kera_format::vlog_replica::LogId;
use kera_format::{ChunkView, Cursor, GroupId, LaneId, SegmentId, SegmentIndex, StreamId, StreamOptions, StreamletId};
use kera_log::{Log, LogStats};
use kera_protocol::{
    BlocksRead, LaneStateList, LaneStates, Lookup, LookupResult, ReadBlocks, ReadChunksResponse, ReleaseBlocks, Start,
    Status, StoreHead, WriteChunks,
};
use kera_rpc::Flow;
use kera_vlog::Answer;

use crate::common::cloud::*;
use crate::common::*;

/// The log of the broker that is lost.
const LOST: LogId = LogId { node: 1, epoch: 7, vlog: 0 };
const OTHER: LogId = LogId { vlog: 1, ..LOST };

fn lost_options(lanes: u32) -> StreamOptions {
    power(options(1, lanes))
}

/// A node that has the stream and owns nothing.
fn house(node: u32, options: &StreamOptions) -> House {
    placed(House::new(), node, options)
}

fn placed(house: House, node: u32, options: &StreamOptions) -> House {
    house.stream(STREAM, options.clone());
    house.broker.join_cluster(CLUSTER, node);
    house.broker.place_stream(1, STREAM, vec![owner(99, 1, &[])]).unwrap();
    house.sink.instant.store(true, Ordering::SeqCst);
    house
}

/// Makes the house the owner, of a streamlet that nobody has owned.
fn owns(house: &House, node: u32, epoch: u32) {
    house.broker.set_owner(2, STREAM, X, owner(node, epoch, &[])).unwrap();
    house.broker.open_streamlet(STREAM, X, epoch, None).unwrap();
}

/// All chunks of a lane as they lie in its segments, durable or not.
fn chunks_of(log: &Log, lane: u32) -> Vec<Vec<u8>> {
    chunks_in(log, X, lane)
}

fn chunks_in(log: &Log, streamlet: StreamletId, lane: u32) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let stream = log.stream(STREAM).unwrap();
    let lane = stream.streamlet(streamlet).unwrap().lane(LaneId(lane)).unwrap();
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        for index in group.first_segment.0..=group.last_segment.0 {
            let (index, lane) = (SegmentIndex(index), lane.id());
            let id = SegmentId { stream: STREAM, streamlet, lane, group: group.id, index };
            let segment = log.segment(id).expect("in memory");
            let chunks = Chunks::new(segment.bytes(128, segment.head()));
            all.extend(chunks.map(|chunk| chunk.unwrap().as_bytes().to_vec()));
        }
    }
    all
}

fn write_at(house: &House, producer: u64, sequence: u64) -> (Status, u64, bool) {
    write_behind(house, producer, sequence, None)
}

/// The same from a producer that skips what is in front, from a sequence on.
fn write_behind(house: &House, producer: u64, sequence: u64, from: Option<u64>) -> (Status, u64, bool) {
    let chunk = chunk_of(target(STREAM, 0, producer, sequence), 2, bytes_of(sequence) / 2);
    let mut peer = house.peer();
    let skips = from.map(|from| (0, Skip { from })).into_iter().collect();
    peer.send(&WriteChunks { skips, ..write_request(&[chunk], 0) });
    house.sink.sync();
    peer.run(house);
    let result = peer.frame().decode::<kera_protocol::WriteChunksResponse>().results[0];
    (result.status().unwrap(), result.base_ordinal, result.duplicate)
}

/// A lost owner's chunks: of producer 2, numbers 0 to `count`, two records each, from owner epoch 2.
fn lost_chunks(count: u64) -> Vec<Vec<u8>> {
    let house = house(1, &lost_options(1));
    owns(&house, 1, 2);
    (0..count).for_each(|sequence| assert_eq!(write_at(&house, 2, sequence), (Status::Ok, 2 * sequence, false)));
    chunks_of(&house.log, 0)
}

/// A node becomes the owner of what is lost.
fn take(house: &House, node: u32, epoch: u32, logs: &[EndedLog], cloud: &Cloud) -> Rebuild {
    house.broker.set_owner(epoch.into(), STREAM, X, owner(node, epoch, &[])).unwrap();
    house.broker.take_over(&[(STREAM, X, epoch)], logs, cloud).unwrap()
}

fn rebuild(house: &House, rebuild: &Rebuild, logs: &[EndedLog], cloud: &Cloud) -> RecoveryProgress {
    let progress = RecoveryProgress::default();
    house.broker.rebuild(rebuild, logs, cloud, &progress).unwrap();
    progress
}

/// All ordinals from a cursor on.
fn read_from(house: &House, from: Cursor) -> Vec<u64> {
    let (mut cursor, mut all) = (from, Vec::new());
    loop {
        let answers = house.peer().read(STREAM, cursor).answers;
        let Some((answer, data)) = answers.first() else { return all };
        assert_eq!(answer.status(), Some(Status::Ok), "at {cursor:?}");
        all.extend(ordinals(data));
        cursor = answer.next;
    }
}

fn up_to(records: u64) -> Vec<u64> {
    (0..records).collect()
}

#[test]
fn producers_go_on_at_once_and_readers_wait_for_what_is_rebuilt() {
    let cloud = Cloud::new(2);
    let chunks = lost_chunks(10);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(2).collect();
    cloud.put(LOST, 1, &[11, 12], &blocks);
    let logs = [ended(LOST, 5, &[11, 12])];
    let next = house(2, &lost_options(1));
    let before = Cursor { group: GroupId::new(2, 2), ..Cursor::default() };
    next.broker.set_owner(3, STREAM, X, owner(2, 3, &[])).unwrap();
    let mut early = next.peer();
    early.send(&read_request(&[entry(STREAM, 0, 0, before)], 60_000));
    assert!(early.frames().is_empty(), "who comes before it is open waits");
    let taken = take(&next, 2, 3, &logs, &cloud);
    assert_eq!((taken.lanes, taken.streamlets.len()), (1, 1));
    assert!(taken.bytes > 150_000, "{}", taken.bytes);
    // The last acknowledged one and one before it again, then the next.
    assert_eq!(write_at(&next, 2, 9), (Status::Ok, 18, true));
    assert_eq!(write_at(&next, 2, 6), (Status::Ok, 12, true));
    assert_eq!(write_at(&next, 2, 10), (Status::Ok, 20, false));
    assert_eq!(write_at(&next, 2, 12).0, Status::SequenceGap);
    assert_eq!(write_at(&next, 4, 0), (Status::Ok, 22, false));
    // New groups are read at once.
    assert_eq!(read_from(&next, Cursor { group: GroupId::new(3, 1), ..Cursor::default() }), [20, 21, 22, 23]);
    // Old ones are waited for.
    let mut first = next.peer();
    first.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    early.run(&next);
    first.run(&next);
    assert!(early.frames().is_empty() && first.frames().is_empty());
    let progress = rebuild(&next, &taken, &logs, &cloud);
    assert_eq!(progress.bytes_readable.load(Ordering::SeqCst), taken.bytes);
    assert_eq!(progress.passes.load(Ordering::SeqCst), 1);
    early.run(&next);
    first.run(&next);
    let answer: ReadChunksResponse = first.frame().decode();
    assert_eq!(ordinals(&answer.answers[0].1)[..2], [0, 1]);
    let answer: ReadChunksResponse = early.frame().decode();
    assert!(ordinals(&answer.answers[0].1)[0] > 1 && answer.answers[0].0.start.group == before.group);
    assert_eq!(read_from(&next, Cursor::default()), up_to(24));
    assert_eq!(chunks_of(&next.log, 0)[..10], chunks[..], "the same bytes at the same places");
}

/// A node that takes over more than may be on its way to its copies at a time, and less than may wait for that.
fn much_to_read(cloud: &Cloud) -> (House, Rebuild, Vec<EndedLog>, usize) {
    let chunks = lost_chunks(200);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(2).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    let logs = vec![ended(LOST, 100, &[11])];
    let next = house(2, &lost_options(1));
    next.sink.instant.store(false, Ordering::SeqCst);
    let taken = take(&next, 2, 3, &logs, cloud);
    let arena = next.log.stats().arena.bytes;
    assert!(arena / 16 < taken.bytes && taken.bytes < arena / 2, "{} bytes of {arena}", taken.bytes);
    (next, taken, logs, chunks.len())
}

#[test]
fn all_is_readable_before_any_of_it_must_have_its_new_copies() {
    let cloud = Cloud::new(1);
    let (next, taken, logs, chunks) = much_to_read(&cloud);
    let progress = RecoveryProgress::default();
    std::thread::scope(|scope| {
        let rebuilding = scope.spawn(|| next.broker.rebuild(&taken, &logs, &*cloud, &progress));
        while progress.bytes_readable.load(Ordering::SeqCst) < taken.bytes && !rebuilding.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(read_from(&next, Cursor::default()), up_to(2 * chunks as u64));
        assert!(!rebuilding.is_finished());
        assert!(next.sink.pending() < chunks, "as many as may be on their way at a time");
        while !rebuilding.is_finished() {
            next.sink.sync();
            std::thread::yield_now();
        }
        rebuilding.join().unwrap().unwrap();
    });
    assert_eq!(next.log.rebuilt_bytes(), 0);
}

#[test]
fn what_was_read_gets_copies_while_the_rest_cannot_be_had() {
    let cloud = Cloud::new(1);
    let (next, taken, logs, chunks) = much_to_read(&cloud);
    cloud.set(11, Trouble::SilentAfter(cloud.reads.load(Ordering::SeqCst) + 60));
    let mut before = 0;
    for _ in 0..3 {
        let progress = RecoveryProgress::default();
        next.broker.rebuild(&taken, &logs, &*cloud, &progress).expect_err("nobody has the rest");
        assert!(before < next.sink.pending() && next.sink.pending() < chunks);
        before = next.sink.pending();
    }
    next.sink.instant.store(true, Ordering::SeqCst);
    cloud.well();
    rebuild(&next, &taken, &logs, &cloud);
    assert_eq!(read_from(&next, Cursor::default()), up_to(2 * chunks as u64));
    assert_eq!(next.log.rebuilt_bytes(), 0);
}

#[test]
fn what_is_rebuilt_is_replicated_before_the_lost_logs_may_go() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(9);
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let logs = [ended(LOST, 1, &[11])];
    let next = house(2, &lost_options(1));
    next.sink.instant.store(false, Ordering::SeqCst);
    let taken = take(&next, 2, 3, &logs, &cloud);
    let mut waiting = next.peer();
    waiting.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    waiting.run(&next);
    assert!(waiting.frames().is_empty());
    let progress = RecoveryProgress::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rebuilding = scope.spawn(|| {
            let result = next.broker.rebuild(&taken, &logs, &*cloud, &progress);
            done.store(true, Ordering::SeqCst);
            result
        });
        while next.sink.pending() < chunks.len() && !rebuilding.is_finished() {
            std::thread::yield_now();
        }
        // Readers have it already, and who waited is told.
        waiting.run(&next);
        assert_eq!(ordinals(&waiting.frame().decode::<ReadChunksResponse>().answers[0].1)[..2], [0, 1]);
        assert_eq!(read_from(&next, Cursor::default()), up_to(18));
        assert!(!done.load(Ordering::SeqCst));
        next.sink.sync();
        rebuilding.join().unwrap().unwrap();
    });
    assert_eq!(next.sink.pending(), 0);
}

#[test]
fn what_lies_behind_a_hole_was_not_acknowledged_and_is_cut() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(12);
    // The lane went on in another log with its third segment; the tail of the first log did not arrive.
    let starts: Vec<usize> = (0..chunks.len()).filter(|at| place(&chunks[*at]).position == 128).collect();
    let (lost_from, other_from) = (starts[2] - 1, starts[2]);
    cloud.put(LOST, 1, &[11], &[&chunks[..lost_from]]);
    cloud.put(OTHER, 1, &[11], &[&chunks[other_from..]]);
    let logs = [ended(LOST, 1, &[11]), ended(OTHER, 1, &[11])];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    rebuild(&next, &taken, &logs, &cloud);
    let kept = lost_from as u64;
    assert_eq!(read_from(&next, Cursor::default()), up_to(2 * kept));
    // The producer was not answered for what is cut, and sends it again.
    assert_eq!(write_at(&next, 2, kept - 1), (Status::Ok, 2 * (kept - 1), true));
    assert_eq!(write_at(&next, 2, kept), (Status::Ok, 2 * kept, false));
    assert_eq!(read_from(&next, Cursor::default()), up_to(2 * kept + 2));
}

fn place(chunk: &[u8]) -> kera_format::BrokerPart {
    ChunkView::parse(chunk).unwrap().broker().unwrap()
}

#[test]
fn a_lane_over_two_logs_without_a_hole_is_whole() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(12);
    let second = (0..chunks.len()).filter(|at| place(&chunks[*at]).position == 128).nth(2).unwrap();
    cloud.put(LOST, 1, &[11], &[&chunks[..second]]);
    cloud.put(OTHER, 1, &[11], &[&chunks[second..]]);
    let logs = [ended(LOST, 1, &[11]), ended(OTHER, 1, &[11])];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    rebuild(&next, &taken, &logs, &cloud);
    assert_eq!(read_from(&next, Cursor::default()), up_to(24));
    assert_eq!(write_at(&next, 2, 7), (Status::Ok, 14, true));
    assert_eq!(write_at(&next, 2, 12), (Status::Ok, 24, false));
}

#[test]
fn a_lane_whose_oldest_segments_were_dropped_begins_later() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(40);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(1).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    cloud.backups[&11].release(&ReleaseBlocks { log: LOST, through_block: 25 });
    let list = cloud.backups[&11].list(&kera_protocol::ListReplicas { after: None, limit: 0 });
    let first_block = list.replicas[0].blocks[0].first;
    assert!(first_block > 10, "files of the front went, up to block {first_block}");
    let logs = [ended(LOST, 40, &[11])];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    rebuild(&next, &taken, &logs, &cloud);
    let all = read_from(&next, Cursor::default());
    // From the first segment that is there from its start.
    let whole = (first_block as usize - 1..40).find(|at| place(&chunks[*at]).position == 128).unwrap();
    assert_eq!(all, (2 * whole as u64..80).collect::<Vec<_>>());
    assert_eq!(write_at(&next, 2, 40), (Status::Ok, 80, false));
    let (first, ordinal) = lane_at(&next.log, 0).earliest();
    assert_eq!((first.group, ordinal), (place(&chunks[whole]).group, 2 * whole as u64));
}

#[test]
fn each_view_is_asked_where_it_is() {
    let cloud = Cloud::new(3);
    let chunks = lost_chunks(12);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(1).collect();
    cloud.put(LOST, 1, &[11], &blocks[..5]);
    // Behind the view's first block a backup has what came of it; the log ends before its last.
    for (block, chunk) in (6..).zip(&blocks[5..]) {
        let head = StoreHead { view: 2, view_first: 6, ..block_head(LOST, block, 1, &chunk[0]) };
        assert_eq!(cloud.store(12, &head, &chunk[0]), Answer::Stored(block));
        if block < 8 {
            assert_eq!(cloud.store(13, &head, &chunk[0]), Answer::Stored(block));
        }
    }
    let views = vec![EndedView { first: 1, backups: vec![11] }, EndedView { first: 6, backups: vec![13, 12] }];
    let logs = [EndedLog { log: LOST, views, end: 10, at_all: true }];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    assert_eq!(*cloud.asked.lock(), BTreeSet::from([11, 12, 13]), "13 does not have the last block");
    rebuild(&next, &taken, &logs, &cloud);
    assert_eq!(read_from(&next, Cursor::default()), up_to(20));
    assert_eq!(write_at(&next, 2, 10), (Status::Ok, 20, false), "what is behind the log's end was not acknowledged");
}

#[test]
fn backups_that_fail_or_lie_are_passed_over_and_named() {
    let chunks = lost_chunks(12);
    for trouble in [Trouble::Silent, Trouble::Lies, Trouble::Empty, Trouble::Flips, Trouble::SilentAfter(2)] {
        let cloud = Cloud::new(2);
        let blocks: Vec<&[Vec<u8>]> = chunks.chunks(2).collect();
        cloud.put(LOST, 1, &[11, 12], &blocks);
        let logs = [ended(LOST, 6, &[11, 12])];
        cloud.set(11, trouble);
        let next = house(2, &lost_options(1));
        let taken = take(&next, 2, 3, &logs, &cloud);
        rebuild(&next, &taken, &logs, &cloud);
        assert_eq!(read_from(&next, Cursor::default()), up_to(24), "{trouble:?}");
        assert!(cloud.asked.lock().contains(&12), "{trouble:?}");
        if matches!(trouble, Trouble::Flips | Trouble::SilentAfter(_)) {
            continue;
        }
        // With nobody else nothing is opened.
        let alone = house(3, &lost_options(1));
        alone.broker.set_owner(4, STREAM, X, owner(3, 4, &[])).unwrap();
        let logs = [ended(LOST, 6, &[11])];
        let failed = alone.broker.take_over(&[(STREAM, X, 4)], &logs, &*cloud).unwrap_err();
        assert!(failed.message.contains("backup 11"), "{trouble:?}: {failed}");
        assert_eq!(write_at(&alone, 2, 0).0, Status::NotOwner);
        cloud.well();
        let taken = alone.broker.take_over(&[(STREAM, X, 4)], &logs, &*cloud).unwrap();
        rebuild(&alone, &taken, &logs, &cloud);
        assert_eq!(read_from(&alone, Cursor::default()), up_to(24));
    }
}

#[test]
fn a_rebuild_that_fails_goes_on_when_it_is_called_again() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(30);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(1).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    let logs = [ended(LOST, 30, &[11])];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    for trouble in [Trouble::Silent, Trouble::SilentAfter(4), Trouble::Flips] {
        let reads = cloud.reads.load(Ordering::SeqCst);
        let trouble =
            if let Trouble::SilentAfter(more) = trouble { Trouble::SilentAfter(reads + more) } else { trouble };
        cloud.set(11, trouble);
        let failed = next.broker.rebuild(&taken, &logs, &*cloud, &RecoveryProgress::default()).unwrap_err();
        assert!(failed.message.contains("backup 11"), "{failed}");
        assert_eq!(write_at(&next, 4, 0).0, Status::Ok, "producers do not care");
    }
    // A reader that had read nearly all has what came, which is the end first; others wait for the rest.
    let at = chunks.iter().rposition(|chunk| place(chunk).position == 128).unwrap();
    let of_last = place(&chunks[at]);
    let last = Cursor { group: of_last.group, segment: of_last.segment, position: of_last.position };
    assert_eq!(read_from(&next, last), up_to(62)[2 * at..]);
    let mut peer = next.peer();
    assert!(read_from(&next, Cursor::default()).len() < 60);
    peer.send(&read_request(&[entry(STREAM, 0, 0, Cursor { group: GroupId::new(2, 7), ..Cursor::default() })], 60_000));
    assert!(peer.frames().is_empty());
    cloud.well();
    // Whoever has forgotten what was to be done asks once more.
    let again = next.broker.take_over(&[(STREAM, X, 3)], &logs, &*cloud).unwrap();
    assert!(again.bytes < taken.bytes && again.bytes > 0);
    rebuild(&next, &again, &logs, &cloud);
    assert_eq!(read_from(&next, Cursor::default()), up_to(62));
}

fn look(peer: &mut Peer, at: Start) -> Flow {
    peer.send(&Lookup { stream: STREAM, streamlet: X, lane: LaneId(0), at })
}

/// It was started again with what its backups had not answered for, in a new owner epoch; the same without a process that ends.
#[test]
fn the_end_of_a_lane_is_before_what_its_owner_appended_in_an_earlier_life() {
    let house = house(1, &lost_options(1));
    owns(&house, 1, 2);
    assert_eq!(write_at(&house, 2, 0), (Status::Ok, 0, false));
    house.sink.instant.store(false, Ordering::SeqCst);
    house.peer().send(&write_request(&[chunk_of(target(STREAM, 0, 2, 1), 1, 17_000)], 0));
    house.broker.set_owner(3, STREAM, X, owner(1, 3, &[(1, 9), (2, 1)])).unwrap();
    house.broker.open_streamlet(STREAM, X, 3, None).unwrap();
    let latest = |house: &House| {
        let mut peer = house.peer();
        look(&mut peer, Start::Latest);
        let found = peer.frame().decode::<LookupResult>();
        (found.cursor.group.epoch(), found.ordinal)
    };
    assert_eq!(latest(&house), (2, 2), "what is on its way to backups comes first");
    house.sink.sync();
    assert_eq!(latest(&house), (3, 3));
}

#[test]
fn places_and_times_are_told_rightly_or_waited_for() {
    let cloud = Cloud::new(1);
    let lost = house(1, &lost_options(1));
    owns(&lost, 1, 2);
    for sequence in 0..12 {
        lost.clock.set_now_ms(1_000_000 + sequence as i64 * 100);
        assert_eq!(write_at(&lost, 2, sequence).0, Status::Ok);
    }
    let chunks = chunks_of(&lost.log, 0);
    let place_of = |at: usize| {
        let part = place(&chunks[at]);
        Cursor { group: part.group, segment: part.segment, position: part.position }
    };
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let logs = [ended(LOST, 1, &[11])];
    let next = house(2, &lost_options(1));
    next.clock.set_now_ms(1_010_000);
    let taken = take(&next, 2, 3, &logs, &cloud);
    assert_eq!(write_at(&next, 2, 12).0, Status::Ok);
    let answer = |peer: &mut Peer| peer.frame().decode::<LookupResult>();
    let mut peer = next.peer();
    look(&mut peer, Start::Earliest);
    let earliest = answer(&mut peer);
    assert_eq!((earliest.cursor, earliest.ordinal, earliest.first_ordinal), (place_of(0), 0, 0));
    assert_eq!(earliest.durable_ordinal, 26);
    look(&mut peer, Start::Latest);
    assert_eq!(answer(&mut peer).ordinal, 26);
    // Behind all that is awaited.
    look(&mut peer, Start::TimeMs(1_010_000 + 1));
    assert_eq!(answer(&mut peer).ordinal, 26);
    // In the middle of it: nobody knows yet.
    let mut times = next.peer();
    look(&mut times, Start::TimeMs(1_000_000 + 650));
    let mut places = next.peer();
    look(&mut places, Start::Ordinal(9));
    times.run(&next);
    places.run(&next);
    assert!(times.frames().is_empty() && places.frames().is_empty());
    rebuild(&next, &taken, &logs, &cloud);
    times.run(&next);
    places.run(&next);
    assert_eq!(answer(&mut times).cursor, place_of(7));
    assert_eq!((answer(&mut places).cursor), place_of(4));
    look(&mut peer, Start::TimeMs(1_000_000 + 1_100));
    assert_eq!(answer(&mut peer).cursor, place_of(11));
}

#[test]
fn what_a_returning_node_did_not_get_acknowledged_is_gone() {
    let cloud = Cloud::new(1);
    let back = house(1, &lost_options(1));
    owns(&back, 1, 2);
    (0..8).for_each(|sequence| assert_eq!(write_at(&back, 2, sequence).0, Status::Ok));
    let acknowledged = chunks_of(&back.log, 0);
    cloud.put(LOST, 1, &[11], &[&acknowledged]);
    // It appends what never leaves it, is declared lost, another one takes over, and is lost as well.
    back.sink.instant.store(false, Ordering::SeqCst);
    let mut peer = back.peer();
    for sequence in 8..12 {
        let chunk = chunk_of(target(STREAM, 0, 2, sequence), 1, 17_000);
        peer.send(&write_request(&[chunk], 0));
    }
    assert_eq!(chunks_of(&back.log, 0).len(), 12);
    let logs = [ended(LOST, 1, &[11])];
    let second = house(2, &lost_options(1));
    let taken = take(&second, 2, 3, &logs, &cloud);
    rebuild(&second, &taken, &logs, &cloud);
    for sequence in 8..14 {
        assert_eq!(write_at(&second, 2, sequence), (Status::Ok, 2 * sequence, false));
    }
    let of_second = LogId { node: 2, epoch: 8, vlog: 0 };
    let chunks = chunks_of(&second.log, 0);
    // New ones first, as they are taken while old ones are rebuilt.
    cloud.put(of_second, 1, &[11], &[&chunks[8..], &chunks[..8]]);
    // Back to the first node, which still has its own.
    back.sink.instant.store(true, Ordering::SeqCst);
    let logs = [ended(of_second, 2, &[11])];
    let taken = take(&back, 1, 4, &logs, &cloud);
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    assert!(taken.bytes > bytes as u64, "all of it gets copies, also what is here: {} of {bytes}", taken.bytes);
    rebuild(&back, &taken, &logs, &cloud);
    assert_eq!(read_from(&back, Cursor::default()), up_to(28));
    assert_eq!(chunks_of(&back.log, 0), chunks);
    assert_eq!(write_at(&back, 2, 13), (Status::Ok, 26, true), "the last ones are those with the highest ordinals");
    assert_eq!(write_at(&back, 2, 14), (Status::Ok, 28, false));
}

#[test]
fn groups_that_a_node_holds_since_a_move_stay() {
    held_since_a_move(false, false);
}

/// Whatever the node did between the copy of its state and being put out.
#[test]
fn groups_that_a_node_holds_end_where_they_were_acknowledged() {
    held_since_a_move(true, false);
}

#[test]
fn groups_that_a_node_holds_go_if_what_follows_them_is_gone() {
    held_since_a_move(false, true);
}

/// The first node goes on appending what nobody acknowledges, or retention has taken what the second one wrote first.
fn held_since_a_move(goes_on: bool, front_is_gone: bool) {
    let cloud = Cloud::new(1);
    let (first, twin) = (house(1, &lost_options(1)), house(1, &lost_options(1)));
    for house in [&first, &twin] {
        owns(house, 1, 2);
        (0..8).for_each(|sequence| assert_eq!(write_at(house, 2, sequence).0, Status::Ok));
    }
    let from = if goes_on { &twin } else { &first };
    from.broker.let_go(STREAM, X).unwrap();
    let state = from.broker.handed_over(STREAM, X).unwrap().unwrap();
    if goes_on {
        first.sink.instant.store(false, Ordering::SeqCst);
        let chunk = chunk_of(target(STREAM, 0, 2, 8), 1, 17_000);
        first.peer().send(&write_request(&[chunk], 0));
        assert_eq!(chunks_of(&first.log, 0).len(), 9);
    }
    let second = house(2, &lost_options(1));
    for house in [&first, &second] {
        house.broker.set_owner(3, STREAM, X, owner(2, 3, &[(2, 1)])).unwrap();
    }
    second.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    (8..14).for_each(|sequence| assert_eq!(write_at(&second, 2, sequence).0, Status::Ok));
    let chunks = chunks_of(&second.log, 0);
    let next_segment = (1..chunks.len()).find(|at| place(&chunks[*at]).position == 128).unwrap();
    let begin = if front_is_gone { next_segment } else { 0 };
    cloud.put(LOST, 1, &[11], &[&chunks[begin..]]);
    let logs = [ended(LOST, 1, &[11])];
    first.sink.instant.store(true, Ordering::SeqCst);
    first.broker.set_owner(4, STREAM, X, owner(1, 4, &[(2, 1)])).unwrap();
    let taken = first.broker.take_over(&[(STREAM, X, 4)], &logs, &*cloud).unwrap();
    rebuild(&first, &taken, &logs, &cloud);
    let mut all = Vec::new();
    let lane = lane_at(&first.log, 0);
    let mut cursor = lane.earliest().0;
    loop {
        let read = lane.read(cursor, 1 << 20, true).unwrap();
        read.data.iter().for_each(|data| all.extend(ordinals(data)));
        cursor = read.next;
        if read.at_durable_end {
            break;
        }
    }
    let expected = if front_is_gone { (16 + 2 * begin as u64..28).collect() } else { up_to(28) };
    assert_eq!(all, expected);
    assert_eq!(write_at(&first, 2, 14), (Status::Ok, 28, false));
}

/// Of a streamlet that has moved retention took at its second owner, which is then lost, what a producer wrote last, and the first owner has either
/// let go of what it had or not.
#[test]
fn a_producer_that_wrote_last_where_nothing_is_left_skips_what_it_knows_to_be_there() {
    for holds in [false, true] {
        let cloud = Cloud::new(1);
        let first = house(1, &lost_options(1));
        owns(&first, 1, 2);
        (0..4).for_each(|sequence| assert_eq!(write_at(&first, 5, sequence).0, Status::Ok));
        (0..4).for_each(|sequence| assert_eq!(write_at(&first, 2, sequence).0, Status::Ok));
        first.broker.let_go(STREAM, X).unwrap();
        let state = first.broker.handed_over(STREAM, X).unwrap().unwrap();
        let second = house(2, &lost_options(1));
        second.broker.set_owner(3, STREAM, X, owner(2, 3, &[(2, 1)])).unwrap();
        second.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
        assert_eq!(write_at(&second, 5, 4).1, 16);
        (4..14).for_each(|sequence| assert_eq!(write_at(&second, 2, sequence).0, Status::Ok));
        let chunks = chunks_of(&second.log, 0);
        let begin = (1..chunks.len()).find(|at| place(&chunks[*at]).position == 128).unwrap();
        cloud.put(LOST, 1, &[11], &[&chunks[begin..]]);
        let logs = [ended(LOST, 1, &[11])];
        let next = if holds { first } else { house(3, &lost_options(1)) };
        let number = if holds { 1 } else { 3 };
        let older: &[(u32, u32)] = if holds { &[(2, 1)] } else { &[] };
        next.broker.set_owner(4, STREAM, X, owner(number, 4, older)).unwrap();
        let handed = HandedStates::from([((STREAM, X), state)]);
        next.broker.take_over_moved(&[(STREAM, X, 4)], &logs, &*cloud, &handed).unwrap();
        let told = write_at(&next, 5, 5);
        assert_eq!(told, (Status::SequenceGap, 0, false), "{holds}: nobody knows what it sent last");
        assert_eq!(write_behind(&next, 5, 5, Some(0)), (Status::Ok, 38, false), "{holds}");
        assert!(write_at(&next, 2, 13).2, "{holds}");
        assert_eq!(write_at(&next, 2, 15).0, Status::SequenceGap, "{holds}: it is known");
    }
}

/// Node 1, which owns the streamlet in epoch 3 and has rebuilt what a lost log has of it; the chunks of that log, and the log.
fn first_with_front(cloud: &Cloud) -> (House, Vec<Vec<u8>>, EndedLog) {
    let chunks = lost_chunks(8);
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let first = house(1, &lost_options(1));
    let front = ended(LOST, 1, &[11]);
    let taken = take(&first, 1, 3, std::slice::from_ref(&front), cloud);
    rebuild(&first, &taken, std::slice::from_ref(&front), cloud);
    (first, chunks, front)
}

/// Node 2, to which the streamlet has moved in epoch 4 from the node that had all of it.
fn moved_on_from(first: &House) -> House {
    first.broker.let_go(STREAM, X).unwrap();
    let state = first.broker.handed_over(STREAM, X).unwrap().unwrap();
    let second = house(2, &lost_options(1));
    for house in [first, &second] {
        house.broker.set_owner(4, STREAM, X, owner(2, 4, &[(2, 1)])).unwrap();
    }
    second.broker.open_streamlet(STREAM, X, 4, Some(&state)).unwrap();
    second
}

/// The front is in a log of its earlier life, the end in one of the node that it had moved to, and what is in between nowhere else.
#[test]
fn groups_that_a_node_holds_stay_between_others_that_come() {
    let cloud = Cloud::new(1);
    let (first, _, front) = first_with_front(&cloud);
    (8..12).for_each(|sequence| assert_eq!(write_at(&first, 2, sequence), (Status::Ok, 2 * sequence, false)));
    let second = moved_on_from(&first);
    (12..16).for_each(|sequence| assert_eq!(write_at(&second, 2, sequence), (Status::Ok, 2 * sequence, false)));
    let log = LogId { node: 2, ..LOST };
    cloud.put(log, 1, &[11], &[&chunks_of(&second.log, 0)]);
    let logs = [front, ended(log, 1, &[11])];
    first.broker.set_owner(5, STREAM, X, owner(1, 5, &[(2, 1)])).unwrap();
    let taken = first.broker.take_over(&[(STREAM, X, 5)], &logs, &*cloud).unwrap();
    rebuild(&first, &taken, &logs, &cloud);
    assert_eq!(read_from(&first, Cursor::default()), up_to(32));
    assert_eq!(write_at(&first, 2, 15), (Status::Ok, 30, true));
    assert_eq!(write_at(&first, 2, 16), (Status::Ok, 32, false));
}

/// A rebuild that was cut off in an earlier life has left a part of them in a log that is kept.
#[test]
fn groups_that_a_node_holds_stay_although_a_log_has_a_part_of_them() {
    part_in_a_log(|chunks| chunks[..3].to_vec());
}

/// Copies are made in no order, so it may have left their end without what is in front of it.
#[test]
fn groups_that_a_node_holds_stay_although_a_log_has_the_end_of_them() {
    part_in_a_log(|chunks| {
        let begins = (1..chunks.len()).rfind(|at| place(&chunks[*at]).position == 128);
        chunks[begins.expect("there are two segments")..].to_vec()
    });
}

fn part_in_a_log(of: impl Fn(&[Vec<u8>]) -> Vec<Vec<u8>>) {
    let cloud = Cloud::new(1);
    let (first, front, _) = first_with_front(&cloud);
    let second = moved_on_from(&first);
    (8..12).for_each(|sequence| assert_eq!(write_at(&second, 2, sequence), (Status::Ok, 2 * sequence, false)));
    let (part, log) = (LogId { epoch: LOST.epoch + 1, ..LOST }, LogId { node: 2, ..LOST });
    cloud.put(part, 1, &[11], &[&of(&front)]);
    cloud.put(log, 1, &[11], &[&chunks_of(&second.log, 0)]);
    let logs = [ended(part, 1, &[11]), ended(log, 1, &[11])];
    first.broker.set_owner(5, STREAM, X, owner(1, 5, &[(2, 1)])).unwrap();
    let taken = first.broker.take_over(&[(STREAM, X, 5)], &logs, &*cloud).unwrap();
    rebuild(&first, &taken, &logs, &cloud);
    assert_eq!(read_from(&first, Cursor::default()), up_to(24));
    assert_eq!(write_at(&first, 2, 12), (Status::Ok, 24, false));
}

/// It owns it, and gathers what another node held for it. Its log of an earlier life ends before what it wrote last of the same group, which has its copies in
/// its present log, and begins with what retention has taken here since.
#[test]
fn groups_that_an_owner_has_stay_although_retention_took_their_front() {
    let cloud = Cloud::new(1);
    let options = StreamOptions { retention_ms: Some(60_000), ..lost_options(1) };
    let first = house(1, &options);
    owns(&first, 1, 2);
    (0..8).for_each(|sequence| assert_eq!(write_at(&first, 2, sequence).0, Status::Ok));
    first.clock.advance_ms(1_000_000);
    (8..16).for_each(|sequence| assert_eq!(write_at(&first, 2, sequence).0, Status::Ok));
    let chunks = chunks_of(&first.log, 0);
    cloud.put(LOST, 1, &[11], &[&chunks[..12]]);
    assert!(first.log.retain(first.clock.now_ms()) > 0);
    let begin = lane_at(&first.log, 0).stats().first_ordinal;
    assert!((1..24).contains(&begin), "{begin}");
    let logs = [ended(LOST, 1, &[11])];
    first.broker.set_owner(4, STREAM, X, owner(1, 4, &[(2, 1)])).unwrap();
    let taken = first.broker.take_over(&[(STREAM, X, 4)], &logs, &*cloud).unwrap();
    rebuild(&first, &taken, &logs, &cloud);
    let earliest = lane_at(&first.log, 0).earliest().0;
    assert_eq!(read_from(&first, earliest), (begin..32).collect::<Vec<u64>>());
    assert_eq!(write_at(&first, 2, 15), (Status::Ok, 30, true));
    assert_eq!(write_at(&first, 2, 16), (Status::Ok, 32, false));
}

/// From the node it moved on to a third one, which is lost: what the second one wrote is with that one, and joins both.
#[test]
fn groups_that_a_node_holds_stay_before_those_that_another_node_holds() {
    let cloud = Cloud::new(1);
    let houses = [1, 2, 3].map(|node| house(node, &lost_options(1)));
    let (first, mut state) = (&houses[0], None);
    let mut older: Vec<(u32, u32)> = Vec::new();
    for (at, now) in houses.iter().enumerate() {
        let (node, epoch) = (at as u32 + 1, at as u32 + 2);
        houses.iter().for_each(|house| {
            house.broker.set_owner(epoch.into(), STREAM, X, owner(node, epoch, &older)).unwrap();
        });
        now.broker.open_streamlet(STREAM, X, epoch, state.as_ref()).unwrap();
        let from = 4 * at as u64;
        (from..from + 4).for_each(|sequence| assert_eq!(write_at(now, 2, sequence), (Status::Ok, 2 * sequence, false)));
        now.broker.let_go(STREAM, X).unwrap();
        state = now.broker.handed_over(STREAM, X).unwrap();
        older.push((epoch, node));
    }
    let log = LogId { node: 3, ..LOST };
    cloud.put(log, 1, &[11], &[&chunks_of(&houses[2].log, 0)]);
    let logs = [ended(log, 1, &[11])];
    older[2].1 = 1;
    first.broker.set_owner(5, STREAM, X, owner(1, 5, &older)).unwrap();
    let taken = first.broker.take_over(&[(STREAM, X, 5)], &logs, &*cloud).unwrap();
    rebuild(first, &taken, &logs, &cloud);
    let groups = lane_at(&first.log, 0).groups(GroupId::NONE, 100);
    let of = |epoch: u32| {
        let of_epoch: Vec<_> = groups.iter().filter(|group| group.id.epoch() == epoch).collect();
        Some((of_epoch.first()?.first_ordinal, of_epoch.last()?.next_ordinal))
    };
    assert_eq!([2, 3, 4].map(of), [Some((0, 8)), None, Some((16, 24))], "{groups:?}");
    assert_eq!(write_at(first, 2, 12), (Status::Ok, 24, false));
}

#[test]
fn a_reader_at_a_group_that_nothing_was_acknowledged_in_goes_on() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(4);
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let logs = [ended(LOST, 1, &[11])];
    let next = house(2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    rebuild(&next, &taken, &logs, &cloud);
    // The lost owner had opened one more group, and told a reader.
    let empty = Cursor { group: GroupId(place(&chunks[3]).group.0 + 1), segment: SegmentIndex(0), position: 128 };
    assert_eq!(read_from(&next, empty), [0; 0]);
    assert_eq!(write_at(&next, 2, 4), (Status::Ok, 8, false));
    assert_eq!(read_from(&next, empty), [8, 9]);
}

#[test]
fn retention_waits_until_all_is_rebuilt() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(12);
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let logs = [ended(LOST, 1, &[11])];
    let options = StreamOptions { retention_ms: Some(1), ..lost_options(1) };
    let next = house(2, &options);
    let taken = take(&next, 2, 3, &logs, &cloud);
    next.clock.advance_ms(1_000_000);
    assert_eq!(next.log.retain(next.clock.now_ms()), 0);
    rebuild(&next, &taken, &logs, &cloud);
    assert_eq!(write_at(&next, 2, 12), (Status::Ok, 24, false));
    assert!(next.log.retain(next.clock.now_ms()) > 0);
    assert_eq!(lane_at(&next.log, 0).stats().first_ordinal, 24);
}

#[test]
fn a_stream_that_is_deleted_meanwhile_is_not_rebuilt() {
    let cloud = Cloud::new(1);
    let chunks = lost_chunks(12);
    cloud.put(LOST, 1, &[11], &[&chunks]);
    let logs = [ended(LOST, 1, &[11])];
    let next = house(2, &lost_options(1));
    let used = |stats: LogStats| stats.arena.used_bytes;
    let before = used(next.log.stats());
    let taken = take(&next, 2, 3, &logs, &cloud);
    let mut peer = next.peer();
    peer.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    next.broker.stream_deleted(STREAM).unwrap();
    rebuild(&next, &taken, &logs, &cloud);
    peer.run(&next);
    let answer: ReadChunksResponse = peer.frame().decode();
    assert_eq!(answer.answers[0].0.status(), Some(Status::UnknownStream));
    assert_eq!(used(next.log.stats()), before);
}

/// The first owner is lost, then the second while it rebuilds, wherever it is; the third finds all that was acknowledged.
#[test]
fn a_new_owner_that_is_lost_while_it_rebuilds_loses_nothing() {
    for cut_behind in [0, 1, 2, 4, 7, 1000] {
        let cloud = Cloud::new(2);
        let first = Replicating::new(1, 7, &cloud, &[11, 12]);
        first.broker.set_owner(2, STREAM, X, owner(1, 2, &[])).unwrap();
        first.broker.open_streamlet(STREAM, X, 2, None).unwrap();
        let tickets: Vec<_> = (0..20).map(|sequence| first.append(sequence).ticket).collect();
        first.durable(tickets[19]);
        let mut logs = vec![first.ended(&[11, 12])];
        let second = Replicating::new(2, 8, &cloud, &[11, 12]);
        second.broker.set_owner(3, STREAM, X, owner(2, 3, &[])).unwrap();
        let taken = second.broker.take_over(&[(STREAM, X, 3)], &logs, &*cloud).unwrap();
        assert!(second.append(19).duplicate && second.append(15).base_ordinal == 30);
        let mut acknowledged = 20;
        for sequence in 20..24 {
            let appended = second.append(sequence);
            assert_eq!((appended.base_ordinal, appended.duplicate), (2 * sequence, false));
            second.durable(appended.ticket);
            acknowledged = sequence + 1;
        }
        let stored = second.link.stored.load(Ordering::SeqCst);
        second.link.cut_behind.store(stored + cut_behind, Ordering::SeqCst);
        if cut_behind == 1000 {
            second.broker.rebuild(&taken, &logs, &*cloud, &RecoveryProgress::default()).unwrap();
            // Now the old log is not needed.
            logs.clear();
        } else {
            // It dies while its copies do not come.
            let progress = RecoveryProgress::default();
            std::thread::scope(|scope| {
                let rebuilding = scope.spawn(|| second.broker.rebuild(&taken, &logs, &*cloud, &progress));
                let reached = || {
                    progress.bytes_readable.load(Ordering::SeqCst) >= taken.bytes
                        && second.link.stored.load(Ordering::SeqCst) >= (stored + cut_behind).min(stored + 5)
                };
                while !reached() && !rebuilding.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for backup in [11, 12] {
                    cloud.backups[&backup].fence(2, 8, &[]).unwrap();
                }
                second.link.cut_behind.store(u64::MAX, Ordering::SeqCst);
                second.clock.advance_ms(200);
                second.replicated.answered(11, 1, 1, Answer::Fenced(8));
                assert!(rebuilding.join().unwrap().is_err(), "a fenced node has rebuilt nothing");
            });
        }
        logs.push(second.ended(&[11, 12]));
        let third = Replicating::new(3, 9, &cloud, &[11, 12]);
        third.broker.set_owner(4, STREAM, X, owner(3, 4, &[])).unwrap();
        let taken = third.broker.take_over(&[(STREAM, X, 4)], &logs, &*cloud).unwrap();
        assert!(third.append(acknowledged - 1).duplicate, "behind {cut_behind}");
        let next = third.append(acknowledged);
        assert_eq!((next.base_ordinal, next.duplicate), (2 * acknowledged, false), "behind {cut_behind}");
        third.broker.rebuild(&taken, &logs, &*cloud, &RecoveryProgress::default()).unwrap();
        third.durable(next.ticket);
        let lane = lane_at(&third.log, 0);
        let (mut cursor, mut all) = (Cursor::default(), Vec::new());
        loop {
            let read = lane.read(cursor, 1 << 20, true).unwrap();
            read.data.iter().for_each(|data| all.extend(ordinals(data)));
            cursor = read.next;
            if read.at_durable_end {
                break;
            }
        }
        assert_eq!(all, up_to(2 * acknowledged + 2), "behind {cut_behind}");
        first.replicated.stop();
    }
}

/// Segments of many lanes lie mixed in a log, more than may be begun at a time: it is read until all of them are whole.
#[test]
fn lanes_that_lie_mixed_are_rebuilt_in_several_passes() {
    const LANES: u32 = 128;
    let cloud = Cloud::new(1);
    let lost = house(1, &lost_options(LANES));
    owns(&lost, 1, 2);
    for sequence in 0..3 {
        for producer in 2..2 + u64::from(LANES) {
            let chunk = chunk_of(target(STREAM, 0, producer, sequence), 1, 20_000);
            let mut peer = lost.peer();
            peer.send(&write_request(&[chunk], 0));
            peer.run(&lost);
        }
    }
    let lanes: Vec<Vec<Vec<u8>>> = (0..LANES).map(|lane| chunks_of(&lost.log, lane)).collect();
    let of_round = |round: usize| lanes.iter().filter_map(move |lane| lane.get(round).cloned());
    let mixed: Vec<Vec<u8>> = (0..lanes.iter().map(Vec::len).max().unwrap()).flat_map(of_round).collect();
    assert_eq!(mixed.len(), 3 * LANES as usize);
    let blocks: Vec<&[Vec<u8>]> = mixed.chunks(8).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    drop(lost);
    let logs = [ended(LOST, blocks.len() as u64, &[11])];
    let next = house(2, &lost_options(LANES));
    let taken = take(&next, 2, 3, &logs, &cloud);
    let progress = rebuild(&next, &taken, &logs, &cloud);
    assert!(progress.passes.load(Ordering::SeqCst) > 1, "{} bytes", taken.bytes);
    assert_eq!(progress.bytes_readable.load(Ordering::SeqCst), taken.bytes);
    for (lane, chunks) in (0..).zip(&lanes) {
        assert_eq!(chunks_of(&next.log, lane), *chunks, "lane {lane}");
    }
}

/// A backup that is asked by one thread. Whenever that waits what is on its way becomes durable, and what can leave memory does.
struct OneByOne<'a>(&'a Cloud, &'a House);

impl Copies for OneByOne<'_> {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.0.lane_states(backup, asked)
    }
    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.0.read_blocks(backup, asked)
    }
    fn threads(&self) -> usize {
        1
    }
    fn pause(&self) -> Duration {
        self.1.sink.sync();
        self.1.store.evict_all(&self.1.log);
        Duration::ZERO
    }
}

/// Of one streamlet all is read, and takes what memory there is until it has its copies. The other one needs room.
#[test]
fn a_rebuild_does_not_wait_for_the_room_that_it_has_taken_itself() {
    const BLOCK: u64 = 64 << 10;
    let (of_two, both) = (power(options(2, 1)), [X, StreamletId(1)]);
    let placed = |house: House, node: u32, epoch: u32| {
        house.stream(STREAM, of_two.clone());
        house.broker.join_cluster(CLUSTER, node);
        house.broker.place_stream(1, STREAM, vec![owner(99, 1, &[]); 2]).unwrap();
        for streamlet in both {
            house.broker.set_owner(2, STREAM, streamlet, owner(node, epoch, &[])).unwrap();
        }
        house.sink.instant.store(true, Ordering::SeqCst);
        house
    };
    let lost = placed(House::new(), 1, 2);
    both.into_iter().for_each(|streamlet| lost.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap());
    let written = |streamlet: u32, count: u64| {
        let of_stream = lost.log.stream(STREAM).unwrap();
        let lane = of_stream.streamlet(StreamletId(streamlet)).unwrap().lane(LaneId(0)).unwrap();
        for sequence in 0..count {
            let chunk = chunk_of(target(STREAM, streamlet, 2, sequence), 2, bytes_of(sequence) / 2);
            lane.append(&ChunkView::parse(&chunk).unwrap(), 5).unwrap();
        }
        chunks_in(&lost.log, StreamletId(streamlet), 0)
    };
    let (large, small) = (written(0, 300), written(1, 8));
    let large_bytes = lane_at(&lost.log, 0).groups(GroupId::NONE, usize::MAX).len() as u64 * BLOCK;
    let cloud = Cloud::new(1);
    let blocks: Vec<&[Vec<u8>]> = large.chunks(4).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    cloud.put(OTHER, 1, &[11], &[&small]);
    let logs = [ended(LOST, blocks.len() as u64, &[11]), ended(OTHER, 1, &[11])];

    let (room, others) = (StreamId(8), StreamId(9));
    let next = House::stored();
    [room, others].into_iter().for_each(|stream| next.stream(stream, options(1, 250)));
    let next = placed(next, 2, 3);
    let wanted = both.map(|streamlet| (STREAM, streamlet, 3));
    let copies = OneByOne(&cloud, &next);
    let taken = next.broker.take_over(&wanted, &logs, &copies).unwrap();
    assert!(2 * large_bytes < next.log.stats().arena.bytes, "all of it may wait for its copies");
    // Open segments take what memory there is; then as much is free as the large one needs, and not a block more.
    let fill = |stream: StreamId, lanes: u64| {
        let streamlet = next.log.stream(stream).unwrap().streamlet(X).unwrap().clone();
        let opens = |lane: &u64| {
            let chunk = chunk_of(target(stream, 0, *lane, 0), 1, 1_000);
            let lane = streamlet.lane(LaneId(*lane as u32)).unwrap();
            lane.append(&ChunkView::parse(&chunk).unwrap(), 5).is_ok()
        };
        (0..lanes).take_while(opens).count() as u64
    };
    assert_eq!(fill(room, large_bytes / BLOCK), large_bytes / BLOCK);
    assert!(fill(others, 250) < 250, "the arena is full");
    next.broker.stream_deleted(room).unwrap();
    next.broker.rebuild(&taken, &logs, &copies, &RecoveryProgress::default()).expect("its own copies make room");
    assert_eq!(next.log.rebuilt_bytes(), 0);
    assert!(taken.streamlets.iter().all(|name| {
        let stream = next.log.stream(name.stream).unwrap();
        stream.streamlet(name.streamlet).unwrap().awaited().is_empty()
    }));
}

/// Lets a thread end, also when what it serves has failed.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// More than three times as much as the arena, through a store that writes when it can.
#[test]
fn much_is_rebuilt_through_a_small_arena() {
    let cloud = Cloud::new(1);
    let lost = placed(House::with(config(), 128 << 20), 1, &lost_options(1));
    owns(&lost, 1, 2);
    let count = 3_400;
    (0..count).for_each(|sequence| assert_eq!(write_at(&lost, 2, sequence).0, Status::Ok));
    let chunks = chunks_of(&lost.log, 0);
    let blocks: Vec<&[Vec<u8>]> = chunks.chunks(8).collect();
    cloud.put(LOST, 1, &[11], &blocks);
    drop(lost);
    let logs = [ended(LOST, blocks.len() as u64, &[11])];
    let next = placed(House::stored(), 2, &lost_options(1));
    let taken = take(&next, 2, 3, &logs, &cloud);
    assert!(taken.bytes > 3 * next.log.stats().arena.bytes, "{} bytes", taken.bytes);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _until_here = SetAtEnd(&done);
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                if next.store.evict_all(&next.log) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        // Producers find room as well.
        for sequence in count..count + 200 {
            let chunk = chunk_of(target(STREAM, 0, 2, sequence), 2, bytes_of(sequence) / 2);
            let mut peer = next.peer();
            peer.send(&write_request(&[chunk], 600_000));
            while peer.is_blocked() {
                std::thread::yield_now();
                peer.run(&next);
            }
            next.sink.sync();
            peer.run(&next);
            let result = peer.frame().decode::<kera_protocol::WriteChunksResponse>().results[0];
            assert_eq!((result.status(), result.base_ordinal), (Some(Status::Ok), 2 * sequence));
            if sequence == count + 100 {
                rebuild(&next, &taken, &logs, &cloud);
            }
        }
    });
    next.store.evict_all(&next.log);
    let lane = lane_at(&next.log, 0);
    let mut expected = 0;
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        let id = SegmentId { stream: STREAM, streamlet: X, lane: LaneId(0), group: group.id, index: SegmentIndex(0) };
        let mut read = lane.read(Cursor { group: group.id, ..Cursor::default() }, 1 << 20, false).unwrap();
        if read.loading {
            next.store.bring(&next.log);
            read = lane.read(Cursor { group: group.id, ..Cursor::default() }, 1 << 20, false).unwrap();
        }
        for ordinal in read.data.iter().flat_map(|data| ordinals(data)) {
            assert_eq!(ordinal, expected);
            expected += 1;
        }
        next.log.evict(id);
    }
    assert_eq!(expected, 2 * (count + 200));
}
