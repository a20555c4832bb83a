//! What is kept of the members of a consumer group, so that they are members again when its coordinator is another one or has
//! started again.
//!
//! Each member has a record, written before it is told what has changed of it. What it should have is not kept: if everybody has
//! what the last target gave, that was the target; if not, another one is made, which leaves everybody what it has as
//! far as that goes.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::kafka_members::{ClassicVoice, ConsumerPart, MemberPart, MemberState, MemberStep, Partitions};
use uuid::Uuid;

use super::super::api::AppendFailed;
use super::super::group::Turn;
use super::ConsumerGroup;
use super::assignor::Assignment;
use super::member::{AWAY, Member, Spoken, Step};

impl ConsumerGroup {
    /// All members.
    pub(in crate::groups) fn kept(&self) -> Vec<(String, MemberState)> {
        self.members.iter().map(|(id, member)| (id.clone(), kept(member))).collect()
    }

    /// Records members that are not as they were recorded. Those that cannot be recorded now are tried again.
    pub(super) fn keep(&mut self, turn: &mut Turn<'_>) -> Result<(), AppendFailed> {
        if !turn.journal.keeps_members() {
            self.unkept.clear();
            self.is_kept = false;
            return Ok(());
        }
        if !std::mem::replace(&mut self.is_kept, true) {
            self.unkept.extend(self.members.keys().cloned());
        }
        turn.keep(self.unkept.iter().map(|id| (id.clone(), self.members.get(id).map(kept))))?;
        self.unkept.clear();
        Ok(())
    }

    #[cfg(test)]
    pub(in crate::groups) fn is_recorded(&self) -> bool {
        self.is_kept && self.unkept.is_empty()
    }

    /// Those that were members are members again, if what is known of them fits together.
    pub(in crate::groups) fn restore(&mut self, turn: &mut Turn<'_>, kept: BTreeMap<String, MemberState>) {
        let mut group = ConsumerGroup::new(self.epoch);
        let mut bytes = 0;
        for (id, state) in kept {
            let Some(mut member) = member_of(state) else { return };
            if let Some(pattern) = &member.pattern
                && group.compile(pattern).is_err()
            {
                return;
            }
            let is_doubled = |instance: &String| group.instances.insert(instance.clone(), id.clone()).is_some();
            let lies = member.epoch > self.epoch
                || member.held().any(|of| !group.held.insert(of))
                || member.instance.as_ref().is_some_and(is_doubled);
            if lies {
                return;
            }
            bytes += member.bytes(&id);
            member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms(turn.config));
            if member.step == Step::Revoking {
                member.revoke_deadline_ms = Some(turn.now.mono_ms.saturating_add(member.rebalance_ms));
            }
            group.spoken += usize::from(member.spoken.is_some());
            group.set_target(&id, &member.assigned);
            group.members.insert(id, member);
        }
        group.look_up(turn.topics);
        if bytes + group.made_bytes() > turn.bytes_left {
            return;
        }
        if !group.is_settled() {
            group.epoch = group.epoch.saturating_add(1);
        }
        group.is_kept = true;
        turn.head.member_bytes += bytes;
        *self = group;
        self.wake(turn);
    }

    /// Whether every partition of the topics that somebody subscribes to is with somebody, and nobody is on the way to anything.
    fn is_settled(&self) -> bool {
        let is_there =
            |member: &Member| member.step == Step::Stable && (member.epoch == self.epoch || member.epoch == AWAY);
        let all = self.topics.values().flat_map(|topic| (0..topic.partitions).map(|at| (topic.id, at as i32)));
        let all: BTreeSet<(Uuid, i32)> = all.collect();
        self.members.values().all(is_there)
            && all.len() == self.held.len()
            && all.iter().all(|of| self.held.contains(of))
    }
}

fn kept(member: &Member) -> MemberState {
    let part = ConsumerPart {
        epoch: member.epoch,
        previous_epoch: member.previous_epoch,
        step: match member.step {
            Step::Stable => MemberStep::Stable,
            Step::Revoking => MemberStep::Revoking,
            Step::Lacking => MemberStep::Lacking,
        },
        rack: member.rack.clone(),
        pattern: member.pattern.clone(),
        assignor: member.assignor.clone(),
        names: member.names.iter().cloned().collect(),
        assigned: listed(&member.assigned),
        revoking: listed(&member.revoking),
        classic: member.spoken.as_ref().map(|spoken| ClassicVoice {
            session_ms: u32::try_from(spoken.session_ms).unwrap_or(u32::MAX),
            protocols: spoken.protocols.iter().map(|(name, told)| (name.clone(), told.to_vec())).collect(),
        }),
    };
    MemberState {
        instance: member.instance.clone(),
        client_id: member.client_id.clone(),
        host: member.host.clone(),
        rebalance_ms: u32::try_from(member.rebalance_ms).unwrap_or(u32::MAX),
        part: MemberPart::Consumer(part),
    }
}

fn member_of(state: MemberState) -> Option<Member> {
    let MemberPart::Consumer(part) = state.part else { return None };
    let mut member = Member::new(state.instance.as_deref());
    (member.epoch, member.previous_epoch) = (part.epoch, part.previous_epoch);
    member.step = match part.step {
        MemberStep::Stable => Step::Stable,
        MemberStep::Revoking => Step::Revoking,
        MemberStep::Lacking => Step::Lacking,
    };
    (member.rack, member.pattern, member.assignor) = (part.rack, part.pattern, part.assignor);
    (member.client_id, member.host) = (state.client_id, state.host);
    member.rebalance_ms = state.rebalance_ms.into();
    member.names = part.names.into_iter().collect();
    (member.assigned, member.revoking) = (assignment(part.assigned), assignment(part.revoking));
    member.spoken = part.classic.map(|voice| Spoken {
        session_ms: voice.session_ms.into(),
        protocols: voice.protocols.into_iter().map(|(name, told)| (name, told.into())).collect(),
    });
    Some(member)
}

fn listed(assignment: &Assignment) -> Partitions {
    assignment.iter().map(|(topic, of)| (topic.as_u128(), of.iter().copied().collect())).collect()
}

fn assignment(listed: Partitions) -> Assignment {
    listed.into_iter().map(|(topic, of)| (Uuid::from_u128(topic), of.into_iter().collect())).collect()
}
