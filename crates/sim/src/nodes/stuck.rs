//! Disks that stand still for seconds and go on, while the processes that use them run: nothing fails and nothing is lost, and whoever needs the disk waits.
//!
//! What waits are the turns of the threads that write, what a backup is asked and has to read or to note first, starts, orderly stops, and entries of the coordinators' log, which a
//! node has to write before they count. What clients read is read all the same. A node whose disk has stood still for too long falls silent, as
//! `Group::stands_still` in `crates/raft/src/group.rs` has it, so that others take over what it has.

use kera_raft::Timing;

use super::network::Packet;
use super::world::{Event, World};

/// For how long a disk stands still until its node takes itself for lost, in microseconds.
fn patience_us() -> u64 {
    Timing::default().stands_still_ms * 1000
}

impl World {
    /// A disk stands still from now on, one in four for so long that its node falls silent.
    pub(super) fn get_stuck(&mut self, node: u32, lasts_us: u64) {
        let now_us = self.now_us();
        let more_us = if self.below(4) == 0 { patience_us() } else { 0 };
        let (since_us, until_us) = self.stuck_at(node).unwrap_or((now_us, now_us));
        self.stuck.insert(node, (since_us, until_us.max(now_us + lasts_us + more_us)));
    }

    /// Since when the disk of a node has stood still, and until when it does.
    fn stuck_at(&self, node: u32) -> Option<(u64, u64)> {
        let now_us = self.now_us();
        self.stuck.get(&node).copied().filter(|(_, until_us)| now_us < *until_us)
    }

    pub(super) fn is_stuck(&self, node: u32) -> bool {
        self.stuck_at(node).is_some()
    }

    /// Whether a node has fallen silent because its disk stands still.
    pub(super) fn stands_still(&self, node: u32) -> bool {
        self.stuck_at(node).is_some_and(|(since_us, _)| self.now_us() - since_us >= patience_us())
    }

    /// Until when an event waits for the disk of its node, if it does.
    pub(super) fn waits_for_disk(&self, event: &Event) -> Option<u64> {
        use Event as Is;
        if self.stuck.is_empty() {
            return None;
        }
        let has_joined = |node: u32| self.node(node).process.as_ref().is_some_and(|process| process.running.is_some());
        let node = match event {
            Is::Backup(node, _) | Is::Store(node, _) | Is::OwnLogs(node, _) | Is::Compact(node, _) => *node,
            Is::Stopping(node, _) | Is::Start(node) => *node,
            Is::Packet(_, to, _, Packet::Fence { .. } | Packet::Ask(..)) => *to,
            // What it is told when it joins has it read its disk.
            Is::Packet(_, to, ..) if !has_joined(*to) => *to,
            _ => return None,
        };
        self.stuck_at(node).map(|(_, until_us)| until_us)
    }
}
