//! How far a rebuild is, and where its time goes: for whoever looks on, and for the log at level `debug`.
//!
//! A rebuild is a row of stages, each of which may wait for the one before it, for the one behind it, or for memory: the figures say which of them all others wait for.

use std::sync::atomic::{AtomicU64, Ordering};

use kera_env::Clock;
use kera_log::Arena;

/// So often it is said of a rebuild that a backup does not give blocks, and then once in so long.
const SAID_AT_ONCE: u64 = 32;
const SAY_AGAIN_US: u64 = 60_000_000;

/// How far a rebuild is, for whoever looks on. All counts rise, but for the one that says otherwise.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    /// Bytes of old segments that are to be rebuilt.
    pub bytes_all: AtomicU64,
    /// Of those, bytes that are whole and can be read.
    pub bytes_readable: AtomicU64,
    /// Bytes of chunks that backups have sent, those of passes that read them again included.
    pub bytes_read: AtomicU64,
    /// Lanes with something to rebuild.
    pub lanes: AtomicU64,
    /// How often the lost logs were read: more than once if memory is short.
    pub passes: AtomicU64,
    /// Threads that have a chunk and wait since the machine has no memory for it, though the arena has room. This count falls, too.
    pub without_memory: AtomicU64,
    /// What its threads do with their time.
    pub times: RebuildTimes,
    /// How often a backup did not give blocks, and when that was said last.
    not_given: AtomicU64,
    said_us: AtomicU64,
}

/// Microseconds of all threads of a rebuild that ask backups, and of those that put chunks to their places: each of the former has one of the latter.
#[derive(Debug, Default)]
pub struct RebuildTimes {
    /// Who asks waits for an answer: for the backup's disk, for what checks blocks there, and for the network.
    pub asking_us: AtomicU64,
    /// Who asks has answers, and nobody takes them: chunks are not put to their places as soon as they come.
    pub handing_us: AtomicU64,
    /// Who puts chunks to their places waits for an answer.
    pub waiting_us: AtomicU64,
    /// Who puts chunks to their places does so, or waits for what is below.
    pub placing_us: AtomicU64,
    /// Of that it waits for room in the arena.
    pub room_us: AtomicU64,
    /// Of that it waits for new copies of what is whole, which takes too much memory without them.
    pub copies_us: AtomicU64,
}

impl RecoveryProgress {
    /// A backup does not give blocks: whether that is to be said. A rebuild that waits for a person, or for a node that is away for days, tries again every few seconds, with each
    /// backup of each range.
    pub(super) fn may_say(&self, now_us: u64) -> bool {
        let is_early = self.not_given.fetch_add(1, Ordering::Relaxed) < SAID_AT_ONCE;
        let may = is_early || now_us.saturating_sub(self.said_us.load(Ordering::Relaxed)) >= SAY_AGAIN_US;
        if may {
            self.said_us.store(now_us, Ordering::Relaxed);
        }
        may
    }

    /// Says where the time of all its threads went.
    pub(super) fn tell(&self, took_ms: u64, cold_blocks: u64) {
        let RebuildTimes { asking_us, handing_us, waiting_us, placing_us, room_us, copies_us } = &self.times;
        let ms = |us: &AtomicU64| us.load(Ordering::Relaxed) / 1000;
        tracing::debug!(
            took_ms,
            passes = self.passes.load(Ordering::Relaxed),
            read_bytes = self.bytes_read.load(Ordering::Relaxed),
            asking_ms = ms(asking_us),
            handing_ms = ms(handing_us),
            waiting_ms = ms(waiting_us),
            placing_ms = ms(placing_us),
            room_ms = ms(room_us),
            copies_ms = ms(copies_us),
            cold_blocks,
            "where the time of a rebuild went until all could be read, of all its threads"
        );
    }
}

/// Counts as one that waits without memory, for as long as it is kept.
pub(super) struct WithoutMemory<'a>(&'a AtomicU64);

impl WithoutMemory<'_> {
    pub(super) fn of(progress: &RecoveryProgress) -> WithoutMemory<'_> {
        progress.without_memory.fetch_add(1, Ordering::Relaxed);
        WithoutMemory(&progress.without_memory)
    }
}

impl Drop for WithoutMemory<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does something whose time counts.
pub(super) fn spend<T>(clock: &dyn Clock, on: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let began_us = clock.monotonic_us();
    let done = work();
    on.fetch_add(clock.monotonic_us().saturating_sub(began_us), Ordering::Relaxed);
    done
}

/// A clock that is looked at behind each part of something.
pub(super) struct Laps<'a> {
    clock: &'a dyn Clock,
    began_us: u64,
    last_us: u64,
}

impl<'a> Laps<'a> {
    pub(super) fn begin(clock: &'a dyn Clock) -> Laps<'a> {
        let began_us = clock.monotonic_us();
        Laps { clock, began_us, last_us: began_us }
    }

    /// Milliseconds since this was asked last, or since the beginning.
    pub(super) fn lap_ms(&mut self) -> u64 {
        let now_us = self.clock.monotonic_us();
        now_us.saturating_sub(std::mem::replace(&mut self.last_us, now_us)) / 1000
    }

    /// Milliseconds since the beginning.
    pub(super) fn all_ms(&self) -> u64 {
        self.clock.monotonic_us().saturating_sub(self.began_us) / 1000
    }
}

/// How many blocks of the arena had to be touched by who was to fill them. While it grows memory is what is waited for.
pub(super) fn cold_blocks(arena: &Arena) -> u64 {
    arena.stats().cold_allocations
}

#[cfg(test)]
mod tests {
    use kera_env::ManualClock;

    use super::*;

    #[test]
    fn that_backups_do_not_give_blocks_is_said_of_the_first_and_then_once_in_a_minute() {
        let progress = RecoveryProgress::default();
        let said = |from_s: u64, to_s: u64| {
            (from_s * 10..to_s * 10).filter(|tenths| progress.may_say(tenths * 100_000)).count() as u64
        };
        assert_eq!([said(0, 10), said(10, 70), said(70, 130), said(130, 3_730)], [SAID_AT_ONCE, 1, 1, 60]);
    }

    #[test]
    fn time_counts_where_it_was_spent() {
        let (clock, progress) = (ManualClock::new(1_000_000), RecoveryProgress::default());
        let mut laps = Laps::begin(&clock);
        for ms in [3, 4] {
            let done = spend(&clock, &progress.times.asking_us, || {
                clock.advance_ms(ms);
                ms
            });
            assert_eq!(done, ms);
        }
        assert_eq!(laps.lap_ms(), 7);
        clock.advance_ms(5);
        assert_eq!((laps.lap_ms(), laps.lap_ms(), laps.all_ms()), (5, 0, 12));
        let RebuildTimes { asking_us, handing_us, .. } = &progress.times;
        assert_eq!((asking_us.load(Ordering::Relaxed), handing_us.load(Ordering::Relaxed)), (7_000, 0));
    }
}
