//! One broker: its connections, and what it has given out that later requests name.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use uuid::Uuid;

use super::answer::{Names, Node, tree};
use super::batches;
use super::scenes;
use super::steps::{Asked, named, text};

/// Errors that go away by themselves: coordinators and leaders that are being found, transactions that are being ended.
const PASSING: [i16; 6] = [5, 6, 14, 15, 16, 51];
const TRIES: usize = 4_000;
const PAUSE: Duration = Duration::from_millis(15);
/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A producer: its id, its epoch, and of each partition the next sequence and how many the last batch had.
#[derive(Clone, Default, Debug)]
pub(crate) struct Producer {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
    pub(crate) sequences: BTreeMap<(String, i32), (i32, i32)>,
}

/// A member of a group.
#[derive(Clone, Default, Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) generation: i32,
}

/// What a broker has given out.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) topics: BTreeMap<String, Uuid>,
    pub(crate) producers: BTreeMap<String, Producer>,
    pub(crate) members: BTreeMap<String, Member>,
    /// The fetch session's id and next epoch, and whether topics are named by their ids there.
    pub(crate) session: (i32, i32, bool),
}

pub(crate) struct Side {
    address: SocketAddr,
    /// By name: one for what is asked alone, one for each member of a scene.
    streams: HashMap<String, TcpStream>,
    correlation: i32,
    names: Names,
    /// The epoch in which it leads partitions that are made: Kafka's begin with 0, those of KerA are the node's. What is asked and compared is
    /// counted from it.
    first_epoch: i32,
    /// The least time that members of scenes have to join again, whoever dies.
    pub(crate) rebalance_ms_min: i32,
    pub(crate) memory: Memory,
}

impl Side {
    pub(crate) fn new(address: SocketAddr) -> Side {
        let (names, memory) = (Names::default(), Memory::default());
        let (streams, rebalance_ms_min) = (HashMap::new(), 0);
        Side { address, streams, correlation: 0, names, first_epoch: 0, rebalance_ms_min, memory }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends a request and gives its answer as it is compared.
    pub(crate) fn ask(&mut self, asked: &Asked) -> io::Result<String> {
        match asked {
            Asked::Raw(frame) => return self.raw(frame),
            Asked::Scene(scene, rng) => {
                let played = scenes::play(self, *scene, rng.clone());
                self.streams.retain(|name, _| name.is_empty());
                return played;
            }
            Asked::Request { .. } => {}
        }
        let of = format!("{:?}", asked.key());
        let mut node = self.settled(asked)?;
        node.settle(&of, &self.names);
        node.name(&of, &mut self.names);
        Ok(node.shown())
    }

    /// Asks until no error is left that goes away by itself.
    fn settled(&mut self, asked: &Asked) -> io::Result<Node> {
        let mut node = Node::Leaf("silent".to_owned());
        for _ in 0..TRIES {
            let Some(response) = self.exchange(asked)? else { return Ok(node) };
            node = tree(&format!("{:#?}", self.readable(response.clone())));
            if !node.errors().iter().any(|code| PASSING.contains(code)) {
                self.learn(asked, &response)?;
                break;
            }
            sleep(PAUSE);
        }
        Ok(node)
    }

    /// Sends a request on the one connection that is always there, and waits for its answer.
    pub(crate) fn exchange(&mut self, asked: &Asked) -> io::Result<Option<ResponseKind>> {
        self.send("", asked)?;
        if asked.is_silent() { Ok(None) } else { self.receive("", asked).map(Some) }
    }

    /// Sends a request on a connection, which is opened if there is none of that name.
    pub(crate) fn send(&mut self, by: &str, asked: &Asked) -> io::Result<()> {
        self.correlation += 1;
        let body = asked.frame(self.correlation, self.first_epoch).map_err(|error| wrong(asked, &error))?;
        if !self.streams.contains_key(by) {
            self.streams.insert(by.to_owned(), self.connect()?);
        }
        let stream = self.streams.get_mut(by).expect("it was put there");
        stream.write_all(&(body.len() as i32).to_be_bytes())?;
        stream.write_all(&body)
    }

    /// Waits for the answer to what was sent on a connection.
    pub(crate) fn receive(&mut self, by: &str, asked: &Asked) -> io::Result<ResponseKind> {
        let (Asked::Request { key, version, .. }, Some(stream)) = (asked, self.streams.get_mut(by)) else {
            return Err(wrong(asked, "nothing was asked there"));
        };
        let mut answer = Bytes::from(read_frame(stream).map_err(|error| wrong(asked, &error.to_string()))?);
        let flexible = key.response_header_version(*version) >= 1;
        let _ = answer.split_to(if flexible { 5 } else { 4 });
        ResponseKind::decode(*key, &mut answer, *version).map_err(|error| wrong(asked, &format!("{error:#}")))
    }

    /// A frame of any bytes, on a connection of its own: what comes back, or that it was closed.
    fn raw(&mut self, frame: &[u8]) -> io::Result<String> {
        let mut stream = self.connect()?;
        stream.write_all(&(frame.len() as i32).to_be_bytes())?;
        stream.write_all(frame)?;
        Ok(match read_frame(&mut stream) {
            Ok(answer) => format!("answered, error {:?}", answer.get(4..6)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => "nothing".to_owned(),
            Err(_) => "closed".to_owned(),
        })
    }

    /// Records as words, and the partitions of a topic together: Kafka tells some apart. Without what Kafka alone tells.
    fn readable(&mut self, mut response: ResponseKind) -> ResponseKind {
        epochs_from_zero(self.first_epoch, &mut response);
        if let ResponseKind::DescribeTransactions(told) = &mut response {
            // KerA has no topic for the positions of groups.
            told.transaction_states
                .iter_mut()
                .for_each(|one| one.topics.retain(|topic| &**topic.topic != "__consumer_offsets"));
        }
        if let ResponseKind::DescribeProducers(told) = &mut response {
            // KerA does not remember a producer that has written nothing, although its transaction has ended there.
            for partition in told.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                partition.active_producers.retain(|one| one.last_sequence >= 0 || one.current_txn_start_offset >= 0);
            }
        }
        if let ResponseKind::Fetch(fetched) = &mut response {
            let mut topics: Vec<fetch_response::FetchableTopicResponse> = Vec::new();
            for topic in std::mem::take(&mut fetched.responses) {
                let is_same = |known: &&mut fetch_response::FetchableTopicResponse| {
                    (&known.topic, known.topic_id) == (&topic.topic, topic.topic_id)
                };
                match topics.iter_mut().find(is_same) {
                    Some(known) => known.partitions.extend(topic.partitions),
                    None => topics.push(topic),
                }
            }
            fetched.responses = topics;
            for partition in fetched.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                if let Some(records) = &partition.records {
                    // Kafka tells of aborted transactions as far as its index goes, not only as far as the records do.
                    let end = batches::end(records);
                    if let Some(aborted) = &mut partition.aborted_transactions {
                        aborted.retain(|one| one.first_offset < end);
                    }
                    let words =
                        batches::words(records, self.first_epoch, |id| self.names.of("producer_id", &id.to_string()));
                    partition.records = Some(Bytes::from(words));
                }
            }
        }
        response
    }

    /// Remembers what the broker has given out, and waits until what it has begun is done.
    fn learn(&mut self, asked: &Asked, response: &ResponseKind) -> io::Result<()> {
        let Asked::Request { request, who, .. } = asked else { return Ok(()) };
        match (request, response) {
            (RequestKind::CreateTopics(_), ResponseKind::CreateTopics(made)) => {
                for topic in made.topics.iter().filter(|topic| topic.error_code == 0) {
                    self.find_topic(&topic.name, true)?;
                }
            }
            (RequestKind::DeleteTopics(_), ResponseKind::DeleteTopics(gone)) => {
                for topic in gone.responses.iter().filter(|topic| topic.error_code == 0) {
                    let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
                    self.memory.topics.remove(&name);
                    self.find_topic(&name, false)?;
                }
            }
            (_, ResponseKind::InitProducerId(begun)) if begun.error_code == 0 => {
                let sequences = BTreeMap::new();
                let producer = Producer { id: begun.producer_id.0, epoch: begun.producer_epoch, sequences };
                self.memory.producers.insert(who.clone(), producer);
                self.wait_for_end(who)?;
            }
            (RequestKind::EndTxn(_), ResponseKind::EndTxn(ended)) => {
                if let Some(producer) = self.memory.producers.get_mut(who).filter(|_| ended.error_code == 0)
                    && ended.producer_id.0 >= 0
                {
                    let sequences = BTreeMap::new();
                    *producer = Producer { id: ended.producer_id.0, epoch: ended.producer_epoch, sequences };
                }
                self.wait_for_end(who)?;
            }
            (_, ResponseKind::JoinGroup(joined)) if matches!(joined.error_code, 0 | 79) => {
                let member = Member { id: joined.member_id.to_string(), generation: joined.generation_id };
                self.memory.members.insert(who.clone(), member);
            }
            (_, ResponseKind::ConsumerGroupHeartbeat(beat)) if beat.error_code == 0 => {
                let id = beat.member_id.as_ref().map(|id| id.to_string()).unwrap_or_default();
                self.memory.members.insert(who.clone(), Member { id, generation: beat.member_epoch });
            }
            (RequestKind::Fetch(asked), ResponseKind::Fetch(fetched)) => {
                let by_id = asked.topics.iter().any(|topic| !topic.topic_id.is_nil());
                self.memory.session = match (fetched.error_code, fetched.session_id) {
                    (0, 0) => (0, 0, false),
                    (0, id) if asked.session_epoch == 0 => (id, 1, by_id),
                    (0, id) if id == self.memory.session.0 => (id, self.memory.session.1 + 1, self.memory.session.2),
                    _ => (0, 0, false),
                };
            }
            (RequestKind::Produce(asked), ResponseKind::Produce(done)) => {
                let taken = |topic: &produce_request::TopicProduceData, index: i32| {
                    let is_same = |of: &&produce_response::TopicProduceResponse| {
                        of.name == topic.name && of.topic_id == topic.topic_id
                    };
                    let mut all = done.responses.iter().filter(is_same).flat_map(|of| &of.partition_responses);
                    all.any(|one| one.index == index && one.error_code == 0)
                };
                if let Some(producer) = self.memory.producers.get_mut(who) {
                    batches::count(asked, &mut producer.sequences, producer.id, &self.memory.topics, taken);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until a topic can be used, or is gone.
    pub(crate) fn find_topic(&mut self, name: &str, is_there: bool) -> io::Result<()> {
        let one = MetadataRequestTopic::default().with_name(Some(named(name)));
        let request = MetadataRequest::default().with_topics(Some(vec![one])).with_allow_auto_topic_creation(false);
        let asked = Asked::new(ApiKey::Metadata, 12, RequestKind::Metadata(request), "");
        for _ in 0..TRIES {
            let Some(ResponseKind::Metadata(answer)) = self.exchange(&asked)? else { break };
            let found = answer.topics.first();
            let is_known = found.is_some_and(|topic| {
                topic.error_code == 0 && topic.partitions.iter().all(|one| one.error_code == 0 && one.leader_id.0 >= 0)
            });
            if is_known == is_there {
                if let Some(topic) = found.filter(|_| is_there) {
                    self.first_epoch = topic.partitions.first().map_or(self.first_epoch, |one| one.leader_epoch);
                    self.memory.topics.insert(name.to_owned(), topic.topic_id);
                }
                return Ok(());
            }
            sleep(PAUSE);
        }
        Err(io::Error::new(ErrorKind::TimedOut, format!("topic {name}: is it there? wanted {is_there}")))
    }

    /// Waits until a transaction that is being ended has ended.
    fn wait_for_end(&mut self, who: &str) -> io::Result<()> {
        let id = TransactionalId(text(who));
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id]);
        let asked = Asked::new(ApiKey::DescribeTransactions, 0, RequestKind::DescribeTransactions(request), "");
        for _ in 0..TRIES {
            let Some(ResponseKind::DescribeTransactions(answer)) = self.exchange(&asked)? else { break };
            if !answer.transaction_states.iter().any(|one| one.transaction_state.starts_with("Prepare")) {
                break;
            }
            sleep(PAUSE);
        }
        Ok(())
    }
}

/// The epochs of leaders that are told, from 0 on.
fn epochs_from_zero(first_epoch: i32, response: &mut ResponseKind) {
    let count = |epoch: &mut i32| *epoch -= if *epoch >= 0 { first_epoch } else { 0 };
    match response {
        ResponseKind::Metadata(told) => {
            let partitions = told.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.leader_epoch));
        }
        ResponseKind::DescribeTopicPartitions(told) => {
            let partitions = told.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.leader_epoch));
        }
        ResponseKind::ListOffsets(told) => {
            let partitions = told.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.leader_epoch));
        }
        ResponseKind::OffsetForLeaderEpoch(told) => {
            let partitions = told.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.leader_epoch));
        }
        _ => {}
    }
}

fn wrong(asked: &Asked, error: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", asked.shown()))
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
