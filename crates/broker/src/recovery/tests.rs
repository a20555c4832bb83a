//! Taking over and rebuilding a lane whose copies are answered from memory: a block for each chunk.

use bytes::Bytes;
use kera_env::{Clock, ManualClock};
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{
    BrokerPart, ChunkBuilder, ChunkView, Compression, Cursor, ProducerEpoch, ProducerId, Record, SegmentId,
    SegmentIndex, StreamOptions,
};
use kera_log::{Appended, Arena, ArenaConfig, Lane, Log, LogConfig};
use kera_protocol::BlockHead;
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::config::BrokerConfig;

const STREAM: StreamId = StreamId(7);
const X: StreamletId = StreamletId(0);
const LOST: LogId = LogId { node: 1, epoch: 7, vlog: 0 };

struct Node {
    log: Arc<Log>,
    broker: Arc<Broker>,
    _dir: tempfile::TempDir,
}

impl Node {
    /// A node that owns nothing.
    fn new(number: u32) -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 16 << 20, node: [7; 16] };
        let (arena, _) = Arena::create_or_attach(arena).expect("an arena");
        let log = Log::new(LogConfig { segment_arena_share: 1 << 20, ..LogConfig::default() }, arena);
        let clock = Arc::new(ManualClock::new(1_000_000)) as Arc<dyn Clock>;
        let broker = Broker::new(BrokerConfig::default(), Arc::clone(&log), clock);
        let options = StreamOptions {
            streamlets: 1,
            lanes: 1,
            segments_per_group: 1,
            segment_bytes_max: 64 << 10,
            ..StreamOptions::default()
        };
        broker.stream_created(STREAM, options).expect("a stream");
        broker.join_cluster([1; 16], number);
        let nobodys = Owner { node: 99, epoch: 1, older: Vec::new() };
        broker.place_stream(1, STREAM, vec![nobodys]).expect("a stream");
        Node { log, broker, _dir: dir }
    }

    fn is_owner(&self, node: u32, epoch: u32) {
        let owner = Owner { node, epoch, older: Vec::new() };
        self.broker.set_owner(epoch.into(), STREAM, X, owner).expect("a streamlet");
    }

    fn lane(&self) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).expect("a stream");
        let streamlet = stream.streamlet(X).expect("a streamlet");
        Arc::clone(streamlet.lane(LaneId(0)).expect("a lane"))
    }

    /// Appends a chunk of one record; three of them fill a segment.
    fn append(&self, sequence: u64) -> Appended {
        let value = vec![sequence as u8; 17_000];
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record::value(&value));
        let target = ChunkTarget {
            stream: STREAM,
            streamlet: X,
            producer_id: ProducerId(2),
            producer_epoch: ProducerEpoch(0),
            sequence,
        };
        let chunk = chunk.seal(&target, Compression::None).expect("it fits");
        let view = ChunkView::parse(&chunk).expect("a chunk");
        self.lane().append(&view, 5).expect("appended")
    }

    /// The chunks as they lie in the segments.
    fn chunks(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for group in self.lane().groups(GroupId::NONE, usize::MAX) {
            let (lane, index) = (LaneId(0), SegmentIndex(0));
            let id = SegmentId { stream: STREAM, streamlet: X, lane, group: group.id, index };
            let segment = self.log.segment(id).expect("in memory");
            for chunk in Chunks::new(segment.bytes(128, segment.head())) {
                all.push(chunk.expect("a chunk").as_bytes().to_vec());
            }
        }
        all
    }

    /// What a reader gets without waiting.
    fn readable(&self) -> Vec<u64> {
        let (lane, mut cursor, mut all) = (self.lane(), Cursor::default(), Vec::new());
        loop {
            let read = lane.read(cursor, 1 << 20, true).expect("a cursor that is there");
            for data in &read.data {
                for chunk in Chunks::new(data) {
                    all.push(place(chunk.expect("a chunk").as_bytes()).base_ordinal);
                }
            }
            if read.at_durable_end || read.loading {
                return all;
            }
            cursor = read.next;
        }
    }
}

fn place(chunk: &[u8]) -> BrokerPart {
    ChunkView::parse(chunk).expect("a chunk").broker().expect("a stamped one")
}

/// Backups 11 and 12, which have one log.
#[derive(Default)]
struct Memory {
    chunks: Vec<Vec<u8>>,
    /// They do not answer.
    silent: Vec<u32>,
    /// They have nothing, and do not know that they had.
    empty: Vec<u32>,
    /// They have given the first four blocks back.
    without_front: Vec<u32>,
    /// They are known to be lost.
    lost: Vec<u32>,
    /// How often each was asked.
    asked: Mutex<BTreeMap<u32, u32>>,
    /// With it nobody answers before two have been asked.
    together: Option<(Mutex<u32>, Condvar)>,
}

impl Memory {
    fn chunks_at(&self, backup: u32) -> Result<&[Vec<u8>], String> {
        *self.asked.lock().entry(backup).or_default() += 1;
        if let Some((count, changed)) = &self.together {
            let mut count = count.lock();
            *count += 1;
            changed.notify_all();
            if changed.wait_while_for(&mut count, |count| *count < 2, Duration::from_secs(20)).timed_out() {
                return Err("it was asked alone".to_owned());
            }
        }
        if self.silent.contains(&backup) {
            return Err("nobody answers".to_owned());
        }
        let chunks: &[Vec<u8>] = if self.empty.contains(&backup) { &[] } else { &self.chunks };
        Ok(chunks)
    }
}

impl Copies for Memory {
    fn is_there(&self, backup: u32) -> bool {
        !self.lost.contains(&backup)
    }

    fn lane_states(&self, backup: u32, _: &LaneStates) -> Result<LaneStateList, String> {
        let (mut parts, mut producers) = (Vec::new(), Vec::new());
        for chunk in self.chunks_at(backup)? {
            let view = ChunkView::parse(chunk).expect("a chunk");
            let BrokerPart { group, segment, position, base_ordinal, .. } = place(chunk);
            let end = position + chunk.len() as u32;
            let next_ordinal = base_ordinal + u64::from(view.header().record_count);
            parts.push(SegmentPart { group, segment, position, end, base_ordinal, next_ordinal });
            producers.push(ProducerPlace {
                producer_id: view.header().producer_id,
                producer_epoch: view.header().producer_epoch,
                sequence: view.header().sequence,
                base_ordinal,
                at: Cursor { group, segment, position },
            });
        }
        let Some(last) = parts.last() else { return Ok(LaneStateList { lanes: Vec::new() }) };
        let next_ordinal = last.next_ordinal;
        let producers = producers.split_off(producers.len().saturating_sub(5));
        let streamlet = StreamletRef { stream: STREAM, streamlet: X };
        let lane = ReplicatedLane { streamlet, lane: LaneId(0), next_ordinal, parts, producers };
        Ok(LaneStateList { lanes: vec![lane] })
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        let chunks = self.chunks_at(backup)?;
        let from = if self.without_front.contains(&backup) { asked.from_block.max(5) } else { asked.from_block };
        let last = asked.through_block.min(chunks.len() as u64).min(from + 2);
        let mut read = BlocksRead { next_block: from, blocks: Vec::new() };
        for block in from..=last {
            let chunk = &chunks[block as usize - 1];
            let head = BlockHead {
                block,
                written_ms: 1,
                chunk_count: 1,
                chunk_bytes: chunk.len() as u32,
                chunks_checksum: crc32c(chunk),
                zero: 0,
            };
            read.blocks.push((head, Bytes::copy_from_slice(chunk)));
            read.next_block = block + 1;
        }
        Ok(read)
    }
}

/// A lane of ten chunks whose owner is lost, and its log.
fn lost() -> (Memory, Vec<EndedLog>) {
    let lost = Node::new(1);
    lost.is_owner(1, 2);
    lost.broker.open_streamlet(STREAM, X, 2, None).expect("opened");
    for sequence in 0..10 {
        assert_eq!(lost.append(sequence).base_ordinal, sequence);
    }
    let memory = Memory { chunks: lost.chunks(), ..Memory::default() };
    assert_eq!(memory.chunks.len(), 10);
    let views = vec![EndedView { first: 1, backups: vec![11, 12] }];
    (memory, vec![EndedLog { log: LOST, views, end: 10 }])
}

#[test]
fn appends_go_on_and_readers_wait_for_what_is_rebuilt() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!((rebuild.lanes, rebuild.streamlets.len()), (1, 1));
    let retry = next.append(9);
    assert_eq!((retry.duplicate, retry.base_ordinal), (true, 9));
    let new = next.append(10);
    assert_eq!((new.duplicate, new.base_ordinal, new.cursor.group), (false, 10, GroupId::new(3, 1)));
    assert_eq!(next.lane().earliest().1, 0);
    assert_eq!(next.readable(), [0; 0]);
    let progress = RecoveryProgress::default();
    next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect("rebuilt");
    assert_eq!(progress.bytes_readable.load(Ordering::SeqCst), rebuild.bytes);
    assert_eq!(next.readable(), (0..11).collect::<Vec<u64>>());
    assert_eq!(next.chunks()[..10], memory.chunks[..]);
}

#[test]
fn what_is_behind_the_logs_end_is_not_served() {
    let (memory, logs) = lost();
    let logs = vec![EndedLog { end: 7, ..logs[0].clone() }];
    let memory = Memory { chunks: memory.chunks[..7].to_vec(), ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!((next.append(7).duplicate, next.append(8).base_ordinal), (false, 8));
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), (0..9).collect::<Vec<u64>>());
}

#[test]
fn backups_that_do_not_answer_or_have_lost_their_blocks_are_passed_over_and_named() {
    let (mut memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    (memory.silent, memory.empty) = (vec![11], vec![12]);
    let failed = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect_err("nobody knows");
    assert!(failed.message.contains("backup 11") && failed.message.contains("backup 12"), "{failed}");
    let streamlet = next.log.stream(STREAM).and_then(|stream| stream.streamlet(X).cloned()).expect("a streamlet");
    assert_eq!(streamlet.tenure(), Tenure::Elsewhere, "nothing was opened");
    (memory.silent, memory.empty) = (Vec::new(), vec![11]);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    memory.silent = vec![12];
    let progress = RecoveryProgress::default();
    let failed = next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect_err("nobody has it");
    assert!(failed.message.contains("backup 12"), "{failed}");
    memory.silent = vec![11];
    next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect("rebuilt");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

#[test]
fn what_one_backup_has_told_of_and_another_one_has_given_back_is_read_from_the_first() {
    let (mut memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    // While it is asked what there was 11 is away.
    memory.silent = vec![11];
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    (memory.silent, memory.without_front) = (Vec::new(), vec![11]);
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("12 has all of it");
    assert_eq!(next.readable(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_view_that_was_replaced_before_it_had_a_block_is_not_asked() {
    let (memory, logs) = lost();
    let memory = Memory { empty: vec![11], ..memory };
    let view = |first: u64, backup: u32| EndedView { first, backups: vec![backup] };
    for views in [vec![view(1, 11), view(1, 12)], vec![view(1, 12), view(6, 11), view(6, 12)]] {
        let logs = vec![EndedLog { views, ..logs[0].clone() }];
        let next = Node::new(2);
        next.is_owner(2, 3);
        let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
        next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("rebuilt");
        assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
    }
}

#[test]
fn a_backup_that_is_lost_is_asked_nothing_while_another_one_is_there() {
    let (memory, logs) = lost();
    let memory = Memory { silent: vec![11], lost: vec![11], ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
    assert!(!memory.asked.lock().contains_key(&11), "{:?}", memory.asked);
}

#[test]
fn of_those_that_are_there_one_is_asked_and_not_all() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert!(!memory.asked.lock().contains_key(&12), "{:?}", memory.asked);
}

#[test]
fn backups_that_are_all_lost_are_asked_at_once_and_one_that_answers_is_enough() {
    let (memory, logs) = lost();
    let (both, together) = (vec![11, 12], Some(Default::default()));
    let memory = Memory { silent: both.clone(), lost: both, together, ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let failed = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect_err("nobody says");
    assert!(failed.message.contains("backup 11") && failed.message.contains("backup 12"), "{failed}");
    assert!(!failed.message.contains("asked alone"), "{failed}");
    let memory = Memory { silent: vec![11], together: None, ..memory };
    next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
}
