//! All streams of a node, and everything that is done to them from outside a lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_env::Believed;
use kera_format::{SegmentId, StreamId, StreamOptions, StreamletId, limits};
use parking_lot::{Mutex, RwLock};

use crate::arena::{Arena, ArenaFull, ArenaStats, LoadBuffer, Purpose};
use crate::attach;
use crate::group::Summary;
use crate::lane::{Counts, Lane, LaneName};
use crate::producers::PER_LANE_MAX;
use crate::recovery::Recovery;
use crate::retention;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::sink::SinkDirectory;
use crate::storage::{Location, SegmentStore};
use crate::stream::Stream;
use crate::waiters::{Observer, SpaceVersion};

/// Of a full arena, this share in closed segments is for the store to write out before lanes are made to close theirs.
const CLOSED_SHARE: u64 = 8;
/// How often open segments of a stream are looked at whether they are old: each second for so many milliseconds that they may be,
/// and at least once in so many seconds.
const CLOSE_OLD_SHARE_MS: u64 = 10_000;
const CLOSE_OLD_SECONDS_MAX: i64 = 600;
/// What [`Log::close_coldest`] closes at least: this share of the arena.
const CLOSE_SHARE: u64 = 64;

/// Settings of the log. The defaults work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Producers that a lane remembers for deduplication; the one that was silent longest is forgotten first.
    pub producers_per_lane_max: usize,
    /// All lanes together take about a 16th of the arena's size for what they know of producers, beside it; or so many bytes, if that is less; or eight
    /// producers for each lane that was written to, if that is more than either. Then lanes forget those that were silent longest before they know as many as
    /// they may.
    pub producers_bytes_min: u64,
    /// Retention keeps the chunks that deduplication remembers for so many milliseconds after their segment's last append: for longer than
    /// producers try a chunk again. Zero: not at all.
    pub producers_kept_ms: u64,
    /// A segment is made for about this many milliseconds of its lane's rate.
    pub segment_fill_ms: u32,
    /// A segment takes at most one part in this many of the arena.
    pub segment_arena_share: u32,
    /// Owners of streamlets open groups in epochs of their own, beside those of the node: it is one of a cluster.
    pub has_owner_epochs: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            producers_per_lane_max: PER_LANE_MAX,
            producers_bytes_min: 32 << 20,
            producers_kept_ms: 300_000,
            segment_fill_ms: 500,
            segment_arena_share: 64,
            has_owner_epochs: false,
        }
    }
}

/// Why a stream could not be made or changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// There is one with this id.
    #[error("stream {0} exists")]
    Exists(StreamId),
    /// There is none with this id.
    #[error("stream {0} does not exist")]
    Unknown(StreamId),
    /// Options that are wrong, or that cannot be changed while the stream lives.
    #[error("{0}")]
    Options(String),
}

/// Counters of the log since it was made, and what it holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogStats {
    /// The arena.
    pub arena: ArenaStats,
    /// Streams.
    pub streams: u64,
    /// Lanes that were ever used.
    pub lanes: u64,
    /// Chunks appended.
    pub chunks_appended: u64,
    /// Bytes appended.
    pub bytes_appended: u64,
    /// Records appended.
    pub records_appended: u64,
    /// Chunks that were there already.
    pub duplicates: u64,
    /// Producers that lanes know, counted in each lane that knows them.
    pub producers: u64,
    /// Bytes that lanes take for that, about.
    pub producer_bytes: u64,
    /// Bytes that they may take: more in very many lanes, of which each may know a few.
    pub producer_bytes_max: u64,
    /// Producers that lanes have thrown out because a lane, or all together, knew as many as they may.
    pub producers_forgotten: u64,
    /// Appends that found the arena full.
    pub arena_full: u64,
    /// Segments that take appends now.
    pub segments_open: u64,
    /// Segments opened.
    pub segments_opened: u64,
    /// Segments handed to the store.
    pub segments_closed: u64,
    /// Segments taken out of memory.
    pub segments_evicted: u64,
    /// Segments loaded back.
    pub segments_loaded: u64,
    /// Segments dropped by retention.
    pub segments_dropped: u64,
    /// Segments that a disk had lost and that were found elsewhere.
    pub segments_mended: u64,
}

/// All streams of a node. Dropping it leaves the arena file for the next process to attach, whatever is in it.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    streams: RwLock<HashMap<StreamId, Arc<Stream>>>,
    /// While the log is being rebuilt.
    pub(crate) recovery: Mutex<Recovery>,
}

impl Log {
    /// An empty log over an arena. Time is passed to the calls that need it.
    pub fn new(config: LogConfig, arena: Arc<Arena>) -> Arc<Log> {
        let shared = Arc::new(Shared::new(config, arena));
        Arc::new(Log { shared, streams: RwLock::default(), recovery: Mutex::default() })
    }

    /// Where closed segments go. Once, before anything else (a second call does nothing); without it they stay in memory.
    pub fn set_store(&self, store: Arc<dyn SegmentStore>) {
        let _ = self.shared.store.set(store);
    }

    /// Whether there may be segments on the node's disks that its start could not read, and a later one may: what is not in a lane may be there all the same.
    pub fn lacks_some(&self) -> bool {
        self.shared.store.get().is_some_and(|store| store.lacks_some())
    }

    /// What makes chunks of streams with durability `power` durable. Once (a second call does nothing), before such a stream
    /// is recovered or written.
    pub fn set_sinks(&self, sinks: Arc<dyn SinkDirectory>) {
        let _ = self.shared.sinks.set(sinks);
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }

    /// The node's epoch, in which groups are opened of what has no owner epoch. Rises with each start; zero before
    /// [recovery has finished](Log::finish_recovery).
    pub fn epoch(&self) -> u32 {
        self.shared.epoch.load(Ordering::Relaxed)
    }

    /// Makes a stream.
    pub fn create_stream(&self, id: StreamId, options: StreamOptions) -> Result<Arc<Stream>, StreamError> {
        self.create(id, options, |_| ())
    }

    /// The same of a stream whose streamlets belong to nodes of a cluster: all of them [are elsewhere](Stream::place_elsewhere) before anybody finds it.
    pub fn create_stream_elsewhere(&self, id: StreamId, options: StreamOptions) -> Result<Arc<Stream>, StreamError> {
        self.create(id, options, Stream::place_elsewhere)
    }

    /// Makes a stream, and does with it what is to be done `before` it is there for others.
    fn create(
        &self,
        id: StreamId,
        options: StreamOptions,
        before: impl FnOnce(&Stream),
    ) -> Result<Arc<Stream>, StreamError> {
        check(&options)?;
        let mut streams = self.streams.write();
        if streams.contains_key(&id) {
            return Err(StreamError::Exists(id));
        }
        let stream = Stream::new(id, options, Arc::clone(&self.shared));
        before(&stream);
        streams.insert(id, Arc::clone(&stream));
        Ok(stream)
    }

    /// Changes a stream's options. `streamlets` only grows; `lanes` and `virtual_logs` stay as they are. A change of
    /// durability closes open groups: what is in a group is safe in one way. What `replication` says streamlets are [told](crate::Streamlet::set_copies)
    /// before, one by one.
    pub fn alter_stream(&self, id: StreamId, options: StreamOptions) -> Result<(), StreamError> {
        check(&options)?;
        let stream = self.stream(id).ok_or(StreamError::Unknown(id))?;
        let old = stream.options();
        if options.streamlets < old.streamlets {
            let (has, wanted) = (old.streamlets, options.streamlets);
            return Err(StreamError::Options(format!("streamlets is {has} and cannot shrink to {wanted}")));
        }
        for (name, old, new) in
            [("lanes", old.lanes, options.lanes), ("virtual_logs", old.virtual_logs, options.virtual_logs)]
        {
            if old != new {
                return Err(StreamError::Options(format!(
                    "{name} is {old} and stays so while the stream lives, not {new}"
                )));
            }
        }
        let durability = options.durability;
        stream.set_options(options);
        if durability != old.durability {
            stream.streamlets().flat_map(|streamlet| streamlet.all_lanes()).for_each(|lane| lane.close_group());
        }
        Ok(())
    }

    /// Tells streamlets that have another number of copies than their streams say: of which stream, the first, how many streamlets, how many copies. Before
    /// anything is [recovered](Log::recover).
    pub fn set_copies(&self, others: &[(StreamId, u32, u32, u32)]) {
        for (stream, first, count, copies) in others {
            let Some(stream) = self.stream(*stream) else { continue };
            let places = (*first..first.saturating_add(*count)).filter_map(|at| stream.streamlet(StreamletId(at)));
            places.for_each(|place| place.set_copies(*copies));
        }
    }

    /// Deletes a stream, while it is written and read: writers get [`crate::AppendError::Closed`], readers
    /// [`crate::ReadError::Deleted`], those that are still sending keep their bytes.
    pub fn delete_stream(&self, id: StreamId) -> Result<(), StreamError> {
        let stream = self.streams.write().remove(&id).ok_or(StreamError::Unknown(id))?;
        stream.delete();
        Ok(())
    }

    /// A stream. The handle may be kept; see [`Stream::is_deleted`].
    pub fn stream(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.streams.read().get(&id).cloned()
    }

    /// All streams, by id.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<_> = self.streams.read().values().cloned().collect();
        streams.sort_unstable_by_key(|stream| stream.id());
        streams
    }

    /// All lanes that were ever used.
    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        let streams = self.streams();
        let streamlets = streams.iter().flat_map(|stream| stream.streamlets());
        streamlets.flat_map(|streamlet| streamlet.all_lanes().cloned()).collect()
    }

    /// Lanes with an open segment, in the order of their names. Of a hundred thousand most have none most of the time, and nothing is asked of those.
    fn open_lanes(&self) -> Vec<Arc<Lane>> {
        let listed: Vec<LaneName> = self.shared.open_lanes.lock().iter().copied().collect();
        let open = |name: LaneName| {
            let (stream, streamlet, lane) = name;
            let Some(stream) = self.stream(stream) else {
                // It is deleted, and no stream is ever called so again.
                self.shared.open_lanes.lock().remove(&name);
                return None;
            };
            stream.streamlet(streamlet)?.any_lane(lane).filter(|lane| lane.is_open()).cloned()
        };
        listed.into_iter().filter_map(open).collect()
    }

    /// The lane of a segment, made if it was never used; `None` if its stream does not exist or has no such lane.
    pub(crate) fn lane_of(&self, id: SegmentId) -> Option<Arc<Lane>> {
        self.stream(id.stream)?.streamlet(id.streamlet)?.any_lane(id.lane).cloned()
    }

    /// The store has written a segment, synced; `at` has as many bytes as the segment's head is. If the stream no longer has it, or has cut it since, it is released at
    /// once.
    pub fn persisted(&self, id: SegmentId, at: Location) {
        match self.lane_of(id).and_then(|lane| lane.with_slot(id, |slot| slot.persisted(at))) {
            Some(Ok(longer)) => {
                self.shared.segment_safe(id);
                longer.into_iter().for_each(|longer| self.shared.release_image(id, longer));
            }
            Some(Err(())) | None => self.shared.release_image(id, at),
        }
    }

    /// Takes a stored segment out of memory. Readers that hold it keep it until they have sent what they have of it, or have
    /// copied that because it was not taken soon. False if it is not in memory, not stored, or not known.
    pub fn evict(&self, id: SegmentId) -> bool {
        let Some(lane) = self.lane_of(id) else { return false };
        let mut state = lane.state.lock();
        let Some(at) = state.chain.find(id.group, id.index) else { return false };
        let slot = state.chain.slot_mut(at);
        if slot.open || slot.at.is_none() {
            return false;
        }
        let Some(segment) = slot.memory.take() else { return false };
        self.recovery.lock().leaves_memory(&segment);
        segment.disown();
        drop(state);
        self.shared.segments_evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// A block to load a segment of `bytes` into. A part of the arena is kept for loads, so that writers cannot starve
    /// readers, nor the reverse.
    pub fn allocate_for_load(&self, bytes: u64) -> Result<LoadBuffer, ArenaFull> {
        let bytes = bytes.min(limits::SEGMENT_BYTES_MAX as u64) as usize;
        Ok(LoadBuffer { block: self.shared.arena.allocate(bytes, Purpose::Load)? })
    }

    /// The store has read a segment's image into `buffer`, asked for or not. It is verified, headers and payloads, on the
    /// calling thread, then readers are woken. What does not verify counts as [`Log::load_failed`], and is the error.
    pub fn loaded(&self, id: SegmentId, buffer: LoadBuffer) -> Result<(), String> {
        let segment = match attach::verify_loaded(buffer, id) {
            Ok(segment) => segment,
            Err(reason) => {
                self.load_failed(id, reason.clone());
                return Err(reason);
            }
        };
        let Some(lane) = self.lane_of(id) else { return Ok(()) };
        let taken = lane.with_slot(id, |slot| {
            if let Err(stale) = slot.has_come() {
                return Err(Ok(stale));
            }
            let summary = slot.summary();
            if (summary.head, summary.base_ordinal) != (segment.head(), segment.base_ordinal()) {
                let reason = format!("segment {id} on disk is not the one that was written");
                slot.failed = Some(reason.clone().into());
                return Err(Err(reason));
            }
            slot.failed = None;
            if slot.memory.is_none() {
                (slot.memory, slot.was_loaded) = (Some(segment), true);
                self.shared.segments_loaded.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        match taken {
            Some(Err(Err(reason))) => Err(reason),
            Some(Err(Ok(stale))) => {
                self.shared.release_image(id, stale);
                Ok(())
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// A segment was rewritten: what is on disk at `at`, synced, takes the place of what is at `was`, which is given back. If the
    /// lane has no such segment any more, `at` is.
    pub(crate) fn replace(&self, id: SegmentId, was: Location, closed: Summary, at: Location) -> bool {
        let replaced = self.lane_of(id).and_then(|lane| {
            lane.with_slot(id, |slot| (slot.at == Some(was) && !slot.open).then(|| slot.replace(closed, at)))
        });
        let Some(Some((old, memory))) = replaced else {
            self.shared.release_image(id, at);
            return false;
        };
        if let Some(segment) = memory {
            segment.disown();
        }
        if let Some(old) = old {
            // Not gone: what backups have of it is all that there is elsewhere.
            self.shared.release_image(id, old);
        }
        self.shared.segment_smaller(id, closed.head.into());
        true
    }

    /// The store could not read a segment. It is looked for elsewhere, if there is [who does that](Log::mend_with); otherwise the next read of it gets
    /// [`crate::ReadError::LoadFailed`], the one after that tries again.
    pub fn load_failed(&self, id: SegmentId, error: String) {
        if !self.is_looked_for(id, &error) {
            self.not_loaded(id, error);
        }
    }

    /// A segment that is waited for does not come.
    pub(crate) fn not_loaded(&self, id: SegmentId, error: String) {
        let stale = self.lane_of(id).and_then(|lane| {
            lane.with_slot(id, |slot| {
                let stale = slot.has_come().err();
                if stale.is_none() {
                    slot.failed = Some(error.into());
                }
                stale
            })
        });
        if let Some(stale) = stale.flatten() {
            self.shared.release_image(id, stale);
        }
    }

    /// Up to `count` segments that follow `id` in its lane, up to the first that is in memory or on its way: they count as
    /// being loaded from here on, as after [`SegmentStore::load`]. For read-ahead.
    pub fn read_ahead(&self, id: SegmentId, count: usize) -> Vec<(SegmentId, Location)> {
        let mut ahead = Vec::new();
        let Some(lane) = self.lane_of(id) else { return ahead };
        let mut state = lane.state.lock();
        let mut at = state.chain.find(id.group, id.index).and_then(|at| state.chain.next(at));
        while let Some(here) = at.filter(|_| ahead.len() < count) {
            let group = state.chain.groups[here.group].id;
            let slot = state.chain.slot_mut(here);
            let (Some(location), None, false) = (slot.at, &slot.memory, slot.loading) else { break };
            slot.loading = true;
            ahead.push((lane.segment_id(group, slot.index), location));
            at = state.chain.next(here);
        }
        ahead
    }

    /// A segment that is in memory.
    pub fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let lane = self.lane_of(id)?;
        let state = lane.state.lock();
        let at = state.chain.find(id.group, id.index)?;
        state.chain.slot(at).memory.clone()
    }

    /// Calls `observer` once when the arena has got a block back since `seen`. False, and no call, if it has already: try
    /// again instead.
    pub fn wait_for_space(&self, seen: SpaceVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        self.shared.arena.wait_for_space(seen, observer, token)
    }

    /// Drops what the streams' options no longer keep, and has lanes forget producers if all together know nearly as many as they may. For the
    /// maintenance thread, about once a second. Returns the number of segments dropped.
    ///
    /// What is kept for days may stay for a minute more.
    ///
    /// The time is the one that is believed: what goes is gone for good, and copies on other nodes with it, so that no jump of a clock may say at once that it is old.
    pub fn retain(&self, now: impl Into<Believed>) -> u64 {
        let now = now.into();
        let mut dropped = 0;
        for stream in self.streams() {
            let options = stream.options();
            let is_due = retention::is_due(&stream, &options, &now);
            let mut of_progress = None;
            for streamlet in stream.streamlets() {
                if is_due || options.retention_consumed || stream.has_floors() {
                    dropped += streamlet.lanes().map(|lane| lane.retain(&options, &now)).sum::<u64>();
                }
                if let Some(progress) = streamlet.used_progress_lane() {
                    // What is kept of progress goes when it was written anew, whatever the stream keeps.
                    let of_progress = of_progress.get_or_insert_with(|| StreamOptions {
                        retention_ms: None,
                        retention_consumed: true,
                        ..StreamOptions::clone(&options)
                    });
                    dropped += progress.retain(of_progress, &now);
                }
                if let Some(bytes) = options.retention_bytes.filter(|_| options.cleanup.deletes()) {
                    dropped += retention::retain_bytes(streamlet, bytes, &now);
                }
            }
        }
        self.shared.segments_dropped.fetch_add(dropped, Ordering::Relaxed);
        self.forget_silent_producers(&now);
        dropped
    }

    /// When something was appended last, as far as that is not ahead of `now_ms`; `None` if nothing was.
    pub fn newest_append_ms(&self, now_ms: i64) -> Option<i64> {
        let appended = |lane: &Arc<Lane>| Some(lane.state.lock().last_append_ms).filter(|ms| *ms > 0 && *ms <= now_ms);
        self.lanes().iter().filter_map(appended).max()
    }

    /// Closes open segments without an append for `idle_ms`, so that quiet lanes take no memory. Their groups stay open.
    /// Returns the number of segments closed.
    pub fn close_idle(&self, now_ms: i64, idle_ms: i64) -> u64 {
        let before_ms = now_ms.saturating_sub(idle_ms);
        self.open_lanes().iter().map(|lane| u64::from(lane.close_if_idle(before_ms, now_ms))).sum()
    }

    /// Closes open segments that have taken appends for as long as their streams want, so that retention and compaction come to
    /// what is in them. Their groups stay open. For the maintenance thread, about once a second. Returns the number of segments
    /// closed.
    pub fn close_old(&self, now_ms: i64) -> u64 {
        let mut closed = 0;
        for stream in self.streams() {
            let options = stream.options();
            let within_ms = options.compact_within_ms.filter(|_| options.cleanup.compacts());
            let old_ms = options.segment_ms.min(within_ms.unwrap_or(u64::MAX));
            // There may be a hundred thousand lanes: those of streams that are in no hurry are looked at more seldom.
            let seconds =
                i64::try_from(old_ms / CLOSE_OLD_SHARE_MS).unwrap_or(i64::MAX).clamp(1, CLOSE_OLD_SECONDS_MAX);
            if now_ms / 1000 % seconds != 0 {
                continue;
            }
            let before_ms = now_ms.saturating_sub_unsigned(old_ms);
            for lane in stream.streamlets().flat_map(|streamlet| streamlet.lanes()) {
                closed += u64::from(lane.close_if_old(before_ms, now_ms));
            }
        }
        closed
    }

    /// Whether anything was appended, read or asked for from disk since the last call. For one caller.
    pub fn take_used(&self) -> bool {
        self.shared.used.swap(false, Ordering::Relaxed)
    }

    /// If writers found the arena full since the last call, and there is little in closed segments that the store could
    /// write out: closes open segments, those without an append for the longest time first, until what the writers lacked
    /// is in closed ones. Cheap when there was room: for the maintenance thread, every few ten milliseconds. Returns the
    /// number of segments closed.
    pub fn close_coldest(&self) -> u64 {
        let lacked = self.shared.lacked_bytes.swap(0, Ordering::Relaxed);
        if lacked == 0 {
            return 0;
        }
        let mut open: Vec<(i64, u64, Arc<Lane>)> = self
            .open_lanes()
            .into_iter()
            .filter_map(|lane| lane.open_since().map(|(since_ms, bytes)| (since_ms, bytes, lane)))
            .collect();
        let arena = self.shared.arena.stats();
        let open_bytes: u64 = open.iter().map(|(_, bytes, _)| bytes).sum();
        if arena.used_bytes.saturating_sub(open_bytes + arena.set_aside_bytes) > arena.bytes / CLOSED_SHARE {
            return 0;
        }
        open.sort_by_key(|&(since_ms, ..)| since_ms);
        let (mut bytes, mut closed) = (0, 0);
        for (since_ms, block_bytes, lane) in open {
            if bytes >= lacked.max(arena.bytes / CLOSE_SHARE) {
                break;
            }
            if lane.close_if_unused(since_ms) {
                bytes += block_bytes;
                closed += 1;
            }
        }
        closed
    }

    /// Closes those of these segments that are open; their groups stay open. So that a virtual log need not keep what slow
    /// lanes wrote long ago.
    pub fn close_segments(&self, ids: &[SegmentId]) {
        for &id in ids {
            if let Some(lane) = self.lane_of(id) {
                lane.close_segment(id);
            }
        }
    }

    /// Closes every open group, and gives the store all that was held back from it: a graceful stop. Appends after it open new groups.
    pub fn close_all(&self) {
        for lane in self.lanes() {
            lane.close_group();
            lane.let_go_of_cut_off(&mut lane.state.lock());
        }
    }

    /// Whether every segment was closed, is durable and was given to the store. What is not yet, because some of it waits for its sink, the
    /// store knows nothing of, and [flushing](crate::store::DiskStore::flush_all) it writes nothing of it.
    pub fn is_settled(&self) -> bool {
        self.lanes().iter().all(|lane| lane.has_given_all())
    }

    /// Counters and sizes.
    pub fn stats(&self) -> LogStats {
        let shared = &self.shared;
        let (mut counts, mut duplicates): (Counts, u64) = *shared.retired.lock();
        let streams = self.streams();
        let (mut lanes, mut producers) = (0, 0);
        for lane in streams.iter().flat_map(|stream| stream.streamlets()).flat_map(|streamlet| streamlet.all_lanes()) {
            let state = lane.state.lock();
            counts.add(&state.counts);
            producers += state.producers.len() as u64;
            drop(state);
            duplicates += lane.duplicates.load(Ordering::Relaxed);
            lanes += 1;
        }
        let (producer_bytes, producer_bytes_max) = shared.producer_room.bytes();
        LogStats {
            arena: shared.arena.stats(),
            streams: streams.len() as u64,
            lanes,
            chunks_appended: counts.chunks,
            bytes_appended: counts.bytes,
            records_appended: counts.records,
            duplicates,
            producers,
            producer_bytes,
            producer_bytes_max,
            producers_forgotten: shared.producer_room.forgotten(),
            arena_full: shared.arena_full.load(Ordering::Relaxed),
            segments_open: shared.segments_open.load(Ordering::Relaxed),
            segments_opened: shared.segments_opened.load(Ordering::Relaxed),
            segments_closed: shared.segments_closed.load(Ordering::Relaxed),
            segments_evicted: shared.segments_evicted.load(Ordering::Relaxed),
            segments_loaded: shared.segments_loaded.load(Ordering::Relaxed),
            segments_dropped: shared.segments_dropped.load(Ordering::Relaxed),
            segments_mended: shared.segments_mended.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Log {
    /// What lanes drop from here on they drop because the process ends, not because it is not wanted any more.
    fn drop(&mut self) {
        self.shared.arena.freeze();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("streams", &self.streams.read().len()).finish_non_exhaustive()
    }
}

/// All that is wrong with a stream's options, in one error.
fn check(options: &StreamOptions) -> Result<(), StreamError> {
    let wrong: Vec<String> = options.check().iter().map(ToString::to_string).collect();
    if wrong.is_empty() { Ok(()) } else { Err(StreamError::Options(wrong.join("; "))) }
}
