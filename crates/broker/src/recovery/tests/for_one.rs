//! Blocks that backups have and do not give, which a person gives up for one streamlet.

use super::*;

#[test]
fn one_streamlet_goes_on_without_blocks_that_a_backup_has_and_does_not_give() {
    let (memory, logs) = lost();
    let copies = Memory { damaged: vec![(11, 2)], ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let there = in_two_views(&logs, &[11]);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &there, &copies).expect("taken over");
    assert_eq!(next.append(10).base_ordinal, 10);
    let again = || next.broker.rebuild(&rebuild, &there, &copies, &RecoveryProgress::default());
    let waits = again().expect_err("it may read back another time");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    assert!(waits.message.contains("block 2 does not read back"), "{waits}");

    let without = in_two_views(&logs, &[]);
    let goes_on = |streamlet| {
        let (name, progress) = (StreamletRef { stream: STREAM, streamlet }, RecoveryProgress::default());
        next.broker.go_on_without(&rebuild, name, (&there[..], &without[..]), &copies, &progress)
    };
    assert_eq!(goes_on(StreamletId(7)), Ok(false), "nothing is awaited of another one");
    assert_eq!(next.lane().groups(GroupId::NONE, usize::MAX)[0].first_ordinal, 0, "nothing has gone");
    assert_eq!(goes_on(X), Ok(true));
    again().expect("nothing is left to wait for");
    assert_eq!(next.readable(), (3..11).collect::<Vec<u64>>(), "a lane has no holes, and begins behind what is gone");
    assert_eq!((next.append(9).duplicate, next.append(11).base_ordinal), (true, 11), "and goes on as it was");
    assert_eq!(goes_on(X), Ok(false), "asked again there is nothing to do");
}

/// The backup that is left says nothing of these blocks, so the streamlet was never opened.
#[test]
fn one_that_was_not_opened_opens_with_what_there_is() {
    let (memory, logs) = lost();
    let copies = Memory { empty: vec![11], ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let takes = |logs: &[EndedLog]| next.broker.take_over(&[(STREAM, X, 3)], logs, &copies);
    let waits = takes(&in_two_views(&logs, &[11])).expect_err("it has lost them");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    let without = in_two_views(&logs, &[]);
    let rebuild = takes(&without).expect("opened");
    assert_eq!(next.append(10).base_ordinal, 10, "numbers are not given out again");
    next.broker.rebuild(&rebuild, &without, &copies, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), [6, 7, 8, 9, 10]);
}

/// Of the second log nobody says anything the first so many times that it is asked what it has of lanes.
struct Late {
    of: Two,
    left: AtomicU32,
}

impl Copies for Late {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        let one_less = |left: u32| left.checked_sub(1);
        let is_late =
            asked.log == Two::OTHER && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if is_late { Err("it is late".to_owned().into()) } else { self.of.lane_states(backup, asked) }
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.of.read_blocks(backup, asked)
    }

    // In the order of the logs, and the first error ends it.
    fn threads(&self) -> usize {
        1
    }
}

/// A lane in two views of one log, and another lane of the streamlet in another log, of which nobody says anything when it is asked in both ways.
fn late() -> (Late, Vec<EndedLog>) {
    let (lost, memory, logs) = lost_node();
    for sequence in 0..4 {
        assert_eq!(lost.append_to(LaneId(1), sequence).base_ordinal, sequence);
    }
    let other = Memory { chunks: lost.chunks_of(LaneId(1)), ..Memory::default() };
    let views = vec![EndedView { first: 1, backups: vec![12] }];
    let other_log = EndedLog { log: Two::OTHER, views, end: 4, at_all: true };
    let logs = [in_two_views(&logs, &[11]), vec![other_log]].concat();
    (Late { of: Two(memory, other), left: AtomicU32::new(2) }, logs)
}

type Taken = Result<(Rebuild, BTreeSet<(LogId, u32)>), Failure>;

/// Takes the streamlet over, of whose lost log these views were given up.
fn takes(next: &Node, logs: &[EndedLog], named: &[u32], copies: &dyn Copies) -> Taken {
    let given_up: BTreeSet<(LogId, u32)> = named.iter().map(|view| (LOST, *view)).collect();
    next.broker.take_over_without(&[(STREAM, X, 3)], (logs, &given_up), copies, &HandedStates::new())
}

/// Opens it once the other log has been late, and rebuilds it. What was left out.
fn opens_when_all_else_is_told(next: &Node, logs: &[EndedLog], named: &[u32], copies: &Late) -> Vec<(LogId, u32)> {
    next.is_owner(2, 3);
    let waits = takes(next, logs, named, copies).expect_err("who is late may have what is missing");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    assert!(waits.message.contains("it is late"), "{waits}");
    assert_eq!(copies.left.load(Ordering::Relaxed), 0);
    let (rebuild, left_out) = takes(next, logs, named, copies).expect("opened");
    next.broker.rebuild(&rebuild, logs, copies, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.chunks_of(LaneId(1)).len(), 4, "all of the other log");
    left_out.into_iter().collect()
}

#[test]
fn what_reads_back_is_not_left_out_because_another_log_was_late() {
    let (copies, logs) = late();
    let next = Node::new(2);
    assert_eq!(opens_when_all_else_is_told(&next, &logs, &[1], &copies), []);
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>(), "nothing has gone");
}

#[test]
fn what_reads_back_is_not_left_out_beside_what_nobody_gives_because_another_log_was_late() {
    let (mut copies, logs) = late();
    copies.of.0.empty = vec![11];
    let next = Node::new(2);
    assert_eq!(opens_when_all_else_is_told(&next, &logs, &[1, 2], &copies), [(LOST, 1)]);
    assert_eq!(next.readable(), [6, 7, 8, 9], "the second view reads back");
}

/// Of the second log no backup ever says anything of all blocks at once: one does not read a block back, and another one lacks the last. Of each block one of them tells.
struct InParts(Two);

impl Copies for InParts {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        let is_all = asked.log == Two::OTHER && asked.from_block < asked.through_block;
        if is_all { Err("block 2 does not read back".to_owned().into()) } else { self.0.lane_states(backup, asked) }
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.0.read_blocks(backup, asked)
    }
}

#[test]
fn what_nobody_gives_is_left_out_although_nobody_tells_all_of_another_log_at_once() {
    let (Late { of: Two(memory, other), .. }, logs) = late();
    let copies = InParts(Two(Memory { empty: vec![11], ..memory }, other));
    let next = Node::new(2);
    next.is_owner(2, 3);
    let nothing: &[u32] = &[];
    for named in [nothing, &[2]] {
        let waits = takes(&next, &logs, named, &copies).expect_err("nobody gives the first view");
        assert_eq!(waits.status, Status::SegmentUnreadable, "{waits}");
    }
    let (rebuild, left_out) = takes(&next, &logs, &[1, 2], &copies).expect("opened");
    assert_eq!(left_out, BTreeSet::from([(LOST, 1)]), "the second view reads back");
    next.broker.rebuild(&rebuild, &logs, &copies, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), [6, 7, 8, 9]);
    assert_eq!(next.chunks_of(LaneId(1)).len(), 4, "all of the other log");
}

/// The backups say what lanes have in the last view, and do not give its last blocks.
#[test]
fn a_view_of_which_nobody_gives_the_last_blocks_is_left_out_if_it_was_named() {
    let (memory, logs) = lost();
    let copies = Memory { damaged: vec![(12, 8), (13, 8)], ..memory };
    let views = vec![EndedView { first: 1, backups: vec![11] }, EndedView { first: 5, backups: vec![12, 13] }];
    let logs = vec![EndedLog { views, ..logs[0].clone() }];
    let next = Node::new(2);
    next.is_owner(2, 3);
    let nothing: &[u32] = &[];
    for named in [nothing, &[1]] {
        let waits = takes(&next, &logs, named, &copies).expect_err("it may read back another time");
        assert_eq!(waits.status, Status::SegmentUnreadable);
        assert!(waits.message.contains("block 8 does not read back"), "{waits}");
    }
    let (rebuild, left_out) = takes(&next, &logs, &[1, 2], &copies).expect("opened");
    assert_eq!(left_out, BTreeSet::from([(LOST, 2)]), "the other one reads back");
    next.broker.rebuild(&rebuild, &logs, &copies, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), [0, 1, 2, 3], "the lane goes on in front of what is gone");
}
