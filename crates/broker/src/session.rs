//! One connection's conversation with the broker.
//!
//! Lives on the I/O thread of its connection and is called by nobody else, so it has no locks. It finds out what an
//! operation needs, does it, or remembers it until what it waits for calls back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_env::Clock;
use kera_log::{Lane, LaneVersion, Observer};
use kera_protocol::{
    Body, Credit, Empty, FindOwners, FrameHeader, Op, ReadChunks, Status, Subscribe, Subscribed, Unsubscribe,
};
use kera_rpc::{Flow, Outbox, SessionWaker};

use crate::acks::Answer;
use crate::broker::Broker;
use crate::entries::Gathered;
use crate::failure::Failure;
use crate::lanes::{LaneTable, Watch};
use crate::metrics::BrokerCounts;
use crate::read::WaitingRead;
use crate::signals::{Signals, Token};
use crate::streams::StreamCache;
use crate::subscribe::Subscription;
use crate::waiters::{Retry, Waiter, Waiters};
use crate::write::Writer;

/// Most bytes of a connection's requests that are kept to be tried again: more than naming all streamlets of the largest stream takes, and than any number of lookups
/// that may wait.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// What all operations of a session use.
pub(crate) struct Core {
    pub(crate) broker: Arc<Broker>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The session's mailbox, as whoever calls back sees it.
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) streams: StreamCache,
    pub(crate) lanes: LaneTable,
    pub(crate) counts: BrokerCounts,
    pub(crate) peer: SocketAddr,
    /// Which session of this process it is.
    pub(crate) session: u64,
}

/// How a try of a rare operation went.
pub(crate) enum Attempt {
    /// It is answered.
    Answered,
    /// What it wrote must be durable before this is sent.
    Durable(Answer),
    /// Try again when one of these lanes moves, or the operation's own subject calls [`Token::Waiter`]; for so many
    /// milliseconds.
    Wait {
        /// The lanes, and what was seen of them.
        lanes: Vec<(Arc<Lane>, LaneVersion)>,
        /// For how long.
        wait_ms: u32,
    },
}

/// A request being tried.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) header: &'a FrameHeader,
    pub(crate) body: &'a [u8],
    /// The number to be called back with; `None` at the first try, which need not arrange for that yet.
    pub(crate) waiter: Option<u32>,
    /// The time is up: answer with what there is.
    pub(crate) last: bool,
}

impl Request<'_> {
    /// Reads the body.
    pub(crate) fn message<M: Body>(&self) -> Result<M, Failure> {
        Ok(M::decode(self.header.version, self.body)?)
    }
}

/// One connection's session. See the crate for who calls it; [`kera_rpc::Session`] for when.
pub struct BrokerSession {
    core: Core,
    signals: Arc<Signals>,
    writer: Writer,
    waiters: Waiters,
    /// Correlation to waiter.
    subscriptions: HashMap<u64, u32>,
    /// Where the next read begins in its entries.
    rotation: usize,
    gathered: Gathered,
    mailbox: Vec<u64>,
    touched: Vec<u32>,
}

impl BrokerSession {
    pub(crate) fn new(broker: Arc<Broker>, peer: SocketAddr, waker: SessionWaker) -> BrokerSession {
        broker.metrics.sessions.fetch_add(1, Ordering::Relaxed);
        let signals = Signals::new(waker);
        let observer: Arc<dyn Observer> = Arc::clone(&signals) as _;
        BrokerSession {
            core: Core {
                clock: Arc::clone(&broker.clock),
                session: broker.next_session(),
                broker,
                observer,
                streams: StreamCache::default(),
                lanes: LaneTable::default(),
                counts: BrokerCounts::default(),
                peer,
            },
            signals,
            writer: Writer::default(),
            waiters: Waiters::default(),
            subscriptions: HashMap::new(),
            rotation: 0,
            gathered: Gathered::default(),
            mailbox: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Whether [`handle`](BrokerSession::handle) answers `op`.
    pub fn serves(op: Op) -> bool {
        use Op::*;
        let data = matches!(op, WriteChunks | ReadChunks | Subscribe | Credit | Unsubscribe);
        let members = matches!(op, NextGroups | JoinApplication | Heartbeat | CommitOffsets | LeaveApplication);
        let applications =
            matches!(op, FetchOffsets | ListApplications | DescribeApplication | DeleteApplication | ResetOffsets);
        data || members || applications || op == Op::FindOwners || crate::groups::serves(op)
    }

    /// Takes one request. A frame that is [`Flow::Blocked`] must be offered again, the same, before any other.
    pub fn handle(&mut self, op: Op, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        let flow = if op == Op::WriteChunks {
            if self.core.broker.is_stopping() && !self.writer.is_busy() {
                self.refuse(header, &shutting_down(), out)
            } else {
                self.writer.handle(&mut self.core, header, body, out)
            }
        } else if is_recorded(op) && !self.writer.has_turn(&self.core, body.len()) || !self.serve_held_back(out) {
            // Answers wait for the disk: the peer waits for them before it sends more. Or reads are held back: a peer that
            // always asks for more would be answered that, and never those.
            Flow::Blocked
        } else {
            match self.dispatch(op, header, body, out) {
                Ok(()) => Flow::Done,
                Err(failure) => self.refuse(header, &failure, out),
            }
        };
        self.flush_counts();
        flow
    }

    fn dispatch(&mut self, op: Op, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        op.check_version(header.version)?;
        if self.core.broker.is_stopping() {
            return Err(shutting_down());
        }
        // Subscriptions are told entry by entry, so that their client learns of it without asking.
        if !self.core.broker.is_confirmed() && !matches!(op, Op::Credit | Op::Unsubscribe) {
            return Err(Failure::unconfirmed(self.core.broker.lacking()));
        }
        match op {
            Op::ReadChunks => self.read(header, body, out),
            Op::Subscribe => self.subscribe(header, body, out),
            Op::Credit => self.credit(header, body, out),
            Op::Unsubscribe => self.unsubscribe(header, body, out),
            Op::FindOwners => self.find_owners(header, body, out),
            _ => self.try_first(op, header, body, out),
        }
    }

    /// Something that the session waits for has moved: does what can be done now.
    pub fn on_wake(&mut self, out: &mut Outbox) {
        let now_us = self.core.clock.monotonic_us();
        let mut mailbox = std::mem::take(&mut self.mailbox);
        let mut touched = std::mem::take(&mut self.touched);
        self.signals.take(&mut mailbox);
        for token in mailbox.drain(..) {
            match Token::from_u64(token) {
                Token::Lane(slot) => {
                    for watch in self.core.lanes.fired(slot) {
                        touch(&mut self.waiters, *watch, &mut touched);
                    }
                }
                Token::Space => self.writer.space_fired(),
                Token::Sink => self.writer.acks.fired(),
                Token::Waiter(number) => touched.push(number),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        self.writer.complete(&mut self.core, now_us, out);
        // Before pushes, which would fill what has become free.
        self.serve_held_back(out);
        for number in touched.drain(..) {
            self.serve(number, false, out);
        }
        (self.mailbox, self.touched) = (mailbox, touched);
        self.flush_counts();
    }

    /// The outbox has room again: goes on with answers and pushes that were held back. Answers first: of those there are only so many, and no more
    /// are asked for while it is full.
    pub fn on_drained(&mut self, out: &mut Outbox) {
        self.serve_held_back(out);
        let in_line = |(number, waiter): (u32, &Waiter)| match waiter {
            Waiter::Subscription(subscription) if subscription.entries.has_line() => Some(number),
            _ => None,
        };
        let numbers: Vec<u32> = self.waiters.iter().filter_map(in_line).collect();
        for number in numbers {
            self.serve(number, false, out);
        }
        self.on_wake(out);
    }

    /// When [`on_deadline`](BrokerSession::on_deadline) wants to be called, on the clock of `Clock::monotonic_us`, so that a
    /// jump of the wall clock delays nobody; `None`: never.
    pub fn deadline_us(&self) -> Option<u64> {
        let waiters = self.waiters.iter().filter_map(|(_, waiter)| waiter.deadline_us());
        waiters.chain(self.writer.deadline_us()).min()
    }

    /// A deadline has passed: answers what cannot wait any longer.
    pub fn on_deadline(&mut self, out: &mut Outbox) {
        self.on_wake(out);
        let now_us = self.core.clock.monotonic_us();
        let due = |(number, waiter): (u32, &Waiter)| (waiter.deadline_us()? <= now_us).then_some(number);
        let numbers: Vec<u32> = self.waiters.iter().filter_map(due).collect();
        for number in numbers {
            self.serve(number, true, out);
        }
        self.flush_counts();
    }

    /// Whether requests are under way or unanswered that a graceful stop should wait for.
    pub fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// The server stops gracefully: requests that wait are answered with what there is, those that are held back as soon as
    /// there is room.
    pub fn on_stop(&mut self, out: &mut Outbox) {
        let waits = |(number, waiter): (u32, &Waiter)| match waiter {
            Waiter::Read(_) | Waiter::Retry(_) => Some(number),
            Waiter::Subscription(_) => None,
        };
        let numbers: Vec<u32> = self.waiters.iter().filter_map(waits).collect();
        for number in numbers {
            self.serve(number, true, out);
        }
        self.flush_counts();
    }

    /// The connection is gone. What it had appended stays; its members' leases run until they end.
    pub fn on_close(&mut self) {
        self.flush_counts();
    }

    fn flush_counts(&mut self) {
        self.core.broker.metrics.add(&mut self.core.counts);
    }

    /// Answers with an error. A body that does not follow the protocol ends the connection.
    fn refuse(&mut self, header: &FrameHeader, failure: &Failure, out: &mut Outbox) -> Flow {
        self.core.counts.requests_refused += 1;
        out.error(header, failure.status, &failure.body());
        if failure.status == Status::Malformed { Flow::Close(failure.to_string()) } else { Flow::Done }
    }

    /// Entries that reads and subscriptions may still have.
    fn entries_room(&self) -> usize {
        self.core.broker.config.entries_max.saturating_sub(self.waiters.entries())
    }

    /// Whether one more request may wait. That one cannot passes, as soon as one of the others is answered: who took it for final, as with a limit of another kind,
    /// could never read a stream of which more lanes begin on disk than may wait.
    fn check_waiting(&self) -> Result<(), Failure> {
        let (waiting, limit) = (self.waiters.waiting(), self.core.broker.config.waiting_max);
        if waiting < limit {
            return Ok(());
        }
        let message =
            format!("{waiting} requests of this connection wait already, and no more may (reads.waiting_max)");
        Err(Failure::later(Status::LoadPressure, message))
    }

    /// Whether a request of so many bytes may be kept until it is tried again.
    ///
    /// It is copied out of the memory for what comes in, of which all connections together have so much. Kept without a bound, as many as may wait of the largest frames
    /// would take gigabytes for each connection.
    fn check_kept(&self, bytes: usize) -> Result<(), Failure> {
        let kept = self.waiters.kept_bytes();
        if bytes > KEPT_BYTES_MAX {
            let message = format!(
                "the request has {bytes} bytes and has to wait, for which the limit is {KEPT_BYTES_MAX}; name fewer streamlets, each once"
            );
            return Err(Failure::new(Status::LimitReached, message));
        }
        if kept + bytes <= KEPT_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "requests of this connection that wait have {kept} bytes, this one has {bytes}, and the limit for all is {KEPT_BYTES_MAX}; \
             ask again when they are answered"
        );
        Err(Failure::later(Status::LoadPressure, message))
    }

    fn find_owners(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let message = FindOwners::decode(header.version, body)?;
        let owners = self.core.broker.find_owners(&message)?;
        self.core.counts.other_requests += 1;
        out.respond(header, &owners);
        Ok(())
    }

    fn read(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let message = ReadChunks::decode(header.version, body)?;
        let room = self.entries_room();
        let may_wait = self.check_waiting();
        let number = self.waiters.reserve();
        self.gathered.clear();
        let (core, gathered) = (&mut self.core, &mut self.gathered);
        let mut read = match WaitingRead::new(core, header, &message, room, self.rotation, gathered) {
            Ok(read) => read,
            Err(failure) => {
                self.waiters.release(number);
                return Err(failure);
            }
        };
        let at_once = message.max_wait_ms == 0;
        let answered = read.serve(core, number, at_once, gathered, out);
        self.rotation = self.rotation.wrapping_add(gathered.found.len().max(1));
        if answered || may_wait.is_err() {
            read.entries.unwatch(core, number);
            self.waiters.release(number);
            return if answered { Ok(()) } else { may_wait };
        }
        self.core.counts.reads_waited += 1;
        self.waiters.put(number, Waiter::Read(read));
        Ok(())
    }

    fn subscribe(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let message = Subscribe::decode(header.version, body)?;
        let (open, limit) = (self.waiters.subscriptions(), self.core.broker.config.subscriptions_max);
        if open >= limit {
            return Err(Failure::limit("subscriptions of this connection", open, limit));
        }
        if self.subscriptions.contains_key(&header.correlation) {
            return Err(Failure::argument("correlation is that of an open subscription, take another"));
        }
        let room = self.entries_room();
        self.gathered.clear();
        let subscription = Subscription::new(&mut self.core, header, &message, room, &mut self.gathered)?;
        self.core.counts.subscriptions_opened += 1;
        out.respond(header, &Subscribed { push_bytes_max: subscription.push_bytes() as u32 });
        let number = self.waiters.reserve();
        self.subscriptions.insert(header.correlation, number);
        self.core.broker.metrics.subscriptions.fetch_add(1, Ordering::Relaxed);
        self.pump(number, subscription, out);
        Ok(())
    }

    fn credit(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let message = Credit::decode(header.version, body)?;
        let number = self.subscription(message.subscription)?;
        let limit = self.core.broker.config.credit_bytes_max;
        if let Some(Waiter::Subscription(subscription)) = self.waiters.get_mut(number) {
            subscription.add_credit(message.credit_bytes, limit);
        }
        out.respond(header, &Empty);
        self.serve(number, false, out);
        Ok(())
    }

    fn unsubscribe(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let message = Unsubscribe::decode(header.version, body)?;
        let number = self.subscription(message.subscription)?;
        if let Some(Waiter::Subscription(subscription)) = self.waiters.take(number) {
            self.end_subscription(number, subscription);
        }
        out.respond(header, &Empty);
        Ok(())
    }

    fn subscription(&self, correlation: u64) -> Result<u32, Failure> {
        self.subscriptions.get(&correlation).copied().ok_or_else(|| {
            let message = format!("this connection has no subscription {correlation}");
            Failure::new(Status::UnknownSubscription, message)
        })
    }

    fn end_subscription(&mut self, number: u32, mut subscription: Subscription) {
        subscription.entries.unwatch(&mut self.core, number);
        if self.subscriptions.remove(&subscription.correlation()).is_some() {
            self.core.broker.metrics.subscriptions.fetch_sub(1, Ordering::Relaxed);
        }
        self.waiters.release(number);
    }

    fn pump(&mut self, number: u32, mut subscription: Subscription, out: &mut Outbox) {
        if subscription.pump(&mut self.core, number, &mut self.gathered, out) {
            self.end_subscription(number, subscription);
        } else {
            self.waiters.put(number, Waiter::Subscription(subscription));
        }
    }

    /// Goes on with the reads that are held back, as far as there is room. False if that has filled the outbox, or it was full:
    /// [`on_drained`](BrokerSession::on_drained) comes then.
    fn serve_held_back(&mut self, out: &mut Outbox) -> bool {
        let numbers = self.waiters.held_back();
        if numbers.is_empty() {
            return true;
        }
        for number in numbers {
            if out.is_full() {
                return false;
            }
            self.serve(number, false, out);
        }
        !out.is_full()
    }

    /// Does what can be done for a waiter; with `last` its time is up.
    fn serve(&mut self, number: u32, last: bool, out: &mut Outbox) {
        self.gathered.clear();
        match self.waiters.take(number) {
            None => {}
            Some(Waiter::Subscription(subscription)) => self.pump(number, subscription, out),
            // Many may be due at once: together they would have far more than any outbox is meant to.
            Some(Waiter::Read(mut read)) if out.is_full() => {
                read.hold_back(last);
                self.waiters.put(number, Waiter::Read(read));
            }
            Some(Waiter::Read(mut read)) => {
                let last = read.go_on(self.core.clock.monotonic_us()) || last;
                if read.serve(&mut self.core, number, last, &mut self.gathered, out) {
                    read.entries.unwatch(&mut self.core, number);
                    self.waiters.release(number);
                } else {
                    self.waiters.put(number, Waiter::Read(read));
                }
            }
            Some(Waiter::Retry(retry)) => self.try_again(number, retry, last, out),
        }
    }

    /// The first try of a rare operation.
    fn try_first(&mut self, op: Op, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Result<(), Failure> {
        let request = Request { op, header, body, waiter: None, last: false };
        match self.attempt(request, out)? {
            Attempt::Answered => self.core.counts.other_requests += 1,
            Attempt::Durable(answer) => self.answer_when_durable(header, answer, body.len(), out),
            Attempt::Wait { wait_ms, .. } => {
                self.check_waiting()?;
                self.check_kept(body.len())?;
                let deadline_us = self.core.clock.monotonic_us() + u64::from(wait_ms) * 1000;
                let number = self.waiters.reserve();
                let retry = Retry { op, request: *header, body: body.to_vec(), deadline_us, slots: Vec::new() };
                self.try_again(number, retry, wait_ms == 0, out);
            }
        }
        Ok(())
    }

    fn try_again(&mut self, number: u32, mut retry: Retry, last: bool, out: &mut Outbox) {
        for slot in retry.slots.drain(..) {
            self.core.lanes.unwatch(slot, Watch { waiter: number, entry: 0 });
        }
        let header = retry.request;
        let request = Request { op: retry.op, header: &header, body: &retry.body, waiter: Some(number), last };
        match self.attempt(request, out) {
            Ok(Attempt::Wait { lanes, .. }) if !last => {
                for (lane, seen) in lanes {
                    let slot = self.core.lanes.watch(&lane, Watch { waiter: number, entry: 0 });
                    self.core.lanes.arm(slot, seen, &self.core.observer);
                    retry.slots.push(slot);
                }
                self.waiters.put(number, Waiter::Retry(retry));
                return;
            }
            Ok(Attempt::Answered) => self.core.counts.other_requests += 1,
            Ok(Attempt::Durable(answer)) => self.answer_when_durable(&header, answer, retry.body.len(), out),
            Ok(Attempt::Wait { .. }) => {
                let failure = Failure::later(Status::LoadPressure, "what is asked for is still on its way from disk");
                self.refuse(&header, &failure, out);
            }
            Err(failure) => drop(self.refuse(&header, &failure, out)),
        }
        self.waiters.release(number);
    }

    fn attempt(&mut self, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
        if crate::groups::serves(request.op) {
            crate::groups::attempt(&mut self.core, request, out)
        } else {
            crate::applications::attempt(&mut self.core, request, out)
        }
    }

    fn answer_when_durable(&mut self, header: &FrameHeader, answer: Answer, bytes: usize, out: &mut Outbox) {
        self.core.counts.other_requests += 1;
        let now_us = self.core.clock.monotonic_us();
        let timeout_ms = self.core.broker.config.write_timeout_ms_default;
        // Answers may be many times as long as what asks for them.
        let bytes = bytes + answer.body.len();
        self.writer.acks.push(header, answer, None, bytes, now_us + u64::from(timeout_ms) * 1000);
        self.writer.complete(&mut self.core, now_us, out);
    }
}

impl Drop for BrokerSession {
    fn drop(&mut self) {
        self.flush_counts();
        let metrics = &self.core.broker.metrics;
        metrics.sessions.fetch_sub(1, Ordering::Relaxed);
        metrics.subscriptions.fetch_sub(self.subscriptions.len() as u64, Ordering::Relaxed);
    }
}

/// A lane of a waiter has moved.
fn touch(waiters: &mut Waiters, watch: Watch, touched: &mut Vec<u32>) {
    match waiters.get_mut(watch.waiter) {
        Some(Waiter::Read(read)) => read.entries.moved(watch.entry),
        Some(Waiter::Subscription(subscription)) => subscription.entries.moved(watch.entry),
        Some(Waiter::Retry(_)) => {}
        None => return,
    }
    touched.push(watch.waiter);
}

/// Whether an operation is answered when what was recorded so far, by it or before it, is durable.
fn is_recorded(op: Op) -> bool {
    let changes = matches!(op, Op::JoinApplication | Op::CommitOffsets | Op::DeleteApplication | Op::ResetOffsets);
    changes || matches!(op, Op::NextGroups | Op::FetchOffsets | Op::DescribeApplication)
}

fn shutting_down() -> Failure {
    Failure::later(Status::ShuttingDown, "this node is stopping")
}
