//! What tests of this folder share: the state of a cluster, without a log of entries behind it, and a log with something that is not acknowledged.

use std::sync::Arc;

use kera_coordinator::cluster::{ClusterState, Join};
use kera_format::chunk::ChunkTarget;
use kera_format::cluster::{ClusterEntry, Doors, Roles};
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Durability, LaneId, Record, SegmentId, StreamId, StreamOptions, StreamletId,
    level,
};
use kera_log::{Arena, ArenaConfig, ChunkReference, DurabilitySink, Log, LogConfig, Observer, SinkError, Ticket};

/// So many nodes, from number 1 on, all of them live in that epoch.
pub(super) fn joined(nodes: u32, epoch: u32) -> ClusterState {
    let mut state = ClusterState::default();
    for node in 1..=nodes {
        let join = Join {
            node,
            uuid: [node as u8; 16],
            roles: Roles::ALL,
            rack: String::new(),
            doors: Doors::default(),
            settings: Vec::new(),
            epoch_min: epoch,
            has_all: true,
            levels: (level::FIRST, level::NEWEST),
        };
        let entries = if node == 1 { state.plan_found([9; 16], &join, 0) } else { state.plan_join(&join, 0) };
        apply(&mut state, &entries.expect("a node"));
    }
    state
}

pub(super) fn apply(state: &mut ClusterState, entries: &[ClusterEntry]) {
    entries.iter().for_each(|entry| state.apply(entry).expect("allowed"));
}

/// Copies that are never made.
struct Never;

impl DurabilitySink for Never {
    fn appended(&self, _: ChunkReference) -> Ticket {
        1
    }
    fn durable_through(&self) -> Ticket {
        0
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        Ok(())
    }
    fn segment_safe(&self, _: SegmentId) {}
}

/// A log with three streamlets of stream 1, of which the second has a record that is never acknowledged.
pub(super) fn with_unacknowledged() -> (Arc<Log>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let config = ArenaConfig { path: dir.path().join("unit.arena"), bytes: 8 << 20, node: [3; 16] };
    let (arena, _) = Arena::create_or_attach(config).expect("an arena");
    let log = Log::new(LogConfig::default(), arena);
    log.set_sinks(Arc::new(vec![Arc::new(Never) as Arc<dyn DurabilitySink>]));
    let options = StreamOptions { streamlets: 3, durability: Durability::Power, ..StreamOptions::default() };
    let stream = log.create_stream(StreamId(1), options).expect("a stream");
    let target = ChunkTarget { stream: StreamId(1), streamlet: StreamletId(1), ..ChunkTarget::default() };
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(b"under way"));
    let chunk = builder.seal(&target, Compression::None).expect("a chunk");
    let lane = stream.streamlet(StreamletId(1)).and_then(|place| place.lane(LaneId(0))).expect("a lane");
    lane.append(&ChunkView::parse(&chunk).expect("a chunk"), 1).expect("appended");
    (log, dir)
}
