//! Compression of a chunk's payload, done by producers and undone by consumers; the broker never looks.
//!
//! A compressed payload starts with the uncompressed length (`u32`), so that a reader bounds its memory first.

use crate::{FormatError, limits};

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
    ///
    /// `payload` is at most [`limits::CHUNK_UNCOMPRESSED_BYTES_MAX`] long, else nobody decompresses it.
    pub fn compress(self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.compress_into(payload, &mut out);
        out
    }

    /// Like [`compress`](Compression::compress), into `out`, whose contents are replaced and whose capacity is used.
    pub fn compress_into(self, payload: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match self {
            Compression::None => out.extend_from_slice(payload),
            Compression::Lz4 => {
                out.resize(LENGTH_BYTES + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
                let bytes = lz4_flex::block::compress_into(payload, &mut out[LENGTH_BYTES..])
                    .expect("the buffer is as large as the worst case");
                out.truncate(LENGTH_BYTES + bytes);
                crate::wire::put(out, 0, &(payload.len() as u32).to_le_bytes());
            }
            Compression::Zstd => {
                out.resize(LENGTH_BYTES + zstd::zstd_safe::compress_bound(payload.len()), 0);
                let bytes = ZSTD
                    .with_borrow_mut(|zstd| zstd.compressor.compress_to_buffer(payload, &mut out[LENGTH_BYTES..]))
                    .expect("the buffer is as large as the worst case");
                out.truncate(LENGTH_BYTES + bytes);
                crate::wire::put(out, 0, &(payload.len() as u32).to_le_bytes());
            }
        }
    }

    /// How many bytes [`decompress`](Compression::decompress) makes of `payload`, as that says itself: nothing is undone, nor checked.
    pub fn uncompressed_bytes(self, payload: &[u8]) -> usize {
        match payload.first_chunk() {
            _ if self == Compression::None => payload.len(),
            Some(announced) => u32::from_le_bytes(*announced) as usize,
            None => 0,
        }
    }

    /// Undoes [`compress`](Compression::compress); refuses what would grow beyond
    /// [`limits::CHUNK_UNCOMPRESSED_BYTES_MAX`] before it takes the memory.
    pub fn decompress(self, payload: &[u8]) -> Result<Vec<u8>, FormatError> {
        let mut out = Vec::new();
        self.decompress_into(payload, &mut out)?;
        Ok(out)
    }

    /// Like [`decompress`](Compression::decompress), into `out`, whose contents are replaced and whose capacity is
    /// used. After an error the contents are unspecified.
    pub fn decompress_into(self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), FormatError> {
        out.clear();
        if self == Compression::None {
            out.extend_from_slice(payload);
            return Ok(());
        }
        FormatError::need("compressed payload", LENGTH_BYTES, payload.len())?;
        let announced = crate::wire::u32_at(payload, 0) as usize;
        if announced > limits::CHUNK_UNCOMPRESSED_BYTES_MAX {
            return Err(FormatError::OverLimit {
                field: "compressed payload.uncompressed_bytes",
                value: announced as u64,
                limit: limits::CHUNK_UNCOMPRESSED_BYTES_MAX as u64,
            });
        }
        let failed = |reason: String| FormatError::Decompress { codec: self.name(), reason };
        let compressed = &payload[LENGTH_BYTES..];
        out.resize(announced, 0);
        let bytes = match self {
            Compression::None => unreachable!("returned above"),
            Compression::Lz4 => lz4_flex::block::decompress_into(compressed, out).map_err(|e| failed(e.to_string()))?,
            Compression::Zstd => ZSTD
                .with_borrow_mut(|zstd| zstd.decompressor.decompress_to_buffer(compressed, &mut out[..]))
                .map_err(|e| failed(e.to_string()))?,
        };
        if bytes != announced {
            return Err(failed(format!("{bytes} bytes instead of the {announced} announced")));
        }
        Ok(())
    }
}

/// Bytes in front of a compressed payload: its uncompressed length.
const LENGTH_BYTES: usize = 4;

/// zstd's working memory, hundreds of KiB that are too dear to make for every chunk; one set for each thread that
/// compresses or decompresses.
struct Zstd {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

/// Fast rather than small: chunks are compressed on the producer's way to the network.
const ZSTD_LEVEL: i32 = 1;

thread_local! {
    static ZSTD: std::cell::RefCell<Zstd> = std::cell::RefCell::new(Zstd {
        compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("zstd's contexts only need memory"),
        decompressor: zstd::bulk::Decompressor::new().expect("zstd's contexts only need memory"),
    });
}
