//! Where blocks are in their files. To find one its reader passes over the headers of those in front of it, one read of a page after the other, each of which waits for
//! the disk; and what is read behind that finds these pages in the page cache, so that the disk is asked for what lies between them in many small pieces.
//!
//! Asked by whoever reads blocks and told by writers, on any thread. What is said here is a place to begin to look at: whoever reads a block there checks that it is the
//! one. Nothing survives the process, whose successor passes over headers once for each file.

use std::collections::{BTreeMap, VecDeque};

use kera_format::vlog_replica::LogId;
use parking_lot::Mutex;

use crate::replica::FilePart;

/// Ends of reads that are remembered: each takes 48 bytes.
const ENDS_MAX: usize = 1024;
/// From one block of a file whose place is remembered to the next one there are so many bytes at least.
const MARK_BYTES: u64 = 512 << 10;
/// Blocks whose places are remembered. Each takes 16 bytes, with room for as many again at most: 4 to 8 MiB for 128 GiB of copies.
const MARKS_MAX: usize = 1 << 18;

/// A file: its number, and its disk. On one disk no number is given twice. But while a disk is away others get the numbers of files that it has, and when it is back both are there.
type FileKey = (u64, usize);

/// See the module.
#[derive(Default)]
pub(crate) struct Positions {
    /// Where recent reads ended, so that the next one need not look for its block.
    ends: Mutex<VecDeque<(LogId, FileKey, u64, u64)>>,
    marks: Mutex<Marks>,
}

fn key_of(part: &FilePart) -> FileKey {
    (part.sequence, part.disk)
}

impl Positions {
    /// Where to begin to look for `block` in a part of a file: an offset, and the block that is there.
    pub(crate) fn find(&self, log: LogId, part: &FilePart, block: u64) -> (u64, u64) {
        let mut ends = self.ends.lock();
        let known = ends.iter().position(|known| (known.0, known.1, known.2) == (log, key_of(part), block));
        if let Some((.., at)) = known.and_then(|known| ends.remove(known)) {
            return (at, block);
        }
        drop(ends);
        let mark = self.marks.lock().before(key_of(part), block);
        mark.filter(|(known, _)| *known >= part.first).map_or((part.start, part.first), |(known, at)| (at, known))
    }

    /// A place in a part of a file at which `block` has ended, or behind that; `None`: none is known.
    pub(crate) fn behind(&self, part: &FilePart, block: u64) -> Option<u64> {
        self.marks.lock().behind(key_of(part), block)
    }

    /// A read has ended in front of a block.
    pub(crate) fn ended(&self, log: LogId, part: &FilePart, block: u64, at: u64) {
        let mut ends = self.ends.lock();
        if ends.len() == ENDS_MAX {
            ends.pop_front();
        }
        ends.push_back((log, key_of(part), block, at));
    }

    /// A block was found at a place of a file.
    pub(crate) fn passed(&self, part: &FilePart, block: u64, at: u64) {
        self.marks.lock().note(key_of(part), block, at);
    }

    /// Blocks of so many bytes each were written to the file of a disk with this number, one behind the other, the first one at this place.
    pub(crate) fn written(&self, disk: usize, sequence: u64, mut at: u64, blocks: impl Iterator<Item = (u64, u64)>) {
        let mut marks = self.marks.lock();
        for (block, bytes) in blocks {
            marks.note((sequence, disk), block, at);
            at += bytes;
        }
    }
}

/// By file: some of its blocks with their places, in order. Those of a file that is given back stay until others need their room, those with the lowest numbers first, which are the
/// oldest: no file that is made later gets its number on its disk.
#[derive(Default)]
struct Marks {
    files: BTreeMap<FileKey, Vec<(u64, u64)>>,
    count: usize,
}

impl Marks {
    fn note(&mut self, file: FileKey, block: u64, at: u64) {
        // From its start one is found as soon.
        if at < MARK_BYTES {
            return;
        }
        let of_file = self.files.entry(file).or_default();
        let next = of_file.partition_point(|(known, _)| *known < block);
        let neighbours = &of_file[next.saturating_sub(1)..of_file.len().min(next + 1)];
        if neighbours.iter().any(|(_, known)| known.abs_diff(at) < MARK_BYTES) {
            return;
        }
        of_file.insert(next, (block, at));
        self.count += 1;
        while self.count > MARKS_MAX
            && let Some((_, gone)) = self.files.pop_first()
        {
            self.count -= gone.len();
        }
    }

    /// The last one up to a block.
    fn before(&self, file: FileKey, block: u64) -> Option<(u64, u64)> {
        let of_file = self.files.get(&file)?;
        of_file[..of_file.partition_point(|(known, _)| *known <= block)].last().copied()
    }

    /// Where the first one behind a block is.
    fn behind(&self, file: FileKey, block: u64) -> Option<u64> {
        let of_file = self.files.get(&file)?;
        of_file.get(of_file.partition_point(|(known, _)| *known <= block)).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId { node: 1, epoch: 7, vlog: 0 };
    const BLOCK_BYTES: u64 = 128 << 10;

    /// A part with blocks 11 to 200, which begins behind another one.
    fn part() -> FilePart {
        FilePart {
            disk: 0,
            sequence: 5,
            key: 3,
            start: at(11),
            first: 11,
            last: 200,
            bytes: 32 << 20,
            footer: None,
            open: false,
            anchored: true,
        }
    }

    fn at(block: u64) -> u64 {
        4096 + (block - 1) * BLOCK_BYTES
    }

    #[test]
    fn a_block_is_looked_for_from_a_little_in_front_of_it_on() {
        let positions = Positions::default();
        assert_eq!(positions.find(LOG, &part(), 150), (at(11), 11), "nothing is known");
        positions.written(0, 5, at(1), (1..=200).map(|block| (block, BLOCK_BYTES)));
        for wanted in 11..=200 {
            let (place, block) = positions.find(LOG, &part(), wanted);
            assert_eq!(place, at(block));
            assert!((11..=wanted).contains(&block) && place + MARK_BYTES >= at(wanted), "{block} for {wanted}");
            let behind = positions.behind(&part(), wanted);
            assert!(behind.is_none_or(|behind| behind >= at(wanted + 1) && behind <= at(wanted + 1) + MARK_BYTES));
            assert_eq!(behind.is_none(), wanted >= 197, "{behind:?} for {wanted}");
        }
        assert_eq!(positions.find(LOG, &FilePart { sequence: 6, ..part() }, 150), (at(11), 11), "another file");
        let elsewhere = FilePart { disk: 1, ..part() };
        assert_eq!(positions.find(LOG, &elsewhere, 150), (at(11), 11), "another disk has a file of that number");
        assert_eq!(positions.behind(&elsewhere, 150), None);
        let later = FilePart { first: 150, start: at(150), ..part() };
        assert_eq!(positions.find(LOG, &later, 152), (at(150), 150), "what is in front of the part is not of it");
    }

    #[test]
    fn where_a_read_ended_is_known_once_and_exactly() {
        let positions = Positions::default();
        positions.ended(LOG, &part(), 150, at(150));
        assert_eq!(positions.find(LOG, &part(), 151), (at(11), 11));
        assert_eq!(positions.find(LOG, &FilePart { disk: 1, ..part() }, 150), (at(11), 11));
        assert_eq!(positions.find(LOG, &part(), 150), (at(150), 150));
        assert_eq!(positions.find(LOG, &part(), 150), (at(11), 11));
    }

    #[test]
    fn what_was_passed_is_not_passed_again_whatever_the_order() {
        let positions = Positions::default();
        (11..=200).rev().for_each(|block| positions.passed(&part(), block, at(block)));
        let count = positions.marks.lock().count;
        (11..=200).for_each(|block| positions.passed(&part(), block, at(block)));
        assert_eq!(positions.marks.lock().count, count);
        for wanted in 20..=200 {
            let (place, block) = positions.find(LOG, &part(), wanted);
            assert!(place == at(block) && block <= wanted && place + 2 * MARK_BYTES >= at(wanted), "{block}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_files_go_first() {
        let positions = Positions::default();
        let files = MARKS_MAX as u64 / 50;
        for sequence in 1..=files {
            positions.written(0, sequence, 4096, (1..=64).map(|block| (block, MARK_BYTES)));
        }
        let marks = positions.marks.lock();
        let count: usize = marks.files.values().map(Vec::len).sum();
        assert!(count == marks.count && (MARKS_MAX - 64..=MARKS_MAX).contains(&count), "{count} of {}", marks.count);
        assert!(marks.before((1, 0), 60).is_none() && marks.before((files, 0), 60).is_some());
    }
}
