//! What appenders touch of a replicated log: two backlogs, one for what producers wait for and one for what nobody waits for, as what is
//! rebuilt after a loss or copied again, and can be as much as a disk takes in seconds.
//!
//! What is behind comes in blocks of its own, so that a producer's chunk has few of them in front: [`BLOCKS_MAX`] that are under way, and one that
//! comes first when those are stored. The order of blocks is the order of copies at backups, which for chunks of both kinds says nothing: what is behind is
//! closed and its bytes never change, recovery puts it to the places that it names and does not mind that it comes behind what is newer, or twice
//! (`docs/replication.md`). Among itself it stays in order, which compacted segments need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_format::SegmentId;
use kera_log::{ChunkReference, DurabilitySink, Observer, SinkError, SinkErrorKind, Ticket};
use parking_lot::Mutex;

use super::block::Block;
use super::kept::KeptBlocks;
use super::{ReplicatedConfig, ReplicatedLog, Taken};
use crate::backlog::{Backlog, Pending};

/// Blocks of what is behind that are under way at a time when nothing else waits: half of all.
const BLOCKS_MAX: usize = 2;

/// Which kind the next block is of, if one may be made: whether it is of what is behind. That has a block under way at any time, so that it goes on
/// whatever producers do, and more only when they have nothing.
pub(super) fn comes_next(new: &VecDeque<Pending>, behind: &VecDeque<Pending>, behind_under_way: usize) -> Option<bool> {
    match (new.is_empty(), behind.is_empty()) {
        (_, false) if behind_under_way == 0 => Some(true),
        (false, _) => Some(false),
        (true, false) if behind_under_way < BLOCKS_MAX => Some(true),
        _ => None,
    }
}

/// See the module.
pub(super) struct Shared {
    config: ReplicatedConfig,
    /// The writer sleeps here.
    pub(super) new: Backlog,
    pub(super) behind: Backlog,
    pub(super) healthy: AtomicBool,
    pub(super) trouble: Mutex<Option<SinkError>>,
    /// Bytes of new chunks that were appended and are not at all backups.
    lag_bytes: AtomicU64,
    /// The oldest block waits for its copies for longer than it may.
    pub(super) is_late: AtomicBool,
    gone: Mutex<Vec<SegmentId>>,
    /// And those of which compaction has left so much.
    smaller: Mutex<Vec<(SegmentId, u64)>>,
}

impl Shared {
    pub(super) fn new(config: ReplicatedConfig) -> Shared {
        let merged_bytes_max = config.block_bytes_max.min(1 << 20) as u32;
        Shared {
            config,
            new: Backlog::new(merged_bytes_max),
            behind: Backlog::new(merged_bytes_max),
            healthy: AtomicBool::new(true),
            trouble: Mutex::new(None),
            lag_bytes: AtomicU64::new(0),
            is_late: AtomicBool::new(false),
            gone: Mutex::default(),
            smaller: Mutex::default(),
        }
    }

    /// Everything that waits goes to those of the two of which all was used.
    pub(super) fn take(&self, new: &mut Taken, behind: &mut Taken) {
        if new.pending.is_empty() {
            self.new.take(&mut new.pending);
        }
        if behind.pending.is_empty() {
            self.behind.take(&mut behind.pending);
        }
    }

    /// A block has all its copies, and the durable heads were moved: who waits for that is told.
    pub(super) fn made_durable(&self, block: &Block) {
        if block.is_behind {
            return self.behind.advance(block.last_ticket);
        }
        self.new.advance(block.last_ticket);
        self.lag_bytes.fetch_sub(block.chunk_bytes.into(), Ordering::Relaxed);
    }

    /// What was told of segments.
    pub(super) fn tell_kept(&self, kept: &mut KeptBlocks) {
        let gone = std::mem::take(&mut *self.gone.lock());
        kept.gone(&gone);
        let smaller = std::mem::take(&mut *self.smaller.lock());
        kept.smaller(&smaller);
    }

    /// Calls all who wait.
    pub(super) fn wake_waiters(&self) {
        self.new.wake_waiters();
        self.behind.wake_waiters();
    }

    fn healthy(&self) -> Result<(), SinkError> {
        if self.healthy.load(Ordering::Acquire) {
            return Ok(());
        }
        self.trouble.lock().clone().map_or(Ok(()), Err)
    }
}

impl DurabilitySink for ReplicatedLog {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let shared = &self.shared;
        shared.lag_bytes.fetch_add(reference.bytes.into(), Ordering::Relaxed);
        let (ticket, depth) = shared.new.push(reference);
        if depth.references > shared.config.references_max && shared.healthy.swap(false, Ordering::AcqRel) {
            let reason = format!("{} chunks wait for the backups of {}", depth.references, shared.config.log);
            *shared.trouble.lock() = Some(SinkError { kind: SinkErrorKind::Behind, reason, retry_after_ms: 20 });
        }
        ticket
    }

    fn durable_through(&self) -> Ticket {
        self.shared.new.durable_through()
    }

    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        self.shared.new.wait(ticket, observer, token)
    }

    fn healthy(&self) -> Result<(), SinkError> {
        self.shared.healthy()
    }

    fn behind(&self) -> Option<Arc<dyn DurabilitySink>> {
        Some(ReplicatedLog::behind(self))
    }

    fn may_answer_early(&self) -> bool {
        let shared = &self.shared;
        shared.lag_bytes.load(Ordering::Relaxed) <= shared.config.lag_bytes_max
            && !shared.is_late.load(Ordering::Relaxed)
            && shared.healthy.load(Ordering::Acquire)
    }

    /// That a segment is stored on this node's disk says nothing about copies: only what is gone need not be kept.
    fn segment_safe(&self, _id: SegmentId) {}

    fn segment_gone(&self, id: SegmentId) {
        self.shared.gone.lock().push(id);
    }

    fn segment_smaller(&self, id: SegmentId, bytes: u64) {
        self.shared.smaller.lock().push((id, bytes));
    }
}

/// The sink for what nobody waits for. Whoever uses it bounds what waits in it.
pub(super) struct Behind {
    shared: Arc<Shared>,
}

impl Behind {
    pub(super) fn new(shared: &Arc<Shared>) -> Behind {
        Behind { shared: Arc::clone(shared) }
    }
}

impl DurabilitySink for Behind {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let bytes = u64::from(reference.bytes);
        let (ticket, depth) = self.shared.behind.push(reference);
        // The writer looks here after every block; it has to be woken only when nothing was here.
        if depth.bytes == bytes {
            self.shared.new.nudge();
        }
        ticket
    }

    fn durable_through(&self) -> Ticket {
        self.shared.behind.durable_through()
    }

    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        self.shared.behind.wait(ticket, observer, token)
    }

    fn healthy(&self) -> Result<(), SinkError> {
        self.shared.healthy()
    }

    fn segment_safe(&self, _id: SegmentId) {}

    fn segment_gone(&self, id: SegmentId) {
        self.shared.gone.lock().push(id);
    }
}
