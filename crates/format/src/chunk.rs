//! A chunk: a batch of records of one producer for one streamlet. The unit of append, replication, checksum,
//! compression and deduplication (thesis 6.1). The same bytes on the wire, in memory and on disk.
//!
//! ```text
//! offset  bytes  field
//!      0      4  broker_checksum    CRC-32C of bytes 4..44: the broker's part and the producer's checksum
//!      4      4  segment            index in its group
//!      8      8  group
//!     16      8  base_ordinal       of its first record in the lane
//!     24      8  append_time_ms     since 1970, never falling within a lane
//!     32      4  lane
//!     36      4  position           of the chunk in its segment, in bytes
//!   ---- above the broker's part, zero when a producer sends it; below the producer's part ----
//!     40      4  producer_checksum  CRC-32C of bytes 44 up to the end of the payload
//!     44      2  magic              "KC"
//!     46      1  version            1
//!     47      1  compression        0 none, 1 lz4, 2 zstd
//!     48      1  kind               0 KerA records, 1 Kafka record batch, 2 Arrow IPC (reserved), 3 a piece of a
//!                                   compacted segment, which no producer sends
//!     49      1  flags              zero
//!     50      2  producer_epoch
//!     52      4  payload_bytes
//!     56      4  record_count      1 or more; not more than the payload can hold
//!     60      4  streamlet
//!     64      8  stream
//!     72      8  producer_id        zero: not deduplicated
//!     80      8  sequence           of this chunk among those of (producer, epoch, streamlet), from 0; of a Kafka batch
//!                                   that of its last record
//!     88      8  max_timestamp_ms   the largest record timestamp, or i64::MIN if no record has one
//!     96      …  payload, then zeros up to a multiple of 8 (not covered by a checksum)
//! ```
//! The broker's checksum covers the producer's, so header and payload cannot be mixed between chunks. What a broker
//! writes (40 bytes) and what a producer writes are apart, so that appending does not touch the producer's checksum.

use crate::checksum::{Crc32c, crc32c, crc32c_combine};
use crate::record::RECORD_HEADER_BYTES;
use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{
    Compression, FormatError, GroupId, LaneId, ProducerEpoch, ProducerId, Record, Records, SegmentIndex, StreamId,
    StreamletId, align8, limits,
};
use std::borrow::Cow;
use std::cell::RefCell;

/// Bytes of a chunk before its payload.
pub const CHUNK_HEADER_BYTES: usize = 96;
// Every chunk starts aligned behind the one before it, and the largest one fits behind a segment's header.
const _: () = assert!(CHUNK_HEADER_BYTES.is_multiple_of(8) && limits::CHUNK_BYTES_MAX.is_multiple_of(8));
const _: () = assert!(crate::segment::SEGMENT_HEADER_BYTES.is_multiple_of(8));

/// Where the producer's part starts.
pub const PRODUCER_PART_AT: usize = 40;
/// The first two bytes of the producer's fields: "KC".
pub const CHUNK_MAGIC: u16 = u16::from_le_bytes(*b"KC");
/// The version of this layout.
pub const CHUNK_VERSION: u8 = 1;
/// `max_timestamp_ms` of a chunk none of whose records has a timestamp.
pub const NO_TIMESTAMP: i64 = i64::MIN;

/// What a chunk's payload is. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PayloadKind {
    /// KerA records, see [`crate::record`].
    #[default]
    Records = 0,
    /// One Kafka record batch, verbatim.
    KafkaBatch = 1,
    /// An Arrow IPC message. Reserved: refused on append.
    ArrowIpc = 2,
    /// A part of a compacted segment on its way to another copy, see [`crate::piece`]. Refused on append.
    Piece = 3,
}

impl PayloadKind {
    /// From the number in a header.
    pub fn from_u8(value: u8) -> Result<PayloadKind, FormatError> {
        match value {
            0 => Ok(PayloadKind::Records),
            1 => Ok(PayloadKind::KafkaBatch),
            3 => Ok(PayloadKind::Piece),
            _ => Err(FormatError::BadField {
                field: "chunk.kind",
                value: value.into(),
                allowed: "0 (KerA records), 1 (Kafka batch) or 3 (piece of a compacted segment); 2 is reserved for Arrow",
            }),
        }
    }
}

/// The producer's fields of a chunk header, decoded and checked against limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// The stream it is for.
    pub stream: StreamId,
    /// The streamlet it is for.
    pub streamlet: StreamletId,
    /// Who made it; zero: not deduplicated.
    pub producer_id: ProducerId,
    /// The producer's incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Its number among the chunks of (producer, epoch, streamlet), from 0.
    pub sequence: u64,
    /// What the payload is.
    pub kind: PayloadKind,
    /// How the payload is compressed.
    pub compression: Compression,
    /// Bytes of the payload as it is (compressed, if it is).
    pub payload_bytes: u32,
    /// Records in it, at least one.
    pub record_count: u32,
    /// Largest record timestamp, [`NO_TIMESTAMP`] if none has one.
    pub max_timestamp_ms: i64,
    /// The stored checksum of the producer's part and the payload.
    pub producer_checksum: u32,
}

impl ChunkHeader {
    /// Reads the producer's part at the start of `bytes` and checks every field, but no checksum: the payload need not
    /// be there yet.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<ChunkHeader, FormatError> {
        FormatError::need("chunk header", CHUNK_HEADER_BYTES, bytes.len())?;
        let bytes = &bytes[..CHUNK_HEADER_BYTES];
        let bad = |field, value, allowed| Err(FormatError::BadField { field, value, allowed });
        if u16_at(bytes, 44) != CHUNK_MAGIC {
            return bad("chunk.magic", u16_at(bytes, 44).into(), "\"KC\" (0x434b)");
        }
        if bytes[46] != CHUNK_VERSION {
            return bad("chunk.version", bytes[46].into(), "1");
        }
        if bytes[49] != 0 {
            return bad("chunk.flags", bytes[49].into(), "0");
        }
        let payload_bytes = u32_at(bytes, 52);
        let limit = limits::CHUNK_BYTES_MAX - CHUNK_HEADER_BYTES;
        if payload_bytes as usize > limit {
            return Err(FormatError::OverLimit {
                field: "chunk.payload_bytes",
                value: payload_bytes.into(),
                limit: limit as u64,
            });
        }
        let record_count = u32_at(bytes, 56);
        if record_count == 0 {
            return bad("chunk.record_count", 0, "1 or more");
        }
        let kind = PayloadKind::from_u8(bytes[48])?;
        let compression = Compression::from_u8(bytes[47])?;
        // The count moves a lane's ordinals, so it is bounded by what the payload can hold.
        let records_max = records_max(kind, compression, payload_bytes);
        if record_count > records_max {
            return Err(FormatError::OverLimit {
                field: "chunk.record_count",
                value: record_count.into(),
                limit: records_max.into(),
            });
        }
        Ok(ChunkHeader {
            stream: StreamId(u64_at(bytes, 64)),
            streamlet: StreamletId(u32_at(bytes, 60)),
            producer_id: ProducerId(u64_at(bytes, 72)),
            producer_epoch: ProducerEpoch(u16_at(bytes, 50)),
            sequence: u64_at(bytes, 80),
            kind,
            compression,
            payload_bytes,
            record_count,
            max_timestamp_ms: i64_at(bytes, 88),
            producer_checksum: u32_at(bytes, 40),
        })
    }

    /// Header and payload, without the padding behind them.
    #[inline]
    pub fn unpadded_bytes(&self) -> usize {
        CHUNK_HEADER_BYTES + self.payload_bytes as usize
    }

    /// What the chunk takes everywhere: header, payload and padding to a multiple of 8.
    #[inline]
    pub fn total_bytes(&self) -> usize {
        align8(self.unpadded_bytes())
    }
}

/// The most records that a payload can hold: a KerA record takes 8 bytes or more, a record of a Kafka batch, whose count
/// includes those that compaction removed, is only bounded by the largest payload.
#[inline]
fn records_max(kind: PayloadKind, compression: Compression, payload_bytes: u32) -> u32 {
    const UNCOMPRESSED: u32 = limits::CHUNK_UNCOMPRESSED_BYTES_MAX as u32;
    match (kind, compression) {
        (PayloadKind::Records, Compression::None) => payload_bytes / RECORD_HEADER_BYTES as u32,
        (PayloadKind::Records, _) => UNCOMPRESSED / RECORD_HEADER_BYTES as u32,
        _ => UNCOMPRESSED,
    }
}

/// The broker's fields of a chunk header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BrokerPart {
    /// The group it was appended to.
    pub group: GroupId,
    /// The segment in the group.
    pub segment: SegmentIndex,
    /// The lane's number of its first record.
    pub base_ordinal: u64,
    /// When it was appended, milliseconds since 1970.
    pub append_time_ms: i64,
    /// The lane.
    pub lane: LaneId,
    /// Where it starts in its segment.
    pub position: u32,
}

impl BrokerPart {
    /// Writes the broker's part over the first 40 bytes of a chunk whose producer's checksum is already in place.
    #[inline]
    pub fn stamp(&self, chunk: &mut [u8]) {
        put(chunk, 4, &self.segment.0.to_le_bytes());
        put(chunk, 8, &self.group.0.to_le_bytes());
        put(chunk, 16, &self.base_ordinal.to_le_bytes());
        put(chunk, 24, &self.append_time_ms.to_le_bytes());
        put(chunk, 32, &self.lane.0.to_le_bytes());
        put(chunk, 36, &self.position.to_le_bytes());
        let crc = crc32c(&chunk[4..44]);
        put(chunk, 0, &crc.to_le_bytes());
    }

    /// Reads and verifies the broker's part at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<BrokerPart, FormatError> {
        FormatError::need("chunk header", CHUNK_HEADER_BYTES, bytes.len())?;
        let (found, computed) = (u32_at(bytes, 0), crc32c(&bytes[4..44]));
        if found != computed {
            return Err(FormatError::Checksum { what: "chunk.broker_checksum", found, computed });
        }
        Ok(BrokerPart {
            group: GroupId(u64_at(bytes, 8)),
            segment: SegmentIndex(u32_at(bytes, 4)),
            base_ordinal: u64_at(bytes, 16),
            append_time_ms: i64_at(bytes, 24),
            lane: LaneId(u32_at(bytes, 32)),
            position: u32_at(bytes, 36),
        })
    }
}

/// A whole chunk in place.
#[derive(Clone, Copy)]
pub struct ChunkView<'a> {
    header: ChunkHeader,
    bytes: &'a [u8],
}

impl<'a> ChunkView<'a> {
    /// The chunk at the start of `bytes`, whole with its padding; no checksum is verified yet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<ChunkView<'a>, FormatError> {
        let header = ChunkHeader::parse(bytes)?;
        FormatError::need("chunk", header.total_bytes(), bytes.len())?;
        Ok(ChunkView { header, bytes: &bytes[..header.total_bytes()] })
    }

    /// The producer's fields.
    #[inline]
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// Header, payload and padding.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The payload as it is stored.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[CHUNK_HEADER_BYTES..self.header.unpadded_bytes()]
    }

    /// Verifies the producer's checksum: nothing that the producer wrote has changed.
    #[inline]
    pub fn verify(&self) -> Result<(), FormatError> {
        let computed = crc32c(&self.bytes[PRODUCER_PART_AT + 4..self.header.unpadded_bytes()]);
        let found = self.header.producer_checksum;
        if found == computed {
            Ok(())
        } else {
            Err(FormatError::Checksum { what: "chunk.producer_checksum", found, computed })
        }
    }

    /// The broker's fields, verified. An error if no broker has stamped the chunk.
    pub fn broker(&self) -> Result<BrokerPart, FormatError> {
        BrokerPart::parse(self.bytes)
    }

    /// The payload without its compression; borrowed if it has none.
    pub fn uncompressed(&self) -> Result<Cow<'a, [u8]>, FormatError> {
        match self.header.compression {
            Compression::None => Ok(Cow::Borrowed(self.payload())),
            compression => compression.decompress(self.payload()).map(Cow::Owned),
        }
    }

    /// Bytes of the payload without its compression, as the payload says itself: nothing is undone, nor checked.
    pub fn uncompressed_bytes(&self) -> usize {
        self.header.compression.uncompressed_bytes(self.payload())
    }

    /// The records of an uncompressed payload of kind [`PayloadKind::Records`]. Of a compressed one they are made with
    /// [`Records::new`] from [`uncompressed`](ChunkView::uncompressed).
    pub fn records(&self) -> Records<'a> {
        Records::new(self.payload())
    }
}

/// Numbers of its chunks that a producer skips in a streamlet: those in front of the chunk that this is sent along with. It has given them up, and sends none of them again.
///
/// Stored nowhere. The broker appends the chunk if these numbers are what is missing, and says what it expects if not: then chunks that the producer took for lost have
/// come after all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skip {
    /// The first of them: what the broker expects, as far as the producer knows.
    pub from: u64,
}

/// Who a chunk is from and for: what a [`ChunkBuilder`] writes into the producer's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkTarget {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The producer; zero: no deduplication.
    pub producer_id: ProducerId,
    /// Its incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Number of the chunk among those of (producer, epoch, streamlet).
    pub sequence: u64,
}

/// Fills one buffer with a chunk: records are appended, then the chunk is sealed. The buffer can be reused.
#[derive(Debug)]
pub struct ChunkBuilder {
    buffer: Vec<u8>,
    record_count: u32,
    max_timestamp_ms: i64,
}

impl Default for ChunkBuilder {
    fn default() -> Self {
        ChunkBuilder::with_buffer(Vec::new())
    }
}

impl ChunkBuilder {
    /// Starts an empty chunk in `buffer`, whose contents are dropped and whose capacity is kept.
    pub fn with_buffer(mut buffer: Vec<u8>) -> ChunkBuilder {
        buffer.clear();
        buffer.resize(CHUNK_HEADER_BYTES, 0);
        ChunkBuilder { buffer, record_count: 0, max_timestamp_ms: NO_TIMESTAMP }
    }

    /// A chunk whose records are in `buffer` already, behind [`CHUNK_HEADER_BYTES`] of room for the header.
    ///
    /// # Panics
    /// If there is no room for the header.
    pub fn filled(buffer: Vec<u8>, record_count: u32, max_timestamp_ms: i64) -> ChunkBuilder {
        assert!(buffer.len() >= CHUNK_HEADER_BYTES, "room for a chunk's header");
        ChunkBuilder { buffer, record_count, max_timestamp_ms }
    }

    /// Appends a record that was [`check`](Record::check)ed; the caller keeps the chunk within its size with
    /// [`bytes`](ChunkBuilder::bytes) and [`Record::encoded_bytes`].
    #[inline]
    pub fn push(&mut self, record: &Record<'_>) {
        record.encode(&mut self.buffer);
        self.record_count += 1;
        if let Some(timestamp) = record.timestamp_ms {
            self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp);
        }
    }

    /// Records appended so far.
    #[inline]
    pub fn record_count(&self) -> u32 {
        self.record_count
    }

    /// Bytes of the chunk so far, header included, padding not.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Writes the header and both ends of the chunk and gives the buffer away: a sealed chunk with its padding.
    ///
    /// Compression that does not make the payload smaller is left out. Errors if the result is larger than
    /// [`limits::CHUNK_BYTES_MAX`] or has no record.
    pub fn seal(self, target: &ChunkTarget, compression: Compression) -> Result<Vec<u8>, FormatError> {
        let ChunkBuilder { mut buffer, record_count, max_timestamp_ms } = self;
        let mut used = Compression::None;
        let uncompressed_bytes = buffer.len() - CHUNK_HEADER_BYTES;
        if compression != Compression::None && uncompressed_bytes <= limits::CHUNK_UNCOMPRESSED_BYTES_MAX {
            SCRATCH.with_borrow_mut(|compressed| {
                compression.compress_into(&buffer[CHUNK_HEADER_BYTES..], compressed);
                if compressed.len() < uncompressed_bytes {
                    buffer.truncate(CHUNK_HEADER_BYTES);
                    buffer.extend_from_slice(compressed);
                    used = compression;
                }
                compressed.clear();
                compressed.shrink_to(SCRATCH_BYTES_KEPT);
            });
        }
        seal_in_place(&mut buffer, target, PayloadKind::Records, used, record_count, max_timestamp_ms)?;
        Ok(buffer)
    }
}

/// What a thread keeps of the buffer that it compresses into.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

thread_local! {
    /// Where chunks are compressed into before their payload is replaced, so that the builder's buffer is kept.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Turns `buffer`, 96 bytes of room and then a payload, into a sealed chunk with its padding.
///
/// # Errors
/// If the chunk is larger than [`limits::CHUNK_BYTES_MAX`], or `record_count` is zero or more than the payload can hold.
///
/// # Panics
/// If `buffer` is shorter than [`CHUNK_HEADER_BYTES`].
pub fn seal_in_place(
    buffer: &mut Vec<u8>,
    target: &ChunkTarget,
    kind: PayloadKind,
    compression: Compression,
    record_count: u32,
    max_timestamp_ms: i64,
) -> Result<(), FormatError> {
    seal(buffer, target, kind, compression, record_count, max_timestamp_ms)
}

fn seal(
    buffer: &mut Vec<u8>,
    target: &ChunkTarget,
    kind: PayloadKind,
    compression: Compression,
    record_count: u32,
    max_timestamp_ms: i64,
) -> Result<(), FormatError> {
    let unpadded = buffer.len();
    let (header, payload) = buffer.split_at_mut(CHUNK_HEADER_BYTES);
    write_header(header, payload.len(), target, kind, compression, record_count, max_timestamp_ms)?;
    let crc = crc32c(&buffer[PRODUCER_PART_AT + 4..]);
    put(buffer, PRODUCER_PART_AT, &crc.to_le_bytes());
    buffer.resize(align8(unpadded), 0);
    Ok(())
}

/// Writes everything but the checksum into `header`, of 96 bytes.
fn write_header(
    header: &mut [u8],
    payload_bytes: usize,
    target: &ChunkTarget,
    kind: PayloadKind,
    compression: Compression,
    record_count: u32,
    max_timestamp_ms: i64,
) -> Result<(), FormatError> {
    let unpadded = CHUNK_HEADER_BYTES + payload_bytes;
    if align8(unpadded) > limits::CHUNK_BYTES_MAX {
        return Err(FormatError::OverLimit {
            field: "chunk bytes",
            value: unpadded as u64,
            limit: limits::CHUNK_BYTES_MAX as u64,
        });
    }
    if record_count == 0 {
        return Err(FormatError::BadField { field: "chunk.record_count", value: 0, allowed: "1 or more" });
    }
    let records_max = records_max(kind, compression, payload_bytes as u32);
    if record_count > records_max {
        return Err(FormatError::OverLimit {
            field: "chunk.record_count",
            value: record_count.into(),
            limit: records_max.into(),
        });
    }
    header[..PRODUCER_PART_AT].fill(0);
    put(header, 44, &CHUNK_MAGIC.to_le_bytes());
    header[46] = CHUNK_VERSION;
    header[47] = compression as u8;
    header[48] = kind as u8;
    header[49] = 0;
    put(header, 50, &target.producer_epoch.0.to_le_bytes());
    put(header, 52, &(payload_bytes as u32).to_le_bytes());
    put(header, 56, &record_count.to_le_bytes());
    put(header, 60, &target.streamlet.0.to_le_bytes());
    put(header, 64, &target.stream.0.to_le_bytes());
    put(header, 72, &target.producer_id.0.to_le_bytes());
    put(header, 80, &target.sequence.to_le_bytes());
    put(header, 88, &max_timestamp_ms.to_le_bytes());
    Ok(())
}

/// A chunk that can be appended: in one piece ([`ChunkView`]), or with its payload elsewhere than its header ([`KafkaChunk`]).
pub trait Chunk {
    /// The producer's fields.
    fn header(&self) -> &ChunkHeader;

    /// Verifies the producer's checksum: nothing that the producer wrote has changed.
    ///
    /// # Errors
    /// [`FormatError::Checksum`].
    fn verify(&self) -> Result<(), FormatError>;

    /// The bytes from [`PRODUCER_PART_AT`] up to the end of the payload, in two runs of which the second may be empty.
    fn parts(&self) -> (&[u8], &[u8]);
}

impl Chunk for ChunkView<'_> {
    #[inline]
    fn header(&self) -> &ChunkHeader {
        &self.header
    }
    #[inline]
    fn verify(&self) -> Result<(), FormatError> {
        ChunkView::verify(self)
    }
    #[inline]
    fn parts(&self) -> (&[u8], &[u8]) {
        (&self.bytes[PRODUCER_PART_AT..self.header.unpadded_bytes()], &[])
    }
}

/// A record batch of Kafka's where it came in, and the header of the chunk that it is to be.
///
/// The batch's bytes from `known_from` on are not looked at to make the header: their CRC-32C is `known_crc`, or so the batch
/// says. The chunk's checksum is right if and only if that is true, so verifying one verifies the other, in one pass.
#[derive(Clone, Copy, Debug)]
pub struct KafkaChunk<'a> {
    fields: ChunkHeader,
    header: [u8; CHUNK_HEADER_BYTES],
    batch: &'a [u8],
    known_from: usize,
    known_crc: u32,
}

impl<'a> KafkaChunk<'a> {
    /// The chunk that has the batch as its payload.
    ///
    /// # Errors
    /// As [`seal_in_place`].
    ///
    /// # Panics
    /// If the batch is shorter than `known_from`.
    pub fn new(
        batch: &'a [u8],
        target: &ChunkTarget,
        record_count: u32,
        max_timestamp_ms: i64,
        known_from: usize,
        known_crc: u32,
    ) -> Result<KafkaChunk<'a>, FormatError> {
        let mut header = [0; CHUNK_HEADER_BYTES];
        let (kind, compression) = (PayloadKind::KafkaBatch, Compression::None);
        write_header(&mut header, batch.len(), target, kind, compression, record_count, max_timestamp_ms)?;
        let (seen, known) = batch.split_at(known_from);
        let mut crc = Crc32c::new();
        crc.update(&header[PRODUCER_PART_AT + 4..]);
        crc.update(seen);
        let crc = crc32c_combine(crc.finish(), known_crc, known.len() as u64);
        put(&mut header, PRODUCER_PART_AT, &crc.to_le_bytes());
        let fields = ChunkHeader::parse(&header)?;
        Ok(KafkaChunk { fields, header, batch, known_from, known_crc })
    }
}

impl Chunk for KafkaChunk<'_> {
    #[inline]
    fn header(&self) -> &ChunkHeader {
        &self.fields
    }
    #[inline]
    fn verify(&self) -> Result<(), FormatError> {
        let (found, computed) = (self.known_crc, crc32c(&self.batch[self.known_from..]));
        if found == computed {
            Ok(())
        } else {
            Err(FormatError::Checksum { what: "the batch's checksum", found, computed })
        }
    }
    #[inline]
    fn parts(&self) -> (&[u8], &[u8]) {
        (&self.header[PRODUCER_PART_AT..], self.batch)
    }
}

/// The chunks of a contiguous run, in order: a read's data, a segment's bytes. Ends after the first error.
#[derive(Clone)]
pub struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Chunks<'a> {
    /// Iterates over `bytes`, which starts at a chunk boundary.
    pub fn new(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks { rest: bytes }
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<ChunkView<'a>, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match ChunkView::parse(self.rest) {
            Ok(chunk) => {
                self.rest = &self.rest[chunk.bytes.len()..];
                Some(Ok(chunk))
            }
            Err(e) => {
                self.rest = &[];
                Some(Err(e))
            }
        }
    }
}
