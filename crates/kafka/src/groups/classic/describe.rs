//! What others are told about a classic group.

use bytes::Bytes;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};

use super::super::group::text;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// Kafka's name of its state.
    pub(in crate::groups) fn state_name(&self) -> &'static str {
        match self.state {
            State::Empty => "Empty",
            State::Preparing => "PreparingRebalance",
            State::Completing => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }

    /// Members, what they agreed on, and who does what.
    pub(in crate::groups) fn describe(&self) -> DescribedGroup {
        let stable = self.state == State::Stable;
        let protocol = self.protocol.as_deref().filter(|_| stable).unwrap_or_default();
        let members = self.members.iter().map(|(id, member)| {
            DescribedGroupMember::default()
                .with_member_id(text(id))
                .with_group_instance_id(member.instance.as_deref().map(text))
                .with_client_id(text(&member.client_id))
                .with_client_host(text(&member.host))
                .with_member_metadata(if stable { member.metadata(protocol) } else { Bytes::new() })
                .with_member_assignment(member.assignment.clone())
        });
        DescribedGroup::default()
            .with_group_state(text(self.state_name()))
            .with_protocol_type(text(self.protocol_type().unwrap_or_default()))
            .with_protocol_data(text(protocol))
            .with_members(members.collect())
            .with_authorized_operations(i32::MIN)
    }
}
