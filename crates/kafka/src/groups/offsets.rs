//! The offsets of one group: committed, pending in a transaction, expired.
//!
//! A commit is recorded before it counts, and whatever is answered from here waits until everything recorded of the group
//! is durable: nobody is told an offset that a crash could take back, and none that was acknowledged is missing after one.
//! The order is kept by the caller's lock: record, then change, then answer with the group's last mark.

use std::collections::BTreeMap;
use std::ops::Bound;

use kafka_protocol::error::ResponseError as Code;
use kera_format::kafka_groups::{CommittedOffset, Fact, METADATA_BYTES_MAX, OffsetKey};

use super::api::AppendFailed;
use super::group::Turn;
use crate::limits_told::tell;

/// Facts that are recorded in one go: with their names and metadata they fit into a chunk.
const FACTS_AT_ONCE: usize = 512;
/// Offsets that one group may have pending, over all transactions.
const PENDING_MAX: usize = 1_000_000;

/// Bytes that an offset is counted for beside the name of its topic and its metadata.
const OFFSET_BYTES: usize = 192;

/// The offsets of a group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<OffsetKey, CommittedOffset>,
    /// By the producer whose transaction they belong to; each with its number in the order in which they were written.
    pending: BTreeMap<i64, BTreeMap<OffsetKey, (u64, CommittedOffset)>>,
    /// How many producers have an offset of a partition pending. A group may have a thousand producers, and mostly none of them has one of a partition that
    /// is committed or asked for, or the one alone whose transaction ends.
    writers: BTreeMap<OffsetKey, usize>,
    /// How many are pending, of all producers: counted, since each commit asks.
    pending_count: usize,
    /// The last of these numbers.
    pending_last: u64,
    /// Bytes that all of these take.
    bytes: usize,
}

/// What a request wants to commit for one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Option<&'a str>,
    /// How long it is kept, if the request says so.
    pub(super) retention_ms: Option<i64>,
}

impl Commit<'_> {
    /// What would be kept of it, if it may be.
    fn checked(&self, turn: &Turn<'_>) -> Result<(OffsetKey, CommittedOffset), Code> {
        let topic = turn.topics.topic(self.topic).ok_or(Code::UnknownTopicOrPartition)?;
        if u32::try_from(self.partition).map_or(true, |partition| partition >= topic.partitions) {
            return Err(Code::UnknownTopicOrPartition);
        }
        let metadata = self.metadata.unwrap_or_default();
        if metadata.len() > turn.config.metadata_bytes_max.min(METADATA_BYTES_MAX) {
            return Err(Code::OffsetMetadataTooLarge);
        }
        if self.offset < -1 {
            return Err(Code::InvalidRequest);
        }
        let committed = CommittedOffset {
            offset: self.offset,
            leader_epoch: self.leader_epoch,
            committed_ms: turn.now.wall_ms,
            expires_ms: self.retention_ms.map(|ms| turn.now.wall_ms.saturating_add(ms)),
            topic_id: topic.id.as_u128(),
            metadata: metadata.to_owned(),
        };
        Ok((OffsetKey { topic: self.topic.to_owned(), partition: self.partition }, committed))
    }
}

/// Bytes that an offset takes.
fn bytes_of(of: &OffsetKey, offset: &CommittedOffset) -> usize {
    OFFSET_BYTES + of.topic.len() + offset.metadata.len()
}

/// Has an offset in place of the one before, or none: the bytes that it takes, and those that the one before took.
fn put<V>(
    all: &mut BTreeMap<OffsetKey, V>,
    of: OffsetKey,
    offset: Option<V>,
    metadata_bytes: impl Fn(&V) -> usize,
) -> (usize, usize) {
    let named = OFFSET_BYTES + of.topic.len();
    let bytes = |offset: &V| named + metadata_bytes(offset);
    let more = offset.as_ref().map_or(0, bytes);
    let before = match offset {
        Some(offset) => all.insert(of, offset),
        None => all.remove(&of),
    };
    (more, before.as_ref().map_or(0, bytes))
}

#[cfg(test)]
thread_local! {
    /// How many places in offsets were looked at to find those of some topics, and producers for those that have one pending.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Offsets of topics that have one of these names, in order, each with what is said of the name. There may be many of the one and few of the other: names that have no offset, and
/// offsets that have no such name, are passed over together.
fn named<'a, V>(
    all: &'a BTreeMap<OffsetKey, V>,
    names: &BTreeMap<&str, Option<u128>>,
) -> Vec<(&'a OffsetKey, &'a V, Option<u128>)> {
    let (mut found, mut from) = (Vec::new(), Bound::Unbounded);
    while let Some((name, said)) = names.range::<str, _>((from, Bound::Unbounded)).next() {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        let first = OffsetKey { topic: (*name).to_owned(), partition: i32::MIN };
        let mut rest = all.range(first..).peekable();
        while let Some((of, offset)) = rest.next_if(|(of, _)| of.topic == *name) {
            found.push((of, offset, *said));
        }
        let Some((behind, _)) = rest.next() else { break };
        from = Bound::Included(&*behind.topic);
    }
    found
}

impl Offsets {
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.pending.is_empty()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The producers that have offsets pending.
    pub(super) fn pending_producers(&self) -> impl Iterator<Item = i64> {
        self.pending.keys().copied()
    }

    /// Bytes that all of them take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, counted now.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        let mut writers: BTreeMap<OffsetKey, usize> = BTreeMap::new();
        self.pending.values().flat_map(BTreeMap::keys).for_each(|of| *writers.entry(of.clone()).or_default() += 1);
        assert_eq!(self.writers, writers);
        assert_eq!(self.pending.values().map(BTreeMap::len).sum::<usize>(), self.pending_count);
        let pending = self.pending.values().flatten().map(|(of, (_, offset))| (of, offset));
        self.committed.iter().chain(pending).map(|(of, offset)| bytes_of(of, offset)).sum()
    }

    /// Takes what the journal says.
    pub(super) fn replay(&mut self, fact: Fact) {
        let (more, less) = match fact {
            Fact::Group(_) | Fact::Member(..) => return,
            Fact::Offset(of, offset) => put(&mut self.committed, of, offset, |offset| offset.metadata.len()),
            Fact::Pending(producer, of, offset) => {
                self.pending_last += 1;
                let offset = offset.map(|offset| (self.pending_last, offset));
                let was_pending = self.pending.get(&producer).is_some_and(|offsets| offsets.contains_key(&of));
                match (was_pending, offset.is_some()) {
                    (false, true) => {
                        *self.writers.entry(of.clone()).or_default() += 1;
                        self.pending_count += 1;
                    }
                    (true, false) => {
                        self.one_writer_less(&of);
                        self.pending_count -= 1;
                    }
                    (false, false) | (true, true) => {}
                }
                let pending = self.pending.entry(producer).or_default();
                let bytes = put(pending, of, offset, |(_, offset)| offset.metadata.len());
                if pending.is_empty() {
                    self.pending.remove(&producer);
                }
                bytes
            }
        };
        self.bytes = self.bytes + more - less;
    }

    fn one_writer_less(&mut self, of: &OffsetKey) {
        if let Some(writers) = self.writers.get_mut(of) {
            *writers -= 1;
            if *writers == 0 {
                self.writers.remove(of);
            }
        }
    }

    /// Everything, as the journal would tell it: what is pending in the order in which it was written.
    pub(super) fn facts(&self) -> impl Iterator<Item = Fact> {
        let committed = self.committed.iter().map(|(of, offset)| Fact::Offset(of.clone(), Some(offset.clone())));
        let mut pending: Vec<(u64, i64, &OffsetKey, &CommittedOffset)> = Vec::new();
        for (producer, offsets) in &self.pending {
            pending.extend(offsets.iter().map(|(of, (number, offset))| (*number, *producer, of, offset)));
        }
        pending.sort_unstable_by_key(|(number, ..)| *number);
        let fact = |(_, producer, of, offset): (u64, i64, &OffsetKey, &CommittedOffset)| {
            Fact::Pending(producer, of.clone(), Some(offset.clone()))
        };
        committed.chain(pending.into_iter().map(fact))
    }

    /// Records facts, and takes them, a piece at a time. If not all can be recorded: how many were.
    fn record(&mut self, turn: &mut Turn<'_>, facts: Vec<Fact>) -> Result<(), usize> {
        for (at, piece) in facts.chunks(FACTS_AT_ONCE).enumerate() {
            turn.append(piece.iter().cloned()).map_err(|_| at * FACTS_AT_ONCE)?;
            piece.iter().for_each(|fact| self.replay(fact.clone()));
        }
        Ok(())
    }

    /// Bytes of the offset whose place another one is to take.
    ///
    /// With a producer that is the one which it has pending; else the committed one, whose place it takes when the transaction ends. So a committed offset makes room for one that
    /// is pending, and for no second one: all of them together take at most twice what they may.
    fn replaced_bytes(&self, producer: Option<i64>, of: &OffsetKey) -> usize {
        let pending = producer.and_then(|producer| self.pending.get(&producer)?.get(of)).map(|(_, offset)| offset);
        let committed = || self.committed.get(of).filter(|_| producer.is_none() || !self.is_unstable(of));
        pending.or_else(committed).map_or(0, |offset| bytes_of(of, offset))
    }

    /// Nothing is pending any more of what was written for a partition in front of this number: that of an offset that is pending, or the last of all.
    fn none_pending_before<'a>(&'a self, of: &'a OffsetKey, number: u64) -> impl Iterator<Item = Fact> + 'a {
        let writers = self.writers.get(of).copied().unwrap_or(0);
        let others = writers.saturating_sub(usize::from(number < u64::MAX));
        let written = self.pending.iter().filter_map(move |(producer, offsets)| {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            offsets.get(of).map(|(written, _)| (*producer, *written))
        });
        let before = written.take(if others > 0 { writers } else { 0 }).filter(move |(_, written)| *written < number);
        before.map(move |(producer, _)| Fact::Pending(producer, of.clone(), None))
    }

    /// Commits offsets; one result for each, in their order. With a producer they wait for the end of its transaction; without one
    /// they count at once, and whatever is pending of the same partitions is older and does not count any more.
    pub(super) fn commit(
        &mut self,
        turn: &mut Turn<'_>,
        producer: Option<i64>,
        commits: &[Commit<'_>],
    ) -> Vec<Result<(), Code>> {
        let mut facts = Vec::with_capacity(commits.len());
        let mut results: Vec<Result<(), Code>> = Vec::with_capacity(commits.len());
        let mut bytes_left = turn.offset_bytes_left;
        for commit in commits {
            let fact = commit.checked(turn).and_then(|(of, offset)| {
                // Who takes no more than before may go on, however little is left.
                let more = bytes_of(&of, &offset).saturating_sub(self.replaced_bytes(producer, &of));
                let Some(left) = bytes_left.checked_sub(more) else {
                    tell("bytes that offsets of all groups take", &turn.head.id, turn.config.offset_bytes_max);
                    return Err(Code::PolicyViolation);
                };
                bytes_left = left;
                Ok(match producer {
                    None => Fact::Offset(of, Some(offset)),
                    Some(producer) => Fact::Pending(producer, of, Some(offset)),
                })
            });
            results.push(fact.map(|fact| facts.push(fact)));
        }
        let mut overtaken: Vec<Fact> = Vec::new();
        for fact in &facts {
            if let Fact::Offset(of, _) = fact {
                overtaken.extend(self.none_pending_before(of, u64::MAX));
            }
        }
        let (recorded, code) = if producer.is_some() && self.pending_count + facts.len() > PENDING_MAX {
            tell("pending offsets of a group", &turn.head.id, PENDING_MAX);
            (0, Code::PolicyViolation)
        } else {
            // Behind the offsets, in whose place nothing would be if they could not be recorded. Whoever is told of them waits for both.
            let is_all = overtaken.is_empty();
            let recorded = self.record(turn, facts).and_then(|()| self.record(turn, overtaken));
            let recorded = recorded.err().map_or(usize::MAX, |recorded| if is_all { recorded } else { 0 });
            (recorded, Code::CoordinatorNotAvailable)
        };
        results.iter_mut().filter(|result| result.is_ok()).skip(recorded).for_each(|result| *result = Err(code));
        results
    }

    /// The producer's transaction has ended: what it committed counts now, or never did. What was written last for a partition stays,
    /// in whichever order transactions end: what others had pending before does not count any more.
    pub(super) fn end_transaction(
        &mut self,
        turn: &mut Turn<'_>,
        producer: i64,
        commit: bool,
    ) -> Result<(), AppendFailed> {
        let Some(pending) = self.pending.get(&producer) else { return Ok(()) };
        let mut facts = Vec::with_capacity(2 * pending.len());
        for (of, (number, offset)) in pending {
            if commit {
                facts.push(Fact::Offset(of.clone(), Some(offset.clone())));
                // In front of its own: who has to begin again finds what is left of both.
                facts.extend(self.none_pending_before(of, *number));
            }
            facts.push(Fact::Pending(producer, of.clone(), None));
        }
        self.record(turn, facts).map_err(|_| AppendFailed)
    }

    /// Whether a transaction that has not ended may still change the offset.
    pub(super) fn is_unstable(&self, of: &OffsetKey) -> bool {
        self.writers.contains_key(of)
    }

    /// The committed offset, if the topic is still the one that it was committed for.
    pub(super) fn get(&self, turn: &Turn<'_>, of: &OffsetKey) -> Option<&CommittedOffset> {
        let offset = self.committed.get(of)?;
        let another = |id: u128| offset.topic_id != 0 && id != offset.topic_id;
        let replaced = turn.topics.topic(&of.topic).is_some_and(|topic| another(topic.id.as_u128()));
        (!replaced).then_some(offset)
    }

    /// All partitions that have an offset, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &OffsetKey> {
        self.committed.keys()
    }

    /// The topics of all that is committed or pending, each at least once.
    pub(super) fn topics(&self) -> impl Iterator<Item = &String> {
        self.committed.keys().chain(self.pending.values().flat_map(BTreeMap::keys)).map(|of| &of.topic)
    }

    /// How many partitions have an offset.
    pub(super) fn len(&self) -> usize {
        self.committed.len()
    }

    /// Forgets offsets.
    pub(super) fn delete(&mut self, turn: &mut Turn<'_>, of: &[OffsetKey]) -> Result<(), Code> {
        let mut facts = Vec::new();
        for key in of {
            if self.committed.contains_key(key) {
                facts.push(Fact::Offset(key.clone(), None));
            }
            facts.extend(self.none_pending_before(key, u64::MAX));
        }
        self.record(turn, facts).map_err(|_| Code::CoordinatorNotAvailable)
    }

    /// Forgets everything about topics that are gone: `names` are theirs, each with the id of the topic that was made again under it, if there is one. What is of that one
    /// stays.
    pub(super) fn delete_topics(
        &mut self,
        turn: &mut Turn<'_>,
        names: &BTreeMap<&str, Option<u128>>,
    ) -> Result<(), Code> {
        let committed = named(&self.committed, names).into_iter();
        let committed = committed.filter(|(_, offset, again)| *again != Some(offset.topic_id));
        let committed = committed.map(|(of, ..)| Fact::Offset(of.clone(), None));
        let pending = self.pending.iter().flat_map(|(producer, offsets)| {
            let named = named(offsets, names).into_iter();
            let gone = named.filter(|(_, (_, offset), again)| *again != Some(offset.topic_id));
            gone.map(|(of, ..)| Fact::Pending(*producer, of.clone(), None))
        });
        let gone = committed.chain(pending).collect();
        self.record(turn, gone).map_err(|_| Code::CoordinatorNotAvailable)
    }

    /// Forgets offsets whose time is up. `since_ms`: an offset is not older than this, if given. `is_read`: topics that are
    /// read now keep theirs.
    pub(super) fn expire(
        &mut self,
        turn: &mut Turn<'_>,
        since_ms: Option<i64>,
        is_read: impl Fn(&str) -> bool,
    ) -> Result<(), Code> {
        let (now, retention_ms) = (turn.now.believed, turn.config.offsets_retention_ms);
        let is_over = |offset: &CommittedOffset| match offset.expires_ms {
            Some(expires_ms) => now.age_ms(offset.committed_ms) >= expires_ms.saturating_sub(offset.committed_ms),
            None => {
                let from_ms = offset.committed_ms.max(since_ms.unwrap_or(i64::MIN));
                now.age_ms(from_ms) >= retention_ms
            }
        };
        let expired = |(of, offset): (&OffsetKey, &CommittedOffset)| {
            (is_over(offset) && !is_read(&of.topic) && !self.is_unstable(of)).then(|| of.clone())
        };
        let gone: Vec<OffsetKey> = self.committed.iter().filter_map(expired).collect();
        self.delete(turn, &gone)
    }
}
