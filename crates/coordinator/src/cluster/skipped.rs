//! With what state coordinators go on of whom the majority is gone: `docs/replication.md`, "A lost majority of the coordinators".
//!
//! Something that this state does not have may be true all the same, at nodes that come back: groups that were opened in an owner epoch which only those knew who are gone, a
//! stream with a number, an incarnation that was told that it owns a streamlet. Two rules make that harmless. No number is given out that may have been given out before, so that two
//! things never have one name. And no incarnation goes on that was there, so that nobody holds on to what it was told by those who are gone: each node joins anew, and learns
//! what this state says.

use kera_format::cluster::{ClusterEntry, NodeNumber};

use super::{ClusterState, Refused};

impl ClusterState {
    /// Skips so many of all numbers that are given out one after the other: owner epochs, moves, streams, and blocks of producer ids. Epochs of nodes are skipped where
    /// [incarnations end](ClusterState::end_incarnations).
    ///
    /// # Errors
    /// There are not as many left; nothing is changed.
    pub fn skip_numbers(&mut self, count: u32) -> Result<(), Refused> {
        let owner_epoch = self.next_owner_epoch.checked_add(count).ok_or_else(|| none_left(count))?;
        let number = self.next_move.checked_add(count.into()).ok_or_else(|| none_left(count))?;
        self.catalog.skip_numbers(count).ok_or_else(|| none_left(count))?;
        (self.next_owner_epoch, self.next_move) = (owner_epoch, number);
        Ok(())
    }

    /// Ends all incarnations that take part but that of one node, which is about to begin its next; of all other nodes so many epochs are skipped, those that were given up included.
    ///
    /// A node itself begins above its last epoch, which its disks have. Another machine that comes under its number does not know of it: it would begin an epoch that the node
    /// before had, behind what this state has, and its logs would have the names of logs of which others have blocks. To the state a skipped epoch is one that
    /// began and ended without owning anything. So a node of which streamlets are left is taken to come back without what it had
    /// ([`plan_join`](ClusterState::plan_join)): they are recovered from copies, its own among them.
    ///
    /// # Errors
    /// There are not as many epochs left, and nothing is changed; or the state contradicts itself.
    pub fn end_incarnations(&mut self, but: NodeNumber, skipped: u32) -> Result<(), Refused> {
        let mut others = self.nodes.iter().chain(&self.removed).filter(|(node, _)| **node != but);
        if others.any(|(_, known)| known.epoch.checked_add(skipped).is_none()) {
            return Err(none_left(skipped));
        }
        let live = self.nodes.iter().filter(|(node, known)| !known.fenced && **node != but);
        let ended: Vec<ClusterEntry> =
            live.map(|(node, known)| ClusterEntry::NodeFenced { node: *node, epoch: known.epoch }).collect();
        ended.iter().try_for_each(|entry| self.apply(entry))?;
        let others = self.nodes.iter_mut().chain(&mut self.removed).filter(|(node, _)| **node != but);
        others.for_each(|(_, known)| known.epoch += skipped);
        Ok(())
    }
}

fn none_left(count: u32) -> Refused {
    Refused(format!("there are no {count} numbers left to skip"))
}
