//! Reading a virtual log back at a start.
//!
//! Runs on the starting thread, before anything is appended. The rule is one: block sequences have no holes, from the
//! first block of the oldest file to the last block that reads back. A block is written only after the one before is
//! synced, so if a later block is there, an earlier one that is not was acknowledged and is damage; if none is, it was
//! not, and is what a power cut leaves behind.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use kera_env::{AlignedBuffer, DiskFile, OpenMode, read_readable};
use kera_format::chunk::Chunks;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::vlog::{BLOCK_HEADER_BYTES, BlockHeader, FileHeader, FileMark, PAGE_BYTES};
use kera_format::{ChunkView, FormatError, SegmentId};
use kera_log::{ReplayExtentError, RestoreError, Restored, WriteThrough};

use crate::files::{Files, KeptFile};

/// What a replay found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayReport {
    /// Files with blocks.
    pub files: u64,
    /// Blocks that were read.
    pub blocks: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Of those, the ones that were not in their lane.
    pub restored: u64,
    /// Of those, the ones whose stream is gone.
    pub unknown: u64,
    /// Of those, the ones that are left out since their ordinals were given again. The files that have them are kept aside.
    pub given_again: u64,
    /// What was acknowledged and cannot be read; empty unless damage is accepted.
    pub damage: Vec<Damage>,
}

/// Something that was acknowledged and cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The file, below the disk's root.
    pub path: String,
    /// Where in it, bytes from its start.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
}

/// Why a virtual log could not be read back. The disk is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The disk refused.
    #[error("{path}: {error}")]
    Disk {
        /// The file or directory.
        path: String,
        /// What the disk said.
        #[source]
        error: io::Error,
    },
    /// A file of another node, or of another virtual log.
    #[error("{path} belongs to another node or virtual log; give each node its own data directory")]
    Foreign {
        /// The file.
        path: String,
    },
    /// Blocks that were acknowledged cannot be read.
    #[error(
        "{} is damaged at byte {}: {}. What is there was acknowledged, so it is not skipped; restore the file from a \
         copy, or start once with damage accepted, which loses it", .0.path, .0.offset, .0.reason
    )]
    Damaged(Damage),
    /// A file of a version that this build does not read.
    #[error("{path}: {error}; start it with the build that wrote it")]
    Version {
        /// The file.
        path: String,
        /// What its header says.
        #[source]
        error: FormatError,
    },
    /// The log has no room for what is there.
    #[error("a chunk of the virtual log cannot be put back: {0}; give the arena more memory")]
    NoRoom(RestoreError),
}

type Restore<'a> = dyn FnMut(&[u8]) -> Result<Restored, RestoreError> + 'a;

/// Reads everything back. Returns what it found and the sequence of the block that comes next.
pub(crate) fn replay(
    files: &mut Files,
    through: Option<Arc<dyn WriteThrough>>,
    accept_damage: bool,
    restore: &mut Restore<'_>,
) -> Result<(ReplayReport, u64), ReplayError> {
    let directory = files.config().directory.clone();
    let found = files.find().map_err(|error| ReplayError::Disk { path: directory, error })?;
    let mut replay = Replay {
        accept_damage,
        through,
        restore,
        expected: None,
        stopped: None,
        damaged: HashSet::new(),
        aside: HashSet::new(),
        in_extents: HashSet::new(),
        gone: HashSet::new(),
        report: ReplayReport::default(),
    };
    let mut kept = Vec::new();
    let mut empty = Vec::new();
    for &sequence in &found.files {
        match replay.file(files, sequence)? {
            Some(file) => kept.push(file),
            None => empty.push(sequence),
        }
    }
    for file in &mut kept {
        let path = files.path(file.sequence);
        file.goes_aside = replay.damaged.contains(&path) || replay.aside.contains(&file.sequence);
        file.pinned_by.retain(|id| !replay.gone.contains(id));
    }
    // Only now, when nothing can be wrong any more, does anything change on the disk.
    for sequence in empty {
        files.remove_file(sequence);
    }
    files.adopt(kept, &found);
    Ok((replay.report, replay.expected.unwrap_or(1)))
}

struct Replay<'a, 'b> {
    accept_damage: bool,
    /// Has the segments of which the blocks have only the first chunk.
    through: Option<Arc<dyn WriteThrough>>,
    restore: &'a mut Restore<'b>,
    /// The sequence of the block that must come next; `None` before the first file.
    expected: Option<u64>,
    /// Where the last file stopped reading back: if something follows after all, this is where the damage is.
    stopped: Option<Damage>,
    /// Files with damage that was accepted.
    damaged: HashSet<String>,
    /// Files with chunks whose ordinals were given again, by their sequences.
    aside: HashSet<u64>,
    /// Segments that have an extent.
    in_extents: HashSet<SegmentId>,
    /// Segments of which only the beginning is there: they were dropped, and no file is kept for them.
    gone: HashSet<SegmentId>,
    report: ReplayReport,
}

/// An open file and what its blocks must say.
struct Source {
    file: Arc<dyn DiskFile>,
    path: String,
    bytes: u64,
    vlog: u32,
    sequence: u64,
    /// `None` while the file's header is not known to be good: then any key is.
    key: Option<u64>,
    /// No block reaches beyond: the file's mark says so, or it ends there.
    blocks_end: u64,
    /// What was asked for.
    buffer: AlignedBuffer,
    /// What was read from the disk last: many blocks.
    ahead: AlignedBuffer,
    ahead_at: u64,
    /// Pages that the disk cannot read.
    lost: BTreeSet<u64>,
}

/// Bytes read at a time. Blocks are a few pages each where producers wait for every one of them, and a disk takes as long for a
/// page as for many.
const AHEAD_BYTES: u64 = 1 << 20;

impl Replay<'_, '_> {
    /// One file. `None` if it has no block and never had one.
    fn file(&mut self, files: &Files, sequence: u64) -> Result<Option<KeptFile>, ReplayError> {
        let path = files.path(sequence);
        let disk_error = |error| ReplayError::Disk { path: path.clone(), error };
        let file = files.disk().open(&path, OpenMode::Read, true).map_err(disk_error)?;
        let bytes = file.len().map_err(disk_error)?;
        let mut source = Source::new(file, path.clone(), bytes, files.config().vlog, sequence);
        let Some(start) = self.file_header(files, &mut source)? else { return Ok(None) };
        // A process that was killed may have written blocks and not synced them: the last one, and those that it was writing again
        // elsewhere. From here on they count: the next file will say that all before it is there, and what they take the place of is given back while others are read.
        source.file.sync_data().map_err(disk_error)?;
        let mut pinned_by = HashSet::new();
        let mut offset = start;
        self.stopped = None;
        while offset + PAGE_BYTES as u64 <= source.blocks_end {
            match source.block(offset)? {
                Ok(header) => {
                    self.block(&source, offset, &header, &mut pinned_by)?;
                    offset += header.total_bytes() as u64;
                }
                Err(reason) => match source.next_block(offset + PAGE_BYTES as u64)? {
                    Some((at, _)) => {
                        self.damaged(&path, offset, reason)?;
                        offset = at;
                    }
                    None => {
                        self.stopped = Some(Damage { path, offset, reason });
                        break;
                    }
                },
            }
        }
        self.lost(&source)?;
        self.report.files += 1;
        Ok(Some(KeptFile { sequence, bytes, pinned_by, goes_aside: false }))
    }

    /// Pages of a file that the disk cannot read may have had blocks, unless its mark says that none reaches so far: nobody takes them for ones that were never written.
    fn lost(&mut self, source: &Source) -> Result<(), ReplayError> {
        for at in source.lost.range(..source.blocks_end) {
            let is_told = self.report.damage.iter().any(|damage| damage.path == source.path && damage.offset == *at);
            if !is_told {
                self.damaged(&source.path, *at, "the disk cannot read it".into())?;
            }
        }
        Ok(())
    }

    /// Checks the file's header: where its blocks start, or `None` if it never had one.
    fn file_header(&mut self, files: &Files, source: &mut Source) -> Result<Option<u64>, ReplayError> {
        source.read(0, PAGE_BYTES)?;
        let header = match FileHeader::parse(&source.buffer) {
            Ok(header) => header,
            Err(error @ FormatError::BadField { field: "vlog_file.version", .. }) => {
                return Err(ReplayError::Version { path: source.path.clone(), error });
            }
            Err(error) => return self.without_header(source, error.to_string()),
        };
        if header.node != files.config().node || header.vlog != source.vlog {
            return Err(ReplayError::Foreign { path: source.path.clone() });
        }
        if header.file != source.sequence {
            // A file that was to be used again got its name and not yet its header.
            return self.without_header(source, format!("its header is that of file {}", header.file));
        }
        source.key = Some(header.key);
        source.read_mark(header.key)?;
        let expected = *self.expected.get_or_insert(header.first_block);
        if header.first_block > expected {
            // The header was written after all blocks before it were synced.
            self.missing(&source.path, 0, expected, header.first_block)?;
            self.expected = Some(header.first_block);
        }
        Ok(Some(PAGE_BYTES as u64))
    }

    /// The header was synced before the first block was written: without one there is no block, or there is damage. The first block says all that the
    /// header does: nothing is lost if it is where the header ends.
    fn without_header(&mut self, source: &mut Source, reason: String) -> Result<Option<u64>, ReplayError> {
        let Some((offset, header)) = source.next_block(PAGE_BYTES as u64)? else {
            self.lost(source)?;
            return Ok(None);
        };
        if offset == PAGE_BYTES as u64 {
            source.lost.remove(&0);
            tracing::warn!(path = source.path, reason, "the file's header does not read back; its first block does");
            source.read_mark(header.key)?;
        } else {
            self.damaged(&source.path, 0, reason)?;
        }
        source.key = Some(header.key);
        self.expected.get_or_insert(header.block);
        Ok(Some(offset))
    }

    /// One block that reads back; its bytes are in the source's buffer.
    fn block(
        &mut self,
        source: &Source,
        offset: u64,
        header: &BlockHeader,
        pinned_by: &mut HashSet<SegmentId>,
    ) -> Result<(), ReplayError> {
        let expected = self.expected.unwrap_or(header.block);
        if header.block > expected {
            self.missing(&source.path, offset, expected, header.block)?;
        }
        // A lower one was written again, to this file, after a sync of the one before failed.
        self.expected = Some(expected.max(header.block.saturating_add(1)));
        self.report.blocks += 1;
        let chunks = &source.buffer[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + header.chunk_bytes as usize];
        let mut last = None;
        for chunk in Chunks::new(chunks) {
            let given_again = self.report.given_again;
            let restored = chunk.map_err(|e| RestoreError::Format(e).into()).and_then(|chunk| self.chunk(&chunk));
            if self.report.given_again > given_again {
                self.aside.insert(source.sequence);
            }
            match restored {
                Ok(Some(id)) if last != Some(id) => {
                    pinned_by.insert(id);
                    last = Some(id);
                }
                Ok(_) => {}
                Err(ReplayExtentError::Restore(error @ RestoreError::ArenaFull(_))) => {
                    return Err(ReplayError::NoRoom(error));
                }
                Err(error) => self.damaged(&source.path, offset, error.to_string())?,
            }
        }
        Ok(())
    }

    /// Gives a chunk back to its lane. The segment that it is in, if the file must be kept for it.
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<Option<SegmentId>, ReplayExtentError> {
        let header = chunk.header();
        let broker = chunk.broker().map_err(RestoreError::Format)?;
        self.report.chunks += 1;
        let id = SegmentId {
            stream: header.stream,
            streamlet: header.streamlet,
            lane: broker.lane,
            group: broker.group,
            index: broker.segment,
        };
        let restored = match (self.restore)(chunk.as_bytes()) {
            // Nothing is there of its segment, and no block is missing: so the file with the segment's first chunk was let go
            // of, as its segments were safe, and this one was not stored but dropped, by retention for one.
            Err(RestoreError::Hole { head: 0, .. }) if self.damaged.is_empty() => return Ok(None),
            // The segment begins, and what is between is in no block: it was in an extent. That is not there any more, and goes only with
            // its segment. A life that was killed while the segment was open has left its blocks here, the next one has dropped
            // it, and the files stay for others.
            Err(RestoreError::Hole { .. }) if self.damaged.is_empty() && self.has_lost_extent(id) => {
                return Ok(None);
            }
            restored => restored?,
        };
        if broker.position as usize == SEGMENT_HEADER_BYTES {
            self.extent(id, restored)?;
        }
        match restored {
            Restored::Restored => {
                self.report.restored += 1;
                Ok(Some(id))
            }
            Restored::AlreadyThere => Ok(Some(id)),
            Restored::Stored => Ok(None),
            Restored::GivenAgain => {
                self.report.given_again += 1;
                Ok(None)
            }
            Restored::UnknownStream => {
                self.report.unknown += 1;
                Ok(None)
            }
        }
    }

    /// Whether a segment of which something is missing is one whose extent went with it; then what is there of it goes, too.
    fn has_lost_extent(&mut self, id: SegmentId) -> bool {
        let Some(through) = self.through.as_ref().filter(|_| !self.in_extents.contains(&id)) else { return false };
        through.gone(id);
        self.gone.insert(id);
        true
    }

    /// A segment begins: what it has in an extent comes before what follows of it in blocks.
    fn extent(&mut self, id: SegmentId, restored: Restored) -> Result<(), ReplayExtentError> {
        let Some(through) = &self.through else { return Ok(()) };
        let (restore, report) = (&mut self.restore, &mut self.report);
        let given = through.replay(id, restored, &mut |chunk| {
            let restored = restore(chunk)?;
            report.restored += u64::from(restored == Restored::Restored);
            report.given_again += u64::from(restored == Restored::GivenAgain);
            Ok(restored)
        });
        if let Some(given) = given? {
            self.report.chunks += given;
            self.in_extents.insert(id);
        }
        Ok(())
    }

    /// The blocks from `expected` to before `found`, which is at `offset`, are not there: they were where the file before
    /// stopped reading back, or it ended properly and what is missing is a file.
    fn missing(&mut self, path: &str, offset: u64, expected: u64, found: u64) -> Result<(), ReplayError> {
        let blocks = format!("blocks {expected} to {} are missing", found - 1);
        match self.stopped.take() {
            Some(at) => self.damaged(&at.path, at.offset, format!("{blocks}; {}", at.reason)),
            None => self.damaged(path, offset, blocks),
        }
    }

    /// Something that was acknowledged cannot be read: an error, or one more line of the report.
    fn damaged(&mut self, path: &str, offset: u64, reason: String) -> Result<(), ReplayError> {
        let damage = Damage { path: path.to_owned(), offset, reason };
        if !self.accept_damage {
            return Err(ReplayError::Damaged(damage));
        }
        tracing::error!(
            path,
            offset,
            reason = damage.reason,
            "damage in the virtual log is accepted; what was there is lost"
        );
        self.damaged.insert(path.to_owned());
        // One line for each of a disk full of damage would be too many.
        if self.report.damage.len() < 1000 {
            self.report.damage.push(damage);
        }
        Ok(())
    }
}

impl Source {
    fn new(file: Arc<dyn DiskFile>, path: String, bytes: u64, vlog: u32, sequence: u64) -> Source {
        let (buffer, ahead) = (AlignedBuffer::new(), AlignedBuffer::new());
        let (key, blocks_end, lost) = (None, bytes, BTreeSet::new());
        Source { file, path, bytes, vlog, sequence, key, blocks_end, buffer, ahead, ahead_at: 0, lost }
    }

    /// Gets `bytes` at `offset` into the buffer, with what follows read ahead; it is shorter where the file ends.
    fn read(&mut self, offset: u64, bytes: usize) -> Result<(), ReplayError> {
        let ahead_end = self.ahead_at + self.ahead.len() as u64;
        if offset < self.ahead_at || offset + bytes as u64 > ahead_end {
            // Nothing is read twice: what is there of the bytes moves to the front.
            let there = if offset < self.ahead_at { 0 } else { ahead_end.saturating_sub(offset) as usize };
            let len = self.ahead.len();
            self.ahead.copy_within(len - there.., 0);
            let more = self.blocks_end.saturating_sub(offset + there as u64).min(AHEAD_BYTES) as usize;
            self.ahead.resize(there);
            self.ahead.resize((there + more).max(bytes));
            let lost = &mut |at| _ = self.lost.insert(at);
            let read = read_readable(&*self.file, offset + there as u64, &mut self.ahead[there..], lost);
            let read = read.map_err(|error| ReplayError::Disk { path: self.path.clone(), error })?;
            self.ahead.resize(there + read);
            self.ahead_at = offset;
        }
        let from = (offset - self.ahead_at) as usize;
        let to = (from + bytes).min(self.ahead.len());
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.ahead[from..to]);
        Ok(())
    }

    /// Reads how far the file's blocks reach. Without a mark that reads back they may be anywhere.
    fn read_mark(&mut self, key: u64) -> Result<(), ReplayError> {
        let Some(at) = self.bytes.checked_sub(PAGE_BYTES as u64) else { return Ok(()) };
        // Not by way of what is read ahead: the first blocks are there.
        self.buffer.clear();
        self.buffer.resize(PAGE_BYTES);
        let read = read_readable(&*self.file, at, &mut self.buffer, &mut |_| {});
        let read = read.map_err(|error| ReplayError::Disk { path: self.path.clone(), error })?;
        self.buffer.resize(read);
        if let Ok(mark) = FileMark::parse(&self.buffer)
            && (mark.vlog, mark.file, mark.key) == (self.vlog, self.sequence, key)
        {
            self.blocks_end = mark.end.min(at);
        }
        Ok(())
    }

    /// The block at `offset`, verified, its bytes in the buffer; or why there is none.
    fn block(&mut self, offset: u64) -> Result<Result<BlockHeader, String>, ReplayError> {
        self.read(offset, PAGE_BYTES)?;
        let header = match self.header(&self.buffer) {
            Ok(header) => header,
            Err(reason) => return Ok(Err(reason)),
        };
        let total = header.total_bytes();
        if offset + total as u64 > self.bytes {
            return Ok(Err(format!("the block has {total} bytes, the file ends before")));
        }
        self.read(offset, total)?;
        if self.buffer.len() < total {
            return Ok(Err("the file ends within the block".into()));
        }
        // The header is read again with the rest: it is checked again too.
        let checked = self.header(&self.buffer).and_then(|header| {
            let verified = header.verify_chunks(&self.buffer[BLOCK_HEADER_BYTES..]);
            verified.map(|()| header).map_err(|error| error.to_string())
        });
        Ok(checked)
    }

    fn header(&self, page: &[u8]) -> Result<BlockHeader, String> {
        let header = BlockHeader::parse(page).map_err(|error| error.to_string())?;
        let ours =
            header.vlog == self.vlog && header.file == self.sequence && self.key.is_none_or(|key| key == header.key);
        if ours { Ok(header) } else { Err("the block is one of an earlier use of the file".into()) }
    }

    /// The first block from `offset` on that reads back.
    fn next_block(&mut self, mut offset: u64) -> Result<Option<(u64, BlockHeader)>, ReplayError> {
        const STEP: usize = 1 << 20;
        while offset < self.blocks_end {
            self.read(offset, STEP)?;
            let read = self.buffer.len() as u64;
            let candidates: Vec<u64> = (0..self.buffer.len() / PAGE_BYTES)
                .filter(|page| self.header(&self.buffer[page * PAGE_BYTES..]).is_ok())
                .map(|page| offset + (page * PAGE_BYTES) as u64)
                .collect();
            for at in candidates {
                if let Ok(header) = self.block(at)? {
                    return Ok(Some((at, header)));
                }
            }
            if read < STEP as u64 {
                break;
            }
            offset += STEP as u64;
        }
        Ok(None)
    }
}
