//! Compaction against a list of everything that was ever appended: random appends (KerA's records and Kafka's batches, all
//! compressions, tombstones, transactions), passes that are stopped anywhere, kills, power cuts at any step of the disk, and writes that fail.
//!
//! After each of them readers from anywhere see records that were appended, in order, under their ordinals; what is missing has
//! a later record of its key, or is a tombstone whose time was up, or was aborted; and applying what is read gives the state that
//! applying everything gives. `KERA_MODEL_SEED` runs one seed only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kera_env::{Clock, Disk, FaultyDisk, ManualClock, MemoryDisk, OpenMode, SeededRandom};
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::kafka_batch::{KafkaBatchView, KafkaRecords, put_varint};
use kera_format::kafka_codec::KafkaCodec;
use kera_format::{
    BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkView, Cleanup, Compression, Cursor, GroupId, LaneId, ProducerId,
    Record, Records, SegmentIndex, StreamId, StreamOptions, StreamletId,
};
use kera_log::compact::{CompactionConfig, Compactor, Holder, Others, Run, Stepped};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{
    AppendError, Appended, Arena, ArenaConfig, Attach, AwaitedSegment, Lane, LaneHandover, Log, LogConfig, Lookup,
    LostLane, Rebuilt, Restored, Scrubber, Streamlet, Visibility,
};

const NODE: [u8; 16] = *b"a node for tests";
const STREAM: StreamId = StreamId(1);
const TOMBSTONE_MS: i64 = 60_000;
/// A lane whose pass failed is tried again after so long.
const RETRY_MS: u64 = 100;
const SEEDS: u64 = 6;
const OPERATIONS: u32 = 8_000;
const PRODUCERS: u64 = 4;

/// What was appended under one ordinal. Markers have no key.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Written {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    aborted: bool,
    at_ms: i64,
}

/// A record that a reader was given: ordinal, key, value.
type Found = (u64, Option<Vec<u8>>, Option<Vec<u8>>);
/// Producer, first ordinal and marker of an aborted transaction.
type Aborted = (i64, u64, u64);

/// Transactions: where the one that runs began, and what was aborted.
#[derive(Default, Debug)]
struct Transactions(Mutex<(Option<u64>, Vec<Aborted>)>);

impl Visibility for Transactions {
    fn end(&self, durable: u64) -> u64 {
        self.0.lock().unwrap().0.map_or(durable, |open| open.min(durable))
    }
    fn hidden(&self, from: u64, to: u64) -> Vec<(i64, u64)> {
        let known = self.0.lock().unwrap();
        let of = known.1.iter().filter(|(_, first, marker)| *marker >= from && *first < to);
        of.map(|(producer, first, _)| (*producer, *first)).collect()
    }
}

struct World {
    seeded: SeededRandom,
    memory: MemoryDisk,
    disk: FaultyDisk,
    /// A second one, which no power cut changes.
    second: Option<FaultyDisk>,
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    log: Option<Arc<Log>>,
    store: Option<Arc<DiskStore>>,
    compactor: Option<Compactor>,
    epoch: u32,
    written: Vec<Written>,
    transactions: Arc<Transactions>,
    /// Nothing is compacted by the way.
    is_quiet: bool,
    /// The ids of producers are above it.
    producers_from: u64,
    /// So many producers a lane remembers.
    producers_max: usize,
    sequences: BTreeMap<u64, u64>,
    last_sent: BTreeMap<u64, (Vec<u8>, u64)>,
    bookmarks: Vec<(Cursor, u64)>,
    /// Chunks that a virtual log has, too: a start offers them.
    in_virtual_log: Vec<Vec<u8>>,
    counts: BTreeMap<&'static str, u64>,
}

fn batch(records: &[Written], codec: KafkaCodec, attributes: i16, producer: (i64, i32)) -> Vec<u8> {
    let mut body = Vec::new();
    for (delta, written) in records.iter().enumerate() {
        let mut fields = vec![0];
        put_varint(0, &mut fields);
        put_varint(delta as i64, &mut fields);
        for part in [&written.key, &written.value] {
            put_varint(part.as_ref().map_or(-1, |bytes| bytes.len() as i64), &mut fields);
            fields.extend_from_slice(part.as_deref().unwrap_or_default());
        }
        put_varint(0, &mut fields);
        put_varint(fields.len() as i64, &mut body);
        body.extend_from_slice(&fields);
    }
    let mut batch = vec![0; 61];
    batch.extend_from_slice(&codec.compress(&body));
    let length = batch.len() as u32 - 12;
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(8, &length.to_be_bytes());
    put(16, &[2]);
    put(21, &(attributes | codec as i16).to_be_bytes());
    put(23, &(records.len() as u32 - 1).to_be_bytes());
    put(43, &producer.0.to_be_bytes());
    put(53, &producer.1.to_be_bytes());
    put(57, &(records.len() as u32).to_be_bytes());
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

impl World {
    fn new(seed: u64) -> World {
        let shared = PathBuf::from("/dev/shm");
        let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let memory = MemoryDisk::new();
        let mut world = World {
            seeded: SeededRandom::new(seed),
            disk: FaultyDisk::new(Arc::new(memory.clone())),
            memory,
            second: None,
            dir: dir.unwrap(),
            clock: Arc::new(ManualClock::new(1_000_000)),
            log: None,
            store: None,
            compactor: None,
            epoch: 0,
            written: Vec::new(),
            transactions: Arc::default(),
            is_quiet: false,
            producers_from: 0,
            producers_max: LogConfig::default().producers_per_lane_max,
            sequences: BTreeMap::new(),
            last_sent: BTreeMap::new(),
            bookmarks: Vec::new(),
            in_virtual_log: Vec::new(),
            counts: BTreeMap::new(),
        };
        world.start();
        world
    }

    fn below(&self, limit: u64) -> u64 {
        kera_env::Random::below(&self.seeded, limit)
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn start(&mut self) {
        self.epoch += 1;
        let config = StoreConfig {
            node: NODE,
            container_bytes: 512 << 10,
            batch_bytes: 128 << 10,
            write_delay_ms: 0,
            release_delay_ms: 0,
            ..StoreConfig::default()
        };
        let disks = [Some(&self.disk), self.second.as_ref()].into_iter().flatten();
        let disks = disks.map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
        let clock: Arc<dyn Clock> = self.clock.clone();
        let random = Arc::new(SeededRandom::new(self.epoch.into()));
        let path = self.dir.path().join("arena");
        let (arena, attach) = Arena::create_or_attach(ArenaConfig { path, bytes: 8 << 20, node: NODE }).unwrap();
        let (opened, attached) = match attach {
            Attach::Created => (DiskStore::open(config, disks, Arc::clone(&clock), random.clone()), Vec::new()),
            Attach::Attached { segments, .. } => {
                let in_memory = segments.iter().map(|attached| attached.segment.id()).collect();
                (DiskStore::open_after_kill(config, disks, Arc::clone(&clock), random.clone(), &in_memory), segments)
            }
        };
        let (store, recovery) = opened.unwrap();
        assert_eq!((recovery.problems, recovery.lacks), (Vec::new(), Vec::new()));
        let producers_per_lane_max = self.producers_max;
        // All lanes together know some 2,000 producers.
        let config = LogConfig {
            segment_arena_share: 64,
            producers_per_lane_max,
            producers_bytes_min: 0,
            ..LogConfig::default()
        };
        let log = Log::new(config, arena);
        log.set_store(store.clone());
        store.attach(&log);
        let options = StreamOptions {
            segments_per_group: 3,
            segment_bytes_max: 64 << 10,
            cleanup: Cleanup::Compact,
            compact_dirty_percent: 20,
            tombstone_ms: TOMBSTONE_MS as u64,
            ..StreamOptions::default()
        };
        log.create_stream(STREAM, options).unwrap();
        let report = log.recover(recovery.segments, attached);
        assert_eq!(report.problems, Vec::<String>::new());
        for chunk in &self.in_virtual_log {
            assert_eq!(log.restore_chunk(0, chunk), Ok(Restored::Stored));
        }
        assert_eq!(log.finish_recovery(self.epoch), Vec::<String>::new());
        // Keys do not all fit into the table of one pass.
        let config = CompactionConfig { keys_bytes: 24 * 300, retry_ms: RETRY_MS, knows_transactions: false };
        self.compactor = Some(Compactor::new(Arc::clone(&log), Arc::clone(&store), clock, &*random, config));
        (self.log, self.store) = (Some(log), Some(store));
        let transactions = Arc::clone(&self.transactions);
        self.lane().set_visibility(|| transactions);
    }

    fn lane(&self) -> Arc<Lane> {
        let stream = self.log.as_ref().unwrap().stream(STREAM).unwrap();
        Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap())
    }

    /// Whatever compaction has taken of it, its segments follow each other by their ordinals, from the first record that there ever was to the last: that tells a
    /// lane that lacks nothing from one that does.
    fn check_is_whole(&self) {
        self.log.as_ref().unwrap().close_all();
        self.settle();
        let stream = self.log.as_ref().unwrap().stream(STREAM).unwrap();
        let whole = stream.streamlet(StreamletId(0)).unwrap().whole_lanes();
        assert_eq!(whole, Some(vec![(LaneId(0), 0, self.written.len() as u64)]));
    }

    fn settle(&self) {
        for _ in 0..2_000 {
            if self.store.as_ref().unwrap().step() != Step::Again {
                return;
            }
        }
    }

    fn record(&self, aborted: bool) -> Written {
        let keys = [12, 2_000][self.below(2) as usize];
        let key = format!("key {}", self.below(keys)).into_bytes();
        let words = 1 + self.below(60);
        let value = (self.below(5) > 0)
            .then(|| (0..words).flat_map(|_| kera_env::Random::next_u64(&self.seeded).to_le_bytes()).collect());
        Written { key: Some(key), value, aborted, at_ms: self.clock.now_ms() }
    }

    fn target(&mut self, producer: u64, sequence: u64) -> ChunkTarget {
        ChunkTarget { stream: STREAM, producer_id: ProducerId(producer), sequence, ..ChunkTarget::default() }
    }

    /// Appends a sealed chunk and notes what is in it.
    fn deliver(&mut self, chunk: Vec<u8>, records: Vec<Written>) -> u64 {
        let view = ChunkView::parse(&chunk).unwrap();
        let appended = loop {
            match self.lane().append(&view, self.clock.now_ms()) {
                Ok(appended) => break appended,
                Err(kera_log::AppendError::ArenaFull(_)) => {
                    self.log.as_ref().unwrap().close_coldest();
                    self.clock.advance_ms(100);
                    self.settle();
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((appended.base_ordinal, appended.duplicate), (self.written.len() as u64, false));
        if self.below(4) == 0 {
            self.bookmarks.push((appended.cursor, appended.base_ordinal));
        }
        self.written.extend(records);
        appended.base_ordinal
    }

    fn append(&mut self) {
        let count = 1 + self.below(12);
        let records: Vec<Written> = (0..count).map(|_| self.record(false)).collect();
        let producer = self.producers_from + self.below(PRODUCERS) + 1;
        let chunk = if producer.is_multiple_of(2) {
            let next = self.sequences.get(&producer).copied().unwrap_or(0);
            self.sequences.insert(producer, next + count);
            let codec = KafkaCodec::from_attributes(self.below(5) as i16).unwrap();
            self.kafka(&batch(&records, codec, 0, (producer as i64, next as i32)), count, producer, next + count - 1)
        } else {
            let sequence = self.sequences.get(&producer).copied().unwrap_or(0);
            self.sequences.insert(producer, sequence + 1);
            let mut builder = ChunkBuilder::default();
            for record in &records {
                let key = record.key.as_deref().unwrap();
                builder.push(&Record { keys: &[key], value: record.value.as_deref(), ..Record::default() });
            }
            let compression = [Compression::None, Compression::Lz4, Compression::Zstd][self.below(3) as usize];
            builder.seal(&self.target(producer, sequence), compression).unwrap()
        };
        let base = self.deliver(chunk.clone(), records);
        self.last_sent.insert(producer, (chunk, base));
        self.count("append");
    }

    fn kafka(&mut self, batch: &[u8], count: u64, producer: u64, last_sequence: u64) -> Vec<u8> {
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(batch);
        let target = self.target(producer, last_sequence);
        let kind = PayloadKind::KafkaBatch;
        seal_in_place(&mut chunk, &target, kind, Compression::None, count as u32, NO_TIMESTAMP).unwrap();
        chunk
    }

    /// A transaction of a few batches and its marker, with others' records in between.
    fn transaction(&mut self) {
        let (producer, aborted) = (1_000_000 + self.below(3) as i64, self.below(2) == 0);
        let mut first = None;
        for _ in 0..1 + self.below(3) {
            let records: Vec<Written> = (0..1 + self.below(6)).map(|_| self.record(aborted)).collect();
            let count = records.len() as u64;
            let chunk = self.kafka(&batch(&records, KafkaCodec::Lz4, 16, (producer, -1)), count, 0, 0);
            let base = self.deliver(chunk, records);
            if first.is_none() {
                first = Some(base);
                self.transactions.0.lock().unwrap().0 = Some(base);
            }
            if self.below(2) == 0 {
                self.append();
            }
            if !self.is_quiet && self.below(3) == 0 {
                self.compact();
            }
        }
        let key = vec![0, 0, 0, u8::from(!aborted)];
        let marker = Written { key: Some(key), value: Some(vec![0; 6]), aborted: false, at_ms: self.clock.now_ms() };
        let marker = batch(&[marker], KafkaCodec::None, 16 | 32, (producer, -1));
        let nothing = Written { key: None, value: None, aborted: false, at_ms: 0 };
        let chunk = self.kafka(&marker, 1, 0, 0);
        let at = self.deliver(chunk, vec![nothing]);
        let mut known = self.transactions.0.lock().unwrap();
        known.0 = None;
        if aborted {
            known.1.push((producer, first.unwrap(), at));
        }
        drop(known);
        self.count(if aborted { "abort" } else { "commit" });
    }

    /// The last chunk of a producer comes once more.
    fn retry(&mut self) {
        let producer = self.producers_from + self.below(PRODUCERS) + 1;
        let Some((chunk, base)) = self.last_sent.get(&producer).cloned() else { return };
        let appended = self.lane().append(&ChunkView::parse(&chunk).unwrap(), self.clock.now_ms()).unwrap();
        let known = [base, Appended::UNKNOWN_ORDINAL].contains(&appended.base_ordinal);
        assert!(appended.duplicate && known, "{producer}: {appended:?}, it was appended at {base}");
        self.count("retry");
    }

    fn compact(&mut self) {
        let mut left = if self.below(3) == 0 { self.below(20) } else { u64::MAX };
        let done = self.compactor.as_ref().unwrap().step(&mut || {
            left = left.saturating_sub(1);
            left > 0
        });
        self.count(match done {
            Stepped::Passed => "pass",
            Stepped::Rested => "no pass",
            Stepped::Failed | Stepped::DiskFailed => "failed pass",
        });
    }

    /// The process ends at once. What is in memory stays.
    fn kill(&mut self) {
        (self.compactor, self.log, self.store) = (None, None, None);
        self.disk = FaultyDisk::new(Arc::new(self.memory.clone()));
        self.start();
        assert_eq!(self.lane().stats().next_ordinal, self.written.len() as u64, "a kill loses nothing");
        self.count("kill");
    }

    /// The machine loses power: what was not stored is lost, a prefix stays.
    fn power_cut(&mut self) {
        let stored = self.stored_to();
        (self.compactor, self.log, self.store) = (None, None, None);
        std::fs::remove_file(self.dir.path().join("arena")).unwrap();
        self.memory.crash(kera_env::Random::next_u64(&self.seeded));
        self.disk = FaultyDisk::new(Arc::new(self.memory.clone()));
        self.start();
        let end = self.lane().stats().next_ordinal;
        assert!(end >= stored, "stored up to {stored}, there are {end}");
        self.written.truncate(end as usize);
        self.bookmarks.retain(|(_, ordinal)| *ordinal < end);
        // Producers go on under other names: what they sent may be lost.
        self.producers_from += PRODUCERS;
        self.sequences.clear();
        self.last_sent.clear();
        let mut known = self.transactions.0.lock().unwrap();
        known.0 = None;
        // Without its marker nothing says that a transaction was aborted.
        for (_, first, _) in known.1.extract_if(.., |(_, _, marker)| *marker >= end) {
            self.written.iter_mut().skip(first as usize).for_each(|written| written.aborted = false);
        }
        drop(known);
        self.count("power cut");
    }

    fn stored_to(&self) -> u64 {
        let lane = self.lane();
        let mut stored = 0;
        for group in lane.groups(kera_format::GroupId::NONE, usize::MAX) {
            for segment in lane.segments(group.id, None, usize::MAX).unwrap() {
                if segment.on_disk {
                    stored = segment.durable_ordinal;
                }
            }
        }
        stored
    }

    /// Reads from a cursor to the end: ordinals and what is under them.
    fn read(&self, mut cursor: Cursor) -> Vec<Found> {
        let mut found = Vec::new();
        let mut retries = 0;
        loop {
            let outcome = match self.lane().read(cursor, 1 + self.below(50_000) as usize, true) {
                Ok(outcome) => outcome,
                Err(kera_log::ReadError::LoadFailed(error)) => {
                    retries += 1;
                    assert!(retries < 20, "{error}");
                    continue;
                }
                Err(error) => panic!("{cursor:?}: {error}"),
            };
            for data in &outcome.data {
                for chunk in Chunks::new(data) {
                    let chunk = chunk.unwrap();
                    chunk.verify().unwrap();
                    take(&chunk, &mut found);
                }
            }
            cursor = outcome.next;
            if outcome.loading {
                self.settle();
            } else if outcome.at_durable_end {
                return found;
            }
        }
    }

    fn check(&mut self) {
        let found = self.read(Cursor::default());
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "ordinals rise");
        let mut last: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (ordinal, written) in (0_u64..).zip(&self.written) {
            if let Some(key) = written.key.as_deref().filter(|_| !written.aborted) {
                last.insert(key, ordinal);
            }
        }
        let there: BTreeMap<u64, _> = found.iter().map(|(ordinal, key, value)| (*ordinal, (key, value))).collect();
        for (ordinal, written) in (0_u64..).zip(&self.written) {
            let Some(key) = &written.key else { continue };
            match there.get(&ordinal) {
                Some((found_key, found_value)) => {
                    assert_eq!((*found_key, *found_value), (&written.key, &written.value), "ordinal {ordinal}");
                }
                None if written.aborted || last[&key[..]] > ordinal => {}
                None => {
                    assert_eq!(written.value, None, "{ordinal}: the last record of its key is gone");
                    let age_ms = self.clock.now_ms() - written.at_ms;
                    assert!(age_ms >= TOMBSTONE_MS, "{ordinal}: the tombstone is gone after {age_ms} ms");
                }
            }
        }
        let mut state: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
        for (ordinal, key, value) in &found {
            let Some(key) = key.as_deref().filter(|_| !self.written[*ordinal as usize].aborted) else { continue };
            match value {
                Some(value) => drop(state.insert(key, value)),
                None => drop(state.remove(key)),
            }
        }
        for (key, ordinal) in &last {
            let expected = self.written[*ordinal as usize].value.as_deref();
            assert_eq!(state.get(key).copied(), expected, "{}", String::from_utf8_lossy(key));
        }
        self.check_places(&found);
        *self.counts.entry("removed").or_default() += self.written.len() as u64 - found.len() as u64;
    }

    /// Readers that come back to a place they had, or look for an ordinal, miss nothing.
    fn check_places(&mut self, found: &[Found]) {
        for _ in 0..3.min(self.bookmarks.len()) {
            let (cursor, ordinal) = self.bookmarks[self.below(self.bookmarks.len() as u64) as usize];
            let expected: Vec<u64> = found.iter().map(|one| one.0).filter(|one| *one >= ordinal).collect();
            let got: Vec<u64> = self.read(cursor).into_iter().map(|one| one.0).collect();
            assert_eq!(got, expected, "from {cursor:?}, where ordinal {ordinal} was");
        }
        for _ in 0..3.min(self.written.len()) {
            let ordinal = self.below(self.written.len() as u64);
            let cursor = loop {
                match self.lane().lookup_ordinal(ordinal) {
                    Ok(Lookup::Found { cursor, .. }) => break cursor,
                    Ok(Lookup::Loading(_)) | Err(kera_log::ReadError::LoadFailed(_)) => self.settle(),
                    Err(error) => panic!("{error}"),
                }
            };
            let expected: Vec<u64> = found.iter().map(|one| one.0).filter(|one| *one >= ordinal).collect();
            let got = self.read(cursor).into_iter().map(|one| one.0).filter(|one| *one >= ordinal);
            assert_eq!(got.collect::<Vec<_>>(), expected, "looked up {ordinal}");
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..70 => self.append(),
            70..74 => self.transaction(),
            74..78 => self.retry(),
            78..85 => {
                self.clock.advance_ms(200);
                self.settle();
            }
            85..90 => self.compact(),
            90..93 => self.clock.advance_ms(1 + self.below(TOMBSTONE_MS as u64 / 2)),
            93 => drop(self.log.as_ref().unwrap().close_idle(self.clock.now_ms(), 0)),
            94 => self.check(),
            95 => self.kill(),
            96 => {
                self.memory.cut_power_at(1 + self.below(30));
                (0..4).for_each(|_| self.compact());
                self.power_cut();
                self.check();
            }
            97 => {
                self.settle();
                self.power_cut();
            }
            98 => {
                match self.below(3) {
                    0 => self.disk.fail_write(1 + self.below(4)),
                    1 => self.disk.tear_write(1 + self.below(4)),
                    _ => self.disk.fail_sync(1 + self.below(4)),
                }
                self.compact();
                self.count("fault");
            }
            _ => self.evict_all(),
        }
    }

    fn evict_all(&self) {
        let log = self.log.as_ref().unwrap();
        for group in self.lane().groups(kera_format::GroupId::NONE, usize::MAX) {
            for segment in self.lane().segments(group.id, None, usize::MAX).unwrap() {
                let (stream, streamlet, lane) = (STREAM, StreamletId(0), LaneId(0));
                let (group, index) = (group.id, segment.index);
                log.evict(kera_format::SegmentId { stream, streamlet, lane, group, index });
            }
        }
    }
}

/// The records of a chunk that readers are shown, and those of aborted transactions.
fn take(chunk: &ChunkView<'_>, found: &mut Vec<Found>) {
    let base = chunk.broker().unwrap().base_ordinal;
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    if chunk.header().kind == PayloadKind::KafkaBatch {
        let batch = KafkaBatchView::parse(chunk.payload()).unwrap();
        batch.verify().unwrap();
        assert_eq!(batch.offsets(), chunk.header().record_count);
        if batch.is_control() {
            return;
        }
        let records = batch.uncompressed(1 << 20).unwrap();
        for record in KafkaRecords::new(&batch, &records) {
            let record = record.unwrap();
            found.push((base + u64::from(record.offset_delta), owned(record.key), owned(record.value)));
        }
        return;
    }
    let payload = chunk.uncompressed().unwrap();
    let mut count = 0;
    for (ordinal, record) in (base..).zip(Records::new(&payload)) {
        let record = record.unwrap();
        count += 1;
        if !record.is_removed() {
            found.push((ordinal, owned(record.key()), owned(record.value())));
        }
    }
    assert_eq!(count, chunk.header().record_count);
}

#[test]
fn what_is_left_says_what_everything_said() {
    let one = std::env::var("KERA_MODEL_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in one.map_or(1..=SEEDS, |seed| seed..=seed) {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..OPERATIONS {
            world.step();
        }
        world.settle();
        world.check();
        world.check_is_whole();
        println!("{:?} {:?}", world.counts, world.compactor.as_ref().unwrap().stats());
        for (what, count) in &world.counts {
            *all.entry(what).or_default() += count;
        }
    }
    if one.is_some() {
        return;
    }
    for what in ["append", "abort", "commit", "retry", "pass", "kill", "power cut", "fault"] {
        assert!(all.get(what).is_some_and(|count| *count > 5), "{what} hardly happened: {all:?}");
    }
    assert!(all["removed"] > 1_000, "hardly anything was removed: {all:?}");
}

/// A lane with much to remove, all of it stored.
fn prepared() -> World {
    let mut world = World::new(77);
    fill(&mut world);
    world
}

fn fill(world: &mut World) {
    world.is_quiet = true;
    for _ in 0..6 {
        (0..60).for_each(|_| world.append());
        world.transaction();
        world.clock.advance_ms(TOMBSTONE_MS as u64);
        world.log.as_ref().unwrap().close_idle(world.clock.now_ms(), 0);
        world.settle();
    }
}

fn compact_all(world: &World) -> u64 {
    let step = || world.compactor.as_ref().unwrap().step(&mut || true);
    (0..20).map(|_| u64::from(step() == Stepped::Passed)).sum()
}

#[test]
fn a_power_cut_at_any_step_of_a_pass_loses_nothing() {
    let world = prepared();
    let before = world.memory.steps();
    let passes = compact_all(&world);
    let steps = world.memory.steps() - before;
    let stats = world.compactor.as_ref().unwrap().stats();
    assert!(passes > 1, "the keys do not fit into one pass: {stats:?}");
    assert!(steps > 20 && stats.removed_records > 500, "{steps} steps, {stats:?}");
    for step in 1..=steps {
        let mut world = prepared();
        let written = world.written.len();
        world.memory.cut_power_at(step);
        compact_all(&world);
        assert!(world.memory.is_off(), "step {step}");
        world.power_cut();
        assert_eq!(world.written.len(), written, "step {step}: everything was stored");
        world.check();
        compact_all(&world);
        world.check();
        world.kill();
        world.check();
        world.check_is_whole();
    }
}

/// The write of an image is cut off anywhere behind its index, and the arena says nothing of the segment, which was read from the disk.
#[test]
fn a_kill_in_the_middle_of_writing_an_image_leaves_the_segment_as_it_was() {
    let mut world = prepared();
    world.evict_all();
    let ends = |world: &World| -> BTreeMap<String, u64> {
        let names = world.memory.list("containers").unwrap().into_iter().map(|name| format!("containers/{name}"));
        let end = |path: &String| world.memory.open(path, OpenMode::Read, false).unwrap().len().unwrap();
        names.map(|path| (path.clone(), end(&path))).collect()
    };
    let before = ends(&world);
    let compactor = world.compactor.as_ref().unwrap();
    compactor.step(&mut || compactor.stats().segments == 0);
    assert_eq!(compactor.stats().segments, 1);
    let after = ends(&world);
    let grown = after.iter().filter(|(path, end)| before.get(*path) != Some(end));
    let [(path, end)] = grown.collect::<Vec<_>>()[..] else { panic!("{before:?} {after:?}") };
    let start = before.get(path).copied().unwrap_or(4096) + 4096;
    assert!(end - start > 2 * 4096, "an image of several pages lies from {start} to {end} in {path}");
    world.memory.open(path, OpenMode::ReadWrite, false).unwrap().set_len((start + end) / 2 / 4096 * 4096).unwrap();
    for _ in 0..2 {
        world.kill();
        world.check();
    }
    world.settle();
    assert!(compact_all(&world) > 0);
    world.kill();
    world.check();
    world.check_is_whole();
}

#[test]
fn what_a_virtual_log_still_has_of_compacted_segments_is_known_to_be_stored() {
    let mut world = prepared();
    let mut chunks = Vec::new();
    let mut cursor = Cursor::default();
    loop {
        let outcome = world.lane().read(cursor, 1 << 20, true).unwrap();
        chunks
            .extend(outcome.data.iter().flat_map(|data| Chunks::new(data)).map(|one| one.unwrap().as_bytes().to_vec()));
        cursor = outcome.next;
        if outcome.loading {
            world.settle();
        } else if outcome.at_durable_end {
            break;
        }
    }
    compact_all(&world);
    assert!(world.compactor.as_ref().unwrap().stats().removed_records > 500);
    world.in_virtual_log = chunks;
    world.kill();
    world.check();
    world.power_cut();
    world.check();
}

#[test]
fn a_segment_that_was_on_its_way_from_disk_when_it_was_compacted_is_asked_for_again() {
    let mut world = prepared();
    world.evict_all();
    // Asked for, and not read yet.
    assert!(world.lane().read(Cursor::default(), 1 << 20, true).unwrap().loading);
    compact_all(&world);
    let removed = world.compactor.as_ref().unwrap().stats().removed_records;
    assert!(removed > 500, "{removed}");
    let after = world.read(Cursor::default());
    assert!(after.len() as u64 <= world.written.len() as u64 - removed, "{} are left", after.len());
    world.check();
    // What was released is given back on disk, and nothing else is: a start finds all of it.
    world.settle();
    world.power_cut();
    assert_eq!(world.read(Cursor::default()), after);
}

#[test]
fn records_are_left_alone_for_as_long_as_the_stream_wants() {
    let world = prepared();
    let log = world.log.as_ref().unwrap();
    let options = StreamOptions { compact_after_ms: 10_000_000, ..(*log.stream(STREAM).unwrap().options()).clone() };
    log.alter_stream(STREAM, options.clone()).unwrap();
    assert_eq!(compact_all(&world), 0);
    world.clock.advance_ms(10_000_000);
    assert!(compact_all(&world) > 0);
    // Half of it is not new, but what is has waited for long enough.
    let lane = world.lane();
    let strict = StreamOptions { compact_dirty_percent: 100, compact_after_ms: 0, ..options.clone() };
    log.alter_stream(STREAM, strict.clone()).unwrap();
    let mut world = world;
    (0..60).for_each(|_| world.append());
    let log = world.log.as_ref().unwrap();
    world.settle();
    assert_eq!((compact_all(&world), log.close_old(world.clock.now_ms())), (0, 0));
    log.alter_stream(STREAM, StreamOptions { compact_within_ms: Some(5_000), ..strict }).unwrap();
    assert!(compact_all(&world) > 0, "what was the last segment before is late");
    let compacted = lane.stats().compacted_ordinal;
    world.clock.advance_ms(5_001);
    assert_eq!(log.close_old(world.clock.now_ms()), 1);
    (0..60).for_each(|_| world.append());
    world.settle();
    assert!(compact_all(&world) > 0);
    assert!(world.lane().stats().compacted_ordinal > compacted);
    world.check();
}

/// Another stream, with one lane of batches with these attributes.
fn add_lane(world: &World, attributes: i16) {
    add_lane_of(world, StreamId(2), attributes);
}

fn add_lane_of(world: &World, other: StreamId, attributes: i16) {
    let log = world.log.as_ref().unwrap();
    log.create_stream(other, (*log.stream(STREAM).unwrap().options()).clone()).unwrap();
    let stream = log.stream(other).unwrap();
    let lane = Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap());
    let record = Written { key: Some(b"k".to_vec()), value: Some(vec![7; 9_000]), aborted: false, at_ms: 0 };
    for _ in 0..12 {
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(&batch(std::slice::from_ref(&record), KafkaCodec::None, attributes, (5, -1)));
        let target = ChunkTarget { stream: other, ..ChunkTarget::default() };
        seal_in_place(&mut chunk, &target, PayloadKind::KafkaBatch, Compression::None, 1, NO_TIMESTAMP).unwrap();
        lane.append(&ChunkView::parse(&chunk).unwrap(), world.clock.now_ms()).unwrap();
    }
    world.settle();
}

#[test]
fn all_lanes_are_looked_at_once_for_all_passes_that_are_due() {
    let world = World::new(5);
    (2..17).for_each(|stream| add_lane_of(&world, StreamId(stream), 0));
    let done = || {
        let stats = world.compactor.as_ref().unwrap().stats();
        (stats.passes, stats.looks)
    };
    assert_eq!((compact_all(&world), done()), (15, (15, 6)), "once for what is due, and five times with nothing to do");
    assert!((2..17).all(|stream| {
        let stream = world.log.as_ref().unwrap().stream(StreamId(stream)).unwrap();
        stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap().stats().compacted_ordinal > 0
    }));
    // What has come to be due since is seen after a while, also while there is something to do.
    (20..23).for_each(|stream| add_lane_of(&world, StreamId(stream), 0));
    let step = || world.compactor.as_ref().unwrap().step(&mut || true);
    assert_eq!((step(), done()), (Stepped::Passed, (16, 7)));
    assert_eq!((step(), done()), (Stepped::Passed, (17, 7)));
    world.clock.advance_ms(10_000);
    assert_eq!((step(), done()), (Stepped::Passed, (18, 8)));
    assert_eq!((step(), done()), (Stepped::Rested, (18, 9)));
}

#[test]
fn a_lane_that_cannot_be_compacted_is_in_nobodys_way() {
    let mut world = prepared();
    // Nobody knows how its transactions ended.
    add_lane(&world, 16);
    let compactor = world.compactor.as_ref().unwrap();
    let mut steps = Vec::new();
    while steps.last() != Some(&Stepped::Rested) {
        steps.push(compactor.step(&mut || true));
    }
    let failed = steps.iter().filter(|step| **step == Stepped::Failed).count();
    assert_eq!((failed, compactor.stats().failing_lanes), (1, 1), "{steps:?}");
    assert!(steps.contains(&Stepped::Passed), "{steps:?}");
    world.clock.advance_ms(RETRY_MS);
    assert_eq!(world.compactor.as_ref().unwrap().step(&mut || true), Stepped::Failed, "it is tried again");
    world.check();
}

#[test]
fn a_lane_that_cannot_be_compacted_is_tried_again_whatever_the_clock_is_set_to() {
    let mut world = prepared();
    add_lane(&world, 16);
    compact_all(&world);
    let failures = |world: &World| world.compactor.as_ref().unwrap().stats().failures;
    assert_eq!(failures(&world), 1);
    world.clock.set_now_ms(world.clock.now_ms() - 5 * 3_600_000);
    compact_all(&world);
    assert_eq!(failures(&world), 1, "it is left alone for a while");
    world.clock.advance_ms(RETRY_MS);
    compact_all(&world);
    assert_eq!(failures(&world), 2);
    world.check();
}

#[test]
fn disks_that_take_nothing_are_told_from_a_lane_that_cannot_be_compacted_and_each_lane_gets_its_turn() {
    let mut world = prepared();
    add_lane(&world, 0);
    world.disk.set_space(Some(0));
    let step = |world: &World| world.compactor.as_ref().unwrap().step(&mut || true);
    assert_eq!((step(&world), step(&world), step(&world)), (Stepped::DiskFailed, Stepped::DiskFailed, Stepped::Rested));
    assert_eq!(world.compactor.as_ref().unwrap().stats().failing_lanes, 2);
    world.disk.set_space(None);
    world.clock.advance_ms(RETRY_MS);
    assert!(compact_all(&world) > 1);
    assert_eq!(world.compactor.as_ref().unwrap().stats().failing_lanes, 0);
    world.check();
}

/// Its lane has thrown it out, since others came, and compaction has taken all that it had sent.
#[test]
fn a_producer_that_was_forgotten_goes_on_after_a_start_too() {
    let mut world = World::new(5);
    (world.is_quiet, world.producers_max) = (true, 3);
    world.kill();
    let value = "x".repeat(3_000);
    let again = [("again", Some(&*value))];
    (1..=4).for_each(|producer| assert!(world.send(producer, 0, &again).is_ok()));
    (1..100).for_each(|sequence| assert!(world.send(4, sequence, &again).is_ok()));
    goes_on_after_a_start(&mut world, 4);
}

fn compact_and_cut_power(world: &mut World) {
    world.log.as_ref().unwrap().close_idle(world.clock.now_ms() + 1, 0);
    world.settle();
    assert!(compact_all(world) > 0);
    world.check();
    world.power_cut();
}

/// Producer 1 was forgotten when the power went, behind a compaction, and `known` has sent chunks up to number 99.
fn goes_on_after_a_start(world: &mut World, known: u64) {
    compact_and_cut_power(world);
    let again = [("again", Some("x"))];
    assert!(world.send(1, 1, &again).is_ok(), "nobody can say that anything in front of it is missing");
    // Of one that is known nothing may be left out.
    assert!(matches!(world.send(known, 101, &again), Err(AppendError::SequenceGap { expected: 100, .. })));
    world.check();
}

/// The same where its lane may know many, and all lanes together know nearly as many as they may.
#[test]
fn a_producer_that_was_forgotten_for_others_goes_on_after_a_start_too() {
    let mut world = World::new(5);
    world.is_quiet = true;
    forgotten_for_others(&mut world, 1);
    goes_on_after_a_start(&mut world, 2_500);
}

/// Of these producers all but the last ones are forgotten, and the very last one has sent chunks up to number 99.
fn forgotten_for_others(world: &mut World, first: u64) {
    let again = [("again", Some("x"))];
    (first..=2_500).for_each(|producer| assert!(world.send(producer, 0, &again).is_ok()));
    world.log.as_ref().unwrap().close_idle(world.clock.now_ms() + 1, 0);
    world.settle();
    let kept_ms = LogConfig::default().producers_kept_ms;
    world.clock.advance_ms(kept_ms);
    world.log.as_ref().unwrap().retain(world.clock.now_ms());
    let stats = world.log.as_ref().unwrap().stats();
    assert!(stats.producers < 100 && stats.producers_forgotten > 2_400, "{stats:?}");
    let value = "x".repeat(3_000);
    (1..100).for_each(|sequence| assert!(world.send(2_500, sequence, &[("again", Some(&*value))]).is_ok()));
}

/// Compaction has taken what it had sent last, and not what it had sent before: that is what a start finds.
#[test]
fn a_producer_that_was_forgotten_goes_on_behind_what_is_left_of_it() {
    let mut world = World::new(5);
    world.is_quiet = true;
    assert!(world.send(1, 0, &[("mine", Some("x"))]).is_ok());
    assert!(world.send(1, 1, &[("again", Some("x"))]).is_ok());
    forgotten_for_others(&mut world, 2);
    compact_and_cut_power(&mut world);
    assert!(world.lane().knows_producer(ProducerId(1)));
    let again = [("again", Some("x"))];
    assert!(world.send(1, 2, &again).is_ok(), "nobody can say that anything in front of it is missing");
    let refused = world.send(1, 4, &again);
    assert!(matches!(refused, Err(AppendError::SequenceGap { expected: 3, .. })), "it is known again: {refused:?}");
    world.check();
}

/// A lane that has known all its producers takes nothing out of turn, compacted or not.
#[test]
fn a_lane_that_has_forgotten_nobody_does_so_by_no_start() {
    let mut world = prepared();
    assert!(compact_all(&world) > 0);
    world.kill();
    let refused = world.send(1_000, 1, &[("again", None)]);
    assert!(matches!(refused, Err(AppendError::SequenceGap { expected: 0, .. })), "{refused:?}");
}

#[test]
fn what_a_full_disk_does_not_take_goes_to_another_one() {
    let mut world = World::new(78);
    world.second = Some(FaultyDisk::new(Arc::new(MemoryDisk::new())));
    world.kill();
    fill(&mut world);
    world.disk.set_space(Some(0));
    assert!(compact_all(&world) > 0);
    let stats = world.compactor.as_ref().unwrap().stats();
    assert!((stats.failures, stats.failing_lanes) == (0, 0) && stats.removed_records > 500, "{stats:?}");
    world.settle();
    world.check();
    // The images that the full disk could not give back are still there, and the others count.
    world.kill();
    world.check();
    world.check_is_whole();
}

#[test]
fn a_pass_does_not_read_what_nothing_is_left_of() {
    let mut world = World::new(5);
    world.is_quiet = true;
    world.write(&[("stays", Some("1"))]);
    let mut read = Vec::new();
    for _ in 0..12 {
        let before = world.compactor.as_ref().unwrap().stats().read_bytes;
        world.pass();
        read.push(world.compactor.as_ref().unwrap().stats().read_bytes - before);
    }
    assert!(read[4..].iter().all(|bytes| *bytes == read[4]), "{read:?}");
    world.check();
    // The next life finds out by itself.
    world.kill();
    world.pass();
    world.check();
    world.check_is_whole();
}

/// Other nodes, as a test wants them.
#[derive(Default)]
struct Neighbours {
    runs: Mutex<Option<Vec<Run>>>,
    /// What the other one has; `None`: it does not answer.
    has: Mutex<Option<Vec<Vec<u8>>>>,
    asked: Mutex<Vec<(u32, std::ops::Range<u32>)>>,
}

impl Others for Neighbours {
    fn runs(&self, _: &Lane) -> Option<Vec<Run>> {
        self.runs.lock().unwrap().clone()
    }
    fn read(
        &self,
        _: &Lane,
        node: u32,
        epochs: std::ops::Range<u32>,
        each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
    ) -> Result<(), String> {
        self.asked.lock().unwrap().push((node, epochs));
        let has = self.has.lock().unwrap();
        let has = has.as_ref().ok_or("it does not answer")?;
        let all = has.iter().all(|chunk| each(&ChunkView::parse(chunk).unwrap()));
        all.then_some(()).ok_or_else(|| "it is too much".into())
    }
}

fn runs(of: &[(u32, Holder)]) -> Option<Vec<Run>> {
    Some(of.iter().map(|(first_epoch, holder)| Run { first_epoch: *first_epoch, holder: *holder }).collect())
}

fn native(records: &[(&str, Option<&str>)]) -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    for (key, value) in records {
        builder.push(&Record { keys: &[key.as_bytes()], value: value.map(str::as_bytes), ..Record::default() });
    }
    builder.seal(&ChunkTarget { stream: STREAM, ..ChunkTarget::default() }, Compression::None).unwrap()
}

impl World {
    /// A node of a cluster whose lane is its own from owner epoch 5 on, and begins behind `begin`, which another one has written.
    fn with_neighbours(begin: &[(&str, Option<&str>)]) -> (World, Arc<Neighbours>) {
        let (mut world, neighbours) = (World::new(5), Arc::new(Neighbours::default()));
        world.is_quiet = true;
        let others = Arc::clone(&neighbours) as Arc<dyn Others>;
        world.compactor = world.compactor.take().map(|compactor| compactor.with_others(others));
        world.log.as_ref().unwrap().stream(STREAM).unwrap().place_elsewhere();
        world.note(begin);
        world.streamlet().receive(&[world.handover()]).unwrap();
        world.streamlet().open(5, true).unwrap();
        (world, neighbours)
    }

    fn streamlet(&self) -> Arc<Streamlet> {
        let stream = self.log.as_ref().unwrap().stream(STREAM).unwrap();
        Arc::clone(stream.streamlet(StreamletId(0)).unwrap())
    }

    /// How the lane goes on behind all that was written.
    fn handover(&self) -> LaneHandover {
        LaneHandover {
            lane: LaneId(0),
            next_ordinal: self.written.len() as u64,
            last_append_ms: 0,
            forgot: false,
            hole_end: 0,
            producers: Vec::new(),
            groups: Vec::new(),
        }
    }

    fn note(&mut self, records: &[(&str, Option<&str>)]) {
        let at_ms = self.clock.now_ms();
        let bytes = |text: &str| text.as_bytes().to_vec();
        let of = |(key, value): &(&str, Option<&str>)| (Some(bytes(key)), value.map(bytes));
        let written = records.iter().map(of).map(|(key, value)| Written { key, value, aborted: false, at_ms });
        self.written.extend(written);
    }

    /// A chunk of a producer; what it appends is noted.
    fn send(&mut self, producer: u64, sequence: u64, records: &[(&str, Option<&str>)]) -> Result<(), AppendError> {
        let mut builder = ChunkBuilder::default();
        for (key, value) in records {
            builder.push(&Record { keys: &[key.as_bytes()], value: value.map(str::as_bytes), ..Record::default() });
        }
        let chunk = builder.seal(&self.target(producer, sequence), Compression::None).unwrap();
        self.lane().append(&ChunkView::parse(&chunk).unwrap(), self.clock.now_ms())?;
        self.note(records);
        Ok(())
    }

    fn write(&mut self, records: &[(&str, Option<&str>)]) {
        let view = native(records);
        self.lane().append(&ChunkView::parse(&view).unwrap(), self.clock.now_ms()).unwrap();
        self.note(records);
    }

    /// Has all that is there by now compacted, with the time of all tombstones up that were compacted before.
    fn pass(&mut self) {
        let value = "x".repeat(30_000);
        (0..8).for_each(|_| self.write(&[("again", Some(&value))]));
        self.log.as_ref().unwrap().close_idle(self.clock.now_ms() + 1, 0);
        self.settle();
        assert!(compact_all(self) > 0);
        self.clock.advance_ms(TOMBSTONE_MS as u64);
    }

    /// The keys of tombstones that are there.
    fn tombstones(&self) -> Vec<String> {
        let found = self.read(Cursor { group: GroupId::NONE, ..Cursor::default() });
        let gone = found.into_iter().filter(|(.., value)| value.is_none());
        gone.map(|(_, key, _)| String::from_utf8(key.unwrap()).unwrap()).collect()
    }
}

#[test]
fn a_tombstone_stays_while_another_node_may_have_what_it_hides() {
    let before = [("a", Some("1")), ("b", Some("1")), ("b", None)];
    let (mut world, neighbours) = World::with_neighbours(&before);
    world.write(&[("a", None), ("b", None), ("c", None)]);
    let tell = |of| *neighbours.runs.lock().unwrap() = of;
    let (two, here) = ((2, Holder::Node(2)), (5, Holder::Here));
    tell(runs(&[two, here]));
    (0..3).for_each(|_| world.pass());
    assert_eq!(world.tombstones(), ["a", "b", "c"], "it does not answer");
    assert!(neighbours.asked.lock().unwrap().iter().all(|asked| *asked == (2, 2..5)));
    assert_eq!(neighbours.asked.lock().unwrap().len(), 2, "once in each pass in which their time is up");
    *neighbours.has.lock().unwrap() = Some(vec![native(&[("c", Some("1"))])]);
    for unknown in [None, runs(&[(2, Holder::Nobody), here]), runs(&[(2, Holder::Here), (5, Holder::Node(2))])] {
        tell(unknown);
        world.pass();
        assert_eq!(world.tombstones(), ["a", "b", "c"], "nobody can say what there is");
    }
    // As compaction has left it there: the value of `b` is gone, its tombstone not yet.
    *neighbours.has.lock().unwrap() = Some(vec![native(&before[..1]), native(&before[2..])]);
    tell(runs(&[two, here, (9, Holder::Node(3))]));
    world.pass();
    assert_eq!(world.tombstones(), ["a"]);
    tell(runs(&[(4, Holder::Here)]));
    world.pass();
    assert!(world.tombstones().is_empty());
}

#[test]
fn older_groups_that_come_to_what_was_compacted_are_compared_with_it_and_what_they_hid_stays_hidden() {
    let before = [("a", Some("1")), ("b", Some("1"))];
    let (mut world, neighbours) = World::with_neighbours(&before);
    *neighbours.runs.lock().unwrap() = runs(&[(2, Holder::Node(2)), (5, Holder::Here)]);
    world.write(&[("a", None)]);
    (0..2).for_each(|_| world.pass());
    // The other node is lost, and what it had comes here.
    let mut chunk = native(&before);
    let part = BrokerPart {
        group: GroupId::new(2, 1),
        segment: SegmentIndex(0),
        base_ordinal: 0,
        append_time_ms: 5,
        lane: LaneId(0),
        position: 128,
    };
    part.stamp(&mut chunk);
    let (end, next_ordinal) = (128 + chunk.len() as u32, before.len() as u64);
    let (group, index) = (part.group, part.segment);
    let segment = AwaitedSegment { group, index, end, base_ordinal: 0, next_ordinal, rewrite: 0 };
    let streamlet = world.streamlet();
    streamlet.leave();
    streamlet.receive_lost(&[LostLane { state: world.handover(), segments: vec![segment] }]).unwrap();
    streamlet.open(6, false).unwrap();
    *neighbours.runs.lock().unwrap() = runs(&[(2, Holder::Here)]);
    assert!(matches!(world.log.as_ref().unwrap().rebuild_chunk(&chunk).unwrap(), Rebuilt::Whole { .. }));
    streamlet.end_rebuilding();
    world.pass();
    let found = world.read(Cursor::default());
    assert!(found.iter().all(|(ordinal, ..)| *ordinal != 0), "the tombstone hides it");
    assert_eq!(world.tombstones(), ["a"], "readers of the value have the time that the stream gives them");
    world.pass();
    assert!(world.tombstones().is_empty());
    let keys: Vec<_> = world.read(Cursor::default()).into_iter().filter_map(|(_, key, _)| key).collect();
    assert!(keys.contains(&b"b".to_vec()) && !keys.contains(&b"a".to_vec()));
}

#[test]
fn a_start_does_not_take_compacted_segments_of_two_owners_for_compared_with_each_other() {
    let mut world = prepared();
    assert!(compact_all(&world) > 0);
    let first_end = world.stored_to();
    world.kill();
    let last = |world: &World| world.lane().groups(GroupId::NONE, usize::MAX).last().unwrap().id.epoch();
    let epoch = last(&world);
    (0..120).for_each(|_| world.append());
    world.log.as_ref().unwrap().close_idle(world.clock.now_ms() + 1, 0);
    world.settle();
    assert!(compact_all(&world) > 0 && last(&world) > epoch);
    world.kill();
    let alone = world.lane().stats().compacted_ordinal;
    assert!(alone > first_end, "{alone}, the first ones end at {first_end}");
    let stream = world.log.as_ref().unwrap().stream(STREAM).unwrap();
    stream.place_elsewhere();
    world.streamlet().open(world.epoch + 1, false).unwrap();
    let compared = world.lane().stats().compacted_ordinal;
    assert!(compared > 0 && compared <= first_end, "{compared}, the first ones end at {first_end}");
}

#[test]
fn a_compacted_group_stays_until_what_is_left_of_it_was_read() {
    let mut world = World::new(5);
    world.is_quiet = true;
    let log = Arc::clone(world.log.as_ref().unwrap());
    let options = (*log.stream(STREAM).unwrap().options()).clone();
    log.alter_stream(STREAM, StreamOptions { retention_consumed: true, ..options }).unwrap();
    let value = "x".repeat(20_000);
    let groups = |world: &World| world.lane().groups(GroupId::NONE, usize::MAX);
    while groups(&world).len() < 2 {
        let key = format!("key {}", world.written.len());
        world.write(&[(&key, Some(&value))]);
    }
    let first = groups(&world)[0];
    let last = first.next_ordinal - 1;
    let Ok(Lookup::Found { cursor: unread, .. }) = world.lane().lookup_ordinal(last) else { panic!("it is there") };
    assert_eq!(unread.group, first.id);
    (0..last).for_each(|ordinal| world.write(&[(&format!("key {ordinal}"), Some(&value))]));
    world.pass();
    let segments = world.lane().segments(first.id, None, usize::MAX).unwrap();
    let left: u64 = groups(&world)[0].bytes;
    assert!(left < u64::from(unread.position), "{left} bytes are left, the last chunk was at {}", unread.position);
    let retained = |floor: Cursor| {
        world.lane().set_consumed_floor(Some(floor));
        world.log.as_ref().unwrap().retain(world.clock.now_ms())
    };
    assert_eq!(retained(unread), 0, "nobody has read its last record");
    assert!(world.read(Cursor::default()).iter().any(|(ordinal, ..)| *ordinal == last));
    assert_eq!(retained(Cursor { position: segments.last().unwrap().durable_head, ..unread }), segments.len() as u64);
    assert!(groups(&world)[0].id > first.id);
}

/// Whatever took the place of the segment that has the value, what hides it may go only when the value has gone.
#[test]
fn a_segment_that_was_written_again_during_a_pass_does_not_show_what_was_deleted() {
    let mut world = World::new(5);
    world.is_quiet = true;
    for records in [[("k", Some("v"))], [("k", None)], [("other", Some("1"))], [("other", Some("2"))]] {
        world.write(&records);
        world.log.as_ref().unwrap().close_idle(world.clock.now_ms() + 1, 0);
    }
    world.settle();
    // The first segment's image, behind the pages of the container and of its batch.
    let containers = world.memory.list("containers").unwrap();
    let container = containers.iter().find(|name| name.ends_with(".kera")).unwrap();
    let (log, store) = (world.log.clone().unwrap(), world.store.clone().unwrap());
    let mut damaged = None;
    world.compactor.as_ref().unwrap().step(&mut || {
        damaged.get_or_insert_with(|| {
            world.memory.flip_bit(&format!("containers/{container}"), 2 * 4096 + 200, 1).unwrap();
            Scrubber::new(log.clone(), store.clone()).step().unwrap().1
        });
        true
    });
    assert_eq!((damaged, log.stats().segments_mended), (Some(1), 1));
    compact_all(&world);
    world.clock.advance_ms(TOMBSTONE_MS as u64);
    (0..2).for_each(|_| world.pass());
    assert!(world.tombstones().is_empty());
    world.check();
    world.check_is_whole();
}
