//! The store's state and its entry points, over any [`Host`]. The steps are beside: [`super::persist`],
//! [`super::load`], [`super::keep`].
//!
//! Locks are taken one at a time and never held while the log is called, but for a disk's writer, which is held for the
//! whole step that writes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kera_env::{Clock, Disk, Random};
use kera_format::SegmentId;
use parking_lot::Mutex;

use super::begins::Begins;
use super::container::{DiskContainers, Writer};
use super::evict::Clean;
use super::give_way::{ComesFirst, Others};
use super::host::{Host, Image};
use super::load::Said;
use super::queue::{Dirty, LaneKey, Queue};
use super::readers::{Bounds, MoreAhead, Readers};
use super::recover::{InMemory, StoreRecovery, recover};
use super::signal::{Signal, Step};
use super::status::{Counters, DiskState, DiskStatus, StoreStatus};
use super::through::Through;
use super::{StoreConfig, StoreError};
use crate::storage::Location;

/// A segment that a reader needs, or will.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) id: SegmentId,
    pub(crate) at: Location,
    /// A reader waits for it; others are read ahead.
    pub(crate) is_demanded: bool,
}

/// Whether a disk is written to, and when it is tried again.
pub(crate) struct Health {
    pub(crate) state: DiskState,
    pub(crate) error: Option<(String, i64)>,
    pub(crate) retry_at_us: u64,
    pub(crate) failures: u32,
}

/// Segments whose space is to be given back.
#[derive(Default)]
pub(crate) struct Releases {
    pub(crate) waiting: Vec<Location>,
    /// Not before this time of the monotonic clock: many go together.
    pub(crate) due_us: u64,
}

/// One disk, its threads' work and how it is.
pub(crate) struct DiskPart {
    pub(crate) containers: DiskContainers,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) health: Mutex<Health>,
    pub(crate) loads: Mutex<VecDeque<Load>>,
    pub(crate) releases: Mutex<Releases>,
    pub(crate) write_signal: Signal,
    pub(crate) load_signal: Signal,
    pub(crate) others: Mutex<Others>,
    /// Since when whoever holds the writer has been with the disk, on the monotonic clock; [`AT_REST`] while nobody is.
    pub(crate) at_work_since_us: AtomicU64,
    pub(crate) counters: Counters,
}

/// Nobody writes to the disk.
pub(crate) const AT_REST: u64 = u64::MAX;

impl DiskPart {
    fn new(disk: Arc<dyn Disk>) -> DiskPart {
        let health = Health { state: DiskState::Working, error: None, retry_at_us: 0, failures: 0 };
        DiskPart {
            containers: DiskContainers::new(disk),
            writer: Mutex::default(),
            health: Mutex::new(health),
            loads: Mutex::default(),
            releases: Mutex::default(),
            write_signal: Signal::default(),
            load_signal: Signal::default(),
            others: Mutex::default(),
            at_work_since_us: AtomicU64::new(AT_REST),
            counters: Counters::default(),
        }
    }

    fn status(&self) -> DiskStatus {
        let (state, error) = {
            let health = self.health.lock();
            (health.state, health.error.clone())
        };
        let containers = self.containers.containers.lock();
        DiskStatus {
            path: self.containers.disk.root().to_owned(),
            state,
            error,
            direct_io: self.containers.disk.direct_io(),
            containers: containers.len() as u64,
            segments: containers.values().map(|known| known.live_segments).sum(),
            segment_bytes: containers.values().map(|known| known.live_bytes).sum(),
            counters: self.counters.get(),
        }
    }
}

/// What does not belong to one disk.
pub(crate) struct Keeper {
    pub(crate) signal: Signal,
    /// Bytes that writers asked for since something was last evicted for them; the largest of their wishes.
    pub(crate) wanted_bytes: AtomicU64,
    /// The same of loads, since the keeper last looked.
    pub(crate) load_wanted_bytes: AtomicU64,
    /// Nobody has used the log for long: what nobody is on his way to leaves memory.
    pub(crate) is_unused: AtomicBool,
    /// All memory for segments.
    pub(crate) memory_bytes: AtomicU64,
    /// Memory that is kept for loads.
    pub(crate) load_bytes: AtomicU64,
    /// Memory is short: what is dirty is written without delay.
    pub(crate) is_pressed: AtomicBool,
    pub(crate) is_flushing: AtomicBool,
    pub(crate) more_ahead: Mutex<Vec<MoreAhead>>,
    /// Segments found at the start, of which nobody has looked yet which are in memory too.
    pub(crate) recovered: Mutex<Vec<SegmentId>>,
    /// When opened segments may be closed again for want of space.
    pub(crate) close_again_us: AtomicU64,
    pub(crate) evicted_segments: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) load_error: Mutex<Option<String>>,
    pub(crate) said: Mutex<Said>,
}

pub(crate) struct Core<H: Host> {
    pub(crate) config: StoreConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    host: OnceLock<H>,
    first: OnceLock<Arc<dyn ComesFirst>>,
    pub(crate) disks: Vec<DiskPart>,
    pub(crate) queue: Mutex<Queue<H::Image>>,
    pub(crate) clean: Mutex<Clean<H::Image>>,
    pub(crate) readers: Mutex<Readers>,
    pub(crate) container_next: AtomicU64,
    pub(crate) keeper: Keeper,
    pub(crate) through: Through,
    pub(crate) begins: Begins,
    /// Copies that the start has left because it could not say which of two counts: they go with their segments.
    others: Mutex<HashMap<SegmentId, Vec<Location>>>,
    /// The start could not read all that there is, whether or not others know.
    pub(crate) lacks_some: bool,
}

impl<H: Host> Core<H> {
    pub(crate) fn open(
        config: StoreConfig,
        disks: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        in_memory: InMemory<'_>,
    ) -> Result<(Core<H>, StoreRecovery), StoreError> {
        if disks.is_empty() || disks.len() > usize::from(u16::MAX) {
            return Err(StoreError::Disks { count: disks.len() });
        }
        config.check()?;
        let disks: Vec<DiskPart> = disks.into_iter().map(DiskPart::new).collect();
        let containers: Vec<&DiskContainers> = disks.iter().map(|part| &part.containers).collect();
        let mut found = recover(config.node, &containers, in_memory)?;
        let begins = Begins::open(&disks[0].containers.folder, config.node, config.retry_ms);
        found.recovery.let_go = begins.all();
        for at in found.duplicates {
            disks[usize::from(at.disk)].releases.lock().waiting.push(at);
        }
        let mut queue = Queue::new(disks.len());
        for (number, part) in disks.iter().enumerate() {
            part.containers.remove_empty();
            queue.set_free_bytes(number, part.containers.disk.free_bytes().unwrap_or(0));
        }
        let keeper = Keeper {
            signal: Signal::default(),
            wanted_bytes: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(0),
            load_bytes: AtomicU64::new(0),
            load_wanted_bytes: AtomicU64::new(0),
            is_unused: AtomicBool::new(false),
            is_pressed: AtomicBool::new(false),
            is_flushing: AtomicBool::new(false),
            more_ahead: Mutex::default(),
            recovered: Mutex::new(found.recovery.segments.iter().map(|segment| segment.header.id).collect()),
            close_again_us: AtomicU64::new(0),
            evicted_segments: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            load_error: Mutex::default(),
            said: Mutex::default(),
        };
        let core = Core {
            config,
            clock,
            random,
            host: OnceLock::new(),
            first: OnceLock::new(),
            disks,
            queue: Mutex::new(queue),
            clean: Mutex::new(Clean::new()),
            readers: Mutex::default(),
            container_next: AtomicU64::new(found.container_next),
            keeper,
            through: Through::new(found.extents),
            begins,
            others: Mutex::new(found.others),
            lacks_some: found.lacks_some,
        };
        Ok((core, found.recovery))
    }

    /// False if there is one already.
    pub(crate) fn attach(&self, host: H) -> bool {
        let memory = host.memory();
        self.keeper.memory_bytes.store(memory.bytes, Ordering::Relaxed);
        self.keeper.load_bytes.store(memory.load_bytes, Ordering::Relaxed);
        self.host.set(host).is_ok()
    }

    pub(crate) fn give_way(&self, to: Arc<dyn ComesFirst>) {
        let _ = self.first.set(to);
    }

    /// Whether what comes before the store's writes keeps a disk busy.
    pub(crate) fn are_others_busy(&self, disk: usize, now_us: u64) -> bool {
        let first = self.first.get();
        first.is_some_and(|first| self.disks[disk].others.lock().are_busy(&**first, disk, now_us))
    }

    pub(crate) fn host(&self) -> Option<&H> {
        self.host.get()
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.monotonic_us()
    }

    /// The log has dropped a segment that is not on disk.
    pub(crate) fn dropped(&self, id: SegmentId) {
        let forgotten = self.queue.lock().forget(id);
        // Its memory comes back here, and whoever waits for memory is told: not under the queue's lock.
        drop(forgotten);
        self.release_through(id);
    }

    pub(crate) fn closed(&self, image: Arc<H::Image>) {
        let extent_disk = self.through.disk_of(image.id());
        // What is on disk but for its index need not wait for others.
        let closed_us = if extent_disk.is_some() { 0 } else { self.now_us() };
        let is_news = self.queue.lock().push(Dirty { image, closed_us, extent_disk });
        if is_news {
            self.notify_writers();
        }
        self.keeper.signal.notify();
    }

    pub(crate) fn want_space(&self, bytes: u64) {
        self.keeper.wanted_bytes.fetch_max(bytes, Ordering::Relaxed);
        self.keeper.signal.notify();
    }

    pub(crate) fn load(&self, id: SegmentId, at: Location) {
        match self.disks.get(usize::from(at.disk)) {
            Some(part) => {
                part.loads.lock().push_back(Load { id, at, is_demanded: true });
                part.load_signal.notify();
            }
            None => {
                if let Some(host) = self.host() {
                    host.load_failed(id, format!("there is no disk {}", at.disk));
                }
            }
        }
    }

    pub(crate) fn release(&self, id: SegmentId, at: Location) {
        self.clean.lock().remove(id);
        let others = self.others.lock().remove(&id);
        others.into_iter().flatten().for_each(|other| self.release_at(other));
        self.release_at(at);
    }

    /// All of a lane in front of an ordinal was let go of.
    pub(crate) fn let_go(&self, lane: LaneKey, ordinal: u64) {
        if self.begins.tell(lane, ordinal) {
            self.disks[0].write_signal.notify();
        }
    }

    pub(crate) fn release_at(&self, at: Location) {
        let Some(part) = self.disks.get(usize::from(at.disk)) else { return };
        let mut releases = part.releases.lock();
        if releases.waiting.is_empty() {
            releases.due_us = self.now_us() + self.config.release_delay_ms * 1000;
            part.write_signal.notify();
        }
        releases.waiting.push(at);
    }

    pub(crate) fn reading(&self, id: SegmentId) {
        let more = self.readers.lock().reading(id, self.now_us(), self.bounds());
        if let Some(more) = more {
            self.keeper.more_ahead.lock().push(more);
            self.keeper.signal.notify();
        }
    }

    /// How far to read ahead: half of the memory that is kept for loads, so that what readers still send has room too.
    pub(crate) fn bounds(&self) -> Bounds {
        let bytes = self.keeper.load_bytes.load(Ordering::Relaxed) / 2;
        Bounds { segments: self.config.read_ahead_segments_max, bytes }
    }

    pub(crate) fn notify_writers(&self) {
        self.disks.iter().for_each(|part| part.write_signal.notify());
    }

    /// Everything that can be done now, once. For who drives the store by hand.
    pub(crate) fn step(&self) -> Step {
        let disks = 0..self.disks.len();
        let step = disks.fold(Step::Idle, |step, disk| step.or(self.step_write(disk)).or(self.step_load(disk)));
        // Last, because the others tell it what they lack.
        step.or(self.step_keep())
    }

    pub(crate) fn status(&self) -> StoreStatus {
        let (dirty_segments, dirty_bytes) = self.queue.lock().dirty();
        let (clean_segments, clean_bytes) = self.clean.lock().totals();
        StoreStatus {
            disks: self.disks.iter().map(DiskPart::status).collect(),
            dirty_segments,
            dirty_bytes,
            clean_segments,
            clean_bytes,
            loads_waiting: self.disks.iter().map(|part| part.loads.lock().len() as u64).sum(),
            evicted_segments: self.keeper.evicted_segments.load(Ordering::Relaxed),
            evicted_bytes: self.keeper.evicted_bytes.load(Ordering::Relaxed),
            load_error: self.keeper.load_error.lock().clone(),
        }
    }
}
