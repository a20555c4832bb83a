//! One disk's container files: appending batches to the open one, finishing it, reading images, releasing segments.
//!
//! Knows files and bytes, not the log. Writing and releasing happen on the disk's writer thread alone, under the lock of
//! [`Writer`]; reading happens on its loader threads. The layout is [`kera_format::container`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use kera_env::{AlignedBuffer, Disk, DiskFile, Folder, OpenMode};
use kera_format::container::{
    BatchHeader, CONTAINER_HEADER_BYTES, CONTAINER_MARKS_MAX, CONTAINER_SEGMENTS_MAX, ContainerEntry, ContainerHeader,
    ReleasedMap, Trailer, footer_bytes, index_bytes, mark_count, pages,
};
use parking_lot::Mutex;

use crate::storage::Location;

/// Where containers are, below a disk's root.
pub(crate) const CONTAINER_DIR: &str = "containers";
/// Files of a disk that are kept open for reading.
const FILES_OPEN_MAX: usize = 64;

/// The path of a container file.
pub(crate) fn container_path(container: u64) -> String {
    format!("{CONTAINER_DIR}/{container:016}.kera")
}

/// The number of a container, if `name` is a container's.
pub(crate) fn container_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".kera")?;
    let all_digits = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit());
    if all_digits { digits.parse().ok() } else { None }
}

/// A segment of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Its number in the container: its bit in the released map.
    pub(crate) number: u32,
    pub(crate) at: u64,
    pub(crate) image_bytes: u64,
    pub(crate) is_released: bool,
}

/// What is known of a container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) header: ContainerHeader,
    /// By place in the file.
    pub(crate) slots: Vec<Slot>,
    pub(crate) live_segments: u64,
    pub(crate) live_bytes: u64,
    /// Absent while nothing is released.
    pub(crate) released: Option<ReleasedMap>,
    /// Batches are still appended to it.
    pub(crate) is_open: bool,
    /// It was given a footer, or had one when it was found.
    pub(crate) has_footer: bool,
    /// There may be more in it, which the start could not read.
    pub(crate) lacks_some: bool,
}

impl Container {
    pub(crate) fn new(header: ContainerHeader, is_open: bool) -> Container {
        Container {
            header,
            slots: Vec::new(),
            live_segments: 0,
            live_bytes: 0,
            released: None,
            is_open,
            has_footer: false,
            lacks_some: false,
        }
    }

    /// Nothing in it is live, as far as all of it is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.live_segments == 0 && !self.lacks_some
    }

    /// Its file may be removed.
    fn may_go(&self) -> bool {
        self.is_empty() && !self.is_open
    }

    pub(crate) fn add(&mut self, slot: Slot) {
        if !slot.is_released {
            self.live_segments += 1;
            self.live_bytes += pages(slot.image_bytes);
        }
        self.slots.push(slot);
    }

    /// Marks the segment at a place as released; nothing if there is none, or it is already.
    fn release(&mut self, at: u64) {
        let Ok(found) = self.slots.binary_search_by_key(&at, |slot| slot.at) else { return };
        let slot = &mut self.slots[found];
        if !slot.is_released {
            slot.is_released = true;
            self.live_segments -= 1;
            self.live_bytes = self.live_bytes.saturating_sub(pages(slot.image_bytes));
            self.released.get_or_insert_default().set(slot.number);
        }
    }

    /// The first page of the file as it should be.
    pub(crate) fn first_page(&self) -> AlignedBuffer {
        let mut page = AlignedBuffer::zeroed(CONTAINER_HEADER_BYTES);
        self.header.write(&mut page);
        match &self.released {
            Some(map) => map.write(&mut page),
            None => ReleasedMap::default().write(&mut page),
        }
        page
    }
}

/// All containers of a disk.
pub(crate) type Containers = BTreeMap<u64, Container>;

/// The container that batches are appended to.
struct Open {
    header: ContainerHeader,
    file: Arc<dyn DiskFile>,
    /// Where the next batch goes: everything before is synced.
    at: u64,
    /// Bytes that the file may grow to, allocated ahead.
    capacity: u64,
    entries: Vec<ContainerEntry>,
    marks: u32,
}

/// What a container is made with.
pub(crate) struct NewContainer {
    pub(crate) header: ContainerHeader,
    pub(crate) bytes: u64,
}

/// Appends batches to containers, one open at a time.
#[derive(Default)]
pub(crate) struct Writer {
    open: Option<Open>,
    index: AlignedBuffer,
}

/// Images to be written in one go: as many as entries, each padded to whole pages. The writer fills the entries' places.
pub(crate) struct Batch<'a> {
    pub(crate) entries: Vec<ContainerEntry>,
    pub(crate) images: Vec<&'a [u8]>,
}

impl Batch<'_> {
    fn counts(&self) -> (u32, u32) {
        (self.entries.len() as u32, mark_count(&self.entries))
    }

    fn file_bytes(&self) -> u64 {
        let (count, marks) = self.counts();
        index_bytes(count, marks) + self.images.iter().map(|image| image.len() as u64).sum::<u64>()
    }
}

impl Writer {
    /// Writes a batch and syncs it: after `Ok` it survives a power cut. The entries' places are filled in. A full container
    /// is finished and `new` asked for the next one. After an error nothing of the batch counts, and the container is not
    /// written to again; a later call starts another.
    pub(crate) fn write(
        &mut self,
        disk: &DiskContainers,
        batch: &mut Batch<'_>,
        new: impl FnOnce() -> NewContainer,
    ) -> io::Result<u64> {
        let bytes = batch.file_bytes();
        if self.open.as_ref().is_some_and(|open| !open.has_room(bytes, batch.counts())) {
            self.finish(disk)?;
        }
        if self.open.is_none() {
            self.open = Some(Open::create(disk, new(), bytes, batch.counts())?);
        }
        let Some(open) = &mut self.open else { return Err(io::Error::other("no container is open")) };
        let result = open.append(&mut self.index, batch);
        match result {
            Ok(()) => {
                disk.appended(open.header.container, open.entries.len() - batch.entries.len(), &batch.entries);
                Ok(open.header.container)
            }
            Err(error) => {
                self.abandon(disk);
                Err(error)
            }
        }
    }

    /// Ends the open container with a footer, if one is open. Without the footer it is as good, only slower to read at a
    /// start; so after an error it simply stays without.
    pub(crate) fn finish(&mut self, disk: &DiskContainers) -> io::Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let result = open.write_footer();
        disk.closed(open.header.container, result.is_ok());
        disk.remove_if_empty(open.header.container);
        result
    }

    /// Whether the open container was begun before another one.
    pub(crate) fn is_older(&self, than: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.header.container < than)
    }

    /// Whether batches are appended to a container.
    pub(crate) fn is_at(&self, container: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.header.container == container)
    }

    /// Whether a container is open.
    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Nothing is appended to a container of which a write or a sync has failed: nobody knows what is in it behind the
    /// last sync that succeeded. What is there is cut off, if that works; a start verifies it if it does not.
    fn abandon(&mut self, disk: &DiskContainers) {
        let Some(open) = self.open.take() else { return };
        let _ = open.file.set_len(open.at);
        let _ = open.file.sync_data();
        disk.closed(open.header.container, false);
        disk.remove_if_empty(open.header.container);
    }
}

impl Open {
    /// Makes a container, with its header and name synced. What is in it counts as stored, and virtual logs and backups let go of it: so if a sync of the folder has failed
    /// meanwhile, whoever asked for that one, it is not used, for nobody knows if its name survives.
    fn create(
        disk: &DiskContainers,
        new: NewContainer,
        batch_bytes: u64,
        (count, marks): (u32, u32),
    ) -> io::Result<Open> {
        let container = new.header.container;
        let path = container_path(container);
        let failures = disk.folder.failures();
        let file = disk.disk.open(&path, OpenMode::Create, true)?;
        let least = CONTAINER_HEADER_BYTES as u64 + batch_bytes + footer_bytes(count, marks);
        let known = Container::new(new.header, true);
        let made = allocate(&*file, new.bytes.max(least), least).and_then(|capacity| {
            file.write_at(0, &known.first_page())?;
            file.sync_data()?;
            disk.folder.sync_since(failures)?;
            Ok(capacity)
        });
        match made {
            Ok(capacity) => {
                disk.containers.lock().insert(container, known);
                disk.files.lock().put(container, Arc::clone(&file));
                let at = CONTAINER_HEADER_BYTES as u64;
                Ok(Open { header: new.header, file, at, capacity, entries: Vec::new(), marks: 0 })
            }
            Err(error) => {
                let _ = disk.disk.remove(&path);
                Err(error)
            }
        }
    }

    fn has_room(&self, batch_bytes: u64, (count, marks): (u32, u32)) -> bool {
        let (count, marks) = (self.entries.len() as u32 + count, self.marks.saturating_add(marks));
        count <= CONTAINER_SEGMENTS_MAX
            && marks <= CONTAINER_MARKS_MAX
            && self.at + batch_bytes + footer_bytes(count, marks) <= self.capacity
    }

    fn append(&mut self, index: &mut AlignedBuffer, batch: &mut Batch<'_>) -> io::Result<()> {
        let (count, marks) = batch.counts();
        let bytes = batch.file_bytes();
        let mut at = self.at + index_bytes(count, marks);
        for (entry, image) in batch.entries.iter_mut().zip(&batch.images) {
            entry.at = at;
            at += image.len() as u64;
        }
        index.resize(index_bytes(count, marks) as usize);
        BatchHeader::write(&self.header, (self.at, bytes), self.entries.len() as u32, &batch.entries, index);
        let mut parts = Vec::with_capacity(batch.images.len() + 1);
        parts.push(IoSlice::new(index));
        parts.extend(batch.images.iter().map(|image| IoSlice::new(image)));
        self.file.write_vectored_at(self.at, &parts)?;
        self.file.sync_data()?;
        self.at += bytes;
        self.marks += marks;
        self.entries.extend_from_slice(&batch.entries);
        Ok(())
    }

    fn write_footer(&self) -> io::Result<()> {
        write_footer(&*self.file, &self.header, self.at, &self.entries)
    }
}

/// Writes the footer at `at`, cuts off what is behind it and gives back what was allocated ahead. Without a sync: a start
/// finds everything without the footer too.
pub(crate) fn write_footer(
    file: &dyn DiskFile,
    header: &ContainerHeader,
    at: u64,
    entries: &[ContainerEntry],
) -> io::Result<()> {
    let mut footer = AlignedBuffer::zeroed(footer_bytes(entries.len() as u32, mark_count(entries)) as usize);
    Trailer::write(header, at, entries, &mut footer);
    file.write_at(at, &footer)?;
    file.set_len(at + footer.len() as u64)
}

/// Takes disk space ahead: `most` bytes, or less while the disk has less, down to `least`.
pub(crate) fn allocate(file: &dyn DiskFile, most: u64, least: u64) -> io::Result<u64> {
    let mut bytes = most;
    loop {
        match file.allocate(0, bytes) {
            Ok(()) => return Ok(bytes),
            Err(e) if is_full(&e) && bytes > least => bytes = (bytes / 2).max(least),
            Err(e) => return Err(e),
        }
    }
}

/// Gives back what was allocated ahead behind the end of a file that nothing is appended to any more. All that is in it stays: cutting a file where
/// it ends takes that alone.
pub(crate) fn give_back_ahead(file: &dyn DiskFile) -> io::Result<()> {
    file.set_len(file.len()?)
}

/// Whether an error says that there is no room, and not that something is broken.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Open files of a disk, the one used last at the back.
#[derive(Default)]
pub(crate) struct Files {
    open: VecDeque<(u64, Arc<dyn DiskFile>)>,
}

impl Files {
    fn get(&mut self, container: u64) -> Option<Arc<dyn DiskFile>> {
        let at = self.open.iter().rposition(|(number, _)| *number == container)?;
        let found = self.open.remove(at)?;
        let file = Arc::clone(&found.1);
        self.open.push_back(found);
        Some(file)
    }

    fn put(&mut self, container: u64, file: Arc<dyn DiskFile>) {
        if self.open.len() >= FILES_OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((container, file));
    }

    fn forget(&mut self, container: u64) {
        self.open.retain(|(number, _)| *number != container);
    }
}

/// A disk and what is known of its containers.
pub(crate) struct DiskContainers {
    pub(crate) disk: Arc<dyn Disk>,
    /// Where they are. It is synced by the disk's writer, by those who write segments through and by those who note something: all of them do it here.
    pub(crate) folder: Arc<Folder>,
    pub(crate) containers: Mutex<Containers>,
    pub(crate) files: Mutex<Files>,
}

impl DiskContainers {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> DiskContainers {
        let folder = Arc::new(Folder::new(Arc::clone(&disk), CONTAINER_DIR));
        DiskContainers { disk, folder, containers: Mutex::default(), files: Mutex::default() }
    }

    fn file(&self, container: u64) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.files.lock().get(container) {
            return Ok(file);
        }
        let file = self.disk.open(&container_path(container), OpenMode::ReadWrite, true)?;
        self.files.lock().put(container, Arc::clone(&file));
        Ok(file)
    }

    /// Does something with a file. Whoever comes after an error opens it anew: a disk that was away and is back gives nothing through what was opened before.
    fn with_file<T>(&self, container: u64, act: impl FnOnce(&dyn DiskFile) -> io::Result<T>) -> io::Result<T> {
        let file = self.file(container)?;
        act(&*file).inspect_err(|_| self.files.lock().forget(container))
    }

    /// Reads what there is of a file from a place on, up to the length of the buffer.
    pub(crate) fn read_prefix(&self, container: u64, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.with_file(container, |file| file.read_at(at, buffer))
    }

    /// Reads images that lie next to each other, each into its own buffer of whole pages.
    pub(crate) fn read(&self, container: u64, at: u64, parts: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let read = self.with_file(container, |file| file.read_vectored_at(at, parts))?;
        if read < bytes {
            let path = container_path(container);
            let message = format!("{path} ends after {read} of the {bytes} bytes that should be at {at}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        Ok(())
    }

    fn appended(&self, container: u64, first: usize, entries: &[ContainerEntry]) {
        let mut containers = self.containers.lock();
        let Some(known) = containers.get_mut(&container) else { return };
        for (number, entry) in (first as u32..).zip(entries) {
            known.add(Slot { number, at: entry.at, image_bytes: entry.image_bytes(), is_released: false });
        }
    }

    pub(crate) fn closed(&self, container: u64, has_footer: bool) {
        if let Some(known) = self.containers.lock().get_mut(&container) {
            (known.is_open, known.has_footer) = (false, has_footer);
        }
    }

    /// A segment that room was kept for turned out to be so long.
    pub(crate) fn set_image_bytes(&self, at: Location) {
        let mut containers = self.containers.lock();
        let Some(known) = containers.get_mut(&at.container) else { return };
        let Ok(found) = known.slots.binary_search_by_key(&at.offset, |slot| slot.at) else { return };
        let was_bytes = std::mem::replace(&mut known.slots[found].image_bytes, at.bytes);
        known.live_bytes = (known.live_bytes + pages(at.bytes)).saturating_sub(pages(was_bytes));
    }

    /// Removes the file of a container without a live segment that is not written to any more. Not if some of it could not be read: a start may
    /// end before anybody has heard of that, and the next one may be able to.
    pub(crate) fn remove_if_empty(&self, container: u64) -> bool {
        if !self.containers.lock().get(&container).is_some_and(Container::may_go) {
            return false;
        }
        // The name survives a power cut or not: then the start finds that all its segments are released, or releases
        // them again.
        match self.disk.remove(&container_path(container)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => false,
            _ => {
                self.files.lock().forget(container);
                self.containers.lock().remove(&container);
                true
            }
        }
    }

    /// Gives the space of segments back. Returns those whose turn has to come again, and the first error that was met: a container
    /// that fails keeps no other one's space.
    ///
    /// That a segment is released is synced before its image becomes a hole: a start never takes a hole for a segment.
    /// Whole containers go at once, without that.
    pub(crate) fn release(&self, releases: Vec<Location>) -> Result<u64, (Vec<Location>, io::Error)> {
        let mut by_container: BTreeMap<u64, Vec<Location>> = BTreeMap::new();
        for at in releases {
            by_container.entry(at.container).or_default().push(at);
        }
        let (mut freed_bytes, mut removed, mut again, mut failed) = (0, false, Vec::new(), None);
        for (container, places) in by_container {
            match self.release_in(container, &places) {
                Ok((bytes, gone)) => {
                    removed |= gone;
                    freed_bytes += bytes;
                }
                Err(error) => {
                    again.extend(places);
                    failed.get_or_insert(error);
                }
            }
        }
        if removed && let Err(error) = self.folder.sync() {
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(freed_bytes), |error| Err((again, error)))
    }

    /// The bytes given back, and whether the file went.
    fn release_in(&self, container: u64, places: &[Location]) -> io::Result<(u64, bool)> {
        let (slots, page) = {
            let mut containers = self.containers.lock();
            let Some(known) = containers.get_mut(&container) else { return Ok((0, false)) };
            let find = |at: &Location| known.slots.binary_search_by_key(&at.offset, |slot| slot.at).ok();
            let found: Vec<usize> = places.iter().filter_map(find).collect();
            for at in places {
                known.release(at.offset);
            }
            // All of them, also those marked by an earlier call that failed half-way.
            let slots: Vec<Slot> = found.into_iter().map(|i| known.slots[i]).collect();
            (slots, known.first_page())
        };
        let bytes = slots.iter().map(|slot| pages(slot.image_bytes)).sum();
        if self.remove_if_empty(container) {
            return Ok((bytes, true));
        }
        if slots.is_empty() {
            return Ok((0, false));
        }
        let given_back = self.with_file(container, |file| {
            file.write_at(0, &page)?;
            file.sync_data()?;
            runs(slots).into_iter().try_for_each(|(at, bytes)| file.punch_hole(at, bytes))
        });
        match given_back {
            // Somebody has removed it: there is nothing to give back, and no start finds its segments.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((bytes, false)),
            given_back => given_back.map(|()| (bytes, false)),
        }
    }

    /// Removes containers that hold nothing and are not written to any more.
    pub(crate) fn remove_empty(&self) {
        let empty: Vec<u64> = {
            let containers = self.containers.lock();
            containers.iter().filter(|(_, known)| known.may_go()).map(|(number, _)| *number).collect()
        };
        for container in empty {
            self.remove_if_empty(container);
        }
    }
}

/// Neighbouring images as one range each.
fn runs(mut slots: Vec<Slot>) -> Vec<(u64, u64)> {
    slots.sort_unstable_by_key(|slot| slot.at);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for slot in slots {
        let bytes = pages(slot.image_bytes);
        match runs.last_mut() {
            Some((at, so_far)) if *at + *so_far == slot.at => *so_far += bytes,
            _ => runs.push((slot.at, bytes)),
        }
    }
    runs
}
