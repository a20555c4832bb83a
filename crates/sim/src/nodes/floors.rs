//! Records that somebody deletes from the front of lanes, as Kafka's `DeleteRecords` does (`docs/decisions/0027-deleted-records-in-a-cluster.md`): an owner has the
//! coordinators note where a lane begins, and answers when its own lane knows. The request itself is not run (`crates/kafka/src/floors.rs` is): what it asks of the coordinators, what
//! the feed tells lanes, and what looks for lanes that came back shorter (`crates/server/src/cluster/floors.rs`) is written again here.
//!
//! From an answer on nobody who looks for the beginning of the lane at its owner is given anything in front of that, and nothing goes that is not. When
//! everything is over each lane begins at its floor, wherever it is, unless retention took more.

use std::collections::BTreeMap;

use kera_coordinator::cluster::ClusterState;
use kera_format::{LaneId, StreamId, StreamletId};
use kera_log::{Log, Tenure};
use kera_protocol::{LaneFloor, SetFloors};

use super::coordinators::Command;
use super::copies::lock;
use super::faults::Fault;
use super::world::World;
use crate::cluster::truth::{Place, Violation};

/// What was deleted.
#[derive(Default)]
pub(super) struct Floors {
    pub(super) is_on: bool,
    /// Up to where somebody has asked for it.
    asked: BTreeMap<Place, u64>,
    /// Up to where it was answered, and when: both rise.
    answered: BTreeMap<Place, Vec<(u64, u64)>>,
}

impl Floors {
    pub(super) fn new(only: &[Fault]) -> Floors {
        Floors { is_on: only.contains(&Fault::DeleteRecords), ..Floors::default() }
    }

    /// Below which ordinal records of a lane may be gone.
    pub(super) fn may_be_gone(&self, place: Place) -> u64 {
        self.asked.get(&place).copied().unwrap_or(0)
    }

    /// Who asked at a time for the beginning of a lane, at a node that owns it and knows that, was given this one.
    pub(super) fn begins(&self, place: Place, asked_us: u64, ordinal: u64) -> Result<(), Violation> {
        let known = self.answered.get(&place).into_iter().flatten();
        match known.rev().find(|(at_us, _)| *at_us <= asked_us) {
            Some((_, floor)) if ordinal < *floor => {
                Err(Violation(format!("{place} begins at {ordinal}, and records below {floor} were deleted")))
            }
            _ => Ok(()),
        }
    }

    /// A lane goes on at an ordinal, in front of what is lost: what was deleted behind that says nothing of what is written there.
    pub(super) fn goes_on(&mut self, place: Place, ordinal: u64) {
        let answered = self.answered.get_mut(&place).into_iter().flatten();
        answered.for_each(|(_, floor)| *floor = ordinal.min(*floor));
    }
}

/// As `agree` of `crates/server/src/cluster/floors.rs`.
pub(super) fn agree(log: &Log, known: &ClusterState, stream: StreamId) {
    known.floors(stream).for_each(|(streamlet, lane, _)| agree_one(log, known, (stream, streamlet, lane)));
}

pub(super) fn agree_one(log: &Log, known: &ClusterState, (stream, streamlet, lane): (StreamId, u32, LaneId)) {
    let Some(found) = log.stream(stream) else { return };
    let place = found.streamlet(StreamletId(streamlet)).and_then(|place| place.lane(lane));
    if let (Some(lane), Some(floor)) = (place, known.floor(stream, streamlet, lane)) {
        lane.agree_floor(floor.ordinal);
    }
}

impl World {
    /// Somebody deletes records from the front of a lane that a node owns.
    pub(super) fn wants_deleted(&mut self, node: u32) -> bool {
        let drawn = self.below(1 << 40);
        let Some(running) = self.node_mut(node).running() else { return false };
        let mut lanes = Vec::new();
        for stream in running.log.streams().iter().filter(|stream| !stream.is_system()) {
            for place in stream.streamlets().filter(|place| place.tenure() == Tenure::Here) {
                lanes.extend(place.lanes().filter(|lane| lane.id() != LaneId::PROGRESS).cloned());
            }
        }
        if lanes.is_empty() {
            return false;
        }
        let lane = &lanes[drawn as usize % lanes.len()];
        let (floor, end) = (lane.floor_ordinal(), lane.durable_ordinal());
        // A part of what is left, and all of it now and then.
        let ordinal = floor + (end.saturating_sub(floor)) * (drawn >> 20 & 7) / 7;
        if ordinal <= floor {
            return false;
        }
        let (stream, streamlet, owner_epoch) = (lane.stream_id(), lane.streamlet_id(), lane.owner_epoch());
        let of = LaneFloor { stream, streamlet, lane: lane.id(), owner_epoch, ordinal };
        let asked = self.told.floors.asked.entry(place_of(&of)).or_default();
        *asked = ordinal.max(*asked);
        self.ask(node, Command::SetFloors(SetFloors { floors: vec![of] }));
        true
    }

    /// The coordinators have noted floors, as far as the node that asked knows: it answers if its own lane knows.
    pub(super) fn floors_noted(&mut self, node: u32, asked: &SetFloors, is_noted: bool) {
        let now_us = self.now_us();
        let running = self.nodes[node as usize - 1].running();
        let Some(running) = running.filter(|_| is_noted) else { return };
        for of in &asked.floors {
            let found = running.log.stream(of.stream);
            let Some(place) = found.as_ref().and_then(|found| found.streamlet(of.streamlet)) else { continue };
            let is_told = place.lane(of.lane).is_some_and(|lane| lane.floor_ordinal() >= of.ordinal);
            if place.tenure() != Tenure::Here || !is_told || self.told.floors.may_be_gone(place_of(of)) < of.ordinal {
                continue;
            }
            let known = self.told.floors.answered.entry(place_of(of)).or_default();
            if known.last().is_none_or(|(_, floor)| *floor < of.ordinal) {
                known.push((now_us, of.ordinal));
                *self.told.did.entry("records deleted").or_default() += 1;
            }
        }
    }

    /// Lanes of a node that came back shorter than their floors begin earlier from now on: as `watch` of `crates/server/src/cluster/floors.rs`.
    pub(super) fn look_at_floors(&mut self, node: u32) {
        let known = self.node(node).known.clone();
        let Some(running) = self.node_mut(node).running() else { return };
        let state = lock(&known);
        let mut lower = Vec::new();
        for stream in running.log.streams().into_iter().filter(|stream| stream.has_floors()) {
            for (streamlet, lane, floor) in state.floors(stream.id()) {
                let streamlet = StreamletId(streamlet);
                let found = stream.streamlet(streamlet).filter(|place| place.tenure() == Tenure::Here);
                let Some(place) = found else { continue };
                let owner_epoch = place.owner_epoch();
                let ordinal = place.lane(lane).map_or(floor.ordinal, |lane| lane.floor_ordinal());
                if floor.owner_epoch < owner_epoch && ordinal < floor.ordinal {
                    lower.push(LaneFloor { stream: stream.id(), streamlet, lane, owner_epoch, ordinal });
                }
            }
        }
        drop(state);
        if !lower.is_empty() {
            *self.events_of.entry("floors that are lower").or_default() += 1;
            self.ask(node, Command::SetFloors(SetFloors { floors: lower }));
        }
    }
}

fn place_of(of: &LaneFloor) -> Place {
    Place { stream: of.stream.0, streamlet: of.streamlet.0, lane: of.lane.0 }
}
