//! That a node's clock is doubted, kept on disk: what is appended meanwhile carries the time of the clock and would vouch for it at the next start.
//!
//! `clock.json` is there while a clock is doubted ([`Believed`](kera_env::Believed)), and written once a minute. What it says may be a minute old: then a
//! little less is believed, and nothing goes early.
//!
//! The disk may stand still, and the thread that looks at the clock has other things to do: a thread of its own writes, one at a time. What cannot be written is tried again
//! with the next look.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kera_env::{Believed, Clock, Disk, Doubted};
use serde::{Deserialize, Serialize};

use crate::fatal::Fatal;
use crate::marks;

/// The file.
const FILE: &str = "clock.json";
/// Longer files are nobody's.
const BYTES_MAX: usize = 4096;
/// It is written again after so long, in milliseconds.
const AGAIN_MS: i64 = 60_000;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    believed_ms: i64,
    left_ms: i64,
    /// Builds that did not write it took a clock for right in all that it says when its time was up.
    #[serde(default = "any")]
    ahead_ms: i64,
}

fn any() -> i64 {
    i64::MAX
}

/// What the process before has left. Nothing if it cannot be read: then the clock is believed as at any start.
///
/// # Errors
/// The file is there, and the disk does not give it, or it is of a later build.
pub(super) fn left_by_the_last(disk: &dyn Disk) -> Result<Option<Doubted>, Fatal> {
    let marks = match marks::read(disk, FILE, BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        marks => marks.map_err(|error| Fatal::directory(disk.root(), error))?,
    };
    let content = marks.copy.as_ref().unwrap_or(&marks.file);
    match serde_json::from_slice(content) {
        Ok(Content { version: 1, believed_ms, left_ms, ahead_ms }) => {
            Ok(Some(Doubted { believed_ms, left_ms, ahead_ms }))
        }
        Ok(Content { version, .. }) => {
            let message = format!(
                "{FILE} has version {version}, and this build knows 1: start the build that wrote it, or remove the file once the clock is right"
            );
            Err(Fatal::Data { message })
        }
        Err(error) => {
            tracing::warn!(%error, "{FILE} says nothing of a clock that was doubted");
            Ok(None)
        }
    }
}

/// Before anything is appended or deleted: what the clock says is compared with the data that there are, the newest appended at `newest_ms`.
pub(super) fn begin(clock: &dyn Clock, newest_ms: Option<i64>, disk: &dyn Disk) -> Result<(), Fatal> {
    clock.begin(newest_ms, left_by_the_last(disk)?);
    // At once: before the first look nothing would be on disk.
    match clock.believed().doubted() {
        Some(doubted) => write(disk, doubted).map_err(|error| Fatal::directory(disk.root(), error)),
        None => Ok(()),
    }
}

fn write(disk: &dyn Disk, doubted: Doubted) -> io::Result<()> {
    let Doubted { believed_ms, left_ms, ahead_ms } = doubted;
    let text = serde_json::to_vec(&Content { version: 1, believed_ms, left_ms, ahead_ms })?;
    marks::write(disk, FILE, &text)
}

fn remove(disk: &dyn Disk) -> io::Result<()> {
    marks::remove(disk, FILE)
}

/// Keeps the file. For one thread.
pub(super) struct DoubtFile {
    disk: Arc<dyn Disk>,
    /// When it was written, on the monotonic clock; `None`: it is not there, or not for sure.
    written_ms: Option<i64>,
    /// It may be there.
    may_be_there: bool,
    writing: Arc<Writing>,
}

#[derive(Default)]
struct Writing {
    is_busy: AtomicBool,
    has_failed: AtomicBool,
}

impl DoubtFile {
    /// The one in a node's data directory.
    pub(super) fn new(disk: Arc<dyn Disk>) -> DoubtFile {
        DoubtFile { disk, written_ms: None, may_be_there: true, writing: Arc::default() }
    }

    /// To be called with each look at the clock. Does not wait for the disk.
    pub(super) fn keep(&mut self, now: &Believed) {
        if self.writing.has_failed.swap(false, Ordering::Relaxed) {
            (self.written_ms, self.may_be_there) = (None, true);
        }
        let doubted = now.doubted();
        let is_due = match doubted {
            Some(_) => self.written_ms.is_none_or(|at_ms| now.mono_ms() >= at_ms.saturating_add(AGAIN_MS)),
            None => self.may_be_there,
        };
        if !is_due || self.writing.is_busy.swap(true, Ordering::Acquire) {
            return;
        }
        (self.written_ms, self.may_be_there) = (doubted.map(|_| now.mono_ms()), doubted.is_some());
        let (disk, writing) = (Arc::clone(&self.disk), Arc::clone(&self.writing));
        let work = move || {
            let done = match doubted {
                Some(doubted) => write(&*disk, doubted),
                None => remove(&*disk),
            };
            if let Err(error) = done {
                tracing::warn!(%error, "{FILE} is not kept: a start would believe the clock");
                writing.has_failed.store(true, Ordering::Relaxed);
            }
            writing.is_busy.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("kera-clock".to_owned()).spawn(work).is_err() {
            self.writing.has_failed.store(true, Ordering::Relaxed);
            self.writing.is_busy.store(false, Ordering::Release);
        }
    }

    #[cfg(test)]
    fn wait(&self) {
        while self.writing.is_busy.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use kera_env::{FaultyDisk, ManualClock, MemoryDisk};

    use super::*;

    const NOW_MS: i64 = 1_800_000_000_000;
    const YEAR_MS: i64 = 365 * 86_400_000;

    fn turns(clock: &ManualClock, file: &mut DoubtFile, minutes: u64) {
        for _ in 0..minutes {
            clock.advance_ms(60_000);
            file.keep(&clock.believed());
            file.wait();
        }
    }

    #[test]
    fn a_doubt_outlives_the_process_and_ends_after_its_hour() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let clock = ManualClock::new(NOW_MS);
        begin(&clock, Some(NOW_MS - 1_000), &*disk).unwrap();
        let mut file = DoubtFile::new(disk.clone());
        turns(&clock, &mut file, 1);
        assert!(left_by_the_last(&*disk).unwrap().is_none());
        clock.set_now_ms(clock.now_ms() + YEAR_MS);
        file.keep(&clock.believed());
        file.wait();
        turns(&clock, &mut file, 20);
        // What was appended meanwhile says that it is next year. The machine has another process, and another one.
        let mut believed_ms = clock.believed().now_ms();
        for minutes in [20, 10] {
            let again = ManualClock::new(clock.now_ms());
            begin(&again, Some(clock.now_ms()), &*disk).unwrap();
            assert_eq!(again.believed().now_ms(), believed_ms);
            turns(&again, &mut DoubtFile::new(disk.clone()), minutes);
            believed_ms = again.believed().now_ms();
            clock.advance_ms(minutes * 60_000);
        }
        assert_eq!(believed_ms, NOW_MS + 51 * 60_000);
        let last = ManualClock::new(clock.now_ms());
        begin(&last, Some(clock.now_ms()), &*disk).unwrap();
        let mut file = DoubtFile::new(disk.clone());
        turns(&last, &mut file, 12);
        assert_eq!((last.believed().doubt(), last.believed().now_ms()), (None, last.now_ms()));
        assert!(left_by_the_last(&*disk).unwrap().is_none() && disk.read_all("clock.json.copy", 99).is_err());
    }

    #[test]
    fn a_doubt_that_does_not_say_how_far_ahead_the_clock_was_is_one() {
        let disk = MemoryDisk::new();
        marks::write(&disk, FILE, br#"{"version":1,"believed_ms":7,"left_ms":8}"#).unwrap();
        let doubted = Doubted { believed_ms: 7, left_ms: 8, ahead_ms: i64::MAX };
        assert_eq!(left_by_the_last(&disk).unwrap(), Some(doubted));
        let clock = ManualClock::new(NOW_MS);
        begin(&clock, Some(NOW_MS), &disk).unwrap();
        assert_eq!(clock.believed().now_ms(), 7);
        clock.advance_ms(10);
        assert_eq!(clock.believed().now_ms(), clock.now_ms());
    }

    #[test]
    fn what_the_disk_does_not_take_is_written_with_a_later_look() {
        let disk = Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::new())));
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        let mut file = DoubtFile::new(disk.clone());
        clock.set_now_ms(NOW_MS + YEAR_MS);
        disk.set_broken(true);
        turns(&clock, &mut file, 2);
        disk.set_broken(false);
        turns(&clock, &mut file, 1);
        assert_eq!(left_by_the_last(&*disk).unwrap().map(|doubted| doubted.left_ms), Some(58 * 60_000));
        clock.set_now_ms(clock.now_ms() - YEAR_MS);
        disk.set_broken(true);
        turns(&clock, &mut file, 1);
        disk.set_broken(false);
        turns(&clock, &mut file, 1);
        assert_eq!(left_by_the_last(&*disk).unwrap(), None);
    }
}
