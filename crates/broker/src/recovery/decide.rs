//! What of a lane is served after its owner was lost, from what the backups of several logs say of it. Pure arithmetic over
//! places and ordinals; nothing is asked or changed here.
//!
//! # What was acknowledged is a piece without holes
//!
//! A lane's chunks are in its order in the log that it was written to, and a log is cut nowhere but at its end. So of what one
//! owner wrote to one log nothing is missing in the middle. Chunks are missing in three ways only:
//!
//! 1. *Behind the end of a log.* They were not acknowledged. If the lane went on in another log of the same owner, what is
//!    there comes behind a hole: producers are answered in the lane's order over both logs, so it was not acknowledged either,
//!    and is **cut**.
//! 2. *In blocks that were given back*, because retention or a deletion took the segments. Blocks go from the front of a log,
//!    in stretches with chunks of many lanes, so that older segments may be left over in a log that still needs a stretch for
//!    another lane. Segments of a lane go from the oldest on: whatever is in front of such a gap is gone as well, and the lane
//!    **begins behind** it.
//! 3. *At backups that do not have what they should*: not this module's matter, a backup that lacks the end of a range is not
//!    believed.
//!
//! The two kinds of gaps look the same in ordinals. What tells them apart:
//!
//! * Behind the gap is a group of a **later owner epoch**. Its owner began where the one before it ends, as it was decided
//!   then. All before that was part of the lane once and can only have been given back. (What an earlier owner had *behind*
//!   that place was cut then and is cut now, though its logs may still have it.)
//! * Both sides are **in one log**. There nothing is ever missing behind its end *and* there after it. This holds for rebuilt
//!   segments too, which come into the new owner's log in any order: while one is missing there, the log that it came from is
//!   there.
//! * What is behind the gap does not begin **where a segment begins**. A segment is in one log; its front was given back.
//! * What is behind the gap is **in a log of another node's life** than what is before it: at most one of the two is the owner's own log,
//!   and in the other one is what was rebuilt. It was decided to be part of the lane then, with all that was before it. So an older log
//!   that a rebuild has left unfinished may be kept for long, while a later one, in which all was rebuilt, has given back the front.
//! * Otherwise the sides are of one owner, in two of its own logs, and the second begins with a whole segment: the tail of the
//!   first log is missing, which is case 1.
//!
//! A fourth kind is no gap: of a lane that has moved, what an owner in between wrote may be at a node that lives.
//!
//! # Of a compacted segment one rewriting counts
//!
//! Logs may have a segment as it was appended, and in pieces as it was after one rewriting or another (decision 35). They are not put together: of each
//! segment the last rewriting counts of which all pieces are there, and the segment as it was appended if there is none. All of a
//! rewriting was acknowledged before blocks with anything older of it were given back, so one of them is always whole. In what order rewritings
//! of different segments were copied sees to it that nothing comes back that was removed ([`kera_log::CopiedAgain::Behind`]).
//!
//! This is exact as long as an owner keeps a lane in one log in each owner epoch. Within one, of a lane that goes on in a second log, it would be right
//! only if something of it in the first one is left, if it does not come back to that one, and if nothing of it was dropped in the second while
//! older segments are left over in the first. So a streamlet that changes its log does so with a new owner epoch, and only when all of it in the
//! first one is acknowledged: case 1 does not happen then, and what is missing between the two was given back
//! (`docs/replication.md`, "A log for a streamlet that fills one").

use std::collections::BTreeSet;

use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, GroupId, SegmentIndex};
use kera_log::{AwaitedSegment, ChunkPlace, ProducerHandover};
use kera_protocol::{ProducerPlace, SegmentPart};

const FIRST_CHUNK: u32 = SEGMENT_HEADER_BYTES as u32;
/// Chunks of each producer whose places are remembered.
const PLACES: usize = 5;

/// A range of blocks of a log that one view has, by its number in the recovery.
pub(super) type Source = usize;

/// What is served of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    /// Its segments, without a hole.
    pub(super) segments: Vec<AwaitedSegment>,
    /// Where its chunks are read from.
    pub(super) sources: BTreeSet<Source>,
    /// Ordinal of the first record.
    pub(super) first_ordinal: u64,
    /// Ordinal of the record after the last.
    pub(super) next_ordinal: u64,
    /// The last chunks of its producers, the one that was silent longest first.
    pub(super) producers: Vec<ProducerHandover>,
    /// Others may have written to what is served: not all of them are known.
    pub(super) forgot: bool,
}

impl Decided {
    /// Whether the same is served, wherever it is read from.
    pub(super) fn serves_like(&self, other: &Decided) -> bool {
        let of = |one: &Decided| (one.first_ordinal, one.next_ordinal, one.forgot);
        of(self) == of(other) && self.segments == other.segments && self.producers == other.producers
    }
}

/// Chunks of one segment that follow one another.
#[derive(Clone, Debug)]
struct Piece {
    group: GroupId,
    segment: SegmentIndex,
    position: u32,
    end: u32,
    base_ordinal: u64,
    next_ordinal: u64,
    rewrite: u64,
    row_end: u32,
    /// Who has which part of it.
    from: Vec<(Source, SegmentPart)>,
    /// Who has the same segment as another rewriting, or as it was appended: nobody reads that.
    other: Vec<Source>,
    /// Some of the rows of a segment of which retention has taken the rest.
    is_left_over: bool,
}

/// Whether a backup may say this of a segment, of an owner before `epoch`. Bounds what comes from outside.
pub(super) fn check_part(part: &SegmentPart, epoch: u32) -> Result<(), String> {
    let wrong = |what: &str| {
        Err(format!("group {} segment {} bytes {}..{}: {what}", part.group, part.segment, part.position, part.end))
    };
    if part.group.number() == 0 || part.group.epoch() >= epoch {
        return wrong(&format!("not a group of an owner before epoch {epoch}"));
    }
    let is_aligned = part.position.is_multiple_of(8) && part.end.is_multiple_of(8);
    if part.position < FIRST_CHUNK || part.position >= part.end || part.end as usize > SEGMENT_BYTES_MAX || !is_aligned
    {
        return wrong("not a place in a segment");
    }
    let is_in_row = part.rewrite != 0 && part.end <= part.row_end && part.row_end as usize <= SEGMENT_BYTES_MAX;
    if !is_in_row && (part.rewrite, part.row_end) != (0, 0) {
        return wrong("not a place in a row of pieces");
    }
    if part.next_ordinal <= part.base_ordinal {
        return wrong(&format!("its ordinals are {} to {}", part.base_ordinal, part.next_ordinal));
    }
    Ok(())
}

/// Decides. `log_of` tells which log a source is of. What contradicts itself is an error that names the place.
#[cfg(test)]
pub(super) fn decide(
    parts: Vec<(Source, SegmentPart)>,
    marks: &[ProducerPlace],
    log_of: &dyn Fn(Source) -> LogId,
) -> Result<Decided, String> {
    decide_moved(parts, marks, log_of, &[])
}

/// The same for a lane that has moved: groups of the owner epochs `elsewhere` are at nodes that live, and in no lost log.
pub(super) fn decide_moved(
    mut parts: Vec<(Source, SegmentPart)>,
    marks: &[ProducerPlace],
    log_of: &dyn Fn(Source) -> LogId,
    elsewhere: &[u32],
) -> Result<Decided, String> {
    parts.sort_by_key(|(source, part)| (part.group, part.segment, part.rewrite, part.position, part.end, *source));
    let (pieces, beyond) = one_rewriting(joined(&parts)?);
    let (pieces, mut later) = without_later(pieces)?;
    later.extend(beyond);
    let Some(last) = pieces.last() else { return Ok(Decided::default()) };
    let mut begin = 0;
    let mut cut = pieces.len();
    for at in 1..pieces.len() {
        let (before, behind) = (&pieces[at - 1], &pieces[at]);
        let is_between = |epoch: &u32| before.group.epoch() < *epoch && *epoch < behind.group.epoch();
        match gap(before, behind, log_of)? {
            Gap::None => {}
            // Another owner wrote in between, and what it wrote is not lost.
            Gap::GivenBack if behind.is_front() && !before.is_left_over && elsewhere.iter().any(is_between) => {}
            Gap::GivenBack => (begin, cut) = (at, pieces.len()),
            Gap::Unacknowledged => cut = cut.min(at),
        }
    }
    let next_ordinal = if cut == pieces.len() { last.next_ordinal } else { pieces[cut - 1].next_ordinal };
    // Segments whose front is gone are left over: they went with it.
    let whole = pieces[begin..cut].iter().position(Piece::is_front);
    let begin = whole.map_or(cut, |whole| begin + whole);
    let kept = &pieces[begin..cut];
    let behind: Vec<&Piece> = pieces[cut..].iter().chain(&later).collect();
    let first_ordinal = kept.first().map_or(next_ordinal, |piece| piece.base_ordinal);
    let (producers, lacking) = producers(&pieces[..cut], kept, &behind, marks, log_of);
    Ok(Decided {
        segments: kept.iter().map(Piece::awaited).collect(),
        sources: sources(kept),
        first_ordinal,
        next_ordinal,
        producers,
        forgot: lacking,
    })
}

impl Piece {
    fn awaited(&self) -> AwaitedSegment {
        AwaitedSegment {
            group: self.group,
            index: self.segment,
            end: self.end,
            base_ordinal: self.base_ordinal,
            next_ordinal: self.next_ordinal,
            rewrite: self.rewrite,
        }
    }

    /// Whether its segment begins with it.
    fn is_front(&self) -> bool {
        self.position == FIRST_CHUNK && !self.is_left_over
    }

    /// Whether it is all pieces of a row.
    fn is_whole_row(&self) -> bool {
        self.rewrite != 0 && (self.position, self.end) == (FIRST_CHUNK, self.row_end)
    }

    /// Who has its segment, as whatever.
    fn sources(&self) -> impl Iterator<Item = Source> {
        self.from.iter().map(|(source, _)| *source).chain(self.other.iter().copied())
    }

    fn is_in_log_of(&self, other: &Piece, log_of: &dyn Fn(Source) -> LogId) -> bool {
        let logs: BTreeSet<LogId> = self.sources().map(log_of).collect();
        other.sources().any(|source| logs.contains(&log_of(source)))
    }

    /// Whether it is in a log of a life of a node, of which no log has anything of `other`.
    fn is_in_life_without(&self, other: &Piece, log_of: &dyn Fn(Source) -> LogId) -> bool {
        let life = |source: Source| (log_of(source).node, log_of(source).epoch);
        let lives: BTreeSet<(u32, u32)> = other.sources().map(life).collect();
        self.sources().any(|source| !lives.contains(&life(source)))
    }

    /// Its parts before and behind an ordinal within it; `None`: no part that a backup told of begins or ends there, so that
    /// nobody knows the place.
    fn split(&self, ordinal: u64) -> Option<(Piece, Piece)> {
        if self.rewrite != 0 {
            return None;
        }
        let place = self.from.iter().find_map(|(_, part)| {
            let ends = (part.next_ordinal == ordinal).then_some(part.end);
            ends.or((part.base_ordinal == ordinal).then_some(part.position))
        })?;
        let (mut before, mut behind) = (self.clone(), self.clone());
        (before.end, before.next_ordinal) = (place, ordinal);
        before.from.retain(|(_, part)| part.position < place);
        for (_, part) in before.from.iter_mut().filter(|(_, part)| part.end > place) {
            (part.end, part.next_ordinal) = (place, ordinal);
        }
        (behind.position, behind.base_ordinal) = (place, ordinal);
        behind.from.retain(|(_, part)| part.end > place);
        for (_, part) in behind.from.iter_mut().filter(|(_, part)| part.position < place) {
            (part.position, part.base_ordinal) = (place, ordinal);
        }
        Some((before, behind))
    }

    /// Whether it has a chunk that was appended there. A row says of its pieces only which ordinals they cover.
    fn has(&self, at: Cursor, ordinal: u64) -> bool {
        let is_within = match self.rewrite {
            0 => (self.position..self.end).contains(&at.position),
            _ => (self.base_ordinal..self.next_ordinal).contains(&ordinal),
        };
        (self.group, self.segment) == (at.group, at.segment) && is_within
    }
}

/// Puts together what is there twice, or follows, of each segment. The parts are in the order of their places.
fn joined(parts: &[(Source, SegmentPart)]) -> Result<Vec<Piece>, String> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (source, part) in parts {
        let of_part = (part.group, part.segment, part.rewrite);
        let last = pieces.last_mut().filter(|last| (last.group, last.segment, last.rewrite) == of_part);
        let Some(last) = last.filter(|last| part.position <= last.end) else {
            pieces.push(Piece {
                group: part.group,
                segment: part.segment,
                position: part.position,
                end: part.end,
                base_ordinal: part.base_ordinal,
                next_ordinal: part.next_ordinal,
                rewrite: part.rewrite,
                row_end: part.row_end,
                from: vec![(*source, *part)],
                other: Vec::new(),
                is_left_over: false,
            });
            continue;
        };
        // The same place has the same chunk: where parts meet, begin or end together their ordinals do, and within them they
        // rise.
        let fits = last.base_ordinal <= part.base_ordinal
            && (part.position == last.position) == (part.base_ordinal == last.base_ordinal)
            && (part.position == last.end) == (part.base_ordinal == last.next_ordinal)
            && part.base_ordinal <= last.next_ordinal
            && part.row_end == last.row_end
            && part.end.cmp(&last.end) == part.next_ordinal.cmp(&last.next_ordinal);
        if !fits {
            return Err(format!(
                "group {} segment {} bytes {}..{} have ordinals {} to {}, and bytes {}..{} have {} to {}: one of them is wrong",
                part.group,
                part.segment,
                last.position,
                last.end,
                last.base_ordinal,
                last.next_ordinal,
                part.position,
                part.end,
                part.base_ordinal,
                part.next_ordinal,
            ));
        }
        last.from.push((*source, *part));
        if part.end > last.end {
            (last.end, last.next_ordinal) = (part.end, part.next_ordinal);
        }
    }
    Ok(pieces)
}

/// Of each segment what counts of it, see the module; and what was appended to one behind where its rewriting ends, which an owner has cut before it
/// was rewritten.
fn one_rewriting(pieces: Vec<Piece>) -> (Vec<Piece>, Vec<Piece>) {
    let (mut chosen, mut beyond): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
    for of_segment in pieces.chunk_by(|a, b| (a.group, a.segment) == (b.group, b.segment)) {
        let is_as_appended = |piece: &Piece| piece.rewrite == 0;
        if of_segment.iter().all(is_as_appended) {
            chosen.extend_from_slice(of_segment);
            continue;
        }
        let row = of_segment.iter().filter(|piece| piece.is_whole_row()).max_by_key(|piece| piece.rewrite);
        let has_all = |piece: &&Piece| piece.rewrite == row.map_or(0, |row| row.rewrite);
        let (mut counts, others): (Vec<Piece>, Vec<Piece>) =
            of_segment.iter().cloned().partition(|piece| has_all(&piece));
        let other: Vec<Source> = others.iter().flat_map(Piece::sources).collect();
        if let Some(row) = row {
            let is_beyond = |piece: &Piece| is_as_appended(piece) && piece.next_ordinal > row.next_ordinal;
            beyond.extend(others.iter().filter(|piece| is_beyond(piece)).cloned());
        } else if counts.is_empty() {
            counts.extend(left_over(&others));
        }
        counts.iter_mut().for_each(|piece| piece.other.clone_from(&other));
        chosen.append(&mut counts);
    }
    (chosen, beyond)
}

/// Parts of rows as one piece that nothing is served of.
fn left_over(parts: &[Piece]) -> Option<Piece> {
    let base_ordinal = parts.iter().map(|piece| piece.base_ordinal).min()?;
    let next_ordinal = parts.iter().map(|piece| piece.next_ordinal).max()?;
    Some(Piece { base_ordinal, next_ordinal, is_left_over: true, ..parts.first()?.clone() })
}

/// Takes apart what is part of the lane, first, and what an owner had behind the place where a later one began. An owner's last
/// segment may reach across that place only if its log was not cut there; all before the place was acknowledged, and must not go
/// with what is behind it.
fn without_later(pieces: Vec<Piece>) -> Result<(Vec<Piece>, Vec<Piece>), String> {
    let (mut begins, mut epoch, mut least) = (u64::MAX, u32::MAX, u64::MAX);
    let (mut kept, mut later) = (Vec::new(), Vec::new());
    for piece in pieces.into_iter().rev() {
        if piece.group.epoch() != epoch {
            (epoch, begins) = (piece.group.epoch(), least);
        }
        let piece = if piece.base_ordinal >= begins {
            later.push(piece);
            continue;
        } else if piece.next_ordinal > begins {
            let (before, behind) = piece.split(begins).ok_or_else(|| {
                let Piece { group, segment, base_ordinal, next_ordinal, .. } = piece;
                format!(
                    "group {group} segment {segment} has ordinals {base_ordinal} to {next_ordinal}, a later owner began with \
                     {begins}, and no part of it ends there"
                )
            })?;
            later.push(behind);
            before
        } else {
            piece
        };
        least = least.min(piece.base_ordinal);
        kept.push(piece);
    }
    kept.reverse();
    Ok((kept, later))
}

enum Gap {
    None,
    GivenBack,
    Unacknowledged,
}

/// What is between two pieces that follow one another: see the module.
fn gap(before: &Piece, behind: &Piece, log_of: &dyn Fn(Source) -> LogId) -> Result<Gap, String> {
    if behind.base_ordinal < before.next_ordinal {
        return Err(format!(
            "group {} segment {} begins with ordinal {}, and what is before it ends with {}",
            behind.group, behind.segment, behind.base_ordinal, before.next_ordinal,
        ));
    }
    if before.is_left_over || behind.is_left_over {
        return Ok(Gap::GivenBack);
    }
    let is_front = behind.is_front();
    if behind.base_ordinal == before.next_ordinal && is_front {
        return Ok(Gap::None);
    }
    let is_later = behind.group.epoch() > before.group.epoch();
    let is_rebuilt = behind.is_in_life_without(before, log_of);
    Ok(match is_later || !is_front || is_rebuilt || before.is_in_log_of(behind, log_of) {
        true => Gap::GivenBack,
        false => Gap::Unacknowledged,
    })
}

/// From where the pieces are read: from few sources, each piece from one if one has all of it.
fn sources(pieces: &[Piece]) -> BTreeSet<Source> {
    let mut chosen = BTreeSet::new();
    for piece in pieces {
        let has_all = |(_, part): &&(Source, SegmentPart)| (part.position, part.end) == (piece.position, piece.end);
        let mut whole = piece.from.iter().filter(has_all).map(|(source, _)| *source).peekable();
        match whole.peek().copied() {
            Some(first) => {
                if !whole.any(|source| chosen.contains(&source)) {
                    chosen.insert(first);
                }
            }
            None => chosen.extend(piece.from.iter().map(|(source, _)| *source)),
        }
    }
    chosen
}

/// The last chunks of each producer in what is served: of its highest epoch, the last five by their ordinals, from whichever
/// log they are known. And whether some may be unknown: a log tells only the last of each, and those may all have been cut.
fn producers(
    before_cut: &[Piece],
    kept: &[Piece],
    behind: &[&Piece],
    marks: &[ProducerPlace],
    log_of: &dyn Fn(Source) -> LogId,
) -> (Vec<ProducerHandover>, bool) {
    let is_in = |pieces: &[Piece], at: Cursor, ordinal: u64| {
        let up_to = pieces.partition_point(|piece| {
            (piece.group, piece.segment, piece.position) <= (at.group, at.segment, at.position)
        });
        up_to.checked_sub(1).is_some_and(|found| pieces[found].has(at, ordinal))
    };
    let mut marks: Vec<&ProducerPlace> =
        marks.iter().filter(|mark| is_in(kept, mark.at, mark.base_ordinal) && mark.producer_id.0 != 0).collect();
    marks.sort_by_key(|mark| (mark.producer_id.0, mark.producer_epoch, mark.base_ordinal));
    marks.dedup_by_key(|mark| (mark.producer_id.0, mark.base_ordinal));
    let mut producers: Vec<ProducerHandover> = Vec::new();
    for of_one in marks.chunk_by(|a, b| a.producer_id == b.producer_id) {
        let Some(last) = of_one.last() else { continue };
        let of_epoch: Vec<_> = of_one.iter().filter(|mark| mark.producer_epoch == last.producer_epoch).collect();
        let place = |mark: &&&ProducerPlace| ChunkPlace {
            sequence: mark.sequence,
            base_ordinal: mark.base_ordinal,
            cursor: mark.at,
        };
        producers.push(ProducerHandover {
            producer_id: last.producer_id,
            producer_epoch: last.producer_epoch,
            sequence: last.sequence,
            chunks: of_epoch[of_epoch.len().saturating_sub(PLACES)..].iter().map(place).collect(),
        });
    }
    producers.sort_by_key(|producer| producer.chunks.last().map_or(0, |chunk| chunk.base_ordinal));
    let lacking = behind.iter().any(|cut| before_cut.iter().any(|piece| piece.is_in_log_of(cut, log_of)));
    (producers, lacking)
}

#[cfg(test)]
mod tests {
    use super::super::needed::{Shown, Sources, ToldLane, leave_out};
    use super::*;
    use kera_format::{ProducerEpoch, ProducerId};
    use proptest::prelude::*;

    fn part(group: (u32, u32), segment: u32, bytes: (u32, u32), ordinals: (u64, u64)) -> SegmentPart {
        SegmentPart {
            group: GroupId::new(group.0, group.1),
            segment: SegmentIndex(segment),
            position: bytes.0,
            end: bytes.1,
            base_ordinal: ordinals.0,
            next_ordinal: ordinals.1,
            rewrite: 0,
            row_end: 0,
        }
    }

    /// Each source is a log of its own, all of one life of a node.
    fn own_log(source: Source) -> LogId {
        LogId { node: 1, epoch: 1, vlog: source as u32 }
    }

    fn decided(parts: &[(Source, SegmentPart)]) -> Decided {
        decide(parts.to_vec(), &[], &own_log).unwrap()
    }

    fn range(decided: &Decided) -> (u64, u64, usize) {
        (decided.first_ordinal, decided.next_ordinal, decided.segments.len())
    }

    #[test]
    fn nothing_is_known_of_a_lane_that_nobody_tells_of() {
        assert_eq!(decided(&[]), Decided::default());
    }

    #[test]
    fn what_is_there_twice_is_one() {
        let all = part((2, 1), 0, (128, 800), (0, 6));
        let found =
            decided(&[(1, part((2, 1), 0, (128, 400), (0, 3))), (0, all), (2, part((2, 1), 0, (400, 800), (3, 6)))]);
        assert_eq!((range(&found), found.sources), ((0, 6, 1), BTreeSet::from([0])));
        // Two halves, from where they are.
        let found = decided(&[(1, part((2, 1), 0, (128, 400), (0, 3))), (2, part((2, 1), 0, (400, 800), (3, 6)))]);
        assert_eq!((range(&found), found.sources), ((0, 6, 1), BTreeSet::from([1, 2])));
    }

    /// A part of a row of pieces that takes bytes 128 to `row_end`.
    fn row(segment: u32, bytes: (u32, u32), ordinals: (u64, u64), (rewrite, row_end): (u64, u32)) -> SegmentPart {
        SegmentPart { rewrite, row_end, ..part((2, 1), segment, bytes, ordinals) }
    }

    fn rewrites(decided: &Decided) -> Vec<u64> {
        decided.segments.iter().map(|segment| segment.rewrite).collect()
    }

    #[test]
    fn of_a_compacted_segment_the_last_whole_rewriting_counts() {
        let as_appended = (0, part((2, 1), 0, (128, 800), (0, 6)));
        let next = (0, part((2, 1), 1, (128, 400), (6, 9)));
        let (first, second) = ((0, row(0, (128, 600), (0, 6), (7, 600))), (1, row(0, (128, 504), (0, 6), (9, 504))));
        let found = decided(&[as_appended, next, first]);
        assert_eq!((range(&found), rewrites(&found)), ((0, 9, 2), vec![7, 0]));
        assert_eq!(found.segments[0].end, 600, "where the row ends");
        let found = decided(&[as_appended, next, first, second]);
        assert_eq!((range(&found), rewrites(&found), &found.sources), ((0, 9, 2), vec![9, 0], &BTreeSet::from([0, 1])));
        // In two logs, each half of it.
        let halves = [(1, row(0, (128, 304), (0, 2), (9, 504))), (2, row(0, (304, 504), (2, 6), (9, 504)))];
        let found = decided(&[&[as_appended, next, first][..], &halves].concat());
        assert_eq!((rewrites(&found), found.sources), (vec![9, 0], BTreeSet::from([0, 1, 2])));
        // What of the second is not whole does not count, wherever it ends.
        for half in halves {
            let found = decided(&[as_appended, next, first, half]);
            assert_eq!((range(&found), rewrites(&found), found.sources), ((0, 9, 2), vec![7, 0], BTreeSet::from([0])));
            let found = decided(&[as_appended, next, half]);
            assert_eq!((range(&found), rewrites(&found)), ((0, 9, 2), vec![0, 0]));
        }
    }

    #[test]
    fn what_is_left_over_of_rows_went_with_the_rest() {
        // Retention has taken the first segment, and the front of its row was given back; then the second rewriting of it never came to its end.
        let next = (1, part((2, 1), 1, (128, 400), (6, 9)));
        let left = [(0, row(0, (304, 504), (2, 6), (7, 504))), (0, row(0, (128, 304), (0, 2), (9, 504)))];
        for left in [&left[..1], &left[1..], &left[..]] {
            let found = decided(&[left, &[next]].concat());
            assert_eq!((range(&found), rewrites(&found)), ((6, 9, 1), vec![0]));
        }
    }

    #[test]
    fn what_an_owner_cut_before_it_rewrote_a_segment_stays_cut() {
        // The first owner's log has a segment up to 9; the second one began with 6, rewrote it, and goes on behind it.
        let reaches_over = (0, part((2, 1), 0, (128, 1000), (0, 9)));
        let rewritten = (1, row(0, (128, 504), (0, 6), (7, 504)));
        let later = (1, part((3, 1), 0, (128, 400), (6, 8)));
        let found = decided(&[reaches_over, rewritten, later]);
        assert_eq!((range(&found), rewrites(&found)), ((0, 8, 2), vec![7, 0]));
        assert!(found.forgot, "the first log tells only the last chunks of producers, and those may have been cut");
        // The same where nothing was rewritten, and without anything that reaches over.
        let both_ends = [(0, part((2, 1), 0, (128, 600), (0, 6))), (0, part((2, 1), 0, (600, 1000), (6, 9)))];
        assert!(decided(&[&both_ends[..], &[later]].concat()).forgot);
        assert!(!decided(&[both_ends[0], rewritten, later]).forgot);
    }

    #[test]
    fn producers_of_a_rewritten_segment_are_known_by_their_ordinals() {
        let parts = vec![(0, row(0, (128, 504), (0, 6), (7, 504))), (0, part((2, 1), 1, (128, 400), (6, 9)))];
        // It was appended far behind where the row ends.
        let mark = |base_ordinal: u64, position: u32| ProducerPlace {
            producer_id: ProducerId(5),
            producer_epoch: ProducerEpoch(0),
            sequence: base_ordinal,
            base_ordinal,
            at: Cursor { group: GroupId::new(2, 1), segment: SegmentIndex(0), position },
        };
        let found = decide(parts, &[mark(4, 60_000), mark(6, 70_000)], &own_log).unwrap();
        let known: Vec<u64> = found.producers[0].chunks.iter().map(|chunk| chunk.base_ordinal).collect();
        assert_eq!((found.producers.len(), known), (1, vec![4]));
    }

    #[test]
    fn a_place_in_a_row_is_checked() {
        let good = row(0, (128, 504), (0, 6), (7, 504));
        assert_eq!(check_part(&good, 3), Ok(()));
        for bad in [
            SegmentPart { row_end: 496, ..good },
            SegmentPart { row_end: 0, ..good },
            SegmentPart { rewrite: 0, ..good },
            SegmentPart { row_end: (16 << 20) + 8, ..good },
        ] {
            assert!(check_part(&bad, 3).unwrap_err().contains("row of pieces"), "{bad:?}");
        }
        let other_end = SegmentPart { row_end: 600, ..good };
        assert!(decide(vec![(0, good), (1, other_end)], &[], &own_log).is_err(), "one row has one end");
    }

    #[test]
    fn a_gap_between_two_logs_of_one_owner_cuts() {
        let (a, b) = (part((2, 1), 0, (128, 400), (0, 3)), part((2, 2), 0, (128, 400), (4, 7)));
        assert_eq!(range(&decided(&[(0, a), (1, b)])), (0, 3, 1));
        // In one log it is what was given back.
        assert_eq!(range(&decided(&[(0, a), (0, b)])), (4, 7, 1));
        // As it is if a later owner goes on behind it.
        let later = part((3, 1), 0, (128, 400), (4, 7));
        assert_eq!(range(&decided(&[(0, a), (1, later)])), (4, 7, 1));
    }

    #[test]
    fn a_gap_before_what_another_life_has_rebuilt_was_given_back() {
        let life = |source: Source| LogId { node: 1, epoch: 5 + source as u32, vlog: 0 };
        // The first log has what a rebuild got done before it was cut off; the second had all, and gave the first segment back.
        let begun = (0, part((2, 1), 0, (128, 400), (0, 3)));
        let whole = [(1, part((2, 1), 1, (128, 400), (5, 8))), (1, part((2, 2), 0, (128, 400), (8, 9)))];
        let found = decide([&[begun][..], &whole].concat(), &[], &life).unwrap();
        assert_eq!(range(&found), (5, 9, 2));
        // The one that is cut off has something in the middle, which the other one has given back with all before it.
        let parts = [(1, part((2, 1), 0, (128, 400), (0, 3))), (0, part((2, 2), 0, (128, 400), (5, 8)))];
        let found = decide([&parts[..], &[(1, part((2, 3), 0, (128, 400), (8, 9)))]].concat(), &[], &life).unwrap();
        assert_eq!(range(&found), (5, 9, 2));
        // Rebuilt with what is before it, and without what the owner's second log had behind the end of its first.
        let own = |source: Source| if source == 2 { LogId { node: 3, epoch: 9, vlog: 0 } } else { own_log(source) };
        let parts = [(0, begun.1), (2, begun.1), (1, whole[0].1)];
        assert_eq!(range(&decide(parts.to_vec(), &[], &own).unwrap()), (0, 3, 1));
    }

    #[test]
    fn what_an_owner_in_between_has_that_lives_is_no_gap() {
        let parts = [(0, part((2, 1), 0, (128, 400), (0, 3))), (1, part((4, 1), 0, (128, 400), (7, 9)))];
        assert_eq!(range(&decided(&parts)), (7, 9, 1));
        let moved = |elsewhere: &[u32]| decide_moved(parts.to_vec(), &[], &own_log, elsewhere).unwrap();
        assert_eq!(range(&moved(&[3])), (0, 9, 2));
        assert_eq!(range(&moved(&[2, 4, 5])), (7, 9, 1), "nobody in between");
    }

    #[test]
    fn what_an_owner_had_behind_the_next_ones_start_is_cut() {
        let parts = [
            (0, part((2, 1), 0, (128, 400), (0, 3))),
            (1, part((2, 2), 0, (128, 400), (5, 9))),
            (2, part((3, 1), 0, (128, 600), (3, 7))),
        ];
        assert_eq!(range(&decided(&parts)), (0, 7, 2));
    }

    #[test]
    fn a_segment_that_reaches_across_the_next_owners_start_ends_there() {
        let front = [(0, part((2, 1), 0, (128, 400), (0, 3))), (0, part((2, 1), 1, (128, 500), (3, 8)))];
        let next = (2, part((3, 1), 0, (128, 600), (5, 9)));
        // Nobody says where ordinal 5 is: no lane that silently begins there instead.
        let unknown = decide([&front[..], &[next]].concat(), &[], &own_log).unwrap_err();
        assert!(["2.1 segment 1", "3 to 8", "with 5"].iter().all(|place| unknown.contains(place)), "{unknown}");
        // A part that begins or ends there tells, in whichever log it is.
        for known in [part((2, 1), 1, (128, 240), (3, 5)), part((2, 1), 1, (240, 500), (5, 8))] {
            let mark = |producer: u64, position: u32, base_ordinal: u64| ProducerPlace {
                producer_id: ProducerId(producer),
                producer_epoch: ProducerEpoch(0),
                sequence: 0,
                base_ordinal,
                at: Cursor { group: known.group, segment: known.segment, position },
            };
            let parts = [&front[..], &[(1, known), next]].concat();
            let found = decide(parts, &[mark(7, 128, 3), mark(8, 240, 5)], &own_log).unwrap();
            assert_eq!((range(&found), found.segments[1].end), ((0, 9, 3), 240), "{known:?}");
            assert_eq!(found.sources, BTreeSet::from([0, 2]));
            assert_eq!(found.producers.iter().map(|one| one.producer_id.0).collect::<Vec<_>>(), [7]);
            assert!(found.forgot, "a log tells of the last chunks, which were behind the place");
        }
    }

    /// Why a streamlet changes its log with a new owner epoch, and not before all is acknowledged: with one, what is missing in between counts
    /// as given back, and without one as never acknowledged.
    #[test]
    fn a_lane_that_changes_its_log_begins_an_owner_epoch() {
        let first = part((2, 1), 0, (128, 400), (0, 3));
        assert_eq!(range(&decided(&[(0, first), (1, part((3, 1), 0, (128, 400), (3, 6)))])), (0, 6, 2));
        assert_eq!(range(&decided(&[(0, first), (1, part((3, 1), 0, (128, 400), (5, 8)))])), (5, 8, 1));
        assert_eq!(range(&decided(&[(0, first), (1, part((2, 2), 0, (128, 400), (5, 8)))])), (0, 3, 1));
    }

    #[test]
    fn a_segment_without_its_front_is_left_over() {
        let tail = part((2, 1), 0, (400, 800), (3, 6));
        // The ordinals go on nevertheless.
        assert_eq!(range(&decided(&[(0, tail)])), (6, 6, 0));
        assert_eq!(range(&decided(&[(0, tail), (0, part((2, 1), 1, (128, 400), (6, 8)))])), (6, 8, 1));
    }

    #[test]
    fn parts_that_contradict_each_other_are_named() {
        let wrong = |a, b| decide(vec![(0, a), (1, b)], &[], &own_log).unwrap_err();
        let a = part((2, 1), 0, (128, 400), (0, 3));
        assert!(wrong(a, part((2, 1), 0, (128, 400), (0, 4))).contains("2.1"));
        assert!(wrong(a, part((2, 1), 0, (128, 800), (1, 4))).contains("2.1"));
        assert!(wrong(a, part((2, 1), 0, (200, 300), (0, 2))).contains("2.1"));
        assert!(wrong(a, part((2, 1), 0, (400, 800), (4, 8))).contains("2.1"));
        assert!(wrong(a, part((2, 2), 0, (128, 400), (2, 4))).contains("2.2"));
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let good = part((2, 1), 0, (128, 400), (0, 3));
        assert_eq!(check_part(&good, 3), Ok(()));
        let bad = [
            part((3, 1), 0, (128, 400), (0, 3)),
            part((2, 0), 0, (128, 400), (0, 3)),
            part((2, 1), 0, (64, 400), (0, 3)),
            part((2, 1), 0, (128, 128), (0, 3)),
            part((2, 1), 0, (128, 401), (0, 3)),
            part((2, 1), 0, (128, u32::MAX - 7), (0, 3)),
            part((2, 1), 0, (128, 400), (3, 3)),
            part((2, 1), 0, (128, 400), (u64::MAX, 3)),
        ];
        bad.iter().for_each(|part| assert!(check_part(part, 3).is_err(), "{part:?}"));
    }

    #[test]
    fn the_last_five_chunks_of_a_producers_highest_epoch_are_known() {
        let all = part((2, 1), 0, (128, 128 + 20 * 8), (0, 20));
        let mark = |producer: u64, epoch: u16, at: u64| ProducerPlace {
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch(epoch),
            sequence: 100 + at,
            base_ordinal: at,
            at: Cursor { group: all.group, segment: all.segment, position: 128 + 8 * at as u32 },
        };
        let mut marks: Vec<ProducerPlace> = (0..9).map(|at| mark(7, 1, at)).collect();
        marks.extend([mark(8, 0, 9), mark(8, 2, 12), mark(8, 2, 12), mark(9, 0, 10), mark(7, 1, 25)]);
        marks.reverse();
        let found = decide(vec![(0, all)], &marks, &own_log).unwrap();
        let brief: Vec<(u64, u16, u64, Vec<u64>)> = found
            .producers
            .iter()
            .map(|one| {
                let ordinals = one.chunks.iter().map(|chunk| chunk.base_ordinal).collect();
                (one.producer_id.0, one.producer_epoch.0, one.sequence, ordinals)
            })
            .collect();
        // The one that was silent longest first; what is at no place that is served does not count.
        assert_eq!(brief, [(7, 1, 108, vec![4, 5, 6, 7, 8]), (9, 0, 110, vec![10]), (8, 2, 112, vec![12])]);
        assert!(!found.forgot);
    }

    /// Numbers from a seed.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
        }
    }

    /// A chunk of one record of the lane's truth.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Placed {
        group: GroupId,
        segment: u32,
        position: u32,
        ordinal: u64,
    }

    /// A lane over owners that are lost, each with two logs; and what is left of the logs.
    #[derive(Default)]
    struct Lane {
        /// What is part of it.
        chunks: Vec<Placed>,
        /// So many at least were acknowledged.
        acknowledged: usize,
        /// Segments in front that retention has dropped, by their names.
        dropped: BTreeSet<(GroupId, u32)>,
        logs: Vec<Vec<Placed>>,
    }

    impl Lane {
        /// An owner writes, to one log or to two one after the other, and is lost: each log ends anywhere behind what was acknowledged in
        /// it. What it has rebuilt is in its first log, before or behind that.
        fn owned(&mut self, epoch: u32, dice: &mut Dice, copies: Vec<Placed>, two: bool) {
            let mut ordinal = self.chunks.len() as u64;
            let mut written = Vec::new();
            let mut in_log = 1;
            let behind = dice.below(2) == 0 && !copies.is_empty();
            for group in 1..2 + dice.below(4) as u32 {
                in_log = if two && group > 1 && dice.below(2) == 0 { 0 } else { in_log };
                for segment in 0..1 + dice.below(2) as u32 {
                    for at in 0..1 + dice.below(4) as u32 {
                        let (group, position) = (GroupId::new(epoch, group), 128 + 8 * at);
                        written.push((in_log, Placed { group, segment, position, ordinal }));
                        ordinal += 1;
                    }
                }
            }
            // Something is left of it in the first log, if there are two.
            let least = usize::from(two);
            let acknowledged = least + dice.below(written.len() + 1 - least);
            self.acknowledged = self.chunks.len() + acknowledged;
            let mut logs = [Vec::new(), if behind { Vec::new() } else { copies.clone() }];
            for (in_log, log) in logs.iter_mut().enumerate() {
                let of_it = |(of, _): &&(usize, Placed)| *of == in_log;
                let least = written[..acknowledged].iter().filter(of_it).count();
                let all: Vec<Placed> = written.iter().filter(of_it).map(|(_, chunk)| *chunk).collect();
                let end = least + dice.below(all.len() - least + 1);
                let end = if behind && in_log == 1 { all.len() } else { end };
                log.extend(&all[..end]);
            }
            if behind {
                logs[1].extend(copies);
            }
            let has = |chunk: &Placed| logs.iter().any(|log| log.contains(chunk));
            self.chunks.extend(written.iter().map(|(_, chunk)| *chunk).take_while(has));
            self.logs.extend(logs);
        }

        /// Retention drops segments in front, and logs are released from the front as far as nothing in them lives.
        fn retain(&mut self, dice: &mut Dice, from_log: usize) {
            let acknowledged = self.chunks.iter().take(self.acknowledged);
            let mut names: Vec<(GroupId, u32)> = acknowledged.map(|chunk| (chunk.group, chunk.segment)).collect();
            names.dedup();
            let dropped = self.dropped.len() + dice.below(names.len().saturating_sub(self.dropped.len()));
            self.dropped.extend(&names[..dropped.min(names.len())]);
            let truth = self.chunks.clone();
            for log in &mut self.logs[from_log..] {
                let lives =
                    |chunk: &Placed| truth.contains(chunk) && !self.dropped.contains(&(chunk.group, chunk.segment));
                let dead = log.iter().take_while(|chunk| !lives(chunk)).count();
                log.drain(..dice.below(dead + 1));
            }
        }

        /// Logs go that the next owner does not need.
        fn give_up(&mut self) {
            let parts = self.parts();
            let decided = decide(parts.clone(), &[], &life_of_two).unwrap();
            let mut needed: BTreeSet<LogId> = parts.iter().map(|(source, _)| life_of_two(*source)).collect();
            let told = ToldLane::new(parts, Vec::new(), Vec::new(), decided);
            let shown = |_| Shown { backups: 2, all: true };
            let sources = Sources { log_of: &life_of_two, shown: &shown };
            leave_out(&[&told], &mut needed, &BTreeSet::new(), &sources);
            let logs = self.logs.iter_mut().enumerate().filter(|(at, _)| !needed.contains(&life_of_two(*at)));
            logs.for_each(|(_, log)| log.clear());
        }

        fn parts(&self) -> Vec<(Source, SegmentPart)> {
            let of = |chunk: &Placed| SegmentPart {
                group: chunk.group,
                segment: SegmentIndex(chunk.segment),
                position: chunk.position,
                end: chunk.position + 8,
                base_ordinal: chunk.ordinal,
                next_ordinal: chunk.ordinal + 1,
                rewrite: 0,
                row_end: 0,
            };
            let logs = self.logs.iter().enumerate();
            logs.flat_map(|(log, chunks)| chunks.iter().map(move |chunk| (log, of(chunk)))).collect()
        }
    }

    /// Two logs of each life.
    fn life_of_two(at: Source) -> LogId {
        LogId { node: 1, epoch: at as u32 / 2, vlog: at as u32 % 2 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Owners are lost one after the other, in the middle of rebuilding or behind it, and retention goes on: what is
        /// decided is the lane, from its oldest segment that lives on, and ends where it ends. Logs that an owner does not need may go as soon
        /// as it has taken over.
        #[test]
        fn what_is_decided_is_the_lane(seed: u64) {
            let mut dice = Dice(seed);
            let mut lane = Lane::default();
            let two = dice.below(2) == 0;
            lane.owned(2, &mut dice, Vec::new(), two);
            if !two {
                lane.retain(&mut dice, 0);
            }
            for epoch in 3..3 + dice.below(5) as u32 {
                if dice.below(3) > 0 {
                    lane.give_up();
                }
                // The next owner has rebuilt the live segments, in any order, all or some of the chunks.
                let live = |chunk: &&Placed| !lane.dropped.contains(&(chunk.group, chunk.segment));
                let mut segments: Vec<Vec<Placed>> = Vec::new();
                for chunk in lane.chunks.iter().filter(live) {
                    match segments.last_mut() {
                        Some(last) if (last[0].group, last[0].segment) == (chunk.group, chunk.segment) => last.push(*chunk),
                        _ => segments.push(vec![*chunk]),
                    }
                }
                let mut copies = Vec::new();
                while !segments.is_empty() {
                    copies.extend(segments.remove(dice.below(segments.len())));
                }
                let all = copies.len();
                let copied = if dice.below(2) == 0 { all } else { dice.below(all + 1) };
                copies.truncate(copied);
                let old = lane.logs.len();
                lane.owned(epoch, &mut dice, copies, two);
                if copied == all {
                    // All logs of some owners: those of others have something for somebody else.
                    let given_up = 2 * dice.below(old / 2 + 1);
                    lane.logs.drain(..given_up);
                    if !two {
                        lane.retain(&mut dice, old - given_up);
                    }
                }
            }
            let found = decide(lane.parts(), &[], &life_of_two).unwrap();
            let live: Vec<&Placed> =
                lane.chunks.iter().filter(|chunk| !lane.dropped.contains(&(chunk.group, chunk.segment))).collect();
            if let Some(first) = live.first() {
                prop_assert!(found.first_ordinal <= first.ordinal, "{found:?}");
                prop_assert_eq!(found.next_ordinal, lane.chunks.len() as u64, "{:?}", found);
            }
            let mut expected = found.first_ordinal;
            for segment in &found.segments {
                prop_assert_eq!(segment.base_ordinal, expected);
                let of = |chunk: &&Placed| (chunk.group, chunk.segment) == (segment.group, segment.index.0);
                let truth: Vec<&Placed> = lane.chunks.iter().filter(of).collect();
                prop_assert_eq!(truth.first().map(|chunk| (chunk.ordinal, chunk.position)), Some((expected, 128)));
                prop_assert_eq!(u64::from(segment.end - 128) / 8, segment.next_ordinal - segment.base_ordinal);
                expected = segment.next_ordinal;
                let last = segment.next_ordinal == lane.chunks.len() as u64;
                prop_assert!(last || truth.len() as u64 == segment.next_ordinal - segment.base_ordinal);
            }
            prop_assert_eq!(expected, found.next_ordinal);
        }
    }
}
