//! One stream, written and read through both doors: the native one with the real client, Kafka's with bytes by hand.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use kera_client::{Client, Record, Start, StreamOptions};
use kera_format::checksum::crc32c;
use kera_format::kafka_batch::{KAFKA_BATCH_HEADER_BYTES, put_varint};
use kera_format::kafka_codec::KafkaCodec;
use kera_server::Node;
use kera_server::config::Config;

const PRODUCE: i16 = 0;
const INIT_PRODUCER_ID: i16 = 22;
const ADD_PARTITIONS_TO_TXN: i16 = 24;
const END_TXN: i16 = 26;

fn config(dir: &Path) -> Config {
    let mut config = Config::default();
    config.node.data = dir.join("data");
    config.network.listen = "127.0.0.1:0".into();
    config.http.listen = None;
    config.kafka.listen = Some("127.0.0.1:0".into());
    config.arena.bytes = Some(32 << 20);
    config.arena.dir = Some(dir.join("arena"));
    config
}

/// A Kafka producer.
struct Kafka(TcpStream);

impl Kafka {
    fn connect(node: &Node) -> Kafka {
        let stream = TcpStream::connect(node.kafka_address().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Kafka(stream)
    }

    /// Sends a request of a version without tagged fields; the answer's body.
    fn call(&mut self, key: i16, version: i16, body: &[u8]) -> Vec<u8> {
        let head = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 9, 0, 1, b't']].concat();
        self.0.write_all(&((head.len() + body.len()) as u32).to_be_bytes()).unwrap();
        self.0.write_all(&[&head[..], body].concat()).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], [0, 0, 0, 9]);
        answer.split_off(4)
    }

    /// Appends a batch to partition 0 of topic `mixed`; its base offset.
    fn produce(&mut self, transactional_id: &[u8], batch: &[u8]) -> u64 {
        let mut body = transactional_id.to_vec();
        body.extend_from_slice(&[0xff, 0xff, 0, 0, 0x75, 0x30, 0, 0, 0, 1, 0, 5]);
        body.extend_from_slice(b"mixed");
        body.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]);
        body.extend_from_slice(&(batch.len() as u32).to_be_bytes());
        body.extend_from_slice(batch);
        // Before version 7 nobody may send zstd.
        let answer = self.call(PRODUCE, 7, &body);
        // Topics, name, partitions, index; then the error and the offset.
        assert_eq!(answer[19..21], [0, 0], "{answer:?}");
        u64::from_be_bytes(answer[21..29].try_into().unwrap())
    }
}

/// Id and epoch of a producer, -1 for none, and attributes beside the compression.
type Producer = (i64, i16, u8);

fn batch(codec: KafkaCodec, (id, epoch, attributes): Producer, sequence: i32, records: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (delta, (key, value)) in records.iter().enumerate() {
        let mut record = vec![0, 0];
        put_varint(delta as i64, &mut record);
        for bytes in [key, value] {
            put_varint(bytes.len() as i64, &mut record);
            record.extend_from_slice(bytes.as_bytes());
        }
        put_varint(1, &mut record);
        record.extend_from_slice(b"\x02h\x02x");
        put_varint(record.len() as i64, &mut body);
        body.extend_from_slice(&record);
    }
    let mut batch = vec![0; KAFKA_BATCH_HEADER_BYTES];
    batch.extend_from_slice(&codec.compress(&body));
    let length = batch.len() as u32 - 12;
    let mut put = |at: usize, field: &[u8]| batch[at..at + field.len()].copy_from_slice(field);
    put(8, &length.to_be_bytes());
    put(16, &[2]);
    put(22, &[codec as u8 | attributes]);
    put(23, &(records.len() as u32 - 1).to_be_bytes());
    put(27, &1_000_i64.to_be_bytes());
    put(35, &1_000_i64.to_be_bytes());
    put(43, &id.to_be_bytes());
    put(51, &epoch.to_be_bytes());
    put(53, &sequence.to_be_bytes());
    put(57, &(records.len() as u32).to_be_bytes());
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

/// Key, value and number of headers of all that can be read.
async fn read_all(client: &Client) -> Vec<(u64, String, String, usize)> {
    let mut consumer = client.consumer("mixed").from(Start::Earliest).until_end(true).build().await.unwrap();
    let mut all = Vec::new();
    while let Some(record) = consumer.next().await.unwrap() {
        let view = record.view();
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap();
        all.push((record.ordinal, text(view.key()), text(view.value()), record.headers().len()));
    }
    all
}

fn row(ordinal: u64, key: &str, value: &str, headers: usize) -> (u64, String, String, usize) {
    (ordinal, key.into(), value.into(), headers)
}

#[test]
fn native_consumers_read_what_both_doors_have_taken_and_of_transactions_what_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut node = Node::start(&config(dir.path())).unwrap();
    let mut kafka = Kafka::connect(&node);
    let connect = |node: &Node| runtime.block_on(Client::connect(node.address().to_string())).unwrap();
    let mut client = connect(&node);
    let none: &[u8] = &[0xff, 0xff];
    let id: &[u8] = &[0, 2, b'i', b'd'];

    runtime.block_on(client.admin().create_stream("mixed", StreamOptions::default())).unwrap();
    let plain = (-1, -1, 0);
    assert_eq!(kafka.produce(none, &batch(KafkaCodec::Lz4, plain, -1, &[("k", "lz4"), ("l", "too")])), 0);
    runtime.block_on(async {
        let mut producer = client.producer("mixed").build().await.unwrap();
        let record = Record { keys: &[b"n"], value: Some(b"native"), ..Record::default() };
        producer.send(&record).await.unwrap();
        producer.close().await.unwrap();
    });
    assert_eq!(kafka.produce(none, &batch(KafkaCodec::Gzip, plain, -1, &[("k", "gzip")])), 3);
    let mut expected =
        vec![row(0, "k", "lz4", 1), row(1, "l", "too", 1), row(2, "n", "native", 0), row(3, "k", "gzip", 1)];
    assert_eq!(runtime.block_on(read_all(&client)), expected);

    // InitProducerId 0: id, timeout; the answer has throttle time, error, id, epoch.
    let answer = kafka.call(INIT_PRODUCER_ID, 0, &[id, &[0, 9, 0x27, 0xc0]].concat());
    let producer_id = i64::from_be_bytes(answer[6..14].try_into().unwrap());
    let producer = (producer_id, i16::from_be_bytes(answer[14..16].try_into().unwrap()), 0x10);
    let who = [id, &producer.0.to_be_bytes(), &producer.1.to_be_bytes()].concat();
    for (sequence, commit) in [(0, 0), (1, 1)] {
        let added = [&who[..], &[0, 0, 0, 1, 0, 5], b"mixed", &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
        let mut answer = kafka.call(ADD_PARTITIONS_TO_TXN, 0, &added);
        // The transaction before is being ended.
        while answer.ends_with(&51_i16.to_be_bytes()) {
            std::thread::sleep(Duration::from_millis(5));
            answer = kafka.call(ADD_PARTITIONS_TO_TXN, 0, &added);
        }
        assert!(answer.ends_with(&[0, 0]), "{answer:?}");
        let value = if commit == 1 { "committed" } else { "aborted" };
        let offset = kafka.produce(id, &batch(KafkaCodec::Zstd, producer, sequence, &[("t", value)]));
        assert_eq!(runtime.block_on(read_all(&client)), expected, "it has not ended");
        assert!(kafka.call(END_TXN, 0, &[&who[..], &[commit]].concat()).ends_with(&[0, 0]));
        if commit == 1 {
            expected.push(row(offset, "t", value, 1));
        }
    }
    // Behind the last marker, so that whoever reads this has seen what the transactions left.
    let last = kafka.produce(none, &batch(KafkaCodec::None, plain, -1, &[("k", "last")]));
    expected.push(row(last, "k", "last", 1));
    for _ in 0..2 {
        let mut found = runtime.block_on(read_all(&client));
        while found.len() < expected.len() {
            std::thread::sleep(Duration::from_millis(5));
            found = runtime.block_on(read_all(&client));
        }
        assert_eq!(found, expected);
        // The same after a restart.
        node.stop();
        node = Node::start(&config(dir.path())).unwrap();
        client = connect(&node);
    }
    node.stop();
}
