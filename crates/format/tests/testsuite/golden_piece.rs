//! Pieces of compacted segments against `spec/piece.json`.

use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks, PayloadKind};
use kera_format::piece::{PIECE_BYTES, PIECE_HEADER_BYTES, PieceHeader, row_of};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{
    BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkView, Compression, FormatError, GroupId, LaneId, ProducerId,
    Record, SegmentId, SegmentIndex, StreamId, StreamletId,
};

use crate::support::documents;
use crate::support::golden::{self, Golden, Layout, Refused, refused_by};

const ID: SegmentId = SegmentId {
    stream: StreamId(17),
    streamlet: StreamletId(2),
    lane: LaneId(1),
    group: GroupId::new(3, 8),
    index: SegmentIndex(4),
};

/// A chunk with one record, at a place and an ordinal.
fn chunk(value_bytes: usize, position: u32, base_ordinal: u64) -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    let value: Vec<u8> = (0..value_bytes).map(|at| (at % 251) as u8).collect();
    builder.push(&Record { keys: &[b"key"], value: Some(&value), ..Record::default() });
    let target = ChunkTarget {
        stream: ID.stream,
        streamlet: ID.streamlet,
        producer_id: ProducerId(1_000),
        sequence: base_ordinal,
        ..ChunkTarget::default()
    };
    let mut bytes = builder.seal(&target, Compression::None).expect("a chunk");
    let part = BrokerPart {
        group: ID.group,
        segment: ID.index,
        base_ordinal,
        append_time_ms: 1_700_000_000_000 + base_ordinal as i64,
        lane: ID.lane,
        position,
    };
    part.stamp(&mut bytes);
    bytes
}

/// A segment of ordinals 40 to `next_ordinal` of which compaction has left these chunks.
fn segment(chunks: &[Vec<u8>], next_ordinal: u64) -> (SegmentHeader, SegmentProgress, Vec<u8>) {
    let bytes = chunks.concat();
    let head = (SEGMENT_HEADER_BYTES + bytes.len()) as u64;
    let opened =
        SegmentHeader { id: ID, capacity_bytes: 4 << 20, base_ordinal: 40, created_ms: 1_700_000_000_000, flags: 0 };
    let header = opened.rewritten(1_700_000_100_000, true).expect("the first time");
    let progress = SegmentProgress {
        head,
        durable_head: head,
        next_ordinal,
        state: SegmentState::Closed,
        chunk_count: chunks.len() as u32,
        first_append_ms: 1_700_000_000_040,
        last_append_ms: 1_700_000_000_047,
        max_timestamp_ms: 1_700_000_000_041,
    };
    (header, progress, bytes)
}

fn small() -> Vec<u8> {
    let (header, progress, chunks) = segment(&[chunk(5, 640, 42), chunk(3, 2_000, 47)], 48);
    row_of(&header, &progress, &chunks).expect("a row")
}

fn refused() -> Vec<Refused> {
    let row = small();
    let payload = row[CHUNK_HEADER_BYTES..].to_vec();
    let changed = |at: usize, field: &[u8]| {
        let mut payload = payload.clone();
        payload[at..at + field.len()].copy_from_slice(field);
        payload
    };
    let cases = vec![
        ("cut", payload[..63].to_vec()),
        ("without chunks", payload[..64].to_vec()),
        ("of a segment that is not compacted", changed(0, &256_u32.to_le_bytes())),
        ("of a segment that was never rewritten", changed(0, &2_u32.to_le_bytes())),
        ("a row that ends before its chunks do", changed(8, &128_u32.to_le_bytes())),
        ("a row of more than 16 MiB", changed(8, &((16_u32 << 20) + 8).to_le_bytes())),
        ("a capacity that is no power of two", changed(12, &100_000_u32.to_le_bytes())),
        ("a head behind the capacity", changed(16, &((4_u32 << 20) + 8).to_le_bytes())),
        ("a head that is not aligned", changed(16, &300_u32.to_le_bytes())),
        ("a place in the segment's header", changed(20, &120_u32.to_le_bytes())),
        ("a place without room", changed(20, &136_u32.to_le_bytes())),
        ("bytes that are not zero", changed(28, &[1])),
    ];
    refused_by(cases, |payload| PieceHeader::parse(payload).map(|_| ()))
}

#[test]
fn pieces_are_the_golden_bytes() {
    let row = small();
    let layout = Layout::of(&row)
        .bytes("chunk header", CHUNK_HEADER_BYTES)
        .u32("flags")
        .u32("checksum")
        .u32("row_end")
        .u32("capacity_bytes")
        .u32("head")
        .u32("at")
        .u32("chunk_count")
        .u32("zero")
        .i64("created_ms")
        .i64("first_append_ms")
        .i64("last_append_ms")
        .i64("max_timestamp_ms")
        .bytes("chunks", row.len() - CHUNK_HEADER_BYTES - PIECE_HEADER_BYTES);
    let code = Golden {
        structure: "piece of a compacted segment".into(),
        document: "docs/formats/piece.md".into(),
        cases: vec![layout.case(
            "piece",
            "a chunk of kind 3: the only piece of a segment of ordinals 40 to 48, of which two chunks are left",
        )],
        refused: refused(),
    };
    golden::check("piece.json", &code);
    let view = ChunkView::parse(&row).expect("a chunk");
    view.verify().expect("its checksum");
    assert_eq!(view.header().kind, PayloadKind::Piece);
    let part = view.broker().expect("stamped");
    assert_eq!((part.base_ordinal, view.header().record_count, part.position), (40, 8, 128));
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/piece.md", |_| None);
}

/// Pieces follow one another by their places and ordinals, whatever was removed, and their chunks give the segment.
#[test]
fn a_row_has_no_holes() {
    let (mut chunks, mut position, mut ordinal) = (Vec::new(), 5_000, 42);
    for value_bytes in [100, 150_000, 90_000, 40_000, PIECE_BYTES + 1_000, 8, 8] {
        chunks.push(chunk(value_bytes, position, ordinal));
        position += value_bytes as u32 + 4_000;
        ordinal += 11;
    }
    let (header, progress, bytes) = segment(&chunks, ordinal - 10);
    let row = row_of(&header, &progress, &bytes).expect("a row");
    let (mut place, mut next, mut put, mut headers) = (SEGMENT_HEADER_BYTES as u32, 40, Vec::new(), Vec::new());
    for piece in Chunks::new(&row) {
        let piece = piece.expect("a piece");
        piece.verify().expect("its checksum");
        let part = piece.broker().expect("stamped");
        assert_eq!((part.position, part.base_ordinal), (place, next));
        (place, next) = (place + piece.as_bytes().len() as u32, next + u64::from(piece.header().record_count));
        let (header, within) = PieceHeader::parse(piece.payload()).expect("a piece");
        assert_eq!(header.at as usize, SEGMENT_HEADER_BYTES + put.len());
        assert!(within.len() <= PIECE_BYTES || Chunks::new(within).count() == 1);
        put.extend_from_slice(within);
        headers.push(PieceHeader { at: 0, ..header });
    }
    assert_eq!((place, next, put), (headers[0].row_end, progress.next_ordinal, bytes.clone()));
    assert_eq!(headers.len(), 4);
    assert!(headers.iter().all(|header| *header == headers[0]));
    assert_eq!(headers[0].checksum, crc32c(&bytes));
    // Another rewriting is another one, whichever changed.
    let again = header.rewritten(1, true).expect("twice");
    let later = PieceHeader { flags: again.flags, ..headers[0] };
    assert!(later.rewrite() > headers[0].rewrite());
    assert_ne!(PieceHeader { checksum: 1, ..headers[0] }.rewrite(), headers[0].rewrite());
}

#[test]
fn what_cannot_be_a_row_is_refused() {
    // As it was appended, but for eight bytes: its pieces would take more than a segment may.
    let chunks: Vec<Vec<u8>> = (0..63).map(|n| chunk((256 << 10) - 200, 128 + (n << 18), u64::from(n) + 40)).collect();
    let (header, progress, bytes) = segment(&[chunks, vec![chunk((256 << 10) - 500, 63 << 18, 103)]].concat(), 104);
    let error = row_of(&header, &progress, &bytes).expect_err("too large");
    assert!(matches!(error, FormatError::OverLimit { field: "piece.row_end", .. }), "{error}");
    // More ordinals than a chunk can have.
    let (header, progress, bytes) = segment(&[chunk(5, 640, 1 << 40)], (1 << 40) + 1);
    let error = row_of(&header, &progress, &bytes).expect_err("too many");
    assert!(matches!(error, FormatError::OverLimit { field: "chunk.record_count", .. }), "{error}");
}
