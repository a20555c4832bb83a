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
    /// Those of all of them.
    alive: u64,
}

#[cfg(test)]
thread_local! {
    /// How many stretches, and segments in them, were looked at for what is needed and what is to be copied again.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Stretch {
    /// A segment does not live in it any more.
    fn remove(&mut self, segment: SegmentId) {
        self.alive -= self.segments.remove(&segment).unwrap_or(0);
    }

    fn overlaps(&self, range: &RangeInclusive<u64>) -> bool {
        self.first <= *range.end() && *range.start() <= self.last
    }
}

/// See the module. Takes about 80 bytes for each segment and stretch that it has chunks in, and as many for each segment.
pub(crate) struct KeptBlocks {
    stretches: VecDeque<Stretch>,
    /// How many stretches came before the first one.
    gone_stretches: u64,
    /// The numbers of the stretches that a segment is in, in order. A log that lives long has tens of thousands of stretches, and every log of a
    /// node is told of each segment that goes: who looks through all of them holds up what is to be acknowledged.
    places: HashMap<SegmentId, Vec<u64>>,
    stretch_bytes: u64,
    /// The newest stretch takes no more.
    sealed: bool,
    released: u64,
}

impl KeptBlocks {
    pub(crate) fn new(stretch_bytes: u64) -> KeptBlocks {
        KeptBlocks {
            stretches: VecDeque::new(),
            gone_stretches: 0,
            places: HashMap::new(),
            stretch_bytes,
            sealed: false,
            released: 0,
        }
    }

    /// The stretches that a segment is in, the newest first.
    fn with(&self, segment: SegmentId) -> impl Iterator<Item = &Stretch> {
        let numbers = self.places.get(&segment).into_iter().flatten().rev();
        numbers.filter_map(|number| self.stretches.get((number - self.gone_stretches) as usize))
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
        let newest = self.gone_stretches + self.stretches.len() as u64 - 1;
        let Some(stretch) = self.stretches.back_mut() else { return };
        (stretch.last, stretch.bytes) = (number, stretch.bytes + bytes);
        for (segment, bytes) in segments {
            let of_segment = stretch.segments.entry(segment).or_insert_with(|| {
                self.places.entry(segment).or_default().push(newest);
                0
            });
            *of_segment += bytes;
            stretch.alive += bytes;
        }
    }

    /// The next block begins another stretch: other backups have it.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Segments are gone for good.
    pub(crate) fn gone(&mut self, segments: &[SegmentId]) {
        for id in segments {
            for number in self.places.remove(id).into_iter().flatten() {
                if let Some(stretch) = self.stretches.get_mut((number - self.gone_stretches) as usize) {
                    stretch.remove(*id);
                }
            }
        }
    }

    /// Compaction has left so much of segments, which is what a copy of them takes.
    pub(crate) fn smaller(&mut self, segments: &[(SegmentId, u64)]) {
        for (id, left) in segments {
            for number in self.places.get(id).into_iter().flatten() {
                if let Some(stretch) = self.stretches.get_mut((number - self.gone_stretches) as usize)
                    && let Some(bytes) = stretch.segments.get_mut(id)
                {
                    stretch.alive -= bytes.saturating_sub(*left);
                    *bytes = (*left).min(*bytes);
                }
            }
        }
    }

    /// All of a segment's chunks were appended again, to blocks from `since` on, and are acknowledged there.
    pub(crate) fn copied_again(&mut self, segment: SegmentId, since: u64) {
        let Some(places) = self.places.get_mut(&segment) else { return };
        places.retain(|number| match self.stretches.get_mut((number - self.gone_stretches) as usize) {
            Some(stretch) if stretch.last < since => {
                stretch.remove(segment);
                false
            }
            stretch => stretch.is_some(),
        });
        if places.is_empty() {
            self.places.remove(&segment);
        }
    }

    /// Segments that are to be copied again, the oldest first, at most `most`: those that have chunks in blocks of `lacking`, which have
    /// fewer copies than they should, and those that hold back much more than they are. `without`: those that cannot be copied.
    ///
    /// Asked again and again by who holds up what is to be acknowledged, mostly with nothing to find: then no segment is looked at, of which there may be millions.
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
            alive += stretch.alive.min(stretch.bytes);
        }
        let is_mostly_dead = bytes > DEAD_FACTOR * alive + DEAD_STRETCHES * self.stretch_bytes;
        let mut found: Vec<SegmentId> = Vec::new();
        if lacking.is_empty() && !is_mostly_dead {
            return found;
        }
        for (at, stretch) in self.stretches.iter().enumerate() {
            let is_lacking = lacking.iter().any(|range| stretch.overlaps(range));
            // One is enough: with it gone, those behind it go as far as they are empty.
            let holds_back = is_mostly_dead && at < older && found.is_empty();
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            if is_lacking || holds_back {
                #[cfg(test)]
                LOOKED_AT.set(LOOKED_AT.get() + stretch.segments.len());
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
        self.with(segment).map(|stretch| stretch.first..=stretch.last)
    }

    /// Blocks of a range that something still lives in, about: by whole stretches.
    pub(crate) fn needed(&self, range: &RangeInclusive<u64>) -> u64 {
        let of = |stretch: &Stretch| {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            let (first, last) = (stretch.first.max(*range.start()), stretch.last.min(*range.end()));
            if stretch.segments.is_empty() { 0 } else { (last + 1).saturating_sub(first) }
        };
        let from = self.stretches.partition_point(|stretch| stretch.last < *range.start());
        self.stretches.range(from..).take_while(|stretch| stretch.overlaps(range)).map(of).sum()
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
            self.gone_stretches += 1;
        }
        (self.released > before).then_some(self.released)
    }

    /// Up to here blocks were given back.
    pub(crate) fn released(&self) -> u64 {
        self.released
    }
}

#[cfg(test)]
mod tests {
    use kera_env::{Random, SeededRandom};
    use kera_format::{GroupId, LaneId, SegmentIndex, StreamId, StreamletId};

    use super::*;

    fn segment(number: u64) -> SegmentId {
        SegmentId {
            stream: StreamId(number),
            streamlet: StreamletId(0),
            lane: LaneId(0),
            group: GroupId::new(1, 1),
            index: SegmentIndex(0),
        }
    }

    /// What a log knows that looks through all of its stretches.
    #[derive(Default)]
    struct Plain(Vec<(u64, HashMap<SegmentId, u64>)>);

    #[test]
    fn what_is_found_by_segment_is_what_a_look_through_all_stretches_finds() {
        let random = SeededRandom::new(7);
        let below = |most: u64| {
            let mut bytes = [0; 8];
            random.fill(&mut bytes);
            u64::from_le_bytes(bytes) % most
        };
        // Each block is a stretch.
        let (mut kept, mut plain) = (KeptBlocks::new(1), Plain::default());
        for block in 1..=4000 {
            let of: Vec<(SegmentId, u64)> =
                (0..below(4)).map(|_| (segment(block / 16 + below(8)), 1 + below(9))).collect();
            kept.note_all(block, 1, of.iter().copied());
            let mut all = HashMap::new();
            of.iter().for_each(|(id, bytes)| *all.entry(*id).or_default() += bytes);
            plain.0.push((block, all));
            let of = segment((block / 16).saturating_sub(below(24)));
            match below(6) {
                0 => {
                    kept.gone(&[of, segment(1 << 40)]);
                    plain.0.iter_mut().for_each(|(_, all)| {
                        all.remove(&of);
                    });
                }
                1 => {
                    kept.smaller(&[(of, 3)]);
                    plain.0.iter_mut().flat_map(|(_, all)| all.get_mut(&of)).for_each(|bytes| *bytes = 3.min(*bytes));
                }
                2 => {
                    let since = block - below(40).min(block - 1);
                    kept.copied_again(of, since);
                    let before = plain.0.iter_mut().filter(|(last, _)| *last < since);
                    before.for_each(|(_, all)| {
                        all.remove(&of);
                    });
                }
                3 => {
                    kept.release(block - 1);
                    while plain.0.len() > 1 && plain.0[0].1.is_empty() && plain.0[0].0 < block {
                        plain.0.remove(0);
                    }
                    assert_eq!(kept.released(), plain.0[0].0 - 1);
                }
                _ => {}
            }
            let with = plain.0.iter().rev().filter(|(_, all)| all.contains_key(&of)).map(|(block, _)| *block..=*block);
            assert_eq!(kept.blocks_of(of).collect::<Vec<_>>(), with.collect::<Vec<_>>(), "block {block}");
        }
        assert!(kept.released() > 1000, "{}", kept.released());
        let left: Vec<_> = kept.stretches.iter().map(|stretch| stretch.segments.clone()).collect();
        assert_eq!(left, plain.0.into_iter().map(|(_, all)| all).collect::<Vec<_>>());
        let places: usize = kept.places.values().map(Vec::len).sum();
        assert_eq!(places, left.iter().map(HashMap::len).sum::<usize>());
        assert!(kept.places.values().all(|places| !places.is_empty()));
        let alive = |stretch: &Stretch| stretch.segments.values().sum::<u64>();
        assert!(kept.stretches.iter().all(|stretch| stretch.alive == alive(stretch)));
        for (first, last) in [(1, 4000), (3990, 4100), (4001, 5000), (3000, 3500), (7, 6)] {
            let needed = kept.stretches.iter().filter(|of| (first..=last).contains(&of.first) && alive(of) > 0);
            assert_eq!(kept.needed(&(first..=last)), needed.count() as u64, "{first} to {last}");
        }
    }

    #[test]
    fn a_log_in_which_all_lives_is_not_looked_through_again_and_again() {
        let mut kept = KeptBlocks::new(1);
        for block in 1..=1_000 {
            kept.note_all(block, 100, (0..10).map(|at| (segment(10 * block + at), 10)));
        }
        let (none, mut looked_at) = (HashSet::new(), 0);
        let mut looked = || {
            let before = std::mem::replace(&mut looked_at, LOOKED_AT.get());
            looked_at - before
        };
        looked();
        assert_eq!((kept.to_copy_again(&[], 5, &none), looked()), (vec![], 0));
        assert_eq!((kept.needed(&(300..=309)), looked()), (10, 10));
        // One whose blocks lack copies is found, and the first where most is dead.
        let of_third: Vec<SegmentId> = (30..35).map(segment).collect();
        let third = 3..=3;
        let lacking = std::slice::from_ref(&third);
        assert_eq!((kept.to_copy_again(lacking, 5, &none), looked()), (of_third, 3 + 10));
        kept.gone(&(20..9_000).map(segment).collect::<Vec<_>>());
        assert_eq!((kept.to_copy_again(&[], 5, &none), looked()), ((10..15).map(segment).collect(), 1 + 10));
    }
}
