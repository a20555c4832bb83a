//! What a producer has taken and not had acknowledged: [open chunks](super::open) that records are encoded into, and sealed
//! chunks that wait to be sent.
//!
//! All of it is under the producer's one lock. The [`Front`](super::front::Front) takes it to open and to seal a chunk, the
//! background task once or twice for a request. A full chunk is sealed by whoever fills it, so that compression and
//! checksum are paid by the sender's thread; the task copies out of an open chunk that has to leave. Memory of acknowledged
//! chunks is used again. Nothing here does I/O.
//!
//! Chunks have two numbers. The *serial* counts chunks of the producer as they are sealed: a flush waits for all serials up
//! to one. The *sequence* counts sealed chunks of a streamlet: by it the server recognises retries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_format::chunk::{ChunkTarget, Skip, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkBuilder, ChunkHeader, Compression, ProducerEpoch, ProducerId, StreamId, StreamletId,
};
use kera_protocol::write::SKIP_BYTES;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::free::Free;
use super::open::{LOOK_AGAIN, OpenChunk, Part, Pen, Slot};
use super::report::{Delivered, DeliveryReport, ProducerStats};
use crate::{ClientError, Routing};

/// What a buffer is told when it is made.
#[derive(Clone, Debug)]
pub struct BufferSettings {
    /// The stream.
    pub stream: StreamId,
    /// Its streamlets.
    pub streamlets: u32,
    /// Lanes of each streamlet.
    pub lanes: u32,
    /// A chunk is sealed before it grows larger.
    pub chunk_bytes: usize,
    /// No chunk is larger, not even one of a single record.
    pub chunk_bytes_max: usize,
    /// Bytes that may wait.
    pub buffer_bytes: usize,
    /// How long an open chunk waits for more records.
    pub linger: Duration,
    /// How long a chunk is tried to be delivered.
    pub delivery_timeout: Duration,
    /// How chunks are compressed.
    pub compression: Compression,
    /// How a record's streamlet is chosen.
    pub routing: Routing,
}

/// Which sequences chunks get that wait.
///
/// A chunk that was sent and is not answered for good may be in the stream: under another sequence it would be there twice. So it keeps its own as long as the
/// server may know it by that, and a hole is closed only if nothing behind it may be there: all of that was never sent, or each time came too early. Behind a
/// hole that is left open the server says that it misses something, and the next chunk says that this is [skipped](Skip).
///
/// That something came too early is no promise that an earlier try of it, on a connection that is lost, does not come later still: a server that stood still goes on with
/// what had come. So no sequence ever stands for two chunks that were sent. Only to a node of an earlier version, which knows of no skips, what waits is sent from 0 on in
/// another epoch; then a record may be there twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sequences {
    /// Those that they have, less by one for each hole in front of them that can be closed.
    Same,
    /// Of streamlets that would skip some and are for a node that does not know of that: from 0 on, in another epoch. The others as [`Sequences::Same`].
    Anew(ProducerEpoch),
    /// From 0 on, of this producer and epoch.
    All(ProducerId, ProducerEpoch),
}

/// Who waits for one record of a chunk.
pub(super) type Waiter = oneshot::Sender<Result<Delivered, ClientError>>;

/// The bytes of a sealed chunk. Those of a small one are copied when they are sent; those of a large one are shared with
/// the connection.
#[derive(Debug)]
pub(super) enum ChunkBytes {
    /// Nobody else has them.
    Own(Vec<u8>),
    /// The connection may have them as well.
    Shared(Bytes),
}

impl std::ops::Deref for ChunkBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            ChunkBytes::Own(bytes) => bytes,
            ChunkBytes::Shared(bytes) => bytes,
        }
    }
}

impl ChunkBytes {
    /// Bytes for the connection, not copied.
    pub(super) fn share(&mut self) -> Bytes {
        if let ChunkBytes::Own(bytes) = self {
            *self = ChunkBytes::Shared(std::mem::take(bytes).into());
        }
        match self {
            ChunkBytes::Own(_) => unreachable!("it was shared above"),
            ChunkBytes::Shared(bytes) => bytes.clone(),
        }
    }

    /// The memory, if nobody else has it.
    pub(super) fn into_memory(self) -> Result<Vec<u8>, Bytes> {
        match self {
            ChunkBytes::Own(bytes) => Ok(bytes),
            ChunkBytes::Shared(bytes) => bytes.try_into_mut().map(Vec::from),
        }
    }
}

/// A chunk that waits to be sent or acknowledged.
#[derive(Debug)]
pub(super) struct Sealed {
    /// The streamlet.
    pub(super) streamlet: u32,
    /// Its number among those of the producer's epoch and the streamlet.
    pub(super) sequence: u64,
    /// The chunk.
    pub(super) bytes: ChunkBytes,
    /// Records of the streamlet that this producer sealed before.
    first_record: u64,
    /// Records in it.
    pub(super) records: u32,
    /// When its first record was taken.
    pub(super) opened_at: Instant,
    /// How often it was sent.
    pub(super) attempts: u32,
    /// It was taken to be sent, and is not put back or settled yet.
    is_under_way: bool,
    /// The last that is known of it is that it came too early.
    pub(super) was_early: bool,
    /// A try of it was never answered: it may come yet.
    pub(super) is_unanswered: bool,
    /// A try of it was answered so that it may have been appended all the same.
    pub(super) is_unsure: bool,
    /// The server has said to the last try of it that it takes nothing of this producer any more.
    pub(super) is_fenced: bool,
    /// Which sequences in front of it are skipped, as it was sent last.
    pub(super) skips: Option<Skip>,
    serial: u64,
    charged: usize,
    waiters: Vec<(u32, Waiter)>,
}

impl Sealed {
    /// Whether a chunk that is given up may be in the stream all the same, as far as its number is concerned: that stays its own already if it was sent more often
    /// than it was refused for good.
    pub(super) fn may_be_there(&self, error: &ClientError) -> bool {
        // Of a refused one that of the last is.
        let is_refused = matches!(error, ClientError::Refused { status, .. } if !status.could_duplicate());
        self.attempts > u32::from(is_refused || self.is_fenced)
    }

    /// What is told of a chunk that is given up with `error`, which may be that of all that a producer had when it ended: who is told that it is
    /// closed and no more would send anew what may be in the stream.
    ///
    /// A try that was answered by a status that could not be a duplicate's has appended nothing, for good or only for now: who would be told of such a chunk that it may be
    /// there could not send it anew, though it is not. So only tries count of which that is not known.
    fn told(&self, error: ClientError) -> ClientError {
        if error.could_duplicate() || !self.has_unknown_try() {
            return error;
        }
        let streamlet = StreamletId(self.streamlet);
        ClientError::Unknown { records: self.records.into(), streamlet, error: Box::new(error) }
    }

    /// Whether nobody knows what became of an earlier try of it.
    pub(super) fn has_unknown_try(&self) -> bool {
        self.is_unsure || self.is_unanswered
    }

    /// Whether a chunk that waits may be in the stream.
    fn may_be_there_waiting(&self) -> bool {
        self.is_unanswered || self.attempts > 0 && !self.was_early
    }
}

#[derive(Debug, Default)]
struct Streamlet {
    open: Option<OpenChunk>,
    /// In the order of their sequences.
    sealed: VecDeque<Sealed>,
    next_sequence: u64,
    next_record: u64,
    /// The sequence behind the last one that was acknowledged.
    settled_sequence: u64,
    /// The sequence behind the last one that was given up and may be in the stream all the same: no other chunk may have one of those.
    given_up_sequence: u64,
    /// The server does not recognise chunks below this sequence, if an earlier try of one is in the stream.
    doubtful_below: u64,
    /// Sequences of chunks that were given up and are certainly not in the stream, in order.
    holes: Vec<u64>,
    /// The producer's epoch that they count in.
    epoch: ProducerEpoch,
    /// The server misses chunks that nobody sends any more, from this one on: the next one says that they are skipped. As long as that is not answered one chunk
    /// at a time is sent, for one behind it could be taken while it is refused for a moment, and it would pass for a duplicate then.
    skips_from: Option<u64>,
    /// It is in the line of its route.
    is_ready: bool,
    /// Which connection its chunks leave by.
    route: u32,
    /// Which they are to leave by as soon as nothing of it is under way: order and sequences are those of one connection after
    /// the other.
    wanted: u32,
    /// Chunks that were taken and not put back or settled.
    under_way: u32,
}

impl Streamlet {
    /// An empty one, whose chunks are counted from 0 in this epoch.
    fn counting_in(epoch: ProducerEpoch) -> Streamlet {
        Streamlet { epoch, ..Streamlet::default() }
    }

    /// Whether this chunk is still open.
    fn is_open(&self, opening: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.opening == opening)
    }
}

/// What waits to leave by one connection.
#[derive(Debug, Default)]
struct Route {
    /// Streamlets with sealed chunks, the one whose turn it is first. Some may have another route by now.
    ready: VecDeque<u32>,
    /// Open chunks that the task has not taken from, in the order they were opened: opening and streamlet. Some may have
    /// been sealed since.
    opened: VecDeque<(u64, u32)>,
    /// Open chunks that it has taken from and looks at once more: when, opening and streamlet.
    again: VecDeque<(Instant, u64, u32)>,
    /// The node knows of no skips.
    is_old: bool,
}

/// What [`Buffer::take`] found.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Chunks for one request.
    pub(super) chunks: Vec<Sealed>,
    /// Their bytes.
    pub(super) bytes: usize,
    /// Chunks whose time is up.
    pub(super) expired: Vec<Sealed>,
    /// When the next open chunk is due, if nothing else happens.
    pub(super) due_at: Option<Instant>,
    /// There are chunks that would skip sequences, and are for a node that does not know of that.
    pub(super) is_refused: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Buffer {
    settings: BufferSettings,
    producer_id: ProducerId,
    /// The newest: streamlets keep an older one as long as nothing is wrong with it.
    producer_epoch: ProducerEpoch,
    slots: Arc<[Slot]>,
    streamlets: Vec<Streamlet>,
    /// One for each connection.
    routes: Vec<Route>,
    /// No sealed chunk of a streamlet that is in line was opened before, so that not all of them are looked at each time. None is in line: `None`.
    oldest: Option<Instant>,
    openings: u64,
    free: Free,
    /// Whether there is room for a whole buffer for each streamlet.
    whole: bool,
    next_serial: u64,
    /// Chunks from `settled_serial` on: whether they are settled. The first one is not.
    settled: VecDeque<bool>,
    settled_serial: u64,
    /// The background task has nothing to do and waits to be woken.
    pub(super) hungry: bool,
    /// Why nothing is taken any more.
    pub(super) fatal: Option<ClientError>,
    /// The background task is gone: nobody settles what is still taken.
    pub(super) ended: bool,
    /// The first failure since the last flush.
    pub(super) failed: Option<ClientError>,
    /// What has happened so far. The front counts the records that it takes.
    pub(super) stats: ProducerStats,
}

impl Buffer {
    /// An empty one, of a producer with this id and epoch; id zero: its chunks are not deduplicated.
    pub(super) fn new(settings: BufferSettings, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> Buffer {
        let streamlets = settings.streamlets.max(1) as usize;
        let (whole, free) = Free::of(&settings);
        Buffer {
            settings,
            producer_id,
            producer_epoch,
            slots: (0..streamlets).map(|_| Slot::default()).collect(),
            streamlets: (0..streamlets).map(|_| Streamlet::counting_in(producer_epoch)).collect(),
            routes: vec![Route::default()],
            oldest: None,
            openings: 0,
            free,
            whole,
            next_serial: 0,
            settled: VecDeque::new(),
            settled_serial: 0,
            hungry: false,
            fatal: None,
            ended: false,
            failed: None,
            stats: ProducerStats::default(),
        }
    }

    /// What the producer sees of open chunks without the lock.
    pub(super) fn slots(&self) -> Arc<[Slot]> {
        Arc::clone(&self.slots)
    }

    /// What it was made with.
    pub(super) fn settings(&self) -> &BufferSettings {
        &self.settings
    }

    /// The stream has got more streamlets: chunks of theirs can be routed from here on. The producer's side [follows](Buffer::follow)
    /// when it opens a chunk the next time. Fewer are not believed: a stream never shrinks.
    pub(super) fn grow(&mut self, streamlets: u32) {
        let epoch = self.producer_epoch;
        if streamlets as usize > self.streamlets.len() {
            self.settings.streamlets = streamlets;
            self.streamlets.resize_with(streamlets as usize, || Streamlet::counting_in(epoch));
        }
    }

    /// What the producer sees of open chunks of all streamlets that there are by now. No chunk is open: one that is has its slot
    /// where the producer does not look any more.
    pub(super) fn follow(&mut self) -> Arc<[Slot]> {
        debug_assert!(self.streamlets.iter().all(|streamlet| streamlet.open.is_none()), "all chunks are sealed");
        self.slots = self.streamlets.iter().map(|_| Slot::default()).collect();
        (self.whole, self.free) = Free::of(&self.settings);
        self.slots()
    }

    /// Lets `pen` write a record of `bytes` bytes more to the open chunk of a streamlet, which is opened if it is not. The
    /// caller has seen that a chunk may be so large. Whether there is room within the buffer's bound.
    pub(super) fn make_room(&mut self, number: u32, pen: &mut Pen, bytes: usize) -> bool {
        let streamlet = &mut self.streamlets[number as usize];
        let charged = streamlet.open.as_ref().map_or(0, |open| open.charged);
        let buffered = self.stats.buffered_bytes as usize;
        let left = self.settings.buffer_bytes.saturating_sub(buffered - charged);
        let needed = pen.filled().bytes as usize + bytes;
        if needed > left && buffered > 0 {
            return false;
        }
        let wanted = match self.whole {
            true => self.settings.chunk_bytes - CHUNK_HEADER_BYTES,
            false => (2 * needed).max(self.free.bytes - CHUNK_HEADER_BYTES),
        };
        let room = wanted.min(self.settings.chunk_bytes - CHUNK_HEADER_BYTES).min(left).max(needed);
        let open = match &mut streamlet.open {
            Some(open) => open,
            None => {
                let memory = self.free.open(room + CHUNK_HEADER_BYTES);
                let open = streamlet.open.insert(OpenChunk::new(memory, self.openings, Instant::now()));
                self.slots[number as usize].open();
                *pen = open.pen(room);
                self.routes[streamlet.wanted as usize].opened.push_back((self.openings, number));
                self.openings += 1;
                open
            }
        };
        if let Some(memory) = open.grow(pen, room, || self.free.open(room + CHUNK_HEADER_BYTES)) {
            self.free.give_back(memory);
        }
        self.stats.buffered_bytes = (buffered - charged + room) as u64;
        open.charged = room;
        self.forget_sealed();
        true
    }

    /// Keeps the lists of open chunks as long as there are streamlets, about: chunks that were sealed since are not on them.
    fn forget_sealed(&mut self) {
        let streamlets = &self.streamlets;
        for route in &mut self.routes {
            if route.opened.len() > 64 + 4 * streamlets.len() {
                route.opened.retain(|&(opening, number)| streamlets[number as usize].is_open(opening));
            }
            if route.again.len() > 64 + 4 * streamlets.len() {
                route.again.retain(|&(_, opening, number)| streamlets[number as usize].is_open(opening));
            }
        }
    }

    /// Has `waiter` told what becomes of the record that is written to a streamlet next.
    pub(super) fn wait_for(&mut self, number: u32, pen: &Pen, waiter: Waiter) {
        if let Some(open) = &mut self.streamlets[number as usize].open {
            open.waiters.push((pen.filled().records, waiter));
        }
    }

    /// Seals the open chunk of a streamlet, if there is one: the producer's side, whose pen it is.
    pub(super) fn seal(&mut self, number: u32, pen: &mut Pen) {
        let Some(open) = self.streamlets[number as usize].open.take() else { return };
        let (opened_at, charged) = (open.opened_at, open.charged);
        let (memory, part) = open.finish(pen);
        self.stats.buffered_bytes -= charged as u64;
        if part.records == 0 {
            // All of it was stolen.
            self.free.give_back(memory);
        } else {
            let memory = self.fitted(memory);
            self.add_sealed(number, memory, part, opened_at);
        }
    }

    /// A chunk that is sealed early, as by a flush, does not keep a large buffer while it waits.
    fn fitted(&mut self, memory: Vec<u8>) -> Vec<u8> {
        if memory.len() >= memory.capacity() / 2 {
            return memory;
        }
        let mut copy = self.free.copy(memory.len());
        copy.clear();
        copy.extend_from_slice(&memory);
        self.free.give_back(memory);
        copy
    }

    /// Bytes of the bound that a chunk takes: those of its records. One that is sealed early may have few, and takes what it has beside
    /// them as well, as far as the bound goes: many of them would have many times the memory that is allowed.
    fn charge(&self, memory: &[u8]) -> usize {
        let records = memory.len() - CHUNK_HEADER_BYTES;
        if memory.len() >= self.free.bytes / 2 {
            return records;
        }
        let left = self.settings.buffer_bytes.saturating_sub(self.stats.buffered_bytes as usize + records);
        records + (CHUNK_HEADER_BYTES + size_of::<Sealed>()).min(left)
    }

    /// Seals a copy of what is new in the open chunk of a streamlet: the task's side. Whether there was anything.
    fn steal(&mut self, number: u32, now: Instant) -> bool {
        let Some(open) = &mut self.streamlets[number as usize].open else { return false };
        let free = &mut self.free;
        let Some((copy, part)) = open.steal(&self.slots[number as usize], |bytes| free.copy(bytes)) else {
            return false;
        };
        // What is left, or has been on its way, came after what was stolen.
        let (opening, opened_at) = (open.opening, std::mem::replace(&mut open.opened_at, now));
        // The producer opens another chunk before it takes more than one record.
        self.stats.buffered_bytes -= std::mem::take(&mut open.charged) as u64;
        let route = self.streamlets[number as usize].wanted;
        self.routes[route as usize].again.push_back((now + LOOK_AGAIN, opening, number));
        self.add_sealed(number, copy, part, opened_at);
        true
    }

    fn add_sealed(&mut self, number: u32, memory: Vec<u8>, part: Part, opened_at: Instant) {
        let charged = self.charge(&memory);
        let streamlet = &mut self.streamlets[number as usize];
        let sequence = streamlet.next_sequence;
        streamlet.next_sequence += 1;
        let builder = ChunkBuilder::filled(memory, part.records, part.max_timestamp_ms);
        let bytes = builder.seal(&self.target(number, sequence), self.settings.compression);
        // Records are checked against the largest chunk before they are taken, and there is at least one.
        let bytes = bytes.expect("an open chunk is within its limits");
        let serial = self.next_serial;
        self.next_serial += 1;
        self.settled.push_back(false);
        let streamlet = &mut self.streamlets[number as usize];
        let first_record = streamlet.next_record;
        streamlet.next_record += u64::from(part.records);
        streamlet.sealed.push_back(Sealed {
            streamlet: number,
            sequence,
            bytes: ChunkBytes::Own(bytes),
            first_record,
            records: part.records,
            opened_at,
            attempts: 0,
            is_under_way: false,
            was_early: false,
            is_unanswered: false,
            is_unsure: false,
            is_fenced: false,
            skips: None,
            serial,
            charged,
            waiters: part.waiters,
        });
        self.line_up(number);
        self.stats.chunks += 1;
        self.stats.buffered_bytes += charged as u64;
    }

    /// Puts a streamlet that has sealed chunks in the line of its route, unless it is about to get another.
    fn line_up(&mut self, number: u32) {
        let streamlet = &mut self.streamlets[number as usize];
        if !streamlet.is_ready && streamlet.route == streamlet.wanted && !streamlet.sealed.is_empty() {
            streamlet.is_ready = true;
            self.routes[streamlet.route as usize].ready.push_back(number);
        }
        // All that comes into line does so here, also if the streamlet was there already.
        if let Some(front) = streamlet.sealed.front().filter(|_| streamlet.is_ready) {
            self.oldest = Some(self.oldest.map_or(front.opened_at, |oldest| oldest.min(front.opened_at)));
        }
    }

    /// Has the chunks of a streamlet leave by another connection, as soon as none is under way by the one before.
    pub(super) fn set_route(&mut self, number: u32, route: u32) {
        self.route_at(route as usize);
        let streamlet = &mut self.streamlets[number as usize];
        if streamlet.wanted == route {
            return;
        }
        (streamlet.wanted, streamlet.is_ready) = (route, false);
        if let Some(open) = &streamlet.open {
            // Whoever sends by the old one may not look at it any more.
            self.routes[route as usize].opened.push_back((open.opening, number));
        }
        self.reroute(number);
    }

    /// What waits to leave by a connection, of which nothing may be known yet.
    fn route_at(&mut self, at: usize) -> &mut Route {
        if self.routes.len() <= at {
            self.routes.resize_with(at + 1, Route::default);
        }
        &mut self.routes[at]
    }

    /// Which connection the chunks of a streamlet are to leave by.
    pub(super) fn route(&self, number: u32) -> u32 {
        self.streamlets[number as usize].wanted
    }

    /// Lets a streamlet go its new way if nothing of it is under way by the old one.
    fn reroute(&mut self, number: u32) {
        let streamlet = &mut self.streamlets[number as usize];
        if streamlet.under_way == 0 {
            streamlet.route = streamlet.wanted;
        }
        // Also if it has come back to the way that it was to leave.
        self.line_up(number);
    }

    /// A chunk that was taken is back, or settled.
    fn returned(&mut self, number: u32) {
        let streamlet = &mut self.streamlets[number as usize];
        streamlet.under_way -= 1;
        if streamlet.under_way == 0 {
            self.reroute(number);
        }
    }

    /// Whether something is to leave by this connection. Forgets what stands in its lines and has another way by now.
    pub(super) fn wants(&mut self, at: usize) -> bool {
        let Some(route) = self.routes.get_mut(at) else { return false };
        while let Some(&number) = route.ready.front() {
            let streamlet = &mut self.streamlets[number as usize];
            let in_line = streamlet.is_ready && streamlet.route as usize == at;
            if in_line && !streamlet.sealed.is_empty() {
                return true;
            }
            streamlet.is_ready &= !in_line;
            route.ready.pop_front();
        }
        let is_here = |streamlet: &Streamlet, opening| streamlet.wanted as usize == at && streamlet.is_open(opening);
        while let Some(&(opening, number)) = route.opened.front() {
            if is_here(&self.streamlets[number as usize], opening) {
                return true;
            }
            route.opened.pop_front();
        }
        route.again.iter().any(|&(_, opening, number)| is_here(&self.streamlets[number as usize], opening))
    }

    fn target(&self, streamlet: u32, sequence: u64) -> ChunkTarget {
        ChunkTarget {
            stream: self.settings.stream,
            streamlet: StreamletId(streamlet),
            producer_id: self.producer_id,
            producer_epoch: self.streamlets[streamlet as usize].epoch,
            sequence,
        }
    }

    /// Chunks for a request of about `request_bytes` by one connection: one of each streamlet in turn, until it is full. Open chunks are
    /// stolen from when they are due and there is room for them. The chunks come in `chunks`, which is empty.
    pub(super) fn take(&mut self, route: usize, now: Instant, request_bytes: usize, chunks: Vec<Sealed>) -> Taken {
        let mut taken = Taken { chunks, ..Taken::default() };
        if self.routes.len() <= route {
            return taken;
        }
        let is_old = self.routes[route].is_old;
        loop {
            let ready = &mut self.routes[route].ready;
            if let Some(&number) = ready.front() {
                let streamlet = &mut self.streamlets[number as usize];
                if !streamlet.is_ready || streamlet.route as usize != route {
                    // It has another route by now.
                    ready.pop_front();
                    continue;
                }
                if is_old && streamlet.skips_from.is_some() {
                    taken.is_refused = true;
                    return taken;
                }
                let is_held = streamlet.skips_from.is_some() && streamlet.under_way > 0;
                let Some(front) = streamlet.sealed.front().filter(|_| !is_held) else {
                    streamlet.is_ready = false;
                    ready.pop_front();
                    continue;
                };
                let expired = front.opened_at + self.settings.delivery_timeout <= now;
                if !expired && !taken.chunks.is_empty() && taken.bytes + front.bytes.len() > request_bytes {
                    return taken;
                }
                let mut chunk = streamlet.sealed.pop_front().expect("it is there");
                ready.pop_front();
                ready.push_back(number);
                (chunk.is_under_way, chunk.was_early) = (!expired, chunk.was_early && expired);
                chunk.skips = streamlet.skips_from.map(|from| Skip { from });
                streamlet.under_way += u32::from(!expired);
                if expired {
                    taken.expired.push(chunk);
                } else {
                    taken.bytes += chunk.bytes.len() + chunk.skips.map_or(0, |_| SKIP_BYTES);
                    taken.chunks.push(chunk);
                }
                continue;
            }
            match self.steal_due(route, self.settings.linger, now) {
                Ok(true) => {}
                Ok(false) => return taken,
                Err(due_at) => {
                    taken.due_at = Some(due_at);
                    return taken;
                }
            }
        }
    }

    /// Steals from an open chunk that is due: one that has waited so long, or is to be looked at once more. `Ok(false)`: there is none; `Err`: when the next one
    /// will be due. What is due leaves its line.
    fn steal_due(&mut self, route: usize, wait: Duration, now: Instant) -> Result<bool, Instant> {
        let mut due = None;
        while let Some(&(opening, number)) = self.routes[route].opened.front() {
            let wanted = self.streamlets[number as usize].wanted as usize;
            if wanted != route {
                // It stands in the other line since it was sent there.
                self.routes[route].opened.pop_front();
                continue;
            }
            let open = self.streamlets[number as usize].open.as_ref();
            let due_at = open.filter(|open| open.opening == opening).map(|open| open.opened_at + wait);
            if due_at.is_some_and(|due_at| due_at > now) {
                due = due_at;
                break;
            }
            self.routes[route].opened.pop_front();
            if due_at.is_some() && self.steal(number, now) {
                return Ok(true);
            }
        }
        while let Some(&(at, opening, number)) = self.routes[route].again.front() {
            let is_open = self.streamlets[number as usize].is_open(opening);
            if is_open && at > now {
                due = Some(due.map_or(at, |due: Instant| due.min(at)));
                break;
            }
            self.routes[route].again.pop_front();
            if is_open && self.steal(number, now) {
                return Ok(true);
            }
        }
        due.map_or(Ok(false), Err)
    }

    /// Puts chunks back that have to be sent again, where they belong by their sequences.
    pub(super) fn put_back(&mut self, chunks: impl IntoIterator<Item = Sealed>) {
        for mut chunk in chunks {
            let number = chunk.streamlet;
            let was_under_way = std::mem::take(&mut chunk.is_under_way);
            let streamlet = &mut self.streamlets[number as usize];
            let at = streamlet.sealed.partition_point(|other| other.sequence < chunk.sequence);
            streamlet.sealed.insert(at, chunk);
            if was_under_way {
                self.returned(number);
            }
            self.line_up(number);
        }
    }

    /// Chunks whose time is up, out of everything that waits to be sent, and when the next may have its time up: later than `now`.
    ///
    /// A connection that is not there takes nothing from open chunks, whose time comes all the same: they leave their lines here as they do there, and are looked at
    /// once more likewise. So the lines of a node that is away are no longer than those of another one, and each chunk is looked at once or twice.
    pub(super) fn take_expired(&mut self, now: Instant) -> (Vec<Sealed>, Option<Instant>) {
        let timeout = self.settings.delivery_timeout;
        let mut next = None;
        for route in 0..self.routes.len() {
            let due_at = loop {
                match self.steal_due(route, timeout, now) {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(due_at) => break Some(due_at),
                }
            };
            next = [next, due_at].into_iter().flatten().min();
        }
        let mut expired = Vec::new();
        if self.oldest.is_some_and(|opened_at| opened_at + timeout <= now) {
            let mut oldest = None;
            for number in self.routes.iter().flat_map(|route| &route.ready) {
                let sealed = &mut self.streamlets[*number as usize].sealed;
                while let Some(front) = sealed.front()
                    && front.opened_at + timeout <= now
                {
                    expired.extend(sealed.pop_front());
                }
                oldest = [oldest, sealed.front().map(|front| front.opened_at)].into_iter().flatten().min();
            }
            self.oldest = oldest;
        }
        let next = [next, self.oldest.map(|opened_at| opened_at + timeout)].into_iter().flatten().min();
        (expired, next)
    }

    /// Open chunks in lines, and those that were.
    #[cfg(test)]
    pub(super) fn in_line(&self) -> usize {
        self.routes.iter().map(|route| route.opened.len() + route.again.len()).sum()
    }

    /// Takes everything: nothing of it will be sent. Open chunks are stolen from.
    pub(super) fn take_all(&mut self, now: Instant) -> Vec<Sealed> {
        for number in 0..self.streamlets.len() as u32 {
            self.steal(number, now);
        }
        self.routes.iter_mut().for_each(|route| route.ready.clear());
        let mut all = Vec::new();
        for streamlet in &mut self.streamlets {
            streamlet.is_ready = false;
            all.extend(streamlet.sealed.drain(..));
        }
        all
    }

    /// The server misses chunks of a streamlet from `expected` on, which are acknowledged or given up: they are skipped. How many were acknowledged and are
    /// not there; none if the server may only not remember them.
    pub(super) fn misses(&mut self, streamlet: u32, expected: u64, may_be_there: bool) -> u64 {
        let streamlet = &mut self.streamlets[streamlet as usize];
        if may_be_there {
            streamlet.doubtful_below = streamlet.next_sequence;
        }
        let known = streamlet.skips_from.replace(expected).unwrap_or(u64::MAX).min(streamlet.settled_sequence);
        let forgotten = if may_be_there { 0 } else { known.saturating_sub(expected) };
        self.stats.forgotten_chunks += forgotten;
        forgotten
    }

    /// Whether the node that a connection is to knows of no skips.
    pub(super) fn set_old(&mut self, route: usize, is_old: bool) {
        self.route_at(route).is_old = is_old;
    }

    /// Whether a chunk with one of these sequences was given up and is certainly not in the stream.
    pub(super) fn has_hole(&self, streamlet: u32, sequences: std::ops::Range<u64>) -> bool {
        self.streamlets[streamlet as usize].holes.iter().any(|hole| sequences.contains(hole))
    }

    /// Gives the waiting chunks [other sequences](Sequences), after chunks were given up or are missing. Nothing may be in flight.
    pub(super) fn renumber(&mut self, sequences: Sequences) {
        match sequences {
            Sequences::All(id, epoch) => (self.producer_id, self.producer_epoch) = (id, epoch),
            Sequences::Anew(epoch) => self.producer_epoch = epoch,
            Sequences::Same => {}
        }
        for number in 0..self.streamlets.len() as u32 {
            let streamlet = &mut self.streamlets[number as usize];
            let begins_anew = streamlet.skips_from.is_some() && self.routes[streamlet.route as usize].is_old;
            let begins_in = match sequences {
                Sequences::All(_, epoch) => Some(epoch),
                Sequences::Anew(epoch) if begins_anew => Some(epoch),
                Sequences::Anew(_) | Sequences::Same => None,
            };
            let unsure = streamlet.sealed.iter().rev().find(|chunk| chunk.may_be_there_waiting());
            let there = streamlet.settled_sequence.max(unsure.map_or(0, |chunk| chunk.sequence + 1));
            let there = there.max(streamlet.given_up_sequence);
            let mut holes = std::mem::take(&mut streamlet.holes);
            holes.retain(|hole| *hole >= there);
            if let Some(epoch) = begins_in {
                (streamlet.epoch, streamlet.settled_sequence, streamlet.given_up_sequence) = (epoch, 0, 0);
                streamlet.skips_from = None;
            } else if holes.is_empty() {
                continue;
            }
            let mut sealed = std::mem::take(&mut streamlet.sealed);
            let mut next = 0;
            for chunk in &mut sealed {
                let sequence = match begins_in {
                    Some(_) => next,
                    None => chunk.sequence - holes.partition_point(|hole| *hole < chunk.sequence) as u64,
                };
                next = sequence + 1;
                if begins_in.is_none() && sequence == chunk.sequence {
                    continue;
                }
                self.number(chunk, sequence);
            }
            let streamlet = &mut self.streamlets[number as usize];
            streamlet.sealed = sealed;
            streamlet.next_sequence = match begins_in {
                Some(_) => {
                    // Under these sequences nothing was sent before.
                    streamlet.doubtful_below = next;
                    next
                }
                None => streamlet.next_sequence - holes.len() as u64,
            };
        }
    }

    /// Gives a chunk another sequence, or another epoch.
    fn number(&self, chunk: &mut Sealed, sequence: u64) {
        let bytes = std::mem::replace(&mut chunk.bytes, ChunkBytes::Own(Vec::new()));
        chunk.bytes = ChunkBytes::Own(reseal(bytes, &self.target(chunk.streamlet, sequence)));
        chunk.sequence = sequence;
    }

    /// Whether more than one chunk of a streamlet was taken and not put back or settled.
    pub(super) fn has_more_under_way(&self, streamlet: u32) -> bool {
        self.streamlets[streamlet as usize].under_way > 1
    }

    /// The lowest sequence of a streamlet that is still to be acknowledged and waits to be sent again.
    pub(super) fn first_waiting_sequence(&self, streamlet: u32) -> Option<u64> {
        self.streamlets[streamlet as usize].sealed.front().map(|chunk| chunk.sequence)
    }

    /// A chunk is acknowledged or given up: its bytes are free, whoever waits for it is told. Returns what to report.
    pub(super) fn settle(
        &mut self,
        chunk: Sealed,
        result: Result<Delivered, ClientError>,
        now: Instant,
        recycle: bool,
    ) -> DeliveryReport {
        let records = u64::from(chunk.records);
        if chunk.is_under_way {
            self.returned(chunk.streamlet);
        }
        let may_be_there = result.as_ref().is_err_and(|error| chunk.may_be_there(error));
        let result = result.map_err(|error| chunk.told(error));
        match &result {
            Ok(delivered) => {
                self.stats.acknowledged_records += records;
                self.stats.duplicate_chunks += u64::from(delivered.duplicate);
                let streamlet = &mut self.streamlets[chunk.streamlet as usize];
                let is_doubtful =
                    !delivered.duplicate && chunk.has_unknown_try() && chunk.sequence < streamlet.doubtful_below;
                self.stats.doubtful_chunks += u64::from(is_doubtful);
                streamlet.settled_sequence = streamlet.settled_sequence.max(chunk.sequence + 1);
                // Nothing in front of it is expected any more. Of one from before that this says nothing.
                if streamlet.skips_from.is_some_and(|from| chunk.sequence >= from) {
                    streamlet.skips_from = None;
                }
            }
            Err(error) => {
                self.stats.failed_records += records;
                let streamlet = &mut self.streamlets[chunk.streamlet as usize];
                if may_be_there {
                    streamlet.given_up_sequence = streamlet.given_up_sequence.max(chunk.sequence + 1);
                } else if self.producer_id.0 != 0 {
                    let holes = &mut streamlet.holes;
                    holes.insert(holes.partition_point(|hole| *hole < chunk.sequence), chunk.sequence);
                }
                self.failed.get_or_insert_with(|| error.clone());
            }
        }
        self.stats.buffered_bytes -= chunk.charged as u64;
        self.mark_settled(chunk.serial);
        for (index, waiter) in chunk.waiters {
            let result = result.clone().map(|delivered| Delivered {
                base_ordinal: delivered.base_ordinal.map(|ordinal| ordinal + u64::from(index)),
                ..delivered
            });
            // Whoever waited may have gone.
            let _ = waiter.send(result);
        }
        let report = DeliveryReport {
            streamlet: StreamletId(chunk.streamlet),
            first_record: chunk.first_record,
            records: chunk.records,
            bytes: chunk.bytes.len() as u32,
            latency: now.saturating_duration_since(chunk.opened_at),
            result,
        };
        if recycle {
            self.recycle(chunk.bytes);
        }
        report
    }

    fn mark_settled(&mut self, serial: u64) {
        let at = (serial - self.settled_serial) as usize;
        self.settled[at] = true;
        while self.settled.front() == Some(&true) {
            self.settled.pop_front();
            self.settled_serial += 1;
        }
    }

    /// Nobody settles anything any more. Chunks that a task had at hand when it panicked are lost; whoever waits for one of them has been told by
    /// its end, and flushes are told here.
    pub(super) fn settle_lost(&mut self, error: &ClientError) {
        if self.settled_serial < self.next_serial {
            self.failed.get_or_insert_with(|| error.clone());
            self.settled.clear();
            self.settled_serial = self.next_serial;
        }
    }

    /// Uses the chunk's memory again, if nobody else has it and chunks have buffers of one size.
    fn recycle(&mut self, bytes: ChunkBytes) {
        if self.whole
            && let Ok(memory) = bytes.into_memory()
        {
            self.free.give_back(memory);
        }
    }

    /// The serial up to which chunks have to be [settled](Buffer::is_settled) so that all that are sealed now are.
    pub(super) fn sealed_serial(&self) -> u64 {
        self.next_serial
    }

    /// Whether all chunks with serials below are acknowledged or given up.
    pub(super) fn is_settled(&self, serial: u64) -> bool {
        self.settled_serial >= serial
    }
}

/// The same chunk for another target. Copies it if its memory is shared.
fn reseal(chunk: ChunkBytes, target: &ChunkTarget) -> Vec<u8> {
    let header = ChunkHeader::parse(&chunk).expect("a chunk that was sealed here");
    let mut buffer = chunk.into_memory().unwrap_or_else(|shared| shared.to_vec());
    buffer.truncate(header.unpadded_bytes());
    let (records, timestamp_ms) = (header.record_count, header.max_timestamp_ms);
    seal_in_place(&mut buffer, target, header.kind, header.compression, records, timestamp_ms)
        .expect("a chunk that was sealed before");
    buffer
}
