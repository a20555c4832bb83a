//! Reading what is on the disks before somebody needs it: a place that went bad is found while there are copies of what was there, and not when these are gone.
//!
//! On a thread of whoever drives it, which decides how fast; nothing of it passes through the arena.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_env::AlignedBuffer;
use kera_format::container::{ContainerEntry, pages, verify_image};
use kera_format::segment::SegmentProgress;
use kera_format::{FormatError, SegmentId};

use crate::group::Slot;
use crate::lane::Lane;
use crate::log::Log;
use crate::segment::Segment;
use crate::storage::{Location, SegmentStore};
use crate::store::DiskStore;

/// Reads all segments that are on disk, lane by lane.
pub struct Scrubber {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    lanes: VecDeque<Arc<Lane>>,
    segments: VecDeque<(SegmentId, Location)>,
}

impl Scrubber {
    /// Begins a round: all that is there now is read.
    pub fn new(log: Arc<Log>, store: Arc<DiskStore>) -> Scrubber {
        let lanes = log.lanes().into();
        Scrubber { log, store, lanes, segments: VecDeque::new() }
    }

    /// Reads one segment. Its bytes, and how many are damaged: one or none. `None`: the round is over.
    pub fn step(&mut self) -> Option<(u64, u64)> {
        loop {
            if let Some((id, at)) = self.segments.pop_front() {
                // What was rewritten or let go of meanwhile is not looked for.
                if self.log.location(id) == Some(at) {
                    return Some(self.look(id, at));
                }
                continue;
            }
            self.segments = self.lanes.pop_front()?.stored().into();
        }
    }

    fn look(&self, id: SegmentId, at: Location) -> (u64, u64) {
        let read = self.store.read_image(at).map_err(|error| error.to_string());
        let wrong = |error: FormatError| error.to_string();
        let is = read.and_then(|image| Ok(verify_image(&image).map_err(wrong)?.0.id));
        let error = match is {
            Ok(is) if is == id => None,
            Ok(is) => Some(format!("segment {is} is there")),
            Err(error) => Some(error),
        };
        let is_damaged = error.is_some_and(|error| self.log.is_damaged(id, at, &error));
        (at.bytes, u64::from(is_damaged))
    }
}

impl Lane {
    /// Its segments that are on disk, with their places.
    fn stored(&self) -> Vec<(SegmentId, Location)> {
        let state = self.state.lock();
        let groups = state.chain.groups.iter();
        let slots = groups.flat_map(|group| group.slots.iter().map(|slot| (group.id, slot)));
        slots.filter_map(|(group, slot)| Some((self.segment_id(group, slot.index), slot.at?))).collect()
    }
}

/// What is to be done about a damaged image.
enum Found {
    /// The segment is in memory as well.
    InMemory(Arc<Segment>),
    /// It is nowhere else here. It counts as being on its way from here on.
    OnDiskOnly,
}

impl Log {
    /// Where a segment is on disk.
    pub(crate) fn location(&self, id: SegmentId) -> Option<Location> {
        let lane = self.lane_of(id)?;
        let state = lane.state.lock();
        let at = state.chain.find(id.group, id.index)?;
        state.chain.slot(at).at
    }

    /// The image of a segment at a place on a disk is of no use: it is written anew from memory, or is looked for elsewhere. False: nobody needs it there any more.
    fn is_damaged(&self, id: SegmentId, at: Location, error: &str) -> bool {
        let found = self.lane_of(id).and_then(|lane| lane.with_slot(id, |slot| slot.is_damaged(at)));
        let Some(found) = found.flatten() else { return false };
        tracing::error!(segment = %id, disk = at.disk, container = at.container, offset = at.offset, error, "a segment on a disk is not what was written");
        match found {
            Found::InMemory(segment) => self.write_again(&segment, at),
            Found::OnDiskOnly if self.is_looked_for(id, error) => {}
            // Whoever reads it finds out by himself, and has the disk asked once more.
            Found::OnDiskOnly => {
                let stale = self.lane_of(id).and_then(|lane| lane.with_slot(id, |slot| slot.has_come().err()));
                if let Some(stale) = stale.flatten() {
                    self.shared.release_image(id, stale);
                }
            }
        }
        true
    }

    fn write_again(&self, segment: &Arc<Segment>, was: Location) {
        let image = segment.as_image();
        let mut buffer = AlignedBuffer::zeroed(pages(image.len() as u64) as usize);
        buffer[..image.len()].copy_from_slice(image);
        let progress = segment.progress();
        let progress = SegmentProgress { durable_head: progress.head, ..progress };
        let marks = segment.producer_marks().iter().map(Into::into).collect();
        let entry = ContainerEntry { header: *segment.header(), progress, at: 0, marks };
        let Some(store) = self.shared.store.get() else { return };
        match store.write_again(entry, &buffer, was) {
            Ok(at) => {
                self.written_again(segment.id(), was, at);
                store.came_back(segment);
                self.shared.segments_mended.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => tracing::warn!(segment = %segment.id(), %error, "no disk takes what is in memory of it"),
        }
    }
}

impl Slot {
    fn is_damaged(&mut self, at: Location) -> Option<Found> {
        if self.at != Some(at) || self.loading || self.stale.is_some() || self.open {
            return None;
        }
        match &self.memory {
            Some(segment) if segment.is_settled() => Some(Found::InMemory(Arc::clone(segment))),
            Some(_) => None,
            None => {
                self.loading = true;
                Some(Found::OnDiskOnly)
            }
        }
    }
}
