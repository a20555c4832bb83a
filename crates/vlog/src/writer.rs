//! The writer: gathers what waits into a commit, writes it, syncs it, and only then says that it is durable.
//!
//! State of one thread, the writer's; [`VirtualLog::run_once`](crate::VirtualLog::run_once) drives it. One commit is on
//! its way at a time: while the disk is busy, the next one gathers. So the more there is to do, the larger commits get,
//! and one sync serves everything that arrived during the one before. A commit is a block, but for large segments, whose
//! chunks go straight to their containers ([`crate::through`]).

use std::collections::VecDeque;
use std::io;

use kera_env::{AlignedBuffer, Clock};
use kera_format::checksum::crc32c;
use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::vlog::{BLOCK_HEADER_BYTES, BlockHeader};
use kera_log::{ChunkReference, Ticket};

use crate::backlog::{Backlog, Pending};
use crate::files::Files;
use crate::through::{Piece, Through};

/// A buffer that has grown beyond this for one large chunk is given back.
const BUFFER_BYTES_KEPT: usize = 8 << 20;
/// Bytes that a commit writes through at most: so many that the sync behind them does not matter.
const THROUGH_BYTES_MAX: usize = 8 << 20;
/// A block is ended here if there is more for it than usual, after an extent has failed.
const BLOCK_BYTES_MAX: usize = SEGMENT_BYTES_MAX;

#[cfg(test)]
thread_local! {
    /// How many references that wait were looked at.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) struct Writer {
    pub(crate) files: Files,
    pub(crate) through: Through,
    /// Taken from the backlog, in order, not in the batch yet, and its bytes: a million references behind a disk that stood still. Batches are filled from the front, and nothing is
    /// done to what is behind.
    pub(crate) taken: VecDeque<Pending>,
    taken_bytes: u64,
    /// What goes into the next commit, or did not get there yet, and how many chunks each reference has.
    batch: Vec<ChunkReference>,
    counts: Vec<u32>,
    buffer: AlignedBuffer,
    /// The sequence of the next block.
    pub(crate) next_block: u64,
    /// The highest ticket that is durable.
    durable: Ticket,
    /// After a failure: when to try again, on the monotonic clock.
    pub(crate) retry_at_us: Option<u64>,
}

/// A commit that is on disk, synced.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) chunks: u64,
    pub(crate) chunk_bytes: u64,
    /// With padding.
    pub(crate) block_bytes: u64,
    pub(crate) through_bytes: u64,
    pub(crate) disk_us: u64,
}

impl Writer {
    pub(crate) fn new(files: Files) -> Writer {
        Writer {
            files,
            through: Through::default(),
            taken: VecDeque::new(),
            taken_bytes: 0,
            batch: Vec::new(),
            counts: Vec::new(),
            buffer: AlignedBuffer::new(),
            next_block: 1,
            durable: 0,
            retry_at_us: None,
        }
    }

    /// Fills the batch with what waits, up to `bytes_max` for a block and at least one reference. False if nothing waits.
    pub(crate) fn fill_batch(&mut self, backlog: &Backlog, bytes_max: usize) -> bool {
        if !self.batch.is_empty() {
            // It failed before. It goes as it is, so that nothing of it can come twice in an order of its own.
            return true;
        }
        if self.taken.is_empty() {
            self.taken_bytes = backlog.take(&mut self.taken);
        }
        let (mut block_bytes, mut through_bytes) = (0, 0);
        let mut count = 0;
        for pending in &self.taken {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            let (bytes, most) = match self.through.admit(&pending.reference) {
                true => (&mut through_bytes, THROUGH_BYTES_MAX),
                false => (&mut block_bytes, bytes_max),
            };
            *bytes += pending.reference.bytes as usize;
            if *bytes > most && count > 0 {
                break;
            }
            count += 1;
        }
        for pending in self.taken.drain(..count) {
            self.taken_bytes -= u64::from(pending.reference.bytes);
            self.counts.push(pending.chunks);
            self.batch.push(pending.reference);
        }
        !self.batch.is_empty()
    }

    /// Makes the batch durable: first what is written through, then the rest as a block. After an error the batch is still
    /// to be written, and the file that the block was to go to is never used again: after a failed sync nobody knows what is
    /// on the disk, and a later sync that succeeds says nothing about it.
    pub(crate) fn write_batch(&mut self, vlog: u32, clock: &dyn Clock) -> io::Result<Written> {
        let started_us = clock.monotonic_us();
        let mut written = Written {
            chunks: self.counts.iter().map(|count| u64::from(*count)).sum(),
            chunk_bytes: self.batch.iter().map(|reference| u64::from(reference.bytes)).sum(),
            through_bytes: self.through.write(&self.batch),
            ..Written::default()
        };
        let batch = std::mem::take(&mut self.batch);
        let blocks = self.write_blocks(vlog, clock, &batch);
        self.batch = batch;
        written.block_bytes = blocks?;
        written.disk_us = clock.monotonic_us().saturating_sub(started_us);
        Ok(written)
    }

    /// Writes what of a batch goes into blocks: one, but for a lot of large chunks that could not be written through.
    fn write_blocks(&mut self, vlog: u32, clock: &dyn Clock, batch: &[ChunkReference]) -> io::Result<u64> {
        let pieces = self.through.pieces(batch, &self.counts);
        let (mut rest, mut block_bytes) = (&pieces[..], 0);
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |piece: &&Piece<'_>| {
                bytes += piece.bytes as usize;
                bytes <= BLOCK_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (block, behind) = rest.split_at(count);
            block_bytes += self.write_block(vlog, clock.now_ms(), block)?;
            rest = behind;
        }
        Ok(block_bytes)
    }

    /// Writes some pieces as the next block and syncs it. Returns its bytes.
    fn write_block(&mut self, vlog: u32, written_ms: i64, pieces: &[Piece<'_>]) -> io::Result<u64> {
        let chunk_bytes = self.gather(pieces);
        let mut header = BlockHeader {
            vlog,
            chunk_count: pieces.iter().map(|piece| piece.chunks).sum(),
            block: self.next_block,
            file: 0,
            key: 0,
            written_ms,
            chunk_bytes: chunk_bytes as u32,
            chunks_checksum: crc32c(&self.buffer[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + chunk_bytes]),
            unsynced: 0,
        };
        let block_bytes = self.buffer.len() as u64;
        let written = self.files.place(block_bytes, self.next_block).and_then(|current| {
            (header.file, header.key) = (current.sequence, current.key);
            header.write(&mut self.buffer);
            current.append(&self.buffer)
        });
        if let Err(error) = written {
            self.files.abandon_current();
            return Err(error);
        }
        self.next_block += 1;
        self.files.pin(pieces.iter().map(|piece| piece.segment.id()));
        Ok(block_bytes)
    }

    /// Copies what goes into a block behind the room for its header and pads it to whole pages. Returns the bytes of the
    /// chunks.
    ///
    /// The copy is what makes one write of many small chunks, at an address and of a length that direct I/O takes. It
    /// also freezes what is written: a segment's page goes on changing behind its head.
    fn gather(&mut self, pieces: &[Piece<'_>]) -> usize {
        let chunk_bytes: usize = pieces.iter().map(|piece| piece.bytes as usize).sum();
        let block_bytes = kera_format::vlog::pages(BLOCK_HEADER_BYTES + chunk_bytes);
        if self.buffer.capacity() > BUFFER_BYTES_KEPT.max(block_bytes) {
            self.buffer = AlignedBuffer::new();
        }
        self.buffer.clear();
        self.buffer.reserve(block_bytes);
        self.buffer.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        for piece in pieces {
            self.buffer.extend_from_slice(piece.chunk());
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
        self.durable += self.counts.drain(..).map(u64::from).sum::<u64>();
        backlog.advance(self.durable);
        self.through.settle(&self.batch);
        // The last references to segments that closed meanwhile: their arena blocks may go back here.
        self.batch.clear();
    }

    /// References that the backlog no longer counts.
    pub(crate) fn held(&self) -> (usize, u64) {
        let batch: u64 = self.batch.iter().map(|reference| u64::from(reference.bytes)).sum();
        (self.batch.len() + self.taken.len(), batch + self.taken_bytes)
    }
}
