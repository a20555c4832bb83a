//! Long ranges that other nodes have are read from all of them at once.

use super::*;

/// As of a rebuild of very much: ranges are read in stripes of four blocks.
fn of_much() -> RecoveryProgress {
    let progress = RecoveryProgress::default();
    progress.bytes_all.store(1 << 50, Ordering::Relaxed);
    progress
}

/// A node that has taken over what was lost, and is to read it.
fn taken_over() -> (Node, Rebuild, Memory, Vec<EndedLog>) {
    let (memory, logs) = lost();
    let logs = with_end_at_all(&logs);
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    (next, rebuild, memory, logs)
}

#[test]
fn a_long_range_is_read_from_all_of_its_backups_at_once() {
    let (next, rebuild, memory, logs) = taken_over();
    let both = Memory { together: Some(Default::default()), ..copy_of(&memory) };
    next.broker.rebuild(&rebuild, &logs, &both, &of_much()).expect("rebuilt");
    assert_eq!(both.asked.lock().keys().copied().collect::<Vec<u32>>(), [11, 12]);
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

/// What a node has itself does not cross the network.
#[test]
fn what_is_here_is_read_from_nobody_else() {
    struct Here(Memory);

    impl Copies for Here {
        fn is_here(&self, backup: u32) -> bool {
            backup == 11
        }

        fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
            self.0.lane_states(backup, asked)
        }

        fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
            self.0.read_blocks(backup, asked)
        }
    }

    let (next, rebuild, memory, logs) = taken_over();
    let here = Here(copy_of(&memory));
    next.broker.rebuild(&rebuild, &logs, &here, &of_much()).expect("rebuilt");
    assert_eq!(here.0.asked.lock().keys().copied().collect::<Vec<u32>>(), [11]);
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

#[test]
fn what_one_backup_does_not_give_of_a_long_range_another_one_gives() {
    let troubles: [fn(&mut Memory); 6] = [
        |memory| memory.silent = vec![11],
        |memory| memory.silent = vec![12],
        |memory| (memory.silent, memory.lost) = (vec![12], vec![12]),
        |memory| memory.empty = vec![11],
        |memory| memory.behind = vec![12],
        |memory| memory.damaged = vec![(11, 2), (12, 5), (11, 9), (12, 10)],
    ];
    for (number, trouble) in troubles.into_iter().enumerate() {
        let (next, rebuild, memory, logs) = taken_over();
        let mut troubled = copy_of(&memory);
        trouble(&mut troubled);
        let rebuilt = next.broker.rebuild(&rebuild, &logs, &troubled, &of_much());
        assert_eq!(rebuilt, Ok(()), "trouble {number}");
        assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>(), "trouble {number}");
    }
}

/// Backup 12 sends another byte, or nothing before 11 has given what nobody has asked 12 for.
struct Bad<'a> {
    memory: &'a Memory,
    is_slow: bool,
    /// Blocks that 11 has given.
    given: (Mutex<usize>, Condvar),
}

impl Copies for Bad<'_> {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.memory.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        let mut read = self.memory.read_blocks(backup, asked)?;
        let (given, changed) = &self.given;
        match (backup, self.is_slow) {
            (11, _) => {
                *given.lock() += read.blocks.len();
                changed.notify_all();
            }
            // A stripe has four blocks of ten.
            (_, true) => {
                let mut given = given.lock();
                if changed.wait_while_for(&mut given, |given| *given < 6, Duration::from_secs(120)).timed_out() {
                    return Err("all others wait for it".to_owned());
                }
            }
            (_, false) => {
                for (_, chunks) in &mut read.blocks {
                    let mut bytes = chunks.to_vec();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    *chunks = bytes.into();
                }
            }
        }
        Ok(read)
    }
}

#[test]
fn damaged_bytes_are_asked_for_elsewhere_and_others_do_not_wait_for_who_is_slow() {
    for is_slow in [false, true] {
        let (next, rebuild, memory, logs) = taken_over();
        let bad = Bad { memory: &memory, is_slow, given: Default::default() };
        let rebuilt = next.broker.rebuild(&rebuild, &logs, &bad, &of_much());
        assert_eq!(rebuilt, Ok(()), "slow: {is_slow}");
        assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>(), "slow: {is_slow}");
    }
}
