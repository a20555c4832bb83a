//! Segments that compaction has rewritten, or that were damaged: reading what is there, and writing what takes its place.
//!
//! On the compactor's thread, or the one that mends. A rewritten segment is a batch of its own: what a power cut leaves of it takes no other segment
//! along ([`super::recover`]).

use std::io::{self, IoSliceMut};

use kera_env::AlignedBuffer;
use kera_format::container::{ContainerEntry, pages};

use super::container::Batch;
use super::core::Core;
use super::host::Host;
use super::persist::BATCH_MARKS_MAX;
use super::status::{DiskState, count};
use crate::storage::Location;

impl<H: Host> Core<H> {
    /// A segment's image, in whole pages, not verified.
    pub(crate) fn read_image(&self, at: Location) -> io::Result<AlignedBuffer> {
        let part = self.disks.get(usize::from(at.disk)).ok_or_else(|| io::Error::other("there is no such disk"))?;
        let mut image = AlignedBuffer::zeroed(pages(at.bytes) as usize);
        part.containers.read(at.container, at.offset, &mut [IoSliceMut::new(&mut image)])?;
        Ok(image)
    }

    /// Writes an image that takes the place of another to the disk of that, or to the next one that takes it. A start that finds it beside a damaged one that was
    /// rewritten as often takes the longer, or else the one written later, and beside one that was rewritten less often takes it, whichever disks they are on; but
    /// for one that a kill has cut off ([`super::recover`]).
    ///
    /// Which of two was written later containers tell by their numbers, which are given out as they are begun. Another disk may still write to one that was begun
    /// before that of the image that is replaced: that one is ended first. What is begun meanwhile has a higher number.
    pub(crate) fn write_again(
        &self,
        entry: ContainerEntry,
        image: &AlignedBuffer,
        was: Location,
    ) -> io::Result<Location> {
        let mut entry = entry;
        entry.marks.drain(..entry.marks.len().saturating_sub(BATCH_MARKS_MAX));
        let write = |disk| {
            self.end_older(disk, was.container);
            self.write_image(disk, entry.clone(), image)
        };
        let others = (0..self.disks.len() as u16).filter(|other| *other != was.disk);
        others.fold(write(was.disk), |result, other| result.or_else(|_| write(other)))
    }

    /// Ends the container that batches of a disk go to if it was begun before another one.
    fn end_older(&self, disk: u16, than: u64) {
        let Some(part) = self.disks.get(usize::from(disk)) else { return };
        let mut writer = part.writer.lock();
        if !writer.is_older(than) {
            return;
        }
        if let Err(error) = self.hold_up(usize::from(disk), || writer.finish(&part.containers)) {
            // Its segments are synced; only the next start takes a little longer.
            tracing::warn!(disk = %part.containers.disk.root().display(), %error, "container has no footer");
        }
    }

    /// Writes an image, in whole pages, to a disk and syncs it: after `Ok` it survives a power cut. The log is not told. A disk that was set aside is
    /// tried when its time has come, and is written to again if it takes the image: nothing else may be there that tells.
    pub(crate) fn write_image(&self, disk: u16, entry: ContainerEntry, image: &AlignedBuffer) -> io::Result<Location> {
        let part = self.disks.get(usize::from(disk)).ok_or_else(|| io::Error::other("there is no such disk"))?;
        let mut writer = part.writer.lock();
        if part.is_set_aside(self.now_us()).is_some() {
            return Err(io::Error::other("the disk is not written to now"));
        }
        let was_set_aside = part.health.lock().state != DiskState::Working;
        let mut batch = Batch { entries: vec![entry], images: vec![image] };
        let number = usize::from(disk);
        let written = self.hold_up(number, || writer.write(&part.containers, &mut batch, || self.new_container()));
        let container = match written {
            Ok(container) => container,
            Err(error) => {
                match was_set_aside {
                    true => self.has_failed(number, &error),
                    // Closed segments tell whether it takes them, and when it does again.
                    false => count(&part.counters.write_errors, 1),
                }
                return Err(error);
            }
        };
        self.has_worked(number, &batch);
        let entry = &batch.entries[0];
        Ok(Location { disk, container, offset: entry.at, bytes: entry.image_bytes() })
    }
}
