//! The naive log: a list of chunks per lane, and what a lane must answer because of it.

use std::collections::{HashMap, HashSet, VecDeque};

use kera_format::{Cursor, Durability, SegmentId};

/// A chunk that was appended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub cursor: Cursor,
    pub bytes: u32,
    pub base: u64,
    pub records: u32,
    pub append_ms: i64,
    pub producer: u64,
    pub epoch: u16,
    pub sequence: u64,
    /// The producer's checksum: which bytes they are.
    pub checksum: u32,
    /// As safe as the stream asks.
    pub settled: bool,
    /// It must be in the virtual log before it is.
    pub power: bool,
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cursor { group, segment, position } = self.cursor;
        write!(f, "[{group}/{segment}/{position}+{} records {}+{}", self.bytes, self.base, self.records)?;
        write!(f, " producer {}/{}/{}", self.producer, self.epoch, self.sequence)?;
        write!(
            f,
            " at {}{}{}]",
            self.append_ms,
            if self.power { " power" } else { "" },
            if self.settled { "" } else { " pending" }
        )
    }
}

impl Chunk {
    pub fn next(&self) -> u64 {
        self.base + u64::from(self.records)
    }
    pub fn segment(&self) -> (u64, u32) {
        (self.cursor.group.0, self.cursor.segment.0)
    }
}

/// What is known of a producer.
#[derive(Clone, Default, Debug)]
struct Producer {
    epoch: u16,
    last: u64,
    /// Sequence and place of its last chunks that are here.
    places: VecDeque<(u64, Cursor, u64)>,
}

/// What must become of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Append,
    /// At this cursor and ordinal, if that is remembered.
    Duplicate(Option<(Cursor, u64)>),
    Gap(u64),
    Stale(u16),
}

/// A lane.
#[derive(Clone, Default, Debug)]
pub struct Lane {
    pub chunks: VecDeque<Chunk>,
    pub next_ordinal: u64,
    pub last_ms: i64,
    producers: HashMap<u64, Producer>,
    forgot: bool,
    /// Chunks in front of this ordinal are missing: who wrote last in front of it too may have written some of them.
    hole_end: u64,
}

impl Lane {
    pub fn verdict(&self, producer: u64, epoch: u16, sequence: u64) -> Verdict {
        if producer == 0 {
            return Verdict::Append;
        }
        let Some(known) = self.producers.get(&producer) else {
            return if sequence == 0 || self.forgot { Verdict::Append } else { Verdict::Gap(0) };
        };
        if epoch < known.epoch {
            return Verdict::Stale(known.epoch);
        }
        let may_have_gone_on = known.places.back().is_some_and(|&(_, _, base)| base < self.hole_end);
        if epoch > known.epoch {
            return if sequence == 0 || may_have_gone_on { Verdict::Append } else { Verdict::Gap(0) };
        }
        if sequence == known.last + 1 {
            return Verdict::Append;
        }
        if sequence > known.last {
            return if may_have_gone_on { Verdict::Append } else { Verdict::Gap(known.last + 1) };
        }
        let place = known.places.iter().find(|(s, ..)| *s == sequence);
        Verdict::Duplicate(place.map(|&(_, cursor, base)| (cursor, base)))
    }

    /// The epoch and the last sequence of a producer.
    pub fn producer(&self, producer: u64) -> Option<(u16, u64)> {
        self.producers.get(&producer).map(|p| (p.epoch, p.last))
    }

    pub fn push(&mut self, chunk: Chunk) {
        self.next_ordinal = chunk.next();
        self.last_ms = chunk.append_ms;
        self.chunks.push_back(chunk);
        self.note(&chunk);
    }

    fn note(&mut self, chunk: &Chunk) {
        if chunk.producer == 0 {
            return;
        }
        let known = self.producers.entry(chunk.producer).or_default();
        if known.epoch != chunk.epoch {
            known.places.clear();
        }
        known.epoch = chunk.epoch;
        known.last = chunk.sequence;
        known.places.push_back((chunk.sequence, chunk.cursor, chunk.base));
        if known.places.len() > 5 {
            known.places.pop_front();
        }
    }

    /// Whether one of the last chunks of a producer has an ordinal in `ordinals`.
    pub fn remembers_any(&self, ordinals: std::ops::Range<u64>) -> bool {
        self.producers.values().flat_map(|known| &known.places).any(|(_, _, base)| ordinals.contains(base))
    }

    /// Chunks that readers may see.
    pub fn readable(&self) -> usize {
        self.chunks.iter().position(|chunk| !chunk.settled).unwrap_or(self.chunks.len())
    }

    /// The ordinal behind the last chunk that readers may see.
    pub fn durable_ordinal(&self) -> u64 {
        self.chunks.get(self.readable()).map_or(self.next_ordinal, |chunk| chunk.base)
    }

    /// The first readable chunk that ends behind `ordinal`.
    pub fn at_ordinal(&self, ordinal: u64) -> Option<usize> {
        let at = self.chunks.partition_point(|chunk| chunk.next() <= ordinal);
        (at < self.readable()).then_some(at)
    }

    /// The virtual log synced what is at these places.
    pub fn settle(&mut self, synced: &HashSet<(SegmentId, u32)>, name: impl Fn(&Chunk) -> SegmentId) {
        for chunk in self.chunks.iter_mut().filter(|chunk| !chunk.settled) {
            chunk.settled = synced.contains(&(name(chunk), chunk.cursor.position));
        }
    }

    /// Retention has taken everything before `first_ordinal`.
    pub fn drop_before(&mut self, first_ordinal: u64) -> Vec<Chunk> {
        let dropped = self.chunks.partition_point(|chunk| chunk.next() <= first_ordinal);
        self.chunks.drain(..dropped).collect()
    }

    /// A restart that kept exactly the chunks that are still there. `first_ordinal` is what the lane starts with.
    pub fn restart(&mut self, first_ordinal: u64, durability: Durability, on_disk: impl Fn(&Chunk) -> bool) {
        self.producers.clear();
        (self.forgot, self.hole_end) = (first_ordinal > 0, 0);
        let mut anonymous: HashMap<(u64, u32), bool> = HashMap::new();
        let mut expected = None;
        for at in 0..self.chunks.len() {
            let chunk = &mut self.chunks[at];
            chunk.settled |= durability == Durability::Process || on_disk(chunk);
            let chunk = *chunk;
            *anonymous.entry(chunk.segment()).or_insert(true) &= chunk.producer == 0;
            if expected.is_some_and(|e| e != chunk.base) {
                (self.forgot, self.hole_end) = (true, chunk.base);
            }
            expected = Some(chunk.next());
            self.note(&chunk);
        }
        // A segment without producers may be one whose producers were not written down.
        self.forgot |= anonymous.values().any(|&none| none);
    }
}
