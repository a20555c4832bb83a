//! What can be wrong with a frame or a body, and the body of a response that reports an error.

use crate::codec::{Reader, Wire};
use crate::{Status, limits};
use kera_format::FormatError;

/// Bytes that do not follow the protocol. Never worth a retry with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The frame or body ends before the field does.
    #[error("{field}: {have} bytes are left, {need} are needed")]
    Truncated {
        /// The field, as `Struct.field`.
        field: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes left.
        have: usize,
    },
    /// A field holds a value that is not allowed.
    #[error("{field} is {value}, allowed is {allowed}")]
    BadField {
        /// The field, as `Struct.field`.
        field: &'static str,
        /// What it held.
        value: u64,
        /// What it may hold, in words.
        allowed: &'static str,
    },
    /// A count that the bytes behind it cannot hold.
    #[error("{field} announces {count} items, the bytes that are left hold at most {fits}")]
    Count {
        /// The field, as `Struct.field`.
        field: &'static str,
        /// What it announced.
        count: u64,
        /// The most that fits.
        fits: u64,
    },
    /// Text that is not UTF-8.
    #[error("{field} is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The field, as `Struct.field`.
        field: &'static str,
        /// Bytes of it that are.
        at: usize,
    },
    /// The body goes on after its last field.
    #[error("{bytes} bytes follow the last field; a longer layout needs a higher version")]
    Trailing {
        /// How many bytes.
        bytes: usize,
    },
    /// A frame whose announced size is outside its bounds.
    #[error("frame.frame_bytes is {bytes}, allowed is {min} to {max}")]
    FrameSize {
        /// The announced size.
        bytes: u64,
        /// The smallest frame.
        min: u64,
        /// The largest frame that this side takes.
        max: u64,
    },
    /// A version of an operation that this side does not speak.
    #[error("{op} version {version}, spoken are {min} to {max}")]
    Version {
        /// Name of the operation.
        op: &'static str,
        /// The version asked for.
        version: u8,
        /// The lowest spoken.
        min: u8,
        /// The highest spoken.
        max: u8,
    },
    /// A chunk in the body is malformed.
    #[error("chunk {index}: {error}")]
    Chunk {
        /// Its number in the body, from 0.
        index: u32,
        /// What is wrong.
        error: FormatError,
    },
}

impl ProtocolError {
    /// The status that tells the other side.
    pub fn status(&self) -> Status {
        match self {
            ProtocolError::FrameSize { .. } => Status::FrameTooLarge,
            ProtocolError::Version { .. } => Status::UnsupportedVersion,
            ProtocolError::Chunk { .. } => Status::ChunkMalformed,
            _ => Status::Malformed,
        }
    }
}

/// The body of every response whose status is not [`Status::Ok`]. Its layout is the same for all operations and
/// versions and never changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorBody {
    /// What was wrong, with which field and limit, for a person to read. Cut to
    /// [`limits::ERROR_MESSAGE_BYTES_MAX`] when written.
    pub message: String,
    /// After how many milliseconds a retry makes sense; zero: at the client's own pace.
    pub retry_after_ms: u32,
}

impl ErrorBody {
    /// A message, with no advice on when to retry.
    pub fn new(message: impl Into<String>) -> ErrorBody {
        ErrorBody { message: message.into(), retry_after_ms: 0 }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut end = self.message.len().min(limits::ERROR_MESSAGE_BYTES_MAX);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        self.retry_after_ms.put(out);
        (end as u32).put(out);
        out.extend_from_slice(&self.message.as_bytes()[..end]);
    }

    /// Reads it. Bytes after it are ignored, so that it can grow.
    pub fn decode(body: &[u8]) -> Result<ErrorBody, ProtocolError> {
        let mut from = Reader::new(body);
        from.enter("ErrorBody.retry_after_ms");
        let retry_after_ms = u32::get(&mut from)?;
        from.enter("ErrorBody.message");
        let message = String::get(&mut from)?;
        Ok(ErrorBody { message, retry_after_ms })
    }
}
