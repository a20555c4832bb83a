//! A log made of a map, and what the tests do with it: disks that forget, fail and fill up, and the real one.

mod crash;
mod faults;
mod memory;
mod real;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_env::{AlignedBuffer, Disk, ManualClock, MemoryDisk, SeededRandom};
use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP};
use kera_format::container::{pages, verify_image};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{
    BrokerPart, ChunkBuilder, Compression, GroupId, LaneId, ProducerEpoch, ProducerId, Record, SegmentId, SegmentIndex,
    StreamId, StreamletId,
};
use parking_lot::Mutex;

use super::core::Core;
use super::host::{Host, Image, Memory};
use super::{Step, StoreConfig, StoreError, StoreRecovery};
use crate::producers::ProducerMark;
use crate::storage::Location;

pub(super) const NODE: [u8; 16] = *b"the node of test";

/// Memory that counts itself.
struct Charged {
    bytes: AlignedBuffer,
    block_bytes: u64,
    used: Arc<AtomicU64>,
}

impl Charged {
    fn new(bytes: u64, used: &Arc<AtomicU64>) -> Charged {
        let block_bytes = bytes.next_power_of_two().max(4096);
        used.fetch_add(block_bytes, Ordering::Relaxed);
        Charged { bytes: AlignedBuffer::zeroed(pages(bytes) as usize), block_bytes, used: Arc::clone(used) }
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.used.fetch_sub(self.block_bytes, Ordering::Relaxed);
    }
}

/// A closed segment.
pub(super) struct FakeSegment {
    memory: Charged,
    header: SegmentHeader,
    progress: SegmentProgress,
    was_read: AtomicBool,
}

impl FakeSegment {
    pub(super) fn image(&self) -> &[u8] {
        &self.memory.bytes[..self.progress.head as usize]
    }

    pub(super) fn set_read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
    }
}

impl Image for FakeSegment {
    fn id(&self) -> SegmentId {
        self.header.id
    }
    fn header(&self) -> SegmentHeader {
        self.header
    }
    fn progress(&self) -> SegmentProgress {
        self.progress
    }
    fn padded(&self) -> &[u8] {
        &self.memory.bytes
    }
    fn block_bytes(&self) -> u64 {
        self.memory.block_bytes
    }
    fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }
    fn marks(&self) -> Vec<ProducerMark> {
        vec![mark_of(self.header.id)]
    }
}

pub(super) fn mark_of(id: SegmentId) -> ProducerMark {
    ProducerMark {
        producer_id: ProducerId(77),
        producer_epoch: ProducerEpoch(3),
        sequence: id.index.0.into(),
        base_ordinal: 5,
        position: 128,
    }
}

pub(super) struct FakeBuffer(Charged);

impl Deref for FakeBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}
impl DerefMut for FakeBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes
    }
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) memory: Option<Arc<FakeSegment>>,
    pub(super) at: Option<Location>,
    pub(super) is_loading: bool,
    pub(super) failed: Option<String>,
}

/// Segments by name: the whole log.
#[derive(Default)]
pub(super) struct FakeLog {
    pub(super) segments: Mutex<BTreeMap<SegmentId, Known>>,
    used: Arc<AtomicU64>,
    pub(super) bytes: AtomicU64,
    pub(super) close_coldest_calls: AtomicU64,
}

impl Host for Arc<FakeLog> {
    type Image = FakeSegment;
    type Buffer = FakeBuffer;

    fn memory(&self) -> Memory {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let free_bytes = bytes.saturating_sub(self.used.load(Ordering::Relaxed));
        let (largest_free_bytes, load_free_bytes) = (free_bytes, free_bytes);
        Memory { bytes, free_bytes, load_free_bytes, largest_free_bytes, load_bytes: bytes / 8 }
    }
    fn has_stream(&self, _: kera_format::StreamId) -> bool {
        true
    }
    fn segment(&self, id: SegmentId) -> Option<Arc<FakeSegment>> {
        self.segments.lock().get(&id)?.memory.clone()
    }
    fn has_whole(&self, id: SegmentId) -> bool {
        self.segment(id).is_some()
    }
    fn forget_restored(&self, id: SegmentId) {
        self.segments.lock().remove(&id);
    }
    fn persisted(&self, id: SegmentId, at: Location) {
        if let Some(known) = self.segments.lock().get_mut(&id) {
            assert_eq!(known.at, None, "{id} is persisted twice");
            known.at = Some(at);
        }
    }
    fn evict(&self, id: SegmentId) -> bool {
        let mut segments = self.segments.lock();
        match segments.get_mut(&id) {
            Some(known) if known.at.is_some() => known.memory.take().is_some(),
            _ => false,
        }
    }
    fn allocate_for_load(&self, bytes: u64) -> Option<FakeBuffer> {
        (self.memory().free_bytes >= bytes.next_power_of_two()).then(|| FakeBuffer(Charged::new(bytes, &self.used)))
    }
    fn loaded(&self, id: SegmentId, buffer: FakeBuffer) -> Result<(), String> {
        let mut segments = self.segments.lock();
        let Some(known) = segments.get_mut(&id) else { return Ok(()) };
        assert!(known.is_loading, "{id} was not asked for");
        known.is_loading = false;
        match verify_image(&buffer) {
            Ok((header, progress)) if header.id == id => {
                known.memory = Some(Arc::new(FakeSegment {
                    memory: buffer.0,
                    header,
                    progress,
                    was_read: AtomicBool::new(false),
                }));
                Ok(())
            }
            Ok((header, _)) => {
                known.failed = Some(format!("it is {}", header.id));
                Err(format!("it is {}", header.id))
            }
            Err(error) => {
                known.failed = Some(error.to_string());
                Err(error.to_string())
            }
        }
    }
    fn load_failed(&self, id: SegmentId, error: String) {
        if let Some(known) = self.segments.lock().get_mut(&id) {
            assert!(known.is_loading, "{id} was not asked for");
            known.is_loading = false;
            known.failed = Some(error);
        }
    }
    fn read_ahead(&self, id: SegmentId, count: usize) -> Vec<(SegmentId, Location)> {
        let mut segments = self.segments.lock();
        let mut next = Vec::new();
        for (other, known) in segments.range_mut(id..) {
            let same_lane = (other.stream, other.streamlet, other.lane) == (id.stream, id.streamlet, id.lane);
            if next.len() >= count || !same_lane {
                break;
            }
            if *other != id && known.memory.is_none() && !known.is_loading {
                let Some(at) = known.at else { break };
                known.is_loading = true;
                next.push((*other, at));
            }
        }
        next
    }
    fn close_coldest(&self) -> u64 {
        self.close_coldest_calls.fetch_add(1, Ordering::Relaxed);
        0
    }
}

pub(super) fn id(lane: u32, index: u32) -> SegmentId {
    SegmentId {
        stream: StreamId(1),
        streamlet: StreamletId(0),
        lane: LaneId(lane),
        group: GroupId::new(1, lane + 1),
        index: SegmentIndex(index),
    }
}

/// Contents of a segment, always the same for the same name and size.
fn contents(id: SegmentId, bytes: usize) -> (Vec<u8>, SegmentHeader, SegmentProgress) {
    let header = SegmentHeader { id, capacity_bytes: 16 << 20, base_ordinal: 5, created_ms: 5, flags: 0 };
    let mut image = vec![0; SEGMENT_HEADER_BYTES];
    header.write(&mut image);
    let mut state = u64::from(id.lane.0) << 32 | u64::from(id.index.0) | 1;
    let mut ordinal = 5;
    while image.len() < bytes {
        let value_bytes = (bytes - image.len()).min(20_000).saturating_sub(128).max(8);
        let value: Vec<u8> = (0..value_bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let mut builder = ChunkBuilder::default();
        builder.push(&Record { value: Some(&value), ..Record::default() });
        let target = ChunkTarget { stream: id.stream, streamlet: id.streamlet, ..ChunkTarget::default() };
        let mut chunk = builder.seal(&target, Compression::None).unwrap();
        let broker = BrokerPart {
            group: id.group,
            segment: id.index,
            base_ordinal: ordinal,
            append_time_ms: 6,
            lane: id.lane,
            position: image.len() as u32,
        };
        broker.stamp(&mut chunk);
        image.extend_from_slice(&chunk);
        ordinal += 1;
    }
    let head = image.len() as u64;
    // Every other lane's segments are the last of their groups.
    let state = if id.lane.0 % 2 == 1 { SegmentState::ClosedGroup } else { SegmentState::Closed };
    let progress = SegmentProgress {
        head,
        durable_head: head,
        next_ordinal: ordinal,
        state,
        chunk_count: (ordinal - 5) as u32,
        first_append_ms: 6,
        last_append_ms: 6,
        max_timestamp_ms: NO_TIMESTAMP,
    };
    progress.write(&mut image);
    (image, header, progress)
}

/// A store over a log of the tests, driven by hand.
pub(super) struct Bench {
    pub(super) core: Arc<Core<Arc<FakeLog>>>,
    pub(super) log: Arc<FakeLog>,
    pub(super) clock: Arc<ManualClock>,
    /// Bytes of each segment that was ever closed.
    pub(super) sizes: BTreeMap<SegmentId, usize>,
}

pub(super) fn config() -> StoreConfig {
    StoreConfig {
        node: NODE,
        container_bytes: 256 << 10,
        batch_bytes: 64 << 10,
        write_delay_ms: 0,
        free_percent_min: 0,
        dirty_percent_max: 100,
        release_delay_ms: 0,
        ..StoreConfig::default()
    }
}

pub(super) fn memory_disks(count: usize) -> Vec<MemoryDisk> {
    (0..count).map(|_| MemoryDisk::new()).collect()
}

pub(super) fn as_disks<D: Disk + Clone + 'static>(disks: &[D]) -> Vec<Arc<dyn Disk>> {
    disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect()
}

impl Bench {
    pub(super) fn open(config: StoreConfig, disks: Vec<Arc<dyn Disk>>) -> Result<(Bench, StoreRecovery), StoreError> {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let (core, recovery) = Core::open(config, disks, clock.clone(), Arc::new(SeededRandom::new(1)), None)?;
        let log = Arc::new(FakeLog::default());
        log.bytes.store(1 << 30, Ordering::Relaxed);
        for segment in &recovery.segments {
            let known = Known { at: Some(segment.at), ..Known::default() };
            assert!(log.segments.lock().insert(segment.header.id, known).is_none(), "found twice");
        }
        assert!(core.attach(Arc::clone(&log)));
        Ok((Bench { core: Arc::new(core), log, clock, sizes: BTreeMap::new() }, recovery))
    }

    pub(super) fn fresh(disks: Vec<Arc<dyn Disk>>) -> Bench {
        let (bench, recovery) = Bench::open(config(), disks).unwrap();
        assert!(recovery.segments.is_empty() && recovery.problems.is_empty());
        bench
    }

    /// Puts a closed segment of about so many bytes into the log and hands it to the store.
    pub(super) fn close(&mut self, id: SegmentId, bytes: usize) {
        let segment = self.put(id, bytes);
        self.core.closed(segment);
    }

    /// Puts a closed segment of about so many bytes into the log.
    pub(super) fn put(&mut self, id: SegmentId, bytes: usize) -> Arc<FakeSegment> {
        let (contents, header, progress) = contents(id, bytes);
        let mut memory = Charged::new(contents.len() as u64, &self.log.used);
        memory.bytes[..contents.len()].copy_from_slice(&contents);
        let segment = Arc::new(FakeSegment { memory, header, progress, was_read: AtomicBool::new(false) });
        let known = Known { memory: Some(Arc::clone(&segment)), ..Known::default() };
        self.log.segments.lock().insert(id, known);
        self.sizes.insert(id, bytes);
        segment
    }

    /// Steps until there is nothing to do.
    pub(super) fn settle(&self) {
        for _ in 0..10_000 {
            if self.core.step() != Step::Again {
                return;
            }
        }
        panic!("the store does not come to rest: {:?}", self.core.status());
    }

    pub(super) fn location(&self, id: SegmentId) -> Option<Location> {
        self.log.segments.lock().get(&id)?.at
    }

    pub(super) fn is_in_memory(&self, id: SegmentId) -> bool {
        self.log.segments.lock().get(&id).is_some_and(|known| known.memory.is_some())
    }

    pub(super) fn persisted(&self) -> Vec<SegmentId> {
        self.log.segments.lock().iter().filter(|(_, known)| known.at.is_some()).map(|(id, _)| *id).collect()
    }

    /// Drops a stored segment from the log.
    pub(super) fn release(&self, id: SegmentId) {
        let known = self.log.segments.lock().remove(&id);
        if let Some(at) = known.and_then(|known| known.at) {
            self.core.release(id, at);
        }
    }

    /// Asks for a segment as a reader does.
    pub(super) fn demand(&self, id: SegmentId) {
        let at = {
            let mut segments = self.log.segments.lock();
            let known = segments.get_mut(&id).unwrap();
            if known.memory.is_some() || known.is_loading {
                return;
            }
            known.is_loading = true;
            known.failed = None;
            known.at.unwrap()
        };
        self.core.load(id, at);
    }

    /// Loads a segment and compares it with what was closed under its name.
    pub(super) fn check(&self, id: SegmentId, bytes: usize) {
        self.demand(id);
        self.settle();
        let segments = self.log.segments.lock();
        let known = &segments[&id];
        assert_eq!(known.failed, None, "{id}");
        assert!(known.memory.as_ref().unwrap().image() == contents(id, bytes).0, "{id} has other bytes");
    }

    /// Takes everything out of memory that is on disk.
    pub(super) fn evict_all(&self) {
        for id in self.persisted() {
            self.log.evict(id);
        }
    }
}
