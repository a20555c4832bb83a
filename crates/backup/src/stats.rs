//! Counters and sizes of a backup, for metrics and for the log.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a backup has done since it was opened, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupStats {
    /// Virtual logs of which it has blocks.
    pub logs: u64,
    /// Their files.
    pub files: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Blocks stored.
    pub blocks: u64,
    /// Bytes of blocks stored, padding included.
    pub block_bytes: u64,
    /// Writes that carried them: neighbouring blocks go in one.
    pub writes: u64,
    /// Those of them that went past the page cache.
    pub direct_writes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Writes and syncs that failed.
    pub failures: u64,
    /// Blocks that were refused because their node is fenced.
    pub fenced_blocks: u64,
    /// Bytes of blocks that are taken and not written yet, and of buffers kept for the next.
    pub queued_bytes: u64,
    /// Bytes of memory of what is known about the chunks in files that are not full.
    pub index_bytes: u64,
    /// Nodes that are fenced.
    pub fences: u64,
    /// Bytes of blocks that were read for who asked for them.
    pub read_bytes: u64,
    /// Those of them that were read many blocks at once, past the page cache.
    pub direct_read_bytes: u64,
    /// Blocks whose headers were read on the way to those that were asked for.
    pub passed_blocks: u64,
    /// Microseconds that reading took, with checks, of all threads that read.
    pub read_us: u64,
    /// Of that, on the way to the first block of each read.
    pub finding_us: u64,
    /// Of that, waiting for the disk past the page cache.
    pub direct_read_us: u64,
}

/// What is counted of reads.
#[derive(Default)]
pub(crate) struct ReadCounts {
    pub(crate) bytes: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) passed_blocks: AtomicU64,
    pub(crate) us: AtomicU64,
    pub(crate) finding_us: AtomicU64,
    pub(crate) direct_us: AtomicU64,
}

impl ReadCounts {
    pub(crate) fn tell(&self, stats: &mut BackupStats) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (stats.read_bytes, stats.direct_read_bytes) = (get(&self.bytes), get(&self.direct_bytes));
        stats.passed_blocks = get(&self.passed_blocks);
        (stats.read_us, stats.finding_us) = (get(&self.us), get(&self.finding_us));
        stats.direct_read_us = get(&self.direct_us);
    }
}
