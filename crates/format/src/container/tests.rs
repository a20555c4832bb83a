use proptest::prelude::*;

use super::*;
use crate::chunk::{BrokerPart, ChunkBuilder, ChunkTarget};
use crate::{Compression, GroupId, LaneId, Record, SegmentId, SegmentIndex, StreamId, StreamletId};

fn container() -> ContainerHeader {
    ContainerHeader { node: *b"0123456789abcdef", container: 7, key: 0x1122_3344_5566_7788, created_ms: 99 }
}

fn id(index: u32) -> SegmentId {
    SegmentId {
        stream: StreamId(3),
        streamlet: StreamletId(1),
        lane: LaneId(2),
        group: GroupId::new(1, 4),
        index: SegmentIndex(index),
    }
}

/// A closed segment with `chunks` chunks of one record of `value_bytes`.
fn image(index: u32, chunks: u32, value_bytes: usize) -> Vec<u8> {
    let id = id(index);
    let header = SegmentHeader { id, capacity_bytes: 1 << 20, base_ordinal: 100, created_ms: 5, flags: 0 };
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
    header.write(&mut bytes);
    for n in 0..chunks {
        let value = vec![n as u8; value_bytes];
        let mut builder = ChunkBuilder::default();
        builder.push(&Record { value: Some(&value), ..Record::default() });
        let target = ChunkTarget { stream: id.stream, streamlet: id.streamlet, ..ChunkTarget::default() };
        let mut chunk = builder.seal(&target, Compression::None).unwrap();
        let broker = BrokerPart {
            group: id.group,
            segment: id.index,
            base_ordinal: 100 + u64::from(n),
            append_time_ms: 6,
            lane: id.lane,
            position: bytes.len() as u32,
        };
        broker.stamp(&mut chunk);
        bytes.extend_from_slice(&chunk);
    }
    let head = bytes.len() as u64;
    let progress = SegmentProgress {
        head,
        durable_head: head,
        next_ordinal: 100 + u64::from(chunks),
        state: SegmentState::Closed,
        chunk_count: chunks,
        first_append_ms: 6,
        last_append_ms: 6,
        max_timestamp_ms: crate::chunk::NO_TIMESTAMP,
    };
    progress.write(&mut bytes);
    bytes
}

fn entry(index: u32, at: u64) -> ContainerEntry {
    let image = image(index, 2, 10);
    let header = SegmentHeader::parse(&image).unwrap();
    let progress = SegmentProgress::parse(&image, header.capacity_bytes).unwrap();
    let mark = |sequence| ProducerMark {
        producer_id: ProducerId(8),
        producer_epoch: ProducerEpoch(2),
        sequence,
        base_ordinal: 100 + sequence,
        position: 128,
    };
    ContainerEntry { header, progress, at, marks: (0..u64::from(index % 4)).map(mark).collect() }
}

fn index(entries: &[ContainerEntry], at: u64) -> Vec<u8> {
    let mut bytes = vec![0xff; index_bytes(entries.len() as u32, mark_count(entries)) as usize];
    let batch_bytes = bytes.len() as u64 + entries.len() as u64 * 4096;
    BatchHeader::write(&container(), (at, batch_bytes), 5, entries, &mut bytes);
    bytes
}

#[test]
fn header_comes_back_and_released_map_does_not_disturb_it() {
    let mut page = vec![0xff; CONTAINER_HEADER_BYTES];
    container().write(&mut page);
    let mut map = ReleasedMap::default();
    for number in [0, 9, 4063, 4064, CONTAINER_SEGMENTS_MAX - 1] {
        map.set(number);
    }
    map.write(&mut page);
    assert_eq!(ContainerHeader::parse(&page), Ok(container()));
    let (back, damaged) = ReleasedMap::parse(&page).unwrap();
    assert_eq!((back == map, damaged), (true, 0));
    assert!(back.get(9) && back.get(4064) && !back.get(10) && !back.get(u32::MAX));
}

#[test]
fn damaged_sector_of_the_map_releases_nothing() {
    let mut page = vec![0; CONTAINER_HEADER_BYTES];
    let mut map = ReleasedMap::default();
    map.set(1);
    map.set(5000);
    map.write(&mut page);
    page[512] ^= 4;
    let (back, damaged) = ReleasedMap::parse(&page).unwrap();
    assert_eq!((back.get(1), back.get(2), back.get(5000), damaged), (false, false, true, 1));
}

#[test]
fn batch_and_footer_give_the_same_entries() {
    let entries: Vec<ContainerEntry> = (0..40).map(|n| entry(n, 12288 + u64::from(n) * 4096)).collect();
    let bytes = index(&entries, 4096);
    assert_eq!(bytes.len(), 8192);
    let batch = BatchHeader::parse(&bytes).unwrap();
    assert_eq!((batch.container, batch.key, batch.at, batch.first, batch.count()), (7, container().key, 4096, 5, 40));
    assert_eq!(batch.entries(&bytes).unwrap(), entries);

    let at = 12288 + 40 * 4096;
    let mut footer = vec![0xff; footer_bytes(40, mark_count(&entries)) as usize];
    Trailer::write(&container(), at, &entries, &mut footer);
    let trailer = Trailer::parse(&footer, at + footer.len() as u64).unwrap();
    assert_eq!((trailer.container, trailer.at, trailer.count()), (7, at, 40));
    assert_eq!(trailer.entries(&footer).unwrap(), entries);
}

#[test]
fn footer_at_another_place_or_in_front_of_an_image_is_refused() {
    let mut footer = vec![0; footer_bytes(1, 0) as usize];
    Trailer::write(&container(), 8192, &[entry(0, 8192)], &mut footer);
    assert!(Trailer::parse(&footer, 8192 + 8192).is_err());
    let trailer = Trailer::parse(&footer, 8192 + 4096).unwrap();
    assert!(matches!(trailer.entries(&footer), Err(FormatError::BadField { field: "container_entry.at", .. })));
}

#[test]
fn images_outside_their_batch_are_refused() {
    for at in [4096, 4096 + 4096 + 4096] {
        let bytes = index(&[entry(0, at)], 4096);
        let batch = BatchHeader::parse(&bytes).unwrap();
        assert!(
            matches!(batch.entries(&bytes), Err(FormatError::BadField { field: "container_entry.at", .. })),
            "{at}"
        );
    }
}

#[test]
fn counts_that_lie_are_refused_before_memory_is_taken() {
    let mut bytes = index(&[entry(0, 8192)], 4096);
    put(&mut bytes, 44, &u32::MAX.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    put(&mut bytes, 60, &crc.to_le_bytes());
    assert!(matches!(BatchHeader::parse(&bytes), Err(FormatError::OverLimit { field: "container_batch.count", .. })));
    let mut footer = vec![0; footer_bytes(1, 0) as usize];
    Trailer::write(&container(), 8192, &[entry(0, 4096)], &mut footer);
    let trailer_at = footer.len() - TRAILER_BYTES;
    put(&mut footer, trailer_at + 32, &(CONTAINER_SEGMENTS_MAX + 1).to_le_bytes());
    let crc = crc32c(&footer[trailer_at..trailer_at + 60]);
    put(&mut footer, trailer_at + 60, &crc.to_le_bytes());
    assert!(matches!(Trailer::parse(&footer, 12288), Err(FormatError::OverLimit { .. })));
}

#[test]
fn more_marks_than_there_are_is_refused() {
    let mut bytes = index(&[entry(1, 8192)], 4096);
    put(&mut bytes, 64 + 136, &2u32.to_le_bytes());
    let crc = crc32c(&bytes[64..64 + 144 + 32]);
    put(&mut bytes, 56, &crc.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    put(&mut bytes, 60, &crc.to_le_bytes());
    let refused = BatchHeader::parse(&bytes).unwrap().entries(&bytes).unwrap_err();
    assert!(matches!(refused, FormatError::BadField { field: "container_entry.mark_count", .. }), "{refused}");
}

#[test]
fn open_segment_is_no_entry() {
    let mut open = entry(0, 8192);
    open.progress.state = SegmentState::Open;
    let bytes = index(&[open], 4096);
    let refused = BatchHeader::parse(&bytes).unwrap().entries(&bytes).unwrap_err();
    assert!(matches!(refused, FormatError::BadField { field: "container_entry.state", .. }), "{refused}");
}

#[test]
fn image_of_another_place_is_refused() {
    let mut bytes = image(3, 3, 50);
    assert!(verify_image(&bytes).is_ok());
    // The same chunks under the header of another segment: every checksum holds, the place does not.
    let header = SegmentHeader { id: id(4), ..SegmentHeader::parse(&bytes).unwrap() };
    header.write(&mut bytes);
    assert!(matches!(verify_image(&bytes), Err(FormatError::BadField { field: "chunk.segment", .. })));
}

/// An image of eight chunks with those of these numbers left out.
fn compacted(gone: &[usize]) -> Vec<u8> {
    let whole = image(0, 8, 100);
    let header = SegmentHeader::parse(&whole).unwrap().rewritten(9, true).unwrap();
    let mut progress = SegmentProgress::parse(&whole, header.capacity_bytes).unwrap();
    let chunk_bytes = (whole.len() - SEGMENT_HEADER_BYTES) / 8;
    let mut bytes = whole[..SEGMENT_HEADER_BYTES].to_vec();
    for (n, chunk) in whole[SEGMENT_HEADER_BYTES..].chunks(chunk_bytes).enumerate() {
        if !gone.contains(&n) {
            bytes.extend_from_slice(chunk);
        }
    }
    (progress.head, progress.durable_head) = (bytes.len() as u64, bytes.len() as u64);
    progress.chunk_count -= gone.len() as u32;
    header.write(&mut bytes);
    progress.write(&mut bytes);
    bytes
}

#[test]
fn image_of_a_compacted_segment_has_holes_and_keeps_its_order() {
    let mut bytes = compacted(&[0, 3, 4]);
    assert!(verify_image(&bytes).is_ok());
    let header = SegmentHeader::parse(&bytes).unwrap();
    SegmentHeader { flags: 0, ..header }.write(&mut bytes);
    let refused = verify_image(&bytes);
    assert!(matches!(refused, Err(FormatError::BadField { field: "chunk.position", .. })), "{refused:?}");
    // Two chunks that change places.
    let mut bytes = compacted(&[0]);
    let chunk_bytes = (bytes.len() - SEGMENT_HEADER_BYTES) / 7;
    bytes[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + 2 * chunk_bytes].rotate_left(chunk_bytes);
    let refused = verify_image(&bytes);
    assert!(matches!(refused, Err(FormatError::BadField { field: "chunk.position", .. })), "{refused:?}");
}

#[test]
fn image_with_a_hole_is_refused() {
    let whole = image(0, 8, 2000);
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0);
        assert!(verify_image(&bytes).is_err(), "page {page}");
    }
    assert!(verify_image(&whole[..whole.len() - 1]).is_err());
    assert!(verify_image(&[]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_header_comes_back(node: [u8; 16], number: u64, key: u64, created_ms: i64) {
        let header = ContainerHeader { node, container: number, key, created_ms };
        let mut page = vec![0; CONTAINER_HEADER_BYTES];
        header.write(&mut page);
        prop_assert_eq!(ContainerHeader::parse(&page), Ok(header));
    }

    #[test]
    fn any_released_map_comes_back(numbers in proptest::collection::btree_set(0..CONTAINER_SEGMENTS_MAX, 0..50)) {
        let mut map = ReleasedMap::default();
        numbers.iter().for_each(|number| map.set(*number));
        let mut page = vec![0; CONTAINER_HEADER_BYTES];
        map.write(&mut page);
        let (back, _) = ReleasedMap::parse(&page).unwrap();
        let found: Vec<u32> = (0..CONTAINER_SEGMENTS_MAX).filter(|number| back.get(*number)).collect();
        prop_assert_eq!(found, numbers.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn one_flipped_bit_of_an_index_is_noticed(bit in 0usize..(64 + 2 * 144 + 32) * 8) {
        let mut bytes = index(&[entry(0, 8192), entry(1, 12288)], 4096);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(BatchHeader::parse(&bytes).and_then(|batch| batch.entries(&bytes)).is_err());
    }

    #[test]
    fn one_flipped_bit_of_a_footer_is_noticed(bit in 0usize..(2 * 144 + 32 + 64) * 8) {
        let mut bytes = vec![0; footer_bytes(2, 1) as usize];
        Trailer::write(&container(), 12288 + 4096, &[entry(0, 8192), entry(1, 12288)], &mut bytes);
        let at = if bit / 8 < 320 { bit / 8 } else { bytes.len() - 64 + bit / 8 - 320 };
        bytes[at] ^= 1 << (bit % 8);
        let file_bytes = 16384 + bytes.len() as u64;
        prop_assert!(Trailer::parse(&bytes, file_bytes).and_then(|trailer| trailer.entries(&bytes)).is_err());
    }

    #[test]
    fn one_flipped_bit_of_an_image_is_noticed(seed: u64) {
        let mut bytes = image(0, 3, 77);
        let mut at = seed as usize % bytes.len();
        // Neither the padding behind a chunk's payload nor the durable head is covered by a checksum.
        let chunk_bytes = (bytes.len() - 128) / 3;
        let payload_end = ChunkView::parse(&bytes[128..]).unwrap().header().unpadded_bytes();
        if (72..80).contains(&at) || at >= 128 && (at - 128) % chunk_bytes >= payload_end {
            at = 40;
        }
        bytes[at] ^= 1 << (seed >> 61);
        prop_assert!(verify_image(&bytes).is_err(), "byte {}", at);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000), file_bytes: u64) {
        let _ = ContainerHeader::parse(&bytes);
        let _ = ReleasedMap::parse(&bytes);
        let _ = BatchHeader::parse(&bytes).map(|batch| batch.entries(&bytes));
        let _ = Trailer::parse(&bytes, file_bytes).map(|trailer| trailer.entries(&bytes));
        let _ = verify_image(&bytes);
    }

    #[test]
    fn bytes_with_right_checksums_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 400), file_bytes: u64) {
        for (magic, size) in [(CONTAINER_MAGIC, 4096), (BATCH_MAGIC, 64), (TRAILER_MAGIC, 64)] {
            start(&mut bytes, magic, size);
            let crc = crc32c(&bytes[..60]);
            put(&mut bytes, 60, &crc.to_le_bytes());
            let _ = BatchHeader::parse(&bytes).map(|batch| batch.entries(&bytes));
            let _ = Trailer::parse(&bytes[..64], file_bytes).map(|trailer| trailer.entries(&bytes));
        }
    }
}
