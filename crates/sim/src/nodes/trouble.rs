//! Has faults happen, within what copies promise to survive.
//!
//! A kill never counts: what was written and the arena stay. A fence does: what a node that was declared lost still has is not used. Blocks
//! that have lost a copy get it back when they are copied again or rebuilt, so nothing is taken away that has the only copy which anybody
//! would look for.

use kera_coordinator::cluster::{LogState, View};
use kera_env::{Clock, Random};
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;

use super::faults::Fault;
use super::node::Node;
use super::plan::Planted;
use super::world::{Event, World};
use crate::cluster::truth::Violation;

/// What a disk keeps free of data: more than a run writes of anything else while it is full.
const KEPT_FREE_BYTES: u64 = 1 << 30;

impl World {
    fn draw_node(&self) -> u32 {
        1 + self.below(self.count().into()) as u32
    }

    pub(super) fn fault(&mut self) -> Result<(), Violation> {
        if !self.is_troubled {
            return Ok(());
        }
        let pause_us = self.plan.fault_us / 4 + self.below(self.plan.fault_us * 3 / 2);
        self.schedule.after(pause_us, Event::Fault);
        let Some(fault) = self.faults.draw(&self.random) else { return Ok(()) };
        let drawn = self.draw_node();
        let node = if fault == Fault::Remove { self.to_remove(drawn) } else { drawn };
        let is_gone = self.node(node).is_gone && fault != Fault::Remove;
        if is_gone || self.takes_only_copies(fault) || !self.happens(fault, node) {
            return Ok(());
        }
        *self.counts.entry(fault.name()).or_default() += 1;
        self.trace.add(fault as u64);
        self.trace.add(node.into());
        Ok(())
    }

    /// Whether there is nothing that what a machine had could come back from.
    fn takes_only_copies(&self, fault: Fault) -> bool {
        let is_taken = fault == Fault::Destroyed || (fault == Fault::PowerCut && !self.power);
        self.plan.has_one_copy() && is_taken
    }

    /// Whether all that was acknowledged survives when these lose their arenas, and these their disks. Of each view a backup must be left
    /// that has lost nothing; if it is `calm` and nobody is declared lost any more, the owner is good enough.
    pub(super) fn survives(&self, arenas: &[u32], disks: &[u32], calm: bool) -> bool {
        let state = &self.coordinators.state;
        state.logs().iter().all(|(name, log)| {
            let is_owned = calm && state.is_live(name.node, name.epoch) && !arenas.contains(&name.node);
            let is_empty = |at: usize| log.views.get(at + 1).is_some_and(|next| next.first <= log.views[at].first);
            let is_given_up = |at: usize, view: &View| at + 1 < log.views.len() && view.backups.is_empty();
            let views = (0..).zip(&log.views).filter(|(at, view)| !is_empty(*at) && !is_given_up(*at, view));
            let is_kept = |at: usize, backup: u32| !disks.contains(&backup) && self.is_whole(backup, (name, log), at);
            is_owned || views.into_iter().all(|(at, view)| view.backups.iter().any(|backup| is_kept(at, *backup)))
        })
    }

    /// Whether a backup has all that it ever had of a log's view, and knows it.
    pub(super) fn is_whole(&self, backup: u32, (name, log): (&LogName, &LogState), at: usize) -> bool {
        if self.node(backup).is_gone || self.lossy.contains(&(backup, *name, at)) {
            return false;
        }
        let is_newest = at + 1 == log.views.len();
        let may_doubt = is_newest && (0..at).any(|before| self.lossy.contains(&(backup, *name, before)));
        let running = self.node(backup).process.as_ref().and_then(|process| process.running.as_ref());
        let id = LogId::from(*name);
        !may_doubt || running.is_some_and(|running| running.backup.end_now(id, log.views[at].first).certain)
    }

    /// A backup may have lost something of all that it has now.
    pub(super) fn now_lossy(&mut self, node: u32) {
        let logs = self.coordinators.state.logs().iter();
        let of_log = |(name, log): (&LogName, &LogState)| {
            let has = (0..).zip(&log.views).filter(|(_, view)| view.backups.contains(&node));
            has.map(|(at, _)| (node, *name, at)).collect::<Vec<_>>()
        };
        let lossy: Vec<(u32, LogName, usize)> = logs.flat_map(of_log).collect();
        self.lossy.extend(lossy);
    }

    /// Whether a node's disk may lose something.
    pub(super) fn may_lose_disk(&mut self, node: u32) -> bool {
        let may = self.survives(&[node], &[node], false);
        if may {
            self.now_lossy(node);
        }
        may
    }

    fn happens(&mut self, fault: Fault, node: u32) -> bool {
        let now_us = self.now_us();
        let lasts_us = 50_000 + self.below(3_000_000);
        match fault {
            Fault::Kill => self.kill(node, None),
            Fault::KillAll => (1..=self.count()).for_each(|node| self.kill(node, None)),
            // What is not synced is lost, and it is not known which of its blocks are.
            Fault::PowerCut if !self.power && !self.may_lose_disk(node) => return false,
            Fault::PowerCut if !self.power => self.lose_power(node),
            Fault::PowerCut if self.survives(&[node], &[], false) => match self.below(2) {
                0 => self.lose_power(node),
                _ => self.node(node).memory.cut_power_at(1 + self.below(30)),
            },
            Fault::PowerCut => return false,
            Fault::PowerCutAll => {
                let all: Vec<u32> = (1..=self.count()).collect();
                if !self.survives(&all, &[], false) {
                    return false;
                }
                all.into_iter().for_each(|node| self.lose_power(node));
            }
            Fault::Destroyed => return self.is_spare(node) && self.may_lose_disk(node) && self.destroy(node),
            Fault::Freeze => {
                if self.node(node).process.is_none() || now_us < self.node(node).frozen_until_us {
                    return false;
                }
                self.node_mut(node).frozen_until_us = now_us + lasts_us;
                self.node_mut(node).frozen_us += lasts_us;
                let life = self.node(node).life;
                self.schedule.after(lasts_us, Event::Thaw(node, life));
            }
            Fault::CutOff => self.cut_off(node, now_us + lasts_us),
            Fault::PairCut => return self.cut_pair(node, now_us + lasts_us),
            Fault::LeaderLost => {
                self.coordinators.leader = None;
                self.coordinators.elect_at_us = Some(now_us + 300_000 + lasts_us);
            }
            Fault::DiskSlow => {
                self.node_mut(node).disk_us = 5_000 + self.below(100_000);
                self.schedule.after(lasts_us, Event::Heal(node, fault));
            }
            Fault::BitFlip => return self.flip(node),
            Fault::Rot => return self.rot(node),
            Fault::LogRot => return self.rot_log(node),
            Fault::MajorityLost => return self.lose_majority(node),
            Fault::Move => {
                let to = self.draw_node();
                return self.wants_move(node, to);
            }
            Fault::Drain => return self.wants_drain(node, lasts_us),
            Fault::Rebalance => return self.wants_rebalance(node),
            Fault::Stop => return self.stop(node),
            Fault::Remove => return self.wants_removed(node),
            Fault::DeleteRecords => return self.wants_deleted(node),
            Fault::LastCopy => return self.lose_last_copy(node),
            Fault::BlocksLost => return self.lose_blocks(),
            Fault::Unopened => return self.send_away(node),
            Fault::ChangeLog => return self.wants_other_log(node),
            Fault::ChangeCopies => return self.wants_copies(node),
            Fault::MakeStream => return self.wants_stream(node),
            Fault::DeleteStream => return self.wants_stream_gone(node),
            Fault::ClockJump => self.jump(node),
            Fault::ClockYears => self.jump_by_years(node, lasts_us),
            Fault::StopAll => return (1..=self.count()).fold(false, |any, node| self.stop(node) | any),
            _ => self.trouble_disk(fault, node, lasts_us),
        }
        true
    }

    fn trouble_disk(&mut self, fault: Fault, node: u32, lasts_us: u64) {
        if fault == Fault::DiskStuck {
            return self.get_stuck(node, lasts_us);
        }
        let (space, after) = (self.below(64 << 10), 1 + self.below(5));
        let kept = if self.plan.planted == Some(Planted::KeepsNothingFree) { 0 } else { KEPT_FREE_BYTES };
        let at = self.node_mut(node);
        at.is_troubled = true;
        match fault {
            Fault::DiskFull => at.disk.set_space(Some(space)),
            Fault::DataFull => {
                at.disk.set_kept_free(kept);
                at.disk.set_space(Some(kept + space));
            }
            Fault::DiskBroken => at.disk.set_broken(true),
            Fault::WriteFails => at.disk.fail_write(after),
            Fault::WriteTorn => at.disk.tear_write(after),
            _ => at.disk.fail_sync(after),
        }
        self.schedule.after(lasts_us, Event::Heal(node, fault));
    }

    /// The clock of a node is set to another time. When retention takes what it has, nobody knows from here on.
    fn jump(&mut self, node: u32) {
        let by_ms = self.below(7_200_000) as i64 - 3_600_000;
        let clock = &self.node(node).clock;
        clock.set_now_ms(clock.now_ms() + by_ms);
        self.told.has_jumped = true;
    }

    /// A node hears nobody, or nobody hears it, or both; of clients only sometimes.
    fn cut_off(&mut self, node: u32, until_us: u64) {
        let (way, from) = (self.below(4), self.below(2) as u32);
        for other in (from..=self.count()).filter(|other| *other != node) {
            if way != 1 {
                self.cuts.cut(node, other, until_us);
            }
            if way != 2 {
                self.cuts.cut(other, node, until_us);
            }
        }
    }

    /// A node and another one do not hear each other.
    fn cut_pair(&mut self, node: u32, until_us: u64) -> bool {
        let other = self.draw_node();
        if other == node {
            return false;
        }
        self.cuts.cut(node, other, until_us);
        self.cuts.cut(other, node, until_us);
        true
    }

    /// Whether so many are left that all copies find a place, and of the coordinators a majority.
    pub(super) fn is_spare(&self, node: u32) -> bool {
        let is_there = |other: &u32| !self.node(*other).is_gone && self.coordinators.state.node(*other).is_some();
        let left = (1..=self.count()).filter(is_there).count() as u32;
        let voters = self.voters.iter().filter(|voter| !self.node(**voter).is_gone).count();
        left > self.replication && (!self.voters.contains(&node) || (voters - 1) * 2 > self.voters.len())
    }

    /// The machine is gone with all that it had, and comes back never.
    pub(super) fn destroy(&mut self, node: u32) -> bool {
        self.lose_power(node);
        (self.node_mut(node).is_gone, self.node_mut(node).is_burned) = (true, true);
        true
    }

    /// Changes a bit of a file that has copies. It costs a copy, as far as anybody can know.
    fn flip(&mut self, node: u32) -> bool {
        use kera_env::Disk;
        let folder = "replicas";
        let files = self.node(node).memory.list(folder).unwrap_or_default();
        if files.is_empty() || !self.may_lose_disk(node) || self.has_unsettled_blocks(node) {
            return false;
        }
        let file = &files[self.below(files.len() as u64) as usize];
        if !file.ends_with(".replica") {
            // Of fences a node with one disk has no copy, and without them it does not start.
            return false;
        }
        let path = format!("{folder}/{file}");
        let (offset, bit) = (self.below(16 << 10), self.below(8) as u8);
        let at = self.node_mut(node);
        at.is_flipped = true;
        at.memory.flip_bit(&path, offset, bit).is_ok()
    }

    /// Whether a backup may have blocks that are not acknowledged: those count for the next view too if it is in that, where it says that it has
    /// them and does not look at what it has written.
    fn has_unsettled_blocks(&self, backup: u32) -> bool {
        let running = |of: &Node| of.process.as_ref()?.running.as_ref().map(|running| running.copies.all());
        let logs = self.nodes.iter().filter_map(running).flatten();
        logs.into_iter().any(|log| log.stats().under_way > 0 && log.state().1.backups.contains(&backup))
    }

    pub(super) fn heal_one(&mut self, node: u32, fault: Fault) {
        let at = self.node_mut(node);
        match fault {
            Fault::DiskFull => at.disk.set_space(None),
            Fault::DataFull => {
                at.disk.set_space(None);
                at.disk.set_kept_free(0);
            }
            Fault::DiskBroken => at.disk.set_broken(false),
            Fault::DiskSlow => at.disk_us = 300,
            Fault::ClockYears => self.set_clock_right(node),
            _ => {}
        }
    }

    /// From here on nothing goes wrong.
    pub(super) fn heal(&mut self) {
        self.is_troubled = false;
        self.stuck.clear();
        self.cuts.heal();
        for node in 1..=self.count() {
            let at = self.node_mut(node);
            at.disk.heal();
            at.memory.cut_power_at(u64::MAX / 2);
            for fault in [Fault::DiskFull, Fault::DiskBroken, Fault::DiskSlow] {
                self.heal_one(node, fault);
            }
            self.undrain(node);
        }
        if self.below(2) == 0 {
            self.empty_one();
        }
    }

    pub(super) fn lose_power(&mut self, node: u32) {
        let seed = Random::next_u64(&self.random);
        self.node_mut(node).has_lost_power = true;
        self.node_mut(node).cut_power(seed);
        self.ended(node, None);
    }

    /// kill -9. `back_us`: when it is started again, at random if it is not said.
    pub(super) fn kill(&mut self, node: u32, back_us: Option<u64>) {
        self.node_mut(node).kill();
        self.ended(node, back_us);
    }
}
