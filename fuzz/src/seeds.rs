//! Good bytes to start from: the golden bytes, and what the writers of files make.

use kera_format::chunk::ChunkTarget;
use kera_format::container::{self, BatchHeader, ContainerEntry, ContainerHeader, ProducerMark, Trailer};
use kera_format::ids::*;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, ChunkBuilder, ChunkView, Compression, Record, StreamOptions, arena, catalog, vlog};
use kera_protocol::Op;
use std::path::Path;

/// The seeds of every target, by its name. `spec` is the folder of the golden bytes.
pub fn all(spec: &Path) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let chunks = golden(&spec.join("chunk.json"));
    vec![
        ("record", golden(&spec.join("record.json"))),
        ("compression", compressed()),
        ("segment", [golden(&spec.join("segment.json")), vec![image().2]].concat()),
        ("frame", golden(&spec.join("frame.json"))),
        ("message", messages(spec)),
        ("container", containers()),
        ("vlog", blocks(&chunks)),
        ("catalog", entries()),
        ("arena", vec![arena_header()]),
        ("chunk", chunks),
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

fn blocks(chunks: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let file = vlog::FileHeader { node: [3; 16], vlog: 1, file: 2, key: 99, first_block: 4 };
    let mut page = vec![0; 64];
    file.write(&mut page);
    let chunks: Vec<u8> = chunks.iter().filter(|chunk| ChunkView::parse(chunk).is_ok()).flatten().copied().collect();
    let block = vlog::BlockHeader {
        vlog: 1,
        chunk_count: 2,
        block: 4,
        file: 2,
        key: 99,
        written_ms: 5,
        chunk_bytes: chunks.len() as u32,
        chunks_checksum: kera_format::checksum::crc32c(&chunks),
    };
    let mut bytes = vec![0; 64];
    block.write(&mut bytes);
    bytes.extend(chunks);
    vec![page, bytes]
}

fn entries() -> Vec<Vec<u8>> {
    let options = StreamOptions::default();
    let file = catalog::FileHeader { node: [3; 16], generation: 1, kind: catalog::FileKind::Journal };
    let entries = [
        catalog::Entry::StreamCreated {
            stream: StreamId(5),
            at_ms: 1,
            options: options.clone(),
            name: "flights".into(),
        },
        catalog::Entry::StreamAltered { stream: StreamId(5), at_ms: 2, options },
        catalog::Entry::StreamDeleted { stream: StreamId(5), at_ms: 3 },
        catalog::Entry::ProducersReserved { below: ProducerId(2_000) },
        catalog::Entry::ProducerEpochRaised { producer: ProducerId(7), epoch: ProducerEpoch(1) },
        catalog::Entry::Counters { next_stream: StreamId(6), next_index: 9 },
        catalog::Entry::End { entries: 6 },
    ];
    let mut journal = Vec::new();
    (0..).zip(&entries).for_each(|(index, entry)| entry.encode(index, &mut journal));
    vec![file.encode().to_vec(), journal]
}

fn arena_header() -> Vec<u8> {
    arena::ArenaHeader { node: [3; 16], boot_id: [4; 16], bytes: 1 << 30 }.encode().to_vec()
}
