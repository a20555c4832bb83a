//! Verifying segments that were in somebody else's hands: the arena of an earlier process, a disk.
//!
//! [`crate::Arena::create_or_attach`] calls this once at start, with one thread per core; [`crate::Log::loaded`] on the loader's
//! thread. Nothing here changes what a segment holds, but for the fields of its header that follow from its chunks. The
//! argument why this is enough after a kill: `docs/notes/attach.md`.

use std::sync::Arc;

use kera_format::chunk::NO_TIMESTAMP;
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{ChunkView, SegmentId};

use crate::arena::{Block, LoadBuffer};
use crate::producers::{Marks, ProducerMark};
use crate::segment::{FIRST_CHUNK, Segment};

/// Below so many bytes one thread verifies them all.
const PARALLEL_BYTES: usize = 32 << 20;

/// A segment that was found in the arena and verified.
pub struct AttachedSegment {
    /// It.
    pub segment: Arc<Segment>,
    /// If not all that its header promised could be verified: from where on it was cut off.
    pub cut: Option<Cut>,
    /// Nothing may be appended to its group: what was behind its end may have been read and is lost.
    pub(crate) ended: bool,
    /// What its producers sent last.
    pub(crate) marks: Vec<ProducerMark>,
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

/// A block that holds no segment, its name if that could be read, and what is wrong.
pub(crate) type Failed = (Block, Option<SegmentId>, String);

/// Verifies the segments of an arena that was attached: headers, chunk headers below the head, and the payloads of open
/// segments; with `all` every payload, since the machine was restarted. In the order of `blocks`.
pub(crate) fn verify_blocks(blocks: Vec<Block>, all: bool) -> (Vec<AttachedSegment>, Vec<Failed>) {
    let total: usize = blocks.iter().map(Block::bytes).sum();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if total < PARALLEL_BYTES { 1 } else { cores.min(blocks.len()).max(1) };
    let mut shares: Vec<Vec<(usize, Block)>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, block) in blocks.into_iter().enumerate() {
        shares[at % threads].push((at, block));
    }
    let verify = move |share: Vec<(usize, Block)>| -> Vec<_> {
        share.into_iter().map(|(at, block)| (at, verify_block(block, all))).collect()
    };
    let mut verified: Vec<_> = std::thread::scope(|scope| {
        let mine = shares.pop().unwrap_or_default();
        let others: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || verify(share))).collect();
        let mut verified = verify(mine);
        for other in others {
            verified.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        verified
    });
    verified.sort_unstable_by_key(|&(at, _)| at);
    let (mut segments, mut failed) = (Vec::new(), Vec::new());
    for (_, result) in verified {
        match result {
            Ok(segment) => segments.push(segment),
            Err(failure) => failed.push(failure),
        }
    }
    (segments, failed)
}

fn verify_block(block: Block, all: bool) -> Result<AttachedSegment, Failed> {
    let capacity = block.bytes();
    let read = {
        // SAFETY: the arena is not shared yet, and this thread has the only handle of the block.
        let bytes = unsafe { block.as_slice(capacity) };
        SegmentHeader::parse(bytes).map_err(|e| (None, e.to_string())).and_then(|header| {
            let most = header.capacity_bytes.min(capacity as u32);
            let progress = SegmentProgress::parse(bytes, most).map_err(|e| (Some(header.id), e.to_string()))?;
            block.populate_read(progress.head as usize);
            let payloads = all || progress.state == SegmentState::Open;
            Ok((header, progress, Walk::of(bytes, &header, progress.head as u32, payloads)))
        })
    };
    let (header, progress, walk) = match read {
        Ok(read) => read,
        Err((id, reason)) => return Err((block, id, reason)),
    };
    if walk.wrong.is_none() && progress.state != SegmentState::Open && walk.next_ordinal != progress.next_ordinal {
        let reason =
            format!("its chunks end at ordinal {}, its header says {}", walk.next_ordinal, progress.next_ordinal);
        return Err((block, Some(header.id), reason));
    }
    let cut = walk.wrong.map(|reason| Cut { position: walk.end, lost_bytes: progress.head as u32 - walk.end, reason });
    let segment = Segment::over(block, header);
    if cut.is_some() || progress.state == SegmentState::Open {
        segment.reopen(&SegmentProgress {
            head: walk.end.into(),
            durable_head: progress.durable_head.min(walk.end.into()),
            next_ordinal: walk.next_ordinal,
            state: SegmentState::Open,
            chunk_count: walk.chunk_count,
            first_append_ms: walk.first_append_ms,
            last_append_ms: walk.last_append_ms,
            max_timestamp_ms: walk.max_timestamp_ms,
        });
    }
    let ended = all || cut.is_some();
    Ok(AttachedSegment { segment, cut, ended, marks: walk.marks.finish() })
}

/// Verifies a segment that was read from disk, all of it, and makes it one of the arena's. It is not named in the block
/// table: after a kill it is on disk still.
pub(crate) fn verify_loaded(buffer: LoadBuffer, id: SegmentId) -> Result<Arc<Segment>, String> {
    let wrong = |what: String| format!("segment {id} on disk: {what}");
    let header = SegmentHeader::parse(&buffer).map_err(|e| wrong(e.to_string()))?;
    if header.id != id {
        return Err(wrong(format!("segment {} is there", header.id)));
    }
    let most = header.capacity_bytes.min(buffer.len() as u32);
    let progress = SegmentProgress::parse(&buffer, most).map_err(|e| wrong(e.to_string()))?;
    if progress.state == SegmentState::Open || progress.durable_head != progress.head {
        return Err(wrong("it was not closed when it was written".to_owned()));
    }
    let walk = Walk::of(&buffer, &header, progress.head as u32, true);
    if let Some(reason) = walk.wrong {
        return Err(wrong(reason));
    }
    if walk.next_ordinal != progress.next_ordinal {
        return Err(wrong(format!("its chunks end at ordinal {}, not {}", walk.next_ordinal, progress.next_ordinal)));
    }
    Ok(Segment::over(buffer.block, header))
}

/// What the chunks of a segment say, up to the first that is not as it should be.
pub(crate) struct Walk {
    pub(crate) end: u32,
    /// The least position that the next chunk may have.
    position: u32,
    pub(crate) wrong: Option<String>,
    pub(crate) next_ordinal: u64,
    pub(crate) chunk_count: u32,
    pub(crate) first_append_ms: i64,
    pub(crate) last_append_ms: i64,
    pub(crate) max_timestamp_ms: i64,
    pub(crate) marks: Marks,
}

impl Walk {
    /// Walks the chunks of `segment` below `head`, which lies within it.
    pub(crate) fn of(segment: &[u8], header: &SegmentHeader, head: u32, payloads: bool) -> Walk {
        let mut walk = Walk {
            end: FIRST_CHUNK,
            position: FIRST_CHUNK,
            wrong: None,
            next_ordinal: header.base_ordinal,
            chunk_count: 0,
            first_append_ms: 0,
            last_append_ms: 0,
            max_timestamp_ms: NO_TIMESTAMP,
            marks: Marks::default(),
        };
        let bytes = &segment[SEGMENT_HEADER_BYTES..head as usize];
        while (walk.end as usize) < head as usize {
            if let Err(reason) = walk.step(&bytes[walk.end as usize - SEGMENT_HEADER_BYTES..], header, payloads) {
                walk.wrong = Some(format!("chunk at {}: {reason}", walk.end));
                break;
            }
        }
        walk
    }

    /// Takes the chunk at the start of `bytes`.
    fn step(&mut self, bytes: &[u8], header: &SegmentHeader, payloads: bool) -> Result<(), String> {
        let chunk = ChunkView::parse(bytes).map_err(|e| e.to_string())?;
        let part = chunk.broker().map_err(|e| e.to_string())?;
        let (id, fields) = (&header.id, chunk.header());
        let named = (fields.stream, fields.streamlet, part.lane, part.group, part.segment);
        let is_placed = part.position == self.position
            || header.is_compacted() && (self.position..header.capacity_bytes).contains(&part.position);
        if named != (id.stream, id.streamlet, id.lane, id.group, id.index) || !is_placed {
            return Err("it belongs to another place".to_owned());
        }
        let is_next =
            part.base_ordinal == self.next_ordinal || header.is_compacted() && part.base_ordinal > self.next_ordinal;
        if !is_next {
            return Err(format!("its ordinal is {}, not {}", part.base_ordinal, self.next_ordinal));
        }
        if payloads {
            chunk.verify().map_err(|e| e.to_string())?;
        }
        self.marks.note(fields, part.base_ordinal, part.position);
        if self.chunk_count == 0 {
            self.first_append_ms = part.append_time_ms;
        }
        self.last_append_ms = part.append_time_ms;
        self.max_timestamp_ms = self.max_timestamp_ms.max(fields.max_timestamp_ms);
        self.chunk_count += 1;
        self.next_ordinal = part.base_ordinal.saturating_add(fields.record_count.into());
        self.end += chunk.as_bytes().len() as u32;
        self.position = part.position + chunk.as_bytes().len() as u32;
        Ok(())
    }
}
