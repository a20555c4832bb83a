//! The streams of a run: those that it begins with, and those that people make and delete while nodes are down, stand still, are cut off or are behind. Whoever uses a new one begins
//! as soon as anybody knows of it: its owners may not have heard of it yet, or be told just now.
//!
//! | checked | when |
//! | --- | --- |
//! | a stream that was deleted is nowhere where that was told, and never comes back | all the time |
//! | nobody says that a stream is not there which is | whenever somebody is asked who owns it, or it is written to or read |
//! | all nodes were told all that is true, and know whose everything is | when everything is healed |

use std::collections::BTreeSet;

use kera_coordinator::catalog::Limits;
use kera_env::Clock;
use kera_format::{Cleanup, Durability, Order, ReplicationMode, StreamId, StreamOptions};
use kera_protocol::CreateStream;

use super::coordinators::Command;
use super::faults::Fault;
use super::node::Node;
use super::plan::{Kind, Plan, Planted};
use super::producer::Producer;
use super::reader::Reader;
use super::world::{Event, World};
use crate::cluster::truth::{Place, Violation};

/// Streams that people make have one of these names, those that come after another one was deleted too.
const NAMES: [&str; 4] = ["orders", "clicks", "a-log", "zones"];
/// Most of them that there are at a time, and that are made in a run.
const THERE_MAX: usize = 3;
const MADE_MAX: usize = 12;
/// The number of the first one's producer.
const PRODUCERS_FROM: u32 = 100;
/// How many records that one writes to each streamlet, and in what time it could.
const RECORDS: u64 = 40;
const WRITES_MS: u64 = 3_000;

/// See the module.
#[derive(Default)]
pub(super) struct Streams {
    /// People make some, or delete them.
    is_on: bool,
    /// All that there ever were.
    known: BTreeSet<StreamId>,
    /// Those that people have made.
    made: BTreeSet<StreamId>,
    /// Lanes of all that are there.
    places: Vec<Place>,
}

impl Streams {
    pub(super) fn new(only: &[Fault]) -> Streams {
        let is_on = [Fault::MakeStream, Fault::DeleteStream].iter().any(|fault| only.contains(fault));
        Streams { is_on, ..Streams::default() }
    }

    /// Lanes of all streams that are there.
    pub(super) fn places(&self) -> Vec<Place> {
        self.places.clone()
    }

    /// There is one more.
    pub(super) fn begin(&mut self, stream: StreamId, options: &StreamOptions) {
        let place = |streamlet, lane| Place { stream: stream.0, streamlet, lane };
        let of = |streamlet| (0..options.lanes).map(move |lane| place(streamlet, lane));
        self.places.extend((0..options.streamlets).flat_map(of));
        self.known.insert(stream);
    }
}

impl World {
    /// One or two streams, with sizes and guarantees as the seed has them; one of them forgets.
    pub(super) fn create_streams(&mut self) -> Result<Vec<(StreamId, StreamOptions)>, Violation> {
        let mut made = Vec::new();
        for name in ["events", "measures"].into_iter().take(1 + self.below(2) as usize) {
            let is_kept = self.plan.kind.is_of_applications() || self.plan.kind.is_compacted();
            let may_go = self.plan.retention && !self.plan.retention_bytes && !is_kept;
            let retention_ms = (self.below(2) == 0 && may_go).then(|| 3_000 + self.below(10_000));
            // Of two streams one may have copies beside it.
            let has_one = self.plan.has_one_copy() && (name == "events" || self.plan.seed & 2 == 0);
            let mut options = StreamOptions {
                streamlets: if self.plan.three { 6 } else { 1 + self.below(3) as u32 },
                lanes: 1 + self.below(2) as u32,
                segments_per_group: 1 + self.below(3) as u32,
                segment_bytes_max: 64 << (10 + self.below(2)),
                replication: self.replication,
                durability: if self.power { Durability::Power } else { Durability::Process },
                virtual_logs: self.below(2) as u32,
                retention_ms,
                retention_consumed: self.plan.kind.is_consumed(),
                order: if self.plan.kind == Kind::Unordered { Order::None } else { Order::Lane },
                ..StreamOptions::default()
            };
            if has_one {
                (options.replication, options.virtual_logs) = (1, 0);
            }
            if self.plan.kind == Kind::Async {
                options.replication_mode = ReplicationMode::Async;
            }
            if self.plan.kind.is_compacted() {
                options.cleanup = Cleanup::Compact;
                options.compact_dirty_percent = [1, 20, 50][self.below(3) as usize];
                options.tombstone_ms = 1_000 + self.below(5_000);
            }
            let kept = self.plan.retention_bytes.then(|| {
                let segment = u64::from(options.segment_bytes_max);
                (2 * segment + self.below(2 * segment), segment)
            });
            let share = if self.plan.planted == Some(Planted::KeepsTooLittle) { 4 } else { 1 };
            options.retention_bytes = kept.map(|(bytes, _)| bytes / share);
            let request = CreateStream { name: name.to_owned(), options: options.clone(), if_not_exists: true };
            self.wait_for_leader()?;
            let (most, now_ms) = (Limits { streams: 10, nodes: 16 }, self.clock.now_ms());
            let before = self.coordinators.index();
            let told = self.coordinators.commit(|state| state.plan_create_stream(&request, &most, now_ms, false))?;
            told.map_err(|why| Violation(format!("the stream is refused: {why}")))?;
            let leader = self.coordinators.leader.unwrap_or(1);
            self.agree(leader)?;
            self.spread(leader, before)?;
            let info = self.coordinators.state.catalog.streams().find(|info| info.name == name);
            let id = info.map(|info| info.id).ok_or_else(|| Violation("there is no stream".to_owned()))?;
            self.told.retention_ms.extend(retention_ms.map(|ms| (id.0, ms)));
            if let Some(kept) = kept {
                self.told.bounds.keeps(id.0, kept);
            }
            self.told.is_consumed = options.retention_consumed;
            self.told.is_compacted = options.cleanup == Cleanup::Compact;
            made.push((id, options));
        }
        Ok(made)
    }

    /// Where people make and delete streams, others look for them.
    pub(super) fn begin_to_look_at_streams(&mut self) {
        if self.streams.is_on {
            self.schedule.after(1, Event::Streams);
        }
    }

    /// A person asks any node to have a stream made.
    pub(super) fn wants_stream(&mut self, at: u32) -> bool {
        let name = NAMES[self.below(NAMES.len() as u64) as usize];
        let catalog = &self.coordinators.state.catalog;
        let is_there = |stream: &&StreamId| catalog.find(&(**stream).into()).is_ok();
        let is_full = self.streams.made.iter().filter(is_there).count() >= THERE_MAX;
        let is_taken = catalog.streams().any(|info| info.name == name);
        if is_full || is_taken || self.streams.made.len() >= MADE_MAX || self.node(at).process.is_none() {
            return false;
        }
        let options = StreamOptions {
            streamlets: 1 + self.below(2) as u32,
            lanes: 1,
            segments_per_group: 1 + self.below(3) as u32,
            segment_bytes_max: 64 << 10,
            replication: self.replication,
            durability: if self.power { Durability::Power } else { Durability::Process },
            virtual_logs: self.below(2) as u32,
            ..StreamOptions::default()
        };
        let request = CreateStream { name: name.to_owned(), options, if_not_exists: true };
        self.ask(at, Command::Create(Box::new(request)));
        true
    }

    /// A person asks any node to have one of those deleted that people have made.
    pub(super) fn wants_stream_gone(&mut self, at: u32) -> bool {
        let gone = &self.coordinators.gone;
        let there: Vec<StreamId> = self.streams.made.iter().copied().filter(|of| !gone.contains_key(of)).collect();
        if there.is_empty() || self.node(at).process.is_none() {
            return false;
        }
        let stream = there[self.below(there.len() as u64) as usize];
        self.ask(at, Command::Delete(stream));
        true
    }

    /// Clients look which streams there are, and use those that are new.
    pub(super) fn look_at_streams(&mut self) -> Result<(), Violation> {
        let pause_us = 1_000 + self.below(10_000);
        self.schedule.after(pause_us, Event::Streams);
        let away = u64::from(self.is_anybody_away());
        let gone = &self.coordinators.gone;
        let was = self.streams.places.len();
        self.streams.places.retain(|place| !gone.contains_key(&StreamId(place.stream)));
        if self.streams.places.len() < was {
            *self.events_of.entry("streams deleted").or_default() += 1;
            *self.events_of.entry("streams deleted while a node was away").or_default() += away;
        }
        let all = self.coordinators.state.catalog.streams();
        let new = all.filter(|info| !self.streams.known.contains(&info.id));
        let new: Vec<(StreamId, StreamOptions)> = new.map(|info| (info.id, info.options.clone())).collect();
        for (stream, options) in new {
            *self.events_of.entry("streams made").or_default() += 1;
            *self.events_of.entry("streams made while a node was away").or_default() += away;
            if away > 0 {
                self.told.made_while_away.insert(stream.0);
            }
            self.use_stream(stream, &options)?;
        }
        self.look_for_returned()
    }

    /// Whether a node is down, has not joined, stands still, or hears nothing of who leads.
    fn is_anybody_away(&self) -> bool {
        let (now_us, leader) = (self.now_us(), self.coordinators.leader);
        let is_away = |node: &Node| {
            let has_joined = node.process.as_ref().is_some_and(|process| process.running.is_some());
            let is_cut_off = leader.is_some_and(|leader| self.cuts.until_us(leader, node.number) > now_us);
            !has_joined || is_cut_off || now_us < node.frozen_until_us
        };
        self.nodes.iter().any(|node| !node.is_gone && is_away(node))
    }

    /// Somebody writes to a stream that people have made, and others read it.
    fn use_stream(&mut self, stream: StreamId, options: &StreamOptions) -> Result<(), Violation> {
        let number = PRODUCERS_FROM + self.streams.made.len() as u32;
        let plan = Plan { records: RECORDS, trouble_ms: WRITES_MS, ..self.plan.clone() };
        self.streams.made.insert(stream);
        self.streams.begin(stream, options);
        self.add(Box::new(Producer::new(number, stream, options.streamlets, &plan)))?;
        for place in self.streams.places().into_iter().filter(|place| place.stream == stream.0) {
            self.add(Box::new(Reader::new(place)))?;
        }
        Ok(())
    }

    /// Nodes have nothing of streams of which they were told that they are gone.
    fn look_for_returned(&mut self) -> Result<(), Violation> {
        for node in &self.nodes {
            let running = node.process.as_ref().and_then(|process| process.running.as_ref());
            let Some(running) = running.filter(|running| running.hearing.serves()) else { continue };
            let heard = node.heard();
            for (stream, _) in self.coordinators.gone.iter().filter(|(_, index)| **index <= heard) {
                let has_owners = running.broker.ownership().owners(*stream).is_some();
                if has_owners || running.log.stream(*stream).is_some() {
                    let number = node.number;
                    return Err(Violation(format!("node {number} has stream {stream}, and was told that it is gone")));
                }
            }
        }
        self.truth.checked();
        Ok(())
    }

    /// Nodes that were not told all that is true, or do not know whose something is, where they are told in pieces or streams come and go.
    pub(super) fn unheard(&self) -> Vec<String> {
        if !self.plan.in_pieces && !self.streams.is_on {
            return Vec::new();
        }
        let (state, index) = (&self.coordinators.state, self.coordinators.index());
        let mut unheard = Vec::new();
        for node in self.nodes.iter().filter(|node| !node.is_gone) {
            let number = node.number;
            let Some(running) = node.process.as_ref().and_then(|process| process.running.as_ref()) else { continue };
            if node.heard() < index || !running.hearing.serves() {
                unheard.push(format!("node {number} was told of entries up to {}, of {index}", node.heard()));
                continue;
            }
            for info in state.catalog.streams() {
                let owners = state.placed(number, info.id).map(|placed| placed.owners);
                if running.broker.ownership().owners(info.id) != owners {
                    unheard.push(format!("node {number} does not know who owns stream {}: {owners:?}", info.id));
                }
            }
        }
        unheard
    }
}
