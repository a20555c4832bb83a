//! Reading what is on the disks before somebody needs it: a place that went bad is found while there are copies of what was there, and not when these are gone.
//!
//! Behind the segments the containers are looked at, what tells where the segments are. A start has nothing else to go by; the node that runs knows it, and has what is damaged of that
//! written anew. Where an index is lost, all segments of its container are written to another place as if they had been damaged there: first the new image is synced, then the lane knows of it,
//! then the old one is given back, so that a kill in between leaves one of the two or both. The container goes with the last of them.
//!
//! On a thread of whoever drives it, which decides how fast; nothing of it passes through the arena.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_env::AlignedBuffer;
use kera_format::SegmentId;
use kera_format::container::{ContainerEntry, ProducerMark, pages, verify_image};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentProgress};

use crate::group::Slot;
use crate::lane::Lane;
use crate::log::Log;
use crate::producers::marks_of;
use crate::segment::Segment;
use crate::storage::{Location, SegmentStore};
use crate::store::DiskStore;

/// Reads all segments that are on disk, lane by lane, and then looks at the containers that they are in.
pub struct Scrubber {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    lanes: VecDeque<Arc<Lane>>,
    segments: VecDeque<(SegmentId, Location)>,
    containers: VecDeque<(u16, u64)>,
    /// Segments that are to be written to another place, with what an index still says of who wrote them. Those of one container at a time.
    leaving: VecDeque<(SegmentId, Location, Option<Vec<ProducerMark>>)>,
}

impl Scrubber {
    /// Begins a round: all that is there now is read.
    pub fn new(log: Arc<Log>, store: Arc<DiskStore>) -> Scrubber {
        let (lanes, containers) = (log.lanes().into(), store.containers().into());
        Scrubber { log, store, lanes, segments: VecDeque::new(), containers, leaving: VecDeque::new() }
    }

    /// Reads one segment, or what tells of those of one container. Its bytes, and how many are damaged: one or none. `None`: the round is over.
    pub fn step(&mut self) -> Option<(u64, u64)> {
        loop {
            if let Some((id, at)) = self.segments.pop_front() {
                // What was rewritten or let go of meanwhile is not looked for.
                if self.log.location(id) == Some(at) {
                    return Some(self.look(id, at));
                }
            } else if let Some(lane) = self.lanes.pop_front() {
                self.segments = lane.stored().into();
            } else if let Some((id, at, marks)) = self.leaving.pop_front() {
                if self.log.location(id) == Some(at) {
                    return Some(self.leave(id, at, marks));
                }
            } else {
                let (disk, container) = self.containers.pop_front()?;
                return Some(self.look_at_container(disk, container));
            }
        }
    }

    fn look(&self, id: SegmentId, at: Location) -> (u64, u64) {
        let error = self.read(id, at).err();
        let is_damaged = error.is_some_and(|error| self.log.is_damaged(id, at, &error));
        (at.bytes, u64::from(is_damaged))
    }

    /// A segment's image in whole pages, and what an index is to say of it but for its marks. An error: it is not what was written.
    fn read(&self, id: SegmentId, at: Location) -> Result<(ContainerEntry, AlignedBuffer), String> {
        let image = self.store.read_image(at).map_err(|error| error.to_string())?;
        let (header, progress) = verify_image(&image).map_err(|error| error.to_string())?;
        if header.id != id {
            return Err(format!("segment {} is there", header.id));
        }
        let progress = SegmentProgress { durable_head: progress.head, ..progress };
        Ok((ContainerEntry { header, progress, at: 0, marks: Vec::new() }, image))
    }

    fn look_at_container(&mut self, disk: u16, container: u64) -> (u64, u64) {
        let mut looked = match self.store.look_at(disk, container) {
            Ok(looked) => looked,
            Err(error) => {
                tracing::warn!(disk, container, %error, "a container cannot be looked at");
                return (0, 0);
            }
        };
        let mut is_damaged = looked.is_damaged;
        if !looked.untold.is_empty() {
            let stored = self.log.lanes().into_iter().flat_map(|lane| lane.stored());
            let here: Vec<_> = stored.filter(|(_, at)| (at.disk, at.container) == (disk, container)).collect();
            // What lives there and is no segment of a lane goes by itself.
            if here.iter().any(|(_, at)| looked.untold.contains(&at.offset)) {
                tracing::error!(
                    disk,
                    container,
                    segments = here.len(),
                    "an index in a container is not what was written; its segments are written to another place"
                );
                is_damaged = true;
                self.leaving = here.into_iter().map(|(id, at)| (id, at, looked.marks.remove(&at.offset))).collect();
            }
        }
        (looked.bytes, u64::from(is_damaged))
    }

    /// Writes a segment to another place, whatever is in memory of it. Where no disk takes it, it stays, and the next round tries again.
    fn leave(&self, id: SegmentId, was: Location, marks: Option<Vec<ProducerMark>>) -> (u64, u64) {
        let (entry, image) = match self.read(id, was) {
            Ok(read) => read,
            // It is written to another place all the same, if it is found.
            Err(error) => return (was.bytes, u64::from(self.log.is_damaged(id, was, &error))),
        };
        let of_image = || {
            let chunks = &image[SEGMENT_HEADER_BYTES..entry.progress.head as usize];
            marks_of(chunks).iter().map(Into::into).collect()
        };
        let marks = marks.unwrap_or_else(of_image);
        let entry = ContainerEntry { marks, ..entry };
        match self.store.write_again(entry, &image, was) {
            Ok(at) => {
                self.log.written_again(id, was, at);
                // What was given back counts as gone from memory too.
                if let Some(segment) = self.log.segment(id) {
                    self.store.came_back(&segment);
                }
            }
            Err(error) => tracing::warn!(segment = %id, %error, "no disk takes a segment of which no index tells"),
        }
        (was.bytes, 0)
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
