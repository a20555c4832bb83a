//! The graceful stop of a node, step by step: the start backwards.
//!
//! | step | why here |
//! | --- | --- |
//! | not ready | load balancers look elsewhere while connections drain |
//! | commands in line | refused: each of them may wait for a leader of the coordinators |
//! | connections | requests under way are answered, others refused with "stopping" |
//! | compaction, scrubbing, maintenance | nobody changes anything any more |
//! | rebuilding | what comes behind the flush would be in the arena only; what is under way ends where it is, and begins again at the next start |
//! | close all groups | what is open goes to the virtual logs and to the store |
//! | virtual logs | what was appended becomes durable, which segments must be before they are stored |
//! | backups | the same for what has copies: the store gets no segment of which not all is durable |
//! | store | everything is on disk |
//! | note that it has stopped | the next start knows that everything is on disk |
//! | arena file | removed only once that is noted; otherwise the next start attaches it |
//! | HTTP, the last command, cluster, lock | last; what ends the process here takes nothing away |

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::{Node, start};
use crate::readiness::Phase;

/// How long backups are waited for. Those that are there answer in milliseconds; when all nodes stop at once there are none.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether they have answered.
const LOOK: Duration = Duration::from_millis(2);

pub(super) fn stop(node: Node) {
    let started = Instant::now();
    let timeout = node.stop_timeout();
    let Node { parts, http, kafka, commands, maintenance, compaction, scrub, writers, store_threads, lock, .. } = node;
    parts.readiness.enter(Phase::Draining);
    if let Some(cluster) = &parts.cluster {
        cluster.stopping();
    }
    parts.broker.stop();
    commands.0.stop();
    let server = parts.server.lock().take();
    if let Some(server) = server {
        server.stop(timeout);
    }
    if let Some(kafka) = kafka {
        kafka.stop(&parts, timeout);
    }
    if let Some(compaction) = compaction {
        compaction.stop();
    }
    if let Some(scrub) = scrub {
        scrub.stop();
    }
    maintenance.stop();
    if let Some(cluster) = &parts.cluster {
        cluster.stop_recovering();
    }
    parts.log.close_all();
    for virtual_log in &parts.virtual_logs {
        virtual_log.stop();
    }
    for writer in writers {
        if writer.join().is_err() {
            tracing::error!("a virtual log's writer ended with a panic");
        }
    }
    let settled = settle(&parts, timeout);
    let flushed = flush(&parts, timeout) && settled;
    store_threads.stop();
    let on_disk = flushed && is_noted(&parts);
    if on_disk {
        remove_arena(&parts);
    }
    if let Some(http) = http {
        http.stop();
    }
    // Sessions and HTTP are gone: these are the last handles, so the threads end.
    let (commands, threads) = commands;
    drop(commands);
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread for commands ended with a panic");
        }
    }
    if let Some(cluster) = &parts.cluster {
        cluster.stop();
    }
    tracing::info!(took_ms = started.elapsed().as_millis() as u64, on_disk, "stopped");
    drop(lock);
}

/// Notes that everything is on disk. Without the note the arena stays, which says the same as long as the machine runs.
///
/// Before the arena goes, and before anything that may take long, as a command does that waits for a leader: who is in a hurry kills
/// the process. A kill in between leaves the note and the arena, and the next start attaches the arena as after any kill: all that
/// is in it is in the store as well, of which it knows what to do. The other way round a kill would leave neither, and a node of a
/// cluster then says that it has lost all that it had, which the others rebuild. Nothing that is acknowledged behind the
/// note depends on it: clients are gone, and a backup tells by itself what a loss of power has left of what it took.
fn is_noted(parts: &super::Parts) -> bool {
    match start::stopped(&parts.config, &parts.identity) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "the next start would not know that everything is on disk; the arena stays, and it attaches that");
            false
        }
    }
}

fn remove_arena(parts: &super::Parts) {
    match parts.log.arena().remove() {
        Ok(()) => start::arena_removed(&parts.config, &parts.identity),
        Err(error) => tracing::warn!(%error, "the arena's file stays; the next start attaches it"),
    }
}

/// Waits until all that was appended is durable, and so was given to the store. False: a segment that the store does not know of may have
/// acknowledged records in it, so the arena must stay.
///
/// Backups are waited for: their answers are on their way. The node's own virtual logs have stopped, and what they did not get to a disk
/// they never will. None of that is acknowledged, but what is may lie behind it: a lane whose stream has changed to durability `process`
/// acknowledges at once, and gives the store its segments in order all the same.
fn settle(parts: &super::Parts, timeout: Duration) -> bool {
    let until = Instant::now() + timeout.min(SETTLE_MAX);
    while !parts.log.is_settled() {
        if parts.cluster.is_none() {
            tracing::warn!("not all that was appended is durable; the arena keeps it for the next start");
            return false;
        }
        if Instant::now() >= until {
            tracing::warn!(
                "backups have not answered for all that was appended; the arena keeps it for the next start"
            );
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Writes everything to disk, waiting at most `timeout`. Tells whether all of it is there.
fn flush(parts: &super::Parts, timeout: Duration) -> bool {
    let (sender, done) = channel();
    let store = parts.store.clone();
    let spawned = std::thread::Builder::new().name("kera-flush".into()).spawn(move || {
        let _ = sender.send(store.flush_all());
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread to write the rest to disk; the arena keeps it");
        return false;
    }
    match done.recv_timeout(timeout) {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, "not everything is on disk; the arena keeps the rest for the next start");
            false
        }
        Err(_) => {
            let seconds = timeout.as_secs();
            tracing::warn!(seconds, "not everything was on disk in time; the arena keeps the rest for the next start");
            false
        }
    }
}
