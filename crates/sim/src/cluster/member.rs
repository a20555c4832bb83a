//! A member of an application: leases groups, reads them, commits how far it is, and dies now and then without a word.
//!
//! With order `lane` it must never be given a group before what lies in front of it was processed, by it or by another.

use std::collections::BTreeMap;

use kera_format::{Cursor, StreamId};
use kera_protocol::{
    AfterCommit, CommitEntry, CommitOffsets, CommitResult, CommittedOffsets, FetchOffsets, Heartbeat,
    HeartbeatResponse, JoinApplication, JoinedApplication, LeasedGroup, LeasedGroups, NextGroups, ReadChunks,
    ReadChunksResponse, ReadEntry, Start, Status,
};

use super::client::{Answer, Around, Client, PATIENCE_US, retry};
use super::reader::check_data;
use super::truth::{self, Place, Truth, Violation};

const TURN_US: u64 = 150_000;
const LEASE_MS: u32 = 2_000;
const READ_WAIT_MS: u32 = 200;

struct Lease {
    group: LeasedGroup,
    cursor: Cursor,
    next: u64,
    is_at_end: bool,
    must_go: bool,
}

enum Asked {
    Nothing,
    Join,
    Groups,
    Read(u64),
    /// What was committed of which lease, and whether it is over then.
    Commit(Vec<(u64, u64, bool)>),
    Heartbeat,
    Offsets,
}

/// Becomes a member, of one node or of each owner.
pub(crate) fn join(application: &str, stream: StreamId) -> JoinApplication {
    JoinApplication {
        application: application.to_owned(),
        stream,
        member_name: "simulated".to_owned(),
        member: 0,
        start: Start::Earliest,
        lease_ms: LEASE_MS,
        leases: None,
    }
}

/// See the module.
pub(super) struct Member {
    application: String,
    stream: StreamId,
    joined: Option<JoinedApplication>,
    leases: BTreeMap<u64, Lease>,
    is_connected: bool,
    asked: Asked,
    correlation: u64,
    asked_us: u64,
    /// What was known when it asked.
    known: truth::Asked,
    /// Everything up to these ordinals was committed, by anybody.
    committed: BTreeMap<(u32, u32), u64>,
    turn: u64,
    last_problem: String,
}

impl Member {
    pub(super) fn new(application: &str, stream: StreamId) -> Member {
        Member {
            application: application.to_owned(),
            stream,
            joined: None,
            leases: BTreeMap::new(),
            is_connected: false,
            asked: Asked::Nothing,
            correlation: 0,
            asked_us: 0,
            known: truth::Asked::default(),
            committed: BTreeMap::new(),
            turn: 0,
            last_problem: String::new(),
        }
    }

    /// How far the application was in a lane when it was asked last.
    fn committed(&self, streamlet: u32, lane: u32) -> u64 {
        self.committed.get(&(streamlet, lane)).copied().unwrap_or(0)
    }

    fn place(&self, group: &LeasedGroup) -> Place {
        Place { stream: self.stream.0, streamlet: group.streamlet.0, lane: group.lane.0 }
    }

    fn forget(&mut self) {
        self.joined = None;
        self.leases.clear();
    }

    /// Asks for the next thing.
    fn go_on(&mut self, around: &mut Around<'_>) {
        if !self.is_connected || !matches!(self.asked, Asked::Nothing) {
            return;
        }
        self.turn += 1;
        self.known = around.truth.asking(&self.application);
        let Some(JoinedApplication { application, member, .. }) = self.joined else {
            let message = join(&self.application, self.stream);
            return self.ask(Asked::Join, around.send(&message), around.now_us);
        };
        let commits: Vec<u64> =
            self.leases.iter().filter(|(_, l)| l.is_at_end || l.must_go).map(|(id, _)| *id).collect();
        let (asked, correlation) = if self.turn.is_multiple_of(7) {
            (Asked::Heartbeat, around.send(&Heartbeat { application, member }))
        } else if self.turn.is_multiple_of(11) {
            let (application, stream) = (self.application.clone(), self.stream);
            (Asked::Offsets, around.send(&FetchOffsets { application, stream, streamlets: Vec::new() }))
        } else if !commits.is_empty() || (self.turn.is_multiple_of(5) && !self.leases.is_empty()) {
            let ids = if commits.is_empty() { self.leases.keys().copied().collect() } else { commits };
            let mut entries = Vec::new();
            let mut told = Vec::new();
            for id in ids {
                let lease = &self.leases[&id];
                let after = match (lease.is_at_end, lease.must_go) {
                    (true, _) => AfterCommit::Done,
                    (false, true) => AfterCommit::Release,
                    (false, false) => AfterCommit::Keep,
                };
                let LeasedGroup { streamlet, lane, .. } = lease.group;
                let (cursor, ordinal) = (lease.cursor, lease.next);
                entries.push(CommitEntry { streamlet, lane, lease: id, cursor, ordinal, after });
                told.push((id, ordinal, after != AfterCommit::Keep));
                around.truth.processed(&self.application, self.place(&lease.group), ordinal);
            }
            (Asked::Commit(told), around.send(&CommitOffsets { application, member, entries }))
        } else if self.leases.len() < 2 && self.turn.is_multiple_of(2) {
            (Asked::Groups, around.send(&NextGroups { application, member, max_groups: 2, max_wait_ms: READ_WAIT_MS }))
        } else if let Some((id, lease)) = self.leases.iter().nth(self.turn as usize % self.leases.len().max(1)) {
            let LeasedGroup { streamlet, lane, .. } = lease.group;
            let entry =
                ReadEntry { stream: self.stream, streamlet, lane, cursor: lease.cursor, max_bytes: 0, flags: 0 };
            let read =
                ReadChunks { max_wait_ms: READ_WAIT_MS, min_bytes: 1, max_bytes: 32 << 10, entries: vec![entry] };
            (Asked::Read(*id), around.send(&read))
        } else {
            (Asked::Groups, around.send(&NextGroups { application, member, max_groups: 1, max_wait_ms: READ_WAIT_MS }))
        };
        self.ask(asked, correlation, around.now_us);
    }

    fn ask(&mut self, asked: Asked, correlation: u64, now_us: u64) {
        (self.asked, self.correlation, self.asked_us) = (asked, correlation, now_us);
    }

    fn take_groups(&mut self, leased: LeasedGroups, around: &mut Around<'_>) -> Result<(), Violation> {
        for group in leased.groups {
            let place = self.place(&group);
            around.truth.leased_from(&self.known, place, group.start_ordinal)?;
            let (cursor, next) = (group.start, group.start_ordinal);
            self.leases.insert(group.lease, Lease { group, cursor, next, is_at_end: false, must_go: false });
        }
        Ok(())
    }

    fn take_data(&mut self, id: u64, response: &ReadChunksResponse, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(mut lease) = self.leases.remove(&id) else { return Ok(()) };
        let place = self.place(&lease.group);
        for (one, data) in &response.answers {
            match one.status().expect("a status of this build") {
                Status::Ok => {
                    if !data.is_empty() {
                        lease.next = check_data(around.truth, place, lease.next, data)?;
                    }
                    lease.cursor = one.next;
                    lease.is_at_end |= one.end_of_group();
                }
                Status::CursorGone | Status::CursorUnknown => {
                    // A lease of a group that a power cut has taken back, empty as it was.
                    self.last_problem = "a cursor is gone".to_owned();
                    self.forget();
                    return Ok(());
                }
                status if status.retryable() => self.last_problem = status.name().to_owned(),
                other => return Err(Violation(format!("{place}: a member's read is refused: {}", other.name()))),
            }
        }
        self.leases.insert(id, lease);
        Ok(())
    }

    fn take_commit(
        &mut self,
        told: &[(u64, u64, bool)],
        result: &CommitResult,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        for ((id, ordinal, is_over), status) in told.iter().zip(&result.statuses) {
            let Some(lease) = self.leases.get(id) else { continue };
            let place = self.place(&lease.group);
            match Status::from_u16(*status).expect("a status of this build") {
                Status::Ok => {
                    around.truth.committed_at_least(&self.application, place, *ordinal);
                    if *is_over {
                        self.leases.remove(id);
                    }
                }
                Status::LeaseLost => drop(self.leases.remove(id)),
                status if status.retryable() => self.last_problem = status.name().to_owned(),
                other => return Err(Violation(format!("{place}: a commit is refused: {}", other.name()))),
            }
        }
        Ok(())
    }

    fn good(&mut self, asked: Asked, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        match asked {
            Asked::Nothing => Err(Violation("a member got an answer and had not asked".to_owned())),
            Asked::Join => {
                self.joined = Some(answer.decode()?);
                Ok(())
            }
            Asked::Groups => self.take_groups(answer.decode()?, around),
            Asked::Read(id) => self.take_data(id, &answer.decode()?, around),
            Asked::Commit(told) => self.take_commit(&told, &answer.decode()?, around),
            Asked::Heartbeat => {
                let response: HeartbeatResponse = answer.decode()?;
                for id in response.release {
                    if let Some(lease) = self.leases.get_mut(&id) {
                        lease.must_go = true;
                    }
                }
                Ok(())
            }
            Asked::Offsets => {
                let response: CommittedOffsets = answer.decode()?;
                for offset in response.offsets {
                    let (streamlet, lane) = (offset.streamlet.0, offset.lane.0);
                    let place = Place { stream: self.stream.0, streamlet, lane };
                    around.truth.committed_to(&self.known, place, offset.ordinal, "a question")?;
                    self.committed.insert((streamlet, lane), offset.ordinal);
                }
                Ok(())
            }
        }
    }
}

impl Client for Member {
    fn connected(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = true;
        self.asked = Asked::Nothing;
        around.timer(1);
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if answer.header.correlation != self.correlation {
            return Ok(());
        }
        let asked = std::mem::replace(&mut self.asked, Asked::Nothing);
        match answer.status() {
            Status::Ok => self.good(asked, answer, around)?,
            Status::UnknownMember | Status::UnknownApplication => self.forget(),
            _ => {
                retry(answer, "a member's request")?;
                self.last_problem = answer.error();
                return Ok(());
            }
        }
        if around.below(60) == 0 {
            // It forgets everything without a word: its leases must run out for others.
            self.forget();
        }
        if around.below(4) > 0 {
            self.go_on(around);
        }
        Ok(())
    }

    fn lost(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = false;
        self.asked = Asked::Nothing;
        self.forget();
        around.connect();
        Ok(())
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if !self.is_connected {
            return Ok(());
        }
        if !matches!(self.asked, Asked::Nothing) && around.now_us > self.asked_us + PATIENCE_US {
            return self.lost(around);
        }
        self.go_on(around);
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, truth: &Truth) -> bool {
        let own = truth.places().into_iter().filter(|place| place.stream == self.stream.0);
        own.into_iter().all(|place| self.committed(place.streamlet, place.lane) >= truth.end(place))
    }

    fn state(&self) -> String {
        let leases: Vec<String> = self.leases.values().map(|l| format!("{}@{}", l.group.streamlet, l.next)).collect();
        format!("member of {}: {leases:?}, committed {:?}, {}", self.application, self.committed, self.last_problem)
    }
}
