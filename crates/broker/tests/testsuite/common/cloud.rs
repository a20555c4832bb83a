//! Brokers over real logs whose blocks go to real backups on simulated disks, without a network between them.
#![allow(unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_backup::{Backup, BackupConfig, BackupError, StoreDone, Taken};
use kera_broker::{Broker, BrokerConfig, Copies, EndedLog, EndedView, NoStates};
use kera_env::{Clock, Disk, ManualClock, MemoryDisk, SeededRandom};
use kera_format::checksum::crc32c;
use kera_format::cluster::Rack;
use kera_format::vlog_replica::LogId;
use kera_format::{ChunkView, LaneId, StreamOptions, StreamletId};
use kera_log::{Arena, ArenaConfig, DurabilitySink, Lane, Log, LogConfig};
use kera_protocol::{
    BlockStored, BlocksRead, LaneStateList, LaneStates, NodeInfo, OlderGroups, Owner, ReadBlocks, ReleaseBlocks,
    Status, StoreHead, StoreOutcome,
};
use kera_vlog::{Answer, BackupId, BackupLink, Block, ReplicatedConfig, ReplicatedLog, View, ViewAnswer, Views};
use parking_lot::Mutex;

use super::*;

pub const CLUSTER: [u8; 16] = *b"cluster-16-bytes";
pub const X: StreamletId = StreamletId(0);
/// What backups answer, by the block's number.
#[derive(Default)]
struct Heard(Mutex<Vec<(u64, Result<BlockStored, BackupError>)>>);

impl StoreDone for Heard {
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
        self.0.lock().push((token, result));
    }
    fn room(&self) {}
}

/// What a backup does to whoever asks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    Silent,
    /// It answers to so many reads of blocks.
    SilentAfter(u64),
    /// It names ordinals that cannot be.
    Lies,
    /// It has lost everything and does not know.
    Empty,
    /// It changes a byte of what it reads.
    Flips,
}

/// Backups that are asked by a call.
pub struct Cloud {
    /// One store at a time: each waits for its own answer.
    pub storing: Mutex<()>,
    pub backups: BTreeMap<u32, Arc<Backup>>,
    pub trouble: Mutex<BTreeMap<u32, Trouble>>,
    pub reads: AtomicU64,
    pub asked: Mutex<BTreeSet<u32>>,
}

impl Cloud {
    pub fn new(backups: u32) -> Arc<Cloud> {
        let open = |node: u32| {
            let config = BackupConfig { file_bytes: 256 << 10, ..BackupConfig::new(CLUSTER, node) };
            let disks = vec![Arc::new(MemoryDisk::new()) as Arc<dyn Disk>];
            let clock = Arc::new(ManualClock::new(5));
            let random = Arc::new(SeededRandom::new(node.into()));
            (node, Backup::open(config, disks, clock, random).expect("a backup").0)
        };
        let backups = (11..11 + backups).map(open).collect();
        let (storing, trouble, reads, asked) = Default::default();
        Arc::new(Cloud { storing, backups, trouble, reads, asked })
    }

    pub fn store(&self, backup: u32, head: &StoreHead, chunks: &[u8]) -> Answer {
        let _storing = self.storing.lock();
        let (backup, heard) = (&self.backups[&backup], Arc::new(Heard::default()));
        let done = Arc::clone(&heard) as Arc<dyn StoreDone>;
        let answer = match backup.store(head, chunks, &done, head.block) {
            Taken::Answered(answer) => Ok(answer),
            Taken::Refused(error) => Err(error),
            Taken::Full => panic!("so much does not fit into a test"),
            Taken::Queued => {
                backup.run_once(0);
                heard.0.lock().pop().expect("an answer").1
            }
        };
        match answer {
            Ok(BlockStored { outcome: StoreOutcome::Stored, block }) => Answer::Stored(block),
            Ok(BlockStored { outcome: StoreOutcome::Next, block }) => Answer::Next(block),
            Ok(BlockStored { outcome: StoreOutcome::Fenced, block }) => Answer::Fenced(block as u32),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    /// Puts chunks into a log, a block for each few of them.
    pub fn put(&self, log: LogId, first: u64, backups: &[u32], blocks: &[&[Vec<u8>]]) {
        for (block, chunks) in (first..).zip(blocks) {
            let bytes = chunks.concat();
            let head = block_head(log, block, chunks.len(), &bytes);
            for backup in backups {
                assert_eq!(self.store(*backup, &head, &bytes), Answer::Stored(block));
            }
        }
    }

    pub fn set(&self, backup: u32, trouble: Trouble) {
        self.trouble.lock().insert(backup, trouble);
    }

    pub fn well(&self) {
        self.trouble.lock().clear();
    }

    pub fn trouble(&self, backup: u32) -> Option<Trouble> {
        self.asked.lock().insert(backup);
        self.trouble.lock().get(&backup).copied()
    }
}

impl Copies for Cloud {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        let trouble = self.trouble(backup);
        if trouble == Some(Trouble::Silent) {
            return Err("nobody answers".to_owned().into());
        }
        let mut answer = self.backups[&backup].lane_states(asked).map_err(no_states)?;
        match trouble {
            Some(Trouble::Lies) => answer.lanes.iter_mut().for_each(|lane| lane.parts[0].next_ordinal = 0),
            Some(Trouble::Empty) => answer.lanes.clear(),
            _ => {}
        }
        Ok(answer)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        let read = self.reads.fetch_add(1, Ordering::SeqCst);
        let trouble = self.trouble(backup);
        match trouble {
            Some(Trouble::Silent) => return Err("nobody answers".into()),
            Some(Trouble::SilentAfter(reads)) if read >= reads => return Err("nobody answers".into()),
            Some(Trouble::Empty) => return Ok(BlocksRead { next_block: asked.from_block, blocks: Vec::new() }),
            _ => {}
        }
        let asked = ReadBlocks { max_bytes: 64 << 10, ..asked.clone() };
        let mut answer = self.backups[&backup].read_blocks(&asked).map_err(|error| error.to_string())?;
        if trouble == Some(Trouble::Flips) {
            for (_, chunks) in &mut answer.blocks {
                let mut bytes = chunks.to_vec();
                if let Some(last) = bytes.len().checked_sub(9) {
                    bytes[last] ^= 1;
                }
                *chunks = bytes.into();
            }
        }
        Ok(answer)
    }
}

/// What a backup's error is to who asks what lanes have.
pub fn no_states(error: BackupError) -> NoStates {
    NoStates { is_too_much: error.status == Status::LimitReached, is_late: false, reason: error.reason }
}

/// The head of a block in the first view of a log: of `count` chunks, which are in `chunks` one behind the other.
pub fn block_head(log: LogId, block: u64, count: usize, chunks: &[u8]) -> StoreHead {
    StoreHead {
        cluster: CLUSTER,
        log,
        view: 1,
        view_first: 1,
        block,
        written_ms: 1,
        chunk_count: count as u32,
        chunk_bytes: chunks.len() as u32,
        chunks_checksum: crc32c(chunks),
        flags: 0,
    }
}

pub fn ended(log: LogId, end: u64, backups: &[u32]) -> EndedLog {
    EndedLog { log, views: vec![EndedView { first: 1, backups: backups.to_vec() }], end, at_all: true }
}

pub fn owner(node: u32, epoch: u32, older: &[(u32, u32)]) -> Owner {
    let older =
        older.iter().map(|(first_epoch, node)| OlderGroups { first_epoch: *first_epoch, node: *node }).collect();
    Owner { node, epoch, older }
}

pub fn lane_at(log: &Log, lane: u32) -> Arc<Lane> {
    Arc::clone(log.stream(STREAM).unwrap().streamlet(X).unwrap().lane(LaneId(lane)).unwrap())
}

pub fn bytes_of(sequence: u64) -> usize {
    // Three or four chunks in a segment.
    15_000 + (sequence as usize * 977) % 5_000
}

/// A broker whose log is replicated to the cloud, driven by a thread.
pub struct Replicating {
    pub broker: Arc<Broker>,
    pub log: Arc<Log>,
    pub replicated: Arc<ReplicatedLog>,
    pub link: Arc<Link>,
    pub clock: Arc<ManualClock>,
    pub name: LogId,
    pub _dir: tempfile::TempDir,
}

pub struct Link {
    pub cloud: Arc<Cloud>,
    pub log: Mutex<Weak<ReplicatedLog>>,
    /// Blocks that were stored everywhere.
    pub stored: AtomicU64,
    /// Nothing reaches a backup any more behind this block.
    pub cut_behind: AtomicU64,
}

impl BackupLink for Link {
    fn send(&self, to: BackupId, view: &View, block: &Arc<Block>) {
        if block.number > self.cut_behind.load(Ordering::SeqCst) {
            return;
        }
        let bytes: Vec<u8> = block.parts.iter().flat_map(|part| part.iter().copied()).collect();
        let head = StoreHead {
            cluster: CLUSTER,
            log: block.log,
            view: view.number,
            view_first: view.first,
            block: block.number,
            written_ms: block.written_ms,
            chunk_count: block.chunk_count,
            chunk_bytes: block.chunk_bytes,
            chunks_checksum: block.chunks_checksum,
            flags: 0,
        };
        let answer = self.cloud.store(to, &head, &bytes);
        if matches!(answer, Answer::Stored(_)) {
            self.stored.fetch_max(block.number, Ordering::SeqCst);
        }
        if let Some(log) = self.log.lock().upgrade() {
            log.answered(to, 1, block.number, answer);
        }
    }
    fn release(&self, to: BackupId, log: LogId, through: u64) {
        self.cloud.backups[&to].release(&ReleaseBlocks { log, through_block: through });
    }
}

impl Views for Link {
    fn candidates(&self, _: LogId) -> Vec<(BackupId, Rack)> {
        Vec::new()
    }
    fn ask(&self, _: LogId, view: &View) {
        if let Some(log) = self.log.lock().upgrade() {
            log.view_answered(ViewAnswer::Refused { asked: view.clone(), newest: View::NONE });
        }
    }
    fn fenced(&self, _: LogId) {}
}

impl Replicating {
    pub fn new(node: u32, epoch: u32, cloud: &Arc<Cloud>, backups: &[u32]) -> Replicating {
        let config = ReplicatedConfig {
            block_bytes_max: 40 << 10,
            ..ReplicatedConfig::new(LogId { node, epoch, vlog: 0 }, backups.len() as u32 + 1)
        };
        Replicating::with(config, cloud, backups, power(options(1, 1)), |_| {})
    }

    /// A stream of these options, and a log to which `prepare` may do something before it is used.
    pub fn with(
        config: ReplicatedConfig,
        cloud: &Arc<Cloud>,
        backups: &[u32],
        options: StreamOptions,
        prepare: impl FnOnce(&Arc<Log>),
    ) -> Replicating {
        let (name, LogId { node, epoch, .. }) = (config.log, config.log);
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 16 << 20, node: [7; 16] };
        let (arena, _) = Arena::create_or_attach(arena).expect("an arena");
        let log = Log::new(LogConfig { segment_arena_share: 1 << 20, ..LogConfig::default() }, arena);
        let clock = Arc::new(ManualClock::new(1_000_000));
        let link = Arc::new(Link {
            cloud: Arc::clone(cloud),
            log: Mutex::new(Weak::new()),
            stored: AtomicU64::new(0),
            cut_behind: AtomicU64::new(u64::MAX),
        });
        let replicated = ReplicatedLog::new(
            config,
            View { number: 1, first: 1, backups: backups.to_vec() },
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::clone(&link) as Arc<dyn BackupLink>,
            Arc::clone(&link) as Arc<dyn Views>,
        );
        *link.log.lock() = Arc::downgrade(&replicated);
        prepare(&log);
        log.set_sinks(Arc::new(vec![Arc::clone(&replicated) as Arc<dyn DurabilitySink>]));
        let broker = Broker::new(config_of(epoch), Arc::clone(&log), Arc::clone(&clock) as Arc<dyn Clock>);
        broker.stream_created(STREAM, options).unwrap();
        log.recover(Vec::new(), Vec::new());
        log.finish_recovery(epoch);
        broker.join_cluster(CLUSTER, node);
        broker.set_nodes(1, Vec::<NodeInfo>::new());
        broker.place_stream(1, STREAM, vec![owner(99, 1, &[])]).unwrap();
        let running = Arc::clone(&replicated);
        std::thread::spawn(move || running.run());
        Replicating { broker, log, replicated, link, clock, name, _dir: dir }
    }

    pub fn append(&self, sequence: u64) -> kera_log::Appended {
        let chunk = chunk_of(target(STREAM, 0, 2, sequence), 2, bytes_of(sequence) / 2);
        let lane = lane_at(&self.log, 0);
        lane.append(&ChunkView::parse(&chunk).unwrap(), self.clock.now_ms()).unwrap()
    }

    pub fn durable(&self, ticket: Option<u64>) {
        while self.replicated.durable_through() < ticket.unwrap_or(0) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn ended(&self, backups: &[u32]) -> EndedLog {
        let LogId { node, epoch, .. } = self.name;
        for backup in backups {
            self.link.cloud.backups[backup].fence(node, epoch, &[]).unwrap();
        }
        ended(self.name, self.link.stored.load(Ordering::SeqCst), backups)
    }
}

impl Drop for Replicating {
    fn drop(&mut self) {
        self.replicated.stop();
    }
}

pub fn config_of(epoch: u32) -> BrokerConfig {
    BrokerConfig { epoch, ..config() }
}
