//! A virtual log as the rest of the node sees it: a sink that appenders fill and a writer that empties it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_env::{Clock, Disk, Folder, Random};
use kera_format::SegmentId;
use kera_log::{
    ChunkReference, DurabilitySink, Log, Observer, RestoreError, Restored, SinkError, SinkErrorKind, Ticket,
    WriteThrough,
};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::backlog::Backlog;
use crate::files::{self, Files, FilesConfig};
use crate::replay::{self, ReplayError, ReplayReport};
use crate::stats::{Counters, VirtualLogStats};
use crate::writer::Writer;

/// How long an idle writer sleeps at most before it looks after its files.
const IDLE: Duration = Duration::from_millis(500);
/// Neighbouring chunks of a segment become one reference up to this many bytes, or those of a block.
const MERGED_BYTES_MAX: usize = 1 << 20;
/// How long a replay waits for a block of the arena: the store only has to write a segment.
const ROOM: Duration = Duration::from_secs(60);

/// Settings of a virtual log. [`VirtualLogConfig::new`] has defaults that work.
#[derive(Clone, Debug)]
pub struct VirtualLogConfig {
    /// Its number in the node: part of its files' names.
    pub id: u32,
    /// The node's uuid: files of another node are refused.
    pub node: [u8; 16],
    /// Where its files are, below the disk's root.
    pub directory: String,
    /// Bytes of a file. A block that is larger gets a file of its own.
    pub file_bytes: u64,
    /// A block holds about this many bytes of chunks, and always at least one chunk.
    pub block_bytes_max: usize,
    /// References that may wait before appends are refused for a while. Each takes about 60 bytes.
    pub references_max: usize,
    /// Bytes of files above which slow lanes are asked to close the segments that keep the oldest one.
    pub keep_bytes: u64,
    /// Files that are kept to be used again; zero: none, and none is filled ahead.
    pub spares: usize,
    /// How long after a failure the next try is.
    pub retry_ms: u32,
    /// Start although blocks that were acknowledged cannot be read; they are lost, and reported.
    pub accept_damage: bool,
}

impl VirtualLogConfig {
    /// Files of 64 MiB, blocks of up to 4 MiB, about 1 GiB kept.
    pub fn new(id: u32, node: [u8; 16]) -> VirtualLogConfig {
        VirtualLogConfig {
            id,
            node,
            directory: "vlog".into(),
            file_bytes: 64 << 20,
            block_bytes_max: 4 << 20,
            references_max: 1 << 20,
            keep_bytes: 1 << 30,
            spares: 4,
            retry_ms: 500,
            accept_damage: false,
        }
    }
}

/// Why a virtual log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refused.
    #[error("{path}: {error}")]
    Disk {
        /// The file or directory.
        path: String,
        /// What the disk said.
        #[source]
        error: io::Error,
    },
}

/// Asked to close segments that keep old files: the log.
pub trait SegmentCloser: Send + Sync {
    /// Closes those of the segments that are open, so that they can be stored. Called on the writer's thread, without
    /// locks; may be called again for the same segments.
    fn close_segments(&self, ids: &[SegmentId]);
}

impl SegmentCloser for Log {
    fn close_segments(&self, ids: &[SegmentId]) {
        Log::close_segments(self, ids);
    }
}

/// What one turn of the writer did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ran {
    /// One commit is durable; there may be more to do.
    Wrote {
        /// Chunks in it.
        chunks: u64,
        /// Bytes written, padding of blocks included.
        bytes: u64,
    },
    /// Nothing waits.
    Idle,
    /// The disk failed, or its next try is not due. Everything that waits still does.
    Stuck {
        /// When the next try is due, on the clock's monotonic time.
        retry_at_us: u64,
    },
}

/// Waits for the arena to get a block back.
#[derive(Default)]
struct Room {
    freed: Mutex<bool>,
    changed: Condvar,
}

impl Room {
    /// False if nothing became free for long: nothing will.
    fn wait(&self) -> bool {
        let mut freed = self.freed.lock();
        if !*freed {
            self.changed.wait_for(&mut freed, ROOM);
        }
        std::mem::take(&mut *freed)
    }
}

impl Observer for Room {
    fn advanced(&self, _token: u64) {
        *self.freed.lock() = true;
        self.changed.notify_all();
    }
}

/// See the crate.
pub struct VirtualLog {
    config: VirtualLogConfig,
    clock: Arc<dyn Clock>,
    backlog: Backlog,
    writer: Mutex<Writer>,
    /// False: `trouble` says why. The only thing that an append looks at when all is well.
    healthy: AtomicBool,
    trouble: Mutex<Option<SinkError>>,
    closer: RwLock<Option<Arc<dyn SegmentCloser>>>,
    /// The block at which the closer was asked last.
    asked_at_block: AtomicU64,
    replayed: AtomicBool,
    counters: Counters,
}

impl VirtualLog {
    /// The numbers of the virtual logs that have files in a directory, blocks in them or not.
    pub fn numbers(disk: &dyn Disk, directory: &str) -> io::Result<BTreeSet<u32>> {
        files::numbers(disk, directory)
    }

    /// Opens the directory. Nothing is read but names; appends are taken after [`replay`](VirtualLog::replay). For one that is alone in its directory.
    pub fn open(
        config: VirtualLogConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Arc<VirtualLog>, OpenError> {
        let folder = Arc::new(Folder::new(disk, &config.directory));
        VirtualLog::open_in(folder, config, clock, random)
    }

    /// The same, of several in one folder, which takes the place of the directory in `config`: all of them have to be given the same one, for a sync of it that fails
    /// is told to one of them and counts for all.
    pub fn open_in(
        folder: Arc<Folder>,
        config: VirtualLogConfig,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Arc<VirtualLog>, OpenError> {
        let config = VirtualLogConfig { directory: folder.path().to_owned(), ..config };
        let files = FilesConfig {
            node: config.node,
            vlog: config.id,
            directory: config.directory.clone(),
            file_bytes: kera_format::vlog::pages(config.file_bytes as usize) as u64,
            spares: config.spares,
        };
        let files = Files::new(files, folder, random);
        files
            .disk()
            .create_dir_all(&config.directory)
            .map_err(|error| OpenError::Disk { path: config.directory.clone(), error })?;
        Ok(Arc::new(VirtualLog {
            clock,
            backlog: Backlog::new(config.block_bytes_max.min(MERGED_BYTES_MAX) as u32),
            writer: Mutex::new(Writer::new(files)),
            healthy: AtomicBool::new(true),
            trouble: Mutex::new(None),
            closer: RwLock::new(None),
            asked_at_block: AtomicU64::new(0),
            replayed: AtomicBool::new(false),
            counters: Counters::default(),
            config,
        }))
    }

    /// Gives every chunk on disk to `restore`, in the order in which they became durable; call it once, before the
    /// first append. Chunks may come that are in their lane anyway.
    ///
    /// Reading ends at the last whole block. What follows there was never acknowledged, for a block is written only
    /// after the one before is synced. If a block is missing or damaged and a later one is there, it was: that is an
    /// error, unless `accept_damage` is set.
    pub fn replay(
        &self,
        restore: &mut dyn FnMut(&[u8]) -> Result<Restored, RestoreError>,
    ) -> Result<ReplayReport, ReplayError> {
        let mut writer = self.writer.lock();
        let through = writer.through.target();
        let (report, next_block) = replay::replay(&mut writer.files, through, self.config.accept_damage, restore)?;
        writer.next_block = next_block;
        self.replayed.store(true, Ordering::Release);
        self.count_files(&writer);
        Ok(report)
    }

    /// [`replay`](VirtualLog::replay) into a log whose streams are there and whose segments have been recovered. When the
    /// arena is full it waits for the store to write segments out, and gives up if nothing becomes free for long.
    pub fn replay_into(&self, log: &Log) -> Result<ReplayReport, ReplayError> {
        let room = Arc::new(Room::default());
        let observer: Arc<dyn Observer> = Arc::clone(&room) as Arc<dyn Observer>;
        self.replay(&mut |chunk| {
            loop {
                match log.restore_chunk(self.config.id, chunk) {
                    Err(RestoreError::ArenaFull(full)) => {
                        if log.wait_for_space(full.seen, &observer, 0) && !room.wait() {
                            return Err(RestoreError::ArenaFull(full));
                        }
                    }
                    other => return other,
                }
            }
        })
    }

    /// Where large segments are written through to from now on (decision 0009), and where a replay finds them: call it
    /// before the replay. Without it all go into blocks.
    pub fn set_write_through(&self, through: Arc<dyn WriteThrough>) {
        self.writer.lock().through.set_target(through);
    }

    /// Who is asked to close segments when old files are kept by them for too long.
    pub fn set_closer(&self, closer: Arc<dyn SegmentCloser>) {
        *self.closer.write() = Some(closer);
    }

    /// Writes until [`stop`](VirtualLog::stop), then what is left, and returns: the writer thread's main function. If
    /// the disk does not take what is left, that stays unacknowledged.
    pub fn run(&self) {
        loop {
            let stopping = self.backlog.is_stopping();
            match self.run_once() {
                Ran::Wrote { .. } => {}
                Ran::Idle if stopping => return,
                Ran::Idle if self.writer.lock().files.fill_spare() => {}
                Ran::Idle => self.backlog.sleep(IDLE, false),
                Ran::Stuck { .. } if stopping => {
                    let (references, bytes) = self.writer.lock().held();
                    tracing::error!(
                        references,
                        bytes,
                        "stopped with chunks that the disk did not take; none is acknowledged"
                    );
                    return;
                }
                Ran::Stuck { retry_at_us } => {
                    let wait_us = retry_at_us.saturating_sub(self.clock.monotonic_us());
                    self.backlog.sleep(Duration::from_micros(wait_us.clamp(1_000, 1_000_000)), true);
                }
            }
        }
    }

    /// One turn of the writer: at most one block. For [`run`](VirtualLog::run), tests and a simulator.
    pub fn run_once(&self) -> Ran {
        assert!(self.replayed.load(Ordering::Acquire), "the virtual log is written before it is replayed");
        let mut writer = self.writer.lock();
        let safe = self.backlog.take_safe();
        let given_again = self.backlog.take_given_again();
        if !given_again.is_empty() {
            writer.files.set_aside(&given_again);
        }
        if !safe.is_empty() {
            writer.files.unpin(&safe);
            self.count_files(&writer);
        }
        if !writer.fill_batch(&self.backlog, self.config.block_bytes_max) {
            // Who has counted too much may say so only when all of it is written. Then nothing is appended, so no block comes after which
            // it would be taken back.
            self.recovered(&writer);
            return Ran::Idle;
        }
        self.count_held(&writer);
        if let Some(retry_at_us) = writer.retry_at_us
            && self.clock.monotonic_us() < retry_at_us
            && !self.backlog.is_stopping()
        {
            return Ran::Stuck { retry_at_us };
        }
        match writer.write_batch(self.config.id, &*self.clock) {
            Ok(written) => {
                writer.finish_batch(&self.backlog);
                self.count_held(&writer);
                writer.retry_at_us = None;
                self.counters.wrote(&written);
                self.recovered(&writer);
                writer.files.fill_spare();
                self.count_files(&writer);
                let pressing = self.pressing(&writer);
                drop(writer);
                self.ask_closer(&pressing);
                Ran::Wrote { chunks: written.chunks, bytes: written.block_bytes + written.through_bytes }
            }
            Err(error) => {
                let retry_at_us = self.clock.monotonic_us() + u64::from(self.config.retry_ms) * 1000;
                writer.retry_at_us = Some(retry_at_us);
                self.failed(&error);
                Ran::Stuck { retry_at_us }
            }
        }
    }

    /// Tells the writer to write what waits and return from [`run`](VirtualLog::run). Appends must have ended.
    pub fn stop(&self) {
        self.backlog.stop();
    }

    /// Counters and sizes. Waits for nothing: a disk that stands still must not hold up whoever looks at them.
    pub fn stats(&self) -> VirtualLogStats {
        let held = self.counters.held_references.load(Ordering::Relaxed);
        let held_bytes = self.counters.held_bytes.load(Ordering::Relaxed);
        let depth = self.backlog.depth();
        VirtualLogStats {
            pending_references: held + depth.references as u64,
            pending_bytes: held_bytes + depth.bytes,
            healthy: self.healthy.load(Ordering::Relaxed),
            ..self.counters.snapshot()
        }
    }

    fn count_held(&self, writer: &Writer) {
        let (references, bytes) = writer.held();
        self.counters.held_references.store(references as u64, Ordering::Relaxed);
        self.counters.held_bytes.store(bytes, Ordering::Relaxed);
    }

    fn count_files(&self, writer: &Writer) {
        let (files, bytes) = writer.files.usage();
        self.counters.files.store(files, Ordering::Relaxed);
        self.counters.file_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The segments that keep the oldest file too long. Asked once a file or so: closing takes effect with a delay.
    fn pressing(&self, writer: &Writer) -> Vec<SegmentId> {
        let blocks_apart = (self.config.file_bytes / self.config.block_bytes_max.max(1) as u64).max(1);
        if writer.next_block < self.asked_at_block.load(Ordering::Relaxed) + blocks_apart {
            return Vec::new();
        }
        let Some(segments) = writer.files.pressing(self.config.keep_bytes) else { return Vec::new() };
        self.asked_at_block.store(writer.next_block, Ordering::Relaxed);
        segments.iter().copied().collect()
    }

    fn ask_closer(&self, segments: &[SegmentId]) {
        if segments.is_empty() {
            return;
        }
        let closer = self.closer.read().clone();
        if let Some(closer) = closer {
            tracing::debug!(segments = segments.len(), "closing segments that keep an old file of the virtual log");
            closer.close_segments(segments);
        }
    }

    /// Refuses appends from now on and says why.
    fn failed(&self, error: &io::Error) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        let id = self.config.id;
        let (kind, reason) = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let advice = "free space, or shorten retention";
                (SinkErrorKind::Full, format!("the disk of virtual log {id} is full ({error}); {advice}"))
            }
            _ => (SinkErrorKind::Failed, format!("the disk of virtual log {id} fails ({error}); look at the disk")),
        };
        if self.healthy.swap(false, Ordering::Release) {
            tracing::error!("{reason}; chunks that must survive a loss of power are refused until it is well");
        }
        *self.trouble.lock() = Some(SinkError { kind, reason, retry_after_ms: self.config.retry_ms });
    }

    /// A block was written, or nothing waits: whatever was wrong is not any more, unless too much waits still.
    fn recovered(&self, writer: &Writer) {
        if self.healthy.load(Ordering::Relaxed) {
            return;
        }
        if writer.held().0 + self.backlog.depth().references > self.config.references_max / 2 {
            return;
        }
        *self.trouble.lock() = None;
        self.healthy.store(true, Ordering::Release);
        tracing::info!(vlog = self.config.id, "the virtual log takes chunks again");
    }

    /// So many references wait that their number, and not the arena, would be what fills the memory.
    fn overrun(&self, references: usize) {
        if self.healthy.swap(false, Ordering::Release) {
            let reason = format!("{references} chunks wait for the disk of virtual log {}", self.config.id);
            tracing::warn!("{reason}; more are refused until half of them are written");
            *self.trouble.lock() = Some(SinkError { kind: SinkErrorKind::Behind, reason, retry_after_ms: 20 });
        }
    }
}

impl DurabilitySink for VirtualLog {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let (ticket, depth) = self.backlog.push(reference);
        if depth.references > self.config.references_max {
            self.overrun(depth.references);
        }
        ticket
    }

    fn durable_through(&self) -> Ticket {
        self.backlog.durable_through()
    }

    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        self.backlog.wait(ticket, observer, token)
    }

    fn healthy(&self) -> Result<(), SinkError> {
        if self.healthy.load(Ordering::Acquire) {
            return Ok(());
        }
        // Between the flag and the reason there is an instant without one.
        self.trouble.lock().clone().map_or(Ok(()), Err)
    }

    fn virtual_log(&self) -> u32 {
        self.config.id
    }

    fn segment_safe(&self, id: SegmentId) {
        self.backlog.note_safe(id);
    }

    fn segment_given_again(&self, id: SegmentId) {
        self.backlog.note_given_again(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{ManualClock, MemoryDisk, SeededRandom};
    use kera_format::chunk::ChunkTarget;
    use kera_format::{
        ChunkBuilder, ChunkView, Compression, Durability, LaneId, Record, StreamId, StreamOptions, StreamletId,
    };
    use kera_log::{Arena, ArenaConfig, LogConfig};

    use crate::writer::LOOKED_AT;

    /// As many chunks that wait, of two streamlets in turns, so that no two are one reference.
    fn waiting(vlog: &Arc<VirtualLog>, arena: &tempfile::TempDir, count: u32) -> Arc<Log> {
        let arena = ArenaConfig { path: arena.path().join("arena"), bytes: 16 << 20, node: [7; 16] };
        let log = Log::new(LogConfig::default(), Arena::create_or_attach(arena).expect("an arena").0);
        log.set_sinks(Arc::new(vec![Arc::clone(vlog) as Arc<dyn DurabilitySink>]));
        let options = StreamOptions { streamlets: 2, durability: Durability::Power, ..StreamOptions::default() };
        let stream = log.create_stream(StreamId(7), options).expect("a stream");
        for streamlet in (0..count).map(|at| StreamletId(at % 2)) {
            let mut chunk = ChunkBuilder::default();
            chunk.push(&Record::value(b"a record"));
            let target = ChunkTarget { stream: StreamId(7), streamlet, ..ChunkTarget::default() };
            let chunk = chunk.seal(&target, Compression::None).expect("it fits");
            let lane = stream.streamlet(streamlet).and_then(|of| of.lane(LaneId(0))).expect("a lane");
            lane.append(&ChunkView::parse(&chunk).expect("a chunk"), 1).expect("appended");
        }
        log
    }

    /// A disk that stands still for a moment has a million wait, and each block takes a thousand of them.
    #[test]
    fn what_waits_behind_a_block_is_neither_moved_nor_summed_up_for_it() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
        let config = VirtualLogConfig { block_bytes_max: 1 << 10, ..VirtualLogConfig::new(1, [7; 16]) };
        let vlog = VirtualLog::open(config, disk, clock, random).expect("open");
        vlog.replay(&mut |_| Ok(Restored::Restored)).expect("nothing is there");
        let folder = tempfile::tempdir().expect("a folder");
        let _log = waiting(&vlog, &folder, 200);
        let last = || vlog.writer.lock().taken.back().map(std::ptr::from_ref);
        let (mut blocks, mut before) = (0, None);
        LOOKED_AT.set(0);
        while let Ran::Wrote { .. } = vlog.run_once() {
            blocks += 1;
            let is_there = last();
            before = before.or(is_there);
            assert!(is_there.is_none() || is_there == before, "block {blocks}");
            let writer = vlog.writer.lock();
            let waits: u64 = writer.taken.iter().map(|pending| u64::from(pending.reference.bytes)).sum();
            assert_eq!(writer.held(), (writer.taken.len(), waits));
        }
        assert!(blocks > 10 && before.is_some() && last().is_none(), "{blocks}");
        assert_eq!(LOOKED_AT.get(), 200 + blocks - 1, "each that is taken, and the one behind it");
    }

    #[test]
    fn who_says_late_that_too_much_waits_does_not_keep_the_log_from_taking_chunks() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let (clock, random) = (Arc::new(ManualClock::new(1)), Arc::new(SeededRandom::new(1)));
        let vlog = VirtualLog::open(VirtualLogConfig::new(1, [7; 16]), disk, clock, random).expect("open");
        vlog.replay(&mut |_| Ok(Restored::Restored)).expect("nothing is there");
        // All that it had counted is written by now.
        vlog.overrun(2);
        assert!(vlog.healthy().is_err());
        assert_eq!(vlog.run_once(), Ran::Idle);
        assert_eq!(vlog.healthy(), Ok(()));
    }
}
