//! Produce: record batches from a request into lanes, one chunk each, verbatim.
//!
//! The request is read in place, and a batch is appended from where it lies, behind the header of its chunk
//! (docs/write-path.md). Its checksum is verified by the append: the chunk's is computed from the one that the batch carries
//! ([`KafkaChunk`]), so that the bytes are gone through once. When the arena is full the request stops where it is and goes on
//! when there is room. A log that is behind holds up the batches that are for it, and no others: these are appended meanwhile, and those are tried again when it calls. An answer waits until everything that it acknowledges is as durable as its stream asks, also with acks = 1: but for streams
//! with asynchronous replication, where acks = -1 waits for the copies, and acks = 1 for the owner.

mod ahead;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafka_protocol::ResponseError;
use kera_format::chunk::{Chunk, ChunkTarget, KafkaChunk};
use kera_format::{FormatError, ProducerEpoch, ProducerId, StreamOptions, Timestamps};
use kera_log::{AppendError, Appended, DurabilitySink, Lane, Observer, SinkErrorKind, Ticket};
use kera_protocol::StreamInfo;
use kera_rpc::Outbox;
use uuid::Uuid;

use crate::batch::{BatchHeader, CHECKED_FROM, is_zstd, without_key};
use crate::configs::BatchLimits;
use crate::convert::as_kept;
use crate::door::{After, Topic};
use crate::floors::{first_offset, of_plain};
use crate::session::{Core, Request};
use crate::transaction_door::MayWrite;
use crate::transaction_owner::{self, Question, Wish};
use crate::transactions::Claim;
use crate::visibility::only_committed;
use crate::wire::{Malformed, Reader, Writer};

/// Versions below carry older record formats.
const VERSION_MIN: i16 = 3;
/// From this version on clients know the error that says that their transaction has to be aborted.
const VERSION_TELLS_ABORTABLE: i16 = 11;
/// From this version on a partition is added to the producer's transaction by what is written to it (KIP-890).
const VERSION_ADDS_PARTITIONS: i16 = 12;
/// From here on batches may be compressed with zstd.
const VERSION_ZSTD: i16 = 7;
/// From this version on topics are named by their ids.
const VERSION_TOPIC_IDS: i16 = 13;
/// Tries of one batch before the session gives other connections a turn, when blocks come back but not to it.
const SPACE_TRIES: usize = 4;
/// From this version on a partition's answer says why its batch was refused, and which of its records are wrong.
const VERSION_TELLS_RECORDS: i16 = 8;
/// Partitions that one request may name: far more than fit into one that a client sends with a batch for each. A few bytes name one without a batch, and what is noted
/// of it and answered is many times that.
const PARTITIONS_MAX: usize = 100_000;
/// Records of a batch that are named when they are wrong.
const RECORDS_TOLD_MAX: usize = 100;
const TOO_FAR: &str = "a record's time is further from the clock's than message.timestamp.before.max.ms or message.timestamp.after.max.ms";
const NO_KEY: &str = "a record of a compacted topic needs a key";

/// What became of a request.
pub(crate) enum Outcome {
    /// There is no room: to be offered again when the session is woken.
    Blocked,
    /// The producer wants no answer.
    Silent,
    /// The producer wants no answer, and something was refused: that its connection is closed is all that tells it to look where the
    /// partitions are.
    Refused(String),
    Answer(Waiting),
}

/// An answer that is complete but for the disk.
pub(crate) struct Waiting {
    body: Vec<u8>,
    /// Where in the body the error codes are that say that a batch is there, of those that wait, and what for.
    good: Vec<(usize, Awaited)>,
    /// What is waited for, and the highest of its tickets. Those that are durable, or waited for no longer, go, the last first.
    tickets: Vec<(Arc<dyn DurabilitySink>, Ticket)>,
    /// Every batch that waits is recognised if it comes again.
    may_come_again: bool,
    started_us: u64,
    deadline_us: u64,
}

/// What a batch has to wait for: which of the request's sinks, and the ticket there.
type Awaited = (usize, Ticket);

impl Waiting {
    pub(crate) fn started_us(&self) -> u64 {
        self.started_us
    }

    pub(crate) fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + size_of_val(&*self.good)
    }

    /// Sends the answer if it is its turn. True if it is done with.
    ///
    /// A log that has had too few copies for long may stay so, and what it took before is not waited for until the time of the request is over: its producer would
    /// hear of nothing else on the connection meanwhile. But only if all that waits is recognised when it comes again: a producer without an id would write it twice,
    /// where it may yet become durable in time.
    pub(crate) fn complete(&mut self, now_us: u64, observer: &Arc<dyn Observer>, out: &mut Outbox) -> bool {
        while let Some((sink, ticket)) = self.tickets.last() {
            let is_given_up = || self.may_come_again && has_too_few_copies(sink);
            if sink.durable_through() >= *ticket {
                self.tickets.pop();
            } else if now_us >= self.deadline_us {
                self.take_back(ResponseError::RequestTimedOut);
            } else if is_given_up() {
                self.take_back(ResponseError::NotEnoughReplicasAfterAppend);
            } else if sink.wait(*ticket, observer, 0) {
                // Asked once more after registering: it calls when that begins, which may just have been.
                if !is_given_up() {
                    return false;
                }
                self.take_back(ResponseError::NotEnoughReplicasAfterAppend);
            }
        }
        let mut frame = out.begin_prefixed();
        frame.body().extend_from_slice(&self.body);
        frame.finish();
        true
    }

    /// Takes back what is said of batches that are not durable yet in the last log that is waited for, and of no others, as Kafka does: a batch that is there may have been
    /// waited for by one log, and the one beside it by another that has lost its copies. A producer without an id would write the first one twice.
    fn take_back(&mut self, error: ResponseError) {
        let Some((sink, _)) = self.tickets.pop() else { return };
        // What was appended may yet become durable. A producer with an id that sends it again gets its place.
        let (code, of) = (error.code().to_be_bytes(), self.tickets.len());
        let durable = sink.durable_through();
        for (at, _) in self.good.iter().filter(|(_, (sink, ticket))| *sink == of && durable < *ticket) {
            self.body[*at..at + 2].copy_from_slice(&code);
        }
    }
}

/// Whether a log has had too few copies for long.
fn has_too_few_copies(sink: &Arc<dyn DurabilitySink>) -> bool {
    sink.healthy().is_err_and(|error| error.kind == SinkErrorKind::TooFewCopies)
}

/// What became of one partition's batch.
#[derive(Clone)]
struct Written {
    error: i16,
    message: Option<Cow<'static, str>>,
    base_offset: i64,
    /// The time of append if that is the records' time; -1 otherwise.
    append_ms: i64,
    log_start: i64,
    /// What has to be durable before it may be acknowledged, if anything has.
    awaited: Option<Awaited>,
}

impl Written {
    fn refused(error: ResponseError, message: impl Into<Cow<'static, str>>) -> Written {
        let message = Some(message.into());
        Written { error: error.code(), message, base_offset: -1, append_ms: -1, log_start: -1, awaited: None }
    }

    /// Whether the batch is there. Producers take both for done.
    fn is_there(&self) -> bool {
        self.error == 0 || self.error == ResponseError::DuplicateSequenceNumber.code()
    }
}

/// Why a batch is not dealt with yet.
enum Later {
    /// Its log [is waited for](Partial::waits_out). What is for others goes on.
    Log,
    /// There is no room, or its transaction is not known to have begun. Nothing behind it is tried.
    All,
}

/// What becomes of a request that wants no answer. Its producer hears of a batch that was not taken only if its connection is closed, as in Kafka; one that has waited for
/// its log until the time of the request was over is no exception. To say nothing would lose it silently, and to wait on would hold up what the producer has for other logs, and
/// keep it from asking who leads the partition by now. What it waits with is one request, of a size that is bounded.
fn without_answer(written: &[Written]) -> Outcome {
    let mut refused = written.iter().filter(|written| !written.is_there());
    let Some(first) = refused.next() else { return Outcome::Silent };
    let error = ResponseError::try_from_code(first.error).map_or_else(String::new, |error| format!("{error:?}, "));
    let (why, count, all) = (first.message.as_deref().unwrap_or_default(), 1 + refused.count(), written.len());
    Outcome::Refused(format!("of {all} batches that want no answer {count} were refused, the first: {error}{why}"))
}

/// Notes that a log has called, and wakes the session.
struct Call {
    has_come: AtomicBool,
    session: Arc<dyn Observer>,
}

impl Observer for Call {
    fn advanced(&self, _: u64) {
        self.has_come.store(true, Ordering::Release);
        self.session.advanced(0);
    }
}

/// A log that has taken nothing of a request.
struct Behind {
    sink: Arc<dyn DurabilitySink>,
    call: Arc<Call>,
    /// It was found to take nothing on this walk of the request: nothing more is offered to it, so that batches of one partition stay in order.
    is_passed_over: bool,
}

/// A request that is under way.
struct Partial {
    /// What became of each batch, by its place in the request; `None` if it waits for its log. Those behind the last are still to be tried.
    written: Vec<Option<Written>>,
    /// The logs that are or were waited for.
    behind: Vec<Behind>,
    /// Records that are wrong, by their numbers in the batch, and where in `written` that is said.
    wrong: Vec<(usize, Vec<u32>)>,
    /// What the coordinator of a transaction was asked for batches, with their places.
    questions: Vec<(usize, Arc<Question>)>,
    /// In front of which place that was done ahead of their turn.
    asked_to: usize,
    /// A batch was let into the transaction, which runs.
    is_let_in: bool,
    /// The headers of batches that were looked at and are not dealt with, with their places: of one for each log that is behind at most, and of the one that nothing behind it is
    /// tried for.
    checked: Vec<(usize, BatchHeader)>,
    tickets: Vec<(Arc<dyn DurabilitySink>, Ticket)>,
    /// Something that waits for a ticket is of a producer without an id: it would be there twice if it came again.
    has_unnumbered: bool,
    /// The owner's own copy is enough for the producer, where the stream leaves it to that.
    acks_owner: bool,
    /// It waits for no answer, and there is none that could tell it anything.
    acks_nobody: bool,
    started_us: u64,
    deadline_us: u64,
}

impl Partial {
    fn new(acks: i16, started_us: u64, deadline_us: u64) -> Partial {
        let (acks_owner, acks_nobody) = (acks == 1, acks == 0);
        let (written, behind, wrong, tickets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (questions, checked, has_unnumbered) = (Vec::new(), Vec::new(), false);
        Partial {
            written,
            behind,
            wrong,
            questions,
            asked_to: 0,
            is_let_in: false,
            checked,
            tickets,
            has_unnumbered,
            acks_owner,
            acks_nobody,
            started_us,
            deadline_us,
        }
    }

    /// Whether a log that takes nothing for this reason is waited for, with the requests that come after on the connection.
    ///
    /// One that is behind is. One that has had too few copies for long may not come back before the client's patience ends: its batch is refused at once, as by Kafka, and the
    /// partitions in other logs go on. But not one that wants no answer, which Kafka does not refuse either: all that could tell its producer is that its connection
    /// is closed, and again with each of its next batches.
    fn waits_out(&self, kind: SinkErrorKind) -> bool {
        if self.acks_nobody { kind.passes() } else { kind == SinkErrorKind::Behind }
    }

    /// Has the session called when a log may take something again: once, however often other logs have it look meanwhile. False if the log may
    /// take something now.
    fn wait_for(&mut self, sink: &Arc<dyn DurabilitySink>, session: &Arc<dyn Observer>) -> bool {
        let known = self.behind.iter().position(|known| Arc::ptr_eq(&known.sink, sink));
        if known.is_some_and(|at| !self.behind[at].call.has_come.load(Ordering::Acquire)) {
            return true;
        }
        let call = Arc::new(Call { has_come: AtomicBool::new(false), session: Arc::clone(session) });
        let observer: Arc<dyn Observer> = Arc::clone(&call) as _;
        let waits = sink.wait(sink.durable_through() + 1, &observer, 0);
        if !waits {
            call.has_come.store(true, Ordering::Release);
        }
        match known {
            Some(at) => self.behind[at].call = call,
            None => self.behind.push(Behind { sink: Arc::clone(sink), call, is_passed_over: false }),
        }
        waits
    }

    /// A log takes nothing on this walk of the request.
    fn pass_over(&mut self, sink: &Arc<dyn DurabilitySink>) {
        let known = self.behind.iter_mut().filter(|known| Arc::ptr_eq(&known.sink, sink));
        known.for_each(|known| known.is_passed_over = true);
    }

    fn is_passed_over(&self, lane: &Lane) -> bool {
        let is_it = |sink: &Arc<dyn DurabilitySink>| {
            self.behind.iter().any(|known| known.is_passed_over && Arc::ptr_eq(&known.sink, sink))
        };
        lane.sink().is_some_and(is_it)
    }

    /// What was asked for the batch at a place.
    fn take_question(&mut self, place: usize) -> Option<Arc<Question>> {
        let at = self.questions.iter().position(|(of, _)| *of == place)?;
        Some(self.questions.swap_remove(at).1)
    }

    /// It is known what becomes of the batch at a place.
    fn settle(&mut self, place: usize, written: Written) {
        self.checked.retain(|(of, _)| *of != place);
        self.note(place, Some(written));
    }

    fn note(&mut self, place: usize, written: Option<Written>) {
        match self.written.get_mut(place) {
            Some(known) => *known = written,
            None => self.written.push(written),
        }
    }

    /// The answer waits for a ticket of a sink.
    fn await_ticket(&mut self, sink: &Arc<dyn DurabilitySink>, ticket: Ticket) -> Awaited {
        let known = self.tickets.iter().position(|(known, _)| Arc::ptr_eq(known, sink));
        let at = known.unwrap_or_else(|| {
            self.tickets.push((Arc::clone(sink), ticket));
            self.tickets.len() - 1
        });
        let (_, highest) = &mut self.tickets[at];
        *highest = ticket.max(*highest);
        (at, ticket)
    }
}

/// The produce side of a session.
#[derive(Default)]
pub(crate) struct Producing {
    partial: Option<Partial>,
    /// Why a batch was too large, of an answer that has no field for it.
    untold: Option<Cow<'static, str>>,
}

/// A request's fields in front of its topics.
struct Head<'a> {
    transactional_id: Option<&'a str>,
    acks: i16,
    timeout_ms: i32,
    topics: usize,
}

fn head<'a>(request: &Request, reader: &mut Reader<'a>) -> Result<Head<'a>, Malformed> {
    let transactional_id = if request.version >= VERSION_MIN { reader.nullable_string()? } else { None };
    let (acks, timeout_ms) = (reader.i16()?, reader.i32()?);
    let topics = reader.array()?.unwrap_or(0);
    Ok(Head { transactional_id, acks, timeout_ms, topics })
}

/// A topic of a request: by name, or by id.
#[derive(Clone, Copy)]
enum Named<'a> {
    Name(&'a str),
    Id(u128),
}

fn named<'a>(request: &Request, reader: &mut Reader<'a>) -> Result<Named<'a>, Malformed> {
    if request.version >= VERSION_TOPIC_IDS { reader.u128().map(Named::Id) } else { reader.string().map(Named::Name) }
}

/// Walks a request, and calls back for each topic and each partition's batch.
fn walk<'a, T>(
    request: &Request,
    body: &'a [u8],
    each: &mut T,
    topic: impl Fn(&mut T, Named<'a>, usize),
    partition: impl Fn(&mut T, i32, Option<&'a [u8]>) -> bool,
    topic_end: impl Fn(&mut T),
) -> Result<bool, Malformed> {
    let mut reader = Reader::new(body, request.is_flexible());
    let topics = head(request, &mut reader)?.topics;
    for _ in 0..topics {
        let name = named(request, &mut reader)?;
        let partitions = reader.array()?.unwrap_or(0);
        topic(each, name, partitions);
        for _ in 0..partitions {
            let index = reader.i32()?;
            let records = reader.nullable_bytes()?;
            reader.tags()?;
            if !partition(each, index, records) {
                return Ok(false);
            }
        }
        reader.tags()?;
        topic_end(each);
    }
    reader.tags()?;
    Ok(true)
}

/// Walks a request for what is wrong with it.
fn check(request: &Request, body: &[u8]) -> Result<(), Malformed> {
    let mut count = 0;
    let is_within = |count: &mut usize, _: i32, _: Option<&[u8]>| {
        *count += 1;
        *count <= PARTITIONS_MAX
    };
    match walk(request, body, &mut count, |_, _, _| {}, is_within, |_| {})? {
        true => Ok(()),
        false => Err(Malformed::Value { what: "the number of partitions", value: count as i64 }),
    }
}

/// Calls `each` with the batches of a request.
pub(crate) fn each_batch<'a>(
    request: &Request,
    body: &'a [u8],
    mut each: impl FnMut(&'a [u8]),
) -> Result<(), Malformed> {
    let partition = |each: &mut dyn FnMut(&'a [u8]), batch: Option<&'a [u8]>| {
        each(batch.unwrap_or_default());
        true
    };
    walk(request, body, &mut each, |_, _, _| {}, |each, _, batch| partition(each, batch), |_| {}).map(drop)
}

/// What the walk that appends carries along.
struct Appending<'a> {
    core: &'a mut Core,
    partial: &'a mut Partial,
    refuse: Option<Written>,
    transactional_id: Option<&'a str>,
    adds_partitions: bool,
    /// The answer has a field for why a batch was refused; otherwise that comes into `untold`.
    tells_why: bool,
    untold: &'a mut Option<Cow<'static, str>>,
    tells_abortable: bool,
    takes_zstd: bool,
    by_id: bool,
    topic: Option<Arc<Topic>>,
    /// What the catalog has of a topic of which nothing is here.
    info: Option<StreamInfo>,
    /// Where the batch is in the request that comes next.
    next: usize,
    now_ms: i64,
    out_of_time: bool,
    /// The request has stood still until it was out of time: see [`Appending::partition`].
    is_over: bool,
    /// The batch waits for the coordinator of its transaction.
    is_asking: bool,
    /// One does, and what others of the request will need of that coordinator is asked for as well.
    is_ahead: bool,
    /// That, where it is this node which is alone.
    ahead: Vec<Claim>,
}

impl Producing {
    /// Which limit a batch was refused for in an answer that could not say it.
    pub(crate) fn take_untold(&mut self) -> Option<Cow<'static, str>> {
        self.untold.take()
    }

    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.partial.as_ref().map(|partial| partial.deadline_us)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.partial.is_some()
    }

    /// Takes a request, or goes on with the one that was blocked: the same is offered again.
    pub(crate) fn handle(
        &mut self,
        core: &mut Core,
        request: &Request,
        body: &[u8],
        now_us: u64,
    ) -> Result<Outcome, Malformed> {
        let mut reader = Reader::new(body, request.is_flexible());
        let Head { transactional_id, acks, timeout_ms, .. } = head(request, &mut reader)?;
        if self.partial.is_none() {
            // Its layout is wrong in whole or not at all, and nothing of it is appended before that is known.
            check(request, body)?;
        }
        let wait_ms = u64::try_from(timeout_ms).unwrap_or(0).min(core.door.config.produce_wait_ms_max.into());
        let deadline_us = now_us + wait_ms * 1000;
        let stood_still = self.partial.is_some();
        let mut partial = self.partial.take().unwrap_or_else(|| Partial::new(acks, now_us, deadline_us));
        let refuse = if request.version < VERSION_MIN {
            let why = "records of this version are not kept; use Produce version 3 or later";
            Some(Written::refused(ResponseError::UnsupportedVersion, why))
        } else if !matches!(acks, -1..=1) {
            Some(Written::refused(ResponseError::InvalidRequiredAcks, "acks is -1, 0 or 1"))
        } else {
            None
        };
        let now_ms = core.door.clock.now_ms();
        let out_of_time = now_us >= partial.deadline_us;
        partial.behind.iter_mut().for_each(|log| log.is_passed_over = false);
        let mut appending = Appending {
            core,
            partial: &mut partial,
            refuse,
            transactional_id,
            tells_abortable: request.version >= VERSION_TELLS_ABORTABLE,
            adds_partitions: request.version >= VERSION_ADDS_PARTITIONS,
            tells_why: request.version >= VERSION_TELLS_RECORDS,
            untold: &mut self.untold,
            takes_zstd: request.version >= VERSION_ZSTD,
            by_id: request.version >= VERSION_TOPIC_IDS,
            topic: None,
            info: None,
            next: 0,
            now_ms,
            out_of_time,
            is_over: out_of_time && stood_still,
            is_asking: false,
            is_ahead: false,
            ahead: Vec::new(),
        };
        let whole = walk(
            request,
            body,
            &mut appending,
            |all, name, _| all.topic(name),
            |all, index, records| all.partition(index, records),
            |_| {},
        )?;
        // Also where the walk has ended with as many as are asked for at a time.
        let is_ahead = appending.add_ahead();
        if !whole || is_ahead || partial.written.iter().any(Option::is_none) {
            self.partial = Some(partial);
            return Ok(Outcome::Blocked);
        }
        let written: Vec<Written> = std::mem::take(&mut partial.written).into_iter().flatten().collect();
        if acks == 0 {
            return Ok(without_answer(&written));
        }
        answer(request, body, written, partial).map(Outcome::Answer)
    }
}

impl Appending<'_> {
    fn topic(&mut self, name: Named<'_>) {
        self.topic = match name {
            _ if self.refuse.is_some() => None,
            Named::Name(name) => self.core.topic(name),
            Named::Id(id) => self.core.topic_of(Uuid::from_u128(id)),
        };
        self.info = match name {
            _ if self.refuse.is_some() || self.topic.is_some() => None,
            Named::Name(name) => self.core.door.info(name),
            Named::Id(id) => self.core.door.info_of(Uuid::from_u128(id)),
        };
    }

    /// The refusal of a batch for a partition of which nothing is here.
    fn not_here(&self, partition: i32) -> Written {
        let door = &self.core.door;
        let found = self.topic.as_ref().map(|topic| door.info(&topic.name));
        let info = found.as_ref().map_or(self.info.as_ref(), Option::as_ref);
        let is_known = self.topic.is_some() || info.is_some();
        let (error, why) = match door.not_here(info, partition) {
            ResponseError::UnknownTopicOrPartition if !is_known && self.by_id => {
                (ResponseError::UnknownTopicId, "there is no such topic")
            }
            error @ ResponseError::UnknownTopicOrPartition => {
                (error, if is_known { "there is no such partition" } else { "there is no such topic" })
            }
            error => (error, "this node has not heard yet whose the partition is"),
        };
        Written::refused(error, why)
    }

    /// Deals with a partition's batch, unless that is done or its log is waited for. False if nothing behind it is to be tried now.
    ///
    /// Nothing more is appended of a request that has waited for room until its time was over. Its answer goes out at once, and would say of what
    /// became durable a moment later that it is in doubt: a producer without an id would write that twice. The same error of a batch that is not there makes
    /// every producer send it again, and then it is written once. Of a request whose time is over as it comes, as with a timeout of 0, all
    /// is tried once: it would never be written otherwise.
    fn partition(&mut self, partition: i32, records: Option<&[u8]>) -> bool {
        let place = self.next;
        self.next += 1;
        if self.partial.written.get(place).is_some_and(Option::is_some) {
            return true;
        }
        if self.is_ahead {
            return self.ask_ahead(place, partition, records);
        }
        let appended = if self.is_over { Err(Later::All) } else { self.append(place, partition, records) };
        match appended {
            Ok(written) => self.settle(place, written),
            Err(_) if self.out_of_time => {
                let why = "there was no room in time; nothing of the batch was appended";
                self.settle(place, Written::refused(ResponseError::RequestTimedOut, why));
            }
            Err(Later::Log) => self.partial.note(place, None),
            Err(Later::All) => return self.goes_ahead(place),
        }
        true
    }

    fn settle(&mut self, place: usize, written: Written) {
        if written.error != 0 {
            self.core.door.counts.batch_refused();
        }
        if written.error == ResponseError::MessageTooLarge.code() && !self.tells_why {
            *self.untold = written.message.clone();
        }
        self.partial.settle(place, written);
    }

    /// Appends a batch, or says why it is refused.
    fn append(&mut self, place: usize, partition: i32, records: Option<&[u8]>) -> Result<Written, Later> {
        if let Some(refused) = &self.refuse {
            return Ok(refused.clone());
        }
        let topic = self.topic.clone();
        let Some((topic, lane)) = topic.as_ref().and_then(|topic| Some((topic, topic.lane(partition)?))) else {
            return Ok(self.not_here(partition));
        };
        if self.partial.is_passed_over(lane) {
            return Err(Later::Log);
        }
        let broker = &self.core.door.broker;
        // Backups say no to a node that was declared lost; where there is one copy nobody does, whatever the topic says while that changes.
        if !broker.is_confirmed() && lane.copies() == 1 {
            let why = "the node has not heard from the coordinators for too long";
            return Ok(Written::refused(ResponseError::NotLeaderOrFollower, why));
        }
        let batch = records.unwrap_or_default();
        let mut header = match self.check_once(place, batch) {
            Ok(header) => header,
            Err(refused) => return Ok(refused),
        };
        if topic.stream.compacts()
            && let Some(refused) = self.refuse_without_key(place, batch)
        {
            return Ok(refused);
        }
        if topic.stream.limits_batches()
            && let Some(refused) = self.refuse_beyond(&topic.stream.options(), &header, batch)
        {
            return Ok(refused);
        }
        let (kept, stamped_ms);
        let batch = if topic.stream.changes_batches() {
            let options = topic.stream.options();
            kept = match as_kept(batch, &options, self.now_ms) {
                Ok(kept) => kept,
                Err((error, why)) => return Ok(Written::refused(error, why)),
            };
            header = header.of_kept(&kept);
            stamped_ms = if options.timestamps == Timestamps::Append { self.now_ms } else { -1 };
            &kept[..]
        } else {
            stamped_ms = -1;
            batch
        };
        let known = header.producer_id > 0;
        let target = ChunkTarget {
            stream: lane.stream_id(),
            streamlet: lane.streamlet_id(),
            producer_id: ProducerId(if known { header.producer_id.cast_unsigned() } else { 0 }),
            producer_epoch: ProducerEpoch(if known { header.producer_epoch.cast_unsigned() } else { 0 }),
            sequence: if known { header.last_sequence() } else { 0 },
        };
        let (count, max_timestamp_ms) = (header.record_count, header.max_timestamp_ms);
        match KafkaChunk::new(batch, &target, count, max_timestamp_ms, CHECKED_FROM, header.crc) {
            Ok(chunk) => match self.transactional_id {
                Some(id) => self.append_in_transaction(place, lane, &chunk, id, (&topic.name, partition), &header),
                None => self.append_chunk(lane, &chunk).map(|appended| self.appended(lane, appended)),
            }
            .map(|written| self.noted(written, known, stamped_ms)),
            Err(error) => Ok(refusal(&AppendError::Format(error))),
        }
    }

    /// What is told of a batch, and whether it is one of a producer with an id: what waits of others must not be sent again for nothing.
    fn noted(&mut self, written: Written, is_numbered: bool, stamped_ms: i64) -> Written {
        self.partial.has_unnumbered |= !is_numbered && written.awaited.is_some();
        Written { append_ms: if written.error == 0 { stamped_ms } else { -1 }, ..written }
    }

    /// The header of the batch at a place, with the time of its records. A batch that waits is offered again and again, the same each time: its records are opened once.
    fn check_once(&mut self, place: usize, batch: &[u8]) -> Result<BatchHeader, Written> {
        if let Some((_, header)) = self.partial.checked.iter().find(|(of, _)| *of == place) {
            return Ok(*header);
        }
        let header = self.check(batch)?.with_time_of_records(batch);
        self.partial.checked.push((place, header));
        Ok(header)
    }

    /// The header of a batch that is in order and belongs into this request.
    fn check(&self, batch: &[u8]) -> Result<BatchHeader, Written> {
        if !self.takes_zstd && is_zstd(batch) {
            let why = "zstd comes with Produce version 7 or later";
            return Err(Written::refused(ResponseError::UnsupportedCompressionType, why));
        }
        let header = BatchHeader::check(batch).map_err(|(error, why)| Written::refused(error, why))?;
        if header.transactional && self.transactional_id.is_none() {
            let why = "a transactional batch comes with a transactional id";
            return Err(Written::refused(ResponseError::TransactionalIdAuthorizationFailed, why));
        }
        if header.transactional != self.transactional_id.is_some() {
            let why = "a transactional id and transactional batches come together";
            return Err(Written::refused(ResponseError::InvalidTxnState, why));
        }
        Ok(header)
    }

    /// Refuses a batch that settings of the topic do not allow, as it comes.
    fn refuse_beyond(&self, options: &StreamOptions, header: &BatchHeader, batch: &[u8]) -> Option<Written> {
        let limits = BatchLimits::of(options);
        if batch.len() as u64 > limits.bytes {
            let (bytes, limit) = (batch.len(), limits.bytes);
            let why = format!("the batch has {bytes} bytes, and the topic's max.message.bytes is {limit}");
            return Some(Written::refused(ResponseError::MessageTooLarge, why));
        }
        let is_near = |time_ms: &i64| limits.allow(*time_ms, self.now_ms);
        let are_near = options.timestamps == Timestamps::Append || header.times_ms(batch).iter().all(is_near);
        (!are_near).then(|| Written::refused(ResponseError::InvalidTimestamp, TOO_FAR))
    }

    /// Refuses a batch that a compacted topic cannot take.
    fn refuse_without_key(&mut self, place: usize, batch: &[u8]) -> Option<Written> {
        match without_key(batch, RECORDS_TOLD_MAX) {
            Ok(wrong) if wrong.is_empty() => None,
            Ok(wrong) => {
                self.partial.wrong.push((place, wrong));
                Some(Written::refused(ResponseError::InvalidRecord, NO_KEY))
            }
            Err((error, why)) => Some(Written::refused(error, why)),
        }
    }

    /// Appends a batch if it belongs to the producer's transaction. Under the partition's lock from the question to the answer:
    /// the transaction does not end in between, and nobody reads the batch for one that is committed.
    fn append_in_transaction(
        &mut self,
        place: usize,
        lane: &Arc<Lane>,
        chunk: &KafkaChunk<'_>,
        id: &str,
        (topic, partition): (&str, i32),
        header: &BatchHeader,
    ) -> Result<Written, Later> {
        let door = Arc::clone(&self.core.door);
        let transactions = &door.transactions;
        let producer = (header.producer_id, header.producer_epoch);
        let shared = transactions.partitions.get_or_make(lane.stream_id(), partition.cast_unsigned());
        only_committed(lane, &shared);
        let mut of = shared.lock();
        let observer = &self.core.observer;
        let may = if transactions.is_alone() {
            let may = transactions.may_write(id, producer, (topic, partition), lane, self.adds_partitions, observer);
            self.is_asking = self.adds_partitions && matches!(may, MayWrite::Later(Some(_)));
            may
        } else {
            let wish = Wish { id, producer, topic, partition, adds: self.adds_partitions };
            // What was asked for another batch is for that one.
            let mut question = self.partial.take_question(place);
            let may = transaction_owner::may_write(&door, (&shared, &mut of), lane, &wish, &mut question, observer);
            self.partial.questions.extend(question.map(|asked| (place, asked)));
            self.is_asking = matches!(may, MayWrite::Later(None));
            may
        };
        match may {
            MayWrite::Yes => self.partial.is_let_in = true,
            MayWrite::No(error) => {
                let not_running = error == ResponseError::InvalidTxnState && self.tells_abortable;
                let error = if not_running { ResponseError::TransactionAbortable } else { error };
                return Ok(Written::refused(error, "the batch is not part of a transaction that runs"));
            }
            MayWrite::Later(None) => return Err(Later::All),
            MayWrite::Later(Some(After { sink, ticket })) => {
                if !sink.wait(ticket, observer, 0) {
                    observer.advanced(0);
                }
                return Err(Later::All);
            }
        }
        let begins = self.adds_partitions && of.begun(header.producer_id).is_none();
        if begins && header.base_sequence != 0 && !lane.knows_producer(chunk.header().producer_id) {
            // An epoch counts from 0, so what comes first is missing, or the batch is of an earlier one.
            let why = "batches of the transaction before this one are missing";
            return Ok(Written::refused(ResponseError::OutOfOrderSequenceNumber, why));
        }
        let appended = self.append_chunk(lane, chunk)?;
        if let Ok(Appended { base_ordinal, duplicate: false, .. }) = appended {
            of.wrote(header.producer_id, base_ordinal);
        }
        drop(of);
        Ok(self.appended(lane, appended))
    }

    /// Appends a chunk, or says why not.
    fn append_chunk(
        &mut self,
        lane: &Arc<Lane>,
        chunk: &KafkaChunk<'_>,
    ) -> Result<Result<Appended, AppendError>, Later> {
        let log = self.core.door.broker.log();
        for _ in 0..SPACE_TRIES {
            match lane.append(chunk, self.now_ms) {
                Err(AppendError::ArenaFull(full)) => {
                    if log.wait_for_space(full.seen, &self.core.observer, 0) {
                        return Err(Later::All);
                    }
                }
                Err(AppendError::SinkUnhealthy(error)) if self.partial.waits_out(error.kind) => {
                    let Some(sink) = lane.sink() else { break };
                    let waits = self.partial.wait_for(sink, &self.core.observer);
                    // Asked once more after registering: it calls when something becomes durable, and when it is not behind any more. What is not waited for it may have told
                    // before, and calls no more.
                    if waits && sink.healthy().is_err_and(|error| self.partial.waits_out(error.kind)) {
                        self.partial.pass_over(sink);
                        return Err(Later::Log);
                    }
                }
                done => return Ok(done),
            }
        }
        // Blocks come back, but others are quicker: let them run and try again.
        self.core.observer.advanced(0);
        Err(Later::All)
    }

    fn appended(&mut self, lane: &Arc<Lane>, appended: Result<Appended, AppendError>) -> Written {
        let appended = match appended {
            Ok(appended) => appended,
            Err(error) => return refusal(&error),
        };
        if appended.base_ordinal == 0 && !appended.duplicate {
            self.core.door.broker.lane_started(lane);
        }
        let is_early = self.partial.acks_owner && lane.may_answer_early();
        let awaited = match (appended.ticket, lane.sink_of(appended.log), is_early) {
            (Some(ticket), Some(sink), false) => Some(self.partial.await_ticket(sink, ticket)),
            _ => None,
        };
        if appended.base_ordinal == Appended::UNKNOWN_ORDINAL {
            // Producers take this for done: it is there, only where is not known any more.
            let known = Written::refused(ResponseError::DuplicateSequenceNumber, "the batch was appended long ago");
            return Written { awaited, ..known };
        }
        let base_offset = appended.base_ordinal.cast_signed();
        // Where it begins at other nodes is not looked for here.
        let log_start = of_plain(lane, first_offset).map_or(-1, u64::cast_signed);
        Written { error: 0, message: None, base_offset, append_ms: -1, log_start, awaited }
    }
}

/// Kafka's error for a batch that was not appended.
fn refusal(error: &AppendError) -> Written {
    let (error, message) = match error {
        AppendError::ChunkTooLarge { bytes, limit } => {
            let why = format!(
                "the batch takes {bytes} bytes with its headers, and a segment of the stream has room for {limit}"
            );
            return Written::refused(ResponseError::MessageTooLarge, why);
        }
        AppendError::Format(error @ FormatError::OverLimit { .. }) => {
            return Written::refused(ResponseError::MessageTooLarge, error.to_string());
        }
        AppendError::Format(_) => (ResponseError::CorruptMessage, "the batch does not have the checksum that it says"),
        AppendError::SequenceGap { .. } => {
            (ResponseError::OutOfOrderSequenceNumber, "batches before this one are missing")
        }
        AppendError::StaleEpoch { .. } => {
            (ResponseError::InvalidProducerEpoch, "the producer is fenced by a later one")
        }
        AppendError::SinkUnhealthy(error) if error.kind == SinkErrorKind::Fenced => {
            (ResponseError::NotLeaderOrFollower, "the node was declared lost")
        }
        // All clients send it again after a while, and know that it is not there. A full disk passes as well, and some of them give up what they are told a storage error of.
        AppendError::SinkUnhealthy(error)
            if matches!(error.kind, SinkErrorKind::TooFewCopies | SinkErrorKind::Full) =>
        {
            return Written::refused(ResponseError::NotEnoughReplicas, error.reason.clone());
        }
        AppendError::SinkUnhealthy(_) => (ResponseError::KafkaStorageError, "the disk takes nothing at the moment"),
        AppendError::Closed => (ResponseError::UnknownTopicOrPartition, "the topic was deleted"),
        AppendError::Elsewhere { .. } => (ResponseError::NotLeaderOrFollower, "another node leads the partition"),
        AppendError::ArenaFull(_) => (ResponseError::RequestTimedOut, "the arena is full"),
    };
    Written::refused(error, message)
}

/// What the walk that answers carries along.
struct Answering<'a> {
    writer: Writer<'a>,
    request: Request,
    written: std::iter::Enumerate<std::vec::IntoIter<Written>>,
    wrong: Vec<(usize, Vec<u32>)>,
    good: Vec<(usize, Awaited)>,
}

/// The answer to a request all of whose batches are dealt with: what is `written` of each.
fn answer(request: &Request, body: &[u8], written: Vec<Written>, partial: Partial) -> Result<Waiting, Malformed> {
    let Partial { wrong, tickets, has_unnumbered, started_us, deadline_us, .. } = partial;
    let mut answer = Vec::with_capacity(64 + written.len() * 64);
    request.put_header(&mut answer);
    let mut reader = Reader::new(body, request.is_flexible());
    let topics = head(request, &mut reader)?.topics;
    let flexible = request.is_flexible();
    let mut answering = Answering {
        writer: Writer { out: &mut answer, flexible },
        request: *request,
        written: written.into_iter().enumerate(),
        wrong,
        good: Vec::new(),
    };
    answering.writer.count(topics);
    walk(
        request,
        body,
        &mut answering,
        |all, name, partitions| all.topic(name, partitions),
        |all, index, _| {
            all.partition(index);
            true
        },
        |all| all.writer.tags(),
    )?;
    if request.version >= 1 {
        answering.writer.i32(0);
    }
    answering.writer.tags();
    let good = answering.good;
    Ok(Waiting { body: answer, good, tickets, may_come_again: !has_unnumbered, started_us, deadline_us })
}

impl Answering<'_> {
    fn topic(&mut self, name: Named<'_>, partitions: usize) {
        match name {
            Named::Name(name) => self.writer.string(name),
            Named::Id(id) => self.writer.id(id),
        }
        self.writer.count(partitions);
    }

    fn partition(&mut self, index: i32) {
        let late = Written::refused(ResponseError::UnknownServerError, "the batch was not looked at");
        let (place, written) = self.written.next().unwrap_or((usize::MAX, late));
        let Written { error, message, base_offset, append_ms, log_start, awaited } = written;
        let version = self.request.version;
        let out = &mut self.writer;
        out.i32(index);
        if let Some(awaited) = awaited {
            self.good.push((out.out.len(), awaited));
        }
        out.i16(error);
        out.i64(base_offset);
        if version >= 2 {
            out.i64(append_ms);
        }
        if version >= 5 {
            out.i64(log_start);
        }
        if version >= VERSION_TELLS_RECORDS {
            let wrong = self.wrong.iter().find(|(of, _)| *of == place).map_or(&[][..], |(_, wrong)| wrong);
            out.count(wrong.len());
            for number in wrong {
                out.i32(number.cast_signed());
                out.nullable_string(Some(NO_KEY));
                out.tags();
            }
            out.nullable_string(message.as_deref());
        }
        out.tags();
    }
}
