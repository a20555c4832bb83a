//! Compaction: of each key of a lane the last record is kept (decision 0014).
//!
//! | does | where |
//! | --- | --- |
//! | what of a lane can be compacted, and whether it is worth it | here, [`Lane::compactable`] |
//! | one pass over a lane | here, [`Compactor::step`] |
//! | which ordinal a key has last | `map` |
//! | which tombstones may go while other nodes have some of the streamlet | `elsewhere` |
//! | a segment without what goes | `rewrite` |
//! | the switch from the old segment to the new one | [`Log::replace`](crate::Log) |
//!
//! On one thread of its own, which may wait for the disk; it holds a lane's lock to look at its segments and to switch, never while
//! it reads, thinks or writes.

mod elsewhere;
mod map;
mod rewrite;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use kera_env::{AlignedBuffer, Believed, Clock, Random};
use kera_format::container::{ContainerEntry, pages, verify_image};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentProgress};
use kera_format::{SegmentId, StreamOptions};
use parking_lot::Mutex;

pub use self::elsewhere::{Holder, Others, Run};

use self::elsewhere::{Goes, Tombstones};
use self::map::{KeyHash, OrdinalMap};
use self::rewrite::{Rewritten, Rules, is_emptied, note_keys, rewrite};
use crate::group::{At, Group, Summary};
use crate::lane::{Lane, LaneName, LaneState};
use crate::log::Log;
use crate::producers::marks_of;
use crate::retention::note_ahead;
use crate::segment::{FIRST_CHUNK, Segment};
use crate::storage::{Location, SegmentStore};
use crate::store::DiskStore;
use crate::tenure::Tenure;
use crate::visibility::Visibility;

/// After so many milliseconds all lanes are looked at anew for those that are worth a pass.
const LOOK_MS: i64 = 10_000;

/// Settings of compaction. The defaults work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactionConfig {
    /// Memory for the keys of one pass; it is taken while a pass runs. 24 bytes a key, three quarters full.
    pub keys_bytes: u64,
    /// A lane whose last pass failed is left alone for so many milliseconds.
    pub retry_ms: u64,
    /// Of a lane without a [`Visibility`] every transaction was committed. Where that is not known, such a lane is not compacted
    /// once it has records of transactions.
    pub knows_transactions: bool,
}

impl Default for CompactionConfig {
    fn default() -> CompactionConfig {
        CompactionConfig { keys_bytes: 64 << 20, retry_ms: 60_000, knows_transactions: false }
    }
}

/// What compaction has done since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CompactionStats {
    /// Looks at all lanes for those that are worth a pass.
    pub looks: u64,
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
    /// Lanes that are left alone for a while, since their last pass failed.
    pub failing_lanes: u64,
    /// Why the last pass that failed did.
    pub last_error: Option<String>,
}

/// What [`Compactor::step`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// A pass came to its end: there may be more to do.
    Passed,
    /// There is nothing to do for now, or its thread was told to end.
    Rested,
    /// A lane could not be compacted; it is left alone for a while, and others may be worth it.
    Failed,
    /// No disk takes what is left of a segment at the moment. Its lane is left alone for a while, too: another one may need less room.
    DiskFailed,
}

#[derive(Default)]
struct Counters {
    looks: AtomicU64,
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

/// What of a lane can be compacted: from its first segment on, in order, without those of which nothing is left.
#[derive(Debug, Default)]
pub(crate) struct Compactable {
    pieces: Vec<Piece>,
    /// Records below were compared with all up to here.
    clean_to: u64,
    bytes: u64,
    dirty_bytes: u64,
    /// How old the oldest record is that no pass has looked at.
    dirty_age_ms: Option<i64>,
    /// Up to here segments were compacted before something in front of them was here; zero: none.
    joined_to: u64,
    /// How often the lane has been put together anew.
    reshaped: u64,
}

impl Compactable {
    fn percent(&self) -> u64 {
        self.dirty_bytes * 100 / self.bytes.max(1)
    }

    /// How much a pass is worth: percent, and more than that if it is late; `None` if none is due.
    pub(crate) fn worth(&self, options: &StreamOptions) -> Option<u64> {
        let age_ms = self.dirty_age_ms?;
        let is_late = options.compact_within_ms.is_some_and(|ms| i64::try_from(ms).is_ok_and(|ms| age_ms >= ms));
        let is_due = is_late || self.percent() >= options.compact_dirty_percent.into();
        is_due.then(|| self.percent() + if is_late { 100 } else { 0 })
    }
}

impl Lane {
    /// Its segments with records that are closed, stored and old enough, and in which every transaction has ended, without the
    /// last segment that has records: a reader that follows ordinals finds one behind every hole.
    pub(crate) fn compactable(&self, options: &StreamOptions, now: &Believed) -> Compactable {
        let mut pieces = Vec::new();
        let found = self.measured(options, now, |piece| pieces.push(piece));
        Compactable { pieces, ..found }
    }

    /// How much that is; `each` is given every piece of it.
    fn measured(&self, options: &StreamOptions, now: &Believed, mut each: impl FnMut(Piece)) -> Compactable {
        let after_ms = i64::try_from(options.compact_after_ms).unwrap_or(i64::MAX);
        let durable = self.durable_ordinal();
        let limit = self.visibility().map_or(durable, |visibility| visibility.end(durable));
        let mut state = self.state.lock();
        note_ahead(&mut state, now);
        let (clean_to, joined_to, reshaped) = (state.compacted_to, state.joined_to, state.reshaped);
        let mut found = Compactable { clean_to, joined_to, reshaped, ..Compactable::default() };
        let last_of = |group: &Group| group.slots.iter().rposition(|slot| slot.summary().head > FIRST_CHUNK);
        let mut groups = state.chain.groups.iter().enumerate().rev();
        let last = groups.find_map(|(group, of)| Some(At { group, slot: last_of(of)? }));
        let mut is_clean = true;
        for here in state.chain.from(state.chain.first()).take_while(|here| Some(*here) != last) {
            let slot = state.chain.slot(here);
            if slot.is_emptied {
                continue;
            }
            let Summary { head, base_ordinal, next_ordinal, compacted_ms, .. } = slot.summary();
            let is_old = slot.age_ms(slot.summary().last_append_ms, now) >= after_ms;
            let Some(at) = slot.at.filter(|_| !slot.open && is_old && next_ordinal <= limit) else { break };
            if head == FIRST_CHUNK {
                continue;
            }
            is_clean &= compacted_ms.is_some() && self.is_compared(&state, here.group);
            if is_clean {
                found.clean_to = found.clean_to.max(next_ordinal);
            }
            found.bytes += u64::from(head);
            if next_ordinal > found.clean_to {
                found.dirty_bytes += u64::from(head);
                found.dirty_age_ms.get_or_insert(slot.age_ms(slot.summary().first_append_ms, now));
            }
            let id = self.segment_id(state.chain.groups[here.group].id, slot.index);
            each(Piece { id, at, base_ordinal, next_ordinal });
        }
        found
    }
}

impl Lane {
    /// A pass has compared everything with all that comes after it up to here. If the lane was put together anew meanwhile that says nothing.
    fn compacted(&self, work: &Compactable, to: u64) {
        let mut state = self.state.lock();
        if state.reshaped == work.reshaped {
            state.compacted_to = state.compacted_to.max(to);
            if to >= state.joined_to && state.rebuilding.is_none() {
                state.joined_to = 0;
            }
        }
    }

    /// Whether a segment of a group that says to be compacted was compared with all that is in front of it in the lane. Groups of another owner epoch may have
    /// come from elsewhere since.
    pub(crate) fn is_compared(&self, state: &LaneState, group: usize) -> bool {
        let is_alone = self.owner_epoch() == 0 && self.tenure() == Tenure::Here;
        let groups = &state.chain.groups;
        is_alone || groups.front().map(|first| first.id.epoch()) == Some(groups[group].id.epoch())
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
    /// Retention or the stream's end came in between, or a segment was written again elsewhere: it has to begin anew.
    Overtaken,
    Failed(String),
    DiskFailed(String),
}

/// Lanes whose last pass failed.
#[derive(Default)]
struct Failing {
    /// When each is tried again, on the monotonic clock, and why it failed.
    lanes: HashMap<LaneName, (i64, String)>,
}

impl Failing {
    fn is_left_alone(&self, lane: &Lane, mono_ms: i64) -> bool {
        self.lanes.get(&name(lane)).is_some_and(|(until_ms, _)| *until_ms > mono_ms)
    }

    /// True if that is news.
    fn failed(&mut self, lane: &Lane, until_ms: i64, error: &str) -> bool {
        let before = self.lanes.insert(name(lane), (until_ms, error.to_owned()));
        before.is_none_or(|(_, known)| known != error)
    }
}

/// What was found to be worth a pass when all lanes were looked at last.
#[derive(Default)]
struct Due {
    /// Those that had no pass since, the one that was worth it most last.
    lanes: Vec<LaneName>,
    /// When that was, on the monotonic clock.
    looked_ms: i64,
}

impl Due {
    fn is_old(&self, mono_ms: i64) -> bool {
        !(self.looked_ms..self.looked_ms.saturating_add(LOOK_MS)).contains(&mono_ms)
    }
}

fn name(lane: &Lane) -> LaneName {
    (lane.stream_id(), lane.streamlet_id(), lane.id())
}

/// Compacts the lanes of streams that ask for it, one after the other.
pub struct Compactor {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    clock: Arc<dyn Clock>,
    config: CompactionConfig,
    others: Option<Arc<dyn Others>>,
    map: Mutex<OrdinalMap>,
    failing: Mutex<Failing>,
    due: Mutex<Due>,
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
        let (others, failing, due, counters) = (None, Mutex::default(), Mutex::default(), Counters::default());
        Compactor { log, store, clock, config, others, map, failing, due, counters }
    }

    /// In a cluster: other nodes have some of the streamlets. Without it all there is of a streamlet is here.
    #[must_use]
    pub fn with_others(self, others: Arc<dyn Others>) -> Compactor {
        Compactor { others: Some(others), ..self }
    }

    /// One pass over the lane that is worth it most. `pace` is called after every segment that was read, while nothing is held
    /// on to, and ends the pass by returning false.
    pub fn step(&self, pace: &mut dyn FnMut() -> bool) -> Stepped {
        let Some((lane, options, work)) = self.most_worth() else { return Stepped::Rested };
        let mut map = self.map.lock();
        let ended = self.pass(&lane, &options, &work, &mut map, pace);
        map.clear();
        drop(map);
        match ended {
            Ok(()) => {
                self.failing.lock().lanes.remove(&name(&lane));
                self.counters.passes.fetch_add(1, Ordering::Relaxed);
                self.counters.last_pass_ms.store(self.clock.now_ms(), Ordering::Relaxed);
                Stepped::Passed
            }
            Err(Ended::Told) => Stepped::Rested,
            Err(Ended::Overtaken) => Stepped::Passed,
            Err(Ended::Failed(error)) => {
                if self.failed(&lane, &error) {
                    tracing::warn!(?lane, error, "a lane is not compacted any further; it is tried again");
                }
                Stepped::Failed
            }
            Err(Ended::DiskFailed(error)) => {
                self.failed(&lane, &error);
                Stepped::DiskFailed
            }
        }
    }

    /// A lane is left alone for a while. True if the error is news.
    fn failed(&self, lane: &Lane, error: &str) -> bool {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        *self.counters.last_error.lock() = Some(error.to_owned());
        let until_ms = self.clock.believed().mono_ms().saturating_add_unsigned(self.config.retry_ms);
        self.failing.lock().failed(lane, until_ms, error)
    }

    /// The lane that is worth a pass most, as far as that was seen a moment ago.
    ///
    /// All lanes are looked at once for all that are due: there may be ten thousand, and if each pass, which may take less than that, looked at all of them, the share of a processor
    /// that compaction has would go to looking. Something is due only if it still is when its turn comes.
    fn most_worth(&self) -> Option<(Arc<Lane>, StreamOptions, Compactable)> {
        let now = self.clock.believed();
        let mut due = self.due.lock();
        let is_fresh = due.lanes.is_empty() || due.is_old(now.mono_ms());
        if is_fresh {
            *due = self.look(&now);
        }
        let found = self.take_due(&mut due, &now);
        if found.is_some() || is_fresh {
            return found;
        }
        *due = self.look(&now);
        self.take_due(&mut due, &now)
    }

    /// The next of those that are due that still is.
    fn take_due(&self, due: &mut Due, now: &Believed) -> Option<(Arc<Lane>, StreamOptions, Compactable)> {
        std::iter::from_fn(|| due.lanes.pop()).find_map(|name| self.worth_now(name, now))
    }

    fn worth_now(
        &self,
        (stream, streamlet, lane): LaneName,
        now: &Believed,
    ) -> Option<(Arc<Lane>, StreamOptions, Compactable)> {
        let stream = self.log.stream(stream)?;
        let options = stream.options();
        let lane = stream.streamlet(streamlet)?.lane(lane)?;
        if !options.cleanup.compacts() || self.failing.lock().is_left_alone(lane, now.mono_ms()) {
            return None;
        }
        let work = lane.compactable(&options, now);
        work.worth(&options)?;
        Some((Arc::clone(lane), StreamOptions::clone(&options), work))
    }

    /// Looks at all lanes for those that are worth a pass.
    fn look(&self, now: &Believed) -> Due {
        let mut backlog_bytes = 0;
        let mut found: Vec<(u64, LaneName)> = Vec::new();
        let mut failing = self.failing.lock();
        // Without those of streams that are deleted meanwhile, or not compacted any more.
        failing.lanes.retain(|(stream, ..), _| self.log.stream(*stream).is_some_and(|stream| stream.compacts()));
        for stream in self.log.streams().iter().filter(|stream| stream.options().cleanup.compacts()) {
            let options = stream.options();
            for lane in stream.streamlets().flat_map(|streamlet| streamlet.lanes()) {
                let work = lane.measured(&options, now, |_| ());
                backlog_bytes += work.dirty_bytes;
                if failing.is_left_alone(lane, now.mono_ms()) {
                    continue;
                }
                found.extend(work.worth(&options).map(|worth| (worth, name(lane))));
            }
        }
        self.counters.backlog_bytes.store(backlog_bytes, Ordering::Relaxed);
        self.counters.looks.fetch_add(1, Ordering::Relaxed);
        // Of equals the first one first.
        found.sort_by_key(|(worth, _)| Reverse(*worth));
        let lanes = found.into_iter().rev().map(|(_, name)| name).collect();
        Due { lanes, looked_ms: now.mono_ms() }
    }

    /// What it has done.
    pub fn stats(&self) -> CompactionStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        CompactionStats {
            looks: of(&counters.looks),
            passes: of(&counters.passes),
            failures: of(&counters.failures),
            read_bytes: of(&counters.read_bytes),
            segments: of(&counters.segments),
            segment_bytes: of(&counters.segment_bytes),
            removed_bytes: of(&counters.removed_bytes),
            removed_records: of(&counters.removed_records),
            last_pass_ms: counters.last_pass_ms.load(Ordering::Relaxed),
            backlog_bytes: of(&counters.backlog_bytes),
            failing_lanes: self.failing.lock().lanes.len() as u64,
            last_error: counters.last_error.lock().clone(),
        }
    }

    fn pass(
        &self,
        lane: &Arc<Lane>,
        options: &StreamOptions,
        work: &Compactable,
        map: &mut OrdinalMap,
        pace: &mut dyn FnMut() -> bool,
    ) -> Result<(), Ended> {
        let nothing_else: Option<&dyn Visibility> =
            if self.config.knows_transactions { Some(&AllCommitted) } else { None };
        let visibility = lane.visibility().map(|visibility| &**visibility).or(nothing_else);
        let mut map_end = work.clean_to;
        map.expect(work.pieces.iter().map(|piece| piece.next_ordinal).max().unwrap_or(0).saturating_sub(work.clean_to));
        for piece in work.pieces.iter().filter(|piece| piece.next_ordinal > work.clean_to) {
            self.with_image(piece, |image, progress| {
                let noted = note_keys(image, &progress, work.clean_to, visibility, map);
                map_end = noted.map_err(|error| piece.failed(&error))?;
                Ok(())
            })?;
            go_on(pace)?;
            if map_end < piece.next_ordinal {
                break;
            }
        }
        // After the segments were looked at: what is remembered of them can only become less.
        let (remembered, has_forgotten) = {
            let state = lane.state.lock();
            (state.producers.remembered(), state.producers.has_thrown_out())
        };
        let mut tombstones = Tombstones::new(self.others.as_deref(), lane, self.keys_max());
        let mut rules = Rules {
            map,
            map_end,
            visibility,
            remembered: &remembered,
            has_forgotten,
            now: self.clock.believed(),
            tombstone_ms: i64::try_from(options.tombstone_ms).unwrap_or(i64::MAX),
            is_blocked: false,
            tombstones: Goes::None,
            asks: Cell::default(),
            joined_to: work.joined_to,
            is_fresh: false,
        };
        for piece in work.pieces.iter().take_while(|piece| piece.base_ordinal < map_end) {
            self.with_image(piece, |image, progress| {
                match self.rewrite((piece, image), lane, &mut rules, &mut tombstones, pace)? {
                    Some(rewritten) => self.replace(lane, piece, rewritten)?,
                    None => note_emptied(lane, piece.id, piece.at, (image, &progress)),
                }
                Ok(())
            })?;
            go_on(pace)?;
        }
        lane.compacted(work, map_end);
        Ok(())
    }

    /// So many keys may be remembered of what other nodes have: a set takes about twice as much as its keys.
    fn keys_max(&self) -> usize {
        self.config.keys_bytes as usize / 2 / size_of::<KeyHash>()
    }

    /// What takes the place of a segment. If its tombstones ask for that, it is looked first what other nodes have.
    fn rewrite(
        &self,
        (piece, image): (&Piece, &[u8]),
        lane: &Lane,
        rules: &mut Rules<'_>,
        tombstones: &mut Tombstones<'_>,
        pace: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Rewritten>, Ended> {
        let (was_blocked, was_fresh) = (rules.is_blocked, rules.is_fresh);
        rules.tombstones = tombstones.of(piece.id.group.epoch());
        let rewritten = rewrite(image, rules).map_err(|error| piece.failed(&error))?;
        if !rules.asks.take() {
            return Ok(rewritten);
        }
        tombstones.look(lane, &|key| rules.map.hash(key), pace);
        (rules.is_blocked, rules.is_fresh) = (was_blocked, was_fresh);
        rules.tombstones = tombstones.of(piece.id.group.epoch());
        rewrite(image, rules).map_err(|error| piece.failed(&error))
    }

    /// Looks at a segment, wherever it is. Its memory is let go afterwards.
    fn with_image(
        &self,
        piece: &Piece,
        look: impl FnOnce(&[u8], SegmentProgress) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        let verified = self.read(piece).and_then(|image| Ok((piece.verify(&image)?, image)));
        let (progress, image) = match verified {
            Err(Ended::Failed(_)) if !self.is_there(piece) => return Err(Ended::Overtaken),
            other => other?,
        };
        look(image.bytes(), progress)
    }

    /// Whether the segment is still where it was found.
    fn is_there(&self, piece: &Piece) -> bool {
        self.log.location(piece.id) == Some(piece.at)
    }

    fn read(&self, piece: &Piece) -> Result<Image, Ended> {
        self.counters.read_bytes.fetch_add(piece.at.bytes, Ordering::Relaxed);
        if let Some(segment) = self.log.segment(piece.id).filter(|segment| segment.is_settled()) {
            return Ok(Image::Resident(segment));
        }
        self.store.read_image(piece.at).map(Image::Read).map_err(|error| piece.failed(&error))
    }

    /// Writes what takes the place of a segment, and then lets it do so.
    ///
    /// It does not if the segment is at another place by then: it was damaged there and was written again, from memory or from copies. Then all that was to
    /// go of it is still there, and the pass must not go on: whatever comes behind would be taken for compared with all in front of it, and a tombstone that
    /// goes for that shows again what it hides. A segment that has gone altogether hides nothing.
    fn replace(&self, lane: &Lane, piece: &Piece, rewritten: Rewritten) -> Result<(), Ended> {
        let Rewritten { image, header, progress, records_removed } = rewritten;
        let marks = marks_of(&image[SEGMENT_HEADER_BYTES..]).iter().map(Into::into).collect();
        let mut buffer = AlignedBuffer::zeroed(pages(image.len() as u64) as usize);
        buffer[..image.len()].copy_from_slice(&image);
        // What is written is what a start must be able to read.
        verify_image(&buffer).map_err(|error| piece.failed(&error))?;
        let entry = ContainerEntry { header, progress, at: 0, marks };
        let at = self.store.write_again(entry, &buffer, piece.at);
        let at = at.map_err(|error| Ended::DiskFailed(format!("segment {}: {error}", piece.id)))?;
        if self.log.replace(piece.id, piece.at, Summary::stored(&header, &progress), at) {
            self.counters.segments.fetch_add(1, Ordering::Relaxed);
            self.counters.segment_bytes.fetch_add(piece.at.bytes, Ordering::Relaxed);
            self.counters.removed_bytes.fetch_add(piece.at.bytes.saturating_sub(at.bytes), Ordering::Relaxed);
            self.counters.removed_records.fetch_add(records_removed, Ordering::Relaxed);
            note_emptied(lane, piece.id, at, (&image, &progress));
        } else if self.log.location(piece.id).is_some() {
            return Err(Ended::Overtaken);
        }
        Ok(())
    }
}

/// A segment, as it is at a place, is not looked at again if nothing is left of it.
fn note_emptied(lane: &Lane, id: SegmentId, at: Location, (image, progress): (&[u8], &SegmentProgress)) {
    if is_emptied(image, progress) {
        lane.with_slot(id, |slot| slot.is_emptied = slot.at == Some(at));
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
