//! What a restart finds in the arena, and how lanes are rebuilt from it, from disk and from the virtual log.

use std::sync::Arc;

use kera_format::{Cursor, SegmentId};

use crate::arena::ArenaFull;
use crate::segment::Segment;

/// A segment that was found in the arena and verified.
pub struct AttachedSegment {
    /// It.
    pub segment: Arc<Segment>,
    /// If not all that its header promised could be verified: from where on it was cut off.
    pub cut: Option<Cut>,
}

impl std::fmt::Debug for AttachedSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachedSegment").field("cut", &self.cut).finish_non_exhaustive()
    }
}

/// The unverifiable end of a segment: it is not served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// First byte that is not served.
    pub position: u32,
    /// Bytes from there to the head.
    pub lost_bytes: u32,
    /// What was wrong.
    pub reason: String,
}

/// Arena memory that the table names as a segment and that is none: kept as it is, not served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetAside {
    /// Bytes from the start of the arena file.
    pub offset: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// The segment, if that could be read.
    pub id: Option<SegmentId>,
    /// What was wrong.
    pub reason: String,
}

/// What [`crate::Log::recover`] made of what was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Lanes that have something.
    pub lanes: u64,
    /// Segments that are in memory.
    pub attached_segments: u64,
    /// Segments that are on disk, in memory or not.
    pub stored_segments: u64,
    /// Of both, those of streams that no longer exist: given back.
    pub dropped_segments: u64,
    /// Records of all lanes.
    pub records: u64,
    /// Bytes of all lanes.
    pub bytes: u64,
    /// What is not as it should be, one sentence each: holes, cuts, copies that differ.
    pub problems: Vec<String>,
}

/// What [`crate::Log::restore_chunk`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// The chunk is in its lane again.
    Restored,
    /// It is in memory anyway: the arena was attached.
    AlreadyThere,
    /// Its segment is on disk in a container: the virtual log need not keep it.
    Stored,
    /// Its stream was deleted.
    UnknownStream,
}

/// Why a chunk of the virtual log could not be put back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// Wait with [`crate::Log::wait_for_space`], then try again.
    #[error("the arena has no free block of {} bytes", .0.bytes)]
    ArenaFull(ArenaFull),
    /// The bytes are not a stamped chunk.
    #[error(transparent)]
    Format(#[from] kera_format::FormatError),
    /// Chunks before it in its segment are missing.
    #[error("chunk at {}/{}/{}: the segment ends at {head}, what is between is missing", cursor.group, cursor.segment, cursor.position)]
    Hole {
        /// Where the chunk belongs.
        cursor: Cursor,
        /// Where its segment ends.
        head: u32,
    },
    /// Another chunk is where it belongs.
    #[error("chunk at {}/{}/{}: another chunk is there", .0.group, .0.segment, .0.position)]
    Conflict(Cursor),
}
