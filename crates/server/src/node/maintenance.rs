//! What time brings: retention, leases that run out, quiet segments, warm memory, and a look at the disks. One thread, one
//! turn a second.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_log::SinkErrorKind;
use kera_log::store::DiskState;

use super::Parts;
use crate::units::MIB;

/// Time between two turns.
const TURN: Duration = Duration::from_secs(1);
/// Arena memory that is touched ahead of writers in one turn.
const WARM_BYTES: u64 = 64 * MIB;

/// The thread.
pub(super) struct Maintenance {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Maintenance {
    pub(super) fn start(parts: Arc<Parts>) -> io::Result<Maintenance> {
        let (stop, stopped) = sync_channel(1);
        let thread =
            std::thread::Builder::new().name("kera-maintain".into()).stack_size(512 << 10).spawn(move || {
                let mut appended_before = 0;
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TURN) {
                    turn(&parts, &mut appended_before);
                }
            })?;
        Ok(Maintenance { stop, thread })
    }

    pub(super) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("maintenance ended with a panic");
        }
    }
}

fn turn(parts: &Parts, appended_before: &mut u64) {
    let now_ms = parts.clock.now_ms();
    parts.broker.tick();
    parts.log.retain(now_ms);
    parts.log.close_idle(now_ms, i64::try_from(parts.config.writes.idle_close).unwrap_or(i64::MAX));
    // An idle node keeps the machine's memory free; one that is written to should not pay for page faults.
    let appended = parts.log.stats().bytes_appended;
    if appended != *appended_before {
        *appended_before = appended;
        parts.log.arena().warm(WARM_BYTES);
    }
    parts.readiness.set_problems(problems(parts));
}

/// What keeps the node from serving well, a sentence each.
fn problems(parts: &Parts) -> Vec<String> {
    let mut problems = Vec::new();
    for virtual_log in &parts.virtual_logs {
        // Behind is not sick: it catches up, and slows producers down meanwhile.
        if let Err(error) = kera_log::DurabilitySink::healthy(&**virtual_log)
            && error.kind != SinkErrorKind::Behind
        {
            problems.push(error.to_string());
        }
    }
    let store = parts.store.status();
    for disk in &store.disks {
        let reason = disk.error.as_ref().map_or("", |(error, _)| error.as_str());
        match disk.state {
            DiskState::Working => {}
            DiskState::Full => problems.push(format!("the disk {} is full: {reason}", disk.path.display())),
            DiskState::Failed => problems.push(format!("the disk {} fails: {reason}", disk.path.display())),
        }
    }
    problems
}
