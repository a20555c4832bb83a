//! What all sessions of a node share. Called from every I/O thread, from the maintenance thread and from the coordinator's
//! call-backs; holds no lock while it appends or reads, except an application's while that application's offsets are
//! written.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kera_env::Clock;
use kera_format::applications::LaneKey;
use kera_format::{LaneId, StreamId, StreamOptions, StreamletId};
use kera_log::{Lane, Log, StreamError, Streamlet};
use kera_protocol::ApplicationSummary;
use kera_rpc::SessionWaker;

use crate::applications::{ApplicationCounts, Applications, ReplayReport};
use crate::config::BrokerConfig;
use crate::failure::Failure;
use crate::latency::Latencies;
use crate::metrics::BrokerMetrics;
use crate::ownership::Ownership;
use crate::recovery::FoundBefore;
use crate::session::BrokerSession;
use crate::standing::Standing;

/// Finds the id of a stream by its name.
type StreamNames = dyn Fn(&str) -> Option<StreamId> + Send + Sync;

/// Somebody who must know of a streamlet before it is opened on this node.
pub trait Opening: Send + Sync {
    /// The node is about to take writes of a streamlet in this owner epoch, and to show what is in it. Must not block; called by
    /// whoever opens it.
    fn opening(&self, stream: StreamId, streamlet: &Streamlet, epoch: u32);
}

/// The broker of a node.
pub struct Broker {
    pub(crate) config: BrokerConfig,
    pub(crate) log: Arc<Log>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: BrokerMetrics,
    pub(crate) latencies: Latencies,
    pub(crate) applications: Applications,
    pub(crate) ownership: Ownership,
    pub(crate) standing: Standing,
    pub(crate) found_before: FoundBefore,
    named: OnceLock<Box<StreamNames>>,
    opening: OnceLock<Arc<dyn Opening>>,
    stopping: AtomicBool,
    /// Sessions that ever began: their numbers.
    sessions_begun: AtomicU64,
}

impl Broker {
    /// A broker over a log. Applications are not served before [`Broker::open_applications`].
    pub fn new(config: BrokerConfig, log: Arc<Log>, clock: Arc<dyn Clock>) -> Arc<Broker> {
        Arc::new(Broker {
            config,
            log,
            clock,
            metrics: BrokerMetrics::default(),
            latencies: Latencies::default(),
            applications: Applications::default(),
            ownership: Ownership::default(),
            standing: Standing::alone(),
            found_before: FoundBefore::default(),
            named: OnceLock::new(),
            opening: OnceLock::new(),
            stopping: AtomicBool::new(false),
            sessions_begun: AtomicU64::new(0),
        })
    }

    /// How `FindOwners` finds streams by their names; without it only by their ids. Once, a second call does nothing.
    pub fn set_names(&self, named: impl Fn(&str) -> Option<StreamId> + Send + Sync + 'static) {
        let _ = self.named.set(Box::new(named));
    }

    /// The number of a session that begins, the only one of this process with it.
    pub(crate) fn next_session(&self) -> u64 {
        self.sessions_begun.fetch_add(1, Ordering::Relaxed)
    }

    /// Who is told of streamlets before they are opened. Once, a second call does nothing.
    pub fn set_opening(&self, opening: Arc<dyn Opening>) {
        let _ = self.opening.set(opening);
    }

    /// A streamlet is about to be opened.
    pub(crate) fn opens(&self, stream: StreamId, streamlet: &Streamlet, epoch: u32) {
        if let Some(opening) = self.opening.get() {
            opening.opening(stream, streamlet, epoch);
        }
    }

    pub(crate) fn stream_named(&self, name: &str) -> Option<StreamId> {
        self.named.get()?(name)
    }

    /// A majority of the coordinators has said that this node takes part; they were asked at `at_us` of the [clock that goes on while the machine is
    /// suspended](Clock::since_boot_us). From the first
    /// call on this has to go on, or the node [stops serving](crate::SERVES_MS).
    pub fn confirmed(&self, at_us: u64) {
        self.standing.set_confirmed(at_us);
    }

    /// That no majority of the coordinators is there, with who is not, as a sentence without its end; nothing while one is. For what clients are told while
    /// the node does not serve.
    pub fn set_lacking(&self, said: Option<String>) {
        self.standing.set_lacking(said);
    }

    /// What was said last of that.
    pub fn lacking(&self) -> Option<String> {
        self.standing.lacking()
    }

    /// Whether this node may still take itself for the owner of what it owns, as far as it has heard from the coordinators.
    #[inline]
    pub fn is_confirmed(&self) -> bool {
        self.standing.holds(&*self.clock)
    }

    /// Rebuilds applications and their offsets from the system stream [`APPLICATIONS_STREAM`](crate::APPLICATIONS_STREAM),
    /// which the coordinator has made with [`applications_stream_options`](crate::applications_stream_options). After the
    /// log's recovery, before the first session. Blocks while segments are read from disk, so the store must be running.
    pub fn open_applications(&self, stream: StreamId) -> Result<ReplayReport, Failure> {
        let stream = self.log.stream(stream).ok_or_else(|| Failure::unknown_stream(stream))?;
        self.applications.open(self, &stream)
    }

    /// A session for a connection. `waker` has [`BrokerSession::on_wake`] called; `peer` is shown in listings.
    pub fn session(self: &Arc<Self>, peer: SocketAddr, waker: SessionWaker) -> BrokerSession {
        BrokerSession::new(Arc::clone(self), peer, waker)
    }

    /// The catalog has one more stream, or had it at start: makes it in the log.
    pub fn stream_created(&self, id: StreamId, options: StreamOptions) -> Result<(), StreamError> {
        self.log.create_stream(id, options).map(drop)
    }

    /// The catalog of a cluster has one more stream, whose streamlets belong to nodes, and [`place_stream`](Broker::place_stream) is to say to which. Whoever
    /// finds the stream before that finds nothing of it here: what was written to it would be in no group of its owner, or another node's.
    pub fn stream_comes(&self, id: StreamId, options: StreamOptions) -> Result<(), StreamError> {
        self.log.create_stream_elsewhere(id, options).map(drop)
    }

    /// A stream has other options.
    pub fn stream_altered(&self, id: StreamId, options: StreamOptions) -> Result<(), StreamError> {
        self.log.alter_stream(id, options)?;
        self.applications.stream_altered(id);
        Ok(())
    }

    /// A stream is gone from the catalog: drops its data and its applications. Waiting readers and members are answered
    /// with `UnknownStream`.
    pub fn stream_deleted(&self, id: StreamId) -> Result<(), StreamError> {
        self.log.delete_stream(id)?;
        self.displace_stream(0, id);
        self.applications.stream_deleted(self, id);
        Ok(())
    }

    /// What time brings: leases that run out, consumed floors for retention, a fresh copy of the committed offsets when
    /// their stream has grown. About once a second, from the maintenance thread; takes as long as its largest
    /// application needs to be written.
    pub fn tick(&self) {
        self.applications.tick(self);
    }

    /// What it counts.
    pub fn metrics(&self) -> &BrokerMetrics {
        &self.metrics
    }

    /// How many applications, members and leases there are. Takes each application's lock for a moment.
    pub fn application_counts(&self) -> ApplicationCounts {
        self.applications.counts()
    }

    /// The first `limit` applications by name: members, and how many records each has not committed. Takes the lock of
    /// each of them for as long as adding up its lanes needs; not for I/O threads.
    pub fn application_summaries(&self, limit: usize) -> Vec<ApplicationSummary> {
        self.applications.summaries(limit)
    }

    /// Below which ordinal of a lane that this node owns in a cluster no application needs anything, wherever it is.
    pub fn consumed_below(&self, stream: StreamId, streamlet: StreamletId, lane: LaneId) -> Option<u64> {
        self.applications.consumed_below(stream, LaneKey { streamlet, lane })
    }

    /// How long requests took.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// The log that it serves.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Its limits.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// From here on requests are refused with `ShuttingDown`; those under way are finished.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A lane has got its first chunk ever: applications that wait for lanes look at it.
    #[cold]
    pub fn lane_started(&self, lane: &Arc<Lane>) {
        self.applications.lane_started(lane);
    }
}
