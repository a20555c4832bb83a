//! Fetches of what is only on disk: a store by hand, which brings segments back when a test says so.

use std::collections::{HashMap, VecDeque};

use kera_format::SegmentId;
use kera_log::{Location, Segment, SegmentStore};
use parking_lot::Mutex;

use super::*;

#[derive(Default)]
struct Disk {
    closed: VecDeque<Arc<Segment>>,
    images: HashMap<SegmentId, Vec<u8>>,
    loads: VecDeque<SegmentId>,
}

#[derive(Default)]
struct ByHand(Mutex<Disk>);

impl SegmentStore for ByHand {
    fn closed(&self, segment: Arc<Segment>) {
        self.0.lock().closed.push_back(segment);
    }
    fn want_space(&self, _: u64) {}
    fn load(&self, id: SegmentId, _: Location) {
        self.0.lock().loads.push_back(id);
    }
    fn release(&self, _: SegmentId, _: Location) {}
}

impl ByHand {
    /// Writes all that is closed, and takes it out of memory.
    fn write_out(&self, log: &Log) {
        while let Some(segment) = { self.0.lock().closed.pop_front() } {
            let (id, image) = (segment.id(), segment.as_image().to_vec());
            let at = Location { disk: 0, container: 1, offset: 0, bytes: image.len() as u64 };
            self.0.lock().images.insert(id, image);
            drop(segment);
            log.persisted(id, at);
            assert!(log.evict(id));
        }
    }

    /// Brings back the segment that was asked for first.
    fn load_one(&self, log: &Log) {
        let (id, image) = {
            let mut disk = self.0.lock();
            let id = disk.loads.pop_front().expect("it was asked for");
            (id, disk.images[&id].clone())
        };
        let mut buffer = log.allocate_for_load(image.len() as u64).unwrap();
        buffer.as_mut_slice()[..image.len()].copy_from_slice(&image);
        log.loaded(id, buffer).unwrap();
    }
}

const PARTITIONS: i32 = 5;
const RECORD_BYTES: usize = 20_000;
/// Of which half is two batches.
const FETCH_BYTES: i32 = 64_000;

/// A client of a topic each of whose partitions has a batch that is only on disk.
fn evicted() -> (Client, Arc<Door>, Arc<ByHand>) {
    evicted_of(PARTITIONS)
}

fn evicted_of(partitions: i32) -> (Client, Arc<Door>, Arc<ByHand>) {
    let mut client = Client::new();
    let door = Arc::clone(&client.door.as_ref().unwrap().0);
    let store = Arc::new(ByHand::default());
    door.broker.log().set_store(Arc::clone(&store) as _);
    client.create("t", partitions);
    for partition in 0..partitions {
        assert_eq!(client.produce("t", partition, &batch(&[&[7; RECORD_BYTES]], (-1, -1, -1))).0, 0);
    }
    door.broker.log().close_idle(i64::MAX, 0);
    store.write_out(door.broker.log());
    (client, door, store)
}

fn fetch_all(max_wait_ms: i32) -> Vec<u8> {
    fetch_of(PARTITIONS, FETCH_BYTES, max_wait_ms)
}

fn fetch_of(partitions: i32, max_bytes: i32, max_wait_ms: i32) -> Vec<u8> {
    let mut request = fetch_request("t", 0, 0, max_wait_ms).with_max_bytes(max_bytes);
    let one = request.topics[0].partitions[0].clone();
    request.topics[0].partitions = (0..partitions).map(|partition| one.clone().with_partition(partition)).collect();
    frame(ApiKey::Fetch, 4, 1, &request)
}

impl Client {
    /// The answer after a segment has come, if there is one.
    fn after(&mut self) -> Option<Vec<u8>> {
        assert!(self.waker.take(), "a segment that has come wakes who waits for it");
        self.session.as_mut().unwrap().on_wake(&mut self.out);
        self.answer()
    }
}

#[test]
fn a_fetch_is_not_answered_with_the_first_of_many_segments_that_come_from_disk() {
    let (mut client, door, store) = evicted();
    assert_eq!(client.frame(&fetch_all(60_000)), Flow::Done);
    assert!(client.answer().is_none());
    assert_eq!(store.0.lock().loads.len(), 4, "no more than the answer may have is brought back for it");
    store.load_one(door.broker.log());
    assert!(client.after().is_none(), "three more are on their way");
    store.load_one(door.broker.log());
    let answer = client.after().expect("that is half of what it may have");
    assert!((2 * RECORD_BYTES..3 * RECORD_BYTES).contains(&answer.len()), "{}", answer.len());
    assert_eq!(door.loads_awaited.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn what_is_all_there_is_is_not_waited_beyond() {
    let (mut client, door, store) = evicted();
    assert_eq!(client.frame(&frame(ApiKey::Fetch, 4, 1, &fetch_request("t", 3, 0, 60_000))), Flow::Done);
    assert!(client.answer().is_none());
    store.load_one(door.broker.log());
    assert!(client.after().is_some_and(|answer| answer.len() > RECORD_BYTES));
}

#[test]
fn a_fetch_whose_time_is_up_takes_what_has_come() {
    let (mut client, door, store) = evicted();
    assert_eq!(client.frame(&fetch_all(0)), Flow::Done);
    let empty = client.answer().expect("it has no time");
    store.load_one(door.broker.log());
    assert_eq!(client.frame(&fetch_all(0)), Flow::Done);
    let answer = client.answer().expect("it has no time");
    assert!(empty.len() < 1000 && (RECORD_BYTES..2 * RECORD_BYTES).contains(&answer.len()));
}

#[test]
fn a_fetch_takes_what_comes_while_others_wait_for_much() {
    let (mut client, door, store) = evicted();
    let awaited = door.broker.log().arena().bytes() as usize;
    door.loads_awaited.fetch_add(awaited, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(client.frame(&fetch_all(60_000)), Flow::Done);
    store.load_one(door.broker.log());
    assert!(client.after().is_some_and(|answer| (RECORD_BYTES..2 * RECORD_BYTES).contains(&answer.len())));
    assert_eq!(door.loads_awaited.load(std::sync::atomic::Ordering::Relaxed), awaited);
}

#[test]
fn what_comes_for_a_fetch_takes_no_more_memory_than_its_share() {
    let (mut client, door, store) = evicted_of(24);
    assert_eq!(client.frame(&fetch_of(24, i32::MAX, 60_000)), Flow::Done);
    // It may have all of them, but each takes a block of 64 KiB.
    let share = door.broker.log().arena().bytes() / 16;
    assert_eq!(store.0.lock().loads.len() as u64, share / (64 << 10));
}

#[test]
fn nothing_more_is_brought_back_for_an_answer_that_is_about_full() {
    let (mut client, _door, store) = evicted();
    for (partition, bytes) in [(0, RECORD_BYTES), (1, 2 * RECORD_BYTES)] {
        assert_eq!(client.produce("t", partition, &batch(&[&vec![7; bytes]], (-1, -1, -1))).0, 0);
    }
    // The second does not fit behind the first.
    for (max_bytes, loads) in [(30_000, 0), (50_000, 3)] {
        let mut request = fetch_request("t", 0, 1, 60_000).with_max_bytes(max_bytes);
        let one = request.topics[0].partitions[0].clone();
        let offset = |partition| if partition < 2 { 1 } else { 0 };
        let partitions = (0..PARTITIONS).map(|at| one.clone().with_partition(at).with_fetch_offset(offset(at)));
        request.topics[0].partitions = partitions.collect();
        assert_eq!(client.frame(&frame(ApiKey::Fetch, 4, 1, &request)), Flow::Done);
        assert_eq!(store.0.lock().loads.len(), loads, "{max_bytes}");
        assert_eq!(client.answer().is_some(), loads == 0, "half of it is waited for");
    }
}
