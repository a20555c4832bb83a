//! Owners of a compacted lane that are lost one after the other, with real logs, stores, compaction and backups: of each key the next one serves what
//! the last one would have, whatever was copied again by then, and backups keep no more than that (decision 35).
//!
//! `KERA_MODEL_SEED` runs one seed only.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_broker::{EndedLog, HandedStates, MendFrom, NotGathered, Rebuild, RecoveryProgress, gather};
use kera_env::{Clock, Disk, ManualClock, MemoryDisk, Random, SeededRandom};
use kera_format::chunk::Chunks;
use kera_format::vlog_replica::LogId;
use kera_format::{
    ChunkBuilder, ChunkView, Cleanup, Compression, Cursor, GroupId, LaneId, Record, SegmentId, SegmentIndex,
    StreamOptions,
};
use kera_log::compact::{CompactionConfig, Compactor, Stepped};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{AppendError, CopiedAgain, DurabilitySink, Lane, Log};
use kera_protocol::ListReplicas;
use kera_vlog::{Answer, ReplicatedConfig};
use parking_lot::Mutex;

use crate::common::cloud;
use crate::common::cloud::*;
use crate::common::*;

const SEEDS: u64 = 12;
const OPERATIONS: u32 = 600;
const TOMBSTONE_MS: u64 = 20_000;
const BACKUPS: [u32; 2] = [11, 12];

fn compacted() -> StreamOptions {
    StreamOptions {
        segments_per_group: 3,
        segment_bytes_max: 64 << 10,
        cleanup: Cleanup::Compact,
        compact_dirty_percent: 20,
        tombstone_ms: TOMBSTONE_MS,
        ..power(options(1, 1))
    }
}

/// A node that owns the lane, keeps its segments on a disk of its own and compacts them.
struct Node {
    replicating: Replicating,
    store: Arc<DiskStore>,
    compactor: Compactor,
}

impl Node {
    fn new(number: u32, epoch: u32, cloud: &Arc<Cloud>, clock: &Arc<ManualClock>) -> Node {
        let (store, random) = (Mutex::new(None), Arc::new(SeededRandom::new(epoch.into())));
        let prepare = |log: &Arc<Log>| {
            let config = StoreConfig {
                node: [7; 16],
                container_bytes: 512 << 10,
                batch_bytes: 128 << 10,
                write_delay_ms: 0,
                release_delay_ms: 0,
                ..StoreConfig::default()
            };
            let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(MemoryDisk::new())];
            let opened = DiskStore::open(config, disks, Arc::clone(clock) as Arc<dyn Clock>, random.clone());
            let (opened, _) = opened.expect("a store");
            log.set_store(opened.clone());
            opened.attach(log);
            log.copy_compacted();
            *store.lock() = Some(opened);
        };
        let name = LogId { node: number, epoch, vlog: 0 };
        let config = ReplicatedConfig {
            block_bytes_max: 40 << 10,
            stretch_bytes: 64 << 10,
            ..ReplicatedConfig::new(name, BACKUPS.len() as u32 + 1)
        };
        let replicating = Replicating::with(config, cloud, &BACKUPS, compacted(), prepare);
        let store = store.into_inner().expect("prepared");
        let config = CompactionConfig { keys_bytes: 24 * 4_000, retry_ms: 100, knows_transactions: true };
        let log = Arc::clone(&replicating.log);
        let compactor = Compactor::new(log, Arc::clone(&store), Arc::clone(clock) as Arc<dyn Clock>, &*random, config);
        Node { replicating, store, compactor }
    }

    fn lane(&self) -> Arc<Lane> {
        lane_at(&self.replicating.log, 0)
    }

    fn settle(&self) {
        while self.store.step() == Step::Again {}
    }

    fn segments(&self) -> Vec<SegmentId> {
        let lane = self.lane();
        let of_group = |group: GroupId| {
            let segments = lane.segments(group, None, usize::MAX).unwrap_or_default();
            segments.into_iter().map(move |segment| (group, segment.index))
        };
        let groups = lane.groups(GroupId::NONE, usize::MAX);
        let all = groups.into_iter().flat_map(|group| of_group(group.id).collect::<Vec<(GroupId, SegmentIndex)>>());
        all.map(|(group, index)| SegmentId { stream: STREAM, streamlet: X, lane: LaneId(0), group, index }).collect()
    }

    /// How often each segment was rewritten.
    fn rewrites(&self) -> BTreeMap<(GroupId, SegmentIndex), u32> {
        let lane = self.lane();
        let of = |group: GroupId| lane.segments(group, None, usize::MAX).unwrap_or_default();
        let groups = lane.groups(GroupId::NONE, usize::MAX).into_iter().map(|group| group.id);
        groups.flat_map(|group| of(group).into_iter().map(move |one| ((group, one.index), one.rewrites))).collect()
    }

    /// Has a segment copied again, those first that must be, and lets go of what was there of them.
    fn copy_again(&self, wanted: SegmentId) -> bool {
        let (log, since) = (&self.replicating.replicated, self.replicating.replicated.next_block());
        let (mut next, mut given, mut last) = (wanted, Vec::new(), 0);
        for _ in 0..1_000 {
            match self.replicating.log.copy_again(next, &*log.behind()) {
                CopiedAgain::Given(ticket, _) => {
                    given.push(next);
                    last = ticket.max(last);
                    if std::mem::replace(&mut next, wanted) == wanted {
                        break;
                    }
                }
                CopiedAgain::Behind(first) => next = first,
                CopiedAgain::Later => self.settle(),
                CopiedAgain::Gone | CopiedAgain::Never => break,
            }
        }
        while log.behind().durable_through() < last {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        given.iter().for_each(|segment| log.copied_again(*segment, since));
        !given.is_empty()
    }
}

/// A record that was appended: key, value, time.
type Written = (Vec<u8>, Option<Vec<u8>>, i64);

struct World {
    seeded: SeededRandom,
    clock: Arc<ManualClock>,
    cloud: Arc<Cloud>,
    epoch: u32,
    owner: Node,
    written: Vec<Written>,
    sequence: u64,
    /// The last chunk of each of a few producers that wrote little, long ago: number, chunk.
    silent: Vec<(u64, Vec<u8>)>,
    counts: BTreeMap<&'static str, u64>,
    bookmarks: Vec<(Cursor, u64)>,
}

impl World {
    fn new(seed: u64) -> World {
        let (clock, cloud) = (Arc::new(ManualClock::new(1_000_000)), Cloud::new(BACKUPS.len() as u32));
        let owner = Node::new(1, 7, &cloud, &clock);
        owner.replicating.broker.set_owner(2, STREAM, X, cloud::owner(1, 2, &[])).unwrap();
        owner.replicating.broker.open_streamlet(STREAM, X, 2, None).unwrap();
        let (written, sequence) = (Vec::new(), 0);
        let seeded = SeededRandom::new(seed);
        let (counts, bookmarks) = (BTreeMap::new(), Vec::new());
        World { seeded, clock, cloud, epoch: 2, owner, written, sequence, silent: Vec::new(), counts, bookmarks }
    }

    /// After the first owner was lost, with its log, and the next one has rebuilt what it wrote.
    fn taken_over(seed: u64) -> (World, [EndedLog; 1]) {
        let mut world = World::new(seed);
        (0..120).for_each(|_| world.append());
        let logs = [world.owner.replicating.ended(&BACKUPS)];
        world.owner.replicating.replicated.stop();
        world.next_owner();
        let taken = world.owner.replicating.broker.take_over(&[(STREAM, X, world.epoch)], &logs, &*world.cloud);
        world.rebuild(&taken.unwrap_or_else(|failure| panic!("{failure:?}")), &logs);
        (world, logs)
    }

    fn below(&self, limit: u64) -> u64 {
        Random::below(&self.seeded, limit)
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Appends a chunk of a few records of the producer that writes all the time.
    fn append(&mut self) {
        let sealed = self.append_as(2, self.sequence);
        self.sequence += 1;
        if self.below(10) == 0 {
            self.retry(&sealed);
        }
    }

    /// A producer that is not heard of again.
    fn append_once(&mut self) {
        let producer = 100 + self.silent.len() as u64;
        self.append_as(producer, 0);
        let last = self.append_as(producer, 1);
        self.silent.push((producer, last));
    }

    /// Appends a chunk of a few records and waits until it has its copies.
    fn append_as(&mut self, producer: u64, sequence: u64) -> Vec<u8> {
        let now_ms = self.clock.now_ms();
        let mut builder = ChunkBuilder::default();
        let mut records: Vec<Written> = Vec::new();
        for _ in 0..1 + self.below(6) {
            let key = format!("key {}", self.below([8, 300][self.below(2) as usize])).into_bytes();
            let value = (self.below(4) > 0).then(|| vec![self.below(256) as u8; 200 + self.below(3_000) as usize]);
            builder.push(&Record { keys: &[&key], value: value.as_deref(), ..Record::default() });
            records.push((key, value, now_ms));
        }
        let sealed = builder.seal(&target(STREAM, 0, producer, sequence), Compression::None).unwrap();
        let view = ChunkView::parse(&sealed).unwrap();
        let appended = loop {
            match self.owner.lane().append(&view, now_ms) {
                Ok(appended) => break appended,
                Err(AppendError::ArenaFull(_)) => self.owner.settle(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((appended.base_ordinal, appended.duplicate), (self.written.len() as u64, false));
        self.owner.replicating.durable(appended.ticket);
        if self.below(8) == 0 {
            self.bookmarks.push((appended.cursor, appended.base_ordinal));
        }
        self.written.extend(records);
        sealed
    }

    /// A chunk that is there comes once more.
    fn retry(&self, sealed: &[u8]) {
        let again = self.owner.lane().append(&ChunkView::parse(sealed).unwrap(), self.clock.now_ms()).unwrap();
        assert!(again.duplicate, "{again:?}");
    }

    fn compact(&mut self) {
        let mut left = if self.below(3) == 0 { self.below(12) } else { u64::MAX };
        self.owner.compactor.step(&mut || {
            left = left.saturating_sub(1);
            left > 0
        });
        self.count("compact");
    }

    fn copy_again(&mut self) {
        let lacking = self.below(2) == 0;
        let lacks = |_, _: &_| lacking;
        let mut wanted = self.owner.replicating.replicated.to_copy_again(8, &HashSet::new(), &lacks);
        if wanted.is_empty() || self.below(3) == 0 {
            let all = self.owner.segments();
            wanted = all.into_iter().filter(|_| self.below(8) == 0).take(2).collect();
        }
        for segment in wanted {
            if self.owner.copy_again(segment) {
                self.count("copied");
            }
        }
    }

    /// Some segments that are on disk only are replaced by what backups have of them, as if the disk had lost them. What they do not have as it is now is not taken.
    fn mend(&mut self) {
        self.clock.advance_ms(11_000);
        self.owner.store.evict_unused();
        self.owner.settle();
        let (log, replicated) = (&self.owner.replicating.log, &self.owner.replicating.replicated);
        let mut counted = Vec::new();
        for of in self.owner.segments().into_iter().filter_map(|id| log.damaged_segment(id)) {
            if self.below(3) > 0 {
                continue;
            }
            let id = of.id();
            let from = replicated.blocks_of(id).into_iter();
            let name = self.owner.replicating.name;
            let from = from.map(|(blocks, backups)| MendFrom { log: name, blocks, backups, is_over: false });
            let is_compacted = self.owner.rewrites()[&(id.group, id.index)] > 0;
            match gather(of, &from.collect::<Vec<_>>(), &*self.cloud) {
                Ok(found) => {
                    log.mended(found).unwrap();
                    counted.push(if is_compacted { "mended, compacted" } else { "mended" });
                }
                Err(NotGathered { reason, has_older }) => {
                    assert!(is_compacted, "what was never compacted has its copies: {reason}");
                    // Whoever took over now would find it as it was.
                    assert!(has_older, "{reason}");
                    counted.push("not mended, compacted");
                }
            }
        }
        counted.into_iter().for_each(|what| self.count(what));
    }

    /// The owner is lost, and perhaps the next one while it rebuilds.
    fn lose(&mut self) {
        let mut logs = vec![self.owner.replicating.ended(&BACKUPS)];
        self.owner.replicating.replicated.stop();
        while self.below(3) == 0 {
            self.next_owner();
            self.begin_rebuild(&mut logs);
            self.count("lost while it rebuilt");
        }
        self.next_owner();
        let node = &self.owner.replicating;
        let place = (STREAM, X, self.epoch);
        let taken =
            node.broker.take_over(&[place], &logs, &*self.cloud).unwrap_or_else(|failure| panic!("{failure:?}"));
        self.goes_on();
        self.rebuild(&taken, &logs);
        // What is lost is not needed any more.
        for log in &logs {
            for backup in &BACKUPS {
                let all = kera_protocol::ReleaseBlocks { log: log.log, through_block: u64::MAX };
                self.cloud.backups[backup].release(&all);
            }
        }
        self.count("lost");
    }

    fn rebuild(&self, taken: &Rebuild, logs: &[EndedLog]) {
        let node = &self.owner.replicating;
        std::thread::scope(|scope| {
            let rebuilding =
                scope.spawn(|| node.broker.rebuild(taken, logs, &*self.cloud, &RecoveryProgress::default()));
            while !rebuilding.is_finished() {
                self.owner.settle();
                self.owner.compactor.step(&mut || true);
                std::thread::yield_now();
            }
            rebuilding.join().unwrap().unwrap_or_else(|failure| panic!("{failure:?}"));
        });
    }

    /// Compacts until tombstones have gone.
    fn compact_all(&mut self) {
        for _ in 0..3 {
            self.clock.advance_ms(TOMBSTONE_MS + 1_000);
            self.owner.settle();
            while self.owner.compactor.step(&mut || true) == Stepped::Passed {
                self.owner.settle();
            }
            (0..30).for_each(|_| self.append());
        }
    }

    /// The streamlet moves to a node that is lost before it has written anything, and the owner before takes it over again.
    fn moves_and_comes_back(&mut self, logs: &[EndedLog]) {
        let node = &self.owner.replicating;
        let (me, before) = (1 + self.epoch % 3, self.epoch);
        node.broker.let_go(STREAM, X).unwrap();
        let state = node.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
        let older = [(1, me)];
        for (number, epoch) in [(99, before + 1), (me, before + 2)] {
            node.broker.set_owner(epoch.into(), STREAM, X, cloud::owner(number, epoch, &older)).unwrap();
        }
        self.epoch = before + 2;
        let handed = HandedStates::from([((STREAM, X), state)]);
        let taken = node.broker.take_over_moved(&[(STREAM, X, self.epoch)], logs, &*self.cloud, &handed);
        let taken = taken.unwrap_or_else(|failure| panic!("{failure:?}"));
        self.rebuild(&taken, logs);
    }

    fn next_owner(&mut self) {
        self.epoch += 1;
        let number = 1 + self.epoch % 3;
        self.owner = Node::new(number, 5 + self.epoch, &self.cloud, &self.clock);
        let owner = cloud::owner(number, self.epoch, &[]);
        self.owner.replicating.broker.set_owner(self.epoch.into(), STREAM, X, owner).unwrap();
    }

    /// Takes over and rebuilds until its copies come no further, then is lost as well.
    fn begin_rebuild(&mut self, logs: &mut Vec<EndedLog>) {
        let node = &self.owner.replicating;
        let taken = node.broker.take_over(&[(STREAM, X, self.epoch)], logs, &*self.cloud);
        let taken = taken.unwrap_or_else(|failure| panic!("{failure:?}"));
        self.goes_on();
        let node = &self.owner.replicating;
        let (stored, more) = (node.link.stored.load(Ordering::SeqCst), self.below(12));
        node.link.cut_behind.store(stored + more, Ordering::SeqCst);
        let progress = RecoveryProgress::default();
        std::thread::scope(|scope| {
            let rebuilding = scope.spawn(|| node.broker.rebuild(&taken, logs, &*self.cloud, &progress));
            let reached = || {
                progress.bytes_readable.load(Ordering::SeqCst) >= taken.bytes
                    && node.link.stored.load(Ordering::SeqCst) >= stored + more
            };
            while !reached() && !rebuilding.is_finished() {
                self.owner.settle();
                self.owner.compactor.step(&mut || true);
                std::thread::yield_now();
            }
            if !rebuilding.is_finished() {
                for backup in BACKUPS {
                    self.cloud.backups[&backup].fence(node.name.node, node.name.epoch, &[]).unwrap();
                }
                node.link.cut_behind.store(u64::MAX, Ordering::SeqCst);
                node.clock.advance_ms(200);
                node.replicated.answered(BACKUPS[0], 1, 1, Answer::Fenced(node.name.epoch));
            }
            let _ = rebuilding.join().unwrap();
        });
        logs.push(node.ended(&BACKUPS));
        node.replicated.stop();
    }

    /// The producer goes on at the new owner as if nothing had been.
    fn goes_on(&mut self) {
        for (_, last) in &self.silent {
            self.retry(last);
        }
        for _ in 0..1 + self.below(3) {
            self.append();
        }
    }

    /// Reads from a cursor to the end.
    fn read(&self, mut cursor: Cursor) -> Vec<(u64, Vec<u8>, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        loop {
            let outcome = self.owner.lane().read(cursor, 1 + self.below(50_000) as usize, true).unwrap();
            for chunk in outcome.data.iter().flat_map(|data| Chunks::new(data)) {
                let chunk = chunk.unwrap();
                chunk.verify().unwrap();
                let base = chunk.broker().unwrap().base_ordinal;
                for (ordinal, record) in (base..).zip(chunk.records()) {
                    let record = record.unwrap();
                    if !record.is_removed() {
                        let value = record.value().map(<[u8]>::to_vec);
                        found.push((ordinal, record.key().unwrap().to_vec(), value));
                    }
                }
            }
            cursor = outcome.next;
            if outcome.loading {
                self.owner.settle();
            } else if outcome.at_durable_end {
                return found;
            }
        }
    }

    /// What is read was appended, in order; what is missing has a later record of its key or is a tombstone whose time was up; and nothing that was
    /// removed is there in front of where its tombstone was.
    fn check(&self) {
        let found = self.read(Cursor::default());
        assert!(found.is_sorted_by(|a, b| a.0 < b.0));
        let mut state: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        for (ordinal, key, value) in &found {
            let (appended_key, appended, _) = &self.written[*ordinal as usize];
            assert_eq!((key, value), (appended_key, appended), "at {ordinal}");
            state.insert(key, value.as_deref());
        }
        let last: BTreeMap<&[u8], (u64, &Written)> =
            (0..).zip(&self.written).map(|(ordinal, written)| (&written.0[..], (ordinal, written))).collect();
        for (key, (ordinal, (_, value, at_ms))) in &last {
            let name = String::from_utf8_lossy(key);
            match state.get(key) {
                Some(found) => assert!(*found == value.as_deref(), "of {name} there is what {ordinal} hides"),
                None => {
                    let age_ms = self.clock.now_ms() - at_ms;
                    assert!(
                        value.is_none() && age_ms >= TOMBSTONE_MS as i64,
                        "{name}, last written as {ordinal} {age_ms} ms ago, is gone"
                    );
                }
            }
        }
        for (cursor, ordinal) in &self.bookmarks {
            let behind: Vec<u64> = found.iter().map(|(ordinal, ..)| *ordinal).filter(|at| at >= ordinal).collect();
            let read: Vec<u64> = self.read(*cursor).into_iter().map(|(at, ..)| at).collect();
            assert_eq!(read, behind, "from {cursor:?}, where {ordinal} was");
        }
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("KERA_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=SEEDS).collect(),
    }
}

#[test]
fn what_compaction_has_left_survives_its_owners() {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds() {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..OPERATIONS {
            match world.below(100) {
                0..2 => world.append_once(),
                2..70 => world.append(),
                70..80 => world.owner.settle(),
                80..88 => world.compact(),
                88..94 => world.copy_again(),
                94..97 => world.clock.advance_ms(world.below(15_000)),
                97 => world.mend(),
                98 => world.check(),
                _ => {
                    world.lose();
                    world.check();
                }
            }
        }
        world.lose();
        world.check();
        for (what, count) in world.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{counts:?}");
    assert!(std::env::var("KERA_MODEL_SEED").is_ok() || (counts["mended"] > 0 && counts["mended, compacted"] > 0));
}

/// A log of before has what this node has compacted since, and what is behind it in the lane stays as it is, without its tombstones: beside what that log has
/// they would be missing.
#[test]
fn what_a_node_has_compacted_is_not_brought_back_by_a_log_of_before() {
    for seed in 1..4 {
        let (mut world, logs) = World::taken_over(seed);
        (0..120).for_each(|_| world.append());
        world.compact_all();
        world.check();
        world.moves_and_comes_back(&logs);
        world.check();
        world.goes_on();
        world.compact_all();
        world.check();
    }
}

/// The same where that log has all that was compacted, as it was before: rewritten anew from that, it would be so for the first time once more, while a log has the first time
/// that was.
#[test]
fn what_a_node_has_compacted_is_never_less_rewritten_than_it_was() {
    // Also if nothing was written behind what that log has.
    for (seed, writes) in [(1, true), (2, true), (3, false), (4, false)] {
        let (mut world, logs) = World::taken_over(seed);
        world.clock.advance_ms(TOMBSTONE_MS + 1_000);
        if writes {
            world.append();
        }
        world.owner.settle();
        while world.owner.compactor.step(&mut || true) == Stepped::Passed {
            world.owner.settle();
        }
        let before = world.owner.rewrites();
        assert!(before.values().any(|rewrites| *rewrites > 0));
        world.moves_and_comes_back(&logs);
        let after = world.owner.rewrites();
        assert!(before.iter().all(|(segment, rewrites)| after[segment] >= *rewrites), "{before:?} {after:?}");
        world.check();
        world.goes_on();
        world.compact_all();
        world.check();
    }
}

/// Backups keep about what compaction has left, although nothing has gone by retention.
#[test]
fn backups_give_back_what_compaction_has_dropped() {
    let mut world = World::new(1);
    let kept = |world: &World| {
        let replicas = world.cloud.backups[&BACKUPS[0]].list(&ListReplicas { after: None, limit: 0 }).replicas;
        replicas.iter().map(|replica| replica.bytes).sum::<u64>()
    };
    let (mut most, mut appended) = (0, 0);
    for round in 0..40 {
        for _ in 0..60 {
            world.append();
        }
        world.clock.advance_ms(30_000);
        world.owner.settle();
        for _ in 0..4 {
            world.owner.compactor.step(&mut || true);
            world.owner.settle();
        }
        loop {
            let wanted = world.owner.replicating.replicated.to_copy_again(64, &HashSet::new(), &|_, _| false);
            if wanted.iter().filter(|segment| world.owner.copy_again(**segment)).count() == 0 {
                break;
            }
        }
        appended = world.written.iter().map(|(_, value, _)| value.as_ref().map_or(0, Vec::len) as u64).sum();

        if round >= 10 {
            most = kept(&world).max(most);
        }
    }
    println!("{appended} bytes were appended, a backup had {most} at most");
    assert!(most < appended / 2, "{appended} bytes were appended, and a backup has up to {most}");
    world.lose();
    world.check();
}

/// What lacks copies goes to one log, and what is to have another number of copies to another one, in turns. What the one was given must not count as not given because
/// the other was given it since: all that is in front would go to both again at each turn.
#[test]
fn what_is_copied_to_two_logs_in_turns_goes_to_each_once() {
    let mut world = World::new(1);
    (0..120).for_each(|_| world.append());
    world.compact_all();
    let owner = &world.owner;
    let compacted = owner.rewrites().into_values().filter(|rewrites| *rewrites > 0).count();
    assert!(compacted > 3, "{compacted} segments are compacted");
    let (log, replicated) = (&owner.replicating.log, &owner.replicating.replicated);
    let behind = replicated.behind();
    let sinks: [&dyn DurabilitySink; 2] = [&**replicated, &*behind];
    let mut given = [HashSet::new(), HashSet::new()];
    for segment in owner.segments() {
        for (sink, given) in sinks.into_iter().zip(&mut given) {
            let mut note = |one| assert!(given.insert(one), "{one} was given to this log before");
            let mut copy = || {
                owner.settle();
                log.copy_again_in_order(segment, sink, &mut |first, _, _| {
                    note(first);
                    true
                })
            };
            let again = (0..1_000).map(|_| copy()).find(|again| *again != CopiedAgain::Later);
            if let CopiedAgain::Given(..) = again.expect("what is on the disk comes") {
                note(segment);
            }
        }
    }
    assert!(given.iter().all(|given| given.len() >= compacted), "{given:?}");
    world.lose();
    world.check();
}
