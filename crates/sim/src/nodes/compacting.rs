//! What the compaction's thread does (`crates/server/src/node/compaction.rs`), by turns: a pass at a time, which ends in the midst now and then. What other
//! nodes have of a streamlet (`crates/server/src/cluster/elsewhere.rs`) it reads at once, of those that it hears.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kera_broker::{Broker, elsewhere};
use kera_coordinator::cluster::ClusterState;
use kera_env::{Clock, SeededRandom};
use kera_format::{ChunkView, Cursor};
use kera_log::compact::{CompactionConfig, Compactor, Others, Run, Stepped};
use kera_log::store::DiskStore;
use kera_log::{Lane, Log};
use kera_protocol::read::{ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED};
use kera_protocol::{
    Body, FRAME_HEADER_BYTES, FrameHeader, Message, ReadChunks, ReadChunksResponse, ReadEntry, Status,
};

use super::copies::lock;
use super::node::Node;
use super::sessions::{OUTBOX_BYTES, Said, Sessions};
use super::world::{Event, World};
use crate::cluster::truth::Violation;

/// Between two passes, on average, in microseconds.
const PASS_US: u64 = 300_000;
const READ_BYTES: u32 = 64 << 10;
/// A connection of which the other node has no other.
const WIRE: u64 = 0;

/// See the module.
pub(super) struct Elsewhere {
    node: u32,
    known: Arc<Mutex<ClusterState>>,
    /// Who is heard at the moment.
    heard: Mutex<BTreeMap<u32, Arc<Broker>>>,
}

impl Elsewhere {
    pub(super) fn new(node: u32, known: &Arc<Mutex<ClusterState>>) -> Elsewhere {
        Elsewhere { node, known: known.clone(), heard: Mutex::default() }
    }

    fn ask(&self, node: u32, lane: &Lane, cursor: Cursor) -> Result<ReadChunksResponse, String> {
        let heard = lock(&self.heard);
        let is_known = lock(&self.known).nodes().get(&node).is_some_and(|node| !node.fenced);
        let broker = heard.get(&node).filter(|_| is_known).ok_or_else(|| format!("node {node} is not there"))?;
        let (stream, streamlet, flags) =
            (lane.stream_id(), lane.streamlet_id(), ENTRY_FOLLOW_GROUPS | ENTRY_UNCOMMITTED);
        let entry = ReadEntry { stream, streamlet, lane: lane.id(), cursor, max_bytes: 0, flags };
        let asked = ReadChunks { max_wait_ms: 0, min_bytes: 1, max_bytes: READ_BYTES, entries: vec![entry] };
        let (op, version, mut body) = (ReadChunks::OP, ReadChunks::OP.version_max(), Vec::new());
        asked.encode(version, &mut body);
        let frame_bytes = (FRAME_HEADER_BYTES + body.len()) as u32;
        let header = FrameHeader { frame_bytes, op: op as u16, version, ..FrameHeader::default() };
        let (mut sessions, mut said) = (Sessions::default(), Vec::new());
        sessions.connect(broker, WIRE, OUTBOX_BYTES);
        sessions.request(WIRE, header, Bytes::from(body), &mut said);
        sessions.close_all();
        let answer = said.into_iter().find_map(|said| match said {
            Said::Frame(_, header, body) => Some((header, body)),
            Said::Closed(_) => None,
        });
        // A node that has to bring it back from its disk first says nothing yet; it is there for a later pass.
        let (header, body) = answer.ok_or_else(|| format!("node {node} says nothing yet"))?;
        if header.status != Status::Ok as u16 {
            return Err(format!("node {node} says {}", header.status));
        }
        ReadChunksResponse::decode(version, &body).map_err(|error| error.to_string())
    }
}

impl Others for Elsewhere {
    fn runs(&self, lane: &Lane) -> Option<Vec<Run>> {
        let (stream, streamlet) = (lane.stream_id(), lane.streamlet_id());
        let known = lock(&self.known);
        let owner = known.placed(self.node, stream)?.owners.into_iter().nth(streamlet.0 as usize)?;
        let is_rebuilt = known.owner(stream, streamlet.0)?.rebuilding;
        elsewhere::runs(self.node, lane, &owner, is_rebuilt)
    }

    fn read(
        &self,
        lane: &Lane,
        node: u32,
        epochs: Range<u32>,
        each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
    ) -> Result<(), String> {
        elsewhere::read(node, epochs, &mut |cursor| self.ask(node, lane, cursor), each)
    }
}

impl World {
    /// A pass over the lane of a node that is worth it most.
    pub(super) fn compact(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        let pause_us = PASS_US / 2 + self.below(PASS_US);
        self.schedule.after(pause_us, Event::Compact(node, life));
        if !self.is_compacting {
            return Ok(());
        }
        let now_us = self.now_us();
        let hears = |other: &Node| {
            let is_there = other.number != node && now_us >= other.frozen_until_us;
            is_there && self.cuts.is_whole(node, other.number, now_us)
        };
        let heard = self.nodes.iter().filter(|other| hears(other)).filter_map(|other| {
            let running = other.process.as_ref()?.running.as_ref()?;
            Some((other.number, running.broker.clone()))
        });
        let heard: BTreeMap<u32, Arc<Broker>> = heard.collect();
        // Some passes are ended in their midst, as by the end of the thread.
        let mut left = if self.below(4) == 0 { self.below(12) } else { u64::MAX };
        let at = self.node_mut(node);
        let is_sound = !at.is_flipped && !at.is_troubled;
        let Some(running) = at.running() else { return Ok(()) };
        let before = running.compactor.stats();
        *lock(&running.elsewhere.heard) = heard;
        let stepped = running.compactor.step(&mut || {
            left = left.saturating_sub(1);
            left > 0
        });
        lock(&running.elsewhere.heard).clear();
        let after = running.compactor.stats();
        *self.events_of.entry("compaction's passes").or_default() += after.passes - before.passes;
        *self.events_of.entry("records removed by compaction").or_default() +=
            after.removed_records - before.removed_records;
        let is_off = self.node(node).memory.is_off();
        match stepped {
            Stepped::Failed if is_sound && !is_off => {
                let error = after.last_error.unwrap_or_default();
                Err(Violation(format!("node {node} cannot compact what is on a sound disk: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// The compactor of a node, and what it sees of others.
pub(super) fn compactor(
    (log, store): (&Arc<Log>, &Arc<DiskStore>),
    clock: &Arc<dyn Clock>,
    (seed, elsewhere): (u64, &Arc<Elsewhere>),
    removes_blindly: bool,
) -> Compactor {
    let config = CompactionConfig { keys_bytes: 1 << 20, retry_ms: 1_000, knows_transactions: true };
    let compactor = Compactor::new(log.clone(), store.clone(), clock.clone(), &SeededRandom::new(!seed), config);
    if removes_blindly { compactor } else { compactor.with_others(elsewhere.clone()) }
}
