//! What the virtual log's tests share: a log with streams over a small arena, a virtual log on a disk of the test's
//! choice, and what a replay gives back.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kera_env::{Clock, Disk, ManualClock, SeededRandom};
use kera_format::chunk::ChunkTarget;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Durability, LaneId, ProducerId, Record, SegmentId, StreamId, StreamOptions,
    StreamletId,
};
use kera_log::{Appended, Arena, ArenaConfig, DurabilitySink, Lane, Log, LogConfig, Observer, Restored};
use kera_vlog::{ReplayError, ReplayReport, VirtualLog, VirtualLogConfig};
use tempfile::TempDir;

pub(crate) const NODE: [u8; 16] = *b"the node's uuid!";
pub(crate) const STREAM: StreamId = StreamId(7);
/// Streamlets of the stream, one lane each.
pub(crate) const STREAMLETS: u32 = 4;

/// A log and its virtual log.
pub(crate) struct Rig {
    pub(crate) log: Arc<Log>,
    pub(crate) vlog: Arc<VirtualLog>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) report: ReplayReport,
    _arena: TempDir,
}

/// Small files and blocks, so that a test sees many.
pub(crate) fn config() -> VirtualLogConfig {
    VirtualLogConfig {
        file_bytes: 64 << 10,
        block_bytes_max: 16 << 10,
        keep_bytes: 1 << 20,
        spares: 2,
        ..VirtualLogConfig::new(3, NODE)
    }
}

pub(crate) fn options() -> StreamOptions {
    StreamOptions {
        streamlets: STREAMLETS,
        durability: Durability::Power,
        segment_bytes_max: 64 << 10,
        segments_per_group: 2,
        ..StreamOptions::default()
    }
}

pub(crate) fn open(disk: &Arc<dyn Disk>, config: VirtualLogConfig, seed: u64) -> (Arc<VirtualLog>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let random = Arc::new(SeededRandom::new(seed));
    let vlog = VirtualLog::open(config, Arc::clone(disk), Arc::clone(&clock) as Arc<dyn Clock>, random).expect("open");
    (vlog, clock)
}

impl Rig {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Rig {
        Rig::with(disk, config(), 1).expect("replay")
    }

    /// A node that starts after a power cut: an empty arena, whatever the disk has, the `epoch`th start.
    pub(crate) fn with(disk: Arc<dyn Disk>, config: VirtualLogConfig, epoch: u32) -> Result<Rig, ReplayError> {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let arena = ArenaConfig { path: folder.path().join("arena"), bytes: 16 << 20, node: NODE };
        let (arena, _) = Arena::create_or_attach(arena).expect("arena");
        let log = Log::new(LogConfig::default(), arena);
        let (vlog, clock) = open(&disk, config, epoch.into());
        log.set_sinks(Arc::new(vec![Arc::clone(&vlog) as Arc<dyn DurabilitySink>]));
        log.create_stream(STREAM, options()).expect("stream");
        log.recover(Vec::new(), Vec::new());
        let report = vlog.replay_into(&log)?;
        log.finish_recovery(epoch);
        Ok(Rig { log, vlog, clock, report, _arena: folder })
    }

    pub(crate) fn lane(&self, streamlet: u32) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).expect("stream");
        let streamlet = stream.streamlet(StreamletId(streamlet)).expect("streamlet");
        Arc::clone(streamlet.lane(LaneId(0)).expect("lane"))
    }

    /// Appends a chunk of one record with this text.
    pub(crate) fn append(&self, streamlet: u32, text: &str) -> Appended {
        let bytes = chunk(streamlet, text);
        let view = ChunkView::parse(&bytes).expect("chunk");
        self.lane(streamlet).append(&view, self.clock.now_ms()).expect("appended")
    }

    /// Why a chunk is not appended.
    pub(crate) fn append_error(&self, streamlet: u32) -> String {
        let bytes = chunk(streamlet, "refused");
        let view = ChunkView::parse(&bytes).expect("chunk");
        let refused = self.lane(streamlet).append(&view, self.clock.now_ms());
        refused.expect_err("refused").to_string()
    }

    /// What readers of a lane see.
    pub(crate) fn readable(&self, streamlet: u32) -> Vec<String> {
        let lane = self.lane(streamlet);
        let mut cursor = lane.earliest().0;
        let mut texts = Vec::new();
        loop {
            let read = lane.read(cursor, 1 << 20, true).expect("read");
            assert!(!read.loading, "nothing is on disk");
            for data in &read.data {
                texts.extend(kera_format::chunk::Chunks::new(data).map(|chunk| text_of(&chunk.expect("chunk"))));
            }
            if read.at_durable_end {
                return texts;
            }
            assert_ne!(read.next, cursor, "a read goes on");
            cursor = read.next;
        }
    }
}

pub(crate) fn chunk(streamlet: u32, text: &str) -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(text.as_bytes()));
    let target = ChunkTarget {
        stream: STREAM,
        streamlet: StreamletId(streamlet),
        producer_id: ProducerId(0),
        ..ChunkTarget::default()
    };
    builder.seal(&target, Compression::None).expect("sealed")
}

pub(crate) fn text_of(chunk: &ChunkView<'_>) -> String {
    let record = chunk.records().next().expect("a record").expect("whole");
    String::from_utf8(record.value().expect("a value").to_vec()).expect("text")
}

/// What a replay gives back: per streamlet, the texts in the order in which they came, and where each was.
#[derive(Default, Debug, PartialEq, Clone)]
pub(crate) struct Replayed {
    pub(crate) texts: BTreeMap<u32, Vec<String>>,
    pub(crate) segments: Vec<SegmentId>,
}

/// Replays a disk without a log.
pub(crate) fn replay(disk: &Arc<dyn Disk>, config: VirtualLogConfig) -> Result<(Replayed, ReplayReport), ReplayError> {
    let (vlog, _) = open(disk, config, 99);
    let mut replayed = Replayed::default();
    let report = vlog.replay(&mut |bytes| {
        let chunk = ChunkView::parse(bytes).expect("chunk");
        chunk.verify().expect("payload");
        let broker = chunk.broker().expect("stamped");
        let header = chunk.header();
        replayed.texts.entry(header.streamlet.0).or_default().push(text_of(&chunk));
        replayed.segments.push(SegmentId {
            stream: header.stream,
            streamlet: header.streamlet,
            lane: broker.lane,
            group: broker.group,
            index: broker.segment,
        });
        Ok(Restored::Restored)
    })?;
    Ok((replayed, report))
}

/// Counts its calls and keeps their tokens.
#[derive(Default)]
pub(crate) struct Calls(pub(crate) Mutex<Vec<u64>>);

impl Calls {
    pub(crate) fn tokens(&self) -> Vec<u64> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Observer for Calls {
    fn advanced(&self, token: u64) {
        self.0.lock().expect("no panic").push(token);
    }
}
