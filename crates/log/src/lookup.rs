//! From an ordinal or a time to a cursor, without an index: a binary search over groups and segments under the lane's lock,
//! then a walk over the chunk headers of one segment outside it. On the reader's connection thread.

use std::sync::Arc;

use kera_format::chunk::{NO_TIMESTAMP, PayloadKind};
use kera_format::{BrokerPart, ChunkHeader, Cursor, GroupId};

use crate::group::{At, Slot, Summary};
use crate::lane::{Lane, LaneState};
use crate::read::ReadError;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::waiters::LaneVersion;

#[cfg(test)]
thread_local! {
    /// How many segments were looked at for the group of an ordinal.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The chunk is here.
    Found {
        /// Where it starts.
        cursor: Cursor,
        /// Ordinal of its first record: at most the one asked for, unless that is lost; or the lane's durable end.
        ordinal: u64,
    },
    /// The segment is on its way from disk: wait for the lane and ask again.
    Loading(LaneVersion),
}

/// What a lookup by the times of records found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundTime {
    /// A chunk whose header says that a record with that time or later is in it.
    Chunk {
        /// Where it starts.
        cursor: Cursor,
        /// Ordinal of its first record.
        ordinal: u64,
        /// Ordinal behind its last record.
        next_ordinal: u64,
    },
    /// There is none in front of this ordinal; there may be one behind it.
    Passed(u64),
    /// There is none.
    Nothing,
    /// A segment is on its way from disk, or from other nodes: wait for the lane and ask again.
    Loading(LaneVersion),
}

/// The latest time that a record of a chunk can have, by the chunk's header: native records without a timestamp of their own have that of
/// their append.
pub fn newest_ms(header: &ChunkHeader, append_ms: i64) -> i64 {
    match header.max_timestamp_ms {
        NO_TIMESTAMP => append_ms,
        newest if header.kind == PayloadKind::Records => newest.max(append_ms),
        newest => newest,
    }
}

/// The largest time of a segment's records, as far as it is known without looking into it; `None` if it has none.
///
/// That is what those records say that have a time of their own, unless none has. Where some have none, beside others that have, those may be
/// later, up to the last append.
fn newest_of(summary: &Summary) -> Option<i64> {
    let newest = match summary.max_timestamp_ms {
        NO_TIMESTAMP => summary.last_append_ms,
        newest => newest,
    };
    (summary.head > FIRST_CHUNK).then_some(newest)
}

impl Lane {
    /// The first group that has a record of this ordinal or a later one, durable or not; nothing if none was appended yet.
    pub fn group_at(&self, ordinal: u64) -> Option<GroupId> {
        let state = self.state.lock();
        let before = |slot: &Slot| {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            slot.summary().next_ordinal <= ordinal
        };
        Some(state.chain.groups[first_not(&state, before)?.group].id)
    }

    /// The first chunk that is there, and its ordinal.
    pub fn earliest(&self) -> (Cursor, u64) {
        earliest(&self.state.lock())
    }

    /// Behind the last durable chunk, and the ordinal that comes there; a smaller one if chunks become durable meanwhile.
    pub fn latest(&self) -> (Cursor, u64) {
        self.latest_in(&self.state.lock())
    }

    /// The chunk that holds record `ordinal`; the earliest or latest place if it is before or behind what is readable.
    pub fn lookup_ordinal(&self, ordinal: u64) -> Result<Lookup, ReadError> {
        let state = self.state.lock();
        let (cursor, first) = earliest(&state);
        if ordinal <= first && !state.deleted {
            return Ok(Lookup::Found { cursor, ordinal: first });
        }
        self.search(
            state,
            |slot| slot.summary().next_ordinal <= ordinal,
            |header, base, _| base + u64::from(header.record_count) > ordinal,
        )
    }

    /// The first chunk appended at or after `time_ms`; the latest place if there is none.
    pub fn lookup_time(&self, time_ms: i64) -> Result<Lookup, ReadError> {
        let before = |slot: &Slot| {
            let summary = slot.summary();
            // An open segment without a chunk has no time yet.
            (summary.head > FIRST_CHUNK || !slot.open) && summary.last_append_ms < time_ms
        };
        let state = self.state.lock();
        if state.is_rebuilding() && times_are_missing(&state, time_ms) {
            return Ok(Lookup::Loading(LaneVersion(state.version)));
        }
        self.search(state, before, |_, _, append_ms| append_ms >= time_ms)
    }

    /// The first chunk that `wanted` accepts, in the first segment that is not `before`.
    fn search(
        &self,
        state: parking_lot::MutexGuard<'_, LaneState>,
        before: impl Fn(&Slot) -> bool,
        wanted: impl Fn(&ChunkHeader, u64, i64) -> bool,
    ) -> Result<Lookup, ReadError> {
        if state.deleted {
            return Err(ReadError::Deleted);
        }
        let (end, end_ordinal) = self.latest_in(&state);
        let latest = Lookup::Found { cursor: end, ordinal: end_ordinal };
        let Some(at) = first_not(&state, &before) else { return Ok(latest) };
        let start = state.chain.cursor(at, FIRST_CHUNK);
        if start >= end {
            return Ok(latest);
        }
        if let Some(segment) = state.chain.slot(at).memory.clone() {
            drop(state);
            let found = walk(&segment, wanted);
            return Ok(found.map_or(latest, |(position, ordinal, _)| Lookup::Found {
                cursor: Cursor { position, ..start },
                ordinal,
            }));
        }
        self.load(state, at).map(Lookup::Loading)
    }

    /// Has a segment brought back from disk.
    fn load(&self, mut state: parking_lot::MutexGuard<'_, LaneState>, at: At) -> Result<LaneVersion, ReadError> {
        let version = LaneVersion(state.version);
        let start = state.chain.cursor(at, FIRST_CHUNK);
        let id = self.segment_id(start.group, start.segment.0);
        let slot = state.chain.slot_mut(at);
        if let Some(reason) = slot.failed.take() {
            return Err(ReadError::LoadFailed(reason.into()));
        }
        let load = slot.at.filter(|_| !std::mem::replace(&mut slot.loading, true));
        drop(state);
        if let (Some(location), Some(store)) = (load, self.log().store.get()) {
            store.load(id, location);
        }
        Ok(version)
    }

    /// The first chunk with records at or behind ordinal `from` that says that it has one with `time_ms` or later, by the records' own times: whoever wrote
    /// them may have copied them from elsewhere, or have a clock that is ahead of this node's. Looks into one segment at a time.
    ///
    /// Segments are passed over by the largest time of their records, which each keeps. Of records without a time, beside others that have one,
    /// only the append's counts, and no segment says that it has any: they are looked for in memory. For their sake alone no segment comes
    /// back from disk, since then all of them would in a topic that was copied here with old times.
    ///
    /// # Errors
    /// The stream is deleted, or a segment does not come from disk.
    pub fn lookup_timestamp(&self, from: u64, time_ms: i64) -> Result<FoundTime, ReadError> {
        let state = self.state.lock();
        if state.deleted {
            return Err(ReadError::Deleted);
        }
        let from = from.max(self.floor_ordinal());
        let may_have = |slot: &Slot, summary: &Summary| {
            let newest = newest_of(summary);
            let late = summary.last_append_ms >= time_ms && slot.memory.is_some();
            newest.is_some_and(|newest| newest >= time_ms || late)
        };
        let mut found = None;
        for at in state.chain.from(first_not(&state, |slot| slot.summary().next_ordinal <= from)) {
            let (slot, summary) = (state.chain.slot(at), state.chain.slot(at).summary());
            if summary.next_ordinal <= from {
                continue;
            }
            if slot.is_awaited() {
                return Ok(FoundTime::Loading(LaneVersion(state.version)));
            }
            if may_have(slot, &summary) {
                found = Some((at, summary));
                break;
            }
        }
        let Some((at, summary)) = found else { return Ok(FoundTime::Nothing) };
        let Some(segment) = state.chain.slot(at).memory.clone() else {
            return self.load(state, at).map(FoundTime::Loading);
        };
        let start = state.chain.cursor(at, FIRST_CHUNK);
        drop(state);
        let is_whole = segment.durable_head() >= summary.head;
        let wanted = |header: &ChunkHeader, base: u64, append_ms: i64| {
            base + u64::from(header.record_count) > from && newest_ms(header, append_ms) >= time_ms
        };
        Ok(match walk(&segment, wanted) {
            Some((position, ordinal, count)) => FoundTime::Chunk {
                cursor: Cursor { position, ..start },
                ordinal,
                next_ordinal: ordinal + u64::from(count),
            },
            // The largest time is that of a chunk that lies before, or was cut off. All that the summary knows was looked at.
            None if is_whole => FoundTime::Passed(summary.next_ordinal),
            // It is of one that is not durable, and nothing behind that is.
            None => FoundTime::Nothing,
        })
    }

    /// The largest time of records below `below_ms` that a segment says to have; it may be that of a record that is not durable, or deleted.
    ///
    /// # Errors
    /// That is not known before segments have come from other nodes: wait for the lane and ask again.
    pub fn largest_timestamp(&self, below_ms: i64) -> Result<Option<i64>, LaneVersion> {
        let state = self.state.lock();
        let floor = self.floor_ordinal();
        let mut largest = None;
        for at in state.chain.from(first_not(&state, |slot| slot.summary().next_ordinal <= floor)) {
            if state.chain.slot(at).is_awaited() {
                return Err(LaneVersion(state.version));
            }
            let newest = newest_of(&state.chain.slot(at).summary()).filter(|newest| *newest < below_ms);
            largest = largest.max(newest);
        }
        Ok(largest)
    }

    /// Behind the last durable chunk, and an ordinal that is at most the one that comes there.
    ///
    /// What becomes durable moves the durable heads first and the lane's durable ordinal then, without the lane's lock, and
    /// segments leave `unsettled` later still. So the ordinal is read before the heads, and a segment counts as settled as
    /// soon as its head says so: the place is never before the ordinal that was already seen to be durable.
    fn latest_in(&self, state: &LaneState) -> (Cursor, u64) {
        let ordinal = self.durable_ordinal();
        if let Some(segment) = state.unsettled.iter().find(|segment| !segment.is_settled()) {
            let id = segment.id();
            return (Cursor { group: id.group, segment: id.index, position: segment.durable_head() }, ordinal);
        }
        let last = state.chain.last().map(|at| state.chain.cursor(at, state.chain.slot(at).end()));
        (last.unwrap_or_default(), ordinal)
    }
}

/// The first slot that is not `before`.
fn first_not(state: &LaneState, before: impl Fn(&Slot) -> bool) -> Option<At> {
    let chain = &state.chain;
    if state.is_rebuilding() {
        // Of what is awaited `before` knows nothing: where it does not matter it may say anything, in any order.
        return chain.from(chain.first()).find(|at| !before(chain.slot(*at)));
    }
    let group = chain.groups.partition_point(|group| group.slots.back().is_some_and(&before));
    let slots = &chain.groups.get(group)?.slots;
    Some(At { group, slot: slots.partition_point(&before) })
}

/// Whether the place of a time depends on segments that are still awaited, whose times are not known. Times never fall along a
/// lane: what is before a segment that begins earlier is earlier too, and what is behind one that ends later does not matter.
fn times_are_missing(state: &LaneState, time_ms: i64) -> bool {
    let mut missing = false;
    for at in state.chain.from(state.chain.first()) {
        let (slot, summary) = (state.chain.slot(at), state.chain.slot(at).summary());
        if slot.is_awaited() {
            missing = true;
        } else if summary.head > FIRST_CHUNK && summary.first_append_ms < time_ms {
            missing = false;
            if summary.last_append_ms >= time_ms {
                return false;
            }
        } else if summary.head > FIRST_CHUNK {
            return missing;
        }
    }
    missing
}

fn earliest(state: &LaneState) -> (Cursor, u64) {
    state.chain.first().map_or((Cursor::default(), state.next_ordinal), |at| {
        (state.chain.cursor(at, FIRST_CHUNK), state.chain.slot(at).summary().base_ordinal)
    })
}

/// The first durable chunk of a segment that is wanted: its position, its ordinal and how many records it counts.
fn walk(segment: &Arc<Segment>, wanted: impl Fn(&ChunkHeader, u64, i64) -> bool) -> Option<(u32, u64, u32)> {
    let bytes = segment.bytes(FIRST_CHUNK, segment.durable_head());
    let mut at = 0;
    while at < bytes.len() {
        let header = ChunkHeader::parse(&bytes[at..]).ok()?;
        let part = BrokerPart::parse(&bytes[at..]).ok()?;
        if wanted(&header, part.base_ordinal, part.append_time_ms) {
            return Some((part.position, part.base_ordinal, header.record_count));
        }
        at += header.total_bytes();
    }
    None
}
