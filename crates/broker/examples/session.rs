//! How many chunks a second one session takes on one core: feeds `WriteChunks` frames straight into a session, without
//! sockets, and times nothing but the session.
//!
//! ```text
//! cargo run --release -p kera-broker --example session -- --chunk-bytes 1024 --chunks 64 --streamlets 16
//! ```
//!
//! | flag | meaning | default |
//! | --- | --- | --- |
//! | `--chunk-bytes` | of a chunk, header included | 1024 |
//! | `--chunks` | of a request | 64 |
//! | `--streamlets` | that a request's chunks go to, in turn | 16 |
//! | `--producer` | 0: no deduplication; else its id | 1 |
//! | `--power` | chunks also go to a sink that is durable at once | off |
//! | `--subscribe` | a second session has everything pushed; its time counts apart | off |
//! | `--requests` | how many | 100000 |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_broker::{Broker, BrokerConfig, BrokerSession};
use kera_env::{Clock, SystemClock};
use kera_format::arena::BlockSize;
use kera_format::chunk::{ChunkTarget, seal_in_place};
use kera_format::{
    Compression, Cursor, Durability, LaneId, ProducerEpoch, ProducerId, SegmentId, StreamId, StreamOptions, StreamletId,
};
use kera_log::{
    Arena, ArenaConfig, ChunkReference, DurabilitySink, Log, LogConfig, Observer, SinkError, Ticket, made_durable,
};
use kera_protocol::read::ENTRY_FOLLOW_GROUPS;
use kera_protocol::write::{parse_results, write_head};
use kera_protocol::{Body, FRAME_HEADER_BYTES, FrameHeader, Op, ReadEntry, Subscribe};
use kera_rpc::{Flow, Outbox, SessionWaker};
use rustix::time::{ClockId, clock_gettime};

const STREAM: StreamId = StreamId(7);

struct Options {
    chunk_bytes: usize,
    chunks: usize,
    streamlets: u32,
    producer: u64,
    power: bool,
    subscribe: bool,
    requests: usize,
}

fn options() -> Options {
    let mut options = Options {
        chunk_bytes: 1024,
        chunks: 64,
        streamlets: 16,
        producer: 1,
        power: false,
        subscribe: false,
        requests: 100_000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let mut number = || arguments.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{flag} NUMBER"));
        match flag.as_str() {
            "--chunk-bytes" => options.chunk_bytes = number(),
            "--chunks" => options.chunks = number(),
            "--streamlets" => options.streamlets = number() as u32,
            "--producer" => options.producer = number() as u64,
            "--requests" => options.requests = number(),
            "--power" => options.power = true,
            "--subscribe" => options.subscribe = true,
            other => panic!("unknown flag {other}"),
        }
    }
    options
}

/// Everything is durable as soon as it is asked for: what waiting for a sink costs without a disk.
#[derive(Default)]
struct InstantSink {
    pending: parking_lot::Mutex<Vec<ChunkReference>>,
    last: AtomicU64,
}

impl DurabilitySink for InstantSink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        self.pending.lock().push(reference);
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
    fn durable_through(&self) -> Ticket {
        let pending = std::mem::take(&mut *self.pending.lock());
        made_durable(&pending);
        self.last.load(Ordering::Relaxed)
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        false
    }
    fn healthy(&self) -> Result<(), SinkError> {
        Ok(())
    }
    fn segment_safe(&self, _: SegmentId) {}
}

/// Seconds of processor time of this thread.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn broker(options: &Options, arena: ArenaConfig) -> (Arc<Broker>, Arc<Log>) {
    let (arena, _) = Arena::create_or_attach_with(arena, BlockSize::Roomy).expect("an arena");
    let log = Log::new(LogConfig::default(), arena);
    log.set_sinks(Arc::new(vec![Arc::new(InstantSink::default()) as Arc<dyn DurabilitySink>]));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let broker = Broker::new(BrokerConfig::default(), Arc::clone(&log), clock);
    let stream = StreamOptions {
        streamlets: options.streamlets,
        segments_per_group: 1,
        durability: if options.power { Durability::Power } else { Durability::Process },
        retention_bytes: Some((256 << 20) / u64::from(options.streamlets)),
        ..StreamOptions::default()
    };
    broker.stream_created(STREAM, stream).expect("a stream");
    log.recover(Vec::new(), Vec::new());
    log.finish_recovery(1);
    (broker, log)
}

/// The body of request `number`.
fn fill(body: &mut Vec<u8>, chunk: &mut Vec<u8>, options: &Options, number: usize) {
    body.clear();
    body.extend_from_slice(&write_head(options.chunks as u32, 0));
    for i in 0..options.chunks {
        let index = number * options.chunks + i;
        let target = ChunkTarget {
            stream: STREAM,
            streamlet: StreamletId(index as u32 % options.streamlets),
            producer_id: ProducerId(options.producer),
            producer_epoch: ProducerEpoch(0),
            sequence: index as u64 / u64::from(options.streamlets),
        };
        chunk.resize(options.chunk_bytes, 1);
        let records = (options.chunk_bytes as u32 - 96) / 100;
        seal_in_place(chunk, &target, Default::default(), Compression::None, records.max(1), 0).expect("a chunk");
        body.extend_from_slice(chunk);
    }
}

fn header(op: Op, body_bytes: usize) -> FrameHeader {
    let frame_bytes = (FRAME_HEADER_BYTES + body_bytes) as u32;
    FrameHeader { frame_bytes, op: op as u16, version: 1, correlation: 1, ..FrameHeader::default() }
}

fn subscribe(options: &Options, session: &mut BrokerSession, out: &mut Outbox) {
    let entry = |streamlet| ReadEntry {
        stream: STREAM,
        streamlet: StreamletId(streamlet),
        lane: LaneId(0),
        cursor: Cursor::default(),
        max_bytes: 0,
        flags: ENTRY_FOLLOW_GROUPS,
    };
    let entries = (0..options.streamlets).map(entry).collect();
    let mut body = Vec::new();
    Subscribe { credit_bytes: u64::MAX, push_bytes_max: 0, entries }.encode(1, &mut body);
    session.handle(Op::Subscribe, &header(Op::Subscribe, body.len()), &body, out);
}

fn main() {
    let options = options();
    let path = std::path::PathBuf::from(format!("/dev/shm/kera-example-{}.arena", std::process::id()));
    let arena = ArenaConfig { path: path.clone(), bytes: 1 << 30, node: [1; 16] };
    let (broker, log) = broker(&options, arena);
    let (writer_waker, reader_waker) = (SessionWaker::detached(), SessionWaker::detached());
    let peer = "127.0.0.1:1".parse().expect("an address");
    let mut writer = broker.session(peer, writer_waker.clone());
    let mut reader = broker.session(peer, reader_waker.clone());
    let mut out = Outbox::new(usize::MAX);
    if options.subscribe {
        subscribe(&options, &mut reader, &mut out);
    }

    let (mut body, mut chunk) = (Vec::new(), Vec::new());
    let (mut wrote_s, mut read_s, mut pushed, mut wakes) = (0.0, 0.0, 0, 0);
    let mut measured = 0;
    for number in 0..options.requests {
        fill(&mut body, &mut chunk, &options, number);
        let request = header(Op::WriteChunks, body.len());
        let mut answers = Outbox::new(usize::MAX);
        let started = cpu_s();
        let flow = writer.handle(Op::WriteChunks, &request, &body, &mut answers);
        if writer_waker.take() {
            writer.on_wake(&mut answers);
        }
        let took = cpu_s() - started;
        assert_eq!(flow, Flow::Done, "the arena is full");
        // The first tenth warms the arena and the caches.
        if number >= options.requests / 10 {
            wrote_s += took;
            measured += options.chunks;
        }
        if number % 1000 == 0 {
            let bytes = answers.to_vec();
            let mut results = parse_results(&bytes[FRAME_HEADER_BYTES..]).expect("results");
            assert!(results.all(|result| result.status == 0 && !result.duplicate));
        }
        if reader_waker.take() {
            let mut pushes = Outbox::new(usize::MAX);
            let started = cpu_s();
            reader.on_wake(&mut pushes);
            read_s += cpu_s() - started;
            pushed += pushes.queued_bytes();
            wakes += 1;
        }
        if number % 256 == 0 {
            log.retain(broker_now());
        }
    }
    let chunks_s = measured as f64 / wrote_s;
    let mib_s = chunks_s * options.chunk_bytes as f64 / 1048576.0;
    println!("write: {chunks_s:.0} chunks/s, {mib_s:.0} MiB/s, {:.0} ns a chunk", 1e9 / chunks_s);
    if options.subscribe {
        let (mib_s, wake_ns) = (pushed as f64 / read_s / 1048576.0, read_s * 1e9 / f64::from(wakes));
        println!("push: {mib_s:.0} MiB/s, {wake_ns:.0} ns a wake");
    }
    drop((writer, reader, broker, log));
    let _ = std::fs::remove_file(path);
}

fn broker_now() -> i64 {
    SystemClock::new().now_ms()
}
