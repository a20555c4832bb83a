//! Copies of all that a node has of a streamlet in another virtual log, one with another number of backups (`docs/replication.md`, "Another number of
//! copies"): what is closed is given to it bit by bit while producers write on, and the rest when the streamlet is let go.

use std::collections::HashSet;

use kera_format::SegmentId;
use kera_log::{CopiedAgain, DurabilitySink, Log, Streamlet, Ticket};

/// Segments that are waited for at a time: what is not in memory is read for this, and has to stay there until it is given.
const WAITS_MAX: usize = 64;

/// How far a streamlet's copies are. Whoever drives it decides when to look again.
#[derive(Debug, Default)]
pub struct CopyRun {
    given: HashSet<SegmentId>,
    last: Ticket,
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyStep {
    /// So many bytes were given to the log; there is more.
    Gave(u64),
    /// What is left cannot be given yet, as what comes from the disk, or what was given is not durable yet.
    Later,
    /// All that is closed has its copies.
    Done,
    /// This segment cannot be copied as it is: it was compacted, and is too large for a row of pieces.
    Stuck(SegmentId),
}

impl CopyRun {
    /// Gives closed segments to `sink`, about `bytes` of them, always the same sink. Any thread.
    pub fn step(&mut self, log: &Log, place: &Streamlet, sink: &dyn DurabilitySink, bytes: u64) -> CopyStep {
        self.step_of(log, log.closed_segments(place), sink, bytes)
    }

    /// The same of a streamlet that was let go: of all segments, so that whatever is still open is closed and counts as not there yet.
    pub fn last_step(&mut self, log: &Log, place: &Streamlet, sink: &dyn DurabilitySink, bytes: u64) -> CopyStep {
        self.step_of(log, log.segments_before(place, u32::MAX), sink, bytes)
    }

    fn step_of(&mut self, log: &Log, wanted: Vec<SegmentId>, sink: &dyn DurabilitySink, bytes: u64) -> CopyStep {
        let (mut gave, mut waits) = (0, 0);
        for segment in wanted.iter().filter(|segment| !self.given.contains(segment)).copied().collect::<Vec<_>>() {
            if gave >= bytes || waits >= WAITS_MAX {
                break;
            }
            let mut in_front = Vec::new();
            let again = log.copy_again_in_order(segment, sink, &mut |first, ticket, bytes| {
                in_front.push((first, ticket, bytes));
                true
            });
            for (first, ticket, bytes) in in_front {
                self.given.insert(first);
                (self.last, gave) = (self.last.max(ticket), gave + u64::from(bytes));
            }
            match again {
                CopiedAgain::Given(ticket, bytes) => {
                    self.given.insert(segment);
                    (self.last, gave) = (self.last.max(ticket), gave + u64::from(bytes));
                }
                // Retention has taken it, or there is nothing in it.
                CopiedAgain::Gone => drop(self.given.insert(segment)),
                CopiedAgain::Never => return CopyStep::Stuck(segment),
                CopiedAgain::Later | CopiedAgain::Behind(_) => waits += 1,
            }
        }
        // What is gone is not asked for again.
        if self.given.len() > 2 * wanted.len() + 64 {
            let there: HashSet<SegmentId> = wanted.into_iter().collect();
            self.given.retain(|segment| there.contains(segment));
        }
        if gave > 0 {
            return CopyStep::Gave(gave);
        }
        if waits > 0 || sink.durable_through() < self.last { CopyStep::Later } else { CopyStep::Done }
    }
}
