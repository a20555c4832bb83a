//! Counters of a virtual log, for metrics. Written by its writer, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::writer::Written;

/// What a virtual log has done since it was opened, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VirtualLogStats {
    /// Group commits: all that had arrived, made durable together.
    pub blocks: u64,
    /// Chunks made durable.
    pub chunks: u64,
    /// Bytes of chunks made durable.
    pub chunk_bytes: u64,
    /// Bytes of blocks made durable, padding included.
    pub block_bytes: u64,
    /// Of the bytes of chunks, those that went straight to their segments' containers.
    pub through_bytes: u64,
    /// Writes and syncs that failed.
    pub failures: u64,
    /// Microseconds spent in writes and syncs of blocks.
    pub disk_us: u64,
    /// The longest of them.
    pub disk_us_max: u64,
    /// References that wait.
    pub pending_references: u64,
    /// Bytes of chunks that wait.
    pub pending_bytes: u64,
    /// Files with chunks of segments that are neither stored nor gone, and the current one.
    pub files: u64,
    /// Bytes on disk: files and spares.
    pub file_bytes: u64,
    /// Whether appends are accepted.
    pub healthy: bool,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) blocks: AtomicU64,
    pub(crate) chunks: AtomicU64,
    pub(crate) chunk_bytes: AtomicU64,
    pub(crate) block_bytes: AtomicU64,
    pub(crate) through_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) disk_us: AtomicU64,
    pub(crate) disk_us_max: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
    /// What the writer has taken of the backlog and not written yet.
    pub(crate) held_references: AtomicU64,
    pub(crate) held_bytes: AtomicU64,
}

impl Counters {
    /// Only the writer adds, so plain loads and stores would do; `fetch_add` costs nothing at this rate.
    pub(crate) fn wrote(&self, written: &Written) {
        self.blocks.fetch_add(1, Relaxed);
        self.chunks.fetch_add(written.chunks, Relaxed);
        self.chunk_bytes.fetch_add(written.chunk_bytes, Relaxed);
        self.block_bytes.fetch_add(written.block_bytes, Relaxed);
        self.through_bytes.fetch_add(written.through_bytes, Relaxed);
        self.disk_us.fetch_add(written.disk_us, Relaxed);
        self.disk_us_max.fetch_max(written.disk_us, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> VirtualLogStats {
        VirtualLogStats {
            blocks: self.blocks.load(Relaxed),
            chunks: self.chunks.load(Relaxed),
            chunk_bytes: self.chunk_bytes.load(Relaxed),
            block_bytes: self.block_bytes.load(Relaxed),
            through_bytes: self.through_bytes.load(Relaxed),
            failures: self.failures.load(Relaxed),
            disk_us: self.disk_us.load(Relaxed),
            disk_us_max: self.disk_us_max.load(Relaxed),
            files: self.files.load(Relaxed),
            file_bytes: self.file_bytes.load(Relaxed),
            ..VirtualLogStats::default()
        }
    }
}
