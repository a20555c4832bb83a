//! A store and a virtual log in memory, which do something only when they are told to, and which outlive the log.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use kera_format::SegmentId;
use kera_log::{
    ChunkReference, DurabilitySink, Location, Log, Observer, Segment, SegmentStore, SinkError, SinkErrorKind,
    StoredSegment, Ticket, made_durable,
};

/// Closed segments on a disk that never fails by itself.
#[derive(Default)]
pub struct FakeStore(Mutex<Store>);

#[derive(Default)]
pub struct Store {
    pub disk: HashMap<SegmentId, (StoredSegment, Vec<u8>)>,
    /// Lost with the process, as the rest below.
    pub queue: VecDeque<Arc<Segment>>,
    pub loads: VecDeque<(SegmentId, Location)>,
    pub closed: HashSet<SegmentId>,
    pub wants: u64,
    next_offset: u64,
}

impl FakeStore {
    pub fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap()
    }

    /// Forgets what a process keeps in memory.
    pub fn kill(&self) {
        let mut store = self.lock();
        store.queue.clear();
        store.loads.clear();
        store.closed.clear();
    }

    /// Writes the oldest closed segment.
    pub fn persist_one(&self, log: &Log) -> bool {
        let mut store = self.lock();
        let Some(segment) = store.queue.pop_front() else { return false };
        assert!(segment.is_settled());
        let padded = segment.as_padded_image(4096);
        assert!(padded.len() % 4096 == 0 && padded.as_ptr().addr() % 4096 == 0);
        let image = segment.as_image().to_vec();
        let at = Location { disk: 0, container: 1, offset: store.next_offset, bytes: image.len() as u64 };
        store.next_offset += padded.len() as u64;
        let (header, progress, producers) = (*segment.header(), segment.progress(), segment.producer_marks());
        let stored = StoredSegment { header, progress, at, producers, lacks_marks: false };
        let before = store.disk.insert(segment.id(), (stored, image));
        assert!(before.is_none(), "{} is written twice", segment.id());
        drop(store);
        log.persisted(segment.id(), at);
        true
    }

    /// Reads the segment that was asked for first, with a byte changed if `corrupt`.
    pub fn load_one(&self, log: &Log, corrupt: bool) -> bool {
        let mut store = self.lock();
        let Some((id, at)) = store.loads.pop_front() else { return false };
        let image = store.disk.get(&id).map(|(stored, image)| {
            assert_eq!(stored.at, at);
            image.clone()
        });
        drop(store);
        let Some(mut image) = image else {
            // Dropped by retention since.
            log.load_failed(id, "released".to_owned());
            return true;
        };
        if corrupt {
            // A byte that a checksum covers: of the first chunk, or of a segment's header.
            let at = if image.len() > 128 && image.len() % 16 == 0 { 128 + 60 } else { 40 };
            image[at] ^= 4;
        }
        match log.allocate_for_load(image.len() as u64) {
            Ok(mut buffer) => {
                buffer.as_mut_slice()[..image.len()].copy_from_slice(&image);
                assert_eq!(log.loaded(id, buffer).is_err(), corrupt, "{id} verifies when it is whole");
                true
            }
            Err(_) => {
                self.lock().loads.push_front((id, at));
                false
            }
        }
    }
}

impl SegmentStore for FakeStore {
    fn closed(&self, segment: Arc<Segment>) {
        let mut store = self.lock();
        assert!(store.closed.insert(segment.id()), "{} is closed twice", segment.id());
        assert!(!store.disk.contains_key(&segment.id()), "{} is on disk already", segment.id());
        store.queue.push_back(segment);
    }
    fn want_space(&self, bytes: u64) {
        self.lock().wants += bytes;
    }
    fn load(&self, id: SegmentId, at: Location) {
        let mut store = self.lock();
        assert!(!store.loads.iter().any(|&(other, _)| other == id), "{id} is asked for twice");
        store.loads.push_back((id, at));
    }
    fn release(&self, id: SegmentId, at: Location) {
        let (stored, _) = self.lock().disk.remove(&id).expect("what is released is on disk");
        assert_eq!(stored.at, at);
    }
}

/// A virtual log whose syncs happen when they are told to.
#[derive(Default)]
pub struct FakeSink(Mutex<Sink>);

#[derive(Default)]
pub struct Sink {
    /// What is synced: survives everything, until its segment is safe.
    pub synced: Vec<(SegmentId, Vec<u8>)>,
    pub pending: VecDeque<(Ticket, ChunkReference)>,
    next: Ticket,
    durable: Ticket,
    pub sick: bool,
}

impl FakeSink {
    pub fn lock(&self) -> MutexGuard<'_, Sink> {
        self.0.lock().unwrap()
    }

    /// Forgets what a process keeps in memory.
    pub fn kill(&self) {
        let mut sink = self.lock();
        let pending = std::mem::take(&mut sink.pending);
        drop(sink);
        drop(pending);
    }

    /// Syncs up to `count` of what waits.
    pub fn sync(&self, count: usize) {
        let mut sink = self.lock();
        let count = count.min(sink.pending.len());
        let batch: Vec<_> = sink.pending.drain(..count).collect();
        let Some(&(last, _)) = batch.last() else { return };
        for (_, reference) in &batch {
            sink.synced.push((reference.segment.id(), reference.chunk().to_vec()));
        }
        drop(sink);
        let references: Vec<ChunkReference> = batch.into_iter().map(|(_, reference)| reference).collect();
        made_durable(&references);
        self.lock().durable = last;
    }
}

impl DurabilitySink for FakeSink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let mut sink = self.lock();
        sink.next += 1;
        let ticket = sink.next;
        sink.pending.push_back((ticket, reference));
        ticket
    }
    fn durable_through(&self) -> Ticket {
        self.lock().durable
    }
    fn wait(&self, ticket: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        self.lock().durable < ticket
    }
    fn healthy(&self) -> Result<(), SinkError> {
        if !self.lock().sick {
            return Ok(());
        }
        Err(SinkError { kind: SinkErrorKind::Full, reason: "full".to_owned(), retry_after_ms: 1 })
    }
    fn segment_safe(&self, id: SegmentId) {
        self.lock().synced.retain(|(segment, _)| *segment != id);
    }
}
