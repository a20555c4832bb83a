//! A record: what a user writes. Zero or more keys, a value, optionally a version, a timestamp and a checksum
//! (thesis 5.3.1 and 6.1, the multi-key-value format).
//!
//! ```text
//! offset  bytes  field
//!      0      4  length         of the whole record
//!      4      1  flags          1 version, 2 timestamp, 4 checksum, 8 no value (a tombstone), 16 removed; the rest zero
//!      5      1  key_count
//!      6      2  value_offset   where the value starts; the value ends with the record
//!   then      4  checksum       if flagged: CRC-32C of the record without this field
//!             8  version        if flagged
//!             8  timestamp_ms   if flagged: since 1970, signed
//!         2 × n  key lengths
//!             …  keys, then the value
//! ```
//! A record without keys costs 8 bytes more than its value.

use crate::checksum::Crc32c;
use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{FormatError, limits};

/// Bytes of a record beyond its value when it has nothing else.
pub const RECORD_HEADER_BYTES: usize = 8;

const FLAG_VERSION: u8 = 1;
const FLAG_TIMESTAMP: u8 = 2;
const FLAG_CHECKSUM: u8 = 4;
const FLAG_NO_VALUE: u8 = 8;
const FLAG_REMOVED: u8 = 16;
const FLAGS_KNOWN: u8 = FLAG_VERSION | FLAG_TIMESTAMP | FLAG_CHECKSUM | FLAG_NO_VALUE | FLAG_REMOVED;

/// What stands in place of a record that compaction has removed: it is counted, and is none.
pub const REMOVED_RECORD: [u8; RECORD_HEADER_BYTES] = [8, 0, 0, 0, FLAG_REMOVED, 0, 8, 0];

/// A record to be written. Borrows everything; `encode` copies it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// Keys, the first is primary.
    pub keys: &'a [&'a [u8]],
    /// The value; `None` is a tombstone: it says that the key is gone.
    pub value: Option<&'a [u8]>,
    /// A version given by the writer.
    pub version: Option<u64>,
    /// Milliseconds since 1970 given by the writer.
    pub timestamp_ms: Option<i64>,
    /// Whether the record carries a checksum of its own, beside its chunk's.
    pub checksum: bool,
}

impl<'a> Record<'a> {
    /// A record that is just a value.
    pub fn value(value: &'a [u8]) -> Record<'a> {
        Record { value: Some(value), ..Record::default() }
    }

    fn value_offset(&self) -> usize {
        RECORD_HEADER_BYTES
            + if self.checksum { 4 } else { 0 }
            + if self.version.is_some() { 8 } else { 0 }
            + if self.timestamp_ms.is_some() { 8 } else { 0 }
            + self.keys.iter().map(|k| 2 + k.len()).sum::<usize>()
    }

    /// Bytes that [`encode`](Record::encode) writes.
    #[inline]
    pub fn encoded_bytes(&self) -> usize {
        self.value_offset() + self.value.map_or(0, <[u8]>::len)
    }

    /// Checks counts and sizes against [`limits`].
    pub fn check(&self) -> Result<(), FormatError> {
        if self.keys.len() > limits::RECORD_KEYS_MAX {
            return Err(FormatError::OverLimit {
                field: "record.key_count",
                value: self.keys.len() as u64,
                limit: limits::RECORD_KEYS_MAX as u64,
            });
        }
        let value_offset = self.value_offset();
        if value_offset > limits::RECORD_VALUE_OFFSET_MAX {
            return Err(FormatError::OverLimit {
                field: "record.keys (bytes of header and keys together)",
                value: value_offset as u64,
                limit: limits::RECORD_VALUE_OFFSET_MAX as u64,
            });
        }
        let bytes = self.encoded_bytes();
        if bytes > limits::CHUNK_BYTES_MAX - crate::CHUNK_HEADER_BYTES {
            return Err(FormatError::OverLimit {
                field: "record.length",
                value: bytes as u64,
                limit: (limits::CHUNK_BYTES_MAX - crate::CHUNK_HEADER_BYTES) as u64,
            });
        }
        Ok(())
    }

    /// Whether it is a value and nothing else. Then it takes [`RECORD_HEADER_BYTES`] more than its value.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.keys.is_empty()
            && self.value.is_some()
            && self.version.is_none()
            && self.timestamp_ms.is_none()
            && !self.checksum
    }

    /// Appends the encoded record to `out`. The caller has [`check`](Record::check)ed it.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.encoded_bytes(), 0);
        self.encode_to(&mut out[start..]);
    }

    /// Writes the encoded record over all of `out`. The caller has [`check`](Record::check)ed it.
    ///
    /// # Panics
    /// If `out` has not [`encoded_bytes`](Record::encoded_bytes) bytes.
    #[inline]
    pub fn encode_to(&self, out: &mut [u8]) {
        debug_assert_eq!(self.check(), Ok(()), "a record is checked before it is encoded");
        if !self.is_plain() {
            return self.encode_all(out);
        }
        let head = out.len() as u64 | (RECORD_HEADER_BYTES as u64) << 48;
        let (place, value) = out.split_at_mut(RECORD_HEADER_BYTES);
        place.copy_from_slice(&head.to_le_bytes());
        value.copy_from_slice(self.value.unwrap_or_default());
    }

    /// A record that has more than a value.
    fn encode_all(&self, out: &mut [u8]) {
        let value = self.value.unwrap_or_default();
        let flags = if self.version.is_some() { FLAG_VERSION } else { 0 }
            | if self.timestamp_ms.is_some() { FLAG_TIMESTAMP } else { 0 }
            | if self.checksum { FLAG_CHECKSUM } else { 0 }
            | if self.value.is_none() { FLAG_NO_VALUE } else { 0 };
        let value_offset = out.len() - value.len();
        let head =
            out.len() as u64 | (flags as u64) << 32 | (self.keys.len() as u64) << 40 | (value_offset as u64) << 48;
        let mut at = 0;
        let mut add = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        add(&head.to_le_bytes());
        if self.checksum {
            add(&[0; 4]);
        }
        if let Some(version) = self.version {
            add(&version.to_le_bytes());
        }
        if let Some(timestamp) = self.timestamp_ms {
            add(&timestamp.to_le_bytes());
        }
        for key in self.keys {
            add(&(key.len() as u16).to_le_bytes());
        }
        for key in self.keys {
            add(key);
        }
        add(value);
        assert_eq!(at, out.len(), "the place is as large as the record");
        if self.checksum {
            let crc = record_checksum(out);
            put(out, RECORD_HEADER_BYTES, &crc.to_le_bytes());
        }
    }
}

/// CRC-32C of a record that carries one, without the four bytes of the field itself.
fn record_checksum(record: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&record[..RECORD_HEADER_BYTES]);
    crc.update(&record[RECORD_HEADER_BYTES + 4..]);
    crc.finish()
}

/// A record in place: no copy, every access is a load at an offset that was checked once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    bytes: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Reads the record at the start of `bytes` and checks its layout (not its checksum).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<RecordView<'a>, FormatError> {
        FormatError::need("record header", RECORD_HEADER_BYTES, bytes.len())?;
        let length = u32_at(bytes, 0) as usize;
        let (flags, key_count, value_offset) = (bytes[4], bytes[5], u16_at(bytes, 6) as usize);
        if length < RECORD_HEADER_BYTES {
            return Err(FormatError::BadField { field: "record.length", value: length as u64, allowed: "8 or more" });
        }
        FormatError::need("record", length, bytes.len())?;
        if flags & !FLAGS_KNOWN != 0 {
            return Err(FormatError::BadField { field: "record.flags", value: flags.into(), allowed: "bits 0 to 4" });
        }
        if flags & FLAG_REMOVED != 0 && bytes[..RECORD_HEADER_BYTES] != REMOVED_RECORD {
            let allowed = "16 alone, in a record of 8 bytes";
            return Err(FormatError::BadField { field: "record.flags", value: flags.into(), allowed });
        }
        let view = RecordView { bytes: &bytes[..length] };
        if flags == 0 && key_count == 0 && value_offset == RECORD_HEADER_BYTES {
            return Ok(view);
        }
        view.check_optional(value_offset)?;
        Ok(view)
    }

    fn check_optional(&self, value_offset: usize) -> Result<(), FormatError> {
        let bad = || FormatError::BadField {
            field: "record.value_offset",
            value: value_offset as u64,
            allowed: "the end of the keys, within the record",
        };
        let mut end = self.keys_at();
        let lengths_end = end + 2 * self.key_count();
        if lengths_end > self.bytes.len() {
            return Err(bad());
        }
        let lengths = end..lengths_end;
        end = lengths_end;
        for at in lengths.step_by(2) {
            end += u16_at(self.bytes, at) as usize;
        }
        let no_value_but_bytes = self.bytes[4] & FLAG_NO_VALUE != 0 && value_offset != self.bytes.len();
        if end != value_offset || value_offset > self.bytes.len() || no_value_but_bytes {
            return Err(bad());
        }
        Ok(())
    }

    /// Where the key lengths start.
    fn keys_at(&self) -> usize {
        let flags = self.bytes[4];
        RECORD_HEADER_BYTES
            + if flags & FLAG_CHECKSUM != 0 { 4 } else { 0 }
            + if flags & FLAG_VERSION != 0 { 8 } else { 0 }
            + if flags & FLAG_TIMESTAMP != 0 { 8 } else { 0 }
    }

    fn optional_at(&self, flag: u8) -> Option<usize> {
        let flags = self.bytes[4];
        if flags & flag == 0 {
            return None;
        }
        let mut at = RECORD_HEADER_BYTES;
        if flag != FLAG_CHECKSUM && flags & FLAG_CHECKSUM != 0 {
            at += 4;
        }
        if flag == FLAG_TIMESTAMP && flags & FLAG_VERSION != 0 {
            at += 8;
        }
        Some(at).filter(|at| at + 8 <= self.bytes.len() || flag == FLAG_CHECKSUM)
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether compaction has removed it: it has its number and nothing else, and is not shown.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.bytes[4] & FLAG_REMOVED != 0
    }

    /// The value; `None` is a tombstone.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        if self.bytes[4] & (FLAG_NO_VALUE | FLAG_REMOVED) != 0 {
            None
        } else {
            Some(&self.bytes[u16_at(self.bytes, 6) as usize..])
        }
    }

    /// How many keys it has.
    pub fn key_count(&self) -> usize {
        self.bytes[5] as usize
    }

    /// The primary key, if there is any.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.keys().next()
    }

    /// All keys, primary first.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let (lengths_at, count) = (self.keys_at(), self.key_count());
        let mut at = lengths_at + 2 * count;
        (0..count).map(move |i| {
            let start = at;
            at += u16_at(bytes, lengths_at + 2 * i) as usize;
            &bytes[start..at]
        })
    }

    /// The version, if the writer gave one.
    pub fn version(&self) -> Option<u64> {
        self.optional_at(FLAG_VERSION).map(|at| u64_at(self.bytes, at))
    }

    /// Milliseconds since 1970, if the writer gave them.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.optional_at(FLAG_TIMESTAMP).map(|at| i64_at(self.bytes, at))
    }

    /// Compares the record's own checksum, if it carries one.
    pub fn verify(&self) -> Result<(), FormatError> {
        let Some(at) = self.optional_at(FLAG_CHECKSUM) else { return Ok(()) };
        FormatError::need("record checksum", at + 4, self.bytes.len())?;
        let (found, computed) = (u32_at(self.bytes, at), record_checksum(self.bytes));
        if found == computed { Ok(()) } else { Err(FormatError::Checksum { what: "record", found, computed }) }
    }
}

impl std::fmt::Debug for RecordView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordView")
            .field("keys", &self.key_count())
            .field("value_bytes", &self.value().map(<[u8]>::len))
            .field("version", &self.version())
            .field("timestamp_ms", &self.timestamp_ms())
            .finish()
    }
}

/// The records of an uncompressed payload, in order. Ends after the first error.
#[derive(Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Iterates over a payload of kind [`crate::chunk::PayloadKind::Records`].
    pub fn new(payload: &'a [u8]) -> Records<'a> {
        Records { rest: payload }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match RecordView::parse(self.rest) {
            Ok(record) => {
                self.rest = &self.rest[record.bytes.len()..];
                Some(Ok(record))
            }
            Err(e) => {
                self.rest = &[];
                Some(Err(e))
            }
        }
    }
}
