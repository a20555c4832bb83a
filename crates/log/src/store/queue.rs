//! Closed segments that are not on disk yet, and which disk writes them next.
//!
//! Filled under lanes' locks, emptied by the disks' writer threads. A lane's segments are written one after the other:
//! while one disk writes some of them no other disk takes the lane's next ones, so that what is on disk of a lane is a
//! prefix of it at every moment (decision 0007).
//!
//! A segment that was written through is for the disk that has its extent, as long as that can be written to, whosever turn it is: to finish it is to write
//! there, and a writer waits for no disk but its own. So a disk that stands still keeps what only it could finish, and nothing else. If it
//! fails, another one writes all of the segment once more.

use std::collections::{HashMap, HashSet, VecDeque};
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
    /// The disk that has all of it but its index in an extent.
    pub(crate) extent_disk: Option<usize>,
}

impl<S> Clone for Dirty<S> {
    fn clone(&self) -> Self {
        Dirty { image: Arc::clone(&self.image), closed_us: self.closed_us, extent_disk: self.extent_disk }
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
    /// Segments that wait and have their extents on it.
    extents: u64,
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
    /// Some disk has been told since the last segment came that nothing waits which it could write, and looks at no clock.
    is_asked_in_vain: bool,
}

/// Waiting segments that are looked through for one that was dropped.
const FORGET_SCAN_MAX: usize = 1024;

/// Bytes written to a disk with one mebibyte free count for this much of its pass.
const PASS_SCALE: u64 = 1 << 10;

impl<S: Image> Queue<S> {
    pub(crate) fn new(disks: usize) -> Queue<S> {
        let turn = || Turn { is_usable: true, is_busy: false, is_held_up: false, extents: 0, pass: 0, weight: 1 };
        Queue {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            writing: HashMap::new(),
            writing_segments: 0,
            writing_bytes: 0,
            turns: (0..disks).map(|_| turn()).collect(),
            is_asked_in_vain: false,
        }
    }

    /// Adds a segment. True if the disks are to be told: nothing was waiting before, or nothing that some of them could write, or it is for one of
    /// them, which may have been told that it is not its turn.
    pub(crate) fn push(&mut self, dirty: Dirty<S>) -> bool {
        let is_asked_in_vain = std::mem::take(&mut self.is_asked_in_vain);
        let is_news = self.waiting.is_empty() || is_asked_in_vain || dirty.extent_disk.is_some();
        self.waits(&dirty, true);
        self.waiting.push_back(dirty);
        is_news
    }

    /// Counts a segment that waits from here on, or does not any more.
    fn waits(&mut self, dirty: &Dirty<S>, waits: bool) {
        let (bytes, sign) = (dirty.image.block_bytes(), if waits { 1 } else { -1 });
        self.waiting_bytes = self.waiting_bytes.saturating_add_signed(sign * bytes as i64);
        if let Some(disk) = dirty.extent_disk {
            self.turns[disk].extents = self.turns[disk].extents.saturating_add_signed(sign);
        }
    }

    /// The disk that alone takes a segment, if one does.
    fn only_disk(&self, dirty: &Dirty<S>) -> Option<usize> {
        dirty.extent_disk.filter(|disk| self.turns[*disk].is_usable)
    }

    /// The log has dropped a segment: its memory is not to wait until a disk would have its turn. It is looked for among the
    /// oldest, which retention drops first; any other is left out when it is to be written.
    pub(crate) fn forget(&mut self, id: SegmentId) -> Option<Dirty<S>> {
        let at = self.waiting.iter().take(FORGET_SCAN_MAX).position(|dirty| dirty.image.id() == id)?;
        let dirty = self.waiting.remove(at)?;
        self.waits(&dirty, false);
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
        let may_be_its = |dirty: &&Dirty<S>| self.only_disk(dirty).is_none_or(|disk| disk == ask.disk);
        let Some(front) = self.waiting.iter().find(may_be_its) else {
            self.is_asked_in_vain = true;
            return Work::Nothing;
        };
        let due_us = front.closed_us.saturating_add(ask.delay_us);
        if due_us > ask.now_us && !ask.at_once {
            return Work::Until(due_us);
        }
        let mine = &self.turns[ask.disk];
        let mut others = self.turns.iter().filter(|turn| turn.is_usable && !turn.is_busy && !turn.is_held_up);
        let is_its_turn = !others.any(|turn| turn.pass < mine.pass);
        if mine.is_busy || (!is_its_turn && mine.extents == 0) {
            return Work::Nothing;
        }
        let batch = self.take_batch(ask, is_its_turn);
        self.is_asked_in_vain |= batch.is_empty() && is_its_turn;
        if batch.is_empty() { Work::Nothing } else { Work::Batch(batch) }
    }

    /// What follows a segment that is passed over waits with it if it is of the same lane.
    fn take_batch(&mut self, ask: &Ask, is_its_turn: bool) -> Vec<Dirty<S>> {
        let (mut batch, mut bytes, mut passed_over, mut lanes) = (Vec::new(), 0, VecDeque::new(), HashSet::new());
        while let Some(front) = self.waiting.front() {
            let image_bytes = front.image.progress().head;
            let is_full = bytes + image_bytes > ask.limits.bytes && !batch.is_empty();
            if is_full || batch.len() >= ask.limits.segments {
                break;
            }
            let Some(dirty) = self.waiting.pop_front() else { break };
            let lane = lane_of(dirty.image.id());
            let is_its = self.only_disk(&dirty).map_or(is_its_turn, |disk| disk == ask.disk);
            let is_written = self.writing.get(&lane).is_some_and(|disk| *disk != ask.disk);
            if !is_its || is_written || lanes.contains(&lane) {
                lanes.insert(lane);
                passed_over.push_back(dirty);
                continue;
            }
            self.waits(&dirty, false);
            self.writing.insert(lane, ask.disk);
            bytes += image_bytes;
            batch.push(dirty);
        }
        while let Some(dirty) = passed_over.pop_back() {
            self.waiting.push_front(dirty);
        }
        if !batch.is_empty() {
            let memory_bytes: u64 = batch.iter().map(|dirty| dirty.image.block_bytes()).sum();
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
            self.waits(dirty, true);
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
