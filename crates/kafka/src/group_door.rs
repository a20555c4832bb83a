//! The group coordinator behind the door: its lock, its clock, its answers on their way back to the connections that wait.
//!
//! Requests come in on I/O threads, time passes on a thread for it. Whoever has called the coordinator takes what is
//! answered and hands it to the connections it is for; an answer that rests on what was recorded waits there until that is
//! durable. Each [part](crate::group_parts) of the groups has a coordinator of its own; a request about groups of several is answered once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator as Found;
use kafka_protocol::messages::{
    ApiKey, BrokerId, ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest,
    FindCoordinatorResponse, ListGroupsRequest, ListGroupsResponse, OffsetFetchRequest, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::Broker;
use kera_env::{Clock, Random};
use kera_format::kafka_groups::Entry;
use kera_format::{ProducerEpoch, ProducerId};
use kera_log::{Observer, ReadError};
use kera_protocol::{ClaimGroup, EndInGroup, GroupEnded};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::door::{After, Catalog, Door, Reply};
use crate::group_founding;
use crate::group_parts::{self, Load, Making, Part, Parts};
use crate::groups::{Answer, AppendFailed, Caller, Coordinator, Done, Now, Topic, Topics};
use crate::node_requests::Served;
use crate::numbering::partitions_of;
use crate::session::{Request, decode, encode};
use crate::state_log::{Edge, StateLog, cannot_be_read, pieces};
use crate::state_parts;
use crate::transaction_door::MayWrite;
use crate::transaction_owner::{Question, coordinator_of, is_about_coordinators};
use crate::wire::Malformed;

/// Where groups and their offsets are kept by a node that is alone.
pub(crate) const GROUPS_STREAM: &str = "_kera.groups";
/// The log of groups is written anew when this much was added since the last time, and at least what that took.
const COPY_BYTES_MIN: u64 = 4 << 20;
/// Bytes of one append of a copy.
const COPY_STEP_BYTES: usize = 256 << 10;
/// How long what the coordinator knows of topics may be old.
const TOPICS_MS: i64 = 1_000;
/// How often groups are looked at: how late a session ends, or a generation begins.
const TICK: Duration = Duration::from_millis(50);
/// How often it is looked at whose the groups are.
const FOLLOW: Duration = Duration::from_millis(20);
/// Copies of what a cluster keeps of its groups, where there are so many nodes.
const COPIES_MAX: usize = 3;
/// For how long more nodes are waited for before it is kept in fewer copies.
const NODES_WAIT_MS: u64 = 10_000;
/// How often topics that are gone are looked for, in looks at whose the groups are.
const TOPICS_LOOKS: u32 = 50;
/// What producers with a transactional id are told in a cluster of nodes of different versions.
const NO_TRANSACTIONS: &str =
    "a cluster serves transactions once all of its nodes run this version; `kera cluster level` says which do not";
/// From this version on OffsetFetch asks for several groups.
const VERSION_FETCH_MANY: i16 = 8;
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

/// What offsets of a transaction wait for.
pub(crate) enum Wait {
    /// Until it is durable that the transaction has begun.
    Durable(After),
    /// Until its coordinator has answered.
    Asked(Arc<Question>),
}

/// The groups of a node.
pub(crate) struct GroupDoor {
    /// What a node that is or was alone keeps for itself: transactions that have begun there end there.
    own: Option<Arc<Part>>,
    parts: Parts,
    /// Who waits for which answer, by token.
    waiting: Mutex<HashMap<u64, Waiting>>,
    tokens: AtomicU64,
    clock: Arc<dyn Clock>,
    /// Since when somebody has asked for a coordinator in a cluster that keeps no groups yet.
    wanted_ms: Mutex<Option<u64>>,
}

struct Waiting {
    request: Request,
    reply: Reply,
    /// The address of the part that it waits for.
    part: usize,
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
    /// Opens the stream of groups and reads what is in it, unless the groups are a cluster's. Of these it reads what is pending at a node that was
    /// alone; where that cannot be read the error comes along, for [`may_do_without`] to judge. If `accept_damage`, a node that is alone does without
    /// what the disk does not give. Blocks the thread while segments come from disk.
    pub(crate) fn open(
        catalog: &Arc<Catalog>,
        broker: &Arc<Broker>,
        clock: &Arc<dyn Clock>,
        random: Arc<dyn Random>,
        accept_damage: bool,
    ) -> io::Result<(GroupDoor, Option<ReadError>)> {
        let topics =
            KnownTopics { catalog: Arc::clone(catalog), clock: Arc::clone(clock), seen: Mutex::new((i64::MIN / 2, 0)) };
        let making =
            Making { catalog: Arc::clone(catalog), topics: Arc::new(topics), random, clock: Arc::clone(clock) };
        let parts = Parts::new(making, broker);
        let (own, unread) = if catalog.info_of_groups().is_none() && broker.ownership().nodes().len() < 2 {
            let log = StateLog::open(GROUPS_STREAM, catalog, broker, clock)?;
            let own = read_own(&parts.making, log, accept_damage)?;
            parts.set_alone(Arc::clone(&own));
            (Some(own), None)
        } else {
            let log = StateLog::find(GROUPS_STREAM, catalog, broker, clock);
            match log.map(|log| parts.making.read_pending(log)).transpose() {
                Ok(own) => (own, None),
                Err(error) => (None, Some(error)),
            }
        };
        let door = GroupDoor {
            own,
            parts,
            waiting: Mutex::default(),
            tokens: AtomicU64::new(1),
            clock: Arc::clone(clock),
            wanted_ms: Mutex::default(),
        };
        Ok((door, unread))
    }

    /// Calls a coordinator for a request, whose answer comes through its reply.
    fn call<T>(
        &self,
        part: &Arc<Part>,
        asking: &Asking<'_>,
        act: impl FnOnce(&mut Coordinator, Now, u64, &Caller) -> T,
    ) -> T {
        let Asking { request, reply, .. } = *asking;
        let (token, now) = (self.token(), now(self.clock.as_ref()));
        let waiting = Waiting { request: *request, reply: Arc::clone(reply), part: address(part) };
        self.waiting.lock().insert(token, waiting);
        let mut coordinator = part.coordinator.lock();
        let acted = act(&mut coordinator, now, token, &asking.caller());
        let done = coordinator.take_done();
        drop(coordinator);
        self.deliver(part, done);
        acted
    }

    /// Calls a coordinator for a part of a request, which is answered at once.
    fn ask(
        &self,
        part: &Part,
        asking: &Asking<'_>,
        act: impl FnOnce(&mut Coordinator, Now, u64, &Caller),
    ) -> Option<(Answer, Option<After>)> {
        let (token, now) = (self.token(), now(self.clock.as_ref()));
        let mut coordinator = part.coordinator.lock();
        act(&mut coordinator, now, token, &asking.caller());
        let mut done = coordinator.take_done();
        drop(coordinator);
        let mine = done.iter().position(|done| done.token == token).map(|at| done.swap_remove(at));
        self.deliver(part, done);
        mine.map(|Done { after, answer, .. }| (answer, part.after(after)))
    }

    fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a request to the coordinator. Its answer comes through its reply.
    pub(crate) fn handle(&self, asking: &Asking<'_>, body: &[u8]) -> Result<(), Malformed> {
        let request = asking.request;
        macro_rules! call {
            ($method:ident) => {{
                let asked = decode(request, body)?;
                let part = self.parts.find(group_of(&asked));
                self.call(&part, asking, |all, now, token, caller| all.$method(now, token, caller, &asked));
            }};
        }
        // One request for each part that has some of the groups, and one answer for all.
        macro_rules! call_each {
            ($method:ident, $request:ty, $groups:ident, $name:expr) => {{
                let mut asked: $request = decode(request, body)?;
                let mut split = self.parts.split(std::mem::take(&mut asked.$groups), $name);
                if split.is_empty() {
                    split.push((self.parts.find(""), Vec::new()));
                }
                let answers = split.into_iter().filter_map(|(part, groups)| {
                    asked.$groups = groups;
                    self.ask(&part, asking, |all, now, token, caller| all.$method(now, token, caller, &asked))
                });
                self.answer(asking, answers);
            }};
        }
        match request.api.key {
            ApiKey::JoinGroup => call!(join),
            ApiKey::SyncGroup => call!(sync),
            ApiKey::Heartbeat => call!(heartbeat),
            ApiKey::LeaveGroup => call!(leave),
            ApiKey::OffsetCommit => call!(commit),
            ApiKey::OffsetFetch if request.version < VERSION_FETCH_MANY => call!(fetch),
            ApiKey::OffsetFetch => call_each!(fetch, OffsetFetchRequest, groups, |group| &group.group_id),
            ApiKey::OffsetDelete => call!(delete_offsets),
            ApiKey::ListGroups => {
                let asked: ListGroupsRequest = decode(request, body)?;
                let parts = self.parts.listed();
                let answers = parts.iter().filter_map(|part| {
                    self.ask(part, asking, |all, now, token, caller| all.list(now, token, caller, &asked))
                });
                let none = (Answer::List(ListGroupsResponse::default()), None);
                self.answer(asking, std::iter::once(none).chain(answers));
            }
            ApiKey::DescribeGroups => call_each!(describe, DescribeGroupsRequest, groups, |group| group),
            ApiKey::DeleteGroups => call_each!(delete, DeleteGroupsRequest, groups_names, |group| group),
            ApiKey::ConsumerGroupHeartbeat => call!(consumer_heartbeat),
            ApiKey::ConsumerGroupDescribe => {
                call_each!(consumer_describe, ConsumerGroupDescribeRequest, group_ids, |group| group)
            }
            key => return Err(Malformed::Decode(format!("{key:?} is not the group coordinator's"))),
        }
        Ok(())
    }

    /// Puts the answers of several parts together.
    fn answer(&self, asking: &Asking<'_>, answers: impl Iterator<Item = (Answer, Option<After>)>) {
        let (mut all, mut after): (Option<Answer>, Vec<After>) = (None, Vec::new());
        for (answer, waits) in answers {
            after.extend(waits);
            all = Some(match all {
                None => answer,
                Some(before) => before.with(answer),
            });
        }
        let body = all.map_or_else(Vec::new, |answer| body_of(asking.request, &answer));
        asking.reply.put_after(body, after);
    }

    /// How many groups there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.here().iter().map(|part| part.coordinator.lock().group_count()).sum()
    }

    /// What time brings: sessions that end, generations that begin, a copy of the log when it has grown.
    pub(crate) fn tick(&self) {
        let now = now(self.clock.as_ref());
        for part in self.parts.here() {
            let done = {
                let mut coordinator = part.coordinator.lock();
                if coordinator.next_deadline_ms().is_some_and(|at| at <= now.mono_ms) {
                    coordinator.tick(now);
                }
                coordinator.take_done()
            };
            self.deliver(&part, done);
            if let Some(log) = &part.log {
                copy(log, &part.coordinator, log.copied_from(COPY_BYTES_MIN));
                log.trim();
            }
        }
    }

    /// The topics that groups here have offsets of and that are not among these.
    pub(crate) fn topics_beyond(&self, known: &BTreeSet<String>) -> BTreeSet<String> {
        self.parts.here().iter().flat_map(|part| part.coordinator.lock().topics_beyond(known)).collect()
    }

    /// Topics of these names are gone, and with them what groups have committed of them.
    pub(crate) fn topics_deleted(&self, names: &BTreeSet<String>) {
        #[cfg(test)]
        LOOKED_THROUGH.set(LOOKED_THROUGH.get() + 1);
        for part in self.parts.here() {
            let done = {
                let mut coordinator = part.coordinator.lock();
                coordinator.topics_deleted(now(self.clock.as_ref()), names);
                coordinator.take_done()
            };
            self.deliver(&part, done);
        }
    }

    fn deliver(&self, part: &Part, all: Vec<Done>) {
        for Done { token, after, answer } in all {
            let Some(Waiting { request, reply, .. }) = self.waiting.lock().remove(&token) else { continue };
            reply.put_after(body_of(&request, &answer), part.after(after));
        }
    }

    /// TxnOffsetCommit: under the coordinator's lock from the question whether the transaction runs until the offsets are there,
    /// so that they are not forgotten by its end. What is returned is waited for: then it is to be called again, with the `question` that was
    /// asked.
    pub(crate) fn txn_commit(
        &self,
        door: &Arc<Door>,
        asking: &Asking<'_>,
        body: &[u8],
        mut question: Option<Arc<Question>>,
        observer: &Arc<dyn Observer>,
    ) -> Result<Option<Wait>, Malformed> {
        let request = asking.request;
        let asked: TxnOffsetCommitRequest = decode(request, body)?;
        let adds = request.version >= VERSION_ADDS_GROUPS;
        let part = self.parts.find(&asked.group_id);
        let outcome = self.call(&part, asking, |all, now, token, caller| {
            if !all.names_partitions(&asked) {
                // Nothing is there to commit for: every partition is told so.
                all.txn_commit(now, token, caller, &asked);
                return MayWrite::Yes;
            }
            // Nobody is asked, and no group added, for what is not here: its end would never come here either.
            if let Err(code) = all.check_loaded() {
                all.refuse_txn_commit(token, &asked, code);
                return MayWrite::No(code);
            }
            let may = if door.transactions.is_alone() {
                door.transactions.may_commit(&asked, adds)
            } else {
                may_commit(door, &part, &asked, adds, &mut question, observer)
            };
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
        Ok(match outcome {
            MayWrite::Later(Some(after)) => Some(Wait::Durable(after)),
            MayWrite::Later(None) => question.map(Wait::Asked),
            _ => None,
        })
    }

    /// The same at the request of a transaction's coordinator in a cluster; `number` is the transaction's.
    ///
    /// Who knows nothing of the transaction says that it has ended, and records nothing. So nobody may say it who may have been replaced: the next owner may have
    /// offsets of it that are pending.
    pub(crate) fn end_here(&self, broker: &Broker, asked: &EndInGroup) -> Result<Option<After>, ResponseError> {
        let producer_id = asked.producer_id.0.cast_signed();
        let here = self.parts.find_here(&asked.group).filter(|(epoch, _)| *epoch == asked.owner_epoch);
        let is_ours = |part: &Part| broker.is_confirmed() && part.log.as_ref().is_none_or(|log| log.is_ours());
        let (_, part) = here.filter(|(_, part)| is_ours(part)).ok_or(ResponseError::NotCoordinator)?;
        let mut coordinator = part.coordinator.lock();
        // It may have left since it was found. What it knows nothing of any more has not ended.
        coordinator.check_loaded()?;
        if !part.claims.lock().end(&asked.group, producer_id, asked.number) {
            // A late copy: the end that it tells of was told before.
            return Ok(None);
        }
        let ended = coordinator.end_transaction(now(self.clock.as_ref()), &asked.group, producer_id, asked.commit);
        let done = coordinator.take_done();
        drop(coordinator);
        self.deliver(&part, done);
        ended.map(|mark| part.after(mark)).map_err(|AppendFailed| ResponseError::RequestTimedOut)
    }

    /// A transaction of a node that is or was alone has ended: what its producer committed for a group counts, or never did. What is
    /// returned must be durable before the transaction is over.
    pub(crate) fn end_transaction(
        &self,
        group: &str,
        producer_id: i64,
        commit: bool,
    ) -> Result<Option<After>, AppendFailed> {
        // Not where the group is by now: what is pending does not come along until it has ended here.
        let Some(part) = &self.own else { return Ok(None) };
        let mut coordinator = part.coordinator.lock();
        let ended = coordinator.end_transaction(now(self.clock.as_ref()), group, producer_id, commit);
        let done = coordinator.take_done();
        drop(coordinator);
        self.deliver(part, done);
        ended.map(|mark| part.after(mark))
    }

    /// The groups of a node that is or was alone which have offsets pending, each with the producer whose they are.
    pub(crate) fn own_pending(&self) -> Vec<(String, i64)> {
        self.own.as_ref().map_or_else(Vec::new, |part| part.coordinator.lock().pending())
    }

    /// What is pending of transactions that a node which is or was alone knows nothing of, or that are over, never counts: nobody would end them, and who wants stable offsets
    /// would wait for ever. `unfinished`: the groups of all others, each with its producer. Before anybody is served.
    ///
    /// Nothing is pending before it is durable that a transaction which has not ended has the group, and none has ended before it is durable that nothing is pending of it. So there is something only where a
    /// part of the journal of transactions was lost, at this start or at one before which did not come so far. Transactions that go on
    /// [have got](crate::transaction_doubt::settle) by then what is theirs.
    ///
    /// # Errors
    /// That cannot be recorded.
    pub(crate) fn end_unknown(&self, unfinished: &HashSet<(String, i64)>) -> io::Result<()> {
        for (group, producer_id) in self.own_pending().into_iter().filter(|one| !unfinished.contains(one)) {
            tracing::warn!(
                group,
                producer_id,
                "offsets were pending of a transaction that is not known any more: the group goes on from what was committed before"
            );
            let ended = self.end_transaction(&group, producer_id, false);
            ended.map_err(|AppendFailed| io::Error::other(format!("{GROUPS_STREAM} takes no records")))?;
        }
        Ok(())
    }

    /// Looks at whose the groups are now: what is to be read. In a cluster, on one thread; waits for nobody.
    pub(crate) fn follow(&self, catalog: &Catalog, broker: &Broker) -> Vec<Load> {
        let nodes = broker.ownership().nodes().len();
        if self.parts.stream().is_none() {
            let stream = catalog.info_of_groups().and_then(|info| broker.log().stream(info.id));
            if stream.is_none() && nodes < 2 {
                return Vec::new();
            }
            let is_made = stream.is_some();
            if is_made || self.parts.is_alone() {
                self.parts.set_shared(stream).iter().for_each(|own| self.close(own, Coordinator::wind_down));
            }
            if !is_made {
                return Vec::new();
            }
        }
        let (left, loads) = self.parts.follow();
        left.iter().for_each(|part| self.close(part, Coordinator::close));
        loads
    }

    /// Has the stream of the cluster's groups made if there is none and somebody wants it. Blocks while the coordinators of the cluster make it.
    pub(crate) fn make_wanted(&self, catalog: &Catalog, broker: &Broker) {
        if self.parts.stream().is_none() && !self.parts.is_alone() {
            self.make_stream(catalog, broker.ownership().nodes().len());
        }
    }

    /// In as many copies as there are nodes for.
    fn make_stream(&self, catalog: &Catalog, nodes: usize) {
        let Some(since_ms) = *self.wanted_ms.lock() else { return };
        let waited_ms = now(self.clock.as_ref()).mono_ms.saturating_sub(since_ms);
        let most = nodes.min(COPIES_MAX);
        let copies = if waited_ms < NODES_WAIT_MS { COPIES_MAX } else { 2 };
        if copies > most {
            return;
        }
        let options = state_parts::stream_options(copies as u32);
        match catalog.coordinator.system_stream(group_parts::STREAM, &options) {
            Ok(info) => {
                tracing::info!(copies = info.options.replication, "the cluster keeps Kafka groups from here on")
            }
            Err(error) => tracing::debug!(%error, "the cluster cannot keep Kafka groups yet"),
        }
    }

    /// Reads what has come to a door, unless it leaves before: see [`Load::run`]. Of a streamlet that nobody has written to that is what groups had committed at a
    /// node that was alone. Blocks the thread.
    pub(crate) fn read(&self, door: &Door, load: &Load, go_on: impl Fn() -> bool + Sync) {
        let Some(part) = load.run(&door.broker, || door.others(), &go_on) else { return };
        if group_founding::take_over(door, load, &part, go_on) {
            self.loaded(load, part);
        }
    }

    /// The groups of a streamlet are read: they are served, if they are still this node's.
    pub(crate) fn loaded(&self, load: &Load, part: Arc<Part>) {
        self.parts.loaded(load, part);
    }

    /// Whether the cluster is to have a stream of groups.
    #[cfg(test)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_ms.lock().is_some()
    }

    /// The part of a group is closed, as when it has left, and still found.
    #[cfg(test)]
    pub(crate) fn close_group(&self, group: &str) {
        self.parts.find(group).coordinator.lock().close(ResponseError::NotCoordinator);
    }

    /// The streamlet of a group in a cluster.
    #[cfg(test)]
    pub(crate) fn streamlet_of(&self, group: &str) -> Option<(Arc<kera_log::Stream>, kera_format::StreamletId)> {
        self.parts.streamlet_of(group)
    }

    /// A part is this node's no more: nothing of it is served, and who waits for others is told.
    fn close(&self, part: &Arc<Part>, close: impl FnOnce(&mut Coordinator, ResponseError)) {
        let code = ResponseError::NotCoordinator;
        close(&mut part.coordinator.lock(), code);
        let mut refused = Vec::new();
        self.waiting.lock().retain(|_, waiting| {
            let Waiting { request, reply, part: of } = waiting;
            let answer = Coordinator::refused(request.api.key, request.version, code).filter(|_| *of == address(part));
            let is_refused = answer.is_some();
            refused.extend(answer.map(|answer| (*request, Arc::clone(reply), answer)));
            !is_refused
        });
        for (request, reply, answer) in refused {
            reply.put_after(body_of(&request, &answer), None);
        }
    }

    /// The node that coordinates a group of a cluster, and the epoch in which it does.
    pub(crate) fn owner_of(&self, broker: &Broker, group: &str) -> Option<(u32, u32)> {
        let Some((stream, streamlet)) = self.parts.streamlet_of(group) else {
            // Somebody has to have it made, or what waits for the group waits for ever.
            if !self.parts.is_alone() {
                self.wanted_ms.lock().get_or_insert_with(|| now(self.clock.as_ref()).mono_ms);
            }
            return None;
        };
        let owner = broker.ownership().owner(stream.id(), streamlet).filter(|owner| owner.node != 0)?;
        Some((owner.node, owner.epoch))
    }

    /// The node that coordinates a group.
    fn node_of(&self, door: &Door, group: &str) -> Result<i32, ResponseError> {
        if self.parts.is_alone() {
            return Ok(door.node_id());
        }
        let owner = self.owner_of(&door.broker, group);
        // It may be another one by now than this node has heard of.
        let owner = owner.filter(|_| door.broker.is_confirmed());
        owner.map(|(node, _)| node as i32).ok_or(ResponseError::CoordinatorNotAvailable)
    }
}

/// Whether a node that is one of several starts without what it kept of groups when it was alone, where that cannot be read. `is_founded`: the groups of
/// the cluster are made. `is_at_rest`: none of the transactions that began when it was alone is without its end.
///
/// Nothing but those transactions wants it: what they have pending is told their outcome there, and an end is recorded when that is durable. So where none
/// is without its end nothing is pending, as is so a moment after the node became one of several, and for good. Before that a commit that was
/// acknowledged would be taken for told, and its offsets be lost: then the node has to be started again when the stream can be read. What groups had
/// committed is asked for by [`crate::group_founding`] as soon as the groups of the cluster are made, which is with its first group; before that nobody else has it.
///
/// `accepts`: a person has said that the node goes on in any case.
///
/// # Errors
/// Something may be pending, or was not asked for yet.
pub(crate) fn may_do_without(
    unread: Option<ReadError>,
    is_founded: bool,
    is_at_rest: bool,
    accepts: bool,
) -> io::Result<()> {
    match unread {
        None => Ok(()),
        Some(error) if is_founded && is_at_rest => {
            tracing::warn!(%error, "{GROUPS_STREAM} cannot be read; what was in it has been asked for by the groups of the cluster");
            Ok(())
        }
        Some(error) => {
            let what = match is_founded {
                false => "all is that Kafka groups have committed so far",
                true => "offsets of transactions that are not over may be pending",
            };
            let why = format!("{GROUPS_STREAM} cannot be read, in which {what}: {error}");
            if accepts {
                tracing::error!(why, "the node goes on without it, as --accept-damage says");
                return Ok(());
            }
            let next =
                "start the node again when its disk can be read, or with --accept-damage true: then that is lost";
            Err(io::Error::other(format!("{why}; {next}")))
        }
    }
}

/// Whether a producer commits offsets in a transaction that its coordinator knows; under the lock of the groups, so that the answer holds
/// until they are there. The coordinator is asked once for each transaction: the session waits with its `question`.
fn may_commit(
    door: &Arc<Door>,
    part: &Arc<Part>,
    asked: &TxnOffsetCommitRequest,
    adds: bool,
    question: &mut Option<Arc<Question>>,
    observer: &Arc<dyn Observer>,
) -> MayWrite {
    let producer = (asked.producer_id.0, asked.producer_epoch);
    let group = asked.group_id.to_string();
    if part.claims.lock().has(&group, producer) {
        return MayWrite::Yes;
    }
    if let Some(Err(code)) = question.take().and_then(|question| question.take()) {
        return MayWrite::No(code);
    }
    let id = asked.transactional_id.to_string();
    let Some((of, node)) = coordinator_of(door, &id) else {
        return MayWrite::No(ResponseError::CoordinatorLoadInProgress);
    };
    let number = part.claims.lock().ask(&group, producer.0);
    let claim = ClaimGroup {
        id,
        producer_id: ProducerId(producer.0.cast_unsigned()),
        producer_epoch: ProducerEpoch(producer.1.cast_unsigned()),
        group: group.clone(),
        adds,
    };
    let waits = Arc::new(Question::default());
    *question = Some(Arc::clone(&waits));
    let (part, observer) = (Arc::clone(part), Arc::clone(observer));
    door.ask(node, &claim, move |door, _, answer| {
        let answer = answer.map_err(|error| {
            tracing::debug!(%error, "a transaction's coordinator does not answer");
            ResponseError::CoordinatorLoadInProgress
        });
        let answer = answer.and_then(|claimed| match ResponseError::try_from_code(claimed.error.cast_signed()) {
            None if door.owner.has_heard_of(door, of, claimed.part_epoch) => Ok(claimed),
            None => Err(ResponseError::CoordinatorLoadInProgress),
            Some(ResponseError::ProducerFenced) => Err(ResponseError::InvalidProducerEpoch),
            Some(code) if is_about_coordinators(code) => Err(ResponseError::CoordinatorLoadInProgress),
            Some(code) => Err(code),
        });
        let granted = answer.ok().map(|claimed| (producer.1, claimed.number));
        // Under the lock of the groups, as all that looks at claims.
        let coordinator = part.coordinator.lock();
        part.claims.lock().answered(&group, producer.0, number, granted);
        drop(coordinator);
        waits.answer(answer.map(drop), &observer);
    });
    MayWrite::Later(None)
}

impl Door {
    /// Tells a group how a transaction has ended, at its coordinator's request.
    pub(crate) fn end_in_group(&self, asked: &EndInGroup) -> Served<GroupEnded> {
        let ended = if self.owner.has_heard_of(self, asked.part, asked.part_epoch) {
            self.groups.end_here(&self.broker, asked)
        } else {
            Err(ResponseError::TransactionCoordinatorFenced)
        };
        match ended {
            Ok(after) => Served::Now(GroupEnded { error: 0 }, after.into_iter().collect()),
            Err(code) => Served::Now(GroupEnded { error: code.code().cast_unsigned() }, Vec::new()),
        }
    }
}

impl Asking<'_> {
    fn caller(&self) -> Caller {
        let Asking { request, client_id, host, .. } = *self;
        Caller { version: request.version, client_id: client_id.to_owned(), host: format!("/{host}") }
    }
}

/// A request about one group.
trait OfGroup {
    fn group(&self) -> &str;
}

macro_rules! of_group {
    ($($request:ident),*) => {
        $(impl OfGroup for kafka_protocol::messages::$request {
            fn group(&self) -> &str {
                &self.group_id
            }
        })*
    };
}

of_group!(
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetDeleteRequest,
    ConsumerGroupHeartbeatRequest
);

fn group_of(asked: &impl OfGroup) -> &str {
    asked.group()
}

fn address(part: &Arc<Part>) -> usize {
    Arc::as_ptr(part) as usize
}

/// The groups of a node that is alone. What could not be read of them is for a person to do without, who says so with `accept_damage`; then the rest is
/// written anew, and the next start does without that.
fn read_own(making: &Making, log: Arc<StateLog<Entry>>, accept_damage: bool) -> io::Result<Arc<Part>> {
    let unread_error = |why: &ReadError| cannot_be_read(GROUPS_STREAM, "what Kafka groups have committed", why);
    let (own, unread) = making.read(Arc::clone(&log)).map_err(|error| unread_error(&error))?;
    if let Some(error) = unread.as_ref().filter(|_| !accept_damage) {
        return Err(unread_error(error));
    }
    // Not before: it may record something.
    own.coordinator.lock().start(making.now());
    match unread {
        None => {}
        Some(error) => {
            tracing::error!(
                %error,
                "{GROUPS_STREAM} could not be read as a whole, and the node goes on without, as it was told: groups go on from what they \
                 had committed before, or begin anew"
            );
            // So that there is something to write, also if nothing could be read.
            log.append_edge(Edge::Begin)
                .map_err(|AppendFailed| io::Error::other(format!("{GROUPS_STREAM} takes no records")))?;
            copy(&log, &own.coordinator, 0);
        }
    }
    Ok(own)
}

/// Writes everything anew if the log has grown by `bytes_min`. If it breaks off, what is there stays and counts.
///
/// Step by step, and who waits for a group goes first in between: all that is committed may be a hundred megabytes. What happens meanwhile is recorded
/// [behind the copy of its group, or is in it](Coordinator::snapshot).
///
/// A part that has left knows nothing any more, and its log is the next owner's: nothing may be let go because of it. And other nodes may have older groups of the log, with
/// what this copy does not repeat: so it says where it begins and ends.
pub(crate) fn copy(log: &StateLog<Entry>, coordinator: &Mutex<Coordinator>, bytes_min: u64) {
    copy_resting(log, coordinator, bytes_min, MutexGuard::bump);
}

/// The same with what is done between two steps.
pub(crate) fn copy_resting<'a>(
    log: &StateLog<Entry>,
    coordinator: &'a Mutex<Coordinator>,
    bytes_min: u64,
    mut rest: impl FnMut(&mut MutexGuard<'a, Coordinator>),
) {
    let mut coordinator = coordinator.lock();
    if coordinator.check_loaded().is_err() {
        return;
    }
    let Some((from, added)) = log.begin_copy(bytes_min) else { return };
    if log.append_edge(Edge::Begin).is_err() {
        return;
    }
    let mut behind = None;
    loop {
        let (entries, next) = coordinator.snapshot(behind.as_deref(), COPY_STEP_BYTES);
        if pieces(&entries).any(|piece| log.append(piece).is_err()) {
            return;
        }
        behind = next;
        if behind.is_none() {
            break;
        }
        rest(&mut coordinator);
        if coordinator.check_loaded().is_err() {
            return;
        }
    }
    if log.append_edge(Edge::End).is_ok() {
        log.end_copy(from, added);
    }
}

#[cfg(test)]
thread_local! {
    /// How often all groups were looked through for offsets of topics that are gone.
    pub(crate) static LOOKED_THROUGH: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The thread that keeps time for groups. It waits for nothing else, for members wait for it: to be let in, or to be told that another one has
/// not come. It ends when the door is gone.
pub(crate) fn keep_time(door: &Weak<Door>) {
    while let Some(door) = door.upgrade() {
        door.groups.tick();
        drop(door);
        std::thread::sleep(TICK);
    }
}

/// The thread that follows whose the groups are, and what coordinators and earlier owners have told of partitions. It waits for nobody, for readers wait
/// for it: what asks the coordinators of the cluster is on [another one](crate::transaction_door::follow). It ends when the door is gone, and so do
/// those that read for it.
pub(crate) fn follow(door: &Weak<Door>) {
    let mut readers: Vec<JoinHandle<()>> = Vec::new();
    let (mut topics, mut looks) = (BTreeSet::<String>::new(), 0_u32);
    while let Some(strong) = door.upgrade().filter(|door| !door.is_closing()) {
        if looks.is_multiple_of(TOPICS_LOOKS) {
            // Topics are deleted at any node, and their offsets forgotten at each.
            let now: BTreeSet<String> = strong.catalog.infos().into_iter().map(|info| info.name).collect();
            let gone: BTreeSet<String> = topics.difference(&now).cloned().collect();
            if !gone.is_empty() {
                strong.groups.topics_deleted(&gone);
            }
            topics = now;
        }
        looks = looks.wrapping_add(1);
        strong.owner.follow(&strong);
        strong.older.tick(&strong);
        for load in strong.groups.follow(&strong.catalog, &strong.broker) {
            let weak = Weak::clone(door);
            let thread = std::thread::Builder::new().name("kera-kafka-load".into()).stack_size(1 << 20);
            let read = move || {
                if let Some(door) = weak.upgrade() {
                    door.groups.read(&door, &load, || !door.is_closing());
                }
            };
            match thread.spawn(read) {
                Ok(reader) => readers.push(reader),
                Err(error) => tracing::error!(%error, "no thread to read Kafka groups with; restart the node"),
            }
        }
        drop(strong);
        readers.retain(|reader| !reader.is_finished());
        std::thread::sleep(FOLLOW);
    }
    for reader in readers {
        if reader.join().is_err() {
            tracing::error!("a thread that read Kafka groups ended with a panic");
        }
    }
}

fn body_of(request: &Request, answer: &Answer) -> Vec<u8> {
    encode_answer(request, answer).unwrap_or_else(|error| {
        let key = request.api.key;
        tracing::error!(?key, version = request.version, %error, "an answer of a group cannot be encoded");
        Vec::new()
    })
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
    Now::of(clock)
}

/// A node that is alone coordinates everything; in a cluster the owner of the streamlet of a group, or of a transactional id, does.
pub(crate) fn find_coordinator(door: &Door, version: i16, asked: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (brokers, live) = (door.brokers(), door.live());
    let find = |key: &str| {
        let node = match asked.key_type {
            GROUP => door.groups.node_of(door, key)?,
            TRANSACTION => door.transactions.node_of(door, key)?,
            _ => return Err(ResponseError::InvalidRequest),
        };
        let known = brokers.iter().find(|(id, ..)| *id == node && live.has(node)).cloned();
        known.ok_or(ResponseError::CoordinatorNotAvailable)
    };
    let find = |key: &str| match find(key) {
        Ok((node, host, port)) => (0, BrokerId(node), StrBytes::from_string(host), port),
        Err(error) => (error.code(), BrokerId(-1), StrBytes::default(), -1),
    };
    let refused = asked.key_type == TRANSACTION && !door.transactions.are_served(door);
    let why = refused.then(|| StrBytes::from_static_str(NO_TRANSACTIONS));
    if version < VERSION_KEYS {
        let (error, node, host, port) = find(&asked.key);
        return FindCoordinatorResponse::default()
            .with_error_code(error)
            .with_error_message(why)
            .with_node_id(node)
            .with_host(host)
            .with_port(port);
    }
    let found = asked.coordinator_keys.iter().map(|key| {
        let (error, node, host, port) = find(key);
        let found = Found::default().with_key(key.clone()).with_node_id(node).with_host(host).with_port(port);
        found.with_error_code(error).with_error_message(why.clone())
    });
    FindCoordinatorResponse::default().with_coordinators(found.collect())
}
