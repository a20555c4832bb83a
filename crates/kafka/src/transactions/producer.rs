//! One transactional id: what may happen to it next.

use kafka_protocol::error::ResponseError as Code;
use kera_format::kafka_transactions::{Transaction, TransactionState as State};

use super::ProducerIds;

/// The last epoch that a producer gets; one more is kept for fencing it.
const EPOCH_LAST: i16 = i16::MAX - 1;

/// A producer that has just got its id.
pub(super) fn begin(producer_id: i64, timeout_ms: i32, now_ms: i64) -> Transaction {
    Transaction {
        state: State::Empty,
        producer_id,
        epoch: 0,
        last_epoch: -1,
        previous_producer_id: -1,
        timeout_ms,
        started_ms: -1,
        changed_ms: now_ms,
        partitions: Default::default(),
        groups: Default::default(),
    }
}

/// The time, which never goes back for an id: coordinators follow each other whose clocks differ.
fn later(known: &Transaction, now_ms: i64) -> i64 {
    now_ms.max(known.changed_ms)
}

/// Whether a request is this producer's: (id, epoch).
pub(super) fn check(transaction: &Transaction, producer_id: i64, epoch: i16) -> Result<(), Code> {
    if transaction.producer_id != producer_id {
        return Err(Code::InvalidProducerIdMapping);
    }
    if transaction.epoch == epoch { Ok(()) } else { Err(Code::ProducerFenced) }
}

/// What a producer's initialization leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It goes on under this.
    Changed(Transaction),
    /// It did so already, and did not get the answer.
    Retry,
    /// The transaction that ran is aborted first.
    Abort(Transaction),
}

/// A producer begins, or begins anew; `expected` is what it thinks it is.
pub(super) fn init(
    known: &Transaction,
    expected: Option<(i64, i16)>,
    timeout_ms: i32,
    now_ms: i64,
    ids: &mut dyn ProducerIds,
) -> Result<Begun, Code> {
    let is_current = |(id, epoch)| id == known.producer_id && epoch == known.epoch;
    let is_last = |(id, epoch): (i64, i16)| {
        let same = id == known.producer_id && known.last_epoch >= 0 && epoch == known.last_epoch;
        same || (id == known.previous_producer_id && epoch >= EPOCH_LAST && known.epoch == 0)
    };
    if !expected.is_none_or(|expected| is_current(expected) || is_last(expected)) {
        return Err(Code::ProducerFenced);
    }
    match known.state {
        State::Committing | State::Aborting => Err(Code::ConcurrentTransactions),
        State::Ongoing => {
            // Whoever has it now is fenced by the epoch, and its transaction is aborted under that. Versions before this one have given the
            // last epoch to producers: behind it there is none, and whoever has it is fenced by the id that comes next.
            let epoch = known.epoch.saturating_add(1);
            // If it is the producer itself it asks again, as who it was.
            let last_epoch = if expected.is_some() { known.epoch } else { -1 };
            Ok(Begun::Abort(Transaction { epoch, last_epoch, ..end(known, false, now_ms) }))
        }
        State::Empty | State::Committed | State::Aborted => {
            // Where its epochs are used up it goes on under another id: the last epoch is nobody's.
            if known.epoch <= EPOCH_LAST && expected.is_some_and(|expected| !is_current(expected) && is_last(expected))
            {
                if known.state == State::Empty {
                    return Ok(Begun::Retry);
                }
                // It was told to ask again until its transaction was aborted: that is over, and there is nothing to end any more.
                let (last_epoch, previous_producer_id) = (known.last_epoch, known.previous_producer_id);
                let fresh = begin(known.producer_id, timeout_ms, later(known, now_ms));
                let next = Transaction { epoch: known.epoch, last_epoch, previous_producer_id, ..fresh };
                return Ok(Begun::Changed(next));
            }
            let mut next = begin(known.producer_id, timeout_ms, later(known, now_ms));
            if known.epoch >= EPOCH_LAST {
                next = rotated(next, known, ids)?;
            } else {
                next.epoch = known.epoch + 1;
                next.last_epoch = if expected.is_some() { known.epoch } else { -1 };
                next.previous_producer_id = known.previous_producer_id;
            }
            Ok(Begun::Changed(next))
        }
    }
}

/// The transaction with more in it, from now on if none runs. It may not be in the middle of its end.
pub(super) fn running(known: &Transaction, now_ms: i64) -> Result<Transaction, Code> {
    match known.state {
        State::Committing | State::Aborting => Err(Code::ConcurrentTransactions),
        State::Ongoing => Ok(Transaction { changed_ms: later(known, now_ms), ..known.clone() }),
        State::Empty | State::Committed | State::Aborted => {
            // Later ones begin later: what has ended is told from what runs by this number.
            let begun_ms = now_ms.max(known.changed_ms.saturating_add(1));
            Ok(Transaction {
                state: State::Ongoing,
                started_ms: begun_ms,
                changed_ms: begun_ms,
                partitions: Default::default(),
                groups: Default::default(),
                ..known.clone()
            })
        }
    }
}

/// What a producer of the second version of transactions wishes to end, which gives it the next epoch: none if that has
/// happened, and the producer did not get the answer.
///
/// The epoch tells a repetition from the next wish: a transaction that is over was ended under the epoch before. There may be
/// nothing to abort, since such a producer does not know whether a record of it has arrived; that counts an epoch, too.
///
/// While a transaction is being ended everybody has to ask again, whatever the epoch: the producer has heard of the decision, and
/// may have begun and given up the next transaction before the markers of this one are written. Whoever is fenced learns it then.
pub(super) fn ending_epoch(
    known: &Transaction,
    (producer_id, epoch): (i64, i16),
    commit: bool,
    now_ms: i64,
    ids: &mut dyn ProducerIds,
) -> Result<Option<Transaction>, Code> {
    let is_current = (known.producer_id, known.epoch) == (producer_id, epoch);
    let before = if is_rotated(known) { known.previous_producer_id } else { known.producer_id };
    let is_again = known.last_epoch >= 0 && (before, known.last_epoch) == (producer_id, epoch);
    if producer_id != known.producer_id && !is_again {
        return Err(Code::InvalidProducerIdMapping);
    }
    match known.state {
        State::Committing | State::Aborting => return Err(Code::ConcurrentTransactions),
        State::Committed if is_again => return if commit { Ok(None) } else { Err(Code::InvalidTxnState) },
        // Time was up before the producer could commit: nobody asks twice for different ends.
        State::Aborted if is_again && commit => return Err(Code::ProducerFenced),
        // It was aborted under the epoch that nobody gets: the producer goes on under another id.
        State::Aborted if is_again && known.epoch > EPOCH_LAST => return rotated(known.clone(), known, ids).map(Some),
        State::Aborted if is_again => return Ok(None),
        _ if !is_current => return Err(Code::ProducerFenced),
        State::Ongoing => {}
        State::Empty | State::Committed | State::Aborted if commit => return Err(Code::InvalidTxnState),
        State::Empty | State::Committed | State::Aborted => {}
    }
    let mut next = end(known, commit, now_ms);
    if known.state != State::Ongoing {
        next = Transaction { state: State::Aborted, started_ms: -1, ..next };
        (next.partitions, next.groups) = Default::default();
    }
    next.last_epoch = known.epoch;
    if known.epoch >= EPOCH_LAST {
        // Its markers have the one epoch that is left; what comes next is another producer's.
        next = rotated(next, known, ids)?;
    } else {
        next.epoch += 1;
    }
    Ok(Some(next))
}

/// What comes next, under another id, since the epochs of the one before are used up.
fn rotated(next: Transaction, known: &Transaction, ids: &mut dyn ProducerIds) -> Result<Transaction, Code> {
    let producer_id = ids.next().ok_or(Code::CoordinatorNotAvailable)?;
    Ok(Transaction { producer_id, epoch: 0, previous_producer_id: known.producer_id, ..next })
}

/// Whether the producer's id is another one since its last transaction was ended.
fn is_rotated(known: &Transaction) -> bool {
    known.epoch == 0 && known.last_epoch >= EPOCH_LAST
}

/// Whose markers a transaction that is being ended has, and under which epoch.
pub(crate) fn marked(known: &Transaction) -> (i64, i16) {
    let is_ending = matches!(known.state, State::Committing | State::Aborting);
    if is_ending && is_rotated(known) {
        (known.previous_producer_id, i16::MAX)
    } else {
        (known.producer_id, known.epoch)
    }
}

/// What a producer's wish to end its transaction leads to; none: that has happened.
pub(super) fn ending(known: &Transaction, commit: bool, now_ms: i64) -> Result<Option<Transaction>, Code> {
    match (known.state, commit) {
        (State::Ongoing, _) => Ok(Some(end(known, commit, now_ms))),
        (State::Committed, true) | (State::Aborted, false) => Ok(None),
        (State::Committing, true) | (State::Aborting, false) => Err(Code::ConcurrentTransactions),
        _ => Err(Code::InvalidTxnState),
    }
}

/// The outcome is decided.
///
/// What was said of the transaction before goes: if that was the one that used up the epochs of the id before, the markers of this one
/// would be [taken](marked) for its.
fn end(known: &Transaction, commit: bool, now_ms: i64) -> Transaction {
    let state = if commit { State::Committing } else { State::Aborting };
    let last_epoch = if is_rotated(known) { -1 } else { known.last_epoch };
    Transaction { state, last_epoch, changed_ms: later(known, now_ms), ..known.clone() }
}

/// Time is up: the transaction is aborted, and its producer fenced. Nobody has the next epoch yet: if the producer wishes to
/// abort, or begins anew as who it was, it goes on under that.
pub(super) fn time_out(known: &Transaction, now_ms: i64) -> Transaction {
    let epoch = known.epoch.saturating_add(1);
    Transaction { epoch, last_epoch: known.epoch, ..end(known, false, now_ms) }
}

/// All markers are written.
pub(super) fn ended(known: &Transaction, now_ms: i64) -> Option<Transaction> {
    let state = match known.state {
        State::Committing => State::Committed,
        State::Aborting => State::Aborted,
        _ => return None,
    };
    Some(Transaction {
        state,
        started_ms: -1,
        changed_ms: later(known, now_ms),
        partitions: Default::default(),
        groups: Default::default(),
        ..known.clone()
    })
}

/// Kafka's name of a state.
pub(super) fn name(state: State) -> &'static str {
    match state {
        State::Empty => "Empty",
        State::Ongoing => "Ongoing",
        State::Committing => "PrepareCommit",
        State::Aborting => "PrepareAbort",
        State::Committed => "CompleteCommit",
        State::Aborted => "CompleteAbort",
    }
}
