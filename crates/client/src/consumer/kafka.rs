//! Chunks that Kafka producers have written, for native consumers: their records become KerA records.
//!
//! A record's key is its one key, value and timestamp are what they are; headers stay in the batch and are handed out from there.
//! Ordinals are Kafka's offsets, so they need not be dense. The markers that end transactions have no records.

use bytes::Bytes;
use kera_format::kafka_batch::{KafkaBatchView, KafkaHeaders, KafkaRecord, KafkaRecords};
use kera_format::limits::CHUNK_UNCOMPRESSED_BYTES_MAX;
use kera_format::{BrokerPart, ChunkView, Compression, Cursor, FormatError, Record, Records};

use super::batch::BatchChunk;

/// What the records of a Kafka batch have beside what KerA records have, and those of a compacted chunk.
#[derive(Debug)]
pub(super) struct KafkaPart {
    /// Ordinals of the records, from the chunk's first.
    deltas: Vec<u32>,
    /// The records as they were written, without their compression.
    records: Bytes,
    /// Where the headers of each record begin in `records`, and how many there are; empty if no record has any.
    headers: Vec<(u32, u32)>,
}

impl KafkaPart {
    /// Ordinal of a record, from the chunk's first.
    pub(super) fn delta(&self, index: u32) -> u32 {
        self.deltas.get(index as usize).copied().unwrap_or(u32::MAX)
    }

    /// How many records come before an ordinal, counted from the chunk's first.
    pub(super) fn records_before(&self, delta: u32) -> u32 {
        self.deltas.partition_point(|at| *at < delta) as u32
    }

    /// The records as they were written, without their compression.
    pub(super) fn records(&self) -> &Bytes {
        &self.records
    }

    pub(super) fn headers(&self, index: u32) -> KafkaHeaders<'_> {
        let place = self.headers.get(index as usize);
        place.map_or_else(KafkaHeaders::default, |(at, count)| KafkaHeaders::new(&self.records[*at as usize..], *count))
    }
}

/// The records of a chunk that is a Kafka batch. Its checksums have been verified by who wants them verified. Those of a
/// transaction are taken only if the server has said that they are `committed`.
pub(super) fn decode_chunk(
    chunk: &ChunkView<'_>,
    broker: &BrokerPart,
    data: &Bytes,
    committed: bool,
) -> Result<BatchChunk, FormatError> {
    let header = chunk.header();
    if header.compression != Compression::None {
        let (value, allowed) = (header.compression as u64, "0 with a Kafka batch, which is compressed by itself");
        return Err(FormatError::BadField { field: "chunk.compression", value, allowed });
    }
    let batch = KafkaBatchView::parse(chunk.payload())?;
    if batch.offsets() != header.record_count {
        let (value, allowed) = (header.record_count.into(), "the offsets that the batch covers");
        return Err(FormatError::BadField { field: "chunk.record_count", value, allowed });
    }
    let mut decoded = BatchChunk {
        cursor: Cursor { group: broker.group, segment: broker.segment, position: broker.position },
        base_ordinal: broker.base_ordinal,
        append_time_ms: broker.append_time_ms,
        ordinals: header.record_count,
        record_count: 0,
        skip: 0,
        payload: Bytes::new(),
        kafka: None,
    };
    if batch.is_control() {
        return Ok(decoded);
    }
    if batch.is_transactional() && !committed {
        let allowed = "0 from a server that does not know how transactions ended: its door for Kafka clients is closed";
        return Err(FormatError::BadField { field: "kafka batch.transactional", value: 1, allowed });
    }
    let records = match batch.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX)? {
        std::borrow::Cow::Borrowed(records) => data.slice_ref(records),
        std::borrow::Cow::Owned(records) => records.into(),
    };
    let count = batch.records_count().min(header.record_count) as usize;
    // A count is bounded by what it takes to hold it, before there is memory for it.
    let mut deltas = Vec::with_capacity(count.min(records.len()));
    let mut places = Vec::new();
    let mut payload = Vec::with_capacity(records.len() + 8 * deltas.capacity());
    for record in KafkaRecords::new(&batch, &records) {
        let record = record?;
        put_record(&batch, &record, &mut payload)?;
        deltas.push(record.offset_delta);
        let headers = record.headers();
        if headers.len() > 0 {
            places.resize(deltas.len() - 1, (0, 0));
            let at = headers.as_bytes().as_ptr().addr() - records.as_ptr().addr();
            places.push((at as u32, headers.len() as u32));
        }
    }
    decoded.record_count = deltas.len() as u32;
    decoded.payload = payload.into();
    decoded.kafka = Some(KafkaPart { deltas, records, headers: places }.into());
    Ok(decoded)
}

/// Leaves out of a chunk of KerA records those that compaction has removed: what is left keeps its ordinals, which are not dense
/// then either.
pub(super) fn leave_out_removed(chunk: &mut BatchChunk) -> Result<(), FormatError> {
    let (mut deltas, mut payload) = (Vec::new(), Vec::new());
    for (delta, record) in (0..).zip(Records::new(&chunk.payload)) {
        let record = record?;
        if !record.is_removed() {
            deltas.push(delta);
            payload.extend_from_slice(record.as_bytes());
        }
    }
    chunk.record_count = deltas.len() as u32;
    chunk.payload = payload.into();
    chunk.kafka = Some(KafkaPart { deltas, records: Bytes::new(), headers: Vec::new() }.into());
    Ok(())
}

/// A record as KerA writes it. Refused if its key is longer than KerA's can be.
fn put_record(batch: &KafkaBatchView<'_>, from: &KafkaRecord<'_>, out: &mut Vec<u8>) -> Result<(), FormatError> {
    let timestamp_ms = batch.timestamp_ms(from);
    let record = Record {
        keys: from.key.as_slice(),
        value: from.value,
        // -1 says that there is none.
        timestamp_ms: (timestamp_ms >= 0).then_some(timestamp_ms),
        ..Record::default()
    };
    record.check()?;
    record.encode(out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::GapPolicy;
    use super::super::batch::{Batch, Unpacked};
    use super::super::track::{Decoding, Piece, Track, decode};
    use super::*;
    use kera_format::chunk::{ChunkTarget, PayloadKind, seal_in_place};
    use kera_format::kafka_batch::{KAFKA_BATCH_HEADER_BYTES, put_varint};
    use kera_format::kafka_codec::KafkaCodec;
    use kera_format::{CHUNK_HEADER_BYTES, GroupId, LaneId, StreamletId};

    const CONTROL: u8 = 0x30;

    fn put(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
        put_varint(bytes.map_or(-1, |bytes| bytes.len() as i64), out);
        out.extend_from_slice(bytes.unwrap_or_default());
    }

    /// A record; `headers` is how many there are, named `h`.
    fn record(delta: u32, key: Option<&[u8]>, value: Option<&[u8]>, headers: u32) -> Vec<u8> {
        let mut fields = vec![0];
        put_varint(i64::from(delta) * 10, &mut fields);
        put_varint(delta.into(), &mut fields);
        put(key, &mut fields);
        put(value, &mut fields);
        put_varint(headers.into(), &mut fields);
        for n in 0..headers {
            put(Some(b"h"), &mut fields);
            put(Some(&[n as u8]), &mut fields);
        }
        let mut out = Vec::new();
        put_varint(fields.len() as i64, &mut out);
        [out, fields].concat()
    }

    /// A chunk with a batch of `offsets` offsets.
    fn chunk(base_ordinal: u64, offsets: u32, codec: KafkaCodec, attributes: u8, records: &[Vec<u8>]) -> Vec<u8> {
        let mut batch = vec![0; KAFKA_BATCH_HEADER_BYTES];
        batch.extend_from_slice(&codec.compress(&records.concat()));
        let length = batch.len() as u32 - 12;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        (batch[16], batch[22]) = (2, codec as u8 | attributes);
        batch[23..27].copy_from_slice(&(offsets - 1).to_be_bytes());
        batch[27..35].copy_from_slice(&1_000_i64.to_be_bytes());
        batch[57..61].copy_from_slice(&(records.len() as u32).to_be_bytes());
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(&batch);
        let (kind, target) = (PayloadKind::KafkaBatch, ChunkTarget::default());
        seal_in_place(&mut chunk, &target, kind, Compression::None, offsets, 1_000).unwrap();
        BrokerPart { group: GroupId::new(1, 1), base_ordinal, ..BrokerPart::default() }.stamp(&mut chunk);
        chunk
    }

    fn read(from: u64, chunks: &[Vec<u8>]) -> Result<(Batch, u64), String> {
        read_from(from, chunks, false)
    }

    fn read_from(from: u64, chunks: &[Vec<u8>], committed: bool) -> Result<(Batch, u64), String> {
        let mut track = Track::new(StreamletId(0), LaneId(0), Cursor::default(), from);
        let data = chunks.concat().into();
        let next = Cursor::default();
        let (end_of_group, holes, after_gone, credit) = (false, false, false, None);
        let mut piece = Piece { track: 0, data, next, end_of_group, committed, holes, after_gone, credit };
        let how = Decoding { verify: true, gaps: GapPolicy::Error, holes: false };
        let decoded = decode(&mut track, &mut piece, how);
        decoded.error.map_or(Ok((decoded.batch, track.delivered.1)), |error| Err(error.to_string()))
    }

    fn ordinals(batch: &Batch) -> Vec<u64> {
        batch.records().map(|record| record.ordinal).collect()
    }

    #[test]
    fn records_of_kafka_producers_are_read_with_keys_times_and_headers() {
        let codecs = [KafkaCodec::None, KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd];
        for codec in codecs {
            let records = [
                record(0, Some(b"key"), Some(b"first"), 0),
                record(1, None, Some(b"second"), 2),
                record(2, Some(b"key"), None, 0),
            ];
            let (batch, end) = read(40, &[chunk(40, 3, codec, 0, &records)]).unwrap();
            assert_eq!((batch.len(), batch.base_ordinal(), batch.end_ordinal(), end), (3, 40, 43, 43));
            let found: Vec<_> = batch
                .records()
                .map(|r| (r.view.key(), r.view.value(), r.view.timestamp_ms(), r.headers().len()))
                .collect();
            let expected = [
                (Some(&b"key"[..]), Some(&b"first"[..]), Some(1000), 0),
                (None, Some(b"second"), Some(1010), 2),
                (Some(b"key"), None, Some(1020), 0),
            ];
            assert_eq!(found, expected, "{}", codec.name());
            let mut one_by_one = Unpacked::new(batch);
            assert_eq!(one_by_one.next().unwrap().headers().len(), 0);
            let second = one_by_one.next().unwrap();
            assert_eq!(second.ordinal, 41);
            assert_eq!(second.headers().collect::<Vec<_>>(), [(&b"h"[..], Some(&[0_u8][..])), (b"h", Some(&[1]))]);
            assert_eq!(one_by_one.next().unwrap().headers().len(), 0);
        }
    }

    #[test]
    fn offsets_need_not_be_dense_and_a_start_between_them_is_found() {
        let records = [record(1, None, Some(b"a"), 0), record(4, None, Some(b"b"), 0)];
        let chunks = [chunk(10, 7, KafkaCodec::None, 0, &records), chunk(17, 2, KafkaCodec::None, 0, &records[..1])];
        assert_eq!(ordinals(&read(10, &chunks).unwrap().0), [11, 14, 18]);
        assert_eq!(ordinals(&read(11, &chunks).unwrap().0), [11, 14, 18]);
        for from in 12..15 {
            let (batch, end) = read(from, &chunks).unwrap();
            assert_eq!((ordinals(&batch), batch.base_ordinal(), batch.len(), end), (vec![14, 18], 14, 2, 19));
        }
        assert_eq!(ordinals(&read(15, &chunks).unwrap().0), [18]);
        let mut one_by_one = Unpacked::new(read(12, &chunks).unwrap().0);
        assert_eq!(one_by_one.position().map(|(_, ordinal)| ordinal), Some(14));
        assert_eq!(one_by_one.next().map(|record| record.ordinal), Some(14));
        assert_eq!(one_by_one.position().map(|(_, ordinal)| ordinal), Some(18));
        assert_eq!(ordinals(&one_by_one.rest()), [18]);
    }

    #[test]
    fn markers_have_no_records_and_are_passed() {
        let marker = record(0, Some(&[0, 0, 0, 1]), Some(&[0; 6]), 0);
        let value = record(0, None, Some(b"a"), 0);
        let chunks = [
            chunk(3, 1, KafkaCodec::None, CONTROL, std::slice::from_ref(&marker)),
            chunk(4, 1, KafkaCodec::None, 0, &[value]),
            chunk(5, 1, KafkaCodec::None, CONTROL, &[marker]),
        ];
        let (batch, end) = read(3, &chunks).unwrap();
        assert_eq!((ordinals(&batch), end), (vec![4], 6));
        let (batch, end) = read(3, &chunks[..1]).unwrap();
        assert_eq!((batch.is_empty(), end), (true, 4));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let good = record(0, None, Some(b"a"), 0);
        let refused = |chunk: Vec<u8>| read(0, &[chunk]).map(|_| ()).unwrap_err();
        let in_transaction = chunk(0, 1, KafkaCodec::None, 0x10, std::slice::from_ref(&good));
        let open = refused(in_transaction.clone());
        assert!(open.contains("transactional"), "{open}");
        assert_eq!(ordinals(&read_from(0, &[in_transaction], true).unwrap().0), [0]);
        let long = vec![b'k'; 70_000];
        let long = refused(chunk(0, 1, KafkaCodec::Zstd, 0, &[record(0, Some(&long), None, 0)]));
        assert!(long.contains("record.keys"), "{long}");
        let twice = refused(chunk(0, 2, KafkaCodec::None, 0, &[good.clone(), good]));
        assert!(twice.contains("offset_delta"), "{twice}");
    }
}
