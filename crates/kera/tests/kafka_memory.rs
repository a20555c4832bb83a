//! Kafka clients that promise and ask for far more than a node may use: its memory stays within what its settings say, as the system counts it.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Node, Place, eventually};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{FetchRequest, MetadataRequest, ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};

/// What the node may use, by its flags: records, requests that are being received, answers that wait on a connection.
const ARENA_MIB: u64 = 64;
const RECEIVE_MIB: u64 = 8;
const UNSENT_MIB: u64 = 1;
/// Its own code and state, and what its allocator keeps for each thread: about 50 with two processors.
const OWN_MIB: u64 = 128;
/// Connections that take nothing.
const DEAF: u64 = 40;
/// The header of a batch, and what it says of records that zstd has compressed.
const HEADER_BYTES: usize = 61;
const ZSTD: u8 = 4;
/// Bytes that a batch has when it is opened.
const BOMB_BYTES: usize = 200 << 20;

/// The most memory that the node has had, in MiB.
fn most_mib(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    most.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

struct Door(String);

impl Door {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

/// A frame: its length, a header whose version is not flexible, and the request.
fn frame<R: Request + Encodable>(version: i16, asked: &R) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&R::KEY.to_be_bytes());
    body.extend_from_slice(&version.to_be_bytes());
    body.extend_from_slice(&[0, 0, 0, 1, 0, 1, b't']);
    asked.encode(&mut body, version).expect("encodes");
    [&(body.len() as i32).to_be_bytes()[..], &body].concat()
}

fn answered(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

fn topic(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

/// Produce version 7 of one record with so many zeros, compressed by zstd or not.
fn produce(name: &'static str, bytes: usize, is_compressed: bool) -> Vec<u8> {
    let record = Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: -1,
        timestamp: 0,
        key: Some(bytes::Bytes::from_static(b"key")),
        value: Some(vec![0; bytes].into()),
        headers: Default::default(),
    };
    let mut batch = bytes::BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut batch, [&record], &options).expect("encodes");
    if is_compressed {
        let records = zstd::bulk::compress(&batch[HEADER_BYTES..], 1).expect("compresses");
        batch.truncate(HEADER_BYTES);
        batch.extend_from_slice(&records);
        batch[22] |= ZSTD;
        let length = batch.len() as i32 - 12;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        let checksum = kera_format::checksum::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    }
    let partition = PartitionProduceData::default().with_index(0).with_records(Some(batch.freeze()));
    let data = TopicProduceData::default().with_name(topic(name)).with_partition_data(vec![partition]);
    frame(7, &ProduceRequest::default().with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![data]))
}

fn written(stream: &mut TcpStream, request: &[u8]) -> i16 {
    stream.write_all(request).unwrap();
    let body = answered(stream);
    let told = ProduceResponse::decode(&mut bytes::Bytes::from(body).slice(4..), 7).expect("an answer");
    told.responses[0].partition_responses[0].error_code
}

fn fetch(name: &'static str) -> Vec<u8> {
    let partition = FetchPartition::default().with_partition(0).with_fetch_offset(0).with_partition_max_bytes(8 << 20);
    let of = FetchTopic::default().with_topic(topic(name)).with_partitions(vec![partition]);
    frame(4, &FetchRequest::default().with_max_wait_ms(0).with_max_bytes(8 << 20).with_topics(vec![of]))
}

#[test]
fn the_memory_of_a_node_is_what_its_settings_say_whatever_clients_send() {
    let place = Place::new();
    let limits = [
        "--frame-bytes-max",
        "4MiB",
        "--receive-bytes-max",
        "8MiB",
        "--unsent-bytes-max",
        "1MiB",
        "--answer-bytes-max",
        "2MiB",
    ];
    let node = place.start_with(&[&limits[..], &["--stall-timeout", "2s"]].concat());
    let door = Door(node.ready()["kafka"].as_str().expect("it says where Kafka clients connect").to_owned());
    node.ok("stream create compacted --cleanup compact");
    let mut good = door.connect();
    let made = MetadataRequestTopic::default().with_name(Some(topic("t")));
    good.write_all(&frame(1, &MetadataRequest::default().with_topics(Some(vec![made])))).unwrap();
    answered(&mut good);
    let is_made = || written(&mut door.connect(), &produce("t", 100, false)) == 0;
    eventually("the topic is there", is_made);
    for _ in 0..20 {
        assert_eq!(written(&mut good, &produce("t", 900_000, false)), 0);
    }

    // Many promise 4 MB each, send a part of that, and wait.
    let mut started = 3_900_000_i32.to_be_bytes().to_vec();
    started.resize(500_000, 0);
    let mut slow: Vec<TcpStream> = (0..200).map(|_| door.connect()).collect();
    for stream in &mut slow {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&started);
    }
    assert_eq!(written(&mut good, &produce("t", 100, false)), 0);
    let within = OWN_MIB + ARENA_MIB + RECEIVE_MIB;
    assert!(most_mib(&node) < within, "{} MiB after requests that do not come, {within} are allowed", most_mib(&node));
    drop(slow);

    // Counts of everything that say two thousand millions.
    for key in 0..100_i16 {
        for version in 0..6_i16 {
            let mut stream = door.connect();
            let mut lie = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 1, 0, 1, b't']].concat();
            lie.extend_from_slice(&[0x7f, 0xff, 0xff, 0xff].repeat(20));
            let _ = stream.write_all(&[&(lie.len() as i32).to_be_bytes()[..], &lie].concat());
        }
    }

    // A batch that is far more when it is opened, where the node must look inside.
    assert_eq!(written(&mut good, &produce("compacted", 1_000, true)), 0);
    let bomb = produce("compacted", BOMB_BYTES, true);
    assert!(bomb.len() < 1 << 20, "{} bytes are sent", bomb.len());
    assert_ne!(written(&mut good, &bomb), 0, "nobody may write what nobody may read");
    assert_eq!(written(&mut good, &produce("t", 100, false)), 0);
    assert!(most_mib(&node) < within, "{} MiB after requests that lie, {within} are allowed", most_mib(&node));

    // Many ask for 8 MB a hundred times each and take nothing.
    let mut deaf: Vec<TcpStream> = (0..DEAF).map(|_| door.connect()).collect();
    for stream in &mut deaf {
        stream.write_all(&fetch("t").repeat(100)).unwrap();
    }
    for _ in 0..10 {
        assert_eq!(written(&mut good, &produce("t", 100_000, false)), 0);
    }
    let within = within + DEAF * UNSENT_MIB;
    assert!(most_mib(&node) < within, "{} MiB with answers that nobody takes, {within} are allowed", most_mib(&node));
    drop(deaf);
    assert_eq!(written(&mut good, &produce("t", 100, false)), 0);
    assert_eq!(node.stop(), 0);
}
