//! A Kafka record batch of magic 2, for those who look into one: its header, and its records in place.
//!
//! ```text
//! offset  bytes  field, big-endian
//!      0      8  base_offset
//!      8      4  batch_length      of what follows
//!     12      4  leader_epoch
//!     16      1  magic             2
//!     17      4  crc               CRC-32C of everything from 21 on
//!     21      2  attributes        bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control
//!     23      4  last_offset_delta
//!     27      8  base_timestamp
//!     35      8  max_timestamp
//!     43      8  producer_id
//!     51      2  producer_epoch
//!     53      4  base_sequence
//!     57      4  records_count
//!     61      …  records, compressed together
//!
//! record: length, one byte of attributes, timestamp delta, offset delta, key, value, count of headers, headers
//! ```
//! Lengths, deltas and counts of records are signed varints, a length of -1 is null. Offset deltas grow and need not be dense:
//! compaction leaves holes.

use std::borrow::Cow;

use crate::FormatError;
use crate::checksum::crc32c;
use crate::kafka_codec::KafkaCodec;

/// Bytes of a batch before its records.
pub const KAFKA_BATCH_HEADER_BYTES: usize = 61;

/// Bit of the attributes: the batch belongs to a transaction.
pub const TRANSACTIONAL: i16 = 16;
/// Bit of the attributes: the batch ends a transaction.
pub const CONTROL: i16 = 32;
/// From here on a batch is covered by its checksum.
pub const CHECKED_FROM: usize = 21;

/// Attribute: the time of all records is the batch's largest timestamp, which the broker has written when it appended it.
pub const APPEND_TIME: i16 = 8;

/// Writes length and checksum into the header of a batch that is otherwise done.
///
/// # Panics
/// If `batch` is shorter than its header.
pub fn seal(batch: &mut [u8]) {
    let length = (batch.len() - 12) as u32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(&batch[CHECKED_FROM..]);
    batch[17..CHECKED_FROM].copy_from_slice(&crc.to_be_bytes());
}

/// A whole batch in place; nothing is decompressed yet.
#[derive(Clone, Copy, Debug)]
pub struct KafkaBatchView<'a> {
    bytes: &'a [u8],
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes as asked for")
}

impl<'a> KafkaBatchView<'a> {
    /// The batch that `bytes` is, all of them. Its checksum is not verified.
    pub fn parse(bytes: &'a [u8]) -> Result<KafkaBatchView<'a>, FormatError> {
        FormatError::need("kafka batch", KAFKA_BATCH_HEADER_BYTES, bytes.len())?;
        let bad = |field, value, allowed| Err(FormatError::BadField { field, value, allowed });
        if bytes[16] != 2 {
            return bad("kafka batch.magic", bytes[16].into(), "2");
        }
        let length = u32::from_be_bytes(be(bytes, 8));
        if length as usize != bytes.len() - 12 {
            return bad("kafka batch.length", length.into(), "the bytes that follow it");
        }
        let delta = u32::from_be_bytes(be(bytes, 23));
        if delta > i32::MAX as u32 {
            return bad("kafka batch.last_offset_delta", delta.into(), "0 or more");
        }
        let count = u32::from_be_bytes(be(bytes, 57));
        if u64::from(count) > u64::from(delta) + 1 {
            return bad("kafka batch.records_count", count.into(), "at most one more than the last offset delta");
        }
        let view = KafkaBatchView { bytes };
        KafkaCodec::from_attributes(view.attributes())?;
        Ok(view)
    }

    /// Compares the batch's own checksum, which its producer has written.
    pub fn verify(&self) -> Result<(), FormatError> {
        let (found, computed) = (u32::from_be_bytes(be(self.bytes, 17)), crc32c(&self.bytes[CHECKED_FROM..]));
        if found == computed { Ok(()) } else { Err(FormatError::Checksum { what: "kafka batch.crc", found, computed }) }
    }

    /// All of it.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn attributes(&self) -> i16 {
        i16::from_be_bytes(be(self.bytes, 21))
    }

    /// How its records are compressed.
    pub fn codec(&self) -> KafkaCodec {
        KafkaCodec::from_attributes(self.attributes()).unwrap_or_default()
    }

    /// Whether it belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL != 0
    }

    /// Whether it is a marker, which ends a transaction and holds nothing for readers.
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL != 0
    }

    /// Offsets that the batch covers, records that are gone included: one more than the last offset delta.
    pub fn offsets(&self) -> u32 {
        u32::from_be_bytes(be(self.bytes, 23)) + 1
    }

    /// How many records it says it has.
    pub fn records_count(&self) -> u32 {
        u32::from_be_bytes(be(self.bytes, 57))
    }

    /// Timestamps of records are relative to it, in milliseconds since 1970.
    pub fn base_timestamp_ms(&self) -> i64 {
        i64::from_be_bytes(be(self.bytes, 27))
    }

    /// The time of one of its records, milliseconds since 1970: when its batch was appended, if the batch says so.
    pub fn timestamp_ms(&self, record: &KafkaRecord<'_>) -> i64 {
        match self.attributes() & APPEND_TIME {
            0 => self.base_timestamp_ms().wrapping_add(record.timestamp_delta),
            _ => i64::from_be_bytes(be(self.bytes, 35)),
        }
    }

    /// Id of its producer; -1 if it is neither idempotent nor transactional.
    pub fn producer_id(&self) -> i64 {
        i64::from_be_bytes(be(self.bytes, 43))
    }

    /// The records without their compression, for [`KafkaRecords`]. More than `bytes_max` are refused.
    pub fn uncompressed(&self, bytes_max: usize) -> Result<Cow<'a, [u8]>, FormatError> {
        self.codec().decompress(&self.bytes[KAFKA_BATCH_HEADER_BYTES..], bytes_max)
    }
}

/// A record of a batch, in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KafkaRecord<'a> {
    /// The record with its length in front, as it stands in the batch.
    pub bytes: &'a [u8],
    /// Beyond the batch's base timestamp, in milliseconds.
    pub timestamp_delta: i64,
    /// Beyond the batch's base offset.
    pub offset_delta: u32,
    /// The key; `None` is null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is null, which deletes the key in compacted topics.
    pub value: Option<&'a [u8]>,
    headers: KafkaHeaders<'a>,
}

impl<'a> KafkaRecord<'a> {
    /// Its headers: names, which are UTF-8 by Kafka's rules but not checked for it, and values.
    pub fn headers(&self) -> KafkaHeaders<'a> {
        self.headers
    }
}

/// Headers of a record, one by one; their layout was checked with the record's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KafkaHeaders<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> KafkaHeaders<'a> {
    /// The `count` headers that `bytes` starts with: those of a record that was read before, see
    /// [`as_bytes`](KafkaHeaders::as_bytes).
    pub fn new(bytes: &'a [u8], count: u32) -> KafkaHeaders<'a> {
        KafkaHeaders { rest: bytes, left: count }
    }

    /// The bytes of those that are left.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for KafkaHeaders<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        take_header(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for KafkaHeaders<'_> {}

/// The records of a batch, one by one, from the bytes that [`KafkaBatchView::uncompressed`] gave. Ends behind the first error.
#[derive(Clone, Debug)]
pub struct KafkaRecords<'a> {
    rest: &'a [u8],
    /// Records that are still to come.
    left: u32,
    /// The least that the next offset delta may be, and one more than the most.
    deltas: (u32, u32),
}

impl<'a> KafkaRecords<'a> {
    /// The records of `batch`, whose uncompressed bytes are `records`.
    pub fn new(batch: &KafkaBatchView<'_>, records: &'a [u8]) -> KafkaRecords<'a> {
        KafkaRecords { rest: records, left: batch.records_count(), deltas: (0, batch.offsets()) }
    }

    fn take(&mut self) -> Result<KafkaRecord<'a>, FormatError> {
        let start = self.rest;
        let length = take_varint(&mut self.rest)?;
        let length = usize::try_from(length).map_err(|_| bad("kafka record.length", length))?;
        FormatError::need("kafka record", length, self.rest.len())?;
        let (mut fields, after) = self.rest.split_at(length);
        self.rest = after;
        FormatError::need("kafka record.attributes", 1, fields.len())?;
        fields = &fields[1..];
        let timestamp_delta = take_varint(&mut fields)?;
        let delta = take_varint(&mut fields)?;
        let offset_delta = u32::try_from(delta).ok().filter(|delta| (self.deltas.0..self.deltas.1).contains(delta));
        let offset_delta = offset_delta.ok_or_else(|| bad("kafka record.offset_delta", delta))?;
        self.deltas.0 = offset_delta + 1;
        let (key, value) = (take_bytes(&mut fields)?, take_bytes(&mut fields)?);
        let count = take_varint(&mut fields)?;
        let left = u32::try_from(count).map_err(|_| bad("kafka record.headers_count", count))?;
        let headers = KafkaHeaders { rest: fields, left };
        for _ in 0..left {
            take_header(&mut fields)?;
        }
        if !fields.is_empty() {
            return Err(bad("kafka record.length", length as i64));
        }
        let bytes = &start[..start.len() - after.len()];
        Ok(KafkaRecord { bytes, timestamp_delta, offset_delta, key, value, headers })
    }
}

impl<'a> Iterator for KafkaRecords<'a> {
    type Item = Result<KafkaRecord<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.rest.is_empty() {
                return None;
            }
            let bytes = std::mem::take(&mut self.rest).len();
            return Some(Err(FormatError::BadField {
                field: "kafka batch.bytes behind the last record",
                value: bytes as u64,
                allowed: "0",
            }));
        }
        self.left -= 1;
        let record = self.take();
        if record.is_err() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(record)
    }
}

fn bad(field: &'static str, value: i64) -> FormatError {
    FormatError::BadField { field, value: value.cast_unsigned(), allowed: "what fits into the bytes that hold it" }
}

/// Reads a signed varint at the front of `bytes`, its sign in the lowest bit.
pub fn take_varint(bytes: &mut &[u8]) -> Result<i64, FormatError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err(FormatError::Truncated { what: "kafka varint", need: 1, have: 0 });
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()));
        }
    }
    Err(FormatError::BadField { field: "kafka varint", value, allowed: "ten bytes at most" })
}

/// Appends a signed varint.
pub fn put_varint(value: i64, out: &mut Vec<u8>) {
    let mut left = (value << 1 ^ value >> 63).cast_unsigned();
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Bytes with their length in front; `None` if the length is negative.
fn take_bytes<'a>(fields: &mut &'a [u8]) -> Result<Option<&'a [u8]>, FormatError> {
    let Ok(length) = usize::try_from(take_varint(fields)?) else { return Ok(None) };
    FormatError::need("kafka record", length, fields.len())?;
    let (bytes, rest) = fields.split_at(length);
    *fields = rest;
    Ok(Some(bytes))
}

fn take_header<'a>(fields: &mut &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), FormatError> {
    let name = take_bytes(fields)?.ok_or_else(|| bad("kafka record.header name", -1))?;
    Ok((name, take_bytes(fields)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put_bytes(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
        put_varint(bytes.map_or(-1, |bytes| bytes.len() as i64), out);
        out.extend_from_slice(bytes.unwrap_or_default());
    }

    fn record(delta: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]) -> Vec<u8> {
        let mut fields = vec![0];
        put_varint(delta * 10, &mut fields);
        put_varint(delta, &mut fields);
        put_bytes(key, &mut fields);
        put_bytes(value, &mut fields);
        put_varint(headers.len() as i64, &mut fields);
        for (name, value) in headers {
            put_bytes(Some(name.as_bytes()), &mut fields);
            put_bytes(*value, &mut fields);
        }
        let mut out = Vec::new();
        put_varint(fields.len() as i64, &mut out);
        out.extend_from_slice(&fields);
        out
    }

    fn batch(codec: KafkaCodec, count: u32, last_delta: u32, records: &[u8]) -> Vec<u8> {
        let mut batch = vec![0; KAFKA_BATCH_HEADER_BYTES];
        batch.extend_from_slice(&codec.compress(records));
        let length = batch.len() as u32 - 12;
        let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
        put(8, &length.to_be_bytes());
        put(16, &[2]);
        put(21, &(codec as i16).to_be_bytes());
        put(23, &last_delta.to_be_bytes());
        put(27, &1000_i64.to_be_bytes());
        put(43, &(-1_i64).to_be_bytes());
        put(57, &count.to_be_bytes());
        let crc = crc32c(&batch[CHECKED_FROM..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        batch
    }

    /// Offset delta, key and value.
    type Read = (u32, Option<Vec<u8>>, Option<Vec<u8>>);

    fn read(batch: &[u8]) -> Result<Vec<Read>, FormatError> {
        let view = KafkaBatchView::parse(batch)?;
        view.verify()?;
        let records = view.uncompressed(10_000)?;
        KafkaRecords::new(&view, &records)
            .map(|record| record.map(|r| (r.offset_delta, r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec))))
            .collect()
    }

    #[test]
    fn records_of_all_kinds_of_batches_are_read_holes_included() {
        let headers = [("trace", Some(&b"7"[..])), ("empty", Some(b"")), ("null", None)];
        let records = [record(1, Some(b"k"), None, &[]), record(4, None, Some(b"value"), &headers)].concat();
        let codecs = [KafkaCodec::None, KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd];
        for codec in codecs {
            let batch = batch(codec, 2, 6, &records);
            let expected = vec![(1, Some(b"k".to_vec()), None), (4, None, Some(b"value".to_vec()))];
            assert_eq!(read(&batch).unwrap(), expected, "{}", codec.name());
            assert_eq!(KafkaBatchView::parse(&batch).unwrap().offsets(), 7);
        }
        let batch = batch(KafkaCodec::None, 2, 6, &records);
        let view = KafkaBatchView::parse(&batch).unwrap();
        let second = KafkaRecords::new(&view, &records).nth(1).unwrap().unwrap();
        let found: Vec<_> = second.headers().collect();
        let expected = [(&b"trace"[..], Some(&b"7"[..])), (b"empty", Some(b"")), (b"null", None)];
        assert_eq!(found, expected);
        assert_eq!((second.timestamp_delta, view.base_timestamp_ms()), (40, 1000));
        assert!(records.ends_with(second.bytes));
    }

    #[test]
    fn counts_and_deltas_that_lie_are_refused() {
        let good = [record(0, None, Some(b"a"), &[]), record(1, None, Some(b"b"), &[])].concat();
        assert_eq!(read(&batch(KafkaCodec::None, 2, 1, &good)).unwrap().len(), 2);
        assert!(read(&batch(KafkaCodec::None, 3, 1, &good)).is_err(), "more records than offsets");
        assert!(read(&batch(KafkaCodec::None, 3, 2, &good)).is_err(), "a record is missing");
        assert!(read(&batch(KafkaCodec::None, 1, 1, &good)).is_err(), "a record too many");
        assert!(read(&batch(KafkaCodec::None, 2, 0, &good)).is_err(), "a delta beyond the last");
        let twice = [record(1, None, None, &[]), record(1, None, None, &[])].concat();
        assert!(read(&batch(KafkaCodec::None, 2, 5, &twice)).is_err(), "a delta twice");
        let mut flipped = batch(KafkaCodec::None, 2, 1, &good);
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        assert!(matches!(read(&flipped), Err(FormatError::Checksum { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200), count in 0..9_u32) {
            let _ = read(&bytes);
            let _ = read(&batch(KafkaCodec::None, count, 8, &bytes));
            let _ = read(&batch(KafkaCodec::Zstd, count, 8, &bytes));
        }

        #[test]
        fn varints_survive(value: i64) {
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(take_varint(&mut rest), Ok(value));
            prop_assert!(rest.is_empty());
        }
    }
}
