//! What group commit gives on this disk, beside what the disk gives by itself, in one run.
//!
//! ```text
//! cargo run --release -p kera-vlog --example group_commit -- [--dir DIR] [--mib N]
//! ```
//! 1. raw: one file, 4 MiB at a time, direct, sequential, synced at the end, and synced after each;
//! 2. small: 1 KiB chunks for 512 lanes, from two threads that wait for nothing but a bounded number in flight;
//! 3. large: 1 MiB chunks for one lane.
//!
//! The log lies in shared memory, as in a node; no segment is written to a container meanwhile.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use kera_env::{AlignedBuffer, Clock, Disk, OpenMode, RealDisk, SystemClock, SystemRandom};
use kera_format::chunk::ChunkTarget;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Durability, LaneId, Record, SegmentId, StreamId, StreamOptions, StreamletId,
};
use kera_log::{
    AppendError, Arena, ArenaConfig, DurabilitySink, Location, Log, LogConfig, Observer, Segment, SegmentStore,
};
use kera_vlog::{VirtualLog, VirtualLogConfig};

const MIB: usize = 1 << 20;
/// Lanes of the many small streams.
const LANES: u32 = 512;

/// Segment memory: enough for what is open and on its way to the disk; used again as soon as that is there.
const ARENA_BYTES: u64 = 512 << 20;

/// How much, and where.
pub(crate) struct Plan {
    /// Bytes that each part writes.
    pub(crate) bytes: usize,
    /// A directory on the disk to be measured; files are made in it and removed.
    pub(crate) directory: std::path::PathBuf,
}

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Bytes of chunks per second.
    pub(crate) bytes_per_second: f64,
    /// Chunks per second.
    pub(crate) chunks_per_second: f64,
    /// Chunks that one sync served, on average.
    pub(crate) chunks_per_sync: f64,
    /// Milliseconds from append to durable: the median and the 99th percentile, sampled.
    pub(crate) latency_ms: (f64, f64),
}

fn main() -> io::Result<()> {
    let mut plan = Plan { bytes: 512 * MIB, directory: std::env::temp_dir() };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match name.as_str() {
            "--dir" => plan.directory = value.into(),
            "--mib" => plan.bytes = value.parse::<usize>().map_err(io::Error::other)? * MIB,
            _ => return Err(io::Error::other(format!("`{name}` is neither --dir nor --mib"))),
        }
    }
    run(&plan)
}

/// Measures and prints. See the module.
pub(crate) fn run(plan: &Plan) -> io::Result<()> {
    let directory = plan.directory.join(format!("kera-group-commit-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let outcome = measure(plan, &directory);
    std::fs::remove_dir_all(&directory)?;
    outcome
}

fn measure(plan: &Plan, directory: &std::path::Path) -> io::Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(directory)?);
    println!("{} MiB each, {:?}, {:?}", plan.bytes / MIB, disk.root(), disk.direct_io());
    let rate = |bytes_per_second: f64| bytes_per_second / MIB as f64;
    let mut raw = 0.0;
    for (name, each) in [("synced at the end", false), ("synced each", true)] {
        let fresh = raw_write(&*disk, plan.bytes, each, false)?;
        let again = raw_write(&*disk, plan.bytes, each, true)?;
        println!("raw    4 MiB {name:18} {:8.0} MiB/s, over written space {:8.0} MiB/s", rate(fresh), rate(again));
        if !each {
            raw = fresh;
        }
    }
    for round in ["fresh", "again"] {
        let small = commit(&disk, plan.bytes / 4, LANES, 1024 - 104, 2)?;
        print_measured(&format!("small  1 KiB, {LANES} lanes, {round}"), &small, raw);
        let large = commit(&disk, plan.bytes, 1, MIB - 104, 1)?;
        print_measured(&format!("large  1 MiB, 1 lane, {round}"), &large, raw);
    }
    Ok(())
}

fn print_measured(name: &str, measured: &Measured, raw: f64) {
    let Measured { bytes_per_second, chunks_per_second, chunks_per_sync, latency_ms } = measured;
    println!(
        "{name:32} {:8.0} MiB/s ({:3.0} % of raw)  {chunks_per_second:9.0} chunks/s  {chunks_per_sync:7.1} per sync  \
         latency ms p50 {:.2} p99 {:.2}",
        bytes_per_second / MIB as f64,
        100.0 * bytes_per_second / raw,
        latency_ms.0,
        latency_ms.1,
    );
}

/// Bytes per second of one sequential writer; `again` writes over space that has been written before.
fn raw_write(disk: &dyn Disk, bytes: usize, sync_each: bool, again: bool) -> io::Result<f64> {
    let file = disk.open("raw", OpenMode::Create, true)?;
    file.allocate(0, bytes as u64)?;
    let mut block = AlignedBuffer::zeroed(4 * MIB);
    for (at, byte) in block.iter_mut().enumerate() {
        *byte = (at * 31 % 251) as u8;
    }
    let blocks = (bytes / block.len()).max(1);
    let mut seconds = 0.0;
    for _ in 0..1 + usize::from(again) {
        let started = Instant::now();
        for n in 0..blocks {
            file.write_at((n * block.len()) as u64, &block)?;
            if sync_each {
                file.sync_data()?;
            }
        }
        file.sync_data()?;
        seconds = started.elapsed().as_secs_f64();
    }
    disk.remove("raw")?;
    Ok((blocks * block.len()) as f64 / seconds)
}

/// Takes closed segments and forgets them, as if they were stored: what is measured is the virtual log alone.
#[derive(Default)]
struct Nowhere {
    closed: Mutex<(Vec<Arc<Segment>>, bool)>,
    changed: Condvar,
}

impl SegmentStore for Nowhere {
    fn closed(&self, segment: Arc<Segment>) {
        self.closed.lock().expect("no panic").0.push(segment);
        self.changed.notify_all();
    }
    fn want_space(&self, _bytes: u64) {}
    fn load(&self, _id: SegmentId, _at: Location) {}
    fn release(&self, _id: SegmentId, _at: Location) {}
}

impl Nowhere {
    fn run(&self, log: &Log) {
        loop {
            let mut closed = self.closed.lock().expect("no panic");
            while closed.0.is_empty() {
                if closed.1 {
                    return;
                }
                closed = self.changed.wait(closed).expect("no panic");
            }
            let segments = std::mem::take(&mut closed.0);
            drop(closed);
            for segment in segments {
                let bytes = segment.head().into();
                log.persisted(segment.id(), Location { disk: 0, container: 1, offset: 0, bytes });
                log.evict(segment.id());
            }
        }
    }

    fn stop(&self) {
        self.closed.lock().expect("no panic").1 = true;
        self.changed.notify_all();
    }
}

/// Lets an appender go on when a ticket is durable.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Observer for Gate {
    fn advanced(&self, _token: u64) {
        *self.open.lock().expect("no panic") = true;
        self.changed.notify_all();
    }
}

impl Gate {
    fn wait(&self) {
        let mut open = self.open.lock().expect("no panic");
        while !*open {
            open = self.changed.wait(open).expect("no panic");
        }
        *open = false;
    }
}

/// Appends `bytes` of chunks to `lanes` lanes from `threads` threads, through a virtual log on `disk`.
fn commit(disk: &Arc<dyn Disk>, bytes: usize, lanes: u32, record_bytes: usize, threads: u32) -> io::Result<Measured> {
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let arena = ArenaConfig { path: memory.path().join("arena"), bytes: ARENA_BYTES, node: [1; 16] };
    let (arena, _) = Arena::create_or_attach(arena).map_err(io::Error::other)?;
    while arena.warm(64 << 20) > 0 {}
    let log = Log::new(LogConfig::default(), arena);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = VirtualLogConfig::new(0, [1; 16]);
    let vlog = VirtualLog::open(config, Arc::clone(disk), Arc::clone(&clock), Arc::new(SystemRandom))
        .map_err(io::Error::other)?;
    let store = Arc::new(Nowhere::default());
    log.set_store(Arc::clone(&store) as Arc<dyn SegmentStore>);
    log.set_sinks(Arc::new(vec![Arc::clone(&vlog) as Arc<dyn DurabilitySink>]));
    let options = StreamOptions { streamlets: lanes, durability: Durability::Power, ..StreamOptions::default() };
    log.create_stream(StreamId(1), options).map_err(io::Error::other)?;
    log.recover(Vec::new(), Vec::new());
    // What an earlier round left is of no stream: its files become spares.
    let mut unknown = |_: &[u8]| Ok(kera_log::Restored::UnknownStream);
    vlog.replay(&mut unknown).map_err(io::Error::other)?;
    log.finish_recovery(1);
    let writer = thread::spawn({
        let vlog = Arc::clone(&vlog);
        move || vlog.run()
    });

    let evictor = thread::spawn({
        let (store, log) = (Arc::clone(&store), Arc::clone(&log));
        move || store.run(&log)
    });
    let started = Instant::now();
    let appenders: Vec<_> = (0..threads)
        .map(|thread| {
            let (log, vlog, clock) = (Arc::clone(&log), Arc::clone(&vlog), Arc::clone(&clock));
            let share = bytes / threads as usize;
            let streamlets: Vec<u32> = (thread..lanes).step_by(threads as usize).collect();
            thread::spawn(move || append(&log, &vlog, &*clock, share, &streamlets, record_bytes))
        })
        .collect();
    let mut latencies = Vec::new();
    for appender in appenders {
        latencies.extend(appender.join().expect("no panic"));
    }
    let seconds = started.elapsed().as_secs_f64();
    let stats = vlog.stats();
    vlog.stop();
    writer.join().expect("no panic");
    store.stop();
    evictor.join().expect("no panic");
    latencies.sort_unstable_by(f64::total_cmp);
    let percentile = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or(0.0);
    Ok(Measured {
        bytes_per_second: stats.chunk_bytes as f64 / seconds,
        chunks_per_second: stats.chunks as f64 / seconds,
        chunks_per_sync: stats.chunks as f64 / stats.blocks.max(1) as f64,
        latency_ms: (percentile(0.5), percentile(0.99)),
    })
}

/// Appends round robin, at most 16 MiB ahead of what is durable. Returns sampled latencies in milliseconds.
fn append(
    log: &Log,
    vlog: &Arc<VirtualLog>,
    clock: &dyn Clock,
    bytes: usize,
    streamlets: &[u32],
    record_bytes: usize,
) -> Vec<f64> {
    let gate = Arc::new(Gate::default());
    let observer = Arc::clone(&gate) as Arc<dyn Observer>;
    let stream = log.stream(StreamId(1)).expect("the stream");
    let value = vec![b'x'; record_bytes];
    let lanes: Vec<_> = streamlets
        .iter()
        .map(|&number| {
            let streamlet = StreamletId(number);
            let mut builder = ChunkBuilder::default();
            builder.push(&Record::value(&value));
            let target = ChunkTarget { stream: StreamId(1), streamlet, ..ChunkTarget::default() };
            let chunk = builder.seal(&target, Compression::None).expect("sealed");
            let lane = stream.streamlet(streamlet).and_then(|streamlet| streamlet.lane(LaneId(0))).expect("a lane");
            (Arc::clone(lane), chunk)
        })
        .collect();
    let window = (16 * MIB / lanes[0].1.len()).clamp(4, 4096);
    let mut tickets = std::collections::VecDeque::new();
    let mut latencies = Vec::new();
    let mut settle = |(ticket, since): (u64, Instant)| {
        if vlog.wait(ticket, &observer, 0) {
            gate.wait();
            latencies.push(since.elapsed().as_secs_f64() * 1000.0);
        }
    };
    let mut appended = 0;
    while appended < bytes {
        let (lane, chunk) = &lanes[(appended / chunk_bytes(&lanes)) % lanes.len()];
        let view = ChunkView::parse(chunk).expect("a chunk");
        let ticket = loop {
            match lane.append(&view, clock.now_ms()) {
                Ok(appended) => break appended.ticket.expect("not durable yet"),
                Err(AppendError::ArenaFull(full)) => {
                    if log.wait_for_space(full.seen, &observer, 0) {
                        gate.wait();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        };
        tickets.push_back((ticket, Instant::now()));
        appended += chunk.len();
        if tickets.len() >= window
            && let Some(oldest) = tickets.pop_front()
        {
            settle(oldest);
        }
    }
    tickets.into_iter().for_each(settle);
    latencies
}

fn chunk_bytes(lanes: &[(Arc<kera_log::Lane>, Vec<u8>)]) -> usize {
    lanes[0].1.len()
}
