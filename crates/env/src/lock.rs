//! A data directory belongs to one process: a lock file that the kernel lets go of when the process ends, however it
//! ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

/// How often a lock is tried that nobody owns up to, and the time in between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Holds the lock until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    file: File,
    path: PathBuf,
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it. Worth a retry only once that process has ended.
    #[error("{} is in use by {}; stop it first or choose another directory", path.display(), process(*held_by_pid))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process that has it, if it could be read.
        held_by_pid: Option<u32>,
    },
    /// The lock file cannot be made or locked.
    #[error("{} cannot be locked: {error}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("another process".to_owned(), |pid| format!("the process with pid {pid}"))
}

impl DirLock {
    /// Takes the lock whose file is `path`, making the file if it is not there, and writes this process's pid into it.
    /// Does not wait for who has it and says so. A lock that nobody owns up to is on its way: its holder has just let go, and a process that
    /// it started in that moment has the file open until it runs its program; or the next one has it and has not written
    /// its pid. It is tried again for about a second.
    pub fn acquire(path: &Path) -> Result<DirLock, LockError> {
        let failed = |error| LockError::Io { path: path.to_owned(), error };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let mut tries = 0;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let mut text = String::new();
            let _ = file.seek(SeekFrom::Start(0));
            let _ = (&mut file).take(32).read_to_string(&mut text);
            let held_by_pid = text.trim().parse().ok();
            if held_by_pid.is_some() || tries == TRIES {
                return Err(LockError::Held { path: path.to_owned(), held_by_pid });
            }
            tries += 1;
            std::thread::sleep(PAUSE);
        }
        file.set_len(0).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(DirLock { file, path: path.to_owned() })
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // The file stays: removing it would let two processes lock two files of the same name. Only the pid goes.
        let _ = self.file.set_len(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_names_the_holder_and_works_after_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let lock = DirLock::acquire(&path).unwrap();
        match DirLock::acquire(&path).unwrap_err() {
            LockError::Held { held_by_pid, .. } => assert_eq!(held_by_pid, Some(std::process::id())),
            other => panic!("{other}"),
        }
        let message = DirLock::acquire(&path).unwrap_err().to_string();
        assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
        drop(lock);
        DirLock::acquire(&path).unwrap();
    }

    /// What a process that is being started has of its parent: the open file, and with it the lock.
    #[test]
    fn a_lock_that_was_let_go_and_is_still_open_elsewhere_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let lock = DirLock::acquire(&path).unwrap();
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let taken = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK), "the copy has it");
        let later = std::thread::spawn(move || {
            std::thread::sleep(PAUSE * 5);
            drop(copy);
        });
        let began = std::time::Instant::now();
        while let Err(error) = DirLock::acquire(&path) {
            // The thread is held up for longer than that.
            assert!(began.elapsed() >= PAUSE * TRIES, "not waited for: {error}");
        }
        later.join().unwrap();
    }

    #[test]
    fn missing_directory_is_an_io_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(DirLock::acquire(&dir.path().join("no/LOCK")), Err(LockError::Io { .. })));
    }
}
