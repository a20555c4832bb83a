//! What administrators ask: which groups there are, how they are, and to delete them.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DeleteGroupsRequest, DeleteGroupsResponse,
    DescribeGroupsRequest, DescribeGroupsResponse, GroupId, ListGroupsRequest, ListGroupsResponse,
    consumer_group_describe_response,
};
use kafka_protocol::protocol::StrBytes;
use kera_format::kafka_groups::{Entry, Fact};

use super::api::{Answer, Caller, Done, Mark, Now};
use super::coordinator::Coordinator;
use super::group::{Group, Kind, text};
use crate::access::{GROUP_OPERATIONS, told_if};
use crate::limits_told::tell;
use crate::once::once;

/// Groups that one request may name; the others are told so, each.
const GROUPS_MAX: usize = 10_000;
/// The same for who asks. One text for all of them: a short request can name very many.
const TOO_MANY: &str = "one request may name 10000 groups; ask for the others in another one";
/// From here on DescribeGroups says that a group is not there; before, that it is dead.
const VERSION_DESCRIBE_NOT_FOUND: i16 = 6;

impl Coordinator {
    /// ListGroups.
    pub fn list(&mut self, _now: Now, token: u64, _caller: &Caller, request: &ListGroupsRequest) {
        let mut response = ListGroupsResponse::default();
        match self.check_loaded() {
            Err(code) => response.error_code = code.code(),
            Ok(()) => {
                let among = |filter: &[StrBytes], value: &str| {
                    filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
                };
                let listed = self.groups().map(listed).filter(|group| {
                    among(&request.states_filter, &group.group_state) && among(&request.types_filter, &group.group_type)
                });
                response.groups = listed.collect();
            }
        }
        self.finish(Done { token, after: None, answer: Answer::List(response) });
    }

    /// DescribeGroups: of classic groups.
    pub fn describe(&mut self, _now: Now, token: u64, caller: &Caller, request: &DescribeGroupsRequest) {
        let describe = |id: &GroupId| match self.find(id) {
            Err(code) if code != Code::GroupIdNotFound => {
                DescribedGroup::default().with_group_id(id.clone()).with_error_code(code.code())
            }
            Ok(Group { kind: Kind::Classic(classic), .. }) => classic.describe().with_group_id(id.clone()),
            other => {
                let dead = DescribedGroup::default().with_group_id(id.clone()).with_group_state(text("Dead"));
                let what = if other.is_ok() { "is not a classic group" } else { "not found" };
                if caller.version < VERSION_DESCRIBE_NOT_FOUND {
                    dead
                } else {
                    dead.with_error_code(Code::GroupIdNotFound.code())
                        .with_error_message(Some(text(&format!("Group {} {what}.", &**id))))
                }
            }
        };
        let operations = told_if(request.include_authorized_operations, GROUP_OPERATIONS);
        let told = |(id, is_within): (&GroupId, bool)| {
            if !is_within {
                let message = (caller.version >= VERSION_DESCRIBE_NOT_FOUND).then(too_many);
                let refused = DescribedGroup::default().with_group_id(id.clone()).with_error_message(message);
                return refused.with_error_code(Code::InvalidRequest.code());
            }
            let group: DescribedGroup = describe(id);
            let is_known = group.error_code == 0;
            if is_known { group.with_authorized_operations(operations) } else { group }
        };
        let groups = named(&request.groups).map(told).collect();
        let response = DescribeGroupsResponse::default().with_groups(groups);
        self.finish(Done { token, after: None, answer: Answer::Describe(response) });
    }

    /// ConsumerGroupDescribe: of groups whose coordinator assigns.
    pub fn consumer_describe(
        &mut self,
        _now: Now,
        token: u64,
        _caller: &Caller,
        request: &ConsumerGroupDescribeRequest,
    ) {
        let refused = |id: &GroupId, code: Code, message: StrBytes| {
            consumer_group_describe_response::DescribedGroup::default()
                .with_group_id(id.clone())
                .with_error_code(code.code())
                .with_error_message(Some(message))
                .with_authorized_operations(i32::MIN)
        };
        let describe = |id: &GroupId| match self.find(id) {
            Ok(Group { kind: Kind::Consumer(consumer), .. }) => {
                consumer.describe(self.topics()).with_group_id(id.clone())
            }
            Ok(_) => refused(id, Code::GroupIdNotFound, text(&format!("Group {} is not a consumer group.", &**id))),
            Err(code) => refused(id, code, text(&format!("Group {} not found.", &**id))),
        };
        let operations = told_if(request.include_authorized_operations, GROUP_OPERATIONS);
        let told = |(id, is_within): (&GroupId, bool)| {
            if !is_within {
                return refused(id, Code::InvalidRequest, too_many());
            }
            let group: consumer_group_describe_response::DescribedGroup = describe(id);
            let is_known = group.error_code == 0;
            if is_known { group.with_authorized_operations(operations) } else { group }
        };
        let groups = named(&request.group_ids).map(told).collect();
        let response = ConsumerGroupDescribeResponse::default().with_groups(groups);
        self.finish(Done { token, after: None, answer: Answer::ConsumerDescribe(response) });
    }

    /// DeleteGroups: of groups without members, with all of their offsets.
    pub fn delete(&mut self, _now: Now, token: u64, _caller: &Caller, request: &DeleteGroupsRequest) {
        let mut after = None;
        let mut results = Vec::new();
        for (id, is_within) in named(&request.groups_names) {
            let deleted = if is_within { self.delete_group(id) } else { Err(Code::InvalidRequest) };
            let code = match deleted {
                Ok(mark) => {
                    after = after.max(mark);
                    0
                }
                Err(code) => code.code(),
            };
            results.push(DeletableGroupResult::default().with_group_id(id.clone()).with_error_code(code));
        }
        let response = DeleteGroupsResponse::default().with_results(results);
        self.finish(Done { token, after, answer: Answer::Delete(response) });
    }

    fn delete_group(&mut self, id: &str) -> Result<Option<Mark>, Code> {
        if !self.find(id)?.is_empty() {
            return Err(Code::NonEmptyGroup);
        }
        let gone = Entry { group: id.to_owned(), fact: Fact::Group(None) };
        let mark = self.journal().append(&[gone]).map_err(|_| Code::CoordinatorNotAvailable)?;
        self.remove(id);
        Ok(Some(mark))
    }
}

/// The groups that a request names, each once, and whether each is among as many as it may name. Who is told nothing of a group that it asked for
/// waits for it, or takes the answer for broken. Where there are more the log says so, for not every answer can.
fn named(ids: &[GroupId]) -> impl Iterator<Item = (&GroupId, bool)> {
    once(ids, |id| (*id).clone()).enumerate().map(|(at, id)| {
        if at == GROUPS_MAX {
            tell("groups of one request", id, GROUPS_MAX);
        }
        (id, at < GROUPS_MAX)
    })
}

fn too_many() -> StrBytes {
    StrBytes::from_static_str(TOO_MANY)
}

fn listed(group: &Group) -> ListedGroup {
    let (protocol_type, state, kind) = match &group.kind {
        Kind::Classic(classic) => (classic.protocol_type().unwrap_or_default(), classic.state_name(), "classic"),
        Kind::Consumer(consumer) => ("consumer", consumer.state_name(), "consumer"),
    };
    ListedGroup::default()
        .with_group_id(GroupId(text(&group.head.id)))
        .with_protocol_type(text(protocol_type))
        .with_group_state(text(state))
        .with_group_type(text(kind))
}
