//! The groups and segments of a lane, in order: what is there, in memory or on disk, and where a cursor points.
//!
//! Pure bookkeeping, under the lane's lock. A [`Chain`] only names segments: it never looks into their bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_env::Believed;
use kera_format::chunk::NO_TIMESTAMP;
use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::segment::{SegmentHeader, SegmentProgress};
use kera_format::{Cursor, GroupId, SegmentIndex};

use crate::rebuild::AwaitedSegment;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::storage::Location;

/// A time that is further ahead of the clock is from a clock that was wrong. Clocks of nodes differ by less.
const AHEAD_MS: i64 = 600_000;

/// Later times are from a clock that was wrong.
pub(crate) fn ahead_of(now_ms: i64) -> i64 {
    now_ms.saturating_add(AHEAD_MS)
}

/// A group, as consumers are told about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupInfo {
    /// Its name.
    pub id: GroupId,
    /// Ordinal of the first record that is still there.
    pub first_ordinal: u64,
    /// Ordinal of the record after the last appended.
    pub next_ordinal: u64,
    /// Up to which ordinal it is readable.
    pub durable_ordinal: u64,
    /// The first segment that is still there.
    pub first_segment: SegmentIndex,
    /// The last segment. Those between are there, unless one was lost.
    pub last_segment: SegmentIndex,
    /// Bytes of the segments that are there, headers included.
    pub bytes: u64,
    /// Append time of its first chunk; 0 if it has none.
    pub first_append_ms: i64,
    /// Append time of its last chunk; 0 if it has none.
    pub last_append_ms: i64,
    /// Whether it takes no more appends.
    pub closed: bool,
    /// Whether compaction has taken something of it here, or has seen that there is nothing to take.
    pub is_compacted: bool,
}

/// A segment, as consumers are told about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// Its number in its group.
    pub index: SegmentIndex,
    /// Ordinal of its first record.
    pub base_ordinal: u64,
    /// Up to which ordinal it is readable.
    pub durable_ordinal: u64,
    /// Up to which byte it is readable.
    pub durable_head: u32,
    /// Bytes of its buffer when it was opened.
    pub capacity_bytes: u32,
    /// Append time of its first chunk; 0 if the lane had none before its end.
    pub first_append_ms: i64,
    /// Append time of its last chunk; 0 if the lane had none before its end.
    pub last_append_ms: i64,
    /// Whether it takes appends.
    pub open: bool,
    /// Whether it is in memory.
    pub in_memory: bool,
    /// Whether it is on disk.
    pub on_disk: bool,
    /// How often compaction has rewritten it.
    pub rewrites: u32,
}

/// What a lane knows about a segment without looking into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    pub(crate) capacity: u32,
    pub(crate) head: u32,
    pub(crate) base_ordinal: u64,
    pub(crate) next_ordinal: u64,
    pub(crate) first_append_ms: i64,
    pub(crate) last_append_ms: i64,
    /// The largest timestamp of its records; [`NO_TIMESTAMP`] if none has one of its own.
    pub(crate) max_timestamp_ms: i64,
    /// It was compacted: where its readers stop is its capacity, since positions in it are not places.
    pub(crate) is_compacted: bool,
    /// When it was compacted first and whole.
    pub(crate) compacted_ms: Option<i64>,
    /// Compaction may have taken the last chunks of producers that its lane had forgotten.
    pub(crate) has_forgotten: bool,
    pub(crate) rewrites: u32,
}

/// To which sinks a segment was given again last, by their addresses, and as of which rewriting; the last one first.
///
/// Two are in turns at most: the log that its streamlet is in, which is given what lacks copies, and the one that is to have another number of them.
/// With one of them remembered each would count as not given what the other was given since, and all that is in front of a segment would go to both
/// again at each turn, without end. What one was given stays true whatever the other is given: each keeps its blocks for itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct CopiedTo([Option<(usize, u32)>; 2]);

impl CopiedTo {
    pub(crate) fn note(&mut self, sink: usize, rewrites: u32) {
        if self.0[0].is_none_or(|(known, _)| known != sink) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((sink, rewrites));
    }

    pub(crate) fn has(&self, sink: usize, rewrites: u32) -> bool {
        self.0.contains(&Some((sink, rewrites)))
    }
}

/// A segment's place in its group.
pub(crate) struct Slot {
    pub(crate) index: u32,
    /// It takes appends: the summary is in the segment.
    pub(crate) open: bool,
    /// As of its closing.
    closed: Summary,
    pub(crate) memory: Option<Arc<Segment>>,
    pub(crate) at: Option<Location>,
    /// It is on its way from disk.
    pub(crate) loading: bool,
    /// It was, once.
    pub(crate) was_loaded: bool,
    /// Why it did not come.
    pub(crate) failed: Option<Box<str>>,
    /// What is on its way is from here, where the segment was before it was compacted: not taken, and given back then. Of one that a start has cut: a longer image, which
    /// is given back when the shorter is stored.
    pub(crate) stale: Option<Location>,
    /// Nothing is left of it but its last chunk, without a record: no pass of compaction changes it any more. Known once one has seen that.
    pub(crate) is_emptied: bool,
    /// Of a compacted segment: to whom it was given again.
    pub(crate) copied: CopiedTo,
    /// It was rebuilt since this process began, so its copies are in logs of today, or will be before those go that it was rebuilt from.
    pub(crate) is_rebuilt: bool,
    /// When it was first seen closed with append times that are ahead of the clock, on the monotonic one.
    pub(crate) ahead_since_ms: Option<i64>,
    /// What the clock said when it was appended to last with a later time, since the lane had one: the clock was behind, or the lane's times are ahead. Known to the process that
    /// appended it.
    pub(crate) raised_ms: Option<i64>,
}

impl Slot {
    /// Neither in memory nor on disk, and nothing has happened to it.
    fn nowhere(index: u32, open: bool, closed: Summary) -> Slot {
        Slot {
            index,
            open,
            closed,
            memory: None,
            at: None,
            loading: false,
            was_loaded: false,
            failed: None,
            stale: None,
            is_emptied: false,
            copied: CopiedTo::default(),
            is_rebuilt: false,
            ahead_since_ms: None,
            raised_ms: None,
        }
    }

    /// A segment in memory.
    pub(crate) fn resident(segment: Arc<Segment>, open: bool) -> Slot {
        let closed = Summary::of(&segment);
        let index = segment.id().index.0;
        Slot { memory: Some(segment), ..Slot::nowhere(index, open, closed) }
    }

    /// A closed segment on disk.
    pub(crate) fn stored(index: u32, closed: Summary, at: Location) -> Slot {
        Slot { at: Some(at), ..Slot::nowhere(index, false, closed) }
    }

    /// A segment of a lost owner that is to be rebuilt.
    pub(crate) fn awaited(awaited: &AwaitedSegment) -> Slot {
        let AwaitedSegment { index, end, base_ordinal, next_ordinal, rewrite, .. } = *awaited;
        // Of a compacted one only the row's end is known, and positions in it are not those in the row: no reader is at its end before it is there.
        let is_compacted = rewrite != 0;
        let closed = Summary {
            capacity: if is_compacted { SEGMENT_BYTES_MAX as u32 } else { end },
            head: end,
            base_ordinal,
            next_ordinal,
            first_append_ms: 0,
            last_append_ms: 0,
            max_timestamp_ms: NO_TIMESTAMP,
            is_compacted,
            compacted_ms: None,
            has_forgotten: false,
            rewrites: 0,
        };
        Slot { is_rebuilt: true, ..Slot::nowhere(index.0, false, closed) }
    }

    /// Whether it is neither in memory nor on disk yet: all that is known of it are its ordinals and its end, not its times.
    pub(crate) fn is_awaited(&self) -> bool {
        self.memory.is_none() && self.at.is_none()
    }

    /// Where readers of it stop for now.
    pub(crate) fn end(&self) -> u32 {
        if self.closed.is_compacted {
            return self.closed.capacity;
        }
        self.memory.as_ref().map_or(self.closed.head, |segment| segment.durable_head())
    }

    /// Where a reader is that has read all of it and will find no more. In a compacted segment that is not its head, which is where bytes end: readers keep
    /// the positions that chunks had when they were appended, and those behind the head are of chunks that are there.
    pub(crate) fn last_position(&self) -> u32 {
        if self.closed.is_compacted { self.end() } else { self.summary().head }
    }

    pub(crate) fn summary(&self) -> Summary {
        match &self.memory {
            Some(segment) if self.open => Summary::of(segment),
            _ => self.closed,
        }
    }

    /// How long ago it was appended to, by an append time of it, or by what is known otherwise if that time is ahead of the clock: see
    /// [`note_ahead`](Chain::note_ahead).
    pub(crate) fn age_ms(&self, append_ms: i64, now: &Believed) -> i64 {
        let age_ms = match append_ms <= ahead_of(now.now_ms()) {
            true => now.age_ms(append_ms),
            false => self.ahead_since_ms.map_or(0, |since_ms| now.mono_ms().saturating_sub(since_ms)),
        };
        // A lane whose last records are eight days old takes some before the clock is set: they are not eight days old.
        self.raised_ms.map_or(age_ms, |raised_ms| age_ms.min(now.age_ms(raised_ms)))
    }

    /// For outside; `durable_ordinal` is the lane's.
    pub(crate) fn info(&self, durable_ordinal: u64) -> SegmentInfo {
        let summary = self.summary();
        SegmentInfo {
            index: SegmentIndex(self.index),
            base_ordinal: summary.base_ordinal,
            durable_ordinal: durable_ordinal.clamp(summary.base_ordinal, summary.next_ordinal),
            durable_head: self.end(),
            capacity_bytes: summary.capacity,
            first_append_ms: summary.first_append_ms,
            last_append_ms: summary.last_append_ms,
            open: self.open,
            in_memory: self.memory.is_some(),
            on_disk: self.at.is_some(),
            rewrites: summary.rewrites,
        }
    }

    /// As what it counts to whom it is given again: each rewriting makes another of it.
    pub(crate) fn rewriting(&self) -> (bool, u32) {
        (self.closed.is_compacted, self.closed.rewrites)
    }

    /// The segment takes no more appends.
    pub(crate) fn seal(&mut self) {
        self.closed = self.summary();
        self.open = false;
    }

    /// The segment was rewritten and is here now. Where it was, and what was in memory of it.
    pub(crate) fn replace(&mut self, closed: Summary, at: Location) -> (Option<Location>, Option<Arc<Segment>>) {
        (self.closed, self.failed, self.is_emptied) = (closed, None, false);
        let (was, memory) = (self.at.replace(at), self.memory.take());
        if self.loading && self.stale.is_none() {
            self.stale = was;
            return (None, memory);
        }
        (was, memory)
    }

    /// What was on its way has come, or will not. True if it counts.
    pub(crate) fn has_come(&mut self) -> Result<(), Location> {
        self.loading = false;
        self.stale.take().map_or(Ok(()), Err)
    }

    /// An image of it was written, and is here now. An error: it is not of what is in its place by now, but of what is awaited or of one that was cut since; otherwise where a longer
    /// image is that the lane needed until then.
    pub(crate) fn persisted(&mut self, at: Location) -> Result<Option<Location>, ()> {
        // What is awaited was never given to the store: this is an older copy, which may be longer.
        if self.is_awaited() || u64::from(self.summary().head) != at.bytes {
            return Err(());
        }
        self.at = Some(at);
        Ok(if self.loading { None } else { self.stale.take() })
    }

    /// The segment was changed while the lane was rebuilt.
    pub(crate) fn refresh(&mut self) {
        if let Some(segment) = &self.memory {
            self.closed = Summary::of(segment);
        }
    }
}

impl Summary {
    pub(crate) fn of(segment: &Segment) -> Summary {
        Summary {
            capacity: segment.capacity_bytes(),
            head: segment.head(),
            base_ordinal: segment.base_ordinal(),
            next_ordinal: segment.next_ordinal(),
            first_append_ms: segment.first_append_ms(),
            last_append_ms: segment.last_append_ms(),
            max_timestamp_ms: segment.max_timestamp_ms(),
            is_compacted: segment.header().is_compacted(),
            compacted_ms: segment.header().compacted_ms(),
            has_forgotten: segment.header().has_forgotten(),
            rewrites: segment.header().rewrites(),
        }
    }

    /// Of a closed segment that is on disk.
    pub(crate) fn stored(header: &SegmentHeader, progress: &SegmentProgress) -> Summary {
        Summary {
            capacity: header.capacity_bytes,
            head: progress.head as u32,
            base_ordinal: header.base_ordinal,
            next_ordinal: progress.next_ordinal,
            first_append_ms: progress.first_append_ms,
            last_append_ms: progress.last_append_ms,
            max_timestamp_ms: progress.max_timestamp_ms,
            is_compacted: header.is_compacted(),
            compacted_ms: header.compacted_ms(),
            has_forgotten: header.has_forgotten(),
            rewrites: header.rewrites(),
        }
    }
}

/// A group of a lane: at least one segment, indexes rising.
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) slots: VecDeque<Slot>,
    /// Segments it may have.
    pub(crate) limit: u32,
    pub(crate) closed: bool,
}

impl Group {
    pub(crate) fn new(id: GroupId, limit: u32) -> Group {
        Group { id, slots: VecDeque::with_capacity(1), limit, closed: false }
    }

    /// The index that the next segment gets.
    pub(crate) fn next_index(&self) -> u32 {
        self.slots.back().map_or(0, |slot| slot.index + 1)
    }

    /// Whether there may be another segment.
    pub(crate) fn has_room(&self) -> bool {
        !self.closed && self.next_index() < self.limit
    }

    /// For outside; `durable_ordinal` is the lane's.
    pub(crate) fn info(&self, durable_ordinal: u64) -> Option<GroupInfo> {
        let (first, last) = (self.slots.front()?, self.slots.back()?);
        let (start, end) = (first.summary(), last.summary());
        Some(GroupInfo {
            id: self.id,
            first_ordinal: start.base_ordinal,
            next_ordinal: end.next_ordinal,
            durable_ordinal: durable_ordinal.clamp(start.base_ordinal, end.next_ordinal.max(start.base_ordinal)),
            first_segment: SegmentIndex(first.index),
            last_segment: SegmentIndex(last.index),
            bytes: self.slots.iter().map(|slot| u64::from(slot.summary().head)).sum(),
            first_append_ms: start.first_append_ms,
            last_append_ms: end.last_append_ms,
            closed: self.closed,
            is_compacted: self.slots.iter().any(|slot| slot.summary().is_compacted),
        })
    }
}

/// Which group and which slot of a chain. Good until the chain changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub(crate) group: usize,
    pub(crate) slot: usize,
}

/// Where a cursor points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To this position of this slot. The position was not looked at.
    Here(At, u32),
    /// The lane has nothing yet, and the cursor asks for its start.
    Empty,
    /// It was there once, or never, and will not be any more. Here is what follows, `None` in a lane without anything.
    Gone(Option<(At, u32)>),
    /// It is behind everything that is there, and may come to be.
    Unknown,
}

/// A lane's groups, ids rising.
#[derive(Default)]
pub(crate) struct Chain {
    pub(crate) groups: VecDeque<Group>,
    /// The end of what was dropped last: a reader that got there has missed nothing.
    pub(crate) dropped_to: Option<Cursor>,
    /// It was taken over from a lost owner: what earlier owners had, and is not here, was dropped or never acknowledged.
    pub(crate) is_taken_over: bool,
    /// Up to which place all that is compacted was given again, as it is now, by the [sinks](CopiedTo) that were asked about last; the last one first.
    copied_to: [Option<(usize, Name)>; 2],
}

/// A segment's name in its lane.
pub(crate) type Name = (GroupId, u32);

impl Chain {
    /// Notes since when segments are known to be closed whose append times are ahead of the clock.
    ///
    /// Append times never fall along a lane, since lookups by time rely on it. So one that was taken from a clock that was ahead, by years perhaps, is passed on to all
    /// that comes after it, here and at later owners, and says nothing about ages: by it nothing would be old enough for anything in all that time. What holds in any case is that a
    /// segment is at least as old as the time since it was seen closed, which no clock that is set can change. A start begins anew with that: it may keep something for
    /// longer, never for less.
    ///
    /// These segments are the last ones of the lane. Where the times are right this is one comparison.
    pub(crate) fn note_ahead(&mut self, last_append_ms: i64, now: &Believed) {
        let ahead_ms = ahead_of(now.now_ms());
        if last_append_ms <= ahead_ms {
            return;
        }
        for slot in self.groups.iter_mut().rev().flat_map(|group| group.slots.iter_mut().rev()) {
            if slot.summary().last_append_ms <= ahead_ms {
                return;
            }
            if !slot.open {
                slot.ahead_since_ms.get_or_insert(now.mono_ms());
            }
        }
    }

    pub(crate) fn slot(&self, at: At) -> &Slot {
        &self.groups[at.group].slots[at.slot]
    }

    pub(crate) fn slot_mut(&mut self, at: At) -> &mut Slot {
        &mut self.groups[at.group].slots[at.slot]
    }

    /// A place in a slot, for outside.
    pub(crate) fn cursor(&self, at: At, position: u32) -> Cursor {
        let group = &self.groups[at.group];
        Cursor { group: group.id, segment: SegmentIndex(group.slots[at.slot].index), position }
    }

    pub(crate) fn first(&self) -> Option<At> {
        (!self.groups.is_empty()).then_some(At { group: 0, slot: 0 })
    }

    pub(crate) fn last(&self) -> Option<At> {
        let group = self.groups.len().checked_sub(1)?;
        let slot = self.groups[group].slots.len().checked_sub(1)?;
        Some(At { group, slot })
    }

    /// The slot that follows, in the same group or the next.
    pub(crate) fn next(&self, at: At) -> Option<At> {
        if at.slot + 1 < self.groups[at.group].slots.len() {
            return Some(At { group: at.group, slot: at.slot + 1 });
        }
        (at.group + 1 < self.groups.len()).then_some(At { group: at.group + 1, slot: 0 })
    }

    /// All slots from `at` on.
    pub(crate) fn from(&self, at: Option<At>) -> impl Iterator<Item = At> + '_ {
        std::iter::successors(at, |&at| self.next(at))
    }

    /// Whether no ordinal from `from` up to `to` is missing.
    pub(crate) fn has_all(&self, from: u64, to: u64) -> bool {
        let mut next = from;
        for at in self.from(self.first()) {
            let summary = self.slot(at).summary();
            if summary.base_ordinal <= next {
                next = next.max(summary.next_ordinal);
            }
        }
        next >= to
    }

    /// The first compacted segment in front of `before` that was not given again to this sink as it is now. Those are not looked at of which that was found before: a lane is
    /// given again segment by segment, and each would look at all in front of it.
    pub(crate) fn uncopied_before(&mut self, before: Name, sink: usize) -> Option<Name> {
        let known = self.copied_to.iter().flatten().find(|(of, _)| *of == sink).map(|(_, to)| *to);
        let from = known.unwrap_or((GroupId::NONE, 0));
        let in_front = self.from(self.at_or_behind(from)).map(|at| {
            let group = &self.groups[at.group];
            ((group.id, group.slots[at.slot].index), &group.slots[at.slot])
        });
        let is_uncopied = |(_, slot): &(Name, &Slot)| {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            let (is_compacted, rewrites) = slot.rewriting();
            is_compacted && !slot.copied.has(sink, rewrites)
        };
        let found = in_front.take_while(|(name, _)| *name < before).find(is_uncopied).map(|(name, _)| name);
        let other = self.copied_to.iter().flatten().find(|(of, _)| *of != sink).copied();
        self.copied_to = [Some((sink, found.unwrap_or(before).max(from))), other];
        found
    }

    /// A segment is there, or is another one, that is given to nobody.
    pub(crate) fn is_new(&mut self, name: Name) {
        self.copied_to.iter_mut().flatten().for_each(|(_, to)| *to = (*to).min(name));
    }

    /// The first slot that is there from a place on.
    fn at_or_behind(&self, (id, index): Name) -> Option<At> {
        let group = self.groups.partition_point(|of| of.id < id);
        let of = self.groups.get(group)?;
        let slot = if of.id == id { of.slots.partition_point(|slot| slot.index < index) } else { 0 };
        match slot < of.slots.len() {
            true => Some(At { group, slot }),
            false => (group + 1 < self.groups.len()).then_some(At { group: group + 1, slot: 0 }),
        }
    }

    pub(crate) fn find_group(&self, id: GroupId) -> Option<usize> {
        self.groups.binary_search_by_key(&id, |group| group.id).ok()
    }

    pub(crate) fn find(&self, group: GroupId, index: SegmentIndex) -> Option<At> {
        let group = self.find_group(group)?;
        let slot = self.groups[group].slots.binary_search_by_key(&index.0, |slot| slot.index).ok()?;
        Some(At { group, slot })
    }

    /// Where a cursor of a reader points. `epoch` is that of the groups that are opened now: a group of an earlier one that
    /// is not there was lost with the memory that it was in.
    pub(crate) fn locate(&self, cursor: Cursor, epoch: u32) -> Place {
        let lost = cursor.group.epoch() < epoch;
        if cursor.group != GroupId::NONE && cursor.group.number() == 0 {
            return self.first_of(cursor.group, lost);
        }
        let (Some(first), Some(last)) = (self.first(), self.last()) else {
            return match cursor.group {
                GroupId::NONE => Place::Empty,
                _ if lost => Place::Gone(None),
                _ => Place::Unknown,
            };
        };
        if cursor.group == GroupId::NONE {
            return Place::Here(first, FIRST_CHUNK);
        }
        let follows = |at: At| {
            // Holes apart, only the front is ever dropped: a reader at its end goes on with what follows.
            let read_all = self.dropped_to == Some(cursor) || self.nothing_before(at, cursor);
            if read_all { Place::Here(at, FIRST_CHUNK) } else { Place::Gone(Some((at, FIRST_CHUNK))) }
        };
        let is_start = self.is_taken_over && cursor.position <= FIRST_CHUNK;
        let end = match is_start && cursor > self.cursor(last, 0) {
            // It had come to a segment that got nothing that was acknowledged.
            true => Place::Here(last, self.slot(last).end()),
            false => Place::Gone(Some((last, self.slot(last).end()))),
        };
        match self.groups.binary_search_by_key(&cursor.group, |group| group.id) {
            Err(group) if group < self.groups.len() => follows(At { group, slot: 0 }),
            Err(_) if lost => end,
            Err(_) => Place::Unknown,
            Ok(group) => match self.groups[group].slots.binary_search_by_key(&cursor.segment.0, |slot| slot.index) {
                Ok(slot) => Place::Here(At { group, slot }, cursor.position.max(FIRST_CHUNK)),
                Err(slot) if slot < self.groups[group].slots.len() => follows(At { group, slot }),
                Err(_) if group + 1 < self.groups.len() => follows(At { group: group + 1, slot: 0 }),
                Err(_) if self.groups[group].closed => end,
                Err(_) => Place::Unknown,
            },
        }
    }

    /// Whether a reader at the start of a segment that is not there has missed nothing in front of `at`: what is before its cursor
    /// ends where `at` begins, so the segment never had anything. A lost owner had opened it and had nothing in it acknowledged.
    fn nothing_before(&self, at: At, cursor: Cursor) -> bool {
        let before = match at {
            At { group: 0, slot: 0 } => None,
            At { group, slot: 0 } => Some(At { group: group - 1, slot: self.groups[group - 1].slots.len() - 1 }),
            At { group, slot } => Some(At { group, slot: slot - 1 }),
        };
        let joins = |before| self.slot(before).summary().next_ordinal == self.slot(at).summary().base_ordinal;
        self.is_taken_over && cursor.position <= FIRST_CHUNK && before.is_some_and(joins)
    }

    /// A cursor to the first group of an epoch, whichever that is: what a reader has that comes from the owner before. `group` is not
    /// the name of a group.
    fn first_of(&self, group: GroupId, lost: bool) -> Place {
        let dropped = self.dropped_to.is_some_and(|to| to.group > group);
        let at = self.groups.partition_point(|other| other.id < group);
        match (at < self.groups.len()).then_some((At { group: at, slot: 0 }, FIRST_CHUNK)) {
            Some(at) if dropped => Place::Gone(Some(at)),
            Some((at, position)) => Place::Here(at, position),
            None if lost || dropped => Place::Gone(self.last().map(|last| (last, self.slot(last).end()))),
            None => Place::Empty,
        }
    }

    /// Puts a slot where it belongs; `None` if there is one with its name.
    pub(crate) fn insert(&mut self, id: GroupId, limit: u32, slot: Slot) -> Option<At> {
        self.is_new((id, slot.index));
        let group = match self.groups.binary_search_by_key(&id, |group| group.id) {
            Ok(group) => group,
            Err(group) => {
                self.groups.insert(group, Group::new(id, limit));
                group
            }
        };
        let slots = &mut self.groups[group].slots;
        let at = slots.binary_search_by_key(&slot.index, |slot| slot.index).err()?;
        slots.insert(at, slot);
        Some(At { group, slot: at })
    }

    /// Takes a slot out, and its group if that has no other.
    pub(crate) fn take_out(&mut self, at: At) -> Option<Slot> {
        let slot = self.groups.get_mut(at.group)?.slots.remove(at.slot)?;
        if self.groups[at.group].slots.is_empty() {
            self.groups.remove(at.group);
        }
        Some(slot)
    }

    /// Takes the first slot out.
    pub(crate) fn pop_front(&mut self) -> Option<(GroupId, Slot)> {
        let group = self.groups.front_mut()?;
        let slot = group.slots.pop_front()?;
        let id = group.id;
        let position = slot.last_position();
        self.dropped_to = Some(Cursor { group: id, segment: SegmentIndex(slot.index), position });
        if group.slots.is_empty() {
            self.groups.pop_front();
        }
        Some((id, slot))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many segments were looked at for whether they are given again.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    fn stored(index: u32, base: u64, next: u64) -> Slot {
        let (first_append_ms, last_append_ms) = (1, 2);
        let closed = Summary {
            capacity: 65536,
            head: 1000,
            base_ordinal: base,
            next_ordinal: next,
            first_append_ms,
            last_append_ms,
            max_timestamp_ms: NO_TIMESTAMP,
            is_compacted: false,
            compacted_ms: None,
            has_forgotten: false,
            rewrites: 0,
        };
        Slot::stored(index, closed, Location { disk: 0, container: 1, offset: 0, bytes: 1000 })
    }

    fn chain() -> Chain {
        let mut chain = Chain::default();
        for (group, index) in [(3, 0), (1, 1), (1, 0), (3, 2)] {
            chain.insert(
                GroupId(group),
                4,
                stored(index, group * 100 + u64::from(index), group * 100 + u64::from(index) + 1),
            );
        }
        chain
    }

    fn cursor(group: u64, segment: u32, position: u32) -> Cursor {
        Cursor { group: GroupId(group), segment: SegmentIndex(segment), position }
    }

    #[test]
    fn slots_are_in_order_however_they_come() {
        let chain = chain();
        let order: Vec<Cursor> = chain.from(chain.first()).map(|at| chain.cursor(at, 0)).collect();
        assert_eq!(order, [cursor(1, 0, 0), cursor(1, 1, 0), cursor(3, 0, 0), cursor(3, 2, 0)]);
        assert_eq!(chain.last(), Some(At { group: 1, slot: 1 }));
    }

    #[test]
    fn the_same_name_is_not_put_twice() {
        assert_eq!(chain().insert(GroupId(3), 4, stored(2, 0, 1)), None);
    }

    #[test]
    fn cursors_are_located() {
        let mut chain = chain();
        let at = |group, slot| At { group, slot };
        let gone = |group, slot, position| Place::Gone(Some((At { group, slot }, position)));
        assert_eq!(chain.locate(cursor(0, 9, 9), 0), Place::Here(at(0, 0), 128));
        assert_eq!(chain.locate(cursor(1, 1, 400), 0), Place::Here(at(0, 1), 400));
        assert_eq!(chain.locate(cursor(1, 2, 0), 0), gone(1, 0, 128), "the group ended before");
        assert_eq!(chain.locate(cursor(2, 0, 0), 0), gone(1, 0, 128), "another lane's group, or lost");
        assert_eq!(chain.locate(cursor(3, 1, 0), 0), gone(1, 1, 128), "a hole");
        assert_eq!(chain.locate(cursor(3, 3, 0), 0), Place::Unknown);
        assert_eq!(chain.locate(cursor(4, 0, 0), 0), Place::Unknown);
        assert_eq!(chain.locate(cursor(4, 0, 0), 1), gone(1, 1, 1000), "never again in epoch 1");
        chain.groups[1].closed = true;
        assert_eq!(chain.locate(cursor(3, 3, 0), 0), gone(1, 1, 1000));
        assert_eq!(Chain::default().locate(cursor(0, 0, 0), 0), Place::Empty);
        assert_eq!(Chain::default().locate(cursor(1, 0, 0), 0), Place::Unknown);
        assert_eq!(Chain::default().locate(cursor(1, 0, 0), 1), Place::Gone(None));
    }

    #[test]
    fn a_reader_at_the_end_of_what_was_dropped_has_missed_nothing() {
        let mut chain = chain();
        chain.pop_front();
        chain.pop_front();
        let first = At { group: 0, slot: 0 };
        assert_eq!(chain.locate(cursor(1, 1, 1000), 0), Place::Here(first, 128));
        assert_eq!(chain.locate(cursor(1, 1, 900), 0), Place::Gone(Some((first, 128))));
        assert_eq!(chain.locate(cursor(1, 0, 1000), 0), Place::Gone(Some((first, 128))));
    }

    #[test]
    fn a_group_says_what_it_holds() {
        let chain = chain();
        let info = chain.groups[1].info(302).unwrap();
        assert_eq!((info.first_ordinal, info.next_ordinal, info.bytes), (300, 303, 2000));
        assert_eq!((info.durable_ordinal, info.first_append_ms, info.last_append_ms), (302, 1, 2));
        assert_eq!((info.first_segment, info.last_segment), (SegmentIndex(0), SegmentIndex(2)));
    }

    /// A lane is copied again, to one log or to two in turns.
    #[test]
    fn what_was_given_again_is_not_looked_at_for_each_that_comes_behind_it() {
        const A: usize = 64;
        const B: usize = 128;
        let mut chain = Chain::default();
        let compacted = |index: u32| {
            let mut slot = stored(index, index.into(), u64::from(index) + 1);
            (slot.closed.is_compacted, slot.closed.rewrites) = (true, 1);
            slot
        };
        let names: Vec<Name> = (0..100).map(|at| (GroupId(1 + at / 10), (at % 10) as u32)).collect();
        for (group, index) in &names {
            chain.insert(*group, 10, compacted(*index));
        }
        // As whoever copies does: what is in front comes first. How many were given for it, and looked at.
        let give = |chain: &mut Chain, name: Name, sink| {
            LOOKED_AT.set(0);
            let mut given = 0;
            loop {
                let next = chain.uncopied_before(name, sink).unwrap_or(name);
                assert_eq!(chain.uncopied_before(next, sink), None, "it is the first one");
                let at = chain.find(next.0, SegmentIndex(next.1)).unwrap();
                let slot = chain.slot_mut(at);
                slot.copied.note(sink, slot.closed.rewrites);
                given += 1;
                if next == name {
                    return (given, LOOKED_AT.get());
                }
            }
        };
        // The last one first, then all of them, to both.
        let (given, looked_at) = give(&mut chain, names[59], A);
        assert!(given == 60 && looked_at <= 180, "{looked_at}");
        for name in &names[60..] {
            let (given, looked_at) = give(&mut chain, *name, A);
            assert!(given == 1 && looked_at <= 3, "{looked_at}");
        }
        assert_eq!(give(&mut chain, names[99], B).0, 100);
        assert_eq!((give(&mut chain, names[99], A), give(&mut chain, names[99], B)), ((1, 0), (1, 0)));
        // One is rewritten, one comes from elsewhere, and the first ones go.
        let rewritten = chain.find(names[30].0, SegmentIndex(names[30].1)).unwrap();
        chain.slot_mut(rewritten).closed.rewrites = 2;
        chain.is_new(names[30]);
        chain.insert(GroupId(5), 20, compacted(17));
        for _ in 0..15 {
            chain.pop_front();
        }
        for sink in [A, B] {
            let (given, looked_at) = give(&mut chain, names[99], sink);
            assert!(given == 3 && looked_at < 300, "both, and the one that was asked for: {given}, {looked_at}");
        }
        assert_eq!(chain.uncopied_before(names[99], 192), Some(names[15]), "to another one none was given");
    }
}
