//! The part of a consumer that belongs to an application: joining, leases on groups, commits, leaving (promise 4: one
//! that joins takes the next group, one that dies loses its lease, nobody else notices).

use std::time::Duration;

use kera_format::ApplicationId;
use kera_protocol::{
    AfterCommit, CommitEntry, CommitOffsets, JoinApplication, LeasedGroups, LeaveApplication, NextGroups, Status,
    limits,
};
use kera_rpc::RpcError;
use tokio::time::Instant;

use super::link::Link;
use super::track::{Lease, Track};
use super::{CommitMode, Consumer};
use crate::ClientError;

/// How long a request for groups waits at the server.
const GROUPS_WAIT_MS: u32 = 30_000;
/// Shorter when the consumer only waits to learn that there is nothing more.
const LAST_GROUPS_WAIT_MS: u32 = 200;
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A membership of an application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    application: ApplicationId,
    member: u64,
    /// The last request for groups found none.
    pub(super) nothing_left: bool,
}

impl Consumer {
    /// Joins, or comes back as the member that it was. A server that does not know that member any more gives another
    /// id; then the leases are lost too.
    pub(super) async fn join(&mut self, link: &mut Link) -> Result<(), ClientError> {
        let Some(application) = self.settings.application.clone() else { return Ok(()) };
        let message = JoinApplication {
            application,
            stream: self.stream.id,
            member_name: self.settings.member_name.clone(),
            member: self.membership.map_or(0, |membership| membership.member),
            start: self.settings.from,
            lease_ms: self.settings.lease.as_millis() as u32,
        };
        let joined = match link.connection.call(&message).await {
            Err(e) if e.status() == Some(Status::UnknownMember) => {
                self.lose_membership();
                link.connection.call(&JoinApplication { member: 0, ..message }).await?
            }
            answer => answer?,
        };
        if self.membership.is_some_and(|membership| membership.member != joined.member) {
            self.lose_membership();
        }
        let (application, member) = (joined.application, joined.member);
        self.membership = Some(Membership { application, member, nothing_left: false });
        link.start_heartbeats(application, member, Duration::from_millis(joined.heartbeat_ms.into()));
        self.groups_at = Instant::now();
        Ok(())
    }

    /// The leases are gone. What was received for them is thrown away; how far they were processed is kept, for the case
    /// that they come back before anybody else has moved them.
    pub(super) fn lose_membership(&mut self) {
        self.settle_all();
        if self.membership.take().is_none() {
            return;
        }
        for (_, track) in self.tracks.drain() {
            if let Some(lease) = track.lease {
                self.stats.lost += 1;
                self.carried.insert((track.streamlet, track.lane, lease.group), track.processed);
            }
        }
        self.queue.clear();
        self.queued_bytes = 0;
    }

    fn settle_all(&mut self) {
        if self.settings.commit != CommitMode::Manual {
            return;
        }
        // What the program has not committed itself counts as not processed.
        for track in self.tracks.values_mut() {
            if let Some(lease) = track.lease {
                track.processed = lease.committed;
            }
        }
    }

    pub(super) fn ask_for_groups_if_due(&mut self, now: Instant) {
        let (Some(membership), Some(link)) = (&self.membership, &mut self.link) else { return };
        let room = self.settings.groups_max.saturating_sub(self.tracks.len());
        if now < self.groups_at || room == 0 || link.is_asking_for_groups() {
            return;
        }
        let max_wait_ms = if self.settings.until_end { LAST_GROUPS_WAIT_MS } else { GROUPS_WAIT_MS };
        let (application, member) = (membership.application, membership.member);
        link.ask_for_groups(&NextGroups { application, member, max_groups: room as u32, max_wait_ms });
    }

    pub(super) fn take_groups(&mut self, leased: LeasedGroups) {
        let Some(membership) = &mut self.membership else { return };
        membership.nothing_left = leased.groups.is_empty();
        for group in leased.groups {
            let committed = (group.start, group.start_ordinal);
            let carried = self.carried.remove(&(group.streamlet, group.lane, group.group));
            // Nobody has moved it since: what was processed and not committed need not be read again.
            let start = carried.filter(|carried| carried.1 > committed.1).unwrap_or(committed);
            let mut track = Track::new(group.streamlet, group.lane, start.0, start.1);
            track.target = self.targets.get(&(group.streamlet, group.lane)).copied();
            // Retention may have gone past what was committed.
            track.may_have_gap = true;
            let lease = Lease { id: group.lease, group: group.group, committed, releasing: false };
            track.lease = Some(lease);
            self.add_track(track);
        }
    }

    pub(super) fn take_release(&mut self, leases: &[u64]) {
        for track in self.tracks.values_mut() {
            if let Some(lease) = &mut track.lease
                && leases.contains(&lease.id)
            {
                lease.releasing = true;
            }
        }
        self.commit_at = Instant::now();
    }

    pub(super) fn commit_if_due(&mut self, now: Instant) {
        if self.membership.is_none() {
            return;
        }
        let manual = self.settings.commit == CommitMode::Manual;
        let urgent = |track: &Track| track.lease.is_some_and(|lease| lease.releasing) || (!manual && track.done());
        let due = !manual && now >= self.commit_at;
        if due || self.tracks.values().any(urgent) {
            self.send_commit(|track| if manual { urgent(track) } else { track.has_to_commit() });
        }
    }

    /// Sends what there is to commit, unless a commit is under way.
    fn send_commit(&mut self, which: impl Fn(&Track) -> bool) {
        let manual = self.settings.commit == CommitMode::Manual;
        let (Some(membership), Some(link)) = (&self.membership, &mut self.link) else { return };
        if link.is_committing() {
            return;
        }
        let (mut entries, mut ids) = (Vec::new(), Vec::new());
        for (id, track) in &self.tracks {
            let Some(lease) = track.lease.filter(|_| which(track)) else { continue };
            let after = match lease.releasing {
                // A program that commits by itself has not vouched for more than its last commit.
                true => AfterCommit::Release,
                false if track.done() => AfterCommit::Done,
                false => AfterCommit::Keep,
            };
            let (cursor, ordinal) = if manual && lease.releasing { lease.committed } else { track.processed };
            let (streamlet, lane) = (track.streamlet, track.lane);
            entries.push(CommitEntry { streamlet, lane, lease: lease.id, cursor, ordinal, after });
            ids.push(*id);
            if entries.len() == limits::COMMIT_ENTRIES_MAX {
                break;
            }
        }
        if entries.is_empty() {
            return;
        }
        let (application, member) = (membership.application, membership.member);
        link.commit(&CommitOffsets { application, member, entries }, ids);
        if let CommitMode::Interval(interval) = self.settings.commit {
            self.commit_at = Instant::now() + interval;
        }
    }

    pub(super) fn take_committed(&mut self, entries: &[(u64, CommitEntry)], statuses: &[u16]) {
        self.stats.commits += 1;
        for (at, (id, entry)) in entries.iter().enumerate() {
            let status = statuses.get(at).copied().and_then(Status::from_u16).unwrap_or(Status::Internal);
            match status {
                Status::Ok if entry.after == AfterCommit::Keep => {
                    if let Some(lease) = self.tracks.get_mut(id).and_then(|track| track.lease.as_mut()) {
                        lease.committed = (entry.cursor, entry.ordinal);
                    }
                }
                Status::Ok => {
                    self.stats.released += u64::from(entry.after == AfterCommit::Release);
                    self.forget(*id);
                }
                Status::LeaseLost => {
                    self.stats.lost += 1;
                    self.forget(*id);
                }
                status if status.retryable() => self.commit_at = Instant::now() + Duration::from_millis(100),
                status => {
                    let message = format!("a commit was refused: {status}; {}", status.hint());
                    self.failed = Some(RpcError::Status { status, message, retry_after: None }.into());
                }
            }
        }
        self.groups_at = Instant::now();
    }

    /// The lease is over.
    fn forget(&mut self, id: u64) {
        self.tracks.remove(&id);
        if let Some(membership) = &mut self.membership {
            membership.nothing_left = false;
        }
        let tracks = &self.tracks;
        if let Some(link) = &mut self.link {
            link.drop_idle_feeds(|track| tracks.contains_key(&track));
        }
    }

    /// Commits what is processed, and waits until the server has it.
    pub(super) async fn commit_settled(&mut self) -> Result<(), ClientError> {
        let is_left = |consumer: &Consumer| {
            let committing = consumer.link.as_ref().is_some_and(Link::is_committing);
            committing || consumer.tracks.values().any(Track::has_to_commit)
        };
        while self.settings.application.is_some() && is_left(self) {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            self.send_commit(Track::has_to_commit);
            self.work_once().await?;
        }
        Ok(())
    }

    /// Gives the leases back and closes the connection.
    pub(super) async fn leave(&mut self) {
        if let (Some(membership), Some(link)) = (&self.membership, &self.link) {
            let (application, member) = (membership.application, membership.member);
            let leave = LeaveApplication { application, member };
            // The leases end by themselves if this does not arrive.
            let _ = link.connection.call_within(&leave, LEAVE_TIMEOUT).await;
        }
        self.unlink();
    }
}
