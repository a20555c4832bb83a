//! Connections of clients to nodes: frames in their order, which may be late and break.

use super::client::{Around, Client, True, Wish};
use super::early::Left;
use super::faults::Fault;
use super::plan::Kind;
use super::sessions::{NARROW_BYTES, OUTBOX_BYTES, Said};
use super::world::{Event, Wire, World};
use crate::cluster::truth::Violation;
use kera_env::Clock;
use kera_format::StreamId;

impl World {
    pub(super) fn send_all(&mut self, said: Vec<Said>) {
        for one in said {
            match one {
                Said::Frame(wire, header, body) => self.send(wire, 1, Event::ToClient(wire, header, body)),
                Said::Closed(wire) => {
                    if let Some(known) = self.wires.get_mut(&wire) {
                        known.is_open_at_node = false;
                    }
                    self.send(wire, 1, Event::LostAtClient(wire));
                }
            }
        }
    }

    /// Puts something on its way to one side of a connection, behind what is under way already. What is cut off is sent again and
    /// again, and gets there when the network is whole.
    pub(super) fn send(&mut self, wire: u64, side: usize, event: Event) {
        let (now_us, delay_us) = (self.now_us(), 50 + self.below(400));
        let Some(known) = self.wires.get(&wire) else { return };
        let (from, to) = if side == 0 { (0, known.node) } else { (known.node, 0) };
        let held_us = self.cuts.until_us(from, to);
        let Some(known) = self.wires.get_mut(&wire) else { return };
        let at_us = (now_us + delay_us).max(known.last_us[side] + 1).max(held_us + delay_us);
        known.last_us[side] = at_us;
        if let (Kind::Async, Event::ToClient(_, header, _)) = (self.plan.kind, &event) {
            let running_us = now_us.saturating_sub(self.nodes[from as usize - 1].frozen_us);
            self.left.insert((wire, header.correlation), Left { at_us: now_us, running_us });
        }
        self.schedule.at(at_us, event);
    }

    pub(super) fn wire_to(&mut self, at: usize, node: u32) -> u64 {
        if let Some(wire) = self.clients[at].wires.get(&node) {
            return *wire;
        }
        let wire = self.number();
        self.clients[at].wires.insert(node, wire);
        let known = Wire { client: at, node, is_open_at_client: true, is_open_at_node: false, last_us: [0; 2] };
        self.wires.insert(wire, known);
        self.send(wire, 0, Event::Connected(wire));
        wire
    }

    pub(super) fn connected(&mut self, wire: u64) -> Result<(), Violation> {
        let delay_us = 1_000 + self.below(50_000);
        let out_bytes = if self.plan.narrow { NARROW_BYTES } else { OUTBOX_BYTES };
        let Some(known) = self.wires.get_mut(&wire).filter(|known| known.is_open_at_client) else { return Ok(()) };
        let node = known.node;
        let process = self.nodes[node as usize - 1].process.as_mut().filter(|process| process.stopping.is_none());
        match process.and_then(|process| process.running.as_mut()).filter(|running| running.hearing.serves()) {
            Some(running) => {
                known.is_open_at_node = true;
                running.sessions.connect(&running.broker, wire, out_bytes);
            }
            // Nobody listens.
            None => self.schedule.after(delay_us, Event::LostAtClient(wire)),
        }
        Ok(())
    }

    pub(super) fn client_of(&self, wire: u64) -> Option<(usize, u32)> {
        let known = self.wires.get(&wire)?;
        let slot = self.clients.get(known.client)?;
        (slot.wires.get(&known.node) == Some(&wire)).then_some((known.client, known.node))
    }

    pub(super) fn with(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut dyn Client, &mut Around<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let (now_us, now_ms, nodes) = (self.now_us(), self.clock.now_ms(), self.count());
        let slot = &mut self.clients[at];
        let mut around = Around {
            now_us,
            now_ms,
            left: std::mem::take(&mut self.left_of_answer),
            nodes,
            in_pieces: self.plan.in_pieces,
            copies_lag: [Fault::DiskStuck, Fault::DiskSlow, Fault::DiskFull]
                .iter()
                .any(|fault| self.counts.contains_key(fault.name())),
            random: &self.random,
            truth: &mut self.truth,
            told: &mut self.told,
            owners: True { nodes: &self.nodes, coordinators: &self.coordinators },
            wishes: Vec::new(),
            correlation: &mut slot.correlation,
        };
        let acted = act(&mut *slot.client, &mut around);
        let wishes = around.wishes;
        for wish in wishes {
            match wish {
                Wish::Timer(delay_us) => {
                    self.clients[at].timer += 1;
                    let number = self.clients[at].timer;
                    self.schedule.after(delay_us, Event::Timer(at, number));
                }
                Wish::Send(node, header, body) => {
                    let wire = self.wire_to(at, node);
                    self.send(wire, 0, Event::ToNode(wire, header, body));
                }
                Wish::Drop(node) => {
                    let Some(wire) = self.clients[at].wires.remove(&node) else { continue };
                    self.send(wire, 0, Event::LostAtNode(wire));
                    if let Some(known) = self.wires.get_mut(&wire) {
                        known.is_open_at_client = false;
                    }
                }
            }
        }
        self.look_at_fresh()?;
        acted
    }

    /// What was acknowledged must be by the owner of its epoch, and nobody else.
    pub(super) fn look_at_fresh(&mut self) -> Result<(), Violation> {
        for (node, place, cursor) in std::mem::take(&mut self.told.fresh) {
            self.truth.checked();
            let epoch = cursor.group.epoch();
            let owner = self.coordinators.owner_of_epoch(StreamId(place.stream), place.streamlet, epoch);
            if owner.is_none_or(|owner| owner.node != node) {
                return Err(Violation(format!(
                    "{place}: node {node} acknowledged in owner epoch {epoch}, which is {owner:?}"
                )));
            }
        }
        Ok(())
    }
}
