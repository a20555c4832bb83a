//! All streams of a node, and everything that is done to them from outside a lane.

use std::sync::Arc;

use kera_format::{SegmentId, StreamId, StreamOptions};

use crate::arena::{Arena, ArenaFull, ArenaStats, LoadBuffer};
use crate::attach::{AttachedSegment, RecoveryReport, RestoreError, Restored};
use crate::segment::Segment;
use crate::sink::SinkDirectory;
use crate::storage::{Location, SegmentStore, StoredSegment};
use crate::stream::Stream;
use crate::waiters::{Observer, SpaceVersion};

/// Settings of the log. The defaults work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Producers that a lane remembers for deduplication; the one that was silent longest is forgotten first.
    pub producers_per_lane_max: usize,
    /// A segment is made for about this many milliseconds of its lane's rate.
    pub segment_fill_ms: u32,
    /// A segment takes at most one part in this many of the arena.
    pub segment_arena_share: u32,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { producers_per_lane_max: 10_000, segment_fill_ms: 500, segment_arena_share: 64 }
    }
}

/// Why a stream could not be made or changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// There is one with this id.
    #[error("stream {0} exists")]
    Exists(StreamId),
    /// There is none with this id.
    #[error("stream {0} does not exist")]
    Unknown(StreamId),
    /// Options that are wrong, or that cannot be changed while the stream lives.
    #[error("{0}")]
    Options(String),
}

/// Counters of the log since it was made, and what it holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogStats {
    /// The arena.
    pub arena: ArenaStats,
    /// Streams.
    pub streams: u64,
    /// Lanes that were ever used.
    pub lanes: u64,
    /// Chunks appended.
    pub chunks_appended: u64,
    /// Bytes appended.
    pub bytes_appended: u64,
    /// Records appended.
    pub records_appended: u64,
    /// Chunks that were there already.
    pub duplicates: u64,
    /// Appends that found the arena full.
    pub arena_full: u64,
    /// Segments opened.
    pub segments_opened: u64,
    /// Segments handed to the store.
    pub segments_closed: u64,
    /// Segments taken out of memory.
    pub segments_evicted: u64,
    /// Segments loaded back.
    pub segments_loaded: u64,
    /// Segments dropped by retention.
    pub segments_dropped: u64,
}

/// All streams of a node. Dropping it leaves the arena file for the next process to attach, whatever is in it.
pub struct Log {}

impl Log {
    /// An empty log over an arena. Time is passed to the calls that need it.
    pub fn new(config: LogConfig, arena: Arc<Arena>) -> Arc<Log> {
        let _ = (config, arena);
        todo!()
    }
    /// Where closed segments go. Once, before anything else; without it they stay in memory.
    pub fn set_store(&self, store: Arc<dyn SegmentStore>) {
        let _ = store;
        todo!()
    }
    /// What makes chunks of streams with durability `power` durable. Once, before such a stream is made or recovered.
    pub fn set_sinks(&self, sinks: Arc<dyn SinkDirectory>) {
        let _ = sinks;
        todo!()
    }
    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        todo!()
    }

    /// Makes a stream.
    pub fn create_stream(&self, id: StreamId, options: StreamOptions) -> Result<Arc<Stream>, StreamError> {
        let _ = (id, options);
        todo!()
    }
    /// Changes a stream's options. `streamlets` and `lanes` stay as they are. A change of durability closes open groups.
    pub fn alter_stream(&self, id: StreamId, options: StreamOptions) -> Result<(), StreamError> {
        let _ = (id, options);
        todo!()
    }
    /// Deletes a stream, while it is written and read: writers get [`crate::AppendError::Closed`], readers
    /// [`crate::ReadError::Deleted`], those that are still sending keep their bytes.
    pub fn delete_stream(&self, id: StreamId) -> Result<(), StreamError> {
        let _ = id;
        todo!()
    }
    /// A stream. The handle may be kept; see [`Stream::is_deleted`].
    pub fn stream(&self, id: StreamId) -> Option<Arc<Stream>> {
        let _ = id;
        todo!()
    }
    /// All streams.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        todo!()
    }

    /// First step of a start, after all streams of the catalog were created: what is on disk and what is in the arena are
    /// put into their lanes. Of a stream that does not exist it is given back.
    pub fn recover(&self, stored: Vec<StoredSegment>, attached: Vec<AttachedSegment>) -> RecoveryReport {
        let _ = (stored, attached);
        todo!()
    }
    /// Second step, for each chunk of the virtual logs in their order: puts it at its exact group, segment and position,
    /// and counts it as durable.
    pub fn restore_chunk(&self, chunk: &[u8]) -> Result<Restored, RestoreError> {
        let _ = chunk;
        todo!()
    }
    /// Last step: appends go on, in groups of `epoch`, which is higher than that of every group there is. Open groups that
    /// were attached go on too, all others are closed. Closed segments that are not on disk go to the store; chunks that
    /// are not durable yet go to their sink. Returns more of what is not as it should be.
    pub fn finish_recovery(&self, epoch: u32) -> Vec<String> {
        let _ = epoch;
        todo!()
    }

    /// The store has written a segment, synced.
    pub fn persisted(&self, id: SegmentId, at: Location) {
        let _ = (id, at);
        todo!()
    }
    /// Takes a stored segment out of memory; readers that hold it keep it. False if it is not in memory, not stored, or not
    /// known.
    pub fn evict(&self, id: SegmentId) -> bool {
        let _ = id;
        todo!()
    }
    /// A block to load a segment of `bytes` into. A part of the arena is kept for loads, so that writers cannot starve readers.
    pub fn allocate_for_load(&self, bytes: u64) -> Result<LoadBuffer, ArenaFull> {
        let _ = bytes;
        todo!()
    }
    /// The store has read a segment's image into `buffer`. It is verified, headers and payloads, on the calling thread, then
    /// readers are woken. What does not verify counts as [`Log::load_failed`], and is the error.
    pub fn loaded(&self, id: SegmentId, buffer: LoadBuffer) -> Result<(), String> {
        let _ = (id, buffer);
        todo!()
    }
    /// The store could not read a segment: waiting readers get [`crate::ReadError::LoadFailed`], the next read tries again.
    pub fn load_failed(&self, id: SegmentId, error: String) {
        let _ = (id, error);
        todo!()
    }
    /// Up to `count` segments that follow `id` in its lane, are on disk only and not on their way: they count as being
    /// loaded from here on, as after [`SegmentStore::load`]. For read-ahead.
    pub fn read_ahead(&self, id: SegmentId, count: usize) -> Vec<(SegmentId, Location)> {
        let _ = (id, count);
        todo!()
    }
    /// A segment that is in memory.
    pub fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let _ = id;
        todo!()
    }

    /// Calls `observer` once when the arena has got a block back since `seen`. False, and no call, if it has already: try
    /// again instead.
    pub fn wait_for_space(&self, seen: SpaceVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        let _ = (seen, observer, token);
        todo!()
    }

    /// Drops what the streams' options no longer keep. For the maintenance thread, about once a second. Returns the
    /// number of segments dropped.
    pub fn retain(&self, now_ms: i64) -> u64 {
        let _ = now_ms;
        todo!()
    }
    /// Closes open segments without an append for `idle_ms`, so that quiet lanes take no memory. Their groups stay open.
    /// Returns the number of segments closed.
    pub fn close_idle(&self, now_ms: i64, idle_ms: i64) -> u64 {
        let _ = (now_ms, idle_ms);
        todo!()
    }
    /// If writers found the arena full since the last call: closes open segments, those without an append for the longest
    /// time first, until what the writers lacked can be had by writing closed segments out. Cheap when they did not: for
    /// the maintenance thread, every few ten milliseconds. Returns the number of segments closed.
    pub fn close_coldest(&self) -> u64 {
        todo!()
    }
    /// Closes every open group: a graceful stop. Appends after it open new ones.
    pub fn close_all(&self) {
        todo!()
    }
    /// Counters and sizes.
    pub fn stats(&self) -> LogStats {
        todo!()
    }
}
