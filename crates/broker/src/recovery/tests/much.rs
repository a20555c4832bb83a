//! Taking over what has more to tell than fits into one answer of a backup.

use super::*;

/// Backups that say at most what so many blocks have.
struct Little<'a> {
    memory: &'a Memory,
    blocks: u64,
    refused: AtomicU32,
}

impl Copies for Little<'_> {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        if asked.through_block - asked.from_block < self.blocks {
            return self.memory.lane_states(backup, asked);
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(NoStates { reason: "ask for less".to_owned(), is_too_much: true, is_late: false })
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.memory.read_blocks(backup, asked)
    }
}

/// It stood still for ever: each try asked for all of it.
#[test]
fn a_streamlet_with_more_to_tell_than_an_answer_may_have_is_taken_over() {
    for blocks in [1, 3] {
        let (memory, logs) = lost();
        let next = Node::new(2);
        next.is_owner(2, 3);
        let little = Little { memory: &memory, blocks, refused: AtomicU32::new(0) };
        let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &little).expect("taken over");
        assert!(little.refused.load(Ordering::SeqCst) > 1, "it was asked for in halves, and halves of these");
        assert!(next.append(9).duplicate, "its producer is known");
        assert_eq!(next.append(10).base_ordinal, 10);
        next.broker.rebuild(&rebuild, &logs, &little, &RecoveryProgress::default()).expect("rebuilt");
        assert_eq!(next.readable(), (0..=10).collect::<Vec<u64>>());
    }
}
