//! The server: accepts connections, pins each to an I/O thread, and stops.
//!
//! Started by a node. The first I/O thread also accepts. Each I/O thread is a tokio current-thread runtime; a connection
//! and its session live and die on one of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_env::Clock;
use kera_protocol::{ErrorBody, FrameHeader, HelloResponse, Op, Status, encode_error};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::LocalSet;

use crate::input::{Budget, BufferPool};
use crate::serving::{Serving, linger};
use crate::unsent::Unsent;
use crate::{Framing, Peer, SessionFactory, SessionWaker};

/// Connections that the system completes before they are accepted here.
const BACKLOG: i32 = 1024;
/// Connections that are being told at one time that there are too many; further ones are just closed.
const REFUSALS_MAX: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How a server listens and what it takes. [`ServerConfig::new`] gives defaults that work.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// I/O threads, at least one.
    pub io_threads: usize,
    /// Connections at one time; further ones are told so and closed.
    pub connections_max: usize,
    /// What several servers may have of connections together, if there is a limit: further ones are told so and closed as well.
    pub room: Option<Arc<ConnectionRoom>>,
    /// Bytes of frames that all connections together may be in the middle of receiving or handling. Whoever needs more
    /// waits. Frames of a few KiB (control traffic) are not counted, so that they always get through.
    ///
    /// As many bytes of answers may wait on all connections together, and at least those of one full outbox and one answer
    /// more, not counting data that lies in segments: beyond that each connection has one answer at a time made for it.
    pub inflight_bytes_max: usize,
    /// Bytes of answers that wait on one connection before nothing more is read from it.
    pub outbox_bytes_max: usize,
    /// About how many bytes the largest answer of a session has, if that is more than the largest frame of a client.
    pub answer_bytes_max: usize,
    /// A connection that has not completed its handshake by then is closed.
    pub handshake_timeout: Duration,
    /// A connection that takes none of the bytes that wait for it for so long is closed, and one that sends nothing more of a
    /// frame that it has begun.
    pub stall_timeout: Duration,
    /// While others lack memory a connection is closed whose frame takes longer than `stall_timeout` and what it would at
    /// so many bytes per second, or that takes longer to take what waits for it. Where there is no memory to copy what waits out of segments one goes that
    /// takes fewer, once it has stood still for 5 seconds, or for as long as 1.5 MiB take if that is longer: sockets tell of what is taken in such pieces.
    pub bytes_per_s_min: u64,
    /// What the handshake answers. The server itself obeys `frame_bytes_max` and `idle_timeout_ms`.
    pub hello: HelloResponse,
    /// How frames are told apart.
    pub framing: Framing,
    /// The clock of [`Session::deadline_us`](crate::Session::deadline_us).
    pub clock: Arc<dyn Clock>,
}

impl ServerConfig {
    /// Defaults: one I/O thread, 10,000 connections, 256 MiB in flight, 8 MiB of waiting answers per connection, answers of up to
    /// 16 MiB, 64 KiB per second at least where memory is short.
    pub fn new(listen: SocketAddr, hello: HelloResponse, clock: Arc<dyn Clock>) -> ServerConfig {
        ServerConfig {
            listen,
            io_threads: 1,
            connections_max: 10_000,
            room: None,
            inflight_bytes_max: 256 << 20,
            outbox_bytes_max: 8 << 20,
            answer_bytes_max: 16 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            bytes_per_s_min: 64 << 10,
            hello,
            framing: Framing::Native,
            clock,
        }
    }
}

/// So many connections that several servers may have together, because each takes one of the files that the process may open.
#[derive(Debug)]
pub struct ConnectionRoom {
    max: usize,
    used: AtomicUsize,
}

impl ConnectionRoom {
    /// Room for so many.
    pub fn new(max: usize) -> ConnectionRoom {
        ConnectionRoom { max, used: AtomicUsize::new(0) }
    }

    /// Takes room for one more, if there is some.
    fn take(&self) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| (used < self.max).then_some(used + 1))
            .is_ok()
    }
}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Binds, starts the I/O threads and returns when connections are accepted. Errors: the address cannot be bound, or
    /// threads cannot be started.
    pub fn start(config: ServerConfig, factory: Arc<dyn SessionFactory>) -> io::Result<RunningServer> {
        let listener = listen(config.listen)?;
        let local_addr = listener.local_addr()?;
        let io_threads = config.io_threads.max(1);
        let frame_bytes_max = config.hello.frame_bytes_max as usize;
        // What one outbox has can be copied out of segments: it is read on until it is full, and the last answer comes on top.
        let outbox_bytes = config.outbox_bytes_max.saturating_add(config.answer_bytes_max.max(frame_bytes_max));
        let shared = Arc::new(Shared {
            budget: Budget::new(config.inflight_bytes_max, frame_bytes_max),
            unsent: Unsent::new(config.inflight_bytes_max.max(outbox_bytes)),
            counters: (0..io_threads).map(|_| Counters::default()).collect(),
            connections: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            rejects_logged: Mutex::default(),
            stopping: AtomicBool::new(false),
            config,
        });
        let (mailboxes, receivers): (Vec<_>, Vec<_>) = (0..io_threads).map(|_| mpsc::unbounded_channel()).unzip();
        let mut running = RunningServer { local_addr, shared, mailboxes, threads: Vec::new() };
        let mut listener = Some(listener);
        for (io_thread, mailbox) in receivers.into_iter().enumerate() {
            let thread = IoThread {
                shared: Arc::clone(&running.shared),
                factory: Arc::clone(&factory),
                io_thread,
                mailbox,
                accepting: listener.take().map(|listener| (listener, running.mailboxes.clone())),
            };
            // On an error `running` is dropped, which ends the threads that have started.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let name = format!("kera-io-{io_thread}");
            running.threads.push(std::thread::Builder::new().name(name).spawn(move || thread.run(&runtime))?);
        }
        Ok(running)
    }
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) budget: Budget,
    pub(crate) unsent: Arc<Unsent>,
    pub(crate) counters: Vec<Counters>,
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    rejected: AtomicU64,
    rejects_logged: Mutex<Sparse>,
    pub(crate) stopping: AtomicBool,
}

/// What one I/O thread counts, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) frames_in: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

/// What is logged at most once a second: who connects should not be able to fill the log.
#[derive(Debug, Default)]
struct Sparse {
    last: Option<Instant>,
    suppressed: u64,
}

impl Sparse {
    /// Whether it is logged now: how often it was not since the last time.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + Duration::from_secs(1)) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Shared {
    /// Takes a connection's part of the limits; why it cannot be had.
    fn enter(&self) -> Result<(), String> {
        let limit = self.config.connections_max;
        if self.connections.load(Ordering::Relaxed) >= limit {
            return Err(format!("connections_max is {limit}, and that many are open; close some, or raise the limit"));
        }
        if let Some(room) = self.config.room.as_ref().filter(|room| !room.take()) {
            let limit = room.max;
            return Err(format!(
                "the files that the process may open leave {limit} for connections, and that many are open; close some, or have it open more (ulimit -n)"
            ));
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A connection is closed because of what came over it.
    pub(crate) fn rejected(&self, peer: &Peer, reason: &str) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        let Ok(mut log) = self.rejects_logged.lock() else { return };
        let Some(suppressed) = log.due(Instant::now()) else { return };
        tracing::info!(peer = %peer.address, reason, suppressed, "connection rejected");
    }
}

enum Mail {
    Connection(std::net::TcpStream, Open),
    /// The server stops: answer what is in flight until then.
    Stop(Instant),
}

/// A connection's part of the limit on connections.
struct Open {
    shared: Arc<Shared>,
    address: SocketAddr,
    connection: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(room) = &self.shared.config.room {
            room.used.fetch_sub(1, Ordering::Release);
        }
        self.shared.connections.fetch_sub(1, Ordering::Release);
    }
}

/// The connections of an I/O thread.
#[derive(Default)]
struct Connections {
    wakers: RefCell<HashMap<u64, SessionWaker>>,
    /// Told when one is gone.
    gone: Notify,
}

struct IoThread {
    shared: Arc<Shared>,
    factory: Arc<dyn SessionFactory>,
    io_thread: usize,
    mailbox: mpsc::UnboundedReceiver<Mail>,
    accepting: Option<(std::net::TcpListener, Vec<mpsc::UnboundedSender<Mail>>)>,
}

impl IoThread {
    fn run(self, runtime: &Runtime) {
        let tasks = LocalSet::new();
        tasks.block_on(runtime, self.serve());
        // What is left of connections goes here: their sessions are told.
        drop(tasks);
    }

    async fn serve(mut self) {
        let pool = BufferPool::new(self.shared.budget.clone());
        let connections = Rc::new(Connections::default());
        let accepting = self.accepting.take().map(|(listener, mailboxes)| {
            tokio::task::spawn_local(accept(Arc::clone(&self.shared), listener, mailboxes))
        });
        let until = loop {
            match self.mailbox.recv().await {
                Some(Mail::Connection(stream, open)) => self.open(stream, open, &pool, &connections),
                Some(Mail::Stop(until)) => break until,
                None => return,
            }
        };
        if let Some(accepting) = accepting {
            accepting.abort();
        }
        for waker in connections.wakers.borrow().values() {
            waker.wake();
        }
        let all_gone = async {
            while !connections.wakers.borrow().is_empty() {
                connections.gone.notified().await;
            }
        };
        // Those that are not gone by then are dropped.
        let _ = tokio::time::timeout_at(until.into(), all_gone).await;
    }

    fn open(&self, stream: std::net::TcpStream, open: Open, pool: &Rc<BufferPool>, all: &Rc<Connections>) {
        let peer = Peer { address: open.address, connection: open.connection, io_thread: self.io_thread };
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(e) => {
                tracing::warn!(peer = %peer.address, error = %e, "connection dropped: it cannot be watched");
                return;
            }
        };
        let waker = SessionWaker::default();
        all.wakers.borrow_mut().insert(peer.connection, waker.clone());
        let serving =
            Serving::new(Arc::clone(&self.shared), stream, peer, self.factory.as_ref(), waker, Rc::clone(pool));
        let all = Rc::clone(all);
        tokio::task::spawn_local(async move {
            serving.run().await;
            all.wakers.borrow_mut().remove(&peer.connection);
            all.gone.notify_one();
            drop(open);
        });
    }
}

/// Takes connections and hands them to the I/O threads in turn.
async fn accept(shared: Arc<Shared>, listener: std::net::TcpListener, mailboxes: Vec<mpsc::UnboundedSender<Mail>>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!(error = %e, "no connection is accepted: the listener cannot be watched");
            return;
        }
    };
    let refusing = Arc::new(Semaphore::new(REFUSALS_MAX));
    let (mut connection, mut failures) = (0, Sparse::default());
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                // Typically out of file descriptors: accepting again at once would only burn the processor.
                if let Some(suppressed) = failures.due(Instant::now()) {
                    tracing::warn!(error = %e, suppressed, "connection not accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Err(full) = shared.enter() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            if shared.config.framing == Framing::Native
                && let Ok(permit) = Arc::clone(&refusing).try_acquire_owned()
            {
                tokio::task::spawn_local(refuse(stream, full, permit));
            }
            continue;
        }
        connection += 1;
        let open = Open { shared: Arc::clone(&shared), address, connection };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        if let Err(e) = configure(&stream) {
            tracing::debug!(peer = %address, error = %e, "socket options not set");
        }
        let mailbox = &mailboxes[connection as usize % mailboxes.len()];
        if let Ok(stream) = stream.into_std() {
            // An error means that the thread is gone because the server stops.
            let _ = mailbox.send(Mail::Connection(stream, open));
        }
    }
}

/// Small answers leave at once; a peer that is gone without saying so is found out.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Says that there are too many connections.
async fn refuse(mut stream: TcpStream, message: String, permit: OwnedSemaphorePermit) {
    let hello = FrameHeader { op: Op::Hello as u16, version: 1, ..FrameHeader::default() };
    let error = ErrorBody { message, retry_after_ms: 1_000 };
    let mut frame = Vec::new();
    encode_error(&hello, Status::Overloaded, &error, &mut frame);
    if stream.write_all(&frame).await.is_ok() {
        linger(&mut stream).await;
    }
    drop(permit);
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
    /// Bytes of buffers that frames are being received into or handled in.
    pub inflight_bytes: u64,
}

/// A server that accepts connections. Dropped, it closes everything at once.
#[derive(Debug)]
pub struct RunningServer {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    mailboxes: Vec<mpsc::UnboundedSender<Mail>>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningServer {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Counters, summed over the I/O threads.
    pub fn stats(&self) -> ServerStats {
        let shared = &self.shared;
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            shared.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
        };
        ServerStats {
            connections: shared.connections.load(Ordering::Relaxed) as u64,
            accepted: shared.accepted.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            rejected: shared.rejected.load(Ordering::Relaxed),
            frames_in: sum(|counters| &counters.frames_in),
            bytes_in: sum(|counters| &counters.bytes_in),
            bytes_out: sum(|counters| &counters.bytes_out),
            inflight_bytes: shared.budget.used_bytes(),
        }
    }

    /// Stops accepting, lets sessions answer what is in flight for at most `timeout`, closes everything and waits for the
    /// threads to end. Blocks; not to be called on a thread of an async runtime.
    pub fn stop(mut self, timeout: Duration) {
        self.end(timeout);
    }

    fn end(&mut self, timeout: Duration) {
        self.shared.stopping.store(true, Ordering::Release);
        let until = Instant::now() + timeout;
        for mailbox in &self.mailboxes {
            // An error means that the thread has ended.
            let _ = mailbox.send(Mail::Stop(until));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an I/O thread has panicked");
            }
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_logged_once_a_second() {
        let (mut sparse, now) = (Sparse::default(), Instant::now());
        let said: Vec<_> = (0..45).map(|at| sparse.due(now + Duration::from_millis(50 * at))).collect();
        let times: Vec<_> = said.iter().flatten().copied().collect();
        assert_eq!(times, [0, 19, 19]);
    }
}
