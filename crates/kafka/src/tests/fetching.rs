//! How much a fetch waits for.

use super::transactions::{World, topic};
use super::*;

impl World {
    /// Appends one batch of so many bytes, more or less.
    fn put(&mut self, name: &str, bytes: usize) {
        let request = World::produce_request(None, name, 0, batch(&[&vec![7; bytes]], (-1, -1, -1)));
        assert_eq!(self.call(9, &request).responses[0].partition_responses[0].error_code, 0);
    }
}

/// A fetch of the start of "t", which waits for `least` bytes and may have `most`.
fn fetch_of(least: i32, most: i32, of_partition: i32) -> FetchRequest {
    let partition = fetch_request::FetchPartition::default().with_partition_max_bytes(of_partition);
    let one = fetch_request::FetchTopic::default().with_topic(topic("t")).with_partitions(vec![partition]);
    FetchRequest::default().with_max_wait_ms(60_000).with_min_bytes(least).with_max_bytes(most).with_topics(vec![one])
}

/// Time does not pass here: what is not answered at once is not answered.
#[test]
fn a_reader_that_lags_does_not_wait_for_what_no_answer_can_hold() {
    let mut world = World::new();
    (0..4 << 6).for_each(|_| world.put("t", 16 << 10));
    let mib = 1 << 20;
    // Whole batches are a little less than what it asks for; and more than an answer may have cannot be waited for.
    for (least, most, of_partition) in [(mib, 50 * mib, mib), (2 * mib, mib, mib), (2 * mib, mib, 2 * mib)] {
        world.send(11, &fetch_of(least, most, of_partition));
        let answer = world.answer::<FetchRequest>(11).expect("it is answered at once");
        let records = answer.responses[0].partitions[0].records.as_ref().map_or(0, |records| records.len());
        assert!(records > (15 << 16) && records <= 1 << 20, "{records}");
    }
}

#[test]
fn a_reader_that_has_found_something_waits_for_more_at_the_same_place() {
    let mut world = World::new();
    world.put("t", 1_000);
    world.send(11, &fetch_of(10_000, 1 << 20, 1 << 20));
    assert!(world.answer::<FetchRequest>(11).is_none(), "it is too little");
    // Somebody else produces.
    let door = world.running().door.clone();
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    let mut other = KafkaSessions(door).open(peer, SessionWaker::detached());
    let mut out = Outbox::new(1 << 20);
    let produce = produce_frame("t", 0, -1, &batch(&[&vec![7; 20_000]], (-1, -1, -1)));
    assert_eq!(other.on_frame(&FrameHeader::default(), &produce, &mut out), Flow::Done);
    world.sink.release();
    let answer = world.answer::<FetchRequest>(11).expect("there is enough");
    assert!(answer.responses[0].partitions[0].records.as_ref().is_some_and(|records| records.len() > 20_000));
}
