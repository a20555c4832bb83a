//! How far an application is in one lane, and what of it can be leased next. The argument is in
//! `docs/notes/applications.md`.
//!
//! A lane's `base` is a position with everything before it done. With order `lane` that is all there is, and one lease at
//! most. With order `none` later groups can be leased, and done, while the base's is not; they are kept `ahead` and join
//! the base as soon as everything before them is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_format::applications::{Entry, LaneKey, Position};
use kera_format::{Cursor, GroupId, Order, SegmentIndex};
use kera_log::{GroupInfo, Lane, LaneVersion};
use kera_protocol::application::{AfterCommit, CommitEntry};
use kera_protocol::placement::KeptGroup;
use kera_protocol::{Start, Status};

use crate::failure::Failure;
use crate::groups::{Place, find, first_left};
use crate::visible;

/// Groups looked at together.
const WINDOW: usize = 16;
/// What an application takes in memory for a lane, whether or not anybody reads it: this, and its places in the maps and lines that it stands in.
pub(super) const LANE_BYTES: u64 = 256;
const _: () =
    assert!(size_of::<Progress>() + 2 * size_of::<LaneKey>() + size_of::<(Arc<Lane>, u64)>() <= LANE_BYTES as usize);

/// A group that a member may read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: u64,
    pub(super) member: u64,
    pub(super) group: GroupId,
    pub(super) since_ms: i64,
    /// The member is asked to give it back.
    pub(super) asked: bool,
}

/// What can be leased of a lane.
#[derive(Debug)]
pub(super) enum Offer {
    /// This group, from here on, with this ordinal.
    Group(GroupId, Cursor, u64),
    /// Nothing until a lease ends.
    Nothing,
    /// Nothing until the lane moves.
    Wait(LaneVersion),
}

/// Records that an application did not see because retention took them first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Lost {
    pub(super) times: u64,
    pub(super) records: u64,
}

/// A commit that has been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) position: Position,
    /// It moves the base, not a group ahead of it.
    pub(super) is_base: bool,
    /// It changes something; otherwise an earlier commit said so, or more, already.
    pub(super) moves: bool,
}

/// How far an application is in a lane.
pub(super) struct Progress {
    pub(super) lane: Arc<Lane>,
    /// Groups of the lane that earlier owners of its streamlet have, by their ids: closed, and read there.
    older: Vec<GroupInfo>,
    pub(super) base: Option<Position>,
    /// The base was committed, or follows from what was; otherwise it is where the application was told to start.
    pub(super) committed: bool,
    /// Where the base was put together from what is recorded of several groups, as long as that is not recorded itself.
    pub(super) joined: Option<Position>,
    /// What was said last to be the [floor](Progress::floor).
    floor: Cursor,
    /// A position has moved since it was recorded, because retention has taken what it was at: a commit that does not move it is recorded too.
    skipped: bool,
    pub(super) ahead: BTreeMap<GroupId, Position>,
    pub(super) leases: Vec<Lease>,
    /// It stands in the application's line of lanes to look at.
    pub(super) in_line: bool,
    /// The lane calls the application back.
    pub(super) armed: bool,
}

impl Progress {
    pub(super) fn new(lane: Arc<Lane>) -> Progress {
        Progress {
            lane,
            older: Vec::new(),
            base: None,
            committed: false,
            joined: None,
            floor: Cursor::default(),
            skipped: false,
            ahead: BTreeMap::new(),
            leases: Vec::new(),
            in_line: false,
            armed: false,
        }
    }

    /// Which groups of the lane earlier owners have, by their ids.
    pub(super) fn set_older(&mut self, older: &[KeptGroup]) {
        let info = |kept: &KeptGroup| GroupInfo {
            id: kept.group,
            first_ordinal: kept.first_ordinal,
            next_ordinal: kept.next_ordinal,
            durable_ordinal: kept.next_ordinal,
            first_segment: SegmentIndex(0),
            last_segment: SegmentIndex(u32::MAX - 1),
            bytes: 0,
            first_append_ms: 0,
            last_append_ms: 0,
            closed: true,
            is_compacted: false,
        };
        self.older = older.iter().map(info).collect();
    }

    /// The next groups, wherever they are.
    fn groups(&self, after: GroupId, limit: usize) -> Vec<GroupInfo> {
        let mut groups = self.lane.groups(after, limit);
        if self.older.last().is_some_and(|last| last.id > after) {
            let from = self.older.partition_point(|older| older.id <= after);
            groups.extend(self.older[from..].iter().take(limit));
            groups.sort_by_key(|group| group.id);
            // One that is on its way to another node is both here and there for a moment.
            groups.dedup_by_key(|group| group.id);
            groups.truncate(limit);
        }
        groups
    }

    /// A group, as who has it told of it: of one that is at an earlier owner a part may be here as well, from a lost log of that node.
    fn group(&self, id: GroupId) -> Option<GroupInfo> {
        self.older_group(id).or_else(|| self.lane.group(id))
    }

    /// A group that an earlier owner has.
    fn older_group(&self, id: GroupId) -> Option<GroupInfo> {
        self.older.binary_search_by_key(&id, |older| older.id).ok().map(|at| self.older[at])
    }

    /// Finds a place in the lane, at whichever owner it is.
    pub(super) fn find(&self, at: Start) -> Result<Place, Failure> {
        let found = find(&self.lane, at)?;
        let Place::Here(cursor, ordinal) = found else { return Ok(found) };
        let start = |group: &GroupInfo| {
            let cursor = Cursor { group: group.id, segment: group.first_segment, position: 0 };
            Place::Here(cursor, group.first_ordinal)
        };
        let is_later = |group: &&GroupInfo| cursor.group == GroupId::NONE || group.id < cursor.group;
        let older = match at {
            // Nothing is known here of the times of what is elsewhere: too early is right, too late would be a loss.
            Start::Earliest | Start::TimeMs(_) => self.older.first().filter(is_later),
            Start::Ordinal(wanted) => self.older.iter().find(|group| group.next_ordinal > wanted).filter(is_later),
            Start::Latest => match self.older.last().filter(is_later) {
                Some(_) if cursor.group != GroupId::NONE => None,
                Some(last) => return Ok(Place::Here(end_of(last.id), last.next_ordinal)),
                None => None,
            },
        };
        Ok(older.map_or(Place::Here(cursor, ordinal), start))
    }

    /// Where what is readable ends. That is where a transaction begins that runs: what it has written can be read only when it has ended, and whoever began behind it
    /// would never see that. If it is not known what runs, it is where what is durable ends; whoever begins there [waits](super::Applications::waits_for_an_end) until it is.
    pub(super) fn end(&self) -> (Cursor, u64) {
        let here = self.lane.latest();
        let end = if visible::is_known(&self.lane) { visible::end(&self.lane, here.1) } else { here.1 };
        if let Some(running) = (end < here.1).then(|| self.place_of(end)).flatten() {
            return running;
        }
        match self.older.last() {
            Some(last) if here.0.group < last.id => (end_of(last.id), last.next_ordinal),
            _ => here,
        }
    }

    /// Where what is written from now on begins, for an application that reads only that. That is the [end](Progress::end); of what an owner has written in the
    /// epoch `since` nothing is passed over, if it has written anything then. A transaction that runs since before that is behind neither of the two.
    pub(super) fn begin_of_new(&self, since: Option<u32>) -> (Cursor, u64) {
        let end = self.end();
        let first = since.and_then(|epoch| self.lane.groups(GroupId::new(epoch, 0), 1).into_iter().next());
        match first.filter(|first| first.first_ordinal < end.1) {
            Some(first) => (Cursor { group: first.id, segment: first.first_segment, position: 0 }, first.first_ordinal),
            None => end,
        }
    }

    /// Where the record `ordinal` is, without waiting for a disk: of one that has to come from there it is known in which group it is, and a position at a group's
    /// start may name a later record (`begins_at`).
    fn place_of(&self, ordinal: u64) -> Option<(Cursor, u64)> {
        let begins = |group: &GroupInfo| {
            let cursor = Cursor { group: group.id, segment: group.first_segment, position: 0 };
            (cursor, ordinal.max(group.first_ordinal))
        };
        let has = |group: &&GroupInfo| group.first_ordinal <= ordinal && ordinal < group.next_ordinal;
        if let Some(older) = self.older.iter().find(has) {
            return Some(begins(older));
        }
        if let Ok(Place::Here(cursor, found)) = find(&self.lane, Start::Ordinal(ordinal)) {
            return Some((cursor, ordinal.max(found)));
        }
        let mut after = GroupId::NONE;
        loop {
            let window = self.lane.groups(after, WINDOW);
            if let Some(found) = window.iter().find(|group| ordinal < group.next_ordinal) {
                return Some(begins(found));
            }
            after = window.last()?.id;
        }
    }

    /// The first group that can be leased now. `ahead_max`: groups that may be leased or done while an earlier one is not.
    pub(super) fn offer(
        &mut self,
        order: Order,
        start: Start,
        ahead_max: usize,
        lost: &mut Lost,
    ) -> Result<Offer, Failure> {
        let seen = self.lane.version();
        if order == Order::Lane && !self.leases.is_empty() {
            return Ok(Offer::Nothing);
        }
        self.join_done();
        let Some(base) = self.base else {
            return match self.resolve_start(start)? {
                Some(wait) => Ok(Offer::Wait(wait)),
                None => self.offer(order, start, ahead_max, lost),
            };
        };
        // Whether every group before the one looked at is done.
        let mut joined = true;
        let mut after = GroupId(base.cursor.group.0.saturating_sub(1));
        let mut passed = 0;
        loop {
            let window = self.groups(after, WINDOW);
            if window.is_empty() {
                return Ok(Offer::Wait(seen));
            }
            for group in &window {
                after = group.id;
                if self.is_leased(group.id) {
                    (joined, passed) = (false, passed + 1);
                } else if self.is_done(&base, group) {
                    passed += usize::from(!joined);
                } else if passed >= ahead_max {
                    return Ok(Offer::Nothing);
                } else {
                    return Ok(self.offer_group(base, group, joined, lost));
                }
            }
        }
    }

    /// Moves the base over what is ahead of it and has come to join it.
    ///
    /// What is read of the group behind a base that is done is committed ahead of it. Were the base moved only when groups are asked for, and when that
    /// one is done as well, the lag would be that of the base until then, however much is read of it, and nothing of it would count as consumed.
    pub(super) fn settle(&mut self) {
        if !self.ahead.is_empty() {
            self.join_done();
        }
    }

    /// Moves the base over groups that are done, and onto the position in the one that comes then, if there is one. If records are missing between the
    /// two it stays: they may be of a group that turns up again at an earlier owner, and is leased then.
    fn join_done(&mut self) {
        let Some(mut base) = self.base else { return };
        let mut after = GroupId(base.cursor.group.0.saturating_sub(1));
        loop {
            let window = self.groups(after, WINDOW);
            if window.is_empty() {
                return;
            }
            for group in &window {
                after = group.id;
                if self.is_done(&base, group) && !self.is_leased(group.id) {
                    base = self.join(base, group);
                    continue;
                }
                let follows = group.id > base.cursor.group && group.first_ordinal <= base.ordinal;
                if let Some(position) = self.ahead.get(&group.id).copied().filter(|_| follows) {
                    (self.committed, self.joined) = (true, Some(position));
                    self.set_base(position);
                }
                return;
            }
        }
    }

    fn is_leased(&self, group: GroupId) -> bool {
        self.leases.iter().any(|lease| lease.group == group)
    }

    /// Finds where the application begins in this lane. A lane version to wait for if that is not known yet.
    fn resolve_start(&mut self, start: Start) -> Result<Option<LaneVersion>, Failure> {
        let seen = self.lane.version();
        if self.groups(GroupId::NONE, 1).is_empty() {
            return Ok(Some(seen));
        }
        // `latest` was resolved when the application was made; a lane that came later is read from its first record.
        let start = if start == Start::Latest { Start::Earliest } else { start };
        match self.find(start)? {
            Place::Loading(seen) => Ok(Some(seen)),
            Place::Here(cursor, _) if cursor.group == GroupId::NONE => Ok(Some(seen)),
            Place::Here(cursor, ordinal) => {
                let ordinal = match start {
                    Start::Ordinal(asked) => asked.clamp(ordinal, self.lane.latest().1.max(ordinal)),
                    _ => ordinal,
                };
                let committed = self.ahead.remove(&cursor.group);
                (self.committed, self.joined) = (committed.is_some(), committed);
                self.base = committed.or(Some(Position { cursor, ordinal, done: false, committed_ms: 0 }));
                Ok(None)
            }
        }
    }

    /// What is known of a group.
    fn known<'a>(&'a self, base: &'a Position, group: GroupId) -> Option<&'a Position> {
        if base.cursor.group == group { Some(base) } else { self.ahead.get(&group) }
    }

    fn is_done(&self, base: &Position, group: &GroupInfo) -> bool {
        let read_to_end =
            |position: &Position| position.done || (group.closed && position.ordinal >= group.next_ordinal);
        self.known(base, group.id).is_some_and(read_to_end)
    }

    /// Every group up to this one is done: it becomes the base.
    fn join(&mut self, base: Position, group: &GroupInfo) -> Position {
        let ahead = self.ahead.remove(&group.id);
        let known = if base.cursor.group == group.id { base } else { ahead.unwrap_or(base) };
        let base = Position { done: true, ..known };
        if ahead.is_some() {
            (self.committed, self.joined) = (true, Some(base));
        }
        self.set_base(base);
        base
    }

    /// Everything in front of it is done, or gone.
    fn set_base(&mut self, base: Position) {
        self.base = Some(base);
        // What was done ahead of it and retention has taken is never looked at again.
        self.ahead = self.ahead.split_off(&GroupId(base.cursor.group.0.saturating_add(1)));
    }

    fn offer_group(&mut self, base: Position, group: &GroupInfo, joined: bool, lost: &mut Lost) -> Offer {
        let first = Cursor { group: group.id, segment: group.first_segment, position: 0 };
        let known = self.known(&base, group.id).copied();
        let expected = match known {
            Some(position) => Some(position.ordinal),
            // Nothing was skipped on purpose: the group has to go on where the base ends.
            None => joined.then_some(base.ordinal),
        };
        let missing = expected.map_or(0, |expected| group.first_ordinal.saturating_sub(expected));
        if missing > 0 {
            lost.times += 1;
            lost.records += missing;
            self.skipped = true;
            let moved = Position { cursor: first, ordinal: group.first_ordinal, done: false, ..known.unwrap_or(base) };
            if joined {
                self.set_base(moved);
            } else {
                self.ahead.insert(group.id, moved);
            }
            return Offer::Group(group.id, first, group.first_ordinal);
        }
        match known {
            Some(position) => Offer::Group(group.id, self.begins_at(&position), position.ordinal),
            None => Offer::Group(group.id, first, group.first_ordinal),
        }
    }

    /// Where a member reads on in a group. A position at a group's start may name a later record: of a group that an earlier owner had it is not
    /// known which segment begins with that. When the group has come here, perhaps with what retention had taken there, it is.
    fn begins_at(&self, position: &Position) -> Cursor {
        let Cursor { group, segment, position: at } = position.cursor;
        if at != 0 || self.older_group(group).is_some() {
            return position.cursor;
        }
        let segments = self.lane.segments(group, None, usize::MAX).unwrap_or_default();
        let begun = segments.iter().rev().find(|found| found.base_ordinal <= position.ordinal);
        let segment = begun.map_or(segment, |found| found.index.max(segment));
        Cursor { segment, ..position.cursor }
    }

    /// Checks a commit of `member` (zero: of an application without members). Changes nothing.
    pub(super) fn plan(&self, entry: &CommitEntry, member: u64, order: Order, now_ms: i64) -> Result<Plan, Status> {
        let group = if member == 0 {
            entry.cursor.group
        } else {
            let owned = |lease: &&Lease| lease.id == entry.lease && lease.member == member;
            self.leases.iter().find(owned).ok_or(Status::LeaseLost)?.group
        };
        let done = entry.after == AfterCommit::Done;
        // The next cursor after the end of a group may be the start of the next one.
        if entry.cursor.group != group && !(done && entry.cursor.group > group) {
            return Err(Status::InvalidArgument);
        }
        let cut_back = if member == 0 { None } else { self.cut_back(group, entry) };
        let entry = match &cut_back {
            Some(at_end) => at_end,
            None => {
                self.check_place(group, entry, done)?;
                entry
            }
        };
        let is_base = match self.base {
            None => true,
            Some(base) if group <= base.cursor.group => group == base.cursor.group,
            // Nobody in particular says where the application is in the lane.
            Some(base) => order == Order::Lane && (member == 0 || self.is_next(&base, group)),
        };
        if member == 0 && !is_base {
            self.check_ahead(group)?;
        }
        let before = match self.base {
            Some(base) if group < base.cursor.group => Some(Position { done: true, ..base }),
            Some(base) if group == base.cursor.group => Some(base),
            _ => self.ahead.get(&group).copied(),
        };
        let cursor = if entry.cursor.group == group { entry.cursor } else { end_of(group) };
        // Done is done: what the member left out at the group's end is not missing.
        let end = self.group(group).filter(|_| done).map_or(0, |info| info.next_ordinal);
        let mut position = Position { cursor, ordinal: entry.ordinal.max(end), done, committed_ms: now_ms };
        let mut moves = true;
        if let Some(before) = before {
            // A position never moves back, whatever comes late or twice; the first commit is written in any case.
            let forward = !before.done && (done || entry.ordinal > before.ordinal);
            let is_known = is_base || self.ahead.contains_key(&group);
            moves = forward || (is_base && !self.committed) || (is_known && self.skipped);
            if forward {
                position.ordinal = position.ordinal.max(before.ordinal);
            } else {
                position = Position { committed_ms: now_ms, ..before };
            }
        }
        Ok(Plan { position, is_base, moves })
    }

    /// Refuses a position ahead of the base, of nobody in particular, in a group that is not there.
    ///
    /// Of a group that a member has leased it is known that it was there, and how many are leased is bounded. What nobody was leased may be thought up: there is no end of such groups,
    /// and as the base never comes to them each position would be kept, and recorded anew with every copy, for as long as the application is there.
    fn check_ahead(&self, group: GroupId) -> Result<(), Status> {
        let is_ahead = self.base.is_some_and(|base| group > base.cursor.group);
        let may_be = !is_ahead || self.ahead.contains_key(&group) || self.group(group).is_some();
        if may_be { Ok(()) } else { Err(Status::CursorUnknown) }
    }

    /// Whether everything in front of a group, behind the base, is done or gone, so that a position in it can be the base.
    ///
    /// With order `lane` a group is leased only then. But as long as the order was `none` later groups were leased as well, and who has them commits them when it has been
    /// changed: what is leased to others in front of them, or was given back, would count as read, and go with `retention_consumed`. So their positions stand ahead
    /// of the base, as before, and join it when everything before them is done.
    fn is_next(&self, base: &Position, group: GroupId) -> bool {
        let mut after = GroupId(base.cursor.group.0.saturating_sub(1));
        loop {
            let window = self.groups(after, WINDOW);
            if window.is_empty() {
                return true;
            }
            for before in &window {
                after = before.id;
                if before.id >= group {
                    return true;
                }
                if self.is_leased(before.id) || !self.is_done(base, before) {
                    return false;
                }
            }
        }
    }

    /// The end of a group that its member has read further than it goes by now.
    ///
    /// What it has read behind the end was lost since, as with a power cut or with all copies of it, and the group was closed where it ends
    /// now: what comes in its place has other groups, which are offered from their beginning. The member cannot take back what it has processed, and were it
    /// refused it could never commit the group, nor anybody read on behind it. So what it says counts as the end. Only of a group that
    /// takes no more and is durable to its end: elsewhere a position behind the end is a mistake, or too early.
    fn cut_back(&self, group: GroupId, entry: &CommitEntry) -> Option<CommitEntry> {
        let info = self.group(group).filter(has_ended)?;
        is_beyond(entry, &info).then(|| CommitEntry { cursor: end_of(group), ordinal: info.next_ordinal, ..*entry })
    }

    /// Whether a position lies in its group, as far as that can be told without reading. `NotReady`: it is the end of one that is open here.
    fn check_place(&self, group: GroupId, entry: &CommitEntry, done: bool) -> Result<(), Status> {
        let Some(info) = self.group(group) else {
            // Taken by retention while it was read, here or at an earlier owner; or it never was.
            let is_older = group.epoch() < self.lane.owner_epoch();
            let known = group != GroupId::NONE && (is_older || group <= self.lane.latest().0.group);
            return if known { Ok(()) } else { Err(Status::CursorUnknown) };
        };
        match (is_beyond(entry, &info), done && !has_ended(&info)) {
            (true, _) => Err(Status::InvalidArgument),
            (false, true) => Err(Status::NotReady),
            (false, false) => Ok(()),
        }
    }

    /// Makes a planned commit true, and returns how to undo it.
    pub(super) fn apply(&mut self, plan: &Plan) -> Undo {
        let group = plan.position.cursor.group;
        let (base, committed, joined, skipped) = (self.base, self.committed, self.joined, self.skipped);
        let undo = Undo { base, committed, joined, skipped, group, ahead: self.ahead.get(&group).copied() };
        if plan.is_base {
            (self.base, self.committed, self.skipped) = (Some(plan.position), true, false);
            self.joined = None;
        } else {
            self.ahead.insert(group, plan.position);
        }
        undo
    }

    /// Takes back the last [`apply`](Progress::apply) that was not taken back.
    pub(super) fn undo(&mut self, undo: Undo) {
        (self.base, self.committed, self.skipped) = (undo.base, undo.committed, undo.skipped);
        self.joined = undo.joined;
        match undo.ahead {
            Some(position) => drop(self.ahead.insert(undo.group, position)),
            None => drop(self.ahead.remove(&undo.group)),
        }
    }

    /// Ends a lease. Whether there was one.
    pub(super) fn end_lease(&mut self, id: u64) -> bool {
        let before = self.leases.len();
        self.leases.retain(|lease| lease.id != id);
        self.leases.len() < before
    }

    /// Everything that was committed, as it is recorded.
    pub(super) fn to_records(&self, lane: LaneKey) -> impl Iterator<Item = Entry> {
        let base = self.base.filter(|_| self.committed);
        let base = base.map(|position| Entry::Base { lane, position, anew: true });
        base.into_iter().chain(self.ahead.values().map(move |position| Entry::Ahead { lane, position: *position }))
    }

    /// Up to where the application needs nothing of the lane any more, by what is recorded.
    pub(super) fn floor(&mut self) -> Cursor {
        if self.joined.is_none() {
            self.floor = match self.base {
                Some(base) if base.done => end_of(base.cursor.group),
                Some(base) => base.cursor,
                None => Cursor::default(),
            };
        }
        self.floor
    }

    /// The ordinal from which on the application needs the lane's records; nothing before it is known where it begins.
    pub(super) fn needs_from(&self) -> Option<u64> {
        self.base.map(|base| base.ordinal)
    }

    /// Ordinal of the next record to process, and how many can be read from there.
    pub(super) fn lag(&self) -> (Option<u64>, u64, u64) {
        let durable = self.lane.latest().1;
        let earliest = || self.older.first().map_or(u64::MAX, |older| older.first_ordinal).min(self.lane.earliest().1);
        // Who goes on in front of what was deleted is given what comes behind it.
        let from = first_left(&self.lane, self.needs_from().unwrap_or_else(earliest), durable);
        (self.needs_from(), durable, durable.saturating_sub(from))
    }
}

/// What a commit replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    base: Option<Position>,
    committed: bool,
    joined: Option<Position>,
    skipped: bool,
    group: GroupId,
    ahead: Option<Position>,
}

/// Whether a group takes no more and is durable to its end.
fn has_ended(info: &GroupInfo) -> bool {
    info.closed && info.durable_ordinal >= info.next_ordinal
}

/// Whether a position in a group is behind its end.
fn is_beyond(entry: &CommitEntry, info: &GroupInfo) -> bool {
    let is_behind_last = entry.cursor.segment.0 > info.last_segment.0.saturating_add(1);
    entry.ordinal > info.next_ordinal || (entry.cursor.group == info.id && is_behind_last)
}

/// A cursor behind everything in a group.
pub(super) fn end_of(group: GroupId) -> Cursor {
    Cursor { group, segment: SegmentIndex(u32::MAX), position: u32::MAX }
}
