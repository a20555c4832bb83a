//! A node that has come back with what it had of a streamlet that this one has taken over and is rebuilding: it holds that again, and nothing
//! of it is rebuilt (`docs/replication.md`, "A returning node holds again what it has").
//!
//! What the node says is believed only where it agrees with what was decided when the streamlet was taken over: it has each lane up to the very
//! ordinal at which this owner goes on, and from the first one on that the lost logs have, or an earlier one, or from a later one if it says that it has let go
//! of what was in front itself. All or nothing, for each streamlet.
//! If all that it lacks is the end of lanes, and it has cut that off at its start, it is told where they end, and takes it up again.
//! This owner may have something of the streamlet itself if all of that is behind, as it is when this is not its first life since it took the streamlet over ([`Ends`]).
//! And all of that must be in logs of that node: these are kept for as long as it holds anything, so that each record has its copies as before.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::vlog_replica::LogId;
use kera_format::{GroupId, LaneId, StreamId, StreamletId};
use kera_log::{ArenaFull, GroupInfo, LaneHandover, Tenure};
use kera_protocol::placement::KeptGroup;
use kera_protocol::{OfferGroups, StreamletRef, StreamletState, WholeLane};
use parking_lot::Mutex;

use super::decide::Decided;
use super::{AllWanted, RangeOfLog, ReadLane, Rebuild};
use crate::applications::tell_of_groups;
use crate::broker::Broker;
use crate::handover::{kept_group, kept_state, to_lane};

/// Bytes of the one group that a state tells of besides what is kept of it.
const OWN_GROUP_BYTES: usize = 24;

/// Why a node that came back does not hold something again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// It may be asked again: not everything is known yet.
    Later(String),
    /// All that it lacks is what it has cut off: from where to where, of these lanes. With that it may be asked again.
    Lacking(Vec<WholeLane>),
    /// What it has is not what was decided, and that stays so for as long as this owner rebuilds it.
    Never(String),
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotTaken::Later(why) | NotTaken::Never(why) => f.write_str(why),
            NotTaken::Lacking(lanes) => write!(f, "the ends of {} lanes are still cut off", lanes.len()),
        }
    }
}

/// What was found of streamlets by a taking over that has opened them, and then could not open another one. The next try leaves them as they are: without this it could not say what there was,
/// and who comes back with all of it would be refused.
///
/// Where lanes end only the try knows that has opened them, for producers go on since. The same goes for the logs: what was read of their ends is in its place, so the next try may
/// have nothing to read from one of them, with which the copies go all the same. So both are kept, and an offer has to fit both.
#[derive(Default)]
pub(crate) struct FoundBefore(Mutex<BTreeMap<StreamletRef, Found>>);

struct Found {
    /// The owner epoch in which it was opened.
    epoch: u32,
    ends: Ends,
    logs: BTreeSet<LogId>,
}

/// Where the lanes of a streamlet were found to end before anybody appended, and what comes there from lost logs.
///
/// An owner that was started again since it took the streamlet over has something of it itself: what it wrote in its earlier lives. A node that came back may hold what is in
/// front of that, if the two can be told apart by owner epochs, since it is by these that the table says who has what:
///
/// 1. all that comes is of earlier owner epochs than all that is here, in each lane that readers see;
/// 2. where there is something of both in a lane, the one ends at the very ordinal at which the other begins. There this owner went on when it took the streamlet over first,
///    so what was decided then is decided now.
///
/// Then what the other node must have is what it would have had to have in the owner's first life: each lane up to where the owner's own begins. What the owner has of its own
/// stays with it, and has its copies in its own logs, none of which the other node's offer is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    /// As whoever comes next is to know them, with what is here behind; of groups those that come.
    lanes: Vec<LaneHandover>,
    /// The first group of the earliest owner epoch that is here, and in which lane.
    own: Option<(LaneId, KeptGroup)>,
    /// Of lanes with something of that kind where it begins: there ends what comes.
    own_begins: BTreeMap<LaneId, u64>,
}

impl Ends {
    /// `lanes`: as they hand over right before they are opened. `own_from`: the earliest owner epoch of what is here itself. `comes`: what is to be rebuilt. `None`: what is
    /// here is not behind all of that.
    pub(super) fn found(
        mut lanes: Vec<LaneHandover>,
        own_from: Option<u32>,
        comes: &BTreeMap<LaneId, Decided>,
    ) -> Option<Ends> {
        let mut own_begins = BTreeMap::new();
        let Some(from) = own_from else { return Some(Ends { lanes, own: None, own_begins }) };
        // Nobody holds progress for anybody else.
        let mut seen = comes.iter().filter(|(lane, _)| **lane != LaneId::PROGRESS);
        if !seen.all(|(_, lane)| lane.segments.iter().all(|segment| segment.group.epoch() < from)) {
            return None;
        }
        let mut own = None;
        for lane in &mut lanes {
            let groups = std::mem::take(&mut lane.groups).into_iter();
            let (here, older): (Vec<GroupInfo>, Vec<GroupInfo>) = groups.partition(|group| group.id.epoch() >= from);
            lane.groups = older;
            let Some(first) = here.first() else { continue };
            if lane.groups.last().is_some_and(|last| last.next_ordinal != first.first_ordinal) {
                return None;
            }
            own_begins.insert(lane.lane, first.first_ordinal);
            if first.id.epoch() == from {
                own.get_or_insert((lane.lane, kept_group(first)));
            }
        }
        own.is_some().then_some(Ends { lanes, own, own_begins })
    }

    /// Lanes that readers see, each with the ordinal at which what comes ends.
    fn of_records(&self) -> impl Iterator<Item = (&LaneHandover, u64)> {
        let of_records = self.lanes.iter().filter(|lane| lane.lane != LaneId::PROGRESS);
        of_records.map(move |lane| (lane, self.own_begins.get(&lane.lane).copied().unwrap_or(lane.next_ordinal)))
    }
}

#[cfg(test)]
thread_local! {
    /// How many lanes that are read were looked at for their logs.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The logs that lanes of each streamlet are read from, with one look at each lane: a lost node may have had a hundred thousand.
fn logs_read(read: &[ReadLane], ranges: &[RangeOfLog]) -> BTreeMap<StreamletRef, BTreeSet<LogId>> {
    let mut logs: BTreeMap<StreamletRef, BTreeSet<LogId>> = BTreeMap::new();
    for (name, _, sources) in read {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        logs.entry(*name).or_default().extend(sources.iter().map(|source| ranges[*source].log));
    }
    logs
}

impl Broker {
    /// Keeps what a try has [found](FoundBefore) that fails now.
    pub(super) fn keep_found(
        &self,
        rebuild: &Rebuild,
        (read, ranges): (&[ReadLane], &[RangeOfLog]),
        wanted: &AllWanted,
    ) {
        let mut logs = logs_read(read, ranges);
        let mut kept = self.found_before.0.lock();
        kept.retain(|name, found| self.is_named_owner(name.stream, name.streamlet, found.epoch));
        for (name, ends) in &rebuild.ends {
            let Some(of) = wanted.get(&(name.stream, name.streamlet)) else { continue };
            let logs = logs.remove(name).unwrap_or_default();
            kept.insert(*name, Found { epoch: of.epoch, ends: ends.clone(), logs });
        }
    }

    /// Adds what earlier tries have [found](FoundBefore) of the streamlets of one that has opened the rest.
    pub(super) fn add_found_before(&self, rebuild: &mut Rebuild, wanted: &AllWanted) {
        let mut kept = self.found_before.0.lock();
        for (&(stream, streamlet), of) in wanted {
            let name = StreamletRef { stream, streamlet };
            let found = kept.remove(&name).filter(|found| found.epoch == of.epoch);
            if let Some(found) = found.filter(|_| !rebuild.ends.contains_key(&name)) {
                rebuild.ends.insert(name, found.ends);
                rebuild.logs_before.insert(name, found.logs);
            }
        }
    }

    /// This node is about to offer the owner of a streamlet to hold its older groups: from here on readers of them wait here until it is decided,
    /// for others may hear that it holds them before it does. `None`: it offers them no more.
    pub fn offers(&self, stream: StreamId, streamlet: StreamletId, owner_epoch: Option<u32>) {
        self.ownership().offer(stream, streamlet, owner_epoch);
        if owner_epoch.is_none()
            && let Ok(place) = self.streamlet_to_move(stream, streamlet)
        {
            place.lanes().for_each(|lane| lane.wake());
        }
    }

    /// Whether this node has heard that another one owns a streamlet in an owner epoch, and has let go of it itself.
    pub fn has_let_go(&self, stream: StreamId, streamlet: StreamletId, owner: (u32, u32)) -> bool {
        let known = self.ownership().owner(stream, streamlet).is_some_and(|known| (known.node, known.epoch) == owner);
        let place = self.streamlet_to_move(stream, streamlet);
        known && place.is_ok_and(|place| place.tenure() == Tenure::Elsewhere)
    }

    /// What this node has of a streamlet that another one owns, lane by lane; nothing if it is not whole. Lanes are left out that have no records.
    pub fn whole_lanes(&self, stream: StreamId, streamlet: StreamletId) -> Option<Vec<WholeLane>> {
        let place = self.log().stream(stream)?.streamlet(streamlet)?.clone();
        if place.tenure() != Tenure::Elsewhere {
            return None;
        }
        let whole = place.whole_lanes()?.into_iter();
        let lanes: Vec<WholeLane> = whole.map(whole_lane).collect();
        (!lanes.is_empty() || !place.cut_off().is_empty()).then_some(lanes)
    }

    /// Whether this node has nothing of a streamlet that another one owns.
    pub fn has_nothing_of(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        self.streamlet_to_move(stream, streamlet).is_ok_and(|place| {
            place.tenure() == Tenure::Elsewhere && place.lanes().all(|lane| lane.groups(GroupId::NONE, 1).is_empty())
        })
    }

    /// Whether this node has something of a streamlet, of records or of progress, that was written in an owner epoch from this one on. Asked at a start, before anything of it is opened: what it says
    /// is then what earlier lives of the node have written as its owner, and acknowledged. Of a lane that they wrote to the last segment is there still, as its owner [keeps it](kera_log::Log::retain).
    pub fn has_since(&self, stream: StreamId, streamlet: StreamletId, owner_epoch: u32) -> bool {
        let is_since = |group: &GroupInfo| group.id.epoch() >= owner_epoch;
        let place = self.streamlet_to_move(stream, streamlet);
        place.ok().is_none_or(|place| {
            place.all_lanes().any(|lane| lane.groups(GroupId::NONE, usize::MAX).iter().any(is_since))
        })
    }

    /// Lanes of which this node has let go itself of all that was in front of what it has.
    pub fn let_go_lanes(&self, stream: StreamId, streamlet: StreamletId) -> Vec<LaneId> {
        self.streamlet_to_move(stream, streamlet).map_or_else(|_| Vec::new(), |place| place.let_go_lanes())
    }

    /// What this node has cut off of these lanes at its start, and could take up again.
    pub fn cut_off_lanes(&self, stream: StreamId, streamlet: StreamletId) -> Vec<WholeLane> {
        let place = self.streamlet_to_move(stream, streamlet);
        place.map_or_else(|_| Vec::new(), |place| place.cut_off().into_iter().map(whole_lane).collect())
    }

    /// Takes up again what the owner says is lacking here. False: it is not there any more; an error: the arena has no room for now.
    pub fn take_up_lacking(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        lacking: &[WholeLane],
    ) -> Result<bool, ArenaFull> {
        let Ok(place) = self.streamlet_to_move(stream, streamlet) else { return Ok(false) };
        let ends: Vec<(LaneId, u64)> = lacking.iter().map(|lane| (lane.lane, lane.next_ordinal)).collect();
        place.take_up_again(&ends)
    }

    /// What was cut off of a streamlet at the start counts no more, or is with the rest of it.
    pub fn let_go_of_cut_off(&self, stream: StreamId, streamlet: StreamletId) {
        if let Ok(place) = self.streamlet_to_move(stream, streamlet) {
            place.let_go_of_cut_off();
        }
    }

    /// Whether a node has all older groups of a streamlet that is rebuilt here: what the coordinators keep of it then. `handed`: what they kept so far.
    /// `most`: how many bytes they keep.
    pub fn check_offer(
        &self,
        rebuild: &Rebuild,
        offered: &OfferGroups,
        handed: Option<StreamletState>,
        most: usize,
    ) -> Result<Vec<u8>, NotTaken> {
        let (stream, streamlet) = (offered.stream, offered.streamlet);
        let me = self.ownership().node();
        let owner = self.ownership().owner(stream, streamlet).unwrap_or_default();
        if (owner.node, owner.epoch) != (me, offered.owner_epoch) {
            let why = format!("node {me} has not taken it over in owner epoch {}", offered.owner_epoch);
            return Err(NotTaken::Later(why));
        }
        if let Some(other) = owner.older.iter().find(|older| older.node != me) {
            return Err(NotTaken::Later(format!("node {} has some of its older groups", other.node)));
        }
        let ends = rebuild.check_offer(offered)?;
        let nothing = StreamletState { stream, streamlet, epoch: 0, lanes: Vec::new(), progress: Vec::new() };
        let mut state = handed.unwrap_or(nothing);
        // What was handed over of applications is still what it was; the lanes go on where they were found to end.
        state.lanes.retain(|lane| lane.lane == LaneId::PROGRESS);
        state.lanes.extend(ends.of_records().map(|(lane, _)| to_lane(lane.clone())));
        state.lanes.sort_by_key(|lane| lane.lane);
        tell_of_groups(&mut state).map_err(|failure| NotTaken::Later(failure.message))?;
        let Some((lane, group)) = ends.own else { return Ok(kept_state(&state, most)) };
        with_group(&kept_state(&state, most.saturating_sub(OWN_GROUP_BYTES)), lane, group)
    }

    /// Older groups of a streamlet that is rebuilt here are with another node, as the table of owners has it by now: what there is of them goes,
    /// whole or not, and applications are given leases on them there. How many bytes that were.
    pub fn leave_to_holder(&self, stream: StreamId, streamlet: StreamletId) -> u64 {
        let Ok(place) = self.streamlet_to_move(stream, streamlet) else { return 0 };
        let (me, owner) = (self.ownership().node(), self.ownership().owner(stream, streamlet).unwrap_or_default());
        let is_mine = owner.node == me && place.tenure() != Tenure::Elsewhere && place.owner_epoch() == owner.epoch;
        if !is_mine {
            return 0;
        }
        let stays = |group| owner.holder(group) == me;
        let left = place.groups_but(stays);
        if !left.is_empty() {
            // Before they go: in a moment in which they are neither here nor known to be there, members would be given what comes behind them.
            self.applications.older_left(self, stream, streamlet, &left);
            place.leave_to_holder(stays);
            self.ownership().wake();
        }
        left.iter().flat_map(|(_, groups)| groups).map(|group| group.bytes).sum()
    }

    /// The same of all streamlets that are open here, for who has not heard of them one by one.
    pub fn leave_all_to_holders(&self) -> u64 {
        let mut bytes = 0;
        for stream in self.log.streams() {
            bytes += stream.streamlets().map(|place| self.leave_to_holder(stream.id(), place.id())).sum::<u64>();
        }
        bytes
    }
}

impl Rebuild {
    /// Whether this is one of the streamlets that are rebuilt.
    pub fn has(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        self.streamlets.contains(&StreamletRef { stream, streamlet })
    }

    /// What a node must have of a streamlet to hold it again.
    pub fn whole(&self, stream: StreamId, streamlet: StreamletId) -> Vec<WholeLane> {
        let ends = self.ends.get(&StreamletRef { stream, streamlet }).into_iter().flat_map(Ends::of_records);
        let of = |(end, next_ordinal): (&LaneHandover, u64)| {
            let first_ordinal = end.groups.first().map_or(next_ordinal, |group| group.first_ordinal);
            WholeLane { lane: end.lane, first_ordinal, next_ordinal }
        };
        ends.map(of).collect()
    }

    /// Whether this node keeps something of a streamlet itself that is behind what another node may come to hold: all nodes must know of that first
    /// ([`RETURNED_IN_FRONT`](kera_format::level::RETURNED_IN_FRONT)), or they take it for the other node's.
    pub fn keeps_own(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        self.ends.get(&StreamletRef { stream, streamlet }).is_some_and(|ends| ends.own.is_some())
    }

    /// Where the lanes were found to end, if what is offered is all of them.
    fn check_offer(&self, offered: &OfferGroups) -> Result<&Ends, NotTaken> {
        let never = |why: String| Err(NotTaken::Never(why));
        let name = StreamletRef { stream: offered.stream, streamlet: offered.streamlet };
        let Some(ends) = self.ends.get(&name) else {
            return never("it was opened with something that is not behind all that is rebuilt".into());
        };
        let (mut ranges, node) =
            (self.ranges.iter().filter(|(_, names)| names.contains(&name)).peekable(), offered.node);
        if ranges.peek().is_none() {
            return never("nothing of it is rebuilt".into());
        }
        if let Some((range, _)) = ranges.find(|(range, _)| range.log.node != node) {
            return never(format!("some of it is in {range}, not in logs of node {node}"));
        }
        let mut before = self.logs_before.get(&name).into_iter().flatten();
        if let Some(log) = before.find(|log| log.node != node) {
            return never(format!("some of it was in {log}, not in logs of node {node}"));
        }
        let mut lacking = Vec::new();
        for (end, next) in ends.of_records() {
            let has = offered.lanes.iter().find(|lane| lane.lane == end.lane);
            let first = end.groups.first().map(|group| group.first_ordinal);
            // Backups may have what retention took at the node for as long as they have something else of the file.
            let begins_there =
                |begins: u64| first.is_none_or(|first| begins <= first) || offered.let_go.contains(&end.lane);
            let is_whole = match (first, has) {
                (_, Some(has)) => begins_there(has.first_ordinal) && has.next_ordinal == next,
                (first, None) => first.is_none(),
            };
            if is_whole {
                continue;
            }
            let cut_off = offered.cut_off.iter().find(|lane| lane.lane == end.lane);
            let cut_off = cut_off.filter(|cut_off| begins_there(has.unwrap_or(cut_off).first_ordinal));
            if let Some(lane) = cut_off.and_then(|cut_off| lacking_of(next, has, cut_off)) {
                lacking.push(lane);
                continue;
            }
            let has = has.map_or((0, 0), |has| (has.first_ordinal, has.next_ordinal));
            return never(format!(
                "lane {} goes from {} to {}, and node {node} has {} to {}",
                end.lane,
                first.unwrap_or(next),
                next,
                has.0,
                has.1
            ));
        }
        let is_known = |lane: &WholeLane| ends.lanes.iter().any(|end| end.lane == lane.lane);
        match offered.lanes.iter().find(|lane| !is_known(lane)) {
            Some(other) => never(format!("nothing of lane {} was acknowledged", other.lane)),
            None if !lacking.is_empty() => Err(NotTaken::Lacking(lacking)),
            None => Ok(ends),
        }
    }
}

fn whole_lane((lane, first_ordinal, next_ordinal): (LaneId, u64, u64)) -> WholeLane {
    WholeLane { lane, first_ordinal, next_ordinal }
}

/// What is kept of a state, with a group that its owner has itself.
fn with_group(kept: &[u8], lane: LaneId, group: KeptGroup) -> Result<Vec<u8>, NotTaken> {
    let read = <StreamletState as kera_protocol::Body>::decode(1, kept);
    let mut state = read.map_err(|error| NotTaken::Later(format!("what is kept does not read back: {error}")))?;
    state.lanes.iter_mut().filter(|of| of.lane == lane).for_each(|of| of.groups.push(group));
    Ok(kera_protocol::codec::bytes_of(&state))
}

/// What is lacking of a lane that was found to end at `next`, if it is what the node has cut off right behind what it has of it.
fn lacking_of(next: u64, has: Option<&WholeLane>, cut_off: &WholeLane) -> Option<WholeLane> {
    let from = cut_off.first_ordinal;
    let is_in_it = (from..cut_off.next_ordinal).contains(&(next.checked_sub(1)?));
    let follows = has.is_none_or(|has| has.next_ordinal == from);
    (follows && is_in_it).then_some(WholeLane { next_ordinal: next, ..*cut_off })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_that_is_read_is_looked_at_once_for_the_logs_of_its_streamlet() {
        let log = |vlog| LogId { node: 1, epoch: 7, vlog };
        let ranges: Vec<RangeOfLog> =
            (0..4).map(|vlog| RangeOfLog { log: log(vlog), first: 1, last: 9, backups: vec![2] }).collect();
        let name = |streamlet| StreamletRef { stream: StreamId(7), streamlet: StreamletId(streamlet) };
        // The lanes of each are read from one log and from two.
        let lanes = |of: u32| {
            let first = of as usize % 2;
            [(name(of), LaneId(0), BTreeSet::from([first])), (name(of), LaneId(1), BTreeSet::from([first, first + 2]))]
        };
        let read: Vec<ReadLane> = (0..100).flat_map(lanes).collect();
        LOOKED_AT.set(0);
        let logs = logs_read(&read, &ranges);
        assert_eq!((logs.len(), LOOKED_AT.get()), (100, 200));
        let of = |streamlet: u32| BTreeSet::from([log(streamlet % 2), log(streamlet % 2 + 2)]);
        assert!((0..100).all(|at| logs[&name(at)] == of(at)), "{logs:?}");
    }
}
