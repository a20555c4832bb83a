//! Reading a lane once from its first chunk to its durable end, by whoever rebuilds what it knows from a stream at start. On
//! the starting thread, which may wait for the disk; never on an I/O thread.

use std::sync::Arc;

use kera_format::Cursor;
use parking_lot::{Condvar, Mutex};

use crate::lane::Lane;
use crate::read::ReadError;
use crate::segment::FIRST_CHUNK;
use crate::waiters::Observer;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

impl Lane {
    /// Gives out what is in the lane, whole chunks at a time, oldest first. Blocks the thread while segments come from disk.
    pub fn replay(&self, each: impl FnMut(&[u8])) -> Result<(), ReadError> {
        self.replay_from(Cursor::default(), each).map_err(|(_, error)| error)
    }

    /// The same, and goes on behind segments that cannot be read: in the place of each comes why.
    ///
    /// # Errors
    /// As with [`replay`](Lane::replay), but for those.
    pub fn replay_past_damage(&self, mut each: impl FnMut(Result<&[u8], ReadError>)) -> Result<(), ReadError> {
        let mut from = Cursor::default();
        loop {
            match self.replay_from(from, |data| each(Ok(data))) {
                Ok(()) => return Ok(()),
                Err((at, error @ ReadError::LoadFailed(_))) => {
                    each(Err(error));
                    let Some(next) = self.behind_unread(at) else { return Ok(()) };
                    from = next;
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Where the segment begins that follows the one which a read at `cursor` has to bring back.
    pub fn behind_unread(&self, cursor: Cursor) -> Option<Cursor> {
        let state = self.state.lock();
        let (mut at, from) = self.locate(&state, cursor).ok()??;
        if state.chain.slot(at).end() == from {
            at = state.chain.next(at)?;
        }
        let next = state.chain.next(at)?;
        Some(state.chain.cursor(next, FIRST_CHUNK))
    }

    /// Replays from a cursor on; with an error, where it was.
    fn replay_from(&self, from: Cursor, mut each: impl FnMut(&[u8])) -> Result<(), (Cursor, ReadError)> {
        let arrived = Arc::new(Arrived::default());
        let observer: Arc<dyn Observer> = Arc::clone(&arrived) as _;
        let mut cursor = from;
        loop {
            let outcome = self.read(cursor, READ_BYTES, true).map_err(|error| (cursor, error))?;
            outcome.data.iter().for_each(|data| each(data));
            cursor = outcome.next;
            if outcome.loading {
                if self.wait(outcome.version, &observer, 0) {
                    arrived.wait();
                }
            } else if outcome.at_durable_end {
                return Ok(());
            }
        }
    }
}

/// Lets a thread wait for what an [`Observer`] is told: one that may block, such as the starting one.
#[derive(Default)]
pub struct Arrived {
    arrived: Mutex<bool>,
    changed: Condvar,
}

impl Arrived {
    /// Blocks until it has been told since the last wait.
    pub fn wait(&self) {
        let mut arrived = self.arrived.lock();
        while !*arrived {
            self.changed.wait(&mut arrived);
        }
        *arrived = false;
    }
}

impl Observer for Arrived {
    fn advanced(&self, _: u64) {
        *self.arrived.lock() = true;
        self.changed.notify_all();
    }
}
