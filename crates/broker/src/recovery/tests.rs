//! Taking over and rebuilding a lane whose copies are answered from memory: a block for each chunk.

use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use kera_env::{Clock, ManualClock};
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::cluster::HANDED_BYTES_MAX;
use kera_format::{
    BrokerPart, ChunkBuilder, ChunkView, Compression, Cursor, Durability, ProducerEpoch, ProducerId, Record, SegmentId,
    SegmentIndex, StreamOptions,
};
use kera_log::{
    Appended, Arena, ArenaConfig, ChunkReference, DurabilitySink, Lane, Log, LogConfig, Observer, SinkError, Ticket,
};
use kera_protocol::placement::OlderGroups;
use kera_protocol::{BlockHead, OfferGroups, Start, WholeLane};
use parking_lot::{Condvar, Mutex};

use super::returned::NotTaken;
use super::*;
use crate::config::BrokerConfig;
use crate::groups::tests::{groups_meanwhile, look_up_meanwhile};
use crate::moved::tests::read_meanwhile;
use crate::moved::{Reading, read_plain};

mod damaged;
mod for_one;
mod in_front;
mod much;
mod room;
mod several;

const STREAM: StreamId = StreamId(7);
const X: StreamletId = StreamletId(0);
const LOST: LogId = LogId { node: 1, epoch: 7, vlog: 0 };

/// Appends a chunk of one record; three of them fill a segment.
fn append_in(lane: &Arc<Lane>, sequence: u64) -> Appended {
    append_of(STREAM, lane, sequence)
}

fn append_of(stream: StreamId, lane: &Arc<Lane>, sequence: u64) -> Appended {
    let value = vec![sequence as u8; 17_000];
    let mut chunk = ChunkBuilder::default();
    chunk.push(&Record::value(&value));
    let target =
        ChunkTarget { stream, streamlet: X, producer_id: ProducerId(2), producer_epoch: ProducerEpoch(0), sequence };
    let chunk = chunk.seal(&target, Compression::None).expect("it fits");
    let view = ChunkView::parse(&chunk).expect("a chunk");
    lane.append(&view, 5).expect("appended")
}

struct Node {
    log: Arc<Log>,
    broker: Arc<Broker>,
    _dir: tempfile::TempDir,
}

impl Node {
    /// A node that owns nothing.
    fn new(number: u32) -> Node {
        Node::with(number, |_| {}, StreamOptions::default().durability)
    }

    fn with(number: u32, prepare: impl Fn(&Arc<Log>), durability: Durability) -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 16 << 20, node: [7; 16] };
        let (arena, _) = Arena::create_or_attach(arena).expect("an arena");
        let log = Log::new(LogConfig { segment_arena_share: 1 << 20, ..LogConfig::default() }, arena);
        prepare(&log);
        let clock = Arc::new(ManualClock::new(1_000_000)) as Arc<dyn Clock>;
        let broker = Broker::new(BrokerConfig::default(), Arc::clone(&log), clock);
        let options = StreamOptions {
            streamlets: 1,
            lanes: 2,
            segments_per_group: 1,
            segment_bytes_max: 64 << 10,
            durability,
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
        self.lane_of(LaneId(0))
    }

    fn lane_of(&self, lane: LaneId) -> Arc<Lane> {
        let stream = self.log.stream(STREAM).expect("a stream");
        let streamlet = stream.streamlet(X).expect("a streamlet");
        Arc::clone(streamlet.lane(lane).expect("a lane"))
    }

    /// Appends a chunk of one record; three of them fill a segment.
    fn append(&self, sequence: u64) -> Appended {
        self.append_to(LaneId(0), sequence)
    }

    fn append_to(&self, lane: LaneId, sequence: u64) -> Appended {
        append_in(&self.lane_of(lane), sequence)
    }

    /// The chunks as they lie in the segments.
    fn chunks(&self) -> Vec<Vec<u8>> {
        self.chunks_of(LaneId(0))
    }

    fn chunks_of(&self, lane: LaneId) -> Vec<Vec<u8>> {
        self.chunks_in(lane, |_| true)
    }

    fn chunks_in(&self, lane: LaneId, which: impl Fn(GroupId) -> bool) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for group in self.lane_of(lane).groups(GroupId::NONE, usize::MAX).into_iter().filter(|group| which(group.id)) {
            let index = SegmentIndex(0);
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
    /// Blocks that do not read back at one of them.
    damaged: Vec<(u32, u64)>,
    /// How often each was asked.
    asked: Mutex<BTreeMap<u32, u32>>,
    /// With it nobody answers before two have been asked.
    together: Option<(Mutex<u32>, Condvar)>,
    /// They never had the last three blocks.
    behind: Vec<u32>,
    /// What the coordinators were told before streamlets were opened, and whether they refuse it.
    opened_with: Mutex<Vec<(LogId, u64)>>,
    refuses: bool,
}

impl Memory {
    fn chunks_at(&self, backup: u32) -> Result<&[Vec<u8>], String> {
        *self.asked.lock().entry(backup).or_default() += 1;
        if let Some((count, changed)) = &self.together {
            let mut count = count.lock();
            *count += 1;
            changed.notify_all();
            if changed.wait_while_for(&mut count, |count| *count < 2, Duration::from_secs(120)).timed_out() {
                return Err("it was asked alone".to_owned());
            }
        }
        if self.silent.contains(&backup) {
            return Err("nobody answers".to_owned());
        }
        let has = match (self.empty.contains(&backup), self.behind.contains(&backup)) {
            (true, _) => 0,
            (_, true) => self.chunks.len() - 3,
            _ => self.chunks.len(),
        };
        Ok(&self.chunks[..has])
    }
}

impl Copies for Memory {
    fn is_there(&self, backup: u32) -> bool {
        !self.lost.contains(&backup)
    }

    fn opens_with(&self, ends: &[(LogId, u64)]) -> Result<(), String> {
        self.opened_with.lock().extend(ends);
        if self.refuses { Err("log 0 ends at block 9 by now".to_owned()) } else { Ok(()) }
    }

    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        let (mut parts, mut producers, mut of_lane): (Vec<SegmentPart>, _, _) = (Vec::new(), Vec::new(), LaneId(0));
        let within = |block: &u64| (asked.from_block..=asked.through_block).contains(block);
        for (_, chunk) in (1..).zip(self.chunks_at(backup)?).filter(|(block, _)| within(block)) {
            let view = ChunkView::parse(chunk).expect("a chunk");
            let BrokerPart { group, segment, position, base_ordinal, lane, .. } = place(chunk);
            of_lane = lane;
            let end = position + chunk.len() as u32;
            let next_ordinal = base_ordinal + u64::from(view.header().record_count);
            match parts.last_mut() {
                Some(last) if (last.group, last.segment, last.end) == (group, segment, position) => {
                    (last.end, last.next_ordinal) = (end, next_ordinal);
                }
                _ => parts.push(SegmentPart {
                    group,
                    segment,
                    position,
                    end,
                    base_ordinal,
                    next_ordinal,
                    rewrite: 0,
                    row_end: 0,
                }),
            }
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
        let lane = ReplicatedLane { streamlet, lane: of_lane, next_ordinal, parts, producers };
        Ok(LaneStateList { lanes: vec![lane] })
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        let chunks = self.chunks_at(backup)?;
        let begins = if self.without_front.contains(&backup) { 5 } else { 1 };
        let from = asked.from_block.max(begins).min(asked.through_block + 1);
        let last = asked.through_block.min(chunks.len() as u64).min(from + 2);
        if let Some((_, block)) = self.damaged.iter().find(|(at, block)| *at == backup && (from..=last).contains(block))
        {
            return Err(format!("{NOT_READ_BACK}block {block} does not read back"));
        }
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
    let (_, memory, logs) = lost_node();
    (memory, logs)
}

/// The same with the lost node as it comes back.
fn lost_node() -> (Node, Memory, Vec<EndedLog>) {
    let lost = Node::new(1);
    lost.is_owner(1, 2);
    lost.broker.open_streamlet(STREAM, X, 2, None).expect("opened");
    for sequence in 0..10 {
        assert_eq!(lost.append(sequence).base_ordinal, sequence);
    }
    let memory = Memory { chunks: lost.chunks(), ..Memory::default() };
    assert_eq!(memory.chunks.len(), 10);
    let views = vec![EndedView { first: 1, backups: vec![11, 12] }];
    (lost, memory, vec![EndedLog { log: LOST, views, end: 10, at_all: false }])
}

/// What a node that came back offers the owner of epoch 3.
fn offer(back: &Node) -> OfferGroups {
    back.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older: Vec::new() }).expect("a streamlet");
    let lanes = back.broker.whole_lanes(STREAM, X).expect("it is whole");
    let (cut_off, let_go) = (back.broker.cut_off_lanes(STREAM, X), back.broker.let_go_lanes(STREAM, X));
    offer_of(3, lanes, cut_off, let_go)
}

/// What node 1 offers the owner of an epoch, if it has that.
fn offer_of(owner_epoch: u32, lanes: Vec<WholeLane>, cut_off: Vec<WholeLane>, let_go: Vec<LaneId>) -> OfferGroups {
    let (node, epoch, is_uncut) = (1, 8, false);
    OfferGroups { node, epoch, stream: STREAM, streamlet: X, owner_epoch, lanes, cut_off, let_go, is_uncut }
}

#[test]
fn what_a_node_came_back_with_is_read_no_more_and_the_owner_goes_on() {
    let (back, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!(next.append(10).base_ordinal, 10);
    let kept = next.broker.check_offer(&rebuild, &offer(&back), None, HANDED_BYTES_MAX).expect("it is all of it");
    let kept = <StreamletState as kera_protocol::Body>::decode(1, &kept).expect("a state");
    let [lane] = &kept.lanes[..] else { panic!("{kept:?}") };
    assert_eq!((lane.next_ordinal, lane.producers[0].sequence), (10, 9), "as it was when it was taken over");
    let older = vec![OlderGroups { first_epoch: 1, node: 1 }];
    for node in [&back, &next] {
        let owner = Owner { node: 2, epoch: 3, older: older.clone() };
        node.broker.set_owner(4, STREAM, X, owner).expect("a streamlet");
    }
    assert!(next.broker.leave_to_holder(STREAM, X) >= 170_000);
    let progress = RecoveryProgress::default();
    next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect("nothing is left to rebuild");
    assert_eq!(progress.bytes_read.load(Ordering::SeqCst), 0);
    assert_eq!((next.append(9).duplicate, next.append(11).base_ordinal), (true, 11));
    assert_eq!((back.readable(), next.readable()), ((0..10).collect(), vec![10, 11]));
    // Whoever comes after this owner, with nothing but what is kept of it, goes on behind it.
    let third = Node::new(3);
    third.broker.set_owner(5, STREAM, X, Owner { node: 3, epoch: 5, older }).expect("a streamlet");
    let handed = HandedStates::from([((STREAM, X), kept)]);
    third.broker.take_over_moved(&[(STREAM, X, 5)], &[], &memory, &handed).expect("taken over");
    assert_eq!((third.append(9).duplicate, third.append(10).base_ordinal), (true, 10));
}

/// It has heard of that with all else that has become true, and not by itself.
#[test]
fn all_that_nodes_have_come_back_with_is_left_to_them_at_once() {
    let (_, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!(next.broker.leave_all_to_holders(), 0, "nobody holds anything");
    let older = vec![OlderGroups { first_epoch: 1, node: 1 }];
    next.broker.set_owner(4, STREAM, X, Owner { node: 2, epoch: 3, older }).expect("a streamlet");
    assert!(next.broker.leave_all_to_holders() >= 170_000);
    let progress = RecoveryProgress::default();
    next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect("nothing is left to rebuild");
    assert_eq!(progress.bytes_read.load(Ordering::SeqCst), 0);
}

/// An owner that has rebuilt its streamlet from the logs of a lost node, and written something itself since.
fn with_more_than_was_rebuilt() -> Node {
    let (_, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("rebuilt");
    next.append(10);
    next
}

/// The lost node is back with the older groups of the streamlet, and this one leaves them to it.
fn older_groups_leave(next: &Node) {
    let older = vec![OlderGroups { first_epoch: 1, node: 1 }];
    next.broker.set_owner(4, STREAM, X, Owner { node: 2, epoch: 3, older }).expect("a streamlet");
    assert!(next.broker.leave_to_holder(STREAM, X) > 0);
}

/// Groups that leave while a reader is between its look at the owners and its look at the lane are not taken for groups that are gone.
#[test]
fn a_reader_that_comes_while_groups_leave_is_sent_after_them() {
    let next = with_more_than_was_rebuilt();
    let stream = next.broker.log().stream(STREAM).expect("a stream");
    let lane = stream.streamlet(X).expect("a streamlet").lane(LaneId(0)).expect("a lane").clone();
    let first = lane.groups(GroupId::NONE, 1)[0].id;
    let cursor = Cursor { group: first, ..Cursor::default() };
    let leaves = || older_groups_leave(&next);
    let reading = read_meanwhile(&next.broker, &lane, cursor, &leaves);
    assert!(matches!(reading, Reading::Elsewhere(at) if at == cursor), "{reading:?}");
}

/// Also where nobody else had anything of the lane when it came.
#[test]
fn a_reader_that_finds_a_lane_whole_looks_again_if_groups_have_left_it_meanwhile() {
    let next = with_more_than_was_rebuilt();
    let lane = next.lane();
    let leaves = || older_groups_leave(&next);
    let first = lane.groups(GroupId::NONE, 1)[0].id;
    let whole = read_plain(&lane, Cursor::default(), 1 << 20, true, || ()).expect("nobody else has anything");
    assert!(matches!(whole, Ok(Reading::Here(found)) if found.start.group == first));
    assert!(read_plain(&lane, Cursor::default(), 1 << 20, true, leaves).is_none(), "what stays is not all");
    assert_ne!(lane.groups(GroupId::NONE, 1)[0].id, first);
}

/// Nor is whoever asks which groups there are told of those that stay, as if these were all.
#[test]
fn who_asks_for_groups_while_some_leave_is_not_told_of_the_others_alone() {
    let next = with_more_than_was_rebuilt();
    let leaves = || older_groups_leave(&next);
    assert_eq!(groups_meanwhile(&next.broker, (STREAM, X), &|| ()), Ok(vec![2, 3]));
    assert_eq!(groups_meanwhile(&next.broker, (STREAM, X), &leaves), Err(Status::NotOwner));
    assert_eq!(groups_meanwhile(&next.broker, (STREAM, X), &|| ()), Ok(vec![3]));
}

#[test]
fn who_has_not_found_a_stream_that_came_right_behind_that_asks_again() {
    let node = Node::new(2);
    // All with lower numbers are heard of: this one is there, the other one never was.
    let said = |stream| node.broker.unknown_stream(stream).status;
    assert_eq!((said(STREAM), said(StreamId(STREAM.0 - 1))), (Status::NotReady, Status::UnknownStream));
}

/// A lane that is taken over is empty for a moment. Whoever has looked at it then is not told that it begins, or ends, there because it is open when that is asked.
#[test]
fn a_place_that_was_looked_up_before_a_streamlet_is_taken_over_counts_for_nothing() {
    let (_, memory, logs) = lost_node();
    for at in [Start::Earliest, Start::Latest] {
        let next = Node::new(2);
        next.is_owner(2, 3);
        let stream = next.broker.log().stream(STREAM).expect("a stream");
        let lane = stream.streamlet(X).expect("a streamlet").lane(LaneId(0)).expect("a lane").clone();
        let is_taken = || {
            next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
        };
        assert_eq!(look_up_meanwhile(&next.broker, &lane, at, &|| ()), Err(Status::NotOwner));
        assert_eq!(look_up_meanwhile(&next.broker, &lane, at, &is_taken), Err(Status::NotOwner));
        let place = if at == Start::Latest { 10 } else { 0 };
        assert_eq!(look_up_meanwhile(&next.broker, &lane, at, &|| ()), Ok((place, 10)));
    }
}

/// What the owner holds itself has its copies in its own logs, and would go with nothing in the logs of the node that came back.
#[test]
fn of_what_the_owner_holds_some_itself_nothing_is_left_to_another_node() {
    let (next, lost) = (Node::new(2), Node::new(1));
    next.is_owner(2, 2);
    next.broker.open_streamlet(STREAM, X, 2, None).expect("opened");
    (0..3).for_each(|sequence| assert!(!next.append(sequence).duplicate));
    next.broker.let_go(STREAM, X).expect("it is its own");
    let state = next.broker.handed_over(STREAM, X).expect("let go").expect("durable");
    let older = |first_epoch| OlderGroups { first_epoch, node: 2 };
    for node in [&next, &lost] {
        node.broker.set_owner(3, STREAM, X, Owner { node: 1, epoch: 3, older: vec![older(2)] }).expect("a streamlet");
    }
    lost.broker.open_streamlet(STREAM, X, 3, Some(&state)).expect("opened");
    let appended: Vec<u64> = (3..10).map(|sequence| lost.append(sequence).base_ordinal).collect();
    assert_eq!(appended.last(), Some(&9));
    let memory = Memory { chunks: lost.chunks(), ..Memory::default() };
    let logs =
        [EndedLog { log: LOST, views: vec![EndedView { first: 1, backups: vec![11, 12] }], end: 7, at_all: false }];
    let owner = Owner { node: 2, epoch: 4, older: vec![older(2), older(3)] };
    next.broker.set_owner(4, STREAM, X, owner).expect("a streamlet");
    let handed = HandedStates::from([((STREAM, X), state)]);
    let rebuild = next.broker.take_over_moved(&[(STREAM, X, 4)], &logs, &memory, &handed).expect("taken over");
    let all = WholeLane { lane: LaneId(0), first_ordinal: 0, next_ordinal: 10 };
    let offered = offer_of(4, vec![all], Vec::new(), Vec::new());
    let refused = next.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX);
    assert!(matches!(refused, Err(NotTaken::Never(_))), "{refused:?}");
}

/// A log whose backups are away.
struct NoCopies;

impl DurabilitySink for NoCopies {
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

/// They give one block at a time, and after so many of them, and looks at something else, the node is told to stop.
struct UntilStop {
    memory: Memory,
    blocks: u32,
    read: AtomicU32,
    threads: usize,
}

impl Copies for UntilStop {
    fn goes_on(&self) -> bool {
        self.read.load(Ordering::SeqCst) < self.blocks
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn pause(&self) -> Duration {
        self.read.fetch_add(1, Ordering::SeqCst);
        Duration::ZERO
    }

    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.memory.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        if self.read.fetch_add(1, Ordering::SeqCst) >= self.blocks {
            return Err("this node is stopping".to_owned());
        }
        self.memory.read_blocks(backup, &ReadBlocks { through_block: asked.from_block, ..asked.clone() })
    }
}

#[test]
fn a_rebuild_ends_without_the_rest_when_the_node_is_to_stop_and_goes_on_with_it_later() {
    for threads in [1, THREADS] {
        let (memory, logs) = lost();
        let logs = with_end_at_all(&logs);
        let next = Node::new(2);
        next.is_owner(2, 3);
        let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
        let stops = UntilStop { memory, blocks: 2, read: AtomicU32::new(0), threads };
        let progress = RecoveryProgress::default();
        let failed = next.broker.rebuild(&rebuild, &logs, &stops, &progress).expect_err("it is to stop");
        assert_eq!(failed.status, Status::ShuttingDown, "{failed}");
        let read = stops.read.load(Ordering::SeqCst);
        assert!(read < 10, "{read} blocks were read");
        assert!(next.lane().durable_ordinal() == 10 && next.readable().is_empty(), "what is missing is awaited");
        next.broker.rebuild(&rebuild, &logs, &stops.memory, &progress).expect("it goes on");
        assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
    }
}

/// All can be read by then, and its copies are what is waited for.
#[test]
fn a_rebuild_does_not_wait_for_its_copies_when_the_node_is_to_stop() {
    let (memory, logs) = lost();
    let has_none = |log: &Arc<Log>| log.set_sinks(Arc::new(vec![Arc::new(NoCopies) as Arc<dyn DurabilitySink>]));
    let next = Node::with(2, has_none, Durability::Power);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    // All was read before it was opened.
    let stops = UntilStop { memory, blocks: 2, read: AtomicU32::new(0), threads: 1 };
    let failed = next.broker.rebuild(&rebuild, &logs, &stops, &RecoveryProgress::default()).expect_err("it is to stop");
    assert_eq!((failed.status, stops.read.into_inner()), (Status::ShuttingDown, 2), "{failed}");
}

/// A streamlet's give-up looks through all blocks there are: what is not asked any more is not nowhere.
#[test]
fn nothing_is_given_up_because_the_node_is_to_stop() {
    let (memory, logs) = lost();
    for blocks in 1..40 {
        let next = Node::new(2);
        next.is_owner(2, 3);
        let memory = copy_of(&memory);
        let rebuild =
            next.broker.take_over(&[(STREAM, X, 3)], &in_two_views(&logs, &[11]), &memory).expect("taken over");
        let other = EndedLog { log: Two::OTHER, ..logs[0].clone() };
        let all = [in_two_views(&logs, &[]), vec![other]].concat();
        let stops = UntilStop { memory, blocks, read: AtomicU32::new(0), threads: 1 };
        let _ = next.broker.rebuild(&rebuild, &all, &stops, &RecoveryProgress::default());
        assert_eq!(next.lane().groups(GroupId::NONE, usize::MAX)[0].first_ordinal, 0, "after {blocks} blocks");
    }
}

/// Two logs, the second one of another node.
struct Two(Memory, Memory);

impl Two {
    const OTHER: LogId = LogId { node: 4, ..LOST };

    fn of(&self, log: LogId) -> &Memory {
        if log == Two::OTHER { &self.1 } else { &self.0 }
    }
}

impl Copies for Two {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.of(asked.log).lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.of(asked.log).read_blocks(backup, asked)
    }
}

/// A log of the holder's life before has the beginning of what it holds. All of that is with the holder.
#[test]
fn parts_of_what_another_node_holds_are_not_rebuilt() {
    let (first, holder, next) = (Node::new(1), Node::new(4), Node::new(2));
    first.is_owner(1, 2);
    first.broker.open_streamlet(STREAM, X, 2, None).expect("opened");
    (0..6).for_each(|sequence| assert!(!first.append(sequence).duplicate));
    let moves = |from: &Node| {
        from.broker.let_go(STREAM, X).expect("it is its own");
        from.broker.handed_over(STREAM, X).expect("let go").expect("durable")
    };
    let state = moves(&first);
    let older = |first_epoch, node| OlderGroups { first_epoch, node };
    holder.broker.set_owner(3, STREAM, X, Owner { node: 4, epoch: 3, older: vec![older(1, 1)] }).expect("a streamlet");
    holder.broker.open_streamlet(STREAM, X, 3, Some(&state)).expect("opened");
    (6..10).for_each(|sequence| assert_eq!(holder.append(sequence).base_ordinal, sequence));
    let handed = HandedStates::from([((STREAM, X), moves(&holder))]);

    let (oldest, held) = (first.chunks(), holder.chunks());
    let memory = |chunks: &[Vec<u8>]| Memory { chunks: chunks.to_vec(), ..Memory::default() };
    let copies = Two(memory(&oldest), memory(&held[..2]));
    let log = |log, end| {
        let views = vec![EndedView { first: 1, backups: vec![11, 12] }];
        EndedLog { log, views, end, at_all: true }
    };
    let logs = [log(LOST, 6), log(Two::OTHER, 2)];
    // By an older table what the lost owner wrote would be with the holder as well.
    let early =
        next.broker.take_over_moved(&[(STREAM, X, 5)], &logs, &copies, &handed).expect_err("it was not told yet");
    assert!(early.to_string().contains("does not name this node yet"), "{early}");
    let owner = Owner { node: 2, epoch: 5, older: vec![older(1, 2), older(3, 4)] };
    next.broker.set_owner(5, STREAM, X, owner).expect("a streamlet");
    let rebuild = next.broker.take_over_moved(&[(STREAM, X, 5)], &logs, &copies, &handed).expect("taken over");
    assert_eq!((next.append(9).duplicate, next.append(10).base_ordinal), (true, 10));
    next.broker.rebuild(&rebuild, &logs, &copies, &RecoveryProgress::default()).expect("rebuilt");
    let epochs: Vec<u32> = next.lane().groups(GroupId::NONE, 9).iter().map(|group| group.id.epoch()).collect();
    assert_eq!(epochs, [2, 2, 5], "nothing of the holder's");
    assert_eq!(next.chunks()[..6], oldest[..]);
    assert_eq!(rebuild.needs.iter().copied().collect::<Vec<_>>(), [LOST], "its log is of no use here");
}

/// Of a short lane nothing is left to read once the last blocks of its log are there. It came from that log all the same, which goes with the rebuild.
#[test]
fn what_was_read_before_opening_came_from_its_log_too() {
    let (back, memory, mut logs) = lost_node();
    let short = LaneId(1);
    (0..3).for_each(|sequence| assert!(!back.append_to(short, sequence).duplicate));
    let other = Memory { chunks: back.chunks_of(short), ..Memory::default() };
    logs.push(EndedLog { log: Two::OTHER, end: 3, ..logs[0].clone() });
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &Two(memory, other)).expect("taken over");
    assert_eq!(next.chunks_of(short).len(), 3, "it is whole");
    let refused = next
        .broker
        .check_offer(&rebuild, &offer(&back), None, HANDED_BYTES_MAX)
        .expect_err("its copies go with that log");
    assert!(refused.to_string().contains("not in logs of node 1"), "{refused}");
}

/// It has opened one streamlet, and fails with another one. Who comes back with the first has what the next try goes on with; but not if some of it has come from the log of another node, of
/// which that try has nothing to read any more.
#[test]
fn what_an_earlier_try_has_opened_is_held_again_by_who_comes_back_with_it() {
    const LAST: StreamId = StreamId(8);
    for is_of_two in [false, true] {
        let (back, memory, mut logs) = lost_node();
        let mut other = Memory::default();
        if is_of_two {
            let short = LaneId(1);
            (0..3).for_each(|sequence| assert!(!back.append_to(short, sequence).duplicate));
            other.chunks = back.chunks_of(short);
            logs.push(EndedLog { log: Two::OTHER, end: 3, ..logs[0].clone() });
        }
        let copies = Two(memory, other);
        let next = Node::new(2);
        next.is_owner(2, 3);
        let options = StreamOptions { streamlets: 1, lanes: 2, ..StreamOptions::default() };
        next.broker.stream_created(LAST, options).expect("a stream");
        let owner = |node, epoch| Owner { node, epoch, older: Vec::new() };
        next.broker.place_stream(1, LAST, vec![owner(99, 1)]).expect("a stream");
        next.broker.set_owner(3, LAST, X, owner(2, 3)).expect("a streamlet");
        let (both, producers, groups) = ([(STREAM, X, 3), (LAST, X, 3)], Vec::new(), Vec::new());
        let (lane, forgot) = (LaneId(9), false);
        let unknown = LaneHandover { lane, next_ordinal: 0, last_append_ms: 0, forgot, hole_end: 0, producers, groups };
        let (lanes, progress) = (vec![handover::to_lane(unknown)], Vec::new());
        let state = StreamletState { stream: LAST, streamlet: X, epoch: 1, lanes, progress };
        let handed = HandedStates::from([((LAST, X), state)]);
        let failed = next.broker.take_over_moved(&both, &logs, &copies, &handed).expect_err("it has no such lane");
        assert!(failed.message.contains("not taken over yet"), "{failed}");
        assert_eq!(next.append(10).base_ordinal, 10, "the first one is open");
        let rebuild = next.broker.take_over(&both, &logs, &copies).expect("taken over");
        let answer = next.broker.check_offer(&rebuild, &offer(&back), None, HANDED_BYTES_MAX);
        match is_of_two {
            false => assert!(answer.is_ok(), "{answer:?}"),
            true => {
                let refused = answer.expect_err("its copies go with that log").to_string();
                assert!(refused.contains("not in logs of node 1"), "{refused}");
            }
        }
    }
}

/// An owner was killed with a block under way, and went on without it: its log of before has it, and tells of it together with what is in front.
#[test]
fn what_an_owner_has_cut_before_it_went_on_is_cut_in_the_midst_of_a_segment() {
    let (lost, _, logs) = lost_node();
    let log = |log, end| EndedLog { log, end, ..logs[0].clone() };
    let all = lost.chunks();
    // Of its third segment, which has three chunks, the first two were acknowledged.
    let went_on = Node::new(4);
    went_on.is_owner(4, 3);
    let of = |chunks: &[Vec<u8>]| Memory { chunks: chunks.to_vec(), ..Memory::default() };
    went_on.broker.take_over(&[(STREAM, X, 3)], &[log(LOST, 8)], &of(&all[..8])).expect("taken over");
    assert_eq!([8, 9].map(|sequence| went_on.append(sequence).base_ordinal), [8, 9]);
    let behind: Vec<Vec<u8>> = went_on.chunks_in(LaneId(0), |group| group.epoch() == 3);
    assert_eq!(behind.len(), 2);

    let copies = Two(of(&all[..9]), of(&behind));
    let logs = [log(LOST, 9), log(Two::OTHER, 2)];
    let next = Node::new(2);
    next.is_owner(2, 5);
    let rebuild = next.broker.take_over(&[(STREAM, X, 5)], &logs, &copies).expect("taken over");
    assert_eq!((next.append(9).duplicate, next.append(10).base_ordinal), (true, 10));
    next.broker.rebuild(&rebuild, &logs, &copies, &RecoveryProgress::default()).expect("rebuilt");
    let rebuilt = next.chunks_in(LaneId(0), |group| group.epoch() < 5);
    assert_eq!(rebuilt, [&all[..8], &behind[..]].concat());
}

#[test]
fn a_node_that_does_not_have_all_is_not_believed() {
    let (back, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let offered = offer(&back);
    let refuses = |lane: WholeLane, words: &str| {
        let refused = next.broker.check_offer(
            &rebuild,
            &OfferGroups { lanes: vec![lane], ..offered.clone() },
            None,
            HANDED_BYTES_MAX,
        );
        let Err(NotTaken::Never(refused)) = refused else { panic!("it is not all of it: {refused:?}") };
        assert!(refused.contains(words), "{refused}");
    };
    let all = offered.lanes[0];
    refuses(WholeLane { next_ordinal: 9, ..all }, "goes from 0 to 10");
    refuses(WholeLane { next_ordinal: 11, ..all }, "goes from 0 to 10");
    refuses(WholeLane { first_ordinal: 3, ..all }, "goes from 0 to 10");
    refuses(WholeLane { lane: LaneId(1), ..all }, "goes from 0 to 10");
    // Copies that are in logs of others are not kept for it.
    let other = OfferGroups { node: 3, ..offered.clone() };
    let refused =
        next.broker.check_offer(&rebuild, &other, None, HANDED_BYTES_MAX).expect_err("these are not its logs");
    assert!(refused.to_string().contains("not in logs of node 3"), "{refused}");
    let earlier = OfferGroups { owner_epoch: 2, ..offered };
    assert!(matches!(next.broker.check_offer(&rebuild, &earlier, None, HANDED_BYTES_MAX), Err(NotTaken::Later(_))));
    // What was appended and never acknowledged has been given away since.
    let (memory, logs) =
        (Memory { chunks: memory.chunks[..7].to_vec(), ..memory }, [EndedLog { end: 7, ..logs[0].clone() }]);
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let refused = next.broker.check_offer(&rebuild, &offer(&back), None, HANDED_BYTES_MAX).expect_err("it has more");
    assert!(refused.to_string().contains("goes from 0 to 7"), "{refused}");
}

/// Of what it has cut off it is told what counts, and takes that up; then it is whole.
#[test]
fn a_node_that_lacks_what_it_has_cut_off_is_told_where_lanes_end() {
    let (_, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let lane = |first_ordinal, next_ordinal| WholeLane { lane: LaneId(0), first_ordinal, next_ordinal };
    let asks = |lanes: &[WholeLane], cut_off: &[WholeLane], let_go: &[LaneId]| {
        let offered = offer_of(3, lanes.to_vec(), cut_off.to_vec(), let_go.to_vec());
        next.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX)
    };
    let lacking = |of: Result<Vec<u8>, NotTaken>| match of {
        Err(NotTaken::Lacking(lanes)) => lanes,
        other => panic!("it could be whole: {other:?}"),
    };
    assert_eq!(lacking(asks(&[lane(0, 7)], &[lane(7, 12)], &[])), [lane(7, 10)]);
    assert_eq!(lacking(asks(&[lane(0, 7)], &[lane(7, 10)], &[])), [lane(7, 10)]);
    assert_eq!(lacking(asks(&[], &[lane(0, 12)], &[])), [lane(0, 10)]);
    assert_eq!(lacking(asks(&[lane(4, 7)], &[lane(7, 12)], &[LaneId(0)])), [lane(7, 10)], "and has let go of the rest");
    let never = |of: Result<Vec<u8>, NotTaken>| assert!(matches!(of, Err(NotTaken::Never(_))), "{of:?}");
    never(asks(&[lane(0, 7)], &[lane(7, 9)], &[]));
    never(asks(&[lane(0, 7)], &[lane(8, 12)], &[]));
    never(asks(&[lane(4, 7)], &[lane(7, 12)], &[]));
    never(asks(&[], &[lane(4, 12)], &[]));
    never(asks(&[lane(0, 11)], &[lane(11, 12)], &[]));
    // Lanes of which nothing counts are as they were cut.
    let other = WholeLane { lane: LaneId(1), ..lane(0, 3) };
    assert!(asks(&[lane(0, 10)], &[lane(10, 12), other], &[]).is_ok());
}

/// Backups have the front of a lane for longer than its owner.
#[test]
fn what_a_node_has_let_go_of_itself_it_need_not_have() {
    let (_, memory, logs) = lost_node();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let all = WholeLane { lane: LaneId(0), first_ordinal: 6, next_ordinal: 10 };
    let offered = offer_of(3, vec![all], Vec::new(), vec![LaneId(0)]);
    let other = OfferGroups { let_go: vec![LaneId(1)], ..offered.clone() };
    let refused = next.broker.check_offer(&rebuild, &other, None, HANDED_BYTES_MAX).expect_err("that is another lane");
    assert!(refused.to_string().contains("goes from 0 to 10"), "{refused}");
    let kept =
        next.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX).expect("it is all that there is to be");
    let kept = <StreamletState as kera_protocol::Body>::decode(1, &kept).expect("a state");
    assert_eq!(kept.lanes[0].next_ordinal, 10);
    let shorter = WholeLane { next_ordinal: 9, ..all };
    let shorter = OfferGroups { lanes: vec![shorter], ..offered };
    assert!(matches!(next.broker.check_offer(&rebuild, &shorter, None, HANDED_BYTES_MAX), Err(NotTaken::Never(_))));
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
fn nothing_is_opened_before_it_is_known_with_which_ends() {
    let (mut memory, logs) = lost();
    let idle = EndedLog { log: LogId { vlog: 1, ..LOST }, views: Vec::new(), end: 3, at_all: false };
    let logs = [logs, vec![idle]].concat();
    let next = Node::new(2);
    next.is_owner(2, 3);
    memory.refuses = true;
    let failed = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect_err("it ends elsewhere by now");
    assert!(failed.message.contains("ends at block 9 by now"), "{failed}");
    let streamlet = next.log.stream(STREAM).and_then(|stream| stream.streamlet(X).cloned()).expect("a streamlet");
    assert_eq!(streamlet.tenure(), Tenure::Elsewhere, "nothing was opened");
    memory.refuses = false;
    next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!(*memory.opened_with.lock(), [(LOST, 10), (LOST, 10)], "of logs that told of its lanes");
    // Open already: there is nothing to say.
    next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!(memory.opened_with.lock().len(), 2);
}

#[test]
fn what_one_backup_alone_had_at_the_end_is_not_lost_with_it() {
    let (mut memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert!(next.append(9).duplicate, "producers are told of it");
    (memory.silent, memory.behind) = (vec![11], vec![12]);
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("12 has what was acknowledged");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
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

/// The log's last blocks are known to be at all backups, so that nothing is read before the streamlet is opened.
fn with_end_at_all(logs: &[EndedLog]) -> Vec<EndedLog> {
    logs.iter().map(|log| EndedLog { at_all: true, ..log.clone() }).collect()
}

#[test]
fn what_was_written_last_is_there_before_what_is_in_front_of_it() {
    let (mut memory, logs) = lost();
    let logs = with_end_at_all(&logs);
    let next = Node::new(2);
    next.is_owner(2, 3);
    memory.damaged = vec![(11, 2), (12, 2)];
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let progress = RecoveryProgress::default();
    let failed = next.broker.rebuild(&rebuild, &logs, &memory, &progress).expect_err("nobody has all of it");
    assert!(failed.message.contains("block 2 does not read back"), "{failed}");
    assert_eq!(next.readable(), [0; 0], "who begins at the front waits");
    let at = Cursor { group: GroupId::new(2, 3), ..Cursor::default() };
    let read = next.lane().read(at, 1 << 20, true).expect("a cursor that is there");
    let ordinals = |data: &Bytes| -> Vec<u64> {
        Chunks::new(data).map(|chunk| place(chunk.expect("a chunk").as_bytes()).base_ordinal).collect()
    };
    assert_eq!(
        read.data.iter().flat_map(ordinals).collect::<Vec<u64>>(),
        [6, 7, 8, 9],
        "who has read the rest goes on"
    );
}

#[test]
fn what_is_damaged_at_one_backup_here_and_at_another_there_is_whole_together() {
    let (mut memory, logs) = lost();
    let logs = with_end_at_all(&logs);
    let next = Node::new(2);
    next.is_owner(2, 3);
    memory.damaged = vec![(11, 2), (12, 5), (11, 8)];
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    next.broker.rebuild(&rebuild, &logs, &memory, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
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

/// Blocks 1 to 4 are at backup 11, the others at 12, and 11 burns while the lane is rebuilt.
fn in_two_views(logs: &[EndedLog], first: &[u32]) -> Vec<EndedLog> {
    let views = vec![EndedView { first: 1, backups: first.to_vec() }, EndedView { first: 5, backups: vec![12] }];
    vec![EndedLog { views, at_all: true, ..logs[0].clone() }]
}

#[test]
fn what_nobody_has_any_more_is_waited_for_until_a_person_gives_it_up() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let there = in_two_views(&logs, &[11]);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &there, &memory).expect("taken over");
    assert_eq!(next.append(10).base_ordinal, 10);
    let burnt = Memory { silent: vec![11], ..memory };
    let again = |logs: &[EndedLog], copies: &dyn Copies| {
        next.broker.rebuild(&rebuild, logs, copies, &RecoveryProgress::default()).map_err(|error| error.to_string())
    };
    let waits = again(&there, &burnt).expect_err("backup 11 may come back");
    assert!(waits.contains("backup 11 at block 1: nobody answers"), "{waits}");
    assert!(again(&[], &burnt).is_err(), "the ends of other logs are not known");
    // A log of somebody else that was not needed may have it as well, and does not answer just now.
    let given_up = in_two_views(&logs, &[]);
    let other = EndedLog { log: Two::OTHER, end: 3, ..logs[0].clone() };
    let with_other = [given_up.clone(), vec![other]].concat();
    let two = Two(Memory { silent: vec![11], ..copy_of(&burnt) }, Memory { silent: vec![11, 12], ..copy_of(&burnt) });
    let waits = again(&with_other, &two).expect_err("it may have it");
    assert!(waits.contains("backup 12 at block 1: nobody answers"), "{waits}");
    assert_eq!(next.lane().groups(GroupId::NONE, usize::MAX)[0].first_ordinal, 0, "nothing has gone");

    again(&given_up, &burnt).expect("it is given up");
    assert_eq!(next.readable(), [6, 7, 8, 9, 10], "a lane has no holes, and begins behind what is gone");
    assert_eq!((next.append(9).duplicate, next.append(11).base_ordinal), (true, 11), "and goes on as it was");
}

#[test]
fn what_another_log_has_comes_from_there_before_anything_is_given_up() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &in_two_views(&logs, &[11]), &memory).expect("taken over");
    let burnt = Memory { silent: vec![11], ..copy_of(&memory) };
    let other = EndedLog { log: Two::OTHER, ..logs[0].clone() };
    let all = [in_two_views(&logs, &[]), vec![other]].concat();
    let two = Two(burnt, memory);
    next.broker.rebuild(&rebuild, &all, &two, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

fn copy_of(memory: &Memory) -> Memory {
    Memory { chunks: memory.chunks.clone(), ..Memory::default() }
}
