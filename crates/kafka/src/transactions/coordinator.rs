//! All transactional ids of a node: finds the one that a request is about, records what becomes of it, keeps its time.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState as Described};
use kafka_protocol::messages::list_transactions_response::TransactionState as Listed;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse, InitProducerIdRequest,
    InitProducerIdResponse, ListTransactionsRequest, ListTransactionsResponse, ProducerId, TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_format::StreamId;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{
    AbortedRange, Entry, GROUPS_MAX, PARTITIONS_MAX, TRANSACTIONAL_ID_BYTES_MAX, Touched, Transaction,
    TransactionState as State,
};

use super::producer::{self, Begun};
use super::{Ending, NOT_WRITTEN, Places, ProducerIds, Reply, TransactionConfig, TransactionJournal};
use crate::groups::{AppendFailed, Mark, Now, may_be_recorded};
use crate::limits_told::tell;
use crate::state_log::Bounded;

/// From here on a fenced producer is told so by its own error.
const VERSION_INIT_FENCED: i16 = 4;
const VERSION_TXN_FENCED: i16 = 2;
/// From here on the end of a transaction gives its producer the next epoch.
const VERSION_END_EPOCH: i16 = 5;

/// The transactions of a node. See the module for how it is driven.
pub struct Transactions {
    config: TransactionConfig,
    journal: Box<dyn TransactionJournal + Send>,
    ids: Box<dyn ProducerIds + Send>,
    places: Arc<dyn Places + Send + Sync>,
    transactions: BTreeMap<String, Held>,
    /// The ids [at rest](is_at_rest), those that have been so longest first: see [`put`](Transactions::put).
    resting: BTreeMap<(i64, u64), String>,
    /// How often an id has come to rest.
    rests: u64,
    /// When something happens to a transaction by itself.
    wakes: BTreeSet<(u64, String)>,
    endings: Vec<Ending>,
    /// Ranges of aborted records that partitions remember, those of transactions that have gone since last counted included.
    aborted: usize,
    /// Why nothing is served.
    refuses: Option<Code>,
    /// Nothing begins any more, and who asks is told this; what runs is brought to its end.
    winds_down: Option<Code>,
}

/// What the owner of a partition asks for, before a producer's first batch there in a transaction.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The producer, and its epoch.
    pub producer: (i64, i16),
    /// Which partition.
    pub of: OffsetKey,
    /// Its stream, and in front of what the transaction has written nothing.
    pub touched: Touched,
    /// It is added to the transaction if it is not in it, as where its topic was [made again](Transactions::may_add).
    pub adds: bool,
}

/// A partition in which a transaction has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished<'a> {
    /// The producer whose transaction it is.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// Which partition.
    pub of: &'a OffsetKey,
    /// What is known of it.
    pub touched: &'a Touched,
    /// [Others](Transactions::hand_over) write its marker.
    pub is_handed_over: bool,
}

/// A transactional id.
#[derive(Debug)]
struct Held {
    is: Transaction,
    /// Of its last record. What rests on it may be told when it is durable.
    mark: Option<Mark>,
    wake_ms: u64,
    /// It is decided, and [others](Transactions::hand_over) write the markers that are left.
    is_handed_over: bool,
    /// Where it is among those at rest.
    rests: Option<(i64, u64)>,
}

impl Held {
    fn new(is: Transaction, mark: Option<Mark>, wake_ms: u64) -> Held {
        Held { is, mark, wake_ms, is_handed_over: false, rests: None }
    }
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions").field("ids", &self.transactions.len()).finish_non_exhaustive()
    }
}

impl Transactions {
    /// A coordinator that answers `COORDINATOR_LOAD_IN_PROGRESS` until it is [started](Transactions::start).
    pub fn new(
        config: TransactionConfig,
        journal: Box<dyn TransactionJournal + Send>,
        ids: Box<dyn ProducerIds + Send>,
        places: Arc<dyn Places + Send + Sync>,
    ) -> Transactions {
        Transactions {
            config,
            journal,
            ids,
            places,
            transactions: BTreeMap::new(),
            resting: BTreeMap::new(),
            rests: 0,
            wakes: BTreeSet::new(),
            endings: Vec::new(),
            aborted: 0,
            refuses: Some(Code::CoordinatorLoadInProgress),
            winds_down: None,
        }
    }

    /// Takes what the journal says of a transactional id, in the order of its records.
    pub fn replay(&mut self, id: String, transaction: Option<Transaction>) {
        match transaction {
            None => self.remove(&id),
            Some(is) => self.put(id, Held::new(is, None, u64::MAX)),
        }
    }

    /// An id is so from now on.
    ///
    /// Those at rest are in the order of the times at which they came to it. A clock may be set back: whoever comes to rest then is behind all that were before, or it would make
    /// room first, although its producer has just begun. While the journal is read they come in no order, for a copy has them by their names, and there are their times alone.
    fn put(&mut self, id: String, mut held: Held) {
        self.remove(&id);
        if is_at_rest(&held.is) {
            let is_read = self.refuses.is_some();
            let last_ms = self.resting.last_key_value().filter(|_| !is_read).map_or(i64::MIN, |((ms, _), _)| *ms);
            self.rests += 1;
            let place = (held.is.changed_ms.max(last_ms), self.rests);
            held.rests = Some(place);
            self.resting.insert(place, id.clone());
        }
        self.transactions.insert(id, held);
    }

    fn remove(&mut self, id: &str) {
        if let Some(place) = self.transactions.remove(id).and_then(|held| held.rests) {
            self.resting.remove(&place);
        }
    }

    /// Makes room for another id. Some producers use one for each of their transactions (Flink's, for each checkpoint), so where there are as many as may be
    /// the one is forgotten that has been at rest longest, as if its time were up. False if there is none.
    fn make_room(&mut self) -> bool {
        if self.transactions.len() < self.config.ids_max {
            return true;
        }
        let Some(id) = self.resting.first_key_value().map(|(_, id)| id.clone()) else { return false };
        if self.journal.append(&[Entry::Transaction(id.clone(), None)]).is_err() {
            return false;
        }
        let wake_ms = self.transactions.get(&id).map_or(u64::MAX, |held| held.wake_ms);
        self.remove(&id);
        self.wakes.remove(&(wake_ms, id));
        true
    }

    /// Where transactions write that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = Unfinished<'_>> {
        let unfinished = self.transactions.values().filter(|held| !is_at_rest(&held.is));
        unfinished.flat_map(|Held { is, is_handed_over, .. }| {
            let written = is.partitions.iter().filter(|(_, touched)| touched.from_offset != NOT_WRITTEN);
            let (producer_id, epoch) = producer::marked(is);
            let is_handed_over = *is_handed_over;
            written.map(move |(of, touched)| Unfinished { producer_id, epoch, of, touched, is_handed_over })
        })
    }

    /// All ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.transactions.keys()
    }

    /// The groups of transactions that have not ended, each with its producer.
    pub(crate) fn unfinished_groups(&self) -> HashSet<(String, i64)> {
        let unfinished = self.transactions.values().filter(|held| !is_at_rest(&held.is));
        let of_each = |Held { is, .. }: &Held| {
            let producer_id = producer::marked(is).0;
            is.groups.iter().map(|group| (group.clone(), producer_id)).collect::<Vec<_>>()
        };
        unfinished.flat_map(of_each).collect()
    }

    /// What is known of an id.
    pub(crate) fn known(&self, id: &str) -> Option<&Transaction> {
        self.transactions.get(id).map(|held| &held.is)
    }

    /// Partitions say what has [become](crate::transaction_doubt) of an id, and what it has left there. Between replay and start.
    ///
    /// # Errors
    /// The journal does not take it: transactions must not be served.
    pub(crate) fn settle(&mut self, id: &str, is: Transaction, aborted: &[AbortedRange]) -> Result<(), AppendFailed> {
        let mut entries: Vec<Entry> = aborted.iter().copied().map(Entry::Aborted).collect();
        entries.push(Entry::Transaction(id.to_owned(), Some(is.clone())));
        let mark = Some(self.journal.append(&entries)?);
        self.aborted += aborted.len();
        self.put(id.to_owned(), Held::new(is, mark, u64::MAX));
        Ok(())
    }

    /// A partition that ends before the place that is recorded of it has lost its end with the machine's power: its end now
    /// counts, and is recorded: whether there is one. `end_of` says where a partition ends; nothing, if it is gone or that is not known here. What was
    /// [handed over](Transactions::hand_over) stays as it is. Between replay and start.
    ///
    /// # Errors
    /// The journal does not take it: transactions must not be served.
    pub fn lower(&mut self, end_of: impl Fn(&OffsetKey, &Touched) -> Option<u64>) -> Result<bool, AppendFailed> {
        let mut is_recorded = false;
        for (id, held) in self.transactions.iter_mut().filter(|(_, held)| !held.is_handed_over) {
            let mut lowered = false;
            for (of, touched) in &mut held.is.partitions {
                if let Some(end) = end_of(of, touched).filter(|end| *end < touched.from_offset) {
                    touched.from_offset = end;
                    lowered = true;
                }
            }
            if lowered {
                let mark = self.journal.append(&[Entry::Transaction(id.clone(), Some(held.is.clone()))])?;
                held.mark = Some(mark);
                is_recorded = true;
            }
        }
        Ok(is_recorded)
    }

    /// Everything in the journal has been taken. What was decided is ended now; what ran has its whole time again.
    pub fn start(&mut self, now: Now) {
        self.refuses = None;
        let ids: Vec<String> = self.transactions.keys().cloned().collect();
        for id in ids {
            self.end_if_decided(&id);
            self.set_wake(now, &id);
        }
    }

    /// Refuses everything from here on, with this error.
    pub fn close(&mut self, code: Code) {
        self.refuses = Some(code);
        self.wakes.clear();
    }

    /// Another coordinator is to have these ids: from here on nothing begins, and who asks is told `code`. What runs is aborted, as if
    /// its time were up, since its producer asks elsewhere now; what is decided is carried out.
    pub fn wind_down(&mut self, now: Now, code: Code) {
        self.winds_down = Some(code);
        let runs = |held: &Held| held.is.state == State::Ongoing;
        let ids: Vec<String> =
            self.transactions.iter().filter(|(_, held)| runs(held)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let aborting = producer::time_out(&self.transactions[&id].is, now.wall_ms);
            if self.record(now, &id, aborting).is_ok() {
                self.end_if_decided(&id);
            } else if let Some(held) = self.transactions.get_mut(&id) {
                self.wakes.remove(&(held.wake_ms, id.clone()));
                held.wake_ms = u64::MAX;
                self.retry_later(now, &id);
            }
        }
    }

    /// Whether no id is known.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Whether nothing runs and nothing is being ended; of a coordinator that winds down that stays so.
    pub fn is_at_rest(&self) -> bool {
        self.transactions.values().all(|held| held.is_handed_over || is_at_rest(&held.is))
    }

    /// Of a transaction that is being ended the markers of `left` are for others to write, who own these partitions by now and read the journal once
    /// nothing is left to do here. All its other markers are durable and its groups know; it has left `aborted`. False if that is not the
    /// transaction that is being ended.
    ///
    /// # Errors
    /// It cannot be recorded now, and is to be said again.
    pub fn hand_over(
        &mut self,
        now: Now,
        ending: &Ending,
        left: &[(OffsetKey, Touched)],
        aborted: &[AbortedRange],
    ) -> Result<bool, AppendFailed> {
        let Some(held) = self.transactions.get(&ending.id) else { return Ok(false) };
        let is_this = producer::marked(&held.is) == (ending.producer_id, ending.epoch);
        if !is_this || producer::ended(&held.is, now.wall_ms).is_none() {
            return Ok(false);
        }
        let partitions = left.iter().cloned().collect();
        let next = Transaction { partitions, groups: BTreeSet::new(), ..held.is.clone() };
        self.record_with(now, &ending.id, next, aborted).map_err(|_| AppendFailed)?;
        self.aborted += aborted.len();
        if let Some(held) = self.transactions.get_mut(&ending.id) {
            held.is_handed_over = true;
        }
        Ok(true)
    }

    /// The journal says that nothing is left to do here: what is not over in it was handed over. Between replay and start.
    pub fn hand_over_all(&mut self) {
        for held in self.transactions.values_mut() {
            held.is_handed_over = !is_at_rest(&held.is);
        }
    }

    /// Transactions whose outcome is decided since the last call.
    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// So many ranges of aborted records are remembered, as counted now.
    pub fn count_aborted(&mut self, ranges: usize) {
        self.aborted = ranges;
    }

    /// When [`tick`](Transactions::tick) has something to do.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.wakes.first().map(|(at_ms, _)| *at_ms)
    }

    /// Aborts what runs for too long, and forgets ids that nobody uses.
    pub fn tick(&mut self, now: Now) {
        let later = self.wakes.split_off(&(now.mono_ms.saturating_add(1), String::new()));
        for (_, id) in std::mem::replace(&mut self.wakes, later) {
            let Some(held) = self.transactions.get_mut(&id) else { continue };
            held.wake_ms = u64::MAX;
            match held.is.state {
                State::Ongoing => {
                    let aborting = producer::time_out(&held.is, now.wall_ms);
                    if self.record(now, &id, aborting).is_ok() {
                        self.end_if_decided(&id);
                    }
                }
                State::Committing | State::Aborting => {}
                State::Empty | State::Committed | State::Aborted => {
                    let idle_ms = now.believed.age_ms(held.is.changed_ms);
                    let is_over = idle_ms >= self.config.expiration_ms;
                    if is_over && self.journal.append(&[Entry::Transaction(id.clone(), None)]).is_ok() {
                        self.remove(&id);
                        continue;
                    }
                }
            }
            self.retry_later(now, &id);
        }
    }

    /// Everything there is, to be written again: ids behind `behind`, until about `bytes_max` bytes are reached. The second
    /// is what to go on behind; None when that was all.
    pub fn snapshot(&self, behind: Option<&str>, bytes_max: usize) -> (Vec<Entry>, Option<String>) {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut entries, mut bytes, mut last) = (Vec::new(), 0, None);
        for (id, held) in self.transactions.range::<str, _>((from, Bound::Unbounded)) {
            if bytes >= bytes_max && !entries.is_empty() {
                return (entries, last);
            }
            let entry = Entry::Transaction(id.clone(), Some(held.is.clone()));
            bytes += entry.bytes();
            entries.push(entry);
            last = Some(id.clone());
        }
        (entries, None)
    }

    /// InitProducerId with a transactional id: a producer begins, and everybody who had the id before is fenced.
    pub fn init(&mut self, now: Now, version: i16, request: &InitProducerIdRequest) -> Reply<InitProducerIdResponse> {
        let id = request.transactional_id.as_ref().map(|id| id.to_string()).unwrap_or_default();
        let begun = self.try_init(now, &id, request);
        let (after, response) = match begun {
            Ok((after, producer_id, epoch)) => {
                let response = InitProducerIdResponse::default().with_producer_id(ProducerId(producer_id));
                (after, response.with_producer_epoch(epoch))
            }
            Err((after, code)) => {
                let code = if version < VERSION_INIT_FENCED { unfenced(code) } else { code };
                let response = InitProducerIdResponse::default().with_error_code(code.code());
                (after, response.with_producer_id(ProducerId(-1)).with_producer_epoch(-1))
            }
        };
        Reply { after, response }
    }

    #[allow(clippy::type_complexity)]
    fn try_init(
        &mut self,
        now: Now,
        id: &str,
        request: &InitProducerIdRequest,
    ) -> Result<(Option<Mark>, i64, i16), (Option<Mark>, Code)> {
        let at_once = |code: Code| (None, code);
        self.check_id(id).map_err(at_once)?;
        let timeout_ms = request.transaction_timeout_ms;
        if timeout_ms <= 0 || timeout_ms > self.config.timeout_ms_max {
            return Err(at_once(Code::InvalidTransactionTimeout));
        }
        let named = request.producer_id.0 >= 0 && request.producer_epoch >= 0;
        let expected = named.then_some((request.producer_id.0, request.producer_epoch));
        let Some(held) = self.transactions.get(id) else {
            if !self.make_room() {
                tell("transactional ids", id, self.config.ids_max);
                return Err(at_once(Code::PolicyViolation));
            }
            let producer_id = self.ids.next().ok_or(at_once(Code::CoordinatorNotAvailable))?;
            let mark = self.record(now, id, producer::begin(producer_id, timeout_ms, now.wall_ms)).map_err(at_once)?;
            return Ok((Some(mark), producer_id, 0));
        };
        match producer::init(&held.is, expected, timeout_ms, now.wall_ms, &mut *self.ids).map_err(at_once)? {
            Begun::Retry => Ok((held.mark, held.is.producer_id, held.is.epoch)),
            Begun::Changed(next) => {
                let (producer_id, epoch) = (next.producer_id, next.epoch);
                let mark = self.record(now, id, next).map_err(at_once)?;
                Ok((Some(mark), producer_id, epoch))
            }
            Begun::Abort(aborting) => {
                let mark = self.record(now, id, aborting).map_err(at_once)?;
                self.end_if_decided(id);
                // The transaction is over soon: the producer asks again.
                Err((Some(mark), Code::ConcurrentTransactions))
            }
        }
    }

    /// AddPartitionsToTxn, as clients send it (versions 0 to 3).
    pub fn add_partitions(
        &mut self,
        now: Now,
        version: i16,
        request: &AddPartitionsToTxnRequest,
    ) -> Reply<AddPartitionsToTxnResponse> {
        let asked = request.v3_and_below_topics.iter();
        let asked = asked.flat_map(|topic| topic.partitions.iter().map(move |of| (&**topic.name, *of)));
        let all: Vec<(&str, i32)> = asked.collect();
        let (mut places, mut unknown) = (Vec::with_capacity(all.len()), BTreeSet::new());
        for (name, partition) in &all {
            match self.places.place(name, *partition) {
                Some(touched) => {
                    places.push((OffsetKey { topic: (*name).to_owned(), partition: *partition }, touched));
                }
                None => drop(unknown.insert((*name, *partition))),
            }
        }
        let (after, result) = if let Some(code) = self.refuses {
            unknown.clear();
            (None, Err(code))
        } else if unknown.is_empty() {
            let producer = (request.v3_and_below_producer_id.0, request.v3_and_below_producer_epoch);
            self.extend(now, &request.v3_and_below_transactional_id, producer, |transaction| {
                places.into_iter().for_each(|(of, touched)| touch(transaction, of, touched));
            })
        } else {
            (None, Err(Code::OperationNotAttempted))
        };
        let result = result.map_err(|code| if version < VERSION_TXN_FENCED { unfenced(code) } else { code });
        let topics = request.v3_and_below_topics.iter().map(|topic| {
            let answered = topic.partitions.iter().map(|partition| {
                let missing = unknown.contains(&(&**topic.name, *partition));
                let result = if missing { Err(Code::UnknownTopicOrPartition) } else { result };
                AddPartitionsToTxnPartitionResult::default()
                    .with_partition_index(*partition)
                    .with_partition_error_code(number(result))
            });
            AddPartitionsToTxnTopicResult::default()
                .with_name(topic.name.clone())
                .with_results_by_partition(answered.collect())
        });
        let response = AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect());
        Reply { after, response }
    }

    /// AddOffsetsToTxn: the transaction will commit offsets of a group.
    pub fn add_offsets(
        &mut self,
        now: Now,
        version: i16,
        request: &AddOffsetsToTxnRequest,
    ) -> Reply<AddOffsetsToTxnResponse> {
        let producer = (request.producer_id.0, request.producer_epoch);
        let (after, result) = self.extend_by_group(now, &request.transactional_id, producer, &request.group_id);
        let result = result.map_err(|code| if version < VERSION_TXN_FENCED { unfenced(code) } else { code });
        Reply { after, response: AddOffsetsToTxnResponse::default().with_error_code(number(result)) }
    }

    /// A partition is added with what is written to it, where that [may be](Transactions::may_add). What is returned must be durable before.
    pub fn add_partition(
        &mut self,
        now: Now,
        id: &str,
        producer: (i64, i16),
        of: OffsetKey,
        touched: Touched,
    ) -> Result<Option<Mark>, Code> {
        let (mark, result) = self.extend(now, id, producer, |transaction| touch(transaction, of, touched));
        result.map(|()| mark)
    }

    /// Owners of partitions ask whether a producer may write to them in its transaction: each is open from where its claim says on, from before which no batch of the transaction comes.
    /// Whether they may, with what must be durable before, and where it is open from: then the transaction is known to have written there, whoever coordinates it.
    ///
    /// What is asked about an id at a time is recorded at a time: each record names all that the transaction has.
    pub fn claim(&mut self, now: Now, id: &str, claims: &[Claim]) -> Vec<Result<(Option<Mark>, u64), Code>> {
        let allowed: Vec<Result<(), Code>> = claims.iter().map(|claim| self.may_claim(id, claim)).collect();
        let first = claims.iter().zip(&allowed).find(|(_, allowed)| allowed.is_ok());
        let Some((Claim { producer, .. }, _)) = first else {
            return allowed.into_iter().map(|allowed| allowed.map(|()| (None, 0))).collect();
        };
        let mut open_from = vec![0; claims.len()];
        // Those that are allowed are all of the producer that has the id.
        let (mark, result) = self.extend(now, id, *producer, |transaction| {
            let granted = claims.iter().zip(&mut open_from).zip(&allowed).filter(|(_, allowed)| allowed.is_ok());
            granted.for_each(|((claim, from), _)| *from = open(transaction, claim));
        });
        if result == Err(Code::PolicyViolation) && claims.len() > 1 {
            // Some of them may fit.
            return claims.iter().flat_map(|claim| self.claim(now, id, std::slice::from_ref(claim))).collect();
        }
        let told = |(allowed, from): (Result<(), Code>, u64)| allowed.and(result).map(|()| (mark, from));
        allowed.into_iter().zip(open_from).map(told).collect()
    }

    /// Partitions are added that a producer is about to write to, in one record, where that [may be](Transactions::may_add).
    pub fn add_ahead(&mut self, now: Now, id: &str, claims: &[Claim]) {
        let Some(Claim { producer, .. }) = claims.first() else { return };
        let may_add = |claim: &&Claim| {
            let Claim { of, touched, adds, .. } = claim;
            let is_other = self.check_produce(id, *producer, of, touched.stream) == Err(Code::InvalidTxnState);
            claim.producer == *producer && is_other && self.may_add(id, *producer, of, touched.stream, *adds)
        };
        let added: Vec<&Claim> = claims.iter().filter(may_add).collect();
        if !added.is_empty() {
            // If not all of them fit, each is added in its turn as long as they do.
            let _ = self.extend(now, id, *producer, |transaction| {
                added.iter().for_each(|claim| touch(transaction, claim.of.clone(), claim.touched));
            });
        }
    }

    fn may_claim(&self, id: &str, Claim { producer, of, touched, adds }: &Claim) -> Result<(), Code> {
        match self.check_produce(id, *producer, of, touched.stream) {
            Err(Code::InvalidTxnState) if self.may_add(id, *producer, of, touched.stream, *adds) => Ok(()),
            checked => checked.map(drop),
        }
    }

    /// The number of the transaction that an id runs: later ones have larger numbers.
    pub fn number(&self, id: &str) -> i64 {
        self.transactions.get(id).map_or(-1, |held| held.is.started_ms)
    }

    /// TxnOffsetCommit of the second version: the group is added with that. What is returned must be durable before.
    pub fn add_group(&mut self, now: Now, id: &str, producer: (i64, i16), group: &str) -> Result<Option<Mark>, Code> {
        let (mark, result) = self.extend_by_group(now, id, producer, group);
        result.map(|()| mark)
    }

    /// Puts a group into a transaction, if a group may have that name: with one that cannot be read again all that its record says of the transaction
    /// would be lost.
    fn extend_by_group(
        &mut self,
        now: Now,
        id: &str,
        producer: (i64, i16),
        group: &str,
    ) -> (Option<Mark>, Result<(), Code>) {
        if group.is_empty() || !may_be_recorded(group) {
            return (None, Err(Code::InvalidGroupId));
        }
        self.extend(now, id, producer, |transaction| {
            transaction.groups.insert(group.to_owned());
        })
    }

    /// Puts more into a transaction, and records it unless it is in it already.
    fn extend(
        &mut self,
        now: Now,
        id: &str,
        (producer_id, epoch): (i64, i16),
        add: impl FnOnce(&mut Transaction),
    ) -> (Option<Mark>, Result<(), Code>) {
        let extended = || -> Result<Option<Mark>, Code> {
            self.check_id(id)?;
            let held = self.transactions.get(id).ok_or(Code::InvalidProducerIdMapping)?;
            producer::check(&held.is, producer_id, epoch)?;
            let mut next = producer::running(&held.is, now.wall_ms)?;
            add(&mut next);
            // Memory is bounded by what may begin: every partition of a transaction may be left with a range. What runs
            // can end, whatever there is.
            let begins = held.is.state != State::Ongoing;
            let is_full = begins && self.aborted >= self.config.aborted_max;
            let limits = [
                ("ranges that aborted transactions have left", is_full, self.config.aborted_max),
                ("partitions of a transaction", next.partitions.len() > PARTITIONS_MAX, PARTITIONS_MAX),
                ("groups of a transaction", next.groups.len() > GROUPS_MAX, GROUPS_MAX),
            ];
            if let Some((what, _, limit)) = limits.into_iter().find(|(_, is_over, _)| *is_over) {
                tell(what, id, limit);
                return Err(Code::PolicyViolation);
            }
            let is_known = held.is.state == State::Ongoing
                && held.is.partitions == next.partitions
                && held.is.groups == next.groups;
            if is_known { Ok(held.mark) } else { self.record(now, id, next).map(Some) }
        };
        match extended() {
            Ok(mark) => (mark, Ok(())),
            Err(code) => (None, Err(code)),
        }
    }

    /// EndTxn: decides the outcome. The answer may leave when the decision is durable; the markers follow.
    pub fn end(&mut self, now: Now, version: i16, request: &EndTxnRequest) -> Reply<EndTxnResponse> {
        let id = &**request.transactional_id;
        let producer = (request.producer_id.0, request.producer_epoch);
        let ended = if version >= VERSION_END_EPOCH {
            self.try_end(now, id, |is, ids| producer::ending_epoch(is, producer, request.committed, now.wall_ms, ids))
        } else {
            self.try_end(now, id, |is, _| {
                producer::check(is, producer.0, producer.1)?;
                producer::ending(is, request.committed, now.wall_ms)
            })
        };
        let after = ended.ok().flatten();
        let result = ended.map(|_| ());
        let result = result.map_err(|code| if version < VERSION_TXN_FENCED { unfenced(code) } else { code });
        let mut response = EndTxnResponse::default().with_error_code(number(result));
        if let Some(held) = self.transactions.get(id).filter(|_| version >= VERSION_END_EPOCH && result.is_ok()) {
            response = response.with_producer_id(ProducerId(held.is.producer_id)).with_producer_epoch(held.is.epoch);
        }
        Reply { after, response }
    }

    fn try_end(
        &mut self,
        now: Now,
        id: &str,
        decide: impl FnOnce(&Transaction, &mut dyn ProducerIds) -> Result<Option<Transaction>, Code>,
    ) -> Result<Option<Mark>, Code> {
        self.check_id(id)?;
        let held = self.transactions.get(id).ok_or(Code::InvalidProducerIdMapping)?;
        match decide(&held.is, &mut *self.ids)? {
            // It may be the outcome of a transaction before: if another node has come to coordinate the id, the one that is to be ended runs there, and
            // nobody here has heard of it. Only who still coordinates can record that nothing has changed.
            None => {
                let is = held.is.clone();
                self.record(now, id, is).map(Some)
            }
            Some(next) => {
                let mark = self.record(now, id, next)?;
                self.end_if_decided(id);
                Ok(Some(mark))
            }
        }
    }

    /// The markers of a transaction are durable, and its groups know: it is over, and has left `aborted`, which is recorded
    /// with its end. False if that is not the transaction that is being ended.
    ///
    /// # Errors
    /// It cannot be recorded now, and is to be said again.
    pub fn ended(&mut self, now: Now, ending: &Ending, aborted: &[AbortedRange]) -> Result<bool, AppendFailed> {
        let Some(held) = self.transactions.get(&ending.id) else { return Ok(false) };
        if producer::marked(&held.is) != (ending.producer_id, ending.epoch) {
            return Ok(false);
        }
        let Some(next) = producer::ended(&held.is, now.wall_ms) else { return Ok(false) };
        self.record_with(now, &ending.id, next, aborted).map_err(|_| AppendFailed)?;
        self.aborted += aborted.len();
        Ok(true)
    }

    /// Whether a producer may write to a partition of `topic` in its transaction, as Produce asks. What is returned must be
    /// durable before it writes: otherwise a crash could forget the transaction and keep the record.
    pub fn check_produce(
        &self,
        id: &str,
        (producer_id, epoch): (i64, i16),
        of: &OffsetKey,
        stream: StreamId,
    ) -> Result<Option<Mark>, Code> {
        let (transaction, mark) = self.running(id, producer_id, epoch)?;
        let is_in = transaction.partitions.get(of).is_some_and(|touched| touched.stream == stream);
        if is_in { Ok(mark) } else { Err(Code::InvalidTxnState) }
    }

    /// Whether a partition that a producer wishes to write to is to be added to its transaction, which does not have it: if the producer adds partitions by
    /// writing to them (`adds`), or if its topic was made again under its name since it was added. That is as in Kafka, whose transactions have
    /// partitions by their names. What was written to the topic before is gone with it. Ids of streams rise, and whoever has not heard of the later one
    /// yet does not bring back the one before: the marker would go there.
    pub fn may_add(
        &self,
        id: &str,
        (producer_id, epoch): (i64, i16),
        of: &OffsetKey,
        stream: StreamId,
        adds: bool,
    ) -> bool {
        let running = self.running(id, producer_id, epoch).ok();
        let known = running.and_then(|(transaction, _)| transaction.partitions.get(of));
        known.map_or(adds, |known| known.stream < stream)
    }

    /// Whether a producer may commit offsets of a group in its transaction, as TxnOffsetCommit asks. What is returned must be
    /// durable before.
    pub fn check_group(&self, id: &str, (producer_id, epoch): (i64, i16), group: &str) -> Result<Option<Mark>, Code> {
        let (transaction, mark) = self.running(id, producer_id, epoch)?;
        if transaction.groups.contains(group) { Ok(mark) } else { Err(Code::InvalidTxnState) }
    }

    fn running(&self, id: &str, producer_id: i64, epoch: i16) -> Result<(&Transaction, Option<Mark>), Code> {
        self.check_id(id)?;
        let held = self.transactions.get(id).ok_or(Code::InvalidProducerIdMapping)?;
        producer::check(&held.is, producer_id, epoch)?;
        match held.is.state {
            State::Ongoing => Ok((&held.is, held.mark)),
            State::Committing | State::Aborting => Err(Code::ConcurrentTransactions),
            State::Empty | State::Committed | State::Aborted => Err(Code::InvalidTxnState),
        }
    }

    /// DescribeTransactions. Of how many at most is for who asks to see to.
    pub fn describe(&self, request: &DescribeTransactionsRequest) -> DescribeTransactionsResponse {
        let describe = |id: &TransactionalId| {
            let described = Described::default().with_transactional_id(id.clone());
            let found =
                self.check_id(id).and_then(|()| self.transactions.get(&***id).ok_or(Code::TransactionalIdNotFound));
            match found {
                Err(code) => described.with_error_code(code.code()),
                Ok(Held { is, .. }) => {
                    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
                    for of in is.partitions.keys() {
                        topics.entry(&of.topic).or_default().push(of.partition);
                    }
                    let topics = topics.into_iter().map(|(topic, partitions)| {
                        let topic = TopicName(StrBytes::from_string(topic.to_owned()));
                        TopicData::default().with_topic(topic).with_partitions(partitions)
                    });
                    described
                        .with_transaction_state(StrBytes::from_static_str(producer::name(is.state)))
                        .with_transaction_timeout_ms(is.timeout_ms)
                        .with_transaction_start_time_ms(is.started_ms)
                        .with_producer_id(ProducerId(is.producer_id))
                        .with_producer_epoch(is.epoch)
                        .with_topics(topics.collect())
                }
            }
        };
        let states = request.transactional_ids.iter().map(describe);
        DescribeTransactionsResponse::default().with_transaction_states(states.collect())
    }

    /// ListTransactions: by state, producer and how long they run. Patterns (version 2) are not matched.
    pub fn list(&self, now: Now, request: &ListTransactionsRequest) -> ListTransactionsResponse {
        const STATES: [State; 6] =
            [State::Empty, State::Ongoing, State::Committing, State::Aborting, State::Committed, State::Aborted];
        if let Some(code) = self.refuses {
            return ListTransactionsResponse::default().with_error_code(code.code());
        }
        let is_unknown = |name: &&StrBytes| !STATES.iter().any(|state| producer::name(*state) == &***name);
        let unknown = request.state_filters.iter().filter(is_unknown).cloned().collect();
        let matches = |is: &Transaction| {
            let by_state = &request.state_filters;
            let by_producer = &request.producer_id_filters;
            let runs_ms = now.wall_ms.saturating_sub(is.started_ms);
            (by_state.is_empty() || by_state.iter().any(|name| &**name == producer::name(is.state)))
                && (by_producer.is_empty() || by_producer.iter().any(|of| of.0 == is.producer_id))
                && (request.duration_filter < 0 || (is.started_ms >= 0 && runs_ms > request.duration_filter))
        };
        let listed = self.transactions.iter().filter(|(_, held)| matches(&held.is)).map(|(id, held)| {
            Listed::default()
                .with_transactional_id(TransactionalId(StrBytes::from_string(id.clone())))
                .with_producer_id(ProducerId(held.is.producer_id))
                .with_transaction_state(StrBytes::from_static_str(producer::name(held.is.state)))
        });
        ListTransactionsResponse::default()
            .with_unknown_state_filters(unknown)
            .with_transaction_states(listed.collect())
    }

    fn check_id(&self, id: &str) -> Result<(), Code> {
        if let Some(code) = self.refuses.or(self.winds_down) {
            return Err(code);
        }
        let may_be = !id.is_empty() && id.len() <= TRANSACTIONAL_ID_BYTES_MAX && !id.starts_with(SYSTEM_PREFIX);
        may_be.then_some(()).ok_or(Code::InvalidRequest)
    }

    /// Records what becomes of an id, then lets it be so.
    fn record(&mut self, now: Now, id: &str, next: Transaction) -> Result<Mark, Code> {
        self.record_with(now, id, next, &[])
    }

    /// The same, and with it what an aborted transaction has left.
    fn record_with(&mut self, now: Now, id: &str, is: Transaction, aborted: &[AbortedRange]) -> Result<Mark, Code> {
        if let Some(code) = self.refuses {
            return Err(code);
        }
        if let Some(code) = self.winds_down {
            let ends = self.transactions.get(id).is_some_and(|held| !is_at_rest(&held.is));
            if !ends || is.state == State::Ongoing {
                return Err(code);
            }
        }
        let mut entries: Vec<Entry> = aborted.iter().copied().map(Entry::Aborted).collect();
        entries.push(Entry::Transaction(id.to_owned(), Some(is.clone())));
        let mark = self.journal.append(&entries).map_err(|AppendFailed| Code::CoordinatorNotAvailable)?;
        let wake_ms = self.transactions.get(id).map_or(u64::MAX, |held| held.wake_ms);
        let begins =
            is.state == State::Ongoing && self.transactions.get(id).is_none_or(|held| held.is.state != State::Ongoing);
        let goes_on = is.state == State::Ongoing && !begins;
        self.put(id.to_owned(), Held::new(is, Some(mark), wake_ms));
        if !goes_on {
            self.set_wake(now, id);
        }
        Ok(mark)
    }

    /// From now on: when a transaction has run for too long, or an id has not been used for too long.
    fn set_wake(&mut self, now: Now, id: &str) {
        let Some(held) = self.transactions.get_mut(id) else { return };
        self.wakes.remove(&(held.wake_ms, id.to_owned()));
        let in_ms = match held.is.state {
            State::Ongoing => i64::from(held.is.timeout_ms),
            State::Committing | State::Aborting => {
                held.wake_ms = u64::MAX;
                return;
            }
            _ => self.config.expiration_ms.saturating_sub(now.believed.age_ms(held.is.changed_ms)),
        };
        held.wake_ms = now.mono_ms.saturating_add(in_ms.max(1) as u64);
        self.wakes.insert((held.wake_ms, id.to_owned()));
    }

    /// What was due could not be done, or it was too early: it is due again a little later.
    fn retry_later(&mut self, now: Now, id: &str) {
        if let Some(held) = self.transactions.get_mut(id)
            && held.wake_ms == u64::MAX
            && !matches!(held.is.state, State::Committing | State::Aborting)
        {
            held.wake_ms = now.mono_ms.saturating_add(1_000);
            self.wakes.insert((held.wake_ms, id.to_owned()));
        }
    }

    /// Hands a transaction whose outcome is decided to the door.
    fn end_if_decided(&mut self, id: &str) {
        let Some(Held { is, mark, is_handed_over: false, .. }) = self.transactions.get(id) else { return };
        if matches!(is.state, State::Committing | State::Aborting) {
            let (producer_id, epoch) = producer::marked(is);
            self.endings.push(Ending {
                id: id.to_owned(),
                producer_id,
                epoch,
                commit: is.state == State::Committing,
                number: is.started_ms,
                partitions: is.partitions.clone(),
                groups: is.groups.clone(),
                after: *mark,
            });
        }
    }
}

/// Whether no transaction of an id runs or is being ended.
pub(crate) fn is_at_rest(of: &Transaction) -> bool {
    !matches!(of.state, State::Ongoing | State::Committing | State::Aborting)
}

/// Puts a partition into a transaction. Where it ended when it was first added counts, unless its topic was [made again](Transactions::may_add)
/// under its name.
fn touch(transaction: &mut Transaction, of: OffsetKey, touched: Touched) {
    let known = transaction.partitions.entry(of).or_insert(touched);
    if known.stream < touched.stream {
        *known = touched;
    }
}

/// Opens a partition that is claimed: from where it is open.
fn open(transaction: &mut Transaction, Claim { of, touched, .. }: &Claim) -> u64 {
    let known = transaction.partitions.entry(of.clone()).or_insert(*touched);
    // A topic that was made again under its name has taken the place of the one before. Otherwise the owner has written nothing before what it
    // names: what it named before may be in front of the marker of the transaction before this one.
    let goes_on = known.from_offset == NOT_WRITTEN || known.from_offset < touched.from_offset;
    if known.stream != touched.stream || goes_on {
        *known = *touched;
    }
    known.from_offset
}

/// What old clients call a fenced producer.
fn unfenced(code: Code) -> Code {
    if code == Code::ProducerFenced { Code::InvalidProducerEpoch } else { code }
}

fn number(result: Result<(), Code>) -> i16 {
    result.err().map_or(0, |code| code.code())
}
