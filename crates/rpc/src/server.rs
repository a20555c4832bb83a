//! The server: accepts connections, pins each to an I/O thread, and stops.
//!
//! Started by a node. The first I/O thread also accepts. Each I/O thread is a tokio current-thread runtime; a connection
//! and its session live and die on one of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kera_env::Clock;
use kera_protocol::HelloResponse;

use crate::SessionFactory;

/// How a server listens and what it takes. [`ServerConfig::new`] gives defaults that work.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// I/O threads, at least one.
    pub io_threads: usize,
    /// Connections at one time; further ones are told so and closed.
    pub connections_max: usize,
    /// Bytes of frames that all connections together may be in the middle of receiving or handling. Whoever needs more
    /// waits. Frames of a few KiB (control traffic) are not counted, so that they always get through.
    pub inflight_bytes_max: usize,
    /// Bytes of answers that wait on one connection before nothing more is read from it.
    pub outbox_bytes_max: usize,
    /// A connection that has not completed its handshake by then is closed.
    pub handshake_timeout: Duration,
    /// A connection that takes none of the bytes that wait for it for so long is closed.
    pub stall_timeout: Duration,
    /// What the handshake answers. The server itself obeys `frame_bytes_max` and `idle_timeout_ms`.
    pub hello: HelloResponse,
    /// The clock of [`Session::deadline_us`](crate::Session::deadline_us).
    pub clock: Arc<dyn Clock>,
}

impl ServerConfig {
    /// Defaults: one I/O thread, 10,000 connections, 256 MiB in flight, 8 MiB of waiting answers per connection.
    pub fn new(listen: SocketAddr, hello: HelloResponse, clock: Arc<dyn Clock>) -> ServerConfig {
        ServerConfig {
            listen,
            io_threads: 1,
            connections_max: 10_000,
            inflight_bytes_max: 256 << 20,
            outbox_bytes_max: 8 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            hello,
            clock,
        }
    }
}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Binds, starts the I/O threads and returns when connections are accepted. Errors: the address cannot be bound, or
    /// threads cannot be started.
    pub fn start(config: ServerConfig, factory: Arc<dyn SessionFactory>) -> std::io::Result<RunningServer> {
        let _ = (config, factory);
        todo!()
    }
}

/// What a server has done so far and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Connections closed because of what they sent (no handshake, malformed or oversize frames) or did not send in time.
    pub rejected: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes held by frames that are being received or handled.
    pub inflight_bytes: u64,
}

/// A server that accepts connections. Dropped, it closes everything at once.
#[derive(Debug)]
pub struct RunningServer {
    local_addr: SocketAddr,
}

impl RunningServer {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Counters, summed over the I/O threads.
    pub fn stats(&self) -> ServerStats {
        todo!()
    }

    /// Stops accepting, lets sessions answer what is in flight for at most `timeout`, closes everything and waits for the
    /// threads to end. Blocks; not to be called on a thread of an async runtime.
    pub fn stop(self, timeout: Duration) {
        let _ = timeout;
        todo!()
    }
}
