//! One Kafka connection: takes requests off it, one after the other, and answers them in that order.
//!
//! Lives on the I/O thread of its connection. A request that cannot be answered at once (a fetch that waits for data, a
//! command that waits for a disk) stands in line, and nothing more is read from the connection but produce requests
//! behind produce requests, and requests to the group coordinator behind such that only wait for the disk: many commits
//! become durable with one sync, and a heartbeat behind them counts when it comes, not when they are done. So the order of
//! answers is that of requests, and a connection never holds more than it may.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use kera_format::Cursor;
use kera_log::Observer;
use kera_protocol::{FrameHeader, ProtocolError};
use kera_rpc::{Flow, Outbox, Peer, Session, SessionWaker};
use uuid::Uuid;

use crate::apis::{self, APIS, Api};
use crate::door::{After, Door, Reply, ReplySlot, Topic};
use crate::fetch::Fetching;
use crate::fetch_sessions::NO_SESSION;
use crate::group_door::{Asking, Wait};
use crate::offsets::Listing;
use crate::pace::Pace;
use crate::produce::{Outcome, Producing, Waiting};
use crate::shape;
use crate::wire::{Malformed, Reader};

/// Topics and places that a connection remembers; when there are more it starts over.
const REMEMBERED_MAX: usize = 16_384;
/// How many bytes a name of a client may have in the log.
const CLIENT_ID_BYTES: usize = 64;

/// What the whole cluster can do, which clients look at beside the versions: transactions whose ends count epochs (KIP-890),
/// and the consumer protocol (KIP-848).
const FEATURES: [(&str, i16); 2] = [("group.version", 1), ("transaction.version", 2)];
/// From these versions on ApiVersions tells features.
const VERSION_FEATURES: i16 = 3;
const VERSION_FEATURES_FROM_ZERO: i16 = 4;

/// A request's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) api: &'static Api,
    pub(crate) version: i16,
    pub(crate) correlation: i32,
}

impl Request {
    /// Whether lengths in its answer are varints.
    pub(crate) fn is_flexible(&self) -> bool {
        self.api.is_flexible(self.version)
    }

    /// The header of its answer.
    pub(crate) fn put_header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.correlation.to_be_bytes());
        // An old client must be able to read which versions there are: the header of that answer never changed.
        if self.is_flexible() && self.api.key != ApiKey::ApiVersions {
            out.push(0);
        }
    }
}

/// An answer that is not out yet.
pub(crate) enum Pending {
    Produce(Waiting),
    Fetch(Box<Fetching>),
    List(Box<Listing>),
    /// A command is under way on another thread, or a group's coordinator answers later.
    Reply,
    /// An answer that waits until what it rests on is durable, if it rests on anything, and for its turn.
    Durable(Vec<u8>, Vec<After>),
    /// Offsets that are committed once it is known that their transaction has begun: the request and its body.
    TxnCommit(Box<(Request, Vec<u8>)>, Wait),
}

/// Wakes the session, whatever has moved: it looks at the first in line then.
struct Wake(SessionWaker);

impl Observer for Wake {
    fn advanced(&self, _: u64) {
        self.0.wake();
    }
}

/// What the parts of a session share.
pub(crate) struct Core {
    pub(crate) door: Arc<Door>,
    pub(crate) observer: Arc<dyn Observer>,
    topics: HashMap<String, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
    /// Where the next fetch of a partition goes on: stream and partition, offset, cursor.
    pub(crate) places: HashMap<(u64, i32), (u64, Cursor)>,
    /// How far the reader of a partition has come, in what was written before its present owner, over batches of which only places are left: the offset that it asks for, and
    /// that behind them.
    passed: HashMap<(u64, i32), (u64, u64)>,
    /// The fetch session that was used last, 0 if there was none.
    pub(crate) fetch_session: i32,
    pub(crate) pace: Pace,
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.fetch_session != NO_SESSION {
            self.door.fetch_sessions.remove(self.fetch_session);
        }
    }
}

/// Makes room for another topic that a connection remembers. Where there is none without more memory those go that were deleted: each keeps the lanes of its stream, and a
/// connection may live for months and name a topic after the other that lives for minutes.
fn make_room<K>(topics: &mut HashMap<K, Arc<Topic>>) {
    if topics.len() == topics.capacity() {
        topics.retain(|_, topic| !topic.stream.is_deleted());
    }
    if topics.len() >= REMEMBERED_MAX {
        topics.clear();
    }
}

impl Core {
    /// A topic by name, from the connection's own memory if it is there and was not deleted since.
    pub(crate) fn topic(&mut self, name: &str) -> Option<Arc<Topic>> {
        if let Some(topic) = self.topics.get(name).filter(|topic| !topic.stream.is_deleted()) {
            return Some(Arc::clone(topic));
        }
        self.topics.remove(name);
        let topic = self.door.topic(&self.door.info(name)?)?;
        make_room(&mut self.topics);
        self.topics.insert(name.to_owned(), Arc::clone(&topic));
        Some(topic)
    }

    /// A topic by id.
    pub(crate) fn topic_of(&mut self, id: Uuid) -> Option<Arc<Topic>> {
        if let Some(topic) = self.by_id.get(&id).filter(|topic| !topic.stream.is_deleted()) {
            return Some(Arc::clone(topic));
        }
        self.by_id.remove(&id);
        let topic = self.door.topic(&self.door.info_of(id)?)?;
        make_room(&mut self.by_id);
        self.by_id.insert(id, Arc::clone(&topic));
        Some(topic)
    }

    /// Remembers where a partition's reader goes on.
    pub(crate) fn remember(&mut self, stream: u64, partition: i32, offset: u64, cursor: Cursor) {
        if self.places.len() >= REMEMBERED_MAX {
            self.places.clear();
        }
        self.places.insert((stream, partition), (offset, cursor));
    }

    /// Remembers nothing more of a partition.
    pub(crate) fn forget(&mut self, stream: u64, partition: i32) {
        self.places.remove(&(stream, partition));
        self.passed.remove(&(stream, partition));
    }

    /// Where a reader that asks for an offset begins to look, of what was written before the present owner.
    pub(crate) fn passed_to(&self, stream: u64, partition: i32, offset: u64) -> u64 {
        let passed = self.passed.get(&(stream, partition)).filter(|(at, _)| *at == offset);
        passed.map_or(offset, |(_, to)| *to)
    }

    /// Remembers that there are only places from an offset on, up to another one.
    pub(crate) fn remember_passed(&mut self, stream: u64, partition: i32, offset: u64, to: u64) {
        if self.passed.len() >= REMEMBERED_MAX {
            self.passed.clear();
        }
        if to > offset {
            self.passed.insert((stream, partition), (offset, to));
        }
    }
}

pub(crate) struct KafkaSession {
    pub(crate) core: Core,
    peer: Peer,
    /// Answers that are not out yet, in the order of their requests. More than one only if all are to produce requests, or
    /// all but the last are whole and to requests to the group coordinator.
    queue: VecDeque<Pending>,
    /// Bytes of the whole answers in the queue.
    held_bytes: usize,
    producing: Producing,
    reply: Reply,
    client_id: String,
    /// Why the connection is closed once what was asked before is answered.
    refused: Option<String>,
    stopping: bool,
    has_told_limit: bool,
}

impl KafkaSession {
    pub(crate) fn new(door: Arc<Door>, peer: Peer, waker: SessionWaker) -> KafkaSession {
        let observer: Arc<dyn Observer> = Arc::new(Wake(waker.clone()));
        let (topics, by_id, places, passed) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (fetch_session, pace) = (NO_SESSION, Pace::default());
        let core = Core { door, observer, topics, by_id, places, passed, fetch_session, pace };
        let reply = ReplySlot::new(waker);
        let producing = Producing::default();
        let (queue, client_id, refused) = (VecDeque::new(), String::new(), None);
        let (held_bytes, stopping, has_told_limit) = (0, false, false);
        KafkaSession { core, peer, queue, held_bytes, producing, reply, client_id, refused, stopping, has_told_limit }
    }

    fn now_us(&self) -> u64 {
        self.core.door.clock.monotonic_us()
    }

    /// Whether a request has to wait for those before it.
    fn must_wait(&self, key: i16) -> bool {
        let config = &self.core.door.config;
        let goes_behind = match self.queue.back() {
            None => return false,
            Some(Pending::Produce(_)) => key == ApiKey::Produce as i16 && self.held_bytes < config.control_bytes_max,
            Some(Pending::Durable(..)) => {
                let of_groups = ApiKey::try_from(key).is_ok_and(crate::group_door::serves);
                of_groups && self.held_bytes < config.control_bytes_max
            }
            Some(_) => false,
        };
        !goes_behind || self.queue.len() >= config.in_flight_requests_max
    }

    fn request(&mut self, frame: &[u8], out: &mut Outbox) -> Result<Flow, Malformed> {
        let mut reader = Reader::new(frame, false);
        let (key, version, correlation) = (reader.i16()?, reader.i16()?, reader.i32()?);
        if self.must_wait(key) {
            return Ok(Flow::Blocked);
        }
        let Some(api) = apis::find(key) else {
            return Err(Malformed::Value { what: "the request's key", value: key.into() });
        };
        let request = Request { api, version, correlation };
        if !(api.min..=api.max).contains(&version) {
            if api.key == ApiKey::ApiVersions {
                self.versions(&request, true, out);
                return Ok(Flow::Done);
            }
            return Err(Malformed::Value { what: "the request's version", value: version.into() });
        }
        let client_id = reader.nullable_string()?.unwrap_or_default();
        if request.is_flexible() {
            reader.skip_tags()?;
        }
        if self.client_id != client_id {
            let end = client_id.floor_char_boundary(CLIENT_ID_BYTES);
            self.client_id = client_id[..end].to_owned();
        }
        let body = reader.rest();
        if api.key == ApiKey::Produce {
            return self.produce(&request, body, out);
        }
        let limit = self.core.door.config.control_bytes_max;
        if body.len() > limit {
            return Err(Malformed::TooLarge { key: api.key, bytes: body.len(), limit });
        }
        shape::check(api.shape, version, request.is_flexible(), body)?;
        self.core.door.counts.request(api.key);
        self.dispatch(&request, body, out)?;
        Ok(Flow::Done)
    }

    fn dispatch(&mut self, request: &Request, body: &[u8], out: &mut Outbox) -> Result<(), Malformed> {
        match request.api.key {
            ApiKey::ApiVersions => self.versions(request, false, out),
            ApiKey::Fetch => {
                let fetching = Fetching::new(&mut self.core, *request, decode(request, body)?);
                self.queue.push_back(Pending::Fetch(Box::new(fetching)));
                self.complete(out);
            }
            ApiKey::ListOffsets => {
                let listing = Listing::new(&self.core, *request, decode(request, body)?);
                self.queue.push_back(Pending::List(Box::new(listing)));
                self.complete(out);
            }
            ApiKey::OffsetForLeaderEpoch => {
                let answer = crate::offsets::end_of_epoch(&mut self.core, decode(request, body)?);
                self.respond(request, &answer, out)?;
            }
            key if crate::group_door::serves(key) => {
                let (client_id, host, reply) = (&*self.client_id, self.peer.address.ip(), &self.reply);
                self.core.door.groups.handle(&Asking { request, client_id, host, reply }, body)?;
                // Most are answered by now: then others may come behind, whatever the answer waits for.
                self.queue.push_back(match self.reply.take() {
                    Some((body, after)) => {
                        self.held_bytes += body.len();
                        Pending::Durable(body, after)
                    }
                    None => Pending::Reply,
                });
                self.complete(out);
            }
            ApiKey::TxnOffsetCommit => {
                let (client_id, host, reply) = (&*self.client_id, self.peer.address.ip(), &self.reply);
                let door = &self.core.door;
                let asking = Asking { request, client_id, host, reply };
                let pending = match door.groups.txn_commit(door, &asking, body, None, &self.core.observer)? {
                    None => Pending::Reply,
                    Some(wait) => Pending::TxnCommit(Box::new((*request, body.to_vec())), wait),
                };
                self.queue.push_back(pending);
                self.complete(out);
            }
            key if crate::transaction_door::serves(key) => {
                self.queue.push_back(Pending::Reply);
                self.core.door.transactions.handle(request, body, &self.reply)?;
                self.complete(out);
            }
            _ => {
                let Some(command) = crate::admin::command(&self.core.door, request, body)? else {
                    let answer = crate::admin::answer(&self.core.door, request, body)?;
                    send(answer, out);
                    return Ok(());
                };
                if self.core.door.command(&self.reply, command, body.len())? {
                    self.queue.push_back(Pending::Reply);
                }
            }
        }
        Ok(())
    }

    fn produce(&mut self, request: &Request, body: &[u8], out: &mut Outbox) -> Result<Flow, Malformed> {
        let now_us = self.now_us();
        let outcome = self.producing.handle(&mut self.core, request, body, now_us)?;
        self.tell_limit();
        if !matches!(outcome, Outcome::Blocked) {
            self.core.door.counts.request(ApiKey::Produce);
        }
        match outcome {
            Outcome::Blocked => Ok(Flow::Blocked),
            Outcome::Silent => Ok(Flow::Done),
            Outcome::Refused(why) => Ok(self.close_in_turn(why, out)),
            Outcome::Answer(waiting) => {
                self.held_bytes += waiting.bytes();
                self.queue.push_back(Pending::Produce(waiting));
                self.complete(out);
                Ok(Flow::Done)
            }
        }
    }

    /// Closes the connection, when what was asked before is answered: until then the frame is offered again.
    fn close_in_turn(&mut self, why: String, out: &mut Outbox) -> Flow {
        self.complete(out);
        if self.queue.is_empty() {
            return self.close(&why);
        }
        self.refused = Some(why);
        Flow::Blocked
    }

    fn close(&self, why: &dyn std::fmt::Display) -> Flow {
        Flow::Close(self.said_of(why))
    }

    /// What the log says of this client.
    fn said_of(&self, why: &dyn std::fmt::Display) -> String {
        let client = if self.client_id.is_empty() { "unknown" } else { &self.client_id };
        format!("Kafka client {client:?} at {}: {why}", self.peer.address)
    }

    /// A producer was refused for a limit, and its version of Produce has no field to say so: the log does, once.
    fn tell_limit(&mut self) {
        if let Some(why) = self.producing.take_untold()
            && !std::mem::replace(&mut self.has_told_limit, true)
        {
            let why = self.said_of(&why);
            tracing::warn!("{why}; nothing more is said of this connection's batches");
        }
    }

    /// Which requests are served in which versions. For a version of the request that is not known the answer is that of
    /// version 0, with an error that says so (KIP-511).
    fn versions(&self, request: &Request, unsupported: bool, out: &mut Outbox) {
        let version = if unsupported { 0 } else { request.version };
        let keys = APIS.iter().map(|api| {
            let entry = ApiVersion::default().with_api_key(api.key as i16);
            entry.with_min_version(api.min).with_max_version(api.max)
        });
        let mut answer = ApiVersionsResponse::default().with_api_keys(keys.collect());
        if version >= VERSION_FEATURES {
            let finalized = FEATURES.iter().map(|(name, level)| {
                let feature = FinalizedFeatureKey::default().with_name(StrBytes::from_static_str(name));
                feature.with_min_version_level(*level).with_max_version_level(*level)
            });
            answer = answer.with_finalized_features_epoch(0).with_finalized_features(finalized.collect());
        }
        // Before that a feature that may be off could not be told.
        if version >= VERSION_FEATURES_FROM_ZERO {
            let supported = FEATURES.iter().map(|(name, level)| {
                let feature = SupportedFeatureKey::default().with_name(StrBytes::from_static_str(name));
                feature.with_min_version(0).with_max_version(*level)
            });
            answer = answer.with_supported_features(supported.collect());
        }
        if unsupported {
            answer = answer.with_error_code(ResponseError::UnsupportedVersion.code());
        }
        let mut body = request.correlation.to_be_bytes().to_vec();
        if let Err(error) = answer.encode(&mut body, version) {
            tracing::error!(%error, "the answer to ApiVersions cannot be encoded");
            return;
        }
        send(body, out);
    }

    fn respond<R: Encodable>(&self, request: &Request, answer: &R, out: &mut Outbox) -> Result<(), Malformed> {
        send(encode(request, answer)?, out);
        Ok(())
    }

    /// Sends the answers whose turn it is.
    fn complete(&mut self, out: &mut Outbox) {
        let now_us = self.now_us();
        while let Some(first) = self.queue.front_mut() {
            let done = match first {
                Pending::Produce(waiting) => waiting.complete(now_us, &self.core.observer, out),
                Pending::Fetch(fetching) => fetching.complete(&mut self.core, now_us, out),
                Pending::List(listing) => listing.complete(&mut self.core, now_us, out),
                Pending::Reply => match self.reply.take() {
                    Some((body, after)) => {
                        self.held_bytes += body.len();
                        *first = Pending::Durable(body, after);
                        continue;
                    }
                    None => false,
                },
                Pending::TxnCommit(asked, wait) => {
                    let (waits, question) = match wait {
                        Wait::Durable(After { sink, ticket }) => (sink.wait(*ticket, &self.core.observer, 0), None),
                        Wait::Asked(question) => (!question.is_answered(), Some(Arc::clone(question))),
                    };
                    if waits {
                        false
                    } else {
                        let (request, body) = (asked.0, std::mem::take(&mut asked.1));
                        let (client_id, host, reply) = (&*self.client_id, self.peer.address.ip(), &self.reply);
                        let asking = Asking { request: &request, client_id, host, reply };
                        let (door, observer) = (&self.core.door, &self.core.observer);
                        match door.groups.txn_commit(door, &asking, &body, question, observer) {
                            Ok(Some(wait)) => *first = Pending::TxnCommit(Box::new((request, body)), wait),
                            Ok(None) => *first = Pending::Reply,
                            Err(error) => {
                                tracing::error!(%error, "a request that was understood is not any more");
                                *first = Pending::Durable(Vec::new(), Vec::new());
                            }
                        }
                        continue;
                    }
                }
                Pending::Durable(body, after) => {
                    let observer = &self.core.observer;
                    let waits = after.iter().any(|After { sink, ticket }| sink.wait(*ticket, observer, 0));
                    if !waits {
                        self.held_bytes -= body.len();
                        send(std::mem::take(body), out);
                    }
                    !waits
                }
            };
            if !done {
                break;
            }
            match first {
                Pending::Produce(waiting) => {
                    self.held_bytes -= waiting.bytes();
                    self.core.door.counts.produce.observe(now_us.saturating_sub(waiting.started_us()))
                }
                Pending::Fetch(fetching) => {
                    self.core.door.counts.fetch.observe(now_us.saturating_sub(fetching.started_us()))
                }
                Pending::List(_) | Pending::Reply | Pending::Durable(..) | Pending::TxnCommit(..) => {}
            }
            self.queue.pop_front();
        }
    }
}

/// Decodes a request whose shape was checked.
pub(crate) fn decode<M: Decodable>(request: &Request, body: &[u8]) -> Result<M, Malformed> {
    let mut bytes = Bytes::copy_from_slice(body);
    M::decode(&mut bytes, request.version).map_err(|error| Malformed::Decode(error.to_string()))
}

/// Header and body of an answer.
pub(crate) fn encode<R: Encodable>(request: &Request, answer: &R) -> Result<Vec<u8>, Malformed> {
    let mut body = Vec::with_capacity(256);
    request.put_header(&mut body);
    answer.encode(&mut body, request.version).map_err(|error| Malformed::Decode(error.to_string()))?;
    Ok(body)
}

fn send(body: Vec<u8>, out: &mut Outbox) {
    let mut frame = out.begin_prefixed();
    if body.len() < 64 << 10 {
        frame.body().extend_from_slice(&body);
    } else {
        frame.attach_own(Bytes::from(body));
    }
    frame.finish();
}

impl Session for KafkaSession {
    fn on_frame(&mut self, _: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        if let Some(why) = self.refused.take() {
            return self.close_in_turn(why, out);
        }
        match self.request(body, out) {
            Ok(flow) => flow,
            Err(error) => self.close(&error),
        }
    }

    fn refused_frame(&self, error: &ProtocolError) -> String {
        match error {
            ProtocolError::FrameSize { bytes, max, .. } => self.said_of(&format!(
                "a request has {bytes} bytes, and {max} at most are taken (network.frame_bytes_max); send less at a time"
            )),
            error => self.said_of(error),
        }
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        self.complete(out);
    }

    fn deadline_us(&self) -> Option<u64> {
        let first = match self.queue.front() {
            Some(Pending::Produce(waiting)) => Some(waiting.deadline_us()),
            Some(Pending::Fetch(fetching)) => Some(fetching.deadline_us()),
            Some(Pending::List(listing)) => Some(listing.deadline_us(self.now_us())),
            Some(Pending::Reply | Pending::Durable(..) | Pending::TxnCommit(..)) | None => None,
        };
        first.into_iter().chain(self.producing.deadline_us()).min()
    }

    fn is_busy(&self) -> bool {
        // A member of a group may wait for others for minutes: a node that stops does not wait for that.
        let waits = |pending: &Pending| !(self.stopping && matches!(pending, Pending::Reply));
        self.producing.is_busy() || self.queue.iter().any(waits)
    }

    fn on_stop(&mut self, out: &mut Outbox) {
        self.stopping = true;
        if let Some(Pending::Fetch(fetching)) = self.queue.front_mut() {
            fetching.give_up();
        }
        self.complete(out);
    }
}
