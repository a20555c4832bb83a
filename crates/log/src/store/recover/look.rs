//! Looking, while the node runs, at what a start reads of the containers: first pages, footers and indexes.
//!
//! What is damaged of a container is told by what else it has, at a start as here; what is damaged twice is lost to a start, but not to the node that runs: it knows where its
//! segments are. So the first page and the footer are written anew at once, and of a container whose indexes do not tell of all that lives in it the segments are to be
//! [written elsewhere](crate::Scrubber), whereupon it goes. In front of a look everything was told twice; behind it everything is so again.
//!
//! On the thread of whoever looks. What is read is read without locks; what is written, is with the disk's writer held, as whoever gives space back writes it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use kera_env::{AlignedBuffer, DiskFile, OpenMode};
use kera_format::container::{
    CONTAINER_HEADER_BYTES, ContainerEntry, ContainerHeader, PAGE_BYTES, ProducerMark, ReleasedMap,
};

use super::{Scan, read};
use crate::store::container::{Container, Slot, container_path, write_footer};
use crate::store::core::{Core, DiskPart};
use crate::store::host::Host;

/// What a look at a container has found.
#[derive(Default)]
pub(crate) struct Looked {
    /// Bytes that were read, about.
    pub(crate) bytes: u64,
    /// Its first page or its footer was not what was written. It was written anew, if the disk took it.
    pub(crate) is_damaged: bool,
    /// Where images are that live, as far as the store knows, and of which no index tells.
    pub(crate) untold: HashSet<u64>,
    /// If there are such: the marks of the container's segments, by where their images are, as far as anything tells them.
    pub(crate) marks: HashMap<u64, Vec<ProducerMark>>,
}

/// What is known of a container when it is looked at.
struct Known {
    header: ContainerHeader,
    released: ReleasedMap,
    live: Vec<Slot>,
    /// Of all its segments.
    count: usize,
    is_open: bool,
    has_footer: bool,
}

impl Known {
    fn of(container: &Container) -> Known {
        Known {
            header: container.header,
            released: container.released.clone().unwrap_or_default(),
            live: container.slots.iter().filter(|slot| !slot.is_released).copied().collect(),
            count: container.slots.len(),
            is_open: container.is_open,
            has_footer: container.has_footer,
        }
    }
}

impl<H: Host> Core<H> {
    /// The containers that there are, with their disks.
    pub(crate) fn containers(&self) -> Vec<(u16, u64)> {
        let of_disk = |(disk, part): (u16, &DiskPart)| -> Vec<(u16, u64)> {
            part.containers.containers.lock().keys().map(|container| (disk, *container)).collect()
        };
        (0..).zip(&self.disks).flat_map(of_disk).collect()
    }

    /// Compares a container with what is known of it, and writes anew what can be of what is damaged. One that has gone is as it should be. Blocks on the disk.
    ///
    /// Of a container that segments are written through to while they are open only the first page is looked at: the others are being written.
    ///
    /// # Errors
    /// The disk says something else than that it has lost what was asked for: this look says nothing.
    pub(crate) fn look_at(&self, disk: u16, container: u64) -> io::Result<Looked> {
        let number = usize::from(disk);
        let Some(part) = self.disks.get(number) else { return Ok(Looked::default()) };
        let is_appended_to = part.writer.lock().is_at(container);
        let known = part.containers.containers.lock().get(&container).map(Known::of);
        let Some(known) = known else { return Ok(Looked::default()) };
        let file = match part.containers.disk.open(&container_path(container), OpenMode::ReadWrite, true) {
            // It went in between. If it did not, whoever reads its segments finds out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Looked::default()),
            file => file?,
        };
        let mut looked = Looked { bytes: CONTAINER_HEADER_BYTES as u64, ..Looked::default() };
        looked.is_damaged = self.look_at_first_page(number, &known.header, &*file)?;
        if known.is_open && !is_appended_to {
            return Ok(looked);
        }
        let file_bytes = file.len()?;
        let scan = || Scan::new(known.header, Arc::clone(&file), known.released.clone());
        let (mut footer, mut indexes) = (scan(), scan());
        let is_footer_whole = known.has_footer && footer.read_footer(file_bytes)?;
        let end = if is_footer_whole { footer.end } else { file_bytes };
        looked.bytes += file_bytes.saturating_sub(end) + indexes.read_indexes(end)?;
        let untold = indexes.untold(&known.live);
        if known.has_footer && !(is_footer_whole && footer.untold(&known.live).is_empty()) {
            looked.is_damaged = true;
            self.write_footer_again(number, known.count, &indexes);
        }
        if !untold.is_empty() {
            self.end_at(number, container);
            // Who wrote what is unmarked is not known, which does not say that nobody did: if its image reads back after all, that tells.
            let unmarked = indexes.unmarked;
            let marked = indexes.entries.into_iter().filter(|(_, entry)| !unmarked.contains(&entry.at));
            looked.marks = marked.chain(footer.entries).map(|(_, entry)| (entry.at, entry.marks)).collect();
            looked.untold = untold;
        }
        Ok(looked)
    }

    /// Whether the first page of a container is not what was written. Then it is written anew, with all that was released since.
    fn look_at_first_page(&self, disk: usize, header: &ContainerHeader, file: &dyn DiskFile) -> io::Result<bool> {
        if is_first_page_whole(header, file)? {
            return Ok(false);
        }
        let part = &self.disks[disk];
        let _writer = part.writer.lock();
        // Whoever gives space back may have been writing it. A disk may take long to say that it has lost a page, and others write meanwhile.
        if self.hold_up(disk, || is_first_page_whole(header, file))? {
            return Ok(false);
        }
        let page = part.containers.containers.lock().get(&header.container).map(Container::first_page);
        let Some(page) = page else { return Ok(false) };
        let written = self.hold_up(disk, || file.write_at(0, &page).and_then(|()| file.sync_data()));
        let (container, root) = (header.container, part.containers.disk.root().display());
        match written {
            Ok(()) => {
                tracing::warn!(disk = %root, container, "the first page of a container was damaged, and was written anew")
            }
            Err(error) => {
                tracing::warn!(disk = %root, container, %error, "the first page of a container is damaged, and the disk takes no other");
            }
        }
        Ok(true)
    }

    /// Writes the footer of a container anew that does not read back, if its indexes tell of all its segments, of which there are `count`. Otherwise it is one without
    /// a footer from here on: a start follows its indexes.
    ///
    /// A kill in between leaves what there was before, indexes without a footer. Nothing is cut off behind the last index but the footer, for as many segments are in
    /// front of that as are known.
    fn write_footer_again(&self, disk: usize, count: usize, indexes: &Scan) {
        let part = &self.disks[disk];
        let (container, root) = (indexes.header.container, part.containers.disk.root().display());
        let are_all = indexes.entries.len() == count && indexes.unmarked.is_empty();
        let are_in_order = (0_u32..).zip(&indexes.entries).all(|(at, (number, _))| at == *number);
        let entries: Vec<ContainerEntry> = indexes.entries.iter().map(|(_, entry)| entry.clone()).collect();
        let _writer = part.writer.lock();
        let written = self.hold_up(disk, || {
            if !are_all || !are_in_order {
                return Err(io::Error::other("its indexes do not tell of all that was in it"));
            }
            let written = write_footer(&*indexes.file, &indexes.header, indexes.end, &entries)
                .and_then(|()| indexes.file.sync_data());
            // What is left of it looks like a batch that does not read back.
            written.inspect_err(|_| drop(indexes.file.set_len(indexes.end)))
        });
        match written {
            Ok(()) => {
                tracing::warn!(disk = %root, container, "the footer of a container was damaged, and was written anew")
            }
            Err(error) => {
                tracing::warn!(disk = %root, container, %error, "the footer of a container is damaged, and it gets no other");
                if let Some(known) = part.containers.containers.lock().get_mut(&container) {
                    known.has_footer = false;
                }
            }
        }
    }

    /// Ends a container if batches are appended to it: its footer tells of all that is in it, and what is to leave it does not go to it once more.
    fn end_at(&self, disk: usize, container: u64) {
        let part = &self.disks[disk];
        let mut writer = part.writer.lock();
        if !writer.is_at(container) {
            return;
        }
        if let Err(error) = self.hold_up(disk, || writer.finish(&part.containers)) {
            tracing::warn!(disk = %part.containers.disk.root().display(), container, %error, "container has no footer");
        }
    }
}

impl Scan {
    /// Follows the indexes up to a place, past those that do not read back, and returns about how many bytes it has read. An image is read only where it is all there is.
    fn read_indexes(&mut self, to: u64) -> io::Result<u64> {
        let mut bytes = 0;
        loop {
            let mut batch = self.read_batch(self.end, to)?;
            if batch.is_none() && self.read_extent(to)? {
                bytes += 3 * PAGE_BYTES as u64;
                continue;
            }
            if batch.is_none() {
                batch = self.find_batch(to)?;
            }
            let Some((header, entries)) = batch else { return Ok(bytes) };
            bytes += header.index_bytes();
            self.entries.extend((header.first..).zip(entries));
            self.end = header.at + header.batch_bytes;
        }
    }

    /// Where those of some segments are of which it does not tell.
    fn untold(&self, live: &[Slot]) -> HashSet<u64> {
        let entries = self.entries.iter().map(|(number, entry)| (entry.at, *number));
        let open = self.open.iter().map(|(_, marker)| (marker.image_at(), marker.number));
        let told: HashSet<(u64, u32)> = entries.chain(open).collect();
        live.iter().filter(|slot| !told.contains(&(slot.at, slot.number))).map(|slot| slot.at).collect()
    }
}

/// Whether the first page of a container has its header and a map of what was released.
fn is_first_page_whole(header: &ContainerHeader, file: &dyn DiskFile) -> io::Result<bool> {
    let mut page = AlignedBuffer::zeroed(CONTAINER_HEADER_BYTES);
    let read = read(file, 0, &mut page)?;
    let has_header = ContainerHeader::parse(&page[..read]).is_ok_and(|found| found == *header);
    Ok(has_header && ReleasedMap::parse(&page[..read]).is_ok_and(|(_, damaged)| damaged == 0))
}
