//! The requests other than Produce, each with its random fields.

use bytes::Bytes;
use kafka_protocol::messages::*;

use super::side::Memory;
use super::steps::{
    Asked, PASSING, Rng, TOPICS, UNKNOWN, UNMARKED, id_of, named, place, place_in_transaction, producer_of, text,
};

const GROUPS: [&str; 2] = ["group", "other"];
/// Metadata of a member that subscribes to `apples`, as consumers write it.
const SUBSCRIBED: &[u8] = b"\0\0\0\0\0\x01\0\x06apples\0\0\0\0";

fn group(rng: &mut Rng) -> GroupId {
    GroupId(text(rng.pick(&GROUPS)))
}

fn transactional(who: &str) -> TransactionalId {
    TransactionalId(text(who))
}

pub(crate) fn create(name: &str, partitions: i32, settings: &[(&str, &str)], version: i16) -> Asked {
    let configs = settings.iter().map(|(name, value)| {
        create_topics_request::CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
    });
    let topic = create_topics_request::CreatableTopic::default()
        .with_name(named(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    Asked::new(ApiKey::CreateTopics, version, RequestKind::CreateTopics(request), name)
}

/// Commits an offset that nobody deletes.
pub(crate) fn keep(group: &str) -> Asked {
    let partition = offset_commit_request::OffsetCommitRequestPartition::default().with_committed_offset(1);
    let topic = offset_commit_request::OffsetCommitRequestTopic::default().with_name(named("pears"));
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic.with_partitions(vec![partition])]);
    Asked::new(ApiKey::OffsetCommit, 2, RequestKind::OffsetCommit(request), "")
}

pub(crate) fn find_coordinator(kind: i8, key: &str) -> Asked {
    let request = FindCoordinatorRequest::default().with_key_type(kind).with_coordinator_keys(vec![text(key)]);
    Asked::new(ApiKey::FindCoordinator, 4, RequestKind::FindCoordinator(request), key)
}

/// InitProducerId; `as_who`: the producer that it says it is.
pub(crate) fn init(who: &str, in_transactions: bool, as_who: Option<(i64, i16)>, version: i16) -> Asked {
    let mut request = InitProducerIdRequest::default()
        .with_transactional_id(in_transactions.then(|| transactional(who)))
        .with_transaction_timeout_ms(600_000);
    if let Some((id, epoch)) = as_who {
        request = request.with_producer_id(ProducerId(id)).with_producer_epoch(epoch);
    }
    Asked::new(ApiKey::InitProducerId, version, RequestKind::InitProducerId(request), who)
}

pub(crate) fn begin(rng: &mut Rng, memory: &Memory) -> Asked {
    let who = rng.pick(&["i0", "i1", "x0", "x1"]);
    let known = producer_of(memory, who);
    let epoch = if rng.one_in(4) { known.epoch.saturating_sub(1).max(-1) } else { known.epoch };
    let version = rng.version(0, 5);
    let as_who = (version >= 3 && who.starts_with('x') && rng.one_in(2)).then_some((known.id, epoch));
    let mut asked = init(who, who.starts_with('x'), as_who, version);
    if let Asked::Request { request: RequestKind::InitProducerId(request), .. } = &mut asked
        && rng.one_in(6)
    {
        request.transaction_timeout_ms = rng.pick(&[-1, 0, 900_001]);
    }
    asked
}

pub(crate) fn fetch(rng: &mut Rng, memory: &Memory) -> Asked {
    let version = rng.version(4, 17);
    let mut request = FetchRequest::default()
        .with_max_wait_ms(0)
        .with_min_bytes(0)
        .with_max_bytes(1 << 20)
        .with_isolation_level(rng.below(2) as i8);
    let (id, epoch, by_id) = memory.session;
    if version >= 7 {
        request = match rng.below(6) {
            0 => request.with_session_epoch(0),
            1..4 if id != 0 => request.with_session_id(id).with_session_epoch(epoch + i32::from(rng.one_in(8))),
            4 if rng.one_in(4) => request.with_session_id(77_777).with_session_epoch(3),
            _ => request.with_session_epoch(-1),
        };
    }
    let goes_on = request.session_epoch > 0;
    // Names and ids are not mixed in one session, but for once in a while.
    let version = match (goes_on, by_id, version >= 13) {
        (true, true, false) if !rng.one_in(8) => 13,
        (true, false, true) if !rng.one_in(8) => 12,
        _ => version,
    };
    let count = rng.below(3) + u64::from(!goes_on);
    let mut topics: Vec<fetch_request::FetchTopic> = Vec::new();
    for _ in 0..count {
        let (name, index) = place(rng);
        let offset = rng.pick(&[0, 0, 0, 1, 3, 5, 8, 13, 21, 34, -1, 100_000]);
        let mut partition = fetch_request::FetchPartition::default()
            .with_partition(index)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20);
        if count == 1 && rng.one_in(4) {
            partition.partition_max_bytes = 1;
        }
        if version >= 9 {
            partition.current_leader_epoch = if rng.one_in(10) { rng.pick(&[0, 1]) } else { -1 };
        }
        let topic = fetch_request::FetchTopic::default();
        let topic =
            if version >= 13 { topic.with_topic_id(id_of(memory, name)) } else { topic.with_topic(named(name)) };
        if topics.iter().all(|other| other.topic != topic.topic || other.topic_id != topic.topic_id) {
            topics.push(topic.with_partitions(vec![partition]));
        }
    }
    Asked::new(ApiKey::Fetch, version, RequestKind::Fetch(request.with_topics(topics)), "")
}

pub(crate) fn list_offsets(rng: &mut Rng) -> Asked {
    let version = rng.version(1, 10);
    let (name, index) = place(rng);
    // Earliest, latest, the largest time, what is on the node, what is elsewhere; and times.
    let mut times = vec![-2, -1, 0, 1_700_000_000_500, 1_700_000_002_001, 4_000_000_000_000];
    // Where there are markers the last one has the largest time, and which one that is depends on the clock.
    if version >= 7 && name == UNMARKED {
        times.push(-3);
    }
    if version >= 8 {
        times.push(-4);
    }
    if version >= 9 {
        times.push(-5);
    }
    let mut partition = list_offsets_request::ListOffsetsPartition::default()
        .with_partition_index(index)
        .with_timestamp(rng.pick(&times));
    if version >= 4 {
        partition.current_leader_epoch = if rng.one_in(10) { 5 } else { -1 };
    }
    let topic =
        list_offsets_request::ListOffsetsTopic::default().with_name(named(name)).with_partitions(vec![partition]);
    let isolation = if version >= 2 { rng.below(2) as i8 } else { 0 };
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(isolation)
        .with_topics(vec![topic]);
    Asked::new(ApiKey::ListOffsets, version, RequestKind::ListOffsets(request), "")
}

pub(crate) fn end_of_epoch(rng: &mut Rng) -> Asked {
    let version = rng.version(2, 4);
    let (name, index) = place(rng);
    let partition = offset_for_leader_epoch_request::OffsetForLeaderPartition::default()
        .with_partition(index)
        .with_current_leader_epoch(rng.pick(&[-1, -1, 0, 4]))
        .with_leader_epoch(rng.pick(&[0, 0, -1, 7]));
    let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
        .with_topic(named(name))
        .with_partitions(vec![partition]);
    let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
    if version >= 3 {
        request.replica_id = BrokerId(-1);
    }
    Asked::new(ApiKey::OffsetForLeaderEpoch, version, RequestKind::OffsetForLeaderEpoch(request), "")
}

pub(crate) fn metadata(rng: &mut Rng, memory: &Memory) -> Asked {
    if rng.one_in(3) {
        let topics = [PASSING, UNKNOWN, "apples", "pears"].into_iter().filter(|_| rng.one_in(2));
        let topics =
            topics.map(|name| describe_topic_partitions_request::TopicRequest::default().with_name(named(name)));
        let topics: Vec<_> = topics.collect();
        let known = topics.is_empty();
        let request = DescribeTopicPartitionsRequest::default()
            .with_topics(if known {
                vec![describe_topic_partitions_request::TopicRequest::default().with_name(named("plums"))]
            } else {
                topics
            })
            .with_response_partition_limit(rng.pick(&[2, 1_000]));
        return Asked::new(ApiKey::DescribeTopicPartitions, 0, RequestKind::DescribeTopicPartitions(request), "");
    }
    let version = rng.version(0, 13);
    let name = place(rng).0;
    let topic = metadata_request::MetadataRequestTopic::default();
    let by_id = version >= 12 && rng.one_in(3);
    let topic = if by_id {
        topic.with_name(None).with_topic_id(id_of(memory, name))
    } else {
        topic.with_name(Some(named(name)))
    };
    let mut request = MetadataRequest::default().with_topics(Some(vec![topic]));
    if version >= 4 {
        request.allow_auto_topic_creation = rng.one_in(2);
    }
    if version >= 8 {
        request.include_topic_authorized_operations = rng.one_in(4);
        request.include_cluster_authorized_operations = version <= 10 && rng.one_in(4);
    }
    Asked::new(ApiKey::Metadata, version, RequestKind::Metadata(request), "")
}

pub(crate) fn create_or_delete(rng: &mut Rng, memory: &Memory) -> Asked {
    let name = rng.pick(&[PASSING, PASSING, PASSING, "apples", "bad name", "", "."]);
    if memory.topics.contains_key(name) && name == PASSING || rng.one_in(4) {
        let version = rng.version(1, 6);
        let name = rng.pick(&[PASSING, PASSING, UNKNOWN]);
        let request = DeleteTopicsRequest::default().with_timeout_ms(10_000);
        let request = if version >= 6 {
            let state = delete_topics_request::DeleteTopicState::default();
            request.with_topics(vec![state.with_name(Some(named(name)))])
        } else {
            request.with_topic_names(vec![named(name)])
        };
        return Asked::new(ApiKey::DeleteTopics, version, RequestKind::DeleteTopics(request), name);
    }
    if rng.one_in(4) {
        let to = |brokers: &[i32]| {
            let brokers = brokers.iter().map(|id| BrokerId(*id)).collect();
            create_partitions_request::CreatePartitionsAssignment::default().with_broker_ids(brokers)
        };
        // The right ones are for one more partition.
        let assigned = [None, None, Some(vec![to(&[1])]), Some(vec![to(&[7])]), Some(vec![to(&[])]), Some(Vec::new())];
        let name = rng.pick(&["apples", PASSING, PASSING, UNKNOWN]);
        let topic = create_partitions_request::CreatePartitionsTopic::default()
            .with_name(named(name))
            .with_count(if name == PASSING { rng.pick(&[1, 3, 4]) } else { rng.pick(&[0, 1, 3, -1]) })
            .with_assignments(assigned[rng.below(6) as usize].clone());
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let version = rng.version(0, 3);
        return Asked::new(ApiKey::CreatePartitions, version, RequestKind::CreatePartitions(request), "");
    }
    let mut asked = create(name, 2, &[], rng.version(2, 7));
    if let Asked::Request { request: RequestKind::CreateTopics(request), .. } = &mut asked {
        request.validate_only = false;
        let topic = &mut request.topics[0];
        match rng.below(8) {
            0 => topic.num_partitions = rng.pick(&[0, -2]),
            1 => topic.replication_factor = rng.pick(&[0, 3]),
            2 => {
                let config = create_topics_request::CreatableTopicConfig::default()
                    .with_name(text(rng.pick(&["no.such.setting", "retention.ms"])))
                    .with_value(Some(text(rng.pick(&["many", "-7"]))));
                topic.configs = vec![config];
            }
            3 => {
                let again = topic.clone();
                request.topics.push(again);
            }
            _ => {}
        }
    }
    asked
}

pub(crate) fn delete_records(rng: &mut Rng) -> Asked {
    let (name, index) = place(rng);
    let partition = delete_records_request::DeleteRecordsPartition::default()
        .with_partition_index(index)
        .with_offset(rng.pick(&[0, 1, 2, 4, 5, -1, -2, 100_000]));
    let topic =
        delete_records_request::DeleteRecordsTopic::default().with_name(named(name)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    Asked::new(ApiKey::DeleteRecords, rng.version(0, 2), RequestKind::DeleteRecords(request), "")
}

pub(crate) fn configs(rng: &mut Rng) -> Asked {
    let name = place(rng).0;
    // Of two things that are wrong either may be told.
    let is_known = name != PASSING && name != UNKNOWN;
    let settings = ["retention.ms", "retention.bytes", "no.such.setting"];
    let setting = rng.pick(if is_known { &settings } else { &settings[..1] });
    let value = rng.pick(if is_known { &["86400000", "-1", "many"] } else { &["86400000"] });
    match rng.below(3) {
        0 => {
            let resource = describe_configs_request::DescribeConfigsResource::default()
                .with_resource_type(rng.pick(&[2, 2, 2, 77]))
                .with_resource_name(text(name))
                .with_configuration_keys(Some(vec![text(setting)]));
            let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
            Asked::new(ApiKey::DescribeConfigs, rng.version(1, 4), RequestKind::DescribeConfigs(request), "")
        }
        1 => {
            let config = alter_configs_request::AlterableConfig::default()
                .with_name(text(setting))
                .with_value(Some(text(value)));
            let resource = alter_configs_request::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text(name))
                .with_configs(vec![config]);
            let request = AlterConfigsRequest::default().with_resources(vec![resource]);
            Asked::new(ApiKey::AlterConfigs, rng.version(0, 2), RequestKind::AlterConfigs(request), "")
        }
        _ => {
            let config = incremental_alter_configs_request::AlterableConfig::default()
                .with_name(text(setting))
                .with_config_operation(if setting.starts_with("retention") { rng.pick(&[0, 0, 1]) } else { 0 })
                .with_value(Some(text(value)));
            let resource = incremental_alter_configs_request::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text(name))
                .with_configs(vec![config]);
            let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
            let version = rng.version(0, 1);
            Asked::new(ApiKey::IncrementalAlterConfigs, version, RequestKind::IncrementalAlterConfigs(request), "")
        }
    }
}

/// A producer with a transactional id, its epoch now and then wrong.
fn in_transaction(rng: &mut Rng, memory: &Memory) -> (&'static str, i64, i16) {
    let who = rng.pick(&["x0", "x0", "x1", "x9"]);
    let known = producer_of(memory, who);
    let epoch = match rng.below(16) {
        0 => (known.epoch - 1).max(0),
        1 => known.epoch + 1,
        _ => known.epoch,
    };
    (who, known.id + i64::from(rng.one_in(20)), epoch)
}

pub(crate) fn add_to_transaction(rng: &mut Rng, memory: &Memory) -> Asked {
    let (who, id, epoch) = in_transaction(rng, memory);
    if rng.one_in(3) {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(transactional(who))
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(epoch)
            .with_group_id(group(rng));
        return Asked::new(ApiKey::AddOffsetsToTxn, rng.version(0, 4), RequestKind::AddOffsetsToTxn(request), who);
    }
    let places: Vec<_> =
        if rng.one_in(5) { vec![place_in_transaction(rng)] } else { vec![("apples", 0), ("apples", 1), ("pears", 0)] };
    let topics = places.iter().map(|(name, partition)| {
        let topic = add_partitions_to_txn_request::AddPartitionsToTxnTopic::default();
        topic.with_name(named(name)).with_partitions(vec![*partition])
    });
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(transactional(who))
        .with_v3_and_below_producer_id(ProducerId(id))
        .with_v3_and_below_producer_epoch(epoch)
        .with_v3_and_below_topics(topics.collect());
    Asked::new(ApiKey::AddPartitionsToTxn, rng.version(0, 3), RequestKind::AddPartitionsToTxn(request), who)
}

pub(crate) fn commit_in_transaction(rng: &mut Rng, memory: &Memory) -> Asked {
    let (who, id, epoch) = in_transaction(rng, memory);
    let version = rng.version(0, TXN_OFFSET_COMMIT_MAX);
    let (name, index) = place(rng);
    let mut partition = txn_offset_commit_request::TxnOffsetCommitRequestPartition::default()
        .with_partition_index(index)
        .with_committed_offset(rng.below(50) as i64)
        .with_committed_metadata(Some(text("in")));
    if version >= 2 {
        partition.committed_leader_epoch = 0;
    }
    let topic = txn_offset_commit_request::TxnOffsetCommitRequestTopic::default()
        .with_name(named(name))
        .with_partitions(vec![partition]);
    let mut request = TxnOffsetCommitRequest::default()
        .with_transactional_id(transactional(who))
        .with_group_id(group(rng))
        .with_producer_id(ProducerId(id))
        .with_producer_epoch(epoch)
        .with_topics(vec![topic]);
    if version >= 3 && rng.one_in(8) {
        request = request.with_member_id(text("nobody")).with_generation_id(4);
    }
    Asked::new(ApiKey::TxnOffsetCommit, version, RequestKind::TxnOffsetCommit(request), who)
}

/// The newest versions of two requests that end and fill transactions.
const TXN_OFFSET_COMMIT_MAX: i16 = 5;
const END_TXN_MAX: i16 = 5;

pub(crate) fn end(rng: &mut Rng, memory: &Memory) -> Asked {
    let (who, id, epoch) = in_transaction(rng, memory);
    let request = EndTxnRequest::default()
        .with_transactional_id(transactional(who))
        .with_producer_id(ProducerId(id))
        .with_producer_epoch(epoch)
        .with_committed(rng.one_in(2));
    Asked::new(ApiKey::EndTxn, rng.version(0, END_TXN_MAX), RequestKind::EndTxn(request), who)
}

pub(crate) fn tell_transactions(rng: &mut Rng) -> Asked {
    if rng.one_in(2) {
        let ids = vec![transactional(rng.pick(&["x0", "x1", "x9"]))];
        let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
        return Asked::new(ApiKey::DescribeTransactions, 0, RequestKind::DescribeTransactions(request), "");
    }
    let mut request = ListTransactionsRequest::default();
    if rng.one_in(2) {
        request.state_filters = vec![text(rng.pick(&["Ongoing", "Empty", "CompleteCommit", "NoSuchState"]))];
    }
    Asked::new(ApiKey::ListTransactions, rng.version(0, 1), RequestKind::ListTransactions(request), "")
}

/// A member of a classic group: joins, syncs, beats, leaves.
pub(crate) fn member(rng: &mut Rng, memory: &Memory) -> Asked {
    let (name, who) = ("group", "group/member");
    let known = memory.members.get(who).cloned().unwrap_or_default();
    let generation = if rng.one_in(8) { known.generation + 1 } else { known.generation };
    let id = if rng.one_in(10) { text("nobody") } else { text(&known.id) };
    let group_id = GroupId(text(if rng.one_in(12) { "empty" } else { name }));
    match rng.below(8) {
        0..3 => {
            let protocol = join_group_request::JoinGroupRequestProtocol::default()
                .with_name(text("range"))
                .with_metadata(Bytes::from_static(SUBSCRIBED));
            let version = rng.version(4, 9);
            let request = JoinGroupRequest::default()
                .with_group_id(group_id)
                .with_session_timeout_ms(if rng.one_in(10) { 1 } else { 1_800_000 })
                .with_rebalance_timeout_ms(60_000)
                .with_member_id(id)
                .with_protocol_type(text(if rng.one_in(10) { "connect" } else { "consumer" }))
                .with_protocols(vec![protocol]);
            Asked::new(ApiKey::JoinGroup, version, RequestKind::JoinGroup(request), who)
        }
        3 | 4 => {
            let assigned = sync_group_request::SyncGroupRequestAssignment::default()
                .with_member_id(text(&known.id))
                .with_assignment(Bytes::from_static(b"\0\0\0\0\0\x01\0\x06apples\0\0\0\x01\0\0\0\0\0\0\0\0"));
            let version = rng.version(0, 5);
            let mut request = SyncGroupRequest::default()
                .with_group_id(group_id)
                .with_generation_id(generation)
                .with_member_id(id)
                .with_assignments(vec![assigned]);
            if version >= 5 {
                request = request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range")));
            }
            Asked::new(ApiKey::SyncGroup, version, RequestKind::SyncGroup(request), who)
        }
        5 | 6 => {
            let request =
                HeartbeatRequest::default().with_group_id(group_id).with_generation_id(generation).with_member_id(id);
            Asked::new(ApiKey::Heartbeat, rng.version(0, 4), RequestKind::Heartbeat(request), who)
        }
        _ => {
            let version = rng.version(0, 5);
            let request = LeaveGroupRequest::default().with_group_id(group_id);
            let request = if version >= 3 {
                request.with_members(vec![leave_group_request::MemberIdentity::default().with_member_id(id)])
            } else {
                request.with_member_id(id)
            };
            Asked::new(ApiKey::LeaveGroup, version, RequestKind::LeaveGroup(request), who)
        }
    }
}

/// OffsetCommit of a member, or of nobody in an empty group.
pub(crate) fn commit(rng: &mut Rng, memory: &Memory) -> Asked {
    let version = rng.version(2, 9);
    let (name, index) = place(rng);
    let mut partition = offset_commit_request::OffsetCommitRequestPartition::default()
        .with_partition_index(index)
        .with_committed_offset(rng.below(100) as i64)
        .with_committed_metadata(Some(text(rng.pick(&["", "kept"]))));
    if version >= 6 {
        partition.committed_leader_epoch = rng.pick(&[-1, 0]);
    }
    let topic = offset_commit_request::OffsetCommitRequestTopic::default()
        .with_name(named(name))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default().with_topics(vec![topic]);
    let known = memory.members.get("group/member").cloned().unwrap_or_default();
    let request = match rng.below(4) {
        0 => request.with_group_id(GroupId(text("group"))).with_generation_id_or_member_epoch(-1),
        1 => request
            .with_group_id(GroupId(text("group")))
            .with_member_id(text(&known.id))
            .with_generation_id_or_member_epoch(known.generation + i32::from(rng.one_in(4))),
        2 => request.with_group_id(GroupId(text("other"))).with_generation_id_or_member_epoch(-1),
        _ => request
            .with_group_id(GroupId(text("other")))
            .with_member_id(text("nobody"))
            .with_generation_id_or_member_epoch(1),
    };
    Asked::new(ApiKey::OffsetCommit, version, RequestKind::OffsetCommit(request), "")
}

pub(crate) fn committed(rng: &mut Rng) -> Asked {
    let version = rng.version(1, 9);
    let (name, index) = place(rng);
    let all = rng.one_in(3) && version >= 2;
    let mut request = OffsetFetchRequest::default();
    if version >= 7 {
        request.require_stable = rng.one_in(2);
    }
    let request = if version >= 8 {
        let topic = offset_fetch_request::OffsetFetchRequestTopics::default();
        let topic = topic.with_name(named(name)).with_partition_indexes(vec![index, 0]);
        let one = offset_fetch_request::OffsetFetchRequestGroup::default().with_group_id(group(rng));
        request.with_groups(vec![one.with_topics((!all).then(|| vec![topic]))])
    } else {
        let topic = offset_fetch_request::OffsetFetchRequestTopic::default();
        let topic = topic.with_name(named(name)).with_partition_indexes(vec![index, 0]);
        request.with_group_id(group(rng)).with_topics((!all).then(|| vec![topic]))
    };
    Asked::new(ApiKey::OffsetFetch, version, RequestKind::OffsetFetch(request), "")
}

pub(crate) fn tell_groups(rng: &mut Rng) -> Asked {
    if rng.one_in(2) {
        let version = rng.version(0, 5);
        let mut request = ListGroupsRequest::default();
        if version >= 4 && rng.one_in(2) {
            request.states_filter = vec![text(rng.pick(&["Empty", "Stable", "empty", "NoSuchState"]))];
        }
        if version >= 5 && rng.one_in(2) {
            request.types_filter = vec![text(rng.pick(&["classic", "consumer", "Classic"]))];
        }
        return Asked::new(ApiKey::ListGroups, version, RequestKind::ListGroups(request), "");
    }
    let group = GroupId(text(rng.pick(&["group", "other", "empty", "modern", "never"])));
    if rng.one_in(3) {
        let request = ConsumerGroupDescribeRequest::default()
            .with_group_ids(vec![group])
            .with_include_authorized_operations(rng.one_in(2));
        let version = rng.version(0, 1);
        return Asked::new(ApiKey::ConsumerGroupDescribe, version, RequestKind::ConsumerGroupDescribe(request), "");
    }
    let version = rng.version(0, 6);
    let request = DescribeGroupsRequest::default()
        .with_groups(vec![group])
        .with_include_authorized_operations(version >= 3 && rng.one_in(2));
    Asked::new(ApiKey::DescribeGroups, version, RequestKind::DescribeGroups(request), "")
}

/// OffsetDelete, DeleteGroups.
pub(crate) fn forget(rng: &mut Rng) -> Asked {
    if rng.one_in(2) {
        let groups = vec![GroupId(text(rng.pick(&["empty", "never"])))];
        let request = DeleteGroupsRequest::default().with_groups_names(groups);
        return Asked::new(ApiKey::DeleteGroups, rng.version(0, 2), RequestKind::DeleteGroups(request), "");
    }
    let (name, index) = place(rng);
    let name = if name == "pears" { "plums" } else { name };
    let partition = offset_delete_request::OffsetDeleteRequestPartition::default().with_partition_index(index);
    let topic = offset_delete_request::OffsetDeleteRequestTopic::default()
        .with_name(named(name))
        .with_partitions(vec![partition]);
    let request = OffsetDeleteRequest::default().with_group_id(group(rng)).with_topics(vec![topic]);
    Asked::new(ApiKey::OffsetDelete, 0, RequestKind::OffsetDelete(request), "")
}

/// A member of a consumer group.
pub(crate) fn consumer_group(rng: &mut Rng, memory: &Memory) -> Asked {
    let who = "modern/member";
    let known = memory.members.get(who).cloned().unwrap_or_default();
    let joins = known.generation <= 0 || rng.one_in(8);
    let epoch = match rng.below(8) {
        0 => -1,
        1 => known.generation + 5,
        _ if joins => 0,
        _ => known.generation,
    };
    let mut request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text("modern")))
        .with_member_id(text("a-member"))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(if epoch == 0 { 60_000 } else { -1 });
    let version = rng.version(0, 1);
    if epoch == 0 {
        // Who reads nothing yet says so by an empty list or, where there are patterns, an empty one; who says neither is refused.
        let (names, pattern) = match rng.below(8) {
            0 => (Some(Vec::new()), None),
            1 if version > 0 => (None, Some(text(""))),
            2 => (None, None),
            _ => (Some(vec![named("pears")]), None),
        };
        request = request
            .with_subscribed_topic_names(names)
            .with_subscribed_topic_regex(pattern)
            .with_topic_partitions(Some(Vec::new()));
    }
    Asked::new(ApiKey::ConsumerGroupHeartbeat, version, RequestKind::ConsumerGroupHeartbeat(request), who)
}

pub(crate) fn tell_node(rng: &mut Rng) -> Asked {
    match rng.below(3) {
        0 => {
            let version = rng.version(0, 2);
            let request = DescribeClusterRequest::default().with_include_cluster_authorized_operations(rng.one_in(2));
            Asked::new(ApiKey::DescribeCluster, version, RequestKind::DescribeCluster(request), "")
        }
        1 => {
            let (name, index) = place(rng);
            let topic = describe_log_dirs_request::DescribableLogDirTopic::default();
            let topic = topic.with_topic(named(name)).with_partitions(vec![index, 0]);
            let request = DescribeLogDirsRequest::default().with_topics(Some(vec![topic]));
            Asked::new(ApiKey::DescribeLogDirs, rng.version(1, 4), RequestKind::DescribeLogDirs(request), "")
        }
        _ => {
            let version = rng.version(0, 6);
            let request = FindCoordinatorRequest::default();
            let kind = rng.pick(&[0, 1, 7]);
            let request = if version >= 1 { request.with_key_type(kind) } else { request };
            let key = text(TOPICS[rng.below(3) as usize].0);
            let request = if version >= 4 { request.with_coordinator_keys(vec![key]) } else { request.with_key(key) };
            Asked::new(ApiKey::FindCoordinator, version, RequestKind::FindCoordinator(request), "")
        }
    }
}

/// Who has written, what has settings, who may do what.
pub(crate) fn tell_more(rng: &mut Rng) -> Asked {
    match rng.below(6) {
        0 | 1 => {
            let (name, index) = place(rng);
            let topic = describe_producers_request::TopicRequest::default();
            let topic = topic.with_name(named(name)).with_partition_indexes(vec![index]);
            let request = DescribeProducersRequest::default().with_topics(vec![topic]);
            Asked::new(ApiKey::DescribeProducers, 0, RequestKind::DescribeProducers(request), "")
        }
        2 => {
            let version = rng.version(0, 1);
            // The node. Kafka has loggers with levels that can be set, too.
            let kinds = if version >= 1 { vec![4] } else { Vec::new() };
            let request = ListConfigResourcesRequest::default().with_resource_types(kinds);
            Asked::new(ApiKey::ListConfigResources, version, RequestKind::ListConfigResources(request), "")
        }
        3 => {
            let part = describe_client_quotas_request::ComponentData::default();
            let part = part.with_entity_type(text("user")).with_match_type(2).with_match(None);
            let request = DescribeClientQuotasRequest::default().with_components(vec![part]);
            Asked::new(ApiKey::DescribeClientQuotas, rng.version(0, 1), RequestKind::DescribeClientQuotas(request), "")
        }
        4 => {
            let request = DescribeAclsRequest::default()
                .with_resource_type_filter(1)
                .with_pattern_type_filter(1)
                .with_operation(1)
                .with_permission_type(1);
            Asked::new(ApiKey::DescribeAcls, rng.version(1, 3), RequestKind::DescribeAcls(request), "")
        }
        _ => {
            let filter = delete_acls_request::DeleteAclsFilter::default()
                .with_resource_type_filter(2)
                .with_pattern_type_filter(3)
                .with_operation(1)
                .with_permission_type(1);
            let request = DeleteAclsRequest::default().with_filters(vec![filter]);
            Asked::new(ApiKey::DeleteAcls, rng.version(1, 3), RequestKind::DeleteAcls(request), "")
        }
    }
}
