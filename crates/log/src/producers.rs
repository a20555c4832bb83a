//! What a lane knows about the producers that write to it: enough to append a retried chunk once (promise 3).
//!
//! Lives in a lane, under its lock. It is not stored anywhere of its own: a restart rebuilds it from the chunk headers in
//! memory and from the [`ProducerMark`]s that the store keeps with each segment. So neither compaction nor retention takes what it
//! remembers, retention for as long as a producer may send it again (decision 0030).
//!
//! # What is accepted
//!
//! A producer numbers its chunks for a streamlet 0, 1, 2, … within its epoch. The number after the last one is appended; a
//! lower one is a retry of a chunk that is there, because every number was preceded by the one before it; a higher one is
//! refused, since the ones between are missing. A higher epoch starts again at 0 and fences the lower ones.
//!
//! Or it skips numbers ([`Skip`]), behind chunks that it has given up, or that the lane has lost. It cannot know that nothing comes of what it had sent before: a
//! connection that it has given up may hold some for as long as the broker stands still. So its next chunk says from which number on it skips, and is appended if that
//! is the number that is expected. The lane decides it at once, under its lock. If something has come before, more is expected, and the producer hears of it; its chunk may be
//! among what has come, and is recognised. What comes later has a number that was skipped, and passes for a duplicate, of which nobody hears; or that of a later chunk
//! whose turn it is, and then that one is recognised when it comes again. For a number never stands for two chunks that were sent.
//!
//! Of a producer that the lane does not know, only number 0 is appended: otherwise chunk 1 could overtake a failed chunk 0,
//! whose retry would then pass for a duplicate. The exception is a lane that has forgotten producers, because there were too
//! many or because it came back without its oldest segments, or without some in between: there an unknown producer may be a forgotten one,
//! and goes on at any number. After a start that is one, too, that knows as many as it may: what it had forgotten may be gone from it. So may one whose last chunk is in front of what is missing: it may have written some of that, in this epoch
//! or in a later one. Where what is missing ends goes along when the streamlet moves.
//!
//! But there, too, its next chunk may only have overtaken one that was refused for a moment, and the lane cannot tell; the producer can. So one that
//! can skip is told what would be expected, and that it may be forgotten ([`Admission::Forgotten`]): as soon as nothing in front of its chunk is under way any more, it
//! says that it skips what it knows to be settled. What was not, and is here all the same because its answer was lost, is then here twice: no lane tells a retry of whom it has forgotten
//! from a new chunk. Only those who cannot say so go on at once, with a chunk that has overtaken another one as well.
//!
//! # Producers of Kafka batches
//!
//! They number records, not chunks: from 0 to 2³¹ − 1 and then from 0 again. The sequence of such a chunk is that of its last
//! record, its first is known from its count, and the rules above hold for the first. What comes next is one more than the
//! last in both cases, so what the lane knows, and what is stored of it, is the same. A number is behind the next one if it
//! is nearer in that direction.
//!
//! A producer of Kafka batches that the lane does not know goes on at any number, as at a Kafka broker: it does so when its
//! topic was deleted and made again, or when it was forgotten. So what came before its first number may never have been
//! here, and of its earlier batches only those whose places are remembered pass for duplicates; others are refused. No
//! retry is lost by that: as many places are remembered as such a producer has batches under way.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use kera_format::chunk::{Chunks, PayloadKind, Skip};
use kera_format::{ChunkHeader, Cursor, GroupId, ProducerEpoch, ProducerId, SegmentIndex, container};

use crate::producer_room::{ProducerRoom, Taken};
use crate::tenure::{ChunkPlace, ProducerHandover};

/// Producers that a lane remembers at most, unless it is told otherwise.
pub(crate) const PER_LANE_MAX: usize = 10_000;
/// Chunks of each producer whose places are remembered: as many as an idempotent Kafka producer may have in flight.
pub(crate) const PLACES: usize = 5;
const NONE: u32 = u32::MAX;
/// Producers of a lane that are looked through when one of its segments is closed.
const MARKED_MAX: usize = 256;
/// Bytes that a producer takes in a lane: with its slot in the index, of which up to half are free, or a little more.
pub(crate) const ENTRY_BYTES: u64 = size_of::<Producer>() as u64 + 40;
/// Room is made for so many producers at once, or for a quarter more than there is. In a lane that knows fewer, for as many as it knows: there may be
/// very many lanes with one.
const ROOM_STEP: usize = 4;
/// Kafka's sequences are counted modulo this.
const KAFKA_SEQUENCES: u64 = 1 << 31;

/// What a chunk says about its place among its producer's.
#[derive(Clone, Copy)]
struct Numbers {
    first: u64,
    /// What comes after the sequence that a lane remembers.
    next: fn(u64) -> u64,
    /// Whether the first number lies behind the one that is expected.
    behind: fn(u64, u64) -> bool,
    /// Whether an unknown producer may begin here with any number.
    anywhere: bool,
}

impl Numbers {
    #[inline]
    fn of(header: &ChunkHeader) -> Numbers {
        match header.kind {
            PayloadKind::KafkaBatch => {
                let before = u64::from(header.record_count - 1) % KAFKA_SEQUENCES;
                Numbers {
                    first: (header.sequence % KAFKA_SEQUENCES + KAFKA_SEQUENCES - before) % KAFKA_SEQUENCES,
                    next: |last| (last + 1) % KAFKA_SEQUENCES,
                    behind: |first, expected| {
                        (expected + KAFKA_SEQUENCES - first) % KAFKA_SEQUENCES < KAFKA_SEQUENCES / 2
                    },
                    anywhere: true,
                }
            }
            _ => Numbers {
                first: header.sequence,
                next: |last| last.wrapping_add(1),
                behind: |first, expected| first < expected,
                anywhere: false,
            },
        }
    }
}

/// One chunk of a producer, as deduplication remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerMark {
    /// Who made it.
    pub producer_id: ProducerId,
    /// In which incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Its number.
    pub sequence: u64,
    /// The ordinal that it got.
    pub base_ordinal: u64,
    /// Where it is in its segment.
    pub position: u32,
}

/// A producer as a lane knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneProducer {
    /// Who it is.
    pub producer_id: ProducerId,
    /// Its epoch; earlier ones are refused.
    pub producer_epoch: ProducerEpoch,
    /// The number of its last chunk; none of this epoch is there if there is none.
    pub sequence: Option<u64>,
}

impl From<&ProducerMark> for container::ProducerMark {
    fn from(mark: &ProducerMark) -> container::ProducerMark {
        container::ProducerMark {
            producer_id: mark.producer_id,
            producer_epoch: mark.producer_epoch,
            sequence: mark.sequence,
            base_ordinal: mark.base_ordinal,
            position: mark.position,
        }
    }
}

impl From<&container::ProducerMark> for ProducerMark {
    fn from(mark: &container::ProducerMark) -> ProducerMark {
        ProducerMark {
            producer_id: mark.producer_id,
            producer_epoch: mark.producer_epoch,
            sequence: mark.sequence,
            base_ordinal: mark.base_ordinal,
            position: mark.position,
        }
    }
}

/// The last chunks of each producer in `chunks`, a segment's stamped chunks from its first one on, in append order. Ends at
/// the first malformed chunk.
pub fn marks_of(chunks: &[u8]) -> Vec<ProducerMark> {
    let mut marks = Marks::default();
    for chunk in Chunks::new(chunks) {
        let Ok(chunk) = chunk else { break };
        let Ok(part) = chunk.broker() else { break };
        marks.note(chunk.header(), part.base_ordinal, part.position);
    }
    marks.finish()
}

/// Collects [`ProducerMark`]s while a segment is walked.
#[derive(Default)]
pub(crate) struct Marks {
    of: HashMap<u64, Last, IdHash>,
    recent: Option<(u64, Last)>,
}

#[derive(Clone, Copy)]
struct Last {
    marks: [ProducerMark; PLACES],
    count: usize,
}

impl Marks {
    pub(crate) fn note(&mut self, header: &ChunkHeader, base_ordinal: u64, position: u32) {
        if header.producer_id.0 == 0 {
            return;
        }
        let mark = ProducerMark {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            sequence: header.sequence,
            base_ordinal,
            position,
        };
        match &mut self.recent {
            Some((id, last)) if *id == header.producer_id.0 => last.push(mark),
            _ => {
                if let Some((id, last)) = self.recent.take() {
                    self.of.insert(id, last);
                }
                let mut last =
                    self.of.get(&header.producer_id.0).copied().unwrap_or(Last { marks: [mark; PLACES], count: 0 });
                last.push(mark);
                self.recent = Some((header.producer_id.0, last));
            }
        }
    }

    pub(crate) fn finish(mut self) -> Vec<ProducerMark> {
        if let Some((id, last)) = self.recent.take() {
            self.of.insert(id, last);
        }
        let mut all: Vec<ProducerMark> = self.of.values().flat_map(|last| last.kept()).collect();
        all.sort_unstable_by_key(|mark| mark.position);
        all
    }
}

impl Last {
    fn push(&mut self, mark: ProducerMark) {
        self.marks[self.count % PLACES] = mark;
        self.count += 1;
    }
    fn kept(&self) -> impl Iterator<Item = ProducerMark> {
        self.marks[..self.count.min(PLACES)].iter().copied()
    }
}

/// Where a chunk went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) cursor: Cursor,
    pub(crate) base_ordinal: u64,
}

/// What to do with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Append it.
    Next,
    /// It is there, at this place if that is remembered.
    Duplicate(Option<Place>),
    /// This number is missing.
    Gap { expected: u64 },
    /// This number is missing, or what came from it on is forgotten.
    Forgotten { expected: u64 },
    /// This is the producer's epoch.
    Stale { current: u16 },
}

#[derive(Clone, Copy)]
struct Producer {
    id: u64,
    /// Sequence of its last chunk.
    sequence: u64,
    /// The last sequences and their places, a ring: the newest is in front of `next`.
    places: [(u64, Place); PLACES],
    next: u8,
    /// How many of them are known.
    known: u8,
    epoch: u16,
    /// Neighbours in the order of last use; `newer` of the newest and `older` of the oldest are `NONE`.
    newer: u32,
    older: u32,
}

impl Producer {
    /// Where the chunk of this sequence went, if it is one of the last.
    fn place_of(&self, sequence: u64) -> Option<Place> {
        (1..=usize::from(self.known)).find_map(|back| {
            let (known, place) = self.places[(usize::from(self.next) + PLACES - back) % PLACES];
            (known == sequence).then_some(place)
        })
    }

    /// Its last chunks, oldest first.
    fn known(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        let (next, known) = (usize::from(self.next), usize::from(self.known));
        (1..=known).rev().map(move |back| self.places[(next + PLACES - back) % PLACES])
    }

    /// The first ordinal of its last chunk, if that is remembered.
    fn last_ordinal(&self) -> Option<u64> {
        self.known().last().map(|(_, place)| place.base_ordinal)
    }

    /// From this ordinal on it has written nothing, in earlier epochs either: those chunks are where they were when the next epoch was raised.
    fn wrote_to(&self) -> u64 {
        self.places.iter().map(|(_, place)| place.base_ordinal + 1).max().unwrap_or(0)
    }

    /// Learns what somebody else knew of it.
    fn merge(&mut self, one: &ProducerHandover) {
        if one.producer_epoch.0 < self.epoch {
            return;
        }
        let comes = one.chunks.iter().map(|chunk| {
            let place = Place { cursor: chunk.cursor, base_ordinal: chunk.base_ordinal };
            (chunk.sequence, place)
        });
        let mut all: Vec<(u64, Place)> = Vec::with_capacity(PLACES + one.chunks.len());
        if one.producer_epoch.0 == self.epoch {
            all.extend(self.known());
        } else {
            self.sequence = one.sequence;
        }
        all.extend(comes);
        // Of what both know the place that was known here comes first, and stays.
        all.sort_by_key(|(_, place)| place.base_ordinal);
        all.dedup_by_key(|(_, place)| place.base_ordinal);
        let last = &all[all.len().saturating_sub(PLACES)..];
        if let Some((sequence, _)) = last.last() {
            self.sequence = *sequence;
        }
        self.places[..last.len()].copy_from_slice(last);
        (self.epoch, self.known, self.next) = (one.producer_epoch.0, last.len() as u8, (last.len() % PLACES) as u8);
    }
}

/// How far along the lane goes what comes from somebody else, for producers of which nothing is known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Further than what is known here.
    Further,
    /// Less far, and all that is behind it is known here.
    Joined,
    /// Less far, and behind it something is not known here.
    Apart,
}

/// The producers of a lane, the one silent for longest thrown out first when there are too many, in the lane or in all [together](crate::producer_room).
#[derive(Default)]
pub(crate) struct Producers {
    all: Vec<Producer>,
    index: HashMap<u64, u32, IdHash>,
    /// Room for as many as `all` has memory for.
    taken: Taken,
    newest: u32,
    oldest: u32,
    /// The lane may have known producers that it does not know now.
    forgot: bool,
    /// It has known producers that it does not know now, though chunks of them came after what others may tell of them.
    has_thrown_out: bool,
    /// Those that were thrown out since the start had written nothing from this ordinal on.
    thrown_to: u64,
    /// Chunks in front of this ordinal are missing, or compaction has taken some of producers that were thrown out: whose last known chunk is in front of it too may have sent more.
    hole_end: u64,
}

impl Producers {
    /// Nobody, with memory from there.
    pub(crate) fn within(room: Arc<ProducerRoom>) -> Producers {
        Producers { taken: Taken::none(room), ..Producers::default() }
    }

    /// What to do with a chunk, in front of which numbers may be skipped. Changes nothing that matters.
    #[inline]
    pub(crate) fn admit(&mut self, header: &ChunkHeader, skips: Option<Skip>) -> Admission {
        let id = header.producer_id.0;
        if id == 0 {
            return Admission::Next;
        }
        let numbers = Numbers::of(header);
        let is_next = |expected: u64| numbers.first == expected || skips.is_some_and(|skips| skips.from == expected);
        let Some(at) = self.find(id) else {
            return match is_next(0) || numbers.anywhere {
                true => Admission::Next,
                false if self.forgot => Admission::Forgotten { expected: 0 },
                false => Admission::Gap { expected: 0 },
            };
        };
        let producer = &self.all[at as usize];
        let epoch = header.producer_epoch.0;
        // What is missing may be the rest of its epoch, or the beginning of this one.
        let misses = |expected| match producer.last_ordinal().is_some_and(|last| last < self.hole_end) {
            true => Admission::Forgotten { expected },
            false => Admission::Gap { expected },
        };
        if epoch == producer.epoch {
            let expected = (numbers.next)(producer.sequence);
            if numbers.first == expected {
                return Admission::Next;
            }
            if !(numbers.behind)(numbers.first, expected) {
                return if is_next(expected) { Admission::Next } else { misses(expected) };
            }
            return match producer.place_of(header.sequence) {
                None if numbers.anywhere => Admission::Gap { expected },
                place => Admission::Duplicate(place),
            };
        }
        if epoch < producer.epoch {
            return Admission::Stale { current: producer.epoch };
        }
        if is_next(0) { Admission::Next } else { misses(0) }
    }

    /// Notes a chunk that was admitted as [`Admission::Next`] and appended, or that a restart found.
    #[inline]
    pub(crate) fn note(&mut self, id: ProducerId, epoch: ProducerEpoch, sequence: u64, place: Place, limit: usize) {
        if id.0 == 0 {
            return;
        }
        let at = match self.find(id.0) {
            Some(at) => at,
            None => self.add(id.0, epoch.0, place, limit),
        };
        let producer = &mut self.all[at as usize];
        if producer.epoch != epoch.0 {
            producer.known = 0;
        }
        producer.known = (producer.known + 1).min(PLACES as u8);
        producer.epoch = epoch.0;
        producer.sequence = sequence;
        producer.places[usize::from(producer.next)] = (sequence, place);
        producer.next = (producer.next + 1) % PLACES as u8;
    }

    /// What [`marks_of`] finds in a segment of the lane that begins with this ordinal and that all chunks were noted of, without reading it; `None` if
    /// there is no telling: somebody was thrown out who may have written to it, or there are so many that looking at all of them takes as long.
    ///
    /// Marks of a producer's earlier epochs are missing. Those of a later one say all that the earlier could.
    pub(crate) fn marks_in(
        &self,
        group: GroupId,
        segment: SegmentIndex,
        base_ordinal: u64,
    ) -> Option<Vec<ProducerMark>> {
        if base_ordinal < self.thrown_to || self.all.len() > MARKED_MAX {
            return None;
        }
        let here = |place: &Place| place.cursor.group == group && place.cursor.segment == segment;
        let mut marks = Vec::new();
        for producer in &self.all {
            let places = producer.known().filter(|(_, place)| here(place));
            marks.extend(places.map(|(sequence, place)| ProducerMark {
                producer_id: ProducerId(producer.id),
                producer_epoch: ProducerEpoch(producer.epoch),
                sequence,
                base_ordinal: place.base_ordinal,
                position: place.cursor.position,
            }));
        }
        marks.sort_unstable_by_key(|mark| mark.position);
        Some(marks)
    }

    /// A producer of Kafka batches goes on with this epoch, from number 0: whatever it sent in earlier ones is refused from now
    /// on. Nothing if it has the epoch already, or is not known here.
    pub(crate) fn raise_epoch(&mut self, id: ProducerId, epoch: ProducerEpoch) {
        if let Some(at) = self.find(id.0) {
            let producer = &mut self.all[at as usize];
            if producer.epoch < epoch.0 {
                (producer.epoch, producer.sequence, producer.known) = (epoch.0, KAFKA_SEQUENCES - 1, 0);
            }
        }
    }

    /// Whether the lane remembers anything of a producer.
    pub(crate) fn knows(&self, id: ProducerId) -> bool {
        self.index.contains_key(&id.0)
    }

    /// The producers that wrote last, the latest first.
    pub(crate) fn latest(&self, limit: usize) -> Vec<LaneProducer> {
        let mut latest = Vec::new();
        let mut at = if self.all.is_empty() { NONE } else { self.newest };
        while at != NONE && latest.len() < limit {
            let Producer { id, epoch, sequence, known, older, .. } = self.all[at as usize];
            let (producer_id, producer_epoch) = (ProducerId(id), ProducerEpoch(epoch));
            let sequence = (known > 0).then_some(sequence);
            latest.push(LaneProducer { producer_id, producer_epoch, sequence });
            at = older;
        }
        latest
    }

    /// The base ordinals of all chunks whose places are remembered: compaction leaves them, so that a restart remembers the same.
    pub(crate) fn remembered(&self) -> HashSet<u64> {
        self.all.iter().flat_map(|producer| producer.known().map(|(_, place)| place.base_ordinal)).collect()
    }

    /// Whether producers were thrown out, so that what tells of them is not kept.
    pub(crate) fn has_thrown_out(&self) -> bool {
        self.has_thrown_out
    }

    /// All producers, the one that was silent longest first, and whether some may be forgotten.
    pub(crate) fn hand_over(&self) -> (Vec<ProducerHandover>, bool) {
        let mut all = Vec::with_capacity(self.all.len());
        let mut at = if self.all.is_empty() { NONE } else { self.oldest };
        while at != NONE {
            let producer = &self.all[at as usize];
            let chunks = producer.known().map(|(sequence, Place { cursor, base_ordinal })| ChunkPlace {
                sequence,
                base_ordinal,
                cursor,
            });
            all.push(ProducerHandover {
                producer_id: ProducerId(producer.id),
                producer_epoch: ProducerEpoch(producer.epoch),
                sequence: producer.sequence,
                chunks: chunks.collect(),
            });
            at = producer.newer;
        }
        (all, self.forgot)
    }

    /// Learns what somebody else knew of the lane: its last owner, or the backups of a lost one. `reach`: how far that goes.
    ///
    /// Neither side need know more of every producer: what comes may go further along the lane and say less of one that wrote last into
    /// groups which somebody else holds, and what is here may begin behind it. So of each epoch both count, the later chunk by its ordinal.
    pub(crate) fn receive(&mut self, handed: &[ProducerHandover], forgot: bool, reach: Reach, limit: usize) {
        self.forgot |= forgot;
        for one in handed.iter().filter(|one| one.producer_id.0 != 0) {
            let id = one.producer_id.0;
            let at = match self.find(id) {
                Some(at) => at,
                // It may have written since, and would be told of a gap for ever, or what it has written since would pass for new. Or it was thrown out here,
                // which says the same.
                None if reach == Reach::Apart || (reach == Reach::Joined && !self.has_known_all(limit)) => {
                    self.forgot = true;
                    continue;
                }
                None => {
                    let nowhere = Place { cursor: Cursor::default(), base_ordinal: 0 };
                    let at = self.add(id, one.producer_epoch.0, nowhere, limit);
                    self.all[at as usize].sequence = one.sequence;
                    at
                }
            };
            self.all[at as usize].merge(one);
        }
    }

    /// What is known ends somewhere, and the lane goes on behind a gap, from where these are known: others may have written in it.
    pub(crate) fn forget_others(&mut self, behind: &[ProducerHandover], limit: usize) {
        let known: HashSet<u64> = behind.iter().map(|one| one.producer_id.0).collect();
        let (mut all, _) = self.hand_over();
        all.retain(|one| known.contains(&one.producer_id.0));
        self.clear();
        self.receive(&all, true, Reach::Further, limit);
    }

    /// Whether one of the chunks whose places are remembered has an ordinal in `ordinals`.
    pub(crate) fn remembers_any(&self, ordinals: std::ops::Range<u64>) -> bool {
        self.all.iter().any(|producer| producer.known().any(|(_, place)| ordinals.contains(&place.base_ordinal)))
    }

    /// They are again what they were when the lane ended at `ordinal`. Returns those of which nothing from before is remembered, though there may be
    /// something.
    pub(crate) fn end_at(&mut self, ordinal: u64, limit: usize) -> HashSet<u64> {
        let (handed, forgot) = self.hand_over();
        let (mut kept, mut lacking) = (Vec::with_capacity(handed.len()), HashSet::new());
        for mut one in handed {
            let known = one.chunks.len();
            one.chunks.retain(|chunk| chunk.base_ordinal < ordinal);
            match one.chunks.last() {
                Some(last) => {
                    one.sequence = last.sequence;
                    kept.push(one);
                }
                None if known >= PLACES => {
                    lacking.insert(one.producer_id.0);
                }
                None => {}
            }
        }
        let hole_end = self.hole_end.min(ordinal);
        self.clear();
        self.receive(&kept, forgot, Reach::Further, limit);
        self.hole_end = hole_end;
        lacking
    }

    /// Nobody is known, and nobody was forgotten. The memory stays: whoever is noted again has room for it.
    fn clear(&mut self) {
        self.all.clear();
        self.index.clear();
        (self.forgot, self.hole_end) = (false, 0);
    }

    /// Like a lane that nobody has ever written to.
    pub(crate) fn reset(&mut self) {
        self.clear();
        self.shrink_to(0);
        (self.has_thrown_out, self.thrown_to) = (false, 0);
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// For how many there is memory.
    pub(crate) fn room(&self) -> usize {
        self.all.capacity()
    }

    /// How many of those that were silent for longest have written nothing from this ordinal on.
    pub(crate) fn silent_before(&self, ordinal: u64) -> usize {
        let (mut silent, mut seen) = (0, 0);
        let mut at = if self.all.is_empty() { NONE } else { self.oldest };
        while at != NONE {
            let producer = &self.all[at as usize];
            seen += 1;
            match producer.last_ordinal() {
                Some(last) if last >= ordinal => break,
                Some(_) => silent = seen,
                // Its epoch was raised, before those behind it in this order wrote.
                None => {}
            }
            at = producer.newer;
        }
        silent
    }

    /// Throws out those that were silent for longest, all but `count`, if there is memory for more than these, and gives back what is not needed.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        if self.all.capacity() <= count {
            return;
        }
        self.keep(self.all.len().min(count), |_| true);
    }

    /// Throws out all but the `count` that wrote last of those that are to stay.
    fn keep(&mut self, count: usize, stays: impl Fn(&Producer) -> bool) {
        let mut kept = Vec::with_capacity(count);
        let mut at = if self.all.is_empty() { NONE } else { self.newest };
        while at != NONE {
            let producer = self.all[at as usize];
            at = producer.older;
            if kept.len() < count && stays(&producer) { kept.push(producer) } else { self.throws_out(&producer) }
        }
        kept.reverse();
        let newest = (kept.len() as u32).wrapping_sub(1);
        for (at, producer) in (0..).zip(&mut kept) {
            producer.older = if at > 0 { at - 1 } else { NONE };
            producer.newer = if at < newest { at + 1 } else { NONE };
        }
        self.index = kept.iter().zip(0..).map(|(producer, at)| (producer.id, at)).collect();
        (self.all, self.oldest, self.newest) = (kept, 0, newest);
        self.taken.set(self.all.capacity());
    }

    /// The lane has lost chunks whose producers it may not know.
    pub(crate) fn set_forgot(&mut self) {
        self.forgot = true;
    }

    /// What is here does not tell of all producers whose chunks were: some were thrown out before, and compaction took what it did not know of any more.
    pub(crate) fn set_thrown_out(&mut self) {
        (self.forgot, self.has_thrown_out) = (true, true);
    }

    /// The same, and what does not tell of all comes behind this ordinal, after what was known before it. Whoever wrote nothing from there on, as far as
    /// one knows, may have done so: it is not known any more, as after a start, or what it tries again would pass for new, and what comes next would be
    /// told of a gap for ever. An epoch that was raised stays so.
    pub(crate) fn set_thrown_out_from(&mut self, ordinal: u64) {
        self.set_thrown_out();
        let stays = |producer: &Producer| producer.last_ordinal().is_none_or(|last| last >= ordinal);
        let count = self.all.iter().filter(|producer| stays(producer)).count();
        if count < self.all.len() {
            self.keep(count, stays);
        }
    }

    /// All chunks that a start has found were noted. A lane that knows as many as it may has perhaps thrown out others before, and earlier versions do
    /// not say so in what compaction has left.
    pub(crate) fn set_thrown_out_if_full(&mut self, limit: usize) {
        if self.all.len() >= limit {
            self.set_thrown_out();
        }
    }

    /// Whether nobody was thrown out, and nobody is to be for one more.
    fn has_known_all(&mut self, limit: usize) -> bool {
        !self.has_thrown_out && self.has_room(limit)
    }

    /// The lane lacks chunks in front of this ordinal that tell of producers. A power cut can bring back some of what retention had taken and not the rest:
    /// whoever wrote what is missing goes on behind it, and is not held to what came back. Compaction takes what the lane does not remember, and leaves a producer that was
    /// thrown out the older of its chunks if that has the last record of a key.
    pub(crate) fn set_hole(&mut self, end: u64) {
        self.forgot = true;
        self.hole_end = self.hole_end.max(end);
    }

    /// In front of which ordinal chunks are missing; zero: none are.
    pub(crate) fn hole_end(&self) -> u64 {
        self.hole_end
    }

    /// Somebody else has told of all producers of the chunks in front of this ordinal.
    pub(crate) fn fill_hole(&mut self, known_to: u64) {
        if self.hole_end <= known_to {
            self.hole_end = 0;
        }
    }

    /// The producer's slot, which becomes the newest.
    #[inline]
    fn find(&mut self, id: u64) -> Option<u32> {
        if let Some(producer) = self.all.get(self.newest as usize)
            && producer.id == id
        {
            return Some(self.newest);
        }
        let at = *self.index.get(&id)?;
        self.unlink(at);
        self.link(at);
        Some(at)
    }

    #[cold]
    fn add(&mut self, id: u64, epoch: u16, place: Place, limit: usize) -> u32 {
        let places = [(0, place); PLACES];
        let fresh = Producer { id, sequence: 0, places, next: 0, known: 0, epoch, newer: NONE, older: NONE };
        let at = if self.has_room(limit.max(1)) {
            if self.all.is_empty() {
                (self.newest, self.oldest) = (NONE, NONE);
            }
            self.all.push(fresh);
            self.all.len() as u32 - 1
        } else {
            let at = self.oldest;
            self.unlink(at);
            let oldest = std::mem::replace(&mut self.all[at as usize], fresh);
            self.index.remove(&oldest.id);
            self.throws_out(&oldest);
            at
        };
        self.index.insert(id, at);
        self.link(at);
        at
    }

    /// Whether there is room for one more, which is made if it may. For the first few there always is.
    fn has_room(&mut self, limit: usize) -> bool {
        let known = self.all.len();
        if known >= limit {
            return false;
        }
        if known < self.all.capacity() {
            return true;
        }
        let room = &self.taken.room;
        if known >= room.least() && room.is_full() {
            return false;
        }
        self.all.reserve_exact((known / 4).max(known.clamp(1, ROOM_STEP)).min(limit - known));
        self.taken.set(self.all.capacity());
        true
    }

    /// One is not known any more, of whom chunks may be there.
    fn throws_out(&mut self, producer: &Producer) {
        self.set_thrown_out();
        self.thrown_to = self.thrown_to.max(producer.wrote_to());
        self.taken.forgets();
    }

    fn unlink(&mut self, at: u32) {
        let Producer { newer, older, .. } = self.all[at as usize];
        match newer {
            NONE => self.newest = older,
            n => self.all[n as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.all[o as usize].newer = newer,
        }
    }

    fn link(&mut self, at: u32) {
        let second = self.newest;
        self.all[at as usize].newer = NONE;
        self.all[at as usize].older = second;
        match second {
            NONE => self.oldest = at,
            s => self.all[s as usize].newer = at,
        }
        self.newest = at;
    }
}

/// Producer ids are given out by the coordinator, in order: mixing the bits is enough.
#[derive(Default, Clone, Copy)]
pub(crate) struct IdHasher(u64);

type IdHash = BuildHasherDefault<IdHasher>;

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, id: u64) {
        let mixed = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::chunk::{NO_TIMESTAMP, PayloadKind};
    use kera_format::{Compression, StreamId, StreamletId};

    fn header(id: u64, epoch: u16, sequence: u64) -> ChunkHeader {
        ChunkHeader {
            stream: StreamId(1),
            streamlet: StreamletId(0),
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            sequence,
            kind: PayloadKind::Records,
            compression: Compression::None,
            payload_bytes: 0,
            record_count: 1,
            max_timestamp_ms: NO_TIMESTAMP,
            producer_checksum: 0,
        }
    }

    fn place(n: u64) -> Place {
        let cursor = Cursor { group: GroupId(1), segment: SegmentIndex(0), position: n as u32 };
        Place { cursor, base_ordinal: n }
    }

    #[test]
    fn who_may_have_written_what_is_missing_goes_on_behind_it() {
        let mut producers = Producers::default();
        producers.note(ProducerId(1), ProducerEpoch(0), 4, place(10), 9);
        producers.set_hole(20);
        producers.note(ProducerId(2), ProducerEpoch(0), 7, place(20), 9);
        assert_eq!(producers.admit(&header(2, 0, 9), None), Admission::Gap { expected: 8 }, "nothing of it is missing");
        assert_eq!(producers.admit(&header(1, 0, 4), None), Admission::Duplicate(Some(place(10))));
        assert_eq!(producers.admit(&header(1, 0, 9), None), Admission::Forgotten { expected: 5 });
        assert_eq!(
            producers.admit(&header(1, 3, 6), None),
            Admission::Forgotten { expected: 0 },
            "its later epochs may be missing as well"
        );
        assert_eq!(producers.admit(&header(2, 3, 6), None), Admission::Gap { expected: 0 });
        producers.end_at(25, 9);
        assert_eq!(
            producers.admit(&header(1, 0, 9), None),
            Admission::Forgotten { expected: 5 },
            "what is cut off behind does not fill it"
        );
        producers.note(ProducerId(1), ProducerEpoch(0), 9, place(30), 9);
        assert_eq!(producers.admit(&header(1, 0, 11), None), Admission::Gap { expected: 10 });
    }

    fn skipping(from: u64) -> Option<Skip> {
        Some(Skip { from })
    }

    #[test]
    fn numbers_are_skipped_from_the_one_that_is_expected() {
        let mut producers = Producers::default();
        let admits = |producers: &mut Producers, epoch, sequence, from| {
            producers.admit(&header(1, epoch, sequence), skipping(from))
        };
        assert_eq!(admits(&mut producers, 3, 6, 0), Admission::Next, "nothing is there");
        assert_eq!(
            admits(&mut producers, 3, 6, 5),
            Admission::Gap { expected: 0 },
            "what it takes to be there was lost"
        );
        producers.note(ProducerId(1), ProducerEpoch(3), 4, place(10), 9);
        assert_eq!(admits(&mut producers, 3, 6, 5), Admission::Next);
        for from in [0, 4, 6] {
            assert_eq!(admits(&mut producers, 3, 7, from), Admission::Gap { expected: 5 });
        }
        assert_eq!(admits(&mut producers, 3, 5, 3), Admission::Next, "it is the next one, whatever it skips");
        assert_eq!(admits(&mut producers, 3, 4, 5), Admission::Duplicate(Some(place(10))), "it is there");
        assert_eq!(admits(&mut producers, 4, 6, 5), Admission::Gap { expected: 0 }, "another epoch counts anew");
        assert_eq!(admits(&mut producers, 4, 6, 0), Admission::Next);
        assert_eq!(admits(&mut producers, 2, 6, 5), Admission::Stale { current: 3 });
        // What was skipped, and what is there, is not appended any more.
        producers.note(ProducerId(1), ProducerEpoch(3), 6, place(20), 9);
        assert_eq!(producers.admit(&header(1, 3, 5), None), Admission::Duplicate(None));
        assert_eq!(admits(&mut producers, 3, 6, 5), Admission::Duplicate(Some(place(20))));
        assert_eq!(producers.admit(&header(1, 3, 7), None), Admission::Next);
    }

    /// A producer that knows only answers, and a lane that treats what comes by its connections in any order: also by those that were given up long ago, and are
    /// answered to nobody. Each chunk that is answered is there once, none is there twice, and all are in order.
    #[test]
    fn whatever_comes_late_by_whichever_connection_is_there_once() {
        #[derive(Clone, Copy)]
        struct Sent {
            content: u64,
            skips: Option<Skip>,
        }
        let mut told = [0; 4];
        for seed in 1..4_000_u64 {
            let mut state = seed;
            let mut below = |end: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % end as u64) as usize
            };
            let mut producers = Producers::default();
            let (mut there, mut answered) = (Vec::new(), Vec::new());
            // What is numbered by its content, so that chunks of one number are the same chunk.
            let (mut waiting, mut next) = (std::collections::VecDeque::<u64>::new(), 0);
            let mut skips_from = None;
            let mut connections: Vec<std::collections::VecDeque<Sent>> = vec![Default::default()];
            let mut sent = 0;
            for _ in 0..200 {
                let last = connections.len() - 1;
                match below(8) {
                    0 | 1 => {
                        waiting.push_back(next);
                        next += 1;
                    }
                    // Sends the next one; behind one that skips nothing until that is answered.
                    2 | 3 if sent < waiting.len() && (skips_from.is_none() || sent == 0) => {
                        let skips = skips_from.map(|from| Skip { from });
                        connections[last].push_back(Sent { content: waiting[sent], skips });
                        sent += 1;
                    }
                    4 if below(6) == 0 => {
                        connections.push(Default::default());
                        sent = 0;
                    }
                    5 if below(6) == 0 && sent == 0 => told[0] += u32::from(waiting.pop_front().is_some()),
                    _ => {
                        let at = if below(2) == 0 { last } else { below(last + 1) };
                        let Some(Sent { content, skips }) = connections[at].pop_front() else { continue };
                        let admission = producers.admit(&header(1, 0, content), skips);
                        if admission == Admission::Next {
                            let place = place(there.len() as u64);
                            producers.note(ProducerId(1), ProducerEpoch(0), content, place, 9);
                            there.push(content);
                            told[1] += u32::from(at < last);
                        }
                        if at < last {
                            continue;
                        }
                        match admission {
                            Admission::Next | Admission::Duplicate(_) => {
                                assert_eq!(waiting.pop_front(), Some(content), "seed {seed}");
                                told[3] += u32::from(skips.is_some() && admission != Admission::Next);
                                answered.push(content);
                                (sent, skips_from) = (sent - 1, None);
                            }
                            // All behind it say the same. Each is answered in its turn: that is as if the connection were a new one.
                            Admission::Gap { expected } | Admission::Forgotten { expected } => {
                                connections.push(Default::default());
                                (sent, skips_from) = (0, Some(expected));
                                told[2] += u32::from(skips.is_some());
                            }
                            Admission::Stale { .. } => panic!("seed {seed}: there is one epoch"),
                        }
                    }
                }
            }
            assert!(there.is_sorted_by(|a, b| a < b), "seed {seed}: {there:?}");
            for content in answered {
                assert!(there.binary_search(&content).is_ok(), "seed {seed}: {content} is not there");
            }
        }
        let what = "given up, come late, skipped from another number than was expected, skipped although there";
        assert!(told.iter().all(|count| *count > 5), "{what}: {told:?}");
    }

    #[test]
    fn a_raised_epoch_fences_those_before_and_begins_at_number_0() {
        let kafka = |epoch, sequence| ChunkHeader { kind: PayloadKind::KafkaBatch, ..header(7, epoch, sequence) };
        let mut producers = Producers::default();
        producers.raise_epoch(ProducerId(7), ProducerEpoch(4));
        assert_eq!((producers.latest(9), producers.knows(ProducerId(7))), (vec![], false), "who is not known stays so");
        producers.note(ProducerId(7), ProducerEpoch(1), 30, place(1), 9);
        producers.note(ProducerId(8), ProducerEpoch(0), 2, place(2), 9);
        producers.raise_epoch(ProducerId(7), ProducerEpoch(1));
        assert_eq!(producers.admit(&kafka(1, 31), None), Admission::Next, "it is the same epoch");
        producers.raise_epoch(ProducerId(7), ProducerEpoch(2));
        assert_eq!(producers.admit(&kafka(1, 31), None), Admission::Stale { current: 2 });
        assert_eq!(producers.admit(&kafka(2, 31), None), Admission::Gap { expected: 0 });
        assert_eq!(producers.admit(&kafka(2, 0), None), Admission::Next);
        let known = producers.latest(9).iter().map(|one| (one.producer_id.0, one.sequence)).collect::<Vec<_>>();
        assert_eq!(known, [(7, None), (8, Some(2))]);
        assert_eq!((producers.latest(1).len(), producers.knows(ProducerId(7))), (1, true));
    }

    #[test]
    fn one_that_was_thrown_out_with_a_raised_epoch_had_written_no_further_than_before() {
        let mut producers = Producers::default();
        producers.note(ProducerId(7), ProducerEpoch(1), 30, place(10), 9);
        producers.raise_epoch(ProducerId(7), ProducerEpoch(2));
        producers.note(ProducerId(8), ProducerEpoch(0), 0, place(20), 9);
        producers.shrink_to(1);
        assert!(producers.has_thrown_out() && producers.knows(ProducerId(8)));
        let marks = |base_ordinal| producers.marks_in(GroupId(1), SegmentIndex(0), base_ordinal);
        assert!(marks(10).is_none(), "it wrote there");
        assert_eq!(marks(11).map(|marks| marks.len()), Some(1));
    }

    #[test]
    fn behind_what_does_not_tell_of_all_those_are_known_that_wrote_there() {
        let mut producers = Producers::default();
        for id in [6, 7, 8] {
            producers.note(ProducerId(id), ProducerEpoch(1), 2, place(id * 10), 9);
        }
        producers.raise_epoch(ProducerId(6), ProducerEpoch(2));
        producers.set_thrown_out_from(80);
        assert_eq!(producers.admit(&header(7, 1, 3), None), Admission::Forgotten { expected: 0 });
        assert_eq!(producers.admit(&header(8, 1, 2), None), Admission::Duplicate(Some(place(80))));
        assert_eq!(producers.admit(&header(8, 1, 3), None), Admission::Next);
        assert_eq!(producers.admit(&header(6, 1, 3), None), Admission::Stale { current: 2 });
        assert_eq!((producers.len(), producers.room()), (2, 2));
    }

    /// A producer with chunks of these numbers, each at ten times that.
    fn told(id: u64, epoch: u16, sequences: std::ops::RangeInclusive<u64>) -> ProducerHandover {
        let chunk = |sequence| ChunkPlace { sequence, base_ordinal: sequence * 10, cursor: Cursor::default() };
        ProducerHandover {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            sequence: *sequences.end(),
            chunks: sequences.map(chunk).collect(),
        }
    }

    #[test]
    fn of_two_who_know_a_producer_the_one_with_its_later_chunk_is_right_and_both_have_places() {
        let kafka = |epoch, sequence| ChunkHeader { kind: PayloadKind::KafkaBatch, ..header(7, epoch, sequence) };
        for reach in [Reach::Further, Reach::Joined, Reach::Apart] {
            let mut producers = Producers::default();
            producers.note(ProducerId(7), ProducerEpoch(2), 5, place(50), 9);
            producers.receive(&[told(7, 2, 6..=8)], false, reach, 9);
            assert_eq!(
                producers.admit(&kafka(2, 9), None),
                Admission::Next,
                "{reach:?}: what comes is of the same epoch and later"
            );
            producers.receive(&[told(7, 2, 3..=5)], false, reach, 9);
            assert_eq!(producers.admit(&kafka(2, 9), None), Admission::Next, "{reach:?}: what comes is earlier");
            for known in 4..=8 {
                assert!(
                    matches!(producers.admit(&kafka(2, known), None), Admission::Duplicate(Some(_))),
                    "{reach:?} {known}"
                );
            }
            assert_eq!(
                producers.admit(&kafka(2, 5), None),
                Admission::Duplicate(Some(place(50))),
                "the place that is here"
            );
            producers.receive(&[told(7, 1, 60..=62)], false, reach, 9);
            assert_eq!(producers.admit(&kafka(2, 9), None), Admission::Next, "{reach:?}: an epoch never falls");
            producers.receive(&[told(7, 3, 9..=9)], false, reach, 9);
            assert_eq!(
                producers.admit(&kafka(3, 10), None),
                Admission::Next,
                "{reach:?}: a later epoch has its own chunks"
            );
            assert_eq!(producers.hand_over().0[0].chunks.len(), 1, "{reach:?}");
            producers.raise_epoch(ProducerId(7), ProducerEpoch(4));
            producers.receive(&[told(7, 3, 9..=9)], false, reach, 9);
            assert_eq!(
                producers.admit(&kafka(3, 10), None),
                Admission::Stale { current: 4 },
                "{reach:?}: it stays raised"
            );
        }
    }

    #[test]
    fn what_is_too_old_to_say_where_an_unknown_producer_goes_on_says_only_that_it_is_forgotten() {
        let mut producers = Producers::default();
        producers.receive(&[told(7, 0, 8..=12)], false, Reach::Joined, 9);
        assert_eq!(producers.admit(&header(7, 0, 31), None), Admission::Gap { expected: 13 }, "nothing came since");
        let mut producers = Producers::default();
        producers.note(ProducerId(8), ProducerEpoch(0), 3, place(3), 9);
        producers.receive(&[told(7, 0, 8..=12)], false, Reach::Apart, 9);
        assert_eq!(
            producers.admit(&header(7, 0, 31), None),
            Admission::Forgotten { expected: 0 },
            "it may have sent those before"
        );
        assert_eq!(producers.admit(&header(8, 0, 5), None), Admission::Gap { expected: 4 }, "it is known");
        // With as many as there may be, whoever is missing was thrown out.
        let mut producers = Producers::default();
        producers.note(ProducerId(8), ProducerEpoch(0), 3, place(3), 1);
        producers.receive(&[told(7, 0, 8..=12)], false, Reach::Joined, 1);
        assert_eq!((producers.knows(ProducerId(8)), producers.knows(ProducerId(7))), (true, false));
        assert_eq!(producers.admit(&header(7, 0, 31), None), Admission::Forgotten { expected: 0 });
        producers.receive(&[told(7, 0, 8..=12)], false, Reach::Further, 1);
        assert_eq!((producers.knows(ProducerId(8)), producers.knows(ProducerId(7))), (false, true));
    }

    #[test]
    fn one_that_was_thrown_out_does_not_become_again_what_it_was_before() {
        let mut producers = Producers::default();
        let moved = [told(7, 0, 1..=2), told(8, 0, 3..=4)];
        producers.receive(&moved, false, Reach::Further, 9);
        producers.note(ProducerId(7), ProducerEpoch(0), 3, place(50), 9);
        producers.note(ProducerId(8), ProducerEpoch(0), 5, place(51), 9);
        producers.shrink_to(1);
        // As after each start.
        producers.receive(&moved, false, Reach::Joined, 9);
        assert_eq!((producers.knows(ProducerId(7)), producers.knows(ProducerId(8))), (false, true));
        let again = producers.admit(&header(7, 0, 3), None);
        assert_eq!(
            again,
            Admission::Forgotten { expected: 0 },
            "it is there, and must not be taken for what comes next"
        );
    }

    #[test]
    fn behind_a_gap_only_those_are_known_that_wrote_there() {
        let mut producers = Producers::default();
        producers.receive(&[told(7, 0, 1..=2), told(8, 0, 3..=4)], false, Reach::Further, 9);
        producers.forget_others(&[told(8, 0, 9..=9)], 9);
        assert_eq!((producers.knows(ProducerId(7)), producers.knows(ProducerId(8))), (false, true));
        assert_eq!(producers.admit(&header(7, 0, 31), None), Admission::Forgotten { expected: 0 });
        assert_eq!(producers.admit(&header(7, 0, 31), skipping(0)), Admission::Next);
        assert_eq!(producers.remembered(), HashSet::from([30, 40]));
        assert!(
            producers.remembers_any(40..41) && !producers.remembers_any(31..40) && !producers.remembers_any(41..99)
        );
    }

    fn append(producers: &mut Producers, id: u64, epoch: u16, sequence: u64, limit: usize) -> Admission {
        let header = header(id, epoch, sequence);
        let admission = producers.admit(&header, None);
        if admission == Admission::Next {
            producers.note(header.producer_id, header.producer_epoch, sequence, place(sequence), limit);
        }
        admission
    }

    #[test]
    fn in_order_once_and_without_gaps() {
        let mut producers = Producers::default();
        assert_eq!(append(&mut producers, 7, 0, 1, 9), Admission::Gap { expected: 0 });
        for sequence in 0..20 {
            assert_eq!(append(&mut producers, 7, 0, sequence, 9), Admission::Next);
        }
        assert_eq!(append(&mut producers, 7, 0, 21, 9), Admission::Gap { expected: 20 });
        for sequence in 15..20 {
            assert_eq!(append(&mut producers, 7, 0, sequence, 9), Admission::Duplicate(Some(place(sequence))));
        }
        assert_eq!(append(&mut producers, 7, 0, 14, 9), Admission::Duplicate(None));
        assert_eq!(append(&mut producers, 7, 0, 20, 9), Admission::Next);
    }

    #[test]
    fn a_higher_epoch_fences_and_starts_at_zero() {
        let mut producers = Producers::default();
        append(&mut producers, 7, 1, 0, 9);
        append(&mut producers, 7, 1, 1, 9);
        assert_eq!(append(&mut producers, 7, 2, 2, 9), Admission::Gap { expected: 0 });
        assert_eq!(append(&mut producers, 7, 2, 0, 9), Admission::Next);
        assert_eq!(append(&mut producers, 7, 1, 2, 9), Admission::Stale { current: 2 });
        assert_eq!(append(&mut producers, 7, 2, 0, 9), Admission::Duplicate(Some(place(0))));
    }

    #[test]
    fn the_one_silent_for_longest_is_forgotten_and_may_come_back_anywhere() {
        let mut producers = Producers::default();
        for id in 1..=3 {
            append(&mut producers, id, 0, 0, 3);
        }
        append(&mut producers, 1, 0, 1, 3);
        assert_eq!(append(&mut producers, 4, 0, 1, 3), Admission::Gap { expected: 0 }, "nothing is forgotten yet");
        append(&mut producers, 4, 0, 0, 3);
        assert_eq!(producers.all.len(), 3);
        assert_eq!(append(&mut producers, 1, 0, 1, 3), Admission::Duplicate(Some(place(1))), "1 was used last");
        assert_eq!(append(&mut producers, 2, 0, 5, 3), Admission::Forgotten { expected: 0 }, "2 was forgotten");
        assert_eq!(producers.admit(&header(2, 0, 5), skipping(0)), Admission::Next);
    }

    #[test]
    fn kafka_batches_number_their_records() {
        let mut producers = Producers::default();
        let batch = |first: u64, count: u32, last: u64| ChunkHeader {
            kind: PayloadKind::KafkaBatch,
            record_count: count,
            ..header(7, 0, if count == 1 { first } else { last })
        };
        let mut append = |header: ChunkHeader| {
            let admission = producers.admit(&header, None);
            if admission == Admission::Next {
                producers.note(header.producer_id, header.producer_epoch, header.sequence, place(header.sequence), 9);
            }
            admission
        };
        assert_eq!(append(batch(0, 10, 9)), Admission::Next);
        assert_eq!(append(batch(10, 1, 10)), Admission::Next);
        assert_eq!(append(batch(12, 2, 13)), Admission::Gap { expected: 11 });
        assert_eq!(append(batch(0, 10, 9)), Admission::Duplicate(Some(place(9))));
        assert_eq!(append(batch(11, 5, 15)), Admission::Next);
        assert_eq!(append(batch(12, 4, 15)), Admission::Duplicate(Some(place(15))), "known by its last record");
        assert_eq!(append(batch(10, 1, 10)), Admission::Duplicate(Some(place(10))));
        assert_eq!(append(batch(3, 2, 4)), Admission::Gap { expected: 16 }, "it never was a batch");
    }

    #[test]
    fn an_unknown_producer_of_kafka_batches_goes_on_anywhere_and_nothing_before_that_passes_for_a_duplicate() {
        let mut producers = Producers::default();
        let batch = |epoch: u16, last: u64| ChunkHeader {
            kind: PayloadKind::KafkaBatch,
            record_count: 10,
            ..header(7, epoch, last)
        };
        let mut append = |header: ChunkHeader| {
            let admission = producers.admit(&header, None);
            if admission == Admission::Next {
                producers.note(header.producer_id, header.producer_epoch, header.sequence, place(header.sequence), 9);
            }
            admission
        };
        assert_eq!(append(batch(3, 39)), Admission::Next);
        assert_eq!(append(batch(3, 39)), Admission::Duplicate(Some(place(39))));
        assert_eq!(append(batch(3, 29)), Admission::Gap { expected: 40 }, "it is not here, so it is no duplicate");
        assert_eq!(append(batch(3, 59)), Admission::Gap { expected: 40 });
        assert_eq!(append(batch(3, 49)), Admission::Next);
        assert_eq!(append(batch(4, 59)), Admission::Gap { expected: 0 }, "a known producer begins its epoch at 0");
        assert_eq!(append(batch(4, 9)), Admission::Next);
        assert_eq!(append(batch(3, 59)), Admission::Stale { current: 4 });
    }

    #[test]
    fn sequences_of_kafka_batches_start_again_at_zero() {
        let mut producers = Producers::default();
        let batch = |last: u64, count: u32| ChunkHeader {
            kind: PayloadKind::KafkaBatch,
            record_count: count,
            ..header(7, 0, last)
        };
        let last = KAFKA_SEQUENCES - 3;
        producers.note(ProducerId(7), ProducerEpoch(0), last, place(1), 9);
        // Its records have the numbers 2³¹ − 2, 2³¹ − 1 and 0.
        assert_eq!(producers.admit(&batch(0, 3), None), Admission::Next);
        assert_eq!(producers.admit(&batch(1, 3), None), Admission::Gap { expected: KAFKA_SEQUENCES - 2 });
        producers.note(ProducerId(7), ProducerEpoch(0), 0, place(2), 9);
        assert_eq!(producers.admit(&batch(0, 3), None), Admission::Duplicate(Some(place(2))));
        assert_eq!(producers.admit(&batch(last, 1), None), Admission::Duplicate(Some(place(1))));
        assert_eq!(producers.admit(&batch(1, 1), None), Admission::Next);
    }

    #[test]
    fn without_an_id_everything_is_appended() {
        let mut producers = Producers::default();
        assert_eq!(append(&mut producers, 0, 0, 9, 3), Admission::Next);
        assert_eq!(append(&mut producers, 0, 0, 9, 3), Admission::Next);
        assert!(producers.all.is_empty());
    }

    #[test]
    fn marks_are_the_last_five_of_each_producer() {
        let mut marks = Marks::default();
        for sequence in 0..9u64 {
            for id in [3, 0, 4] {
                marks.note(&header(id, 0, sequence), sequence, (sequence * 10 + id) as u32);
            }
        }
        let marks = marks.finish();
        let of = |id| marks.iter().filter(|m| m.producer_id.0 == id).map(|m| m.sequence).collect::<Vec<_>>();
        assert_eq!((of(3), of(4), of(0)), (vec![4, 5, 6, 7, 8], vec![4, 5, 6, 7, 8], vec![]));
        assert!(marks.is_sorted_by_key(|m| m.position));
    }

    #[test]
    fn a_table_rebuilt_from_marks_decides_alike() {
        let mut producers = Producers::default();
        let mut marks = Marks::default();
        for sequence in 0..8 {
            append(&mut producers, 5, 1, sequence, 9);
            marks.note(&header(5, 1, sequence), sequence, sequence as u32);
        }
        let mut rebuilt = Producers::default();
        for mark in marks.finish() {
            rebuilt.note(mark.producer_id, mark.producer_epoch, mark.sequence, place(mark.sequence), 9);
        }
        for sequence in 0..11 {
            let header = header(5, 1, sequence);
            assert_eq!(producers.admit(&header, None), rebuilt.admit(&header, None), "sequence {sequence}");
        }
    }
}
