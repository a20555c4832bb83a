//! A stream: M streamlets that are made when they are first used, and the options they share. M grows, it never shrinks.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use kera_format::{ReplicationMode, StreamId, StreamOptions, StreamletId, Timestamps};
use parking_lot::RwLock;

use crate::shared::Shared;
use crate::streamlet::Streamlet;

/// What the lanes of a stream share.
pub(crate) struct StreamShared {
    pub(crate) id: StreamId,
    options: RwLock<Arc<StreamOptions>>,
    /// What they say about keys.
    compacts: AtomicBool,
    /// What they say about batches of Kafka clients: whether these are kept as they come.
    changes_batches: AtomicBool,
    /// Whether their settings say which batches of Kafka clients are refused.
    limits_batches: AtomicBool,
    /// What they say about when producers are answered.
    is_async: AtomicBool,
    pub(crate) deleted: AtomicBool,
    /// See [`Stream::keep_room`].
    pub(crate) is_system: AtomicBool,
    /// Records of some lane were deleted: see [`Lane::raise_floor`](crate::Lane::raise_floor).
    pub(crate) has_floors: AtomicBool,
    /// See [`Stream::place_elsewhere`].
    elsewhere: AtomicBool,
    /// When all of its lanes were looked at last for what is too old, on the monotonic clock.
    aged_ms: AtomicI64,
    pub(crate) log: Arc<Shared>,
    /// Lanes that were ever used.
    pub(crate) lanes: AtomicU64,
}

impl StreamShared {
    pub(crate) fn options(&self) -> Arc<StreamOptions> {
        Arc::clone(&self.options.read())
    }

    /// Whether streamlets that are made now are another node's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Acquire)
    }

    /// See [`Lane::may_answer_early`](crate::Lane::may_answer_early).
    #[inline]
    pub(crate) fn is_async(&self) -> bool {
        self.is_async.load(Ordering::Relaxed)
    }

    /// Whether the stream is deleted, for whoever is about to put a segment into one of its lanes. A lane that is made while
    /// [`Stream::delete`] walks the lanes is either seen by that walk or sees the mark here: each side sets its own (the
    /// mark, the lane) before it looks for the other's, with a fence between.
    pub(crate) fn is_deleted_for_writers(&self) -> bool {
        fence(Ordering::SeqCst);
        self.deleted.load(Ordering::Relaxed)
    }
}

/// Places of streamlets.
type Places = Box<[OnceLock<Arc<Streamlet>>]>;

fn places(count: u32) -> Places {
    (0..count).map(|_| OnceLock::new()).collect()
}

/// The streamlets beyond those that a stream had when its handle was made. Bucket b has 2^b places, so that a streamlet is found
/// without a lock and stays where it is however often the stream grows.
#[derive(Default)]
struct Grown {
    buckets: [OnceLock<Places>; u32::BITS as usize],
}

impl Grown {
    /// The place of the `at`th of them.
    fn place(&self, at: u32) -> Option<&OnceLock<Arc<Streamlet>>> {
        let number = at.checked_add(1)?;
        let bucket = number.ilog2();
        let places = self.buckets[bucket as usize].get_or_init(|| places(1 << bucket));
        places.get((number - (1 << bucket)) as usize)
    }
}

/// A stream of this node.
pub struct Stream {
    shared: Arc<StreamShared>,
    first: Places,
    grown: OnceLock<Box<Grown>>,
    /// How many streamlets it has now.
    count: AtomicU32,
}

impl Stream {
    pub(crate) fn new(id: StreamId, options: StreamOptions, log: Arc<Shared>) -> Arc<Stream> {
        let (first, count) = (places(options.streamlets), AtomicU32::new(options.streamlets));
        let compacts = AtomicBool::new(options.cleanup.compacts());
        let changes_batches = AtomicBool::new(changes_batches(&options));
        let limits_batches = AtomicBool::new(options.limits_batches());
        let is_async = AtomicBool::new(options.replication_mode == ReplicationMode::Async);
        let options = RwLock::new(Arc::new(options));
        let shared = StreamShared {
            id,
            options,
            compacts,
            changes_batches,
            limits_batches,
            is_async,
            deleted: AtomicBool::new(false),
            is_system: AtomicBool::new(false),
            has_floors: AtomicBool::new(false),
            elsewhere: AtomicBool::new(false),
            aged_ms: AtomicI64::new(i64::MIN),
            log,
            lanes: AtomicU64::new(0),
        };
        Arc::new(Stream { shared: Arc::new(shared), first, grown: OnceLock::new(), count })
    }

    /// Its id.
    pub fn id(&self) -> StreamId {
        self.shared.id
    }
    /// Its options as of now.
    pub fn options(&self) -> Arc<StreamOptions> {
        self.shared.options()
    }
    /// Whether the last record of each key is kept, as of now. Cheaper than its options.
    #[inline]
    pub fn compacts(&self) -> bool {
        self.shared.compacts.load(Ordering::Relaxed)
    }
    /// Whether batches of Kafka clients get another time or compression than they come with, as of now. Cheaper than its
    /// options.
    #[inline]
    pub fn changes_batches(&self) -> bool {
        self.shared.changes_batches.load(Ordering::Relaxed)
    }
    /// Whether its settings say which batches of Kafka clients are too large, too old or too far ahead, as of now. Cheaper than its
    /// options.
    #[inline]
    pub fn limits_batches(&self) -> bool {
        self.shared.limits_batches.load(Ordering::Relaxed)
    }
    /// From here on its segments come from the share of the arena that is kept for the system's own streams: a few
    /// records of little size that the node needs in order to go on. On a node of a cluster before a [recovery](crate::Log::recover), if it has the
    /// stream for itself: what is found of it no other node knows anything of.
    pub fn keep_room(&self) {
        self.shared.is_system.store(true, Ordering::Relaxed);
    }
    /// Whether it is one of the system's own, as [`keep_room`](Stream::keep_room) said.
    pub fn is_system(&self) -> bool {
        self.shared.is_system.load(Ordering::Relaxed)
    }

    /// Its streamlets belong to nodes of a cluster: those that this node was not told to [open](Streamlet::open) are elsewhere. Before anything
    /// is written to it.
    pub fn place_elsewhere(&self) {
        self.shared.elsewhere.store(true, Ordering::Release);
        self.streamlets().filter(|streamlet| streamlet.owner_epoch() == 0).for_each(|streamlet| streamlet.leave());
    }

    /// Whether its streamlets are another node's unless this one was told to open them: see [`place_elsewhere`](Stream::place_elsewhere).
    pub fn is_elsewhere(&self) -> bool {
        self.shared.is_elsewhere()
    }

    /// Whether records of some lane were deleted: see [`Lane::raise_floor`](crate::Lane::raise_floor).
    pub fn has_floors(&self) -> bool {
        self.shared.has_floors.load(Ordering::Acquire)
    }
    /// Whether so much time has passed since this was so last. For one caller. The clock may be another one each time, as in tests, which is further back.
    pub(crate) fn has_aged(&self, pause_ms: i64, mono_ms: i64) -> bool {
        let before_ms = self.shared.aged_ms.load(Ordering::Relaxed);
        let has_aged = !(before_ms..before_ms.saturating_add(pause_ms)).contains(&mono_ms);
        if has_aged {
            self.shared.aged_ms.store(mono_ms, Ordering::Relaxed);
        }
        has_aged
    }

    /// Whether it was deleted since this handle was taken.
    pub fn is_deleted(&self) -> bool {
        self.shared.deleted.load(Ordering::Acquire)
    }
    /// A streamlet, made if it was never used; `None` if the stream has no such streamlet.
    #[inline]
    pub fn streamlet(&self, id: StreamletId) -> Option<&Arc<Streamlet>> {
        let place = match self.first.get(id.0 as usize) {
            Some(place) => place,
            None => self.grown_place(id)?,
        };
        Some(place.get_or_init(|| Arc::new(Streamlet::new(id, Arc::clone(&self.shared)))))
    }

    fn grown_place(&self, id: StreamletId) -> Option<&OnceLock<Arc<Streamlet>>> {
        if id.0 >= self.streamlet_count() {
            return None;
        }
        self.grown.get_or_init(Box::default).place(id.0 - self.first.len() as u32)
    }

    /// How many streamlets it has, used or not.
    pub fn streamlet_count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The streamlets that were ever used, by their numbers.
    pub fn streamlets(&self) -> impl Iterator<Item = &Arc<Streamlet>> {
        let grown = self.grown.get().into_iter().flat_map(|grown| grown.buckets.iter().filter_map(OnceLock::get));
        self.first.iter().chain(grown.flatten()).filter_map(OnceLock::get)
    }

    pub(crate) fn set_options(&self, options: StreamOptions) {
        let count = options.streamlets;
        self.shared.compacts.store(options.cleanup.compacts(), Ordering::Relaxed);
        self.shared.changes_batches.store(changes_batches(&options), Ordering::Relaxed);
        self.shared.limits_batches.store(options.limits_batches(), Ordering::Relaxed);
        self.shared.is_async.store(options.replication_mode == ReplicationMode::Async, Ordering::Relaxed);
        *self.shared.options.write() = Arc::new(options);
        self.count.fetch_max(count, Ordering::AcqRel);
    }

    /// Ends all appends and reads, and drops all segments.
    pub(crate) fn delete(&self) {
        self.shared.deleted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        for streamlet in self.streamlets() {
            streamlet.all_lanes().for_each(|lane| lane.delete());
        }
    }
}

fn changes_batches(options: &StreamOptions) -> bool {
    options.timestamps == Timestamps::Append || options.batch_compression.codec().is_some()
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.shared.id).finish_non_exhaustive()
    }
}
