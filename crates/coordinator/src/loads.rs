//! What brokers say that they take, as the leader of the coordinators remembers it: in its memory only, never in the coordinators' log. A leader that has
//! just become one knows nothing, and hears from all brokers within a second or two.
//!
//! Bounded by what it is told: of each broker the busiest [`LOAD_STREAMLETS_MAX`] streamlets by themselves, and of the others what they take together.

use std::collections::BTreeMap;

use kera_format::StreamId;
use kera_format::cluster::NodeNumber;
use kera_protocol::NodeLoad;
use kera_protocol::limits::LOAD_STREAMLETS_MAX;

use crate::cluster::{ClusterState, RATE_MAX, Rates};

/// What a broker has said counts for so long: it says it each five seconds.
const TOLD_US: u64 = 30_000_000;
/// What the broker before has said of a streamlet that has moved counts until the new one must have measured it.
const MOVED_US: u64 = 15_000_000;
/// A leader that has led for so long plans without those that say nothing: they are of a version that does not.
const HEARS_US: u64 = 6_000_000;
/// Most single streamlets that are remembered, of all brokers.
const STREAMLETS_MAX: usize = 16_384;

/// What a broker has said of all its streamlets but the busiest.
#[derive(Clone, Copy, Debug)]
struct Told {
    epoch: u32,
    at_us: u64,
    /// Bytes a second of each of them.
    others: u64,
}

/// What is known of one streamlet.
#[derive(Clone, Copy, Debug)]
struct Known {
    bytes_per_s: u64,
    by: NodeNumber,
    at_us: u64,
}

/// See the module. Time is monotonic microseconds.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    since_us: Option<u64>,
    told: BTreeMap<NodeNumber, Told>,
    streamlets: BTreeMap<(StreamId, u32), Known>,
}

impl Loads {
    /// This node leads from now on, if it did not before.
    pub fn leads(&mut self, now_us: u64) {
        self.since_us.get_or_insert(now_us);
    }

    /// It leads no more: what it has heard is not kept up to date.
    pub fn forget(&mut self) {
        *self = Loads::default();
    }

    /// A broker says what it takes. What it says of streamlets that it does not own, or beyond the limits, is not looked at; an incarnation that is over
    /// says nothing.
    pub fn hear(&mut self, state: &ClusterState, said: &NodeLoad, now_us: u64) {
        let (node, owner) = (said.node, |what: &(StreamId, u32)| state.owner(what.0, what.1).map(|owner| owner.node));
        if !state.is_live(node, said.epoch) {
            return;
        }
        let listed: BTreeMap<(StreamId, u32), u64> = (said.streamlets.iter().take(LOAD_STREAMLETS_MAX))
            .map(|of| ((of.stream, of.streamlet.0), of.bytes_per_s.min(RATE_MAX)))
            .filter(|(what, _)| owner(what) == Some(node))
            .collect();
        let is_fresh = |at_us: u64, for_us: u64| now_us.saturating_sub(at_us) < for_us;
        self.streamlets.retain(|what, known| match owner(what) {
            None => false,
            Some(at) if at == node && known.by == node => false,
            Some(at) if at == node => is_fresh(known.at_us, MOVED_US),
            Some(_) => is_fresh(known.at_us, TOLD_US),
        });
        let has = state.node(node).map_or(0, |known| known.streamlets).saturating_sub(listed.len() as u64);
        let sum = listed.values().fold(0u64, |sum, rate| sum.saturating_add(*rate));
        let others = said.bytes_per_s.min(RATE_MAX).saturating_sub(sum) / has.max(1);
        self.told.insert(node, Told { epoch: said.epoch, at_us: now_us, others });
        for (what, bytes_per_s) in listed {
            self.note(what, Known { bytes_per_s, by: node, at_us: now_us });
        }
        self.told.retain(|node, told| state.is_live(*node, told.epoch));
    }

    /// Streamlets begin to move away from brokers: they take there what they took here until the new owners have measured it.
    pub fn moving(&mut self, state: &ClusterState, moves: &[(StreamId, u32, NodeNumber)], now_us: u64) {
        let rates = self.rates(state, now_us);
        for (stream, streamlet, by) in moves.iter().copied() {
            if let Some(bytes_per_s) = rates.of((stream, streamlet), by) {
                self.note((stream, streamlet), Known { bytes_per_s, by, at_us: now_us });
            }
        }
    }

    fn note(&mut self, what: (StreamId, u32), known: Known) {
        if self.streamlets.len() < STREAMLETS_MAX || self.streamlets.contains_key(&what) {
            self.streamlets.insert(what, known);
        }
    }

    /// What streamlets take, by what was said a short while ago.
    pub fn rates(&self, state: &ClusterState, now_us: u64) -> Rates {
        let is_fresh = |at_us: u64| now_us.saturating_sub(at_us) < TOLD_US;
        let told = self.told.iter().filter(|(node, told)| is_fresh(told.at_us) && state.is_live(**node, told.epoch));
        let known = self.streamlets.iter().filter(|(_, known)| is_fresh(known.at_us));
        Rates {
            streamlets: known.map(|(what, known)| (*what, known.bytes_per_s)).collect(),
            others: told.map(|(node, told)| (*node, told.others)).collect(),
        }
    }

    /// Whether enough has been heard to plan with it: all brokers have said what they take, or the node has led for so long that the others will not.
    pub fn has_heard(&self, state: &ClusterState, now_us: u64) -> bool {
        let Some(since_us) = self.since_us else { return false };
        let is_told = |(node, epoch): &(NodeNumber, u32)| self.told.get(node).is_some_and(|told| told.epoch == *epoch);
        now_us.saturating_sub(since_us) >= HEARS_US || state.brokers().iter().all(is_told)
    }
}
