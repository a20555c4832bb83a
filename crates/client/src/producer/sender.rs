//! The producer's background task: sends what is sealed, keeps several requests under way, and sees every chunk through
//! until it is acknowledged or given up.
//!
//! Requests are answered in the order they were sent. What fails goes back to where it belongs by its sequence and is sent
//! again with the same sequence, so that the server recognises it: after a lost connection that is everything that was
//! under way, in order. A chunk that is given up leaves a hole in the sequences of its streamlet. Then nothing is sent until
//! everything under way is answered, and the chunks behind the hole get other sequences: the next ones, if the lost chunk is
//! certainly not in the stream; otherwise those of the producer's next epoch, because the server might yet have the lost
//! chunk's.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kera_format::{LaneId, ProducerId, StreamletId};
use kera_protocol::write::{WRITE_HEAD_BYTES, parse_results, write_head};
use kera_protocol::{AllocateProducer, ChunkResult, Op, Status};
use kera_rpc::{Call, Connection, Frame, RpcError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::buffer::{Buffer, Sealed, Taken};
use super::report::{Delivered, DeliveryReport};
use crate::backoff::Backoff;
use crate::{Client, ClientError};

/// Chunks smaller than this are copied together, larger ones are written from where they are.
const COPY_BYTES_MAX: usize = 4 << 10;
/// A chunk whose bytes arrive damaged this often is given up.
const CHECKSUM_TRIES: u32 = 5;

/// What a producer's handle and its task share.
pub(super) struct Shared {
    buffer: Mutex<Buffer>,
    on_reports: Option<ReportFn>,
    /// There is something to do for the task.
    pub(super) work: Notify,
    /// Chunks were settled: whoever waits for room or a flush looks again.
    pub(super) progress: Notify,
}

impl Shared {
    pub(super) fn new(buffer: Buffer, on_reports: Option<ReportFn>) -> Shared {
        Shared { buffer: Mutex::new(buffer), on_reports, work: Notify::new(), progress: Notify::new() }
    }

    /// Tells about settled chunks. Without holding the lock.
    pub(super) fn tell(&self, reports: &[DeliveryReport]) {
        if let Some(on_reports) = self.on_reports.as_ref().filter(|_| !reports.is_empty()) {
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
    /// `None`: chunks are not deduplicated.
    pub(super) producer_id: Option<ProducerId>,
}

/// What has to be done to the sequences before anything else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Repair {
    None,
    /// Close holes.
    Renumber,
    /// Start over with the producer's next epoch.
    Epoch,
    /// Start over as another producer: the server does not know this one.
    Identity,
}

struct InFlight {
    call: Call,
    chunks: Vec<Sealed>,
    /// The memory that small chunks were copied to.
    copied: Bytes,
    sent_at: Instant,
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    client: Client,
    settings: SenderSettings,
    connection: Option<Connection>,
    in_flight: VecDeque<InFlight>,
    backoff: Backoff,
    /// Nothing is sent before.
    not_before: Option<Instant>,
    repair: Repair,
    /// What went wrong last, for errors of chunks that are given up.
    last_error: String,
    spare: Spare,
}

/// What requests leave behind for those after them, so that there is nothing to allocate.
#[derive(Default)]
struct Spare {
    chunks: Vec<Vec<Sealed>>,
    copied: Vec<Vec<u8>>,
    reports: Vec<DeliveryReport>,
}

/// What is done with one chunk after its answer.
enum Verdict {
    Done(Delivered),
    Again,
    Refused(Status),
    Fenced(u64),
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, client: Client, connection: Connection, settings: SenderSettings) -> Sender {
        Sender {
            shared,
            client,
            settings,
            connection: Some(connection),
            in_flight: VecDeque::new(),
            backoff: Backoff::default(),
            not_before: None,
            repair: Repair::None,
            last_error: "it was not sent yet".into(),
            spare: Spare::default(),
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
            self.not_before = self.not_before.filter(|at| *at > now);
            let mut until = self.not_before;
            if self.not_before.is_none() {
                if self.repair != Repair::None && self.in_flight.is_empty() {
                    self.repair(now).await;
                    continue;
                }
                if self.repair == Repair::None {
                    if self.connection.is_none() && self.wants_to_send() {
                        self.connect().await;
                        continue;
                    }
                    until = self.fill(now);
                    if self.shared.buffer().fatal.is_some() {
                        continue;
                    }
                }
            }
            self.wait(until).await;
        }
    }

    /// Whether there is something that needs a connection.
    fn wants_to_send(&self) -> bool {
        let buffer = self.shared.buffer();
        buffer.stats.buffered_bytes > 0
    }

    /// Sends requests until there is nothing to send or enough is under way. Returns when the next chunk is due.
    fn fill(&mut self, now: Instant) -> Option<Instant> {
        while self.repair == Repair::None {
            if self.in_flight.len() >= self.settings.in_flight {
                return None;
            }
            let Some(connection) = self.connection.clone() else {
                let mut buffer = self.shared.buffer();
                buffer.hungry = true;
                if buffer.stats.buffered_bytes > 0 {
                    self.shared.work.notify_one();
                }
                return None;
            };
            if connection.is_closed() {
                // What is under way learns of it first; after that the next turn connects.
                if self.in_flight.is_empty() {
                    self.disconnected("the connection was closed while nothing was under way".into());
                    self.not_before = None;
                    self.shared.work.notify_one();
                }
                return None;
            }
            let taken = {
                let mut buffer = self.shared.buffer();
                let chunks = self.spare.chunks.pop().unwrap_or_default();
                let taken = buffer.take(now, self.settings.request_bytes, chunks);
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
            let Taken { mut chunks, expired, due_at, .. } = taken;
            self.expire(expired, now);
            if chunks.is_empty() {
                self.spare.chunks.push(chunks);
                return due_at;
            }
            if self.repair != Repair::None {
                // What expired has left a hole in front of these.
                self.shared.buffer().put_back(chunks);
                return None;
            }
            chunks.iter_mut().for_each(|chunk| chunk.attempts += 1);
            let timeout_ms = self.settings.request_timeout.as_millis() as u32 / 2;
            let (parts, copied) = parts(&mut chunks, timeout_ms, self.spare.copied.pop().unwrap_or_default());
            let call = connection.send(Op::WriteChunks, parts);
            self.in_flight.push_back(InFlight { call, chunks, copied, sent_at: now });
        }
        None
    }

    /// Waits for an answer, for work, or until a time.
    async fn wait(&mut self, until: Option<Instant>) {
        let request_timeout = self.settings.request_timeout;
        let mut until = until;
        let mut by = |at: Instant| until = Some(until.map_or(at, |until: Instant| until.min(at)));
        if let Some(front) = self.in_flight.front() {
            by(front.sent_at + request_timeout);
        } else if self.not_before.is_some()
            && let Some(at) = self.shared.buffer().expires_at()
        {
            by(at);
        }
        let answer = async {
            match self.in_flight.front_mut() {
                Some(front) => (&mut front.call).await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match until {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = answer => self.answered(answer),
            () = self.shared.work.notified() => {}
            () = timer => self.late(Instant::now()),
        }
    }

    /// A time has come: is an answer overdue, is anything to be given up?
    fn late(&mut self, now: Instant) {
        if self.in_flight.front().is_some_and(|front| front.sent_at + self.settings.request_timeout <= now) {
            let timeout_ms = self.settings.request_timeout.as_millis();
            self.disconnected(format!("no answer within {timeout_ms} ms"));
        }
        if self.in_flight.is_empty() {
            let expired = self.shared.buffer().take_expired(now);
            self.expire(expired, now);
        }
    }

    /// The oldest request is answered, or will never be.
    fn answered(&mut self, answer: Result<Frame, RpcError>) {
        let Some(request) = self.in_flight.pop_front() else { return };
        match answer {
            Ok(frame) => match parse_results(&frame.body) {
                Ok(results) if results.len() == request.chunks.len() => self.judge(request, results),
                Ok(_) => self.broken(request, "an answer with another number of results than chunks".into()),
                Err(e) => self.broken(request, e.to_string()),
            },
            Err(RpcError::Status { status, message, retry_after }) => {
                self.last_error = format!("{status}: {message}");
                if status.retryable() {
                    self.back_off(retry_after);
                }
                self.judge(request, std::iter::repeat(ChunkResult::failed(status, 0)));
            }
            Err(RpcError::OverLimit { field, value, limit }) => {
                self.last_error = format!("{field} is {value}, the limit is {limit}");
                self.judge(request, std::iter::repeat(ChunkResult::failed(Status::FrameTooLarge, 0)));
            }
            Err(error) => self.broken(request, error.to_string()),
        }
    }

    /// The connection cannot be used any more; the request was under way.
    fn broken(&mut self, request: InFlight, reason: String) {
        self.in_flight.push_front(request);
        self.disconnected(reason);
    }

    /// Puts everything that was under way back in order.
    fn disconnected(&mut self, reason: String) {
        tracing::debug!(reason, "producer lost its connection");
        self.last_error = reason;
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        let mut buffer = self.shared.buffer();
        for request in self.in_flight.drain(..) {
            buffer.put_back(request.chunks);
        }
        drop(buffer);
        self.back_off(None);
    }

    fn back_off(&mut self, asked: Option<Duration>) {
        self.not_before = Some(Instant::now() + self.backoff.next(asked));
    }

    async fn connect(&mut self) {
        match self.client.dedicated().await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.shared.buffer().stats.reconnects += 1;
            }
            Err(error) => {
                self.last_error = error.to_string();
                self.back_off(error.retry_after());
                let now = Instant::now();
                let expired = self.shared.buffer().take_expired(now);
                self.expire(expired, now);
            }
        }
    }

    /// Goes through a request's chunks and what the server said to each.
    fn judge(&mut self, request: InFlight, results: impl Iterator<Item = ChunkResult>) {
        let InFlight { mut chunks, copied, .. } = request;
        let now = Instant::now();
        let mut reports = std::mem::take(&mut self.spare.reports);
        let mut fenced = None;
        let mut delivered = false;
        let shared = Arc::clone(&self.shared);
        let mut buffer = shared.buffer();
        for (chunk, result) in chunks.drain(..).zip(results) {
            let outcome = match self.verdict(&chunk, &result, &buffer) {
                Verdict::Done(done) => {
                    delivered = true;
                    Ok(done)
                }
                Verdict::Again => {
                    buffer.put_back([chunk]);
                    continue;
                }
                Verdict::Refused(status) => {
                    self.require(Repair::Renumber);
                    Err(ClientError::Refused {
                        records: chunk.records.into(),
                        streamlet: StreamletId(chunk.streamlet),
                        status,
                    })
                }
                Verdict::Fenced(current) => {
                    fenced = Some(current);
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
        if delivered && self.not_before.is_none() {
            self.backoff.reset();
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

    fn verdict(&mut self, chunk: &Sealed, result: &ChunkResult, buffer: &Buffer) -> Verdict {
        let Some(status) = result.status() else {
            self.last_error = format!("status {}, which this client does not know", result.status);
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
            Status::SequenceTooOld => Verdict::Done(Delivered { duplicate: true, lane: LaneId(0), ..delivered(None) }),
            Status::StaleEpoch => Verdict::Fenced(result.base_ordinal),
            Status::SequenceGap => {
                let waiting = buffer.first_waiting_sequence(chunk.streamlet);
                let is_behind = waiting.is_some_and(|sequence| sequence < chunk.sequence);
                if !is_behind && self.repair == Repair::None {
                    // The server misses chunks that it has acknowledged: it has lost them, or the producer.
                    self.last_error = format!("{status}: sequence {} was expected", result.base_ordinal);
                    tracing::warn!(
                        streamlet = chunk.streamlet,
                        sequence = chunk.sequence,
                        expected = result.base_ordinal,
                        "the server has forgotten acknowledged chunks; the producer goes on with its next epoch"
                    );
                    self.require(Repair::Epoch);
                }
                Verdict::Again
            }
            Status::UnknownProducer => {
                self.require(Repair::Identity);
                Verdict::Again
            }
            Status::ChunkChecksum if chunk.attempts >= CHECKSUM_TRIES => Verdict::Refused(status),
            status if status.retryable() => {
                self.last_error = format!("{status}: {}", status.hint());
                if self.not_before.is_none() {
                    self.back_off(None);
                }
                Verdict::Again
            }
            status => Verdict::Refused(status),
        }
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
            self.require(if chunk.attempts > 0 { Repair::Epoch } else { Repair::Renumber });
            let error = ClientError::DeliveryTimeout {
                records: chunk.records.into(),
                streamlet: StreamletId(chunk.streamlet),
                after: self.settings.delivery_timeout,
                reason: self.last_error.clone(),
            };
            reports.push(buffer.settle(chunk, Err(error), now, false));
        }
        drop(buffer);
        self.shared.tell(&reports);
    }

    fn require(&mut self, repair: Repair) {
        if self.settings.producer_id.is_some() {
            self.repair = self.repair.max(repair);
        }
    }

    /// Nothing is under way: gives the chunks that wait sequences without a hole.
    async fn repair(&mut self, now: Instant) {
        let expired = self.shared.buffer().take_expired(now);
        self.expire(expired, now);
        if self.repair == Repair::Renumber {
            self.shared.buffer().renumber(None);
            self.repair = Repair::None;
            return;
        }
        let Some(connection) = self.connection.clone() else {
            return self.connect().await;
        };
        let producer_id = self.settings.producer_id.filter(|_| self.repair == Repair::Epoch);
        match connection.call(&AllocateProducer { producer_id }).await {
            Ok(allocated) => {
                self.settings.producer_id = Some(allocated.producer_id);
                self.shared.buffer().renumber(Some((allocated.producer_id, allocated.producer_epoch)));
                self.repair = Repair::None;
            }
            Err(RpcError::Status { status: Status::UnknownProducer, .. }) => self.repair = Repair::Identity,
            Err(RpcError::Status { status, message, retry_after }) => {
                self.last_error = format!("{status}: {message}");
                self.back_off(retry_after);
            }
            Err(error) => self.disconnected(error.to_string()),
        }
    }

    /// Gives everything up.
    fn end(mut self, error: ClientError) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        let now = Instant::now();
        let mut reports = Vec::new();
        {
            let mut buffer = self.shared.buffer();
            let mut chunks: Vec<Sealed> = self.in_flight.drain(..).flat_map(|request| request.chunks).collect();
            chunks.extend(buffer.take_all(now));
            buffer.ended = true;
            for chunk in chunks {
                reports.push(buffer.settle(chunk, Err(error.clone()), now, false));
            }
        }
        self.shared.tell(&reports);
    }
}

/// The body of a request: its head and small chunks copied together, large ones as they are. The first copies go to
/// `memory`, which comes back as well.
fn parts(chunks: &mut [Sealed], timeout_ms: u32, mut memory: Vec<u8>) -> (Vec<Bytes>, Bytes) {
    let is_small = |chunk: &Sealed| chunk.bytes.len() < COPY_BYTES_MAX;
    let small_bytes: usize = chunks.iter().filter(|c| is_small(c)).map(|c| c.bytes.len()).sum();
    let mut parts = Vec::with_capacity(2 + chunks.len() - chunks.iter().filter(|c| is_small(c)).count());
    memory.clear();
    memory.reserve(WRITE_HEAD_BYTES + small_bytes);
    memory.extend_from_slice(&write_head(chunks.len() as u32, timeout_ms));
    let mut start = 0;
    chunks.iter().filter(|c| is_small(c)).for_each(|c| memory.extend_from_slice(&c.bytes));
    let copied = Bytes::from(memory);
    let mut end = WRITE_HEAD_BYTES;
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
