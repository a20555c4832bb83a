//! Records, chunks and segment headers against `spec/`.

use kera_format::chunk::{ChunkTarget, PayloadKind, seal_in_place};
use kera_format::ids::*;
use kera_format::record::REMOVED_RECORD;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkView, Compression, Record, RecordView, Records};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused};

fn encode(record: &Record<'_>) -> Vec<u8> {
    record.check().expect("within limits");
    let mut out = Vec::new();
    record.encode(&mut out);
    out
}

/// The records of `spec/record.json`, by the names of their cases.
fn records() -> Vec<(&'static str, &'static str, Record<'static>)> {
    vec![
        ("value", "the smallest useful record: a value and 8 bytes of overhead", Record::value(b"hello")),
        ("empty value", "a value of no bytes is not a tombstone", Record::value(b"")),
        ("key and value", "one key", Record { keys: &[b"carrier"], value: Some(b"AA"), ..Record::default() }),
        (
            "tombstone",
            "a key without a value: the key is gone",
            Record { keys: &[b"carrier"], value: None, ..Record::default() },
        ),
        (
            "everything",
            "three keys (one of them empty), a version, a timestamp before 1970 and a checksum",
            Record {
                keys: &[b"AA", b"", b"JFK-LAX"],
                value: Some(b"{\"delay\":7}"),
                version: Some(0x0102_0304_0506_0708),
                timestamp_ms: Some(-1),
                checksum: true,
            },
        ),
        (
            "checksum only",
            "the checksum covers the 8 bytes before it and everything behind it",
            Record { value: Some(b"hello"), checksum: true, ..Record::default() },
        ),
    ]
}

fn record_head(bytes: &[u8]) -> Layout<'_> {
    Layout::of(bytes).u32("length").u8("flags").u8("key_count").u16("value_offset")
}

fn record_case(name: &str, about: &str, record: &Record<'_>, bytes: &[u8]) -> Case {
    let mut layout = record_head(bytes);
    if record.checksum {
        layout = layout.u32("checksum");
    }
    if record.version.is_some() {
        layout = layout.u64("version");
    }
    if record.timestamp_ms.is_some() {
        layout = layout.i64("timestamp_ms");
    }
    for i in 0..record.keys.len() {
        layout = layout.u16(&format!("key_lengths[{i}]"));
    }
    for (i, key) in record.keys.iter().enumerate() {
        layout = layout.text(&format!("keys[{i}]"), key.len());
    }
    if let Some(value) = record.value {
        layout = layout.text("value", value.len());
    }
    layout.case(name, about)
}

/// No encoder but compaction writes it.
fn removed_record() -> Case {
    let case = record_head(&REMOVED_RECORD).case("removed", "what compaction leaves of a record: it is counted only");
    Case { encoders: false, ..case }
}

fn refused_record(name: &str, bytes: Vec<u8>) -> Refused {
    let error = RecordView::parse(&bytes).and_then(|view| view.verify()).expect_err(name).to_string();
    Refused { name: name.into(), bytes, error }
}

fn refused_records() -> Vec<Refused> {
    let with = |name: &str, at: usize, value: u8| {
        let (_, _, record) = records().into_iter().find(|(n, ..)| *n == name).expect("a case");
        let mut bytes = encode(&record);
        bytes[at] = value;
        bytes
    };
    vec![
        refused_record("shorter than its header", vec![8, 0, 0, 0, 0, 0, 8]),
        refused_record("length below 8", with("value", 0, 7)),
        refused_record("length beyond the bytes that are there", with("value", 0, 14)),
        refused_record("unknown flag", with("value", 4, 32)),
        refused_record("removed, and more than 8 bytes long", with("value", 4, 16)),
        refused_record("removed, with another flag", vec![8, 0, 0, 0, 17, 0, 8, 0]),
        refused_record("removed, with a key", vec![8, 0, 0, 0, 16, 1, 8, 0]),
        refused_record("value offset before the header's end", with("value", 6, 7)),
        refused_record("value offset behind the header's end without keys", with("value", 6, 9)),
        refused_record("value offset behind the record", with("key and value", 6, 200)),
        refused_record("key lengths beyond the record", with("key and value", 5, 200)),
        refused_record("keys beyond the record", with("key and value", 9, 200)),
        refused_record("tombstone with a value", with("key and value", 4, 8)),
        refused_record("timestamp beyond the record", with("empty value", 4, 2)),
        refused_record("wrong checksum", with("checksum only", 16, b'H')),
    ]
}

#[test]
fn records_are_the_golden_bytes() {
    let case = |(name, about, record): &(&str, &str, Record<'_>)| record_case(name, about, record, &encode(record));
    let code = Golden {
        structure: "record".into(),
        document: "docs/formats/record.md".into(),
        cases: records().iter().map(case).chain([removed_record()]).collect(),
        refused: refused_records(),
    };
    let file = golden::check("record.json", &code);
    assert!(RecordView::parse(&file.case("removed").bytes()).expect("removed").is_removed());
    for (name, _, record) in records() {
        let bytes = file.case(name).bytes();
        let view = RecordView::parse(&bytes).expect(name);
        view.verify().expect(name);
        assert_eq!(view.keys().collect::<Vec<_>>(), record.keys, "{name}");
        assert_eq!(view.key(), record.keys.first().copied(), "{name}");
        assert_eq!(view.value(), record.value, "{name}");
        assert_eq!((view.version(), view.timestamp_ms()), (record.version, record.timestamp_ms), "{name}");
    }
    for refused in &file.refused {
        let error = RecordView::parse(&refused.bytes).and_then(|view| view.verify()).expect_err(&refused.name);
        assert_eq!(error.to_string(), refused.error);
    }
}

fn target() -> ChunkTarget {
    ChunkTarget {
        stream: StreamId(0x1122),
        streamlet: StreamletId(3),
        producer_id: ProducerId(0x0a0b_0c0d),
        producer_epoch: ProducerEpoch(2),
        sequence: 41,
    }
}

const BROKER_PART: BrokerPart = BrokerPart {
    group: GroupId::new(7, 9),
    segment: SegmentIndex(4),
    base_ordinal: 1_000_000,
    append_time_ms: 1_700_000_000_123,
    lane: LaneId(1),
    position: 128,
};

fn two_records() -> ChunkBuilder {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(b"hello"));
    builder.push(&Record { keys: &[b"AA"], value: Some(b"x"), timestamp_ms: Some(1_000), ..Record::default() });
    builder
}

fn compressible() -> ChunkBuilder {
    let mut builder = ChunkBuilder::default();
    (0..40).for_each(|_| builder.push(&Record::value(b"the same again")));
    builder
}

/// The chunks of `spec/chunk.json`.
fn chunks() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let seal = |builder: ChunkBuilder, target: &ChunkTarget, compression| {
        builder.seal(target, compression).expect("a chunk within limits")
    };
    let sent = seal(two_records(), &target(), Compression::None);
    let mut stored = sent.clone();
    BROKER_PART.stamp(&mut stored);
    let mut anonymous = ChunkBuilder::default();
    anonymous.push(&Record::value(b"12345678"));
    let anonymous = seal(anonymous, &ChunkTarget { stream: StreamId(1), ..ChunkTarget::default() }, Compression::None);
    let mut kafka = vec![0; CHUNK_HEADER_BYTES];
    kafka.extend_from_slice(b"a Kafka record batch, verbatim");
    seal_in_place(&mut kafka, &target(), PayloadKind::KafkaBatch, Compression::None, 5, 2_000).expect("a chunk");
    vec![
        ("sent", "as a producer sends it: the broker's part is zero; 6 bytes of padding", sent),
        ("stored", "the same as a broker stores it", stored),
        ("anonymous", "without a producer id or timestamps, and without padding", anonymous),
        ("kafka", "a payload of another kind; brokers do not look into it", kafka),
        ("lz4", "the payload compressed as an LZ4 block", seal(compressible(), &target(), Compression::Lz4)),
        ("zstd", "the payload compressed as a Zstandard frame", seal(compressible(), &target(), Compression::Zstd)),
    ]
}

fn chunk_case(name: &str, about: &str, bytes: &[u8]) -> Case {
    let view = ChunkView::parse(bytes).expect(name);
    let layout = Layout::of(bytes)
        .u32("broker_checksum")
        .u32("segment")
        .u64("group")
        .u64("base_ordinal")
        .i64("append_time_ms")
        .u32("lane")
        .u32("position")
        .u32("producer_checksum")
        .text("magic", 2)
        .u8("version")
        .u8("compression")
        .u8("kind")
        .u8("flags")
        .u16("producer_epoch")
        .u32("payload_bytes")
        .u32("record_count")
        .u32("streamlet")
        .u64("stream")
        .u64("producer_id")
        .u64("sequence")
        .i64("max_timestamp_ms")
        .bytes("payload", view.payload().len())
        .rest("padding");
    // Other releases of the codecs may compress to other bytes.
    Case { encoders: view.header().compression == Compression::None, ..layout.case(name, about) }
}

fn refuse_chunk(bytes: &[u8]) -> Option<String> {
    let view = match ChunkView::parse(bytes) {
        Ok(view) => view,
        Err(e) => return Some(e.to_string()),
    };
    let stamped = bytes[..4] != [0; 4];
    let broker = || if stamped { view.broker().map(|_| ()) } else { Ok(()) };
    view.verify().and_then(|()| broker()).err().map(|e| e.to_string())
}

fn refused_chunks() -> Vec<Refused> {
    let all = chunks();
    let with = |name: &'static str, case: &str, changes: &[(usize, u8)]| {
        let mut bytes = all.iter().find(|(n, ..)| *n == case).expect("a case").2.clone();
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        let error = refuse_chunk(&bytes).expect(name);
        Refused { name: name.into(), bytes, error }
    };
    let mut refused = vec![
        with("wrong magic", "sent", &[(44, b'k')]),
        with("unknown version", "sent", &[(46, 2)]),
        with("unknown compression", "sent", &[(47, 3)]),
        with("kind reserved for Arrow", "sent", &[(48, 2)]),
        with("unknown kind", "sent", &[(48, 9)]),
        with("unknown flag", "sent", &[(49, 1)]),
        with("payload over the limit", "sent", &[(55, 1)]),
        with("payload beyond the bytes that are there", "sent", &[(53, 1)]),
        with("no records", "sent", &[(56, 0)]),
        with("more records than the payload can hold", "sent", &[(57, 1)]),
        with("a producer's field changed", "sent", &[(80, 42)]),
        with("a byte of the payload changed", "sent", &[(104, b'H')]),
        with("a broker's field changed", "stored", &[(16, 0)]),
        with("the producer's checksum changed", "stored", &[(40, 0)]),
    ];
    let mut short = all[0].2.clone();
    short.truncate(95);
    refused.push(Refused { name: "header cut".into(), error: refuse_chunk(&short).expect("cut"), bytes: short });
    let mut unpadded = all[0].2.clone();
    unpadded.pop();
    refused.push(Refused { name: "padding cut".into(), error: refuse_chunk(&unpadded).expect("cut"), bytes: unpadded });
    refused
}

#[test]
fn chunks_are_the_golden_bytes() {
    let code = Golden {
        structure: "chunk".into(),
        document: "docs/formats/chunk.md".into(),
        cases: chunks().iter().map(|(name, about, bytes)| chunk_case(name, about, bytes)).collect(),
        refused: refused_chunks(),
    };
    let file = golden::check("chunk.json", &code);
    for case in &file.cases {
        let bytes = case.bytes();
        let view = ChunkView::parse(&bytes).expect(&case.name);
        view.verify().expect(&case.name);
        compare_header(case, &view);
        if case.name == "stored" {
            assert_eq!(view.broker(), Ok(BROKER_PART));
        } else {
            assert!(view.broker().is_err(), "{}: nobody has stamped it", case.name);
        }
        if view.header().kind == PayloadKind::Records {
            let payload = view.uncompressed().expect(&case.name);
            let read: Vec<_> = Records::new(&payload).collect::<Result<_, _>>().expect(&case.name);
            assert_eq!(read.len() as u32, view.header().record_count, "{}", case.name);
        }
        if view.header().compression != Compression::None {
            let payload = view.uncompressed().expect(&case.name);
            assert!(Records::new(&payload).all(|r| r.expect("a record").value() == Some(b"the same again")));
        }
    }
    for refused in &file.refused {
        assert_eq!(refuse_chunk(&refused.bytes), Some(refused.error.clone()), "{}", refused.name);
    }
}

fn compare_header(case: &Case, view: &ChunkView<'_>) {
    let header = view.header();
    let number = |name: &str| case.field(name).value.parse::<i128>().expect(name);
    assert_eq!(number("producer_checksum"), header.producer_checksum.into());
    assert_eq!(number("compression"), header.compression as i128);
    assert_eq!(number("kind"), header.kind as i128);
    assert_eq!(number("producer_epoch"), header.producer_epoch.0.into());
    assert_eq!(number("payload_bytes"), header.payload_bytes.into());
    assert_eq!(number("record_count"), header.record_count.into());
    assert_eq!(number("streamlet"), header.streamlet.0.into());
    assert_eq!(number("stream"), header.stream.0.into());
    assert_eq!(number("producer_id"), header.producer_id.0.into());
    assert_eq!(number("sequence"), header.sequence.into());
    assert_eq!(number("max_timestamp_ms"), header.max_timestamp_ms.into());
    assert_eq!(case.field("payload").bytes, view.payload());
}

const SEGMENT: SegmentHeader = SegmentHeader {
    id: SegmentId {
        stream: StreamId(0x1122),
        streamlet: StreamletId(3),
        lane: LaneId(1),
        group: GroupId::new(7, 9),
        index: SegmentIndex(4),
    },
    capacity_bytes: 1 << 20,
    base_ordinal: 1_000_000,
    created_ms: 1_700_000_000_000,
    flags: 1,
};

/// The segment headers of `spec/segment.json`.
fn segments() -> Vec<(&'static str, &'static str, SegmentProgress)> {
    let closed = SegmentProgress {
        head: 1_048_000,
        durable_head: 524_288,
        next_ordinal: 1_009_000,
        state: SegmentState::Closed,
        chunk_count: 63,
        first_append_ms: 1_700_000_000_123,
        last_append_ms: 1_700_000_004_567,
        max_timestamp_ms: 1_700_000_004_000,
    };
    vec![
        ("empty", "as it is opened", SegmentProgress::empty(SEGMENT.base_ordinal)),
        ("closed", "closed, and not durable to its end yet: the durable head is not under the checksum", closed),
        (
            "closed group",
            "the last segment of its group",
            SegmentProgress { state: SegmentState::ClosedGroup, durable_head: 1_048_000, ..closed },
        ),
        (
            "compacted",
            "compacted a second time: created_ms is of the first, the head is where its bytes end now",
            SegmentProgress { head: 4_000, durable_head: 4_000, chunk_count: 5, ..closed },
        ),
    ]
}

/// The half that never changes, of the case with this name.
fn header_of(name: &str) -> SegmentHeader {
    let twice = || SEGMENT.rewritten(1_700_000_100_000, true)?.rewritten(1_700_000_200_000, true);
    if name == "compacted" { twice().expect("it was rewritten less than 2^24 times") } else { SEGMENT }
}

fn segment_bytes(progress: &SegmentProgress) -> Vec<u8> {
    bytes_of("", progress)
}

fn bytes_of(name: &str, progress: &SegmentProgress) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    header_of(name).write(&mut bytes);
    progress.write(&mut bytes);
    bytes
}

fn segment_case(name: &str, about: &str, bytes: &[u8]) -> Case {
    Layout::of(bytes)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u64("stream")
        .u32("streamlet")
        .u32("lane")
        .u64("group")
        .u32("index")
        .u32("capacity_bytes")
        .u64("base_ordinal")
        .i64("created_ms")
        .u32("flags")
        .u32("checksum")
        .u64("head")
        .u64("durable_head")
        .u64("next_ordinal")
        .u32("state")
        .u32("chunk_count")
        .i64("first_append_ms")
        .i64("last_append_ms")
        .i64("max_timestamp_ms")
        .u32("zero")
        .u32("closed_checksum")
        .case(name, about)
}

fn refuse_segment(bytes: &[u8]) -> Option<String> {
    let parsed = SegmentHeader::parse(bytes).and_then(|header| SegmentProgress::parse(bytes, header.capacity_bytes));
    parsed.err().map(|e| e.to_string())
}

fn refused_segments() -> Vec<Refused> {
    // With the checksum of the first half made right again, so that the field itself is what is refused.
    let first = |name: &'static str, changes: &[(usize, u8)]| {
        let mut bytes = segment_bytes(&segments()[0].2);
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        let crc = kera_format::checksum::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        Refused { name: name.into(), error: refuse_segment(&bytes).expect(name), bytes }
    };
    let second = |name: &'static str, case: usize, changes: &[(usize, u8)]| {
        let mut bytes = segment_bytes(&segments()[case].2);
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        Refused { name: name.into(), error: refuse_segment(&bytes).expect(name), bytes }
    };
    let mut short = segment_bytes(&segments()[0].2);
    short.pop();
    vec![
        first("wrong magic", &[(0, b'k')]),
        first("unknown version", &[(4, 2)]),
        first("other header size", &[(6, 129)]),
        first("capacity not a power of two", &[(36, 8)]),
        first("capacity below the smallest class", &[(38, 0), (37, 128)]),
        first("capacity above the largest class", &[(38, 0), (39, 2)]),
        second("a field of the first half changed", 0, &[(40, 1)]),
        second("no state", 0, &[(88, 0)]),
        second("unknown state", 0, &[(88, 4)]),
        second("head before the first chunk", 0, &[(64, 120), (72, 120)]),
        second("head beyond the capacity", 0, &[(67, 1)]),
        second("head not a multiple of 8", 0, &[(64, 129)]),
        second("durable head before the first chunk", 1, &[(72, 0), (73, 0), (74, 0)]),
        second("durable head beyond the head", 1, &[(75, 1)]),
        second("durable head not a multiple of 8", 1, &[(72, 1)]),
        second("a field of the second half changed after closing", 1, &[(92, 0)]),
        Refused { name: "cut".into(), error: refuse_segment(&short).expect("cut"), bytes: short },
    ]
}

#[test]
fn segment_headers_are_the_golden_bytes() {
    let case =
        |(name, about, progress): &(&str, &str, SegmentProgress)| segment_case(name, about, &bytes_of(name, progress));
    let code = Golden {
        structure: "segment header".into(),
        document: "docs/formats/segment.md".into(),
        cases: segments().iter().map(case).collect(),
        refused: refused_segments(),
    };
    let file = golden::check("segment.json", &code);
    for (name, _, progress) in segments() {
        let bytes = file.case(name).bytes();
        let header = SegmentHeader::parse(&bytes).expect(name);
        assert_eq!(header, header_of(name), "{name}");
        assert_eq!(SegmentProgress::parse(&bytes, header.capacity_bytes), Ok(progress), "{name}");
    }
    let compacted = header_of("compacted");
    assert_eq!((compacted.flags, compacted.rewrites()), (0x203, 2));
    let forgotten = compacted.forgotten();
    assert_eq!((forgotten.flags, forgotten.rewrites(), forgotten.is_compacted()), (0x207, 2, true));
    assert!(!compacted.has_forgotten() && forgotten.rewritten(1_700_000_300_000, true).unwrap().has_forgotten());
    assert_eq!((SEGMENT.compacted_ms(), compacted.compacted_ms()), (None, Some(1_700_000_100_000)));
    for refused in &file.refused {
        assert_eq!(refuse_segment(&refused.bytes), Some(refused.error.clone()), "{}", refused.name);
    }
}

#[test]
fn any_changed_byte_in_a_golden_file_is_noticed() {
    for file in ["record.json", "chunk.json", "segment.json"] {
        let golden = golden::read(file);
        for case in golden.cases.iter().filter(|case| case.encoders) {
            for (field, at) in
                case.fields.iter().enumerate().flat_map(|(i, f)| (0..f.bytes.len()).map(move |at| (i, at)))
            {
                let mut changed = case.clone();
                changed.fields[field].bytes[at] ^= 1;
                assert!(golden::difference(&changed, case).is_some(), "{file}: `{}`", case.name);
            }
        }
    }
}

#[test]
fn documents_show_the_golden_bytes() {
    for document in ["formats/record.md", "formats/chunk.md", "formats/segment.md"] {
        documents::check(document, |_| None);
    }
}
