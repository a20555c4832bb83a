//! A disk that fails on demand: full, broken, tearing, rotting, slow. For tests and the simulator.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::disk::{DirectIo, Disk, DiskFile, OpenMode};

/// What a disk takes as a whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// Any disk, with the faults that a test plans. A clone is the same disk.
#[derive(Debug, Clone)]
pub struct FaultyDisk {
    inner: Arc<dyn Disk>,
    plan: Arc<Mutex<Plan>>,
    stuck: Arc<Condvar>,
}

#[derive(Debug, Default)]
struct Plan {
    space_bytes: Option<u64>,
    /// What of that is not taken ahead.
    kept_bytes: u64,
    writes: u64,
    syncs: u64,
    reads: u64,
    removes: u64,
    dir_syncs: u64,
    fail_write: Option<u64>,
    tear_write: Option<u64>,
    fail_sync: Option<u64>,
    fail_read: Option<u64>,
    fail_remove: Option<u64>,
    fail_sync_dir: Option<u64>,
    is_broken: bool,
    flips: Vec<(String, u64, u8)>,
    unreadable: Vec<(String, u64)>,
    unopenable: Vec<String>,
    /// What is said of those.
    lost_errno: Option<i32>,
    /// What is said to whoever opens anything.
    open_errno: Option<i32>,
    opens: u64,
    /// The page cache has all of it.
    is_cached: bool,
    slow: Option<Duration>,
    slow_syncs: Option<Duration>,
    is_stuck: bool,
    /// Reads, writes and syncs that wait because it is.
    waiting: u64,
    /// What is done when a file gets its name.
    named: Option<(String, Act)>,
}

/// What a test does in the midst of something.
struct Act(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Act")
    }
}

impl Plan {
    fn lost(&self) -> io::Error {
        self.lost_errno.map_or_else(eio, io::Error::from_raw_os_error)
    }
}

fn eio() -> io::Error {
    Errno::IO.into()
}

fn enospc() -> io::Error {
    Errno::NOSPC.into()
}

impl FaultyDisk {
    /// A disk that does what `inner` does until something is planned.
    pub fn new(inner: Arc<dyn Disk>) -> FaultyDisk {
        FaultyDisk { inner, plan: Arc::default(), stuck: Arc::default() }
    }

    /// From now on only this many bytes can be written, wherever they go, until space is set again; `None` lifts the
    /// limit. What is removed does not give space back by itself. Of a write of whole sectors none is written in part.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.plan().space_bytes = bytes;
    }

    /// Of the [space](FaultyDisk::set_space) so much is not taken ahead by anybody, as [`RealDisk::keep_free`](crate::RealDisk::keep_free) has it; whoever writes without that may use it.
    pub fn set_kept_free(&self, bytes: u64) {
        self.plan().kept_bytes = bytes;
    }

    /// The `nth` write from now on (1 is the next) fails with an I/O error and writes nothing.
    pub fn fail_write(&self, nth: u64) {
        let mut plan = self.plan();
        plan.fail_write = Some(plan.writes + nth);
    }

    /// The `nth` write from now on writes the first half of its bytes and fails with an I/O error. Of a write of whole
    /// sectors none is written in part.
    pub fn tear_write(&self, nth: u64) {
        let mut plan = self.plan();
        plan.tear_write = Some(plan.writes + nth);
    }

    /// The `nth` sync from now on fails with an I/O error.
    pub fn fail_sync(&self, nth: u64) {
        let mut plan = self.plan();
        plan.fail_sync = Some(plan.syncs + nth);
    }

    /// The `nth` read from now on fails with an I/O error.
    pub fn fail_read(&self, nth: u64) {
        let mut plan = self.plan();
        plan.fail_read = Some(plan.reads + nth);
    }

    /// The `nth` removal of a file from now on fails with an I/O error and removes nothing.
    pub fn fail_remove(&self, nth: u64) {
        let mut plan = self.plan();
        plan.fail_remove = Some(plan.removes + nth);
    }

    /// The `nth` sync of a directory from now on fails with an I/O error.
    pub fn fail_sync_dir(&self, nth: u64) {
        let mut plan = self.plan();
        plan.fail_sync_dir = Some(plan.dir_syncs + nth);
    }

    /// Does something as soon as `path` has been made, or something was renamed to it, once and before whoever named it goes on.
    pub fn once_named(&self, path: &str, act: impl FnOnce() + Send + 'static) {
        self.plan().named = Some((path.to_owned(), Act(Box::new(act))));
    }

    /// While it is broken, everything fails with an I/O error.
    pub fn set_broken(&self, broken: bool) {
        self.plan().is_broken = broken;
    }

    /// Reads of `path` see this bit flipped, until [`heal_reads`](FaultyDisk::heal_reads).
    pub fn flip_bit_on_read(&self, path: &str, offset: u64, bit: u8) {
        self.plan().flips.push((path.to_owned(), offset, bit % 8));
    }

    /// Reads of this byte of `path` fail with an I/O error, or [what else](FaultyDisk::set_lost_errno) was said, until [`heal_reads`](FaultyDisk::heal_reads).
    pub fn set_unreadable(&self, path: &str, offset: u64) {
        self.plan().unreadable.push((path.to_owned(), offset));
    }

    /// Opening `path` fails with an I/O error, or [what else](FaultyDisk::set_lost_errno) was said, until [`heal_reads`](FaultyDisk::heal_reads).
    pub fn set_unopenable(&self, path: &str) {
        self.plan().unopenable.push(path.to_owned());
    }

    /// What cannot be read or opened fails with this error number of the system, from now on.
    pub fn set_lost_errno(&self, errno: i32) {
        self.plan().lost_errno = Some(errno);
    }

    /// From now on nothing can be opened, and this is the error number of the system; `None`: everything can.
    pub fn set_open_errno(&self, errno: Option<i32>) {
        self.plan().open_errno = errno;
    }

    /// Files that were to be opened so far, those that were not included.
    pub fn opens(&self) -> u64 {
        self.plan().opens
    }

    /// Takes back all flipped bits, and what cannot be read or opened.
    pub fn heal_reads(&self) {
        let mut plan = self.plan();
        plan.flips.clear();
        plan.unreadable.clear();
        plan.unopenable.clear();
    }

    /// Everything that was planned and has not happened will not, and what was broken works.
    pub fn heal(&self) {
        let mut plan = self.plan();
        let Plan { writes, syncs, reads, removes, dir_syncs, opens, waiting, .. } = *plan;
        *plan = Plan { writes, syncs, reads, removes, dir_syncs, opens, waiting, ..Plan::default() };
        self.stuck.notify_all();
    }

    /// Every read, write and sync takes this much longer.
    pub fn set_slow(&self, by: Option<Duration>) {
        self.plan().slow = by;
    }

    /// Every sync takes this much longer.
    pub fn set_slow_syncs(&self, by: Option<Duration>) {
        self.plan().slow_syncs = by;
    }

    /// While it is stuck, no read, write or sync comes to its end.
    pub fn set_stuck(&self, stuck: bool) {
        self.plan().is_stuck = stuck;
        self.stuck.notify_all();
    }

    /// From now on all files [are in the page cache](DiskFile::is_cached), or none is.
    pub fn set_cached(&self, cached: bool) {
        self.plan().is_cached = cached;
    }

    /// Blocks until a read, a write or a sync waits because the disk is stuck.
    pub fn wait_until_stuck(&self) {
        let waits = self.stuck.wait_while(self.plan(), |plan| plan.waiting == 0);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes, syncs and reads so far, those that failed included.
    pub fn counts(&self) -> (u64, u64, u64) {
        let plan = self.plan();
        (plan.writes, plan.syncs, plan.reads)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, path: &str) {
        let named = self.plan().named.take_if(|(of, _)| of.as_str() == path);
        if let Some((_, Act(act))) = named {
            act();
        }
    }

    fn works(&self) -> io::Result<()> {
        if self.plan().is_broken { Err(eio()) } else { Ok(()) }
    }

    fn wait(&self) {
        let slow = self.plan().slow;
        if let Some(by) = slow {
            std::thread::sleep(by);
        }
        let mut plan = self.plan();
        if plan.is_stuck {
            plan.waiting += 1;
            self.stuck.notify_all();
            let plan = self.stuck.wait_while(plan, |plan| plan.is_stuck);
            plan.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
        }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        self.works()?;
        {
            let mut plan = self.plan();
            plan.opens += 1;
            if let Some(errno) = plan.open_errno {
                return Err(io::Error::from_raw_os_error(errno));
            }
            if plan.unopenable.iter().any(|unopenable| unopenable == path) {
                return Err(plan.lost());
            }
        }
        let inner = self.inner.open(path, mode, direct)?;
        if mode == OpenMode::Create {
            self.named(path);
        }
        Ok(Arc::new(FaultyFile { disk: self.clone(), path: path.to_owned(), inner }))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.works()?;
        self.inner.list(dir)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.works()?;
        {
            let mut plan = self.plan();
            plan.removes += 1;
            if plan.fail_remove == Some(plan.removes) {
                return Err(eio());
            }
        }
        self.inner.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.works()?;
        self.inner.rename(from, to)?;
        self.named(to);
        Ok(())
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.works()?;
        self.inner.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.works()?;
        {
            let mut plan = self.plan();
            plan.dir_syncs += 1;
            if plan.fail_sync_dir == Some(plan.dir_syncs) {
                return Err(eio());
            }
        }
        self.inner.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.works()?;
        let free = self.inner.free_bytes()?;
        let plan = self.plan();
        Ok(plan.space_bytes.map_or(free, |space| space.min(free)).saturating_sub(plan.kept_bytes))
    }

    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn direct_io(&self) -> DirectIo {
        self.inner.direct_io()
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    path: String,
    inner: Arc<dyn DiskFile>,
}

/// How much of a write gets through.
enum Through {
    All,
    First(u64, io::Error),
}

impl FaultyFile {
    fn plan_write(&self, offset: u64, bytes: u64) -> Through {
        match self.plan_through(bytes) {
            // No disk takes a part of a sector.
            Through::First(first, error) if (offset | bytes).is_multiple_of(SECTOR_BYTES) => {
                Through::First(first - first % SECTOR_BYTES, error)
            }
            through => through,
        }
    }

    fn plan_through(&self, bytes: u64) -> Through {
        let mut plan = self.disk.plan();
        plan.writes += 1;
        if plan.is_broken || plan.fail_write == Some(plan.writes) {
            return Through::First(0, eio());
        }
        if plan.tear_write == Some(plan.writes) {
            return Through::First(bytes / 2, eio());
        }
        match plan.space_bytes {
            Some(space) if space < bytes => {
                plan.space_bytes = Some(0);
                Through::First(space, enospc())
            }
            Some(space) => {
                plan.space_bytes = Some(space - bytes);
                Through::All
            }
            None => Through::All,
        }
    }
}

impl DiskFile for FaultyFile {
    fn write_vectored_at(&self, mut offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.disk.wait();
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let (mut left, error) = match self.plan_write(offset, bytes) {
            Through::All => return self.inner.write_vectored_at(offset, parts),
            Through::First(bytes, error) => (bytes as usize, error),
        };
        for part in parts {
            let many = left.min(part.len());
            self.inner.write_at(offset, &part[..many])?;
            left -= many;
            offset += many as u64;
        }
        Err(error)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.disk.wait();
        {
            let mut plan = self.disk.plan();
            plan.reads += 1;
            if plan.is_broken || plan.fail_read == Some(plan.reads) {
                return Err(eio());
            }
        }
        let read = self.inner.read_at(offset, bytes)?;
        let is_within = |at: &u64| (offset..offset + read as u64).contains(at);
        let plan = self.disk.plan();
        if plan.unreadable.iter().any(|(path, at)| *path == self.path && is_within(at)) {
            return Err(plan.lost());
        }
        for (path, at, bit) in &plan.flips {
            if *path == self.path && is_within(at) {
                bytes[(at - offset) as usize] ^= 1 << bit;
            }
        }
        Ok(read)
    }

    fn is_cached(&self, _offset: u64, _bytes: u64) -> bool {
        self.disk.plan().is_cached
    }

    fn sync_data(&self) -> io::Result<()> {
        let slow = self.disk.plan().slow_syncs;
        if let Some(by) = slow {
            std::thread::sleep(by);
        }
        self.disk.wait();
        {
            let mut plan = self.disk.plan();
            plan.syncs += 1;
            if plan.is_broken || plan.fail_sync == Some(plan.syncs) {
                return Err(eio());
            }
        }
        self.inner.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.works()?;
        self.inner.set_len(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.disk.works()?;
        {
            let plan = self.disk.plan();
            if plan.space_bytes.is_some_and(|space| space < bytes.saturating_add(plan.kept_bytes)) {
                return Err(enospc());
            }
        }
        self.inner.allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.disk.works()?;
        self.inner.punch_hole(offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.works()?;
        self.inner.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDisk;

    fn file() -> (FaultyDisk, Arc<dyn DiskFile>) {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let file = disk.open("f", OpenMode::Create, true).unwrap();
        (disk, file)
    }

    #[test]
    fn full_after_n_bytes_until_space_is_set() {
        let (disk, file) = file();
        disk.set_space(Some(10));
        file.write_at(0, b"123456").unwrap();
        let parts = [IoSlice::new(b"78"), IoSlice::new(b"9abcd")];
        assert_eq!(file.write_vectored_at(6, &parts).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read_all("f", 100).unwrap(), b"123456789a");
        assert_eq!(disk.free_bytes().unwrap(), 0);
        assert_eq!(file.allocate(0, 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.set_space(None);
        file.write_vectored_at(6, &parts).unwrap();
        assert_eq!(disk.read_all("f", 100).unwrap(), b"123456789abcd");
    }

    #[test]
    fn what_is_kept_free_is_not_taken_ahead_and_can_be_written() {
        let (disk, file) = file();
        disk.set_kept_free(100);
        disk.set_space(Some(110));
        assert_eq!(file.allocate(0, 11).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.free_bytes().unwrap(), 10);
        file.allocate(0, 10).unwrap();
        file.write_at(0, &[1; 110]).unwrap();
        assert_eq!(file.write_at(110, &[1]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.free_bytes().unwrap(), 0);
    }

    #[test]
    fn whole_sectors_are_never_written_in_part() {
        let (disk, file) = file();
        file.write_at(0, &[1; 4 * 512]).unwrap();
        disk.set_space(Some(804));
        assert!(file.write_at(0, &[2; 4 * 512]).is_err());
        let back = disk.read_all("f", 4 * 512).unwrap();
        assert_eq!(back, [vec![2; 512], vec![1; 3 * 512]].concat());
        disk.set_space(None);
        disk.tear_write(1);
        assert!(file.write_at(512, &[3; 3 * 512]).is_err());
        let back = disk.read_all("f", 4 * 512).unwrap();
        assert_eq!(back, [vec![2; 512], vec![3; 512], vec![1; 2 * 512]].concat());
    }

    #[test]
    fn nth_write_sync_read_and_removal_fail_once() {
        let (disk, file) = file();
        disk.fail_write(2);
        file.write_at(0, b"one").unwrap();
        assert!(file.write_at(0, b"two").is_err());
        file.write_at(0, b"six").unwrap();
        disk.tear_write(1);
        assert!(file.write_at(3, b"abcd").is_err());
        disk.fail_sync(1);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.fail_read(1);
        assert!(disk.read_all("f", 100).is_err());
        assert_eq!(disk.read_all("f", 100).unwrap(), b"sixab");
        assert_eq!(disk.counts(), (4, 2, 2));
        disk.fail_remove(1);
        assert!(disk.remove("f").is_err());
        disk.remove("f").unwrap();
    }

    #[test]
    fn flipped_bits_are_seen_by_reads_only() {
        let (disk, file) = file();
        file.write_at(0, &[0; 8]).unwrap();
        disk.flip_bit_on_read("f", 5, 3);
        let mut back = [0; 4];
        assert_eq!(file.read_at(4, &mut back).unwrap(), 4);
        assert_eq!(back, [0, 8, 0, 0]);
        disk.heal_reads();
        assert_eq!(disk.read_all("f", 8).unwrap(), [0; 8]);
        disk.set_broken(true);
        assert!(disk.list("").is_err() && file.len().is_err() && file.write_at(0, b"x").is_err());
    }
}
