//! One application: its members, their leases, its line of lanes with groups to give. Logic under one lock, with time as
//! an argument; no I/O. `docs/notes/applications.md` has the argument why a group is never read by two members that
//! may both commit, and why nobody starves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_format::applications::{self, Entry, LaneKey, StartAt};
use kera_format::{ApplicationId, Cursor, Order, StreamId, StreamletId};
use kera_log::{Lane, LaneVersion, Observer, Stream, Streamlet, Waiters};
use kera_protocol::{LeasedGroup, Start, Status};
use parking_lot::Mutex;

use super::keepers::{Keepers, Kept};
use super::progress::{Lease, Lost, Offer, Progress};
use super::replay::{LanePositions, Replayed};
use crate::failure::Failure;

/// A member that asked for groups and got none is hungry for so many of its heartbeat intervals.
const HUNGRY_HEARTBEATS: u64 = 2;

/// What never changes about an application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) id: ApplicationId,
    pub(super) name: String,
    pub(super) stream: StreamId,
    /// Where it starts in lanes that it has no position in.
    pub(super) start: Start,
    pub(super) created_ms: i64,
}

impl Meta {
    /// As it is recorded.
    pub(super) fn to_record(&self) -> Entry {
        let start = match self.start {
            Start::Earliest => StartAt::Earliest,
            Start::Latest => StartAt::Latest,
            Start::Ordinal(ordinal) => StartAt::Ordinal(ordinal),
            Start::TimeMs(time_ms) => StartAt::TimeMs(time_ms),
        };
        Entry::Exists(applications::Application { id: self.id, start, created_ms: self.created_ms })
    }

    /// As it was recorded.
    pub(super) fn from_record(name: String, stream: StreamId, record: applications::Application) -> Meta {
        let start = match record.start {
            StartAt::Earliest => Start::Earliest,
            StartAt::Latest => Start::Latest,
            StartAt::Ordinal(ordinal) => Start::Ordinal(ordinal),
            StartAt::TimeMs(time_ms) => Start::TimeMs(time_ms),
        };
        Meta { id: record.id, name, stream, start, created_ms: record.created_ms }
    }
}

/// A consumer that belongs to the application.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) lease_ms: u32,
    pub(super) joined_ms: i64,
    pub(super) heard_ms: i64,
    pub(super) heard_us: u64,
    /// Its groups, oldest first: lane and lease.
    pub(super) leases: Vec<(LaneKey, u64)>,
    /// The only session that it is given groups on: the one on which it said last which leases it knows of, if it ever did.
    pub(super) session: Option<u64>,
    /// Leases that it is asked to give back.
    asked: usize,
    /// Until when it counts as one that waits for groups.
    hungry_until_us: u64,
}

impl Member {
    pub(super) fn heartbeat_ms(&self) -> u32 {
        heartbeat_ms(self.lease_ms)
    }

    /// Refuses to give it groups where it would not hear of them, see [`Application::came_back`].
    fn check_session(&self, session: u64) -> Result<(), Failure> {
        if self.session.is_none_or(|own| own == session) {
            return Ok(());
        }
        Err(Failure::new(
            Status::UnknownMember,
            "the member has joined again on another connection, and gets groups there",
        ))
    }

    /// When its lease ends unless it is heard of.
    pub(super) fn expires_us(&self) -> u64 {
        self.heard_us + u64::from(self.lease_ms) * 1000
    }
}

/// How often a member with such a lease is to be heard of: often enough that a request to release reaches it soon.
pub(super) fn heartbeat_ms(lease_ms: u32) -> u32 {
    (lease_ms / 10).clamp(50, 3_000)
}

/// Who is called when there may be groups to give, and which lanes have moved. Lanes call it from any thread, so it has
/// a small lock of its own, apart from the application's.
#[derive(Default)]
pub(super) struct Wakes {
    inner: Mutex<WakesInner>,
}

#[derive(Default)]
struct WakesInner {
    moved: Vec<u64>,
    /// Sessions. Those that are gone have their requests answered by nobody, and so not taken back.
    waiting: Waiters,
}

impl Wakes {
    /// Has a session called once when there may be something. Its waiter's number is in `token`.
    fn register(&self, observer: &Arc<dyn Observer>, token: u64) {
        self.inner.lock().waiting.push(observer, token);
    }

    /// Takes a registration back.
    fn unregister(&self, observer: &Arc<dyn Observer>, token: u64) {
        self.inner.lock().waiting.remove(observer, token);
    }

    /// Calls everybody who waits.
    pub(super) fn call(&self) {
        let waiting = self.inner.lock().waiting.take();
        waiting.call();
    }
}

impl Observer for Wakes {
    fn advanced(&self, lane: u64) {
        self.inner.lock().moved.push(lane);
        self.call();
    }
}

/// What changes about an application.
#[derive(Default)]
pub(super) struct State {
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) lanes: BTreeMap<LaneKey, Progress>,
    /// Lanes that may have a group to give, in turn.
    line: VecDeque<LaneKey>,
    pub(super) leased: usize,
    pub(super) next_lease: u64,
    /// Lanes whose consumed floor may have moved.
    pub(super) dirty: BTreeSet<LaneKey>,
    /// Streamlets with which it is recorded that the application exists, in a cluster.
    pub(super) known: BTreeSet<StreamletId>,
}

/// An application.
pub(super) struct Application {
    pub(super) meta: Meta,
    pub(super) stream: Arc<Stream>,
    pub(super) keepers: Arc<Keepers>,
    pub(super) wakes: Arc<Wakes>,
    /// `wakes`, as lanes see it.
    observer: Arc<dyn Observer>,
    pub(super) state: Mutex<State>,
    deleted: AtomicBool,
}

/// What a request for groups comes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) member: u64,
    /// The session that the request came on.
    pub(super) session: u64,
    /// The member has just said so; otherwise its request waits here and it may be gone meanwhile.
    pub(super) fresh: bool,
    pub(super) max_groups: usize,
    /// How long the member waits for the first one.
    pub(super) wait_us: u64,
    pub(super) now_us: u64,
    pub(super) now_ms: i64,
    pub(super) ahead_max: usize,
}

/// What was given, and what it brought to light.
#[derive(Default)]
pub(super) struct Given {
    pub(super) groups: Vec<LeasedGroup>,
    pub(super) lost: Lost,
    pub(super) releases_asked: u64,
}

impl Application {
    pub(super) fn new(meta: Meta, stream: Arc<Stream>, keepers: Arc<Keepers>, first_lease: u64) -> Application {
        let wakes = Arc::new(Wakes::default());
        let observer: Arc<dyn Observer> = Arc::clone(&wakes) as _;
        let state = Mutex::new(State { next_lease: first_lease, ..State::default() });
        Application { meta, stream, keepers, wakes, observer, state, deleted: AtomicBool::new(false) }
    }

    /// Lines up every lane of the stream that was ever used, of the streamlets that are served.
    pub(super) fn line_up_all(&self) {
        let mut state = self.state.lock();
        for streamlet in self.stream.streamlets().filter(|of| self.keepers.serves(self.meta.stream, of.id())) {
            state.line_up_streamlet(streamlet);
        }
        drop(state);
        let kept = self.keepers.of_stream(self.meta.stream);
        kept.iter().filter(|kept| kept.is_read()).for_each(|kept| self.set_older(kept));
    }

    /// What was recorded of a streamlet.
    pub(super) fn take_replayed(&self, replayed: Replayed, of: &Streamlet) {
        let mut state = self.state.lock();
        state.known.insert(of.id());
        for (key, positions) in replayed.lanes.into_iter().filter(|(key, _)| key.streamlet == of.id()) {
            let Some(lane) = of.lane(key.lane) else { continue };
            state.line_up(key, Some(lane));
            if let Some(progress) = state.lanes.get_mut(&key) {
                (progress.base, progress.committed) = (positions.base, positions.base.is_some());
                progress.ahead = positions.ahead;
            }
        }
    }

    /// A streamlet is served from here on. Whether the application was recorded with it.
    pub(super) fn take_streamlet(&self, kept: &Kept) -> bool {
        self.set_older(kept);
        let streamlet = &kept.place;
        let mut state = self.state.lock();
        state.line_up_streamlet(streamlet);
        let State { lanes, dirty, known, .. } = &mut *state;
        dirty.extend(lanes.keys().filter(|key| key.streamlet == streamlet.id()));
        !known.insert(streamlet.id())
    }

    /// Which groups of a streamlet earlier owners have.
    pub(super) fn set_older(&self, kept: &Kept) {
        let mut state = self.state.lock();
        // A lane of which they have some is one that was used, also if nothing of it is here.
        for lane in kept.lanes_with_older() {
            let key = LaneKey { streamlet: kept.place.id(), lane };
            state.line_up(key, kept.place.lane(lane));
        }
        let of_streamlet = state.lanes.iter_mut().filter(|(key, _)| key.streamlet == kept.place.id());
        of_streamlet.for_each(|(key, progress)| progress.set_older(&kept.older_of(key.lane)));
    }

    /// All that is known of it, as if it had been read.
    pub(super) fn replayed(&self) -> Replayed {
        let state = self.state.lock();
        let positions = |(key, progress): (&LaneKey, &Progress)| {
            let base = progress.base.filter(|_| progress.committed);
            (*key, LanePositions { base, ahead: progress.ahead.clone() })
        };
        let Entry::Exists(exists) = self.meta.to_record() else { return Replayed::default() };
        Replayed { exists: Some(exists), lanes: state.lanes.iter().map(positions).collect() }
    }

    /// A streamlet is another node's: leases on its groups are over, and how far the application is in them is the next owner's to say.
    pub(super) fn streamlet_left(&self, streamlet: StreamletId) {
        let mut state = self.state.lock();
        let State { members, lanes, leased, line, dirty, known, .. } = &mut *state;
        let gone: Vec<LaneKey> = lanes.keys().filter(|key| key.streamlet == streamlet).copied().collect();
        for key in &gone {
            let Some(progress) = lanes.remove(key) else { continue };
            *leased -= progress.leases.len();
            for lease in progress.leases {
                let Some(member) = members.get_mut(&lease.member) else { continue };
                member.leases.retain(|(_, held)| *held != lease.id);
                member.asked -= usize::from(lease.asked);
            }
        }
        known.remove(&streamlet);
        line.retain(|key| key.streamlet != streamlet);
        dirty.retain(|key| key.streamlet != streamlet);
    }

    /// The consumed floors of all lanes are to be set again.
    pub(super) fn mark_dirty(&self) {
        let mut state = self.state.lock();
        let State { lanes, dirty, .. } = &mut *state;
        dirty.extend(lanes.keys());
    }

    /// Up to where the application needs nothing of a lane any more, by what is recorded.
    pub(super) fn floor(&self, key: LaneKey) -> Cursor {
        self.state.lock().lanes.get_mut(&key).map_or_else(Cursor::default, Progress::floor)
    }

    /// The lane of a key, if the stream has it and its streamlet is served.
    pub(super) fn lane(&self, key: LaneKey) -> Option<&Arc<Lane>> {
        if !self.keepers.serves(self.meta.stream, key.streamlet) {
            return None;
        }
        self.stream.streamlet(key.streamlet)?.lane(key.lane)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire) || self.stream.is_deleted()
    }

    /// From here on nothing is given or committed; whoever waits is called to find that out.
    pub(super) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
        self.wakes.call();
    }

    pub(super) fn order(&self) -> Order {
        self.stream.options().order
    }

    /// Has a session called once when there may be groups for a member.
    pub(super) fn register(&self, observer: &Arc<dyn Observer>, token: u64) {
        self.wakes.register(observer, token);
    }

    /// The session does not wait any more.
    pub(super) fn unregister(&self, observer: &Arc<dyn Observer>, token: u64) {
        self.wakes.unregister(observer, token);
    }

    /// Leases groups to a member. None if there is none to give now: then the member counts as hungry, and those that hold
    /// more than their share are asked to release.
    pub(super) fn next_groups(&self, ask: &Ask) -> Result<Given, Failure> {
        let mut state = self.state.lock();
        self.take_moved(&mut state);
        state.known(ask.member)?.check_session(ask.session)?;
        if ask.fresh {
            state.hear(ask.member, ask.now_us, ask.now_ms)?;
        }
        let order = self.order();
        let mut given = Given::default();
        let allowed = state.allowance(ask);
        // Each lane is looked at once, and once more for each group that it gave.
        let mut turns = state.line.len();
        while given.groups.len() < allowed && turns > 0 {
            let Some(key) = state.line.pop_front() else { break };
            turns -= 1;
            let State { lanes, members, next_lease, leased, dirty, .. } = &mut *state;
            let Some(progress) = lanes.get_mut(&key) else { continue };
            progress.in_line = false;
            let offer = progress.offer(order, self.meta.start, ask.ahead_max, &mut given.lost);
            if progress.joined.is_some() {
                dirty.insert(key);
            }
            match offer {
                Ok(Offer::Group(group, start, start_ordinal)) => {
                    let id = *next_lease;
                    *next_lease += 1;
                    *leased += 1;
                    let (member, since_ms) = (ask.member, ask.now_ms);
                    progress.leases.push(Lease { id, member, group, since_ms, asked: false });
                    members.entry(member).and_modify(|m| m.leases.push((key, id)));
                    let (streamlet, lane) = (key.streamlet, key.lane);
                    given.groups.push(LeasedGroup { streamlet, lane, group, start, start_ordinal, lease: id });
                    if order == Order::None {
                        state.line_up(key, None);
                        turns += 1;
                    }
                }
                Ok(Offer::Nothing) => {}
                Ok(Offer::Wait(seen)) => self.arm(key, progress, seen),
                Err(failure) => {
                    tracing::warn!(application = %self.meta.name, ?key, %failure, "no place to start found in a lane");
                    state.line_up(key, None);
                }
            }
        }
        state.note_hunger(ask, &mut given);
        Ok(given)
    }

    /// Has the application called back when a lane moves.
    fn arm(&self, key: LaneKey, progress: &mut Progress, seen: LaneVersion) {
        if !progress.armed {
            progress.armed = true;
            if !progress.lane.wait(seen, &self.observer, key.to_u64()) {
                self.observer.advanced(key.to_u64());
            }
        }
    }

    /// Lines up the lanes that have moved.
    pub(super) fn take_moved(&self, state: &mut State) {
        let moved = std::mem::take(&mut self.wakes.inner.lock().moved);
        for token in moved {
            let key = LaneKey::from_u64(token);
            if let Some(progress) = state.lanes.get_mut(&key) {
                progress.armed = false;
            }
            state.line_up(key, self.lane(key));
        }
    }

    /// A member's leases are free again, and those that wait are called.
    pub(super) fn remove_member(&self, state: &mut State, member: u64) -> bool {
        let Some(gone) = state.members.remove(&member) else { return false };
        for (key, lease) in gone.leases {
            state.free(key, lease);
        }
        state.forget_asks_if_nobody_is_hungry();
        self.wakes.call();
        true
    }

    /// A member is back on `session`, and `known` are the leases that it knows of. The others it was given in an answer that was lost with its
    /// connection: nobody reads those groups, and as long as the member lives nobody else would be given them. They are free again. Such an
    /// answer may still be made for a request that waits in the session of before, which nobody has seen end yet: so it is given nothing there
    /// any more.
    pub(super) fn came_back(&self, state: &mut State, member: u64, session: u64, known: &[u64]) {
        let Some(back) = state.members.get_mut(&member) else { return };
        if back.session > Some(session) {
            // It was said earlier, on a connection that was given up meanwhile.
            return;
        }
        back.session = Some(session);
        let known: BTreeSet<u64> = known.iter().copied().collect();
        let lost: Vec<(LaneKey, u64)> = back.leases.extract_if(.., |(_, lease)| !known.contains(lease)).collect();
        if lost.is_empty() {
            return;
        }
        tracing::debug!(application = %self.meta.name, member, leases = lost.len(), "a member was never told of leases");
        for (key, lease) in lost {
            state.free(key, lease);
        }
        self.wakes.call();
    }

    /// Ends the membership of everybody who was not heard of in time. How many.
    pub(super) fn expire(&self, state: &mut State, now_us: u64) -> u64 {
        let due = |(id, member): (&u64, &Member)| (member.expires_us() < now_us).then_some(*id);
        let due: Vec<u64> = state.members.iter().filter_map(due).collect();
        for &member in &due {
            tracing::info!(application = %self.meta.name, member, "a member was not heard of in time; its groups are free");
            self.remove_member(state, member);
        }
        due.len() as u64
    }

    /// Gives one group back. Whether the member had it.
    pub(super) fn release(&self, state: &mut State, member: u64, key: LaneKey, lease: u64) -> bool {
        let Some(holder) = state.members.get_mut(&member) else { return false };
        let Some(at) = holder.leases.iter().position(|held| *held == (key, lease)) else { return false };
        holder.leases.remove(at);
        state.free(key, lease);
        self.wakes.call();
        true
    }
}

impl State {
    fn known(&mut self, member: u64) -> Result<&mut Member, Failure> {
        self.members.get_mut(&member).ok_or_else(|| {
            let message = format!("member {member} is not known: its lease ran out, or the node was restarted");
            Failure::new(Status::UnknownMember, message)
        })
    }

    /// A member is heard of.
    pub(super) fn hear(&mut self, member: u64, now_us: u64, now_ms: i64) -> Result<&mut Member, Failure> {
        let found = self.known(member)?;
        found.heard_us = found.heard_us.max(now_us);
        found.heard_ms = now_ms;
        Ok(found)
    }

    /// A new member.
    pub(super) fn add_member(
        &mut self,
        id: u64,
        name: &str,
        address: String,
        lease_ms: u32,
        (now_us, now_ms): (u64, i64),
    ) {
        let member = Member {
            name: name.to_owned(),
            address,
            lease_ms,
            joined_ms: now_ms,
            heard_ms: now_ms,
            heard_us: now_us,
            leases: Vec::new(),
            session: None,
            asked: 0,
            hungry_until_us: 0,
        };
        self.members.insert(id, member);
    }

    /// Lines up the lanes of a streamlet that were ever used.
    pub(super) fn line_up_streamlet(&mut self, streamlet: &Streamlet) {
        for lane in streamlet.lanes() {
            self.line_up(LaneKey { streamlet: streamlet.id(), lane: lane.id() }, Some(lane));
        }
    }

    /// A lane may have something to give. `lane` makes it known if it is not.
    pub(super) fn line_up(&mut self, key: LaneKey, lane: Option<&Arc<Lane>>) {
        let progress = match (self.lanes.entry(key), lane) {
            (std::collections::btree_map::Entry::Occupied(known), _) => known.into_mut(),
            (std::collections::btree_map::Entry::Vacant(free), Some(lane)) => {
                free.insert(Progress::new(Arc::clone(lane)))
            }
            _ => return,
        };
        if !progress.in_line {
            progress.in_line = true;
            self.line.push_back(key);
        }
    }

    /// A lease has ended.
    fn free(&mut self, key: LaneKey, lease: u64) {
        let Some(progress) = self.lanes.get_mut(&key) else { return };
        let asked_of = progress.leases.iter().find(|l| l.id == lease && l.asked).map(|l| l.member);
        if progress.end_lease(lease) {
            self.leased -= 1;
            self.line_up(key, None);
        }
        if let Some(member) = asked_of.and_then(|member| self.members.get_mut(&member)) {
            member.asked -= 1;
        }
    }

    /// What each member gets if all get the same: rounded down, and up.
    fn shares(&self) -> (usize, usize) {
        let members = self.members.len().max(1);
        let groups = self.leased + self.line.len();
        (groups / members, groups.div_ceil(members))
    }

    fn is_hungry(&self, member: &Member, now_us: u64) -> bool {
        member.hungry_until_us > now_us && member.leases.len() < self.shares().0
    }

    /// How many groups a member may get now: as many as it wants, unless others are hungry; then up to its share.
    fn allowance(&self, ask: &Ask) -> usize {
        let others_hungry =
            self.members.iter().any(|(id, member)| *id != ask.member && self.is_hungry(member, ask.now_us));
        let held = self.members.get(&ask.member).map_or(0, |member| member.leases.len());
        let share = if others_hungry { self.shares().1.saturating_sub(held) } else { usize::MAX };
        ask.max_groups.min(share)
    }

    /// Remembers whether a member got what it asked for, and asks those that hold most to give back what the hungry lack.
    fn note_hunger(&mut self, ask: &Ask, given: &mut Given) {
        let Some(member) = self.members.get_mut(&ask.member) else { return };
        if !given.groups.is_empty() {
            member.hungry_until_us = 0;
            return;
        }
        let patience_us = ask.wait_us + HUNGRY_HEARTBEATS * u64::from(member.heartbeat_ms()) * 1000;
        member.hungry_until_us = ask.now_us + patience_us;
        let share = self.shares().0;
        let lacking = |member: &Member| {
            if member.hungry_until_us > ask.now_us { share.saturating_sub(member.leases.len()) } else { 0 }
        };
        let wanted: usize = self.members.values().map(lacking).sum();
        let mut asked: usize = self.members.values().map(|member| member.asked).sum();
        while asked < wanted && self.ask_one_back(share) {
            asked += 1;
            given.releases_asked += 1;
        }
    }

    /// Asks the member that holds most for its youngest group, if that leaves it its share.
    fn ask_one_back(&mut self, share: usize) -> bool {
        let keeps = |member: &Member| member.leases.len() - member.asked;
        let Some((_, donor)) = self.members.iter_mut().max_by_key(|(id, member)| (keeps(member), Reverse(**id))) else {
            return false;
        };
        if keeps(donor) <= share {
            return false;
        }
        for (key, id) in donor.leases.iter().rev() {
            let lease = self.lanes.get_mut(key).and_then(|p| p.leases.iter_mut().find(|lease| lease.id == *id));
            if let Some(lease) = lease
                && !lease.asked
            {
                lease.asked = true;
                donor.asked += 1;
                return true;
            }
        }
        false
    }

    /// The leases that a member is asked to give back, as long as somebody waits for them.
    pub(super) fn asked_back(&mut self, member: u64, now_us: u64) -> Vec<u64> {
        if !self.members.values().any(|other| self.is_hungry(other, now_us)) {
            self.forget_asks();
        }
        let Some(found) = self.members.get(&member).filter(|found| found.asked > 0) else { return Vec::new() };
        let asked = |(key, id): &(LaneKey, u64)| {
            let lease = self.lanes.get(key)?.leases.iter().find(|lease| lease.id == *id)?;
            lease.asked.then_some(lease.id)
        };
        found.leases.iter().filter_map(asked).collect()
    }

    fn forget_asks_if_nobody_is_hungry(&mut self) {
        if self.members.values().all(|member| member.hungry_until_us == 0) {
            self.forget_asks();
        }
    }

    fn forget_asks(&mut self) {
        let State { members, lanes, .. } = self;
        for member in members.values_mut().filter(|member| member.asked > 0) {
            member.asked = 0;
            for (key, id) in &member.leases {
                if let Some(progress) = lanes.get_mut(key) {
                    progress.leases.iter_mut().filter(|lease| lease.id == *id).for_each(|lease| lease.asked = false);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Default)]
    struct Session(AtomicU64);

    impl Observer for Session {
        fn advanced(&self, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn sessions_that_are_gone_are_forgotten_and_those_that_wait_are_called() {
        let wakes = Wakes::default();
        let session = Arc::new(Session::default());
        let observer: Arc<dyn Observer> = Arc::clone(&session) as _;
        for _ in 0..10_000 {
            wakes.register(&observer, 1);
            let gone: Arc<dyn Observer> = Arc::new(Session::default());
            wakes.register(&gone, 1);
        }
        let waiting = wakes.inner.lock().waiting.len();
        assert!(waiting <= 32, "{waiting}");
        wakes.call();
        let calls = session.0.swap(0, Ordering::Relaxed);
        assert!(calls > 0);
        wakes.register(&observer, 1);
        wakes.register(&observer, 2);
        wakes.unregister(&observer, 1);
        wakes.call();
        assert_eq!(session.0.load(Ordering::Relaxed), 1, "the other request waits");
    }
}
