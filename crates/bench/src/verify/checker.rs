//! The judge: fed with every record that consumers were given, it says what is lost, twice, out of order or damaged.
//!
//! It knows records by what they say about themselves and by where they were (streamlet, lane, ordinal). An ordinal
//! that comes again is a redelivery, which applications are promised to survive and which proves nothing, as long as
//! nobody says that it was committed. A record that comes again under another ordinal is in the log twice. It keeps one small entry for each stretch of records
//! that follow each other both in number and in ordinal, which is about one for each chunk.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use kera_format::{LaneId, StreamletId};

use super::acklog::Acked;
use super::intervals::IntervalSet;
use super::record::{self, NotOurs, Source};

/// How many findings of each kind are kept for the report; all are counted.
const KEPT: usize = 10;

/// Where a record was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// The record's number in the lane.
    pub ordinal: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "streamlet {} lane {} ordinal {}", self.streamlet, self.lane, self.ordinal)
    }
}

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Acknowledged records that never came.
    Lost {
        /// Who wrote them.
        source: Source,
        /// Where they were sent to.
        streamlet: StreamletId,
        /// Their numbers.
        numbers: Range<u64>,
    },
    /// A record that is in the log at two places.
    Twice {
        /// Who wrote it.
        source: Source,
        /// Its number.
        number: u64,
        /// Where it was first.
        first: Place,
        /// Where it was again.
        again: Place,
    },
    /// A record that stands in its lane behind one that was sent after it.
    Order {
        /// Who wrote it.
        source: Source,
        /// Its number.
        number: u64,
        /// The number of the record before it.
        after: u64,
        /// Where it is.
        place: Place,
    },
    /// A consumer was given records of a lane ahead of earlier ones.
    Delivery {
        /// The record that came.
        place: Place,
        /// The ordinal that was next.
        expected: u64,
    },
    /// Ordinals of a lane that never came, though later ones did.
    Hole {
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
        /// The ordinals.
        ordinals: Range<u64>,
    },
    /// A record that is not where its acknowledgement said.
    Moved {
        /// Who wrote it.
        source: Source,
        /// Its number.
        number: u64,
        /// Where it was said to be.
        said: Place,
        /// Where it is.
        found: Place,
    },
    /// A record that was sent to another streamlet than the one it is in.
    Astray {
        /// Who wrote it.
        source: Source,
        /// Its number.
        number: u64,
        /// Where it was sent to.
        sent_to: StreamletId,
        /// Where it is.
        found: Place,
    },
    /// A record whose own checksum is wrong.
    Damaged {
        /// Where it is.
        place: Place,
    },
    /// A record that an application had committed, and was given again.
    Again {
        /// Where it is.
        place: Place,
    },
}

impl Finding {
    /// The kind, as reports name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Finding::Lost { .. } => "lost",
            Finding::Twice { .. } => "twice",
            Finding::Order { .. } => "order",
            Finding::Delivery { .. } => "delivery",
            Finding::Hole { .. } => "hole",
            Finding::Moved { .. } => "moved",
            Finding::Astray { .. } => "astray",
            Finding::Damaged { .. } => "damaged",
            Finding::Again { .. } => "again",
        }
    }

    /// How many records it is about.
    fn records(&self) -> u64 {
        match self {
            Finding::Lost { numbers: range, .. } | Finding::Hole { ordinals: range, .. } => range.end - range.start,
            _ => 1,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind())?;
        match self {
            Finding::Lost { source, streamlet, numbers } => write!(
                f,
                "{source}, streamlet {streamlet}: records {} to {} were acknowledged and never came",
                numbers.start,
                numbers.end - 1
            ),
            Finding::Twice { source, number, first, again } => {
                write!(f, "{source}: record {number} is at {first} and again at {again}")
            }
            Finding::Order { source, number, after, place } => {
                write!(f, "{source}: record {number} stands behind record {after}, at {place}")
            }
            Finding::Delivery { place, expected } => {
                write!(f, "the record at {place} was delivered while ordinal {expected} was next")
            }
            Finding::Hole { streamlet, lane, ordinals } => write!(
                f,
                "streamlet {streamlet} lane {lane}: ordinals {} to {} never came, later ones did",
                ordinals.start,
                ordinals.end - 1
            ),
            Finding::Moved { source, number, said, found } => {
                write!(f, "{source}: record {number} was acknowledged at {said} and is at {found}")
            }
            Finding::Astray { source, number, sent_to, found } => {
                write!(f, "{source}: record {number} was sent to streamlet {sent_to} and is at {found}")
            }
            Finding::Damaged { place } => write!(f, "the record at {place} does not match its own checksum"),
            Finding::Again { place } => {
                write!(f, "the record at {place} was delivered again, and its application had committed it")
            }
        }
    }
}

/// Findings, the first of each kind kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    /// Records concerned, by kind.
    counts: BTreeMap<&'static str, u64>,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        *self.counts.entry(finding.kind()).or_default() += finding.records();
        if self.kept.iter().filter(|kept| kept.kind() == finding.kind()).count() < KEPT {
            self.kept.push(finding);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The first findings of each kind.
    pub fn first(&self) -> &[Finding] {
        &self.kept
    }

    /// Records concerned, by kind.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

/// Records that follow each other in number and in ordinal.
#[derive(Clone, Copy, Debug)]
struct Run {
    number: u64,
    ordinal: u64,
    count: u64,
    lane: LaneId,
}

#[derive(Debug, Default)]
struct SeenRecords {
    numbers: IntervalSet,
    runs: Vec<Run>,
}

impl SeenRecords {
    fn place_of(&self, streamlet: StreamletId, number: u64) -> Option<Place> {
        let run = self.runs.iter().find(|run| (run.number..run.number + run.count).contains(&number))?;
        Some(Place { streamlet, lane: run.lane, ordinal: run.ordinal + (number - run.number) })
    }
}

/// Collects what was seen. One for all consumers of a stream.
#[derive(Debug, Default)]
pub struct Checker {
    records: BTreeMap<(Source, StreamletId), SeenRecords>,
    lanes: BTreeMap<(StreamletId, LaneId), IntervalSet>,
    /// Records of one source that came last, not yet part of `records`: the fast path.
    current: Option<(Source, StreamletId, Run)>,
    /// Whether records of a lane must come in the order of their ordinals.
    ordered_delivery: bool,
    /// Whether all that came so far is committed.
    is_committed: bool,
    findings: Findings,
    delivered: u64,
    seen: u64,
    redelivered: u64,
    foreign: u64,
}

/// What a check found out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Records that came, redelivered ones not counted.
    pub seen: u64,
    /// Records that came again from the same place.
    pub redelivered: u64,
    /// Records that the verifier did not write.
    pub foreign: u64,
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Records that came without having been acknowledged: they were in flight when their producer ended.
    pub unacknowledged: u64,
    /// What must not be.
    pub findings: Findings,
}

impl Checker {
    /// `ordered_delivery`: consumers are promised the records of a lane in order (everybody but applications of a stream
    /// with `order = none`).
    pub fn new(ordered_delivery: bool) -> Checker {
        Checker { ordered_delivery, ..Checker::default() }
    }

    /// All that came so far is committed: from here on what comes again is a finding.
    pub fn expect_nothing_again(&mut self) {
        self.is_committed = true;
    }

    /// Takes a record that a consumer was given.
    pub fn take(&mut self, place: Place, value: &[u8]) {
        self.delivered += 1;
        if !self.note_ordinal(place) {
            self.redelivered += 1;
            if self.is_committed {
                self.findings.add(Finding::Again { place });
            }
            return;
        }
        let identity = match record::decode(value) {
            Ok(identity) => identity,
            Err(NotOurs::Foreign) => {
                self.foreign += 1;
                return;
            }
            Err(NotOurs::Damaged) => {
                self.findings.add(Finding::Damaged { place });
                return;
            }
        };
        self.seen += 1;
        let (source, number) = (identity.source, identity.number);
        if identity.streamlet != place.streamlet {
            self.findings.add(Finding::Astray { source, number, sent_to: identity.streamlet, found: place });
            return;
        }
        if let Some((s, streamlet, run)) = &mut self.current
            && (*s, *streamlet, run.lane) == (source, place.streamlet, place.lane)
            && (run.number + run.count, run.ordinal + run.count) == (number, place.ordinal)
        {
            run.count += 1;
            return;
        }
        self.settle();
        self.current =
            Some((source, place.streamlet, Run { number, ordinal: place.ordinal, count: 1, lane: place.lane }));
    }

    /// Notes the ordinal; false if it has come before.
    fn note_ordinal(&mut self, place: Place) -> bool {
        let delivered = self.lanes.entry((place.streamlet, place.lane)).or_default();
        let expected = delivered.end();
        if self.ordered_delivery && place.ordinal > expected {
            self.findings.add(Finding::Delivery { place, expected });
        }
        delivered.insert(place.ordinal..place.ordinal + 1).is_empty()
    }

    /// Moves the current run to the others and sees whether any of it has been there before.
    fn settle(&mut self) {
        let Some((source, streamlet, run)) = self.current.take() else { return };
        let seen = self.records.entry((source, streamlet)).or_default();
        for known in seen.numbers.insert(run.number..run.number + run.count) {
            for number in known {
                let again = Place { streamlet, lane: run.lane, ordinal: run.ordinal + (number - run.number) };
                let first = seen.place_of(streamlet, number).unwrap_or(again);
                self.findings.add(Finding::Twice { source, number, first, again });
            }
        }
        match seen.runs.last_mut() {
            Some(last)
                if (last.lane, last.number + last.count, last.ordinal + last.count)
                    == (run.lane, run.number, run.ordinal) =>
            {
                last.count += run.count;
            }
            _ => seen.runs.push(run),
        }
    }

    /// Records that came so far, redelivered ones not counted.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Records that came so far, whatever they are, redelivered ones too.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// What was found so far.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// How many of the acknowledged records have not come yet.
    pub fn outstanding(&mut self, acked: &Acked) -> u64 {
        self.settle();
        let missing = acked.records.iter().flat_map(|(key, records)| {
            let seen = self.records.get(key);
            let missing = move |range: Range<u64>| seen.map_or(vec![range.clone()], |s| s.numbers.missing(range));
            records.numbers.iter().flat_map(missing)
        });
        missing.map(|range| range.end - range.start).sum()
    }

    /// Compares everything that came with what was acknowledged.
    pub fn finish(mut self, acked: &Acked) -> Verdict {
        self.settle();
        for (&(streamlet, lane), delivered) in &self.lanes {
            for ordinals in delivered.missing(0..delivered.end()) {
                self.findings.add(Finding::Hole { streamlet, lane, ordinals });
            }
        }
        for (&(source, streamlet), seen) in &mut self.records {
            seen.runs.sort_by_key(|run| (run.lane, run.ordinal));
            for pair in seen.runs.windows(2) {
                let (before, run) = (pair[0], pair[1]);
                let after = before.number + before.count - 1;
                if before.lane == run.lane && run.number <= after {
                    let place = Place { streamlet, lane: run.lane, ordinal: run.ordinal };
                    self.findings.add(Finding::Order { source, number: run.number, after, place });
                }
            }
        }
        self.compare(acked);
        let acknowledged = acked.count();
        let acknowledged_seen = acknowledged - self.outstanding(acked);
        Verdict {
            seen: self.seen,
            redelivered: self.redelivered,
            foreign: self.foreign,
            acknowledged,
            unacknowledged: self.records.values().map(|seen| seen.numbers.count()).sum::<u64>() - acknowledged_seen,
            findings: self.findings,
        }
    }

    fn compare(&mut self, acked: &Acked) {
        let nothing = SeenRecords::default();
        for (&(source, streamlet), records) in &acked.records {
            let seen = self.records.get(&(source, streamlet)).unwrap_or(&nothing);
            for acknowledged in records.numbers.iter() {
                for numbers in seen.numbers.missing(acknowledged) {
                    self.findings.add(Finding::Lost { source, streamlet, numbers });
                }
            }
            let mut by_number = seen.runs.clone();
            by_number.sort_by_key(|run| run.number);
            for (numbers, said) in &records.places {
                let at = by_number.partition_point(|run| run.number <= numbers.start);
                let Some(run) = at.checked_sub(1).map(|at| by_number[at]) else { continue };
                if numbers.start >= run.number + run.count {
                    continue;
                }
                let place = |lane, ordinal| Place { streamlet, lane, ordinal };
                let said = place(said.lane, said.ordinal);
                let found = place(run.lane, run.ordinal + (numbers.start - run.number));
                if said != found {
                    self.findings.add(Finding::Moved { source, number: numbers.start, said, found });
                }
            }
        }
    }
}

impl Verdict {
    /// Whether everything that was promised holds.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records acknowledged, {} read", self.acknowledged, self.seen)?;
        for (count, what) in [
            (self.unacknowledged, "never acknowledged"),
            (self.redelivered, "delivered again"),
            (self.foreign, "that `kera verify produce` did not write"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if self.holds() {
            return f.write_str(": nothing lost, nothing twice, order kept");
        }
        f.write_str(": ")?;
        for (i, (kind, count)) in self.findings.counts().iter().enumerate() {
            write!(f, "{}{kind} {count}", if i == 0 { "" } else { ", " })?;
        }
        for finding in self.findings.first() {
            write!(f, "\n  {finding}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
