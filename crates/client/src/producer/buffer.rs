//! What a producer has taken and not had acknowledged: open chunks that records are encoded into, and sealed chunks that
//! wait to be sent.
//!
//! All of it is under the producer's one lock, which [`Producer::send`](crate::Producer::send) takes once per record and
//! the background task once per request. A record is encoded straight into the open chunk of its streamlet; a chunk is
//! sealed by whoever fills it, so that compression and checksum are paid by the sender's thread. Buffers of acknowledged
//! chunks are used again. Nothing here does I/O.
//!
//! Chunks have two numbers. The *serial* counts chunks of the producer as they are opened: a flush waits for all serials up
//! to one. The *sequence* counts sealed chunks of a streamlet: by it the server recognises retries.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kera_format::chunk::{ChunkTarget, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkBuilder, ChunkHeader, Compression, ProducerEpoch, ProducerId, Record, StreamId,
    StreamletId, align8,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::report::{Delivered, DeliveryReport, ProducerStats};
use crate::routing::streamlet_of_key;
use crate::{ClientError, Routing};

/// Free buffers that are kept.
const FREE_BUFFERS_MAX: usize = 1_024;
/// An open chunk's first buffer when there are too many streamlets for each to have a whole one.
const FIRST_BYTES_MIN: usize = 512;

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

/// What became of a record that was given to [`Buffer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// There is no room for it.
    Full {
        /// Whether to wake the background task.
        wake: bool,
    },
    /// It was taken.
    Taken {
        /// Whether to wake the background task.
        wake: bool,
    },
}

/// Who waits for one record of a chunk.
pub(super) type Waiter = oneshot::Sender<Result<Delivered, ClientError>>;

#[derive(Debug)]
struct Open {
    builder: ChunkBuilder,
    serial: u64,
    opened_at: Instant,
    /// Bytes of the buffer's bound that it takes.
    charged: usize,
    waiters: Vec<(u32, Waiter)>,
}

/// A chunk that waits to be sent or acknowledged.
#[derive(Debug)]
pub struct Sealed {
    /// The streamlet.
    pub streamlet: u32,
    /// Its number among those of the producer's epoch and the streamlet.
    pub sequence: u64,
    /// The chunk.
    pub bytes: Bytes,
    /// Records in it.
    pub records: u32,
    /// When its first record was taken.
    pub opened_at: Instant,
    /// How often it was sent.
    pub attempts: u32,
    serial: u64,
    charged: usize,
    waiters: Vec<(u32, Waiter)>,
}

#[derive(Debug, Default)]
struct Streamlet {
    open: Option<Open>,
    /// In the order of their sequences.
    sealed: VecDeque<Sealed>,
    next_sequence: u64,
    /// The sequence after the last one that was acknowledged.
    settled_sequence: u64,
    is_ready: bool,
}

/// What [`Buffer::take`] found.
#[derive(Debug, Default)]
pub struct Taken {
    /// Chunks for one request.
    pub chunks: Vec<Sealed>,
    /// Their bytes.
    pub bytes: usize,
    /// Chunks whose time is up.
    pub expired: Vec<Sealed>,
    /// When the next open chunk is due, if nothing else happens.
    pub due_at: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Buffer {
    settings: BufferSettings,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    streamlets: Vec<Streamlet>,
    /// Streamlets with sealed chunks, the one whose turn it is first.
    ready: VecDeque<u32>,
    /// Open chunks in the order they were opened: serial and streamlet. Some may have been sealed since.
    opened: VecDeque<(u64, u32)>,
    free: Vec<Vec<u8>>,
    first_bytes: usize,
    /// Whether there is room for a whole buffer for each streamlet.
    whole: bool,
    /// Somebody waits for room: chunks do not get any fuller by waiting.
    pressed: bool,
    /// The streamlet that records without a key go to at the moment.
    robin: u32,
    next_serial: u64,
    /// Chunks from `settled_serial` on: whether they are settled. The first one is not.
    settled: VecDeque<bool>,
    settled_serial: u64,
    /// Open chunks with lower serials are sealed as soon as possible.
    flush_serial: u64,
    /// The background task has nothing to do and waits to be woken.
    pub hungry: bool,
    /// Why nothing is taken any more.
    pub fatal: Option<ClientError>,
    /// The first failure since the last flush.
    pub failed: Option<ClientError>,
    /// What has happened so far.
    pub stats: ProducerStats,
}

impl Buffer {
    /// An empty one, of a producer with this id and epoch; id zero: its chunks are not deduplicated.
    pub fn new(settings: BufferSettings, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> Buffer {
        let streamlets = settings.streamlets.max(1) as usize;
        // Sealed chunks are padded.
        let chunk_bytes = align8(settings.chunk_bytes);
        let whole = streamlets.saturating_mul(settings.chunk_bytes) <= settings.buffer_bytes;
        let share = settings.buffer_bytes / (2 * streamlets);
        Buffer {
            first_bytes: if whole { chunk_bytes } else { share.clamp(FIRST_BYTES_MIN.min(chunk_bytes), chunk_bytes) },
            whole,
            settings,
            producer_id,
            producer_epoch,
            streamlets: (0..streamlets).map(|_| Streamlet::default()).collect(),
            ready: VecDeque::new(),
            opened: VecDeque::new(),
            free: Vec::new(),
            pressed: false,
            robin: 0,
            next_serial: 0,
            settled: VecDeque::new(),
            settled_serial: 0,
            flush_serial: 0,
            hungry: false,
            fatal: None,
            failed: None,
            stats: ProducerStats::default(),
        }
    }

    #[inline]
    fn route(&self, record: &Record<'_>) -> u32 {
        match (self.settings.routing, record.keys) {
            (Routing::Key, [key, ..]) => streamlet_of_key(key, self.settings.streamlets, self.settings.lanes),
            (Routing::Streamlet(streamlet), _) => streamlet,
            _ => self.robin,
        }
    }

    /// Takes a record that was [checked](Record::check) and encodes to `bytes` bytes, for `streamlet` if one is given;
    /// the caller has checked that it exists. The `waiter` is told
    /// what becomes of it.
    #[inline]
    pub fn push(
        &mut self,
        record: &Record<'_>,
        bytes: usize,
        streamlet: Option<u32>,
        waiter: &mut Option<Waiter>,
    ) -> Pushed {
        let buffered = self.stats.buffered_bytes as usize;
        if buffered + bytes > self.settings.buffer_bytes && buffered > 0 {
            self.pressed = true;
            return Pushed::Full { wake: std::mem::take(&mut self.hungry) };
        }
        let number = streamlet.unwrap_or_else(|| self.route(record));
        let chunk_bytes = self.settings.chunk_bytes;
        let mut wake = self.settings.linger.is_zero();
        if self.streamlets[number as usize].open.as_ref().is_some_and(|open| open.builder.bytes() + bytes > chunk_bytes)
        {
            self.seal(number);
            wake = true;
        }
        let streamlet = &mut self.streamlets[number as usize];
        let open = match &mut streamlet.open {
            Some(open) => open,
            None => {
                wake = true;
                let buffer = match self.free.pop() {
                    Some(buffer) => buffer,
                    None => Vec::with_capacity(self.first_bytes.max(bytes + CHUNK_HEADER_BYTES)),
                };
                let serial = self.next_serial;
                self.next_serial += 1;
                self.settled.push_back(false);
                self.opened.push_back((serial, number));
                streamlet.open.insert(Open {
                    builder: ChunkBuilder::with_buffer(buffer),
                    serial,
                    opened_at: Instant::now(),
                    charged: 0,
                    waiters: Vec::new(),
                })
            }
        };
        if let Some(waiter) = waiter.take() {
            open.waiters.push((open.builder.record_count(), waiter));
        }
        open.builder.push(record);
        open.charged += bytes;
        self.stats.buffered_bytes += bytes as u64;
        self.stats.records += 1;
        // A chunk that has no room for another record like this one would only wait.
        if open.builder.bytes() + bytes > chunk_bytes {
            self.seal(number);
            wake = true;
        }
        Pushed::Taken { wake: wake && std::mem::take(&mut self.hungry) }
    }

    /// Seals the open chunk of a streamlet, if there is one.
    fn seal(&mut self, number: u32) {
        let target = self.target(number, self.streamlets[number as usize].next_sequence);
        let streamlet = &mut self.streamlets[number as usize];
        let Some(open) = streamlet.open.take() else { return };
        let records = open.builder.record_count();
        let bytes = open.builder.seal(&target, self.settings.compression);
        // Records are checked against the largest chunk before they are taken, and an open chunk has at least one.
        let bytes = bytes.expect("an open chunk is within its limits");
        streamlet.sealed.push_back(Sealed {
            streamlet: number,
            sequence: target.sequence,
            bytes: bytes.into(),
            records,
            opened_at: open.opened_at,
            attempts: 0,
            serial: open.serial,
            charged: open.charged,
            waiters: open.waiters,
        });
        streamlet.next_sequence += 1;
        if !streamlet.is_ready {
            streamlet.is_ready = true;
            self.ready.push_back(number);
        }
        self.stats.chunks += 1;
        if number == self.robin {
            self.robin = (self.robin + 1) % self.streamlets.len() as u32;
        }
    }

    fn target(&self, streamlet: u32, sequence: u64) -> ChunkTarget {
        ChunkTarget {
            stream: self.settings.stream,
            streamlet: StreamletId(streamlet),
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            sequence,
        }
    }

    /// Chunks for a request of about `request_bytes`: one of each streamlet in turn, until it is full. Open chunks are
    /// sealed when they are due and there is room for them.
    pub fn take(&mut self, now: Instant, request_bytes: usize) -> Taken {
        let mut taken = Taken::default();
        loop {
            if let Some(&number) = self.ready.front() {
                let streamlet = &mut self.streamlets[number as usize];
                let Some(front) = streamlet.sealed.front() else {
                    streamlet.is_ready = false;
                    self.ready.pop_front();
                    continue;
                };
                let expired = front.opened_at + self.settings.delivery_timeout <= now;
                if !expired && !taken.chunks.is_empty() && taken.bytes + front.bytes.len() > request_bytes {
                    return taken;
                }
                let chunk = streamlet.sealed.pop_front().expect("it is there");
                self.ready.rotate_left(1);
                if expired {
                    taken.expired.push(chunk);
                } else {
                    taken.bytes += chunk.bytes.len();
                    taken.chunks.push(chunk);
                }
                continue;
            }
            match self.next_due(now) {
                Ok(Some(number)) => self.seal(number),
                Ok(None) => return taken,
                Err(due_at) => {
                    taken.due_at = Some(due_at);
                    return taken;
                }
            }
        }
    }

    /// The first open chunk that is due, or when it will be.
    fn next_due(&mut self, now: Instant) -> Result<Option<u32>, Instant> {
        while let Some(&(serial, number)) = self.opened.front() {
            if let Some(open) = self.streamlets[number as usize].open.as_ref().filter(|open| open.serial == serial) {
                let due_at = open.opened_at + self.settings.linger;
                if due_at > now && !self.pressed && serial >= self.flush_serial {
                    return Err(due_at);
                }
                return Ok(Some(number));
            }
            self.opened.pop_front();
        }
        self.pressed = false;
        Ok(None)
    }

    /// Puts chunks back that have to be sent again, where they belong by their sequences.
    pub fn put_back(&mut self, chunks: impl IntoIterator<Item = Sealed>) {
        for chunk in chunks {
            let number = chunk.streamlet;
            let streamlet = &mut self.streamlets[number as usize];
            let at = streamlet.sealed.partition_point(|other| other.sequence < chunk.sequence);
            streamlet.sealed.insert(at, chunk);
            if !streamlet.is_ready {
                streamlet.is_ready = true;
                self.ready.push_back(number);
            }
        }
    }

    /// Chunks whose time is up, out of everything that waits to be sent.
    pub fn take_expired(&mut self, now: Instant) -> Vec<Sealed> {
        let mut expired = Vec::new();
        for number in &self.ready {
            let sealed = &mut self.streamlets[*number as usize].sealed;
            while let Some(front) = sealed.front()
                && front.opened_at + self.settings.delivery_timeout <= now
            {
                expired.extend(sealed.pop_front());
            }
        }
        expired
    }

    /// When the first of the chunks that wait to be sent has its time up.
    pub fn expires_at(&self) -> Option<Instant> {
        let fronts = self.ready.iter().filter_map(|number| self.streamlets[*number as usize].sealed.front());
        fronts.map(|chunk| chunk.opened_at + self.settings.delivery_timeout).min()
    }

    /// Whether sealed chunks wait.
    pub fn has_sealed(&self) -> bool {
        self.ready.iter().any(|number| !self.streamlets[*number as usize].sealed.is_empty())
    }

    /// Seals everything and takes all of it: nothing of it will be sent.
    pub fn take_all(&mut self) -> Vec<Sealed> {
        for number in 0..self.streamlets.len() as u32 {
            self.seal(number);
        }
        self.ready.clear();
        let mut all = Vec::new();
        for streamlet in &mut self.streamlets {
            streamlet.is_ready = false;
            all.extend(streamlet.sealed.drain(..));
        }
        all
    }

    /// Gives the waiting chunks sequences without a gap, after a chunk was given up. With an `identity` they count from 0
    /// in it; otherwise from after the last one that was acknowledged. Nothing may be in flight.
    pub fn renumber(&mut self, identity: Option<(ProducerId, ProducerEpoch)>) {
        if let Some((id, epoch)) = identity {
            (self.producer_id, self.producer_epoch) = (id, epoch);
        }
        for number in 0..self.streamlets.len() as u32 {
            if identity.is_some() {
                self.streamlets[number as usize].settled_sequence = 0;
            }
            let mut sequence = self.streamlets[number as usize].settled_sequence;
            let mut sealed = std::mem::take(&mut self.streamlets[number as usize].sealed);
            for chunk in &mut sealed {
                let target = self.target(number, sequence);
                chunk.bytes = reseal(std::mem::take(&mut chunk.bytes), &target);
                chunk.sequence = sequence;
                sequence += 1;
            }
            let streamlet = &mut self.streamlets[number as usize];
            streamlet.sealed = sealed;
            streamlet.next_sequence = sequence;
        }
    }

    /// The lowest sequence of a streamlet that is still to be acknowledged and waits to be sent again.
    pub fn first_waiting_sequence(&self, streamlet: u32) -> Option<u64> {
        self.streamlets[streamlet as usize].sealed.front().map(|chunk| chunk.sequence)
    }

    /// A chunk is acknowledged or given up: its bytes are free, whoever waits for it is told. Returns what to report.
    pub fn settle(
        &mut self,
        chunk: Sealed,
        result: Result<Delivered, ClientError>,
        now: Instant,
        recycle: bool,
    ) -> DeliveryReport {
        let records = u64::from(chunk.records);
        match &result {
            Ok(delivered) => {
                self.stats.acknowledged_records += records;
                self.stats.duplicate_chunks += u64::from(delivered.duplicate);
                let streamlet = &mut self.streamlets[chunk.streamlet as usize];
                streamlet.settled_sequence = streamlet.settled_sequence.max(chunk.sequence + 1);
            }
            Err(error) => {
                self.stats.failed_records += records;
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

    /// Uses the chunk's memory again, if nobody else has it and chunks have buffers of one size.
    fn recycle(&mut self, bytes: Bytes) {
        if !self.whole || self.free.len() >= FREE_BUFFERS_MAX {
            return;
        }
        if let Ok(mut bytes) = bytes.try_into_mut() {
            bytes.clear();
            let buffer = Vec::from(bytes);
            if buffer.capacity() >= self.first_bytes && buffer.capacity() <= 2 * self.first_bytes {
                self.free.push(buffer);
            }
        }
    }

    /// Everything taken so far is to be sent without waiting for linger. Returns the serial up to which chunks have to be
    /// [settled](Buffer::is_settled).
    pub fn flush(&mut self) -> u64 {
        self.flush_serial = self.next_serial;
        self.next_serial
    }

    /// Whether all chunks with serials below are acknowledged or given up.
    pub fn is_settled(&self, serial: u64) -> bool {
        self.settled_serial >= serial
    }
}

/// The same chunk for another target. Copies it if its memory is shared.
fn reseal(chunk: Bytes, target: &ChunkTarget) -> Bytes {
    let header = ChunkHeader::parse(&chunk).expect("a chunk that was sealed here");
    let mut buffer = match chunk.try_into_mut() {
        Ok(bytes) => Vec::from(bytes),
        Err(chunk) => chunk.to_vec(),
    };
    buffer.truncate(header.unpadded_bytes());
    let (records, timestamp_ms) = (header.record_count, header.max_timestamp_ms);
    seal_in_place(&mut buffer, target, header.kind, header.compression, records, timestamp_ms)
        .expect("a chunk that was sealed before");
    buffer.into()
}
