//! Leaving a classic group.

use kafka_protocol::error::ResponseError as Code;

use super::super::group::Turn;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// One member leaves: by its id, or by the name that outlives it. [`members_left`](ClassicGroup::members_left) must
    /// follow when all have that go together.
    pub(in crate::groups) fn leave(
        &mut self,
        turn: &mut Turn<'_>,
        member_id: &str,
        instance: Option<&str>,
    ) -> Result<(), Code> {
        let id = if member_id.is_empty() {
            instance.and_then(|instance| self.instances.get(instance)).ok_or(Code::UnknownMemberId)?.clone()
        } else if self.promised.contains_key(member_id) {
            member_id.to_owned()
        } else {
            self.check_member(member_id, instance)?;
            member_id.to_owned()
        };
        self.drop_member(turn, &id, Code::UnknownMemberId);
        Ok(())
    }

    /// Members have left: those that are still there agree anew.
    pub(in crate::groups) fn members_left(&mut self, turn: &mut Turn<'_>) {
        match self.state {
            State::Empty => {}
            State::Preparing => self.complete_if_all_joined(turn),
            State::Completing | State::Stable => self.prepare(turn),
        }
    }
}
