//! Why a request, or a part of it, is refused: a status for the program, a sentence for the person.

use kera_format::{StreamId, StreamletId};
use kera_log::{AppendError, ReadError, SinkErrorKind};
use kera_protocol::{ErrorBody, ProtocolError, Status};

/// When to come back for a retry that has no better advice, in milliseconds.
const RETRY_AFTER_MS: u32 = 100;

/// The answer to a request that is refused. Turned into an error frame where the request is answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{status}: {message}")]
pub struct Failure {
    /// What went wrong, as a number.
    pub status: Status,
    /// Which field, which limit, what to do.
    pub message: String,
    /// When a retry makes sense; zero: at the client's own pace, or never.
    pub retry_after_ms: u32,
}

impl Failure {
    /// A refusal that a retry does not change.
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), retry_after_ms: 0 }
    }

    /// A refusal that passes.
    pub(crate) fn later(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), retry_after_ms: RETRY_AFTER_MS }
    }

    pub(crate) fn unknown_stream(stream: StreamId) -> Failure {
        Failure::new(Status::UnknownStream, format!("stream {stream} does not exist"))
    }

    pub(crate) fn unknown_streamlet(stream: StreamId, streamlet: StreamletId, streamlets: u32) -> Failure {
        let message = format!("streamlet is {streamlet}, stream {stream} has {streamlets} (from 0)");
        Failure::new(Status::UnknownStreamlet, message)
    }

    /// Another node owns a streamlet, or has what is asked for. `hint`: the owner's number over its epoch, if it is known.
    pub(crate) fn not_owner(stream: StreamId, streamlet: StreamletId, hint: u64) -> Failure {
        let owner = match hint >> 32 {
            0 => "and does not know who does".to_owned(),
            node => format!("node {node} does since owner epoch {}", hint as u32),
        };
        let message = format!("this node does not own streamlet {streamlet} of stream {stream}, {owner}");
        Failure::new(Status::NotOwner, message)
    }

    /// The node has not heard from the coordinators for so long that others may own what it owns. `lacking`: that most of them are away, if so; where it is this
    /// node alone that is cut off, another one serves.
    pub(crate) fn unconfirmed(lacking: Option<String>) -> Failure {
        let seconds = crate::SERVES_MS / 1000;
        let message = match lacking {
            Some(said) => format!(
                "{said}; a node that has not heard from most of them for {seconds} s may have been declared lost, and answers nobody: ask another node"
            ),
            None => format!(
                "this node has not heard from a majority of the coordinators for {seconds} s, so it may have been declared lost; ask \
                 another node"
            ),
        };
        Failure::later(Status::Fenced, message)
    }

    /// A count over its limit.
    pub(crate) fn limit(field: &str, value: usize, limit: usize) -> Failure {
        Failure::new(Status::LimitReached, format!("{field} is {value}, the limit is {limit}"))
    }

    /// A field with a value that is not allowed.
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument, message)
    }

    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody { message: self.message.clone(), retry_after_ms: self.retry_after_ms }
    }
}

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Failure {
        Failure::new(error.status(), error.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let message = error.to_string();
        match read_status(&error) {
            Status::SegmentUnreadable => Failure::later(Status::SegmentUnreadable, message),
            status => Failure::new(status, message),
        }
    }
}

/// The status of a read that failed.
pub(crate) fn read_status(error: &ReadError) -> Status {
    match error {
        ReadError::Gone { .. } => Status::CursorGone,
        ReadError::Unknown(_) => Status::CursorUnknown,
        ReadError::NotAChunkBoundary(_) => Status::NotAChunkBoundary,
        ReadError::LoadFailed(_) => Status::SegmentUnreadable,
        ReadError::Deleted => Status::UnknownStream,
    }
}

/// The status of a chunk that was not appended, and what goes where its ordinal would be.
pub(crate) fn append_status(error: &AppendError) -> (Status, u64) {
    match error {
        AppendError::ArenaFull(_) => (Status::ArenaFull, 0),
        AppendError::ChunkTooLarge { limit, .. } => (Status::ChunkTooLarge, *limit),
        AppendError::Format(kera_format::FormatError::Checksum { .. }) => (Status::ChunkChecksum, 0),
        AppendError::Format(_) => (Status::ChunkMalformed, 0),
        AppendError::SequenceGap { expected, .. } => (Status::SequenceGap, *expected),
        AppendError::StaleEpoch { current, .. } => (Status::StaleEpoch, u64::from(*current)),
        AppendError::SinkUnhealthy(error) => match error.kind {
            SinkErrorKind::Full => (Status::DiskFull, 0),
            SinkErrorKind::Failed => (Status::DiskFailed, 0),
            SinkErrorKind::Behind | SinkErrorKind::TooFewCopies => (Status::Overloaded, 0),
            SinkErrorKind::Fenced => (Status::NotOwner, 0),
        },
        AppendError::Closed => (Status::UnknownStream, 0),
        AppendError::Elsewhere { .. } => (Status::NotOwner, 0),
    }
}
