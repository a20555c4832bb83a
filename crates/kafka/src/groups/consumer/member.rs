//! A member of a consumer group, and its way from what it has to what it should have.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use kafka_protocol::error::ResponseError as Code;
use uuid::Uuid;

use super::super::api::GroupConfig;
use super::super::classic::spoken_bytes;
use super::super::embedded::Subscription;
use super::assignor::Assignment;

/// A static member that is away for a while.
pub(super) const AWAY: i32 = -2;

/// Bytes that a pattern is counted for beside its own: it is compiled. Members that share one are counted each.
const PATTERN_BYTES: usize = 32 << 10;

/// Bytes that a member is counted for beside what it gives, and a topic that it names beside the name.
const MEMBER_BYTES: usize = 768;
const NAME_BYTES: usize = 48;

/// Where a member is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It has what its epoch gives it.
    Stable,
    /// It was told to give partitions back and has not said that it did.
    Revoking,
    /// It should have partitions that others have not given back.
    Lacking,
}

/// What a member says that speaks the classic protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Spoken {
    pub(super) session_ms: u64,
    /// What it can do, what it likes most first, each with what it tells. At least one.
    pub(super) protocols: Vec<(String, Bytes)>,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) epoch: i32,
    pub(super) previous_epoch: i32,
    pub(super) step: Step,
    pub(super) instance: Option<String>,
    pub(super) rack: Option<String>,
    pub(super) client_id: String,
    pub(super) host: String,
    pub(super) rebalance_ms: u64,
    /// Topics by name, and by pattern.
    pub(super) names: BTreeSet<String>,
    pub(super) pattern: Option<String>,
    pub(super) assignor: Option<String>,
    pub(super) assigned: Assignment,
    pub(super) revoking: Assignment,
    /// It must be heard of before.
    pub(super) deadline_ms: u64,
    /// It must have given back before.
    pub(super) revoke_deadline_ms: Option<u64>,
    /// If it speaks the classic protocol.
    pub(super) spoken: Option<Spoken>,
    /// If it does: it must have joined again, or asked for its assignment, before.
    pub(super) answer_deadline_ms: Option<u64>,
}

/// What a step has made other than it was.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Changed {
    /// Anything of the member.
    pub(super) member: bool,
    /// What it has.
    pub(super) assigned: bool,
}

impl Member {
    /// Somebody who has nothing yet.
    pub(super) fn new(instance: Option<&str>) -> Member {
        Member {
            epoch: 0,
            previous_epoch: 0,
            step: Step::Stable,
            instance: instance.map(str::to_owned),
            rack: None,
            client_id: String::new(),
            host: String::new(),
            rebalance_ms: 0,
            names: BTreeSet::new(),
            pattern: None,
            assignor: None,
            assigned: Assignment::new(),
            revoking: Assignment::new(),
            deadline_ms: u64::MAX,
            revoke_deadline_ms: None,
            spoken: None,
            answer_deadline_ms: None,
        }
    }

    /// It speaks the classic protocol, and says this.
    pub(super) fn speak(&mut self, subscription: &Subscription, spoken: Spoken) {
        self.names = subscription.topics.iter().cloned().collect();
        self.pattern = None;
        if subscription.rack.is_some() {
            self.rack.clone_from(&subscription.rack);
        }
        self.spoken = Some(spoken);
    }

    /// How long it may be silent.
    pub(super) fn session_ms(&self, config: &GroupConfig) -> u64 {
        self.spoken.as_ref().map_or(config.consumer_session_ms, |spoken| spoken.session_ms)
    }

    /// When it is thrown out if nothing is heard of it.
    pub(super) fn next_deadline_ms(&self) -> u64 {
        [self.revoke_deadline_ms, self.answer_deadline_ms].into_iter().flatten().fold(self.deadline_ms, u64::min)
    }

    /// Bytes of the topics that it names, and of its pattern.
    pub(super) fn given_bytes(&self) -> usize {
        let pattern = self.pattern.as_ref().map_or(0, |pattern| pattern.len() + PATTERN_BYTES);
        self.names.iter().map(String::len).sum::<usize>() + pattern
    }

    /// Bytes that it takes under this id, but for what it has and should have. Ids are in up to four places, instances in two.
    pub(super) fn bytes(&self, id: &str) -> usize {
        let names = [&self.rack, &self.assignor].map(|name| name.as_ref().map_or(0, String::len));
        let names = names.iter().sum::<usize>() + self.client_id.len() + self.host.len();
        let instance = 2 * self.instance.as_ref().map_or(0, String::len);
        let spoken = self.spoken.as_ref().map_or(0, |spoken| spoken_bytes(&spoken.protocols));
        MEMBER_BYTES + 4 * id.len() + instance + names + self.names.len() * NAME_BYTES + self.given_bytes() + spoken
    }

    /// Whether it comes from where we think it is. It may be one step behind, if it did not get our last answer.
    pub(super) fn check_epoch(&self, epoch: i32, owned: Option<&Assignment>) -> Result<(), Code> {
        let is_behind = || {
            let is_ours = |(topic, partitions): (&Uuid, &BTreeSet<i32>)| {
                self.assigned.get(topic).is_some_and(|assigned| partitions.is_subset(assigned))
            };
            epoch == self.previous_epoch && owned.is_some_and(|owned| owned.iter().all(is_ours))
        };
        if epoch == self.epoch || (epoch < self.epoch && is_behind()) { Ok(()) } else { Err(Code::FencedMemberEpoch) }
    }

    /// Whether this is the epoch that it was told last.
    pub(super) fn check_said(&self, epoch: i32) -> Result<(), Code> {
        match &self.spoken {
            _ if epoch == self.epoch => Ok(()),
            Some(_) => Err(Code::IllegalGeneration),
            None => Err(Code::StaleMemberEpoch),
        }
    }

    /// Whether what is kept of it is the same: all but until when it must be heard of.
    pub(super) fn is_kept_as(&self, other: &Member) -> bool {
        // All fields are named, so that one that is new is thought of.
        let Member {
            epoch,
            previous_epoch,
            step,
            instance,
            rack,
            client_id,
            host,
            rebalance_ms,
            names,
            pattern,
            assignor,
            assigned,
            revoking,
            spoken,
            deadline_ms: _,
            revoke_deadline_ms: _,
            answer_deadline_ms: _,
        } = self;
        (epoch, previous_epoch, step) == (&other.epoch, &other.previous_epoch, &other.step)
            && (instance, rack, client_id, host) == (&other.instance, &other.rack, &other.client_id, &other.host)
            && (rebalance_ms, names, pattern) == (&other.rebalance_ms, &other.names, &other.pattern)
            && (assignor, assigned, revoking) == (&other.assignor, &other.assigned, &other.revoking)
            && *spoken == other.spoken
    }

    /// All that nobody else may have.
    pub(super) fn held(&self) -> impl Iterator<Item = (Uuid, i32)> {
        partitions(&self.assigned).chain(partitions(&self.revoking))
    }

    /// Takes a step. Whoever is told of one in the same epoch may no longer say the one before it, as in Kafka.
    fn enter(&mut self, epoch: i32, step: Step, assigned: Assignment, revoking: Assignment) -> Changed {
        let is_elsewhere = (self.epoch, self.previous_epoch, self.step) != (epoch, self.epoch, step);
        (self.previous_epoch, self.epoch, self.step) = (self.epoch, epoch, step);
        let had = std::mem::replace(&mut self.assigned, assigned);
        let was_revoking = std::mem::replace(&mut self.revoking, revoking);
        let assigned = had != self.assigned;
        Changed { member: is_elsewhere || assigned || was_revoking != self.revoking, assigned }
    }

    /// Takes the member on its way to `target`, the assignment of `target_epoch`. `owned` is what it says it has, if it
    /// says so. `held`: what anybody has.
    ///
    /// A partition is given only if nobody holds it, and is held until whoever had it said that it gave it back, or was
    /// thrown out. So it is never with two members at a time.
    pub(super) fn reconcile(
        &mut self,
        target_epoch: i32,
        target: &Assignment,
        owned: Option<&Assignment>,
        held: &HashSet<(Uuid, i32)>,
    ) -> Changed {
        match self.step {
            Step::Stable if self.epoch == target_epoch => Changed::default(),
            Step::Stable | Step::Lacking => self.advance(self.epoch, target_epoch, target, owned, held),
            Step::Revoking if still_owns(owned, &self.revoking) => Changed::default(),
            // What it gave back is free when this is over: `held` still has it.
            Step::Revoking => {
                self.advance(self.epoch.saturating_add(1).min(target_epoch), target_epoch, target, owned, held)
            }
        }
    }

    fn advance(
        &mut self,
        epoch: i32,
        target_epoch: i32,
        target: &Assignment,
        owned: Option<&Assignment>,
        held: &HashSet<(Uuid, i32)>,
    ) -> Changed {
        let target: BTreeSet<(Uuid, i32)> = partitions(target).collect();
        let assigned: BTreeSet<(Uuid, i32)> = partitions(&self.assigned).collect();
        let mut keep: BTreeSet<_> = assigned.intersection(&target).copied().collect();
        let revoking = by_topic(assigned.difference(&keep).copied());
        if !revoking.is_empty() && still_owns(owned, &revoking) {
            return self.enter(epoch, Step::Revoking, by_topic(keep), revoking);
        }
        let lacking: BTreeSet<_> = target.difference(&keep).copied().collect();
        let free: Vec<_> = lacking.iter().filter(|of| !held.contains(of)).copied().collect();
        let step = if free.len() < lacking.len() { Step::Lacking } else { Step::Stable };
        keep.extend(free);
        self.enter(target_epoch, step, by_topic(keep), Assignment::new())
    }
}

/// Bytes that the names of topics take.
pub(super) fn names_bytes<'a>(names: impl IntoIterator<Item = &'a String>) -> usize {
    names.into_iter().map(|name| name.len() + NAME_BYTES).sum()
}

/// Whether a member still has any of these. If it does not say what it has, it may have anything.
fn still_owns(owned: Option<&Assignment>, revoking: &Assignment) -> bool {
    let Some(owned) = owned else { return true };
    partitions(owned).any(|(topic, partition)| revoking.get(&topic).is_some_and(|of| of.contains(&partition)))
}

pub(super) fn partitions(assignment: &Assignment) -> impl Iterator<Item = (Uuid, i32)> {
    assignment.iter().flat_map(|(topic, partitions)| partitions.iter().map(|partition| (*topic, *partition)))
}

fn by_topic(partitions: impl IntoIterator<Item = (Uuid, i32)>) -> Assignment {
    let mut assignment: Assignment = BTreeMap::new();
    for (topic, partition) in partitions {
        assignment.entry(topic).or_default().insert(partition);
    }
    assignment
}
