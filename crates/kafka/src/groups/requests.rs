//! Requests of the members of classic groups: join, sync, heartbeat, leave.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest,
};

use super::api::{Answer, Caller, Done, Now};
use super::classic::{ClassicGroup, Joining, join_error, sync_error};
use super::coordinator::Coordinator;
use super::group::{Kind, code};

/// Members that may leave with one request.
const LEAVING_MAX: usize = 100_000;
/// From here on a request to leave names members, and is answered for each.
const VERSION_LEAVE_MANY: i16 = 3;

impl Coordinator {
    /// JoinGroup: answered when the generation is there.
    pub fn join(&mut self, now: Now, token: u64, caller: &Caller, request: &JoinGroupRequest) {
        if let Err((member_id, code)) = self.try_join(now, token, caller, request) {
            let answer = join_error(caller.version, member_id, code);
            self.finish(Done { token, after: None, answer });
        }
    }

    fn try_join<'a>(
        &mut self,
        now: Now,
        token: u64,
        caller: &Caller,
        request: &'a JoinGroupRequest,
    ) -> Result<(), (&'a str, Code)> {
        let member_id = &*request.member_id;
        let id = check_group_id(&request.group_id).map_err(|code| (member_id, code))?;
        self.check_loaded().map_err(|code| (member_id, code))?;
        let joining = Joining::new(token, caller, request, self.config()).map_err(|code| (member_id, code))?;
        if joining.is_first() {
            self.create(now, id).map_err(|code| ("", code))?;
        }
        let joined = self.turn(now, id, |kind, _, turn| {
            match kind {
                Kind::Classic(classic) => classic.join(turn, joining),
                Kind::Consumer(consumer) if consumer.is_empty() => {
                    // Nobody is there who could mind: the group goes on as a classic one, and its epoch as generation.
                    let mut classic = ClassicGroup::new(consumer.epoch(), None);
                    classic.join(turn, joining);
                    *kind = Kind::Classic(classic);
                }
                Kind::Consumer(consumer) if turn.journal.keeps_both_kinds() => consumer.join(turn, &joining),
                Kind::Consumer(_) => joining.refuse(turn, member_id, Code::InconsistentGroupProtocol),
            };
        });
        joined.ok_or((member_id, Code::UnknownMemberId))
    }

    /// SyncGroup: answered when the leader has assigned.
    pub fn sync(&mut self, now: Now, token: u64, _caller: &Caller, request: &SyncGroupRequest) {
        let result = check_group_id(&request.group_id).and_then(|id| {
            self.check_loaded()?;
            let synced = self.turn(now, id, |kind, _, turn| match kind {
                Kind::Classic(classic) => classic.sync(turn, token, request),
                Kind::Consumer(consumer) => consumer.sync(turn, token, request),
            });
            synced.ok_or(Code::UnknownMemberId)
        });
        if let Err(code) = result {
            self.finish(Done { token, after: None, answer: sync_error(code) });
        }
    }

    /// Heartbeat.
    pub fn heartbeat(&mut self, now: Now, token: u64, _caller: &Caller, request: &HeartbeatRequest) {
        let result = check_group_id(&request.group_id).and_then(|id| {
            match self.check_loaded() {
                // It will be a member or not when everything is read; until then it should not run away.
                Err(Code::CoordinatorLoadInProgress) => return Ok(()),
                other => other?,
            }
            let (member_id, instance) = (&*request.member_id, request.group_instance_id.as_deref());
            let beat = self.turn(now, id, |kind, _, turn| match kind {
                Kind::Classic(classic) => classic.heartbeat(turn, member_id, instance, request.generation_id),
                Kind::Consumer(consumer) => consumer.heartbeat(turn, member_id, instance, request.generation_id),
            });
            beat.unwrap_or(Err(Code::UnknownMemberId))
        });
        let response = HeartbeatResponse::default().with_error_code(code(result));
        self.finish(Done { token, after: None, answer: Answer::Heartbeat(response) });
    }

    /// LeaveGroup.
    pub fn leave(&mut self, now: Now, token: u64, caller: &Caller, request: &LeaveGroupRequest) {
        let many = caller.version >= VERSION_LEAVE_MANY;
        let single = [MemberIdentity::default().with_member_id(request.member_id.clone())];
        let members = if many { &request.members[..] } else { &single[..] };
        let mut response = LeaveGroupResponse::default();
        match self.leave_all(now, &request.group_id, members) {
            Err(code) => response.error_code = code.code(),
            Ok(results) if many => {
                let answered = members.iter().zip(results).map(|(member, result)| {
                    MemberResponse::default()
                        .with_member_id(member.member_id.clone())
                        .with_group_instance_id(member.group_instance_id.clone())
                        .with_error_code(code(result))
                });
                response.members = answered.collect();
            }
            Ok(results) => response.error_code = code(results.into_iter().collect()),
        }
        self.finish(Done { token, after: None, answer: Answer::Leave(response) });
    }

    fn leave_all(&mut self, now: Now, id: &str, members: &[MemberIdentity]) -> Result<Vec<Result<(), Code>>, Code> {
        let id = check_group_id(id)?;
        self.check_loaded()?;
        if members.len() > LEAVING_MAX {
            return Err(Code::InvalidRequest);
        }
        let results = self.turn(now, id, |kind, _, turn| {
            let mut results = Vec::with_capacity(members.len());
            for member in members {
                let instance = member.group_instance_id.as_deref();
                results.push(match kind {
                    Kind::Classic(classic) => classic.leave(turn, &member.member_id, instance),
                    Kind::Consumer(consumer) => consumer.remove(turn, &member.member_id, instance),
                });
            }
            if let Kind::Classic(classic) = kind
                && results.iter().any(Result::is_ok)
            {
                classic.members_left(turn);
            }
            results
        });
        Ok(results.unwrap_or_else(|| vec![Err(Code::UnknownMemberId); members.len()]))
    }
}

/// Whether a group of members may have this name.
pub(super) fn check_group_id(id: &str) -> Result<&str, Code> {
    let fits = !id.is_empty() && id.len() <= kera_format::kafka_groups::GROUP_NAME_BYTES_MAX;
    if fits { Ok(id) } else { Err(Code::InvalidGroupId) }
}
