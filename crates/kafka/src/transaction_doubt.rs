//! Transactional ids of which a damaged journal may have lost something, of a node that goes on without what it cannot read.
//!
//! Such an id has the state that stands in front of what is lost, and may have had other transactions since, under other epochs. If it got one of these again, its first
//! batch under it would be taken for a repetition of what was written under it before, and be acknowledged without being there. So its producer gets another id, unless its
//! partitions say that it has begun nothing since.
//!
//! A transaction that runs in that state, or is being ended, may be over. If it is, and its producer has committed others since, to abort
//! it now would hide those: readers pass over what the producer has written up to the marker. But how it ended is written in the partitions: the
//! first marker there of its producer, from where it began, is its own.
//!
//! On the starting thread, which may wait for the disk, before anybody is served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::kafka_batch::KafkaBatchView;
use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Touched, Transaction, TransactionState};
use kera_format::{ChunkView, StreamId};
use kera_log::{Arrived, Lane, Lookup, Observer, Tenure};

use crate::batch::{Marker, marker_of};
use crate::groups::AppendFailed;
use crate::transactions::{Transactions, is_at_rest, marked};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// What the partitions say of a transaction.
struct Said {
    /// Whether it was committed, if one of them says how it ended.
    commits: Option<bool>,
    /// Its producer has begun another one since: it was over, in its groups too.
    is_over: bool,
    /// Those that have no marker of it yet.
    left: BTreeMap<OffsetKey, Touched>,
    aborted: Vec<AbortedRange>,
}

/// Brings these ids in line with what partitions say: transactions that have ended there are over, and what was aborted is known again, and given
/// out. Of a partition that has a marker of it none is written any more; in the others it ends as it did there, or goes on if it has ended in none. Whose
/// transaction does not go on gets another id next.
///
/// Some may not say whether it has ended there. If another one says that it has not, its producer has begun no other one, and it ends in them as well. If none does it ends in
/// them without a trace, so that nothing that was committed is hidden.
///
/// `pending`: the groups that have offsets pending here, each with the producer whose they are. The journal may have lost that they were added: a transaction that was running
/// and has not ended in all of its partitions gets those of its producer. What is pending there is its own, since its producer begins another one only when this one has a marker
/// in all of them.
///
/// # Errors
/// The journal does not take it: transactions must not be served.
pub(crate) fn settle(
    all: &mut Transactions,
    in_doubt: &BTreeSet<String>,
    pending: &[(String, i64)],
    lane_of: impl Fn(StreamId, i32) -> Option<Arc<Lane>>,
) -> Result<Vec<AbortedRange>, AppendFailed> {
    let mut aborted = Vec::new();
    let mut pending_of: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for (group, producer_id) in pending {
        pending_of.entry(*producer_id).or_default().insert(group.clone());
    }
    for id in in_doubt {
        let Some(known) = all.known(id) else { continue };
        let outcome = if is_at_rest(known) {
            Some((without_epochs(known), Vec::new()))
        } else {
            outcome(id, known, pending_of.get(&marked(known).0), &lane_of)
        };
        if let Some((next, left)) = outcome {
            all.settle(id, next, &left)?;
            aborted.extend(left);
        }
    }
    Ok(aborted)
}

/// What a transaction that had not ended is now, and what it has left in partitions where it was aborted; `None`: it goes on as it is known.
/// `pending`: the groups in which its producer has offsets pending.
fn outcome(
    id: &str,
    known: &Transaction,
    pending: Option<&BTreeSet<String>>,
    lane_of: impl Fn(StreamId, i32) -> Option<Arc<Lane>>,
) -> Option<(Transaction, Vec<AbortedRange>)> {
    let mut groups = known.groups.clone();
    if known.state == TransactionState::Ongoing {
        groups.extend(pending.into_iter().flatten().cloned());
    }
    let said = ask(id, known, !groups.is_empty(), lane_of);
    let has_not_ended = !said.left.is_empty();
    let goes_on = said.commits.is_none() && has_not_ended;
    if goes_on && said.left.len() == known.partitions.len() && groups == known.groups {
        return None;
    }
    let mut next = if goes_on { known.clone() } else { without_epochs(known) };
    next.partitions = said.left;
    if has_not_ended {
        next.groups = groups;
    }
    if let Some(commits) = said.commits {
        next.state = if commits { TransactionState::Committing } else { TransactionState::Aborting };
        tracing::warn!(
            id,
            commits,
            "how a transaction has ended is not in the journal any more, but in its partitions"
        );
    }
    if said.is_over {
        // They were told: what its producer has pending there is another transaction's.
        next.groups.clear();
    }
    Some((next, said.aborted))
}

/// An id whose producer may have had any epoch since: it gets another id, as who has used up its epochs.
fn without_epochs(known: &Transaction) -> Transaction {
    let producer_id = marked(known).0;
    Transaction { producer_id, previous_producer_id: -1, epoch: i16::MAX, last_epoch: -1, ..known.clone() }
}

/// `has_groups`: whether it matters to a group if its producer has begun another one.
fn ask(id: &str, known: &Transaction, has_groups: bool, lane_of: impl Fn(StreamId, i32) -> Option<Arc<Lane>>) -> Said {
    let mut said = Said { commits: None, is_over: false, left: BTreeMap::new(), aborted: Vec::new() };
    let (mut silent, mut ended) = (Vec::new(), Vec::new());
    let producer_id = marked(known).0;
    for (of, touched) in &known.partitions {
        let (Some(lane), Ok(partition)) = (lane_of(touched.stream, of.partition), u32::try_from(of.partition)) else {
            continue;
        };
        match first_marker(&lane, producer_id, touched.from_offset) {
            Ok(None) => drop(said.left.insert(of.clone(), *touched)),
            Ok(Some((marker_offset, marker))) => {
                said.commits = Some(marker.commits);
                let range = AbortedRange {
                    stream: touched.stream,
                    partition,
                    producer_id,
                    first_offset: touched.from_offset,
                    marker_offset,
                    // What ran then is not known.
                    stable_offset: 0,
                    epoch: marker.epoch,
                };
                said.aborted.extend((!marker.commits).then_some(range));
                ended.push((lane, marker_offset + 1));
            }
            Err(why) => silent.push((of, touched, why)),
        }
    }
    // Nobody wants to know it of one without groups, and partitions may be long.
    said.is_over = has_groups && ended.iter().any(|(lane, from)| has_begun_another(lane, producer_id, *from));
    let has_not_ended = !said.left.is_empty();
    for (of, touched, why) in silent {
        if has_not_ended {
            said.left.insert(of.clone(), *touched);
            continue;
        }
        let (OffsetKey { topic, partition }, first) = (of, touched.from_offset);
        tracing::warn!(
            id,
            topic,
            partition,
            first,
            why,
            "what a transaction has written there is shown, whether it was aborted or not"
        );
    }
    said
}

/// Whether a producer has written to a partition in a transaction, at an offset or behind it. Behind the marker of its transaction that is another one, which
/// begins only when the one before has ended in all of its partitions and groups. A second marker does not say so: a start writes one again that was on its way. False also where the
/// disk does not give it.
fn has_begun_another(lane: &Arc<Lane>, producer_id: i64, from: u64) -> bool {
    let is_its = |batch: &KafkaBatchView<'_>| {
        batch.producer_id() == producer_id && batch.is_transactional() && !batch.is_control()
    };
    let found = find(lane, from, |data| {
        for chunk in Chunks::new(data) {
            let (base, batch) = batch_of(&chunk.map_err(|error| error.to_string())?)?;
            if batch.filter(|_| base >= from).as_ref().is_some_and(is_its) {
                return Ok(Some(()));
            }
        }
        Ok(None)
    });
    matches!(found, Ok(Some(())))
}

/// The first marker of a producer at an offset or behind it, and where it is. The transaction that it ends is the one that has written whatever there is of the
/// producer between the two, also where retention has taken the beginning.
///
/// # Errors
/// It may have been where something is not there any more: compaction takes markers out, and a disk loses some.
fn first_marker(lane: &Arc<Lane>, producer_id: i64, from: u64) -> Result<Option<(u64, Marker)>, String> {
    let mut search = Search::new(producer_id, from, lane.earliest().1);
    find(lane, from, |data| search.look(data))
}

/// Reads a partition from an offset on, some whole chunks at a time, until `look` finds what it looks for; `None`: it is not there up to the durable end.
///
/// # Errors
/// The partition cannot be read here, or `look` says why it is of no use.
fn find<T>(
    lane: &Arc<Lane>,
    from: u64,
    mut look: impl FnMut(&[u8]) -> Result<Option<T>, String>,
) -> Result<Option<T>, String> {
    if lane.tenure() == Tenure::Elsewhere {
        return Err("another node owns it".to_owned());
    }
    let arrived = Arc::new(Arrived::default());
    let observer: Arc<dyn Observer> = Arc::clone(&arrived) as _;
    let cannot = |error: kera_log::ReadError| error.to_string();
    let mut cursor = loop {
        match lane.lookup_ordinal(from).map_err(cannot)? {
            Lookup::Found { cursor, .. } => break cursor,
            Lookup::Loading(version) if lane.wait(version, &observer, 0) => arrived.wait(),
            Lookup::Loading(_) => {}
        }
    };
    loop {
        let outcome = lane.read(cursor, READ_BYTES, true).map_err(cannot)?;
        for data in &outcome.data {
            if let Some(found) = look(data)? {
                return Ok(Some(found));
            }
        }
        cursor = outcome.next;
        if outcome.loading {
            if lane.wait(outcome.version, &observer, 0) {
                arrived.wait();
            }
        } else if outcome.at_durable_end {
            return Ok(None);
        }
    }
}

/// Where a chunk begins, and the batch of a Kafka client that is in it.
fn batch_of<'a>(chunk: &ChunkView<'a>) -> Result<(u64, Option<KafkaBatchView<'a>>), String> {
    let base = chunk.broker().map_err(|error| error.to_string())?.base_ordinal;
    let is_batch = chunk.header().kind == PayloadKind::KafkaBatch;
    Ok((base, is_batch.then(|| KafkaBatchView::parse(chunk.payload()).ok()).flatten()))
}

/// Looks for a producer's marker in chunk after chunk.
pub(crate) struct Search {
    producer_id: i64,
    from: u64,
    /// What comes next if nothing was taken out.
    expected: u64,
}

impl Search {
    /// From an offset on. Nothing is in front of `earliest` any more.
    pub(crate) fn new(producer_id: i64, from: u64, earliest: u64) -> Search {
        Search { producer_id, from, expected: from.max(earliest) }
    }

    /// Looks at whole chunks: the marker, if it is there.
    ///
    /// # Errors
    /// Something was taken out in front of them.
    pub(crate) fn look(&mut self, data: &[u8]) -> Result<Option<(u64, Marker)>, String> {
        for chunk in Chunks::new(data) {
            let chunk = chunk.map_err(|error| error.to_string())?;
            let (base, batch) = batch_of(&chunk)?;
            if base > self.expected {
                return Err(format!("nothing is at offset {} any more", self.expected));
            }
            self.expected = base + u64::from(chunk.header().record_count);
            let marker = batch.filter(|_| base >= self.from).as_ref().and_then(marker_of);
            if let Some(marker) = marker.filter(|marker| marker.producer_id == self.producer_id) {
                return Ok(Some((base, marker)));
            }
        }
        Ok(None)
    }
}
