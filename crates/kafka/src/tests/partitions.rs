//! What is told of partitions.

use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::protocol::Decodable;

use super::*;

fn name(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

/// The answer to a request in a flexible version: behind the tagged fields of its header.
pub(super) fn flexible<R: Decodable>(answer: &[u8], version: i16) -> R {
    R::decode(&mut bytes::Bytes::copy_from_slice(&answer[1..]), version).unwrap()
}

#[test]
fn partitions_are_described_page_by_page() {
    let mut client = Client::new();
    client.create("b", 3);
    client.create("a", 2);
    client.create("c", 1);
    let mut cursor = None;
    let mut pages = Vec::new();
    loop {
        let asked =
            DescribeTopicPartitionsRequest::default().with_response_partition_limit(2).with_cursor(cursor.take());
        let answer = client.ask(ApiKey::DescribeTopicPartitions, 0, &asked);
        let answer: DescribeTopicPartitionsResponse = flexible(&answer, 0);
        pages.push(
            answer
                .topics
                .iter()
                .map(|topic| {
                    assert_eq!((topic.error_code, topic.topic_id.is_nil()), (0, false));
                    let partitions: Vec<i32> = topic.partitions.iter().map(|one| one.partition_index).collect();
                    (topic.name.as_ref().unwrap().to_string(), partitions)
                })
                .collect::<Vec<_>>(),
        );
        match answer.next_cursor {
            Some(next) => {
                cursor =
                    Some(Cursor::default().with_topic_name(next.topic_name).with_partition_index(next.partition_index));
            }
            None => break,
        }
    }
    let (a, b, c) = ("a".to_owned(), "b".to_owned(), "c".to_owned());
    assert_eq!(pages, [vec![(a, vec![0, 1])], vec![(b.clone(), vec![0, 1])], vec![(b, vec![2]), (c, vec![0])]]);
    let topics = ["nowhere", "a", "a"].map(|topic| TopicRequest::default().with_name(name(topic))).to_vec();
    let asked = DescribeTopicPartitionsRequest::default().with_topics(topics).with_response_partition_limit(100);
    let answer = client.ask(ApiKey::DescribeTopicPartitions, 0, &asked);
    let answer: DescribeTopicPartitionsResponse = flexible(&answer, 0);
    let errors: Vec<(i16, usize)> = answer.topics.iter().map(|one| (one.error_code, one.partitions.len())).collect();
    assert_eq!(errors, [(0, 2), (3, 0)]);
    // A page that is full ends in front of a topic that is not there, too.
    let topics = ["a", "nowhere"].map(|topic| TopicRequest::default().with_name(name(topic))).to_vec();
    let asked = DescribeTopicPartitionsRequest::default().with_topics(topics).with_response_partition_limit(2);
    let answer: DescribeTopicPartitionsResponse = flexible(&client.ask(ApiKey::DescribeTopicPartitions, 0, &asked), 0);
    assert_eq!(answer.topics.len(), 1);
    assert_eq!(&**answer.next_cursor.unwrap().topic_name, "nowhere");
}

#[test]
fn records_of_a_topic_that_is_only_compacted_are_not_deleted() {
    let mut client = Client::new();
    for (topic, policy, code) in [
        ("kept", "compact", ResponseError::PolicyViolation.code()),
        ("both", "compact,delete", 0),
        ("plain", "delete", 0),
    ] {
        let config = create_topics_request::CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str("cleanup.policy"))
            .with_value(Some(StrBytes::from_static_str(policy)));
        let made = create_topics_request::CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(1)
            .with_replication_factor(1)
            .with_configs(vec![config]);
        let request = CreateTopicsRequest::default().with_topics(vec![made]).with_timeout_ms(1000);
        client.ask(ApiKey::CreateTopics, 2, &request);
        let partition = delete_records_request::DeleteRecordsPartition::default().with_offset(0);
        let of = delete_records_request::DeleteRecordsTopic::default().with_name(name(topic));
        let request = DeleteRecordsRequest::default().with_topics(vec![of.with_partitions(vec![partition])]);
        let answer: DeleteRecordsResponse = flexible(&client.ask(ApiKey::DeleteRecords, 2, &request), 2);
        assert_eq!(answer.topics[0].partitions[0].error_code, code, "{policy}");
    }
}

#[test]
fn new_partitions_go_where_they_are_assigned_or_nowhere() {
    let mut client = Client::new();
    client.create("t", 1);
    let to = |brokers: &[i32]| {
        let brokers = brokers.iter().map(|id| BrokerId(*id)).collect();
        create_partitions_request::CreatePartitionsAssignment::default().with_broker_ids(brokers)
    };
    let wrong = ResponseError::InvalidReplicaAssignment.code();
    for (count, assigned, code) in [
        (3, vec![to(&[1])], wrong),
        (2, vec![to(&[0])], wrong),
        (2, vec![to(&[])], wrong),
        (2, vec![to(&[1])], 0),
        (4, vec![to(&[1]), to(&[1])], 0),
    ] {
        let topic = create_partitions_request::CreatePartitionsTopic::default()
            .with_name(name("t"))
            .with_count(count)
            .with_assignments(Some(assigned));
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
        let answer: CreatePartitionsResponse = flexible(&client.ask(ApiKey::CreatePartitions, 3, &request), 3);
        assert_eq!(answer.results[0].error_code, code, "{count}");
    }
}

#[test]
fn the_size_of_partitions_is_told() {
    let mut client = Client::new();
    client.create("t", 2);
    let large = vec![7; 10_000];
    assert_eq!(client.produce("t", 1, &batch(&[&large], (-1, -1, -1))), (0, 0));
    let some = describe_log_dirs_request::DescribableLogDirTopic::default()
        .with_topic(name("t"))
        .with_partitions(vec![1, 0, 1, 9]);
    let unknown = describe_log_dirs_request::DescribableLogDirTopic::default().with_topic(name("nowhere"));
    for topics in [None, Some(vec![some, unknown])] {
        let asked = DescribeLogDirsRequest::default().with_topics(topics);
        let answer = client.ask(ApiKey::DescribeLogDirs, 4, &asked);
        let answer: DescribeLogDirsResponse = flexible(&answer, 4);
        let [dir] = &answer.results[..] else { panic!("{answer:?}") };
        let [topic] = &dir.topics[..] else { panic!("{answer:?}") };
        let sizes: Vec<_> = topic.partitions.iter().map(|one| (one.partition_index, one.partition_size)).collect();
        assert_eq!(sizes.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1]);
        assert!(sizes[0].1 == 0 && (10_000..20_000).contains(&sizes[1].1), "{sizes:?}");
    }
}

/// What deleting records of "t" below offsets is answered: of each partition its error and its beginning.
fn delete(client: &mut Client, topic: &'static str, offsets: &[(i32, i64)]) -> Vec<(i16, i64)> {
    let partitions = offsets.iter().map(|(index, offset)| {
        delete_records_request::DeleteRecordsPartition::default().with_partition_index(*index).with_offset(*offset)
    });
    let topic = delete_records_request::DeleteRecordsTopic::default()
        .with_name(name(topic))
        .with_partitions(partitions.collect());
    let answer = client.ask(ApiKey::DeleteRecords, 2, &DeleteRecordsRequest::default().with_topics(vec![topic]));
    let answer: DeleteRecordsResponse = flexible(&answer, 2);
    answer.topics[0].partitions.iter().map(|one| (one.error_code, one.low_watermark)).collect()
}

/// The offset that a time, or one of the names for it, stands for.
fn offset_of(client: &mut Client, time: i64) -> i64 {
    let one = list_offsets_request::ListOffsetsPartition::default().with_timestamp(time);
    let topic = list_offsets_request::ListOffsetsTopic::default().with_name(name("t")).with_partitions(vec![one]);
    let answer = client.ask(ApiKey::ListOffsets, 7, &ListOffsetsRequest::default().with_topics(vec![topic]));
    let answer: ListOffsetsResponse = flexible(&answer, 7);
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    answer.topics[0].partitions[0].offset
}

#[test]
fn a_partition_begins_where_its_records_were_deleted_up_to() {
    let mut client = Client::new();
    client.create("t", 2);
    // Their times are 1000, 1001, 1002.
    let three = batch(&[b"a", b"b", b"c"], (-1, -1, -1));
    assert_eq!(client.produce("t", 0, &three), (0, 0));
    assert_eq!(client.produce("t", 0, &three), (0, 3));
    assert_eq!(delete(&mut client, "t", &[(0, 4), (1, 0), (2, 0)]), [(0, 4), (0, 0), (3, -1)]);
    assert_eq!(offset_of(&mut client, -2), 4);
    assert_eq!(offset_of(&mut client, 0), 4, "the first batch is gone, and one record of the second");
    assert_eq!(offset_of(&mut client, 1002), 5);
    assert_eq!(client.fetch("t", 0, 3).0, 1, "deleted");
    let (error, high, records) = client.fetch("t", 0, 4);
    assert_eq!((error, high, records.len()), (0, 6, three.len()), "the batch with it comes whole");
    assert_eq!(delete(&mut client, "t", &[(0, 2)]), [(0, 4)], "it does not go back");
    assert_eq!(delete(&mut client, "t", &[(0, 7)]), [(1, -1)], "behind the end");
    assert_eq!(delete(&mut client, "t", &[(0, -2)]), [(1, -1)]);
    assert_eq!(delete(&mut client, "nowhere", &[(0, 0)]), [(3, -1)]);
    assert_eq!(delete(&mut client, "t", &[(0, -1)]), [(0, 6)], "everything");
    assert_eq!((offset_of(&mut client, -2), offset_of(&mut client, 0)), (6, -1));
    assert_eq!(client.produce("t", 0, &three), (0, 6));
    assert_eq!(offset_of(&mut client, 0), 6);
}
