//! How a classic group becomes one whose coordinator assigns, and comes from one: see [`super::super::changing`].

use kafka_protocol::error::ResponseError as Code;
use kera_format::kafka_groups::GroupKind;

use super::super::api::AppendFailed;
use super::super::changing::{CONSUMERS, Changing, subscription_of};
use super::super::embedded::{self, Subscription};
use super::super::group::Turn;
use super::member::Member;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// The members of its generation and what each subscribes to, if a coordinator can assign to them; or why it cannot.
    ///
    /// Whoever has never been in a generation has nothing yet, and comes again when its join is refused: it is not among them.
    pub(in crate::groups) fn changing(&self) -> Result<Vec<(Changing, Subscription)>, &'static str> {
        if !self.is_consumers() {
            return Err("its members are not consumers");
        }
        let of_generation = self.members.iter().filter(|(_, member)| !member.is_new);
        of_generation.map(|(id, member)| self.changing_member(id, member)).collect()
    }

    fn changing_member(&self, id: &str, member: &Member) -> Result<(Changing, Subscription), &'static str> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let subscription = embedded::subscription(&member.metadata(protocol))
            .or_else(|| subscription_of(&member.protocols))
            .ok_or("what its members subscribe to cannot be read")?;
        let given = embedded::given(&member.assignment).ok_or("what its members have cannot be read")?;
        if given.is_special {
            return Err("its members have an assignor of their own");
        }
        let changing = Changing {
            id: id.to_owned(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            host: member.host.clone(),
            session_ms: member.session_ms,
            rebalance_ms: member.rebalance_ms,
            protocols: member.protocols.clone(),
            given: given.partitions,
        };
        Ok((changing, subscription))
    }

    /// The group is one whose coordinator assigns now: who waits here is asked to join there.
    pub(in crate::groups) fn has_changed(&mut self, turn: &mut Turn<'_>) {
        for (id, member) in &mut self.members {
            member.answer_join_error(turn, id, Code::RebalanceInProgress);
            member.answer_sync_error(turn, Code::RebalanceInProgress);
        }
    }

    /// Bytes that its members take.
    pub(in crate::groups) fn member_bytes(&self) -> usize {
        self.members.iter().map(|(id, member)| member.bytes(id)).sum()
    }

    /// The members that a group whose coordinator assigned has left, none of whom speaks its protocol: they join again, into the generation behind
    /// `generation`. Nothing of them is kept before that is there.
    pub(in crate::groups) fn of_changing(
        turn: &mut Turn<'_>,
        generation: i32,
        members: impl Iterator<Item = Changing>,
    ) -> Result<ClassicGroup, AppendFailed> {
        turn.store(GroupKind::Classic, true, generation, CONSUMERS)?;
        let mut group = ClassicGroup::new(generation, Some(CONSUMERS.to_owned()));
        group.state = State::Stable;
        for changing in members {
            let told = changing.protocols.first().map(|(_, told)| told.clone()).unwrap_or_default();
            let member = Member {
                instance: changing.instance,
                client_id: changing.client_id,
                host: changing.host,
                session_ms: changing.session_ms,
                rebalance_ms: changing.rebalance_ms,
                protocols: changing.protocols,
                assignment: embedded::assignment(&told, &changing.given),
                join: None,
                sync: None,
                deadline_ms: u64::MAX,
                is_new: false,
            };
            group.count_protocols(&member, true);
            if let Some(instance) = &member.instance {
                group.instances.insert(instance.clone(), changing.id.clone());
            }
            group.members.insert(changing.id, member);
        }
        group.leader = group.members.keys().next().cloned();
        group.protocol = group.elect_protocol();
        group.look_up(turn.bytes_left);
        turn.head.member_bytes += group.member_bytes();
        let ids: Vec<String> = group.members.keys().cloned().collect();
        ids.iter().for_each(|id| group.touch(turn, id));
        group.prepare(turn);
        Ok(group)
    }
}
