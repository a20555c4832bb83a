//! What others are told about a consumer group.

use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment as Described, DescribedGroup, Member as DescribedMember, TopicPartitions,
};

use super::super::api::Topics;
use super::super::group::text;
use super::assignor::{self, Assignment};
use super::{ConsumerGroup, Member};

/// A member that speaks the classic protocol.
const MEMBER_TYPE_CLASSIC: i8 = 0;
/// A member that speaks this group's protocol.
const MEMBER_TYPE_CONSUMER: i8 = 1;

impl ConsumerGroup {
    /// Members, what they have, and what they should have.
    pub(in crate::groups) fn describe(&self, topics: &dyn Topics) -> DescribedGroup {
        let member = |(id, member): (&String, &Member)| {
            let names = member.names.iter().map(|name| TopicName(text(name))).collect();
            DescribedMember::default()
                .with_member_id(text(id))
                .with_instance_id(member.instance.as_deref().map(text))
                .with_rack_id(member.rack.as_deref().map(text))
                .with_member_epoch(member.epoch)
                .with_client_id(text(&member.client_id))
                .with_client_host(text(&member.host))
                .with_subscribed_topic_names(names)
                .with_subscribed_topic_regex(Some(text(member.pattern.as_deref().unwrap_or_default())))
                .with_assignment(described(topics, &member.assigned))
                .with_target_assignment(self.target.get(id).map(|of| described(topics, of)).unwrap_or_default())
                .with_member_type(if member.spoken.is_some() { MEMBER_TYPE_CLASSIC } else { MEMBER_TYPE_CONSUMER })
        };
        let assignor = self.members.values().find_map(|member| member.assignor.as_deref());
        DescribedGroup::default()
            .with_group_state(text(self.state_name()))
            .with_group_epoch(self.epoch)
            .with_assignment_epoch(self.target_epoch)
            .with_assignor_name(text(assignor.unwrap_or(assignor::NAMES[0])))
            .with_members(self.members.iter().map(member).collect())
            .with_authorized_operations(i32::MIN)
    }
}

fn described(topics: &dyn Topics, assignment: &Assignment) -> Described {
    let topics = assignment.iter().filter_map(|(topic, partitions)| {
        let name = TopicName(text(&topics.name(*topic)?));
        let partitions = partitions.iter().copied().collect();
        Some(TopicPartitions::default().with_topic_id(*topic).with_topic_name(name).with_partitions(partitions))
    });
    Described::default().with_topic_partitions(topics.collect())
}
