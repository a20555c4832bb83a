//! From requests about applications to answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_format::{StreamId, StreamletId};
use kera_protocol::application::{
    CommitOffsets, CommitResult, CommittedOffsets, DeleteApplication, DescribeApplication, FetchOffsets, Heartbeat,
    HeartbeatResponse, JoinApplication, JoinedApplication, LaneProgress, LeaveApplication, ListApplications,
    ResetOffsets,
};
use kera_protocol::limits::{CLIENT_NAME_BYTES_MAX, COMMIT_ENTRIES_MAX, WAIT_MS_MAX};
use kera_protocol::{Body, Empty, LeasedGroups, NextGroups, Op, Status};
use kera_rpc::Outbox;

use super::application::{Application, Ask, Member, heartbeat_ms};
use super::commit::{Committer, Reset};
use super::describe::{offset, wanted};
use super::keepers::Kept;
use super::{Applications, of_asked, still_to_open};
use crate::acks::Answer;
use crate::failure::Failure;
use crate::groups::{LOAD_WAIT_MS, check_named};
use crate::metrics::BrokerCounts;
use crate::session::{Attempt, Core, Request};
use crate::signals::Token;

/// Tries one of the operations on applications.
pub(crate) fn attempt(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    match request.op {
        Op::NextGroups => next_groups(core, request),
        Op::JoinApplication => join(core, request, out),
        Op::Heartbeat => heartbeat(core, request, out),
        Op::CommitOffsets => commit(core, request),
        Op::LeaveApplication => leave(core, request, out),
        Op::DeleteApplication => delete(core, request),
        Op::ResetOffsets => reset(core, request, out),
        Op::FetchOffsets => fetch(core, request),
        Op::ListApplications => list(core, request, out),
        Op::DescribeApplication => describe(core, request, out),
        other => Err(Failure::new(Status::UnknownOperation, format!("{other} is not the broker's"))),
    }
}

/// With what a request begins that records something of a stream: what it is recorded with, in a cluster, even if that leaves this node meanwhile.
fn begin(core: &Core, stream: StreamId) -> Vec<Arc<Kept>> {
    core.broker.applications.keepers.of_stream(stream)
}

/// An answer that waits until everything recorded so far is durable: in a cluster what was recorded with these streamlets. `before`: see [`begin`].
fn durable<B: Body>(
    core: &Core,
    request: Request<'_>,
    body: &B,
    (stream, before): (StreamId, &[Arc<Kept>]),
    of: impl Fn(StreamletId) -> bool,
) -> Attempt {
    let mut answer = Answer::default();
    body.encode(request.header.version, &mut answer.body);
    core.broker.applications.keepers.wait_for(&mut answer, before, stream, of);
    Attempt::Durable(answer)
}

/// Waits until it is known of the streamlets that are asked for, or of all of a stream that this node owns if none are, how far applications are in them.
/// Refuses while what tells of it cannot be read, and while one of them is still to be opened: clients count what is answered for that one, too.
fn all_known(core: &Core, stream: StreamId, asked: &[StreamletId]) -> Result<Option<Attempt>, Failure> {
    let applications = &core.broker.applications;
    let mut lanes = applications.read_on(&core.broker, Some(stream));
    let is_asked = of_asked(asked);
    lanes.retain(|(lane, _)| is_asked(lane.streamlet_id()));
    if !lanes.is_empty() {
        return Ok(Some(Attempt::Wait { lanes, wait_ms: LOAD_WAIT_MS }));
    }
    applications.unread_of(&core.broker, stream, asked).map_or(Ok(None), Err)
}

/// Refuses if another node owns one of the streamlets that are asked for: it knows how far applications are there. Who asks this node for one that it is named
/// for and has not opened yet is right here, and is told to come back: it would be sent to this node again.
fn check_owned(core: &Core, stream: StreamId, streamlets: &[StreamletId]) -> Result<(), Failure> {
    let keepers = &core.broker.applications.keepers;
    if !keepers.is_in_cluster() {
        return Ok(());
    }
    // The table first: one that is opened in between is kept by then.
    let owned = core.broker.ownership.owned(stream);
    match streamlets.iter().find(|streamlet| keepers.get(stream, **streamlet).is_none()) {
        Some(&named) if owned.iter().any(|(streamlet, _)| *streamlet == named) => Err(still_to_open(stream, named)),
        Some(&other) => Err(core.broker.ownership.not_owner(stream, other)),
        None => Ok(()),
    }
}

/// Refuses if something of a stream that was this node's `before` has left it since, of those streamlets that are asked for, or of all if none are.
///
/// A streamlet takes along what is known of it, and with the last one of a stream its applications go. Who is told behind that that there is no such application, or how far it is in what
/// is left, takes that for all of what was asked for: what was deleted would come back with the streamlet, and what was to be set would not be set.
pub(super) fn check_stayed(
    applications: &Applications,
    stream: StreamId,
    before: &[Arc<Kept>],
    asked: &[StreamletId],
) -> Result<(), Failure> {
    let is_asked = of_asked(asked);
    let is_here = |kept: &Arc<Kept>| {
        let now = applications.keepers.get(stream, kept.place.id());
        now.is_some_and(|now| Arc::ptr_eq(&now, kept))
    };
    match before.iter().find(|kept| is_asked(kept.place.id()) && !is_here(kept)) {
        Some(kept) => {
            let streamlet = kept.place.id();
            let message =
                format!("streamlet {streamlet} of stream {stream} has left this node just now; ask its next owner");
            Err(Failure::later(Status::NotReady, message))
        }
        None => Ok(()),
    }
}

/// An application by its name. That there is none is said only if nothing [has left](check_stayed) since `before`.
pub(super) fn named(
    applications: &Applications,
    (name, stream): (&str, StreamId),
    before: &[Arc<Kept>],
    asked: &[StreamletId],
) -> Result<Arc<Application>, Failure> {
    applications.by_name(name, stream).or_else(|unknown| {
        check_stayed(applications, stream, before, asked)?;
        Err(unknown)
    })
}

fn join(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: JoinApplication = request.message()?;
    let broker = Arc::clone(&core.broker);
    let bytes = message.member_name.len();
    if bytes > CLIENT_NAME_BYTES_MAX {
        return Err(Failure::argument(format!("member_name has {bytes} bytes, the limit is {CLIENT_NAME_BYTES_MAX}")));
    }
    let stream = core.streams.get(&broker.log, message.stream);
    let stream = Arc::clone(stream.ok_or_else(|| broker.unknown_stream(message.stream))?);
    let applications = &broker.applications;
    if applications.is_system_stream(stream.id()) {
        return Err(Failure::argument("stream is the system's own, it has no applications"));
    }
    let before = begin(core, stream.id());
    let (application, made) = applications.find_or_create(&broker, &message.application, &stream, message.start)?;
    let config = &broker.config;
    let asked = if message.lease_ms == 0 { config.lease_ms_default } else { message.lease_ms };
    let lease_ms = asked.clamp(config.lease_ms_min, config.lease_ms_max);
    let (now_us, now_ms) = (core.clock.monotonic_us(), core.clock.now_ms());
    let mut state = application.state.lock();
    core.counts.members_expired += application.expire(&mut state, now_us);
    let member = if state.members.contains_key(&message.member) {
        // Back after a lost connection: its leases are still its own.
        let found = state.hear(message.member, now_us, now_ms)?;
        (found.lease_ms, found.address) = (lease_ms, core.peer.to_string());
        message.member
    } else {
        let (count, limit) = (state.members.len(), config.members_max);
        if count >= limit {
            return Err(Failure::limit("members of the application", count, limit));
        }
        let id = applications.new_id(&broker);
        state.add_member(id, &message.member_name, core.peer.to_string(), lease_ms, (now_us, now_ms));
        core.counts.members_joined += 1;
        id
    };
    if let Some(known) = &message.leases {
        application.came_back(&mut state, member, core.session, known);
    }
    drop(state);
    let joined = JoinedApplication {
        application: application.meta.id,
        member,
        lease_ms,
        heartbeat_ms: heartbeat_ms(lease_ms),
        order: application.order(),
    };
    if made {
        return Ok(durable(core, request, &joined, (stream.id(), &before), |_| true));
    }
    out.respond(request.header, &joined);
    Ok(Attempt::Answered)
}

fn heartbeat(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: Heartbeat = request.message()?;
    let application = core.broker.applications.by_id(message.application)?;
    let (now_us, now_ms) = (core.clock.monotonic_us(), core.clock.now_ms());
    let mut state = application.state.lock();
    core.counts.members_expired += application.expire(&mut state, now_us);
    let leases = state.hear(message.member, now_us, now_ms)?.leases.len() as u32;
    let release = state.asked_back(message.member, now_us);
    drop(state);
    out.respond(request.header, &HeartbeatResponse { release, leases });
    Ok(Attempt::Answered)
}

fn next_groups(core: &mut Core, request: Request<'_>) -> Result<Attempt, Failure> {
    let message: NextGroups = request.message()?;
    let application = core.broker.applications.by_id(message.application)?;
    let (now_us, now_ms) = (core.clock.monotonic_us(), core.clock.now_ms());
    let wait_ms = message.max_wait_ms.min(WAIT_MS_MAX);
    let stream = application.meta.stream;
    let before = begin(core, stream);
    let lanes = core.broker.applications.read_on(&core.broker, Some(stream));
    let waits = !request.last && wait_ms > 0;
    // Who waits no more may be told that there is nothing. It is looked before the groups are: a streamlet that is read in between may have some. What
    // one has that is known is given all the same.
    let unread = if waits { None } else { core.broker.applications.unread_of(&core.broker, stream, &[]) };
    // Registered before looking, so that nothing is missed in between.
    if let Some(waiter) = request.waiter.filter(|_| !request.last) {
        application.register(&core.observer, Token::Waiter(waiter).to_u64());
    }
    core.counts.members_expired += application.expire(&mut application.state.lock(), now_us);
    let config = &core.broker.config;
    let given = application.next_groups(&Ask {
        member: message.member,
        session: core.session,
        fresh: request.waiter.is_none(),
        max_groups: (message.max_groups.max(1) as usize).min(config.groups_per_answer_max),
        wait_us: if request.last { 0 } else { u64::from(wait_ms) * 1000 },
        now_us,
        now_ms,
        ahead_max: config.groups_ahead_max,
    });
    let given = given.inspect_err(|_| unregister(core, &application, request))?;
    core.counts.groups_leased += given.groups.len() as u64;
    core.counts.releases_asked += given.releases_asked;
    core.counts.positions_lost += given.lost.times;
    core.counts.records_lost += given.lost.records;
    if given.groups.is_empty() && waits {
        return Ok(Attempt::Wait { lanes, wait_ms });
    }
    unregister(core, &application, request);
    if let Some(unread) = unread.filter(|_| given.groups.is_empty()) {
        // Nothing to give would be too much said: who reads to the end would be there.
        return Err(unread);
    }
    // Where a lease begins may have been committed just now: it is told when nothing can take it back any more.
    let leased = LeasedGroups { groups: given.groups };
    let given = |of: StreamletId| leased.groups.iter().any(|group| group.streamlet == of);
    Ok(durable(core, request, &leased, (stream, &before), given))
}

/// A request for groups is answered.
fn unregister(core: &Core, application: &Application, request: Request<'_>) {
    if let Some(waiter) = request.waiter {
        application.unregister(&core.observer, Token::Waiter(waiter).to_u64());
    }
}

fn commit(core: &mut Core, request: Request<'_>) -> Result<Attempt, Failure> {
    let message: CommitOffsets = request.message()?;
    let (count, limit) = (message.entries.len(), COMMIT_ENTRIES_MAX);
    if count > limit {
        return Err(Failure::limit("entries", count, limit));
    }
    let applications = &core.broker.applications;
    applications.keepers.check_open()?;
    let application = applications.by_id(message.application)?;
    let by = Committer { member: message.member, now_us: core.clock.monotonic_us(), now_ms: core.clock.now_ms() };
    core.counts.members_expired += application.expire(&mut application.state.lock(), by.now_us);
    let before = begin(core, application.meta.stream);
    let committed = application.commit(by, &message.entries)?;
    core.counts.offsets_committed += committed.accepted;
    core.counts.offsets_fenced += committed.fenced;
    match committed.failure {
        // Nothing at all could be recorded: the client learns why and when to come back.
        Some(failure) if committed.accepted == 0 => Err(failure),
        _ => {
            let of_commit: BTreeSet<StreamletId> = message.entries.iter().map(|entry| entry.streamlet).collect();
            let result = CommitResult { statuses: committed.statuses };
            Ok(durable(core, request, &result, (application.meta.stream, &before), |of| of_commit.contains(&of)))
        }
    }
}

fn leave(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: LeaveApplication = request.message()?;
    let application = core.broker.applications.by_id(message.application)?;
    let mut state = application.state.lock();
    if !application.remove_member(&mut state, message.member) {
        let message = format!("member {} is not known; it has left, or its lease ran out", message.member);
        return Err(Failure::new(Status::UnknownMember, message));
    }
    drop(state);
    out.respond(request.header, &Empty);
    Ok(Attempt::Answered)
}

/// Refuses while an application has members.
fn check_idle(counts: &mut BrokerCounts, application: &Application, now_us: u64) -> Result<(), Failure> {
    let mut state = application.state.lock();
    counts.members_expired += application.expire(&mut state, now_us);
    let Some(last_us) = state.members.values().map(Member::expires_us).max() else { return Ok(()) };
    let (name, members) = (&application.meta.name, state.members.len());
    let s = if members == 1 { "" } else { "s" };
    let seconds = last_us.saturating_sub(now_us).div_ceil(1_000_000);
    let message = format!("application `{name}` has {members} member{s}, with leases of up to {seconds} s more");
    Err(Failure::later(Status::ApplicationActive, message))
}

fn delete(core: &mut Core, request: Request<'_>) -> Result<Attempt, Failure> {
    let message: DeleteApplication = request.message()?;
    let before = begin(core, message.stream);
    if let Some(wait) = all_known(core, message.stream, &[])? {
        return Ok(wait);
    }
    let application = named(&core.broker.applications, (&message.application, message.stream), &before, &[])?;
    check_idle(&mut core.counts, &application, core.clock.monotonic_us())?;
    let before = begin(core, message.stream);
    core.broker.applications.remove(&core.broker, &application, core.clock.now_ms())?;
    Ok(durable(core, request, &Empty, (message.stream, &before), |_| true))
}

fn reset(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: ResetOffsets = request.message()?;
    check_named(&message.streamlets)?;
    let before = begin(core, message.stream);
    check_owned(core, message.stream, &message.streamlets)?;
    if let Some(wait) = all_known(core, message.stream, &message.streamlets)? {
        return Ok(wait);
    }
    let broker = Arc::clone(&core.broker);
    let applications = &broker.applications;
    applications.keepers.check_open()?;
    let stream = core.streams.get(&broker.log, message.stream);
    let stream = Arc::clone(stream.ok_or_else(|| broker.unknown_stream(message.stream))?);
    if let Some(unknown) = message.streamlets.iter().find(|id| stream.streamlet(**id).is_none()) {
        return Err(Failure::unknown_streamlet(stream.id(), *unknown, stream.options().streamlets));
    }
    let application = if message.dry_run {
        named(applications, (&message.application, message.stream), &before, &message.streamlets)?
    } else {
        applications.find_or_create(&broker, &message.application, &stream, message.to)?.0
    };
    check_idle(&mut core.counts, &application, core.clock.monotonic_us())?;
    let now_ms = core.clock.now_ms();
    let mut state = application.state.lock();
    application.take_moved(&mut state);
    let planned = match application.plan_reset(&state, wanted(&message.streamlets), message.to, now_ms)? {
        Reset::To(planned) => planned,
        Reset::Loading(key, seen) => {
            let lanes = application.lane(key).map(|lane| (Arc::clone(lane), seen)).into_iter().collect();
            return Ok(Attempt::Wait { lanes, wait_ms: LOAD_WAIT_MS });
        }
    };
    if !message.dry_run {
        application.reset(&mut state, &planned, now_ms)?;
    }
    drop(state);
    check_stayed(applications, message.stream, &before, &message.streamlets)?;
    let offsets = planned.iter().map(|(key, position)| offset(*key, position)).collect();
    let answer = CommittedOffsets { application: application.meta.id, offsets };
    if message.dry_run {
        out.respond(request.header, &answer);
        return Ok(Attempt::Answered);
    }
    Ok(durable(core, request, &answer, (message.stream, &before), |_| true))
}

fn fetch(core: &mut Core, request: Request<'_>) -> Result<Attempt, Failure> {
    let message: FetchOffsets = request.message()?;
    check_named(&message.streamlets)?;
    let before = begin(core, message.stream);
    check_owned(core, message.stream, &message.streamlets)?;
    if let Some(wait) = all_known(core, message.stream, &message.streamlets)? {
        return Ok(wait);
    }
    let applications = &core.broker.applications;
    let application = named(applications, (&message.application, message.stream), &before, &message.streamlets)?;
    let answer = application.committed(wanted(&message.streamlets));
    check_stayed(applications, message.stream, &before, &message.streamlets)?;
    let limit = items_max::<kera_protocol::CommittedOffset>(core);
    if answer.offsets.len() > limit {
        let message =
            format!("{} offsets do not fit into a frame ({limit} do): ask for fewer streamlets", answer.offsets.len());
        return Err(Failure::new(Status::LimitReached, message));
    }
    // What is committed and not durable yet could be taken back by a loss of power, and must not be told before.
    Ok(durable(core, request, &answer, (message.stream, &before), |_| true))
}

fn list(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: ListApplications = request.message()?;
    out.respond(request.header, &core.broker.applications.list(message.stream));
    Ok(Attempt::Answered)
}

fn describe(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: DescribeApplication = request.message()?;
    let before = begin(core, message.stream);
    let application = named(&core.broker.applications, (&message.application, message.stream), &before, &[])?;
    let (now_us, now_ms) = (core.clock.monotonic_us(), core.clock.now_ms());
    core.counts.members_expired += application.expire(&mut application.state.lock(), now_us);
    let lanes_max = items_max::<LaneProgress>(core) / 4;
    let description = application.describe(lanes_max, now_us, now_ms);
    check_stayed(&core.broker.applications, message.stream, &before, &[])?;
    if core.broker.applications.keepers.is_in_cluster() {
        // An owner that is lost may never have made it durable: it is told when nothing can take it back.
        return Ok(durable(core, request, &description, (message.stream, &before), |_| true));
    }
    out.respond(request.header, &description);
    Ok(Attempt::Answered)
}

/// How many items of a type fit into a frame for sure: on the wire they take no more than in memory.
fn items_max<T>(core: &Core) -> usize {
    core.broker.config.frame_bytes_max / 2 / size_of::<T>()
}
