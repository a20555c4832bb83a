//! The log as its callers see it, case by case. The random walk through all cases is in `tests/model`.

mod appending;
mod cut_off;
mod forgetting;
mod moving;
mod pieces;
mod reading;
mod rebuilding;
mod restart;
mod retaining;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kera_env::AlignedBuffer;
use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::{
    CHUNK_HEADER_BYTES, ChunkView, Compression, Cursor, Durability, LaneId, ProducerEpoch, ProducerId, SegmentId,
    StreamId, StreamOptions, StreamletId,
};
use parking_lot::Mutex;

use crate::*;

pub(crate) const STREAM: StreamId = StreamId(1);

/// A log over an arena of its own.
pub(crate) struct Node {
    pub(crate) log: Arc<Log>,
    pub(crate) dir: Arc<tempfile::TempDir>,
}

pub(crate) fn arena_config(dir: &tempfile::TempDir, bytes: u64) -> ArenaConfig {
    ArenaConfig { path: dir.path().join("unit.arena"), bytes, node: [3; 16] }
}

pub(crate) fn options() -> StreamOptions {
    StreamOptions { lanes: 2, segments_per_group: 2, segment_bytes_max: 64 << 10, ..StreamOptions::default() }
}

/// Retention does not wait for producers, where a test does not ask for it.
pub(crate) fn config() -> LogConfig {
    LogConfig { producers_kept_ms: 0, ..LogConfig::default() }
}

pub(crate) fn node_with(options: StreamOptions, bytes: u64) -> Node {
    node_configured(config(), options, bytes)
}

pub(crate) fn node_configured(config: LogConfig, options: StreamOptions, bytes: u64) -> Node {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (arena, _) = Arena::create_or_attach(arena_config(&dir, bytes)).unwrap();
    let log = Log::new(config, arena);
    log.set_sinks(Arc::new(vec![Arc::new(Sink::default()) as Arc<dyn DurabilitySink>]));
    log.create_stream(STREAM, options).unwrap();
    Node { log, dir }
}

pub(crate) fn node() -> Node {
    node_with(options(), 8 << 20)
}

impl Node {
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.lane_number(0)
    }
    pub(crate) fn lane_number(&self, lane: u32) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).unwrap();
        Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(lane)).unwrap())
    }
    pub(crate) fn with_store(self) -> (Node, Arc<Store>) {
        let store = Arc::new(Store::default());
        self.log.set_store(Arc::clone(&store) as _);
        (self, store)
    }
}

/// A chunk of producer 7 with `payload` bytes and one record.
pub(crate) fn chunk(sequence: u64, payload: usize) -> Vec<u8> {
    chunk_of(7, 0, sequence, payload)
}

pub(crate) fn chunk_of(producer: u64, epoch: u16, sequence: u64, payload: usize) -> Vec<u8> {
    let mut buffer = vec![sequence as u8; CHUNK_HEADER_BYTES + payload.max(16)];
    let target = ChunkTarget {
        stream: STREAM,
        streamlet: StreamletId(0),
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(epoch),
        sequence,
    };
    seal_in_place(&mut buffer, &target, PayloadKind::Records, Compression::None, 1, NO_TIMESTAMP).unwrap();
    buffer
}

pub(crate) fn append(lane: &Arc<Lane>, chunk: &[u8], now_ms: i64) -> Result<Appended, AppendError> {
    lane.append(&ChunkView::parse(chunk).unwrap(), now_ms)
}

/// Appends chunks `from..to` of producer 7, a millisecond apart.
pub(crate) fn fill(lane: &Arc<Lane>, sequences: std::ops::Range<u64>, payload: usize) -> Vec<Appended> {
    sequences.map(|n| append(lane, &chunk(n, payload), n as i64).unwrap()).collect()
}

pub(crate) fn ordinals(outcome: &ReadOutcome) -> Vec<u64> {
    let chunks = outcome.data.iter().flat_map(|bytes| kera_format::chunk::Chunks::new(bytes));
    chunks.map(|chunk| chunk.unwrap().broker().unwrap().base_ordinal).collect()
}

pub(crate) fn start() -> Cursor {
    Cursor::default()
}

/// A lane by its stream, streamlet and number.
pub(crate) type LaneName = (StreamId, StreamletId, LaneId);

/// Keeps what it is told.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) closed: Mutex<Vec<Arc<Segment>>>,
    pub(crate) loads: Mutex<Vec<SegmentId>>,
    pub(crate) released: Mutex<Vec<SegmentId>>,
    pub(crate) reading: Mutex<Vec<SegmentId>>,
    pub(crate) wanted: AtomicU64,
    pub(crate) let_go: Mutex<Vec<(LaneName, u64)>>,
    /// What was written, in its order.
    pub(crate) images: Mutex<Vec<Vec<u8>>>,
}

/// Where images lie from each other.
const IMAGE_BYTES: u64 = 65536;

impl SegmentStore for Store {
    fn closed(&self, segment: Arc<Segment>) {
        self.closed.lock().push(segment);
    }
    fn want_space(&self, bytes: u64) {
        self.wanted.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    }
    fn load(&self, id: SegmentId, _: Location) {
        self.loads.lock().push(id);
    }
    fn read_image(&self, at: Location) -> std::io::Result<AlignedBuffer> {
        let images = self.images.lock();
        let mut image = AlignedBuffer::new();
        image.extend_from_slice(&images[(at.offset / IMAGE_BYTES) as usize]);
        Ok(image)
    }
    fn release(&self, id: SegmentId, _: Location) {
        self.released.lock().push(id);
    }
    fn dropped(&self, id: SegmentId) {
        self.closed.lock().retain(|segment| segment.id() != id);
    }
    fn reading(&self, id: SegmentId) {
        self.reading.lock().push(id);
    }
    fn let_go(&self, stream: StreamId, streamlet: StreamletId, lane: LaneId, ordinal: u64) {
        self.let_go.lock().push(((stream, streamlet, lane), ordinal));
    }
}

impl Store {
    /// Says of everything that was closed that it is on disk; the images.
    pub(crate) fn persist_all(&self, log: &Log) -> Vec<(StoredSegment, Vec<u8>)> {
        let closed = std::mem::take(&mut *self.closed.lock());
        closed
            .iter()
            .map(|segment| {
                let image = segment.as_image().to_vec();
                let mut images = self.images.lock();
                let offset = images.len() as u64 * IMAGE_BYTES;
                images.push(image.clone());
                drop(images);
                let at = Location { disk: 0, container: 9, offset, bytes: image.len() as u64 };
                log.persisted(segment.id(), at);
                let (header, progress) = (*segment.header(), segment.progress());
                let producers = segment.producer_marks();
                (StoredSegment { header, progress, at, producers, lacks_marks: false }, image)
            })
            .collect()
    }
}

/// Makes durable what it is told to.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) pending: Mutex<Vec<ChunkReference>>,
    pub(crate) sick: Mutex<bool>,
}

impl Sink {
    pub(crate) fn sync(&self) -> Vec<Vec<u8>> {
        let batch = std::mem::take(&mut *self.pending.lock());
        made_durable(&batch);
        batch.iter().map(|reference| reference.chunk().to_vec()).collect()
    }
}

impl DurabilitySink for Sink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let mut pending = self.pending.lock();
        pending.push(reference);
        pending.len() as Ticket
    }
    fn durable_through(&self) -> Ticket {
        0
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        if !*self.sick.lock() {
            return Ok(());
        }
        Err(SinkError { kind: SinkErrorKind::Full, reason: "the disk is full".to_owned(), retry_after_ms: 5 })
    }
    fn segment_safe(&self, _: SegmentId) {}
}

/// A log whose streams need a sync, and the sink that does it.
pub(crate) fn power_node() -> (Node, Arc<Sink>) {
    let sink = Arc::new(Sink::default());
    (node_through(&sink, StreamOptions { durability: Durability::Power, ..options() }), sink)
}

pub(crate) fn node_through(sink: &Arc<Sink>, options: StreamOptions) -> Node {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (arena, _) = Arena::create_or_attach(arena_config(&dir, 8 << 20)).unwrap();
    let log = Log::new(config(), arena);
    log.set_sinks(Arc::new(vec![Arc::clone(sink) as Arc<dyn DurabilitySink>]));
    log.create_stream(STREAM, options).unwrap();
    Node { log, dir }
}
