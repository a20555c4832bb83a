//! Syncing full files behind the writer, so that it does not stand still for as long as a disk takes for a whole file.
//!
//! Of a row that nobody asks to sync a few full files may not be synced ([`UNSYNCED_MAX`](crate::files::UNSYNCED_MAX)): that is what a start
//! looks through after a loss of power. The writer keeps to that by itself; who runs this has it wait for it only when the disk is that
//! far behind. What is synced here counts for nothing else: blocks that are to be synced before they are answered are the writer's.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::backup::Backup;

/// A look at what is full although nobody said so.
const IDLE: Duration = Duration::from_secs(1);

/// Says that a file is full.
#[derive(Default)]
pub(crate) struct Full {
    state: Mutex<FullState>,
    changed: Condvar,
}

#[derive(Default)]
struct FullState {
    is_full: bool,
    stopping: bool,
}

impl Full {
    pub(crate) fn tell(&self) {
        self.state.lock().is_full = true;
        self.changed.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_one();
    }

    /// False: it is to stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_full && !state.stopping {
            self.changed.wait_for(&mut state, IDLE);
        }
        state.is_full = false;
        !state.stopping
    }
}

impl Backup {
    /// Syncs full files of a disk until [`stop`](Backup::stop): the main function of a thread. Without one, writers do it when it is due.
    pub fn run_syncs(&self, disk: usize) {
        while self.disks[disk].full.wait() {
            self.disks[disk].writer.lock().bound_spares();
            while self.sync_full(disk) && !self.disks[disk].full.state.lock().stopping {}
        }
    }

    /// Syncs one full file of a disk, of the row that has most of them. Returns whether there was one, and it could be synced.
    pub fn sync_full(&self, disk: usize) -> bool {
        let part = &self.disks[disk];
        let Some(full) = part.writer.lock().next_full() else { return false };
        let synced = full.sync(&*part.disk);
        let mut writer = part.writer.lock();
        match synced {
            Ok(()) => writer.full_synced(&full),
            Err(error) => {
                writer.full_failed(&full);
                drop(writer);
                self.disk_failed(disk, &error, full.sequence);
                return false;
            }
        }
        true
    }
}
