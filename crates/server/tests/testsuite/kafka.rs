//! The Kafka door of a whole node, over sockets: frames, limits, a restart.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use kera_server::Node;

use crate::common::{self, answer, config, connect, request};

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
    // Produce version 3: no transactional id, acks, timeout (the longest), a topic, a partition, the batch.
    let mut produce = [&[0xff, 0xff, 0xff, 0xff, 0, 0, 0xea, 0x60][..], &topic, &partition].concat();
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

/// What a client has set of a topic is described as it was set, whether or not it is what holds, also by a node that was started again.
#[test]
fn settings_are_as_they_were_set_after_a_restart() {
    use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
    use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
    use kafka_protocol::messages::*;

    use common::{call, text};

    let dir = tempfile::tempdir().unwrap();
    let given = [
        ("cleanup.policy", "delete"),
        ("max.message.bytes", "1000000"),
        ("min.cleanable.dirty.ratio", "0.304"),
        ("min.insync.replicas", "1"),
        ("segment.bytes", "1073741824"),
    ];
    for round in 0..3 {
        let node = Node::start(&config(dir.path())).unwrap();
        let mut stream = connect(&node);
        if round == 0 {
            let config = |(name, value): &(&str, &str)| {
                CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
            };
            let topic = CreatableTopic::default()
                .with_name(TopicName(text("kept")))
                .with_num_partitions(1)
                .with_replication_factor(1)
                .with_configs(given.iter().map(config).collect());
            let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
            assert_eq!(call(&mut stream, 5, &request).topics[0].error_code, 0);
        }
        let resource = DescribeConfigsResource::default().with_resource_type(2).with_resource_name(text("kept"));
        let resource = resource.with_configuration_keys(None);
        let described = call(&mut stream, 3, &DescribeConfigsRequest::default().with_resources(vec![resource]));
        let set = described.results[0].configs.iter().filter(|one| one.config_source == 1);
        let set: Vec<_> = set.map(|one| (one.name.to_string(), one.value.clone().unwrap().to_string())).collect();
        assert_eq!(set, given.map(|(name, value)| (name.to_owned(), value.to_owned())), "round {round}");
        node.stop();
    }
}

/// Transactions of clients, with a node that is killed in between: kafka-protocol's own codecs write the requests.
mod transactions {
    use super::*;
    use std::time::Instant;

    use bytes::Bytes;
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
    use kafka_protocol::messages::*;
    use kafka_protocol::protocol::Request;

    use crate::common::{PATIENCE, Process, call, connect_to, serve_until_killed, text};

    /// The one topic.
    const TOPIC: &str = "moved";
    /// Producers that add partitions by writing to them, and get an epoch with every end.
    const PRODUCE: i16 = 12;
    const END: i16 = 5;

    fn topic() -> TopicName {
        TopicName(text(TOPIC))
    }

    struct Client(TcpStream);

    impl Client {
        fn connect(address: std::net::SocketAddr) -> Client {
            Client(connect_to(address))
        }

        fn call<R: Request>(&mut self, version: i16, asked: &R) -> R::Response {
            call(&mut self.0, version, asked)
        }

        fn make_topic(&mut self) {
            let one = MetadataRequestTopic::default().with_name(Some(topic()));
            let asked = MetadataRequest::default().with_topics(Some(vec![one])).with_allow_auto_topic_creation(true);
            assert_eq!(self.call(8, &asked).topics[0].error_code, 0);
        }

        fn init(&mut self, id: &str) -> (i64, i16) {
            let asked = InitProducerIdRequest::default()
                .with_transactional_id(Some(TransactionalId(text(id))))
                .with_transaction_timeout_ms(600_000);
            loop {
                let begun = self.call(4, &asked);
                // A transaction that ran is aborted first.
                if begun.error_code != 51 {
                    assert_eq!(begun.error_code, 0);
                    return (begun.producer_id.0, begun.producer_epoch);
                }
            }
        }

        /// Writes one record in a transaction: the error.
        fn write(&mut self, id: &str, producer: (i64, i16), sequence: i32) -> i16 {
            let one = produce_request::PartitionProduceData::default().with_records(Some(record(producer, sequence)));
            let one = produce_request::TopicProduceData::default().with_name(topic()).with_partition_data(vec![one]);
            let asked = ProduceRequest::default()
                .with_transactional_id(Some(TransactionalId(text(id))))
                .with_acks(-1)
                .with_timeout_ms(60_000)
                .with_topic_data(vec![one]);
            self.call(PRODUCE, &asked).responses[0].partition_responses[0].error_code
        }

        /// Ends a transaction: who the producer is from now on, or the error. While it is being ended, as it may be by a node that has just
        /// started, everybody has to ask again.
        fn end(&mut self, id: &str, (producer, epoch): (i64, i16), commit: bool) -> Result<(i64, i16), i16> {
            let asked = EndTxnRequest::default()
                .with_transactional_id(TransactionalId(text(id)))
                .with_producer_id(ProducerId(producer))
                .with_producer_epoch(epoch)
                .with_committed(commit);
            let until = Instant::now() + PATIENCE;
            loop {
                let ended = self.call(END, &asked);
                match ended.error_code {
                    0 => return Ok((ended.producer_id.0, ended.producer_epoch)),
                    51 if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                    error => return Err(error),
                }
            }
        }

        /// The producers of the records that a reader of committed ones gives out, once `count` of them are there.
        fn committed(&mut self, count: usize) -> Vec<(i64, i16)> {
            let one = fetch_request::FetchPartition::default().with_partition_max_bytes(1 << 20);
            let one = fetch_request::FetchTopic::default().with_topic(topic()).with_partitions(vec![one]);
            let asked = FetchRequest::default()
                .with_max_wait_ms(50)
                .with_min_bytes(1 << 20)
                .with_max_bytes(1 << 20)
                .with_isolation_level(1)
                .with_topics(vec![one]);
            let until = Instant::now() + PATIENCE;
            loop {
                let fetched = self.call(11, &asked);
                let one = &fetched.responses[0].partitions[0];
                let aborted = one.aborted_transactions.iter().flatten().map(|of| (of.producer_id.0, of.first_offset));
                let given = given(one.records.as_deref().unwrap_or_default(), aborted.collect());
                if given.len() >= count || Instant::now() > until {
                    return given;
                }
            }
        }
    }

    /// A batch of one record, "x".
    fn record((producer, epoch): (i64, i16), sequence: i32) -> Bytes {
        let mut batch = vec![0; 61];
        batch.extend_from_slice(&[14, 0, 0, 0, 1, 2, b'x', 0]);
        let length = batch.len() as i32 - 12;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[16] = 2;
        batch[22] = 16;
        batch[43..51].copy_from_slice(&producer.to_be_bytes());
        batch[51..53].copy_from_slice(&epoch.to_be_bytes());
        batch[53..57].copy_from_slice(&sequence.to_be_bytes());
        batch[57..61].copy_from_slice(&1_i32.to_be_bytes());
        let checksum = kera_format::checksum::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&checksum.to_be_bytes());
        batch.into()
    }

    /// What a consumer makes of batches and the list of aborted transactions.
    fn given(mut records: &[u8], mut aborted: Vec<(i64, i64)>) -> Vec<(i64, i16)> {
        let mut passed_over = Vec::new();
        let mut given = Vec::new();
        while records.len() >= 61 {
            let field = |at: usize| i64::from_be_bytes(records[at..at + 8].try_into().unwrap());
            let (offset, producer) = (field(0), field(43));
            let epoch = i16::from_be_bytes([records[51], records[52]]);
            aborted.retain(|(id, first)| {
                let begins = *first <= offset;
                passed_over.extend(begins.then_some(*id));
                !begins
            });
            if records[22] & 32 != 0 {
                passed_over.retain(|id| *id != producer);
            } else if !passed_over.contains(&producer) {
                given.push((producer, epoch));
            }
            records = &records[12 + i32::from_be_bytes(records[8..12].try_into().unwrap()) as usize..];
        }
        given
    }

    #[test]
    fn what_is_committed_is_read_what_is_aborted_is_not_and_who_comes_late_is_fenced() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&config(dir.path())).unwrap();
        let mut client = Client::connect(node.kafka_address().unwrap());
        client.make_topic();
        let first = client.init("a");
        assert_eq!((client.write("a", first, 0), client.write("a", first, 1)), (0, 0));
        assert_eq!(client.committed(0), []);
        let second = client.end("a", first, true).unwrap();
        assert_eq!(client.write("a", second, 0), 0, "also while the one before is being ended");
        let third = client.end("a", second, false).unwrap();
        assert_eq!(client.committed(2), [first, first]);
        assert_eq!(client.write("a", first, 2), 47, "of an earlier epoch");
        assert_eq!(client.write("a", third, 0), 0);
        let another = client.init("a");
        assert_eq!(client.write("a", third, 1), 47, "somebody else has the id");
        assert_eq!(client.end("a", third, true), Err(90));
        assert_eq!(client.write("a", another, 0), 0);
        client.end("a", another, true).unwrap();
        assert_eq!(client.committed(3), [first, first, another]);
        node.stop();
    }

    /// Not a test of its own: the node that the one below kills.
    #[test]
    #[ignore = "a node for another test, until it is killed"]
    fn serves_until_it_is_killed() {
        serve_until_killed(config)
    }

    fn start(dir: &Path) -> (Process, Client) {
        let process = Process::start("kafka::transactions::serves_until_it_is_killed", dir);
        let client = Client::connect(process.kafka);
        (process, client)
    }

    #[test]
    fn a_node_that_is_killed_comes_back_with_what_was_decided_and_what_runs() {
        let dir = tempfile::tempdir().unwrap();
        let (process, mut client) = start(dir.path());
        client.make_topic();
        let (runs, ends) = (client.init("runs"), client.init("ends"));
        assert_eq!((client.write("runs", runs, 0), client.write("ends", ends, 0)), (0, 0));
        let next = client.end("ends", ends, true).unwrap();
        // Its markers may be written, or not.
        drop(process);
        let (process, mut client) = start(dir.path());
        assert_eq!(client.end("ends", ends, true), Ok(next), "the answer could have been lost");
        assert_eq!(client.write("runs", runs, 1), 0, "it goes on where it was");
        let decided = client.end("runs", runs, true).unwrap();
        drop(process);
        let (_process, mut client) = start(dir.path());
        assert_eq!(client.committed(3), [runs, ends, runs]);
        assert_eq!((client.write("runs", decided, 0), client.write("ends", next, 0)), (0, 0));
        client.end("runs", decided, false).unwrap();
        client.end("ends", next, true).unwrap();
        assert_eq!(client.committed(4), [runs, ends, runs, next]);
    }
}
