//! The journal of a coordinator of transactions: how it is appended to, read by a node that is or was alone, and written anew.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use kera_format::StreamId;
use kera_format::kafka_transactions::{AbortedRange, Entry};
use kera_log::ReadError;

use crate::groups::{AppendFailed, Mark};
use crate::state_log::{Bounded, Damage, StateLog, cannot_be_read, pieces};
use crate::transaction_door::TRANSACTIONS_STREAM;
use crate::transaction_founding::is_wound_down;
use crate::transactions::{TransactionJournal, Transactions};

/// Bytes of one append of a copy.
const COPY_STEP_BYTES: usize = 256 << 10;

/// A coordinator's handle on its log.
pub(crate) struct Handle(pub(crate) Option<Arc<StateLog<Entry>>>);

impl TransactionJournal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.0.as_ref().ok_or(AppendFailed)?.append(entries)
    }
}

/// What a node that is or was alone has kept, beside what its coordinator is told.
pub(crate) struct Own {
    /// What aborted transactions have left.
    pub(crate) aborted: HashMap<(StreamId, u32, i64, u64), AbortedRange>,
    /// It is recorded that nothing begins there any more.
    pub(crate) wound_down: bool,
    /// Something could not be read, and is done without.
    pub(crate) is_damaged: bool,
    /// Ids that were known in front of that, and of which nothing is behind it: any of them may have had transactions since, and other epochs.
    pub(crate) in_doubt: BTreeSet<String>,
}

/// Reads the journal of a node into its coordinator. Blocks the thread while segments come from disk.
///
/// A part of it that cannot be read may have said that a transaction was aborted, or has not ended. Whoever went on without would show records as
/// committed that are not; and records say nothing of what was decided and has no marker. So that is for a person to decide, who says so with
/// `accept_damage` as for all else that a disk has lost. What stands in front of a whole copy that was written since is not needed.
///
/// # Errors
/// It cannot be read, and nobody has said that this is accepted: what to do is in the error.
pub(crate) fn read_own(log: &StateLog<Entry>, coordinator: &mut Transactions, accept_damage: bool) -> io::Result<Own> {
    let mut own = Own { aborted: HashMap::new(), wound_down: false, is_damaged: false, in_doubt: BTreeSet::new() };
    let mut damage = Damage::default();
    let replayed = log.replay_past_damage(|entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                damage.meet(error);
                own.in_doubt.extend(coordinator.ids().cloned());
                return;
            }
        };
        if entry.edge().is_some_and(|edge| damage.pass(edge)) {
            own.in_doubt.clear();
        }
        own.wound_down = is_wound_down(&entry) || (own.wound_down && !matches!(entry, Entry::Transaction(_, Some(_))));
        match entry {
            Entry::Transaction(id, transaction) => {
                own.in_doubt.remove(&id);
                coordinator.replay(id, transaction);
            }
            Entry::Aborted(range) => {
                let AbortedRange { stream, partition, producer_id, first_offset, .. } = range;
                own.aborted.insert((stream, partition, producer_id, first_offset), range);
            }
        }
    });
    let (records, passed_over) = replayed.map_err(|error| unread_error(&error))?;
    own.is_damaged = damage.unread.is_some();
    match damage.unread {
        Some(error) if !accept_damage => return Err(unread_error(&error)),
        Some(error) => tracing::error!(
            %error,
            "{TRANSACTIONS_STREAM} could not be read as a whole, and the node goes on without, as it was told: what was aborted or had not ended \
             and is not known any more is shown to readers"
        ),
        None => {}
    }
    let ranges = own.aborted.len();
    coordinator.count_aborted(ranges);
    if own.wound_down {
        coordinator.hand_over_all();
    }
    tracing::info!(records, passed_over, ranges, "Kafka transactions are read");
    Ok(own)
}

fn unread_error(why: &ReadError) -> io::Error {
    cannot_be_read(TRANSACTIONS_STREAM, "what transactions have decided and aborted", why)
}

/// Writes all ids anew.
pub(crate) fn copy_ids(log: &StateLog<Entry>, all: &Transactions) -> Result<usize, AppendFailed> {
    let (mut behind, mut copied) = (None, 0);
    loop {
        let (entries, next) = all.snapshot(behind.as_deref(), COPY_STEP_BYTES);
        for piece in pieces(&entries) {
            log.append(piece)?;
        }
        copied += entries.len();
        behind = next;
        if behind.is_none() {
            return Ok(copied);
        }
    }
}
