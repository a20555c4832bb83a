//! Ends of lost logs: with which of them somebody has opened streamlets, and which may be taken back because nobody has.
//! `docs/replication.md`, "An end that nobody can show", has the argument.

use std::collections::BTreeMap;

use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, USED_ENDS_MAX};
use kera_format::level;
use kera_format::vlog_replica::BLOCKS_UNDER_WAY_MAX;
use kera_protocol::UseEnds;

use super::duties::{EndsAsked, ToldEnd, agreed_end};
use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, LogState};
use crate::CoordinatorError;

/// Where a log ends, as backups have told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgreedEnd {
    /// Its last block.
    pub end: u64,
    /// Whether all backups of the newest view that there are have shown that they have it. Then it can be lost with all of them only, and stays.
    pub at_all: bool,
    /// Whether it is one that a backup is certain of. If not, all that there are may have lost what was acknowledged.
    pub certain: bool,
}

impl LogState {
    /// Whether the log's end is one that all backups of its newest view have shown, so that no loss of some of them takes anything of it.
    pub fn ends_at_all(&self) -> bool {
        self.used == Some(0)
    }

    /// Whether the log has an end that nobody has opened anything with, and somebody else could know of a lower one.
    pub(super) fn may_be_taken_back(&self) -> bool {
        let is_shared = self.views.last().is_some_and(|view| view.backups.len() > 1);
        self.end.is_some_and(|end| end >= 1) && self.used.is_none() && is_shared
    }
}

impl ClusterState {
    /// Whether who takes over has to say with which ends: all nodes would understand it.
    pub fn takes_used_ends(&self) -> bool {
        self.level() >= level::USED_ENDS
    }

    /// Whether streamlets of lost brokers wait to be opened: their owner has not said what it rebuilds them from, or is lost itself.
    pub fn waits_to_be_opened(&self) -> bool {
        self.rebuilding().any(|(stream, run)| self.said_of(stream, run).is_none())
    }

    /// Incarnations with logs whose ends may be taken back.
    pub fn with_unused_ends(&self) -> Vec<(NodeNumber, u32)> {
        let logs = self.lost_logs().filter(|(_, log)| log.may_be_taken_back());
        let mut of: Vec<(NodeNumber, u32)> = logs.map(|(name, _)| (name.node, name.epoch)).collect();
        of.dedup();
        of
    }

    /// Which backups are asked once more for which logs of an incarnation that is over: those that have no end, and those whose end nobody has
    /// opened anything with.
    pub fn ends_to_ask_again(&self, node: NodeNumber, epoch: u32) -> Vec<EndsAsked> {
        self.ends_asked(node, epoch, |log| log.end.is_none() || log.may_be_taken_back())
    }

    /// Where a log ends by what its backups have told, as far as that counts by now. `expected`: how many of them there are. Of an end that a person has given
    /// up those that are lost are gone: nobody waits until they are certain.
    pub fn end_told(&self, log: LogName, told: &[(NodeNumber, ToldEnd)], expected: usize) -> Option<AgreedEnd> {
        let counts = self.ends_that_count(told);
        let given_up = self.logs.get(&log).filter(|state| state.end_given_up);
        let left = given_up.map_or(expected, |state| expected.min(self.newest_backups_there(state).count()));
        let end = agreed_end(&counts, left)?;
        let at_all = counts.len() == expected && counts.iter().all(|told| told.certain && told.through >= end);
        Some(AgreedEnd { end, at_all, certain: counts.iter().any(|told| told.certain) })
    }

    /// The end of a log of a fenced broker. The first one counts: a later one is answered as done. One that all backups have shown is used from
    /// the beginning, which spares whoever takes over a round trip.
    pub fn plan_end_log(&self, log: LogName, AgreedEnd { end, at_all, .. }: AgreedEnd) -> Planned {
        if self.logs.get(&log).is_some_and(|state| state.end.is_some()) {
            return Ok(Vec::new());
        }
        let mut entries = self.one(ClusterEntry::LogEnded { log, end })?;
        if at_all && self.takes_used_ends() {
            entries.push(ClusterEntry::EndsUsed { node: 0, epoch: 0, ends: vec![(log, end)] });
        }
        Ok(entries)
    }

    pub(super) fn check_used(&self, ends: &[(LogName, u64)]) -> Result<(), Refused> {
        let (has, most) = (ends.len(), USED_ENDS_MAX);
        must(has <= most, || format!("ends has {has} logs, the limit is {most}; say it in several parts"))?;
        ends.iter().try_for_each(|(log, end)| {
            let decided = self.logs.get(log).and_then(|state| state.end);
            must(decided == Some(*end), || match decided {
                Some(now) => format!("{log} ends at block {now} by now, not at {end}; ask again what its lanes have"),
                None => format!("the end of {log} is not decided, or the log is given up; ask again what there is"),
            })
        })
    }

    /// All that was acknowledged is at every backup of the newest view, so any end that one of them has is right until somebody has used
    /// another one: then readers may have been told of records up to that, and a new owner has numbered on behind it.
    pub(super) fn check_taken_back(&self, log: LogName, end: u64) -> Result<(), Refused> {
        let Some(state) = self.logs.get(&log) else { return Err(Refused(format!("there is no {log}"))) };
        let Some(now) = state.end else { return Err(Refused(format!("the end of {log} is not decided"))) };
        must(!state.ends_at_all(), || format!("all backups of {log} have shown block {now}; that end stays"))?;
        must(state.used.is_none(), || format!("streamlets were opened with {log} up to block {now}; that end stays"))?;
        must(end < now, || format!("{log} ends at block {now}, so {end} is not before its end"))?;
        let least = state.first_end.saturating_sub(BLOCKS_UNDER_WAY_MAX);
        must(end >= least, || {
            format!(
                "{log} cannot end at {end}: a backup had block {}, so what is up to {least} was acknowledged",
                state.first_end
            )
        })?;
        let first = state.views.last().map_or(1, |view| view.first);
        must(end + 1 >= first, || format!("{log} cannot end at {end}: what is before block {first} was acknowledged"))
    }

    /// What a node says that is about to open streamlets. Nothing if all of these ends are known to be used.
    pub fn plan_use_ends(&self, said: &UseEnds) -> Planned {
        let name = |end: &kera_protocol::UsedEnd| (LogName::from(end.log), end.end);
        let (node, epoch) = (said.node, said.epoch);
        // In an entry 0 is nobody, and binds all the same.
        must(node != 0, || "node 0 opens nothing: it is nobody".into()).map_err(CoordinatorError::Refused)?;
        let all = ClusterEntry::EndsUsed { node, epoch, ends: said.ends.iter().map(name).collect() };
        self.check(&all).map_err(CoordinatorError::Refused)?;
        let is_news = |(log, _): &(LogName, u64)| self.logs.get(log).is_some_and(|state| state.used.is_none());
        let ends: Vec<(LogName, u64)> = said.ends.iter().map(name).filter(is_news).collect();
        Ok(if ends.is_empty() { Vec::new() } else { vec![ClusterEntry::EndsUsed { node, epoch, ends }] })
    }

    /// A lower end of a log, as backups tell that were asked again. Nothing, if it is not lower or the log's end stays. Nor if none of them is certain:
    /// what was acknowledged may be between the two, and who has shown it may come back, unless a person says that it does not.
    pub fn plan_take_back(&self, log: LogName, AgreedEnd { end, certain, .. }: AgreedEnd) -> Planned {
        let entry = ClusterEntry::EndTakenBack { log, end };
        let counts = certain || self.logs.get(&log).is_some_and(|state| state.end_given_up);
        Ok(if counts && self.check(&entry).is_ok() { vec![entry] } else { Vec::new() })
    }

    /// Has the end of a log be one that nobody has opened anything with, as a person says.
    pub(super) fn give_up_end(&mut self, log: LogName) {
        let state = self.logs.entry(log).or_default();
        (state.used, state.end_given_up) = (None, true);
    }

    pub(super) fn set_used(&mut self, node: NodeNumber, ends: &[(LogName, u64)]) {
        for (log, _) in ends {
            if let Some(state) = self.logs.get_mut(log) {
                state.used = state.used.or(Some(node));
                state.end_given_up = false;
            }
        }
    }

    /// Raises the level. Who opened streamlets before has not said with which ends.
    pub(super) fn set_level(&mut self, level: u32) {
        if self.level() < level::USED_ENDS && level >= level::USED_ENDS {
            self.logs.values_mut().filter(|log| log.end.is_some()).for_each(|log| log.used = Some(0));
        }
        if self.level() < level::LIVING_HOLDERS && level >= level::LIVING_HOLDERS {
            // Who is rebuilding may have gone on with it in several lives. In a snapshot nobody owns anything yet.
            for owners in self.owners.values_mut() {
                let runs = owners.runs().to_vec();
                runs.iter().for_each(|run| owners.goes_on_rebuilding(run));
            }
        }
        self.level = level;
    }

    /// What entries of logs do not tell of their ends, for a snapshot.
    pub(super) fn end_entries(&self) -> Vec<ClusterEntry> {
        let ended = || self.logs.iter().filter_map(|(log, state)| Some((*log, state, state.end?)));
        let taken_back = ended().filter(|(_, state, end)| *end != state.first_end);
        let mut entries: Vec<ClusterEntry> =
            taken_back.map(|(log, _, end)| ClusterEntry::EndTakenBack { log, end }).collect();
        let given_up = ended().filter(|(_, state, _)| state.end_given_up);
        entries.extend(given_up.map(|(log, ..)| ClusterEntry::EndGivenUp { log }));
        let mut used: BTreeMap<NodeNumber, Vec<(LogName, u64)>> = BTreeMap::new();
        for (log, state, end) in ended() {
            if let Some(node) = state.used {
                used.entry(node).or_default().push((log, end));
            }
        }
        for (node, ends) in used {
            let parts = ends.chunks(USED_ENDS_MAX);
            entries.extend(parts.map(|ends| ClusterEntry::EndsUsed { node, epoch: 0, ends: ends.to_vec() }));
        }
        entries
    }
}
