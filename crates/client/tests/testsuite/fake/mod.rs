//! A broker that keeps everything in a few vectors and fails when told to.
//!
//! It runs behind the real server of `kera-rpc`, so that clients meet real sockets, and outlives restarts of that server:
//! what it has appended is still there, as with a broker whose arena is attached again.

#![allow(unreachable_pub, clippy::type_complexity)]

mod members;
mod session;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use kera_client::{Client, ClientBuilder};
use kera_format::chunk::Skip;
use kera_format::{
    BrokerPart, ChunkView, Cursor, GroupId, LaneId, Records, SegmentIndex, StreamId, StreamOptions, StreamletId,
};
use kera_protocol::{ChunkResult, HelloResponse, Op, Start, Status, StreamInfo, WriteChunksView};
use kera_rpc::{Peer, RunningServer, Server, ServerConfig, Session, SessionWaker};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use members::Members;

use crate::steady::Port;

pub const STREAM: &str = "fake";
const FIRST_POSITION: u32 = 128;
/// As brokers have it unless they are told otherwise.
const WAITING_MAX: usize = 64;

/// What happens to the next write requests, one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing special.
    Pass,
    /// Everything is appended, but the connection breaks before the answer.
    AppendAndBreak,
    /// The connection breaks, nothing is appended.
    Break,
    /// Everything is appended, and no answer ever comes.
    AppendAndStall,
    /// No answer ever comes, and nothing is appended.
    Stall,
    /// The first chunk fails, the others are treated as they deserve.
    FirstChunk(Status),
    /// The request as a whole fails.
    Request(Status),
    /// The sequences of all producers are forgotten first, as if acknowledged chunks had been lost.
    Forget,
    /// The same of one streamlet.
    ForgetIn(u32),
}

/// What chance does to a chunk, or to a request as a whole.
#[derive(Debug)]
pub struct Mood(StdRng);

impl Mood {
    pub fn new(seed: u64) -> Mood {
        Mood(StdRng::seed_from_u64(seed))
    }

    /// Whether something happens that does so once in so many times.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.0.random_ratio(1, times)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }
}

#[derive(Clone, Debug)]
pub struct StoredChunk {
    pub cursor: Cursor,
    pub base_ordinal: u64,
    pub records: u32,
    pub bytes: Bytes,
}

#[derive(Debug, Default)]
pub struct Log {
    pub chunks: Vec<StoredChunk>,
    pub next_ordinal: u64,
    /// Chunks before this one are removed.
    pub first_kept: usize,
    pub group: u32,
    producers: HashMap<u64, (u16, u64, VecDeque<(u64, u64)>)>,
}

impl Log {
    /// The chunk that a cursor points at, or the one after it.
    pub fn index_of(&self, cursor: Cursor) -> usize {
        self.chunks.partition_point(|chunk| chunk.cursor < cursor)
    }

    pub fn earliest(&self) -> Cursor {
        self.chunks.get(self.first_kept).map_or(self.end(), |chunk| chunk.cursor)
    }

    /// Where the next chunk goes.
    pub fn end(&self) -> Cursor {
        let group = GroupId::new(1, self.group + 1);
        let position = match self.chunks.last().filter(|last| last.cursor.group == group) {
            Some(last) => last.cursor.position + last.bytes.len() as u32,
            None => FIRST_POSITION,
        };
        Cursor { group, segment: SegmentIndex(0), position }
    }

    pub fn first_ordinal(&self) -> u64 {
        self.chunks.get(self.first_kept).map_or(self.next_ordinal, |chunk| chunk.base_ordinal)
    }

    /// Closes the open group, if it has chunks.
    pub fn close_group(&mut self) {
        if self.chunks.last().is_some_and(|last| last.cursor.group == self.end().group) {
            self.group += 1;
        }
    }

    pub fn lookup(&self, at: Start) -> (Cursor, u64) {
        let index = match at {
            Start::Earliest => self.first_kept,
            Start::Latest => self.chunks.len(),
            Start::Ordinal(ordinal) => {
                let index = self.chunks.partition_point(|c| c.base_ordinal + u64::from(c.records) <= ordinal);
                index.max(self.first_kept)
            }
            Start::TimeMs(time_ms) => {
                let time = |c: &StoredChunk| ChunkView::parse(&c.bytes).unwrap().broker().unwrap().append_time_ms;
                self.chunks.partition_point(|c| time(c) < time_ms).max(self.first_kept)
            }
        };
        match self.chunks.get(index) {
            Some(chunk) => (chunk.cursor, chunk.base_ordinal),
            None => (self.end(), self.next_ordinal),
        }
    }
}

#[derive(Debug)]
pub struct State {
    pub info: StreamInfo,
    pub logs: BTreeMap<(u32, u32), Log>,
    pub faults: VecDeque<Fault>,
    /// Lanes have forgotten producers: they take any number of one that they do not know.
    pub forgot: bool,
    /// The same, but whoever can skip is told so, and asked for a skip.
    pub tells_forgot: bool,
    /// Of writes without a fault: each chunk is treated by chance, and answers are late.
    pub mood: Option<Mood>,
    /// With a mood: connections fall silent. What came by them is not lost, but comes when nobody reckons with it any more.
    pub lingers: bool,
    /// Requests of silent connections that are still to come, of each in their order.
    pub lingering: Vec<VecDeque<(u8, Vec<u8>)>>,
    /// Chunks that were appended so.
    pub lingered: u64,
    /// How often sequences were skipped.
    pub skipped: u64,
    /// Requests at which the connection breaks without an answer, once for each.
    pub breaks: Vec<Op>,
    /// Requests that are not answered, once for each.
    pub mutes: Vec<Op>,
    /// So many more lookups are answered, the others wait until there is no such number. And how often one had to wait.
    pub lookups_left: Option<u32>,
    pub lookups_held: u64,
    /// What lookups are for has to come from disk first: they wait for it, for so many microseconds, [so many](WAITING_MAX) of a connection. And how many did.
    pub is_on_disk: bool,
    pub load_us: u64,
    pub loads: u64,
    /// It says that it is node 1 of a cluster, and owns everything.
    pub in_cluster: bool,
    /// So many more times the stream is not known.
    pub unheard: u32,
    /// How often it was asked what the stream is.
    pub stream_asked: u64,
    /// Chunks of each write request that came in, as streamlet and sequence.
    pub requests: Vec<Vec<(u32, u64)>>,
    pub epochs: HashMap<u64, u16>,
    pub wakers: Vec<SessionWaker>,
    /// Bytes pushed to subscribers, credit given by them, and the largest debt that a subscriber ever had.
    pub pushed_bytes: u64,
    pub credit_bytes: u64,
    pub debt_bytes: i64,
    pub subscribes: u64,
    /// The most subscriptions that a connection had at one time.
    pub subscriptions_max: usize,
    pub polls: u64,
    /// The most entries that reads which wait and subscriptions of a connection have, ended ones included. And how often there would have been more.
    pub entries_max: usize,
    pub entries_refused: u64,
    /// Writes wait for this much time is not needed: they are held while this is set.
    pub hold_writes: bool,
    /// Added to the time that chunks are stamped with, by one per chunk.
    pub time_ms: i64,
    pub members: Members,
}

#[derive(Debug)]
pub struct Fake {
    state: Mutex<State>,
    pub clock: Arc<kera_env::SystemClock>,
}

impl Fake {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn wake_all(&self) {
        for waker in &self.state().wakers {
            waker.wake();
        }
    }

    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// All records of a lane, as text, in order.
    pub fn values(&self, streamlet: u32, lane: u32) -> Vec<String> {
        let state = self.state();
        let Some(log) = state.logs.get(&(streamlet, lane)) else { return Vec::new() };
        let mut values = Vec::new();
        for chunk in &log.chunks {
            let chunk = ChunkView::parse(&chunk.bytes).unwrap();
            let payload = chunk.header().compression.decompress(chunk.payload()).unwrap();
            for record in Records::new(&payload) {
                values.push(String::from_utf8(record.unwrap().value().unwrap_or(b"-").to_vec()).unwrap());
            }
        }
        values
    }

    pub fn chunk_count(&self) -> usize {
        self.state().chunk_count()
    }
}

impl State {
    /// Appends a chunk as a broker does, recognising retries.
    pub fn append(&mut self, chunk: &ChunkView<'_>, skips: Option<Skip>) -> ChunkResult {
        let header = *chunk.header();
        if header.stream != self.info.id {
            return ChunkResult::failed(Status::UnknownStream, 0);
        }
        if chunk.verify().is_err() {
            return ChunkResult::failed(Status::ChunkChecksum, 0);
        }
        let lane = LaneId((header.producer_id.0 % u64::from(self.info.options.lanes)) as u32);
        let log = self.logs.entry((header.streamlet.0, lane.0)).or_default();
        if header.producer_id.0 != 0 {
            let epoch = header.producer_epoch.0;
            let is_known = log.producers.contains_key(&header.producer_id.0);
            if self.tells_forgot && !is_known && header.sequence > 0 && skips.is_none_or(|skips| skips.from > 0) {
                return ChunkResult { forgot: true, ..ChunkResult::failed(Status::SequenceGap, 0) };
            }
            let first = if self.forgot { header.sequence } else { 0 };
            let known = log.producers.entry(header.producer_id.0).or_insert((epoch, first, VecDeque::new()));
            if epoch < known.0 {
                return ChunkResult::failed(Status::StaleEpoch, known.0.into());
            }
            if epoch > known.0 {
                *known = (epoch, 0, VecDeque::new());
            }
            if skips.is_some_and(|skips| skips.from == known.1 && header.sequence > known.1) {
                known.1 = header.sequence;
                self.skipped += 1;
            }
            if header.sequence > known.1 {
                return ChunkResult::failed(Status::SequenceGap, known.1);
            }
            if header.sequence < known.1 {
                let Some((_, base)) = known.2.iter().find(|(sequence, _)| *sequence == header.sequence) else {
                    return ChunkResult { lane, ..ChunkResult::failed(Status::SequenceTooOld, 0) };
                };
                let cursor = Cursor::default();
                return ChunkResult { status: 0, duplicate: true, forgot: false, lane, cursor, base_ordinal: *base };
            }
            known.1 += 1;
            known.2.push_back((header.sequence, log.next_ordinal));
            if known.2.len() > 5 {
                known.2.pop_front();
            }
        }
        let cursor = log.end();
        let mut bytes = chunk.as_bytes().to_vec();
        self.time_ms += 1;
        let part = BrokerPart {
            group: cursor.group,
            segment: cursor.segment,
            base_ordinal: log.next_ordinal,
            append_time_ms: self.time_ms,
            lane,
            position: cursor.position,
        };
        part.stamp(&mut bytes);
        let base_ordinal = log.next_ordinal;
        log.chunks.push(StoredChunk { cursor, base_ordinal, records: header.record_count, bytes: bytes.into() });
        log.next_ordinal += u64::from(header.record_count);
        ChunkResult { status: 0, duplicate: false, forgot: false, lane, cursor, base_ordinal }
    }

    /// Treats the next request of a silent connection. There is nobody who could be told what became of it. Whether there was one.
    pub fn append_lingering(&mut self, at: usize) -> bool {
        let Some((version, body)) = self.lingering.get_mut(at).and_then(VecDeque::pop_front) else { return false };
        let before = self.chunk_count();
        let view = WriteChunksView::parse(version, &body).unwrap();
        for (chunk, index) in view.chunks().zip(0..) {
            let _ = self.append(&chunk.unwrap(), view.skip(index));
        }
        self.lingered += (self.chunk_count() - before) as u64;
        true
    }

    pub fn chunk_count(&self) -> usize {
        self.logs.values().map(|log| log.chunks.len()).sum()
    }

    pub fn forget_producers(&mut self, of: Option<u32>) {
        let logs = self.logs.iter_mut().filter(|((streamlet, _), _)| of.is_none_or(|of| of == *streamlet));
        logs.for_each(|(_, log)| log.producers.clear());
    }
}

/// A fake broker and the server in front of it.
pub struct FakeServer {
    pub fake: Arc<Fake>,
    pub address: SocketAddr,
    /// It is of an earlier version, that knows of no skips.
    pub is_old: bool,
    server: Option<RunningServer>,
    /// Its own also while it is away.
    _port: Port,
}

impl FakeServer {
    pub fn start(streamlets: u32, lanes: u32) -> FakeServer {
        let options = StreamOptions { streamlets, lanes, ..StreamOptions::default() };
        let info = StreamInfo { id: StreamId(17), name: STREAM.into(), created_ms: 1, options };
        let state = State {
            info,
            logs: BTreeMap::new(),
            faults: VecDeque::new(),
            forgot: false,
            tells_forgot: false,
            mood: None,
            lingers: false,
            lingering: Vec::new(),
            lingered: 0,
            skipped: 0,
            breaks: Vec::new(),
            mutes: Vec::new(),
            lookups_left: None,
            lookups_held: 0,
            is_on_disk: false,
            load_us: 2_000,
            loads: 0,
            in_cluster: false,
            unheard: 0,
            stream_asked: 0,
            requests: Vec::new(),
            epochs: HashMap::new(),
            wakers: Vec::new(),
            pushed_bytes: 0,
            credit_bytes: 0,
            debt_bytes: 0,
            subscribes: 0,
            subscriptions_max: 0,
            polls: 0,
            entries_max: usize::MAX,
            entries_refused: 0,
            hold_writes: false,
            time_ms: 1_000,
            members: Members::default(),
        };
        let port = Port::reserve();
        let mut server = FakeServer {
            fake: Arc::new(Fake { state: Mutex::new(state), clock: Arc::new(kera_env::SystemClock::new()) }),
            address: port.address,
            is_old: false,
            server: None,
            _port: port,
        };
        server.restart();
        server
    }

    /// Ends the server as a crash would: connections break.
    pub fn crash(&mut self) {
        self.server = None;
        self.fake.state().wakers.clear();
    }

    /// Serves what is there, at the same address as before.
    pub fn restart(&mut self) {
        self.crash();
        let mut ops = HelloResponse::ops_spoken();
        for op in ops.iter_mut().filter(|op| self.is_old && op.op == Op::WriteChunks as u16) {
            op.version_max = 1;
        }
        let hello = HelloResponse { server_name: "fake".into(), ops, ..hello(1) };
        let config = ServerConfig::new(self.address, hello, Arc::clone(&self.fake.clock) as _);
        let fake = Arc::clone(&self.fake);
        let factory = Arc::new(move |_: Peer, waker: SessionWaker| {
            fake.state().wakers.push(waker);
            Box::new(session::FakeSession::new(Arc::clone(&fake))) as Box<dyn Session>
        });
        let server = Server::start(config, factory).unwrap();
        self.address = server.local_addr();
        self.server = Some(server);
    }

    pub fn client(&self) -> ClientBuilder {
        Client::builder(self.address.to_string())
    }

    /// The stream has so many streamlets from now on.
    pub fn grow(&self, streamlets: u32) {
        self.fake.state().info.options.streamlets = streamlets;
    }

    /// Appends records of its own, as a producer with this id would, in one chunk.
    pub fn append(&self, streamlet: u32, producer: u64, values: &[String]) {
        let mut builder = kera_format::ChunkBuilder::default();
        for value in values {
            builder.push(&kera_format::Record::value(value.as_bytes()));
        }
        let mut state = self.fake.state();
        let target = kera_format::chunk::ChunkTarget {
            stream: state.info.id,
            streamlet: StreamletId(streamlet),
            ..Default::default()
        };
        let lanes = u64::from(state.info.options.lanes);
        let mut chunk = builder.seal(&target, kera_format::Compression::None).unwrap();
        // Not deduplicated, but in the lane of that producer.
        let _ = lanes;
        let view = ChunkView::parse(&chunk).unwrap();
        let result = if producer.is_multiple_of(lanes) {
            state.append(&view, None)
        } else {
            let sealed = kera_format::chunk::ChunkTarget {
                producer_id: kera_format::ProducerId(producer),
                sequence: state
                    .logs
                    .get(&(streamlet, (producer % lanes) as u32))
                    .and_then(|log| log.producers.get(&producer))
                    .map_or(0, |known| known.1),
                ..target
            };
            let header = *view.header();
            chunk.truncate(header.unpadded_bytes());
            kera_format::chunk::seal_in_place(
                &mut chunk,
                &sealed,
                header.kind,
                header.compression,
                header.record_count,
                header.max_timestamp_ms,
            )
            .unwrap();
            state.append(&ChunkView::parse(&chunk).unwrap(), None)
        };
        assert_eq!(result.status, 0);
        drop(state);
        self.fake.wake_all();
    }

    /// Waits until the fake is in some state: for minutes, since the machine may stand still.
    pub async fn until(&self, what: &str, mut reached: impl FnMut(&mut State) -> bool) {
        for _ in 0..200_000 {
            if reached(&mut self.fake.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("never: {what}");
    }
}

/// Runs a test on a runtime of its own, with a limit that only a hanging test reaches.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), test).await.expect("the test hangs") });
}

pub fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|i| format!("record {i}")).collect()
}

/// How a node greets, whose id is made of a number.
pub fn hello(at: usize) -> HelloResponse {
    HelloResponse {
        server_name: "test".into(),
        server_version: "1".into(),
        node_id: [at as u8; 16],
        node_epoch: 1,
        ops: HelloResponse::ops_spoken(),
        frame_bytes_max: 8 << 20,
        chunk_bytes_max: 4 << 20,
        in_flight_bytes_max: 64 << 20,
        in_flight_requests_max: 1_000,
        subscriptions_max: 128,
        idle_timeout_ms: 0,
    }
}
