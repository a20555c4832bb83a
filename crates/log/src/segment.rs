//! A segment in memory: an arena block with a header in front, whose head and durable head move by atomic stores in
//! shared memory. Layout: [`kera_format::segment`].
//!
//! Whoever holds an `Arc<Segment>` (a lane, a reader that is still sending, a virtual log that has not written it yet)
//! keeps its block; the last one gives it back to the arena.
//!
//! # Who may touch which bytes
//!
//! - Bytes 0..64 are written before anybody else sees the segment, then never again.
//! - Bytes 64..128 are only accessed as atomics. The lane that the segment is the open one of writes them under its lock, but
//!   for the durable head, which the virtual log's writer moves.
//! - Bytes from 128 up to the head never change. Bytes behind it belong to the appending lane, under its lock.
//!
//! The head is stored (release) after the chunk's bytes, and loaded (acquire) before they are read. So no reader sees a byte
//! that is not final, and a process killed between any two instructions leaves whole chunks below the head: a kill stops a
//! thread at a point of its program order, and what it has stored until then is in the shared memory.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kera_format::chunk::{Chunk, PRODUCER_PART_AT};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState, at, closed_checksum};
use kera_format::{BrokerPart, ChunkHeader, FormatError, SegmentId};

use crate::arena::{ArenaFull, Block};
use crate::copy::{copy_past_caches, prepare_to_write};
use crate::producers::{ProducerMark, marks_of};

/// Where the first chunk is.
pub(crate) const FIRST_CHUNK: u32 = SEGMENT_HEADER_BYTES as u32;

/// Chunks from this size on are copied past the caches (see [`crate::copy`]).
const LARGE_CHUNK_BYTES: usize = 8 << 10;
/// How far behind a small chunk the caches are told that more will be written. Lanes get chunks of about the same size.
const PREPARED_BYTES_MAX: usize = 2 << 10;

/// A segment in memory. Positions and heads are bytes from the start of the segment; the first chunk is at 128.
pub struct Segment {
    block: Block,
    header: SegmentHeader,
    was_read: AtomicBool,
    /// It was given to the store.
    handed_over: AtomicBool,
    marks: OnceLock<Vec<ProducerMark>>,
}

impl Segment {
    /// Makes an empty open segment in a block and names the block as one.
    pub(crate) fn create(block: Block, header: SegmentHeader) -> Arc<Segment> {
        let segment = Segment::create_hidden(block, header);
        segment.publish();
        segment
    }

    /// Makes an empty open segment in a block that is not named as one yet: a process that attaches the arena does not find it.
    pub(crate) fn create_hidden(block: Block, header: SegmentHeader) -> Arc<Segment> {
        // SAFETY: the block is not published yet and this is its only handle; the slice ends before it is.
        let memory = unsafe { std::slice::from_raw_parts_mut(block.base().as_ptr(), SEGMENT_HEADER_BYTES) };
        header.write(memory);
        SegmentProgress::empty(header.base_ordinal).write(memory);
        Segment::over(block, header)
    }

    /// Names its block as a segment.
    pub(crate) fn publish(&self) {
        self.block.publish();
    }

    /// A segment over a block whose header is already there and was verified.
    pub(crate) fn over(block: Block, header: SegmentHeader) -> Arc<Segment> {
        let (was_read, handed_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Segment { block, header, was_read, handed_over, marks: OnceLock::new() })
    }

    /// An open segment with these chunks, and the progress that follows from them. Nobody else has the block yet.
    pub(crate) fn copy_of(
        block: Block,
        header: SegmentHeader,
        chunks: &[u8],
        progress: &SegmentProgress,
    ) -> Arc<Segment> {
        let end = SEGMENT_HEADER_BYTES + chunks.len();
        assert!(end <= block.bytes(), "the chunks fit");
        // SAFETY: the block is not published yet and this is its only handle; the slice ends before it is.
        let memory = unsafe { std::slice::from_raw_parts_mut(block.base().as_ptr(), end) };
        memory[SEGMENT_HEADER_BYTES..].copy_from_slice(chunks);
        header.write(memory);
        progress.write(memory);
        block.publish();
        Segment::over(block, header)
    }

    /// An open segment in a larger block, with the chunks of a smaller one that nobody reads or writes meanwhile.
    pub(crate) fn create_from(block: Block, header: SegmentHeader, smaller: &Segment) -> Arc<Segment> {
        let head = smaller.head() as usize;
        debug_assert!(head <= block.bytes());
        // SAFETY: the block is not published yet and this is its only handle; the slice ends before it is.
        let memory = unsafe { std::slice::from_raw_parts_mut(block.base().as_ptr(), head) };
        memory[SEGMENT_HEADER_BYTES..].copy_from_slice(smaller.bytes(FIRST_CHUNK, head as u32));
        header.write(memory);
        SegmentProgress { state: SegmentState::Open, ..smaller.progress() }.write(memory);
        block.publish();
        Segment::over(block, header)
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.block.base().as_ptr()
    }

    #[inline]
    fn u64_field(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned field of the header's second half, which is only accessed as atomics.
        unsafe { AtomicU64::from_ptr(self.base().add(offset).cast()) }
    }
    #[inline]
    fn i64_field(&self, offset: usize) -> &AtomicI64 {
        // SAFETY: as above.
        unsafe { AtomicI64::from_ptr(self.base().add(offset).cast()) }
    }
    #[inline]
    fn u32_field(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base().add(offset).cast()) }
    }

    /// Its name.
    #[inline]
    pub fn id(&self) -> SegmentId {
        self.header.id
    }
    /// The half of its header that never changes.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }
    /// The half of its header that changes, as of now. Consistent once the segment is closed.
    pub fn progress(&self) -> SegmentProgress {
        SegmentProgress {
            durable_head: self.durable_head().into(),
            head: self.head().into(),
            next_ordinal: self.next_ordinal(),
            state: self.state(),
            chunk_count: self.chunk_count(),
            first_append_ms: self.first_append_ms(),
            last_append_ms: self.last_append_ms(),
            max_timestamp_ms: self.max_timestamp_ms(),
        }
    }
    /// Bytes of its buffer when it was opened, header included, rounded up to a power of two.
    pub fn capacity_bytes(&self) -> u32 {
        self.header.capacity_bytes
    }
    /// Bytes of arena that it takes now: less than the capacity where its block is no power of two, or it was closed early or
    /// loaded back.
    pub fn block_bytes(&self) -> u64 {
        self.block.bytes() as u64
    }
    /// Up to where it can be filled while its block is as large as it is.
    pub(crate) fn room_bytes(&self) -> u32 {
        (self.block.bytes() as u32).min(self.header.capacity_bytes)
    }
    /// Ordinal of its first record.
    pub fn base_ordinal(&self) -> u64 {
        self.header.base_ordinal
    }
    /// Where the next append goes; everything below is whole chunks.
    #[inline]
    pub fn head(&self) -> u32 {
        self.u64_field(at::HEAD).load(Ordering::Acquire) as u32
    }
    /// Up to where the bytes are as safe as the stream asks: where readers stop.
    #[inline]
    pub fn durable_head(&self) -> u32 {
        self.u64_field(at::DURABLE_HEAD).load(Ordering::Acquire) as u32
    }
    /// Whether it takes appends.
    #[inline]
    pub fn state(&self) -> SegmentState {
        let state = self.u32_field(at::STATE).load(Ordering::Acquire);
        SegmentState::from_u32(state).unwrap_or(SegmentState::Closed)
    }
    /// Closed, and everything in it durable: it will never change again.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.state() != SegmentState::Open && self.durable_head() == self.head()
    }
    /// Ordinal of the record after the last.
    pub fn next_ordinal(&self) -> u64 {
        self.u64_field(at::NEXT_ORDINAL).load(Ordering::Relaxed)
    }
    /// Chunks in it.
    pub fn chunk_count(&self) -> u32 {
        self.u32_field(at::CHUNK_COUNT).load(Ordering::Relaxed)
    }
    /// Append time of its first chunk.
    pub fn first_append_ms(&self) -> i64 {
        self.i64_field(at::FIRST_APPEND_MS).load(Ordering::Relaxed)
    }
    /// Append time of its last chunk.
    pub fn last_append_ms(&self) -> i64 {
        self.i64_field(at::LAST_APPEND_MS).load(Ordering::Relaxed)
    }
    /// Largest record timestamp, [`kera_format::chunk::NO_TIMESTAMP`] if none has one.
    pub fn max_timestamp_ms(&self) -> i64 {
        self.i64_field(at::MAX_TIMESTAMP_MS).load(Ordering::Relaxed)
    }
    /// Whether a reader has read its last byte: the papers' state "processed" (thesis 7.2.1). A hint for eviction.
    pub fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }
    pub(crate) fn mark_read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
    }

    /// Where the bytes of a reader's position are: of a compacted segment, where the first chunk lies that was appended there or
    /// behind it ([`SegmentHeader::is_compacted`]). Walks chunk headers of compacted segments.
    pub(crate) fn place_of(&self, position: u32) -> u32 {
        if !self.header.is_compacted() || position <= FIRST_CHUNK {
            return position;
        }
        let bytes = self.bytes(FIRST_CHUNK, self.head());
        let mut at = 0;
        while at < bytes.len() {
            let (Ok(header), Ok(part)) = (ChunkHeader::parse(&bytes[at..]), BrokerPart::parse(&bytes[at..])) else {
                break;
            };
            if part.position >= position {
                break;
            }
            at += header.total_bytes();
        }
        FIRST_CHUNK + at as u32
    }

    /// The position of readers at a place that is the start of a chunk or the durable head.
    pub(crate) fn position_of(&self, place: u32) -> u32 {
        if !self.header.is_compacted() {
            return place;
        }
        let part = BrokerPart::parse(self.bytes(place, self.head()));
        part.map_or(self.header.capacity_bytes, |part| part.position)
    }

    /// The bytes from `from` up to `to`, which is at most the head.
    #[inline]
    pub fn bytes(&self, from: u32, to: u32) -> &[u8] {
        assert!(FIRST_CHUNK <= from && from <= to && to <= self.head(), "bytes of a segment below its head");
        // SAFETY: below the head bytes never change, and the head lies within the block.
        unsafe { std::slice::from_raw_parts(self.base().add(from as usize), (to - from) as usize) }
    }

    /// The segment's image: header and chunks up to the head, starting at an address that is a multiple of 4 KiB. Only for
    /// a [settled](Segment::is_settled) segment; others panic, since their header still changes.
    pub fn as_image(&self) -> &[u8] {
        assert!(self.is_settled(), "the image of a segment that may still change");
        // SAFETY: nothing in a settled segment changes, the second half of its header included.
        unsafe { std::slice::from_raw_parts(self.base(), self.head() as usize) }
    }

    /// The image and what is in the block behind it, up to the next multiple of `alignment` (a power of two up to 4 KiB):
    /// for direct disk writes. What is behind the image is anything.
    pub fn as_padded_image(&self, alignment: usize) -> &[u8] {
        assert!(alignment.is_power_of_two() && alignment <= 4 << 10, "alignment of an image");
        let bytes = self.as_image().len().next_multiple_of(alignment);
        // SAFETY: a settled segment is not written any more, neither below nor behind its head; the block is a multiple of
        // 4 KiB, so the padding lies within it.
        unsafe { std::slice::from_raw_parts(self.base(), bytes) }
    }

    /// The bytes from `from` up to `to` as a buffer that keeps the segment, all of it, without a copy. Whoever may have it for long
    /// copies what it needs.
    pub fn into_bytes(self: &Arc<Self>, from: u32, to: u32) -> Bytes {
        assert!(FIRST_CHUNK <= from && from <= to && to <= self.head(), "bytes of a segment below its head");
        Bytes::from_owner(Slice { segment: Arc::clone(self), from, to })
    }

    /// The last chunks of each producer in this segment, in append order: what a restart needs to go on with
    /// deduplication, without reading the segment. The store keeps them with the segment. Walks all chunk headers, unless the
    /// lane knew them when it closed the segment.
    pub fn producer_marks(&self) -> Vec<ProducerMark> {
        self.marks.get().cloned().unwrap_or_else(|| marks_of(self.bytes(FIRST_CHUNK, self.head())))
    }

    #[cfg(test)]
    pub(crate) fn has_marks(&self) -> bool {
        self.marks.get().is_some()
    }

    /// Notes what [`producer_marks`](Segment::producer_marks) will be asked for. Before it is closed.
    pub(crate) fn set_marks(&self, marks: Vec<ProducerMark>) {
        let _ = self.marks.set(marks);
    }

    /// Verifies a chunk's checksum, copies it to `position` and stamps it. On an error nothing is changed; what lies behind
    /// the head is anything, which it always may be.
    ///
    /// Only for the lane that the segment is the open one of, under its lock, with `position` at the head or (replay) where
    /// the caller knows that nobody reads; the chunk must fit, into [memory](Segment::has_memory) too.
    #[inline]
    pub(crate) fn put_chunk(&self, position: u32, chunk: &impl Chunk, part: &BrokerPart) -> Result<(), FormatError> {
        let (total, unpadded) = (chunk.header().total_bytes(), chunk.header().unpadded_bytes());
        let position = position as usize;
        assert!(position >= SEGMENT_HEADER_BYTES && position + total <= self.block.bytes(), "the chunk fits");
        // SAFETY: behind the head, which only the caller writes (see above), and within the block, asserted.
        let target = unsafe { std::slice::from_raw_parts_mut(self.base().add(position), total) };
        // The source is in a buffer that nobody else has, so what is verified is what is copied; and it is in a near cache,
        // while the target usually is not: verified there, the checksum would wait for memory.
        chunk.verify()?;
        let (first, second) = chunk.parts();
        let (first_target, second_target) = target[PRODUCER_PART_AT..unpadded].split_at_mut(first.len());
        for (target, source) in [(first_target, first), (second_target, second)] {
            if source.len() >= LARGE_CHUNK_BYTES {
                copy_past_caches(target, source);
            } else {
                target.copy_from_slice(source);
            }
        }
        target[unpadded..].fill(0);
        part.stamp(target);
        Ok(())
    }

    /// Copies whole chunks, stamped before, to `position`: of a segment that nobody else sees yet, each place by one caller at a time, and within
    /// its [memory](Segment::has_memory).
    pub(crate) fn put_chunks(&self, position: u32, chunks: &[u8]) {
        let position = position as usize;
        assert!(position >= SEGMENT_HEADER_BYTES && position + chunks.len() <= self.block.bytes(), "the chunks fit");
        // SAFETY: behind the head, which only the caller writes (see above), and within the block, asserted.
        let target = unsafe { std::slice::from_raw_parts_mut(self.base().add(position), chunks.len()) };
        target.copy_from_slice(chunks);
    }

    /// Tells the caches that a chunk as large as the one that ended at `position` will be written there: its lines come from
    /// memory while other chunks are dealt with.
    #[inline]
    pub(crate) fn prepare(&self, position: u32, bytes: u32) {
        let (position, bytes) = (position as usize, bytes as usize);
        if bytes < LARGE_CHUNK_BYTES && position < self.block.bytes() {
            // SAFETY: within the block, just checked.
            let at = unsafe { self.base().add(position) };
            prepare_to_write(at, bytes.min(PREPARED_BYTES_MAX).min(self.block.bytes() - position));
        }
    }

    /// Whether there is memory behind the bytes below `end`, so that they can be written.
    #[inline]
    pub(crate) fn has_memory(&self, end: u32) -> bool {
        self.block.touched() >= end as usize
    }

    /// Gets memory for the bytes below `end`. Under the lane's lock.
    pub(crate) fn get_memory(&self, end: u32) -> Result<(), ArenaFull> {
        self.block.touch(self.head() as usize, end as usize)
    }

    /// Moves the head over a chunk that [`put_chunk`](Segment::put_chunk) put there. Under the lane's lock.
    #[inline]
    pub(crate) fn advance(&self, to: u32, next_ordinal: u64, chunk_count: u32, append_ms: i64, max_timestamp_ms: i64) {
        if chunk_count == 1 {
            self.i64_field(at::FIRST_APPEND_MS).store(append_ms, Ordering::Relaxed);
        }
        self.i64_field(at::LAST_APPEND_MS).store(append_ms, Ordering::Relaxed);
        if max_timestamp_ms > self.max_timestamp_ms() {
            self.i64_field(at::MAX_TIMESTAMP_MS).store(max_timestamp_ms, Ordering::Relaxed);
        }
        self.u32_field(at::CHUNK_COUNT).store(chunk_count, Ordering::Relaxed);
        self.u64_field(at::NEXT_ORDINAL).store(next_ordinal, Ordering::Relaxed);
        self.u64_field(at::HEAD).store(to.into(), Ordering::Release);
    }

    /// Moves the durable head forward to `to`, which is at most the head. Never back.
    #[inline]
    pub(crate) fn advance_durable(&self, to: u32) {
        debug_assert!(to <= self.head());
        if to > self.durable_head() {
            self.u64_field(at::DURABLE_HEAD).store(to.into(), Ordering::Release);
        }
    }

    /// Gives a segment without a chunk the times of what is before it. Under the lane's lock.
    pub(crate) fn set_times(&self, ms: i64) {
        self.i64_field(at::FIRST_APPEND_MS).store(ms, Ordering::Relaxed);
        self.i64_field(at::LAST_APPEND_MS).store(ms, Ordering::Relaxed);
    }

    /// Ends appends. The checksum goes first: while the state says open nobody looks at it. Under the lane's lock.
    pub(crate) fn close(&self, state: SegmentState) {
        debug_assert!(state != SegmentState::Open);
        let mut header = [0; SEGMENT_HEADER_BYTES];
        SegmentProgress { state, ..self.progress() }.write(&mut header);
        self.u32_field(at::CLOSED_CHECKSUM).store(closed_checksum(&header), Ordering::Relaxed);
        self.u32_field(at::STATE).store(state as u32, Ordering::Release);
        self.block.shrink(self.head() as usize);
    }

    /// Makes it an open segment with progress that was computed from its chunks. Only while nobody else has it: at start.
    pub(crate) fn reopen(&self, progress: &SegmentProgress) {
        self.u32_field(at::STATE).store(SegmentState::Open as u32, Ordering::Relaxed);
        self.i64_field(at::FIRST_APPEND_MS).store(progress.first_append_ms, Ordering::Relaxed);
        self.i64_field(at::LAST_APPEND_MS).store(progress.last_append_ms, Ordering::Relaxed);
        self.i64_field(at::MAX_TIMESTAMP_MS).store(progress.max_timestamp_ms, Ordering::Relaxed);
        self.u32_field(at::CHUNK_COUNT).store(progress.chunk_count, Ordering::Relaxed);
        self.u64_field(at::NEXT_ORDINAL).store(progress.next_ordinal, Ordering::Relaxed);
        self.u64_field(at::DURABLE_HEAD).store(progress.durable_head, Ordering::Relaxed);
        self.u64_field(at::HEAD).store(progress.head, Ordering::Release);
    }

    /// The lane no longer has it in memory. Readers keep their bytes; a process that attaches the arena does not find it.
    pub(crate) fn disown(&self) {
        self.block.unpublish();
    }

    /// It does not go to the store before that is [done late](crate::shared::Shared::hand_over_late).
    pub(crate) fn hold_back(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Notes that it is given to the store; false if it was already.
    pub(crate) fn hand_over(&self) -> bool {
        !self.handed_over.swap(true, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("id", &self.header.id).field("progress", &self.progress()).finish()
    }
}

/// A part of a segment that keeps it.
struct Slice {
    segment: Arc<Segment>,
    from: u32,
    to: u32,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.segment.bytes(self.from, self.to)
    }
}
