//! Writing files of copies: one open file for each run of blocks, closed with a footer when it is full.
//!
//! Owned by the writer of a disk, under its lock. Disk space is reserved a piece ahead of the blocks, so that a full disk is found before
//! them, and a log that is written to little takes little. Those that are given back are used again: writing where was written before needs no change of the
//! file system's own records.
//!
//! Much at a time is written past the page cache: a page that nobody has used costs more than all else that is done for its bytes, and what
//! fills it has to go to the disk within a few files anyway. Little at a time goes into the page cache, where it survives a kill as well, and
//! whose answer waits for no disk; and so does much where a slow disk is all that is waited for ([`way`](crate::way)).

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use kera_env::{AlignedBuffer, Clock, Disk, DiskFile, OpenMode, Processors, Random};
use kera_format::vlog::{BLOCK_HEADER_BYTES, BlockHeader, FileMark, PAGE_BYTES};
use kera_format::vlog_replica::{FOOTER_ENTRIES_MAX, LogId, ReplicaHeader};
use kera_protocol::StoreHead;

use crate::disks::FOLDER;
use crate::index::FileIndex;
use crate::names::Names;
use crate::replica::FilePart;
use crate::way::Way;

/// A run of a log: whose files are written one after the other.
pub(crate) type RunKey = (LogId, u64);

/// Blocks of one write.
pub(crate) const SLICES_MAX: usize = 512;
/// Files of a run that are full and not synced yet when the next one begins, if nobody asks for syncs. A start after a loss of power reads
/// that many of each run.
pub(crate) const UNSYNCED_MAX: usize = 16;
/// Full files of a run that nobody hurries to sync: they may be given back first. Not of one that has no file open: nothing more may ever come of
/// it, and they would stay open.
const UNSYNCED_LEFT: usize = 1;
/// Writes of at least so many bytes are much: they go past the page cache, or [through it](Way).
const MUCH_BYTES: usize = 256 << 10;
/// What may be used again takes at most the fifth part of what is free.
const FREE_TIMES_SPARES: u64 = 4;
/// What may be used again and was not in so long is given back.
const UNUSED_US: u64 = 600_000_000;
/// What is behind the name of a file that is set aside.
pub(crate) const ASIDE: &str = ".unknown";
/// Disk space that is reserved at once.
const RESERVED_BYTES: u64 = 4 << 20;

/// The part of the settings that files need.
#[derive(Clone, Debug)]
pub(crate) struct FilesConfig {
    pub(crate) cluster: [u8; 16],
    pub(crate) node: u32,
    pub(crate) file_bytes: u64,
    pub(crate) spares: usize,
}

/// A file that takes blocks.
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn DiskFile>,
    /// The same past the page cache, once there was much to write.
    direct: Option<Arc<dyn DiskFile>>,
    pub(crate) header: ReplicaHeader,
    pub(crate) last: u64,
    /// Where the next block goes.
    pub(crate) end: u64,
    /// Up to where there is disk space for blocks.
    pub(crate) reserved: u64,
    pub(crate) index: FileIndex,
    dirty: bool,
}

impl OpenFile {
    /// The file for writes past the page cache. The kernel keeps them and those through it coherent, and a sync of either is one of both.
    fn direct(&mut self, disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        if self.direct.is_none() {
            self.direct = Some(disk.open(&path(self.header.file), OpenMode::ReadWrite, true)?);
        }
        Ok(Arc::clone(self.direct.as_ref().unwrap_or(&self.file)))
    }
}

/// See the module.
pub(crate) struct DiskWriter {
    config: FilesConfig,
    disk: Arc<dyn Disk>,
    random: Arc<dyn Random>,
    pub(crate) open: HashMap<RunKey, OpenFile>,
    clock: Arc<dyn Clock>,
    way: Way,
    /// Full files that nobody has synced.
    unsynced: HashMap<RunKey, Vec<Unsynced>>,
    /// Files that may be used again, those that were given back last behind.
    spares: Vec<u64>,
    /// How many of them were left over at all times since then.
    unused: usize,
    unused_since_us: u64,
    names: Arc<Names>,
    /// Parts of files of which a sync failed, to be [looked at](crate::backup::Backup::look) by who has let go of the lock: that reads all of them.
    pub(crate) unsure: Vec<(LogId, FilePart)>,
    counts: Arc<WriterCounts>,
}

/// What a writer has done. Read without its lock, which it holds for as long as a disk takes, were it for ever.
#[derive(Debug, Default)]
pub(crate) struct WriterCounts {
    pub(crate) writes: AtomicU64,
    /// Those of them that went past the page cache.
    pub(crate) direct_writes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    /// Bytes of memory of what is known about the chunks in open files, as of the last turn.
    pub(crate) index_bytes: AtomicUsize,
}

/// A full file that is not synced.
struct Unsynced {
    sequence: u64,
    file: Arc<dyn DiskFile>,
    /// Only the writer may say that it is, who is told with the next file or sync if it is not.
    failed: bool,
    /// A sync of it has failed. That another one works says nothing, and of a run that nobody asks to sync it is
    /// [looked at](crate::backup::Backup::look_at_unsynced) instead.
    is_lost: bool,
}

/// A full file that is being synced without its writer.
///
/// By a handle of its own: what the kernel could not write it tells each handle once, so the writer's is told as well. And nobody waits for
/// what is in it to be on the disk: the writer syncs in the same turn what it answers as synced, so such blocks are before they are
/// seen here.
pub(crate) struct FullFile {
    pub(crate) run: RunKey,
    pub(crate) sequence: u64,
    file: Arc<dyn DiskFile>,
}

impl FullFile {
    pub(crate) fn sync(&self, names: &Names) -> io::Result<()> {
        names.sync()?;
        self.file.sync_data()
    }
}

/// The row of files that a file goes on.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Its first block, which may have been given back.
    pub(crate) first_block: u64,
    /// Its blocks are synced before they are answered.
    pub(crate) synced: bool,
    /// It has no file yet.
    pub(crate) is_new: bool,
}

/// A file that could not be begun.
pub(crate) struct NotBegun {
    pub(crate) error: io::Error,
    /// It is there, without a block: its key, and what it takes on its disk. Whoever wanted it gives it back.
    pub(crate) left: Option<(u64, u64)>,
}

/// A file that takes no more blocks.
pub(crate) struct Closed {
    pub(crate) footer: u64,
    pub(crate) bytes: u64,
}

pub(crate) fn path(sequence: u64) -> String {
    format!("{FOLDER}/{sequence:010}.replica")
}

/// A file of a log that is [set aside](DiskWriter::set_aside). A start passes over it, and gives its number to no other file.
fn aside_path(sequence: u64) -> String {
    format!("{}{ASIDE}", path(sequence))
}

fn spare_path(sequence: u64) -> String {
    format!("{FOLDER}/{sequence:010}.spare")
}

impl DiskWriter {
    pub(crate) fn new(
        config: FilesConfig,
        disk: Arc<dyn Disk>,
        (clock, processors): (Arc<dyn Clock>, Option<Arc<dyn Processors>>),
        random: Arc<dyn Random>,
        spares: Vec<u64>,
    ) -> DiskWriter {
        DiskWriter {
            config,
            names: Arc::new(Names::new(Arc::clone(&disk))),
            unsure: Vec::new(),
            disk,
            random,
            open: HashMap::new(),
            way: Way::new(processors),
            unsynced: HashMap::new(),
            unused: spares.len(),
            unused_since_us: clock.monotonic_us(),
            spares,
            clock,
            counts: Arc::default(),
        }
    }

    /// Begins a file whose first block is `head`'s. What was open for the run must have been closed.
    ///
    /// The first file of a row that nobody asks to sync is synced all the same, with its name, before it has a block: after a loss of power
    /// the row is known to have been there, so that nobody is told for certain that the log had no blocks.
    pub(crate) fn begin(
        &mut self,
        run: RunKey,
        head: &StoreHead,
        sequence: u64,
        row: Row,
    ) -> Result<&mut OpenFile, NotBegun> {
        self.bound_spares();
        let names = Arc::clone(&self.names);
        let made = names.make(run, sequence, || self.make(sequence));
        let file = made.map_err(|error| NotBegun { error, left: None })?;
        let key = self.random.next_u64();
        let header = ReplicaHeader {
            cluster: self.config.cluster,
            log: head.log,
            backup: self.config.node,
            file: sequence,
            key,
            first_block: head.block,
            run_first: row.first_block,
            synced: row.synced,
        };
        let page = first_page(&header);
        let reserved = RESERVED_BYTES.min(self.config.file_bytes);
        let allocated = self.reserve(&*file, 0, reserved);
        let anchor = || match row.is_new && !row.synced {
            true => file.sync_data().and_then(|()| names.sync_file(sequence)),
            false => Ok(()),
        };
        let started = allocated.and_then(|()| file.write_at(0, &page)).and_then(|()| anchor());
        started.map_err(|error| NotBegun { error, left: Some((key, reserved)) })?;
        let (end, index, last) = (PAGE_BYTES as u64, FileIndex::default(), head.block - 1);
        let open = OpenFile { file, direct: None, header, last, end, reserved, index, dirty: true };
        Ok(self.open.entry(run).insert_entry(open).into_mut())
    }

    fn make(&mut self, sequence: u64) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(spare) = self.spares.pop() {
            self.unused = self.unused.min(self.spares.len());
            let renamed = self.disk.rename(&spare_path(spare), &path(sequence));
            if renamed.is_ok() {
                let opened = self.disk.open(&path(sequence), OpenMode::ReadWrite, false);
                // While the process may open no more files each try would leave one behind.
                if opened.is_err() && self.disk.rename(&path(sequence), &spare_path(spare)).is_ok() {
                    self.spares.push(spare);
                }
                return opened;
            }
        }
        self.disk.open(&path(sequence), OpenMode::Create, false)
    }

    /// Reserves disk space; what is kept to be used again gives way to it.
    fn reserve(&mut self, file: &dyn DiskFile, offset: u64, bytes: u64) -> io::Result<()> {
        match file.allocate(offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && self.drop_spares() => {
                file.allocate(offset, bytes)
            }
            allocated => allocated,
        }
    }

    /// Whether a block of so many bytes goes to the file that is open for its run.
    pub(crate) fn has_room(&self, run: RunKey, bytes: u64) -> bool {
        self.open.get(&run).is_some_and(|open| {
            open.end + bytes <= self.config.file_bytes && open.index.entries() < FOOTER_ENTRIES_MAX / 2
        })
    }

    /// Writes blocks that follow one another to the open file of a run, which is synced up to block `synced`. After an error nothing of
    /// them counts.
    pub(crate) fn append(
        &mut self,
        run: RunKey,
        blocks: &mut [(StoreHead, AlignedBuffer)],
        synced: u64,
    ) -> io::Result<()> {
        let closed = || io::Error::other("no file is open");
        let Some(open) = self.open.get_mut(&run) else { return Err(closed()) };
        for (head, data) in &mut *blocks {
            block_header(head, open, synced).write(data);
        }
        let end = open.end + blocks.iter().map(|(_, data)| data.len() as u64).sum::<u64>();
        if end > open.reserved {
            let most = self.config.file_bytes.max(end);
            let (file, from) = (Arc::clone(&open.file), open.reserved);
            let reserved = end.next_multiple_of(RESERVED_BYTES).min(most);
            self.reserve(&*file, from, reserved - from)?;
            let Some(open) = self.open.get_mut(&run) else { return Err(closed()) };
            open.reserved = reserved;
        }
        let Some(open) = self.open.get_mut(&run) else { return Err(closed()) };
        for group in blocks.chunks(SLICES_MAX) {
            let slices: Vec<IoSlice<'_>> = group.iter().map(|(_, data)| IoSlice::new(data)).collect();
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            let is_much = bytes >= MUCH_BYTES;
            let from_us = self.clock.monotonic_us();
            // A sync that follows has to wait for the disk anyway.
            let is_synced = group.iter().any(|(head, _)| head.synced());
            if is_much && (is_synced || !self.way.is_through()) {
                open.direct(&*self.disk)?.write_vectored_at(open.end, &slices)?;
                self.counts.direct_writes.fetch_add(1, Ordering::Relaxed);
            } else {
                open.file.write_vectored_at(open.end, &slices)?;
            }
            if is_much && !is_synced {
                self.way.note(from_us, self.clock.monotonic_us(), bytes);
            }
            self.counts.writes.fetch_add(1, Ordering::Relaxed);
            open.dirty = true;
            for (head, data) in group {
                open.end += data.len() as u64;
                open.last = head.block;
                open.index.note_block(&data[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + head.chunk_bytes as usize]);
            }
        }
        Ok(())
    }

    /// Writes the footer of a run's open file, which takes no more. `None` if none is open. An error says that it has no footer:
    /// its blocks are as good as before.
    pub(crate) fn close(&mut self, run: RunKey) -> Option<io::Result<Closed>> {
        let open = self.open.remove(&run)?;
        self.full(run, &open);
        Some(write_footer(&*open.file, &open.header, open.last, open.end, &open.index))
    }

    /// A write failed in the run's open file: nothing goes there any more. What was written to it before counts, and has yet to be
    /// synced.
    pub(crate) fn leave(&mut self, run: RunKey) {
        if let Some(open) = self.open.remove(&run).filter(|open| open.dirty) {
            self.full(run, &open);
        }
    }

    /// A sync failed, and what is not synced is taken back: nothing goes to the run's open file any more. Returns the files that it was to sync. All others of the run
    /// here have been synced by a sync that worked, or were looked at when one failed.
    pub(crate) fn abandon(&mut self, run: RunKey) -> Vec<u64> {
        self.names.tell(run);
        let full = self.unsynced.remove(&run).unwrap_or_default().into_iter().map(|full| full.sequence);
        let open = self.open.remove(&run).filter(|open| open.dirty).map(|open| open.header.file);
        full.chain(open).collect()
    }

    /// Makes everything that was written of a run survive a loss of power. After an error the run is to be [abandoned](DiskWriter::abandon).
    pub(crate) fn sync(&mut self, run: RunKey) -> io::Result<()> {
        self.names.sync_run(run)?;
        for full in self.unsynced.get(&run).into_iter().flatten() {
            full.file.sync_data()?;
            self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.unsynced.remove(&run);
        if let Some(open) = self.open.get_mut(&run).filter(|open| open.dirty) {
            open.file.sync_data()?;
            open.dirty = false;
            self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Syncs the oldest full files of a run that nobody asks to sync, until only a few are left that are not. One that could not be synced is not tried again: that it
    /// works then says nothing. `Err`: which file, and why; whoever asks looks at what is in it.
    pub(crate) fn bound_unsynced(&mut self, run: RunKey) -> Result<(), (u64, io::Error)> {
        let first = |files: &Vec<Unsynced>| (files.len() > UNSYNCED_MAX).then(|| files[0].sequence);
        let Some(sequence) = self.unsynced.get(&run).and_then(first) else { return Ok(()) };
        self.names.sync().map_err(|error| (sequence, error))?;
        let Some(files) = self.unsynced.get_mut(&run) else { return Ok(()) };
        while files.len() > UNSYNCED_MAX {
            if !files[0].is_lost {
                if let Err(error) = files[0].file.sync_data() {
                    (files[0].failed, files[0].is_lost) = (true, true);
                    return Err((files[0].sequence, error));
                }
                self.counts.syncs.fetch_add(1, Ordering::Relaxed);
            }
            files.remove(0);
        }
        Ok(())
    }

    fn full(&mut self, run: RunKey, open: &OpenFile) {
        let (sequence, file) = (open.header.file, Arc::clone(&open.file));
        self.unsynced.entry(run).or_default().push(Unsynced { sequence, file, failed: false, is_lost: false });
    }

    /// A file of a run to be synced without the writer. `None`: it has been given back.
    fn full_file(&self, run: RunKey, sequence: u64) -> io::Result<Option<FullFile>> {
        match self.disk.open(&path(sequence), OpenMode::ReadWrite, false) {
            Ok(file) => Ok(Some(FullFile { run, sequence, file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The oldest full file of the run that has most of those that are not synced, to be synced without the writer, which goes on.
    pub(crate) fn next_full(&mut self) -> Option<FullFile> {
        loop {
            let left = |run| if self.open.contains_key(run) { UNSYNCED_LEFT } else { 0 };
            let late = self.unsynced.iter().filter(|(run, files)| files.len() > left(run));
            let late = late.filter(|(_, files)| !files[0].failed);
            let (run, files) = late.max_by_key(|(run, files)| (files.len(), std::cmp::Reverse(**run)))?;
            let (run, opened) = (*run, self.full_file(*run, files[0].sequence));
            let files = self.unsynced.get_mut(&run)?;
            match opened {
                Ok(Some(full)) => return Some(full),
                Ok(None) => drop(files.remove(0)),
                Err(_) => files[0].failed = true,
            }
        }
    }

    /// All files of a run that are not synced, the open one too, to be synced without the writer. `None`: of one only the writer may say
    /// that it is. `Err`: which file cannot be opened, and why.
    pub(crate) fn all_unsynced(&self, run: RunKey) -> Result<Option<Vec<FullFile>>, (u64, io::Error)> {
        let full = self.unsynced.get(&run).map_or(&[][..], |files| files);
        if full.iter().any(|full| full.failed) {
            return Ok(None);
        }
        let open = self.open.get(&run).filter(|open| open.dirty).map(|open| open.header.file);
        let mut files = Vec::new();
        for sequence in full.iter().map(|full| full.sequence).chain(open) {
            files.extend(self.full_file(run, sequence).map_err(|error| (sequence, error))?);
        }
        Ok(Some(files))
    }

    pub(crate) fn full_synced(&mut self, full: &FullFile) {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(files) = self.unsynced.get_mut(&full.run) {
            files.retain(|unsynced| unsynced.sequence != full.sequence || unsynced.failed);
        }
    }

    pub(crate) fn full_failed(&mut self, full: &FullFile) {
        let files = self.unsynced.get_mut(&full.run).into_iter().flatten();
        let failed = files.filter(|unsynced| unsynced.sequence == full.sequence);
        failed.for_each(|unsynced| (unsynced.failed, unsynced.is_lost) = (true, true));
    }

    /// Removes a file of which nothing counts.
    pub(crate) fn discard(&self, sequence: u64) -> io::Result<()> {
        self.remove_if_there(&path(sequence))?;
        self.names.forget(sequence);
        Ok(())
    }

    /// Gives a file back. What is open of it here is closed: the disk has its space back with the last handle. After an error it is as it was.
    /// That it is gone survives a loss of power when the folder is synced.
    pub(crate) fn remove(&mut self, sequence: u64) -> io::Result<()> {
        let kept = self.spares.len() < self.config.spares
            && self.has_free(self.spares.len() + 1)
            && self.disk.rename(&path(sequence), &spare_path(sequence)).is_ok();
        if kept {
            self.spares.push(sequence);
        } else {
            self.discard(sequence)?;
        }
        self.forget(sequence);
        Ok(())
    }

    /// Keeps a file under another name, which nothing here looks for. What is open of it is closed. After an error it is as it was.
    pub(crate) fn set_aside(&mut self, sequence: u64) -> io::Result<()> {
        self.disk.rename(&path(sequence), &aside_path(sequence))?;
        self.forget(sequence);
        Ok(())
    }

    /// Closes what is open of a file.
    pub(crate) fn forget(&mut self, sequence: u64) {
        self.names.forget(sequence);
        self.open.retain(|_, open| open.header.file != sequence);
        self.unsynced.retain(|_, files| {
            files.retain(|unsynced| unsynced.sequence != sequence);
            !files.is_empty()
        });
    }

    /// Whether so many files may be kept: what is free is several times as much.
    fn has_free(&self, spares: usize) -> bool {
        let bytes = (spares as u64).saturating_mul(self.config.file_bytes);
        self.disk.free_bytes().is_ok_and(|free| free >= bytes.saturating_mul(FREE_TIMES_SPARES))
    }

    /// Gives space back that is kept to be used again, as far as the disk gets short of it or nobody has used it for long.
    pub(crate) fn bound_spares(&mut self) {
        while !self.spares.is_empty() && !self.has_free(self.spares.len()) {
            self.drop_spare();
        }
        let now_us = self.clock.monotonic_us();
        if now_us.saturating_sub(self.unused_since_us) < UNUSED_US {
            return;
        }
        let unused: Vec<u64> = self.spares.drain(..self.unused.min(self.spares.len())).collect();
        unused.into_iter().for_each(|spare| self.remove_path(&spare_path(spare)));
        (self.unused, self.unused_since_us) = (self.spares.len(), now_us);
    }

    /// Gives all of it back: something did not fit. Returns whether there was any.
    fn drop_spares(&mut self) -> bool {
        let any = !self.spares.is_empty();
        while self.drop_spare() {}
        any
    }

    fn drop_spare(&mut self) -> bool {
        let Some(spare) = self.spares.pop() else { return false };
        self.remove_path(&spare_path(spare));
        true
    }

    fn remove_path(&self, path: &str) {
        if let Err(error) = self.remove_if_there(path) {
            tracing::warn!(path, %error, "a file of copies cannot be removed");
        }
    }

    fn remove_if_there(&self, path: &str) -> io::Result<()> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Bytes of memory of what is known about chunks in open files, and the run of the largest.
    pub(crate) fn index_bytes(&self) -> (usize, Option<RunKey>) {
        let largest = self.open.iter().max_by_key(|(_, open)| open.index.bytes()).map(|(run, _)| *run);
        let bytes = self.open.values().map(|open| open.index.bytes()).sum();
        self.counts.index_bytes.store(bytes, Ordering::Relaxed);
        (bytes, largest)
    }

    pub(crate) fn counts(&self) -> Arc<WriterCounts> {
        Arc::clone(&self.counts)
    }

    pub(crate) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names)
    }
}

/// The header of a block in the file of a backup.
fn block_header(head: &StoreHead, open: &OpenFile, synced: u64) -> BlockHeader {
    BlockHeader {
        vlog: head.log.vlog,
        chunk_count: head.chunk_count,
        block: head.block,
        file: open.header.file,
        key: open.header.key,
        written_ms: head.written_ms,
        chunk_bytes: head.chunk_bytes,
        chunks_checksum: head.chunks_checksum,
        unsynced: u32::try_from(head.block.saturating_sub(synced)).unwrap_or(u32::MAX),
    }
}

/// The first page of a file.
pub(crate) fn first_page(header: &ReplicaHeader) -> AlignedBuffer {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    header.write(&mut page);
    header.write_copy(&mut page);
    page
}

/// Writes a footer at `end` and the mark behind it. Nothing is synced: a file without a footer is read block by block.
pub(crate) fn write_footer(
    file: &dyn DiskFile,
    header: &ReplicaHeader,
    last: u64,
    end: u64,
    index: &FileIndex,
) -> io::Result<Closed> {
    let (vlog, sequence, key) = (header.log.vlog, header.file, header.key);
    let footer = index.footer(vlog, sequence, key, last).encode();
    let mut bytes = AlignedBuffer::with_capacity(footer.len() + PAGE_BYTES);
    bytes.extend_from_slice(&footer);
    bytes.resize(footer.len() + PAGE_BYTES);
    let page = &mut bytes[footer.len()..];
    FileMark { vlog, file: sequence, key, end }.write(page);
    header.write_copy(page);
    file.write_at(end, &bytes)?;
    let length = end + bytes.len() as u64;
    file.set_len(length)?;
    Ok(Closed { footer: end, bytes: length })
}
