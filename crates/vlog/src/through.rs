//! Which segments are written through to their containers instead of into blocks (decision 0009), and what of them goes into
//! blocks all the same.
//!
//! Owned by the writer. A segment is decided on at its first chunk, and for good, unless its extent fails.
//!
//! # Why a start finds everything, in order
//!
//! The first chunk of every segment goes into a block, also of one that is written through. A replay that meets it puts back
//! what the extent has, then goes on with the block. So the order of a replay is the order of the blocks, and with it that of
//! the appends:
//!
//! 1. *A lane has no holes.* A commit writes and syncs its extents before its block. A segment counts only if its first chunk is
//!    in a block that was synced, and when that is written everything before it in the lane is on disk: in an earlier
//!    commit, in an extent of this one, or further to the front of the same block, which is there as a whole or not at all.
//! 2. *What is acknowledged is there.* Durable heads move after both syncs. A segment's bytes below its durable head are in
//!    its extent, and its first chunk in a block that is kept until the segment is stored or gone.
//! 3. *A failure takes nothing back.* A write that fails, or its sync, may have damaged the page that it wrote again: the one
//!    in which the durable bytes end. So what goes into a block instead begins at the chunk that reaches into that page. A
//!    replay takes from the extent what verifies and goes on with the block; what both have is put back once. Nothing more is
//!    written to that extent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kera_env::DISK_ALIGNMENT;
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{ChunkHeader, SegmentId};
use kera_log::{ChunkReference, Extent, Segment, WriteThrough};

/// Extents that may lie idle. Beyond it what comes for them goes into blocks.
const EXTENTS_MAX: usize = 16;
const FIRST_CHUNK: u32 = SEGMENT_HEADER_BYTES as u32;

/// What of a batch goes into a block: chunks that follow one another in a segment.
pub(crate) struct Piece<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) position: u32,
    pub(crate) bytes: u32,
    pub(crate) chunks: u32,
}

impl<'a> Piece<'a> {
    fn of(reference: &'a ChunkReference, chunks: u32) -> Piece<'a> {
        let ChunkReference { segment, position, bytes, .. } = reference;
        Piece { segment, position: *position, bytes: *bytes, chunks }
    }

    pub(crate) fn chunk(&self) -> &'a [u8] {
        self.segment.bytes(self.position, self.position + self.bytes)
    }
}

#[derive(Default)]
pub(crate) struct Through {
    target: Option<Arc<dyn WriteThrough>>,
    extents: HashMap<SegmentId, Box<dyn Extent>>,
    /// Segments of the batch whose extents have failed.
    failed: HashSet<SegmentId>,
}

impl Through {
    pub(crate) fn set_target(&mut self, target: Arc<dyn WriteThrough>) {
        self.target = Some(target);
    }

    pub(crate) fn target(&self) -> Option<Arc<dyn WriteThrough>> {
        self.target.clone()
    }

    fn has(&self, segment: &Segment) -> bool {
        !self.extents.is_empty() && self.extents.contains_key(&segment.id())
    }

    /// Whether the chunks of a reference are written through: decides if it is the first of its segment.
    pub(crate) fn admit(&mut self, reference: &ChunkReference) -> bool {
        if self.has(&reference.segment) {
            return true;
        }
        let Some(target) = self.target.as_ref().filter(|_| reference.position == FIRST_CHUNK) else { return false };
        let Some(extent) = target.begin(&reference.segment) else { return false };
        while self.extents.len() >= EXTENTS_MAX {
            let Some(id) = self.extents.keys().next().copied() else { break };
            self.give_up(id);
        }
        self.extents.insert(reference.segment.id(), extent);
        true
    }

    fn give_up(&mut self, id: SegmentId) {
        if let Some(extent) = self.extents.remove(&id) {
            extent.give_up();
            // Of what is in the batch of it nothing has been written yet; or, after an error, it counts as not.
            self.failed.insert(id);
        }
    }

    /// Writes and syncs what a batch has for extents. Returns the bytes. What fails is given up and goes into a block with
    /// the rest of the batch, so there is no error.
    pub(crate) fn write(&mut self, batch: &[ChunkReference]) -> u64 {
        if self.extents.is_empty() {
            return 0;
        }
        let mut parts: Vec<(&Arc<Segment>, u32, u64)> = Vec::new();
        for reference in batch.iter().filter(|reference| self.has(&reference.segment)) {
            let (to, bytes) = (reference.position + reference.bytes, u64::from(reference.bytes));
            match parts.iter_mut().find(|(segment, ..)| Arc::ptr_eq(segment, &reference.segment)) {
                Some(part) => (part.1, part.2) = (to, part.2 + bytes),
                None => parts.push((&reference.segment, to, bytes)),
            }
        }
        let mut written = 0;
        for (segment, to, bytes) in parts {
            let id = segment.id();
            let Some(extent) = self.extents.get_mut(&id) else { continue };
            match extent.write(segment, to).and_then(|()| extent.sync()) {
                Ok(()) => written += bytes,
                Err(error) => {
                    tracing::warn!(segment = %id, %error, "cannot be written through; it goes on in the virtual log");
                    self.give_up(id);
                }
            }
        }
        written
    }

    /// What of a batch goes into a block, in its order, once the rest is written through: see the module.
    pub(crate) fn pieces<'a>(&self, batch: &'a [ChunkReference], counts: &[u32]) -> Vec<Piece<'a>> {
        let mut pieces = Vec::with_capacity(batch.len());
        let mut again = self.failed.clone();
        for (reference, &chunks) in batch.iter().zip(counts) {
            if self.has(&reference.segment) {
                if reference.position == FIRST_CHUNK {
                    let bytes = chunk_bytes(reference.chunk()).unwrap_or(reference.bytes);
                    pieces.push(Piece { bytes, ..Piece::of(reference, 1) });
                }
                continue;
            }
            if !again.is_empty() && again.remove(&reference.segment.id()) {
                pieces.extend(written_again(reference));
            }
            pieces.push(Piece::of(reference, chunks));
        }
        pieces
    }

    /// A batch is durable: segments that are complete need nothing more.
    pub(crate) fn settle(&mut self, batch: &[ChunkReference]) {
        self.failed.clear();
        if self.extents.is_empty() {
            return;
        }
        for reference in batch {
            let id = reference.segment.id();
            if reference.segment.is_settled() {
                self.extents.remove(&id);
            }
            if reference.position == FIRST_CHUNK {
                // Whatever comes for those before it in the lane has come. One behind it may have begun already.
                self.extents.retain(|other, _| !is_same_lane(*other, id) || *other >= id);
            }
        }
    }
}

fn is_same_lane(a: SegmentId, b: SegmentId) -> bool {
    (a.stream, a.streamlet, a.lane) == (b.stream, b.streamlet, b.lane)
}

fn chunk_bytes(bytes: &[u8]) -> Option<u32> {
    ChunkHeader::parse(bytes).ok().map(|header| header.total_bytes() as u32)
}

/// The chunks in front of a reference from the one on that reaches into the page in which they end.
fn written_again(reference: &ChunkReference) -> Option<Piece<'_>> {
    let page = reference.position / DISK_ALIGNMENT as u32 * DISK_ALIGNMENT as u32;
    let (mut from, mut chunks) = (FIRST_CHUNK, 0);
    let mut at = FIRST_CHUNK;
    while at < reference.position {
        let Some(bytes) = chunk_bytes(reference.segment.bytes(at, reference.position)) else { break };
        at += bytes;
        if at <= page {
            (from, chunks) = (at, 0);
        } else {
            chunks += 1;
        }
    }
    let bytes = reference.position - from;
    (bytes > 0).then_some(Piece { position: from, bytes, ..Piece::of(reference, chunks) })
}
