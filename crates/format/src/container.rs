//! Container files: closed segments on disk, many to a file, self-describing at both ends (thesis 7.2.1; DESIGN,
//! "Persist"). The log's store writes and reads them; nobody else does.
//!
//! ```text
//! page 0            header, and which segments have been released
//! page 1 …          batches, back to back, each:  index (whole pages) · images (whole pages each)
//! after the last    footer (whole pages), once the container is full: all entries again, then the trailer
//! ```
//! An *image* is a segment as it is in memory, header and chunks up to its head, padded to whole pages; what the padding
//! holds means nothing. A *batch* is what was written before one sync. Its index lies in front of its images, so
//! whoever finds the index of batch n + 1 knows that batch n was synced before: only the last batch of a file without a
//! footer can hold images that did not reach the disk, and only those are verified byte by byte after a power cut.
//!
//! ```text
//! header    0  4  magic             "KCON"
//!           4  2  version           1
//!           6  2  header_bytes      4096
//!           8 16  node              uuid of the node that writes it
//!          24  8  container         number of the file in its node, from 1, never reused
//!          32  8  key               random; every index and the trailer repeat it
//!          40  8  created_ms
//!          48 12  zero
//!          60  4  checksum          CRC-32C of bytes 0..60
//!          64  …  zeros up to 512
//!         512  …  released map: 7 sectors of 512 bytes, each 508 bytes of map and the CRC-32C of these 508 bytes; bit n
//!                 of the map (byte n / 8, bit n mod 8) says that the n-th segment of the container is released
//!
//! index     0  4  magic             "KCBA"
//!           4  2  version           1
//!           6  2  header_bytes      64
//!           8  8  container
//!          16  8  key
//!          24  8  at                where the index starts in the file
//!          32  8  batch_bytes       of index and images; the next index or the footer starts behind them
//!          40  4  first             number of its first segment in the container
//!          44  4  count             of segments, 1 or more
//!          48  4  mark_count        of all its segments
//!          52  4  zero
//!          56  4  entries_checksum  CRC-32C of entries and marks
//!          60  4  checksum          CRC-32C of bytes 0..60
//!          64  …  entries, then the marks of the first segment, of the second, …
//!
//! entry     0 128  the segment's header, see [`crate::segment`], with durable_head = head
//!         128   8  at               where its image starts in the file, a multiple of 4096
//!         136   4  mark_count       marks of this segment
//!         140   4  zero
//!
//! mark      0  8  producer_id       the last chunks of each producer in the segment, in order: enough to go on with
//!           8  8  sequence          deduplication after a restart without reading the segment
//!          16  8  base_ordinal
//!          24  4  position          of the chunk in the segment
//!          28  2  producer_epoch
//!          30  2  zero
//!
//! footer    0  …  entries of all segments, then their marks, then zeros; the trailer is the last 64 bytes of the file
//!
//! trailer   0  4  magic             "KCEN"
//!           4  2  version           1
//!           6  2  trailer_bytes     64
//!           8  8  container
//!          16  8  key
//!          24  8  at                where the footer starts in the file
//!          32  4  count
//!          36  4  mark_count
//!          40 16  zero
//!          56  4  entries_checksum  CRC-32C of entries and marks
//!          60  4  checksum          CRC-32C of bytes 0..60
//! ```
//! The key is known to the node only, so no user's bytes at a page boundary can pose as an index.

use crate::checksum::crc32c;
use crate::chunk::ChunkView;
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use crate::start::Start;
use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{FormatError, ProducerEpoch, ProducerId, limits};

/// Everything in a container starts at multiples of this: what direct I/O asks for.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a container's header, released map included: its first page.
pub const CONTAINER_HEADER_BYTES: usize = PAGE_BYTES;
/// Bytes of an index before its first entry.
pub const BATCH_HEADER_BYTES: usize = 64;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = SEGMENT_HEADER_BYTES + 16;
/// Bytes of a producer's mark.
pub const MARK_BYTES: usize = 32;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 64;
/// The first four bytes of a container: "KCON".
pub const CONTAINER_MAGIC: u32 = u32::from_le_bytes(*b"KCON");
/// The first four bytes of a batch's index: "KCBA".
pub const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"KCBA");
/// The first four bytes of the trailer: "KCEN".
pub const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"KCEN");
/// The version of these layouts.
pub const CONTAINER_VERSION: u16 = 1;
/// Most segments of a container: what the released map has bits for.
pub const CONTAINER_SEGMENTS_MAX: u32 = (RELEASED_SECTORS * RELEASED_SECTOR_BITS) as u32;
/// Most marks of a container.
pub const CONTAINER_MARKS_MAX: u32 = 1 << 20;
/// The largest container that is read; far above what is written.
pub const CONTAINER_BYTES_MAX: u64 = 1 << 40;

const SECTOR_BYTES: usize = 512;
const RELEASED_SECTORS: usize = CONTAINER_HEADER_BYTES / SECTOR_BYTES - 1;
const RELEASED_SECTOR_BITS: usize = (SECTOR_BYTES - 4) * 8;

const _: () = assert!(RELEASED_SECTORS == 7 && CONTAINER_SEGMENTS_MAX == 28_448);

/// Rounds up to whole pages. Overflow-free for any size that was checked against [`CONTAINER_BYTES_MAX`].
pub const fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64) * PAGE_BYTES as u64
}

/// Whole pages that the index of a batch of `count` segments with `marks` marks takes.
pub const fn index_bytes(count: u32, marks: u32) -> u64 {
    pages(BATCH_HEADER_BYTES as u64 + entries_bytes(count, marks))
}

/// Whole pages that a footer over `count` segments with `marks` marks takes, trailer included.
pub const fn footer_bytes(count: u32, marks: u32) -> u64 {
    pages(entries_bytes(count, marks) + TRAILER_BYTES as u64)
}

const fn entries_bytes(count: u32, marks: u32) -> u64 {
    count as u64 * ENTRY_BYTES as u64 + marks as u64 * MARK_BYTES as u64
}

/// The unchanging part of a container's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerHeader {
    /// Uuid of the node that writes it.
    pub node: [u8; 16],
    /// Number of the file in its node, from 1.
    pub container: u64,
    /// Random number that every index and the trailer repeat.
    pub key: u64,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: i64,
}

impl ContainerHeader {
    /// Writes the first 512 bytes of the container.
    pub fn write(&self, page: &mut [u8]) {
        page[..SECTOR_BYTES].fill(0);
        start(page, CONTAINER_MAGIC, CONTAINER_HEADER_BYTES);
        put(page, 8, &self.node);
        put(page, 24, &self.container.to_le_bytes());
        put(page, 32, &self.key.to_le_bytes());
        put(page, 40, &self.created_ms.to_le_bytes());
        let crc = crc32c(&page[..60]);
        put(page, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies the start of a container.
    pub fn parse(page: &[u8]) -> Result<ContainerHeader, FormatError> {
        FormatError::need("container header", CONTAINER_HEADER_BYTES, page.len())?;
        HEADER_START.check(page)?;
        let mut node = [0; 16];
        node.copy_from_slice(&page[8..24]);
        Ok(ContainerHeader { node, container: u64_at(page, 24), key: u64_at(page, 32), created_ms: i64_at(page, 40) })
    }
}

/// Which segments of a container have been released: their images may be holes. One bit a segment, only ever set.
///
/// It is rewritten in place. A torn write leaves whole sectors of the old or the new map, and either is right.
#[derive(Clone, PartialEq, Eq)]
pub struct ReleasedMap {
    bytes: Box<[u8; RELEASED_SECTORS * (SECTOR_BYTES - 4)]>,
}

impl Default for ReleasedMap {
    fn default() -> ReleasedMap {
        ReleasedMap { bytes: Box::new([0; RELEASED_SECTORS * (SECTOR_BYTES - 4)]) }
    }
}

impl std::fmt::Debug for ReleasedMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReleasedMap({} released)", self.bytes.iter().map(|b| b.count_ones()).sum::<u32>())
    }
}

impl ReleasedMap {
    /// Marks the `number`th segment of the container.
    ///
    /// # Panics
    /// If `number` is not below [`CONTAINER_SEGMENTS_MAX`].
    pub fn set(&mut self, number: u32) {
        self.bytes[number as usize / 8] |= 1 << (number % 8);
    }

    /// Whether the `number`th segment of the container is released; false beyond the most there can be.
    pub fn get(&self, number: u32) -> bool {
        self.bytes.get(number as usize / 8).is_some_and(|byte| byte & (1 << (number % 8)) != 0)
    }

    /// Writes bytes 512 to 4096 of a container's first page.
    pub fn write(&self, page: &mut [u8]) {
        for (sector, map) in page[SECTOR_BYTES..CONTAINER_HEADER_BYTES]
            .chunks_exact_mut(SECTOR_BYTES)
            .zip(self.bytes.chunks_exact(SECTOR_BYTES - 4))
        {
            put(sector, 0, map);
            put(sector, SECTOR_BYTES - 4, &crc32c(map).to_le_bytes());
        }
    }

    /// Reads the map of a container's first page, and how many of its sectors are damaged. A damaged sector counts as
    /// nothing released: what was released comes back and is released again, and nothing is lost.
    pub fn parse(page: &[u8]) -> Result<(ReleasedMap, usize), FormatError> {
        FormatError::need("container header", CONTAINER_HEADER_BYTES, page.len())?;
        let mut map = ReleasedMap::default();
        let mut damaged = 0;
        for (sector, target) in page[SECTOR_BYTES..CONTAINER_HEADER_BYTES]
            .chunks_exact(SECTOR_BYTES)
            .zip(map.bytes.chunks_exact_mut(SECTOR_BYTES - 4))
        {
            let (bits, checksum) = (&sector[..SECTOR_BYTES - 4], u32_at(sector, SECTOR_BYTES - 4));
            if crc32c(bits) == checksum {
                target.copy_from_slice(bits);
            } else {
                damaged += 1;
            }
        }
        Ok((map, damaged))
    }
}

/// One of the last chunks of a producer in a segment: what deduplication goes on with after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerMark {
    /// Who made it.
    pub producer_id: ProducerId,
    /// In which incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Its number.
    pub sequence: u64,
    /// Ordinal of its first record.
    pub base_ordinal: u64,
    /// Where it is in its segment.
    pub position: u32,
}

impl ProducerMark {
    fn write(&self, bytes: &mut [u8]) {
        put(bytes, 0, &self.producer_id.0.to_le_bytes());
        put(bytes, 8, &self.sequence.to_le_bytes());
        put(bytes, 16, &self.base_ordinal.to_le_bytes());
        put(bytes, 24, &self.position.to_le_bytes());
        put(bytes, 28, &self.producer_epoch.0.to_le_bytes());
        put(bytes, 30, &[0; 2]);
    }

    fn parse(bytes: &[u8]) -> ProducerMark {
        ProducerMark {
            producer_id: ProducerId(u64_at(bytes, 0)),
            producer_epoch: ProducerEpoch(u16_at(bytes, 28)),
            sequence: u64_at(bytes, 8),
            base_ordinal: u64_at(bytes, 16),
            position: u32_at(bytes, 24),
        }
    }
}

/// A segment of a container: its header, where its image is, and its producers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContainerEntry {
    /// The half of its header that never changes.
    pub header: SegmentHeader,
    /// The other half; it is closed, and durable up to its head.
    pub progress: SegmentProgress,
    /// Where its image starts in the file, a multiple of [`PAGE_BYTES`].
    pub at: u64,
    /// The last chunks of each producer, in order.
    pub marks: Vec<ProducerMark>,
}

impl ContainerEntry {
    /// Bytes of the image without its padding.
    pub fn image_bytes(&self) -> u64 {
        self.progress.head
    }

    fn write(&self, bytes: &mut [u8]) {
        self.header.write(bytes);
        self.progress.write(bytes);
        put(bytes, SEGMENT_HEADER_BYTES, &self.at.to_le_bytes());
        put(bytes, SEGMENT_HEADER_BYTES + 8, &(self.marks.len() as u32).to_le_bytes());
        put(bytes, SEGMENT_HEADER_BYTES + 12, &[0; 4]);
    }

    /// Reads an entry; its marks are elsewhere, and their number is returned.
    fn parse(bytes: &[u8]) -> Result<(ContainerEntry, u32), FormatError> {
        FormatError::need("container entry", ENTRY_BYTES, bytes.len())?;
        let header = SegmentHeader::parse(bytes)?;
        let progress = SegmentProgress::parse(bytes, header.capacity_bytes)?;
        if progress.state == SegmentState::Open {
            let allowed = "a closed segment (2 or 3)";
            return Err(FormatError::BadField { field: "container_entry.state", value: 1, allowed });
        }
        if progress.durable_head != progress.head {
            let (field, allowed) = ("container_entry.durable_head", "the segment's head");
            return Err(FormatError::BadField { field, value: progress.durable_head, allowed });
        }
        let at = u64_at(bytes, SEGMENT_HEADER_BYTES);
        let fits = at
            .checked_add(progress.head)
            .is_some_and(|end| end <= CONTAINER_BYTES_MAX && at >= CONTAINER_HEADER_BYTES as u64);
        if !fits || !at.is_multiple_of(PAGE_BYTES as u64) {
            let allowed = "a multiple of 4096 behind the header, in a file of at most 1 TiB";
            return Err(FormatError::BadField { field: "container_entry.at", value: at, allowed });
        }
        let marks = u32_at(bytes, SEGMENT_HEADER_BYTES + 8);
        Ok((ContainerEntry { header, progress, at, marks: Vec::new() }, marks))
    }
}

/// How many marks `entries` have together.
pub fn mark_count(entries: &[ContainerEntry]) -> u32 {
    entries.iter().map(|entry| entry.marks.len() as u32).sum()
}

fn write_entries(entries: &[ContainerEntry], bytes: &mut [u8]) -> u32 {
    let (of_entries, rest) = bytes.split_at_mut(entries.len() * ENTRY_BYTES);
    for (entry, bytes) in entries.iter().zip(of_entries.chunks_exact_mut(ENTRY_BYTES)) {
        entry.write(bytes);
    }
    let marks = entries.iter().flat_map(|entry| &entry.marks);
    for (mark, bytes) in marks.zip(rest.chunks_exact_mut(MARK_BYTES)) {
        mark.write(bytes);
    }
    crc32c(&bytes[..entries_bytes(entries.len() as u32, mark_count(entries)) as usize])
}

/// Entries and marks as an index or a footer announces them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listing {
    count: u32,
    marks: u32,
    checksum: u32,
}

impl Listing {
    fn check(&self, of_count: &'static str, of_marks: &'static str) -> Result<(), FormatError> {
        check_limit(of_count, self.count, CONTAINER_SEGMENTS_MAX)?;
        check_limit(of_marks, self.marks, CONTAINER_MARKS_MAX)
    }

    fn entries(&self, bytes: &[u8], what: &'static str) -> Result<Vec<ContainerEntry>, FormatError> {
        let need = entries_bytes(self.count, self.marks) as usize;
        FormatError::need("container entries", need, bytes.len())?;
        let computed = crc32c(&bytes[..need]);
        if self.checksum != computed {
            return Err(FormatError::Checksum { what, found: self.checksum, computed });
        }
        let (of_entries, mut rest) = bytes[..need].split_at(self.count as usize * ENTRY_BYTES);
        let mut entries = Vec::with_capacity(self.count as usize);
        for bytes in of_entries.chunks_exact(ENTRY_BYTES) {
            let (mut entry, marks) = ContainerEntry::parse(bytes)?;
            let Some((mine, others)) = rest.split_at_checked(marks as usize * MARK_BYTES) else {
                let (field, allowed) = ("container_entry.mark_count", "no more than its index has");
                return Err(FormatError::BadField { field, value: marks.into(), allowed });
            };
            entry.marks = mine.chunks_exact(MARK_BYTES).map(ProducerMark::parse).collect();
            rest = others;
            entries.push(entry);
        }
        Ok(entries)
    }
}

fn check_limit(field: &'static str, value: u32, limit: u32) -> Result<(), FormatError> {
    if value > limit {
        return Err(FormatError::OverLimit { field, value: value.into(), limit: limit.into() });
    }
    Ok(())
}

/// The start of a batch's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Number of the file in its node.
    pub container: u64,
    /// The file's key.
    pub key: u64,
    /// Where the index starts in the file.
    pub at: u64,
    /// Bytes of index and images.
    pub batch_bytes: u64,
    /// Number of its first segment in the container.
    pub first: u32,
    listing: Listing,
}

impl BatchHeader {
    /// Writes an index over `bytes`, which is [`index_bytes`] of them: for the batch that starts `at` in the container,
    /// takes `batch_bytes` there, and whose first segment is the `first` of the container.
    pub fn write(
        container: &ContainerHeader,
        (at, batch_bytes): (u64, u64),
        first: u32,
        entries: &[ContainerEntry],
        bytes: &mut [u8],
    ) {
        bytes.fill(0);
        let crc = write_entries(entries, &mut bytes[BATCH_HEADER_BYTES..]);
        start(bytes, BATCH_MAGIC, BATCH_HEADER_BYTES);
        put(bytes, 8, &container.container.to_le_bytes());
        put(bytes, 16, &container.key.to_le_bytes());
        put(bytes, 24, &at.to_le_bytes());
        put(bytes, 32, &batch_bytes.to_le_bytes());
        put(bytes, 40, &first.to_le_bytes());
        put(bytes, 44, &(entries.len() as u32).to_le_bytes());
        put(bytes, 48, &mark_count(entries).to_le_bytes());
        put(bytes, 56, &crc.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        put(bytes, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies the start of an index; its entries need not be there yet. That it belongs to the container
    /// and to the place it was read from is for the caller to compare.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, FormatError> {
        FormatError::need("container batch", BATCH_HEADER_BYTES, bytes.len())?;
        BATCH_START.check(bytes)?;
        let header = BatchHeader {
            container: u64_at(bytes, 8),
            key: u64_at(bytes, 16),
            at: u64_at(bytes, 24),
            batch_bytes: u64_at(bytes, 32),
            first: u32_at(bytes, 40),
            listing: Listing { count: u32_at(bytes, 44), marks: u32_at(bytes, 48), checksum: u32_at(bytes, 56) },
        };
        header.listing.check("container_batch.count", "container_batch.mark_count")?;
        check_limit("container_batch.first", header.first, CONTAINER_SEGMENTS_MAX)?;
        if header.count() == 0 {
            return Err(FormatError::BadField { field: "container_batch.count", value: 0, allowed: "1 or more" });
        }
        let (least, whole_pages) = (header.index_bytes(), header.batch_bytes.is_multiple_of(PAGE_BYTES as u64));
        if header.batch_bytes < least || header.batch_bytes > CONTAINER_BYTES_MAX || !whole_pages {
            let allowed = "a multiple of 4096 from the size of the index to 1 TiB";
            let field = "container_batch.batch_bytes";
            return Err(FormatError::BadField { field, value: header.batch_bytes, allowed });
        }
        Ok(header)
    }

    /// Segments in it.
    pub fn count(&self) -> u32 {
        self.listing.count
    }

    /// What the index takes in the file.
    pub fn index_bytes(&self) -> u64 {
        index_bytes(self.listing.count, self.listing.marks)
    }

    /// Reads and verifies the entries of the whole index `bytes`. Every image lies in the batch.
    pub fn entries(&self, bytes: &[u8]) -> Result<Vec<ContainerEntry>, FormatError> {
        let behind_header = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        let entries = self.listing.entries(behind_header, "container_batch.entries_checksum")?;
        // Both sums are of values far below 2^63: `at` and the sizes were checked against the largest container.
        let (from, to) = (self.at.saturating_add(self.index_bytes()), self.at.saturating_add(self.batch_bytes));
        match entries.iter().find(|entry| entry.at < from || entry.at + entry.image_bytes() > to) {
            Some(entry) => Err(FormatError::BadField {
                field: "container_entry.at",
                value: entry.at,
                allowed: "a place in its batch, behind the index",
            }),
            None => Ok(entries),
        }
    }
}

/// The end of a container that is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Number of the file in its node.
    pub container: u64,
    /// The file's key.
    pub key: u64,
    /// Where the footer starts in the file.
    pub at: u64,
    listing: Listing,
}

impl Trailer {
    /// Writes a whole footer over `bytes`, which is [`footer_bytes`] of them and goes to `at` in the file.
    pub fn write(container: &ContainerHeader, at: u64, entries: &[ContainerEntry], bytes: &mut [u8]) {
        bytes.fill(0);
        let crc = write_entries(entries, bytes);
        let trailer_at = bytes.len() - TRAILER_BYTES;
        let bytes = &mut bytes[trailer_at..];
        start(bytes, TRAILER_MAGIC, TRAILER_BYTES);
        put(bytes, 8, &container.container.to_le_bytes());
        put(bytes, 16, &container.key.to_le_bytes());
        put(bytes, 24, &at.to_le_bytes());
        put(bytes, 32, &(entries.len() as u32).to_le_bytes());
        put(bytes, 36, &mark_count(entries).to_le_bytes());
        put(bytes, 56, &crc.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        put(bytes, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies the trailer: `bytes` are the last of a file of `file_bytes`.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Trailer, FormatError> {
        FormatError::need("container trailer", TRAILER_BYTES, bytes.len())?;
        let bytes = &bytes[bytes.len() - TRAILER_BYTES..];
        TRAILER_START.check(bytes)?;
        let trailer = Trailer {
            container: u64_at(bytes, 8),
            key: u64_at(bytes, 16),
            at: u64_at(bytes, 24),
            listing: Listing { count: u32_at(bytes, 32), marks: u32_at(bytes, 36), checksum: u32_at(bytes, 56) },
        };
        trailer.listing.check("container_trailer.count", "container_trailer.mark_count")?;
        if trailer.at.checked_add(trailer.footer_bytes()) != Some(file_bytes)
            || !trailer.at.is_multiple_of(PAGE_BYTES as u64)
        {
            return Err(FormatError::BadField {
                field: "container_trailer.at",
                value: trailer.at,
                allowed: "the end of the file less the size of the footer",
            });
        }
        Ok(trailer)
    }

    /// Segments in the container.
    pub fn count(&self) -> u32 {
        self.listing.count
    }

    /// What the footer takes at the end of the file.
    pub fn footer_bytes(&self) -> u64 {
        footer_bytes(self.listing.count, self.listing.marks)
    }

    /// Reads and verifies the entries of the whole footer `bytes`. Every image lies in front of the footer.
    pub fn entries(&self, bytes: &[u8]) -> Result<Vec<ContainerEntry>, FormatError> {
        let entries = self.listing.entries(bytes, "container_trailer.entries_checksum")?;
        match entries.iter().find(|entry| entry.at + entry.image_bytes() > self.at) {
            Some(entry) => Err(FormatError::BadField {
                field: "container_entry.at",
                value: entry.at,
                allowed: "a place in front of the footer",
            }),
            None => Ok(entries),
        }
    }
}

/// Reads and verifies a whole image: the header, and every chunk with both its checksums and its place. `bytes` may go
/// on behind the segment's head.
///
/// What passes was written by a broker in one piece: a hole, a torn write or a flipped bit anywhere below the head is
/// an error.
pub fn verify_image(bytes: &[u8]) -> Result<(SegmentHeader, SegmentProgress), FormatError> {
    let header = SegmentHeader::parse(bytes)?;
    let progress = SegmentProgress::parse(bytes, header.capacity_bytes)?;
    let head = progress.head as usize;
    FormatError::need("segment image", head, bytes.len())?;
    let (mut at, mut chunks, mut ordinal) = (SEGMENT_HEADER_BYTES, 0u32, header.base_ordinal);
    let mut position = SEGMENT_HEADER_BYTES as u32;
    while at < head {
        let chunk = ChunkView::parse(&bytes[at..head])?;
        let broker = chunk.broker()?;
        chunk.verify()?;
        let id = header.id;
        // Chunks of a compacted segment say where they were appended.
        if !header.is_compacted() {
            position = at as u32;
        } else if (position..header.capacity_bytes).contains(&broker.position) {
            position = broker.position;
        }
        let fields = [
            ("chunk.position", u64::from(broker.position), position.into()),
            ("chunk.segment", broker.segment.0.into(), id.index.0.into()),
            ("chunk.group", broker.group.0, id.group.0),
            ("chunk.lane", broker.lane.0.into(), id.lane.0.into()),
            ("chunk.stream", chunk.header().stream.0, id.stream.0),
            ("chunk.streamlet", chunk.header().streamlet.0.into(), id.streamlet.0.into()),
        ];
        if let Some((field, value, _)) = fields.into_iter().find(|(_, found, expected)| found != expected) {
            return Err(FormatError::BadField { field, value, allowed: "the place where the chunk lies" });
        }
        if broker.base_ordinal < ordinal {
            let allowed = "the ordinal behind the chunk before, or more";
            return Err(FormatError::BadField { field: "chunk.base_ordinal", value: broker.base_ordinal, allowed });
        }
        ordinal = broker.base_ordinal.saturating_add(chunk.header().record_count.into());
        at += chunk.as_bytes().len();
        position += chunk.as_bytes().len() as u32;
        chunks += 1;
    }
    if chunks != progress.chunk_count {
        let allowed = "the number of its chunks";
        let value = progress.chunk_count.into();
        return Err(FormatError::BadField { field: "segment.chunk_count", value, allowed });
    }
    if ordinal > progress.next_ordinal {
        let allowed = "the ordinal behind its last chunk, or more";
        return Err(FormatError::BadField { field: "segment.next_ordinal", value: progress.next_ordinal, allowed });
    }
    Ok((header, progress))
}

const HEADER_START: Start = Start {
    magic: (CONTAINER_MAGIC, "\"KCON\""),
    version: (CONTAINER_VERSION, "1"),
    header_bytes: (CONTAINER_HEADER_BYTES, "4096"),
    checksum_at: 60,
    fields: ["container.magic", "container.checksum", "container.version", "container.header_bytes"],
};
const BATCH_START: Start = Start {
    magic: (BATCH_MAGIC, "\"KCBA\""),
    version: (CONTAINER_VERSION, "1"),
    header_bytes: (BATCH_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: [
        "container_batch.magic",
        "container_batch.checksum",
        "container_batch.version",
        "container_batch.header_bytes",
    ],
};
const TRAILER_START: Start = Start {
    magic: (TRAILER_MAGIC, "\"KCEN\""),
    version: (CONTAINER_VERSION, "1"),
    header_bytes: (TRAILER_BYTES, "64"),
    checksum_at: 60,
    fields: [
        "container_trailer.magic",
        "container_trailer.checksum",
        "container_trailer.version",
        "container_trailer.trailer_bytes",
    ],
};

fn start(bytes: &mut [u8], magic: u32, header_bytes: usize) {
    put(bytes, 0, &magic.to_le_bytes());
    put(bytes, 4, &CONTAINER_VERSION.to_le_bytes());
    put(bytes, 6, &(header_bytes as u16).to_le_bytes());
}

/// The most bytes an image takes in a container.
pub const IMAGE_BYTES_MAX: u64 = limits::SEGMENT_BYTES_MAX as u64;

#[cfg(test)]
mod tests;
