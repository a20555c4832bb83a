//! A backup on simulated disks, and who sends to it.

#![allow(unreachable_pub)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kera_backup::{Backup, BackupConfig, BackupError, OpenReport, Ran, StoreDone, Taken};
use kera_env::{Disk, ManualClock, MemoryDisk, SeededRandom};
use kera_format::checksum::crc32c;
use kera_format::chunk::ChunkTarget;
use kera_format::vlog_replica::LogId;
use kera_format::{
    BrokerPart, ChunkBuilder, Compression, GroupId, LaneId, ProducerId, Record, SegmentIndex, StreamId, StreamletId,
};
use kera_protocol::replication::STORE_SYNCED;
use kera_protocol::{BlockRange, BlockStored, ListReplicas, ReadBlocks, StoreHead, StoreOutcome};

pub const CLUSTER: [u8; 16] = *b"cluster-16-bytes";
pub const LOG: LogId = LogId { node: 1, epoch: 7, vlog: 0 };

pub fn config() -> BackupConfig {
    BackupConfig { file_bytes: 64 << 10, spares: 2, queue_bytes_max: 1 << 20, ..BackupConfig::new(CLUSTER, 9) }
}

pub fn open(disks: &[Arc<dyn Disk>], seed: u64) -> (Arc<Backup>, OpenReport) {
    let clock = Arc::new(ManualClock::new(1_000_000));
    Backup::open(config(), disks.to_vec(), clock, Arc::new(SeededRandom::new(seed))).expect("open")
}

/// What was answered, by token.
#[derive(Default)]
pub struct Answers {
    pub all: Mutex<HashMap<u64, Result<BlockStored, BackupError>>>,
    pub rooms: Mutex<usize>,
}

impl StoreDone for Answers {
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
        let before = self.all.lock().expect("no panic").insert(token, result);
        assert!(before.is_none(), "token {token} is answered twice");
    }
    fn room(&self) {
        *self.rooms.lock().expect("no panic") += 1;
    }
}

/// The chunks of a block: one or more of some streamlets, told by their numbers, at the places that a broker would give them.
pub fn chunks(log: LogId, block: u64) -> (u32, Vec<u8>) {
    let count = 1 + block % 3;
    let mut bytes = Vec::new();
    for n in 0..count {
        let ordinal = block * 3 + n;
        let mut builder = ChunkBuilder::default();
        builder
            .push(&Record::value(format!("{log} {block} {n} {}", "x".repeat((block * 37 % 900) as usize)).as_bytes()));
        let streamlet = StreamletId((n % 2) as u32);
        let target = ChunkTarget {
            stream: StreamId(u64::from(log.vlog) + 1),
            streamlet,
            producer_id: ProducerId(5),
            sequence: ordinal,
            ..ChunkTarget::default()
        };
        let mut chunk = builder.seal(&target, Compression::None).expect("a chunk");
        BrokerPart {
            group: GroupId::new(3, 1),
            segment: SegmentIndex((block / 10) as u32),
            base_ordinal: ordinal,
            append_time_ms: 5,
            lane: LaneId(0),
            position: 128 + (block % 10) as u32 * 8192 + n as u32 * 1024,
        }
        .stamp(&mut chunk);
        bytes.extend(chunk);
    }
    (count as u32, bytes)
}

/// A block of one large chunk, which says its number all over.
pub fn large(block: u64) -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(&block.to_le_bytes().repeat(25_000 + block as usize)));
    let target = ChunkTarget { stream: StreamId(1), sequence: block, ..ChunkTarget::default() };
    let mut chunk = builder.seal(&target, Compression::None).expect("a chunk");
    let place = BrokerPart {
        group: GroupId::new(3, 1),
        segment: SegmentIndex(0),
        base_ordinal: block,
        append_time_ms: 5,
        lane: LaneId(0),
        position: 128,
    };
    place.stamp(&mut chunk);
    chunk
}

pub fn head(log: LogId, block: u64, view_first: u64, synced: bool, chunk_count: u32, chunks: &[u8]) -> StoreHead {
    StoreHead {
        cluster: CLUSTER,
        log,
        view: 1,
        view_first,
        block,
        written_ms: 77,
        chunk_count,
        chunk_bytes: chunks.len() as u32,
        chunks_checksum: crc32c(chunks),
        flags: if synced { STORE_SYNCED } else { 0 },
    }
}

/// A backup and who sends to it.
pub struct Rig {
    pub backup: Arc<Backup>,
    pub answers: Arc<Answers>,
    pub token: u64,
    pub sent: HashMap<u64, (LogId, u64)>,
}

impl Rig {
    pub fn over(backup: Arc<Backup>) -> Rig {
        Rig { backup, answers: Arc::default(), token: 0, sent: HashMap::new() }
    }

    pub fn send(&mut self, log: LogId, block: u64, view_first: u64, synced: bool) -> Taken {
        let (count, bytes) = chunks(log, block);
        self.token += 1;
        let done = Arc::clone(&self.answers) as Arc<dyn StoreDone>;
        let head = head(log, block, view_first, synced, count, &bytes);
        // Copied from a buffer, or put where they are written from: one is as good as the other.
        let taken = if self.token.is_multiple_of(2) {
            self.backup.store(&head, &bytes, &done, self.token)
        } else {
            let mut place = self.backup.place(bytes.len());
            let address = place.as_ptr();
            place.extend_from_slice(&bytes);
            assert_eq!(place.as_ptr(), address, "it has room for them");
            let taken = self.backup.store_placed(&head, &mut place, &done, self.token);
            assert_eq!(place.is_empty(), taken != Taken::Full, "{taken:?}");
            taken
        };
        self.sent.insert(self.token, (log, block));
        taken
    }

    pub fn write(&self) {
        for disk in 0..self.backup.disk_count() {
            while self.backup.run_once(disk) != Ran::Idle {}
        }
    }

    /// Sends a block, writes, and gives the answer.
    pub fn store(&mut self, log: LogId, block: u64, view_first: u64, synced: bool) -> Result<BlockStored, BackupError> {
        match self.send(log, block, view_first, synced) {
            Taken::Answered(answer) => Ok(answer),
            Taken::Refused(error) => Err(error),
            Taken::Queued => {
                self.write();
                self.answers.all.lock().expect("no panic")[&self.token].clone()
            }
            Taken::Full => panic!("block {block} finds no room"),
        }
    }

    pub fn ranges(&self, log: LogId) -> Vec<BlockRange> {
        let list = self.backup.list(&ListReplicas { after: None, limit: 0 });
        list.replicas.iter().find(|replica| replica.log == log).map_or_else(Vec::new, |replica| replica.blocks.clone())
    }

    pub fn read(&self, log: LogId, from_block: u64, through_block: u64) -> Result<Vec<u64>, BackupError> {
        let (mut blocks, mut next) = (Vec::new(), from_block);
        while next <= through_block {
            let asked = ReadBlocks { log, from_block: next, through_block, streamlets: Vec::new(), max_bytes: 3000 };
            let read = self.backup.read_blocks(&asked)?;
            for (head, bytes) in &read.blocks {
                assert_eq!(&bytes[..], chunks(log, head.block).1, "block {} has another content", head.block);
                assert_eq!(crc32c(bytes), head.chunks_checksum);
                blocks.push(head.block);
            }
            if read.next_block == next {
                break;
            }
            next = read.next_block;
        }
        Ok(blocks)
    }
}

pub fn memory() -> (MemoryDisk, Vec<Arc<dyn Disk>>) {
    let disk = MemoryDisk::new();
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(disk.clone())];
    (disk, disks)
}

pub fn stored(block: u64) -> BlockStored {
    BlockStored { outcome: StoreOutcome::Stored, block }
}
