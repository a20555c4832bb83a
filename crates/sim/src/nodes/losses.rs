//! More is lost than copies allow, and a person gives up what nobody has any more: `docs/replication.md`, "Nobody is left who has it" and "One that is gone had the
//! end alone".
//!
//! What was in each block is noted when it leaves for a backup. So it is known what was in the blocks that were given up, and nothing else may be missing of a lane: it begins
//! behind something of that, in the same segment or at its end, or goes on in front of something of that. What is gone is gone for producers and readers
//! alike: the numbers of its records are given out again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

use bytes::Bytes;
use kera_format::chunk::Chunks;
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_format::{GroupId, SegmentIndex};
use kera_log::Tenure;
use kera_protocol::{AcceptLogLoss, LostLog};

use super::client::Told;
use super::coordinators::Command;
use super::faults::Fault;
use super::world::{Event, World};
use crate::cluster::truth::{Place, Truth, Violation};

/// How long a person waits before something is given up: its node has stopped by then for certain (`STOPPED_AFTER_MS` in `crates/raft/src/commands.rs`).
pub(super) const STOPPED_US: u64 = 8_000_000;
/// How long a node that lives is given to tell that it has what is missing. Then it is stopped.
const HAS_US: u64 = 20_000_000;
const LOOK_US: u64 = 1_000_000;

type Segment = (GroupId, SegmentIndex);

/// What a block has of a lane.
struct Part {
    place: Place,
    segment: Segment,
    ordinals: Range<u64>,
}

impl Part {
    fn is_of(&self, (stream, streamlet): (u64, u32)) -> bool {
        (self.place.stream, self.place.streamlet) == (stream, streamlet)
    }
}

/// What was given up.
#[derive(Default)]
pub(super) struct Losses {
    pub(super) is_on: bool,
    blocks: BTreeMap<LogName, BTreeMap<u64, Vec<Part>>>,
    /// The end of what any block has of a segment.
    ends: BTreeMap<(Place, Segment), u64>,
    /// What was in blocks that were given up, of each lane.
    lost: BTreeMap<Place, Vec<(Segment, Range<u64>)>>,
    /// Since when a person has known that something is missing of a log.
    since_us: BTreeMap<LogId, u64>,
    /// Nodes that a person has stopped, so that what they do not have can be given up, each with the logs.
    stopped: BTreeMap<u32, BTreeSet<LogId>>,
}

impl Losses {
    pub(super) fn new(is_on: bool) -> Losses {
        Losses { is_on, ..Losses::default() }
    }

    /// A block leaves for a backup.
    pub(super) fn sent(&mut self, log: LogId, block: u64, chunks: &Bytes) {
        if !self.is_on {
            return;
        }
        let of_log = self.blocks.entry(LogName::from(log)).or_default();
        if of_log.contains_key(&block) {
            return;
        }
        let mut parts = Vec::new();
        for chunk in Chunks::new(chunks) {
            let chunk = chunk.expect("a chunk that a broker took");
            let (header, at) = (chunk.header(), chunk.broker().expect("a chunk that has a place"));
            let place = Place { stream: header.stream.0, streamlet: header.streamlet.0, lane: at.lane.0 };
            let ordinals = at.base_ordinal..at.base_ordinal + u64::from(header.record_count);
            parts.push(Part { place, segment: (at.group, at.segment), ordinals });
        }
        for part in &parts {
            let end = self.ends.entry((part.place, part.segment)).or_default();
            *end = part.ordinals.end.max(*end);
        }
        of_log.insert(block, parts);
    }

    /// Blocks of a log were given up.
    fn given_up(&mut self, log: LogName, blocks: RangeInclusive<u64>) {
        for part in
            self.blocks.get(&log).into_iter().flat_map(|of| of.range(blocks.clone())).flat_map(|(_, parts)| parts)
        {
            self.lost.entry(part.place).or_default().push((part.segment, part.ordinals.clone()));
        }
    }

    /// Blocks of a log were given up for one streamlet.
    pub(super) fn given_up_for(&mut self, log: LogName, blocks: RangeInclusive<u64>, streamlet: (u64, u32)) {
        let of_log = self.blocks.get(&log).into_iter().flat_map(|of| of.range(blocks.clone()));
        for part in of_log.flat_map(|(_, parts)| parts).filter(|part| part.is_of(streamlet)) {
            self.lost.entry(part.place).or_default().push((part.segment, part.ordinals.clone()));
        }
    }

    /// Whether there is something in blocks of a log.
    pub(super) fn has_parts(&self, log: LogName, blocks: RangeInclusive<u64>) -> bool {
        let mut of_log = self.blocks.get(&log).into_iter().flat_map(|of| of.range(blocks.clone()));
        of_log.any(|(_, parts)| !parts.is_empty())
    }

    /// The same of one streamlet.
    pub(super) fn has_parts_of(&self, log: LogName, blocks: RangeInclusive<u64>, streamlet: (u64, u32)) -> bool {
        let mut of_log = self.blocks.get(&log).into_iter().flat_map(|of| of.range(blocks.clone()));
        of_log.any(|(_, parts)| parts.iter().any(|part| part.is_of(streamlet)))
    }

    /// Whether a lane may begin at an ordinal because something in front of that was given up.
    pub(super) fn may_begin(&self, place: Place, ordinal: u64) -> bool {
        let end_of = |segment: Segment| self.ends.get(&(place, segment)).copied().unwrap_or(0);
        let mut lost = self.lost.get(&place).into_iter().flatten();
        lost.any(|(segment, ordinals)| ordinals.start < ordinal && ordinal <= end_of(*segment))
    }

    /// Whether a lane may go on at an ordinal because what was there was given up.
    fn may_end(&self, place: Place, ordinal: u64) -> bool {
        self.lost.get(&place).into_iter().flatten().any(|(_, ordinals)| ordinals.contains(&ordinal))
    }

    /// Whether something of a streamlet was given up.
    pub(super) fn has_some_of(&self, stream: u64, streamlet: u32) -> bool {
        self.lost.keys().any(|place| (place.stream, place.streamlet) == (stream, streamlet))
    }
}

impl Told {
    /// An owner goes on with a lane at an ordinal: what is known to be there and behind was given up.
    fn goes_on(&mut self, truth: &mut Truth, place: Place, ordinal: u64) -> Result<(), Violation> {
        let end = truth.end(place).max(ordinal);
        let Some((first, written)) = truth.between(place, ordinal..end).next() else { return Ok(()) };
        truth.checked();
        if !self.losses.may_end(place, first) {
            return Err(Violation(format!(
                "{place}: it goes on at {ordinal}, {written:?} was at {first}, and nobody has given that up"
            )));
        }
        let records = truth.between(place, ordinal..end).count() as u64;
        *self.did.entry("records gone that were given up").or_default() += records;
        self.floors.goes_on(place, ordinal);
        truth.unlearn(place, ordinal..end);
        (ordinal..end).for_each(|base| self.no_epoch(place, base));
        Ok(())
    }
}

impl World {
    /// A person begins to look after what is lost, if more may be than copies allow.
    pub(super) fn begin_losses(&mut self) {
        if self.told.losses.is_on {
            self.schedule.after(LOOK_US, Event::Losses);
        }
    }

    /// Machines burn, whether or not others have what they had: a node and all that have copies of one of its logs, or these alone, or just the node.
    pub(super) fn lose_last_copy(&mut self, node: u32) -> bool {
        let state = &self.coordinators.state;
        let own = state.logs().iter().filter(|(name, _)| name.node == node && state.is_live(node, name.epoch));
        let newest: Vec<Vec<u32>> = own.filter_map(|(_, log)| Some(log.views.last()?.backups.clone())).collect();
        let mut all: BTreeSet<u32> = match newest.len() as u64 {
            0 => BTreeSet::new(),
            count => newest[self.below(count) as usize].iter().copied().filter(|at| !self.node(*at).is_gone).collect(),
        };
        if self.below(3) > 0 {
            all.insert(node);
        }
        if !self.may_all_go(&all) {
            all = BTreeSet::from([node]);
        }
        let may = !all.is_empty() && self.may_all_go(&all);
        for node in all.into_iter().filter(|_| may) {
            self.destroy(node);
        }
        may
    }

    /// Whether the others are enough for new copies, with all coordinators; and whether of each view nobody is left, or somebody who has lost
    /// nothing: a person can only say of machines that they are gone.
    fn may_all_go(&self, all: &BTreeSet<u32>) -> bool {
        for (name, log) in self.coordinators.state.logs() {
            for (at, view) in log.views.iter().enumerate() {
                let is_left = |backup: &&u32| !self.node(**backup).is_gone && !all.contains(*backup);
                let mut left = view.backups.iter().filter(is_left).peekable();
                if left.peek().is_some() && !left.any(|backup| self.is_whole(*backup, (name, log), at)) {
                    return false;
                }
            }
        }
        let is_left = |node: &u32| {
            !self.node(*node).is_gone && self.coordinators.state.node(*node).is_some() && !all.contains(node)
        };
        let left = (1..=self.count()).filter(is_left).count() as u32;
        // One coordinator may be stopped by a person while nobody else has what is missing.
        left >= self.replication && self.voters.iter().all(is_left)
    }

    /// What a person does about logs of which something is missing for good: see [`LostLog`].
    pub(super) fn look_at_losses(&mut self) {
        self.schedule.after(LOOK_US, Event::Losses);
        self.look_at_unread();
        let now_us = self.now_us();
        let lost = self.coordinators.state.lost_log_infos(1000).logs;
        self.told.losses.since_us.retain(|log, _| lost.iter().any(|info| info.log == *log));
        for info in &lost {
            let since_us = *self.told.losses.since_us.entry(info.log).or_insert(now_us);
            self.look_at_lost_log(info, now_us - since_us);
        }
        for node in self.told.losses.stopped.keys().copied().collect::<Vec<_>>() {
            let logs = self.told.losses.stopped.get_mut(&node).expect("it was there");
            logs.retain(|log| lost.iter().any(|info| info.log == *log));
            if logs.is_empty() {
                self.told.losses.stopped.remove(&node);
                self.schedule.after(1, Event::Start(node));
            }
        }
    }

    fn look_at_lost_log(&mut self, info: &LostLog, for_us: u64) {
        let is_off = |node: u32| self.node(node).is_gone || self.is_stopped_for_good(node);
        if info.streamlets.is_empty() || !info.lost_nodes.iter().all(|node| is_off(*node)) {
            return;
        }
        let node = info.log.node;
        if info.live_nodes.contains(&node) {
            // One at a time: the others need a majority of the coordinators, and what it has of their logs.
            let is_next = self.told.losses.stopped.keys().all(|other| *other == node);
            if for_us > HAS_US && is_next && self.node(node).process.is_some() {
                *self.events_of.entry("stopped so that its log can be given up").or_default() += 1;
                self.told.losses.stopped.entry(node).or_default().insert(info.log);
                self.told.losses.since_us.remove(&info.log);
                self.kill(node, None);
            }
            return;
        }
        if for_us > STOPPED_US
            && let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some())
        {
            let asked = AcceptLogLoss { log: info.log, gone: info.lost_nodes.clone() };
            self.ask(at, Command::AcceptLoss(asked));
        }
    }

    /// What a person still has to give up.
    pub(super) fn missing(&self) -> Vec<String> {
        if !self.told.losses.is_on {
            return Vec::new();
        }
        let lost = self.coordinators.state.lost_log_infos(1000).logs;
        let waited_for = lost.iter().filter(|info| !info.streamlets.is_empty());
        waited_for.map(|info| format!("{:?} is waited for; stopped: {:?}", info, self.told.losses.stopped)).collect()
    }

    /// Whether a person keeps a node from being started.
    pub(super) fn is_stopped_for_good(&self, node: u32) -> bool {
        self.told.losses.stopped.contains_key(&node)
    }

    /// Notes what was given up since this was called last.
    pub(super) fn note_losses(&mut self) {
        for (log, blocks) in std::mem::take(&mut self.coordinators.given_up_blocks) {
            *self.events_of.entry("blocks given up").or_default() += 1;
            self.told.losses.given_up(log, blocks);
        }
        self.note_given_up_for();
    }

    /// A node that takes over may have opened streamlets: where their lanes go on.
    pub(super) fn look_at_cut(&mut self, node: u32) -> Result<(), Violation> {
        if !self.told.losses.is_on {
            return Ok(());
        }
        self.note_losses();
        let Some(running) = self.nodes[node as usize - 1].running() else { return Ok(()) };
        let mut ends = Vec::new();
        for (stream, streamlet, owner_epoch) in &running.recovery.taken() {
            let Some(found) = running.log.stream(*stream) else { continue };
            let Some(place) = found.streamlet(*streamlet) else { continue };
            let owns = self.coordinators.state.owner(*stream, streamlet.0).map(|owner| owner.owner_epoch);
            if place.tenure() != Tenure::Here || place.owner_epoch() != *owner_epoch || owns != Some(*owner_epoch) {
                continue;
            }
            for lane in 0..found.options().lanes {
                let used = place.lanes().find(|used| used.id().0 == lane);
                let (first, next) = used.map_or((0, 0), |used| (used.stats().first_ordinal, used.stats().next_ordinal));
                ends.push((Place { stream: stream.0, streamlet: streamlet.0, lane }, first, next));
            }
        }
        for (place, first, next) in ends {
            if self.told.losses.may_begin(place, first) {
                // Some of that nobody was told of who wrote it: that comes again.
                self.truth.unlearn(place, 0..first);
            }
            self.told.goes_on(&mut self.truth, place, next)?;
        }
        Ok(())
    }
}

/// Whether more may be lost in a run than copies allow.
pub(super) fn may_lose(only: &[Fault]) -> bool {
    only.contains(&Fault::LastCopy) || only.contains(&Fault::BlocksLost)
}
