//! Kafka clients that are many, that take nothing, that send nonsense: what they want is bounded, and nobody else notices.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kera_server::Node;
use kera_server::config::Config;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common::{self, PATIENCE, answer, connect, connect_to, request};

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;
const VERSIONS: i16 = 18;

fn config(dir: &Path) -> Config {
    let mut config = common::config(dir);
    config.http.listen = Some("127.0.0.1:0".into());
    config
}

fn ask(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    stream.write_all(request).unwrap();
    answer(stream)
}

/// The topic "t" in an array of one, and its first partition in one.
const TOPIC: [u8; 7] = [0, 0, 0, 1, 0, 1, b't'];
const PARTITION: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 0];

/// Makes the topic "t".
fn make_topic(stream: &mut TcpStream) {
    assert!(!ask(stream, &request(METADATA, 1, 1, &TOPIC)).is_empty());
}

/// Produce version 3 of one record with so many bytes, as a client sends it.
fn produce(value_bytes: usize) -> Vec<u8> {
    let varint = |value: usize| {
        let (mut rest, mut out) = (value << 1, Vec::new());
        while rest > 127 {
            out.push(rest as u8 | 128);
            rest >>= 7;
        }
        out.push(rest as u8);
        out
    };
    let mut record = vec![0, 0, 0, 1];
    record.extend_from_slice(&varint(value_bytes));
    record.resize(record.len() + value_bytes, b'x');
    record.push(0);
    let mut batch = vec![0; 61];
    batch.extend_from_slice(&varint(record.len()));
    batch.extend_from_slice(&record);
    let length = batch.len() as i32 - 12;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    batch[43..57].fill(0xff);
    batch[57..61].copy_from_slice(&1_i32.to_be_bytes());
    let checksum = kera_format::checksum::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    // It may wait for as long as any.
    let mut body = [&[0xff, 0xff, 0xff, 0xff, 0, 0, 0xea, 0x60][..], &TOPIC, &PARTITION].concat();
    body.extend_from_slice(&(batch.len() as i32).to_be_bytes());
    body.extend_from_slice(&batch);
    request(PRODUCE, 3, 2, &body)
}

/// The error code of a Produce answer.
fn produced(answer: &[u8]) -> i16 {
    let at = 4 + TOPIC.len() + PARTITION.len();
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

/// Fetch version 4 from an offset on, which waits for a minute if there is nothing.
fn fetch(offset: i64) -> Vec<u8> {
    let most = (8_i32 << 20).to_be_bytes();
    let mut body = [&[0xff; 4][..], &60_000_i32.to_be_bytes(), &1_i32.to_be_bytes(), &most, &[0]].concat();
    body.extend_from_slice(&[&TOPIC[..], &PARTITION, &offset.to_be_bytes(), &most].concat());
    request(FETCH, 4, 3, &body)
}

/// The value of a metric of the node.
fn metric(node: &Node, name: &str) -> u64 {
    let mut stream = connect_to(node.http_address().unwrap());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: kera\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap() as u64
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The answer, unless the node has closed the connection.
fn answer_if_open(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut first = [0];
    let is_open = stream.peek(&mut first).is_ok_and(|bytes| bytes > 0);
    is_open.then(|| answer(stream))
}

/// Whether the node has closed the connection, whatever it said before.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_thousand_connections_wait_for_the_same_record_and_get_it() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut producer = connect(&node);
    make_topic(&mut producer);
    let mut readers: Vec<TcpStream> = (0..1_000).map(|_| connect(&node)).collect();
    for reader in &mut readers {
        assert_eq!(ask(reader, &request(VERSIONS, 0, 1, &[]))[..6], [0, 0, 0, 1, 0, 0]);
        reader.write_all(&fetch(0)).unwrap();
    }
    assert_eq!(metric(&node, "kera_kafka_connections "), 1_001);
    assert_eq!(produced(&ask(&mut producer, &produce(5))), 0);
    for reader in &mut readers {
        let has_it = |fetched: &[u8]| fetched.windows(5).any(|value| value == b"xxxxx");
        let mut fetched = answer(reader);
        if !has_it(&fetched) {
            // No fetch waits for more than a minute, and the others may have taken longer to connect.
            fetched = ask(reader, &fetch(0));
        }
        assert!(has_it(&fetched), "{fetched:?}");
    }
    drop(readers);
    until("their connections are forgotten", || metric(&node, "kera_kafka_connections ") == 1);
    node.stop();
}

#[test]
fn who_takes_no_answers_is_not_read_from_and_closed_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.network.unsent_bytes_max = 64 << 10;
    config.network.stall_timeout = 2_000;
    let node = Node::start(&config).unwrap();
    let mut good = connect(&node);
    make_topic(&mut good);
    // In requests each of which is sent at once: the rest of one would have to come in time, too.
    for _ in 0..200 {
        assert_eq!(produced(&ask(&mut good, &produce(10_000))), 0);
    }
    // 2 MB are asked for two thousand times, and none of it is taken.
    let mut deaf = connect(&node);
    let before = metric(&node, "kera_kafka_requests_total{request=\"Fetch\"}");
    deaf.write_all(&fetch(0).repeat(2_000)).unwrap();
    let answered = || metric(&node, "kera_kafka_requests_total{request=\"Fetch\"}") - before;
    until("some are answered", || answered() > 0);
    let (mut longest, begun, mut others) = (Duration::ZERO, Instant::now(), 0);
    while others < 20 || begun.elapsed() < Duration::from_secs(1) {
        let asked = Instant::now();
        assert_eq!(produced(&ask(&mut good, &produce(10))), 0);
        longest = longest.max(asked.elapsed());
        others += 1;
    }
    // What has been answered is on its way in the system's own buffers, and one answer more.
    let answered = answered();
    assert!(answered < 50, "{answered} fetches were answered; the longest wait of others was {longest:?}");
    until("it is closed", || metric(&node, "kera_kafka_connections ") == 1);
    assert!(is_closed(&mut deaf));
    assert_eq!(produced(&ask(&mut good, &produce(10))), 0);
    node.stop();
}

#[test]
fn large_requests_whose_rest_does_not_come_hold_up_others_for_a_moment_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.network.frame_bytes_max = 4 << 20;
    config.network.receive_bytes_max = 8 << 20;
    config.network.stall_timeout = 1_000;
    let node = Node::start(&config).unwrap();
    let mut good = connect(&node);
    make_topic(&mut good);
    // Each announces 4 MB and sends half of one.
    let mut started = (3_900_000_i32).to_be_bytes().to_vec();
    started.resize(500_000, 0);
    let mut stuck: Vec<TcpStream> = (0..20).map(|_| connect(&node)).collect();
    for stream in &mut stuck {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&started);
    }
    // Small requests have memory of their own; a large one gets it when the others have been given up.
    assert_eq!(produced(&ask(&mut good, &produce(10))), 0);
    let large = produce(900_000);
    until("a large request is served", || {
        // Its own rest has to come in time, too: one that was held up on this machine is sent once more.
        let mut stream = connect(&node);
        let is_sent = stream.write_all(&large).is_ok();
        is_sent && answer_if_open(&mut stream).is_some_and(|answer| produced(&answer) == 0)
    });
    until("they are closed", || metric(&node, "kera_kafka_connections ") == 1);
    node.stop();
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Counts the panics of the node's own threads from now on.
fn count_panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("kera")) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    &PANICS
}

#[test]
fn nonsense_closes_its_connection_at_most() {
    // A panic would end the process of a real node.
    let panics = count_panics();
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut good = connect(&node);
    make_topic(&mut good);
    let mut numbers = Numbers(7);
    let whole = [produce(100), fetch(0), request(METADATA, 1, 1, &TOPIC), request(VERSIONS, 0, 1, &[])];
    let (mut streams, mut sent) = (Vec::new(), 0);
    let mut send = |bytes: &[u8], ends: bool| {
        let mut stream = connect(&node);
        // It may have been closed before everything is out.
        let _ = stream.write_all(bytes);
        if ends {
            let _ = stream.shutdown(Shutdown::Write);
        }
        sent += 1;
        streams.push(stream);
        if streams.len() == 200 {
            streams.clear();
        }
    };
    for frame in &whole {
        // Cut off anywhere.
        for end in 0..frame.len() {
            send(&frame[..end], true);
        }
        // With bytes that are others, in the header and behind it.
        for _ in 0..500 {
            let mut wrong = frame.clone();
            for _ in 0..=numbers.next(4) {
                let at = 4 + numbers.next(wrong.len() - 4);
                wrong[at] = [0, 1, 0x7f, 0x80, 0xff, numbers.next(256) as u8][numbers.next(6)];
            }
            send(&wrong, false);
        }
    }
    // Every request there is, and some that there are not, in any version, with a body that means nothing.
    for key in -1..100 {
        for version in [-1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 99] {
            let bytes = numbers.next(60);
            let body: Vec<u8> =
                (0..bytes).map(|_| [0, 0, 0, 1, 2, 0xff, numbers.next(256) as u8][numbers.next(7)]).collect();
            send(&request(key, version, 5, &body), false);
        }
    }
    assert!(sent > 3_000, "{sent} sent");
    drop(streams);
    until("all of them are gone", || metric(&node, "kera_kafka_connections ") == 1);
    assert_eq!(produced(&ask(&mut good, &produce(10))), 0);
    let fetched = ask(&mut good, &fetch(0));
    assert!(fetched.windows(10).any(|value| value == b"xxxxxxxxxx"));
    assert!(metric(&node, "kera_kafka_connections_rejected_total") > 1_000);
    node.stop();
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}
