//! Frames, versions, status codes, and the bodies that are used in place.

use bytes::Bytes;
use kera_format::chunk::{ChunkTarget, Skip};
use kera_format::{ChunkBuilder, Compression, Cursor, GroupId, LaneId, Record, SegmentIndex};
use kera_protocol::frame::{FRAME_BYTES_MAX, FRAME_HEADER_BYTES, begin_frame, finish_frame};
use kera_protocol::read::{ANSWER_END_OF_GROUP, ANSWER_MORE, write_answers};
use kera_protocol::write::{parse_results, write_front, write_head};
use kera_protocol::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn request() -> FrameHeader {
    FrameHeader { frame_bytes: 24, op: Op::Hello as u16, version: 1, flags: 0, correlation: 99, status: 0 }
}

fn refused(change: impl Fn(&mut [u8; FRAME_HEADER_BYTES])) -> String {
    let mut bytes = request().to_bytes();
    change(&mut bytes);
    FrameHeader::parse(&bytes, 1_000).expect_err("a bad header").to_string()
}

#[test]
fn bad_headers_are_refused_by_the_field_that_is_bad() {
    assert_eq!(refused(|h| h[0] = 23), "frame.frame_bytes is 23, allowed is 24 to 1000");
    assert_eq!(refused(|h| h[1] = 4), "frame.frame_bytes is 1048, allowed is 24 to 1000");
    assert_eq!(refused(|h| h[7] = 2), "frame.flags is 2, allowed is 0 (request), 1 (response) or 3 (pushed response)");
    assert_eq!(refused(|h| h[7] = 4), "frame.flags is 4, allowed is 0 (request), 1 (response) or 3 (pushed response)");
    assert_eq!(refused(|h| h[16] = 1), "frame.status is 1, allowed is 0 in a request");
    assert_eq!(refused(|h| h[18] = 1), "frame.reserved is 1, allowed is 0");
    assert_eq!(refused(|h| h[23] = 1), "frame.reserved is 1099511627776, allowed is 0");
}

#[test]
fn a_frame_over_the_limit_is_told_apart_from_a_malformed_one() {
    let mut bytes = request().to_bytes();
    bytes[2] = 1;
    let error = FrameHeader::parse(&bytes, 1_000).expect_err("too large");
    assert_eq!(error.status(), Status::FrameTooLarge);
    bytes[2] = 0;
    bytes[18] = 1;
    assert_eq!(FrameHeader::parse(&bytes, 1_000).expect_err("malformed").status(), Status::Malformed);
}

#[test]
fn a_header_that_is_cut_is_an_error() {
    let bytes = request().to_bytes();
    for length in 0..FRAME_HEADER_BYTES {
        assert!(FrameHeader::parse(&bytes[..length], FRAME_BYTES_MAX).is_err());
    }
    assert_eq!(FrameHeader::parse_length(&bytes[..4], FRAME_BYTES_MAX), Ok(24));
    assert!(FrameHeader::parse_length(&bytes[..3], FRAME_BYTES_MAX).is_err());
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(
        body in 0u32..1_000_000, op in any::<u16>(), version in any::<u8>(), correlation in any::<u64>(),
        (flags, status) in prop_oneof![Just((0u8, 0u16)), (prop::sample::select(&[1u8, 3][..]), any::<u16>())],
    ) {
        let header = FrameHeader { frame_bytes: 24 + body, op, version, flags, correlation, status };
        prop_assert_eq!(FrameHeader::parse(&header.to_bytes(), FRAME_BYTES_MAX), Ok(header));
        prop_assert_eq!(header.body_bytes(), body as usize);
        prop_assert_eq!((header.is_response(), header.is_push()), (flags != 0, flags == 3));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = FrameHeader::parse(&bytes, FRAME_BYTES_MAX);
        if let Ok(view) = WriteChunksView::parse(1, &bytes) {
            prop_assert!(view.chunks().take_while(Result::is_ok).count() <= view.chunk_count() as usize);
        }
        if let Ok(results) = parse_results(&bytes) {
            prop_assert!(results.count() <= bytes.len());
        }
        if let Ok(view) = ReadChunksView::parse(&bytes) {
            prop_assert_eq!(view.answers().map(|(_, data)| data.len()).sum::<usize>(), view.data_bytes());
        }
    }
}

#[test]
fn a_response_repeats_what_was_asked() {
    let mut out = vec![1, 2, 3];
    encode_response(&request(), &Empty, &mut out);
    let header = FrameHeader::parse(&out[3..], FRAME_BYTES_MAX).expect("a header");
    assert_eq!(header, FrameHeader { flags: 1, ..request() });

    out.clear();
    let error = ErrorBody { message: "no".into(), retry_after_ms: 5 };
    encode_error(&request(), Status::Overloaded, &error, &mut out);
    let header = FrameHeader::parse(&out, FRAME_BYTES_MAX).expect("a header");
    assert_eq!((header.status, header.correlation), (Status::Overloaded as u16, 99));
    assert_eq!(ErrorBody::decode(&out[FRAME_HEADER_BYTES..]), Ok(error));

    out.clear();
    let start = encode_push(&request(), Status::Ok, &mut out);
    finish_frame(&mut out, start, 100);
    let header = FrameHeader::parse(&out, FRAME_BYTES_MAX).expect("a header");
    assert!(header.is_push() && header.is_response());
    assert_eq!(header.body_bytes(), 100);
}

#[test]
fn versions_are_agreed_on_downwards() {
    let op = Op::Hello;
    assert_eq!(op.common_version(1, 1), Some(1));
    assert_eq!(op.common_version(1, 9), Some(op.version_max()));
    assert_eq!(op.common_version(2, 9).is_some(), op.version_max() >= 2);
    assert_eq!(op.common_version(0, 0), None);

    let mut response = HelloResponse::any_spoken();
    assert_eq!(response.common_version(Op::WriteChunks), Some(2));
    response.ops.retain(|range| range.op != Op::WriteChunks as u16);
    assert_eq!(response.common_version(Op::WriteChunks), None);
}

trait AnySpoken {
    fn any_spoken() -> Self;
}
impl AnySpoken for HelloResponse {
    fn any_spoken() -> Self {
        use kera_protocol::codec::Wire;
        let response = HelloResponse::sample(&mut spec::Source::new(&[]));
        HelloResponse { ops: HelloResponse::ops_spoken(), ..response }
    }
}

#[test]
fn numbers_of_operations_and_statuses_are_unique_and_found_again() {
    let mut seen = HashSet::new();
    for op in Op::ALL {
        assert!(seen.insert(*op as u16));
        assert_eq!(Op::from_u16(*op as u16), Some(*op));
        assert_eq!(format!("{op:?}"), op.name());
        assert!(op.check_version(op.version_max()).is_ok());
    }
    assert_eq!((Op::from_u16(0), Op::from_u16(9_999)), (None, None));
    seen.clear();
    for status in Status::ALL {
        assert!(seen.insert(*status as u16));
        assert_eq!(Status::from_u16(*status as u16), Some(*status));
        assert_eq!(format!("{status:?}"), status.name());
        assert!(!status.hint().is_empty());
        // Whoever gets an error that is not worth a retry must be able to believe that nothing happened.
        assert!(status.retryable() || !status.could_duplicate(), "{status}");
    }
    assert_eq!(Status::from_u16(9_999), None);
}

fn chunk(value: &[u8]) -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(value));
    builder.seal(&ChunkTarget::default(), Compression::None).expect("a chunk")
}

fn write_body(count: u32, chunks: &[&[u8]]) -> Vec<u8> {
    [&write_head(count, 1_500)[..], &chunks.concat()].concat()
}

#[test]
fn chunks_of_a_write_are_given_in_place_and_aligned() {
    let (a, b) = (chunk(b"one"), chunk(b"twenty"));
    let mut frame = Vec::new();
    let start = begin_frame(&FrameHeader { op: Op::WriteChunks as u16, version: 1, ..request() }, &mut frame);
    frame.extend(write_body(2, &[&a, &b]));
    finish_frame(&mut frame, start, 0);
    let body = &frame[FRAME_HEADER_BYTES..];
    let view = WriteChunksView::parse(1, body).expect("a body");
    assert_eq!((view.chunk_count(), view.timeout_ms()), (2, 1_500));
    let mut chunks = view.chunks();
    let first = chunks.next().expect("a chunk").expect("a good one");
    assert_eq!(first.as_bytes().as_ptr(), body[8..].as_ptr());
    assert_eq!((first.as_bytes().as_ptr() as usize - frame.as_ptr() as usize) % 8, 0);
    assert_eq!((chunks.index(), chunks.offset()), (1, a.len()));

    let mut resumed = view.chunks_from(chunks.index(), chunks.offset());
    assert_eq!(resumed.next().expect("a chunk").expect("a good one").as_bytes(), b);
    assert!(resumed.next().is_none());
}

#[test]
fn a_write_with_a_wrong_count_or_a_bad_chunk_is_an_error_at_that_chunk() {
    let (a, mut b) = (chunk(b"one"), chunk(b"two"));
    let errors = |body: &[u8]| match WriteChunksView::parse(1, body) {
        Err(error) => vec![Err(error)],
        Ok(view) => view.chunks().map(|chunk| chunk.map(|_| ())).collect(),
    };
    let too_few = errors(&write_body(1, &[&a, &b]));
    assert_eq!(too_few, [Ok(()), Err(ProtocolError::Trailing { bytes: b.len() })]);
    let too_many = errors(&write_body(3, &[&a, &b]));
    assert_eq!(too_many, [Err(ProtocolError::Count { field: "WriteChunks.chunk_count", count: 3, fits: 2 })]);
    assert_eq!(errors(&write_body(0, &[])), []);
    b[44] = 0;
    let bad = errors(&write_body(2, &[&a, &b]));
    assert!(matches!(bad[..], [Ok(()), Err(ProtocolError::Chunk { index: 1, .. })]), "{bad:?}");
    assert_eq!(bad[1].as_ref().expect_err("a bad chunk").status(), Status::ChunkMalformed);
    assert!(WriteChunksView::parse(1, &[0; 7]).is_err());
    assert!(WriteChunksView::parse(3, &write_body(0, &[])).is_err());
}

/// Chunks are where they were, and skips are found by their chunks.
#[test]
fn skips_come_in_front_of_the_chunks() {
    let (a, b) = (chunk(b"one"), chunk(b"twenty"));
    let skip = Skip { from: 1 << 40 };
    let front = |skips: &[(u32, Skip)]| {
        let mut body = Vec::new();
        write_front(2, 2, 1_500, skips, &mut body);
        [body, a.clone(), b.clone()].concat()
    };
    for of in [None, Some(0), Some(1)] {
        let body = front(&of.map(|of| (of, skip)).into_iter().collect::<Vec<_>>());
        let view = WriteChunksView::parse(2, &body).expect("a body");
        let found = [0, 1, 2].map(|index| view.skip(index));
        assert_eq!(found, [0, 1, 2].map(|index| (of == Some(index)).then_some(skip)));
        assert_eq!(view.chunk_bytes(), [&a[..], &b[..]].concat());
        assert_eq!((body.len() - view.chunk_bytes().len()) % 8, 0, "chunks are aligned");
        assert_eq!(view.chunks().filter(Result::is_ok).count(), 2);
    }
    let refused = |body: &[u8]| match WriteChunksView::parse(2, body).expect_err("a wrong skip") {
        ProtocolError::Count { field, .. }
        | ProtocolError::Truncated { field, .. }
        | ProtocolError::BadField { field, .. } => field,
        other => panic!("{other}"),
    };
    let changed = |at: usize, value: u8| {
        let mut body = front(&[(0, skip), (1, skip)]);
        body[at] = value;
        body
    };
    for twisted in [[(1, skip), (0, skip)], [(1, skip); 2], [(0, skip), (2, skip)]] {
        assert_eq!(refused(&front(&twisted)), "WriteChunks.skips.index");
    }
    assert_eq!(refused(&changed(8, 3)), "WriteChunks.skip_count", "more than there are chunks");
    assert_eq!(refused(&changed(11, 255)), "WriteChunks.skip_count");
    assert_eq!(refused(&changed(12, 1)), "WriteChunks.zero");
    assert_eq!(refused(&changed(20, 1)), "WriteChunks.skips.zero");
    assert_eq!(refused(&changed(0, 2)[..15]), "WriteChunks.skip_count");
}

#[test]
fn results_of_a_write_follow_a_header_in_the_same_buffer() {
    let result = ChunkResult {
        status: 0,
        duplicate: true,
        forgot: false,
        lane: LaneId(3),
        cursor: Cursor { group: GroupId::new(1, 2), segment: SegmentIndex(4), position: 128 },
        base_ordinal: 77,
    };
    let failed = ChunkResult { forgot: true, ..ChunkResult::failed(Status::SequenceGap, 41) };
    assert_eq!([result.to_bytes()[2], failed.to_bytes()[2]], [1, 2], "their flags");
    let mut out = Vec::new();
    let start = begin_frame(&request().response(0), &mut out);
    let mut results = ChunkResults::begin(&mut out, 2);
    results.push(&result);
    results.push(&failed);
    results.finish();
    finish_frame(&mut out, start, 0);
    let read: Vec<_> = parse_results(&out[FRAME_HEADER_BYTES..]).expect("results").collect();
    assert_eq!(read, [result, failed]);
    assert_eq!((read[1].status(), read[1].base_ordinal), (Some(Status::SequenceGap), 41));
}

#[test]
fn a_read_gives_the_data_of_each_entry_without_copying() {
    let (a, b) = (chunk(b"one"), [chunk(b"two"), chunk(b"three")].concat());
    let answer = |index, data_bytes: usize, flags| ReadAnswer {
        index,
        status: 0,
        flags,
        start: Cursor::default(),
        next: Cursor { group: GroupId(1), segment: SegmentIndex(2), position: 3 },
        durable_ordinal: 9,
        data_bytes: data_bytes as u32,
    };
    let gone = ReadAnswer::failed(1, Status::CursorGone, Cursor::default(), Cursor::default());
    let mut body = Vec::new();
    write_answers(&[answer(0, a.len(), ANSWER_MORE), gone, answer(2, b.len(), ANSWER_END_OF_GROUP)], &mut body);
    assert_eq!(body.len() % 8, 0, "chunks behind it are aligned");
    body.extend([&a[..], &b].concat());

    let body = Bytes::from(body);
    let response = ReadChunksResponse::decode_shared(&body).expect("a body");
    let data: Vec<&[u8]> = response.answers.iter().map(|(_, data)| &data[..]).collect();
    assert_eq!(data, [&a[..], &[], &b[..]]);
    assert!(body.as_ptr_range().contains(&data[2].as_ptr()));
    assert_eq!(ReadChunksResponse::chunks(data[2]).filter(Result::is_ok).count(), 2);
    let (first, second, third) = (&response.answers[0].0, &response.answers[1].0, &response.answers[2].0);
    assert!(first.more() && !first.end_of_group() && third.end_of_group() && !third.more());
    assert_eq!(second.status(), Some(Status::CursorGone));
}

#[test]
fn a_read_whose_data_is_not_what_its_answers_say_is_an_error() {
    let answer =
        ReadAnswer { data_bytes: 16, ..ReadAnswer::failed(0, Status::Ok, Cursor::default(), Cursor::default()) };
    let body = |answer: &ReadAnswer, data: usize| {
        let mut body = Vec::new();
        write_answers(&[*answer], &mut body);
        body.resize(body.len() + data, 0);
        body
    };
    assert!(ReadChunksView::parse(&body(&answer, 16)).is_ok());
    assert!(matches!(ReadChunksView::parse(&body(&answer, 8)), Err(ProtocolError::Truncated { .. })));
    assert_eq!(ReadChunksView::parse(&body(&answer, 24)).map(|_| ()), Err(ProtocolError::Trailing { bytes: 8 }));
    let odd = ReadAnswer { data_bytes: 12, ..answer };
    let refused = ReadChunksView::parse(&body(&odd, 12)).map(|_| ()).expect_err("not aligned").to_string();
    assert_eq!(refused, "ReadAnswer.data_bytes is 12, allowed is a multiple of 8");
}
