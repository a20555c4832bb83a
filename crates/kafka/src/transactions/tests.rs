//! Transactions as producers see them, and by chance: producers that begin, write, end, are fenced and forgotten, and nodes
//! that die with what was not durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeTransactionsRequest, EndTxnRequest, GroupId,
    InitProducerIdRequest, ListTransactionsRequest, ProducerId, TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kera_format::chunk::ChunkTarget;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Entry, Touched, Transaction, TransactionState as State};
use kera_format::{ChunkBuilder, ChunkView, Compression, StreamId};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::{Claim, Ending, Places, ProducerIds, Reply, TransactionConfig, TransactionJournal, Transactions};
use crate::groups::{AppendFailed, Mark, Now};

#[derive(Default)]
struct Kept {
    entries: Vec<Entry>,
    is_full: bool,
}

/// What is recorded says the same when it is read.
fn check_readable(entry: &Entry) {
    let mut chunk = ChunkBuilder::default();
    entry.encode(&mut chunk);
    let bytes = chunk.seal(&ChunkTarget::default(), Compression::None).expect("a chunk");
    let chunk = ChunkView::parse(&bytes).expect("whole");
    let records: Vec<_> = chunk.records().map(|record| Entry::decode(&record.expect("a record"))).collect();
    assert_eq!(records, [Ok(entry.clone())]);
}

#[derive(Clone, Default)]
struct MemoryJournal(Arc<Mutex<Kept>>);

impl TransactionJournal for MemoryJournal {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        let mut kept = self.0.lock();
        if kept.is_full {
            return Err(AppendFailed);
        }
        entries.iter().for_each(check_readable);
        kept.entries.extend_from_slice(entries);
        Ok(Mark(kept.entries.len() as u64))
    }
}

#[derive(Clone)]
struct Ids(Arc<Mutex<i64>>);

impl ProducerIds for Ids {
    fn next(&mut self) -> Option<i64> {
        let mut last = self.0.lock();
        *last += 1;
        Some(*last)
    }
}

/// Topics `orders` and `items` of four partitions each, every one of which ends at this offset.
#[derive(Clone)]
struct TwoTopics(Arc<Mutex<u64>>);

const ORDERS: StreamId = StreamId(6);

impl Places for TwoTopics {
    fn place(&self, topic: &str, partition: i32) -> Option<Touched> {
        let is_there = ["orders", "items"].contains(&topic) && (0..4).contains(&partition);
        is_there.then(|| Touched { stream: StreamId(topic.len() as u64), from_offset: *self.0.lock() })
    }
}

struct World {
    transactions: Transactions,
    journal: MemoryJournal,
    ids: Ids,
    topics: TwoTopics,
    now: Now,
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn id(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

impl World {
    fn new() -> World {
        let (journal, ids) = (MemoryJournal::default(), Ids(Arc::new(Mutex::new(100))));
        let topics = TwoTopics(Arc::new(Mutex::new(10)));
        let transactions = World::open(&journal, &ids, &topics);
        let wall_ms = 1_700_000_000_000;
        let now = Now { mono_ms: 1_000, wall_ms, believed: wall_ms.into() };
        let mut world = World { transactions, journal, ids, topics, now };
        world.transactions.start(world.now);
        world
    }

    fn open(journal: &MemoryJournal, ids: &Ids, topics: &TwoTopics) -> Transactions {
        let config = TransactionConfig { ids_max: 3, ..TransactionConfig::default() };
        Transactions::new(config, Box::new(journal.clone()), Box::new(ids.clone()), Arc::new(topics.clone()))
    }

    /// A node that has read the journal.
    fn load(&mut self) {
        self.transactions = World::open(&self.journal, &self.ids, &self.topics);
        for entry in self.journal.0.lock().entries.clone() {
            if let Entry::Transaction(id, transaction) = entry {
                self.transactions.replay(id, transaction);
            }
        }
    }

    fn restart(&mut self) {
        self.load();
        self.transactions.start(self.now);
    }

    fn check_produce(&self, name: &str, producer: (i64, i16), of: &OffsetKey) -> Result<(), Code> {
        self.transactions.check_produce(name, producer, of, ORDERS).map(drop)
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms as i64;
        self.now.believed = self.now.wall_ms.into();
        while self.transactions.next_deadline_ms().is_some_and(|at_ms| at_ms <= self.now.mono_ms) {
            self.transactions.tick(self.now);
        }
    }

    fn init_as(&mut self, name: &str, producer: i64, epoch: i16) -> Result<(i64, i16), Code> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(id(name)))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch);
        let Reply { after, response } = self.transactions.init(self.now, 4, &request);
        self.check(after);
        match Code::try_from_code(response.error_code) {
            Some(code) => Err(code),
            None => Ok((response.producer_id.0, response.producer_epoch)),
        }
    }

    fn init(&mut self, name: &str) -> Result<(i64, i16), Code> {
        self.init_as(name, -1, -1)
    }

    fn add(&mut self, name: &str, (producer, epoch): (i64, i16), topic: &str, partition: i32) -> i16 {
        let topic =
            AddPartitionsToTxnTopic::default().with_name(TopicName(text(topic))).with_partitions(vec![partition]);
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(id(name))
            .with_v3_and_below_producer_id(ProducerId(producer))
            .with_v3_and_below_producer_epoch(epoch)
            .with_v3_and_below_topics(vec![topic]);
        let Reply { after, response } = self.transactions.add_partitions(self.now, 3, &request);
        self.check(after);
        response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    }

    fn add_group(&mut self, name: &str, (producer, epoch): (i64, i16), group: &str) -> i16 {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(id(name))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_group_id(GroupId(text(group)));
        self.transactions.add_offsets(self.now, 3, &request).response.error_code
    }

    fn end(&mut self, name: &str, (producer, epoch): (i64, i16), commit: bool) -> i16 {
        self.end_reply(name, (producer, epoch), commit).1
    }

    fn end_reply(&mut self, name: &str, (producer, epoch): (i64, i16), commit: bool) -> (Option<Mark>, i16) {
        let request = EndTxnRequest::default()
            .with_transactional_id(id(name))
            .with_producer_id(ProducerId(producer))
            .with_producer_epoch(epoch)
            .with_committed(commit);
        let Reply { after, response } = self.transactions.end(self.now, 3, &request);
        self.check(after);
        (after, response.error_code)
    }

    /// The same of the second version of transactions: the id and the epoch to go on under.
    fn end_and_count(&mut self, name: &str, of: (i64, i16), commit: bool) -> Result<(i64, i16), Code> {
        let request = EndTxnRequest::default()
            .with_transactional_id(id(name))
            .with_producer_id(ProducerId(of.0))
            .with_producer_epoch(of.1)
            .with_committed(commit);
        let Reply { after, response } = self.transactions.end(self.now, 5, &request);
        self.check(after);
        match Code::try_from_code(response.error_code) {
            Some(code) => Err(code),
            None => Ok((response.producer_id.0, response.producer_epoch)),
        }
    }

    fn check(&self, after: Option<Mark>) {
        assert!(after.is_none_or(|mark| mark.0 <= self.journal.0.lock().entries.len() as u64));
    }

    /// The one transaction that is to be ended, and that is done.
    fn finish(&mut self) -> Ending {
        let mut endings = self.transactions.take_endings();
        assert_eq!(endings.len(), 1);
        let ending = endings.remove(0);
        assert_eq!(self.transactions.ended(self.now, &ending, &[]), Ok(true));
        ending
    }

    fn state(&self, name: &str) -> String {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id(name)]);
        self.transactions.describe(&request).transaction_states[0].transaction_state.to_string()
    }
}

fn orders(partition: i32) -> OffsetKey {
    OffsetKey { topic: "orders".into(), partition }
}

#[test]
fn nothing_begins_while_too_much_is_remembered_of_what_was_aborted() {
    let mut world = World::new();
    let (one, two) = (world.init("a").unwrap(), world.init("b").unwrap());
    assert_eq!(world.add("a", one, "orders", 1), 0);
    world.transactions.count_aborted(2 << 20);
    assert_eq!(world.add("b", two, "orders", 1), Code::PolicyViolation.code());
    assert_eq!(world.add("a", one, "orders", 2), 0, "what runs goes on");
    assert_eq!(world.end("a", one, false), 0);
    world.transactions.count_aborted((2 << 20) - 1);
    assert_eq!(world.add("b", two, "orders", 1), 0);
}

/// Each record names all partitions of the transaction.
#[test]
fn what_is_claimed_at_a_time_is_recorded_at_a_time() {
    let mut world = World::new();
    let producer = world.init("a").unwrap();
    let claim = |partition: i32| {
        let touched = Touched { stream: ORDERS, from_offset: partition as u64 };
        Claim { producer, of: orders(partition), touched, adds: true }
    };
    let records = |world: &World| world.journal.0.lock().entries.len();
    let before = records(&world);
    let mut claims: Vec<Claim> = (0..9_999).map(claim).collect();
    claims.push(Claim { producer: (producer.0, producer.1 + 1), ..claim(3) });
    let told = world.transactions.claim(world.now, "a", &claims);
    let is_open = |(told, claim): (&Result<(Option<Mark>, u64), Code>, &Claim)| {
        told.is_ok_and(|(mark, from)| mark == Some(Mark(before as u64 + 1)) && from == claim.touched.from_offset)
    };
    assert!(told.iter().zip(&claims).take(9_999).all(is_open));
    assert_eq!((told[9_999], records(&world) - before), (Err(Code::ProducerFenced), 1));
    // Again they are known; and of more than there may be those are in that come first.
    let again = world.transactions.claim(world.now, "a", &claims[..7]);
    assert!(again.iter().zip(&claims).all(is_open) && records(&world) - before == 1);
    let beyond: Vec<Claim> = (10_000..10_003).map(claim).collect();
    let told: Vec<_> = world.transactions.claim(world.now, "a", &beyond).iter().map(|told| told.map(drop)).collect();
    assert_eq!(told, [Ok(()), Err(Code::PolicyViolation), Err(Code::PolicyViolation)]);
    // Where nothing is recorded nothing is granted.
    world.journal.0.lock().is_full = true;
    let other = world.transactions.claim(
        world.now,
        "a",
        &[Claim { touched: Touched { from_offset: 77, ..claims[0].touched }, ..claim(0) }, claim(1)],
    );
    assert!(other.iter().all(|told| *told == Err(Code::CoordinatorNotAvailable)), "{other:?}");
}

#[test]
fn a_transaction_runs_from_its_first_partition_to_its_markers() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    assert_eq!((producer, world.state("a").as_str()), ((101, 0), "Empty"));
    assert_eq!(world.check_produce("a", (101, 0), &orders(1)), Err(Code::InvalidTxnState));
    assert_eq!(world.add("a", producer, "orders", 1), 0);
    assert_eq!(world.add_group("a", producer, "readers"), 0);
    assert_eq!(world.check_produce("a", (101, 0), &orders(1)), Ok(()));
    assert_eq!(world.check_produce("a", (101, 0), &orders(2)), Err(Code::InvalidTxnState));
    assert_eq!(world.transactions.check_group("a", (101, 0), "readers").map(drop), Ok(()));
    assert_eq!(world.transactions.check_group("a", (101, 0), "others"), Err(Code::InvalidTxnState));
    // What it has already is not recorded again.
    let kept = world.journal.0.lock().entries.len();
    assert_eq!((world.add("a", producer, "orders", 1), world.journal.0.lock().entries.len()), (0, kept));
    let (after, code) = world.end_reply("a", producer, true);
    assert_eq!((after, code), (Some(Mark(kept as u64 + 1)), 0));
    assert_eq!(world.state("a"), "PrepareCommit");
    // Until the markers are there nothing else happens.
    assert_eq!(world.add("a", producer, "orders", 2), Code::ConcurrentTransactions.code());
    assert_eq!(world.init("a"), Err(Code::ConcurrentTransactions));
    assert_eq!(world.end("a", producer, true), Code::ConcurrentTransactions.code());
    assert_eq!(world.end("a", producer, false), Code::InvalidTxnState.code());
    let ending = world.finish();
    assert_eq!((ending.producer_id, ending.epoch, ending.commit, ending.after), (101, 0, true, after));
    assert!(ending.partitions.keys().eq([&orders(1)]));
    assert_eq!(ending.groups, BTreeSet::from(["readers".to_owned()]));
    assert_eq!(world.state("a"), "CompleteCommit");
    assert_eq!(world.transactions.ended(world.now, &ending, &[]), Ok(false));
    // A retry hears what was decided.
    assert_eq!((world.end("a", producer, true), world.end("a", producer, false)), (0, Code::InvalidTxnState.code()));
    assert_eq!(world.add("a", producer, "orders", 2), 0);
    assert_eq!(world.end("a", producer, false), 0);
    assert!(world.finish().partitions.keys().eq([&orders(2)]));
}

#[test]
fn who_begins_anew_fences_whoever_had_the_id_and_aborts_its_transaction() {
    let mut world = World::new();
    let old = world.init("a").expect("begun");
    world.add("a", old, "orders", 1);
    assert_eq!(world.init("a"), Err(Code::ConcurrentTransactions));
    // From this moment on the old one is fenced, whatever it tries.
    assert_eq!(world.add("a", old, "orders", 2), Code::ProducerFenced.code());
    assert_eq!(world.end("a", old, true), Code::ProducerFenced.code());
    let ending = world.finish();
    assert_eq!((ending.commit, ending.epoch), (false, 1));
    let new = world.init("a").expect("begun");
    assert_eq!(new, (101, 2));
    assert_eq!(world.init_as("a", 101, 0), Err(Code::ProducerFenced));
    assert_eq!(world.init_as("a", 7, 2), Err(Code::ProducerFenced));
    // One that knows who it is goes on, and may ask twice.
    assert_eq!(world.init_as("a", 101, 2), Ok((101, 3)));
    assert_eq!(world.init_as("a", 101, 2), Ok((101, 3)));
    assert_eq!(world.init_as("a", 101, 3), Ok((101, 4)));
}

#[test]
fn old_clients_hear_of_fencing_by_the_older_error() {
    let mut world = World::new();
    let old = world.init("a").expect("begun");
    world.init("a").expect("begun anew");
    let request = EndTxnRequest::default()
        .with_transactional_id(id("a"))
        .with_producer_id(ProducerId(old.0))
        .with_producer_epoch(old.1);
    let code = world.transactions.end(world.now, 1, &request).response.error_code;
    assert_eq!(code, Code::InvalidProducerEpoch.code());
}

#[test]
fn epochs_that_are_used_up_bring_another_producer_id() {
    let mut world = World::new();
    let mut producer = world.init("a").expect("begun");
    for _ in 0..i16::MAX - 1 {
        producer = world.init_as("a", producer.0, producer.1).expect("goes on");
    }
    assert_eq!(producer, (101, i16::MAX - 1));
    // The last epoch can still be fenced.
    world.add("a", producer, "orders", 0);
    assert_eq!(world.init("a"), Err(Code::ConcurrentTransactions));
    assert_eq!(world.finish().epoch, i16::MAX);
    assert_eq!(world.init("a"), Ok((102, 0)));
}

/// A producer at the last epoch that there is for it, in a transaction.
fn at_its_last_epoch() -> (World, (i64, i16)) {
    let mut world = World::new();
    let mut producer = world.init("a").expect("begun");
    while producer.1 < i16::MAX - 1 {
        producer = world.init_as("a", producer.0, producer.1).expect("goes on");
    }
    assert_eq!(world.add("a", producer, "orders", 0), 0);
    (world, producer)
}

#[test]
fn whose_transaction_used_the_last_epoch_up_begins_again_under_another_id() {
    for is_late in [true, false] {
        let (mut world, producer) = at_its_last_epoch();
        if is_late {
            world.pass(60_000);
        }
        assert_eq!(world.init_as("a", producer.0, producer.1), Err(Code::ConcurrentTransactions));
        assert_eq!(world.finish().epoch, i16::MAX);
        world.restart();
        assert_eq!(world.init_as("a", producer.0, producer.1), Ok((102, 0)));
        assert_eq!(world.init_as("a", producer.0, producer.1), Ok((102, 0)), "it did not get the answer");
        assert_eq!(world.add("a", producer, "orders", 0), Code::InvalidProducerIdMapping.code());
        assert_eq!(world.add("a", (102, 0), "orders", 0), 0);
        assert_eq!(world.end("a", (102, 0), true), 0);
        let ending = world.finish();
        assert_eq!((ending.producer_id, ending.epoch, ending.commit), (102, 0, true));
    }
}

#[test]
fn who_aborts_what_used_the_last_epoch_up_goes_on_under_another_id() {
    let (mut world, producer) = at_its_last_epoch();
    world.pass(60_000);
    assert_eq!(world.finish().epoch, i16::MAX);
    assert_eq!(world.end_and_count("a", producer, true), Err(Code::ProducerFenced), "it was aborted");
    assert_eq!(world.end_and_count("a", producer, false), Ok((102, 0)));
    world.restart();
    assert_eq!(world.end_and_count("a", producer, false), Ok((102, 0)), "it did not get the answer");
    // An old way to end a transaction counts no epochs: its markers are not those of the id before.
    assert_eq!(world.add("a", (102, 0), "orders", 0), 0);
    assert_eq!(world.end("a", (102, 0), true), 0);
    let ending = world.finish();
    assert_eq!((ending.producer_id, ending.epoch, ending.commit), (102, 0, true));
    assert_eq!(world.end("a", (102, 0), true), 0);
    assert_eq!(world.end_and_count("a", (102, 0), false), Ok((102, 1)));
}

/// Earlier versions gave producers the last epoch, and have recorded that.
#[test]
fn a_producer_that_has_the_last_epoch_is_replaced() {
    let of = |state| Transaction {
        state,
        producer_id: 90,
        epoch: i16::MAX,
        last_epoch: i16::MAX - 1,
        previous_producer_id: -1,
        timeout_ms: 60_000,
        started_ms: if state == State::Ongoing { 1_700_000_000_000 } else { -1 },
        changed_ms: 1_700_000_000_000,
        partitions: Default::default(),
        groups: Default::default(),
    };
    let begun = |state, as_who: (i64, i16)| {
        let mut world = World::new();
        world.journal.0.lock().entries.push(Entry::Transaction("a".to_owned(), Some(of(state))));
        world.restart();
        if state == State::Ongoing {
            assert_eq!(world.init_as("a", as_who.0, as_who.1), Err(Code::ConcurrentTransactions));
            assert_eq!(world.finish().epoch, i16::MAX);
        }
        world.init_as("a", as_who.0, as_who.1)
    };
    for as_who in [(-1, -1), (90, i16::MAX)] {
        for state in [State::Empty, State::Ongoing, State::Committed, State::Aborted] {
            assert_eq!(begun(state, as_who), Ok((101, 0)), "{state:?} {as_who:?}");
        }
    }
    // Its answer was lost.
    assert_eq!(begun(State::Empty, (90, i16::MAX - 1)), Ok((101, 0)));
}

#[test]
fn who_begins_again_as_who_it_was_has_nothing_left_to_end() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 0);
    assert_eq!(world.init_as("a", producer.0, producer.1), Err(Code::ConcurrentTransactions));
    world.finish();
    assert_eq!(world.state("a"), "CompleteAbort");
    let next = (producer.0, producer.1 + 1);
    assert_eq!(world.init_as("a", producer.0, producer.1), Ok(next));
    assert_eq!(world.state("a"), "Empty");
    assert_eq!(world.end("a", next, false), Code::InvalidTxnState.code());
    assert_eq!(world.init_as("a", producer.0, producer.1), Ok(next), "it did not get the answer");
}

#[test]
fn what_runs_too_long_is_aborted_and_its_producer_fenced() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 1);
    world.pass(59_999);
    // More in it does not give it more time.
    world.add("a", producer, "orders", 2);
    world.pass(1);
    assert_eq!(world.state("a"), "PrepareAbort");
    let ending = world.finish();
    assert_eq!((ending.commit, ending.epoch, ending.partitions.len()), (false, 1, 2));
    assert_eq!(world.end("a", producer, true), Code::ProducerFenced.code());
    assert_eq!(world.init("a"), Ok((101, 2)));
}

#[test]
fn a_full_journal_decides_nothing() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 1);
    world.journal.0.lock().is_full = true;
    let unavailable = Code::CoordinatorNotAvailable;
    assert_eq!(world.end("a", producer, true), unavailable.code());
    assert_eq!(world.init("a"), Err(unavailable));
    assert_eq!(world.init("b"), Err(unavailable));
    assert_eq!(world.add("a", producer, "orders", 2), unavailable.code());
    world.pass(60_000);
    assert_eq!((world.transactions.take_endings(), world.state("a").as_str()), (vec![], "Ongoing"));
    world.journal.0.lock().is_full = false;
    world.pass(1_000);
    assert!(world.finish().partitions.keys().eq([&orders(1)]));
}

#[test]
fn what_was_decided_is_ended_after_a_restart() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 1);
    world.end("a", producer, true);
    let before = world.transactions.take_endings();
    world.restart();
    let after = world.finish();
    assert_eq!(Ending { after: before[0].after, ..after }, before[0]);
    world.restart();
    assert_eq!((world.transactions.take_endings(), world.state("a").as_str()), (vec![], "CompleteCommit"));
    // What only ran still runs, for its whole time.
    world.add("a", producer, "orders", 3);
    world.restart();
    assert_eq!(world.check_produce("a", (101, 0), &orders(3)), Ok(()));
    world.pass(60_000);
    assert!(!world.finish().commit);
}

#[test]
fn requests_that_make_no_sense_get_kafkas_errors() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    assert_eq!(world.init(""), Err(Code::InvalidRequest));
    assert_eq!(world.init(&"i".repeat(1_025)), Err(Code::InvalidRequest));
    let late =
        InitProducerIdRequest::default().with_transactional_id(Some(id("a"))).with_transaction_timeout_ms(900_001);
    let code = world.transactions.init(world.now, 4, &late).response.error_code;
    assert_eq!(code, Code::InvalidTransactionTimeout.code());
    assert_eq!(world.add("b", producer, "orders", 0), Code::InvalidProducerIdMapping.code());
    assert_eq!(world.add("a", (7, 0), "orders", 0), Code::InvalidProducerIdMapping.code());
    assert_eq!(world.add("a", (101, 1), "orders", 0), Code::ProducerFenced.code());
    for (topic, partition) in [("no", 0), ("orders", 4), ("orders", -1)] {
        assert_eq!(world.add("a", producer, topic, partition), Code::UnknownTopicOrPartition.code());
    }
    assert_eq!(world.end("a", producer, true), Code::InvalidTxnState.code());
}

#[test]
fn no_group_is_recorded_whose_name_cannot_be_read_again() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    assert_eq!(world.add("a", producer, "orders", 0), 0);
    let kept = world.journal.0.lock().entries.len();
    for name in ["", "_kera.x", &"g".repeat(1_025), &"g".repeat(70_000)] {
        assert_eq!(world.add_group("a", producer, name), Code::InvalidGroupId.code());
        let added = world.transactions.add_group(world.now, "a", producer, name);
        assert_eq!(added, Err(Code::InvalidGroupId));
    }
    assert_eq!(world.journal.0.lock().entries.len(), kept);
    assert_eq!(world.add_group("a", producer, &"g".repeat(1_024)), 0);
    assert_eq!(world.transactions.add_group(world.now, "a", producer, &"h".repeat(1_024)).map(drop), Ok(()));
    world.restart();
    assert_eq!(world.end("a", producer, true), 0);
    assert_eq!((world.finish().groups.len(), world.state("a")), (2, "CompleteCommit".to_owned()));
}

/// As many as may be, each of another age: `b` has been at rest longest.
fn full() -> World {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    for name in ["b", "c"] {
        world.pass(1_000);
        let producer = world.init(name).expect("begun");
        assert_eq!((world.add(name, producer, "orders", 0), world.end(name, producer, true)), (0, 0));
        world.finish();
    }
    world.pass(1_000);
    assert_eq!((world.add("a", producer, "orders", 0), world.end("a", producer, false)), (0, 0));
    world.finish();
    world
}

#[test]
fn where_there_are_as_many_ids_as_may_be_the_one_goes_that_has_been_at_rest_longest() {
    for restarted in [false, true] {
        let mut world = full();
        if restarted {
            world.restart();
        }
        world.pass(1_000);
        let producer = world.init("d").expect("begun");
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| world.state(name)),
            ["CompleteAbort", "", "CompleteCommit", "Empty"]
        );
        // What had it has no claim to the id any more, and the next one begins as if nobody had had it.
        assert_eq!(world.add("b", (102, 0), "orders", 0), Code::InvalidProducerIdMapping.code());
        assert_eq!(world.add("d", producer, "orders", 0), 0);
        assert_eq!(world.init("b").expect("begun").1, 0);
        assert_eq!(world.state("c"), "");
        world.restart();
        let left = ["a", "b", "c", "d"].map(|name| world.state(name));
        assert_eq!(left, ["CompleteAbort", "Empty", "", "Ongoing"]);
    }
}

#[test]
fn an_id_whose_transaction_runs_or_is_being_ended_makes_room_for_nobody() {
    let mut world = World::new();
    for name in ["a", "b", "c"] {
        let producer = world.init(name).expect("begun");
        assert_eq!(world.add(name, producer, "orders", 0), 0);
    }
    assert_eq!(world.init("d"), Err(Code::PolicyViolation));
    assert_eq!(world.end("a", (101, 0), true), 0);
    assert_eq!(world.init("d"), Err(Code::PolicyViolation));
    world.finish();
    // Nor does one while that cannot be recorded.
    world.journal.0.lock().is_full = true;
    assert!(world.init("d").is_err());
    assert_eq!(world.state("a"), "CompleteCommit");
    world.journal.0.lock().is_full = false;
    assert!(world.init("d").is_ok());
}

#[test]
fn an_id_that_has_made_room_and_comes_back_has_its_whole_time() {
    let mut world = full();
    world.init("d").expect("begun");
    let producer = world.init("b").expect("begun");
    // Over the moment at which it had been at rest for too long as who it was before.
    world.pass(7 * 24 * 3_600_000 - 30_000);
    assert_eq!(world.add("b", producer, "orders", 0), 0);
    world.pass(59_999);
    assert_eq!(world.state("b"), "Ongoing");
    world.pass(1);
    assert_eq!(world.state("b"), "PrepareAbort");
}

#[test]
fn a_clock_that_is_set_back_has_nobody_forgotten_who_has_just_begun() {
    let mut world = full();
    world.now.wall_ms -= 3_600_000;
    world.now.believed = world.now.wall_ms.into();
    let names = ["d", "e", "f", "z", "y", "g"];
    for (at, name) in names.into_iter().enumerate() {
        world.pass(1_000);
        world.init(name).expect("begun");
        let last = &names[at.saturating_sub(2)..=at];
        assert!(last.iter().all(|name| world.state(name) == "Empty"), "{name}: those before it are there");
    }
}

#[test]
fn a_clock_that_jumps_forgets_no_id_before_it_is_believed() {
    let mut world = World::new();
    let begun = world.init("a").expect("begun");
    world.pass(6 * 24 * 3_600_000);
    // What is due when the clock jumps comes again a little later, and then for as long as is left.
    let jumped = Now { mono_ms: u64::MAX / 2, wall_ms: i64::MAX / 2, ..world.now };
    world.transactions.tick(jumped);
    assert_eq!(world.state("a"), "Empty");
    assert_eq!(world.transactions.next_deadline_ms(), Some(jumped.mono_ms + 1_000));
    assert_eq!(world.init("a"), Ok((begun.0, begun.1 + 1)));
}

#[test]
fn ids_that_nobody_uses_are_forgotten() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.pass(6 * 24 * 3_600_000);
    world.add("a", producer, "orders", 0);
    world.end("a", producer, true);
    world.finish();
    world.pass(6 * 24 * 3_600_000);
    world.restart();
    assert_eq!(world.state("a"), "CompleteCommit");
    world.pass(24 * 3_600_000);
    for _ in 0..2 {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id("a")]);
        let described = world.transactions.describe(&request);
        assert_eq!(described.transaction_states[0].error_code, Code::TransactionalIdNotFound.code());
        world.restart();
    }
    assert_eq!(world.transactions.next_deadline_ms(), None);
}

#[test]
fn transactions_are_listed_and_copied() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.init("b").expect("begun");
    world.add("a", producer, "orders", 0);
    world.pass(5_000);
    let names = |world: &World, request: ListTransactionsRequest| -> Vec<String> {
        let listed = world.transactions.list(world.now, &request).transaction_states;
        listed.iter().map(|of| of.transactional_id.to_string()).collect()
    };
    let all = || ListTransactionsRequest::default().with_duration_filter(-1);
    assert_eq!(names(&world, all()), ["a", "b"]);
    assert_eq!(names(&world, all().with_state_filters(vec![text("Empty"), text("Other")])), ["b"]);
    assert_eq!(names(&world, all().with_producer_id_filters(vec![ProducerId(101)])), ["a"]);
    assert_eq!(names(&world, all().with_duration_filter(4_000)), ["a"]);
    assert_eq!(names(&world, all().with_duration_filter(6_000)), [""; 0]);
    let (mut copy, next) = world.transactions.snapshot(None, 1);
    assert_eq!(next.as_deref(), Some("a"));
    let (rest, next) = world.transactions.snapshot(Some("a"), 1);
    assert_eq!(next, None);
    copy.extend(rest);
    world.journal.0.lock().entries = copy;
    world.restart();
    assert_eq!((world.state("a"), world.state("b")), ("Ongoing".into(), "Empty".into()));
}

#[test]
fn where_a_partition_ended_when_it_was_added_is_kept() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 1);
    *world.topics.0.lock() = 20;
    world.add("a", producer, "orders", 1);
    world.add("a", producer, "items", 2);
    let unfinished = |world: &World| -> Vec<(i64, String, u64)> {
        let all = world.transactions.unfinished();
        all.map(|one| (one.producer_id, one.of.topic.clone(), one.touched.from_offset)).collect()
    };
    let expected = vec![(101, "items".to_owned(), 20), (101, "orders".to_owned(), 10)];
    assert_eq!(unfinished(&world), expected);
    // A topic of the same name is another.
    let another = world.transactions.check_produce("a", producer, &orders(1), StreamId(7));
    assert_eq!(another, Err(Code::InvalidTxnState));
    // What is recorded must be durable before a record of it is.
    let kept = world.journal.0.lock().entries.len() as u64;
    assert_eq!(world.transactions.check_produce("a", producer, &orders(1), ORDERS), Ok(Some(Mark(kept))));
    // Partitions that have lost their end count from there, also after the next restart.
    for _ in 0..2 {
        world.load();
        world.transactions.lower(|of, _| Some(if of.topic == "orders" { 30 } else { 15 })).expect("recorded");
        assert_eq!(unfinished(&world)[0], (101, "items".to_owned(), 15));
        assert_eq!(unfinished(&world)[1], expected[1]);
    }
    world.load();
    world.transactions.hand_over_all();
    assert!(!world.transactions.lower(|_, _| Some(0)).expect("recorded"), "others end it");
    assert_eq!(world.journal.0.lock().entries.len() as u64, kept + 1, "what is not changed is not recorded");
    world.restart();
    world.end("a", producer, true);
    world.finish();
    assert_eq!(unfinished(&world), []);
}

#[test]
fn what_an_aborted_transaction_leaves_is_recorded_with_its_end() {
    let mut world = World::new();
    let producer = world.init("a").expect("begun");
    world.add("a", producer, "orders", 1);
    world.end("a", producer, false);
    let ending = world.transactions.take_endings().remove(0);
    let range = AbortedRange {
        stream: ORDERS,
        partition: 1,
        producer_id: 101,
        first_offset: 12,
        marker_offset: 14,
        stable_offset: 15,
        epoch: 0,
    };
    world.journal.0.lock().is_full = true;
    assert_eq!(world.transactions.ended(world.now, &ending, &[range]), Err(AppendFailed));
    world.journal.0.lock().is_full = false;
    assert_eq!(world.transactions.ended(world.now, &ending, &[range]), Ok(true));
    let entries = world.journal.0.lock().entries.clone();
    let [.., aborted, Entry::Transaction(..)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(*aborted, Entry::Aborted(range));
}

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Init(usize),
    Add(usize, i32),
    End(usize, bool),
    /// The door ends a transaction whose decision is durable.
    Finish,
    Pass(u64),
    Durable,
    Full(bool),
    Crash,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let client = 0..3usize;
    let event = prop_oneof![
        2 => client.clone().prop_map(Event::Init),
        4 => (client.clone(), 0..4i32).prop_map(|(at, partition)| Event::Add(at, partition)),
        3 => (client, any::<bool>()).prop_map(|(at, commit)| Event::End(at, commit)),
        3 => Just(Event::Finish),
        1 => (0..70_000u64).prop_map(Event::Pass),
        3 => Just(Event::Durable),
        1 => any::<bool>().prop_map(Event::Full),
        1 => Just(Event::Crash),
    ];
    proptest::collection::vec(event, 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Three producers fight for one id. A commit that was acknowledged gets its commit markers, once its decision is
    /// durable, and never those of an abort; nobody commits what another producer of the id has begun; epochs never go back.
    #[test]
    fn an_outcome_is_decided_once(events in events()) {
        let mut world = World::new();
        let mut clients = [(-1i64, -1i16); 3];
        let (mut durable, mut epoch_heard) = (0, -1);
        // What was acknowledged of the transaction of an epoch that runs, by what the answers rest on, and whether that decided it or it was asked for again.
        let mut promised: Vec<(u64, i16, bool)> = Vec::new();
        let mut ready: Vec<Ending> = Vec::new();
        // By the numbers of transactions, several of which may have one epoch.
        let mut finished: BTreeMap<i64, (i16, bool)> = BTreeMap::new();
        for event in &events {
            match event {
                Event::Init(at) => if let Ok(producer) = world.init("id") {
                    prop_assert!(producer.1 > epoch_heard, "an epoch came again");
                    durable = world.journal.0.lock().entries.len() as u64;
                    epoch_heard = producer.1;
                    clients[*at] = producer;
                },
                Event::Add(at, partition) => {
                    let code = world.add("id", clients[*at], "orders", *partition);
                    prop_assert!(code != 0 || clients[*at].1 == epoch_heard, "a fenced producer goes on");
                }
                Event::End(at, commit) => {
                    let decides = world.state("id") == "Ongoing";
                    let (after, code) = world.end_reply("id", clients[*at], *commit);
                    if code == 0 && *commit {
                        promised.push((after.map_or(0, |mark| mark.0), clients[*at].1, decides));
                    }
                }
                Event::Finish => {
                    ready.extend(world.transactions.take_endings());
                    let (now, rest) = ready.drain(..).partition(|of| of.after.is_none_or(|mark| mark.0 <= durable));
                    ready = rest;
                    let now: Vec<Ending> = now;
                    for ending in now {
                        match world.transactions.ended(world.now, &ending, &[]) {
                            Ok(true) => {
                                let outcome = (ending.epoch, ending.commit);
                                let before = finished.insert(ending.number, outcome);
                                prop_assert!(before.is_none_or(|before| before == outcome), "{before:?}, then {outcome:?}");
                            }
                            Ok(false) => {}
                            Err(AppendFailed) => ready.push(ending),
                        }
                    }
                }
                Event::Pass(ms) => world.pass(*ms),
                Event::Durable => durable = world.journal.0.lock().entries.len() as u64,
                Event::Full(is_full) => world.journal.0.lock().is_full = *is_full,
                Event::Crash => {
                    world.journal.0.lock().entries.truncate(durable as usize);
                    promised.retain(|(mark, ..)| *mark <= durable);
                    ready.clear();
                    world.restart();
                }
            }
        }
        // In the end everything that was promised has its markers.
        world.journal.0.lock().is_full = false;
        ready.extend(world.transactions.take_endings());
        for _ in 0..3 {
            for ending in std::mem::take(&mut ready) {
                if world.transactions.ended(world.now, &ending, &[]) == Ok(true) {
                    let outcome = (ending.epoch, ending.commit);
                    let before = finished.insert(ending.number, outcome);
                    prop_assert!(before.is_none_or(|before| before == outcome), "{before:?}, then {outcome:?}");
                }
            }
            ready.extend(world.transactions.take_endings());
        }
        for (_, epoch, _) in &promised {
            let decided = promised.iter().filter(|(_, of, decides)| of == epoch && *decides).count();
            let committed = finished.values().filter(|outcome| **outcome == (*epoch, true)).count();
            prop_assert!(committed >= decided.max(1), "{committed} of {decided} commits of epoch {epoch} are left");
        }
        let states = ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", ""];
        prop_assert!(states.contains(&world.state("id").as_str()), "{}", world.state("id"));
    }
}

/// What happens to one producer of the second version, whose requests are carried out and answered in turn.
#[derive(Clone, Debug)]
enum Counted {
    /// It writes to a partition.
    Write(i32),
    /// It commits offsets.
    Offsets,
    /// It ends its transaction; whether the answer arrives.
    End(bool, bool),
    /// It does not know what became of its last request, and begins anew as who it was.
    Init,
    Finish,
    Durable,
    Crash,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A producer that is alone and asks again until it is answered is never told that it is fenced, whatever is late, lost or
    /// killed; and every transaction ends once, as it was answered.
    #[test]
    fn a_producer_that_is_alone_is_never_fenced(
        events in proptest::collection::vec(prop_oneof![
            4 => (0..4i32).prop_map(Counted::Write),
            2 => Just(Counted::Offsets),
            6 => (any::<bool>(), any::<bool>()).prop_map(|(commit, arrives)| Counted::End(commit, arrives)),
            1 => Just(Counted::Init),
            4 => Just(Counted::Finish),
            4 => Just(Counted::Durable),
            1 => Just(Counted::Crash),
        ], 1..120)
    ) {
        let mut world = World::new();
        let mut producer = world.init("id").expect("nobody else is there");
        let mut durable = world.journal.0.lock().entries.len() as u64;
        // What it has asked and not heard of; how much is in its transaction; how those ended that are over.
        let (mut asked, mut is_in, mut ready) = (None, false, Vec::<Ending>::new());
        let (mut told, mut ended) = (Vec::new(), Vec::new());
        for event in &events {
            match event {
                Counted::Write(_) | Counted::Offsets if asked.is_some() => {}
                Counted::Write(_) | Counted::Offsets => {
                    let added = if let Counted::Write(partition) = event {
                        let touched = Touched { stream: ORDERS, from_offset: 10 };
                        world.transactions.add_partition(world.now, "id", producer, orders(*partition), touched)
                    } else {
                        world.transactions.add_group(world.now, "id", producer, "g")
                    };
                    match added {
                        // It waits until that is durable, or asks again.
                        Ok(mark) => {
                            is_in = true;
                            durable = durable.max(mark.map_or(0, |mark| mark.0));
                        }
                        Err(code) => prop_assert_eq!(code, Code::ConcurrentTransactions),
                    }
                }
                Counted::End(commit, arrives) => {
                    // It asks for the same again, and commits nothing that is empty.
                    let commit = *asked.get_or_insert(*commit && is_in);
                    let request = EndTxnRequest::default()
                        .with_transactional_id(id("id"))
                        .with_producer_id(ProducerId(producer.0))
                        .with_producer_epoch(producer.1)
                        .with_committed(commit);
                    let Reply { after, response } = world.transactions.end(world.now, 5, &request);
                    match Code::try_from_code(response.error_code) {
                        Some(code) => prop_assert_eq!(code, Code::ConcurrentTransactions),
                        None if *arrives => {
                            durable = durable.max(after.map_or(0, |mark| mark.0));
                            told.push((producer.1, commit, is_in));
                            producer = (response.producer_id.0, response.producer_epoch);
                            (asked, is_in) = (None, false);
                        }
                        None => {}
                    }
                }
                Counted::Init => match world.init_as("id", producer.0, producer.1) {
                    Ok(next) => {
                        durable = world.journal.0.lock().entries.len() as u64;
                        producer = next;
                        (asked, is_in) = (None, false);
                    }
                    Err(code) => {
                        prop_assert_eq!(code, Code::ConcurrentTransactions);
                        // It goes on asking until it may.
                        ready.extend(world.transactions.take_endings());
                        for ending in ready.drain(..) {
                            if world.transactions.ended(world.now, &ending, &[]) == Ok(true) {
                                ended.push((ending.epoch, ending.commit));
                            }
                        }
                        let next = world.init_as("id", producer.0, producer.1);
                        prop_assert!(next.is_ok(), "{next:?}");
                        durable = world.journal.0.lock().entries.len() as u64;
                        producer = next.expect("looked at");
                        (asked, is_in) = (None, false);
                    }
                },
                Counted::Finish => {
                    ready.extend(world.transactions.take_endings());
                    for ending in std::mem::take(&mut ready) {
                        if ending.after.is_some_and(|mark| mark.0 > durable) {
                            ready.push(ending);
                        } else if world.transactions.ended(world.now, &ending, &[]) == Ok(true) {
                            ended.push((ending.epoch, ending.commit));
                        }
                    }
                }
                Counted::Durable => durable = world.journal.0.lock().entries.len() as u64,
                Counted::Crash => {
                    world.journal.0.lock().entries.truncate(durable as usize);
                    ready.clear();
                    world.restart();
                }
            }
        }
        ready.extend(world.transactions.take_endings());
        for ending in ready {
            if world.transactions.ended(world.now, &ending, &[]) == Ok(true) {
                ended.push((ending.epoch, ending.commit));
            }
        }
        for (epoch, commit, was_in) in told {
            // Its markers have the next epoch. Written twice after a crash they say the same.
            let outcomes: BTreeSet<bool> =
                ended.iter().filter(|(of, _)| *of == epoch + 1).map(|(_, commit)| *commit).collect();
            prop_assert_eq!(outcomes, was_in.then_some(commit).into_iter().collect::<BTreeSet<bool>>());
        }
    }
}
