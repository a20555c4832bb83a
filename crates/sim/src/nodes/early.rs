//! What producers of asynchronous streams were told of, and what may be missing of it: by `docs/decisions/0024-asynchronous-replication.md`.
//!
//! An acknowledgement says that a chunk is in its owner's memory. It is as good as any other as long as that owner comes back with what it had.
//! When another one takes over it goes on at some ordinal of each lane, and what was acknowledged from there on is gone: that may only be
//! what had not all its copies, was read by nobody, and was acknowledged within a second of what is gone first. It never comes back.

use std::collections::BTreeMap;

use kera_coordinator::cluster::Owned;
use kera_format::cluster::OwnerReason;
use kera_format::{StreamId, level};
use kera_log::Tenure;

use super::client::{Around, Told};
use super::plan::Kind;
use super::producer::EARLY;
use super::world::World;
use crate::cluster::truth::{Place, Truth, Violation, Written};

/// What is acknowledged without copies is at most so old, by the clock of its owner, in microseconds: the setting, the time for which an answer may
/// wait for another chunk of its request, and the time until logs look.
const LAG_US_MAX: u64 = 1_000_000 + 1_000 * (EARLY.1 as u64) + 100_000;

/// When an answer left its node.
#[derive(Clone, Copy, Default)]
pub(super) struct Left {
    pub(super) at_us: u64,
    /// The same without the time in which the node's process stood still.
    pub(super) running_us: u64,
}

/// An owner that took a lane over, and where it goes on.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) owner_epoch: u32,
    pub(super) ordinal: u64,
    pub(super) node: u32,
    pub(super) at_us: u64,
    /// The owner before is lost. Otherwise there is nothing that may be missing.
    pub(super) may_lose: bool,
}

/// A chunk that a producer was told of.
pub(super) struct Chunk<'a> {
    pub(super) owner_epoch: u32,
    pub(super) base: u64,
    pub(super) records: &'a [Written],
    /// Who said so, and when.
    pub(super) node: u32,
    pub(super) left: Left,
}

struct Acknowledged {
    owner_epoch: u32,
    count: u64,
    left: Left,
}

#[derive(Default)]
struct Lane {
    /// By the ordinal of the first record.
    chunks: BTreeMap<u64, Acknowledged>,
    /// By owner epoch, up to which ordinal all copies were there.
    copied: BTreeMap<u32, u64>,
    /// Up to which ordinal somebody has read.
    read: u64,
    /// By owner epoch.
    cuts: BTreeMap<u32, Cut>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Early {
    lanes: BTreeMap<Place, Lane>,
    /// Between when and when what is gone was acknowledged, by streamlet and owner epoch, on the owner's clock.
    gone: BTreeMap<(u64, u32, u32), (u64, u64)>,
    /// All copies are there: nothing may be missing any more, whatever happens.
    pub(super) is_settled: bool,
}

fn violation<T>(message: String) -> Result<T, Violation> {
    Err(Violation(message))
}

impl Early {
    /// All copies of a lane are there up to an ordinal, as its owner in an epoch knows.
    pub(super) fn copied(&mut self, place: Place, owner_epoch: u32, ordinal: u64) -> Result<(), Violation> {
        let lane = self.lanes.entry(place).or_default();
        let known = lane.copied.entry(owner_epoch).or_default();
        if *known >= ordinal {
            return Ok(());
        }
        *known = ordinal;
        match lane.cuts.range(owner_epoch + 1..).find(|(_, cut)| cut.ordinal < ordinal) {
            Some((later, cut)) => violation(format!(
                "{place}: owner epoch {owner_epoch} has all copies up to {ordinal}, and owner epoch {later} goes on at {}",
                cut.ordinal
            )),
            None => Ok(()),
        }
    }

    /// Whether an owner was seen to go on with a lane in one of these owner epochs.
    fn went_on(&self, place: Place, epochs: std::ops::Range<u32>) -> bool {
        self.lanes.get(&place).is_some_and(|lane| lane.cuts.range(epochs).next().is_some())
    }

    /// Somebody has read a lane up to an ordinal.
    pub(super) fn read(&mut self, place: Place, ordinal: u64) {
        let lane = self.lanes.entry(place).or_default();
        lane.read = lane.read.max(ordinal);
    }

    /// A producer was told of a chunk: whether it is there. If its owner did not know yet that it is none any more it may be gone already.
    fn acknowledged(&mut self, place: Place, chunk: &Chunk<'_>) -> Result<bool, Violation> {
        let (base, owner_epoch, count) = (chunk.base, chunk.owner_epoch, chunk.records.len() as u64);
        let lane = self.lanes.entry(place).or_default();
        let behind = lane.cuts.range(owner_epoch + 1..).find(|(_, cut)| cut.ordinal < base + count);
        let Some((later, cut)) = behind else {
            lane.chunks.insert(base, Acknowledged { owner_epoch, count, left: chunk.left });
            return Ok(true);
        };
        let what = format!("{place}: records {base} to {} of owner epoch {owner_epoch}", base + count);
        if base < cut.ordinal {
            return violation(format!("{what} are cut by owner epoch {later} at {}", cut.ordinal));
        }
        if chunk.node == cut.node && chunk.left.at_us >= cut.at_us {
            return violation(format!(
                "{what} were acknowledged by node {}, which goes on at {} in owner epoch {later}",
                cut.node, cut.ordinal
            ));
        }
        self.is_gone(place, owner_epoch, chunk.left)?;
        Ok(false)
    }

    /// What was acknowledged is gone, as it may be: all such of a streamlet was within the time for which copies may be missing.
    fn is_gone(&mut self, place: Place, owner_epoch: u32, left: Left) -> Result<(), Violation> {
        let of = (place.stream, place.streamlet, owner_epoch);
        let (first, last) = self.gone.entry(of).or_insert((left.running_us, left.running_us));
        (*first, *last) = ((*first).min(left.running_us), (*last).max(left.running_us));
        match *last - *first {
            0..LAG_US_MAX => Ok(()),
            us => violation(format!(
                "{place}: owner epoch {owner_epoch} acknowledged for {us} us what had no copies and is gone"
            )),
        }
    }

    /// An owner goes on with a lane: what of that is gone which was acknowledged, by the ordinals of chunks, with their numbers of records.
    fn cut(&mut self, place: Place, cut: Cut) -> Result<Vec<(u64, u64)>, Violation> {
        let Cut { owner_epoch, ordinal, node, .. } = cut;
        let lane = self.lanes.entry(place).or_default();
        if lane.cuts.insert(owner_epoch, cut).is_some() || lane.cuts.range(owner_epoch + 1..).next().is_some() {
            // It is owned by somebody else by now, and this one does not know it yet.
            return Ok(Vec::new());
        }
        let here = format!("{place}: node {node} goes on at {ordinal} in owner epoch {owner_epoch}");
        if let Some((epoch, copied)) = lane.copied.range(..owner_epoch).find(|(_, copied)| **copied > ordinal) {
            return violation(format!("{here}, and all copies were there up to {copied} in owner epoch {epoch}"));
        }
        if lane.read > ordinal {
            return violation(format!("{here}, and somebody has read it up to {}", lane.read));
        }
        let before = lane.chunks.range(..ordinal).next_back();
        if let Some((base, chunk)) = before.filter(|(base, chunk)| *base + chunk.count > ordinal) {
            return violation(format!("{here}, in the middle of the {} records from {base} on", chunk.count));
        }
        let behind = lane.chunks.range(ordinal..).filter(|(_, chunk)| chunk.owner_epoch < owner_epoch);
        let gone: Vec<(u64, u64)> = behind.map(|(base, chunk)| (*base, chunk.count)).collect();
        if gone.is_empty() {
            return Ok(gone);
        }
        if !cut.may_lose || self.is_settled {
            let records: u64 = gone.iter().map(|(_, count)| count).sum();
            return violation(format!("{here}, without {records} acknowledged records that nothing has taken"));
        }
        let gone_chunks: Vec<Acknowledged> = gone.iter().filter_map(|(base, _)| lane.chunks.remove(base)).collect();
        for chunk in gone_chunks {
            self.is_gone(place, chunk.owner_epoch, chunk.left)?;
        }
        Ok(gone)
    }
}

impl Around<'_> {
    /// A producer of an asynchronous stream was told of a chunk: whether it is there.
    pub(super) fn told_early(&mut self, place: Place, chunk: &Chunk<'_>) -> Result<bool, Violation> {
        self.truth.checked();
        let is_there = self.told.early.acknowledged(place, chunk)?;
        if !is_there {
            *self.told.did.entry("acknowledged although it was gone").or_default() += 1;
            let owner =
                self.owners.coordinators.owner_of_epoch(StreamId(place.stream), place.streamlet, chunk.owner_epoch);
            if owner.is_none_or(|owner| owner.node != chunk.node) {
                let (base, epoch) = (chunk.base, chunk.owner_epoch);
                return violation(format!(
                    "{place}: node {} says that {base} is there since owner epoch {epoch}, and it is gone",
                    chunk.node
                ));
            }
            self.truth.never(place, chunk.records);
        }
        Ok(is_there)
    }
}

impl World {
    /// Lanes of asynchronous streams that a node owns have all copies up to somewhere.
    pub(super) fn look_at_copied(&mut self, node: u32) -> Result<(), Violation> {
        if self.plan.kind != Kind::Async {
            return Ok(());
        }
        let Some(running) = self.nodes[node as usize - 1].running() else { return Ok(()) };
        for stream in running.log.streams().iter().filter(|stream| !stream.is_system()) {
            for place in stream.streamlets().filter(|place| place.tenure() == Tenure::Here) {
                for lane in place.lanes() {
                    let at = Place { stream: stream.id().0, streamlet: place.id().0, lane: lane.id().0 };
                    self.told.early.copied(at, place.owner_epoch(), lane.durable_ordinal())?;
                }
            }
        }
        Ok(())
    }

    /// A node that takes over may have opened streamlets of asynchronous streams: what is gone of them.
    pub(super) fn look_at_taken(&mut self, node: u32) -> Result<(), Violation> {
        let Some(running) = self.nodes[node as usize - 1].running() else { return Ok(()) };
        let taking = running.recovery.taking.clone();
        self.look_at_opened(node, &taking)
    }

    /// The same of these.
    pub(super) fn look_at_opened(&mut self, node: u32, opened: &[Owned]) -> Result<(), Violation> {
        if self.plan.kind != Kind::Async {
            return Ok(());
        }
        let at_us = self.now_us();
        let Some(running) = self.nodes[node as usize - 1].running() else { return Ok(()) };
        let mut cuts = Vec::new();
        for (stream, streamlet, owner_epoch) in opened {
            let Some(found) = running.log.stream(*stream) else { continue };
            let Some(place) = found.streamlet(*streamlet) else { continue };
            if place.tenure() != Tenure::Here || place.owner_epoch() != *owner_epoch {
                continue;
            }
            let reason = self.coordinators.reason_of(*stream, streamlet.0, *owner_epoch);
            for lane in 0..found.options().lanes {
                let used = place.lanes().find(|used| used.id().0 == lane);
                let ordinal = used.map_or(0, |used| used.stats().next_ordinal);
                let of = Place { stream: stream.0, streamlet: streamlet.0, lane };
                let may_lose = match reason {
                    // What was under way was cut at its start by who gets it back, for others had taken it over.
                    Some(reason) => matches!(reason, OwnerReason::Recovered | OwnerReason::GivenBack),
                    // It comes back before it has rebuilt what it took over, and takes it over again: with all that it has acknowledged since, if it had opened it.
                    None => {
                        let since = self.coordinators.changed_before(*stream, streamlet.0, *owner_epoch);
                        let had_opened = since.is_some_and(|since| self.told.early.went_on(of, since..*owner_epoch));
                        !had_opened || self.plan.level < level::OWN_LIVES
                    }
                };
                cuts.push((of, Cut { owner_epoch: *owner_epoch, ordinal, node, at_us, may_lose }));
            }
        }
        cuts.into_iter().try_for_each(|(place, cut)| self.told.cut(&mut self.truth, place, cut))
    }
}

impl Told {
    /// An owner goes on with a lane of an asynchronous stream.
    pub(super) fn cut(&mut self, truth: &mut Truth, place: Place, cut: Cut) -> Result<(), Violation> {
        truth.checked();
        for (base, count) in self.early.cut(place, cut)? {
            *self.did.entry("chunks gone that were acknowledged").or_default() += 1;
            truth.forget(place, base..base + count);
            self.no_epoch(place, base);
        }
        Ok(())
    }
}
