//! Offsets by the times of records.

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};

use super::transactions::{NOW_MS, World, topic};
use super::*;

const LARGEST: i64 = -3;
const NONE: (i64, i64) = (-1, -1);

/// A batch of one record with a time.
fn batch_of(timestamp_ms: i64, bytes: usize) -> Vec<u8> {
    let mut batch = batch(&[&vec![7; bytes]], (-1, -1, -1));
    batch[27..35].copy_from_slice(&timestamp_ms.to_be_bytes());
    batch[35..43].copy_from_slice(&timestamp_ms.to_be_bytes());
    kafka_batch::seal(&mut batch);
    batch
}

impl World {
    fn put_at(&mut self, timestamp_ms: i64, bytes: usize) {
        let request = World::produce_request(None, "t", 0, batch_of(timestamp_ms, bytes));
        assert_eq!(self.call(9, &request).responses[0].partition_responses[0].error_code, 0);
    }

    /// The time and the offset of the first record with a time or later.
    fn found_at(&mut self, time: i64) -> (i64, i64) {
        let one = ListOffsetsPartition::default().with_timestamp(time);
        let one = ListOffsetsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        let answer = self.call(7, &ListOffsetsRequest::default().with_topics(vec![one]));
        let one = &answer.topics[0].partitions[0];
        assert_eq!(one.error_code, 0);
        (one.timestamp, one.offset)
    }
}

/// Whoever writes may have a clock that is ahead of the node's.
#[test]
fn a_record_is_found_by_its_own_time_whenever_it_was_appended() {
    let mut world = World::new();
    assert_eq!((world.found_at(0), world.found_at(LARGEST)), (NONE, NONE));
    world.put_at(NOW_MS + 8_000, 10);
    world.clock.advance_ms(1_000);
    world.put_at(NOW_MS + 1_000, 10);
    world.put_at(NOW_MS + 8_000, 10);
    assert_eq!(world.found_at(NOW_MS + 4_000), (NOW_MS + 8_000, 0));
    assert_eq!(world.found_at(NOW_MS + 500), (NOW_MS + 8_000, 0));
    assert_eq!(world.found_at(NOW_MS + 8_001), NONE);
    assert_eq!(world.found_at(LARGEST), (NOW_MS + 8_000, 0), "the first of those with the largest");
}

/// A batch of records with these times, whose header does not say the largest, as Sarama's before 1.45.1.
fn without_newest(times: &[i64], codec: KafkaCodec) -> Vec<u8> {
    let mut records = Vec::new();
    for (at, time) in times.iter().enumerate() {
        let mut record = vec![0];
        kafka_batch::put_varint(time - times[0], &mut record);
        kafka_batch::put_varint(at as i64, &mut record);
        // No key, an empty value, no headers.
        [-1, 0, 0].iter().for_each(|length| kafka_batch::put_varint(*length, &mut record));
        kafka_batch::put_varint(record.len() as i64, &mut records);
        records.extend_from_slice(&record);
    }
    let mut batch = batch(&[b""], (-1, -1, -1));
    batch.truncate(BATCH_HEADER_BYTES);
    batch.extend_from_slice(&codec.compress(&records));
    let count = times.len() as i32;
    batch[22] |= codec as u8;
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[27..35].copy_from_slice(&times[0].to_be_bytes());
    batch[35..43].copy_from_slice(&(-1_i64).to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    kafka_batch::seal(&mut batch);
    batch
}

#[test]
fn records_whose_batch_does_not_say_their_times_are_found_by_them() {
    let mut world = World::new();
    let mut first = 0;
    for codec in [KafkaCodec::None, KafkaCodec::Zstd] {
        let later = NOW_MS + 10_000 + first * 10_000;
        let batch = without_newest(&[later, later + 3_000, later + 1_000], codec);
        let request = World::produce_request(None, "t", 0, batch.clone());
        assert_eq!(world.call(9, &request).responses[0].partition_responses[0].error_code, 0);
        // Behind it another one, which does say it.
        world.put_at(NOW_MS, 10);
        assert_eq!(world.found_at(later - 1), (later, first));
        assert_eq!(world.found_at(later + 2_000), (later + 3_000, first + 1));
        assert_eq!(world.found_at(later + 3_001), NONE);
        assert_eq!(world.found_at(LARGEST), (later + 3_000, first + 1));
        // It is kept as it came.
        let fetched = world.call(11, &fetch_request("t", 0, first, 0));
        let records = fetched.responses[0].partitions[0].records.clone().expect("records");
        assert_eq!(records[16..batch.len()], batch[16..]);
        first += 4;
    }
}

/// As in a topic that was copied here from elsewhere, with the times that its records have had there.
#[test]
fn times_are_found_however_much_was_appended_at_once() {
    let mut world = World::new();
    let count = 512;
    (1..=count).for_each(|time| world.put_at(time, 16 << 10));
    for time in [1, 2, 300, 500, count] {
        assert_eq!(world.found_at(time), (time, time - 1));
    }
    assert_eq!((world.found_at(count + 1), world.found_at(NOW_MS)), (NONE, NONE));
    assert_eq!(world.found_at(LARGEST), (count, count - 1));
}
