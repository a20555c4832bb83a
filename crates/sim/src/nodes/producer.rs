//! A producer of one stream: chunks for every streamlet, several under way, each sent to whoever owns the streamlet until it is
//! acknowledged. What is under way by one node comes back before anything of the streamlet goes to another.
//!
//! One that is impatient gives up chunks that it has sent, and [skips](Skip) them if they are not there, as the real client does. What was given up may be there or not.

use std::collections::VecDeque;

use kera_format::chunk::{ChunkTarget, Skip, seal_in_place};
use kera_format::{ChunkBuilder, ChunkHeader, Compression, ProducerEpoch, ProducerId, Record, StreamId, StreamletId};
use kera_protocol::{Status, WriteChunks, WriteChunksResponse};

use super::client::{Around, Client, Owned, PATIENCE_US, Seen, Wish};
use super::early::Chunk as Told;
use super::plan::{Kind, Plan};
use crate::cluster::client::{Answer, retry};
use crate::cluster::truth::{Place, Violation, Written};

/// Chunks of one streamlet under way at most, and how long a node may hold a request, in milliseconds.
const USUAL: (usize, u32) = (4, 2_000);
/// The same of one that is eager: more than a lane remembers places, and sent again before anybody has noticed that a backup is lost.
const EAGER: (usize, u32) = (14, 300);
/// The same of one that does not wait for copies.
pub(super) const EARLY: (usize, u32) = (4, 300);
/// Of so many chunks of a producer a lane remembers places, the last ones.
const PLACES: u64 = 5;
const TURN_US: u64 = 20_000;
/// An impatient one gives up a chunk that waits to be sent again once in so many turns.
const GIVES_UP_IN: u64 = 12;

struct Chunk {
    bytes: Vec<u8>,
    records: Vec<Written>,
    sequence: u64,
    /// The request that it is under way with.
    with: Option<u64>,
    /// It was sent before.
    was_sent: bool,
}

#[derive(Default)]
struct Streamlet {
    chunks: VecDeque<Chunk>,
    made: u64,
    epoch: u16,
    next_sequence: u64,
    /// Behind the number of the last chunk that was sent in this epoch.
    sent_to: u64,
    /// Its owner has forgotten acknowledged chunks: what waits is numbered anew, in another epoch, when nothing is under way.
    is_forgotten: bool,
    /// Chunks that nobody sends any more are missing from this one on: the next one skips them.
    skips_from: Option<u64>,
    /// Something came back unwritten: nothing more leaves until all that is under way has come back, so that the order stays.
    is_held: bool,
    /// Who has what is under way.
    with: u32,
}

impl Streamlet {
    /// Numbers what waits from 0 on, in the next epoch.
    fn begin_again(&mut self, (stream, streamlet, producer_id): (StreamId, StreamletId, ProducerId)) {
        self.is_forgotten = false;
        self.epoch += 1;
        (self.next_sequence, self.sent_to) = (0, 0);
        for chunk in &mut self.chunks {
            chunk.sequence = self.next_sequence;
            self.next_sequence += 1;
            let target = ChunkTarget {
                stream,
                streamlet,
                producer_id,
                producer_epoch: ProducerEpoch(self.epoch),
                sequence: chunk.sequence,
            };
            chunk.bytes = reseal(&chunk.bytes, &target);
        }
    }
}

struct Request {
    correlation: u64,
    node: u32,
    sent_us: u64,
    chosen: Vec<(usize, u64)>,
    /// Whether all of them skip others. Then nothing else of their streamlets is under way.
    skips: bool,
}

/// See the module.
pub(super) struct Producer {
    number: u32,
    stream: StreamId,
    records: u64,
    filling_max: u64,
    /// Time between two chunks, on average, in microseconds.
    pace_us: u64,
    under_way: usize,
    timeout_ms: u32,
    /// Its streams do not have it wait for copies.
    is_async: bool,
    /// Its streams keep the last record of each key.
    is_compacted: bool,
    is_impatient: bool,
    next_us: u64,
    owned: Owned,
    streamlets: Vec<Streamlet>,
    requests: Vec<Request>,
    last_problem: String,
}

impl Producer {
    pub(super) fn new(number: u32, stream: StreamId, streamlets: u32, plan: &Plan) -> Producer {
        let (under_way, timeout_ms) = match plan.kind {
            Kind::Async => EARLY,
            _ if plan.eager => EAGER,
            _ => USUAL,
        };
        let records = plan.records;
        Producer {
            number,
            stream,
            records,
            filling_max: 2_000,
            pace_us: plan.trouble_ms * 2_000 / records.max(1),
            under_way,
            timeout_ms,
            is_async: plan.kind == Kind::Async,
            is_compacted: plan.kind.is_compacted(),
            is_impatient: plan.impatient,
            next_us: 0,
            owned: Owned::new(stream),
            streamlets: (0..streamlets).map(|_| Streamlet::default()).collect(),
            requests: Vec::new(),
            last_problem: String::new(),
        }
    }

    fn make(&mut self, at: usize, around: &mut Around<'_>) {
        let streamlet = &mut self.streamlets[at];
        let count = (1 + around.below(6)).min(self.records - streamlet.made);
        let of = |number| Written { producer: self.number, streamlet: at as u32, number };
        let records: Vec<Written> = (streamlet.made..streamlet.made + count).map(of).collect();
        streamlet.made += count;
        let mut builder = ChunkBuilder::default();
        for written in &records {
            let value = written.value(around.below(self.filling_max + 1) as usize);
            let key = if self.is_compacted { written.key() } else { written.number }.to_le_bytes();
            let (keys, is_gone) = ([&key[..]], self.is_compacted && written.is_tombstone());
            let of = Record { keys: &keys, ..Record::default() };
            let stamp = Some(written.stamp().cast_signed());
            match is_gone {
                true => builder.push(&Record { timestamp_ms: stamp, ..of }),
                false => builder.push(&Record { value: Some(&value), ..of }),
            };
            around.told.made_ms.insert((self.stream.0, *written), around.now_ms);
        }
        let sequence = streamlet.next_sequence;
        streamlet.next_sequence += 1;
        let target = ChunkTarget {
            stream: self.stream,
            streamlet: StreamletId(at as u32),
            producer_id: ProducerId(u64::from(self.number) + 1),
            producer_epoch: ProducerEpoch(streamlet.epoch),
            sequence,
        };
        let compression = [Compression::None, Compression::Lz4][around.below(2) as usize];
        let bytes = builder.seal(&target, compression).expect("a small chunk");
        around.told.bounds.made(self.stream.0, &records, bytes.len() as u64);
        streamlet.chunks.push_back(Chunk { bytes, records, sequence, with: None, was_sent: false });
    }

    /// Sends what may leave: one request to each owner.
    fn fill(&mut self, around: &mut Around<'_>) {
        if around.now_us >= self.next_us {
            self.next_us = around.now_us + self.pace_us / 2 + around.below(self.pace_us);
            for at in 0..self.streamlets.len() {
                if self.streamlets[at].chunks.len() < self.under_way && self.streamlets[at].made < self.records {
                    self.make(at, around);
                }
            }
        }
        for node in 1..=around.nodes {
            if self.requests.iter().filter(|request| request.node == node).count() < 4 {
                self.fill_one(node, around);
            }
        }
    }

    fn has_written_all(&self) -> bool {
        self.streamlets.iter().all(|streamlet| streamlet.made == self.records && streamlet.chunks.is_empty())
    }

    fn fill_one(&mut self, node: u32, around: &mut Around<'_>) {
        let (mut chosen, mut bytes, mut skips) = (Vec::new(), Vec::new(), Vec::new());
        for (at, streamlet) in self.streamlets.iter_mut().enumerate() {
            let is_under_way = streamlet.chunks.iter().any(|chunk| chunk.with.is_some());
            if self.owned.node(at as u32) != Some(node)
                || (is_under_way && (streamlet.is_held || streamlet.with != node))
            {
                continue;
            }
            if streamlet.is_forgotten {
                let id = ProducerId(u64::from(self.number) + 1);
                let target = (self.stream, StreamletId(at as u32), id);
                streamlet.begin_again(target);
            }
            if streamlet.skips_from.is_some() && is_under_way {
                continue;
            }
            // A request has chunks that skip others or chunks that do not, so that each answer is of one kind.
            if !chosen.is_empty() && streamlet.skips_from.is_some() == skips.is_empty() {
                continue;
            }
            (streamlet.is_held, streamlet.with) = (false, node);
            if let Some(from) = streamlet.skips_from {
                let Some(chunk) = streamlet.chunks.front() else { continue };
                skips.push((chosen.len() as u32, Skip { from }));
                bytes.extend_from_slice(&chunk.bytes);
                chosen.push((at, chunk.sequence));
                continue;
            }
            let most = 1 + around.below(self.under_way as u64) as usize;
            for chunk in streamlet.chunks.iter().filter(|chunk| chunk.with.is_none()).take(most) {
                bytes.extend_from_slice(&chunk.bytes);
                chosen.push((at, chunk.sequence));
            }
        }
        if chosen.is_empty() {
            return;
        }
        let (timeout_ms, chunk_count) = (self.timeout_ms, chosen.len() as u32);
        let does_skip = !skips.is_empty();
        let correlation = around.send(node, &WriteChunks { timeout_ms, chunk_count, skips, chunks: bytes.into() });
        for (at, sequence) in &chosen {
            let chunk = self.chunk(*at, *sequence).expect("it was chosen just now");
            (chunk.with, chunk.was_sent) = (Some(correlation), true);
            let sent_to = &mut self.streamlets[*at].sent_to;
            *sent_to = (*sent_to).max(sequence + 1);
        }
        self.requests.push(Request { correlation, node, sent_us: around.now_us, chosen, skips: does_skip });
    }

    fn chunk(&mut self, at: usize, sequence: u64) -> Option<&mut Chunk> {
        self.streamlets[at].chunks.iter_mut().find(|chunk| chunk.sequence == sequence)
    }

    /// Gives up the first chunk of a streamlet now and then, if it was sent and waits to be sent again.
    fn give_up(&mut self, around: &mut Around<'_>) {
        for streamlet in &mut self.streamlets {
            let waits = |chunk: &Chunk| chunk.was_sent && chunk.with.is_none();
            if streamlet.chunks.front().is_some_and(waits) && around.below(GIVES_UP_IN) == 0 {
                streamlet.chunks.pop_front();
                *around.told.did.entry("chunks given up").or_default() += 1;
            }
        }
    }

    fn back(&mut self, chosen: &[(usize, u64)]) {
        for (at, sequence) in chosen {
            if let Some(chunk) = self.chunk(*at, *sequence) {
                chunk.with = None;
            }
            self.streamlets[*at].is_held = true;
        }
    }

    /// A chunk is there, and nobody says where: more was under way than a lane remembers places.
    fn told_no_place(&self, at: usize, chunk: &Chunk, around: &mut Around<'_>) -> Result<(), Violation> {
        *around.told.did.entry("told only that it is there").or_default() += 1;
        if !self.is_async {
            around.truth.acknowledged_somewhere(self.stream.0, &chunk.records);
            return Ok(());
        }
        // What is asynchronous may be lost with its owner, and without a place nobody knows whether it was: nothing is asked of it. As few as these have under way, a lane forgets a
        // place only of one that has come back without an answer, for want of copies, while others behind it went on; or where copies lag behind a disk that is slow or takes nothing.
        match around.copies_lag || may_be_forgotten(chunk.sequence, self.streamlets[at].sent_to) {
            true => Ok(()),
            false => Err(Violation(format!("nobody says where chunk {} is", chunk.sequence))),
        }
    }

    /// A chunk was acknowledged.
    fn count_written(&self, around: &mut Around<'_>) {
        if around.told.made_while_away.contains(&self.stream.0) {
            *around.told.did.entry("written to streams made while a node was away").or_default() += 1;
        }
    }

    fn settle(&mut self, request: &Request, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let response: WriteChunksResponse = answer.decode()?;
        if response.results.len() != request.chosen.len() {
            return Err(Violation(format!("{} results for {} chunks", response.results.len(), request.chosen.len())));
        }
        for (&(at, sequence), result) in request.chosen.iter().zip(response.results) {
            let status = result.status().expect("a status of this build");
            match status {
                Status::Ok | Status::SequenceTooOld => {
                    let streamlet = &mut self.streamlets[at];
                    streamlet.skips_from = streamlet.skips_from.filter(|from| sequence < *from);
                    let chunks = &mut streamlet.chunks;
                    let Some(found) = chunks.iter().position(|chunk| chunk.sequence == sequence) else { continue };
                    let chunk = chunks.remove(found).expect("it was found");
                    if status == Status::SequenceTooOld {
                        self.told_no_place(at, &chunk, around)?;
                        continue;
                    }
                    *around.told.did.entry("skipped chunks").or_default() += u64::from(request.skips);
                    let place = Place { stream: self.stream.0, streamlet: at as u32, lane: result.lane.0 };
                    if self.is_async {
                        let (owner_epoch, base) = (result.cursor.group.epoch(), result.base_ordinal);
                        let (records, node, left) = (&chunk.records[..], request.node, around.left);
                        let told = Told { owner_epoch, base, records, node, left };
                        if !around.told_early(place, &told)? {
                            continue;
                        }
                    }
                    around.truth.acknowledged_at(place, result.base_ordinal, &chunk.records)?;
                    around.told.acknowledged(place, result.base_ordinal, result.cursor)?;
                    if !result.duplicate {
                        around.told.fresh.push((request.node, place, result.cursor));
                    }
                    self.count_written(around);
                }
                Status::UnknownStream => self.owned.told_gone(request.node, around)?,
                status if status.retryable() || status == Status::SequenceGap => {
                    let has_not_heard = u64::from(status == Status::NotReady);
                    *around.told.did.entry("wrote to who had not heard of the stream").or_default() += has_not_heard;
                    self.last_problem = status.name().to_owned();
                    let is_first = self.streamlets[at].chunks.front().is_some_and(|chunk| chunk.sequence == sequence);
                    let may_forget = self.is_async || around.told.losses.has_some_of(self.stream.0, at as u32);
                    if status == Status::SequenceGap && (self.is_impatient || result.forgot) {
                        self.back(&[(at, sequence)]);
                        if request.skips || is_first {
                            let what = ["told that something is missing", "told that something else is missing"];
                            *around.told.did.entry(what[usize::from(request.skips)]).or_default() += 1;
                            self.streamlets[at].skips_from = Some(result.base_ordinal);
                        }
                        continue;
                    }
                    if status == Status::SequenceGap && is_first && may_forget {
                        *around.told.did.entry("told of forgotten chunks").or_default() += 1;
                        self.streamlets[at].is_forgotten = true;
                    }
                    self.back(&[(at, sequence)]);
                    if status == Status::NotOwner {
                        self.owned.want();
                    }
                }
                other => {
                    let who = format!("producer {}, streamlet {at}, sequence {sequence}", self.number);
                    return Err(Violation(format!("{who}: {} ({})", other.name(), result.base_ordinal)));
                }
            }
        }
        Ok(())
    }
}

/// Whether a lane may have forgotten where a chunk is, if all in front of this number have come: it remembers the last ones.
fn may_be_forgotten(sequence: u64, sent_to: u64) -> bool {
    sequence + PLACES < sent_to
}

/// The same chunk with another number.
fn reseal(chunk: &[u8], target: &ChunkTarget) -> Vec<u8> {
    let header = ChunkHeader::parse(chunk).expect("a chunk that was sealed here");
    let mut bytes = chunk[..header.unpadded_bytes()].to_vec();
    let (records, timestamp_ms) = (header.record_count, header.max_timestamp_ms);
    seal_in_place(&mut bytes, target, header.kind, header.compression, records, timestamp_ms)
        .expect("a chunk that was sealed before");
    bytes
}

impl Client for Producer {
    fn answer(&mut self, node: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.owned.take(answer, around)? {
            return Ok(());
        }
        let found = self.requests.iter().position(|request| request.correlation == answer.header.correlation);
        // An answer that was on its way when the connection was given up.
        let Some(found) = found else { return Ok(()) };
        let request = self.requests.remove(found);
        if answer.status() == Status::UnknownStream {
            return self.owned.told_gone(node, around);
        }
        if answer.status() != Status::Ok {
            retry(answer, "a write")?;
            self.last_problem = answer.error();
            self.back(&request.chosen);
            self.owned.want();
            return Ok(());
        }
        self.settle(&request, answer, around)?;
        if around.below(3) == 0 {
            self.fill(around);
        }
        Ok(())
    }

    fn lost(&mut self, node: u32, _: &mut Around<'_>) {
        self.owned.lost(node);
        let (gone, left) = std::mem::take(&mut self.requests).into_iter().partition(|request| request.node == node);
        self.requests = left;
        let gone: Vec<Request> = gone;
        gone.iter().for_each(|request| self.back(&request.chosen));
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.has_written_all() || self.owned.is_gone() {
            return Ok(());
        }
        let late = self.requests.iter().find(|request| around.now_us > request.sent_us + PATIENCE_US);
        if let Some(node) = late.map(|request| request.node) {
            around.wishes.push(Wish::Drop(node));
            self.lost(node, around);
        }
        self.owned.look(around);
        if self.is_impatient {
            self.give_up(around);
        }
        self.fill(around);
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, seen: &Seen<'_>) -> bool {
        self.has_written_all() || seen.gone.contains_key(&self.stream)
    }

    fn state(&self) -> String {
        let left: Vec<String> = self.streamlets.iter().map(|s| format!("{}+{}", s.made, s.chunks.len())).collect();
        let (requests, problem) = (self.requests.len(), &self.last_problem);
        let owners: Vec<u32> = (0..self.streamlets.len() as u32).map(|at| self.owned.node(at).unwrap_or(0)).collect();
        let of = format!("of {}, owners {owners:?}", self.records);
        format!("producer {}: made+open {left:?} {of}, {requests} requests, {problem}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_forgets_where_a_chunk_is_when_as_many_as_it_remembers_have_come_behind_it() {
        let forgotten: Vec<u64> = (0..12).filter(|sequence| may_be_forgotten(*sequence, 12)).collect();
        assert_eq!(forgotten, (0..7).collect::<Vec<u64>>(), "7 to 11 are the last five");
        assert!(!may_be_forgotten(0, 0));
    }
}
