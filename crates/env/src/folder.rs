//! A folder that several share, and what its syncs prove of the names in it.
//!
//! What a sync cannot write the system tells once, to whoever asked for that sync, and takes for written from then on: that another one works says nothing of the
//! names that were there before. So all who share a folder sync it through one of these, one at a time, and those that failed are counted. A name survives a loss of
//! power if a sync that began behind it has worked, and none has failed since the name began to be made. Of others nobody ever knows.
//!
//! Whose sync that is does not matter. So of those who wait for one that is under way the first syncs for all: its sync begins behind what each of them has made, and the
//! others find it done. The one that is under way when they come is nothing to them, however late it ends: it may have begun before their names were there.
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
    /// How often somebody has asked for a sync.
    asked: AtomicU64,
    /// Held from before a sync until it is counted: otherwise another one could work in between, and be believed, when this one has been told already what is lost.
    syncing: Mutex<Worked>,
}

/// The last sync of a folder that has worked.
#[derive(Clone, Copy, Debug, Default)]
struct Worked {
    /// How often somebody had asked for one when it began.
    asked: u64,
    /// How many had failed.
    failures: u64,
}

impl Folder {
    /// A folder of a disk, which nobody syncs by another way from here on.
    pub fn new(disk: Arc<dyn Disk>, path: &str) -> Folder {
        let (failures, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        Folder { disk, path: path.to_owned(), failures, asked, syncing: Mutex::default() }
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

    /// Syncs it, and returns how many syncs had failed then: names survive that were there when it was called, and began to be made when as many had. Waits for the one that is under way, and
    /// then has it done by whoever else has waited for that, if that works and no other one has failed since.
    pub fn sync(&self) -> io::Result<u64> {
        // Whoever finds this call counted comes behind all that was done before it.
        let call = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut worked = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = self.failures();
        if worked.asked >= call && worked.failures == failures {
            return Ok(failures);
        }
        let asked = self.asked.load(Ordering::Acquire);
        if let Err(error) = self.disk.sync_dir(&self.path) {
            self.failures.fetch_add(1, Ordering::AcqRel);
            return Err(error);
        }
        *worked = Worked { asked, failures };
        Ok(failures)
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
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::disk::{DirectIo, DiskFile};
    use crate::{FaultyDisk, MemoryDisk, OpenMode};

    /// What has to come at last has so long for it.
    const PATIENCE: Duration = Duration::from_secs(300);

    /// A disk of which each sync of a folder says that it has begun, and ends as it is told.
    #[derive(Debug)]
    struct Gate {
        inner: MemoryDisk,
        begun: Sender<()>,
        ends: Mutex<Receiver<io::Result<()>>>,
    }

    impl Disk for Gate {
        fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
            self.inner.open(path, mode, direct)
        }
        fn list(&self, dir: &str) -> io::Result<Vec<String>> {
            self.inner.list(dir)
        }
        fn remove(&self, path: &str) -> io::Result<()> {
            self.inner.remove(path)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.inner.rename(from, to)
        }
        fn create_dir_all(&self, dir: &str) -> io::Result<()> {
            self.inner.create_dir_all(dir)
        }
        fn sync_dir(&self, _: &str) -> io::Result<()> {
            self.begun.send(()).expect("the test waits for it");
            self.ends.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test says how it ends")
        }
        fn free_bytes(&self) -> io::Result<u64> {
            self.inner.free_bytes()
        }
        fn root(&self) -> &Path {
            self.inner.root()
        }
        fn direct_io(&self) -> DirectIo {
            self.inner.direct_io()
        }
    }

    /// A folder whose syncs end as the sender says, in turn; the receiver is told when one has begun.
    fn gated() -> (Arc<Folder>, Receiver<()>, Sender<io::Result<()>>) {
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let disk = Gate { inner: MemoryDisk::new(), begun, ends: Mutex::new(ends) };
        disk.create_dir_all("d").unwrap();
        (Arc::new(Folder::new(Arc::new(disk), "d")), begins, end)
    }

    /// Has another thread ask for a sync, and returns when it has: it is under way then, or waits.
    fn asks(folder: &Arc<Folder>) -> thread::JoinHandle<io::Result<u64>> {
        let (before, other) = (folder.asked.load(Ordering::Acquire), Arc::clone(folder));
        let asking = thread::spawn(move || other.sync());
        let began = Instant::now();
        while folder.asked.load(Ordering::Acquire) == before {
            assert!(began.elapsed() < PATIENCE, "it does not ask");
            thread::yield_now();
        }
        asking
    }

    #[test]
    fn one_sync_is_enough_for_all_who_came_before_it_began_and_for_nobody_else() {
        let (folder, begins, end) = gated();
        let first = asks(&folder);
        begins.recv_timeout(PATIENCE).unwrap();
        let waiting: Vec<_> = (0..4).map(|_| asks(&folder)).collect();
        end.send(Ok(())).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), 0);
        begins.recv_timeout(PATIENCE).expect("it had begun before the others came");
        let late = asks(&folder);
        end.send(Ok(())).unwrap();
        begins.recv_timeout(PATIENCE).expect("one came when it had begun");
        end.send(Ok(())).unwrap();
        for other in waiting.into_iter().chain([late]) {
            assert_eq!(other.join().unwrap().unwrap(), 0);
        }
        assert!(begins.try_recv().is_err(), "three are enough");
    }

    /// Who waited and was told of the failure is one, and the others must not take another one for theirs.
    #[test]
    fn a_sync_that_fails_is_enough_for_nobody_and_those_who_wait_learn_of_it() {
        let (folder, begins, end) = gated();
        let first = asks(&folder);
        begins.recv_timeout(PATIENCE).unwrap();
        let waiting: Vec<_> = (0..3).map(|_| asks(&folder)).collect();
        end.send(Ok(())).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), 0);
        begins.recv_timeout(PATIENCE).unwrap();
        end.send(Err(io::Error::other("what nobody else is told"))).unwrap();
        begins.recv_timeout(PATIENCE).expect("the next one syncs itself");
        end.send(Ok(())).unwrap();
        let told: Vec<_> = waiting.into_iter().map(|other| other.join().unwrap().ok()).collect();
        let told_of = |what: Option<u64>| told.iter().filter(|told| **told == what).count();
        assert_eq!((told_of(None), told_of(Some(1))), (1, 2), "{told:?}");
        assert!(begins.try_recv().is_err(), "it is enough for the last one");
    }

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
