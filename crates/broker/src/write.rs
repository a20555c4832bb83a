//! `WriteChunks`: the write path from a frame to the lanes (docs/write-path.md names the steps).
//!
//! A request is taken in whole or not at all as far as its layout goes: all chunk headers are checked before the first
//! chunk is appended. After that each chunk has a status of its own. When the arena is full the request stops where it
//! is, keeps its place and its frame, and goes on when a block is free: a connection's chunks are never reordered. Its
//! answer is put in line behind those of the requests before it ([`crate::acks`]).

use std::sync::Arc;

use kera_format::ChunkView;
use kera_format::chunk::{PayloadKind, Skip};
use kera_log::{AppendError, Appended, Lane, SinkError, Stream, Streamlet, Tenure};
use kera_protocol::write::{ChunkResult, RESULT_BYTES, RESULTS_HEAD_BYTES};
use kera_protocol::{FrameHeader, ProtocolError, Status, WriteChunksView};
use kera_rpc::{Flow, Outbox};

use crate::acks::{Acks, Answer};
use crate::broker::Broker;
use crate::failure::{Failure, append_status};
use crate::metrics::BrokerCounts;
use crate::session::Core;
use crate::signals::Token;

/// Tries of one chunk before the session gives other connections a turn, when blocks come back but not to it.
const SPACE_TRIES: usize = 4;

/// A request that is under way.
struct Partial {
    /// All headers are checked, chunks are being appended. Before that the request waits for its turn.
    admitted: bool,
    /// The next chunk.
    index: u32,
    /// Where it starts, in bytes from the first.
    offset: usize,
    received_us: u64,
    deadline_us: u64,
    /// What the next chunk found no room in, as the status it gets if the time is up.
    blocked: Status,
    /// Chunks that the disk could not take, and why.
    disk: (u32, Option<SinkError>),
    answer: Answer,
}

/// The write side of one session.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) acks: Acks,
    partial: Option<Partial>,
    /// The arena calls back: for a block, or, if that is what was lacking last, for memory of the machine.
    space_armed: Option<bool>,
}

/// A chunk, and which numbers its producer skips in front of it if it can.
type Coming<'a> = (ChunkView<'a>, Option<Option<Skip>>);

/// Whether a chunk was dealt with.
enum Append {
    Done(ChunkResult),
    /// No room now; this is its status if it stays so.
    Full(Status),
}

impl Writer {
    /// Takes a request, or goes on with the one that was [`Flow::Blocked`]: the server offers the same frame again.
    pub(crate) fn handle(&mut self, core: &mut Core, request: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        let now_us = core.clock.monotonic_us();
        let view = match WriteChunksView::parse(request.version, body) {
            Ok(view) => view,
            // What is refused stands in line as well.
            Err(_) if !self.has_turn(core, body.len()) => return Flow::Blocked,
            Err(error) => return self.refuse_malformed(core, request, &error, out),
        };
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => self.begin(core, &view, now_us),
        };
        if !partial.admitted {
            if !self.has_turn(core, body.len()) {
                if now_us < partial.deadline_us {
                    self.partial = Some(partial);
                    return Flow::Blocked;
                }
                return self.refuse_overloaded(core, request, partial, out);
            }
            if let Some(error) = view.chunks().find_map(Result::err) {
                self.acks.recycle(partial.answer);
                return self.refuse_malformed(core, request, &error, out);
            }
            partial.admitted = true;
        }
        if !self.append_from(core, &view, &mut partial) && now_us < partial.deadline_us {
            core.counts.writes_blocked += 1;
            self.partial = Some(partial);
            return Flow::Blocked;
        }
        self.finish(core, request, &view, body.len(), partial, out);
        Flow::Done
    }

    /// When a request that is under way gives up waiting.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        let partial = self.partial.as_ref().map(|partial| partial.deadline_us);
        partial.into_iter().chain(self.acks.deadline_us()).min()
    }

    /// The call-back of the arena has come.
    pub(crate) fn space_fired(&mut self) {
        self.space_armed = None;
    }

    /// Sends the answers whose turn it is.
    pub(crate) fn complete(&mut self, core: &mut Core, now_us: u64, out: &mut Outbox) {
        let done = self.acks.complete(now_us, &core.observer, &core.broker.latencies, out);
        core.counts.writes_timed_out += done.timed_out;
    }

    /// Whether a request is neither answered nor refused.
    pub(crate) fn is_busy(&self) -> bool {
        self.partial.is_some() || !self.acks.is_empty()
    }

    fn begin(&mut self, core: &Core, view: &WriteChunksView<'_>, now_us: u64) -> Partial {
        let config = &core.broker.config;
        let timeout_ms = match view.timeout_ms() {
            0 => config.write_timeout_ms_default,
            asked => asked.min(config.write_timeout_ms_max),
        };
        let mut answer = self.acks.buffer();
        answer.body.reserve(RESULTS_HEAD_BYTES + view.chunk_count() as usize * RESULT_BYTES);
        answer.body.extend_from_slice(&u64::from(view.chunk_count()).to_le_bytes());
        let deadline_us = now_us + u64::from(timeout_ms) * 1000;
        Partial {
            admitted: false,
            index: 0,
            offset: 0,
            received_us: now_us,
            deadline_us,
            blocked: Status::ArenaFull,
            disk: (0, None),
            answer,
        }
    }

    /// Whether the requests in line leave room for one more. One is always let through.
    pub(crate) fn has_turn(&self, core: &Core, bytes: usize) -> bool {
        let config = &core.broker.config;
        self.acks.is_empty()
            || (self.acks.len() < config.in_flight_requests_max
                && self.acks.bytes() + bytes <= config.in_flight_bytes_max)
    }

    /// Appends the chunks that are left. False if the arena is full; the session is called back then.
    fn append_from(&mut self, core: &mut Core, view: &WriteChunksView<'_>, partial: &mut Partial) -> bool {
        let now_ms = core.clock.now_ms();
        let mut chunks = view.chunks_from(partial.index, partial.offset);
        while let Some(Ok(chunk)) = chunks.next() {
            let coming = (chunk, view.can_skip().then(|| view.skip(partial.index)));
            match self.append(core, &coming, now_ms, partial) {
                Append::Done(result) => partial.answer.body.extend_from_slice(&result.to_bytes()),
                Append::Full(status) => {
                    partial.blocked = status;
                    return false;
                }
            }
            (partial.index, partial.offset) = (chunks.index(), chunks.offset());
        }
        true
    }

    /// Appends one chunk, or says why not.
    #[inline]
    fn append(&mut self, core: &mut Core, coming: &Coming<'_>, now_ms: i64, partial: &mut Partial) -> Append {
        let (chunk, skips) = coming;
        let header = chunk.header();
        let Core { broker, streams, observer, counts, .. } = core;
        if let Err(status) = accept(broker, chunk) {
            return refused(counts, status, 0);
        }
        let Some(stream) = streams.get(&broker.log, header.stream) else {
            return refused(counts, broker.unknown_stream(header.stream).status, 0);
        };
        let Some(streamlet) = stream.streamlet(header.streamlet) else {
            return refused(counts, Status::UnknownStreamlet, 0);
        };
        if let Err(status) = takes(broker, stream, streamlet) {
            return refused(counts, status, 0);
        }
        let lane = streamlet.lane_of(header.producer_id);
        for _ in 0..SPACE_TRIES {
            let appended = match *skips {
                Some(skips) => lane.append_skipping(chunk, now_ms, skips),
                None => lane.append(chunk, now_ms),
            };
            match appended {
                Ok(appended) => {
                    if appended.base_ordinal == 0 && !appended.duplicate {
                        broker.lane_started(lane);
                    }
                    wait_for(lane, &appended, partial, counts);
                    count_appended(counts, chunk, &appended);
                    return Append::Done(appended_result(lane, &appended));
                }
                Err(AppendError::ArenaFull(full)) => {
                    let token = Token::Space.to_u64();
                    let is_told = self.space_armed == Some(full.lacks_memory());
                    if is_told || broker.log.wait_for_space(full.seen, observer, token) {
                        self.space_armed = Some(full.lacks_memory());
                        return Append::Full(Status::ArenaFull);
                    }
                }
                Err(AppendError::SinkUnhealthy(error)) if error.kind.passes() => {
                    let Some(sink) = lane.sink() else { break };
                    let waits = sink.wait(sink.durable_through() + 1, observer, Token::Space.to_u64());
                    // Asked once more after registering: it calls when something becomes durable, and when it is not behind any more.
                    if waits && sink.healthy().is_err() {
                        return Append::Full(Status::Overloaded);
                    }
                }
                Err(AppendError::Elsewhere { letting_go: true }) => {
                    broker.ownership.wait(observer, Token::Space.to_u64());
                    // Asked once more after registering: whoever ends the letting go sets the word first, and whoever deletes the stream takes it from the log first.
                    if lane.tenure() == Tenure::LettingGo && !stream.is_deleted() {
                        return Append::Full(Status::NotOwner);
                    }
                }
                Err(AppendError::Elsewhere { .. }) => {
                    let hint = broker.ownership.hint(header.stream, header.streamlet);
                    return refused(counts, Status::NotOwner, hint);
                }
                Err(error) => return not_appended(counts, partial, &error),
            }
        }
        // Blocks come back, but others are quicker: let them run and try again.
        observer.advanced(Token::Space.to_u64());
        Append::Full(Status::ArenaFull)
    }

    /// All chunks have their result, or the time is up: puts the answer in line.
    fn finish(
        &mut self,
        core: &mut Core,
        request: &FrameHeader,
        view: &WriteChunksView<'_>,
        request_bytes: usize,
        partial: Partial,
        out: &mut Outbox,
    ) {
        let Partial { index, received_us, deadline_us, blocked, disk, mut answer, .. } = partial;
        core.counts.write_requests += 1;
        if let (refused, Some(error)) = disk
            && refused == view.chunk_count()
        {
            self.acks.recycle(answer);
            let (status, _) = append_status(&AppendError::SinkUnhealthy(error.clone()));
            let failure = Failure { status, message: error.reason, retry_after_ms: error.retry_after_ms };
            self.refuse(core, request, &failure, out);
            return;
        }
        let left = view.chunk_count() - index;
        core.counts.chunks_refused += u64::from(left);
        core.counts.chunks_no_room += u64::from(left);
        if left > 0 && index == 0 {
            self.acks.recycle(answer);
            let why = match blocked {
                Status::ArenaFull => "the arena is full, and there was no room in time",
                Status::NotOwner => "the streamlet is being moved to another node, and that took too long",
                _ => "the disk is too far behind, and there was no room in time",
            };
            let message = format!("{why}; nothing was appended");
            self.refuse(core, request, &Failure::later(blocked, message), out);
            return;
        }
        for _ in 0..left {
            answer.body.extend_from_slice(&ChunkResult::failed(blocked, 0).to_bytes());
        }
        if answer.tickets.is_empty() && self.acks.is_empty() {
            let took_us = core.clock.monotonic_us().saturating_sub(received_us);
            core.broker.latencies.write_process.observe(took_us);
            let mut frame = out.begin(&request.response(Status::Ok as u16));
            frame.body().extend_from_slice(&answer.body);
            frame.finish();
            self.acks.recycle(answer);
            return;
        }
        self.acks.push(request, answer, Some(received_us), request_bytes, deadline_us);
        self.complete(core, core.clock.monotonic_us(), out);
    }

    fn refuse_overloaded(
        &mut self,
        core: &mut Core,
        request: &FrameHeader,
        partial: Partial,
        out: &mut Outbox,
    ) -> Flow {
        self.acks.recycle(partial.answer);
        let message = format!(
            "{} requests with {} bytes are in flight on this connection, the limits are {} and {}; nothing was appended",
            self.acks.len(),
            self.acks.bytes(),
            core.broker.config.in_flight_requests_max,
            core.broker.config.in_flight_bytes_max,
        );
        self.refuse(core, request, &Failure::later(Status::Overloaded, message), out);
        Flow::Done
    }

    /// A request whose layout is wrong. A wrong chunk is the chunk's fault; if the frame itself is wrong there is no
    /// telling what the peer sends next, and the connection ends.
    fn refuse_malformed(
        &mut self,
        core: &mut Core,
        request: &FrameHeader,
        error: &ProtocolError,
        out: &mut Outbox,
    ) -> Flow {
        let failure = Failure::from(error.clone());
        self.refuse(core, request, &failure, out);
        if failure.status == Status::Malformed { Flow::Close(failure.to_string()) } else { Flow::Done }
    }

    fn refuse(&mut self, core: &mut Core, request: &FrameHeader, failure: &Failure, out: &mut Outbox) {
        core.counts.requests_refused += 1;
        if self.acks.is_empty() || failure.status == Status::Malformed {
            out.error(request, failure.status, &failure.body());
        } else {
            self.acks.push_failure(request, failure);
        }
    }
}

/// Whether clients may write to a streamlet now.
#[inline]
fn takes(broker: &Broker, stream: &Stream, streamlet: &Streamlet) -> Result<(), Status> {
    // Backups say no to a node that was declared lost; where there is one copy nobody does, whatever the stream says while that changes.
    match stream.is_system() {
        true => Err(Status::InvalidArgument),
        false if !broker.is_confirmed() && streamlet.copies() == 1 => Err(Status::NotOwner),
        false => Ok(()),
    }
}

/// What can be said of a chunk before its lane is known.
#[inline]
fn accept(broker: &Broker, chunk: &ChunkView<'_>) -> Result<(), Status> {
    let header = chunk.header();
    if header.kind != PayloadKind::Records {
        return Err(Status::UnsupportedPayload);
    }
    if broker.applications.is_system_stream(header.stream) {
        return Err(Status::InvalidArgument);
    }
    Ok(())
}

/// Has the answer wait until a chunk is durable, unless the stream's producers need not.
#[inline]
fn wait_for(lane: &Lane, appended: &Appended, partial: &mut Partial, counts: &mut BrokerCounts) {
    let (Some(ticket), Some(sink)) = (appended.ticket, lane.sink_of(appended.log)) else { return };
    if lane.may_answer_early() {
        counts.chunks_answered_early += 1;
    } else {
        partial.answer.tickets.add(sink, ticket);
    }
}

#[inline]
fn appended_result(lane: &Arc<Lane>, appended: &Appended) -> ChunkResult {
    let known = appended.base_ordinal != Appended::UNKNOWN_ORDINAL;
    ChunkResult {
        status: if known { Status::Ok } else { Status::SequenceTooOld } as u16,
        duplicate: appended.duplicate,
        forgot: false,
        lane: lane.id(),
        cursor: appended.cursor,
        base_ordinal: appended.base_ordinal,
    }
}

#[inline]
fn count_appended(counts: &mut BrokerCounts, chunk: &ChunkView<'_>, appended: &Appended) {
    if appended.duplicate {
        counts.chunks_duplicate += 1;
        return;
    }
    counts.chunks_appended += 1;
    counts.records_appended += u64::from(chunk.header().record_count);
    counts.bytes_appended += chunk.as_bytes().len() as u64;
}

/// A chunk that its lane does not take.
#[cold]
fn not_appended(counts: &mut BrokerCounts, partial: &mut Partial, error: &AppendError) -> Append {
    let (status, detail) = append_status(error);
    if let AppendError::SinkUnhealthy(error) = error {
        partial.disk = (partial.disk.0 + 1, Some(error.clone()));
    }
    let forgot = matches!(error, AppendError::SequenceGap { forgot: true, .. });
    match refused(counts, status, detail) {
        Append::Done(result) => Append::Done(ChunkResult { forgot, ..result }),
        full @ Append::Full(_) => full,
    }
}

#[cold]
fn refused(counts: &mut BrokerCounts, status: Status, detail: u64) -> Append {
    counts.chunks_refused += 1;
    match status {
        Status::ChunkChecksum => counts.chunks_checksum += 1,
        Status::SequenceGap | Status::StaleEpoch => counts.chunks_out_of_sequence += 1,
        Status::DiskFull | Status::DiskFailed => counts.chunks_disk += 1,
        _ => {}
    }
    Append::Done(ChunkResult::failed(status, detail))
}
