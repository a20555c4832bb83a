//! Looking at applications: listings, members, leases, positions, lag. Nothing here changes anything.

use kera_format::StreamletId;
use kera_format::applications::{LaneKey, Position};
use kera_protocol::{
    ApplicationDescription, ApplicationList, ApplicationState, ApplicationSummary, CommittedOffset, CommittedOffsets,
    LaneProgress, LeaseInfo, MemberInfo,
};

use super::Applications;
use super::application::{Application, State};

impl Application {
    /// A line of a listing.
    pub(super) fn summary(&self) -> ApplicationSummary {
        let mut state = self.state.lock();
        self.take_moved(&mut state);
        ApplicationSummary {
            application: self.meta.id,
            name: self.meta.name.clone(),
            stream: self.meta.stream,
            state: state_of(&state),
            members: state.members.len() as u32,
            lag: state.lanes.values().fold(0, |sum, progress| sum.saturating_add(progress.lag().2)),
        }
    }

    /// Everything about it, with at most `lanes_max` lanes and as many leases.
    pub(super) fn describe(&self, lanes_max: usize, now_us: u64, now_ms: i64) -> ApplicationDescription {
        let mut state = self.state.lock();
        self.take_moved(&mut state);
        let lanes: Vec<LaneProgress> = state
            .lanes
            .iter()
            .filter_map(|(key, progress)| {
                let (committed_ordinal, durable_ordinal, lag) = progress.lag();
                let known = durable_ordinal > 0 || committed_ordinal.is_some();
                let (streamlet, lane) = (key.streamlet, key.lane);
                known.then_some(LaneProgress { streamlet, lane, committed_ordinal, durable_ordinal, lag })
            })
            .collect();
        let lag = lanes.iter().fold(0u64, |sum, lane| sum.saturating_add(lane.lag));
        let mut description = ApplicationDescription {
            application: self.meta.id,
            name: self.meta.name.clone(),
            stream: self.meta.stream,
            state: state_of(&state),
            order: self.order(),
            members: members(&state),
            leases: leases(&state, now_us, now_ms),
            lanes,
            lag,
        };
        description.lanes.truncate(lanes_max);
        description.leases.truncate(lanes_max);
        description
    }

    /// What was committed of the lanes that are `wanted`.
    pub(super) fn committed(&self, wanted: impl Fn(LaneKey) -> bool) -> CommittedOffsets {
        let state = self.state.lock();
        let mut offsets = Vec::new();
        for (key, progress) in state.lanes.iter().filter(|(key, _)| wanted(**key)) {
            let base = progress.base.iter().filter(|_| progress.committed);
            offsets.extend(base.chain(progress.ahead.values()).map(|position| offset(*key, position)));
        }
        CommittedOffsets { application: self.meta.id, offsets }
    }
}

/// Whether a lane is of one of the streamlets asked for; none asked for means all.
pub(super) fn wanted(streamlets: &[StreamletId]) -> impl Fn(LaneKey) -> bool + use<> {
    let is_asked = super::of_asked(streamlets);
    move |key| is_asked(key.streamlet)
}

pub(super) fn offset(key: LaneKey, position: &Position) -> CommittedOffset {
    CommittedOffset {
        streamlet: key.streamlet,
        lane: key.lane,
        cursor: position.cursor,
        ordinal: position.ordinal,
        done: position.done,
        committed_ms: position.committed_ms,
    }
}

fn state_of(state: &State) -> ApplicationState {
    if state.members.is_empty() { ApplicationState::Empty } else { ApplicationState::Active }
}

fn members(state: &State) -> Vec<MemberInfo> {
    let info = |(id, member): (&u64, &super::application::Member)| MemberInfo {
        member: *id,
        name: member.name.clone(),
        address: member.address.clone(),
        joined_ms: member.joined_ms,
        heartbeat_ms: member.heard_ms,
        leases: member.leases.len() as u32,
    };
    state.members.iter().map(info).collect()
}

fn leases(state: &State, now_us: u64, now_ms: i64) -> Vec<LeaseInfo> {
    let until = |member: u64| {
        let left_us = state.members.get(&member).map_or(0, |found| found.expires_us().saturating_sub(now_us));
        now_ms + (left_us / 1000) as i64
    };
    let mut all = Vec::new();
    for (key, progress) in &state.lanes {
        let mut held = progress.leases.clone();
        held.sort_unstable_by_key(|lease| lease.group);
        all.extend(held.into_iter().map(|lease| LeaseInfo {
            lease: lease.id,
            member: lease.member,
            streamlet: key.streamlet,
            lane: key.lane,
            group: lease.group,
            since_ms: lease.since_ms,
            until_ms: until(lease.member),
        }));
    }
    all
}

impl Applications {
    /// Applications of a stream, or all, by name and stream.
    pub(super) fn list(&self, stream: Option<kera_format::StreamId>) -> ApplicationList {
        let found = match stream {
            Some(stream) => self.of_stream(stream),
            None => self.all(),
        };
        let mut applications: Vec<ApplicationSummary> = found.iter().map(|found| found.summary()).collect();
        applications.sort_unstable_by(|a, b| (&a.name, a.stream).cmp(&(&b.name, b.stream)));
        ApplicationList { applications }
    }
}
