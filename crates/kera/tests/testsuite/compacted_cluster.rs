//! Owners of a compacted topic that are killed one after the other, with three nodes in three processes: what compaction has left is copied again as it
//! is, backups give back what was there before, and the next owner has the last record of every key, also of those that were written once and long ago.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::*;
use kafka_protocol::records::RecordBatchDecoder;
use serde_json::Value;

use crate::common::kafka::{Three, name, produce_request, record};
use crate::common::members::cluster;
use crate::common::{Node, PATIENCE, eventually};

const TOPIC: &str = "latest";
/// Keys that are written again and again.
const KEYS: usize = 200;
const VALUE_BYTES: usize = 1000;
const BATCH_RECORDS: usize = 50;
/// How often each of them is written in a phase.
const ROUNDS: usize = 40;
/// So often that backups fill more than a file.
const FIRST_ROUNDS: usize = 220;
/// Batches of keys of which each is written once in a while.
const KEPT_BATCHES: usize = 600;

/// A key and its value; no value is a tombstone.
type Pair = (String, Option<String>);

/// An idempotent producer into the only partition, and all that it has written: by offset.
struct Writer {
    producer: (i64, i16),
    written: Vec<Pair>,
    bytes: u64,
}

impl Writer {
    fn new(three: &Three) -> Writer {
        let asked = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = three.until(4, &asked, || three.running()[0], |answer| answer.error_code);
        assert!(answer.error_code == 0 && answer.producer_id.0 > 0, "{answer:?}");
        Writer { producer: (answer.producer_id.0, answer.producer_epoch), written: Vec::new(), bytes: 0 }
    }

    fn write(&mut self, three: &Three, pairs: Vec<Pair>) {
        let first = self.written.len();
        let record = |(at, (key, value)): (usize, &Pair)| {
            let sequence = i32::try_from(first + at).expect("few records");
            let mut record = record(self.producer, false, (at as i64, sequence), 1_700_000_000_000, Bytes::new());
            record.key = Some(Bytes::copy_from_slice(key.as_bytes()));
            record.value = value.as_ref().map(|value| Bytes::copy_from_slice(value.as_bytes()));
            record
        };
        let records: Vec<_> = pairs.iter().enumerate().map(record).collect();
        let asked = produce_request(None, TOPIC, 0, &records);
        let code = |answer: &ProduceResponse| answer.responses[0].partition_responses[0].error_code;
        let answer = three.until(9, &asked, || three.leader(TOPIC, 0), code);
        // Or it is there already.
        assert!([0, 46].contains(&code(&answer)), "{answer:?}");
        let offset = answer.responses[0].partition_responses[0].base_offset;
        assert!(code(&answer) != 0 || offset == first as i64, "offsets go on: {answer:?}");
        self.bytes += pairs.iter().map(|(_, value)| value.as_ref().map_or(0, |value| value.len() as u64)).sum::<u64>();
        self.written.extend(pairs);
    }

    /// Writes all keys many times. With each batch goes a key that is never written again; every second one of the phase before is removed.
    fn write_phase(&mut self, three: &Three, phase: usize, rounds: usize) {
        let mut turn = 0;
        for round in 0..rounds {
            for keys in (0..KEYS).collect::<Vec<_>>().chunks(BATCH_RECORDS - 2) {
                let value = |what: &str| Some(format!("{what} {phase}.{round} {}", "x".repeat(VALUE_BYTES)));
                let mut pairs: Vec<Pair> = keys.iter().map(|key| (format!("key {key}"), value("again"))).collect();
                pairs.insert(pairs.len() / 2, (format!("once {phase}.{turn}"), value("once")));
                if phase > 1 && turn % 2 == 0 {
                    pairs.insert(0, (format!("once {}.{turn}", phase - 1), None));
                }
                self.write(three, pairs);
                turn += 1;
            }
        }
    }

    /// What is left of all that was written, by key: where, and what.
    fn last(&self) -> BTreeMap<&str, (usize, Option<&str>)> {
        self.written.iter().enumerate().map(|(at, (key, value))| (&key[..], (at, value.as_deref()))).collect()
    }

    /// What is read was written there, in order, and says what everything said: the last record of each key is there, and of what was removed nothing
    /// comes back.
    fn check(&self, found: &[(i64, Pair)]) {
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "offsets rise");
        let mut state = BTreeMap::new();
        for (offset, pair) in found {
            assert_eq!(self.written.get(*offset as usize), Some(pair), "at {offset}");
            state.insert(&pair.0[..], (*offset as usize, pair.1.as_deref()));
        }
        for (key, last) in self.last() {
            match state.get(key) {
                Some(found) => assert_eq!(*found, last, "{key}"),
                None => assert!(last.1.is_none(), "{key} is gone, written at {}", last.0),
            }
        }
    }

    fn check_all(&self, three: &Three) {
        assert_eq!(three.end_of(TOPIC, 0), self.written.len() as i64);
        self.check(&read_as_kafka(three));
        self.check(&read_natively(three));
    }
}

/// All records of the partition that are there.
fn read_as_kafka(three: &Three) -> Vec<(i64, Pair)> {
    let (mut at, mut all, end) = (0, Vec::new(), three.end_of(TOPIC, 0));
    let started = Instant::now();
    while at < end {
        assert!(started.elapsed() < PATIENCE, "nothing comes at {at} of {end}");
        let of =
            FetchPartition::default().with_fetch_offset(at).with_partition_max_bytes(1 << 20).with_log_start_offset(-1);
        let asked = FetchRequest::default()
            .with_max_bytes(1 << 20)
            .with_min_bytes(1)
            .with_max_wait_ms(500)
            .with_session_epoch(-1)
            .with_topics(vec![FetchTopic::default().with_topic(name(TOPIC)).with_partitions(vec![of])]);
        let code = |answer: &FetchResponse| answer.responses[0].partitions[0].error_code;
        let answer = three.until(11, &asked, || three.leader(TOPIC, 0), code);
        let one = &answer.responses[0].partitions[0];
        assert_eq!(one.error_code, 0, "at {at} of {end}");
        let mut batches = one.records.clone().unwrap_or_default();
        let behind = end_of_batches(&batches);
        let sets = RecordBatchDecoder::decode_all(&mut batches).expect("batches");
        for record in sets.into_iter().flat_map(|set| set.records).filter(|record| record.offset >= at) {
            let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).expect("words");
            all.push((record.offset, (text(record.key.expect("a key")), record.value.map(text))));
        }
        at = behind.unwrap_or(at);
    }
    all
}

/// The offset behind the last of some batches, whose last records may be gone.
fn end_of_batches(mut batches: &[u8]) -> Option<i64> {
    let mut end = None;
    while let [base @ .., _, _, _, _] = batches.get(..12)? {
        let base = i64::from_be_bytes(base.try_into().ok()?);
        let bytes = 12 + u32::from_be_bytes(batches[8..12].try_into().ok()?) as usize;
        end = Some(base + i64::from(i32::from_be_bytes(batches[23..27].try_into().ok()?)) + 1);
        batches = &batches[bytes..];
        if batches.is_empty() {
            break;
        }
    }
    end
}

/// The same, as a native client reads it.
fn read_natively(three: &Three) -> Vec<(i64, Pair)> {
    let text = three.node(three.running()[0]).ok(&format!("consume {TOPIC} --from earliest --format json"));
    let of = |line: &str| {
        let record: Value = serde_json::from_str(line).expect("a record");
        let key = record["key"].as_str().unwrap_or_else(|| panic!("no key: {line}"));
        let value = record["value"].as_str().map(str::to_owned);
        (record["ordinal"].as_i64().expect("an ordinal"), (key.to_owned(), value))
    };
    text.lines().map(of).collect()
}

/// A number of a node.
fn metric(node: &Node, name: &str) -> u64 {
    let (status, text) = node.get("/metrics");
    assert_eq!(status, 200);
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("the metric is there");
    line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number") as u64
}

/// Bytes of the partition, as its owner has it.
fn owned_bytes(three: &Three) -> u64 {
    let described = three.node(three.running()[0]).json(&format!("stream describe {TOPIC}"));
    described["bytes"].as_u64().unwrap_or_else(|| panic!("{described}"))
}

/// Waits until there is not much more than what must be.
fn compacted(three: &Three, writer: &Writer) {
    let last: usize = writer.last().values().filter_map(|(_, value)| value.map(str::len)).sum();
    eventually("compaction has passed", || owned_bytes(three) < 2 * last as u64);
}

fn all_copied(three: &Three) {
    eventually("everything has its copies", || {
        let at = |at: &usize| {
            metric(three.node(*at), "kera_copies_under_replicated_blocks") == 0
                && metric(three.node(*at), "kera_rebuild_left_bytes") == 0
        };
        three.running().iter().all(at)
    });
}

fn lose(three: &mut Three, at: usize) {
    three.kill(at);
    let other = three.node(three.running()[0]);
    eventually("the loss is seen", || cluster(other)["nodes"][at]["state"] == "lost");
    eventually("nothing waits for it", || cluster(other)["waiting_streamlets"] == 0);
}

/// Three nodes that compact at once, and a topic with so many copies.
fn begin(replication: u32) -> Three {
    let flags = "--compaction-cpu-percent 100 --idle-close 1s --write-delay 0s";
    let three = Three::with(None, &flags.split(' ').collect::<Vec<_>>());
    let options = "--cleanup compact --segment-bytes 64KiB --compact-dirty-percent 10 --tombstone-time 1s";
    three.node(0).ok(&format!("stream create {TOPIC} --replication {replication} --retention-time none {options}"));
    three
}

/// Loses one owner after the other, and goes on at the next one.
fn lose_owners(three: &mut Three, writer: &mut Writer, mut owner: usize) {
    for phase in 2..4 {
        writer.write_phase(three, phase, ROUNDS);
        compacted(three, writer);
        lose(three, owner);
        writer.check_all(three);
        three.start_again(owner);
        all_copied(three);
        owner = three.leader(TOPIC, 0);
    }
    writer.write_phase(three, 4, ROUNDS);
    compacted(three, writer);
    writer.check_all(three);
}

#[test]
fn what_compaction_has_left_is_there_after_its_owners_were_lost() {
    let mut three = begin(3);
    let owner = three.leader(TOPIC, 0);
    let backups = [1, 2].map(|next| (owner + next) % 3);
    // What is written now lacks a copy, so it is copied again when that node is back.
    lose(&mut three, backups[0]);
    let mut writer = Writer::new(&three);
    writer.write_phase(&three, 1, FIRST_ROUNDS);
    compacted(&three, &writer);
    three.start_again(backups[0]);
    all_copied(&three);
    eventually("backups have given back what was there before", || {
        let kept = backups.map(|at| metric(three.node(at), "kera_backup_files_bytes"));
        kept.iter().all(|kept| *kept > 0 && *kept < writer.bytes * 2 / 3)
    });
    writer.check_all(&three);
    lose_owners(&mut three, &mut writer, owner);
}

#[test]
fn what_compaction_has_left_has_its_second_copy_elsewhere_after_a_loss_of_the_first() {
    let mut three = begin(2);
    let owner = three.leader(TOPIC, 0);
    let mut writer = Writer::new(&three);
    writer.write_phase(&three, 1, ROUNDS);
    compacted(&three, &writer);
    // One of them has the copy.
    for backup in [1, 2].map(|next| (owner + next) % 3) {
        lose(&mut three, backup);
        // Twice as long as it takes a node to notice that a backup of a quiet log is gone.
        std::thread::sleep(Duration::from_secs(1));
        all_copied(&three);
        three.start_again(backup);
    }
    writer.check_all(&three);
    lose_owners(&mut three, &mut writer, owner);
}

/// An owner that is back before others have rebuilt its lanes holds them again, as it has compacted them, and they are lost and rebuilt like others later.
#[test]
fn what_compaction_has_left_is_held_again_by_an_owner_that_comes_back() {
    let mut three = begin(2);
    let mut writer = Writer::new(&three);
    let unique = |writer: &mut Writer, three: &Three, what: &str| {
        for batch in 0..KEPT_BATCHES {
            let pair = |at| (format!("kept {batch}.{at}"), Some(format!("{what} {}", "k".repeat(VALUE_BYTES))));
            writer.write(three, (0..BATCH_RECORDS).map(pair).collect());
        }
    };
    for what in ["first", "then"] {
        unique(&mut writer, &three, what);
    }
    compacted(&three, &writer);
    all_copied(&three);
    let back = (0..12).any(|_| {
        let owner = three.leader(TOPIC, 0);
        three.kill_and_bring_back(owner)
    });
    assert!(back, "it comes back in the middle of a rebuild");
    writer.check_all(&three);
    // Both compact what they have, and it is in copies again when either is lost.
    writer.write_phase(&three, 1, 4);
    unique(&mut writer, &three, "last");
    writer.check_all(&three);
    for at in 0..3 {
        all_copied(&three);
        lose(&mut three, at);
        writer.check_all(&three);
        three.start_again(at);
    }
}

fn move_to(three: &Three, node: usize) {
    three.node(three.running()[0]).ok(&format!("streamlet move {TOPIC}/0 --to {}", node + 1));
    eventually("it is led there", || three.leader(TOPIC, 0) == node);
}

/// How many tombstones there are of keys that were written once in a phase.
fn tombstones(three: &Three, phase: usize) -> usize {
    let prefix = format!("once {phase}.");
    read_as_kafka(three).iter().filter(|(_, (key, value))| key.starts_with(&prefix) && value.is_none()).count()
}

/// Writes on until the tombstones of the phase before are gone at the owner, and with them all others that nothing holds.
fn write_until_tombstones_go(three: &Three, writer: &mut Writer, phase: usize) {
    writer.write_phase(three, phase, 4);
    assert!(tombstones(three, phase - 1) > 0);
    let started = Instant::now();
    while tombstones(three, phase - 1) > 0 {
        assert!(started.elapsed() < PATIENCE, "tombstones stay");
        writer.write_phase(three, phase + 1, 1);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn what_was_removed_stays_removed_wherever_its_topic_goes() {
    let mut three = begin(3);
    let first = three.leader(TOPIC, 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let mut writer = Writer::new(&three);
    writer.write_phase(&three, 1, ROUNDS);
    move_to(&three, second);
    // Removes what the first one has, and then what it has itself.
    writer.write_phase(&three, 2, 4);
    let needed = tombstones(&three, 1);
    write_until_tombstones_go(&three, &mut writer, 3);
    writer.check_all(&three);
    assert_eq!(tombstones(&three, 1), needed, "they hide what the first one has");
    move_to(&three, third);
    writer.write_phase(&three, 5, 4);
    write_until_tombstones_go(&three, &mut writer, 6);
    writer.check_all(&three);
    // What both had comes to the third one.
    for earlier in [first, second] {
        lose(&mut three, earlier);
        writer.check_all(&three);
        three.start_again(earlier);
        all_copied(&three);
    }
    write_until_tombstones_go(&three, &mut writer, 9);
    writer.check_all(&three);
    eventually("nothing holds the first tombstones any more", || tombstones(&three, 1) == 0);
    writer.check_all(&three);
}
