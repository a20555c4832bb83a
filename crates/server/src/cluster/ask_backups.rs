//! How a node that recovers asks backups. It asks many questions one after another, and those who have been lost together with the node whose streamlets it
//! takes over answer none of them: a machine that is gone, a process that stands still. Each question to one of these would take as long as an answer may take at all, so
//! who is known to be lost is not waited for much longer, and who has kept silent is asked after all others for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kera_backup::{Backup, BackupStats};
use kera_broker::{NOT_READ_BACK, NoStates};
use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::USED_ENDS_MAX;
use kera_format::vlog_replica::LogId;
use kera_protocol::{BlocksRead, LaneStateList, LaneStates, Message, ReadBlocks, Status, UseEnds, UsedEnd};
use kera_raft::{Group, Pending, Transport, in_versions};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::backups::BackupRole;
use super::transport::{LATE, TOO_MUCH};
use super::{STOPPING, ask_while, wait};

/// How often it is looked whether who is asked is lost.
const LOOK: Duration = Duration::from_millis(100);
/// How long who is lost is waited for: it may only be slow, and have what nobody else has.
const LOST_ANSWER: Duration = Duration::from_secs(2);
/// A failure that took so long is silence; others come at once and cost nothing.
const SILENCE: Duration = Duration::from_secs(1);
/// For how long who has kept silent is asked after others.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Backups that have kept silent, and since when nobody has heard more.
#[derive(Default)]
struct Silent(HashMap<u32, Instant>);

impl Silent {
    /// A question was answered, or was not, after some time.
    fn note(&mut self, backup: u32, is_answered: bool, took: Duration, now: Instant) {
        if is_answered {
            self.0.remove(&backup);
        } else if took >= SILENCE {
            self.0.insert(backup, now);
        }
    }

    fn is_silent(&self, backup: u32, now: Instant) -> bool {
        self.0.get(&backup).is_some_and(|since| now.duration_since(*since) < SILENT_FOR)
    }
}

fn is_live(state: &ClusterState, backup: u32) -> bool {
    state.node(backup).is_some_and(|known| !known.fenced)
}

/// An answer, or that there is none: sooner than it would be told otherwise if who is asked is lost, and soon if this node is to stop.
async fn answer_of<T>(
    mut answer: Pending<T>,
    is_live: impl Fn() -> bool,
    goes_on: impl Fn() -> bool,
) -> Result<T, String> {
    let mut lost_since = None;
    loop {
        if let Ok(told) = tokio::time::timeout(LOOK, &mut answer).await {
            return told;
        }
        if !goes_on() {
            return Err(STOPPING.to_owned());
        }
        if is_live() {
            lost_since = None;
        } else if lost_since.get_or_insert_with(tokio::time::Instant::now).elapsed() >= LOST_ANSWER {
            return Err(format!("its node is lost, and it has not answered for {} s", LOST_ANSWER.as_secs()));
        }
    }
}

/// Asks backups: this node's own without a message, others over connections to their nodes.
pub(super) struct AskBackups {
    group: Arc<Group>,
    /// Number and epoch of this node.
    me: (u32, u32),
    own: Arc<BackupRole>,
    transport: Arc<dyn Transport>,
    /// Where connections to backups run.
    links: Handle,
    /// Where the coordinators' log runs.
    runtime: Handle,
    silent: Mutex<Silent>,
    /// Nothing is asked any more: the node is to stop.
    stopping: Arc<AtomicBool>,
}

impl AskBackups {
    /// `me`: number and epoch of this node. `links`: where connections to backups run, with the transport that they are of.
    pub(super) fn new(
        group: &Arc<Group>,
        me: (u32, u32),
        own: Arc<BackupRole>,
        (transport, links): (Arc<dyn Transport>, Handle),
        runtime: &Handle,
    ) -> AskBackups {
        let (group, runtime, silent) = (group.clone(), runtime.clone(), Mutex::default());
        AskBackups { group, me, own, transport, links, runtime, silent, stopping: Arc::default() }
    }

    /// From here on all who ask hear that the node stops, and soon those who have asked. Said before anything fails for it, so that whoever has failed can
    /// ask whether it is for that.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    fn must_go_on(&self) -> Result<(), String> {
        if self.stopping.load(Ordering::SeqCst) { Err(STOPPING.to_owned()) } else { Ok(()) }
    }

    /// The backup with this number if it is this node's, and runs.
    fn own(&self, backup: u32) -> Option<&Backup> {
        self.own.backup().filter(|_| backup == self.me.0)
    }

    /// What this node's own backup has done; nothing if it does not run.
    pub(super) fn own_stats(&self) -> BackupStats {
        self.own.backup().map_or_else(BackupStats::default, Backup::stats)
    }

    pub(super) fn ask<M: Message>(&self, backup: u32, asked: &M) -> Result<M::Response, String> {
        let (version, answer) = self.call(backup, asked)?;
        kera_protocol::Body::decode(version, &answer).map_err(|error: kera_protocol::ProtocolError| error.to_string())
    }

    /// The answer's body and its version.
    fn call<M: Message>(&self, backup: u32, asked: &M) -> Result<(u8, Vec<u8>), String> {
        self.must_go_on()?;
        let address = self.group.read(|state| state.node(backup).map(|node| node.doors.cluster.clone()));
        let address = address.ok_or("it is not in the cluster any more")?;
        let (transport, group, bodies) = (self.transport.clone(), self.group.clone(), in_versions(asked));
        let (began, stopping) = (Instant::now(), self.stopping.clone());
        let told = wait(&self.links, async move {
            let answer = transport.call_versions(backup.into(), &address, M::OP, bodies);
            let is_live = || group.read(|state| is_live(state, backup));
            answer_of(answer, is_live, || !stopping.load(Ordering::SeqCst)).await
        });
        // Whoever has more to tell than fits into an answer has not kept silent.
        let is_answered = told.as_ref().map_or_else(|reason| reason.starts_with(TOO_MUCH), |_| true);
        self.silent.lock().note(backup, is_answered, began.elapsed(), Instant::now());
        told
    }
}

/// Why another node's backup does not say what lanes have, from what the transport says.
fn no_states(reason: String) -> NoStates {
    NoStates { is_too_much: reason.starts_with(TOO_MUCH), is_late: reason.starts_with(LATE), reason }
}

impl kera_broker::Copies for AskBackups {
    /// What is read of the state here is as new as the ends at least: where these were decided below the level, its raising has settled them.
    fn opens_with(&self, ends: &[(LogId, u64)]) -> Result<(), String> {
        if !self.group.read(ClusterState::takes_used_ends) {
            return Ok(());
        }
        for part in ends.chunks(USED_ENDS_MAX) {
            self.must_go_on()?;
            let ends = part.iter().map(|(log, end)| UsedEnd { log: *log, end: *end }).collect();
            let said = UseEnds { node: self.me.0, epoch: self.me.1, ends };
            // These ends stay already.
            let is_known = |state: &ClusterState| state.plan_use_ends(&said).is_ok_and(|entries| entries.is_empty());
            if !self.group.read(is_known) {
                let asked = ask_while((&self.group, &self.runtime), said, || self.must_go_on().is_ok());
                asked.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        self.must_go_on().is_ok()
    }

    fn is_there(&self, backup: u32) -> bool {
        let answers = || !self.silent.lock().is_silent(backup, Instant::now());
        backup == self.me.0 || answers() && self.group.read(|state| is_live(state, backup))
    }

    fn is_here(&self, backup: u32) -> bool {
        backup == self.me.0
    }

    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.must_go_on()?;
        match self.own(backup) {
            Some(own) => own.lane_states(asked).map_err(|error| {
                let is_too_much = error.status == Status::LimitReached;
                NoStates { reason: error.reason, is_too_much, is_late: false }
            }),
            None => self.ask(backup, asked).map_err(no_states),
        }
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.must_go_on()?;
        match self.own(backup) {
            Some(own) => own.read_blocks(asked).map_err(|error| match error.status {
                Status::SegmentUnreadable => format!("{NOT_READ_BACK}{error}"),
                _ => error.to_string(),
            }),
            None => {
                let (_, answer) = self.call(backup, asked)?;
                BlocksRead::parse(&answer.into()).map_err(|error| error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// How long it takes, of the runtime's own time, until there is no answer of somebody who is lost after so many looks.
    fn waits(lost_after: u32, answer: Pending<u8>) -> (Result<u8, String>, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (began, looks) = (tokio::time::Instant::now(), AtomicU32::new(0));
            let told = answer_of(answer, || looks.fetch_add(1, Ordering::Relaxed) < lost_after, || true).await;
            (told, began.elapsed())
        })
    }

    #[test]
    fn who_is_lost_is_not_waited_for_as_long_as_an_answer_may_take() {
        let (told, took) = waits(3, Box::pin(std::future::pending()));
        assert!(told.unwrap_err().contains("its node is lost"));
        assert!(took >= LOST_ANSWER && took <= LOST_ANSWER + 6 * LOOK, "{took:?}");
        // Whoever is live may take its time, and so may who is lost a little.
        let late = |after| -> Pending<u8> {
            Box::pin(async move {
                tokio::time::sleep(after).await;
                Ok(7)
            })
        };
        assert_eq!(waits(u32::MAX, late(Duration::from_secs(14))).0, Ok(7));
        assert_eq!(waits(0, late(LOST_ANSWER / 2)).0, Ok(7));
    }

    #[test]
    fn nobody_is_waited_for_once_the_node_is_to_stop() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let never: Pending<u8> = Box::pin(std::future::pending());
        let looks = AtomicU32::new(0);
        let told = runtime.block_on(answer_of(never, || true, || looks.fetch_add(1, Ordering::Relaxed) < 2));
        assert_eq!(told, Err(STOPPING.to_owned()));
    }

    #[test]
    fn a_backup_that_has_too_much_to_tell_is_asked_for_less() {
        for (said, is_too_much, is_late) in [
            (format!("{TOO_MUCH}LimitReached: 64 MiB"), true, false),
            (format!("{LATE}no answer within 15000 ms"), false, true),
            (STOPPING.to_owned(), false, false),
        ] {
            assert_eq!(no_states(said.clone()), NoStates { reason: said, is_too_much, is_late });
        }
    }

    #[test]
    fn who_has_kept_silent_is_asked_after_others_until_it_answers_or_some_time_is_over() {
        let (mut silent, now) = (Silent::default(), Instant::now());
        silent.note(2, false, SILENCE / 2, now);
        assert!(!silent.is_silent(2, now), "it has refused");
        silent.note(2, false, SILENCE, now);
        assert!(silent.is_silent(2, now) && !silent.is_silent(3, now));
        assert!(!silent.is_silent(2, now + SILENT_FOR));
        silent.note(2, true, 2 * SILENCE, now);
        assert!(!silent.is_silent(2, now));
    }
}
