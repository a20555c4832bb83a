//! The real log and the naive one side by side, and what is done to both.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kera_format::arena::BlockSize;
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkView, Compression, Cursor, Durability, LaneId, ProducerEpoch, ProducerId, SegmentId,
    StreamId, StreamOptions, StreamletId,
};
use kera_log::{
    AppendError, Appended, Arena, ArenaConfig, Attach, DurabilitySink, LaneVersion, Log, LogConfig, Observer, Restored,
};

use crate::fakes::{FakeSink, FakeStore};
use crate::model::{self, Chunk, Verdict};

pub const ARENA_BYTES: u64 = 2 << 20;
/// For how long retention keeps what tells of producers.
pub const PRODUCERS_KEPT_MS: u64 = 4_000;
pub const STREAMLETS: u32 = 2;
pub const LANES: u32 = 2;

/// Numbers from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A lane's name.
pub type Name = (StreamId, StreamletId, LaneId);

/// A bug that the checker must notice: the world lies about what the log did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A retried chunk is appended again.
    SkippedDedupe,
    /// A read leaves out its first chunk.
    SkippedChunk,
    /// A read says that there is no more when there is.
    EarlyEnd,
    /// Now and then nobody is woken.
    LostWakeUp,
    /// The bytes of a reader change under its feet.
    RecycledTooEarly,
    /// A restart loses the last chunk of a segment.
    ForgottenTail,
    /// Retention takes one segment too many.
    GreedyRetention,
}

#[derive(Default)]
pub struct Bell {
    pub rung: AtomicU64,
    deaf: bool,
}

impl Observer for Bell {
    fn advanced(&self, _: u64) {
        if !self.deaf {
            self.rung.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Somebody who waits for a lane.
pub struct Waiting {
    pub bell: Arc<Bell>,
    pub lane: Name,
    pub durable_ordinal: u64,
}

/// A place that a reader will come back to: everything before `ordinal` is read.
#[derive(Clone, Copy, Debug)]
pub struct Bookmark {
    pub lane: Name,
    pub cursor: Cursor,
    pub ordinal: u64,
}

pub struct World {
    pub random: Random,
    pub planted: Option<Planted>,
    dir: tempfile::TempDir,
    pub store: Arc<FakeStore>,
    pub sink: Arc<FakeSink>,
    log: Option<Arc<Log>>,
    pub epoch: u32,
    pub now_ms: i64,
    pub streams: BTreeMap<StreamId, StreamOptions>,
    next_stream: u64,
    pub lanes: BTreeMap<Name, model::Lane>,
    /// Sequences as the producers count them.
    sequences: HashMap<(Name, u64), (u16, u64)>,
    /// Sent before: for retries.
    sent: Vec<(Name, Vec<u8>)>,
    pub pins: Vec<(Bytes, u32)>,
    pub waiting: Vec<Waiting>,
    pub bookmarks: Vec<Bookmark>,
    pub full: u64,
    pub counts: HashMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64, planted: Option<Planted>) -> World {
        let shared = PathBuf::from("/dev/shm");
        let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let mut world = World {
            random: Random::new(seed),
            planted,
            dir: dir.unwrap(),
            store: Arc::default(),
            sink: Arc::default(),
            log: None,
            epoch: 0,
            now_ms: 1_000_000,
            streams: BTreeMap::new(),
            next_stream: 0,
            lanes: BTreeMap::new(),
            sequences: HashMap::new(),
            sent: Vec::new(),
            pins: Vec::new(),
            waiting: Vec::new(),
            bookmarks: Vec::new(),
            full: 0,
            counts: HashMap::new(),
        };
        world.start();
        (0..3).for_each(|_| world.create_stream());
        world
    }

    pub fn log(&self) -> &Arc<Log> {
        self.log.as_ref().expect("a log")
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn lane(&self, name: Name) -> Arc<kera_log::Lane> {
        let stream = self.log().stream(name.0).expect("the stream");
        Arc::clone(stream.streamlet(name.1).unwrap().lane(name.2).unwrap())
    }

    pub fn segment_id(name: Name, chunk: &Chunk) -> SegmentId {
        let (group, index) = (chunk.cursor.group, chunk.cursor.segment);
        SegmentId { stream: name.0, streamlet: name.1, lane: name.2, group, index }
    }

    pub fn any_lane(&mut self) -> Option<Name> {
        let mut streams: Vec<StreamId> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        let stream = *streams.get(self.random.below(streams.len() as u64) as usize)?;
        let (streamlet, lane) = (self.random.below(STREAMLETS.into()), self.random.below(LANES.into()));
        Some((stream, StreamletId(streamlet as u32), LaneId(lane as u32)))
    }

    fn options(&mut self) -> StreamOptions {
        let power = self.random.one_in(2);
        StreamOptions {
            streamlets: STREAMLETS,
            lanes: LANES,
            segments_per_group: 1 + self.random.below(3) as u32,
            segment_bytes_max: 64 << 10 << self.random.below(3),
            durability: if power { Durability::Power } else { Durability::Process },
            retention_ms: Some(2_000 + self.random.below(60_000)),
            retention_bytes: self.random.one_in(2).then_some(400_000),
            retention_consumed: self.random.one_in(4),
            ..StreamOptions::default()
        }
    }

    pub fn create_stream(&mut self) {
        self.next_stream += 1;
        let (id, options) = (StreamId(self.next_stream), self.options());
        self.log().create_stream(id, options.clone()).unwrap();
        self.streams.insert(id, options);
        for streamlet in 0..STREAMLETS {
            for lane in 0..LANES {
                self.lanes.insert((id, StreamletId(streamlet), LaneId(lane)), model::Lane::default());
            }
        }
    }

    pub fn delete_stream(&mut self, id: StreamId) {
        let stream = self.log().stream(id).unwrap();
        let lane = Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap());
        self.log().delete_stream(id).unwrap();
        self.streams.remove(&id);
        self.lanes.retain(|name, _| name.0 != id);
        self.sequences.retain(|(name, _), _| name.0 != id);
        self.sent.retain(|(name, _)| name.0 != id);
        self.bookmarks.retain(|b| b.lane.0 != id);
        assert!(stream.is_deleted());
        assert_eq!(lane.read(Cursor::default(), 1, true).err(), Some(kera_log::ReadError::Deleted));
        for waiting in self.waiting.iter().filter(|w| w.lane.0 == id) {
            assert!(waiting.bell.rung.load(Ordering::SeqCst) > 0, "who waits for a deleted stream is told");
        }
        self.waiting.retain(|w| w.lane.0 != id);
    }

    pub fn alter_stream(&mut self, id: StreamId) {
        let options = self.options();
        self.log().alter_stream(id, options.clone()).unwrap();
        self.streams.insert(id, options);
    }

    /// A chunk of a few records of nothing in particular.
    fn chunk(&mut self, name: Name, producer: u64, epoch: u16, sequence: u64) -> Vec<u8> {
        let payload = match self.random.below(40) {
            0 => self.random.below(60_000),
            1..8 => self.random.below(6_000),
            _ => self.random.below(300),
        } as usize;
        let mut buffer = vec![0; CHUNK_HEADER_BYTES + 64 + payload];
        let salt = self.random.next().to_le_bytes();
        buffer[CHUNK_HEADER_BYTES..].chunks_mut(8).for_each(|part| part.copy_from_slice(&salt[..part.len()]));
        let target = ChunkTarget {
            stream: name.0,
            streamlet: name.1,
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch(epoch),
            sequence,
        };
        let records = 1 + self.random.below(4) as u32;
        seal_in_place(&mut buffer, &target, PayloadKind::Records, Compression::None, records, NO_TIMESTAMP).unwrap();
        buffer
    }

    /// Appends something: mostly what comes next, sometimes what must not.
    pub fn append(&mut self) {
        let Some(name) = self.any_lane() else { return };
        let producer = if self.random.one_in(12) { 0 } else { 1 + self.random.below(4) };
        let (mut epoch, mut sequence) = self.sequences.get(&(name, producer)).copied().unwrap_or_default();
        let chunk = match self.random.below(24) {
            0 => {
                sequence += 1 + self.random.below(3);
                self.chunk(name, producer, epoch, sequence)
            }
            1 if epoch > 0 => self.chunk(name, producer, epoch - 1, sequence),
            2 => {
                let begins = if self.random.one_in(4) { self.random.below(3) } else { 0 };
                (epoch, sequence) = (epoch + 1, begins);
                self.chunk(name, producer, epoch, sequence)
            }
            3..6 if !self.sent.is_empty() => {
                let at = self.random.below(self.sent.len() as u64) as usize;
                let (name, chunk) = self.sent[at].clone();
                self.deliver(name, chunk, false);
                return;
            }
            _ => self.chunk(name, producer, epoch, sequence),
        };
        self.deliver(name, chunk, true);
    }

    /// Gives a chunk to both logs.
    fn deliver(&mut self, name: Name, chunk: Vec<u8>, fresh: bool) {
        if self.random.one_in(30) {
            self.deliver_corrupt(name, &chunk);
        }
        let view = ChunkView::parse(&chunk).unwrap();
        let header = *view.header();
        let (producer, epoch, sequence) = (header.producer_id.0, header.producer_epoch.0, header.sequence);
        let mut verdict = self.lanes[&name].verdict(producer, epoch, sequence);
        if self.planted == Some(Planted::SkippedDedupe) && matches!(verdict, Verdict::Duplicate(_)) {
            verdict = Verdict::Append;
        }
        if self.random.one_in(16) {
            self.now_ms += self.random.below(40) as i64 - 5;
        }
        let result = self.append_with_room(name, &view);
        self.count(match verdict {
            Verdict::Append => "append",
            Verdict::Duplicate(_) => "duplicate",
            Verdict::Gap(_) => "gap",
            Verdict::Stale(_) => "stale",
        });
        let power = self.streams[&name.0].durability == Durability::Power;
        match (verdict, result) {
            (Verdict::Append, Ok(appended)) => {
                self.check_appended(name, &header, &chunk, appended, power);
                self.sequences.insert((name, producer), (epoch, sequence + 1));
                if fresh {
                    let at = self.random.below(200) as usize;
                    if at < self.sent.len() { self.sent[at] = (name, chunk) } else { self.sent.push((name, chunk)) }
                }
            }
            (Verdict::Duplicate(place), Ok(appended)) => {
                assert!(appended.duplicate, "a retry is not appended again");
                let (cursor, base) = place.unwrap_or((Cursor::default(), Appended::UNKNOWN_ORDINAL));
                assert_eq!((appended.cursor, appended.base_ordinal), (cursor, base), "the place of the first");
            }
            (Verdict::Gap(missing), Err(AppendError::SequenceGap { expected, .. })) => assert_eq!(missing, expected),
            (Verdict::Stale(epoch), Err(AppendError::StaleEpoch { current, .. })) => assert_eq!(epoch, current),
            (_, Err(AppendError::SinkUnhealthy(_))) => assert!(power && self.sink.lock().sick),
            (verdict, result) => {
                panic!("{name:?}, chunk {producer}/{epoch}/{sequence}: {verdict:?} and {result:?}")
            }
        }
    }

    fn check_appended(
        &mut self,
        name: Name,
        header: &kera_format::ChunkHeader,
        chunk: &[u8],
        appended: Appended,
        power: bool,
    ) {
        let now_ms = self.now_ms;
        let lane = self.lanes.get_mut(&name).unwrap();
        assert!(!appended.duplicate);
        assert_eq!(appended.base_ordinal, lane.next_ordinal, "ordinals are given out without gaps");
        assert_eq!(appended.ticket.is_some(), power);
        if let Some(last) = lane.chunks.back() {
            assert!(appended.cursor > last.cursor, "cursors grow along a lane");
        }
        lane.push(Chunk {
            cursor: appended.cursor,
            bytes: chunk.len() as u32,
            base: appended.base_ordinal,
            records: header.record_count,
            append_ms: now_ms.max(lane.last_ms),
            producer: header.producer_id.0,
            epoch: header.producer_epoch.0,
            sequence: header.sequence,
            checksum: header.producer_checksum,
            settled: !power,
            power,
        });
    }

    /// A changed bit is noticed and changes nothing, whichever it is and whatever the chunk would have been.
    fn deliver_corrupt(&mut self, name: Name, chunk: &[u8]) {
        let mut bad = chunk.to_vec();
        let payload_end = ChunkView::parse(chunk).unwrap().header().unpadded_bytes() as u64;
        let at = 40 + self.random.below(payload_end - 40) as usize;
        bad[at] ^= 1 << self.random.below(8);
        let Ok(view) = ChunkView::parse(&bad) else { return };
        let result = self.lane(name).append(&view, self.now_ms);
        assert!(
            matches!(
                result,
                Err(AppendError::Format(_)
                    | AppendError::ArenaFull(_)
                    | AppendError::SinkUnhealthy(_)
                    | AppendError::ChunkTooLarge { .. })
            ),
            "a changed bit at {at}: {result:?}"
        );
        self.count("corrupt");
    }

    /// Appends, making room if there is none; that there is none for ever is an error.
    fn append_with_room(&mut self, name: Name, view: &ChunkView<'_>) -> Result<Appended, AppendError> {
        let lane = self.lane(name);
        for round in 0..4 {
            match lane.append(view, self.now_ms) {
                Err(AppendError::ArenaFull(full)) => {
                    self.full += 1;
                    let bell: Arc<dyn Observer> = Arc::new(Bell::default());
                    let waits = self.log().wait_for_space(full.seen, &bell, 0);
                    assert!(waits, "nothing was freed between the append and here");
                    self.make_room(round);
                }
                Err(AppendError::SinkUnhealthy(_)) if round == 3 => break,
                result => return result,
            }
        }
        panic!("everything was synced, written out and evicted, and still there is no room: {:?}", self.log().stats())
    }

    /// What the threads of a node do when the arena is full, one after the other.
    pub fn make_room(&mut self, round: u64) {
        self.sink.lock().sick = false;
        self.sync(usize::MAX);
        while self.store.persist_one(self.log()) {}
        if round > 0 {
            self.pins.clear();
            self.log().close_coldest();
            self.sync(usize::MAX);
            while self.store.persist_one(self.log()) {}
        }
        if round > 1 {
            self.log().close_idle(self.now_ms, -1);
            while self.store.persist_one(self.log()) {}
        }
        let mut stored: Vec<SegmentId> = self.store.lock().disk.keys().copied().collect();
        stored.sort_unstable();
        for id in stored {
            self.log().evict(id);
        }
        self.count("make room");
    }

    /// The virtual log syncs; chunks become readable, and waiting readers are told.
    pub fn sync(&mut self, count: usize) {
        let places: HashSet<(SegmentId, u32)> = {
            let sink = self.sink.lock();
            sink.pending.iter().take(count).map(|(_, r)| (r.segment.id(), r.position)).collect()
        };
        self.sink.sync(count);
        for (name, lane) in &mut self.lanes {
            lane.settle(&places, |chunk| World::segment_id(*name, chunk));
        }
    }

    /// Somebody waits for a lane at its end.
    pub fn wait(&mut self, name: Name, version: LaneVersion) {
        let deaf = self.planted == Some(Planted::LostWakeUp) && self.random.one_in(50);
        let bell = Arc::new(Bell { deaf, ..Bell::default() });
        let observer: Arc<dyn Observer> = bell.clone();
        let lane = self.lane(name);
        if lane.wait(version, &observer, 7) {
            self.waiting.push(Waiting { bell, lane: name, durable_ordinal: lane.durable_ordinal() });
        }
    }

    /// The process dies and another one starts on what it left.
    pub fn kill(&mut self) {
        self.stop();
        self.start();
        let durable: HashMap<StreamId, Durability> = self.streams.iter().map(|(&id, o)| (id, o.durability)).collect();
        self.restarted(&durable);
        self.count("kill");
    }

    /// The machine loses power: what is not on disk is gone.
    pub fn reboot(&mut self) {
        self.stop();
        std::fs::remove_file(self.arena_path()).unwrap();
        let disk: HashSet<SegmentId> = self.store.lock().disk.keys().copied().collect();
        let synced: HashSet<(SegmentId, u64)> = self
            .sink
            .lock()
            .synced
            .iter()
            .map(|(id, chunk)| (*id, ChunkView::parse(chunk).unwrap().broker().unwrap().base_ordinal))
            .collect();
        for (name, lane) in &mut self.lanes {
            lane.chunks.retain(|chunk| {
                let id = World::segment_id(*name, chunk);
                disk.contains(&id) || synced.contains(&(id, chunk.base))
            });
            lane.chunks.iter_mut().for_each(|chunk| chunk.settled = true);
        }
        self.start();
        let durable: HashMap<StreamId, Durability> = self.streams.keys().map(|&id| (id, Durability::Process)).collect();
        self.restarted(&durable);
        self.count("reboot");
    }

    fn arena_path(&self) -> PathBuf {
        self.dir.path().join("model.arena")
    }

    fn stop(&mut self) {
        let log = self.log.take().expect("a log");
        assert_eq!(Arc::strong_count(&log), 1);
        drop(log);
        self.store.kill();
        self.sink.kill();
        self.pins.clear();
        self.waiting.clear();
    }

    fn start(&mut self) {
        let config = ArenaConfig { path: self.arena_path(), bytes: ARENA_BYTES, node: [1; 16] };
        let (arena, attach) = Arena::create_or_attach_with(config, BlockSize::Roomy).unwrap();
        let config = LogConfig { segment_arena_share: 8, producers_kept_ms: PRODUCERS_KEPT_MS, ..LogConfig::default() };
        let log = Log::new(config, arena);
        log.set_store(Arc::clone(&self.store) as _);
        let sink: Arc<dyn DurabilitySink> = Arc::clone(&self.sink) as _;
        log.set_sinks(Arc::new(vec![sink]));
        for (&id, options) in &self.streams {
            log.create_stream(id, options.clone()).unwrap();
        }
        let mut segments = match attach {
            Attach::Created => Vec::new(),
            Attach::Attached { segments, set_aside, same_boot, kept_bytes } => {
                assert!(set_aside.is_empty() && same_boot && kept_bytes.is_none(), "{set_aside:?}");
                assert!(segments.iter().all(|s| s.cut.is_none()));
                segments
            }
        };
        if self.planted == Some(Planted::ForgottenTail) {
            segments.pop();
        }
        let mut stored: Vec<_> = self.store.lock().disk.values().map(|(stored, _)| stored.clone()).collect();
        stored.sort_unstable_by_key(|s| s.at.offset);
        let report = log.recover(stored, segments);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let synced = self.sink.lock().synced.clone();
        for (id, chunk) in synced {
            match log.restore_chunk(0, &chunk) {
                Ok(Restored::UnknownStream) => assert!(!self.streams.contains_key(&id.stream)),
                Ok(_) => assert!(self.streams.contains_key(&id.stream)),
                Err(error) => panic!("{id}: {error}"),
            }
        }
        self.epoch += 1;
        // Holes are reported, and here they are expected: see `reboot`.
        log.finish_recovery(self.epoch);
        self.log = Some(log);
    }

    /// Takes over into the model what a restart makes of lanes, and checks their ends.
    fn restarted(&mut self, durability: &HashMap<StreamId, Durability>) {
        let names: Vec<Name> = self.lanes.keys().copied().collect();
        for name in names {
            let stats = self.lane(name).stats();
            let store = self.store.lock();
            let lane = self.lanes.get_mut(&name).unwrap();
            lane.restart(stats.first_ordinal, durability[&name.0], |chunk| {
                store.disk.contains_key(&World::segment_id(name, chunk))
            });
            let last = lane.chunks.back().map_or(stats.first_ordinal, Chunk::next);
            assert!(stats.next_ordinal >= last, "{name:?} ends at {}, not {last}", stats.next_ordinal);
            let lost_only = stats.next_ordinal <= lane.next_ordinal;
            assert!(lost_only, "{name:?}: {} records out of nowhere", stats.next_ordinal - lane.next_ordinal);
            lane.next_ordinal = stats.next_ordinal;
            lane.last_ms =
                lane.chunks.back().map_or(stats.last_append_ms, |chunk| chunk.append_ms.max(stats.last_append_ms));
            assert_eq!(stats.durable_ordinal, lane.durable_ordinal(), "{name:?}");
            drop(store);
            // Ordinals of records that were lost are given out again.
            for bookmark in self.bookmarks.iter_mut().filter(|b| b.lane == name) {
                bookmark.ordinal = bookmark.ordinal.min(stats.next_ordinal);
            }
            for producer in 1..=4 {
                match self.lanes[&name].producer(producer) {
                    Some((epoch, last)) => self.sequences.insert((name, producer), (epoch, last + 1)),
                    None => self.sequences.remove(&(name, producer)),
                };
            }
        }
    }

    /// Keeps some of what readers were given, to see later that it did not change.
    pub fn pin(&mut self, data: &[Bytes]) {
        for bytes in data {
            if self.random.one_in(40) && self.pins.len() < 12 {
                self.pins.push((bytes.clone(), crc32c(bytes)));
            }
        }
    }
}
