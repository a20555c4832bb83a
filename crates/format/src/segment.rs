//! A segment's header: the first 128 bytes of a segment's buffer, in the arena and on disk; chunks follow from byte
//! 128 on, back to back (thesis 6.1 and 7.2.1).
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KSEG"
//!      4      2  version           1
//!      6      2  header_bytes      128
//!      8      8  stream
//!     16      4  streamlet
//!     20      4  lane
//!     24      8  group
//!     32      4  index             in its group
//!     36      4  capacity_bytes    of the buffer, header included, rounded up to a power of two from 64 KiB to 16 MiB
//!     40      8  base_ordinal      of the first record
//!     48      8  created_ms        of a compacted segment: when it was compacted first, i64::MAX if that was in part only
//!     56      4  flags             bit 0: lane state before this segment does not matter (first of its lane's epoch)
//!                                  bit 1: compacted, see SegmentHeader::is_compacted
//!                                  bit 2: producers forgotten, see SegmentHeader::has_forgotten
//!                                  bits 8 to 31: how often it was rewritten, or cut at a start
//!     60      4  checksum          CRC-32C of bytes 0..60
//!   ---- above never changes; below changes in place while the segment is open, each field one aligned store ----
//!     64      8  head              where the next append goes; everything below is whole chunks
//!     72      8  durable_head      up to where the bytes are as safe as the stream asks
//!     80      8  next_ordinal      of the record after the last
//!     88      4  state             1 open, 2 closed, 3 closed and last of its group
//!     92      4  chunk_count
//!     96      8  first_append_ms
//!    104      8  last_append_ms
//!    112      8  max_timestamp_ms  i64::MIN if no record has one
//!    120      4  zero
//!    124      4  closed_checksum   CRC-32C of bytes 64..124 without durable_head (72..80), set when it is closed
//! ```
//! The order of stores is what makes a kill at any instruction harmless: chunk bytes first, then `head` (release). So
//! whatever lies below `head` is whole. The other fields of the second half can be recomputed from the chunks.

use crate::checksum::{Crc32c, crc32c};
use crate::start::Start;
use crate::wire::{i64_at, put, u32_at, u64_at};
use crate::{FormatError, GroupId, LaneId, SegmentId, SegmentIndex, StreamId, StreamletId, limits};

/// Bytes of a segment before its first chunk: its position 128.
pub const SEGMENT_HEADER_BYTES: usize = 128;
/// The first four bytes: "KSEG".
pub const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"KSEG");
/// The version of this layout.
pub const SEGMENT_VERSION: u16 = 1;

const START: Start = Start {
    magic: (SEGMENT_MAGIC, "\"KSEG\""),
    version: (SEGMENT_VERSION, "1"),
    header_bytes: (SEGMENT_HEADER_BYTES, "128"),
    checksum_at: 60,
    fields: ["segment.magic", "segment.checksum", "segment.version", "segment.header_bytes"],
};

/// Offsets of the fields that change in place, for atomic access in shared memory.
pub mod at {
    /// `head`, 8 bytes.
    pub const HEAD: usize = 64;
    /// `durable_head`, 8 bytes.
    pub const DURABLE_HEAD: usize = 72;
    /// `next_ordinal`, 8 bytes.
    pub const NEXT_ORDINAL: usize = 80;
    /// `state`, 4 bytes.
    pub const STATE: usize = 88;
    /// `chunk_count`, 4 bytes.
    pub const CHUNK_COUNT: usize = 92;
    /// `first_append_ms`, 8 bytes.
    pub const FIRST_APPEND_MS: usize = 96;
    /// `last_append_ms`, 8 bytes.
    pub const LAST_APPEND_MS: usize = 104;
    /// `max_timestamp_ms`, 8 bytes.
    pub const MAX_TIMESTAMP_MS: usize = 112;
    /// `closed_checksum`, 4 bytes.
    pub const CLOSED_CHECKSUM: usize = 124;
}

/// Bit 1 of a header's flags: see [`SegmentHeader::is_compacted`].
pub const FLAG_COMPACTED: u32 = 2;
/// Bit 2 of a header's flags: see [`SegmentHeader::has_forgotten`].
pub const FLAG_FORGOTTEN: u32 = 4;
/// Where the count of rewrites starts in the flags.
const REWRITES_SHIFT: u32 = 8;
/// The most often that a segment can be rewritten.
pub const REWRITES_MAX: u32 = u32::MAX >> REWRITES_SHIFT;
/// `created_ms` of a segment that was compacted in part only.
pub const COMPACTED_IN_PART: i64 = i64::MAX;

/// Whether a segment takes appends. The numbers never change; zero is no state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SegmentState {
    /// The open segment of its lane.
    Open = 1,
    /// Immutable; its group goes on in the next segment.
    Closed = 2,
    /// Immutable, and the last segment of its group.
    ClosedGroup = 3,
}

impl SegmentState {
    /// From the number in a header.
    pub fn from_u32(value: u32) -> Result<SegmentState, FormatError> {
        match value {
            1 => Ok(SegmentState::Open),
            2 => Ok(SegmentState::Closed),
            3 => Ok(SegmentState::ClosedGroup),
            _ => Err(FormatError::BadField { field: "segment.state", value: value.into(), allowed: "1, 2 or 3" }),
        }
    }
}

/// The half of a segment's header that never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Its name.
    pub id: SegmentId,
    /// Bytes of its buffer, header included, rounded up to a power of two.
    pub capacity_bytes: u32,
    /// Ordinal of its first record.
    pub base_ordinal: u64,
    /// When it was opened, milliseconds since 1970.
    pub created_ms: i64,
    /// See the module.
    pub flags: u32,
}

/// The half of a segment's header that changes while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentProgress {
    /// Where the next append goes.
    pub head: u64,
    /// Up to where readers see it.
    pub durable_head: u64,
    /// Ordinal of the record after the last.
    pub next_ordinal: u64,
    /// Whether it takes appends.
    pub state: SegmentState,
    /// Chunks in it.
    pub chunk_count: u32,
    /// Append time of its first chunk.
    pub first_append_ms: i64,
    /// Append time of its last chunk.
    pub last_append_ms: i64,
    /// Largest record timestamp, [`crate::chunk::NO_TIMESTAMP`] if none.
    pub max_timestamp_ms: i64,
}

impl SegmentHeader {
    /// Whether records were removed from it. Then the positions in its chunks are those that they had when they were appended
    /// and rise from chunk to chunk, but are not where the chunks lie; ordinals have holes. The last chunk is always there.
    pub fn is_compacted(&self) -> bool {
        self.flags & FLAG_COMPACTED != 0
    }

    /// How often it was rewritten, or [cut](SegmentHeader::cut): of two images of one segment the one with more counts.
    pub fn rewrites(&self) -> u32 {
        self.flags >> REWRITES_SHIFT
    }

    /// Whether its lane had forgotten producers when it was rewritten, so that the last chunks of some may have gone: who is not known from what is left
    /// may have been known once, and whose last chunk is in front of its end may have sent more. Earlier versions do not say so, and keep what is said.
    pub fn has_forgotten(&self) -> bool {
        self.flags & FLAG_FORGOTTEN != 0
    }

    /// When it was compacted first; `None` if it was not, or in part only.
    pub fn compacted_ms(&self) -> Option<i64> {
        (self.is_compacted() && self.created_ms != COMPACTED_IN_PART).then_some(self.created_ms)
    }

    /// The same, not compacted whole yet: something has come in front of it since.
    #[must_use]
    pub fn compacted_in_part(&self) -> SegmentHeader {
        let created_ms = if self.is_compacted() { COMPACTED_IN_PART } else { self.created_ms };
        SegmentHeader { created_ms, ..*self }
    }

    /// The header of the segment as it is rewritten at `now_ms`, `None` if it cannot be any more. `whole`: everything that it
    /// hides in front of it has gone.
    pub fn rewritten(&self, now_ms: i64, whole: bool) -> Option<SegmentHeader> {
        let rewrites = self.rewrites() + 1;
        let created_ms = self.compacted_ms().unwrap_or(if whole { now_ms } else { COMPACTED_IN_PART });
        let low = self.flags & ((1 << REWRITES_SHIFT) - 1);
        let flags = low | FLAG_COMPACTED | rewrites << REWRITES_SHIFT;
        (rewrites <= REWRITES_MAX).then_some(SegmentHeader { created_ms, flags, ..*self })
    }

    /// The header of the segment without its last chunks, `None` if it cannot be rewritten any more: of two images of one segment the shorter counts. Nothing in front of
    /// them was removed.
    pub fn cut(&self) -> Option<SegmentHeader> {
        let rewrites = self.rewrites() + 1;
        let low = self.flags & ((1 << REWRITES_SHIFT) - 1);
        (rewrites <= REWRITES_MAX).then_some(SegmentHeader { flags: low | rewrites << REWRITES_SHIFT, ..*self })
    }

    /// The same, of a lane that [has forgotten](SegmentHeader::has_forgotten) producers.
    #[must_use]
    pub fn forgotten(&self) -> SegmentHeader {
        SegmentHeader { flags: self.flags | FLAG_FORGOTTEN, ..*self }
    }

    /// Writes the first 64 bytes of the segment.
    pub fn write(&self, segment: &mut [u8]) {
        put(segment, 0, &SEGMENT_MAGIC.to_le_bytes());
        put(segment, 4, &SEGMENT_VERSION.to_le_bytes());
        put(segment, 6, &(SEGMENT_HEADER_BYTES as u16).to_le_bytes());
        put(segment, 8, &self.id.stream.0.to_le_bytes());
        put(segment, 16, &self.id.streamlet.0.to_le_bytes());
        put(segment, 20, &self.id.lane.0.to_le_bytes());
        put(segment, 24, &self.id.group.0.to_le_bytes());
        put(segment, 32, &self.id.index.0.to_le_bytes());
        put(segment, 36, &self.capacity_bytes.to_le_bytes());
        put(segment, 40, &self.base_ordinal.to_le_bytes());
        put(segment, 48, &self.created_ms.to_le_bytes());
        put(segment, 56, &self.flags.to_le_bytes());
        let crc = crc32c(&segment[..60]);
        put(segment, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies the first 64 bytes of a segment.
    pub fn parse(segment: &[u8]) -> Result<SegmentHeader, FormatError> {
        FormatError::need("segment header", SEGMENT_HEADER_BYTES, segment.len())?;
        START.check(segment)?;
        let capacity = u32_at(segment, 36) as usize;
        if !capacity.is_power_of_two() || !(limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX).contains(&capacity) {
            let (field, allowed) = ("segment.capacity_bytes", "a power of two from 64 KiB to 16 MiB");
            return Err(FormatError::BadField { field, value: capacity as u64, allowed });
        }
        Ok(SegmentHeader {
            id: SegmentId {
                stream: StreamId(u64_at(segment, 8)),
                streamlet: StreamletId(u32_at(segment, 16)),
                lane: LaneId(u32_at(segment, 20)),
                group: GroupId(u64_at(segment, 24)),
                index: SegmentIndex(u32_at(segment, 32)),
            },
            capacity_bytes: capacity as u32,
            base_ordinal: u64_at(segment, 40),
            created_ms: i64_at(segment, 48),
            flags: u32_at(segment, 56),
        })
    }
}

impl SegmentProgress {
    /// An open segment without chunks.
    pub fn empty(base_ordinal: u64) -> SegmentProgress {
        SegmentProgress {
            head: SEGMENT_HEADER_BYTES as u64,
            durable_head: SEGMENT_HEADER_BYTES as u64,
            next_ordinal: base_ordinal,
            state: SegmentState::Open,
            chunk_count: 0,
            first_append_ms: 0,
            last_append_ms: 0,
            max_timestamp_ms: crate::chunk::NO_TIMESTAMP,
        }
    }

    /// Writes bytes 64 to 128 of a segment, with the checksum if it is closed. Only for a segment that nobody else
    /// sees; one in use is changed field by field.
    pub fn write(&self, segment: &mut [u8]) {
        put(segment, at::HEAD, &self.head.to_le_bytes());
        put(segment, at::DURABLE_HEAD, &self.durable_head.to_le_bytes());
        put(segment, at::NEXT_ORDINAL, &self.next_ordinal.to_le_bytes());
        put(segment, at::STATE, &(self.state as u32).to_le_bytes());
        put(segment, at::CHUNK_COUNT, &self.chunk_count.to_le_bytes());
        put(segment, at::FIRST_APPEND_MS, &self.first_append_ms.to_le_bytes());
        put(segment, at::LAST_APPEND_MS, &self.last_append_ms.to_le_bytes());
        put(segment, at::MAX_TIMESTAMP_MS, &self.max_timestamp_ms.to_le_bytes());
        put(segment, 120, &[0; 4]);
        let crc = if self.state == SegmentState::Open { 0 } else { closed_checksum(segment) };
        put(segment, at::CLOSED_CHECKSUM, &crc.to_le_bytes());
    }

    /// Reads bytes 64 to 128 of a segment. The checksum of a closed segment is verified; of an open one only the
    /// bounds of `head` and `durable_head` are.
    pub fn parse(segment: &[u8], capacity_bytes: u32) -> Result<SegmentProgress, FormatError> {
        FormatError::need("segment header", SEGMENT_HEADER_BYTES, segment.len())?;
        let state = SegmentState::from_u32(u32_at(segment, at::STATE))?;
        if state != SegmentState::Open {
            let (found, computed) = (u32_at(segment, at::CLOSED_CHECKSUM), closed_checksum(segment));
            if found != computed {
                return Err(FormatError::Checksum { what: "segment.closed_checksum", found, computed });
            }
        }
        let (head, durable_head) = (u64_at(segment, at::HEAD), u64_at(segment, at::DURABLE_HEAD));
        if head < SEGMENT_HEADER_BYTES as u64 || head > capacity_bytes.into() || !head.is_multiple_of(8) {
            return Err(FormatError::BadField {
                field: "segment.head",
                value: head,
                allowed: "a multiple of 8 from 128 up to the segment's capacity",
            });
        }
        if durable_head < SEGMENT_HEADER_BYTES as u64 || durable_head > head || !durable_head.is_multiple_of(8) {
            return Err(FormatError::BadField {
                field: "segment.durable_head",
                value: durable_head,
                allowed: "a multiple of 8 from 128 up to the head",
            });
        }
        Ok(SegmentProgress {
            head,
            durable_head,
            next_ordinal: u64_at(segment, at::NEXT_ORDINAL),
            state,
            chunk_count: u32_at(segment, at::CHUNK_COUNT),
            first_append_ms: i64_at(segment, at::FIRST_APPEND_MS),
            last_append_ms: i64_at(segment, at::LAST_APPEND_MS),
            max_timestamp_ms: i64_at(segment, at::MAX_TIMESTAMP_MS),
        })
    }
}

/// The checksum that a closed segment's header carries over its second half; `durable_head` may still move.
pub fn closed_checksum(segment: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&segment[at::HEAD..at::DURABLE_HEAD]);
    crc.update(&segment[at::NEXT_ORDINAL..at::CLOSED_CHECKSUM]);
    crc.finish()
}
