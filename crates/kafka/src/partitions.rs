//! Requests about what partitions take up: DescribeLogDirs.
//!
//! On the door's thread for commands: every lane's lock is taken, one after the other.

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::door::Door;

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
        let mut partitions = partitions.unwrap_or_else(|| (0..topic.partitions as i32).collect());
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
