//! What can go wrong with a command, and with opening the catalog.

use std::io;

use crate::cluster::Refused;
use kera_format::{FormatError, ProducerId};
use kera_protocol::{ErrorBody, ProtocolError, Status};

/// Why a command was refused. Unless it says otherwise nothing has changed, and the same command is refused again.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A stream of that name is there already.
    #[error("stream `{name}` exists")]
    StreamExists {
        /// The name.
        name: String,
    },
    /// There is no such stream.
    #[error("there is no {stream}; `kera stream list` shows what there is")]
    NoSuchStream {
        /// Name or id, in words.
        stream: String,
    },
    /// The name cannot be a stream's.
    #[error("stream name `{name}` {reason}")]
    BadName {
        /// The name, cut to a readable length.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Options outside their limits, or that this node cannot give: all of them.
    #[error("{}", .mistakes.join("; "))]
    BadOptions {
        /// One sentence for each.
        mistakes: Vec<String>,
    },
    /// The catalog holds as much as it may.
    #[error("there are {limit} {what} already, which is the limit; {advice}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: u64,
        /// What helps.
        advice: &'static str,
    },
    /// All streams together would have more lanes than there may be.
    #[error(
        "all streams have {has} lanes, of {limit} at most, and this takes {more} more (each is a partition to Kafka clients); \
         delete streams first, or ask for fewer streamlets"
    )]
    TooManyLanes {
        /// How many there are.
        has: u64,
        /// How many are asked for.
        more: u64,
        /// How many there may be.
        limit: u64,
    },
    /// An id that was never given out.
    #[error("producer {0} was never given out; ask for an id first")]
    NoSuchProducer(ProducerId),
    /// The journal could not be written. The command has no effect while this process lives; after a crash it may
    /// turn out to have been done. Worth a retry once the disk is well.
    #[error("the catalog could not be written ({0}); check the disk of the data directory and try again")]
    Disk(#[source] io::Error),
    /// The rules of the cluster do not allow it.
    #[error("{0}")]
    Refused(#[source] Refused),
    /// Enough nodes for so many copies are known, and too few of them are live: which ones, in words. It goes well when they are back.
    #[error("{0}")]
    TooFewLive(String),
    /// There is no leader of the coordinators, or it does not answer. The command was not done, or is answered as if it had not been when it is given again. Why, as a sentence without its end: when
    /// to try again the status says, and who hands the message on puts it into one of its own.
    #[error("{0}")]
    NoLeader(String),
    /// A leader of the coordinators was asked for it, and nobody has told what came of that. If it was done, the same command is refused. Why, in the same way.
    #[error("{0}")]
    MayBeDone(String),
    /// The leader of the coordinators refused it.
    #[error("{}", .body.message)]
    Leader {
        /// With which status.
        status: Status,
        /// In which words.
        body: ErrorBody,
    },
    /// The request itself does not follow the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl CoordinatorError {
    /// The status of the response that reports it.
    pub fn status(&self) -> Status {
        match self {
            CoordinatorError::StreamExists { .. } => Status::StreamExists,
            CoordinatorError::NoSuchStream { .. } => Status::UnknownStream,
            CoordinatorError::BadName { .. } => Status::InvalidName,
            CoordinatorError::BadOptions { .. } => Status::InvalidOptions,
            CoordinatorError::Limit { .. } | CoordinatorError::TooManyLanes { .. } => Status::LimitReached,
            CoordinatorError::NoSuchProducer(_) => Status::UnknownProducer,
            CoordinatorError::Disk(error) if error.kind() == io::ErrorKind::StorageFull => Status::DiskFull,
            CoordinatorError::Disk(_) => Status::DiskFailed,
            CoordinatorError::Refused(_) => Status::InvalidArgument,
            // As writes are answered that wait for copies. Not as if there were no leader: whoever hands it on would try the next one.
            CoordinatorError::TooFewLive(_) => Status::Overloaded,
            CoordinatorError::NoLeader(_) => Status::NotReady,
            CoordinatorError::MayBeDone(_) => Status::Timeout,
            CoordinatorError::Leader { status, .. } => *status,
            CoordinatorError::Protocol(error) => error.status(),
        }
    }

    /// The body of the response that reports it.
    pub fn body(&self) -> ErrorBody {
        let retry_after_ms = match self {
            CoordinatorError::Leader { body, .. } => body.retry_after_ms,
            CoordinatorError::Disk(_) | CoordinatorError::TooFewLive(_) => 1000,
            CoordinatorError::NoLeader(_) => 200,
            _ => 0,
        };
        ErrorBody { message: self.to_string(), retry_after_ms }
    }
}

/// Why the catalog could not be opened. Nothing on the disk has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refused.
    #[error("{path}: {error}")]
    Disk {
        /// The file or directory, below the data directory.
        path: String,
        /// What the disk said.
        #[source]
        error: io::Error,
    },
    /// A file is not what was written: the disk changed it.
    #[error(
        "{path} is damaged at byte {offset}: {error}. What follows there was acknowledged, so it is not skipped; \
         restore the file from a copy"
    )]
    Damaged {
        /// The file, below the data directory.
        path: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        #[source]
        error: FormatError,
    },
    /// The entries of a file contradict each other or the state before them.
    #[error("{path} contradicts itself at byte {offset}: {reason}; restore the file from a copy")]
    Contradiction {
        /// The file, below the data directory.
        path: String,
        /// Where in it.
        offset: u64,
        /// What does not fit.
        reason: String,
    },
    /// The files are another node's.
    #[error("{path} was written by node {found}, this is node {expected}; give each node its own data directory")]
    OtherNode {
        /// The file, below the data directory.
        path: String,
        /// The node in its header.
        found: String,
        /// This node.
        expected: String,
    },
}
