//! Fetch: chunks of lanes as record batches, from the segments' own memory.
//!
//! A Kafka batch leaves as it came in, but for the sixteen bytes in front of its checksum: base offset and leader epoch are
//! the broker's to say, go out of a small buffer, and the rest of the batch follows from the segment (docs/read-path.md). Native
//! chunks are converted. A fetch that finds less than it asks for waits at its lanes, and looks again when one has moved. It holds none of what it has
//! found meanwhile, and knows how many bytes that has: what comes behind it is counted with it, and all is read once more when there is enough. So a
//! native chunk is converted twice at most, however often the fetch is woken.
//!
//! What is not in memory comes from disk, a segment at a time. An answer with the first of them alone would cost the client as
//! much as a full one, and a fetch of a thousand partitions names all of them in each: while segments are on their way, a fetch
//! waits until half of what it may have is there, or its time is up. It holds no memory meanwhile. And it has no more brought
//! back than it may have, nor than has room: what came for a later answer would push out what this one waits for. A segment takes a
//! block of memory, up to twice its bytes.
//!
//! What was written before a partition moved here comes from the node that has it ([`crate::older`]). It is waited for in the same way,
//! but nothing else is held back for it.
//!
//! No answer is longer than its client says, for some close the connection then (librdkafka above `receive.message.max.bytes`): only if nothing else is
//! in it may a batch be (KIP-74), so that the client gets on. Of a partition whose next batch does not fit nothing is told, and its turn comes first in
//! the next fetch: clients that name all partitions begin with another one each time, a session begins with the one that was left out.
//!
//! A fetch of a session ([`crate::fetch_sessions`]) has all partitions of it put in, and is answered with those of which there
//! is something to tell.
//!
//! The high watermark is the durable end, the last stable offset where the first transaction begins that runs. Readers of
//! committed records get nothing from there on, and with the rest a list of the aborted transactions that are in it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::{BrokerPart, CHUNK_HEADER_BYTES, ChunkView, Cursor};
use kera_log::{Lane, LaneVersion, Loading, Lookup, Observer, ReadError, Tenure};
use kera_rpc::{FrameWriter, Outbox};
use parking_lot::Mutex;

use crate::batch::{self, BATCH_HEADER_BYTES, PATCHED_BYTES};
use crate::door::{Door, Topic};
use crate::epochs;
use crate::fetch_sessions::{Mode, NO_SESSION, Told};
use crate::floors::{first_offset, shown_from};
use crate::older::{Shared, Standing, Step};
use crate::session::{Core, Request};
use crate::transaction_partitions::SharedPartition;
use crate::wire::Writer;

/// From this version on topics are named by their ids.
const VERSION_TOPIC_IDS: i16 = 13;
/// Readers of committed records.
const READ_COMMITTED: i8 = 1;
/// One part in this many of the arena may be taken by what is on its way from disk for one fetch.
const LOADED_SHARE: u64 = 16;
/// One part in this many of the arena is awaited from disk by all fetches together. For loads there is an eighth.
const AWAITED_SHARE: u64 = 32;
/// What a segment counts for that comes from disk because an offset is looked for in it.
pub(crate) const LOOKUP_LOADS: Loads = Loads { bytes: 64 << 10, memory_bytes: 64 << 10 };
/// Smaller batches are copied: a slice of their own costs more.
const COPY_BYTES_MAX: usize = 512;

/// A batch on its way out.
enum Part {
    /// A stored batch, and what it is told with.
    Stored { batch: Bytes, base_ordinal: u64, leader_epoch: i32 },
    /// A batch that was made of native records.
    Made(Bytes),
}

impl Part {
    fn batch(&self) -> &Bytes {
        match self {
            Part::Stored { batch, .. } | Part::Made(batch) => batch,
        }
    }
}

/// A topic of a request, and what is here of it.
type Known<'a> = (&'a FetchTopic, Option<&'a Arc<Topic>>);

/// What is waited for from disk.
#[derive(Clone, Copy, Default)]
pub(crate) struct Loads {
    /// Bytes of it that are of use.
    pub(crate) bytes: usize,
    /// Bytes of the arena that it takes.
    pub(crate) memory_bytes: usize,
}

impl Loads {
    /// `bytes_max`: more of it is of no use now.
    pub(crate) fn of(loading: Loading, bytes_max: usize) -> Loads {
        Loads {
            bytes: usize::try_from(loading.bytes).unwrap_or(usize::MAX).min(bytes_max),
            memory_bytes: usize::try_from(loading.memory_bytes).unwrap_or(usize::MAX),
        }
    }

    fn saturating_sub(self, less: Loads) -> Loads {
        Loads {
            bytes: self.bytes.saturating_sub(less.bytes),
            memory_bytes: self.memory_bytes.saturating_sub(less.memory_bytes),
        }
    }
}

/// What one partition has to say.
#[derive(Default)]
struct Found {
    error: i16,
    high_watermark: i64,
    last_stable: i64,
    log_start: i64,
    /// Transactions that the reader passes over: producer and first offset. Nothing is told to whom reads everything.
    aborted: Option<Vec<(i64, u64)>>,
    /// Let go of while the fetch waits.
    parts: Vec<Part>,
    bytes: usize,
    /// The offset behind these bytes.
    next: u64,
    /// What these bytes count for where it is asked whether there are enough: a read that has stopped although there is more for its reader
    /// counts for all that it might have taken. Whole batches rarely fill that, and waiting would not bring more.
    counts: usize,
    /// Where it waits for more.
    waits: Option<(Arc<Lane>, LaneVersion)>,
    /// Where the next read of the same offset begins, if this one has found nothing: what is in front of that has only places.
    passed: Option<Cursor>,
    /// What it waits for from disk.
    loads: Loads,
    /// Its next batch does not fit into what is left of the answer.
    is_left_out: bool,
}

impl Found {
    fn refused(error: ResponseError) -> Found {
        Found { error: error.code(), high_watermark: -1, last_stable: -1, log_start: -1, ..Found::default() }
    }

    /// Of a partition that is not there an empty list is told, of one that cannot be read none: as Kafka does.
    fn unknown(error: ResponseError) -> Found {
        Found { aborted: Some(Vec::new()), ..Found::refused(error) }
    }

    /// Notes how a read that has found something has ended. `version` is the lane's from before it was known how far it could go: where there is
    /// nothing more, the fetch waits for what comes. `next`: the offset behind what was found.
    fn stopped(&mut self, lane: &Arc<Lane>, version: LaneVersion, next: u64, has_more: bool, budget: usize) {
        self.next = next;
        self.counts = if has_more { self.bytes.max(budget) } else { self.bytes };
        self.waits = (!has_more).then(|| (Arc::clone(lane), version));
    }

    /// The same with the transactions that were aborted, of what was read of these offsets.
    ///
    /// These are forgotten when retention has taken what they have left, and a read keeps what it has found: if that has gone in between they are not named, and their
    /// records would look committed. So the list counts if all that it is about is there behind it.
    fn without_aborted(mut self, lane: &Lane, of: &SharedPartition, read: Range<u64>) -> Found {
        self.aborted = Some(of.lock().aborted(read.start, read.end));
        if shown_from(lane) > read.start { Found::refused(ResponseError::OffsetOutOfRange) } else { self }
    }

    /// Whether only what it counts for is known.
    fn is_let_go(&self) -> bool {
        self.bytes > 0 && self.parts.is_empty()
    }

    fn told(&self) -> Told {
        let Found { error, high_watermark, log_start, is_left_out, .. } = *self;
        Told { error, high_watermark, log_start, has_records: self.bytes > 0, is_left_out }
    }
}

/// A fetch that is not answered yet.
pub(crate) struct Fetching {
    request: Request,
    asked: FetchRequest,
    /// Its session, or why it is refused as a whole.
    mode: Result<Mode, ResponseError>,
    /// Data bytes of the whole answer, at the connection's pace.
    bytes_max: usize,
    /// As many may be in it for the sake of one partition that would get nothing else, and none but a batch that is by itself is longer.
    bytes_allowed: usize,
    /// As many are waited for; no more than an answer can have.
    bytes_min: usize,
    started_us: u64,
    deadline_us: u64,
    seen: Option<Seen>,
}

/// What a fetch that waits has found: only partitions that have moved are looked at again. The memory of those that have something is not held on to: they are read once more
/// before it is answered.
struct Seen {
    found: Vec<Found>,
    moved: Arc<Moved>,
    observer: Arc<dyn Observer>,
    /// What has to come from disk before it is worth looking again.
    awaited: Awaited,
}

/// Bytes that a fetch waits for from disk before it is answered. Those of all fetches together are little beside the memory that is
/// kept for loads: what has come and is not taken must not push out what others wait for. A fetch that gets none takes what comes.
struct Awaited {
    door: Arc<Door>,
    bytes: usize,
}

impl Awaited {
    fn new(door: &Arc<Door>, wanted: usize) -> Awaited {
        let most = usize::try_from(door.broker.log().arena().bytes() / AWAITED_SHARE).unwrap_or(usize::MAX);
        let bytes = wanted.min(most.saturating_sub(door.loads_awaited.load(Ordering::Relaxed)));
        door.loads_awaited.fetch_add(bytes, Ordering::Relaxed);
        Awaited { door: Arc::clone(door), bytes }
    }

    fn release(&mut self) {
        self.door.loads_awaited.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.release();
    }
}

impl Seen {
    /// Whether all that has happened is that some of the segments have come, and others are still on their way.
    fn is_too_early(&self) -> bool {
        let places = self.moved.places.lock();
        let came: usize = places.iter().map(|place| self.found[*place as usize].loads.bytes).sum();
        came < self.awaited.bytes && places.iter().all(|place| self.found[*place as usize].loads.bytes > 0)
    }
}

/// Notes which partitions of a fetch have moved, by their place in the request, and wakes the session.
struct Moved {
    places: Mutex<Vec<u64>>,
    session: Arc<dyn Observer>,
}

impl Observer for Moved {
    fn advanced(&self, place: u64) {
        self.places.lock().push(place);
        self.session.advanced(0);
    }
}

impl Fetching {
    pub(crate) fn new(core: &mut Core, request: Request, mut asked: FetchRequest) -> Fetching {
        let now_us = core.door.clock.monotonic_us();
        let mode = core.door.fetch_sessions.begin(&mut asked, request.version, now_us);
        if let Ok(Mode::GoesOn(_)) = mode {
            core.fetch_session = asked.session_id;
        }
        let wait_ms = u64::try_from(asked.max_wait_ms).unwrap_or(0).min(core.door.config.fetch_wait_ms_max.into());
        let deadline_us = now_us + wait_ms * 1000;
        let most = usize::try_from(asked.max_bytes).unwrap_or(0).min(core.door.config.fetch_bytes_max);
        let least = usize::try_from(asked.min_bytes).unwrap_or(0).min(most);
        let partitions = asked.topics.iter().map(|topic| topic.partitions.len()).sum();
        let bytes_max = core.pace.asked(now_us, partitions, most).max(least);
        let (bytes_min, started_us) = (least, now_us);
        let bytes_allowed = most;
        Fetching { request, asked, mode, bytes_max, bytes_allowed, bytes_min, started_us, deadline_us, seen: None }
    }

    pub(crate) fn started_us(&self) -> u64 {
        self.started_us
    }

    pub(crate) fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// Is to be answered with what there is.
    pub(crate) fn give_up(&mut self) {
        self.deadline_us = 0;
    }

    /// Answers if there is enough or it is time. True if it is done with.
    pub(crate) fn complete(&mut self, core: &mut Core, now_us: u64, out: &mut Outbox) -> bool {
        if let Err(error) = self.mode {
            self.asked.topics.clear();
            self.send(error.code(), NO_SESSION, &[], None, out);
            return true;
        }
        if now_us < self.deadline_us && self.seen.as_ref().is_some_and(Seen::is_too_early) {
            return false;
        }
        if let Some(seen) = &mut self.seen {
            seen.awaited.release();
        }
        let (mut found, mut fresh) = self.look(core);
        let mut awaited = self.await_loads(core, &found);
        if self.is_enough(&found, &awaited, now_us) && found.iter().any(Found::is_let_go) {
            awaited.release();
            fresh.extend(self.read_again(core, &mut found));
            // Less may be there by now than was counted.
            awaited = self.await_loads(core, &found);
        }
        if self.is_enough(&found, &awaited, now_us) {
            let bytes: usize = found.iter().map(|one| one.bytes).sum();
            let errors = found.iter().filter(|one| one.error != 0).count();
            if errors > 0 {
                core.door.counts.fetch_errors(errors as u64);
            }
            let (session, shown) = self.tell_session(core, &found, now_us);
            self.send(0, session, &found, shown.as_deref(), out);
            core.pace.answered(now_us, bytes);
            return true;
        }
        let (moved, observer) = match self.seen.take() {
            Some(Seen { moved, observer, .. }) => (moved, observer),
            None => {
                let moved = Arc::new(Moved { places: Mutex::default(), session: Arc::clone(&core.observer) });
                (Arc::clone(&moved), moved as _)
            }
        };
        let seen = self.seen.insert(Seen { found: Vec::new(), moved, observer, awaited });
        // Where nothing has moved since, it is still registered. Where something has, it is looked at in the next turn: of many lanes some
        // always move, and without a turn in between nobody would see that the time is up, nor would others have the thread.
        fresh.sort_unstable();
        fresh.dedup();
        for place in fresh {
            if let Some((lane, version)) = &found[place].waits
                && !lane.wait(*version, &seen.observer, place as u64)
            {
                seen.observer.advanced(place as u64);
            }
        }
        seen.found = found;
        seen.found.iter_mut().filter(|one| one.bytes > 0).for_each(|one| one.parts.clear());
        false
    }

    /// What is waited for from disk before what was found is told.
    fn await_loads(&self, core: &Core, found: &[Found]) -> Awaited {
        let bytes: usize = found.iter().map(|one| one.bytes).sum();
        let loads: usize = found.iter().map(|one| one.loads.bytes).sum();
        Awaited::new(&core.door, (self.bytes_max / 2).saturating_sub(bytes).min(loads))
    }

    /// Whether what was found is to be told now.
    fn is_enough(&self, found: &[Found], awaited: &Awaited, now_us: u64) -> bool {
        let counts: usize = found.iter().map(|one| one.counts).sum();
        (counts >= self.bytes_min && awaited.bytes == 0)
            || found.iter().any(|one| one.error != 0)
            || found.is_empty()
            || now_us >= self.deadline_us
    }

    /// What every partition has now, and the places of those that were looked at: while the fetch waits, those that have moved.
    fn look(&mut self, core: &mut Core) -> (Vec<Found>, Vec<usize>) {
        let Some(seen) = &mut self.seen else {
            let found = self.gather(core);
            let all = (0..found.len()).collect();
            return (found, all);
        };
        let mut found = std::mem::take(&mut seen.found);
        let mut moved: Vec<usize> = seen.moved.places.lock().drain(..).map(|place| place as usize).collect();
        moved.sort_unstable();
        moved.dedup();
        self.look_again(core, &mut found, &moved, true);
        (found, moved)
    }

    /// Reads what was let go of, to be told: the places where that is so. What has been given back since, or belongs to another node, is not told.
    fn read_again(&self, core: &mut Core, found: &mut [Found]) -> Vec<usize> {
        let let_go = found.iter().enumerate().filter(|(_, one)| one.is_let_go()).map(|(place, _)| place);
        let let_go: Vec<usize> = let_go.collect();
        self.look_again(core, found, &let_go, false);
        let_go
    }

    /// Looks once more at these places, which are in order; `counts`: where something was let go of, what is behind it is counted with it.
    fn look_again(&self, core: &mut Core, found: &mut [Found], places: &[usize], counts: bool) {
        let mut taken: usize = found.iter().map(|one| one.bytes).sum();
        let (mut first, mut is_one_left_out) = (0, false);
        let mut places = places.iter().copied().peekable();
        for topic in &self.asked.topics {
            let end = first + topic.partitions.len();
            let mut known = None;
            while let Some(place) = places.next_if(|place| *place < end) {
                let known = (topic, known.get_or_insert_with(|| self.topic(core, topic)).as_ref());
                let (before, asked) = (std::mem::take(&mut found[place]), &topic.partitions[place - first]);
                let behind = self.left(taken, true, is_one_left_out);
                let more = if counts { self.count_behind(core, known, asked, &before, behind) } else { None };
                taken -= before.bytes;
                let left = self.left(taken, true, is_one_left_out);
                found[place] = more.unwrap_or_else(|| self.look_at(core, known, asked, left));
                taken += found[place].bytes;
                is_one_left_out |= found[place].is_left_out;
            }
            first = end;
        }
    }

    /// What one partition has with what is behind what was let go of. `None` if it is to be looked at from the start: nothing was let go of, or there was more behind it
    /// already, or what is behind it cannot be read, of which the start tells.
    fn count_behind(
        &self,
        core: &mut Core,
        known: Known<'_>,
        asked: &FetchPartition,
        before: &Found,
        left: Left,
    ) -> Option<Found> {
        if !before.is_let_go() || before.waits.is_none() {
            return None;
        }
        let taken = i32::try_from(before.bytes).unwrap_or(i32::MAX);
        let rest = asked.partition_max_bytes.saturating_sub(taken);
        let behind = asked.clone().with_fetch_offset(before.next.cast_signed()).with_partition_max_bytes(rest);
        // It is not what the partition has first. Counted as if it were, it would take the room of the others when all is read, and not fit itself.
        let left = Left { first_bytes: left.bytes.min(usize::try_from(rest).unwrap_or(0)), ..left };
        let mut more = self.look_at(core, known, &behind, left);
        if more.error != 0 {
            return None;
        }
        if more.bytes == 0 {
            more.next = before.next;
        }
        more.parts.clear();
        // There is something of it in the answer.
        more.is_left_out = false;
        (more.bytes, more.counts) = (before.bytes + more.bytes, before.bytes + more.counts);
        Some(more)
    }

    fn topic(&self, core: &mut Core, topic: &FetchTopic) -> Option<Arc<Topic>> {
        if self.request.version >= VERSION_TOPIC_IDS { core.topic_of(topic.topic_id) } else { core.topic(&topic.topic) }
    }

    /// What is left for a partition if others have `taken` so many bytes. What it has first may go beyond the pace, within what the client
    /// allows: a client that names partitions in the same order each time would get a large batch of one that is not the first only when
    /// all before it are quiet. So an answer goes beyond its pace by one batch.
    ///
    /// If one of the others is left out, the answer is about full, and hundreds of partitions may still be behind: what fits into the gap without
    /// much work is taken. Of native records only what is as good as sure to fit is made into a batch, and nothing more is brought back from
    /// disk for an answer that does not wait for it.
    fn left(&self, taken: usize, may_load: bool, is_one_left_out: bool) -> Left {
        let first_bytes = if taken == 0 { usize::MAX } else { self.bytes_allowed.saturating_sub(taken) };
        let may_load = may_load && (!is_one_left_out || taken < self.bytes_max / 2);
        Left { bytes: self.bytes_max.saturating_sub(taken), first_bytes, may_load, is_gap: is_one_left_out }
    }

    /// What one partition has, up to `left` bytes.
    fn look_at(&self, core: &mut Core, (named, known): Known<'_>, asked: &FetchPartition, left: Left) -> Found {
        let committed = self.asked.isolation_level == READ_COMMITTED;
        match known.and_then(|topic| topic.lane(asked.partition)) {
            None => Found::unknown(self.not_here(&core.door, named, asked.partition)),
            Some(lane) if lane.tenure() == Tenure::Elsewhere || !core.door.broker.is_confirmed() => {
                Found::unknown(ResponseError::NotLeaderOrFollower)
            }
            Some(lane) => read(core, lane, asked, committed, left),
        }
    }

    /// Why nothing of a partition is here.
    fn not_here(&self, door: &Door, named: &FetchTopic, partition: i32) -> ResponseError {
        let by_id = self.request.version >= VERSION_TOPIC_IDS;
        let info = if by_id { door.info_of(named.topic_id) } else { door.info(&named.topic) };
        match door.not_here(info.as_ref(), partition) {
            ResponseError::UnknownTopicOrPartition if by_id && info.is_none() => ResponseError::UnknownTopicId,
            error => error,
        }
    }

    /// What every partition has, in the order of the request.
    fn gather(&self, core: &mut Core) -> Vec<Found> {
        let loads_max = usize::try_from(core.door.broker.log().arena().bytes() / LOADED_SHARE).unwrap_or(usize::MAX);
        let (mut taken, mut is_one_left_out) = (0, false);
        let mut loads_left = Loads { bytes: self.bytes_max.max(1), memory_bytes: loads_max };
        let mut all = Vec::new();
        for topic in &self.asked.topics {
            let here = self.topic(core, topic);
            for partition in &topic.partitions {
                let may_load = loads_left.bytes > 0 && loads_left.memory_bytes > 0;
                let left = self.left(taken, may_load, is_one_left_out);
                let found = self.look_at(core, (topic, here.as_ref()), partition, left);
                taken += found.bytes;
                is_one_left_out |= found.is_left_out;
                loads_left = loads_left.saturating_sub(found.loads);
                all.push(found);
            }
        }
        all
    }

    /// Notes in the fetch's session what it is told: the session's id, and of which partitions its client has to hear; `None`
    /// is all.
    fn tell_session(&self, core: &mut Core, found: &[Found], now_us: u64) -> (i32, Option<Vec<bool>>) {
        let told = || -> Vec<Told> { found.iter().map(Found::told).collect() };
        match &self.mode {
            Ok(Mode::Begins) => {
                let id = core.door.fetch_sessions.create(&self.asked, self.request.version, &told(), now_us);
                core.fetch_session = id;
                (id, None)
            }
            Ok(Mode::GoesOn(session)) => {
                let mut shown = Vec::with_capacity(found.len());
                session.lock().tell_all(&self.asked.topics, &told(), |is_shown| shown.push(is_shown));
                (self.asked.session_id, Some(shown))
            }
            Ok(Mode::Without) | Err(_) => (NO_SESSION, None),
        }
    }

    /// Answers with the partitions that are shown; `None`: all.
    fn send(&self, error: i16, session: i32, found: &[Found], shown: Option<&[bool]>, out: &mut Outbox) {
        let (version, flexible) = (self.request.version, self.request.is_flexible());
        let mut frame = out.begin_prefixed();
        self.request.put_header(frame.body());
        let mut writer = Writer { out: frame.body(), flexible };
        writer.i32(0);
        if version >= 7 {
            writer.i16(error);
            writer.i32(session);
        }
        let is_shown = |at: usize| shown.is_none_or(|shown| shown.get(at).copied().unwrap_or(true));
        let mut next = 0;
        let places = self.asked.topics.iter().map(|topic| {
            let from = next;
            next += topic.partitions.len();
            (topic, from, (from..next).filter(|at| is_shown(*at)).count())
        });
        let topics: Vec<_> = places.filter(|(_, _, count)| shown.is_none() || *count > 0).collect();
        writer.count(topics.len());
        for (topic, from, count) in topics {
            let mut writer = Writer { out: frame.body(), flexible };
            if version >= VERSION_TOPIC_IDS {
                writer.id(topic.topic_id.as_u128());
            } else {
                writer.string(&topic.topic);
            }
            writer.count(count);
            for (at, partition) in topic.partitions.iter().enumerate().filter(|(at, _)| is_shown(from + at)) {
                self.put_partition(partition.partition, &found[from + at], &mut frame);
            }
            Writer { out: frame.body(), flexible }.tags();
        }
        Writer { out: frame.body(), flexible }.tags();
        frame.finish();
    }

    fn put_partition(&self, index: i32, found: &Found, frame: &mut FrameWriter<'_>) {
        let (version, flexible) = (self.request.version, self.request.is_flexible());
        let mut writer = Writer { out: frame.body(), flexible };
        writer.i32(index);
        writer.i16(found.error);
        writer.i64(found.high_watermark);
        writer.i64(found.last_stable);
        if version >= 5 {
            writer.i64(found.log_start);
        }
        writer.nullable_count(found.aborted.as_ref().map(Vec::len));
        for (producer_id, first_offset) in found.aborted.iter().flatten() {
            writer.i64(*producer_id);
            writer.i64(first_offset.cast_signed());
            writer.tags();
        }
        if version >= 11 {
            writer.i32(-1);
        }
        writer.count(found.bytes);
        for part in &found.parts {
            put_part(part, frame);
        }
        Writer { out: frame.body(), flexible }.tags();
    }
}

fn put_part(part: &Part, frame: &mut FrameWriter<'_>) {
    match part {
        Part::Stored { batch, base_ordinal, leader_epoch } => {
            frame.body().extend_from_slice(&batch::patched_head(batch, *base_ordinal, *leader_epoch));
            if batch.len() <= COPY_BYTES_MAX {
                frame.body().extend_from_slice(&batch[PATCHED_BYTES..]);
            } else {
                frame.attach(batch.slice(PATCHED_BYTES..));
            }
        }
        Part::Made(batch) if batch.len() <= COPY_BYTES_MAX => frame.body().extend_from_slice(batch),
        Part::Made(batch) => frame.attach_own(batch.clone()),
    }
}

/// What a fetch may still have.
#[derive(Clone, Copy)]
struct Left {
    bytes: usize,
    /// What comes first may have so many.
    first_bytes: usize,
    /// Whether it may have more brought back from disk.
    may_load: bool,
    /// It is what others have left for which it was too little.
    is_gap: bool,
}

impl Left {
    /// Whether the batch of a chunk is not even made, for the sake of so much `room`. A batch that was made in vain is made again for the next
    /// fetch, of all records of its chunk: what is sure not to fit is left out as it is, and into a gap comes what is as good as sure to fit.
    fn is_not_for(self, chunk: &ChunkView<'_>, room: usize) -> bool {
        if chunk.header().kind == PayloadKind::KafkaBatch {
            return false;
        }
        let (least, most) = batch::made_bytes(chunk);
        room < if self.is_gap { most } else { least }
    }
}

/// Reads a partition from the offset that is asked for, as far as there is something `left`; `committed`: only what is committed.
fn read(core: &mut Core, lane: &Arc<Lane>, asked: &FetchPartition, committed: bool, left: Left) -> Found {
    read_while(core, lane, asked, (committed, left), || ())
}

/// The same. What was found counts if whose the partition is, and who has what of it, is the same behind that. `meanwhile` is for tests: it comes in front of the look.
fn read_while(
    core: &mut Core,
    lane: &Arc<Lane>,
    asked: &FetchPartition,
    (committed, left): (bool, Left),
    meanwhile: impl Fn(),
) -> Found {
    loop {
        let Ok(standing) = Standing::of(&core.door, lane) else {
            return Found::refused(ResponseError::NotLeaderOrFollower);
        };
        meanwhile();
        let found = read_as(core, lane, asked, (committed, left), &standing);
        if standing.holds(&core.door, lane) {
            return found;
        }
        core.forget(lane.stream_id().0, asked.partition);
    }
}

/// The same by what is known of whose the partition is.
fn read_as(
    core: &mut Core,
    lane: &Arc<Lane>,
    asked: &FetchPartition,
    (committed, left): (bool, Left),
    standing: &Standing,
) -> Found {
    if let Err(error) = epochs::check(lane, asked.current_leader_epoch) {
        return Found::refused(error);
    }
    // The version first: what moves after this makes waiting for it return at once. The end next, so that a transaction that
    // is not known after it has nothing before it.
    let version = lane.version();
    let durable = lane.durable_ordinal();
    let transactions = core.door.transactions.partitions.get(lane.stream_id(), asked.partition);
    let shared = standing.shared(&core.door);
    let log_start = start_of(core, lane, shared.as_ref()).min(durable);
    let stable = match transactions.as_ref().map_or(Some(durable), |of| stable_end(of, durable)) {
        // What is deleted of a transaction that runs holds nobody back.
        Some(stable) => stable.max(log_start),
        // Its coordinators have not told yet. An answer without records would say that there is nothing more.
        None if committed => return Found::refused(ResponseError::NotLeaderOrFollower),
        None => durable,
    };
    let end = if committed { stable } else { durable };
    let mut found = Found {
        high_watermark: durable.cast_signed(),
        last_stable: stable.cast_signed(),
        log_start: log_start.cast_signed(),
        ..Found::default()
    };
    // A producer that does not wait for copies knows of offsets that are not durable yet: who asks for them waits.
    let is_there = |at: &u64| *at >= log_start && (*at <= durable || *at <= lane.next_ordinal());
    let Some(offset) = u64::try_from(asked.fetch_offset).ok().filter(is_there) else {
        return Found::refused(ResponseError::OffsetOutOfRange);
    };
    found.aborted = committed.then(Vec::new);
    if offset >= end {
        found.waits = Some((Arc::clone(lane), version));
        return found;
    }
    let budget = left.bytes.min(usize::try_from(asked.partition_max_bytes).unwrap_or(0));
    // A limit of nothing keeps nobody from getting on: as in Kafka one batch comes whatever it has, as long as the answer has no other.
    let budget = if left.first_bytes == usize::MAX { budget.max(1) } else { budget };
    if budget == 0 {
        return found;
    }
    let (mut offset, left, mut next) = (offset, Left { bytes: budget, ..left }, None);
    if let Some(shared) = shared.filter(|shared| offset < shared.present_first(lane)) {
        let stream = lane.stream_id().0;
        let from = core.passed_to(stream, asked.partition, offset);
        let older = read_older(core, lane, &shared, version, from..end, left, &mut found);
        if let Older::Here(to) | Older::Nothing(to) = older {
            core.remember_passed(stream, asked.partition, offset, to);
        }
        match older {
            Older::Here(from) => offset = from,
            Older::Done(next_offset) => next = Some(next_offset),
            Older::Nothing(_) => return found,
        }
    }
    let next = next.or_else(|| read_present(core, lane, asked.partition, version, offset..end, left, &mut found));
    let Some(next) = next else { return found };
    found.stopped(lane, version, next, next < end, budget);
    match transactions.filter(|_| committed) {
        Some(of) => found.without_aborted(lane, &of, offset..next),
        None => found,
    }
}

/// Reads offsets in `range` of what this node has, from where the reader was the last time if it goes on there; the offset behind what was
/// found. `version` is the lane's from before the range was known.
///
/// Of a compacted partition thousands of segments may follow each other of which only places are left, and each comes from disk for the reader. So how far it has come is
/// remembered also where it has found nothing: when the last of them is here the first may be in memory no more.
fn read_present(
    core: &mut Core,
    lane: &Arc<Lane>,
    partition: i32,
    version: LaneVersion,
    range: Range<u64>,
    left: Left,
    found: &mut Found,
) -> Option<u64> {
    let key = (lane.stream_id().0, partition);
    let start = range.start;
    let known = core.places.get(&key).filter(|(at, _)| *at == start).map(|(_, cursor)| *cursor);
    match take_known(lane, version, known, range, left, found) {
        Ok(Some((next_offset, next))) => {
            core.remember(key.0, key.1, next_offset, next);
            return Some(next_offset);
        }
        Ok(None) => {
            if let Some(passed) = found.passed.take() {
                core.remember(key.0, key.1, start, passed);
            }
        }
        Err(error) => {
            core.places.remove(&key);
            found.error = read_error(&error);
        }
    }
    None
}

/// Takes chunks from where the range is known to begin, or from where it is looked up. What is known may be the end of a segment that has gone
/// since: the offset, which is what the reader asks for, may be there all the same.
fn take_known(
    lane: &Arc<Lane>,
    version: LaneVersion,
    known: Option<Cursor>,
    range: Range<u64>,
    left: Left,
    found: &mut Found,
) -> Result<Option<(u64, Cursor)>, ReadError> {
    if let Some(cursor) = known {
        match take(lane, version, cursor, range.clone(), left, found) {
            Err(ReadError::Gone { .. } | ReadError::Unknown(_)) => {}
            taken => return taken,
        }
    }
    match place_of(lane, range.start, found) {
        Some(cursor) => take(lane, version, cursor, range, left, found),
        None => Ok(None),
    }
}

/// Where an offset is in a lane; if that is not known now, where to wait.
fn place_of(lane: &Arc<Lane>, offset: u64, found: &mut Found) -> Option<Cursor> {
    match lane.lookup_ordinal(offset) {
        Ok(Lookup::Found { cursor, .. }) => return Some(cursor),
        Ok(Lookup::Loading(version)) => {
            (found.waits, found.loads) = (Some((Arc::clone(lane), version)), LOOKUP_LOADS);
        }
        Err(error) => found.error = read_error(&error),
    }
    None
}

/// Where a partition begins; while nobody has told that of what other nodes have, what is deleted in it.
fn start_of(core: &Core, lane: &Arc<Lane>, shared: Option<&Shared>) -> u64 {
    match shared {
        None => first_offset(lane),
        Some(shared) => shared.first(&core.door, lane).unwrap_or_else(|| lane.floor_ordinal()),
    }
}

/// What a read has come to of what was written before the present owner.
enum Older {
    /// The present owner has what comes next, from this offset on.
    Here(u64),
    /// There is something, up to this offset.
    Done(u64),
    /// There is nothing now, or it cannot be read. Up to this offset there are only places.
    Nothing(u64),
}

/// Reads offsets in `range` of a partition that other nodes have had before: what comes next of it, or where to wait. `version` is the
/// lane's from before the range was known.
///
/// Not beyond where the present owner begins, whatever others have there: they may have records again that they lacked when they gave the partition away, and the owner has given their
/// offsets to others. Who was told of these would go on behind the owner's end.
fn read_older(
    core: &Core,
    lane: &Arc<Lane>,
    shared: &Shared,
    version: LaneVersion,
    mut range: Range<u64>,
    left: Left,
    found: &mut Found,
) -> Older {
    let present_first = shared.present_first(lane);
    range.end = range.end.min(present_first);
    while range.start < range.end {
        let data = match shared.step(&core.door, lane, range.start, left.bytes, left.may_load) {
            Step::Data(data) => data,
            Step::Present => return Older::Here(range.start),
            Step::Wait(loads) => {
                // What comes from another node is not waited for before the fetch is answered: that node may be slow.
                (found.waits, found.loads) = (Some((Arc::clone(lane), version)), loads);
                return Older::Nothing(range.start);
            }
            Step::Failed(error) => {
                found.error = read_error(&error);
                return Older::Nothing(range.start);
            }
        };
        match take_from(&data, &range, left, found) {
            Ok(_) if found.is_left_out => return Older::Nothing(range.start),
            Ok((next_offset, _)) if !found.parts.is_empty() => return Older::Done(next_offset),
            // Only places are left of these batches.
            Ok((passed, None)) => range.start = passed,
            Ok((_, Some(_))) if range.end == present_first => range.start = present_first,
            Ok((_, Some(_))) => break,
            Err(error) => {
                found.error = read_error(&error);
                return Older::Nothing(range.start);
            }
        }
    }
    if range.start >= present_first {
        return Older::Here(range.start);
    }
    found.waits = Some((Arc::clone(lane), version));
    Older::Nothing(range.start)
}

/// Up to where every transaction has ended; `None`: that is not known yet.
fn stable_end(of: &SharedPartition, durable: u64) -> Option<u64> {
    let mut of = of.lock();
    (!of.is_loading()).then(|| of.stable(durable))
}

fn read_error(error: &ReadError) -> i16 {
    match error {
        ReadError::Gone { .. } | ReadError::Unknown(_) | ReadError::NotAChunkBoundary(_) => {
            ResponseError::OffsetOutOfRange
        }
        ReadError::LoadFailed(_) => ResponseError::KafkaStorageError,
        ReadError::Deleted => ResponseError::UnknownTopicOrPartition,
    }
    .code()
}

/// Reads chunks of offsets in `range` from a cursor on. The offset and cursor behind them; if there are none, it waits at the
/// lane, and says how far it has come. That is so also where all that is left lies beyond the range, as behind a hole that compaction has made: `version` is
/// the lane's from before the range was known.
fn take(
    lane: &Arc<Lane>,
    version: LaneVersion,
    mut cursor: Cursor,
    range: Range<u64>,
    left: Left,
    found: &mut Found,
) -> Result<Option<(u64, Cursor)>, ReadError> {
    loop {
        let (outcome, loading) = lane.read_and_load(cursor, left.bytes, true, left.may_load)?;
        if outcome.data.is_empty() {
            found.waits = Some((Arc::clone(lane), outcome.version));
            found.loads = Loads::of(loading, left.bytes);
            found.passed = Some(cursor);
            return Ok(None);
        }
        let (next_offset, next_cursor) = take_from(&outcome.data, &range, left, found)?;
        if !found.parts.is_empty() {
            return Ok(Some((next_offset, next_cursor.unwrap_or(outcome.next))));
        }
        if let Some(next_cursor) = next_cursor {
            if !found.is_left_out {
                found.waits = Some((Arc::clone(lane), version));
            }
            found.passed = Some(next_cursor);
            return Ok(None);
        }
        cursor = outcome.next;
    }
}

/// Takes what is in the range out of what was read. Batches of which compaction has left nothing but their place are not sent:
/// librdkafka does not go on behind an answer that has no others. The offset behind what was taken or, if nothing was, behind what was
/// passed over, and the chunk where the range ends, or what is `left`, if that was read.
fn take_from(
    read: &[Bytes],
    range: &Range<u64>,
    left: Left,
    found: &mut Found,
) -> Result<(u64, Option<Cursor>), ReadError> {
    let (mut next_offset, mut next_cursor, mut passed) = (range.start, None, range.start);
    'data: for data in read {
        let mut at = 0;
        for chunk in Chunks::new(data) {
            let (Ok(chunk), start) = (chunk, at) else {
                return Err(ReadError::LoadFailed("a chunk is damaged".into()));
            };
            at += chunk.as_bytes().len();
            let Ok(place) = chunk.broker() else { return Err(ReadError::LoadFailed("a chunk is damaged".into())) };
            let header = chunk.header();
            let next = place.base_ordinal + u64::from(header.record_count);
            if next <= range.start {
                continue;
            }
            if place.base_ordinal >= range.end {
                next_cursor = Some(cursor_of(&place));
                break 'data;
            }
            passed = next;
            let most = if found.parts.is_empty() { left.first_bytes } else { left.bytes };
            let room = most.saturating_sub(found.bytes);
            let part = if left.is_not_for(&chunk, room) {
                None
            } else {
                Some(part_of(&data.slice(start..at), &chunk, &place)?)
            };
            match part {
                Some(part) if batch::is_empty(part.batch()) => {}
                Some(part) if part.batch().len() <= room => {
                    found.bytes += part.batch().len();
                    found.parts.push(part);
                    next_offset = next;
                }
                _ => {
                    if found.parts.is_empty() {
                        // Waiting would not bring more.
                        (found.is_left_out, found.counts) = (true, left.bytes);
                    }
                    next_cursor = Some(cursor_of(&place));
                    break 'data;
                }
            }
        }
    }
    let behind = if found.parts.is_empty() { passed } else { next_offset };
    Ok((behind, next_cursor))
}

/// The batch of a chunk, whose bytes are `data`.
fn part_of(data: &Bytes, chunk: &ChunkView<'_>, place: &BrokerPart) -> Result<Part, ReadError> {
    let (payload_bytes, leader_epoch) = (chunk.header().payload_bytes as usize, epochs::of_group(place.group));
    if chunk.header().kind == PayloadKind::KafkaBatch {
        if payload_bytes < BATCH_HEADER_BYTES {
            return Err(ReadError::LoadFailed("a batch is shorter than its header".into()));
        }
        let batch = data.slice(CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + payload_bytes);
        return Ok(Part::Stored { batch, base_ordinal: place.base_ordinal, leader_epoch });
    }
    let made = batch::from_native(chunk, place.base_ordinal, place.append_time_ms);
    let mut batch = made.map_err(|error| ReadError::LoadFailed(error.to_string()))?;
    batch::set_leader_epoch(&mut batch, leader_epoch);
    Ok(Part::Made(Bytes::from(batch)))
}

fn cursor_of(place: &BrokerPart) -> Cursor {
    Cursor { group: place.group, segment: place.segment, position: place.position }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicU64;

    use kera_format::chunk::ChunkTarget;
    use kera_format::kafka_transactions::AbortedRange;
    use kera_format::{ChunkBuilder, Compression, LaneId, Record, StreamId, StreamOptions, StreamletId};
    use kera_log::{Arena, ArenaConfig, Log, LogConfig};

    use super::*;
    use crate::transactions::PartitionTransactions;

    /// What a fetch of the first offset of partition 0 is told if, between the look at the owners and that at the lane, `meanwhile` happens: an error, where the partition begins, and
    /// whether there are records.
    pub(crate) fn read_meanwhile(core: &mut Core, lane: &Arc<Lane>, meanwhile: &dyn Fn()) -> (i16, i64, bool) {
        let asked =
            FetchPartition::default().with_current_leader_epoch(epochs::UNKNOWN).with_partition_max_bytes(1 << 20);
        let found = read_while(core, lane, &asked, (false, all_left(1 << 20)), meanwhile);
        (found.error, found.log_start, found.bytes > 0)
    }

    #[derive(Default)]
    struct Calls(AtomicU64);

    impl Observer for Calls {
        fn advanced(&self, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn append(lane: &Arc<Lane>) {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(b"x"));
        let target = ChunkTarget { stream: lane.stream_id(), ..ChunkTarget::default() };
        let chunk = builder.seal(&target, Compression::None).unwrap();
        lane.append(&ChunkView::parse(&chunk).unwrap(), 1).unwrap();
    }

    fn all_left(bytes: usize) -> Left {
        Left { bytes, first_bytes: usize::MAX, may_load: true, is_gap: false }
    }

    fn place(lane: &Lane, ordinal: u64) -> Cursor {
        let Ok(Lookup::Found { cursor, .. }) = lane.lookup_ordinal(ordinal) else { panic!("{ordinal} is not there") };
        cursor
    }

    fn lane() -> (Arc<Lane>, tempfile::TempDir) {
        let (_, lane, dir) = lane_of_log();
        (lane, dir)
    }

    /// A lane of three chunks, with its log.
    fn lane_of_log() -> (Arc<Log>, Arc<Lane>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit.arena");
        let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 16 << 20, node: [3; 16] }).unwrap();
        let log = Log::new(LogConfig::default(), arena);
        let stream = log.create_stream(StreamId(7), StreamOptions::default()).unwrap();
        let lane = Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap());
        (0..3).for_each(|_| append(&lane));
        (log, lane, dir)
    }

    #[test]
    fn what_has_gone_since_it_was_read_is_not_told_without_what_was_aborted_in_it() {
        let (log, lane, _dir) = lane_of_log();
        lane.close_group();
        append(&lane);
        let of = Arc::new(Mutex::new(PartitionTransactions::new(lane.stream_id(), 0)));
        of.lock().restore([AbortedRange {
            stream: lane.stream_id(),
            partition: 0,
            producer_id: 4,
            first_offset: 0,
            marker_offset: 1,
            stable_offset: 2,
            epoch: 0,
        }]);
        let told = || {
            let found = Found::default().without_aborted(&lane, &of, 0..3);
            (found.error, found.aborted)
        };
        assert_eq!(told(), (0, Some(vec![(4, 0)])));
        // What is deleted native readers may still be given.
        lane.raise_floor(3);
        of.lock().trim(shown_from(&lane));
        assert_eq!(told(), (0, Some(vec![(4, 0)])));
        assert_eq!(log.retain(1), 1);
        of.lock().trim(shown_from(&lane));
        assert_eq!(told(), (ResponseError::OffsetOutOfRange.code(), None));
    }

    #[test]
    fn who_remembers_a_place_that_is_not_there_any_more_finds_the_offset_where_it_is() {
        let (lane, _dir) = lane();
        let left = all_left(1 << 20);
        let there = place(&lane, 1);
        let next_group = Cursor { group: kera_format::GroupId(there.group.0 + 1), ..there };
        for known in [None, Some(there), Some(next_group)] {
            let mut found = Found::default();
            let taken = take_known(&lane, lane.version(), known, 1..3, left, &mut found).unwrap();
            assert_eq!((taken.map(|(next, _)| next), found.parts.len(), found.error), (Some(3), 2, 0), "{known:?}");
        }
        let mut found = Found::default();
        assert!(take(&lane, lane.version(), next_group, 1..3, left, &mut found).is_err(), "nothing is there");
    }

    /// Whoever may read up to a place, and finds that the next batch lies behind it, waits until the lane moves: that is where a
    /// transaction ends.
    #[test]
    fn a_reader_that_finds_only_what_lies_beyond_its_end_waits_at_the_lane() {
        let (lane, _dir) = lane();
        // As behind a hole that ends where the reader may read to.
        let (version, mut found) = (lane.version(), Found::default());
        let left = all_left(1 << 20);
        let taken = take(&lane, version, place(&lane, 2), 1..2, left, &mut found).unwrap();
        assert!(taken.is_none() && found.parts.is_empty());
        let (at, seen) = found.waits.unwrap();
        assert!(Arc::ptr_eq(&at, &lane));
        let calls = Arc::new(Calls::default());
        let observer: Arc<dyn Observer> = Arc::clone(&calls) as _;
        assert!(lane.wait(seen, &observer, 0));
        append(&lane);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert!(!lane.wait(seen, &observer, 0), "what has moved since is not waited for");
        // What lies in front is passed over, a chunk at a time.
        let mut found = Found::default();
        let left = all_left(1);
        let taken = take(&lane, lane.version(), place(&lane, 0), 2..4, left, &mut found).unwrap();
        assert_eq!((taken.map(|(next, _)| next), found.parts.len()), (Some(3), 1));
        assert!(found.waits.is_none());
    }
}
