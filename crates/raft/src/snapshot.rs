//! Snapshots: the whole state in a file of the catalog's format, with how far it goes and who votes.

use std::sync::Arc;
use std::{fmt, io};

use kera_coordinator::cluster::ClusterState;
use kera_env::{Both, Disk, Folder, read_twice, write_copy};
use kera_format::catalog::{Entry as CatalogEntry, FILE_HEADER_BYTES, FileHeader, FileKind};
use kera_format::cluster::ClusterEntry;
use kera_format::level;
use openraft::SnapshotMeta;

pub(crate) use crate::file::DIR;
use crate::file::{OpenError, number_of, remove_before};
use crate::room::has_no_room;
use crate::types::{Node, Place, StoredMembers, log_id, members, membership_entry, place_of};

/// The largest snapshot: one that is larger is not read, and not written either.
const BYTES_MAX: usize = 1 << 30;
const SUFFIX: &str = ".snapshot";

/// A snapshot that was read.
pub(crate) struct Loaded {
    pub(crate) state: ClusterState,
    pub(crate) applied: Place,
    pub(crate) members: StoredMembers,
}

impl Loaded {
    pub(crate) fn meta(&self) -> SnapshotMeta<u64, Node> {
        meta(self.applied, self.members.clone())
    }
}

/// A snapshot on its way through `openraft`, which wants to know how far it goes and has no use for its bytes.
pub(crate) enum Carried {
    /// The newest one on this node's disk, to be read by whoever sends it: `openraft` applies no entry for as long as it waits to be given one.
    Newest(Arc<Folder>),
    /// One that came from the leader, as it was read, with its bytes.
    Came(Box<Loaded>, Vec<u8>),
}

impl Carried {
    /// How far it goes, and its bytes. The newest may go further than the one that was asked for, if another one was made since. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or there is none.
    pub(crate) fn into_bytes(self) -> io::Result<(Place, Vec<u8>)> {
        match self {
            Carried::Came(loaded, bytes) => Ok((loaded.applied, bytes)),
            Carried::Newest(folder) => {
                let found = read_newest(&**folder.disk())?;
                let (loaded, bytes) = found.ok_or_else(|| io::Error::other("there is no snapshot any more"))?;
                Ok((loaded.applied, bytes))
            }
        }
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carried::Newest(_) => write!(f, "the newest snapshot"),
            Carried::Came(loaded, bytes) => write!(f, "snapshot {}, {} bytes", loaded.applied, bytes.len()),
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Snapshots that this thread has put into bytes, or read from bytes.
    pub(crate) static CODED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

pub(crate) fn meta(applied: Place, members: StoredMembers) -> SnapshotMeta<u64, Node> {
    let snapshot_id = format!("{}-{}", applied.leader_id.term, applied.index);
    SnapshotMeta { last_log_id: Some(applied), last_membership: members, snapshot_id }
}

pub(crate) fn encode(node: [u8; 16], state: &ClusterState, applied: Place, members: &StoredMembers) -> Vec<u8> {
    #[cfg(test)]
    CODED.set(CODED.get() + 1);
    let header = FileHeader { node, generation: applied.index, kind: FileKind::Snapshot };
    let mut bytes = header.encode().to_vec();
    let mut entries = state.snapshot();
    entries.insert(1, ClusterEntry::Applied { place: place_of(&applied) });
    entries.insert(2, membership_entry(members.log_id().as_ref(), members.membership()));
    for (entry, index) in entries.iter().zip(1..) {
        entry.encode(index, &mut bytes);
    }
    let count = entries.len() as u64;
    CatalogEntry::End { entries: count }.encode(count + 1, &mut bytes);
    bytes
}

/// Reads all of a snapshot; the error says what is wrong where.
pub(crate) fn decode(bytes: &[u8]) -> Result<Loaded, String> {
    #[cfg(test)]
    CODED.set(CODED.get() + 1);
    let header = FileHeader::parse(bytes).map_err(|error| format!("byte 0: {error}"))?;
    if header.kind != FileKind::Snapshot {
        return Err("byte 32: it is no snapshot".into());
    }
    let (mut state, mut applied, mut stored) = (ClusterState::default(), None, StoredMembers::default());
    let mut at = FILE_HEADER_BYTES;
    for expected in 1.. {
        let parsed = ClusterEntry::parse(&bytes[at..]).map_err(|error| format!("byte {at}: {error}"))?;
        let (index, entry, size) = parsed;
        if index != expected {
            return Err(format!("byte {at}: entry {expected} has index {index}"));
        }
        match entry {
            ClusterEntry::Catalog(CatalogEntry::End { entries }) => {
                if entries + 1 != expected || at + size != bytes.len() {
                    return Err(format!("byte {at}: the end tells of {entries} entries and no more bytes"));
                }
                break;
            }
            ClusterEntry::Applied { place } => applied = Some(log_id(&place)),
            ClusterEntry::Membership { place, voters, nodes } => {
                stored = StoredMembers::new(place.as_ref().map(log_id), members(&voters, &nodes));
            }
            other => state.restore(&other).map_err(|refused| format!("byte {at}: {refused}"))?,
        }
        at += size;
    }
    let applied = applied.ok_or("it does not say how far it goes")?;
    if applied.index != header.generation {
        return Err(format!("it goes to {}, its header says {}", applied.index, header.generation));
    }
    Ok(Loaded { state, applied, members: stored })
}

/// Writes a snapshot, twice, and removes older ones. Blocks. If only its copy cannot be written it counts nevertheless: whoever looks at the disk later
/// makes one ([`look`]).
///
/// The log is cut behind it, so its name has to survive: if a sync of the folder has failed meanwhile that somebody else had asked for, nobody will ever know of that
/// name, and it is made once more.
pub(crate) fn write(folder: &Folder, index: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > BYTES_MAX {
        // In its place would go what it is made of, and nobody could start any more. What was there before stays, with all entries since.
        let message = format!(
            "the state of the cluster takes {} bytes in a snapshot, the limit is {BYTES_MAX}; nothing is lost, and no start could read more: run a version of \
             kera with a higher limit",
            bytes.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let (path, disk) = (path_of(index), &**folder.disk());
    let failures = folder.failures();
    disk.replace_unsynced(&path, bytes)?;
    if folder.sync()? != failures {
        folder.replace(&path, bytes)?;
    }
    // Nobody relies on the copy's name.
    let copied = write_copy(disk, &path, bytes).and_then(|copy| copy.sync_data()).and_then(|()| folder.sync());
    match copied {
        Err(error) if has_no_room(&error) => return Err(error),
        Err(error) => tracing::warn!(path, %error, "a snapshot of the coordinators is there once"),
        Ok(_) => {}
    }
    remove_before(disk, SUFFIX, index);
    Ok(())
}

pub(crate) fn path_of(index: u64) -> String {
    format!("{DIR}/{index:016}{SUFFIX}")
}

fn newest_path(disk: &dyn Disk) -> io::Result<Option<String>> {
    disk.create_dir_all(DIR)?;
    let numbers = disk.list(DIR)?;
    let newest = numbers.iter().filter_map(|name| number_of(name, SUFFIX)).max();
    Ok(newest.map(path_of))
}

/// The newest snapshot with its bytes. One that is made meanwhile has this one removed: it is there by then, and is read instead. Whoever writes is not waited
/// for: that may wait for room on the disk.
pub(crate) fn read_newest(disk: &dyn Disk) -> io::Result<Option<(Loaded, Vec<u8>)>> {
    let mut newest = newest_path(disk)?;
    let both = loop {
        let Some(path) = &newest else { return Ok(None) };
        match read_twice(disk, path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let next = newest_path(disk)?;
                if next == newest {
                    return Err(error);
                }
                newest = next;
            }
            read => break read?,
        }
    };
    let (loaded, is_copied) = both.read_back(0, decode, |_| true).map_err(io::Error::other)?;
    Ok(Some((loaded, if is_copied { both.copy } else { both.file })))
}

/// The newest snapshot, for a start: both are there behind it, if the disk takes it, and its name survives a power cut.
///
/// The log is cut behind it, and stays so: nothing else may have what was in front. A kill, or a disk that refuses, may come between the rename that gives it its name and the sync of
/// the directory, and who finds the name then finds what a power cut takes. A copy is written behind that sync ([`write()`], [`look`]), so where the two are the same the name is there for good, but
/// for what builds before have written, which did not wait for the sync: there it is synced. Where they are not, nobody knows whether a sync has failed, and another one would say nothing of the
/// name: it is [made once more](name_again).
pub(crate) fn newest(folder: &Folder) -> Result<Option<Loaded>, OpenError> {
    let disk = &**folder.disk();
    let at = |path: &str, error| OpenError::Disk { path: path.to_owned(), error };
    let Some(path) = newest_path(disk).map_err(|error| at(DIR, error))? else { return Ok(None) };
    let both = read_twice(disk, &path, BYTES_MAX).map_err(|error| at(&path, error))?;
    let damaged = |reason| OpenError::Damaged { path: path.clone(), offset: 0, reason };
    let (loaded, is_copied) = both.read_back(0, decode, |_| true).map_err(damaged)?;
    name_again(folder, &path, &both, is_copied).map_err(|error| at(DIR, error))?;
    if let Err(error) = mend(folder, &path, &both, is_copied) {
        tracing::warn!(path, %error, "a snapshot of the coordinators is there once; the next one is written twice");
    }
    Ok(Some(loaded))
}

/// Has the name of a snapshot survive, of which there may be no copy because a sync of the directory has failed: what that could not write the system takes for written, so that the next one
/// works and proves nothing. What reads back of the file is written to another one, which gets the name, and has it for certain if that is synced. Where there is no room for it the
/// directory is synced all the same: a start does not wait for room.
///
/// If only the copy reads back, [`mend`] writes the file anew.
fn name_again(folder: &Folder, path: &str, both: &Both, is_copied: bool) -> io::Result<()> {
    if !is_copied && !both.are_same() {
        match folder.replace(path, &both.file) {
            Err(error) if has_no_room(&error) => {}
            named => return named,
        }
    }
    folder.sync().map(drop)
}

/// Writes anew what of the two is not what it should be; `is_copied`: only the copy reads back. Whether that was so. The name is there for good by then: a copy says that of
/// its file ([`newest`]).
fn mend(folder: &Folder, path: &str, both: &Both, is_copied: bool) -> io::Result<bool> {
    if is_copied {
        tracing::warn!(path, "a snapshot of the coordinators does not read back; its copy does");
        folder.replace(path, &both.copy)?;
    } else if !both.are_same() {
        write_copy(&**folder.disk(), path, &both.file)?;
    }
    Ok(!both.are_same())
}

/// The same of a node that runs: how many bytes the two have, and whether one had to be written anew.
pub(crate) fn look(folder: &Folder) -> io::Result<(u64, bool)> {
    let disk = &**folder.disk();
    let Some(path) = newest_path(disk)? else { return Ok((0, false)) };
    let both = match read_twice(disk, &path, BYTES_MAX) {
        // The next one has taken its place.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, false)),
        read => read?,
    };
    let (_, is_copied) = both.read_back(0, decode, |_| true).map_err(io::Error::other)?;
    if !both.are_same() {
        name_again(folder, &path, &both, is_copied)?;
    }
    Ok(((both.file.len() + both.copy.len()) as u64, mend(folder, &path, &both, is_copied)?))
}

/// Entries that make an empty state at this level the one that a single node's catalog holds, as far as the level knows it.
pub(crate) fn of_catalog(catalog: &kera_coordinator::catalog::Catalog, level: u32) -> Vec<ClusterEntry> {
    let entries = catalog.snapshot().into_iter();
    let known = |entry: CatalogEntry| if level >= level::SETTINGS { entry } else { entry.without_settings() };
    entries.map(known).map(ClusterEntry::Catalog).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use kera_env::{FaultyDisk, MemoryDisk};
    use kera_format::cluster::RaftPlace;

    use super::*;
    use crate::file::folder;

    /// Its name may be gone with the power, and the log would have been cut behind it.
    #[test]
    fn a_snapshot_whose_name_a_sync_of_somebody_else_may_have_lost_gets_it_once_more() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all(DIR).unwrap();
        let folder = folder(Arc::new(disk.clone()));
        let was_named_again = Arc::new(AtomicBool::new(false));
        let (broken, others, again) = (disk.clone(), Arc::clone(&folder), Arc::clone(&was_named_again));
        disk.once_named(&path_of(7), move || {
            broken.fail_sync_dir(1);
            assert!(others.sync().is_err());
            broken.once_named(&path_of(7), move || again.store(true, Ordering::Relaxed));
        });
        write(&folder, 7, &[1]).unwrap();
        assert!(was_named_again.load(Ordering::Relaxed));
    }

    /// The sync failed in a process that is over, and the one of whoever finds the name says nothing of it.
    #[test]
    fn a_snapshot_of_which_no_copy_says_that_its_name_was_synced_gets_it_once_more() {
        let place = log_id(&RaftPlace { term: 1, leader: 1, index: 7 });
        let alone = StoredMembers::new(Some(place), members(&[vec![1]], &[(1, "1".into())]));
        let bytes = encode([1; 16], &ClusterState::default(), place, &alone);
        for is_start in [true, false] {
            let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
            disk.create_dir_all(DIR).unwrap();
            let folder = || folder(Arc::new(disk.clone()));
            disk.fail_sync_dir(1);
            write(&folder(), 7, &bytes).unwrap_err();
            let was_named_again = Arc::new(AtomicBool::new(false));
            let again = Arc::clone(&was_named_again);
            disk.once_named(&path_of(7), move || again.store(true, Ordering::Relaxed));
            match is_start {
                true => assert_eq!(newest(&folder()).unwrap().map(|found| found.applied), Some(place)),
                false => assert!(look(&folder()).unwrap().1),
            }
            assert!(was_named_again.load(Ordering::Relaxed));
            assert!(read_twice(&disk, &path_of(7), BYTES_MAX).unwrap().are_same());
            // Builds before wrote the copy without waiting for the sync.
            disk.fail_sync_dir(1);
            assert!(newest(&folder()).is_err(), "the sync is asked for");
            assert!(newest(&folder()).unwrap().is_some());
        }
    }

    /// A start does not wait for room, and nothing is lost of what is there.
    #[test]
    fn a_snapshot_without_a_copy_is_gone_on_with_where_there_is_no_room_for_another() {
        let place = log_id(&RaftPlace { term: 1, leader: 1, index: 7 });
        let alone = StoredMembers::new(Some(place), members(&[vec![1]], &[(1, "1".into())]));
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all(DIR).unwrap();
        disk.replace(&path_of(7), &encode([1; 16], &ClusterState::default(), place, &alone)).unwrap();
        disk.set_space(Some(0));
        assert_eq!(newest(&folder(Arc::new(disk))).unwrap().map(|found| found.applied), Some(place));
    }

    #[test]
    fn a_snapshot_that_nobody_would_read_is_not_written_and_the_one_before_stays() {
        let disk = MemoryDisk::new();
        disk.create_dir_all(DIR).unwrap();
        let folder = folder(Arc::new(disk.clone()));
        write(&folder, 1, &[1]).unwrap();
        let error = write(&folder, 2, &vec![0; BYTES_MAX + 1]).unwrap_err().to_string();
        assert!(error.contains("the limit is 1073741824"), "{error}");
        assert_eq!(disk.list(DIR).unwrap(), ["0000000000000001.snapshot", "0000000000000001.snapshot.copy"]);
    }
}
