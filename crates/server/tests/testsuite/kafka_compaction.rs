//! Compacted topics over the Kafka door of a whole node: what is left, what readers see meanwhile, and what kills change about
//! it, which is nothing. kafka-protocol's own codecs write the requests.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Request;
use kera_format::kafka_batch::{KafkaBatchView, KafkaRecords, put_varint};
use kera_server::Node;
use kera_server::config::Config;

use crate::common::{self, PATIENCE, Process, call, connect_to, serve_until_killed, text};

const KEYS: u64 = 23;
const INVALID_RECORD: i16 = 87;

fn config(dir: &Path) -> Config {
    let mut config = common::config(dir);
    config.storage.write_delay = 0;
    config.compaction.cpu_percent = Some(100);
    config
}

fn connect(node: &Node) -> Client {
    Client::connect(node.kafka_address().unwrap())
}

fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

/// Key and value of a record; no value is a tombstone.
type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

/// A batch of records; a producer is its id, epoch, base sequence and attributes.
fn batch(records: &[Pair], (id, epoch, sequence, attributes): (i64, i16, i32, u8)) -> Bytes {
    let mut batch = vec![0; 61];
    for (delta, (key, value)) in records.iter().enumerate() {
        let mut fields = vec![0, 0];
        put_varint(delta as i64, &mut fields);
        for part in [key, value] {
            put_varint(part.as_ref().map_or(-1, |bytes| bytes.len() as i64), &mut fields);
            fields.extend_from_slice(part.as_deref().unwrap_or_default());
        }
        put_varint(0, &mut fields);
        put_varint(fields.len() as i64, &mut batch);
        batch.extend_from_slice(&fields);
    }
    let length = batch.len() as i32 - 12;
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(8, &length.to_be_bytes());
    put(16, &[2]);
    put(22, &[attributes]);
    put(23, &(records.len() as i32 - 1).to_be_bytes());
    put(43, &id.to_be_bytes());
    put(51, &epoch.to_be_bytes());
    put(53, &sequence.to_be_bytes());
    put(57, &(records.len() as i32).to_be_bytes());
    let checksum = kera_format::checksum::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    batch.into()
}

const PLAIN: (i64, i16, i32, u8) = (-1, -1, -1, 0);

struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Client {
        Client(connect_to(address))
    }

    fn call<R: Request>(&mut self, version: i16, asked: &R) -> R::Response {
        call(&mut self.0, version, asked)
    }

    /// A topic of one partition with small segments.
    fn create(&mut self, topic: &str, settings: &[(&str, &str)]) -> i16 {
        let all = [("max.message.bytes", "60000"), ("min.cleanable.dirty.ratio", "0.01")];
        let configs = all.iter().chain(settings).map(|(name, value)| {
            create_topics_request::CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
        });
        let one = create_topics_request::CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(1)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let asked = CreateTopicsRequest::default().with_topics(vec![one]).with_timeout_ms(30_000);
        self.call(5, &asked).topics[0].error_code
    }

    fn set(&mut self, topic: &str, setting: &str, value: &str) -> i16 {
        let one = incremental_alter_configs_request::AlterableConfig::default()
            .with_name(text(setting))
            .with_value(Some(text(value)));
        let one = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(topic))
            .with_configs(vec![one]);
        let asked = IncrementalAlterConfigsRequest::default().with_resources(vec![one]);
        self.call(1, &asked).responses[0].error_code
    }

    /// Appends a batch: the whole answer of the partition.
    fn produce(
        &mut self,
        topic: &str,
        transactional_id: Option<&str>,
        batch: Bytes,
    ) -> produce_response::PartitionProduceResponse {
        let one = produce_request::PartitionProduceData::default().with_records(Some(batch));
        let one = produce_request::TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![one]);
        let asked = ProduceRequest::default()
            .with_transactional_id(transactional_id.map(|id| TransactionalId(text(id))))
            .with_acks(-1)
            .with_timeout_ms(60_000)
            .with_topic_data(vec![one]);
        self.call(12, &asked).responses[0].partition_responses[0].clone()
    }

    /// One answer to a fetch from `offset` on: high watermark, last stable offset, batches.
    fn fetch(&mut self, topic: &str, offset: i64, committed: bool, wait_ms: i32) -> (i64, i64, Bytes) {
        let one = fetch_request::FetchPartition::default().with_fetch_offset(offset).with_partition_max_bytes(1 << 20);
        let one = fetch_request::FetchTopic::default().with_topic(name(topic)).with_partitions(vec![one]);
        let asked = FetchRequest::default()
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_isolation_level(committed.into())
            .with_topics(vec![one]);
        let fetched = self.call(11, &asked);
        let one = &fetched.responses[0].partitions[0];
        assert_eq!(one.error_code, 0);
        (one.high_watermark, one.last_stable_offset, one.records.clone().unwrap_or_default())
    }

    /// All records of a topic that are there now, aborted ones and no markers included, in the order of their offsets.
    fn read_all(&mut self, topic: &str) -> Vec<(i64, Pair)> {
        let (mut offset, mut found) = (0, Vec::new());
        loop {
            let (end, _, data) = self.fetch(topic, offset, false, 0);
            if offset >= end {
                return found;
            }
            let mut rest = &data[..];
            while rest.len() > 61 {
                let bytes = 12 + i32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
                let view = KafkaBatchView::parse(&rest[..bytes]).unwrap();
                view.verify().unwrap();
                assert!(view.records_count() > 0, "some clients do not go on behind a batch without records");
                let base = i64::from_be_bytes(rest[..8].try_into().unwrap());
                let records = view.uncompressed(1 << 20).unwrap();
                for record in KafkaRecords::new(&view, &records).filter(|_| !view.is_control()) {
                    let record = record.unwrap();
                    let at = base + i64::from(record.offset_delta);
                    assert!(found.last().is_none_or(|(last, _)| *last < at), "offsets rise");
                    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                    found.push((at, (owned(record.key), owned(record.value))));
                }
                offset = offset.max(base + i64::from(view.offsets()));
                rest = &rest[bytes..];
            }
        }
    }

    fn init(&mut self, id: &str) -> (i64, i16) {
        let asked = InitProducerIdRequest::default()
            .with_transactional_id(Some(TransactionalId(text(id))))
            .with_transaction_timeout_ms(600_000);
        loop {
            let begun = self.call(4, &asked);
            if begun.error_code != 51 {
                assert_eq!(begun.error_code, 0);
                return (begun.producer_id.0, begun.producer_epoch);
            }
        }
    }

    /// Ends a transaction: who the producer is from now on.
    fn end(&mut self, id: &str, (producer, epoch): (i64, i16), commit: bool) -> (i64, i16) {
        let asked = EndTxnRequest::default()
            .with_transactional_id(TransactionalId(text(id)))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_committed(commit);
        let ended = self.call(5, &asked);
        assert_eq!(ended.error_code, 0);
        (ended.producer_id.0, ended.producer_epoch)
    }
}

/// What was written to a topic, by offset.
#[derive(Default)]
struct Written {
    of: BTreeMap<i64, Pair>,
    count: u64,
}

impl Written {
    /// Some batches of many versions of few keys; every seventh record deletes its key.
    fn fill(&mut self, client: &mut Client, topic: &str, batches: u64) {
        for _ in 0..batches {
            let records: Vec<Pair> = (0..10)
                .map(|_| {
                    self.count += 1;
                    let key = format!("key {}", self.count * self.count % KEYS).into_bytes();
                    let value = format!("{:0>1000}", self.count).into_bytes();
                    (Some(key), (!self.count.is_multiple_of(7)).then_some(value))
                })
                .collect();
            let answer = client.produce(topic, None, batch(&records, PLAIN));
            assert_eq!(answer.error_code, 0);
            self.of.extend((answer.base_offset..).zip(records));
        }
    }

    /// What applying records to nothing gives.
    fn state<'a>(records: impl Iterator<Item = &'a Pair>) -> BTreeMap<&'a [u8], &'a [u8]> {
        let mut state = BTreeMap::new();
        for (key, value) in records {
            let key = key.as_deref().unwrap();
            match value {
                Some(value) => drop(state.insert(key, &value[..])),
                None => drop(state.remove(key)),
            }
        }
        state
    }

    /// What is left is what was written there, and says what everything said. How many records are gone.
    fn check(&self, found: &[(i64, Pair)]) -> usize {
        for (offset, pair) in found {
            assert_eq!(self.of.get(offset), Some(pair), "offset {offset}");
        }
        assert_eq!(Written::state(found.iter().map(|(_, pair)| pair)), Written::state(self.of.values()));
        let there: Vec<i64> = found.iter().map(|(offset, _)| *offset).collect();
        let mut last = BTreeMap::new();
        for (offset, (key, value)) in &self.of {
            last.insert(key, (offset, value));
        }
        for (key, (offset, value)) in last {
            assert!(value.is_none() || there.binary_search(offset).is_ok(), "the last of {key:?} is gone");
        }
        self.of.len() - found.len()
    }

    /// Reads, and writes a little now and then, until `holds` of what is there.
    fn until(
        &mut self,
        client: &mut Client,
        topic: &str,
        what: &str,
        holds: impl Fn(&Written, &[(i64, Pair)]) -> bool,
    ) {
        let until = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(20);
        loop {
            let found = client.read_all(topic);
            self.check(&found);
            if holds(self, &found) {
                return;
            }
            assert!(Instant::now() < until, "{what} did not come: {} of {} are left", found.len(), self.of.len());
            self.fill(client, topic, 10);
            std::thread::sleep(pause);
            // Where a pass gets little time it does not have more and more to do.
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }
}

/// Most of it is gone: what is left is not much more than what no pass may look at yet.
fn is_small(written: &Written, found: &[(i64, Pair)]) -> bool {
    found.len() * 3 < written.of.len()
}

#[test]
fn of_each_key_the_last_record_is_left_and_tombstones_go_when_their_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(&config(dir.path())).unwrap();
    let mut client = connect(&node);
    assert_eq!(client.create("t", &[("cleanup.policy", "compact"), ("delete.retention.ms", "3600000")]), 0);
    let mut written = Written::default();
    written.fill(&mut client, "t", 50);
    written.until(&mut client, "t", "a pass", is_small);
    // None of its tombstones has gone: the last record of a key that was deleted is there.
    let found = client.read_all("t");
    let of_key: BTreeMap<_, _> = written.of.iter().map(|(offset, (key, value))| (key, (*offset, value))).collect();
    let tombstones: Vec<&i64> =
        of_key.values().filter(|(_, value)| value.is_none()).map(|(offset, _)| offset).collect();
    assert!(!tombstones.is_empty(), "no key was deleted last");
    for offset in tombstones {
        assert!(found.iter().any(|(at, _)| at == offset), "a tombstone went too soon");
    }
    // From now on they go. A key that nobody writes again is deleted for good.
    let gone = (Some(b"gone".to_vec()), Some(b"value".to_vec()));
    let tombstone = (Some(b"gone".to_vec()), None);
    let answer = client.produce("t", None, batch(&[gone.clone(), tombstone.clone()], PLAIN));
    let base = answer.base_offset;
    written.of.extend([(base, gone), (base + 1, tombstone)]);
    assert_eq!(client.set("t", "delete.retention.ms", "0"), 0);
    written.until(&mut client, "t", "the end of a tombstone", |_, found| {
        found.iter().all(|(offset, _)| *offset != base && *offset != base + 1)
    });
    node.stop();
    node = Node::start(&config(dir.path())).unwrap();
    client = connect(&node);
    assert!(written.check(&client.read_all("t")) > 0);
    // It takes everything again.
    assert_eq!(client.set("t", "cleanup.policy", "delete"), 0);
    let answer = client.produce("t", None, batch(&[(None, Some(b"x".to_vec()))], PLAIN));
    assert_eq!(answer.error_code, 0);
    node.stop();
}

#[test]
fn of_transactions_what_is_committed_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut client = connect(&node);
    assert_eq!(client.create("t", &[("cleanup.policy", "compact,delete")]), 0);
    let mut written = Written::default();
    let mut producer = client.init("p");
    let mut aborted = Vec::new();
    for round in 0..40_u32 {
        written.fill(&mut client, "t", 1);
        let commit = round % 2 == 0;
        let value = format!("{commit} {round}").into_bytes();
        let pair = (Some(b"transactional".to_vec()), Some(value));
        for sequence in 0..2 {
            let (id, epoch) = producer;
            let one = batch(std::slice::from_ref(&pair), (id, epoch, sequence, 16));
            let answer = client.produce("t", Some("p"), one);
            assert_eq!(answer.error_code, 0);
            if commit {
                written.of.insert(answer.base_offset, pair.clone());
            } else {
                aborted.push(answer.base_offset);
            }
        }
        producer = client.end("p", producer, commit);
    }
    // In another segment, so that nothing is in the way of those before.
    written.fill(&mut client, "t", 10);
    // Nothing behind the beginning of a transaction is touched, or read by who reads what is committed.
    let open =
        client.produce("t", Some("p"), batch(&[(Some(b"open".to_vec()), None)], (producer.0, producer.1, 0, 16)));
    let until = Instant::now() + PATIENCE;
    loop {
        written.fill(&mut client, "t", 10);
        let found = client.read_all("t");
        if aborted.iter().all(|gone| found.iter().all(|(offset, _)| offset != gone)) {
            break;
        }
        assert!(Instant::now() < until, "what was aborted is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    let found = client.read_all("t");
    let behind = written.of.range(open.base_offset..).count();
    assert_eq!(found.iter().filter(|(offset, _)| *offset > open.base_offset).count(), behind);
    // A reader of what is committed waits in front of it, and hears when it has ended.
    let (_, stable, data) = client.fetch("t", open.base_offset, true, 0);
    assert_eq!((stable, data.len()), (open.base_offset, 0));
    let mut another = connect(&node);
    let waiting = std::thread::spawn(move || another.fetch("t", open.base_offset, true, 100_000).2.len());
    producer = client.end("p", producer, true);
    written.of.insert(open.base_offset, (Some(b"open".to_vec()), None));
    assert!(waiting.join().unwrap() > 0, "who waits is woken");
    written.until(&mut client, "t", "a pass", is_small);
    let _ = producer;
    node.stop();
}

#[test]
fn a_record_without_a_key_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut client = connect(&node);
    assert_eq!(client.create("t", &[("cleanup.policy", "compact")]), 0);
    let good = (Some(b"k".to_vec()), Some(b"v".to_vec()));
    let bad = (None, Some(b"v".to_vec()));
    let answer = client.produce("t", None, batch(&[good.clone(), bad.clone(), good.clone(), bad], PLAIN));
    assert_eq!((answer.error_code, answer.base_offset), (INVALID_RECORD, -1));
    let named: Vec<i32> = answer.record_errors.iter().map(|one| one.batch_index).collect();
    assert_eq!(named, [1, 3]);
    assert!(answer.record_errors.iter().all(|one| one.batch_index_error_message.is_some()));
    assert!(answer.error_message.is_some());
    // An empty key is a key.
    let answer = client.produce("t", None, batch(&[(Some(Vec::new()), None), good], PLAIN));
    assert_eq!((answer.error_code, answer.base_offset), (0, 0));
    // What cannot be taken apart has no keys.
    let mut damaged = batch(&[(Some(b"k".to_vec()), Some(b"v".to_vec()))], PLAIN).to_vec();
    damaged[61] = 100;
    let checksum = kera_format::checksum::crc32c(&damaged[21..]);
    damaged[17..21].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(client.produce("t", None, damaged.into()).error_code, INVALID_RECORD);
    assert_eq!(client.read_all("t").len(), 2);
    node.stop();
}

/// Not a test of its own: the node that the one below kills.
#[test]
#[ignore = "a node for another test, until it is killed"]
fn serves_until_it_is_killed() {
    serve_until_killed(config)
}

fn start(dir: &Path) -> (Process, Client) {
    let process = Process::start("kafka_compaction::serves_until_it_is_killed", dir);
    let client = Client::connect(process.kafka);
    (process, client)
}

#[test]
fn a_node_that_is_killed_while_it_compacts_has_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let topics = ["process", "power"];
    let mut all = [Written::default(), Written::default()];
    for round in 0..6 {
        let (process, mut client) = start(dir.path());
        for (topic, written) in topics.iter().zip(&mut all) {
            if round == 0 {
                let settings =
                    [("cleanup.policy", "compact"), ("kera.durability", topic), ("delete.retention.ms", "0")];
                assert_eq!(client.create(topic, &settings), 0);
            }
            written.check(&client.read_all(topic));
            written.fill(&mut client, topic, 30);
        }
        // In the middle of whatever it is at.
        std::thread::sleep(Duration::from_millis(37 * round));
        drop(process);
    }
    let (_process, mut client) = start(dir.path());
    for (topic, written) in topics.iter().zip(&mut all) {
        written.until(&mut client, topic, "a pass", is_small);
    }
}
