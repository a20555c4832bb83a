//! Writing closed segments to disk behind the writers' backs: one step writes one batch to one disk, syncs it, and tells
//! the log. On the disk's writer thread, which also gives released space back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::container::{self, CONTAINER_MARKS_MAX, ContainerEntry, ContainerHeader};
use kera_format::segment::SegmentProgress;

use super::StoreError;
use super::container::{Batch, NewContainer, Writer, is_full};
use super::core::{AT_REST, Core, DiskPart};
use super::give_way::{LOOK_US, WAITS_TIMES};
use super::host::{Host, Image};
use super::queue::{Ask, BatchLimits, Dirty, LaneKey, Work};
use super::signal::Step;
use super::status::{DiskState, count};
use crate::storage::Location;

/// Segments of a batch at most: one vectored write takes them all.
const BATCH_SEGMENTS_MAX: usize = 1000;
/// Marks of a batch at most; a segment whose producers have more keeps the last of them.
pub(crate) const BATCH_MARKS_MAX: usize = CONTAINER_MARKS_MAX as usize / 4;
/// One part in this many of the memory is written before one sync, at most.
const BATCH_MEMORY_SHARE: u64 = 16;
/// The longest that a failed disk is left alone.
const RETRY_MS_MAX: u64 = 30_000;
/// A disk whose writer has been with one batch, or anything else, for so long stands still, or is far behind. A large batch takes a slow disk a second.
const STILL_US: u64 = 2_000_000;

impl<H: Host> Core<H> {
    /// Writes one batch to a disk, if one is due and the disk works, and gives released space back.
    pub(crate) fn step_write(&self, disk: usize) -> Step {
        let part = &self.disks[disk];
        let mut writer = part.writer.lock();
        let now_us = self.now_us();
        let released = self.step_release(disk, now_us).or(self.step_ends(disk)).or(self.step_begins(disk, now_us));
        if let Some(retry_at_us) = part.is_set_aside(now_us) {
            return released.or(Step::Until(retry_at_us));
        }
        let gives_way = self.are_others_busy(disk, now_us);
        let waits = if gives_way { WAITS_TIMES } else { 1 };
        let work = self.queue.lock().take(&Ask {
            disk,
            now_us,
            delay_us: self.config.write_delay_ms * 1000 * waits,
            at_once: self.is_urgent(),
            limits: BatchLimits { bytes: self.batch_bytes(), segments: BATCH_SEGMENTS_MAX },
        });
        let mut batch = match work {
            Work::Batch(batch) => batch,
            // The others may be done long before.
            Work::Until(at_us) if gives_way => return released.or(Step::Until(at_us.min(now_us + LOOK_US))),
            Work::Until(at_us) => return released.or(Step::Until(at_us)),
            Work::Nothing => return released,
        };
        self.notify_writers();
        batch.sort_by_key(|dirty| dirty.image.id());
        let (written, mut again) = self.at_work(disk, || self.write_batch(disk, &mut writer, &batch));
        self.tell(&written);
        again.iter_mut().for_each(|dirty| dirty.extent_disk = self.through.disk_of(dirty.image.id()));
        self.queue.lock().done(disk, &batch, &again);
        self.notify_writers();
        self.keeper.signal.notify();
        Step::Again
    }

    /// Notes on the first disk what lanes have let go of.
    fn step_begins(&self, disk: usize, now_us: u64) -> Step {
        if disk != 0 {
            return Step::Idle;
        }
        let has = |lane: &LaneKey| self.host().is_none_or(|host| host.has_stream(lane.0));
        let write = || self.begins.write(now_us, has);
        let retry_at_us = if self.begins.is_due(now_us) { self.hold_up(disk, write) } else { write() };
        retry_at_us.map_or(Step::Idle, Step::Until)
    }

    /// Does something else with a disk than writing segments that wait, which takes as long as the disk likes: meanwhile its turn is not waited
    /// for, and the others are told. With the disk's writer held.
    pub(crate) fn hold_up<T>(&self, disk: usize, work: impl FnOnce() -> T) -> T {
        if self.queue.lock().set_held_up(disk, true) {
            self.notify_writers();
        }
        let done = self.at_work(disk, work);
        self.queue.lock().set_held_up(disk, false);
        done
    }

    /// Does something with a disk, and has others know since when. With the disk's writer held.
    fn at_work<T>(&self, disk: usize, work: impl FnOnce() -> T) -> T {
        let since_us = &self.disks[disk].at_work_since_us;
        since_us.store(self.now_us(), Ordering::Relaxed);
        let done = work();
        since_us.store(AT_REST, Ordering::Relaxed);
        done
    }

    fn batch_bytes(&self) -> u64 {
        let share = self.keeper.memory_bytes.load(Ordering::Relaxed) / BATCH_MEMORY_SHARE;
        self.config.batch_bytes.min(share)
    }

    /// Whether what is dirty is written without waiting for more.
    fn is_urgent(&self) -> bool {
        self.keeper.is_pressed.load(Ordering::Relaxed) || self.keeper.is_flushing.load(Ordering::Relaxed)
    }

    /// Segments that were written and synced with their places, and those that have to be written again.
    #[allow(clippy::type_complexity)]
    fn write_batch(
        &self,
        disk: usize,
        writer: &mut Writer,
        dirty: &[Dirty<H::Image>],
    ) -> (Vec<(Arc<H::Image>, Location)>, Vec<Dirty<H::Image>>) {
        let part = &self.disks[disk];
        // What the log has dropped meanwhile is not worth writing, nor what it has cut: what is left of that comes by itself, and needs until then what had some of it.
        let wanted =
            |dirty: &&Dirty<H::Image>| self.host().is_some_and(|host| host.segment(dirty.image.id()).is_some());
        let (dirty, gone): (Vec<&Dirty<H::Image>>, Vec<_>) =
            dirty.iter().filter(|dirty| !self.is_cut(&dirty.image)).partition(wanted);
        gone.iter().for_each(|gone| self.release_through(gone.image.id()));
        let (mut written, mut dirty, behind) = self.finish_through(disk, dirty);
        let entries = entries_of(&dirty);
        let later = dirty.split_off(entries.len()).into_iter().chain(behind).cloned().collect();
        if dirty.is_empty() {
            return (written, later);
        }
        let images = dirty.iter().map(|dirty| dirty.image.padded()).collect();
        let mut batch = Batch { entries, images };
        match writer.write(&part.containers, &mut batch, || self.new_container()) {
            Ok(container) => {
                self.has_worked(disk, &batch);
                let places = batch.entries.iter().map(|entry| Location {
                    disk: disk as u16,
                    container,
                    offset: entry.at,
                    bytes: entry.image_bytes(),
                });
                written.extend(dirty.iter().map(|dirty| Arc::clone(&dirty.image)).zip(places));
                (written, later)
            }
            Err(error) => {
                self.has_failed(disk, &error);
                (written, dirty.into_iter().cloned().chain(later).collect())
            }
        }
    }

    /// Whether what the log has of a segment is shorter by now: a start has [cut](crate::given_again) it.
    fn is_cut(&self, image: &H::Image) -> bool {
        let of_log = self.host().and_then(|host| host.segment(image.id()));
        of_log.is_some_and(|of_log| of_log.progress().head < image.progress().head)
    }

    pub(crate) fn new_container(&self) -> NewContainer {
        let header = ContainerHeader {
            node: self.config.node,
            container: self.container_next.fetch_add(1, Ordering::Relaxed),
            key: self.random.next_u64(),
            created_ms: self.clock.now_ms(),
        };
        NewContainer { header, bytes: self.config.container_bytes }
    }

    /// Tells the log what is on disk now. It may release a segment right away that it has dropped meanwhile.
    fn tell(&self, written: &[(Arc<H::Image>, Location)]) {
        let Some(host) = self.host() else { return };
        for (image, at) in written {
            host.persisted(image.id(), *at);
            // What had some of it until now.
            if !self.is_cut(image) {
                self.release_through(image.id());
            }
        }
        let mut clean = self.clean.lock();
        for (image, _) in written {
            clean.add(image);
        }
    }

    pub(crate) fn has_worked(&self, disk: usize, batch: &Batch<'_>) {
        let part = &self.disks[disk];
        count(&part.counters.batches, 1);
        count(&part.counters.written_segments, batch.entries.len() as u64);
        count(&part.counters.written_bytes, batch.entries.iter().map(ContainerEntry::image_bytes).sum());
        let was_set_aside = {
            let mut health = part.health.lock();
            let was_set_aside = health.state != DiskState::Working;
            (health.state, health.error, health.failures) = (DiskState::Working, None, 0);
            was_set_aside
        };
        if was_set_aside {
            tracing::info!(disk = %part.containers.disk.root().display(), "disk is written to again");
            let free_bytes = part.containers.disk.free_bytes().unwrap_or(0);
            let mut queue = self.queue.lock();
            queue.set_usable(disk, true);
            queue.set_free_bytes(disk, free_bytes);
        }
    }

    pub(crate) fn has_failed(&self, disk: usize, error: &io::Error) {
        let part = &self.disks[disk];
        count(&part.counters.write_errors, 1);
        let is_full = is_full(error);
        let first = {
            let mut health = part.health.lock();
            let first = health.state == DiskState::Working;
            health.state = if is_full { DiskState::Full } else { DiskState::Failed };
            health.error = Some((error.to_string(), self.clock.now_ms()));
            // A full disk is tried at a steady pace, since space comes back at any time; a broken one ever more rarely.
            let delay_ms = if is_full { self.config.retry_ms } else { self.config.retry_ms << health.failures.min(10) };
            health.retry_at_us = self.now_us() + delay_ms.min(RETRY_MS_MAX) * 1000;
            health.failures = health.failures.saturating_add(1);
            first
        };
        if first {
            tracing::error!(
                disk = %part.containers.disk.root().display(),
                %error,
                "disk cannot be written to and is set aside; closed segments stay in memory or go to other disks"
            );
        }
        self.queue.lock().set_usable(disk, false);
    }

    /// Gives space back that is due, many segments at a time.
    fn step_release(&self, disk: usize, now_us: u64) -> Step {
        let part = &self.disks[disk];
        let waiting = {
            let mut releases = part.releases.lock();
            if releases.waiting.is_empty() {
                return Step::Idle;
            }
            if releases.due_us > now_us && !self.keeper.is_flushing.load(Ordering::Relaxed) {
                return Step::Until(releases.due_us);
            }
            std::mem::take(&mut releases.waiting)
        };
        let many = waiting.len() as u64;
        let (again, error) = match self.hold_up(disk, || part.containers.release(waiting)) {
            Ok(_) => (Vec::new(), None),
            Err((again, error)) => (again, Some(error)),
        };
        let released = many.saturating_sub(again.len() as u64);
        count(&part.counters.released_segments, released);
        if released > 0 {
            // There is room again: whoever waits for it need not wait for the next try.
            let mut health = part.health.lock();
            if health.state == DiskState::Full {
                health.retry_at_us = now_us;
            }
        }
        let Some(error) = error else { return Step::Again };
        count(&part.counters.release_errors, 1);
        tracing::warn!(
            disk = %part.containers.disk.root().display(),
            %error,
            "space of released segments could not be given back; it is tried again"
        );
        let mut releases = part.releases.lock();
        releases.waiting.extend(again);
        releases.due_us = now_us + self.config.retry_ms * 1000;
        Step::Until(releases.due_us)
    }

    /// Writes everything that is closed, syncs it, and ends the open containers with footers. Errors if something could
    /// not be written; it is still in memory then.
    pub(crate) fn flush_all(&self) -> Result<(), StoreError> {
        self.keeper.is_flushing.store(true, Ordering::Relaxed);
        for part in &self.disks {
            // What failed before may work now, and this is the last chance to find out.
            part.health.lock().retry_at_us = 0;
        }
        let result = self.flush();
        {
            let _writer = self.disks[0].writer.lock();
            self.step_begins(0, self.now_us());
        }
        self.keeper.is_flushing.store(false, Ordering::Relaxed);
        result
    }

    fn flush(&self) -> Result<(), StoreError> {
        while !self.queue.lock().is_clean() {
            let mut did_something = false;
            for disk in 0..self.disks.len() {
                did_something |= self.step_write(disk) == Step::Again;
            }
            let is_hopeless = || {
                let now_us = self.now_us();
                self.disks.iter().all(|part| part.is_set_aside(now_us).is_some())
            };
            if !did_something {
                if is_hopeless() {
                    return Err(self.not_flushed());
                }
                // A disk's own thread is writing the rest.
                std::thread::yield_now();
            }
        }
        self.end_through();
        for (disk, part) in self.disks.iter().enumerate() {
            let mut writer = part.writer.lock();
            self.step_ends(disk);
            let _ = self.step_release(disk, self.now_us());
            if let Err(error) = writer.finish(&part.containers) {
                // The segments are synced; only the next start takes a little longer.
                tracing::warn!(disk = %part.containers.disk.root().display(), %error, "container has no footer");
            }
        }
        Ok(())
    }

    fn not_flushed(&self) -> StoreError {
        let (segments, bytes) = self.queue.lock().dirty();
        let reasons = self.disks.iter().filter_map(|part| {
            let error = part.health.lock().error.clone()?.0;
            Some(format!("{}: {error}", part.containers.disk.root().display()))
        });
        StoreError::NotFlushed { segments, bytes, reasons: reasons.collect::<Vec<_>>().join("; ") }
    }
}

impl DiskPart {
    /// Whether what its writer does takes so long that whoever has another disk had better take that.
    pub(crate) fn stands_still(&self, now_us: u64) -> bool {
        let since_us = self.at_work_since_us.load(Ordering::Relaxed);
        since_us != AT_REST && now_us.saturating_sub(since_us) >= STILL_US
    }

    /// When a disk that failed is tried again, if it is not time yet.
    pub(crate) fn is_set_aside(&self, now_us: u64) -> Option<u64> {
        let health = self.health.lock();
        (health.state != DiskState::Working && health.retry_at_us > now_us).then_some(health.retry_at_us)
    }
}

/// Entries for as many of the segments, from the first on, as have room for their marks in one batch. Their places are
/// not known yet.
fn entries_of<S: Image>(dirty: &[&Dirty<S>]) -> Vec<ContainerEntry> {
    let mut entries: Vec<ContainerEntry> = Vec::with_capacity(dirty.len());
    let mut marks_so_far = 0;
    for dirty in dirty {
        let image = &dirty.image;
        let marks = marks_of(&**image, BATCH_MARKS_MAX);
        if marks_so_far + marks.len() > BATCH_MARKS_MAX {
            break;
        }
        marks_so_far += marks.len();
        let progress = image.progress();
        entries.push(ContainerEntry {
            header: image.header(),
            progress: SegmentProgress { durable_head: progress.head, ..progress },
            at: 0,
            marks,
        });
    }
    entries
}

/// The last marks of a segment, `most` of them at most.
pub(crate) fn marks_of(image: &impl Image, most: usize) -> Vec<container::ProducerMark> {
    let marks = image.marks();
    let last = &marks[marks.len().saturating_sub(most)..];
    last.iter().map(Into::into).collect()
}
