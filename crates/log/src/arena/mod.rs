//! The arena: all segment memory of the node, one file in shared memory, handed out in blocks: powers of two of small ones, which
//! have 64 or 36 KiB ([`BlockSize`]).
//!
//! The file outlives the process, which is what `durability = process` rests on. Its block table is authoritative:
//! only what the table names as a segment is ever looked at as one. Layout: [`kera_format::arena`].
//!
//! Lanes take blocks for segments that are written, under their lock; the loader takes blocks for segments that come back
//! from disk. An eighth of the arena is kept for each of the two, so that neither starves the other, and a 64th for the
//! system's own streams, so that readers can go on recording how far they are when writers have filled the rest. Whoever
//! drops the last handle of a block gives it back, on any thread.

mod block;
mod buddy;
mod give_back;
mod memory;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use kera_format::arena::{ARENA_TABLE_OFFSET, ARENA_VERSION_FIELD, ArenaHeader, BlockSize, TableEntry};
use kera_format::{FormatError, limits};
use parking_lot::Mutex;

use crate::attach::{self, AttachedSegment, SetAside};
use crate::waiters::{Observer, SpaceVersion, Waiters, Wake};
pub(crate) use block::Block;
pub use block::LoadBuffer;
use buddy::Buddy;
use give_back::Lows;
use memory::SharedMemory;

/// The least segment memory that can be configured.
const BYTES_MIN: u64 = 1 << 20;
/// And the most.
pub const BYTES_MAX: u64 = 1 << 40;
/// One part in this many is kept for writers, and one for loads.
const RESERVE_SHARE: u64 = 8;
/// One part in this many, and at most so many bytes, is kept for the system's own streams.
const SYSTEM_SHARE: u64 = 64;
const SYSTEM_BYTES_MAX: u64 = 4 << 20;
/// Free memory that [`Arena::warm`] keeps touched: this share of the arena, and at most so many bytes.
const WARM_SHARE: u64 = 8;
const WARM_BYTES_MAX: u64 = 512 << 20;
/// What is touched at a time of a block that is filled from its start: it takes a tenth of a millisecond, a whole block of
/// 16 MiB would take eight. Lanes that fill at the same pace need their next blocks at the same time, and one thread would
/// stand still for all of them.
const TOUCH_BYTES: usize = 256 << 10;
/// The same of a block that quiet lanes get, which most of them never fill: a hundred thousand of them would have 5 GiB touched
/// for nothing.
const TOUCH_BYTES_SMALL: usize = 16 << 10;
/// The first piece of such a block if it is a roomy one: there are nearly twice as many of them in an arena as of plain ones.
const TOUCH_BYTES_FIRST: usize = 8 << 10;
/// From how many bytes on a block is no such one: those of 64, 36 and 72 KiB are.
const TOUCH_LARGE: usize = 128 << 10;
/// What [`Arena::warm`] touches at a time: 2 MiB of plain blocks, and a little more than one of roomy ones.
const WARM_ORDER: u8 = 5;

/// Where the arena is and how large.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// The file, in shared memory (`/dev/shm`) or, slower and less safe, on a disk.
    pub path: PathBuf,
    /// Bytes of segment memory, from 1 MiB to 1 TiB; rounded down to whole blocks.
    pub bytes: u64,
    /// The node it belongs to: another node's arena is refused.
    pub node: [u8; 16],
}

/// What [`Arena::create_or_attach`] found.
#[derive(Debug)]
pub enum Attach {
    /// There was no file, or only a half-made one: the arena is empty. Everything that was only in memory is gone.
    Created,
    /// The file of an earlier process was there.
    Attached {
        /// Its segments, every chunk header verified, and every payload of open ones.
        segments: Vec<AttachedSegment>,
        /// What could not be verified, and is kept but not served.
        set_aside: Vec<SetAside>,
        /// Whether the machine has not been restarted since: only then is the memory known to be as it was left.
        same_boot: bool,
        /// The file's size when it is not the configured one: the size asked for comes into force when the node is
        /// stopped gracefully and started again.
        kept_bytes: Option<u64>,
    },
}

/// Why there is no arena. None is worth a retry without a change.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The configured size is not usable.
    #[error("arena_bytes is {bytes}, allowed is {least} to {most}")]
    Bytes {
        /// What was asked for.
        bytes: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The operating system said no.
    #[error("arena {path}: cannot {action}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Another process uses the file.
    #[error("arena {path}: another process has it; stop that one first")]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A file is there that is not this node's arena. It is left as it is: it may hold acknowledged records.
    #[error(
        "arena {path}: {reason}; move the file away to start with an empty arena (records that are only in it stay in it)"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Another build of KerA has made the arena in a version that this one does not know. It is left as it is.
    #[error(
        "arena {path}: it has version {found} and this build knows 1 and 2; it may hold records that are nowhere else"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
}

/// No block of the size asked for: give way until one is given back. Or no memory of the machine for one: give way until there may be some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaFull {
    /// What was needed.
    pub bytes: u64,
    /// For [`Arena::wait_for_space`]: the state in which there was none.
    pub seen: SpaceVersion,
}

impl ArenaFull {
    /// Whether there are blocks, and the machine has no memory for one: the file system of the arena is full.
    pub fn lacks_memory(&self) -> bool {
        self.seen.of_memory
    }
}

/// How full the arena is. Bytes count whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaStats {
    /// All segment memory.
    pub bytes: u64,
    /// In blocks that are in use.
    pub used_bytes: u64,
    /// Of those, in blocks that hold segments loaded back from disk.
    pub loaded_bytes: u64,
    /// Of those, in blocks that failed verification when the arena was attached.
    pub set_aside_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Of those, what only the system's own streams get. There may be less that is free.
    pub kept_for_system_bytes: u64,
    /// Of the free bytes, those touched before: handed out without a page fault.
    pub warm_free_bytes: u64,
    /// Of the free bytes, those that may have memory behind them, or part of it.
    pub held_free_bytes: u64,
    /// The largest block that could be handed out now.
    pub largest_free_bytes: u64,
    /// Backed by memory of the machine, free or not: what the arena really takes.
    pub resident_bytes: u64,
    /// Blocks that had to be touched when they were handed out, since the arena was opened.
    pub cold_allocations: u64,
    /// Free blocks whose memory was given back to the system, in bytes, since the arena was opened.
    pub given_back_bytes: u64,
    /// Times that the machine had no memory for a block: the shared memory's file system is full.
    pub unbacked_allocations: u64,
    /// Whether it had none since the last [turn](Arena::give_back): of what is free no more can be used than what is warm.
    pub lacks_memory: bool,
}

/// How a block will be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filling {
    /// Soon, most of it: memory that was touched before is worth having.
    Whole,
    /// Slowly, or not far: memory that was touched before is left to others.
    Sparse,
}

/// Who takes a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A segment that is written.
    Write,
    /// A segment of a stream of the system's own.
    System,
    /// A segment that comes back from disk.
    Load,
    /// Nobody: it did not verify, and what is in it may still be of use. Never given back.
    SetAside,
}

struct State {
    buddy: Buddy,
    write_blocks: u32,
    system_blocks: u32,
    load_blocks: u32,
    set_aside_blocks: u32,
    /// Changes with each block that comes back, for those who found none.
    version: u64,
    waiters: Waiters,
    /// Changes when the machine may have memory again, for those for whose blocks it had none. Not with what they give back themselves since it had none: each would
    /// wake the others, which find nothing either, for as long as that lasts.
    memory_version: u64,
    memory_waiters: Waiters,
    lows: Lows,
}

/// All segment memory of the node.
pub struct Arena {
    memory: SharedMemory,
    header: ArenaHeader,
    path: PathBuf,
    state: Mutex<State>,
    frozen: AtomicBool,
    /// The file system does not take memory back.
    keeps_memory: AtomicBool,
    /// The machine had no memory for a block since the last turn.
    lacks_memory: AtomicBool,
    asked: AtomicU64,
    asked_whole: AtomicU64,
    cold_allocations: AtomicU64,
    given_back_bytes: AtomicU64,
    unbacked_allocations: AtomicU64,
}

impl Arena {
    /// Opens the arena file, or makes it. A file of the same node is attached and verified: chunk headers of every segment,
    /// and payloads of open segments (of all segments when the machine was restarted since). See `docs/notes/attach.md`.
    ///
    /// One that is made has plain blocks.
    pub fn create_or_attach(config: ArenaConfig) -> Result<(Arc<Arena>, Attach), ArenaError> {
        Arena::create_or_attach_with(config, BlockSize::Plain)
    }

    /// The same with blocks of a size, if it is made: one that is attached keeps the size that it has.
    pub fn create_or_attach_with(config: ArenaConfig, blocks: BlockSize) -> Result<(Arc<Arena>, Attach), ArenaError> {
        if !(BYTES_MIN..=BYTES_MAX).contains(&config.bytes) {
            return Err(ArenaError::Bytes { bytes: config.bytes, least: BYTES_MIN, most: BYTES_MAX });
        }
        let io = |action| {
            let path = config.path.clone();
            move |error| ArenaError::Io { path, action, error }
        };
        let file = memory::open(&config.path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ArenaError::Busy { path: config.path.clone() },
            _ => io("open it")(error),
        })?;
        let boot_id = kera_env::boot_id();
        let found = existing_header(&file, &config)?;
        let blocks = found.map_or(blocks, |found| found.blocks);
        let bytes = config.bytes / blocks.bytes() as u64 * blocks.bytes() as u64;
        let header = found.unwrap_or(ArenaHeader { node: config.node, boot_id, blocks, bytes });
        let file_bytes = header.file_bytes();
        let there = file.metadata().map_err(io("read its size"))?.len();
        if found.is_some() && there < file_bytes {
            let reason = format!("its header says {file_bytes} bytes and it has {there}");
            return Err(ArenaError::Foreign { path: config.path, reason });
        }
        if found.is_none() {
            file.set_len(0).and_then(|()| file.set_len(file_bytes)).map_err(io("set its size"))?;
        }
        let memory = SharedMemory::map(file, file_bytes as usize).map_err(io("map it"))?;
        let table_end = ARENA_TABLE_OFFSET + header.bytes / header.blocks.bytes() as u64;
        memory
            .populate(0, (table_end as usize).next_multiple_of(4096))
            .map_err(io("get memory for its block table"))?;
        let arena = Arena::over(memory, header, config.path);
        if found.is_none() {
            arena.write_header();
            arena.free_all_but(&[], false);
            return Ok((Arc::new(arena), Attach::Created));
        }
        Ok(arena.attach(header.boot_id == boot_id, (header.bytes != bytes).then_some(header.bytes)))
    }

    /// Whether there is an arena of this node that has outlived its process: the machine has not been started since. An error
    /// if there is a file that could not be attached: what is in it is not lost, so nobody may be told that it is.
    pub fn has_survived(path: &Path, node: [u8; 16]) -> Result<bool, ArenaError> {
        let config = ArenaConfig { path: path.to_owned(), bytes: 0, node };
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(ArenaError::Io { path: config.path, action: "open it", error }),
        };
        let header = existing_header(&file, &config)?;
        Ok(header.is_some_and(|header| header.boot_id == kera_env::boot_id()))
    }

    fn over(memory: SharedMemory, header: ArenaHeader, path: PathBuf) -> Arena {
        let state = State {
            buddy: Buddy::new((header.bytes / header.blocks.bytes() as u64) as u32, header.blocks.order_max()),
            write_blocks: 0,
            system_blocks: 0,
            load_blocks: 0,
            set_aside_blocks: 0,
            version: 0,
            waiters: Waiters::default(),
            memory_version: 0,
            memory_waiters: Waiters::default(),
            lows: Lows::default(),
        };
        Arena {
            memory,
            header,
            path,
            state: Mutex::new(state),
            frozen: AtomicBool::new(false),
            keeps_memory: AtomicBool::new(false),
            lacks_memory: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            asked_whole: AtomicU64::new(0),
            cold_allocations: AtomicU64::new(0),
            given_back_bytes: AtomicU64::new(0),
            unbacked_allocations: AtomicU64::new(0),
        }
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        let block = self.small_bytes() as u64;
        let resident_bytes = self.memory.resident_bytes();
        let state = self.state.lock();
        ArenaStats {
            bytes: self.header.bytes,
            used_bytes: self.header.bytes - u64::from(state.buddy.free_blocks()) * block,
            loaded_bytes: u64::from(state.load_blocks) * block,
            set_aside_bytes: u64::from(state.set_aside_blocks) * block,
            free_bytes: u64::from(state.buddy.free_blocks()) * block,
            kept_for_system_bytes: u64::from(self.kept_for_system(&state)) * block,
            warm_free_bytes: u64::from(state.buddy.warm_free_blocks()) * block,
            held_free_bytes: u64::from(state.buddy.held_free_blocks()) * block,
            largest_free_bytes: state.buddy.largest_free().map_or(0, |k| block << k),
            resident_bytes,
            cold_allocations: self.cold_allocations.load(Ordering::Relaxed),
            given_back_bytes: self.given_back_bytes.load(Ordering::Relaxed),
            unbacked_allocations: self.unbacked_allocations.load(Ordering::Relaxed),
            lacks_memory: self.lacks_memory.load(Ordering::Relaxed),
        }
    }

    /// Whether more than half of it is taken: time to be thrifty, for what is freed by then has to go through a disk first.
    pub(crate) fn is_short(&self) -> bool {
        let free = u64::from(self.state.lock().buddy.free_blocks()) * self.small_bytes() as u64;
        free < self.header.bytes / 2
    }

    /// Bytes of all segment memory.
    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    /// Bytes of a small block.
    #[inline]
    fn small_bytes(&self) -> usize {
        self.header.blocks.bytes()
    }

    /// Small blocks of the arena.
    fn blocks(&self) -> u32 {
        (self.header.bytes / self.small_bytes() as u64) as u32
    }

    /// The smallest order of block that holds `bytes`.
    fn order_of(&self, bytes: usize) -> u8 {
        bytes.div_ceil(self.small_bytes()).max(1).next_power_of_two().trailing_zeros() as u8
    }

    /// Bytes of the largest block that has at most so many, or of a small one.
    pub(crate) fn block_bytes_within(&self, bytes: u64) -> u64 {
        let small = self.small_bytes() as u64;
        small << (bytes / small).max(1).ilog2()
    }

    /// Bytes of the block that so many bytes take.
    pub(crate) fn block_bytes(&self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(limits::SEGMENT_BYTES_MAX);
        (self.small_bytes() as u64) << self.order_of(bytes)
    }

    /// How often a block was asked for since the arena was opened: while it grows the node needs memory, whoever for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Of those, how often by somebody who fills it: while it grows, memory is worth touching ahead.
    pub fn asked_whole(&self) -> u64 {
        self.asked_whole.load(Ordering::Relaxed)
    }

    /// Touches up to `budget_bytes` of free blocks ahead of time, so that appends do not pay for page faults. Returns the
    /// bytes touched, zero when enough is warm or the machine has no memory for more. For the maintenance thread.
    pub fn warm(&self, budget_bytes: u64) -> u64 {
        let (Ok(touched) | Err(touched)) = self.warm_if_there_is_memory(budget_bytes);
        touched
    }

    /// The same, for a thread of whoever is about to need much.
    ///
    /// # Errors
    /// The machine has no memory for more: with what was touched until then. Each try takes a block away and gives it back, which wakes all who found none: it is not to be tried again and
    /// again.
    pub fn warm_if_there_is_memory(&self, budget_bytes: u64) -> Result<u64, u64> {
        let enough = self.warm_blocks();
        let mut touched = 0;
        while touched < budget_bytes {
            let cold = {
                let mut state = self.state.lock();
                if state.buddy.warm_free_blocks() >= enough {
                    break;
                }
                state.buddy.allocate_cold(WARM_ORDER)
            };
            let Some((block, order)) = cold else { break };
            let populated = self.populate(block, order);
            let mut state = self.state.lock();
            if populated.is_ok() {
                state.buddy.set_warm(block, 1 << order);
            }
            state.buddy.free(block, order);
            let wakes = state.came_back(populated.is_ok());
            drop(state);
            wakes.into_iter().for_each(Wake::call);
            if populated.is_err() {
                return Err(touched);
            }
            touched += (self.small_bytes() as u64) << order;
        }
        Ok(touched)
    }

    /// Free blocks that [`warm`](Arena::warm) keeps touched.
    fn warm_blocks(&self) -> u32 {
        ((self.header.bytes / WARM_SHARE).min(WARM_BYTES_MAX) / self.small_bytes() as u64) as u32
    }

    /// Calls `observer` once when a block is given back; who had one [without memory](ArenaFull::lacks_memory) when there may be some: when a block comes back that has some, when free memory goes
    /// back to the machine, and at each [turn](Arena::give_back), for what others of the machine have left nobody tells. False, and no call, if that was since `seen`: try
    /// again instead.
    pub fn wait_for_space(&self, seen: SpaceVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        let mut guard = self.state.lock();
        let State { version, waiters, memory_version, memory_waiters, .. } = &mut *guard;
        let (now, waiters) = if seen.of_memory { (*memory_version, memory_waiters) } else { (*version, waiters) };
        if now != seen.version {
            return false;
        }
        waiters.push(observer, token);
        true
    }

    /// From here on blocks that are dropped stay in the table: what the file holds is left for the next process to attach.
    /// [`crate::Log`] does this when it is dropped.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Removes the file: everything in it is elsewhere. The last step of a graceful stop. The memory stays usable until the
    /// arena is dropped.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// A block of at least `bytes` (at most 16 MiB). Its memory is there: writing to it raises no signal.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize, purpose: Purpose) -> Result<Block, ArenaFull> {
        self.allocate_with(bytes, usize::MAX, (purpose, Filling::Whole))
    }

    /// A block of at least `bytes` of which the first `needed` have memory, or all if it has fewer.
    pub(crate) fn allocate_with(
        self: &Arc<Self>,
        bytes: usize,
        needed: usize,
        (purpose, filling): (Purpose, Filling),
    ) -> Result<Block, ArenaFull> {
        let block = self.allocate_to_fill(bytes, purpose, filling)?;
        let needed = needed.min(block.bytes());
        if block.touched() >= needed {
            return Ok(block);
        }
        match block.touch(0, needed) {
            Ok(()) => Ok(block),
            Err(full) => {
                drop(block);
                self.allocate_warm(bytes, purpose, filling, full)
            }
        }
    }

    /// A block that was touched, wherever there is one: others get no memory.
    #[cold]
    fn allocate_warm(
        self: &Arc<Self>,
        bytes: usize,
        purpose: Purpose,
        filling: Filling,
        full: ArenaFull,
    ) -> Result<Block, ArenaFull> {
        let warm = self.take(bytes, (purpose, filling), Buddy::allocate_warm);
        warm.map_err(|_| ArenaFull { bytes: bytes as u64, ..full })
    }

    /// A block of at least `bytes` of which only the start is sure to have memory: before more is written,
    /// [`Block::touch`] has to say that it is there.
    pub(crate) fn allocate_to_fill(
        self: &Arc<Self>,
        bytes: usize,
        purpose: Purpose,
        filling: Filling,
    ) -> Result<Block, ArenaFull> {
        debug_assert!(bytes <= limits::SEGMENT_BYTES_MAX);
        self.asked.fetch_add(1, Ordering::Relaxed);
        if filling == Filling::Whole {
            self.asked_whole.fetch_add(1, Ordering::Relaxed);
        }
        let taken = match filling {
            Filling::Whole => self.take(bytes, (purpose, filling), Buddy::allocate),
            Filling::Sparse => self.take(bytes, (purpose, filling), Buddy::allocate_sparse),
        };
        match taken {
            Err(full) if full.lacks_memory() => self.allocate_warm(bytes, purpose, filling, full),
            taken => taken,
        }
    }

    fn take(
        self: &Arc<Self>,
        bytes: usize,
        (purpose, filling): (Purpose, Filling),
        which: fn(&mut Buddy, u8) -> Option<u32>,
    ) -> Result<Block, ArenaFull> {
        let order = self.order_of(bytes);
        let mut state = self.state.lock();
        let full = ArenaFull { bytes: bytes as u64, seen: SpaceVersion { version: state.version, of_memory: false } };
        if state.buddy.free_blocks() < (1 << order) + self.kept_blocks(&state, purpose, 1 << order) {
            return Err(full);
        }
        let block = which(&mut state.buddy, order).ok_or(full)?;
        state.count(purpose, 1 << order, true);
        let cold = !state.buddy.all_warm(block, order);
        let held = state.buddy.held_free_blocks();
        state.lows.note(if cold && filling == Filling::Whole { 0 } else { held });
        self.table(block).store(TableEntry::Reserved(order).to_byte(), Ordering::Release);
        drop(state);
        let handle = Block::new(Arc::clone(self), block, order, purpose, !cold);
        if cold {
            self.cold_allocations.fetch_add(1, Ordering::Relaxed);
            handle.touch(0, 1)?;
        }
        Ok(handle)
    }

    /// Has memory put behind a part of a block that is in use, whole pages counted in bytes from its start, behind what was
    /// touched or written before.
    fn touch(&self, block: u32, from: usize, to: usize) -> Result<(), ArenaFull> {
        let first = block + (from / self.small_bytes()) as u32;
        let (whole, some) = (block + (to / self.small_bytes()) as u32, block + to.div_ceil(self.small_bytes()) as u32);
        // Before it is tried: what comes meanwhile is not to be waited for.
        let version = self.state.lock().memory_version;
        match self.memory.populate(self.offset(block) + from, to - from) {
            Ok(()) => {
                let mut state = self.state.lock();
                state.buddy.set_warm(first, whole - first);
                state.buddy.set_held(whole, some - whole);
                Ok(())
            }
            Err(error) => {
                self.unbacked_allocations.fetch_add(1, Ordering::Relaxed);
                let bytes = to - from;
                if !self.lacks_memory.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, bytes, "no memory behind an arena block: the arena's file system is full");
                }
                Err(ArenaFull { bytes: bytes as u64, seen: SpaceVersion { version, of_memory: true } })
            }
        }
    }

    /// Blocks that have to stay free for others when so many are taken. The system's streams leave nothing to others as
    /// long as they stay within their own share, and are like any writer beyond it.
    fn kept_blocks(&self, state: &State, purpose: Purpose, taken: u32) -> u32 {
        let reserve = (self.header.bytes / RESERVE_SHARE / self.small_bytes() as u64) as u32;
        let for_system = self.kept_for_system(state);
        match purpose {
            Purpose::System if taken <= for_system => 0,
            Purpose::System => reserve.saturating_sub(state.load_blocks),
            Purpose::Write => reserve.saturating_sub(state.load_blocks) + for_system,
            Purpose::Load | Purpose::SetAside => reserve.saturating_sub(state.write_blocks) + for_system,
        }
    }

    /// Blocks that stay free for the system's streams, which have not taken so many of their share.
    fn kept_for_system(&self, state: &State) -> u32 {
        let share = (self.header.bytes / SYSTEM_SHARE).min(SYSTEM_BYTES_MAX) / self.small_bytes() as u64;
        (share as u32).saturating_sub(state.system_blocks)
    }

    /// Gives a block back, unless the arena is frozen. `has_memory`: not because the machine had none for it.
    fn give_back_block(&self, block: u32, order: u8, purpose: Purpose, has_memory: bool) {
        if purpose == Purpose::SetAside || self.frozen.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        self.table(block).store(TableEntry::Free.to_byte(), Ordering::Release);
        state.buddy.free(block, order);
        state.count(purpose, 1 << order, false);
        let wakes = state.came_back(has_memory);
        drop(state);
        wakes.into_iter().for_each(Wake::call);
    }

    /// Gives the end of a block back: it keeps `to`.
    fn give_end_back(&self, block: u32, from: u8, to: TableEntry, to_order: u8, purpose: Purpose) {
        if self.frozen.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        self.table(block).store(to.to_byte(), Ordering::Release);
        state.buddy.shrink(block, from, to_order);
        state.count(purpose, (1 << from) - (1 << to_order), false);
        let wakes = state.came_back(true);
        drop(state);
        wakes.into_iter().for_each(Wake::call);
    }

    fn populate(&self, block: u32, order: u8) -> io::Result<()> {
        self.memory.populate(self.offset(block), self.small_bytes() << order)
    }

    /// Bytes from the start of the file.
    fn offset(&self, block: u32) -> usize {
        self.header.blocks_offset() as usize + block as usize * self.small_bytes()
    }

    fn table(&self, block: u32) -> &AtomicU8 {
        assert!(block < self.blocks());
        // SAFETY: a byte of the table, within the mapping (asserted above), only ever accessed as an atomic.
        unsafe { AtomicU8::from_ptr(self.memory.base().as_ptr().add(ARENA_TABLE_OFFSET as usize + block as usize)) }
    }

    /// The magic comes last: a file without it is half-made and made again.
    fn write_header(&self) {
        let page = self.header.encode();
        let base = self.memory.base().as_ptr();
        // SAFETY: the header page is within the mapping and only accessed here, before the arena is shared.
        unsafe {
            base.add(8).copy_from_nonoverlapping(page.as_ptr().add(8), page.len() - 8);
            let magic = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
            AtomicU64::from_ptr(base.cast()).store(magic.to_le(), Ordering::Release);
        }
    }

    /// Puts every block on the free list that is not in one of `used`, given as (first, blocks) in order. `held`: there may
    /// be memory behind any of them.
    fn free_all_but(&self, used: &[(u32, u32)], held: bool) {
        let mut state = self.state.lock();
        let blocks = self.blocks();
        if held {
            state.buddy.set_held(0, blocks);
        }
        let mut next = 0;
        for &(first, count) in used.iter().chain(&[(blocks, 0)]) {
            while next < first {
                let aligned = (next.trailing_zeros() as u8).min(self.header.blocks.order_max());
                let order = (0..=aligned).rev().find(|&k| next + (1 << k) <= first).unwrap_or(0);
                state.buddy.free(next, order);
                next += 1 << order;
            }
            next = first + count;
        }
    }

    /// Reads the block table of an earlier process and verifies what it names.
    fn attach(self, same_boot: bool, kept_bytes: Option<u64>) -> (Arc<Arena>, Attach) {
        let (mut used, mut found, mut set_aside) = (Vec::new(), Vec::new(), Vec::new());
        let (blocks, order_max) = (self.blocks(), self.header.blocks.order_max());
        let mut block = 0;
        while block < blocks {
            let byte = self.table(block).load(Ordering::Acquire);
            let entry = TableEntry::from_byte(byte);
            let fits = |order: u8| order <= order_max && block % (1 << order) == 0 && block + (1 << order) <= blocks;
            let inner_free =
                |order: u8| (block + 1..block + (1 << order)).all(|b| self.table(b).load(Ordering::Relaxed) == 0);
            match entry {
                Some(TableEntry::Free) => block += 1,
                Some(TableEntry::Reserved(order)) if fits(order) && inner_free(order) => {
                    self.table(block).store(0, Ordering::Relaxed);
                    block += 1 << order;
                }
                Some(TableEntry::Segment(order)) if fits(order) && inner_free(order) => {
                    used.push((block, 1 << order));
                    found.push((block, order));
                    block += 1 << order;
                }
                _ => {
                    used.push((block, 1));
                    let reason =
                        format!("block {block} of the table is {byte:#04x}, which does not fit its neighbours");
                    let offset = self.offset(block) as u64;
                    set_aside.push(SetAside { offset, bytes: self.small_bytes() as u64, id: None, reason });
                    block += 1;
                }
            }
        }
        self.free_all_but(&used, true);
        let arena = Arc::new(self);
        arena.state.lock().write_blocks = found.iter().map(|&(_, order)| 1u32 << order).sum();
        let handles =
            found.iter().map(|&(b, order)| Block::new(Arc::clone(&arena), b, order, Purpose::Write, false)).collect();
        let (segments, failed) = attach::verify_blocks(handles, !same_boot);
        for (block, id, reason) in failed {
            set_aside.push(SetAside { offset: block.offset() as u64, bytes: block.bytes() as u64, id, reason });
            arena.state.lock().count(Purpose::Write, (block.bytes() / arena.small_bytes()) as u32, false);
            block.set_aside();
        }
        let bytes: u64 = set_aside.iter().map(|s| s.bytes).sum();
        arena.state.lock().set_aside_blocks = (bytes / arena.small_bytes() as u64) as u32;
        (arena, Attach::Attached { segments, set_aside, same_boot, kept_bytes })
    }
}

impl State {
    /// A block has come back, with memory or not: who is to be called for that, without the lock.
    #[inline]
    fn came_back(&mut self, has_memory: bool) -> [Wake; 2] {
        self.version += 1;
        let for_memory = if has_memory { self.memory_may_have_come() } else { Wake::default() };
        [self.waiters.take(), for_memory]
    }

    /// The same of who waits for memory.
    #[inline]
    fn memory_may_have_come(&mut self) -> Wake {
        self.memory_version += 1;
        self.memory_waiters.take()
    }

    fn count(&mut self, purpose: Purpose, blocks: u32, more: bool) {
        let count = match purpose {
            Purpose::Write => &mut self.write_blocks,
            Purpose::System => &mut self.system_blocks,
            Purpose::Load => &mut self.load_blocks,
            Purpose::SetAside => &mut self.set_aside_blocks,
        };
        *count = if more { *count + blocks } else { *count - blocks };
    }
}

/// The header of a file that is an arena of this node; `None` if the file is empty or half-made.
fn existing_header(file: &std::fs::File, config: &ArenaConfig) -> Result<Option<ArenaHeader>, ArenaError> {
    use std::os::unix::fs::FileExt;
    let mut page = [0; 80];
    let there = file.read_at(&mut page, 0);
    let there = there.map_err(|error| ArenaError::Io { path: config.path.clone(), action: "read it", error })?;
    if there < page.len() || page[..8] == [0; 8] {
        return Ok(None);
    }
    let foreign = |reason: String| ArenaError::Foreign { path: config.path.clone(), reason };
    let header = ArenaHeader::parse(&page).map_err(|error| match error {
        FormatError::BadField { field: ARENA_VERSION_FIELD, value: found, .. } => {
            ArenaError::OtherVersion { path: config.path.clone(), found }
        }
        other => foreign(other.to_string()),
    })?;
    if header.node != config.node {
        return Err(foreign("it belongs to another node".to_owned()));
    }
    Ok(Some(header))
}

#[cfg(test)]
mod tests;
