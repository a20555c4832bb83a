//! A consumer group: the coordinator assigns partitions, and each member comes to its assignment on its own way.
//!
//! ```text
//! somebody joins, leaves, dies, or subscribes anew; topics change ─▶ the group's epoch rises
//! the next heartbeat of anybody ─▶ a target for that epoch: who should have what (of very many not more often than is worth it)
//! each member's heartbeats ─▶ give back what is no longer its own, then the epoch, then take what others gave back
//! ```
//! Nobody stops: who keeps its partitions goes on reading them all the time. The epoch is recorded before anybody hears of
//! it, and so is what becomes of a member.

mod assignor;
mod changing;
mod describe;
mod heartbeat;
mod keeping;
mod member;
mod pattern;
mod spoken;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use kafka_protocol::error::ResponseError as Code;
use kera_format::kafka_groups::GroupKind;
use regex::bytes::{Regex, RegexBuilder};
use uuid::Uuid;

use super::api::{AppendFailed, Topic, Topics};
use super::changing::CONSUMERS;
use super::group::Turn;
use assignor::{Assignment, Subscriber};
use member::{AWAY, Member, Step, names_bytes};

/// Bytes that a compiled pattern may take, and what matching may keep beside it.
const PATTERN_COMPILED_BYTES_MAX: usize = 64 << 10;
/// Bytes that a partition is counted for: with who has it, and with who should have it.
const HELD_BYTES: usize = 48;
const TARGET_BYTES: usize = 16;
/// Bytes that a topic is counted for with everybody who has or should have some of it, and with the group beside its name.
const ASSIGNED_TOPIC_BYTES: usize = 256;
const TOPIC_BYTES: usize = 64;
/// A target of fewer partitions and members than this is made at once. Of more one is made only so many milliseconds after the one before as it has this many of them, and
/// the most that it may be: each looks at all of them, and a thousand members that join would make a thousand of it.
const WORK_AT_ONCE: u64 = 1_000;
const WORK_PER_MS: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// From here on members of consumer groups may commit.
const VERSION_COMMIT: i16 = 9;

#[cfg(test)]
thread_local! {
    /// How often a topic's name was compared with a pattern.
    pub(super) static MATCHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// How many targets were made, and how often all topics that somebody wants were gone through.
    pub(super) static ASSIGNED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    pub(super) static LOOKED_UP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A pattern that can be matched.
#[derive(Debug)]
struct Pattern {
    regex: Regex,
    /// The topics that match, and of which version of all topics that is so.
    matches: BTreeSet<String>,
    version: Option<u64>,
}

impl Pattern {
    fn is_match(&self, name: &str) -> bool {
        #[cfg(test)]
        MATCHED.set(MATCHED.get() + 1);
        self.regex.is_match(name.as_bytes())
    }
}

/// A group whose coordinator assigns.
#[derive(Debug)]
pub(super) struct ConsumerGroup {
    epoch: i32,
    /// The epoch that the target was made for.
    target_epoch: i32,
    /// When the next target may be made, on the monotonic clock.
    assign_from_ms: u64,
    members: BTreeMap<String, Member>,
    /// Members by the name that outlives them.
    instances: BTreeMap<String, String>,
    /// Who should have what, and the bytes that this takes.
    target: BTreeMap<String, Assignment>,
    target_bytes: usize,
    /// How many members speak the classic protocol.
    spoken: usize,
    /// All partitions that some member has or has not given back.
    held: HashSet<(Uuid, i32)>,
    /// The topics that somebody subscribes to and that exist, as they were when this was looked up.
    topics: BTreeMap<String, Topic>,
    topics_version: Option<u64>,
    /// Somebody is gone since then who may have been the last to want some of them.
    topics_are_left: bool,
    /// Patterns of the members.
    patterns: BTreeMap<String, Pattern>,
    /// Bytes that these topics take.
    topics_bytes: usize,
    /// Members that are not, or are no more, what the journal tells of them.
    unkept: BTreeSet<String>,
    /// Whether the journal tells of all others.
    is_kept: bool,
}

impl ConsumerGroup {
    /// A group without members.
    pub(super) fn new(epoch: i32) -> ConsumerGroup {
        ConsumerGroup {
            epoch,
            target_epoch: epoch,
            assign_from_ms: 0,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            target: BTreeMap::new(),
            target_bytes: 0,
            spoken: 0,
            held: HashSet::new(),
            topics: BTreeMap::new(),
            topics_version: None,
            topics_are_left: false,
            patterns: BTreeMap::new(),
            topics_bytes: 0,
            unkept: BTreeSet::new(),
            is_kept: false,
        }
    }

    pub(super) fn epoch(&self) -> i32 {
        self.epoch
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Bytes that are taken by who has what, who should have what, and the topics that this is about.
    pub(super) fn made_bytes(&self) -> usize {
        self.held.len() * HELD_BYTES + self.target_bytes + self.topics_bytes
    }

    #[cfg(test)]
    pub(super) fn member_bytes(&self) -> usize {
        self.members.iter().map(|(id, member)| member.bytes(id)).sum()
    }

    pub(super) fn is_subscribed(&self, topic: &str) -> bool {
        !self.is_empty() && self.topics.contains_key(topic)
    }

    /// Whether a commit of offsets is the member's.
    pub(super) fn check_commit(&self, member_id: &str, epoch: i32, version: i16) -> Result<(), Code> {
        if epoch < 0 && self.is_empty() {
            return Ok(());
        }
        let member = self.members.get(member_id).ok_or(Code::UnknownMemberId)?;
        if version < VERSION_COMMIT && member.spoken.is_none() {
            return Err(Code::UnsupportedVersion);
        }
        member.check_said(epoch)
    }

    /// The same for a commit in a transaction. Whoever says nothing of a member is taken at its word, as in Kafka: the producer's epoch
    /// fences it, and producers of old clients know of no members.
    pub(super) fn check_transactional_commit(
        &self,
        member_id: &str,
        instance: Option<&str>,
        epoch: i32,
    ) -> Result<(), Code> {
        if epoch == -1 && member_id.is_empty() && instance.is_none() {
            return Ok(());
        }
        match self.check_commit(member_id, epoch, i16::MAX) {
            Err(Code::StaleMemberEpoch) => Err(Code::IllegalGeneration),
            other => other,
        }
    }

    /// Whether somebody who says who it is may see offsets.
    pub(super) fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), Code> {
        if member_id.is_none() && epoch < 0 {
            return Ok(());
        }
        member_id.and_then(|id| self.members.get(id)).ok_or(Code::UnknownMemberId)?.check_said(epoch)
    }

    /// Removes a member, by its id or by the name that outlives it.
    pub(super) fn remove(&mut self, turn: &mut Turn<'_>, member_id: &str, instance: Option<&str>) -> Result<(), Code> {
        let owner = instance.map(|instance| self.instances.get(instance).ok_or(Code::UnknownMemberId)).transpose()?;
        let id = match owner {
            Some(owner) if member_id.is_empty() || owner == member_id => owner.clone(),
            Some(_) => return Err(Code::FencedInstanceId),
            None => member_id.to_owned(),
        };
        if !self.members.contains_key(&id) {
            return Err(Code::UnknownMemberId);
        }
        self.remove_member(turn, &id);
        Ok(())
    }

    /// A member is gone: what it had is free, and others should get it.
    fn remove_member(&mut self, turn: &mut Turn<'_>, id: &str) {
        let Some(member) = self.members.remove(id) else { return };
        turn.head.member_bytes -= member.bytes(id);
        self.spoken -= usize::from(member.spoken.is_some());
        for of in member.held() {
            self.held.remove(&of);
        }
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        self.target_bytes -= self.target.remove(id).map_or(0, |target| target_bytes(&target));
        self.unkept.insert(id.to_owned());
        self.epoch = self.epoch.saturating_add(1);
        self.topics_are_left |= !self.others_want_the_same(id, &member);
        if self.is_empty() {
            (self.target_epoch, self.assign_from_ms) = (self.epoch, 0);
            self.topics.clear();
            self.patterns.clear();
            self.topics_bytes = 0;
            self.topics_version = None;
        }
        // If that fails it is done before the next answer: nobody has heard of the epoch.
        let _ = self.store(turn).and_then(|()| self.keep(turn));
    }

    /// Records the epoch, unless that is done.
    fn store(&self, turn: &mut Turn<'_>) -> Result<(), AppendFailed> {
        let is_done = turn.head.stored.as_ref().is_some_and(|stored| {
            stored.kind == GroupKind::Consumer
                && stored.epoch == self.epoch.max(0) as u32
                && stored.members != self.is_empty()
        });
        if is_done { Ok(()) } else { turn.store(GroupKind::Consumer, !self.is_empty(), self.epoch, CONSUMERS) }
    }

    /// Throws out whoever is silent, or does not give back, for too long.
    pub(super) fn tick(&mut self, turn: &mut Turn<'_>) {
        let now_ms = turn.now.mono_ms;
        let is_over = |(id, member): (&String, &Member)| (member.next_deadline_ms() <= now_ms).then(|| id.clone());
        let lost: Vec<String> = self.members.iter().filter_map(is_over).collect();
        for id in lost {
            self.remove_member(turn, &id);
        }
        self.wake(turn);
    }

    /// Asks to be woken when somebody is to be thrown out.
    fn wake(&self, turn: &mut Turn<'_>) {
        turn.wake(self.members.values().map(Member::next_deadline_ms).min().unwrap_or(u64::MAX));
    }

    /// Looks up the topics that members subscribe to. Whether they are others than before.
    ///
    /// Members that share a subscription are many, and topics may be: as long as there are no others, those that are known are not looked up again for each who joins.
    fn look_up(&mut self, topics: &dyn Topics) -> bool {
        let version = topics.version();
        let is_as_before = self.topics_version.replace(version) == Some(version);
        self.topics_are_left = false;
        #[cfg(test)]
        LOOKED_UP.set(LOOKED_UP.get() + 1);
        let used: BTreeSet<String> = self.members.values().filter_map(|member| member.pattern.clone()).collect();
        self.patterns.retain(|pattern, _| used.contains(pattern));
        self.match_topics(topics, version, None);
        let by_name = self.members.values().flat_map(|member| &member.names);
        let by_pattern = self.patterns.values().flat_map(|pattern| &pattern.matches);
        let wanted: BTreeSet<&String> = by_name.chain(by_pattern).collect();
        let known = |name: &String| self.topics.get(name).filter(|_| is_as_before).copied();
        let topic = |name: &String| known(name).or_else(|| topics.topic(name));
        let found = wanted.into_iter().filter_map(|name| Some((name.clone(), topic(name)?))).collect();
        let changed = self.topics != found;
        self.topics = found;
        let matches = self.patterns.values().map(|pattern| names_bytes(&pattern.matches)).sum::<usize>();
        self.topics_bytes = matches + self.topics.keys().map(|name| name.len() + TOPIC_BYTES).sum::<usize>();
        changed
    }

    /// Whether somebody else subscribes to just what this member does: then the topics that anybody wants are the same with it and without it.
    fn others_want_the_same(&self, id: &str, member: &Member) -> bool {
        self.members.iter().any(|(other, of)| other != id && of.names == member.names && of.pattern == member.pattern)
    }

    /// Looks which topics match the patterns, or `one` of them, but for those of which that is known of this version of all topics, which the caller has asked for first.
    fn match_topics(&mut self, topics: &dyn Topics, version: u64, one: Option<&str>) {
        let mut names = None;
        for (of, pattern) in &mut self.patterns {
            if one.is_some_and(|one| one != of) || pattern.version == Some(version) {
                continue;
            }
            let names: &Vec<String> = names.get_or_insert_with(|| topics.names());
            pattern.matches = names.iter().filter(|name| pattern.is_match(name)).cloned().collect();
            pattern.version = Some(version);
        }
    }

    /// Bytes that it takes if somebody subscribes to these topics too: of those to which nobody does, and that are there.
    fn more_bytes<'a>(&self, topics: &dyn Topics, names: impl IntoIterator<Item = &'a String>) -> usize {
        let fresh = names.into_iter().filter(|name| !self.topics.contains_key(*name));
        let bytes = fresh.filter_map(|name| {
            let partitions = topics.topic(name)?.partitions as usize;
            Some(name.len() + TOPIC_BYTES + ASSIGNED_TOPIC_BYTES + partitions * (HELD_BYTES + TARGET_BYTES))
        });
        bytes.sum()
    }

    /// Makes sure that a pattern can be matched.
    fn compile(&mut self, pattern: &str) -> Result<(), Code> {
        if !self.patterns.contains_key(pattern) {
            // The whole name must match. Names of topics are ASCII, so classes may be, and stay small.
            let whole = format!("^(?:{})$", pattern::translated(pattern));
            let regex = RegexBuilder::new(&whole)
                .unicode(false)
                .size_limit(PATTERN_COMPILED_BYTES_MAX)
                .dfa_size_limit(PATTERN_COMPILED_BYTES_MAX)
                .build()
                .map_err(|_| Code::InvalidRegularExpression)?;
            self.patterns.insert(pattern.to_owned(), Pattern { regex, matches: BTreeSet::new(), version: None });
        }
        Ok(())
    }

    /// Makes the target of the group's epoch, unless it has it, or it is to wait for others who change the group as well: meanwhile everybody goes on with the target before.
    ///
    /// Members that speak the classic protocol wait for nothing: they are told to join again until they are where the group is.
    fn assign_if_due(&mut self, now_ms: u64) {
        if self.epoch <= self.target_epoch || (now_ms < self.assign_from_ms && self.spoken == 0) {
            return;
        }
        self.assign();
        let partitions = self.topics.values().map(|topic| u64::from(topic.partitions)).sum::<u64>();
        let work = partitions + self.members.len() as u64;
        let pause_ms = if work < WORK_AT_ONCE { 0 } else { (work / WORK_PER_MS).min(PAUSE_MS_MAX) };
        self.assign_from_ms = now_ms.saturating_add(pause_ms);
    }

    /// After how long a member should be heard of again: sooner than usual if it waits for the first target in which it is.
    fn beat_again_ms(&self, id: &str, now_ms: u64, usual_ms: u64) -> u64 {
        let waits = self.epoch > self.target_epoch && !self.target.contains_key(id);
        if waits { self.assign_from_ms.saturating_sub(now_ms).clamp(1, usual_ms.max(1)) } else { usual_ms }
    }

    /// Makes the target of the group's epoch.
    fn assign(&mut self) {
        #[cfg(test)]
        ASSIGNED.set(ASSIGNED.get() + 1);
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for assignor in self.members.values().filter_map(|member| member.assignor.as_deref()) {
            *votes.entry(assignor).or_default() += 1;
        }
        let assignor = votes.iter().rev().max_by_key(|(_, votes)| **votes).map_or(assignor::NAMES[0], |(name, _)| name);
        // Most members want what others want, which may be thousands of topics.
        let mut known: BTreeMap<_, Rc<BTreeSet<Uuid>>> = BTreeMap::new();
        let subscribers: Vec<Subscriber<'_>> = self
            .members
            .iter()
            .map(|(id, member)| Subscriber {
                id,
                order: member.instance.as_deref().unwrap_or(id),
                topics: Rc::clone(
                    known
                        .entry((&member.names, member.pattern.as_deref()))
                        .or_insert_with(|| Rc::new(self.topics_of(member))),
                ),
                has: self.target.get(id),
            })
            .collect();
        let partitions = self.topics.values().map(|topic| (topic.id, topic.partitions)).collect();
        self.target = assignor::assign(assignor, &subscribers, &partitions);
        self.target_bytes = self.target.values().map(target_bytes).sum();
        self.target_epoch = self.epoch;
    }

    /// The topics that a member subscribes to and that exist.
    fn topics_of(&self, member: &Member) -> BTreeSet<Uuid> {
        let matches = member.pattern.as_ref().and_then(|pattern| self.patterns.get(pattern));
        let by_pattern = matches.into_iter().flat_map(|pattern| &pattern.matches);
        member.names.iter().chain(by_pattern).filter_map(|name| Some(self.topics.get(name)?.id)).collect()
    }

    /// Kafka's name of its state.
    pub(super) fn state_name(&self) -> &'static str {
        let is_there = |member: &Member| member.step == Step::Stable && member.epoch == self.target_epoch;
        if self.is_empty() {
            "Empty"
        } else if self.epoch > self.target_epoch {
            "Assigning"
        } else if self.members.values().all(is_there) {
            "Stable"
        } else {
            "Reconciling"
        }
    }

    /// What holds between any two requests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut held = HashSet::new();
        for (id, member) in &self.members {
            for of in member.held() {
                assert!(held.insert(of), "{of:?} is with {id} and another");
            }
            assert!(member.epoch <= self.epoch);
        }
        assert_eq!(held, self.held);
        assert_eq!(self.target.values().map(target_bytes).sum::<usize>(), self.target_bytes);
        assert_eq!(self.members.values().filter(|member| member.spoken.is_some()).count(), self.spoken);
        assert!(self.target_epoch <= self.epoch);
        let mut targets = HashSet::new();
        for of in self.target.values().flat_map(member::partitions) {
            assert!(targets.insert(of), "{of:?} is meant for two");
        }
        for (instance, id) in &self.instances {
            assert_eq!(self.members[id].instance.as_ref(), Some(instance));
        }
    }
}

/// Bytes that what somebody should have takes.
fn target_bytes(target: &Assignment) -> usize {
    target.values().map(|partitions| ASSIGNED_TOPIC_BYTES + partitions.len() * TARGET_BYTES).sum()
}
