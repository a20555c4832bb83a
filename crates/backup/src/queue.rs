//! Blocks that were taken and are not written yet: one queue per disk, filled by I/O threads, emptied by the disk's writer.

use std::sync::Arc;
use std::time::Duration;

use kera_env::AlignedBuffer;
use kera_protocol::StoreHead;
use parking_lot::{Condvar, Mutex};

use crate::backup::StoreDone;

/// A block on its way to a disk, or somebody who waits for one that is.
pub(crate) struct Job {
    pub(crate) head: StoreHead,
    /// The run of the log that it belongs to.
    pub(crate) run: u64,
    /// How often blocks of it had been taken back when this one was taken.
    pub(crate) taken_back: u64,
    /// Room for a block's header, the chunks, zeros up to whole pages. `None`: the block is on its way already.
    pub(crate) data: Option<AlignedBuffer>,
    pub(crate) done: Arc<dyn StoreDone>,
    pub(crate) token: u64,
}

#[derive(Default)]
struct Inner {
    jobs: Vec<Job>,
    sleeps: bool,
    stopping: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

impl Queue {
    /// May be called under the backup's lock: blocks of a log must come in their order.
    pub(crate) fn push(&self, job: Job) {
        let mut inner = self.inner.lock();
        inner.jobs.push(job);
        if std::mem::take(&mut inner.sleeps) {
            drop(inner);
            self.arrived.notify_one();
        }
    }

    /// Everything that waits.
    pub(crate) fn take(&self) -> Vec<Job> {
        std::mem::take(&mut self.inner.lock().jobs)
    }

    /// Sleeps until something arrives, `timeout` is over, or it is to stop. False: it is to stop, and nothing is left.
    pub(crate) fn sleep(&self, timeout: Duration) -> bool {
        let mut inner = self.inner.lock();
        if inner.jobs.is_empty() && !inner.stopping {
            inner.sleeps = true;
            self.arrived.wait_for(&mut inner, timeout);
            inner.sleeps = false;
        }
        !(inner.stopping && inner.jobs.is_empty())
    }

    pub(crate) fn stop(&self) {
        self.inner.lock().stopping = true;
        self.arrived.notify_all();
    }
}
