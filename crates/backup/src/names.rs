//! Which names in a disk's folder of copies survive a loss of power.
//!
//! Whoever syncs the folder of a disk does it here: the writer, who syncs behind it, who gives files back and who fences. Of any of them the system may choose the one to
//! whom it tells what was not written, and then it tells nobody else ([`Folder`]). So of each file it is known whether its name was synced, has yet to be, or is
//! doubtful: made before a sync that failed, and not synced before that. Such a name stays doubtful for as long as the file is there. Its blocks count for
//! as much as any that nobody has synced, and what needs more goes to another file.
//!
//! That a file is gone is not followed in this way. Of a doubtful one nobody would ever know, and what waits for it could never be given back. It is
//! synced once more, and believed: if the file is there again after a loss of power a start finds a hole behind it, and takes the row for doubtful.
//!
//! What syncs waits for the disk, and for whoever is syncing its folder. All else waits for nothing, and may be asked under any lock.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kera_env::{Disk, Folder};
use parking_lot::Mutex;

use crate::disks::FOLDER;
use crate::files::RunKey;

/// See the module.
#[derive(Debug)]
pub(crate) struct Names {
    folder: Folder,
    state: Mutex<State>,
}

/// By the numbers of the files, which grow in the order in which a disk's files are made.
#[derive(Debug, Default)]
struct State {
    /// Those that no sync has covered.
    unsynced: BTreeMap<u64, Made>,
    doubtful: BTreeMap<u64, Doubt>,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    run: RunKey,
    /// So many syncs had failed before.
    failures: u64,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    run: RunKey,
    /// Who syncs the run was told.
    is_told: bool,
}

impl State {
    /// Names that were made before a sync that failed are doubtful from here on.
    fn doubt(&mut self, failures: u64) {
        let doubtful = &mut self.doubtful;
        self.unsynced.retain(|sequence, made| {
            let is_well = made.failures == failures;
            if !is_well {
                doubtful.insert(*sequence, Doubt { run: made.run, is_told: false });
            }
            is_well
        });
    }
}

fn doubtful() -> io::Error {
    io::Error::other("a sync of its folder has failed since it was made")
}

impl Names {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Names {
        Names { folder: Folder::new(disk, FOLDER), state: Mutex::default() }
    }

    /// Makes a file of a run, under the writer's lock. Of a sync that is on its way it counts that it fails, and not that it works.
    pub(crate) fn make<T>(&self, run: RunKey, sequence: u64, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let failures = self.folder.failures();
        let made = make()?;
        self.state.lock().unsynced.insert(sequence, Made { run, failures });
        Ok(made)
    }

    /// Syncs the folder, also if no name in it has yet to be: a file is gone.
    pub(crate) fn sync_gone(&self) -> io::Result<()> {
        // A sync that works need not cover what is made while it runs.
        let through = self.last_unsynced();
        let synced = self.folder.sync();
        let mut state = self.state.lock();
        match synced {
            Ok(failures) => {
                if let Some(through) = through {
                    let later = state.unsynced.split_off(&(through + 1));
                    state.doubt(failures);
                    // What is left in front of them survives.
                    state.unsynced = later;
                }
                Ok(())
            }
            Err(error) => {
                let failures = self.folder.failures();
                state.doubt(failures);
                Err(error)
            }
        }
    }

    /// Syncs the folder if a name in it has yet to be. That this works does not say that all survive: those that are doubtful do not count.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.last_unsynced().is_some() { self.sync_gone() } else { Ok(()) }
    }

    /// The same, and an error if the name of this file does not survive all the same.
    pub(crate) fn sync_file(&self, sequence: u64) -> io::Result<()> {
        self.sync()?;
        if self.is_doubtful(sequence) { Err(doubtful()) } else { Ok(()) }
    }

    /// The same of all files of a run, but for those of which [that was told](Names::tell) before: what nobody was answered for went to others. What was answered as written stays in them, and nobody
    /// has asked for more; a sync that works behind it counts for it as well, for nothing behind it could ever be synced otherwise.
    pub(crate) fn sync_run(&self, run: RunKey) -> io::Result<()> {
        self.sync()?;
        let state = self.state.lock();
        let is_untold = state.doubtful.values().any(|doubt| doubt.run == run && !doubt.is_told);
        if is_untold { Err(doubtful()) } else { Ok(()) }
    }

    /// What was not synced of a run, and was not answered as written, has been taken back and goes to new files.
    pub(crate) fn tell(&self, run: RunKey) {
        let mut state = self.state.lock();
        state.doubtful.values_mut().filter(|doubt| doubt.run == run).for_each(|doubt| doubt.is_told = true);
    }

    /// Whether nobody will know any more if the name of a file survives.
    pub(crate) fn is_doubtful(&self, sequence: u64) -> bool {
        self.state.lock().doubtful.contains_key(&sequence)
    }

    /// The same of any file of a run.
    pub(crate) fn has_doubtful(&self, run: RunKey) -> bool {
        self.state.lock().doubtful.values().any(|doubt| doubt.run == run)
    }

    /// As [`Disk::replace`], of a file that is not one of copies.
    pub(crate) fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.folder.replace(path, bytes)
    }

    /// A file is gone, or is nobody's any more.
    pub(crate) fn forget(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.unsynced.remove(&sequence);
        state.doubtful.remove(&sequence);
    }

    fn last_unsynced(&self) -> Option<u64> {
        self.state.lock().unsynced.last_key_value().map(|(sequence, _)| *sequence)
    }
}
