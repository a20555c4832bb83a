//! A folder that several share, and what its syncs prove of the names in it.
//!
//! What a sync cannot write the system tells once, to whoever asked for that sync, and takes for written from then on: that another one works says nothing of the
//! names that were there before. So all who share a folder sync it through one of these, one at a time, and those that failed are counted. A name survives a loss of
//! power if a sync that began behind it has worked, and none has failed since the name began to be made. Of others nobody ever knows.
//!
//! It counts what one process was told. A start takes what it finds.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::disk::Disk;
use crate::twice::write_copy;

/// See the module. Called from threads that may block.
#[derive(Debug)]
pub struct Folder {
    disk: Arc<dyn Disk>,
    path: String,
    /// Syncs of it that failed. Counted up under `syncing`.
    failures: AtomicU64,
    /// Held from before a sync until it is counted: otherwise another one could work in between, and be believed, when this one has been told already what is lost.
    syncing: Mutex<()>,
}

impl Folder {
    /// A folder of a disk, which nobody syncs by another way from here on.
    pub fn new(disk: Arc<dyn Disk>, path: &str) -> Folder {
        Folder { disk, path: path.to_owned(), failures: AtomicU64::new(0), syncing: Mutex::new(()) }
    }

    /// The disk that it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Where it is, below the disk's root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// How many syncs of it have failed. To be asked before a name is made, for [`sync_since`](Folder::sync_since). Waits for nothing.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Syncs it, and returns how many syncs had failed then: names survive that were there when it was called, and began to be made when as many had.
    pub fn sync(&self) -> io::Result<u64> {
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = self.disk.sync_dir(&self.path);
        if synced.is_err() {
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
        synced.map(|()| self.failures())
    }

    /// Syncs it, for names that were made after so many syncs [had failed](Folder::failures). An error if another one has failed since, too.
    pub fn sync_since(&self, failures: u64) -> io::Result<()> {
        match self.sync()? {
            now if now == failures => Ok(()),
            _ => Err(io::Error::other("a sync of its folder has failed since it was made")),
        }
    }

    /// As [`Disk::replace`], of a file in it.
    pub fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let failures = self.failures();
        self.disk.replace_unsynced(path, bytes)?;
        self.sync_since(failures)
    }

    /// As [`replace_twice`](crate::replace_twice), of a file in it.
    pub fn replace_twice(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace(path, bytes)?;
        let failures = self.failures();
        write_copy(&*self.disk, path, bytes)?.sync_data()?;
        self.sync_since(failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyDisk, MemoryDisk, OpenMode};

    /// Whose sync fails is told, and who made a name before that is not told by the system.
    #[test]
    fn a_sync_that_works_behind_one_that_failed_proves_nothing_of_names_that_were_there() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all("d").unwrap();
        let folder = Folder::new(Arc::new(disk.clone()), "d");
        let before = folder.failures();
        disk.open("d/a", OpenMode::Create, false).unwrap();
        disk.set_broken(true);
        assert!(folder.sync().is_err(), "somebody else's");
        disk.set_broken(false);
        assert!(folder.sync_since(before).is_err());
        assert!(folder.sync_since(before).is_err(), "it is never known");
        let since = folder.failures();
        disk.open("d/b", OpenMode::Create, false).unwrap();
        folder.sync_since(since).unwrap();
        folder.replace("d/c", b"new").unwrap();
        assert_eq!(disk.read_all("d/c", 9).unwrap(), b"new");
        assert_eq!((folder.path(), folder.sync().unwrap()), ("d", 1));
    }

    #[test]
    fn what_is_replaced_is_not_believed_if_a_sync_of_somebody_else_has_failed_meanwhile() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all("d").unwrap();
        let folder = Arc::new(Folder::new(Arc::new(disk.clone()), "d"));
        for path in ["d/a", "d/a.copy"] {
            let (broken, others) = (disk.clone(), Arc::clone(&folder));
            disk.once_named(path, move || {
                broken.fail_sync_dir(1);
                assert!(others.sync().is_err(), "somebody else's");
            });
            assert!(folder.replace_twice("d/a", b"new").is_err(), "{path}");
            folder.replace_twice("d/a", b"new").unwrap();
        }
        assert_eq!(folder.failures(), 2);
    }
}
