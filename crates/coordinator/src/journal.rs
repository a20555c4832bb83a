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

use std::io;
use std::sync::Arc;

use kera_env::{Disk, DiskFile, OpenMode};
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
    generation: u64,
    /// `None` after a failure: the next entry needs a new generation first.
    file: Option<Arc<dyn DiskFile>>,
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
                read_snapshot(&*disk, node, generation, &mut catalog)?;
                if names.contains(&journal_name(generation)) {
                    opened = read_journal(&*disk, node, generation, &mut catalog)?;
                }
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
        let mut journal = Journal { disk, node, generation, file: None, end: 0, entries: 0, entries_max };
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
            let (file, end) = (self.file.clone(), self.end);
            if let Err(error) = self.start_generation(before) {
                // The journal in use is well; it just grows on, and the next try is some way off. Its generation is
                // the newest with a snapshot unless the new one got that far, and then it is over with this one.
                if self.newest_snapshot()? == Some(self.generation) {
                    return Err(error);
                }
                tracing::warn!(%error, "the catalog's journal cannot be cut short; it grows on");
                (self.file, self.end) = (file, end);
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
        self.end += bytes.len() as u64;
        self.entries += 1;
        Ok(())
    }

    /// Goes on in the journal that was read: a start costs one sync then, not the four of a generation. That sync is for
    /// an entry that an earlier process wrote and did not live to sync: it has been read, so it must stay.
    fn goes_on(&mut self, opened: &Opened) -> bool {
        if opened.torn_bytes > 0 || opened.entries >= GOES_ON_ENTRIES_MAX {
            return false;
        }
        let path = journal_path(self.generation);
        let Ok(file) = self.disk.open(&path, OpenMode::ReadWrite, false) else { return false };
        let Ok(end) = file.len() else { return false };
        if end < FILE_HEADER_BYTES as u64 || file.sync_data().is_err() {
            return false;
        }
        (self.file, self.end, self.entries) = (Some(file), end, opened.entries);
        true
    }

    fn newest_snapshot(&self) -> io::Result<Option<u64>> {
        Ok(self.disk.list(DIR)?.iter().filter_map(|name| generation_of(name, ".snapshot")).max())
    }

    /// Publishes a snapshot of `catalog` and opens the journal that goes on from it.
    fn start_generation(&mut self, catalog: &Catalog) -> io::Result<()> {
        // Counted up even if this fails: a number is tried once.
        self.generation += 1;
        let generation = self.generation;
        self.file = None;
        let mut bytes = FileHeader { node: self.node, generation, kind: FileKind::Snapshot }.encode().to_vec();
        let entries = catalog.snapshot();
        for (entry, index) in entries.iter().zip(1..) {
            entry.encode(index, &mut bytes);
        }
        let count = entries.len() as u64;
        Entry::End { entries: count }.encode(count + 1, &mut bytes);
        self.disk.replace(&format!("{DIR}/{}", snapshot_name(generation)), &bytes)?;

        let file = self.disk.open(&journal_path(generation), OpenMode::Create, false)?;
        file.write_at(0, &FileHeader { node: self.node, generation, kind: FileKind::Journal }.encode())?;
        file.sync_data()?;
        self.disk.sync_dir(DIR)?;
        (self.file, self.end) = (Some(file), FILE_HEADER_BYTES as u64);
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

fn journal_path(generation: u64) -> String {
    format!("{DIR}/{}", journal_name(generation))
}

fn generation_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    (digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

fn read_file(disk: &dyn Disk, path: &str) -> Result<Vec<u8>, OpenError> {
    disk.read_all(path, FILE_BYTES_MAX).map_err(|error| OpenError::Disk { path: path.to_owned(), error })
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

fn read_snapshot(disk: &dyn Disk, node: [u8; 16], generation: u64, catalog: &mut Catalog) -> Result<(), OpenError> {
    let path = format!("{DIR}/{}", snapshot_name(generation));
    let bytes = read_file(disk, &path)?;
    check_header(&path, &bytes, FileHeader { node, generation, kind: FileKind::Snapshot })?;
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
            return Ok(());
        }
        if (expected == 1) != matches!(entry, Entry::Counters { .. }) {
            return Err(contradiction(offset, "the counters are not the first entry, or not only that".into()));
        }
        catalog.restore(&entry).map_err(|reason| contradiction(offset, reason))?;
        offset += size;
    }
    unreachable!("the loop ends with the bytes")
}

fn read_journal(disk: &dyn Disk, node: [u8; 16], generation: u64, catalog: &mut Catalog) -> Result<Opened, OpenError> {
    let path = journal_path(generation);
    let bytes = read_file(disk, &path)?;
    match check_header(&path, &bytes, FileHeader { node, generation, kind: FileKind::Journal }) {
        Ok(()) => {}
        // The header is synced before the first entry is written.
        Err(OpenError::Damaged { error, .. }) => {
            end_of_journal(&path, &bytes, 0, error)?;
            return Ok(Opened { entries: 0, torn_bytes: bytes.len() as u64 });
        }
        Err(other) => return Err(other),
    }
    let mut opened = Opened::default();
    let mut offset = FILE_HEADER_BYTES;
    while offset < bytes.len() {
        let (index, entry, size) = match Entry::parse(&bytes[offset..]) {
            Ok(parsed) => parsed,
            Err(error) => {
                end_of_journal(&path, &bytes, offset, error)?;
                opened.torn_bytes = (bytes.len() - offset) as u64;
                break;
            }
        };
        let applied = if index == catalog.next_index() {
            catalog.apply(&entry)
        } else {
            Err(format!("the entry has index {index}, {} comes next", catalog.next_index()))
        };
        applied.map_err(|reason| OpenError::Contradiction { path: path.clone(), offset: offset as u64, reason })?;
        opened.entries += 1;
        offset += size;
    }
    Ok(opened)
}

/// Tells an interrupted write from damage. Every entry is synced before the next one is written, so an entry that does
/// not read back was never acknowledged if it is the last, and was if another follows it.
fn end_of_journal(path: &str, bytes: &[u8], offset: usize, error: FormatError) -> Result<(), OpenError> {
    let follows = (offset + 8..bytes.len()).step_by(8).any(|at| Entry::parse(&bytes[at..]).is_ok());
    if follows {
        return Err(OpenError::Damaged { path: path.to_owned(), offset: offset as u64, error });
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
