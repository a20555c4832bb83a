//! How a consumer group comes from a classic one, and becomes one again: see [`super::super::changing`].

use std::collections::{BTreeMap, BTreeSet, HashSet};

use uuid::Uuid;

use super::super::api::Topics;
use super::super::changing::Changing;
use super::super::classic::ClassicGroup;
use super::super::embedded::{Named, Subscription};
use super::super::group::Turn;
use super::ConsumerGroup;
use super::assignor::Assignment;
use super::member::{Member, Spoken};

impl ConsumerGroup {
    /// A group of the members that a classic one has in this generation. Of a partition that its leader gave to two the first one has it from now on, and of one that
    /// somebody said it had, and another one was given, that other one.
    ///
    /// Its epoch is the generation. Who comes, and changes what the group reads by that, makes the next one.
    pub(in crate::groups) fn of_changing(
        turn: &mut Turn<'_>,
        generation: i32,
        members: Vec<(Changing, Subscription)>,
    ) -> ConsumerGroup {
        let mut group = ConsumerGroup::new(generation);
        let mut taken = HashSet::new();
        let mut free = |named: &Named| {
            let mut free = by_id(turn.topics, named);
            for (topic, partitions) in &mut free {
                partitions.retain(|partition| taken.insert((*topic, *partition)));
            }
            free.retain(|_, partitions| !partitions.is_empty());
            free
        };
        let mut assigned: Vec<Assignment> = members.iter().map(|(changing, _)| free(&changing.given)).collect();
        for ((_, subscription), assigned) in members.iter().zip(&mut assigned) {
            for (topic, partitions) in free(&subscription.owned) {
                assigned.entry(topic).or_default().extend(partitions);
            }
        }
        for ((changing, subscription), assigned) in members.into_iter().zip(assigned) {
            let mut member = Member::new(changing.instance.as_deref());
            (member.epoch, member.previous_epoch) = (generation, generation);
            (member.client_id, member.host) = (changing.client_id, changing.host);
            member.rebalance_ms = changing.rebalance_ms;
            member.assigned = assigned;
            member.speak(&subscription, Spoken { session_ms: changing.session_ms, protocols: changing.protocols });
            group.set_target(&changing.id, &member.assigned);
            group.admit(turn, &changing.id, member);
        }
        group
    }

    /// Somebody whose target is not known should have what it has.
    pub(super) fn set_target(&mut self, id: &str, target: &Assignment) {
        self.target_bytes += super::target_bytes(target);
        self.target.insert(id.to_owned(), target.clone());
    }

    /// Whether it has members, and all of them speak the classic protocol.
    pub(in crate::groups) fn is_classic(&self) -> bool {
        !self.is_empty() && self.spoken == self.members.len()
    }

    /// The same group as a classic one. None: that cannot be recorded now, and it stays what it is.
    pub(in crate::groups) fn to_classic(&self, turn: &mut Turn<'_>) -> Option<ClassicGroup> {
        let topics = turn.topics;
        let members = self.members.iter().map(|(id, member)| {
            let spoken = member.spoken.clone().unwrap_or_default();
            Changing {
                id: id.clone(),
                instance: member.instance.clone(),
                client_id: member.client_id.clone(),
                host: member.host.clone(),
                session_ms: spoken.session_ms,
                rebalance_ms: member.rebalance_ms,
                protocols: spoken.protocols,
                given: by_name(topics, &member.assigned),
            }
        });
        let group = ClassicGroup::of_changing(turn, self.target_epoch, members).ok()?;
        turn.head.member_bytes -= self.members.iter().map(|(id, member)| member.bytes(id)).sum::<usize>();
        Some(group)
    }
}

/// Partitions by the ids of topics, of those that are there: what a member says it has takes no memory for others.
pub(super) fn by_id(topics: &dyn Topics, named: &Named) -> Assignment {
    let mut assignment: BTreeMap<Uuid, BTreeSet<i32>> = Assignment::new();
    for (name, partitions) in named {
        if let Some(topic) = topics.topic(name) {
            let is_there = |partition: &&i32| u32::try_from(**partition).is_ok_and(|at| at < topic.partitions);
            assignment.entry(topic.id).or_default().extend(partitions.iter().filter(is_there));
        }
    }
    assignment
}

/// Partitions by the names of topics, of those that are there.
pub(super) fn by_name(topics: &dyn Topics, assignment: &Assignment) -> Named {
    let named = assignment.iter().filter(|(_, partitions)| !partitions.is_empty());
    named.filter_map(|(topic, partitions)| Some((topics.name(*topic)?, partitions.iter().copied().collect()))).collect()
}
