//! What happens to a classic group when nothing is heard.

use kafka_protocol::error::ResponseError as Code;

use super::super::group::Turn;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// Ends what is due, and asks to be woken for what comes next.
    pub(in crate::groups) fn tick(&mut self, turn: &mut Turn<'_>) {
        let now_ms = turn.now.mono_ms;
        self.expire_members(turn);
        if self.join_deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms) {
            self.joining_is_over(turn);
        }
        if self.sync_deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms) {
            self.syncing_is_over(turn);
        }
        let members = self.members.values().map(|member| member.deadline_ms);
        let next =
            members.chain(self.promised.values().copied()).chain(self.join_deadline_ms).chain(self.sync_deadline_ms);
        turn.wake(next.min().unwrap_or(u64::MAX));
    }

    fn expire_members(&mut self, turn: &mut Turn<'_>) {
        let now_ms = turn.now.mono_ms;
        let promised = self.promised.len();
        self.promised.retain(|_, deadline_ms| *deadline_ms > now_ms);
        let mut lost = Vec::new();
        for (id, member) in &mut self.members {
            if member.deadline_ms > now_ms {
                continue;
            }
            if !member.is_new && (member.join.is_some() || member.sync.is_some()) {
                // It waits for us, not we for it. Its time runs on when it has its answer.
                member.deadline_ms = u64::MAX;
            } else {
                lost.push(id.clone());
            }
        }
        for id in &lost {
            self.drop_member(turn, id, Code::UnknownMemberId);
        }
        if !lost.is_empty() || self.promised.len() < promised {
            match self.state {
                State::Preparing => self.complete_if_all_joined(turn),
                State::Completing | State::Stable if !lost.is_empty() => self.prepare(turn),
                State::Empty | State::Completing | State::Stable => {}
            }
        }
    }

    fn joining_is_over(&mut self, turn: &mut Turn<'_>) {
        let delay_ms = turn.config.initial_delay_ms;
        match &mut self.gathering {
            Some(gathering) if gathering.joined && gathering.left_ms > 0 => {
                // Somebody came: wait as long again, but not longer than members would.
                gathering.joined = false;
                let next_ms = delay_ms.min(gathering.left_ms);
                gathering.left_ms = gathering.left_ms.saturating_sub(gathering.delay_ms);
                gathering.delay_ms = next_ms;
                self.expect_joins(turn, next_ms);
            }
            _ => self.complete_join(turn),
        }
    }

    fn syncing_is_over(&mut self, turn: &mut Turn<'_>) {
        self.sync_deadline_ms = None;
        let late = std::mem::take(&mut self.unsynced);
        for id in &late {
            self.drop_member(turn, id, Code::UnknownMemberId);
        }
        match self.state {
            State::Completing | State::Stable if !late.is_empty() => self.prepare(turn),
            // The leader asked and gave nothing that could be used: it has to do it again.
            State::Completing => self.prepare(turn),
            State::Empty | State::Preparing | State::Stable => {}
        }
    }
}
