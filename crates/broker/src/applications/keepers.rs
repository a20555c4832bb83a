//! Where progress is recorded: by a node that is alone in its system stream, in a cluster with each streamlet, in its progress lane
//! ([`LaneId::PROGRESS`](kera_format::LaneId::PROGRESS), `docs/decisions/0017-applications-in-a-cluster.md`).
//!
//! A streamlet's progress is read when this node becomes its owner, step by step and without waiting: what is not here yet, because it comes
//! from disk or from the backups of a lost owner, is waited for by the requests that need it. Until all of it is read nothing of the
//! streamlet is leased: whoever would start without it could start too early.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_format::applications::{Entry, LaneKey};
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_log::{Lane, LaneVersion, Stream, Streamlet};
use kera_protocol::placement::KeptGroup;
use kera_protocol::{Owner, Status, StreamletState};
use parking_lot::{Mutex, RwLock};

use super::journal::Journal;
use super::replay::Replay;
use crate::acks::Answer;
use crate::failure::Failure;
use crate::handover::kept_group;

/// Bytes of a progress lane that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// A progress lane is written anew when so many bytes were added to it.
pub(super) const COPY_BYTES: u64 = 256 << 10;

/// A streamlet of this node in a cluster, and what is recorded of it.
pub(super) struct Kept {
    pub(super) place: Arc<Streamlet>,
    /// The owner epoch in which it is this node's.
    pub(super) epoch: u32,
    /// The groups that earlier owners have, by lane and in their order.
    older: RwLock<OlderGroups>,
    pub(super) journal: Journal,
    /// What is read so far, until all is.
    pub(super) reading: Mutex<Option<Reading>>,
    is_read: AtomicBool,
}

/// Groups by lane and id.
pub(super) type OlderGroups = BTreeMap<LaneId, BTreeMap<GroupId, KeptGroup>>;

/// How far a progress lane is read.
pub(super) struct Reading {
    at: Cursor,
    pub(super) replay: Replay,
    /// What the last owner handed over.
    handed: Option<StreamletState>,
}

/// A streamlet of this node of which it is not known how far applications are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unread {
    /// It is opened, and what is recorded of it is still being read, or it is not known where applications begin in it.
    Opened(StreamletId),
    /// The coordinators name this node for it, and it is still to be opened.
    Named(StreamletId),
}

/// What a step of reading has come to.
pub(super) enum Step {
    All,
    /// It goes on when the lane moves.
    Wait(Arc<Lane>, LaneVersion),
}

impl Reading {
    /// Begins where the lane begins. If that is behind what was handed over, a copy of all of it has replaced that, but for the groups that
    /// other nodes have: one that came back may hold them since the copy was made. Those that nobody has any more are forgotten later.
    fn begin(place: &Streamlet, handed: Option<StreamletState>) -> Reading {
        let mut reading = Reading { at: Cursor::default(), replay: Replay::default(), handed };
        let first = place.used_progress_lane().map_or(0, |lane| lane.earliest().1);
        let is_needed = |state: &&StreamletState| {
            let lane = state.lanes.iter().find(|lane| lane.lane == LaneId::PROGRESS);
            first <= lane.map_or(0, |lane| lane.next_ordinal)
        };
        if let Some(state) = reading.handed.as_ref() {
            let mut told = Replay::default();
            told.chunks(&state.progress);
            told.take_kept(state);
            reading.replay = if is_needed(&state) { told } else { Replay { older: told.older, ..Replay::default() } };
        }
        reading
    }

    /// Reads on, without waiting.
    ///
    /// What is read may go meanwhile: this node has owned the streamlet before, a copy that it made then has become durable, and retention
    /// takes what that has replaced. The copy lies behind it and says all of it, so it is begun anew: what was read before may tell
    /// of what the copy leaves out because it is gone.
    pub(super) fn step(&mut self, place: &Streamlet) -> Result<Step, Failure> {
        match self.read_on(place) {
            Err(failure) if failure.status == Status::CursorGone => {
                *self = Reading::begin(place, self.handed.take());
                self.read_on(place)
            }
            read => read,
        }
    }

    fn read_on(&mut self, place: &Streamlet) -> Result<Step, Failure> {
        let Some(lane) = place.used_progress_lane() else { return Ok(Step::All) };
        loop {
            let seen = lane.version();
            // What was appended and is not durable yet may have been told to nobody, and may still become durable: also while this reads what is in front of it.
            let is_whole = lane.durable_ordinal() >= lane.next_ordinal();
            let outcome = lane.read(self.at, READ_BYTES, true)?;
            outcome.data.iter().for_each(|data| self.replay.chunks(data));
            self.at = outcome.next;
            if outcome.loading {
                return Ok(Step::Wait(Arc::clone(lane), outcome.version));
            }
            if outcome.at_durable_end {
                return Ok(if is_whole { Step::All } else { Step::Wait(Arc::clone(lane), seen) });
            }
        }
    }
}

impl Kept {
    /// Groups that earlier owners have, as they were recorded.
    pub(super) fn join_older(&self, older: OlderGroups) {
        let mut known = self.older.write();
        older.into_iter().for_each(|(lane, groups)| known.entry(lane).or_default().extend(groups));
    }

    /// Groups that an earlier owner has again.
    pub(super) fn add_older(&self, left: &[(LaneId, Vec<kera_log::GroupInfo>)]) {
        let groups =
            |groups: &[kera_log::GroupInfo]| groups.iter().map(|group| (group.id, kept_group(group))).collect();
        self.join_older(left.iter().map(|(lane, of)| (*lane, groups(of))).collect());
    }

    pub(super) fn older_of(&self, lane: LaneId) -> Vec<KeptGroup> {
        self.older.read().get(&lane).map_or_else(Vec::new, |groups| groups.values().copied().collect())
    }

    pub(super) fn lanes_with_older(&self) -> Vec<LaneId> {
        self.older.read().iter().filter(|(_, groups)| !groups.is_empty()).map(|(lane, _)| *lane).collect()
    }

    /// Forgets of older groups those that nobody else has any more. Whether there were any.
    pub(super) fn prune_older(&self, owner: &Owner, me: u32) -> bool {
        let is_elsewhere = |group: &GroupId| {
            let first = owner.older.first().map_or(u32::MAX, |older| older.first_epoch);
            (first..owner.epoch).contains(&group.epoch()) && owner.holder(*group) != me
        };
        let mut pruned = false;
        for groups in self.older.write().values_mut() {
            let before = groups.len();
            groups.retain(|group, _| is_elsewhere(group));
            pruned |= groups.len() < before;
        }
        pruned
    }

    /// The groups that earlier owners have, as they are recorded.
    pub(super) fn records_of_older(&self) -> Vec<Entry> {
        let (older, streamlet) = (self.older.read(), self.place.id());
        let entry = |lane: LaneId, kept: &KeptGroup| kept_entry(LaneKey { streamlet, lane }, kept);
        older.iter().flat_map(|(lane, groups)| groups.values().map(move |kept| entry(*lane, kept))).collect()
    }

    /// The first groups that are here, as the next owner records them.
    pub(super) fn records_of_own(&self, most: usize) -> Vec<Entry> {
        let of_lane = |lane: &Arc<Lane>| {
            let key = LaneKey { streamlet: self.place.id(), lane: lane.id() };
            lane.groups(GroupId::NONE, most).into_iter().map(move |group| kept_entry(key, &kept_group(&group)))
        };
        self.place.lanes().flat_map(of_lane).take(most).collect()
    }

    pub(super) fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Acquire)
    }

    /// Whether its streamlet has not been opened in a later owner epoch since.
    pub(super) fn is_of_present_epoch(&self) -> bool {
        self.epoch == self.place.owner_epoch()
    }
}

/// A group that another node has, as it is recorded.
pub(super) fn kept_entry(lane: LaneKey, kept: &KeptGroup) -> Entry {
    let KeptGroup { group, first_ordinal, next_ordinal } = *kept;
    Entry::Kept { lane, group, first_ordinal, next_ordinal }
}

/// Entries that were to be recorded.
pub(super) struct Recorded {
    /// For each of them, in their order: whether it is.
    pub(super) done: Vec<bool>,
    /// Whether anything is, with any streamlet.
    pub(super) any: bool,
    /// Why the others are not: the first reason.
    pub(super) failure: Option<Failure>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Keepers {
    /// The system stream.
    pub(super) node: Journal,
    in_cluster: AtomicBool,
    kept: RwLock<BTreeMap<StreamId, BTreeMap<StreamletId, Arc<Kept>>>>,
    /// Those of them that are not read yet, few of very many. Changed under the lock of all.
    unread: RwLock<BTreeMap<(StreamId, StreamletId), Arc<Kept>>>,
}

#[cfg(test)]
thread_local! {
    /// How many streamlets were looked at to read on what is recorded of them.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// How many were looked at for those that something is recorded with.
    pub(super) static FOUND_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// All streamlets of a stream, or of all streams.
fn streamlets_of(stream: Option<StreamId>) -> RangeInclusive<(StreamId, StreamletId)> {
    let (first, last) = (stream.unwrap_or(StreamId(0)), stream.unwrap_or(StreamId(u64::MAX)));
    (first, StreamletId(0))..=(last, StreamletId(u32::MAX))
}

impl Keepers {
    /// Progress is kept with the streamlets.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.in_cluster.load(Ordering::Acquire)
    }

    /// From here on it is.
    pub(super) fn join_cluster(&self) {
        self.in_cluster.store(true, Ordering::Release);
    }

    /// Whether applications are served on a streamlet: how far they are is known.
    pub(super) fn serves(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        !self.is_in_cluster() || self.get(stream, streamlet).is_some_and(|kept| kept.is_read())
    }

    pub(super) fn get(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Kept>> {
        self.kept.read().get(&stream)?.get(&streamlet).cloned()
    }

    /// All that are this node's; of one stream, in the order of their numbers.
    pub(super) fn of_stream(&self, stream: StreamId) -> Vec<Arc<Kept>> {
        self.kept.read().get(&stream).map_or_else(Vec::new, |of| of.values().cloned().collect())
    }

    /// A streamlet of a stream of which is not known what is recorded: one that is kept here and not read, or one of `owned`, each with its owner
    /// epoch, that is not kept in that epoch. Only those that are `asked` for.
    pub(super) fn unread_of(
        &self,
        stream: StreamId,
        owned: &[(StreamletId, u32)],
        asked: impl Fn(StreamletId) -> bool,
    ) -> Option<Unread> {
        let kept = self.kept.read();
        let of = kept.get(&stream);
        let is_kept = |streamlet: &StreamletId, epoch: u32| {
            of.and_then(|of| of.get(streamlet)).is_some_and(|one| one.epoch == epoch)
        };
        let unread = of.into_iter().flatten().find(|(streamlet, one)| asked(**streamlet) && !one.is_read());
        let unopened = owned.iter().find(|(streamlet, epoch)| asked(*streamlet) && !is_kept(streamlet, *epoch));
        let unopened = unopened.map(|(streamlet, _)| Unread::Named(*streamlet));
        unread.map(|(streamlet, _)| Unread::Opened(*streamlet)).or(unopened)
    }

    /// How many lanes of a stream may come to be used at this node.
    pub(super) fn lanes_of(&self, stream: &Stream) -> u64 {
        let streamlets = match self.is_in_cluster() {
            true => self.kept.read().get(&stream.id()).map_or(0, BTreeMap::len) as u64,
            false => u64::from(stream.streamlet_count()),
        };
        streamlets * u64::from(stream.options().lanes)
    }

    pub(super) fn all(&self) -> Vec<(StreamId, Arc<Kept>)> {
        let kept = self.kept.read();
        kept.iter().flat_map(|(stream, of)| of.values().map(|one| (*stream, Arc::clone(one)))).collect()
    }

    /// Those that are not read yet; of one stream.
    pub(super) fn unread(&self, stream: Option<StreamId>) -> Vec<(StreamId, Arc<Kept>)> {
        let unread = self.unread.read();
        let found = unread.range(streamlets_of(stream)).map(|((stream, _), one)| (*stream, Arc::clone(one)));
        #[cfg(test)]
        let found = found.inspect(|_| LOOKED_AT.set(LOOKED_AT.get() + 1));
        found.collect()
    }

    /// A streamlet is this node's. False: it has been in this owner epoch.
    pub(super) fn add(&self, stream: StreamId, place: &Arc<Streamlet>, state: Option<&StreamletState>) -> bool {
        let mut kept = self.kept.write();
        let (of, epoch) = (kept.entry(stream).or_default(), place.owner_epoch());
        if of.get(&place.id()).is_some_and(|known| known.epoch == epoch) {
            return false;
        }
        let reading = Reading::begin(place, state.cloned());
        let one = Arc::new(Kept {
            place: Arc::clone(place),
            epoch,
            older: RwLock::default(),
            journal: Journal::default(),
            reading: Mutex::new(Some(reading)),
            is_read: AtomicBool::new(false),
        });
        of.insert(place.id(), Arc::clone(&one));
        self.unread.write().insert((stream, place.id()), one);
        true
    }

    /// A streamlet was this node's in an earlier owner epoch until now. False: it was not, or is in this one already.
    pub(super) fn remove_earlier(&self, stream: StreamId, place: &Streamlet) -> bool {
        let mut kept = self.kept.write();
        let of = kept.get_mut(&stream);
        let is_earlier = |known: &Arc<Kept>| known.epoch != place.owner_epoch();
        let Some(of) = of.filter(|of| of.get(&place.id()).is_some_and(is_earlier)) else { return false };
        of.remove(&place.id());
        self.unread.write().remove(&(stream, place.id()));
        true
    }

    /// A streamlet is another node's. Whether it was this one's.
    pub(super) fn remove(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        let mut kept = self.kept.write();
        let Some(of) = kept.get_mut(&stream) else { return false };
        let gone = of.remove(&streamlet);
        if of.is_empty() {
            kept.remove(&stream);
        }
        self.unread.write().remove(&(stream, streamlet));
        gone.is_some()
    }

    /// A stream is gone.
    pub(super) fn remove_stream(&self, stream: StreamId) {
        let mut kept = self.kept.write();
        kept.remove(&stream);
        self.unread.write().extract_if(streamlets_of(Some(stream)), |_, _| true).for_each(drop);
    }

    /// All of a streamlet's progress was read: what changes is recorded from here on. False: it is this node's no more. `reading` was
    /// taken out of it under its lock.
    pub(super) fn open_read(&self, stream: StreamId, one: &Arc<Kept>, bytes: u64) -> bool {
        let kept = self.kept.write();
        let is_current = is_current(&kept, stream, one);
        if is_current {
            one.journal.open_progress(stream, &one.place, bytes);
        }
        is_current
    }

    /// Each application has what was read: from here on it is served.
    pub(super) fn serve(&self, stream: StreamId, one: &Arc<Kept>) {
        let kept = self.kept.write();
        if is_current(&kept, stream, one) {
            one.is_read.store(true, Ordering::Release);
            self.unread.write().remove(&(stream, one.place.id()));
        }
    }

    /// Refuses while nothing can be recorded.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        if self.is_in_cluster() { Ok(()) } else { self.node.check_open() }
    }

    /// Records what changes about an application: positions with their streamlets; that it exists or is gone with each of the streamlets that
    /// are read.
    pub(super) fn record(&self, name: &str, stream: StreamId, entries: &[Entry], now_ms: i64) -> Recorded {
        let mut recorded = Recorded { done: vec![true; entries.len()], any: false, failure: None };
        if !self.is_in_cluster() {
            let written = self.node.append(name, stream, entries, now_ms);
            recorded.done[written.entries..].fill(false);
            (recorded.any, recorded.failure) = (written.entries > 0, written.failure);
            return recorded;
        }
        let mut by_streamlet: BTreeMap<StreamletId, Vec<usize>> = BTreeMap::new();
        let kept = self.of_stream(stream);
        let of_all = entries.iter().any(|entry| streamlet_of(entry).is_none());
        for one in kept.iter().filter(|one| of_all && one.is_read()) {
            by_streamlet.insert(one.place.id(), Vec::new());
        }
        for (at, entry) in entries.iter().enumerate() {
            match streamlet_of(entry) {
                Some(streamlet) => by_streamlet.entry(streamlet).or_default().push(at),
                None => by_streamlet.values_mut().for_each(|of| of.push(at)),
            }
        }
        for (streamlet, of) in by_streamlet {
            let wanted: Vec<Entry> = of.iter().map(|at| entries[*at]).collect();
            let id_of = |one: &Arc<Kept>| {
                #[cfg(test)]
                FOUND_AT.set(FOUND_AT.get() + 1);
                one.place.id()
            };
            let written = match kept.binary_search_by_key(&streamlet, id_of) {
                Ok(at) => kept[at].journal.append(name, stream, &wanted, now_ms),
                Err(_) => Journal::default().append(name, stream, &wanted, now_ms),
            };
            of[written.entries..].iter().for_each(|at| recorded.done[*at] = false);
            recorded.any |= written.entries > 0;
            recorded.failure = recorded.failure.or(written.failure);
        }
        recorded
    }

    /// Takes back what was recorded of an application that is not made after all. Nobody has heard of it, and nobody else records anything under its name
    /// meanwhile.
    ///
    /// One streamlet may have taken what another one did not, as one that is being let go. Whoever owns the first one next would make the application:
    /// one that was refused would be there, with a start that nobody may want any more. A copy without it does not help, for what it replaces is still
    /// read as long as it has not gone. Only where the record that takes it back is not taken either is a copy all that is left.
    pub(super) fn take_back(&self, name: &str, stream: StreamId, now_ms: i64) {
        let take_back = |journal: &Journal| {
            if journal.append(name, stream, &[Entry::Deleted], now_ms).failure.is_some() {
                journal.want_copy();
            }
        };
        if !self.is_in_cluster() {
            return take_back(&self.node);
        }
        self.of_stream(stream).iter().filter(|one| one.is_read()).for_each(|one| take_back(&one.journal));
    }

    /// Has an answer wait for everything that was recorded so far of some streamlets, also by others: what a request repeats may not be
    /// durable yet. A node that is alone waits for all that it has recorded.
    ///
    /// `before`: those that were this node's when the request was begun. One that has left since still has what the request recorded with it, and if that never
    /// becomes durable the request is not answered as if it had.
    pub(super) fn wait_for(
        &self,
        answer: &mut Answer,
        before: &[Arc<Kept>],
        stream: StreamId,
        of: impl Fn(StreamletId) -> bool,
    ) {
        if !self.is_in_cluster() {
            return self.node.wait_for_all(answer);
        }
        let now = self.of_stream(stream);
        for one in before.iter().chain(&now).filter(|one| of(one.place.id())) {
            one.journal.wait_for_all(answer);
        }
    }
}

fn is_current(kept: &BTreeMap<StreamId, BTreeMap<StreamletId, Arc<Kept>>>, stream: StreamId, one: &Arc<Kept>) -> bool {
    kept.get(&stream).and_then(|of| of.get(&one.place.id())).is_some_and(|now| Arc::ptr_eq(now, one))
}

/// The streamlet that an entry is about; `None`: it is about the application.
fn streamlet_of(entry: &Entry) -> Option<StreamletId> {
    match entry {
        Entry::Exists(_) | Entry::Deleted => None,
        Entry::Base { lane, .. } | Entry::Ahead { lane, .. } | Entry::Kept { lane, .. } => Some(lane.streamlet),
    }
}
