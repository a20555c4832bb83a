//! Closed segments that are not on disk yet, and which disk writes them next.
//!
//! Filled under lanes' locks, emptied by the disks' writer threads. A lane's segments are written one after the other:
//! while one disk writes some of them no other disk takes the lane's next ones, so that what is on disk of a lane is a
//! prefix of it at every moment (decision 0007).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kera_format::{LaneId, SegmentId, StreamId, StreamletId};

use super::host::Image;

/// A lane, by name.
pub(crate) type LaneKey = (StreamId, StreamletId, LaneId);

pub(crate) fn lane_of(id: SegmentId) -> LaneKey {
    (id.stream, id.streamlet, id.lane)
}

/// A segment to be written.
pub(crate) struct Dirty<S> {
    pub(crate) image: Arc<S>,
    pub(crate) closed_us: u64,
}

impl<S> Clone for Dirty<S> {
    fn clone(&self) -> Self {
        Dirty { image: Arc::clone(&self.image), closed_us: self.closed_us }
    }
}

/// What a disk's writer gets when it asks for work.
pub(crate) enum Work<S> {
    /// Write these: neighbours of a lane are next to each other, in order.
    Batch(Vec<Dirty<S>>),
    /// Nothing is due before this time of the monotonic clock.
    Until(u64),
    /// Nothing is waiting that this disk could write.
    Nothing,
}

/// How much a batch may hold.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimits {
    pub(crate) bytes: u64,
    pub(crate) segments: usize,
}

/// What a disk's writer asks with.
pub(crate) struct Ask {
    pub(crate) disk: usize,
    pub(crate) now_us: u64,
    pub(crate) delay_us: u64,
    /// Whatever is waiting is due: memory is short, or everything is to be flushed.
    pub(crate) at_once: bool,
    pub(crate) limits: BatchLimits,
}

/// Whose turn it is among the disks: each gets work in proportion to its free space, and a disk that is busy or broken
/// is passed over.
struct Turn {
    is_usable: bool,
    /// It writes a batch.
    is_busy: bool,
    /// Whoever holds its writer does something else with the disk, which may take long.
    is_held_up: bool,
    /// Bytes given to it so far, divided by its share of the free space.
    pass: u64,
    /// Free mebibytes, at least 1.
    weight: u64,
}

pub(crate) struct Queue<S> {
    waiting: VecDeque<Dirty<S>>,
    waiting_bytes: u64,
    writing: HashMap<LaneKey, usize>,
    writing_segments: u64,
    writing_bytes: u64,
    turns: Vec<Turn>,
}

/// Waiting segments that are looked through for one that was dropped.
const FORGET_SCAN_MAX: usize = 1024;

/// Bytes written to a disk with one mebibyte free count for this much of its pass.
const PASS_SCALE: u64 = 1 << 10;

impl<S: Image> Queue<S> {
    pub(crate) fn new(disks: usize) -> Queue<S> {
        let turn = || Turn { is_usable: true, is_busy: false, is_held_up: false, pass: 0, weight: 1 };
        Queue {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            writing: HashMap::new(),
            writing_segments: 0,
            writing_bytes: 0,
            turns: (0..disks).map(|_| turn()).collect(),
        }
    }

    /// Adds a segment. True if nothing was waiting before.
    pub(crate) fn push(&mut self, dirty: Dirty<S>) -> bool {
        let was_empty = self.waiting.is_empty();
        self.waiting_bytes += dirty.image.block_bytes();
        self.waiting.push_back(dirty);
        was_empty
    }

    /// The log has dropped a segment: its memory is not to wait until a disk would have its turn. It is looked for among the
    /// oldest, which retention drops first; any other is left out when it is to be written.
    pub(crate) fn forget(&mut self, id: SegmentId) -> Option<Dirty<S>> {
        let at = self.waiting.iter().take(FORGET_SCAN_MAX).position(|dirty| dirty.image.id() == id)?;
        let dirty = self.waiting.remove(at)?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(dirty.image.block_bytes());
        Some(dirty)
    }

    /// Segments and their bytes of memory that are not on disk yet: waiting and being written.
    pub(crate) fn dirty(&self) -> (u64, u64) {
        (self.waiting.len() as u64 + self.writing_segments, self.waiting_bytes + self.writing_bytes)
    }

    /// Whether nothing is waiting and nothing is being written.
    pub(crate) fn is_clean(&self) -> bool {
        self.waiting.is_empty() && self.writing_segments == 0
    }

    /// Takes what the disk should write now.
    pub(crate) fn take(&mut self, ask: &Ask) -> Work<S> {
        let Some(front) = self.waiting.front() else { return Work::Nothing };
        let due_us = front.closed_us.saturating_add(ask.delay_us);
        if due_us > ask.now_us && !ask.at_once {
            return Work::Until(due_us);
        }
        let mine = &self.turns[ask.disk];
        let others = self.turns.iter().filter(|turn| turn.is_usable && !turn.is_busy && !turn.is_held_up);
        if mine.is_busy || others.into_iter().any(|turn| turn.pass < mine.pass) {
            return Work::Nothing;
        }
        let batch = self.take_batch(ask);
        if batch.is_empty() { Work::Nothing } else { Work::Batch(batch) }
    }

    fn take_batch(&mut self, ask: &Ask) -> Vec<Dirty<S>> {
        let (mut batch, mut bytes, mut passed_over) = (Vec::new(), 0, VecDeque::new());
        while let Some(front) = self.waiting.front() {
            let image_bytes = front.image.progress().head;
            let is_full = bytes + image_bytes > ask.limits.bytes && !batch.is_empty();
            if is_full || batch.len() >= ask.limits.segments {
                break;
            }
            let Some(dirty) = self.waiting.pop_front() else { break };
            let lane = lane_of(dirty.image.id());
            if self.writing.get(&lane).is_some_and(|disk| *disk != ask.disk) {
                passed_over.push_back(dirty);
                continue;
            }
            self.writing.insert(lane, ask.disk);
            bytes += image_bytes;
            batch.push(dirty);
        }
        while let Some(dirty) = passed_over.pop_back() {
            self.waiting.push_front(dirty);
        }
        if !batch.is_empty() {
            let memory_bytes: u64 = batch.iter().map(|dirty| dirty.image.block_bytes()).sum();
            self.waiting_bytes = self.waiting_bytes.saturating_sub(memory_bytes);
            self.writing_bytes += memory_bytes;
            self.writing_segments += batch.len() as u64;
            let turn = &mut self.turns[ask.disk];
            turn.is_busy = true;
            turn.pass += bytes.saturating_mul(PASS_SCALE) / turn.weight;
        }
        batch
    }

    /// A batch is on disk, or its segments need not be written: `batch` is what [`take`](Queue::take) gave. Those of
    /// `again` go back to where they were.
    pub(crate) fn done(&mut self, disk: usize, batch: &[Dirty<S>], again: &[Dirty<S>]) {
        let memory_bytes: u64 = batch.iter().map(|dirty| dirty.image.block_bytes()).sum();
        self.writing_bytes = self.writing_bytes.saturating_sub(memory_bytes);
        self.writing_segments -= batch.len() as u64;
        self.writing.retain(|_, by| *by != disk);
        self.turns[disk].is_busy = false;
        for dirty in again.iter().rev() {
            self.waiting_bytes += dirty.image.block_bytes();
            self.waiting.push_front(dirty.clone());
        }
    }

    /// A disk can be written to, or cannot. One that comes back does not have to catch up with the others.
    pub(crate) fn set_usable(&mut self, disk: usize, usable: bool) {
        let most = self.turns.iter().map(|turn| turn.pass).max().unwrap_or(0);
        let turn = &mut self.turns[disk];
        if usable && !turn.is_usable {
            turn.pass = most;
        }
        turn.is_usable = usable;
    }

    /// A disk's turn is not waited for from here on, or it is again. True if something is waiting that others may write now.
    pub(crate) fn set_held_up(&mut self, disk: usize, held_up: bool) -> bool {
        self.turns[disk].is_held_up = held_up;
        !self.waiting.is_empty()
    }

    /// Tells how much room a disk has.
    pub(crate) fn set_free_bytes(&mut self, disk: usize, bytes: u64) {
        self.turns[disk].weight = (bytes >> 20).max(1);
    }
}
