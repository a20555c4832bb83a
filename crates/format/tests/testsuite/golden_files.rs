//! Files of virtual logs and of the catalog, and the arena's header, against `spec/`.

use kera_format::checksum::crc32c;
use kera_format::chunk::ChunkTarget;
use kera_format::ids::*;
use kera_format::{
    BatchCompression, BrokerPart, ChunkBuilder, Cleanup, Compression, Durability, FormatError, Order, Record,
    ReplicationMode, Settings, StreamOptions, Timestamps, arena, catalog, vlog,
};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused};

const NODE: [u8; 16] = *b"0123456789abcdef";
const NOW_MS: i64 = 1_700_000_000_000;

/// Bytes that are refused: `bytes` with `changes`, and with the checksum over `covered` put right if there is one.
fn refused<T>(
    name: &str,
    bytes: &[u8],
    changes: &[(usize, u8)],
    covered: Option<(std::ops::Range<usize>, usize)>,
    read: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> Refused {
    let mut bytes = bytes.to_vec();
    changes.iter().for_each(|(at, value)| bytes[*at] = *value);
    if let Some((covered, at)) = covered {
        let crc = crc32c(&bytes[covered]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let error = read(&bytes).err().unwrap_or_else(|| panic!("`{name}` is not refused")).to_string();
    Refused { name: name.into(), bytes, error }
}

fn check_refused<T>(golden: &Golden, from: &str, read: impl Fn(&[u8]) -> Result<T, FormatError>) {
    for refused in golden.refused.iter().filter(|refused| refused.name.starts_with(from)) {
        assert_eq!(read(&refused.bytes).err().map(|e| e.to_string()), Some(refused.error.clone()), "{}", refused.name);
    }
}

const VLOG_FILE: vlog::FileHeader =
    vlog::FileHeader { node: NODE, vlog: 2, file: 5, key: 0x1122_3344_5566_7788, first_block: 40 };

fn stored_chunk() -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(b"hello"));
    let target = ChunkTarget { stream: StreamId(17), producer_id: ProducerId(1_000), ..ChunkTarget::default() };
    let mut chunk = builder.seal(&target, Compression::None).expect("a chunk");
    let place =
        BrokerPart { group: GroupId::new(3, 8), append_time_ms: NOW_MS, position: 128, ..BrokerPart::default() };
    place.stamp(&mut chunk);
    chunk
}

const VLOG_MARK: vlog::FileMark =
    vlog::FileMark { vlog: VLOG_FILE.vlog, file: VLOG_FILE.file, key: VLOG_FILE.key, end: 4_206_592 };

fn vlog_block() -> (vlog::BlockHeader, Vec<u8>) {
    let chunk = stored_chunk();
    let header = vlog::BlockHeader {
        vlog: VLOG_FILE.vlog,
        chunk_count: 1,
        block: 41,
        file: VLOG_FILE.file,
        key: VLOG_FILE.key,
        written_ms: NOW_MS,
        chunk_bytes: chunk.len() as u32,
        chunks_checksum: crc32c(&chunk),
        unsynced: 0,
    };
    let mut bytes = vec![0; 64];
    header.write(&mut bytes);
    bytes.extend(chunk);
    (header, bytes)
}

fn read_block(bytes: &[u8]) -> Result<vlog::BlockHeader, FormatError> {
    let block = vlog::BlockHeader::parse(bytes)?;
    block.verify_chunks(&bytes[64..])?;
    Ok(block)
}

fn vlog_cases() -> Vec<Case> {
    let mut file = vec![0; 64];
    VLOG_FILE.write(&mut file);
    let file = Layout::of(&file)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .bytes("node", 16)
        .u32("vlog")
        .u32("zero")
        .u64("file")
        .u64("key")
        .u64("first_block")
        .u32("zero")
        .u32("checksum");
    let (_, block) = vlog_block();
    let block = Layout::of(&block)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u32("vlog")
        .u32("chunk_count")
        .u64("block")
        .u64("file")
        .u64("key")
        .i64("written_ms")
        .u32("chunk_bytes")
        .u32("chunks_checksum")
        .u32("unsynced")
        .u32("checksum")
        .rest("chunks");
    let mut mark = vec![0; 64];
    VLOG_MARK.write(&mut mark);
    let mark = Layout::of(&mark)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u32("vlog")
        .u32("zero")
        .u64("file")
        .u64("key")
        .u64("end")
        .bytes("zero", 20)
        .u32("checksum");
    vec![
        file.case("file", "the header of a file; the rest of its page is zeros"),
        block.case("block", "a block of one chunk, without the zeros up to the end of its page"),
        mark.case("mark", "the mark in the last page of a file; the rest of the page is zeros"),
    ]
}

fn refused_vlog() -> Vec<Refused> {
    let mut file = vec![0; 64];
    VLOG_FILE.write(&mut file);
    let (_, block) = vlog_block();
    let right = || Some((0..60, 60));
    let of_file = |name, changes: &[_], right| refused(name, &file, changes, right, vlog::FileHeader::parse);
    let mut mark = vec![0; 64];
    VLOG_MARK.write(&mut mark);
    let of_mark = |name, changes: &[_], right| refused(name, &mark, changes, right, vlog::FileMark::parse);
    let of_block = |name, changes: &[_], right| refused(name, &block, changes, right, read_block);
    vec![
        of_file("file: wrong magic", &[(0, b'k')], right()),
        of_file("file: unknown version", &[(4, 2)], right()),
        of_file("file: other header size", &[(6, 65)], right()),
        of_file("file: a field changed", &[(32, 6)], None),
        of_block("block: wrong magic", &[(0, b'k')], right()),
        of_block("block: unknown version", &[(4, 2)], right()),
        of_block("block: other header size", &[(6, 65)], right()),
        of_block("block: chunk bytes not a multiple of 8", &[(48, 1)], right()),
        of_block("block: chunk bytes over the limit", &[(51, 3)], right()),
        of_block("block: chunks beyond the bytes that are there", &[(49, 1)], right()),
        of_block("block: a field changed", &[(16, 42)], None),
        of_block("block: a byte of the chunks changed", &[(100, 1)], None),
        refused("block: cut", &block[..63], &[], None, read_block),
        of_mark("mark: wrong magic", &[(0, b'k')], right()),
        of_mark("mark: a field changed", &[(32, 1)], None),
    ]
}

#[test]
fn files_of_virtual_logs_are_the_golden_bytes() {
    let code = Golden {
        structure: "virtual log file".into(),
        document: "docs/formats/vlog.md".into(),
        cases: vlog_cases(),
        refused: refused_vlog(),
    };
    let golden = golden::check("vlog.json", &code);
    assert_eq!(vlog::FileHeader::parse(&golden.case("file").bytes()), Ok(VLOG_FILE));
    let block = golden.case("block").bytes();
    assert_eq!(read_block(&block), Ok(vlog_block().0));
    assert_eq!(block[64..], stored_chunk());
    assert_eq!(vlog::FileMark::parse(&golden.case("mark").bytes()), Ok(VLOG_MARK));
    check_refused(&golden, "file", vlog::FileHeader::parse);
    check_refused(&golden, "block", read_block);
    check_refused(&golden, "mark", vlog::FileMark::parse);
}

const CATALOG_FILE: catalog::FileHeader =
    catalog::FileHeader { node: NODE, generation: 3, kind: catalog::FileKind::Journal };

fn options() -> StreamOptions {
    StreamOptions {
        streamlets: 4,
        lanes: 2,
        segments_per_group: 16,
        segment_bytes_max: 1 << 20,
        replication: 1,
        replication_mode: ReplicationMode::Sync,
        durability: Durability::Power,
        order: Order::None,
        retention_ms: None,
        retention_bytes: Some(1 << 30),
        retention_consumed: true,
        cleanup: Cleanup::CompactDelete,
        virtual_logs: 0,
        segment_ms: 3_600_000,
        compact_dirty_percent: 30,
        compact_after_ms: 60_000,
        compact_within_ms: Some(7_200_000),
        tombstone_ms: 43_200_000,
        timestamps: Timestamps::Append,
        batch_compression: BatchCompression::Zstd,
        settings: Settings::new(),
    }
}

fn with_settings() -> StreamOptions {
    let given = [("min.cleanable.dirty.ratio", "0.304"), ("segment.bytes", "1073741824")];
    StreamOptions { settings: given.map(|(name, value)| (name.into(), value.into())).into(), ..options() }
}

fn layout_of_settings<'a>(layout: Layout<'a>, settings: &Settings) -> Layout<'a> {
    if settings.is_empty() {
        return layout;
    }
    settings.iter().enumerate().fold(layout.u32("settings.count"), |layout, (at, (name, value))| {
        let field = |what: &str| format!("settings[{at}].{what}");
        let layout = layout.u32(&field("name_bytes")).text(&field("name"), name.len());
        layout.u32(&field("value_bytes")).text(&field("value"), value.len())
    })
}

fn entries() -> Vec<(&'static str, u64, catalog::Entry)> {
    use catalog::Entry;
    let (stream, at_ms) = (StreamId(17), NOW_MS);
    let asynchronous = StreamOptions { replication: 3, replication_mode: ReplicationMode::Async, ..options() };
    vec![
        ("stream created", 8, Entry::StreamCreated { stream, at_ms, options: options(), name: "flights".into() }),
        ("stream altered", 9, Entry::StreamAltered { stream, at_ms, options: options() }),
        ("asynchronous stream altered", 9, Entry::StreamAltered { stream, at_ms, options: asynchronous }),
        (
            "stream with settings created",
            8,
            Entry::StreamCreated { stream, at_ms, options: with_settings(), name: "flights".into() },
        ),
        ("stream with settings altered", 9, Entry::StreamAltered { stream, at_ms, options: with_settings() }),
        ("stream deleted", 10, Entry::StreamDeleted { stream, at_ms }),
        ("producers reserved", 11, Entry::ProducersReserved { below: ProducerId(2_000) }),
        ("producer's epoch", 12, Entry::ProducerEpochRaised { producer: ProducerId(1_000), epoch: ProducerEpoch(2) }),
        ("counters", 1, Entry::Counters { next_stream: StreamId(18), next_index: 13 }),
        ("end", 7, Entry::End { entries: 6 }),
    ]
}

fn layout_of_options(layout: Layout<'_>) -> Layout<'_> {
    layout
        .u32("options.streamlets")
        .u32("options.lanes")
        .u32("options.segments_per_group")
        .u32("options.segment_bytes_max")
        .u32("options.replication")
        .u32("options.virtual_logs")
        .u8("options.durability")
        .u8("options.order")
        .u8("options.cleanup")
        .u8("options.flags")
        .u32("options.compact_dirty_percent")
        .u64("options.retention_ms")
        .u64("options.retention_bytes")
        .u64("options.segment_ms")
        .u64("options.compact_after_ms")
        .u64("options.compact_within_ms")
        .u64("options.tombstone_ms")
        .u8("options.timestamps")
        .u8("options.batch_compression")
        .u8("options.replication_mode")
        .u8("options.zero")
        .u32("options.zero")
}

fn entry_case(name: &str, index: u64, entry: &catalog::Entry) -> Case {
    let mut bytes = Vec::new();
    entry.encode(index, &mut bytes);
    let layout =
        Layout::of(&bytes).u32("checksum").u32("entry_bytes").u64("index").u16("kind").u16("version").u32("zero");
    let layout = match entry {
        catalog::Entry::StreamCreated { name, options, .. } => {
            let layout = layout_of_options(layout.u64("stream").i64("at_ms"));
            let layout = layout.u32("name_bytes").text("name", name.len());
            layout_of_settings(layout, &options.settings).rest("padding")
        }
        catalog::Entry::StreamAltered { options, .. } if options.settings.is_empty() => {
            layout_of_options(layout.u64("stream").i64("at_ms"))
        }
        catalog::Entry::StreamAltered { options, .. } => {
            let layout = layout_of_options(layout.u64("stream").i64("at_ms"));
            layout_of_settings(layout, &options.settings).rest("padding")
        }
        catalog::Entry::StreamDeleted { .. } => layout.u64("stream").i64("at_ms"),
        catalog::Entry::ProducersReserved { .. } => layout.u64("below"),
        catalog::Entry::ProducerEpochRaised { .. } => layout.u64("producer").u16("epoch").u16("zero").u32("zero"),
        catalog::Entry::Counters { .. } => layout.u64("next_stream").u64("next_index"),
        catalog::Entry::End { .. } => layout.u64("entries"),
    };
    layout.case(name, "an entry")
}

fn refused_catalog() -> Vec<Refused> {
    let file = CATALOG_FILE.encode();
    let of_file = |name, changes: &[_], right| refused(name, &file, changes, right, catalog::FileHeader::parse);
    let mut created = Vec::new();
    entries()[0].2.encode(8, &mut created);
    let end = u32::from_le_bytes([created[4], created[5], created[6], created[7]]) as usize;
    let of_entry = |name, changes: &[_], right| refused(name, &created, changes, right, catalog::Entry::parse);
    let mut with = Vec::new();
    entries()[3].2.encode(8, &mut with);
    let with_end = u32::from_le_bytes([with[4], with[5], with[6], with[7]]) as usize;
    let of_settings =
        |name, changes: &[_]| refused(name, &with, changes, Some((4..with_end, 0)), catalog::Entry::parse);
    let (file_right, right) = (|| Some((0..60, 60)), || Some((4..end, 0)));
    vec![
        of_file("file: wrong magic", &[(0, b'k')], file_right()),
        of_file("file: unknown version", &[(4, 2)], file_right()),
        of_file("file: other header size", &[(6, 65)], file_right()),
        of_file("file: unknown kind", &[(32, 3)], file_right()),
        of_file("file: a field changed", &[(24, 4)], None),
        of_entry("entry: smaller than its header", &[(4, 23)], None),
        of_entry("entry: over the limit", &[(5, 32)], None),
        of_entry("entry: a byte changed", &[(24, 18)], None),
        of_entry("entry: unknown kind", &[(16, 8)], right()),
        of_entry("entry: unknown version", &[(18, 5)], right()),
        of_entry("entry: name beyond the body", &[(128, 200)], right()),
        of_entry("entry: name against the rules", &[(132, b'/')], right()),
        of_entry("entry: unknown durability", &[(64, 2)], right()),
        of_entry("entry: unknown order", &[(65, 2)], right()),
        of_entry("entry: unknown cleanup", &[(66, 3)], right()),
        of_entry("entry: unknown flag", &[(67, 16)], right()),
        of_entry("entry: unknown timestamps", &[(120, 2)], right()),
        of_entry("entry: unknown compression", &[(121, 6)], right()),
        of_entry("entry: unknown replication mode", &[(18, 3), (122, 2)], right()),
        of_settings("entry: no settings in the version that has some", &[(139, 0)]),
        of_settings("entry: more settings than there may be", &[(139, 65)]),
        of_settings("entry: settings that are not in their order", &[(147, b'z')]),
        of_settings("entry: a setting beyond the body", &[(174, 1)]),
        of_settings("entry: a setting that is no text", &[(147, 0xff)]),
        of_settings("entry: bytes behind the settings", &[(139, 1)]),
        refused("entry: padding cut", &created[..created.len() - 1], &[], None, catalog::Entry::parse),
    ]
}

#[test]
fn files_of_the_catalog_are_the_golden_bytes() {
    let header = CATALOG_FILE.encode();
    let header = Layout::of(&header)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .bytes("node", 16)
        .u64("generation")
        .u32("kind")
        .bytes("zero", 24)
        .u32("checksum")
        .case("file", "the header of a journal");
    let mut cases = vec![header];
    cases.extend(entries().iter().map(|(name, index, entry)| entry_case(name, *index, entry)));
    let code = Golden {
        structure: "catalog file".into(),
        document: "docs/formats/catalog.md".into(),
        cases,
        refused: refused_catalog(),
    };
    let golden = golden::check("catalog.json", &code);
    assert_eq!(catalog::FileHeader::parse(&golden.case("file").bytes()), Ok(CATALOG_FILE));
    for (name, index, entry) in entries() {
        let bytes = golden.case(name).bytes();
        assert_eq!(catalog::Entry::parse(&bytes), Ok((index, entry, bytes.len())), "{name}");
    }
    check_refused(&golden, "file", catalog::FileHeader::parse);
    check_refused(&golden, "entry", catalog::Entry::parse);
}

#[test]
fn what_was_written_with_shorter_options_is_read_with_defaults() {
    let altered = "58202bac580000000900000000000000020001000000000011000000000000000068e5cf8b010000040000000200000010000000\
                   000010000100000000000000010100060000000000000000000000000000004000000000";
    let bytes: Vec<u8> = (0..altered.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&altered[at..at + 2], 16).expect("two digits"))
        .collect();
    let default = StreamOptions::default();
    let known = StreamOptions {
        cleanup: Cleanup::Delete,
        segment_ms: default.segment_ms,
        compact_dirty_percent: default.compact_dirty_percent,
        compact_after_ms: default.compact_after_ms,
        compact_within_ms: default.compact_within_ms,
        tombstone_ms: default.tombstone_ms,
        timestamps: default.timestamps,
        batch_compression: default.batch_compression,
        ..options()
    };
    let entry = catalog::Entry::StreamAltered { stream: StreamId(17), at_ms: NOW_MS, options: known };
    assert_eq!(catalog::Entry::parse(&bytes), Ok((9, entry, bytes.len())));
}

#[test]
fn the_arenas_header_is_the_golden_bytes() {
    let blocks = arena::BlockSize::Plain;
    let arena = arena::ArenaHeader { node: NODE, boot_id: *b"fedcba9876543210", blocks, bytes: 1 << 30 };
    let bytes = arena.encode();
    let blocks = arena::BlockSize::Roomy;
    let roomy = arena::ArenaHeader { blocks, bytes: 29_127 * blocks.bytes() as u64, ..arena };
    let case = |bytes: &[u8], name, about| {
        Layout::of(bytes)
            .text("magic", 8)
            .u32("version")
            .u32("header_bytes")
            .bytes("node", 16)
            .bytes("boot_id", 16)
            .u64("bytes")
            .u64("table_offset")
            .u64("blocks_offset")
            .u32("block_bytes")
            .u32("checksum")
            .case(name, about)
    };
    let cases = vec![
        case(&bytes, "header", "of an arena of 1 GiB"),
        case(&roomy.encode(), "roomy", "of an arena of 1 GiB, as far as blocks of 36 KiB go into it"),
    ];
    let right = || Some((0..76, 76));
    let bad = |name, changes: &[_], right| refused(name, &bytes, changes, right, arena::ArenaHeader::parse);
    let code = Golden {
        structure: "arena header".into(),
        document: "docs/formats/arena.md".into(),
        cases,
        refused: vec![
            bad("wrong magic", &[(0, b'k')], right()),
            bad("unknown version", &[(8, 3)], right()),
            bad("not whole blocks", &[(48, 1)], right()),
            bad("not whole roomy blocks", &[(8, 2)], right()),
            bad("no blocks", &[(51, 0)], right()),
            bad("too large", &[(54, 1)], right()),
            bad("another place for the blocks", &[(66, 2)], right()),
            bad("a field changed", &[(16, 1)], None),
        ],
    };
    let golden = golden::check("arena.json", &code);
    assert_eq!(arena::ArenaHeader::parse(&golden.case("header").bytes()), Ok(arena));
    assert_eq!(arena::ArenaHeader::parse(&golden.case("roomy").bytes()), Ok(roomy));
    check_refused(&golden, "", arena::ArenaHeader::parse);
    for (byte, entry) in [
        (0x00, Some(arena::TableEntry::Free)),
        (0x48, Some(arena::TableEntry::Segment(8))),
        (0x83, Some(arena::TableEntry::Reserved(3))),
        (0x01, None),
        (0x49, Some(arena::TableEntry::Segment(9))),
        (0x4a, None),
        (0xc0, None),
    ] {
        assert_eq!(arena::TableEntry::from_byte(byte), entry, "{byte:#x}");
    }
}

#[test]
fn documents_show_the_golden_bytes() {
    for document in ["formats/vlog.md", "formats/catalog.md", "formats/arena.md"] {
        documents::check(document, |_| None);
    }
}
