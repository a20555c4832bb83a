//! Transactions as clients see them, over nodes that die at every step: a door is dropped with all that it knows, and another
//! one opened on the same log. What is durable is durable when the test says so.

mod coordinating;
mod damaged;
mod founding;
pub(super) mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::protocol::{Decodable, Request};
use kera_env::ManualClock;
use kera_format::kafka_transactions::{AbortedRange, Entry, Transaction};
use kera_log::store::{DiskStore, StoreConfig};
use kera_log::{ChunkReference, SinkErrorKind};
use parking_lot::Mutex;

use super::*;
use crate::batch::tests::transactional;
use crate::door::Waiting;
use crate::endings::Endings;
use crate::transaction_door::{MayWrite, produce_error};

/// Makes durable what it is told to.
#[derive(Default)]
pub(super) struct Held {
    state: Mutex<HeldState>,
}

#[derive(Default)]
struct HeldState {
    last: Ticket,
    durable: Ticket,
    pending: Vec<ChunkReference>,
    waiters: Vec<std::sync::Weak<dyn Observer>>,
    /// Whether nothing more is taken.
    is_full: bool,
}

impl Held {
    pub(super) fn release(&self) {
        let count = self.state.lock().pending.len();
        self.release_first(count);
    }

    /// Makes durable what was appended first.
    pub(super) fn release_first(&self, count: usize) {
        let (released, durable) = {
            let mut state = self.state.lock();
            let released: Vec<_> = state.pending.drain(..count).collect();
            (released, state.last - state.pending.len() as u64)
        };
        kera_log::made_durable(&released);
        let waiters = {
            let mut state = self.state.lock();
            state.durable = state.durable.max(durable);
            std::mem::take(&mut state.waiters)
        };
        waiters.iter().filter_map(std::sync::Weak::upgrade).for_each(|waiter| waiter.advanced(0));
    }
}

impl DurabilitySink for Held {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        let mut state = self.state.lock();
        state.pending.push(reference);
        state.last += 1;
        state.last
    }
    fn durable_through(&self) -> Ticket {
        self.state.lock().durable
    }
    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, _: u64) -> bool {
        let mut state = self.state.lock();
        if state.durable >= ticket {
            return false;
        }
        state.waiters.push(Arc::downgrade(observer));
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        let full = || SinkError { kind: SinkErrorKind::Full, reason: "no room is left".into(), retry_after_ms: 1_000 };
        if self.state.lock().is_full { Err(full()) } else { Ok(()) }
    }
    fn segment_safe(&self, _: kera_format::SegmentId) {}
}

/// A node whose threads do what the test says.
pub(super) struct World {
    broker: Arc<Broker>,
    coordinator: Arc<Coordinator>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) sink: Arc<Held>,
    running: Option<Running>,
    _dir: tempfile::TempDir,
}

pub(super) struct Running {
    pub(super) door: Arc<Door>,
    waiting: Waiting,
    pub(super) session: Box<dyn Session>,
    waker: SessionWaker,
    pub(super) out: Outbox,
    taken: usize,
}

pub(super) const NOW_MS: i64 = 1_700_000_000_000;
const TIMEOUT_MS: i32 = 60_000;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

impl World {
    pub(super) fn new() -> World {
        let mut world = World::with(|broker, clock| {
            let config = CoordinatorConfig::single([3; 16]);
            let coordinator = Coordinator::open(&config, Arc::new(MemoryDisk::default()), clock.clone()).unwrap();
            let coordinator = Arc::new(coordinator);
            coordinator.set_observer(Arc::new(Follow(broker.clone())));
            coordinator
        });
        for (name, durability) in [("t", "process"), ("u", "process"), ("safe", "power")] {
            let config =
                CreatableTopicConfig::default().with_name(text("kera.durability")).with_value(Some(text(durability)));
            let one = CreatableTopic::default()
                .with_name(topic(name))
                .with_num_partitions(2)
                .with_replication_factor(1)
                .with_configs(vec![config]);
            let made = world.call(5, &CreateTopicsRequest::default().with_topics(vec![one]).with_timeout_ms(1_000));
            assert_eq!(made.topics[0].error_code, 0);
        }
        world
    }

    /// Without topics, and with coordinators of its own.
    pub(super) fn with(coordinator: impl FnOnce(&Arc<Broker>, &Arc<dyn Clock>) -> Arc<Coordinator>) -> World {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let path = dir.path().join("unit.arena");
        let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 32 << 20, node: [3; 16] }).unwrap();
        let log = Log::new(LogConfig::default(), arena);
        let sink = Arc::new(Held::default());
        log.set_sinks(Arc::new(vec![Arc::clone(&sink) as Arc<dyn DurabilitySink>]));
        let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
        let coordinator = coordinator(&broker, &(clock.clone() as Arc<dyn Clock>));
        let mut world = World { broker, coordinator, clock, sink, running: None, _dir: dir };
        world.restart();
        world
    }

    /// The machine is switched on again without what was in memory: another log, with what is on `disk`, in which groups are opened in `epoch`. All topics
    /// stay.
    pub(super) fn power_on(&mut self, disk: &Arc<MemoryDisk>, epoch: u32) -> Arc<DiskStore> {
        self.running = None;
        let path = self._dir.path().join(format!("unit.arena.{epoch}"));
        let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 32 << 20, node: [3; 16] }).unwrap();
        let log = Log::new(LogConfig::default(), arena);
        let config = StoreConfig { node: [3; 16], ..StoreConfig::default() };
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let (store, stored) = DiskStore::open(config, vec![disk.clone()], clock, Arc::new(SystemRandom)).unwrap();
        log.set_store(store.clone());
        store.attach(&log);
        log.set_sinks(Arc::new(vec![Arc::clone(&self.sink) as Arc<dyn DurabilitySink>]));
        self.broker = Broker::new(BrokerConfig::default(), log.clone(), self.clock.clone());
        self.coordinator.set_observer(Arc::new(Follow(self.broker.clone())));
        for stream in self.coordinator.streams() {
            self.broker.stream_created(stream.id, stream.options).unwrap();
        }
        assert_eq!(log.recover(stored.segments, Vec::new()).problems, [""; 0]);
        store.replayed();
        assert_eq!(log.finish_recovery(epoch), [""; 0]);
        self.restart();
        store
    }

    /// What its nodes are made of.
    pub(super) fn parts(&self) -> (Arc<Broker>, Arc<Coordinator>) {
        (self.broker.clone(), self.coordinator.clone())
    }

    /// Another door on the same log: what the one before knew is gone.
    pub(super) fn restart(&mut self) {
        self.open(false).unwrap();
    }

    /// The same, which may fail.
    fn open(&mut self, accept_damage: bool) -> std::io::Result<()> {
        self.running = None;
        let config = DoorConfig { node: [3; 16], accept_damage, ..DoorConfig::default() };
        let (broker, coordinator, clock) = (self.broker.clone(), self.coordinator.clone(), self.clock.clone());
        let (door, waiting) = Door::open(config, broker, coordinator, clock, Arc::new(SystemRandom))?;
        let waker = SessionWaker::detached();
        let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 1, io_thread: 0 };
        let session = KafkaSessions(door.clone()).open(peer, waker.clone());
        self.running = Some(Running { door, waiting, session, waker, out: Outbox::new(1 << 20), taken: 0 });
        Ok(())
    }

    pub(super) fn running(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// Asks, and makes durable whatever the answer waits for.
    pub(super) fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.send(version, request);
        loop {
            if let Some(answer) = self.answer::<R>(version) {
                return answer;
            }
            self.sink.release();
        }
    }

    pub(super) fn send<R: Request>(&mut self, version: i16, request: &R) {
        let key = ApiKey::try_from(R::KEY).unwrap();
        let running = self.running();
        let frame = frame(key, version, 7, request);
        assert_eq!(running.session.on_frame(&FrameHeader::default(), &frame, &mut running.out), Flow::Done);
    }

    /// The answer, if it needs nothing more to become durable.
    pub(super) fn answer<R: Request>(&mut self, version: i16) -> Option<R::Response> {
        let running = self.running();
        while let Ok((command, reply)) = running.waiting.commands.try_recv() {
            let (body, after) = command(&running.door);
            reply.put_after(body, after);
        }
        while running.waker.take() {
            running.session.on_wake(&mut running.out);
        }
        let all = running.out.to_vec();
        let frame = &all[running.taken..];
        let length = u32::from_be_bytes(*frame.first_chunk()?) as usize;
        running.taken += 4 + length;
        let head =
            if <R::Response as kafka_protocol::protocol::HeaderVersion>::header_version(version) > 0 { 5 } else { 4 };
        let mut body = bytes::Bytes::copy_from_slice(&frame[4 + head..4 + length]);
        Some(R::Response::decode(&mut body, version).unwrap())
    }

    /// The endings go on as far as they can with what is durable; true if all are done with.
    fn go_on(&mut self) -> bool {
        let Running { door, waiting, .. } = self.running();
        let Waiting { events, endings, .. } = waiting;
        let now_ms = door.transactions.now().mono_ms;
        let hear = |endings: &mut Endings| events.try_iter().for_each(|event| endings.hear(event, now_ms));
        hear(endings);
        endings.go_on(door);
        hear(endings);
        endings.count() == 0
    }

    fn finish(&mut self) {
        for _ in 0..4 {
            self.sink.release();
            if self.go_on() {
                return;
            }
        }
        panic!("the endings do not end");
    }

    fn init(&mut self, id: &str) -> Result<(i64, i16), Code> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(TransactionalId(text(id))))
            .with_transaction_timeout_ms(TIMEOUT_MS);
        let answer = self.call(4, &request);
        match Code::try_from_code(answer.error_code) {
            Some(code) => Err(code),
            None => Ok((answer.producer_id.0, answer.producer_epoch)),
        }
    }

    fn add_request(id: &str, (producer, epoch): (i64, i16), name: &str, partition: i32) -> AddPartitionsToTxnRequest {
        let one = AddPartitionsToTxnTopic::default().with_name(topic(name)).with_partitions(vec![partition]);
        AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(TransactionalId(text(id)))
            .with_v3_and_below_producer_id(ProducerId(producer))
            .with_v3_and_below_producer_epoch(epoch)
            .with_v3_and_below_topics(vec![one])
    }

    fn add(&mut self, id: &str, producer: (i64, i16), name: &str, partition: i32) -> i16 {
        let answer = self.call(3, &World::add_request(id, producer, name, partition));
        answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    }

    pub(super) fn produce_request(id: Option<&str>, name: &str, partition: i32, batch: Vec<u8>) -> ProduceRequest {
        let one = PartitionProduceData::default().with_index(partition).with_records(Some(batch.into()));
        let one = TopicProduceData::default().with_name(topic(name)).with_partition_data(vec![one]);
        ProduceRequest::default()
            .with_transactional_id(id.map(|id| TransactionalId(text(id))))
            .with_acks(-1)
            .with_timeout_ms(60_000)
            .with_topic_data(vec![one])
    }

    /// One record in a transaction: the error and its offset.
    fn write(&mut self, id: &str, producer: (i64, i16), name: &str, partition: i32, sequence: i32) -> (i16, i64) {
        let batch = transactional(&[b"x"], (producer.0, producer.1, sequence));
        let answer = self.call(9, &World::produce_request(Some(id), name, partition, batch));
        let one = &answer.responses[0].partition_responses[0];
        (one.error_code, one.base_offset)
    }

    /// One record outside of any.
    pub(super) fn plain(&mut self, name: &str, partition: i32) -> i64 {
        let request = World::produce_request(None, name, partition, batch(&[b"p"], (-1, -1, -1)));
        self.call(9, &request).responses[0].partition_responses[0].base_offset
    }

    fn end(&mut self, id: &str, (producer, epoch): (i64, i16), commit: bool) -> i16 {
        self.call(3, &World::end_request(id, (producer, epoch), commit)).error_code
    }

    fn end_request(id: &str, (producer, epoch): (i64, i16), commit: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(TransactionalId(text(id)))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_committed(commit)
    }

    /// What a fetch finds: the last stable offset, the aborted list, and of each batch its offset, producer and kind.
    fn fetch(&mut self, name: &'static str, partition: i32, from: i64, isolation: i8) -> Fetched {
        let asked = fetch_request(name, partition, from, 0).with_isolation_level(isolation);
        let answer = self.call(11, &asked);
        let one = &answer.responses[0].partitions[0];
        assert_eq!(one.error_code, 0);
        let aborted = one.aborted_transactions.iter().flatten();
        let aborted = aborted.map(|of| (of.producer_id.0, of.first_offset)).collect();
        let mut batches = Vec::new();
        let mut rest: &[u8] = one.records.as_deref().unwrap_or_default();
        while !rest.is_empty() {
            let field = |at: usize| i64::from_be_bytes(rest[at..at + 8].try_into().unwrap());
            let length = 12 + i32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
            let attributes = rest[22];
            let kind = match attributes & 0x30 {
                0 => Kind::Plain,
                0x10 => Kind::Data,
                _ => Kind::Marker(rest[69] == 1, i16::from_be_bytes([rest[51], rest[52]])),
            };
            batches.push((field(0), field(43), kind));
            rest = &rest[length..];
        }
        Fetched { stable: one.last_stable_offset, aborted, batches }
    }

    /// The offsets that a client's reader of committed records gives out.
    fn committed(&mut self, name: &'static str, partition: i32) -> Vec<i64> {
        self.committed_from(name, partition, 0)
    }

    fn committed_from(&mut self, name: &'static str, partition: i32, from: i64) -> Vec<i64> {
        let Fetched { mut aborted, batches, .. } = self.fetch(name, partition, from, 1);
        aborted.sort_unstable_by_key(|(_, first)| *first);
        let (mut given, mut passed_over) = (Vec::new(), BTreeSet::new());
        let mut aborted = aborted.into_iter().peekable();
        for (offset, producer, kind) in batches {
            while let Some((producer, _)) = aborted.next_if(|(_, first)| *first <= offset) {
                passed_over.insert(producer);
            }
            match kind {
                Kind::Marker(..) => drop(passed_over.remove(&producer)),
                Kind::Data if passed_over.contains(&producer) => {}
                Kind::Data | Kind::Plain => given.push(offset),
            }
        }
        given
    }

    fn markers(&mut self, name: &'static str, partition: i32) -> Vec<(i64, Kind)> {
        let batches = self.fetch(name, partition, 0, 0).batches;
        let markers = batches.into_iter().filter(|(_, _, kind)| matches!(kind, Kind::Marker(..)));
        markers.map(|(offset, _, kind)| (offset, kind)).collect()
    }

    /// Deletes everything of a partition: where it begins now.
    fn delete_all(&mut self, name: &str, partition: i32) -> i64 {
        let one = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(-1);
        let one = DeleteRecordsTopic::default().with_name(topic(name)).with_partitions(vec![one]);
        self.call(2, &DeleteRecordsRequest::default().with_topics(vec![one])).topics[0].partitions[0].low_watermark
    }

    fn list(&mut self, name: &str, partition: i32, timestamp: i64, isolation: i8) -> i64 {
        let one = ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(timestamp);
        let one = ListOffsetsTopic::default().with_name(topic(name)).with_partitions(vec![one]);
        let request = ListOffsetsRequest::default().with_isolation_level(isolation).with_topics(vec![one]);
        self.call(2, &request).topics[0].partitions[0].offset
    }

    fn state(&mut self, id: &str) -> String {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![TransactionalId(text(id))]);
        self.call(0, &request).transaction_states[0].transaction_state.to_string()
    }

    fn add_group(&mut self, id: &str, (producer, epoch): (i64, i16), group: &str) -> i16 {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(TransactionalId(text(id)))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_group_id(GroupId(text(group)));
        self.call(3, &request).error_code
    }

    fn offset_request(id: &str, (producer, epoch): (i64, i16), group: &str, offset: i64) -> TxnOffsetCommitRequest {
        let one = TxnOffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(offset);
        let one = TxnOffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        TxnOffsetCommitRequest::default()
            .with_transactional_id(TransactionalId(text(id)))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_topics(vec![one])
    }

    fn commit_offset(&mut self, id: &str, of: (i64, i16), group: &str, offset: i64) -> i16 {
        self.call(3, &World::offset_request(id, of, group, offset)).topics[0].partitions[0].error_code
    }

    /// The committed offset of a group, or why it is not told to who wants a stable one.
    pub(super) fn offset(&mut self, group: &str) -> Result<i64, Code> {
        let one = OffsetFetchRequestTopic::default().with_name(topic("t")).with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_require_stable(true)
            .with_topics(Some(vec![one]));
        let answer = self.call(7, &request);
        if let Some(code) = Code::try_from_code(answer.error_code) {
            return Err(code);
        }
        let one = &answer.topics[0].partitions[0];
        Code::try_from_code(one.error_code).map_or(Ok(one.committed_offset), Err)
    }
}

#[derive(PartialEq, Debug)]
struct Fetched {
    stable: i64,
    aborted: Vec<(i64, i64)>,
    batches: Vec<(i64, i64, Kind)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Data,
    /// Whether it commits, and its epoch.
    Marker(bool, i16),
}

#[test]
fn readers_of_committed_records_wait_for_the_end_and_pass_over_what_is_aborted() {
    let mut world = World::new();
    let (one, two) = (world.init("a").unwrap(), world.init("b").unwrap());
    assert_eq!(world.plain("t", 0), 0);
    assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 1)));
    assert_eq!(world.plain("t", 0), 2);
    assert_eq!((world.add("b", two, "t", 0), world.write("b", two, "t", 0, 0)), (0, (0, 3)));
    // Nobody of them has ended.
    let all = world.fetch("t", 0, 0, 0);
    assert_eq!((all.stable, all.batches.len(), all.aborted), (1, 4, vec![]));
    let some = world.fetch("t", 0, 0, 1);
    assert_eq!(some, Fetched { stable: 1, aborted: vec![], batches: vec![(0, -1, Kind::Plain)] });
    assert_eq!(world.fetch("t", 0, 1, 1).batches, []);
    assert_eq!((world.list("t", 0, -1, 0), world.list("t", 0, -1, 1)), (4, 1));
    assert_eq!((world.list("t", 0, 1_000, 1), world.list("t", 0, NOW_MS + 1, 1)), (0, -1));
    // The second aborts; the first still runs.
    assert_eq!(world.end("b", two, false), 0);
    world.finish();
    assert_eq!((world.list("t", 0, -1, 0), world.list("t", 0, -1, 1)), (5, 1));
    assert_eq!(world.end("a", one, true), 0);
    world.finish();
    assert_eq!((world.list("t", 0, -1, 0), world.list("t", 0, -1, 1)), (6, 6));
    let all = world.fetch("t", 0, 0, 1);
    assert_eq!((all.stable, all.aborted), (6, vec![(two.0, 3)]));
    assert_eq!(world.markers("t", 0), [(4, Kind::Marker(false, 0)), (5, Kind::Marker(true, 0))]);
    assert_eq!(world.committed("t", 0), [0, 1, 2]);
    assert_eq!((world.state("a"), world.state("b")), ("CompleteCommit".into(), "CompleteAbort".into()));
    // The producers' numbers go on behind the markers.
    assert_eq!((world.add("b", two, "t", 0), world.write("b", two, "t", 0, 1)), (0, (0, 6)));
    assert_eq!(world.end("b", two, true), 0);
    world.finish();
    assert_eq!(world.committed("t", 0), [0, 1, 2, 6]);
    assert_eq!(world.fetch("t", 0, 5, 1).aborted, [], "what was aborted before is not told");
    // All of that is known after a restart.
    world.restart();
    assert!(world.go_on());
    assert_eq!(world.committed("t", 0), [0, 1, 2, 6]);
    assert_eq!(world.fetch("t", 0, 4, 1).aborted, [(two.0, 3)]);
}

#[test]
fn what_has_ended_is_forgotten_where_nobody_reads() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 0)));
    assert_eq!(world.end("a", one, true), 0);
    world.finish();
    let door = world.running().door.clone();
    let of = door.transactions.partitions.get(door.transactions.stream_of("t"), 0).unwrap();
    for producer in 0..10_000 {
        let mut of = of.lock();
        of.wrote(producer, 0);
        of.ended((producer, 0), true, 1);
    }
    // The marker of one more is not durable.
    of.lock().wrote(one.0, 2);
    of.lock().ended(one, true, 3);
    door.transactions.trim_partitions();
    assert_eq!(of.lock().ending_count(), 1);
    assert_eq!(of.lock().stable(2), 2);
}

#[test]
fn what_is_deleted_of_a_transaction_that_runs_holds_no_reader_back() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!(world.add("a", one, "t", 0), 0);
    (0..10).for_each(|sequence| assert_eq!(world.write("a", one, "t", 0, sequence), (0, sequence.into())));
    assert_eq!((world.list("t", 0, -1, 1), world.delete_all("t", 0)), (0, 10));
    // Readers of committed records begin where the partition does, not in front of it.
    assert_eq!((world.list("t", 0, -2, 1), world.list("t", 0, -1, 1)), (10, 10));
    assert_eq!(world.fetch("t", 0, 10, 1), Fetched { stable: 10, aborted: vec![], batches: vec![] });
    assert_eq!(world.write("a", one, "t", 0, 10), (0, 10));
    assert_eq!((world.list("t", 0, -1, 1), world.fetch("t", 0, 10, 1).stable), (10, 10), "it still runs");
    assert_eq!(world.end("a", one, true), 0);
    world.finish();
    assert_eq!((world.list("t", 0, -1, 1), world.committed_from("t", 0, 10)), (12, vec![10]));
}

#[test]
fn only_what_belongs_to_a_transaction_is_taken() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    let not_in = Code::InvalidTxnState.code();
    assert_eq!(world.write("a", one, "t", 0, 0).0, not_in, "nothing runs");
    assert_eq!(world.add("a", one, "t", 1), 0);
    assert_eq!(world.write("a", one, "t", 0, 0).0, not_in, "another partition");
    assert_eq!(world.write("b", one, "t", 1, 0).0, Code::InvalidProducerIdMapping.code());
    assert_eq!(world.write("a", (one.0, 1), "t", 1, 0).0, Code::InvalidProducerEpoch.code());
    let code = |world: &mut World, id, batch| {
        let answer = world.call(9, &World::produce_request(id, "t", 1, batch));
        answer.responses[0].partition_responses[0].error_code
    };
    let nobody = Code::TransactionalIdAuthorizationFailed.code();
    assert_eq!(code(&mut world, None, transactional(&[b"x"], (one.0, 0, 0))), nobody, "nobody's transaction");
    assert_eq!(code(&mut world, Some("a"), batch(&[b"x"], (one.0, 0, 0))), not_in, "no transactional batch");
    assert_eq!(world.write("a", one, "t", 1, 0), (0, 0));
    assert_eq!(world.write("a", one, "t", 1, 0), (0, 0), "a repetition");
    assert_eq!(world.add("a", one, "t", 2), Code::UnknownTopicOrPartition.code());
    assert_eq!(world.end("a", one, true), 0);
    assert_eq!(world.write("a", one, "t", 1, 1).0, Code::NotEnoughReplicas.code(), "it is being ended");
    world.finish();
    assert_eq!(world.write("a", one, "t", 1, 1).0, not_in);
    assert_eq!(world.committed("t", 1), [0]);
}

/// A record of a transaction that a crash forgets would be read as committed.
#[test]
fn nothing_is_written_before_its_transaction_is_durable() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    world.send(3, &World::add_request("a", one, "t", 0));
    assert!(world.answer::<AddPartitionsToTxnRequest>(3).is_none());
    let may_write = |world: &World| {
        let door = &world.running.as_ref().unwrap().door;
        let observer: Arc<dyn Observer> = Arc::new(kera_log::Arrived::default());
        let lane = door.transactions.lane(door.transactions.stream_of("t"), 0).unwrap();
        door.transactions.may_write("a", one, ("t", 0), &lane, false, &observer)
    };
    assert!(matches!(may_write(&world), MayWrite::Later(Some(_))));
    world.sink.release();
    assert!(matches!(may_write(&world), MayWrite::Yes));
    assert!(world.answer::<AddPartitionsToTxnRequest>(3).is_some());
    assert_eq!(world.write("a", one, "t", 0, 0), (0, 0));
}

/// Counts how often it is told.
#[derive(Default)]
struct Told(AtomicU32);

impl Observer for Told {
    fn advanced(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_for_the_end_of_a_transaction_is_told_of_it_once() {
    let mut world = World::new();
    let told: [Arc<Told>; 2] = Default::default();
    for (id, told) in ["first", "second"].into_iter().zip(&told) {
        let producer = world.init(id).unwrap();
        let (added, wrote) = (world.add(id, producer, "t", 0), world.write(id, producer, "t", 0, 0).0);
        assert_eq!([added, wrote, world.end(id, producer, true)], [0; 3]);
        let observer: Arc<dyn Observer> = told.clone();
        let transactions = &world.running().door.transactions;
        let lane = transactions.lane(transactions.stream_of("t"), 0).unwrap();
        let may_write = transactions.may_write(id, producer, ("t", 0), &lane, true, &observer);
        assert!(matches!(may_write, MayWrite::Later(None)));
        assert_eq!(told.0.load(Ordering::Relaxed), 0);
    }
    world.finish();
    for (id, told) in ["first", "second"].into_iter().zip(&told) {
        assert_eq!((world.state(id), told.0.load(Ordering::Relaxed)), ("CompleteCommit".to_owned(), 1));
    }
}

#[test]
fn who_begins_anew_fences_whoever_had_the_id() {
    let mut world = World::new();
    let old = world.init("a").unwrap();
    assert_eq!((world.add("a", old, "t", 0), world.write("a", old, "t", 0, 0)), (0, (0, 0)));
    assert_eq!(world.init("a"), Err(Code::ConcurrentTransactions));
    assert_eq!(world.write("a", old, "t", 0, 1).0, Code::InvalidProducerEpoch.code());
    assert_eq!(world.end("a", old, true), Code::ProducerFenced.code());
    world.finish();
    let new = world.init("a").unwrap();
    assert_eq!(new, (old.0, 2));
    assert_eq!(world.markers("t", 0), [(1, Kind::Marker(false, 1))]);
    assert!(world.committed("t", 0).is_empty());
    assert_eq!((world.add("a", new, "t", 0), world.write("a", new, "t", 0, 0)), (0, (0, 2)));
    assert_eq!(world.write("a", old, "t", 0, 1).0, Code::InvalidProducerEpoch.code());
    assert_eq!(world.end("a", new, true), 0);
    world.finish();
    assert_eq!(world.committed("t", 0), [2]);
}

#[test]
fn what_runs_too_long_is_aborted() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 0)));
    world.clock.advance_ms(TIMEOUT_MS as u64 - 1);
    world.running().door.transactions.tick();
    assert!(world.go_on());
    // A restart gives it its whole time again.
    world.restart();
    world.clock.advance_ms(TIMEOUT_MS as u64 - 1);
    world.running().door.transactions.tick();
    assert!(world.go_on());
    assert_eq!(world.list("t", 0, -1, 1), 0);
    world.clock.advance_ms(1);
    world.running().door.transactions.tick();
    world.finish();
    assert_eq!((world.list("t", 0, -1, 1), world.committed("t", 0)), (2, vec![]));
    assert_eq!(world.write("a", one, "t", 0, 1).0, Code::InvalidProducerEpoch.code());
    assert_eq!(world.end("a", one, true), Code::ProducerFenced.code());
    assert_eq!(world.init("a"), Ok((one.0, 2)));
}

/// What was decided is carried out, whatever the node dies at, and nobody reads anything else in between.
#[test]
fn a_node_that_dies_between_decision_markers_and_end_carries_out_what_was_decided() {
    for commit in [true, false] {
        let expected: &[i64] = if commit { &[0, 1] } else { &[0] };
        // How far it comes: the decision is durable, markers are written, markers are durable, the end is written but not
        // durable, all is done.
        for steps in 0..5 {
            let mut world = World::new();
            let one = world.init("a").unwrap();
            for (name, offset) in [("t", 1), ("safe", 1)] {
                assert_eq!(world.plain(name, 0), 0);
                assert_eq!(world.add("a", one, name, 0), 0);
                assert_eq!(world.write("a", one, name, 0, 0), (0, offset));
            }
            assert_eq!(world.end("a", one, commit), 0);
            for step in 0..steps {
                let is_over = world.go_on();
                assert_eq!(is_over, step >= 1, "{steps}");
                if step != 2 {
                    world.sink.release();
                }
            }
            world.restart();
            if steps < 2 {
                assert_eq!((world.committed("t", 0), world.committed("safe", 0)), (vec![0], vec![0]), "{steps}");
                assert!(world.state("a").starts_with("Prepare"));
            }
            world.finish();
            for name in ["t", "safe"] {
                assert_eq!(world.committed(name, 0), expected, "{steps} {name} {commit}");
                let markers = world.markers(name, 0);
                let are_right = markers.iter().all(|(_, kind)| *kind == Kind::Marker(commit, 0));
                assert!(!markers.is_empty() && are_right, "{steps} {name} {commit}: {markers:?}");
                assert_eq!(world.list(name, 0, -1, 1), world.list(name, 0, -1, 0));
            }
            // The producer goes on, and what it does next is not mistaken for what it did.
            assert_eq!(world.add("a", one, "t", 0), 0);
            let (error, offset) = world.write("a", one, "t", 0, 1);
            assert_eq!(error, 0);
            assert_eq!(world.end("a", one, true), 0);
            world.restart();
            world.finish();
            assert_eq!(world.committed("t", 0), [expected, &[offset]].concat(), "{steps} {commit}");
        }
    }
}

#[test]
fn a_transaction_that_runs_goes_on_after_a_restart() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 0)));
    world.restart();
    assert_eq!(world.list("t", 0, -1, 1), 0);
    assert_eq!(world.write("a", one, "t", 0, 1), (0, 1));
    assert_eq!(world.end("a", one, false), 0);
    world.finish();
    assert_eq!((world.fetch("t", 0, 0, 1).aborted, world.committed("t", 0)), (vec![(one.0, 0)], vec![]));
    world.sink.release();
    world.restart();
    assert_eq!((world.fetch("t", 0, 0, 1).aborted, world.committed("t", 0)), (vec![(one.0, 0)], vec![]));
}

#[test]
fn an_answer_leaves_when_what_it_says_is_durable_and_readers_wait_for_the_markers() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!((world.add("a", one, "safe", 0), world.write("a", one, "safe", 0, 0)), (0, (0, 0)));
    world.send(3, &World::end_request("a", one, true));
    assert!(world.answer::<EndTxnRequest>(3).is_none());
    assert!(!world.go_on());
    let transactions = &world.running().door.transactions;
    let lane = transactions.lane(transactions.stream_of("safe"), 0).unwrap();
    assert_eq!(lane.stats().next_ordinal, 1, "the decision is not durable, so there is no marker");
    // A fetch waits at the transaction and is woken by its end. It is on another connection.
    let (door, waker) = (world.running().door.clone(), SessionWaker::detached());
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    let mut reader = KafkaSessions(door).open(peer, waker.clone());
    let mut out = Outbox::new(1 << 20);
    let waits = frame(ApiKey::Fetch, 4, 1, &fetch_request("safe", 0, 0, 60_000).with_isolation_level(1));
    assert_eq!(reader.on_frame(&FrameHeader::default(), &waits, &mut out), Flow::Done);
    world.sink.release();
    assert_eq!(world.answer::<EndTxnRequest>(3).unwrap().error_code, 0);
    assert!(!world.go_on());
    while waker.take() {
        reader.on_wake(&mut out);
    }
    assert!(out.to_vec().is_empty(), "the marker is not durable");
    world.sink.release();
    assert!(waker.take());
    reader.on_wake(&mut out);
    assert!(!out.to_vec().is_empty());
    assert!(world.go_on());
    assert_eq!(world.committed("safe", 0), [0]);
}

#[test]
fn offsets_of_a_transaction_count_when_it_commits() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    let outside = Code::InvalidTxnState.code();
    assert_eq!(world.commit_offset("a", one, "g", 5), outside);
    for (round, commit, expected) in [(0, true, 5), (1, false, 5), (2, true, 7)] {
        assert_eq!(world.add_group("a", one, "g"), 0);
        assert_eq!(world.commit_offset("a", one, "other", 5), outside);
        assert_eq!(world.commit_offset("a", (one.0, 9), "g", 5), Code::InvalidProducerEpoch.code());
        assert_eq!(world.commit_offset("a", one, "g", 5 + round), 0);
        assert_eq!(world.offset("g"), Err(Code::UnstableOffsetCommit));
        world.restart();
        assert_eq!(world.offset("g"), Err(Code::UnstableOffsetCommit));
        assert_eq!(world.end("a", one, commit), 0);
        world.restart();
        assert_eq!(world.offset("g"), Err(Code::UnstableOffsetCommit));
        assert_eq!(world.commit_offset("a", one, "g", 9), Code::ConcurrentTransactions.code());
        world.finish();
        assert_eq!(world.offset("g"), Ok(expected));
    }
}

impl World {
    /// The topic is deleted and made again under its name.
    fn make_again(&mut self, name: &str) {
        let delete = DeleteTopicsRequest::default().with_topic_names(vec![topic(name)]).with_timeout_ms(1_000);
        assert_eq!(self.call(4, &delete).responses[0].error_code, 0);
        let again = CreatableTopic::default().with_name(topic(name)).with_num_partitions(1).with_replication_factor(1);
        let again = CreateTopicsRequest::default().with_topics(vec![again]).with_timeout_ms(1_000);
        assert_eq!(self.call(5, &again).topics[0].error_code, 0);
    }

    /// As [`write`](World::write), where that waits until something is recorded.
    fn write_later(&mut self, id: &str, of: (i64, i16), name: &str, sequence: i32) -> (i16, i64) {
        let batch = transactional(&[b"x"], (of.0, of.1, sequence));
        let bytes = frame(ApiKey::Produce, 9, 7, &World::produce_request(Some(id), name, 0, batch));
        let running = self.running();
        assert_eq!(running.session.on_frame(&FrameHeader::default(), &bytes, &mut running.out), Flow::Blocked);
        self.sink.release();
        let running = self.running();
        assert_eq!(running.session.on_frame(&FrameHeader::default(), &bytes, &mut running.out), Flow::Done);
        let answer = self.answer::<ProduceRequest>(9).expect("it waits for no log");
        let one = &answer.responses[0].partition_responses[0];
        (one.error_code, one.base_offset)
    }
}

#[test]
fn a_topic_that_is_made_again_has_nothing_of_the_one_before() {
    let mut world = World::new();
    let one = world.init("a").unwrap();
    assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 0)));
    world.make_again("t");
    world.restart();
    assert_eq!(world.end("a", one, true), 0);
    world.finish();
    assert_eq!((world.markers("t", 0), world.plain("t", 0)), (vec![], 0));
    world.running().door.transactions.trim_partitions();
}

/// A transaction has partitions by their names, as in Kafka: the producer, which has added it once, was refused for as long as the transaction ran.
#[test]
fn a_topic_that_is_made_again_has_the_place_of_the_one_before_in_what_runs() {
    for (adds_again, commit) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 0)), (0, (0, 0)));
        world.make_again("t");
        if adds_again {
            assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 1)), (0, (0, 0)));
        } else {
            assert_eq!(world.write_later("a", one, "t", 1), (0, 0));
        }
        assert_eq!(world.write("a", one, "t", 0, 2), (0, 1));
        world.restart();
        assert_eq!(world.fetch("t", 0, 0, 1).stable, 0, "it runs");
        assert_eq!(world.end("a", one, commit), 0);
        world.finish();
        assert_eq!(world.markers("t", 0), [(2, Kind::Marker(commit, one.1))]);
        assert_eq!(world.committed("t", 0), if commit { vec![0, 1] } else { vec![] });
        // The producer goes on.
        assert_eq!((world.add("a", one, "t", 0), world.write("a", one, "t", 0, 3)), (0, (0, 3)));
        assert_eq!(world.end("a", one, false), 0);
        world.finish();
        world.running().door.transactions.trim_partitions();
    }
}

#[test]
fn the_log_is_written_anew_and_says_the_same() {
    let mut world = World::new();
    let (one, two) = (world.init("a").unwrap(), world.init("b").unwrap());
    for (id, producer, name) in [("a", one, "t"), ("b", two, "u")] {
        assert_eq!((world.add(id, producer, name, 0), world.write(id, producer, name, 0, 0)), (0, (0, 0)));
    }
    assert_eq!(world.end("a", one, false), 0);
    world.finish();
    let door = world.running().door.clone();
    let (before, copied) = door.transactions.copy(0);
    assert!(before && !door.transactions.copy(0).0, "one at a time");
    assert_eq!(copied, 3, "two ids and a range");
    drop(door);
    world.sink.release();
    world.running().door.transactions.tick();
    world.restart();
    assert_eq!((world.state("a"), world.state("b")), ("CompleteAbort".into(), "Ongoing".into()));
    assert_eq!((world.committed("t", 0), world.list("u", 0, -1, 1)), (vec![], 0));
}

/// Each of them fits into a chunk, and not all together.
#[test]
fn transactions_with_many_groups_are_written_anew_too() {
    let mut world = World::new();
    let producer = world.init("a").unwrap();
    assert_eq!(world.add("a", producer, "t", 0), 0);
    let door = world.running().door.clone();
    let own = door.transactions.part(0);
    let ids = ["b", "c", "d", "e", "f"];
    let known = own.state.lock().all.known("a").cloned().unwrap();
    for id in ids {
        let groups = (0..1_000).map(|number| format!("{number:01024}")).collect();
        own.state.lock().all.replay(id.to_owned(), Some(Transaction { groups, ..known.clone() }));
    }
    assert_eq!(door.transactions.copy(0), (true, 6));
    drop((door, own));
    world.sink.release();
    world.running().door.transactions.tick();
    world.restart();
    ids.iter().for_each(|id| assert_eq!(world.state(id), "Ongoing"));
    let part = world.running().door.transactions.part(0);
    assert_eq!(part.state.lock().all.known("f").unwrap().groups.len(), 1_000);
}

#[test]
fn a_copy_that_broke_off_is_not_begun_again_at_once() {
    let mut world = World::new();
    world.init("a").unwrap();
    let door = world.running().door.clone();
    let begins = || door.transactions.log().begin_copy(0).is_some();
    assert!(begins() && !begins());
    world.clock.advance_ms(9_999);
    assert!(!begins());
    world.clock.advance_ms(1);
    assert!(begins());
}

/// Partitions with durability `process` lose their end with the machine's power; what is known of their transactions does not.
#[test]
fn a_partition_that_has_lost_a_marker_gets_another() {
    let mut world = World::new();
    let (one, two) = (world.init("a").unwrap(), world.init("b").unwrap());
    for sequence in 0..2 {
        assert_eq!(world.add("a", one, "t", 0), 0);
        assert_eq!(world.write("a", one, "t", 0, sequence), (0, i64::from(sequence)));
    }
    assert_eq!(world.end("a", one, true), 0);
    world.finish();
    // As if that had been aborted, and more been aborted behind what is left.
    let transactions = &world.running().door.transactions;
    let stream = transactions.stream_of("t");
    let range = |producer_id, first_offset, marker_offset| {
        let epoch = 4;
        let stable_offset = marker_offset + 1;
        let partition = 0;
        Entry::Aborted(AbortedRange {
            stream,
            partition,
            producer_id,
            first_offset,
            marker_offset,
            stable_offset,
            epoch,
        })
    };
    transactions.log().append(&[range(one.0, 1, 3), range(one.0, 5, 7), range(two.0, 4, 6)]).unwrap();
    world.sink.release();
    for _ in 0..2 {
        world.restart();
        world.sink.release();
        assert_eq!(world.markers("t", 0), [(2, Kind::Marker(true, 0)), (3, Kind::Marker(false, 4))]);
        assert_eq!(world.fetch("t", 0, 3, 1).aborted, [(one.0, 1)]);
        assert_eq!(world.fetch("t", 0, 4, 1).aborted, []);
    }
}

#[test]
fn transactions_are_listed() {
    let mut world = World::new();
    let (one, _) = (world.init("a").unwrap(), world.init("b").unwrap());
    assert_eq!(world.add("a", one, "t", 0), 0);
    let mut found = BTreeMap::new();
    for version in 0..2 {
        let mut request = ListTransactionsRequest::default();
        if version == 1 {
            request.duration_filter = -1;
        }
        let listed = world.call(version, &request).transaction_states;
        found.extend(listed.iter().map(|of| (of.transactional_id.to_string(), of.transaction_state.to_string())));
    }
    assert_eq!(found, BTreeMap::from([("a".into(), "Ongoing".into()), ("b".into(), "Empty".into())]));
}

/// Version 2 of transactions (KIP-890): what is written adds its partition, and every end counts an epoch.
mod counted {
    use super::super::limits::logged;
    use super::*;

    impl World {
        /// One record, which adds its partition to the transaction.
        fn write_and_add(&mut self, id: &str, of: (i64, i16), name: &str, partition: i32, sequence: i32) -> (i16, i64) {
            let batch = transactional(&[b"x"], (of.0, of.1, sequence));
            let request = World::produce_request(Some(id), name, partition, batch);
            let bytes = frame(ApiKey::Produce, 12, 7, &request);
            for _ in 0..9 {
                let running = self.running();
                if running.session.on_frame(&FrameHeader::default(), &bytes, &mut running.out) == Flow::Done {
                    break;
                }
                self.sink.release();
                self.go_on();
            }
            let answer = loop {
                if let Some(answer) = self.answer::<ProduceRequest>(12) {
                    break answer;
                }
                self.sink.release();
            };
            let one = &answer.responses[0].partition_responses[0];
            (one.error_code, one.base_offset)
        }

        /// Offsets of a group, which adds it to the transaction.
        fn commit_offset_and_add(&mut self, id: &str, of: (i64, i16), group: &str, offset: i64) -> i16 {
            self.call(5, &World::offset_request(id, of, group, offset)).topics[0].partitions[0].error_code
        }

        fn end_and_count(&mut self, id: &str, of: (i64, i16), commit: bool) -> Result<(i64, i16), Code> {
            let answer = self.call(5, &World::end_request(id, of, commit));
            match Code::try_from_code(answer.error_code) {
                Some(code) => Err(code),
                None => Ok((answer.producer_id.0, answer.producer_epoch)),
            }
        }
    }

    #[test]
    fn what_is_written_adds_its_partition_and_is_there_only_when_that_is_durable() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        let batch = transactional(&[b"x"], (one.0, one.1, 0));
        let bytes = frame(ApiKey::Produce, 12, 7, &World::produce_request(Some("a"), "t", 0, batch));
        let running = world.running();
        let flow = running.session.on_frame(&FrameHeader::default(), &bytes, &mut running.out);
        assert_eq!(flow, Flow::Blocked, "a crash could forget the transaction and keep the record");
        assert_eq!(
            world
                .broker
                .log()
                .stream(world.running.as_ref().unwrap().door.transactions.stream_of("t"))
                .unwrap()
                .streamlet(kera_format::StreamletId(0))
                .unwrap()
                .lane(kera_format::LaneId(0))
                .unwrap()
                .stats()
                .next_ordinal,
            0
        );
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        assert_eq!(world.state("a"), "Ongoing");
        assert_eq!(world.write_and_add("a", one, "t", 9, 0).0, Code::UnknownTopicOrPartition.code());
        assert_eq!(world.committed("t", 0), [0_i64; 0]);
        let next = world.end_and_count("a", one, true).unwrap();
        assert_eq!(next, (one.0, one.1 + 1));
        // The transaction before is still being ended: the next one waits for that and no longer.
        assert_eq!(world.write_and_add("a", next, "t", 0, 0), (0, 2));
        assert_eq!(world.committed("t", 0), [0]);
        assert_eq!(world.markers("t", 0), [(1, Kind::Marker(true, next.1))]);
        assert_eq!(world.end_and_count("a", next, false).map(|of| of.1), Ok(next.1 + 1));
        world.finish();
        assert_eq!(world.committed("t", 0), [0]);
    }

    /// One after the other each would wait for the record of the one before, and be recorded with all of them.
    #[test]
    fn partitions_of_one_request_are_added_at_once() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        world.sink.release();
        let batch = || transactional(&[b"x"], (one.0, one.1, 0));
        let data = |at: i32| PartitionProduceData::default().with_index(at).with_records(Some(batch().into()));
        let mut request = World::produce_request(Some("a"), "t", 0, batch());
        request.topic_data[0].partition_data.push(data(1));
        let other = TopicProduceData::default().with_name(topic("u")).with_partition_data(vec![data(0), data(1)]);
        request.topic_data.push(other);
        let bytes = frame(ApiKey::Produce, 12, 7, &request);
        let offer = |world: &mut World| {
            let running = world.running();
            running.session.on_frame(&FrameHeader::default(), &bytes, &mut running.out)
        };
        assert_eq!(offer(&mut world), Flow::Blocked);
        assert_eq!(world.sink.state.lock().pending.len(), 2, "the first, and with it as many as are added at a time");
        world.sink.release();
        assert_eq!(offer(&mut world), Flow::Blocked);
        assert_eq!(world.sink.state.lock().pending.len(), 1, "the one behind those");
        world.sink.release();
        assert_eq!(offer(&mut world), Flow::Done);
        assert_eq!(world.sink.state.lock().pending.len(), 0, "nothing more is recorded");
        let answer = world.answer::<ProduceRequest>(12).expect("it is answered");
        let told = answer.responses.iter().flat_map(|topic| &topic.partition_responses);
        assert_eq!(told.map(|of| (of.error_code, of.base_offset)).collect::<Vec<_>>(), [(0, 0); 4]);
        assert_eq!(world.end_and_count("a", one, true).map(|of| of.1), Ok(one.1 + 1));
        world.finish();
        assert_eq!(["t", "u"].map(|name| [0, 1].map(|at| world.markers(name, at).len())), [[1, 1], [1, 1]]);
    }

    /// Who produces has asked a partition's leader, and knows of no coordinator there.
    #[test]
    fn who_produces_while_nothing_can_be_recorded_is_told_to_try_again() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        world.sink.state.lock().is_full = true;
        assert_eq!(world.add("a", one, "t", 0), Code::CoordinatorNotAvailable.code());
        assert_eq!(world.write_and_add("a", one, "t", 0, 0).0, Code::NotEnoughReplicas.code());
        world.sink.state.lock().is_full = false;
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        for code in [Code::CoordinatorLoadInProgress, Code::NotCoordinator, Code::ConcurrentTransactions] {
            assert_eq!(produce_error(code), Code::NotEnoughReplicas);
        }
    }

    /// As many lines take what room there is left.
    #[test]
    fn that_nothing_can_be_recorded_is_not_said_for_each_that_asks() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        world.sink.state.lock().is_full = true;
        let mut lines = logged(|| {
            for _ in 0..1_000 {
                assert_eq!(world.add("a", one, "t", 0), Code::CoordinatorNotAvailable.code());
            }
        });
        lines.retain(|line| line.contains("nothing can be recorded"));
        assert!((1..500).contains(&lines.len()), "{}", lines.len());
    }

    #[test]
    fn a_topic_that_is_made_again_is_added_by_what_is_written_to_it() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        world.make_again("t");
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        let two = world.end_and_count("a", one, true).unwrap();
        world.finish();
        assert_eq!((world.committed("t", 0), world.markers("t", 0)), (vec![0], vec![(1, Kind::Marker(true, two.1))]));
    }

    #[test]
    fn a_late_batch_is_in_no_later_transaction() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        let next = world.end_and_count("a", one, true).unwrap();
        world.finish();
        let fenced = Code::InvalidProducerEpoch.code();
        assert_eq!(world.write_and_add("a", one, "t", 0, 1).0, fenced);
        // Outside of transactions, where nobody asks the coordinator, the lane knows it from the marker.
        let late = World::produce_request(None, "t", 0, batch(&[b"z"], (one.0, one.1, 1)));
        assert_eq!(world.call(9, &late).responses[0].partition_responses[0].error_code, fenced);
        let missing = Code::OutOfOrderSequenceNumber.code();
        assert_eq!(world.write_and_add("a", next, "t", 0, 1).0, missing, "its first is on its way");
        assert_eq!(world.write_and_add("a", next, "t", 0, 0), (0, 2));
        assert_eq!(world.write_and_add("a", next, "t", 0, 1), (0, 3));
        assert_eq!(world.write_and_add("a", one, "t", 0, 1).0, fenced, "also while one runs");
        assert_eq!(world.end_and_count("a", next, true).map(|of| of.1), Ok(2));
    }

    #[test]
    fn an_end_is_told_again_and_is_no_other_end() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.end_and_count("a", one, true), Err(Code::InvalidTxnState), "nothing to commit");
        let two = world.end_and_count("a", one, false).unwrap();
        assert_eq!((two.0, two.1), (one.0, one.1 + 1), "an abort of nothing counts, too");
        assert_eq!(world.end_and_count("a", one, false), Ok(two));
        assert_eq!(world.write_and_add("a", two, "t", 0, 0), (0, 0));
        assert_eq!(world.end_and_count("a", one, false), Err(Code::ProducerFenced), "one runs already");
        let three = world.end_and_count("a", two, true).unwrap();
        assert_eq!(world.end_and_count("a", two, true), Err(Code::ConcurrentTransactions));
        assert_eq!(world.end_and_count("a", two, false), Err(Code::ConcurrentTransactions));
        world.finish();
        assert_eq!(world.end_and_count("a", two, true), Ok(three));
        world.restart();
        assert_eq!(world.end_and_count("a", two, true), Ok(three), "also by another node");
        assert_eq!(world.end_and_count("a", two, false), Err(Code::InvalidTxnState));
        assert_eq!(world.end_and_count("a", (9, 9), false), Err(Code::InvalidProducerIdMapping));
    }

    /// A producer that commits, begins again at once and gives up: its markers may be late.
    #[test]
    fn a_transaction_can_be_given_up_while_the_one_before_is_ended() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        let two = world.end_and_count("a", one, true).unwrap();
        assert_eq!(world.commit_offset_and_add("a", two, "g", 7), Code::ConcurrentTransactions.code());
        assert_eq!(world.end_and_count("a", two, false), Err(Code::ConcurrentTransactions), "it is no stranger");
        world.finish();
        let three = world.end_and_count("a", two, false).unwrap();
        assert_eq!((three.0, three.1), (two.0, two.1 + 1));
        assert_eq!(world.write_and_add("a", three, "t", 0, 0), (0, 2));
        assert!(world.end_and_count("a", three, true).is_ok());
        world.finish();
        assert_eq!(world.committed("t", 0), [0, 2]);
    }

    #[test]
    fn a_producer_whose_time_was_up_aborts_and_goes_on() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.write_and_add("a", one, "t", 0, 0), (0, 0));
        world.clock.advance_ms(TIMEOUT_MS as u64);
        world.running().door.transactions.tick();
        assert_eq!(world.end_and_count("a", one, true), Err(Code::ConcurrentTransactions));
        world.finish();
        assert_eq!(world.end_and_count("a", one, true), Err(Code::ProducerFenced), "it was aborted");
        assert_eq!(world.write_and_add("a", one, "t", 0, 1).0, Code::InvalidProducerEpoch.code());
        let two = world.end_and_count("a", one, false).unwrap();
        assert_eq!((two.0, two.1), (one.0, one.1 + 1));
        assert_eq!(world.write_and_add("a", two, "t", 0, 0), (0, 2));
        // Somebody else has begun: then it is out.
        while world.init("a").is_err() {
            world.finish();
        }
        assert_eq!(world.end_and_count("a", two, false), Err(Code::ProducerFenced));
        assert_eq!(world.committed("t", 0), [0_i64; 0]);
    }

    #[test]
    fn a_producer_without_epochs_left_gets_another_id() {
        let mut world = World::new();
        let (id, _) = world.init("a").unwrap();
        let mut of = (id, 0);
        while of.1 < i16::MAX - 1 {
            of = world.end_and_count("a", of, false).unwrap();
        }
        assert_eq!(of, (id, i16::MAX - 1));
        assert_eq!(world.write_and_add("a", of, "t", 0, 0), (0, 0));
        assert_eq!(world.init("z").map(|of| of.1), Ok(0), "an id is in stock, or will be");
        let next = loop {
            match world.end_and_count("a", of, true) {
                Ok(next) => break next,
                Err(code) => assert_eq!(code, Code::CoordinatorNotAvailable),
            }
            world.running().door.transactions.stock_wanted();
        };
        assert_eq!((next.0 != id, next.1), (true, 0));
        assert_eq!(world.end_and_count("a", of, true), Err(Code::ConcurrentTransactions));
        // A node that dies now ends it under the old id.
        world.restart();
        world.finish();
        assert_eq!(world.markers("t", 0), [(1, Kind::Marker(true, i16::MAX))]);
        assert_eq!(world.committed("t", 0), [0]);
        assert_eq!(world.end_and_count("a", of, true), Ok(next));
        assert_eq!(world.write_and_add("a", next, "t", 0, 0), (0, 2));
        assert_eq!(world.end_and_count("a", next, true), Ok((next.0, 1)));
        world.finish();
        assert_eq!(world.committed("t", 0), [0, 2]);
    }

    #[test]
    fn offsets_add_their_group() {
        let mut world = World::new();
        let one = world.init("a").unwrap();
        assert_eq!(world.commit_offset("a", one, "g", 7), Code::InvalidTxnState.code());
        let request = World::offset_request("a", one, "g", 7);
        assert_eq!(world.call(4, &request).topics[0].partitions[0].error_code, Code::TransactionAbortable.code());
        assert_eq!(world.commit_offset_and_add("a", one, "g", 7), 0);
        assert_eq!(world.offset("g"), Err(Code::UnstableOffsetCommit));
        assert!(world.end_and_count("a", one, true).is_ok());
        world.finish();
        assert_eq!(world.offset("g"), Ok(7));
    }
}

/// Who connects, asks and is gone again and again would fill the memory while one command waits for a leader or for the disk.
#[test]
fn commands_that_wait_are_bounded_by_their_bytes_and_taken_again_when_they_had_their_turn() {
    let mut world = World::new();
    let door = world.running().door.clone();
    let config = CreatableTopicConfig::default().with_name(text("a")).with_value(Some(text(&"x".repeat(3 << 20))));
    let one = CreatableTopic::default().with_name(topic("new")).with_num_partitions(1).with_replication_factor(1);
    let large = CreateTopicsRequest::default().with_topics(vec![one.clone().with_configs(vec![config])]);
    let (bytes, mut taken) = (frame(ApiKey::CreateTopics, 5, 7, &large), 0);
    let why = loop {
        let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
        let mut gone = KafkaSessions(door.clone()).open(peer, SessionWaker::detached());
        match gone.on_frame(&FrameHeader::default(), &bytes, &mut Outbox::new(1 << 20)) {
            Flow::Close(why) => break why,
            flow => assert_eq!(flow, Flow::Done),
        }
        taken += bytes.len();
        assert!(taken <= 64 << 20, "{taken} bytes wait");
    };
    assert!(why.contains("bytes of commands wait"), "{why}");
    assert!(world.answer::<CreateTopicsRequest>(5).is_none(), "nobody has asked on this connection");
    let other = CreateTopicsRequest::default().with_topics(vec![one.with_name(topic("other"))]).with_timeout_ms(1_000);
    assert_eq!(world.call(5, &other).topics[0].error_code, 0);
}
