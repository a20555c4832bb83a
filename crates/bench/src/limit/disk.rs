//! The disk: sequential writes and reads past the page cache, appending as a log does, and what a sync costs.
//!
//! A sequential write here goes over space that was written before, from one piece of memory, with one sync at the end: the
//! most that can be asked of the disk. A log cannot have that. Its bytes are new each time, so they come out of memory and not
//! out of the processor's caches; it goes into space that was never written, which costs the file system a change of its own
//! records for each write; and it syncs all the while. What is left of the disk then is measured as well.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_env::{AlignedBuffer, DirectIo, Disk, DiskFile, OpenMode, RealDisk};

use super::DiskRate;
use crate::BenchError;
use crate::latency::Latencies;

/// The smallest file that is measured with.
pub(super) const BYTES_MIN: u64 = 16 << 20;

const PIECE_BYTES: usize = 1 << 20;
/// Bytes that are appended with one sync.
const COMMIT_BYTES: usize = 8 << 20;
/// Bytes of memory that appends come from: more than the processor's caches hold.
const SOURCE_BYTES: usize = 256 << 20;
const SYNC_BYTES: usize = 4 << 10;
const SYNCS_MAX: u32 = 500;
const SYNC_TIME_MAX: Duration = Duration::from_secs(2);

/// Writes and reads a file of `bytes` (rounded down to whole pieces) in `dir`, and deletes it.
pub(super) fn measure(dir: &Path, bytes: u64) -> Result<DiskRate, BenchError> {
    let io = |what: &'static str| move |error| BenchError::io_at(what, dir, error);
    let disk = RealDisk::open(dir).map_err(io("opening the directory"))?;
    let name = format!("kera-bench-limit-{}", std::process::id());
    let file = disk.open(&name, OpenMode::Create, true).map_err(io("creating a file"))?;
    let measured = on_file(&file, bytes / PIECE_BYTES as u64).map_err(io("writing and reading"));
    drop(file);
    disk.remove(&name).map_err(io("removing the file"))?;
    let mut rate = measured?;
    for is_overlapped in [false, true] {
        let file = disk.open(&name, OpenMode::Create, true).map_err(io("creating a file"))?;
        let took = appends(&*file, bytes, is_overlapped).map_err(io("appending"));
        drop(file);
        disk.remove(&name).map_err(io("removing the file"))?;
        rate.append_bytes_per_s = rate.append_bytes_per_s.max(took?);
    }
    Ok(DiskRate { dir: dir.to_owned(), direct: disk.direct_io() == DirectIo::Direct, ..rate })
}

/// Bytes per second that are appended to an empty file whose space is allocated, a commit at a time, each with a sync: one
/// after the other, or the next one written while the one before it is synced.
fn appends(file: &dyn DiskFile, bytes: u64, is_overlapped: bool) -> std::io::Result<f64> {
    let commits = (bytes / COMMIT_BYTES as u64).max(1);
    file.allocate(0, commits * COMMIT_BYTES as u64)?;
    file.sync_data()?;
    let source = AlignedBuffer::zeroed(SOURCE_BYTES.min(commits as usize * COMMIT_BYTES));
    let write = |n: u64| {
        let from = n as usize * COMMIT_BYTES % source.len();
        file.write_at(n * COMMIT_BYTES as u64, &source[from..from + COMMIT_BYTES])
    };
    let started = Instant::now();
    write(0)?;
    for n in 1..commits {
        if is_overlapped {
            std::thread::scope(|scope| {
                let synced = scope.spawn(|| file.sync_data());
                write(n)?;
                synced
                    .join()
                    .unwrap_or_else(|_| Err(std::io::Error::other("a thread of the disk measurement panicked")))
            })?;
        } else {
            file.sync_data()?;
            write(n)?;
        }
    }
    file.sync_data()?;
    Ok(commits as f64 * COMMIT_BYTES as f64 / started.elapsed().as_secs_f64())
}

fn on_file(file: &Arc<dyn DiskFile>, pieces: u64) -> std::io::Result<DiskRate> {
    let bytes = pieces as f64 * PIECE_BYTES as f64;
    file.allocate(0, pieces * PIECE_BYTES as u64)?;
    file.sync_data()?;
    let mut rate = DiskRate::default();
    for threads in [1, 4] {
        let took = in_pieces(file, pieces, threads, |file, offset, piece| file.write_at(offset, piece))?;
        rate.write_bytes_per_s = rate.write_bytes_per_s.max(bytes / took.as_secs_f64());
    }
    for threads in [1, 4] {
        let took = in_pieces(file, pieces, threads, |file, offset, piece| match file.read_at(offset, piece)? {
            n if n == piece.len() => Ok(()),
            n => Err(std::io::Error::other(format!("{n} bytes came of {} at {offset}", piece.len()))),
        })?;
        rate.read_bytes_per_s = rate.read_bytes_per_s.max(bytes / took.as_secs_f64());
    }
    let syncs = syncs(file)?.summary();
    (rate.sync_us_p50, rate.sync_us_p99) = (syncs.p50, syncs.p99);
    Ok(rate)
}

/// Goes through the file once, `threads` taking turns at the next piece, and syncs.
fn in_pieces(
    file: &Arc<dyn DiskFile>,
    pieces: u64,
    threads: u64,
    work: impl Fn(&dyn DiskFile, u64, &mut [u8]) -> std::io::Result<()> + Sync,
) -> std::io::Result<Duration> {
    let next = std::sync::atomic::AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let one = || -> std::io::Result<()> {
            let mut piece = AlignedBuffer::zeroed(PIECE_BYTES);
            for (i, byte) in piece.iter_mut().enumerate() {
                *byte = (i % 251) as u8;
            }
            loop {
                let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if n >= pieces {
                    return Ok(());
                }
                work(&**file, n * PIECE_BYTES as u64, &mut piece)?;
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        for thread in running {
            thread
                .join()
                .unwrap_or_else(|_| Err(std::io::Error::other("a thread of the disk measurement panicked")))?;
        }
        std::io::Result::Ok(())
    })?;
    file.sync_data()?;
    Ok(started.elapsed())
}

fn syncs(file: &Arc<dyn DiskFile>) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::new();
    let piece = AlignedBuffer::zeroed(SYNC_BYTES);
    let all = Instant::now();
    for n in 0..SYNCS_MAX {
        let one = Instant::now();
        file.write_at(u64::from(n) * SYNC_BYTES as u64, &piece)?;
        file.sync_data()?;
        latencies.record_ns(one.elapsed().as_nanos() as u64);
        if all.elapsed() > SYNC_TIME_MAX {
            break;
        }
    }
    Ok(latencies)
}
