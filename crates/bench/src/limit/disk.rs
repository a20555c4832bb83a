//! The disk: sequential writes and reads past the page cache, and what a sync costs.

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
    Ok(DiskRate { dir: dir.to_owned(), direct: disk.direct_io() == DirectIo::Direct, ..measured? })
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
