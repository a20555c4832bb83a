//! The part of a consumer that belongs to an application: joining, leases on groups, commits, leaving (promise 4: one
//! that joins takes the next group, one that dies loses its lease, nobody else notices).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kera_format::{ApplicationId, Cursor};
use kera_protocol::{
    AfterCommit, CommitEntry, CommitOffsets, JoinApplication, JoinedApplication, LeasedGroup, LeasedGroups,
    LeaveApplication, NextGroups, Status, limits,
};
use kera_rpc::{Connection, RpcError};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::holders::{Joining, is_said_again};
use super::link::Link;
use super::track::{Lease, Track};
use super::{CommitMode, Consumer};
use crate::ClientError;
use crate::placement::{NOBODY, Placement};

/// How long a request for groups waits at the server.
const GROUPS_WAIT_MS: u32 = 30_000;
/// Shorter when the consumer only waits to learn that there is nothing more.
const LAST_GROUPS_WAIT_MS: u32 = 200;
/// How long it is until a node is asked again that is still reading how far applications are.
const GROUPS_LATER: Duration = Duration::from_millis(50);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// That a node takes no commits, or does not give what comes next, is said when it has been so for as long: while a streamlet moves it is for a moment.
pub(super) const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Stands for a track in the commit of a lease that is given back and read by nobody.
const GIVEN_BACK: u64 = u64::MAX;

/// Most groups of which it is remembered how far they were: what others have got since is never asked for again.
const CARRIED_MAX: usize = 1 << 16;

/// How far a group was when its lease was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    /// Processed up to here.
    pub(super) at: (Cursor, u64),
    /// The ordinal up to which it was committed: nobody starts in front of it unless the application was set back.
    pub(super) committed: u64,
    /// That is its end: it has only to be said to whoever gives it again.
    pub(super) done: bool,
}

/// A membership of an application at a node: the members at a node share what it owns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    application: ApplicationId,
    member: u64,
    /// After how long without a sign of life its leases end.
    lease: Duration,
    /// The last request for groups found none.
    nothing_left: bool,
    /// The node has said that it has heard of all that it owns, by what is known of the owners.
    has_heard: bool,
    /// It had said so before the last request for groups was sent.
    had_heard: bool,
    /// It had nothing left when it had heard of all that it owns, and owned that still.
    is_empty: bool,
    /// Groups are not asked for before.
    pub(super) groups_at: Instant,
    /// Nothing is committed before: the node has refused the last commit for now, as while a streamlet moves away.
    pub(super) commits_at: Instant,
    /// Since when it has refused each commit, or a part of it, for now, and there was something to be committed.
    refused_since: Option<Instant>,
    /// When that was said last.
    refusal_said_at: Option<Instant>,
}

impl Membership {
    fn new(joined: &JoinedApplication, now: Instant) -> Membership {
        Membership {
            application: joined.application,
            member: joined.member,
            lease: Duration::from_millis(joined.lease_ms.into()),
            nothing_left: false,
            has_heard: false,
            had_heard: false,
            is_empty: false,
            groups_at: now,
            commits_at: now,
            refused_since: None,
            refusal_said_at: None,
        }
    }

    /// Whether the node has nothing to give, of all that it owns. One that `is_alone` owns everything, and cannot have missed that.
    pub(super) fn is_at_end(&self, is_alone: bool) -> bool {
        self.nothing_left && (self.is_empty || is_alone)
    }

    /// The node may have something to give: it is asked for groups, not before `at`.
    pub(super) fn may_have_more(&mut self, at: Instant) {
        (self.nothing_left, self.is_empty, self.groups_at) = (false, false, at);
    }

    /// What the node has said that it has heard holds no more.
    fn may_not_have_heard(&mut self) {
        (self.has_heard, self.had_heard) = (false, false);
    }

    /// The node is asked for groups.
    fn asks(&mut self) {
        self.had_heard = self.has_heard;
    }
}

/// Joins, or comes back as the member that it was. A server that does not know that member any more gives another
/// id; then the leases are lost too.
pub(super) async fn join(connection: &Connection, message: JoinApplication) -> Result<JoinedApplication, RpcError> {
    match connection.call(&message).await {
        Err(e) if e.status() == Some(Status::UnknownMember) => {
            connection.call(&JoinApplication { member: 0, leases: Some(Vec::new()), ..message }).await
        }
        answer => answer,
    }
}

impl Consumer {
    /// How to become a member at a node, or again the one that it was; `None` without an application. Who is a member nowhere is one of a new
    /// application only with the owner of the first streamlet: see [`Consumer::owners_to_join`].
    pub(super) fn joining(&self, node: u32) -> Option<Joining> {
        let message = JoinApplication {
            application: self.settings.application.clone()?,
            stream: self.stream.id,
            member_name: self.settings.member_name.clone(),
            member: self.memberships.get(&node).map_or(0, |membership| membership.member),
            start: self.settings.from,
            lease_ms: self.settings.lease.as_millis() as u32,
            leases: Some(self.leases_of(node)),
        };
        let owned = || self.holders.placement.by_owner(&[]).remove(&node).unwrap_or_default();
        let is_to_know = self.memberships.is_empty() && self.holders.placement.first_owner() != node;
        Some(Joining { message, if_known_of: is_to_know.then(owned).and_then(|owned| owned.first().copied()) })
    }

    /// The leases of a node that it reads, or has still to give back.
    fn leases_of(&self, node: u32) -> Vec<u64> {
        let read = self.tracks.values().filter_map(|track| track.lease).filter(|lease| lease.node == node);
        let given_back = self.given_back.range((node, 0)..=(node, u64::MAX)).map(|((_, lease), _)| *lease);
        read.map(|lease| lease.id).chain(given_back).collect()
    }

    /// It is a member at a node, with leases of before or without.
    pub(super) fn take_membership(&mut self, node: u32, link: &mut Link, joined: &JoinedApplication) {
        if self.memberships.get(&node).is_some_and(|membership| membership.member != joined.member) {
            self.lose_membership(node);
        }
        self.memberships.insert(node, Membership::new(joined, Instant::now()));
        let every = Duration::from_millis(joined.heartbeat_ms.into());
        link.start_heartbeats(joined.application, joined.member, every);
    }

    /// The leases of a node are gone. What was received for them is thrown away; how far they were processed is kept, for the case
    /// that they come back before anybody else has moved them.
    pub(super) fn lose_membership(&mut self, node: u32) {
        let of_node = |track: &Track| track.lease.is_some_and(|lease| lease.node == node);
        if self.memberships.remove(&node).is_some() {
            self.lose_tracks(of_node);
        }
        self.given_back.retain(|(of, _), _| *of != node);
    }

    /// A node does not know yet whether it has groups to give: it is asked again.
    pub(super) fn ask_for_groups_later(&mut self, node: u32) {
        if let Some(membership) = self.memberships.get_mut(&node) {
            membership.may_have_more(Instant::now() + GROUPS_LATER);
        }
    }

    /// Nodes that have nothing to give to a member that is to stop at the end are asked what they have heard of the owners.
    ///
    /// A node hears later than others of what it comes to own, and has nothing to give of that until then. So that it has nothing left counts when it was asked
    /// for groups after it had said that it has heard of all that it owns, by what is known of the owners, and when it says afterwards that it owned
    /// that still: it would have nothing left, too, of what it has let go of by then, and others have it.
    pub(super) fn ask_what_was_heard_if_due(&mut self) {
        if !self.settings.until_end || self.holders.placement.is_alone() {
            return;
        }
        let (stream, known) = (self.stream.id, Arc::clone(&self.holders.placement));
        for (node, membership) in &self.memberships {
            let Some(link) = self.holders.link(*node) else { continue };
            let is_asking = link.is_asking_for_groups() || link.is_asking_for_owners();
            if membership.nothing_left && !membership.is_empty && !is_asking {
                link.ask_for_owners(stream, &known);
            }
        }
    }

    /// A node that had nothing to give has said who owns what, as it has heard.
    pub(super) fn take_what_was_heard(&mut self, node: u32, told: &Placement) {
        let (known, streamlets, now) = (&self.holders.placement, self.stream.options.streamlets, Instant::now());
        let has_heard = told.has_heard_of(known, node, streamlets);
        if told.has_later_owners(known, streamlets) {
            self.holders.want_owners(now);
            self.ask_for_groups_later(node);
        } else if !has_heard {
            self.ask_for_groups_later(node);
        } else if let Some(membership) = self.memberships.get_mut(&node) {
            membership.has_heard = true;
            match membership.had_heard {
                true => membership.is_empty = membership.nothing_left,
                false => membership.may_have_more(now),
            }
        }
    }

    /// The owners have changed. Leases of nodes that own the streamlet no more are over: its next owner gives others, from the last commit
    /// on, and what was processed since is remembered as with any lost lease.
    ///
    /// Any node may have told of the owners, and one that is behind tells of those from before a lease. A lease that is only forgotten
    /// then stands in the way of everybody for as long as its node hears of the member, so it is given back, and a membership is left.
    pub(super) fn follow_owners(&mut self) {
        if self.settings.application.is_none() {
            return;
        }
        let owners = self.holders.owners();
        let idle: Vec<u32> = self.memberships.keys().filter(|node| !owners.contains(node)).copied().collect();
        for node in idle {
            self.leave_node(node);
        }
        let leases = |track: &Track| track.lease.map(|lease| (lease.node, lease.id));
        let over: BTreeSet<(u32, u64)> =
            self.tracks.values().filter(|track| self.is_over(track)).filter_map(leases).collect();
        let is_over = |track: &Track| leases(track).is_some_and(|lease| over.contains(&lease));
        self.give_back(is_over);
        let now = Instant::now();
        if !self.given_back.is_empty() {
            self.commit_at = now;
        }
        for membership in self.memberships.values_mut() {
            membership.may_have_more(now);
            membership.may_not_have_heard();
        }
    }

    /// Leases are over, as it seems: they are not read any more, and their nodes are told so.
    fn give_back(&mut self, which: impl Fn(&Track) -> bool) {
        for track in self.tracks.values().filter(|track| which(track)) {
            if let Some(lease) = track.lease {
                let (cursor, ordinal) = track.processed;
                let (streamlet, lane, after) = (track.streamlet, track.lane, AfterCommit::Release);
                let entry = CommitEntry { streamlet, lane, lease: lease.id, cursor, ordinal, after };
                self.given_back.insert((lease.node, lease.id), entry);
            }
        }
        self.lose_tracks(which);
    }

    /// Whether another node owns the streamlet of a lease, as far as is known: who leases a group of an owner epoch knew of that epoch.
    fn is_over(&self, track: &Track) -> bool {
        let Some(lease) = track.lease else { return false };
        let (owner, epoch) = self.holders.owner(track.streamlet);
        owner != NOBODY && owner != lease.node && lease.group.epoch() <= epoch
    }

    /// Without a link nobody knows whether these nodes have anything left: an answer that leases groups may have been on its way. Nor what they have heard: one
    /// that is started again may hear of it again.
    pub(super) fn may_have_more(&mut self, which: impl Fn(u32) -> bool) {
        for (_, membership) in self.memberships.iter_mut().filter(|(node, _)| which(**node)) {
            membership.may_have_more(membership.groups_at);
            membership.may_not_have_heard();
        }
    }

    /// Nothing that it owns is known of a node: it is no member there any more.
    fn leave_node(&mut self, node: u32) {
        let membership = self.memberships.get(&node).copied();
        self.lose_membership(node);
        // It may be on its way back there with leases that are lost now.
        self.holders.stop_reaching(node);
        self.feed_at = Instant::now();
        let link = self.holders.link(node);
        if let (Some(Membership { application, member, .. }), Some(link)) = (membership, link) {
            link.end_membership();
            // The leases end by themselves if this does not arrive.
            link.connection.post(&LeaveApplication { application, member });
        }
    }

    /// What stands in line for them is passed over, and so is what the program has not taken yet of their last batch.
    fn lose_tracks(&mut self, which: impl Fn(&Track) -> bool) {
        let lost: BTreeMap<u64, Track> = self.tracks.extract_if(|_, track| which(track)).collect();
        self.drop_unpacked(|id| lost.contains_key(&id));
        lost.values().for_each(|track| self.carry(track));
    }

    /// A lease is lost: where it comes back, as at the next owner of a streamlet that has moved, it goes on where it was.
    fn carry(&mut self, track: &Track) {
        if let Some(lease) = track.lease {
            self.stats.lost += 1;
            let (at, committed, done) = (track.processed, lease.committed.1, track.done());
            if self.carried.len() >= CARRIED_MAX {
                // Without it something is read again, as after the end of a program.
                self.carried.clear();
            }
            self.carried.insert((track.streamlet, track.lane, lease.group), Carried { at, committed, done });
        }
    }

    /// How many more groups it may read. One that is read up to where it is to stop is not read any more, and counts no more than one that is given back: a member
    /// with as many of them as it may read would ask for no others, and wait for their ends. Given back, it would be the first that is given again.
    fn room_for_groups(&self) -> usize {
        let read = self.tracks.values().filter(|track| !track.at_target()).count();
        self.settings.groups_max.saturating_sub(read)
    }

    pub(super) fn ask_for_groups_if_due(&mut self, now: Instant) {
        let room = self.room_for_groups();
        if room == 0 {
            return;
        }
        let max_groups = room.div_ceil(self.memberships.len().max(1)) as u32;
        let max_wait_ms = if self.settings.until_end { LAST_GROUPS_WAIT_MS } else { GROUPS_WAIT_MS };
        for (node, membership) in &mut self.memberships {
            let Some(link) = self.holders.link(*node) else { continue };
            if now >= membership.groups_at && !link.is_asking_for_groups() && !link.is_asking_for_owners() {
                membership.asks();
                let (application, member) = (membership.application, membership.member);
                link.ask_for_groups(&NextGroups { application, member, max_groups, max_wait_ms });
            }
        }
    }

    /// Groups that a node has leased to it.
    ///
    /// One that it reads already has come to that node with its streamlet, and the lease from before is over, whether or not that was told
    /// yet: a node that lets go answers no commit, and the one behind it may be quicker to give than it is to refuse. Read by both leases
    /// the group would come twice, side by side. So the one before is lost here, and its reader's place goes to the one that follows. One
    /// that is just given back to the same node is not read any more, and its answer is on its way.
    ///
    /// Answers of two nodes may be looked at in the other order: then what is given is the lease from before, and is given back unread. It is
    /// that one if the owner's is read already, and the giver is known to have the group of an earlier owner. Without the latter the giver is
    /// taken for an owner of which is not known yet, which is how mostly is found out that something has moved; and where something has moved
    /// back, the owners that are asked for then say so.
    ///
    /// All owners are asked at one time, since nobody knows which of them has groups, each for at least one: together they may give more than there is room for. What
    /// comes last of that is given back unread, for others.
    pub(super) fn take_groups(&mut self, node: u32, mut leased: LeasedGroups) {
        let Some(membership) = self.memberships.get_mut(&node) else { return };
        membership.nothing_left = leased.groups.is_empty();
        membership.is_empty &= membership.nothing_left;
        leased.groups.retain(|given| {
            let is_over = self.is_read_of_owner(node, given);
            if is_over {
                self.give_back_unread(node, given);
                self.holders.want_owners(Instant::now());
            }
            !is_over
        });
        let given: HashSet<_> = leased.groups.iter().map(|given| (given.streamlet, given.lane, given.group)).collect();
        self.give_back(|track| {
            let is_before = |lease: Lease| lease.node != node || !lease.releasing;
            let is_given = |lease: Lease| given.contains(&(track.streamlet, track.lane, lease.group));
            track.lease.is_some_and(|lease| is_before(lease) && is_given(lease))
        });
        let mut room = self.room_for_groups();
        for group in leased.groups {
            if room == 0 {
                self.give_back_unread(node, &group);
                continue;
            }
            let committed = (group.start, group.start_ordinal);
            let carried = self.carried.remove(&(group.streamlet, group.lane, group.group));
            // Nobody has moved it since: what was processed and not committed need not be read again, nor its end. A position never moves
            // back by itself: a start in front of what was committed is one to which the application was set back, to read all from there.
            let is_between = |carried: &Carried| (carried.committed..=carried.at.1).contains(&committed.1);
            let carried = carried.filter(is_between);
            let start = carried.map_or(committed, |carried| carried.at);
            let mut track = Track::new(group.streamlet, group.lane, start.0, start.1);
            track.ended = carried.is_some_and(|carried| carried.done);
            // Of a lane that was not there when the consumer was built nothing was in front of the end: it may grow as fast as it is read.
            let no_lane = self.settings.until_end.then_some(0);
            track.target = self.targets.get(&(group.streamlet, group.lane)).copied().or(no_lane);
            // Retention may have gone past what was committed.
            track.may_have_gap = true;
            let (id, group) = (group.lease, group.group);
            track.lease = Some(Lease { node, id, group, committed, asked_back: None, releasing: false });
            room -= usize::from(!track.at_target());
            self.add_track(track);
        }
    }

    /// A node has given a group that is not read by that lease.
    fn give_back_unread(&mut self, node: u32, given: &LeasedGroup) {
        let LeasedGroup { lease, streamlet, lane, start: cursor, start_ordinal: ordinal, .. } = *given;
        let entry = CommitEntry { streamlet, lane, lease, cursor, ordinal, after: AfterCommit::Release };
        self.given_back.insert((node, lease), entry);
    }

    /// Whether a node gives a group as an earlier owner that the member reads by a lease of the owner, as far as is known.
    fn is_read_of_owner(&self, giver: u32, given: &LeasedGroup) -> bool {
        let (streamlet, lane, group) = (given.streamlet, given.lane, given.group);
        let (owner, _) = self.holders.owner(streamlet);
        let is_of_owner = |lease: Lease| lease.node == owner && lease.group == group;
        let is_read =
            |track: &Track| (track.streamlet, track.lane) == (streamlet, lane) && track.lease.is_some_and(is_of_owner);
        owner != giver && self.holders.holder(streamlet, group) == giver && self.tracks.values().any(is_read)
    }

    /// Leases that the server wants back. Of one of which all that was returned is processed nothing more is returned, and it is given back.
    /// A program that commits by itself goes on with what it has of others, for it alone knows what it has done; with its
    /// next commit they are given back, or, since somebody waits for them, where it has committed last when a lease's time is up.
    pub(super) fn take_release(&mut self, node: u32, leases: &[u64]) {
        let (now, manual) = (Instant::now(), self.settings.commit == CommitMode::Manual);
        let Some(time) = self.memberships.get(&node).map(|membership| membership.lease) else { return };
        for track in self.tracks.values_mut() {
            let is_processed = !manual || track.processed == track.delivered;
            if let Some(lease) = &mut track.lease
                && lease.node == node
                && leases.contains(&lease.id)
            {
                lease.asked_back.get_or_insert(now + time);
                lease.releasing |= is_processed;
            }
        }
        self.commit_at = now;
    }

    pub(super) fn commit_if_due(&mut self, now: Instant) {
        if self.memberships.is_empty() {
            return;
        }
        self.forget_refusals();
        let manual = self.settings.commit == CommitMode::Manual;
        if manual {
            let leases = self.tracks.values_mut().filter_map(|track| track.lease.as_mut());
            leases.for_each(|lease| lease.releasing |= lease.asked_back.is_some_and(|until| until <= now));
        }
        let urgent = |track: &Track| track.done() || track.lease.is_some_and(|lease| lease.releasing);
        let due = now >= self.commit_at && !manual;
        if due || !self.given_back.is_empty() || self.tracks.values().any(urgent) {
            self.send_commit(|track| if manual { urgent(track) } else { track.has_to_commit() });
        }
    }

    /// Where nothing is to be committed any more, since what was refused was lost, nothing is refused either.
    fn forget_refusals(&mut self) {
        let Consumer { memberships, tracks, given_back, .. } = self;
        for (node, membership) in memberships.iter_mut().filter(|(_, membership)| membership.refused_since.is_some()) {
            let is_its = |track: &Track| track.has_to_commit() && track.lease.is_some_and(|lease| lease.node == *node);
            if given_back.range((*node, 0)..=(*node, u64::MAX)).next().is_none() && !tracks.values().any(is_its) {
                membership.refused_since = None;
            }
        }
    }

    /// When the first of the leases that are asked back has its time up.
    pub(super) fn gives_back_at(&self) -> Option<Instant> {
        let leases = self.tracks.values().filter_map(|track| track.lease);
        leases.filter(|lease| !lease.releasing).filter_map(|lease| lease.asked_back).min()
    }

    /// Sends what there is to commit to the nodes that gave the leases, unless a commit is under way there.
    ///
    /// From here on nothing more is returned of a lease that is given back, not when the answer comes: the program may give up waiting for it,
    /// and whoever gets the group next reads from the place that is told now.
    fn send_commit(&mut self, which: impl Fn(&Track) -> bool) {
        let (mut sent, now) = (false, Instant::now());
        let unpacked = self.unpacked.as_ref().and_then(|(id, _)| self.tracks.get(id)).and_then(|track| track.lease);
        if unpacked.is_some_and(|lease| lease.releasing) {
            self.drop_unpacked(|_| true);
        }
        for (node, membership) in &self.memberships {
            let Some(link) = self.holders.link(*node) else { continue };
            if link.is_committing() || now < membership.commits_at {
                continue;
            }
            let of_node = |track: &Track| track.lease.filter(|lease| lease.node == *node && which(track));
            let given_back =
                self.given_back.range((*node, 0)..=(*node, u64::MAX)).map(|(_, entry)| (GIVEN_BACK, *entry));
            let own = self.tracks.iter().filter_map(|(id, track)| Some((*id, entry_of(track, &of_node(track)?))));
            let (ids, entries): (Vec<u64>, Vec<CommitEntry>) =
                given_back.chain(own).take(limits::COMMIT_ENTRIES_MAX).unzip();
            if !entries.is_empty() {
                let (application, member) = (membership.application, membership.member);
                link.commit(&CommitOffsets { application, member, entries }, ids);
                sent = true;
            }
        }
        if let (true, CommitMode::Interval(interval)) = (sent, self.settings.commit) {
            self.commit_at = Instant::now() + interval;
        }
    }

    pub(super) fn take_committed(&mut self, node: u32, entries: &[(u64, CommitEntry)], statuses: &[u16]) {
        self.stats.commits += u64::from(statuses.contains(&(Status::Ok as u16)));
        let mut refused = None;
        for (at, (id, entry)) in entries.iter().enumerate() {
            let status = statuses.get(at).copied().and_then(Status::from_u16).unwrap_or(Status::Internal);
            match status {
                // Whoever does not know the lease any more has it back.
                status if *id == GIVEN_BACK && !status.retryable() => {
                    self.given_back.remove(&(node, entry.lease));
                    if !matches!(status, Status::Ok | Status::LeaseLost) {
                        // It has the lease and does not take the place that was told with it. Forgotten only here, that would be in everybody's way for as
                        // long as the member is heard of; when it comes back and does not name it, it is free.
                        self.unlink_holder(node);
                    }
                }
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
                    // Its streamlet may have moved, and others read here may all be at their ends.
                    if !self.is_alone() {
                        self.holders.want_owners(Instant::now());
                    }
                    if let Some(track) = self.forget(*id) {
                        self.carry(&track);
                    }
                }
                status => {
                    let message = format!("a commit was refused: {status}; {}", status.hint());
                    let error = RpcError::Status { status, message, retry_after: None };
                    if status.retryable() {
                        self.commit_later(node, Duration::from_millis(100));
                        refused = Some(error);
                    } else {
                        self.failed = Some(error.into());
                    }
                }
            }
        }
        let now = Instant::now();
        if let Some(error) = refused {
            self.take_refusal(node, error, now);
        } else if let Some(membership) = self.memberships.get_mut(&node) {
            membership.refused_since = None;
        }
        self.memberships.values_mut().for_each(|membership| membership.groups_at = now);
    }

    /// A node takes no commit now, which is tried again for as long as that takes. Only who calls [`commit`](Consumer::commit) hears why: where nobody does it is said when it
    /// lasts, and again now and then.
    pub(super) fn take_refusal(&mut self, node: u32, error: RpcError, now: Instant) {
        if let Some(membership) = self.memberships.get_mut(&node) {
            let since = *membership.refused_since.get_or_insert(now);
            if since + REFUSED_FOR <= now && is_said_again(&mut membership.refusal_said_at, now) {
                let stream = self.stream.name.as_str();
                tracing::warn!(stream, node, %error, "a node has taken no commits for a while; they are tried again");
            }
        }
        self.trouble = Some(error);
    }

    /// A node is committed to again after so long.
    pub(super) fn commit_later(&mut self, node: u32, wait: Duration) {
        let at = Instant::now() + wait;
        self.commit_at = self.commit_at.min(at);
        if let Some(membership) = self.memberships.get_mut(&node) {
            membership.commits_at = at;
        }
    }

    /// The lease is over.
    fn forget(&mut self, id: u64) -> Option<Track> {
        self.drop_unpacked(|of| of == id);
        let track = self.tracks.remove(&id);
        let lease = track.as_ref().and_then(|track| track.lease);
        if let Some(membership) = lease.and_then(|lease| self.memberships.get_mut(&lease.node)) {
            membership.may_have_more(membership.groups_at);
        }
        let tracks = &self.tracks;
        for link in self.holders.links_of(|_| true) {
            link.drop_idle_feeds(|track| tracks.contains_key(&track));
        }
        track
    }

    /// Commits what is processed, and waits until the server has it.
    pub(super) async fn commit_settled(&mut self) -> Result<(), ClientError> {
        let is_left = |consumer: &Consumer| {
            let committing = consumer.holders.links().any(Link::is_committing);
            committing || consumer.tracks.values().any(Track::has_to_commit)
        };
        while self.settings.application.is_some() && is_left(self) {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            self.send_commit(Track::has_to_commit);
            self.work_once().await;
        }
        Ok(())
    }

    /// Gives the leases back and closes the connections.
    pub(super) async fn leave(&mut self) {
        let mut leaving = JoinSet::new();
        for (node, membership) in &self.memberships {
            let Some(link) = self.holders.link(*node) else { continue };
            let (connection, member) = (link.connection.clone(), membership.member);
            let leave = LeaveApplication { application: membership.application, member };
            // The leases end by themselves if this does not arrive.
            leaving.spawn(async move { connection.call_within(&leave, LEAVE_TIMEOUT).await.is_ok() });
        }
        while leaving.join_next().await.is_some() {}
        self.unlink();
    }
}

/// What a commit says of a lease.
fn entry_of(track: &Track, lease: &Lease) -> CommitEntry {
    let after = match lease.releasing {
        true => AfterCommit::Release,
        false if track.done() => AfterCommit::Done,
        false => AfterCommit::Keep,
    };
    let (cursor, ordinal) = track.processed;
    CommitEntry { streamlet: track.streamlet, lane: track.lane, lease: lease.id, cursor, ordinal, after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::holders::{Happening, Holders};
    use crate::consumer::link::Event;
    use crate::{Client, ConsumerBuilder};
    use kera_format::{Cursor, GroupId, LaneId, Order, StreamId, StreamOptions, StreamletId};
    use kera_protocol::{OlderGroups, Owner, StreamInfo};

    fn owner(node: u32, epoch: u32) -> Owner {
        Owner { node, epoch, older: vec![] }
    }

    /// A member at nodes 1 and 2 that has been told that node 2 owns its streamlet since owner epoch 4, and has a lease of node 1.
    fn member(group: GroupId) -> Consumer {
        let client = Client::builder("nobody:1").unconnected(vec!["nobody:1".to_owned()]);
        let settings = ConsumerBuilder::new(client, "stream".to_owned()).application("report");
        let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
        let stream = StreamInfo { id: StreamId(7), name: "stream".to_owned(), created_ms: 1, options };
        let mut consumer = Consumer::new(settings, stream, Instant::now());
        consumer.holders.placement = Arc::new(Placement::of_three(7, vec![owner(2, 4), owner(1, 1)]));
        for node in [1, 2] {
            let (application, member, order) = (ApplicationId(9), 5, Order::Lane);
            let joined = JoinedApplication { application, member, lease_ms: 10_000, heartbeat_ms: 1_000, order };
            consumer.memberships.insert(node, Membership::new(&joined, Instant::now()));
        }
        let committed = (Cursor { group, ..Cursor::default() }, 10);
        let mut track = Track::new(StreamletId(0), LaneId(0), committed.0, committed.1);
        track.processed.1 = 14;
        track.lease = Some(Lease { node: 1, id: 3, group, committed, asked_back: None, releasing: false });
        consumer.add_track(track);
        consumer
    }

    /// All of its owners are lost, and it was deleted: who waited for them would wait for ever.
    #[test]
    fn a_stream_that_nobody_knows_for_a_minute_is_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut consumer = member(GroupId::new(5, 1));
            let failed = |consumer: &mut Consumer, found: Result<Arc<Placement>, Status>| {
                let error = |status| RpcError::Status { status, message: String::new(), retry_after: None };
                consumer.happened(Happening::Owners(found.map_err(error)));
                consumer.failed.as_ref().and_then(ClientError::status)
            };
            let longer = Duration::from_secs(61);
            assert_eq!(failed(&mut consumer, Err(Status::UnknownStream)), None);
            tokio::time::advance(longer).await;
            // Somebody knows it.
            let known = Arc::clone(&consumer.holders.placement);
            assert_eq!(failed(&mut consumer, Ok(known)), None);
            assert_eq!(failed(&mut consumer, Err(Status::UnknownStream)), None);
            tokio::time::advance(longer).await;
            assert_eq!(failed(&mut consumer, Err(Status::NotReady)), None, "that passes");
            assert_eq!(failed(&mut consumer, Err(Status::UnknownStream)), Some(Status::UnknownStream));
        });
    }

    #[test]
    fn nobody_is_at_the_end_who_may_be_given_more() {
        let mut consumer = member(GroupId::new(5, 1));
        consumer.settings.until_end = true;
        let nothing_left = |consumer: &mut Consumer| {
            for membership in consumer.memberships.values_mut() {
                (membership.nothing_left, membership.is_empty) = (true, true);
            }
        };
        let lost = CommitEntry {
            streamlet: StreamletId(0),
            lane: LaneId(0),
            lease: 3,
            cursor: Cursor::default(),
            ordinal: 14,
            after: AfterCommit::Keep,
        };
        nothing_left(&mut consumer);
        assert!(!consumer.at_end(), "it reads something");
        consumer.take_committed(1, &[(0, lost)], &[Status::LeaseLost as u16]);
        nothing_left(&mut consumer);
        assert!(!consumer.at_end(), "what it read may be another node's to give");
        let placement = Arc::clone(&consumer.holders.placement);
        consumer.holders = Holders::new();
        consumer.holders.placement = placement;
        assert!(consumer.at_end());
        consumer.look_again();
        assert!(!consumer.at_end(), "other members may have given something back");
        nothing_left(&mut consumer);
        consumer.ask_for_groups_later(1);
        assert!(!consumer.at_end(), "a node does not know yet what it has");
        nothing_left(&mut consumer);
        consumer.unlink();
        assert!(!consumer.at_end(), "an answer may be lost that leased something");
    }

    /// Asks a node for groups, of which it gives none, and what it has heard.
    fn ask(consumer: &mut Consumer, node: u32, heard: &Placement) {
        consumer.memberships.get_mut(&node).unwrap().asks();
        consumer.take_groups(node, LeasedGroups { groups: vec![] });
        consumer.take_what_was_heard(node, heard);
    }

    /// A member that is to stop at the end and has read all that it was given.
    fn at_its_end() -> (Consumer, Arc<Placement>) {
        let mut consumer = member(GroupId::new(5, 1));
        consumer.settings.until_end = true;
        consumer.tracks.clear();
        let known = Arc::clone(&consumer.holders.placement);
        (consumer, known)
    }

    /// What it had come to own it had not heard of, and records of that were not read.
    #[test]
    fn an_owner_that_has_not_heard_of_all_that_it_owns_is_not_at_its_end() {
        let (mut consumer, known) = at_its_end();
        // Of an earlier state than is known, by a number of its own.
        let behind = Placement::of_three(9, vec![owner(1, 3), owner(1, 1)]);
        for _ in 0..2 {
            ask(&mut consumer, 1, &known);
            ask(&mut consumer, 2, &behind);
        }
        assert!(consumer.memberships[&1].is_at_end(false), "it has heard of what it owns itself");
        assert!(!consumer.at_end());
        ask(&mut consumer, 2, &known);
        assert!(!consumer.at_end(), "what it said may be from before it has heard");
        ask(&mut consumer, 2, &known);
        assert!(consumer.at_end());
        ask(&mut consumer, 2, &behind);
        assert!(!consumer.at_end());
    }

    /// It had let go of what others own by then.
    #[test]
    fn an_owner_that_has_heard_of_later_owners_is_not_at_its_end() {
        let (mut consumer, known) = at_its_end();
        let later = Placement::of_three(3, vec![owner(3, 5), owner(1, 1)]);
        (0..2).for_each(|_| ask(&mut consumer, 1, &known));
        ask(&mut consumer, 2, &known);
        ask(&mut consumer, 2, &later);
        assert!(!consumer.memberships[&2].is_at_end(false) && consumer.holders.are_wanted());
        // What is known of the owners changes, and all have to say again what they have heard.
        consumer.holders.placement = Arc::new(Placement::of_three(10, vec![owner(2, 6), owner(1, 1)]));
        consumer.follow_owners();
        let known = Arc::clone(&consumer.holders.placement);
        ask(&mut consumer, 1, &known);
        assert!(!consumer.memberships[&1].is_at_end(false));
        ask(&mut consumer, 1, &known);
        assert!(consumer.memberships[&1].is_at_end(false));
        consumer.may_have_more(|_| true);
        ask(&mut consumer, 1, &known);
        assert!(!consumer.memberships[&1].is_at_end(false), "it may have been started again");
    }

    #[test]
    fn a_lease_of_a_later_owner_than_is_known_is_kept() {
        let mut consumer = member(GroupId::new(5, 1));
        consumer.follow_owners();
        assert_eq!((consumer.tracks.len(), consumer.given_back.len()), (1, 0));
    }

    #[test]
    fn a_lease_that_seems_to_be_over_is_given_back_until_its_node_has_answered() {
        let mut consumer = member(GroupId::new(3, 1));
        consumer.follow_owners();
        assert!(consumer.tracks.is_empty());
        assert_eq!(consumer.stats.lost, 1);
        let given: Vec<((u32, u64), CommitEntry)> = consumer.given_back.clone().into_iter().collect();
        let [((1, 3), entry)] = given[..] else { panic!("{given:?}") };
        assert_eq!((entry.lease, entry.ordinal, entry.after), (3, 14, AfterCommit::Release));
        let answered = [(GIVEN_BACK, entry)];
        consumer.take_committed(1, &answered, &[Status::NotReady as u16]);
        assert_eq!(consumer.given_back.len(), 1, "it is told again");
        consumer.take_committed(1, &answered, &[Status::LeaseLost as u16]);
        assert_eq!((consumer.given_back.len(), consumer.stats.lost), (0, 1));
    }

    /// Who commits on an interval never asks what became of it: commits that were refused for ever were counted as taken, and nothing told of them.
    #[test]
    fn commits_that_a_node_does_not_take_are_not_counted_and_it_is_said_when_that_lasts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut consumer = member(GroupId::new(5, 1));
            let (id, entry) = (*consumer.tracks.keys().next().unwrap(), entry_of_first(&consumer));
            let wait = |s| tokio::time::advance(Duration::from_secs(s));
            let answer = |consumer: &mut Consumer, status: Status| {
                consumer.take_committed(1, &[(id, entry)], &[status as u16]);
                (consumer.stats.commits, consumer.memberships[&1].refusal_said_at)
            };
            assert_eq!(answer(&mut consumer, Status::NotReady), (0, None));
            wait(9).await;
            assert_eq!(answer(&mut consumer, Status::NotReady), (0, None));
            wait(1).await;
            assert_eq!(answer(&mut consumer, Status::Ok), (1, None));
            assert_eq!(answer(&mut consumer, Status::NotReady), (1, None), "it begins anew");
            wait(10).await;
            let said_at = Some(Instant::now());
            assert_eq!(answer(&mut consumer, Status::NotReady), (1, said_at));
            wait(59).await;
            assert_eq!(answer(&mut consumer, Status::NotReady), (1, said_at), "once a minute");
            wait(1).await;
            assert_eq!(answer(&mut consumer, Status::NotReady), (1, Some(Instant::now())));
            // The same of a node that refuses a commit as a whole.
            let refuse = |consumer: &mut Consumer| {
                let error = RpcError::Status { status: Status::NotReady, message: String::new(), retry_after: None };
                consumer.handle(2, Event::CommitFailed(error));
                (consumer.stats.commits, consumer.memberships[&2].refusal_said_at)
            };
            assert_eq!(refuse(&mut consumer), (1, None));
            wait(10).await;
            assert_eq!(refuse(&mut consumer), (1, Some(Instant::now())));
        });
    }

    /// What was refused was lost with its lease, and one commit that was refused a minute later was said to be the last of many.
    #[test]
    fn for_how_long_commits_are_refused_begins_anew_where_nothing_was_to_be_committed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut consumer = member(GroupId::new(5, 1));
            let (id, entry) = (*consumer.tracks.keys().next().unwrap(), entry_of_first(&consumer));
            let refuse = |consumer: &mut Consumer| {
                consumer.take_committed(1, &[(id, entry)], &[Status::NotReady as u16]);
                consumer.memberships[&1].refusal_said_at
            };
            assert_eq!(refuse(&mut consumer), None);
            let track = consumer.tracks.remove(&id).unwrap();
            consumer.commit_if_due(Instant::now());
            consumer.tracks.insert(id, track);
            tokio::time::advance(Duration::from_secs(60)).await;
            assert_eq!(refuse(&mut consumer), None);
            consumer.commit_if_due(Instant::now());
            tokio::time::advance(REFUSED_FOR).await;
            assert_eq!(refuse(&mut consumer), Some(Instant::now()));
        });
    }

    #[test]
    fn nothing_is_given_back_to_a_node_where_it_is_no_member_any_more() {
        let mut consumer = member(GroupId::new(3, 1));
        consumer.follow_owners();
        consumer.lose_membership(1);
        assert!(consumer.given_back.is_empty());
    }

    fn leased(group: GroupId, lease: u64, ordinal: u64) -> LeasedGroups {
        let start = Cursor { group, ..Cursor::default() };
        let (streamlet, lane) = (StreamletId(0), LaneId(0));
        LeasedGroups { groups: vec![LeasedGroup { lease, streamlet, lane, group, start, start_ordinal: ordinal }] }
    }

    /// Each owner is asked for one, and all of them have some.
    #[test]
    fn what_several_owners_give_beyond_what_there_is_room_for_is_given_back_unread() {
        let group = GroupId::new(5, 1);
        let mut consumer = member(group);
        consumer.settings.groups_max = 2;
        let of_lane = |lane: u32, lease: u64| {
            let mut leased = leased(group, lease, 30);
            leased.groups[0].lane = LaneId(lane);
            leased
        };
        consumer.take_groups(1, of_lane(1, 8));
        consumer.take_groups(2, of_lane(2, 9));
        assert_eq!(consumer.tracks.len(), 2);
        let given: Vec<((u32, u64), u64, AfterCommit)> =
            consumer.given_back.iter().map(|(lease, entry)| (*lease, entry.ordinal, entry.after)).collect();
        assert_eq!(given, [((2, 9), 30, AfterCommit::Release)]);
        assert!(!consumer.memberships[&2].nothing_left, "it has something yet");
        // What is read to where it is to stop takes no place.
        consumer.tracks.values_mut().for_each(|track| track.target = Some(0));
        consumer.take_groups(2, of_lane(2, 10));
        assert_eq!(consumer.tracks.len(), 3);
    }

    /// While a streamlet moves its owner takes no commits, and then does not know the lease: what was processed since the last commit was read again at
    /// the next one, up to a second of it.
    #[test]
    fn what_was_processed_of_a_lease_that_moved_is_not_read_again() {
        for (delivered, done) in [(14, true), (20, false)] {
            let group = GroupId::new(5, 1);
            let mut consumer = member(group);
            let track = consumer.tracks.values_mut().next().unwrap();
            (track.ended, track.delivered.1) = (true, delivered);
            let (id, entry) = (*consumer.tracks.keys().next().unwrap(), entry_of_first(&consumer));
            consumer.take_committed(1, &[(id, entry)], &[Status::LeaseLost as u16]);
            assert_eq!((consumer.tracks.len(), consumer.stats.lost), (0, 1));
            consumer.take_groups(2, leased(group, 8, 10));
            let track = consumer.tracks.values().next().unwrap();
            assert_eq!((track.processed.1, track.done()), (14, done));
        }
    }

    /// The node before may be letting go for a while yet, and answers nothing that would tell.
    #[test]
    fn a_group_that_has_moved_is_not_read_by_the_lease_from_before_as_well() {
        let group = GroupId::new(5, 1);
        let mut consumer = member(group);
        let others = [(LaneId(1), group), (LaneId(0), GroupId::new(5, 2))];
        for (lane, group) in others {
            let committed = (Cursor { group, ..Cursor::default() }, 0);
            let mut track = Track::new(StreamletId(0), lane, committed.0, committed.1);
            track.lease = Some(Lease { node: 1, id: 4, group, committed, asked_back: None, releasing: false });
            consumer.add_track(track);
        }
        consumer.take_groups(2, leased(group, 8, 10));
        let of_group =
            |track: &&Track| track.lane == LaneId(0) && track.lease.is_some_and(|lease| lease.group == group);
        let tracks: Vec<&Track> = consumer.tracks.values().filter(of_group).collect();
        let [track] = tracks[..] else { panic!("{tracks:?}") };
        assert_eq!((track.processed.1, track.lease.map(|lease| lease.node)), (14, Some(2)));
        assert_eq!(consumer.tracks.len(), 3, "others are read on");
        let given: Vec<((u32, u64), AfterCommit)> =
            consumer.given_back.iter().map(|(lease, entry)| (*lease, entry.after)).collect();
        assert_eq!(given, [((1, 3), AfterCommit::Release)], "where it is not over after all, others get it");
    }

    /// A member that reads a group by a lease of node 2, which owns the streamlet since owner epoch 4, as node 1 did before.
    fn member_at_next_owner(group: GroupId) -> Consumer {
        let mut consumer = member(group);
        consumer.tracks.clear();
        let older = vec![OlderGroups { first_epoch: 1, node: 1 }];
        let owners = vec![Owner { older, ..owner(2, 4) }, owner(1, 1)];
        consumer.holders.placement = Arc::new(Placement::of_three(8, owners));
        consumer.take_groups(2, leased(group, 8, 10));
        consumer.tracks.values_mut().for_each(|track| track.processed.1 = 14);
        consumer
    }

    /// Which leases it reads, by node, and how far they are.
    fn read(consumer: &Consumer) -> Vec<(u32, u64, u64)> {
        let read = |track: &Track| track.lease.map(|lease| (lease.node, lease.id, track.processed.1));
        consumer.tracks.values().filter_map(read).collect()
    }

    /// Both nodes have given it the group, and of their answers the earlier owner's is looked at last.
    #[test]
    fn a_lease_from_before_that_is_heard_of_last_takes_no_group_from_its_owner() {
        let group = GroupId::new(3, 1);
        let mut consumer = member_at_next_owner(group);
        consumer.take_groups(1, leased(group, 3, 10));
        assert_eq!((read(&consumer), consumer.stats.lost), (vec![(2, 8, 14)], 0));
        let given: Vec<((u32, u64), u64, AfterCommit)> =
            consumer.given_back.iter().map(|(lease, entry)| (*lease, entry.ordinal, entry.after)).collect();
        assert_eq!(given, [((1, 3), 10, AfterCommit::Release)], "where it is not over after all, others get it");
        // It has moved back.
        consumer.holders.placement = Arc::new(Placement::of_three(9, vec![owner(1, 5), owner(1, 1)]));
        consumer.take_groups(1, leased(group, 4, 14));
        assert_eq!(read(&consumer), [(1, 4, 14)]);
    }

    /// Only a later owner can have it.
    #[test]
    fn a_group_that_the_known_owner_began_is_taken_from_whoever_gives_it() {
        let group = GroupId::new(4, 1);
        let mut consumer = member_at_next_owner(group);
        consumer.take_groups(1, leased(group, 3, 10));
        assert_eq!(read(&consumer), [(1, 3, 14)]);
        assert_eq!(consumer.given_back.keys().copied().collect::<Vec<_>>(), [(2, 8)]);
    }

    #[test]
    fn what_a_member_commits_itself_is_read_again_from_its_last_commit_on() {
        let group = GroupId::new(5, 1);
        let mut consumer = member(group);
        consumer.settings.commit = CommitMode::Manual;
        let track = consumer.tracks.values_mut().next().unwrap();
        (track.delivered.1, track.processed) = (14, track.lease.unwrap().committed);
        consumer.returned = consumer.tracks.keys().next().copied();
        consumer.settle();
        let (id, entry) = (*consumer.tracks.keys().next().unwrap(), entry_of_first(&consumer));
        consumer.take_committed(1, &[(id, entry)], &[Status::LeaseLost as u16]);
        consumer.take_groups(2, leased(group, 8, 10));
        assert_eq!(consumer.tracks.values().next().unwrap().processed.1, 10);
    }

    /// What somebody else has committed since counts.
    #[test]
    fn where_another_member_was_further_it_goes_on_there() {
        let group = GroupId::new(5, 1);
        let mut consumer = member(group);
        consumer.lose_membership(1);
        consumer.take_groups(2, leased(group, 8, 30));
        let track = consumer.tracks.values().next().unwrap();
        assert_eq!((track.processed.1, track.ended), (30, false));
    }

    /// A member that was cut off meanwhile skipped what was to be read again.
    #[test]
    fn where_the_application_was_set_back_it_goes_on_there() {
        let group = GroupId::new(5, 1);
        let mut consumer = member(group);
        consumer.lose_membership(1);
        consumer.take_groups(2, leased(group, 8, 0));
        let track = consumer.tracks.values().next().unwrap();
        assert_eq!(
            (track.received, track.processed.1, track.delivered.1),
            (Cursor { group, ..Cursor::default() }, 0, 0)
        );
    }

    fn entry_of_first(consumer: &Consumer) -> CommitEntry {
        let track = consumer.tracks.values().next().unwrap();
        entry_of(track, &track.lease.unwrap())
    }
}
