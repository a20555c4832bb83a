//! A producer: chunks for every streamlet of a stream, several under way, each sent until it is acknowledged.

use std::collections::VecDeque;

use kera_format::chunk::{ChunkTarget, Skip};
use kera_format::{ChunkBuilder, Compression, ProducerEpoch, ProducerId, Record, StreamId, StreamletId};
use kera_protocol::{AllocateProducer, AllocatedProducer, Status, WriteChunks, WriteChunksResponse};

use super::client::{Answer, Around, Client, PATIENCE_US, retry};
use super::truth::{Place, Truth, Violation, Written};

/// Chunks of one streamlet under way.
const UNDER_WAY: usize = 4;
/// How long a node may hold a request, in milliseconds.
const WRITE_TIMEOUT_MS: u32 = 2_000;
/// Time between two looks at what waits, in microseconds.
const TURN_US: u64 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    /// With its request's correlation.
    UnderWay(u64),
}

struct Chunk {
    bytes: Vec<u8>,
    records: Vec<Written>,
    sequence: u64,
    state: State,
}

#[derive(Default)]
struct Streamlet {
    chunks: VecDeque<Chunk>,
    /// Records made.
    made: u64,
    next_sequence: u64,
    /// The lane may have forgotten what came from this one on, all of which is acknowledged: the next chunk skips it.
    skips_from: Option<u64>,
    /// Something came back unwritten: nothing more leaves until all that is under way has come back, so that the order stays.
    is_held: bool,
}

/// See the module.
pub(super) struct Producer {
    number: u32,
    stream: StreamId,
    /// Records to each streamlet.
    records: u64,
    /// The largest filling of a record, in bytes.
    filling_max: u64,
    id: Option<ProducerId>,
    is_connected: bool,
    asked_us: u64,
    streamlets: Vec<Streamlet>,
    /// Requests under way: correlation, and the streamlet and sequence of each chunk.
    requests: Vec<(u64, Vec<(usize, u64)>)>,
    last_problem: String,
    told_all: bool,
    /// A defect: what is sent again gets a new sequence.
    resequences: bool,
}

impl Producer {
    pub(super) fn new(
        number: u32,
        stream: StreamId,
        streamlets: u32,
        records: u64,
        filling_max: u64,
        resequences: bool,
    ) -> Producer {
        Producer {
            number,
            stream,
            records,
            filling_max,
            id: None,
            is_connected: false,
            asked_us: 0,
            streamlets: (0..streamlets).map(|_| Streamlet::default()).collect(),
            requests: Vec::new(),
            last_problem: String::new(),
            told_all: false,
            resequences,
        }
    }

    fn make(&mut self, at: usize, around: &mut Around<'_>) {
        let streamlet = &mut self.streamlets[at];
        let count = (1 + around.below(6)).min(self.records - streamlet.made);
        let of = |number| Written { producer: self.number, streamlet: at as u32, number };
        let records: Vec<Written> = (streamlet.made..streamlet.made + count).map(of).collect();
        streamlet.made += count;
        self.seal(at, records, around);
    }

    /// Puts a chunk with the streamlet's next sequence at the end of those that are to be sent.
    fn seal(&mut self, at: usize, records: Vec<Written>, around: &mut Around<'_>) {
        let (Some(id), streamlet) = (self.id, &mut self.streamlets[at]) else { return };
        let mut builder = ChunkBuilder::default();
        for written in &records {
            let value = written.value(around.below(self.filling_max + 1) as usize);
            let key = written.number.to_le_bytes();
            builder.push(&Record { keys: &[&key], value: Some(&value), ..Record::default() });
        }
        let target = ChunkTarget {
            stream: self.stream,
            streamlet: StreamletId(at as u32),
            producer_id: id,
            producer_epoch: ProducerEpoch(0),
            sequence: streamlet.next_sequence,
        };
        let compression = [Compression::None, Compression::Lz4, Compression::Zstd][around.below(3) as usize];
        let bytes = builder.seal(&target, compression).expect("a small chunk");
        let sequence = streamlet.next_sequence;
        streamlet.next_sequence += 1;
        streamlet.chunks.push_back(Chunk { bytes, records, sequence, state: State::Waits });
    }

    /// Sends what may leave: one request with a chunk or some of each streamlet.
    fn fill(&mut self, around: &mut Around<'_>) {
        if !self.is_connected || self.id.is_none() || self.requests.len() >= 8 {
            return;
        }
        for at in 0..self.streamlets.len() {
            while self.streamlets[at].chunks.len() < UNDER_WAY && self.streamlets[at].made < self.records {
                self.make(at, around);
            }
        }
        let (mut chosen, mut bytes, mut skips) = (Vec::new(), Vec::new(), Vec::new());
        for (at, streamlet) in self.streamlets.iter_mut().enumerate() {
            let is_alone = streamlet.is_held || streamlet.skips_from.is_some();
            if is_alone && streamlet.chunks.iter().any(|chunk| chunk.state != State::Waits) {
                continue;
            }
            streamlet.is_held = false;
            let mut most = 1 + around.below(UNDER_WAY as u64) as usize;
            if let Some(from) = streamlet.skips_from.filter(|_| !streamlet.chunks.is_empty()) {
                skips.push((chosen.len() as u32, Skip { from }));
                most = 1;
            }
            for chunk in streamlet.chunks.iter_mut().filter(|chunk| chunk.state == State::Waits).take(most) {
                bytes.extend_from_slice(&chunk.bytes);
                chosen.push((at, chunk.sequence));
            }
        }
        if chosen.is_empty() {
            return;
        }
        let (timeout_ms, chunk_count) = (WRITE_TIMEOUT_MS, chosen.len() as u32);
        let correlation = around.send(&WriteChunks { timeout_ms, chunk_count, skips, chunks: bytes.into() });
        for (at, sequence) in &chosen {
            self.chunk(*at, *sequence).expect("it was chosen just now").state = State::UnderWay(correlation);
        }
        self.requests.push((correlation, chosen));
        self.asked_us = around.now_us;
    }

    fn chunk(&mut self, at: usize, sequence: u64) -> Option<&mut Chunk> {
        self.streamlets[at].chunks.iter_mut().find(|chunk| chunk.sequence == sequence)
    }

    fn back(&mut self, at: usize, sequence: u64) {
        if let Some(chunk) = self.chunk(at, sequence) {
            chunk.state = State::Waits;
        }
        self.streamlets[at].is_held = true;
    }

    fn all_back(&mut self) {
        for (_, chosen) in std::mem::take(&mut self.requests) {
            for (at, sequence) in chosen {
                self.back(at, sequence);
            }
        }
    }

    fn settle(&mut self, chosen: &[(usize, u64)], answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let response: WriteChunksResponse = answer.decode()?;
        if response.results.len() != chosen.len() {
            return Err(Violation(format!("{} results for {} chunks", response.results.len(), chosen.len())));
        }
        for ((at, sequence), result) in chosen.iter().zip(response.results) {
            let status = result.status().expect("a status of this build");
            match status {
                Status::Ok | Status::SequenceTooOld => {
                    self.streamlets[*at].skips_from = None;
                    let chunks = &mut self.streamlets[*at].chunks;
                    let Some(found) = chunks.iter().position(|chunk| chunk.sequence == *sequence) else { continue };
                    let chunk = chunks.remove(found).expect("it was found");
                    if status == Status::Ok {
                        let place = Place { stream: self.stream.0, streamlet: *at as u32, lane: result.lane.0 };
                        around.truth.acknowledged_at(place, result.base_ordinal, &chunk.records)?;
                    }
                }
                Status::SequenceGap => {
                    let front = self.streamlets[*at].chunks.front();
                    if result.forgot && front.is_some_and(|chunk| chunk.sequence == *sequence) {
                        self.streamlets[*at].skips_from = Some(result.base_ordinal);
                    }
                    self.back(*at, *sequence);
                }
                status if status.retryable() => {
                    self.last_problem = status.name().to_owned();
                    self.back(*at, *sequence);
                }
                other => {
                    let who = format!("producer {}, streamlet {at}, sequence {sequence}", self.number);
                    return Err(Violation(format!("{who}: {} ({})", other.name(), result.base_ordinal)));
                }
            }
        }
        Ok(())
    }

    fn has_told_all(&self) -> bool {
        let all = |streamlet: &Streamlet| streamlet.made == self.records && streamlet.chunks.is_empty();
        self.id.is_some() && self.streamlets.iter().all(all)
    }

    fn ask_for_id(&mut self, around: &mut Around<'_>) {
        self.asked_us = around.now_us;
        around.send(&AllocateProducer { producer_id: None });
    }
}

impl Client for Producer {
    fn connected(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = true;
        match self.id {
            None => self.ask_for_id(around),
            Some(_) => self.fill(around),
        }
        around.timer(TURN_US);
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.id.is_none() {
            if answer.status() != Status::Ok {
                retry(answer, "an id for a producer")?;
                self.asked_us = around.now_us;
                return Ok(());
            }
            self.id = Some(answer.decode::<AllocatedProducer>()?.producer_id);
            for at in 0..self.streamlets.len() {
                let left = std::mem::take(&mut self.streamlets[at].chunks);
                left.into_iter().for_each(|chunk| self.seal(at, chunk.records, around));
            }
            self.fill(around);
            return Ok(());
        }
        let found = self.requests.iter().position(|(correlation, _)| *correlation == answer.header.correlation);
        let Some(found) = found else {
            return Err(Violation(format!("an answer to a request that nobody sent: {}", answer.header.correlation)));
        };
        let (_, chosen) = self.requests.remove(found);
        if answer.status() != Status::Ok {
            retry(answer, "a write")?;
            self.last_problem = answer.error();
            for (at, sequence) in chosen {
                self.back(at, sequence);
            }
            return Ok(());
        }
        self.settle(&chosen, answer, around)?;
        if self.has_told_all() && !self.told_all {
            self.told_all = true;
            for at in 0..self.streamlets.len() {
                around.truth.wrote_all(self.stream.0, at as u32, self.number, self.records)?;
            }
        }
        if around.below(3) == 0 {
            self.fill(around);
        }
        Ok(())
    }

    fn lost(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = false;
        self.all_back();
        if self.resequences {
            self.id = None;
            self.streamlets.iter_mut().for_each(|streamlet| streamlet.next_sequence = 0);
        }
        around.connect();
        Ok(())
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.has_told_all() || !self.is_connected {
            return Ok(());
        }
        let waits = self.id.is_none() || !self.requests.is_empty();
        if waits && around.now_us > self.asked_us + PATIENCE_US {
            return self.lost(around);
        }
        if self.id.is_none() && around.now_us > self.asked_us + 1_000_000 {
            self.ask_for_id(around);
        }
        self.fill(around);
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, _: &Truth) -> bool {
        self.has_told_all()
    }

    fn state(&self) -> String {
        let left: Vec<String> = self.streamlets.iter().map(|s| format!("{}+{}", s.made, s.chunks.len())).collect();
        let (requests, problem) = (self.requests.len(), &self.last_problem);
        format!("producer {}: made+open {left:?} of {}, {requests} requests, {problem}", self.number, self.records)
    }
}
