//! Clients of a cluster: they have connections to all nodes, ask any of them who owns what, and follow the owners, by the rules of
//! `kera-client` and without its runtime and its sockets.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kera_env::{Random, SeededRandom};
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::{FRAME_HEADER_BYTES, FindOwners, FrameHeader, Message, Owner, OwnerRun, Owners, Status};

use super::bounds::Bounds;
use super::coordinators::Coordinators;
use super::copies::lock;
use super::early::{Early, Left};
use super::floors::Floors;
use super::losses::Losses;
use super::node::Node;
use crate::cluster::client::Answer;
use crate::cluster::reader::{check_compacted, check_data};
use crate::cluster::truth::{Asked, Place, Truth, Violation, Written};

/// A client that waited so long for an answer takes its connection for dead, in microseconds.
pub(super) const PATIENCE_US: u64 = 3_000_000;

/// The application that reads all streams, if there is one.
pub(super) const REPORT: &str = "report";

/// What a client wants of the world.
#[derive(Debug)]
pub(super) enum Wish {
    /// A request to a node; it is connected to if it is not.
    Send(u32, FrameHeader, Bytes),
    /// The connection to a node is given up.
    Drop(u32),
    /// To be called so many microseconds from now.
    Timer(u64),
}

/// When records were made, and which owner each was acknowledged by.
#[derive(Default)]
pub(super) struct Told {
    pub(super) made_ms: BTreeMap<(u64, Written), i64>,
    /// By the lane and the ordinal of its first record: the owner epoch of each chunk that was acknowledged.
    epochs: BTreeMap<Place, BTreeMap<u64, u32>>,
    /// Chunks that were acknowledged for the first time, for the world to look at: the node, and where.
    pub(super) fresh: Vec<(u32, Place, Cursor)>,
    /// How long streams keep what was written, by their numbers.
    pub(super) retention_ms: BTreeMap<u64, u64>,
    /// How many bytes streams keep of each streamlet.
    pub(super) bounds: Bounds,
    /// Streams are kept until all applications have read them.
    pub(super) is_consumed: bool,
    /// Where the first lease of an application in a lane began that anybody was told of, by its name: from then on nothing goes that it has not read.
    begun: BTreeMap<Place, BTreeMap<String, u64>>,
    /// Of each key the last record is kept.
    pub(super) is_compacted: bool,
    /// A clock was set to another time: nobody knows when retention takes what.
    pub(super) has_jumped: bool,
    /// What members of applications have read of lanes and committed, in whatever order: from where, and to where.
    covered: BTreeMap<(String, Place), BTreeMap<u64, u64>>,
    /// How far of groups applications have committed that read them in any order, and when that was acknowledged.
    committed_in: BTreeMap<(String, Place, GroupId), (u64, u64)>,
    /// The latest lease of an application in a lane that a commit was accepted of.
    commits: BTreeMap<(String, Place), LeaseTime>,
    /// What producers of asynchronous streams were told of.
    pub(super) early: Early,
    /// What was given up.
    pub(super) losses: Losses,
    /// What was deleted.
    pub(super) floors: Floors,
    /// Streams that were made while a node was away, by their numbers.
    pub(super) made_while_away: BTreeSet<u64>,
    /// What members of applications did, by name.
    pub(super) did: BTreeMap<&'static str, u64>,
}

/// When a lease was given: between these two times. One that was asked for after another one was told is the later of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaseTime {
    pub(super) asked_us: u64,
    pub(super) told_us: u64,
}

/// A group of a lane that an application reads.
pub(super) type OfGroup<'a> = (&'a str, Place, GroupId);

/// What clients know together, for one that says whether it is done.
pub(super) struct Seen<'a> {
    pub(super) truth: &'a Truth,
    pub(super) told: &'a Told,
    /// Streams that were deleted.
    pub(super) gone: &'a BTreeMap<StreamId, usize>,
    pub(super) now_ms: i64,
}

impl Told {
    pub(super) fn new(losses: Losses, floors: Floors) -> Told {
        Told { losses, floors, ..Told::default() }
    }

    /// Ordinals of a lane never go back to an earlier owner.
    pub(super) fn acknowledged(&mut self, place: Place, base: u64, cursor: Cursor) -> Result<(), Violation> {
        let epoch = cursor.group.epoch();
        let of_lane = self.epochs.entry(place).or_default();
        let before = of_lane.range(..base).next_back().filter(|(_, known)| **known > epoch);
        let behind = of_lane.range(base..).next().filter(|(_, known)| **known < epoch);
        if let Some((other, known)) = before.or(behind) {
            return Err(Violation(format!(
                "{place}: ordinal {base} is of owner epoch {epoch}, and {other} of owner epoch {known}"
            )));
        }
        of_lane.insert(base, epoch);
        Ok(())
    }

    /// A chunk that was acknowledged is gone.
    pub(super) fn no_epoch(&mut self, place: Place, base: u64) {
        self.epochs.entry(place).or_default().remove(&base);
    }

    /// A commit of an application was accepted, with a lease.
    pub(super) fn committed(&mut self, application: &str, place: Place, time: LeaseTime) {
        *self.did.entry("committed").or_default() += 1;
        let latest = self.commits.entry((application.to_owned(), place)).or_insert(time);
        if time.asked_us > latest.asked_us {
            *latest = time;
        }
    }

    /// The latest lease that a commit of an application was accepted with.
    pub(super) fn latest_commit(&self, application: &str, place: Place) -> Option<LeaseTime> {
        self.commits.get(&(application.to_owned(), place)).copied()
    }

    /// A member has read from one ordinal of a lane to another, and says so in a commit that is about to leave.
    pub(super) fn covers(&mut self, application: &str, place: Place, (from, to): (u64, u64)) {
        let known = self.covered.entry((application.to_owned(), place)).or_default();
        let known_to = known.entry(from).or_default();
        *known_to = to.max(*known_to);
    }

    /// A commit of an application that reads groups in any order was accepted: when, and how far of the group.
    pub(super) fn committed_in(&mut self, (application, place, group): OfGroup<'_>, (now_us, ordinal): (u64, u64)) {
        let known = self.committed_in.entry((application.to_owned(), place, group)).or_insert((now_us, ordinal));
        if ordinal > known.1 {
            *known = (now_us, ordinal);
        }
    }

    /// How far an application has read a lane without leaving anything out.
    pub(super) fn covered_to(&self, application: &str, place: Place) -> u64 {
        let known = self.covered.get(&(application.to_owned(), place)).into_iter().flatten();
        known.fold(0, |end, (from, to)| if *from <= end { end.max(*to) } else { end })
    }

    /// How far all applications have processed a lane that were given some of it.
    fn processed_by_all(&self, truth: &Truth, place: Place) -> u64 {
        let begun = self.begun.get(&place).into_iter().flat_map(BTreeMap::keys);
        begun.map(|application| truth.processed_by(application, place)).min().unwrap_or(0)
    }

    /// Where the first lease of an application in a lane began; nothing before anybody was told of it.
    fn began_at(&self, application: &str, place: Place) -> Option<u64> {
        self.begun.get(&place)?.get(application).copied()
    }

    /// Whether a stream forgets what is old, or too much.
    fn forgets(&self, stream: u64) -> bool {
        self.retention_ms.contains_key(&stream) || self.bounds.are_of(stream)
    }

    /// How old a record is and how long it is kept, both in milliseconds; nothing if it may be gone.
    pub(super) fn age(&self, place: Place, written: Written, now_ms: i64) -> Option<(i64, Option<u64>)> {
        let made_ms = self.made_ms.get(&(place.stream, written)).copied().unwrap_or(0);
        let kept_ms = self.retention_ms.get(&place.stream).copied();
        let is_kept =
            kept_ms.is_none_or(|kept_ms| !self.has_jumped && made_ms.saturating_add_unsigned(kept_ms) > now_ms);
        is_kept.then_some((now_ms - made_ms, kept_ms))
    }
}

/// Who owns what, for checks: no client knows that.
#[derive(Clone, Copy)]
pub(super) struct True<'a> {
    pub(super) nodes: &'a [Node],
    pub(super) coordinators: &'a Coordinators,
}

impl True<'_> {
    /// The owner epoch of a streamlet if a node owns it and knows that, and its broker was told.
    pub(super) fn sure(&self, node: u32, stream: StreamId, streamlet: StreamletId) -> Option<u32> {
        let owner = self.coordinators.state.owner(stream, streamlet.0).filter(|owner| owner.node == node)?;
        let node = &self.nodes[node as usize - 1];
        let known = lock(&node.known).owner(stream, streamlet.0);
        let broker = node.process.as_ref()?.running.as_ref().map(|running| &running.broker)?;
        let is_told = broker.is_named_owner(stream, streamlet, owner.owner_epoch);
        (known == Some(owner) && is_told).then_some(owner.owner_epoch)
    }
}

/// What a client sees of the world.
pub(super) struct Around<'a> {
    pub(super) now_us: u64,
    pub(super) now_ms: i64,
    /// When the answer left its node, if it is one, and asynchronous streams are looked at.
    pub(super) left: Left,
    pub(super) nodes: u32,
    /// Whether a disk has stood still for a while by now, or was slow or full, so that copies may lag far behind.
    pub(super) copies_lag: bool,
    /// Whether nodes hear of what becomes true in pieces.
    pub(super) in_pieces: bool,
    pub(super) random: &'a SeededRandom,
    pub(super) truth: &'a mut Truth,
    pub(super) told: &'a mut Told,
    pub(super) owners: True<'a>,
    pub(super) wishes: Vec<Wish>,
    pub(super) correlation: &'a mut u64,
}

impl Around<'_> {
    pub(super) fn below(&self, limit: u64) -> u64 {
        Random::below(self.random, limit)
    }

    /// Sends a request; its correlation.
    pub(super) fn send<M: Message>(&mut self, node: u32, message: &M) -> u64 {
        *self.correlation += 1;
        let mut body = Vec::new();
        let version = M::OP.version_max();
        message.encode(version, &mut body);
        let header = FrameHeader {
            frame_bytes: (FRAME_HEADER_BYTES + body.len()) as u32,
            op: M::OP as u16,
            version,
            correlation: *self.correlation,
            ..FrameHeader::default()
        };
        self.wishes.push(Wish::Send(node, header, body.into()));
        *self.correlation
    }

    pub(super) fn timer(&mut self, delay_us: u64) {
        self.wishes.push(Wish::Timer(delay_us));
    }

    /// Looks at every record that was read of a lane; gives the ordinal behind the last one.
    pub(super) fn read(&mut self, place: Place, next: u64, data: &[u8]) -> Result<u64, Violation> {
        self.read_noting(place, next, data, &mut BTreeSet::new())
    }

    /// The same; notes which ordinals of a compacted lane are there.
    pub(super) fn read_noting(
        &mut self,
        place: Place,
        next: u64,
        data: &[u8],
        shown: &mut BTreeSet<u64>,
    ) -> Result<u64, Violation> {
        match self.told.is_compacted {
            true => check_compacted(self.truth, place, next, data, shown),
            false => check_data(self.truth, place, next, data),
        }
    }

    /// Whether a stream was deleted, known to whoever is asked or not.
    pub(super) fn is_gone(&self, stream: StreamId) -> bool {
        self.owners.coordinators.gone.contains_key(&stream)
    }

    /// A node has said that there is no such stream: then it was deleted. One that has not heard of it yet says that.
    pub(super) fn told_gone(&mut self, node: u32, stream: StreamId) -> Result<(), Violation> {
        self.truth.checked();
        match self.is_gone(stream) {
            true => Ok(()),
            false => {
                Err(Violation(format!("node {node} says that there is no stream {stream}, and nobody has deleted it")))
            }
        }
    }

    /// A node has told who owns what as of a state: of everything what was true by then, or what came later. Whoever has the number of a state asks for no earlier one.
    pub(super) fn told_owners(&mut self, node: u32, told: &Owners) -> Result<(), Violation> {
        self.truth.checked();
        let (coordinators, state) = (self.owners.coordinators, told.version);
        for of in &told.streams {
            let stream = of.stream;
            if coordinators.gone.get(&stream).is_some_and(|index| *index as u64 <= state) {
                return Err(Violation(format!(
                    "node {node} tells of state {state}, and of stream {stream}, gone by then"
                )));
            }
            for (run, streamlet) in of.runs.iter().flat_map(|run| run.streamlets().map(move |at| (run, at))) {
                let (epoch, was) = (run.epoch, coordinators.owner_epoch_as_of(stream, streamlet.0, state));
                if epoch < was {
                    return Err(Violation(format!(
                        "node {node} tells of state {state}, and of streamlet {streamlet} of stream {stream} in owner epoch {epoch}: it was in {was} by then"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A lane begins at `first`, as somebody was told who looked for its beginning. Compaction leaves that where it is: it goes on when what is in front was read.
    pub(super) fn gone_in_front(&mut self, place: Place, first: u64) -> Result<(), Violation> {
        let may_be_lost = self.told.losses.may_begin(place, first);
        let is_read = self.told.is_consumed && self.told.processed_by_all(self.truth, place) >= first;
        if first > 0 && is_read && !may_be_lost {
            let begun = self.told.begun.get(&place).map_or(0, BTreeMap::len);
            *self.told.did.entry("gone as read").or_default() += 1;
            *self.told.did.entry("gone as read by both").or_default() += u64::from(begun > 1);
        }
        self.gone(place, 0..first)
    }

    /// Records of a lane are not there any more: that must be because they are old enough, too many, or read by all applications.
    pub(super) fn gone(&mut self, place: Place, ordinals: std::ops::Range<u64>) -> Result<(), Violation> {
        self.truth.checked();
        if self.told.losses.may_begin(place, ordinals.end) {
            *self.told.did.entry("began behind what was given up").or_default() += u64::from(!ordinals.is_empty());
            return Ok(());
        }
        let processed = if self.told.is_consumed { self.told.processed_by_all(self.truth, place) } else { 0 };
        if self.told.is_compacted {
            // The beginning of a lane stays as long as somebody is to read it, and so does the end of each segment.
            let read = processed.min(ordinals.end).max(ordinals.start);
            self.truth.read_by_all(place, ordinals.start..read);
            self.truth.removed_at(place, read..ordinals.end);
            return Ok(());
        }
        if self.told.bounds.are_of(place.stream) {
            *self.told.did.entry("gone for what came later").or_default() += u64::from(!ordinals.is_empty());
            return self.told.bounds.begins(self.truth, place, ordinals.end);
        }
        if self.told.is_consumed {
            if ordinals.end > processed {
                let end = ordinals.end;
                return Err(Violation(format!("{place} begins at {end}, and was read up to {processed}")));
            }
            return Ok(());
        }
        let from = self.told.floors.may_be_gone(place).clamp(ordinals.start, ordinals.end.max(ordinals.start));
        for (ordinal, written) in self.truth.between(place, from..ordinals.end.max(from)) {
            match self.told.age(place, written, self.now_ms) {
                None => {}
                Some((_, None)) => {
                    return Err(Violation(format!("{place} begins behind {ordinal}, and nothing was to be deleted")));
                }
                Some((age, Some(kept_ms))) => {
                    return Err(Violation(format!(
                        "{place}: {written:?} at {ordinal} has gone after {age} of {kept_ms} ms"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A lane begins at an ordinal, as a node says that was asked at a time: if the node owns it and knows that, not in front of what was deleted.
    pub(super) fn begins(&mut self, place: Place, (node, asked_us): (u32, u64), ordinal: u64) -> Result<(), Violation> {
        if !self.told.floors.is_on {
            return Ok(());
        }
        self.gone(place, 0..ordinal)?;
        match self.owners.sure(node, StreamId(place.stream), StreamletId(place.streamlet)) {
            Some(_) => self.told.floors.begins(place, asked_us, ordinal),
            None => Ok(()),
        }
    }

    /// A lane was read from `first` on when everything was over: it begins at its floor, if retention has taken no more and nothing was given up.
    pub(super) fn begins_at_last(&mut self, place: Place, first: u64) -> Result<(), Violation> {
        if !self.told.floors.is_on || self.told.losses.has_some_of(place.stream, place.streamlet) {
            return Ok(());
        }
        self.truth.checked();
        let known = self.owners.coordinators.state.floor(StreamId(place.stream), place.streamlet, LaneId(place.lane));
        let floor = known.map_or(0, |floor| floor.ordinal);
        let may_have_less = self.told.forgets(place.stream);
        if first == floor || (first > floor && may_have_less) {
            return Ok(());
        }
        Err(Violation(format!("{place} begins at {first}, and its floor is {floor}")))
    }

    /// A member was given a lease that begins at `start`: what lies before it was processed by somebody, or has gone because it was old
    /// enough, or before the application was there.
    pub(super) fn leased_from(&mut self, asked: &Asked, place: Place, start: u64) -> Result<(), Violation> {
        let processed = self.truth.processed_to(asked, place);
        let is_first = self.told.is_consumed && self.told.began_at(asked.application(), place).is_none();
        if start > processed && (is_first || self.told.forgets(place.stream)) {
            self.gone(place, processed..start)?;
            self.truth.processed(asked.application(), place, start);
        }
        if is_first {
            self.told.begun.entry(place).or_default().insert(asked.application().to_owned(), start);
        }
        self.truth.goes_on_at(asked, place, start)
    }

    /// A member that asked at a time was given a lease on a group that is not behind others: from what it has not committed on.
    pub(super) fn leased_again(
        &mut self,
        (application, place, group): OfGroup<'_>,
        (asked_us, start): (u64, u64),
    ) -> Result<(), Violation> {
        self.truth.checked();
        let known = self.told.committed_in.get(&(application.to_owned(), place, group));
        match known.filter(|(at_us, ordinal)| *at_us < asked_us && start < *ordinal) {
            Some((_, ordinal)) => {
                let how_far = if *ordinal == u64::MAX { "all".to_owned() } else { format!("up to {ordinal}") };
                Err(Violation(format!(
                    "{place}: application {application} was told that it has committed {how_far} of group {group}, and is given {start}"
                )))
            }
            None => Ok(()),
        }
    }

    /// An application was told where it is. Where retention is faster than the application, or was before it was there, that is where the records begin
    /// that are left; it is kept nowhere, and the next owner may have older ones still.
    pub(super) fn told_to_be_at(
        &mut self,
        asked: &Asked,
        place: Place,
        ordinal: u64,
        how: &'static str,
    ) -> Result<(), Violation> {
        let is_late = self.told.began_at(asked.application(), place).is_some_and(|at| at > 0);
        match is_late || self.told.forgets(place.stream) {
            true => self.truth.not_before(asked, place, ordinal, how),
            false => self.truth.committed_to(asked, place, ordinal, how),
        }
    }
}

/// A client.
pub(super) trait Client {
    /// An answer of a node.
    fn answer(&mut self, node: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation>;
    /// The connection to a node is gone, with all that was asked on it.
    fn lost(&mut self, node: u32, around: &mut Around<'_>);
    /// The time has come; called first when it is made.
    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation>;
    /// Whether it has nothing more to do.
    fn is_done(&self, seen: &Seen<'_>) -> bool;
    /// Where it stands, for a run that does not end.
    fn state(&self) -> String;
}

/// Who owns the streamlets of a stream, as a client was told.
pub(super) struct Owned {
    stream: StreamId,
    version: u64,
    owners: Vec<Owner>,
    asked: Option<(u64, u32, u64)>,
    is_wanted: bool,
    not_before_us: u64,
    /// Somebody has said that the stream was deleted.
    is_gone: bool,
}

impl Owned {
    pub(super) fn new(stream: StreamId) -> Owned {
        let (owners, asked, is_wanted) = (Vec::new(), None, true);
        Owned { stream, version: 0, owners, asked, is_wanted, not_before_us: 0, is_gone: false }
    }

    /// Whether somebody has said that the stream was deleted.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// A node has said that there is no such stream.
    pub(super) fn told_gone(&mut self, node: u32, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_gone = true;
        around.told_gone(node, self.stream)
    }

    /// The node that takes writes of a streamlet; none is known.
    pub(super) fn node(&self, streamlet: u32) -> Option<u32> {
        self.owners.get(streamlet as usize).map(|owner| owner.node).filter(|node| *node != 0)
    }

    /// Since which owner epoch that node owns it.
    pub(super) fn epoch(&self, streamlet: u32) -> u32 {
        self.owners.get(streamlet as usize).map_or(0, |owner| owner.epoch)
    }

    /// What is known of a streamlet's owners, and the number of that table.
    pub(super) fn seen(&self, streamlet: u32) -> (u64, Owner) {
        (self.version, self.owners.get(streamlet as usize).cloned().unwrap_or_default())
    }

    /// Who has groups of a streamlet: those of earlier owners, and the present one last.
    pub(super) fn holders(&self, streamlet: u32) -> Vec<u32> {
        self.owners.get(streamlet as usize).map_or_else(Vec::new, Owner::holders)
    }

    /// The node that has a group of a streamlet. `hint`: the owner over its epoch, as another node said; nothing if it knew of none.
    pub(super) fn holder(&self, streamlet: u32, group: GroupId, hint: u64) -> Option<u32> {
        let owner = self.owners.get(streamlet as usize)?;
        let (node, epoch) = ((hint >> 32) as u32, hint as u32);
        let told = (epoch > owner.epoch && group.epoch() >= epoch).then_some(node);
        Some(told.unwrap_or_else(|| owner.holder(group))).filter(|node| *node != 0)
    }

    /// The owners may have changed.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Asks somebody, if it is wanted and nobody is asked.
    pub(super) fn look(&mut self, around: &mut Around<'_>) {
        if let Some((_, node, at_us)) = self.asked
            && around.now_us > at_us + 1_000_000
        {
            self.asked = None;
            self.is_wanted = true;
            around.wishes.push(Wish::Drop(node));
        }
        if self.is_wanted && self.asked.is_none() && around.now_us >= self.not_before_us {
            let node = 1 + around.below(around.nodes.into()) as u32;
            let asked = FindOwners { streams: vec![self.stream.into()], after: None, limit: 0 };
            let correlation = around.send(node, &asked);
            (self.asked, self.is_wanted) = (Some((correlation, node, around.now_us)), false);
            self.not_before_us = around.now_us + 50_000;
        }
    }

    /// Whether the answer was to it.
    pub(super) fn take(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<bool, Violation> {
        let Some((_, node, _)) = self.asked.filter(|(asked, ..)| *asked == answer.header.correlation) else {
            return Ok(false);
        };
        self.asked = None;
        match answer.status() {
            Status::Ok => {}
            Status::UnknownStream => return self.told_gone(node, around).map(|()| true),
            status => {
                // It has not heard of the stream yet.
                let has_not_heard = status == Status::NotReady;
                *around.told.did.entry("asked for owners who had not heard of them").or_default() +=
                    u64::from(has_not_heard);
                self.is_wanted = true;
                return Ok(true);
            }
        }
        let told: Owners = answer.decode()?;
        around.told_owners(node, &told)?;
        if told.version > self.version {
            self.version = told.version;
            for run in told.streams.iter().flat_map(|stream| &stream.runs) {
                for streamlet in run.streamlets() {
                    let at = streamlet.0 as usize;
                    if self.owners.len() <= at {
                        self.owners.resize(at + 1, Owner::default());
                    }
                    self.owners[at] = run.owner();
                }
            }
        }
        Ok(true)
    }

    pub(super) fn lost(&mut self, node: u32) {
        if self.asked.is_some_and(|(_, asked, _)| asked == node) {
            self.asked = None;
        }
        self.is_wanted = true;
    }
}

/// What a table of owners of one stream says of a streamlet.
pub(super) fn owner_of(told: &Owners, streamlet: u32) -> Option<Owner> {
    let mut runs = told.streams.iter().flat_map(|stream| &stream.runs);
    runs.find(|run| run.contains(StreamletId(streamlet))).map(OwnerRun::owner)
}
