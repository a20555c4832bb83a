//! The producer's background task: sends what is sealed, keeps several requests under way, and sees every chunk through
//! until it is acknowledged or given up.
//!
//! There is a connection to each node that owns streamlets of the stream: a *link*, by which the chunks of those streamlets leave.
//! When a streamlet gets another owner its chunks change their link once nothing of it is under way by the old one.
//!
//! Requests of a connection are answered in the order they were sent. What fails goes back to where it belongs by its sequence and is sent
//! again with the same sequence, so that the server recognises it: after a lost connection that is everything that was
//! under way, in order.
//!
//! # Chunks that are given up
//!
//! One that is certainly not in the stream, because it was never sent or the server has refused it the first time, leaves a hole in the sequences of its
//! streamlet. Nothing is sent then until everything under way is answered, and the chunks behind the hole get the sequences before theirs, unless one of
//! them may be there. Of a chunk that may be there itself nobody knows. In both cases those behind it are sent as they are, and only if the server says
//! that it misses something the next one says that this is [skipped](kera_format::chunk::Skip). The same is done when the server has lost chunks
//! that it had acknowledged. A node of an earlier version knows of no skips: there the streamlet begins the producer's next epoch, from 0.
//!
//! That a chunk comes too early says neither, as long as one in front of it is not answered: it waits, or is under way again. The answer to a request comes when its last
//! chunk has one. So it may come after a chunk in front of one of its chunks was sent again, which the server had refused for a moment.

mod repair;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use kera_format::{ProducerId, StreamletId};
use kera_protocol::write::{WRITE_FRONT_BYTES_MAX, parse_results, write_front};
use kera_protocol::{ChunkResult, GetStream, Op, Status, StreamInfo};
use kera_rpc::{Call, Connection, Frame, RpcError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::buffer::{Buffer, Sealed, Taken};
use super::report::{Delivered, DeliveryReport};
use crate::backoff::Backoff;
use crate::client::ended;
use crate::placement::{HOME, NOBODY, Placement};
use crate::{Client, ClientError};
use repair::Repair;

/// Chunks smaller than this are copied together, larger ones are written from where they are.
const COPY_BYTES_MAX: usize = 4 << 10;
/// A chunk whose bytes arrive damaged this often is given up.
const CHECKSUM_TRIES: u32 = 5;
/// In a cluster, an answer that takes longer makes doubt who owns what: no node is declared lost sooner.
const LATE: Duration = Duration::from_millis(500);
/// How long that the stream has grown is tried to be found out.
const REFRESH_RETRY: Duration = Duration::from_secs(1);
/// After so long without a question for owners the next one is not held back by those before.
const BACKOFF_FORGOTTEN: Duration = Duration::from_secs(5);

/// What a producer's handle and its task share.
pub(super) struct Shared {
    buffer: Mutex<Buffer>,
    on_reports: Option<ReportFn>,
    /// Nobody is told any more: what is called for that may be what went wrong.
    is_silent: AtomicBool,
    /// What went wrong last, for errors of chunks that are given up and for who waits. Nothing yet: `None`.
    last_error: Mutex<Option<String>>,
    /// There is something to do for the task.
    pub(super) work: Notify,
    /// Chunks were settled: whoever waits for room or a flush looks again.
    pub(super) progress: Notify,
}

impl Shared {
    pub(super) fn new(buffer: Buffer, on_reports: Option<ReportFn>) -> Shared {
        let (is_silent, last_error) = (AtomicBool::new(false), Mutex::default());
        let (work, progress) = (Notify::new(), Notify::new());
        Shared { buffer: Mutex::new(buffer), on_reports, is_silent, last_error, work, progress }
    }

    /// What went wrong last, if anything has.
    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_last_error(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Tells about settled chunks. Without holding the lock.
    pub(super) fn tell(&self, reports: &[DeliveryReport]) {
        let is_told = !reports.is_empty() && !self.is_silent.load(Ordering::Relaxed);
        if let Some(on_reports) = self.on_reports.as_ref().filter(|_| is_told) {
            on_reports(reports);
        }
        self.progress.notify_waiters();
    }

    #[inline]
    pub(super) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

pub(super) type ReportFn = Arc<dyn Fn(&[DeliveryReport]) + Send + Sync>;

/// The task's part of the producer's settings.
pub(super) struct SenderSettings {
    pub(super) request_bytes: usize,
    pub(super) in_flight: usize,
    pub(super) request_timeout: Duration,
    pub(super) delivery_timeout: Duration,
    /// How often it is looked whether the stream has grown.
    pub(super) refresh: Duration,
    /// `None`: chunks are not deduplicated.
    pub(super) producer_id: Option<ProducerId>,
}

struct InFlight {
    call: Call,
    chunks: Vec<Sealed>,
    /// The memory that small chunks were copied to.
    copied: Bytes,
    sent_at: Instant,
}

/// A node that owns streamlets, and what is under way to it.
struct Link {
    node: u32,
    /// The incarnation of the node that the connection is to, as far as was known when it was made.
    node_epoch: u32,
    connection: Option<Connection>,
    /// In which version its node is written to, as the last connection to it has told.
    write_version: u8,
    /// A connection that is being made.
    connecting: Option<JoinHandle<Result<Connection, RpcError>>>,
    /// There was a connection, and it is lost.
    was_lost: bool,
    in_flight: VecDeque<InFlight>,
    backoff: Backoff,
    /// Nothing is sent before.
    not_before: Option<Instant>,
}

impl Link {
    fn new(node: u32, connection: Option<Connection>) -> Link {
        Link {
            node,
            node_epoch: 0,
            connection,
            write_version: 1,
            connecting: None,
            was_lost: false,
            in_flight: VecDeque::new(),
            backoff: Backoff::default(),
            not_before: None,
        }
    }

    /// The connection was lost, or could not be made, and there is none yet.
    fn is_down(&self) -> bool {
        self.connection.is_none() && !self.backoff.is_first()
    }

    /// Whether an answer takes long.
    fn is_late(&self, now: Instant) -> bool {
        self.in_flight.front().is_some_and(|front| front.sent_at + LATE <= now)
    }

    fn back_off(&mut self, asked: Option<Duration>) {
        self.not_before = Some(Instant::now() + self.backoff.next(asked));
    }
}

/// The owners of the stream's streamlets, and finding out about others.
struct Owners {
    placement: Arc<Placement>,
    /// Owner epochs of streamlets whose last owner said who the next one is.
    hinted: HashMap<u32, u32>,
    /// They are to be asked for, not before this.
    ask_at: Option<Instant>,
    asked_at: Option<Instant>,
    asking: Option<JoinHandle<Result<Arc<Placement>, RpcError>>>,
    backoff: Backoff,
}

/// Finding out whether the stream has grown.
struct Growth {
    /// Nothing is asked before.
    ask_at: Instant,
    asking: Option<JoinHandle<Result<StreamInfo, ClientError>>>,
}

/// What the task wakes up for.
enum Event {
    Answer(usize, Result<Frame, RpcError>),
    Connected(usize, Result<Connection, RpcError>),
    Owners(Result<Arc<Placement>, RpcError>),
    /// How many streamlets there are; `None`: that could not be found out now.
    Streamlets(Option<u32>),
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    client: Client,
    settings: SenderSettings,
    /// Routes of the buffer, by number. The first one is to where the client was told.
    links: Vec<Link>,
    owners: Owners,
    growth: Growth,
    repair: Repair,
    /// Nothing is repaired before.
    repair_at: Option<Instant>,
    repair_backoff: Backoff,
    /// The link whose node is asked first: those before have not answered.
    repair_from: usize,
    spare: Spare,
}

/// What requests leave behind for those after them, so that there is nothing to allocate.
#[derive(Default)]
struct Spare {
    chunks: Vec<Vec<Sealed>>,
    copied: Vec<Vec<u8>>,
    reports: Vec<DeliveryReport>,
}

/// A task that ends otherwise than by [`Sender::end`] has panicked, as in a report that the program makes, or its runtime was shut down. Nobody else would
/// ever settle what the producer has taken, and whoever waits for that, or for room, would wait for ever.
impl Drop for Sender {
    fn drop(&mut self) {
        if !self.shared.buffer().ended {
            self.shared.is_silent.store(true, Ordering::Relaxed);
            self.give_up(&ClientError::Closed);
        }
    }
}

/// What is done with one chunk after its answer.
enum Verdict {
    Done(Delivered),
    Again,
    /// Another node owns its streamlet: perhaps this one, since this epoch.
    Elsewhere(u32, u32),
    Refused(Status),
    Fenced(u64),
}

impl Sender {
    /// A task for what is in `shared`. `connection` is to where the client was told.
    pub(super) fn new(
        shared: Arc<Shared>,
        client: Client,
        connection: Connection,
        placement: Arc<Placement>,
        settings: SenderSettings,
    ) -> Sender {
        let home = if placement.is_alone() { Some(connection) } else { None };
        let owners = Owners {
            placement,
            hinted: HashMap::new(),
            ask_at: None,
            asked_at: None,
            asking: None,
            backoff: Backoff::for_owners(),
        };
        let growth = Growth { ask_at: Instant::now() + settings.refresh, asking: None };
        let mut sender = Sender {
            shared,
            client,
            settings,
            growth,
            links: vec![Link::new(HOME, home)],
            owners,
            repair: Repair::None,
            repair_at: None,
            repair_backoff: Backoff::default(),
            repair_from: 0,
            spare: Spare::default(),
        };
        sender.learn_version(0);
        sender.apply_owners();
        sender
    }

    /// There is a connection: what its node knows of is known.
    fn learn_version(&mut self, at: usize) {
        if let Some(connection) = &self.links[at].connection {
            let version = connection.hello().common_version(Op::WriteChunks);
            self.shared.buffer().set_old(at, version.is_some_and(|version| version < 2));
            self.links[at].write_version = version.unwrap_or(1);
        }
    }

    /// Runs until the producer is closed or fenced.
    pub(super) async fn run(mut self) {
        loop {
            let fatal = self.shared.buffer().fatal.clone();
            if let Some(error) = fatal {
                return self.end(error);
            }
            let now = Instant::now();
            let until = match self.repair {
                Repair::None => match self.fill(now) {
                    // What had to be given up meanwhile: there may be nobody to wake the task for that.
                    _ if self.repair != Repair::None => continue,
                    until => until,
                },
                _ if !self.links.iter().all(|link| link.in_flight.is_empty()) => None,
                _ => match self.repair_at.filter(|at| *at > now) {
                    Some(at) => Some(at),
                    None => {
                        self.repair(now).await;
                        continue;
                    }
                },
            };
            if self.shared.buffer().fatal.is_some() {
                continue;
            }
            self.doubt_owners(now);
            self.look_for_growth(now);
            let until = [until, self.ask_owners(now)].into_iter().flatten().min();
            self.wait(until).await;
        }
    }

    /// Sends requests until there is nothing to send or enough is under way. Returns when the next chunk is due, or a link may be used
    /// again.
    fn fill(&mut self, now: Instant) -> Option<Instant> {
        let mut until: Option<Instant> = None;
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            link.not_before = link.not_before.filter(|at| *at > now);
            let due = match link.not_before {
                Some(at) => Some(at),
                None => self.fill_link(at, now),
            };
            until = [until, due].into_iter().flatten().min();
            if self.repair != Repair::None {
                break;
            }
        }
        until
    }

    fn fill_link(&mut self, at: usize, now: Instant) -> Option<Instant> {
        while self.repair == Repair::None {
            if self.links[at].in_flight.len() >= self.settings.in_flight {
                return None;
            }
            let Some(connection) = self.links[at].connection.clone() else {
                self.connect_if_wanted(at);
                return None;
            };
            if connection.is_closed() {
                // What is under way learns of it first; after that the next turn connects.
                if self.links[at].in_flight.is_empty() {
                    self.disconnected(at, "the connection was closed while nothing was under way".into());
                    self.links[at].not_before = None;
                    self.shared.work.notify_one();
                }
                return None;
            }
            let taken = {
                let mut buffer = self.shared.buffer();
                let chunks = self.spare.chunks.pop().unwrap_or_default();
                let taken = buffer.take(at, now, self.settings.request_bytes, chunks);
                if taken.chunks.is_empty() {
                    buffer.hungry = true;
                } else {
                    buffer.stats.requests += 1;
                    buffer.stats.sent_bytes += taken.bytes as u64;
                    buffer.stats.retried_chunks +=
                        taken.chunks.iter().filter(|chunk| chunk.attempts > 0).count() as u64;
                }
                taken
            };
            let Taken { mut chunks, expired, due_at, is_refused, .. } = taken;
            self.expire(expired, now);
            if is_refused {
                self.require(Repair::Epoch);
            }
            if chunks.is_empty() {
                self.spare.chunks.push(chunks);
                return due_at;
            }
            if self.repair != Repair::None {
                // What expired has left a hole in front of these, or some have to begin an epoch otherwise.
                self.shared.buffer().put_back(chunks);
                return None;
            }
            chunks.iter_mut().for_each(|chunk| chunk.attempts += 1);
            let timeout_ms = u32::try_from(self.settings.request_timeout.as_millis()).unwrap_or(u32::MAX) / 2;
            let version = self.links[at].write_version;
            let memory = self.spare.copied.pop().unwrap_or_default();
            let (parts, copied) = parts(&mut chunks, version, timeout_ms, memory);
            let call = connection.send(Op::WriteChunks, parts);
            self.links[at].in_flight.push_back(InFlight { call, chunks, copied, sent_at: now });
        }
        None
    }

    /// Connects to a node in the background, if there is something for it. What nobody owns waits until it is known who does.
    fn connect_if_wanted(&mut self, at: usize) {
        let mut buffer = self.shared.buffer();
        buffer.hungry = true;
        if self.links[at].connecting.is_some() || !buffer.wants(at) || buffer.stats.buffered_bytes == 0 {
            return;
        }
        drop(buffer);
        if self.links[at].node != NOBODY {
            return self.connect(at);
        }
        self.links[at].back_off(None);
        self.want_owners();
        self.give_up_expired(Instant::now());
    }

    fn connect(&mut self, at: usize) {
        let node = self.links[at].node;
        let (client, placement) = (self.client.clone(), Arc::clone(&self.owners.placement));
        self.links[at].node_epoch = placement.node_epoch(node);
        let connecting = tokio::spawn(async move { client.lend(&placement, node).await });
        self.links[at].connecting = Some(connecting);
    }

    /// Asks who owns what, if that is due; else when it will be.
    fn ask_owners(&mut self, now: Instant) -> Option<Instant> {
        if self.owners.asking.is_some() {
            return None;
        }
        let at = self.owners.ask_at?;
        if at > now {
            return Some(at);
        }
        (self.owners.ask_at, self.owners.asked_at) = (None, Some(now));
        let (client, seen) = (self.client.clone(), Arc::clone(&self.owners.placement));
        let stream = self.shared.buffer().settings().stream;
        self.owners.asking = Some(tokio::spawn(async move { client.refresh(stream, &seen).await }));
        None
    }

    /// Asks now and then how many streamlets the stream has. Nothing wakes the task for that: a producer that sends nothing asks
    /// nothing.
    fn look_for_growth(&mut self, now: Instant) {
        if self.growth.asking.is_some() || now < self.growth.ask_at {
            return;
        }
        self.growth.ask_at = now + self.settings.refresh;
        let client = self.client.clone();
        let asked = GetStream { stream: self.shared.buffer().settings().stream.into() };
        self.growth.asking = Some(tokio::spawn(async move { client.call_for(&asked, REFRESH_RETRY).await }));
    }

    /// Sends to streamlets that the stream has got since. Who owns them in a cluster is asked for; until it is known their chunks wait.
    fn follow_growth(&mut self, streamlets: u32) {
        let mut buffer = self.shared.buffer();
        let before = buffer.settings().streamlets;
        buffer.grow(streamlets);
        drop(buffer);
        if streamlets > before {
            tracing::debug!(before, streamlets, "the stream has grown");
            self.apply_owners();
            if !self.owners.placement.is_alone() {
                self.want_owners();
            }
        }
    }

    /// Owners may have changed.
    fn want_owners(&mut self) {
        let owners = &mut self.owners;
        if owners.ask_at.is_some() || owners.asking.is_some() {
            return;
        }
        let now = Instant::now();
        if owners.asked_at.is_none_or(|at| at + BACKOFF_FORGOTTEN < now) {
            owners.backoff.reset();
        }
        owners.ask_at = Some(now + owners.backoff.next(None));
    }

    /// As long as chunks are for a node that cannot be connected to: tries to connect get rare, and its successor is to be heard of soon.
    fn ask_owners_again(&mut self) {
        let is_waiting = {
            let mut buffer = self.shared.buffer();
            let is_empty = buffer.stats.buffered_bytes == 0;
            !is_empty && self.links.iter().enumerate().any(|(at, link)| link.is_down() && buffer.wants(at))
        };
        if is_waiting && !self.owners.placement.is_alone() {
            self.want_owners();
        }
    }

    /// A node that takes long to answer may be gone, and the cluster may have noticed: a machine that is gone closes no connection.
    fn doubt_owners(&mut self, now: Instant) {
        if !self.owners.placement.is_alone() && self.links.iter().any(|link| link.is_late(now)) {
            self.want_owners();
        }
    }

    /// Nodes that do not answer and do not own any more what they were sent, or were started again since, are not waited for.
    fn leave_late_nodes(&mut self, now: Instant) {
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if !link.is_late(now) {
                continue;
            }
            let placement = &self.owners.placement;
            let mut chunks = link.in_flight.iter().flat_map(|request| &request.chunks);
            let lost = chunks.any(|chunk| placement.owner(chunk.streamlet).0 != link.node);
            if lost || placement.node_epoch(link.node) > link.node_epoch {
                self.disconnected(at, "the node does not answer, and another one has taken over".into());
            }
        }
    }

    /// Sends each streamlet's chunks to its owner.
    fn apply_owners(&mut self) {
        let placement = Arc::clone(&self.owners.placement);
        let streamlets = self.shared.buffer().settings().streamlets;
        let mut links: HashMap<u32, u32> = (0u32..).zip(&self.links).map(|(at, link)| (link.node, at)).collect();
        let shared = Arc::clone(&self.shared);
        let mut buffer = shared.buffer();
        for streamlet in 0..streamlets {
            let (node, epoch) = placement.owner(streamlet);
            if self.owners.hinted.get(&streamlet).is_some_and(|hinted| *hinted > epoch) {
                continue;
            }
            self.owners.hinted.remove(&streamlet);
            let route = *links.entry(node).or_insert_with(|| {
                self.links.push(Link::new(node, None));
                self.links.len() as u32 - 1
            });
            buffer.set_route(streamlet, route);
        }
    }

    /// A node does not own a streamlet. Its chunks wait until it is known who does; `node` is what it has heard.
    fn not_owner(&mut self, streamlet: u32, node: u32, epoch: u32, buffer: &mut Buffer) {
        let known = self.owners.placement.owner(streamlet).1;
        let newest = self.owners.hinted.get(&streamlet).copied().unwrap_or(known);
        // A node of which nobody knows where it is cannot be sent anything yet.
        let is_hint = epoch > newest && self.owners.placement.address(node).is_some();
        let to = if is_hint { node } else { NOBODY };
        if is_hint {
            self.owners.hinted.insert(streamlet, epoch);
        }
        if epoch > newest {
            // Something has changed just now, whatever was asked in vain before.
            self.owners.backoff.reset();
            self.owners.ask_at = None;
        }
        let route = self.links.iter().position(|link| link.node == to).unwrap_or_else(|| {
            self.links.push(Link::new(to, None));
            self.links.len() - 1
        });
        buffer.set_route(streamlet, route as u32);
        self.want_owners();
    }

    /// Waits for an answer, for work, or until a time.
    async fn wait(&mut self, until: Option<Instant>) {
        let (request_timeout, is_alone) = (self.settings.request_timeout, self.owners.placement.is_alone());
        let mut until = until;
        let mut by = |at: Instant| until = Some(until.map_or(at, |until: Instant| until.min(at)));
        let now = Instant::now();
        for link in &self.links {
            if let Some(front) = link.in_flight.front() {
                by(front.sent_at + request_timeout);
                // Then it is doubted; after that owners are asked for again and again.
                if !is_alone && !link.is_late(now) {
                    by(front.sent_at + LATE);
                }
            }
        }
        // Nothing is taken by such a link, so nobody else sees that a time is up. Here that is seen in each turn, whatever is under way by the others and however
        // soon they answer. What expires behind a chunk that is under way does so as it would where the next ones are taken.
        if self.links.iter().any(|link| link.not_before.is_some() || link.connecting.is_some()) {
            until = [until, self.give_up_expired(now)].into_iter().flatten().min();
        }
        let shared = Arc::clone(&self.shared);
        let timer = async {
            match until {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = std::future::poll_fn(|context| self.poll_event(context)) => self.handle(event),
            () = shared.work.notified() => {}
            () = timer => self.late(Instant::now()),
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        for (at, link) in self.links.iter_mut().enumerate() {
            if let Some(front) = link.in_flight.front_mut()
                && let Poll::Ready(answer) = Pin::new(&mut front.call).poll(context)
            {
                return Poll::Ready(Event::Answer(at, answer));
            }
            if let Some(task) = &mut link.connecting
                && let Poll::Ready(connected) = Pin::new(task).poll(context)
            {
                link.connecting = None;
                return Poll::Ready(Event::Connected(at, connected.unwrap_or_else(|error| Err(ended(&error)))));
            }
        }
        if let Some(task) = &mut self.owners.asking
            && let Poll::Ready(found) = Pin::new(task).poll(context)
        {
            self.owners.asking = None;
            return Poll::Ready(Event::Owners(found.unwrap_or_else(|error| Err(ended(&error)))));
        }
        if let Some(task) = &mut self.growth.asking
            && let Poll::Ready(found) = Pin::new(task).poll(context)
        {
            self.growth.asking = None;
            return Poll::Ready(Event::Streamlets(found.ok().and_then(Result::ok).map(|info| info.options.streamlets)));
        }
        Poll::Pending
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Answer(at, answer) => self.answered(at, answer),
            Event::Connected(at, Ok(connection)) => {
                let link = &mut self.links[at];
                link.connection = Some(connection);
                // The first one to a node is none that is made again.
                let was_lost = std::mem::take(&mut link.was_lost);
                self.learn_version(at);
                self.shared.buffer().stats.reconnects += u64::from(was_lost);
            }
            Event::Connected(at, Err(error)) => {
                self.shared.set_last_error(error.to_string());
                self.links[at].back_off(error.retry_after());
                if !self.owners.placement.is_alone() {
                    self.want_owners();
                }
                self.give_up_expired(Instant::now());
            }
            Event::Owners(Ok(placement)) => {
                if placement.version() > self.owners.placement.version() {
                    self.owners.backoff.reset();
                }
                self.owners.placement = placement;
                self.apply_owners();
                self.leave_late_nodes(Instant::now());
                self.ask_owners_again();
            }
            Event::Owners(Err(error)) => {
                self.shared.set_last_error(error.to_string());
                self.want_owners();
            }
            Event::Streamlets(streamlets) => {
                if let Some(streamlets) = streamlets {
                    self.follow_growth(streamlets);
                }
            }
        }
    }

    /// A time has come: is an answer overdue?
    fn late(&mut self, now: Instant) {
        for at in 0..self.links.len() {
            let front = self.links[at].in_flight.front();
            if front.is_some_and(|front| front.sent_at + self.settings.request_timeout <= now) {
                let timeout_ms = self.settings.request_timeout.as_millis();
                self.disconnected(at, format!("no answer within {timeout_ms} ms"));
            }
        }
    }

    /// The oldest request of a link is answered, or will never be.
    fn answered(&mut self, at: usize, answer: Result<Frame, RpcError>) {
        let Some(request) = self.links[at].in_flight.pop_front() else { return };
        match answer {
            Ok(frame) => match parse_results(&frame.body) {
                Ok(results) if results.len() == request.chunks.len() => self.judge(at, request, results),
                Ok(_) => self.broken(at, request, "an answer with another number of results than chunks".into()),
                Err(e) => self.broken(at, request, e.to_string()),
            },
            Err(RpcError::Status { status, message, retry_after }) => {
                self.shared.set_last_error(format!("{status}: {message}"));
                if status.retryable() && status != Status::NotOwner {
                    self.links[at].back_off(retry_after);
                }
                self.judge(at, request, std::iter::repeat(ChunkResult::failed(status, 0)));
            }
            Err(RpcError::OverLimit { field, value, limit }) => {
                self.shared.set_last_error(format!("{field} is {value}, the limit is {limit}"));
                self.judge(at, request, std::iter::repeat(ChunkResult::failed(Status::FrameTooLarge, 0)));
            }
            Err(error) => self.broken(at, request, error.to_string()),
        }
    }

    /// The connection cannot be used any more; the request was under way.
    fn broken(&mut self, at: usize, request: InFlight, reason: String) {
        self.links[at].in_flight.push_front(request);
        self.disconnected(at, reason);
    }

    /// Puts everything that was under way to a node back in order.
    fn disconnected(&mut self, at: usize, reason: String) {
        tracing::debug!(reason, node = self.links[at].node, "producer lost its connection");
        self.shared.set_last_error(reason);
        let link = &mut self.links[at];
        if let Some(connection) = link.connection.take() {
            connection.close();
            link.was_lost = true;
        }
        let mut buffer = self.shared.buffer();
        for mut request in link.in_flight.drain(..) {
            request.chunks.iter_mut().for_each(|chunk| chunk.is_unanswered = true);
            buffer.put_back(request.chunks);
        }
        drop(buffer);
        link.back_off(None);
        if !self.owners.placement.is_alone() {
            self.want_owners();
        }
    }

    /// Goes through a request's chunks and what the server said to each.
    fn judge(&mut self, at: usize, request: InFlight, results: impl Iterator<Item = ChunkResult>) {
        let InFlight { mut chunks, copied, .. } = request;
        let now = Instant::now();
        let mut reports = std::mem::take(&mut self.spare.reports);
        let mut fenced = None;
        let mut delivered = false;
        let shared = Arc::clone(&self.shared);
        let mut buffer = shared.buffer();
        for (mut chunk, result) in chunks.drain(..).zip(results) {
            chunk.is_unsure |= result.status().unwrap_or(Status::Internal).could_duplicate();
            let outcome = match self.verdict(at, &chunk, &result, &mut buffer) {
                Verdict::Done(done) => {
                    delivered = true;
                    Ok(done)
                }
                Verdict::Again => {
                    chunk.was_early = result.status() == Some(Status::SequenceGap);
                    buffer.put_back([chunk]);
                    continue;
                }
                Verdict::Elsewhere(node, epoch) => {
                    let streamlet = chunk.streamlet;
                    buffer.put_back([chunk]);
                    // Others of the streamlet that were under way say the same.
                    if buffer.route(streamlet) as usize == at {
                        self.not_owner(streamlet, node, epoch, &mut buffer);
                    }
                    continue;
                }
                Verdict::Refused(status) => {
                    let error = ClientError::Refused {
                        records: chunk.records.into(),
                        streamlet: StreamletId(chunk.streamlet),
                        status,
                    };
                    self.given_up(&chunk, &error);
                    Err(error)
                }
                Verdict::Fenced(current) => {
                    (fenced, chunk.is_fenced) = (Some(current), true);
                    Err(ClientError::Fenced { current })
                }
            };
            let report = buffer.settle(chunk, outcome, now, true);
            if shared.on_reports.is_some() {
                reports.push(report);
            }
        }
        if let Some(current) = fenced {
            buffer.fatal = Some(ClientError::Fenced { current });
        }
        drop(buffer);
        if delivered && self.links[at].not_before.is_none() {
            self.links[at].backoff.reset();
        }
        self.shared.tell(&reports);
        reports.clear();
        self.spare.reports = reports;
        self.spare.chunks.push(chunks);
        // Nobody else has it, unless the answer came before all of the request had left.
        if let Ok(copied) = copied.try_into_mut() {
            self.spare.copied.push(copied.into());
        }
    }

    fn verdict(&mut self, at: usize, chunk: &Sealed, result: &ChunkResult, buffer: &mut Buffer) -> Verdict {
        let Some(status) = result.status() else {
            self.shared.set_last_error(format!("status {}, which this client does not know", result.status));
            return Verdict::Refused(Status::Internal);
        };
        let delivered = |base_ordinal| Delivered {
            streamlet: StreamletId(chunk.streamlet),
            lane: result.lane,
            base_ordinal,
            duplicate: result.duplicate,
        };
        match status {
            Status::Ok => Verdict::Done(delivered((result.base_ordinal != u64::MAX).then_some(result.base_ordinal))),
            Status::SequenceTooOld => Verdict::Done(Delivered { duplicate: true, ..delivered(None) }),
            Status::StaleEpoch => Verdict::Fenced(result.base_ordinal),
            Status::SequenceGap => self.gap(at, chunk, result, buffer),
            Status::UnknownProducer => {
                self.require(Repair::Identity);
                Verdict::Again
            }
            Status::NotOwner => {
                let (node, epoch) = ((result.base_ordinal >> 32) as u32, result.base_ordinal as u32);
                self.shared
                    .set_last_error(format!("{status}: node {} does not own the streamlet", self.links[at].node));
                Verdict::Elsewhere(node, epoch)
            }
            // Streamlets are written to that a node has told of: the owner has not heard yet that the stream has grown.
            Status::UnknownStreamlet if !self.owners.placement.is_alone() => {
                let node = self.links[at].node;
                self.shared.set_last_error(format!("{status}: node {node} has not heard of the streamlet yet"));
                Verdict::Elsewhere(NOBODY, 0)
            }
            Status::ChunkChecksum if chunk.attempts >= CHECKSUM_TRIES => Verdict::Refused(status),
            status if status.retryable() => {
                self.shared.set_last_error(format!("{status}: {}", status.hint()));
                if self.links[at].not_before.is_none() {
                    self.links[at].back_off(None);
                }
                Verdict::Again
            }
            status => Verdict::Refused(status),
        }
    }

    /// What has to be done before those behind a chunk that is given up are sent.
    fn given_up(&mut self, chunk: &Sealed, error: &ClientError) {
        if !chunk.may_be_there(error) {
            self.require(Repair::Renumber);
        }
    }

    /// Gives up what waits to be sent and has its time up. When to look again: at once if there was something, since what it leaves may have to be repaired.
    fn give_up_expired(&mut self, now: Instant) -> Option<Instant> {
        let (expired, next) = self.shared.buffer().take_expired(now);
        let again_at = if expired.is_empty() { next } else { Some(now) };
        self.expire(expired, now);
        again_at
    }

    /// Chunks whose time is up are given up. One that was sent may be in the stream nevertheless.
    fn expire(&mut self, expired: Vec<Sealed>, now: Instant) {
        if expired.is_empty() {
            return;
        }
        let mut reports = Vec::new();
        let shared = Arc::clone(&self.shared);
        let mut buffer = shared.buffer();
        for chunk in expired {
            let error = ClientError::DeliveryTimeout {
                records: chunk.records.into(),
                streamlet: StreamletId(chunk.streamlet),
                after: self.settings.delivery_timeout,
                reason: self.shared.last_error().unwrap_or_else(|| "it was not sent yet".into()),
            };
            self.given_up(&chunk, &error);
            reports.push(buffer.settle(chunk, Err(error), now, false));
        }
        drop(buffer);
        self.shared.tell(&reports);
    }

    /// The producer is closed or fenced.
    fn end(mut self, error: ClientError) {
        self.give_up(&error);
    }

    /// Gives everything up.
    fn give_up(&mut self, error: &ClientError) {
        let mut requests = Vec::new();
        for link in &mut self.links {
            // Not closed: others may share it.
            link.connection = None;
            if let Some(connecting) = link.connecting.take() {
                connecting.abort();
            }
            requests.extend(link.in_flight.drain(..));
        }
        let now = Instant::now();
        let mut reports = Vec::new();
        {
            let mut buffer = self.shared.buffer();
            let mut chunks: Vec<Sealed> = requests.into_iter().flat_map(|request| request.chunks).collect();
            // Nobody waits for the answers any more.
            chunks.iter_mut().for_each(|chunk| chunk.is_unanswered = true);
            chunks.extend(buffer.take_all(now));
            buffer.ended = true;
            buffer.fatal.get_or_insert_with(|| error.clone());
            for chunk in chunks {
                reports.push(buffer.settle(chunk, Err(error.clone()), now, false));
            }
            buffer.settle_lost(error);
        }
        self.shared.tell(&reports);
    }
}

/// The body of a request: its front and small chunks copied together, large ones as they are. The first copies go to
/// `memory`, which comes back as well.
fn parts(chunks: &mut [Sealed], version: u8, timeout_ms: u32, mut memory: Vec<u8>) -> (Vec<Bytes>, Bytes) {
    let is_small = |chunk: &Sealed| chunk.bytes.len() < COPY_BYTES_MAX;
    let small_bytes: usize = chunks.iter().filter(|c| is_small(c)).map(|c| c.bytes.len()).sum();
    let mut parts = Vec::with_capacity(2 + chunks.len() - chunks.iter().filter(|c| is_small(c)).count());
    memory.clear();
    memory.reserve(WRITE_FRONT_BYTES_MAX + small_bytes);
    let skipping = |(index, chunk): (usize, &Sealed)| chunk.skips.map(|skips| (index as u32, skips));
    let skips: Vec<_> = chunks.iter().enumerate().filter_map(skipping).collect();
    write_front(version, chunks.len() as u32, timeout_ms, &skips, &mut memory);
    let (mut start, mut end) = (0, memory.len());
    chunks.iter().filter(|c| is_small(c)).for_each(|c| memory.extend_from_slice(&c.bytes));
    let copied = Bytes::from(memory);
    for chunk in chunks {
        if is_small(chunk) {
            end += chunk.bytes.len();
            continue;
        }
        if start < end {
            parts.push(copied.slice(start..end));
            start = end;
        }
        parts.push(chunk.bytes.share());
    }
    if start < end {
        parts.push(copied.slice(start..end));
    }
    (parts, copied)
}
