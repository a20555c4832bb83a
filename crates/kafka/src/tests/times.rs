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
