//! How backups are asked what lanes have, and how much of that at a time. A backup says no more in one answer than an answer may have, and one of a version before, which says all of it,
//! sends a frame that is too large for whoever asked. Either way it is asked for half of that, and for half of the half, until the answer fits: asked for the same again it
//! would say the same again, and what is to be taken over would wait for ever. So it would if nobody answers in time, since a backup looks at all files of the blocks that it is asked for: then
//! half of these is asked for, and half of the half, down to about a file.

use kera_protocol::{LaneStates, ReplicatedLane, Status, StreamletRef};

use super::fetch::{has_last, in_parallel, must_go_on};
use super::{Check, Copies, RangeOfLog};
use crate::failure::Failure;

/// Why a backup does not say what lanes have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NoStates {
    /// A sentence, without the backup's number.
    pub reason: String,
    /// It is more than fits into an answer: less is to be asked for, fewer streamlets or fewer blocks.
    pub is_too_much: bool,
    /// There was no answer in time, from a backup that is not lost: it may be dead, or slow, or busy with more than it can look at by then.
    pub is_late: bool,
}

impl From<String> for NoStates {
    fn from(reason: String) -> NoStates {
        NoStates { reason, is_too_much: false, is_late: false }
    }
}

/// Of so many blocks, or fewer, half is not asked for where nobody answers in time. They are in a file or two, and it takes as long to look at a part of one as at all of it. Nor are they asked for
/// again and again of somebody who stands still.
const LATE_BLOCKS_MIN: u64 = 64;

/// What is asked at a time: of a part of a range.
struct Question<'a> {
    range: RangeOfLog,
    streamlets: &'a [StreamletRef],
}

impl<'a> Question<'a> {
    /// The same in two: half of the streamlets, or of the blocks if there is one only. Not where there is one block: that is less than an answer.
    ///
    /// By streamlets first, although each question is a look at all files of its blocks: what is told of a lane once is told of it in each half of the blocks, as of producers that
    /// write all the time.
    fn halves(&self) -> Option<[Question<'a>; 2]> {
        let (range, streamlets) = (&self.range, self.streamlets);
        if streamlets.len() > 1 {
            let (front, back) = streamlets.split_at(streamlets.len() / 2);
            return Some([front, back].map(|streamlets| Question { range: range.clone(), streamlets }));
        }
        self.halves_of_blocks(1)
    }

    /// The same in two, each of half of the blocks, if there are more than so many.
    fn halves_of_blocks(&self, least: u64) -> Option<[Question<'a>; 2]> {
        let (range, streamlets) = (&self.range, self.streamlets);
        if range.last.saturating_sub(range.first) < least {
            return None;
        }
        let middle = range.first + (range.last - range.first) / 2;
        let front = RangeOfLog { last: middle, ..range.clone() };
        let back = RangeOfLog { first: middle + 1, ..range.clone() };
        Some([front, back].map(|range| Question { range, streamlets }))
    }
}

/// What comes of a question.
enum Answer<'a> {
    Told(Vec<ReplicatedLane>),
    /// What is to be asked for instead.
    AskFor([Question<'a>; 2]),
}

/// What the backups of a range say of lanes, in as many answers as that takes. What was answered is not asked for again. A lane comes once for each part of the blocks that
/// something of it was told of.
pub(super) fn ask_range(
    range: &RangeOfLog,
    streamlets: &[StreamletRef],
    copies: &dyn Copies,
    check: &Check<'_>,
) -> Result<Vec<ReplicatedLane>, Failure> {
    let (mut lanes, mut left) = (Vec::new(), vec![Question { range: range.clone(), streamlets }]);
    while let Some(question) = left.pop() {
        match ask(&question, copies, check)? {
            Answer::Told(told) => lanes.extend(told),
            Answer::AskFor(halves) => {
                must_go_on(copies)?;
                left.extend(halves);
            }
        }
    }
    Ok(lanes)
}

/// Asks the backups of a range until one answers with something that makes sense. Those that are there one after the other: each answer is
/// work for a backup, and the first is nearly always enough. Those that are lost last, and at once, for each of them may keep silent until
/// its time is up. In halves as soon as that is too much for one of them, and if nobody answers and that of one was late.
fn ask<'a>(question: &Question<'a>, copies: &dyn Copies, check: &Check<'_>) -> Result<Answer<'a>, Failure> {
    let (range, streamlets) = (&question.range, question.streamlets);
    let (from_block, through_block) = (range.first, range.last);
    let asked = LaneStates { log: range.log, from_block, through_block, streamlets: streamlets.to_vec() };
    let ask_one = |backup: u32| -> Result<Vec<ReplicatedLane>, NoStates> {
        let answer = copies.lane_states(backup, &asked)?;
        answer.lanes.iter().try_for_each(|lane| check(lane, streamlets))?;
        // A backup that has lost the blocks would say that there is nothing: it must show the last one.
        has_last(range, backup, streamlets, copies)?;
        Ok(answer.lanes)
    };
    let (there, lost) = range.there_and_lost(copies);
    let (mut errors, mut is_late) = (Vec::new(), false);
    let in_halves = |halves: [Question<'a>; 2], errors: &[String]| {
        let (count, reason) = (streamlets.len(), errors.join("; "));
        tracing::debug!(%range, streamlets = count, reason, "what lanes have is asked for in halves");
        Answer::AskFor(halves)
    };
    for together in there.chunks(1).chain(lost.chunks(copies.threads().max(1))) {
        let answers = in_parallel(copies.threads(), together, |&backup| Ok((backup, ask_one(backup))))?;
        let (mut found, mut is_too_much) = (None, false);
        for (backup, answer) in answers {
            match answer {
                Ok(lanes) => found = found.or(Some(lanes)),
                Err(NoStates { reason, is_too_much: is_more, is_late: has_waited }) => {
                    is_too_much |= is_more;
                    is_late |= has_waited;
                    errors.push(format!("backup {backup}: {reason}"));
                }
            }
        }
        if let Some(lanes) = found {
            if !errors.is_empty() {
                tracing::warn!(%range, reason = errors.join("; "), "not every backup says what lanes have; another one did");
            }
            return Ok(Answer::Told(lanes));
        }
        if is_too_much && let Some(halves) = question.halves() {
            return Ok(in_halves(halves, &errors));
        }
    }
    if is_late && let Some(halves) = question.halves_of_blocks(LATE_BLOCKS_MIN) {
        return Ok(in_halves(halves, &errors));
    }
    let message = format!("no backup says what lanes have in {range}: {}", errors.join("; "));
    Err(Failure::later(Status::SegmentUnreadable, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kera_format::vlog_replica::LogId;
    use kera_format::{GroupId, LaneId, SegmentIndex, StreamId, StreamletId};
    use kera_protocol::{BlocksRead, LaneStateList, ReadBlocks, SegmentPart};
    use parking_lot::Mutex;

    use super::*;

    /// Backups 11 and 12, which have something of each streamlet in each block, and say so of so many at a time at most.
    struct Told {
        most: [usize; 2],
        /// Of more blocks at a time they tell too late.
        in_time: [u64; 2],
        asked: Mutex<Vec<u32>>,
        /// How often each streamlet's part of a block was told of.
        told: Mutex<BTreeMap<(u32, u64), u32>>,
    }

    impl Told {
        fn new(most: [usize; 2]) -> Told {
            Told { most, in_time: [u64::MAX; 2], asked: Mutex::default(), told: Mutex::default() }
        }
    }

    impl Copies for Told {
        fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
            self.asked.lock().push(backup);
            let blocks = asked.from_block..=asked.through_block;
            if asked.streamlets.len() * blocks.clone().count() > self.most[backup as usize - 11] {
                return Err(NoStates { reason: "ask for less".to_owned(), is_too_much: true, is_late: false });
            }
            if blocks.clone().count() as u64 > self.in_time[backup as usize - 11] {
                return Err(NoStates { reason: "no answer in time".to_owned(), is_too_much: false, is_late: true });
            }
            let part = |block: u64| SegmentPart {
                group: GroupId::new(1, 1),
                segment: SegmentIndex(block as u32),
                position: 128,
                end: 136,
                base_ordinal: block,
                next_ordinal: block + 1,
                rewrite: 0,
                row_end: 0,
            };
            let lane = |name: &StreamletRef| {
                for block in blocks.clone() {
                    *self.told.lock().entry((name.streamlet.0, block)).or_default() += 1;
                }
                let (parts, producers) = (blocks.clone().map(part).collect(), Vec::new());
                let next_ordinal = asked.through_block + 1;
                ReplicatedLane { streamlet: *name, lane: LaneId(0), next_ordinal, parts, producers }
            };
            Ok(LaneStateList { lanes: asked.streamlets.iter().map(lane).collect() })
        }

        fn read_blocks(&self, _: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
            Ok(BlocksRead { next_block: asked.through_block + 1, blocks: Vec::new() })
        }

        fn threads(&self) -> usize {
            1
        }
    }

    /// Asks for ten streamlets in four blocks. What was told, in order.
    fn ask_for_ten(copies: &Told) -> Result<Vec<(u32, u64)>, Failure> {
        ask_for_ten_in(copies, 4)
    }

    /// The same in so many blocks.
    fn ask_for_ten_in(copies: &Told, last: u64) -> Result<Vec<(u32, u64)>, Failure> {
        let range = RangeOfLog { log: LogId { node: 1, epoch: 7, vlog: 0 }, first: 1, last, backups: vec![11, 12] };
        let name = |number: u32| StreamletRef { stream: StreamId(1), streamlet: StreamletId(number) };
        let names: Vec<StreamletRef> = (0..10).map(name).collect();
        let check = |_: &ReplicatedLane, _: &[StreamletRef]| Ok(());
        let lanes = ask_range(&range, &names, copies, &check)?;
        let of = |lane: &ReplicatedLane| {
            let streamlet = lane.streamlet.streamlet.0;
            lane.parts.iter().map(|part| (streamlet, part.base_ordinal)).collect::<Vec<_>>()
        };
        let mut told: Vec<(u32, u64)> = lanes.iter().flat_map(of).collect();
        told.sort_unstable();
        Ok(told)
    }

    fn all() -> Vec<(u32, u64)> {
        all_in(4)
    }

    fn all_in(last: u64) -> Vec<(u32, u64)> {
        (0..10).flat_map(|streamlet| (1..=last).map(move |block| (streamlet, block))).collect()
    }

    #[test]
    fn of_what_takes_too_long_half_of_the_blocks_is_asked_for_and_nothing_twice() {
        // All of it, both halves, and each in two: of each that was too much both are asked.
        for (in_time, questions) in [(1024, 1), (512, 2 + 2), (300, 2 + 4 + 4), (256, 2 + 4 + 4)] {
            let copies = Told { in_time: [in_time; 2], ..Told::new([usize::MAX; 2]) };
            assert_eq!(ask_for_ten_in(&copies, 1024).expect("told"), all_in(1024), "{in_time} in time");
            assert!(copies.told.lock().values().all(|times| *times == 1), "{in_time} in time");
            assert_eq!(copies.asked.into_inner().len(), questions, "{in_time} in time");
        }
    }

    #[test]
    fn where_one_backup_is_late_another_one_is_asked_for_all_of_it() {
        let copies = Told { in_time: [0, u64::MAX], ..Told::new([usize::MAX; 2]) };
        assert_eq!(ask_for_ten_in(&copies, 1024).expect("told"), all_in(1024));
        assert_eq!(copies.asked.into_inner(), [11, 12]);
    }

    #[test]
    fn who_never_answers_is_not_asked_for_ever_less() {
        let copies = Told { in_time: [0; 2], ..Told::new([usize::MAX; 2]) };
        let failed = ask_for_ten_in(&copies, 1024).expect_err("nobody says anything");
        assert_eq!(failed.status, Status::SegmentUnreadable, "{failed}");
        assert!(failed.message.contains("no answer in time"), "{failed}");
        // Of 1024 blocks, 512, 256, 128 and 64.
        assert_eq!(copies.asked.into_inner(), [11, 12].repeat(5));
    }

    #[test]
    fn what_is_too_much_for_one_answer_is_asked_for_in_halves_and_nothing_twice() {
        // All at once; five streamlets; two or three of them; one; and each in two halves of the blocks.
        for (most, questions) in [(40, 1), (20, 3), (12, 7), (4, 19), (3, 39)] {
            let copies = Told::new([most; 2]);
            assert_eq!(ask_for_ten(&copies).expect("told"), all(), "at most {most}");
            assert!(copies.told.lock().values().all(|times| *times == 1), "at most {most}");
            assert_eq!(copies.asked.into_inner(), vec![11; questions], "at most {most}");
        }
    }

    #[test]
    fn where_one_backup_finds_one_block_too_much_another_one_is_asked_for_it() {
        let copies = Told::new([0, 1]);
        assert_eq!(ask_for_ten(&copies).expect("told"), all());
        let asked = copies.asked.into_inner();
        assert_eq!(asked.iter().filter(|backup| **backup == 12).count(), 40, "each block of each by itself");
        let failed = ask_for_ten(&Told::new([0, 0])).expect_err("nobody says anything");
        assert_eq!(failed.status, Status::SegmentUnreadable, "{failed}");
    }
}
