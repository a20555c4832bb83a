//! Logs of lost nodes that have no end, and who has to wait for them: `docs/replication.md`, "A log without an end", has the argument.
//!
//! From level [`level::OPEN_ENDS`] on this holds: while a streamlet is being rebuilt, a lost log without an end that may have something which the
//! streamlet needs is of its present owner, or of a node that is said to hold groups of it, lost or not. It is true when the level is raised
//! ([`ClusterState::check_open_ends`]), and stays true, because nothing begins to be rebuilt while such a log of who had it is open
//! ([`ClusterState::check_no_open_end`]). So everybody else passes over that log, and it may be given up.
//!
//! Of logs that have their ends a streamlet may need those of more nodes: of all that owned it since it was whole for the last time, and of those that held
//! groups of it then. From level [`level::REBUILT_FROM`] on these are noted when it begins to be rebuilt
//! ([`StreamOwners::begin_rebuild`]), and the others hold it back no more than if they had been given up before.

use std::collections::BTreeSet;

use kera_format::StreamId;
use kera_format::cluster::{LogName, NodeNumber};
use kera_format::level;

use super::rules::{Refused, must};
use super::{ClusterState, Held, LogState, Run, Sources, StreamOwners};

/// Logs of lost nodes that somebody rebuilds from, or may.
pub(super) struct NeededLogs<'a> {
    known: &'a ClusterState,
    /// Those that owners have named.
    named: BTreeSet<LogName>,
    /// What is rebuilt by owners that have named none yet.
    unsaid: Vec<(StreamId, &'a Run)>,
}

impl NeededLogs<'_> {
    /// Whether somebody rebuilds from a log, or may.
    pub(super) fn has(&self, log: LogName, state: &LogState) -> bool {
        let may_need = |(stream, run): &(StreamId, &Run)| self.known.may_need(log, state.end.is_some(), *stream, run);
        self.named.contains(&log) || self.unsaid.iter().any(may_need)
    }
}

/// The parts of a run whose streamlets are `ready`.
fn parts_of(run: Run, ready: impl Fn(u32) -> bool) -> Vec<Run> {
    let ready: Vec<u32> = (run.first..run.end()).filter(|at| ready(*at)).collect();
    let parts = ready.chunk_by(|one, next| one + 1 == *next);
    parts.map(|part| Run { first: part[0], count: part.len() as u32, ..run }).collect()
}

impl ClusterState {
    /// Whether lost logs without an end hold back those alone who may need something of them.
    pub(super) fn knows_open_ends(&self) -> bool {
        self.level() >= level::OPEN_ENDS
    }

    /// Whether who takes a streamlet over has to wait for the end of a log of a lost node. Logs without an end for which it does not wait it passes over.
    pub fn waits_for_ends(&self) -> impl Fn(StreamId, u32) -> bool + '_ {
        let open: Vec<LogName> = self.open_ends().collect();
        move |stream, streamlet| match self.owners.get(&stream) {
            Some(owners) if self.knows_open_ends() => {
                open.iter().any(|log| self.may_have_of(*log, owners, streamlet, 1))
            }
            _ => !open.is_empty(),
        }
    }

    /// Whether a log of an earlier life of a node has no end, and goes only when the node has copied again what it came back with.
    pub fn has_open_end(&self, node: NodeNumber) -> bool {
        self.knows_open_ends() && self.open_ends().any(|log| log.node == node)
    }

    /// Nothing begins to be rebuilt as long as a log without an end may have something of it.
    pub(super) fn check_no_open_end(&self, stream: StreamId, run: &Run) -> Result<(), Refused> {
        let Some(owners) = self.owners.get(&stream).filter(|_| self.knows_open_ends()) else { return Ok(()) };
        let waits = |log: &LogName| (run.first..run.end()).find(|at| self.may_have_of(*log, owners, *at, 1));
        match self.open_ends().find_map(|log| Some((log, waits(&log)?))) {
            Some((log, at)) => Err(Refused(format!(
                "the end of {log} is not decided, which may have something of streamlet {at} of stream {stream}"
            ))),
            None => Ok(()),
        }
    }

    /// The parts of a run that may be taken over: those that wait for no log without an end. Below the level all of it.
    pub(super) fn without_open_ends(&self, stream: StreamId, run: Run) -> Vec<Run> {
        // Nearly always: no log is without its end for long.
        if self.check_no_open_end(stream, &run).is_ok() {
            return vec![run];
        }
        let of = |first| Run { first, count: 1, ..run };
        parts_of(run, |at| self.check_no_open_end(stream, &of(at)).is_ok())
    }

    /// The parts of a run of which none of these logs may have something. Below the level from which it is known of whose logs a streamlet is rebuilt all of it.
    pub(super) fn parts_without(&self, logs: &[LogName], stream: StreamId, run: Run) -> Vec<Run> {
        let Some(owners) = self.owners.get(&stream).filter(|_| self.knows_sources()) else { return vec![run] };
        let may = |first, count| logs.iter().any(|log| self.may_have_of(*log, owners, first, count));
        if may(run.first, run.count) { parts_of(run, |at| !may(at, 1)) } else { vec![run] }
    }

    /// When the level may be raised from which on others pass over a log without an end: there is none, or nothing is rebuilt.
    pub(super) fn check_open_ends(&self) -> Result<(), Refused> {
        let open = self.open_ends().next().filter(|_| self.rebuilding().next().is_some());
        must(open.is_none(), || {
            format!(
                "level {} comes when nothing is rebuilt, or all logs of lost nodes have their ends",
                level::OPEN_ENDS
            )
        })
    }

    /// Whether logs of lost nodes may be given up at all. Below the level none while one has no end.
    pub(super) fn may_give_up_some(&self) -> bool {
        self.knows_open_ends() || self.open_ends().next().is_none()
    }

    /// Logs of lost nodes that somebody rebuilds from, or may because an owner has not said what it needs.
    pub(super) fn needed_logs(&self) -> NeededLogs<'_> {
        let (mut named, mut unsaid, mut asked) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for (stream, run) in self.rebuilding() {
            match self.said_of(stream, run) {
                Some(said) if asked.insert(run.owner.node) => named.extend(&said.logs),
                Some(_) => {}
                None => unsaid.push((stream, run)),
            }
        }
        NeededLogs { known: self, named, unsaid }
    }

    /// Whether an owner that has not said what it rebuilds a run from may need a log. One without an end: below level [`level::OPEN_ENDS`] any, and then those
    /// of who owns the streamlets or holds groups of them. One with an end: below level [`level::REBUILT_FROM`] any, and then those of these and of who
    /// was noted when they began to be rebuilt.
    pub(super) fn may_need(&self, log: LogName, has_end: bool, stream: StreamId, run: &Run) -> bool {
        let Some(owners) = self.owners.get(&stream) else { return true };
        match has_end {
            true if self.knows_sources() => {
                owners.may_be_rebuilt_from(log, run) || self.may_have_of(log, owners, run.first, run.count)
            }
            false if self.knows_open_ends() => self.may_have_of(log, owners, run.first, run.count),
            _ => true,
        }
    }

    /// Whether it is known of whose logs streamlets are rebuilt.
    pub(super) fn knows_sources(&self) -> bool {
        self.level() >= level::REBUILT_FROM
    }

    /// The nodes of whose logs that have their ends an owner may need something that takes a streamlet over: it passes over all others. See the module.
    pub fn rebuilt_from(&self, stream: StreamId, streamlet: u32) -> Sources {
        let Some(owners) = self.owners.get(&stream).filter(|_| self.knows_sources()) else { return Sources::Any };
        let mut sources = owners.noted_sources(streamlet);
        if let Sources::Of(nodes) = &mut sources {
            // Who owns it now, and who holds some of it and is not lost, has that itself.
            let owner = owners.owner(streamlet).filter(|_| !self.passes_over_the_living());
            nodes.extend(owner.map(|owner| (owner.node, u32::MAX)));
            nodes.extend(owners.held_of(streamlet).filter(|held| self.counts(held)).map(|held| (held.node, u32::MAX)));
        }
        sources
    }

    /// Whether whoever takes something over passes over logs of those who live and have what is in them.
    pub(super) fn passes_over_the_living(&self) -> bool {
        self.level() >= level::LIVING_HOLDERS
    }

    /// Whether groups that a node holds may be needed from its logs.
    pub(super) fn counts(&self, held: &Held) -> bool {
        !self.passes_over_the_living() || self.is_lost(held)
    }

    /// Whether a log of a lost incarnation may have something that some of these streamlets need: its node owns them, or holds groups of them. Below level
    /// [`level::LIVING_HOLDERS`] also if it has not lost them: what its other logs tell of them would look as if all in front of that had been given back, if this one did not
    /// tell of the rest. From it on none of the logs of who lives is asked, but those in which it was rebuilding them.
    pub(super) fn may_have_of(&self, log: LogName, owners: &StreamOwners, first: u32, count: u32) -> bool {
        let passes_over = self.passes_over_the_living();
        let owns = |run: &Run| run.owner.node == log.node && !(passes_over && self.is_live(log.node, run.owner.epoch));
        // Of what began to be rebuilt below the level at which that is noted, it may be any of its owner's.
        let is_source =
            |run: &Run| owners.is_noted(log, run) || run.owner.node == log.node && owners.may_be_rebuilt_from(log, run);
        let may = |run: Run| owns(&run) || passes_over && run.owner.rebuilding && is_source(&run);
        let holds = |held: &Held| held.node == log.node && self.counts(held);
        owners.within(first, count).any(may) || owners.held_within(first, count).any(holds)
    }

    fn open_ends(&self) -> impl Iterator<Item = LogName> + '_ {
        self.lost_logs().filter(|(_, state)| state.end.is_none()).map(|(log, _)| log)
    }
}
