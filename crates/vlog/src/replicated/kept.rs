//! Which blocks backups must keep, because segments that still live have chunks in them; and which segments are to be copied again
//! so that they need not.
//!
//! Blocks are given back from the oldest on. So one old segment that lives holds back all that is behind it, and blocks of views whose
//! backups are gone have fewer copies than they should for as long as they are needed. Both are put right in the same way: the chunks of
//! such a segment are appended once more, like any others ([`ReplicatedLog::to_copy_again`](super::ReplicatedLog::to_copy_again)), and
//! once that is acknowledged the older blocks are not needed for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;

use kera_format::SegmentId;
use kera_log::ChunkReference;

/// Older stretches are copied forward when they hold so many times the bytes of what lives in them.
const DEAD_FACTOR: u64 = 2;
/// And when that is worth so many stretches.
const DEAD_STRETCHES: u64 = 4;

/// Blocks that follow one another, about as many bytes as a backup's file.
#[derive(Default)]
struct Stretch {
    first: u64,
    last: u64,
    bytes: u64,
    /// Bytes of each segment that lives; of one that was compacted since, what is left of it at most.
    segments: HashMap<SegmentId, u64>,
}

impl Stretch {
    fn overlaps(&self, range: &RangeInclusive<u64>) -> bool {
        self.first <= *range.end() && *range.start() <= self.last
    }
}

/// See the module. Takes about 70 bytes for each segment and stretch that it has chunks in.
pub(crate) struct KeptBlocks {
    stretches: VecDeque<Stretch>,
    stretch_bytes: u64,
    /// The newest stretch takes no more.
    sealed: bool,
    released: u64,
}

impl KeptBlocks {
    pub(crate) fn new(stretch_bytes: u64) -> KeptBlocks {
        KeptBlocks { stretches: VecDeque::new(), stretch_bytes, sealed: false, released: 0 }
    }

    /// A block was made.
    pub(crate) fn note(&mut self, number: u64, bytes: u64, references: &[ChunkReference]) {
        self.note_all(number, bytes, references.iter().map(|of| (of.segment.id(), of.bytes.into())));
    }

    fn note_all(&mut self, number: u64, bytes: u64, segments: impl Iterator<Item = (SegmentId, u64)>) {
        let is_full = self.stretches.back().is_none_or(|stretch| stretch.bytes >= self.stretch_bytes);
        if is_full || std::mem::take(&mut self.sealed) {
            self.stretches.push_back(Stretch { first: number, ..Stretch::default() });
        }
        let Some(stretch) = self.stretches.back_mut() else { return };
        (stretch.last, stretch.bytes) = (number, stretch.bytes + bytes);
        for (segment, bytes) in segments {
            *stretch.segments.entry(segment).or_default() += bytes;
        }
    }

    /// The next block begins another stretch: other backups have it.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Segments are gone for good.
    pub(crate) fn gone(&mut self, segments: &[SegmentId]) {
        for stretch in &mut self.stretches {
            for id in segments {
                stretch.segments.remove(id);
            }
        }
    }

    /// Compaction has left so much of segments, which is what a copy of them takes.
    pub(crate) fn smaller(&mut self, segments: &[(SegmentId, u64)]) {
        for stretch in &mut self.stretches {
            for (id, left) in segments {
                if let Some(bytes) = stretch.segments.get_mut(id) {
                    *bytes = (*left).min(*bytes);
                }
            }
        }
    }

    /// All of a segment's chunks were appended again, to blocks from `since` on, and are acknowledged there.
    pub(crate) fn copied_again(&mut self, segment: SegmentId, since: u64) {
        for stretch in self.stretches.iter_mut().take_while(|stretch| stretch.last < since) {
            stretch.segments.remove(&segment);
        }
    }

    /// Segments that are to be copied again, the oldest first, at most `most`: those that have chunks in blocks of `lacking`, which have
    /// fewer copies than they should, and those that hold back much more than they are. `without`: those that cannot be copied.
    pub(crate) fn to_copy_again(
        &self,
        lacking: &[RangeInclusive<u64>],
        most: usize,
        without: &HashSet<SegmentId>,
    ) -> Vec<SegmentId> {
        let older = self.stretches.len().saturating_sub(1);
        let (mut bytes, mut alive) = (0, 0);
        for stretch in self.stretches.iter().take(older) {
            bytes += stretch.bytes;
            alive += stretch.segments.values().sum::<u64>().min(stretch.bytes);
        }
        let is_mostly_dead = bytes > DEAD_FACTOR * alive + DEAD_STRETCHES * self.stretch_bytes;
        let mut found: Vec<SegmentId> = Vec::new();
        for (at, stretch) in self.stretches.iter().enumerate() {
            let is_lacking = lacking.iter().any(|range| stretch.overlaps(range));
            // One is enough: with it gone, those behind it go as far as they are empty.
            let holds_back = is_mostly_dead && at < older && found.is_empty();
            if is_lacking || holds_back {
                let mut segments: Vec<_> =
                    stretch.segments.keys().filter(|id| !without.contains(id)).copied().collect();
                segments.sort_unstable();
                found.extend(segments);
            }
            if found.len() >= most {
                break;
            }
        }
        found.truncate(most);
        found
    }

    /// Blocks that may have chunks of a segment: by whole stretches, the newest first.
    pub(crate) fn blocks_of(&self, segment: SegmentId) -> impl Iterator<Item = RangeInclusive<u64>> {
        let with = self.stretches.iter().rev().filter(move |stretch| stretch.segments.contains_key(&segment));
        with.map(|stretch| stretch.first..=stretch.last)
    }

    /// Blocks of a range that something still lives in, about: by whole stretches.
    pub(crate) fn needed(&self, range: &RangeInclusive<u64>) -> u64 {
        let of = |stretch: &Stretch| {
            let (first, last) = (stretch.first.max(*range.start()), stretch.last.min(*range.end()));
            if stretch.segments.is_empty() { 0 } else { (last + 1).saturating_sub(first) }
        };
        self.stretches.iter().map(of).sum()
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
