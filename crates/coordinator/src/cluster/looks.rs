//! Whom a leader has asked how far lost logs go. Before somebody opens streamlets with an end that one backup may have alone, those are asked that
//! take part again: used, it stays, and they would lack its last blocks for good. `docs/replication.md`, "An end that nobody can show".

use std::collections::{BTreeMap, BTreeSet};

use kera_format::cluster::{LogName, NodeNumber, Roles};
use kera_protocol::UseEnds;

use super::{ClusterState, LogState};

/// A backup is waited for that has not answered and takes part for so long, in microseconds: as when ends are decided first.
const ANSWER_US_MAX: u64 = 2_500_000;

/// What a leader knows of it, as long as it leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EndLooks {
    /// Incarnations of backups that have told, or are not waited for any more.
    told: BTreeMap<LogName, BTreeSet<(NodeNumber, u32)>>,
    /// Logs that somebody is about to open streamlets with, and since when.
    wanted: BTreeMap<LogName, u64>,
}

impl EndLooks {
    /// Where a log ends was decided by what these backups have told, who were asked when they took part in these epochs. Not to be called before that is in the log.
    pub fn told(&mut self, log: LogName, backups: impl IntoIterator<Item = (NodeNumber, u32)>) {
        self.told.entry(log).or_default().extend(backups);
    }

    /// Whether backups are to be asked before these ends are used: some take part that have not told, so what they have may be less.
    pub fn is_before(&mut self, state: &ClusterState, said: &UseEnds, now_us: u64) -> bool {
        if state.plan_use_ends(said).map_or(true, |entries| entries.is_empty()) {
            return false;
        }
        let names = said.ends.iter().map(|end| LogName::from(end.log));
        let unclear: Vec<LogName> = names.filter(|log| self.is_unclear(state, *log)).collect();
        for log in &unclear {
            self.wanted.entry(*log).or_insert(now_us);
        }
        !unclear.is_empty()
    }

    /// The incarnations of those logs.
    pub fn wanted(&self) -> Vec<(NodeNumber, u32)> {
        let mut of: Vec<(NodeNumber, u32)> = self.wanted.keys().map(|log| (log.node, log.epoch)).collect();
        of.dedup();
        of
    }

    /// Backups were asked. Those that keep silent are not waited for without end.
    pub fn looked(&mut self, state: &ClusterState, now_us: u64) {
        let late = self.wanted.iter().filter(|(_, since)| now_us.saturating_sub(**since) > ANSWER_US_MAX);
        for log in late.map(|(log, _)| *log).collect::<Vec<_>>() {
            let silent: Vec<(NodeNumber, u32)> =
                state.logs().get(&log).into_iter().flat_map(|known| there(state, known)).collect();
            self.told.entry(log).or_default().extend(silent);
        }
        self.told.retain(|log, _| state.logs().contains_key(log));
        let wanted = std::mem::take(&mut self.wanted);
        self.wanted = wanted.into_iter().filter(|(log, _)| self.is_unclear(state, *log)).collect();
    }

    /// Whether somebody who has not told may know of a lower end.
    fn is_unclear(&self, state: &ClusterState, log: LogName) -> bool {
        let Some(known) = state.logs().get(&log).filter(|known| known.may_be_taken_back()) else { return false };
        let told = self.told.get(&log);
        there(state, known).any(|backup| told.is_none_or(|told| !told.contains(&backup)))
    }
}

/// Backups of a log's newest view that take part, each with its epoch.
fn there<'a>(state: &'a ClusterState, log: &'a LogState) -> impl Iterator<Item = (NodeNumber, u32)> + 'a {
    let backups = log.views.last().into_iter().flat_map(|view| &view.backups);
    backups.filter_map(|backup| {
        let node = state.node(*backup).filter(|node| node.is_live(Roles::BACKUP))?;
        Some((*backup, node.epoch))
    })
}
