//! What a coordinator keeps: a lane of a system stream, durable before anything that rests on it is answered. Read once, at the start
//! of the node or when its streamlet comes to it; from then on only appended to, and written anew when it has grown, so that what
//! stands before can go.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kera_broker::{Broker, Reading, applications_stream_options};
use kera_coordinator::{Coordinator, CoordinatorError};
use kera_env::Clock;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Cursor, FormatError, GroupId, LaneId, RecordView, StreamId, StreamOptions,
    StreamletId,
};
use kera_log::{DurabilitySink, Lane, Observer, ReadError, Stream, Tenure, Ticket};
use kera_protocol::Owner;
use kera_protocol::admin::StreamRef;
use parking_lot::{Condvar, Mutex};

use crate::door::{Catalog, Door};
use crate::groups::{AppendFailed, Mark};
use crate::limits_told::Said;

/// Bytes of records in one chunk: what is recorded in one go is there as a whole or not at all.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// Bytes of records in one chunk of [many](pieces), unless one record has more.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// How often a log rests before it is tried again.
const RESTS: u32 = 6;
/// After what time a copy is begun again that broke off: what is written of each stays in the log.
const COPY_PAUSE_US: u64 = 10_000_000;
/// How late it is noticed that what is read is wanted no more.
const PATIENCE: Duration = Duration::from_millis(50);
/// Time between two tries to have a stream made while nobody leads the coordinators.
const RETRY: Duration = Duration::from_millis(200);
/// How often it is looked whether the broker has been told of a stream, and how long until it is looked again: a minute in all.
const LOOKS: u32 = 6_000;
const LOOK: Duration = Duration::from_millis(10);
/// What an error is of that says nothing of what is on the disk: the cluster has not given what is asked of it.
pub const NOT_GIVEN: io::ErrorKind = io::ErrorKind::NotConnected;

/// The options of such a stream: as those of the stream of applications, with room for larger chunks.
pub(crate) fn state_stream_options() -> StreamOptions {
    StreamOptions { segment_bytes_max: 8 << 20, ..applications_stream_options() }
}

/// Why what another node has kept is not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// The node has more, and brings it from its disk: whoever asks again has it sooner or later.
    Slow(String),
    /// The node cannot be asked, or has no answer.
    Refused(String),
}

/// How long a node is waited for that cannot be asked, or that has transactions which do not end.
const FOUNDING_PATIENCE_US: u64 = 30_000_000;

/// The wait for one node that may have kept something when it was alone. Each has its own: one that is lost would else take the time of one that answers.
pub(crate) struct Patience {
    node: u32,
    until_us: u64,
    /// From then on it is said once more that the node takes its time.
    told_again_us: u64,
}

impl Patience {
    pub(crate) fn new(door: &Door, node: u32) -> Patience {
        let until_us = door.clock.monotonic_us() + FOUNDING_PATIENCE_US;
        Patience { node, until_us, told_again_us: until_us }
    }

    /// Whether the node is given up, and with it the rest of `what`. Not while it answers that there is more, nor for the whole time behind its last such answer: what
    /// it has was acknowledged.
    pub(crate) fn is_over(&mut self, door: &Door, why: &Unread, what: &str) -> bool {
        let (node, now_us) = (self.node, door.clock.monotonic_us());
        match why {
            Unread::Slow(why) => {
                if now_us > self.told_again_us {
                    tracing::warn!(node, why, "{what} is waited for");
                    self.told_again_us = now_us + FOUNDING_PATIENCE_US;
                }
                self.until_us = now_us + FOUNDING_PATIENCE_US;
                false
            }
            Unread::Refused(_) if now_us <= self.until_us => false,
            Unread::Refused(why) => {
                tracing::warn!(node, why, "not all of {what} there comes along");
                true
            }
        }
    }
}

/// What a node has told so far of what it has kept, over several readings: what it has told last as a whole, or the most that it has if it never did.
pub(crate) struct Told<T> {
    pub(crate) best: T,
    is_whole: bool,
}

impl<T> Told<T> {
    pub(crate) fn new(nothing: T) -> Told<T> {
        Told { best: nothing, is_whole: false }
    }

    /// It has told so much more now, as a whole or not; `count` says how much something is.
    pub(crate) fn hear(&mut self, next: T, is_whole: bool, count: impl Fn(&T) -> usize) {
        if is_whole || (!self.is_whole && count(&next) >= count(&self.best)) {
            *self = Told { best: next, is_whole };
        }
    }
}

/// Where a copy of everything begins and ends. What stands in front of a whole one counts no more, wherever it is: an earlier owner may have its groups of the log still
/// when this node lets go of its own, and with those of the records that took back what the earlier ones say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    Begin,
    End,
}

impl Edge {
    /// A name that nobody has ([`SYSTEM_PREFIX`](kera_coordinator::catalog::SYSTEM_PREFIX)), of which the record is that says so. To earlier versions it says that
    /// somebody is forgotten who was not there.
    fn name(self) -> &'static str {
        match self {
            Edge::Begin => "_kera.copy.begin",
            Edge::End => "_kera.copy.end",
        }
    }

    fn of(name: &str) -> Option<Edge> {
        [Edge::Begin, Edge::End].into_iter().find(|edge| edge.name() == name)
    }
}

/// Why some of a log could not be read that is read on behind that, as far as it is needed: what stands in front of a whole copy of everything is not.
#[derive(Default)]
pub(crate) struct Damage {
    pub(crate) unread: Option<ReadError>,
    /// A copy has begun of which nothing is missing.
    is_copied: bool,
}

impl Damage {
    /// Something cannot be read.
    pub(crate) fn meet(&mut self, why: ReadError) {
        (self.unread, self.is_copied) = (Some(why), false);
    }

    /// A copy begins or ends. True: a whole one ends, and what stands in front of it is not needed.
    pub(crate) fn pass(&mut self, edge: Edge) -> bool {
        let ends = edge == Edge::End && self.is_copied;
        if ends {
            self.unread = None;
        }
        self.is_copied = edge == Edge::Begin;
        ends
    }
}

/// What is kept, a record each.
pub(crate) trait Kept: Sized {
    fn encode(&self, into: &mut ChunkBuilder);
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError>;
}

/// What has records that say where a copy begins and ends.
pub(crate) trait Bounded: Kept + Clone {
    /// The record that says that somebody is forgotten.
    fn forgotten(name: String) -> Self;
    /// About how many bytes its record takes; not less.
    fn bytes(&self) -> usize;
    /// Who is forgotten, of such a record.
    fn is_forgotten(&self) -> Option<&str>;

    /// Whether it says where a copy begins or ends.
    fn edge(&self) -> Option<Edge> {
        self.is_forgotten().and_then(Edge::of)
    }
}

impl Bounded for kera_format::kafka_groups::Entry {
    fn bytes(&self) -> usize {
        self.bytes()
    }
    fn forgotten(name: String) -> Self {
        Self { group: name, fact: kera_format::kafka_groups::Fact::Group(None) }
    }
    fn is_forgotten(&self) -> Option<&str> {
        matches!(self.fact, kera_format::kafka_groups::Fact::Group(None)).then_some(&*self.group)
    }
}

impl Bounded for kera_format::kafka_transactions::Entry {
    fn bytes(&self) -> usize {
        let Self::Transaction(id, transaction) = self else { return 192 };
        let lists = transaction.as_ref().map_or(0, |of| {
            let partitions = of.partitions.keys().map(|of| 24 + of.topic.len());
            partitions.chain(of.groups.iter().map(|group| 4 + group.len())).sum::<usize>()
        });
        160 + id.len() + lists
    }
    fn forgotten(name: String) -> Self {
        Self::Transaction(name, None)
    }
    fn is_forgotten(&self) -> Option<&str> {
        if let Self::Transaction(id, None) = self { Some(id) } else { None }
    }
}

impl Kept for kera_format::kafka_groups::Entry {
    fn encode(&self, into: &mut ChunkBuilder) {
        self.encode(into);
    }
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError> {
        Self::decode(record)
    }
}

impl Kept for kera_format::kafka_transactions::Entry {
    fn encode(&self, into: &mut ChunkBuilder) {
        self.encode(into);
    }
    fn decode(record: &RecordView<'_>) -> Result<Self, FormatError> {
        Self::decode(record)
    }
}

/// Entries in pieces of which each fits into a chunk: a group with many members takes more than one, and so do much metadata and transactions with many
/// partitions.
pub(crate) fn pieces<E: Bounded>(entries: &[E]) -> impl Iterator<Item = &[E]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |entry: &&E| {
            bytes += entry.bytes();
            bytes <= PIECE_BYTES
        };
        let (piece, after) = rest.split_at_checked(rest.iter().take_while(fits).count().max(1))?;
        rest = after;
        Some(piece)
    })
}

/// Why something is not appended.
enum Refused {
    /// It never fits into one chunk.
    TooLarge,
    /// It may be later.
    NotNow,
}

/// The error of a node that does not start because it cannot read what it has kept in a stream: what to do is in it. `what` says what the stream is for.
pub(crate) fn cannot_be_read(stream: &str, what: &str, why: &ReadError) -> io::Error {
    // Nothing else that is wrong can be done without.
    let or = match why {
        ReadError::LoadFailed(_) => {
            ", or once with --accept-damage true to go on without what cannot be read of it: what this means is in docs/operations.md, under \
             `A disk that loses something`"
        }
        _ => "",
    };
    io::Error::other(format!(
        "{stream}, which says {what}, cannot be read: {why}. Nothing else is in doubt. Start the node again when its disk can be read{or}"
    ))
}

/// Where a log was not read on, and why.
pub(crate) struct Stopped {
    at: Cursor,
    what: Unreadable,
    pub(crate) why: String,
}

impl Stopped {
    pub(crate) fn at(at: Cursor, what: Unreadable, why: impl ToString) -> Stopped {
        Stopped { at, what, why: why.to_string() }
    }
}

/// What could not be read there.
pub(crate) enum Unreadable {
    /// A segment, by this node's disk.
    Segment,
    /// What another node has: it is not there, or its disk does not give it.
    Node,
    /// Nothing that could be passed over.
    Other,
}

/// The stream, open for appends.
pub(crate) struct StateLog<E> {
    name: &'static str,
    stream: StreamId,
    streamlet: StreamletId,
    lane: Arc<Lane>,
    /// The owner epoch in which it may be appended to; in a later one somebody else has been its owner.
    epoch: u32,
    clock: Arc<dyn Clock>,
    /// What is in it is a part of what it begins with.
    is_broken_off: AtomicBool,
    state: Mutex<State>,
    entries: PhantomData<fn(E)>,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    last_ticket: Ticket,
    /// Bytes appended since the last copy of everything, and what that copy took.
    added_bytes: u64,
    copy_bytes: u64,
    /// A copy that is written and not yet durable: where it starts, its last ticket.
    copied: Option<(Cursor, Ticket)>,
    /// A copy was begun that has not ended: no other is before then.
    next_copy_us: u64,
    /// That nothing can be recorded.
    said: Said,
}

impl<E: Kept> StateLog<E> {
    /// The log in the system stream of that name, which is made if it is not there. For a start: waits for as long as there is nobody who makes it.
    ///
    /// # Errors
    /// The stream cannot be made; those of [`NOT_GIVEN`] are no fault of the disk.
    pub(crate) fn open(
        name: &'static str,
        catalog: &Catalog,
        broker: &Broker,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<Arc<StateLog<E>>> {
        StateLog::open_when_told(name, &catalog.coordinator, broker, clock, || std::thread::sleep(LOOK))
    }

    /// The same, with what is done as long as the broker has not been told of the stream.
    ///
    /// A node of a cluster knows of a stream as soon as the entry is true that makes it, and its broker is told a moment later: an earlier node with this number may have had
    /// the stream made, or an earlier try whose answer was lost. Streams of the system are never deleted, so what is known comes.
    pub(crate) fn open_when_told(
        name: &'static str,
        coordinator: &Coordinator,
        broker: &Broker,
        clock: &Arc<dyn Clock>,
        mut rest: impl FnMut(),
    ) -> io::Result<Arc<StateLog<E>>> {
        let pause = |error: &CoordinatorError| {
            tracing::warn!(%error, stream = name, "what is kept for Kafka clients waits for the coordinators");
            std::thread::sleep(RETRY);
        };
        let made = coordinator.awaited_system_stream(name, &state_stream_options(), pause);
        let info = made.map_err(|error| match error {
            CoordinatorError::Disk(_) => io::Error::other(error.to_string()),
            refused => io::Error::new(NOT_GIVEN, format!("the stream {name} cannot be made: {refused}")),
        })?;
        let stream = (0..LOOKS).find_map(|look| {
            if look > 0 {
                rest();
            }
            broker.log().stream(info.id)
        });
        let untold =
            || io::Error::new(NOT_GIVEN, format!("this node has not learnt yet that the stream {name} is there"));
        let stream = stream.ok_or_else(untold)?;
        let log = StateLog::of(name, &stream, StreamletId(0), clock);
        log.ok_or_else(|| io::Error::other(format!("{name} has no lane")))
    }

    /// The same, if the stream is there.
    pub(crate) fn find(
        name: &'static str,
        catalog: &Catalog,
        broker: &Broker,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<StateLog<E>>> {
        let info = catalog.coordinator.stream(&StreamRef::Name(name.to_owned())).ok()?;
        StateLog::of(name, &*broker.log().stream(info.id)?, StreamletId(0), clock)
    }

    /// The log in a streamlet of a system stream; `None` if it has no such streamlet.
    pub(crate) fn of(
        name: &'static str,
        stream: &Stream,
        streamlet: StreamletId,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<StateLog<E>>> {
        stream.keep_room();
        let lane = Arc::clone(stream.streamlet(streamlet)?.lane(LaneId(0))?);
        let (stream, clock, epoch) = (stream.id(), Arc::clone(clock), lane.owner_epoch());
        let (is_broken_off, state, entries) = (AtomicBool::new(false), Mutex::default(), PhantomData);
        Some(Arc::new(StateLog { name, stream, streamlet, lane, epoch, clock, is_broken_off, state, entries }))
    }

    /// Gives out what is in the stream, oldest first. Blocks the thread while segments come from disk. How many records were
    /// read, and how many of them are not understood and were passed over.
    pub(crate) fn replay(&self, mut each: impl FnMut(E)) -> Result<(u64, u64), ReadError> {
        let mut counts = (0, 0);
        self.lane.replay(|data| self.take(data, &mut each, &mut counts))?;
        Ok(counts)
    }

    /// The same, and goes on behind segments that cannot be read: in the place of each comes why.
    pub(crate) fn replay_past_damage(
        &self,
        mut each: impl FnMut(Result<E, ReadError>),
    ) -> Result<(u64, u64), ReadError> {
        let mut counts = (0, 0);
        self.lane.replay_past_damage(|data| match data {
            Ok(data) => self.take(data, &mut |entry| each(Ok(entry)), &mut counts),
            Err(error) => each(Err(error)),
        })?;
        Ok(counts)
    }

    /// Its owner, if other nodes have older groups of it.
    fn shared_owner(&self, broker: &Broker) -> Option<Owner> {
        broker.ownership().owner(self.stream, self.streamlet).filter(|owner| !owner.older.is_empty())
    }

    /// Where it begins: of several nodes the reader says that itself, as the first group of any epoch.
    pub(crate) fn start(&self, broker: &Broker) -> Cursor {
        let group = if self.shared_owner(broker).is_some() { GroupId::new(1, 0) } else { GroupId::NONE };
        Cursor { group, ..Cursor::default() }
    }

    /// Where to go on behind what could not be read: behind a segment of this node, or all that another node has there. `None`: nothing follows, or it was not that.
    pub(crate) fn behind(&self, broker: &Broker, stopped: &Stopped) -> Option<Cursor> {
        match stopped.what {
            // What follows it here, if anything does, may lie behind what another node has.
            Unreadable::Segment => {
                let here = self.lane.behind_unread(stopped.at);
                here.into_iter().chain(self.next_run(broker, stopped.at)).min()
            }
            Unreadable::Node => self.next_run(broker, stopped.at),
            Unreadable::Other => None,
        }
    }

    /// Where the next run of owners begins, if other nodes have older groups.
    fn next_run(&self, broker: &Broker, at: Cursor) -> Option<Cursor> {
        let owner = self.shared_owner(broker)?;
        let next = owner.runs().map(|(first, _)| first).find(|first| *first > at.group.epoch())?;
        Some(Cursor { group: GroupId::new(next, 0), ..Cursor::default() })
    }

    /// The same while the node serves, from a place on, of a streamlet of which other nodes may have older groups: those are asked for with `elsewhere`, by
    /// node and cursor. Gives up, with `None`, when it is to go on no more. What an earlier incarnation of the node appended and nobody
    /// has acknowledged is waited for as well, since it stands before whatever comes.
    pub(crate) fn replay_while(
        &self,
        broker: &Broker,
        from: Cursor,
        mut each: impl FnMut(E),
        elsewhere: impl Fn(u32, Cursor) -> Result<(Vec<u8>, Cursor), String>,
        go_on: impl Fn() -> bool,
    ) -> Result<Option<(u64, u64)>, Stopped> {
        let nudge = Arc::new(Nudge::default());
        let observer: Arc<dyn Observer> = Arc::clone(&nudge) as _;
        let has_moved = self.shared_owner(broker).is_some();
        let (mut counts, mut cursor) = ((0, 0), from);
        while go_on() {
            let read = if has_moved {
                broker.read_here(&self.lane, cursor, READ_BYTES)
            } else {
                self.lane.read(cursor, READ_BYTES, true).map(Reading::Here)
            };
            let read = match read {
                Err(ReadError::Gone { earliest, .. }) if earliest.group > cursor.group => {
                    cursor = earliest;
                    continue;
                }
                Err(error @ ReadError::LoadFailed(_)) => return Err(Stopped::at(cursor, Unreadable::Segment, error)),
                read => read.map_err(|error| Stopped::at(cursor, Unreadable::Other, error))?,
            };
            let outcome = match read {
                Reading::Here(outcome) => outcome,
                Reading::Elsewhere(at) => {
                    let nobody = || Stopped::at(at, Unreadable::Other, "nobody has older groups");
                    let node = broker.node_of(&self.lane, at).ok_or_else(nobody)?;
                    let (data, next) = elsewhere(node, at).map_err(|why| Stopped::at(at, Unreadable::Node, why))?;
                    self.take(&data, &mut each, &mut counts);
                    if next == at {
                        nudge.wait();
                    }
                    cursor = next;
                    continue;
                }
            };
            outcome.data.iter().for_each(|data| self.take(data, &mut each, &mut counts));
            cursor = outcome.next;
            if !outcome.loading && outcome.at_durable_end && self.lane.durable_ordinal() >= self.lane.next_ordinal() {
                return Ok(Some(counts));
            }
            if (outcome.loading || outcome.at_durable_end) && self.lane.wait(outcome.version, &observer, 0) {
                nudge.wait();
            }
        }
        Ok(None)
    }

    /// Lets a little time pass before it is read once more, from its start.
    pub(crate) fn rest(&self) {
        Nudge::default().wait();
        self.state.lock().added_bytes = 0;
    }

    /// Whether nobody has ever served what is in it: nothing was appended to it, or a part of what it begins with.
    pub(crate) fn is_new(&self) -> bool {
        self.lane.next_ordinal() == 0 || self.is_broken_off.load(Ordering::Relaxed)
    }

    /// Whoever filled it to begin with left before its end, or has not.
    pub(crate) fn set_broken_off(&self, is_broken_off: bool) {
        self.is_broken_off.store(is_broken_off, Ordering::Relaxed);
    }

    /// Whether it may still be appended to: nobody else has become its owner.
    pub(crate) fn is_ours(&self) -> bool {
        self.lane.tenure() != Tenure::Elsewhere && self.lane.owner_epoch() == self.epoch
    }

    /// Gives out what a node has kept in a stream of its own (name and id) when it was alone, oldest first. What is read from other nodes
    /// is counted here. Blocks the thread.
    ///
    /// # Errors
    /// It cannot be read now, or not all of it.
    pub(crate) fn read_before(
        &self,
        door: &Door,
        node: u32,
        (name, stream): (&'static str, StreamId),
        mut each: impl FnMut(E),
        go_on: impl Fn() -> bool,
    ) -> Result<(), Unread> {
        if node == door.broker.ownership().node() {
            let Some(stream) = door.broker.log().stream(stream) else { return Ok(()) };
            let Some(log) = StateLog::<E>::of(name, &stream, StreamletId(0), &door.clock) else { return Ok(()) };
            let nowhere = |_, _| Err("it is nobody else's".to_owned());
            let read = log.replay_while(&door.broker, log.start(&door.broker), each, nowhere, go_on);
            return read.map(drop).map_err(|stopped| Unread::Refused(stopped.why));
        }
        let others = door.others().ok_or_else(|| Unread::Refused("the node does not reach others yet".to_owned()))?;
        let (mut at, mut reached, mut end) = (Cursor::default(), 0, 0);
        while go_on() {
            let given = others.read(node, stream, StreamletId(0), at).map_err(Unread::Refused)?;
            self.take(&given.data, &mut each, &mut (0, 0));
            reached = end_of(&given.data).unwrap_or(reached);
            end = given.durable_ordinal.max(end);
            if given.data.is_empty() && given.next == at {
                // Nothing comes also while a disk takes its time: half of it would be taken for all.
                return match reached < end {
                    true => Err(Unread::Slow(format!("node {node} has not given all of it yet"))),
                    false => Ok(()),
                };
            }
            at = given.next;
        }
        Ok(())
    }

    /// Gives out the records of whole chunks. Counts them, and those that are not understood.
    fn take(&self, data: &[u8], each: &mut impl FnMut(E), (records, passed_over): &mut (u64, u64)) {
        self.state.lock().added_bytes += data.len() as u64;
        for chunk in Chunks::new(data) {
            let Ok(chunk) = chunk else {
                *passed_over += 1;
                continue;
            };
            for record in chunk.records() {
                *records += 1;
                match record.and_then(|record| E::decode(&record)) {
                    Ok(entry) => each(entry),
                    Err(error) => {
                        *passed_over += 1;
                        tracing::warn!(stream = self.name, %error, "a record is passed over");
                    }
                }
            }
        }
    }

    /// What makes its records durable.
    pub(crate) fn sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        self.lane.sink()
    }

    /// Everything that was appended so far.
    pub(crate) fn last_mark(&self) -> Mark {
        Mark(self.state.lock().last_ticket)
    }

    /// Whether it is durable up to a mark.
    pub(crate) fn is_durable(&self, mark: Mark) -> bool {
        self.sink().is_none_or(|sink| sink.durable_through() >= mark.0)
    }

    /// Appends entries, in one chunk.
    pub(crate) fn append(&self, entries: &[E]) -> Result<Mark, AppendFailed> {
        self.try_append(entries).map_err(|_| AppendFailed)
    }

    fn try_append(&self, entries: &[E]) -> Result<Mark, Refused> {
        if self.lane.owner_epoch() != self.epoch {
            return Err(Refused::NotNow);
        }
        let mut state = self.state.lock();
        let mut chunk = ChunkBuilder::with_buffer(std::mem::take(&mut state.buffer));
        for entry in entries {
            entry.encode(&mut chunk);
            if chunk.bytes() > CHUNK_BYTES_MAX {
                let (stream, entries) = (self.name, entries.len());
                tracing::warn!(stream, entries, limit = CHUNK_BYTES_MAX, "too much to record at a time");
                return Err(Refused::TooLarge);
            }
        }
        if chunk.record_count() == 0 {
            return Ok(Mark(state.last_ticket));
        }
        let target = ChunkTarget { stream: self.stream, streamlet: self.streamlet, ..ChunkTarget::default() };
        let bytes = chunk.seal(&target, Compression::None).map_err(|_| Refused::NotNow)?;
        let view = ChunkView::parse(&bytes).map_err(|_| Refused::NotNow)?;
        let appended = self.lane.append(&view, self.clock.now_ms());
        let added = bytes.len() as u64;
        state.buffer = bytes;
        match appended {
            Ok(appended) => {
                state.added_bytes += added;
                state.last_ticket = appended.ticket.unwrap_or(state.last_ticket);
                Ok(Mark(state.last_ticket))
            }
            Err(error) => {
                // Clients try again several times a second, and a disk may be full for days.
                if let Some(suppressed) = state.said.say(Instant::now()) {
                    tracing::warn!(stream = self.name, %error, suppressed, "nothing can be recorded");
                }
                Err(Refused::NotNow)
            }
        }
    }

    /// Whether it is time to write everything anew, since `bytes_min` and at least as much as a copy takes were added, and none broke off just now: where
    /// the copy will start, and what was added until then. Under the coordinator's lock.
    pub(crate) fn begin_copy(&self, bytes_min: u64) -> Option<(Cursor, u64)> {
        let now_us = self.clock.monotonic_us();
        let mut state = self.state.lock();
        let is_grown = state.added_bytes > bytes_min.max(state.copy_bytes);
        if state.copied.is_some() || !is_grown || now_us < state.next_copy_us {
            return None;
        }
        state.next_copy_us = now_us + COPY_PAUSE_US;
        Some((self.lane.latest().0, state.added_bytes))
    }

    /// How much must have been added before everything is written anew, if it is `bytes_min` otherwise: nothing as long as other nodes have older groups of the
    /// log that are needed. They keep them until they are told, and each later owner reads them once more.
    pub(crate) fn copied_from(&self, bytes_min: u64) -> u64 {
        let is_shared = self.lane.tenure() == Tenure::Here && !self.lane.is_plain();
        if is_shared && !self.lane.says_everything() { 0 } else { bytes_min }
    }

    /// Everything is written anew from `from` on.
    pub(crate) fn end_copy(&self, from: Cursor, added_before: u64) {
        let mut state = self.state.lock();
        state.copied = Some((from, state.last_ticket));
        state.copy_bytes = state.added_bytes - added_before;
        state.added_bytes = 0;
        state.next_copy_us = 0;
    }

    /// Lets go of what a durable copy has replaced, and has earlier owners let go of what they have. Not once it is somebody else's: who reads it next reads what
    /// is here.
    pub(crate) fn trim(&self) {
        let mut state = self.state.lock();
        let Some((from, ticket)) = state.copied else { return };
        if self.is_ours() && self.is_durable(Mark(ticket)) {
            self.lane.set_consumed_floor(Some(from));
            self.lane.says_everything_in(self.epoch);
            state.copied = None;
        }
    }
}

impl<E: Bounded> StateLog<E> {
    /// Says that a copy begins or ends here.
    pub(crate) fn append_edge(&self, edge: Edge) -> Result<Mark, AppendFailed> {
        self.append(&[E::forgotten(edge.name().to_owned())])
    }

    /// Appends what it begins with, each piece in one chunk, and waits for as long as there are too few nodes to copy it to. Like a copy it
    /// says where it begins and ends, so that a part of it does not count. False if nobody wants it any more. Blocks the thread.
    pub(crate) fn found<'a>(&self, mut pieces: impl Iterator<Item = &'a [E]>, go_on: impl Fn() -> bool) -> bool
    where
        E: 'a,
    {
        let edge = |edge: Edge| [E::forgotten(edge.name().to_owned())];
        self.append_at_last(&edge(Edge::Begin), &go_on)
            && pieces.all(|piece| self.append_at_last(piece, &go_on))
            && self.append_at_last(&edge(Edge::End), &go_on)
    }

    /// Appends entries, in several chunks if they do not fit into one, as soon as that is possible. False if nobody wants it any more.
    fn append_at_last(&self, entries: &[E], go_on: &impl Fn() -> bool) -> bool {
        loop {
            match self.try_append(entries) {
                Ok(_) => return true,
                Err(Refused::TooLarge) if entries.len() > 1 => {
                    let (first, rest) = entries.split_at(entries.len() / 2);
                    return self.append_at_last(first, go_on) && self.append_at_last(rest, go_on);
                }
                Err(Refused::TooLarge) => {
                    // It would never be otherwise, and all the others wait.
                    tracing::error!(stream = self.name, "a record is left out that does not fit into a chunk");
                    return true;
                }
                Err(Refused::NotNow) => {}
            }
            (0..RESTS).for_each(|_| self.rest());
            if !go_on() {
                return false;
            }
        }
    }
}

/// Wakes a thread that reads.
#[derive(Default)]
struct Nudge {
    told: Mutex<bool>,
    changed: Condvar,
}

impl Nudge {
    /// Returns when it was told, or after a little while.
    fn wait(&self) {
        let mut told = self.told.lock();
        if !*told {
            self.changed.wait_for(&mut told, PATIENCE);
        }
        *told = false;
    }
}

impl Observer for Nudge {
    fn advanced(&self, _: u64) {
        *self.told.lock() = true;
        self.changed.notify_all();
    }
}

/// The ordinal behind the last chunk.
fn end_of(data: &[u8]) -> Option<u64> {
    let last = Chunks::new(data).filter_map(Result::ok).last()?;
    Some(last.broker().ok()?.base_ordinal + u64::from(last.header().record_count))
}
