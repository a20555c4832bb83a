//! Reading blocks of a file back, each verified by its checksums before anybody sees a byte of it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use kera_env::{AlignedBuffer, DirectIo, Disk, DiskFile, OpenMode, read_readable};
use kera_format::vlog::{BLOCK_HEADER_BYTES, BlockHeader, FileMark, PAGE_BYTES};
use kera_format::vlog_replica::{FOOTER_ENTRIES_MAX, FOOTER_ENTRY_BYTES, Footer};

use crate::files::path;
use crate::spare::Spare;

/// Bytes looked at together when a block is searched for.
const SEARCH_BYTES: usize = 1 << 20;
/// Bytes read at a time past the page cache, where nobody else reads ahead.
const AHEAD_BYTES: usize = 1 << 20;

/// An open file and what its blocks must say.
pub(crate) struct Source {
    file: Arc<dyn DiskFile>,
    pub(crate) path: String,
    sequence: u64,
    key: u64,
    vlog: u32,
    pub(crate) bytes: u64,
    /// What was read last: so many of its first bytes. It never becomes smaller, so that nothing is cleared that is read over.
    buffer: AlignedBuffer,
    filled: usize,
    chunk_bytes: usize,
    /// Where buffers come from, and go to.
    spare: Option<Arc<Spare>>,
    /// The same file past the page cache, for [extents](Source::extent).
    past: Option<Arc<dyn DiskFile>>,
    /// Whole pages are read, past the page cache.
    direct: bool,
    /// What was read there last, and where it is.
    ahead: AlignedBuffer,
    ahead_at: u64,
    /// Pages that the [disk cannot read](kera_env::is_unreadable): a block with one of them does not read back, and is no error to who wants what is behind it.
    lost: BTreeSet<u64>,
}

/// Blocks of a file that were read at once: whole pages.
pub(crate) struct Extent {
    at: u64,
    bytes: Bytes,
}

impl Extent {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Source {
    pub(crate) fn open(disk: &dyn Disk, sequence: u64, key: u64, vlog: u32) -> io::Result<Source> {
        Source::open_as(disk, sequence, key, vlog, false)
    }

    /// The same, for blocks that are [lent](Source::lend) to who asks for them; `at_once`: many of them, which are read in [extents](Source::extent).
    pub(crate) fn open_to_lend(
        disk: &dyn Disk,
        (sequence, key, vlog): (u64, u64, u32),
        spare: &Arc<Spare>,
        at_once: bool,
    ) -> io::Result<Source> {
        let mut source = Source::open(disk, sequence, key, vlog)?;
        source.spare = Some(Arc::clone(spare));
        if at_once && disk.direct_io() == DirectIo::Direct {
            // Whoever cannot have it reads through the page cache.
            source.past = disk.open(&source.path, OpenMode::Read, true).ok();
        }
        Ok(source)
    }

    /// The same, past the page cache: what is on the disk is read, and nothing else leaves memory for it.
    pub(crate) fn open_direct(disk: &dyn Disk, sequence: u64, key: u64, vlog: u32) -> io::Result<Source> {
        Source::open_as(disk, sequence, key, vlog, true)
    }

    fn open_as(disk: &dyn Disk, sequence: u64, key: u64, vlog: u32, direct: bool) -> io::Result<Source> {
        let path = path(sequence);
        let file = disk.open(&path, OpenMode::Read, direct)?;
        let bytes = file.len()?;
        let (buffer, ahead, lost) = (AlignedBuffer::new(), AlignedBuffer::new(), BTreeSet::new());
        let (filled, chunk_bytes, ahead_at, spare, past) = (0, 0, 0, None, None);
        Ok(Source {
            file,
            path,
            sequence,
            key,
            vlog,
            bytes,
            buffer,
            filled,
            chunk_bytes,
            spare,
            past,
            direct,
            ahead,
            ahead_at,
            lost,
        })
    }

    /// Room for so many bytes, whatever is in it.
    fn make_room(&mut self, bytes: usize) {
        self.filled = 0;
        if let Some(spare) = self.spare.as_ref().filter(|_| self.buffer.capacity() < bytes) {
            spare.give(std::mem::replace(&mut self.buffer, spare.take(bytes)));
        }
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes);
        }
    }

    fn there(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// So many bytes from a place on are read next: the disk begins with them, and nobody waits for it.
    pub(crate) fn will_read(&self, at: u64, bytes: u64) {
        self.file.will_read(at, bytes);
    }

    fn read(&mut self, at: u64, bytes: usize) -> io::Result<()> {
        if self.direct {
            return self.read_direct(at, bytes);
        }
        let bytes = (bytes as u64).min(self.bytes.saturating_sub(at)) as usize;
        self.make_room(bytes);
        let lost = &mut |page| _ = self.lost.insert(page);
        self.filled = read_readable(&*self.file, at, &mut self.buffer[..bytes], lost)?;
        Ok(())
    }

    fn read_direct(&mut self, at: u64, bytes: usize) -> io::Result<()> {
        // The last page as a whole as well: a part of one would come from the page cache.
        let left = self.bytes.next_multiple_of(PAGE_BYTES as u64).saturating_sub(at);
        let most = |bytes: usize| (bytes.next_multiple_of(PAGE_BYTES) as u64).min(left) as usize;
        let bytes = most(bytes);
        let is_there = at >= self.ahead_at && at + bytes as u64 <= self.ahead_at + self.ahead.len() as u64;
        if !is_there {
            self.ahead.resize(most(bytes.max(AHEAD_BYTES)));
            let lost = &mut |page| _ = self.lost.insert(page);
            let read = read_readable(&*self.file, at, &mut self.ahead, lost);
            self.ahead_at = at;
            self.ahead.resize(*read.as_ref().unwrap_or(&0));
            read?;
        }
        let from = (at - self.ahead_at) as usize;
        let to = (from + bytes).min(self.ahead.len());
        self.make_room(to - from);
        self.buffer[..to - from].copy_from_slice(&self.ahead[from..to]);
        self.filled = to - from;
        Ok(())
    }

    /// The header of a block that is this file's, its chunks not looked at.
    pub(crate) fn header(&mut self, at: u64) -> io::Result<Result<BlockHeader, String>> {
        self.read(at, BLOCK_HEADER_BYTES)?;
        if self.is_lost(at, BLOCK_HEADER_BYTES) {
            return Ok(Err("the disk cannot read it".to_owned()));
        }
        Ok(self.check_header(0))
    }

    /// Whether the disk could not read some of so many bytes from the start of a page on. What it could not is zeros, which may be what was written: a checksum that
    /// matches says nothing then.
    fn is_lost(&self, at: u64, bytes: usize) -> bool {
        self.lost.range(at..at + bytes as u64).next().is_some()
    }

    fn check_header(&self, at: usize) -> Result<BlockHeader, String> {
        let header = BlockHeader::parse(&self.there()[at..]).map_err(|error| error.to_string())?;
        if !self.is_ours(&header) {
            return Err(format!("a block of file {} is there", header.file));
        }
        Ok(header)
    }

    fn is_ours(&self, header: &BlockHeader) -> bool {
        (header.file, header.key, header.vlog) == (self.sequence, self.key, self.vlog)
    }

    /// So many bytes from the start of a page on, or as many as there are, past the page cache and into memory that was used before: on many machines a page for the page cache takes longer than all
    /// else that becomes of its bytes. `None`: its blocks are to be read one by one, since the page cache has most of them, there is no way past it, or the disk does not give all of them.
    pub(crate) fn extent(&self, at: u64, bytes: u64) -> Option<Extent> {
        let (file, spare) = (self.past.as_ref()?, self.spare.as_ref()?);
        let bytes = bytes.min(self.bytes.saturating_sub(at)).next_multiple_of(PAGE_BYTES as u64) as usize;
        if bytes == 0 || file.is_cached(at, bytes as u64) {
            return None;
        }
        let mut buffer = spare.take(bytes);
        if buffer.len() < bytes {
            buffer.resize(bytes);
        }
        let read = file.read_at(at, &mut buffer[..bytes]).ok();
        let extent = read.map(|read| Extent { at, bytes: spare.lend(&mut buffer, 0..read) });
        spare.give(buffer);
        extent
    }

    /// A block of an extent with its chunks, if all of it is in there and its checksums match. What does not is no error: it may read back by itself.
    pub(crate) fn block_in(&self, extent: &Extent, at: u64, block: u64) -> Option<(BlockHeader, Bytes)> {
        let from = usize::try_from(at.checked_sub(extent.at)?).ok()?;
        let header = BlockHeader::parse(extent.bytes.get(from..)?).ok()?;
        if !self.is_ours(&header) || header.block != block {
            return None;
        }
        let chunks = from + BLOCK_HEADER_BYTES..from + BLOCK_HEADER_BYTES + header.chunk_bytes as usize;
        header.verify_chunks(extent.bytes.get(chunks.clone())?).ok()?;
        Some((header, extent.bytes.slice(chunks)))
    }

    /// A whole block whose checksums match: its chunks are in [`chunks`](Source::chunks).
    pub(crate) fn block(&mut self, at: u64) -> io::Result<Result<BlockHeader, String>> {
        let header = match self.header(at)? {
            Ok(header) => header,
            Err(reason) => return Ok(Err(reason)),
        };
        self.read(at, BLOCK_HEADER_BYTES + header.chunk_bytes as usize)?;
        if self.is_lost(at, BLOCK_HEADER_BYTES + header.chunk_bytes as usize) {
            return Ok(Err(format!("block {}: the disk cannot read all of it", header.block)));
        }
        let Some(chunks) = self.there().get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + header.chunk_bytes as usize)
        else {
            return Ok(Err(format!("block {} goes beyond the end of the file", header.block)));
        };
        if let Err(error) = header.verify_chunks(chunks) {
            return Ok(Err(format!("block {}: {error}", header.block)));
        }
        self.chunk_bytes = header.chunk_bytes as usize;
        Ok(Ok(header))
    }

    /// Whether a block was begun there, whether or not it reads back. Where the disk cannot read one was, for all that anybody knows.
    pub(crate) fn was_begun(&mut self, at: u64) -> io::Result<bool> {
        self.read(at, BLOCK_HEADER_BYTES)?;
        Ok(self.is_lost(at, BLOCK_HEADER_BYTES) || BlockHeader::was_begun(self.there(), self.sequence, self.key))
    }

    /// Where the blocks of a file end that was closed, if its mark reads back.
    pub(crate) fn closed_at(&mut self) -> io::Result<Option<u64>> {
        let Some(page) = self.bytes.checked_sub(PAGE_BYTES as u64).filter(|_| self.bytes.is_multiple_of(4096)) else {
            return Ok(None);
        };
        self.read(page, PAGE_BYTES)?;
        let mark = FileMark::parse(self.there()).ok();
        let is_ours = |mark: &FileMark| (mark.file, mark.key, mark.vlog) == (self.sequence, self.key, self.vlog);
        Ok(mark.filter(is_ours).map(|mark| mark.end).filter(|end| *end < page))
    }

    /// Where the block behind one is of which nothing is wanted, and its number: the next one that is whole if its header does not read back.
    pub(crate) fn skip(&mut self, at: u64, block: u64) -> io::Result<Result<(u64, u64), String>> {
        let reason = match self.header(at)? {
            Ok(header) if header.block == block => return Ok(Ok((at + header.total_bytes() as u64, block + 1))),
            Ok(header) => format!("block {} is there", header.block),
            Err(reason) => reason,
        };
        let next = self.search(at + PAGE_BYTES as u64)?.filter(|(_, header)| header.block > block);
        Ok(next.map(|(next, header)| (next, header.block)).ok_or(reason))
    }

    pub(crate) fn chunks(&self) -> &[u8] {
        &self.there()[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + self.chunk_bytes]
    }

    /// The same to keep; they cannot be asked for again.
    pub(crate) fn lend(&mut self) -> Bytes {
        let part = BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + self.chunk_bytes;
        let chunks = match &self.spare {
            Some(spare) => spare.lend(&mut self.buffer, part),
            None => Bytes::copy_from_slice(&self.buffer[part]),
        };
        (self.filled, self.chunk_bytes) = (0, 0);
        chunks
    }

    /// The first whole block from `at` on, and where it is.
    pub(crate) fn search(&mut self, mut at: u64) -> io::Result<Option<(u64, BlockHeader)>> {
        while at < self.bytes {
            self.read(at, SEARCH_BYTES)?;
            let headers = (0..self.filled).step_by(PAGE_BYTES).filter(|&page| self.check_header(page).is_ok());
            let candidates: Vec<u64> = headers.map(|page| at + page as u64).collect();
            for candidate in candidates {
                if let Ok(header) = self.block(candidate)? {
                    return Ok(Some((candidate, header)));
                }
            }
            at += SEARCH_BYTES as u64;
        }
        Ok(None)
    }

    /// The footer, and where it is, if the file was closed.
    pub(crate) fn footer(&mut self) -> io::Result<Option<(u64, Footer)>> {
        let Some(end) = self.closed_at()? else { return Ok(None) };
        let bytes = (self.bytes - PAGE_BYTES as u64 - end) as usize;
        if bytes > (FOOTER_ENTRIES_MAX + 1) * FOOTER_ENTRY_BYTES + PAGE_BYTES {
            return Ok(None);
        }
        self.read(end, bytes)?;
        let footer = Footer::parse(self.there())
            .ok()
            .filter(|footer| (footer.file, footer.key, footer.vlog) == (self.sequence, self.key, self.vlog));
        Ok(footer.map(|footer| (end, footer)))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(spare) = &self.spare {
            spare.give(std::mem::take(&mut self.buffer));
        }
    }
}
