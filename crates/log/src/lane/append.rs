//! Appending a chunk to a lane: admit, make room, copy and verify, stamp, move the head.
//!
//! On the thread of the connection that brought the chunk, under the lane's lock. Steps 2 to 5 of `docs/write-path.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::chunk::{Chunk, Skip};
use kera_format::limits::SEGMENT_BYTES_MIN;
use kera_format::segment::{SegmentHeader, SegmentState};
use kera_format::{BrokerPart, ChunkHeader, Cursor, FormatError, StreamOptions};
use parking_lot::MutexGuard;

use super::{Lane, LaneState, Open};
use crate::arena::{ArenaFull, Block, Filling, Purpose};
use crate::group::{Group, Slot, ahead_of};
use crate::producers::{Admission, Place};
use crate::segment::{FIRST_CHUNK, Segment};
use crate::sink::{ChunkReference, SinkError, Ticket};
use crate::tenure::Tenure;
use crate::waiters::Wake;

/// A chunk's place, once it is appended. Appended is not durable: see [`Appended::ticket`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Where the chunk starts. For a duplicate of long ago, of which only that it was appended is known,
    /// [`GroupId::NONE`].
    pub cursor: Cursor,
    /// Ordinal of its first record; [`Appended::UNKNOWN_ORDINAL`] for a duplicate of long ago.
    pub base_ordinal: u64,
    /// The chunk was there already and was not appended again.
    pub duplicate: bool,
    /// What to wait for in [its log](Lane::sink_of) before acknowledging; `None`: it is durable.
    pub ticket: Option<Ticket>,
    /// Which of the streamlet's logs the ticket is of.
    pub log: u8,
}

impl Appended {
    /// The place of a duplicate that is too old to be remembered.
    pub const UNKNOWN_ORDINAL: u64 = u64::MAX;
}

/// Why a chunk was not appended. Nothing is changed; a retry cannot duplicate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// No arena block: wait with [`crate::Log::wait_for_space`], then try again.
    #[error("the arena has no free block of {} bytes", .0.bytes)]
    ArenaFull(ArenaFull),
    /// It does not fit into the largest segment of the stream. Do not retry.
    #[error("the chunk has {bytes} bytes, the limit of this stream is {limit} (segment_bytes_max less 128)")]
    ChunkTooLarge {
        /// The chunk's bytes.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// The chunk is for another stream or streamlet, or its bytes changed on the way. Send it again from the source.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Chunks before this one are missing. Send from `expected` on.
    #[error("producer {producer} sent sequence {found}, expected is {expected}")]
    SequenceGap {
        /// The producer.
        producer: u64,
        /// The sequence that it sent.
        found: u64,
        /// The one that comes next.
        expected: u64,
        /// Those from there on may have been here and be forgotten. A producer that knows them to be settled skips them.
        forgot: bool,
    },
    /// A later incarnation of the producer has written. Stop: this one is fenced.
    #[error("producer {producer} wrote with epoch {found}, its current epoch is {current}")]
    StaleEpoch {
        /// The producer.
        producer: u64,
        /// The epoch that it sent.
        found: u16,
        /// The highest seen.
        current: u16,
    },
    /// What makes chunks durable cannot now. Retry later.
    #[error(transparent)]
    SinkUnhealthy(#[from] SinkError),
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Closed,
    /// Another node owns the streamlet, or will in a moment: send it there.
    #[error("the streamlet is not owned by this node")]
    Elsewhere {
        /// It is being given to another node. Perhaps it stays.
        letting_go: bool,
    },
}

/// One part in this many of the arena is for open segments, as far as their sizes can see to it.
const OPEN_SHARE: u64 = 4;
/// A segment's class is at most this many times that of the one before it in its lane.
const GROWTH_MAX: u64 = 8;

impl Lane {
    /// Appends a chunk that was parsed but not verified: checks its checksum while copying it, under the lane's lock.
    ///
    /// With durability `process` it is readable, and may be acknowledged, on return. With `power` it is appended, and
    /// readable and acknowledged when its ticket is durable. An error leaves no trace.
    ///
    /// It is of a producer that cannot skip numbers: if the lane may have forgotten it, it goes on at any number.
    #[inline]
    pub fn append(self: &Arc<Self>, chunk: &impl Chunk, now_ms: i64) -> Result<Appended, AppendError> {
        self.append_if(chunk, now_ms, None, |admission| match admission {
            Admission::Forgotten { .. } => Admission::Next,
            other => other,
        })
    }

    /// [Appends](Lane::append) a chunk in front of which its producer may skip numbers. If these are not what is missing, or may be, it is refused with
    /// [`AppendError::SequenceGap`], which says what is.
    #[inline]
    pub fn append_skipping(
        self: &Arc<Self>,
        chunk: &impl Chunk,
        now_ms: i64,
        skips: Option<Skip>,
    ) -> Result<Appended, AppendError> {
        self.append_if(chunk, now_ms, skips, |admission| admission)
    }

    #[inline]
    fn append_if(
        self: &Arc<Self>,
        chunk: &impl Chunk,
        now_ms: i64,
        skips: Option<Skip>,
        takes: impl FnOnce(Admission) -> Admission,
    ) -> Result<Appended, AppendError> {
        let header = chunk.header();
        self.check_target(header)?;
        let mut guard = self.state.lock();
        let admission = takes(guard.producers.admit(header, skips));
        if admission != Admission::Next || guard.deleted || !self.home.tenure.is_here() {
            return self.not_appended(&guard, chunk, admission);
        }
        let bytes = chunk.header().total_bytes() as u32;
        if guard.open.as_ref().is_none_or(|open| open.room() < bytes) {
            guard = self.make_room(guard, bytes, now_ms)?;
        }
        if guard.open.as_ref().is_some_and(|open| !open.segment.has_memory(open.head + bytes)) {
            guard = self.get_memory(guard, bytes, now_ms)?;
        }
        let (appended, wake) = self.put(&mut guard, chunk, now_ms)?;
        let spent = guard.open.as_ref().filter(|open| open.is_spent(bytes));
        let spent = spent.map(|open| (open.segment.id(), open.segment.block_bytes()));
        drop(guard);
        if let Some((id, bytes)) = spent.filter(|_| self.log().arena.is_short()) {
            self.await_turn_to_close(id, bytes);
        }
        self.log().mark_used();
        wake.call();
        Ok(appended)
    }

    /// Puts an admitted chunk behind the head of the open segment, which has room for it.
    #[inline]
    fn put(
        self: &Arc<Self>,
        state: &mut LaneState,
        chunk: &impl Chunk,
        now_ms: i64,
    ) -> Result<(Appended, Wake), AppendError> {
        let (header, bytes) = (chunk.header(), chunk.header().total_bytes() as u32);
        let open = state.open.as_mut().expect("room was made in the open segment");
        if let Some(sink) = &open.sink {
            sink.healthy()?;
        }
        let append_ms = now_ms.max(state.last_append_ms);
        let base_ordinal = state.next_ordinal;
        let id = open.segment.id();
        let cursor = Cursor { group: id.group, segment: id.index, position: open.head };
        let part = BrokerPart {
            group: id.group,
            segment: id.index,
            base_ordinal,
            append_time_ms: append_ms,
            lane: self.id,
            position: open.head,
        };
        open.segment.put_chunk(open.head, chunk, &part)?;
        let next_ordinal = base_ordinal + u64::from(header.record_count);
        open.head += bytes;
        open.chunk_count += 1;
        open.used_ms = now_ms;
        open.segment.advance(open.head, next_ordinal, open.chunk_count, append_ms, header.max_timestamp_ms);
        open.segment.prepare(open.head, bytes);
        state.next_ordinal = next_ordinal;
        state.last_append_ms = append_ms;
        state.counts.chunks += 1;
        state.counts.bytes += u64::from(bytes);
        state.counts.records += u64::from(header.record_count);
        let limit = self.log().config.producers_per_lane_max;
        let place = Place { cursor, base_ordinal };
        state.producers.note(header.producer_id, header.producer_epoch, header.sequence, place, limit);
        let log = self.home.log_number();
        let mut appended = Appended { cursor, base_ordinal, duplicate: false, ticket: None, log };
        if let Some(sink) = &open.sink {
            let (segment, lane) = (Arc::clone(&open.segment), Arc::clone(self));
            let ticket = sink.appended(ChunkReference {
                segment,
                position: cursor.position,
                bytes,
                next_ordinal,
                lane,
                row: None,
            });
            state.last_ticket = Some(ticket);
            appended.ticket = Some(ticket);
            return Ok((appended, Wake::default()));
        }
        open.segment.advance_durable(open.head);
        if state.unsettled.is_empty() {
            self.durable_ordinal.store(next_ordinal, Ordering::Release);
        }
        state.version += 1;
        Ok((appended, state.waiters.take()))
    }

    fn check_target(&self, header: &ChunkHeader) -> Result<(), FormatError> {
        if header.stream != self.stream_id() {
            let (value, allowed) = (header.stream.0, "the stream that it is sent to");
            return Err(FormatError::BadField { field: "chunk.stream", value, allowed });
        }
        if header.streamlet != self.streamlet_id() {
            let (value, allowed) = (header.streamlet.0.into(), "the streamlet that it is sent to");
            return Err(FormatError::BadField { field: "chunk.streamlet", value, allowed });
        }
        Ok(())
    }

    /// Whether the streamlet takes appends on this node.
    fn check_here(&self) -> Result<(), AppendError> {
        match self.tenure() {
            Tenure::Here => Ok(()),
            tenure => Err(AppendError::Elsewhere { letting_go: tenure == Tenure::LettingGo }),
        }
    }

    /// A chunk that is there already or may not come now. Its header is only believed once its checksum is verified: a
    /// changed bit in a sequence must not pass for a duplicate.
    #[cold]
    fn not_appended(
        &self,
        state: &LaneState,
        chunk: &impl Chunk,
        admission: Admission,
    ) -> Result<Appended, AppendError> {
        if state.deleted {
            return Err(AppendError::Closed);
        }
        self.check_here()?;
        chunk.verify()?;
        let (producer, epoch, sequence) =
            (chunk.header().producer_id.0, chunk.header().producer_epoch.0, chunk.header().sequence);
        let gap = |expected, forgot| AppendError::SequenceGap { producer, found: sequence, expected, forgot };
        match admission {
            Admission::Gap { expected } => Err(gap(expected, false)),
            Admission::Forgotten { expected } => Err(gap(expected, true)),
            Admission::Stale { current } => Err(AppendError::StaleEpoch { producer, found: epoch, current }),
            Admission::Duplicate(place) => {
                self.duplicates.fetch_add(1, Ordering::Relaxed);
                let (cursor, base_ordinal) =
                    place.map_or((Cursor::default(), Appended::UNKNOWN_ORDINAL), |p| (p.cursor, p.base_ordinal));
                let (ticket, log) = (state.last_ticket, self.home.log_number());
                Ok(Appended { cursor, base_ordinal, duplicate: true, ticket, log })
            }
            Admission::Next => Err(AppendError::Closed),
        }
    }

    /// Opens the next segment; on failure the lock is given up before anybody is told.
    #[cold]
    fn make_room<'a>(
        self: &Arc<Self>,
        mut state: MutexGuard<'a, LaneState>,
        bytes: u32,
        now_ms: i64,
    ) -> Result<MutexGuard<'a, LaneState>, AppendError> {
        match self.open_segment(&mut state, bytes, now_ms) {
            Ok(()) => Ok(state),
            Err(error) => {
                // The segment before was closed: a reader at its end may want to know.
                let wake = state.waiters.take();
                drop(state);
                wake.call();
                if let AppendError::ArenaFull(full) = &error {
                    self.log().want_space(full);
                }
                Err(error)
            }
        }
    }

    /// Gets the next piece of memory for the open segment; on failure the lock is given up before anybody is told.
    ///
    /// If the machine has none for it, there may be none for long: what is evicted keeps the memory that it has. So the lane goes on in another block, which may have some.
    #[cold]
    fn get_memory<'a>(
        self: &Arc<Self>,
        state: MutexGuard<'a, LaneState>,
        bytes: u32,
        now_ms: i64,
    ) -> Result<MutexGuard<'a, LaneState>, AppendError> {
        let get = |open: &Open| (open.segment.get_memory(open.head + bytes), open.chunk_count > 0);
        match state.open.as_ref().map_or((Ok(()), false), get) {
            (Ok(()), _) => Ok(state),
            (Err(_), true) => self.make_room(state, bytes, now_ms),
            (Err(full), false) => {
                drop(state);
                self.log().want_space(&full);
                Err(AppendError::ArenaFull(full))
            }
        }
    }

    /// Closes the open segment, if there is one, and opens the next: in the same group or, when that is full or closed, in
    /// the next. The old one is closed even if there is no block for the next: a full arena needs segments to write out.
    fn open_segment(self: &Arc<Self>, state: &mut LaneState, bytes: u32, now_ms: i64) -> Result<(), AppendError> {
        if self.home.stream.is_deleted_for_writers() {
            return Err(AppendError::Closed);
        }
        self.check_here()?;
        let options = self.home.stream.options();
        let limit = u64::from(options.segment_bytes_max - FIRST_CHUNK);
        if u64::from(bytes) > limit {
            return Err(AppendError::ChunkTooLarge { bytes: bytes.into(), limit });
        }
        let sink = if self.home.is_logged() { Some(Arc::clone(self.home.sink()?)) } else { None };
        if let Some(sink) = &sink {
            sink.healthy()?;
        }
        self.close_open(state, now_ms);
        let needed = (bytes + FIRST_CHUNK) as usize;
        let class = self.segment_class(state, needed, &options);
        let filling = if state.fills { Filling::Whole } else { Filling::Sparse };
        let block = self.allocate(class, needed, filling).map_err(AppendError::ArenaFull)?;
        let segment = self.start_segment(state, block, &options, now_ms);
        state.class_bytes = class as u64;
        let (head, capacity) = (FIRST_CHUNK, segment.room_bytes());
        self.set_open(
            state,
            Open { segment, head, capacity, chunk_count: 0, opened_ms: now_ms, used_ms: now_ms, sink },
        );
        Ok(())
    }

    /// Puts an empty open segment at the end of the lane.
    pub(crate) fn start_segment(
        &self,
        state: &mut LaneState,
        block: Block,
        options: &StreamOptions,
        now_ms: i64,
    ) -> Arc<Segment> {
        if !state.chain.groups.back().is_some_and(Group::has_room) {
            if let Some(group) = state.chain.groups.back_mut() {
                group.closed = true;
            }
            state.chain.groups.push_back(Group::new(self.home.next_group(), options.segments_per_group));
        }
        let group = state.chain.groups.back_mut().expect("a group with room");
        let header = SegmentHeader {
            id: self.segment_id(group.id, group.next_index()),
            capacity_bytes: block.capacity_bytes().min(options.segment_bytes_max),
            base_ordinal: state.next_ordinal,
            created_ms: now_ms,
            flags: 0,
        };
        let segment = Segment::create(block, header);
        group.slots.push_back(Slot::resident(Arc::clone(&segment), true));
        self.log().segments_opened.fetch_add(1, Ordering::Relaxed);
        segment
    }

    /// Ends the open segment, and its group if that is full. What is durable goes to the store.
    pub(crate) fn close_open(&self, state: &mut LaneState, now_ms: i64) {
        let Some(open) = self.take_open(state) else { return };
        let ms = now_ms.saturating_sub(open.opened_ms).max(1) as u64;
        state.bytes_per_s = u64::from(open.head - FIRST_CHUNK) * 1000 / ms;
        state.fills = open.head > open.capacity / 2;
        if open.chunk_count == 0 {
            // Times of segments never fall along a lane: lookups by time rely on it.
            open.segment.set_times(state.last_append_ms);
        }
        let group = state.chain.groups.back_mut().expect("the open segment's group");
        let slot = group.slots.back_mut().expect("the open segment's slot");
        slot.seal();
        let is_raised = open.segment.last_append_ms() > ahead_of(open.used_ms);
        slot.raised_ms = is_raised.then_some(open.used_ms);
        group.closed |= group.next_index() >= group.limit;
        let id = open.segment.id();
        if let Some(marks) = state.producers.marks_in(id.group, id.index, open.segment.base_ordinal()) {
            open.segment.set_marks(marks);
        }
        open.segment.close(if group.closed { SegmentState::ClosedGroup } else { SegmentState::Closed });
        if state.unsettled.is_empty() && open.segment.is_settled() {
            self.log().hand_over(&open.segment);
        } else {
            state.unsettled.push_back(open.segment);
        }
        // A reader at the end of the group now learns that it is the end.
        state.version += 1;
    }

    /// Bytes of the next segment's block: what the lane writes in a while, within limits, and enough for the chunk. The largest is the
    /// one that holds all that a segment of the stream may have, and little more; others are filled to their end.
    fn segment_class(&self, state: &LaneState, needed: usize, options: &StreamOptions) -> usize {
        let log = self.log();
        let within = |bytes| log.arena.block_bytes_within(bytes);
        // The smallest blocks leave least of the arena empty at the ends of segments, but twice as many segments go to disk and come back:
        // so they are for when memory is short.
        let usual = log.arena.block_bytes(SEGMENT_BYTES_MIN as u64);
        let least = if log.arena.is_short() { within(1) } else { usual };
        // All open segments together take about a quarter of the arena at most, however many lanes are busy.
        let open = log.segments_open.load(Ordering::Relaxed).max(1) * OPEN_SHARE;
        let share = log.arena.bytes() / open.max(log.config.segment_arena_share.into());
        let most = within(share)
            .min(log.arena.block_bytes(options.segment_bytes_max.into()))
            .min(state.class_bytes.max(least / GROWTH_MAX) * GROWTH_MAX)
            .max(least);
        let wanted = state.bytes_per_s.saturating_mul(log.config.segment_fill_ms.into()) / 1000;
        (log.arena.block_bytes(wanted.clamp(least, most)) as usize).max(needed)
    }

    /// A block of the class, or of the largest smaller one that there is and that is enough.
    fn allocate(&self, class: usize, needed: usize, filling: Filling) -> Result<Block, ArenaFull> {
        let is_system = self.home.stream.is_system.load(Ordering::Relaxed);
        let purpose = if is_system { Purpose::System } else { Purpose::Write };
        let arena = &self.log().arena;
        let least = needed.max(arena.block_bytes_within(1) as usize);
        let mut bytes = class;
        loop {
            let half = arena.block_bytes(bytes as u64) as usize / 2;
            match arena.allocate_with(bytes, needed, (purpose, filling)) {
                Err(_) if half >= least => bytes = half,
                other => return other,
            }
        }
    }
}
