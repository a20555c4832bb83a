//! A copy of a virtual log as the backup knows it: which blocks it has, in which files. Plain state, under the backup's lock.

use std::collections::VecDeque;

use kera_protocol::BlockRange;

/// A file, or a part of one without a hole, of blocks that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilePart {
    pub(crate) disk: usize,
    pub(crate) sequence: u64,
    /// The file's key: every block in it repeats it.
    pub(crate) key: u64,
    /// Where its first block is in the file.
    pub(crate) start: u64,
    pub(crate) first: u64,
    /// Up to which block it has been stored; one less than `first` if it has none yet.
    pub(crate) last: u64,
    /// What the file takes on its disk.
    pub(crate) bytes: u64,
    /// Where the footer is, once there is one.
    pub(crate) footer: Option<u64>,
    /// Whether blocks are still written to it.
    pub(crate) open: bool,
    /// Its header and its name survive a loss of power.
    pub(crate) anchored: bool,
}

impl FilePart {
    pub(crate) fn has_blocks(&self) -> bool {
        self.first <= self.last
    }
}

/// Blocks without a hole, from the first one on.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) first: u64,
    /// Where it began: what was before `first` was given back, and is not needed again.
    pub(crate) origin: u64,
    /// The blocks before it do not read back: a loss of power has torn them before they were answered, or the disk has changed
    /// them since. So nobody knows whether the log ends before this run or not.
    pub(crate) doubtful: bool,
    /// A loss of power may have taken blocks behind this one, the last that was there when it was over. One that was written behind it
    /// since tells that there were none.
    pub(crate) lost_behind: Option<u64>,
    /// The last block of which a start has found that it was begun; below what is written: none that is not there.
    pub(crate) begun: u64,
    /// Up to here blocks were taken: they are written, or will be.
    pub(crate) taken: u64,
    /// How often blocks that were taken were taken back: what was queued before does not follow what is written any more, whatever its number.
    pub(crate) taken_back: u64,
    /// Up to here they are written: they survive a kill.
    pub(crate) written: u64,
    /// Up to here they are synced as well.
    pub(crate) synced: u64,
    /// Up to here it was answered that they are written: what a failed sync cannot take back.
    pub(crate) answered: u64,
    /// Blocks of it were sent to be synced: what is only written was answered to nobody.
    pub(crate) to_sync: bool,
    /// The disk whose writer has this run.
    pub(crate) disk: usize,
    /// Names the run: its first block changes when files are given back.
    pub(crate) id: u64,
    /// By their blocks. Among them are such without any, which could not be removed when that was found: they go in their turn.
    pub(crate) files: VecDeque<FilePart>,
    /// The disk of the file that was given back last, if a loss of power may bring that back.
    pub(crate) given_back_on: Option<usize>,
    /// Files in front of those that were given back all the same, since their disks were not well: they still have to go.
    pub(crate) refused: VecDeque<FilePart>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    /// By their first blocks.
    pub(crate) runs: Vec<Run>,
    /// The highest block in a file of which nobody knows any more whose it is: it may be this log's.
    pub(crate) perhaps_through: u64,
    /// Blocks that were found not to read back any more since the start; in order, and not touching.
    pub(crate) damaged: Vec<BlockRange>,
}

/// What is to be done with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// It is stored, as durable as was asked for.
    Stored,
    /// It was taken and is on its way to the disk: whoever asks waits behind it, in this run.
    OnItsWay(usize),
    /// It follows the last one of this run.
    Follows(usize),
    /// It is its view's first, and begins a run.
    Begins,
    /// It is behind a hole: this one is next.
    Hole(u64),
}

impl Replica {
    /// The run that has been given `block`, and up to where it goes.
    fn run_of(&self, block: u64, through: impl Fn(&Run) -> u64) -> Option<usize> {
        self.runs.iter().position(|run| run.origin <= block && block <= through(run))
    }

    /// Decides about a block: rule 2 of `docs/replication.md`, Writing. A block is taken if the one before it is there or if it
    /// is the first of the view that it is sent in, which is when a backup that joins a log has nothing before it.
    pub(crate) fn fit(&self, block: u64, view_first: u64, synced: bool) -> Fit {
        let stored = |run: &Run| if synced { run.synced } else { run.written };
        if self.run_of(block, stored).is_some() {
            return Fit::Stored;
        }
        if let Some(run) = self.run_of(block, |run| run.taken) {
            return Fit::OnItsWay(run);
        }
        if let Some(run) = self.runs.iter().position(|run| run.taken + 1 == block) {
            return Fit::Follows(run);
        }
        if block == view_first {
            return Fit::Begins;
        }
        Fit::Hole(self.through(view_first, |run| (run.origin, run.taken)) + 1)
    }

    /// The last block from `first` on without a hole, as far as `extent` says that runs go; `first - 1` if there is none.
    pub(crate) fn through(&self, first: u64, extent: impl Fn(&Run) -> (u64, u64)) -> u64 {
        let mut last = first.saturating_sub(1);
        let goes_on = |run: &&Run, last: u64| {
            let (from, through) = extent(run);
            from <= last + 1 && last < through
        };
        while let Some(run) = self.runs.iter().find(|run| goes_on(run, last)) {
            last = extent(run).1;
        }
        last
    }

    /// The first block from `first` to `through` that is not here, was not given back, and has others of them behind it.
    pub(crate) fn missing(&self, first: u64, through: u64) -> Option<u64> {
        let missing = self.through(first, |run| (run.origin, run.written)) + 1;
        let is_behind = |run: &Run| missing < run.first && run.first <= through && run.first <= run.written;
        self.runs.iter().any(is_behind).then_some(missing)
    }

    /// Whether a log, of which there is nothing behind `end` from block `first` on, ends there for sure. `last` says how far rows go.
    pub(crate) fn is_certain(&self, first: u64, end: u64, last: impl Fn(&Run) -> u64) -> bool {
        if self.perhaps_through > end || self.runs.iter().any(|run| run.doubtful && run.first > end) {
            return false;
        }
        let may_have_lost = |run: &Run| run.lost_behind.is_some_and(|lost| last(run) <= lost);
        match self.run_of(end, &last).filter(|_| end >= first) {
            Some(run) => !may_have_lost(&self.runs[run]),
            // Blocks that are gone may have been there, of whichever view.
            None => !self.runs.iter().any(may_have_lost),
        }
    }

    /// The last block that was begun behind `end`, the last of a row, and does not read back; zero: there is none.
    pub(crate) fn begun_behind(&self, end: u64, last: impl Fn(&Run) -> u64) -> u64 {
        let behind = self.runs.iter().filter(|run| last(run) == end && run.begun > end);
        behind.map(|run| run.begun).max().unwrap_or(0)
    }

    /// Whether there are blocks behind `end` which no loss of power explains: a disk has changed what is between, and what was answered for may
    /// be behind it.
    pub(crate) fn is_damaged_behind(&self, end: u64) -> bool {
        let is_damaged = |run: &Run| run.doubtful && run.first > end && run.lost_behind.is_none();
        self.perhaps_through > end || self.runs.iter().any(is_damaged)
    }

    /// Notes that blocks do not read back. What is not here any more is forgotten.
    pub(crate) fn note_damaged(&mut self, more: &[BlockRange]) {
        let first = self.runs.iter().map(|run| run.first).min().unwrap_or(u64::MAX);
        self.damaged.extend_from_slice(more);
        self.damaged.retain(|range| range.last >= first);
        self.damaged.sort_unstable_by_key(|range| range.first);
        let mut joined: Vec<BlockRange> = Vec::with_capacity(self.damaged.len());
        for range in self.damaged.drain(..) {
            match joined.last_mut() {
                Some(last) if range.first <= last.last + 1 => last.last = last.last.max(range.last),
                _ => joined.push(range),
            }
        }
        self.damaged = joined;
    }

    /// The blocks that are written and read back as far as is known, in ranges without a hole.
    pub(crate) fn ranges(&self) -> Vec<BlockRange> {
        let mut ranges = Vec::new();
        for BlockRange { mut first, last } in self.written() {
            for bad in &self.damaged {
                if last < bad.first || bad.last < first {
                    continue;
                }
                if first < bad.first {
                    ranges.push(BlockRange { first, last: bad.first - 1 });
                }
                first = first.max(bad.last + 1);
            }
            if first <= last {
                ranges.push(BlockRange { first, last });
            }
        }
        ranges
    }

    /// The blocks that are written, in ranges without a hole.
    fn written(&self) -> Vec<BlockRange> {
        let mut ranges: Vec<BlockRange> = Vec::new();
        for run in self.runs.iter().filter(|run| run.first <= run.written) {
            match ranges.last_mut() {
                Some(last) if run.first <= last.last + 1 => last.last = last.last.max(run.written),
                _ => ranges.push(BlockRange { first: run.first, last: run.written }),
            }
        }
        ranges
    }

    pub(crate) fn insert(&mut self, run: Run) -> usize {
        let at = self.runs.partition_point(|other| other.first < run.first);
        self.runs.insert(at, run);
        at
    }

    /// A block that is there was answered for, by a thread that does not write: a sync that fails meanwhile does not take it back.
    pub(crate) fn note_answered(&mut self, block: u64, synced: bool) {
        let runs = self.runs.iter_mut().filter(|run| !synced && run.first <= block && block <= run.written);
        runs.for_each(|run| run.answered = run.answered.max(block));
    }

    pub(crate) fn run_mut(&mut self, id: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    /// The parts of files that have blocks from `from` to `through`, by their first blocks.
    pub(crate) fn parts(&self, from: u64, through: u64) -> Vec<FilePart> {
        let all = self.runs.iter().flat_map(|run| run.files.iter());
        let mut parts: Vec<FilePart> =
            all.filter(|part| part.has_blocks() && part.first <= through && from <= part.last).copied().collect();
        parts.sort_by_key(|part| part.first);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: u64, first: u64, written: u64, taken: u64) -> Run {
        Run {
            first,
            origin: first,
            doubtful: false,
            lost_behind: None,
            begun: 0,
            taken,
            taken_back: 0,
            written,
            synced: written,
            answered: 0,
            to_sync: false,
            disk: 0,
            id,
            files: VecDeque::new(),
            given_back_on: None,
            refused: VecDeque::new(),
        }
    }

    #[test]
    fn a_block_is_taken_behind_the_one_before_it_or_as_its_views_first() {
        let mut replica = Replica::default();
        assert_eq!(replica.fit(1, 1, false), Fit::Begins);
        assert_eq!(replica.fit(2, 1, false), Fit::Hole(1));
        replica.insert(run(1, 1, 3, 5));
        assert_eq!(replica.fit(3, 1, false), Fit::Stored);
        assert_eq!(replica.fit(4, 1, false), Fit::OnItsWay(0));
        assert_eq!(replica.fit(6, 1, false), Fit::Follows(0));
        assert_eq!(replica.fit(7, 1, false), Fit::Hole(6));
        // A later view begins behind a hole, an earlier one says what is missing of it.
        assert_eq!(replica.fit(10, 10, false), Fit::Begins);
        replica.insert(run(2, 10, 12, 12));
        assert_eq!(replica.fit(14, 10, false), Fit::Hole(13));
        assert_eq!(replica.fit(8, 1, false), Fit::Hole(6));
        assert_eq!(replica.through(1, |run| (run.origin, run.written)), 3);
        assert_eq!(replica.through(10, |run| (run.origin, run.written)), 12);
        assert_eq!(replica.through(13, |run| (run.origin, run.written)), 12);
        assert_eq!(replica.ranges(), [BlockRange { first: 1, last: 3 }, BlockRange { first: 10, last: 12 }]);
    }

    #[test]
    fn blocks_that_do_not_read_back_are_not_told() {
        let range = |first, last| BlockRange { first, last };
        let mut replica = Replica::default();
        replica.insert(run(1, 5, 20, 20));
        replica.insert(run(2, 30, 40, 40));
        replica.note_damaged(&[range(9, 9)]);
        replica.note_damaged(&[range(7, 8), range(20, 30), range(1, 2)]);
        assert_eq!(replica.damaged, [range(7, 9), range(20, 30)], "what was given back is not kept");
        assert_eq!(replica.ranges(), [range(5, 6), range(10, 19), range(31, 40)]);
        replica.note_damaged(&[range(5, 40)]);
        assert_eq!(replica.ranges(), []);
    }

    #[test]
    fn what_was_answered_for_is_noted_in_the_row_that_has_it() {
        let mut replica = Replica::default();
        replica.insert(run(1, 1, 3, 5));
        replica.insert(run(2, 10, 12, 12));
        let answered = |replica: &Replica| replica.runs.iter().map(|run| run.answered).collect::<Vec<_>>();
        replica.note_answered(2, true);
        assert_eq!(answered(&replica), [0, 0], "that is what syncs are for");
        replica.note_answered(2, false);
        replica.note_answered(1, false);
        replica.note_answered(4, false);
        assert_eq!(answered(&replica), [2, 0]);
        replica.note_answered(12, false);
        assert_eq!(answered(&replica), [2, 12]);
    }

    #[test]
    fn a_hole_that_was_filled_is_none() {
        let mut replica = Replica::default();
        replica.insert(run(1, 10, 12, 12));
        assert_eq!(replica.fit(1, 1, false), Fit::Begins);
        replica.insert(run(2, 1, 9, 9));
        assert_eq!(replica.through(1, |run| (run.origin, run.written)), 12);
        assert_eq!(replica.ranges(), [BlockRange { first: 1, last: 12 }]);
        assert_eq!(replica.fit(13, 1, false), Fit::Follows(1));
    }

    #[test]
    fn a_block_that_was_begun_is_told_behind_the_last_one_of_its_row() {
        let mut replica = Replica::default();
        replica.insert(Run { begun: 53, ..run(1, 41, 50, 50) });
        replica.insert(Run { begun: 60, ..run(2, 61, 60, 60) });
        let behind = |replica: &Replica, end| replica.begun_behind(end, |run| run.written);
        assert_eq!([49, 50, 60].map(|end| behind(&replica, end)), [0, 53, 0]);
        // The row goes on.
        replica.runs[0].written = 53;
        assert_eq!(behind(&replica, 53), 0);
    }

    #[test]
    fn what_was_given_back_is_not_asked_for_again_and_what_was_damaged_is() {
        let mut replica = Replica::default();
        replica.insert(Run { origin: 1, ..run(1, 41, 50, 50) });
        assert_eq!(replica.fit(1, 1, true), Fit::Stored);
        assert_eq!(replica.fit(40, 1, true), Fit::Stored);
        assert_eq!(replica.fit(51, 1, true), Fit::Follows(0));
        assert_eq!(replica.through(20, |run| (run.origin, run.written)), 50);
        assert_eq!(replica.ranges(), [BlockRange { first: 41, last: 50 }]);
        // Blocks 51 and 52 were changed by the disk.
        replica.insert(Run { doubtful: true, ..run(2, 53, 60, 60) });
        assert_eq!(replica.fit(51, 1, true), Fit::Follows(0));
        assert_eq!(replica.through(1, |run| (run.origin, run.written)), 50);
        assert_eq!(
            (replica.missing(1, 60), replica.missing(52, 53), replica.missing(1, 52)),
            (Some(51), Some(52), None)
        );
        assert_eq!((replica.missing(1, 50), replica.missing(53, 90), replica.missing(61, 90)), (None, None, None));
        let written = |run: &Run| run.written;
        assert!(!replica.is_certain(1, 50, written) && replica.is_certain(1, 60, written));
    }

    #[test]
    fn an_end_behind_which_the_power_went_is_not_certain_until_something_follows() {
        let written = |run: &Run| run.written;
        let mut replica = Replica::default();
        assert!(replica.is_certain(1, 0, written), "of a row that there was its first file would be there");
        replica.insert(Run { lost_behind: Some(50), ..run(1, 1, 50, 50) });
        assert!(!replica.is_certain(1, 50, written) && !replica.is_certain(61, 60, written));
        // A later view has come since.
        replica.insert(run(2, 61, 61, 61));
        assert!(replica.is_certain(61, 61, written) && !replica.is_certain(1, 50, written));
        replica.runs[0].written = 51;
        assert!(replica.is_certain(1, 51, written));
    }
}
