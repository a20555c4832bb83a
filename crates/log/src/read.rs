//! Reading a lane from a cursor: finds and pins segments under the lane's lock, walks and copies nothing under it.
//!
//! On the reader's connection thread. Steps of `docs/read-path.md`. Whole segments up to their durable heads are given out as
//! they are; only where `max_bytes` ends inside of one are chunk headers walked to find the boundary, after the lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kera_format::segment::SegmentState;
use kera_format::{BrokerPart, ChunkHeader, Cursor, SegmentId};

use crate::group::{At, Place};
use crate::lane::{Lane, LaneState};
use crate::segment::{FIRST_CHUNK, Segment};
use crate::storage::Location;
use crate::waiters::LaneVersion;

/// What a read found, and where to go on.
#[derive(Clone, Debug)]
pub struct ReadOutcome {
    /// Where the data starts: the cursor asked for, with "the first there is" resolved.
    pub start: Cursor,
    /// Whole chunks, in order, without a copy; each buffer keeps its segment in memory until it is dropped.
    pub data: Vec<Bytes>,
    /// Bytes of `data`.
    pub data_bytes: usize,
    /// Where the next read goes on.
    pub next: Cursor,
    /// `next` is at the end of a closed group.
    pub end_of_group: bool,
    /// There is nothing readable at `next` now: [`Lane::wait`](crate::Lane::wait) with `version`.
    pub at_durable_end: bool,
    /// What is at `next` is on its way from disk: [`Lane::wait`](crate::Lane::wait) with `version`.
    pub loading: bool,
    /// Up to which ordinal the lane is readable.
    pub durable_ordinal: u64,
    /// The state of the lane that this outcome saw.
    pub version: LaneVersion,
}

/// Why a cursor cannot be read from. A retry with the same cursor does not help, except after [`ReadError::LoadFailed`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// What the cursor points to is no longer there: retention took it, or it was lost and set aside.
    #[error("cursor {}/{}/{} is gone, the next that is there is {}/{}/{}",
        .asked.group, .asked.segment, .asked.position, .earliest.group, .earliest.segment, .earliest.position)]
    Gone {
        /// The cursor asked for.
        asked: Cursor,
        /// The first behind it that is there.
        earliest: Cursor,
    },
    /// The lane never had what the cursor points to.
    #[error("cursor {}/{}/{} is past the end of the lane", .0.group, .0.segment, .0.position)]
    Unknown(Cursor),
    /// The position is not the start of a chunk.
    #[error("cursor {}/{}/{}: the position is not the start of a chunk", .0.group, .0.segment, .0.position)]
    NotAChunkBoundary(Cursor),
    /// The disk did not give the segment back. The next read tries again.
    #[error("segment cannot be loaded: {0}")]
    LoadFailed(String),
    /// The stream was deleted.
    #[error("the stream was deleted")]
    Deleted,
}

/// What a reader waits for from disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loading {
    /// Bytes of the segment that comes.
    pub bytes: u64,
    /// Bytes of the arena that it takes: up to twice as many, since it has a block of its own.
    pub memory_bytes: u64,
}

/// A read in progress.
struct Reading {
    outcome: ReadOutcome,
    may_load: bool,
    /// The segment that is waited for.
    loading: Loading,
    /// The segment that holds more than was asked for, where in it the reader is, and how much of it may be taken.
    cut: Option<(Arc<Segment>, u32, usize)>,
    /// A segment that must come from disk.
    load: Option<(SegmentId, Location)>,
    /// The last closed segment whose first chunk is read.
    begun: Option<SegmentId>,
    /// Bytes of it that are new: appended here by this owner, and not gone to disk and back since.
    new_bytes: usize,
    /// So is what is cut.
    cut_is_new: bool,
}

impl Lane {
    /// Reads whole chunks from `cursor` on: up to `max_bytes`, but at least one chunk if there is one. With `follow_groups`
    /// it goes on in the next group of the lane, else it ends with its group.
    pub fn read(&self, cursor: Cursor, max_bytes: usize, follow_groups: bool) -> Result<ReadOutcome, ReadError> {
        self.read_and_load(cursor, max_bytes, follow_groups, true).map(|(outcome, _)| outcome)
    }

    /// The same, but unless it `may_load` it brings nothing back from disk: what is not in memory and not on its way is neither
    /// read nor waited for, and `loading` is false. Also gives what the segment that is waited for takes.
    pub fn read_and_load(
        &self,
        cursor: Cursor,
        max_bytes: usize,
        follow_groups: bool,
        may_load: bool,
    ) -> Result<(ReadOutcome, Loading), ReadError> {
        let mut state = self.state.lock();
        let reading = self.plan(&mut state, cursor, max_bytes, follow_groups, may_load);
        drop(state);
        let Reading { mut outcome, cut, load, begun, loading, mut new_bytes, cut_is_new, .. } = reading?;
        if cut.is_some() || outcome.loading || !outcome.data.is_empty() {
            self.log().mark_used();
        }
        if let Some(store) = self.log().store.get() {
            if let Some((id, at)) = load {
                store.load(id, at);
            }
            if let Some(id) = begun {
                store.reading(id);
            }
        }
        if let Some((segment, from, budget)) = cut {
            let to = chunk_boundary(&segment, from, budget, outcome.data.is_empty());
            if to > from {
                outcome.data.push(segment.into_bytes(from, to));
                outcome.data_bytes += (to - from) as usize;
                outcome.next.position = segment.position_of(to);
                new_bytes += if cut_is_new { (to - from) as usize } else { 0 };
            }
        }
        if new_bytes > 0 {
            self.read_new.fetch_add(new_bytes as u64, Ordering::Relaxed);
        }
        Ok((outcome, loading))
    }

    /// Everything of a read that needs the lock: which segments, from where to where.
    fn plan(
        &self,
        state: &mut LaneState,
        cursor: Cursor,
        max_bytes: usize,
        follow: bool,
        may_load: bool,
    ) -> Result<Reading, ReadError> {
        let outcome = ReadOutcome {
            start: cursor,
            data: Vec::new(),
            data_bytes: 0,
            next: cursor,
            end_of_group: false,
            at_durable_end: false,
            loading: false,
            durable_ordinal: self.durable_ordinal(),
            version: LaneVersion(state.version),
        };
        let loading = Loading::default();
        let (cut, load, begun) = (None, None, None);
        let mut reading = Reading { outcome, may_load, loading, cut, load, begun, new_bytes: 0, cut_is_new: false };
        let Some((mut at, mut from)) = self.locate(state, cursor)? else {
            reading.outcome.at_durable_end = true;
            return Ok(reading);
        };
        let start = state.chain.cursor(at, from);
        if !follow && cursor.group.number() != 0 && start.group != cursor.group {
            // It had read all of its group, which has gone since.
            reading.outcome.end_of_group = true;
            return Ok(reading);
        }
        (reading.outcome.start, reading.outcome.next) = (start, start);
        check_position(state, at, start)?;
        while let Some(end) = self.take(state, &mut reading, at, from, max_bytes)? {
            reading.outcome.next = state.chain.cursor(at, end);
            let last_of_group = at.slot + 1 == state.chain.groups[at.group].slots.len();
            reading.outcome.end_of_group = last_of_group && state.chain.groups[at.group].closed;
            if reading.outcome.end_of_group && !follow {
                break;
            }
            match state.chain.next(at) {
                Some(next) => (at, from) = (next, FIRST_CHUNK),
                None => {
                    reading.outcome.at_durable_end = true;
                    break;
                }
            }
            if reading.outcome.data_bytes >= max_bytes && reading.outcome.data_bytes > 0 {
                break;
            }
            reading.outcome.end_of_group = false;
            reading.outcome.next = state.chain.cursor(at, from);
        }
        Ok(reading)
    }

    /// Takes what fits of one segment. Its end, if the reader is through with it; else the read ends here.
    fn take(
        &self,
        state: &mut LaneState,
        reading: &mut Reading,
        at: At,
        from: u32,
        max_bytes: usize,
    ) -> Result<Option<u32>, ReadError> {
        let group = state.chain.groups[at.group].id;
        let slot = state.chain.slot_mut(at);
        let is_new = group.epoch() == self.home.epoch() && !slot.was_loaded;
        let outcome = &mut reading.outcome;
        let Some(segment) = &slot.memory else {
            if slot.end() == from {
                return Ok(Some(from));
            }
            if !reading.may_load && !slot.loading && slot.failed.is_none() {
                return Ok(None);
            }
            if outcome.data.is_empty() {
                if let Some(reason) = slot.failed.take() {
                    return Err(ReadError::LoadFailed(reason.into()));
                }
                outcome.loading = true;
                reading.loading = slot.at.map_or_else(Loading::default, |at| Loading {
                    bytes: at.bytes,
                    memory_bytes: self.log().arena.block_bytes(at.bytes),
                });
            }
            if let (Some(location), false) = (slot.at, slot.loading) {
                slot.loading = true;
                reading.load = Some((self.segment_id(group, slot.index), location));
            }
            return Ok(None);
        };
        // The state first: once it is closed the head is final, and a durable head that equals it is the end.
        let closed = segment.state() != SegmentState::Open;
        let durable = segment.durable_head();
        let budget = max_bytes.saturating_sub(outcome.data_bytes);
        let here = segment.place_of(from);
        let end = if segment.header().is_compacted() { segment.capacity_bytes() } else { durable };
        let available = durable.saturating_sub(here) as usize;
        if closed && from == FIRST_CHUNK && available > 0 && (budget > 0 || outcome.data.is_empty()) {
            reading.begun = Some(segment.id());
        }
        if available > budget {
            if budget > 0 || outcome.data.is_empty() {
                reading.cut = Some((Arc::clone(segment), here, budget));
                reading.cut_is_new = is_new;
            }
            return Ok(None);
        }
        if available > 0 {
            outcome.data.push(segment.into_bytes(here, durable));
            outcome.data_bytes += available;
            reading.new_bytes += if is_new { available } else { 0 };
            outcome.next.position = end;
        }
        if closed && durable == segment.head() {
            segment.mark_read();
            return Ok(Some(end));
        }
        outcome.at_durable_end = true;
        Ok(None)
    }

    /// Where a reader's cursor points, `None` in a lane without anything.
    pub(crate) fn locate(&self, state: &LaneState, cursor: Cursor) -> Result<Option<(At, u32)>, ReadError> {
        if state.deleted {
            return Err(ReadError::Deleted);
        }
        match state.chain.locate(cursor, self.home.epoch()) {
            Place::Here(at, position) => Ok(Some((at, position))),
            Place::Empty => Ok(None),
            Place::Gone(at) => {
                let earliest = at.map_or(Cursor::default(), |(at, position)| state.chain.cursor(at, position));
                Err(ReadError::Gone { asked: cursor, earliest })
            }
            Place::Unknown => Err(ReadError::Unknown(cursor)),
        }
    }
}

/// Whether a chunk of the segment starts at the cursor, or its durable head is there. What a client sends is not believed: the
/// broker's part of the chunk header must name the place, under its checksum.
fn check_position(state: &LaneState, at: At, cursor: Cursor) -> Result<(), ReadError> {
    let slot = state.chain.slot(at);
    // In a compacted segment a cursor is at the first chunk behind it, wherever it points.
    if cursor.position == FIRST_CHUNK || slot.summary().is_compacted {
        return Ok(());
    }
    let Some(segment) = &slot.memory else {
        // Looked at when it has come.
        let head = slot.summary().head;
        return if cursor.position <= head { Ok(()) } else { Err(past_end(cursor, head)) };
    };
    let settled = segment.is_settled();
    let durable = segment.durable_head();
    if cursor.position == durable {
        return Ok(());
    }
    if cursor.position > durable {
        return Err(if settled { past_end(cursor, durable) } else { ReadError::Unknown(cursor) });
    }
    let part = BrokerPart::parse(segment.bytes(cursor.position, durable));
    let fits = part.is_ok_and(|part| {
        part.position == cursor.position && part.group == cursor.group && part.segment == cursor.segment
    });
    if fits { Ok(()) } else { Err(ReadError::NotAChunkBoundary(cursor)) }
}

/// A position behind the end of a segment that will not grow: what was there was lost.
fn past_end(asked: Cursor, end: u32) -> ReadError {
    ReadError::Gone { asked, earliest: Cursor { position: end, ..asked } }
}

/// The end of the last chunk that ends within `budget` bytes of `from`; with `at_least_one`, of the first chunk anyway.
fn chunk_boundary(segment: &Segment, from: u32, budget: usize, at_least_one: bool) -> u32 {
    let bytes = segment.bytes(from, segment.durable_head());
    let mut end = 0;
    while let Ok(header) = ChunkHeader::parse(&bytes[end..]) {
        let next = end + header.total_bytes();
        if next > bytes.len() || (next > budget && !(at_least_one && end == 0)) {
            break;
        }
        end = next;
    }
    from + end as u32
}
