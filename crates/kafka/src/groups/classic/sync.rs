//! Getting the assignment of a generation, and staying alive in it.

use std::collections::HashMap;

use bytes::Bytes;
use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use super::super::api::Answer;
use super::super::group::{Turn, text};
use super::member::sync_error;
use super::{ClassicGroup, State};
use crate::limits_told::tell;

impl ClassicGroup {
    /// A member asks for its assignment; the leader brings everybody's.
    pub(in crate::groups) fn sync(&mut self, turn: &mut Turn<'_>, token: u64, request: &SyncGroupRequest) {
        if let Err(code) = self.check_sync(request) {
            return turn.answer(token, sync_error(code));
        }
        let member_id = &*request.member_id;
        self.unsynced.remove(member_id);
        match self.state {
            State::Completing => {
                if let Some(member) = self.members.get_mut(member_id) {
                    member.answer_sync_error(turn, Code::RebalanceInProgress);
                    member.sync = Some(token);
                }
                if self.is_leader(member_id) {
                    self.assign(turn, request);
                }
            }
            State::Stable => {
                let response = self.synced_response(member_id);
                turn.answer_durable(token, response);
            }
            State::Empty | State::Preparing => turn.answer(token, sync_error(Code::RebalanceInProgress)),
        }
        if self.unsynced.is_empty() && self.state == State::Stable {
            self.sync_deadline_ms = None;
        }
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Result<(), Code> {
        self.check_member(&request.member_id, request.group_instance_id.as_deref())?;
        if request.generation_id != self.generation {
            return Err(Code::IllegalGeneration);
        }
        let differs = |asked: Option<&str>, ours: Option<&str>| asked.is_some() && asked != ours;
        if differs(request.protocol_type.as_deref(), self.protocol_type())
            || differs(request.protocol_name.as_deref(), self.protocol.as_deref())
        {
            return Err(Code::InconsistentGroupProtocol);
        }
        if self.state == State::Preparing { Err(Code::RebalanceInProgress) } else { Ok(()) }
    }

    fn assign(&mut self, turn: &mut Turn<'_>, request: &SyncGroupRequest) {
        let given: HashMap<&str, &Bytes> =
            request.assignments.iter().map(|given| (&*given.member_id, &given.assignment)).collect();
        let counted = |(id, bytes): (&&str, &&Bytes)| self.members.contains_key(*id).then_some(bytes.len());
        let bytes: Vec<usize> = given.iter().filter_map(counted).collect();
        let largest = bytes.iter().max().copied().unwrap_or(0);
        let has: usize = self.members.values().map(|member| member.assignment.len()).sum();
        let more = bytes.iter().sum::<usize>().saturating_sub(has);
        if largest > turn.config.member_bytes_max || more > turn.bytes_left {
            let (one, all) = (turn.config.member_bytes_max, turn.config.members_bytes_max);
            match largest > one {
                true => tell("bytes of one assignment", &turn.head.id, one),
                false => tell("bytes that members of all groups take", &turn.head.id, all),
            }
            // Nobody gets an assignment: the leader hears why, the others when their time to sync is up.
            if let Some(leader) = self.leader.clone().and_then(|leader| self.members.get_mut(&leader)) {
                leader.answer_sync_error(turn, Code::PolicyViolation);
            }
            return;
        }
        for (id, member) in &mut self.members {
            turn.head.member_bytes -= member.assignment.len();
            member.assignment = given.get(&**id).map(|bytes| Bytes::copy_from_slice(bytes)).unwrap_or_default();
            turn.head.member_bytes += member.assignment.len();
        }
        self.state = State::Stable;
        self.keep(turn);
        let waiting: Vec<String> =
            self.members.iter().filter(|(_, member)| member.sync.is_some()).map(|(id, _)| id.clone()).collect();
        for id in waiting {
            let response = self.synced_response(&id);
            if let Some(token) = self.members.get_mut(&id).and_then(|member| member.sync.take()) {
                turn.answer_durable(token, response);
            }
            self.touch(turn, &id);
        }
    }

    fn synced_response(&self, id: &str) -> Answer {
        let assignment = self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default();
        Answer::Sync(
            SyncGroupResponse::default()
                .with_protocol_type(self.protocol_type().map(text))
                .with_protocol_name(self.protocol.as_deref().map(text))
                .with_assignment(assignment),
        )
    }

    /// Whoever waits for an assignment hears that there will be none.
    pub(super) fn fail_syncs(&mut self, turn: &mut Turn<'_>, code: Code) {
        for member in self.members.values_mut() {
            turn.head.member_bytes -= member.assignment.len();
            member.assignment = Bytes::new();
            if member.sync.is_some() {
                member.answer_sync_error(turn, code);
                member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms);
                turn.wake(member.deadline_ms);
            }
        }
    }

    /// A member says that it is alive, and hears whether it should join again.
    pub(in crate::groups) fn heartbeat(
        &mut self,
        turn: &mut Turn<'_>,
        member_id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), Code> {
        self.check_member(member_id, instance)?;
        if generation != self.generation {
            return Err(Code::IllegalGeneration);
        }
        self.touch(turn, member_id);
        if self.state == State::Preparing { Err(Code::RebalanceInProgress) } else { Ok(()) }
    }
}
