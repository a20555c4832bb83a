//! How fast segments go to disk and come back, against what the disk itself does in the same run.
//!
//! ```text
//! cargo run --release -p kera-log --example store -- [directory] [MiB] [lanes] [chunk KiB]
//! ```
//! In turns, so that a disk whose speed changes treats both alike: a plain file written and read with direct I/O in large
//! pieces, and as many bytes persisted from the arena, then read by one reader per lane with nothing in memory.

use std::cell::RefCell;
use std::error::Error;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use kera_env::{AlignedBuffer, Clock, Disk, OpenMode, RealDisk, SystemClock, SystemRandom};
use kera_format::arena::BlockSize;
use kera_format::chunk::ChunkTarget;
use kera_format::{ChunkBuilder, ChunkView, Compression, Cursor, LaneId, Record, StreamId, StreamOptions, StreamletId};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{AppendError, Arena, ArenaConfig, Lane, Log, LogConfig, Observer, SegmentStore};

const STREAM: StreamId = StreamId(1);
const NODE: [u8; 16] = *b"store benchmark.";
const PIECE_BYTES: usize = 8 << 20;
/// What the disk can do shows only with more than one piece on its way.
const RAW_THREADS: usize = 4;
const ROUNDS: usize = 5;

type Failed = Box<dyn Error>;

struct Settings {
    dir: PathBuf,
    round_bytes: u64,
    lanes: u32,
    chunk_bytes: usize,
}

fn settings() -> Result<Settings, Failed> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("kera-store-example"), PathBuf::from);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    Ok(Settings {
        dir,
        round_bytes: number(1024)? << 20,
        lanes: number(4)? as u32,
        chunk_bytes: number(64)? as usize * 1024,
    })
}

fn main() -> Result<(), Failed> {
    let settings = settings()?;
    let arena_path = Path::new("/dev/shm").join(format!("kera-store-example-{}", std::process::id()));
    let result = run(&settings, &arena_path);
    let _ = std::fs::remove_file(&arena_path);
    std::fs::remove_dir_all(&settings.dir)?;
    result
}

fn run(settings: &Settings, arena_path: &Path) -> Result<(), Failed> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&settings.dir)?);
    println!("disk {}: {:?}", settings.dir.display(), disk.direct_io());
    let config = StoreConfig { node: NODE, free_percent_min: 0, ..StoreConfig::default() };
    let (store, _) =
        DiskStore::open(config, vec![Arc::clone(&disk)], Arc::new(SystemClock::new()), Arc::new(SystemRandom))?;
    let bytes = settings.round_bytes / 4 * 5 + (256 << 20);
    let arena = ArenaConfig { path: arena_path.to_owned(), bytes, node: NODE };
    let (arena, _) = Arena::create_or_attach_with(arena, BlockSize::Roomy)?;
    let log = Log::new(LogConfig::default(), Arc::clone(&arena));
    log.set_store(store.clone());
    store.attach(&log);
    let options = StreamOptions { lanes: settings.lanes, retention_ms: None, ..StreamOptions::default() };
    let stream = log.create_stream(STREAM, options)?;
    log.finish_recovery(1);
    let streamlet = stream.streamlet(StreamletId(0)).ok_or("no streamlet")?;
    let lanes: Vec<Arc<Lane>> = (0..settings.lanes).filter_map(|lane| streamlet.lane(LaneId(lane)).cloned()).collect();

    let mut table: [Vec<f64>; 4] = Default::default();
    let mut cursors = vec![Cursor::default(); lanes.len()];
    for round in 0..ROUNDS {
        let (raw_write, raw_read) = raw(&*disk, settings.round_bytes)?;
        empty(&store, bytes);
        let filled = fill(settings, &lanes)?;
        log.close_all();
        let started = Instant::now();
        store.flush_all()?;
        let persist = rate(filled, started);
        empty(&store, bytes);
        let threads = store.start()?;
        let started = Instant::now();
        let read = catch_up(&lanes, &mut cursors)?;
        let load = rate(read, started);
        threads.stop();
        if read != filled {
            return Err(format!("{filled} bytes were appended and {read} read back").into());
        }
        println!(
            "round {round}: write {raw_write:>6.0} raw {persist:>6.0} store MiB/s ({:>3.0} %)   read {raw_read:>6.0} raw {load:>6.0} store MiB/s ({:>3.0} %)",
            100.0 * persist / raw_write,
            100.0 * load / raw_read,
        );
        [raw_write, persist, raw_read, load].into_iter().zip(&mut table).for_each(|(rate, row)| row.push(rate));
    }
    let [raw_write, persist, raw_read, load] = table.map(median);
    println!(
        "median: persist {:.0} % of the disk, catch-up {:.0} %",
        100.0 * persist / raw_write,
        100.0 * load / raw_read
    );
    println!("{:#?}", store.status().disks[0].counters);
    Ok(())
}

/// Takes everything out of memory that is on disk.
fn empty(store: &DiskStore, bytes: u64) {
    store.want_space(bytes);
    while store.step() == Step::Again {}
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn rate(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / (1 << 20) as f64 / since.elapsed().as_secs_f64()
}

/// MiB/s of a plain file, written and read in pieces of 8 MiB with direct I/O, some of them at a time, synced at the end.
fn raw(disk: &dyn Disk, bytes: u64) -> Result<(f64, f64), Failed> {
    let mut buffer = AlignedBuffer::zeroed(PIECE_BYTES);
    buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 31) >> 3) as u8);
    let file = disk.open("raw", OpenMode::Create, true)?;
    file.allocate(0, bytes)?;
    let pieces = bytes / PIECE_BYTES as u64;
    let started = Instant::now();
    side_by_side(pieces, |at| file.write_vectored_at(at, &[IoSlice::new(&buffer)]))?;
    file.sync_data()?;
    let write = rate(pieces * PIECE_BYTES as u64, started);
    let started = Instant::now();
    side_by_side(pieces, |at| {
        thread_local!(static BUFFER: RefCell<AlignedBuffer> = RefCell::new(AlignedBuffer::zeroed(PIECE_BYTES)));
        BUFFER.with_borrow_mut(|buffer| file.read_at(at, buffer).map(drop))
    })?;
    let read = rate(pieces * PIECE_BYTES as u64, started);
    drop(file);
    disk.remove("raw")?;
    Ok((write, read))
}

/// Does something with each piece, in order, on a few threads.
fn side_by_side(pieces: u64, work: impl Fn(u64) -> io::Result<()> + Sync) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let run = || loop {
        let piece = next.fetch_add(1, Ordering::Relaxed);
        if piece >= pieces {
            return Ok(());
        }
        work(piece * PIECE_BYTES as u64)?;
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RAW_THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// Appends as many bytes to the lanes, in turns. Returns the bytes of chunks.
fn fill(settings: &Settings, lanes: &[Arc<Lane>]) -> Result<u64, Failed> {
    let value: Vec<u8> =
        (0..settings.chunk_bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut builder = ChunkBuilder::default();
    builder.push(&Record { value: Some(&value), ..Record::default() });
    let target = ChunkTarget { stream: STREAM, streamlet: StreamletId(0), ..ChunkTarget::default() };
    let chunk = builder.seal(&target, Compression::None)?;
    let view = ChunkView::parse(&chunk)?;
    let clock = SystemClock::new();
    let mut filled = 0;
    while filled < settings.round_bytes {
        for lane in lanes {
            match lane.append(&view, clock.now_ms()) {
                Ok(_) => filled += chunk.len() as u64,
                Err(AppendError::ArenaFull(_)) => return Ok(filled),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(filled)
}

/// Wakes a reader.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    condvar: Condvar,
}

impl Observer for Bell {
    fn advanced(&self, _: u64) {
        if let Ok(mut rung) = self.rung.lock() {
            *rung = true;
            self.condvar.notify_all();
        }
    }
}

/// Reads every lane on from its cursor, one thread for all, as a connection's thread serves its readers.
fn catch_up(lanes: &[Arc<Lane>], cursors: &mut [Cursor]) -> Result<u64, Failed> {
    let bell = Arc::new(Bell::default());
    let observer: Arc<dyn Observer> = bell.clone();
    let mut bytes = 0;
    let mut open: Vec<usize> = (0..lanes.len()).collect();
    while !open.is_empty() {
        let mut waiting = 0;
        for at in std::mem::take(&mut open) {
            let outcome = lanes[at].read(cursors[at], 1 << 20, true)?;
            bytes += outcome.data_bytes as u64;
            cursors[at] = outcome.next;
            if !outcome.at_durable_end {
                waiting += usize::from(outcome.loading && lanes[at].wait(outcome.version, &observer, 0));
                open.push(at);
            }
        }
        if waiting == open.len() && waiting > 0 {
            let mut rung = bell.rung.lock().map_err(|e| e.to_string())?;
            while !*rung {
                rung = bell.condvar.wait(rung).map_err(|e| e.to_string())?;
            }
            *rung = false;
        }
    }
    Ok(bytes)
}
