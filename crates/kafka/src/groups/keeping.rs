//! Members of whom the journal tells, while it is read.

use std::collections::BTreeMap;

use kera_format::kafka_members::{MemberPart, MemberState};

use super::group::{Kind, Turn};

/// The members of a group, as far as the journal was read.
#[derive(Debug, Default)]
pub(super) struct KeptMembers {
    /// Of a classic group: the last generation of which there are any. Earlier ones are over.
    generation: u32,
    members: BTreeMap<String, MemberState>,
}

impl KeptMembers {
    /// A member is so; `None`: it is gone.
    pub(super) fn replay(&mut self, id: String, state: Option<Box<MemberState>>) {
        let Some(state) = state else {
            self.members.remove(&id);
            return;
        };
        if let MemberPart::Classic(part) = &state.part
            && part.generation != self.generation
        {
            self.generation = part.generation;
            self.members.clear();
        }
        self.members.insert(id, *state);
    }

    /// Everything has been read: they are members again, if what is known of them is whole.
    pub(super) fn restore(self, kind: &mut Kind, turn: &mut Turn<'_>) {
        let had_members = turn.head.stored.as_ref().is_some_and(|stored| stored.members);
        match kind {
            Kind::Classic(group) if had_members => group.restore(turn, self.members),
            Kind::Consumer(group) if had_members => group.restore(turn, self.members),
            Kind::Classic(_) | Kind::Consumer(_) => {}
        }
    }
}

impl Kind {
    /// What is to be kept of its members.
    pub(super) fn kept(&self) -> Vec<(String, MemberState)> {
        match self {
            Kind::Classic(group) => group.kept(),
            Kind::Consumer(group) => group.kept(),
        }
    }

    /// Whether the journal tells of all members of a consumer group as they are.
    #[cfg(test)]
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Kind::Consumer(group) if group.is_recorded())
    }
}
