//! Batches that are not kept as they come: another compression, or the time of append, because the topic says so.

use std::borrow::Cow;

use kera_format::StreamOptions;
use kera_format::Timestamps;
use kera_format::kafka_batch::{self, APPEND_TIME, KAFKA_BATCH_HEADER_BYTES, KafkaRecords};
use kera_format::limits::CHUNK_UNCOMPRESSED_BYTES_MAX;

use crate::batch::{Refused, UNREADABLE, verified};

/// The batch as the stream keeps it. The producer's checksum is verified first: the one that is written anew would hide that
/// something has changed on the way. Records are only opened if their compression changes, and then each is read once, so
/// that what cannot be read is not kept in another form.
///
/// # Errors
/// CORRUPT_MESSAGE and INVALID_RECORD.
pub(crate) fn as_kept<'a>(batch: &'a [u8], options: &StreamOptions, now_ms: i64) -> Result<Cow<'a, [u8]>, Refused> {
    let view = verified(batch)?;
    let codec = options.batch_compression.codec().filter(|codec| *codec != view.codec());
    let stamp = options.timestamps == Timestamps::Append;
    if codec.is_none() && !stamp {
        return Ok(Cow::Borrowed(batch));
    }
    let mut kept = batch.to_vec();
    if let Some(codec) = codec {
        let records = view.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX).map_err(|_| UNREADABLE)?;
        let whole = KafkaRecords::new(&view, &records).try_fold(0, |count, record| record.map(|_| count + 1));
        if whole != Ok(view.records_count()) {
            return Err(UNREADABLE);
        }
        kept.truncate(KAFKA_BATCH_HEADER_BYTES);
        kept.extend_from_slice(&codec.compress(&records));
        set_attributes(&mut kept, |attributes| attributes & !7 | codec as i16);
    }
    if stamp {
        set_attributes(&mut kept, |attributes| attributes | APPEND_TIME);
        kept[35..43].copy_from_slice(&now_ms.to_be_bytes());
    }
    kafka_batch::seal(&mut kept);
    Ok(Cow::Owned(kept))
}

fn set_attributes(batch: &mut [u8], change: impl FnOnce(i16) -> i16) {
    let attributes = change(i16::from_be_bytes([batch[21], batch[22]]));
    batch[21..23].copy_from_slice(&attributes.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::batch;
    use kafka_protocol::ResponseError;
    use kera_format::BatchCompression;
    use kera_format::kafka_batch::KafkaBatchView;
    use kera_format::kafka_codec::KafkaCodec;

    fn options(batch_compression: BatchCompression, timestamps: Timestamps) -> StreamOptions {
        StreamOptions { batch_compression, timestamps, ..StreamOptions::default() }
    }

    fn values(batch: &[u8]) -> Vec<(Vec<u8>, i64)> {
        let view = KafkaBatchView::parse(batch).unwrap();
        view.verify().unwrap();
        let records = view.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX).unwrap();
        let of = |record: Result<kafka_batch::KafkaRecord<'_>, _>| {
            let record = record.unwrap();
            (record.value.unwrap().to_vec(), view.timestamp_ms(&record))
        };
        KafkaRecords::new(&view, &records).map(of).collect()
    }

    #[test]
    fn every_compression_becomes_every_other() {
        let plain = batch(&[b"one", b"two", b"three"], (7, 0, 5));
        let kinds = [
            (BatchCompression::None, KafkaCodec::None),
            (BatchCompression::Gzip, KafkaCodec::Gzip),
            (BatchCompression::Snappy, KafkaCodec::Snappy),
            (BatchCompression::Lz4, KafkaCodec::Lz4),
            (BatchCompression::Zstd, KafkaCodec::Zstd),
        ];
        for (from, _) in kinds {
            let before = as_kept(&plain, &options(from, Timestamps::Create), 1).unwrap();
            for (to, codec) in kinds {
                let after = as_kept(&before, &options(to, Timestamps::Create), 1).unwrap();
                assert_eq!(KafkaBatchView::parse(&after).unwrap().codec(), codec);
                assert_eq!(values(&after), values(&plain));
                // The producer, its epoch and its sequence stay.
                assert_eq!(after[43..61], plain[43..61]);
            }
        }
        let same = as_kept(&plain, &options(BatchCompression::None, Timestamps::Create), 1).unwrap();
        assert!(matches!(same, Cow::Borrowed(_)), "what is right already is not copied");
    }

    #[test]
    fn the_time_of_append_is_the_time_of_all_records() {
        let plain = batch(&[b"one", b"two"], (7, 0, 5));
        let kept = as_kept(&plain, &options(BatchCompression::Producer, Timestamps::Append), 4_711).unwrap();
        let times: Vec<i64> = values(&kept).into_iter().map(|(_, time)| time).collect();
        assert_eq!(times, [4_711, 4_711]);
        assert!(values(&plain).iter().all(|(_, time)| *time != 4_711));
    }

    #[test]
    fn what_has_changed_on_the_way_or_cannot_be_read_is_refused() {
        let mut changed = batch(&[b"one", b"two"], (7, 0, 5));
        let end = changed.len() - 1;
        changed[end] ^= 1;
        let all = options(BatchCompression::Zstd, Timestamps::Append);
        assert_eq!(as_kept(&changed, &all, 1).unwrap_err().0, ResponseError::CorruptMessage);
        let mut nonsense = batch(&[b"one", b"two"], (7, 0, 5));
        nonsense.truncate(KAFKA_BATCH_HEADER_BYTES);
        nonsense.extend_from_slice(&[0x7f; 40]);
        kafka_batch::seal(&mut nonsense);
        assert_eq!(as_kept(&nonsense, &all, 1).unwrap_err().0, ResponseError::InvalidRecord);
    }
}
