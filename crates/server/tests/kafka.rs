//! The Kafka door of a whole node, over sockets: frames, limits, a restart.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use kera_server::Node;
use kera_server::config::Config;

fn config(dir: &Path) -> Config {
    let mut config = Config::default();
    config.node.data = dir.join("data");
    config.node.io_threads = Some(1);
    config.network.listen = "127.0.0.1:0".into();
    config.http.listen = None;
    config.kafka.listen = Some("127.0.0.1:0".into());
    config.arena.bytes = Some(32 << 20);
    config.arena.dir = Some(dir.join("arena"));
    config
}

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.kafka_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A request of version 0 or 1: key, version, correlation, client "t", body.
fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&(11 + body.len() as i32).to_be_bytes());
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&correlation.to_be_bytes());
    frame.extend_from_slice(&[0, 1, b't']);
    frame.extend_from_slice(body);
    frame
}

fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Whether the node has closed the connection without a word.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn requests_sent_at_once_are_answered_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut stream = connect(&node);
    // ApiVersions; Metadata of a topic that is made for it, which takes a disk; ApiVersions.
    let topic = [&[0, 0, 0, 1, 0, 4][..], b"made"].concat();
    let all = [request(18, 0, 1, &[]), request(3, 1, 2, &topic), request(18, 0, 3, &[])].concat();
    // In pieces, as a slow network brings them.
    for piece in all.chunks(7) {
        stream.write_all(piece).unwrap();
    }
    assert_eq!(answer(&mut stream)[..6], [0, 0, 0, 1, 0, 0]);
    let metadata = answer(&mut stream);
    assert_eq!(metadata[..4], [0, 0, 0, 2]);
    assert!(metadata.windows(4).any(|name| name == b"made"));
    assert_eq!(answer(&mut stream)[..6], [0, 0, 0, 3, 0, 0]);
    node.stop();
}

#[test]
fn what_is_no_request_closes_its_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let mut good = connect(&node);
    for bad in [
        &[0x7f, 0xff, 0xff, 0xff][..],
        &[0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 2, 0, 3],
        b"GET / HTTP/1.1\r\n\r\n",
        &request(99, 0, 1, &[]),
        &request(3, 1, 1, &[0x7f, 0xff, 0xff, 0xff]),
    ] {
        let mut stream = connect(&node);
        stream.write_all(bad).unwrap();
        assert!(is_closed(&mut stream), "{bad:?}");
    }
    good.write_all(&request(18, 0, 1, &[])).unwrap();
    assert_eq!(answer(&mut good)[..6], [0, 0, 0, 1, 0, 0]);
    node.stop();
}

#[test]
fn topics_and_groups_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let topic = [&[0, 0, 0, 1, 0, 4][..], b"kept"].concat();
    // OffsetCommit version 2 of a group without members: group, no generation, no member, no retention time, one topic.
    let mut commit = [&[0, 1, b'g', 0xff, 0xff, 0xff, 0xff, 0, 0][..], &[0xff; 8]].concat();
    commit.extend_from_slice(&[&topic[..], &[0, 0, 0, 1, 0, 0, 0, 0]].concat());
    commit.extend_from_slice(&[&41_i64.to_be_bytes()[..], &[0, 1, b'm']].concat());
    let fetch = [&[0, 1, b'g'][..], &topic, &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    for round in 0..2 {
        let node = Node::start(&config(dir.path())).unwrap();
        let mut stream = connect(&node);
        if round == 0 {
            stream.write_all(&request(3, 1, 1, &topic)).unwrap();
            assert!(!answer(&mut stream).is_empty());
            stream.write_all(&request(8, 2, 2, &commit)).unwrap();
            assert_eq!(answer(&mut stream).last_chunk(), Some(&[0, 0]), "committed");
        }
        stream.write_all(&request(9, 1, 3, &fetch)).unwrap();
        let fetched = answer(&mut stream);
        let expected = [&41_i64.to_be_bytes()[..], &[0, 1, b'm', 0, 0]].concat();
        assert!(fetched.ends_with(&expected), "round {round}: {fetched:?}");
        node.stop();
    }
}

#[test]
fn what_was_deleted_stays_deleted_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let topic = [&[0, 0, 0, 1, 0, 4][..], b"kept"].concat();
    let partition = [0, 0, 0, 1, 0, 0, 0, 0];
    // Three records, uncompressed: "a", "b", "c", as a client sends them, with the checksum of what follows it.
    let mut batch = vec![0; 61];
    for n in 0..3_u8 {
        batch.extend_from_slice(&[14, 0, 0, n * 2, 1, 2, b'a' + n, 0]);
    }
    let length = batch.len() as i32 - 12;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    batch[23..27].copy_from_slice(&2_i32.to_be_bytes());
    batch[43..57].fill(0xff);
    batch[57..61].copy_from_slice(&3_i32.to_be_bytes());
    let checksum = kera_format::checksum::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    // Produce version 3: no transactional id, acks, timeout, a topic, a partition, the batch.
    let mut produce = [&[0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0][..], &topic, &partition].concat();
    produce.extend_from_slice(&(batch.len() as i32).to_be_bytes());
    produce.extend_from_slice(&batch);
    let delete = [&topic[..], &partition, &2_i64.to_be_bytes(), &[0, 0, 0x10, 0]].concat();
    // ListOffsets version 1: no replica, the earliest.
    let earliest = [&[0xff; 4][..], &topic, &partition, &(-2_i64).to_be_bytes()].concat();
    for round in 0..2 {
        let node = Node::start(&config(dir.path())).unwrap();
        let mut stream = connect(&node);
        if round == 0 {
            stream.write_all(&request(3, 1, 1, &topic)).unwrap();
            assert!(!answer(&mut stream).is_empty());
            stream.write_all(&request(0, 3, 2, &produce)).unwrap();
            let produced = answer(&mut stream);
            assert_eq!(produced[4 + 4 + 6 + 8..][..10], [0; 10], "{produced:?}");
            stream.write_all(&request(21, 0, 3, &delete)).unwrap();
            let deleted = answer(&mut stream);
            assert_eq!(deleted[deleted.len() - 10..], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0], "{deleted:?}");
        }
        stream.write_all(&request(2, 1, 4, &earliest)).unwrap();
        let told = answer(&mut stream);
        assert_eq!(told[told.len() - 8..], 2_i64.to_be_bytes(), "round {round}: {told:?}");
        node.stop();
    }
}
