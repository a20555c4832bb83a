//! Applications of the fake broker: members, leases, offsets.

use std::collections::BTreeMap;

use kera_format::{ApplicationId, Cursor, GroupId, LaneId, Order, StreamletId};
use kera_protocol::{
    AfterCommit, Body, CommitOffsets, CommitResult, CommittedOffset, CommittedOffsets, Empty, ErrorBody, FrameHeader,
    Heartbeat, HeartbeatResponse, JoinApplication, JoinedApplication, LeasedGroup, LeasedGroups, LeaveApplication,
    NextGroups, Op, Status,
};
use kera_rpc::{Flow, Outbox};

use super::State;

const APPLICATION: ApplicationId = ApplicationId(5);
/// Unless it is told otherwise. An answer that takes four times as long costs the member its connection, so that is longer than machines stand
/// still.
const HEARTBEAT_MS: u32 = 1_500;
/// Unless it is told otherwise: nothing is to happen because a lease's time is up.
const LEASE_MS: u32 = 600_000;

/// Where the application is in a lane, and who reads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub cursor: Cursor,
    pub ordinal: u64,
    pub done: bool,
    pub member: u64,
    pub lease: u64,
    /// The group that is leased.
    pub group: GroupId,
}

#[derive(Debug, Default)]
pub struct Members {
    pub members: Vec<u64>,
    pub lanes: BTreeMap<(u32, u32), Progress>,
    pub heartbeats: u64,
    /// Leases that the next heartbeats ask back.
    pub release: Vec<u64>,
    pub released: Vec<u64>,
    /// A lease that is not taken back with any place.
    pub refused: Option<u64>,
    /// Leases of groups that were read to their ends.
    pub done: Vec<u64>,
    /// Lanes that nobody gets.
    pub reserved: std::collections::BTreeSet<(u32, u32)>,
    pub commits: u64,
    pub joins: u64,
    /// More are refused; 0: any number is taken.
    pub members_max: usize,
    /// With so many answers that lease groups the connection breaks.
    pub lost_answers: u64,
    pub heartbeat_ms: u32,
    pub lease_ms: u32,
    next_member: u64,
    next_lease: u64,
}

impl Members {
    /// Forgets members and leases, and keeps what was committed: a broker that was restarted.
    pub fn forget(&mut self) {
        self.members.clear();
        for progress in self.lanes.values_mut() {
            (progress.member, progress.lease) = (0, 0);
        }
    }

    pub fn take_from(&mut self, member: u64) {
        for progress in self.lanes.values_mut().filter(|progress| progress.member == member) {
            (progress.member, progress.lease) = (0, 0);
        }
    }

    /// Leases that a member was never told of are free.
    fn take_unknown(&mut self, member: u64, known: &[u64]) {
        let of_member = |progress: &&mut Progress| progress.member == member && !known.contains(&progress.lease);
        for progress in self.lanes.values_mut().filter(of_member) {
            (progress.member, progress.lease) = (0, 0);
        }
    }

    pub fn leases(&self) -> Vec<u64> {
        self.lanes.values().map(|progress| progress.lease).filter(|lease| *lease != 0).collect()
    }
}

/// Groups for a member; `None`: there are none yet.
pub fn next_groups(state: &mut State, request: &NextGroups) -> Option<Result<LeasedGroups, Status>> {
    if !state.members.members.contains(&request.member) {
        return Some(Err(Status::UnknownMember));
    }
    let mut groups = Vec::new();
    for (&(streamlet, lane), log) in &state.logs {
        let progress = state.members.lanes.entry((streamlet, lane)).or_default();
        if progress.member != 0
            || state.members.reserved.contains(&(streamlet, lane))
            || groups.len() >= request.max_groups.max(1) as usize
        {
            continue;
        }
        let mut start = if progress.cursor == Cursor::default() { log.earliest() } else { progress.cursor };
        if progress.done {
            // The next group, if it has started.
            let Some(next) = log.chunks.iter().find(|chunk| chunk.cursor.group > progress.cursor.group) else {
                continue;
            };
            (start, progress.done) = (next.cursor, false);
            progress.cursor = start;
        }
        state.members.next_lease += 1;
        (progress.member, progress.lease) = (request.member, state.members.next_lease);
        progress.group = start.group;
        groups.push(LeasedGroup {
            streamlet: StreamletId(streamlet),
            lane: LaneId(lane),
            group: GroupId(start.group.0),
            start,
            start_ordinal: progress.ordinal,
            lease: progress.lease,
        });
    }
    (!groups.is_empty()).then_some(Ok(LeasedGroups { groups }))
}

fn commit(state: &mut State, request: &CommitOffsets) -> CommitResult {
    let members = &mut state.members;
    members.commits += 1;
    let statuses = request.entries.iter().map(|entry| {
        if members.refused == Some(entry.lease) && entry.after == AfterCommit::Release {
            return Status::InvalidArgument as u16;
        }
        let progress = members.lanes.entry((entry.streamlet.0, entry.lane.0)).or_default();
        if progress.lease != entry.lease {
            return Status::LeaseLost as u16;
        }
        let is_done = entry.after == AfterCommit::Done;
        let group = entry.cursor.group;
        if group != progress.group && !(is_done && group > progress.group) {
            return Status::InvalidArgument as u16;
        }
        (progress.cursor, progress.ordinal) = (entry.cursor, entry.ordinal);
        if entry.after != AfterCommit::Keep {
            (progress.member, progress.lease) = (0, 0);
        }
        if entry.after == AfterCommit::Release {
            members.released.push(entry.lease);
        }
        if is_done {
            members.done.push(entry.lease);
        }
        progress.done = is_done;
        0
    });
    CommitResult { statuses: statuses.collect() }
}

fn offsets(state: &State) -> CommittedOffsets {
    let offsets = state.members.lanes.iter().map(|((streamlet, lane), progress)| CommittedOffset {
        streamlet: StreamletId(*streamlet),
        lane: LaneId(*lane),
        cursor: progress.cursor,
        ordinal: progress.ordinal,
        done: progress.done,
        committed_ms: 0,
    });
    CommittedOffsets { application: APPLICATION, offsets: offsets.collect() }
}

pub fn on_frame(state: &mut State, op: Op, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
    match op {
        Op::JoinApplication => {
            let join = JoinApplication::decode(header.version, body).unwrap();
            let members = &mut state.members;
            members.joins += 1;
            let member = if members.members.contains(&join.member) {
                if let Some(known) = &join.leases {
                    members.take_unknown(join.member, known);
                }
                join.member
            } else if members.members_max > 0 && members.members.len() >= members.members_max {
                let error = ErrorBody::new("members would be too many");
                out.error(header, Status::LimitReached, &error);
                return Flow::Done;
            } else {
                members.next_member += 1;
                members.members.push(members.next_member);
                members.next_member
            };
            let lease_ms = if members.lease_ms == 0 { LEASE_MS } else { members.lease_ms };
            let heartbeat_ms = if members.heartbeat_ms == 0 { HEARTBEAT_MS } else { members.heartbeat_ms };
            out.respond(
                header,
                &JoinedApplication { application: APPLICATION, member, lease_ms, heartbeat_ms, order: Order::Lane },
            );
        }
        Op::Heartbeat => {
            let heartbeat = Heartbeat::decode(1, body).unwrap();
            let members = &mut state.members;
            members.heartbeats += 1;
            if members.members.contains(&heartbeat.member) {
                let leases = members.leases().len() as u32;
                out.respond(header, &HeartbeatResponse { release: members.release.clone(), leases });
            } else {
                out.error(header, Status::UnknownMember, &ErrorBody::new("unknown member"));
            }
        }
        Op::CommitOffsets => {
            let request = CommitOffsets::decode(1, body).unwrap();
            let result = commit(state, &request);
            out.respond(header, &result);
            state.wakers.iter().for_each(kera_rpc::SessionWaker::wake);
        }
        Op::FetchOffsets => out.respond(header, &offsets(state)),
        Op::LeaveApplication => {
            let leave = LeaveApplication::decode(1, body).unwrap();
            state.members.members.retain(|member| *member != leave.member);
            state.members.take_from(leave.member);
            out.respond(header, &Empty);
        }
        op => panic!("the fake does not do {op}"),
    }
    Flow::Done
}
