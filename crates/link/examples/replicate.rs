//! How fast one broker's log and its backups are over TCP on this machine, in one process:
//!
//! ```text
//! cargo run --release -p kera-link --example replicate -- [copies] [chunk bytes] [logs] [seconds] [threads]
//! ```
//! Threads append chunks to lanes as fast as they are taken; what counts is what both backups have answered.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, STREAM};
use kera_env::Clock;
use kera_format::{ChunkView, LaneId, StreamletId};
use kera_log::DurabilitySink;

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let (copies, chunk_bytes, logs) = (argument(1, 3) as u32, argument(2, 16 << 10) as usize, argument(3, 1) as u32);
    let (seconds, threads) = (argument(4, 5), argument(5, 1) as u32);
    let synced = std::env::var_os("KERA_SYNCED").is_some();
    let folder = std::env::var_os("KERA_FOLDER").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let cluster = Arc::new(Cluster::start(copies - 1, copies, |settings| {
        settings.logs = logs;
        settings.streamlets = logs.max(threads);
        settings.arena_bytes = 1 << 30;
        settings.block_bytes = 1 << 20;
        settings.synced = synced;
        settings.retention_bytes = Some((128 << 20) / u64::from(settings.streamlets));
        settings.folder = folder.path().to_owned();
    }));
    let (stop, waited) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let appenders: Vec<_> = (0..threads)
        .map(|thread| {
            let (cluster, stop, waited) = (Arc::clone(&cluster), Arc::clone(&stop), Arc::clone(&waited));
            std::thread::spawn(move || append(&cluster, thread, threads, chunk_bytes, &stop, &waited))
        })
        .collect();
    let retainer = {
        let (cluster, stop) = (Arc::clone(&cluster), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                cluster.log.retain(cluster.clock.now_ms());
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    };
    std::thread::sleep(Duration::from_secs(1));
    let totals = || {
        cluster.replicated.iter().map(|log| log.stats()).fold((0, 0, 0), |(blocks, chunks, bytes), stats| {
            (blocks + stats.blocks, chunks + stats.chunks, bytes + stats.chunk_bytes)
        })
    };
    let (before, began) = (totals(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let (after, took) = (totals(), began.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    appenders.into_iter().for_each(|appender| appender.join().expect("no panic"));
    retainer.join().expect("no panic");
    let per_second = |after: u64, before: u64| (after - before) as f64 / took;
    println!(
        "copies {copies}, chunks of {chunk_bytes}, {logs} logs, {threads} threads, synced {synced}: {:.0} MB/s acknowledged, \
         {:.0} blocks/s, {:.0} chunks/s, {:.1} chunks a block, {} appends found no room",
        per_second(after.2, before.2) / 1e6,
        per_second(after.0, before.0),
        per_second(after.1, before.1),
        (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64,
        waited.load(Ordering::Relaxed),
    );
    if let Ok(mut cluster) = Arc::try_unwrap(cluster) {
        (1..copies).for_each(|backup| cluster.stop(backup));
    }
}

/// Appends to the lanes of this thread, and lets retention take what is acknowledged.
fn append(cluster: &Cluster, thread: u32, threads: u32, bytes: usize, stop: &AtomicBool, waited: &AtomicU64) {
    let stream = cluster.log.stream(STREAM).expect("stream");
    let streamlets: Vec<u32> = (thread..stream.streamlet_count()).step_by(threads as usize).collect();
    let lanes: Vec<_> = streamlets
        .iter()
        .map(|&number| {
            let streamlet = stream.streamlet(StreamletId(number)).expect("streamlet");
            Arc::clone(streamlet.lane(LaneId(0)).expect("lane"))
        })
        .collect();
    let chunks: Vec<Vec<u8>> = streamlets.iter().map(|&streamlet| cluster.chunk(streamlet, bytes)).collect();
    let views: Vec<ChunkView<'_>> = chunks.iter().map(|chunk| ChunkView::parse(chunk).expect("chunk")).collect();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = n % lanes.len();
        n += 1;
        let sink = &cluster.replicated[(1 + streamlets[at] as usize) % cluster.replicated.len()];
        let ahead = lanes[at].append(&views[at], cluster.clock.now_ms());
        let Ok(appended) = ahead else {
            waited.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        // As a producer with so much in flight would: no more than 8 MiB ahead of what is acknowledged.
        let ahead_max = (8 << 20) / bytes as u64 + 1;
        while appended.ticket.is_some_and(|ticket| ticket > sink.durable_through() + ahead_max) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
