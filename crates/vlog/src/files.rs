//! The files of one virtual log: which there are, what they are kept for, where the next block goes.
//!
//! Owned by the writer. Names are `<vlog>-<sequence>.vlog` for files with blocks, `<vlog>-<sequence>.spare` for files whose
//! disk space is there and has been written before, and `<vlog>-<sequence>.filling` for those that are being written with
//! zeros to become spares.
//!
//! Spares are what makes small commits quick. A sync of a block in space that was never written must also change the
//! file system's own records, which is a transaction in its journal: about twenty times the work of the block itself
//! on ext4. So files are used again, and when there is none to be used again, one is filled with zeros ahead, a slice
//! after each block, and while nothing else is to be done once there was one.
//!
//! A file is kept until no segment needs it, and files go in the order in which they came: so the blocks that remain
//! have no holes between them, and a hole found at a start is damage.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use kera_env::{AlignedBuffer, Disk, DiskFile, Folder, OpenMode, Random};
use kera_format::SegmentId;
use kera_format::vlog::{FileHeader, FileMark, PAGE_BYTES, pages};

/// The part of the settings that files need.
#[derive(Clone, Debug)]
pub(crate) struct FilesConfig {
    pub(crate) node: [u8; 16],
    pub(crate) vlog: u32,
    pub(crate) directory: String,
    pub(crate) file_bytes: u64,
    pub(crate) spares: usize,
}

pub(crate) struct Files {
    config: FilesConfig,
    disk: Arc<dyn Disk>,
    /// Where they are, with those of other virtual logs.
    folder: Arc<Folder>,
    random: Arc<dyn Random>,
    /// Files with blocks, oldest first; the last is the current one if there is one.
    kept: VecDeque<KeptFile>,
    current: Option<CurrentFile>,
    spares: Vec<Spare>,
    filling: Option<Filling>,
    /// Filling failed: not tried again before the next file starts.
    filling_failed: bool,
    next_sequence: u64,
    /// A file was given back, and that it is gone is not synced.
    names_changed: bool,
    /// The last try to give a file back failed, which was told.
    is_stuck: bool,
}

/// A file that is being filled with zeros.
struct Filling {
    file: Arc<dyn DiskFile>,
    sequence: u64,
    end: u64,
}

/// A file with blocks.
pub(crate) struct KeptFile {
    pub(crate) sequence: u64,
    pub(crate) bytes: u64,
    /// Segments that have chunks in it and are neither stored nor gone.
    pub(crate) pinned_by: HashSet<SegmentId>,
    /// It is kept aside for a look: it has blocks that do not read back, and whoever started the node accepted that, or chunks whose ordinals were given again.
    pub(crate) goes_aside: bool,
}

/// Where blocks go.
pub(crate) struct CurrentFile {
    file: Arc<dyn DiskFile>,
    pub(crate) sequence: u64,
    pub(crate) key: u64,
    /// Where the next block goes.
    end: u64,
    bytes: u64,
    vlog: u32,
    /// No block reaches beyond, as far as the disk knows: synced.
    marked: u64,
}

impl CurrentFile {
    /// The room for blocks: the last page is the mark's.
    fn room(&self) -> u64 {
        self.bytes - PAGE_BYTES as u64
    }

    /// Writes a block at the end and syncs it. After an error nothing goes to the file any more.
    ///
    /// The mark is moved on well before it is reached, with a block's sync, so that it costs none of its own.
    pub(crate) fn append(&mut self, block: &[u8]) -> io::Result<()> {
        let end = self.end + block.len() as u64;
        if end > self.marked {
            self.write_mark(end + MARK_BYTES)?;
            self.file.sync_data()?;
            self.marked = end + MARK_BYTES;
        }
        let moves = self.marked < self.room() && self.marked - end < MARK_BYTES / 2;
        if moves {
            self.write_mark(end + MARK_BYTES)?;
        }
        self.file.write_at(self.end, block)?;
        self.file.sync_data()?;
        if moves {
            self.marked = end + MARK_BYTES;
        }
        self.end = end;
        Ok(())
    }

    fn write_mark(&self, end: u64) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        FileMark { vlog: self.vlog, file: self.sequence, key: self.key, end }.write(&mut page);
        self.file.write_at(self.room(), &page)
    }
}

/// How far ahead of the blocks the mark is put: what a start reads in vain at most.
const MARK_BYTES: u64 = 4 << 20;

/// What a turn of the writer fills: little beside a block under load, and done with a file in a hundred turns.
const SLICE_BYTES: u64 = 1 << 20;
/// The part of a file that is taken when there is no spare: its syncs are slow, so it is left soon.
const SHORT_FILE: u64 = 8;

struct Spare {
    sequence: u64,
    bytes: u64,
}

/// Names below the directory, by what they are.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<u64>,
    pub(crate) spares: Vec<u64>,
    /// Not finished, and useless.
    pub(crate) filling: Vec<u64>,
}

/// What a name below the directory says: the virtual log, the sequence, and what the file is.
fn parse(name: &str) -> Option<(u32, u64, &str)> {
    let (vlog, rest) = name.split_once('-')?;
    let (sequence, kind) = rest.split_once('.')?;
    Some((vlog.parse().ok()?, sequence.parse().ok()?, kind))
}

/// The numbers of the virtual logs that have files, blocks in them or not.
pub(crate) fn numbers(disk: &dyn Disk, directory: &str) -> io::Result<BTreeSet<u32>> {
    let names = match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names?,
    };
    let is_used = |kind: &str| matches!(kind, "vlog" | "spare" | "filling");
    Ok(names.iter().filter_map(|name| parse(name)).filter(|(.., kind)| is_used(kind)).map(|(vlog, ..)| vlog).collect())
}

impl Files {
    pub(crate) fn new(config: FilesConfig, folder: Arc<Folder>, random: Arc<dyn Random>) -> Files {
        Files {
            config,
            disk: Arc::clone(folder.disk()),
            folder,
            random,
            kept: VecDeque::new(),
            current: None,
            spares: Vec::new(),
            filling: None,
            filling_failed: false,
            next_sequence: 1,
            names_changed: false,
            is_stuck: false,
        }
    }

    pub(crate) fn config(&self) -> &FilesConfig {
        &self.config
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn path(&self, sequence: u64) -> String {
        format!("{}/{:04}-{sequence:010}.vlog", self.config.directory, self.config.vlog)
    }

    fn spare_path(&self, sequence: u64) -> String {
        format!("{}/{:04}-{sequence:010}.spare", self.config.directory, self.config.vlog)
    }

    fn filling_path(&self, sequence: u64) -> String {
        format!("{}/{:04}-{sequence:010}.filling", self.config.directory, self.config.vlog)
    }

    /// Looks for this virtual log's files, makes the directory if need be, and reserves the sequences that it finds.
    pub(crate) fn find(&mut self) -> io::Result<Found> {
        self.disk.create_dir_all(&self.config.directory)?;
        let mut found = Found::default();
        for name in self.disk.list(&self.config.directory)? {
            match parse(&name).filter(|(vlog, ..)| *vlog == self.config.vlog) {
                Some((_, sequence, "vlog")) => found.files.push(sequence),
                Some((_, sequence, "spare")) => found.spares.push(sequence),
                Some((_, sequence, "filling")) => found.filling.push(sequence),
                _ => {}
            }
        }
        found.files.sort_unstable();
        found.spares.sort_unstable();
        let all = found.files.iter().chain(&found.spares).chain(&found.filling);
        let highest = all.max().copied().unwrap_or(0);
        self.next_sequence = highest.saturating_add(1);
        Ok(found)
    }

    /// Takes files that were found into account: those with blocks and what keeps them, and spares.
    pub(crate) fn adopt(&mut self, kept: Vec<KeptFile>, found: &Found) {
        self.kept = kept.into();
        for &sequence in &found.filling {
            self.remove(&self.filling_path(sequence));
        }
        for &sequence in &found.spares {
            let path = self.spare_path(sequence);
            let bytes = self.disk.open(&path, OpenMode::Read, false).and_then(|file| file.len());
            match bytes {
                Ok(bytes) if bytes >= self.config.file_bytes && self.spares.len() < self.config.spares => {
                    self.spares.push(Spare { sequence, bytes });
                }
                _ => _ = self.remove(&path),
            }
        }
        self.drop_unneeded();
    }

    /// The file that takes the next block of `block_bytes`, which is block `next_block`: the current one or the next.
    pub(crate) fn place(&mut self, block_bytes: u64, next_block: u64) -> io::Result<&mut CurrentFile> {
        let fits = self.current.as_ref().is_some_and(|current| current.end + block_bytes <= current.room());
        if !fits {
            self.current = None;
            let started = self.start(block_bytes + 2 * PAGE_BYTES as u64, next_block)?;
            self.kept.push_back(KeptFile {
                sequence: started.sequence,
                bytes: started.bytes,
                pinned_by: HashSet::new(),
                goes_aside: false,
            });
            self.current = Some(started);
            self.drop_unneeded();
        }
        self.current.as_mut().ok_or_else(|| io::Error::other("no current file"))
    }

    /// Makes a file ready for blocks from `next_block` on. Its header and name are synced before it returns: a block
    /// can only be there if the header is, so a file without a header has nothing.
    ///
    /// All virtual logs of a disk have their files in one folder, each with a thread of its own. What a sync of it has not written one of them is told, so
    /// the name counts only if no sync of anybody has failed since it began to be made. Otherwise it is another file's turn.
    fn start(&mut self, bytes_min: u64, next_block: u64) -> io::Result<CurrentFile> {
        let sequence = self.next_sequence;
        // Counted up even if this fails: whatever is left under the name is not mistaken for another try.
        self.next_sequence += 1;
        self.filling_failed = false;
        let path = self.path(sequence);
        // Where no name was made there is nothing to wait for, however often a disk that takes nothing is tried.
        let failures = self.folder.failures();
        let (file, bytes) = self.name(&path, bytes_min).inspect_err(|_| _ = self.remove(&path))?;
        let started = self.start_at(file, (sequence, bytes), next_block, failures);
        if started.is_err() {
            self.remove_or_keep(sequence);
        }
        started
    }

    /// Gives a spare the name, or makes a file that has it. That file if it is open by now, and the bytes that it has or is to get.
    fn name(&mut self, path: &str, bytes_min: u64) -> io::Result<(Option<Arc<dyn DiskFile>>, u64)> {
        if let Some(at) = self.spares.iter().position(|spare| spare.bytes >= bytes_min) {
            let spare = self.spares.swap_remove(at);
            self.disk.rename(&self.spare_path(spare.sequence), path)?;
            return Ok((None, spare.bytes));
        }
        let short = pages((self.config.file_bytes / SHORT_FILE) as usize) as u64;
        Ok((Some(self.disk.open(path, OpenMode::Create, true)?), short.max(bytes_min)))
    }

    /// `failures`: syncs of the folder that had failed before it got its name.
    fn start_at(
        &self,
        made: Option<Arc<dyn DiskFile>>,
        (sequence, bytes): (u64, u64),
        next_block: u64,
        failures: u64,
    ) -> io::Result<CurrentFile> {
        let file = match made {
            Some(file) => {
                file.allocate(0, bytes)?;
                file.set_len(bytes)?;
                file
            }
            None => self.disk.open(&self.path(sequence), OpenMode::ReadWrite, true)?,
        };
        let key = self.random.next_u64();
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let FilesConfig { node, vlog, .. } = self.config;
        FileHeader { node, vlog, file: sequence, key, first_block: next_block }.write(&mut page);
        file.write_at(0, &page)?;
        let end = PAGE_BYTES as u64;
        let current = CurrentFile { file, sequence, key, end, bytes, vlog, marked: end + MARK_BYTES };
        current.write_mark(current.marked)?;
        current.file.sync_data()?;
        self.folder.sync_since(failures)?;
        Ok(current)
    }

    /// Fills a slice of the next spare, if there is none. False if there is nothing to do, or the disk did not take it:
    /// that is not worth an error, blocks go without.
    pub(crate) fn fill_spare(&mut self) -> bool {
        // A log that nobody writes to takes no space.
        if self.config.spares == 0
            || self.current.is_none()
            || self.filling_failed
            || self.spares.iter().any(|s| s.bytes == self.config.file_bytes)
        {
            return false;
        }
        match self.fill_slice() {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "no spare file for the virtual log");
                self.filling_failed = true;
                if let Some(filling) = self.filling.take() {
                    self.remove(&self.filling_path(filling.sequence));
                }
                false
            }
        }
    }

    fn fill_slice(&mut self) -> io::Result<()> {
        let filling = match &mut self.filling {
            Some(filling) => filling,
            None => {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                let file = self.disk.open(&self.filling_path(sequence), OpenMode::Create, true)?;
                let filling = self.filling.insert(Filling { file, sequence, end: 0 });
                filling.file.allocate(0, self.config.file_bytes)?;
                filling
            }
        };
        let bytes = SLICE_BYTES.min(self.config.file_bytes - filling.end);
        filling.file.write_at(filling.end, &AlignedBuffer::zeroed(bytes as usize))?;
        filling.end += bytes;
        if filling.end == self.config.file_bytes {
            filling.file.sync_data()?;
            let sequence = filling.sequence;
            self.disk.rename(&self.filling_path(sequence), &self.spare_path(sequence))?;
            self.filling = None;
            self.spares.push(Spare { sequence, bytes: self.config.file_bytes });
        }
        Ok(())
    }

    /// A write or sync to the current file failed: nothing goes there any more. What was synced before stays good.
    pub(crate) fn abandon_current(&mut self) {
        let Some(current) = self.current.take() else { return };
        if current.end == PAGE_BYTES as u64 {
            // It has no block that counts. With it gone, a disk that fails for long does not fill up with files.
            self.kept.pop_back();
            self.remove_or_keep(current.sequence);
        }
    }

    /// Removes the newest file, which has no block that counts. One that stays goes in its turn: its header names its first block, and a start would miss that
    /// one if the files behind it went first.
    fn remove_or_keep(&mut self, sequence: u64) {
        if !self.remove(&self.path(sequence)) {
            // As one without bytes it is not used again: how far it has been made nobody knows.
            self.kept.push_back(KeptFile { sequence, bytes: 0, pinned_by: HashSet::new(), goes_aside: false });
        }
    }

    /// The current file has a block with chunks of these segments.
    pub(crate) fn pin(&mut self, segments: impl Iterator<Item = SegmentId>) {
        let Some(kept) = self.kept.back_mut() else { return };
        let mut last = None;
        for id in segments {
            if last != Some(id) {
                kept.pinned_by.insert(id);
                last = Some(id);
            }
        }
    }

    /// The files with chunks of these segments are kept aside when nothing needs them any more. Before they are [unpinned](Files::unpin).
    pub(crate) fn set_aside(&mut self, segments: &HashSet<SegmentId>) {
        for kept in &mut self.kept {
            kept.goes_aside |= !kept.pinned_by.is_disjoint(segments);
        }
    }

    /// These segments are stored or gone. Files that nothing else keeps become spares or are removed.
    pub(crate) fn unpin(&mut self, segments: &[SegmentId]) {
        for kept in &mut self.kept {
            for id in segments {
                kept.pinned_by.remove(id);
            }
        }
        self.drop_unneeded();
    }

    /// What keeps the oldest file, if all files together have more than `limit` bytes.
    pub(crate) fn pressing(&self, limit: u64) -> Option<&HashSet<SegmentId>> {
        let oldest = self.kept.front().filter(|_| self.kept.len() > 1)?;
        (self.kept.iter().map(|kept| kept.bytes).sum::<u64>() > limit).then_some(&oldest.pinned_by)
    }

    /// Gives back what is not needed, oldest first, never the current one. One at a time, and none before the one that went last is
    /// gone for good: a file that is still there when later ones are not would be a hole at the next start. So a disk that
    /// does not let go of one keeps those behind it, too, until it does.
    fn drop_unneeded(&mut self) {
        let current = usize::from(self.current.is_some());
        while self.kept.len() > current && self.kept.front().is_some_and(|oldest| oldest.pinned_by.is_empty()) {
            let gone = self.sync_names().and_then(|()| self.drop_oldest());
            if let Err(error) = gone {
                if !std::mem::replace(&mut self.is_stuck, true) {
                    tracing::warn!(%error, "files of the virtual log that are not needed cannot be given back; they wait");
                }
                return;
            }
            self.is_stuck = false;
        }
    }

    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(oldest) = self.kept.front() else { return Ok(()) };
        let path = self.path(oldest.sequence);
        let spare = Spare { sequence: oldest.sequence, bytes: oldest.bytes };
        let reused = self.spares.len() < self.config.spares && oldest.bytes == self.config.file_bytes;
        if oldest.goes_aside {
            self.disk.rename(&path, &format!("{path}.damaged"))?;
        } else if reused && self.disk.rename(&path, &self.spare_path(oldest.sequence)).is_ok() {
            self.spares.push(spare);
        } else {
            match self.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.kept.pop_front();
        self.names_changed = true;
        self.sync_names()
    }

    /// Makes it durable that a file is gone. After a sync that failed nobody would ever know that it is: the next one that works is believed, for otherwise no file
    /// could be given back any more. If it is there again after a loss of power, and one behind it is not, a start says so.
    fn sync_names(&mut self) -> io::Result<()> {
        if self.names_changed {
            self.folder.sync()?;
            self.names_changed = false;
        }
        Ok(())
    }

    /// Removes a file that never had a block.
    pub(crate) fn remove_file(&self, sequence: u64) {
        self.remove(&self.path(sequence));
    }

    /// Removes a file that is not needed, and tells whether it is gone. Of one without a header, that it stays costs space only.
    fn remove(&self, path: &str) -> bool {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path, %error, "a file that is not needed cannot be removed");
                false
            }
            _ => true,
        }
    }

    /// Files with blocks, and the bytes of those, the spares and what is filled of the next.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let kept: u64 = self.kept.iter().map(|kept| kept.bytes).sum();
        let spares: u64 = self.spares.iter().map(|spare| spare.bytes).sum();
        (self.kept.len() as u64, kept + spares + self.filling.as_ref().map_or(0, |filling| filling.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{FaultyDisk, MemoryDisk, SeededRandom};

    fn files(disk: &Arc<dyn Disk>) -> Files {
        files_in(&Arc::new(Folder::new(Arc::clone(disk), "vlog")), 1)
    }

    fn files_in(folder: &Arc<Folder>, vlog: u32) -> Files {
        let config = FilesConfig { node: [7; 16], vlog, directory: "vlog".into(), file_bytes: 1 << 20, spares: 2 };
        let mut files = Files::new(config, Arc::clone(folder), Arc::new(SeededRandom::new(1)));
        files.find().expect("a directory");
        files
    }

    #[test]
    fn a_log_that_nobody_writes_to_takes_no_space() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let mut files = files(&disk);
        assert!(!files.fill_spare());
        assert_eq!(disk.list("vlog").expect("it is there"), [""; 0]);
        files.place(4096, 1).expect("a file");
        assert!(files.fill_spare());
        assert!(!files.fill_spare(), "one is enough");
        assert_eq!(disk.list("vlog").expect("it is there").len(), 2);
        // What is kept aside for a look is no file of a log.
        disk.replace("vlog/0007-0000000003.vlog.damaged", b"x").expect("written");
        disk.replace("vlog/0012-0000000001.spare", b"x").expect("written");
        assert_eq!(numbers(&*disk, "vlog").expect("it is there").into_iter().collect::<Vec<_>>(), [1, 12]);
        assert!(numbers(&*disk, "nothing").expect("none").is_empty());
    }

    /// A read-only one is tried twice a second, be it for days, and refuses to remove what is not there.
    #[test]
    fn a_disk_that_takes_nothing_leaves_no_files_to_wait_for() {
        let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
        let mut files = files(&disk);
        faulty.set_broken(true);
        for _ in 0..100 {
            assert!(files.place(4096, 1).is_err());
        }
        assert_eq!(files.usage().0, 0);
        faulty.set_broken(false);
        files.place(4096, 1).expect("a file");
        assert_eq!((files.usage().0, disk.list("vlog").expect("it is there").len()), (1, 1));
    }

    /// The system tells of a name that it could not write once, and whoever gives back a file of another log is told.
    #[test]
    fn a_name_is_not_believed_if_a_sync_of_another_log_has_failed_since_it_was_made() {
        let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let folder = Arc::new(Folder::new(Arc::new(faulty.clone()), "vlog"));
        let (mut files, mut others) = (files_in(&folder, 1), files_in(&folder, 2));
        let failures = files.folder.failures();
        let (made, bytes) = files.name("vlog/0001-0000000001.vlog", 4096).expect("made");
        others.names_changed = true;
        faulty.set_broken(true);
        assert!(others.sync_names().is_err());
        faulty.set_broken(false);
        assert!(files.start_at(made, (1, bytes), 1, failures).is_err());
        others.sync_names().expect("that a file is gone is believed");
        // Not counted any more: it goes to another file.
        files.next_sequence = 2;
        files.place(4096, 1).expect("a file");
        assert_eq!(files.usage().0, 1);
    }
}
