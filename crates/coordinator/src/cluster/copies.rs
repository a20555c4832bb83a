//! Streams that are to have another number of copies than they have (`docs/replication.md`, "Another number of copies").
//!
//! What was written stays where it is while its nodes copy it in logs with as many backups as are wanted. When a node that holds older groups
//! has done that it says so, and when the owner has, too, it moves the streamlet to itself and goes on in such a log: with that entry the
//! streamlet has its new number of copies, and not before. Until then it has the old one in every respect: one with a single copy waits for its
//! node, whatever copies there are by then. When all streamlets are there the stream says so itself.

use std::collections::BTreeMap;
use std::ops::Range;

use kera_format::catalog::Entry;
use kera_format::cluster::{ClusterEntry, NodeNumber, OwnerReason};
use kera_format::{StreamId, StreamOptions, level};
use kera_protocol::{CopiesMade, CopyChange, CopyChanges, StreamChanges, StreamInfo};

use super::plan::{OWNER_RUNS_MAX, Planned};
use super::rules::{Refused, must};
use super::{ClusterState, Held, Run};
use crate::CoordinatorError;
use crate::catalog::{CLUSTER_PREFIX, Limits, too_many_copies};

/// Most nodes that are named in what is told of a change.
const NAMED_MAX: usize = 16;
/// Copies of what the cluster keeps for itself, as long as there are nodes for them.
const OWN_COPIES: u32 = 3;

/// A stream that is to have another number of copies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopiesChange {
    /// How many, the owner's included.
    pub wanted: u32,
    /// Who has made them of what it holds of which streamlet, and in which epoch: it counts while that one is live.
    made: BTreeMap<(u32, NodeNumber), u32>,
}

impl CopiesChange {
    pub(super) fn note_made(&mut self, streamlet: u32, node: NodeNumber, epoch: u32) {
        self.made.insert((streamlet, node), epoch);
    }
}

/// What an incarnation has of a streamlet whose number of copies is to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToCopy {
    /// Of which stream.
    pub stream: StreamId,
    /// Which streamlet.
    pub streamlet: u32,
    /// How many copies it has.
    pub copies: u32,
    /// How many it is to have.
    pub wanted: u32,
    /// It owns it; otherwise it holds older groups of it.
    pub is_owner: bool,
    /// The streamlet's owner epoch.
    pub owner_epoch: u32,
}

impl ToCopy {
    /// Whether what is there has to be copied again. With fewer it goes on as it is, and only what is new has as many as are wanted.
    pub fn is_more(&self) -> bool {
        self.wanted > self.copies
    }
}

fn refused(reason: String) -> CoordinatorError {
    CoordinatorError::Refused(Refused(reason))
}

impl ClusterState {
    /// How many copies there are of what is acknowledged in a streamlet, its owner's included; zero: there is no such stream.
    pub fn copies_of(&self, stream: StreamId, streamlet: u32) -> u32 {
        let of_stream = || self.catalog.find(&stream.into()).map_or(0, |info| info.options.replication);
        self.owner(stream, streamlet).map_or_else(of_stream, |owner| owner.copies)
    }

    /// Streamlets that have another number of copies than their streams say: of which stream, the first, how many streamlets, and how many copies.
    pub fn other_copies(&self) -> Vec<(StreamId, u32, u32, u32)> {
        let mut others = Vec::new();
        for stream in self.copies.keys() {
            let of_stream = self.catalog.find(&(*stream).into()).map_or(0, |info| info.options.replication);
            let runs = self.owners.get(stream).into_iter().flat_map(|of| of.runs());
            let runs = runs.filter(|run| run.owner.copies != of_stream);
            others.extend(runs.map(|run| (*stream, run.first, run.count, run.owner.copies)));
        }
        others
    }

    /// How many copies a stream is to have, if that is another number than it has.
    pub fn wanted_copies(&self, stream: StreamId) -> Option<u32> {
        self.copies.get(&stream).map(|change| change.wanted)
    }

    /// Ranges of streamlets with copies, with their owners.
    pub(super) fn copied_runs(&self) -> impl Iterator<Item = (StreamId, &Run)> {
        let owners = self.catalog.streams().filter_map(|info| Some((info.id, self.owners.get(&info.id)?)));
        let runs = owners.flat_map(|(stream, of)| of.runs().iter().map(move |run| (stream, run)));
        runs.filter(|(_, run)| run.owner.is_copied())
    }

    /// Groups of streamlets with copies that are not with the owner.
    pub(super) fn held_copied(&self) -> impl Iterator<Item = (StreamId, Held)> + '_ {
        let owners = self.catalog.streams().filter_map(|info| Some((info, self.owners.get(&info.id)?)));
        owners.flat_map(move |(info, of)| {
            let is_plain = !self.copies.contains_key(&info.id);
            let copied = move |held: &Held| match is_plain {
                true => Vec::from_iter((info.options.replication > 1).then_some(*held)),
                false => of
                    .within(held.first, held.count)
                    .filter(|run| run.owner.is_copied())
                    .map(|run| Held { first: run.first, count: run.count, ..*held })
                    .collect(),
            };
            of.held().iter().flat_map(copied).map(move |held| (info.id, held))
        })
    }

    /// Whether streamlets have copies that nobody owns, if this one is among them.
    pub(super) fn is_copied(&self, info: &StreamInfo, streamlet: u32) -> bool {
        self.owner(info.id, streamlet).map_or(info.options.replication > 1, |owner| owner.is_copied())
    }

    /// How many copies streamlets have that get an owner, range by range.
    pub(super) fn copies_from_now_on(
        &self,
        stream: StreamId,
        range: Range<u32>,
        reason: OwnerReason,
    ) -> Vec<(u32, u32, u32)> {
        let of_stream = self.catalog.find(&stream.into()).map_or(1, |info| info.options.replication);
        if let Some(change) = self.copies.get(&stream).filter(|_| reason == OwnerReason::Copied) {
            return vec![(range.start, range.end - range.start, change.wanted)];
        }
        let (mut parts, mut at) = (Vec::new(), range.start);
        for run in self.owners.get(&stream).into_iter().flat_map(|of| of.within(range.start, range.end - range.start)) {
            parts.push((at, run.first - at, of_stream));
            parts.push((run.first, run.count, run.owner.copies));
            at = run.end();
        }
        parts.push((at, range.end - at, of_stream));
        parts.retain(|(_, count, _)| *count > 0);
        parts
    }

    pub(super) fn set_copies_wanted(&mut self, stream: StreamId, copies: u32) {
        match copies {
            0 => drop(self.copies.remove(&stream)),
            wanted => drop(self.copies.insert(stream, CopiesChange { wanted, made: BTreeMap::new() })),
        }
    }

    /// What a snapshot has of it, behind the owners.
    pub(super) fn copies_entries(&self) -> Vec<ClusterEntry> {
        let mut entries = Vec::new();
        for (stream, change) in &self.copies {
            let (stream, copies) = (*stream, change.wanted);
            entries.push(ClusterEntry::CopiesWanted { stream, copies });
            entries.extend(change.made.iter().map(|((streamlet, node), epoch)| ClusterEntry::CopiesMade {
                stream,
                streamlet: *streamlet,
                node: *node,
                epoch: *epoch,
                copies,
            }));
        }
        let others = self.other_copies().into_iter();
        entries.extend(others.map(|(stream, first, count, copies)| ClusterEntry::StreamletCopies {
            stream,
            first,
            count,
            copies,
        }));
        entries
    }

    /// The beginning of a change of a stream's number of copies, or another one instead of it. `changes` has nothing else that cannot be together with that.
    pub(super) fn plan_copies(&self, info: &StreamInfo, options: &StreamOptions, most: &Limits) -> Planned {
        let (has, wanted) = (info.options.replication, options.replication);
        let under_way = self.wanted_copies(info.id);
        if wanted == under_way.unwrap_or(has) {
            return Ok(Vec::new());
        }
        if let Some(too_many) = too_many_copies(wanted, self.limits(most).nodes) {
            return Err(refused(too_many));
        }
        let runs = || self.owners.get(&info.id).into_iter().flat_map(|of| of.runs());
        if wanted == 1 && (has > 1 || runs().any(|run| run.owner.is_copied())) {
            return Err(refused(format!(
                "stream `{}` has copies, and what others may have of it cannot become one node's alone: 2 is the least; mirror it to another \
                 stream if it is to have one",
                info.name
            )));
        }
        let is_back = wanted == has && runs().all(|run| run.owner.copies == wanted);
        if !is_back {
            // With fewer all of it would be copied now, be said to have as many, and be copied once more when the others are back.
            self.check_live_nodes(wanted, |wanted| wanted)?;
        }
        let copies = if is_back { 0 } else { wanted };
        self.one(ClusterEntry::CopiesWanted { stream: info.id, copies })
    }

    pub(super) fn check_copies_wanted(&self, stream: StreamId, copies: u32) -> Result<(), Refused> {
        let Ok(info) = self.catalog.find(&stream.into()) else {
            return Err(Refused(format!("there is no stream {stream}")));
        };
        let runs = self.owners.get(&stream).into_iter().flat_map(|of| of.runs());
        let mut has = runs.map(|run| run.owner.copies);
        match copies {
            0 => must(has.all(|has| has == info.options.replication), || {
                format!("not all streamlets of stream {stream} have {} copies", info.options.replication)
            }),
            1 => must(has.all(|has| has == 1), || format!("streamlets of stream {stream} have copies")),
            _ => Ok(()),
        }
    }

    /// Whether a stream's options may say this number of copies: all of its streamlets have it.
    pub(super) fn check_copies_said(&self, stream: StreamId, options: &StreamOptions) -> Result<(), Refused> {
        let Ok(info) = self.catalog.find(&stream.into()) else { return Ok(()) };
        let (has, says) = (info.options.replication, options.replication);
        if has == says || self.level() < level::CHANGED_COPIES {
            return Ok(());
        }
        must(self.wanted_copies(stream) == Some(says), || format!("stream {stream} is not to have {says} copies"))?;
        let mut runs = self.owners.get(&stream).into_iter().flat_map(|of| of.runs());
        let other = runs.find(|run| run.owner.copies != says);
        must(other.is_none(), || format!("not all streamlets of stream {stream} have {says} copies"))
    }

    pub(super) fn check_copies_made(
        &self,
        (stream, streamlet): (StreamId, u32),
        (node, epoch): (NodeNumber, u32),
        copies: u32,
    ) -> Result<(), Refused> {
        let wanted = self.wanted_copies(stream);
        must(wanted == Some(copies), || format!("stream {stream} is not to have {copies} copies"))?;
        must(self.is_live(node, epoch), || format!("node {node} epoch {epoch} is over"))?;
        must(self.holds(node, stream, streamlet), || {
            format!("node {node} holds nothing of streamlet {streamlet} of stream {stream}")
        })
    }

    /// Whether a streamlet has the wanted number of copies with this move of it to its own node: all who hold older groups have made theirs, in lives that
    /// last, and the owner says of its own that it has.
    pub(super) fn check_copied(&self, stream: StreamId, streamlet: u32, number: u64) -> Result<(), Refused> {
        let is_own = self.moves.get(&number).is_some_and(|of| of.from == of.to);
        must(is_own, || format!("move {number} is not to the node that has the streamlet"))?;
        let Some(change) = self.copies.get(&stream) else {
            return Err(Refused(format!("stream {stream} is to keep its number of copies")));
        };
        let Some(owner) = self.owner(stream, streamlet) else {
            return Err(Refused(format!("nobody owns streamlet {streamlet} of stream {stream}")));
        };
        must(owner.copies != change.wanted, || {
            format!("streamlet {streamlet} of stream {stream} has {} copies", change.wanted)
        })?;
        let waits = (change.wanted > owner.copies)
            .then(|| self.holders_without(stream, streamlet, owner.node).into_iter().next())
            .flatten();
        must(waits.is_none(), || {
            format!("node {} holds older groups of which it has not made the copies", waits.unwrap_or_default())
        })
    }

    /// Nodes beside the owner that hold groups of a streamlet of which they have not made the copies that are wanted, or have lost them.
    fn holders_without(&self, stream: StreamId, streamlet: u32, owner: NodeNumber) -> Vec<NodeNumber> {
        let Some((change, owners)) = self.copies.get(&stream).zip(self.owners.get(&stream)) else { return Vec::new() };
        let has_made =
            |node: NodeNumber| change.made.get(&(streamlet, node)).is_some_and(|epoch| self.is_live(node, *epoch));
        let mut without: Vec<NodeNumber> = (owners.held_of(streamlet))
            .filter(|held| held.lost || (held.node != owner && !has_made(held.node)))
            .map(|held| held.node)
            .collect();
        without.sort_unstable();
        without.dedup();
        without
    }

    /// What an incarnation has to do for streams whose number of copies is to change: streamlets that it owns, once all others are ready, and those of
    /// which it holds older groups.
    pub fn to_copy(&self, node: NodeNumber, epoch: u32) -> Vec<ToCopy> {
        let mut found = Vec::new();
        if !self.is_live(node, epoch) {
            return found;
        }
        for (stream, change) in &self.copies {
            let Some(owners) = self.owners.get(stream) else { continue };
            for run in owners.runs().iter().filter(|run| run.owner.copies != change.wanted && !run.owner.rebuilding) {
                let is_owner = (run.owner.node, run.owner.epoch) == (node, epoch);
                let holds = |streamlet: &u32| {
                    let has_made = change.made.get(&(*streamlet, node)) == Some(&epoch);
                    !has_made && self.holds(node, *stream, *streamlet)
                };
                let is_more = change.wanted > run.owner.copies;
                let one = |streamlet: &u32| is_owner || (is_more && holds(streamlet));
                found.extend((run.first..run.end()).filter(one).map(|streamlet| ToCopy {
                    stream: *stream,
                    streamlet,
                    copies: run.owner.copies,
                    wanted: change.wanted,
                    is_owner,
                    owner_epoch: run.owner.owner_epoch,
                }));
            }
        }
        found
    }

    /// Whether an owner may ask for the move with which its streamlet has the wanted number of copies: it waits for nobody else.
    pub fn may_be_copied(&self, stream: StreamId, streamlet: u32) -> bool {
        let Some(owner) = self.owner(stream, streamlet) else { return false };
        let is_more = self.wanted_copies(stream).is_some_and(|wanted| wanted > owner.copies);
        !is_more || self.holders_without(stream, streamlet, owner.node).is_empty()
    }

    /// What a node says of copies that it has made: of older groups that it holds, or with the end of a move to itself of what it owns.
    ///
    /// Of older groups it counts in the owner epoch in which the node has looked, and in no later one. What it says may be under way for long, and the
    /// streamlet may have moved to it and away again meanwhile: then it holds more, what it wrote as the owner, of which there is one copy, and with what it
    /// had said the streamlet would be taken for one that has as many as are wanted. It looks again and says it again.
    pub fn plan_copies_made(&self, made: &CopiesMade) -> Planned {
        let CopiesMade { node, epoch, stream, streamlet, copies, number, ref state, owner_epoch } = *made;
        if number != 0 {
            // The entry gives the streamlet as many as are wanted: another number may be by now.
            let wanted = self.wanted_copies(stream);
            must(wanted == Some(copies), || format!("stream {stream} is not to have {copies} copies"))
                .map_err(CoordinatorError::Refused)?;
            return self.plan_end_of_move(number, (node, epoch), state, OwnerReason::Copied);
        }
        // Of what it writes now there are no copies yet, and there will be older groups of that.
        let owner = self.owner(stream, streamlet.0);
        must(owner.is_none_or(|owner| owner.node != node), || {
            format!("node {node} owns streamlet {streamlet} of stream {stream} by now")
        })
        .map_err(CoordinatorError::Refused)?;
        let (is, is_told) = (owner.map_or(0, |owner| owner.owner_epoch), self.level() >= level::COPIED_IN);
        must(owner_epoch == is || (owner_epoch == 0 && !is_told), || {
            format!(
                "node {node} tells of streamlet {streamlet} of stream {stream} as it was in owner epoch {owner_epoch}, and it is in {is}: look again"
            )
        })
        .map_err(CoordinatorError::Refused)?;
        let known = self.copies.get(&stream).and_then(|change| change.made.get(&(streamlet.0, node)));
        if known == Some(&epoch) {
            return Ok(Vec::new());
        }
        self.one(ClusterEntry::CopiesMade { stream, streamlet: streamlet.0, node, epoch, copies })
    }

    /// What belongs to a move of a streamlet away from a node that has made the copies of what it held of it before it had it: that it has made them is
    /// forgotten.
    ///
    /// What a node holds only becomes less for as long as another one owns the streamlet, and that is why what it has said stays true. But one that had the
    /// streamlet in between holds more afterwards: what it wrote, with as many copies as the streamlet has. If what it said stood, nobody would copy that, and
    /// the streamlet would be said to have copies of all. A node comes to be the owner and ceases to be it in one life by such a move alone: with any
    /// other change of owners the life is over in which it said it, or it has written nothing.
    ///
    /// There is no entry that takes back what one node has said. The number that is wanted is noted once more, which takes back everything, and what others have
    /// said is noted behind it, in the same batch. Those for which there is no room in one make their copies again.
    pub(super) fn plan_unsay_copies(
        &self,
        (stream, streamlet): (StreamId, u32),
        from: NodeNumber,
    ) -> Vec<ClusterEntry> {
        let Some(change) = self.copies.get(&stream) else { return Vec::new() };
        let is_said = change.made.get(&(streamlet, from)).is_some_and(|epoch| self.is_live(from, *epoch));
        if !is_said {
            return Vec::new();
        }
        let copies = change.wanted;
        let stays = |(at, node): (u32, NodeNumber), epoch: u32| {
            let waits = self.owner(stream, at).is_some_and(|owner| owner.node != node && owner.copies != copies);
            waits && (at, node) != (streamlet, from) && self.is_live(node, epoch) && self.holds(node, stream, at)
        };
        let said = change.made.iter().filter(|(what, epoch)| stays(**what, **epoch)).take(OWNER_RUNS_MAX);
        let said = said.map(|((at, node), epoch)| ClusterEntry::CopiesMade {
            stream,
            streamlet: *at,
            node: *node,
            epoch: *epoch,
            copies,
        });
        [ClusterEntry::CopiesWanted { stream, copies }].into_iter().chain(said).collect()
    }

    /// Streams of which all streamlets have the number of copies that is wanted say it themselves.
    pub fn plan_say_copies(&self, now_ms: i64) -> Planned {
        let mut entries = Vec::new();
        for (stream, change) in &self.copies {
            let runs = self.owners.get(stream).into_iter().flat_map(|of| of.runs());
            let Ok(info) = self.catalog.find(&(*stream).into()) else { continue };
            if runs.into_iter().all(|run| run.owner.copies == change.wanted) {
                let options = StreamOptions { replication: change.wanted, ..info.options.clone() };
                let altered = Entry::StreamAltered { stream: *stream, at_ms: now_ms, options };
                if info.options.replication != change.wanted {
                    entries.push(ClusterEntry::Catalog(altered));
                }
                entries.push(ClusterEntry::CopiesWanted { stream: *stream, copies: 0 });
            }
        }
        Ok(entries)
    }

    /// More copies for what the cluster keeps for itself, which was made when there were fewer nodes. Not while one is lost or about to leave: it takes its
    /// share of the work.
    pub fn plan_more_copies(&self, most: &Limits) -> Planned {
        let is_calm = self.nodes.values().all(|node| !node.fenced && !node.draining);
        if self.level() < level::CHANGED_COPIES || !is_calm {
            return Ok(Vec::new());
        }
        let copies = OWN_COPIES.min(self.limits(most).nodes);
        let own = self.catalog.streams().filter(|info| info.name.starts_with(CLUSTER_PREFIX));
        let few = own.filter(|info| self.wanted_copies(info.id).unwrap_or(info.options.replication) < copies);
        Ok(few.map(|info| ClusterEntry::CopiesWanted { stream: info.id, copies }).collect())
    }

    /// What other changes of a stream cannot be together with one of its copies.
    pub(super) fn refuse_with_copies(
        &self,
        info: &StreamInfo,
        changes: &StreamChanges,
    ) -> Result<(), CoordinatorError> {
        let is_other = changes.durability.is_some_and(|durability| durability != info.options.durability);
        let changes_copies = changes.replication.is_some_and(|copies| copies != info.options.replication);
        if is_other && (changes_copies || self.copies.contains_key(&info.id)) {
            return Err(refused(format!(
                "durability of stream `{}` cannot change while its number of copies does",
                info.name
            )));
        }
        Ok(())
    }

    /// How far changes of numbers of copies are.
    pub fn copy_changes(&self, limit: usize) -> CopyChanges {
        let of = |(stream, change): (&StreamId, &CopiesChange)| {
            let info = self.catalog.find(&(*stream).into()).ok()?;
            let (mut there, mut streamlets, mut waits_for) = (0, 0, Vec::new());
            for run in self.owners.get(stream).into_iter().flat_map(|of| of.runs()) {
                streamlets += run.count;
                there += if run.owner.copies == change.wanted { run.count } else { 0 };
                // What has copies goes to others by itself.
                if run.owner.copies == change.wanted || run.owner.is_copied() {
                    continue;
                }
                let is_lost = |node: &NodeNumber| self.nodes.get(node).is_none_or(|node| node.fenced);
                let holders = (run.first..run.end()).flat_map(|at| self.holders_without(*stream, at, run.owner.node));
                waits_for.extend(holders.chain([run.owner.node]).filter(is_lost));
            }
            waits_for.sort_unstable();
            waits_for.dedup();
            waits_for.truncate(NAMED_MAX);
            Some(CopyChange {
                stream: *stream,
                name: info.name.clone(),
                copies: info.options.replication,
                wanted: change.wanted,
                streamlets,
                there,
                waits_for,
            })
        };
        let mut changes = self.copies.iter().filter_map(of);
        CopyChanges { changes: changes.by_ref().take(limit).collect(), more: changes.next().is_some() }
    }
}
