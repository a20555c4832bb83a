//! Compression of a chunk's payload, done by producers and undone by consumers; the broker never looks.
//!
//! A compressed payload starts with the uncompressed length (`u32`), so that a reader bounds its memory first.

use crate::{limits, FormatError};

/// How a chunk's payload is compressed. The numbers are in the chunk's header and never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    #[default]
    None = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// Zstandard frame.
    Zstd = 2,
}

impl Compression {
    /// From the number in a header.
    pub fn from_u8(value: u8) -> Result<Compression, FormatError> {
        match value {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Lz4),
            2 => Ok(Compression::Zstd),
            _ => Err(FormatError::BadField {
                field: "chunk.compression",
                value: value.into(),
                allowed: "0 (none), 1 (lz4) or 2 (zstd)",
            }),
        }
    }

    /// Its name in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// Compresses `payload` into a fresh buffer that starts with its uncompressed length.
    pub fn compress(self, payload: &[u8]) -> Vec<u8> {
        let mut out = (payload.len() as u32).to_le_bytes().to_vec();
        match self {
            Compression::None => return payload.to_vec(),
            Compression::Lz4 => out.extend_from_slice(&lz4_flex::block::compress(payload)),
            Compression::Zstd => out.extend_from_slice(
                &zstd::bulk::compress(payload, 1).expect("zstd of a bounded buffer into its own allocation"),
            ),
        }
        out
    }

    /// Undoes [`compress`](Compression::compress); refuses what would grow beyond
    /// [`limits::CHUNK_UNCOMPRESSED_BYTES_MAX`] before it takes the memory.
    pub fn decompress(self, payload: &[u8]) -> Result<Vec<u8>, FormatError> {
        if self == Compression::None {
            return Ok(payload.to_vec());
        }
        FormatError::need("compressed payload", 4, payload.len())?;
        let bytes = crate::wire::u32_at(payload, 0) as usize;
        if bytes > limits::CHUNK_UNCOMPRESSED_BYTES_MAX {
            return Err(FormatError::OverLimit {
                field: "compressed payload.uncompressed_bytes",
                value: bytes as u64,
                limit: limits::CHUNK_UNCOMPRESSED_BYTES_MAX as u64,
            });
        }
        let failed = |reason: String| FormatError::Decompress { codec: self.name(), reason };
        let out = match self {
            Compression::None => unreachable!("returned above"),
            Compression::Lz4 => lz4_flex::block::decompress(&payload[4..], bytes).map_err(|e| failed(e.to_string()))?,
            Compression::Zstd => {
                zstd::bulk::decompress(&payload[4..], bytes).map_err(|e| failed(e.to_string()))?
            }
        };
        if out.len() != bytes {
            return Err(failed(format!("{} bytes instead of the {bytes} announced", out.len())));
        }
        Ok(out)
    }
}
