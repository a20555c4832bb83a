//! A classic group: its members agree on a generation by joining together, and their leader assigns the work.
//!
//! ```text
//!            first join                 all joined, or time is up              leader's assignment
//!   Empty ───────────────▶ Preparing ────────────────────────────▶ Completing ─────────────────────▶ Stable
//!     ▲                      │   ▲ ▲                                   │                                │
//!     └──── nobody joined ───┘   │ └── somebody joins, leaves, dies ───┘                                │
//!                                └─────────────── somebody joins, leaves, dies ─────────────────────────┘
//! ```
//! Requests that wait (join until the generation is there, sync until the assignment is) are parked in their member. Each
//! is answered once: by what it waits for, by a later request of the same member, or when the member goes.

mod changing;
mod describe;
mod join;
mod keeping;
mod leave;
mod member;
mod sync;
mod tick;

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::error::ResponseError as Code;
use kera_format::kafka_groups::GroupKind;

use super::changing::CONSUMERS;
use super::embedded;
use super::group::Turn;
pub(super) use join::Joining;
use member::Member;
pub(super) use member::{join_error, spoken_bytes, sync_error};

/// Bytes that a promised id is counted for.
const PROMISED_BYTES: usize = 448;
/// Bytes that the name of a topic is counted for beside its own.
const TOPIC_BYTES: usize = 64;

/// Where a group is between two generations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Empty,
    Preparing,
    Completing,
    Stable,
}

/// A group of members that agree among themselves.
#[derive(Debug)]
pub(super) struct ClassicGroup {
    state: State,
    generation: i32,
    /// What the members say they are; kept when they are gone.
    protocol_type: Option<String>,
    /// What they agreed on for this generation.
    protocol: Option<String>,
    leader: Option<String>,
    members: BTreeMap<String, Member>,
    /// Members by the name that outlives them.
    instances: BTreeMap<String, String>,
    /// How many members support a protocol.
    supported: BTreeMap<String, usize>,
    /// Members whose join is parked.
    joined: usize,
    /// Ids that were given out and must come back with a join before this moment.
    promised: BTreeMap<String, u64>,
    /// Members that have not asked for their assignment in this generation.
    unsynced: BTreeSet<String>,
    join_deadline_ms: Option<u64>,
    sync_deadline_ms: Option<u64>,
    gathering: Option<Gathering>,
    /// Topics that the members of this generation subscribe to, if they all say so and there is room for them.
    topics: Option<BTreeSet<String>>,
    /// Bytes that these take.
    topics_bytes: usize,
}

/// An empty group waits a little for more members before its first generation.
#[derive(Debug)]
struct Gathering {
    delay_ms: u64,
    left_ms: u64,
    /// Whether somebody came since the last look.
    joined: bool,
}

impl ClassicGroup {
    /// A group without members.
    pub(super) fn new(generation: i32, protocol_type: Option<String>) -> ClassicGroup {
        ClassicGroup {
            state: State::Empty,
            generation,
            protocol_type,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            supported: BTreeMap::new(),
            joined: 0,
            promised: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            join_deadline_ms: None,
            sync_deadline_ms: None,
            gathering: None,
            topics: None,
            topics_bytes: 0,
        }
    }

    pub(super) fn generation(&self) -> i32 {
        self.generation
    }

    pub(super) fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state == State::Empty
    }

    /// Bytes that promised ids take, and the topics that its members subscribe to.
    pub(super) fn made_bytes(&self) -> usize {
        self.promised.len() * PROMISED_BYTES + self.topics_bytes
    }

    /// Whether ids are out that may still come back.
    pub(super) fn expects_members(&self) -> bool {
        !self.promised.is_empty()
    }

    /// Whether its members read this topic; if they do not say what they read, as consumers they may read any.
    pub(super) fn is_subscribed(&self, topic: &str) -> bool {
        if self.state == State::Empty {
            return false;
        }
        match &self.topics {
            Some(topics) => topics.contains(topic),
            None => self.is_consumers(),
        }
    }

    /// Whether its members are consumers by their own word.
    pub(super) fn is_consumers(&self) -> bool {
        self.protocol_type() == Some(CONSUMERS)
    }

    /// Whether offsets of topics that nobody reads any more may expire while it has members.
    pub(super) fn knows_topics(&self) -> bool {
        self.state == State::Stable && self.is_consumers() && self.topics.is_some()
    }

    /// Whether this is a member, under the name that outlives it if it gives one.
    fn check_member(&self, member_id: &str, instance: Option<&str>) -> Result<(), Code> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(Code::UnknownMemberId),
                Some(owner) if owner != member_id => return Err(Code::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(Code::UnknownMemberId) }
    }

    /// Whether a commit of offsets is this generation's. `transaction`: as part of a transaction, which old clients commit
    /// without saying who they are.
    pub(super) fn check_commit(
        &self,
        member_id: &str,
        instance: Option<&str>,
        generation: i32,
        transaction: bool,
    ) -> Result<(), Code> {
        if generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        if generation >= 0 || !member_id.is_empty() || instance.is_some() {
            self.check_member(member_id, instance)?;
            if generation != self.generation {
                return Err(Code::IllegalGeneration);
            }
        } else if !transaction && self.state != State::Empty {
            return Err(Code::UnknownMemberId);
        }
        if !transaction && self.state == State::Completing {
            return Err(Code::RebalanceInProgress);
        }
        Ok(())
    }

    /// The member was heard of.
    pub(super) fn touch(&mut self, turn: &mut Turn<'_>, member_id: &str) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms);
            turn.wake(member.deadline_ms);
        }
    }

    /// The longest time that a member may take to join again.
    fn rebalance_ms(&self) -> u64 {
        self.members.values().map(|member| member.rebalance_ms).max().unwrap_or(0)
    }

    fn all_joined(&self) -> bool {
        self.joined == self.members.len() && self.promised.is_empty()
    }

    /// Whether a member of this kind could agree with the others.
    fn supports(&self, protocol_type: &str, mut names: impl Iterator<Item = impl AsRef<str>>) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && names.next().is_some();
        }
        let all = |name: &str| self.supported.get(name).copied().unwrap_or(0) == self.members.len();
        self.protocol_type() == Some(protocol_type) && names.any(|name| all(name.as_ref()))
    }

    /// The protocol with most votes among those that everybody supports; of equals the first by name.
    fn elect_protocol(&self) -> Option<String> {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let everybody = |name: &&str| self.supported.get(*name) == Some(&self.members.len());
            if let Some(name) = member.protocols.iter().map(|(name, _)| &name[..]).find(everybody) {
                *votes.entry(name).or_default() += 1;
            }
        }
        votes.into_iter().rev().max_by_key(|(_, votes)| *votes).map(|(name, _)| name.to_owned())
    }

    fn count_protocols(&mut self, member: &Member, add: bool) {
        for (name, _) in &member.protocols {
            let count = self.supported.entry(name.clone()).or_default();
            *count = if add { *count + 1 } else { *count - 1 };
            if *count == 0 {
                self.supported.remove(name);
            }
        }
    }

    /// What is parked in a member that goes is answered with `code`.
    fn drop_member(&mut self, turn: &mut Turn<'_>, member_id: &str, code: Code) {
        self.promised.remove(member_id);
        self.unsynced.remove(member_id);
        let Some(mut member) = self.members.remove(member_id) else { return };
        if member.answer_join_error(turn, "", code) {
            self.joined -= 1;
        }
        member.answer_sync_error(turn, code);
        turn.head.member_bytes -= member.bytes(member_id);
        self.count_protocols(&member, false);
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.leader.as_deref() == Some(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    /// Members have come, gone or changed: begins a rebalance, or goes on with the one that runs.
    fn rebalance(&mut self, turn: &mut Turn<'_>) {
        match self.state {
            State::Preparing => self.complete_if_all_joined(turn),
            State::Empty | State::Completing | State::Stable => self.prepare(turn),
        }
    }

    fn prepare(&mut self, turn: &mut Turn<'_>) {
        if self.state == State::Completing {
            self.fail_syncs(turn, Code::RebalanceInProgress);
        }
        self.sync_deadline_ms = None;
        if self.state == State::Empty {
            let delay_ms = turn.config.initial_delay_ms;
            let left_ms = self.rebalance_ms().saturating_sub(delay_ms);
            self.gathering = Some(Gathering { delay_ms, left_ms, joined: false });
            self.state = State::Preparing;
            self.expect_joins(turn, delay_ms);
            return;
        }
        self.state = State::Preparing;
        if self.all_joined() {
            self.complete_join(turn);
        } else {
            self.expect_joins(turn, self.rebalance_ms());
        }
    }

    fn expect_joins(&mut self, turn: &mut Turn<'_>, in_ms: u64) {
        let deadline_ms = turn.now.mono_ms.saturating_add(in_ms);
        self.join_deadline_ms = Some(deadline_ms);
        turn.wake(deadline_ms);
    }

    fn complete_if_all_joined(&mut self, turn: &mut Turn<'_>) {
        if self.state == State::Preparing && self.gathering.is_none() && self.all_joined() {
            self.complete_join(turn);
        }
    }

    /// Time is up, or everybody is there: whoever joined makes the next generation.
    ///
    /// The generation is recorded before anybody hears of it, and answers wait for the record, so that no two generations
    /// have the same number, whenever the node dies.
    fn complete_join(&mut self, turn: &mut Turn<'_>) {
        self.join_deadline_ms = None;
        let late =
            |(id, member): (&String, &Member)| (member.join.is_none() && member.instance.is_none()).then(|| id.clone());
        let late: Vec<String> = self.members.iter().filter_map(late).collect();
        for member_id in late {
            self.drop_member(turn, &member_id, Code::UnknownMemberId);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only members that may be away for a while are left, and none of them is back.
            return self.expect_joins(turn, self.rebalance_ms().max(100));
        }
        let protocol_type = self.protocol_type.clone().unwrap_or_default();
        let generation = self.generation.saturating_add(1);
        let stored = turn.store(GroupKind::Classic, !self.members.is_empty(), generation, &protocol_type);
        self.gathering = None;
        if stored.is_err() {
            return self.fail_joins(turn);
        }
        self.generation = generation;
        self.unsynced.clear();
        self.protocol = self.elect_protocol();
        self.look_up(turn.bytes_left);
        if self.members.is_empty() {
            self.state = State::Empty;
            return;
        }
        self.state = State::Completing;
        self.answer_joins(turn);
    }

    /// The generation cannot be recorded: everybody is asked to come again later.
    fn fail_joins(&mut self, turn: &mut Turn<'_>) {
        for (id, member) in &mut self.members {
            if member.answer_join_error(turn, id, Code::CoordinatorNotAvailable) {
                self.joined -= 1;
                member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms);
                turn.wake(member.deadline_ms);
            }
        }
        if self.members.is_empty() {
            self.state = State::Empty;
            self.look_up(0);
        } else {
            self.expect_joins(turn, self.rebalance_ms().max(100));
        }
    }

    /// Keeps a leader who joined, or takes another who did. Whether there is one.
    fn elect_leader(&mut self) -> bool {
        let has_joined = |id: &String| self.members.get(id).is_some_and(|member| member.join.is_some());
        if !self.leader.as_ref().is_some_and(has_joined) {
            let Some(next) = self.members.keys().find(|id| has_joined(id)) else { return false };
            self.leader = Some(next.clone());
        }
        true
    }

    fn is_leader(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    /// Looks up what the members of this generation subscribe to. What takes more than `bytes_left`, beside what it takes now, is not kept: then they may read any topic.
    fn look_up(&mut self, bytes_left: usize) {
        let found = self.subscriptions(bytes_left.saturating_add(self.topics_bytes));
        (self.topics, self.topics_bytes) = found.map_or((None, 0), |(topics, bytes)| (Some(topics), bytes));
    }

    /// The topics of all members, and how many bytes they take, if they are consumers, every one of them says which, and these are not more than `bytes_max`. That is looked at
    /// with each name: members that name many which nobody else does would take all memory before they were counted.
    fn subscriptions(&self, bytes_max: usize) -> Option<(BTreeSet<String>, usize)> {
        let protocol = self.protocol.as_deref().filter(|_| self.is_consumers())?;
        let (mut topics, mut bytes) = (BTreeSet::new(), 0);
        for member in self.members.values() {
            for topic in embedded::subscription(&member.metadata(protocol))?.topics {
                let more = topic.len() + TOPIC_BYTES;
                bytes += if topics.insert(topic) { more } else { 0 };
                if bytes > bytes_max {
                    return None;
                }
            }
        }
        Some((topics, bytes))
    }

    /// What holds between any two requests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let joined = self.members.values().filter(|member| member.join.is_some()).count();
        assert_eq!(joined, self.joined);
        assert_eq!(self.state == State::Empty, self.members.is_empty() && self.state != State::Preparing);
        assert!(self.leader.as_ref().is_none_or(|leader| self.members.contains_key(leader)));
        assert_eq!(self.members.is_empty(), self.leader.is_none());
        assert_eq!(self.state == State::Preparing, self.join_deadline_ms.is_some());
        assert!(self.gathering.is_none() || self.state == State::Preparing);
        assert!(self.sync_deadline_ms.is_none() || matches!(self.state, State::Completing | State::Stable));
        for (instance, id) in &self.instances {
            assert_eq!(self.members[id].instance.as_ref(), Some(instance));
        }
        for member in self.members.values() {
            assert!(member.join.is_none() || self.state == State::Preparing, "a join that nobody will answer");
            assert!(member.sync.is_none() || self.state == State::Completing, "a sync that nobody will answer");
        }
        if matches!(self.state, State::Completing | State::Stable) {
            assert!(self.protocol.is_some());
            let waits = self.state == State::Completing || !self.unsynced.is_empty();
            assert_eq!(waits, self.sync_deadline_ms.is_some());
        }
    }
}
