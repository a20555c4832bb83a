//! A self-describing value: who wrote it, as which of its records, for which streamlet, and a checksum over all of it.
//!
//! ```text
//! offset  bytes  field
//!      0      4  checksum   CRC-32C of everything behind it
//!      4      4  magic      "KVER"
//!      8      8  run        one start of the verifier's producing side
//!     16      4  producer   in that run, from 0
//!     20      4  streamlet  that it was sent to
//!     24      8  number     among those of (run, producer, streamlet), from 0
//!     32      …  filling    follows from the number
//! ```

use kera_format::StreamletId;
use kera_format::checksum::crc32c;

/// Bytes of the smallest value.
pub const VALUE_BYTES_MIN: usize = 32;

const MAGIC: [u8; 4] = *b"KVER";

/// Who wrote a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source {
    /// The run.
    pub run: u64,
    /// The producer in it.
    pub producer: u32,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "producer {} of run {:016x}", self.producer, self.run)
    }
}

/// What a value says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Who wrote it.
    pub source: Source,
    /// Where it was sent to.
    pub streamlet: StreamletId,
    /// Which of the source's records for that streamlet it is.
    pub number: u64,
}

/// Why a value cannot be one of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotOurs {
    /// It does not start like one: somebody else's record.
    Foreign,
    /// It starts like one, and its checksum is wrong.
    Damaged,
}

/// Writes a value of `bytes` (at least [`VALUE_BYTES_MIN`]) into `out`, whose contents are replaced.
pub fn encode(identity: &Identity, bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&identity.source.run.to_le_bytes());
    out.extend_from_slice(&identity.source.producer.to_le_bytes());
    out.extend_from_slice(&identity.streamlet.0.to_le_bytes());
    out.extend_from_slice(&identity.number.to_le_bytes());
    out.resize(bytes.max(VALUE_BYTES_MIN), b'a' + (identity.number % 26) as u8);
    let checksum = crc32c(&out[4..]);
    out[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads a value.
pub fn decode(value: &[u8]) -> Result<Identity, NotOurs> {
    if value.len() < VALUE_BYTES_MIN || value[4..8] != MAGIC {
        return Err(NotOurs::Foreign);
    }
    let u32_at = |at: usize| u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if u32_at(0) != crc32c(&value[4..]) {
        return Err(NotOurs::Damaged);
    }
    Ok(Identity {
        source: Source { run: u64_at(8), producer: u32_at(16) },
        streamlet: StreamletId(u32_at(20)),
        number: u64_at(24),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_no_bit_may_change() {
        let identity = Identity {
            source: Source { run: 0x0123_4567_89ab_cdef, producer: 7 },
            streamlet: StreamletId(9),
            number: 1 << 40,
        };
        for bytes in [0, VALUE_BYTES_MIN, 100] {
            let mut value = vec![1; 3];
            encode(&identity, bytes, &mut value);
            assert_eq!(value.len(), bytes.max(VALUE_BYTES_MIN));
            assert_eq!(decode(&value), Ok(identity));
            for bit in 0..value.len() * 8 {
                value[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&value).is_err(), "bit {bit}");
                value[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(decode(b"something else, and quite long, too"), Err(NotOurs::Foreign));
        assert_eq!(decode(b""), Err(NotOurs::Foreign));
    }
}
