//! Open segments that have no room for another chunk like their last.
//!
//! Kept open they hold memory until their lanes' next chunks close them, which with a thousand lanes is long; closed they can go to disk
//! and leave. But producers that fill batches send what is left over behind each, soon and small: there is room for that, and in
//! a segment of its own it would take a block. So when memory is short they wait in turn, for as long as it takes writers to spend a
//! share of the arena.
//!
//! Used by [`super::append`] when no lock is held.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use kera_format::SegmentId;

use super::Lane;

/// One part in this many of the arena may be in such segments.
const SHARE: u64 = 16;

/// Those that wait to be closed, the oldest first. Some have been closed by their lanes since.
#[derive(Default)]
pub(crate) struct Spent {
    waiting: VecDeque<(Weak<Lane>, SegmentId, u64)>,
    bytes: u64,
}

impl Spent {
    /// One more, which takes so many bytes of the arena's `arena_bytes`. Those whose turn it is to be closed.
    fn push(&mut self, lane: &Arc<Lane>, id: SegmentId, bytes: u64, arena_bytes: u64) -> Vec<(Arc<Lane>, SegmentId)> {
        self.waiting.push_back((Arc::downgrade(lane), id, bytes));
        self.bytes += bytes;
        let mut due = Vec::new();
        while self.bytes > arena_bytes / SHARE
            && let Some((lane, id, bytes)) = self.waiting.pop_front()
        {
            self.bytes -= bytes;
            due.extend(lane.upgrade().map(|lane| (lane, id)));
        }
        due
    }
}

impl Lane {
    /// The lane's open segment is spent, and memory is short: it waits for its turn, and those whose turn it is are closed. Not under a lock.
    #[cold]
    pub(crate) fn await_turn_to_close(self: &Arc<Self>, id: SegmentId, bytes: u64) {
        let log = self.log();
        let due = log.spent.lock().push(self, id, bytes, log.arena.bytes());
        due.into_iter().for_each(|(lane, id)| lane.close_segment(id));
    }
}
