//! Compaction: of each key of a lane the last record is kept (decision 0014).
//!
//! | does | where |
//! | --- | --- |
//! | what of a lane can be compacted, and whether it is worth it | here, [`Lane::compactable`] |
//! | one pass over a lane | here, [`Compactor::step`] |
//! | which ordinal a key has last | `map` |
//! | a segment without what goes | `rewrite` |
//! | the switch from the old segment to the new one | [`Log::replace`](crate::Log) |
//!
//! On one thread of its own, which may wait for the disk; it holds a lane's lock to look at its segments and to switch, never while
//! it reads, thinks or writes.

mod map;
mod rewrite;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use kera_env::{AlignedBuffer, Clock, Random};
use kera_format::SegmentId;
use kera_format::container::{ContainerEntry, pages, verify_image};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentProgress};
use parking_lot::Mutex;

use self::map::OrdinalMap;
use self::rewrite::{Rewritten, Rules, note_keys, rewrite};
use crate::group::Summary;
use crate::lane::Lane;
use crate::log::Log;
use crate::producers::marks_of;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::storage::Location;
use crate::store::DiskStore;
use crate::visibility::Visibility;

/// Settings of compaction. The defaults work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactionConfig {
    /// Memory for the keys of one pass; it is taken while a pass runs. 24 bytes a key, three quarters full.
    pub keys_bytes: u64,
    /// A lane is compacted when so many percent of its bytes came after the last pass.
    pub dirty_percent_min: u64,
    /// Milliseconds that tombstones are kept after what they hide has gone.
    pub tombstone_ms: i64,
    /// Of a lane without a [`Visibility`] every transaction was committed. Where that is not known, such a lane is not compacted
    /// once it has records of transactions.
    pub knows_transactions: bool,
}

impl Default for CompactionConfig {
    fn default() -> CompactionConfig {
        CompactionConfig {
            keys_bytes: 64 << 20,
            dirty_percent_min: 50,
            tombstone_ms: 24 * 3600 * 1000,
            knows_transactions: false,
        }
    }
}

/// What compaction has done since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CompactionStats {
    /// Passes over a lane that came to their end.
    pub passes: u64,
    /// Passes that did not.
    pub failures: u64,
    /// Bytes of segments that were read.
    pub read_bytes: u64,
    /// Segments that were rewritten.
    pub segments: u64,
    /// Bytes of those, before.
    pub segment_bytes: u64,
    /// Bytes that they have lost.
    pub removed_bytes: u64,
    /// Records that they have lost.
    pub removed_records: u64,
    /// When the last pass ended, milliseconds since 1970; 0: there was none.
    pub last_pass_ms: i64,
    /// Bytes of compacted streams that no pass has looked at, as of the last look.
    pub backlog_bytes: u64,
    /// Why the last pass that failed did.
    pub last_error: Option<String>,
}

#[derive(Default)]
struct Counters {
    passes: AtomicU64,
    failures: AtomicU64,
    read_bytes: AtomicU64,
    segments: AtomicU64,
    segment_bytes: AtomicU64,
    removed_bytes: AtomicU64,
    removed_records: AtomicU64,
    last_pass_ms: AtomicI64,
    backlog_bytes: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// A segment that can be compacted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    id: SegmentId,
    at: Location,
    base_ordinal: u64,
    next_ordinal: u64,
}

/// What of a lane can be compacted: from its first segment on, in order.
#[derive(Debug, Default)]
pub(crate) struct Compactable {
    pieces: Vec<Piece>,
    /// Records below were compared with all up to here.
    clean_to: u64,
    bytes: u64,
    dirty_bytes: u64,
}

impl Lane {
    /// Its segments with records that are closed and stored and in which every transaction has ended, without the last
    /// segment that has records: a reader that follows ordinals finds one behind every hole.
    pub(crate) fn compactable(&self) -> Compactable {
        let durable = self.durable_ordinal();
        let limit = self.visibility().map_or(durable, |visibility| visibility.end(durable));
        let state = self.state.lock();
        let mut found = Compactable { clean_to: state.compacted_to, ..Compactable::default() };
        let has_records = |at: &_| state.chain.slot(*at).summary().head > FIRST_CHUNK;
        let last = state.chain.from(state.chain.first()).filter(has_records).last();
        let mut is_clean = true;
        for here in state.chain.from(state.chain.first()).take_while(|here| Some(*here) != last) {
            let slot = state.chain.slot(here);
            let Summary { head, base_ordinal, next_ordinal, compacted_ms, .. } = slot.summary();
            let Some(at) = slot.at.filter(|_| !slot.open && next_ordinal <= limit) else { break };
            if head == FIRST_CHUNK {
                continue;
            }
            is_clean &= compacted_ms.is_some();
            if is_clean {
                found.clean_to = found.clean_to.max(next_ordinal);
            }
            found.bytes += u64::from(head);
            found.dirty_bytes += if next_ordinal > found.clean_to { head.into() } else { 0 };
            let id = self.segment_id(state.chain.groups[here.group].id, slot.index);
            found.pieces.push(Piece { id, at, base_ordinal, next_ordinal });
        }
        found
    }
}

/// A segment's image, in memory or read from disk.
enum Image {
    Resident(Arc<Segment>),
    Read(AlignedBuffer),
}

impl Image {
    fn bytes(&self) -> &[u8] {
        match self {
            Image::Resident(segment) => segment.as_image(),
            Image::Read(buffer) => buffer,
        }
    }
}

/// Of a lane in which every transaction was committed.
#[derive(Debug)]
struct AllCommitted;

impl Visibility for AllCommitted {
    fn end(&self, durable: u64) -> u64 {
        durable
    }
    fn hidden(&self, _: u64, _: u64) -> Vec<(i64, u64)> {
        Vec::new()
    }
}

/// Why a pass ended before its end.
enum Ended {
    /// Its thread is to stop.
    Told,
    Failed(String),
}

/// Compacts the lanes of streams that ask for it, one after the other.
pub struct Compactor {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    clock: Arc<dyn Clock>,
    config: CompactionConfig,
    map: Mutex<OrdinalMap>,
    counters: Counters,
}

impl Compactor {
    /// For a log and the store that keeps its segments. It does nothing by itself: a thread calls [`step`](Compactor::step).
    pub fn new(
        log: Arc<Log>,
        store: Arc<DiskStore>,
        clock: Arc<dyn Clock>,
        random: &dyn Random,
        config: CompactionConfig,
    ) -> Compactor {
        let map = Mutex::new(OrdinalMap::new(config.keys_bytes, random.next_u64()));
        Compactor { log, store, clock, config, map, counters: Counters::default() }
    }

    /// One pass over the lane that is worth it most. `pace` is called after every segment that was read, and ends the pass
    /// by returning false. True if there was a lane; false also after a failure, so that the caller waits.
    pub fn step(&self, pace: &mut dyn FnMut() -> bool) -> bool {
        let mut backlog_bytes = 0;
        let mut best: Option<(u64, Arc<Lane>, Compactable)> = None;
        for stream in self.log.streams().iter().filter(|stream| stream.options().cleanup.compacts()) {
            for lane in stream.streamlets().flat_map(|streamlet| streamlet.lanes()) {
                let work = lane.compactable();
                backlog_bytes += work.dirty_bytes;
                let percent = work.dirty_bytes * 100 / work.bytes.max(1);
                let is_better = best.as_ref().is_none_or(|(most, ..)| percent > *most);
                if work.dirty_bytes > 0 && percent >= self.config.dirty_percent_min && is_better {
                    best = Some((percent, Arc::clone(lane), work));
                }
            }
        }
        self.counters.backlog_bytes.store(backlog_bytes, Ordering::Relaxed);
        let Some((_, lane, work)) = best else { return false };
        let mut map = self.map.lock();
        let ended = self.pass(&lane, &work, &mut map, pace);
        map.clear();
        match ended {
            Ok(()) => {
                self.counters.passes.fetch_add(1, Ordering::Relaxed);
                self.counters.last_pass_ms.store(self.clock.now_ms(), Ordering::Relaxed);
                true
            }
            Err(Ended::Told) => false,
            Err(Ended::Failed(error)) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(?lane, error, "a lane is not compacted any further; it is tried again");
                *self.counters.last_error.lock() = Some(error);
                false
            }
        }
    }

    /// What it has done.
    pub fn stats(&self) -> CompactionStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        CompactionStats {
            passes: of(&counters.passes),
            failures: of(&counters.failures),
            read_bytes: of(&counters.read_bytes),
            segments: of(&counters.segments),
            segment_bytes: of(&counters.segment_bytes),
            removed_bytes: of(&counters.removed_bytes),
            removed_records: of(&counters.removed_records),
            last_pass_ms: counters.last_pass_ms.load(Ordering::Relaxed),
            backlog_bytes: of(&counters.backlog_bytes),
            last_error: counters.last_error.lock().clone(),
        }
    }

    fn pass(
        &self,
        lane: &Arc<Lane>,
        work: &Compactable,
        map: &mut OrdinalMap,
        pace: &mut dyn FnMut() -> bool,
    ) -> Result<(), Ended> {
        let nothing_else: Option<&dyn Visibility> =
            if self.config.knows_transactions { Some(&AllCommitted) } else { None };
        let visibility = lane.visibility().map(|visibility| &**visibility).or(nothing_else);
        let mut map_end = work.clean_to;
        for piece in work.pieces.iter().filter(|piece| piece.next_ordinal > work.clean_to) {
            let image = self.read(piece)?;
            let progress = piece.verify(&image)?;
            map_end = note_keys(image.bytes(), &progress, work.clean_to, visibility, map)
                .map_err(|error| piece.failed(&error))?;
            go_on(pace)?;
            if map_end < piece.next_ordinal {
                break;
            }
        }
        // After the segments were looked at: what is remembered of them can only become less.
        let remembered = lane.state.lock().producers.remembered();
        let mut rules = Rules {
            map,
            map_end,
            visibility,
            remembered: &remembered,
            now_ms: self.clock.now_ms(),
            tombstone_ms: self.config.tombstone_ms,
            is_blocked: false,
        };
        for piece in work.pieces.iter().take_while(|piece| piece.base_ordinal < map_end) {
            let image = self.read(piece)?;
            piece.verify(&image)?;
            let rewritten = rewrite(image.bytes(), &mut rules).map_err(|error| piece.failed(&error))?;
            if let Some(rewritten) = rewritten {
                self.replace(piece, rewritten)?;
            }
            go_on(pace)?;
        }
        let mut state = lane.state.lock();
        state.compacted_to = state.compacted_to.max(map_end);
        Ok(())
    }

    fn read(&self, piece: &Piece) -> Result<Image, Ended> {
        self.counters.read_bytes.fetch_add(piece.at.bytes, Ordering::Relaxed);
        if let Some(segment) = self.log.segment(piece.id).filter(|segment| segment.is_settled()) {
            return Ok(Image::Resident(segment));
        }
        self.store.read_image(piece.at).map(Image::Read).map_err(|error| piece.failed(&error))
    }

    /// Writes what takes the place of a segment, and then lets it do so.
    fn replace(&self, piece: &Piece, rewritten: Rewritten) -> Result<(), Ended> {
        let Rewritten { image, header, progress, records_removed } = rewritten;
        let marks = marks_of(&image[SEGMENT_HEADER_BYTES..]).iter().map(Into::into).collect();
        let mut buffer = AlignedBuffer::zeroed(pages(image.len() as u64) as usize);
        buffer[..image.len()].copy_from_slice(&image);
        // What is written is what a start must be able to read.
        verify_image(&buffer).map_err(|error| piece.failed(&error))?;
        let entry = ContainerEntry { header, progress, at: 0, marks };
        let at = self.store.write_image(piece.at.disk, entry, &buffer).map_err(|error| piece.failed(&error))?;
        if self.log.replace(piece.id, piece.at, Summary::stored(&header, &progress), at) {
            self.counters.segments.fetch_add(1, Ordering::Relaxed);
            self.counters.segment_bytes.fetch_add(piece.at.bytes, Ordering::Relaxed);
            self.counters.removed_bytes.fetch_add(piece.at.bytes - at.bytes, Ordering::Relaxed);
            self.counters.removed_records.fetch_add(records_removed, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn go_on(pace: &mut dyn FnMut() -> bool) -> Result<(), Ended> {
    if pace() { Ok(()) } else { Err(Ended::Told) }
}

impl Piece {
    /// Every checksum of it: nothing that has changed is written anew under a fresh one.
    fn verify(&self, image: &Image) -> Result<SegmentProgress, Ended> {
        let (header, progress) = verify_image(image.bytes()).map_err(|error| self.failed(&error))?;
        if header.id != self.id {
            return Err(self.failed(&format_args!("segment {} is there", header.id)));
        }
        Ok(progress)
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Ended {
        Ended::Failed(format!("segment {}: {error}", self.id))
    }
}
