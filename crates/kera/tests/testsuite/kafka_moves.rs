//! Kafka clients of partitions that move between three nodes in three processes: what was written before a move stays where it was, and is
//! read at the present leader all the same, by its offsets, times and epochs, and with the transactions that are in it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::messages::*;
use kafka_protocol::records::{Record, RecordBatchDecoder};

use crate::common::kafka::{Kafka, Producer, Three, name, produce_request, record};
use crate::common::{PATIENCE, eventually};

const TOPIC: &str = "t";
const OUT_OF_RANGE: i16 = 1;
const EARLIEST: i64 = -2;
const LARGEST_TIME: i64 = -3;

/// An idempotent producer of numbers into one partition.
struct Writer {
    producer: (i64, i16),
    partition: i32,
    next: i32,
}

/// A record as it is read: offset, number, timestamp, the leader's epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Read {
    offset: i64,
    number: i32,
    timestamp: i64,
    epoch: i32,
}

impl Writer {
    fn new(three: &Three, partition: i32) -> Writer {
        let asked = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = three.until(4, &asked, || 0, |answer| answer.error_code);
        assert!(answer.error_code == 0 && answer.producer_id.0 > 0, "{answer:?}");
        Writer { producer: (answer.producer_id.0, answer.producer_epoch), partition, next: 0 }
    }

    /// Writes so many numbers in one batch, of which the first counts the records before.
    fn write(&mut self, three: &Three, count: i32) {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_millis() as i64;
        let record = |number: i32| {
            let value = bytes::Bytes::from(format!("{number} {}", "x".repeat(500)));
            record(self.producer, false, (i64::from(number - self.next), number), now_ms, value)
        };
        let records: Vec<Record> = (self.next..self.next + count).map(record).collect();
        let asked = produce_request(None, TOPIC, self.partition, &records);
        let code = |answer: &ProduceResponse| answer.responses[0].partition_responses[0].error_code;
        let answer = three.until(9, &asked, || three.leader(TOPIC, self.partition), code);
        assert!([0, 46].contains(&code(&answer)), "{answer:?}");
        self.next += count;
    }
}

fn fetch_of(partitions: &[(i32, i64)]) -> FetchRequest {
    let of = |(partition, offset): &(i32, i64)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(256 << 10)
            .with_log_start_offset(-1)
    };
    let topic = FetchTopic::default().with_topic(name(TOPIC)).with_partitions(partitions.iter().map(of).collect());
    FetchRequest::default()
        .with_max_bytes(1 << 20)
        .with_min_bytes(1)
        .with_max_wait_ms(500)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn records_of(data: Option<bytes::Bytes>, from: i64) -> Vec<Read> {
    let sets = RecordBatchDecoder::decode_all(&mut data.unwrap_or_default()).expect("batches");
    let records = sets.into_iter().flat_map(|set| set.records).filter(|record| record.offset >= from);
    let read = |record: Record| {
        let value = String::from_utf8(record.value.unwrap_or_default().to_vec()).expect("words");
        let number = value.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        Read { offset: record.offset, number, timestamp: record.timestamp, epoch: record.partition_leader_epoch }
    };
    records.map(read).collect()
}

/// Reads a partition from an offset on, up to another one.
fn read(three: &Three, partition: i32, from: i64, to: i64) -> Vec<Read> {
    let (mut at, mut all, started) = (from, Vec::new(), Instant::now());
    while at < to {
        let leader = || three.leader(TOPIC, partition);
        let code = |answer: &FetchResponse| answer.responses[0].partitions[0].error_code;
        let answer = three.until(11, &fetch_of(&[(partition, at)]), leader, code);
        let one = &answer.responses[0].partitions[0];
        assert_eq!(one.error_code, 0, "at {at} of {to}");
        let mut records = records_of(one.records.clone(), at);
        records.retain(|record| record.offset < to);
        at = records.last().map_or(at, |last| last.offset + 1);
        all.extend(records);
        assert!(started.elapsed() < PATIENCE, "nothing comes at {at} of {to}");
    }
    all
}

/// What must be so of a partition of numbers from 0 on.
fn check(read: &[Read], from: i64, to: i64) {
    assert_eq!(read.iter().map(|record| record.offset).collect::<Vec<_>>(), (from..to).collect::<Vec<_>>());
    let misplaced = read.iter().find(|record| i64::from(record.number) != record.offset);
    assert_eq!(misplaced, None, "numbers are where they were written");
    assert!(read.is_sorted_by_key(|record| record.epoch));
}

fn listed(three: &Three, partition: i32, timestamp: i64) -> (i16, i64, i32) {
    let of = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let of = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![of]);
    let asked = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![of]);
    let code = |answer: &ListOffsetsResponse| answer.topics[0].partitions[0].error_code;
    let answer = three.until(7, &asked, || three.leader(TOPIC, partition), code);
    let one = &answer.topics[0].partitions[0];
    (one.error_code, one.offset, one.leader_epoch)
}

fn end_of_epoch(three: &Three, partition: i32, epoch: i32) -> (i32, i64) {
    let of = OffsetForLeaderPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(-1)
        .with_leader_epoch(epoch);
    let of = OffsetForLeaderTopic::default().with_topic(name(TOPIC)).with_partitions(vec![of]);
    let asked = OffsetForLeaderEpochRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![of]);
    let code = |answer: &OffsetForLeaderEpochResponse| answer.topics[0].partitions[0].error_code;
    let answer = three.until(3, &asked, || three.leader(TOPIC, partition), code);
    let one = &answer.topics[0].partitions[0];
    (one.leader_epoch, one.end_offset)
}

fn delete_to(three: &Three, partition: i32, offset: i64) -> (i16, i64) {
    let of = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
    let of = DeleteRecordsTopic::default().with_name(name(TOPIC)).with_partitions(vec![of]);
    let asked = DeleteRecordsRequest::default().with_topics(vec![of]).with_timeout_ms(30_000);
    let code = |answer: &DeleteRecordsResponse| answer.topics[0].partitions[0].error_code;
    let answer = three.until(1, &asked, || three.leader(TOPIC, partition), code);
    (code(&answer), answer.topics[0].partitions[0].low_watermark)
}

/// Moves a partition, and waits until all nodes know.
fn move_to(three: &Three, partition: i32, node: usize) {
    three.node(three.running()[0]).ok(&format!("streamlet move {TOPIC}/{partition} --to {}", node + 1));
    eventually("it is led there", || three.leader(TOPIC, partition) == node);
}

/// Asks any node that a partition be at nodes, from 1, of which the first leads. The error's code.
fn reassign(three: &Three, (topic, partition): (&str, i32), nodes: Option<&[i32]>) -> i16 {
    reassign_all(three, topic, &[(partition, nodes)])[0]
}

/// The same for several partitions of a topic.
fn reassign_all(three: &Three, topic: &str, wanted: &[(i32, Option<&[i32]>)]) -> Vec<i16> {
    let of = |(partition, nodes): &(i32, Option<&[i32]>)| {
        let nodes = nodes.map(|nodes| nodes.iter().map(|node| BrokerId(*node)).collect());
        ReassignablePartition::default().with_partition_index(*partition).with_replicas(nodes)
    };
    let partitions = wanted.iter().map(of).collect();
    let of = ReassignableTopic::default().with_name(name(topic)).with_partitions(partitions);
    let asked = AlterPartitionReassignmentsRequest::default().with_topics(vec![of]).with_timeout_ms(30_000);
    let answer = Kafka::connect(three.kafka[0]).and_then(|mut kafka| kafka.call(0, &asked)).expect("an answer");
    assert_eq!(answer.error_code, 0, "{answer:?}");
    answer.responses[0].partitions.iter().map(|one| one.error_code).collect()
}

/// As tools of Kafka do it: the first of the replicas leads, the others are where its copies are.
#[test]
fn partitions_are_reassigned_by_their_first_replica() {
    const UNKNOWN: i16 = 3;
    const ASSIGNMENT: i16 = 39;
    const NO_REASSIGNMENT: i16 = 85;
    let three = Three::start();
    three.make_topic(TOPIC);
    three.node(0).ok("stream create wide --streamlets 1 --lanes 2 --replication 3");
    let mut writer = Writer::new(&three, 0);
    (0..5).for_each(|_| writer.write(&three, 20));
    let first = three.leader(TOPIC, 0);
    for to in [first + 1, first, first + 2] {
        let nodes = [to, to + 2, to + 1].map(|at| (at % 3) as i32 + 1);
        assert_eq!(reassign(&three, (TOPIC, 0), Some(&nodes)), 0);
        eventually("it is led there", || three.leader(TOPIC, 0) == to % 3);
        writer.write(&three, 20);
        // What is where it is to be stays there.
        assert_eq!(reassign(&three, (TOPIC, 0), Some(&nodes)), 0);
    }
    let written = i64::from(writer.next);
    check(&read(&three, 0, 0, written), 0, written);
    for (of, nodes, code) in [
        ((TOPIC, 0), Some(&[1, 2][..]), ASSIGNMENT),
        ((TOPIC, 0), Some(&[1, 2, 2]), ASSIGNMENT),
        ((TOPIC, 0), Some(&[1, 2, 9]), ASSIGNMENT),
        ((TOPIC, 0), Some(&[]), ASSIGNMENT),
        ((TOPIC, 0), None, NO_REASSIGNMENT),
        ((TOPIC, 7), Some(&[1, 2, 3]), UNKNOWN),
        ((TOPIC, -1), Some(&[1, 2, 3]), UNKNOWN),
        (("nowhere", 0), Some(&[1, 2, 3]), UNKNOWN),
        (("wide", 1), Some(&[1, 2, 3]), ASSIGNMENT),
    ] {
        assert_eq!(reassign(&three, of, nodes), code, "{of:?} to {nodes:?}");
    }
    assert_eq!(three.leader(TOPIC, 0), (first + 2) % 3);
    // Partitions that share a streamlet go together.
    let to = (three.leader("wide", 0) + 1) % 3;
    let nodes = [to, to + 1, to + 2].map(|at| (at % 3) as i32 + 1);
    assert_eq!(reassign_all(&three, "wide", &[(0, Some(&nodes)), (1, Some(&nodes))]), [0, 0]);
    eventually("both are led there", || (0..2).all(|at| three.leader("wide", at) == to));
    let asked = ListPartitionReassignmentsRequest::default().with_topics(None);
    let answer = three.until(0, &asked, || 0, |answer| answer.error_code);
    assert_eq!((answer.error_code, answer.topics.len()), (0, 0), "nothing moves any more");
}

/// As tools of Kafka do it: as many replicas for each partition, while it is written. It is over when nothing is listed any more.
#[test]
fn a_topic_gets_as_many_copies_as_are_named_for_all_of_its_partitions() {
    let three = Three::start();
    three.node(0).ok(&format!("stream create {TOPIC} --streamlets 3 --replication 1"));
    let writers = RefCell::new([0, 1, 2].map(|partition| Writer::new(&three, partition)));
    writers.borrow_mut().iter_mut().for_each(|writer| (0..5).for_each(|_| writer.write(&three, 20)));
    let listed = ListPartitionReassignmentsRequest::default().with_topics(None);
    for wanted in [[[2, 3, 1], [2, 1, 3], [1, 2, 3]].map(Vec::from), [[3, 2], [3, 1], [1, 2]].map(Vec::from)] {
        let all = [0, 1, 2].map(|at| (at as i32, Some(&wanted[at][..])));
        assert_eq!(reassign_all(&three, TOPIC, &all), [0; 3]);
        eventually("all have their copies", || {
            writers.borrow_mut().iter_mut().for_each(|writer| writer.write(&three, 1));
            let asked = metadata_request::MetadataRequestTopic::default().with_name(Some(name(TOPIC)));
            let asked = MetadataRequest::default().with_topics(Some(vec![asked]));
            let told = Kafka::connect(three.kafka[0]).and_then(|mut kafka| kafka.call(5, &asked));
            let Some(told) = told.filter(|told| !told.topics.is_empty()) else { return false };
            let of = |at: usize| told.topics[0].partitions.iter().find(|of| of.partition_index == at as i32);
            let is_there = |at: usize| {
                of(at).is_some_and(|of| (of.leader_id.0, of.replica_nodes.len()) == (wanted[at][0], wanted[at].len()))
            };
            (0..3).all(is_there) && three.until(0, &listed, || 0, |answer| answer.error_code).topics.is_empty()
        });
    }
    for writer in writers.borrow().iter() {
        check(&read(&three, writer.partition, 0, writer.next.into()), 0, writer.next.into());
    }
}

#[test]
fn everything_is_read_at_the_leader_after_moves_to_and_fro() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let first = three.leader(TOPIC, 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let mut writer = Writer::new(&three, 0);
    // Enough that older chunks come in several pieces.
    (0..150).for_each(|_| writer.write(&three, 20));
    let (is_moving, batches) = (AtomicBool::new(true), AtomicI32::new(0));
    let (written, tailed) = std::thread::scope(|scope| {
        let (three, is_moving, batches) = (&three, &is_moving, &batches);
        let written = scope.spawn(move || {
            while is_moving.load(Ordering::Relaxed) {
                writer.write(three, 3);
                batches.fetch_add(1, Ordering::Relaxed);
            }
            i64::from(writer.next)
        });
        // The first of them may have been on its way to the leader before.
        let leader_has_some = || {
            let before = batches.load(Ordering::Relaxed);
            eventually("the leader has taken some", || batches.load(Ordering::Relaxed) > before + 10);
        };
        // One that begins at the start and reads along.
        let tailed = scope.spawn(move || {
            let mut all = Vec::new();
            while is_moving.load(Ordering::Relaxed) {
                let (from, to) = (all.len() as i64, listed(three, 0, -1).1);
                all.extend(read(three, 0, from, to));
            }
            all
        });
        for node in [second, first, third, second, first] {
            leader_has_some();
            move_to(three, 0, node);
        }
        leader_has_some();
        is_moving.store(false, Ordering::Relaxed);
        (written.join().expect("it writes"), tailed.join().expect("it reads"))
    });
    check(&tailed, 0, tailed.len() as i64);
    let all = read(&three, 0, 0, written);
    check(&all, 0, written);
    assert_eq!(tailed, all[..tailed.len()]);
    let epochs: BTreeMap<i32, i64> = all.iter().rev().map(|record| (record.epoch, record.offset)).collect();
    // On a busy machine a leader may have been taken for lost for a moment, and another one was between.
    assert!(epochs.len() >= 6, "each leader has taken some: {epochs:?}");
    // From anywhere in it.
    for from in (0..written).step_by(written as usize / 13) {
        check(&read(&three, 0, from, (from + 50).min(written)), from, (from + 50).min(written));
    }
    places_are_told(&three, &all, &epochs);
    some_are_deleted(&three, &all);
}

/// Times and epochs are found wherever they are.
fn places_are_told(three: &Three, all: &[Read], epochs: &BTreeMap<i32, i64>) {
    assert_eq!(listed(three, 0, EARLIEST), (0, 0, all[0].epoch));
    for record in all.iter().step_by(all.len() / 17) {
        let first = all.iter().find(|other| other.timestamp >= record.timestamp).expect("itself");
        assert_eq!(listed(three, 0, record.timestamp), (0, first.offset, first.epoch), "{record:?}");
    }
    let newest = all.iter().max_by_key(|record| (record.timestamp, -record.offset)).expect("one");
    assert_eq!(listed(three, 0, LARGEST_TIME).1, newest.offset);
    assert_eq!(listed(three, 0, newest.timestamp + 1).1, -1);
    let ends = epochs.values().skip(1).copied().chain([all.len() as i64]);
    let told = epochs.keys().map(|epoch| end_of_epoch(three, 0, *epoch));
    let expected: Vec<_> = epochs.keys().copied().zip(ends).collect();
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// Records are deleted that another node has.
fn some_are_deleted(three: &Three, all: &[Read]) {
    let (to, end) = (all[40].offset, all.len() as i64);
    assert_eq!(delete_to(three, 0, to), (0, to));
    assert_eq!(listed(three, 0, EARLIEST).1, to);
    assert_eq!(listed(three, 0, 0).1, to);
    let mut kafka = Kafka::connect(three.kafka[three.leader(TOPIC, 0)]).expect("it runs");
    let answer = kafka.call(11, &fetch_of(&[(0, 5)])).expect("it answers");
    assert_eq!(answer.responses[0].partitions[0].error_code, OUT_OF_RANGE);
    check(&read(three, 0, to, end), to, end);
}

/// The partition begins there, at its leader, for everybody.
fn begins_at(three: &Three, offset: i64, end: i64) {
    assert_eq!(listed(three, 0, EARLIEST).1, offset);
    let mut kafka = Kafka::connect(three.kafka[three.leader(TOPIC, 0)]).expect("it runs");
    let answer = kafka.call(11, &fetch_of(&[(0, offset - 1)])).expect("it answers");
    assert_eq!(answer.responses[0].partitions[0].error_code, OUT_OF_RANGE, "below {offset}");
    check(&read(three, 0, offset, end), offset, end);
}

#[test]
fn what_was_deleted_stays_deleted_when_the_partition_moves_and_when_its_owner_is_killed() {
    let mut three = Three::start();
    three.make_topic(TOPIC);
    let first = three.leader(TOPIC, 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let mut writer = Writer::new(&three, 0);
    (0..20).for_each(|_| writer.write(&three, 10));
    assert_eq!(delete_to(&three, 0, 45), (0, 45));
    begins_at(&three, 45, 200);
    move_to(&three, 0, second);
    begins_at(&three, 45, 200);
    writer.write(&three, 10);
    assert_eq!(delete_to(&three, 0, 30), (0, 45), "what is deleted is not there to be deleted");
    assert_eq!(delete_to(&three, 0, 205), (0, 205));
    three.kill(second);
    let after = three.leader(TOPIC, 0);
    begins_at(&three, 205, 210);
    writer.write(&three, 10);
    three.start_again(second);
    eventually("it is rebuilt", || {
        three.node(after).run(&format!("streamlet move {TOPIC}/0 --to {}", third + 1)).status.success()
    });
    eventually("it is led there", || three.leader(TOPIC, 0) == third);
    begins_at(&three, 205, 220);
    // What the coordinators know outlives all of them.
    three.kill_all_and_start_again();
    begins_at(&three, 205, 220);
}

#[test]
fn what_is_written_behind_a_loss_is_seen_although_more_was_deleted_before() {
    let mut three = Three::start();
    // One copy: what its node has is gone with it.
    three.node(0).ok(&format!("stream create {TOPIC} --streamlets 3 --replication 1"));
    let partition = (0..3).find(|partition| three.leader(TOPIC, *partition) != 0).expect("each node has one");
    let lost = three.leader(TOPIC, partition);
    let mut writer = Writer::new(&three, partition);
    (0..10).for_each(|_| writer.write(&three, 10));
    assert_eq!(delete_to(&three, partition, 80), (0, 80));
    three.kill(lost);
    eventually("it is given up", || {
        three.node(0).run(&format!("streamlet accept-loss {TOPIC}/{partition} --yes")).status.success()
    });
    let owner = three.leader(TOPIC, partition);
    writer = Writer::new(&three, partition);
    writer.write(&three, 10);
    check(&read(&three, partition, 0, 10), 0, 10);
    // The next owner is told of it, too.
    let next = (0..3).find(|at| *at != owner && *at != lost).expect("there are three");
    std::thread::sleep(Duration::from_secs(2));
    move_to(&three, partition, next);
    assert_eq!(listed(&three, partition, EARLIEST).1, 0);
    check(&read(&three, partition, 0, 10), 0, 10);
}

/// What a node before the lost one has is there, and what is written behind the loss comes behind it: no offset is given out twice.
#[test]
fn a_loss_behind_a_move_takes_only_what_was_written_since() {
    let mut three = Three::start();
    three.node(0).ok(&format!("stream create {TOPIC} --streamlets 3 --replication 1"));
    let partition = (0..3).find(|partition| three.leader(TOPIC, *partition) == 0).expect("each node has one");
    let mut writer = Writer::new(&three, partition);
    (0..10).for_each(|_| writer.write(&three, 10));
    move_to(&three, partition, 1);
    (0..3).for_each(|_| writer.write(&three, 10));
    three.kill(1);
    eventually("it is given up", || {
        three.node(0).run(&format!("streamlet accept-loss {TOPIC}/{partition} --yes")).status.success()
    });
    assert_eq!(listed(&three, partition, -1).1, 100, "it goes on where it moved");
    writer = Writer { next: 100, ..Writer::new(&three, partition) };
    writer.write(&three, 10);
    let holds = |three: &Three| {
        assert_eq!(listed(three, partition, EARLIEST).1, 0);
        check(&read(three, partition, 0, 110), 0, 110);
    };
    holds(&three);
    // What the lost node has of it is given up, also when it comes back.
    three.start_again(1);
    holds(&three);
    // The next owner is told of it, too; and so is one that is started again.
    move_to(&three, partition, if three.leader(TOPIC, partition) == 0 { 2 } else { 0 });
    holds(&three);
    three.kill_all_and_start_again();
    holds(&three);
}

#[test]
fn transactions_go_on_over_moves_and_what_is_aborted_stays_out() {
    let three = Three::start();
    three.make_topic(TOPIC);
    let first = three.leader(TOPIC, 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let mut committed = Producer::begin(&three, "committed", true);
    let mut aborted = Producer::begin(&three, "aborted", false);
    let mut expected = Vec::new();
    for (turn, node) in [second, third, first, second].into_iter().enumerate() {
        for (at, producer) in [&mut committed, &mut aborted].into_iter().enumerate() {
            assert_eq!(producer.write(&three, TOPIC, 0, &format!("{at} before move {turn}")), 0);
        }
        move_to(&three, 0, node);
        for (at, producer) in [&mut aborted, &mut committed].into_iter().enumerate() {
            assert_eq!(producer.write(&three, TOPIC, 0, &format!("{} behind move {turn}", 1 - at)), 0);
        }
        assert_eq!((aborted.end(&three, false), committed.end(&three, true)), (0, 0));
        expected.extend(["before", "behind"].map(|place| format!("0 {place} move {turn}")));
    }
    assert_eq!(three.settled(TOPIC, 0), expected);
    // Who reads everything gets eight records of each and eight markers.
    assert_eq!(three.end_of(TOPIC, 0), 24);
    for from in 0..24 {
        let tail = three.settled_from(TOPIC, 0, from);
        assert!(expected.ends_with(&tail), "from {from}: {tail:?}");
    }
    // The last one is open: it is not shown, wherever it began.
    assert_eq!(committed.write(&three, TOPIC, 0, "open"), 0);
    move_to(&three, 0, third);
    assert_eq!(three.committed(TOPIC, 0), (24, expected.clone()));
    assert_eq!(committed.end(&three, true), 0);
    expected.push("open".into());
    assert_eq!(three.settled(TOPIC, 0), expected);
}

#[test]
fn a_node_that_holds_older_records_is_killed_and_they_come_from_their_copies() {
    let mut three = Three::start();
    three.make_topic(TOPIC);
    let first = three.leader(TOPIC, 0);
    let mut writer = Writer::new(&three, 0);
    (0..20).for_each(|_| writer.write(&three, 10));
    move_to(&three, 0, (first + 1) % 3);
    (0..20).for_each(|_| writer.write(&three, 10));
    check(&read(&three, 0, 0, 100), 0, 100);
    three.kill(first);
    check(&read(&three, 0, 0, 400), 0, 400);
    three.start_again(first);
    move_to(&three, 0, first);
    writer.write(&three, 10);
    check(&read(&three, 0, 0, 410), 0, 410);
}

#[test]
fn only_what_a_frozen_node_holds_waits_for_it() {
    let three = Three::start();
    // One copy: nobody takes over from the frozen node.
    three.node(0).ok(&format!("stream create {TOPIC} --streamlets 3 --replication 1"));
    let leaders: Vec<usize> = (0..3).map(|partition| three.leader(TOPIC, partition)).collect();
    let (moved, stays) = (0, 1);
    assert_ne!(leaders[moved], leaders[stays]);
    let mut writers = [Writer::new(&three, moved as i32), Writer::new(&three, stays as i32)];
    writers.iter_mut().for_each(|writer| (0..20).for_each(|_| writer.write(&three, 10)));
    move_to(&three, moved as i32, leaders[stays]);
    writers[0].write(&three, 10);
    three.node(leaders[moved]).signal("STOP");
    let mut kafka = Kafka::connect(three.kafka[leaders[stays]]).expect("it runs");
    // A session with both, from the start: what is here comes at once and in full.
    let (mut at, mut session) = (0, (0, 0));
    while at < 200 {
        let asked = fetch_of(&[(moved as i32, 0), (stays as i32, at)]).with_session_id(session.0);
        let answer = kafka.call(11, &asked.with_session_epoch(session.1)).expect("it answers");
        assert_eq!(answer.error_code, 0);
        session = (answer.session_id, session.1 + 1);
        for one in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            assert_eq!(one.error_code, 0);
            let records = records_of(one.records, at);
            assert!(one.partition_index == stays as i32 || records.is_empty());
            at = records.last().map_or(at, |last| last.offset + 1);
        }
    }
    // What the leader has written itself is read as well, and the rest when the node goes on.
    let answer = kafka.call(11, &fetch_of(&[(moved as i32, 200)])).expect("it answers");
    check(&records_of(answer.responses[0].partitions[0].records.clone(), 200), 200, 210);
    three.node(leaders[moved]).signal("CONT");
    check(&read(&three, moved as i32, 0, 210), 0, 210);
}
