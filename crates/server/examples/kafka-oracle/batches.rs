//! Record batches as a client makes them, right and wrong, and in words.

use std::collections::BTreeMap;
use std::fmt::Write;

use kafka_protocol::messages::ProduceRequest;
use kera_format::checksum::crc32c;
use uuid::Uuid;

const HEADER_BYTES: usize = 61;
const TRANSACTIONAL: i16 = 16;

/// A batch of `count` records from `at_ms` on, a millisecond each, with the producer's id, epoch and first sequence.
pub(crate) fn batch(count: u8, at_ms: i64, producer: (i64, i16, i32), transactional: bool) -> Vec<u8> {
    let mut batch = vec![0; HEADER_BYTES];
    for n in 0..count {
        // Length, attributes, deltas of time and offset, a key of one byte, a value of one byte, no headers.
        batch.extend_from_slice(&[16, 0, n * 2, n * 2, 2, b'k', 2, b'a' + n, 0]);
    }
    let length = batch.len() as i32 - 12;
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(8, &length.to_be_bytes());
    put(12, &(-1_i32).to_be_bytes());
    put(16, &[2]);
    put(21, &(if transactional { TRANSACTIONAL } else { 0 }).to_be_bytes());
    put(23, &(i32::from(count) - 1).to_be_bytes());
    put(27, &at_ms.to_be_bytes());
    put(35, &(at_ms + i64::from(count) - 1).to_be_bytes());
    put(43, &producer.0.to_be_bytes());
    put(51, &producer.1.to_be_bytes());
    put(53, &producer.2.to_be_bytes());
    put(57, &i32::from(count).to_be_bytes());
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

/// Whole batches in words, `name` for each producer's id. A piece at the end, as brokers may send one, is passed over.
pub(crate) fn words(mut records: &[u8], mut name: impl FnMut(i64) -> String) -> String {
    let mut out = String::new();
    while records.len() >= HEADER_BYTES {
        let length = 12 + i32::from_be_bytes(be(records, 8)).max(0) as usize;
        let Some((batch, rest)) = records.split_at_checked(length) else { break };
        records = rest;
        let is_control = batch[22] & 32 != 0;
        let producer = name(i64::from_be_bytes(be(batch, 43)));
        let crc = u32::from_be_bytes(be(batch, 17)) == crc32c(&batch[21..]);
        let _ = write!(
            out,
            "({} epoch {} magic {} crc {crc} attributes {} delta {} producer {producer}/{} sequence {} records {}",
            i64::from_be_bytes(be(batch, 0)),
            i32::from_be_bytes(be(batch, 12)),
            batch[16],
            i16::from_be_bytes(be(batch, 21)),
            i32::from_be_bytes(be(batch, 23)),
            i16::from_be_bytes(be(batch, 51)),
            i32::from_be_bytes(be(batch, 53)),
            i32::from_be_bytes(be(batch, 57)),
        );
        if is_control {
            // The time of a marker is that of its end, and its value names a coordinator: the key says how it ended.
            let _ = write!(out, " marker {})", batch.get(HEADER_BYTES + 8).copied().unwrap_or(9));
        } else {
            let body = crc32c(&batch[HEADER_BYTES..]);
            let times = [i64::from_be_bytes(be(batch, 27)), i64::from_be_bytes(be(batch, 35))];
            let _ = write!(out, " times {times:?} body {body:08x})");
        }
    }
    out
}

/// Counts on the sequences of a producer whose batches were taken.
pub(crate) fn count(
    asked: &ProduceRequest,
    sequences: &mut BTreeMap<(String, i32), i32>,
    producer: i64,
    topics: &BTreeMap<String, Uuid>,
) {
    for topic in &asked.topic_data {
        let by_id = || topics.iter().find(|(_, id)| **id == topic.topic_id).map(|(name, _)| name.clone());
        let name = if topic.topic_id.is_nil() { Some(topic.name.to_string()) } else { by_id() };
        for partition in &topic.partition_data {
            let Some(batch) = partition.records.as_ref().filter(|batch| batch.len() >= HEADER_BYTES) else { continue };
            if i64::from_be_bytes(be(batch, 43)) == producer {
                let next = i32::from_be_bytes(be(batch, 53)) + i32::from_be_bytes(be(batch, 57));
                let known = sequences.entry((name.clone().unwrap_or_default(), partition.index)).or_default();
                *known = next.max(*known);
            }
        }
    }
}
