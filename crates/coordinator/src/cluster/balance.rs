//! Which streamlets move so that brokers are evened out, by how many they own and by what producers append to them. A pure function of the
//! state and of rates that whoever leads has heard of ([`crate::loads`]); who asks for it, and when it is done without being asked, is
//! elsewhere ([`crate::balancer`]).
//!
//! A streamlet weighs one, and its share of all that is appended on top: `1 + SHARE * N * rate / total`, N streamlets together weigh `N * (1 + SHARE)`. So a
//! cluster in which all streamlets take the same is evened out by their number, and one in which few take nearly everything by those. While less
//! than [`NOTICEABLE`] is appended in all, every streamlet weighs one: then no two brokers differ by more than one streamlet at the end.
//!
//! It ends, and does not go to and fro. A streamlet of weight w moves from a broker to one that is lighter by d only if w < d: that takes `2w(d - w)` from
//! the sum of the squares of what brokers weigh, which is a whole number, so there is a last move. Where the plan is complete, no move is left that would be
//! made, so the next plan with the same rates is empty. Brokers within a [tenth](TOLERANCE) of the mean are left alone, and a move must leave the two closer by as
//! much as that is worth: what changes by less than that from plan to plan moves nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use kera_format::cluster::{ClusterEntry, NodeNumber, Roles};
use kera_format::{Cleanup, StreamId, StreamletId};
use kera_protocol::limits::BALANCE_MOVES_MAX;
use kera_protocol::{BalancePlan, MoveInfo, PlannedMove, PlannedNode, StreamInfo};

use super::plan::Planned;
use super::{ClusterState, Move};
use crate::catalog::SYSTEM_PREFIX;

/// What a streamlet weighs for itself: weights are whole numbers of this part of a streamlet.
const UNIT: u64 = 64;
/// By how much what is appended weighs more than the number of streamlets, all of them taken together.
const SHARE: u64 = 4;
/// Bytes a second, of all brokers together, below which what is appended says nothing.
pub const NOTICEABLE: u64 = 1 << 20;
/// Brokers that differ by less than one part in so many of the mean are even.
const TOLERANCE: u64 = 10;
/// No broker takes more than that in a second: what is told above it is cut.
pub const RATE_MAX: u64 = 1 << 44;

/// Bytes a second that producers append to streamlets, as far as whoever plans has heard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Of single streamlets.
    pub streamlets: BTreeMap<(StreamId, u32), u64>,
    /// Of each other streamlet of brokers that have told. One of a broker that has not counts like the average one.
    pub others: BTreeMap<NodeNumber, u64>,
}

impl Rates {
    /// Of a streamlet of a broker; `None` if nobody has told.
    pub fn of(&self, what: (StreamId, u32), owner: NodeNumber) -> Option<u64> {
        let told = self.streamlets.get(&what).or_else(|| self.others.get(&owner)).copied();
        told.map(|rate| rate.min(RATE_MAX))
    }
}

/// Whether streamlets of a stream may move without anybody asking for it. Not those of which something stays at the node before for ever, or until somebody
/// deletes it: of streams with one copy both nodes are needed from then on, and of compacted ones, or ones that nothing ever leaves, the
/// node before is never empty again. Nor the system's own.
pub fn moves_by_itself(info: &StreamInfo) -> bool {
    let options = &info.options;
    let ends = options.retention_ms.is_some() || options.retention_bytes.is_some() || options.retention_consumed;
    options.replication > 1 && options.cleanup == Cleanup::Delete && ends && !info.name.starts_with(SYSTEM_PREFIX)
}

/// A broker while it is planned.
#[derive(Default)]
struct Side {
    weight: u64,
    streamlets: u64,
    bytes_per_s: u64,
    /// What may leave it, by what it weighs: the last of a stream first.
    gives: BTreeMap<u64, BTreeMap<StreamId, Vec<u32>>>,
    /// How many streamlets of each stream it has.
    of_stream: BTreeMap<StreamId, i64>,
}

/// A streamlet that takes part: whose it is, what it takes, and whether it may go.
struct Part {
    what: (StreamId, u32),
    node: NodeNumber,
    bytes_per_s: Option<u64>,
    may_go: bool,
}

/// What a streamlet of a stream is worth to a plan, the more the better: how much the stream is more at the giver than at the taker, what is left between the two,
/// and the stream, of which the first counts.
type Worth = (i64, Reverse<u64>, u64);

/// A step of a plan.
struct Step {
    what: (StreamId, u32),
    from: NodeNumber,
    to: NodeNumber,
    weight: u64,
}

/// How weights come from rates.
#[derive(Clone, Copy)]
struct Scale {
    streamlets: u64,
    total: u64,
    /// Of a streamlet of a broker that has told nothing.
    average: u64,
}

impl Scale {
    fn new(parts: &[Part]) -> Scale {
        let known = parts.iter().filter_map(|part| part.bytes_per_s);
        let (sum, count) = known.fold((0u64, 0u64), |(sum, count), rate| (sum.saturating_add(rate), count + 1));
        let (average, streamlets) = (sum / count.max(1), parts.len() as u64);
        let total = sum.saturating_add(average.saturating_mul(streamlets - count));
        Scale { streamlets, total, average }
    }

    fn is_by_load(&self) -> bool {
        self.total >= NOTICEABLE
    }

    fn weight(&self, bytes_per_s: u64) -> u64 {
        if !self.is_by_load() {
            return UNIT;
        }
        let (all, total) = (u128::from(SHARE * UNIT * self.streamlets), u128::from(self.total));
        UNIT + ((all * u128::from(bytes_per_s) + total / 2) / total) as u64
    }
}

impl Side {
    fn take(&mut self, stream: StreamId, weight: u64, bytes_per_s: u64) {
        self.weight += weight;
        self.streamlets += 1;
        self.bytes_per_s += bytes_per_s;
        *self.of_stream.entry(stream).or_default() += 1;
    }

    fn give(&mut self, step: &Step, bytes_per_s: u64) {
        let (stream, streamlet) = step.what;
        self.weight -= step.weight;
        self.streamlets -= 1;
        self.bytes_per_s -= bytes_per_s;
        *self.of_stream.entry(stream).or_default() -= 1;
        let Some(class) = self.gives.get_mut(&step.weight) else { return };
        if let Some(streamlets) = class.get_mut(&stream) {
            streamlets.retain(|at| *at != streamlet);
            if streamlets.is_empty() {
                class.remove(&stream);
            }
        }
        if class.is_empty() {
            self.gives.remove(&step.weight);
        }
    }
}

impl ClusterState {
    /// Moves that even out the brokers by how many streamlets they own, at most `limit`; 0: as many as a plan has.
    pub fn rebalance(&self, limit: usize) -> Vec<MoveInfo> {
        self.plan_balance(&Rates::default(), limit, &|_, _| true).moves.iter().map(move_info).collect()
    }

    /// Moves that even out the brokers, at most `limit`, or [`BALANCE_MOVES_MAX`] if that is zero or more than it: each from the heaviest broker to the
    /// lightest that it can give something to, of the streamlets that come closest to evening out the two one of the stream that is spread worst
    /// over them. Only of streamlets that `may` move. Each streamlet is in it once.
    pub fn plan_balance(&self, rates: &Rates, limit: usize, may: &dyn Fn(&StreamInfo, u32) -> bool) -> BalancePlan {
        let mut sides: BTreeMap<NodeNumber, Side> =
            self.loads(&[]).into_keys().map(|node| (node, Side::default())).collect();
        let parts = self.parts(&sides, rates, may);
        let scale = Scale::new(&parts);
        fill(&mut sides, &parts, scale);
        let bytes: BTreeMap<(StreamId, u32), u64> =
            parts.iter().filter_map(|part| Some((part.what, part.bytes_per_s?))).collect();
        let before: Vec<PlannedNode> = sides.iter().map(|(node, side)| planned(*node, side, rates)).collect();
        let all: u64 = sides.values().map(|side| side.weight).sum();
        let tenth = all / (sides.len().max(1) as u64 * TOLERANCE);
        let tolerance = if scale.is_by_load() { tenth.max(UNIT) } else { UNIT };
        let most = if limit == 0 { BALANCE_MOVES_MAX } else { limit.min(BALANCE_MOVES_MAX) };
        let (mut moves, mut steps) = (Vec::<PlannedMove>::new(), 0);
        while moves.len() < most && steps < 4 * most {
            let Some(step) = self.next_step(&sides, tolerance) else { break };
            steps += 1;
            let bytes_per_s = bytes.get(&step.what).copied().unwrap_or(scale.average);
            note(&mut moves, &step, bytes_per_s);
            if let Some(from) = sides.get_mut(&step.from) {
                from.give(&step, bytes_per_s);
            }
            if let Some(to) = sides.get_mut(&step.to) {
                let (stream, streamlet) = step.what;
                to.take(stream, step.weight, bytes_per_s);
                to.gives.entry(step.weight).or_default().entry(stream).or_default().insert(0, streamlet);
            }
        }
        let nodes = before.into_iter().map(|node| match sides.get(&node.node) {
            Some(side) => {
                PlannedNode { streamlets_after: side.streamlets, bytes_per_s_after: side.bytes_per_s, ..node }
            }
            None => node,
        });
        BalancePlan { moves, nodes: nodes.collect(), by_itself: false }
    }

    /// All streamlets of brokers that may give and get, with moves under way counted as done.
    fn parts(
        &self,
        sides: &BTreeMap<NodeNumber, Side>,
        rates: &Rates,
        may: &dyn Fn(&StreamInfo, u32) -> bool,
    ) -> Vec<Part> {
        let mut parts = Vec::new();
        for info in self.catalog.streams() {
            for run in self.owners.get(&info.id).into_iter().flat_map(|of| of.runs()) {
                let owner = run.owner;
                let is_there = !owner.rebuilding && self.is_live(owner.node, owner.epoch);
                for at in run.first..run.end() {
                    let what = (info.id, at);
                    let moves_to = self.moving.get(&what).map(|number| self.moves[number].to);
                    let node = moves_to.unwrap_or(owner.node);
                    if sides.contains_key(&node) {
                        let bytes_per_s = rates.of(what, owner.node);
                        let may_go = is_there && moves_to.is_none() && may(info, at);
                        parts.push(Part { what, node, bytes_per_s, may_go });
                    }
                }
            }
        }
        parts
    }

    /// The next move that is worth it: from the heaviest that can give something to the lightest that it can give it to. Of brokers with the same
    /// weight the one with the lowest number.
    fn next_step(&self, sides: &BTreeMap<NodeNumber, Side>, tolerance: u64) -> Option<Step> {
        let mut light: Vec<(u64, NodeNumber)> = sides.iter().map(|(node, side)| (side.weight, *node)).collect();
        light.sort_unstable();
        let mut heavy = light.clone();
        heavy.sort_unstable_by_key(|(weight, node)| (Reverse(*weight), *node));
        for (has, from) in heavy {
            let worth = |(weight, _): &&(u64, NodeNumber)| has.saturating_sub(*weight) > tolerance;
            let found = light.iter().take_while(worth).find_map(|(weight, to)| {
                let (what, weight) = self.choose(sides, (from, *to), has - weight, tolerance)?;
                Some(Step { what, from, to: *to, weight })
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// What goes from one to another that is lighter by so much, and what it weighs.
    fn choose(
        &self,
        sides: &BTreeMap<NodeNumber, Side>,
        (from, to): (NodeNumber, NodeNumber),
        apart: u64,
        tolerance: u64,
    ) -> Option<((StreamId, u32), u64)> {
        let (giver, taker) = (sides.get(&from)?, sides.get(&to)?);
        let most = apart.saturating_sub((tolerance / 2).max(1));
        // What is left between the two, whichever is heavier then.
        let left = |weight: u64| apart.abs_diff(2 * weight);
        let mut classes: Vec<u64> = giver.gives.range(..=most).map(|(weight, _)| *weight).collect();
        classes.sort_unstable_by_key(|weight| (left(*weight), *weight));
        let mut best: Option<(Worth, (StreamId, u64))> = None;
        let mut close = u64::MAX;
        for weight in classes {
            if left(weight) > close {
                break;
            }
            let spread = |stream: &StreamId| {
                let of = |side: &Side| side.of_stream.get(stream).copied().unwrap_or(0);
                (of(giver) - of(taker), Reverse(left(weight)), u64::MAX - stream.0)
            };
            let suits = |stream: &&StreamId| {
                let name = self.name_of(**stream);
                self.suits(name, to) || !self.suits(name, from)
            };
            let worst =
                giver.gives[&weight].keys().filter(suits).map(|stream| (spread(stream), (*stream, weight))).max();
            if worst.is_some() && close == u64::MAX {
                // What is as good but for a streamlet is chosen from by how its stream is spread.
                close = left(weight) + UNIT;
            }
            best = best.max(worst);
        }
        let (_, (stream, weight)) = best?;
        let streamlet = *giver.gives[&weight][&stream].last()?;
        Some(((stream, streamlet), weight))
    }

    /// The entries of moves that are still to be made: without those that cannot be by now.
    pub fn plan_moves(&self, moves: &[MoveInfo]) -> Planned {
        let mut entries = Vec::new();
        for MoveInfo { stream, streamlet, from, to, .. } in moves.iter().copied() {
            let number = self.next_move.max(1) + entries.len() as u64;
            if self.check_may_move((stream, streamlet.0), from, to).is_ok() {
                entries.push(ClusterEntry::MoveNoted { number, stream, streamlet: streamlet.0, from, to });
            }
        }
        Ok(entries)
    }

    /// Whether nothing is under way that moves streamlets, or that moving some would disturb: no node is lost, nothing waits for lost nodes or is rebuilt,
    /// no node is being emptied, and nothing moves but what is `own`, or moves to itself.
    pub fn is_calm(&self, own: impl Fn(&Move) -> bool) -> bool {
        let is_settled = |node: &super::NodeState| !(node.fenced || node.draining && node.streamlets > 0);
        self.nodes.values().all(is_settled)
            && self.moves.values().all(|of| of.from == of.to || own(of))
            && self.rebuilding().next().is_none()
            && !self.held_copied().any(|(_, held)| self.is_lost(&held))
            && self.lost().is_empty()
    }

    /// Brokers that are live and may own streamlets, each with its epoch.
    pub fn brokers(&self) -> Vec<(NodeNumber, u32)> {
        let live = self.nodes.iter().filter(|(_, node)| node.is_live(Roles::BROKER) && !node.draining);
        live.map(|(number, node)| (*number, node.epoch)).collect()
    }
}

/// Gives brokers what they have.
fn fill(sides: &mut BTreeMap<NodeNumber, Side>, parts: &[Part], scale: Scale) {
    for part in parts {
        let Some(side) = sides.get_mut(&part.node) else { continue };
        let bytes_per_s = part.bytes_per_s.unwrap_or(scale.average);
        let weight = scale.weight(bytes_per_s);
        side.take(part.what.0, weight, bytes_per_s);
        if part.may_go {
            side.gives.entry(weight).or_default().entry(part.what.0).or_default().push(part.what.1);
        }
    }
}

/// A planned move as others are told.
pub fn move_info(of: &PlannedMove) -> MoveInfo {
    MoveInfo { number: 0, stream: of.stream, streamlet: of.streamlet, from: of.from, to: of.to }
}

fn planned(node: NodeNumber, side: &Side, rates: &Rates) -> PlannedNode {
    PlannedNode {
        node,
        told: rates.others.contains_key(&node),
        streamlets: side.streamlets,
        bytes_per_s: side.bytes_per_s,
        streamlets_after: side.streamlets,
        bytes_per_s_after: side.bytes_per_s,
    }
}

/// Adds a step to a plan. What moves on in it goes at once to where it ends.
fn note(moves: &mut Vec<PlannedMove>, step: &Step, bytes_per_s: u64) {
    let (stream, streamlet, to) = (step.what.0, StreamletId(step.what.1), step.to);
    match moves.iter().position(|of| (of.stream, of.streamlet) == (stream, streamlet)) {
        Some(at) if moves[at].from == to => drop(moves.remove(at)),
        Some(at) => moves[at].to = to,
        None => moves.push(PlannedMove { stream, streamlet, from: step.from, to, bytes_per_s }),
    }
}
