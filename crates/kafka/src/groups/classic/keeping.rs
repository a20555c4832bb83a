//! What is kept of the members of a classic group, so that they are members again when its coordinator is another one or has
//! started again.
//!
//! A generation is kept when its leader has assigned: all of its members, each with the number of them. Who comes and goes after that
//! changes nothing of it before the next one, but that a copy of everything leaves out a generation that is ending: of whoever has left nothing is known any more, and the
//! others would be taken for all that it had, so that nobody had the partitions of the one that is gone. If it cannot be recorded, or only in part, it is not known whole later, and
//! its members join again: the group goes on, as the assignment does not rest on it. Who takes the place of another under the same name
//! gets it when that is recorded, and not otherwise.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_format::kafka_members::{ClassicPart, MemberPart, MemberState};

use super::super::api::AppendFailed;
use super::super::group::Turn;
use super::member::Member;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// The members of this generation, if they have got their assignments, and nobody has come or gone since.
    pub(in crate::groups) fn kept(&self) -> Vec<(String, MemberState)> {
        if self.state != State::Stable {
            return Vec::new();
        }
        let count = self.members.values().filter(|member| !member.is_new).count();
        let of_generation = self.members.iter().filter(|(_, member)| !member.is_new);
        of_generation.map(|(id, member)| (id.clone(), self.kept_member(id, member, count))).collect()
    }

    fn kept_member(&self, id: &str, member: &Member, count: usize) -> MemberState {
        let protocols = member.protocols.iter().map(|(name, metadata)| (name.clone(), metadata.to_vec()));
        let part = ClassicPart {
            generation: self.generation.max(0) as u32,
            members: u32::try_from(count).unwrap_or(u32::MAX),
            leads: self.is_leader(id),
            session_ms: saturated(member.session_ms),
            protocols: protocols.collect(),
            assignment: member.assignment.to_vec(),
        };
        MemberState {
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            host: member.host.clone(),
            rebalance_ms: saturated(member.rebalance_ms),
            part: MemberPart::Classic(part),
        }
    }

    /// The leader has assigned: records the generation.
    pub(super) fn keep(&self, turn: &mut Turn<'_>) {
        let _ = turn.keep(self.kept().into_iter().map(|(id, member)| (id, Some(member))));
    }

    /// A member has taken the place of another, and nobody else notices. If that cannot be recorded it must not be told: later the group
    /// would know the other one only, and fence this one.
    pub(super) fn keep_replaced(&self, turn: &mut Turn<'_>, old_id: &str, fresh_id: &str) -> Result<(), AppendFailed> {
        let Some(member) = self.members.get(fresh_id) else { return Ok(()) };
        let kept = self.kept_member(fresh_id, member, self.members.len());
        // Later it is known by its old id or by this one, never by both.
        turn.keep([(old_id.to_owned(), None), (fresh_id.to_owned(), Some(kept))])
    }

    /// The members of the last generation are members again, if all of them are known.
    pub(in crate::groups) fn restore(&mut self, turn: &mut Turn<'_>, kept: BTreeMap<String, MemberState>) {
        let mut group = ClassicGroup::new(self.generation, self.protocol_type.clone());
        let (count, mut bytes) = (kept.len(), 0);
        for (id, state) in kept {
            let MemberPart::Classic(part) = &state.part else { return };
            if i64::from(part.generation) != i64::from(self.generation) || part.members as usize != count {
                return;
            }
            if part.leads {
                group.leader = Some(id.clone());
            }
            let member = member_of(state);
            bytes += member.bytes(&id);
            group.count_protocols(&member, true);
            if let Some(instance) = &member.instance
                && group.instances.insert(instance.clone(), id.clone()).is_some()
            {
                return;
            }
            group.members.insert(id, member);
        }
        group.protocol = group.elect_protocol();
        group.look_up(turn.bytes_left.saturating_sub(bytes));
        if group.protocol.is_none() || bytes + group.made_bytes() > turn.bytes_left {
            return;
        }
        if group.leader.is_none() {
            group.leader = group.members.keys().next().cloned();
        }
        group.state = State::Stable;
        turn.head.member_bytes += bytes;
        *self = group;
        let ids: Vec<String> = self.members.keys().cloned().collect();
        ids.iter().for_each(|id| self.touch(turn, id));
    }
}

fn member_of(state: MemberState) -> Member {
    let MemberPart::Classic(part) = state.part else { unreachable!("the caller has looked") };
    Member {
        instance: state.instance,
        client_id: state.client_id,
        host: state.host,
        session_ms: part.session_ms.into(),
        rebalance_ms: state.rebalance_ms.into(),
        protocols: part.protocols.into_iter().map(|(name, metadata)| (name, Bytes::from(metadata))).collect(),
        assignment: part.assignment.into(),
        join: None,
        sync: None,
        deadline_ms: u64::MAX,
        is_new: false,
    }
}

fn saturated(ms: u64) -> u32 {
    u32::try_from(ms).unwrap_or(u32::MAX)
}
