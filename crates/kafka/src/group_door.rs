//! The group coordinator behind the door: its lock, its clock, its answers on their way back to the connections that wait.
//!
//! Requests come in on I/O threads, time passes on the door's own thread. Whoever has called the coordinator takes what is
//! answered and hands it to the connections it is for; an answer that rests on what was recorded waits there until that is
//! durable.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator as Found;
use kafka_protocol::messages::{
    ApiKey, BrokerId, FindCoordinatorRequest, FindCoordinatorResponse, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;
use kera_env::{Clock, Random};
use kera_format::kafka_groups::Entry;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::door::{After, Catalog, Door, Reply, partitions_of};
use crate::groups::{Answer, AppendFailed, Caller, Coordinator, Done, GroupConfig, Journal, Mark, Now, Topic, Topics};
use crate::session::{Request, decode, encode};
use crate::state_log::StateLog;
use crate::transaction_door::{MayWrite, TransactionDoor};
use crate::wire::Malformed;

/// Where groups and their offsets are kept.
const GROUPS_STREAM: &str = "_kera.groups";
/// The log of groups is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 4 << 20;
/// Bytes of one append of a copy.
const COPY_STEP_BYTES: usize = 256 << 10;
/// How long what the coordinator knows of topics may be old.
const TOPICS_MS: i64 = 1_000;
/// From this version on clients know the error that says that their transaction has to be aborted.
const VERSION_TELLS_ABORTABLE: i16 = 4;
/// From this version on a group is added to the producer's transaction by what is committed for it (KIP-890).
const VERSION_ADDS_GROUPS: i16 = 5;
/// From this version on several keys are asked for.
const VERSION_KEYS: i16 = 4;
/// Kinds of keys that have a coordinator.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Whether requests with this key are the coordinator's.
pub(crate) fn serves(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::JoinGroup
            | ApiKey::SyncGroup
            | ApiKey::Heartbeat
            | ApiKey::LeaveGroup
            | ApiKey::OffsetCommit
            | ApiKey::OffsetFetch
            | ApiKey::OffsetDelete
            | ApiKey::ListGroups
            | ApiKey::DescribeGroups
            | ApiKey::DeleteGroups
            | ApiKey::ConsumerGroupHeartbeat
            | ApiKey::ConsumerGroupDescribe
    )
}

/// Who asks, and where the answer goes.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) request: &'a Request,
    pub(crate) client_id: &'a str,
    pub(crate) host: IpAddr,
    pub(crate) reply: &'a Reply,
}

/// The groups of a node.
pub(crate) struct GroupDoor {
    coordinator: Mutex<Coordinator>,
    /// Who waits for which answer, by token.
    waiting: Mutex<HashMap<u64, (Request, Reply)>>,
    tokens: AtomicU64,
    log: Arc<StateLog<Entry>>,
    clock: Arc<dyn Clock>,
}

/// The coordinator's handle on its log.
struct Handle(Arc<StateLog<Entry>>);

impl Journal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.0.append(entries)
    }
}

/// What topics there are, as the coordinator sees them.
struct KnownTopics {
    catalog: Arc<Catalog>,
    clock: Arc<dyn Clock>,
    /// When the version was last looked at, and what the topics were then, in one number.
    seen: Mutex<(i64, u64)>,
}

impl Topics for KnownTopics {
    fn topic(&self, name: &str) -> Option<Topic> {
        let info = self.catalog.info(name)?;
        Some(Topic { id: self.catalog.topic_id(info.id), partitions: partitions_of(&info.options) })
    }
    fn name(&self, id: Uuid) -> Option<String> {
        self.catalog.info_of(id).map(|info| info.name)
    }
    fn names(&self) -> Vec<String> {
        self.catalog.infos().into_iter().map(|info| info.name).collect()
    }
    fn version(&self) -> u64 {
        let mut seen = self.seen.lock();
        let now_ms = self.clock.now_ms();
        if (now_ms - seen.0).unsigned_abs() >= TOPICS_MS.unsigned_abs() {
            // Ids are never reused and partitions only grow: their sum tells states apart well enough, since a change that it
            // misses is one of two topics at once within a second.
            let mix = |sum: u64, id: u64, count: u32| {
                (sum ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(7).wrapping_add(count.into())
            };
            let infos = self.catalog.infos();
            let version = infos.iter().fold(1, |sum, info| mix(sum, info.id.0, partitions_of(&info.options)));
            *seen = (now_ms, version);
        }
        seen.1
    }
}

impl GroupDoor {
    /// Opens the stream of groups and reads what is in it. Blocks the thread while segments come from disk.
    pub(crate) fn open(
        catalog: &Arc<Catalog>,
        broker: &kera_broker::Broker,
        clock: &Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> io::Result<GroupDoor> {
        let log = StateLog::open(GROUPS_STREAM, catalog, broker, clock)?;
        let topics =
            KnownTopics { catalog: Arc::clone(catalog), clock: Arc::clone(clock), seen: Mutex::new((i64::MIN / 2, 0)) };
        let journal = Box::new(Handle(Arc::clone(&log)));
        let mut coordinator = Coordinator::new(GroupConfig::default(), journal, Arc::new(topics), random);
        let (records, passed_over) =
            log.replay(|entry| coordinator.replay(entry)).map_err(|error| io::Error::other(error.to_string()))?;
        coordinator.start(now(clock.as_ref()));
        let groups = coordinator.group_count();
        tracing::info!(groups, records, passed_over, "Kafka groups are open");
        Ok(GroupDoor {
            coordinator: Mutex::new(coordinator),
            waiting: Mutex::default(),
            tokens: AtomicU64::new(1),
            log,
            clock: Arc::clone(clock),
        })
    }

    /// Calls the coordinator for a request, whose answer comes through its reply.
    fn call<T>(&self, asking: &Asking<'_>, act: impl FnOnce(&mut Coordinator, Now, u64, &Caller) -> T) -> T {
        let Asking { request, client_id, host, reply } = *asking;
        let caller = Caller { version: request.version, client_id: client_id.to_owned(), host: format!("/{host}") };
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let now = now(self.clock.as_ref());
        self.waiting.lock().insert(token, (*request, Arc::clone(reply)));
        let mut coordinator = self.coordinator.lock();
        let acted = act(&mut coordinator, now, token, &caller);
        let done = coordinator.take_done();
        drop(coordinator);
        self.deliver(done);
        acted
    }

    /// Gives a request to the coordinator. Its answer comes through its reply.
    pub(crate) fn handle(&self, asking: &Asking<'_>, body: &[u8]) -> Result<(), Malformed> {
        let request = asking.request;
        macro_rules! call {
            ($method:ident) => {{
                let asked = decode(request, body)?;
                self.call(asking, |all, now, token, caller| all.$method(now, token, caller, &asked));
            }};
        }
        match request.api.key {
            ApiKey::JoinGroup => call!(join),
            ApiKey::SyncGroup => call!(sync),
            ApiKey::Heartbeat => call!(heartbeat),
            ApiKey::LeaveGroup => call!(leave),
            ApiKey::OffsetCommit => call!(commit),
            ApiKey::OffsetFetch => call!(fetch),
            ApiKey::OffsetDelete => call!(delete_offsets),
            ApiKey::ListGroups => call!(list),
            ApiKey::DescribeGroups => call!(describe),
            ApiKey::DeleteGroups => call!(delete),
            ApiKey::ConsumerGroupHeartbeat => call!(consumer_heartbeat),
            ApiKey::ConsumerGroupDescribe => call!(consumer_describe),
            key => return Err(Malformed::Decode(format!("{key:?} is not the group coordinator's"))),
        }
        Ok(())
    }

    /// How many groups there are.
    pub(crate) fn count(&self) -> usize {
        self.coordinator.lock().group_count()
    }

    /// What time brings: sessions that end, generations that begin, a copy of the log when it has grown.
    pub(crate) fn tick(&self) {
        let now = now(self.clock.as_ref());
        let done = {
            let mut coordinator = self.coordinator.lock();
            if coordinator.next_deadline_ms().is_some_and(|at| at <= now.mono_ms) {
                coordinator.tick(now);
            }
            self.copy(&coordinator);
            coordinator.take_done()
        };
        self.log.trim();
        self.deliver(done);
    }

    /// A topic is gone, and with it what groups have committed of it.
    pub(crate) fn topic_deleted(&self, name: &str) {
        let done = {
            let mut coordinator = self.coordinator.lock();
            coordinator.topic_deleted(now(self.clock.as_ref()), name);
            coordinator.take_done()
        };
        self.deliver(done);
    }

    /// Writes everything anew if the log has grown. Under the coordinator's lock, so that nothing comes between; if it breaks
    /// off, what is there stays and counts.
    fn copy(&self, coordinator: &Coordinator) {
        let Some((from, added)) = self.log.begin_copy(COPY_BYTES_MIN) else { return };
        let mut behind = None;
        loop {
            let (entries, next) = coordinator.snapshot(behind.as_deref(), COPY_STEP_BYTES);
            if self.log.append(&entries).is_err() {
                return;
            }
            behind = next;
            if behind.is_none() {
                break;
            }
        }
        self.log.end_copy(from, added);
    }

    fn deliver(&self, all: Vec<Done>) {
        for Done { token, after, answer } in all {
            let Some((request, reply)) = self.waiting.lock().remove(&token) else { continue };
            let body = encode_answer(&request, &answer).unwrap_or_else(|error| {
                let key = request.api.key;
                tracing::error!(?key, version = request.version, %error, "an answer of a group cannot be encoded");
                Vec::new()
            });
            reply.put_after(body, self.after(after));
        }
    }

    /// What an answer that rests on `mark` waits for.
    fn after(&self, mark: Option<Mark>) -> Option<After> {
        let (mark, sink) = (mark?, self.log.sink()?);
        Some(After { sink: Arc::clone(sink), ticket: mark.0 })
    }

    /// TxnOffsetCommit: under the coordinator's lock from the question whether the transaction runs until the offsets are there,
    /// so that they are not forgotten by its end. What is returned must be durable before: then it is to be called again.
    pub(crate) fn txn_commit(
        &self,
        transactions: &TransactionDoor,
        asking: &Asking<'_>,
        body: &[u8],
    ) -> Result<Option<After>, Malformed> {
        let request = asking.request;
        let asked: TxnOffsetCommitRequest = decode(request, body)?;
        let adds = request.version >= VERSION_ADDS_GROUPS;
        let outcome = self.call(asking, |all, now, token, caller| {
            if !all.names_partitions(&asked) {
                // Nothing is there to commit for: every partition is told so.
                all.txn_commit(now, token, caller, &asked);
                return MayWrite::Yes;
            }
            let may = transactions.may_commit(&asked, adds);
            match may {
                MayWrite::Yes => all.txn_commit(now, token, caller, &asked),
                MayWrite::Later(_) => drop(self.waiting.lock().remove(&token)),
                MayWrite::No(ResponseError::InvalidTxnState) if request.version >= VERSION_TELLS_ABORTABLE => {
                    all.refuse_txn_commit(token, &asked, ResponseError::TransactionAbortable);
                }
                MayWrite::No(code) => all.refuse_txn_commit(token, &asked, code),
            }
            may
        });
        Ok(if let MayWrite::Later(after) = outcome { after } else { None })
    }

    /// A transaction has ended: what its producer committed for a group counts, or never did. What is returned must be durable
    /// before the transaction is over.
    pub(crate) fn end_transaction(
        &self,
        group: &str,
        producer_id: i64,
        commit: bool,
    ) -> Result<Option<After>, AppendFailed> {
        let mut coordinator = self.coordinator.lock();
        let ended = coordinator.end_transaction(now(self.clock.as_ref()), group, producer_id, commit);
        let done = coordinator.take_done();
        drop(coordinator);
        self.deliver(done);
        ended.map(|mark| self.after(mark))
    }
}

fn encode_answer(request: &Request, answer: &Answer) -> Result<Vec<u8>, Malformed> {
    match answer {
        Answer::Join(answer) => encode(request, answer),
        Answer::Sync(answer) => encode(request, answer),
        Answer::Heartbeat(answer) => encode(request, answer),
        Answer::Leave(answer) => encode(request, answer),
        Answer::Commit(answer) => encode(request, answer),
        Answer::Fetch(answer) => encode(request, answer),
        Answer::DeleteOffsets(answer) => encode(request, answer),
        Answer::TxnCommit(answer) => encode(request, answer),
        Answer::List(answer) => encode(request, answer),
        Answer::Describe(answer) => encode(request, answer),
        Answer::Delete(answer) => encode(request, answer),
        Answer::ConsumerHeartbeat(answer) => encode(request, answer),
        Answer::ConsumerDescribe(answer) => encode(request, answer),
    }
}

fn now(clock: &dyn Clock) -> Now {
    Now { mono_ms: clock.monotonic_us() / 1000, wall_ms: clock.now_ms() }
}

/// Every group and every transactional id is coordinated here. In a cluster groups are kept by the node with the lowest number, whether
/// or not it is there: what they have read is in one copy, and nobody else knows it. Transactions over several nodes are not
/// served, and said to be invalid rather than half done.
pub(crate) fn find_coordinator(door: &Door, version: i16, asked: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let wrong =
        !matches!(asked.key_type, GROUP | TRANSACTION) || (door.is_in_cluster() && asked.key_type == TRANSACTION);
    let error = if wrong { ResponseError::InvalidRequest.code() } else { 0 };
    let (id, host, port) = door.brokers().into_iter().next().unwrap_or((-1, String::new(), -1));
    let (host, node) = (StrBytes::from_string(host), BrokerId(if wrong { -1 } else { id }));
    if version < VERSION_KEYS {
        return FindCoordinatorResponse::default()
            .with_error_code(error)
            .with_node_id(node)
            .with_host(host)
            .with_port(port);
    }
    let found = asked.coordinator_keys.into_iter().map(|key| {
        let found = Found::default().with_key(key).with_node_id(node).with_host(host.clone()).with_port(port);
        found.with_error_code(error)
    });
    FindCoordinatorResponse::default().with_coordinators(found.collect())
}
