//! What clients and the node's log are told when something is over a limit.

use std::fmt::{Debug, Write};
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kera_format::{StreamOptions, limits};
use kera_protocol::ProtocolError;
use kera_protocol::admin::CreateStream;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::partitions::flexible;
use super::*;

/// The lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<parking_lot::Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What is logged on this thread meanwhile.
pub(super) fn logged(act: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    // While there is one log alone, a line that another test comes by first is taken for one that nobody wants, for good.
    let _another = Dispatch::new(Lines::default());
    tracing::subscriber::with_default(lines.clone(), act);
    std::mem::take(&mut *lines.0.lock())
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

#[test]
fn who_asks_for_too_much_at_a_time_is_named_in_the_log_with_size_and_limit() {
    let mut client = Client::new();
    let mut bytes = header(ApiKey::CreateTopics, 2, 7);
    bytes.resize(bytes.len() + (4 << 20) + 1, 0);
    let Flow::Close(why) = client.frame(&bytes) else { panic!("it is taken") };
    for part in ["Kafka client \"test\" at 127.0.0.1:9", "CreateTopics", "4194305 bytes", "4194304 at most"] {
        assert!(why.contains(part), "{why}");
    }
    // What is so large that it is not even read.
    let error = ProtocolError::FrameSize { bytes: 100_000_000, min: 0, max: 33_554_428 };
    let why = client.session().refused_frame(&error);
    for part in ["\"test\" at 127.0.0.1:9", "100000000 bytes", "33554428 at most", "network.frame_bytes_max"] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn a_batch_that_is_too_large_is_told_its_size_and_the_limit() {
    let mut client = Client::new();
    let config = CreatableTopicConfig::default().with_name(text("max.message.bytes")).with_value(Some(text("90")));
    let topic = CreatableTopic::default()
        .with_name(TopicName(text("t")))
        .with_num_partitions(1)
        .with_replication_factor(1)
        .with_configs(vec![config]);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
    let made: CreateTopicsResponse = flexible(&client.ask(ApiKey::CreateTopics, 7, &request), 7);
    assert_eq!(made.topics[0].error_code, 0);
    let batch = batch(&[&[b'x'; 90]], (-1, -1, -1));
    let said = format!("the batch has {} bytes, and the topic's max.message.bytes is 90", batch.len());

    let one = PartitionProduceData::default().with_index(0).with_records(Some(batch.clone().into()));
    let one = TopicProduceData::default().with_name(TopicName(text("t"))).with_partition_data(vec![one]);
    let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(1000).with_topic_data(vec![one]);
    let mut lines = logged(|| {
        let answer: ProduceResponse = flexible(&client.ask(ApiKey::Produce, 9, &request), 9);
        let refused = &answer.responses[0].partition_responses[0];
        assert_eq!(refused.error_code, ResponseError::MessageTooLarge.code());
        assert_eq!(refused.error_message.as_deref(), Some(&*said));
    });
    assert!(!lines.iter().any(|line| line.contains("max.message.bytes")), "{lines:?}");
    // An older answer has no room for that: the log says it, once for each connection.
    lines = logged(|| {
        for _ in 0..3 {
            assert_eq!(client.produce("t", 0, &batch).0, ResponseError::MessageTooLarge.code());
        }
    });
    lines.retain(|line| line.contains("max.message.bytes"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&said) && lines[0].contains("at 127.0.0.1:9"), "{lines:?}");
}

#[test]
fn a_limit_that_an_answer_cannot_name_is_in_the_log() {
    let until = std::time::Instant::now() + Duration::from_secs(120);
    let mut lines = Vec::new();
    while lines.is_empty() {
        assert!(std::time::Instant::now() < until, "it is never said");
        lines = logged(|| crate::limits_told::tell("members of a group", "g", 10_000));
        // Somebody else may have been told of in the same second.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("what=\"members of a group\" limit=10000"), "{lines:?}");
}

#[test]
fn partitions_of_all_topics_together_are_bounded() {
    let mut client = Client::new();
    let door = Arc::clone(&client.door.as_ref().unwrap().0);
    client.create("t", 1);
    let create = |name: &str, streamlets, lanes| {
        let options = StreamOptions { streamlets, lanes, ..StreamOptions::default() };
        let asked = CreateStream { name: name.to_owned(), options, if_not_exists: false };
        door.coordinator.create_stream(&asked).map(drop)
    };
    create("half", limits::STREAMLETS_MAX / 2, 8).unwrap();
    create("nearly", limits::STREAMLETS_MAX / 2 - 1, 8).unwrap();
    // The node has made some for itself, which count.
    let mut left = 8;
    while door.coordinator.check_lanes(left).is_err() {
        left -= 1;
    }
    for validate_only in [true, false] {
        let topic = CreatableTopic::default()
            .with_name(TopicName(text("u")))
            .with_num_partitions(left as i32 + 1)
            .with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_validate_only(validate_only);
        let answer: CreateTopicsResponse = flexible(&client.ask(ApiKey::CreateTopics, 7, &request), 7);
        let told = &answer.topics[0];
        assert_eq!(told.error_code, ResponseError::PolicyViolation.code());
        assert!(told.error_message.as_deref().is_some_and(|why| why.contains("of 1048576 at most")), "{told:?}");
        let topic = create_partitions_request::CreatePartitionsTopic::default()
            .with_name(TopicName(text("t")))
            .with_count(left as i32 + 2)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_validate_only(validate_only);
        let answer: CreatePartitionsResponse = flexible(&client.ask(ApiKey::CreatePartitions, 3, &request), 3);
        let told = &answer.results[0];
        assert_eq!(told.error_code, ResponseError::PolicyViolation.code());
        assert!(told.error_message.as_deref().is_some_and(|why| why.contains("of 1048576 at most")), "{told:?}");
    }
    create("u", left as u32, 1).unwrap();
}
