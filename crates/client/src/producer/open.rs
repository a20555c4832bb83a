//! An open chunk: memory that its producer fills record by record without a lock, and that the background task copies from
//! when a chunk has to leave before it is full.
//!
//! One side is the *producer*: whoever calls [`Producer::send`](crate::Producer::send), one at a time, because sending takes
//! `&mut self`. The other is the *task*. They share a [`Slot`] for each streamlet and, under the producer's lock, the
//! [`OpenChunk`] with the memory. To take a record costs the producer two loads and one store here, all of its own cache
//! line; the lock is for opening, sealing and growing a chunk.
//!
//! # Nothing lost, nothing twice
//!
//! 1. The producer writes a record behind what it has published, then publishes it with one `Release` store of
//!    `(bytes, records)`. What is published is not written again while the chunk is open. So the task, which reads
//!    `published` with `Acquire` and then only bytes in front of it, reads whole records that nobody writes.
//! 2. The task copies `[taken, published)` and notes in `taken` how far it came. Both happen under the lock, and so does
//!    sealing, where the producer leaves out what is `taken`. So each record is in exactly one sealed chunk; and chunks get
//!    their sequences in the order of their records, because who takes or seals first has the earlier ones.
//! 3. The memory goes only when the producer seals the chunk: nobody else may let go of what the producer writes to. After
//!    that, and when a chunk is opened, `published` and `stolen` are set under the lock, which the task holds while it looks.
//!
//! # Nothing left behind
//!
//! A record that opens a chunk puts it on the list that the task works through, under the lock. Records after it need
//! nothing: the chunk is on the list. When the task has stolen from a chunk, that is over; so it says `stolen`, which the
//! producer looks at before each record: then it seals what is left, and the record opens a chunk again. It looks once more
//! after it has published the record, since it may have been interrupted for any time in between: then it seals the chunk.
//!
//! What is left is that the two stores cross: the producer's is on its way when the task looks at `published`, and the task's is
//! when the producer looks at `stolen`. Ruling that out takes a full fence for each record, which costs more than the
//! record itself. Instead the task looks again, [`LOOK_AGAIN`] after it stole: a store is on its way for nanoseconds, and is
//! not when a thread is interrupted, so by then the task sees the record. What it finds is stolen likewise, and it looks once more.
//! `a_record_that_the_thief_missed_is_found_when_it_looks_again` fails without this step,
//! `a_record_that_comes_late_is_not_left_behind` without the look after, `a_record_after_a_theft_opens_a_chunk` without
//! the look before, and `a_thief_at_any_moment_loses_and_doubles_nothing` without `taken`.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};
use std::time::Duration;

use kera_format::CHUNK_HEADER_BYTES;
use kera_format::chunk::NO_TIMESTAMP;
use kera_format::{Record, Records};
use tokio::time::Instant;

use super::buffer::Waiter;

/// How long after a theft the task looks whether a record was on its way. Very long for a store, short for a user.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How much of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled {
    /// Bytes behind the header.
    pub(super) bytes: u32,
    /// Records in them.
    pub(super) records: u32,
}

impl Filled {
    #[inline]
    fn pack(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.records) << 32
    }

    fn unpack(packed: u64) -> Filled {
        Filled { bytes: packed as u32, records: (packed >> 32) as u32 }
    }
}

/// What producer and task see of a streamlet's open chunk without the lock. A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    /// [`Filled`], packed. Written by the producer only.
    published: AtomicU64,
    /// The task has taken from the chunk, and looks at it no more. Reset when a chunk is opened, under the lock.
    stolen: AtomicBool,
}

impl Slot {
    /// A chunk is opened. Under the lock.
    pub(super) fn open(&self) {
        self.published.store(0, Relaxed);
        self.stolen.store(false, Relaxed);
    }

    /// The producer's look. It needs no order: the list of open chunks is under the lock, which it takes if this is set.
    #[inline]
    pub(super) fn is_stolen(&self) -> bool {
        self.stolen.load(Relaxed)
    }

    /// The producer's look after it has published a record: not before, in the order of the program.
    #[inline]
    pub(super) fn is_stolen_since(&self) -> bool {
        // Keeps the compiler from looking first. The processor may, and then the two stores cross (see the module).
        compiler_fence(SeqCst);
        self.is_stolen()
    }
}

/// The producer's side of an open chunk. It belongs to whoever may write.
#[derive(Debug)]
pub(super) struct Pen {
    /// Of the memory, where the payload starts; dangling without an open chunk.
    payload: *mut u8,
    /// Bytes that may be written from there on; zero without an open chunk.
    room: u32,
    filled: Filled,
    max_timestamp_ms: i64,
    /// Where it is in the producer's list of open chunks.
    pub(super) listed: u32,
}

// SAFETY: The pointer goes to memory of an `OpenChunk`, which stays where it is until this side seals the chunk (see the
// module); it may be written from whatever thread owns the pen.
unsafe impl Send for Pen {}
// SAFETY: A shared pen can only be looked at: writing takes `&mut`.
unsafe impl Sync for Pen {}

impl Default for Pen {
    fn default() -> Self {
        let payload = std::ptr::NonNull::dangling().as_ptr();
        Pen { payload, room: 0, filled: Filled::default(), max_timestamp_ms: NO_TIMESTAMP, listed: 0 }
    }
}

impl Pen {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.room > 0
    }

    #[inline]
    pub(super) fn filled(&self) -> Filled {
        self.filled
    }

    /// Bytes that can be written yet.
    #[inline]
    pub(super) fn left(&self) -> usize {
        (self.room - self.filled.bytes) as usize
    }

    /// The chunk is sealed.
    pub(super) fn close(&mut self) {
        *self = Pen::default();
    }

    /// Encodes a record of `bytes` bytes and publishes it.
    ///
    /// # Panics
    /// If there is no [room](Pen::left).
    #[inline]
    pub(super) fn write(&mut self, slot: &Slot, record: &Record<'_>, bytes: usize) {
        assert!(bytes <= self.left(), "a record is written where there is room");
        // SAFETY: `payload` points to `room` bytes that were initialised (`OpenChunk::pen`, `OpenChunk::grow`) and live
        // until this pen is closed. The bytes from `filled` on are not published: nobody else looks at them, and this
        // pen is borrowed mutably.
        let place = unsafe { std::slice::from_raw_parts_mut(self.payload.add(self.filled.bytes as usize), bytes) };
        record.encode_to(place);
        self.filled.bytes += bytes as u32;
        self.filled.records += 1;
        if let Some(timestamp) = record.timestamp_ms {
            self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp);
        }
        // Step 1: whoever sees this sees the record.
        slot.published.store(self.filled.pack(), Release);
    }
}

/// The open chunk of a streamlet, under the lock.
#[derive(Debug)]
pub(super) struct OpenChunk {
    /// All of it is initialised; room for the header, then the payload. Its contents are read and written through
    /// pointers only until the chunk is sealed.
    memory: Vec<u8>,
    /// Counts openings of the producer: tells a chunk from the next one of its streamlet.
    pub(super) opening: u64,
    /// When it was opened, or stolen from.
    pub(super) opened_at: Instant,
    /// What was stolen of it.
    pub(super) taken: Filled,
    /// Bytes of the buffer's bound that it takes.
    pub(super) charged: usize,
    /// Who waits for which record, in order.
    pub(super) waiters: Vec<(u32, Waiter)>,
}

impl OpenChunk {
    /// An empty chunk.
    pub(super) fn new(memory: Vec<u8>, opening: u64, opened_at: Instant) -> OpenChunk {
        OpenChunk { memory, opening, opened_at, taken: Filled::default(), charged: 0, waiters: Vec::new() }
    }

    /// The most payload that its memory holds.
    pub(super) fn capacity(&self) -> usize {
        self.memory.len() - CHUNK_HEADER_BYTES
    }

    /// A pen for its memory, of which `room` bytes may be written. There is only one pen at a time.
    pub(super) fn pen(&mut self, room: usize) -> Pen {
        assert!(room <= self.capacity(), "the pen stays within the memory");
        Pen { payload: self.payload(), room: room as u32, ..Pen::default() }
    }

    /// Lets the pen write `room` bytes in all, in other memory if this has not as many. The old memory, if so.
    pub(super) fn grow(&mut self, pen: &mut Pen, room: usize, more: impl FnOnce() -> Vec<u8>) -> Option<Vec<u8>> {
        let mut old = None;
        if room > self.capacity() {
            let mut memory = more();
            assert!(room + CHUNK_HEADER_BYTES <= memory.len(), "the pen stays within the memory");
            let end = CHUNK_HEADER_BYTES + pen.filled.bytes as usize;
            // The pen is here, so nobody writes.
            memory[CHUNK_HEADER_BYTES..end].copy_from_slice(&self.memory[CHUNK_HEADER_BYTES..end]);
            old = Some(std::mem::replace(&mut self.memory, memory));
            pen.payload = self.payload();
        }
        pen.room = room as u32;
        old
    }

    fn payload(&mut self) -> *mut u8 {
        self.memory[CHUNK_HEADER_BYTES..].as_mut_ptr()
    }

    /// The task's side: a chunk to seal, with a copy of what was published since the last theft, in memory for so many
    /// bytes; and the producer is told. `None`: there was nothing.
    pub(super) fn steal(&mut self, slot: &Slot, memory: impl FnOnce(usize) -> Vec<u8>) -> Option<(Vec<u8>, Part)> {
        slot.stolen.store(true, Relaxed);
        let published = Filled::unpack(slot.published.load(Acquire));
        if published == self.taken {
            return None;
        }
        let (from, to) = (self.taken.bytes as usize, published.bytes as usize);
        assert!(from < to && to <= self.capacity(), "what is published is within the memory");
        // SAFETY: The bytes are within the memory, initialised, and not written while the chunk is open: they are
        // published (step 1). A plain borrow of the vector would claim those behind them as well, which the producer
        // may be writing.
        let records =
            unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(CHUNK_HEADER_BYTES + from), to - from) };
        let mut copy = memory(CHUNK_HEADER_BYTES + records.len());
        copy.clear();
        copy.resize(CHUNK_HEADER_BYTES, 0);
        copy.extend_from_slice(records);
        let part = Part {
            records: published.records - self.taken.records,
            waiters: self.split_waiters(published.records),
            max_timestamp_ms: max_timestamp_ms(records),
        };
        self.taken = published;
        Some((copy, part))
    }

    /// The waiters of records before `end`, counted from the last theft on.
    fn split_waiters(&mut self, end: u32) -> Vec<(u32, Waiter)> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let at = self.waiters.partition_point(|(record, _)| *record < end);
        let rest = self.waiters.split_off(at);
        let mut waiters = std::mem::replace(&mut self.waiters, rest);
        waiters.iter_mut().for_each(|(record, _)| *record -= self.taken.records);
        waiters
    }

    /// The producer's side: a chunk to seal, of what was written with its pen and not stolen, and the waiters of its
    /// records. The memory has no records if there is nothing.
    pub(super) fn finish(mut self, pen: &mut Pen) -> (Vec<u8>, Part) {
        let filled = pen.filled;
        let waiters = self.split_waiters(filled.records);
        let OpenChunk { mut memory, taken, .. } = self;
        memory.truncate(CHUNK_HEADER_BYTES + filled.bytes as usize);
        let mut max = pen.max_timestamp_ms;
        if taken.bytes > 0 {
            memory.drain(CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + taken.bytes as usize);
            max = max_timestamp_ms(&memory[CHUNK_HEADER_BYTES..]);
        }
        pen.close();
        (memory, Part { records: filled.records - taken.records, waiters, max_timestamp_ms: max })
    }
}

/// The part of an open chunk that leaves it as a chunk of its own: mostly all of it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) records: u32,
    pub(super) waiters: Vec<(u32, Waiter)>,
    pub(super) max_timestamp_ms: i64,
}

fn max_timestamp_ms(payload: &[u8]) -> i64 {
    Records::new(payload).flatten().filter_map(|record| record.timestamp_ms()).max().unwrap_or(NO_TIMESTAMP)
}
