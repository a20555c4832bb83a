//! A node: every part put together in one process, started and stopped in the right order.
//!
//! Started by `kera serve` and, inside its own process, by `kera demo`. Owns all threads but the caller's. `start.rs`
//! says what happens in which order at a start and why, `stop.rs` the same for a graceful stop.

mod background;
mod compaction;
mod disks;
mod doubt;
mod kafka;
mod maintenance;
mod orphans;
mod scrub;
mod start;
mod status;
mod stop;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use kera_broker::Broker;
use kera_coordinator::Coordinator;
use kera_env::{Clock, DirLock, Disk};
use kera_log::Log;
use kera_log::compact::Compactor;
use kera_log::store::{DiskStore, StoreThreads};
use kera_rpc::{ConnectionRoom, RunningServer};
use kera_vlog::VirtualLog;
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::config::Config;
use crate::fatal::Fatal;
use crate::http::HttpServer;
use crate::identity::Identity;
use crate::readiness::Readiness;
use crate::session::Commands;
use background::Background;
use maintenance::Maintenance;
use scrub::ScrubCounts;
pub use start::forget_arena;
pub(crate) use start::{arena_dir, lock, resolve};

/// What the parts share, and what answers questions about the node.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) started_ms: i64,
    pub(crate) started_us: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) coordinator: Arc<Coordinator>,
    /// The node's part of its cluster, if it has one.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// The data directory.
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: Arc<Log>,
    pub(crate) store: Arc<DiskStore>,
    pub(crate) virtual_logs: Vec<Arc<VirtualLog>>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) compactor: Arc<Compactor>,
    /// What its thread has taken of a processor, in microseconds.
    pub(crate) compaction_us: Arc<AtomicU64>,
    pub(crate) scrub: ScrubCounts,
    /// Connections that clients may have, by whichever door.
    pub(crate) room: Arc<ConnectionRoom>,
    /// There once it listens, until it stops.
    pub(crate) server: Mutex<Option<RunningServer>>,
    /// The same for Kafka clients, if they may connect.
    pub(crate) kafka: Mutex<Option<kafka::Listening>>,
}

/// A node that serves. Dropping it without [`stop`](Node::stop) leaves everything as a kill would: nothing that was
/// acknowledged is lost.
pub struct Node {
    parts: Arc<Parts>,
    address: SocketAddr,
    http: Option<HttpServer>,
    kafka: Option<kafka::Kafka>,
    commands: (Arc<Commands>, [JoinHandle<()>; 2]),
    maintenance: Maintenance,
    compaction: Option<Background>,
    scrub: Option<Background>,
    writers: Vec<JoinHandle<()>>,
    store_threads: StoreThreads,
    lock: DirLock,
    found: start::Summary,
}

impl Node {
    /// Starts a node and returns when it serves. That it is [ready](Node::tell_ready) is the caller's to say.
    ///
    /// # Errors
    /// Everything that [`Fatal`] lists. The caller is expected to end the process; what was written so far is harmless.
    pub fn start(config: &Config) -> Result<Node, Fatal> {
        start::start(config)
    }

    /// Logs that the node is ready, where it listens and what its start found. Whoever reads that may end the node by a signal in the next moment,
    /// and expects a graceful stop.
    pub fn tell_ready(&self) {
        start::tell(self);
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where HTTP listens, if it does.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.address)
    }

    /// Where Kafka clients connect, if they may.
    pub fn kafka_address(&self) -> Option<SocketAddr> {
        self.kafka.as_ref().and_then(kafka::Kafka::address)
    }

    /// Stops gracefully: requests under way are answered, everything is on disk, the arena's file is gone. Blocks; takes
    /// at most about twice the configured time.
    pub fn stop(self) {
        stop::stop(self);
    }

    fn stop_timeout(&self) -> Duration {
        Duration::from_millis(self.parts.config.node.stop_timeout)
    }
}
