//! Which logs of lost nodes a rebuild needs: the others may be given up while it lasts.
//!
//! A lane that was rebuilt before is in several logs: in that of its first owner, in those of owners that were lost while they rebuilt it, and
//! whole in that of one who had done so. If all of them were kept until the present owner is done, and owners are lost again and again, backups
//! would have to keep a copy of the lane for each of them.
//!
//! A log is not needed for a lane if
//!
//! 1. without what it tells **the same is decided**, from the logs that are needed: the same segments, ordinals and producers ([`super::decide`]);
//! 2. each of its parts of what is served is in logs that are needed as well, at **as many backups** as show this log's last block, and at all of
//!    their views: what was at fewer, because its log ended before all had it, does not stand for what was acknowledged.
//!
//! Then whoever takes over from this owner decides what it would have decided with that log. What the log had of what is served, others have with
//! the same places and bytes; what else it had was cut, or is before where the lane begins, and stays so: the next owner hears of the same
//! parts and of those that this owner has written, of segments that are served, and behind them in a later owner epoch. The former add a source to
//! what is served, never to what is not, and by the rules for gaps a further source of what is *behind* one makes it what was given back, which it
//! was already, and a further source of what is *before* one never makes it that; the latter end what can be cut.
//!
//! Logs that no part comes from are not needed by anybody, but for the coordinators' own rules. Where this would take long all logs are needed.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::vlog_replica::LogId;
use kera_protocol::{ProducerPlace, SegmentPart};

use super::decide::{Decided, Source, decide_moved};

/// Parts that are looked at for it, at most.
const PARTS_MAX: usize = 8 << 20;

/// What backups told of a lane, and what was decided of it.
pub(super) struct ToldLane {
    /// By their places.
    parts: Vec<(Source, SegmentPart)>,
    marks: Vec<(Source, ProducerPlace)>,
    /// Owner epochs whose groups are elsewhere.
    elsewhere: Vec<u32>,
    pub(super) decided: Decided,
}

/// How many of the backups of a view show that they have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Shown {
    pub(super) backups: usize,
    /// These are all.
    pub(super) all: bool,
}

/// What is known of the sources.
pub(super) struct Sources<'a> {
    pub(super) log_of: &'a dyn Fn(Source) -> LogId,
    pub(super) shown: &'a dyn Fn(Source) -> Shown,
}

impl ToldLane {
    pub(super) fn new(
        mut parts: Vec<(Source, SegmentPart)>,
        marks: Vec<(Source, ProducerPlace)>,
        elsewhere: Vec<u32>,
        decided: Decided,
    ) -> ToldLane {
        parts.sort_by_key(|(source, part)| (part.group, part.segment, part.rewrite, part.position, part.end, *source));
        ToldLane { parts, marks, elsewhere, decided }
    }

    /// Who told of it.
    pub(super) fn sources(&self) -> BTreeSet<Source> {
        let of_marks = self.marks.iter().map(|(source, _)| *source);
        self.parts.iter().map(|(source, _)| *source).chain(of_marks).collect()
    }

    fn is_told_by(&self, log: LogId, log_of: &dyn Fn(Source) -> LogId) -> bool {
        let of_marks = self.marks.iter().map(|(source, _)| *source);
        self.parts.iter().map(|(source, _)| *source).chain(of_marks).any(|source| log_of(source) == log)
    }

    /// What is decided from these logs alone.
    fn decided_by(&self, logs: &BTreeSet<LogId>, log_of: &dyn Fn(Source) -> LogId) -> Option<Decided> {
        let has = |source: Source| logs.contains(&log_of(source));
        let parts = self.parts.iter().filter(|(source, _)| has(*source)).copied().collect();
        let marks: Vec<ProducerPlace> =
            self.marks.iter().filter(|(source, _)| has(*source)).map(|(_, mark)| *mark).collect();
        decide_moved(parts, &marks, log_of, &self.elsewhere).ok()
    }

    /// Whether all that a log has of what is served is in others of these as well.
    fn has_without(&self, log: LogId, logs: &BTreeSet<LogId>, sources: &Sources<'_>) -> bool {
        let is_covered = |(source, part): &(Source, SegmentPart)| {
            let segments = &self.decided.segments;
            let found = segments.binary_search_by_key(&(part.group, part.segment), |one| (one.group, one.index));
            // What is not served nobody reads.
            let Ok(found) = found else { return true };
            let (served, least) = (&segments[found], (sources.shown)(*source).backups);
            // What counts as another rewriting is not read; all of the one that does stands for it.
            let (from, end) = match part.rewrite == served.rewrite {
                true => (part.position, part.end.min(served.end)),
                false => (SEGMENT_HEADER_BYTES as u32, served.end),
            };
            let first = self.parts.partition_point(|(_, one)| (one.group, one.segment) < (part.group, part.segment));
            let of_segment = self.parts[first..].iter();
            let of_segment = of_segment.take_while(|(_, one)| (one.group, one.segment) == (part.group, part.segment));
            let of_segment = of_segment.filter(|(_, one)| one.rewrite == served.rewrite);
            let mut at = from;
            for (other, has) in of_segment {
                let (log_of_other, shown) = ((sources.log_of)(*other), (sources.shown)(*other));
                let counts = log_of_other != log && logs.contains(&log_of_other) && shown.all && shown.backups >= least;
                if counts && has.position <= at {
                    at = at.max(has.end);
                }
            }
            at >= end
        };
        self.parts.iter().filter(|(source, _)| (sources.log_of)(*source) == log).all(is_covered)
    }
}

/// Leaves out of `needed` what is not: logs that told of these lanes, those with the oldest groups first. The others are needed for lanes that
/// nobody else told of.
pub(super) fn leave_out(
    lanes: &[&ToldLane],
    needed: &mut BTreeSet<LogId>,
    must: &BTreeSet<LogId>,
    sources: &Sources<'_>,
) {
    let mut newest: BTreeMap<LogId, u32> = BTreeMap::new();
    for (source, part) in lanes.iter().flat_map(|lane| lane.parts.iter()) {
        let of_log = newest.entry((sources.log_of)(*source)).or_default();
        *of_log = part.group.epoch().max(*of_log);
    }
    let age = |log: &LogId| newest.get(log).copied().unwrap_or(0);
    let mut by_age: Vec<(u32, LogId)> =
        needed.iter().filter(|log| !must.contains(log)).map(|log| (age(log), *log)).collect();
    by_age.sort_unstable();
    let mut looked = 0;
    for (_, log) in by_age {
        let mut rest = needed.clone();
        rest.remove(&log);
        let is_free = |lane: &&ToldLane| {
            looked += lane.parts.len();
            let same = || lane.decided_by(&rest, sources.log_of).is_some_and(|found| found.serves_like(&lane.decided));
            let can_go = || !lane.is_told_by(log, sources.log_of) || (lane.has_without(log, &rest, sources) && same());
            looked < PARTS_MAX && can_go()
        };
        if lanes.iter().all(is_free) {
            *needed = rest;
        }
    }
}

/// From where a lane is read if only these logs are.
pub(super) fn read_from(
    lane: &ToldLane,
    needed: &BTreeSet<LogId>,
    log_of: &dyn Fn(Source) -> LogId,
) -> BTreeSet<Source> {
    let is_there = |source: &Source| needed.contains(&log_of(*source));
    let from = &lane.decided.sources;
    match lane.decided_by(needed, log_of) {
        Some(found) if !from.iter().all(is_there) => found.sources,
        _ => from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::{Cursor, GroupId, ProducerEpoch, ProducerId, SegmentIndex};

    fn part(group: (u32, u32), bytes: (u32, u32), ordinals: (u64, u64)) -> SegmentPart {
        SegmentPart {
            group: GroupId::new(group.0, group.1),
            segment: SegmentIndex(0),
            position: bytes.0,
            end: bytes.1,
            base_ordinal: ordinals.0,
            next_ordinal: ordinals.1,
            rewrite: 0,
            row_end: 0,
        }
    }

    fn mark(at: u64, group: (u32, u32), position: u32) -> ProducerPlace {
        ProducerPlace {
            producer_id: ProducerId(7),
            producer_epoch: ProducerEpoch(0),
            sequence: at,
            base_ordinal: at,
            at: Cursor { group: GroupId::new(group.0, group.1), segment: SegmentIndex(0), position },
        }
    }

    /// The log of the node with this number.
    fn log(source: Source) -> LogId {
        LogId { node: source as u32, epoch: 1, vlog: 0 }
    }

    const TWO: Shown = Shown { backups: 2, all: true };

    struct Case {
        parts: Vec<(Source, SegmentPart)>,
        marks: Vec<(Source, ProducerPlace)>,
        shown: Vec<Shown>,
        must: BTreeSet<LogId>,
    }

    /// Node 0 had two segments, node 1 has rebuilt both and written a third.
    fn rebuilt() -> Case {
        let (first, second, third) =
            (part((2, 1), (128, 400), (0, 3)), part((2, 2), (128, 400), (3, 6)), part((3, 1), (128, 400), (6, 9)));
        let parts = vec![(0, first), (0, second), (1, third), (1, second), (1, first)];
        Case { parts, marks: Vec::new(), shown: vec![TWO; 3], must: BTreeSet::new() }
    }

    impl Case {
        fn needed(&self) -> Vec<u32> {
            let marks: Vec<ProducerPlace> = self.marks.iter().map(|(_, mark)| *mark).collect();
            let decided = decide_moved(self.parts.clone(), &marks, &log, &[]).expect("it fits together");
            let told = ToldLane::new(self.parts.clone(), self.marks.clone(), Vec::new(), decided);
            let mut needed: BTreeSet<LogId> = told.sources().into_iter().map(log).collect();
            let sources = Sources { log_of: &log, shown: &|source| self.shown[source] };
            leave_out(&[&told], &mut needed, &self.must, &sources);
            let read = read_from(&told, &needed, &log);
            assert!(read.iter().all(|source| needed.contains(&log(*source))), "{read:?} of {needed:?}");
            needed.into_iter().map(|log| log.node).collect()
        }
    }

    #[test]
    fn a_log_is_not_needed_if_a_later_one_has_all_of_it() {
        assert_eq!(rebuilt().needed(), [1]);
    }

    #[test]
    fn a_log_is_needed_for_what_only_it_has() {
        let mut case = rebuilt();
        case.parts.pop();
        assert_eq!(case.needed(), [0, 1]);
        // And for what it alone has of other lanes.
        let case = Case { must: BTreeSet::from([log(0)]), ..rebuilt() };
        assert_eq!(case.needed(), [0, 1]);
    }

    #[test]
    fn a_log_is_needed_while_what_others_have_of_it_is_at_fewer_backups() {
        let one = Shown { backups: 1, all: true };
        let case = Case { shown: vec![TWO, one], ..rebuilt() };
        assert_eq!(case.needed(), [0, 1]);
        // Its last blocks are not at all backups of its view.
        let case = Case { shown: vec![one, Shown { all: false, ..one }], ..rebuilt() };
        assert_eq!(case.needed(), [0, 1]);
        assert_eq!(Case { shown: vec![one, one], ..rebuilt() }.needed(), [1]);
    }

    /// What a segment was like before it was compacted is not needed once all of a rewriting is elsewhere, at as many backups.
    #[test]
    fn a_log_is_not_needed_if_another_has_a_later_rewriting() {
        let row = |bytes, ordinals| SegmentPart { rewrite: 7, row_end: 304, ..part((2, 1), bytes, ordinals) };
        let of = |rows: &[SegmentPart]| {
            let Case { mut parts, marks, shown, must } = rebuilt();
            parts.retain(|(source, part)| *source == 0 || part.group != GroupId::new(2, 1));
            parts.extend(rows.iter().map(|row| (1, *row)));
            Case { parts, marks, shown, must }
        };
        assert_eq!(of(&[row((128, 304), (0, 3))]).needed(), [1]);
        assert_eq!(of(&[row((128, 208), (0, 1)), row((208, 304), (1, 3))]).needed(), [1]);
        assert_eq!(of(&[row((128, 208), (0, 1))]).needed(), [0, 1], "a part of it does not count");
        let one = Shown { backups: 1, all: true };
        assert_eq!(Case { shown: vec![TWO, one], ..of(&[row((128, 304), (0, 3))]) }.needed(), [0, 1]);
        // And the other way round: the rewriting is needed although all was appended elsewhere.
        let mut case = of(&[row((128, 304), (0, 3))]);
        case.parts.push((1, part((2, 1), (128, 400), (0, 3))));
        case.parts.iter_mut().filter(|(_, part)| part.rewrite != 0).for_each(|(source, _)| *source = 2);
        assert_eq!(case.needed(), [1, 2]);
    }

    #[test]
    fn a_log_is_needed_that_alone_tells_of_a_producer() {
        let mut case = rebuilt();
        case.marks.push((0, mark(1, (2, 1), 128)));
        assert_eq!(case.needed(), [0, 1]);
        case.marks.push((1, mark(1, (2, 1), 128)));
        assert_eq!(case.needed(), [1]);
    }

    /// Of two that have the same the later one stays: it has what is newest as well.
    #[test]
    fn of_several_that_have_the_same_the_oldest_go() {
        let mut case = rebuilt();
        let also: Vec<_> = case.parts[2..].iter().map(|(_, part)| (2, *part)).collect();
        case.parts.extend(also);
        case.parts.push((2, part((4, 1), (128, 400), (9, 12))));
        assert_eq!(case.needed(), [2]);
    }

    /// What is missing between its logs was given back, which only a log that has both sides tells.
    #[test]
    fn a_log_is_needed_if_without_it_a_gap_would_be_another() {
        let (before, behind) = (part((2, 1), (128, 400), (0, 3)), part((2, 3), (128, 400), (6, 9)));
        let of_one_life = |source: Source| LogId { node: 1, epoch: 1, vlog: source as u32 };
        let parts = vec![(0, before), (0, behind), (1, behind), (2, before)];
        let decided = decide_moved(parts.clone(), &[], &of_one_life, &[]).expect("it fits together");
        assert_eq!((decided.first_ordinal, decided.next_ordinal), (6, 9));
        let told = ToldLane::new(parts, Vec::new(), Vec::new(), decided);
        let mut needed: BTreeSet<LogId> = (0..3).map(of_one_life).collect();
        let sources = Sources { log_of: &of_one_life, shown: &|_| TWO };
        leave_out(&[&told], &mut needed, &BTreeSet::new(), &sources);
        let left = told.decided_by(&needed, &of_one_life).expect("it fits together");
        assert_eq!((left.first_ordinal, left.next_ordinal), (6, 9), "{needed:?}");
    }
}
