//! The log and its store together, with their threads, on a real disk: more data than memory, graceful stops, kills and
//! reboots.

mod mending;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use kera_env::{Clock, Disk, ManualClock, MemoryDisk, Random, RealDisk, SeededRandom, SystemClock};
use kera_format::arena::BlockSize;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Cursor, LaneId, ProducerEpoch, ProducerId, Record, StreamId, StreamOptions,
    StreamletId,
};
use kera_log::store::{DiskStore, StoreConfig, StoreThreads};
use kera_log::{AppendError, Arena, ArenaConfig, Attach, Lane, Log, LogConfig, Observer};

const NODE: [u8; 16] = *b"the node of test";
const STREAM: StreamId = StreamId(1);
const LANES: u32 = 3;
const ARENA_BYTES: u64 = 4 << 20;

struct Node {
    log: Arc<Log>,
    arena: Arc<Arena>,
    store: Arc<DiskStore>,
    threads: Option<StoreThreads>,
    next_sequence: [u64; LANES as usize],
}

/// Wakes whoever waits for a lane or for space.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    condvar: Condvar,
}

impl Observer for Bell {
    fn advanced(&self, _: u64) {
        *self.rung.lock().unwrap() = true;
        self.condvar.notify_all();
    }
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.condvar.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Opens a node as a process does.
fn open(dir: &Path, epoch: u32) -> Node {
    let disk = |name| Arc::new(RealDisk::open(&dir.join(name)).unwrap()) as Arc<dyn Disk>;
    let mut node = open_on(vec![disk("disk-a"), disk("disk-b")], dir, epoch, Arc::new(SystemClock::new()));
    node.threads = Some(node.store.start().unwrap());
    assert_eq!(node.log.finish_recovery(epoch), Vec::<String>::new());
    node
}

/// Opens a node up to where its threads start and recovery is finished.
fn open_on(disks: Vec<Arc<dyn Disk>>, dir: &Path, epoch: u32, clock: Arc<dyn Clock>) -> Node {
    let config = StoreConfig {
        node: NODE,
        container_bytes: 4 << 20,
        batch_bytes: 1 << 20,
        write_delay_ms: 10,
        release_delay_ms: 0,
        ..StoreConfig::default()
    };
    let random = Arc::new(SeededRandom::new(epoch.into()));
    let (store, recovery) = DiskStore::open(config, disks, clock, random).unwrap();
    assert_eq!(recovery.problems, Vec::<String>::new());
    let path = dir.join("arena");
    let (arena, attach) =
        Arena::create_or_attach_with(ArenaConfig { path, bytes: ARENA_BYTES, node: NODE }, BlockSize::Roomy).unwrap();
    let attached = match attach {
        Attach::Created => Vec::new(),
        Attach::Attached { segments, set_aside, .. } => {
            assert!(set_aside.is_empty(), "{set_aside:?}");
            segments
        }
    };
    let log = Log::new(LogConfig { segment_arena_share: 16, ..LogConfig::default() }, Arc::clone(&arena));
    log.set_store(store.clone());
    store.attach(&log);
    let options = StreamOptions {
        lanes: LANES,
        segments_per_group: 4,
        segment_bytes_max: 256 << 10,
        retention_ms: None,
        ..StreamOptions::default()
    };
    log.create_stream(STREAM, options).unwrap();
    let report = log.recover(recovery.segments, attached);
    assert_eq!(report.problems, Vec::<String>::new());
    Node { log, arena, store, threads: None, next_sequence: [0; LANES as usize] }
}

impl Node {
    fn lane(&self, lane: u32) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).unwrap();
        Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(lane)).unwrap())
    }

    /// Appends a chunk, waiting for space as a session of the broker does.
    fn append(&mut self, lane: u32) {
        let sequence = self.next_sequence[lane as usize];
        let chunk = chunk(lane, sequence);
        let view = ChunkView::parse(&chunk).unwrap();
        let bell = Arc::new(Bell::default());
        let observer: Arc<dyn Observer> = bell.clone();
        loop {
            match self.lane(lane).append(&view, 1_000) {
                Ok(appended) => {
                    assert!(!appended.duplicate);
                    break;
                }
                Err(AppendError::ArenaFull(_)) if self.threads.is_none() => {
                    self.log.close_coldest();
                    self.store.step();
                }
                Err(AppendError::ArenaFull(full)) => {
                    if self.log.wait_for_space(full.seen, &observer, 0) {
                        bell.wait();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.next_sequence[lane as usize] += 1;
    }

    /// Reads a lane from its start and demands chunk after chunk what [`Node::append`] wrote. Returns how many there are.
    fn check(&self, lane: u32) -> u64 {
        let (of_lane, bell) = (self.lane(lane), Arc::new(Bell::default()));
        let observer: Arc<dyn Observer> = bell.clone();
        let (mut cursor, mut sequence) = (Cursor::default(), 0);
        loop {
            let outcome = of_lane.read(cursor, 400_000, true).unwrap();
            for data in &outcome.data {
                for found in Chunks::new(data) {
                    let found = found.unwrap();
                    found.verify().unwrap();
                    // All but the broker's part is as it was sent.
                    let sent = chunk(lane, sequence);
                    assert!(found.as_bytes()[40..] == sent[40..], "chunk {sequence} of lane {lane}");
                    sequence += 1;
                }
            }
            if outcome.at_durable_end {
                return sequence;
            }
            cursor = outcome.next;
            if self.threads.is_none() {
                self.store.step();
            } else if outcome.loading && of_lane.wait(outcome.version, &observer, 0) {
                bell.wait();
            }
        }
    }

    /// Ends as on a graceful stop.
    fn stop(mut self) {
        self.log.close_all();
        self.store.flush_all().unwrap();
        self.threads.take().unwrap().stop();
        self.arena.remove().unwrap();
    }

    /// Ends as a kill does, as far as that goes within one process: nothing is closed, flushed or told.
    fn kill(mut self) {
        self.threads.take().unwrap().stop();
        self.arena.freeze();
    }
}

fn chunk(lane: u32, sequence: u64) -> Vec<u8> {
    let value = (sequence << 8 | u64::from(lane)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(375);
    let mut builder = ChunkBuilder::default();
    builder.push(&Record { value: Some(&value), ..Record::default() });
    let target = ChunkTarget {
        stream: STREAM,
        streamlet: StreamletId(0),
        producer_id: ProducerId(u64::from(lane) + 1),
        producer_epoch: ProducerEpoch(0),
        sequence,
    };
    builder.seal(&target, Compression::None).unwrap()
}

fn dir() -> tempfile::TempDir {
    // Beside the build's output and not in /tmp, which may be a tmpfs without direct I/O.
    let exe = std::env::current_exe().unwrap();
    tempfile::Builder::new().prefix("kera-log-store-").tempdir_in(exe.parent().unwrap()).unwrap()
}

/// Chunks of each lane that take about three times the arena together.
const MANY: u64 = 1_300;

fn fill(node: &mut Node) {
    for _ in 0..MANY {
        (0..LANES).for_each(|lane| node.append(lane));
    }
}

#[test]
fn more_than_memory_holds_is_written_and_read_back() {
    let dir = dir();
    let mut node = open(dir.path(), 1);
    fill(&mut node);
    node.store.flush_all().unwrap();
    // What a disk had still to write in the end is in memory when it is read for the first time.
    for lane in (0..2).flat_map(|_| 0..LANES) {
        assert_eq!(node.check(lane), MANY);
    }
    let status = node.store.status();
    assert!(status.evicted_segments > 0 && status.disks.iter().all(|disk| disk.counters.loaded_segments > 0));
    assert_eq!(status.disks.iter().map(|disk| disk.counters.corrupt_segments).sum::<u64>(), 0);
    assert!(node.arena.stats().used_bytes <= ARENA_BYTES);
}

/// What the arena keeps for the system's streams was taken for room that writers have, so that nothing was evicted for those that wait.
#[test]
fn writers_find_room_although_no_memory_is_kept_free_for_them() {
    let dir = dir();
    let config = StoreConfig { node: NODE, container_bytes: 4 << 20, write_delay_ms: 0, ..StoreConfig::default() };
    let config = StoreConfig { free_percent_min: 0, ..config };
    let (disk, clock) = (Arc::new(MemoryDisk::new()), Arc::new(ManualClock::new(0)));
    let (store, _) = DiskStore::open(config, vec![disk], clock, Arc::new(SeededRandom::new(1))).unwrap();
    let arena = ArenaConfig { path: dir.path().join("arena"), bytes: ARENA_BYTES, node: NODE };
    let log = Log::new(LogConfig::default(), Arena::create_or_attach(arena).unwrap().0);
    log.set_store(store.clone());
    store.attach(&log);
    let options = StreamOptions { segment_bytes_max: 64 << 10, retention_ms: None, ..StreamOptions::default() };
    let stream = log.create_stream(STREAM, options).unwrap();
    assert_eq!(log.finish_recovery(1), Vec::<String>::new());
    let lane = stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap();
    for sequence in 0..3 * MANY {
        let chunk = chunk(0, sequence);
        let view = ChunkView::parse(&chunk).unwrap();
        let appended = (0..1_000).find_map(|_| match lane.append(&view, 1_000) {
            Ok(appended) => Some(appended),
            Err(AppendError::ArenaFull(_)) => {
                store.step();
                None
            }
            Err(error) => panic!("{error}"),
        });
        assert!(appended.is_some_and(|appended| !appended.duplicate), "{sequence}: {:?}", store.status());
    }
    assert!(store.status().evicted_segments > 0);
}

#[test]
fn what_nobody_uses_leaves_memory_and_can_still_be_read() {
    let dir = dir();
    let mut node = open(dir.path(), 1);
    for _ in 0..20 {
        (0..LANES).for_each(|lane| node.append(lane));
    }
    node.log.close_idle(i64::MAX, 0);
    while node.store.status().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    assert!(node.arena.stats().used_bytes > 0, "what is on disk stays in memory while it is used");
    assert!(node.log.take_used() && !node.log.take_used());
    node.store.evict_unused();
    while node.arena.stats().used_bytes > 0 {
        std::thread::yield_now();
    }
    (0..LANES).for_each(|lane| assert_eq!(node.check(lane), 20));
    assert!(node.log.take_used(), "reading is use");
    node.stop();
}

#[test]
fn a_graceful_stop_keeps_everything_without_the_arena() {
    let dir = dir();
    let mut node = open(dir.path(), 1);
    fill(&mut node);
    node.stop();
    assert!(!dir.path().join("arena").exists());
    let mut node = open(dir.path(), 2);
    for lane in 0..LANES {
        assert_eq!(node.check(lane), MANY);
    }
    // Producers go on where they were: what they retry is known.
    node.next_sequence = [MANY; LANES as usize];
    let chunk = chunk(1, MANY - 1);
    let again = node.lane(1).append(&ChunkView::parse(&chunk).unwrap(), 2_000).unwrap();
    assert!(again.duplicate);
    (0..LANES).for_each(|lane| node.append(lane));
    assert_eq!(node.check(1), MANY + 1);
}

#[test]
fn killed_again_and_again_it_keeps_everything() {
    let dir = dir();
    for life in 0..4 {
        let mut node = open(dir.path(), life as u32 + 1);
        node.next_sequence = [life * MANY / 4; LANES as usize];
        for lane in 0..LANES {
            assert_eq!(node.check(lane), life * MANY / 4);
        }
        for _ in 0..MANY / 4 {
            (0..LANES).for_each(|lane| node.append(lane));
        }
        node.kill();
    }
    let node = open(dir.path(), 9);
    for lane in 0..LANES {
        assert_eq!(node.check(lane), MANY / 4 * 4);
    }
}

#[test]
fn a_reboot_keeps_a_prefix_of_each_lane() {
    let dir = dir();
    let mut node = open(dir.path(), 1);
    fill(&mut node);
    node.kill();
    std::fs::remove_file(dir.path().join("arena")).unwrap();
    let node = open(dir.path(), 2);
    for lane in 0..LANES {
        let kept = node.check(lane);
        assert!(kept > MANY / 3 && kept <= MANY, "{kept} of {MANY}");
    }
}

#[test]
fn a_deleted_stream_gives_its_disk_space_back() {
    let dir = dir();
    let mut node = open(dir.path(), 1);
    fill(&mut node);
    node.log.close_all();
    node.store.flush_all().unwrap();
    node.log.delete_stream(STREAM).unwrap();
    node.store.flush_all().unwrap();
    let status = node.store.status();
    assert_eq!(status.disks.iter().map(|disk| disk.containers + disk.segments).sum::<u64>(), 0);
    assert_eq!(status.disks.iter().map(|disk| disk.counters.release_errors).sum::<u64>(), 0);
}

/// One life of a node on disks in memory, driven by hand, until the power goes. Returns how many chunks each lane got.
fn live(disks: &[MemoryDisk], dir: &Path, life: u32, kept: [u64; LANES as usize], random: &SeededRandom) -> [u64; 3] {
    let clock = Arc::new(ManualClock::new(1_000_000 * i64::from(life)));
    let all = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    let mut node = open_on(all, dir, life, clock.clone());
    assert_eq!(node.log.finish_recovery(life), Vec::<String>::new());
    for lane in 0..LANES {
        assert_eq!(node.check(lane), kept[lane as usize], "what is there does not change");
    }
    node.next_sequence = kept;
    disks[random.below(2) as usize].cut_power_at(random.below(120) + 1);
    while !disks.iter().any(MemoryDisk::is_off) {
        for _ in 0..random.below(60) {
            node.append(random.below(LANES.into()) as u32);
            if disks.iter().any(MemoryDisk::is_off) {
                break;
            }
        }
        match random.below(6) {
            0 => drop(node.log.close_idle(i64::MAX, 0)),
            1 => node.log.close_all(),
            _ => {}
        }
        clock.advance_ms(random.below(30));
        node.store.step();
    }
    node.arena.freeze();
    node.next_sequence
}

#[test]
fn power_cuts_leave_a_prefix_of_each_lane_without_a_hole() {
    let mut grown = 0;
    for seed in 0..6 {
        let dir = dir();
        let random = SeededRandom::new(seed);
        let disks = [MemoryDisk::new(), MemoryDisk::new()];
        let mut kept = [0; LANES as usize];
        for life in 1..5 {
            let appended = live(&disks, dir.path(), life * 2 - 1, kept, &random);
            disks.iter().for_each(|disk| disk.crash(random.next_u64()));
            // The memory is gone with the power.
            std::fs::remove_file(dir.path().join("arena")).unwrap();
            let all = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
            let node = open_on(all, dir.path(), life * 2, Arc::new(ManualClock::new(0)));
            assert_eq!(node.log.finish_recovery(life * 2), Vec::<String>::new());
            let before = kept;
            kept = std::array::from_fn(|lane| node.check(lane as u32));
            for lane in 0..LANES as usize {
                let all = before[lane]..=appended[lane];
                assert!(all.contains(&kept[lane]), "seed {seed} life {life}: {} of {all:?}", kept[lane]);
                grown += u32::from(kept[lane] > before[lane]);
            }
            node.arena.remove().unwrap();
        }
    }
    assert!(grown > 5, "hardly anything was stored: a lane has more than before {grown} times");
}
