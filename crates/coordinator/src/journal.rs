//! The catalog on the disk: generations of one snapshot and the journal that goes on from it.
//!
//! Owned by [`Coordinator`](crate::Coordinator), used under its command lock, blocks on the disk. Files are
//! `catalog/<generation>.snapshot` and `catalog/<generation>.journal`; their bytes are those of
//! [`kera_format::catalog`].
//!
//! A snapshot is published by a rename, so it is whole or not there. The journal with its number is what happened
//! since; one that is not there is empty. Older generations are leftovers, whatever they hold. A new generation starts
//! when a start finds a journal that is long or torn, when the journal has grown, and after a write that failed: what
//! may lie in a journal behind a failed write is thereby out of the way for good.
//!
//! Both are kept [twice](kera_env::read_twice): a disk that changes a bit, or cannot read a sector, keeps no node from starting and takes no stream away. The journal's
//! copy gets each entry behind the journal itself and is not synced, so it costs no command a sync, and what it has was synced in the journal. A start
//! that finds the two not the same goes on in the next generation, which has both.

use std::io;
use std::sync::Arc;

use kera_env::{Both, Disk, DiskFile, OpenMode, copy_path, read_twice, replace_twice, without_copy, write_copy};
use kera_format::FormatError;
use kera_format::catalog::{Entry, FILE_HEADER_BYTES, FileHeader, FileKind};

use crate::OpenError;
use crate::catalog::Catalog;

/// Where the files are, below the data directory.
pub const DIR: &str = "catalog";
/// Entries after which a journal gives way to the next snapshot.
const JOURNAL_ENTRIES_MAX: u64 = 10_000;
/// A start goes on in a journal with fewer entries.
const GOES_ON_ENTRIES_MAX: u64 = 200;
/// The largest file that is read: several times what the limits on streams and producers can make.
const FILE_BYTES_MAX: usize = 512 << 20;

/// The journal that is written. See the module.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    node: [u8; 16],
    /// The one that is in use. It stays so where the next one cannot begin: what is looked at is what is there.
    generation: u64,
    /// The last one that was to begin, whether it did or not: a number is tried once.
    tried: u64,
    /// `None` after a failure: the next entry needs a new generation first.
    file: Option<Arc<dyn DiskFile>>,
    /// `None` after a failure: the next generation has one again.
    copy: Option<Arc<dyn DiskFile>>,
    end: u64,
    entries: u64,
    entries_max: u64,
}

/// What opening found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Entries of the journal that were applied.
    pub entries: u64,
    /// Bytes at the end of the journal that an interrupted write left there.
    pub torn_bytes: u64,
    /// What does not read back was taken from its copy, or a copy is not what it should be.
    pub mended: bool,
}

impl Journal {
    /// Reads what is there and goes on with it: in the journal that is there, if it is whole and short, else in the next
    /// generation. If the disk does not take that one, the catalog can be read, and the first command tries again.
    pub fn open(disk: Arc<dyn Disk>, node: [u8; 16]) -> Result<(Journal, Catalog, Opened), OpenError> {
        let disk_error = |error| OpenError::Disk { path: DIR.to_owned(), error };
        disk.create_dir_all(DIR).map_err(disk_error)?;
        let names = disk.list(DIR).map_err(disk_error)?;
        let newest = |suffix: &str| names.iter().filter_map(|name| generation_of(name, suffix)).max();
        let (snapshot, journal) = (newest(".snapshot"), newest(".journal"));
        let mut catalog = Catalog::default();
        let mut opened = Opened::default();
        match (snapshot, journal) {
            (Some(generation), _) => {
                let snapshot = read_both(&*disk, &snapshot_path(generation))?;
                catalog = read_snapshot(&snapshot, node, generation)?;
                if names.iter().any(|name| without_copy(name) == journal_name(generation)) {
                    let journal = read_both(&*disk, &journal_path(generation))?;
                    opened = read_journal(&journal, node, generation, &mut catalog)?;
                    opened.mended |= !journal.are_same();
                }
                opened.mended |= !snapshot.are_same();
            }
            (None, Some(generation)) => {
                // The snapshot comes first, always.
                let reason = format!("the snapshot it goes on from, {}, is missing", snapshot_name(generation));
                return Err(OpenError::Contradiction { path: journal_path(generation), offset: 0, reason });
            }
            (None, None) => {}
        }
        let generation = snapshot.max(journal).unwrap_or(0);
        let entries_max = JOURNAL_ENTRIES_MAX;
        let (file, copy, tried) = (None, None, generation);
        let mut journal = Journal { disk, node, generation, tried, file, copy, end: 0, entries: 0, entries_max };
        if snapshot == Some(generation) && journal.goes_on(&opened) {
            return Ok((journal, catalog, opened));
        }
        if let Err(error) = journal.start_generation(&catalog) {
            tracing::warn!(%error, "the catalog can be read but not written; commands are refused until it can");
        }
        Ok((journal, catalog, opened))
    }

    /// Writes `entry`, synced: the one that follows `before`, the state so far. After an error the entry has no effect
    /// unless the process ends before the next success.
    pub fn append(&mut self, entry: &Entry, before: &Catalog) -> io::Result<()> {
        if self.file.is_none() {
            self.start_generation(before)?;
        } else if self.entries >= self.entries_max {
            let (file, copy, end) = (self.file.clone(), self.copy.clone(), self.end);
            if let Err(error) = self.start_generation(before) {
                // The journal in use is well; it just grows on, and the next try is some way off. Its generation is
                // the newest with a snapshot unless the new one got that far, and then it is over with this one.
                if self.newest_snapshot()? == Some(self.tried) {
                    return Err(error);
                }
                tracing::warn!(%error, "the catalog's journal cannot be cut short; it grows on");
                (self.file, self.copy, self.end) = (file, copy, end);
                self.entries_max = self.entries + JOURNAL_ENTRIES_MAX;
            }
        }
        let mut bytes = Vec::new();
        entry.encode(before.next_index(), &mut bytes);
        let Some(file) = &self.file else { return Err(io::Error::other("the journal is not open")) };
        let written = file.write_at(self.end, &bytes).and_then(|()| file.sync_data());
        if let Err(error) = written {
            self.file = None;
            return Err(error);
        }
        if let Some(copy) = &self.copy
            && let Err(error) = copy.write_at(self.end, &bytes)
        {
            tracing::warn!(%error, "the copy of the catalog's journal cannot be written; the next generation has one again");
            (self.copy, self.entries_max) = (None, self.entries);
        }
        self.end += bytes.len() as u64;
        self.entries += 1;
        Ok(())
    }

    /// Compares snapshot and journal with their copies, and goes on in the next generation if they are not the same: how many bytes they have, and whether they were
    /// not. `catalog` is the state so far. Nothing is looked at after a failure: the next entry writes all of it anew.
    pub fn look(&mut self, catalog: &Catalog) -> io::Result<(u64, bool)> {
        if self.file.is_none() {
            return Ok((0, false));
        }
        let (mut bytes, mut is_damaged) = (0, false);
        for path in [snapshot_path(self.generation), journal_path(self.generation)] {
            let both = read_twice(&*self.disk, &path, FILE_BYTES_MAX)?;
            bytes += (both.file.len() + both.copy.len()) as u64;
            is_damaged |= !both.are_same();
        }
        if is_damaged {
            self.start_generation(catalog)?;
        }
        Ok((bytes, is_damaged))
    }

    /// Goes on in the journal that was read: a start costs one sync then, not the four of a generation. That sync is for
    /// an entry that an earlier process wrote and did not live to sync: it has been read, so it must stay.
    fn goes_on(&mut self, opened: &Opened) -> bool {
        if opened.torn_bytes > 0 || opened.mended || opened.entries >= GOES_ON_ENTRIES_MAX {
            return false;
        }
        let path = journal_path(self.generation);
        let Ok(file) = self.disk.open(&path, OpenMode::ReadWrite, false) else { return false };
        let Ok(copy) = self.disk.open(&copy_path(&path), OpenMode::ReadWrite, false) else { return false };
        let Ok(end) = file.len() else { return false };
        if end < FILE_HEADER_BYTES as u64 || file.sync_data().is_err() {
            return false;
        }
        (self.file, self.copy) = (Some(file), Some(copy));
        (self.end, self.entries) = (end, opened.entries);
        true
    }

    fn newest_snapshot(&self) -> io::Result<Option<u64>> {
        Ok(self.disk.list(DIR)?.iter().filter_map(|name| generation_of(name, ".snapshot")).max())
    }

    /// Publishes a snapshot of `catalog` and opens the journal that goes on from it.
    fn start_generation(&mut self, catalog: &Catalog) -> io::Result<()> {
        self.tried += 1;
        let generation = self.tried;
        (self.file, self.copy) = (None, None);
        let mut bytes = FileHeader { node: self.node, generation, kind: FileKind::Snapshot }.encode().to_vec();
        let entries = catalog.snapshot();
        for (entry, index) in entries.iter().zip(1..) {
            entry.encode(index, &mut bytes);
        }
        let count = entries.len() as u64;
        Entry::End { entries: count }.encode(count + 1, &mut bytes);
        replace_twice(&*self.disk, &snapshot_path(generation), &bytes)?;

        let file = self.disk.open(&journal_path(generation), OpenMode::Create, false)?;
        let header = FileHeader { node: self.node, generation, kind: FileKind::Journal }.encode();
        file.write_at(0, &header)?;
        file.sync_data()?;
        self.copy = Some(write_copy(&*self.disk, &journal_path(generation), &header)?);
        self.disk.sync_dir(DIR)?;
        (self.file, self.end, self.generation) = (Some(file), FILE_HEADER_BYTES as u64, generation);
        (self.entries, self.entries_max) = (0, JOURNAL_ENTRIES_MAX);
        self.remove_before(generation);
        Ok(())
    }

    /// Removes older generations. That one of them stays does no harm, so errors are only told.
    fn remove_before(&self, generation: u64) {
        let Ok(names) = self.disk.list(DIR) else { return };
        for name in names {
            let older = |suffix| generation_of(&name, suffix).is_some_and(|of| of < generation);
            if (older(".snapshot") || older(".journal") || name.ends_with(".tmp"))
                && let Err(error) = self.disk.remove(&format!("{DIR}/{name}"))
            {
                tracing::debug!(%name, %error, "an old file of the catalog stays");
            }
        }
    }
}

fn snapshot_name(generation: u64) -> String {
    format!("{generation:016}.snapshot")
}

fn journal_name(generation: u64) -> String {
    format!("{generation:016}.journal")
}

fn snapshot_path(generation: u64) -> String {
    format!("{DIR}/{}", snapshot_name(generation))
}

fn journal_path(generation: u64) -> String {
    format!("{DIR}/{}", journal_name(generation))
}

/// The generation of a file, or of its copy.
fn generation_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = without_copy(name).strip_suffix(suffix)?;
    (digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

fn read_both(disk: &dyn Disk, path: &str) -> Result<Both, OpenError> {
    read_twice(disk, path, FILE_BYTES_MAX).map_err(|error| OpenError::Disk { path: path.to_owned(), error })
}

fn check_header(path: &str, bytes: &[u8], expected: FileHeader) -> Result<(), OpenError> {
    let damaged = |error| OpenError::Damaged { path: path.to_owned(), offset: 0, error };
    let found = FileHeader::parse(bytes).map_err(damaged)?;
    if found.node != expected.node {
        let (found, expected) = (hex(&found.node), hex(&expected.node));
        return Err(OpenError::OtherNode { path: path.to_owned(), found, expected });
    }
    if found != expected {
        let reason = format!("its header says {:?} {}", found.kind, found.generation);
        return Err(OpenError::Contradiction { path: path.to_owned(), offset: 0, reason });
    }
    Ok(())
}

/// What a snapshot says, or its copy if the snapshot does not read back; the error is the snapshot's.
fn read_snapshot(both: &Both, node: [u8; 16], generation: u64) -> Result<Catalog, OpenError> {
    let (catalog, is_copied) = both.read_back(0, |bytes| parse_snapshot(bytes, node, generation), |_| true)?;
    if is_copied {
        tracing::warn!(path = snapshot_path(generation), "a snapshot of the catalog does not read back; its copy does");
    }
    Ok(catalog)
}

fn parse_snapshot(bytes: &[u8], node: [u8; 16], generation: u64) -> Result<Catalog, OpenError> {
    let path = snapshot_path(generation);
    let mut catalog = Catalog::default();
    check_header(&path, bytes, FileHeader { node, generation, kind: FileKind::Snapshot })?;
    let mut offset = FILE_HEADER_BYTES;
    let contradiction =
        |offset: usize, reason| OpenError::Contradiction { path: path.clone(), offset: offset as u64, reason };
    for expected in 1.. {
        let (index, entry, size) = Entry::parse(&bytes[offset..]).map_err(|error| OpenError::Damaged {
            path: path.clone(),
            offset: offset as u64,
            error,
        })?;
        if index != expected {
            return Err(contradiction(offset, format!("entry {expected} has index {index}")));
        }
        if let Entry::End { entries } = entry {
            if entries + 1 != expected || offset + size != bytes.len() {
                return Err(contradiction(offset, format!("the end tells of {entries} entries and no more bytes")));
            }
            return Ok(catalog);
        }
        if (expected == 1) != matches!(entry, Entry::Counters { .. }) {
            return Err(contradiction(offset, "the counters are not the first entry, or not only that".into()));
        }
        catalog.restore(&entry).map_err(|reason| contradiction(offset, reason))?;
        offset += size;
    }
    unreachable!("the loop ends with the bytes")
}

fn read_journal(both: &Both, node: [u8; 16], generation: u64, catalog: &mut Catalog) -> Result<Opened, OpenError> {
    let path = journal_path(generation);
    let header = FileHeader { node, generation, kind: FileKind::Journal };
    match both.read_back(0, |bytes| check_header(&path, bytes, header), |()| true) {
        Ok(_) => {}
        // The header is synced before the first entry is written.
        Err(OpenError::Damaged { error, .. }) => {
            end_of_journal(&path, both, 0, error)?;
            return Ok(Opened { torn_bytes: both.end() as u64, ..Opened::default() });
        }
        Err(other) => return Err(other),
    }
    let mut opened = Opened::default();
    let mut offset = FILE_HEADER_BYTES;
    while offset < both.end() {
        let next = catalog.next_index();
        let (index, entry, size) = match both.read_back(offset, Entry::parse, |(index, ..)| *index == next) {
            Ok((parsed, is_copied)) => {
                if is_copied {
                    tracing::warn!(path, offset, "an entry of the catalog does not read back; its copy does");
                }
                parsed
            }
            Err(error) => {
                end_of_journal(&path, both, offset, error)?;
                opened.torn_bytes = (both.end() - offset) as u64;
                break;
            }
        };
        let applied = if index == next {
            catalog.apply(&entry)
        } else {
            Err(format!("the entry has index {index}, {next} comes next"))
        };
        applied.map_err(|reason| OpenError::Contradiction { path: path.clone(), offset: offset as u64, reason })?;
        opened.entries += 1;
        offset += size;
    }
    Ok(opened)
}

/// Tells an interrupted write from damage. Every entry is synced before the next one is written, and before it is in the copy. So an entry that does
/// not read back in either was never acknowledged if it is the last in both, and was if another follows it. What is lost is one that a disk changed between
/// the sync and the copy of it that a kill kept from being written, moments later.
fn end_of_journal(path: &str, both: &Both, offset: usize, error: FormatError) -> Result<(), OpenError> {
    if both.goes_on_behind(offset, |bytes| Entry::parse(bytes).is_ok()) {
        return Err(OpenError::Damaged { path: path.to_owned(), offset: offset as u64, error });
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use kera_env::{FaultyDisk, MemoryDisk};

    use super::*;

    /// The disk takes no next snapshot, and afterwards it changes a bit of the journal that is written on.
    #[test]
    fn who_looks_finds_what_is_changed_in_the_generation_in_use_when_the_next_one_could_not_begin() {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::new(Arc::new(memory.clone()));
        let (mut journal, mut catalog, _) = Journal::open(Arc::new(disk.clone()), [1; 16]).unwrap();
        let reserve = |journal: &mut Journal, catalog: &mut Catalog| {
            let entry = catalog.plan_reserve();
            journal.append(&entry, catalog).unwrap();
            catalog.apply(&entry).unwrap();
        };
        reserve(&mut journal, &mut catalog);
        let in_use = journal.generation;
        journal.entries_max = 1;
        disk.fail_write(1);
        reserve(&mut journal, &mut catalog);
        assert_eq!((journal.generation, journal.tried), (in_use, in_use + 1));
        let (bytes, is_damaged) = journal.look(&catalog).unwrap();
        assert!(bytes > 4 * FILE_HEADER_BYTES as u64 && !is_damaged, "it is the one with what was written");

        memory.flip_bit(&journal_path(in_use), FILE_HEADER_BYTES as u64 + 20, 1).unwrap();
        assert!(journal.look(&catalog).unwrap().1);
        assert!(!journal.look(&catalog).unwrap().1, "both are there again");
        assert_eq!(journal.generation, in_use + 2, "a number is tried once");
        let (_, again, _) = Journal::open(Arc::new(memory), [1; 16]).unwrap();
        assert_eq!(again.producers_reserved(), catalog.producers_reserved());
    }
}
