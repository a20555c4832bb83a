//! A piece of a compacted segment: the payload of a chunk of [kind](crate::chunk::PayloadKind) 3, which is how such a segment is copied again.
//!
//! The chunks of a compacted segment do not follow one another: positions and ordinals have holes where something was removed. Backups and
//! recoveries put chunks together by both, so a hole would look like what was lost. Pieces have none. Together they are the *row* of one
//! rewriting of a segment: each covers the ordinals up to where the next one begins, and its position is where it lies in the row, the first at
//! 128. In it are whole chunks as they lie in the segment, each with the position and ordinal that it was appended with.
//!
//! ```text
//! offset  bytes  field
//!      0      4  flags             of the segment's header: with how often it was rewritten
//!      4      4  checksum          CRC-32C of all chunks of the segment
//!      8      4  row_end           where the last piece ends in the row
//!     12      4  capacity_bytes    of the segment
//!     16      4  head              of the segment: its header and its chunks
//!     20      4  at                where in the segment the first chunk of the piece lies
//!     24      4  chunk_count       of the segment
//!     28      4  zero
//!     32      8  created_ms        of the segment's header
//!     40      8  first_append_ms   of the segment's header
//!     48      8  last_append_ms    of the segment's header
//!     56      8  max_timestamp_ms  of the segment's header
//!     64      …  chunks
//! ```
//! Everything but `at` and the chunks is the same in all pieces of a row. Producers cannot send chunks of this kind.

use crate::checksum::crc32c;
use crate::chunk::{ChunkTarget, Chunks, PayloadKind, seal_in_place};
use crate::segment::{FLAG_COMPACTED, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress};
use crate::wire::{i64_at, put, u32_at};
use crate::{BrokerPart, CHUNK_HEADER_BYTES, Compression, FormatError, limits};

/// Bytes of a piece before its chunks.
pub const PIECE_HEADER_BYTES: usize = 64;
/// A piece takes no further chunk when it has so many bytes of them.
pub const PIECE_BYTES: usize = 256 << 10;

/// What a piece says of its segment, and where in that it belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceHeader {
    /// `flags` of the segment's header.
    pub flags: u32,
    /// CRC-32C of all chunks of the segment.
    pub checksum: u32,
    /// Where the last piece ends in the row.
    pub row_end: u32,
    /// Bytes of the segment's buffer when it was opened.
    pub capacity_bytes: u32,
    /// Where the segment's last chunk ends in it.
    pub head: u32,
    /// Where in the segment the first chunk of the piece lies.
    pub at: u32,
    /// Chunks of the segment.
    pub chunk_count: u32,
    /// `created_ms` of the segment's header.
    pub created_ms: i64,
    /// Append time of the first chunk that it had.
    pub first_append_ms: i64,
    /// Append time of the last chunk that it had.
    pub last_append_ms: i64,
    /// Largest record timestamp that it had.
    pub max_timestamp_ms: i64,
}

/// How often a segment had been rewritten when it was the one that [`rewrite`](PieceHeader::rewrite) names; zero: never.
pub fn rewrites_of(rewrite: u64) -> u32 {
    (rewrite >> 32) as u32
}

impl PieceHeader {
    /// Which rewriting of the segment it is of. Later ones of one owner are higher, two of different contents differ, and it is never zero.
    pub fn rewrite(&self) -> u64 {
        u64::from(self.flags >> 8) << 32 | u64::from(self.checksum)
    }

    /// Writes the first 64 bytes of a piece.
    pub fn write(&self, out: &mut [u8]) {
        put(out, 0, &self.flags.to_le_bytes());
        put(out, 4, &self.checksum.to_le_bytes());
        put(out, 8, &self.row_end.to_le_bytes());
        put(out, 12, &self.capacity_bytes.to_le_bytes());
        put(out, 16, &self.head.to_le_bytes());
        put(out, 20, &self.at.to_le_bytes());
        put(out, 24, &self.chunk_count.to_le_bytes());
        put(out, 28, &[0; 4]);
        put(out, 32, &self.created_ms.to_le_bytes());
        put(out, 40, &self.first_append_ms.to_le_bytes());
        put(out, 48, &self.last_append_ms.to_le_bytes());
        put(out, 56, &self.max_timestamp_ms.to_le_bytes());
    }

    /// Reads a chunk's payload: the header, every field checked, and the chunks behind it, not looked at.
    pub fn parse(payload: &[u8]) -> Result<(PieceHeader, &[u8]), FormatError> {
        FormatError::need("piece", PIECE_HEADER_BYTES, payload.len())?;
        let bad = |field, value: u32, allowed| Err(FormatError::BadField { field, value: value.into(), allowed });
        let header = PieceHeader {
            flags: u32_at(payload, 0),
            checksum: u32_at(payload, 4),
            row_end: u32_at(payload, 8),
            capacity_bytes: u32_at(payload, 12),
            head: u32_at(payload, 16),
            at: u32_at(payload, 20),
            chunk_count: u32_at(payload, 24),
            created_ms: i64_at(payload, 32),
            first_append_ms: i64_at(payload, 40),
            last_append_ms: i64_at(payload, 48),
            max_timestamp_ms: i64_at(payload, 56),
        };
        let (first, chunks) = (SEGMENT_HEADER_BYTES as u32, &payload[PIECE_HEADER_BYTES..]);
        if header.flags & FLAG_COMPACTED == 0 || header.flags >> 8 == 0 {
            return bad("piece.flags", header.flags, "those of a segment that was rewritten");
        }
        if u32_at(payload, 28) != 0 {
            return bad("piece.zero", u32_at(payload, 28), "0");
        }
        let capacity = header.capacity_bytes as usize;
        if !capacity.is_power_of_two() || !(limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX).contains(&capacity) {
            return bad("piece.capacity_bytes", header.capacity_bytes, "a power of two from 64 KiB to 16 MiB");
        }
        if !(first + 8..=header.capacity_bytes).contains(&header.head) || !header.head.is_multiple_of(8) {
            return bad("piece.head", header.head, "a multiple of 8 within the segment");
        }
        let end = u64::from(header.at) + chunks.len() as u64;
        if header.at < first || chunks.is_empty() || end > header.head.into() || !header.at.is_multiple_of(8) {
            return bad("piece.at", header.at, "a place in the segment with room for its chunks");
        }
        let row_end = header.row_end as usize;
        if row_end <= header.head as usize || row_end > limits::SEGMENT_BYTES_MAX || !row_end.is_multiple_of(8) {
            return bad("piece.row_end", header.row_end, "a multiple of 8, more than the head and 16 MiB at most");
        }
        Ok((header, chunks))
    }
}

/// The row of a compacted segment, from its first piece on: chunks one behind the other, the first of which has position 128. `chunks`: those of
/// the segment, its header left out.
///
/// # Errors
/// If the segment is not as it should be, or cannot be put so: its pieces would take more than 16 MiB, or one would cover more ordinals than a
/// chunk can.
pub fn row_of(header: &SegmentHeader, progress: &SegmentProgress, chunks: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut cuts: Vec<(usize, u64)> = Vec::new();
    let (mut at, mut last_cut) = (0, 0);
    for chunk in Chunks::new(chunks) {
        let chunk = chunk?;
        if cuts.is_empty() || at + chunk.as_bytes().len() - last_cut > PIECE_BYTES {
            // The first one begins where the segment does, whatever of its front was removed.
            let base = if cuts.is_empty() { header.base_ordinal } else { chunk.broker()?.base_ordinal };
            cuts.push((at, base));
            last_cut = at;
        }
        at += chunk.as_bytes().len();
    }
    let row_end = SEGMENT_HEADER_BYTES + chunks.len() + cuts.len() * (CHUNK_HEADER_BYTES + PIECE_HEADER_BYTES);
    if row_end > limits::SEGMENT_BYTES_MAX {
        let (value, limit) = (row_end as u64, limits::SEGMENT_BYTES_MAX as u64);
        return Err(FormatError::OverLimit { field: "piece.row_end", value, limit });
    }
    let piece = PieceHeader {
        flags: header.flags,
        checksum: crc32c(chunks),
        row_end: row_end as u32,
        capacity_bytes: header.capacity_bytes,
        head: progress.head as u32,
        at: 0,
        chunk_count: progress.chunk_count,
        created_ms: header.created_ms,
        first_append_ms: progress.first_append_ms,
        last_append_ms: progress.last_append_ms,
        max_timestamp_ms: progress.max_timestamp_ms,
    };
    let mut row = Vec::with_capacity(row_end - SEGMENT_HEADER_BYTES);
    for (n, &(from, base_ordinal)) in cuts.iter().enumerate() {
        let (to, next_ordinal) = cuts.get(n + 1).copied().unwrap_or((chunks.len(), progress.next_ordinal));
        let mut chunk = vec![0; CHUNK_HEADER_BYTES + PIECE_HEADER_BYTES];
        PieceHeader { at: (SEGMENT_HEADER_BYTES + from) as u32, ..piece }.write(&mut chunk[CHUNK_HEADER_BYTES..]);
        chunk.extend_from_slice(&chunks[from..to]);
        let covered = next_ordinal.saturating_sub(base_ordinal);
        let covered = u32::try_from(covered).unwrap_or(u32::MAX);
        let target = ChunkTarget { stream: header.id.stream, streamlet: header.id.streamlet, ..ChunkTarget::default() };
        seal_in_place(&mut chunk, &target, PayloadKind::Piece, Compression::None, covered, progress.max_timestamp_ms)?;
        let part = BrokerPart {
            group: header.id.group,
            segment: header.id.index,
            base_ordinal,
            append_time_ms: progress.last_append_ms,
            lane: header.id.lane,
            position: (SEGMENT_HEADER_BYTES + row.len()) as u32,
        };
        part.stamp(&mut chunk);
        row.append(&mut chunk);
    }
    Ok(row)
}
