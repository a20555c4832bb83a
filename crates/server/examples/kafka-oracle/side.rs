//! One broker: its connections, and what it has given out that later requests name.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use uuid::Uuid;

use crate::answer::{Names, Node, tree};
use crate::batches;
use crate::steps::{Asked, named, text};

/// Errors that go away by themselves: coordinators and leaders that are being found, transactions that are being ended.
const PASSING: [i16; 6] = [5, 6, 14, 15, 16, 51];
const TRIES: usize = 400;
const PAUSE: Duration = Duration::from_millis(15);
/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A producer: its id, its epoch, and the next sequence of each partition.
#[derive(Clone, Default, Debug)]
pub(crate) struct Producer {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
    pub(crate) sequences: BTreeMap<(String, i32), i32>,
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
    stream: Option<TcpStream>,
    correlation: i32,
    names: Names,
    pub(crate) memory: Memory,
}

impl Side {
    pub(crate) fn new(address: SocketAddr) -> Side {
        Side { address, stream: None, correlation: 0, names: Names::default(), memory: Memory::default() }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends a request and gives its answer as it is compared.
    pub(crate) fn ask(&mut self, asked: &Asked) -> io::Result<String> {
        if let Asked::Raw(frame) = asked {
            return self.raw(frame);
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

    fn exchange(&mut self, asked: &Asked) -> io::Result<Option<ResponseKind>> {
        let Asked::Request { key, version, .. } = asked else { return Ok(None) };
        self.correlation += 1;
        let wrong = |error: String| io::Error::new(ErrorKind::InvalidData, format!("{key:?} v{version}: {error}"));
        let body = asked.frame(self.correlation).map_err(wrong)?;
        if self.stream.is_none() {
            self.stream = Some(self.connect()?);
        }
        let stream = self.stream.as_mut().expect("it was put there");
        stream.write_all(&(body.len() as i32).to_be_bytes())?;
        stream.write_all(&body)?;
        if asked.is_silent() {
            return Ok(None);
        }
        let mut answer = Bytes::from(read_frame(stream).map_err(|error| wrong(error.to_string()))?);
        let version = *version;
        let flexible = key.response_header_version(version) >= 1;
        let _ = answer.split_to(if flexible { 5 } else { 4 });
        ResponseKind::decode(*key, &mut answer, version).map(Some).map_err(|error| wrong(format!("{error:#}")))
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

    /// Records as words, and the partitions of a topic together: Kafka tells some apart.
    fn readable(&mut self, mut response: ResponseKind) -> ResponseKind {
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
                    let words = batches::words(records, |id| self.names.of("producer_id", &id.to_string()));
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
                let good = done.responses.iter().flat_map(|topic| &topic.partition_responses);
                let is_good = good.clone().count() > 0 && good.clone().all(|one| one.error_code == 0);
                if is_good && let Some(producer) = self.memory.producers.get_mut(who) {
                    batches::count(asked, &mut producer.sequences, producer.id, &self.memory.topics);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until a topic can be used, or is gone.
    fn find_topic(&mut self, name: &str, is_there: bool) -> io::Result<()> {
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

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
