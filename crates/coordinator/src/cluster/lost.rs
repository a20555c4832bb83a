//! Blocks of logs of lost nodes of which no backup is left, and the last ones of such logs that backups which are gone may have had alone: which they are,
//! who may have something in them, and giving them up when a person says that the nodes which had them are gone for good. `docs/replication.md`,
//! "Nobody is left who has it" and "One that is gone had the end alone", have the arguments.

use std::collections::BTreeSet;

use kera_format::StreamId;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::level;
use kera_format::vlog_replica::{BLOCKS_UNDER_WAY_MAX, LogId};
use kera_protocol::{AcceptLogLoss, LostLog, LostLogs, MissingBlocks, StreamletRange};

use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, LogState, Run};
use crate::CoordinatorError;

impl ClusterState {
    /// Logs of lost nodes of which blocks are missing, or may be with the backups that alone had their ends, at most so many.
    pub fn lost_log_infos(&self, limit: usize) -> LostLogs {
        let missing_of = |log: LogName, state: &LogState| {
            let last = self.last_blocks(state).filter(|_| self.is_waited_for(log));
            self.missing_of(state).into_iter().chain(last).collect::<Vec<_>>()
        };
        let lost = self.lost_logs().map(|(log, state)| (log, state, missing_of(log, state)));
        let lost = lost.filter(|(.., missing)| !missing.is_empty()).take(limit);
        LostLogs { logs: lost.map(|(log, state, missing)| self.lost_log_info(log, state, missing)).collect() }
    }

    fn lost_log_info(&self, log: LogName, state: &LogState, missing: Vec<MissingBlocks>) -> LostLog {
        let known = self.could_have(log, &missing).filter(|node| self.nodes.contains_key(node));
        let (live_nodes, lost_nodes) = known.partition(|node| self.is_there(*node));
        LostLog {
            log: LogId::from(log),
            end: state.end.unwrap_or(0),
            missing,
            lost_nodes,
            live_nodes,
            streamlets: ranges(self.waiting_for(log)),
        }
    }

    /// Blocks of a log that is over of which no backup is live, view by view. Not those that were given up.
    pub(super) fn missing_of(&self, log: &LogState) -> Vec<MissingBlocks> {
        let mut missing = Vec::new();
        for (at, view) in log.views.iter().enumerate() {
            let next = log.views.get(at + 1).map(|next| next.first.saturating_sub(1));
            let last = next.into_iter().chain(log.end).min();
            let has_blocks = last.is_none_or(|last| view.first <= last);
            if has_blocks && !view.backups.is_empty() && !view.backups.iter().any(|backup| self.is_there(*backup)) {
                missing.push(MissingBlocks {
                    view: at as u32 + 1,
                    first: view.first,
                    last: last.unwrap_or(0),
                    backups: view.backups.clone(),
                });
            }
        }
        missing
    }

    /// The last blocks of a log that is over which backups of its newest view may have had alone that are not live, while others are: somebody has opened streamlets with
    /// its end, and not all backups have shown that. With all backups of the view, of which those that are live have less, or have not told.
    fn last_blocks(&self, log: &LogState) -> Option<MissingBlocks> {
        let (end, view) = (log.end?, log.views.last()?);
        let least = log.first_end.saturating_sub(BLOCKS_UNDER_WAY_MAX);
        let of = MissingBlocks {
            view: log.views.len() as u32,
            first: view.first.max(least + 1),
            last: end,
            backups: view.backups.clone(),
        };
        (self.check_has_lost_end(log).is_ok() && of.first <= end).then_some(of)
    }

    /// Whether the end of a log is one that somebody has opened streamlets with, and backups may have had it alone that are lost.
    fn check_has_lost_end(&self, log: &LogState) -> Result<(), Refused> {
        let end = log.end.ok_or_else(|| Refused("its end is not decided".into()))?;
        must(log.used.is_some(), || format!("nobody has opened anything with its end, block {end}"))?;
        must(!log.ends_at_all(), || format!("all its backups have shown block {end}, so each that is there has it"))?;
        let backups = log.views.last().map_or(&[][..], |view| &view.backups);
        let there = self.newest_backups_there(log).count();
        must(there > 0, || format!("no backup that is there has any of the view that ends with block {end}"))?;
        must(there < backups.len(), || format!("all backups that could have block {end} are there"))
    }

    /// Backups of a log's newest view that are not lost.
    pub(super) fn newest_backups_there(&self, log: &LogState) -> impl Iterator<Item = NodeNumber> {
        let backups = log.views.last().into_iter().flat_map(|view| &view.backups);
        backups.copied().filter(|backup| self.is_there(*backup))
    }

    /// Whether streamlets wait to be opened that may have something in a log.
    fn is_waited_for(&self, log: LogName) -> bool {
        !self.waiting(log, false).is_empty()
    }

    /// Whether a person may have given up copies of something that a node acknowledged in lives before this one. Also where that cannot be told: a broker
    /// gives up views as well, of blocks that it has copied again; a log that was not written to since its newest view ends in front of that; and an
    /// end that nobody has used is taken back.
    pub fn may_lack_copies(&self, node: NodeNumber, epoch: u32) -> bool {
        let may = |state: &LogState, end: u64| {
            let newest = state.views.last().map_or(1, |view| view.first);
            let is_lower = end < newest || end != state.first_end || state.end_given_up;
            (is_lower && !state.ends_at_all()) || state.views.iter().any(|view| view.backups.is_empty())
        };
        let before = self.logs.iter().filter(|(log, _)| log.node == node && log.epoch < epoch);
        before.filter_map(|(_, state)| Some((state, state.end?))).any(|(state, end)| may(state, end))
    }

    pub(super) fn is_there(&self, node: NodeNumber) -> bool {
        self.nodes.get(&node).is_some_and(|known| !known.fenced)
    }

    /// Who could have what is missing of a log: its backups, and its own node, by number.
    fn could_have(&self, log: LogName, missing: &[MissingBlocks]) -> impl Iterator<Item = NodeNumber> {
        let backups = missing.iter().flat_map(|of| of.backups.iter().copied());
        backups.chain([log.node]).collect::<BTreeSet<_>>().into_iter()
    }

    /// Streamlets with copies that may have something in a log which somebody needs: those that wait to be recovered from its node, those that are
    /// rebuilt, unless their owner has said that it does not need the log, and those of which its node has lost older groups.
    fn waiting_for(&self, log: LogName) -> BTreeSet<(StreamId, u32)> {
        self.waiting(log, true)
    }

    /// The same; if not `opened`, without those that are open and are rebuilt from the log.
    fn waiting(&self, log: LogName, opened: bool) -> BTreeSet<(StreamId, u32)> {
        let mut waiting = BTreeSet::new();
        let has_end = self.logs.get(&log).is_none_or(|state| state.end.is_some());
        for info in self.catalog.streams() {
            let Some(owners) = self.owners.get(&info.id) else { continue };
            for run in owners.runs().iter().filter(|run| run.owner.is_copied()) {
                let is_left = run.owner.node == log.node && !self.is_live(run.owner.node, run.owner.epoch);
                let said = self.said_of(info.id, run);
                let waits = |at: &u32| match said {
                    _ if is_left => true,
                    _ if !run.owner.rebuilding => false,
                    Some(said) => opened && said.logs.contains(&log),
                    None => self.may_need(log, has_end, info.id, &Run { first: *at, count: 1, ..*run }),
                };
                waiting.extend((run.first..run.end()).filter(waits).map(|at| (info.id, at)));
            }
        }
        for (stream, held) in self.held_copied().filter(|(_, held)| held.node == log.node && self.is_lost(held)) {
            waiting.extend((held.first..held.first + held.count).map(|at| (stream, at)));
        }
        waiting
    }

    /// What a streamlet waits for that no node has which is there, in words; nothing if that is not so.
    pub(super) fn waits_in_vain(&self, stream: StreamId, streamlet: u32) -> Option<String> {
        let lost = self.lost_logs().map(|(log, state)| (log, self.missing_of(state)));
        let mut lost = lost.filter(|(_, missing)| !missing.is_empty());
        let (log, missing) = lost.find(|(log, _)| self.waiting_for(*log).contains(&(stream, streamlet)))?;
        let of_view = |of: &MissingBlocks| {
            let to = if of.last == 0 { "on".to_owned() } else { format!("to {}", of.last) };
            format!("blocks {} {to} (at {})", of.first, nodes(of.backups.iter().copied()))
        };
        let blocks: Vec<String> = missing.iter().map(of_view).collect();
        Some(format!(
            "it waits for what no node has that is there: {} of {log}; start one of these nodes, or look at `kera log list`, and give up what is \
             gone for good with `kera log accept-loss {}/{}/{}`",
            blocks.join(", "),
            log.node,
            log.epoch,
            log.log
        ))
    }

    /// A person says which nodes are gone for good: what they had of a log nobody waits for any more. A log without an end ends in front of the first
    /// block of its newest view: all before that was acknowledged in older views. Blocks of which no backup is left are given up, view by view.
    /// Nothing of it as long as somebody who could have it lives, or is not said to be gone. Of a log with an end that backups alone had which are gone, while others
    /// live, that end is given up, if streamlets wait for it.
    pub fn plan_accept_log_loss(&self, asked: &AcceptLogLoss) -> Planned {
        let log = LogName::from(asked.log);
        self.check_gone(log, &asked.gone).map_err(CoordinatorError::Refused)?;
        let state = &self.logs[&log];
        let mut entries = Vec::new();
        let missing = self.missing_of(state);
        let newest = state.views.last().filter(|_| state.end.is_none());
        if let Some(newest) = newest {
            entries.push(ClusterEntry::LogEnded { log, end: newest.first - 1 });
        }
        // What is in front of a view without blocks, or of the end, is all that is left to be given up.
        let given_up = missing.iter().filter(|of| of.last != 0);
        let given_up = given_up.map(|of| ClusterEntry::ViewGivenUp { log, view: of.view });
        // An end alone lets everybody else go on, and every version understands it.
        if entries.is_empty() || self.level() >= level::LOST_BLOCKS {
            entries.extend(given_up);
        }
        let check = |entry: &ClusterEntry| match entry {
            ClusterEntry::ViewGivenUp { log, view } => self.check_lost_view(*log, *view),
            other => self.check(other),
        };
        entries.iter().try_for_each(check).map_err(CoordinatorError::Refused)?;
        let end = self.plan_give_up_end(log, &asked.gone);
        // Who gives up other blocks is not held up by who may still have the last ones.
        let end = if entries.is_empty() { end.map_err(CoordinatorError::Refused)? } else { end.unwrap_or_default() };
        entries.extend(end);
        Ok(entries)
    }

    /// Gives up the end of a log, if there is one to give up and all who could have it alone are gone for good.
    fn plan_give_up_end(&self, log: LogName, gone: &[NodeNumber]) -> Result<Option<ClusterEntry>, Refused> {
        let Some(of) = self.last_blocks(&self.logs[&log]) else { return Ok(None) };
        must(self.is_waited_for(log), || {
            format!(
                "no streamlet waits for the last blocks of {log}, {} to {}: nothing is to be given up",
                of.first, of.last
            )
        })?;
        let entry = ClusterEntry::EndGivenUp { log };
        self.check(&entry)?;
        self.check_named(log, self.could_have(log, &[of]), gone)?;
        Ok(Some(entry))
    }

    /// Whether all who could have what is missing of a log are gone for good.
    fn check_gone(&self, log: LogName, gone: &[NodeNumber]) -> Result<(), Refused> {
        let Some(state) = self.logs.get(&log) else {
            return Err(Refused(format!(
                "there is no {log}; `kera log list` shows those of which something is missing"
            )));
        };
        must(!self.is_live(log.node, log.epoch), || format!("node {} is live and writes to {log}", log.node))?;
        let missing = self.missing_of(state);
        let newest = state.views.len() as u32;
        let knows_end = state.end.is_some() || missing.iter().any(|of| of.view == newest);
        must(knows_end, || {
            let backups = state.views.last().map_or(&[][..], |view| &view.backups);
            let there = backups.iter().copied().filter(|backup| self.is_there(*backup));
            format!("{log} has no end yet, and {} can say it; try again when that is decided", nodes(there))
        })?;
        if let Some(node) = gone.iter().find(|node| self.is_there(**node)) {
            return Err(Refused(format!("node {node} is live, so it is not gone")));
        }
        if missing.is_empty() {
            return Ok(());
        }
        must(!self.is_there(log.node), || {
            format!(
                "node {0} is live again, and may have all that was in {log}: give it time to tell. If it has not, or is to be given up, stop it, \
                 and say that it is gone",
                log.node
            )
        })?;
        self.check_named(log, self.could_have(log, &missing), gone)
    }

    /// Whether all of these are gone for good that are not live: given up, or named.
    pub(super) fn check_named(
        &self,
        log: LogName,
        had: impl Iterator<Item = NodeNumber>,
        gone: &[NodeNumber],
    ) -> Result<(), Refused> {
        let may_return = |node: &NodeNumber| self.nodes.get(node).is_some_and(|known| known.fenced);
        let left: Vec<NodeNumber> = had.filter(|node| may_return(node) && !gone.contains(node)).collect();
        must(left.is_empty(), || {
            let named = nodes(left.iter().copied());
            let all: BTreeSet<NodeNumber> = left.iter().chain(gone).copied().collect();
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!(
                "{named} may come back with what is missing of {log}: start it. If its disks and its memory are gone for good say so: --gone {}",
                all.join(",")
            )
        })
    }

    /// The end of a log that is over is given up only if a backup is left that may show a lower one, and the log's node does not live, which could have it all.
    pub(super) fn check_lost_end(&self, log: LogName) -> Result<(), Refused> {
        let Some(state) = self.logs.get(&log) else { return Err(Refused(format!("there is no {log}"))) };
        must(!self.is_there(log.node), || {
            format!(
                "node {0} is live, and may have all that was in {log}: give it time to tell. If it has not, or is to be given up, stop it, and say \
                 that it is gone",
                log.node
            )
        })?;
        self.check_has_lost_end(state)
            .map_err(|Refused(why)| Refused(format!("the end of {log} cannot be given up: {why}")))
    }

    /// Blocks of a log that is over are given up only if nobody lives who could have them.
    pub(super) fn check_lost_view(&self, log: LogName, view: u32) -> Result<(), Refused> {
        let (needs, has) = (level::LOST_BLOCKS, self.level());
        must(has >= needs, || {
            format!(
                "the cluster is at level {has}, and giving up blocks of a lost log needs level {needs}: it is there when all nodes run a version \
                 that speaks it; `kera cluster level` shows which do not"
            )
        })?;
        let Some(state) = self.logs.get(&log) else { return Err(Refused(format!("there is no {log}"))) };
        let Some(of) = (view as usize).checked_sub(1).and_then(|at| state.views.get(at)) else {
            return Err(Refused(format!("{log} has no view {view}")));
        };
        let is_newest = view as usize == state.views.len();
        must(!is_newest || state.end.is_some(), || format!("view {view} of {log} says where it ends"))?;
        must(!self.is_there(log.node), || format!("node {} is live, and may have what was in {log}", log.node))?;
        match of.backups.iter().find(|backup| self.is_there(**backup)) {
            Some(backup) => Err(Refused(format!("node {backup} is live and has view {view} of {log}"))),
            None => Ok(()),
        }
    }
}

fn nodes(numbers: impl Iterator<Item = NodeNumber>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    match numbers.len() {
        1 => format!("node {}", numbers[0]),
        _ => format!("nodes {}", numbers.join(", ")),
    }
}

/// Neighbours together.
fn ranges(streamlets: BTreeSet<(StreamId, u32)>) -> Vec<StreamletRange> {
    let mut ranges: Vec<StreamletRange> = Vec::new();
    for (stream, at) in streamlets {
        match ranges.last_mut() {
            Some(last) if last.stream == stream && last.first + last.count == at => last.count += 1,
            _ => ranges.push(StreamletRange { stream, first: at, count: 1 }),
        }
    }
    ranges
}
