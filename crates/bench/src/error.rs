//! What goes wrong while measuring or verifying.

use std::io;
use std::path::{Path, PathBuf};

/// An error of a run. The message says what was being done and what to do next where there is something.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A setting that makes no sense.
    #[error("--{flag}: {message}")]
    Setting {
        /// The flag, without its dashes.
        flag: &'static str,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// Files or sockets of this side.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes that are not what they have to be.
    #[error(transparent)]
    Format(#[from] kera_format::FormatError),
    /// The server, or the way to it.
    #[error("{what}: {message}")]
    Server {
        /// What was being done.
        what: String,
        /// What came back.
        message: String,
    },
    /// The same, and what there is to see is kept.
    #[error("{error}")]
    Kept {
        /// What went wrong.
        error: Box<BenchError>,
        /// The directory with the server's log and data.
        dir: PathBuf,
    },
    /// The user has had enough.
    #[error("interrupted; what was measured so far is kept")]
    Interrupted,
    /// A thread ended without a result: a bug in this program.
    #[error("{what} panicked")]
    Thread {
        /// Which.
        what: &'static str,
    },
}

impl BenchError {
    /// A setting that makes no sense: which flag, and what is allowed.
    pub fn setting(flag: &'static str, message: impl Into<String>) -> BenchError {
        BenchError::Setting { flag, message: message.into() }
    }

    /// Files or sockets: what was being done.
    pub fn io(what: impl Into<String>, source: io::Error) -> BenchError {
        BenchError::Io { what: what.into(), source }
    }

    /// The same with a path.
    pub fn io_at(what: &str, path: &Path, source: io::Error) -> BenchError {
        BenchError::Io { what: format!("{what} {}", path.display()), source }
    }

    /// The server, or the way to it.
    pub fn server(what: impl Into<String>, message: impl ToString) -> BenchError {
        BenchError::Server { what: what.into(), message: message.to_string() }
    }
}
