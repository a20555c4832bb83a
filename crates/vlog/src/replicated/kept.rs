//! Which blocks backups must keep, because segments that still live have chunks in them.

use std::collections::{HashSet, VecDeque};

use kera_format::SegmentId;
use kera_log::ChunkReference;

/// Blocks that follow one another, about as many bytes as a backup's file.
#[derive(Default)]
struct Stretch {
    last: u64,
    bytes: u64,
    segments: HashSet<SegmentId>,
}

/// See the module. Takes about 60 bytes for each segment and stretch that it has chunks in.
pub(crate) struct KeptBlocks {
    stretches: VecDeque<Stretch>,
    stretch_bytes: u64,
    released: u64,
}

impl KeptBlocks {
    pub(crate) fn new(stretch_bytes: u64) -> KeptBlocks {
        KeptBlocks { stretches: VecDeque::new(), stretch_bytes, released: 0 }
    }

    /// A block was made.
    pub(crate) fn note(&mut self, number: u64, bytes: u64, references: &[ChunkReference]) {
        if self.stretches.back().is_none_or(|stretch| stretch.bytes >= self.stretch_bytes) {
            self.stretches.push_back(Stretch::default());
        }
        let Some(stretch) = self.stretches.back_mut() else { return };
        (stretch.last, stretch.bytes) = (number, stretch.bytes + bytes);
        stretch.segments.extend(references.iter().map(|reference| reference.segment.id()));
    }

    /// Segments are gone for good.
    pub(crate) fn gone(&mut self, segments: &[SegmentId]) {
        for stretch in &mut self.stretches {
            for id in segments {
                stretch.segments.remove(id);
            }
        }
    }

    /// Up to which block nobody needs any, of those up to `acknowledged`, if that is further than it was told before. Blocks
    /// go from the oldest on: what is left has no holes.
    pub(crate) fn release(&mut self, acknowledged: u64) -> Option<u64> {
        let before = self.released;
        while self.stretches.len() > 1
            && let Some(oldest) = self.stretches.front()
            && oldest.segments.is_empty()
            && oldest.last <= acknowledged
        {
            self.released = oldest.last;
            self.stretches.pop_front();
        }
        (self.released > before).then_some(self.released)
    }

    /// Up to here blocks were given back.
    pub(crate) fn released(&self) -> u64 {
        self.released
    }
}
