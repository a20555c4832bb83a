//! A segment that a disk has lost is read from backups: some do not answer, some change what they have, some have lost it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_broker::{Copies, MendFrom, NoStates, gather};
use kera_env::{Clock, Disk, ManualClock, MemoryDisk, SeededRandom};
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, GroupId, LaneId, SegmentId, StreamOptions};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{DamagedSegment, Log};
use kera_protocol::{BlocksRead, LaneStateList, LaneStates, ReadBlocks};
use kera_vlog::ReplicatedConfig;
use parking_lot::Mutex;

use crate::common::cloud::*;
use crate::common::*;

const BACKUPS: [u32; 2] = [11, 12];
const CHUNKS: u64 = 60;

/// An owner whose segments are on its disk, and nowhere else here.
struct Node {
    replicating: Replicating,
    store: Arc<DiskStore>,
    cloud: Arc<Cloud>,
}

impl Node {
    fn new() -> Node {
        let (cloud, store, clock) = (Cloud::new(2), Mutex::new(None), Arc::new(ManualClock::new(1_000_000)));
        let prepare = |log: &Arc<Log>| {
            let config = StoreConfig {
                node: [7; 16],
                container_bytes: 512 << 10,
                write_delay_ms: 0,
                release_delay_ms: 0,
                ..StoreConfig::default()
            };
            let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(MemoryDisk::new())];
            let random = Arc::new(SeededRandom::new(7));
            let (opened, _) = DiskStore::open(config, disks, Arc::clone(&clock) as Arc<dyn Clock>, random).unwrap();
            log.set_store(opened.clone());
            opened.attach(log);
            *store.lock() = Some(opened);
        };
        let config = ReplicatedConfig {
            block_bytes_max: 40 << 10,
            stretch_bytes: 128 << 10,
            ..ReplicatedConfig::new(LogId { node: 1, epoch: 7, vlog: 0 }, 3)
        };
        let options = StreamOptions { segment_bytes_max: 64 << 10, ..power(options(1, 1)) };
        let replicating = Replicating::with(config, &cloud, &BACKUPS, options, prepare);
        replicating.broker.set_owner(2, STREAM, X, owner(1, 2, &[])).unwrap();
        replicating.broker.open_streamlet(STREAM, X, 2, None).unwrap();
        for sequence in 0..CHUNKS {
            replicating.durable(replicating.append(sequence).ticket);
        }
        replicating.log.close_all();
        let store = store.into_inner().expect("prepared");
        while store.step() == Step::Again {}
        clock.advance_ms(11_000);
        store.evict_unused();
        while store.step() == Step::Again {}
        Node { replicating, store, cloud }
    }

    fn damaged(&self) -> Vec<DamagedSegment> {
        let lane = lane_at(&self.replicating.log, 0);
        let of_group = |group: GroupId| {
            let segments = lane.segments(group, None, usize::MAX).unwrap_or_default();
            segments.into_iter().map(move |one| SegmentId {
                stream: STREAM,
                streamlet: X,
                lane: LaneId(0),
                group,
                index: one.index,
            })
        };
        let groups = lane.groups(GroupId::NONE, usize::MAX).into_iter().map(|group| group.id);
        let all: Vec<SegmentId> = groups.flat_map(of_group).collect();
        all.into_iter().map(|id| self.replicating.log.damaged_segment(id).expect("on disk only")).collect()
    }

    fn ranges(&self, of: &DamagedSegment) -> Vec<MendFrom> {
        let log = self.replicating.name;
        let ranges = self.replicating.replicated.blocks_of(of.id()).into_iter();
        ranges.map(|(blocks, backups)| MendFrom { log, blocks, backups, is_over: false }).collect()
    }

    /// All blocks, as of a log that is over.
    fn over(&self) -> Vec<MendFrom> {
        let (log, end) = (self.replicating.name, self.replicating.replicated.state().0);
        let part = |blocks: RangeInclusive<u64>| MendFrom { log, blocks, backups: BACKUPS.to_vec(), is_over: true };
        vec![part(end / 2 + 1..=end), part(1..=end / 2)]
    }

    /// Gathers all segments, and has the disk lose what was there before. How many there are.
    fn mend(&self, from: impl Fn(&DamagedSegment) -> Vec<MendFrom>) -> Result<usize, String> {
        let all = self.damaged();
        for of in &all {
            let found = gather(*of, &from(of), &*self.cloud).map_err(|not| not.reason)?;
            self.replicating.log.mended(found)?;
        }
        Ok(all.len())
    }

    fn read(&self) -> u64 {
        let (lane, mut cursor, mut records) = (lane_at(&self.replicating.log, 0), Cursor::default(), 0);
        loop {
            let outcome = lane.read(cursor, 1 << 20, true).unwrap();
            for chunk in outcome.data.iter().flat_map(|data| kera_format::chunk::Chunks::new(data)) {
                let chunk = chunk.unwrap();
                chunk.verify().unwrap();
                assert_eq!(chunk.broker().unwrap().base_ordinal, records);
                records += u64::from(chunk.header().record_count);
            }
            if outcome.at_durable_end {
                return records;
            }
            cursor = outcome.next;
            while self.store.step() == Step::Again {}
        }
    }
}

#[test]
fn it_is_in_the_blocks_that_are_known_to_have_it() {
    let node = Node::new();
    let blocks = node.replicating.replicated.state().0;
    let most = node.damaged().into_iter().map(|of| {
        let ranges = node.ranges(&of);
        ranges.iter().map(|range| range.blocks.end() - range.blocks.start() + 1).sum::<u64>()
    });
    let most = most.max().unwrap();
    assert!(most < blocks / 2, "{most} of {blocks}");
    let segments = node.mend(|of| node.ranges(of)).unwrap();
    assert!(segments > 10, "{segments}");
    assert_eq!(node.read(), 2 * CHUNKS);
}

#[test]
fn any_backup_that_has_it_will_do() {
    for trouble in [Trouble::Silent, Trouble::Flips, Trouble::Empty, Trouble::SilentAfter(3)] {
        for backup in BACKUPS {
            let node = Node::new();
            node.cloud.set(backup, trouble);
            node.mend(|of| node.ranges(of)).unwrap_or_else(|reason| panic!("{trouble:?} at {backup}: {reason}"));
            assert_eq!(node.read(), 2 * CHUNKS);
        }
    }
}

#[test]
fn what_nobody_gives_is_told_with_what_each_has_said() {
    let node = Node::new();
    node.cloud.set(11, Trouble::Silent);
    node.cloud.set(12, Trouble::Flips);
    let reason = node.mend(|of| node.ranges(of)).unwrap_err();
    assert!(reason.contains("backup 11 at block") && reason.contains("nobody answers"), "{reason}");
    assert!(reason.contains("backup 12 at block") && reason.contains("checksum"), "{reason}");
    assert!(node.mend(|_| Vec::new()).unwrap_err().contains("0 ranges of blocks"));
    node.cloud.well();
    node.mend(|of| node.ranges(of)).unwrap();
    assert_eq!(node.read(), 2 * CHUNKS);
}

/// Somebody is asked once, and then the node is to stop.
struct Once<'a> {
    cloud: &'a Cloud,
    asked: AtomicU64,
}

impl Copies for Once<'_> {
    fn goes_on(&self) -> bool {
        self.asked.load(Ordering::SeqCst) == 0
    }

    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.cloud.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.cloud.read_blocks(backup, asked)
    }
}

#[test]
fn nobody_is_asked_any_more_once_the_node_is_to_stop() {
    let node = Node::new();
    let silent = BACKUPS.map(|backup| (backup, Trouble::Silent));
    for troubles in [&[][..], &silent] {
        troubles.iter().for_each(|(backup, trouble)| node.cloud.set(*backup, *trouble));
        for of in node.damaged() {
            for from in [node.ranges(&of), node.over()] {
                let once = Once { cloud: &node.cloud, asked: AtomicU64::new(0) };
                let _ = gather(of, &from, &once);
                assert_eq!(once.asked.load(Ordering::SeqCst), 1);
            }
        }
    }
}

/// The node is to stop between two looks whether it is.
struct Ends(AtomicU64);

impl Copies for Ends {
    fn goes_on(&self) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst) == 0
    }

    fn lane_states(&self, _: u32, _: &LaneStates) -> Result<LaneStateList, NoStates> {
        panic!("nobody is to be asked")
    }

    fn read_blocks(&self, _: u32, _: &ReadBlocks) -> Result<BlocksRead, String> {
        panic!("nobody is to be asked")
    }
}

#[test]
fn who_was_not_asked_because_the_node_is_to_stop_is_told_too() {
    let node = Node::new();
    for of in node.damaged() {
        let reason = gather(of, &node.over(), &Ends(AtomicU64::new(0))).err().unwrap().reason;
        assert!(reason.contains("no backup of log") && reason.ends_with("this node is stopping"), "{reason}");
    }
}

#[test]
fn of_a_log_that_is_over_it_is_asked_where_it_is() {
    let node = Node::new();
    node.mend(|_| node.over()).unwrap();
    assert_eq!(node.read(), 2 * CHUNKS);
    let node = Node::new();
    node.cloud.set(11, Trouble::Silent);
    node.mend(|_| node.over()).unwrap();
    assert_eq!(node.read(), 2 * CHUNKS);
}

/// Backups that have more to say of a streamlet's lanes than fits into an answer.
struct Much<'a> {
    cloud: &'a Cloud,
    asked: AtomicU64,
}

impl Copies for Much<'_> {
    fn lane_states(&self, _: u32, _: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Err(NoStates { reason: "ask for less".to_owned(), is_too_much: true, is_late: false })
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.cloud.read_blocks(backup, asked)
    }
}

#[test]
fn a_segment_is_looked_for_in_smaller_parts_where_a_backup_has_too_much_to_tell() {
    let node = Node::new();
    for of in node.damaged() {
        let much = Much { cloud: &node.cloud, asked: AtomicU64::new(0) };
        let found = gather(of, &node.over(), &much).map_err(|not| not.reason).unwrap();
        assert!(found.is_whole() && much.asked.load(Ordering::SeqCst) > 0);
    }
}
