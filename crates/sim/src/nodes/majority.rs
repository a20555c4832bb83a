//! Most coordinators are gone, and a person has the one that is left go on alone: `docs/replication.md`, "A lost majority of the coordinators".
//!
//! In runs with the coordinators' log on their disks, once in a run, all but one burn, if all that was acknowledged survives that, or are switched off for a while. The others run
//! on without a leader. Then the one that is left is stopped, the real [`Survivor`] writes on its disk, which may lose its power in the midst of that, and it is started. As
//! soon as it leads the ones come back that were only switched off, follow, and vote again.
//!
//! The one that is left has all that is true. So nothing may be missing that any other loss of these machines would leave: all that must hold in any run must hold, and the
//! state that it goes on with is compared with what was true.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_coordinator::cluster::ClusterState;
use kera_env::Disk;
use kera_format::cluster::{NodeNumber, RaftPlace};
use kera_format::raft::Record;
use kera_raft::{OnDisk, SKIPPED, Survivor};

use super::plan::{Kind, Planted};
use super::world::{Event, World};
use crate::cluster::truth::Violation;

const LOOK_US: u64 = 200_000;
/// More changes of a disk than a run has.
const NEVER: u64 = u64::MAX / 2;

/// How far a person is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody leads.
    Lost,
    /// The one that is left goes on alone.
    Alone,
    /// It leads, and who was switched off is switched on.
    Over,
}

/// Most coordinators were lost.
pub(super) struct LostMajority {
    left: u32,
    gone: BTreeSet<NodeNumber>,
    /// Those of them who come back.
    returning: Vec<u32>,
    stage: Stage,
}

impl World {
    /// All coordinators but one are gone.
    pub(super) fn lose_majority(&mut self, left: u32) -> bool {
        let is_played = !self.plan.has_one_copy() && self.plan.kind != Kind::Async && !self.told.losses.is_on;
        let may = self.majority.is_none() && self.voters.contains(&left) && !self.is_stuck(left);
        if !is_played || !may || !self.may_go_on_alone(left) {
            return false;
        }
        let gone: BTreeSet<NodeNumber> = self.voters.iter().copied().filter(|voter| *voter != left).collect();
        let mut returning: Vec<u32> = gone.iter().copied().filter(|node| !self.node(*node).is_gone).collect();
        if self.below(2) == 0 {
            let there = self.nodes.iter().filter(|node| !node.is_gone).count();
            let is_enough = there >= returning.len() + self.replication as usize;
            if !is_enough || !self.survives(&returning, &returning, false) {
                return false;
            }
            for node in std::mem::take(&mut returning) {
                self.now_lossy(node);
                self.destroy(node);
            }
        }
        for node in &returning {
            self.kill(*node, None);
            self.node_mut(*node).is_gone = true;
        }
        let pause_us = 300_000 + self.below(2_000_000);
        self.schedule.after(pause_us, Event::GoesOnAlone(left));
        self.majority = Some(LostMajority { left, gone, returning, stage: Stage::Lost });
        true
    }

    /// A person does the next step, or waits for it.
    pub(super) fn go_on_alone(&mut self, left: u32) -> Result<(), Violation> {
        let Some(stage) = self.majority.as_ref().map(|majority| majority.stage) else { return Ok(()) };
        match stage {
            Stage::Lost if !self.is_stuck(left) => self.recover_majority(left)?,
            Stage::Alone if self.leads(left) => self.switch_on(),
            Stage::Lost | Stage::Alone => {}
            Stage::Over => return Ok(()),
        }
        self.schedule.after(LOOK_US, Event::GoesOnAlone(left));
        Ok(())
    }

    /// What is not as it must become when all is well.
    pub(super) fn without_majority(&self) -> Vec<String> {
        let pending = self.majority.iter().filter(|majority| majority.stage != Stage::Over);
        pending.map(|of| format!("coordinator {} is left of {:?} and does not lead", of.left, of.gone)).collect()
    }

    /// Those come back who were only switched off.
    fn switch_on(&mut self) {
        let Some(majority) = &mut self.majority else { return };
        majority.stage = Stage::Over;
        for node in std::mem::take(&mut majority.returning) {
            *self.events_of.entry("came back to one that was left").or_default() += 1;
            self.node_mut(node).is_gone = false;
            let pause_us = 1_000 + self.below(3_000_000);
            self.schedule.after(pause_us, Event::Start(node));
            self.undrain(node);
        }
    }

    /// Stops the one that is left, has it go on from what it has, and starts it.
    fn recover_majority(&mut self, left: u32) -> Result<(), Violation> {
        let gone = self.majority.as_ref().map(|majority| majority.gone.clone()).unwrap_or_default();
        let back_us = 20_000 + self.below(500_000);
        match self.node(left).memory.is_off() {
            true => self.lose_power(left),
            false => self.kill(left, Some(back_us)),
        }
        self.node(left).memory.cut_power_at(NEVER);
        let before = self.take_for_true(left)?;
        let rank = gone.iter().filter(|node| **node < left).count() as u32;
        let skipped = SKIPPED * (rank + 1);
        let place = match self.plan.planted {
            Some(planted @ (Planted::RecoversOld | Planted::SkipsNoNumbers)) => {
                self.recover_wrongly(left, (before, skipped), planted)?
            }
            _ => self.recover_on_disk(left, &gone)?,
        };
        if place.index != before.index + u64::from(skipped) || place.term < before.term + u64::from(skipped) {
            return Err(Violation(format!("coordinator {left} is left with {before:?} and goes on behind {place:?}")));
        }
        let mut state = self.coordinators.state.clone();
        if self.plan.planted != Some(Planted::SkipsNoNumbers) {
            skip(&mut state, left, skipped)?;
        }
        self.coordinators.begin_anew(state, place.index as usize, (left, skipped));
        self.begin_alone(left, place);
        self.trace.add(place.index);
        *self.events_of.entry("went on alone").or_default() += 1;
        if let Some(majority) = &mut self.majority {
            majority.stage = Stage::Alone;
        }
        Ok(())
    }

    /// The real thing. Where its machine loses its power meanwhile it is done once more, unless it has happened.
    fn recover_on_disk(&mut self, left: u32, gone: &BTreeSet<NodeNumber>) -> Result<RaftPlace, Violation> {
        if self.power && self.survives(&[left], &[], false) && self.below(2) == 0 {
            let steps = 1 + self.below(30);
            self.node(left).memory.cut_power_at(steps);
        }
        let mut done = None;
        loop {
            let node = self.node(left);
            let (disk, uuid): (Arc<dyn Disk>, [u8; 16]) = (Arc::new(node.disk.clone()), node.id);
            let tried = recover(disk, uuid, gone);
            if !self.node(left).memory.is_off() {
                self.node(left).memory.cut_power_at(NEVER);
                let place = tried.map_err(Violation)?;
                return match done.filter(|done| *done != place) {
                    Some(done) => Err(Violation(format!("{left} went on behind {done:?}, and finds {place:?}"))),
                    None => Ok(place),
                };
            }
            done = tried.ok().or(done);
            *self.events_of.entry("lost their power while they were to go on alone").or_default() += 1;
            self.lose_power(left);
        }
    }

    /// What a defect makes of it.
    fn recover_wrongly(
        &self,
        left: u32,
        (before, skipped): (RaftPlace, u32),
        planted: Planted,
    ) -> Result<RaftPlace, Violation> {
        let node = self.node(left);
        let opened = OnDisk::open(Arc::new(node.disk.clone()), left, node.id);
        let mut on_disk = opened.map_err(|error| Violation(error.to_string()))?;
        let (term, index) = (before.term + u64::from(skipped), before.index + u64::from(skipped));
        let place = RaftPlace { term, leader: left.into(), index };
        let mut state = self.coordinators.state.clone();
        if planted == Planted::RecoversOld {
            state = on_disk.state_at(on_disk.snapshot()).map_err(Violation)?;
            skip(&mut state, left, skipped)?;
        }
        let voted = on_disk.write(vec![Record::Vote { term, node: left.into(), committed: false }]);
        let kept = voted.and_then(|()| on_disk.keep(&state, place, place, &[left.into()]));
        kept.map(|()| place).map_err(|error| Violation(error.to_string()))
    }
}

/// What the one that is left makes of its state.
fn skip(state: &mut ClusterState, left: NodeNumber, skipped: u32) -> Result<(), Violation> {
    let numbers = state.skip_numbers(skipped).and_then(|()| state.end_incarnations(left, skipped));
    numbers.map_err(|refused| Violation(refused.0))
}

/// As `kera cluster recover` does it; where it goes on behind.
fn recover(disk: Arc<dyn Disk>, uuid: [u8; 16], gone: &BTreeSet<NodeNumber>) -> Result<RaftPlace, String> {
    let found = Survivor::open(disk, uuid).map_err(|error| error.to_string())?;
    let survivor =
        found.ok_or_else(|| "the log of the one that is left does not say that it is in a cluster".to_owned())?;
    let voters = survivor.members().into_iter().filter(|of| of.votes).map(|of| of.node);
    if voters.eq([survivor.node()]) {
        return Ok(survivor.last());
    }
    survivor.check_gone(gone)?;
    survivor.recover().map_err(|error| error.to_string())
}
