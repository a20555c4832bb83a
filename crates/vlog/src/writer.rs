//! The writer: gathers what waits into a block, writes it, syncs it, and only then says that it is durable.
//!
//! State of one thread, the writer's; [`VirtualLog::run_once`](crate::VirtualLog::run_once) drives it. One block is on
//! its way at a time: while the disk is busy, the next one gathers. So the more there is to do, the larger blocks get,
//! and one sync serves everything that arrived during the one before.

use std::io;

use kera_env::{AlignedBuffer, Clock};
use kera_format::checksum::crc32c;
use kera_format::vlog::{BLOCK_HEADER_BYTES, BlockHeader};
use kera_log::{ChunkReference, Ticket};

use crate::backlog::{Backlog, Pending};
use crate::files::Files;

/// A buffer that has grown beyond this for one large chunk is given back.
const BUFFER_BYTES_KEPT: usize = 8 << 20;

pub(crate) struct Writer {
    pub(crate) files: Files,
    /// Taken from the backlog, in order, not in the batch yet.
    taken: Vec<Pending>,
    /// What goes into the next block, or did not get there yet.
    batch: Vec<ChunkReference>,
    batch_chunks: u64,
    buffer: AlignedBuffer,
    /// The sequence of the next block.
    pub(crate) next_block: u64,
    /// The highest ticket that is durable.
    durable: Ticket,
    /// After a failure: when to try again, on the monotonic clock.
    pub(crate) retry_at_us: Option<u64>,
}

/// A block that is on disk, synced.
pub(crate) struct Written {
    pub(crate) chunks: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) disk_us: u64,
}

impl Writer {
    pub(crate) fn new(files: Files) -> Writer {
        Writer {
            files,
            taken: Vec::new(),
            batch: Vec::new(),
            batch_chunks: 0,
            buffer: AlignedBuffer::new(),
            next_block: 1,
            durable: 0,
            retry_at_us: None,
        }
    }

    /// Fills the batch with what waits, up to `bytes_max` and at least one reference. False if nothing waits.
    pub(crate) fn fill_batch(&mut self, backlog: &Backlog, bytes_max: usize) -> bool {
        if !self.batch.is_empty() {
            // It failed before. It goes as it is, so that nothing of it can come twice in an order of its own.
            return true;
        }
        if self.taken.is_empty() {
            backlog.take(&mut self.taken);
        }
        let mut bytes = 0;
        let fits = |pending: &Pending| {
            let first = bytes == 0;
            bytes += pending.reference.bytes as usize;
            first || bytes <= bytes_max
        };
        let count = self.taken.iter().map(fits).take_while(|fits| *fits).count();
        for pending in self.taken.drain(..count) {
            self.batch_chunks += u64::from(pending.chunks);
            self.batch.push(pending.reference);
        }
        !self.batch.is_empty()
    }

    /// Writes the batch as one block and syncs it. After an error the batch is still to be written, and the file it was
    /// to go to is never used again: after a failed sync nobody knows what is on the disk, and a later sync that
    /// succeeds says nothing about it.
    pub(crate) fn write_batch(&mut self, vlog: u32, clock: &dyn Clock) -> io::Result<Written> {
        let chunk_bytes = self.gather();
        let mut header = BlockHeader {
            vlog,
            chunk_count: self.batch_chunks as u32,
            block: self.next_block,
            file: 0,
            key: 0,
            written_ms: clock.now_ms(),
            chunk_bytes: chunk_bytes as u32,
            chunks_checksum: crc32c(&self.buffer[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + chunk_bytes]),
        };
        let block_bytes = self.buffer.len() as u64;
        let written = self.files.place(block_bytes, self.next_block).and_then(|current| {
            (header.file, header.key) = (current.sequence, current.key);
            header.write(&mut self.buffer);
            let started_us = clock.monotonic_us();
            current.append(&self.buffer)?;
            Ok(clock.monotonic_us().saturating_sub(started_us))
        });
        match written {
            Ok(disk_us) => {
                self.next_block += 1;
                self.files.pin(self.batch.iter().map(|reference| reference.segment.id()));
                Ok(Written { chunks: self.batch_chunks, chunk_bytes: chunk_bytes as u64, block_bytes, disk_us })
            }
            Err(error) => {
                self.files.abandon_current();
                Err(error)
            }
        }
    }

    /// Copies the batch behind the room for a header and pads it to whole pages. Returns the bytes of the chunks.
    ///
    /// The copy is what makes one write of many small chunks, at an address and of a length that direct I/O takes. It
    /// also freezes what is written: a segment's page goes on changing behind its head.
    fn gather(&mut self) -> usize {
        let chunk_bytes: usize = self.batch.iter().map(|reference| reference.bytes as usize).sum();
        let block_bytes = kera_format::vlog::pages(BLOCK_HEADER_BYTES + chunk_bytes);
        if self.buffer.capacity() > BUFFER_BYTES_KEPT.max(block_bytes) {
            self.buffer = AlignedBuffer::new();
        }
        self.buffer.clear();
        self.buffer.reserve(block_bytes);
        self.buffer.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        for reference in &self.batch {
            self.buffer.extend_from_slice(reference.chunk());
        }
        debug_assert_eq!(self.buffer.len(), BLOCK_HEADER_BYTES + chunk_bytes);
        self.buffer.resize(block_bytes);
        chunk_bytes
    }

    /// The batch is durable: moves the durable heads in the order of the appends, wakes readers, then moves
    /// `durable_through` and wakes those who acknowledge. In this order, so that who gets an acknowledgement and reads
    /// at once finds what was acknowledged.
    pub(crate) fn finish_batch(&mut self, backlog: &Backlog) {
        kera_log::made_durable(&self.batch);
        self.durable += std::mem::take(&mut self.batch_chunks);
        backlog.advance(self.durable);
        // The last references to segments that closed meanwhile: their arena blocks may go back here.
        self.batch.clear();
    }

    /// References that the backlog no longer counts.
    pub(crate) fn held(&self) -> (usize, u64) {
        let batch: u64 = self.batch.iter().map(|reference| u64::from(reference.bytes)).sum();
        let taken: u64 = self.taken.iter().map(|pending| u64::from(pending.reference.bytes)).sum();
        (self.batch.len() + self.taken.len(), batch + taken)
    }
}
