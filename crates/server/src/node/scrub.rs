//! The thread that reads what is on the disks before somebody needs it, the node's own segments and copies for others: slowly, and with low priority.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use kera_backup::BackupScrubber;
use kera_env::RealDisk;
use kera_log::Scrubber;

use super::Parts;
use super::background::Background;
use crate::fatal::Fatal;
use crate::metrics::ScrubNumbers;

/// Bytes a second that are read at least.
const LEAST_PER_S: u64 = 16 << 20;
/// The first round does not begin with the node, when everybody reads.
const FIRST: Duration = Duration::from_secs(3600);
/// So long is waited for whoever writes what is to be looked at. On a full disk that does not end, and there is a next round.
const WRITTEN: Duration = Duration::from_secs(10);

/// What it has done since the start.
#[derive(Debug, Default)]
pub(crate) struct ScrubCounts {
    /// Bytes that were read.
    pub(crate) bytes: AtomicU64,
    /// Segments, and blocks of copies, that are not what was written.
    pub(crate) damaged: AtomicU64,
    /// When the last round ended, milliseconds since 1970; 0: there was none.
    pub(crate) last_round_ms: AtomicI64,
}

impl ScrubCounts {
    pub(super) fn numbers(&self) -> ScrubNumbers {
        ScrubNumbers {
            bytes: self.bytes.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            last_round_ms: self.last_round_ms.load(Ordering::Relaxed),
        }
    }
}

/// Starts the thread, unless it is turned off.
pub(super) fn start(parts: &Arc<Parts>) -> io::Result<Option<Background>> {
    let Some(every_ms) = parts.config.storage.scrub_every else { return Ok(None) };
    let every = Duration::from_millis(every_ms);
    let names = ("kera-scrub", "looking through the disks");
    Background::start(names, parts, move |parts, stopped| run(parts, every, stopped)).map(Some)
}

fn run(parts: &Parts, every: Duration, stopped: &Receiver<()>) {
    let goes_on = |rest: Duration| stopped.recv_timeout(rest) == Err(RecvTimeoutError::Timeout);
    let mut rest = every.min(FIRST);
    while goes_on(rest) {
        let began = Instant::now();
        let per_s = speed(parts, every);
        let pace = |bytes: u64| goes_on(Duration::from_micros(bytes.saturating_mul(1_000_000) / per_s));
        let Some((bytes, damaged)) = round(parts, &pace) else { return };
        parts.scrub.last_round_ms.store(parts.clock.now_ms(), Ordering::Relaxed);
        let took_s = began.elapsed().as_secs();
        match damaged {
            0 => tracing::info!(bytes, took_s, "what is on the disks was read, and is what was written"),
            _ => tracing::warn!(bytes, damaged, took_s, "some of what is on the disks is not what was written"),
        }
        rest = every.saturating_sub(began.elapsed());
    }
}

/// Bytes a second: as many as it takes to be done in half of the time until the next round, if that is more than the least.
fn speed(parts: &Parts, every: Duration) -> u64 {
    let segments: u64 = parts.store.status().disks.iter().map(|disk| disk.segment_bytes).sum();
    let backup = parts.cluster.as_ref().and_then(|cluster| cluster.own_backup());
    let copies: u64 = backup.map_or(0, |backup| backup.log_bytes().iter().map(|(_, bytes)| bytes).sum());
    ((segments + copies).saturating_mul(2_000) / (every.as_millis() as u64).max(1)).max(LEAST_PER_S)
}

/// Compares what the node keeps twice: how many bytes that are, and how many of these files a disk has changed. They are written anew. Ends soon when `pace` says so.
fn what_is_there_twice(parts: &Parts, pace: &dyn Fn(u64) -> bool) -> (u64, u64) {
    let began = Instant::now();
    let waits = || began.elapsed() < WRITTEN && pace(0);
    let cluster = parts.cluster.as_ref().map(|cluster| cluster.look_at_disk(&waits));
    let all = [
        ("the catalog", Some(parts.coordinator.look_at_disk().map_err(|error| error.to_string()))),
        ("the coordinators' log", cluster),
        ("the node's identity", Some(look_at_identity(parts).map_err(|error| error.to_string()))),
    ];
    let mut found = (0, 0);
    for (what, looked) in all.into_iter().filter_map(|(what, looked)| Some((what, looked?))) {
        match looked {
            Ok((bytes, is_damaged)) => {
                found = (found.0 + bytes, found.1 + u64::from(is_damaged));
                if is_damaged {
                    tracing::warn!(what, "a disk has changed one of its two files; both are written anew");
                }
            }
            Err(error) => tracing::warn!(what, error, "its two files cannot be compared"),
        }
    }
    found
}

fn look_at_identity(parts: &Parts) -> Result<(u64, bool), Fatal> {
    let data = &parts.config.node.data;
    let disk = RealDisk::open_buffered(data).map_err(|error| Fatal::directory(data, error))?;
    parts.identity.look_at_disk(&disk)
}

/// Reads everything once: how many bytes, and how much of it was damaged. `pace` rests after so many bytes; false: it is time to end.
fn round(parts: &Parts, pace: &dyn Fn(u64) -> bool) -> Option<(u64, u64)> {
    let mut all = (0, 0);
    let mut note = |(bytes, damaged): (u64, u64)| {
        all = (all.0 + bytes, all.1 + damaged);
        parts.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
        parts.scrub.damaged.fetch_add(damaged, Ordering::Relaxed);
        pace(bytes)
    };
    note(what_is_there_twice(parts, pace)).then_some(())?;
    let mut segments = Scrubber::new(parts.log.clone(), parts.store.clone());
    while let Some(read) = segments.step() {
        note(read).then_some(())?;
    }
    let backup = parts.cluster.as_ref().and_then(|cluster| cluster.own_backup());
    if let Some(backup) = backup {
        let mut copies = BackupScrubber::new(backup);
        while let Some(read) = copies.step() {
            note(read).then_some(())?;
        }
    }
    Some(all)
}
