//! When the leader of the coordinators evens out the brokers without anybody asking: pure logic over monotonic time, with
//! [`ClusterState::plan_balance`] for what moves. `docs/decisions/0042-nodes-even-out-by-themselves.md` has the reasons.
//!
//! * Only while the cluster is [calm](ClusterState::is_calm), and has been for as long as [`BalanceConfig::after_us`], with the same brokers, each in the same
//!   incarnation. A broker that was lost several times in half an hour has to stay for longer: twice, four, up to sixteen times as long.
//! * Only if it is worth it: a broker owns a quarter fewer streamlets than the mean, as one that is new or back does; or one takes
//!   half more than the mean, and a MiB a second more, for as long as the cluster has to be calm.
//! * A few moves at a time, and not many a second; then all of it is looked at again.
//! * A streamlet moves once in some minutes, whether or not the move comes to pass; what a person has moved rests as well.
//!
//! A leader that has just become one waits anew: it remembers nothing of the one before.

use std::collections::{BTreeMap, VecDeque};

use kera_format::StreamId;
use kera_format::cluster::NodeNumber;
use kera_protocol::{BalancePlan, MoveInfo, PlannedNode};

use crate::cluster::{ClusterState, MOVES_MAX, NOTICEABLE, Rates, move_info, moves_by_itself};

/// Time between two rounds of moves: with [`MOVES_MAX`] at a time eight moves a second at most.
const ROUND_US: u64 = 500_000;
/// The longest time between two looks whether anything is to be done.
const LOOK_US_MAX: u64 = 10_000_000;
/// A streamlet is not moved again for so long.
const RESTS_US: u64 = 300_000_000;
/// Most streamlets whose rest is remembered.
const RESTING_MAX: usize = 16_384;
/// Moves of one plan: what comes behind them is planned anew.
const PLAN_MOVES: usize = 64;
/// Losses of a broker are remembered for so long, and so many of them.
const LOSSES_US: u64 = 1_800_000_000;
const LOSSES_MAX: usize = 5;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BalanceConfig {
    /// For how long the cluster has to be calm; `None`: brokers are evened out when somebody asks for it only.
    pub after_us: Option<u64>,
}

/// See the module. Owned by the leader's driver.
#[derive(Clone, Debug)]
pub struct Balancer {
    config: BalanceConfig,
    brokers: Vec<(NodeNumber, u32)>,
    calm_since_us: Option<u64>,
    losses: BTreeMap<NodeNumber, VecDeque<u64>>,
    /// Since when one broker takes much more than the others.
    uneven_since_us: Option<u64>,
    next_us: u64,
    /// What was planned and has not begun.
    queue: VecDeque<MoveInfo>,
    /// What has begun, by itself.
    under_way: Vec<(StreamId, u32)>,
    /// Since when streamlets rest.
    rests: BTreeMap<(StreamId, u32), u64>,
    /// Moves since the brokers were found uneven; nothing while they are even.
    begun: Option<u64>,
}

impl Balancer {
    /// One that has just begun to lead.
    pub fn new(config: BalanceConfig) -> Balancer {
        Balancer {
            config,
            brokers: Vec::new(),
            calm_since_us: None,
            losses: BTreeMap::new(),
            uneven_since_us: None,
            next_us: 0,
            queue: VecDeque::new(),
            under_way: Vec::new(),
            rests: BTreeMap::new(),
            begun: None,
        }
    }

    /// The node leads no more.
    pub fn forget(&mut self) {
        *self = Balancer::new(self.config);
    }

    /// Looks at the cluster; the moves that are to begin now. `rates` is asked for what brokers take, and says nothing while that is not known yet.
    /// To be called often: it is little work while nothing is to be done.
    pub fn look(&mut self, now_us: u64, state: &ClusterState, rates: impl FnOnce() -> Option<Rates>) -> Vec<MoveInfo> {
        let Some(after_us) = self.config.after_us else { return Vec::new() };
        self.under_way.retain(|(stream, streamlet)| state.move_of(*stream, *streamlet).is_some());
        self.note_brokers(state, now_us);
        if now_us < self.next_us {
            return Vec::new();
        }
        self.next_us = now_us + (after_us / 6).clamp(ROUND_US / 5, LOOK_US_MAX);
        if !state.is_calm(|of| self.under_way.contains(&(of.stream, of.streamlet))) {
            (self.calm_since_us, self.uneven_since_us) = (None, None);
            self.stop();
            return Vec::new();
        }
        let since_us = *self.calm_since_us.get_or_insert(now_us);
        let calm_us = now_us.saturating_sub(since_us);
        if self.queue.is_empty() && self.under_way.is_empty() {
            let Some(rates) = rates() else { return Vec::new() };
            self.plan(now_us, state, &rates, (calm_us, after_us));
        }
        self.next_round(now_us, state)
    }

    /// A streamlet moves, whoever wants it: it stays where it goes for a while, unless somebody asks for something else.
    pub fn rest(&mut self, what: (StreamId, u32), now_us: u64) {
        if self.rests.len() < RESTING_MAX || self.rests.contains_key(&what) {
            self.rests.insert(what, now_us);
        }
    }

    /// Whether the brokers are the same as before. One that is lost, or is another incarnation by now, is remembered.
    fn note_brokers(&mut self, state: &ClusterState, now_us: u64) {
        let brokers = state.brokers();
        if brokers == self.brokers {
            return;
        }
        for (node, epoch) in std::mem::replace(&mut self.brokers, brokers) {
            if !self.brokers.contains(&(node, epoch)) && state.node(node).is_none_or(|known| !known.draining) {
                let losses = self.losses.entry(node).or_default();
                losses.push_back(now_us);
                if losses.len() > LOSSES_MAX {
                    losses.pop_front();
                }
            }
        }
        self.losses.retain(|node, losses| {
            losses.retain(|at_us| now_us.saturating_sub(*at_us) < LOSSES_US);
            !losses.is_empty() && state.node(*node).is_some()
        });
        (self.calm_since_us, self.uneven_since_us) = (None, None);
        self.stop();
    }

    /// How much longer than usual the cluster has to be calm, because of a broker that is lost again and again.
    fn patience(&self) -> u64 {
        let times = self.brokers.iter().filter_map(|(node, _)| self.losses.get(node)).map(VecDeque::len).max();
        1 << times.unwrap_or(0).saturating_sub(1)
    }

    fn stop(&mut self) {
        self.queue.clear();
        if let Some(moves) = self.begun.take() {
            tracing::info!(moves, "the nodes are not evened out any more for now: the cluster is not calm");
        }
    }

    /// Plans what is to move if it is worth it, or goes on with what it has begun.
    fn plan(&mut self, now_us: u64, state: &ClusterState, rates: &Rates, (calm_us, after_us): (u64, u64)) {
        self.rests.retain(|_, since_us| now_us.saturating_sub(*since_us) < RESTS_US);
        let rests = &self.rests;
        let plan = state.plan_balance(rates, PLAN_MOVES, &|info, streamlet| {
            moves_by_itself(info) && !rests.contains_key(&(info.id, streamlet))
        });
        let is_loaded = takes_much_more(&plan.nodes);
        let uneven_since_us = if is_loaded { Some(*self.uneven_since_us.get_or_insert(now_us)) } else { None };
        self.uneven_since_us = uneven_since_us;
        let needed_us = after_us.saturating_mul(self.patience());
        let has_lasted = uneven_since_us.is_some_and(|since_us| now_us.saturating_sub(since_us) >= after_us);
        let is_worth_it = self.begun.is_some() || has_lasted || owns_far_fewer(&plan.nodes);
        if plan.moves.is_empty() || !is_worth_it || calm_us < needed_us {
            if plan.moves.is_empty()
                && let Some(moves) = self.begun.take()
            {
                tracing::info!(moves, nodes = nodes_text(&plan), "the nodes are evened out");
                // What has come of it shows in a while.
                self.next_us = now_us + after_us;
            }
            return;
        }
        if self.begun.is_none() {
            tracing::info!(
                moves = plan.moves.len(),
                nodes = nodes_text(&plan),
                "the nodes are uneven: streamlets are moved"
            );
            self.begun = Some(0);
        }
        self.queue = plan.moves.iter().map(move_info).collect();
    }

    /// The next moves of what is planned, as many as there is room for.
    fn next_round(&mut self, now_us: u64, state: &ClusterState) -> Vec<MoveInfo> {
        let mut round = Vec::new();
        while self.under_way.len() < MOVES_MAX
            && let Some(of) = self.queue.pop_front()
        {
            let what = (of.stream, of.streamlet.0);
            if state.plan_moves(&[of]).is_ok_and(|entries| !entries.is_empty()) {
                self.under_way.push(what);
                self.rest(what, now_us);
                round.push(of);
            }
        }
        if self.begun.is_some() {
            self.next_us = self.next_us.min(now_us + ROUND_US);
        }
        self.begun = self.begun.map(|moves| moves + round.len() as u64);
        round
    }
}

/// Whether a broker owns a quarter fewer than the mean, and two fewer than another one.
fn owns_far_fewer(nodes: &[PlannedNode]) -> bool {
    let has = || nodes.iter().map(|node| node.streamlets);
    let (sum, count) = (has().sum::<u64>(), nodes.len() as u64);
    let (least, top) = (has().min().unwrap_or(0), has().max().unwrap_or(0));
    top >= least + 2 && 4 * least * count <= 3 * sum
}

/// Whether a broker takes half more than the mean, and a MiB a second more.
fn takes_much_more(nodes: &[PlannedNode]) -> bool {
    let takes = || nodes.iter().map(|node| node.bytes_per_s);
    let mean = takes().fold(0u64, u64::saturating_add) / nodes.len().max(1) as u64;
    takes().max().is_some_and(|top| top > mean.saturating_add(NOTICEABLE) && 2 * top > 3 * mean)
}

fn nodes_text(plan: &BalancePlan) -> String {
    let one = |of: &PlannedNode| {
        let (has, gets) = (of.streamlets, of.streamlets_after);
        let kib = |bytes: u64| bytes >> 10;
        let (takes, then) = (kib(of.bytes_per_s), kib(of.bytes_per_s_after));
        match has == gets && of.bytes_per_s == of.bytes_per_s_after {
            true => format!("node {}: {has} streamlets, {takes} KiB/s", of.node),
            false => format!("node {}: {has} to {gets} streamlets, {takes} to {then} KiB/s", of.node),
        }
    };
    plan.nodes.iter().map(one).collect::<Vec<_>>().join("; ")
}
