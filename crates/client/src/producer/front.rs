//! The producer's own side: which streamlet a record goes to, and the pens with which it writes to open chunks.
//!
//! It is owned by the [`Producer`](crate::Producer) and used by one task at a time. What happens for each record is
//! [`Front::push`] and nothing else: no lock, no clock, no allocation. [`Front::push_locked`] is for the first and the last
//! record of a chunk.

use std::sync::Arc;

use kera_format::record::RECORD_HEADER_BYTES;
use kera_format::{CHUNK_HEADER_BYTES, FormatError, ProducerEpoch, ProducerId, Record, StreamletId, align8};
use tokio::time::Instant;

use super::buffer::{Buffer, BufferSettings, Waiter};
use super::open::{Pen, Slot};
use super::report::Delivered;
use super::sender::Shared;
use crate::routing::streamlet_of_key;
use crate::{ClientError, Routing};

/// See the module.
#[derive(Debug)]
pub struct Front {
    shared: Arc<Shared>,
    desk: Desk,
    chunk_bytes_max: usize,
    records: u64,
}

/// What is not shared with the task, or only word by word.
#[derive(Debug)]
struct Desk {
    slots: Arc<[Slot]>,
    /// One for each streamlet.
    pens: Vec<Pen>,
    /// Streamlets with an open chunk.
    open: Vec<u32>,
    routing: Routing,
    lanes: u32,
    chunk_bytes: usize,
    /// The streamlet that records without a key go to at the moment.
    robin: u32,
}

impl Front {
    pub(super) fn new(shared: Arc<Shared>) -> Front {
        let buffer = shared.buffer();
        let (settings, slots) = (buffer.settings().clone(), buffer.slots());
        drop(buffer);
        let BufferSettings { routing, lanes, chunk_bytes, chunk_bytes_max, .. } = settings;
        let pens = slots.iter().map(|_| Pen::default()).collect();
        let open = Vec::new();
        let desk = Desk { slots, pens, open, routing, lanes, chunk_bytes, robin: 0 };
        Front { shared, desk, chunk_bytes_max, records: 0 }
    }

    /// One without a producer, to measure how fast it takes records.
    pub fn alone(settings: BufferSettings) -> Front {
        Front::new(Arc::new(Shared::new(Buffer::new(settings, ProducerId(1), ProducerEpoch(0)), None)))
    }

    /// What the background task and a server would do: takes all sealed chunks and acknowledges them. How many they were,
    /// and their bytes.
    pub fn acknowledge_all(&mut self, request_bytes: usize) -> (u64, u64) {
        let now = Instant::now();
        let (mut count, mut bytes) = (0, 0);
        let mut buffer = self.shared.buffer();
        let mut chunks = Vec::new();
        loop {
            chunks = buffer.take(0, now, request_bytes, chunks).chunks;
            if chunks.is_empty() {
                return (count, bytes);
            }
            for chunk in chunks.drain(..) {
                count += 1;
                bytes += chunk.bytes.len() as u64;
                let streamlet = StreamletId(chunk.streamlet);
                let delivered =
                    Delivered { streamlet, lane: kera_format::LaneId(0), base_ordinal: Some(0), duplicate: false };
                buffer.settle(chunk, Ok(delivered), now, true);
            }
        }
    }

    /// Records taken so far.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Streamlets that records may be sent to. Looks whether there are more by now if `wanted` is not one of them.
    pub(super) fn streamlets(&mut self, wanted: u32) -> u32 {
        if wanted >= self.desk.streamlets() {
            let mut buffer = self.shared.buffer();
            self.desk.follow(&mut buffer);
        }
        self.desk.streamlets()
    }

    /// Takes a record, for `streamlet` if one is given; the caller has checked that it exists. `Ok(false)`: there is no
    /// room.
    #[inline]
    pub fn push(&mut self, record: &Record<'_>, streamlet: Option<u32>) -> Result<bool, ClientError> {
        let number = match streamlet {
            Some(number) => number,
            None => self.desk.route(record),
        };
        let bytes = match record.value {
            Some(value) if record.is_plain() => RECORD_HEADER_BYTES + value.len(),
            _ => {
                record.check().map_err(ClientError::Record)?;
                record.encoded_bytes()
            }
        };
        let (pen, slot) = (&mut self.desk.pens[number as usize], &self.desk.slots[number as usize]);
        // After this record there is room for another like it: the chunk is not full.
        if 2 * bytes <= pen.left() && !slot.is_stolen() {
            pen.write(slot, record, bytes);
            self.records += 1;
            if slot.is_stolen_since() {
                self.came_late(number);
            }
            return Ok(true);
        }
        self.push_locked(record, streamlet, &mut None)
    }

    /// The task stole from a chunk while a record was written to it, and may look at the chunk no more.
    #[cold]
    #[inline(never)]
    fn came_late(&mut self, number: u32) {
        let mut buffer = self.shared.buffer();
        self.desk.seal(&mut buffer, number);
        let wake = std::mem::take(&mut buffer.hungry);
        drop(buffer);
        if wake {
            self.shared.work.notify_one();
        }
    }

    /// Takes records until they end or there is no room for one, which is returned with those behind it. They come and go
    /// by value, so that they stay in registers meanwhile.
    #[inline]
    pub fn push_all<'r, R: Iterator<Item = Record<'r>>>(
        &mut self,
        mut records: R,
    ) -> Result<(R, Option<Record<'r>>), ClientError> {
        while let Some(record) = records.next() {
            if !self.push(&record, None)? {
                return Ok((records, Some(record)));
            }
        }
        Ok((records, None))
    }

    /// As [`push`](Front::push), for records that open or fill a chunk, and those that a `waiter` waits for.
    #[cold]
    #[inline(never)]
    pub(super) fn push_locked(
        &mut self,
        record: &Record<'_>,
        streamlet: Option<u32>,
        waiter: &mut Option<Waiter>,
    ) -> Result<bool, ClientError> {
        let bytes = self.check(record)?;
        let desk = &mut self.desk;
        let mut buffer = self.shared.buffer();
        if let Some(error) = &buffer.fatal {
            return Err(error.clone());
        }
        // What was sealed for it leaves, though no record may be taken now.
        let mut wake = desk.follow(&mut buffer);
        let mut number = streamlet.unwrap_or_else(|| desk.route(record));
        // A chunk that was stolen from, or has no room, makes way. Records without a key then go to the next streamlet,
        // where there may be another one.
        while desk.pens[number as usize].is_open() && !desk.takes(number, bytes) {
            desk.seal(&mut buffer, number);
            wake = true;
            number = streamlet.unwrap_or_else(|| desk.route(record));
        }
        let pen = &mut desk.pens[number as usize];
        let was_open = pen.is_open();
        wake |= !was_open;
        let taken = bytes <= pen.left() || buffer.make_room(number, pen, bytes);
        if taken {
            if !was_open {
                pen.listed = desk.open.len() as u32;
                desk.open.push(number);
            }
            if let Some(waiter) = waiter.take() {
                buffer.wait_for(number, pen, waiter);
            }
            pen.write(&desk.slots[number as usize], record, bytes);
            self.records += 1;
            // A chunk that has no room for another record like this one would only wait.
            if !desk.takes(number, bytes) {
                desk.seal(&mut buffer, number);
                wake = true;
            }
        } else if buffer.is_settled(buffer.sealed_serial()) {
            // All that there is is in open chunks, which do not get any fuller by waiting.
            desk.seal_all(&mut buffer);
            wake = true;
        }
        let wake = wake && std::mem::take(&mut buffer.hungry);
        drop(buffer);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(taken)
    }

    /// What a producer does that is interrupted after it has looked at its slot, and goes on when `meanwhile` is over.
    #[cfg(test)]
    pub(super) fn push_interrupted(&mut self, record: &Record<'_>, meanwhile: impl FnOnce()) {
        let number = self.desk.route(record);
        let (pen, slot) = (&mut self.desk.pens[number as usize], &self.desk.slots[number as usize]);
        assert!(!slot.is_stolen());
        meanwhile();
        pen.write(slot, record, record.encoded_bytes());
        if slot.is_stolen_since() {
            self.came_late(number);
        }
    }

    /// Writes a record whose store was on its way while the task stole, so that neither saw the other's.
    #[cfg(test)]
    pub(super) fn push_unseen(&mut self, record: &Record<'_>) {
        let number = self.desk.route(record) as usize;
        self.desk.pens[number].write(&self.desk.slots[number], record, record.encoded_bytes());
    }

    /// Seals everything that is open. Returns the serial up to which chunks have to be settled then.
    pub(super) fn flush(&mut self) -> u64 {
        let mut buffer = self.shared.buffer();
        self.desk.seal_all(&mut buffer);
        let serial = buffer.sealed_serial();
        if !buffer.ended {
            drop(buffer);
            self.shared.work.notify_one();
            return serial;
        }
        // The task is gone. A record that it missed is given up here.
        let error = buffer.fatal.clone().unwrap_or(ClientError::Closed);
        let now = Instant::now();
        let reports: Vec<_> =
            buffer.take_all(now).into_iter().map(|c| buffer.settle(c, Err(error.clone()), now, false)).collect();
        drop(buffer);
        self.shared.tell(&reports);
        serial
    }

    /// The record's encoded bytes, if it can be sent.
    fn check(&self, record: &Record<'_>) -> Result<usize, ClientError> {
        record.check().map_err(ClientError::Record)?;
        let bytes = record.encoded_bytes();
        let chunk = align8(bytes + CHUNK_HEADER_BYTES);
        if bytes + CHUNK_HEADER_BYTES > self.desk.chunk_bytes && chunk > self.chunk_bytes_max {
            return Err(ClientError::Record(FormatError::OverLimit {
                field: "record bytes (in a chunk of its own)",
                value: chunk as u64,
                limit: self.chunk_bytes_max as u64,
            }));
        }
        Ok(bytes)
    }
}

impl Desk {
    fn streamlets(&self) -> u32 {
        self.pens.len() as u32
    }

    #[inline]
    fn route(&self, record: &Record<'_>) -> u32 {
        match (self.routing, record.keys) {
            (Routing::Key, [key, ..]) => self.route_key(key),
            (Routing::Streamlet(streamlet), _) => streamlet,
            _ => self.robin,
        }
    }

    // Out of line: it would take the registers of the loop over records without keys.
    #[inline(never)]
    fn route_key(&self, key: &[u8]) -> u32 {
        streamlet_of_key(key, self.streamlets(), self.lanes)
    }

    /// Goes on with more streamlets if the stream has got some: then everything is sealed, and that is returned.
    fn follow(&mut self, buffer: &mut Buffer) -> bool {
        let streamlets = buffer.settings().streamlets;
        let grows = streamlets > self.streamlets();
        if grows {
            self.seal_all(buffer);
            self.slots = buffer.follow();
            self.pens.resize_with(streamlets as usize, Pen::default);
        }
        grows
    }

    /// Whether the open chunk of a streamlet takes a record of so many bytes.
    fn takes(&self, number: u32, bytes: usize) -> bool {
        let filled = self.pens[number as usize].filled().bytes as usize;
        CHUNK_HEADER_BYTES + filled + bytes <= self.chunk_bytes && !self.slots[number as usize].is_stolen()
    }

    fn seal(&mut self, buffer: &mut Buffer, number: u32) {
        let pen = &mut self.pens[number as usize];
        let listed = pen.listed as usize;
        buffer.seal(number, pen);
        self.open.swap_remove(listed);
        if let Some(moved) = self.open.get(listed) {
            self.pens[*moved as usize].listed = listed as u32;
        }
        if number == self.robin {
            self.robin = (self.robin + 1) % self.streamlets();
        }
    }

    fn seal_all(&mut self, buffer: &mut Buffer) {
        while let Some(number) = self.open.last() {
            self.seal(buffer, *number);
        }
    }
}
