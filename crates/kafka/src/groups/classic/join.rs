//! Joining a classic group: who may, under which id, and what follows from it.

use bytes::Bytes;
use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::JoinGroupRequest;
use kafka_protocol::messages::JoinGroupResponse;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;

use super::super::api::{Answer, AppendFailed, Caller, GroupConfig};
use super::super::group::{Turn, text};
use super::member::{Member, ParkedJoin, join_error, protocol_bytes, taken_bytes};
use super::{ClassicGroup, State};
use crate::limits_told::tell;

/// Protocols that one member may name.
const PROTOCOLS_MAX: usize = 64;
/// Bytes of the names of a member, an instance, a protocol.
const NAME_BYTES_MAX: usize = 1_024;
/// Bytes of a client's name that a member's id begins with.
const ID_PREFIX_BYTES_MAX: usize = 255;
/// Bytes of an id behind that.
const ID_REST_BYTES: usize = 37;
/// From here on a member without an id is given one and asked to come again with it.
const VERSION_ID_REQUIRED: i16 = 4;
/// From here on a leader can be told that it has nothing to assign.
const VERSION_SKIP_ASSIGNMENT: i16 = 9;

/// A request to join that keeps its limits.
#[derive(Debug)]
pub(in crate::groups) struct Joining {
    pub(in crate::groups) token: u64,
    version: i16,
    pub(in crate::groups) member_id: String,
    pub(in crate::groups) instance: Option<String>,
    pub(in crate::groups) client_id: String,
    pub(in crate::groups) host: String,
    pub(in crate::groups) session_ms: u64,
    pub(in crate::groups) rebalance_ms: u64,
    pub(in crate::groups) protocol_type: String,
    pub(in crate::groups) protocols: Vec<(String, Bytes)>,
}

impl Joining {
    /// Takes a request, if everything in it keeps its limits. Copies what it keeps: the request's buffer can go.
    pub(in crate::groups) fn new(
        token: u64,
        caller: &Caller,
        request: &JoinGroupRequest,
        config: &GroupConfig,
    ) -> Result<Joining, Code> {
        let session_ms = request.session_timeout_ms;
        if session_ms < config.session_ms_min || session_ms > config.session_ms_max {
            return Err(Code::InvalidSessionTimeout);
        }
        let rebalance_ms = if caller.version < 1 { session_ms } else { request.rebalance_timeout_ms };
        let instance = request.group_instance_id.as_ref().map(|id| id.to_string());
        let names = [&request.member_id, &request.protocol_type].map(|name| name.len());
        let longest = names.into_iter().chain(instance.as_ref().map(String::len)).max().unwrap_or(0);
        let too_many = request.protocols.len() > PROTOCOLS_MAX
            || request.protocols.iter().any(|protocol| protocol.name.len() > NAME_BYTES_MAX)
            || request.protocol_type.len() > kera_format::kafka_groups::PROTOCOL_TYPE_BYTES_MAX;
        if longest > NAME_BYTES_MAX || too_many || instance.as_deref() == Some("") {
            return Err(Code::InvalidRequest);
        }
        let mut protocols: Vec<(String, Bytes)> = Vec::with_capacity(request.protocols.len());
        for protocol in &request.protocols {
            if !protocols.iter().any(|(name, _)| **name == *protocol.name) {
                protocols.push((protocol.name.to_string(), Bytes::copy_from_slice(&protocol.metadata)));
            }
        }
        if protocol_bytes(&protocols) > config.member_bytes_max {
            tell("bytes that one member gives", &request.group_id, config.member_bytes_max);
            return Err(Code::PolicyViolation);
        }
        Ok(Joining {
            token,
            version: caller.version,
            member_id: request.member_id.to_string(),
            instance,
            client_id: caller.client_id.clone(),
            host: caller.host.clone(),
            session_ms: session_ms as u64,
            rebalance_ms: rebalance_ms.max(0) as u64,
            protocol_type: request.protocol_type.to_string(),
            protocols,
        })
    }

    /// Whether it comes for the first time.
    pub(in crate::groups) fn is_first(&self) -> bool {
        self.member_id.is_empty()
    }

    /// Whether it is given an id and asked to come again with it.
    pub(in crate::groups) fn needs_id(&self) -> bool {
        self.is_first() && self.instance.is_none() && self.version >= VERSION_ID_REQUIRED
    }

    /// Bytes that it takes as a member, without an assignment.
    pub(in crate::groups) fn bytes(&self) -> usize {
        let instance = self.instance.as_deref().unwrap_or_default();
        let prefix = if self.instance.is_some() { instance } else { &self.client_id };
        let fresh = prefix.len().min(ID_PREFIX_BYTES_MAX) + ID_REST_BYTES;
        let id = if self.is_first() { fresh } else { self.member_id.len() };
        taken_bytes(id, [instance, &self.client_id, &self.host].map(str::len), &self.protocols)
    }

    /// Answers with an error.
    pub(in crate::groups) fn refuse(&self, turn: &mut Turn<'_>, member_id: &str, code: Code) {
        turn.answer(self.token, join_error(self.version, member_id, code));
    }

    pub(in crate::groups) fn fresh_id(&self, turn: &Turn<'_>) -> String {
        let prefix = self.instance.as_ref().unwrap_or(&self.client_id);
        let end = (0..=prefix.len().min(ID_PREFIX_BYTES_MAX)).rev().find(|end| prefix.is_char_boundary(*end));
        turn.fresh_id(&prefix[..end.unwrap_or(0)])
    }
}

impl ClassicGroup {
    /// A member wants into the next generation.
    pub(in crate::groups) fn join(&mut self, turn: &mut Turn<'_>, joining: Joining) {
        if !self.has_room(turn.config.members_max, &joining.member_id) {
            self.drop_member(turn, &joining.member_id, Code::UnknownMemberId);
            tell("members of a group", &turn.head.id, turn.config.members_max);
            joining.refuse(turn, "", Code::GroupMaxSizeReached);
            return self.complete_if_all_joined(turn);
        }
        let owner = joining.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let id = owner.unwrap_or(&joining.member_id);
        let has = self.members.get(id).map_or(0, |known| known.bytes(id));
        if joining.bytes().saturating_sub(has) > turn.bytes_left {
            tell("bytes that members of all groups take", &turn.head.id, turn.config.members_bytes_max);
            return joining.refuse(turn, &joining.member_id, Code::PolicyViolation);
        }
        let names = joining.protocols.iter().map(|(name, _)| name);
        if !self.supports(&joining.protocol_type, names) {
            return joining.refuse(turn, &joining.member_id, Code::InconsistentGroupProtocol);
        }
        if joining.is_first() { self.join_first(turn, joining) } else { self.join_again(turn, joining) }
    }

    fn has_room(&self, members_max: usize, member_id: &str) -> bool {
        if member_id.is_empty() && self.promised.len() >= members_max {
            return false;
        }
        match self.state {
            State::Empty => true,
            State::Preparing => {
                self.members.get(member_id).is_some_and(|member| member.join.is_some()) || self.joined < members_max
            }
            State::Completing | State::Stable => {
                self.members.contains_key(member_id) || self.members.len() < members_max
            }
        }
    }

    fn join_first(&mut self, turn: &mut Turn<'_>, joining: Joining) {
        let fresh_id = joining.fresh_id(turn);
        if let Some(instance) = &joining.instance {
            return match self.instances.get(instance).cloned() {
                Some(old_id) => self.replace(turn, joining, &old_id, fresh_id),
                None => self.add(turn, joining, fresh_id),
            };
        }
        if !joining.needs_id() {
            return self.add(turn, joining, fresh_id);
        }
        let deadline_ms = turn.now.mono_ms.saturating_add(joining.session_ms);
        joining.refuse(turn, &fresh_id, Code::MemberIdRequired);
        self.promised.insert(fresh_id, deadline_ms);
        turn.wake(deadline_ms);
    }

    fn join_again(&mut self, turn: &mut Turn<'_>, joining: Joining) {
        let id = joining.member_id.clone();
        if self.promised.contains_key(&id) && joining.instance.is_none() {
            return self.add(turn, joining, id);
        }
        if let Err(code) = self.check_member(&id, joining.instance.as_deref()) {
            return joining.refuse(turn, &id, code);
        }
        let same = self.members.get(&id).is_some_and(|member| member.protocols == joining.protocols);
        let is_retry = match self.state {
            State::Empty => return joining.refuse(turn, &id, Code::UnknownMemberId),
            State::Preparing => false,
            // It did not get the answer: the same again.
            State::Completing => same,
            // A leader who comes again wants to assign anew.
            State::Stable => same && !self.is_leader(&id),
        };
        if is_retry {
            let response = self.joined_response(&id);
            return turn.answer_durable(joining.token, Answer::Join(response));
        }
        self.update(turn, joining, &id);
        self.rebalance(turn);
    }

    fn add(&mut self, turn: &mut Turn<'_>, joining: Joining, id: String) {
        if self.members.is_empty() {
            self.protocol_type = Some(joining.protocol_type);
        }
        let deadline_ms = turn.now.mono_ms.saturating_add(turn.config.new_member_ms);
        let member = Member {
            instance: joining.instance,
            client_id: joining.client_id,
            host: joining.host,
            session_ms: joining.session_ms,
            rebalance_ms: joining.rebalance_ms,
            protocols: joining.protocols,
            assignment: Bytes::new(),
            join: Some(ParkedJoin { token: joining.token, version: joining.version }),
            sync: None,
            deadline_ms,
            is_new: true,
        };
        turn.wake(deadline_ms);
        turn.head.member_bytes += member.bytes(&id);
        self.count_protocols(&member, true);
        self.joined += 1;
        self.promised.remove(&id);
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(id, member);
        if let Some(gathering) = &mut self.gathering {
            gathering.joined = true;
        }
        self.rebalance(turn);
    }

    /// A member joins that is there already: its join waits, in place of an earlier one.
    fn update(&mut self, turn: &mut Turn<'_>, joining: Joining, id: &str) {
        let Some(mut member) = self.members.remove(id) else { return };
        self.count_protocols(&member, false);
        turn.head.member_bytes -= member.bytes(id);
        if member.answer_join_error(turn, id, Code::RebalanceInProgress) {
            self.joined -= 1;
        }
        member.protocols = joining.protocols;
        member.session_ms = joining.session_ms;
        member.rebalance_ms = joining.rebalance_ms;
        member.join = Some(ParkedJoin { token: joining.token, version: joining.version });
        self.joined += 1;
        turn.head.member_bytes += member.bytes(id);
        self.count_protocols(&member, true);
        self.members.insert(id.to_owned(), member);
    }

    /// A member comes back under the name that outlives it: whoever had the name is fenced, and its place goes on. If the
    /// group would agree on the same protocol, nobody else notices.
    fn replace(&mut self, turn: &mut Turn<'_>, joining: Joining, old_id: &str, fresh_id: String) {
        let Some(mut member) = self.members.remove(old_id) else { return };
        if member.answer_join_error(turn, old_id, Code::FencedInstanceId) {
            self.joined -= 1;
        }
        member.answer_sync_error(turn, Code::FencedInstanceId);
        let before = member.clone();
        member.client_id.clone_from(&joining.client_id);
        member.host.clone_from(&joining.host);
        turn.head.member_bytes = turn.head.member_bytes + member.bytes(&fresh_id) - before.bytes(old_id);
        let old_leader = self.leader.clone();
        self.members.insert(fresh_id.clone(), member);
        self.rename(before.instance.as_deref(), old_id, &fresh_id);
        let version = joining.version;
        self.update(turn, joining, &fresh_id);
        self.touch(turn, &fresh_id);
        match self.state {
            State::Stable if self.elect_protocol() == self.protocol => {
                match self.keep_replaced(turn, old_id, &fresh_id) {
                    Ok(()) => self.answer_replaced(turn, &fresh_id, version, old_leader),
                    Err(AppendFailed) => self.put_back(turn, (old_id, before), &fresh_id),
                }
            }
            State::Completing | State::Stable => self.prepare(turn),
            State::Empty | State::Preparing => self.complete_if_all_joined(turn),
        }
    }

    /// A member is called something else from now on.
    fn rename(&mut self, instance: Option<&str>, from: &str, to: &str) {
        if self.unsynced.remove(from) {
            self.unsynced.insert(to.to_owned());
        }
        if self.is_leader(from) {
            self.leader = Some(to.to_owned());
        }
        if let Some(instance) = instance {
            self.instances.insert(instance.to_owned(), to.to_owned());
        }
    }

    /// That a member has taken the place of another cannot be recorded: the other one has it as before, and who came is asked to come again
    /// later. In a stable group nothing of the other one was waiting, so it was told nothing.
    fn put_back(&mut self, turn: &mut Turn<'_>, (old_id, before): (&str, Member), fresh_id: &str) {
        let Some(mut member) = self.members.remove(fresh_id) else { return };
        if member.answer_join_error(turn, "", Code::CoordinatorNotAvailable) {
            self.joined -= 1;
        }
        self.count_protocols(&member, false);
        turn.head.member_bytes -= member.bytes(fresh_id);
        self.count_protocols(&before, true);
        turn.head.member_bytes += before.bytes(old_id);
        self.rename(before.instance.as_deref(), fresh_id, old_id);
        self.members.insert(old_id.to_owned(), before);
    }

    fn answer_replaced(&mut self, turn: &mut Turn<'_>, id: &str, version: i16, old_leader: Option<String>) {
        let mut response = self.joined_response(id);
        if version >= VERSION_SKIP_ASSIGNMENT {
            response.skip_assignment = self.is_leader(id);
        } else {
            // An old client that finds itself leader would assign anew: it is told who led before.
            response.leader = text(old_leader.as_deref().unwrap_or_default());
            response.members = Vec::new();
        }
        let Some(member) = self.members.get_mut(id) else { return };
        if let Some(parked) = member.join.take() {
            self.joined -= 1;
            turn.answer_durable(parked.token, Answer::Join(response));
        }
    }

    /// The generation is there: tells everybody, and the leader about everybody.
    pub(super) fn answer_joins(&mut self, turn: &mut Turn<'_>) {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let response = self.joined_response(&id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            member.is_new = false;
            if let Some(parked) = member.join.take() {
                self.joined -= 1;
                turn.answer_durable(parked.token, Answer::Join(response));
            }
            self.touch(turn, &id);
            self.unsynced.insert(id);
        }
        let deadline_ms = turn.now.mono_ms.saturating_add(self.rebalance_ms());
        self.sync_deadline_ms = Some(deadline_ms);
        turn.wake(deadline_ms);
    }

    /// What a member of this generation is told.
    fn joined_response(&self, id: &str) -> JoinGroupResponse {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let about = |(id, member): (&String, &Member)| {
            JoinGroupResponseMember::default()
                .with_member_id(text(id))
                .with_group_instance_id(member.instance.as_deref().map(text))
                .with_metadata(member.metadata(protocol))
        };
        let members = if self.is_leader(id) { self.members.iter().map(about).collect() } else { Vec::new() };
        JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(self.protocol_type().map(text))
            .with_protocol_name(Some(text(protocol)))
            .with_leader(text(self.leader.as_deref().unwrap_or_default()))
            .with_member_id(text(id))
            .with_members(members)
    }
}
