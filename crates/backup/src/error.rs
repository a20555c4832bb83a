//! What can go wrong at a backup, in words that a broker, a coordinator or a person can act on.

use std::io;

use kera_protocol::Status;

/// Why a request was not done. `status` goes over the wire.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct BackupError {
    /// What kind of error it is.
    pub status: Status,
    /// What is wrong, with which file, disk or limit, and what to do.
    pub reason: String,
}

impl BackupError {
    pub(crate) fn new(status: Status, reason: impl Into<String>) -> BackupError {
        BackupError { status, reason: reason.into() }
    }

    /// A disk did not do what it was asked to.
    pub(crate) fn disk(what: &str, error: &io::Error) -> BackupError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BackupError::new(
                Status::DiskFull,
                format!("{what}: the disk is full ({error}); free space on this backup"),
            ),
            _ => BackupError::new(Status::DiskFailed, format!("{what}: {error}; look at this backup's disk")),
        }
    }
}

/// Why a backup cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A disk refused.
    #[error("{path}: {error}")]
    Disk {
        /// The file or directory.
        path: String,
        /// What the disk said.
        #[source]
        error: io::Error,
    },
    /// A file of another cluster or of another node.
    #[error("{path} was written by another node or in another cluster; give each node its own directories")]
    Foreign {
        /// The file.
        path: String,
    },
    /// The fences do not read back. Without them it could take blocks of a node that was declared lost.
    #[error("{path}: {reason}; restore it from the copy on another disk, or give this node a new number")]
    Fences {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It was given no disk.
    #[error("a backup needs at least one disk")]
    NoDisk,
}
