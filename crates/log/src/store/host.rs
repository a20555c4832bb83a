//! What the store needs from the log, so that tests can be one too.
//!
//! Called from the store's threads, never with a lock of the store held: the log takes its lanes' locks in here, and
//! calls the store under them.

use std::sync::{Arc, Weak};

use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{SegmentId, StreamId};

use crate::Log;
use crate::arena::LoadBuffer;
use crate::producers::ProducerMark;
use crate::segment::Segment;
use crate::storage::Location;

/// One part in this many of the arena is kept for loads.
const LOAD_SHARE: u64 = 8;

/// A segment in memory, settled.
pub(crate) trait Image: Send + Sync + 'static {
    fn id(&self) -> SegmentId;
    fn header(&self) -> SegmentHeader;
    fn progress(&self) -> SegmentProgress;
    /// The image up to the next page, at an address that suits direct I/O.
    fn padded(&self) -> &[u8];
    /// Bytes of arena that it takes.
    fn block_bytes(&self) -> u64;
    /// Whether a reader has read its last byte.
    fn was_read(&self) -> bool;
    fn marks(&self) -> Vec<ProducerMark>;
}

/// How full the memory for segments is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    /// What writers can still take: free, and kept neither for loads nor for the system's own streams.
    pub(crate) free_bytes: u64,
    /// What loads can still take: free, and kept neither for writers nor for the system's own streams.
    pub(crate) load_free_bytes: u64,
    /// The largest piece that can be handed out.
    pub(crate) largest_free_bytes: u64,
    /// What is kept for loads.
    pub(crate) load_bytes: u64,
}

/// The log.
pub(crate) trait Host: Send + Sync + 'static {
    type Image: Image;
    /// Memory to load an image into.
    type Buffer: std::ops::DerefMut<Target = [u8]> + Send;

    fn memory(&self) -> Memory;
    fn segment(&self, id: SegmentId) -> Option<Arc<Self::Image>>;
    /// Whether all there is of a segment is in memory: it is closed.
    fn has_whole(&self, id: SegmentId) -> bool;
    /// A start drops what it has put back of a segment.
    fn forget_restored(&self, id: SegmentId);
    fn persisted(&self, id: SegmentId, at: Location);
    fn evict(&self, id: SegmentId) -> bool;
    fn allocate_for_load(&self, bytes: u64) -> Option<Self::Buffer>;
    fn loaded(&self, id: SegmentId, buffer: Self::Buffer) -> Result<(), String>;
    fn load_failed(&self, id: SegmentId, error: String);
    fn read_ahead(&self, id: SegmentId, count: usize) -> Vec<(SegmentId, Location)>;
    fn close_coldest(&self) -> u64;
    fn has_stream(&self, stream: StreamId) -> bool;
}

impl Image for Segment {
    fn id(&self) -> SegmentId {
        Segment::id(self)
    }
    fn header(&self) -> SegmentHeader {
        *Segment::header(self)
    }
    fn progress(&self) -> SegmentProgress {
        Segment::progress(self)
    }
    fn padded(&self) -> &[u8] {
        self.as_padded_image(kera_env::DISK_ALIGNMENT)
    }
    fn block_bytes(&self) -> u64 {
        Segment::block_bytes(self)
    }
    fn was_read(&self) -> bool {
        Segment::was_read(self)
    }
    fn marks(&self) -> Vec<ProducerMark> {
        self.producer_marks()
    }
}

/// A log that has gone needs nothing any more.
impl Host for Weak<Log> {
    type Image = Segment;
    type Buffer = LoadBuffer;

    fn memory(&self) -> Memory {
        self.upgrade().map_or(Memory::default(), |log| {
            let arena = log.arena().stats();
            let load_bytes = arena.bytes / LOAD_SHARE;
            let kept_for_loads_bytes = load_bytes.saturating_sub(arena.loaded_bytes);
            // As much is kept for writers as for loads.
            let written_bytes = arena.used_bytes.saturating_sub(arena.loaded_bytes + arena.set_aside_bytes);
            let kept_for_writers_bytes = load_bytes.saturating_sub(written_bytes);
            // Who counts as free what the arena does not give finds nothing missing while writers wait.
            let free_bytes = arena.free_bytes.saturating_sub(arena.kept_for_system_bytes);
            // Nor what it would give, and the machine has no memory for: that there is in what can be evicted.
            let backed_bytes = if arena.lacks_memory { arena.warm_free_bytes } else { u64::MAX };
            Memory {
                bytes: arena.bytes,
                free_bytes: free_bytes.saturating_sub(kept_for_loads_bytes).min(backed_bytes),
                load_free_bytes: free_bytes.saturating_sub(kept_for_writers_bytes).min(backed_bytes),
                // Who asks then has found that what is free in one piece has none, and what has some is in pieces that are too small for it.
                largest_free_bytes: if arena.lacks_memory { 0 } else { arena.largest_free_bytes },
                load_bytes,
            }
        })
    }
    fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.upgrade()?.segment(id)
    }
    fn has_stream(&self, stream: StreamId) -> bool {
        self.upgrade().is_none_or(|log| log.stream(stream).is_some())
    }
    fn has_whole(&self, id: SegmentId) -> bool {
        let segment = self.upgrade().and_then(|log| log.segment(id));
        segment.is_some_and(|segment| segment.state() != SegmentState::Open)
    }
    fn forget_restored(&self, id: SegmentId) {
        if let Some(log) = self.upgrade() {
            log.forget_restored(id);
        }
    }
    fn persisted(&self, id: SegmentId, at: Location) {
        if let Some(log) = self.upgrade() {
            log.persisted(id, at);
        }
    }
    fn evict(&self, id: SegmentId) -> bool {
        self.upgrade().is_some_and(|log| log.evict(id))
    }
    fn allocate_for_load(&self, bytes: u64) -> Option<LoadBuffer> {
        self.upgrade()?.allocate_for_load(bytes).ok()
    }
    fn loaded(&self, id: SegmentId, buffer: LoadBuffer) -> Result<(), String> {
        self.upgrade().map_or(Ok(()), |log| log.loaded(id, buffer))
    }
    fn load_failed(&self, id: SegmentId, error: String) {
        if let Some(log) = self.upgrade() {
            log.load_failed(id, error);
        }
    }
    fn read_ahead(&self, id: SegmentId, count: usize) -> Vec<(SegmentId, Location)> {
        self.upgrade().map_or_else(Vec::new, |log| log.read_ahead(id, count))
    }
    fn close_coldest(&self) -> u64 {
        self.upgrade().map_or(0, |log| log.close_coldest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Purpose;
    use crate::tests::{arena_config, node_with, options};

    const SMALL: u64 = 64 << 10;

    /// Or else nothing would be evicted for those who wait for memory, as long as there are blocks.
    #[test]
    fn what_the_machine_has_no_memory_for_is_not_free() {
        let node = node_with(options(), 256 * SMALL);
        let (arena, host) = (node.log.arena(), Arc::downgrade(&node.log));
        let block = arena.allocate(SMALL as usize, Purpose::Write).expect("a block");
        let can_take = || {
            let memory = host.memory();
            (memory.free_bytes / SMALL, memory.load_free_bytes / SMALL)
        };
        assert_eq!(can_take(), (255 - 32 - 4, 255 - 31 - 4));
        let path = arena_config(&node.dir, 0).path;
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("the arena's file");
        file.set_len(2 << 20).expect("its blocks begin there");
        assert!(arena.allocate(SMALL as usize, Purpose::Write).is_err());
        assert_eq!(can_take(), (0, 0));
        drop(block);
        assert_eq!(can_take(), (1, 1), "what comes back has memory");
        assert_eq!(host.memory().largest_free_bytes, 0, "who still lacks some needs more than that, or in one piece");
        arena.give_back(false);
        assert_eq!(can_take(), (256 - 32 - 4, 256 - 32 - 4), "there may be some by now");
    }

    #[test]
    fn what_writers_and_loads_can_still_take_is_what_the_arena_gives_them() {
        let node = node_with(options(), 256 * SMALL);
        let (arena, host) = (node.log.arena(), Arc::downgrade(&node.log));
        let allocate = |purpose| arena.allocate(SMALL as usize, purpose).ok();
        let take = |purpose| std::iter::from_fn(|| allocate(purpose)).collect::<Vec<_>>();
        let can_take = || {
            let memory = host.memory();
            (memory.free_bytes / SMALL, memory.load_free_bytes / SMALL)
        };
        assert_eq!(can_take(), (256 - 32 - 4, 256 - 32 - 4));
        let mut writes = take(Purpose::Write);
        assert_eq!((writes.len(), can_take()), (220, (0, 32)));
        let loads = take(Purpose::Load);
        assert_eq!((loads.len(), can_take()), (32, (0, 0)));
        let system = [allocate(Purpose::System), allocate(Purpose::System)];
        assert!(system.iter().all(Option::is_some));
        assert_eq!(can_take(), (0, 0), "two are left, and are the system's");
        writes.truncate(217);
        assert_eq!((can_take(), take(Purpose::Write).len()), ((3, 3), 3));
    }
}
