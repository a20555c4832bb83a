//! Which segments leave memory first (thesis 7.2.1): those that were read, the oldest first; then those that nobody is on
//! the way to; then those that the nearest reader needs last.
//!
//! Only segments that are on disk are here, so taking one out of memory costs nothing but the read that brings it back.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use kera_format::SegmentId;

use super::host::Image;
use super::queue::{LaneKey, lane_of};
use super::readers::{Place, place_of};

#[cfg(test)]
thread_local! {
    /// How many segments were looked at to find some that could go.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Segments that are both in memory and on disk.
pub(crate) struct Clean<S> {
    segments: HashMap<SegmentId, Entry<S>>,
    order_next: u64,
}

struct Entry<S> {
    image: Weak<S>,
    bytes: u64,
    order: u64,
}

/// A segment that could be taken out of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: SegmentId,
    pub(crate) bytes: u64,
    /// The lower, the longer it has been on disk and in memory.
    pub(crate) order: u64,
    pub(crate) was_read: bool,
}

impl<S: Image> Clean<S> {
    pub(crate) fn new() -> Clean<S> {
        Clean { segments: HashMap::new(), order_next: 0 }
    }

    /// A segment is on disk, and in memory.
    pub(crate) fn add(&mut self, image: &Arc<S>) {
        let order = self.order_next;
        self.order_next += 1;
        let entry = Entry { image: Arc::downgrade(image), bytes: image.block_bytes(), order };
        self.segments.insert(image.id(), entry);
    }

    pub(crate) fn remove(&mut self, id: SegmentId) {
        self.segments.remove(&id);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Segments and their bytes of memory, those that have gone since they were added included.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.segments.len() as u64, self.segments.values().map(|entry| entry.bytes).sum())
    }

    /// All that are still in memory; the others are forgotten.
    pub(crate) fn candidates(&mut self) -> Vec<Candidate> {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + self.segments.len());
        let mut candidates = Vec::with_capacity(self.segments.len());
        self.segments.retain(|id, entry| match entry.image.upgrade() {
            Some(image) => {
                let (bytes, was_read) = (image.block_bytes(), image.was_read());
                candidates.push(Candidate { id: *id, bytes, order: entry.order, was_read });
                true
            }
            None => false,
        });
        candidates
    }
}

/// When a candidate leaves: the smallest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rank {
    /// Read, and no reader is behind it. By age.
    Read(u64),
    /// Not read, and no reader is on its way. By age.
    Unwanted(u64),
    /// A reader will come to it after so many other bytes: farthest first.
    Ahead(std::cmp::Reverse<u64>),
}

/// Puts candidates in the order in which they leave memory, and counts those in front that no reader is on its way to.
/// `places` are those of all readers, in any order.
pub(crate) fn eviction_order(
    mut candidates: Vec<Candidate>,
    mut places: Vec<(LaneKey, Place)>,
) -> (Vec<Candidate>, usize) {
    candidates.sort_unstable_by_key(|candidate| candidate.id);
    places.sort_unstable();
    let mut ranked: Vec<(Rank, Candidate)> = Vec::with_capacity(candidates.len());
    for lane in candidates.chunk_by(|a, b| lane_of(a.id) == lane_of(b.id)) {
        let key = lane_of(lane[0].id);
        let of_lane = &places[places.partition_point(|(of, _)| *of < key)..];
        let (mut places, mut bytes_ahead) = (of_lane.iter().take_while(|(of, _)| *of == key).peekable(), None);
        for candidate in lane {
            while places.next_if(|(_, place)| *place <= place_of(candidate.id)).is_some() {
                bytes_ahead = Some(0);
            }
            let rank = match (&mut bytes_ahead, candidate.was_read) {
                (Some(ahead), _) => {
                    let rank = Rank::Ahead(std::cmp::Reverse(*ahead));
                    *ahead += candidate.bytes;
                    rank
                }
                (None, true) => Rank::Read(candidate.order),
                (None, false) => Rank::Unwanted(candidate.order),
            };
            ranked.push((rank, *candidate));
        }
    }
    ranked.sort_unstable_by_key(|(rank, candidate)| (*rank, candidate.order));
    let unwanted = ranked.partition_point(|(rank, _)| !matches!(rank, Rank::Ahead(_)));
    (ranked.into_iter().map(|(_, candidate)| candidate).collect(), unwanted)
}

#[cfg(test)]
mod tests {
    use kera_format::{GroupId, LaneId, SegmentIndex};

    use super::*;

    fn id(lane: u32, index: u32) -> SegmentId {
        SegmentId {
            lane: LaneId(lane),
            group: GroupId(u64::from(lane) + 1),
            index: SegmentIndex(index),
            ..SegmentId::default()
        }
    }

    fn candidate(lane: u32, index: u32, order: u64, was_read: bool) -> Candidate {
        Candidate { id: id(lane, index), bytes: 10, order, was_read }
    }

    fn order(candidates: Vec<Candidate>, readers: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let place = |(lane, index): &(u32, u32)| (lane_of(id(*lane, *index)), place_of(id(*lane, *index)));
        let places = readers.iter().map(place).collect();
        eviction_order(candidates, places).0.into_iter().map(|c| (c.id.lane.0, c.id.index.0)).collect()
    }

    #[test]
    fn what_was_read_leaves_first_and_the_oldest_of_it() {
        let candidates = vec![
            candidate(0, 0, 5, false),
            candidate(0, 1, 4, true),
            candidate(1, 0, 3, true),
            candidate(1, 1, 2, false),
        ];
        assert_eq!(order(candidates, &[]), [(1, 0), (0, 1), (1, 1), (0, 0)]);
    }

    #[test]
    fn what_a_reader_needs_last_leaves_before_what_it_needs_next() {
        let candidates = (0..5).map(|n| candidate(0, n, n.into(), false)).collect();
        assert_eq!(order(candidates, &[(0, 1)]), [(0, 0), (0, 4), (0, 3), (0, 2), (0, 1)]);
    }

    #[test]
    fn a_segment_that_one_reader_has_read_is_kept_for_the_one_behind() {
        let candidates = vec![
            candidate(0, 0, 0, true),
            candidate(0, 1, 1, true),
            candidate(0, 2, 2, true),
            candidate(1, 0, 3, false),
        ];
        assert_eq!(order(candidates, &[(0, 1)]), [(0, 0), (1, 0), (0, 2), (0, 1)]);
    }

    #[test]
    fn distance_counts_from_the_nearest_reader() {
        let candidates = (0..6).map(|n| candidate(0, n, n.into(), false)).collect();
        assert_eq!(order(candidates, &[(0, 0), (0, 4)]), [(0, 3), (0, 2), (0, 1), (0, 5), (0, 0), (0, 4)]);
    }
}
