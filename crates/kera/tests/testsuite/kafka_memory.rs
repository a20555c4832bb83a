//! Kafka clients that promise and ask for far more than a node may use: its memory stays within what its settings say, as the system counts it.

use std::io::Write;
use std::net::TcpStream;

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{FetchRequest, MetadataRequest, ProduceRequest};
use kafka_protocol::records::Record;

use crate::common::kafka::{Kafka, name, produce_request, record};
use crate::common::{Node, Place, eventually};

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

/// One record with so many zeros, compressed by zstd or not.
fn produce(topic: &str, bytes: usize, is_compressed: bool) -> ProduceRequest {
    let zeros = record((-1, -1), false, (0, -1), 0, vec![0; bytes].into());
    let mut request = produce_request(None, topic, 0, &[Record { key: Some(Bytes::from_static(b"key")), ..zeros }]);
    let batch = request.topic_data[0].partition_data[0].records.as_mut().expect("a batch");
    if is_compressed {
        let records = zstd::bulk::compress(&batch[HEADER_BYTES..], 1).expect("compresses");
        let mut bytes = [&batch[..HEADER_BYTES], &records].concat();
        bytes[22] |= ZSTD;
        let length = bytes.len() as i32 - 12;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let checksum = kera_format::checksum::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
        assert!(bytes.len() < 1 << 20, "{} bytes are sent", bytes.len());
        *batch = bytes.into();
    }
    request
}

/// The error of a write, as clients that know zstd ask for it.
fn written(kafka: &mut Kafka, request: &ProduceRequest) -> i16 {
    kafka.call(7, request).expect("an answer").responses[0].partition_responses[0].error_code
}

fn fetch(topic: &str) -> FetchRequest {
    let partition = FetchPartition::default().with_partition(0).with_fetch_offset(0).with_partition_max_bytes(8 << 20);
    let of = FetchTopic::default().with_topic(name(topic)).with_partitions(vec![partition]);
    FetchRequest::default().with_max_wait_ms(0).with_max_bytes(8 << 20).with_topics(vec![of])
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
    let node = place.start_with(&[&limits[..], &["--stall-timeout", "8s"]].concat());
    let address = node.ready()["kafka"].as_str().expect("it says where Kafka clients connect").to_owned();
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let kafka = || Kafka::connect(port).expect("it listens");
    let connect = || TcpStream::connect(&address).expect("it listens");
    node.ok("stream create compacted --cleanup compact");
    let mut good = kafka();
    let made = MetadataRequestTopic::default().with_name(Some(name("t")));
    good.call(1, &MetadataRequest::default().with_topics(Some(vec![made]))).expect("an answer");
    let is_made = || written(&mut kafka(), &produce("t", 100, false)) == 0;
    eventually("the topic is there", is_made);
    for _ in 0..20 {
        assert_eq!(written(&mut good, &produce("t", 900_000, false)), 0);
    }

    // Many promise 4 MB each, send a part of that, and wait.
    let mut started = 3_900_000_i32.to_be_bytes().to_vec();
    started.resize(500_000, 0);
    let mut slow: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
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
            let mut stream = connect();
            let mut lie = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 1, 0, 1, b't']].concat();
            lie.extend_from_slice(&[0x7f, 0xff, 0xff, 0xff].repeat(20));
            let _ = stream.write_all(&[&(lie.len() as i32).to_be_bytes()[..], &lie].concat());
        }
    }

    // A batch that is far more when it is opened, where the node must look inside.
    assert_eq!(written(&mut good, &produce("compacted", 1_000, true)), 0);
    assert_ne!(written(&mut good, &produce("compacted", BOMB_BYTES, true)), 0, "nobody may write what nobody may read");
    assert_eq!(written(&mut good, &produce("t", 100, false)), 0);
    assert!(most_mib(&node) < within, "{} MiB after requests that lie, {within} are allowed", most_mib(&node));

    // Many ask for 8 MB a hundred times each and take nothing.
    let mut deaf: Vec<Kafka> = (0..DEAF).map(|_| kafka()).collect();
    for one in &mut deaf {
        (0..100).for_each(|_| one.send(4, &fetch("t")).expect("it is taken"));
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
