//! A node is away while nobody can open what was taken over from it, and whoever took that over is killed: what it takes for an owner that was started again to give something back
//! (`docs/replication.md`, "Who gives it back was started again"). By chance that hardly ever comes together.
//!
//! 1. A node is killed. Others are given what it owned.
//! 2. No backup gives anything of its logs: from the beginning, or from when the first of those others is killed on. So some have opened what they were given, and have told producers and
//!    readers of it, and some have not.
//! 3. Those others are killed one after the other, and are back before anybody takes them for lost. Whoever leads is not: what it was given goes back as well, from its first life.
//! 4. The node is back, with all that it had unless something else has taken that.
//! 5. When nobody rebuilds anything of it any more, or after a while, backups give again what they have. Nothing is lost by all that.

use std::collections::BTreeSet;

use kera_format::cluster::{ClusterEntry, LogName};
use kera_format::{StreamId, StreamletId};

use super::recovering::Question;
use super::world::{Event, World};

/// The node is back after this in any case, in microseconds, and after so long backups give again what they have.
const BACK_US: u64 = 4_000_000;
const LASTS_US: u64 = 7_000_000;

/// See the module.
pub(super) struct Away {
    node: u32,
    /// Its logs of lives up to this one give nothing.
    epoch: u32,
    /// What it owned when it was killed.
    owned: Vec<(StreamId, u32)>,
    /// Of these, what somebody had opened who was killed since.
    opened: BTreeSet<(StreamId, u32)>,
    /// Backups give nothing of its logs.
    is_unread: bool,
    /// Somebody was given some of what it owned.
    is_taken: bool,
    /// Who was killed since.
    killed: BTreeSet<u32>,
    /// It is on its way back.
    is_back: bool,
    until_us: u64,
}

impl World {
    /// A node is killed, and whoever takes over from it will not be able to open what it had.
    pub(super) fn send_away(&mut self, node: u32) -> bool {
        let (now_us, epoch) = (self.now_us(), self.node(node).epoch);
        let stands_still = now_us < self.node(node).frozen_until_us;
        if self.away.is_some() || self.plan.has_one_copy() || stands_still || !self.takes_part(node) {
            return false;
        }
        let owned = self.whole_of(node);
        if owned.is_empty() {
            return false;
        }
        self.away = Some(Away {
            node,
            epoch,
            owned,
            opened: BTreeSet::new(),
            is_unread: self.below(2) == 0,
            is_taken: false,
            killed: BTreeSet::new(),
            is_back: false,
            until_us: now_us + LASTS_US,
        });
        self.kill(node, Some(BACK_US));
        self.schedule.after(1_000, Event::Away);
        true
    }

    /// What a node owns and does not rebuild.
    fn whole_of(&self, node: u32) -> Vec<(StreamId, u32)> {
        let state = &self.coordinators.state;
        let all = state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(move |at| (info.id, at)));
        let is_its = |(stream, at): &(StreamId, u32)| {
            state.owner(*stream, *at).is_some_and(|owner| owner.node == node && !owner.rebuilding)
        };
        all.filter(is_its).collect()
    }

    /// Whether a node runs, and nobody has taken it for lost.
    fn takes_part(&self, node: u32) -> bool {
        let of = self.node(node);
        let process = of.process.as_ref();
        let runs = process.is_some_and(|process| process.running.is_some() && process.stopping.is_none());
        runs && self.coordinators.state.is_live(node, of.epoch)
    }

    /// It is looked how far that is.
    pub(super) fn look_at_away(&mut self) {
        let Some(mut away) = self.away.take() else { return };
        let takers = self.takers(&away);
        let is_over = away.is_back && takers.is_empty();
        if is_over || !self.is_troubled || self.now_us() > away.until_us {
            return;
        }
        away.is_taken |= !takers.is_empty();
        self.go_on_away(&mut away, &takers);
        self.away = Some(away);
        let pause_us = 1_000 + self.below(10_000);
        self.schedule.after(pause_us, Event::Away);
    }

    /// Who rebuilds what it owned.
    fn takers(&self, away: &Away) -> BTreeSet<u32> {
        let owners = away.owned.iter().filter_map(|(stream, at)| self.coordinators.state.owner(*stream, *at));
        owners.filter(|owner| owner.rebuilding && owner.node != away.node).map(|owner| owner.node).collect()
    }

    fn go_on_away(&mut self, away: &mut Away, takers: &BTreeSet<u32>) {
        let is_left = |taker: &u32| !away.killed.contains(taker) && self.coordinators.leader != Some(*taker);
        let next = takers.iter().copied().find(is_left);
        // One after the other: coordinators want a majority.
        let are_there = takers.union(&away.killed).all(|other| self.takes_part(*other));
        if away.is_back || !are_there {
            return;
        }
        match next {
            Some(taker) if self.below(3) == 0 => {
                let opened = self.opened_by(taker, away);
                away.opened.extend(opened);
                away.killed.insert(taker);
                away.is_unread = true;
                *self.events_of.entry("killed while it took over").or_default() += 1;
                let back_us = 20_000 + self.below(150_000);
                self.kill(taker, Some(back_us));
            }
            None if away.is_taken => {
                away.is_back = true;
                let back_us = 50_000 + self.below(500_000);
                self.schedule.after(back_us, Event::Start(away.node));
            }
            _ => {}
        }
    }

    /// What of that a node has opened.
    fn opened_by(&self, taker: u32, away: &Away) -> Vec<(StreamId, u32)> {
        let running = self.node(taker).process.as_ref().and_then(|process| process.running.as_ref());
        let is_open = |(stream, at): &&(StreamId, u32)| {
            let owner = self.coordinators.state.owner(*stream, *at).filter(|owner| owner.node == taker);
            let broker = running.map(|running| &running.broker);
            let opened = broker.zip(owner);
            opened.is_some_and(|(broker, owner)| broker.is_of_epoch(*stream, StreamletId(*at), owner.owner_epoch))
        };
        away.owned.iter().filter(is_open).copied().collect()
    }

    /// Why no backup gives anything of these blocks.
    pub(super) fn why_away(&self, question: &Question) -> Option<String> {
        let (log, ..) = question.blocks();
        let log = LogName::from(log);
        let is_its = |away: &&Away| away.is_unread && log.node == away.node && log.epoch <= away.epoch;
        let away = self.away.as_ref().filter(|_| self.is_troubled).filter(is_its);
        away.map(|_| "it gives nothing of this log for now".to_owned())
    }

    /// Whether somebody had opened, and was killed since, what a streamlet's owner gives back with this entry.
    pub(super) fn had_been_opened(&self, entry: &ClusterEntry) -> bool {
        let ClusterEntry::OwnerChanged { stream, first, .. } = entry else { return false };
        self.away.as_ref().is_some_and(|away| away.opened.contains(&(*stream, *first)))
    }
}
