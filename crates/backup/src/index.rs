//! What is known in memory about the chunks of a file that is not full: what its footer will say.
//!
//! Filled by the writer of the disk, chunk by chunk; read by recoveries under the same lock. Compact: a lane that fills
//! segments in order has one entry for each, whatever the number of its chunks, and five for each producer.

use std::collections::HashMap;
use std::mem::size_of;

use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::piece::PieceHeader;
use kera_format::vlog_replica::{Footer, ReplicaMark, SegmentRun};
use kera_format::{BrokerPart, ChunkHeader, Cursor, LaneId, ProducerEpoch, StreamId, StreamletId};

/// Chunks of a producer that are remembered: as many as a lane remembers of it.
pub(crate) const MARKS: usize = 5;

/// A lane among all streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LaneKey {
    pub(crate) stream: StreamId,
    pub(crate) streamlet: StreamletId,
    pub(crate) lane: LaneId,
}

/// The last chunks of a producer in a lane, oldest first.
#[derive(Clone, Copy)]
struct Ring {
    marks: [Mark; MARKS],
    count: u8,
    epoch: ProducerEpoch,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    sequence: u64,
    base_ordinal: u64,
    at: Cursor,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FileIndex {
    lanes: HashMap<LaneKey, u32>,
    runs: Vec<Vec<SegmentRun>>,
    producers: HashMap<(u32, u64), Ring>,
    run_count: usize,
    mark_count: usize,
    /// Bytes that the runs of all lanes have taken from the allocator.
    run_bytes: usize,
}

impl FileIndex {
    /// Notes the chunks of a block. Ends at one that makes no sense: its sender's checksum covered it, so it is as its sender
    /// made it, and nobody could put it anywhere.
    pub(crate) fn note_block(&mut self, chunks: &[u8]) {
        for chunk in Chunks::new(chunks) {
            let Ok(chunk) = chunk else { break };
            let Ok(part) = chunk.broker() else { break };
            match chunk.header().kind {
                PayloadKind::Piece => {
                    let Ok((piece, chunks)) = PieceHeader::parse(chunk.payload()) else { break };
                    self.note_piece(chunk.header(), &part, &piece, chunks);
                }
                _ => self.note(chunk.header(), &part),
            }
        }
    }

    fn note(&mut self, header: &ChunkHeader, part: &BrokerPart) {
        let slot = self.note_run(header, part, (0, 0));
        if header.producer_id.0 > 0 {
            self.note_producer(slot, header, part);
        }
    }

    /// Notes a piece of a compacted segment: where it is in its row, and the producers of what is in it.
    fn note_piece(&mut self, header: &ChunkHeader, part: &BrokerPart, piece: &PieceHeader, chunks: &[u8]) {
        let slot = self.note_run(header, part, (piece.rewrite(), piece.row_end));
        for chunk in Chunks::new(chunks).map_while(Result::ok) {
            let Ok(part) = chunk.broker() else { break };
            if chunk.header().producer_id.0 > 0 {
                self.note_producer(slot, chunk.header(), &part);
            }
        }
    }

    /// Notes where a chunk is: which slot its lane has. `row`: of which rewriting of its segment it is a piece, and where the row of that ends.
    fn note_run(&mut self, header: &ChunkHeader, part: &BrokerPart, (rewrite, row_end): (u64, u32)) -> u32 {
        let key = LaneKey { stream: header.stream, streamlet: header.streamlet, lane: part.lane };
        let next_slot = self.runs.len() as u32;
        let slot = *self.lanes.entry(key).or_insert(next_slot);
        if slot == next_slot {
            self.runs.push(Vec::new());
        }
        let (end, next_ordinal) = (
            part.position.saturating_add(header.total_bytes() as u32),
            part.base_ordinal + u64::from(header.record_count),
        );
        let runs = &mut self.runs[slot as usize];
        if let Some(last) = runs.last_mut()
            && (last.group, last.segment, last.end, last.next_ordinal, last.rewrite)
                == (part.group, part.segment, part.position, part.base_ordinal, rewrite)
        {
            (last.end, last.next_ordinal) = (end, next_ordinal);
            return slot;
        }
        let before = runs.capacity();
        if before == runs.len() {
            // Most lanes have one or two segments in a file.
            runs.reserve_exact(before.max(1));
        }
        runs.push(SegmentRun {
            stream: key.stream,
            streamlet: key.streamlet,
            lane: key.lane,
            group: part.group,
            segment: part.segment,
            position: part.position,
            end,
            base_ordinal: part.base_ordinal,
            next_ordinal,
            rewrite,
            row_end,
        });
        self.run_count += 1;
        self.run_bytes += (runs.capacity() - before) * size_of::<SegmentRun>();
        slot
    }

    fn note_producer(&mut self, slot: u32, header: &ChunkHeader, part: &BrokerPart) {
        let fresh = || Ring { marks: [Mark::default(); MARKS], count: 0, epoch: header.producer_epoch };
        let ring = self.producers.entry((slot, header.producer_id.0)).or_insert_with(fresh);
        if ring.epoch < header.producer_epoch {
            self.mark_count -= usize::from(ring.count);
            *ring = fresh();
        }
        // What a new owner rebuilds comes behind what it takes itself: the last are those with the highest ordinals.
        let count = usize::from(ring.count);
        let place = ring.marks[..count].partition_point(|mark| mark.base_ordinal < part.base_ordinal);
        let is_known = ring.marks[..count].get(place).is_some_and(|mark| mark.base_ordinal == part.base_ordinal);
        if ring.epoch > header.producer_epoch || is_known || (count == MARKS && place == 0) {
            return;
        }
        let at = Cursor { group: part.group, segment: part.segment, position: part.position };
        let mark = Mark { sequence: header.sequence, base_ordinal: part.base_ordinal, at };
        if count == MARKS {
            ring.marks[..place].rotate_left(1);
            ring.marks[place - 1] = mark;
        } else {
            ring.marks[place..=count].rotate_right(1);
            ring.marks[place] = mark;
            ring.count += 1;
            self.mark_count += 1;
        }
    }

    /// Entries that a footer of it has.
    pub(crate) fn entries(&self) -> usize {
        self.run_count + self.mark_count
    }

    /// Bytes of memory that it takes, counted as what was asked of the allocator.
    pub(crate) fn bytes(&self) -> usize {
        // A hash map takes a byte beside each slot, and an eighth of its slots is always free.
        let map = |capacity: usize, entry: usize| capacity * 8 / 7 * (entry + 1);
        let lanes = map(self.lanes.capacity(), size_of::<(LaneKey, u32)>());
        let producers = map(self.producers.capacity(), size_of::<((u32, u64), Ring)>());
        size_of::<FileIndex>()
            + lanes
            + producers
            + self.runs.capacity() * size_of::<Vec<SegmentRun>>()
            + self.run_bytes
    }

    /// What is in it, sorted, so that the same blocks give the same footer.
    pub(crate) fn footer(&self, vlog: u32, file: u64, key: u64, last_block: u64) -> Footer {
        let mut segments: Vec<SegmentRun> = self.runs.iter().flatten().copied().collect();
        segments.sort_unstable();
        let mut keys =
            vec![LaneKey { stream: StreamId(0), streamlet: StreamletId(0), lane: LaneId(0) }; self.runs.len()];
        for (key, slot) in &self.lanes {
            keys[*slot as usize] = *key;
        }
        let marks = |(&(slot, producer), ring): (&(u32, u64), &Ring)| {
            let (LaneKey { stream, streamlet, lane }, epoch) = (keys[slot as usize], ring.epoch);
            let marks = ring.marks[..usize::from(ring.count)].to_vec();
            marks.into_iter().map(move |mark| ReplicaMark {
                stream,
                streamlet,
                lane,
                producer_id: kera_format::ProducerId(producer),
                producer_epoch: epoch,
                sequence: mark.sequence,
                base_ordinal: mark.base_ordinal,
                at: mark.at,
            })
        };
        let mut producers: Vec<ReplicaMark> = self.producers.iter().flat_map(marks).collect();
        producers.sort_unstable();
        Footer { vlog, file, key, last_block, segments, producers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::chunk::ChunkTarget;
    use kera_format::{ChunkBuilder, Compression, GroupId, ProducerId, Record, SegmentIndex};

    fn chunk(stream: u64, producer: u64, sequence: u64, segment: u32, position: u32, ordinal: u64) -> Vec<u8> {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(b"x"));
        let target = ChunkTarget {
            stream: StreamId(stream),
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch((sequence >> 32) as u16),
            sequence: sequence & 0xffff_ffff,
            ..ChunkTarget::default()
        };
        let mut bytes = builder.seal(&target, Compression::None).expect("a chunk");
        let (group, segment) = (GroupId::new(1, 1), SegmentIndex(segment));
        BrokerPart { group, segment, base_ordinal: ordinal, append_time_ms: 5, lane: LaneId(0), position }
            .stamp(&mut bytes);
        bytes
    }

    #[test]
    fn chunks_that_follow_one_another_are_one_entry() {
        let mut index = FileIndex::default();
        let bytes = chunk(1, 0, 0, 0, 128, 0).len() as u32;
        for n in 0..100 {
            index.note_block(&chunk(1, 0, 0, 0, 128 + n * bytes, n.into()));
        }
        index.note_block(&chunk(1, 0, 0, 1, 128, 100));
        let footer = index.footer(0, 1, 2, 3);
        assert_eq!(footer.segments.len(), 2);
        assert_eq!((footer.segments[0].position, footer.segments[0].end), (128, 128 + 100 * bytes));
        assert_eq!((footer.segments[1].base_ordinal, footer.segments[1].next_ordinal), (100, 101));
        assert!(footer.producers.is_empty());
    }

    #[test]
    fn the_last_five_chunks_of_a_producers_last_epoch_are_kept() {
        let mut index = FileIndex::default();
        for n in 0..9u64 {
            index.note_block(&chunk(1, 7, n, 0, 128 + 112 * n as u32, n));
        }
        let sequences = |index: &FileIndex| {
            let mut sequences: Vec<_> = index.footer(0, 1, 2, 3).producers.iter().map(|mark| mark.sequence).collect();
            sequences.sort_unstable();
            sequences
        };
        assert_eq!(sequences(&index), [4, 5, 6, 7, 8]);
        index.note_block(&chunk(1, 7, 1 << 32, 0, 128 + 112 * 9, 9));
        assert_eq!(sequences(&index), [0]);
        assert_eq!(index.entries(), index.footer(0, 1, 2, 3).segments.len() + 1);
    }

    #[test]
    fn chunks_that_were_rebuilt_behind_newer_ones_are_not_the_last() {
        let mut index = FileIndex::default();
        let put = |index: &mut FileIndex, epoch: u64, n: u64| {
            index.note_block(&chunk(1, 7, epoch << 32 | n, 0, 128 + 112 * n as u32, n));
        };
        (20..23).for_each(|n| put(&mut index, 1, n));
        (0..9).for_each(|n| put(&mut index, 0, n));
        (10..16).for_each(|n| put(&mut index, 1, n));
        put(&mut index, 1, 15);
        let mut marks: Vec<_> = index.footer(0, 1, 2, 3).producers.iter().map(|mark| mark.base_ordinal).collect();
        marks.sort_unstable();
        assert_eq!(marks, [14, 15, 20, 21, 22]);
        assert_eq!(index.entries(), index.footer(0, 1, 2, 3).segments.len() + 5);
    }

    #[test]
    fn what_ten_thousand_streams_take_is_bounded() {
        let mut index = FileIndex::default();
        for stream in 1..=10_000 {
            for n in 0..8u64 {
                index.note_block(&chunk(stream, 7, n, 0, 128 + 112 * n as u32, n));
            }
        }
        assert_eq!(index.entries(), 10_000 * 6);
        assert!(index.bytes() < 12 << 20, "{} bytes", index.bytes());
        // Nobody's count is better than the sizes that are known for sure.
        assert!(index.bytes() > 10_000 * (size_of::<SegmentRun>() + size_of::<Ring>()));
    }
}
