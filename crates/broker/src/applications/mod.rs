//! Applications: named sets of consumers that share a stream's groups.
//!
//! Members hold leases on groups, read them, and commit how far they are; positions are kept in a stream of the system's
//! own, in a cluster with the streamlets ([`keepers`]), and are durable before a commit is acknowledged (thesis 6.2.3 has the broker remember the last group it gave; the
//! leases and positions are what makes that safe). Called by sessions on their I/O threads and by the maintenance thread.
//! One lock per application, held while its offsets are appended, never while anything waits.

mod application;
mod commit;
mod describe;
mod journal;
mod keepers;
mod progress;
mod replay;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_format::applications::{Entry, LaneKey, StartAt};
use kera_format::chunk::Chunks;
use kera_format::{ApplicationId, Compression, Durability, LaneId, Records, StreamId, StreamOptions, StreamletId};
use kera_log::{Lane, LaneVersion, Observer, Stream, Streamlet};
use kera_protocol::placement::KeptGroup;
use kera_protocol::{ApplicationSummary, Owner, Status, StreamletState};
use parking_lot::RwLock;

pub use replay::ReplayReport;
pub(crate) use requests::attempt;

use crate::broker::Broker;
use crate::failure::Failure;
use crate::groups::check_visible;
use crate::handover::why_no_more;
use application::{Application, Meta};
use journal::Chunked;
use keepers::{Keepers, Kept, Reading, Step, Unread, kept_entry};
use progress::LANE_BYTES;
use replay::{Replay, Replayed};

/// The name of the system stream that keeps applications and their offsets.
pub const APPLICATIONS_STREAM: &str = "_kera.applications";
/// At most so many groups of a streamlet are told to its next owner in records of its applications.
const GROUPS_ALONG_MAX: usize = 400;
/// Every stream has it.
const FIRST_STREAMLET: StreamletId = StreamletId(0);
/// So many times what the owner of a stream's first streamlet has room for is the most of an owner of others.
const OTHERS_TIMES: u64 = 4;
/// No stream has this id.
const NO_STREAM: u64 = u64::MAX;

/// The options of [`APPLICATIONS_STREAM`]: one lane, durable, trimmed by the broker itself.
pub fn applications_stream_options() -> StreamOptions {
    StreamOptions {
        streamlets: 1,
        lanes: 1,
        segments_per_group: 1,
        segment_bytes_max: 1 << 20,
        durability: Durability::Power,
        retention_ms: None,
        retention_bytes: None,
        retention_consumed: true,
        ..StreamOptions::default()
    }
}

/// How many there are now, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApplicationCounts {
    /// Applications.
    pub applications: u64,
    /// Members of all.
    pub members: u64,
    /// Groups leased.
    pub leases: u64,
}

#[derive(Default)]
struct Registry {
    by_id: BTreeMap<u64, Arc<Application>>,
    by_name: BTreeMap<StreamId, BTreeMap<String, Arc<Application>>>,
    /// Streams whose applications have become fewer since the floors were last set.
    orphaned: BTreeSet<StreamId>,
    /// What the node kept while it was alone, of streamlets that it has not come to own in the cluster yet.
    from_before: BTreeMap<(String, StreamId), Replayed>,
}

impl Registry {
    fn insert(&mut self, application: Arc<Application>) {
        let names = self.by_name.entry(application.meta.stream).or_default();
        names.insert(application.meta.name.clone(), Arc::clone(&application));
        self.by_id.insert(application.meta.id.0, application);
    }

    fn of_stream(&self, stream: StreamId) -> Vec<Arc<Application>> {
        self.by_name.get(&stream).map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    /// Takes all applications of a stream out.
    fn take_stream(&mut self, stream: StreamId) -> Vec<Arc<Application>> {
        let names = self.by_name.remove(&stream).unwrap_or_default();
        names.values().for_each(|application| drop(self.by_id.remove(&application.meta.id.0)));
        names.into_values().collect()
    }
}

/// All applications of the node.
pub(crate) struct Applications {
    registry: RwLock<Registry>,
    keepers: Arc<Keepers>,
    system_stream: AtomicU64,
    /// Numbers of applications, members and leases that this process has given out.
    given: AtomicU64,
    /// Committed offsets are to be written anew and cannot be.
    copies_fail: AtomicBool,
}

impl Default for Applications {
    fn default() -> Self {
        Applications {
            registry: RwLock::default(),
            keepers: Arc::default(),
            system_stream: AtomicU64::new(NO_STREAM),
            given: AtomicU64::new(1),
            copies_fail: AtomicBool::new(false),
        }
    }
}

impl Applications {
    /// Whether clients must not write to a stream.
    #[inline]
    pub(crate) fn is_system_stream(&self, stream: StreamId) -> bool {
        stream.0 == self.system_stream.load(Ordering::Relaxed)
    }

    /// Reads everything from the system stream, then takes requests.
    pub(crate) fn open(&self, broker: &Broker, stream: &Stream) -> Result<ReplayReport, Failure> {
        self.system_stream.store(stream.id().0, Ordering::Relaxed);
        stream.keep_room();
        let replay = Replay::read(&*journal::lane(stream)?)?;
        let mut report = replay.report;
        for ((name, of), replayed) in replay.applications {
            let (Some(record), Some(stream)) = (replayed.exists, broker.log.stream(of)) else {
                report.dropped += 1;
                tracing::info!(application = %name, stream = %of, "an application without a stream is dropped");
                continue;
            };
            let meta = Meta::from_record(name, of, record);
            let application = self.application(broker, meta, stream);
            let mut state = application.state.lock();
            for (key, positions) in replayed.lanes {
                let Some(lane) = application.lane(key) else { continue };
                report.positions += positions.ahead.len() as u64 + u64::from(positions.base.is_some());
                state.line_up(key, Some(lane));
                if let Some(progress) = state.lanes.get_mut(&key) {
                    (progress.base, progress.committed) = (positions.base, positions.base.is_some());
                    progress.ahead = positions.ahead;
                }
                state.dirty.insert(key);
            }
            drop(state);
            application.line_up_all();
            report.applications += 1;
            self.insert(Arc::new(application));
        }
        self.keepers.node.open(stream, report.bytes)?;
        Ok(report)
    }

    /// How many there are now.
    pub(crate) fn counts(&self) -> ApplicationCounts {
        let mut counts = ApplicationCounts::default();
        for application in self.all() {
            let state = application.state.lock();
            counts.applications += 1;
            counts.members += state.members.len() as u64;
            counts.leases += state.leased as u64;
        }
        counts
    }

    /// A number that neither this process nor an earlier one has given out.
    fn new_id(&self, broker: &Broker) -> u64 {
        u64::from(broker.config.epoch) << 32 | self.given.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff
    }

    fn application(&self, broker: &Broker, meta: Meta, stream: Arc<Stream>) -> Application {
        Application::new(meta, stream, Arc::clone(&self.keepers), self.new_id(broker))
    }

    fn insert(&self, application: Arc<Application>) {
        self.registry.write().insert(application);
    }

    fn all(&self) -> Vec<Arc<Application>> {
        self.registry.read().by_id.values().cloned().collect()
    }

    fn of_stream(&self, stream: StreamId) -> Vec<Arc<Application>> {
        self.registry.read().of_stream(stream)
    }

    fn by_id(&self, id: ApplicationId) -> Result<Arc<Application>, Failure> {
        let found = self.registry.read().by_id.get(&id.0).cloned();
        found.filter(|found| !found.is_deleted()).ok_or_else(|| does_not_exist(id))
    }

    fn by_name(&self, name: &str, stream: StreamId) -> Result<Arc<Application>, Failure> {
        let found = self.registry.read().by_name.get(&stream).and_then(|names| names.get(name)).cloned();
        found.filter(|found| !found.is_deleted()).ok_or_else(|| {
            let message = format!("stream {stream} has no application `{name}`");
            Failure::new(Status::UnknownApplication, message)
        })
    }

    /// Refuses another application of a stream if there is no memory for what all would know of lanes.
    ///
    /// Each knows of every lane of its stream that was ever used, whether or not anybody reads it: some thousand applications of some thousand lanes
    /// take gigabytes, and nothing else bounds that. All lanes that producers may use count, for once an application is there how far it is in them is
    /// never given up for room: were they counted when they are used, any number could be made before that.
    ///
    /// What is not made anew is never refused: applications come along with starts and with streamlets that move. But where a stream grows to a node
    /// its members come by themselves, and ask like those of a new one. They differ in that the stream's first streamlet was there before:
    /// its owner knows of every application, for members ask it first and come to the others when it has taken them, and so it decides, by what it
    /// has itself. As long as a node still reads what is known in one of its streamlets, who does not fit may be one that there is, and is told to come back. Other owners take
    /// whoever comes up to [`OTHERS_TIMES`] as much: there is a bound for those as well who ask all owners at once, as earlier clients do.
    /// The first application of a stream is always made: one for each stream takes a tenth of what the lanes themselves take.
    fn check_room(&self, broker: &Broker, registry: &Registry, stream: &Stream) -> Result<(), Failure> {
        let bytes_max = broker.config.applications_bytes_max;
        if !registry.by_name.contains_key(&stream.id()) {
            return Ok(());
        }
        let of_stream = |names: &BTreeMap<String, Arc<Application>>| {
            let lanes = names.values().next().map_or(0, |one| self.keepers.lanes_of(&one.stream));
            lanes.saturating_mul(names.len() as u64)
        };
        let others = registry.by_name.values().map(of_stream).fold(0, u64::saturating_add);
        let count = others.saturating_add(self.keepers.lanes_of(stream));
        let is_first = !self.keepers.is_in_cluster() || self.keepers.get(stream.id(), FIRST_STREAMLET).is_some();
        let (bytes_max, share) = match is_first {
            true => (bytes_max, "a 16th of arena.bytes, or 32 MiB"),
            false => (
                bytes_max.saturating_mul(OTHERS_TIMES),
                "a quarter of arena.bytes, or 128 MiB, at a node that does not own streamlet 0 of the stream",
            ),
        };
        let limit = bytes_max / LANE_BYTES;
        if count <= limit {
            return Ok(());
        }
        if let Some(unread) = self.unread_of(broker, stream.id(), &[]) {
            return Err(unread);
        }
        let made = match is_first {
            true => "",
            false => {
                "; the owner of streamlet 0, which may have more room, is asked first, and where it has made this application it keeps it until \
                 `kera application delete`"
            }
        };
        let message = format!(
            "lanes of their streams, counted for each application of this node, would be {count}, the limit is {limit} ({bytes_max} bytes: \
             {share}); delete applications that are not used any more, or give the node a larger arena{made}"
        );
        Err(Failure::new(Status::LimitReached, message))
    }

    /// Finds an application, or makes it. The second value is whether it was made; it is then in the journal.
    fn find_or_create(
        &self,
        broker: &Broker,
        name: &str,
        stream: &Arc<Stream>,
        start: kera_protocol::Start,
    ) -> Result<(Arc<Application>, bool), Failure> {
        if !kera_format::limits::name_is_valid(name) {
            let message = "application must be 1 to 249 of the characters a-z A-Z 0-9 . _ -";
            return Err(Failure::new(Status::InvalidName, message));
        }
        self.keepers.check_open()?;
        // Held to the end, so that one name is made once; makers are rare, and the write takes microseconds.
        let mut registry = self.registry.write();
        // The stream may have gone since whoever asks has looked for it. It is marked as deleted before its applications are taken out under this lock: one that
        // was made behind that would stay, counted and listed, and nobody could delete it.
        if stream.is_deleted() {
            return Err(broker.unknown_stream(stream.id()));
        }
        if let Some(found) = registry.by_name.get(&stream.id()).and_then(|names| names.get(name))
            && !found.is_deleted()
        {
            return Ok((Arc::clone(found), false));
        }
        if self.keepers.is_in_cluster() && self.keepers.of_stream(stream.id()).is_empty() {
            return Err(broker.ownership.not_owner(stream.id(), StreamletId(0)));
        }
        let (count, limit) = (registry.by_id.len(), broker.config.applications_max);
        if count >= limit {
            return Err(Failure::limit("applications", count, limit));
        }
        self.check_room(broker, &registry, stream)?;
        let id = ApplicationId(self.new_id(broker));
        let now_ms = broker.clock.now_ms();
        let meta = Meta { id, name: name.to_owned(), stream: stream.id(), start, created_ms: now_ms };
        let application = Arc::new(self.application(broker, meta, Arc::clone(stream)));
        application.line_up_all();
        let mut entries = vec![application.meta.to_record()];
        if start == kera_protocol::Start::Latest {
            application.check_visible()?;
            entries.extend(application.start_at_latest(None, None, now_ms));
        }
        let recorded = self.keepers.record(name, stream.id(), &entries, now_ms);
        if let Some(failure) = recorded.failure {
            if recorded.any {
                self.keepers.take_back(name, stream.id(), now_ms);
            }
            return Err(failure);
        }
        registry.insert(Arc::clone(&application));
        drop(registry);
        // Lanes that got their first chunk while the application was not known yet. None of them is consumed now.
        application.line_up_all();
        application.mark_dirty();
        tracing::info!(application = %name, stream = %stream.id(), %id, "application made");
        Ok((application, true))
    }

    /// Takes an application out, with a record that says so.
    fn remove(&self, broker: &Broker, application: &Application, now_ms: i64) -> Result<(), Failure> {
        let mut registry = self.registry.write();
        let meta = &application.meta;
        if !registry.by_id.contains_key(&meta.id.0) {
            // Somebody else has taken it out since whoever asks has looked, and its name may be another one's by now.
            return Err(does_not_exist(meta.id));
        }
        // One that has come since whoever asks has looked would bring the application back.
        if let Some(unread) = self.unread_of(broker, meta.stream, &[]) {
            return Err(unread);
        }
        if let Err(failure) = application.end(now_ms) {
            // It lives on, also where the record was taken: whoever reads that begins with what is written behind it.
            let kept = self.keepers.of_stream(meta.stream);
            kept.iter().for_each(|kept| kept.journal.want_copy());
            return Err(failure);
        }
        registry.by_id.remove(&meta.id.0);
        if let Some(names) = registry.by_name.get_mut(&meta.stream) {
            names.remove(&meta.name);
            if names.is_empty() {
                registry.by_name.remove(&meta.stream);
            }
        }
        registry.orphaned.insert(meta.stream);
        Ok(())
    }

    /// The first of all applications, by name, at most so many.
    pub(crate) fn summaries(&self, limit: usize) -> Vec<ApplicationSummary> {
        let mut found = self.all();
        found.sort_unstable_by(|a, b| (&a.meta.name, a.meta.stream).cmp(&(&b.meta.name, b.meta.stream)));
        found.iter().take(limit).map(|found| found.summary()).collect()
    }

    /// A lane has got its first chunk ever.
    pub(crate) fn lane_started(&self, lane: &Arc<Lane>) {
        let key = LaneKey { streamlet: lane.streamlet_id(), lane: lane.id() };
        for application in self.of_stream(lane.stream_id()) {
            application.wakes.advanced(key.to_u64());
        }
    }

    /// A stream's options have changed: with another order other groups may be free.
    pub(crate) fn stream_altered(&self, stream: StreamId) {
        for application in self.of_stream(stream) {
            application.line_up_all();
            application.wakes.call();
        }
    }

    /// A stream is gone, and its applications with it.
    pub(crate) fn stream_deleted(&self, broker: &Broker, stream: StreamId) {
        // Their records are gone with it.
        self.keepers.remove_stream(stream);
        for application in self.of_stream(stream) {
            if let Err(failure) = self.remove(broker, &application, broker.clock.now_ms()) {
                tracing::warn!(application = %application.meta.name, %failure, "deletion is not recorded");
            }
        }
        // Without the record a restart drops an application all the same, because its stream does not exist. Until then it would be counted and listed,
        // and keep the stream's lanes in memory.
        let left = self.registry.write().take_stream(stream);
        left.iter().for_each(|application| application.delete());
    }

    /// Leases that run out, consumed floors, and a copy of all positions when their stream has grown.
    pub(crate) fn tick(&self, broker: &Broker) {
        let now_us = broker.clock.monotonic_us();
        let mut expired = 0;
        for application in self.all() {
            expired += application.expire(&mut application.state.lock(), now_us);
        }
        broker.metrics.members_expired.fetch_add(expired, Ordering::Relaxed);
        self.read_on(broker, None);
        self.set_floors(broker);
        self.copy_if_due(broker);
        self.copy_streamlets_if_due(broker);
    }

    /// Tells lanes below which cursor no application needs them any more.
    fn set_floors(&self, broker: &Broker) {
        let orphaned = std::mem::take(&mut self.registry.write().orphaned);
        let mut streams: BTreeSet<StreamId> = self.registry.read().by_name.keys().copied().collect();
        streams.extend(&orphaned);
        for id in streams {
            let Some(stream) = broker.log.stream(id) else { continue };
            let dirty = self.take_dirty(&stream, orphaned.contains(&id));
            self.set_floors_of(&stream, &dirty, broker.clock.now_ms());
        }
    }

    /// Takes the lanes of a stream of which the floors are to be set again; `all` that there are if some applications are gone.
    fn take_dirty(&self, stream: &Stream, all: bool) -> BTreeSet<LaneKey> {
        let mut dirty = BTreeSet::new();
        for application in self.of_stream(stream.id()) {
            dirty.append(&mut application.state.lock().dirty);
        }
        if all {
            let keys = |streamlet: &Arc<Streamlet>| {
                let of = streamlet.id();
                streamlet.lanes().map(|lane| LaneKey { streamlet: of, lane: lane.id() }).collect::<Vec<_>>()
            };
            dirty.extend(stream.streamlets().flat_map(keys));
        }
        dirty
    }

    /// Sets the floors of lanes, by the applications that there are now, not by those that the lanes were taken from: a streamlet may have been read since,
    /// and have brought along one that has not read what those have. The next turn would set a floor that it agrees with, but what is below the one
    /// of before may be gone by then.
    fn set_floors_of(&self, stream: &Stream, dirty: &BTreeSet<LaneKey>, now_ms: i64) {
        if dirty.is_empty() {
            return;
        }
        // Held to the end, so that no other one comes. None of them is deleted meanwhile either: a record behind that would bring it back.
        let registry = self.registry.read();
        let applications = registry.of_stream(stream.id());
        applications.iter().for_each(|application| application.settle(dirty, now_ms));
        for key in dirty {
            let lowest = applications.iter().map(|application| application.floor(*key)).min();
            if let Some(lane) = stream.streamlet(key.streamlet).and_then(|found| found.lane(key.lane)) {
                lane.set_consumed_floor(lowest);
            }
        }
    }

    /// Below which ordinal of a lane of this node no application needs anything, wherever it is. Nothing as long as it is not read how far they
    /// are, or there is none: then nothing goes for that reason.
    pub(crate) fn consumed_below(&self, stream: StreamId, key: LaneKey) -> Option<u64> {
        let is_read = self.keepers.get(stream, key.streamlet).is_some_and(|kept| kept.is_read());
        // What is not recorded yet is not said.
        let of = |application: Arc<Application>| {
            let state = application.state.lock();
            state.lanes.get(&key).filter(|found| found.joined.is_none()).and_then(|found| found.needs_from())
        };
        let needed: Option<Vec<u64>> = self.of_stream(stream).into_iter().map(of).collect();
        needed.filter(|_| is_read)?.into_iter().min()
    }

    /// Writes every application anew when the stream has grown enough, and lets go of what an earlier copy replaced.
    ///
    /// The copy replaces everything below where the stream's durable end was before the first application was copied: each
    /// application is copied under its lock, so whatever it had recorded before is in the copy, and whatever it records
    /// later stands behind it.
    fn copy_if_due(&self, broker: &Broker) {
        self.keepers.node.trim();
        let Some(from) = self.keepers.node.begin_copy(broker.config.snapshot_bytes) else { return };
        let before = self.keepers.node.added_bytes();
        let now_ms = broker.clock.now_ms();
        for application in self.all() {
            if let Some(failure) = application.write_copy(&self.keepers.node, None, now_ms).failure {
                self.keepers.node.give_up_copy();
                tracing::warn!(%failure, "committed offsets could not be written anew; tried again later");
                return;
            }
        }
        self.keepers.node.end_copy(from, before);
        broker.metrics.snapshots_written.fetch_add(1, Ordering::Relaxed);
        self.keepers.node.trim();
    }

    /// This node is part of a cluster: progress is kept with the streamlets that it owns. What it has kept so far goes to them when it
    /// comes to own them.
    pub(crate) fn join_cluster(&self) {
        if self.keepers.is_in_cluster() {
            return;
        }
        self.keepers.join_cluster();
        let mut registry = self.registry.write();
        let streams: Vec<StreamId> = registry.by_name.keys().copied().collect();
        let applications: Vec<_> = streams.into_iter().flat_map(|stream| registry.take_stream(stream)).collect();
        for application in applications {
            let kept = application.replayed();
            registry.from_before.insert((application.meta.name.clone(), application.meta.stream), kept);
            application.delete();
        }
    }

    /// A streamlet is this node's, in the owner epoch that it has: what is known of its applications is read, from its progress lane and
    /// from what the last owner handed over, if it did.
    pub(crate) fn streamlet_opened(
        &self,
        broker: &Broker,
        stream: StreamId,
        place: &Arc<Streamlet>,
        state: Option<&StreamletState>,
    ) {
        if !self.keepers.is_in_cluster() {
            return;
        }
        // Before it is added: from then on anybody may read on what is recorded of it, and that must not be forgotten again.
        if self.keepers.remove_earlier(stream, place) {
            self.forget_streamlet(stream, place.id());
        }
        if self.keepers.add(stream, place, state) {
            // The stream may have gone since whoever opens the streamlet has looked for it. What is kept is taken out once, behind that: what comes later would stay, not
            // read, and be looked at each second.
            if broker.log.stream(stream).is_none() {
                return self.keepers.remove_stream(stream);
            }
            self.read_on(broker, Some(stream));
        }
    }

    /// The older groups of a streamlet of this node are at fewer nodes than before, or were never elsewhere.
    pub(crate) fn older_changed(&self, stream: StreamId, streamlet: StreamletId, owner: &Owner, me: u32) {
        let Some(kept) = self.keepers.get(stream, streamlet).filter(|kept| kept.is_read()) else { return };
        if kept.prune_older(owner, me) {
            for application in self.of_stream(stream) {
                application.set_older(&kept);
                application.wakes.call();
            }
        }
    }

    /// Groups of a streamlet of this node have come to be at an earlier owner's again: they are leased like before, and recorded.
    pub(crate) fn older_left(
        &self,
        broker: &Broker,
        stream: StreamId,
        streamlet: StreamletId,
        left: &[(LaneId, Vec<kera_log::GroupInfo>)],
    ) {
        let Some(kept) = self.keepers.get(stream, streamlet) else { return };
        kept.add_older(left);
        if !kept.is_read() {
            return;
        }
        for application in self.of_stream(stream) {
            application.set_older(&kept);
            application.wakes.call();
        }
        kept.journal.want_copy();
        // If it cannot be now it is tried again, and told.
        let _ = self.copy_streamlet_if_due(broker, stream, &kept);
    }

    /// What to tell of a streamlet of a stream that is this node's by what it has been told, and of which it does not know how far applications are, if
    /// there is one among those that are `asked` for, or among all if none are. Who says something for all that this node owns of a stream looks here
    /// first, and what it says holds for those that it was named for before that. Who says something of some only is kept by none of the others: one
    /// that cannot be opened may stay so for long.
    ///
    /// That a streamlet is not kept here does not say that it is another node's: the coordinators name its next owner, and that one opens it when it
    /// has found out what a lost owner had, which may take long. Clients hear of it when it is named, and count what this node answers for that
    /// streamlet as well. An application that was deleted at all owners would come back with what is read of it then.
    fn unread_of(&self, broker: &Broker, stream: StreamId, asked: &[StreamletId]) -> Option<Failure> {
        if !self.keepers.is_in_cluster() {
            return None;
        }
        // The table first: one that is opened in between is kept by then.
        let owned = broker.ownership.owned(stream);
        Some(match self.keepers.unread_of(stream, &owned, of_asked(asked))? {
            Unread::Opened(streamlet) => still_read(stream, streamlet),
            Unread::Named(streamlet) => still_to_open(stream, streamlet),
        })
    }

    /// What is recorded of a streamlet in the owner epoch that it is in, when all of it is read; an error until then.
    ///
    /// A streamlet that is opened takes writes before it is looked at what is recorded of it. Whoever asks in between finds nothing, and that is not to say
    /// that nobody has read anything of it.
    fn read_of(&self, stream: StreamId, streamlet: StreamletId) -> Result<Arc<Kept>, Failure> {
        let found = self.keepers.get(stream, streamlet).filter(|kept| kept.is_of_present_epoch() && kept.is_read());
        found.ok_or_else(|| still_read(stream, streamlet))
    }

    /// Refuses while it is not known how far applications are in a streamlet, so that it cannot be handed over.
    pub(crate) fn check_known(&self, broker: &Broker, stream: StreamId, streamlet: StreamletId) -> Result<(), Failure> {
        if self.keepers.is_in_cluster() && self.read_of(stream, streamlet).is_err() {
            self.read_on(broker, Some(stream));
            self.read_of(stream, streamlet)?;
        }
        Ok(())
    }

    /// Refuses if more is known of how far applications are in a streamlet than the coordinators keep, so that it cannot be handed over. What is known, as
    /// it is [handed over](Applications::handed_over), but compressed if it had to be for that. `most`: how many bytes they keep of all that goes along, of which positions may be three quarters.
    pub(crate) fn check_size(&self, stream: StreamId, streamlet: StreamletId, most: usize) -> Result<Vec<u8>, Failure> {
        // There are lanes and producers as well, and commits between the look and the move.
        let room = most / 4 * 3;
        let progress = self.handed_over(stream, streamlet)?;
        if progress.len() <= room {
            return Ok(progress);
        }
        let fewer = compressed(stream, streamlet, &progress)?;
        let bytes = fewer.len();
        if bytes <= room {
            return Ok(fewer);
        }
        let message = format!(
            "positions of applications in streamlet {streamlet} of stream {stream} take {bytes} bytes, compressed, and {room} at \
             most go along when it moves{}; delete applications that are not used any more",
            why_no_more(most)
        );
        Err(Failure::new(Status::LimitReached, message))
    }

    /// Most bytes that what is recorded of a streamlet takes, uncompressed. Nothing if it is not this node's.
    pub(crate) fn recorded_bytes(&self, stream: StreamId, streamlet: StreamletId) -> Option<usize> {
        let kept = self.keepers.get(stream, streamlet)?;
        Some(usize::try_from(kept.journal.recorded_bytes()).unwrap_or(usize::MAX / 2))
    }

    /// How far applications are in a streamlet that is being let go: chunks of records for its next owner. Nothing changes it any more: what
    /// changes is recorded first, and the streamlet takes no records. An error while it is not known.
    pub(crate) fn handed_over(&self, stream: StreamId, streamlet: StreamletId) -> Result<Vec<u8>, Failure> {
        if !self.keepers.is_in_cluster() {
            return Ok(Vec::new());
        }
        let kept = self.read_of(stream, streamlet)?;
        let mut chunks = Chunked::default();
        chunks.push("", stream, &kept.records_of_older());
        // The next owner gets them in the state as well; but if it is lost at once, its successor may have these records only.
        let own = kept.records_of_own(GROUPS_ALONG_MAX + 1);
        if own.len() <= GROUPS_ALONG_MAX {
            chunks.push("", stream, &own);
        }
        for application in self.of_stream(stream) {
            chunks.push(&application.meta.name, stream, &application.records(Some(streamlet)));
        }
        chunks.seal(stream, streamlet, Compression::None)
    }

    /// A streamlet is another node's.
    pub(crate) fn streamlet_left(&self, stream: StreamId, streamlet: StreamletId) {
        if self.keepers.remove(stream, streamlet) {
            self.forget_streamlet(stream, streamlet);
            self.forget_stream_without_streamlets(stream);
        }
    }

    /// Takes the applications of a stream out of which nothing is this node's any more. Members find out, and ask the owners.
    ///
    /// Another streamlet may have come since the last one has left, and have made its applications, or found them here. It is kept before that, and
    /// what is recorded of it is taken under the registry's lock. So whether there is one is looked at under that lock: if there is none, one that
    /// comes later makes its applications anew; if there is one, they stay.
    fn forget_stream_without_streamlets(&self, stream: StreamId) {
        let mut registry = self.registry.write();
        if !self.keepers.of_stream(stream).is_empty() {
            return;
        }
        let gone = registry.take_stream(stream);
        drop(registry);
        gone.iter().for_each(|application| application.delete());
    }

    fn forget_streamlet(&self, stream: StreamId, streamlet: StreamletId) {
        for application in self.of_stream(stream) {
            application.streamlet_left(streamlet);
            application.wakes.call();
        }
    }

    /// Reads on what is recorded of the streamlets that have become this node's, of one stream or of all, as far as that goes without
    /// waiting. The lanes that the rest waits for.
    pub(crate) fn read_on(&self, broker: &Broker, stream: Option<StreamId>) -> Vec<(Arc<Lane>, LaneVersion)> {
        let mut waited_for = Vec::new();
        for (of, kept) in self.keepers.unread(stream) {
            let mut guard = kept.reading.lock();
            let Some(reading) = guard.as_mut() else { continue };
            match reading.step(&kept.place) {
                Ok(Step::All) => self.take_read(broker, of, &kept, &mut guard),
                Ok(Step::Wait(lane, seen)) => waited_for.push((lane, seen)),
                Err(failure) => {
                    let streamlet = kept.place.id();
                    tracing::warn!(stream = %of, %streamlet, %failure, "what applications have read is not known yet");
                }
            }
        }
        waited_for
    }

    /// All that is recorded of a streamlet is read: its applications go on from there.
    ///
    /// It is served when each of them has what was read, and not before: who looks at a lane of which it has no position yet begins
    /// where that is, and a commit there would pass over what is unread in front of it.
    ///
    /// It stays `read`, and is looked at again, while it is not known where some application [begins](Applications::waits_for_an_end).
    fn take_read(&self, broker: &Broker, stream: StreamId, kept: &Arc<Kept>, read: &mut Option<Reading>) {
        let Some(place) = broker.log.stream(stream) else { return };
        let streamlet = kept.place.id();
        let now_ms = broker.clock.now_ms();
        // Held to the end: no application is made or deleted while it is not known here. And none is told that a lane starts, which it is told once, before the
        // streamlet is served: it would find no such lane, and never look again. Who looked for applications before has used the lane, so it is lined up below.
        let mut registry = self.registry.write();
        if read.as_ref().is_some_and(|read| self.waits_for_an_end(&registry, stream, kept, &read.replay)) {
            return;
        }
        let mut replay = read.take().map(|read| read.replay).unwrap_or_default();
        if !self.keepers.open_read(stream, kept, replay.report.bytes) {
            return;
        }
        let prune = || {
            let owner = broker.ownership.owner(stream, streamlet).unwrap_or_default();
            kept.prune_older(&owner, broker.ownership.node());
        };
        kept.join_older(std::mem::take(&mut replay.older));
        prune();
        let is_new = replay.report.records == 0;
        if is_new {
            // Nothing was ever recorded with the streamlet: what the node kept while it was alone is what there is.
            let of_stream = registry.from_before.iter().filter(|((_, of), _)| *of == stream);
            replay.applications = of_stream.map(|(key, kept)| (key.clone(), kept.of_streamlet(streamlet))).collect();
        }
        let mut made = Vec::new();
        for ((name, of), replayed) in replay.applications {
            let Some(record) = replayed.record(now_ms).filter(|_| of == stream) else { continue };
            let known = registry.by_name.get(&stream).and_then(|names| names.get(&name)).cloned();
            let application = known.unwrap_or_else(|| {
                // Each owner gives it an id of its own.
                let id = ApplicationId(self.new_id(broker));
                let meta = Meta { id, ..Meta::from_record(name, stream, record) };
                let application = Arc::new(self.application(broker, meta, Arc::clone(&place)));
                registry.insert(Arc::clone(&application));
                made.push(Arc::clone(&application));
                application
            });
            application.take_replayed(replayed, &kept.place);
        }
        for application in registry.of_stream(stream) {
            take_streamlet(&application, kept, is_new, Some(kept.epoch), now_ms);
        }
        // This node hears of them for the first time, and what else it serves of the stream is theirs to read as well.
        let served = self.keepers.of_stream(stream);
        for other in served.iter().filter(|other| other.is_read() && other.place.id() != streamlet) {
            made.iter().for_each(|application| take_streamlet(application, other, false, None, now_ms));
        }
        self.keepers.serve(stream, kept);
        // Who changes what is elsewhere tells applications itself from here on; what changed meanwhile nobody has told them.
        prune();
        registry.of_stream(stream).iter().for_each(|application| application.set_older(kept));
        drop(registry);
        if !is_new {
            kept.journal.want_copy();
            // If it cannot be now it is tried again, and told.
            let _ = self.copy_streamlet_if_due(broker, stream, kept);
        }
        for application in self.of_stream(stream) {
            application.wakes.call();
        }
    }

    /// Whether an application that reads only what is new would begin now in a lane of which it is not known where what is readable ends: the next owner of a lane
    /// has to ask first which transactions run in it. Where what is durable ends would be behind the records of one that runs, which can be read when it
    /// has ended, and its members would never see them.
    ///
    /// That is so with the lanes of a streamlet that is taken, where one that is here is not recorded with it; and with those of all others that are served,
    /// where one is recorded with it that is not here. Nothing can be read of such a lane in the meantime, so nobody waits for longer than that.
    fn waits_for_an_end(&self, registry: &Registry, stream: StreamId, kept: &Kept, replay: &Replay) -> bool {
        let told = if replay.report.records == 0 { &registry.from_before } else { &replay.applications };
        let here = registry.by_name.get(&stream);
        let is_told = |name: &str| told.get(&(name.to_owned(), stream)).is_some_and(Replayed::is_there);
        let is_of_new = |application: &Application| application.meta.start == kera_protocol::Start::Latest;
        let comes = here.into_iter().flatten().any(|(name, application)| is_of_new(application) && !is_told(name));
        let is_told_so = |replayed: &Replayed| replayed.exists.is_some_and(|exists| exists.start == StartAt::Latest);
        let is_made = told.iter().any(|((name, of), replayed)| {
            *of == stream && is_told_so(replayed) && !here.is_some_and(|here| here.contains_key(name))
        });
        let waits = |kept: &Kept| kept.place.lanes().any(|lane| check_visible(lane).is_err());
        let others = || self.keepers.of_stream(stream).into_iter().filter(|other| other.is_read());
        (comes && waits(kept)) || (is_made && others().any(|other| waits(&other)))
    }

    /// Says once that some cannot be written, for all of them, and once that they can be again: without copies none can, and they are tried all the time.
    fn copy_streamlets_if_due(&self, broker: &Broker) {
        let all = self.keepers.all().into_iter();
        let mut failed =
            all.filter_map(|(stream, kept)| Some((stream, self.copy_streamlet_if_due(broker, stream, &kept).err()?)));
        let first = failed.next();
        let more = failed.count();
        match first {
            Some((stream, failure)) if !self.copies_fail.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%stream, more, %failure, "committed offsets could not be written anew; tried again until they are");
            }
            None if self.copies_fail.swap(false, Ordering::Relaxed) => {
                tracing::info!("committed offsets are written anew again");
            }
            _ => {}
        }
    }

    /// As [`copy_if_due`](Applications::copy_if_due), for the progress lane of a streamlet: when it has grown, and once when it has become
    /// this node's, so that nothing of what an earlier owner wrote is needed any more.
    fn copy_streamlet_if_due(&self, broker: &Broker, stream: StreamId, kept: &Kept) -> Result<(), Failure> {
        kept.journal.trim();
        // Nobody makes an application meanwhile that the copy would lack.
        let registry = self.registry.read();
        let Some(from) = kept.journal.begin_copy(keepers::COPY_BYTES) else { return Ok(()) };
        let (before, now_ms) = (kept.journal.added_bytes(), broker.clock.now_ms());
        let older = kept.journal.append("", stream, &kept.records_of_older(), now_ms);
        let copies = registry
            .of_stream(stream)
            .into_iter()
            .map(|application| application.write_copy(&kept.journal, Some(kept.place.id()), now_ms));
        for written in std::iter::once(older).chain(copies) {
            if let Some(failure) = written.failure {
                kept.journal.give_up_copy();
                return Err(failure);
            }
        }
        kept.journal.end_copy(from, before);
        broker.metrics.snapshots_written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The same records of applications in fewer bytes.
pub(crate) fn compressed(stream: StreamId, streamlet: StreamletId, progress: &[u8]) -> Result<Vec<u8>, Failure> {
    let defect = |error: kera_format::FormatError| Failure::new(Status::Internal, error.to_string());
    let mut chunks = Chunked::default();
    for chunk in Chunks::new(progress) {
        let payload = chunk.map_err(defect)?.uncompressed().map_err(defect)?;
        for record in Records::new(&payload) {
            let (name, of, entry) = record.and_then(|record| Entry::decode(&record)).map_err(defect)?;
            chunks.push(&name, of, &[entry]);
        }
    }
    chunks.seal(stream, streamlet, Compression::Zstd)
}

/// Adds the groups of a state's lanes to what it tells of applications: another node holds them, and whoever owns the streamlet after an owner
/// that is lost, or stopped, before it has recorded that knows of them from here only. None are added if there are more than
/// [`GROUPS_ALONG_MAX`].
pub(crate) fn tell_of_groups(state: &mut StreamletState) -> Result<(), Failure> {
    let (stream, streamlet) = (state.stream, state.streamlet);
    let mut told = Replay::default();
    told.chunks(&state.progress);
    let is_news = |lane: LaneId, kept: &KeptGroup| {
        told.older.get(&lane).and_then(|groups| groups.get(&kept.group)).is_none_or(|known| known != kept)
    };
    let entry = |lane: LaneId, kept: &KeptGroup| kept_entry(LaneKey { streamlet, lane }, kept);
    let groups = state.lanes.iter().flat_map(|of| of.groups.iter().map(|kept| (of.lane, kept)));
    let entries: Vec<Entry> =
        groups.filter(|(lane, kept)| is_news(*lane, kept)).map(|(lane, kept)| entry(lane, kept)).collect();
    if entries.len() <= GROUPS_ALONG_MAX {
        let mut chunks = Chunked::default();
        chunks.push("", stream, &entries);
        state.progress.extend(chunks.seal(stream, streamlet, Compression::None)?);
    }
    Ok(())
}

/// An application has a streamlet to read from here on. With one that does not know it, it is recorded; `anew`: in any case.
///
/// One that starts with what is new begins at the end of a streamlet that does not know it; but of what this node has written in the owner epoch `since` it passes
/// over nothing. A streamlet takes writes as soon as it is opened, and is served when all is read that is recorded of it, which may be long after: what is
/// written between the two comes behind all that the application was told to leave out, if it was made before, and its members wait for it.
fn take_streamlet(application: &Application, kept: &Kept, anew: bool, since: Option<u32>, now_ms: i64) {
    let (stream, streamlet) = (application.meta.stream, kept.place.id());
    let is_known = application.take_streamlet(kept);
    let mut entries = if anew || !is_known { application.records(Some(streamlet)) } else { Vec::new() };
    if !is_known && application.meta.start == kera_protocol::Start::Latest {
        entries.extend(application.start_at_latest(Some(streamlet), since, now_ms));
    }
    if let Some(failure) = kept.journal.append(&application.meta.name, stream, &entries, now_ms).failure {
        tracing::warn!(%stream, %streamlet, %failure, "an application is not recorded with a streamlet yet");
        // A position without its application is nothing: the copy, which is tried again until it is there, has both.
        kept.journal.want_copy();
    }
}

fn does_not_exist(id: ApplicationId) -> Failure {
    Failure::new(Status::UnknownApplication, format!("application {id} does not exist; join again by its name"))
}

/// Whether a streamlet is one of those asked for; none asked for means all.
fn of_asked(asked: &[StreamletId]) -> impl Fn(StreamletId) -> bool + use<> {
    let mut sorted = asked.to_vec();
    sorted.sort_unstable();
    move |streamlet| sorted.is_empty() || sorted.binary_search(&streamlet).is_ok()
}

fn still_to_open(stream: StreamId, streamlet: StreamletId) -> Failure {
    let message = format!(
        "streamlet {streamlet} of stream {stream} is still to be taken over by this node; `kera status` says what it waits for"
    );
    Failure::later(Status::NotReady, message)
}

fn still_read(stream: StreamId, streamlet: StreamletId) -> Failure {
    let message = format!(
        "how far applications are in streamlet {streamlet} of stream {stream} is not known here yet: what is recorded of it is still being read, or it \
         is still being asked which transactions run in the stream"
    );
    Failure::later(Status::NotReady, message)
}
