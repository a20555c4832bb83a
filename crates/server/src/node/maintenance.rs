//! What time brings: retention, leases that run out, quiet segments, and a look at the disks: one thread, one turn a second.
//! Beside it a thread that touches memory ahead of writers, and gives back what they no longer need, when the processor has
//! nothing better to do.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_env::Doubt;
use kera_log::store::DiskState;

use super::Parts;
use super::doubt::DoubtFile;
use crate::units::MIB;

/// Time between two turns.
const TURN: Duration = Duration::from_secs(1);
/// Time between two looks at what is not kept any more, while the node is written to: at least this, and so many times
/// what a look takes, which grows with the number of lanes.
const RETAIN_PAUSE: Duration = Duration::from_millis(100);
const RETAIN_SHARE: u32 = 20;
/// Arena memory that is touched at a time; afterwards the thread looks whether the node still runs.
const WARM_BYTES: u64 = 2 * MIB;
/// Time between two looks whether memory has been used up, while the node is written to.
const WARM_PAUSE: Duration = Duration::from_millis(20);
/// The thread that touches memory gets a processor only when nobody else wants it.
const WARM_NICE: i32 = 19;

/// The thread.
pub(super) struct Maintenance {
    stops: [SyncSender<()>; 2],
    threads: [JoinHandle<()>; 2],
}

impl Maintenance {
    pub(super) fn start(parts: Arc<Parts>) -> io::Result<Maintenance> {
        let (stop_warming, warming_stopped) = sync_channel(1);
        let warmed = Arc::clone(&parts);
        let warming = std::thread::Builder::new()
            .name("kera-warm".into())
            .stack_size(512 << 10)
            .spawn(move || warm(&warmed, &warming_stopped))?;
        let (stop, stopped) = sync_channel(1);
        let thread =
            std::thread::Builder::new().name("kera-maintain".into()).stack_size(512 << 10).spawn(move || {
                run(&parts, &stopped);
            })?;
        Ok(Maintenance { stops: [stop, stop_warming], threads: [thread, warming] })
    }

    pub(super) fn stop(self) {
        drop(self.stops);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("maintenance ended with a panic");
            }
        }
    }
}

/// Takes turns. While the node is written to, what is not kept any more goes more often: at a gigabyte a second, memory for
/// a second of it would be in use for nothing, and would have to be touched first.
fn run(parts: &Parts, stopped: &Receiver<()>) {
    let mut doubts = Doubts { told: false, file: DoubtFile::new(parts.disk.clone()) };
    let (mut asked_before, mut asked_us, mut turn_us, mut pause) = (0, None, 0, TURN);
    let mut used_us = parts.clock.monotonic_us();
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        let started_us = parts.clock.monotonic_us();
        if started_us >= turn_us {
            turn_us = started_us + TURN.as_micros() as u64;
            turn(parts, &mut doubts);
            if parts.log.take_used() {
                used_us = started_us;
            } else if started_us.saturating_sub(used_us) / 1000 >= parts.config.writes.idle_close {
                parts.store.evict_unused();
            }
        } else {
            parts.log.retain(parts.clock.believed());
        }
        let took = Duration::from_micros(parts.clock.monotonic_us().saturating_sub(started_us));
        let asked = parts.log.arena().asked();
        if std::mem::replace(&mut asked_before, asked) != asked {
            asked_us = Some(started_us);
        }
        let is_written_to = asked_us.is_some_and(|at_us| started_us < at_us + TURN.as_micros() as u64);
        pause = if is_written_to { (took * RETAIN_SHARE).clamp(RETAIN_PAUSE, TURN) } else { TURN };
    }
}

/// Touches memory ahead of writers, so that appends do not pay for page faults, and gives free memory back that nobody has
/// needed for a while. An idle node, and one with many lanes that are hardly written to, keeps the machine's memory free:
/// nothing is touched until somebody fills segments.
fn warm(parts: &Parts, stopped: &Receiver<()>) {
    let this = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(this), WARM_NICE) {
        tracing::debug!(%error, "memory is touched ahead at ordinary priority");
    }
    let arena = parts.log.arena();
    let (mut asked_before, mut filled_us, mut turn_us) = (0, None, 0);
    let mut pause = TURN;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        let asked = arena.asked_whole();
        let now_us = parts.clock.monotonic_us();
        if std::mem::replace(&mut asked_before, asked) != asked {
            filled_us = Some(now_us);
        }
        // Large segments are asked for a few times in a second only.
        let is_filled = filled_us.is_some_and(|at_us| now_us < at_us + TURN.as_micros() as u64);
        if now_us >= turn_us {
            turn_us = now_us + TURN.as_micros() as u64;
            arena.give_back(!is_filled);
        }
        let touched = if is_filled { arena.warm(WARM_BYTES) } else { 0 };
        pause = match (is_filled, touched) {
            (false, _) => TURN,
            (true, 0) => WARM_PAUSE,
            (true, _) => Duration::ZERO,
        };
    }
}

/// What is known outside of a clock that is doubted.
struct Doubts {
    told: bool,
    file: DoubtFile,
}

fn turn(parts: &Parts, doubts: &mut Doubts) {
    let now = parts.clock.believed();
    doubts.file.keep(&now);
    let doubted = now.doubt().map(|doubt| jumped(&doubt));
    if std::mem::replace(&mut doubts.told, doubted.is_some()) != doubted.is_some() {
        match doubted {
            Some(jumped) => tracing::warn!("{jumped}"),
            None => tracing::info!("the clock of this machine is believed again"),
        }
    }
    // Whether segments have been open for long is compared with what the wall clock said then; to close one deletes nothing.
    let wall_ms = now.wall_ms();
    parts.broker.tick();
    parts.log.retain(now);
    parts.log.close_old(wall_ms);
    parts.log.close_idle(wall_ms, i64::try_from(parts.config.writes.idle_close).unwrap_or(i64::MAX));
    parts.readiness.set_problems(problems(parts));
    if let Some(cluster) = &parts.cluster {
        cluster.look_at_thread();
    }
}

/// That the wall clock is not believed, and what to do. No reason to send clients elsewhere.
pub(super) fn jumped(doubt: &Doubt) -> String {
    let (ahead_s, minutes) = (doubt.ahead_ms / 1000, doubt.left_ms / 60_000 + 1);
    format!(
        "the clock of this machine is {ahead_s} s ahead of what it was, or of the newest data that the node has found at its start: what is deleted for its age \
         goes by the time before that for another {minutes} min, then by the clock; set the clock if it is wrong"
    )
}

/// What keeps the node from serving well, a sentence each.
fn problems(parts: &Parts) -> Vec<String> {
    let mut problems = Vec::new();
    if !parts.broker.is_confirmed() {
        let seconds = kera_broker::SERVES_MS / 1000;
        // Who has asked nobody, as while its own disk stands still, does not know whether they are there.
        let silent = || format!("this node has not heard from a majority of the coordinators for {seconds} s");
        let lacking = parts.broker.lacking().unwrap_or_else(silent);
        problems.push(format!(
            "{lacking}: nothing is read here, and streams with one copy are not written, until it hears most of them"
        ));
    }
    for virtual_log in &parts.virtual_logs {
        // Behind is not sick: it catches up, and slows producers down meanwhile.
        if let Err(error) = kera_log::DurabilitySink::healthy(&**virtual_log)
            && !error.kind.passes()
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
