//! Rebuilding the lanes at start from what is in the attached arena, what is on disk, and what is in the virtual logs.
//!
//! On the starting thread, before the broker serves anybody: [`Log::recover`], then [`Log::restore_chunk`] for each chunk of
//! the virtual logs, then [`Log::finish_recovery`]. Everything is rebuilt from the data itself; the only things that come
//! from elsewhere are the streams (from the catalog) and the epoch (from the data directory). See `docs/notes/attach.md`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::chunk::PayloadKind;
use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::segment::{SegmentHeader, SegmentState};
use kera_format::{BrokerPart, ChunkHeader, ChunkView, Cursor, FormatError, LaneId, SegmentId, StreamId, StreamletId};
use parking_lot::Mutex;

use crate::arena::{ArenaFull, Purpose};
use crate::attach::AttachedSegment;
use crate::given_again::{LeftOut, is_given_again};
use crate::group::{At, Slot, Summary};
use crate::lane::{Lane, LaneState, Open};
use crate::log::Log;
use crate::producer_room::RoomAtStart;
use crate::producers::{Place, ProducerMark};
use crate::segment::{FIRST_CHUNK, Segment};
use crate::sink::ChunkReference;
use crate::storage::StoredSegment;

/// What [`crate::Log::recover`] made of what was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Lanes that have something.
    pub lanes: u64,
    /// Segments that are in memory.
    pub attached_segments: u64,
    /// Segments that are on disk, in memory or not.
    pub stored_segments: u64,
    /// Of both, those of streams that no longer exist: given back.
    pub dropped_segments: u64,
    /// Records of all lanes.
    pub records: u64,
    /// Bytes of all lanes.
    pub bytes: u64,
    /// What is not as it should be, one sentence each: holes, cuts, copies that differ.
    pub problems: Vec<String>,
}

/// What [`crate::Log::restore_chunk`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// The chunk is in its lane again.
    Restored,
    /// It is in memory anyway: the arena was attached.
    AlreadyThere,
    /// Its segment is on disk in a container: the virtual log need not keep it.
    Stored,
    /// Its ordinals are others' by now: it is left out, and the virtual log's file that has it is to be kept aside; space in a
    /// container that it was written to is given back.
    GivenAgain,
    /// Its stream was deleted.
    UnknownStream,
}

/// Why a chunk of the virtual log could not be put back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// Wait with [`crate::Log::wait_for_space`], then try again with the same chunk.
    #[error("the arena has no free block of {} bytes", .0.bytes)]
    ArenaFull(ArenaFull),
    /// The bytes are not a stamped chunk.
    #[error(transparent)]
    Format(#[from] kera_format::FormatError),
    /// Chunks before it in its segment are missing.
    #[error("chunk at {}/{}/{}: the segment ends at {head}, what is between is missing", cursor.group, cursor.segment, cursor.position)]
    Hole {
        /// Where the chunk belongs.
        cursor: Cursor,
        /// Where its segment ends.
        head: u32,
    },
    /// Another chunk is where it belongs.
    #[error("chunk at {}/{}/{}: another chunk is there", .0.group, .0.segment, .0.position)]
    Conflict(Cursor),
}

/// What is known of segments only until the lanes are rebuilt.
#[derive(Default)]
pub(crate) struct Recovery {
    /// What each segment's producers sent last.
    marks: HashMap<SegmentId, Vec<ProducerMark>>,
    /// Segments on disk of which nothing tells who wrote them.
    unmarked: HashSet<SegmentId>,
    /// Segments that the replay has changed: their marks are theirs to tell.
    restored: HashSet<SegmentId>,
    /// Of segments of which the replay has met chunks the virtual log that has all of these, from the first one on. `None`: they are in several, or the first one is in none.
    logged: HashMap<SegmentId, Option<u32>>,
    /// What is left out since its ordinals were given again.
    pub(crate) left_out: LeftOut,
}

impl Recovery {
    fn met(&mut self, id: SegmentId, position: u32, vlog: u32) {
        let first = (position == FIRST_CHUNK).then_some(vlog);
        let has_all = self.logged.entry(id).or_insert(first);
        if *has_all != Some(vlog) {
            *has_all = None;
        }
    }

    /// A segment leaves memory before its lane is rebuilt. If the replay has changed it, or it was cut, or what is on disk does not tell, nothing else says who wrote it.
    pub(crate) fn leaves_memory(&mut self, segment: &Segment) {
        let id = segment.id();
        let was_cut = self.marks.get(&id).is_some_and(|marks| is_cut(segment.head(), marks));
        let was_unmarked = self.unmarked.remove(&id);
        if was_cut || was_unmarked || self.restored.contains(&id) {
            self.marks.insert(id, segment.producer_marks());
        }
    }
}

/// A start may have cut what nobody was told of, and the chunks that are left say who wrote them.
fn is_cut(head: u32, marks: &[ProducerMark]) -> bool {
    marks.iter().any(|mark| mark.position >= head)
}

impl Log {
    /// First step of a start, after all streams of the catalog were created: what is on disk and what is in the arena are
    /// put into their lanes. Of a stream that does not exist it is given back. On a node of a cluster the log has been told before which streams the
    /// node [has for itself](crate::Stream::keep_room), and [how many copies](Log::set_copies) streamlets have.
    pub fn recover(&self, stored: Vec<StoredSegment>, attached: Vec<AttachedSegment>) -> RecoveryReport {
        let mut report = RecoveryReport::default();
        let mut recovery = self.recovery.lock();
        for stored in stored {
            self.recover_stored(stored, &mut recovery, &mut report);
        }
        for attached in attached {
            self.recover_attached(attached, &mut recovery, &mut report);
        }
        drop(recovery);
        for lane in self.lanes() {
            report.problems.extend(lane.forget_found_given_again(false));
            let state = lane.state.lock();
            report.lanes += u64::from(state.chain.first().is_some());
            for at in state.chain.from(state.chain.first()) {
                let summary = state.chain.slot(at).summary();
                report.records += summary.next_ordinal - summary.base_ordinal;
                report.bytes += u64::from(summary.head);
            }
        }
        report
    }

    fn recover_stored(&self, stored: StoredSegment, recovery: &mut Recovery, report: &mut RecoveryReport) {
        let StoredSegment { header, progress, at, producers, lacks_marks } = stored;
        let Some(lane) = self.lane_of(header.id) else {
            report.dropped_segments += 1;
            self.shared.release(header.id, Some(at));
            return;
        };
        if progress.next_ordinal < header.base_ordinal || progress.head > SEGMENT_BYTES_MAX as u64 {
            report.problems.push(format!("segment {} on disk: its header makes no sense; left where it is", header.id));
            return;
        }
        let closed = Summary::stored(&header, &progress);
        let mut state = lane.state.lock();
        let slot = Slot::stored(header.id.index.0, closed, at);
        if state.chain.insert(header.id.group, u32::MAX, slot).is_none() {
            report.problems.push(format!("segment {} is on disk twice; the second is left where it is", header.id));
            return;
        }
        report.stored_segments += 1;
        recovery.marks.insert(header.id, producers);
        if lacks_marks {
            recovery.unmarked.insert(header.id);
        }
    }

    fn recover_attached(&self, attached: AttachedSegment, recovery: &mut Recovery, report: &mut RecoveryReport) {
        let AttachedSegment { segment, cut, ended, marks } = attached;
        let id = segment.id();
        let Some(lane) = self.lane_of(id) else {
            report.dropped_segments += 1;
            self.shared.segment_safe(id);
            return;
        };
        let mut state = lane.state.lock();
        if let Some(at) = state.chain.find(id.group, id.index) {
            let slot = state.chain.slot_mut(at);
            if slot.at.is_none() {
                // A replay was killed while it moved the segment to a larger block: the longer one is the later.
                if slot.summary().head < segment.head() {
                    *slot = Slot::resident(segment, true);
                }
                return;
            }
            if slot.summary().rewrites > segment.header().rewrites() {
                // Killed after it was compacted, before its memory was given back.
                return;
            }
            if slot.summary().rewrites < segment.header().rewrites()
                && !segment.header().is_compacted()
                && cut.is_none()
            {
                // Killed after a start has cut it, before what is left of it was stored.
                let longer = slot.at;
                *slot = Slot::resident(segment, false);
                slot.stale = longer;
                report.attached_segments += 1;
                recovery.marks.insert(id, marks);
                return;
            }
            let same = (slot.summary().head, slot.summary().next_ordinal) == (segment.head(), segment.next_ordinal());
            if same && cut.is_none() && segment.state() != SegmentState::Open {
                slot.memory = Some(segment);
                report.attached_segments += 1;
            } else {
                report.problems.push(format!("segment {id} in memory is not what is on disk; the one on disk is used"));
            }
            return;
        }
        if let Some(cut) = &cut {
            report.problems.push(format!(
                "segment {id} in memory is damaged from byte {} on, {} bytes are lost: {}",
                cut.position, cut.lost_bytes, cut.reason
            ));
        }
        let open = segment.state() == SegmentState::Open;
        let limit = lane.home.stream.options().segments_per_group;
        let at = state.chain.insert(id.group, limit, Slot::resident(segment, open));
        if let Some(at) = at.filter(|_| ended) {
            // What was behind its end may have been read: nothing else may ever be there.
            state.chain.groups[at.group].closed = true;
        }
        report.attached_segments += 1;
        recovery.marks.insert(id, marks);
    }

    /// Of these lanes earlier lives of the node have let go of what was in front of an ordinal. After [`recover`](Log::recover), at any time before the
    /// streamlets are asked [what they have](crate::Streamlet::let_go_lanes).
    pub fn let_go_before(&self, lanes: &[((StreamId, StreamletId, LaneId), u64)]) {
        for ((stream, streamlet, lane), ordinal) in lanes {
            let Some(stream) = self.stream(*stream) else { continue };
            let Some(streamlet) = stream.streamlet(*streamlet) else { continue };
            if let Some(lane) = streamlet.lanes().find(|used| used.id() == *lane) {
                let mut state = lane.state.lock();
                state.let_go_to = state.let_go_to.max(*ordinal);
            }
        }
    }

    /// Second step, for each chunk of the virtual logs in their order: puts it at its exact group, segment and position,
    /// and counts it as durable. `vlog` is [the number](crate::DurabilitySink::virtual_log) of the one that it is in.
    pub fn restore_chunk(&self, vlog: u32, chunk: &[u8]) -> Result<Restored, RestoreError> {
        let view = ChunkView::parse(chunk)?;
        let part = view.broker()?;
        let id = SegmentId {
            stream: view.header().stream,
            streamlet: view.header().streamlet,
            lane: part.lane,
            group: part.group,
            index: part.segment,
        };
        let Some(stream) = self.stream(id.stream) else { return Ok(Restored::UnknownStream) };
        if view.header().kind == PayloadKind::Piece {
            // A compacted segment is on disk.
            return Ok(Restored::Stored);
        }
        let Some(lane) = stream.streamlet(id.streamlet).and_then(|streamlet| streamlet.any_lane(id.lane)) else {
            let (value, allowed) = (id.lane.0.into(), "a lane of the stream");
            return Err(FormatError::BadField { field: "chunk.lane", value, allowed }.into());
        };
        let begins = part.position == FIRST_CHUNK;
        let ready = if begins { self.forget_given_again(lane, id, &view, &part) } else { Ok(()) };
        let restored = ready.and_then(|()| lane.restore(&mut lane.state.lock(), id, &view, &part));
        if restored.is_ok() {
            self.recovery.lock().met(id, part.position, vlog);
        }
        match &restored {
            Ok(Restored::Restored) => {
                self.recovery.lock().restored.insert(id);
            }
            Ok(Restored::GivenAgain) => {
                self.leave_out(id, part.base_ordinal..part.base_ordinal + u64::from(view.header().record_count));
            }
            Err(RestoreError::ArenaFull(full)) => self.shared.want_space(full),
            _ => {}
        }
        restored
    }

    /// A segment that the replay has begun to put back was dropped in an earlier life, and what is left of it goes.
    pub(crate) fn forget_restored(&self, id: SegmentId) {
        if self.recovery.lock().restored.remove(&id)
            && let Some(lane) = self.lane_of(id)
        {
            lane.forget_restored(id);
        }
    }

    /// Last step: appends go on, in groups of `epoch`, which is higher than that of every group there is. Open groups that
    /// were attached go on too, all others are closed. Closed segments that are not on disk go to the store; chunks that
    /// are not durable yet go to their sink. Returns more of what is not as it should be.
    pub fn finish_recovery(&self, epoch: u32) -> Vec<String> {
        let lanes = self.lanes();
        let newest = |lane: &Arc<Lane>| lane.state.lock().chain.groups.back().map_or(0, |group| group.id.epoch());
        // Groups of owners' epochs say nothing about the node's.
        let is_of_node = |lane: &&Arc<Lane>| {
            !self.shared.config.has_owner_epochs || lane.home.stream.is_system.load(Ordering::Relaxed)
        };
        let highest = lanes.iter().filter(is_of_node).map(newest).max().unwrap_or(0);
        let mut problems = Vec::new();
        if highest >= epoch && epoch > 0 {
            problems.push(format!(
                "epoch is {epoch} and there are groups of epoch {highest}: going on with {}",
                highest + 1
            ));
        }
        self.shared.epoch.store(if epoch > 0 { epoch.max(highest + 1) } else { 0 }, Ordering::Relaxed);
        let mut room = RoomAtStart::of(self, &lanes);
        for (at, lane) in lanes.iter().enumerate() {
            problems.extend(lane.forget_found_given_again(true));
            lane.finish_recovery(&self.recovery, &mut problems);
            room.make(self, &lanes[..=at]);
        }
        // Not before: the store evicts segments of the lanes whose turn has not come.
        *self.recovery.lock() = Recovery::default();
        problems
    }
}

impl Lane {
    fn restore(
        &self,
        state: &mut LaneState,
        id: SegmentId,
        chunk: &ChunkView<'_>,
        part: &BrokerPart,
    ) -> Result<Restored, RestoreError> {
        let cursor = Cursor { group: id.group, segment: id.index, position: part.position };
        let end = part.position.saturating_add(chunk.as_bytes().len() as u32);
        if part.position < FIRST_CHUNK || end as usize > SEGMENT_BYTES_MAX {
            let (value, allowed) = (part.position.into(), "within a segment");
            return Err(FormatError::BadField { field: "chunk.position", value, allowed }.into());
        }
        let found = state.chain.find(id.group, id.index);
        if found.is_none_or(|at| state.chain.slot(at).summary().head < end)
            && is_given_again(state, found, cursor, part)
        {
            return Ok(self.left_out());
        }
        let at = match found {
            Some(at) => at,
            None if part.position == FIRST_CHUNK => self.start_restored(state, id, part, end)?,
            None => return Err(RestoreError::Hole { cursor, head: 0 }),
        };
        let slot = state.chain.slot(at);
        let (stored, summary) = (slot.at.is_some(), slot.summary());
        let head = summary.head;
        if summary.is_compacted {
            // Only what is stored is compacted. The chunk may have gone since.
            return Ok(Restored::Stored);
        }
        // An earlier start has cut it there: nothing was appended to it since, and what has these ordinals now need not have been met yet.
        if summary.rewrites > 0 && part.position >= head {
            return Ok(self.left_out());
        }
        let there = if stored { Restored::Stored } else { Restored::AlreadyThere };
        if !slot.open && end > head && part.position == head && part.base_ordinal == summary.next_ordinal {
            // Nothing changes for a chunk that is not what was sent.
            chunk.verify()?;
            self.open_again(state, at, end)?;
        }
        let slot = state.chain.slot(at);
        let Some(segment) = slot.memory.clone() else {
            return if end <= head { Ok(there) } else { Err(RestoreError::Conflict(cursor)) };
        };
        if end <= head {
            // The broker's checksum covers the producer's and where the chunk is: equal means the same chunk.
            let same = segment.bytes(part.position, end).get(..44) == chunk.as_bytes().get(..44);
            if same {
                segment.advance_durable(end);
            }
            return if same { Ok(there) } else { Err(RestoreError::Conflict(cursor)) };
        }
        if part.position > head {
            return Err(RestoreError::Hole { cursor, head });
        }
        if part.position < head || !slot.open || part.base_ordinal != segment.next_ordinal() {
            return Err(RestoreError::Conflict(cursor));
        }
        let segment = self.with_room(state, at, segment, end).map_err(RestoreError::ArenaFull)?;
        segment.put_chunk(part.position, chunk, part)?;
        let next_ordinal = part.base_ordinal + u64::from(chunk.header().record_count);
        let (count, timestamp) = (segment.chunk_count() + 1, chunk.header().max_timestamp_ms);
        segment.advance(end, next_ordinal, count, part.append_time_ms, timestamp);
        segment.advance_durable(end);
        Ok(Restored::Restored)
    }

    /// What becomes of a chunk whose ordinals were given again. What a streamlet's owners say of progress each of them says again: nobody misses it.
    fn left_out(&self) -> Restored {
        if self.id == LaneId::PROGRESS { Restored::Stored } else { Restored::GivenAgain }
    }

    /// Makes the segment of a chunk that is its first. Those before it in the lane get no more: they go to the store.
    fn start_restored(
        &self,
        state: &mut LaneState,
        id: SegmentId,
        part: &BrokerPart,
        end: u32,
    ) -> Result<At, RestoreError> {
        let start = Cursor { group: id.group, segment: id.index, position: 0 };
        let mut before = state.chain.first();
        while let Some(at) = before.filter(|&at| state.chain.cursor(at, 0) < start) {
            if state.chain.slot(at).open {
                self.seal(state, at);
            }
            before = state.chain.next(at);
        }
        let block = self.log().arena.allocate(end as usize, Purpose::Write).map_err(RestoreError::ArenaFull)?;
        let header = SegmentHeader {
            id,
            capacity_bytes: block.capacity_bytes(),
            base_ordinal: part.base_ordinal,
            created_ms: part.append_time_ms,
            flags: 0,
        };
        let slot = Slot::resident(Segment::create(block, header), true);
        let at = state.chain.insert(id.group, u32::MAX, slot);
        at.ok_or(RestoreError::Conflict(start))
    }

    /// The segment, or one twice as large with the same bytes: how large it once was is not known. Nobody reads it yet.
    fn with_room(
        &self,
        state: &mut LaneState,
        at: At,
        segment: Arc<Segment>,
        end: u32,
    ) -> Result<Arc<Segment>, ArenaFull> {
        if u64::from(end) <= segment.block_bytes() {
            segment.get_memory(end)?;
            return Ok(segment);
        }
        let block = self.log().arena.allocate(end as usize, Purpose::Write)?;
        let header = SegmentHeader { capacity_bytes: block.capacity_bytes(), ..*segment.header() };
        let larger = Segment::create_from(block, header, &segment);
        segment.disown();
        state.chain.slot_mut(at).memory = Some(Arc::clone(&larger));
        Ok(larger)
    }

    /// Ends an open segment that nothing is appended to any more, and gives it to the store if it is durable.
    fn seal(&self, state: &mut LaneState, at: At) {
        let slot = state.chain.slot_mut(at);
        slot.seal();
        if let Some(segment) = slot.memory.clone() {
            segment.close(SegmentState::Closed);
            if segment.is_settled() && state.unsettled.is_empty() {
                self.log().hand_over(&segment);
            } else {
                state.unsettled.push_back(segment);
            }
        }
    }

    fn finish_recovery(self: &Arc<Self>, recovery: &Mutex<Recovery>, problems: &mut Vec<String>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let recovery = &*recovery.lock();
        let Some(last) = state.chain.last() else { return };
        let options = self.home.stream.options();
        state.unsettled.clear();
        let resumes = {
            let group = &state.chain.groups[last.group];
            let slot = &group.slots[last.slot];
            let id = self.segment_id(group.id, slot.index);
            let goes_on = slot.open && !group.closed && !recovery.restored.contains(&id);
            goes_on && slot.index < options.segments_per_group && self.is_durable_as_before(slot, id, recovery)
        };
        let groups = state.chain.groups.len();
        for (at, group) in state.chain.groups.iter_mut().enumerate() {
            group.limit = options.segments_per_group;
            group.closed = at + 1 < groups || !resumes;
        }
        let (mut expected, mut not_durable) = (None, None);
        let may_have_moved = self.may_have_moved();
        let mut at = state.chain.first();
        while let Some(here) = at {
            let summary = state.chain.slot(here).summary();
            let id = self.segment_id(state.chain.groups[here.group].id, state.chain.slot(here).index);
            if let Some((expected, epoch)) = expected.filter(|(expected, _)| *expected != summary.base_ordinal) {
                // Of a streamlet that has moved another owner may have what is in between. If so it has told whose that is, and that is received
                // once more before anything is appended.
                if epoch == id.group.epoch() || !may_have_moved {
                    let starts = summary.base_ordinal;
                    let what = format!("segment {id} starts at ordinal {starts}, the one before it ends at {expected}");
                    problems.push(what);
                }
                state.producers.set_hole(summary.base_ordinal);
            }
            if summary.has_forgotten {
                // Of those that are known an older chunk may be left alone.
                state.producers.set_thrown_out();
                state.producers.set_hole(summary.next_ordinal);
            }
            expected = Some((summary.next_ordinal, id.group.epoch()));
            state.last_append_ms = state.last_append_ms.max(summary.last_append_ms);
            self.recover_producers(state, here, id, recovery);
            let is_in_log = self.has_all(id, recovery);
            match self.recover_segment(state, here, resumes && here == last, is_in_log) {
                Ok(ordinal) => not_durable = not_durable.or(ordinal),
                Err(error) => problems.push(format!("segment {id} cannot be made durable: {error}")),
            }
            at = state.chain.next(here);
        }
        if state.chain.first().is_some_and(|at| state.chain.slot(at).summary().base_ordinal > 0) {
            state.producers.set_forgot();
        }
        state.producers.set_thrown_out_if_full(self.log().config.producers_per_lane_max);
        state.next_ordinal = expected.map_or(0, |(next, _)| next);
        state.version += 1;
        self.durable_ordinal.store(not_durable.unwrap_or(state.next_ordinal), Ordering::Release);
    }

    /// Whether other nodes may have some of what the lane had.
    pub(crate) fn may_have_moved(&self) -> bool {
        self.log().config.has_owner_epochs && !self.home.stream.is_system.load(Ordering::Relaxed)
    }

    /// Whether the durable chunks of a segment are durable in the way in which the next ones will be. A change of durability ends open groups, but a process may
    /// be killed in between: then the stream's options say already what its open segments do not.
    ///
    /// A virtual log has a segment from its first chunk on or not at all. If it had only what comes from here on, a start after a loss
    /// of power would find the end of a segment without its beginning, and take it for one that was dropped; if it had only what came
    /// before, and then again what comes after another change, there would be a hole. Another number of virtual logs is such a change, too: the next chunks would
    /// go to another one. A segment without a durable chunk is sent to the log as a whole. What is copied
    /// to other nodes is in no log here: leaving ends its groups.
    fn is_durable_as_before(&self, slot: &Slot, id: SegmentId, recovery: &Recovery) -> bool {
        let has_durable = slot.memory.as_ref().is_some_and(|segment| segment.durable_head() > FIRST_CHUNK);
        let is_copied = self.home.copies() > 1;
        let is_as_before = || match self.home.is_logged() {
            true => self.has_all(id, recovery),
            false => !recovery.logged.contains_key(&id),
        };
        is_copied || !has_durable || is_as_before()
    }

    /// Whether the virtual log that gets what is appended from now on has what any has of a segment.
    fn has_all(&self, id: SegmentId, recovery: &Recovery) -> bool {
        let has_all = recovery.logged.get(&id).copied().flatten();
        let is_its_own = |vlog| self.home.sink().is_ok_and(|sink| sink.virtual_log() == vlog);
        self.home.is_logged() && has_all.is_some_and(is_its_own)
    }

    /// Goes on with deduplication where the chunks of this segment left it. All in front of it were noted.
    ///
    /// Where it is not known who wrote it, whoever was noted may have gone on in it, and would be told of a gap for ever that nobody can fill. So to those who wrote
    /// nothing behind it, it is as if the segment were missing. One by producers that number nothing tells of nobody as well, and there a gap is one.
    fn recover_producers(&self, state: &mut LaneState, at: At, id: SegmentId, recovery: &Recovery) {
        let slot = state.chain.slot(at);
        let is_unmarked = recovery.unmarked.contains(&id);
        let walked = match (&slot.memory, recovery.marks.get(&id)) {
            (Some(segment), None) => Some(segment.producer_marks()),
            (Some(segment), Some(marks)) if is_cut(segment.head(), marks) => Some(segment.producer_marks()),
            (Some(segment), _) if is_unmarked || recovery.restored.contains(&id) => Some(segment.producer_marks()),
            _ => None,
        };
        let none = Vec::new();
        let marks = walked.as_ref().or(recovery.marks.get(&id)).unwrap_or(&none);
        let limit = self.log().config.producers_per_lane_max;
        let (empty, next_ordinal) = (slot.summary().head == FIRST_CHUNK, slot.summary().next_ordinal);
        if marks.is_empty() && !empty {
            state.producers.set_forgot();
        }
        if is_unmarked && walked.is_none() {
            state.producers.set_hole(next_ordinal);
        }
        for mark in marks {
            let cursor = Cursor { group: id.group, segment: id.index, position: mark.position };
            let place = Place { cursor, base_ordinal: mark.base_ordinal };
            state.producers.note(mark.producer_id, mark.producer_epoch, mark.sequence, place, limit);
        }
    }

    /// Makes a segment in memory what it is from here on: the open one, or a closed one on its way to the store. The ordinal
    /// of its first chunk that is not durable yet, if there is one: that goes to the sink, with all behind it. It was
    /// never acknowledged; but it may be a duplicate's original, so it must not be forgotten. Nor may the sink get it without what is in front of it, unless all of that `is_in_log`.
    fn recover_segment(
        self: &Arc<Self>,
        state: &mut LaneState,
        at: At,
        resume: bool,
        is_in_log: bool,
    ) -> Result<Option<u64>, crate::SinkError> {
        let (is_logged, is_copied) = (self.home.is_logged(), self.home.copies() > 1);
        let slot = state.chain.slot_mut(at);
        let Some(segment) = slot.memory.clone() else { return Ok(None) };
        slot.refresh();
        let stored = slot.at.is_some();
        if !is_logged {
            // Killed between the store of the head and that of the durable head.
            segment.advance_durable(segment.head());
        }
        let pending = segment.durable_head() < segment.head();
        let sink = is_logged.then(|| self.home.sink().cloned());
        if resume {
            let sink = sink.clone().transpose()?;
            state.class_bytes = segment.block_bytes();
            let segment_bytes_max = self.home.stream.options().segment_bytes_max;
            let open = Open {
                head: segment.head(),
                capacity: segment.room_bytes().min(segment_bytes_max).max(segment.head()),
                chunk_count: segment.chunk_count(),
                opened_ms: segment.header().created_ms,
                used_ms: segment.header().created_ms.max(segment.last_append_ms()),
                segment: Arc::clone(&segment),
                sink,
            };
            self.set_open(state, open);
        } else if slot.open {
            self.seal(state, at);
        } else if !stored {
            if segment.is_settled() && state.unsettled.is_empty() {
                self.log().hand_over(&segment);
            } else {
                state.unsettled.push_back(Arc::clone(&segment));
            }
        }
        let Some(sink) = sink.filter(|_| pending).transpose()? else { return Ok(None) };
        let mut first = None;
        let durable_head = segment.durable_head();
        let mut position = if is_in_log || is_copied { durable_head } else { FIRST_CHUNK };
        while position < segment.head() {
            let rest = segment.bytes(position, segment.head());
            let (Ok(header), Ok(part)) = (ChunkHeader::parse(rest), BrokerPart::parse(rest)) else { break };
            first = first.or((position >= durable_head).then_some(part.base_ordinal));
            let bytes = header.total_bytes() as u32;
            let next_ordinal = part.base_ordinal + u64::from(header.record_count);
            let (lane, segment) = (Arc::clone(self), Arc::clone(&segment));
            state.last_ticket =
                Some(sink.appended(ChunkReference { segment, position, bytes, next_ordinal, lane, row: None }));
            position += bytes;
        }
        Ok(first)
    }
}
