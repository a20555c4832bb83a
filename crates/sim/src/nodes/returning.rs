//! Nodes that come back offer what they still have to those who rebuild it, as `crates/server/src/cluster/returning.rs` does it, by turns. What
//! may be offered, and whether it is all of it, is decided by the real rules.

use std::collections::BTreeSet;

use kera_broker::NotTaken;
use kera_coordinator::cluster::{ClusterState, Offerable, asked_back};
use kera_format::{StreamletId, level};
use kera_protocol::{GiveBack, OfferGroups, ReturnGroups, StreamletState, WholeLane};

use super::coordinators::Command;
use super::copies::lock;
use super::network::Packet;
use super::node::Running;
use super::plan::Planted;
use super::world::World;

/// Time until it is offered again what was not taken.
const AGAIN_US: u64 = 300_000;

impl Running {
    /// What this node has whole of streamlets that others rebuild, each with who does.
    fn offers(&mut self, known: &ClusterState, now_us: u64) -> Vec<(u32, OfferGroups)> {
        if !self.came_with_all || now_us < self.offer_us {
            return Vec::new();
        }
        self.offer_us = now_us + AGAIN_US;
        let mut offers = Vec::new();
        let (offerable, back) = (known.offerable(self.number, self.epoch), known.may_get_back(self.number, self.epoch));
        for of in offerable.into_iter().chain(back.iter().copied()).collect::<BTreeSet<_>>() {
            let (stream, streamlet) = (of.stream, StreamletId(of.streamlet));
            let broker = &self.broker;
            if !broker.has_let_go(stream, streamlet, (of.owner, of.owner_epoch)) {
                continue;
            }
            let nothing = || (back.contains(&of) && broker.has_nothing_of(stream, streamlet)).then(Vec::new);
            let whole = || broker.whole_lanes(stream, streamlet).or_else(nothing);
            let lanes = self.copier.offers.make(of, whole);
            let Some(lanes) = lanes else { continue };
            self.broker.offers(stream, streamlet, Some(of.owner_epoch));
            let (node, epoch, owner_epoch) = (self.number, self.epoch, of.owner_epoch);
            let cut_off = broker.cut_off_lanes(stream, streamlet);
            let let_go = broker.let_go_lanes(stream, streamlet);
            let is_uncut = !self.cut.contains(&(stream, streamlet));
            let offer = OfferGroups { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go, is_uncut };
            offers.push((of.owner, offer));
        }
        self.let_go_of_what_is_decided(known);
        offers
    }

    /// What is given back, and asked for now: promised by whoever opens streamlets, while it opens none.
    pub(super) fn give_back(&mut self, known: &ClusterState, now_us: u64) -> Vec<GiveBack> {
        let recovery = &mut self.recovery;
        if recovery.workers[0].is_some() {
            return Vec::new();
        }
        recovery.given.append(&mut recovery.asked_back);
        recovery.given.sort_unstable_by_key(|asked| (asked.stream, asked.streamlet, asked.owner_epoch, asked.to_epoch));
        recovery.given.dedup();
        recovery.given.retain(|asked| known.may_be_given_back(asked));
        let is_open = |asked: &GiveBack| self.broker.is_of_epoch(asked.stream, asked.streamlet, asked.owner_epoch);
        recovery.given.retain(|asked| !is_open(asked));
        if now_us < recovery.give_us {
            return Vec::new();
        }
        recovery.give_us = now_us + AGAIN_US;
        recovery.given.clone()
    }

    fn let_go_of_what_is_decided(&self, known: &ClusterState) {
        let me = (self.number, self.epoch);
        for (stream, streamlet) in known.not_gone_on_with(self.number, self.epoch) {
            if !known.may_come_back(stream, streamlet.0, me) {
                self.broker.let_go_of_cut_off(stream, streamlet);
            }
        }
    }
}

impl World {
    /// A turn of a node that may have come back.
    pub(super) fn offer(&mut self, node: u32) {
        let (now_us, known) = (self.now_us(), self.node(node).known.clone());
        let Some(running) = self.node_mut(node).running() else { return };
        for (owner, offer) in running.offers(&lock(&known), now_us) {
            *self.events_of.entry("offered what came back").or_default() += 1;
            self.tell(node, owner, Packet::Offer(offer));
        }
    }

    /// A node hears that it does not hold again what it has offered.
    pub(super) fn refused(&mut self, node: u32, of: Offerable, epoch: u32) {
        let Some(running) = self.node_mut(node).running().filter(|running| running.epoch == epoch) else { return };
        running.copier.offers.refuse(of);
        running.broker.offers(of.stream, StreamletId(of.streamlet), None);
        running.broker.let_go_of_cut_off(of.stream, StreamletId(of.streamlet));
    }

    /// A node hears where lanes end of which it has cut off the last records: it takes these up again, and offers all of it once more.
    pub(super) fn lacking(&mut self, node: u32, of: Offerable, epoch: u32, lanes: &[WholeLane]) {
        let Some(running) = self.node_mut(node).running().filter(|running| running.epoch == epoch) else { return };
        let (stream, streamlet) = (of.stream, StreamletId(of.streamlet));
        // With a full arena it is asked to again.
        let Ok(has_taken_up) = running.broker.take_up_lacking(stream, streamlet, lanes) else { return };
        match running.broker.whole_lanes(stream, streamlet).filter(|_| has_taken_up) {
            Some(lanes) => {
                running.copier.offers.has_taken_up(of, lanes);
                running.offer_us = 0;
                *self.events_of.entry("took up what was cut off").or_default() += 1;
            }
            None => self.refused(node, of, epoch),
        }
    }

    /// A node says that it has older groups which this one rebuilds.
    pub(super) fn offered(&mut self, node: u32, offered: &OfferGroups) {
        let (epoch, planted) = (self.node(node).epoch, self.plan.planted);
        let known = self.node(node).known.clone();
        let Some(running) = self.node_mut(node).following() else { return };
        let OfferGroups { stream, streamlet, owner_epoch, .. } = *offered;
        let (to, to_epoch) = (offered.node, offered.epoch);
        let keeps = lock(&known).kept_by_giver(stream, streamlet, owner_epoch);
        let asked = GiveBack { node, epoch, stream, streamlet, owner_epoch, to, to_epoch, keeps };
        if planted == Some(Planted::GivesBackBlindly) {
            self.ask(node, Command::GiveBack(asked));
            return;
        }
        let Some(rebuild) = running.recovery.rebuild_of((stream, streamlet, owner_epoch)) else {
            let one = asked_back(&asked);
            let is_unwritten = running.recovery.unwritten.contains(&one);
            let takes_all = planted == Some(Planted::GivesBackWhatWasCut) && is_unwritten;
            let is_unreadable = takes_all || running.recovery.is_unreadable(&one);
            let is_uncut = takes_all || offered.is_uncut;
            if is_unreadable && lock(&known).gives_back(&asked, is_uncut, is_unwritten) {
                running.recovery.asked_back.push(asked);
            }
            return;
        };
        let keeps_own = rebuild.keeps_own(stream, streamlet);
        if keeps_own && lock(&known).level() < level::RETURNED_IN_FRONT {
            let of = Offerable { stream, streamlet: streamlet.0, owner: node, owner_epoch };
            self.tell(node, offered.node, Packet::Refused(of, offered.epoch));
            return;
        }
        let room = lock(&known).handed_kept(stream, streamlet.0);
        let kept = lock(&known).handed(stream, streamlet.0);
        let read = |kept: &[u8]| <StreamletState as kera_protocol::Body>::decode(1, kept);
        let handed = kept.map(|kept| read(&kept).expect("the coordinators checked it"));
        let mut offered = offered.clone();
        if planted == Some(Planted::TakesWhatIsNotAll) {
            offered.lanes = rebuild.whole(stream, streamlet);
        }
        match running.broker.check_offer(&rebuild, &offered, handed, room) {
            Ok(state) => {
                let (holder, holder_epoch) = (offered.node, offered.epoch);
                let asked = ReturnGroups { node, epoch, stream, streamlet, owner_epoch, holder, holder_epoch, state };
                if keeps_own {
                    *self.events_of.entry("leaves what is in front of its own to who came back").or_default() += 1;
                }
                self.ask(node, Command::Returned(asked));
            }
            Err(NotTaken::Later(_)) => {}
            Err(NotTaken::Lacking(lanes)) => {
                let of = Offerable { stream, streamlet: streamlet.0, owner: node, owner_epoch };
                self.tell(node, offered.node, Packet::Lacking(of, offered.epoch, lanes));
            }
            Err(NotTaken::Never(_)) => {
                *self.events_of.entry("did not take what came back").or_default() += 1;
                let of = Offerable { stream, streamlet: streamlet.0, owner: node, owner_epoch };
                self.tell(node, offered.node, Packet::Refused(of, offered.epoch));
            }
        }
    }
}
