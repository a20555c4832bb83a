//! Segments that are written while they are open: large lanes write their bytes once (decision 0009).
//!
//! A virtual log's writer asks for room when it meets the first chunk of a segment ([`WriteThrough::begin`]), writes and
//! syncs on its own thread, and says so if that fails. When the segment is closed it comes to the persister like any
//! other, which only adds index and header. What a start finds without them is put back chunk by chunk when the virtual
//! log's replay meets the segment's first chunk.
//!
//! The container may be on another disk than what else the one who closes, drops or stores a segment of it has to do with. So only that
//! disk's writer finishes segments in it ([`super::queue`]) and ends it when nothing more comes.
//!
//! An extent counts as a segment of its container from the beginning, so that its space is given back in the same way.
//! Locks here are held for look-ups only, never while the disk or the log is called.
//!
//! [`WriteThrough::begin`]: crate::storage::WriteThrough::begin

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

use kera_env::{AlignedBuffer, DISK_ALIGNMENT, DiskFile, OpenMode};
use kera_format::SegmentId;
use kera_format::chunk::Chunks;
use kera_format::container::{
    BatchHeader, CONTAINER_HEADER_BYTES, CONTAINER_SEGMENTS_MAX, ContainerEntry, ContainerHeader, ProducerMark,
    footer_bytes, index_bytes, pages,
};
use kera_format::extent::{ExtentMarker, walk_image};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentProgress};
use parking_lot::Mutex;

use super::container::{Container, Slot, allocate, container_path, give_back_ahead, write_footer};
use super::core::Core;
use super::host::{Host, Image};
use super::persist::{BATCH_MARKS_MAX, marks_of};
use super::queue::{Dirty, LaneKey, lane_of};
use super::signal::Step;
use super::status::{DiskState, count};
use crate::recovery::{RestoreError, Restored};
use crate::segment::Segment;
use crate::storage::{Extent, Location, ReplayExtentError};

/// Marks of a segment at most: with them its index takes two pages. One that has more is written once more, as a batch.
const MARKS_MAX: usize = 249;
const INDEX_BYTES: u64 = index_bytes(1, MARKS_MAX as u32);
const PAGE: usize = DISK_ALIGNMENT;
/// A lane that has written nothing for so long gives its place to another.
const LANE_IDLE_US: u64 = 2_000_000;

const _: () = assert!(INDEX_BYTES == 2 * PAGE as u64);

/// What is written through, of all disks.
pub(crate) struct Through {
    lanes: Mutex<HashMap<LaneKey, Arc<LaneContainer>>>,
    places: Mutex<HashMap<SegmentId, Place>>,
    /// Extents that the start has found and no replay has asked for.
    found: Mutex<HashMap<SegmentId, Location>>,
    /// Containers that get nothing more and that their disks' writers have not ended yet.
    full: Mutex<Vec<Arc<LaneContainer>>>,
}

/// Where an extent is.
#[derive(Clone)]
struct Place {
    at: Location,
    /// What is needed to make a segment of a container of it. `None`: it has only the first bytes of its segment, or may
    /// have; it is released once the segment is stored elsewhere.
    whole: Option<(Arc<LaneContainer>, ExtentMarker)>,
}

/// The container that a lane writes to.
struct LaneContainer {
    disk: usize,
    header: ContainerHeader,
    file: Arc<dyn DiskFile>,
    state: Mutex<LaneState>,
}

struct LaneState {
    /// Where the next extent goes.
    end: u64,
    capacity: u64,
    extents: u32,
    /// Extents that are not closed segments yet, nor given up or gone.
    unfinished: u32,
    entries: Vec<(u32, ContainerEntry)>,
    /// No further extent goes into it.
    is_full: bool,
    /// A write or sync failed: nothing is written to it any more.
    has_failed: bool,
    used_us: u64,
}

/// An extent that is being written.
struct OpenExtent<H: Host> {
    core: Arc<Core<H>>,
    id: SegmentId,
    container: Arc<LaneContainer>,
    marker: ExtentMarker,
    /// Up to where the segment's bytes have been written.
    written: u32,
    /// The page that is written last, which will change: it goes to the disk from here.
    last_page: AlignedBuffer,
}

/// Segments that are stored with their places, those that are to be written, and those whose turn comes after them.
type Finished<'a, S> = (Vec<(Arc<S>, Location)>, Vec<&'a Dirty<S>>, Vec<&'a Dirty<S>>);

/// Where the image of an extent is.
pub(crate) fn location(disk: u16, marker: &ExtentMarker) -> Location {
    Location { disk, container: marker.container, offset: marker.image_at(), bytes: marker.image_bytes.into() }
}

impl Through {
    pub(crate) fn new(found: HashMap<SegmentId, Location>) -> Through {
        Through { lanes: Mutex::default(), places: Mutex::default(), found: Mutex::new(found), full: Mutex::default() }
    }

    /// The disk that has all chunks of a segment, once it is closed and durable, in an extent.
    pub(crate) fn disk_of(&self, id: SegmentId) -> Option<usize> {
        let places = self.places.lock();
        places.get(&id)?.whole.as_ref().map(|(container, _)| container.disk)
    }
}

impl<H: Host> Core<H> {
    /// See [`crate::storage::WriteThrough::begin`].
    pub(crate) fn begin_through(self: &Arc<Self>, segment: &Segment) -> Option<Box<dyn Extent>> {
        let (id, capacity) = (segment.id(), segment.room_bytes());
        let is_large = u64::from(capacity) >= self.config.through_segment_bytes_min;
        // One that a killed process had begun has an extent already: it goes on in the virtual log.
        if !is_large || self.config.through_lanes_max == 0 || self.through.places.lock().contains_key(&id) {
            return None;
        }
        let (container, marker) = self.lane_extent(lane_of(id), capacity)?;
        let at = location(container.disk as u16, &marker);
        let slot = Slot { number: marker.number, at: at.offset, image_bytes: at.bytes, is_released: false };
        if let Some(known) = self.disks[container.disk].containers.containers.lock().get_mut(&at.container) {
            known.add(slot);
        }
        let whole = Some((Arc::clone(&container), marker));
        self.through.places.lock().insert(id, Place { at, whole });
        // Dropped before it was looked for here: nobody says so again. Dropped later, it is found.
        if self.host().is_none_or(|host| host.segment(id).is_none()) {
            self.release_through(id);
            return None;
        }
        let core = Arc::clone(self);
        Some(Box::new(OpenExtent { core, id, container, marker, written: 0, last_page: AlignedBuffer::new() }))
    }

    /// Room in the lane's container, or in another one made for it; `None` if too many lanes have one, or no disk does.
    fn lane_extent(&self, lane: LaneKey, capacity: u32) -> Option<(Arc<LaneContainer>, ExtentMarker)> {
        let now_us = self.now_us();
        let mut full = None;
        let found = self.through.lanes.lock().get(&lane).cloned();
        if let Some(container) = found {
            if let Some(marker) = container.take(capacity, now_us) {
                return Some((container, marker));
            }
            full = self.through.lanes.lock().remove(&lane);
        }
        full.into_iter().for_each(|full| self.end_container(&full));
        if !self.has_lane_room(now_us) {
            return None;
        }
        match self.create_container(capacity) {
            Ok(container) => {
                let marker = container.take(capacity, now_us)?;
                self.through.lanes.lock().insert(lane, Arc::clone(&container));
                Some((container, marker))
            }
            Err(error) => {
                tracing::debug!(%error, "no container to write a large segment through to");
                None
            }
        }
    }

    /// Whether one more lane may have a container; one that is idle gives its place.
    fn has_lane_room(&self, now_us: u64) -> bool {
        let idle: Vec<_> = {
            let mut lanes = self.through.lanes.lock();
            if lanes.len() < self.config.through_lanes_max {
                return true;
            }
            let idle = |container: &Arc<LaneContainer>| container.is_idle(now_us);
            lanes.extract_if(|_, container| idle(container)).map(|(_, container)| container).collect()
        };
        idle.iter().for_each(|container| self.end_container(container));
        !idle.is_empty()
    }

    /// A container with its header and name synced: an extent can only be there if they are. If a sync of the folder has failed meanwhile, whoever asked for that one,
    /// nobody knows if the name survives: what would go there stays in the virtual log.
    ///
    /// It goes to the disk with the most room. But whoever asks makes durable what many producers wait for, whose virtual log may be on another disk: one that stands still gets it only if
    /// all do.
    fn create_container(&self, capacity: u32) -> io::Result<Arc<LaneContainer>> {
        let now_us = self.now_us();
        let working = |number: &usize| self.disks[*number].health.lock().state == DiskState::Working;
        let free = |number: &usize| match &self.disks[*number] {
            part if part.stands_still(now_us) => None,
            part => Some(part.containers.disk.free_bytes().unwrap_or(0)),
        };
        let disk = (0..self.disks.len()).filter(working).max_by_key(free);
        let Some(disk) = disk else { return Err(io::Error::other("no disk works")) };
        let containers = &self.disks[disk].containers;
        let new = self.new_container();
        let path = container_path(new.header.container);
        let failures = containers.folder.failures();
        let file = containers.disk.open(&path, OpenMode::Create, true)?;
        let extent_bytes = ExtentMarker::new(&new.header, 0, INDEX_BYTES, capacity, 0).extent_bytes();
        let least = CONTAINER_HEADER_BYTES as u64 + extent_bytes + footer_bytes(1, MARKS_MAX as u32);
        let known = Container::new(new.header, true);
        let made = allocate(&*file, new.bytes.max(least), least).and_then(|capacity| {
            file.write_at(0, &known.first_page())?;
            file.sync_data()?;
            containers.folder.sync_since(failures)?;
            Ok(capacity)
        });
        let capacity = made.inspect_err(|_| drop(containers.disk.remove(&path)))?;
        containers.containers.lock().insert(new.header.container, known);
        let state = LaneState {
            end: CONTAINER_HEADER_BYTES as u64,
            capacity,
            extents: 0,
            unfinished: 0,
            entries: Vec::new(),
            is_full: false,
            has_failed: false,
            used_us: self.now_us(),
        };
        Ok(Arc::new(LaneContainer { disk, header: new.header, file, state: Mutex::new(state) }))
    }

    /// Nothing more goes into a container. It gets its footer when its last extent is a closed segment.
    fn end_container(&self, container: &Arc<LaneContainer>) {
        container.state.lock().is_full = true;
        self.finish_container(container);
    }

    /// Leaves a container that is over to the writer of its disk. Whoever finds that it is may be the writer of another disk, or hold what others wait for, and the
    /// disk may stand still. Nothing waits for the end: without it a start reads the extents.
    fn finish_container(&self, container: &Arc<LaneContainer>) {
        let is_over = {
            let state = container.state.lock();
            state.is_full && state.unfinished == 0
        };
        if is_over {
            self.through.full.lock().push(Arc::clone(container));
            self.disks[container.disk].write_signal.notify();
        }
    }

    /// Ends the containers of a disk that are over. With the disk's writer held.
    pub(crate) fn step_ends(&self, disk: usize) -> Step {
        let over: Vec<_> = self.through.full.lock().extract_if(.., |container| container.disk == disk).collect();
        if over.is_empty() {
            return Step::Idle;
        }
        self.hold_up(disk, || over.iter().for_each(|container| self.write_end(container)));
        Step::Again
    }

    fn write_end(&self, container: &LaneContainer) {
        let (end, mut entries, extents) = {
            let state = container.state.lock();
            let extents = if state.has_failed { u32::MAX } else { state.extents };
            (state.end, state.entries.clone(), extents)
        };
        let mut has_footer = false;
        // The footer numbers its entries from 0 on: with one missing there is none, and a start reads the extents.
        if entries.len() == extents as usize {
            entries.sort_by_key(|(number, _)| *number);
            let entries: Vec<_> = entries.into_iter().map(|(_, entry)| entry).collect();
            match write_footer(&*container.file, &container.header, end, &entries) {
                Ok(()) => has_footer = true,
                Err(error) => {
                    tracing::warn!(container = container.header.container, %error, "container has no footer");
                }
            }
        } else if let Err(error) = give_back_ahead(&*container.file) {
            tracing::warn!(container = container.header.container, %error, "container keeps space for more");
        }
        let containers = &self.disks[container.disk].containers;
        containers.closed(container.header.container, has_footer);
        containers.remove_if_empty(container.header.container);
    }

    /// Ends the containers of all lanes: a graceful stop, after everything has been written.
    pub(crate) fn end_through(&self) {
        let lanes: Vec<_> = self.through.lanes.lock().drain().map(|(_, container)| container).collect();
        lanes.iter().for_each(|container| self.end_container(container));
    }

    /// Of segments that were closed, in the order of their lanes: makes those that were written through to this disk segments of their
    /// containers. Those of another disk are written once more here: that one is not written to at present.
    ///
    /// What is stored of a lane is a prefix of it at every moment (decision 0007), a power cut included. So each index is
    /// synced before the next of the lane is written; and behind a segment of the lane that is still to be written
    /// elsewhere none is finished: its turn comes again when that one is stored.
    pub(crate) fn finish_through<'a>(&self, disk: usize, dirty: Vec<&'a Dirty<H::Image>>) -> Finished<'a, H::Image> {
        let (mut written, mut to_write, mut behind) = (Vec::new(), Vec::<&Dirty<H::Image>>::new(), Vec::new());
        for dirty in dirty {
            let lane = lane_of(dirty.image.id());
            let is_of = |other: Option<&&Dirty<H::Image>>| other.is_some_and(|o| lane_of(o.image.id()) == lane);
            let is_here = self.through.disk_of(dirty.image.id()) == Some(disk);
            if is_of(behind.last()) || (is_of(to_write.last()) && is_here) {
                behind.push(dirty);
                continue;
            }
            match self.finish_extent(disk, &*dirty.image) {
                Some(Ok(at)) => written.push((Arc::clone(&dirty.image), at)),
                Some(Err(error)) => {
                    tracing::warn!(segment = %dirty.image.id(), %error, "a segment that was written through is written again");
                    to_write.push(dirty);
                }
                None => to_write.push(dirty),
            }
        }
        (written, to_write, behind)
    }

    /// Writes index and first page of a segment that was written through to this disk, and syncs them. `None` if it was not, or its index has no room for
    /// all its marks: a lane without some of them would take an older chunk for a producer's last.
    fn finish_extent(&self, disk: usize, image: &H::Image) -> Option<io::Result<Location>> {
        let extent_disk = self.through.disk_of(image.id())?;
        let marks = marks_of(image, BATCH_MARKS_MAX);
        if extent_disk != disk || marks.len() > MARKS_MAX {
            self.leave_through(image.id());
            return None;
        }
        let (container, marker, room) = {
            let mut places = self.through.places.lock();
            let (container, marker) = places.get(&image.id())?.whole.clone()?;
            // From here on it is a segment like any other: who drops it finds it with its place, once that is told.
            (container, marker, places.remove(&image.id())?.at)
        };
        let entry = entry_of(image, &marker, marks);
        let at = Location { bytes: entry.image_bytes(), ..room };
        let result = container.write_index(&marker, &entry, &image.padded()[..PAGE]);
        {
            let mut state = container.state.lock();
            state.unfinished -= 1;
            match &result {
                Ok(()) => state.entries.push((marker.number, entry)),
                Err(_) => (state.is_full, state.has_failed) = (true, true),
            }
        }
        let part = &self.disks[container.disk];
        if result.is_ok() {
            part.containers.set_image_bytes(at);
            count(&part.counters.written_segments, 1);
            count(&part.counters.written_bytes, at.bytes);
            // Room that a segment closed early has left.
            let (used, room) = (pages(at.bytes), room.bytes);
            if used < room {
                let _ = container.file.punch_hole(at.offset + used, room - used);
            }
        } else {
            // Its chunks are there, and are needed until it is stored elsewhere.
            self.through.places.lock().insert(image.id(), Place { at: room, whole: None });
            self.forget_lane(&container);
        }
        self.finish_container(&container);
        Some(result.map(|()| at))
    }

    /// A segment is stored, or gone, and an extent that has some of it is not needed.
    pub(crate) fn release_through(&self, id: SegmentId) {
        let Some(place) = self.through.places.lock().remove(&id) else { return };
        if let Some((container, _)) = &place.whole {
            container.state.lock().unfinished -= 1;
            self.finish_container(container);
        }
        self.release_at(place.at);
    }

    /// An extent gets nothing more. What is in it stays until its segment is stored elsewhere.
    fn give_up_through(&self, id: SegmentId) {
        let container = self.through.places.lock().get_mut(&id).and_then(|place| place.whole.take());
        let Some((container, _)) = container else { return };
        {
            let mut state = container.state.lock();
            (state.has_failed, state.is_full) = (true, true);
            state.unfinished -= 1;
        }
        self.forget_lane(&container);
        self.finish_container(&container);
    }

    /// A closed segment is written elsewhere, though all of it is in its extent, which stays until then. Others go on in the container.
    fn leave_through(&self, id: SegmentId) {
        let container = self.through.places.lock().get_mut(&id).and_then(|place| place.whole.take());
        let Some((container, _)) = container else { return };
        container.state.lock().unfinished -= 1;
        self.finish_container(&container);
    }

    fn forget_lane(&self, container: &Arc<LaneContainer>) {
        self.through.lanes.lock().retain(|_, other| !Arc::ptr_eq(other, container));
    }

    /// See [`crate::storage::WriteThrough::replay`].
    pub(crate) fn replay_through(
        &self,
        id: SegmentId,
        restored: Restored,
        restore: &mut dyn FnMut(&[u8]) -> Result<Restored, RestoreError>,
    ) -> Result<Option<u64>, ReplayExtentError> {
        let Some(at) = self.through.found.lock().remove(&id) else { return Ok(None) };
        match restored {
            Restored::Stored | Restored::GivenAgain | Restored::UnknownStream => {
                self.release_at(at);
                return Ok(None);
            }
            Restored::AlreadyThere | Restored::Restored => {
                self.through.places.lock().insert(id, Place { at, whole: None });
            }
        }
        // The arena has it, all of it: reading what a killed process has left would only take time.
        if self.host().is_some_and(|host| host.has_whole(id)) {
            return Ok(Some(0));
        }
        let containers = &self.disks[usize::from(at.disk)].containers;
        let unreadable = |error: String| {
            let place =
                format!("{} at {}", containers.disk.root().join(container_path(at.container)).display(), at.offset);
            ReplayExtentError::Unreadable { id, place, error }
        };
        let mut image = AlignedBuffer::zeroed(at.bytes as usize);
        let read =
            containers.read_prefix(at.container, at.offset, &mut image).map_err(|e| unreadable(e.to_string()))?;
        let (header, progress) = walk_image(&image[..read]).map_err(|e| unreadable(e.to_string()))?;
        if header.id != id {
            return Err(unreadable(format!("it is segment {}", header.id)));
        }
        let mut chunks = 0;
        for chunk in Chunks::new(&image[SEGMENT_HEADER_BYTES..progress.head as usize]) {
            restore(chunk.map_err(RestoreError::Format)?.as_bytes())?;
            chunks += 1;
        }
        Ok(Some(chunks))
    }

    /// Nothing of a segment that the replay has begun to put back is there any more.
    pub(crate) fn forget_restored(&self, id: SegmentId) {
        if let Some(host) = self.host() {
            host.forget_restored(id);
        }
    }

    /// What no replay has asked for was never acknowledged, or its segment is stored or gone.
    pub(crate) fn end_replay(&self) {
        let left = std::mem::take(&mut *self.through.found.lock());
        left.into_values().for_each(|at| self.release_at(at));
    }
}

fn entry_of(image: &impl Image, marker: &ExtentMarker, marks: Vec<ProducerMark>) -> ContainerEntry {
    let progress = image.progress();
    ContainerEntry {
        header: image.header(),
        progress: SegmentProgress { durable_head: progress.head, ..progress },
        at: marker.image_at(),
        marks,
    }
}

impl LaneContainer {
    /// Room for a segment, if there is.
    fn take(&self, capacity: u32, now_us: u64) -> Option<ExtentMarker> {
        let mut state = self.state.lock();
        let marker = ExtentMarker::new(&self.header, state.end, INDEX_BYTES, capacity, state.extents);
        let footer = footer_bytes(state.extents + 1, (state.extents + 1) * MARKS_MAX as u32);
        if state.is_full || marker.end() + footer > state.capacity || state.extents >= CONTAINER_SEGMENTS_MAX {
            return None;
        }
        (state.end, state.used_us) = (marker.end(), now_us);
        state.extents += 1;
        state.unfinished += 1;
        Some(marker)
    }

    fn is_idle(&self, now_us: u64) -> bool {
        let state = self.state.lock();
        state.unfinished == 0 && now_us.saturating_sub(state.used_us) > LANE_IDLE_US
    }

    fn check(&self) -> io::Result<()> {
        match self.state.lock().has_failed {
            true => Err(io::Error::other("a write to its container has failed before")),
            false => Ok(()),
        }
    }

    fn write_index(&self, marker: &ExtentMarker, entry: &ContainerEntry, first_page: &[u8]) -> io::Result<()> {
        self.check()?;
        let mut index = AlignedBuffer::zeroed(marker.index_bytes as usize);
        let batch = (marker.index_at(), marker.end() - marker.index_at());
        BatchHeader::write(&self.header, batch, marker.number, std::slice::from_ref(entry), &mut index);
        self.file.write_vectored_at(marker.index_at(), &[IoSlice::new(&index), IoSlice::new(first_page)])?;
        self.file.sync_data()
    }
}

impl<H: Host> Extent for OpenExtent<H> {
    /// Whole pages below `to` never change again and go from where they are. The last page will be written again with
    /// more in it, and the first one holds the segment's header, which changes: both go from a copy.
    fn write(&mut self, segment: &Segment, to: u32) -> io::Result<()> {
        assert_eq!(segment.id(), self.id, "the extent of another segment");
        self.container.check()?;
        if to <= self.written {
            return Ok(());
        }
        let page = PAGE as u32;
        let from = self.written / page * page;
        let mut first_pages = AlignedBuffer::new();
        if from == 0 {
            first_pages = self.first_pages(segment, to);
        }
        let middle = (from.max(page), to / page * page);
        let middle_bytes = if middle.0 < middle.1 { segment.bytes(middle.0, middle.1) } else { &[] };
        self.last_page.clear();
        let last_from = (to / page * page).max(page);
        if to > last_from {
            self.last_page.extend_from_slice(segment.bytes(last_from, to));
            self.last_page.resize(PAGE);
        }
        let parts = [&first_pages[..], middle_bytes, &self.last_page[..]];
        let parts: Vec<IoSlice<'_>> = parts.into_iter().filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        let at = if from == 0 { self.marker.at } else { self.marker.image_at() + u64::from(from) };
        self.container.file.write_vectored_at(at, &parts)?;
        self.written = to;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.container.state.lock().used_us = self.core.now_us();
        self.container.file.sync_data()
    }

    fn give_up(self: Box<Self>) {
        self.core.give_up_through(self.id);
    }
}

impl<H: Host> OpenExtent<H> {
    /// Marker, room for the index, and the first page of the image.
    fn first_pages(&self, segment: &Segment, to: u32) -> AlignedBuffer {
        let mut pages = AlignedBuffer::zeroed(PAGE + self.marker.index_bytes as usize + PAGE);
        self.marker.write(&mut pages);
        let image = &mut pages[PAGE + self.marker.index_bytes as usize..];
        segment.header().write(image);
        SegmentProgress::empty(segment.base_ordinal()).write(image);
        let end = to.min(PAGE as u32);
        image[SEGMENT_HEADER_BYTES..end as usize].copy_from_slice(segment.bytes(SEGMENT_HEADER_BYTES as u32, end));
        pages
    }
}
