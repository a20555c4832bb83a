//! Giving way: what nobody waits for is written later while the disk is busy with what somebody waits for.
//!
//! A backup answers a block once it is written, and the block's producer waits for that answer; and what a backup reads of the log of a lost node readers wait for. Nobody waits
//! for a closed segment of the store: it is in the arena, and what survives what does not depend on when it is written (decisions 7 and 25). Where both are on one
//! disk each byte that the store writes is one that producers, or readers, get through later. What is rebuilt is closed as soon as it is whole: the store would write the first
//! of it while the last is still being read.

/// What comes before what the store writes to its disks, since somebody waits for each of it. Called from the disks' writer threads.
pub trait ComesFirst: Send + Sync {
    /// Bytes that were written to a disk or read from it so, by its place in the list that the store was opened with; it only grows.
    fn bytes(&self, disk: usize) -> u64;
}

/// Microseconds between two looks at what others do.
pub(crate) const LOOK_US: u64 = 100_000;
/// The disk is busy with others from so many bytes in a second on: a few of them lie between any two segments and hold up nobody.
const BUSY_BYTES_PER_S: u64 = 64 << 20;
/// A closed segment waits at most so many times as long as it would.
pub(crate) const WAITS_TIMES: u64 = 5;

/// What a disk's writer has seen of others.
#[derive(Default)]
pub(crate) struct Others {
    seen: Option<Seen>,
    is_busy: bool,
}

struct Seen {
    at_us: u64,
    bytes: u64,
}

impl Others {
    /// Whether others move much to the disk or from it at present.
    pub(crate) fn are_busy(&mut self, first: &dyn ComesFirst, disk: usize, now_us: u64) -> bool {
        let since_us = self.seen.as_ref().map_or(u64::MAX, |seen| now_us.saturating_sub(seen.at_us));
        if since_us >= LOOK_US {
            let bytes = first.bytes(disk);
            if let Some(seen) = self.seen.take() {
                let more_bytes = bytes.saturating_sub(seen.bytes);
                self.is_busy =
                    u128::from(more_bytes) * 1_000_000 >= u128::from(since_us) * u128::from(BUSY_BYTES_PER_S);
            }
            self.seen = Some(Seen { at_us: now_us, bytes });
        }
        self.is_busy
    }
}
