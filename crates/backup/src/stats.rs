//! Counters and sizes of a backup, for metrics.

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
}
