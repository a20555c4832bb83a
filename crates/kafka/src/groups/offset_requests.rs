//! Requests about offsets: commit, fetch, delete, and the part of transactions that concerns a group.

use std::collections::BTreeMap;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kafka_protocol::messages::offset_delete_response::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest,
    OffsetFetchResponse, TopicName, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use kera_format::kafka_groups::{GROUP_NAME_BYTES_MAX, OffsetKey};

use super::api::{Answer, AppendFailed, Caller, Done, Mark, Now, Topics};
use super::coordinator::Coordinator;
use super::group::{Group, Kind, Turn, code, text};
use super::offsets::{Commit, Offsets};

/// Partitions that one answer to OffsetFetch may tell about: a short request can ask for all offsets many times.
const FETCHED_MAX: usize = 1_000_000;
/// As many bytes of what was committed with an offset count there for a partition more.
const METADATA_BYTES: usize = 256;
/// From here on a commit for a group that is not there says so.
const VERSION_COMMIT_NOT_FOUND: i16 = 9;
/// From here on an answer to OffsetFetch has an error of its own.
const VERSION_FETCH_ERROR: i16 = 2;
/// From here on OffsetFetch names several groups.
const VERSION_FETCH_MANY: i16 = 8;

/// Whose offsets are asked for, and by whom.
struct Fetch<'a> {
    group: &'a str,
    member_id: Option<&'a str>,
    member_epoch: i32,
    /// None: all there are.
    topics: Option<Vec<(&'a str, &'a [i32])>>,
    stable: bool,
}

/// What must be durable first, and what became of each commit.
type Committed = (Option<Mark>, Vec<Result<(), Code>>);

/// What became of each commit, and what must be durable first: refused as a whole means refused one by one, but for those of
/// partitions that are not there, which are told so whatever else is wrong.
fn each_of(
    committed: Result<Committed, Code>,
    commits: &[Commit<'_>],
    topics: &dyn Topics,
) -> (Option<Mark>, std::vec::IntoIter<Result<(), Code>>) {
    let (after, results) = committed.unwrap_or_else(|code| {
        let refused = commits.iter().map(|of| {
            let is_there = is_partition(topics, of.topic, of.partition);
            Err(if is_there { code } else { Code::UnknownTopicOrPartition })
        });
        (None, refused.collect())
    });
    (after, results.into_iter())
}

fn is_partition(topics: &dyn Topics, topic: &str, partition: i32) -> bool {
    let count = topics.topic(topic).map_or(0, |topic| topic.partitions);
    u32::try_from(partition).is_ok_and(|partition| partition < count)
}

impl Coordinator {
    /// Whether any partition that offsets are committed for is there.
    pub fn names_partitions(&self, request: &TxnOffsetCommitRequest) -> bool {
        let mut named = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |of| (topic, of)));
        named.any(|(topic, of)| is_partition(self.topics(), &topic.name, of.partition_index))
    }

    /// TxnOffsetCommit outside of a transaction: answered with why.
    pub fn refuse_txn_commit(&mut self, token: u64, request: &TxnOffsetCommitRequest, code: Code) {
        let response = self.txn_committed(request, Err(code));
        self.finish(Done { token, after: None, answer: Answer::TxnCommit(response.1) });
    }

    /// OffsetCommit: answered when the offsets are durable.
    pub fn commit(&mut self, now: Now, token: u64, caller: &Caller, request: &OffsetCommitRequest) {
        let retention_ms = (request.retention_time_ms >= 0).then_some(request.retention_time_ms);
        let partitions = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |of| (topic, of)));
        let commits: Vec<Commit<'_>> = partitions
            .map(|(topic, of)| Commit {
                topic: &topic.name,
                partition: of.partition_index,
                offset: of.committed_offset,
                leader_epoch: of.committed_leader_epoch,
                metadata: of.committed_metadata.as_deref(),
                retention_ms,
            })
            .collect();
        let generation = request.generation_id_or_member_epoch;
        let not_found =
            if caller.version >= VERSION_COMMIT_NOT_FOUND { Code::GroupIdNotFound } else { Code::IllegalGeneration };
        let committed = self.open(now, &request.group_id, generation, not_found).and_then(|()| {
            let (member_id, instance) = (&*request.member_id, request.group_instance_id.as_deref());
            self.commit_checked(now, &request.group_id, None, &commits, |kind, turn| match kind {
                Kind::Classic(classic) => {
                    classic.check_commit(member_id, instance, generation, false)?;
                    classic.touch(turn, member_id);
                    Ok(())
                }
                Kind::Consumer(consumer) => consumer.check_commit(member_id, generation, caller.version),
            })
        });
        let (after, mut results) = each_of(committed, &commits, self.topics());
        let topics = request.topics.iter().map(|topic| {
            let answered = topic.partitions.iter().zip(results.by_ref()).map(|(of, result)| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(of.partition_index)
                    .with_error_code(code(result))
            });
            OffsetCommitResponseTopic::default().with_name(topic.name.clone()).with_partitions(answered.collect())
        });
        let response = OffsetCommitResponse::default().with_topics(topics.collect());
        self.finish(Done { token, after, answer: Answer::Commit(response) });
    }

    /// TxnOffsetCommit: the offsets count when the producer's transaction commits. That the transaction is there and is the
    /// producer's is for the caller to know.
    pub fn txn_commit(&mut self, now: Now, token: u64, _caller: &Caller, request: &TxnOffsetCommitRequest) {
        let commits = txn_commits(request);
        let generation = request.generation_id;
        let opened = self.open(now, &request.group_id, generation, Code::IllegalGeneration);
        let committed = opened.and_then(|()| {
            let (member_id, instance) = (&*request.member_id, request.group_instance_id.as_deref());
            let producer = Some(request.producer_id.0);
            self.commit_checked(now, &request.group_id, producer, &commits, |kind, _| match kind {
                Kind::Classic(classic) => classic.check_commit(member_id, instance, generation, true),
                Kind::Consumer(consumer) => consumer.check_transactional_commit(member_id, instance, generation),
            })
        });
        let (after, response) = self.txn_committed(request, committed);
        self.finish(Done { token, after, answer: Answer::TxnCommit(response) });
    }

    fn txn_committed(
        &self,
        request: &TxnOffsetCommitRequest,
        committed: Result<Committed, Code>,
    ) -> (Option<Mark>, TxnOffsetCommitResponse) {
        let commits = txn_commits(request);
        let (after, mut results) = each_of(committed, &commits, self.topics());
        let topics = request.topics.iter().map(|topic| {
            let answered = topic.partitions.iter().zip(results.by_ref()).map(|(of, result)| {
                TxnOffsetCommitResponsePartition::default()
                    .with_partition_index(of.partition_index)
                    .with_error_code(code(result))
            });
            TxnOffsetCommitResponseTopic::default().with_name(topic.name.clone()).with_partitions(answered.collect())
        });
        (after, TxnOffsetCommitResponse::default().with_topics(topics.collect()))
    }

    /// A producer's transaction has ended: the offsets that it committed for the group count, or never did. What is returned
    /// must be durable before the transaction is over; to say it again does no harm.
    pub fn end_transaction(
        &mut self,
        now: Now,
        group: &str,
        producer: i64,
        commit: bool,
    ) -> Result<Option<Mark>, AppendFailed> {
        let ended = self.turn(now, group, |_, offsets, turn| {
            offsets.end_transaction(turn, producer, commit)?;
            Ok(turn.head.mark)
        });
        ended.unwrap_or(Ok(None))
    }

    /// The group that somebody commits for: it must be there, unless the commit is nobody's in particular.
    fn open(&mut self, now: Now, id: &str, generation: i32, not_found: Code) -> Result<(), Code> {
        if id.len() > GROUP_NAME_BYTES_MAX {
            return Err(Code::InvalidGroupId);
        }
        match self.find(id) {
            Ok(_) => Ok(()),
            Err(Code::GroupIdNotFound) if generation < 0 => self.create(now, id),
            Err(Code::GroupIdNotFound) => Err(not_found),
            Err(code) => Err(code),
        }
    }

    #[allow(clippy::type_complexity)]
    fn commit_checked(
        &mut self,
        now: Now,
        id: &str,
        producer: Option<i64>,
        commits: &[Commit<'_>],
        check: impl FnOnce(&mut Kind, &mut Turn<'_>) -> Result<(), Code>,
    ) -> Result<Committed, Code> {
        let committed = self.turn(now, id, |kind, offsets, turn| {
            check(kind, turn)?;
            let results = offsets.commit(turn, producer, commits);
            Ok((turn.head.mark, results))
        });
        committed.unwrap_or(Err(Code::CoordinatorNotAvailable))
    }

    /// OffsetFetch: answered when the offsets are durable.
    pub fn fetch(&mut self, now: Now, token: u64, caller: &Caller, request: &OffsetFetchRequest) {
        let mut left = FETCHED_MAX;
        let mut after = None;
        let mut response = OffsetFetchResponse::default();
        if caller.version >= VERSION_FETCH_MANY {
            for group in &request.groups {
                let named = group
                    .topics
                    .as_ref()
                    .map(|topics| topics.iter().map(|topic| (&**topic.name, &topic.partition_indexes[..])).collect());
                let fetch = Fetch {
                    group: &group.group_id,
                    member_id: group.member_id.as_deref(),
                    member_epoch: group.member_epoch,
                    topics: named,
                    stable: request.require_stable,
                };
                let (mark, answered) = self.fetch_group(now, &fetch, &mut left);
                after = after.max(mark);
                response.groups.push(answered);
            }
        } else {
            let named = request
                .topics
                .as_ref()
                .map(|topics| topics.iter().map(|topic| (&**topic.name, &topic.partition_indexes[..])).collect());
            let fetch = Fetch {
                group: &request.group_id,
                member_id: None,
                member_epoch: -1,
                topics: named,
                stable: request.require_stable,
            };
            let (mark, mut answered) = self.fetch_group(now, &fetch, &mut left);
            after = mark;
            // Who is told neither of an error nor of a partition takes it that nothing was committed, and starts over.
            if caller.version < VERSION_FETCH_ERROR && answered.error_code != 0 {
                answered.topics = fetch.refused(std::mem::take(&mut answered.error_code));
            }
            response.error_code = answered.error_code;
            response.topics = answered.topics.into_iter().map(single).collect();
        }
        self.finish(Done { token, after, answer: Answer::Fetch(response) });
    }

    fn fetch_group(
        &mut self,
        now: Now,
        fetch: &Fetch<'_>,
        left: &mut usize,
    ) -> (Option<Mark>, OffsetFetchResponseGroup) {
        let mut answered = OffsetFetchResponseGroup::default().with_group_id(GroupId(text(fetch.group)));
        let fetched = self.check_loaded().and_then(|()| {
            let fetched = self.turn(now, fetch.group, |kind, offsets, turn| {
                if let Kind::Consumer(consumer) = kind {
                    consumer.check_fetch(fetch.member_id, fetch.member_epoch)?;
                }
                Ok((turn.head.mark, fetch.topics(turn, offsets, left)?))
            });
            fetched.unwrap_or_else(|| Ok((None, fetch.unknown(left)?)))
        });
        match fetched {
            Ok((mark, topics)) => {
                answered.topics = topics;
                (mark, answered)
            }
            Err(code) => (None, answered.with_error_code(code.code())),
        }
    }

    /// OffsetDelete.
    pub fn delete_offsets(&mut self, now: Now, token: u64, _caller: &Caller, request: &OffsetDeleteRequest) {
        let mut response = OffsetDeleteResponse::default();
        let checked = self.find(&request.group_id).and_then(check_delete_offsets);
        let deleted = checked.and_then(|()| {
            let deleted = self.turn(now, &request.group_id, |kind, offsets, turn| {
                let topics = delete_topics(kind, offsets, turn, request)?;
                Ok((turn.head.mark, topics))
            });
            deleted.unwrap_or(Err(Code::GroupIdNotFound))
        });
        let mut after = None;
        match deleted {
            Ok((mark, topics)) => (after, response.topics) = (mark, topics),
            Err(code) => response.error_code = code.code(),
        }
        self.finish(Done { token, after, answer: Answer::DeleteOffsets(response) });
    }
}

fn txn_commits(request: &TxnOffsetCommitRequest) -> Vec<Commit<'_>> {
    let partitions = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |of| (topic, of)));
    let commits = partitions.map(|(topic, of)| Commit {
        topic: &topic.name,
        partition: of.partition_index,
        offset: of.committed_offset,
        leader_epoch: of.committed_leader_epoch,
        metadata: of.committed_metadata.as_deref(),
        retention_ms: None,
    });
    commits.collect()
}

/// Members that are no consumers read who knows what: their offsets stay.
fn check_delete_offsets(group: &Group) -> Result<(), Code> {
    match &group.kind {
        Kind::Classic(classic) if !classic.is_empty() && !classic.is_consumers() => Err(Code::NonEmptyGroup),
        _ => Ok(()),
    }
}

fn delete_topics(
    kind: &Kind,
    offsets: &mut Offsets,
    turn: &mut Turn<'_>,
    request: &OffsetDeleteRequest,
) -> Result<Vec<OffsetDeleteResponseTopic>, Code> {
    let mut gone = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let name = &**topic.name;
        let is_read = match kind {
            Kind::Classic(classic) => classic.is_subscribed(name),
            Kind::Consumer(consumer) => consumer.is_subscribed(name),
        };
        let partitions = turn.topics.topic(name).map_or(0, |topic| topic.partitions);
        let answered = topic.partitions.iter().map(|of| {
            let index = of.partition_index;
            let result = if u32::try_from(index).map_or(true, |index| index >= partitions) {
                Err(Code::UnknownTopicOrPartition)
            } else if is_read {
                Err(Code::GroupSubscribedToTopic)
            } else {
                gone.push(OffsetKey { topic: name.to_owned(), partition: index });
                Ok(())
            };
            OffsetDeleteResponsePartition::default().with_partition_index(index).with_error_code(code(result))
        });
        let answered = answered.collect();
        topics.push(OffsetDeleteResponseTopic::default().with_name(topic.name.clone()).with_partitions(answered));
    }
    offsets.delete(turn, &gone)?;
    Ok(topics)
}

impl Fetch<'_> {
    fn take(left: &mut usize, partitions: usize) -> Result<(), Code> {
        *left = left.checked_sub(partitions).ok_or(Code::PolicyViolation)?;
        Ok(())
    }

    /// What is answered for a group that is not there: nothing has been committed.
    fn unknown(&self, left: &mut usize) -> Result<Vec<OffsetFetchResponseTopics>, Code> {
        Fetch::take(left, self.topics.iter().flatten().map(|(_, partitions)| partitions.len()).sum())?;
        Ok(self.refused(0))
    }

    /// The error with each partition that is asked for.
    fn refused(&self, error: i16) -> Vec<OffsetFetchResponseTopics> {
        let topics = self.topics.as_deref().unwrap_or_default();
        let answered = by_topic(topics).into_iter().map(|(topic, partitions)| {
            let partitions = partitions.into_iter().map(|of| nothing(of).with_error_code(error)).collect();
            OffsetFetchResponseTopics::default().with_name(TopicName(text(topic))).with_partitions(partitions)
        });
        answered.collect()
    }

    fn topics(
        &self,
        turn: &Turn<'_>,
        offsets: &Offsets,
        left: &mut usize,
    ) -> Result<Vec<OffsetFetchResponseTopics>, Code> {
        let mut answered: BTreeMap<&str, Vec<OffsetFetchResponsePartitions>> = BTreeMap::new();
        match &self.topics {
            None => {
                Fetch::take(left, offsets.len())?;
                for of in offsets.keys().filter(|of| offsets.get(turn, of).is_some()) {
                    let partition = self.partition(turn, offsets, of, left)?;
                    answered.entry(&of.topic).or_default().push(partition);
                }
            }
            Some(topics) => {
                for (topic, partitions) in by_topic(topics) {
                    Fetch::take(left, partitions.len())?;
                    let mut of = OffsetKey { topic: topic.to_owned(), partition: 0 };
                    let told = answered.entry(topic).or_default();
                    for partition in partitions {
                        of.partition = partition;
                        told.push(self.partition(turn, offsets, &of, left)?);
                    }
                }
            }
        }
        let answered = answered.into_iter().map(|(topic, partitions)| {
            OffsetFetchResponseTopics::default().with_name(TopicName(text(topic))).with_partitions(partitions)
        });
        Ok(answered.collect())
    }

    fn partition(
        &self,
        turn: &Turn<'_>,
        offsets: &Offsets,
        of: &OffsetKey,
        left: &mut usize,
    ) -> Result<OffsetFetchResponsePartitions, Code> {
        let answered = nothing(of.partition);
        if self.stable && offsets.is_unstable(of) {
            return Ok(answered.with_error_code(Code::UnstableOffsetCommit.code()));
        }
        let Some(offset) = offsets.get(turn, of) else { return Ok(answered) };
        Fetch::take(left, offset.metadata.len() / METADATA_BYTES)?;
        Ok(answered
            .with_committed_offset(offset.offset)
            .with_committed_leader_epoch(offset.leader_epoch)
            .with_metadata(Some(text(&offset.metadata))))
    }
}

/// The topics that are asked for, with the partitions of each. Those that are named twice are told twice, as by Kafka: each counts.
fn by_topic<'a>(topics: &[(&'a str, &'a [i32])]) -> BTreeMap<&'a str, Vec<i32>> {
    let mut all: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    topics.iter().for_each(|(topic, partitions)| all.entry(topic).or_default().extend(*partitions));
    all
}

fn nothing(partition: i32) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions::default()
        .with_partition_index(partition)
        .with_committed_offset(-1)
        .with_committed_leader_epoch(-1)
        .with_metadata(Some(text("")))
}

/// The same for a version that knows one group.
fn single(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partitions = topic.partitions.into_iter().map(|of| {
        OffsetFetchResponsePartition::default()
            .with_partition_index(of.partition_index)
            .with_committed_offset(of.committed_offset)
            .with_committed_leader_epoch(of.committed_leader_epoch)
            .with_metadata(of.metadata)
            .with_error_code(of.error_code)
    });
    OffsetFetchResponseTopic::default().with_name(topic.name).with_partitions(partitions.collect())
}
