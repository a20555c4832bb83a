//! What the store and its disks are doing, for metrics, for the admin API and for whoever asks why writing stopped.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_env::DirectIo;

/// Whether a disk is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskState {
    /// It is.
    Working,
    /// There is no room on it; it is tried again every now and then. Reading goes on.
    Full,
    /// Writing to it failed; it is set aside and tried again every now and then. Reading goes on as far as it can.
    Failed,
}

/// One disk.
#[derive(Clone, Debug)]
pub struct DiskStatus {
    /// Where its tree is.
    pub path: PathBuf,
    /// Whether it is written to.
    pub state: DiskState,
    /// What the disk said when it last failed to write, with the time in milliseconds since 1970. Stays until a write
    /// succeeds.
    pub error: Option<(String, i64)>,
    /// Whether I/O goes past the page cache, and if not, why.
    pub direct_io: DirectIo,
    /// Container files.
    pub containers: u64,
    /// Segments in them that have not been released.
    pub segments: u64,
    /// Bytes of those, in whole pages.
    pub segment_bytes: u64,
    /// Counters since the start.
    pub counters: DiskCounts,
}

/// What a disk has done since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounts {
    /// Segments written and synced.
    pub written_segments: u64,
    /// Bytes of those, without padding.
    pub written_bytes: u64,
    /// Batches that they were written in: one sync each.
    pub batches: u64,
    /// Batches that failed.
    pub write_errors: u64,
    /// Segments read back.
    pub loaded_segments: u64,
    /// Bytes of those, without padding.
    pub loaded_bytes: u64,
    /// Reads that they were read with.
    pub reads: u64,
    /// Segments that could not be read.
    pub read_errors: u64,
    /// Segments that were read and are not what was written.
    pub corrupt_segments: u64,
    /// Segments released.
    pub released_segments: u64,
    /// Releases that failed and are tried again.
    pub release_errors: u64,
}

/// The store.
#[derive(Clone, Debug)]
pub struct StoreStatus {
    /// Each disk.
    pub disks: Vec<DiskStatus>,
    /// Closed segments that are not on disk yet.
    pub dirty_segments: u64,
    /// Bytes of memory that they take.
    pub dirty_bytes: u64,
    /// Segments that are on disk and in memory: they can be evicted at once.
    pub clean_segments: u64,
    /// Bytes of memory that they take.
    pub clean_bytes: u64,
    /// Segments that wait to be read.
    pub loads_waiting: u64,
    /// Segments evicted since the start.
    pub evicted_segments: u64,
    /// Bytes of memory of those.
    pub evicted_bytes: u64,
    /// What was wrong with the last segment that could not be loaded.
    pub load_error: Option<String>,
}

impl StoreStatus {
    /// Whether closed segments can be written to some disk.
    pub fn can_write(&self) -> bool {
        self.disks.iter().any(|disk| disk.state == DiskState::Working)
    }
}

macro_rules! counters {
    ($($name:ident),+ $(,)?) => {
        /// The counters behind [`DiskCounts`]. None orders anything, so all accesses are relaxed.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),+ }
        impl Counters {
            pub(crate) fn get(&self) -> DiskCounts {
                DiskCounts { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}
counters!(
    written_segments,
    written_bytes,
    batches,
    write_errors,
    loaded_segments,
    loaded_bytes,
    reads,
    read_errors,
    corrupt_segments,
    released_segments,
    release_errors,
);

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
