//! What a start keeps of what segments tell about who wrote to them.
//!
//! An index tells of each segment the last chunks of every producer that wrote to it, which is up to an eighth of what is stored where many producers write small
//! chunks. A lane goes on with the last chunks of each of its producers, whichever segments these are in, and remembers so many producers at most. Kept as it is read, the
//! rest would take memory in proportion to what is on the disks, until a node with large ones could not be started any more. So what later segments of a lane
//! tell is left out of earlier ones, each time that it has doubled.
//!
//! Nothing is lost by that which the lane would know. Of each producer the last marks are left, as many as a lane remembers, in the order in which it notes them; a
//! segment that tells nothing else keeps its last one, for one without any says that somebody may be forgotten. What goes altogether is of producers that the
//! lane would throw out for those who wrote later; then it is not known any more who wrote the segment, and the lane [is told](StoredSegment::lacks_marks).

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::producers::{PER_LANE_MAX, PLACES};
use crate::storage::StoredSegment;
use crate::store::queue::{LaneKey, lane_of};
use crate::store::readers::place_of;

/// Marks of a lane that are not worth a look.
const MARKS_LEAST: usize = 256;

/// What was found of each lane so far.
#[derive(Default)]
pub(super) struct Told(HashMap<LaneKey, OfLane>);

#[derive(Default)]
struct OfLane {
    /// Its segments that tell something, by their places in the list of all.
    segments: Vec<usize>,
    /// How many marks these have.
    marks: usize,
    /// With more they are looked through, if that is more than the least.
    most: usize,
}

impl Told {
    /// The last segment of the list was found.
    pub(super) fn found(&mut self, segments: &mut [StoredSegment]) {
        let Some((last, segment)) = segments.iter().enumerate().next_back() else { return };
        if segment.producers.is_empty() {
            return;
        }
        let of = self.0.entry(lane_of(segment.header.id)).or_default();
        of.segments.push(last);
        of.marks += segment.producers.len();
        if of.marks > of.most.max(MARKS_LEAST) {
            of.look_through(segments);
        }
    }
}

impl OfLane {
    /// Leaves what is told last. A segment that tells nothing else than later ones never will, and is not looked at again.
    fn look_through(&mut self, segments: &mut [StoredSegment]) {
        self.segments.sort_unstable_by_key(|at| Reverse(place_of(segments[*at].header.id)));
        let (mut told, mut marks) = (HashMap::new(), 0);
        self.segments.retain(|at| {
            let left = leave_last(&mut segments[*at], &mut told);
            marks += left;
            left > 0
        });
        (self.marks, self.most) = (marks, 2 * marks);
    }
}

/// Leaves the marks of a segment that no later one makes needless, and returns how many. `told`: how many marks later ones have of each producer.
fn leave_last(segment: &mut StoredSegment, told: &mut HashMap<u64, usize>) -> usize {
    let mut left = Vec::new();
    for mark in segment.producers.iter().rev() {
        let has_room = told.len() < PER_LANE_MAX;
        match told.get_mut(&mark.producer_id.0) {
            Some(marks) if *marks >= PLACES => {}
            Some(marks) => {
                *marks += 1;
                left.push(*mark);
            }
            None if has_room => {
                told.insert(mark.producer_id.0, 1);
                left.push(*mark);
            }
            None => segment.lacks_marks = true,
        }
    }
    let count = left.len();
    if count == 0 && !segment.lacks_marks {
        left.extend(segment.producers.last());
    }
    left.reverse();
    left.shrink_to_fit();
    segment.producers = left;
    count
}

#[cfg(test)]
mod tests {
    use kera_env::{Random, SeededRandom};
    use kera_format::segment::{SegmentHeader, SegmentProgress};
    use kera_format::{
        Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentId, SegmentIndex, StreamId, StreamletId,
    };

    use super::*;
    use crate::producers::{Place, ProducerMark, Producers};
    use crate::storage::Location;
    use crate::tenure::ProducerHandover;

    /// The segment of a lane with this number, two to a group.
    fn segment(number: u32, producers: Vec<ProducerMark>) -> StoredSegment {
        let (stream, streamlet, lane) = (StreamId(1), StreamletId(0), LaneId(0));
        let (group, index) = (GroupId::new(1, number / 2 + 1), SegmentIndex(number % 2));
        let id = SegmentId { stream, streamlet, lane, group, index };
        let header = SegmentHeader { id, capacity_bytes: 1 << 20, base_ordinal: 0, created_ms: 1, flags: 0 };
        let at = Location { disk: 0, container: 1, offset: u64::from(number) * 4096, bytes: 4096 };
        StoredSegment { header, progress: SegmentProgress::empty(0), at, producers, lacks_marks: false }
    }

    fn mark(producer: u64, epoch: u16, sequence: u64, ordinal: u64) -> ProducerMark {
        ProducerMark {
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch(epoch),
            sequence,
            base_ordinal: ordinal,
            position: 128,
        }
    }

    /// What a lane knows behind these segments, in whichever order they are.
    fn known(segments: &[StoredSegment]) -> (Vec<ProducerHandover>, bool) {
        let mut segments: Vec<&StoredSegment> = segments.iter().collect();
        segments.sort_by_key(|segment| place_of(segment.header.id));
        let mut producers = Producers::default();
        for segment in segments {
            let SegmentId { group, index, .. } = segment.header.id;
            for mark in &segment.producers {
                let cursor = Cursor { group, segment: index, position: mark.position };
                let place = Place { cursor, base_ordinal: mark.base_ordinal };
                producers.note(mark.producer_id, mark.producer_epoch, mark.sequence, place, PER_LANE_MAX);
            }
        }
        producers.set_thrown_out_if_full(PER_LANE_MAX);
        producers.hand_over()
    }

    fn marks(segments: &[StoredSegment]) -> usize {
        segments.iter().map(|segment| segment.producers.len()).sum()
    }

    /// As a start finds them, one after the other.
    fn found(all: &[StoredSegment]) -> Vec<StoredSegment> {
        let (mut found, mut told) = (Vec::new(), Told::default());
        for segment in all {
            found.push(segment.clone());
            told.found(&mut found);
        }
        found
    }

    #[test]
    fn a_lane_knows_the_same_of_its_producers_without_what_later_segments_tell_again() {
        for seed in 1..20 {
            let random = SeededRandom::new(seed);
            let below = |end: usize| (random.next_u64() % end as u64) as usize;
            let (mut all, mut written, mut ordinal) = (Vec::new(), [0_u64; 40], 0);
            for number in 0..300 {
                let mut of_segment = Vec::new();
                for _ in 0..below(20) + 1 {
                    // The last ones are silent from some time on.
                    let producer = below(if number < 100 { 40 } else { 30 });
                    let sent = &mut written[producer];
                    of_segment.push(mark(producer as u64 + 1, (*sent / 50) as u16, *sent % 50, ordinal));
                    (*sent, ordinal) = (*sent + 1, ordinal + 1);
                }
                all.push(segment(number, of_segment));
            }
            let expected = known(&all);
            (1..all.len()).rev().for_each(|at| all.swap(at, below(at + 1)));
            let found = found(&all);
            assert_eq!(known(&found), expected, "seed {seed}");
            assert!(found.iter().all(|segment| !segment.producers.is_empty() && !segment.lacks_marks));
            // Twice what is needed, and one mark of each segment.
            assert!(marks(&found) <= 2 * 40 * PLACES + 300 && marks(&all) > 2_000, "{}", marks(&found));
        }
    }

    #[test]
    fn of_more_producers_than_a_lane_remembers_the_first_are_left_out_and_the_lane_is_told() {
        let each = 1_000;
        let of = |number: u32| {
            let first = u64::from(number) * each;
            segment(number, (first..first + each).map(|n| mark(n + 1, 0, 0, n)).collect())
        };
        let all: Vec<StoredSegment> = (0..60).map(of).collect();
        let found = found(&all);
        assert_eq!(known(&found), known(&all));
        assert!(marks(&found) <= 2 * PER_LANE_MAX, "{}", marks(&found));
        assert!(found[0].lacks_marks && found[0].producers.is_empty());
        assert!(!found[59].lacks_marks && found[59].producers == all[59].producers);
    }
}
