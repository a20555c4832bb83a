//! Which blocks of lost logs are read next, and from whom. A range of blocks that this node's own backup does not have is read in stripes: each thread takes the newest one that nobody has taken, and
//! asks the backup that has least to do. So the end of a log comes from all of its backups at once, disks and the network have the next question before they have answered the last one, and of
//! one that is slow others wait for a stripe or two.
//!
//! What this node has itself is read as before, one question behind the other: its disk reads many blocks at a time, and nothing of it crosses the network.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use kera_protocol::StreamletRef;
use parking_lot::Mutex;

use super::{Copies, RangeOfLog, ReadFor};

/// About how many bytes of chunks a stripe has: two questions.
const STRIPE_BYTES: u64 = 8 << 20;
/// Stripes of a range at most, and the fewest blocks of one.
const STRIPES_MAX: u64 = 1024;
const STRIPE_BLOCKS_MIN: u64 = 4;
/// Stripes that come at the turn of one range which has none, by what it may read then.
const STRIPES_IN_TURN: u64 = super::fetch::TURN_BYTES / STRIPE_BYTES;

/// A range of blocks, with what is to be read of it.
pub(super) struct Wanted<'a> {
    range: &'a RangeOfLog,
    pub(super) streamlets: Vec<StreamletRef>,
    /// Pieces of it for which nobody has answered.
    pub(super) skipped: AtomicU32,
    /// How often each backup has given nothing of it.
    pub(super) away: Mutex<BTreeMap<u32, u32>>,
}

/// Of these ranges those with something for streamlets of which something is missing.
pub(super) fn wanted(ranges: &[ReadFor], is_missing: impl Fn(&StreamletRef) -> bool) -> Vec<Wanted<'_>> {
    let of = |(_, has): &ReadFor| has.iter().copied().filter(|name| is_missing(name)).collect::<Vec<_>>();
    let all = ranges.iter().map(|one| Wanted {
        range: &one.0,
        streamlets: of(one),
        skipped: AtomicU32::new(0),
        away: Mutex::default(),
    });
    all.filter(|one| !one.streamlets.is_empty()).collect()
}

/// A part of a range that one thread reads at a time.
pub(super) struct Stripe<'a> {
    pub(super) range: RangeOfLog,
    pub(super) of: &'a Wanted<'a>,
    /// When it has its turn, if all that comes before has had it.
    pub(super) turn: u64,
    /// It is behind the newest one of its range, and read in one piece.
    pub(super) is_behind: bool,
}

/// What there is to be read of ranges, `newer`: how many ranges that are newer the log of each has. `bytes_all`: of all that is rebuilt, which tells how large blocks are.
pub(super) fn stripes<'a>(
    wanted: &'a [Wanted<'a>],
    newer: impl Fn(&RangeOfLog) -> u64,
    bytes_all: u64,
    (copies, asks_all): (&dyn Copies, bool),
) -> Vec<Stripe<'a>> {
    let all: u64 = wanted.iter().map(|one| blocks_of(one.range)).fold(0, u64::saturating_add);
    let blocks = STRIPE_BYTES.saturating_mul(all).checked_div(bytes_all).unwrap_or(u64::MAX).max(STRIPE_BLOCKS_MIN);
    let mut stripes = Vec::new();
    for of in wanted {
        let is_cut = copies.threads() > 1 && !asks_all && !is_here(of.range, copies);
        let parts = cut(of.range, if is_cut { blocks } else { u64::MAX });
        let newer = newer(of.range);
        let turns = (0_u64..).map(|at| if at == 0 { 0 } else { 1 + (at - 1) / STRIPES_IN_TURN });
        for (range, turn) in parts.into_iter().zip(turns) {
            let is_behind = range.last < of.range.last;
            stripes.push(Stripe { range, of, turn: newer + turn, is_behind });
        }
    }
    stripes
}

/// Whether this node has a range itself.
pub(super) fn is_here(range: &RangeOfLog, copies: &dyn Copies) -> bool {
    range.backups.iter().any(|backup| copies.is_here(*backup))
}

fn blocks_of(range: &RangeOfLog) -> u64 {
    range.last.saturating_add(1).saturating_sub(range.first)
}

/// A range in parts of so many blocks, the newest first. As it is if that would be no two.
fn cut(range: &RangeOfLog, blocks: u64) -> Vec<RangeOfLog> {
    let all = blocks_of(range);
    let blocks = blocks.max(all.div_ceil(STRIPES_MAX));
    if all / 2 < blocks {
        return vec![range.clone()];
    }
    let (mut parts, mut last) = (Vec::new(), range.last);
    loop {
        let first = range.first.max(last.saturating_sub(blocks - 1));
        parts.push(RangeOfLog { first, last, ..range.clone() });
        if first == range.first {
            return parts;
        }
        last = first - 1;
    }
}

/// What backups have to do for a rebuild: how many of its threads ask each, and how often it has failed, which counts as much. Who fails each time is soon asked after all others, and one bad block
/// costs little.
#[derive(Default)]
pub(super) struct Busy(Mutex<BTreeMap<u32, u32>>);

impl Busy {
    /// Puts those that have least to do in front, of those that are there and behind them of those that are lost, and notes that the first one is asked.
    pub(super) fn choose(&self, (there, lost): (Vec<u32>, Vec<u32>)) -> (Vec<u32>, Option<Asking<'_>>) {
        let mut busy = self.0.lock();
        let load = |backup: &u32| busy.get(backup).copied().unwrap_or(0);
        let (mut backups, mut behind) = (there, lost);
        backups.sort_by_key(load);
        behind.sort_by_key(load);
        backups.append(&mut behind);
        let asking = backups.first().map(|backup| self.note(&mut busy, *backup));
        (backups, asking)
    }

    /// Notes that a backup is asked.
    pub(super) fn ask(&self, backup: u32) -> Asking<'_> {
        self.note(&mut self.0.lock(), backup)
    }

    fn note(&self, busy: &mut BTreeMap<u32, u32>, backup: u32) -> Asking<'_> {
        *busy.entry(backup).or_default() += 1;
        Asking { busy: self, backup }
    }

    pub(super) fn fails(&self, backup: u32) {
        *self.0.lock().entry(backup).or_default() += 1;
    }
}

/// A backup that a thread asks.
pub(super) struct Asking<'a> {
    busy: &'a Busy,
    pub(super) backup: u32,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(busy) = self.busy.0.lock().get_mut(&self.backup) {
            *busy = busy.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use kera_format::vlog_replica::LogId;

    use super::*;

    fn range(first: u64, last: u64) -> RangeOfLog {
        RangeOfLog { log: LogId { node: 1, epoch: 2, vlog: 0 }, first, last, backups: vec![11, 12] }
    }

    #[test]
    fn a_range_is_cut_from_its_end_and_each_block_is_in_one_part() {
        for (first, last, blocks) in [(1, 100, 8), (7, 5000, 1), (1, 16, 8), (1, 17, 8), (3, 1_000_000, 4)] {
            let parts = cut(&range(first, last), blocks);
            assert!((2..=STRIPES_MAX as usize).contains(&parts.len()), "{} parts", parts.len());
            assert_eq!((parts[0].last, parts[parts.len() - 1].first), (last, first));
            assert!(parts.windows(2).all(|pair| pair[1].last + 1 == pair[0].first && pair[1].first <= pair[1].last));
        }
        for (first, last, blocks) in [(1, 15, 8), (1, 100, u64::MAX), (1, 0, 4), (5, 5, 4)] {
            assert_eq!(cut(&range(first, last), blocks), [range(first, last)]);
        }
    }

    #[test]
    fn who_has_least_to_do_is_asked_and_who_fails_after_others() {
        let busy = Busy::default();
        let order = || busy.choose((vec![11, 12], vec![13, 14])).0;
        let (backups, asking) = busy.choose((vec![11, 12], vec![13, 14]));
        assert_eq!((backups, asking.as_ref().map(|asking| asking.backup)), (vec![11, 12, 13, 14], Some(11)));
        assert_eq!(order(), [12, 11, 13, 14]);
        let other = busy.ask(12);
        assert_eq!(order(), [11, 12, 13, 14]);
        drop((asking, other));
        busy.fails(11);
        busy.fails(13);
        assert_eq!(order(), [12, 11, 14, 13], "who is lost comes behind who is there");
        assert_eq!(busy.choose((vec![], vec![13, 14])).0, [14, 13]);
        assert!(busy.choose((vec![], vec![])).1.is_none());
    }
}
