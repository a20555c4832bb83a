//! What `crates/server/src/cluster/copier.rs` does, by turns: logs take other backups for those that are lost, what lacks copies is copied
//! again, and so is what a node came back with if the logs that have it lost a backup, or have mostly what nobody needs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use kera_coordinator::cluster::{ClusterState, Offers};
use kera_format::cluster::Roles;
use kera_format::vlog_replica::LogId;
use kera_format::{SegmentId, StreamId, StreamOptions};
use kera_log::{CopiedAgain, DurabilitySink, Log, Streamlet, Ticket};
use kera_protocol::ListReplicas;
use kera_vlog::{BackupId, ReplicatedLog};

use super::copies::{Copies, lock};
use super::taking::ended_logs;
use super::world::{World, rack_of};
use crate::cluster::truth::Violation;

/// A backup that is away for so long has lost what it had.
const AWAY_US: u64 = 10_000_000;
/// Segments that are asked for at a time.
const SEGMENTS: usize = 8;
/// Old logs are looked at so long after the start, but for what is to be copied at once.
const OLD_LOGS_US: u64 = 2_000_000;
/// What a node has left in its old logs is copied again when these hold so many times as much, as in its logs of today.
const DEAD_FACTOR: u64 = 2;
/// And when that is worth so many bytes: a run has few.
const DEAD_BYTES: u64 = 128 << 10;

/// What live backups have of logs, by their nodes: blocks, and bytes of files.
type Has = BTreeMap<BackupId, HasOne>;
type HasOne = HashMap<LogId, (Vec<RangeInclusive<u64>>, u64)>;

/// Whether a backup has all of these blocks of a log.
fn has_blocks(has: &HasOne, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
    let ranges = has.get(&log).map_or(&[][..], |(ranges, _)| ranges);
    ranges.iter().any(|range| range.contains(blocks.start()) && range.contains(blocks.end()))
}

/// Segments that were given to their log again and are not acknowledged yet.
struct Given {
    log: Arc<ReplicatedLog>,
    segments: Vec<SegmentId>,
    since: u64,
    last: Ticket,
}

impl Given {
    fn note(&mut self, segment: SegmentId, ticket: Ticket) {
        self.segments.push(segment);
        self.last = self.last.max(ticket);
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Copier {
    began_us: u64,
    /// What this incarnation got back, and below which owner epoch its groups are.
    returned: (Vec<(StreamId, Range<u32>)>, u32),
    has_copied_returned: bool,
    /// When it came back, its old logs may have lacked copies of that.
    may_lack_copies: bool,
    /// What it has offered to those who rebuild it.
    pub(super) offers: Offers,
    /// Whether it has begun with that.
    is_copying: bool,
    /// Segments of that which are acknowledged in logs of this incarnation.
    copied: HashSet<SegmentId>,
    /// The nodes of the cluster. Who was given up is none of them, and has nothing any more; unless that is left out: a defect.
    members: BTreeSet<BackupId>,
    believes_the_removed: bool,
    away: BTreeMap<BackupId, u64>,
    never: HashSet<SegmentId>,
    given: Option<Given>,
}

impl Copier {
    pub(super) fn new(
        known: &ClusterState,
        (node, epoch): (u32, u32),
        (now_us, believes_the_removed): (u64, bool),
    ) -> Copier {
        let (returned, may_lack_copies) = (known.came_back_with(node, epoch), known.may_lack_copies(node, epoch));
        Copier { began_us: now_us, returned, may_lack_copies, believes_the_removed, ..Copier::default() }
    }

    /// What is held here since it was offered came back as if with the start.
    fn look_at_offers(&mut self, known: &ClusterState, node: u32) {
        for (stream, at) in self.offers.held(known, node) {
            let is_known = |(of, range): &(StreamId, Range<u32>)| *of == stream && range.contains(&at);
            if !self.returned.0.iter().any(is_known) {
                self.returned.0.push((stream, at..at + 1));
                (self.has_copied_returned, self.is_copying) = (false, false);
            }
        }
    }

    /// Whether logs of earlier incarnations may be given up, as far as nothing is left that needs them.
    pub(super) fn gives_up(&mut self, known: &ClusterState, (node, epoch): (u32, u32), has_all: bool) -> bool {
        let may = self.offers.give_up_old_logs(known, (node, epoch), has_all);
        self.look_at_offers(known, node);
        may
    }

    /// Segments from before this incarnation, of what came back with it.
    fn returned_segments(&self, log: &Log) -> Vec<SegmentId> {
        let of = |(stream, range): &(StreamId, Range<u32>)| {
            let stream = log.stream(*stream)?;
            let of_run = stream.streamlets().filter(|one| range.contains(&one.id().0));
            Some(of_run.flat_map(|one| log.returned_segments(one, self.returned.1)).collect::<Vec<_>>())
        };
        self.returned.0.iter().filter_map(of).flatten().collect()
    }

    /// Whether this node has something that only logs of its earlier incarnations have copies of.
    pub(super) fn needs_old_logs(&self, log: &Log) -> bool {
        !self.has_copied_returned && !self.returned_segments(log).is_empty()
    }

    /// Whether backups keep much more for earlier incarnations of a node than what it has left of that time.
    fn is_mostly_dead(&self, known: &ClusterState, has: &Has, log: &Log, node: u32) -> bool {
        let is_old = |id: &LogId| id.node == node && !known.is_live(id.node, id.epoch);
        let kept = has.values().flatten().filter(|(id, _)| is_old(id)).map(|(_, (_, bytes))| bytes).sum::<u64>();
        let left = self.returned.0.iter().filter_map(|(stream, range)| {
            let stream = log.stream(*stream)?;
            let of_run = stream.streamlets().filter(|one| range.contains(&one.id().0));
            let copies = |one: &Streamlet| u64::from(one.copies().saturating_sub(1));
            Some(of_run.map(|one| copies(one) * log.returned_bytes(one, self.returned.1)).sum::<u64>())
        });
        kept > DEAD_FACTOR * left.sum::<u64>() + DEAD_BYTES
    }

    fn lacks(&self, has: &Has, now_us: u64, backup: BackupId, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        if !self.members.contains(&backup) && !self.believes_the_removed {
            return true;
        }
        if let Some(since) = self.away.get(&backup) {
            return now_us - since > AWAY_US;
        }
        has.get(&backup).is_some_and(|has| !has_blocks(has, log, blocks))
    }

    /// Whether a backup takes part and has all of these.
    fn has_all(&self, has: &Has, backup: BackupId, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        let is_there = self.members.contains(&backup) && !self.away.contains_key(&backup);
        is_there && has.get(&backup).is_some_and(|has| has_blocks(has, log, blocks))
    }

    /// Who is away. Done also while something is rebuilt: a log to which nothing is written would not notice.
    fn look_at_nodes(&mut self, known: &ClusterState, copies: &Copies, now_us: u64) {
        self.members = known.nodes().keys().copied().collect();
        self.away.retain(|node, _| self.members.contains(node));
        for log in copies.all() {
            let removed = log.state().1.backups.into_iter().filter(|backup| !self.members.contains(backup));
            removed.for_each(|backup| log.broken(backup, "it was given up".into()));
        }
        for (number, of) in known.nodes() {
            if of.is_live(Roles::BACKUP) {
                self.away.remove(number);
                continue;
            }
            self.away.entry(*number).or_insert(now_us);
            for log in copies.all().iter().filter(|log| log.state().1.backups.contains(number)) {
                log.broken(*number, "the coordinators have fenced it".into());
            }
        }
    }

    /// Copies what is to be, of all logs of a node.
    fn turn(&mut self, (known, has, now_us): (&ClusterState, &Has, u64), log: &Log, copies: &Copies, node: u32) {
        if let Some(given) = self.given.take_if(|given| given.log.behind().durable_through() >= given.last) {
            for segment in given.segments {
                given.log.copied_again(segment, given.since);
                self.copied.insert(segment);
            }
        }
        for (id, of) in (0..).map(|at| copies.id(at)).zip(&copies.all()) {
            if self.given.is_some() {
                break;
            }
            let wanted =
                of.to_copy_again(SEGMENTS, &self.never, &|backup, blocks| self.lacks(has, now_us, backup, id, blocks));
            self.given = self.give(&wanted, log, of);
        }
        self.look_at_offers(known, node);
        if self.given.is_none() && !self.has_copied_returned {
            self.copy_returned((known, has, now_us), log, copies, node);
        }
    }

    fn give(&mut self, wanted: &[SegmentId], log: &Log, of: &Arc<ReplicatedLog>) -> Option<Given> {
        let mut given = Given { log: of.clone(), segments: Vec::new(), since: of.next_block(), last: 0 };
        for segment in wanted {
            let before = &mut |first, ticket, _| {
                given.note(first, ticket);
                true
            };
            match log.copy_again_in_order(*segment, &*of.behind(), before) {
                CopiedAgain::Given(ticket, _) => given.note(*segment, ticket),
                CopiedAgain::Later | CopiedAgain::Behind(_) => {}
                CopiedAgain::Gone => {
                    of.segment_gone(*segment);
                    self.copied.insert(*segment);
                }
                CopiedAgain::Never => drop(self.never.insert(*segment)),
            }
        }
        (!given.segments.is_empty()).then_some(given)
    }

    fn copy_returned(
        &mut self,
        (known, has, now_us): (&ClusterState, &Has, u64),
        log: &Log,
        copies: &Copies,
        node: u32,
    ) {
        let is_due = now_us - self.began_us > OLD_LOGS_US;
        let is_late = now_us - self.began_us > AWAY_US;
        let mut lacking = self.may_lack_copies || (is_late && known.has_open_end(node));
        for ended in ended_logs(known).iter().filter(|ended| ended.log.node == node) {
            let nexts = ended.views.iter().skip(1).map(|view| view.first).chain([ended.end + 1]);
            for (view, next) in ended.views.iter().zip(nexts) {
                let (blocks, last) = (view.first..=next - 1, next - 1..=next - 1);
                let is_unshown = !ended.at_all && next == ended.end + 1;
                let lacks = |backup: &BackupId| {
                    let lacks = |blocks| self.lacks(has, now_us, *backup, ended.log, blocks);
                    (is_unshown && lacks(&last)) || (is_late && lacks(&blocks))
                };
                lacking |= !blocks.is_empty() && view.backups.iter().any(lacks);
            }
        }
        let wanted = lacking || self.is_copying || (is_due && self.is_mostly_dead(known, has, log, node));
        if !wanted {
            return;
        }
        self.is_copying = true;
        let mut left = self.returned_segments(log);
        left.retain(|segment| !self.copied.contains(segment) && !self.never.contains(segment));
        let log_of = |segment: &SegmentId| {
            let stream = log.stream(segment.stream)?;
            let replication = stream.streamlet(segment.streamlet)?.copies();
            let options = StreamOptions { replication, ..(*stream.options()).clone() };
            (replication > 1).then(|| copies.log_of(segment.stream, segment.streamlet, &options))
        };
        let Some(last) = left.last() else {
            self.has_copied_returned = true;
            return;
        };
        let Some(of) = log_of(last) else { return };
        left.retain(|segment| log_of(segment).is_some_and(|other| Arc::ptr_eq(&other, &of)));
        left.truncate(SEGMENTS);
        self.given = self.give(&left, log, &of);
    }
}

impl World {
    /// A turn of a node's copier.
    pub(super) fn copy_again(&mut self, node: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        let mut has = Has::new();
        for other in (1..=self.count()).filter(|other| self.cuts.is_whole(node, *other, now_us)) {
            let of = self.node(other);
            let running = of.process.as_ref().filter(|_| of.frozen_until_us <= now_us);
            let Some(running) = running.and_then(|process| process.running.as_ref()) else { continue };
            let list = running.backup.list(&ListReplicas { after: None, limit: 0 });
            assert!(!list.more, "so many logs do not fit into a run");
            let of_log = |blocks: &[kera_protocol::BlockRange]| blocks.iter().map(|of| of.first..=of.last).collect();
            has.insert(other, list.replicas.iter().map(|of| (of.log, (of_log(&of.blocks), of.bytes))).collect());
        }
        let known = self.node(node).known.clone();
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        let is_rebuilding = running.recovery.is_busy();
        let state = lock(&known);
        let (log, copies) = (running.log.clone(), running.copies.clone());
        running.copier.look_at_nodes(&state, &copies, now_us);
        for (id, of) in (0..).map(|at| copies.id(at)).zip(&copies.all()) {
            let held = of.held();
            for (backup, has) in &has {
                of.came_back(*backup, &held, has.get(&id).map_or(&[][..], |(ranges, _)| ranges));
            }
            let copier = &running.copier;
            of.look_at_copies(&|backup, blocks| copier.has_all(&has, backup, id, blocks), &|backup, blocks| {
                copier.lacks(&has, now_us, backup, id, blocks)
            });
        }
        if !is_rebuilding {
            running.copier.turn((&*state, &has, now_us), &log, &copies, node);
        }
        Ok(())
    }

    /// Logs of nodes that have fewer backups than they are to have, or blocks with fewer copies, although there are machines for all of them.
    pub(super) fn without_all_copies(&self) -> Vec<String> {
        let state = &self.coordinators.state;
        let live = state.nodes().values().filter(|node| node.is_live(Roles::BACKUP)).count() as u64;
        let mut lacking = Vec::new();
        for node in &self.nodes {
            let Some(running) = node.process.as_ref().and_then(|process| process.running.as_ref()) else { continue };
            for (log, copies) in running.copies.all_wanted() {
                let (stats, wanted, (_, view)) = (log.stats(), live.min(copies.into()), log.state());
                let of = format!("a log of node {}", node.number);
                if stats.copies < wanted {
                    lacking.push(format!("{of} has fewer backups than {wanted} copies need: {view:?}"));
                } else if stats.under_replicated > 0 && wanted == u64::from(copies) {
                    let blocks = stats.under_replicated;
                    lacking.push(format!("{blocks} blocks of {of} lack some of their {wanted} copies in {view:?}"));
                }
            }
        }
        lacking
    }

    /// Logs of live nodes that have blocks in need of copies whose backup is gone for good.
    pub(super) fn without_copies(&self) -> Vec<String> {
        let state = &self.coordinators.state;
        let gone = |backup: &&u32| self.node(**backup).is_gone;
        let live = state.logs().iter().filter(|(name, _)| state.is_live(name.node, name.epoch));
        let views = live.flat_map(|(name, log)| log.views.iter().map(move |view| (name, view)));
        let lacking = views.filter_map(|(name, view)| Some((name, view, view.backups.iter().find(gone)?)));
        let told =
            |(name, view, backup)| format!("{name:?} has {view:?}, and node {backup} is gone: it is not copied again");
        lacking.map(told).collect()
    }

    /// Logs of live nodes of which two copies stand in one rack although there is a backup in one that has none of them.
    pub(super) fn crowded(&self) -> Vec<String> {
        let (state, count) = (&self.coordinators.state, self.founded);
        let backups =
            (1..=self.count()).filter(|node| state.node(*node).is_some_and(|known| known.is_live(Roles::BACKUP)));
        let racks: BTreeSet<String> = backups.map(|node| rack_of(node, count)).collect();
        let mut crowded = Vec::new();
        for (name, log) in state.logs().iter().filter(|(name, _)| state.is_live(name.node, name.epoch)) {
            let Some(view) = log.views.last() else { continue };
            let used: BTreeSet<String> =
                view.backups.iter().chain([&name.node]).map(|node| rack_of(*node, count)).collect();
            let is_spread = used.len() > view.backups.len() || racks.iter().all(|rack| used.contains(rack));
            if !racks.contains("") && !is_spread {
                crowded.push(format!("{name:?} has {view:?}, with two in one rack"));
            }
        }
        crowded
    }

    /// Logs of lost nodes that are kept for what is in them, although a backup does not have their last blocks or is gone with them.
    pub(super) fn without_last_blocks(&self) -> Vec<String> {
        let mut lacking = Vec::new();
        for (name, log) in self.coordinators.state.lost_logs().filter(|(_, log)| !log.ends_at_all()) {
            let (Some(end), Some(view)) = (log.end, log.views.last()) else { continue };
            let id = LogId::from(name);
            let lacks = |backup: &&u32| {
                let running = self.node(**backup).process.as_ref().and_then(|process| process.running.as_ref());
                let has = running.map(|running| running.backup.end_now(id, view.first).through);
                self.node(**backup).is_gone || has.is_some_and(|has| has < end)
            };
            let of_log = view.backups.iter().filter(lacks).filter(|_| end >= view.first);
            lacking.extend(of_log.map(|backup| {
                format!("{name} ends at block {end}, which node {backup} does not have: it is not copied again")
            }));
        }
        lacking
    }
}
