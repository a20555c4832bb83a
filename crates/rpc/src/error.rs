//! What can go wrong between a client and a server.

use std::time::Duration;

use kera_protocol::{ProtocolError, Status};

/// What [`RpcError::Closed`] begins its reason with where the server has sent a frame that is larger than this side takes.
pub const ANSWER_TOO_LARGE: &str = "it sent an answer that is too large";

/// Why a call has no answer, or not the one hoped for. Says whether a retry makes sense and whether the request may have
/// been carried out nevertheless.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// No connection, or no handshake. Nothing was sent.
    #[error("cannot connect to {address}: {reason}; check that the server runs and listens there")]
    Connect {
        /// Where to.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// No answer in time. The request may have been carried out.
    #[error("no answer from {address} within {} ms; it may have been carried out", after.as_millis())]
    Timeout {
        /// Whom was asked.
        address: String,
        /// How long was waited.
        after: Duration,
    },
    /// The server answered with an error.
    #[error("{status:?}: {message}")]
    Status {
        /// What kind of error.
        status: Status,
        /// What was wrong, which limit, what to do.
        message: String,
        /// When a retry is sensible, `None`: at once or never, as the status says.
        retry_after: Option<Duration>,
    },
    /// The connection is gone. `sent`: the request may have been carried out.
    #[error("the connection to {address} is closed: {reason}")]
    Closed {
        /// Whom it was to.
        address: String,
        /// Why.
        reason: String,
        /// Whether the request had been handed to the socket, at least in part.
        sent: bool,
    },
    /// An answer that makes no sense.
    #[error("{address} answered against the protocol: {source}")]
    Protocol {
        /// Who answered.
        address: String,
        /// What was wrong with it.
        source: ProtocolError,
    },
    /// The request cannot be sent as it is.
    #[error("{field} is {value}, the limit is {limit}")]
    OverLimit {
        /// What is too large.
        field: &'static str,
        /// How large it is.
        value: u64,
        /// The most that is possible.
        limit: u64,
    },
}

impl RpcError {
    /// Whether the same request may succeed when it is sent again, on another connection if this one is gone.
    pub fn retryable(&self) -> bool {
        match self {
            RpcError::Connect { .. } | RpcError::Timeout { .. } | RpcError::Closed { .. } => true,
            RpcError::Status { status, .. } => status.retryable(),
            RpcError::Protocol { .. } | RpcError::OverLimit { .. } => false,
        }
    }

    /// Whether the request may have been carried out although it failed, so that a retry could do it twice.
    pub fn could_duplicate(&self) -> bool {
        match self {
            RpcError::Timeout { .. } | RpcError::Protocol { .. } => true,
            RpcError::Closed { sent, .. } => *sent,
            RpcError::Status { status, .. } => status.could_duplicate(),
            RpcError::Connect { .. } | RpcError::OverLimit { .. } => false,
        }
    }

    /// The server's status, if it gave one.
    pub fn status(&self) -> Option<Status> {
        match self {
            RpcError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the connection was closed because the server sent more in one frame than this side takes: as the answer to this request, or to another one that was under way with it.
    pub fn is_answer_too_large(&self) -> bool {
        matches!(self, RpcError::Closed { reason, .. } if reason.starts_with(ANSWER_TOO_LARGE))
    }

    /// How long to wait before a retry, if the server said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            RpcError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
