//! Blocks of lost logs that a person gives up for one streamlet alone: it is being rebuilt, and nobody gives them to it. Backups that should have them may be live, and others may
//! wait for the same blocks. `docs/replication.md`, "One streamlet goes on without", has the argument.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::cluster::{ClusterEntry, LogName};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};
use kera_protocol::AcceptStreamletLoss;

use super::plan::Planned;
use super::rules::{Refused, must};
use super::{ClusterState, Owned, Owner, Run};
use crate::CoordinatorError;

/// What was given up for streamlets that are being rebuilt: views of logs, each with the owner epoch in which that was said first.
pub(super) type GivenUpFor = BTreeMap<(StreamId, u32), BTreeMap<(LogName, u32), u32>>;

/// Views of logs, each with its number from 1.
pub type Views = BTreeSet<(LogId, u32)>;

impl ClusterState {
    /// Views of lost logs that a person has given up for a streamlet, by log and number from 1, each with the owner epoch in which that was said. Whoever owns it in that one asks
    /// for these blocks before it goes on without them; whoever does later asks for them no more, for one before may have gone on without.
    pub fn given_up_for(&self, stream: StreamId, streamlet: u32) -> impl Iterator<Item = (LogName, u32, u32)> + '_ {
        let views = self.given_up_for.get(&(stream, streamlet)).into_iter().flatten();
        views.map(|((log, view), owner_epoch)| (*log, *view, *owner_epoch))
    }

    /// What was given up for a streamlet: in owner epochs before this one, and in all. The former is not asked for any more, for an owner before may have opened the streamlet without;
    /// the rest may still come from somebody.
    pub fn views_left_out(&self, (stream, streamlet): (StreamId, StreamletId), owner_epoch: u32) -> (Views, Views) {
        let all = || self.given_up_for(stream, streamlet.0);
        let view = |(log, view, _): (LogName, u32, u32)| (LogId::from(log), view);
        (all().filter(|(_, _, said_in)| *said_in < owner_epoch).map(view).collect(), all().map(view).collect())
    }

    /// Streamlets that are taken over together, without those of which something was given up: each of these by itself, for the others wait for what it does not.
    pub fn taken_alone(&self, owned: Vec<Owned>) -> Vec<Vec<Owned>> {
        let has_some = |(stream, streamlet, _): &Owned| self.given_up_for(*stream, streamlet.0).next().is_some();
        let (given_up, others): (Vec<Owned>, Vec<Owned>) = owned.into_iter().partition(has_some);
        let others = Some(others).filter(|others| !others.is_empty());
        others.into_iter().chain(given_up.into_iter().map(|one| vec![one])).collect()
    }

    /// Whether a streamlet is being rebuilt.
    pub fn is_rebuilt(&self, stream: StreamId, streamlet: u32) -> bool {
        self.owner(stream, streamlet).is_some_and(|owner| owner.rebuilding)
    }

    /// A person has one streamlet go on without blocks of a lost log, and repeats which: all of a view. Nothing of it as long as somebody who is not there may come back with
    /// them and is not named. Nothing to do if it is done.
    pub fn plan_accept_streamlet_loss(&self, asked: &AcceptStreamletLoss) -> Planned {
        self.accepted_for(asked).map(|entry| entry.into_iter().collect()).map_err(CoordinatorError::Refused)
    }

    fn accepted_for(&self, asked: &AcceptStreamletLoss) -> Result<Option<ClusterEntry>, Refused> {
        let (log, stream, streamlet) = (LogName::from(asked.log), asked.stream, asked.streamlet.0);
        let owner = self.check_is_rebuilt(stream, streamlet)?;
        let view = self.view_of_blocks(log, asked.first, asked.last)?;
        if self.given_up_for(stream, streamlet).any(|(of, known, _)| (of, known) == (log, view)) {
            return Ok(None);
        }
        let owner_epoch = owner.owner_epoch;
        let entry = ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log, view };
        self.check(&entry)?;
        if let Some(node) = asked.gone.iter().find(|node| self.is_there(**node)) {
            return Err(Refused(format!("node {node} is live, so it is not gone")));
        }
        let backups = self.logs[&log].views.get(view as usize - 1).into_iter().flat_map(|of| &of.backups);
        self.check_named(log, backups.copied().chain([log.node]), &asked.gone)?;
        Ok(Some(entry))
    }

    /// The owner of a streamlet with copies that is being rebuilt, and is live.
    fn check_is_rebuilt(&self, stream: StreamId, streamlet: u32) -> Result<Owner, Refused> {
        let owner = self.owner(stream, streamlet).filter(|owner| owner.is_copied() && owner.rebuilding);
        let owner = owner.ok_or_else(|| {
            Refused(format!("streamlet {streamlet} of stream {stream} is not being rebuilt: it waits for no block"))
        })?;
        must(self.is_live(owner.node, owner.epoch), || {
            format!(
                "node {} owns streamlet {streamlet} of stream {stream} and is lost: nobody rebuilds it before another node owns it. Look at \
                 `kera log list` for what that waits for",
                owner.node
            )
        })?;
        Ok(owner)
    }

    /// The view that has just these blocks.
    fn view_of_blocks(&self, log: LogName, first: u64, last: u64) -> Result<u32, Refused> {
        let Some(state) = self.logs.get(&log) else { return Err(Refused(format!("there is no {log}"))) };
        let end = state.end.unwrap_or(u64::MAX);
        let nexts = state.views.iter().skip(1).map(|view| view.first.saturating_sub(1)).chain([end]);
        let blocks: Vec<(u64, u64)> =
            state.views.iter().zip(nexts).map(|(view, last)| (view.first, last.min(end))).collect();
        if let Some(at) = blocks.iter().position(|of| *of == (first, last)) {
            return Ok(at as u32 + 1);
        }
        let has: Vec<String> = blocks
            .iter()
            .filter(|(first, last)| first <= last)
            .map(|(first, last)| match *last {
                u64::MAX => format!("from {first} on, to nobody knows where"),
                last => format!("{first}-{last}"),
            })
            .collect();
        let has = has.join(", ");
        Err(Refused(format!(
            "no view of {log} has just blocks {first}-{last}, and a view is given up as a whole; its views have blocks {has}: say again which of them"
        )))
    }

    /// Whether a streamlet that is being rebuilt may go on without a view of a log.
    pub(super) fn check_view_given_up_for(
        &self,
        (stream, streamlet): (StreamId, u32),
        owner_epoch: u32,
        (log, view): (LogName, u32),
    ) -> Result<(), Refused> {
        self.check_range(stream, streamlet, 1)?;
        let owner = self.check_is_rebuilt(stream, streamlet)?;
        must(owner.owner_epoch == owner_epoch, || {
            format!(
                "streamlet {streamlet} of stream {stream} is in owner epoch {}, not {owner_epoch}",
                owner.owner_epoch
            )
        })?;
        let Some(state) = self.logs.get(&log) else { return Err(Refused(format!("there is no {log}"))) };
        must(!self.is_live(log.node, log.epoch), || format!("node {} is live and writes to {log}", log.node))?;
        let Some(of) = (view as usize).checked_sub(1).and_then(|at| state.views.get(at)) else {
            return Err(Refused(format!("{log} has no view {view}")));
        };
        must(state.end.is_some(), || {
            format!(
                "{log} has no end yet: start one of its backups, or give up what is missing of it with `kera log accept-loss`"
            )
        })?;
        must(!of.backups.is_empty(), || format!("view {view} of {log} is given up already, for all"))?;
        // Who rebuilds it has nothing of it left in memory.
        must(log.node == owner.node || !self.is_there(log.node), || {
            format!(
                "node {0} is live again, and may have all that was in {log}: give it time to tell. If it has not, stop it while you say this, and \
                 name it as gone",
                log.node
            )
        })?;
        let run = Run { first: streamlet, count: 1, owner };
        let needs = match self.said_of(stream, &run) {
            Some(said) => said.logs.contains(&log),
            None => self.may_need(log, true, stream, &run),
        };
        must(needs, || format!("streamlet {streamlet} of stream {stream} needs nothing of {log}"))
    }

    pub(super) fn give_up_for(&mut self, place: (StreamId, u32), owner_epoch: u32, view: (LogName, u32)) {
        self.given_up_for.entry(place).or_default().entry(view).or_insert(owner_epoch);
    }

    /// Forgets what was given up for streamlets of a stream that are not being rebuilt any more.
    pub(super) fn forget_given_up_for(&mut self, stream: StreamId) {
        let owners = self.owners.get(&stream);
        let is_rebuilt = |at: u32| owners.and_then(|of| of.owner(at)).is_some_and(|owner| owner.rebuilding);
        self.given_up_for.retain(|(of, at), _| *of != stream || is_rebuilt(*at));
    }

    /// Forgets what was given up of a log.
    pub(super) fn forget_given_up_of(&mut self, log: LogName) {
        self.given_up_for.values_mut().for_each(|views| views.retain(|(of, _), _| *of != log));
        self.given_up_for.retain(|_, views| !views.is_empty());
    }

    /// All of it, as entries of a snapshot.
    pub(super) fn given_up_for_entries(&self) -> impl Iterator<Item = ClusterEntry> + '_ {
        self.given_up_for.iter().flat_map(|((stream, streamlet), views)| {
            views.iter().map(|((log, view), owner_epoch)| ClusterEntry::ViewGivenUpFor {
                stream: *stream,
                streamlet: *streamlet,
                owner_epoch: *owner_epoch,
                log: *log,
                view: *view,
            })
        })
    }
}
