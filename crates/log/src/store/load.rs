//! Reading segments back that readers wait for, and those behind them, in reads as large as neighbours on disk allow. On a
//! disk's loader threads.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use kera_format::SegmentId;
use kera_format::container::pages;

use super::core::{Core, DiskPart, Load};
use super::host::Host;
use super::readers::MoreAhead;
use super::signal::Step;
use super::status::count;
use crate::storage::Location;

/// Segments that are read with one read take at most so many bytes, or are a single one. Large enough for a disk's full speed;
/// small enough that what is ahead of a single reader takes several, and one loader reads while another verifies.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;
/// Segments of one read at most.
const READ_SEGMENTS_MAX: usize = 256;
/// Waiting loads that are looked through for neighbours.
const SCAN_MAX: usize = 1024;
/// How long loads wait for memory before they look again by themselves.
const RETRY_US: u64 = 5_000;
/// A segment that cannot be loaded is told of once in so long: whoever reads it asks for it several times a second, for as long as it wants to read.
const SAY_AGAIN_US: u64 = 60_000_000;
/// Segments that are told of in that time. More are those of a disk that gives nothing.
const SAID_MAX: usize = 64;

/// Segments of which it was told that they cannot be loaded, and when.
#[derive(Default)]
pub(crate) struct Said(HashMap<SegmentId, u64>);

impl Said {
    /// Whether it is told of one now.
    fn is_due(&mut self, id: SegmentId, now_us: u64) -> bool {
        self.0.retain(|_, at_us| now_us < at_us.saturating_add(SAY_AGAIN_US));
        let is_due = self.0.len() < SAID_MAX && !self.0.contains_key(&id);
        if is_due {
            self.0.insert(id, now_us);
        }
        is_due
    }
}

impl<H: Host> Core<H> {
    /// Reads one segment that is waited for on a disk, together with those that lie behind it and are wanted too.
    pub(crate) fn step_load(&self, disk: usize) -> Step {
        let Some(host) = self.host() else { return Step::Idle };
        let part = &self.disks[disk];
        let Some(first) = part.loads.lock().pop_front() else { return Step::Idle };
        if first.is_demanded {
            let more = self.readers.lock().demanded(first.id, first.at.bytes, self.now_us(), self.bounds());
            self.read_ahead(more);
        }
        let mut loads = part.neighbours(Load { is_demanded: false, ..first });
        let mut buffers = Vec::with_capacity(loads.len());
        for load in &loads {
            match host.allocate_for_load(pages(load.at.bytes)) {
                Some(buffer) => buffers.push(buffer),
                None => break,
            }
        }
        // What has no buffer waits, in its place in front of the others.
        let later = loads.split_off(buffers.len());
        let bytes_short: u64 = later.iter().map(|load| pages(load.at.bytes)).sum();
        let mut queue = part.loads.lock();
        later.into_iter().rev().for_each(|load| queue.push_front(load));
        drop(queue);
        if bytes_short > 0 {
            self.keeper.load_wanted_bytes.fetch_max(bytes_short, Ordering::Relaxed);
            self.keeper.signal.notify();
        }
        if loads.is_empty() {
            return Step::Until(self.now_us() + RETRY_US);
        }
        self.read(disk, &loads, buffers);
        Step::Again
    }

    /// Asks the log what comes next in a lane and puts it into the disks' queues.
    pub(crate) fn read_ahead(&self, more: MoreAhead) {
        let Some(host) = self.host() else { return };
        let next = host.read_ahead(more.after, more.count);
        self.readers.lock().reads_ahead(more, next.iter().map(|(id, _)| *id));
        for (id, at) in next {
            match self.disks.get(usize::from(at.disk)) {
                Some(part) => {
                    part.loads.lock().push_back(Load { id, at, is_demanded: false });
                    part.load_signal.notify();
                }
                None => host.load_failed(id, format!("there is no disk {}", at.disk)),
            }
        }
    }

    fn read(&self, disk: usize, loads: &[Load], mut buffers: Vec<H::Buffer>) {
        let part = &self.disks[disk];
        let mut parts: Vec<IoSliceMut<'_>> = loads
            .iter()
            .zip(&mut buffers)
            .map(|(load, buffer)| IoSliceMut::new(&mut buffer[..pages(load.at.bytes) as usize]))
            .collect();
        let first = loads[0].at;
        count(&part.counters.reads, 1);
        match part.containers.read(first.container, first.offset, &mut parts) {
            Ok(()) => {
                for (load, buffer) in loads.iter().zip(buffers) {
                    self.is_read(part, load, buffer);
                }
            }
            Err(error) if loads.len() == 1 => self.is_not_read(part, first, loads[0].id, &error.to_string()),
            // One bad place must not take its neighbours with it.
            Err(_) => {
                for (load, buffer) in loads.iter().zip(buffers) {
                    self.read(disk, std::slice::from_ref(load), vec![buffer]);
                }
            }
        }
    }

    /// Hands a segment to the log, which verifies it.
    fn is_read(&self, part: &DiskPart, load: &Load, buffer: H::Buffer) {
        let Some(host) = self.host() else { return };
        match host.loaded(load.id, buffer) {
            Ok(()) => {
                count(&part.counters.loaded_segments, 1);
                count(&part.counters.loaded_bytes, load.at.bytes);
                if let Some(image) = host.segment(load.id) {
                    self.clean.lock().add(&image);
                }
            }
            Err(error) => {
                count(&part.counters.corrupt_segments, 1);
                self.note_load_error(part, load.at, load.id, &error);
            }
        }
    }

    fn is_not_read(&self, part: &DiskPart, at: Location, id: SegmentId, error: &str) {
        count(&part.counters.read_errors, 1);
        self.note_load_error(part, at, id, error);
        if let Some(host) = self.host() {
            host.load_failed(id, error.to_owned());
        }
    }

    fn note_load_error(&self, part: &DiskPart, at: Location, id: SegmentId, error: &str) {
        let disk = part.containers.disk.root().display();
        let message = format!("segment {id} in container {} of {disk} at {}: {error}", at.container, at.offset);
        if self.keeper.said.lock().is_due(id, self.now_us()) {
            tracing::error!(segment = %id, container = at.container, offset = at.offset, error, "segment cannot be loaded");
        }
        *self.keeper.load_error.lock() = Some(message);
    }
}

impl DiskPart {
    /// Takes the loads out of the queue that lie right behind `first`, one after the other.
    fn neighbours(&self, first: Load) -> Vec<Load> {
        let mut queue = self.loads.lock();
        let mut bytes = pages(first.at.bytes);
        let mut end = first.at.offset + bytes;
        let mut loads = vec![first];
        while loads.len() < READ_SEGMENTS_MAX {
            let next = queue
                .iter()
                .take(SCAN_MAX)
                .position(|load| load.at.container == first.at.container && load.at.offset == end);
            let Some(at) = next else { break };
            let more = pages(queue[at].at.bytes);
            if bytes + more > READ_BYTES_MAX {
                break;
            }
            if let Some(load) = queue.remove(at) {
                // That somebody waits for it too has been seen to: it is read now.
                bytes += more;
                end += more;
                loads.push(load);
            }
        }
        loads
    }
}

#[cfg(test)]
mod tests {
    use kera_format::SegmentIndex;

    use super::*;

    /// A reader that gets an error asks again.
    #[test]
    fn a_segment_that_cannot_be_loaded_is_told_of_once_in_a_minute_and_few_of_many_are() {
        let (mut said, id) =
            (Said::default(), |number| SegmentId { index: SegmentIndex(number), ..SegmentId::default() });
        let told = |said: &mut Said, number, from_s: u64, to_s: u64| {
            let tries = (from_s * 10..to_s * 10).map(|tenths| tenths * 100_000);
            tries.filter(|at_us| said.is_due(id(number), *at_us)).collect::<Vec<u64>>()
        };
        assert_eq!(told(&mut said, 1, 0, 130), [0, 60_000_000, 120_000_000]);
        assert_eq!(told(&mut said, 2, 130, 131), [130_000_000]);
        let many = (0..10_000).filter(|number| said.is_due(id(*number), 200_000_000)).count();
        assert_eq!((many, said.0.len()), (SAID_MAX, SAID_MAX));
        assert!(said.is_due(id(9_999), 260_000_000));
    }
}
