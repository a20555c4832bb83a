//! Record batches as a client makes them, right and wrong, and in words.

use std::collections::BTreeMap;
use std::fmt::Write;

use kafka_protocol::messages::{ProduceRequest, produce_request};
use kera_format::checksum::crc32c;
use kera_format::kafka_batch::APPEND_TIME;
use kera_format::kafka_codec::KafkaCodec;
use uuid::Uuid;

const HEADER_BYTES: usize = 61;
const TRANSACTIONAL: i16 = 16;
/// More than the records of a batch of the oracle take.
const RECORDS_BYTES_MAX: usize = 1 << 16;
/// Times from here on are not those of the oracle's records.
pub(crate) const NOW_MS: i64 = 1_750_000_000_000;

/// What a batch is to be like: `count` records from `at_ms` on, a millisecond each.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spec {
    pub(crate) count: u8,
    pub(crate) at_ms: i64,
    /// The producer's id, epoch and first sequence.
    pub(crate) from: (i64, i16, i32),
    pub(crate) transactional: bool,
    pub(crate) codec: KafkaCodec,
    /// A record that has no key, and one that has no value.
    pub(crate) keyless: Option<u8>,
    pub(crate) tombstone: Option<u8>,
}

/// A batch as a client makes it.
pub(crate) fn batch(spec: &Spec) -> Vec<u8> {
    let mut records = Vec::new();
    for n in 0..spec.count {
        // Attributes, deltas of time and offset, a key of one byte, a value of one byte, no headers. Numbers are zigzag: 1 is -1.
        let mut record = vec![0, n * 2, n * 2];
        record.extend_from_slice(if spec.keyless == Some(n) { &[1] } else { b"\x02k" });
        match spec.tombstone {
            Some(of) if of == n => record.push(1),
            _ => record.extend_from_slice(&[2, b'a' + n]),
        }
        record.push(0);
        records.push(record.len() as u8 * 2);
        records.append(&mut record);
    }
    let mut batch = vec![0; HEADER_BYTES];
    batch.extend_from_slice(&spec.codec.compress(&records));
    let length = batch.len() as i32 - 12;
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(8, &length.to_be_bytes());
    put(12, &(-1_i32).to_be_bytes());
    put(16, &[2]);
    put(21, &(spec.codec as i16 | if spec.transactional { TRANSACTIONAL } else { 0 }).to_be_bytes());
    put(23, &(i32::from(spec.count) - 1).to_be_bytes());
    put(27, &spec.at_ms.to_be_bytes());
    put(35, &(spec.at_ms + i64::from(spec.count) - 1).to_be_bytes());
    put(43, &spec.from.0.to_be_bytes());
    put(51, &spec.from.1.to_be_bytes());
    put(53, &spec.from.2.to_be_bytes());
    put(57, &i32::from(spec.count).to_be_bytes());
    sign(&mut batch);
    batch
}

/// Makes a batch's checksum that of its bytes.
pub(crate) fn sign(batch: &mut [u8]) {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller knows its length")
}

/// The offset behind the last whole batch; 0 if there is none.
pub(crate) fn end(mut records: &[u8]) -> i64 {
    let mut end = 0;
    while records.len() >= HEADER_BYTES {
        let length = 12 + i32::from_be_bytes(be(records, 8)).max(0) as usize;
        let Some((batch, rest)) = records.split_at_checked(length) else { break };
        records = rest;
        end = i64::from_be_bytes(be(batch, 0)) + i64::from(i32::from_be_bytes(be(batch, 23))) + 1;
    }
    end
}

/// Whole batches in words, `name` for each producer's id, epochs of leaders from `first_epoch` on. A piece at the end, as brokers may send one, is passed over.
pub(crate) fn words(mut records: &[u8], first_epoch: i32, mut name: impl FnMut(i64) -> String) -> String {
    let mut out = String::new();
    while records.len() >= HEADER_BYTES {
        let length = 12 + i32::from_be_bytes(be(records, 8)).max(0) as usize;
        let Some((batch, rest)) = records.split_at_checked(length) else { break };
        records = rest;
        let is_control = batch[22] & 32 != 0;
        let producer = name(i64::from_be_bytes(be(batch, 43)));
        let crc = u32::from_be_bytes(be(batch, 17)) == crc32c(&batch[21..]);
        // Whether a marker has a time of append is nobody's business: it is never shown.
        let attributes = i16::from_be_bytes(be(batch, 21)) & if is_control { !APPEND_TIME } else { -1 };
        let _ = write!(
            out,
            "({} epoch {} magic {} crc {crc} attributes {} delta {} producer {producer}/{} sequence {} records {}",
            i64::from_be_bytes(be(batch, 0)),
            i32::from_be_bytes(be(batch, 12)) - first_epoch,
            batch[16],
            attributes,
            i32::from_be_bytes(be(batch, 23)),
            i16::from_be_bytes(be(batch, 51)),
            i32::from_be_bytes(be(batch, 53)),
            i32::from_be_bytes(be(batch, 57)),
        );
        if is_control {
            // The time of a marker is that of its end, and its value names a coordinator: the key says how it ended.
            let _ = write!(out, " marker {})", batch.get(HEADER_BYTES + 8).copied().unwrap_or(9));
        } else {
            // Without their compression: with a topic's own the bytes are those of the broker's library.
            let codec = KafkaCodec::from_attributes(attributes).unwrap_or_default();
            let body = codec.decompress(&batch[HEADER_BYTES..], RECORDS_BYTES_MAX).map_or(0, |body| crc32c(&body));
            let time = |at| match i64::from_be_bytes(be(batch, at)) {
                NOW_MS.. => "of day".to_owned(),
                time => time.to_string(),
            };
            let _ = write!(out, " times {} {} body {body:08x})", time(27), time(35));
        }
    }
    out
}

/// Counts on the sequences of a producer for those batches that were taken.
pub(crate) fn count(
    asked: &ProduceRequest,
    sequences: &mut BTreeMap<(String, i32), (i32, i32)>,
    producer: i64,
    topics: &BTreeMap<String, Uuid>,
    taken: impl Fn(&produce_request::TopicProduceData, i32) -> bool,
) {
    for topic in &asked.topic_data {
        let by_id = || topics.iter().find(|(_, id)| **id == topic.topic_id).map(|(name, _)| name.clone());
        let name = if topic.topic_id.is_nil() { Some(topic.name.to_string()) } else { by_id() };
        for partition in topic.partition_data.iter().filter(|partition| taken(topic, partition.index)) {
            let Some(batch) = partition.records.as_ref().filter(|batch| batch.len() >= HEADER_BYTES) else { continue };
            if i64::from_be_bytes(be(batch, 43)) == producer {
                let count = i32::from_be_bytes(be(batch, 57));
                let next = i32::from_be_bytes(be(batch, 53)) + count;
                let known = sequences.entry((name.clone().unwrap_or_default(), partition.index)).or_default();
                *known = (next, count).max(*known);
            }
        }
    }
}
