//! Lanes whose owner was lost, at their next one: known in their groups, segments and ordinals before a byte of them is there,
//! written to at once, filled from backups meanwhile (`docs/replication.md`, "A broker is lost", steps 5 to 7).
//!
//! Called by the broker's recovery, from several threads. [`Streamlet::receive_lost`] puts a slot for each old segment into the
//! chain: an *awaited* one, neither in memory nor on disk, with its ordinals and its end. Everything that looks at the chain
//! sees a lane with all its groups; who needs the bytes finds them "on their way", as if they came from disk, and waits for the
//! lane. [`Log::rebuild_chunk`] takes chunks in any order and puts each where it says. A segment is shown when it is whole and
//! not before, so no reader sees a part of it, and one that is killed meanwhile leaves nothing behind: its block is not named
//! until then.
//!
//! # Compacted segments
//!
//! They come in [pieces](kera_format::piece), whose places are in the row of a rewriting and not in the segment. Which rewriting is awaited, or
//! that it is the segment as it was appended, recovery decides for all of it: what comes of another is passed over, so that a segment never has
//! what one of them has removed beside what another has. The whole one is compared with the row's checksum.
//!
//! # Readers need not wait for the new copies
//!
//! What is rebuilt was decided to be part of the lane when the ends of the lost logs were decided: it is at their backups until
//! those logs are given up, which comes after all of it is durable in the new owner's own log. If the new owner is lost in
//! between, the next one finds the old logs, with the same chunks at the same places. So a rebuilt segment is durable as soon
//! as it is whole, and goes to the sink behind the readers' back: when [`Streamlet::copy_rebuilt`] is called, which recovery does
//! when all is readable, or when what waits for it takes too much memory. Not in the lane's order: recovery puts chunks
//! together by their places, and while any of a lane is missing in the new log the old ones are there.
//!
//! # Memory
//!
//! Segments that are begun and not whole cannot be evicted. They take at most a quarter of the arena together; a chunk of
//! another one is [put off](Rebuilt::Later), and its blocks are read again. As one of any size may be begun if there is no
//! other, each reading completes something, unless what is begun lacks chunks that nobody gives now. Who ends in vain says so
//! ([`Log::give_back_begun`]). If something was put off by then, what it has begun gives its memory back, is read again when the rest of it may
//! be there, and takes an eighth of the arena then beside what the others take. So what waits, for days perhaps, holds up nothing else;
//! and what is put off once more comes before what had its turn. What others have begun stays: they may be reading it just now. Whole ones
//! stay in memory until they have their copies; [`Log::rebuilt_bytes`] tells whoever has to bound them.
//!
//! The ends of lost logs are put first ([`Log::rebuild_tail`]), for one backup alone may have them. Segments with something of them stay begun
//! whatever is put off, as nobody may give that again; so they take at most half of the quarter.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_format::checksum::crc32c;
use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::piece::{PieceHeader, row_of};
use kera_format::segment::{SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{
    BrokerPart, ChunkHeader, ChunkView, Cursor, FormatError, GroupId, LaneId, SegmentId, SegmentIndex, StreamId,
    StreamletId,
};
use parking_lot::Mutex;

use crate::arena::{ArenaFull, Filling, Purpose};
use crate::group::{Slot, Summary};
use crate::lane::{Lane, LaneState};
use crate::log::Log;
use crate::producers::{Marks, marks_of};
use crate::segment::{FIRST_CHUNK, Segment};
use crate::shared::Shared;
use crate::sink::{ChunkReference, DurabilitySink, SinkError, Ticket, behind};
use crate::spans::{Part, Spans};
use crate::streamlet::Streamlet;
use crate::tenure::{LaneHandover, Tenure, TenureError};

/// Segments that are begun take at most one part in this many of the arena.
const BEGUN_SHARE: u64 = 4;
/// Those that were begun before in vain have another share of it.
const WAITED_SHARE: u64 = 8;
/// Those of the first that hold ends of lost logs, and are not given back.
const TAILS_SHARE: u64 = 8;
/// Chunks that go to the sink while the lane's lock is held once.
const APPENDED_AT_ONCE: usize = 512;

/// A segment of a lost owner, as it will be when it is rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AwaitedSegment {
    /// Its group.
    pub group: GroupId,
    /// Its number in it.
    pub index: SegmentIndex,
    /// Where its last chunk ends, or the last piece in its row.
    pub end: u32,
    /// Ordinal of its first record.
    pub base_ordinal: u64,
    /// Ordinal of the record after its last.
    pub next_ordinal: u64,
    /// Of a compacted one [which rewriting](PieceHeader::rewrite) comes, in pieces; zero: its chunks come as they were appended.
    pub rewrite: u64,
}

/// A lane of a lost owner, as it goes on at the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostLane {
    /// Next ordinal, producers. Its groups are not looked at.
    pub state: LaneHandover,
    /// All segments that are to come, in their order.
    pub segments: Vec<AwaitedSegment>,
}

/// What became of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebuilt {
    /// It is at its place; its segment is not whole yet.
    Put,
    /// Its segment is whole and can be read.
    Whole {
        /// Bytes of the segment.
        bytes: u32,
    },
    /// It is there already, or nobody waits for it: it was cut, or its stream or group is gone.
    NotAwaited,
    /// Too many segments are begun. It is to be given again when others are whole.
    Later,
}

/// Why a chunk could not be put to its place. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RebuildError {
    /// Wait with [`crate::Log::wait_for_space`], then give the same chunk again.
    #[error("the arena has no free block of {} bytes", .0.bytes)]
    ArenaFull(ArenaFull),
    /// The bytes are not a stamped chunk, or not those that were sent.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is not what is awaited at its place.
    #[error("chunk at {}/{}/{}: {what}", cursor.group, cursor.segment, cursor.position)]
    Conflict {
        /// Where it says that it belongs.
        cursor: Cursor,
        /// What is wrong.
        what: &'static str,
    },
    /// The stream's chunks cannot be made durable here.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// What a lane knows while it is rebuilt.
#[derive(Default)]
pub(crate) struct Rebuilding {
    /// Segments that are not whole, and which rewriting of each is to come.
    awaited: BTreeMap<(GroupId, u32), u64>,
    begun: HashMap<(GroupId, u32), Arc<Begun>>,
    /// Segments that were begun in vain, and those of them that were put off since.
    waited: BTreeSet<(GroupId, u32)>,
    put_off: BTreeSet<(GroupId, u32)>,
    /// While all that there is of a streamlet is looked through: those that were put off since it was gone over last.
    lacked_room: BTreeSet<(GroupId, u32)>,
    /// And those that had room when it was gone over, and are not whole: they leave it to the others.
    looked_through: BTreeSet<(GroupId, u32)>,
    /// How often anything of the log had been put off when this lane was to give back what is begun, or began to await segments.
    seen_put_off: u64,
    /// Those that are whole and did not go to the sink yet.
    uncopied: VecDeque<Uncopied>,
    /// The last ticket that a rebuilt chunk got.
    ticket: Option<Ticket>,
}

impl Rebuilding {
    /// The last segment that is awaited.
    pub(crate) fn last_awaited(&self) -> Option<(GroupId, u32)> {
        self.awaited.last_key_value().map(|(place, _)| *place)
    }

    /// Nothing more becomes of segments up to this one.
    pub(crate) fn give_up_to(&mut self, last: (GroupId, u32)) {
        self.awaited.retain(|place, _| *place > last);
        self.begun.retain(|place, _| *place > last);
        self.waited.retain(|place| *place > last);
        self.put_off.retain(|place| *place > last);
        self.lacked_room.retain(|place| *place > last);
        self.looked_through.retain(|place| *place > last);
        self.uncopied.retain(|copy| {
            let id = copy.segment.id();
            (id.group, id.index.0) > last
        });
    }

    /// Nothing more becomes of groups that `keep` does not name.
    pub(crate) fn leave(&mut self, keep: &dyn Fn(GroupId) -> bool) {
        self.awaited.retain(|(group, _), _| keep(*group));
        self.begun.retain(|(group, _), _| keep(*group));
        self.waited.retain(|(group, _)| keep(*group));
        self.put_off.retain(|(group, _)| keep(*group));
        self.lacked_room.retain(|(group, _)| keep(*group));
        self.looked_through.retain(|(group, _)| keep(*group));
        self.uncopied.retain(|copy| keep(copy.segment.id().group));
    }
}

/// Whose part of the arena a segment takes that is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    New,
    /// It was begun before in vain.
    Waited,
    /// It holds something of the end of a lost log.
    Tail,
}

/// A segment that is being filled.
struct Begun {
    log: Arc<Shared>,
    segment: Arc<Segment>,
    awaited: AwaitedSegment,
    share: Share,
    /// What all pieces of it say, their places left out.
    piece: Option<PieceHeader>,
    spans: Mutex<Spans>,
}

/// A segment that is whole, and in memory until it has its copies: it counts as that for as long as this is kept.
pub struct Uncopied {
    log: Arc<Shared>,
    segment: Arc<Segment>,
}

/// A rebuilt segment that went to the sink.
pub struct RebuiltCopy {
    /// The sink.
    pub sink: Arc<dyn DurabilitySink>,
    /// When all of the segment is durable.
    pub ticket: Ticket,
    /// The segment; to be dropped when it is durable.
    pub segment: Uncopied,
}

/// What has been put into a segment, whole or not.
enum Filled {
    Part,
    All,
    There,
}

impl Streamlet {
    /// Takes lanes of a lost owner, before [`open`](Streamlet::open): appends go on behind them, and their segments are
    /// awaited. What is there of other owners should end where a lane's awaited part begins: if it ends before that, producers that are not
    /// known from the awaited part may have written between, and go on with any number.
    pub fn receive_lost(&self, lanes: &[LostLane]) -> Result<(), TenureError> {
        let is = self.tenure();
        if is != Tenure::Elsewhere {
            return Err(TenureError::Wrong { is, must: Tenure::Elsewhere });
        }
        for lost in lanes {
            let lane = self.any_lane(lost.state.lane).ok_or(TenureError::UnknownLane(lost.state.lane))?;
            lane.forget_in_front_of(lost);
            lane.receive(&lost.state);
            lane.await_segments(&lost.segments);
        }
        Ok(())
    }

    /// Groups of these owner epochs stay in a lane as they are, though it is over with the logs that have their copies: their segments are to be given to the
    /// streamlet's own log ([`kept`](Streamlet::kept)). Before [`open`](Streamlet::open).
    pub fn keep(&self, lane: LaneId, epochs: &BTreeSet<u32>) {
        let Some(lane) = self.any_lane(lane) else { return };
        let mut state = lane.state.lock();
        let stay = state.chain.groups.iter().filter(|group| epochs.contains(&group.id.epoch()));
        let all = stay.flat_map(|group| group.slots.iter().map(|slot| lane.segment_id(group.id, slot.index)));
        state.kept = all.collect();
    }

    /// What stays and is not known to have its copies in the streamlet's own log; the oldest of each lane first.
    pub fn kept(&self) -> Vec<SegmentId> {
        self.all_lanes().flat_map(|lane| lane.state.lock().kept.clone()).collect()
    }

    /// All of that has its copies.
    pub fn kept_copied(&self) {
        self.all_lanes().for_each(|lane| lane.state.lock().kept.clear());
    }

    /// Segments of all its lanes that are awaited.
    pub fn awaited(&self) -> Vec<(LaneId, AwaitedSegment)> {
        self.all_lanes().flat_map(|lane| lane.awaited().into_iter().map(|segment| (lane.id(), segment))).collect()
    }

    /// Whether anything of it is awaited.
    pub fn is_awaiting(&self) -> bool {
        let awaits = |lane: &Arc<Lane>| lane.state.lock().rebuilding.as_ref().is_some_and(|of| !of.awaited.is_empty());
        self.all_lanes().any(awaits)
    }

    /// All that there is of it is going to be gone over, to find out what nobody has; or that is over.
    pub fn look_anew(&self) {
        for lane in self.all_lanes() {
            if let Some(rebuilding) = &mut lane.state.lock().rebuilding {
                rebuilding.lacked_room.clear();
                rebuilding.looked_through.clear();
            }
        }
    }

    /// All was gone over once since [`look_anew`](Streamlet::look_anew) or since this was called last. How many segments are awaited of which something was
    /// [put off](Rebuilt::Later) each time: it is to be gone over again for them, and they get the room of those that are known to lack something.
    pub fn looked_through(&self) -> usize {
        self.all_lanes().map(|lane| lane.looked_through()).sum()
    }

    /// Nobody has any more what is awaited: each lane begins behind the last such segment, for a lane has no holes, and goes on as it is. How many
    /// records went with that.
    pub fn give_up_awaited(&self) -> u64 {
        self.all_lanes().map(|lane| lane.give_up_awaited()).sum()
    }

    /// Gives one of the segments that are rebuilt, and did not go there yet, to the sink; `None`: there is none. Any thread. After
    /// an error none has gone.
    pub fn copy_rebuilt(&self) -> Result<Option<RebuiltCopy>, SinkError> {
        for lane in self.all_lanes() {
            let Some(sink) = lane.rebuilt_sink()? else { continue };
            let uncopied = lane.state.lock().rebuilding.as_mut().and_then(|rebuilding| rebuilding.uncopied.pop_front());
            let Some(segment) = uncopied else { continue };
            if let Some(ticket) = lane.replicate(&segment.segment, &*sink) {
                return Ok(Some(RebuiltCopy { sink, ticket, segment }));
            }
        }
        Ok(None)
    }

    /// The sink of what is rebuilt and the last ticket that it gave for it; `None`: there is nothing to wait for.
    pub fn rebuilt_through(&self) -> Option<(Arc<dyn DurabilitySink>, Ticket)> {
        let of = |lane: &Arc<Lane>| Some((lane.state.lock().rebuilding.as_ref()?.ticket?, Arc::clone(lane)));
        let (ticket, lane) = self.all_lanes().filter_map(of).max_by_key(|(ticket, _)| *ticket)?;
        Some((behind(lane.sink()?), ticket))
    }

    /// All of it is there and has its copies: retention begins. Nothing if a segment is still awaited, or did not go to the sink.
    pub fn end_rebuilding(&self) {
        for lane in self.all_lanes() {
            let mut state = lane.state.lock();
            if state.rebuilding.as_ref().is_some_and(|of| of.awaited.is_empty() && of.uncopied.is_empty()) {
                state.rebuilding = None;
            }
        }
    }
}

impl Log {
    /// Bytes of rebuilt segments that are whole and do not have their copies, or are not known to have them.
    pub fn rebuilt_bytes(&self) -> u64 {
        self.shared.uncopied_bytes.load(Ordering::Relaxed)
    }

    /// What was read for these streamlets has completed nothing: chunks are missing that nobody gives now. If segments of any streamlet were [put off](Rebuilt::Later)
    /// since this was said last of these, all of theirs that are begun and not whole give their memory back, but those that hold [ends of lost logs](Log::rebuild_tail).
    /// What was in them is awaited again, behind what was put off. So does what is left of streamlets that have gone to other nodes, which nobody reads for.
    /// Any thread.
    pub fn give_back_begun(&self, is_one: impl Fn(StreamId, StreamletId) -> bool) {
        for stream in self.streams() {
            let of = |one: &&Arc<Streamlet>| is_one(stream.id(), one.id()) || one.tenure() == Tenure::Elsewhere;
            stream.streamlets().filter(of).flat_map(|one| one.all_lanes()).for_each(|lane| lane.give_back_begun());
        }
    }

    /// Puts a chunk of an awaited segment to the place that it names, whatever of the segment is there. Any thread; verifies
    /// and copies without the lane's lock.
    pub fn rebuild_chunk(&self, bytes: &[u8]) -> Result<Rebuilt, RebuildError> {
        self.put_rebuilt(bytes, false)
    }

    /// The same with a chunk that is at one backup alone, perhaps: a segment that is begun with it keeps what it has, as far as there is room for such ones.
    pub fn rebuild_tail(&self, bytes: &[u8]) -> Result<Rebuilt, RebuildError> {
        self.put_rebuilt(bytes, true)
    }

    fn put_rebuilt(&self, bytes: &[u8], is_tail: bool) -> Result<Rebuilt, RebuildError> {
        let view = ChunkView::parse(bytes)?;
        let part = view.broker()?;
        let (stream, streamlet) = (view.header().stream, view.header().streamlet);
        let id = SegmentId { stream, streamlet, lane: part.lane, group: part.group, index: part.segment };
        let piece = match view.header().kind {
            PayloadKind::Piece => Some(PieceHeader::parse(view.payload())?),
            _ => None,
        };
        let lane = self.stream(stream).and_then(|stream| stream.streamlet(streamlet)?.any_lane(part.lane).cloned());
        let Some(lane) = lane else { return Ok(Rebuilt::NotAwaited) };
        let begun = match lane.begin(id, &view, &part, piece.map(|(header, _)| header), is_tail) {
            Ok(Ok(begun)) => begun,
            Ok(Err(instead)) => return Ok(instead),
            Err(RebuildError::ArenaFull(full)) => {
                self.shared.want_space(&full);
                return Err(RebuildError::ArenaFull(full));
            }
            Err(error) => return Err(error),
        };
        match begun.put(&view, &part, piece)? {
            Filled::Part => Ok(Rebuilt::Put),
            Filled::There => Ok(Rebuilt::NotAwaited),
            Filled::All => lane.show(&begun),
        }
    }
}

impl Begun {
    fn put(
        &self,
        chunk: &ChunkView<'_>,
        part: &BrokerPart,
        piece: Option<(PieceHeader, &[u8])>,
    ) -> Result<Filled, RebuildError> {
        let (from, to) = (part.position, part.position + chunk.as_bytes().len() as u32);
        let mut spans = self.spans.lock();
        match spans.part(from, to) {
            Part::New => {}
            Part::There => return Ok(Filled::There),
            Part::Across => {
                let cursor = Cursor { group: part.group, segment: part.segment, position: from };
                return Err(RebuildError::Conflict { cursor, what: "it lies across another one" });
            }
        }
        match piece {
            None => self.segment.put_chunk(from, chunk, part)?,
            Some((header, _)) if self.piece != Some(of_all(header)) => {
                let cursor = Cursor { group: part.group, segment: part.segment, position: from };
                return Err(RebuildError::Conflict { cursor, what: "it is not of the row that others are of" });
            }
            Some((header, chunks)) => {
                chunk.verify()?;
                self.segment.put_chunks(header.at, chunks);
            }
        }
        spans.add(from, to);
        let all = spans.are_all(FIRST_CHUNK, self.awaited.end);
        Ok(if all { Filled::All } else { Filled::Part })
    }

    /// Makes it a closed segment, if its chunks are what was awaited. Once, by who has put the last chunk.
    fn close(&self, last_of_group: bool) -> Result<(), RebuildError> {
        match &self.piece {
            Some(piece) => self.check_compacted(piece)?,
            None => self.check()?,
        }
        self.segment.publish();
        self.segment.close(if last_of_group { SegmentState::ClosedGroup } else { SegmentState::Closed });
        Ok(())
    }

    /// Of a compacted segment: whether its chunks are those of the row, and rise up to where it ends.
    fn check_compacted(&self, piece: &PieceHeader) -> Result<(), RebuildError> {
        let AwaitedSegment { base_ordinal, next_ordinal, group, index, .. } = self.awaited;
        let progress = SegmentProgress {
            head: piece.head.into(),
            durable_head: piece.head.into(),
            next_ordinal,
            state: SegmentState::Open,
            chunk_count: piece.chunk_count,
            first_append_ms: piece.first_append_ms,
            last_append_ms: piece.last_append_ms,
            max_timestamp_ms: piece.max_timestamp_ms,
        };
        self.segment.reopen(&progress);
        let bytes = self.segment.bytes(FIRST_CHUNK, piece.head);
        let wrong =
            |position, what| Err(RebuildError::Conflict { cursor: Cursor { group, segment: index, position }, what });
        if crc32c(bytes) != piece.checksum {
            return wrong(FIRST_CHUNK, "its chunks are not those that its pieces promise");
        }
        let (mut ordinal, mut position, mut count) = (base_ordinal, FIRST_CHUNK, 0);
        for chunk in Chunks::new(bytes) {
            let chunk = chunk?;
            let part = chunk.broker()?;
            if part.base_ordinal < ordinal || part.position < position || part.position >= piece.capacity_bytes {
                return wrong(part.position, "its chunks do not rise");
            }
            ordinal = part.base_ordinal.saturating_add(chunk.header().record_count.into());
            position = part.position + chunk.as_bytes().len() as u32;
            count += 1;
        }
        if (ordinal, count) != (next_ordinal, piece.chunk_count) {
            return wrong(piece.head, "the segment does not end at the awaited ordinal");
        }
        self.segment.set_marks(marks_of(bytes));
        Ok(())
    }

    /// Of a segment as it was appended: whether its chunks follow one another up to where it ends.
    fn check(&self) -> Result<(), RebuildError> {
        // All was put, and nobody writes any more.
        let AwaitedSegment { end, base_ordinal, next_ordinal, group, index, .. } = self.awaited;
        let mut progress =
            SegmentProgress { head: end.into(), durable_head: end.into(), ..SegmentProgress::empty(base_ordinal) };
        self.segment.reopen(&progress);
        let (mut at, mut ordinal, mut marks) = (FIRST_CHUNK, base_ordinal, Marks::default());
        while at < end {
            let rest = self.segment.bytes(at, end);
            let (header, part) = (ChunkHeader::parse(rest)?, BrokerPart::parse(rest)?);
            if part.base_ordinal != ordinal {
                let cursor = Cursor { group, segment: index, position: at };
                return Err(RebuildError::Conflict { cursor, what: "its ordinal is not the one that comes next" });
            }
            if progress.chunk_count == 0 {
                progress.first_append_ms = part.append_time_ms;
            }
            progress.last_append_ms = part.append_time_ms;
            progress.max_timestamp_ms = progress.max_timestamp_ms.max(header.max_timestamp_ms);
            progress.chunk_count += 1;
            marks.note(&header, part.base_ordinal, at);
            ordinal = ordinal.saturating_add(header.record_count.into());
            at += header.total_bytes() as u32;
        }
        if ordinal != next_ordinal {
            let cursor = Cursor { group, segment: index, position: end };
            return Err(RebuildError::Conflict { cursor, what: "the segment does not end at the awaited ordinal" });
        }
        progress.next_ordinal = ordinal;
        self.segment.reopen(&progress);
        self.segment.set_marks(marks.finish());
        Ok(())
    }
}

/// What is the same in all pieces of a row.
fn of_all(piece: PieceHeader) -> PieceHeader {
    PieceHeader { at: 0, ..piece }
}

impl Lane {
    /// What was known so far says nothing of what is between its end and the segments that come: retention took that, and its chunks.
    fn forget_in_front_of(&self, lost: &LostLane) {
        let first = lost.segments.first().map_or(lost.state.next_ordinal, |segment| segment.base_ordinal);
        let limit = self.log().config.producers_per_lane_max;
        let mut state = self.state.lock();
        if state.next_ordinal < first {
            state.producers.forget_others(&lost.state.producers, limit);
        }
    }

    fn await_segments(&self, segments: &[AwaitedSegment]) {
        let mut state = self.state.lock();
        let seen_put_off = self.log().times_put_off.load(Ordering::Relaxed);
        let fresh = || Box::new(Rebuilding { seen_put_off, ..Rebuilding::default() });
        let mut rebuilding = state.rebuilding.take().unwrap_or_else(fresh);
        for awaited in segments {
            let slot = Slot::awaited(awaited);
            if state.chain.insert(awaited.group, u32::MAX, slot).is_some() {
                rebuilding.awaited.insert((awaited.group, awaited.index.0), awaited.rewrite);
            }
        }
        if let Some(first) = segments.iter().map(|awaited| awaited.base_ordinal).min() {
            // What is behind was compacted without them.
            state.compacted_to = state.compacted_to.min(first);
            state.joined_to = state.next_ordinal;
            state.reshaped += 1;
        }
        state.chain.groups.iter_mut().for_each(|group| group.closed = true);
        state.chain.is_taken_over = true;
        state.rebuilding = Some(rebuilding);
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
    }

    fn awaited(&self) -> Vec<AwaitedSegment> {
        let state = self.state.lock();
        let Some(rebuilding) = &state.rebuilding else { return Vec::new() };
        let of = |(&(group, index), rewrite): (&(GroupId, u32), &u64)| {
            let at = state.chain.find(group, SegmentIndex(index))?;
            Some(awaited_of(group, state.chain.slot(at), *rewrite))
        };
        rebuilding.awaited.iter().filter_map(of).collect()
    }

    /// The segment that a chunk belongs to, begun now if need be; or what becomes of the chunk instead.
    fn begin(
        &self,
        id: SegmentId,
        chunk: &ChunkView<'_>,
        part: &BrokerPart,
        piece: Option<PieceHeader>,
        is_tail: bool,
    ) -> Result<Result<Arc<Begun>, Rebuilt>, RebuildError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let key = (id.group, id.index.0);
        let Some(rebuilding) = &mut state.rebuilding else { return Ok(Err(Rebuilt::NotAwaited)) };
        let Some(rewrite) = rebuilding.awaited.get(&key).copied() else { return Ok(Err(Rebuilt::NotAwaited)) };
        if piece.map_or(0, |piece| piece.rewrite()) != rewrite {
            return Ok(Err(Rebuilt::NotAwaited));
        }
        let awaited = match (rebuilding.begun.get(&key), state.chain.find(id.group, id.index)) {
            (Some(begun), _) => begun.awaited,
            (None, Some(at)) => awaited_of(id.group, state.chain.slot(at), rewrite),
            (None, None) => return Ok(Err(Rebuilt::NotAwaited)),
        };
        let end = part.position.saturating_add(chunk.as_bytes().len() as u32);
        let next_ordinal = part.base_ordinal.saturating_add(chunk.header().record_count.into());
        if part.position >= awaited.end && part.base_ordinal >= awaited.next_ordinal {
            // Behind what was acknowledged.
            return Ok(Err(Rebuilt::NotAwaited));
        }
        let is_within = part.position >= FIRST_CHUNK
            && end <= awaited.end
            && awaited.base_ordinal <= part.base_ordinal
            && next_ordinal <= awaited.next_ordinal
            && piece.is_none_or(|piece| piece.row_end == awaited.end);
        if !is_within {
            let cursor = Cursor { group: id.group, segment: id.index, position: part.position };
            return Err(RebuildError::Conflict { cursor, what: "it does not lie within what its segment holds" });
        }
        if let Some(begun) = rebuilding.begun.get(&key) {
            return Ok(Ok(Arc::clone(begun)));
        }
        if rebuilding.looked_through.contains(&key) {
            return Ok(Err(Rebuilt::Later));
        }
        // Known before anything is filled: what is whole must not lack it.
        self.rebuilt_sink()?;
        let has_waited = rebuilding.waited.contains(&key);
        let Some(share) = share_for(self.log(), awaited.end.into(), has_waited, is_tail) else {
            self.log().times_put_off.fetch_add(1, Ordering::Relaxed);
            if has_waited {
                rebuilding.put_off.insert(key);
            }
            rebuilding.lacked_room.insert(key);
            return Ok(Err(Rebuilt::Later));
        };
        let begun = Arc::new(self.create_begun(id, (awaited, share), part, piece)?);
        rebuilding.begun.insert(key, Arc::clone(&begun));
        Ok(Ok(begun))
    }

    /// A segment with nothing in it yet.
    fn create_begun(
        &self,
        id: SegmentId,
        (awaited, share): (AwaitedSegment, Share),
        part: &BrokerPart,
        piece: Option<PieceHeader>,
    ) -> Result<Begun, RebuildError> {
        let (log, full) = (self.log(), RebuildError::ArenaFull);
        let end = piece.map_or(awaited.end, |piece| piece.head);
        let (bytes, filled) = (end as usize, (Purpose::Write, Filling::Whole));
        let block = log.arena.allocate_with(bytes, bytes, filled).map_err(full)?;
        let header = SegmentHeader {
            id,
            capacity_bytes: piece.map_or(block.capacity_bytes(), |piece| piece.capacity_bytes),
            base_ordinal: awaited.base_ordinal,
            created_ms: piece.map_or(part.append_time_ms, |piece| piece.created_ms),
            flags: piece.map_or(0, |piece| piece.flags),
        };
        let segment = Segment::create_hidden(block, header);
        begun_bytes(log, share).fetch_add(awaited.end.into(), Ordering::Relaxed);
        let log = Arc::clone(&self.home.stream.log);
        let piece = piece.map(of_all);
        Ok(Begun { log, segment, awaited, share, piece, spans: Mutex::default() })
    }

    fn looked_through(&self) -> usize {
        let (left, given) = {
            let mut state = self.state.lock();
            let Some(rebuilding) = &mut state.rebuilding else { return 0 };
            let Rebuilding { awaited, begun, lacked_room, looked_through, .. } = &mut **rebuilding;
            let lacked = std::mem::take(lacked_room);
            looked_through.extend(awaited.keys().filter(|place| !lacked.contains(place)));
            let left = awaited.keys().filter(|place| !looked_through.contains(place)).count();
            (left, take_given(begun))
        };
        // Who waits for memory is told when it comes back: not under the lane's lock.
        drop(given);
        left
    }

    fn give_back_begun(&self) {
        let given = {
            let mut state = self.state.lock();
            let Some(rebuilding) = &mut state.rebuilding else { return };
            let Rebuilding { begun, waited, put_off, seen_put_off, .. } = &mut **rebuilding;
            let now = self.log().times_put_off.load(Ordering::Relaxed);
            let is_others = self.tenure() == Tenure::Elsewhere;
            if std::mem::replace(seen_put_off, now) == now && !is_others {
                return;
            }
            std::mem::take(put_off).iter().for_each(|key| _ = waited.remove(key));
            // Whoever has it now has read the ends of logs by itself.
            let given = if is_others { std::mem::take(begun) } else { take_given(begun) };
            waited.extend(given.keys());
            given
        };
        // Who waits for memory is told when it comes back: not under the lane's lock.
        drop(given);
    }

    /// Takes a segment that is whole: readers see it, the store writes it out, and its chunks wait for their way to the sink.
    fn show(self: &Arc<Self>, begun: &Begun) -> Result<Rebuilt, RebuildError> {
        let AwaitedSegment { group, index, end, .. } = begun.awaited;
        let sink = self.rebuilt_sink()?;
        let closed = {
            let state = self.state.lock();
            let at = state.chain.find(group, index);
            begun.close(at.is_none_or(|at| at.slot + 1 == state.chain.groups[at.group].slots.len()))
        };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(rebuilding) = &mut state.rebuilding else { return Ok(Rebuilt::NotAwaited) };
        if rebuilding.begun.remove(&(group, index.0)).is_none() {
            return Ok(Rebuilt::NotAwaited);
        }
        // What is not what it should be is awaited again, from another backup.
        closed?;
        rebuilding.awaited.remove(&(group, index.0));
        rebuilding.waited.remove(&(group, index.0));
        let Some(at) = state.chain.find(group, index) else {
            begun.segment.disown();
            return Ok(Rebuilt::NotAwaited);
        };
        if sink.is_some() {
            rebuilding.uncopied.push_back(Uncopied::new(&begun.log, &begun.segment));
        }
        let slot = state.chain.slot_mut(at);
        slot.memory = Some(Arc::clone(&begun.segment));
        slot.refresh();
        if begun.segment.header().has_forgotten() {
            // What was told of the time before it knows them as they were then.
            state.producers.set_thrown_out_from(begun.awaited.base_ordinal);
            // And of those that are known from it an older chunk may be left alone.
            state.producers.set_hole(begun.awaited.next_ordinal);
        }
        // Times never fall along a lane, whatever the clocks of its owners say.
        state.last_append_ms = state.last_append_ms.max(begun.segment.last_append_ms());
        self.log().hand_over(&begun.segment);
        state.version += 1;
        let wake = state.waiters.take();
        drop(guard);
        wake.call();
        Ok(Rebuilt::Whole { bytes: end })
    }

    /// What makes rebuilt chunks durable here.
    fn rebuilt_sink(&self) -> Result<Option<Arc<dyn DurabilitySink>>, SinkError> {
        self.home.is_logged().then(|| self.home.sink().map(behind)).transpose()
    }

    /// Gives a segment's chunks to the sink, in their order; of a compacted one the pieces of its row. Nothing if there are none, or if it cannot be
    /// put into a row.
    pub(crate) fn replicate(self: &Arc<Self>, segment: &Arc<Segment>, sink: &dyn DurabilitySink) -> Option<Ticket> {
        let mut last = None;
        let chunks = segment.bytes(FIRST_CHUNK, segment.head());
        let row = match segment.header().is_compacted() {
            false => None,
            true => match row_of(segment.header(), &segment.progress(), chunks) {
                Ok(row) => Some(Arc::new(row)),
                Err(error) => {
                    tracing::warn!(segment = %segment.id(), %error, "a compacted segment cannot be copied again");
                    return None;
                }
            },
        };
        let chunks = Chunks::new(row.as_ref().map_or(chunks, |row| &row[..])).map_while(Result::ok);
        let mut chunks = chunks.filter_map(|chunk| Some((*chunk.header(), chunk.broker().ok()?))).peekable();
        while chunks.peek().is_some() {
            let mut state = self.state.lock();
            for (header, part) in chunks.by_ref().take(APPENDED_AT_ONCE) {
                let (lane, segment, position) = (Arc::clone(self), Arc::clone(segment), part.position);
                let bytes = header.total_bytes() as u32;
                let next_ordinal = part.base_ordinal + u64::from(header.record_count);
                let row = row.clone();
                last = Some(sink.appended(ChunkReference { segment, position, bytes, next_ordinal, lane, row }));
            }
            if row.is_some() {
                let SegmentId { group, index, .. } = segment.id();
                if let Some(at) = state.chain.find(group, index) {
                    state.chain.slot_mut(at).copied.note(address_of(sink), segment.header().rewrites());
                }
            }
            if let Some(rebuilding) = &mut state.rebuilding {
                rebuilding.ticket = rebuilding.ticket.max(last);
            }
        }
        last
    }
}

impl LaneState {
    /// Whether old segments are awaited, or do not have their copies yet: nothing is dropped meanwhile.
    pub(crate) fn is_rebuilding(&self) -> bool {
        self.rebuilding.is_some()
    }
}

impl Uncopied {
    fn new(log: &Arc<Shared>, segment: &Arc<Segment>) -> Uncopied {
        log.uncopied_bytes.fetch_add(segment.head().into(), Ordering::Relaxed);
        Uncopied { log: Arc::clone(log), segment: Arc::clone(segment) }
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> u64 {
        self.segment.head().into()
    }
}

impl Drop for Uncopied {
    fn drop(&mut self) {
        self.log.uncopied_bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        begun_bytes(&self.log, self.share).fetch_sub(self.awaited.end.into(), Ordering::Relaxed);
    }
}

/// Takes what is begun, but for what holds ends of lost logs.
fn take_given(begun: &mut HashMap<(GroupId, u32), Arc<Begun>>) -> HashMap<(GroupId, u32), Arc<Begun>> {
    let (tails, given) = std::mem::take(begun).into_iter().partition(|(_, one)| one.share == Share::Tail);
    *begun = tails;
    given
}

/// What counts the bytes of segments that are begun and take a share.
fn begun_bytes(log: &Shared, share: Share) -> &AtomicU64 {
    match share {
        Share::New => &log.begun_bytes,
        Share::Waited => &log.waited_bytes,
        Share::Tail => &log.tail_bytes,
    }
}

/// The share that one more of so many bytes takes; `None`: it has no room.
fn share_for(log: &Shared, bytes: u64, has_waited: bool, is_tail: bool) -> Option<Share> {
    let taken = |share| begun_bytes(log, share).load(Ordering::Relaxed);
    let (arena, new, tails) = (log.arena.bytes(), taken(Share::New), taken(Share::Tail));
    if has_waited {
        let waited = taken(Share::Waited);
        return (waited == 0 || waited + bytes <= arena / WAITED_SHARE).then_some(Share::Waited);
    }
    let fits = new + tails + bytes <= arena / BEGUN_SHARE;
    if is_tail && (new + tails == 0 || fits && tails + bytes <= arena / TAILS_SHARE) {
        return Some(Share::Tail);
    }
    // One of any size beside ends of logs, too: they may wait for long.
    (new == 0 || fits).then_some(Share::New)
}

/// What a sink is told apart by, as long as the node lives.
pub(crate) fn address_of(sink: &dyn DurabilitySink) -> usize {
    std::ptr::from_ref(sink).cast::<()>().addr()
}

fn awaited_of(group: GroupId, slot: &Slot, rewrite: u64) -> AwaitedSegment {
    let Summary { head, base_ordinal, next_ordinal, .. } = slot.summary();
    AwaitedSegment { group, index: SegmentIndex(slot.index), end: head, base_ordinal, next_ordinal, rewrite }
}
