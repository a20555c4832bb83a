//! Applications: named sets of consumers that share a stream's groups.
//!
//! Members hold leases on groups, read them, and commit how far they are; positions are kept in a stream of the system's
//! own and are durable before a commit is acknowledged (thesis 6.2.3 has the broker remember the last group it gave; the
//! leases and positions are what makes that safe). Called by sessions on their I/O threads and by the maintenance thread.
//! One lock per application, held while its offsets are appended, never while anything waits.

mod application;
mod commit;
mod describe;
mod journal;
mod progress;
mod replay;
mod requests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_format::applications::{Entry, LaneKey};
use kera_format::{ApplicationId, Durability, StreamId, StreamOptions};
use kera_log::{Lane, Observer, Stream};
use kera_protocol::{ApplicationSummary, Status};
use parking_lot::RwLock;

pub use replay::ReplayReport;
pub(crate) use requests::attempt;

use crate::broker::Broker;
use crate::failure::Failure;
use application::{Application, Meta};
use journal::Journal;
use replay::Replay;

/// The name of the system stream that keeps applications and their offsets.
pub const APPLICATIONS_STREAM: &str = "_kera.applications";
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
    by_id: HashMap<u64, Arc<Application>>,
    by_name: HashMap<StreamId, HashMap<String, Arc<Application>>>,
    /// Streams whose applications have become fewer since the floors were last set.
    orphaned: BTreeSet<StreamId>,
}

/// All applications of the node.
pub(crate) struct Applications {
    registry: RwLock<Registry>,
    journal: Journal,
    system_stream: AtomicU64,
    /// Numbers of applications, members and leases that this process has given out.
    given: AtomicU64,
}

impl Default for Applications {
    fn default() -> Self {
        Applications {
            registry: RwLock::default(),
            journal: Journal::default(),
            system_stream: AtomicU64::new(NO_STREAM),
            given: AtomicU64::new(1),
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
            let application = Application::new(meta, stream, self.new_id(broker));
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
        self.journal.open(stream, report.bytes)?;
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

    fn insert(&self, application: Arc<Application>) {
        let mut registry = self.registry.write();
        let names = registry.by_name.entry(application.meta.stream).or_default();
        names.insert(application.meta.name.clone(), Arc::clone(&application));
        registry.by_id.insert(application.meta.id.0, application);
    }

    fn all(&self) -> Vec<Arc<Application>> {
        self.registry.read().by_id.values().cloned().collect()
    }

    fn of_stream(&self, stream: StreamId) -> Vec<Arc<Application>> {
        self.registry.read().by_name.get(&stream).map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    fn by_id(&self, id: ApplicationId) -> Result<Arc<Application>, Failure> {
        let found = self.registry.read().by_id.get(&id.0).cloned();
        found.filter(|found| !found.is_deleted()).ok_or_else(|| {
            Failure::new(Status::UnknownApplication, format!("application {id} does not exist; join again by its name"))
        })
    }

    fn by_name(&self, name: &str, stream: StreamId) -> Result<Arc<Application>, Failure> {
        let found = self.registry.read().by_name.get(&stream).and_then(|names| names.get(name)).cloned();
        found.filter(|found| !found.is_deleted()).ok_or_else(|| {
            let message = format!("stream {stream} has no application `{name}`");
            Failure::new(Status::UnknownApplication, message)
        })
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
        self.journal.check_open()?;
        // Held to the end, so that one name is made once; makers are rare, and the write takes microseconds.
        let mut registry = self.registry.write();
        if let Some(found) = registry.by_name.get(&stream.id()).and_then(|names| names.get(name))
            && !found.is_deleted()
        {
            return Ok((Arc::clone(found), false));
        }
        let (count, limit) = (registry.by_id.len(), broker.config.applications_max);
        if count >= limit {
            return Err(Failure::limit("applications", count, limit));
        }
        let id = ApplicationId(self.new_id(broker));
        let now_ms = broker.clock.now_ms();
        let meta = Meta { id, name: name.to_owned(), stream: stream.id(), start, created_ms: now_ms };
        let application = Arc::new(Application::new(meta, Arc::clone(stream), self.new_id(broker)));
        application.line_up_all();
        let mut entries = vec![application.meta.to_record()];
        if start == kera_protocol::Start::Latest {
            entries.extend(application.start_at_latest(now_ms));
        }
        let written = self.journal.append(name, stream.id(), &entries, now_ms);
        if let Some(failure) = written.failure {
            return Err(failure);
        }
        let names = registry.by_name.entry(stream.id()).or_default();
        names.insert(name.to_owned(), Arc::clone(&application));
        registry.by_id.insert(id.0, Arc::clone(&application));
        drop(registry);
        // Lanes that got their first chunk while the application was not known yet. None of them is consumed now.
        application.line_up_all();
        application.mark_dirty();
        tracing::info!(application = %name, stream = %stream.id(), %id, "application made");
        Ok((application, true))
    }

    /// Takes an application out, with a record that says so.
    fn remove(&self, application: &Application, now_ms: i64) -> Result<(), Failure> {
        let mut registry = self.registry.write();
        let meta = &application.meta;
        if let Some(failure) = self.journal.append(&meta.name, meta.stream, &[Entry::Deleted], now_ms).failure {
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
        application.delete();
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
        for application in self.of_stream(stream) {
            // Without the record a restart drops the application all the same, because its stream does not exist.
            if let Err(failure) = self.remove(&application, broker.clock.now_ms()) {
                tracing::warn!(application = %application.meta.name, %failure, "deletion is not recorded");
                application.delete();
            }
        }
    }

    /// Leases that run out, consumed floors, and a copy of all positions when their stream has grown.
    pub(crate) fn tick(&self, broker: &Broker) {
        let now_us = broker.clock.monotonic_us();
        let mut expired = 0;
        for application in self.all() {
            expired += application.expire(&mut application.state.lock(), now_us);
        }
        broker.metrics.members_expired.fetch_add(expired, Ordering::Relaxed);
        self.set_floors(broker);
        self.copy_if_due(broker);
    }

    /// Tells lanes below which cursor no application needs them any more.
    fn set_floors(&self, broker: &Broker) {
        let orphaned = std::mem::take(&mut self.registry.write().orphaned);
        let mut streams: BTreeSet<StreamId> = self.registry.read().by_name.keys().copied().collect();
        streams.extend(&orphaned);
        for id in streams {
            let Some(stream) = broker.log.stream(id) else { continue };
            let applications = self.of_stream(id);
            let mut dirty = BTreeSet::new();
            for application in &applications {
                dirty.append(&mut application.state.lock().dirty);
            }
            if orphaned.contains(&id) {
                let keys = |streamlet: &Arc<kera_log::Streamlet>| {
                    let of = streamlet.id();
                    streamlet.lanes().map(|lane| LaneKey { streamlet: of, lane: lane.id() }).collect::<Vec<_>>()
                };
                dirty.extend(stream.streamlets().flat_map(keys));
            }
            for key in dirty {
                let floor = |application: &Arc<Application>| {
                    application.state.lock().lanes.get(&key).map_or_else(Default::default, |found| found.floor())
                };
                let lowest = applications.iter().map(floor).min();
                if let Some(lane) = stream.streamlet(key.streamlet).and_then(|found| found.lane(key.lane)) {
                    lane.set_consumed_floor(lowest);
                }
            }
        }
    }

    /// Writes every application anew when the stream has grown enough, and lets go of what an earlier copy replaced.
    ///
    /// The copy replaces everything below where the stream's durable end was before the first application was copied: each
    /// application is copied under its lock, so whatever it had recorded before is in the copy, and whatever it records
    /// later stands behind it.
    fn copy_if_due(&self, broker: &Broker) {
        self.journal.trim();
        let Some(from) = self.journal.begin_copy(broker.config.snapshot_bytes) else { return };
        let before = self.journal.added_bytes();
        let now_ms = broker.clock.now_ms();
        for application in self.all() {
            if let Some(failure) = application.write_copy(&self.journal, now_ms).failure {
                tracing::warn!(%failure, "committed offsets could not be written anew; tried again later");
                return;
            }
        }
        self.journal.end_copy(from, before);
        broker.metrics.snapshots_written.fetch_add(1, Ordering::Relaxed);
        self.journal.trim();
    }
}
