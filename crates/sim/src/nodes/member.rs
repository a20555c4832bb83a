//! A member of an application in a cluster, by the rules of `kera-client`: one membership at each owner, leases of what that owns, read from
//! whoever has the group, committed to who gave the lease. It comes back after a lost connection and says which leases it knows of. It sleeps,
//! leaves, and forgets everything without a word now and then.
//!
//! | checked | when |
//! | --- | --- |
//! | a group begins where the application is: nothing before it is left out | at every lease |
//! | what an application has committed stays committed, whoever owns the streamlet | at every lease, and whenever it is asked |
//! | a commit that says anything new is refused once somebody has committed with a later lease | at every commit that is accepted |
//! | no node thinks that a member has leases which it was never told of | at every heartbeat |
//! | with `order = none`: of a group nothing is given again that was committed | at every lease |
//! | all there is was read and committed | when everything is healed, and after everything was lost once more |

use std::collections::BTreeMap;

use kera_format::chunk::Chunks;
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::{
    AfterCommit, CommitEntry, CommitOffsets, CommitResult, CommittedOffsets, FetchOffsets, Heartbeat,
    HeartbeatResponse, JoinApplication, JoinedApplication, LeasedGroup, LeasedGroups, LeaveApplication, Lookup,
    LookupResult, NextGroups, ReadChunks, ReadChunksResponse, ReadEntry, Start, Status,
};

use super::client::{Around, Client, LeaseTime, Owned, PATIENCE_US, Seen, Wish};
use super::plan::Kind;
use crate::cluster::client::{Answer, retry};
use crate::cluster::member;
use crate::cluster::truth::{self, Place, Violation};

const TURN_US: u64 = 150_000;
/// How long reads and requests for groups wait at a node, in milliseconds.
const WAIT_MS: u32 = 200;
/// Leases of one owner.
const LEASES_MAX: usize = 3;
/// One in so many turns it loses a connection.
const BREAKS: u64 = 40;
/// A member that stands still does so for at most so long: longer than a lease.
const SLEEP_US: u64 = 5_000_000;

/// What was asked of the one that has a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fetch {
    /// What is behind the cursor.
    Read,
    /// Where the next record is: the cursor points at nothing.
    Place,
}

/// A group that is read.
struct Lease {
    group: LeasedGroup,
    time: LeaseTime,
    cursor: Cursor,
    next: u64,
    /// How far a commit with this lease was accepted.
    committed: Option<u64>,
    /// What is under way: its correlation, the node, since when.
    asked: Option<(u64, u32, u64, Fetch)>,
    /// Who has the group, as the last node said, and which node said so.
    hint: u64,
    not_at: u32,
    is_astray: bool,
    is_at_end: bool,
    must_go: bool,
}

enum Asked {
    Join,
    Groups,
    /// What was committed of which lease, and whether it is over then.
    Commit(Vec<Told>),
    Heartbeat,
    Offsets(Vec<StreamletId>),
}

/// An entry of a commit that is under way.
struct Told {
    lease: u64,
    place: Place,
    group: GroupId,
    ordinal: u64,
    is_over: bool,
    is_done: bool,
    /// It was not accepted before. What was is repeated by an owner that does not know yet that it is none: that appends nothing, and
    /// is as true as it was.
    is_new: bool,
    time: LeaseTime,
    /// The latest lease of the lane that a commit was accepted of, as far as anybody knew then.
    latest: Option<LeaseTime>,
}

/// A membership at an owner.
#[derive(Default)]
struct Membership {
    joined: Option<JoinedApplication>,
    /// The number that it had last, zero if it never had one.
    member: u64,
    /// What is under way: its correlation, since when, and what it is.
    asked: Option<(u64, u64, Asked)>,
    /// When what was answered last was asked, and what was known then.
    asked_us: u64,
    known: truth::Asked,
    /// The owner epochs of the streamlets that the node owned then and knew it.
    sure: BTreeMap<StreamletId, u32>,
    turn: u64,
}

/// See the module.
pub(super) struct Member {
    application: String,
    stream: StreamId,
    streamlets: u32,
    is_unordered: bool,
    owned: Owned,
    memberships: BTreeMap<u32, Membership>,
    /// By the owner that gave them, and their numbers.
    leases: BTreeMap<(u32, u64), Lease>,
    /// How far the application was in lanes when it was asked last.
    committed: BTreeMap<Place, u64>,
    sleeps_until_us: u64,
    last_problem: String,
}

impl Member {
    pub(super) fn new(application: &str, stream: StreamId, streamlets: u32, kind: Kind) -> Member {
        Member {
            application: application.to_owned(),
            stream,
            streamlets,
            is_unordered: kind == Kind::Unordered,
            owned: Owned::new(stream),
            memberships: BTreeMap::new(),
            leases: BTreeMap::new(),
            committed: BTreeMap::new(),
            sleeps_until_us: 0,
            last_problem: String::new(),
        }
    }

    fn place(&self, streamlet: StreamletId, lane: LaneId) -> Place {
        Place { stream: self.stream.0, streamlet: streamlet.0, lane: lane.0 }
    }

    /// What a node owns, as far as is known.
    fn owned_by(&self, node: u32) -> Vec<StreamletId> {
        (0..self.streamlets).filter(|at| self.owned.node(*at) == Some(node)).map(StreamletId).collect()
    }

    /// Whether a node was the owner of a streamlet all the time since it was asked, and knew it. One that is not any more and has not heard of
    /// that tells how far the application was; nobody can commit there.
    fn is_sure(&self, node: u32, streamlet: StreamletId, around: &Around<'_>) -> bool {
        let before = self.memberships.get(&node).and_then(|membership| membership.sure.get(&streamlet).copied());
        before.is_some() && before == around.owners.sure(node, self.stream, streamlet)
    }

    /// The membership at a node is over, and its leases with it.
    fn lose(&mut self, node: u32) {
        self.memberships.remove(&node);
        self.leases.retain(|(of, _), _| *of != node);
    }

    /// Leases of nodes that own the streamlet no more are over: its next owner gives others. They are given back: what is known of owners may be
    /// older than a lease, and one that is forgotten here only is held there for as long as the member is heard of.
    fn follow_owners(&mut self) {
        let owned = &self.owned;
        for ((node, _), lease) in &mut self.leases {
            lease.must_go |= owned.node(lease.group.streamlet.0).is_some_and(|owner| owner != *node);
        }
        let idle: Vec<u32> = self.memberships.keys().filter(|node| self.owned_by(**node).is_empty()).copied().collect();
        idle.into_iter().for_each(|node| self.lose(node));
        for node in (0..self.streamlets).filter_map(|at| self.owned.node(at)) {
            self.memberships.entry(node).or_default();
        }
    }

    /// Asks the owners for the next thing, and whoever has a group for what is in it.
    fn go_on(&mut self, around: &mut Around<'_>) {
        if around.now_us < self.sleeps_until_us {
            return;
        }
        self.follow_owners();
        let idle = self.memberships.iter().filter(|(_, membership)| membership.asked.is_none());
        let idle: Vec<u32> = idle.map(|(node, _)| *node).collect();
        idle.into_iter().for_each(|node| self.ask(node, around));
        let ready = |lease: &Lease| lease.asked.is_none() && !lease.is_at_end && !lease.must_go;
        let ready: Vec<(u32, u64)> = self.leases.iter().filter(|(_, lease)| ready(lease)).map(|(id, _)| *id).collect();
        ready.into_iter().for_each(|id| self.fetch(id, around));
    }

    fn ask(&mut self, node: u32, around: &mut Around<'_>) {
        let known = around.truth.asking(&self.application);
        let epoch = |at: StreamletId| Some((at, around.owners.sure(node, self.stream, at)?));
        let sure = (0..self.streamlets).filter_map(|at| epoch(StreamletId(at))).collect();
        let Some(membership) = self.memberships.get_mut(&node) else { return };
        membership.turn += 1;
        (membership.known, membership.sure) = (known, sure);
        let (turn, joined) = (membership.turn, membership.joined.clone());
        let own = self.leases.iter().filter(|((of, _), _)| *of == node);
        let held = own.clone().count();
        let over: Vec<u64> = own.clone().filter(|(_, l)| l.is_at_end || l.must_go).map(|((_, id), _)| *id).collect();
        let all: Vec<u64> = own.map(|((_, id), _)| *id).collect();
        let (asked, correlation) = match joined {
            None => (Asked::Join, self.join(node, around)),
            Some(JoinedApplication { application, member, .. }) => {
                if turn.is_multiple_of(7) {
                    (Asked::Heartbeat, around.send(node, &Heartbeat { application, member }))
                } else if turn.is_multiple_of(9) {
                    let (streamlets, stream) = (self.owned_by(node), self.stream);
                    let fetch =
                        FetchOffsets { application: self.application.clone(), stream, streamlets: streamlets.clone() };
                    (Asked::Offsets(streamlets), around.send(node, &fetch))
                } else if !over.is_empty() || (turn.is_multiple_of(4) && !all.is_empty()) {
                    let (told, entries) = self.commit(node, if over.is_empty() { &all } else { &over }, around);
                    (Asked::Commit(told), around.send(node, &CommitOffsets { application, member, entries }))
                } else if held < LEASES_MAX {
                    let max_groups = (LEASES_MAX - held) as u32;
                    let next = NextGroups { application, member, max_groups, max_wait_ms: WAIT_MS };
                    (Asked::Groups, around.send(node, &next))
                } else {
                    (Asked::Heartbeat, around.send(node, &Heartbeat { application, member }))
                }
            }
        };
        if let Some(membership) = self.memberships.get_mut(&node) {
            membership.asked = Some((correlation, around.now_us, asked));
        }
    }

    fn join(&self, node: u32, around: &mut Around<'_>) -> u64 {
        let member = self.memberships.get(&node).map_or(0, |membership| membership.member);
        let leases = Some(self.leases.keys().filter(|(of, _)| *of == node).map(|(_, id)| *id).collect());
        let join = member::join(&self.application, self.stream);
        around.send(node, &JoinApplication { member, leases, ..join })
    }

    /// It is a member, the one that it was or another.
    fn joined(&mut self, node: u32, joined: JoinedApplication) {
        let Some(membership) = self.memberships.get_mut(&node) else { return };
        if membership.member != joined.member {
            self.leases.retain(|(of, _), _| *of != node);
        }
        (membership.member, membership.joined) = (joined.member, Some(joined));
    }

    fn commit(&self, node: u32, ids: &[u64], around: &mut Around<'_>) -> (Vec<Told>, Vec<CommitEntry>) {
        let (mut told, mut entries) = (Vec::new(), Vec::new());
        for id in ids {
            let lease = &self.leases[&(node, *id)];
            let after = match (lease.is_at_end, lease.must_go) {
                (true, _) => AfterCommit::Done,
                (false, true) => AfterCommit::Release,
                (false, false) => AfterCommit::Keep,
            };
            let LeasedGroup { streamlet, lane, .. } = lease.group;
            let (cursor, ordinal, time) = (lease.cursor, lease.next, lease.time);
            entries.push(CommitEntry { streamlet, lane, lease: *id, cursor, ordinal, after });
            let place = self.place(streamlet, lane);
            let latest = around.told.latest_commit(&self.application, place);
            let (is_over, is_done, group) = (after != AfterCommit::Keep, lease.is_at_end, lease.group.group);
            // Where the application was when the lease was given nothing has to be recorded, and a node that is not the owner any more does not notice.
            let is_new = is_done || lease.committed.unwrap_or(lease.group.start_ordinal) < ordinal;
            told.push(Told { lease: *id, place, group, ordinal, is_over, is_done, is_new, time, latest });
            around.truth.processed(&self.application, place, ordinal);
            around.told.covers(&self.application, place, (lease.group.start_ordinal, ordinal));
        }
        (told, entries)
    }

    /// Asks the one that has a group, if it is known and is not the one that has just sent it away.
    fn fetch(&mut self, id: (u32, u64), around: &mut Around<'_>) {
        let stream = self.stream;
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let LeasedGroup { streamlet, lane, group, .. } = lease.group;
        let holder = self.owned.holder(streamlet.0, group, lease.hint).filter(|node| *node != lease.not_at);
        let Some(node) = holder else {
            lease.not_at = 0;
            return self.owned.want();
        };
        let (correlation, what) = match lease.is_astray {
            true => {
                let at = Start::Ordinal(lease.next);
                (around.send(node, &Lookup { stream, streamlet, lane, at }), Fetch::Place)
            }
            false => {
                let entry = ReadEntry { stream, streamlet, lane, cursor: lease.cursor, max_bytes: 0, flags: 0 };
                let max_bytes = 1 << (12 + around.below(5));
                let read = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes, entries: vec![entry] };
                (around.send(node, &read), Fetch::Read)
            }
        };
        lease.asked = Some((correlation, node, around.now_us, what));
    }

    fn take_groups(&mut self, node: u32, leased: LeasedGroups, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(membership) = self.memberships.get(&node) else { return Ok(()) };
        let (asked_us, known) = (membership.asked_us, membership.known.clone());
        for group in leased.groups {
            let place = self.place(group.streamlet, group.lane);
            if self.is_unordered {
                if self.is_sure(node, group.streamlet, around) {
                    let of = (&*self.application, place, group.group);
                    around.leased_again(of, (asked_us, group.start_ordinal))?;
                }
            } else {
                around.leased_from(&known, place, group.start_ordinal)?;
            }
            if !self.is_unordered && self.is_sure(node, group.streamlet, around) {
                around.told_to_be_at(&known, place, group.start_ordinal, "a lease")?;
            }
            *around.told.did.entry("leased").or_default() += 1;
            let time = LeaseTime { asked_us, told_us: around.now_us };
            let (cursor, next) = (group.start, group.start_ordinal);
            let lease = Lease {
                group,
                time,
                cursor,
                next,
                committed: None,
                asked: None,
                hint: 0,
                not_at: 0,
                is_astray: false,
                is_at_end: false,
                must_go: false,
            };
            self.leases.insert((node, group.lease), lease);
        }
        Ok(())
    }

    fn take_data(
        &mut self,
        id: (u32, u64),
        node: u32,
        response: &ReadChunksResponse,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let Some(mut lease) = self.leases.remove(&id) else { return Ok(()) };
        let LeasedGroup { streamlet, lane, group, .. } = lease.group;
        let place = self.place(streamlet, lane);
        for (one, data) in &response.answers {
            match one.status().expect("a status of this build") {
                Status::Ok => {
                    if let Some(base) = base_of(data).filter(|base| *base > lease.next) {
                        // Retention may be faster.
                        let application = &self.application;
                        let of = |wrong: Violation| Violation(format!("application {application}: {}", wrong.0));
                        around.gone(place, lease.next..base).map_err(of)?;
                        lease.next = base;
                    }
                    if !data.is_empty() {
                        lease.next = around.read(place, lease.next, data)?;
                        around.told.early.read(place, lease.next);
                    }
                    (lease.cursor, lease.not_at) = (one.next, 0);
                    lease.is_at_end |= one.end_of_group();
                }
                Status::CursorGone if one.next.group == group => lease.cursor = one.next,
                // What was left of the group has gone. Whether it may have, the next lease tells.
                Status::CursorGone => lease.is_at_end = true,
                status @ (Status::CursorUnknown | Status::NotAChunkBoundary | Status::UnknownGroup) => {
                    self.last_problem = status.name().to_owned();
                    lease.is_astray = true;
                }
                Status::NotOwner => {
                    self.last_problem = format!("node {node} has not group {group} of {place}");
                    (lease.hint, lease.not_at) = (one.durable_ordinal, node);
                    self.owned.want();
                }
                status if status.retryable() => self.last_problem = status.name().to_owned(),
                other => return Err(Violation(format!("{place}: a member's read is refused: {}", other.name()))),
            }
        }
        self.leases.insert(id, lease);
        Ok(())
    }

    /// A cursor that points at nothing is replaced; if the group is not there any more, the lease is over.
    fn placed(&mut self, id: (u32, u64), found: &LookupResult) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.is_astray = false;
        match found.cursor.group == lease.group.group {
            true => lease.cursor = found.cursor,
            false => lease.must_go = true,
        }
    }

    fn take_commit(
        &mut self,
        node: u32,
        told: Vec<Told>,
        result: &CommitResult,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        for (told, status) in told.into_iter().zip(&result.statuses) {
            let place = told.place;
            match Status::from_u16(*status).expect("a status of this build") {
                Status::Ok => {
                    around.truth.checked();
                    let is_later = |latest: LeaseTime| latest.asked_us > told.time.told_us;
                    if !self.is_unordered && told.is_new && told.latest.is_some_and(is_later) {
                        let (application, ordinal) = (&self.application, told.ordinal);
                        return Err(Violation(format!(
                            "{place}: application {application} committed {ordinal} with a lease that was over"
                        )));
                    }
                    if told.is_new {
                        around.told.committed(&self.application, place, told.time);
                    }
                    if self.is_unordered {
                        let ordinal = if told.is_done { u64::MAX } else { told.ordinal };
                        around.told.committed_in((&*self.application, place, told.group), (around.now_us, ordinal));
                    } else {
                        around.truth.committed_at_least(&self.application, place, told.ordinal);
                    }
                    if told.is_over {
                        self.leases.remove(&(node, told.lease));
                    } else if let Some(lease) = self.leases.get_mut(&(node, told.lease)) {
                        lease.committed = lease.committed.max(Some(told.ordinal));
                    }
                }
                Status::LeaseLost => {
                    *around.told.did.entry("lost leases").or_default() += 1;
                    self.leases.remove(&(node, told.lease));
                }
                status if status.retryable() => self.last_problem = status.name().to_owned(),
                other => return Err(Violation(format!("{place}: a commit is refused: {}", other.name()))),
            }
        }
        Ok(())
    }

    fn take_offsets(
        &mut self,
        node: u32,
        asked: &[StreamletId],
        answer: &CommittedOffsets,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let Some(known) = self.memberships.get(&node).map(|at| at.known.clone()) else { return Ok(()) };
        let told = answer.offsets.iter().map(|one| (self.place(one.streamlet, one.lane), one.ordinal));
        let told: BTreeMap<Place, u64> = told.collect();
        let places = around.truth.places();
        let of_node = |place: &Place| place.stream == self.stream.0 && asked.contains(&StreamletId(place.streamlet));
        // One whose groups are read in any order is told of each of them.
        for place in places.into_iter().filter(of_node).filter(|_| !self.is_unordered) {
            if !self.is_sure(node, StreamletId(place.streamlet), around) {
                continue;
            }
            // Nothing is as far back as it gets.
            let ordinal = told.get(&place).copied().unwrap_or(0);
            around.told_to_be_at(&known, place, ordinal, "a question")?;
            self.committed.insert(place, ordinal);
        }
        Ok(())
    }

    fn good(&mut self, node: u32, asked: Asked, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        match asked {
            Asked::Join => {
                self.joined(node, answer.decode()?);
                Ok(())
            }
            Asked::Groups => self.take_groups(node, answer.decode()?, around),
            Asked::Commit(told) => self.take_commit(node, told, &answer.decode()?, around),
            Asked::Heartbeat => {
                let response: HeartbeatResponse = answer.decode()?;
                let known = self.leases.keys().filter(|(of, _)| *of == node).count();
                around.truth.checked();
                if response.leases as usize > known {
                    let (application, leases) = (&self.application, response.leases);
                    let of = format!("a member of {application} knows of {known} leases of node {node}");
                    return Err(Violation(format!("{of}, which has given it {leases}")));
                }
                for id in response.release {
                    if let Some(lease) = self.leases.get_mut(&(node, id)) {
                        lease.must_go = true;
                    }
                }
                Ok(())
            }
            Asked::Offsets(streamlets) => self.take_offsets(node, &streamlets, &answer.decode()?, around),
        }
    }

    /// An answer of an owner to its member.
    fn take(&mut self, node: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(membership) = self.memberships.get_mut(&node) else { return Ok(()) };
        let Some((_, asked_us, asked)) = membership.asked.take() else { return Ok(()) };
        membership.asked_us = asked_us;
        match answer.status() {
            Status::Ok => self.good(node, asked, answer, around),
            Status::UnknownMember | Status::UnknownApplication => {
                self.lose(node);
                Ok(())
            }
            status => {
                retry(answer, "a member's request")?;
                if matches!(asked, Asked::Groups) && status != Status::NotReady {
                    // It may have been given some all the same.
                    membership.joined = None;
                }
                self.last_problem = answer.error();
                self.owned.want();
                Ok(())
            }
        }
    }

    fn take_fetched(
        &mut self,
        id: (u32, u64),
        node: u32,
        answer: &Answer,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let asked = self.leases.get_mut(&id).and_then(|lease| lease.asked.take());
        let Some((.., what)) = asked else { return Ok(()) };
        if answer.status() != Status::Ok {
            retry(answer, "a member's read")?;
            self.last_problem = answer.error();
            self.owned.want();
            return Ok(());
        }
        match what {
            Fetch::Read => self.take_data(id, node, &answer.decode()?, around),
            Fetch::Place => {
                self.placed(id, &answer.decode()?);
                Ok(())
            }
        }
    }

    /// It forgets everything, with a word or without one: then its leases must run out for others. Or it stands still.
    fn falter(&mut self, around: &mut Around<'_>) {
        match around.below(3) {
            0 => {
                for (node, membership) in &self.memberships {
                    if let Some(JoinedApplication { application, member, .. }) = membership.joined {
                        around.send(*node, &LeaveApplication { application, member });
                    }
                }
            }
            1 => {}
            _ => {
                self.sleeps_until_us = around.now_us + around.below(SLEEP_US);
                return;
            }
        }
        self.memberships.clear();
        self.leases.clear();
    }
}

impl Client for Member {
    fn answer(&mut self, node: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.owned.take(answer, around)? {
            return Ok(());
        }
        let correlation = answer.header.correlation;
        let of_member = self.memberships.get(&node).and_then(|membership| membership.asked.as_ref());
        if of_member.is_some_and(|(asked, ..)| *asked == correlation) {
            self.take(node, answer, around)?;
        } else {
            let of_lease = |lease: &Lease| lease.asked.is_some_and(|(asked, ..)| asked == correlation);
            // What was asked for by somebody that it does not remember is nothing to it.
            let Some(id) = self.leases.iter().find(|(_, lease)| of_lease(lease)).map(|(id, _)| *id) else {
                return Ok(());
            };
            self.take_fetched(id, node, answer, around)?;
        }
        if around.below(150) == 0 {
            self.falter(around);
        } else if around.below(4) > 0 && answer.status() == Status::Ok {
            self.go_on(around);
        }
        Ok(())
    }

    fn lost(&mut self, node: u32, around: &mut Around<'_>) {
        self.owned.lost(node);
        if around.below(4) == 0 {
            self.lose(node);
        }
        if let Some(membership) = self.memberships.get_mut(&node) {
            (membership.joined, membership.asked) = (None, None);
        }
        for lease in self.leases.values_mut() {
            lease.asked = lease.asked.filter(|(_, asked, ..)| *asked != node);
        }
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.owned.look(around);
        let members = self.memberships.iter().filter_map(|(node, at)| Some((*node, at.asked.as_ref()?.1)));
        let reads = self.leases.values().filter_map(|lease| lease.asked.map(|(_, node, at_us, _)| (node, at_us)));
        let late = members.chain(reads).find(|(_, at_us)| around.now_us > at_us + PATIENCE_US);
        let broken = (around.below(BREAKS) == 0).then(|| around.below(self.memberships.len().max(1) as u64) as usize);
        let broken = broken.and_then(|at| self.memberships.keys().nth(at).copied());
        if let Some(node) = late.map(|(node, _)| node).or(broken) {
            around.wishes.push(Wish::Drop(node));
            self.lost(node, around);
        }
        self.go_on(around);
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, seen: &Seen<'_>) -> bool {
        let own = seen.truth.places().into_iter().filter(|place| place.stream == self.stream.0);
        own.into_iter().all(|place| {
            let at = match self.is_unordered {
                true => seen.told.covered_to(&self.application, place),
                false => self.committed.get(&place).copied().unwrap_or(0),
            };
            let mut left = seen.truth.between(place, at..u64::MAX);
            left.all(|(_, written)| seen.told.age(place, written, seen.now_ms).is_none())
        })
    }

    fn state(&self) -> String {
        let lease = |((node, _), lease): (&(u32, u64), &Lease)| {
            let LeasedGroup { streamlet, lane, group, .. } = lease.group;
            format!("{streamlet}/{lane}/{group}@{} of node {node}", lease.next)
        };
        let leases: Vec<String> = self.leases.iter().map(lease).collect();
        let committed: Vec<String> =
            self.committed.iter().map(|(place, at)| format!("{}/{}@{at}", place.streamlet, place.lane)).collect();
        let of = format!("stream {}", self.stream);
        format!("member of {} of {of}: {leases:?}, committed {committed:?}, {}", self.application, self.last_problem)
    }
}

/// The ordinal of the first record that was read.
fn base_of(data: &[u8]) -> Option<u64> {
    Some(Chunks::new(data).next()?.ok()?.broker().ok()?.base_ordinal)
}
