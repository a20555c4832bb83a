//! What can be wrong with bytes that came from outside.

/// Bytes that do not follow a layout, or a value outside its limit. Never worth a retry with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end before the structure does.
    #[error("{what}: {have} bytes are there, {need} are needed")]
    Truncated {
        /// The structure being read.
        what: &'static str,
        /// Bytes needed to go on.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// A field holds a value that the layout does not allow.
    #[error("{field} is {value}, allowed is {allowed}")]
    BadField {
        /// The field, as `structure.field`.
        field: &'static str,
        /// What it held.
        value: u64,
        /// What it may hold, in words.
        allowed: &'static str,
    },
    /// A size or count is over its limit.
    #[error("{field} is {value}, the limit is {limit}")]
    OverLimit {
        /// The field, as `structure.field`.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A checksum does not match the bytes it covers: they were changed on the way or on the disk.
    #[error("{what}: checksum is {found:#010x}, the bytes give {computed:#010x}")]
    Checksum {
        /// The structure whose checksum failed.
        what: &'static str,
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Compressed bytes that do not decompress.
    #[error("{codec} payload does not decompress: {reason}")]
    Decompress {
        /// Name of the codec.
        codec: &'static str,
        /// What the codec said.
        reason: String,
    },
}

impl FormatError {
    pub(crate) fn need(what: &'static str, need: usize, have: usize) -> Result<(), FormatError> {
        if have < need { Err(FormatError::Truncated { what, need, have }) } else { Ok(()) }
    }
}
