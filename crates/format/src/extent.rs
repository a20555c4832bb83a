//! A segment in a container before it is closed: room that is written as the segment grows, so that the bytes of a large
//! lane go to disk once (decision 0009).
//!
//! ```text
//! page 0            marker
//! page 1 …          room for the index of a batch of one segment, zeros until the segment is closed
//! behind            room for the image: as many pages as the segment's capacity
//! ```
//! The marker is written once, with the first bytes of the image, and never changed. Once the segment is closed the index
//! says so, as that of any batch of a container, and the image's header with it. Until then the segment ends where its
//! chunks do: every chunk carries its place and two checksums, and what was never written is zeros.
//!
//! ```text
//! marker    0  4  magic             "KCEX"
//!           4  2  version           1
//!           6  2  header_bytes      64
//!           8  8  container         as in the container's header
//!          16  8  key               as in the container's header
//!          24  8  at                where the marker starts in the file
//!          32  8  extent_bytes      of marker, index and image: the next extent or the footer starts behind them
//!          40  4  index_bytes       of the room for the index
//!          44  4  number            of the segment in the container
//!          48 12  zero
//!          60  4  checksum          CRC-32C of bytes 0..60
//! ```

use crate::checksum::crc32c;
use crate::chunk::{ChunkView, NO_TIMESTAMP};
use crate::container::{CONTAINER_BYTES_MAX, CONTAINER_SEGMENTS_MAX, ContainerHeader, PAGE_BYTES};
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use crate::start::Start;
use crate::wire::{put, u32_at, u64_at};
use crate::{BrokerPart, FormatError, limits};

/// The first four bytes of an extent: "KCEX".
pub const EXTENT_MAGIC: u32 = u32::from_le_bytes(*b"KCEX");
/// The version of this layout.
pub const EXTENT_VERSION: u16 = 1;
/// Bytes of the marker that are used; it takes a page.
pub const MARKER_BYTES: usize = 64;

const START: Start = Start {
    magic: (EXTENT_MAGIC, "\"KCEX\""),
    version: (EXTENT_VERSION, "1"),
    header_bytes: (MARKER_BYTES, "64"),
    checksum_at: 60,
    fields: [
        "container_extent.magic",
        "container_extent.checksum",
        "container_extent.version",
        "container_extent.header_bytes",
    ],
};

/// The first page of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentMarker {
    /// Number of the file in its node.
    pub container: u64,
    /// The file's key.
    pub key: u64,
    /// Where the extent starts in the file.
    pub at: u64,
    /// Room for the index.
    pub index_bytes: u32,
    /// Room for the image.
    pub image_bytes: u32,
    /// Number of the segment in the container.
    pub number: u32,
}

impl ExtentMarker {
    /// An extent of a container, with room for an index of `index_bytes` and a segment of `capacity_bytes`, both whole
    /// pages.
    pub fn new(
        container: &ContainerHeader,
        at: u64,
        index_bytes: u64,
        capacity_bytes: u32,
        number: u32,
    ) -> ExtentMarker {
        let (container, key) = (container.container, container.key);
        ExtentMarker { container, key, at, index_bytes: index_bytes as u32, image_bytes: capacity_bytes, number }
    }

    /// What the extent takes in the file.
    pub fn extent_bytes(&self) -> u64 {
        PAGE_BYTES as u64 + u64::from(self.index_bytes) + u64::from(self.image_bytes)
    }

    /// Where the index starts in the file.
    pub fn index_at(&self) -> u64 {
        self.at + PAGE_BYTES as u64
    }

    /// Where the image starts in the file.
    pub fn image_at(&self) -> u64 {
        self.index_at() + u64::from(self.index_bytes)
    }

    /// Where the next extent or the footer starts in the file.
    pub fn end(&self) -> u64 {
        self.at + self.extent_bytes()
    }

    /// Writes the marker over the first 64 bytes of `page`.
    pub fn write(&self, page: &mut [u8]) {
        put(page, 0, &EXTENT_MAGIC.to_le_bytes());
        put(page, 4, &EXTENT_VERSION.to_le_bytes());
        put(page, 6, &(MARKER_BYTES as u16).to_le_bytes());
        put(page, 8, &self.container.to_le_bytes());
        put(page, 16, &self.key.to_le_bytes());
        put(page, 24, &self.at.to_le_bytes());
        put(page, 32, &self.extent_bytes().to_le_bytes());
        put(page, 40, &self.index_bytes.to_le_bytes());
        put(page, 44, &self.number.to_le_bytes());
        put(page, 48, &[0; 12]);
        let crc = crc32c(&page[..60]);
        put(page, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies a marker. That it belongs to the container and to the place it was read from is for the caller
    /// to compare.
    pub fn parse(page: &[u8]) -> Result<ExtentMarker, FormatError> {
        FormatError::need("container extent", MARKER_BYTES, page.len())?;
        START.check(page)?;
        let bad = |field, value: u64, allowed| Err(FormatError::BadField { field, value, allowed });
        let (at, extent_bytes, index_bytes) = (u64_at(page, 24), u64_at(page, 32), u32_at(page, 40));
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES as u64);
        let image_bytes = extent_bytes.checked_sub(PAGE_BYTES as u64 + u64::from(index_bytes));
        let image_bytes = match image_bytes.map(u32::try_from) {
            Some(Ok(bytes)) if bytes as usize <= limits::SEGMENT_BYTES_MAX && whole(extent_bytes) => bytes,
            _ => {
                let allowed = "whole pages: the marker's, those of the index, and 64 KiB to 16 MiB";
                return bad("container_extent.extent_bytes", extent_bytes, allowed);
            }
        };
        if (image_bytes as usize) < limits::SEGMENT_BYTES_MIN || index_bytes == 0 || !whole(index_bytes.into()) {
            let allowed = "one whole page or more, with room left for the image";
            return bad("container_extent.index_bytes", index_bytes.into(), allowed);
        }
        if at.saturating_add(extent_bytes) > CONTAINER_BYTES_MAX || !whole(at) {
            return bad("container_extent.at", at, "a multiple of 4096 in a file of at most 1 TiB");
        }
        let number = u32_at(page, 44);
        if number >= CONTAINER_SEGMENTS_MAX {
            let limit = u64::from(CONTAINER_SEGMENTS_MAX) - 1;
            return Err(FormatError::OverLimit { field: "container_extent.number", value: number.into(), limit });
        }
        Ok(ExtentMarker { container: u64_at(page, 8), key: u64_at(page, 16), at, index_bytes, image_bytes, number })
    }
}

/// Reads the image of a segment that was not closed: its header, and how far its chunks go. Only the half of the header
/// that never changes is believed; the rest is what the chunks say, as if the segment had been closed behind the last.
///
/// Chunks are taken as long as they verify, payload and all, lie where they say and go on with the ordinals. An error
/// if there is no header: then nothing was ever written.
pub fn walk_image(bytes: &[u8]) -> Result<(SegmentHeader, SegmentProgress), FormatError> {
    FormatError::need("segment image", SEGMENT_HEADER_BYTES, bytes.len())?;
    let header = SegmentHeader::parse(bytes)?;
    let bytes = &bytes[..bytes.len().min(header.capacity_bytes as usize)];
    let mut progress = SegmentProgress { state: SegmentState::Closed, ..SegmentProgress::empty(header.base_ordinal) };
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some(chunk) = whole_chunk(&bytes[at..]) {
        let (chunk, broker) = chunk;
        let here = broker.position as usize == at
            && (broker.segment, broker.group, broker.lane) == (header.id.index, header.id.group, header.id.lane)
            && (chunk.header().stream, chunk.header().streamlet) == (header.id.stream, header.id.streamlet)
            && broker.base_ordinal >= progress.next_ordinal;
        if !here {
            break;
        }
        if progress.chunk_count == 0 {
            progress.first_append_ms = broker.append_time_ms;
        }
        progress.chunk_count += 1;
        progress.last_append_ms = broker.append_time_ms;
        progress.max_timestamp_ms = progress.max_timestamp_ms.max(chunk.header().max_timestamp_ms);
        progress.next_ordinal = broker.base_ordinal.saturating_add(chunk.header().record_count.into());
        at += chunk.as_bytes().len();
    }
    (progress.head, progress.durable_head) = (at as u64, at as u64);
    Ok((header, progress))
}

fn whole_chunk(bytes: &[u8]) -> Option<(ChunkView<'_>, BrokerPart)> {
    let chunk = ChunkView::parse(bytes).ok()?;
    let broker = chunk.broker().ok()?;
    chunk.verify().ok()?;
    Some((chunk, broker))
}

const _: () = assert!(NO_TIMESTAMP == i64::MIN, "the maximum of none is none");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkTarget;
    use crate::container::verify_image;
    use crate::{ChunkBuilder, Compression, GroupId, LaneId, Record, SegmentId, SegmentIndex, StreamId, StreamletId};
    use proptest::prelude::*;

    fn marker() -> ExtentMarker {
        ExtentMarker { container: 3, key: 4, at: 8192, index_bytes: 8192, image_bytes: 1 << 20, number: 5 }
    }

    #[test]
    fn a_marker_comes_back_and_says_where_what_is() {
        let mut page = [0; PAGE_BYTES];
        marker().write(&mut page);
        assert_eq!(ExtentMarker::parse(&page), Ok(marker()));
        assert_eq!((marker().index_at(), marker().image_at()), (12_288, 20_480));
        assert_eq!(marker().end(), 20_480 + (1 << 20));
        for bit in 0..MARKER_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(ExtentMarker::parse(&page).is_err(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        for (index_bytes, image_bytes) in
            [(0, 1 << 20), (4096, 32 << 10), (100, 1 << 20), (4096, 32 << 20), (4096, (1 << 20) + 100)]
        {
            let mut page = [0; PAGE_BYTES];
            ExtentMarker { index_bytes, image_bytes, ..marker() }.write(&mut page);
            assert!(ExtentMarker::parse(&page).is_err(), "{index_bytes} {image_bytes}");
        }
    }

    /// An open segment with `chunks` chunks, as it is on disk: zeros behind.
    fn image(chunks: u64) -> Vec<u8> {
        let id = SegmentId {
            stream: StreamId(1),
            streamlet: StreamletId(2),
            lane: LaneId(3),
            group: GroupId::new(1, 4),
            index: SegmentIndex(5),
        };
        let mut bytes = vec![0; 64 << 10];
        SegmentHeader { id, capacity_bytes: 64 << 10, base_ordinal: 100, created_ms: 7, flags: 0 }.write(&mut bytes);
        SegmentProgress::empty(100).write(&mut bytes);
        let mut at = SEGMENT_HEADER_BYTES;
        for n in 0..chunks {
            let mut builder = ChunkBuilder::default();
            builder.push(&Record { timestamp_ms: Some(n as i64), ..Record::value(b"some value") });
            let target = ChunkTarget { stream: id.stream, streamlet: id.streamlet, ..ChunkTarget::default() };
            let mut chunk = builder.seal(&target, Compression::None).expect("sealed");
            let part = BrokerPart {
                group: id.group,
                segment: id.index,
                base_ordinal: 100 + n,
                append_time_ms: 1000 + n as i64,
                lane: id.lane,
                position: at as u32,
            };
            part.stamp(&mut chunk);
            bytes[at..at + chunk.len()].copy_from_slice(&chunk);
            at += chunk.len();
        }
        bytes
    }

    #[test]
    fn an_open_image_is_walked_to_its_last_chunk_and_is_whole_once_that_is_written_down() {
        let mut bytes = image(9);
        let (_, progress) = walk_image(&bytes).expect("a header");
        assert_eq!((progress.chunk_count, progress.next_ordinal), (9, 109));
        assert_eq!((progress.first_append_ms, progress.last_append_ms, progress.max_timestamp_ms), (1000, 1008, 8));
        progress.write(&mut bytes);
        assert_eq!(verify_image(&bytes).map(|(_, progress)| progress), Ok(progress));
    }

    #[test]
    fn a_chunk_that_does_not_verify_or_is_elsewhere_ends_the_walk() {
        let whole = image(9);
        let (_, progress) = walk_image(&whole).expect("a header");
        let chunk_bytes = (progress.head as usize - SEGMENT_HEADER_BYTES) / 9;
        for n in 0..9 {
            let mut torn = whole.clone();
            torn[SEGMENT_HEADER_BYTES + n * chunk_bytes + chunk_bytes - 8] ^= 1;
            assert_eq!(walk_image(&torn).expect("a header").1.chunk_count as usize, n);
        }
        let mut moved = whole.clone();
        let (first, second) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + chunk_bytes);
        moved.copy_within(first..second, second);
        assert_eq!(walk_image(&moved).expect("a header").1.chunk_count, 1);
        assert!(walk_image(&[0; 4096]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ExtentMarker::parse(&bytes);
            let _ = walk_image(&bytes);
        }
    }
}
