//! Positions that change: commits, what is put together of them, resets, the copy that keeps the stream short.
//!
//! A position is recorded before it is acknowledged: the record is appended under the application's lock, and the answer
//! waits until it is durable. If it cannot be appended the position stays as it was.

use std::collections::BTreeSet;

use kera_format::StreamletId;
use kera_format::applications::{Entry, LaneKey, Position};
use kera_protocol::application::{AfterCommit, CommitEntry};
use kera_protocol::{Start, Status};

use super::application::{Application, State};
use super::does_not_exist;
use super::journal::{Journal, Written};
use super::progress::Undo;
use crate::failure::Failure;
use crate::groups::{Place, check_visible};

/// Who commits, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committer {
    /// Zero: nobody in particular, for an application without members.
    pub(super) member: u64,
    pub(super) now_us: u64,
    pub(super) now_ms: i64,
}

/// What became of a commit.
pub(super) struct Committed {
    /// For each entry.
    pub(super) statuses: Vec<u16>,
    /// Entries that were accepted.
    pub(super) accepted: u64,
    /// Entries that were refused because the lease is another's.
    pub(super) fenced: u64,
    /// Why accepted entries could not be recorded.
    pub(super) failure: Option<Failure>,
}

/// What a reset would do.
pub(super) enum Reset {
    /// These lanes get these positions.
    To(Vec<(LaneKey, Position)>),
    /// A segment of this lane has to come from disk first.
    Loading(LaneKey, kera_log::LaneVersion),
}

/// An entry that was applied and is not recorded yet.
struct Applied {
    at: usize,
    key: LaneKey,
    undo: Undo,
}

impl Application {
    /// Checks and applies a commit, entry by entry, and records what it changes.
    pub(super) fn commit(&self, by: Committer, entries: &[CommitEntry]) -> Result<Committed, Failure> {
        let mut state = self.state.lock();
        self.check_exists(&state)?;
        if by.member != 0 {
            state.hear(by.member, by.now_us, by.now_ms)?;
        } else if !state.members.is_empty() {
            let message = "member is 0 but the application has members: join it, or stop them";
            return Err(Failure::new(Status::ApplicationActive, message));
        }
        let mut statuses = vec![Status::Ok; entries.len()];
        let (mut records, mut applied) = (Vec::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            match self.apply(&mut state, by, at, entry, &mut records, &mut applied) {
                Ok(()) => {}
                Err(status) => statuses[at] = status,
            }
        }
        let recorded = self.keepers.record(&self.meta.name, self.meta.stream, &records, by.now_ms);
        for (not_recorded, _) in applied.drain(..).zip(&recorded.done).rev().filter(|(_, done)| !**done) {
            statuses[not_recorded.at] = recorded.failure.as_ref().map_or(Status::Internal, |failure| failure.status);
            if let Some(progress) = state.lanes.get_mut(&not_recorded.key) {
                progress.undo(not_recorded.undo);
            }
        }
        for (entry, _) in entries.iter().zip(&statuses).filter(|(_, status)| **status == Status::Ok) {
            let key = LaneKey { streamlet: entry.streamlet, lane: entry.lane };
            state.dirty.insert(key);
            if entry.after != AfterCommit::Keep && by.member != 0 {
                self.release(&mut state, by.member, key, entry.lease);
            }
            // Not before all is recorded, for an undo puts back the base of before.
            if let Some(progress) = state.lanes.get_mut(&key) {
                progress.settle();
            }
        }
        let count = |wanted: Status| statuses.iter().filter(|status| **status == wanted).count() as u64;
        let (accepted, fenced) = (count(Status::Ok), count(Status::LeaseLost));
        let statuses = statuses.iter().map(|status| *status as u16).collect();
        Ok(Committed { statuses, accepted, fenced, failure: recorded.failure })
    }

    /// Refuses once it is deleted. Its lock is held, under which that is recorded: a record behind it would bring the application back.
    fn check_exists(&self, _: &State) -> Result<(), Failure> {
        if self.is_deleted() { Err(does_not_exist(self.meta.id)) } else { Ok(()) }
    }

    /// Records that the application is gone, and it is: under its lock, so that nobody who has found it there records anything behind that.
    pub(super) fn end(&self, now_ms: i64) -> Result<(), Failure> {
        let state = self.state.lock();
        let recorded = self.keepers.record(&self.meta.name, self.meta.stream, &[Entry::Deleted], now_ms);
        if let Some(failure) = recorded.failure {
            return Err(failure);
        }
        self.delete();
        drop(state);
        Ok(())
    }

    fn apply(
        &self,
        state: &mut State,
        by: Committer,
        at: usize,
        entry: &CommitEntry,
        records: &mut Vec<Entry>,
        applied: &mut Vec<Applied>,
    ) -> Result<(), Status> {
        let key = LaneKey { streamlet: entry.streamlet, lane: entry.lane };
        let streamlet = self.stream.streamlet(key.streamlet).ok_or(Status::UnknownStreamlet)?;
        if !self.keepers.serves(self.meta.stream, key.streamlet) {
            // Another node owns it now, or this one has since come to own it again: whatever lease it was is over.
            return Err(Status::LeaseLost);
        }
        let lane = streamlet.lane(key.lane).ok_or(Status::UnknownLane)?;
        state.line_up(key, Some(lane));
        let progress = state.lanes.get_mut(&key).ok_or(Status::UnknownLane)?;
        let plan = progress.plan(entry, by.member, self.order(), by.now_ms).map_err(|status| match status {
            // Whoever owns the streamlet by now may have closed the group, and this node has not heard that it does not own it any more.
            Status::NotReady if !self.keepers.is_in_cluster() => Status::InvalidArgument,
            status => status,
        })?;
        if plan.moves {
            let undo = progress.apply(&plan);
            let (lane, position) = (key, plan.position);
            records.push(if plan.is_base {
                Entry::Base { lane, position, anew: false }
            } else {
                Entry::Ahead { lane, position }
            });
            applied.push(Applied { at, key, undo });
        }
        Ok(())
    }

    /// Puts together what is recorded of some lanes, for behind a start nobody may ask for groups, or commit; and records what has come of that.
    ///
    /// Retention is about to take what is in front of it. Behind that nothing tells any more that what is ahead of the base which is recorded follows it, so whoever reads
    /// these records would take the application to be where that is, until the next group is read to its end. What cannot be recorded is tried again, and nothing
    /// goes for it until then (`Progress::floor`).
    pub(super) fn settle(&self, keys: &BTreeSet<LaneKey>, now_ms: i64) {
        let mut state = self.state.lock();
        let State { lanes, dirty, .. } = &mut *state;
        let mut entries = Vec::new();
        for key in keys {
            let Some(progress) = lanes.get_mut(key) else { continue };
            // Before that not all groups are known that are in front of what is ahead.
            if self.keepers.serves(self.meta.stream, key.streamlet) {
                progress.settle();
            }
            let joined = progress.joined.map(|position| Entry::Base { lane: *key, position, anew: false });
            entries.extend(joined);
        }
        if entries.is_empty() {
            return;
        }
        let recorded = self.keepers.record(&self.meta.name, self.meta.stream, &entries, now_ms);
        for (entry, is_recorded) in entries.iter().zip(recorded.done) {
            let Entry::Base { lane, .. } = entry else { continue };
            let Some(progress) = lanes.get_mut(lane).filter(|_| is_recorded) else {
                dirty.insert(*lane);
                continue;
            };
            progress.joined = None;
        }
    }

    /// Refuses while it is not known which transactions run in some lane, and so not where what is readable of it [ends](super::progress::Progress::end).
    pub(super) fn check_visible(&self) -> Result<(), Failure> {
        self.state.lock().lanes.values().try_for_each(|progress| check_visible(&progress.lane))
    }

    /// Sets the position of every used lane to its end, for an application that is being made and starts with what is
    /// written from now on; or every lane of one streamlet, and there [nothing of what its owner has written in the epoch
    /// `since`](super::progress::Progress::begin_of_new) is passed over. Returns the records.
    pub(super) fn start_at_latest(&self, of: Option<StreamletId>, since: Option<u32>, now_ms: i64) -> Vec<Entry> {
        let mut state = self.state.lock();
        let mut entries = Vec::new();
        for (key, progress) in state.lanes.iter_mut().filter(|(key, _)| of.is_none_or(|of| key.streamlet == of)) {
            let (cursor, ordinal) = progress.begin_of_new(since);
            if cursor.group == kera_format::GroupId::NONE {
                continue;
            }
            let position = Position { cursor, ordinal, done: false, committed_ms: now_ms };
            (progress.base, progress.committed) = (Some(position), true);
            entries.push(Entry::Base { lane: *key, position, anew: true });
        }
        entries
    }

    /// Where a reset would put the lanes, of some streamlets or (`None`) of all; or a lane that has to be loaded first.
    pub(super) fn plan_reset(
        &self,
        state: &State,
        wanted: impl Fn(LaneKey) -> bool,
        to: Start,
        now_ms: i64,
    ) -> Result<Reset, Failure> {
        let mut planned = Vec::new();
        for (key, progress) in state.lanes.iter().filter(|(key, _)| wanted(**key)) {
            if to == Start::Latest {
                check_visible(&progress.lane)?;
            }
            match progress.find(to)? {
                Place::Loading(seen) => return Ok(Reset::Loading(*key, seen)),
                Place::Here(cursor, _) if cursor.group == kera_format::GroupId::NONE => {}
                Place::Here(cursor, found) => {
                    let durable = progress.lane.latest().1;
                    let ordinal =
                        if let Start::Ordinal(asked) = to { asked.clamp(found, durable.max(found)) } else { found };
                    planned.push((*key, Position { cursor, ordinal, done: false, committed_ms: now_ms }));
                }
            }
        }
        Ok(Reset::To(planned))
    }

    /// Records and applies a reset. All of it or, with an error, some of it.
    pub(super) fn reset(&self, state: &mut State, planned: &[(LaneKey, Position)], now_ms: i64) -> Result<(), Failure> {
        self.check_exists(state)?;
        let entry =
            |(lane, position): &(LaneKey, Position)| Entry::Base { lane: *lane, position: *position, anew: true };
        let entries: Vec<Entry> = planned.iter().map(entry).collect();
        let recorded = self.keepers.record(&self.meta.name, self.meta.stream, &entries, now_ms);
        for ((key, position), _) in planned.iter().zip(&recorded.done).filter(|(_, done)| **done) {
            if let Some(progress) = state.lanes.get_mut(key) {
                (progress.base, progress.committed, progress.joined) = (Some(*position), true, None);
                progress.ahead.clear();
            }
            state.dirty.insert(*key);
            state.line_up(*key, None);
        }
        recorded.failure.map_or(Ok(()), Err)
    }

    /// Records everything that is known of the application again, or of one streamlet.
    pub(super) fn write_copy(&self, journal: &Journal, of: Option<StreamletId>, now_ms: i64) -> Written {
        let state = self.state.lock();
        if self.is_deleted() {
            return Written { entries: 0, failure: None };
        }
        journal.append(&self.meta.name, self.meta.stream, &self.records_of(&state, of), now_ms)
    }

    /// Everything that is known of it, or of one streamlet, as it is recorded.
    pub(super) fn records(&self, of: Option<StreamletId>) -> Vec<Entry> {
        self.records_of(&self.state.lock(), of)
    }

    fn records_of(&self, state: &State, of: Option<StreamletId>) -> Vec<Entry> {
        let mut entries = vec![self.meta.to_record()];
        for (key, progress) in state.lanes.iter().filter(|(key, _)| of.is_none_or(|of| key.streamlet == of)) {
            entries.extend(progress.to_records(*key));
        }
        entries
    }
}
