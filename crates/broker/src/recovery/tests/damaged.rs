//! Blocks that do not read back at the only backup that is there: all others are read.

use super::*;

/// A lane of forty chunks, which are read in three pieces: from block 37, 21 and 1 on.
fn long(backups: &[u32]) -> (Memory, Vec<EndedLog>) {
    let lost = Node::new(1);
    lost.is_owner(1, 2);
    lost.broker.open_streamlet(STREAM, X, 2, None).expect("opened");
    for sequence in 0..40 {
        assert_eq!(lost.append(sequence).base_ordinal, sequence);
    }
    let memory = Memory { chunks: lost.chunks(), ..Memory::default() };
    assert_eq!(memory.chunks.len(), 40);
    let views = vec![EndedView { first: 1, backups: backups.to_vec() }];
    (memory, vec![EndedLog { log: LOST, views, end: 40, at_all: true }])
}

/// A node that has taken it over, before anything was damaged.
fn takes_over(memory: &Memory, logs: &[EndedLog]) -> (Node, Rebuild) {
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], logs, memory).expect("taken over");
    (next, rebuild)
}

/// The first ordinals of segments that are awaited, which have three chunks each.
fn awaited(node: &Node) -> Vec<u64> {
    let name = StreamletRef { stream: STREAM, streamlet: X };
    let place = node.broker.place_of(name).expect("a streamlet");
    place.awaited().iter().map(|(_, segment)| segment.base_ordinal).collect()
}

#[test]
fn of_one_damaged_block_in_the_midst_of_a_piece_nothing_else_is_lost() {
    let (memory, logs) = long(&[11]);
    let (next, rebuild) = takes_over(&memory, &logs);
    let damaged = Memory { damaged: vec![(11, 5)], ..memory };
    let again = || next.broker.rebuild(&rebuild, &logs, &damaged, &RecoveryProgress::default());
    let waits = again().expect_err("it may read back another time");
    assert!(waits.message.contains("backup 11 at block 5: "), "{waits}");
    assert_eq!(awaited(&next), [3], "what has a chunk in it, and nothing else");

    let views = vec![EndedView { first: 1, backups: Vec::new() }];
    let without = [EndedLog { views, ..logs[0].clone() }];
    let name = StreamletRef { stream: STREAM, streamlet: X };
    let progress = RecoveryProgress::default();
    let went_on = next.broker.go_on_without(&rebuild, name, (&logs[..], &without[..]), &damaged, &progress);
    assert_eq!(went_on, Ok(true));
    again().expect("nothing is left to wait for");
    assert_eq!(next.readable(), (6..40).collect::<Vec<u64>>(), "a lane has no holes, and begins behind what is gone");
}

#[test]
fn damaged_blocks_in_several_pieces_hold_back_nothing_else() {
    let (memory, logs) = long(&[11]);
    let (next, rebuild) = takes_over(&memory, &logs);
    let damaged = Memory { damaged: [2, 29, 30, 38].map(|block| (11, block)).to_vec(), ..copy_of(&memory) };
    let again = |copies: &Memory| next.broker.rebuild(&rebuild, &logs, copies, &RecoveryProgress::default());
    let waits = again(&damaged).expect_err("nobody has them");
    for told in ["backup 11 at block 2: ", "blocks 29 to 30: backup 11 at block 29: ", "backup 11 at block 38: "] {
        assert!(waits.message.contains(told), "{waits}");
    }
    assert_eq!(awaited(&next), [0, 27, 36]);
    again(&memory).expect("they read back after all");
    assert_eq!(next.readable(), (0..40).collect::<Vec<u64>>());
}

#[test]
fn who_keeps_silent_is_not_asked_for_each_damaged_block() {
    let (memory, logs) = long(&[11, 12]);
    let (next, rebuild) = takes_over(&memory, &logs);
    let blocks = [2, 5, 8, 11, 14, 23, 26, 29, 38];
    let damaged = Memory { damaged: blocks.map(|block| (11, block)).to_vec(), silent: vec![12], ..copy_of(&memory) };
    let waits = next
        .broker
        .rebuild(&rebuild, &logs, &damaged, &RecoveryProgress::default())
        .expect_err("12 may have them, and does not answer");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    assert_eq!(awaited(&next), [0, 3, 6, 9, 12, 21, 24, 27, 36]);
    // Twice each time that all is read: until it is seen that no more comes, and from each backup by itself.
    let asked = damaged.asked.lock().get(&12).copied().unwrap_or(0);
    assert!((1..=6).contains(&asked), "it was asked {asked} times");
}

#[test]
fn of_many_damaged_blocks_a_few_are_named_and_the_others_counted() {
    let (memory, logs) = long(&[11]);
    let (next, rebuild) = takes_over(&memory, &logs);
    let odd = (1..40).step_by(2).map(|block| (11, block)).collect();
    let damaged = Memory { damaged: odd, ..memory };
    let waits = next
        .broker
        .rebuild(&rebuild, &logs, &damaged, &RecoveryProgress::default())
        .expect_err("each segment lacks something");
    assert!(waits.message.contains("backup 11 at block 37: "), "{waits}");
    assert!(waits.message.contains("12 more blocks are given by nobody who is there"), "{waits}");
}

/// Backups that have lost blocks 5 to 9 of a log, as they found when they were started: they say so where they have others behind them in what they are asked for.
struct Hole(Memory);

impl Copies for Hole {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.0.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        match (asked.from_block, asked.through_block) {
            (5..=9, 10..) => Err(format!("{NOT_READ_BACK}block {} was not given back", asked.from_block)),
            (5..=9, _) => Ok(BlocksRead { next_block: asked.from_block, blocks: Vec::new() }),
            (from, through) if from < 5 => {
                self.0.read_blocks(backup, &ReadBlocks { through_block: through.min(4), ..asked.clone() })
            }
            _ => self.0.read_blocks(backup, asked),
        }
    }
}

#[test]
fn behind_several_blocks_in_a_row_that_are_lost_all_is_read() {
    let (memory, logs) = long(&[11]);
    let (next, rebuild) = takes_over(&memory, &logs);
    let waits =
        next.broker.rebuild(&rebuild, &logs, &Hole(memory), &RecoveryProgress::default()).expect_err("nobody has them");
    assert!(waits.message.contains("blocks 5 to 9: backup 11 at block 5: "), "{waits}");
    assert_eq!(awaited(&next), [3, 6]);
}

const OTHER: StreamId = StreamId(8);

/// A log with twenty blocks of one stream, and behind them twenty of another one.
struct Both {
    all: Memory,
    first: Memory,
    second: Memory,
}

impl Copies for Both {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        let mut list = self.first.lane_states(backup, asked)?;
        let (from_block, through_block) = (asked.from_block.saturating_sub(20), asked.through_block.saturating_sub(20));
        let behind = LaneStates { from_block, through_block, ..asked.clone() };
        for lane in self.second.lane_states(backup, &behind)?.lanes {
            list.lanes.push(ReplicatedLane { streamlet: StreamletRef { stream: OTHER, streamlet: X }, ..lane });
        }
        list.lanes.retain(|lane| asked.streamlets.contains(&lane.streamlet));
        Ok(list)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        let mut read = self.all.read_blocks(backup, asked)?;
        read.blocks.retain(|(head, _)| {
            let stream = if head.block <= 20 { STREAM } else { OTHER };
            asked.streamlets.contains(&StreamletRef { stream, streamlet: X })
        });
        Ok(read)
    }
}

/// A node, which owns streamlets of both streams in an owner epoch.
fn owner_of_both(number: u32, epoch: u32) -> Node {
    let node = Node::new(number);
    node.is_owner(number, epoch);
    let options = StreamOptions {
        streamlets: 1,
        lanes: 2,
        segments_per_group: 1,
        segment_bytes_max: 64 << 10,
        ..StreamOptions::default()
    };
    node.broker.stream_created(OTHER, options).expect("a stream");
    let owner = |node, epoch| Owner { node, epoch, older: Vec::new() };
    node.broker.place_stream(1, OTHER, vec![owner(99, 1)]).expect("a stream");
    node.broker.set_owner(epoch.into(), OTHER, X, owner(number, epoch)).expect("a streamlet");
    node
}

/// Two pieces behind what the first has lack a block each.
#[test]
fn a_streamlet_without_chunks_in_damaged_blocks_is_rebuilt_whole() {
    let lost = owner_of_both(1, 2);
    for stream in [STREAM, OTHER] {
        lost.broker.open_streamlet(stream, X, 2, None).expect("opened");
    }
    let of_other = lost.log.stream(OTHER).expect("a stream");
    let lane = Arc::clone(of_other.streamlet(X).expect("a streamlet").lane(LaneId(0)).expect("a lane"));
    for sequence in 0..20 {
        assert_eq!(lost.append(sequence).base_ordinal, sequence);
        assert_eq!(append_of(OTHER, &lane, sequence).base_ordinal, sequence);
    }
    let mut behind = Vec::new();
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        let (group, index) = (group.id, SegmentIndex(0));
        let id = SegmentId { stream: OTHER, streamlet: X, lane: LaneId(0), group, index };
        let segment = lost.log.segment(id).expect("in memory");
        for chunk in Chunks::new(segment.bytes(128, segment.head())) {
            behind.push(chunk.expect("a chunk").as_bytes().to_vec());
        }
    }
    let of = |chunks: Vec<Vec<u8>>| Memory { chunks, ..Memory::default() };
    let all = [lost.chunks(), behind.clone()].concat();
    assert_eq!(all.len(), 40);
    let mut copies = Both { all: of(all), first: of(lost.chunks()), second: of(behind) };

    let views = vec![EndedView { first: 1, backups: vec![11] }];
    let logs = [EndedLog { log: LOST, views, end: 40, at_all: true }];
    let next = owner_of_both(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3), (OTHER, X, 3)], &logs, &copies).expect("taken over");
    copies.all.damaged = vec![(11, 37), (11, 24)];
    let waits =
        next.broker.rebuild(&rebuild, &logs, &copies, &RecoveryProgress::default()).expect_err("it lacks two blocks");
    assert!(waits.message.contains("of stream 8 does not come from any backup"), "{waits}");
    assert_eq!(next.readable(), (0..20).collect::<Vec<u64>>(), "all of the one that has nothing in them");
    assert!(awaited(&next).is_empty());
    let place = next.broker.place_of(StreamletRef { stream: OTHER, streamlet: X }).expect("a streamlet");
    let left: Vec<u64> = place.awaited().iter().map(|(_, segment)| segment.base_ordinal).collect();
    assert_eq!(left, [3, 15]);
}
