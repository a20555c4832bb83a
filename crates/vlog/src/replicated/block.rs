//! A block on its way to backups: made once, never changed, sent to each and again as often as need be.

use bytes::Bytes;
use kera_format::checksum::Crc32c;
use kera_format::vlog::QUESTIONS;
use kera_format::vlog_replica::LogId;
use kera_log::{ChunkReference, Ticket};

use crate::backlog::Pending;

/// Chunks that are smaller are copied together: a slice of its own costs more than so many bytes.
const COPIED_BYTES_MAX: u32 = 4 << 10;

/// A block of a replicated log. Its content is what its number has for ever: invariant 1 of `docs/replication.md`.
pub struct Block {
    /// The log.
    pub log: LogId,
    /// Its number in the log, from 1.
    pub number: u64,
    /// When it was made, milliseconds since 1970.
    pub written_ms: i64,
    /// Chunks in it.
    pub chunk_count: u32,
    /// Bytes of them.
    pub chunk_bytes: u32,
    /// CRC-32C of them.
    pub chunks_checksum: u32,
    /// The chunks: large ones where they lie in their segments, which they keep in memory.
    pub parts: Vec<Bytes>,
    /// What becomes durable with it.
    pub(crate) references: Vec<ChunkReference>,
    /// The last ticket in it.
    pub(crate) last_ticket: Ticket,
    /// Nobody waits for it: its tickets are those of the sink [behind](super::ReplicatedLog::behind).
    pub(crate) is_behind: bool,
}

impl Block {
    /// Whether a number is that of a question.
    pub fn asks(number: u64) -> bool {
        number >= QUESTIONS
    }

    /// What a backup is asked with: a block without chunks, behind a hole in any log. Every version of it answers with the next one that it
    /// takes, or that it takes none, at once and without a look at a disk; one at which a write to the disk has taken long says so.
    pub(crate) fn question(log: LogId, number: u64) -> Block {
        Block::new(log, number, 0, Vec::new(), 0)
    }

    /// Makes the next block of what was taken from the backlog. `ticket` is the last one before it.
    pub(crate) fn new(log: LogId, number: u64, written_ms: i64, taken: Vec<Pending>, ticket: Ticket) -> Block {
        let (mut parts, mut small) = (Vec::new(), Vec::new());
        let (mut chunk_count, mut chunk_bytes, mut checksum) = (0, 0, Crc32c::new());
        let mut references = Vec::with_capacity(taken.len());
        for Pending { reference, chunks } in taken {
            chunk_count += chunks;
            chunk_bytes += reference.bytes;
            checksum.update(reference.chunk());
            if reference.bytes < COPIED_BYTES_MAX {
                small.extend_from_slice(reference.chunk());
            } else {
                if !small.is_empty() {
                    parts.push(Bytes::from(std::mem::take(&mut small)));
                }
                parts.push(reference.to_bytes());
            }
            references.push(reference);
        }
        if !small.is_empty() {
            parts.push(Bytes::from(small));
        }
        let chunks_checksum = checksum.finish();
        let last_ticket = ticket + Ticket::from(chunk_count);
        let is_behind = false;
        Block {
            log,
            number,
            written_ms,
            chunk_count,
            chunk_bytes,
            chunks_checksum,
            parts,
            references,
            last_ticket,
            is_behind,
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {} of {} with {} bytes", self.number, self.log, self.chunk_bytes)
    }
}
