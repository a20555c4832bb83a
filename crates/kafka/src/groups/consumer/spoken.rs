//! Members of a consumer group that speak the classic protocol, while it changes from one to the other.
//!
//! What a heartbeat of the group's own protocol does at once takes them several requests: they join and say by that what they have; they sync, and
//! are told what to have; and their heartbeats tell them when to join again. The coordinator assigns to them as to all others: none of them
//! leads. What they are told as generation is their epoch.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupRequest, SyncGroupResponse};

use super::super::api::Answer;
use super::super::changing::{CONSUMERS, subscription_of};
use super::super::classic::{Joining, sync_error};
use super::super::embedded;
use super::super::group::{Turn, text};
use super::changing::{by_id, by_name};
use super::member::{Member, Spoken, Step, names_bytes, partitions};
use super::{AWAY, ConsumerGroup};
use crate::limits_told::tell;

impl ConsumerGroup {
    /// A member of the classic protocol joins, or joins again and says what it has. Answered at once, but for what has to be durable.
    pub(in crate::groups) fn join(&mut self, turn: &mut Turn<'_>, joining: &Joining) {
        match self.try_join(turn, joining) {
            Ok(response) => turn.answer_durable(joining.token, Answer::Join(response)),
            Err((id, code)) => joining.refuse(turn, &id, code),
        }
    }

    fn try_join(&mut self, turn: &mut Turn<'_>, joining: &Joining) -> Result<JoinGroupResponse, (String, Code)> {
        let refused = |code| (joining.member_id.clone(), code);
        if !self.members.contains_key(&joining.member_id) && self.members.len() >= turn.config.members_max {
            tell("members of a group", &turn.head.id, turn.config.members_max);
            return Err((String::new(), Code::GroupMaxSizeReached));
        }
        if !self.agrees(joining) {
            return Err(refused(Code::InconsistentGroupProtocol));
        }
        let subscription = subscription_of(&joining.protocols).ok_or(refused(Code::InconsistentGroupProtocol))?;
        let given = joining.bytes() + names_bytes(&subscription.topics);
        let bytes = given + self.more_bytes(turn.topics, &subscription.topics);
        let has = self.had_by(&joining.member_id, joining.instance.as_deref());
        if subscription.topics.len() > turn.config.member_topics_max || bytes.saturating_sub(has) > turn.bytes_left {
            let (topics, all) = (turn.config.member_topics_max, turn.config.members_bytes_max);
            match subscription.topics.len() > topics {
                true => tell("topics of one member", &turn.head.id, topics),
                false => tell("bytes that members of all groups take", &turn.head.id, all),
            }
            return Err(refused(Code::PolicyViolation));
        }
        let id = if joining.is_first() { joining.fresh_id(turn) } else { joining.member_id.clone() };
        if joining.needs_id() {
            return Err((id, Code::MemberIdRequired));
        }
        let is_known = self.members.contains_key(&id);
        if !is_known && joining.instance.is_none() && !subscription.owned.is_empty() {
            // It was thrown out and does not know: what it thinks it has may be with another one.
            return Err(refused(Code::UnknownMemberId));
        }
        let mut member = self.joining_member(turn, &id, joining).map_err(refused)?;
        member.rebalance_ms = joining.rebalance_ms;
        member.client_id.clone_from(&joining.client_id);
        member.host.clone_from(&joining.host);
        member.speak(&subscription, Spoken { session_ms: joining.session_ms, protocols: joining.protocols.clone() });
        // It has a rebalance's time to ask for its assignment.
        member.answer_deadline_ms = None;
        expect_answer(turn, &mut member);
        let owned = by_id(turn.topics, &subscription.owned);
        self.step(turn, &id, member, Some(&owned)).map_err(|_| (id.clone(), Code::CoordinatorNotAvailable))?;
        let epoch = self.members.get(&id).map_or(-1, |member| member.epoch);
        let protocol = joining.protocols.first().map(|(name, _)| text(name));
        Ok(JoinGroupResponse::default()
            .with_generation_id(epoch)
            .with_protocol_type(Some(text(CONSUMERS)))
            .with_protocol_name(protocol)
            .with_member_id(text(&id)))
    }

    /// Whether it could agree with all others who speak the classic protocol: they are left alone with each other in the end.
    fn agrees(&self, joining: &Joining) -> bool {
        let others = || self.members.iter().filter(|(id, _)| **id != joining.member_id);
        let knows = |member: &Member, name: &str| {
            member.spoken.as_ref().is_none_or(|spoken| spoken.protocols.iter().any(|(known, _)| known == name))
        };
        joining.protocol_type == CONSUMERS
            && joining.protocols.iter().any(|(name, _)| others().all(|(_, member)| knows(member, name)))
    }

    /// The member that joins, as it was. Who has the name that it gives is fenced, as in a classic group.
    fn joining_member(&mut self, turn: &mut Turn<'_>, id: &str, joining: &Joining) -> Result<Member, Code> {
        let Some(instance) = &joining.instance else {
            return Ok(self.members.get(id).cloned().unwrap_or_else(|| Member::new(None)));
        };
        match self.instances.get(instance).cloned() {
            Some(owner) if owner == *id => {
                Ok(self.members.get(id).cloned().unwrap_or_else(|| Member::new(Some(instance))))
            }
            Some(owner) if joining.is_first() => Ok(self.succeed(turn, id, &owner)),
            Some(_) => Err(Code::FencedInstanceId),
            None if joining.is_first() => Ok(Member::new(Some(instance))),
            None => Err(Code::UnknownMemberId),
        }
    }

    /// A member of the classic protocol asks for its assignment.
    pub(in crate::groups) fn sync(&mut self, turn: &mut Turn<'_>, token: u64, request: &SyncGroupRequest) {
        match self.try_sync(turn, request) {
            Ok(response) => turn.answer_durable(token, Answer::Sync(response)),
            Err(code) => turn.answer(token, sync_error(code)),
        }
    }

    fn try_sync(&mut self, turn: &mut Turn<'_>, request: &SyncGroupRequest) -> Result<SyncGroupResponse, Code> {
        let instance = request.group_instance_id.as_deref();
        let epoch = self.epoch;
        let member = self.speaking(&request.member_id, instance, request.generation_id)?;
        let spoken = member.spoken.as_ref().and_then(|spoken| spoken.protocols.first());
        let (protocol, told) = spoken.ok_or(Code::UnknownMemberId)?.clone();
        let differs = |asked: Option<&str>, ours: &str| asked.is_some_and(|asked| asked != ours);
        if differs(request.protocol_type.as_deref(), CONSUMERS) || differs(request.protocol_name.as_deref(), &protocol)
        {
            return Err(Code::InconsistentGroupProtocol);
        }
        // What it is to give back it is told even so: only then can it join again for the epoch behind that.
        if member.epoch < epoch && member.step != Step::Revoking {
            expect_answer(turn, member);
            return Err(Code::RebalanceInProgress);
        }
        member.answer_deadline_ms = None;
        touch(turn, member);
        let assignment = embedded::assignment(&told, &by_name(turn.topics, &member.assigned));
        Ok(SyncGroupResponse::default()
            .with_protocol_type(Some(text(CONSUMERS)))
            .with_protocol_name(Some(text(&protocol)))
            .with_assignment(assignment))
    }

    /// A member of the classic protocol says that it is alive, and hears whether it should join again: for a later epoch, to say that
    /// it has given back, or to get what others have given back.
    pub(in crate::groups) fn heartbeat(
        &mut self,
        turn: &mut Turn<'_>,
        member_id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), Code> {
        self.speaking(member_id, instance, generation)?;
        if self.topics_version != Some(turn.topics.version()) && self.look_up(turn.topics) {
            self.epoch = self.epoch.saturating_add(1);
        }
        let epoch = self.epoch;
        let is_free = self.is_free(member_id);
        let member = self.speaking(member_id, instance, generation)?;
        touch(turn, member);
        if member.epoch < epoch || member.step == Step::Revoking || (member.step == Step::Lacking && is_free) {
            expect_answer(turn, member);
            return Err(Code::RebalanceInProgress);
        }
        Ok(())
    }

    /// Whether nobody has what a member should have and has not.
    fn is_free(&self, member_id: &str) -> bool {
        let (Some(target), Some(member)) = (self.target.get(member_id), self.members.get(member_id)) else {
            return true;
        };
        let is_its_own = |(topic, partition): &(_, i32)| {
            member.assigned.get(topic).is_some_and(|partitions| partitions.contains(partition))
        };
        partitions(target).all(|of| is_its_own(&of) || !self.held.contains(&of))
    }

    /// The member of the classic protocol that a request comes from.
    fn speaking(&mut self, member_id: &str, instance: Option<&str>, generation: i32) -> Result<&mut Member, Code> {
        if let Some(instance) = instance {
            self.check_instance(member_id, instance).map_err(|(code, _)| code)?;
        }
        let member = self.members.get_mut(member_id).filter(|member| member.spoken.is_some());
        let member = member.ok_or(Code::UnknownMemberId)?;
        if generation == member.epoch && generation != AWAY { Ok(member) } else { Err(Code::IllegalGeneration) }
    }
}

/// The member was heard of.
fn touch(turn: &mut Turn<'_>, member: &mut Member) {
    member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms(turn.config));
    turn.wake(member.deadline_ms);
}

/// The member is told to do something, and has a rebalance's time for it since it was told first.
fn expect_answer(turn: &mut Turn<'_>, member: &mut Member) {
    if member.answer_deadline_ms.is_none() {
        let deadline_ms = turn.now.mono_ms.saturating_add(member.rebalance_ms);
        member.answer_deadline_ms = Some(deadline_ms);
        turn.wake(deadline_ms);
    }
}
