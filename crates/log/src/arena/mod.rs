//! The arena: all segment memory of the node, one file in shared memory, handed out in blocks of 64 KiB to 16 MiB.
//!
//! The file outlives the process, which is what `durability = process` rests on. Its block table is authoritative:
//! only what the table names as a segment is ever looked at as one.

use std::path::PathBuf;
use std::sync::Arc;

use crate::attach::{AttachedSegment, SetAside};
use crate::waiters::{Observer, SpaceVersion};

/// Where the arena is and how large.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// The file, in shared memory (`/dev/shm`) or, slower and less safe, on a disk.
    pub path: PathBuf,
    /// Bytes of segment memory; rounded down to a multiple of 16 MiB (of 64 KiB below that). At least 1 MiB.
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
        error: std::io::Error,
    },
    /// A file is there that is not this node's arena. It is left as it is: it may hold acknowledged records.
    #[error("arena {path}: {reason}; move the file away to start with an empty arena (records that are only in it stay in it)")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

/// No block of the size asked for: give way until one is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaFull {
    /// What was needed.
    pub bytes: u64,
    /// For [`Arena::wait_for_space`]: the state in which there was none.
    pub seen: SpaceVersion,
}

/// How full the arena is. Bytes count whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaStats {
    /// All segment memory.
    pub bytes: u64,
    /// In blocks that are in use, by writers or by loads.
    pub used_bytes: u64,
    /// Of those, in blocks that hold segments loaded back from disk.
    pub loaded_bytes: u64,
    /// Of those, in blocks that failed verification when the arena was attached.
    pub set_aside_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// The largest block that could be handed out now.
    pub largest_free_bytes: u64,
    /// Backed by memory of the machine, free or not: what the arena really takes.
    pub resident_bytes: u64,
}

/// All segment memory of the node.
pub struct Arena {}

impl Arena {
    /// Opens the arena file, or makes it. A file of the same node is attached and verified: chunk headers of every segment,
    /// and payloads of open segments (of all segments when the machine was restarted since). See `docs/notes/attach.md`.
    pub fn create_or_attach(config: ArenaConfig) -> Result<(Arc<Arena>, Attach), ArenaError> {
        let _ = config;
        todo!()
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        todo!()
    }

    /// Touches up to `budget_bytes` of free blocks ahead of time, so that appends do not pay for page faults. Returns the
    /// bytes touched, zero when enough is warm. For the maintenance thread.
    pub fn warm(&self, budget_bytes: u64) -> u64 {
        let _ = budget_bytes;
        todo!()
    }

    /// Calls `observer` once when a block is given back. False, and no call, if one was since `seen`: try again instead.
    pub fn wait_for_space(&self, seen: SpaceVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        let _ = (seen, observer, token);
        todo!()
    }

    /// From here on blocks that are dropped stay in the table: what the file holds is left for the next process to attach.
    /// [`crate::Log`] does this when it is dropped.
    pub fn freeze(&self) {
        todo!()
    }

    /// Removes the file: everything in it is elsewhere. The last step of a graceful stop. The memory stays usable until the
    /// arena is dropped.
    pub fn remove(&self) -> std::io::Result<()> {
        todo!()
    }
}

/// A block for a segment that comes back from disk. Read the segment's image into it, then give it to
/// [`crate::Log::loaded`]; dropping it gives it back.
pub struct LoadBuffer {}

impl LoadBuffer {
    /// The whole block: at least the bytes asked for, aligned to 64 KiB, with whatever was in it before.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        todo!()
    }
}
