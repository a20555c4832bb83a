//! The leader's own work, as `crates/raft/src/driver.rs` does it: who is silent is fenced, logs end, streamlets get new owners. The
//! detector, the plans and the rules are the real ones.

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::cluster::{AgreedEnd, CalledOff, ClusterState, EndLooks, EndsAsked, Rates, ToldEnd};
use kera_env::Clock;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_protocol::{LogView, MoveInfo};

use super::coordinators::Command;
use super::copies::lock;
use super::network::Packet;
use super::plan::Planted;
use super::world::{Event, World};
use crate::cluster::truth::Violation;

/// Time without a leader after one was lost, at least, and as much again at most.
pub(super) const ELECTION_US: u64 = 300_000;
/// A backup that has not answered to a fence for so long is not waited for.
const FENCE_US: u64 = 500_000;
/// One that is not known to be lost is waited for so much longer.
const LIVE_US: u64 = 2_000_000;
/// Streamlets that have waited to be opened for so long have backups asked for ends once more.
const OPEN_US_MAX: u64 = 2_500_000;
/// A move that takes longer is called off.
const MOVE_US_MAX: u64 = 10_000_000;

/// How far backups have a log, by who told, and how many were asked.
type Ends = (Vec<(NodeNumber, ToldEnd)>, usize);

/// A leader that has backups fence.
pub(super) struct Fencing {
    /// It waits for nobody any more from then on.
    until_us: u64,
    /// Who has not answered is asked again: it may have been started since.
    again_us: u64,
    /// Backups that have not answered.
    asked: BTreeSet<u32>,
    /// In which epochs backups took part when they were asked.
    epochs: BTreeMap<u32, u32>,
    /// How far the others have logs, and how many were asked for each.
    told: BTreeMap<LogName, Ends>,
    /// Whether logs were asked for that have ends already.
    is_again: bool,
}

impl World {
    /// Whether a coordinator hears and is heard by a majority of them.
    pub(super) fn has_majority(&self, node: u32) -> bool {
        let heard = self.voters.iter().filter(|other| self.hears(node, **other)).count();
        self.runs(node) && !self.stands_still(node) && heard * 2 > self.voters.len()
    }

    /// Whether what a coordinator says is on the disk of another one soon, or on its own.
    pub(super) fn hears(&self, node: u32, other: u32) -> bool {
        let is_heard = other == node || self.cuts.is_whole(node, other, self.now_us());
        is_heard && self.runs(other) && !self.is_stuck(other)
    }

    fn runs(&self, node: u32) -> bool {
        self.node(node).process.is_some() && self.node(node).frozen_until_us <= self.now_us()
    }

    pub(super) fn leads(&self, node: u32) -> bool {
        self.coordinators.leader == Some(node) && self.has_majority(node)
    }

    /// Looks whether the leader is still one, or whether it is time for the next.
    pub(super) fn elect(&mut self) -> Result<(), Violation> {
        let now_us = self.now_us();
        self.schedule.after(50_000, Event::Elect);
        if let Some(leader) = self.coordinators.leader {
            if !self.voters.contains(&leader) || !self.has_majority(leader) {
                self.coordinators.leader = None;
                self.coordinators.elect_at_us = Some(now_us + ELECTION_US + self.below(ELECTION_US));
            }
            return Ok(());
        }
        if self.coordinators.elect_at_us.is_some_and(|at| now_us < at) {
            return Ok(());
        }
        let able: Vec<u32> = self.voters.iter().copied().filter(|node| self.has_majority(*node)).collect();
        if able.is_empty() {
            return Ok(());
        }
        let leader = able[self.below(able.len() as u64) as usize];
        if !self.campaign(leader)? {
            self.coordinators.elect_at_us = Some(now_us + self.below(ELECTION_US));
            return Ok(());
        }
        self.coordinators.leader = Some(leader);
        // It has, or gets with its election, all that ever became true.
        self.learn(leader, self.coordinators.index())
    }

    /// Commits what is planned and tells everybody, the leader first.
    pub(super) fn commit(
        &mut self,
        leader: u32,
        plan: impl FnOnce(&ClusterState) -> Result<Vec<ClusterEntry>, kera_coordinator::CoordinatorError>,
    ) -> Result<(), Violation> {
        let before = self.coordinators.index();
        let _ = self.coordinators.commit(plan)?;
        self.agree(leader)?;
        self.spread(leader, before)
    }

    /// Tells everybody of entries behind `before`.
    pub(super) fn spread(&mut self, leader: u32, before: usize) -> Result<(), Violation> {
        let index = self.coordinators.index();
        if index == before {
            return Ok(());
        }
        self.learn(leader, index)?;
        for node in (1..=self.count()).filter(|node| *node != leader) {
            self.tell(leader, node, Packet::Learn(index));
        }
        Ok(())
    }

    /// A turn of a coordinator: it listens, and works if it leads.
    pub(super) fn coordinate(&mut self, node: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        let known = lock(&self.node(node).known).clone_live();
        let Some(process) = &mut self.node_mut(node).process else { return Ok(()) };
        process.heard.iter().for_each(|(other, (epoch, at_us))| process.detector.heard(*other, *epoch, *at_us));
        let own = known.iter().filter(|(number, _)| *number == node);
        own.for_each(|(number, epoch)| process.detector.heard(*number, *epoch, now_us));
        let lost = process.detector.lost(&known, now_us);
        if !self.leads(node) {
            if let Some(process) = &mut self.node_mut(node).process {
                process.moves_seen.clear();
                process.called_off = CalledOff::default();
                process.balancer.forget();
                process.opening = None;
            }
            self.forget_answers(node);
            return Ok(());
        }
        let index = self.coordinators.index();
        for other in (1..=self.count()).filter(|other| *other != node) {
            self.tell(node, other, Packet::Learn(index));
        }
        for (silent, epoch) in lost {
            *self.events_of.entry("fenced").or_default() += 1;
            self.commit(node, |state| state.plan_fence(silent, epoch))?;
        }
        let mut over = self.coordinators.state.lost();
        let is_again = self.asks_again(node);
        if is_again {
            over.extend(self.coordinators.state.with_unused_ends());
        }
        let wanted = self.looks.get(&node).map_or_else(Vec::new, EndLooks::wanted);
        over.extend(&wanted);
        let pending = self.fencing.iter().filter(|((asker, ..), fencing)| *asker == node && fencing.is_again);
        over.extend(pending.map(|((_, gone, epoch), _)| (*gone, *epoch)));
        over.sort_unstable();
        over.dedup();
        for (gone, epoch) in over {
            self.end_logs(node, (gone, epoch), is_again || wanted.contains(&(gone, epoch)))?;
            let state = &self.coordinators.state;
            let is_over = state.logs_of(gone, epoch).all(|(_, log)| log.end.is_some());
            if is_over && state.to_recover(gone, epoch).next().is_some() {
                self.commit(node, |state| state.plan_recover(gone, epoch))?;
            }
        }
        if let Some(looks) = self.looks.get_mut(&node) {
            looks.looked(&self.coordinators.state, now_us);
        }
        if self.plan.planted == Some(Planted::GivesOneCopyAway) {
            self.give_away(node)?;
        }
        self.look_after_moves(node)?;
        if self.plan.balances {
            self.even_out(node)?;
        }
        match self.plan.planted {
            Some(Planted::GivesUpEarly) => self.commit(node, |state| {
                let ended = state.lost_logs().filter(|(name, log)| {
                    log.end.is_some() && state.to_recover(name.node, name.epoch).next().is_none()
                });
                Ok(ended.map(|(log, _)| ClusterEntry::LogGivenUp { log }).collect())
            })?,
            _ => self.commit(node, ClusterState::plan_give_up_lost)?,
        }
        self.commit(node, ClusterState::plan_adopt).map(|()| self.change_votes(node))
    }

    /// Moves that take too long, and those that nodes which are drained want; what is gathered, and whether numbers of copies have changed.
    fn look_after_moves(&mut self, node: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        let mut called_off = self.node(node).process.as_ref().map(|of| of.called_off.clone()).unwrap_or_default();
        for number in self.late_moves(node) {
            if let Some(of) = self.coordinators.state.moves().get(&number) {
                called_off.note(of, now_us);
            }
            *self.events_of.entry("called off").or_default() += 1;
            self.commit(node, |state| state.plan_call_off(number))?;
        }
        self.commit(node, ClusterState::plan_gather)?;
        self.commit(node, |state| state.plan_drain_moves(&called_off, now_us))?;
        if let Some(process) = &mut self.node_mut(node).process {
            process.called_off = called_off;
        }
        let now_ms = self.clock.now_ms();
        self.commit(node, |state| state.plan_say_copies(now_ms))
    }

    /// Has streamlets move to nodes that have few: nobody tells what nodes take.
    fn even_out(&mut self, leader: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        let Some(mut balancer) = self.node(leader).process.as_ref().map(|process| process.balancer.clone()) else {
            return Ok(());
        };
        let moves = balancer.look(now_us, &self.coordinators.state, || Some(Rates::default()));
        if let Some(process) = &mut self.node_mut(leader).process {
            process.balancer = balancer;
        }
        if moves.is_empty() {
            return Ok(());
        }
        self.commit(leader, |state| state.plan_moves(&moves))?;
        // Some may be refused, and some that are noted are called off: they count when they are done.
        let what = |of: &MoveInfo| (of.stream, of.streamlet, of.from, of.to);
        let is_one = |of: &MoveInfo| moves.iter().any(|one| what(one) == what(of));
        let noted = self.coordinators.state.move_infos().filter(is_one).map(|of| of.number);
        self.evening.extend(noted);
        Ok(())
    }

    /// Gives up what only lost nodes have, although nobody asked for that: a defect.
    fn give_away(&mut self, node: u32) -> Result<(), Violation> {
        let state = &self.coordinators.state;
        let all = state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(|at| (info.id, at)));
        let all: Vec<(kera_format::StreamId, u32)> =
            all.filter(|(stream, at)| state.copies_of(*stream, *at) == 1).collect();
        for (stream, at) in all {
            self.commit(node, |state| match state.owner(stream, at) {
                Some(owner) if !state.is_live(owner.node, owner.epoch) => state.plan_accept_loss(&stream.into(), at),
                _ => Ok(Vec::new()),
            })?;
        }
        Ok(())
    }

    /// Whether streamlets have waited to be opened for so long that backups are asked once more for ends that nobody has used.
    fn asks_again(&mut self, leader: u32) -> bool {
        let (now_us, state) = (self.now_us(), &self.coordinators.state);
        let waits = state.takes_used_ends() && state.waits_to_be_opened();
        let Some(process) = &mut self.node_mut(leader).process else { return false };
        if !waits {
            process.opening = None;
            return false;
        }
        let (since_us, times) = process.opening.get_or_insert((now_us, 0));
        let is_time = now_us - *since_us >= OPEN_US_MAX * (*times + 1);
        *times += u64::from(is_time);
        is_time
    }

    /// Whether backups are asked first how far lost logs go that somebody is about to open streamlets with.
    pub(super) fn looks_before(&mut self, leader: u32, command: &Command) -> bool {
        let Command::UseEnds(said) = command else { return false };
        let now_us = self.now_us();
        self.looks.entry(leader).or_default().is_before(&self.coordinators.state, said, now_us)
    }

    /// Moves that take too long since this leader first saw them.
    fn late_moves(&mut self, leader: u32) -> Vec<u64> {
        let now_us = self.now_us();
        let moves: Vec<u64> = self.coordinators.state.moves().keys().copied().collect();
        let Some(process) = &mut self.node_mut(leader).process else { return Vec::new() };
        let seen = &mut process.moves_seen;
        seen.retain(|number, _| moves.contains(number));
        for number in moves {
            seen.entry(number).or_insert(now_us);
        }
        let late = seen.iter().filter(|(_, since)| now_us - **since > MOVE_US_MAX);
        late.map(|(number, _)| *number).collect()
    }

    /// What backups have answered to a leader is worth something to that process, as long as it leads.
    pub(super) fn forget_answers(&mut self, leader: u32) {
        self.fencing.retain(|(asker, ..), _| *asker != leader);
        self.looks.remove(&leader);
    }

    /// Asks all backups of the newest views, and ends logs when all have answered or some are late. `is_again`: also for ends that may be taken back.
    fn end_logs(&mut self, leader: u32, (node, epoch): (NodeNumber, u32), is_again: bool) -> Result<(), Violation> {
        let now_us = self.now_us();
        let of = (leader, node, epoch);
        if let Some(fencing) = self.fencing.get(&of) {
            let is_live = |backup: &u32| self.coordinators.state.node(*backup).is_some_and(|node| !node.fenced);
            let more_us = if fencing.asked.iter().any(is_live) { LIVE_US } else { 0 };
            if !fencing.asked.is_empty() && now_us < fencing.until_us + more_us {
                self.ask_again(of, now_us);
                return Ok(());
            }
            let fencing = self.fencing.remove(&of).expect("it was there");
            let state = &self.coordinators.state;
            let ended =
                |(log, (told, expected)): (&LogName, &Ends)| Some((*log, state.end_told(*log, told, *expected)?));
            let ended: Vec<(LogName, AgreedEnd)> = fencing.told.iter().filter_map(ended).collect();
            for (log, end) in ended {
                self.commit(leader, |state| state.plan_end_log(log, end))?;
                if fencing.is_again {
                    self.commit(leader, |state| state.plan_take_back(log, end))?;
                }
                let told = fencing.told[&log].0.iter().map(|(backup, _)| backup);
                let told = told.filter_map(|backup| Some((*backup, *fencing.epochs.get(backup)?)));
                self.looks.entry(leader).or_default().told(log, told);
            }
        }
        let asked = self.ends_asked((node, epoch), is_again);
        if asked.is_empty() {
            return Ok(());
        }
        let backups: BTreeSet<u32> = asked.iter().map(|(backup, ..)| *backup).collect();
        let takes_part = |backup: &u32| Some((*backup, self.coordinators.state.node(*backup)?.epoch));
        let epochs = backups.iter().filter_map(takes_part).collect();
        let mut told: BTreeMap<LogName, Ends> = BTreeMap::new();
        asked.iter().flat_map(|(.., logs)| logs).for_each(|(log, _)| told.entry(*log).or_default().1 += 1);
        let until_us = now_us + FENCE_US;
        self.fencing.insert(of, Fencing { until_us, again_us: until_us, asked: backups, epochs, told, is_again });
        self.ask_to_fence(of, asked);
        Ok(())
    }

    fn ends_asked(&self, (node, epoch): (NodeNumber, u32), is_again: bool) -> Vec<EndsAsked> {
        let state = &self.coordinators.state;
        if is_again { state.ends_to_ask_again(node, epoch) } else { state.ends_to_ask(node, epoch) }
    }

    fn ask_to_fence(&mut self, (leader, node, epoch): (u32, NodeNumber, u32), asked: Vec<EndsAsked>) {
        for (backup, _, logs) in asked {
            let logs = logs.iter().map(|(log, first)| LogView { vlog: log.log, first_block: *first }).collect();
            self.tell(leader, backup, Packet::Fence { node, epoch, logs });
        }
    }

    /// Asks those again that have not answered.
    fn ask_again(&mut self, of: (u32, NodeNumber, u32), now_us: u64) {
        let Some(fencing) = self.fencing.get_mut(&of).filter(|fencing| now_us >= fencing.again_us) else { return };
        fencing.again_us = now_us + FENCE_US;
        let (silent, is_again) = (fencing.asked.clone(), fencing.is_again);
        let asked = self.ends_asked((of.1, of.2), is_again).into_iter().filter(|(backup, ..)| silent.contains(backup));
        let asked = asked.collect();
        self.ask_to_fence(of, asked);
    }

    /// A backup has fenced, or could not.
    pub(super) fn fenced(
        &mut self,
        leader: u32,
        backup: u32,
        (node, epoch): (u32, u32),
        ends: Option<Vec<(LogName, ToldEnd)>>,
    ) -> Result<(), Violation> {
        if !self.leads(leader) {
            self.fencing.remove(&(leader, node, epoch));
            return Ok(());
        }
        let Some(fencing) = self.fencing.get_mut(&(leader, node, epoch)) else { return Ok(()) };
        if !fencing.asked.remove(&backup) {
            return Ok(());
        }
        for (log, end) in ends.unwrap_or_default() {
            fencing.told.entry(log).or_default().0.push((backup, end));
        }
        Ok(())
    }
}

/// Incarnations that take part.
trait Live {
    fn clone_live(&self) -> Vec<(NodeNumber, u32)>;
}

impl Live for ClusterState {
    fn clone_live(&self) -> Vec<(NodeNumber, u32)> {
        let live = self.nodes().iter().filter(|(_, node)| !node.fenced);
        live.map(|(number, node)| (*number, node.epoch)).collect()
    }
}
