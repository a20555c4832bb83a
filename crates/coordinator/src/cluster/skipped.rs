//! With what state coordinators go on of whom the majority is gone: `docs/replication.md`, "A lost majority of the coordinators".
//!
//! Something that this state does not have may be true all the same, at nodes that come back: groups that were opened in an owner epoch which only those knew who are gone, a
//! stream with a number, an incarnation that was told that it owns a streamlet. Two rules make that harmless. No number is given out that may have been given out before, so that two
//! things never have one name. And no incarnation goes on that was there, so that nobody holds on to what it was told by those who are gone: each node joins anew, and learns
//! what this state says.

use kera_format::cluster::{ClusterEntry, NodeNumber};

use super::{ClusterState, Refused};

impl ClusterState {
    /// Skips so many of all numbers that are given out one after the other: owner epochs, moves, streams, and blocks of producer ids. Epochs of nodes are not
    /// among them: each node asks for one above its own.
    ///
    /// # Errors
    /// There are not as many left; nothing is changed.
    pub fn skip_numbers(&mut self, count: u32) -> Result<(), Refused> {
        let none_left = || Refused(format!("there are no {count} numbers left to skip"));
        let owner_epoch = self.next_owner_epoch.checked_add(count).ok_or_else(none_left)?;
        let number = self.next_move.checked_add(count.into()).ok_or_else(none_left)?;
        self.catalog.skip_numbers(count).ok_or_else(none_left)?;
        (self.next_owner_epoch, self.next_move) = (owner_epoch, number);
        Ok(())
    }

    /// Ends all incarnations that take part but that of one node, which is about to begin its next.
    ///
    /// # Errors
    /// The state contradicts itself.
    pub fn end_incarnations(&mut self, but: NodeNumber) -> Result<(), Refused> {
        let live = self.nodes.iter().filter(|(node, known)| !known.fenced && **node != but);
        let ended: Vec<ClusterEntry> =
            live.map(|(node, known)| ClusterEntry::NodeFenced { node: *node, epoch: known.epoch }).collect();
        ended.iter().try_for_each(|entry| self.apply(entry))
    }
}
