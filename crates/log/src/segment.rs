//! A segment in memory: an arena block with a header in front, whose head and durable head move by atomic stores in
//! shared memory.
//!
//! Whoever holds an `Arc<Segment>` (a lane, a reader that is still sending, a virtual log that has not written it yet)
//! keeps its block; the last one gives it back to the arena.

use std::sync::Arc;

use bytes::Bytes;
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::SegmentId;

use crate::producers::ProducerMark;

/// A segment in memory. Positions and heads are bytes from the start of the segment; the first chunk is at 128.
pub struct Segment {}

impl Segment {
    /// Its name.
    pub fn id(&self) -> SegmentId {
        todo!()
    }
    /// The half of its header that never changes.
    pub fn header(&self) -> &SegmentHeader {
        todo!()
    }
    /// The half of its header that changes, as of now. Consistent once the segment is closed.
    pub fn progress(&self) -> SegmentProgress {
        todo!()
    }
    /// Bytes of its buffer when it was opened, header included.
    pub fn capacity_bytes(&self) -> u32 {
        todo!()
    }
    /// Bytes of arena that it takes now: less than the capacity when it was closed early or loaded back.
    pub fn block_bytes(&self) -> u64 {
        todo!()
    }
    /// Ordinal of its first record.
    pub fn base_ordinal(&self) -> u64 {
        todo!()
    }
    /// Where the next append goes; everything below is whole chunks.
    pub fn head(&self) -> u32 {
        todo!()
    }
    /// Up to where the bytes are as safe as the stream asks: where readers stop.
    pub fn durable_head(&self) -> u32 {
        todo!()
    }
    /// Whether it takes appends.
    pub fn state(&self) -> SegmentState {
        todo!()
    }
    /// Closed, and everything in it durable: it will never change again.
    pub fn is_settled(&self) -> bool {
        todo!()
    }
    /// Ordinal of the record after the last.
    pub fn next_ordinal(&self) -> u64 {
        todo!()
    }
    /// Chunks in it.
    pub fn chunk_count(&self) -> u32 {
        todo!()
    }
    /// Append time of its first chunk.
    pub fn first_append_ms(&self) -> i64 {
        todo!()
    }
    /// Append time of its last chunk.
    pub fn last_append_ms(&self) -> i64 {
        todo!()
    }
    /// Largest record timestamp, [`kera_format::chunk::NO_TIMESTAMP`] if none has one.
    pub fn max_timestamp_ms(&self) -> i64 {
        todo!()
    }
    /// Whether a reader has read its last byte: the papers' state "processed" (thesis 7.2.1). A hint for eviction.
    pub fn was_read(&self) -> bool {
        todo!()
    }

    /// The bytes from `from` up to `to`, which is at most the head as it was seen by the caller.
    pub fn bytes(&self, from: u32, to: u32) -> &[u8] {
        let _ = (from, to);
        todo!()
    }

    /// The segment's image: header and chunks up to the head, starting at an address that is a multiple of 64 KiB. Only for
    /// a [settled](Segment::is_settled) segment; others panic, since their header still changes.
    pub fn as_image(&self) -> &[u8] {
        todo!()
    }

    /// The image, and behind it what is in the block up to the next multiple of `alignment` (a power of two up to 64 KiB):
    /// for direct disk writes. The bytes behind the image are zeroed by this call.
    pub fn as_padded_image(&self, alignment: usize) -> &[u8] {
        let _ = alignment;
        todo!()
    }

    /// The bytes from `from` up to `to` as a buffer that keeps the segment, without a copy.
    pub fn into_bytes(self: &Arc<Self>, from: u32, to: u32) -> Bytes {
        let _ = (from, to);
        todo!()
    }

    /// The last chunks of each producer in this segment, in append order: what a restart needs to go on with
    /// deduplication, without reading the segment. The store keeps them with the segment. Walks all chunk headers.
    pub fn producer_marks(&self) -> Vec<ProducerMark> {
        todo!()
    }
}
