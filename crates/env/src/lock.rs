//! A data directory belongs to one process: a lock file that the kernel lets go of when the process ends, however it
//! ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

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
    /// Does not wait.
    pub fn acquire(path: &Path) -> Result<DirLock, LockError> {
        let failed = |error| LockError::Io { path: path.to_owned(), error };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = (&mut file).take(32).read_to_string(&mut text);
                return Err(LockError::Held { path: path.to_owned(), held_by_pid: text.trim().parse().ok() });
            }
            Err(error) => return Err(failed(error.into())),
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

    #[test]
    fn missing_directory_is_an_io_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(DirLock::acquire(&dir.path().join("no/LOCK")), Err(LockError::Io { .. })));
    }
}
