//! A compacted segment of a lost owner that comes in pieces.

use kera_format::chunk::Chunks;
use kera_format::piece::{PIECE_HEADER_BYTES, PieceHeader, row_of};
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, GroupId};

use super::*;
use crate::segment::FIRST_CHUNK;

const RECORDS: u64 = 12;

/// What is there of a lane whose first segment was compacted: as it was appended, and the pieces of the chunks that are left.
struct Lost {
    state: LaneHandover,
    appended: Vec<Vec<u8>>,
    left: Vec<u64>,
    pieces: Vec<Vec<u8>>,
    awaited: AwaitedSegment,
}

fn options() -> StreamOptions {
    StreamOptions { durability: Durability::Power, segment_bytes_max: 2 << 20, ..super::options() }
}

fn node() -> (Node, Arc<Sink>) {
    let sink = Arc::new(Sink::default());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (arena, _) = Arena::create_or_attach(arena_config(&dir, 64 << 20)).unwrap();
    let log = Log::new(config(), arena);
    log.set_sinks(Arc::new(vec![Arc::clone(&sink) as Arc<dyn DurabilitySink>]));
    log.create_stream(STREAM, options()).unwrap();
    (Node { log, dir }, sink)
}

fn streamlet(node: &Node) -> Arc<Streamlet> {
    Arc::clone(node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap())
}

/// Of twelve records the first and the last and some of those between are left.
fn lost() -> Lost {
    lost_when(|header| header)
}

fn lost_when(rewritten: impl FnOnce(SegmentHeader) -> SegmentHeader) -> Lost {
    lost_behind(0, rewritten)
}

/// Its owner has it from somebody else, from this ordinal on.
fn lost_behind(first: u64, rewritten: impl FnOnce(SegmentHeader) -> SegmentHeader) -> Lost {
    let (node, sink) = node();
    if first > 0 {
        streamlet(&node).leave();
        streamlet(&node).receive(&[told_before(first)]).unwrap();
        streamlet(&node).open(1, false).unwrap();
    }
    fill(&node.lane(), 0..RECORDS, 100_000);
    sink.sync();
    streamlet(&node).leave();
    let state = LaneHandover { groups: Vec::new(), ..streamlet(&node).hand_over().remove(0) };
    // As they would lie in one segment.
    let id = SegmentId { group: GroupId::new(1, 1), ..node.lane().segment_id(GroupId::NONE, 0) };
    let mut position = FIRST_CHUNK;
    let mut appended = Vec::new();
    for number in 0..RECORDS {
        let (mut bytes, base_ordinal) = (chunk(number, 100_000), first + number);
        let part =
            BrokerPart { group: id.group, segment: id.index, base_ordinal, append_time_ms: 7, lane: id.lane, position };
        part.stamp(&mut bytes);
        position += bytes.len() as u32;
        appended.push(bytes);
    }
    let left = vec![1, 2, 4, 7, 8, 11];
    let bytes: Vec<u8> = left.iter().flat_map(|at| appended[*at as usize].iter().copied()).collect();
    let opened = SegmentHeader { id, capacity_bytes: 2 << 20, base_ordinal: first, created_ms: 7, flags: 0 };
    let header = rewritten(opened.rewritten(5_000, true).expect("the first time"));
    let head = u64::from(FIRST_CHUNK) + bytes.len() as u64;
    let progress = SegmentProgress {
        head,
        durable_head: head,
        next_ordinal: first + RECORDS,
        state: SegmentState::Closed,
        chunk_count: left.len() as u32,
        first_append_ms: 7,
        last_append_ms: 7,
        ..SegmentProgress::empty(first)
    };
    let row = row_of(&header, &progress, &bytes).expect("a row");
    let pieces: Vec<Vec<u8>> = Chunks::new(&row).map(|piece| piece.unwrap().as_bytes().to_vec()).collect();
    assert_eq!(pieces.len(), 3);
    let (piece, _) = PieceHeader::parse(ChunkView::parse(&pieces[0]).unwrap().payload()).unwrap();
    let awaited = AwaitedSegment {
        group: id.group,
        index: id.index,
        end: piece.row_end,
        base_ordinal: first,
        next_ordinal: first + RECORDS,
        rewrite: piece.rewrite(),
    };
    Lost { state, appended, left, pieces, awaited }
}

/// What is told of a lane that ends at this ordinal: nothing of producers, but of 9, which has sent three chunks.
fn told_before(next_ordinal: u64) -> LaneHandover {
    let last = ChunkPlace { sequence: 2, base_ordinal: next_ordinal / 2, cursor: Cursor::default() };
    let producer = ProducerHandover {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        sequence: 2,
        chunks: vec![last],
    };
    LaneHandover {
        lane: LaneId(0),
        next_ordinal,
        last_append_ms: 0,
        forgot: false,
        hole_end: 0,
        producers: vec![producer],
        groups: Vec::new(),
    }
}

fn taken_over(lost: &Lost) -> (Node, Arc<Sink>) {
    taken_over_behind(&[], lost)
}

fn taken_over_behind(before: &[LaneHandover], lost: &Lost) -> (Node, Arc<Sink>) {
    let (next, sink) = node();
    next.log.stream(STREAM).unwrap().place_elsewhere();
    streamlet(&next).receive(before).unwrap();
    let segments = vec![lost.awaited];
    streamlet(&next).receive_lost(&[LostLane { state: lost.state.clone(), segments }]).unwrap();
    streamlet(&next).open(5, false).unwrap();
    (next, sink)
}

/// A piece with something else in its payload, sealed and stamped as if it were meant.
fn changed(piece: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let view = ChunkView::parse(piece).unwrap();
    let (header, part) = (*view.header(), view.broker().unwrap());
    let mut bytes = vec![0; CHUNK_HEADER_BYTES];
    bytes.extend_from_slice(view.payload());
    change(&mut bytes[CHUNK_HEADER_BYTES..]);
    let target = ChunkTarget { stream: header.stream, streamlet: header.streamlet, ..ChunkTarget::default() };
    let count = header.record_count;
    seal_in_place(&mut bytes, &target, header.kind, Compression::None, count, header.max_timestamp_ms).unwrap();
    BrokerPart { ..part }.stamp(&mut bytes);
    bytes
}

#[test]
fn pieces_may_come_in_any_order_and_what_is_not_of_their_row_does_not_count() {
    let lost = lost();
    let (next, sink) = taken_over(&lost);
    let read = |from| next.lane().read(from, 16 << 20, true).unwrap();
    // As it was appended, and of another rewriting.
    for chunk in &lost.appended {
        assert_eq!(next.log.rebuild_chunk(chunk).unwrap(), Rebuilt::NotAwaited);
    }
    let other = changed(&lost.pieces[0], |payload| payload[1] += 1);
    assert_eq!(next.log.rebuild_chunk(&other).unwrap(), Rebuilt::NotAwaited);
    for (at, piece) in lost.pieces.iter().enumerate().rev() {
        assert!(read(start()).loading && read(start()).data.is_empty());
        let whole = next.log.rebuild_chunk(piece).unwrap();
        match at {
            0 => assert_eq!(whole, Rebuilt::Whole { bytes: lost.awaited.end }),
            _ => {
                assert_eq!(whole, Rebuilt::Put);
                assert_eq!(next.log.rebuild_chunk(piece).unwrap(), Rebuilt::NotAwaited, "a second time");
            }
        }
    }
    assert_eq!(ordinals(&read(start())), lost.left);
    // Cursors point to where chunks lay when they were appended.
    let at = |ordinal: usize| {
        let part = ChunkView::parse(&lost.appended[ordinal]).unwrap().broker().unwrap();
        Cursor { group: part.group, segment: part.segment, position: part.position }
    };
    assert_eq!(ordinals(&read(at(5))), [7, 8, 11]);
    assert_eq!(ordinals(&read(at(8))), [8, 11]);
    // A retry is known, and what comes goes on behind it.
    assert!(append(&next.lane(), &chunk(11, 100_000), 20).unwrap().duplicate);
    assert_eq!(append(&next.lane(), &chunk(12, 100), 20).unwrap().base_ordinal, 12);
    // Its copies are the same pieces.
    sink.pending.lock().clear();
    streamlet(&next).copy_rebuilt().unwrap().expect("one segment");
    assert_eq!(sink.sync(), lost.pieces);
}

/// Its owner had forgotten producers when it rewrote the segment. That was a lane that begins with the first record, so nothing else says it.
#[test]
fn a_lane_that_is_rebuilt_from_what_does_not_tell_of_all_producers_has_forgotten_some() {
    for has_forgotten in [false, true] {
        let lost = lost_when(|header| if has_forgotten { header.forgotten() } else { header });
        let (next, _) = taken_over(&lost);
        for piece in &lost.pieces {
            next.log.rebuild_chunk(piece).unwrap();
        }
        let other = chunk_of(9, 0, 4, 100);
        let refused = next.lane().append_skipping(&ChunkView::parse(&other).unwrap(), 20, None).unwrap_err();
        let gap = AppendError::SequenceGap { producer: 9, found: 4, expected: 0, forgot: has_forgotten };
        assert_eq!(refused, gap);
    }
}

/// The lost owner was told of producer 9, took another chunk of it and had forgotten it when it rewrote the segment: its next owner is told of it by the
/// owner before alone.
#[test]
fn a_lane_that_is_rebuilt_from_what_does_not_tell_of_all_producers_knows_none_as_it_was_before() {
    for has_forgotten in [false, true] {
        let mut lost = lost_behind(100, |header| if has_forgotten { header.forgotten() } else { header });
        lost.state.producers.retain(|one| one.producer_id.0 == 7);
        let (next, _) = taken_over_behind(&[told_before(100)], &lost);
        let says = |sequence| {
            let sent = chunk_of(9, 0, sequence, 100);
            next.lane().append_skipping(&ChunkView::parse(&sent).unwrap(), 20, None)
        };
        let gap = |found, expected, forgot| Err(AppendError::SequenceGap { producer: 9, found, expected, forgot });
        assert_eq!(says(4), gap(4, 3, false), "it is as it was told");
        for piece in &lost.pieces {
            next.log.rebuild_chunk(piece).unwrap();
        }
        assert!(append(&next.lane(), &chunk(11, 100_000), 20).unwrap().duplicate, "it wrote there");
        if has_forgotten {
            assert_eq!((says(3), says(4)), (gap(3, 0, true), gap(4, 0, true)));
        } else {
            assert_eq!(says(3).map(|appended| appended.base_ordinal), Ok(112));
        }
    }
}

/// The lost owner had forgotten producer 9 when it rewrote the segment, and took what that had sent last: its next owner knows it as it was in front of that.
#[test]
fn a_producer_may_have_gone_on_behind_what_is_left_of_it_in_a_lane_that_does_not_tell_of_all() {
    for has_forgotten in [false, true] {
        let mut lost = lost_when(|header| if has_forgotten { header.forgotten() } else { header });
        lost.state.producers.extend(told_before(8).producers);
        let (next, _) = taken_over(&lost);
        for piece in &lost.pieces {
            next.log.rebuild_chunk(piece).unwrap();
        }
        let sends = |sequence| append(&next.lane(), &chunk_of(9, 0, sequence, 100), 20);
        let goes_on = chunk_of(9, 0, 5, 100);
        let refused = next.lane().append_skipping(&ChunkView::parse(&goes_on).unwrap(), 20, None).unwrap_err();
        let gap = AppendError::SequenceGap { producer: 9, found: 5, expected: 3, forgot: has_forgotten };
        assert_eq!(refused, gap);
        assert!(sends(2).unwrap().duplicate, "what is left of it is known");
        assert_eq!(sends(5).is_ok(), has_forgotten);
        let again = sends(7).unwrap_err();
        assert!(
            matches!(again, AppendError::SequenceGap { forgot: false, .. }),
            "{again}: it is known now, or all of it is"
        );
    }
}

#[test]
fn pieces_that_are_not_what_they_promise_are_awaited_again() {
    let lost = lost();
    let (next, _) = taken_over(&lost);
    let mut flipped = lost.pieces[1].clone();
    flipped[5_000] ^= 1;
    assert!(matches!(next.log.rebuild_chunk(&flipped), Err(RebuildError::Format(_))));
    assert_eq!(next.log.rebuild_chunk(&lost.pieces[0]).unwrap(), Rebuilt::Put);
    // Of the same rewriting, but it says something else of the segment.
    let other_count = changed(&lost.pieces[1], |payload| payload[24] += 1);
    let error = next.log.rebuild_chunk(&other_count).unwrap_err();
    assert!(error.to_string().contains("not of the row"), "{error}");
    let other_end = changed(&lost.pieces[1], |payload| payload[8] ^= 8);
    assert!(matches!(next.log.rebuild_chunk(&other_end), Err(RebuildError::Conflict { .. })));
    // Other bytes, which only the whole segment shows to be wrong.
    let other_bytes = changed(&lost.pieces[1], |payload| payload[PIECE_HEADER_BYTES + 5_000] ^= 1);
    assert_eq!(next.log.rebuild_chunk(&other_bytes).unwrap(), Rebuilt::Put);
    let error = next.log.rebuild_chunk(&lost.pieces[2]).unwrap_err();
    assert!(error.to_string().contains("not those that its pieces promise"), "{error}");
    assert!(next.lane().read(start(), 1 << 20, true).unwrap().loading);
    for piece in &lost.pieces {
        next.log.rebuild_chunk(piece).unwrap();
    }
    assert_eq!(ordinals(&next.lane().read(start(), 16 << 20, true).unwrap()), lost.left);
}

#[test]
fn a_kill_leaves_a_rebuilt_compacted_segment_whole() {
    let lost = lost();
    let (next, _) = taken_over(&lost);
    for piece in &lost.pieces {
        next.log.rebuild_chunk(piece).unwrap();
    }
    let dir = Arc::clone(&next.dir);
    drop(next);
    let (_, attach) = Arena::create_or_attach(arena_config(&dir, 64 << 20)).unwrap();
    let Attach::Attached { segments, .. } = attach else { panic!("nothing is there") };
    let [found] = &segments[..] else { panic!("{segments:?}") };
    assert_eq!(found.cut, None);
    assert!(found.segment.is_settled() && found.segment.header().is_compacted());
    assert_eq!((found.segment.base_ordinal(), found.segment.next_ordinal()), (0, RECORDS));
}
