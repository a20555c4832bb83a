//! How fast one thread appends, next to what copying and checksumming the same bytes costs in the same run.
//!
//! `cargo run --release -p kera-log --example append [seconds per line]`. Rates are per second of this thread's time. Chunks come out of a buffer that stays in the cache,
//! as after a socket read; segments go round in 64 MiB of memory, as they do when the store keeps up.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_format::arena::BlockSize;
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkView, Compression, LaneId, SegmentId, StreamId, StreamOptions, StreamletId,
};
use kera_log::{Arena, ArenaConfig, Lane, Location, Log, LogConfig, Segment, SegmentStore};

/// Memory that segments go round in.
const ROUND_BYTES: usize = 64 << 20;
const SOURCE_BYTES: usize = 256 << 10;

/// Takes closed segments; the main loop gives their memory back.
#[derive(Default)]
struct Closed(Mutex<VecDeque<(SegmentId, u32, u64)>>);

impl SegmentStore for Closed {
    fn closed(&self, segment: Arc<Segment>) {
        self.0.lock().unwrap().push_back((segment.id(), segment.head(), segment.block_bytes()));
    }
    fn want_space(&self, _: u64) {}
    fn load(&self, _: SegmentId, _: Location) {}
    fn release(&self, _: SegmentId, _: Location) {}
}

impl Closed {
    /// Evicts the oldest segments until they take so much memory.
    fn give_back(&self, log: &Log, keep: usize) {
        let mut closed = self.0.lock().unwrap();
        let mut bytes: u64 = closed.iter().map(|(_, _, block)| block).sum();
        while bytes > keep as u64 {
            let Some((id, head, block)) = closed.pop_front() else { break };
            bytes -= block;
            log.persisted(id, Location { disk: 0, container: 0, offset: 0, bytes: head.into() });
            log.evict(id);
        }
    }
}

/// Time that this thread ran, so that others on the machine count less.
struct Clock(Duration);

impl Clock {
    fn now() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    fn start() -> Clock {
        Clock(Clock::now())
    }
    fn elapsed(&self) -> Duration {
        Clock::now() - self.0
    }
}

fn chunks(chunk_bytes: usize) -> Vec<Vec<u8>> {
    (0..(SOURCE_BYTES / chunk_bytes).max(2))
        .map(|n| {
            let mut buffer: Vec<u8> = (0..chunk_bytes).map(|i| (i * 31 + n) as u8).collect();
            buffer.truncate(chunk_bytes.max(CHUNK_HEADER_BYTES));
            let target = ChunkTarget { stream: StreamId(1), streamlet: StreamletId(0), ..ChunkTarget::default() };
            let records = (chunk_bytes / 128) as u32;
            seal_in_place(&mut buffer, &target, PayloadKind::Records, Compression::None, records.max(1), NO_TIMESTAMP)
                .unwrap();
            buffer
        })
        .collect()
}

/// Copies and checksums `source` until the time is over; bytes per second.
fn copy_and_checksum(source: &[Vec<u8>], time: Duration, target: &mut [u8]) -> f64 {
    let (start, mut bytes, mut at) = (Clock::start(), 0usize, 0);
    let mut wrong = 0;
    while start.elapsed() < time {
        for _ in 0..(1 << 20) / source[0].len() / source.len() + 1 {
            for chunk in source {
                if at + chunk.len() > target.len() {
                    at = 0;
                }
                target[at..at + chunk.len()].copy_from_slice(chunk);
                let found = u32::from_le_bytes(target[at + 40..at + 44].try_into().unwrap());
                wrong += u32::from(crc32c(&target[at + 44..at + chunk.len()]) != found);
                at += chunk.len();
                bytes += chunk.len();
            }
        }
    }
    assert_eq!(wrong, 0);
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Appends `source` to lanes in turn until the time is over; bytes per second.
fn append(log: &Log, store: &Closed, lanes: &[Arc<Lane>], source: &[Vec<u8>], time: Duration) -> f64 {
    let views: Vec<ChunkView<'_>> = source.iter().map(|chunk| ChunkView::parse(chunk).unwrap()).collect();
    let (start, mut bytes, mut at) = (Clock::start(), 0usize, 0);
    while start.elapsed() < time {
        let now_ms = start.elapsed().as_millis() as i64;
        for _ in 0..(1 << 20) / source[0].len() / source.len() + 1 {
            for view in &views {
                // What a broker does per chunk: the header is parsed from the frame.
                let view = ChunkView::parse(view.as_bytes()).unwrap();
                at = if at + 1 < lanes.len() { at + 1 } else { 0 };
                while lanes[at].append(&view, now_ms).is_err() {
                    log.close_coldest();
                    store.give_back(log, 0);
                }
                bytes += view.as_bytes().len();
            }
        }
        store.give_back(log, ROUND_BYTES);
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.5);
    let time = Duration::from_secs_f64(seconds);
    let path = PathBuf::from(format!("/dev/shm/kera-append-{}.arena", std::process::id()));
    let config = ArenaConfig { path, bytes: 1 << 30, node: [0; 16] };
    let (arena, _) = Arena::create_or_attach_with(config, BlockSize::Roomy).expect("an arena");
    while arena.warm(64 << 20) > 0 {}
    let mut target = vec![1; ROUND_BYTES];
    println!(
        "{:>8} {:>6} {:>12} {:>12} {:>14} {:>7}",
        "chunk", "lanes", "chunks/s", "append MB/s", "copy+crc MB/s", "share"
    );
    for chunk_bytes in [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        let source = chunks(chunk_bytes);
        for lanes in [1u32, 16, 1024] {
            let log = Log::new(LogConfig::default(), Arc::clone(&arena));
            let store = Arc::new(Closed::default());
            log.set_store(Arc::clone(&store) as _);
            let options = StreamOptions { lanes, ..StreamOptions::default() };
            let stream = log.create_stream(StreamId(1), options).unwrap();
            let streamlet = stream.streamlet(StreamletId(0)).unwrap();
            let all: Vec<_> = (0..lanes).map(|lane| Arc::clone(streamlet.lane(LaneId(lane)).unwrap())).collect();
            append(&log, &store, &all, &source, time);
            let limit = copy_and_checksum(&source, time, &mut target);
            let rate = append(&log, &store, &all, &source, time);
            let again = copy_and_checksum(&source, time, &mut target);
            let limit = limit.max(again);
            let per_s = rate / source[0].len() as f64;
            println!(
                "{:>8} {lanes:>6} {per_s:>12.0} {:>12.0} {:>14.0} {:>6.0}%",
                source[0].len(),
                rate / 1e6,
                limit / 1e6,
                rate / limit * 100.0
            );
            log.delete_stream(StreamId(1)).unwrap();
            // A log that is dropped keeps its arena for the next process; this one is used again.
            std::mem::forget(log);
        }
    }
    println!("{:?}", arena.stats());
    arena.remove().expect("the arena file");
}
