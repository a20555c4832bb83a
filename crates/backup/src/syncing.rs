//! Syncing behind the writer what nobody waits for, so that it does not stand still for as long as a disk takes for a whole file or more.
//!
//! Of a row that nobody asks to sync a few full files may not be synced ([`UNSYNCED_MAX`](crate::files::UNSYNCED_MAX)): that is what a start
//! looks through after a loss of power. The writer keeps to that by itself; who runs this has it wait for it only when the disk is that
//! far behind. What is synced here counts for nothing else: blocks that are to be synced before they are answered are the writer's.

use std::io;
use std::time::Duration;

use kera_env::OpenMode;
use kera_format::vlog_replica::LogId;
use parking_lot::{Condvar, Mutex};

use crate::backup::Backup;
use crate::files::{FullFile, RunKey, path};
use crate::replica::FilePart;
use crate::scan::Source;

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
    /// Somebody waits to be told.
    is_run: bool,
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

    pub(crate) fn is_run(&self) -> bool {
        self.state.lock().is_run
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
    /// Syncs full files of a disk, and fenced logs, until [`stop`](Backup::stop): the main function of a thread. Without one, writers do it when it is
    /// due.
    pub fn run_syncs(&self, disk: usize) {
        let full = &self.disks[disk].full;
        full.state.lock().is_run = true;
        while full.wait() {
            self.disks[disk].writer.lock().bound_spares();
            while (self.settle_fenced(disk) || self.sync_full(disk)) && !full.state.lock().stopping {}
        }
        full.state.lock().is_run = false;
    }

    /// Syncs one full file of a disk, of the row that has most of them. Returns whether there was one, and it could be synced.
    pub fn sync_full(&self, disk: usize) -> bool {
        let Some(full) = self.disks[disk].writer.lock().next_full() else { return false };
        self.sync_file(disk, &full)
    }

    fn sync_file(&self, disk: usize, full: &FullFile) -> bool {
        let part = &self.disks[disk];
        let synced = full.sync(&part.names);
        let mut writer = part.writer.lock();
        match synced {
            Ok(()) => writer.full_synced(full),
            Err(error) => {
                writer.full_failed(full);
                drop(writer);
                self.disk_failed(disk, &error, full.sequence);
                self.look_at_unsynced(disk, full.run, full.sequence);
                return false;
            }
        }
        true
    }

    /// Cuts a file behind the last block in it that counts, after a sync that failed. What that has not written the system may have in memory
    /// still, and the next sync works: a process that starts would take it for synced. It reads past that memory as well, where the disk has a way
    /// past it. The disk may refuse to cut.
    pub(crate) fn cut_off(&self, log: LogId, part: &FilePart) {
        match self.try_cut_off(log, part) {
            // It had none, and is removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(file = part.sequence, %error, "a file that could not be synced is not cut"),
            Ok(()) => {}
        }
    }

    fn try_cut_off(&self, log: LogId, part: &FilePart) -> io::Result<()> {
        let disk = &*self.disks[part.disk].disk;
        let file = disk.open(&path(part.sequence), OpenMode::ReadWrite, false)?;
        let mut source = Source::open(disk, part.sequence, part.key, log.vlog)?;
        let (mut at, mut block) = (part.start, part.first);
        while block <= part.last {
            match source.header(at)?.map_err(io::Error::other)? {
                header if header.block == block => (at, block) = (at + header.total_bytes() as u64, block + 1),
                header => return Err(io::Error::other(format!("block {} is there", header.block))),
            }
        }
        file.set_len(at)
    }

    /// Syncs one run of a log that has been fenced, whether or not its blocks were to survive a loss of power: other backups of the log may be
    /// away, and then the log ends where this one said; if that were lost before it is copied again nobody could show the log's end, and
    /// who takes its streamlets over would wait for ever. After the fence is answered, so that nobody waits for it. What cannot be
    /// synced is as it was. The writer may go on meanwhile. Returns whether there was one.
    pub fn settle_fenced(&self, disk: usize) -> bool {
        let writer = self.disks[disk].writer.lock();
        let Some((run, written)) = self.next_to_settle(disk) else { return false };
        let files = writer.all_unsynced(run);
        drop(writer);
        match files {
            Ok(Some(files)) => {
                // Of a file whose name is doubtful nothing survives for certain, although it could be synced.
                if files.iter().all(|full| self.sync_file(disk, full))
                    && !self.disks[disk].names.has_doubtful(run)
                    && let Some(run) = self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1))
                {
                    // The writer may have taken some of it back, or written what had been on its way.
                    run.synced = run.synced.max(written.min(run.written));
                }
            }
            Ok(None) => {}
            Err((sequence, error)) => drop(self.disk_failed(disk, &error, sequence)),
        }
        true
    }

    /// A run of this disk that is to be settled, and up to where it is written.
    fn next_to_settle(&self, disk: usize) -> Option<(RunKey, u64)> {
        let mut state = self.state.lock();
        let here = |key: &RunKey| {
            let runs = state.logs.get(&key.0).map_or(&[][..], |log| &log.runs);
            match runs.iter().find(|run| run.id == key.1) {
                Some(run) => (run.disk == disk).then_some((*key, run.written)),
                None => Some((*key, 0)),
            }
        };
        let next = state.to_settle.iter().find_map(here)?;
        state.to_settle.remove(&next.0);
        Some(next)
    }
}
