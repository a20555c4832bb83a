//! Many threads at once: appenders that retry, readers that verify every byte and its order, a virtual log that syncs, a
//! store that writes out, evicts and loads, retention, on an arena that is much too small for the data.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kera_format::arena::BlockSize;
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkView, Compression, Cursor, Durability, LaneId, ProducerEpoch, ProducerId, StreamId,
    StreamOptions, StreamletId,
};
use kera_log::{AppendError, Arena, ArenaConfig, DurabilitySink, Lane, Log, LogConfig, Lookup, Observer, ReadError};

use crate::fakes::{FakeSink, FakeStore};
use crate::world::Random;

const PRODUCERS: u64 = 4;
const CHUNKS: u64 = 12_000;
const STREAMS: [(u64, Durability); 2] = [(1, Durability::Process), (2, Durability::Power)];
const LANES: u32 = 2;
/// A thread that is not woken for so long never will be.
const FOR_EVER: Duration = Duration::from_secs(300);

/// Wakes one thread.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Observer for Bell {
    fn advanced(&self, _: u64) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Bell {
    fn sleep(&self, what: &str) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            let (guard, timeout) = self.changed.wait_timeout(rung, FOR_EVER).unwrap();
            rung = guard;
            assert!(!timeout.timed_out(), "{what} was never woken");
        }
        *rung = false;
    }
}

struct Node {
    log: Arc<Log>,
    store: Arc<FakeStore>,
    sink: Arc<FakeSink>,
    stop: AtomicBool,
    /// Records of each lane when all is appended.
    records: Vec<(Arc<Lane>, AtomicU64)>,
    /// What was looked up and is where it was said to be.
    found: AtomicU64,
    /// Chunks that were appended to streams that come and go, and chunks that were read from them.
    used: [AtomicU64; 2],
    _dir: tempfile::TempDir,
}

fn node() -> Node {
    let shared = PathBuf::from("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.unwrap();
    let config = ArenaConfig { path: dir.path().join("stress.arena"), bytes: 4 << 20, node: [2; 16] };
    let (arena, _) = Arena::create_or_attach_with(config, BlockSize::Roomy).unwrap();
    let log = Log::new(LogConfig { segment_arena_share: 16, ..LogConfig::default() }, arena);
    let (store, sink) = (Arc::new(FakeStore::default()), Arc::new(FakeSink::default()));
    log.set_store(Arc::clone(&store) as _);
    let sinks: Vec<Arc<dyn DurabilitySink>> = vec![Arc::clone(&sink) as _];
    log.set_sinks(Arc::new(sinks));
    let mut records = Vec::new();
    for (id, durability) in STREAMS {
        let (lanes, segments_per_group) = (LANES, 3);
        let options = StreamOptions {
            lanes,
            segments_per_group,
            durability,
            segment_bytes_max: 256 << 10,
            ..StreamOptions::default()
        };
        let stream = log.create_stream(StreamId(id), options).unwrap();
        let streamlet = stream.streamlet(StreamletId(0)).unwrap();
        records.extend((0..LANES).map(|lane| (Arc::clone(streamlet.lane(LaneId(lane)).unwrap()), AtomicU64::new(0))));
    }
    let (found, used) = (AtomicU64::new(0), Default::default());
    Node { log, store, sink, stop: AtomicBool::new(false), records, found, used, _dir: dir }
}

fn chunk(random: &mut Random, lane: &Lane, producer: u64, sequence: u64, buffer: &mut Vec<u8>) {
    let payload = 64 + random.below(1500) as usize;
    buffer.clear();
    buffer.resize(CHUNK_HEADER_BYTES + payload, (sequence % 251) as u8);
    let target = ChunkTarget {
        stream: lane.stream_id(),
        streamlet: lane.streamlet_id(),
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        sequence,
    };
    let records = 1 + random.below(3) as u32;
    seal_in_place(buffer, &target, PayloadKind::Records, Compression::None, records, NO_TIMESTAMP).unwrap();
}

/// One producer for all lanes: sends, sometimes twice, and waits when there is no room.
fn produce(node: &Node, producer: u64) {
    let mut random = Random::new(producer);
    let bell = Arc::new(Bell::default());
    let observer: Arc<dyn Observer> = bell.clone();
    let mut buffer = Vec::new();
    let mut sequences = vec![0; node.records.len()];
    for n in 0..CHUNKS {
        let at = random.below(node.records.len() as u64) as usize;
        let (lane, records) = &node.records[at];
        chunk(&mut random, lane, producer, sequences[at], &mut buffer);
        let view = ChunkView::parse(&buffer).unwrap();
        for attempt in 0..1 + u64::from(random.one_in(9)) {
            let appended = loop {
                match lane.append(&view, n as i64) {
                    Ok(appended) => break appended,
                    Err(AppendError::ArenaFull(full)) => {
                        if node.log.wait_for_space(full.seen, &observer, 0) {
                            bell.sleep("a producer that waits for room");
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!(appended.duplicate, attempt > 0);
        }
        sequences[at] += 1;
        records.fetch_add(view.header().record_count.into(), Ordering::Relaxed);
    }
}

/// What a reader knows of a lane.
#[derive(Default)]
struct Progress {
    cursor: Cursor,
    ordinal: u64,
    sequences: HashMap<u64, u64>,
}

impl Progress {
    fn take(&mut self, bytes: &Bytes) {
        for chunk in Chunks::new(bytes) {
            let chunk = chunk.expect("whole chunks");
            chunk.verify().expect("the bytes that were sent");
            let (header, part) = (*chunk.header(), chunk.broker().expect("a stamped chunk"));
            assert_eq!(part.base_ordinal, self.ordinal, "nothing is left out and nothing is there twice");
            let next = self.sequences.entry(header.producer_id.0).or_default();
            assert_eq!(header.sequence, *next, "in the order of its producer");
            *next += 1;
            self.ordinal += u64::from(header.record_count);
        }
    }
}

/// Reads all lanes from the start to the end, waiting where there is nothing yet.
fn consume(node: &Node, seed: u64, done: &AtomicU64) {
    let mut random = Random::new(seed);
    let bell = Arc::new(Bell::default());
    let observer: Arc<dyn Observer> = bell.clone();
    let mut lanes: Vec<Progress> = node.records.iter().map(|_| Progress::default()).collect();
    let mut pins: Vec<(Bytes, u32)> = Vec::new();
    loop {
        let all_sent = done.load(Ordering::SeqCst) == PRODUCERS;
        let (mut idle, mut finished) = (true, all_sent);
        for (progress, (lane, records)) in lanes.iter_mut().zip(&node.records) {
            let outcome = match lane.read(progress.cursor, 1 + random.below(60_000) as usize, true) {
                Ok(outcome) => outcome,
                Err(ReadError::LoadFailed(_)) => continue,
                Err(error) => panic!("{error}"),
            };
            outcome.data.iter().for_each(|bytes| progress.take(bytes));
            progress.cursor = outcome.next;
            for bytes in outcome.data {
                if random.one_in(50) && pins.len() < 3 {
                    pins.push((bytes.clone(), crc32c(&bytes)));
                }
            }
            finished &= progress.ordinal == records.load(Ordering::Relaxed);
            let waits = (outcome.at_durable_end || outcome.loading) && lane.wait(outcome.version, &observer, 1);
            idle &= waits;
        }
        if random.one_in(8) {
            pins.drain(..).for_each(|(bytes, crc)| assert_eq!(crc32c(&bytes), crc, "bytes changed under a reader"));
        }
        if finished {
            return;
        }
        if idle && done.load(Ordering::SeqCst) < PRODUCERS {
            // A reader that sleeps keeps no memory from the writers.
            pins.clear();
            bell.sleep("a reader");
        }
    }
}

/// The store's threads: writes out, loads, and evicts when there is little room.
fn keep(node: &Node) {
    let mut random = Random::new(99);
    while !node.stop.load(Ordering::SeqCst) {
        let mut busy = node.store.persist_one(&node.log);
        let loaded = node.store.load_one(&node.log, random.one_in(50));
        busy |= loaded;
        // Half of the arena may be free in pieces that are too small for what must be loaded.
        let starved = !loaded && !node.store.lock().loads.is_empty();
        let arena = node.log.arena().stats();
        if starved || arena.free_bytes < arena.bytes / 2 {
            node.log.close_coldest();
            let stored: Vec<_> = node.store.lock().disk.keys().copied().collect();
            let from = random.below(stored.len().max(1) as u64) as usize;
            for &id in stored.iter().cycle().skip(from).take(stored.len().min(64)) {
                busy |= node.log.evict(id);
            }
        }
        if random.one_in(64) {
            node.log.close_idle(CHUNKS as i64, -1);
        }
        if !busy {
            std::thread::yield_now();
        }
    }
}

/// The virtual log's writer.
fn sync(node: &Node) {
    while !node.stop.load(Ordering::SeqCst) {
        node.sink.sync(500);
        std::thread::yield_now();
    }
}

/// Looks things up all the time: what is found holds what was asked for.
fn look(node: &Node) {
    let mut random = Random::new(5);
    while !node.stop.load(Ordering::SeqCst) {
        let (lane, _) = &node.records[random.below(node.records.len() as u64) as usize];
        let end = lane.durable_ordinal();
        let wanted = random.below(end.max(1));
        if let Ok(Lookup::Found { cursor, ordinal }) = lane.lookup_ordinal(wanted) {
            assert!(ordinal <= wanted);
            if let Ok(outcome) = lane.read(cursor, 1, true)
                && let Some(bytes) = outcome.data.first()
            {
                let chunk = ChunkView::parse(bytes).unwrap();
                assert!(wanted < ordinal + u64::from(chunk.header().record_count));
                node.found.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert!(lane.stats().next_ordinal >= end);
        std::thread::yield_now();
    }
}

#[test]
fn threads_agree_on_what_is_in_the_log() {
    let node = node();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let background = [scope.spawn(|| keep(&node)), scope.spawn(|| sync(&node)), scope.spawn(|| look(&node))];
        let (node, done) = (&node, &done);
        let readers: Vec<_> = (1..4).map(|seed| scope.spawn(move || consume(node, seed, done))).collect();
        let writers: Vec<_> = (1..=PRODUCERS).map(|p| scope.spawn(move || produce(node, p))).collect();
        for writer in writers {
            writer.join().unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        }
        // Readers that sleep learn that all is sent.
        node.log.close_all();
        for reader in readers {
            reader.join().unwrap();
        }
        node.stop.store(true, Ordering::SeqCst);
        for thread in background {
            thread.join().unwrap();
        }
    });
    let stats = node.log.stats();
    assert_eq!(stats.chunks_appended, PRODUCERS * CHUNKS);
    assert!(stats.duplicates > 0 && stats.segments_loaded > 0 && stats.segments_evicted > 0, "{stats:?}");
    assert!(node.found.load(Ordering::Relaxed) > 0, "nothing that was looked up was found");
    STREAMS.iter().for_each(|&(id, _)| node.log.delete_stream(StreamId(id)).unwrap());
    node.sink.sync(usize::MAX);
    while node.store.persist_one(&node.log) {}
    while node.store.load_one(&node.log, false) {}
    assert_eq!(node.log.stats().arena.used_bytes, 0);
}

/// Streams are made, written, read, retained and deleted by many threads at once; nobody sees anything but an answer.
#[test]
fn streams_come_and_go_under_load() {
    let node = node();
    let (stop, newest) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let background = [scope.spawn(|| keep(&node)), scope.spawn(|| sync(&node))];
        let (node, stop, newest) = (&node, &stop, &newest);
        let users: Vec<_> = (1..4u64).map(|seed| scope.spawn(move || use_streams(node, seed, stop, newest))).collect();
        for round in 0..300u64 {
            // Ids are never given out again: stream `n` follows stream `n - 3`.
            let (id, old) = (StreamId(10 + round), StreamId(10 + round.saturating_sub(3)));
            let durability = if round % 2 == 0 { Durability::Power } else { Durability::Process };
            let options =
                StreamOptions { lanes: LANES, durability, retention_ms: Some(50), ..StreamOptions::default() };
            if round % 5 == 4 && node.log.stream(old).is_some() {
                node.log.alter_stream(old, options.clone()).unwrap();
            }
            if round >= 3 {
                node.log.delete_stream(old).unwrap();
            }
            node.log.create_stream(id, options).unwrap();
            newest.store(id.0, Ordering::SeqCst);
            node.log.retain(round as i64);
            std::thread::sleep(Duration::from_micros(500));
        }
        stop.store(true, Ordering::SeqCst);
        users.into_iter().for_each(|user| user.join().unwrap());
        node.stop.store(true, Ordering::SeqCst);
        background.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let used = node.used.each_ref().map(|chunks| chunks.load(Ordering::Relaxed));
    assert!(used.iter().all(|chunks| *chunks > 0), "nobody has used them: {used:?} chunks appended and read");
    node.log.streams().iter().for_each(|stream| node.log.delete_stream(stream.id()).unwrap());
    node.sink.sync(usize::MAX);
    while node.store.persist_one(&node.log) {}
    while node.store.load_one(&node.log, false) {}
    assert_eq!((node.log.stats().arena.used_bytes, node.store.lock().disk.len()), (0, 0));
}

fn use_streams(node: &Node, seed: u64, stop: &AtomicBool, newest: &AtomicU64) {
    let mut random = Random::new(seed);
    let mut buffer = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let id = newest.load(Ordering::SeqCst).saturating_sub(random.below(3));
        let Some(stream) = node.log.stream(StreamId(id)) else { continue };
        let lane = Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane_of(ProducerId(seed)));
        for n in 0..50 {
            chunk(&mut random, &lane, 0, n, &mut buffer);
            match lane.append(&ChunkView::parse(&buffer).unwrap(), n as i64) {
                Ok(_) => _ = node.used[0].fetch_add(1, Ordering::Relaxed),
                Err(AppendError::Closed | AppendError::ArenaFull(_)) => {}
                Err(error) => panic!("{error}"),
            }
            match lane.read(Cursor::default(), 10_000, true) {
                Ok(outcome) => outcome.data.iter().for_each(|bytes| {
                    for chunk in Chunks::new(bytes) {
                        assert!(chunk.unwrap().verify().is_ok());
                        node.used[1].fetch_add(1, Ordering::Relaxed);
                    }
                }),
                Err(ReadError::Deleted | ReadError::LoadFailed(_) | ReadError::Gone { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
