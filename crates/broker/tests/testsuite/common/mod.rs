//! A broker over a real log with a small arena, a clock that stands still and a disk that is done when the test says so.
//! Peers feed encoded frames straight into sessions and read back what the sessions answer.
#![allow(unreachable_pub)]

pub mod cloud;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_broker::{Broker, BrokerConfig, BrokerSession, applications_stream_options};
use kera_env::{Clock, ManualClock};
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{
    ApplicationId, ChunkBuilder, Compression, Cursor, Durability, LaneId, Order, ProducerEpoch, ProducerId, Record,
    SegmentId, StreamId, StreamOptions, StreamletId,
};
use kera_log::{
    Arena, ArenaConfig, Attach, ChunkReference, DurabilitySink, Location, Log, LogConfig, Observer, Segment,
    SegmentStore, SinkError, SinkErrorKind, Ticket, made_durable,
};
use kera_protocol::application::{AfterCommit, CommitEntry, CommitOffsets, CommitResult};
use kera_protocol::read::ENTRY_FOLLOW_GROUPS;
use kera_protocol::write::write_front;
use kera_protocol::{
    Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Heartbeat, HeartbeatResponse, JoinApplication, JoinedApplication,
    LeasedGroup, LeasedGroups, Message, NextGroups, Op, ReadChunks, ReadChunksResponse, ReadEntry, Start, Status,
    WriteChunks, WriteChunksResponse,
};
use kera_rpc::{Flow, Outbox, SessionWaker};
use parking_lot::Mutex;

pub const SYSTEM: StreamId = StreamId(1);
pub const STREAM: StreamId = StreamId(7);

/// A sink whose chunks are durable when the test says so.
#[derive(Default)]
pub struct ManualSink {
    inner: Mutex<SinkInner>,
    durable: AtomicU64,
    pub sick: Mutex<Option<SinkErrorKind>>,
    /// Everything is durable as soon as it is asked for.
    pub instant: AtomicBool,
    /// Copies do not lag far behind.
    pub is_close: AtomicBool,
}

#[derive(Default)]
struct SinkInner {
    next: Ticket,
    pending: Vec<ChunkReference>,
    waiting: Vec<(Ticket, std::sync::Weak<dyn Observer>, u64)>,
}

impl ManualSink {
    /// Makes everything durable that was appended so far.
    pub fn sync(&self) {
        let (pending, through) = {
            let mut inner = self.inner.lock();
            (std::mem::take(&mut inner.pending), inner.next)
        };
        made_durable(&pending);
        self.durable.store(through, Ordering::SeqCst);
        let due: Vec<_> = {
            let mut inner = self.inner.lock();
            let (due, left) = std::mem::take(&mut inner.waiting).into_iter().partition(|(t, _, _)| *t <= through);
            inner.waiting = left;
            due
        };
        for (_, observer, token) in due {
            if let Some(observer) = observer.upgrade() {
                observer.advanced(token);
            }
        }
    }

    pub fn pending(&self) -> usize {
        self.inner.lock().pending.len()
    }
}

impl DurabilitySink for ManualSink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let mut inner = self.inner.lock();
        inner.next += 1;
        inner.pending.push(reference);
        inner.next
    }
    fn durable_through(&self) -> Ticket {
        if self.instant.load(Ordering::SeqCst) {
            self.sync();
        }
        self.durable.load(Ordering::SeqCst)
    }
    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        if self.durable_through() >= ticket {
            return false;
        }
        self.inner.lock().waiting.push((ticket, Arc::downgrade(observer), token));
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        match *self.sick.lock() {
            Some(kind) => Err(SinkError { kind, reason: "the test says so".into(), retry_after_ms: 10 }),
            None => Ok(()),
        }
    }
    fn may_answer_early(&self) -> bool {
        self.is_close.load(Ordering::SeqCst)
    }
    fn segment_safe(&self, _: SegmentId) {}
}

/// A store whose disk is as quick as the test wants.
#[derive(Default)]
pub struct ManualStore {
    closed: Mutex<Vec<Arc<Segment>>>,
    images: Mutex<HashMap<SegmentId, Vec<u8>>>,
    wanted: Mutex<Vec<SegmentId>>,
}

impl SegmentStore for ManualStore {
    fn closed(&self, segment: Arc<Segment>) {
        self.closed.lock().push(segment);
    }
    fn want_space(&self, _: u64) {}
    fn load(&self, id: SegmentId, _: Location) {
        self.wanted.lock().push(id);
    }
    fn release(&self, id: SegmentId, _: Location) {
        self.images.lock().remove(&id);
    }
}

impl ManualStore {
    /// Writes everything that is closed, and takes it out of memory.
    pub fn evict_all(&self, log: &Log) -> usize {
        let closed = std::mem::take(&mut *self.closed.lock());
        for segment in &closed {
            let (id, image) = (segment.id(), segment.as_image().to_vec());
            let at = Location { disk: 0, container: 1, offset: 4_096, bytes: image.len() as u64 };
            self.images.lock().insert(id, image);
            log.persisted(id, at);
            log.evict(id);
        }
        closed.len()
    }

    /// Brings back what readers want. How much that was.
    pub fn bring(&self, log: &Log) -> usize {
        let wanted = std::mem::take(&mut *self.wanted.lock());
        for id in &wanted {
            let image = self.images.lock()[id].clone();
            let mut buffer = log.allocate_for_load(image.len() as u64).expect("room to load into");
            buffer.as_mut_slice()[..image.len()].copy_from_slice(&image);
            log.loaded(*id, buffer).expect("an intact image");
        }
        wanted.len()
    }

    /// The disk does not give back what readers want.
    pub fn fail(&self, log: &Log) {
        for id in std::mem::take(&mut *self.wanted.lock()) {
            log.load_failed(id, "the test says so".into());
        }
    }
}

/// A node's broker, without the node.
pub struct House {
    pub broker: Arc<Broker>,
    pub log: Arc<Log>,
    pub clock: Arc<ManualClock>,
    pub sink: Arc<ManualSink>,
    pub store: Arc<ManualStore>,
    pub config: BrokerConfig,
    arena: ArenaConfig,
    _dir: Arc<tempfile::TempDir>,
}

pub fn config() -> BrokerConfig {
    BrokerConfig { lease_ms_min: 1_000, lease_ms_default: 10_000, ..BrokerConfig::default() }
}

pub fn options(streamlets: u32, lanes: u32) -> StreamOptions {
    StreamOptions { streamlets, lanes, segments_per_group: 1, segment_bytes_max: 64 << 10, ..StreamOptions::default() }
}

impl House {
    pub fn new() -> House {
        House::with(config(), 16 << 20)
    }

    /// With a store: what is closed stays in memory until the test says otherwise.
    pub fn stored() -> House {
        House::on(config(), 16 << 20, true)
    }

    pub fn with(config: BrokerConfig, arena_bytes: u64) -> House {
        House::on(config, arena_bytes, false)
    }

    fn on(config: BrokerConfig, arena_bytes: u64, stored: bool) -> House {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: arena_bytes, node: [7; 16] };
        House::open(config, arena, dir, &[(SYSTEM, applications_stream_options())], stored)
    }

    fn open(
        config: BrokerConfig,
        arena: ArenaConfig,
        dir: Arc<tempfile::TempDir>,
        streams: &[(StreamId, StreamOptions)],
        stored: bool,
    ) -> House {
        let (memory, attach) = Arena::create_or_attach(arena.clone()).expect("an arena");
        let clock = Arc::new(ManualClock::new(1_000_000));
        let sink = Arc::new(ManualSink::default());
        let log = Log::new(LogConfig { segment_arena_share: 1 << 20, ..LogConfig::default() }, memory);
        let store = Arc::new(ManualStore::default());
        if stored {
            log.set_store(Arc::clone(&store) as Arc<dyn SegmentStore>);
        }
        log.set_sinks(Arc::new(vec![Arc::clone(&sink) as Arc<dyn DurabilitySink>]));
        let broker = Broker::new(config.clone(), Arc::clone(&log), Arc::clone(&clock) as Arc<dyn Clock>);
        for (id, options) in streams {
            broker.stream_created(*id, options.clone()).expect("a stream");
        }
        let segments = match attach {
            Attach::Attached { segments, .. } => segments,
            Attach::Created => Vec::new(),
        };
        let report = log.recover(Vec::new(), segments);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        log.finish_recovery(config.epoch);
        sink.sync();
        broker.open_applications(SYSTEM).expect("the system stream");
        House { broker, log, clock, sink, store, config, arena, _dir: dir }
    }

    /// Kills the process, so to say, and starts the next one on the same arena.
    pub fn restart(self) -> House {
        let House { broker, log, config, arena, _dir, clock, sink, store } = self;
        let streams: Vec<_> = log.streams().iter().map(|s| (s.id(), (*s.options()).clone())).collect();
        // What is pending refers to the log, which refers to the sink.
        sink.inner.lock().pending.clear();
        // What is closed refers to the arena. It is all still there.
        store.closed.lock().clear();
        drop((broker, log, sink, store));
        let config = BrokerConfig { epoch: config.epoch + 1, ..config };
        let house = House::open(config, arena, _dir, &streams, false);
        house.clock.set_now_ms(clock.now_ms());
        house
    }

    pub fn stream(&self, id: StreamId, options: StreamOptions) {
        self.broker.stream_created(id, options).expect("a stream");
    }

    pub fn peer(&self) -> Peer {
        self.peer_with(64 << 20)
    }

    pub fn peer_with(&self, outbox_bound: usize) -> Peer {
        let waker = SessionWaker::detached();
        let session = self.broker.session("127.0.0.1:5000".parse().expect("an address"), waker.clone());
        Peer { session, waker, out: Outbox::new(outbox_bound), bound: outbox_bound, correlation: 0, blocked: None }
    }
}

/// A frame that came back.
#[derive(Clone, Debug)]
pub struct Frame {
    pub header: FrameHeader,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn status(&self) -> Status {
        Status::from_u16(self.header.status).expect("a known status")
    }
    pub fn decode<B: Body>(&self) -> B {
        assert_eq!(self.status(), Status::Ok, "{:?}", ErrorBody::decode(&self.body));
        B::decode(self.header.version, &self.body).expect("a well-formed answer")
    }
    pub fn error(&self) -> ErrorBody {
        assert_ne!(self.status(), Status::Ok);
        ErrorBody::decode(&self.body).expect("a well-formed error")
    }
}

/// The other end of a session.
pub struct Peer {
    pub session: BrokerSession,
    pub waker: SessionWaker,
    pub out: Outbox,
    bound: usize,
    pub correlation: u64,
    blocked: Option<(FrameHeader, Vec<u8>)>,
}

impl Peer {
    /// Feeds a body as a request of `op`.
    pub fn raw(&mut self, op: Op, body: &[u8]) -> Flow {
        self.raw_in(op.version_max(), op, body)
    }

    fn raw_in(&mut self, version: u8, op: Op, body: &[u8]) -> Flow {
        assert!(self.blocked.is_none(), "a server offers no other frame while one is blocked");
        self.correlation += 1;
        let header = FrameHeader {
            frame_bytes: (FRAME_HEADER_BYTES + body.len()) as u32,
            op: op as u16,
            version,
            correlation: self.correlation,
            ..FrameHeader::default()
        };
        self.offer(header, body.to_vec())
    }

    fn offer(&mut self, header: FrameHeader, body: Vec<u8>) -> Flow {
        let op = Op::from_u16(header.op).expect("a known operation");
        let flow = self.session.handle(op, &header, &body, &mut self.out);
        if flow == Flow::Blocked {
            self.blocked = Some((header, body));
        }
        flow
    }

    /// Sends a request.
    pub fn send<M: Message>(&mut self, message: &M) -> Flow {
        let mut body = Vec::new();
        message.encode(M::OP.version_max(), &mut body);
        self.raw(M::OP, &body)
    }

    /// Does what the server does when the waker was used, or a deadline has passed.
    pub fn run(&mut self, house: &House) {
        for _ in 0..10_000 {
            let due = self.session.deadline_us().is_some_and(|at| at <= house.clock.monotonic_us());
            if !self.waker.take() && !due {
                return;
            }
            if due {
                self.session.on_deadline(&mut self.out);
            } else {
                self.session.on_wake(&mut self.out);
            }
            self.offer_again();
        }
        panic!("the session never comes to rest");
    }

    /// Does what the server does when what was answered has been taken.
    pub fn drained(&mut self) {
        self.session.on_drained(&mut self.out);
        self.offer_again();
    }

    /// Offers the frame again that is blocked, if one is.
    pub fn offer_again(&mut self) {
        if let Some((header, body)) = self.blocked.take() {
            self.offer(header, body);
        }
    }

    pub fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Everything answered since the last call.
    pub fn frames(&mut self) -> Vec<Frame> {
        let bytes = std::mem::replace(&mut self.out, Outbox::new(self.bound)).to_vec();
        let mut rest = &bytes[..];
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let header = FrameHeader::parse(rest, 256 << 20).expect("a well-formed header");
            assert!(header.is_response());
            let (frame, after) = rest.split_at(header.frame_bytes as usize);
            frames.push(Frame { header, body: frame[FRAME_HEADER_BYTES..].to_vec() });
            rest = after;
        }
        frames
    }

    /// The one frame that must have come.
    pub fn frame(&mut self) -> Frame {
        let mut frames = self.frames();
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames.remove(0)
    }

    /// Sends and expects the answer at once.
    pub fn call<M: Message>(&mut self, message: &M) -> M::Response {
        self.send(message);
        self.frame().decode()
    }

    /// Sends and expects an error at once.
    pub fn refused<M: Message>(&mut self, message: &M) -> Status {
        self.send(message);
        let frame = self.frame();
        assert!(!frame.error().message.is_empty());
        frame.status()
    }

    /// Sends what is recorded before it is answered, lets the disk do it, and expects the answer.
    pub fn call_durable<M: Message>(&mut self, house: &House, message: &M) -> M::Response {
        self.send(message);
        house.sink.sync();
        self.run(house);
        self.frame().decode()
    }

    pub fn write(&mut self, chunks: &[Vec<u8>]) -> WriteChunksResponse {
        self.call(&write_request(chunks, 0))
    }

    /// Reads a lane from a cursor, without waiting.
    /// The same in another version of the request.
    pub fn write_in(&mut self, version: u8, chunks: &[Vec<u8>]) -> WriteChunksResponse {
        let mut body = Vec::new();
        write_request(chunks, 0).encode(version, &mut body);
        self.raw_in(version, Op::WriteChunks, &body);
        self.frame().decode()
    }

    pub fn read(&mut self, stream: StreamId, cursor: Cursor) -> ReadChunksResponse {
        self.call(&read_request(&[entry(stream, 0, 0, cursor)], 0))
    }

    pub fn join(&mut self, house: &House, application: &str, start: Start) -> JoinedApplication {
        self.call_durable(house, &join_request(application, STREAM, start))
    }

    pub fn next_groups(&mut self, joined: &JoinedApplication, max_groups: u32) -> Vec<LeasedGroup> {
        let JoinedApplication { application, member, .. } = *joined;
        let answer: LeasedGroups = self.call(&NextGroups { application, member, max_groups, max_wait_ms: 0 });
        answer.groups
    }

    pub fn heartbeat(&mut self, joined: &JoinedApplication) -> HeartbeatResponse {
        self.call(&Heartbeat { application: joined.application, member: joined.member })
    }

    pub fn commit(&mut self, house: &House, joined: &JoinedApplication, entries: &[CommitEntry]) -> Vec<Status> {
        let JoinedApplication { application, member, .. } = *joined;
        let result: CommitResult =
            self.call_durable(house, &CommitOffsets { application, member, entries: entries.to_vec() });
        result.statuses.iter().map(|status| Status::from_u16(*status).expect("known")).collect()
    }
}

pub fn join_request(application: &str, stream: StreamId, start: Start) -> JoinApplication {
    JoinApplication {
        application: application.into(),
        stream,
        member_name: "test".into(),
        member: 0,
        start,
        lease_ms: 0,
        leases: None,
    }
}

/// A sealed chunk of `records` records with values of `value_bytes`.
pub fn chunk_of(target: ChunkTarget, records: usize, value_bytes: usize) -> Vec<u8> {
    let mut chunk = ChunkBuilder::default();
    for number in 0..records {
        let value = vec![number as u8; value_bytes];
        chunk.push(&Record::value(&value));
    }
    chunk.seal(&target, Compression::None).expect("it fits")
}

pub fn target(stream: StreamId, streamlet: u32, producer: u64, sequence: u64) -> ChunkTarget {
    ChunkTarget {
        stream,
        streamlet: StreamletId(streamlet),
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        sequence,
    }
}

/// A chunk of one record that is not deduplicated.
pub fn chunk(value_bytes: usize) -> Vec<u8> {
    chunk_of(target(STREAM, 0, 0, 0), 1, value_bytes)
}

pub fn write_request(chunks: &[Vec<u8>], timeout_ms: u32) -> WriteChunks {
    WriteChunks { timeout_ms, chunk_count: chunks.len() as u32, skips: Vec::new(), chunks: chunks.concat().into() }
}

pub fn write_body(count: u32, timeout_ms: u32, chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    write_front(Op::WriteChunks.version_max(), count, timeout_ms, &[], &mut body);
    body.extend_from_slice(chunks);
    body
}

pub fn entry(stream: StreamId, streamlet: u32, lane: u32, cursor: Cursor) -> ReadEntry {
    ReadEntry {
        stream,
        streamlet: StreamletId(streamlet),
        lane: LaneId(lane),
        cursor,
        max_bytes: 0,
        flags: ENTRY_FOLLOW_GROUPS,
    }
}

pub fn read_request(entries: &[ReadEntry], max_wait_ms: u32) -> ReadChunks {
    ReadChunks { max_wait_ms, min_bytes: 1, max_bytes: 1 << 20, entries: entries.to_vec() }
}

/// Ordinals of the records in an answer's data.
pub fn ordinals(data: &[u8]) -> Vec<u64> {
    let mut all = Vec::new();
    for chunk in Chunks::new(data) {
        let chunk = chunk.expect("whole chunks");
        chunk.verify().expect("an intact chunk");
        let base = chunk.broker().expect("a stamped chunk").base_ordinal;
        all.extend(base..base + u64::from(chunk.header().record_count));
    }
    all
}

pub fn statuses(response: &WriteChunksResponse) -> Vec<Status> {
    response.results.iter().map(|result| result.status().expect("known")).collect()
}

/// A commit for a lease.
pub fn commit_entry(group: &LeasedGroup, cursor: Cursor, ordinal: u64, after: AfterCommit) -> CommitEntry {
    CommitEntry { streamlet: group.streamlet, lane: group.lane, lease: group.lease, cursor, ordinal, after }
}

pub fn power(options: StreamOptions) -> StreamOptions {
    StreamOptions { durability: Durability::Power, ..options }
}

pub fn order_none(options: StreamOptions) -> StreamOptions {
    StreamOptions { order: Order::None, ..options }
}

/// No application has this id.
pub const NO_APPLICATION: ApplicationId = ApplicationId(u64::MAX);
