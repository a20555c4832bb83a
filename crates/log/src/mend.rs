//! Segments that a disk has lost, from copies elsewhere: a place that cannot be read, or bytes that are not those that were written.
//! `docs/replication.md`, "A disk has lost something", has the argument.
//!
//! A load that fails asks the [`Mender`], if there is one. What it looks for counts as being on its way: readers wait as they do for the disk. The mender
//! [gathers](Gathering) the segment's chunks from wherever they are and gives them back ([`Log::mended`]): they are written to a disk once more, at another place,
//! and only when that is synced does the lane know of it and the damaged place goes. So at any moment one of the two is where a start finds the segment;
//! of both it takes the new one, unless a kill has cut that off. If no disk takes the new image it is shown from memory, and is looked for
//! again once it has left that.
//!
//! Nothing is believed that was not verified: each chunk has a checksum over its content and its place, chunks must follow one another by places and ordinals, and
//! they must end where the segment ended.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_env::AlignedBuffer;
use kera_format::checksum::crc32c;
use kera_format::chunk::PayloadKind;
use kera_format::container::{ContainerEntry, pages, verify_image};
use kera_format::piece::PieceHeader;
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{BrokerPart, ChunkView, FormatError, SegmentId};

use crate::attach::Walk;
use crate::group::{Slot, Summary};
use crate::log::Log;
use crate::segment::FIRST_CHUNK;
use crate::spans::{Part, Spans};
use crate::storage::Location;

/// Who looks for what a disk has lost.
pub trait Mender: Send + Sync {
    /// A segment cannot be read, or is not what was written. True: it is looked for, and exactly one [`Log::mended`] or [`Log::not_mended`] follows, from
    /// another thread; until then it is not asked for again. Called without locks.
    fn damaged(&self, id: SegmentId, error: &str) -> bool;
}

/// States of a compacted segment that are told apart: each takes some bytes.
const OTHERS_MAX: usize = 64;

/// A segment whose image on disk is of no use, as it was.
#[derive(Clone, Copy, Debug)]
pub struct DamagedSegment {
    id: SegmentId,
    at: Location,
    was: Summary,
    ends_group: bool,
}

impl DamagedSegment {
    /// Its name.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Bytes of it, header included.
    pub fn bytes(&self) -> u64 {
        self.was.head.into()
    }
}

/// The chunks of a damaged segment, as far as they have come. Takes as much memory as the segment, outside of the arena.
pub struct Gathering {
    of: DamagedSegment,
    image: AlignedBuffer,
    spans: Spans,
    /// Of a compacted one: what all its pieces say, their places left out.
    piece: Option<PieceHeader>,
    /// Append time of the first chunk.
    first_ms: i64,
    /// Of a compacted one: other states of it, by their [rewritings](PieceHeader::rewrite), 0 as it was appended, and where each ends.
    others: BTreeMap<u64, (Spans, Option<u32>)>,
}

impl Gathering {
    /// Nothing of it yet.
    pub fn new(of: DamagedSegment) -> Gathering {
        let image = AlignedBuffer::zeroed(pages(of.was.head.into()) as usize);
        Gathering { of, image, spans: Spans::default(), piece: None, first_ms: 0, others: BTreeMap::new() }
    }

    /// What it is of.
    pub fn of(&self) -> &DamagedSegment {
        &self.of
    }

    /// Takes a stamped chunk, whichever it is: what is not of the segment, or is there already, is passed over. An error: it is not what was sent.
    pub fn put(&mut self, chunk: &ChunkView<'_>) -> Result<(), FormatError> {
        let (header, part) = (chunk.header(), chunk.broker()?);
        let id = SegmentId {
            stream: header.stream,
            streamlet: header.streamlet,
            lane: part.lane,
            group: part.group,
            index: part.segment,
        };
        if id != self.of.id {
            return Ok(());
        }
        match (header.kind, self.of.was.is_compacted) {
            (PayloadKind::Piece, true) => self.put_piece(chunk, &part),
            (PayloadKind::Piece, false) => Ok(()),
            (_, true) => {
                let next_ordinal = part.base_ordinal.saturating_add(header.record_count.into());
                let ends = (next_ordinal == self.of.was.next_ordinal).then_some(end_of(chunk, &part));
                self.note_other(0, chunk, &part, ends)
            }
            (_, false) => self.put_appended(chunk, &part),
        }
    }

    fn put_appended(&mut self, chunk: &ChunkView<'_>, part: &BrokerPart) -> Result<(), FormatError> {
        let (from, to) = (part.position, end_of(chunk, part));
        if from < FIRST_CHUNK || to > self.of.was.head || self.spans.part(from, to) != Part::New {
            return Ok(());
        }
        chunk.verify()?;
        self.image[from as usize..to as usize].copy_from_slice(chunk.as_bytes());
        self.spans.add(from, to);
        if from == FIRST_CHUNK {
            self.first_ms = part.append_time_ms;
        }
        Ok(())
    }

    fn put_piece(&mut self, chunk: &ChunkView<'_>, part: &BrokerPart) -> Result<(), FormatError> {
        let (piece, chunks) = PieceHeader::parse(chunk.payload())?;
        let (row, was) = (PieceHeader { at: 0, ..piece }, &self.of.was);
        let header = header_of(&row, &self.of);
        // Another rewriting has other records than this one.
        let is_it = (header.rewrites(), piece.head, piece.capacity_bytes) == (was.rewrites, was.head, was.capacity)
            && self.piece.is_none_or(|known| known == row);
        let (from, to) = (part.position, end_of(chunk, part));
        let is_in = from >= FIRST_CHUNK && to <= piece.row_end && self.spans.part(from, to) == Part::New;
        if !is_it {
            return self.note_other(piece.rewrite(), chunk, part, Some(piece.row_end));
        }
        if !is_in {
            return Ok(());
        }
        chunk.verify()?;
        let at = piece.at as usize;
        self.image[at..at + chunks.len()].copy_from_slice(chunks);
        self.spans.add(from, to);
        self.piece = Some(row);
        Ok(())
    }

    /// A chunk of another state of a compacted segment has come; `ends` is where that ends, if it says so.
    fn note_other(
        &mut self,
        rewrite: u64,
        chunk: &ChunkView<'_>,
        part: &BrokerPart,
        ends: Option<u32>,
    ) -> Result<(), FormatError> {
        chunk.verify()?;
        if self.others.len() >= OTHERS_MAX && !self.others.contains_key(&rewrite) {
            return Ok(());
        }
        let (from, to) = (part.position, end_of(chunk, part));
        let (spans, end) = self.others.entry(rewrite).or_default();
        if spans.part(from, to) == Part::New {
            spans.add(from, to);
        }
        *end = end.or(ends);
        Ok(())
    }

    /// Whether all is there of the segment as it was before it was compacted last. In its place here that would bring back what was removed; whoever takes over all of
    /// the streamlet from the copies gets it with what removes it.
    pub fn has_older(&self) -> bool {
        self.others.values().any(|(spans, end)| end.is_some_and(|end| spans.are_all(FIRST_CHUNK, end)))
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        let end = self.piece.map_or(self.of.was.head, |piece| piece.row_end);
        self.spans.are_all(FIRST_CHUNK, end)
    }

    /// Bytes of chunks, or pieces, that are there.
    pub fn bytes(&self) -> u64 {
        self.spans.bytes()
    }

    /// The segment's image as it goes to a disk.
    fn finish(mut self) -> Result<(DamagedSegment, ContainerEntry, AlignedBuffer), String> {
        let DamagedSegment { id, was, ends_group, .. } = self.of;
        if !self.is_whole() {
            return Err(format!("{} of its {} bytes were found", self.bytes(), was.head));
        }
        let header = match &self.piece {
            Some(piece) => header_of(piece, &self.of),
            None => SegmentHeader {
                id,
                capacity_bytes: was.capacity,
                base_ordinal: was.base_ordinal,
                created_ms: self.first_ms,
                flags: 0,
            },
        };
        if let Some(piece) = &self.piece
            && crc32c(&self.image[SEGMENT_HEADER_BYTES..was.head as usize]) != piece.checksum
        {
            return Err("its chunks are not those that its pieces promise".to_owned());
        }
        let walk = Walk::of(&self.image, &header, was.head, true);
        if let Some(wrong) = walk.wrong {
            return Err(wrong);
        }
        if walk.next_ordinal != was.next_ordinal {
            return Err(format!("its chunks end at ordinal {}, not {}", walk.next_ordinal, was.next_ordinal));
        }
        let times = self.piece.map_or((walk.first_append_ms, walk.last_append_ms, walk.max_timestamp_ms), |piece| {
            (piece.first_append_ms, piece.last_append_ms, piece.max_timestamp_ms)
        });
        let progress = SegmentProgress {
            head: was.head.into(),
            durable_head: was.head.into(),
            next_ordinal: was.next_ordinal,
            state: if ends_group { SegmentState::ClosedGroup } else { SegmentState::Closed },
            chunk_count: walk.chunk_count,
            first_append_ms: times.0,
            last_append_ms: times.1,
            max_timestamp_ms: times.2,
        };
        header.write(&mut self.image);
        progress.write(&mut self.image);
        // What is written is what a start must be able to read.
        verify_image(&self.image).map_err(|error| error.to_string())?;
        let marks = walk.marks.finish().iter().map(Into::into).collect();
        Ok((self.of, ContainerEntry { header, progress, at: 0, marks }, self.image))
    }
}

/// Where a chunk ends in its segment, or its row.
fn end_of(chunk: &ChunkView<'_>, part: &BrokerPart) -> u32 {
    part.position.saturating_add(chunk.as_bytes().len() as u32)
}

/// The header that pieces of a row tell of.
fn header_of(row: &PieceHeader, of: &DamagedSegment) -> SegmentHeader {
    let header = SegmentHeader {
        id: of.id,
        capacity_bytes: row.capacity_bytes,
        base_ordinal: of.was.base_ordinal,
        created_ms: row.created_ms,
        flags: row.flags,
    };
    match of.was.compacted_ms {
        Some(_) => header,
        None => header.compacted_in_part(),
    }
}

impl Log {
    /// Who looks for what a disk has lost. Once (a second call does nothing); without one such a segment cannot be read.
    pub fn mend_with(&self, mender: Arc<dyn Mender>) {
        let _ = self.shared.mender.set(mender);
    }

    /// What is to be looked for of a segment whose load has failed; `None`: nobody needs that image any more.
    pub fn damaged_segment(&self, id: SegmentId) -> Option<DamagedSegment> {
        let lane = self.lane_of(id)?;
        let state = lane.state.lock();
        let at = state.chain.find(id.group, id.index)?;
        let ends_group = at.slot + 1 == state.chain.groups[at.group].slots.len();
        let slot = state.chain.slot(at);
        let location = slot.at.filter(|_| slot.memory.is_none() && slot.stale.is_none() && !slot.open)?;
        Some(DamagedSegment { id, at: location, was: slot.summary(), ends_group })
    }

    /// Whether a segment that cannot be loaded is looked for elsewhere.
    pub(crate) fn is_looked_for(&self, id: SegmentId, error: &str) -> bool {
        let mender = self.shared.mender.get().filter(|_| self.damaged_segment(id).is_some());
        mender.is_some_and(|mender| mender.damaged(id, error))
    }

    /// All of a segment was found. It is written to a disk on the calling thread, and then readers go on. An error: it is not what was lost, or there is neither a disk
    /// that takes it nor memory; [`not_mended`](Log::not_mended) is to be told.
    pub fn mended(&self, found: Gathering) -> Result<(), String> {
        let (of, entry, image) = found.finish()?;
        let DamagedSegment { id, at: was, .. } = of;
        let store = self.shared.store.get().ok_or("there is no store")?;
        match store.write_again(entry, &image, was) {
            Ok(at) => self.moved(id, was, at),
            Err(error) => {
                tracing::warn!(segment = %id, %error, "no disk takes a segment that was read from copies: it is in memory only");
                let mut buffer = self.allocate_for_load(image.len() as u64).map_err(|full| {
                    format!("no disk takes it ({error}), and the arena has no {} bytes for it", full.bytes)
                })?;
                buffer[..image.len()].copy_from_slice(&image);
                self.loaded(id, buffer)?;
                if let Some(segment) = self.segment(id) {
                    store.came_back(&segment);
                }
            }
        }
        self.shared.segments_mended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Nobody has all of a segment that a disk has lost: the next read of it gets [`crate::ReadError::LoadFailed`].
    pub fn not_mended(&self, id: SegmentId, reason: String) {
        self.not_loaded(id, reason);
    }

    /// Copies have a damaged segment only as it was before it was compacted: the next start of the node is to say that it lacks something, so that others rebuild from the
    /// copies what it has. Blocks.
    pub fn note_lost(&self, of: &DamagedSegment) -> io::Result<()> {
        self.shared.store.get().map_or(Ok(()), |store| store.note_lost(of.at))
    }

    /// A segment's image is at `at` now, synced, and not at `was`, which is given back. If the lane has let go of it, or it was rewritten meanwhile, `at` is.
    pub(crate) fn moved(&self, id: SegmentId, was: Location, at: Location) {
        let moved = self.lane_of(id).and_then(|lane| lane.with_slot(id, |slot| slot.moved(was, at)));
        let goes = match moved {
            Some(Ok(())) => [Some(was), None],
            Some(Err(stale)) => [Some(at), stale],
            None => [Some(at), None],
        };
        goes.into_iter().flatten().for_each(|gone| self.shared.release_image(id, gone));
    }

    /// The same of one that was in memory. It may have left that meanwhile, and be on its way from `was` for a reader: that load comes to nothing, and only then `was` is
    /// given back; the reader asks once more, at `at`.
    pub(crate) fn written_again(&self, id: SegmentId, was: Location, at: Location) {
        let written = self.lane_of(id).and_then(|lane| lane.with_slot(id, |slot| slot.written_again(was, at)));
        let gone = written.unwrap_or(Err(())).unwrap_or(Some(at));
        gone.into_iter().for_each(|gone| self.shared.release_image(id, gone));
    }
}

impl Slot {
    /// See [`Log::moved`]. An error: it is not there any more, with what was on its way.
    fn moved(&mut self, was: Location, at: Location) -> Result<(), Option<Location>> {
        let stale = self.has_come().err();
        if stale.is_some() || self.at != Some(was) {
            return Err(stale);
        }
        (self.failed, self.at) = (None, Some(at));
        Ok(())
    }

    /// See [`Log::written_again`]. What is to be given back now of where it was. An error: it is not there any more.
    fn written_again(&mut self, was: Location, at: Location) -> Result<Option<Location>, ()> {
        if self.at != Some(was) || self.stale.is_some() {
            return Err(());
        }
        (self.failed, self.at) = (None, Some(at));
        if self.loading {
            self.stale = Some(was);
            return Ok(None);
        }
        Ok(Some(was))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::{GroupId, LaneId, SegmentIndex, StreamId, StreamletId};

    #[test]
    fn what_is_loaded_from_a_place_while_it_is_written_to_another_is_not_there_before_it_has_come() {
        let (stream, streamlet, lane) = (StreamId(1), StreamletId(0), LaneId(0));
        let id = SegmentId { stream, streamlet, lane, group: GroupId::new(1, 1), index: SegmentIndex(0) };
        let header = SegmentHeader { id, capacity_bytes: 65536, base_ordinal: 0, created_ms: 1, flags: 0 };
        let was = Location { disk: 0, container: 1, offset: 4096, bytes: 128 };
        let at = Location { container: 2, ..was };
        let stored = || Slot::stored(0, Summary::stored(&header, &SegmentProgress::empty(0)), was);
        let mut slot = stored();
        assert_eq!(slot.written_again(was, at), Ok(Some(was)));
        assert_eq!(slot.at, Some(at));
        // It has left memory meanwhile, and a reader has asked for it.
        let mut slot = stored();
        slot.loading = true;
        assert_eq!(slot.written_again(was, at), Ok(None));
        assert!(slot.loading && slot.at == Some(at), "it is on its way");
        assert_eq!(slot.has_come(), Err(was), "from where it was: not taken, and given back now");
        // Another time it is asked for at its new place.
        slot.loading = true;
        assert_eq!(slot.has_come(), Ok(()));
        // It was rewritten meanwhile.
        let mut slot = stored();
        slot.at = Some(Location { container: 3, ..was });
        assert_eq!(slot.written_again(was, at), Err(()));
    }
}
