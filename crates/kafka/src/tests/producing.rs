//! Requests with batches for partitions that fare differently: each is told of by itself.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kera_log::SinkErrorKind;
use parking_lot::Mutex;

use super::partitions::flexible;
use super::*;

const TIMED_OUT: i16 = 7;
const VERSION: i16 = 9;

/// A client of a node with two logs, one of which makes everything durable at once, with a topic of two copies that has a partition in each, and one that needs
/// no log. The number of the partition in the first log, and of the one in the second.
fn over(clock: &Arc<ManualClock>, second: Arc<dyn DurabilitySink>) -> (Client, i32, i32) {
    let client = Client::over(clock.clone(), vec![Arc::new(Instant) as Arc<dyn DurabilitySink>, second]);
    let coordinator = &client.door.as_ref().unwrap().0.coordinator;
    let create = |name: &str, options| {
        let create = CreateStream { name: name.into(), options, if_not_exists: false };
        coordinator.create_stream(&create).unwrap();
    };
    create("copied", StreamOptions { streamlets: 2, lanes: 1, replication: 2, ..StreamOptions::default() });
    create("process", StreamOptions { streamlets: 1, lanes: 1, replication: 1, ..StreamOptions::default() });
    let id = client.door.as_ref().unwrap().0.info("copied").unwrap().id;
    // Streamlets are spread over the logs by these numbers.
    let first = (id.0 % 2) as i32;
    (client, first, 1 - first)
}

/// A request with a batch for each of these.
fn request(of: &[(&'static str, i32)], timeout_ms: i32) -> Vec<u8> {
    request_of(-1, of, timeout_ms)
}

fn request_of(acks: i16, of: &[(&'static str, i32)], timeout_ms: i32) -> Vec<u8> {
    request_by((-1, -1, -1), acks, of, timeout_ms)
}

/// The same of a producer: its id and epoch, and the number of the one record of each batch.
fn request_by(producer: (i64, i16, i32), acks: i16, of: &[(&'static str, i32)], timeout_ms: i32) -> Vec<u8> {
    let one = |(name, index): &(&'static str, i32)| {
        let data = PartitionProduceData::default().with_index(*index);
        let data = data.with_records(Some(batch(&[b"x"], producer).into()));
        let name = TopicName(StrBytes::from_static_str(name));
        TopicProduceData::default().with_name(name).with_partition_data(vec![data])
    };
    let topics = of.iter().map(one).collect();
    let request = ProduceRequest::default().with_acks(acks).with_timeout_ms(timeout_ms).with_topic_data(topics);
    frame(ApiKey::Produce, VERSION, 7, &request)
}

/// The error and the offset that are told of each partition.
fn told(answer: &[u8]) -> Vec<(i16, i64)> {
    let answer: ProduceResponse = flexible(&answer[4..], VERSION);
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partition_responses);
    partitions.map(|one| (one.error_code, one.base_offset)).collect()
}

impl Client {
    /// As the node does when the time of an answer is over.
    fn look_again(&mut self) {
        self.session.as_mut().unwrap().on_wake(&mut self.out);
    }
}

/// A producer without an id sends again what it is told to be in doubt: that came twice into partitions whose copies were there.
#[test]
fn a_partition_that_does_not_become_durable_takes_no_other_along() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let (mut client, quick, slow) = over(&clock, Arc::new(Copying));
    let asked = request(&[("copied", quick), ("copied", slow), ("process", 0)], 100);
    assert_eq!(client.frame(&asked), Flow::Done);
    assert!(client.answer().is_none(), "one of them waits for its copies");
    clock.advance_ms(150);
    client.look_again();
    let told = told(&client.answer().expect("its time is over"));
    assert_eq!(told.iter().map(|(error, _)| *error).collect::<Vec<_>>(), [0, TIMED_OUT, 0]);
}

/// A log that takes nothing while there is a reason, and makes durable at once what it takes then.
struct Sick {
    why: Mutex<Option<SinkErrorKind>>,
    waiters: Mutex<Vec<Weak<dyn Observer>>>,
}

impl Sick {
    fn new(why: SinkErrorKind) -> Arc<Sick> {
        Arc::new(Sick { why: Mutex::new(Some(why)), waiters: Mutex::default() })
    }

    /// Calls all who wait. How often that was asked for.
    fn call(&self) -> usize {
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.iter().filter_map(Weak::upgrade).for_each(|waiter| waiter.advanced(0));
        waiters.len()
    }
}

impl DurabilitySink for Sick {
    fn appended(&self, reference: kera_log::ChunkReference) -> Ticket {
        assert_eq!(*self.why.lock(), None, "nothing is taken");
        Instant.appended(reference)
    }
    fn durable_through(&self) -> Ticket {
        if self.why.lock().is_some() { 0 } else { Instant.durable_through() }
    }
    fn wait(&self, _: Ticket, observer: &Arc<dyn Observer>, _: u64) -> bool {
        let waits = self.why.lock().is_some();
        if waits {
            self.waiters.lock().push(Arc::downgrade(observer));
        }
        waits
    }
    fn healthy(&self) -> Result<(), SinkError> {
        let error = |kind| SinkError { kind, reason: "too much waits".to_owned(), retry_after_ms: 20 };
        self.why.lock().map_or(Ok(()), |kind| Err(error(kind)))
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// What is appended when nobody waits for it any more cannot be acknowledged, and comes twice where its producer sends it again.
#[test]
fn nothing_is_appended_when_the_time_of_its_request_is_over() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let sink = Sick::new(SinkErrorKind::Behind);
    let (mut client, quick, sick) = over(&clock, sink.clone());
    let asked = request(&[("copied", sick), ("copied", quick), ("process", 0)], 100);
    assert_eq!(client.frame(&asked), Flow::Blocked);
    clock.advance_ms(150);
    // Just too late.
    *sink.why.lock() = None;
    assert_eq!(client.frame(&asked), Flow::Done);
    let answer = client.answer().expect("its time is over");
    assert_eq!(told(&answer), [(TIMED_OUT, -1), (0, 0), (0, 0)]);
    // It comes to where it would have been the first time, and what others had is there once.
    for (one, at) in [(("copied", sick), 0), (("copied", quick), 1), (("process", 0), 1)] {
        assert_eq!(client.frame(&request(&[one], 60_000)), Flow::Done);
        assert_eq!(told(&client.wait()), [(0, at)], "{one:?}");
    }
}

#[test]
fn a_log_that_is_behind_holds_up_its_own_partitions_only() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let sink = Sick::new(SinkErrorKind::Behind);
    let (mut client, quick, sick) = over(&clock, sink.clone());
    let asked =
        request(&[("copied", sick), ("nowhere", 0), ("process", 0), ("copied", sick), ("copied", quick)], 60_000);
    for _ in 0..3 {
        assert_eq!(client.frame(&asked), Flow::Blocked);
        assert_eq!(client.fetch("process", 0, 0).1, 1, "it is there, and once");
    }
    *sink.why.lock() = None;
    assert_eq!(client.frame(&asked), Flow::Done);
    let unknown = (ResponseError::UnknownTopicOrPartition.code(), -1);
    assert_eq!(told(&client.wait()), [(0, 0), unknown, (0, 0), (0, 1), (0, 0)]);
}

/// Each log that moves has the request looked at again, and would add to a list at all the others.
#[test]
fn a_log_that_is_behind_is_asked_once_to_call() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let sink = Sick::new(SinkErrorKind::Behind);
    let (mut client, quick, sick) = over(&clock, sink.clone());
    let asked = request(&[("copied", sick), ("copied", quick)], 60_000);
    for _ in 0..2 {
        for _ in 0..5 {
            assert_eq!(client.frame(&asked), Flow::Blocked);
        }
        assert!(!client.waker.take());
        assert_eq!(sink.call(), 1);
        assert!(client.waker.take(), "the session looks again");
    }
    *sink.why.lock() = None;
    assert_eq!(client.frame(&asked), Flow::Done);
    assert_eq!(told(&client.wait()), [(0, 0), (0, 0)]);
}

/// A log that is well again a moment after it was found to be behind.
struct Recovering(AtomicU32);

impl DurabilitySink for Recovering {
    fn appended(&self, reference: kera_log::ChunkReference) -> Ticket {
        Instant.appended(reference)
    }
    fn durable_through(&self) -> Ticket {
        Instant.durable_through()
    }
    fn wait(&self, ticket: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        ticket > self.durable_through()
    }
    fn healthy(&self) -> Result<(), SinkError> {
        // By the append, and once more behind the registration.
        if self.0.fetch_add(1, Ordering::Relaxed) >= 2 {
            return Ok(());
        }
        Err(SinkError { kind: SinkErrorKind::Behind, reason: "too much waits".to_owned(), retry_after_ms: 20 })
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// Batches of one partition would be the other way round.
#[test]
fn nothing_overtakes_a_batch_that_waits_for_the_same_log() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let (mut client, _, slow) = over(&clock, Arc::new(Recovering(AtomicU32::new(0))));
    let asked = request(&[("copied", slow), ("copied", slow)], 60_000);
    assert_eq!(client.frame(&asked), Flow::Blocked);
    assert_eq!(client.frame(&asked), Flow::Done);
    assert_eq!(told(&client.wait()), [(0, 0), (0, 1)]);
}

#[test]
fn a_log_that_has_had_too_few_copies_for_long_holds_up_nothing() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let sink = Sick::new(SinkErrorKind::Behind);
    let (mut client, quick, sick) = over(&clock, sink.clone());
    let asked = request(&[("copied", sick), ("copied", quick), ("process", 0)], 60_000);
    assert_eq!(client.frame(&asked), Flow::Blocked, "one that is replaced is waited for");
    *sink.why.lock() = Some(SinkErrorKind::TooFewCopies);
    for at in 0..2 {
        assert_eq!(client.frame(&asked), Flow::Done);
        let too_few = (ResponseError::NotEnoughReplicas.code(), -1);
        assert_eq!(told(&client.wait()), [too_few, (0, at), (0, at)]);
    }
}

/// A log that has too few copies until it is told otherwise, and is behind before anybody waits for it if that is said.
struct Few {
    begins_behind: bool,
    is_waited_for: AtomicBool,
    has_copies: AtomicBool,
}

impl Few {
    fn new(begins_behind: bool) -> Arc<Few> {
        Arc::new(Few { begins_behind, is_waited_for: AtomicBool::new(false), has_copies: AtomicBool::new(false) })
    }
}

impl DurabilitySink for Few {
    fn appended(&self, reference: kera_log::ChunkReference) -> Ticket {
        Instant.appended(reference)
    }
    fn durable_through(&self) -> Ticket {
        Instant.durable_through()
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        self.is_waited_for.store(true, Ordering::Relaxed);
        !self.has_copies.load(Ordering::Relaxed)
    }
    fn healthy(&self) -> Result<(), SinkError> {
        if self.has_copies.load(Ordering::Relaxed) {
            return Ok(());
        }
        let is_behind = self.begins_behind && !self.is_waited_for.load(Ordering::Relaxed);
        let kind = if is_behind { SinkErrorKind::Behind } else { SinkErrorKind::TooFewCopies };
        Err(SinkError { kind, reason: "too few".to_owned(), retry_after_ms: 20 })
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// Nobody is told of a batch that wants no answer, but for the connection that is closed: it was, with each of them.
#[test]
fn without_acks_a_log_that_has_had_too_few_copies_for_long_is_waited_for() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let few = Few::new(false);
    let (mut client, quick, sick) = over(&clock, few.clone());
    let asked = request_of(0, &[("copied", sick), ("copied", quick)], 60_000);
    for _ in 0..2 {
        assert_eq!(client.frame(&asked), Flow::Blocked);
    }
    few.has_copies.store(true, Ordering::Relaxed);
    assert_eq!(client.frame(&asked), Flow::Done);
    assert_eq!(client.frame(&request_of(0, &[("copied", quick)], 60_000)), Flow::Done);
    assert!(client.answer().is_none());
    assert_eq!(client.frame(&request(&[("copied", sick), ("copied", quick)], 60_000)), Flow::Done);
    assert_eq!(told(&client.wait()), [(0, 1), (0, 2)]);
}

/// It has told all who waited by then, and tells nobody again.
#[test]
fn a_log_that_has_too_few_copies_for_long_just_when_it_is_waited_for_holds_up_nothing() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let (mut client, quick, sick) = over(&clock, Few::new(true));
    assert_eq!(client.frame(&request(&[("copied", sick), ("copied", quick)], 60_000)), Flow::Done);
    assert_eq!(told(&client.wait()), [(ResponseError::NotEnoughReplicas.code(), -1), (0, 0)]);
}

/// Sarama up to 1.41 gives up a batch of which it is told a storage error. A full disk passes; one that has failed does not.
#[test]
fn a_batch_for_which_the_disk_is_full_comes_again() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let sink = Sick::new(SinkErrorKind::Full);
    let (mut client, quick, sick) = over(&clock, sink.clone());
    let mut told_of = |why: Option<SinkErrorKind>| {
        *sink.why.lock() = why;
        assert_eq!(client.frame(&request(&[("copied", sick), ("copied", quick)], 60_000)), Flow::Done);
        told(&client.wait())
    };
    let refused = |error: ResponseError| (error.code(), -1);
    assert_eq!(told_of(Some(SinkErrorKind::Full)), [refused(ResponseError::NotEnoughReplicas), (0, 0)]);
    assert_eq!(told_of(Some(SinkErrorKind::Failed)), [refused(ResponseError::KafkaStorageError), (0, 1)]);
    assert_eq!(told_of(None), [(0, 0), (0, 2)]);
}

/// A log that takes everything and makes nothing durable, until it has had too few copies for long.
#[derive(Default)]
struct Losing {
    has_lost: AtomicBool,
    waiters: Mutex<Vec<Weak<dyn Observer>>>,
}

impl Losing {
    /// As a log does when that begins: it calls all who wait. How many did.
    fn lose(&self) -> usize {
        self.has_lost.store(true, Ordering::Relaxed);
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.iter().filter_map(Weak::upgrade).for_each(|waiter| waiter.advanced(0));
        waiters.len()
    }
}

impl DurabilitySink for Losing {
    fn appended(&self, _: kera_log::ChunkReference) -> Ticket {
        1
    }
    fn durable_through(&self) -> Ticket {
        0
    }
    fn wait(&self, _: Ticket, observer: &Arc<dyn Observer>, _: u64) -> bool {
        self.waiters.lock().push(Arc::downgrade(observer));
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        let kind = SinkErrorKind::TooFewCopies;
        let lost = || SinkError { kind, reason: "too few".to_owned(), retry_after_ms: 20 };
        if self.has_lost.load(Ordering::Relaxed) { Err(lost()) } else { Ok(()) }
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// Its client would hear of nothing else on the connection until the time of the request is over.
#[test]
fn a_batch_with_a_number_is_not_waited_for_any_longer_when_its_log_has_lost_its_copies() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let losing = Arc::new(Losing::default());
    let (mut client, quick, lost) = over(&clock, losing.clone());
    let asked = request_by((7, 0, 0), -1, &[("copied", quick), ("copied", lost)], 60_000);
    assert_eq!(client.frame(&asked), Flow::Done);
    assert!(client.answer().is_none(), "copies may yet be made");
    let after_append = ResponseError::NotEnoughReplicasAfterAppend.code();
    let told = |answer: Vec<u8>| (told(&answer)[0], told(&answer)[1].0);
    assert_eq!(losing.lose(), 1);
    assert_eq!(told(client.wait()), ((0, 0), after_append));
    // It comes again and again, is there once, and nobody is put on a list for it.
    for _ in 0..3 {
        assert_eq!(client.frame(&asked), Flow::Done);
        assert_eq!(told(client.answer().expect("it waits for nothing")), ((0, 0), after_append));
    }
    assert_eq!(losing.lose(), 0);
}

/// What has no number would be there twice if it came again, and it may become durable before the time of its request is over.
#[test]
fn a_batch_without_a_number_is_waited_for_when_its_log_has_lost_its_copies() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let losing = Arc::new(Losing::default());
    let (mut client, _, lost) = over(&clock, losing.clone());
    assert_eq!(client.frame(&request(&[("copied", lost)], 100)), Flow::Done);
    assert_eq!(losing.lose(), 1);
    client.look_again();
    assert!(client.answer().is_none());
    clock.advance_ms(150);
    client.look_again();
    assert_eq!(told(&client.answer().expect("its time is over"))[0].0, TIMED_OUT);
}

/// A batch for the first partition of "sync", and none for so many others, which are not there.
fn with_empty(others: usize) -> Vec<u8> {
    let mut bytes = produce_frame("sync", 0, -1, &batch(&[b"x"], (-1, -1, -1)));
    // Behind header, transactional id, acks, timeout, count of topics and name.
    let at = 12 + 2 + 4 + 4 + 2 + "sync".len();
    bytes[at..at + 4].copy_from_slice(&(others as i32 + 1).to_be_bytes());
    let other = [77_i32.to_be_bytes(), (-1_i32).to_be_bytes()].concat();
    bytes.extend_from_slice(&other.repeat(others));
    bytes
}

#[test]
fn requests_that_name_too_many_partitions_close_the_connection_and_leave_no_trace() {
    let mut client = Client::new();
    create_copied(&client, "sync", ReplicationMode::Sync);
    assert!(matches!(client.frame(&with_empty(100_000)), Flow::Close(_)));
    assert_eq!(client.produce("sync", 0, &batch(&[b"x"], (-1, -1, -1))), (0, 0));
}

/// Each may be many times as large as its request.
#[test]
fn answers_that_wait_behind_each_other_are_bounded_by_their_bytes() {
    let mut client = Client::with(Arc::new(Copying));
    create_copied(&client, "sync", ReplicationMode::Sync);
    let asked = with_empty(50_000);
    let taken = (0..10).take_while(|_| client.frame(&asked) == Flow::Done).count();
    let answer_bytes = 50_000 * 22;
    assert!(taken >= 2 && taken * answer_bytes < (4 << 20) + answer_bytes, "{taken}");
    assert!(client.answer().is_none());
}
