//! A coordinator with everything that tests drive it by: a clock that stands, a journal in memory, topics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, OffsetCommitRequest, OffsetFetchRequest,
    OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kera_env::SeededRandom;
use kera_format::kafka_groups::Entry;
use parking_lot::Mutex;
use uuid::Uuid;

use super::group::{Kind, text};
use super::{Answer, AppendFailed, Caller, Coordinator, Done, GroupConfig, Journal, Mark, Now, Topic, Topics};

pub(super) const GROUP: &str = "group";

/// What has been appended, and whether more is taken.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) entries: Vec<Entry>,
    /// Copies of everything: where they begin and end. What stands in front of the last one is not read.
    copies: Vec<(usize, usize)>,
    pub(super) is_full: bool,
    /// Whether no members are taken.
    pub(super) is_older: bool,
    /// Whether no members of both kinds are taken in one group.
    pub(super) is_before_changes: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryJournal(pub(super) Arc<Mutex<Kept>>);

impl MemoryJournal {
    /// Writes everything anew, unless nothing is taken.
    pub(super) fn copy(&self, coordinator: &Coordinator) {
        let (copy, next) = coordinator.snapshot(None, usize::MAX);
        assert_eq!(next, None);
        let mut kept = self.0.lock();
        if !kept.is_full {
            let from = kept.entries.len();
            kept.entries.extend(copy);
            let end = kept.entries.len();
            kept.copies.push((from, end));
        }
    }

    /// Loses everything behind so many entries.
    pub(super) fn cut(&self, durable: u64) {
        let mut kept = self.0.lock();
        kept.entries.truncate(durable as usize);
        kept.copies.retain(|(_, end)| *end as u64 <= durable);
    }

    /// What whoever begins anew reads.
    fn read(&self) -> Vec<Entry> {
        let kept = self.0.lock();
        let from = kept.copies.last().map_or(0, |(from, _)| *from);
        kept.entries[from..].to_vec()
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        let mut kept = self.0.lock();
        if kept.is_full {
            return Err(AppendFailed);
        }
        kept.entries.extend_from_slice(entries);
        Ok(Mark(kept.entries.len() as u64))
    }

    fn keeps_members(&self) -> bool {
        !self.0.lock().is_older
    }

    fn keeps_both_kinds(&self) -> bool {
        let kept = self.0.lock();
        !kept.is_older && !kept.is_before_changes
    }
}

#[derive(Debug, Default)]
pub(super) struct MemoryTopics {
    topics: Mutex<(u64, BTreeMap<String, Topic>)>,
    /// How often one was looked up by its name.
    pub(super) looks: AtomicUsize,
}

impl MemoryTopics {
    /// Makes a topic, or makes it have this many partitions; with none it is gone.
    pub(super) fn set(&self, name: &str, partitions: u32) {
        let mut topics = self.topics.lock();
        topics.0 += 1;
        let fresh = Uuid::from_u128(0x1000 + u128::from(topics.0));
        if partitions == 0 {
            topics.1.remove(name);
        } else {
            let topic = topics.1.entry(name.to_owned()).or_insert(Topic { id: fresh, partitions });
            topic.partitions = partitions;
        }
    }
}

impl Topics for MemoryTopics {
    fn topic(&self, name: &str) -> Option<Topic> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.topics.lock().1.get(name).copied()
    }

    fn name(&self, id: Uuid) -> Option<String> {
        let topics = self.topics.lock();
        topics.1.iter().find(|(_, topic)| topic.id == id).map(|(name, _)| name.clone())
    }

    fn names(&self) -> Vec<String> {
        self.topics.lock().1.keys().cloned().collect()
    }

    fn version(&self) -> u64 {
        self.topics.lock().0
    }
}

/// A coordinator and its world.
pub(super) struct World {
    pub(super) coordinator: Coordinator,
    pub(super) journal: MemoryJournal,
    pub(super) topics: Arc<MemoryTopics>,
    pub(super) config: GroupConfig,
    pub(super) now: Now,
    /// Of the next request.
    pub(super) token: u64,
    /// Answers that nobody has taken yet.
    pub(super) done: BTreeMap<u64, Done>,
    seed: u64,
}

impl World {
    pub(super) fn new() -> World {
        World::with(GroupConfig::default())
    }

    pub(super) fn with(config: GroupConfig) -> World {
        let (journal, topics) = (MemoryJournal::default(), Arc::new(MemoryTopics::default()));
        topics.set("orders", 4);
        topics.set("items", 2);
        let wall_ms = 1_700_000_000_000;
        let now = Now { mono_ms: 1_000, wall_ms, believed: wall_ms.into() };
        let coordinator = World::coordinator(&config, &journal, &topics, 1);
        let mut world = World { coordinator, journal, topics, config, now, token: 0, done: BTreeMap::new(), seed: 1 };
        world.coordinator.start(now);
        world
    }

    fn coordinator(
        config: &GroupConfig,
        journal: &MemoryJournal,
        topics: &Arc<MemoryTopics>,
        seed: u64,
    ) -> Coordinator {
        let random = Arc::new(SeededRandom::new(seed));
        Coordinator::new(config.clone(), Box::new(journal.clone()), topics.clone(), random)
    }

    /// The node dies with what is in the journal, and another one reads that.
    pub(super) fn restart(&mut self) {
        self.seed += 1;
        self.done.clear();
        self.coordinator = World::coordinator(&self.config, &self.journal, &self.topics, self.seed);
        self.journal.read().into_iter().for_each(|entry| self.coordinator.replay(entry));
        self.coordinator.start(self.now);
    }

    /// Time passes, with everything that is due on the way.
    pub(super) fn pass(&mut self, ms: u64) {
        let until_ms = self.now.mono_ms + ms;
        while let Some(next_ms) = self.coordinator.next_deadline_ms().filter(|next_ms| *next_ms <= until_ms) {
            let step_ms = next_ms.max(self.now.mono_ms) - self.now.mono_ms;
            self.now.mono_ms += step_ms;
            self.now.wall_ms += step_ms as i64;
            self.now.believed = self.now.wall_ms.into();
            self.coordinator.tick(self.now);
            self.settle();
        }
        self.now.wall_ms += (until_ms - self.now.mono_ms) as i64;
        self.now.believed = self.now.wall_ms.into();
        self.now.mono_ms = until_ms;
    }

    /// Takes answers, and looks whether all is as it must be.
    pub(super) fn settle(&mut self) {
        for done in self.coordinator.take_done() {
            let kept = self.journal.0.lock().entries.len() as u64;
            assert!(done.after.is_none_or(|mark| mark.0 <= kept), "an answer waits for what is not written");
            assert!(done.token < self.token, "an answer to nobody");
            assert!(self.done.insert(done.token, done).is_none(), "two answers");
        }
        let of_offsets: usize = self.coordinator.groups().map(|group| group.offsets.counted()).sum();
        assert_eq!(self.coordinator.offset_bytes(), of_offsets, "what offsets take is counted");
        for group in self.coordinator.groups() {
            let of_members = match &group.kind {
                Kind::Classic(classic) => classic.member_bytes(),
                Kind::Consumer(consumer) => consumer.member_bytes(),
            };
            assert_eq!(group.head.member_bytes, of_members + group.kind.made_bytes(), "what members take is counted");
            match &group.kind {
                Kind::Classic(classic) => classic.check(),
                Kind::Consumer(consumer) => consumer.check(),
            }
        }
    }

    /// Sends a request; its token.
    pub(super) fn send(&mut self, request: impl FnOnce(&mut Coordinator, Now, u64)) -> u64 {
        let token = self.token;
        self.token += 1;
        request(&mut self.coordinator, self.now, token);
        self.settle();
        token
    }

    /// The answer to a request that does not wait.
    pub(super) fn ask(&mut self, request: impl FnOnce(&mut Coordinator, Now, u64)) -> Done {
        let token = self.send(request);
        self.take(token).expect("an answer")
    }

    pub(super) fn take(&mut self, token: u64) -> Option<Done> {
        self.done.remove(&token)
    }

    pub(super) fn take_join(&mut self, token: u64) -> Option<JoinGroupResponse> {
        self.take(token).map(|done| match done.answer {
            Answer::Join(response) => response,
            other => panic!("{other:?}"),
        })
    }

    pub(super) fn take_sync(&mut self, token: u64) -> Option<SyncGroupResponse> {
        self.take(token).map(|done| match done.answer {
            Answer::Sync(response) => response,
            other => panic!("{other:?}"),
        })
    }

    pub(super) fn join(&mut self, version: i16, request: &JoinGroupRequest) -> u64 {
        let caller = caller(version);
        self.send(|coordinator, now, token| coordinator.join(now, token, &caller, request))
    }

    pub(super) fn sync(&mut self, request: &SyncGroupRequest) -> u64 {
        self.send(|coordinator, now, token| coordinator.sync(now, token, &caller(5), request))
    }

    pub(super) fn heartbeat(&mut self, member_id: &str, generation: i32) -> i16 {
        self.static_heartbeat(member_id, None, generation)
    }

    pub(super) fn static_heartbeat(&mut self, member_id: &str, instance: Option<&str>, generation: i32) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(group())
            .with_member_id(text(member_id))
            .with_group_instance_id(instance.map(text))
            .with_generation_id(generation);
        match self.ask(|coordinator, now, token| coordinator.heartbeat(now, token, &caller(4), &request)).answer {
            Answer::Heartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> LeaveGroupResponse {
        let members = members.iter().map(|(member_id, instance)| {
            MemberIdentity::default().with_member_id(text(member_id)).with_group_instance_id(instance.map(text))
        });
        let request = LeaveGroupRequest::default().with_group_id(group()).with_members(members.collect());
        match self.ask(|coordinator, now, token| coordinator.leave(now, token, &caller(5), &request)).answer {
            Answer::Leave(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// Commits one offset; the error, and what the answer waits for.
    pub(super) fn commit(&mut self, request: &OffsetCommitRequest) -> (Vec<i16>, Option<Mark>) {
        let done = self.ask(|coordinator, now, token| coordinator.commit(now, token, &caller(9), request));
        let Answer::Commit(response) = done.answer else { panic!("{:?}", done.answer) };
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        (partitions.map(|of| of.error_code).collect(), done.after)
    }

    /// All offsets of the group: topic, partition, offset.
    pub(super) fn offsets(&mut self) -> Vec<(String, i32, i64)> {
        let response = self.fetch(&fetch_all(false)).0;
        let group = &response.groups[0];
        assert_eq!(group.error_code, 0);
        let all = group.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |of| (topic, of)));
        all.map(|(topic, of)| (topic.name.to_string(), of.partition_index, of.committed_offset)).collect()
    }

    pub(super) fn fetch(&mut self, request: &OffsetFetchRequest) -> (OffsetFetchResponse, Option<Mark>) {
        let done = self.ask(|coordinator, now, token| coordinator.fetch(now, token, &caller(9), request));
        let Answer::Fetch(response) = done.answer else { panic!("{:?}", done.answer) };
        (response, done.after)
    }

    pub(super) fn beat(&mut self, request: &ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse {
        let done = self.ask(|coordinator, now, token| coordinator.consumer_heartbeat(now, token, &caller(1), request));
        match done.answer {
            Answer::ConsumerHeartbeat(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// A new member with an id of its own waits for the generation; its id and its token.
    pub(super) fn join_new(&mut self) -> (String, u64) {
        let first = self.join(9, &join(""));
        let id = self.take_join(first).expect("refused at once").member_id.to_string();
        let token = self.join(9, &join(&id));
        (id, token)
    }

    /// A group of `count` members that have joined and synced: their ids, the leader first, and the generation.
    pub(super) fn stable(&mut self, count: usize) -> (Vec<String>, i32) {
        let joined: Vec<(String, u64)> = (0..count).map(|_| self.join_new()).collect();
        self.pass(60_000.min(self.config.initial_delay_ms * 2));
        let mut leader_first = Vec::new();
        let mut generation = 0;
        for (id, token) in joined {
            let response = self.take_join(token).expect("joined");
            assert_eq!(response.error_code, 0);
            generation = response.generation_id;
            let at = if *response.leader == *id { 0 } else { leader_first.len() };
            leader_first.insert(at, id);
        }
        let assignments: Vec<_> = leader_first.iter().map(|id| (&id[..], &id.as_bytes()[..4])).collect();
        let syncs: Vec<u64> = leader_first
            .iter()
            .enumerate()
            .map(|(at, id)| self.sync(&sync(id, generation, if at == 0 { &assignments } else { &[] })))
            .collect();
        for (token, id) in syncs.into_iter().zip(&leader_first) {
            let response = self.take_sync(token).expect("synced");
            assert_eq!((response.error_code, &response.assignment[..]), (0, &id.as_bytes()[..4]));
        }
        (leader_first, generation)
    }
}

pub(super) fn caller(version: i16) -> Caller {
    Caller { version, client_id: "client".into(), host: "/127.0.0.1".into() }
}

pub(super) fn group() -> GroupId {
    GroupId(text(GROUP))
}

pub(super) fn join(member_id: &str) -> JoinGroupRequest {
    join_with(member_id, None, &["range"])
}

pub(super) fn join_with(member_id: &str, instance: Option<&str>, protocols: &[&str]) -> JoinGroupRequest {
    let metadata = b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff";
    let protocols = protocols.iter().map(|name| {
        JoinGroupRequestProtocol::default().with_name(text(name)).with_metadata(bytes::Bytes::from_static(metadata))
    });
    JoinGroupRequest::default()
        .with_group_id(group())
        .with_member_id(text(member_id))
        .with_group_instance_id(instance.map(text))
        .with_protocol_type(text("consumer"))
        .with_protocols(protocols.collect())
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(60_000)
}

pub(super) fn sync(member_id: &str, generation: i32, assignments: &[(&str, &[u8])]) -> SyncGroupRequest {
    let assignments = assignments.iter().map(|(id, assignment)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(id))
            .with_assignment(bytes::Bytes::copy_from_slice(assignment))
    });
    SyncGroupRequest::default()
        .with_group_id(group())
        .with_member_id(text(member_id))
        .with_generation_id(generation)
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
        .with_assignments(assignments.collect())
}

pub(super) fn commit(member_id: &str, generation: i32, offsets: &[(&str, i32, i64)]) -> OffsetCommitRequest {
    let topics = offsets.iter().map(|(topic, partition, offset)| {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text("about")));
        OffsetCommitRequestTopic::default().with_name(TopicName(text(topic))).with_partitions(vec![partition])
    });
    OffsetCommitRequest::default()
        .with_group_id(group())
        .with_member_id(text(member_id))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(topics.collect())
}

pub(super) fn fetch_all(stable: bool) -> OffsetFetchRequest {
    let all = OffsetFetchRequestGroup::default().with_group_id(group()).with_member_epoch(-1).with_topics(None);
    OffsetFetchRequest::default().with_groups(vec![all]).with_require_stable(stable)
}

pub(super) fn fetch(offsets: &[(&str, i32)], stable: bool) -> OffsetFetchRequest {
    let topics = offsets.iter().map(|(topic, partition)| {
        OffsetFetchRequestTopics::default().with_name(TopicName(text(topic))).with_partition_indexes(vec![*partition])
    });
    let named = OffsetFetchRequestGroup::default()
        .with_group_id(group())
        .with_member_epoch(-1)
        .with_topics(Some(topics.collect()));
    OffsetFetchRequest::default().with_groups(vec![named]).with_require_stable(stable)
}

/// A heartbeat that says everything.
pub(super) fn beat(
    member_id: &str,
    epoch: i32,
    topics: &[&str],
    owned: &[(Uuid, Vec<i32>)],
) -> ConsumerGroupHeartbeatRequest {
    let owned = owned.iter().map(|(topic, partitions)| {
        TopicPartitions::default().with_topic_id(*topic).with_partitions(partitions.clone())
    });
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group())
        .with_member_id(text(member_id))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(topics.iter().map(|topic| TopicName(text(topic))).collect()))
        .with_topic_partitions(Some(owned.collect()))
}
