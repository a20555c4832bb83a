//! The disks of a backup: which one takes the next file, and which ones are left alone for a while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_env::Disk;
use kera_protocol::Status;
use parking_lot::Mutex;

use crate::error::BackupError;
use crate::files::{DiskWriter, WriterCounts};
use crate::names::Names;
use crate::queue::Queue;
use crate::syncing::Full;

/// The folder of copies on every disk.
pub(crate) const FOLDER: &str = "replicas";

/// A disk at which the writer has been for so long with one write or sync takes no more logs. Owners replace a backup that has stored nothing
/// for as long.
const STANDS_STILL_US: u64 = 500_000;

/// A disk, what waits for it, and the state of its writer.
pub(crate) struct BackupDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) queue: Queue,
    pub(crate) writer: Mutex<DiskWriter>,
    pub(crate) names: Arc<Names>,
    /// No file is begun on it before this moment on the monotonic clock.
    retry_at_us: AtomicU64,
    /// Bytes of blocks that were written to it.
    pub(crate) written_bytes: AtomicU64,
    /// Bytes of blocks that were read from it for some streamlets.
    pub(crate) read_bytes: AtomicU64,
    pub(crate) full: Full,
    pub(crate) counts: Arc<WriterCounts>,
    /// Since when its writer has come no further, on the monotonic clock; 0 while it has nothing to do.
    busy_since_us: AtomicU64,
    trouble: Mutex<Option<BackupError>>,
    /// Something failed, and nothing was written to it or given back of it since.
    fails: AtomicBool,
    /// It did not let go of a file, nor of any since.
    keeps_files: AtomicBool,
}

impl BackupDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, writer: DiskWriter) -> BackupDisk {
        let (retry_at_us, written_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (counts, names, busy_since_us) = (writer.counts(), writer.names(), AtomicU64::new(0));
        let (writer, trouble) = (Mutex::new(writer), Mutex::new(None));
        let (queue, full) = (Queue::default(), Full::default());
        BackupDisk {
            disk,
            queue,
            writer,
            names,
            retry_at_us,
            written_bytes,
            read_bytes: AtomicU64::new(0),
            full,
            counts,
            busy_since_us,
            trouble,
            fails: AtomicBool::new(false),
            keeps_files: AtomicBool::new(false),
        }
    }

    /// Its writer begins something: a write or a sync.
    pub(crate) fn comes_further(&self, now_us: u64) {
        self.busy_since_us.store(now_us.max(1), Ordering::Release);
    }

    /// Its writer has nothing more to do.
    pub(crate) fn is_done(&self) {
        self.busy_since_us.store(0, Ordering::Release);
    }

    /// For how long its writer has been with what it does, in microseconds.
    pub(crate) fn busy_us(&self, now_us: u64) -> u64 {
        match self.busy_since_us.load(Ordering::Acquire) {
            0 => 0,
            since_us => now_us.saturating_sub(since_us),
        }
    }

    /// What is wrong if it stands still: neither done nor failed is something that was begun long ago, and nobody knows when it will be.
    pub(crate) fn stands_still(&self, now_us: u64) -> Option<BackupError> {
        let for_us = self.busy_us(now_us);
        let root = self.disk.root().display();
        (for_us >= STANDS_STILL_US).then(|| {
            BackupError::new(Status::DiskFailed, format!("{root}: a write has taken {} ms so far", for_us / 1000))
        })
    }

    pub(crate) fn is_well(&self, now_us: u64) -> bool {
        self.retry_at_us.load(Ordering::Acquire) <= now_us
    }

    /// Something failed: nothing is begun on it for a while.
    pub(crate) fn failed(&self, error: &io::Error, what: &str, retry_at_us: u64) -> BackupError {
        let error = BackupError::disk(&format!("{}/{what}", self.disk.root().display()), error);
        if self.retry_at_us.swap(retry_at_us, Ordering::AcqRel) < retry_at_us {
            tracing::warn!("{error}");
        }
        self.fails.store(true, Ordering::Release);
        *self.trouble.lock() = Some(error.clone());
        error
    }

    /// Something was written to it.
    pub(crate) fn works(&self) {
        self.fails.store(false, Ordering::Release);
    }

    /// It let go of a file.
    pub(crate) fn lets_go(&self) {
        self.keeps_files.store(false, Ordering::Release);
        self.works();
    }

    /// It did not let go of a file. Returns whether something had failed before, and nothing worked since: that holds for a disk to which nothing is
    /// written any more as well, although it may be tried again. Says so once, for it is asked again each time that anything is given back.
    pub(crate) fn keeps(&self, error: &io::Error) -> bool {
        if !self.keeps_files.swap(true, Ordering::AcqRel) {
            tracing::warn!(disk = %self.disk.root().display(), %error, "files of copies are given back later");
        }
        self.fails.swap(true, Ordering::AcqRel)
    }

    /// What was wrong with it last.
    pub(crate) fn trouble(&self) -> BackupError {
        let unknown = || BackupError::new(Status::DiskFailed, "the backup's disk fails");
        self.trouble.lock().clone().unwrap_or_else(unknown)
    }
}

/// Where a run of blocks goes: of the disks that are well, the one with the fewest. `Err`: none is, and why.
pub(crate) fn choose(disks: &[BackupDisk], runs: &[usize], now_us: u64) -> Result<usize, BackupError> {
    let well =
        (0..disks.len()).filter(|&disk| disks[disk].is_well(now_us) && disks[disk].stands_still(now_us).is_none());
    let why = || disks.iter().find_map(|disk| disk.stands_still(now_us)).unwrap_or_else(|| disks[0].trouble());
    well.min_by_key(|&disk| runs[disk]).ok_or_else(why)
}
