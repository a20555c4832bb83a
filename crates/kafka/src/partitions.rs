//! Requests about what partitions hold: DescribeLogDirs, DescribeProducers, DeleteRecords.
//!
//! On the door's thread for commands: every lane's lock is taken, one after the other.

use std::collections::BTreeMap;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DeleteRecordsResponse, DescribeLogDirsRequest, DescribeLogDirsResponse,
    DescribeProducersRequest, DescribeProducersResponse, ProducerId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_format::Cleanup;
use kera_log::Tenure;

use crate::door::{After, Door};
use crate::floors::{NotRaised, first_offset, known_first};
use crate::older::Shared;
use crate::once::once;

/// The offset that means a partition's end.
const END: i64 = -1;
/// Producers of one partition that are told.
const PRODUCERS_MAX: usize = 10_000;
/// Producers of all partitions in one answer.
const PRODUCERS_TOLD_MAX: usize = 500_000;
/// A number of bytes that is not told.
const UNKNOWN_BYTES: i64 = -1;

/// DescribeLogDirs: one directory, the node's data, although its disks and its memory share what a partition has. Names that
/// are not there are left out, as Kafka leaves them out.
pub(crate) fn describe_log_dirs(door: &Door, asked: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let all = |topics: Vec<DescribableLogDirTopic>| {
        topics.into_iter().map(|one| (one.topic.to_string(), Some(one.partitions)))
    };
    let wanted: BTreeMap<String, Option<Vec<i32>>> = match asked.topics {
        Some(topics) => all(topics).collect(),
        None => door.catalog.infos().into_iter().map(|info| (info.name, None)).collect(),
    };
    let topics = wanted.into_iter().filter_map(|(name, partitions)| {
        let topic = door.topic(&door.info(&name)?)?;
        let mut partitions = partitions.unwrap_or_else(|| (0..topic.partitions() as i32).collect());
        partitions.sort_unstable();
        partitions.dedup();
        let described = partitions.into_iter().filter_map(|index| {
            let bytes = topic.lane(index)?.stats().bytes;
            Some(
                DescribeLogDirsPartition::default()
                    .with_partition_index(index)
                    .with_partition_size(bytes.cast_signed()),
            )
        });
        let described = described.collect();
        Some(
            DescribeLogDirsTopic::default()
                .with_name(TopicName(StrBytes::from_string(name)))
                .with_partitions(described),
        )
    });
    let result = DescribeLogDirsResult::default()
        .with_log_dir(StrBytes::from_string(door.config.data_dir.clone()))
        .with_topics(topics.collect())
        .with_total_bytes(UNKNOWN_BYTES)
        .with_usable_bytes(UNKNOWN_BYTES);
    DescribeLogDirsResponse::default().with_results(vec![result])
}

/// DescribeProducers: who has written to partitions lately, and where the transactions begin that run.
pub(crate) fn describe_producers(door: &Door, asked: &DescribeProducersRequest) -> DescribeProducersResponse {
    let mut left = PRODUCERS_TOLD_MAX;
    let mut wanted: Vec<(&TopicName, Vec<i32>)> = Vec::new();
    let named = asked.topics.iter().flat_map(|topic| topic.partition_indexes.iter().map(move |of| (&topic.name, *of)));
    for (name, index) in once(named, |of| *of) {
        match wanted.last_mut().filter(|(last, _)| *last == name) {
            Some((_, indexes)) => indexes.push(index),
            None => wanted.push((name, vec![index])),
        }
    }
    let topics = wanted.into_iter().map(|(name, indexes)| {
        let info = door.info(name);
        let topic = info.as_ref().and_then(|info| door.topic(info));
        let partitions = indexes.iter().map(|index| {
            let answer = PartitionResponse::default().with_partition_index(*index);
            let Some(lane) = topic.as_ref().and_then(|topic| topic.lane(*index)) else {
                return answer.with_error_code(door.not_here(info.as_ref(), *index).code());
            };
            if lane.tenure() == Tenure::Elsewhere {
                return answer.with_error_code(ResponseError::NotLeaderOrFollower.code());
            }
            let of = door.transactions.partitions.get(lane.stream_id(), *index);
            if of.as_ref().is_some_and(|of| of.lock().is_loading()) {
                return answer.with_error_code(ResponseError::NotLeaderOrFollower.code());
            }
            let open: BTreeMap<i64, u64> = of.map(|of| of.lock().producers().collect()).unwrap_or_default();
            let known = lane.producers(PRODUCERS_MAX);
            let Some(fewer) = left.checked_sub(known.len()) else {
                let why =
                    format!("one answer tells of at most {PRODUCERS_TOLD_MAX} producers: ask for fewer partitions");
                let answer = answer.with_error_code(ResponseError::PolicyViolation.code());
                return answer.with_error_message(Some(StrBytes::from_string(why)));
            };
            left = fewer;
            let producers = known.into_iter().map(|known| {
                let id = known.producer_id.0.cast_signed();
                ProducerState::default()
                    .with_producer_id(ProducerId(id))
                    .with_producer_epoch(known.producer_epoch.0.into())
                    .with_last_sequence(known.sequence.and_then(|last| i32::try_from(last).ok()).unwrap_or(-1))
                    .with_current_txn_start_offset(open.get(&id).map_or(-1, |first| first.cast_signed()))
                    .with_last_timestamp(-1)
                    .with_coordinator_epoch(-1)
            });
            answer.with_active_producers(producers.collect())
        });
        TopicResponse::default().with_name(name.clone()).with_partitions(partitions.collect())
    });
    DescribeProducersResponse::default().with_topics(topics.collect())
}

/// DeleteRecords: partitions begin at the offsets that are asked for, once that is durable. What is below the beginning already
/// changes nothing.
pub(crate) fn delete_records(door: &Door, asked: &DeleteRecordsRequest) -> (DeleteRecordsResponse, Option<After>) {
    let mut lanes = Vec::new();
    let mut topics = Vec::with_capacity(asked.topics.len());
    for topic in &asked.topics {
        let info = door.info(&topic.name);
        let cleanup = info.as_ref().map(|info| info.options.cleanup);
        let known = info.as_ref().and_then(|info| door.topic(info));
        let partitions = topic.partitions.iter().map(|partition| {
            let answer = DeleteRecordsPartitionResult::default().with_partition_index(partition.partition_index);
            let refused = |error: ResponseError| answer.clone().with_error_code(error.code()).with_low_watermark(-1);
            let Some(lane) = known.as_ref().and_then(|topic| topic.lane(partition.partition_index)) else {
                return refused(door.not_here(info.as_ref(), partition.partition_index));
            };
            if lane.tenure() == Tenure::Elsewhere {
                return refused(ResponseError::NotLeaderOrFollower);
            }
            // Whoever keeps the last record of each key wants nothing else to go.
            if cleanup == Some(Cleanup::Compact) {
                return refused(ResponseError::PolicyViolation);
            }
            let end = lane.durable_ordinal();
            let wanted = if partition.offset == END { Some(end) } else { u64::try_from(partition.offset).ok() };
            let Some(wanted) = wanted.filter(|wanted| *wanted <= end) else {
                return refused(ResponseError::OffsetOutOfRange);
            };
            let Ok(shared) = Shared::of(door, lane) else { return refused(ResponseError::NotLeaderOrFollower) };
            lanes.push((lane.clone(), wanted));
            // Where it begins at other nodes is known if somebody has read there.
            let first = match shared {
                None => Some(first_offset(lane)),
                Some(shared) => shared.first(door, lane),
            };
            answer.with_low_watermark(wanted.max(first.unwrap_or(0)).cast_signed())
        });
        let partitions = partitions.collect();
        topics.push(DeleteRecordsTopicResult::default().with_name(topic.name.clone()).with_partitions(partitions));
    }
    let raised = door.floors.raise(&lanes);
    let done = topics.iter_mut().flat_map(|topic| &mut topic.partitions).filter(|one| one.error_code == 0);
    for (partition, (lane, wanted)) in done.zip(&lanes) {
        let error = match &raised {
            Err(NotRaised::Append) => ResponseError::KafkaStorageError,
            // It may be done: asked again, it is answered.
            Err(NotRaised::Coordinators(error)) => {
                tracing::debug!(%error, "records are not deleted");
                ResponseError::RequestTimedOut
            }
            Ok(_) if known_first(lane) < *wanted => ResponseError::NotLeaderOrFollower,
            Ok(_) => continue,
        };
        partition.error_code = error.code();
        partition.low_watermark = -1;
    }
    (DeleteRecordsResponse::default().with_topics(topics), raised.ok().flatten())
}
