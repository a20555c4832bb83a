//! Gets segments back from backups that this node's disks have lost (`docs/replication.md`, "A disk has lost something").
//!
//! One thread, one segment at a time: what it needs beside the arena is one segment and an answer of a backup.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_broker::{MendFrom, gather};
use kera_format::SegmentId;
use kera_log::{Log, Mender};
use parking_lot::{Condvar, Mutex};

use super::copies::Copies;
use super::recovery::Recovery;
use crate::fatal::Fatal;

/// Segments that are looked for at a time at most: readers of others get an error, and ask again.
const WAITING_MAX: usize = 1024;
/// What nobody had is looked for again when somebody asks for it after so long.
const AGAIN: Duration = Duration::from_secs(5);
/// Segments that nobody had, of which that is remembered.
const FAILED_MAX: usize = 4096;

#[derive(Default)]
struct Work {
    waiting: VecDeque<(SegmentId, String)>,
    /// What nobody had when somebody last asked for it, and when that was.
    failed: HashMap<SegmentId, Instant>,
    stopping: bool,
}

/// See the module.
pub(super) struct Mending {
    log: Arc<Log>,
    copies: Arc<Copies>,
    recovery: Arc<Recovery>,
    work: Mutex<Work>,
    changed: Condvar,
    failures: AtomicU64,
}

impl Mender for Mending {
    fn damaged(&self, id: SegmentId, error: &str) -> bool {
        let mut work = self.work.lock();
        let was_asked = work.failed.get(&id).is_some_and(|at| at.elapsed() < AGAIN);
        let takes = work.waiting.len() < WAITING_MAX && !work.stopping && !was_asked;
        if takes {
            work.waiting.push_back((id, error.to_owned()));
            self.changed.notify_all();
        }
        takes
    }
}

impl Mending {
    pub(super) fn start(
        log: &Arc<Log>,
        copies: &Arc<Copies>,
        recovery: &Arc<Recovery>,
    ) -> Result<(Arc<Mending>, JoinHandle<()>), Fatal> {
        let mending = Arc::new(Mending {
            log: log.clone(),
            copies: copies.clone(),
            recovery: recovery.clone(),
            work: Mutex::default(),
            changed: Condvar::new(),
            failures: AtomicU64::new(0),
        });
        let running = mending.clone();
        let thread = std::thread::Builder::new().name("kera-mender".into()).spawn(move || running.run());
        let no_thread = |error| Fatal::Resources { what: "a thread that mends segments", error };
        let thread = thread.map_err(no_thread)?;
        log.mend_with(mending.clone());
        Ok((mending, thread))
    }

    /// Has the thread return, soon.
    pub(super) fn stop(&self) {
        self.work.lock().stopping = true;
        self.changed.notify_all();
    }

    /// What was looked for in vain and is still wanted, in a sentence.
    pub(super) fn lacks(&self) -> Option<String> {
        let mut work = self.work.lock();
        work.failed.retain(|id, _| self.log.damaged_segment(*id).is_some());
        let (count, first) = (work.failed.len(), work.failed.keys().min()?);
        Some(format!(
            "{count} segments that a disk has lost are in no copy as they were, and whoever reads them gets an error: the first is {first}, and the log says what there is of it"
        ))
    }

    /// How often somebody asked for a segment that nobody had, since the start.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn run(&self) {
        loop {
            let (id, error) = {
                let mut work = self.work.lock();
                loop {
                    if work.stopping {
                        return;
                    }
                    if let Some(next) = work.waiting.pop_front() {
                        break next;
                    }
                    self.changed.wait(&mut work);
                }
            };
            self.mend(id, &error);
        }
    }

    fn mend(&self, id: SegmentId, error: &str) {
        let began = Instant::now();
        let Some(of) = self.log.damaged_segment(id) else {
            // Retention has taken it, or it was rewritten.
            self.log.not_mended(id, error.to_owned());
            return;
        };
        let found = gather(of, &self.from(id), self.recovery.backups());
        if found.is_err() && !self.recovery.backups().goes_on() {
            // Nobody is asked any more, which was so before it failed for that. Nothing is noted as lost that nobody was asked for: the next start would not have it.
            self.log.not_mended(id, error.to_owned());
            return;
        }
        let found = found.map_err(|not| {
            if not.has_older
                && let Err(error) = self.log.note_lost(&of)
            {
                tracing::warn!(segment = %id, %error, "it is not noted that the segment is lost");
            }
            not.reason
        });
        match found.and_then(|found| self.log.mended(found)) {
            Ok(()) => {
                self.work.lock().failed.remove(&id);
                let (bytes, took_ms) = (of.bytes(), began.elapsed().as_millis() as u64);
                tracing::info!(segment = %id, bytes, took_ms, "a segment that a disk had lost was read from its copies");
            }
            Err(reason) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let mut work = self.work.lock();
                let (is_known, has_room) = (work.failed.contains_key(&id), work.failed.len() < FAILED_MAX);
                // Once: whoever reads it asks again every few seconds, maybe for ever, and the node's status says that there are such segments. Of one that is not remembered it would not be once.
                if !is_known && has_room {
                    tracing::error!(segment = %id, reason, "a segment that a disk has lost is not in its copies");
                } else {
                    tracing::debug!(segment = %id, reason, "a segment that a disk has lost is not in its copies");
                }
                if is_known || has_room {
                    work.failed.insert(id, Instant::now());
                }
                drop(work);
                self.log.not_mended(id, format!("{error}; and of its copies: {reason}"));
            }
        }
    }

    /// Where copies of a segment may be: in blocks of this incarnation's logs, and in logs of earlier ones that are kept.
    fn from(&self, id: SegmentId) -> Vec<MendFrom> {
        let mut from = Vec::new();
        for (log, of) in self.copies.all() {
            let ranges = of.blocks_of(id).into_iter();
            from.extend(ranges.map(|(blocks, backups)| MendFrom { log, blocks, backups, is_over: false }));
        }
        let old = self.recovery.kept_blocks().into_iter().rev();
        from.extend(old.map(|(log, blocks, backups)| MendFrom { log, blocks, backups, is_over: true }));
        from
    }
}
