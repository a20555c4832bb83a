//! `WriteChunks` against a real log: order, pipelining, duplicates, partial failures, a full arena, a disk that is slow,
//! full or gone.

use std::sync::atomic::Ordering;

use kera_format::chunk::Skip;
use kera_format::{Cursor, ProducerEpoch, ReplicationMode, StreamId, StreamOptions};
use kera_log::{LogConfig, SinkErrorKind};
use kera_protocol::{Op, Status, WriteChunks, WriteChunksResponse};
use kera_rpc::Flow;

use crate::common::*;

#[test]
fn chunks_are_appended_in_order_and_answered_at_once() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let answer = peer.write(&[chunk(10), chunk(20), chunk(30)]);
    assert_eq!(statuses(&answer), [Status::Ok; 3]);
    assert_eq!(answer.results.iter().map(|r| r.base_ordinal).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(answer.results[0].cursor.position, 128);
    let read = peer.read(STREAM, Cursor::default());
    assert_eq!(ordinals(&read.answers[0].1), [0, 1, 2]);
    assert_eq!(house.broker.metrics().read().chunks_appended, 3);
    assert_eq!(house.broker.metrics().read().records_appended, 3);
}

#[test]
fn an_empty_request_is_answered_with_no_results() {
    let house = House::new();
    let mut peer = house.peer();
    assert!(peer.write(&[]).results.is_empty());
}

#[test]
fn producers_write_to_the_lane_of_their_id() {
    let house = House::new();
    house.stream(STREAM, options(2, 3));
    let mut peer = house.peer();
    let chunks: Vec<_> = (1..=6).map(|producer| chunk_of(target(STREAM, 1, producer, 0), 1, 8)).collect();
    let lanes: Vec<u32> = peer.write(&chunks).results.iter().map(|result| result.lane.0).collect();
    assert_eq!(lanes, [1, 2, 0, 1, 2, 0]);
}

#[test]
fn answers_wait_for_the_disk_and_come_in_the_order_of_the_requests() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    house.stream(StreamId(8), options(1, 1));
    let mut peer = house.peer();
    peer.send(&write_request(&[chunk(10)], 0));
    // Later requests are appended meanwhile, and one that needs no disk does not overtake.
    peer.send(&write_request(&[chunk_of(target(StreamId(8), 0, 0, 0), 1, 8)], 0));
    peer.send(&write_request(&[chunk(10)], 0));
    assert!(peer.frames().is_empty());
    assert_eq!(house.sink.pending(), 2);
    assert!(peer.session.is_busy());
    assert!(peer.read(STREAM, Cursor::default()).answers.is_empty(), "not durable, not readable");

    house.sink.sync();
    peer.run(&house);
    let order: Vec<u64> = peer.frames().iter().map(|frame| frame.header.correlation).collect();
    assert_eq!(order, [1, 2, 3]);
    assert!(!peer.session.is_busy());
    assert_eq!(ordinals(&peer.read(STREAM, Cursor::default()).answers[0].1), [0, 1]);
}

#[test]
fn an_asynchronous_stream_answers_before_its_copies_and_shows_nothing_before() {
    let house = House::new();
    let asynchronous = StreamOptions { replication: 2, replication_mode: ReplicationMode::Async, ..options(1, 1) };
    house.stream(STREAM, asynchronous);
    house.stream(StreamId(8), StreamOptions { replication: 2, ..options(1, 1) });
    house.sink.is_close.store(true, Ordering::SeqCst);
    let mut peer = house.peer();
    assert_eq!(statuses(&peer.write(&[chunk(10), chunk(10)])), [Status::Ok; 2]);
    assert!(peer.read(STREAM, Cursor::default()).answers.is_empty(), "no copies, not readable");
    assert_eq!(house.broker.metrics().read().chunks_answered_early, 2);

    // Copies lag too far behind, and then those of another stream are waited for.
    house.sink.is_close.store(false, Ordering::SeqCst);
    peer.send(&write_request(&[chunk(10)], 0));
    house.sink.is_close.store(true, Ordering::SeqCst);
    peer.send(&write_request(&[chunk_of(target(StreamId(8), 0, 0, 0), 1, 8)], 0));
    assert!(peer.frames().is_empty());
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 2);
    assert_eq!(ordinals(&peer.read(STREAM, Cursor::default()).answers[0].1), [0, 1, 2]);
    assert_eq!(house.broker.metrics().read().chunks_answered_early, 2);
}

#[test]
fn a_chunk_sent_again_after_a_lost_answer_is_appended_once() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    let chunks: Vec<_> = (0..3).map(|sequence| chunk_of(target(STREAM, 0, 5, sequence), 2, 8)).collect();
    peer.send(&write_request(&chunks, 0));
    drop(peer);

    // Sent again before the first try is durable: the answer waits for that.
    let mut again = house.peer();
    again.send(&write_request(&chunks, 0));
    assert!(again.frames().is_empty());
    house.sink.sync();
    again.run(&house);
    let answer: WriteChunksResponse = again.frame().decode();
    assert!(answer.results.iter().all(|result| result.duplicate));
    assert_eq!(statuses(&answer), [Status::Ok; 3]);
    assert_eq!(answer.results.iter().map(|r| r.base_ordinal).collect::<Vec<_>>(), [0, 2, 4]);
    assert_eq!(ordinals(&again.read(STREAM, Cursor::default()).answers[0].1), [0, 1, 2, 3, 4, 5]);
    assert_eq!(house.broker.metrics().read().chunks_duplicate, 3);
}

#[test]
fn a_gap_and_a_fenced_producer_are_told_with_what_is_expected() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let first = chunk_of(target(STREAM, 0, 5, 0), 1, 8);
    let gap = chunk_of(target(STREAM, 0, 5, 2), 1, 8);
    let answer = peer.write(&[first, gap]);
    assert_eq!(statuses(&answer), [Status::Ok, Status::SequenceGap]);
    assert_eq!(answer.results[1].base_ordinal, 1);

    let mut later = target(STREAM, 0, 5, 0);
    later.producer_epoch = ProducerEpoch(3);
    let answer = peer.write(&[chunk_of(later, 1, 8), chunk_of(target(STREAM, 0, 5, 1), 1, 8)]);
    assert_eq!(statuses(&answer), [Status::Ok, Status::StaleEpoch]);
    assert_eq!(answer.results[1].base_ordinal, 3);
}

/// The lane cannot tell who was forgotten from who has overtaken its own first chunk. Whoever can skip is asked; whoever cannot goes on.
#[test]
fn a_lane_that_has_forgotten_producers_takes_no_chunk_in_front_of_one_that_was_refused() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let of = |producer, sequence| chunk_of(target(STREAM, 0, producer, sequence), 1, 8);
    let many = LogConfig::default().producers_per_lane_max as u64 + 1;
    for first in (1..=many).step_by(1_000) {
        let chunks: Vec<_> = (first..(first + 1_000).min(many + 1)).map(|producer| of(producer, 0)).collect();
        assert!(statuses(&peer.write(&chunks)).iter().all(|status| *status == Status::Ok));
    }
    // Its first chunk was damaged on the way.
    let mut damaged = of(many + 1, 0);
    *damaged.last_mut().unwrap() ^= 1;
    let answer = peer.write(&[damaged, of(many + 1, 1)]);
    assert_eq!(statuses(&answer), [Status::ChunkChecksum, Status::SequenceGap]);
    assert_eq!((answer.results[1].base_ordinal, answer.results[1].forgot), (0, true));
    let answer = peer.write(&[of(many + 1, 0), of(many + 1, 1), of(many + 1, 3)]);
    assert_eq!(statuses(&answer), [Status::Ok, Status::Ok, Status::SequenceGap]);
    assert_eq!(answer.results.iter().map(|result| result.forgot).collect::<Vec<_>>(), [false; 3]);
    // The first one was forgotten for it, and says behind what it goes on.
    assert_eq!(statuses(&peer.write(&[of(1, 1)])), [Status::SequenceGap]);
    peer.send(&WriteChunks { skips: vec![(0, Skip { from: 0 })], ..write_request(&[of(1, 1)], 0) });
    let answer: WriteChunksResponse = peer.frame().decode();
    assert_eq!(statuses(&answer), [Status::Ok]);
    // One that speaks version 1 cannot.
    assert_eq!(statuses(&peer.write_in(1, &[of(2, 7)])), [Status::Ok]);
}

/// Two chunks of two streamlets, of which one skips what is missing.
#[test]
fn numbers_are_skipped_where_they_are_what_is_missing() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let mut peer = house.peer();
    let answer = peer.write(&[0, 1].map(|streamlet| chunk_of(target(STREAM, streamlet, 5, 0), 1, 8)));
    assert_eq!(statuses(&answer), [Status::Ok; 2]);
    let sent = [0, 1].map(|streamlet| chunk_of(target(STREAM, streamlet, 5, 7), 1, 8));
    let skips = vec![(0, Skip { from: 1 }), (1, Skip { from: 2 })];
    let request = WriteChunks { skips, ..write_request(&sent, 0) };
    for again in [false, true] {
        peer.send(&request);
        let answer: WriteChunksResponse = peer.frame().decode();
        assert_eq!(statuses(&answer), [Status::Ok, Status::SequenceGap]);
        assert_eq!((answer.results[0].duplicate, answer.results[1].base_ordinal), (again, 1));
    }
    // If nothing is skipped such a chunk is one that comes too early.
    assert_eq!(statuses(&peer.write(&sent[1..])), [Status::SequenceGap]);
    // One that was skipped is not appended any more, and nobody hears where it is.
    let late = peer.write(&[0, 1].map(|streamlet| chunk_of(target(STREAM, streamlet, 5, 1), 1, 8)));
    assert_eq!(statuses(&late)[1], Status::Ok);
    assert_eq!((late.results[0].duplicate, late.results[1].duplicate), (true, false));
    assert_eq!(ordinals(&peer.read(STREAM, Cursor::default()).answers[0].1), [0, 1]);
}

#[test]
fn each_chunk_has_a_status_of_its_own() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let mut wrong_checksum = chunk(100);
    wrong_checksum[120] ^= 1;
    let mut kafka = chunk(100);
    kafka[48] = 1;
    let answer = peer.write(&[
        chunk(10),
        wrong_checksum,
        chunk_of(target(StreamId(99), 0, 0, 0), 1, 8),
        chunk_of(target(STREAM, 4, 0, 0), 1, 8),
        chunk(70 << 10),
        kafka,
        chunk_of(target(SYSTEM, 0, 0, 0), 1, 8),
        chunk(11),
    ]);
    use Status::*;
    let expected =
        [Ok, ChunkChecksum, UnknownStream, UnknownStreamlet, ChunkTooLarge, UnsupportedPayload, InvalidArgument, Ok];
    assert_eq!(statuses(&answer), expected);
    assert_eq!(answer.results[7].base_ordinal, 1, "what was refused has left no trace");
    assert_eq!(house.broker.metrics().read().chunks_refused, 6);
}

#[test]
fn a_request_with_a_wrong_layout_appends_nothing() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let good = chunk(10);
    let mut bad = chunk(10);
    bad[44] = b'X';
    let mut too_many_records = chunk(10);
    too_many_records[56..60].copy_from_slice(&1_000u32.to_le_bytes());
    let cases: [(&str, Vec<u8>, Status, bool); 7] = [
        ("more records than bytes", write_body(1, 0, &too_many_records), Status::ChunkMalformed, false),
        ("no body", vec![], Status::Malformed, true),
        ("count over bytes", write_body(1_000_000, 0, &good), Status::Malformed, true),
        ("one chunk too few", write_body(1, 0, &[good.clone(), good.clone()].concat()), Status::Malformed, true),
        (
            "cut in the middle",
            write_body(2, 0, &[good.clone(), good[..100].to_vec()].concat()),
            Status::ChunkMalformed,
            false,
        ),
        ("not a chunk", write_body(2, 0, &[good.clone(), bad].concat()), Status::ChunkMalformed, false),
        ("bytes and no chunk", write_body(0, 0, &good), Status::Malformed, true),
    ];
    for (name, body, status, closes) in cases {
        let mut peer = house.peer();
        let flow = peer.raw(Op::WriteChunks, &body);
        assert_eq!(peer.frame().status(), status, "{name}");
        assert_eq!(matches!(flow, Flow::Close(_)), closes, "{name}");
    }
    assert!(house.peer().read(STREAM, Cursor::default()).answers.is_empty());
}

/// An arena of 1 MiB, and a stream that fills it.
fn small_house() -> House {
    let house = House::with(config(), 1 << 20);
    house.stream(STREAM, options(1, 1));
    house
}

#[test]
fn a_full_arena_blocks_and_the_request_goes_on_where_it_stopped() {
    let house = small_house();
    house.stream(StreamId(8), options(1, 1));
    let mut other = house.peer();
    other.write(&vec![chunk_of(target(StreamId(8), 0, 0, 0), 1, 30 << 10); 6]);
    let mut peer = house.peer();
    let chunks: Vec<_> = (0..40).map(|sequence| chunk_of(target(STREAM, 0, 5, sequence), 1, 30 << 10)).collect();
    assert_eq!(peer.send(&write_request(&chunks, 60_000)), Flow::Blocked);
    assert!(peer.session.deadline_us().is_some());
    assert!(peer.frames().is_empty());
    // Other operations of the connection are answered by other connections; this one waits its turn.
    let before = house.broker.metrics().read().chunks_appended;
    assert!(before > 6 && before < 46, "{before}");
    // Room comes back when a stream is deleted, and the writer goes on.
    house.broker.stream_deleted(StreamId(8)).expect("a stream");
    peer.run(&house);
    assert!(peer.is_blocked());
    let after = house.broker.metrics().read().chunks_appended;
    assert!(after > before, "{after} > {before}");
    // The rest finds no room in time.
    house.clock.advance_ms(60_000);
    peer.run(&house);
    let answer: WriteChunksResponse = peer.frame().decode();
    let appended = answer.results.iter().take_while(|result| result.status == 0).count();
    assert_eq!(appended as u64, after - 6);
    assert!(answer.results[appended..].iter().all(|result| result.status() == Some(Status::ArenaFull)));
    assert_eq!(answer.results.len(), 40);
    // Sent again, what was appended is recognised: a retry does not duplicate.
    peer.send(&write_request(&chunks[..appended], 1));
    let again: WriteChunksResponse = peer.frame().decode();
    assert!(again.results.iter().rev().take(5).all(|result| result.duplicate));
}

#[test]
fn a_request_that_found_no_room_at_all_is_refused_as_a_whole() {
    let house = small_house();
    let mut peer = house.peer();
    assert_eq!(peer.send(&write_request(&vec![chunk(30 << 10); 40], 5)), Flow::Blocked);
    house.clock.advance_ms(5);
    peer.run(&house);
    peer.frames();
    assert_eq!(peer.send(&write_request(&[chunk(60 << 10)], 5)), Flow::Blocked);
    house.clock.advance_ms(5);
    peer.run(&house);
    let frame = peer.frame();
    assert_eq!(frame.status(), Status::ArenaFull);
    assert!(frame.error().retry_after_ms > 0);
    assert!(frame.status().retryable() && !frame.status().could_duplicate());
}

#[test]
fn what_is_not_durable_in_time_is_told_to_be_possibly_there() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    peer.send(&write_request(&[chunk(10), chunk_of(target(StreamId(99), 0, 0, 0), 1, 8)], 1_000));
    peer.send(&write_request(&[chunk(10)], 5_000));
    house.clock.advance_ms(1_000);
    peer.run(&house);
    let answer: WriteChunksResponse = peer.frame().decode();
    assert_eq!(statuses(&answer), [Status::Timeout, Status::UnknownStream]);
    assert!(Status::Timeout.could_duplicate());
    assert_eq!(house.broker.metrics().read().writes_timed_out, 1);
    // The next one in line has its own time.
    house.sink.sync();
    peer.run(&house);
    let answer: WriteChunksResponse = peer.frame().decode();
    assert_eq!(statuses(&answer), [Status::Ok]);
}

/// More chunks of a producer are under way than places are remembered. All are sent again while none is durable: none may be acknowledged.
#[test]
fn chunks_that_come_again_are_not_acknowledged_before_they_are_durable() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    let chunks: Vec<_> = (0..12).map(|sequence| chunk_of(target(STREAM, 0, 5, sequence), 1, 8)).collect();
    for attempt in 0..3 {
        peer.send(&write_request(&chunks, 1_000));
        assert!(peer.frames().is_empty(), "attempt {attempt}");
        house.clock.advance_ms(1_000);
        peer.run(&house);
        assert_eq!(statuses(&peer.frame().decode()), [Status::Timeout; 12], "attempt {attempt}");
    }
    house.sink.sync();
    peer.run(&house);
    let answer: WriteChunksResponse = peer.write(&chunks);
    assert_eq!(statuses(&answer), [&[Status::SequenceTooOld; 7][..], &[Status::Ok; 5]].concat());
    assert_eq!(house.broker.metrics().read().chunks_appended, 12);
}

#[test]
fn a_full_or_failing_disk_is_told_apart() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    *house.sink.sick.lock() = Some(SinkErrorKind::Full);
    house.stream(StreamId(8), options(1, 1));
    let elsewhere = chunk_of(target(StreamId(8), 0, 0, 0), 1, 8);
    // Streams that do not need the disk go on.
    assert_eq!(statuses(&peer.write(&[chunk(10), elsewhere])), [Status::DiskFull, Status::Ok]);
    // When nothing could be taken the answer tells what to do, and when to come back.
    peer.send(&write_request(&[chunk(10), chunk(10)], 0));
    let frame = peer.frame();
    assert_eq!((frame.status(), frame.error().retry_after_ms), (Status::DiskFull, 10));
    *house.sink.sick.lock() = Some(SinkErrorKind::Failed);
    assert_eq!(peer.refused(&write_request(&[chunk(10)], 0)), Status::DiskFailed);
    assert_eq!(house.broker.metrics().read().chunks_disk, 4);
    *house.sink.sick.lock() = None;
    peer.send(&write_request(&[chunk(10)], 0));
    house.sink.sync();
    peer.run(&house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
}

#[test]
fn a_disk_that_is_behind_holds_writers_back() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    peer.send(&write_request(&[chunk(10)], 0));
    *house.sink.sick.lock() = Some(SinkErrorKind::Behind);
    assert_eq!(peer.send(&write_request(&[chunk(10)], 2_000)), Flow::Blocked);
    *house.sink.sick.lock() = None;
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 1);
    house.sink.sync();
    peer.run(&house);
    assert_eq!(statuses(&peer.frame().decode()), [Status::Ok]);
    // And if it stays behind: nothing was appended, and a retry does not duplicate.
    *house.sink.sick.lock() = Some(SinkErrorKind::Behind);
    assert_eq!(peer.send(&write_request(&[chunk(10)], 2_000)), Flow::Blocked);
    house.clock.advance_ms(2_000);
    peer.run(&house);
    assert_eq!(peer.frame().status(), Status::Overloaded);
}

#[test]
fn requests_in_flight_are_bounded() {
    let config = kera_broker::BrokerConfig { in_flight_requests_max: 2, ..config() };
    let house = House::with(config, 16 << 20);
    house.stream(STREAM, power(options(1, 1)));
    let mut peer = house.peer();
    peer.send(&write_request(&[chunk(10)], 9_000));
    peer.send(&write_request(&[chunk(10)], 9_000));
    assert_eq!(peer.send(&write_request(&[chunk(10)], 9_000)), Flow::Blocked);
    assert_eq!(house.sink.pending(), 2, "the third is not appended");
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 2);
    assert!(!peer.is_blocked());
    peer.send(&write_request(&[chunk(10)], 9_000));
    assert_eq!(peer.send(&write_request(&[chunk(10)], 1_000)), Flow::Blocked);
    house.clock.advance_ms(1_000);
    peer.run(&house);
    assert!(!peer.is_blocked());
    house.sink.sync();
    peer.run(&house);
    let frames = peer.frames();
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[2].status(), Status::Overloaded, "told in its turn");
}

#[test]
fn a_deleted_stream_is_unknown_to_a_session_that_wrote_to_it() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    house.broker.stream_deleted(STREAM).expect("a stream");
    assert_eq!(statuses(&peer.write(&[chunk(10)])), [Status::UnknownStream]);
}

#[test]
fn a_stopping_broker_takes_no_more() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    house.broker.stop();
    assert_eq!(peer.refused(&write_request(&[chunk(10)], 0)), Status::ShuttingDown);
}
