//! What a start finds of records whose ordinals were given again.
//!
//! An earlier life of the node did not know of them when it went on: they were in a virtual log that it did not read, because its number was too high, or in
//! blocks that it could not read and whose damage was accepted. It gave their ordinals to other records, which were acknowledged since, and these count. With
//! both in the lane no ordinal would be found any more, neither theirs nor those of what follows; a reader would be given two records for one; and the lane
//! could end at an ordinal that it has given away already.
//!
//! Which of the two a start meets first says nothing. The arena and the containers are put into the lane before the virtual logs, these are read one after the other, and
//! in one log what was appended first comes first. So the rule holds both ways, and is asked for each segment that begins:
//!
//! - What belongs in front of a segment that is there already, and has an ordinal at which that begins or a later one, is not put back
//!   ([`is_given_again`]).
//! - What is there already in front of a segment that a replay begins, and has such an ordinal, goes ([`Log::forget_given_again`]). Whole segments are dropped, on
//!   disk too: the store's threads may have written them while the replay made room. One that begins before is cut at the first such chunk: what
//!   is in front of that the later life knew, and went on behind it.
//!
//! # What is on disk may come back, too
//!
//! A disk may not give a container at one start, or what tells of some segments in one, and give it at a later one. The node has gone on without them, and where they were
//! the last of their lanes it has given their ordinals again. So what a start has found is looked through by the same rule before it reads virtual logs
//! ([`Lane::forget_found_given_again`]); only whole segments can come back so. What they were in the middle of is whole again.
//!
//! That holds whoever else has copies. The ids of groups rise with the epochs of owners, and an owner's first group begins where the lane ended for all that anybody knew. So what is in front of a
//! group and has its ordinals was given again, whoever has owned the streamlet in between. Of streamlets with copies a node does not go on with what such a start has of them: others know what it lacks. But
//! they do not where it lacks what had one copy, before its stream got more, or where a person has given up the copies; then its owner went on without it. What never was acknowledged is no
//! such case: of that an owner cuts what it has before it is one again.
//!
//! What another node has given again since a streamlet has moved to it cannot be seen here. Whoever knows where it began there says so ([`Lane::end_older`]).
//!
//! # Nobody was told of what was not durable
//!
//! A life may have been killed before anything of what it appended at these ordinals was durable. None of that was acknowledged, and what comes back was. So what a lane has at its end of
//! which nothing is durable takes nobody's place. A virtual log may have it all the same: synced a moment before the kill. Then each later start finds it
//! there and it counts. So it stays until all virtual logs were read, and what is not durable by then goes, if its ordinals are those of something in front of it.
//!
//! What comes back may belong behind the end of a segment that the start in between has closed, as each start closes what it has put back, and perhaps stored. It is put there all the same
//! ([`Lane::open_again`]): left out it would give way to what was never durable, and its ordinals be a hole where what follows it comes back. If the other turns out to be durable the segment
//! is cut there.
//!
//! # A segment that is cut may be on disk
//!
//! What is left of it takes its name, in memory, and goes to the store like any closed segment. Until that has written it the longer image stays where it is: the virtual
//! log may have let go of its chunks when that was stored, so for a start after another loss of power it is all that there is, and that one cuts it once more. Of both images a start
//! takes the shorter, which counts as rewritten ([`SegmentHeader::cut`](kera_format::segment::SegmentHeader::cut)), and of one that counts so nothing is put back behind its end:
//! the next start may find it stored, and what comes behind it in a virtual log alone. And the store writes a lane in its order, so the shorter is there before what comes behind it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use kera_format::chunk::Chunks;
use kera_format::container::verify_image;
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, ChunkView, Cursor, GroupId, LaneId, SegmentId, StreamId, StreamletId};

use crate::arena::{ArenaFull, Purpose};
use crate::forget::Gone;
use crate::group::{At, Slot, Summary};
use crate::lane::{Lane, LaneState};
use crate::log::Log;
use crate::recovery::RestoreError;
use crate::segment::{FIRST_CHUNK, Segment};

/// Records of a lane that a start has left out because their ordinals were given again to records that were acknowledged since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GivenAgain {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// From the first ordinal of those that were left out to behind the last.
    pub ordinals: Range<u64>,
}

/// What a start has left out, by lane.
#[derive(Default)]
pub(crate) struct LeftOut(BTreeMap<(StreamId, StreamletId, LaneId), Range<u64>>);

impl LeftOut {
    pub(crate) fn note(&mut self, id: SegmentId, ordinals: Range<u64>) {
        if ordinals.is_empty() {
            return;
        }
        let known = self.0.entry((id.stream, id.streamlet, id.lane)).or_insert_with(|| ordinals.clone());
        *known = known.start.min(ordinals.start)..known.end.max(ordinals.end);
    }
}

/// Whether the lane goes on behind a place with the ordinals of the chunk that belongs there, or with lower ones.
///
/// What of that is not durable may still turn out to be. It takes no places.
pub(crate) fn is_given_again(state: &LaneState, found: Option<At>, cursor: Cursor, part: &BrokerPart) -> bool {
    let behind = match found {
        Some(at) => state.chain.next(at),
        None => state.chain.from(state.chain.first()).find(|&at| state.chain.cursor(at, 0) > cursor),
    };
    let takes_places = |at: At| state.chain.from(Some(at)).any(|at| is_durable(state.chain.slot(at)));
    behind.is_some_and(|at| state.chain.slot(at).summary().base_ordinal <= part.base_ordinal && takes_places(at))
}

/// Whether something of a segment is durable, as far as that is known: a virtual log that is still to be read may have more of it.
fn is_durable(slot: &Slot) -> bool {
    slot.at.is_some() || slot.memory.as_ref().is_some_and(|segment| segment.durable_head() > FIRST_CHUNK)
}

/// Whether a chunk is in a segment in memory, where it says. The broker's checksum covers the producer's and where the chunk is: equal means the same chunk.
fn has_chunk(slot: &Slot, chunk: &ChunkView<'_>, part: &BrokerPart) -> bool {
    let end = part.position.saturating_add(chunk.as_bytes().len() as u32);
    let there = slot.memory.as_ref().filter(|segment| end <= segment.head());
    there.is_some_and(|segment| segment.bytes(part.position, end).get(..44) == chunk.as_bytes().get(..44))
}

impl Log {
    /// What was left out since this was asked last, because its ordinals were given again. For whoever replays virtual logs, to be told; before
    /// [`finish_recovery`](Log::finish_recovery).
    pub fn given_again(&self) -> Vec<GivenAgain> {
        let left_out = std::mem::take(&mut self.recovery.lock().left_out);
        let lanes = left_out.0.into_iter();
        lanes.map(|((stream, streamlet, lane), ordinals)| GivenAgain { stream, streamlet, lane, ordinals }).collect()
    }

    /// Notes that something of a segment is left out, but for progress, which each of a streamlet's owners says again.
    pub(crate) fn leave_out(&self, id: SegmentId, ordinals: Range<u64>) {
        if id.lane != LaneId::PROGRESS {
            self.recovery.lock().left_out.note(id, ordinals);
            self.shared.segment_given_again(id);
        }
    }

    /// A replay is about to put back the first chunk of a segment, or finds that one durable of which nothing was: what is in front of it and has its ordinals, or later ones, goes. Of
    /// a segment that is there already only what begins in front of it, and was [put behind a closed end](Lane::open_again) since; what goes as a whole goes when virtual logs were read. With a
    /// full arena nothing has changed.
    pub(crate) fn forget_given_again(
        &self,
        lane: &Lane,
        id: SegmentId,
        chunk: &ChunkView<'_>,
        part: &BrokerPart,
    ) -> Result<(), RestoreError> {
        let mut guard = lane.state.lock();
        let state = &mut *guard;
        let start = Cursor { group: id.group, segment: id.index, position: 0 };
        let there = state.chain.find(id.group, id.index);
        let becomes_durable = |at: At| {
            let slot = state.chain.slot(at);
            !is_durable(slot) && has_chunk(slot, chunk, part)
        };
        if there.is_some_and(|at| !becomes_durable(at)) || is_given_again(state, there, start, part) {
            return Ok(());
        }
        let in_front = state.chain.from(state.chain.first()).take_while(|&at| state.chain.cursor(at, 0) < start);
        let is_given = |at: &At| {
            let summary = state.chain.slot(*at).summary();
            let goes_now = there.is_none() || summary.base_ordinal < part.base_ordinal;
            goes_now && summary.next_ordinal > part.base_ordinal
        };
        let given: Vec<At> = in_front.filter(is_given).collect();
        if given.is_empty() {
            return Ok(());
        }
        // Nothing goes for a chunk that is not what was sent.
        chunk.verify()?;
        let (gone, left_out) = lane.cut_from(state, given, part.base_ordinal).map_err(RestoreError::ArenaFull)?;
        // Before a log hears that it need not keep what is gone.
        left_out.into_iter().for_each(|(id, ordinals)| self.leave_out(id, ordinals));
        lane.release_gone(guard, gone);
        Ok(())
    }
}

/// What segments had of ordinals that were given again.
type GivenOf = Vec<(SegmentId, Range<u64>)>;

/// From the first ordinal of both to behind the last.
fn united(one: &Range<u64>, other: Range<u64>) -> Range<u64> {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one.clone(),
        (true, false) => other,
        (false, false) => one.start.min(other.start)..one.end.max(other.end),
    }
}

/// Whether no segment of a lane begins in front of where one before it ends: as nearly always.
fn is_in_order(state: &LaneState) -> bool {
    let mut end = 0;
    state.chain.from(state.chain.first()).all(|at| {
        let Summary { base_ordinal, next_ordinal, .. } = state.chain.slot(at).summary();
        let follows = base_ordinal >= end;
        end = end.max(next_ordinal);
        follows
    })
}

/// Segments in front of one that begins with the same ordinal or a lower one, in the lane's order; of those without a record, which may end where the next one begins, those in front
/// of one that begins with a lower one, and those that say less than what is in front of them.
///
/// The last ones, of which nothing is durable, are left out of that. If all is known of them, since virtual logs [were read](Lane::forget_found_given_again), they go where what is left in front of them has
/// ordinals of theirs.
fn found_given_again(state: &LaneState, is_read: bool) -> Vec<At> {
    if is_in_order(state) {
        return Vec::new();
    }
    let of = |at: At| {
        let Summary { base_ordinal, next_ordinal, .. } = state.chain.slot(at).summary();
        (at, base_ordinal..next_ordinal)
    };
    let mut all: Vec<(At, Range<u64>)> = state.chain.from(state.chain.first()).map(of).collect();
    let durable = all.iter().rposition(|(at, _)| is_durable(state.chain.slot(*at))).map_or(0, |last| last + 1);
    let behind = all.split_off(durable);
    let (mut begins, mut goes) = (u64::MAX, vec![false; all.len()]);
    for ((_, ordinals), goes) in all.iter().zip(&mut goes).rev() {
        if ordinals.is_empty() {
            *goes = ordinals.start > begins;
            continue;
        }
        *goes = ordinals.start >= begins;
        begins = begins.min(ordinals.start);
    }
    let mut end = 0;
    for ((_, ordinals), goes) in all.iter().zip(&mut goes).filter(|(_, goes)| !**goes) {
        // Nothing was given again for that: the lane ends with what is in front of it.
        *goes = ordinals.is_empty() && ordinals.start < end;
        end = end.max(ordinals.end);
    }
    let are_taken = is_read && behind.first().is_some_and(|(_, ordinals)| ordinals.start < end);
    let gone = all.into_iter().zip(goes).filter(|(_, goes)| *goes).map(|((at, _), _)| at);
    gone.chain(behind.into_iter().filter(|_| are_taken).map(|(at, _)| at)).collect()
}

/// What a segment has in front of an ordinal.
enum Front {
    /// It begins there, or behind it, or its first chunk goes on to there.
    Nothing,
    /// What is left of it when it is cut there.
    Segment(Arc<Segment>),
    /// No chunk begins there or behind it, or that cannot be said. It stays, and the end of the recovery says that its ordinals are not those that they should be.
    Unknown,
}

impl Lane {
    /// What a start has found of the lane on disk and in memory, in front of something that has its ordinals, goes: see the module. Before virtual logs are read, and once more when they
    /// were: what is durable is known then, and what is not goes itself if its ordinals are those of what is in front of it. What has gone, a sentence each.
    pub(crate) fn forget_found_given_again(&self, is_read: bool) -> Vec<String> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (mut gone, mut left_out, mut untold): (Gone, Range<u64>, Range<u64>) = (Vec::new(), 0..0, 0..0);
        // From the last one on: what is in front of a slot that goes keeps its place.
        for at in found_given_again(state, is_read).into_iter().rev() {
            let group = state.chain.groups[at.group].id;
            let slot = state.chain.slot(at);
            let Summary { base_ordinal, next_ordinal, .. } = slot.summary();
            let was_told = is_durable(slot);
            let of = if was_told { &mut left_out } else { &mut untold };
            *of = united(of, base_ordinal..next_ordinal);
            if is_read && was_told && self.id != LaneId::PROGRESS {
                // Before a virtual log that has it hears that it need not keep it.
                self.log().segment_given_again(self.segment_id(group, slot.index));
            }
            gone.extend(state.chain.take_out(at).map(|slot| (group, slot)));
        }
        if gone.is_empty() {
            return Vec::new();
        }
        if !left_out.is_empty() {
            // What it told of its producers may have made needless what segments in front of it tell.
            state.producers.set_forgot();
        }
        self.release_gone(guard, gone);
        self.say_left_out(left_out, untold)
    }

    /// What is here of ordinals from `end` on goes, in memory and on disk, of groups that are `older` than an owner that has gone on there: this node did not have it when the streamlet went to that
    /// owner. So does what is in one chunk with that: readers get chunks as a whole. From the first such ordinal to behind the last; nothing if there are none. For whoever starts the node, when virtual logs were read and before the [end of the
    /// recovery](crate::Log::finish_recovery).
    ///
    /// # Errors
    /// The arena is full: nothing has changed, and it is to be called again when there is room.
    pub fn end_older(&self, end: u64, older: impl Fn(GroupId) -> bool) -> Result<Option<Range<u64>>, ArenaFull> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_given =
            |at: &At| older(state.chain.groups[at.group].id) && state.chain.slot(*at).summary().next_ordinal > end;
        let given: Vec<At> = state.chain.from(state.chain.first()).filter(is_given).collect();
        let (gone, left_out) = self.cut_from(state, given, end)?;
        if left_out.is_empty() {
            return Ok(None);
        }
        state.producers.set_forgot();
        left_out.iter().for_each(|(id, _)| self.log().segment_given_again(*id));
        self.release_gone(guard, gone);
        let all = left_out.into_iter().map(|(_, ordinals)| ordinals).reduce(|one, other| united(&one, other));
        Ok(all.filter(|ordinals| !ordinals.is_empty()))
    }

    /// Takes out of the lane what these slots have from an ordinal on. What has gone as a whole, and what of which segments that is. With a full arena nothing has changed.
    fn cut_from(&self, state: &mut LaneState, given: Vec<At>, ordinal: u64) -> Result<(Gone, GivenOf), ArenaFull> {
        let fronts = given.iter().map(|&at| self.front_of(state, at, ordinal));
        let fronts = fronts.collect::<Result<Vec<_>, _>>()?;
        let (mut gone, mut left_out): (Gone, GivenOf) = (Vec::new(), Vec::new());
        // From the last one on: what is in front of a slot that goes keeps its place.
        for (at, front) in given.into_iter().zip(fronts).rev() {
            let group = state.chain.groups[at.group].id;
            let (index, was) = (state.chain.slot(at).index, state.chain.slot(at).summary());
            let from = match &front {
                Front::Segment(segment) => segment.next_ordinal(),
                Front::Nothing | Front::Unknown => was.base_ordinal,
            };
            match front {
                Front::Nothing => gone.extend(state.chain.take_out(at).map(|slot| (group, slot))),
                Front::Segment(segment) => self.cut_to(state, at, &segment),
                Front::Unknown => continue,
            }
            left_out.push((self.segment_id(group, index), from..was.next_ordinal));
        }
        Ok((gone, left_out))
    }

    /// Nobody misses progress: see [`Log::leave_out`].
    fn say_left_out(&self, left_out: Range<u64>, untold: Range<u64>) -> Vec<String> {
        let why = "since an earlier start could not read them and gave ordinals of theirs to others";
        let why_untold =
            "for they were not acknowledged, and what has their ordinals was: an earlier start could not read that";
        let said = [(left_out, why), (untold, why_untold)].into_iter();
        let said = said.filter(|(ordinals, _)| !ordinals.is_empty() && self.id != LaneId::PROGRESS);
        let said = said.map(|(ordinals, why)| {
            let (first, last) = (ordinals.start, ordinals.end - 1);
            format!("{self:?}: records with ordinals from {first} to {last} are left out and their space is given back, {why}")
        });
        said.collect()
    }

    fn front_of(&self, state: &LaneState, at: At, ordinal: u64) -> Result<Front, ArenaFull> {
        let slot = state.chain.slot(at);
        let id = self.segment_id(state.chain.groups[at.group].id, slot.index);
        if slot.summary().base_ordinal >= ordinal {
            return Ok(Front::Nothing);
        }
        let image;
        let (header, chunks) = match (&slot.memory, slot.at) {
            (Some(segment), _) => (*segment.header(), segment.bytes(SEGMENT_HEADER_BYTES as u32, segment.head())),
            (None, Some(at)) => {
                let read = self.log().store.get().and_then(|store| store.read_image(at).ok());
                image = read.unwrap_or_default();
                match verify_image(&image) {
                    Ok((header, progress)) if header.id == id => {
                        (header, &image[SEGMENT_HEADER_BYTES..progress.head as usize])
                    }
                    _ => return Ok(Front::Unknown),
                }
            }
            (None, None) => return Ok(Front::Unknown),
        };
        // The chunk in the midst of which that is goes as a whole: with it readers would get ordinals that others have.
        let is_before = |chunk: &ChunkView<'_>| {
            let records = u64::from(chunk.header().record_count);
            chunk.broker().is_ok_and(|part| part.base_ordinal.saturating_add(records.max(1)) <= ordinal)
        };
        let before = Chunks::new(chunks).map_while(Result::ok).take_while(is_before);
        let bytes: usize = before.map(|chunk| chunk.as_bytes().len()).sum();
        if bytes == 0 && !header.is_compacted() && Chunks::new(chunks).next().is_some_and(|first| first.is_ok()) {
            return Ok(Front::Nothing);
        }
        // Of one that was compacted nothing is cut: positions in it are not places.
        let Some(header) = header.cut().filter(|_| bytes < chunks.len() && !header.is_compacted()) else {
            return Ok(Front::Unknown);
        };
        self.of_chunks(&header, &chunks[..bytes]).map(Front::Segment)
    }

    /// Has a closed segment take more at its end: an earlier start has closed it there without what follows, which was acknowledged. An image of it on disk stays until the longer
    /// one is stored: of two the longer counts. With a full arena nothing has changed.
    pub(crate) fn open_again(&self, state: &mut LaneState, at: At, end: u32) -> Result<(), RestoreError> {
        let slot = state.chain.slot(at);
        let head = slot.summary().head;
        let conflict = RestoreError::Conflict(state.chain.cursor(at, head));
        let allocate = || self.log().arena.allocate(end as usize, Purpose::Write).map_err(RestoreError::ArenaFull);
        let open = if let Some(segment) = &slot.memory {
            let block = allocate()?;
            let header = SegmentHeader { capacity_bytes: block.capacity_bytes(), ..*segment.header() };
            Segment::create_from(block, header, segment)
        } else {
            let id = self.segment_id(state.chain.groups[at.group].id, slot.index);
            let image = slot.at.and_then(|place| self.log().store.get()?.read_image(place).ok()).unwrap_or_default();
            let is_it = |(header, progress): &(SegmentHeader, SegmentProgress)| {
                header.id == id && progress.head == u64::from(head)
            };
            // The disk may give it to a later start: nothing is left out for that.
            let Some((header, progress)) = verify_image(&image).ok().filter(is_it) else { return Err(conflict) };
            let block = allocate()?;
            let header = SegmentHeader { capacity_bytes: block.capacity_bytes(), ..header };
            let progress = SegmentProgress { state: SegmentState::Open, durable_head: progress.head, ..progress };
            Segment::copy_of(block, header, &image[SEGMENT_HEADER_BYTES..head as usize], &progress)
        };
        let slot = state.chain.slot_mut(at);
        let was = std::mem::replace(slot, Slot::resident(open, true));
        slot.stale = was.at.or(was.stale);
        if let Some(shorter) = was.memory {
            shorter.disown();
        }
        Ok(())
    }

    /// A shorter segment takes the place of one of its name.
    fn cut_to(&self, state: &mut LaneState, at: At, segment: &Arc<Segment>) {
        let slot = state.chain.slot_mut(at);
        let was = std::mem::replace(slot, Slot::resident(Arc::clone(segment), false));
        slot.stale = was.at.or(was.stale);
        if let Some(longer) = was.memory {
            longer.disown();
        }
        if state.unsettled.is_empty() {
            self.log().hand_over(segment);
        } else {
            state.unsettled.push_back(Arc::clone(segment));
        }
    }
}
