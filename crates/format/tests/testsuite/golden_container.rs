//! Container files against `spec/container.json`.

use kera_format::checksum::crc32c;
use kera_format::container::{
    BatchHeader, CONTAINER_HEADER_BYTES, ContainerEntry, ContainerHeader, ENTRY_BYTES, MARK_BYTES, ProducerMark,
    ReleasedMap, TRAILER_BYTES, Trailer, footer_bytes, index_bytes,
};
use kera_format::extent::ExtentMarker;
use kera_format::ids::*;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused};

const CONTAINER: ContainerHeader = ContainerHeader {
    node: *b"0123456789abcdef",
    container: 7,
    key: 0x1122_3344_5566_7788,
    created_ms: 1_700_000_000_000,
};
/// Where the batch starts in the file, and what it takes there: its index and one image.
const BATCH: (u64, u64) = (0x5000, 0x1000 + 0x2000);
const FOOTER_AT: u64 = 0x8000;
const EXTENT: (u64, u64, u32, u32) = (0x5000, 0x2000, 65_536, 3);

fn entry() -> ContainerEntry {
    ContainerEntry {
        header: SegmentHeader {
            id: SegmentId {
                stream: StreamId(0x1122),
                streamlet: StreamletId(3),
                lane: LaneId(1),
                group: GroupId::new(7, 9),
                index: SegmentIndex(4),
            },
            capacity_bytes: 65_536,
            base_ordinal: 1_000_000,
            created_ms: 1_700_000_000_000,
            flags: 1,
        },
        progress: SegmentProgress {
            head: 8_000,
            durable_head: 8_000,
            next_ordinal: 1_000_090,
            state: SegmentState::Closed,
            chunk_count: 2,
            first_append_ms: 1_700_000_000_123,
            last_append_ms: 1_700_000_000_456,
            max_timestamp_ms: 1_700_000_000_400,
        },
        at: BATCH.0 + 0x1000,
        marks: vec![ProducerMark {
            producer_id: ProducerId(0x0a0b_0c0d),
            producer_epoch: ProducerEpoch(2),
            sequence: 41,
            base_ordinal: 1_000_050,
            position: 4_128,
        }],
    }
}

fn page() -> Vec<u8> {
    let mut page = vec![0xff; CONTAINER_HEADER_BYTES];
    CONTAINER.write(&mut page);
    let mut released = ReleasedMap::default();
    [0, 2, 9].into_iter().for_each(|number| released.set(number));
    released.write(&mut page);
    page
}

fn index() -> Vec<u8> {
    let mut bytes = vec![0xff; index_bytes(1, 1) as usize];
    BatchHeader::write(&CONTAINER, BATCH, 5, &[entry()], &mut bytes);
    bytes
}

fn footer() -> Vec<u8> {
    let mut bytes = vec![0xff; footer_bytes(1, 1) as usize];
    Trailer::write(&CONTAINER, FOOTER_AT, &[entry()], &mut bytes);
    bytes
}

fn extent() -> ExtentMarker {
    let (at, index_bytes, capacity_bytes, number) = EXTENT;
    ExtentMarker::new(&CONTAINER, at, index_bytes, capacity_bytes, number)
}

fn extent_bytes() -> Vec<u8> {
    let mut bytes = vec![0xff; 64];
    extent().write(&mut bytes);
    bytes
}

fn extent_case(bytes: &[u8]) -> Case {
    Layout::of(bytes)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u64("container")
        .u64("key")
        .u64("at")
        .u64("extent_bytes")
        .u32("index_bytes")
        .u32("number")
        .bytes("zero", 12)
        .u32("checksum")
        .case("extent", "the first 64 bytes of an extent for a segment of 64 KiB")
}

fn header_case(bytes: &[u8]) -> Case {
    Layout::of(bytes)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .bytes("node", 16)
        .u64("container")
        .u64("key")
        .i64("created_ms")
        .bytes("zero", 12)
        .u32("checksum")
        .case("header", "the first 64 bytes of the file")
}

fn entry_fields(layout: Layout<'_>) -> Layout<'_> {
    layout
        .bytes("segment header", 128)
        .u64("entry.at")
        .u32("entry.mark_count")
        .u32("entry.zero")
        .u64("mark.producer_id")
        .u64("mark.sequence")
        .u64("mark.base_ordinal")
        .u32("mark.position")
        .u16("mark.producer_epoch")
        .u16("mark.zero")
}

fn index_case(bytes: &[u8]) -> Case {
    let layout = Layout::of(bytes)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u64("container")
        .u64("key")
        .u64("at")
        .u64("batch_bytes")
        .u32("first")
        .u32("count")
        .u32("mark_count")
        .u32("zero")
        .u32("entries_checksum")
        .u32("checksum");
    entry_fields(layout).case("index", "of a batch of one segment of one producer, without the zeros behind it")
}

fn trailer_case(bytes: &[u8]) -> Case {
    Layout::of(bytes)
        .text("magic", 4)
        .u16("version")
        .u16("trailer_bytes")
        .u64("container")
        .u64("key")
        .u64("at")
        .u32("count")
        .u32("mark_count")
        .bytes("zero", 16)
        .u32("entries_checksum")
        .u32("checksum")
        .case("trailer", "the last 64 bytes of the file; in front of it the entries and marks as in the index")
}

fn refuse_index(bytes: &[u8]) -> Option<String> {
    BatchHeader::parse(bytes).and_then(|batch| batch.entries(bytes)).err().map(|e| e.to_string())
}

/// Whether a structure is refused whose checksum was made right again, so that the field itself is what is refused.
fn resealed(
    name: &str,
    mut bytes: Vec<u8>,
    changes: &[(usize, u8)],
    entries: Option<(std::ops::Range<usize>, usize)>,
    refuse: impl Fn(&[u8]) -> Option<String>,
) -> Refused {
    changes.iter().for_each(|(at, value)| bytes[*at] = *value);
    let start = entries.as_ref().map_or(0, |(_, start)| *start);
    if let Some((range, start)) = entries {
        let crc = crc32c(&bytes[range]);
        bytes[start + 56..start + 60].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&bytes[start..start + 60]);
    bytes[start + 60..start + 64].copy_from_slice(&crc.to_le_bytes());
    Refused { name: name.into(), error: refuse(&bytes).expect(name), bytes }
}

fn refused() -> Vec<Refused> {
    let header = |name: &str, changes: &[(usize, u8)]| {
        let refuse = |bytes: &[u8]| {
            let mut page = bytes.to_vec();
            page.resize(CONTAINER_HEADER_BYTES, 0);
            ContainerHeader::parse(&page).err().map(|e| e.to_string())
        };
        resealed(name, page()[..64].to_vec(), changes, None, refuse)
    };
    let entries_end = 64 + ENTRY_BYTES + MARK_BYTES;
    let index = |name: &str, changes: &[(usize, u8)]| {
        let bytes = index()[..entries_end].to_vec();
        resealed(name, bytes, changes, Some((64..entries_end, 0)), refuse_index)
    };
    let trailer = |name: &str, changes: &[(usize, u8)]| {
        let bytes = footer();
        let bytes = bytes[bytes.len() - TRAILER_BYTES..].to_vec();
        let refuse = |bytes: &[u8]| Trailer::parse(bytes, FOOTER_AT + 4096).err().map(|e| e.to_string());
        resealed(name, bytes, changes, None, refuse)
    };
    let extent = |name: &str, changes: &[(usize, u8)]| {
        let refuse = |bytes: &[u8]| ExtentMarker::parse(bytes).err().map(|e| e.to_string());
        resealed(name, extent_bytes(), changes, None, refuse)
    };
    let as_it_is = |name: &str, at: usize| {
        let mut bytes = self::index()[..entries_end].to_vec();
        bytes[at] ^= 1;
        Refused { name: name.into(), error: refuse_index(&bytes).expect(name), bytes }
    };
    vec![
        header("header: wrong magic", &[(3, b'M')]),
        header("header: unknown version", &[(4, 2)]),
        header("header: other size", &[(6, 1)]),
        index("index: wrong magic", &[(3, b'B')]),
        index("index: unknown version", &[(4, 2)]),
        index("index: no segment", &[(44, 0)]),
        index("index: more segments than a container has", &[(46, 1)]),
        index("index: more marks than a container has", &[(51, 1)]),
        index("index: a batch smaller than its index", &[(33, 0)]),
        index("index: a batch that does not end at a page", &[(32, 8)]),
        index("index: more marks than it has", &[(64 + 136, 2)]),
        index("index: an image that does not start at a page", &[(64 + 128, 1)]),
        index("index: an image outside its batch", &[(64 + 129, 0x70)]),
        as_it_is("index: a field changed", 16),
        as_it_is("index: an entry changed", 64 + 100),
        trailer("trailer: wrong magic", &[(3, b'F')]),
        trailer("trailer: not where the footer of this file must end", &[(25, 0x70)]),
        trailer("trailer: more segments than a container has", &[(34, 1)]),
        extent("extent: wrong magic", &[(3, b'Y')]),
        extent("extent: unknown version", &[(4, 2)]),
        extent("extent: does not start at a page", &[(24, 8)]),
        extent("extent: no room for a segment", &[(34, 0)]),
        extent("extent: an index that does not end at a page", &[(40, 8)]),
        extent("extent: more segments than a container has", &[(46, 1)]),
    ]
}

#[test]
fn containers_are_as_the_golden_bytes_say() {
    let (page, index, footer) = (page(), index(), footer());
    let entries_end = 64 + ENTRY_BYTES + MARK_BYTES;
    let sector = Layout::of(&page[512..1024])
        .bytes("map", 508)
        .u32("checksum")
        .case("released map", "its first sector: segments 0, 2 and 9 are released");
    let code = Golden {
        structure: "container".into(),
        document: "docs/formats/container.md".into(),
        cases: vec![
            header_case(&page[..64]),
            sector,
            index_case(&index[..entries_end]),
            trailer_case(&footer[footer.len() - TRAILER_BYTES..]),
            extent_case(&extent_bytes()),
        ],
        refused: refused(),
    };
    let golden = golden::check("container.json", &code);

    let mut page = vec![0; CONTAINER_HEADER_BYTES];
    page[..64].copy_from_slice(&golden.case("header").bytes());
    page[512..1024].copy_from_slice(&golden.case("released map").bytes());
    assert_eq!(ContainerHeader::parse(&page), Ok(CONTAINER));
    let (released, damaged) = ReleasedMap::parse(&page).expect("a page");
    assert_eq!(damaged, 6, "the other sectors are zeros, without a checksum");
    let numbers: Vec<u32> = (0..100).filter(|number| released.get(*number)).collect();
    assert_eq!(numbers, [0, 2, 9]);

    let index = golden.case("index").bytes();
    let batch = BatchHeader::parse(&index).expect("an index");
    assert_eq!((batch.container, batch.key), (CONTAINER.container, CONTAINER.key));
    assert_eq!((batch.at, batch.batch_bytes, batch.first, batch.count()), (BATCH.0, BATCH.1, 5, 1));
    assert_eq!(batch.entries(&index), Ok(vec![entry()]));

    let trailer = Trailer::parse(&golden.case("trailer").bytes(), FOOTER_AT + 4096).expect("a trailer");
    assert_eq!((trailer.at, trailer.count()), (FOOTER_AT, 1));
    assert_eq!(trailer.entries(&index[64..]), Ok(vec![entry()]), "the same entries as in the index");
    assert_eq!(index[64..], footer[..ENTRY_BYTES + MARK_BYTES]);

    assert_eq!(ExtentMarker::parse(&golden.case("extent").bytes()), Ok(extent()));
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/container.md", |_| None);
}
