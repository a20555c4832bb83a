//! Where the readers of each lane are in closed segments: what eviction keeps for them, and how far ahead of them to read.
//!
//! Fed by hints of the log, from the threads that serve readers. Everything in here may be wrong without harm: a reader
//! that is not known waits for the disk.

use std::collections::{HashMap, VecDeque};

use kera_format::{GroupId, SegmentId, SegmentIndex};

use super::load::READ_BYTES_MAX;
use super::queue::{LaneKey, lane_of};

/// A place in a lane, ordered as the lane is.
pub(crate) type Place = (GroupId, SegmentIndex);

pub(crate) fn place_of(id: SegmentId) -> Place {
    (id.group, id.index)
}

/// Readers of one lane that are told apart; more share the place of the one that was silent longest.
const READERS_MAX: usize = 8;
/// A reader that began no segment for this long is not waited for: it is at the lane's end, slow, or gone.
const READER_SILENT_US: u64 = 10_000_000;
/// Read-aheads of one lane that are told apart.
const AHEADS_MAX: usize = 4;
/// How often silent readers are looked for.
const FORGET_US: u64 = 1_000_000;

/// A reader's place.
#[derive(Clone, Copy, Debug)]
struct Mark {
    place: Place,
    at_us: u64,
}

/// Segments that were loaded, or are being loaded, ahead of a reader.
#[derive(Debug)]
struct Ahead {
    /// Those not begun yet, in the lane's order.
    segments: VecDeque<SegmentId>,
    /// The last one that was asked for.
    tail: SegmentId,
    /// How many segments to be ahead.
    window: usize,
    /// About how large they are.
    segment_bytes: u64,
    at_us: u64,
}

#[derive(Default)]
struct LaneReaders {
    marks: Vec<Mark>,
    aheads: Vec<Ahead>,
}

/// More of a lane to be read: up to `count` segments behind `after`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MoreAhead {
    pub(crate) after: SegmentId,
    pub(crate) count: usize,
}

/// How far read-ahead may go.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Segments ahead of one reader.
    pub(crate) segments: usize,
    /// Bytes ahead of all readers.
    pub(crate) bytes: u64,
}

impl Bounds {
    /// What one of `aheads` may have of segments of a size.
    fn window(self, aheads: usize, segment_bytes: u64) -> usize {
        let many = self.bytes / aheads.max(1) as u64 / segment_bytes.max(1);
        many.clamp(1, self.segments.max(1) as u64) as usize
    }
}

/// All readers that are known.
#[derive(Default)]
pub(crate) struct Readers {
    lanes: HashMap<LaneKey, LaneReaders>,
    /// Read-aheads that are going on, about.
    aheads: usize,
    forgot_us: u64,
}

/// Whether `next` can directly follow `last` in a lane, as far as their names tell.
fn follows(last: Place, next: Place) -> bool {
    if last.0 == next.0 { last.1.0.checked_add(1) == Some(next.1.0) } else { last.0 < next.0 && next.1.0 == 0 }
}

impl Readers {
    /// A reader has begun a closed segment. The answer is more to read ahead of it, if it lives on loaded segments.
    pub(crate) fn reading(&mut self, id: SegmentId, now_us: u64, bounds: Bounds) -> Option<MoreAhead> {
        let aheads = self.aheads;
        let lane = self.lanes.entry(lane_of(id)).or_default();
        lane.mark(place_of(id), now_us);
        let ahead = lane.aheads.iter_mut().find(|ahead| ahead.segments.contains(&id))?;
        while ahead.segments.pop_front().is_some_and(|begun| begun != id) {}
        ahead.at_us = now_us;
        ahead.window = (ahead.window * 2).min(bounds.window(aheads, ahead.segment_bytes));
        let missing = ahead.window.saturating_sub(ahead.segments.len());
        // A whole read at a time, or half a window if that is less, keeps the reads large. To wait for half a window of large
        // segments would let the disk run out of work: the rest of them may have come already.
        let is_whole_read = missing as u64 * ahead.segment_bytes >= READ_BYTES_MAX;
        let is_worth_it = missing > 0 && (is_whole_read || missing * 2 >= ahead.window);
        is_worth_it.then_some(MoreAhead { after: ahead.tail, count: missing })
    }

    /// A reader waits for a segment that is on disk only. The answer is what to read behind it.
    pub(crate) fn demanded(&mut self, id: SegmentId, segment_bytes: u64, now_us: u64, bounds: Bounds) -> MoreAhead {
        self.forget_silent(now_us);
        let window_max = bounds.window(self.aheads, segment_bytes);
        let lane = self.lanes.entry(lane_of(id)).or_default();
        lane.mark(place_of(id), now_us);
        let known = lane.aheads.iter_mut().find(|ahead| {
            ahead.segments.contains(&id) || ahead.tail == id || follows(place_of(ahead.tail), place_of(id))
        });
        let window = match known {
            Some(ahead) => {
                // It was loaded ahead and evicted before it was read: memory is too short for this much. Or else the
                // reader ran dry.
                let evicted = ahead.segments.contains(&id);
                let window = if evicted { ahead.window / 2 } else { ahead.window * 2 };
                *ahead = Ahead {
                    segments: VecDeque::new(),
                    tail: id,
                    window: window.clamp(1, window_max),
                    segment_bytes,
                    at_us: now_us,
                };
                ahead.window
            }
            None => {
                let fresh = Ahead { segments: VecDeque::new(), tail: id, window: 1, segment_bytes, at_us: now_us };
                self.aheads += 1;
                if lane.aheads.len() >= AHEADS_MAX
                    && let Some(oldest) = (0..lane.aheads.len()).min_by_key(|i| lane.aheads[*i].at_us)
                {
                    lane.aheads.swap_remove(oldest);
                    self.aheads -= 1;
                }
                lane.aheads.push(fresh);
                1
            }
        };
        MoreAhead { after: id, count: window }
    }

    /// These segments are on their way because of [`MoreAhead`].
    pub(crate) fn reads_ahead(&mut self, more: MoreAhead, segments: impl Iterator<Item = SegmentId>) {
        let Some(lane) = self.lanes.get_mut(&lane_of(more.after)) else { return };
        let Some(ahead) = lane.aheads.iter_mut().find(|ahead| ahead.tail == more.after) else { return };
        for id in segments {
            ahead.segments.push_back(id);
            ahead.tail = id;
        }
    }

    /// Places of all readers that were heard of lately, with their lanes, in any order.
    pub(crate) fn places(&self, now_us: u64) -> Vec<(LaneKey, Place)> {
        let marks = self.lanes.iter().flat_map(|(lane, of)| of.marks.iter().map(|mark| (*lane, mark)));
        let heard = marks.filter(|(_, mark)| mark.at_us + READER_SILENT_US > now_us);
        heard.map(|(lane, mark)| (lane, mark.place)).collect()
    }

    /// Whether something is read ahead of somebody.
    pub(crate) fn is_reading_ahead(&self) -> bool {
        self.aheads > 0
    }

    /// Forgets readers that were not heard of for long. Does nothing if it has been done lately.
    pub(crate) fn forget_silent(&mut self, now_us: u64) {
        if now_us < self.forgot_us + FORGET_US {
            return;
        }
        self.lanes.retain(|_, lane| {
            lane.marks.retain(|mark| mark.at_us + READER_SILENT_US > now_us);
            lane.aheads.retain(|ahead| ahead.at_us + READER_SILENT_US > now_us);
            !lane.marks.is_empty() || !lane.aheads.is_empty()
        });
        self.aheads = self.lanes.values().map(|lane| lane.aheads.len()).sum();
        self.forgot_us = now_us;
    }
}

impl LaneReaders {
    /// The reader that was at the segment before has moved here; or one is here already; or it is one not seen before.
    fn mark(&mut self, place: Place, at_us: u64) {
        let found = self
            .marks
            .iter_mut()
            .filter(|mark| mark.place == place || follows(mark.place, place))
            .max_by_key(|mark| mark.place);
        if let Some(mark) = found {
            *mark = Mark { place, at_us };
            return;
        }
        if self.marks.len() >= READERS_MAX
            && let Some(oldest) = (0..self.marks.len()).min_by_key(|i| self.marks[*i].at_us)
        {
            self.marks.swap_remove(oldest);
        }
        self.marks.push(Mark { place, at_us });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(group: u64, index: u32) -> SegmentId {
        SegmentId { group: GroupId(group), index: SegmentIndex(index), ..SegmentId::default() }
    }

    fn most(segments: usize) -> Bounds {
        Bounds { segments, bytes: 1 << 30 }
    }

    #[test]
    fn all_windows_together_fit_into_the_memory_for_loads() {
        let bounds = Bounds { segments: 64, bytes: 1000 };
        assert_eq!((bounds.window(1, 100), bounds.window(4, 100), bounds.window(40, 100)), (10, 2, 1));
        assert_eq!((bounds.window(0, 0), bounds.window(1, 1 << 30)), (64, 1));
    }

    fn lane() -> LaneKey {
        lane_of(id(1, 0))
    }

    #[test]
    fn a_reader_that_moves_on_is_one_reader_and_two_are_two() {
        let mut readers = Readers::default();
        for n in 0..5 {
            readers.reading(id(1, n), u64::from(n), most(8));
        }
        readers.reading(id(2, 0), 5, most(8));
        assert_eq!(readers.places(6), [(lane(), place_of(id(2, 0)))]);
        readers.reading(id(1, 1), 7, most(8));
        readers.reading(id(1, 2), 8, most(8));
        let mut places = readers.places(8);
        places.sort_unstable();
        assert_eq!(places, [(lane(), place_of(id(1, 2))), (lane(), place_of(id(2, 0)))]);
    }

    #[test]
    fn silent_readers_are_forgotten() {
        let mut readers = Readers::default();
        readers.reading(id(1, 0), 0, most(8));
        assert!(readers.places(READER_SILENT_US).is_empty());
        readers.forget_silent(READER_SILENT_US);
        assert!(readers.lanes.is_empty());
    }

    #[test]
    fn the_window_opens_with_a_steady_reader_up_to_the_most() {
        let mut readers = Readers::default();
        let first = readers.demanded(id(1, 0), 100, 0, most(8));
        assert_eq!(first, MoreAhead { after: id(1, 0), count: 1 });
        let (mut more, mut next, mut ahead_max) = (Some(first), 1, 0);
        for n in 1..40 {
            if let Some(more) = more.take() {
                readers.reads_ahead(more, (next..next + more.count as u32).map(|n| id(1, n)));
                next += more.count as u32;
            }
            assert!(next > n, "the reader ran dry at {n}");
            ahead_max = ahead_max.max(next - n);
            more = readers.reading(id(1, n), 0, most(8));
        }
        assert_eq!(ahead_max, 8);
    }

    #[test]
    fn a_reader_of_large_segments_has_all_of_its_window_on_the_way() {
        let bounds = Bounds { segments: 64, bytes: 4 * READ_BYTES_MAX };
        let mut readers = Readers::default();
        let (mut more, mut next) = (Some(readers.demanded(id(1, 0), READ_BYTES_MAX, 0, bounds)), 1);
        for n in 1..20 {
            if let Some(more) = more.take() {
                readers.reads_ahead(more, (next..next + more.count as u32).map(|n| id(1, n)));
                next += more.count as u32;
            }
            if n > 5 {
                assert_eq!(next - n, 4, "the disk has less to do at {n}");
            }
            more = readers.reading(id(1, n), 0, bounds);
        }
    }

    #[test]
    fn a_loaded_segment_that_is_wanted_again_narrows_the_window() {
        let mut readers = Readers::default();
        let more = readers.demanded(id(1, 0), 100, 0, most(64));
        readers.reads_ahead(more, [id(1, 1)].into_iter());
        let more = readers.demanded(id(1, 2), 100, 1, most(64));
        assert_eq!(more.count, 2, "it ran dry");
        readers.reads_ahead(more, [id(1, 3), id(1, 4)].into_iter());
        assert_eq!(readers.demanded(id(1, 3), 100, 2, most(64)), MoreAhead { after: id(1, 3), count: 1 });
    }

    #[test]
    fn unrelated_demands_read_one_segment_ahead_each() {
        let mut readers = Readers::default();
        for n in 0..20 {
            assert_eq!(readers.demanded(id(n * 7 + 1, 5), 100, n, most(64)).count, 1);
        }
        assert_eq!(readers.aheads, AHEADS_MAX);
    }
}
