//! Record batches: what is checked of one that a producer sends, and how native records become one for a Kafka reader.
//!
//! The layout is [`kera_format::kafka_batch`]'s; base offset and leader epoch are patched on the way out, and covered by no checksum.
//!
//! Pure. Records are not looked into on the way in, unless the header keeps their times to itself: what is checked is the header, whose count moves the
//! offsets, and, while the chunk is copied, the checksum.

use kafka_protocol::ResponseError;
use kera_format::chunk::NO_TIMESTAMP;
use kera_format::kafka_batch::{self, APPEND_TIME, CONTROL, KafkaBatchView, KafkaRecords, TRANSACTIONAL, put_varint};
use kera_format::kafka_codec::KafkaCodec;
use kera_format::limits::CHUNK_UNCOMPRESSED_BYTES_MAX;
use kera_format::{ChunkView, FormatError, RecordView, Records};

pub(crate) use kera_format::kafka_batch::{CHECKED_FROM, KAFKA_BATCH_HEADER_BYTES as BATCH_HEADER_BYTES};

/// What is patched on the way out: base offset, length, leader epoch.
pub(crate) const PATCHED_BYTES: usize = 16;
/// The leader epoch that batches are kept with; they are told with that of the group that they are in.
pub(crate) const LEADER_EPOCH: i32 = 0;
/// The least that a record takes: its length, attributes, two deltas, two lengths and a count, a byte each.
const RECORD_BYTES_MIN: usize = 7;

const COMPRESSION: i16 = 7;

/// What the broker has to know of a batch that a producer sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchHeader {
    pub(crate) crc: u32,
    pub(crate) record_count: u32,
    /// [`NO_TIMESTAMP`] if there is none.
    pub(crate) max_timestamp_ms: i64,
    /// -1: not deduplicated.
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) base_sequence: i32,
    pub(crate) transactional: bool,
}

/// Why a batch is refused: Kafka's error and a sentence.
pub(crate) type Refused = (ResponseError, &'static str);

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn i16_at(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(be(bytes, at))
}
fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(be(bytes, at))
}
fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(be(bytes, at))
}

impl BatchHeader {
    /// Checks the header of the one batch that `bytes` must be; the checksum is not verified here.
    pub(crate) fn check(bytes: &[u8]) -> Result<BatchHeader, Refused> {
        let refuse = |why| Err((ResponseError::InvalidRecord, why));
        // The magic is at the same place in all formats that there were.
        if bytes.len() > 16 && bytes[16] != 2 {
            return refuse("only record batches of magic 2 are kept");
        }
        if bytes.is_empty() {
            return refuse("a request carries one batch per partition");
        }
        if bytes.len() < BATCH_HEADER_BYTES {
            return refuse("the batch is shorter than its header");
        }
        match usize::try_from(i32_at(bytes, 8)) {
            Ok(length) if length + 12 == bytes.len() => {}
            Ok(length) if (BATCH_HEADER_BYTES - 12..bytes.len() - 12).contains(&length) => {
                return refuse("a request carries one batch per partition");
            }
            Ok(length) if length + 12 > bytes.len() => return refuse("the batch is longer than what was sent"),
            _ => return Err((ResponseError::CorruptMessage, "the batch's length is none")),
        }
        let attributes = i16_at(bytes, 21);
        if attributes & CONTROL != 0 {
            return refuse("clients write no control batches");
        }
        if attributes & COMPRESSION > 4 {
            return Err((ResponseError::UnsupportedCompressionType, "compression is 0 to 4"));
        }
        if attributes & APPEND_TIME != 0 {
            return Err((ResponseError::InvalidTimestamp, "producers set the time of creation"));
        }
        let count = i32_at(bytes, 57);
        let delta = i32_at(bytes, 23);
        if count < 1 || delta != count - 1 {
            return refuse("the last offset delta is not one less than the count of records");
        }
        let record_count = count.cast_unsigned();
        let room = (bytes.len() - BATCH_HEADER_BYTES) / RECORD_BYTES_MIN;
        if attributes & COMPRESSION == 0 && record_count as usize > room {
            return refuse("the batch is too small for the records that it counts");
        }
        let max_timestamp = i64_at(bytes, 35);
        let (producer_id, producer_epoch, base_sequence) = (i64_at(bytes, 43), i16_at(bytes, 51), i32_at(bytes, 53));
        if producer_id < -1 || producer_id >= 0 && (producer_epoch < 0 || base_sequence < 0) {
            return refuse("producer id, epoch and sequence do not fit");
        }
        let transactional = attributes & TRANSACTIONAL != 0;
        if transactional && producer_id < 0 {
            return refuse("a transactional batch has a producer id");
        }
        if producer_id == 0 {
            return Err((ResponseError::UnknownProducerId, "producer id 0 is never given out"));
        }
        Ok(BatchHeader {
            crc: u32::from_be_bytes(be(bytes, 17)),
            record_count,
            max_timestamp_ms: if max_timestamp < 0 { NO_TIMESTAMP } else { max_timestamp },
            producer_id,
            producer_epoch,
            base_sequence,
            transactional,
        })
    }

    /// The same of the batch as it is kept, with another compression or time.
    pub(crate) fn of_kept(self, kept: &[u8]) -> BatchHeader {
        let max_timestamp = i64_at(kept, 35);
        BatchHeader {
            crc: u32::from_be_bytes(be(kept, 17)),
            // Where it still says none, its records are the same, and their times were looked for.
            max_timestamp_ms: if max_timestamp < 0 { self.max_timestamp_ms } else { max_timestamp },
            ..self
        }
    }

    /// With the largest time of the batch's records where its header has none and they have: so are all batches of Sarama before 1.45.1.
    ///
    /// By the chunk's header, and by the segment's that comes of all of them, lookups by time pass over what they need not look into. A chunk without a time
    /// counts there as appended when its records were written, and beside chunks that have a time not at all: what is later was passed
    /// over. So the records are opened once, here, within the bounds that hold wherever a batch is opened, and the batch itself stays as it is.
    pub(crate) fn with_time_of_records(self, batch: &[u8]) -> BatchHeader {
        let base = i64_at(batch, 27);
        if self.max_timestamp_ms != NO_TIMESTAMP || base < 0 {
            return self;
        }
        // What cannot be read has the time of its first record at least.
        let newest = newest_of_records(batch).unwrap_or(base);
        BatchHeader { max_timestamp_ms: if newest < 0 { NO_TIMESTAMP } else { newest }, ..self }
    }

    /// The times that a checked batch says of its records without being opened: of the first one and of the latest; negative for none.
    pub(crate) fn times_ms(&self, batch: &[u8]) -> [i64; 2] {
        [i64_at(batch, 27), self.max_timestamp_ms]
    }

    /// The sequence of the batch's last record, which is what its chunk's header says.
    pub(crate) fn last_sequence(&self) -> u64 {
        (u64::from(self.base_sequence.max(0).cast_unsigned()) + u64::from(self.record_count - 1)) % (1 << 31)
    }
}

/// Why a batch is refused whose records do not come apart.
pub(crate) const UNREADABLE: Refused = (ResponseError::InvalidRecord, "the batch's records cannot be read");

/// A batch that has the checksum that it says, for whoever opens it before it is appended.
pub(crate) fn verified(batch: &[u8]) -> Result<KafkaBatchView<'_>, Refused> {
    let changed = (ResponseError::CorruptMessage, "the batch does not have the checksum that it says");
    KafkaBatchView::parse(batch).and_then(|view| view.verify().map(|()| view)).map_err(|_| changed)
}

/// The numbers of those records of a batch that have no key, `most` of them at most: a compacted topic has no use for them. A
/// batch that cannot be taken apart is refused, for compaction could not do so either.
pub(crate) fn without_key(batch: &[u8], most: usize) -> Result<Vec<u32>, Refused> {
    let view = verified(batch)?;
    let records = view.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX).map_err(|_| UNREADABLE)?;
    let (mut found, mut count) = (Vec::new(), 0);
    for record in KafkaRecords::new(&view, &records) {
        let record = record.map_err(|_| UNREADABLE)?;
        if record.offset_delta != count {
            return Err(UNREADABLE);
        }
        if record.key.is_none() && found.len() < most {
            found.push(count);
        }
        count += 1;
    }
    Ok(found)
}

/// The marker that ends a transaction in a partition: a control batch of one record, whose key says how it ended.
pub(crate) fn marker((producer_id, epoch): (i64, i16), commit: bool, now_ms: i64) -> Vec<u8> {
    let mut batch = vec![0; BATCH_HEADER_BYTES];
    let mut record = vec![0];
    put_varint(0, &mut record);
    put_varint(0, &mut record);
    // Version 0; 0 aborts, 1 commits.
    put_bytes(Some(&[0, 0, 0, u8::from(commit)]), &mut record);
    // Version 0, and the epoch of the coordinator, of which there is one.
    put_bytes(Some(&[0; 6]), &mut record);
    put_varint(0, &mut record);
    put_varint(record.len() as i64, &mut batch);
    batch.extend_from_slice(&record);
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(12, &LEADER_EPOCH.to_be_bytes());
    put(16, &[2]);
    put(21, &(TRANSACTIONAL | CONTROL).to_be_bytes());
    put(27, &now_ms.to_be_bytes());
    put(35, &now_ms.to_be_bytes());
    put(43, &producer_id.to_be_bytes());
    put(51, &epoch.to_be_bytes());
    put(53, &(-1_i32).to_be_bytes());
    put(57, &1_i32.to_be_bytes());
    kafka_batch::seal(&mut batch);
    batch
}

/// What a marker says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marker {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    pub(crate) commits: bool,
}

/// The same of a kept batch; `None` if it is no [marker].
pub(crate) fn marker_of(batch: &KafkaBatchView<'_>) -> Option<Marker> {
    if !batch.is_control() {
        return None;
    }
    let records = batch.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX).ok()?;
    let key = KafkaRecords::new(batch, &records).next()?.ok()?.key?;
    Some(Marker { producer_id: batch.producer_id(), epoch: i16_at(batch.as_bytes(), 51), commits: key == [0, 0, 0, 1] })
}

/// Whether a whole batch of magic 2 says that it is compressed with zstd, which clients of old do not know.
pub(crate) fn is_zstd(batch: &[u8]) -> bool {
    let zstd = KafkaCodec::Zstd as i16;
    let is_whole = batch.len() >= BATCH_HEADER_BYTES && i64::from(i32_at(batch, 8)) + 12 <= batch.len() as i64;
    is_whole && batch[16] == 2 && i16_at(batch, 21) & COMPRESSION == zstd
}

/// Whether nothing is left of a batch but its place.
pub(crate) fn is_empty(batch: &[u8]) -> bool {
    batch.len() >= BATCH_HEADER_BYTES && i32_at(batch, 57) == 0
}

/// The checksum that a batch carries.
pub(crate) fn crc_of(batch: &[u8]) -> u32 {
    u32::from_be_bytes(be(batch, 17))
}

/// The bytes of a stored batch that are patched on the way out.
pub(crate) fn patched_head(batch: &[u8], base_ordinal: u64, leader_epoch: i32) -> [u8; PATCHED_BYTES] {
    let mut head = [0; PATCHED_BYTES];
    head[..8].copy_from_slice(&base_ordinal.to_be_bytes());
    head[8..12].copy_from_slice(&batch[8..12]);
    head[12..].copy_from_slice(&leader_epoch.to_be_bytes());
    head
}

/// Says in a batch in which leader's epoch it was appended; its checksum does not cover that.
pub(crate) fn set_leader_epoch(batch: &mut [u8], leader_epoch: i32) {
    batch[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// A native record has at most so many bytes that it has not in a batch: a checksum, a time, and lengths, of which a byte each is left.
const NATIVE_ALONE_BYTES_MAX: usize = 15;

/// Bytes of the batch that [`from_native`] makes of a chunk, as far as its header tells: as many at least, and hardly ever more than the second
/// number, but for records of a few bytes with much beside their value.
pub(crate) fn made_bytes(chunk: &ChunkView<'_>) -> (usize, usize) {
    let bytes = chunk.uncompressed_bytes();
    let alone = (chunk.header().record_count as usize).saturating_mul(NATIVE_ALONE_BYTES_MAX);
    (BATCH_HEADER_BYTES + bytes.saturating_sub(alone), BATCH_HEADER_BYTES + bytes.saturating_mul(2))
}

/// A native chunk's records as one batch, uncompressed. Secondary keys become headers named `key`, a version one named
/// `version` (eight bytes, big-endian). A record without a timestamp has that of its chunk's append.
pub(crate) fn from_native(
    chunk: &ChunkView<'_>,
    base_ordinal: u64,
    append_time_ms: i64,
) -> Result<Vec<u8>, FormatError> {
    #[cfg(test)]
    tests::MADE.set(tests::MADE.get() + 1);
    let payload = chunk.uncompressed()?;
    let count = chunk.header().record_count;
    let mut batch = Vec::with_capacity(BATCH_HEADER_BYTES + payload.len() + count as usize * 4);
    batch.resize(BATCH_HEADER_BYTES, 0);
    let (mut base_timestamp, mut max_timestamp) = (None, i64::MIN);
    let mut delta = 0;
    let mut scratch = Vec::new();
    let mut left = 0;
    for record in Records::new(&payload) {
        let record = record?;
        if record.is_removed() {
            delta += 1;
            continue;
        }
        left += 1;
        let timestamp = record.timestamp_ms().unwrap_or(append_time_ms);
        let base = *base_timestamp.get_or_insert(timestamp);
        max_timestamp = max_timestamp.max(timestamp);
        scratch.clear();
        encode_record(&record, timestamp.wrapping_sub(base), delta, &mut scratch);
        put_varint(scratch.len() as i64, &mut batch);
        batch.extend_from_slice(&scratch);
        delta += 1;
    }
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(0, &base_ordinal.to_be_bytes());
    put(12, &LEADER_EPOCH.to_be_bytes());
    put(16, &[2]);
    put(23, &(count as i32 - 1).to_be_bytes());
    put(27, &base_timestamp.unwrap_or(append_time_ms).to_be_bytes());
    put(35, &max_timestamp.max(base_timestamp.unwrap_or(append_time_ms)).to_be_bytes());
    put(43, &(-1_i64).to_be_bytes());
    put(51, &(-1_i16).to_be_bytes());
    put(53, &(-1_i32).to_be_bytes());
    put(57, &i32::to_be_bytes(left));
    kafka_batch::seal(&mut batch);
    Ok(batch)
}

fn encode_record(record: &RecordView<'_>, timestamp_delta: i64, offset_delta: i64, out: &mut Vec<u8>) {
    out.push(0);
    put_varint(timestamp_delta, out);
    put_varint(offset_delta, out);
    let mut keys = record.keys();
    put_bytes(keys.next(), out);
    put_bytes(record.value(), out);
    let headers = record.key_count().saturating_sub(1) + usize::from(record.version().is_some());
    put_varint(headers as i64, out);
    for key in keys {
        put_header("key", key, out);
    }
    if let Some(version) = record.version() {
        put_header("version", &version.to_be_bytes(), out);
    }
}

fn put_header(name: &str, value: &[u8], out: &mut Vec<u8>) {
    put_bytes(Some(name.as_bytes()), out);
    put_bytes(Some(value), out);
}

fn put_bytes(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    match bytes {
        Some(bytes) => {
            put_varint(bytes.len() as i64, out);
            out.extend_from_slice(bytes);
        }
        None => put_varint(-1, out),
    }
}

/// The first record of a batch, from the one with that number on, whose timestamp is `wanted` or later: its number and timestamp. `None` if there is none.
///
/// # Errors
/// The batch cannot be read so far.
pub(crate) fn first_at(batch: &[u8], wanted: i64, from: u32) -> Result<Option<(u32, i64)>, FormatError> {
    let view = KafkaBatchView::parse(batch)?;
    let records = view.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX)?;
    for record in KafkaRecords::new(&view, &records) {
        let record = record?;
        let timestamp = view.timestamp_ms(&record);
        if timestamp >= wanted && record.offset_delta >= from {
            return Ok(Some((record.offset_delta, timestamp)));
        }
    }
    Ok(None)
}

/// The largest time of a batch's records, by the records themselves; `None` if they cannot be read.
fn newest_of_records(batch: &[u8]) -> Option<i64> {
    let view = KafkaBatchView::parse(batch).ok()?;
    let records = view.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX).ok()?;
    let mut newest = None;
    for record in KafkaRecords::new(&view, &records) {
        newest = newest.max(Some(view.timestamp_ms(&record.ok()?)));
    }
    newest
}

/// The largest time of a batch's records, as its header has it.
pub(crate) fn newest(batch: &[u8]) -> Option<i64> {
    batch.get(35..)?.first_chunk().map(|bytes| i64::from_be_bytes(*bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kera_format::checksum::crc32c;
    use kera_format::chunk::{ChunkBuilder, ChunkTarget};
    use kera_format::record::REMOVED_RECORD;
    use kera_format::{Compression, Record};
    use proptest::prelude::*;

    thread_local! {
        /// Batches that this thread has made of native chunks.
        pub(crate) static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// A batch of `values`, as a client makes it.
    pub(crate) fn batch(values: &[&[u8]], producer: (i64, i16, i32)) -> Vec<u8> {
        let mut builder = ChunkBuilder::default();
        for (n, value) in values.iter().enumerate() {
            builder.push(&Record { timestamp_ms: Some(1000 + n as i64), ..Record::value(value) });
        }
        let chunk = builder.seal(&ChunkTarget::default(), Compression::None).unwrap();
        let mut batch = from_native(&ChunkView::parse(&chunk).unwrap(), 0, 7).unwrap();
        batch[43..51].copy_from_slice(&producer.0.to_be_bytes());
        batch[51..53].copy_from_slice(&producer.1.to_be_bytes());
        batch[53..57].copy_from_slice(&producer.2.to_be_bytes());
        let crc = crc32c(&batch[CHECKED_FROM..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        batch
    }

    /// A batch of a transaction.
    pub(crate) fn transactional(values: &[&[u8]], producer: (i64, i16, i32)) -> Vec<u8> {
        let mut batch = batch(values, producer);
        batch[22] |= TRANSACTIONAL as u8;
        let crc = crc32c(&batch[CHECKED_FROM..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        batch
    }

    #[test]
    fn a_batch_as_clients_send_it_is_taken() {
        let good = batch(&[b"a", b"bb", b""], (9, 2, i32::MAX - 1));
        let header = BatchHeader::check(&good).unwrap();
        assert_eq!((header.record_count, header.producer_id, header.producer_epoch), (3, 9, 2));
        assert_eq!(header.max_timestamp_ms, 1002);
        assert_eq!(header.last_sequence(), 0, "sequences start again behind the largest");
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let good = batch(&[b"a", b"bb"], (-1, -1, -1));
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            BatchHeader::check(&bad).map_err(|(error, _)| error)
        };
        assert!(with(0, &[1]).is_ok(), "the base offset is the broker's");
        assert_eq!(with(16, &[1]), Err(ResponseError::InvalidRecord));
        assert_eq!(BatchHeader::check(&[]).map_err(|(error, _)| error), Err(ResponseError::InvalidRecord));
        assert_eq!(with(8, &[0, 0, 0, 60]), Err(ResponseError::InvalidRecord), "two batches");
        assert_eq!(with(8, &[0x7f, 0xff, 0xff, 0xff]), Err(ResponseError::InvalidRecord), "more than there is");
        assert_eq!(with(8, &[0, 0, 0, 9]), Err(ResponseError::CorruptMessage), "less than a header");
        assert_eq!(with(8, &[0xff, 0xff, 0xff, 0xff]), Err(ResponseError::CorruptMessage));
        assert_eq!(with(57, &[0, 0, 0, 3]), Err(ResponseError::InvalidRecord), "count and delta");
        assert_eq!(with(23, &[0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(ResponseError::InvalidRecord));
        assert_eq!(with(21, &[0, 32]), Err(ResponseError::InvalidRecord), "control");
        assert_eq!(with(21, &[0, 16]), Err(ResponseError::InvalidRecord), "a transaction of nobody");
        assert_eq!(with(21, &[0, 5]), Err(ResponseError::UnsupportedCompressionType));
        assert_eq!(with(43, &[0; 8]), Err(ResponseError::InvalidRecord), "an id with sequence -1");
        assert!(BatchHeader::check(&good[..60]).is_err());
        let mut many = good.clone();
        many[57..61].copy_from_slice(&1_000_i32.to_be_bytes());
        many[23..27].copy_from_slice(&999_i32.to_be_bytes());
        assert_eq!(BatchHeader::check(&many).map_err(|(error, _)| error), Err(ResponseError::InvalidRecord));
    }

    #[test]
    fn a_marker_is_what_kafka_writes() {
        let expected = [
            &[0; 8][..],
            &[0, 0, 0, 66, 0, 0, 0, 0, 2],
            &marker((0x0102, 3), true, 0x0405)[17..21],
            &[0, 0x30, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 4, 5],
            &[0, 0, 0, 0, 0, 0, 1, 2, 0, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1],
            // Length 16; no attributes, no deltas; key and value with their lengths; no headers.
            &[32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(marker((0x0102, 3), true, 0x0405), expected);
        assert_eq!(crc_of(&expected), crc32c(&expected[CHECKED_FROM..]));
        assert_eq!(marker((0x0102, 3), false, 0x0405)[BATCH_HEADER_BYTES + 8], 0);
    }

    #[test]
    fn the_first_record_from_a_time_on_is_found() {
        let batch = batch(&[b"a", b"bb", b"c"], (-1, -1, -1));
        assert_eq!(first_at(&batch, 0, 0), Ok(Some((0, 1000))));
        assert_eq!(first_at(&batch, 1001, 0), Ok(Some((1, 1001))));
        assert_eq!(first_at(&batch, 1003, 0), Ok(None));
        let mut compressed = batch[..BATCH_HEADER_BYTES].to_vec();
        compressed.extend_from_slice(&KafkaCodec::Zstd.compress(&batch[BATCH_HEADER_BYTES..]));
        let length = compressed.len() as u32 - 12;
        compressed[8..12].copy_from_slice(&length.to_be_bytes());
        compressed[22] |= KafkaCodec::Zstd as u8;
        assert_eq!(first_at(&compressed, 1001, 0), Ok(Some((1, 1001))));
    }

    #[test]
    fn offsets_of_removed_records_stay_free() {
        let mut bytes = vec![0; kera_format::CHUNK_HEADER_BYTES];
        bytes.extend_from_slice(&REMOVED_RECORD);
        Record::value(b"second").encode(&mut bytes);
        bytes.extend_from_slice(&REMOVED_RECORD);
        let chunk = ChunkBuilder::filled(bytes, 3, NO_TIMESTAMP);
        let chunk = chunk.seal(&ChunkTarget::default(), Compression::None).unwrap();
        let chunk = ChunkView::parse(&chunk).unwrap();
        let made = from_native(&chunk, 5, 7).unwrap();
        assert!(made.len() >= made_bytes(&chunk).0);
        let view = KafkaBatchView::parse(&made).unwrap();
        view.verify().unwrap();
        assert_eq!((view.offsets(), view.records_count()), (3, 1));
        let records = view.uncompressed(100).unwrap();
        let left: Vec<_> = KafkaRecords::new(&view, &records).map(|one| one.map(|one| one.offset_delta)).collect();
        assert_eq!(left, [Ok(1)]);
    }

    #[test]
    fn secondary_keys_and_versions_become_headers() {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record { keys: &[b"first", b"second"], value: None, version: Some(5), ..Record::default() });
        let chunk = builder.seal(&ChunkTarget::default(), Compression::Lz4).unwrap();
        let batch = from_native(&ChunkView::parse(&chunk).unwrap(), 40, 7).unwrap();
        assert_eq!(batch[..8], 40_u64.to_be_bytes());
        let mut expected = vec![0, 0, 0, 10];
        expected.extend_from_slice(b"first");
        expected.extend_from_slice(&[1, 4, 6]);
        expected.extend_from_slice(b"key");
        expected.push(12);
        expected.extend_from_slice(b"second");
        expected.push(14);
        expected.extend_from_slice(b"version");
        expected.push(16);
        expected.extend_from_slice(&5_u64.to_be_bytes());
        assert_eq!(batch[BATCH_HEADER_BYTES + 1..], expected);
        assert!(BatchHeader::check(&batch).is_ok());
    }

    proptest! {
        #[test]
        fn a_batch_is_no_smaller_than_its_chunk_tells(
            records in prop::collection::vec(any::<(Vec<Vec<u8>>, Option<Vec<u8>>, Option<u64>, Option<i64>, bool)>(), 1..20),
            compression in prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd]),
        ) {
            let mut builder = ChunkBuilder::default();
            for (keys, value, version, timestamp_ms, checksum) in &records {
                let keys: Vec<&[u8]> = keys.iter().take(8).map(Vec::as_slice).collect();
                let (value, keys, checksum) = (value.as_deref(), &keys[..], *checksum);
                builder.push(&Record { keys, value, version: *version, timestamp_ms: *timestamp_ms, checksum });
            }
            let chunk = builder.seal(&ChunkTarget::default(), compression).unwrap();
            let chunk = ChunkView::parse(&chunk).unwrap();
            prop_assert_eq!(chunk.uncompressed_bytes(), chunk.uncompressed().unwrap().len());
            prop_assert!(from_native(&chunk, 0, 7).unwrap().len() >= made_bytes(&chunk).0);
        }

        #[test]
        fn any_bytes_are_checked(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = BatchHeader::check(&bytes);
            let _ = first_at(&bytes, 5, 0);
        }
    }
}
