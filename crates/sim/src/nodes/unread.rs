//! Blocks that nobody gives although all live that should have them, and a person who has one streamlet after the other go on without: `docs/replication.md`, "One streamlet goes on
//! without".
//!
//! A machine burns, and the disks of all backups of one view of one of its logs lose what they have of that view. They say so when they are asked, at once or only when blocks are read. Nobody
//! may give these blocks up for all, for the backups live; a person says for each streamlet that waits, after a while and one at a time, that it goes on without. That person errs now and then, and
//! names a view first that reads back.
//!
//! What is lost by that follows from the rules: what of the streamlet is in a view that nobody has. Of a view that reads back nothing, as long as the owner stays that it was said to: it asks before it goes
//! on without. Owners after that one do not ask. A view whose backups were silent when it was asked for, or late, may be left out as well, for nobody can tell what they have; but not for the silence
//! of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};
use kera_protocol::AcceptStreamletLoss;

use super::coordinators::Command;
use super::faults::Fault;
use super::losses::STOPPED_US;
use super::plan::Kind;
use super::recovering::{Question, Reply};
use super::world::World;

/// A view of a log, by its place among all of them.
type OfView = (LogName, usize);
/// A streamlet, and a view that was given up for it, by its number from 1.
pub(super) type ForOne = (StreamId, u32, LogName, u32);

/// What was given up for a streamlet, as long as that counts.
struct Given {
    /// In which owner epoch that was said.
    owner_epoch: u32,
    /// Somebody who has it was asked for it by the owner since, and did not answer.
    is_late: bool,
    /// The streamlet may go on without.
    may_be_gone: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Unread {
    is_on: bool,
    /// What disks have lost, and whether those backups still say what lanes have in it.
    lost: BTreeMap<OfView, bool>,
    given: BTreeMap<ForOne, Given>,
    /// Since when a person has known of a log that it is over.
    since_us: BTreeMap<LogName, u64>,
}

impl Unread {
    pub(super) fn new(only: &[Fault]) -> Unread {
        Unread { is_on: only.contains(&Fault::BlocksLost), ..Unread::default() }
    }
}

impl World {
    /// A machine burns that is no coordinator, and the disks of all that have a view of one of its logs lose that.
    pub(super) fn lose_blocks(&mut self) -> bool {
        let views = self.may_lose_blocks();
        if views.is_empty() {
            return false;
        }
        let (log, at) = views[self.below(views.len() as u64) as usize];
        let says_lanes = self.below(2) == 0;
        if !self.may_lose_disk(log.node) {
            return false;
        }
        let backups = self.coordinators.state.logs()[&log].views[at].backups.clone();
        self.lossy.extend(backups.into_iter().map(|backup| (backup, log, at)));
        self.unread.lost.insert((log, at), says_lanes);
        self.destroy(log.node)
    }

    /// Views with something in them, of logs of live nodes that can be spared.
    fn may_lose_blocks(&self) -> Vec<OfView> {
        if self.plan.kind != Kind::Usual || self.plan.has_one_copy() {
            return Vec::new();
        }
        let state = &self.coordinators.state;
        let may_burn = |node: u32| !self.node(node).is_gone && !self.voters.contains(&node) && self.is_spare(node);
        let own = state.logs().iter().filter(|(log, _)| state.is_live(log.node, log.epoch) && may_burn(log.node));
        let views = own.flat_map(|(log, of)| (0..).zip(&of.views).map(move |(at, view)| ((*log, at), view)));
        let has_some = |of: OfView| self.blocks_of(of).is_some_and(|blocks| self.told.losses.has_parts(of.0, blocks));
        views.filter(|(of, view)| !view.backups.is_empty() && has_some(*of)).map(|(of, _)| of).collect()
    }

    /// The blocks of a view, up to wherever the log ends; nothing if it has none.
    fn blocks_of(&self, (log, at): OfView) -> Option<RangeInclusive<u64>> {
        let of = self.coordinators.state.logs().get(&log)?;
        let next = of.views.get(at + 1).map(|next| next.first.saturating_sub(1));
        let (first, last) = (of.views.get(at)?.first, next.into_iter().chain(of.end).min().unwrap_or(u64::MAX));
        (first <= last).then_some(first..=last)
    }

    /// The view that a block of a log is in.
    fn view_of(&self, log: LogName, block: u64) -> Option<OfView> {
        let views = &self.coordinators.state.logs().get(&log)?.views;
        Some((log, views.iter().rposition(|view| view.first <= block)?))
    }

    /// Why a backup does not answer, if it is asked for blocks that its disk has lost. One that says what lanes have in them shows the last one, too: it would not be believed otherwise.
    pub(super) fn why_unread(&self, question: &Question) -> Option<String> {
        let (log, first, through) = question.blocks();
        let of = self.view_of(LogName::from(log), first)?;
        let says_lanes = *self.unread.lost.get(&of)?;
        let is_last = || first == through && self.blocks_of(of).is_some_and(|blocks| *blocks.end() == first);
        let is_shown = says_lanes && (matches!(question, Question::Lanes(_)) || is_last());
        (!is_shown).then(|| "its disk has lost these blocks".to_owned())
    }

    /// An owner was told something of the blocks that it has asked a backup for last, or nothing.
    pub(super) fn heard_of_blocks(
        &mut self,
        node: u32,
        which: usize,
        question: Option<(u32, LogId, u64)>,
        reply: &Reply,
    ) {
        let is_nothing = which < 2 && matches!(reply, Reply::Lanes(Err(_)) | Reply::Blocks(Err(_)));
        let Some((backup, log, first)) = question.filter(|_| is_nothing && !self.unread.given.is_empty()) else {
            return;
        };
        let Some(of) = self.view_of(LogName::from(log), first) else { return };
        if self.node(backup).is_gone || self.unread.lost.contains_key(&of) {
            return;
        }
        let state = &self.coordinators.state;
        for ((stream, at, log, view), given) in &mut self.unread.given {
            let is_it = (*log, *view as usize - 1) == of;
            given.is_late |= is_it && state.owner(*stream, *at).is_some_and(|owner| owner.node == node);
        }
    }

    /// A person looks for streamlets that wait for what nobody has.
    pub(super) fn look_at_unread(&mut self) {
        if !self.unread.is_on {
            return;
        }
        let now_us = self.now_us();
        let lost: BTreeSet<LogName> = self.coordinators.state.lost_logs().map(|(log, _)| log).collect();
        self.unread.since_us.retain(|log, _| lost.contains(log));
        for log in lost {
            self.unread.since_us.entry(log).or_insert(now_us);
        }
        let asked = self.goes_on_next();
        if let Some(asked) = asked
            && let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some())
        {
            self.ask(at, Command::AcceptStreamletLoss(asked));
        }
    }

    /// What a person says: which streamlet goes on without which blocks. The first that is said of one may be wrong.
    fn goes_on_next(&self) -> Option<AcceptStreamletLoss> {
        let now_us = self.now_us();
        let is_known = |log: &LogName| self.unread.since_us.get(log).is_some_and(|since| now_us - since > STOPPED_US);
        let lost = self.unread.lost.keys().filter(|(log, _)| is_known(log));
        let waiting: Vec<(StreamId, u32, OfView)> =
            lost.flat_map(|of| self.rebuilt().map(move |(stream, at)| (stream, at, *of))).collect();
        let asked: Vec<AcceptStreamletLoss> = waiting.into_iter().filter_map(|of| self.may_go_on(of)).collect();
        if asked.is_empty() {
            return None;
        }
        let right = &asked[self.below(asked.len() as u64) as usize];
        let wrong = self.wrong_for((right.stream, right.streamlet.0));
        if wrong.is_empty() || self.below(2) == 0 {
            return Some(right.clone());
        }
        Some(wrong[self.below(wrong.len() as u64) as usize].clone())
    }

    /// Streamlets that are being rebuilt.
    fn rebuilt(&self) -> impl Iterator<Item = (StreamId, u32)> {
        let state = &self.coordinators.state;
        let all = state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(move |at| (info.id, at)));
        all.filter(move |(stream, at)| state.is_rebuilt(*stream, *at))
    }

    /// What a person says so that a streamlet goes on without a view; nothing if the rules have it that it does not, or does already.
    fn may_go_on(&self, (stream, at, of): (StreamId, u32, OfView)) -> Option<AcceptStreamletLoss> {
        let (state, log) = (&self.coordinators.state, of.0);
        let (blocks, known) = (self.blocks_of(of)?, state.logs().get(&log)?);
        let had = known.views[of.1].backups.iter().chain([&log.node]);
        let is_lost = |node: &&u32| state.node(**node).is_some_and(|known| known.fenced);
        let gone = had.filter(is_lost).copied().collect();
        let (log, first, last, streamlet) = (LogId::from(log), *blocks.start(), *blocks.end(), StreamletId(at));
        let asked = AcceptStreamletLoss { stream, streamlet, log, first, last, gone };
        let entries = state.plan_accept_streamlet_loss(&asked);
        entries.is_ok_and(|entries| !entries.is_empty()).then_some(asked)
    }

    /// The same of views with something of a streamlet that all their backups have, or may have, if nothing was given up for it yet.
    fn wrong_for(&self, (stream, at): (StreamId, u32)) -> Vec<AcceptStreamletLoss> {
        let state = &self.coordinators.state;
        if state.given_up_for(stream, at).next().is_some() {
            return Vec::new();
        }
        let is_live = |node: &u32| state.node(*node).is_some_and(|known| !known.fenced);
        let views = state.lost_logs().flat_map(|(log, of)| (0..).zip(&of.views).map(move |(at, of)| ((log, at), of)));
        let views = views.filter(|(of, view)| view.backups.iter().all(is_live) && !self.unread.lost.contains_key(of));
        let has_some = |of: &OfView| {
            let blocks = self.blocks_of(*of);
            blocks.is_some_and(|blocks| self.told.losses.has_parts_of(of.0, blocks, (stream.0, at)))
        };
        let views = views.map(|(of, _)| of).filter(has_some);
        views.filter_map(|of| self.may_go_on((stream, at, of))).collect()
    }

    /// Notes what streamlets may go on without since this was called last.
    pub(super) fn note_given_up_for(&mut self) {
        for (of, owner_epoch) in std::mem::take(&mut self.coordinators.given_up_for) {
            *self.events_of.entry("views given up for one streamlet").or_default() += 1;
            if !self.unread.lost.contains_key(&(of.2, of.3 as usize - 1)) {
                *self.events_of.entry("views given up that read back").or_default() += 1;
            }
            self.unread.given.insert(of, Given { owner_epoch, is_late: false, may_be_gone: false });
        }
        for of in self.unread.given.keys().copied().collect::<Vec<_>>() {
            let (stream, at, log, view) = of;
            let state = &self.coordinators.state;
            if !state.given_up_for(stream, at).any(|(known, number, _)| (known, number) == (log, view)) {
                self.unread.given.remove(&of);
                continue;
            }
            let place = (log, view as usize - 1);
            let (owner, blocks) = (state.owner(stream, at), self.blocks_of(place));
            let is_lost = self.unread.lost.contains_key(&place);
            let Some(given) = self.unread.given.get_mut(&of).filter(|given| !given.may_be_gone) else { continue };
            let has_changed = owner.is_none_or(|owner| owner.owner_epoch != given.owner_epoch);
            given.may_be_gone = is_lost || has_changed || given.is_late;
            if let Some(blocks) = blocks.filter(|_| given.may_be_gone) {
                self.told.losses.given_up_for(log, blocks, (stream.0, at));
            }
        }
    }
}
