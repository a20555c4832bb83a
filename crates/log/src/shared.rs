//! What all lanes of a log share: the arena, the seams, the counters.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kera_format::SegmentId;
use parking_lot::Mutex;

use crate::arena::{Arena, ArenaFull};
use crate::lane::{Counts, Lane, LaneName, Spent};
use crate::log::LogConfig;
use crate::mend::Mender;
use crate::producer_room::ProducerRoom;
use crate::segment::Segment;
use crate::sink::SinkDirectory;
use crate::storage::{Location, SegmentStore};

/// Shared by the lanes of a log; outlives streams that were deleted.
pub(crate) struct Shared {
    pub(crate) config: LogConfig,
    pub(crate) arena: Arc<Arena>,
    pub(crate) store: OnceLock<Arc<dyn SegmentStore>>,
    pub(crate) sinks: OnceLock<Arc<dyn SinkDirectory>>,
    pub(crate) mender: OnceLock<Arc<dyn Mender>>,
    /// Of the groups that are opened now.
    pub(crate) epoch: AtomicU32,
    /// Every node understands compacted segments that are copied again.
    pub(crate) copies_compacted: AtomicBool,
    /// Bytes of segments that are being rebuilt and are not whole.
    pub(crate) begun_bytes: AtomicU64,
    /// The same of those that were begun before in vain.
    pub(crate) waited_bytes: AtomicU64,
    /// The same of those that hold ends of lost logs.
    pub(crate) tail_bytes: AtomicU64,
    /// How often a segment was put off because others are begun.
    pub(crate) times_put_off: AtomicU64,
    /// Bytes of segments that were rebuilt and do not have their copies.
    pub(crate) uncopied_bytes: AtomicU64,
    /// Bytes that writers lacked since the last look of [`crate::Log::close_coldest`].
    pub(crate) lacked_bytes: AtomicU64,
    /// Open segments that are closed when more of them are there.
    pub(crate) spent: Mutex<Spent>,
    /// Lanes with an open segment, and some that had one a moment ago: few where there are very many. Locked under a lane's lock, never the other way round.
    pub(crate) open_lanes: Mutex<BTreeSet<LaneName>>,
    /// Memory for what lanes know of producers.
    pub(crate) producer_room: Arc<ProducerRoom>,
    /// Something was appended or read since the last [`crate::Log::take_used`].
    pub(crate) used: AtomicBool,
    /// What was appended to lanes that are deleted; the last is duplicates.
    pub(crate) retired: Mutex<(Counts, u64)>,
    pub(crate) arena_full: AtomicU64,
    pub(crate) segments_open: AtomicU64,
    pub(crate) segments_opened: AtomicU64,
    pub(crate) segments_closed: AtomicU64,
    pub(crate) segments_evicted: AtomicU64,
    pub(crate) segments_loaded: AtomicU64,
    pub(crate) segments_dropped: AtomicU64,
    pub(crate) segments_mended: AtomicU64,
}

impl Shared {
    pub(crate) fn new(config: LogConfig, arena: Arc<Arena>) -> Shared {
        let zero = || AtomicU64::new(0);
        let producer_room = ProducerRoom::beside(arena.bytes(), config.producers_bytes_min);
        Shared {
            config,
            arena,
            producer_room,
            store: OnceLock::new(),
            sinks: OnceLock::new(),
            mender: OnceLock::new(),
            epoch: AtomicU32::new(0),
            copies_compacted: AtomicBool::new(false),
            begun_bytes: zero(),
            waited_bytes: zero(),
            tail_bytes: zero(),
            times_put_off: zero(),
            uncopied_bytes: zero(),
            lacked_bytes: zero(),
            spent: Mutex::default(),
            open_lanes: Mutex::default(),
            used: AtomicBool::new(false),
            retired: Mutex::default(),
            arena_full: zero(),
            segments_open: zero(),
            segments_opened: zero(),
            segments_closed: zero(),
            segments_evicted: zero(),
            segments_loaded: zero(),
            segments_dropped: zero(),
            segments_mended: zero(),
        }
    }

    /// Something was appended or read. Usually nothing is stored, so that threads do not get in each other's way.
    #[inline]
    pub(crate) fn mark_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// A settled segment goes to the store, once. May be called under the lane's lock.
    pub(crate) fn hand_over(&self, segment: &Arc<Segment>) {
        if !segment.hand_over() {
            return;
        }
        self.hand_over_late(segment);
    }

    /// A segment that was [held back](Segment::hold_back) goes to the store. May be called under the lane's lock.
    pub(crate) fn hand_over_late(&self, segment: &Arc<Segment>) {
        self.segments_closed.fetch_add(1, Ordering::Relaxed);
        if let Some(store) = self.store.get() {
            store.closed(Arc::clone(segment));
        }
    }

    /// A writer found no room. Not under a lock.
    pub(crate) fn want_space(&self, full: &ArenaFull) {
        self.arena_full.fetch_add(1, Ordering::Relaxed);
        self.lacked_bytes.fetch_max(full.bytes, Ordering::Relaxed);
        if let Some(store) = self.store.get() {
            // A whole block is what there has to be.
            store.want_space(self.arena.block_bytes(full.bytes));
        }
    }

    /// No sink need keep this segment's chunks.
    pub(crate) fn segment_safe(&self, id: SegmentId) {
        if let Some(sinks) = self.sinks.get() {
            sinks.sinks().iter().for_each(|sink| sink.segment_safe(id));
        }
    }

    /// Sinks keep aside what they have of this segment.
    pub(crate) fn segment_given_again(&self, id: SegmentId) {
        if let Some(sinks) = self.sinks.get() {
            sinks.sinks().iter().for_each(|sink| sink.segment_given_again(id));
        }
    }

    /// Keeps the counters of a lane that goes.
    pub(crate) fn retire(&self, counts: Counts, duplicates: u64) {
        let mut retired = self.retired.lock();
        retired.0.add(&counts);
        retired.1 += duplicates;
    }

    /// No sink need keep this segment's chunks, nor copies of them.
    pub(crate) fn segment_gone(&self, id: SegmentId) {
        if let Some(sinks) = self.sinks.get() {
            for sink in sinks.sinks() {
                sink.segment_safe(id);
                sink.segment_gone(id);
            }
        }
    }

    /// Compaction has left so many bytes of a segment. Not under a lock.
    pub(crate) fn segment_smaller(&self, id: SegmentId, bytes: u64) {
        if let Some(sinks) = self.sinks.get() {
            sinks.sinks().iter().for_each(|sink| sink.segment_smaller(id, bytes));
        }
    }

    /// An image of a segment on disk is not needed, because another one took its place or nobody has the segment any more: copies elsewhere
    /// stay what they are. Not under a lock.
    pub(crate) fn release_image(&self, id: SegmentId, at: Location) {
        if let Some(store) = self.store.get() {
            store.release(id, at);
        }
    }

    /// A lane was let go of in front of an ordinal. Not under a lock.
    pub(crate) fn let_go(&self, lane: &Lane, ordinal: u64) {
        if let Some(store) = self.store.get() {
            store.let_go(lane.stream_id(), lane.streamlet_id(), lane.id(), ordinal);
        }
    }

    /// A segment is gone for good. Not under a lock.
    pub(crate) fn release(&self, id: SegmentId, at: Option<Location>) {
        self.segment_gone(id);
        let Some(store) = self.store.get() else { return };
        match at {
            Some(at) => store.release(id, at),
            None => store.dropped(id),
        }
    }
}
