//! Reading a lane once from its first chunk to its durable end, by whoever rebuilds what it knows from a stream at start. On
//! the starting thread, which may wait for the disk; never on an I/O thread.

use std::sync::Arc;

use kera_format::Cursor;
use parking_lot::{Condvar, Mutex};

use crate::lane::Lane;
use crate::read::ReadError;
use crate::waiters::Observer;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

impl Lane {
    /// Gives out what is in the lane, whole chunks at a time, oldest first. Blocks the thread while segments come from disk.
    pub fn replay(&self, mut each: impl FnMut(&[u8])) -> Result<(), ReadError> {
        let arrived = Arc::new(Arrived::default());
        let observer: Arc<dyn Observer> = Arc::clone(&arrived) as _;
        let mut cursor = Cursor::default();
        loop {
            let outcome = self.read(cursor, READ_BYTES, true)?;
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
