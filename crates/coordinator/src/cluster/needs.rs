//! From which logs of lost nodes those rebuild who have taken streamlets over, as they say themselves: so that logs which nobody needs go
//! although somebody somewhere rebuilds. `docs/replication.md`, "What a rebuild needs", has the argument.

use std::collections::BTreeSet;

use kera_format::StreamId;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, REBUILD_LOGS_MAX, REBUILD_RUNS_MAX, RebuildRun};
use kera_format::level;
use kera_protocol::RebuildNeeds;

use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, Run};
use crate::CoordinatorError;

/// What an incarnation of a node has said of all that it rebuilds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The node's epoch.
    pub epoch: u32,
    /// What it has taken over and not rebuilt, by stream, owner epoch and place.
    pub runs: Vec<RebuildRun>,
    /// The logs of lost nodes that it needs for that.
    pub logs: BTreeSet<LogName>,
}

impl Needs {
    pub(super) fn new(epoch: u32, runs: &[RebuildRun], logs: &[LogName]) -> Needs {
        let mut runs = runs.to_vec();
        runs.sort_unstable_by_key(order);
        Needs { epoch, runs, logs: logs.iter().copied().collect() }
    }

    /// Whether all of these streamlets, in this owner epoch, are spoken of.
    fn cover(&self, stream: StreamId, run: &Run) -> bool {
        let mut at = run.first;
        while at < run.end() {
            let behind = self.runs.partition_point(|one| order(one) <= (stream, run.owner.owner_epoch, at));
            let Some(one) = behind.checked_sub(1).map(|before| self.runs[before]) else { return false };
            let is_of = (one.stream, one.owner_epoch) == (stream, run.owner.owner_epoch);
            let end = one.first.saturating_add(one.count);
            if !is_of || end <= at {
                return false;
            }
            at = end;
        }
        true
    }
}

fn order(run: &RebuildRun) -> (StreamId, u32, u32) {
    (run.stream, run.owner_epoch, run.first)
}

impl ClusterState {
    /// What a node has said of its rebuilds.
    pub fn needs(&self, node: NodeNumber) -> Option<&Needs> {
        self.needs.get(&node)
    }

    /// Streamlets with copies that are being rebuilt.
    pub(super) fn rebuilding(&self) -> impl Iterator<Item = (StreamId, &Run)> {
        self.copied_runs().filter(|(_, run)| run.owner.rebuilding)
    }

    /// What the owner of streamlets that are being rebuilt has said of them. Nothing, if it has not taken over all of them in their present
    /// owner epoch, or is lost: then it may be any log that they are rebuilt from.
    pub(super) fn said_of(&self, stream: StreamId, run: &Run) -> Option<&Needs> {
        let said = self.needs.get(&run.owner.node).filter(|said| said.epoch == run.owner.epoch)?;
        (self.is_live(run.owner.node, run.owner.epoch) && said.cover(stream, run)).then_some(said)
    }

    /// Whether nobody rebuilds from a log.
    pub(super) fn check_not_needed(&self, log: LogName) -> Result<(), Refused> {
        let has_end = self.logs.get(&log).is_none_or(|state| state.end.is_some());
        for (stream, run) in self.rebuilding() {
            let node = run.owner.node;
            match self.said_of(stream, run) {
                Some(said) => must(!said.logs.contains(&log), || format!("node {node} rebuilds from {log}"))?,
                None => must(!self.may_need(log, has_end, stream, run), || {
                    format!("node {node} still rebuilds streamlets, perhaps from {log}")
                })?,
            }
        }
        Ok(())
    }

    pub(super) fn check_needs(&self, runs: &[RebuildRun], logs: &[LogName]) -> Result<(), Refused> {
        let (has, most) = (runs.len(), REBUILD_RUNS_MAX);
        must(has <= most, || {
            format!("streamlets has {has} ranges, the limit is {most}; leave out those taken over last")
        })?;
        let (has, most) = (logs.len(), REBUILD_LOGS_MAX);
        must(has <= most, || {
            format!("logs has {has} logs, the limit is {most}; leave out the streamlets that need them")
        })
    }

    /// What a node says of its rebuilds. Of what it does not rebuild any more nothing is noted.
    pub fn plan_needs(&self, said: &RebuildNeeds) -> Planned {
        let (node, epoch) = (said.node, said.epoch);
        let logs = said.logs.iter().map(|log| LogName::from(*log));
        let logs: BTreeSet<LogName> = logs.collect();
        let is_rebuilt_there = |run: &RebuildRun| {
            let mut within = self.owners.get(&run.stream).into_iter().flat_map(|of| of.within(run.first, run.count));
            within.any(|of| {
                let owner = of.owner;
                owner.rebuilding && (owner.node, owner.epoch, owner.owner_epoch) == (node, epoch, run.owner_epoch)
            })
        };
        let runs = said.streamlets.iter().map(|range| RebuildRun {
            stream: range.stream,
            first: range.first,
            count: range.count,
            owner_epoch: range.owner_epoch,
        });
        let runs: Vec<RebuildRun> = runs.filter(is_rebuilt_there).collect();
        let logs: Vec<LogName> = logs.into_iter().filter(|_| !runs.is_empty()).collect();
        let entry = ClusterEntry::RebuildNeeds { node, epoch, runs, logs };
        self.check(&entry).map_err(CoordinatorError::Refused)?;
        let ClusterEntry::RebuildNeeds { runs, logs, .. } = &entry else { return Ok(Vec::new()) };
        let known = self.needs.get(&node);
        let is_known = if runs.is_empty() { known.is_none() } else { known == Some(&Needs::new(epoch, runs, logs)) };
        Ok(if is_known { Vec::new() } else { vec![entry] })
    }

    /// Makes true what a node has said.
    pub(super) fn set_needs(&mut self, node: NodeNumber, needs: Needs) {
        if needs.runs.is_empty() {
            self.needs.remove(&node);
        } else {
            self.needs.insert(node, needs);
        }
    }

    /// Forgets what a node has said that has nothing left to rebuild.
    ///
    /// Asked with each range that is rebuilt, of which the loss of a node brings very many. So the node's own words are looked at first, the last of them first: in
    /// front of what it still rebuilds are all streams that it is done with.
    pub(super) fn forget_needs(&mut self, node: NodeNumber) {
        let Some(said) = self.needs.get(&node) else { return };
        let is_its = |run: &Run| {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            run.owner.is_copied() && run.owner.rebuilding && run.owner.node == node
        };
        let goes_on = |one: &RebuildRun| {
            let is_there = self.catalog.find(&one.stream.into()).is_ok();
            let owners = self.owners.get(&one.stream).filter(|_| is_there);
            owners.is_some_and(|of| of.within(one.first, one.count).any(|run| is_its(&run)))
        };
        let rebuilds = said.runs.iter().rev().any(goes_on) || self.copied_runs().any(|(_, run)| is_its(run));
        debug_assert_eq!(rebuilds, self.rebuilding().any(|(_, run)| run.owner.node == node));
        if !rebuilds {
            self.needs.remove(&node);
        }
    }

    /// All of it, as entries of a snapshot.
    pub(super) fn needs_entries(&self) -> impl Iterator<Item = ClusterEntry> + '_ {
        self.needs.iter().map(|(node, said)| ClusterEntry::RebuildNeeds {
            node: *node,
            epoch: said.epoch,
            runs: said.runs.clone(),
            logs: said.logs.iter().copied().collect(),
        })
    }

    /// Whether nodes may say what they need: all of them would understand it.
    pub fn takes_needs(&self) -> bool {
        self.level() >= level::REBUILD_NEEDS
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kera_format::StreamOptions;
    use kera_format::catalog::Entry;

    use super::*;
    use crate::cluster::{Owner, StreamOwners};

    thread_local! {
        /// How many ranges were looked at for something that a node still rebuilds.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    const STREAMS: u64 = 200;

    /// Node 7 rebuilds streamlet 3 of these streams, each of which has ten, and has said so of the first half of them.
    fn rebuilds() -> ClusterState {
        let mut state = ClusterState::default();
        let owner = Owner { node: 5, epoch: 1, owner_epoch: 1, rebuilding: false, copies: 2 };
        let mut runs = Vec::new();
        for stream in (1..=STREAMS).map(StreamId) {
            let options = StreamOptions { streamlets: 10, replication: 2, ..StreamOptions::default() };
            let name = format!("stream-{:03}", stream.0);
            state.catalog.apply(&Entry::StreamCreated { stream, at_ms: 0, options, name }).unwrap();
            let mut owners = StreamOwners::default();
            owners.set(0, 10, owner);
            owners.set(3, 1, Owner { node: 7, owner_epoch: 2, rebuilding: true, ..owner });
            state.owners.insert(stream, owners);
            runs.push(RebuildRun { stream, first: 3, count: 1, owner_epoch: 2 });
        }
        runs.truncate(runs.len() / 2);
        state.set_needs(7, Needs::new(1, &runs, &[]));
        state
    }

    #[test]
    fn what_a_node_needs_is_forgotten_with_the_last_that_it_rebuilds_and_few_are_looked_at_before() {
        let mut state = rebuilds();
        let mut rebuilt = |stream: u64| {
            let owners = state.owners.get_mut(&StreamId(stream)).unwrap();
            let owner = owners.owner(3).unwrap();
            owners.set(3, 1, Owner { rebuilding: false, ..owner });
            LOOKED_AT.set(0);
            state.forget_needs(7);
            (LOOKED_AT.get(), state.needs.contains_key(&7))
        };
        for stream in 1..STREAMS / 2 {
            assert_eq!(rebuilt(stream), (1, true), "{stream}");
        }
        // Nothing is left of what it has spoken of.
        for stream in STREAMS / 2..STREAMS {
            assert!(rebuilt(stream).1, "{stream}");
        }
        assert!(!rebuilt(STREAMS).1);
    }
}
