//! A connection as its client sees it: requests as bytes, a real log behind.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, StrBytes};
use kera_broker::{Broker, BrokerConfig};
use kera_coordinator::{Coordinator, CoordinatorConfig, StreamEvent, StreamObserver};
use kera_env::{Clock, ManualClock, MemoryDisk, SystemClock, SystemRandom};
use kera_format::kafka_batch;
use kera_format::kafka_codec::KafkaCodec;
use kera_format::{ReplicationMode, StreamOptions};
use kera_log::{Arena, ArenaConfig, DurabilitySink, Log, LogConfig, Observer, SinkError, Ticket};
use kera_protocol::{CreateStream, FrameHeader};
use kera_rpc::{Flow, Outbox, Peer, Session, SessionFactory, SessionWaker};

use crate::batch::BATCH_HEADER_BYTES;
use crate::batch::tests::batch;
use crate::{Door, DoorConfig, DoorThread, KafkaSessions};

/// Says that everything is durable at once.
struct Instant;

impl DurabilitySink for Instant {
    fn appended(&self, reference: kera_log::ChunkReference) -> Ticket {
        // Durable heads move behind the append, which holds the lane's lock.
        std::thread::spawn(move || kera_log::made_durable(&[reference]));
        1
    }
    fn durable_through(&self) -> Ticket {
        1
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        false
    }
    fn healthy(&self) -> Result<(), SinkError> {
        Ok(())
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// Copies that are never made, and do not lag far behind yet.
struct Copying;

impl DurabilitySink for Copying {
    fn appended(&self, _: kera_log::ChunkReference) -> Ticket {
        1
    }
    fn durable_through(&self) -> Ticket {
        0
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        Ok(())
    }
    fn may_answer_early(&self) -> bool {
        true
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

struct Follow(Arc<Broker>);

impl StreamObserver for Follow {
    fn stream_changed(&self, event: &StreamEvent) {
        match event {
            StreamEvent::Created(info) => self.0.stream_created(info.id, info.options.clone()).unwrap(),
            StreamEvent::Altered { after, .. } => self.0.stream_altered(after.id, after.options.clone()).unwrap(),
            StreamEvent::Deleted(info) => self.0.stream_deleted(info.id).unwrap(),
        }
    }
}

struct Client {
    session: Option<Box<dyn Session>>,
    waker: SessionWaker,
    door: Option<(Arc<Door>, DoorThread)>,
    out: Outbox,
    taken: usize,
    _dir: tempfile::TempDir,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session = None;
        let (door, thread) = self.door.take().unwrap();
        drop(door);
        thread.join();
    }
}

impl Client {
    fn new() -> Client {
        Client::with(Arc::new(Instant))
    }

    fn with(sink: Arc<dyn DurabilitySink>) -> Client {
        Client::at(Arc::new(SystemClock::new()), sink)
    }

    /// One whose time is that of a clock.
    fn at(clock: Arc<dyn Clock>, sink: Arc<dyn DurabilitySink>) -> Client {
        Client::over(clock, vec![sink])
    }

    /// One whose streamlets are spread over several logs.
    fn over(clock: Arc<dyn Clock>, sinks: Vec<Arc<dyn DurabilitySink>>) -> Client {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit.arena");
        let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 16 << 20, node: [3; 16] }).unwrap();
        let log = Log::new(LogConfig::default(), arena);
        log.set_sinks(Arc::new(sinks));
        let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
        let config = CoordinatorConfig { nodes: 2, ..CoordinatorConfig::single([3; 16]) };
        let coordinator = Coordinator::open(&config, Arc::new(MemoryDisk::default()), clock.clone()).unwrap();
        let coordinator = Arc::new(coordinator);
        coordinator.set_observer(Arc::new(Follow(broker.clone())));
        let config = DoorConfig { node: [3; 16], ..DoorConfig::default() };
        let door = Door::start(config, broker, coordinator, clock, Arc::new(SystemRandom)).unwrap();
        let waker = SessionWaker::detached();
        let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 1, io_thread: 0 };
        let session = KafkaSessions(door.0.clone()).open(peer, waker.clone());
        Client { session: Some(session), waker, door: Some(door), out: Outbox::new(1 << 20), taken: 0, _dir: dir }
    }

    fn session(&mut self) -> &mut Box<dyn Session> {
        self.session.as_mut().unwrap()
    }

    /// Gives a frame's bytes to the session.
    fn frame(&mut self, body: &[u8]) -> Flow {
        let header = FrameHeader::default();
        let session = self.session.as_mut().unwrap();
        session.on_frame(&header, body, &mut self.out)
    }

    /// What has been answered since the last time, if there is a whole frame: its body.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let all = self.out.to_vec();
        let frame = &all[self.taken..];
        let length = u32::from_be_bytes(*frame.first_chunk()?) as usize;
        self.taken += 4 + length;
        Some(frame[4..4 + length].to_vec())
    }

    /// Waits for an answer that another thread makes.
    fn wait(&mut self) -> Vec<u8> {
        loop {
            if let Some(answer) = self.answer() {
                return answer;
            }
            if self.waker.take() {
                let session = self.session.as_mut().unwrap();
                session.on_wake(&mut self.out);
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn ask<R: Encodable>(&mut self, key: ApiKey, version: i16, request: &R) -> Vec<u8> {
        let bytes = frame(key, version, 7, request);
        assert_eq!(self.frame(&bytes), Flow::Done);
        let answer = self.wait();
        assert_eq!(answer[..4], 7_i32.to_be_bytes());
        answer[4..].to_vec()
    }

    fn create(&mut self, name: &'static str, partitions: i32) {
        let topic = create_topics_request::CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_static_str(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
        let answer = self.ask(ApiKey::CreateTopics, 2, &request);
        // Throttle time, one topic, its name, no error.
        assert_eq!(answer[4..8], 1_i32.to_be_bytes());
        assert_eq!(answer[10 + name.len()..12 + name.len()], [0, 0], "{answer:?}");
    }

    /// Produces a batch with version 3: the error and the base offset.
    fn produce(&mut self, topic: &str, partition: i32, batch: &[u8]) -> (i16, i64) {
        self.produce_as(3, topic, partition, batch)
    }

    /// The same with another version up to 8, which are laid out as this one as far as it is looked at.
    fn produce_as(&mut self, version: u8, topic: &str, partition: i32, batch: &[u8]) -> (i16, i64) {
        let mut bytes = produce_frame(topic, partition, -1, batch);
        bytes[3] = version;
        assert_eq!(self.frame(&bytes), Flow::Done);
        let answer = self.wait();
        // Correlation, one topic, its name, one partition, its index.
        let at = 4 + 4 + 2 + topic.len() + 4 + 4;
        let error = i16::from_be_bytes([answer[at], answer[at + 1]]);
        (error, i64::from_be_bytes(answer[at + 2..at + 10].try_into().unwrap()))
    }

    /// Fetches with version 4: the error, the high watermark, the records.
    fn fetch(&mut self, topic: &'static str, partition: i32, offset: i64) -> (i16, i64, Vec<u8>) {
        let answer = self.ask(ApiKey::Fetch, 4, &fetch_request(topic, partition, offset, 0));
        // Throttle time, one topic, its name, one partition, its index.
        let at = 4 + 4 + 2 + topic.len() + 4 + 4;
        let error = i16::from_be_bytes([answer[at], answer[at + 1]]);
        let high = i64::from_be_bytes(answer[at + 2..at + 10].try_into().unwrap());
        // Last stable offset, no aborted transactions, length.
        (error, high, answer[at + 26..].to_vec())
    }
}

fn frame<R: Encodable>(key: ApiKey, version: i16, correlation: i32, request: &R) -> Vec<u8> {
    let mut bytes = header(key, version, correlation);
    request.encode(&mut bytes, version).unwrap();
    bytes
}

/// What is in front of a request. Headers of requests are only decoded by this build of the schemas.
fn header(key: ApiKey, version: i16, correlation: i32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(key as i16).to_be_bytes());
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&correlation.to_be_bytes());
    bytes.extend_from_slice(&[0, 4]);
    bytes.extend_from_slice(b"test");
    if key.request_header_version(version) >= 2 {
        bytes.push(0);
    }
    bytes
}

fn produce_frame(topic: &str, partition: i32, acks: i16, batch: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3, 0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff];
    bytes.extend_from_slice(&acks.to_be_bytes());
    bytes.extend_from_slice(&60_000_i32.to_be_bytes());
    bytes.extend_from_slice(&1_i32.to_be_bytes());
    bytes.extend_from_slice(&(topic.len() as i16).to_be_bytes());
    bytes.extend_from_slice(topic.as_bytes());
    bytes.extend_from_slice(&1_i32.to_be_bytes());
    bytes.extend_from_slice(&partition.to_be_bytes());
    bytes.extend_from_slice(&(batch.len() as i32).to_be_bytes());
    bytes.extend_from_slice(batch);
    bytes
}

fn fetch_request(topic: &'static str, partition: i32, offset: i64, max_wait_ms: i32) -> FetchRequest {
    let partition = fetch_request::FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << 20);
    let topic = fetch_request::FetchTopic::default()
        .with_topic(TopicName(StrBytes::from_static_str(topic)))
        .with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_topics(vec![topic])
}

#[test]
fn versions_are_told_even_to_whom_asks_in_an_unknown_one() {
    let mut client = Client::new();
    // Version 99 of ApiVersions, with a body that nobody knows.
    assert_eq!(client.frame(&[0, 18, 0, 99, 0, 0, 0, 5, 1, 2, 3]), Flow::Done);
    let answer = client.wait();
    assert_eq!(answer[..6], [0, 0, 0, 5, 0, 35]);
    let produce = [0, 0, 0, 0, 0, 13];
    assert_eq!(answer[10..16], produce, "produce is told from version 0 on");
}

#[test]
fn a_batch_goes_through_unchanged_but_for_its_offset() {
    let mut client = Client::new();
    client.create("t", 2);
    let first = batch(&[b"a", b"b", b"c"], (-1, -1, -1));
    let second = batch(&[b"d"], (-1, -1, -1));
    assert_eq!(client.produce("t", 1, &first), (0, 0));
    assert_eq!(client.produce("t", 1, &second), (0, 3));
    let (error, high, records) = client.fetch("t", 1, 0);
    assert_eq!((error, high), (0, 4));
    assert_eq!(records[..8], 0_i64.to_be_bytes());
    assert_eq!(records[16..first.len()], first[16..]);
    assert_eq!(records[first.len()..first.len() + 8], 3_i64.to_be_bytes());
    assert_eq!(records[first.len() + 16..], second[16..]);
    let (_, _, from_the_second) = client.fetch("t", 1, 3);
    assert_eq!(from_the_second[..8], 3_i64.to_be_bytes());
    assert_eq!(client.fetch("t", 1, 5).0, 1, "past the end");
    assert_eq!(client.fetch("t", 2, 0).0, 3, "no such partition");
    assert_eq!(client.fetch("t", 0, 0), (0, 0, Vec::new()));
}

#[test]
fn what_changed_on_the_way_is_refused_and_leaves_no_trace() {
    let mut client = Client::new();
    client.create("t", 1);
    let mut bad = batch(&[b"a", b"b"], (-1, -1, -1));
    *bad.last_mut().unwrap() ^= 1;
    assert_eq!(client.produce("t", 0, &bad), (2, -1));
    let mut bad = batch(&[b"a", b"b"], (-1, -1, -1));
    bad[30] ^= 1;
    assert_eq!(client.produce("t", 0, &bad), (2, -1), "a timestamp is covered too");
    assert_eq!(client.produce("nowhere", 0, &bad).0, 3);
    assert_eq!(client.fetch("t", 0, 0), (0, 0, Vec::new()));
}

#[test]
fn zstd_is_for_those_who_know_it() {
    let mut client = Client::new();
    client.create("t", 1);
    let plain = batch(&[b"a", b"b"], (-1, -1, -1));
    let records = KafkaCodec::Zstd.compress(&plain[BATCH_HEADER_BYTES..]);
    let mut zstd = [&plain[..BATCH_HEADER_BYTES], &records[..]].concat();
    zstd[22] |= KafkaCodec::Zstd as u8;
    kafka_batch::seal(&mut zstd);
    let unsupported = ResponseError::UnsupportedCompressionType.code();
    assert_eq!(client.produce_as(3, "t", 0, &zstd), (unsupported, -1));
    assert_eq!(client.produce_as(6, "t", 0, &zstd), (unsupported, -1));
    assert_eq!(client.produce_as(6, "nowhere", 0, &zstd).0, ResponseError::UnknownTopicOrPartition.code());
    assert_eq!(client.produce_as(7, "t", 0, &zstd), (0, 0));
    assert_eq!(client.produce_as(6, "t", 0, &plain), (0, 2));
}

#[test]
fn a_repeated_batch_is_appended_once() {
    let mut client = Client::new();
    client.create("t", 1);
    let one = batch(&[b"a", b"b"], (5, 0, 0));
    let two = batch(&[b"c"], (5, 0, 2));
    assert_eq!(client.produce("t", 0, &one), (0, 0));
    assert_eq!(client.produce("t", 0, &batch(&[b"d"], (5, 0, 3))), (45, -1), "the batch before is missing");
    assert_eq!(client.produce("t", 0, &two), (0, 2));
    assert_eq!(client.produce("t", 0, &one), (0, 0));
    assert_eq!(client.produce("t", 0, &two), (0, 2));
    assert_eq!(client.fetch("t", 0, 0).1, 3);
    assert_eq!(client.produce("t", 0, &batch(&[b"n"], (5, 1, 0))), (0, 3));
    assert_eq!(client.produce("t", 0, &batch(&[b"o"], (5, 0, 3))).0, 47, "a later epoch has fenced it");
}

#[test]
fn a_producer_goes_on_where_its_partition_is_new() {
    let mut client = Client::new();
    client.create("t", 1);
    // As after the topic was deleted and made again.
    assert_eq!(client.produce("t", 0, &batch(&[b"c"], (5, 0, 20))), (0, 0));
    assert_eq!(client.produce("t", 0, &batch(&[b"c"], (5, 0, 20))), (0, 0), "again");
    assert_eq!(client.produce("t", 0, &batch(&[b"b"], (5, 0, 19))), (45, -1), "it is not there and not acknowledged");
    assert_eq!(client.produce("t", 0, &batch(&[b"d"], (5, 0, 21))), (0, 1));
    assert_eq!(client.fetch("t", 0, 0).1, 2);
}

#[test]
fn a_fetch_waits_for_data_and_holds_back_what_comes_behind_it() {
    let mut client = Client::new();
    client.create("t", 1);
    let waits = frame(ApiKey::Fetch, 4, 1, &fetch_request("t", 0, 0, 60_000));
    assert_eq!(client.frame(&waits), Flow::Done);
    assert!(client.answer().is_none());
    assert!(client.session().is_busy() && client.session().deadline_us().is_some());
    let produce = produce_frame("t", 0, -1, &batch(&[b"a"], (-1, -1, -1)));
    assert_eq!(client.frame(&produce), Flow::Blocked, "answers come in the order of requests");
    // Somebody else produces.
    let door = client.door.as_ref().unwrap().0.clone();
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    let mut other = KafkaSessions(door).open(peer, SessionWaker::detached());
    let mut out = Outbox::new(1 << 20);
    assert_eq!(other.on_frame(&FrameHeader::default(), &produce, &mut out), Flow::Done);
    let answer = client.wait();
    assert_eq!(answer[..4], 1_i32.to_be_bytes());
    assert_eq!(client.frame(&produce), Flow::Done);
    assert_eq!(client.wait()[..4], 9_i32.to_be_bytes());
}

#[test]
fn without_acks_there_is_no_answer() {
    let mut client = Client::new();
    client.create("t", 1);
    assert_eq!(client.frame(&produce_frame("t", 0, 0, &batch(&[b"a"], (-1, -1, -1)))), Flow::Done);
    assert!(client.answer().is_none());
    assert_eq!(client.fetch("t", 0, 0).1, 1);
}

/// A request without acks with one batch for each of these partitions.
fn unanswered(topic: &'static str, partitions: &[i32], batch: &[u8]) -> Vec<u8> {
    let partition = |index: &i32| {
        let data = produce_request::PartitionProduceData::default().with_index(*index);
        data.with_records(Some(bytes::Bytes::copy_from_slice(batch)))
    };
    let topic = produce_request::TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str(topic)))
        .with_partition_data(partitions.iter().map(partition).collect());
    let request = ProduceRequest::default().with_acks(0).with_timeout_ms(1000).with_topic_data(vec![topic]);
    frame(ApiKey::Produce, 3, 9, &request)
}

#[test]
fn without_acks_a_connection_that_is_closed_says_that_a_batch_was_refused() {
    let mut client = Client::new();
    client.create("t", 2);
    let plain = batch(&[b"a"], (-1, -1, -1));
    assert_eq!(client.frame(&unanswered("t", &[0, 1], &plain)), Flow::Done);
    let Flow::Close(why) = client.frame(&unanswered("t", &[0, 7, 1], &plain)) else { panic!("it is open") };
    assert!(
        why.contains("of 3 batches") && why.contains(" 1 were refused") && why.contains("no such partition"),
        "{why}"
    );
    assert_eq!([client.fetch("t", 0, 0).1, client.fetch("t", 1, 0).1], [2, 2], "the others are there");
    assert!(matches!(client.frame(&unanswered("nowhere", &[0], &plain)), Flow::Close(_)));
    assert!(client.answer().is_none());
}

#[test]
fn without_acks_a_batch_that_comes_again_closes_nothing() {
    let mut client = Client::new();
    client.create("t", 1);
    for sequence in (0..8).chain(3..8) {
        let batch = batch(&[b"a"], (5, 0, sequence));
        assert_eq!(client.frame(&unanswered("t", &[0], &batch)), Flow::Done, "{sequence}");
    }
    assert_eq!(client.fetch("t", 0, 0).1, 8);
}

#[test]
fn a_connection_is_closed_behind_the_answers_that_it_waits_for() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut client = Client::at(clock.clone(), Arc::new(Copying));
    create_copied(&client, "sync", ReplicationMode::Sync);
    let plain = batch(&[b"a"], (-1, -1, -1));
    let mut waits = produce_frame("sync", 0, 1, &plain);
    waits[14..18].copy_from_slice(&20_i32.to_be_bytes());
    assert_eq!(client.frame(&waits), Flow::Done);
    let refused = unanswered("nowhere", &[0], &plain);
    assert_eq!(client.frame(&refused), Flow::Blocked);
    assert!(client.answer().is_none());
    clock.advance_ms(25);
    assert!(matches!(client.frame(&refused), Flow::Close(_)));
    assert_eq!(client.answer().unwrap()[..4], 9_i32.to_be_bytes(), "its time is over");
}

#[test]
fn versions_of_produce_that_are_told_and_not_served_are_refused() {
    let mut client = Client::new();
    client.create("t", 1);
    for version in 0..3 {
        let mut bytes = produce_frame("t", 0, -1, &batch(&[b"a"], (-1, -1, -1)));
        bytes[3] = version;
        // Without a transactional id.
        bytes.drain(10..12);
        assert_eq!(client.frame(&bytes), Flow::Done);
        let answer = client.wait();
        // Correlation, one topic, its name, one partition, its index.
        assert_eq!(answer[19..21], ResponseError::UnsupportedVersion.code().to_be_bytes(), "{version}: {answer:?}");
        assert_eq!(answer[21..29], (-1_i64).to_be_bytes());
        assert_eq!(answer.len(), 29 + [0, 4, 12][usize::from(version)]);
    }
    assert_eq!(client.fetch("t", 0, 0).1, 0);
}

fn create_copied(client: &Client, name: &str, replication_mode: ReplicationMode) {
    let options = StreamOptions { replication: 2, replication_mode, ..StreamOptions::default() };
    let create = CreateStream { name: name.into(), options, if_not_exists: false };
    client.door.as_ref().unwrap().0.coordinator.create_stream(&create).unwrap();
}

#[test]
fn a_topic_takes_as_many_copies_in_sync_as_its_writes_wait_for() {
    use incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let mut client = Client::new();
    let name = StrBytes::from_static_str("min.insync.replicas");
    create_copied(&client, "two", ReplicationMode::Sync);
    for (value, wanted) in [("2", 0), ("1", 0), ("3", ResponseError::InvalidConfig.code())] {
        let value = Some(StrBytes::from_static_str(value));
        let one = AlterableConfig::default().with_name(name.clone()).with_value(value.clone());
        let resource = AlterConfigsResource::default().with_resource_type(2);
        let resource = resource.with_resource_name(StrBytes::from_static_str("two")).with_configs(vec![one]);
        let asked = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let answer = client.ask(ApiKey::IncrementalAlterConfigs, 1, &asked);
        let answer: IncrementalAlterConfigsResponse = partitions::flexible(&answer, 1);
        assert_eq!(answer.responses[0].error_code, wanted, "{:?}", answer.responses[0].error_message);

        let one = alter_configs_request::AlterableConfig::default().with_name(name.clone()).with_value(value);
        let resource = alter_configs_request::AlterConfigsResource::default().with_resource_type(2);
        let resource = resource.with_resource_name(StrBytes::from_static_str("two")).with_configs(vec![one]);
        let asked = AlterConfigsRequest::default().with_resources(vec![resource]);
        let answer: AlterConfigsResponse = partitions::flexible(&client.ask(ApiKey::AlterConfigs, 2, &asked), 2);
        assert_eq!(answer.responses[0].error_code, wanted, "{:?}", answer.responses[0].error_message);
    }
    let one = create_topics_request::CreatableTopicConfig::default().with_name(name);
    let topic = create_topics_request::CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("one")))
        .with_num_partitions(1)
        .with_replication_factor(1)
        .with_configs(vec![one.with_value(Some(StrBytes::from_static_str("2")))]);
    let asked = CreateTopicsRequest::default().with_topics(vec![topic]);
    let answer: CreateTopicsResponse = partitions::flexible(&client.ask(ApiKey::CreateTopics, 7, &asked), 7);
    let (told, why) = (&answer.topics[0], answer.topics[0].error_message.as_deref().unwrap_or_default());
    assert_eq!(told.error_code, ResponseError::InvalidConfig.code());
    assert!(why.contains("is 2, and a topic with one copy"), "{why}");
}

#[test]
fn in_an_asynchronous_topic_one_ack_does_not_wait_for_copies_and_all_acks_do() {
    let mut client = Client::with(Arc::new(Copying));
    let batch = batch(&[b"a"], (-1, -1, -1));
    create_copied(&client, "async", ReplicationMode::Async);
    assert_eq!(client.frame(&produce_frame("async", 0, 1, &batch)), Flow::Done);
    assert_eq!(client.answer().unwrap()[..4], 9_i32.to_be_bytes());
    assert_eq!(client.fetch("async", 0, 0).1, 0, "there are no copies, so nobody sees it");
    assert_eq!(client.frame(&produce_frame("async", 0, -1, &batch)), Flow::Done);
    assert!(client.answer().is_none());

    let mut client = Client::with(Arc::new(Copying));
    create_copied(&client, "sync", ReplicationMode::Sync);
    assert_eq!(client.frame(&produce_frame("sync", 0, 1, &batch)), Flow::Done);
    assert!(client.answer().is_none());
}

#[test]
fn requests_that_lie_or_are_unknown_close_the_connection() {
    for body in [
        &[0, 3][..],
        &[0, 99, 0, 0, 0, 0, 0, 1, 0xff, 0xff],
        &[0, 3, 0, 99, 0, 0, 0, 1, 0xff, 0xff],
        &[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff],
        &[0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff],
    ] {
        let mut client = Client::new();
        assert!(matches!(client.frame(body), Flow::Close(_)), "{body:?}");
    }
}

/// A small request of a kind, which is answered at once.
fn least(key: ApiKey, version: i16) -> RequestKind {
    let name = StrBytes::from_static_str("t");
    let topic = TopicName(name.clone());
    let group = GroupId(StrBytes::from_static_str("g"));
    match key {
        ApiKey::Produce => {
            let one = produce_request::TopicProduceData::default()
                .with_name(if version < 13 { topic } else { TopicName::default() })
                .with_partition_data(vec![produce_request::PartitionProduceData::default()]);
            ProduceRequest::default().with_acks(-1).with_topic_data(vec![one]).into()
        }
        ApiKey::Fetch => {
            let one = fetch_request::FetchTopic::default()
                .with_topic(if version < 13 { topic } else { TopicName::default() })
                .with_partitions(vec![fetch_request::FetchPartition::default()]);
            FetchRequest::default().with_topics(vec![one]).into()
        }
        ApiKey::ListOffsets => {
            let one = list_offsets_request::ListOffsetsPartition::default().with_timestamp(-1);
            let one = list_offsets_request::ListOffsetsTopic::default().with_name(topic).with_partitions(vec![one]);
            ListOffsetsRequest::default().with_topics(vec![one]).into()
        }
        ApiKey::Metadata => {
            let one = metadata_request::MetadataRequestTopic::default().with_name(Some(topic));
            MetadataRequest::default().with_topics(Some(vec![one])).into()
        }
        ApiKey::DescribeConfigs => {
            let one = describe_configs_request::DescribeConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(name)
                .with_configuration_keys(None);
            DescribeConfigsRequest::default().with_resources(vec![one]).into()
        }
        ApiKey::AlterConfigs => {
            let one =
                alter_configs_request::AlterConfigsResource::default().with_resource_type(2).with_resource_name(name);
            AlterConfigsRequest::default().with_resources(vec![one]).into()
        }
        ApiKey::IncrementalAlterConfigs => {
            let one = incremental_alter_configs_request::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(name);
            IncrementalAlterConfigsRequest::default().with_resources(vec![one]).into()
        }
        ApiKey::DescribeQuorum => {
            let one = describe_quorum_request::TopicData::default()
                .with_topic_name(TopicName(StrBytes::from_static_str("__cluster_metadata")))
                .with_partitions(vec![describe_quorum_request::PartitionData::default()]);
            DescribeQuorumRequest::default().with_topics(vec![one]).into()
        }
        ApiKey::DescribeProducers => {
            let one = describe_producers_request::TopicRequest::default().with_name(topic);
            let one = one.with_partition_indexes(vec![0, 7]);
            DescribeProducersRequest::default().with_topics(vec![one]).into()
        }
        ApiKey::OffsetForLeaderEpoch => {
            let one = offset_for_leader_epoch_request::OffsetForLeaderTopic::default().with_topic(topic);
            let one = one.with_partitions(vec![Default::default()]);
            OffsetForLeaderEpochRequest::default().with_topics(vec![one]).into()
        }
        ApiKey::OffsetCommit => {
            let one = offset_commit_request::OffsetCommitRequestTopic::default().with_name(topic);
            let one = one.with_partitions(vec![Default::default()]);
            OffsetCommitRequest::default().with_group_id(group).with_topics(vec![one]).into()
        }
        ApiKey::OffsetFetch if version < 8 => {
            let one = offset_fetch_request::OffsetFetchRequestTopic::default().with_name(topic);
            let one = one.with_partition_indexes(vec![0]);
            OffsetFetchRequest::default().with_group_id(group).with_topics(Some(vec![one])).into()
        }
        ApiKey::OffsetFetch => {
            let one = offset_fetch_request::OffsetFetchRequestTopics::default().with_name(topic);
            let one = offset_fetch_request::OffsetFetchRequestGroup::default()
                .with_group_id(group)
                .with_topics(Some(vec![one.with_partition_indexes(vec![0])]));
            OffsetFetchRequest::default().with_groups(vec![one]).into()
        }
        ApiKey::TxnOffsetCommit => {
            let one = txn_offset_commit_request::TxnOffsetCommitRequestTopic::default().with_name(topic);
            let one = one.with_partitions(vec![Default::default()]);
            TxnOffsetCommitRequest::default().with_group_id(group).with_topics(vec![one]).into()
        }
        ApiKey::FindCoordinator if version < 4 => FindCoordinatorRequest::default().with_key(name).into(),
        ApiKey::FindCoordinator => FindCoordinatorRequest::default().with_coordinator_keys(vec![name]).into(),
        ApiKey::DescribeLogDirs => DescribeLogDirsRequest::default().with_topics(None).into(),
        ApiKey::ElectLeaders => ElectLeadersRequest::default().with_topic_partitions(None).into(),
        ApiKey::DescribeGroups => DescribeGroupsRequest::default().with_groups(vec![group]).into(),
        ApiKey::ConsumerGroupDescribe => ConsumerGroupDescribeRequest::default().with_group_ids(vec![group]).into(),
        ApiKey::DeleteGroups => DeleteGroupsRequest::default().with_groups_names(vec![group]).into(),
        ApiKey::JoinGroup => JoinGroupRequest::default().into(),
        ApiKey::Heartbeat => HeartbeatRequest::default().into(),
        ApiKey::LeaveGroup => LeaveGroupRequest::default().into(),
        ApiKey::SyncGroup => SyncGroupRequest::default().into(),
        ApiKey::ListGroups => ListGroupsRequest::default().into(),
        ApiKey::OffsetDelete => OffsetDeleteRequest::default().into(),
        ApiKey::ConsumerGroupHeartbeat => ConsumerGroupHeartbeatRequest::default().into(),
        ApiKey::ApiVersions => ApiVersionsRequest::default().into(),
        ApiKey::CreateTopics => CreateTopicsRequest::default().into(),
        ApiKey::DeleteTopics => DeleteTopicsRequest::default().into(),
        ApiKey::CreatePartitions => CreatePartitionsRequest::default().into(),
        ApiKey::DeleteRecords => DeleteRecordsRequest::default().into(),
        ApiKey::InitProducerId => InitProducerIdRequest::default().into(),
        ApiKey::AddPartitionsToTxn => AddPartitionsToTxnRequest::default().into(),
        ApiKey::AddOffsetsToTxn => AddOffsetsToTxnRequest::default().into(),
        ApiKey::EndTxn => EndTxnRequest::default().into(),
        ApiKey::DescribeTransactions => DescribeTransactionsRequest::default().into(),
        ApiKey::ListTransactions => ListTransactionsRequest::default().into(),
        ApiKey::DescribeTopicPartitions => DescribeTopicPartitionsRequest::default().into(),
        ApiKey::DescribeCluster => DescribeClusterRequest::default().into(),
        ApiKey::AlterReplicaLogDirs => AlterReplicaLogDirsRequest::default().into(),
        ApiKey::AlterPartitionReassignments => AlterPartitionReassignmentsRequest::default().into(),
        ApiKey::ListPartitionReassignments => ListPartitionReassignmentsRequest::default().into(),
        ApiKey::ListConfigResources => ListConfigResourcesRequest::default().into(),
        ApiKey::DescribeClientQuotas => DescribeClientQuotasRequest::default().into(),
        ApiKey::DescribeAcls => DescribeAclsRequest::default().into(),
        ApiKey::CreateAcls => CreateAclsRequest::default().into(),
        ApiKey::DeleteAcls => DeleteAclsRequest::default().into(),
        key => panic!("{key:?} is served, and no request of it is here"),
    }
}

/// Every request that is told of is answered in every version, and clients can read the answer to its end.
#[test]
fn every_request_is_answered_in_every_version() {
    let mut wrong = Vec::new();
    for api in crate::apis::APIS {
        let mut client = Client::new();
        client.create("t", 1);
        // Versions of Produce that are told and not served have no schemas.
        for version in api.min.max(api.key.valid_versions().min)..=api.max {
            let mut body = bytes::BytesMut::new();
            least(api.key, version).encode(&mut body, version).unwrap();
            let mut bytes = header(api.key, version, 7);
            bytes.extend_from_slice(&body);
            if let Flow::Close(why) = client.frame(&bytes) {
                wrong.push(format!("{:?} v{version}: {why}", api.key));
                continue;
            }
            let answer = client.wait();
            assert_eq!(answer[..4], 7_i32.to_be_bytes(), "{:?} v{version}", api.key);
            let has_tags = api.is_flexible(version) && api.key != ApiKey::ApiVersions;
            let mut answer = bytes::Bytes::from(answer).split_off(4 + usize::from(has_tags));
            let read = ResponseKind::decode(api.key, &mut answer, version);
            if read.is_err() || !answer.is_empty() {
                wrong.push(format!("{:?} v{version}: {read:?}, and then {answer:?}", api.key));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

mod cluster;
mod commits;
mod copies;
mod epochs;
mod fetch_sessions;
mod fetching;
mod leading;
mod limits;
mod loading;
mod opening;
mod partitions;
mod parts;
mod producing;
mod repeats;
mod settings;
mod times;
mod transactions;

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever comes in, the session takes it or closes, and never panics.
        #[test]
        fn any_bytes_are_survived(
            key in 0_i16..70,
            version in 0_i16..18,
            body in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut client = Client::new();
            let mut frame = Vec::new();
            frame.extend_from_slice(&key.to_be_bytes());
            frame.extend_from_slice(&version.to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0]);
            frame.extend_from_slice(&body);
            let _ = client.frame(&frame);
            let _ = client.frame(&body);
        }
    }
}
