//! Nodes that a person removes for good, and the machines that come in their place: `docs/operations.md`, "Adding, emptying and replacing nodes".
//!
//! A node that lives is drained first. When it owns nothing, and what it has is somewhere else too, it is switched off and given up, again and again until nobody
//! needs anything of it any more; one that has burned is given up like that at once. Then nobody comes, a new machine under a number of its own, another one under
//! the same number, or the old one with all that it had. Coordinators that are given up lose their votes, and others get
//! some, as `crates/raft/src/driver.rs` does it.

use std::collections::BTreeSet;

use kera_format::cluster::Roles;

use super::coordinators::Command;
use super::plan::Planted;
use super::world::{Event, World};

/// How long a person waits until a node that is drained owns nothing, and the time between two looks.
const EMPTY_US: u64 = 12_000_000;
const LOOK_US: u64 = 500_000;
/// Machines that come to a cluster in a run, at most.
pub(super) const COMING_MAX: u32 = 6;
/// Most coordinators that vote.
const VOTERS_MAX: usize = 5;

impl World {
    /// A person looks after something.
    pub(super) fn person(&mut self, event: &Event) {
        match event {
            Event::Undrain(node) => {
                self.undrain(*node);
                self.empty(*node);
            }
            Event::Leaving(node) => self.look_at_leaving(*node),
            Event::CopyAll => self.copy_all(),
            Event::Away => self.look_at_away(),
            _ => self.look_at_losses(),
        }
    }

    /// Whom a person removes: a machine that has burned and is still in the cluster, if there is one.
    pub(super) fn to_remove(&self, drawn: u32) -> u32 {
        let is_left = |node: &u32| self.node(*node).is_gone && self.coordinators.state.node(*node).is_some();
        (1..=self.count()).find(|node| is_left(node) && !self.leaving.contains_key(node)).unwrap_or(drawn)
    }

    /// A person wants a node to be no part of the cluster any more.
    pub(super) fn wants_removed(&mut self, node: u32) -> bool {
        let of = self.node(node);
        let may = of.is_gone || (of.process.is_some() && self.is_spare(node));
        if !may || self.leaving.contains_key(&node) || self.coordinators.state.node(node).is_none() {
            return false;
        }
        self.leaving.insert(node, self.now_us() + EMPTY_US);
        self.schedule.after(1, Event::Leaving(node));
        true
    }

    /// A person looks how far that is.
    pub(super) fn look_at_leaving(&mut self, node: u32) {
        let Some(until_us) = self.leaving.get(&node).copied() else { return };
        let known = self.coordinators.state.node(node);
        let (is_known, is_empty) =
            (known.is_some(), known.is_some_and(|known| known.draining && known.streamlets == 0));
        if self.node(node).is_gone && !is_known {
            self.leaving.remove(&node);
            *self.events_of.entry("removed").or_default() += 1;
            return self.comes_in_place(node);
        }
        let has_burned = self.node(node).is_gone;
        let is_hasty = self.plan.planted == Some(Planted::RemovesUncopied);
        let is_free = is_empty && !self.has_only_copy(node);
        if !has_burned && is_free && self.is_spare(node) && (is_hasty || self.may_lose_disk(node)) {
            // Its disk and its memory stay as they are, and nobody switches it on, unless somebody does so when it is none of the cluster any more.
            self.node_mut(node).is_gone = true;
            self.kill(node, None);
        } else if !has_burned && (self.now_us() > until_us || !self.is_troubled) {
            self.leaving.remove(&node);
            return self.undrain(node);
        }
        let asked = if self.node(node).is_gone { Command::Remove(node) } else { Command::Drain(node, true) };
        if let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some()) {
            self.ask(at, asked);
        }
        self.schedule.after(LOOK_US, Event::Leaving(node));
    }

    /// Whether a node holds something that has one copy.
    fn has_only_copy(&self, node: u32) -> bool {
        let state = &self.coordinators.state;
        let all = state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(|at| (info.id, at)));
        all.into_iter().any(|(stream, at)| state.copies_of(stream, at) == 1 && state.holds(node, stream, at))
    }

    /// Who comes when a node was removed, if anybody does.
    fn comes_in_place(&mut self, node: u32) {
        if !self.is_troubled {
            return;
        }
        let pause_us = 100_000 + self.below(3_000_000);
        let way = if self.plan.planted == Some(Planted::ForgetsNumbers) { 2 } else { self.below(4) };
        match way {
            0 => {}
            1 if self.count() < self.founded + COMING_MAX => {
                *self.events_of.entry("came under a number of its own").or_default() += 1;
                let number = self.count() + 1;
                let mut machine = self.machine(number);
                machine.is_coordinator = self.below(2) == 0 || self.node(node).is_coordinator;
                self.nodes.push(machine);
                self.schedule.after(pause_us, Event::Start(number));
            }
            // Of blocks that a person is to give up a machine under the number of who had them looks like a backup; stopping that one too is not played.
            2 if !self.told.losses.is_on => {
                self.replace(node);
                self.schedule.after(pause_us, Event::Start(node));
            }
            _ if self.node(node).is_burned => {}
            _ => {
                *self.events_of.entry("came back after it was removed").or_default() += 1;
                self.node_mut(node).is_gone = false;
                self.schedule.after(pause_us, Event::Start(node));
            }
        }
    }

    /// Another machine has a node's number, with nothing of what that had.
    fn replace(&mut self, node: u32) {
        *self.events_of.entry("came under the same number").or_default() += 1;
        self.now_lossy(node);
        let before = self.node(node);
        before.forget_arena();
        let (life, is_coordinator, mut id) = (before.life + 1, before.is_coordinator, before.id);
        id[14] = id[14].wrapping_add(1);
        let mut machine = self.machine(node);
        (machine.life, machine.is_coordinator, machine.id) = (life, is_coordinator, id);
        self.nodes[node as usize - 1] = machine;
    }

    /// Takes the votes of those that were given up, and gives some to others, so that their number is odd.
    pub(super) fn change_votes(&mut self, leader: u32) {
        let removed = &self.coordinators.removed;
        if self.voters.iter().any(|voter| *voter != leader && removed.contains(voter)) {
            self.voters.retain(|voter| *voter == leader || !removed.contains(voter));
            return;
        }
        let live = self.coordinators.state.nodes().iter().filter(|(_, node)| node.is_live(Roles::COORDINATOR));
        let is_ready = |node: &u32| !self.voters.contains(node) && self.is_level(*node);
        let ready: Vec<u32> = live.map(|(number, _)| *number).filter(is_ready).collect();
        let wanted = 1 + self.voters.len() % 2;
        if ready.len() >= wanted && self.voters.len() + wanted <= VOTERS_MAX {
            self.voters.extend(&ready[..wanted]);
        }
    }

    /// Who hears signs of life: all coordinators, so that whoever leads next knows who is silent.
    pub(super) fn listeners(&self) -> Vec<u32> {
        let more = self.nodes.iter().filter(|node| node.is_coordinator && !self.voters.contains(&node.number));
        self.voters.iter().copied().chain(more.map(|node| node.number)).collect()
    }

    /// What still names nodes that were removed, or keeps them from being so, although all is well.
    pub(super) fn named(&self) -> Vec<String> {
        let (state, removed) = (&self.coordinators.state, &self.coordinators.removed);
        let gone = self.leaving.keys().filter(|node| self.node(**node).is_gone);
        let mut named: Vec<String> = gone.map(|node| format!("node {node} cannot be removed")).collect();
        for node in removed {
            let mut by = |what: String| named.push(format!("node {node} was removed, and {what}"));
            for info in state.catalog.streams() {
                let Some(owners) = state.owners(info.id) else { continue };
                if owners.runs().iter().any(|run| run.owner.node == *node)
                    || owners.held().iter().any(|held| held.node == *node)
                {
                    by(format!("owns or holds something of stream {}", info.id));
                }
            }
            for (name, log) in state.logs() {
                let has_blocks = |at: usize| {
                    let last = log.views.get(at + 1).map(|next| next.first - 1).into_iter().chain(log.end).min();
                    last.is_none_or(|last| log.views[at].first <= last)
                };
                let is_named = |at: usize| log.views[at].backups.contains(node) && has_blocks(at);
                if name.node == *node || (0..log.views.len()).any(is_named) {
                    by(format!("is named by {name}: {:?}", log.views));
                }
            }
            if self.voters.contains(node) {
                by("has a vote".to_owned());
            }
            let live = self.nodes.iter().filter(|other| other.process.is_some());
            let knowing: BTreeSet<u32> = live
                .filter(|other| super::copies::lock(&other.known).node(*node).is_some())
                .map(|of| of.number)
                .collect();
            if !knowing.is_empty() {
                by(format!("is known to {knowing:?}"));
            }
        }
        named
    }
}
