//! Numbers of nodes that were given up, and other machines that come under them.
//!
//! Logs, fences and views name nodes by their numbers. While a node is in the cluster its number is its own, for no other uuid joins under it. When it is given up
//! another machine may get it, and then some of what is said of the number was true of the node before:
//!
//! | what | what would follow | so |
//! | --- | --- | --- |
//! | fences at backups: of this number nothing is taken up to an epoch | the first epochs of the machine that comes would be fenced before they began, at some backups and not at others | it begins above the last epoch of the node before |
//! | blocks at backups that were away when the node's logs were given up | block *k* of a log of the same name would be there already, with other content | the same: no log has the same name |
//! | newest views of logs that may get an end, or another one | a machine that has nothing of a log says for certain that the log ends in front of the view, and that counts, however much more the others have | it waits until none of them names the number |
//! | views of lost logs of which nobody else is left, nor the log's node | nobody could say any more that what was in them [is gone](super::ClusterState::plan_accept_log_loss), for a backup of them would be live | it waits until that is said |
//! | other views | it is asked for blocks that it never had, and says so: others are asked, or it is copied again | nothing |
//!
//! What it waits for passes by itself if anybody is left: a log that is written to takes another view, and one that is lost ends by what its other backups say. The log of a live node of which the number is the only backup is not waited for: it may need this very
//! machine to go on, and until it has a view with it nobody but its node has what it acknowledged, whoever comes.
//!
//! The node itself, with its disk, may come back at any time: what is said of its number is true of it.
//!
//! All of it is decided where a join is planned, and what comes of it are entries that every version understands, so no level is needed: leaders of earlier
//! versions do not wait and give the epoch that is asked for. Who had a number is in snapshots as the entries that made it so; a node of
//! an earlier version leaves them out of its own, and what it tells those that it brings up to date is forgotten.

use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};

use super::plan::Join;
use super::{ClusterState, LogState, NodeState, Refused};
use crate::CoordinatorError;

impl ClusterState {
    /// A node is given up: who it was is remembered as long as nobody has its number.
    pub(super) fn set_removed(&mut self, node: NodeNumber) {
        let known = self.nodes.remove(&node);
        self.removed.extend(known.map(|known| (node, known)));
    }

    /// Whether somebody had this number who was given up, and nobody has it since.
    pub(super) fn is_given_up(&self, node: NodeNumber) -> bool {
        !self.nodes.contains_key(&node) && self.removed.contains_key(&node)
    }

    /// Below which epoch a node may not begin that is in the cluster, or had its number before.
    pub(super) fn epoch_before(&self, node: NodeNumber) -> u32 {
        self.last_with(node).map_or(0, |known| known.epoch)
    }

    /// The node with a number, or the one that had it last.
    fn last_with(&self, node: NodeNumber) -> Option<&NodeState> {
        self.nodes.get(&node).or_else(|| self.removed.get(&node))
    }

    /// Whether a machine may join under its number by now: see the module. If not it may try again soon.
    pub(super) fn check_number_is_free(&self, join: &Join) -> Result<(), CoordinatorError> {
        let node = join.node;
        let is_itself = self.removed.get(&node).is_some_and(|known| known.uuid == join.uuid);
        if is_itself || self.nodes.contains_key(&node) {
            return Ok(());
        }
        let Some((log, _)) = self.logs.iter().find(|(name, log)| self.would_be_asked(node, **name, log)) else {
            return Ok(());
        };
        Err(CoordinatorError::NoLeader(format!(
            "{log} may have its end, or blocks that nobody else has, at the node that was number {node} before, and this machine has nothing of that: it \
             joins when that is settled (`kera log list`), or under a number of its own (--node)"
        )))
    }

    /// Refuses a node whose disks are an older copy of those that it had, as a snapshot of its machine that was gone back to, if anything tells: a log of it from an epoch that its
    /// disks do not know of. An epoch is on its disks before the node does anything in it, and only then does it ask for views of its logs.
    ///
    /// Nobody else would notice: what it acknowledged since is not on these disks, and it would say that it has all that it had; as a coordinator it would have forgotten
    /// to whom it gave its vote.
    pub fn check_disks(&self, join: &Join) -> Result<(), Refused> {
        let node = join.node;
        let known = self.last_with(node);
        let of_it = self.logs.keys().filter(|log| log.node == node).map(|log| log.epoch);
        match of_it.max().filter(|used| *used >= join.epoch_min) {
            Some(used) if known.is_some_and(|known| known.uuid == join.uuid) => Err(Refused(format!(
                "the disks of node {node} are an older copy: they know of its starts up to epoch {}, and it has written in epoch {used} since, which is not on them; \
                 start it with the disks that it had, or give it up (`kera node remove {node}`) and start it with an empty data directory",
                join.epoch_min.saturating_sub(1)
            ))),
            _ => Ok(()),
        }
    }

    /// Whether a node would be asked for the end of a log, now or when its broker is lost, and others could be asked instead of it; or whether it would be taken to have
    /// blocks that a person is about to give up.
    fn would_be_asked(&self, node: NodeNumber, name: LogName, log: &LogState) -> bool {
        let backups = log.views.last().map_or(&[][..], |view| &view.backups);
        let is_settled = log.end.is_some() && (log.ends_at_all() || log.used.is_some());
        let is_only_one = backups.len() == 1 && self.is_live(name.node, name.epoch);
        let is_missing = || self.missing_of(log).iter().any(|of| of.backups.contains(&node));
        (backups.contains(&node) && !is_settled && !is_only_one) || (!self.is_there(name.node) && is_missing())
    }

    /// How a snapshot says who had numbers that nobody has.
    pub(super) fn removed_entries(&self) -> impl Iterator<Item = ClusterEntry> {
        self.removed.iter().flat_map(|(node, known)| {
            let NodeState { epoch, .. } = *known;
            [
                joined_as(*node, known),
                ClusterEntry::NodeFenced { node: *node, epoch },
                ClusterEntry::NodeRemoved { node: *node },
            ]
        })
    }
}

/// The entry with which a node is what it is known to be.
pub(super) fn joined_as(node: NodeNumber, known: &NodeState) -> ClusterEntry {
    ClusterEntry::NodeJoined {
        node,
        epoch: known.epoch,
        uuid: known.uuid,
        roles: known.roles,
        at_ms: known.joined_ms,
        rack: known.rack.clone(),
        doors: known.doors.clone(),
    }
}
