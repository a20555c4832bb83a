//! Large segments that are written through to their containers: power cuts at every step, failing writes and syncs, kills,
//! deletions. After each: everything acknowledged comes back, once, in the order of its lane.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use kera_env::{Clock, Disk, FaultyDisk, ManualClock, MemoryDisk, Random, RealDisk, SeededRandom};
use kera_format::chunk::ChunkTarget;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Durability, LaneId, ProducerId, Record, SegmentId, StreamOptions, StreamletId,
};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{
    Arena, ArenaConfig, Attach, DurabilitySink, Extent, Lane, Log, LogConfig, ReplayExtentError, RestoreError,
    Restored, Segment, WriteThrough,
};
use kera_vlog::{Ran, ReplayReport, VirtualLog};
use tempfile::TempDir;

use crate::support::{NODE, STREAM, STREAMLETS, chunk, config, options, text_of};

/// A node without sockets: arena, log, store and virtual log.
struct Node {
    log: Arc<Log>,
    store: Arc<DiskStore>,
    vlog: Arc<VirtualLog>,
    clock: Arc<ManualClock>,
    report: ReplayReport,
}

/// How nodes of a test are made.
#[derive(Clone, Copy)]
struct Kind {
    /// Lanes that are written through; the stream has four.
    lanes: usize,
    /// The fault that the tests must be able to find: extents are not synced, and say that they are.
    unsynced: bool,
    durability: Durability,
}

const SOME: Kind = Kind { lanes: 2, unsynced: false, durability: Durability::Power };
const ALL: Kind = Kind { lanes: 4, ..SOME };

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

impl Node {
    /// The `epoch`th start, on what the disk and the arena in `folder` have.
    fn start(kind: Kind, disk: Arc<dyn Disk>, folder: &Path, epoch: u32) -> Node {
        let clock = Arc::new(ManualClock::new(1_000_000 * u64::from(epoch) as i64));
        let own = StoreConfig {
            node: NODE,
            container_bytes: 320 << 10,
            through_segment_bytes_min: 64 << 10,
            through_lanes_max: kind.lanes,
            ..StoreConfig::default()
        };
        let random = Arc::new(SeededRandom::new(epoch.into()));
        let as_clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let arena = ArenaConfig { path: folder.join("arena"), bytes: 16 << 20, node: NODE };
        let (arena, attach) = Arena::create_or_attach(arena).expect("arena");
        let disks = vec![Arc::clone(&disk)];
        let (opened, attached) = match attach {
            Attach::Attached { segments, .. } => {
                let in_memory = segments.iter().map(|attached| attached.segment.id()).collect();
                (DiskStore::open_after_kill(own, disks, as_clock.clone(), random.clone(), &in_memory), segments)
            }
            _ => (DiskStore::open(own, disks, as_clock.clone(), random.clone()), Vec::new()),
        };
        let (store, found) = opened.expect("store");
        let log = Log::new(LogConfig::default(), arena);
        log.set_store(store.clone());
        store.attach(&log);
        let vlog = VirtualLog::open(config(), disk, as_clock, random).expect("virtual log");
        log.set_sinks(Arc::new(vec![Arc::clone(&vlog) as Arc<dyn DurabilitySink>]));
        match kind.unsynced {
            false => vlog.set_write_through(store.clone()),
            true => vlog.set_write_through(Arc::new(Liar(store.clone()))),
        }
        log.create_stream(STREAM, StreamOptions { durability: kind.durability, ..options() }).expect("stream");
        log.recover(found.segments, attached);
        let report = vlog.replay_into(&log).expect("replay");
        store.replayed();
        log.finish_recovery(epoch);
        Node { log, store, vlog, clock, report }
    }

    fn lane(&self, streamlet: u32) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).expect("stream");
        let streamlet = stream.streamlet(StreamletId(streamlet)).expect("streamlet");
        Arc::clone(streamlet.lane(LaneId(0)).expect("lane"))
    }

    fn append(&self, streamlet: u32, text: &str) -> u64 {
        self.try_append(streamlet, text).expect("the disk works")
    }

    /// `None` while the disk does not work.
    fn try_append(&self, streamlet: u32, text: &str) -> Option<u64> {
        self.vlog.healthy().ok()?;
        let bytes = chunk(streamlet, text);
        let view = ChunkView::parse(&bytes).expect("chunk");
        let appended = self.lane(streamlet).append(&view, self.clock.now_ms()).expect("appended");
        Some(appended.ticket.expect("not durable yet"))
    }

    /// Lets the store do all that it can do now.
    fn store_away(&self) {
        for _ in 0..1000 {
            if self.store.step() != Step::Again {
                return;
            }
        }
        panic!("the store does not come to rest");
    }

    /// What readers of a lane see, from memory and from disk.
    fn readable(&self, streamlet: u32) -> Vec<String> {
        let lane = self.lane(streamlet);
        let mut cursor = lane.earliest().0;
        let mut texts = Vec::new();
        for _ in 0..100_000 {
            let read = lane.read(cursor, 1 << 20, true).expect("read");
            for data in &read.data {
                texts.extend(kera_format::chunk::Chunks::new(data).map(|chunk| text_of(&chunk.expect("chunk"))));
            }
            if read.at_durable_end && !read.loading {
                return texts;
            }
            if read.loading {
                self.store.step();
            }
            cursor = read.next;
        }
        panic!("lane {streamlet} cannot be read to its end");
    }

    fn all_readable(&self) -> BTreeMap<u32, Vec<String>> {
        (0..STREAMLETS).map(|streamlet| (streamlet, self.readable(streamlet))).collect()
    }

    fn through_bytes(&self) -> u64 {
        self.vlog.stats().through_bytes
    }
}

/// What a kill leaves of memory. A copy of it: chunks that are on their way keep their lanes, and those all the rest.
fn killed(node: Node, arena: &TempDir) -> TempDir {
    let left = folder();
    std::fs::copy(arena.path().join("arena"), left.path().join("arena")).expect("copied");
    drop(node);
    left
}

/// What a loss of power leaves: the disk.
fn restart(kind: Kind, disk: &MemoryDisk, epoch: u32) -> (Node, TempDir) {
    let folder = folder();
    let node = Node::start(kind, Arc::new(disk.clone()), folder.path(), epoch);
    (node, folder)
}

/// Says that extents are synced without doing it.
struct Liar(Arc<DiskStore>);

struct Unsynced(Box<dyn Extent>);

impl WriteThrough for Liar {
    fn begin(&self, segment: &Segment) -> Option<Box<dyn Extent>> {
        self.0.begin(segment).map(|extent| Box::new(Unsynced(extent)) as Box<dyn Extent>)
    }
    fn replay(
        &self,
        id: SegmentId,
        restored: Restored,
        restore: &mut dyn FnMut(&[u8]) -> Result<Restored, RestoreError>,
    ) -> Result<Option<u64>, ReplayExtentError> {
        self.0.replay(id, restored, restore)
    }
    fn gone(&self, id: SegmentId) {
        self.0.gone(id);
    }
}

impl Extent for Unsynced {
    fn write(&mut self, segment: &Segment, to: u32) -> io::Result<()> {
        self.0.write(segment, to)
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn give_up(self: Box<Self>) {
        self.0.give_up();
    }
}

/// What was appended to each lane, and how much of it was acknowledged.
#[derive(Default, Debug)]
struct Sent {
    texts: BTreeMap<u32, Vec<String>>,
    acknowledged: BTreeMap<u32, usize>,
    waiting: Vec<(u64, u32, usize)>,
}

impl Sent {
    fn append(&mut self, node: &Node, random: &SeededRandom) {
        let streamlet = random.below(STREAMLETS.into()) as u32;
        let texts = self.texts.entry(streamlet).or_default();
        let text = format!("{streamlet}/{} {}", texts.len(), "x".repeat(random.below(15_000) as usize));
        let Some(ticket) = node.try_append(streamlet, &text) else { return };
        texts.push(text);
        self.waiting.push((ticket, streamlet, texts.len()));
    }

    fn acknowledge(&mut self, durable: u64) {
        for (_, streamlet, count) in self.waiting.extract_if(.., |(ticket, ..)| *ticket <= durable) {
            self.acknowledged.insert(streamlet, count);
        }
    }

    /// Why what came back is not everything acknowledged, in order, followed by nothing but what was sent after it.
    fn wrong(&self, came_back: &BTreeMap<u32, Vec<String>>) -> Option<String> {
        let none = Vec::new();
        (0..STREAMLETS).find_map(|streamlet| {
            let sent = self.texts.get(&streamlet).unwrap_or(&none);
            let back = came_back.get(&streamlet).unwrap_or(&none);
            let acknowledged = self.acknowledged.get(&streamlet).copied().unwrap_or(0);
            if back.len() < acknowledged {
                return Some(format!("lane {streamlet}: {acknowledged} were acknowledged, {} came back", back.len()));
            }
            let same = back.len() <= sent.len() && back[..] == sent[..back.len()];
            (!same).then(|| format!("lane {streamlet} differs"))
        })
    }
}

/// Appends in bursts, writes and stores in between, until `turns` are done or the disk is off.
fn work(node: &Node, random: &SeededRandom, turns: u64, sent: &mut Sent, off: impl Fn() -> bool) {
    for _ in 0..turns {
        for _ in 0..random.below(8) {
            sent.append(node, random);
        }
        node.vlog.run_once();
        sent.acknowledge(node.vlog.durable_through());
        node.clock.advance_ms(700);
        if random.below(3) == 0 {
            node.store.step();
        }
        if off() {
            return;
        }
    }
}

fn lengths(texts: &BTreeMap<u32, Vec<String>>) -> Vec<Vec<usize>> {
    texts.values().map(|texts| texts.iter().map(String::len).collect()).collect()
}

/// Works on a fresh disk, cuts the power in the `step`th change, starts again: what is wrong then. `None` for the step: no cut,
/// and the number of changes there were.
fn cut(kind: Kind, seed: u64, step: Option<u64>) -> (Option<String>, u64) {
    let disk = MemoryDisk::new();
    let (node, arena) = restart(kind, &disk, 1);
    let opened = disk.steps();
    if let Some(step) = step {
        disk.cut_power_at(step);
    }
    let mut sent = Sent::default();
    work(&node, &SeededRandom::new(seed), 30, &mut sent, || disk.is_off());
    assert!(node.through_bytes() > 0 || step.is_some_and(|step| step < 40), "something is written through");
    let steps = disk.steps() - opened;
    drop((node, arena));
    disk.crash(seed * 10_000 + step.unwrap_or(0));
    let (node, _arena) = restart(kind, &disk, 2);
    let wrong = sent.wrong(&node.all_readable());
    if wrong.is_none() && step.is_some() {
        // It goes on from there, and comes back once more with both: from memory, from disk, from what is on its way.
        for n in 0..6 {
            node.append(n % STREAMLETS, &"after".repeat(2000));
        }
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }));
        let expected = node.all_readable();
        node.clock.advance_ms(5_000);
        for _ in 0..step.unwrap_or(0) % 7 {
            node.store.step();
        }
        drop(node);
        disk.crash(seed + step.unwrap_or(0));
        let (node, _arena) = restart(kind, &disk, 3);
        if node.all_readable() != expected {
            return (Some("it differs after the second cut".to_owned()), steps);
        }
        node.clock.advance_ms(5_000);
        node.store_away();
        assert_eq!(lengths(&node.all_readable()), lengths(&expected), "step {step:?}, once all is stored");
    }
    (wrong, steps)
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_acknowledged() {
    for (seed, kind) in [(1, SOME), (2, ALL), (3, SOME), (4, ALL)] {
        let (wrong, steps) = cut(kind, seed, None);
        assert_eq!(wrong, None, "seed {seed}, no cut");
        for step in 1..=steps {
            let (wrong, _) = cut(kind, seed, Some(step));
            assert_eq!(wrong, None, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn the_test_above_finds_durable_heads_that_move_before_the_extent_is_synced() {
    let kind = Kind { unsynced: true, ..ALL };
    let found = (1..200).any(|step| cut(kind, 2, Some(step)).0.is_some());
    assert!(found, "nobody noticed that extents are not synced");
}

#[test]
fn a_large_segment_is_written_once_and_is_a_segment_of_a_container_when_it_is_closed() {
    let disk = MemoryDisk::new();
    let (node, arena) = restart(ALL, &disk, 1);
    let mut sent = 0;
    for n in 0..40 {
        let text = format!("{n} {}", "y".repeat(8_000));
        node.append(0, &text);
        sent += chunk(0, &text).len() as u64;
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
    }
    let stats = node.vlog.stats();
    assert_eq!((stats.through_bytes, stats.chunk_bytes), (sent, sent));
    // Only the first chunk of each segment is in a block too.
    let segments = node.log.stats().segments_opened;
    assert_eq!(stats.block_bytes, segments * 2 * 4096, "{stats:?}");
    let closed = node.store.status().dirty_segments;
    assert!(closed >= 3, "{closed}");
    node.clock.advance_ms(5_000);
    let steps = disk.steps();
    node.store_away();
    assert_eq!(node.store.status().dirty_segments, 0);
    // Index and sync for each, a hole behind it, and footers: the images are not written again.
    assert!(disk.steps() - steps <= closed * 4, "{} changes for {closed} segments", disk.steps() - steps);
    let before = node.readable(0);
    assert_eq!(before.len(), 40);
    node.log.close_idle(node.clock.now_ms() + 1_000_000, 0);
    node.store.flush_all().expect("flush");
    drop((node, arena));
    disk.crash(9);
    let (node, _arena) = restart(ALL, &disk, 2);
    assert_eq!(node.report.restored, 0, "all of it is in containers");
    assert_eq!(node.readable(0), before);
}

/// An index has room for the last chunks of some fifty producers. There were more since this one was silent.
#[test]
fn after_a_restart_no_producer_of_a_large_segment_is_forgotten_however_many_there_were() {
    let disk = MemoryDisk::new();
    let (node, arena) = restart(ALL, &disk, 1);
    let send = |node: &Node, producer: u64, sequence: u64| {
        let target =
            ChunkTarget { stream: STREAM, producer_id: ProducerId(producer), sequence, ..ChunkTarget::default() };
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(b"one of many"));
        let bytes = builder.seal(&target, Compression::None).expect("sealed");
        node.lane(0).append(&ChunkView::parse(&bytes).expect("chunk"), node.clock.now_ms())
    };
    let first = send(&node, 1, 0).expect("appended").base_ordinal;
    for sequence in 0..5 {
        (2..62).for_each(|producer| assert!(!send(&node, producer, sequence).expect("appended").duplicate));
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }));
    }
    assert!(node.through_bytes() > 0);
    // The next one in the same container has few.
    node.log.close_idle(node.clock.now_ms() + 1, 0);
    node.append(0, &"x".repeat(9_000));
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }));
    node.log.close_idle(node.clock.now_ms() + 1, 0);
    for _ in 0..2 {
        node.clock.advance_ms(5_000);
        node.store_away();
    }
    let (before, status) = (node.readable(0), node.store.status());
    assert_eq!((before.len(), status.dirty_segments, status.disks[0].segments), (302, 0, 2), "{status:?}");
    drop((node, arena));
    disk.crash(3);
    let (node, _arena) = restart(ALL, &disk, 2);
    assert_eq!(node.report.restored, 0, "all of it is in containers");
    let again = send(&node, 1, 0).expect("known");
    assert!(again.duplicate && again.base_ordinal == first, "{again:?}");
    assert!((2..62).all(|producer| send(&node, producer, 4).expect("known").duplicate));
    assert_eq!(node.readable(0), before);
}

/// Bytes that the disk keeps for the containers in a folder, and bytes that are in them.
fn kept_for_containers(folder: &Path) -> (u64, u64) {
    let files = std::fs::read_dir(folder.join("containers")).expect("listed").map(|file| file.expect("a file"));
    let known = files.map(|file| file.metadata().expect("known")).map(|known| (known.blocks() * 512, known.len()));
    known.fold((0, 0), |(kept, bytes), (kept_for_one, bytes_of_one)| (kept + kept_for_one, bytes + bytes_of_one))
}

/// Space that was taken ahead is given back by who sees first that nothing more comes: the start behind a kill, or the node that runs.
#[test]
fn a_container_with_an_extent_that_is_not_finished_keeps_no_space_for_more() {
    let (folder, memory) = (folder(), folder());
    let disk = FaultyDisk::new(Arc::new(RealDisk::open(folder.path()).expect("a disk")));
    let node = Node::start(ALL, Arc::new(disk.clone()), memory.path(), 1);
    node.append(0, &"1".repeat(9_000));
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }) && node.through_bytes() > 0);
    let left = killed(node, &memory);
    let node = Node::start(ALL, Arc::new(disk.clone()), left.path(), 2);
    let (kept, bytes) = kept_for_containers(folder.path());
    assert!(bytes > 0 && kept <= bytes, "{kept} bytes are kept for {bytes}");
    let before = bytes;
    node.append(1, &"2".repeat(9_000));
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }));
    node.append(1, &"3".repeat(9_000));
    disk.fail_write(1);
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }), "it goes into a block");
    // The disk's own writer ends it.
    node.store.step();
    let (kept, bytes) = kept_for_containers(folder.path());
    assert!(bytes > before && kept <= bytes, "{kept} bytes are kept for {bytes}");
    assert_eq!((node.readable(0).len(), node.readable(1).len()), (1, 2));
}

#[test]
fn a_write_or_sync_that_fails_sends_the_rest_to_the_virtual_log() {
    type Fault = fn(&FaultyDisk, u64);
    let faults: [(&str, Fault); 4] = [
        ("write", |disk, nth| disk.fail_write(nth)),
        ("torn write", |disk, nth| disk.tear_write(nth)),
        ("sync", |disk, nth| disk.fail_sync(nth)),
        ("full", |disk, nth| disk.set_space(Some(nth * 20_000))),
    ];
    for (name, fault) in faults {
        for seed in 0..40 {
            let what = format!("{name}, seed {seed}");
            let memory = MemoryDisk::new();
            let disk = FaultyDisk::new(Arc::new(memory.clone()));
            let arena = folder();
            let node = Node::start(SOME, Arc::new(disk.clone()), arena.path(), 1);
            let random = SeededRandom::new(seed);
            let mut sent = Sent::default();
            work(&node, &random, 4, &mut sent, || false);
            fault(&disk, 1 + random.below(6));
            work(&node, &random, 6, &mut sent, || false);
            disk.set_space(None);
            node.clock.advance_ms(1000);
            work(&node, &random, seed % 8, &mut sent, || false);
            while !matches!(node.vlog.run_once(), Ran::Idle) {
                node.clock.advance_ms(1000);
            }
            sent.acknowledge(node.vlog.durable_through());
            assert!(sent.waiting.is_empty(), "{what}");
            assert_eq!(node.all_readable(), sent.texts_of_all(), "{what}");
            drop(node);
            memory.crash(seed);
            let (node, _arena) = restart(SOME, &memory, 2);
            assert_eq!(sent.wrong(&node.all_readable()), None, "{what}");
            node.clock.advance_ms(60_000);
            node.store_away();
            assert_eq!(sent.wrong(&node.all_readable()), None, "{what}, stored");
        }
    }
}

impl Sent {
    fn texts_of_all(&self) -> BTreeMap<u32, Vec<String>> {
        (0..STREAMLETS).map(|lane| (lane, self.texts.get(&lane).cloned().unwrap_or_default())).collect()
    }
}

#[test]
fn after_a_kill_the_arena_has_it_and_extents_are_given_back_once_it_is_stored() {
    for seed in 0..20 {
        let disk = MemoryDisk::new();
        let arena = folder();
        let node = Node::start(ALL, Arc::new(disk.clone()), arena.path(), 1);
        let random = SeededRandom::new(seed);
        let mut sent = Sent::default();
        work(&node, &random, 25, &mut sent, || false);
        drop(node);
        // Killed: what was written without a sync is still there, and so is the arena.
        let node = Node::start(ALL, Arc::new(disk.clone()), arena.path(), 2);
        assert_eq!(node.report.restored, 0, "seed {seed}: the arena has it all");
        work(&node, &random, 10, &mut sent, || false);
        while !matches!(node.vlog.run_once(), Ran::Idle) {}
        assert_eq!(node.all_readable(), sent.texts_of_all(), "seed {seed}");
        drop((node, arena));
        disk.crash(seed);
        let (node, _arena) = restart(ALL, &disk, 3);
        assert_eq!(node.all_readable(), sent.texts_of_all(), "seed {seed}: power cut after the kill");
        node.clock.advance_ms(60_000);
        node.log.close_idle(node.clock.now_ms() + 1_000_000, 0);
        node.store_away();
        node.clock.advance_ms(60_000);
        node.store_away();
        let status = node.store.status();
        let stored: u64 = (0..STREAMLETS).map(|lane| node.lane(lane).stats().bytes).sum();
        assert!(status.disks[0].segment_bytes < stored + 4096 * (status.disks[0].segments + 1), "{status:?} {stored}");
    }
}

#[test]
fn the_space_of_a_stream_that_is_deleted_while_it_is_written_is_given_back() {
    let disk = MemoryDisk::new();
    let (node, _arena) = restart(ALL, &disk, 1);
    for n in 0..30 {
        node.append(n % STREAMLETS, &"z".repeat(9_000));
        if n < 20 {
            node.vlog.run_once();
        }
    }
    node.log.delete_stream(STREAM).expect("deleted");
    while !matches!(node.vlog.run_once(), Ran::Idle) {}
    node.clock.advance_ms(60_000);
    node.store_away();
    let status = node.store.status();
    assert_eq!(status.disks[0].segments, 0, "{status:?}");
    node.store.flush_all().expect("flush");
    assert_eq!(node.store.status().disks[0].containers, 0, "{:?}", node.store.status());
    drop(node);
    disk.crash(1);
    let (node, _arena) = restart(ALL, &disk, 2);
    assert!(node.store.status().disks[0].containers <= 4);
}

#[test]
fn a_page_that_a_failed_write_has_damaged_takes_nothing_acknowledged_with_it() {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::new(Arc::new(memory.clone()));
    let arena = folder();
    let node = Node::start(ALL, Arc::new(disk.clone()), arena.path(), 1);
    for n in 0..3 {
        node.append(0, &n.to_string().repeat(3_000));
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { .. }));
    }
    node.append(0, &"3".repeat(3_000));
    disk.fail_write(1);
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }), "it goes into a block");
    node.append(0, &"4".repeat(3_000));
    assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
    let expected = node.readable(0);
    assert_eq!(expected.len(), 5);
    drop((node, arena));
    memory.crash(1);
    // Header of the container, marker, index: the image starts at page 4. The third chunk ends in its third page.
    let name = memory.list("containers").expect("list").pop().expect("a container");
    memory.flip_bit(&format!("containers/{name}"), 4096 * 6 + 100, 1).expect("flip");
    let (node, _arena) = restart(ALL, &memory, 2);
    assert_eq!(node.readable(0), expected);
}

/// Containers with large segments that are closed, as a process that was killed leaves them; the virtual log's files are not needed. What is in lane 0.
fn closed_large_segments() -> (Vec<(String, Vec<u8>)>, Vec<String>) {
    let whole = MemoryDisk::new();
    let (node, arena) = restart(ALL, &whole, 1);
    for n in 0..24 {
        node.append(0, &format!("{n} {}", "y".repeat(8_000)));
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
    }
    node.clock.advance_ms(5_000);
    node.store_away();
    node.log.close_idle(node.clock.now_ms() + 1_000_000, 0);
    node.store_away();
    let before = node.readable(0);
    assert_eq!(before.len(), 24);
    drop((node, arena));
    let names = whole.list("containers").expect("list").into_iter().map(|name| format!("containers/{name}"));
    (names.map(|path| (path.clone(), whole.read_all(&path, 64 << 20).expect("read"))).collect(), before)
}

/// Starts on these containers, with a bit of one of them changed at each of some places.
fn start_on_damaged(containers: &[(String, Vec<u8>)], path: &str, places: &[usize]) -> (Node, TempDir) {
    let disk = MemoryDisk::new();
    disk.create_dir_all("containers").expect("made");
    containers.iter().for_each(|(path, bytes)| disk.replace(path, bytes).expect("written"));
    places.iter().for_each(|place| disk.flip_bit(path, *place as u64, (place % 8) as u8).expect("flip"));
    restart(ALL, &disk, 2)
}

/// What tells of large segments, in a container that was being filled when the process was killed, changed in one place each.
#[test]
fn no_byte_of_a_marker_or_an_index_is_needed_for_a_large_segment_that_is_closed() {
    let (containers, before) = closed_large_segments();
    let (mut markers, mut indexes) = (0, 0);
    for (path, bytes) in containers.iter().filter(|(path, _)| path.ends_with(".kera")) {
        for at in (0..bytes.len()).step_by(4096) {
            let places = match &bytes[at..at + 4] {
                b"KCON" => 0..64,
                b"KCEX" => 0..64,
                b"KCBA" => 0..64 + 144 + 32,
                _ => continue,
            };
            markers += usize::from(bytes[at..].starts_with(b"KCEX"));
            indexes += usize::from(bytes[at..].starts_with(b"KCBA"));
            for place in places.step_by(3) {
                let (node, _arena) = start_on_damaged(&containers, path, &[at + place]);
                let found = node.readable(0);
                assert!(found == before, "{path} {at} {place}: {} of {}", found.len(), before.len());
            }
        }
    }
    assert!(markers >= 2 && indexes >= 2, "{markers} markers and {indexes} indexes");
}

/// What cannot be read of a large segment is damaged, to be mended from copies: nobody takes it for a segment that was never finished.
#[test]
fn a_large_segment_that_is_closed_stays_one_whatever_its_image_has_become() {
    let (containers, before) = closed_large_segments();
    let found = |path: &str, places: &[usize]| {
        let (node, _arena) = start_on_damaged(&containers, path, places);
        node.clock.advance_ms(60_000);
        node.store_away();
        (node.lane(0).stats().next_ordinal, node.store.status().disks[0].segments)
    };
    let (path, bytes) = &containers[0];
    let whole = found(path, &[]);
    assert_eq!(whole.0, before.len() as u64);
    let indexes = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"KCBA"));
    let mut images = 0;
    for index in indexes {
        // Two pages behind the index. Its header and its progress, which the index has as well.
        let image = index + 2 * 4096;
        for place in 0..128 {
            assert_eq!(found(path, &[image + place]), whole, "{image} {place}");
        }
        // The index, and a chunk that nobody has looked at.
        assert_eq!(found(path, &[index + 70, image + 5_000]), whole, "{index}");
        images += 1;
    }
    assert!(images >= 2, "{images} images");
}

fn is_within(few: &[String], many: &[String]) -> bool {
    let mut rest = many.iter();
    few.iter().all(|one| rest.any(|other| other == one))
}

#[test]
fn a_stream_that_turns_to_durability_process_and_back_keeps_what_was_acknowledged_with_power() {
    let (mut cut_off, mut kept) = (0, 0);
    for (seed, kind) in [(1, ALL), (2, ALL), (3, SOME)] {
        for step in 1..60 {
            let memory = MemoryDisk::new();
            let (node, arena) = restart(kind, &memory, 1);
            let random = SeededRandom::new(seed);
            let (mut sent, mut acknowledged, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            for (turn, durability) in
                [Durability::Power, Durability::Process, Durability::Power].into_iter().enumerate()
            {
                // The segment that is being written ends here, with chunks of it on their way.
                node.log.alter_stream(STREAM, StreamOptions { durability, ..options() }).expect("altered");
                if turn == 1 {
                    memory.cut_power_at(step);
                }
                for n in 0..8 {
                    let text = format!("{turn}/{n} {}", "x".repeat(random.below(15_000) as usize));
                    if durability == Durability::Power && node.vlog.healthy().is_err() {
                        continue;
                    }
                    let bytes = chunk(0, &text);
                    let view = ChunkView::parse(&bytes).expect("chunk");
                    let appended = node.lane(0).append(&view, node.clock.now_ms()).expect("appended");
                    assert_eq!(appended.ticket.is_some(), durability == Durability::Power, "{turn}/{n}");
                    waiting.extend(appended.ticket.map(|ticket| (ticket, text.clone())));
                    sent.push(text);
                    if n % 3 == 2 {
                        node.vlog.run_once();
                        node.clock.advance_ms(700);
                        node.store.step();
                    }
                }
            }
            while matches!(node.vlog.run_once(), Ran::Wrote { .. }) {}
            let durable = node.vlog.durable_through();
            acknowledged.extend(waiting.into_iter().filter(|(ticket, _)| *ticket <= durable).map(|(_, text)| text));
            (cut_off, kept) = (cut_off + u32::from(memory.is_off()), kept + acknowledged.len());
            drop((node, arena));
            memory.crash(seed * 1000 + step);
            let (node, _arena) = restart(kind, &memory, 2);
            let back = node.readable(0);
            let what = format!("seed {seed}, step {step}");
            assert!(is_within(&back, &sent), "{what}: in their order, none twice");
            assert!(
                is_within(&acknowledged, &back),
                "{what}: {} acknowledged, {} back",
                acknowledged.len(),
                back.len()
            );
        }
    }
    assert!(cut_off > 0 && kept > 0, "the power went {cut_off} times, {kept} chunks were acknowledged");
}

/// Everything that was appended is durable and readable; then the power goes with all that was not synced.
fn lose_what_is_not_synced(node: Node, arena: TempDir, memory: &MemoryDisk, seed: u64) {
    let mut expected = node.all_readable();
    while node.vlog.run_once() != Ran::Idle {}
    for (streamlet, texts) in &mut expected {
        // What readers saw at the start, and what was acknowledged since.
        let again = node.readable(*streamlet);
        assert!(again.starts_with(texts), "lane {streamlet}");
        *texts = again;
    }
    drop((node, arena));
    memory.crash(seed);
    let (node, _arena) = restart(ALL, memory, 9);
    assert_eq!(lengths(&node.all_readable()), lengths(&expected), "seed {seed}");
    assert!(node.all_readable() == expected, "seed {seed}");
}

#[test]
fn what_a_killed_process_had_written_to_an_extent_and_not_synced_is_synced_before_it_counts() {
    for seed in 0..12 {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::new(Arc::new(memory.clone()));
        let arena = folder();
        let node = Node::start(ALL, Arc::new(disk.clone()), arena.path(), 1);
        node.append(0, &"1".repeat(3_000));
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
        // Written, and killed before the sync came back; nothing else of the commit has got anywhere.
        node.append(0, &"2".repeat(3_000));
        disk.fail_sync(1);
        disk.fail_write(2);
        assert!(matches!(node.vlog.run_once(), Ran::Stuck { .. }));
        let arena = killed(node, &arena);
        let node = Node::start(ALL, Arc::new(memory.clone()), arena.path(), 2);
        assert_eq!(node.readable(0).len(), 2, "what is in the extent counts");
        node.append(0, &"3".repeat(3_000));
        lose_what_is_not_synced(node, arena, &memory, seed);
    }
}

#[test]
fn an_index_that_a_killed_process_had_written_and_not_synced_is_synced_before_its_segment_counts_as_stored() {
    for seed in 0..12 {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::new(Arc::new(memory.clone()));
        let arena = folder();
        let kind = Kind { lanes: 1, ..ALL };
        let node = Node::start(kind, Arc::new(disk.clone()), arena.path(), 1);
        let append = |streamlet: u32, count: usize| {
            for _ in 0..count {
                node.append(streamlet, &streamlet.to_string().repeat(8_000));
                assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
            }
        };
        // The trace of the first segment is in a file of the virtual log that nothing else will need.
        append(0, 1);
        append(1, 20);
        node.clock.advance_ms(60_000);
        node.store_away();
        let stored = node.store.status().disks[0].counters.written_segments;
        append(0, 8);
        append(1, 20);
        // Killed in between the index and its sync.
        disk.fail_sync(1);
        disk.fail_write(2);
        node.clock.advance_ms(60_000);
        node.store.step();
        assert_eq!(node.store.status().disks[0].counters.written_segments, stored);
        let arena = killed(node, &arena);
        let node = Node::start(kind, Arc::new(memory.clone()), arena.path(), 2);
        append_after(&node);
        lose_what_is_not_synced(node, arena, &memory, seed);
    }
}

fn append_after(node: &Node) {
    for n in 0..4 {
        node.append(n, &"after".repeat(1_000));
    }
}

#[test]
fn of_two_extents_of_a_segment_the_one_counts_that_was_begun_anew() {
    for seed in 0..12 {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::new(Arc::new(memory.clone()));
        let arena = folder();
        let node = Node::start(ALL, Arc::new(disk.clone()), arena.path(), 1);
        node.append(1, "so that the virtual log has a file");
        assert!(matches!(node.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
        // Killed with the extent synced, and the trace of it nowhere: in front of the block are the container's first page and the extent.
        node.append(0, &"1".repeat(3_000));
        disk.fail_write(3);
        assert!(matches!(node.vlog.run_once(), Ran::Stuck { .. }));
        let arena = killed(node, &arena);
        let node = Node::start(ALL, Arc::new(memory.clone()), arena.path(), 2);
        node.append(0, &"2".repeat(3_000));
        // The power goes before the space of the first extent is given back.
        lose_what_is_not_synced(node, arena, &memory, seed);
    }
}

impl Node {
    fn append_to(&self, streamlet: u32, text: &str) -> Option<u64> {
        let bytes = chunk(streamlet, text);
        let view = ChunkView::parse(&bytes).expect("chunk");
        self.lane(streamlet).append(&view, self.clock.now_ms()).expect("appended").ticket
    }
}

/// A kill between the change of a stream's durability and the end of its open groups.
#[test]
fn a_segment_that_is_not_in_the_virtual_log_from_its_first_chunk_on_is_not_gone_on_with() {
    let process = Kind { durability: Durability::Process, ..ALL };
    for before in [vec![process], vec![ALL, process]] {
        for seed in 0..4 {
            let (memory, arena) = (MemoryDisk::new(), folder());
            let mut epoch = 0;
            let mut start = |kind: Kind| {
                epoch += 1;
                Node::start(kind, Arc::new(memory.clone()), arena.path(), epoch)
            };
            for (n, kind) in before.iter().enumerate() {
                let node = start(*kind);
                assert_eq!(node.append_to(0, &format!("before {n}")).is_some(), kind.durability == Durability::Power);
                while node.vlog.run_once() != Ran::Idle {}
                assert_eq!(node.readable(0).len(), n + 1);
            }
            let node = start(ALL);
            let ticket = node.append_to(0, "acknowledged").expect("a ticket");
            while node.vlog.run_once() != Ran::Idle {}
            assert!(ticket <= node.vlog.durable_through());
            assert_eq!(node.readable(0).len(), before.len() + 1);
            drop(node);
            std::fs::remove_file(arena.path().join("arena")).expect("removed");
            memory.crash(seed);
            let node = start(ALL);
            let back = node.readable(0);
            assert!(back.contains(&"acknowledged".to_owned()), "seed {seed}: {back:?}");
            assert!(before.len() == 1 || back[0] == "before 0", "seed {seed}: {back:?}");
        }
    }
}
