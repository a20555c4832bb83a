//! The persistence manager: closed segments in container files on disk, and back on catch-up reads (thesis 7.2.1).
//!
//! | does | where | on which thread |
//! | --- | --- | --- |
//! | write-behind of closed segments in large batches, one sync each | `persist` | one writer per disk |
//! | large segments of virtual logs, while they are open | `through` | the virtual log's writer |
//! | reading back what readers wait for, and what comes next | `load` | loaders of each disk |
//! | eviction by what readers need next, back-pressure on open segments | `keep`, `evict` | one keeper |
//! | giving back what retention drops | `persist`, `container` | the writer of the disk |
//! | finding everything again | `recover` | whoever opens the store |
//! | looking whether a start would | `recover/look` | the scrubber |
//! | what compaction has rewritten | `rewrite` | the compactor |
//!
//! Every one of these is a step function over shared state; the threads are a shell around them (`threads`), and a
//! simulator may call [`DiskStore::step`] instead. Nothing here runs on a thread that serves connections but the queueing
//! calls of [`SegmentStore`].
//!
//! The promise: a segment is reported as persisted only when its image, its index entry and the name of its file are
//! synced; what a power cut leaves of anything else is found out at the next start and not served. A disk that fails is
//! set aside, and writing goes on with the others. With none left nothing is lost: segments stay in memory until the arena
//! is full and writers wait.

mod begins;
mod container;
mod core;
mod evict;
mod give_way;
mod host;
mod keep;
mod load;
mod persist;
mod queue;
mod readers;
mod recover;
mod rewrite;
mod signal;
mod status;
#[cfg(test)]
mod tests;
mod threads;
mod through;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use kera_env::{AlignedBuffer, Clock, Disk, Random};
use kera_format::container::{CONTAINER_BYTES_MAX, ContainerEntry, IMAGE_BYTES_MAX};
use kera_format::{LaneId, SegmentId, StreamId, StreamletId};

pub use give_way::ComesFirst;
pub use recover::{Lack, StoreRecovery};
pub use signal::Step;
pub use status::{DiskCounts, DiskState, DiskStatus, StoreStatus};
pub use threads::StoreThreads;

use self::core::Core;
use crate::Log;
use crate::recovery::{RestoreError, Restored};
use crate::segment::Segment;
use crate::storage::{Extent, Location, ReplayExtentError, SegmentStore, WriteThrough};

/// Settings of the store. The defaults work; only `node` has to be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Uuid of the node: containers of another node are refused.
    pub node: [u8; 16],
    /// Bytes of a container file, allocated ahead.
    pub container_bytes: u64,
    /// Bytes that are written before one sync, or a single segment if that is larger. At most one part in sixteen of the
    /// arena is, so that memory comes back soon.
    pub batch_bytes: u64,
    /// Milliseconds that a closed segment waits for others before it is written, while memory is not short. Five times as long
    /// at most while [first writes](DiskStore::give_way) keep the disk busy.
    pub write_delay_ms: u64,
    /// Without that wait above so many percent of the arena in closed segments that are not on disk.
    pub dirty_percent_max: u64,
    /// Percent of the arena that is kept free by evicting what is on disk: made good when an eighth of that is missing.
    pub free_percent_min: u64,
    /// Segments that are loaded ahead of one reader at most.
    pub read_ahead_segments_max: usize,
    /// Milliseconds that released segments wait for others before their space is given back.
    pub release_delay_ms: u64,
    /// Milliseconds until a disk that failed or was full is tried again.
    pub retry_ms: u64,
    /// Threads that read from a disk.
    pub loaders_per_disk: usize,
    /// Segments of durability `power` are written through from this size class on.
    pub through_segment_bytes_min: u64,
    /// Lanes that are written through at a time at most; zero: none.
    pub through_lanes_max: usize,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            node: [0; 16],
            container_bytes: 256 << 20,
            batch_bytes: 64 << 20,
            write_delay_ms: 2_000,
            dirty_percent_max: 50,
            free_percent_min: 10,
            read_ahead_segments_max: 64,
            release_delay_ms: 500,
            retry_ms: 1_000,
            loaders_per_disk: 2,
            through_segment_bytes_min: 4 << 20,
            through_lanes_max: 4,
        }
    }
}

impl StoreConfig {
    fn check(&self) -> Result<(), StoreError> {
        let ranges = [
            ("container_bytes", self.container_bytes, 64 << 10, CONTAINER_BYTES_MAX / 4),
            ("batch_bytes", self.batch_bytes, 4 << 10, 16 * IMAGE_BYTES_MAX),
            ("dirty_percent_max", self.dirty_percent_max, 1, 100),
            ("free_percent_min", self.free_percent_min, 0, 90),
            ("loaders_per_disk", self.loaders_per_disk as u64, 1, 64),
        ];
        let wrong = ranges.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value));
        match wrong {
            Some((field, value, least, most)) => Err(StoreError::Config { field, value, least, most }),
            None => Ok(()),
        }
    }
}

/// What keeps a store from being opened, flushed or started.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A setting is out of range.
    #[error("{field} is {value}, allowed is {least} to {most}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What it is.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// No disk, or far too many.
    #[error("{count} disks were given, allowed is 1 to 65535")]
    Disks {
        /// How many.
        count: usize,
    },
    /// A disk cannot be used. Starting without it would look as if its segments were lost.
    #[error("disk {}: cannot {action}: {error}; repair it or take it out of the configuration", path.display())]
    Disk {
        /// The root of its tree.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A container cannot be read, and its disk does not say that it has lost it: this may pass. Starting without it would look as if its segments were lost.
    #[error("{} cannot be read: {error}", path.display())]
    Container {
        /// The container.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A container belongs to another node.
    #[error(
        "{} belongs to node {}, this is node {}; move the directory of that node away, or start that node",
        path.display(), hex(found), hex(expected)
    )]
    Foreign {
        /// The container.
        path: PathBuf,
        /// The node in its header.
        found: [u8; 16],
        /// This node.
        expected: [u8; 16],
    },
    /// A container was found twice: two disks are one under two names, or one is a copy of the other. Nothing was changed.
    #[error("{} and {} are the same container", path.display(), other.display())]
    Twice {
        /// Where it was found first.
        path: PathBuf,
        /// Where it was found once more.
        other: PathBuf,
    },
    /// Not everything could be written. It is still in memory.
    #[error("{segments} segments ({bytes} bytes) could not be written to any disk: {reasons}")]
    NotFlushed {
        /// Segments that are only in memory.
        segments: u64,
        /// Bytes of memory that they take.
        bytes: u64,
        /// What each disk said.
        reasons: String,
    },
    /// A thread could not be started.
    #[error("a thread of the store cannot be started: {0}")]
    Thread(#[source] io::Error),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Closed segments of a node on its disks.
///
/// To start: [`open`](DiskStore::open), give it to [`Log::set_store`], [`attach`](DiskStore::attach) the log, then
/// [`Log::recover`] with what was found, then [`start`](DiskStore::start) the threads. To stop: close the log's segments,
/// [`flush_all`](DiskStore::flush_all), [`StoreThreads::stop`].
pub struct DiskStore {
    core: Arc<Core<Weak<Log>>>,
}

impl DiskStore {
    /// Opens the store on `disks`, whose order must not change between starts only in so far as a disk's number in a
    /// [`Location`] is its place in it: nothing on disk depends on it. Reads what is there.
    pub fn open(
        config: StoreConfig,
        disks: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<(Arc<DiskStore>, StoreRecovery), StoreError> {
        let (core, recovery) = Core::open(config, disks, clock, random, None)?;
        Ok((Arc::new(DiskStore { core: Arc::new(core) }), recovery))
    }

    /// The same after a kill, with the arena of the process before: `in_memory` are its segments. What is damaged and not among them was not torn by a loss of power,
    /// and stays, to be [mended](crate::Mender).
    pub fn open_after_kill(
        config: StoreConfig,
        disks: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        in_memory: &HashSet<SegmentId>,
    ) -> Result<(Arc<DiskStore>, StoreRecovery), StoreError> {
        let (core, recovery) = Core::open(config, disks, clock, random, Some(in_memory))?;
        Ok((Arc::new(DiskStore { core: Arc::new(core) }), recovery))
    }

    /// Others have what was in these places, or are about to rebuild it: the next start need not take it for lost once more. Blocks.
    pub fn others_have(&self, lacks: &[Lack]) -> io::Result<()> {
        let disks = (0..).zip(&self.core.disks);
        disks.filter(|(number, _)| lacks.iter().any(|lack| lack.disk == *number)).try_for_each(|(number, part)| {
            let of_disk = lacks.iter().copied().filter(|lack| lack.disk == number);
            recover::note(&part.containers.folder, recover::KNOWN, of_disk.map(|lack| (lack.container, lack.at)))
        })
    }

    /// Tells the store whose segments it keeps. Once; a second log is ignored. The log is not kept alive.
    pub fn attach(&self, log: &Arc<Log>) {
        let _ = self.core.attach(Arc::downgrade(log));
    }

    /// Tells the store what comes before its own writes to its disks. Once; others are ignored.
    pub fn give_way(&self, to: Arc<dyn ComesFirst>) {
        self.core.give_way(to);
    }

    /// Starts the threads: one that writes to each disk, those that read from it, and the keeper.
    pub fn start(&self) -> Result<StoreThreads, StoreError> {
        threads::start(&self.core)
    }

    /// Does what can be done now, once, on the calling thread: for a simulator, in place of the threads.
    pub fn step(&self) -> Step {
        self.core.step()
    }

    /// Writes every closed segment, syncs, and ends the open containers with footers: a graceful stop. With or without
    /// the threads. What cannot be written is still in memory, and the error says why.
    pub fn flush_all(&self) -> Result<(), StoreError> {
        self.core.flush_all()
    }

    /// Nobody has written or read for long: segments that are on disk, and that no reader was on its way to in the last
    /// seconds, leave memory. On the keeper's thread.
    pub fn evict_unused(&self) {
        self.core.evict_unused();
    }

    /// All virtual logs were replayed: what is left of segments that were being written through is of nobody. Its space is
    /// given back.
    pub fn replayed(&self) {
        self.core.end_replay();
    }

    /// The containers that there are, with their disks.
    pub(crate) fn containers(&self) -> Vec<(u16, u64)> {
        self.core.containers()
    }

    /// Looks whether a container reads back as what is known of it ([`Core::look_at`]). Blocks on the disk.
    pub(crate) fn look_at(&self, disk: u16, container: u64) -> io::Result<recover::Looked> {
        self.core.look_at(disk, container)
    }

    /// What it is doing, and how its disks are.
    pub fn status(&self) -> StoreStatus {
        self.core.status()
    }
}

impl SegmentStore for DiskStore {
    fn closed(&self, segment: Arc<Segment>) {
        self.core.closed(segment);
    }
    fn want_space(&self, bytes: u64) {
        self.core.want_space(bytes);
    }
    fn load(&self, id: SegmentId, at: Location) {
        self.core.load(id, at);
    }
    fn read_image(&self, at: Location) -> io::Result<AlignedBuffer> {
        self.core.read_image(at)
    }
    fn write_again(&self, entry: ContainerEntry, image: &AlignedBuffer, was: Location) -> io::Result<Location> {
        self.core.write_again(entry, image, was)
    }
    fn note_lost(&self, at: Location) -> io::Result<()> {
        let disk =
            self.core.disks.get(usize::from(at.disk)).ok_or_else(|| io::Error::other("there is no such disk"))?;
        recover::note(&disk.containers.folder, recover::LOST, [(at.container, at.offset)].into_iter())
    }
    fn came_back(&self, segment: &Arc<Segment>) {
        self.core.clean.lock().add(segment);
    }
    fn release(&self, id: SegmentId, at: Location) {
        self.core.release(id, at);
    }
    fn dropped(&self, id: SegmentId) {
        self.core.dropped(id);
    }
    fn reading(&self, id: SegmentId) {
        self.core.reading(id);
    }
    fn let_go(&self, stream: StreamId, streamlet: StreamletId, lane: LaneId, ordinal: u64) {
        self.core.let_go((stream, streamlet, lane), ordinal);
    }
    fn lacks_some(&self) -> bool {
        self.core.lacks_some
    }
}

impl WriteThrough for DiskStore {
    fn begin(&self, segment: &Segment) -> Option<Box<dyn Extent>> {
        self.core.begin_through(segment)
    }
    fn replay(
        &self,
        id: SegmentId,
        restored: Restored,
        restore: &mut dyn FnMut(&[u8]) -> Result<Restored, RestoreError>,
    ) -> Result<Option<u64>, ReplayExtentError> {
        self.core.replay_through(id, restored, restore)
    }
    fn gone(&self, id: SegmentId) {
        self.core.forget_restored(id);
    }
}
