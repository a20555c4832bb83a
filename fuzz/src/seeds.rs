//! Good bytes to start from: the golden bytes, and what the writers of files make.

use kera_format::chunk::ChunkTarget;
use kera_format::container::{self, BatchHeader, ContainerEntry, ContainerHeader, ProducerMark, Trailer};
use kera_format::ids::*;
use kera_format::kafka_batch::{KAFKA_BATCH_HEADER_BYTES, KafkaBatchView, KafkaRecords};
use kera_format::kafka_codec::KafkaCodec;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, ChunkBuilder, Compression, Record};
use kera_protocol::Op;
use std::path::Path;

/// The seeds of every target, by its name. `spec` is the folder of the golden bytes.
pub fn all(spec: &Path) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("record", golden(&spec.join("record.json"))),
        ("compression", compressed()),
        ("kafka_batch", kafka_batches()),
        ("segment", [golden(&spec.join("segment.json")), vec![image().2]].concat()),
        ("frame", golden(&spec.join("frame.json"))),
        ("message", messages(spec)),
        ("container", [golden(&spec.join("container.json")), containers()].concat()),
        ("vlog", golden(&spec.join("vlog.json"))),
        ("catalog", golden(&spec.join("catalog.json"))),
        ("arena", golden(&spec.join("arena.json"))),
        ("chunk", golden(&spec.join("chunk.json"))),
    ]
}

/// The bytes of all cases of a file, the refused ones too.
fn golden(file: &Path) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let value: serde_json::Value = serde_json::from_str(&text).expect("golden files are JSON");
    let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    let hex = |case: &serde_json::Value| unhex(case["hex"].as_str().expect("every case has its bytes"));
    list("cases").iter().chain(&list("refused")).map(hex).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

/// The bodies of all messages, each behind its operation's place in [`Op::ALL`] and the version.
fn messages(spec: &Path) -> Vec<Vec<u8>> {
    let of_op = |(i, op): (usize, &Op)| {
        let bodies = golden(&spec.join("messages").join(format!("{op}.json")));
        bodies.into_iter().map(move |body| [&[i as u8, 1], &body[..]].concat())
    };
    Op::ALL.iter().enumerate().flat_map(of_op).collect()
}

fn compressed() -> Vec<Vec<u8>> {
    let payload: Vec<u8> = (0..2_000u32).map(|i| (i % 7 * (i / 90)) as u8).collect();
    let with = |(number, compression): (u8, Compression)| [&[number][..], &compression.compress(&payload)].concat();
    [(1, Compression::Lz4), (2, Compression::Zstd)].map(with).to_vec()
}

/// A batch of two records, one with a header, in every compression.
fn kafka_batches() -> Vec<Vec<u8>> {
    // Length, attributes, deltas, key, value, headers.
    let records = b"\x10\x00\x00\x00\x02k\x02v\x00\x14\x00\x14\x02\x01\x01\x02\x02h\x02x";
    let batch = |codec: KafkaCodec| {
        let mut batch = vec![0; KAFKA_BATCH_HEADER_BYTES];
        batch.extend_from_slice(&codec.compress(records));
        let length = batch.len() as u32 - 12;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        (batch[16], batch[22], batch[26], batch[60]) = (2, codec as u8, 1, 2);
        let crc = kera_format::checksum::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        let view = KafkaBatchView::parse(&batch).expect("a batch");
        let plain = view.uncompressed(100).expect("it decompresses");
        assert_eq!(KafkaRecords::new(&view, &plain).filter(Result::is_ok).count(), 2);
        batch
    };
    [KafkaCodec::None, KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd].map(batch).to_vec()
}

/// A closed segment with two chunks.
fn image() -> (SegmentHeader, SegmentProgress, Vec<u8>) {
    let id = SegmentId { stream: StreamId(5), group: GroupId::new(1, 1), ..SegmentId::default() };
    let header = SegmentHeader { id, capacity_bytes: 1 << 16, base_ordinal: 10, created_ms: 1, flags: 0 };
    let mut image = vec![0; 128];
    let mut progress = SegmentProgress::empty(10);
    for value in [&b"one"[..], b"another one"] {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(value));
        let target = ChunkTarget { stream: StreamId(5), producer_id: ProducerId(7), ..ChunkTarget::default() };
        let mut chunk = builder.seal(&target, Compression::None).expect("a chunk");
        let position = image.len() as u32;
        let place =
            BrokerPart { group: id.group, base_ordinal: progress.next_ordinal, position, ..BrokerPart::default() };
        place.stamp(&mut chunk);
        image.extend(chunk);
        progress.next_ordinal += 1;
        progress.chunk_count += 1;
    }
    progress.head = image.len() as u64;
    progress.durable_head = progress.head;
    progress.state = SegmentState::ClosedGroup;
    header.write(&mut image);
    progress.write(&mut image);
    (header, progress, image)
}

fn containers() -> Vec<Vec<u8>> {
    let file = ContainerHeader { node: [3; 16], container: 1, key: 99, created_ms: 5 };
    let (header, progress, _) = image();
    let mark = ProducerMark {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        sequence: 0,
        base_ordinal: 10,
        position: 128,
    };
    let entry = ContainerEntry { header, progress, at: 8_192, marks: vec![mark; 2] };
    let mut page = vec![0; container::PAGE_BYTES];
    file.write(&mut page);
    let mut index = vec![0; container::index_bytes(1, 2) as usize];
    BatchHeader::write(&file, (4_096, 8_192), 0, std::slice::from_ref(&entry), &mut index);
    let mut footer = vec![0; container::footer_bytes(1, 2) as usize];
    Trailer::write(&file, 12_288, &[entry], &mut footer);
    vec![page, index, footer]
}
