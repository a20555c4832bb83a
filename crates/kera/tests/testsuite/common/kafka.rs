//! Kafka clients by hand, for three nodes in three processes: a producer of transactions, and a reader of what is committed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

use serde_json::Value;

use super::members::{Member, cluster, free_ports, live};
use super::{Node, PATIENCE, eventually};

/// Errors after which a client tries again: the node does not lead or coordinate, is not so far, or the transaction before is being ended.
const AGAIN: [i16; 12] = [3, 5, 6, 7, 14, 15, 16, 19, 51, 74, 75, 78];
/// The producer's record is there already.
const DUPLICATE: i16 = 46;
/// How long a transaction may take: only one that is begun with less is to run out of time.
const TIMEOUT_MS: i32 = 600_000;
/// How long a fetch waits for the first byte.
const WAIT_MS: i32 = 20;

/// Nodes that get a fraction of their time stand still for so long again and again, less than a node may be silent, and go on for so long in between.
const STILL: Duration = Duration::from_millis(250);
const ON: Duration = Duration::from_millis(30);

/// Three nodes; 0 founds the cluster.
pub struct Three {
    pub members: Vec<Member>,
    pub nodes: Vec<Option<Node>>,
    pub kafka: Vec<u16>,
    /// Where no Kafka client gets in.
    closed: Option<usize>,
}

impl Three {
    pub fn start() -> Three {
        Three::with(None, &[])
    }

    /// The same, of which one has no address for Kafka clients.
    pub fn without_door(closed: Option<usize>) -> Three {
        Three::with(closed, &[])
    }

    /// The same, with more flags.
    pub fn with(closed: Option<usize>, flags: &[&str]) -> Three {
        let ports = free_ports::<9>();
        let member = |at: usize| {
            let mut member = Member::new(at + 1, ports[at], ports[3 + at], (at > 0).then_some(ports[3]), flags);
            let listen = member.flags.iter().position(|flag| flag == "--kafka-listen").expect("it is there") + 1;
            let address = format!("127.0.0.1:{}", ports[6 + at]);
            member.flags[listen] = if closed == Some(at) { "none".into() } else { address };
            member
        };
        let members = (0..3).map(member).collect();
        let mut three = Three { members, nodes: vec![None, None, None], kafka: ports[6..].to_vec(), closed };
        (0..3).for_each(|at| three.start_node(at));
        eventually("three live nodes", || (0..3).all(|at| live(three.node(at)) == 3));
        three
    }

    pub fn start_node(&mut self, at: usize) {
        let mut node = Node::start_flags(&self.members[at].flags);
        node.expect_warning("");
        self.nodes[at] = Some(node);
    }

    pub fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
    }

    pub fn running(&self) -> Vec<usize> {
        (0..3).filter(|at| self.nodes[*at].is_some()).collect()
    }

    pub fn kill(&mut self, at: usize) {
        self.nodes[at].take().expect("it runs").kill();
    }

    /// Log lines of a node with this message.
    pub fn said(&self, at: usize, message: &str) -> Vec<Value> {
        let lines = self.node(at).log();
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    }

    /// Runs something while these nodes get a fraction of their time only.
    fn slowly<T>(&self, nodes: &[usize], what: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    nodes.iter().for_each(|at| self.node(*at).signal("STOP"));
                    std::thread::sleep(STILL);
                    nodes.iter().for_each(|at| self.node(*at).signal("CONT"));
                    std::thread::sleep(ON);
                }
            });
            let done = what();
            over.store(true, Ordering::Release);
            done
        })
    }

    /// Kills a node, and has it back as soon as it is declared lost, while the others have hardly begun to rebuild what it had. Whether it holds some of that again.
    pub fn kill_and_bring_back(&mut self, lost: usize) -> bool {
        let others: Vec<usize> = (0..3).filter(|at| *at != lost).collect();
        let fenced = |three: &Three| -> usize {
            others.iter().map(|at| three.said(*at, "the node is silent; it is fenced").len()).sum()
        };
        let before = fenced(self);
        self.kill(lost);
        // Who is back before that goes on with what it had.
        eventually("it is declared lost", || fenced(self) > before);
        let flags = &self.members[lost].flags;
        let node = self.slowly(&others, || {
            let mut node = Node::start_flags(flags);
            node.expect_warning("");
            std::thread::sleep(Duration::from_millis(3_000));
            node
        });
        self.nodes[lost] = Some(node);
        eventually("nothing waits", || cluster(self.node(others[0]))["waiting_streamlets"] == 0);
        !self.said(lost, "older groups are held here again and need not be rebuilt").is_empty()
    }

    /// Starts a node that was killed, and waits until nothing of the cluster waits for anybody.
    pub fn start_again(&mut self, at: usize) {
        self.start_node(at);
        eventually("it is back", || live(self.node(at)) == 3);
    }

    /// The same with all of them, none of which gets far before there is another one.
    pub fn kill_all_and_start_again(&mut self) {
        (0..3).for_each(|at| self.kill(at));
        let start = |member: &Member| Node::start_flags(&member.flags);
        let started: Vec<Node> = std::thread::scope(|scope| {
            let starting: Vec<_> = self.members.iter().map(|member| scope.spawn(move || start(member))).collect();
            starting.into_iter().map(|node| node.join().expect("it starts")).collect()
        });
        for (at, mut node) in started.into_iter().enumerate() {
            node.expect_warning("");
            self.nodes[at] = Some(node);
        }
        eventually("three live nodes", || (0..3).all(|at| live(self.node(at)) == 3));
    }

    /// Makes a topic of three partitions with a copy at each node, and waits until they have owners.
    pub fn make_topic(&self, name: &str) {
        let node = self.node(self.running()[0]);
        node.ok(&format!("stream create {name} --streamlets 3 --replication 3"));
        for partition in 0..3 {
            self.leader(name, partition);
        }
    }

    /// The leader of a partition, once all nodes that run agree, from 0.
    pub fn leader(&self, topic: &str, partition: i32) -> usize {
        let asked = metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic)));
        let asked = MetadataRequest::default().with_topics(Some(vec![asked]));
        self.agreed(|mut kafka| {
            let answer = kafka.call(5, &asked)?;
            let partitions = &answer.topics.first()?.partitions;
            let of = partitions.iter().find(|of| of.partition_index == partition)?;
            usize::try_from(of.leader_id.0 - 1).ok()
        })
    }

    /// The coordinator of a group (0) or a transactional id (1), once all nodes that run agree, from 0.
    pub fn coordinator(&self, kind: i8, key: &str) -> usize {
        let asked = FindCoordinatorRequest::default().with_key_type(kind).with_key(text(key));
        self.agreed(|mut kafka| {
            let answer = kafka.call(2, &asked)?;
            (answer.error_code == 0).then_some(answer.node_id.0 as usize - 1)
        })
    }

    fn agreed(&self, ask: impl Fn(Kafka) -> Option<usize>) -> usize {
        let started = Instant::now();
        let running = self.running();
        loop {
            let asked = running.iter().filter(|at| self.closed != Some(**at));
            let told: Vec<_> = asked.map(|at| Kafka::connect(self.kafka[*at]).and_then(&ask)).collect();
            if let Some(Some(node)) = told.first().copied()
                && told.iter().all(|other| *other == Some(node))
                && running.contains(&node)
            {
                return node;
            }
            assert!(started.elapsed() < PATIENCE, "nobody in particular is told: {told:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks whoever `finds` for as long as the answer is that it is to be asked again.
    pub fn until<R: Request + std::fmt::Debug>(
        &self,
        version: i16,
        request: &R,
        finds: impl Fn() -> usize,
        error: impl Fn(&R::Response) -> i16,
    ) -> R::Response {
        let started = Instant::now();
        loop {
            let answer = Kafka::connect(self.kafka[finds()]).and_then(|mut kafka| kafka.call(version, request));
            let code = answer.as_ref().map(&error);
            match answer {
                Some(answer) if !AGAIN.contains(&error(&answer)) => return answer,
                _ => {}
            }
            assert!(started.elapsed() < PATIENCE, "it does not come to an end: {code:?} to {request:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a reader of committed records gets of a partition at its leader: the last stable offset, and the values.
    pub fn committed(&self, topic: &str, partition: i32) -> (i64, Vec<String>) {
        self.committed_from(topic, partition, 0)
    }

    /// The same, from an offset on.
    pub fn committed_from(&self, topic: &str, partition: i32, mut from: i64) -> (i64, Vec<String>) {
        let (mut values, started) = (Vec::new(), Instant::now());
        loop {
            let of = FetchPartition::default()
                .with_partition(partition)
                .with_fetch_offset(from)
                .with_partition_max_bytes(1 << 20)
                .with_log_start_offset(-1);
            let asked = FetchRequest::default()
                .with_max_bytes(1 << 20)
                .with_max_wait_ms(WAIT_MS)
                .with_min_bytes(1)
                .with_isolation_level(1)
                .with_session_epoch(-1)
                .with_topics(vec![FetchTopic::default().with_topic(name(topic)).with_partitions(vec![of])]);
            let leader = || self.leader(topic, partition);
            let answer = self.until(11, &asked, leader, |answer| answer.responses[0].partitions[0].error_code);
            let one = &answer.responses[0].partitions[0];
            assert_eq!(one.error_code, 0);
            let aborted = one.aborted_transactions.iter().flatten();
            let aborted = aborted.map(|of| (of.producer_id.0, of.first_offset)).collect();
            let mut data = one.records.clone().unwrap_or_default();
            let sets = RecordBatchDecoder::decode_all(&mut data).expect("batches");
            let records: Vec<Record> = sets.into_iter().flat_map(|set| set.records).collect();
            let Some(last) = records.last() else {
                if from >= one.last_stable_offset {
                    return (one.last_stable_offset, values);
                }
                // It is on its way from a disk or another node.
                assert!(started.elapsed() < PATIENCE, "{topic} {partition}: nothing comes at {from}");
                continue;
            };
            assert!(last.offset < one.last_stable_offset, "it reads beyond what is stable");
            let next = last.offset + 1;
            values.extend(given(aborted, records, from));
            from = next;
        }
    }

    /// The same, once all transactions of the partition have ended: what is stable goes up to its end.
    pub fn settled(&self, topic: &str, partition: i32) -> Vec<String> {
        self.settled_from(topic, partition, 0)
    }

    /// The same, from an offset on.
    pub fn settled_from(&self, topic: &str, partition: i32, from: i64) -> Vec<String> {
        let started = Instant::now();
        loop {
            let asked = self.end_of(topic, partition);
            let (stable, values) = self.committed_from(topic, partition, from);
            if stable >= asked {
                return values;
            }
            assert!(started.elapsed() < PATIENCE, "{topic} {partition} is stable up to {stable} of {asked}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where a partition ends.
    pub fn end_of(&self, topic: &str, partition: i32) -> i64 {
        use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
        let of = ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(-1);
        let of = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(vec![of]);
        let asked = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![of]);
        let leader = || self.leader(topic, partition);
        let answer = self.until(2, &asked, leader, |answer| answer.topics[0].partitions[0].error_code);
        answer.topics[0].partitions[0].offset
    }

    /// What a group has committed of a partition, once nothing is pending; -1 for nothing.
    pub fn offset(&self, group: &str, topic: &str, partition: i32) -> i64 {
        let of = OffsetFetchRequestTopic::default().with_name(name(topic)).with_partition_indexes(vec![partition]);
        let asked = OffsetFetchRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_require_stable(true)
            .with_topics(Some(vec![of]));
        let code = |answer: &OffsetFetchResponse| {
            let of = answer.topics.first().and_then(|topic| topic.partitions.first());
            of.map_or(answer.error_code, |of| of.error_code.max(answer.error_code))
        };
        // 88: offsets of a transaction are pending.
        let started = Instant::now();
        loop {
            let answer = self.until(7, &asked, || self.coordinator(0, group), code);
            if code(&answer) == 0 {
                return answer.topics[0].partitions[0].committed_offset;
            }
            assert_eq!(code(&answer), 88);
            assert!(started.elapsed() < PATIENCE, "offsets of {group} stay pending");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The values that a client gives out of a piece of a partition: it follows the list of aborted transactions and the markers.
fn given(mut aborted: Vec<(i64, i64)>, records: Vec<Record>, from: i64) -> Vec<String> {
    aborted.sort_unstable_by_key(|(_, first)| *first);
    let (mut aborted, mut over) = (aborted.into_iter().peekable(), Vec::new());
    let mut given = Vec::new();
    for record in records {
        while let Some((producer, _)) = aborted.next_if(|(_, first)| *first <= record.offset) {
            over.push(producer);
        }
        if record.control {
            over.retain(|producer| *producer != record.producer_id);
        } else if record.offset >= from && !(record.transactional && over.contains(&record.producer_id)) {
            given.push(String::from_utf8(record.value.unwrap_or_default().to_vec()).expect("words"));
        }
    }
    given
}

/// A connection.
pub struct Kafka(TcpStream);

impl Kafka {
    pub fn connect(port: u16) -> Option<Kafka> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        Some(Kafka(stream))
    }

    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Option<()> {
        let key = ApiKey::try_from(R::KEY).expect("a request");
        let mut body = [&R::KEY.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 9, 0, 1, b't']].concat();
        if key.request_header_version(version) >= 2 {
            body.push(0);
        }
        request.encode(&mut body, version).expect("it fits the schema");
        let frame = [&(body.len() as u32).to_be_bytes()[..], &body].concat();
        self.0.write_all(&frame).ok()
    }

    /// The answer to what was sent; `None` if the connection has ended.
    pub fn answer<R: Request>(&mut self, version: i16) -> Option<R::Response> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut answer).ok()?;
        let head = if R::Response::header_version(version) > 0 { 5 } else { 4 };
        let mut body = bytes::Bytes::from(answer.split_off(head));
        Some(R::Response::decode(&mut body, version).expect("an answer of that version"))
    }

    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> Option<R::Response> {
        self.send(version, request)?;
        self.answer::<R>(version)
    }
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

/// A producer of transactions.
pub struct Producer {
    pub id: String,
    pub producer: (i64, i16),
    /// Whether it speaks the second version of transactions.
    pub second: bool,
    sequences: BTreeMap<(String, i32), i32>,
}

impl Producer {
    /// One that begins: whoever had the id before is fenced.
    pub fn begin(three: &Three, id: &str, second: bool) -> Producer {
        Producer::begin_within(three, id, second, TIMEOUT_MS)
    }

    /// The same, with a time in milliseconds after which its transactions are aborted.
    pub fn begin_within(three: &Three, id: &str, second: bool, timeout_ms: i32) -> Producer {
        let asked = InitProducerIdRequest::default()
            .with_transactional_id(Some(TransactionalId(text(id))))
            .with_transaction_timeout_ms(timeout_ms)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = three.until(4, &asked, || three.coordinator(1, id), |answer| answer.error_code);
        assert_eq!(answer.error_code, 0, "{answer:?}");
        let producer = (answer.producer_id.0, answer.producer_epoch);
        Producer { id: id.to_owned(), producer, second, sequences: BTreeMap::new() }
    }

    fn transactional(&self) -> TransactionalId {
        TransactionalId(text(&self.id))
    }

    /// Adds a partition, as versions before the second demand.
    pub fn add(&self, three: &Three, topic: &str, partition: i32) -> i16 {
        let one = AddPartitionsToTxnTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
        let asked = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.transactional())
            .with_v3_and_below_producer_id(ProducerId(self.producer.0))
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![one]);
        let code = |answer: &AddPartitionsToTxnResponse| {
            answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        };
        code(&three.until(3, &asked, || three.coordinator(1, &self.id), code))
    }

    /// One record in the transaction: the error.
    pub fn write(&mut self, three: &Three, topic: &str, partition: i32, value: &str) -> i16 {
        if !self.second {
            let error = self.add(three, topic, partition);
            if error != 0 {
                return error;
            }
        }
        let key = (topic.to_owned(), partition);
        let sequence = self.sequences.get(&key).copied().unwrap_or(0);
        let value = bytes::Bytes::copy_from_slice(value.as_bytes());
        let record = record(self.producer, true, (0, sequence), 1_700_000_000_000, value);
        let asked = produce_request(Some(self.transactional()), topic, partition, &[record]);
        let code = |answer: &ProduceResponse| answer.responses[0].partition_responses[0].error_code;
        let version = if self.second { 12 } else { 9 };
        match code(&three.until(version, &asked, || three.leader(topic, partition), code)) {
            0 | DUPLICATE => {
                self.sequences.insert(key, sequence + 1);
                0
            }
            error => error,
        }
    }

    /// Commits an offset of a group in the transaction: the error.
    pub fn commit_offset(&self, three: &Three, group: &str, topic: &str, partition: i32, offset: i64) -> i16 {
        if !self.second {
            let asked = AddOffsetsToTxnRequest::default()
                .with_transactional_id(self.transactional())
                .with_producer_id(ProducerId(self.producer.0))
                .with_producer_epoch(self.producer.1)
                .with_group_id(GroupId(text(group)));
            let answer = three.until(3, &asked, || three.coordinator(1, &self.id), |answer| answer.error_code);
            if answer.error_code != 0 {
                return answer.error_code;
            }
        }
        let of =
            TxnOffsetCommitRequestPartition::default().with_partition_index(partition).with_committed_offset(offset);
        let asked = TxnOffsetCommitRequest::default()
            .with_transactional_id(self.transactional())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_group_id(GroupId(text(group)))
            .with_topics(vec![TxnOffsetCommitRequestTopic::default().with_name(name(topic)).with_partitions(vec![of])]);
        let code = |answer: &TxnOffsetCommitResponse| answer.topics[0].partitions[0].error_code;
        let version = if self.second { 5 } else { 3 };
        code(&three.until(version, &asked, || three.coordinator(0, group), code))
    }

    pub fn end_request(&self, commit: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(self.transactional())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(commit)
    }

    /// Ends the transaction: the error. The answer says that it is decided.
    pub fn end(&mut self, three: &Three, commit: bool) -> i16 {
        let version = if self.second { 5 } else { 3 };
        let find = || three.coordinator(1, &self.id);
        let answer = three.until(version, &self.end_request(commit), find, |answer| answer.error_code);
        if self.second && answer.error_code == 0 {
            self.producer = (answer.producer_id.0, answer.producer_epoch);
            self.sequences.clear();
        }
        answer.error_code
    }
}

/// A record without a key, of a producer's id and epoch, with its place in the batch and its sequence.
pub fn record(
    (producer_id, producer_epoch): (i64, i16),
    transactional: bool,
    (offset, sequence): (i64, i32),
    timestamp: i64,
    value: bytes::Bytes,
) -> Record {
    Record {
        transactional,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id,
        producer_epoch,
        timestamp_type: TimestampType::Creation,
        offset,
        sequence,
        timestamp,
        key: None,
        value: Some(value),
        headers: Default::default(),
    }
}

/// A request that appends records as one batch.
pub fn produce_request(id: Option<TransactionalId>, topic: &str, partition: i32, records: &[Record]) -> ProduceRequest {
    let mut batch = bytes::BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut batch, records, &options).expect("a batch");
    let one = PartitionProduceData::default().with_index(partition).with_records(Some(batch.freeze()));
    let one = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![one]);
    ProduceRequest::default().with_transactional_id(id).with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![one])
}
