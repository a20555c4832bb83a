//! The lanes that a session waits for.
//!
//! Each lane has one slot, however many reads and subscriptions of the session wait for it, and at most one registration
//! at the lane: a slot that is armed stays armed over any number of requests until the lane moves. So a poll over many
//! quiet lanes registers once, not at every poll, and a wake names exactly the slot whose watchers have something to do.

use std::collections::HashMap;
use std::sync::Arc;

use kera_log::{Lane, LaneVersion, Observer};

use crate::signals::Token;

/// Slots that nobody watches are kept, armed, up to this many: a poll comes back to them.
const UNWATCHED_KEPT: usize = 65_536;

/// Who looks again when a lane moves: an entry of a waiting request or subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watch {
    pub(crate) waiter: u32,
    pub(crate) entry: u32,
}

struct Slot {
    lane: Option<Arc<Lane>>,
    armed: bool,
    watchers: Vec<Watch>,
}

/// The slots of one session. Used on its I/O thread only.
#[derive(Default)]
pub(crate) struct LaneTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_lane: HashMap<usize, u32>,
    unwatched: usize,
}

fn key(lane: &Arc<Lane>) -> usize {
    Arc::as_ptr(lane) as usize
}

impl LaneTable {
    /// Adds a watcher of a lane and returns the lane's slot.
    pub(crate) fn watch(&mut self, lane: &Arc<Lane>, watch: Watch) -> u32 {
        let slot = match self.by_lane.get(&key(lane)) {
            Some(&slot) => slot,
            None => self.insert(lane),
        };
        let watchers = &mut self.slots[slot as usize].watchers;
        if watchers.is_empty() {
            self.unwatched -= 1;
        }
        watchers.push(watch);
        slot
    }

    fn insert(&mut self, lane: &Arc<Lane>) -> u32 {
        self.unwatched += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                let free = &mut self.slots[slot as usize];
                (free.lane, free.armed) = (Some(Arc::clone(lane)), false);
                slot
            }
            None => {
                self.slots.push(Slot { lane: Some(Arc::clone(lane)), armed: false, watchers: Vec::new() });
                (self.slots.len() - 1) as u32
            }
        };
        self.by_lane.insert(key(lane), slot);
        slot
    }

    /// Takes a watcher off a slot.
    pub(crate) fn unwatch(&mut self, slot: u32, watch: Watch) {
        let entry = &mut self.slots[slot as usize];
        if let Some(at) = entry.watchers.iter().position(|w| *w == watch) {
            entry.watchers.swap_remove(at);
            if entry.watchers.is_empty() {
                self.unwatched += 1;
                if !entry.armed || self.unwatched > UNWATCHED_KEPT {
                    self.remove(slot);
                }
            }
        }
    }

    /// Forgets a slot. A call-back that comes for it later finds nobody, or wakes whoever has the slot then without need.
    fn remove(&mut self, slot: u32) {
        if let Some(lane) = self.slots[slot as usize].lane.take() {
            self.by_lane.remove(&key(&lane));
            self.unwatched -= 1;
            self.free.push(slot);
        }
    }

    /// Has the session called back when the lane is no longer in state `seen`; at once, through its mailbox, if it has moved
    /// already.
    pub(crate) fn arm(&mut self, slot: u32, seen: LaneVersion, observer: &Arc<dyn Observer>) {
        let entry = &mut self.slots[slot as usize];
        if entry.armed {
            // What armed it saw an older state: if the lane has moved since, the call is in the mailbox.
            return;
        }
        if let Some(lane) = &entry.lane {
            entry.armed = true;
            let token = Token::Lane(slot).to_u64();
            if !lane.wait(seen, observer, token) {
                observer.advanced(token);
            }
        }
    }

    /// A call-back for a slot has come: who looks again. The slot is not armed any more.
    pub(crate) fn fired(&mut self, slot: u32) -> &[Watch] {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return &[] };
        if entry.lane.is_none() {
            return &[];
        }
        entry.armed = false;
        if entry.watchers.is_empty() {
            self.remove(slot);
            return &[];
        }
        &self.slots[slot as usize].watchers
    }
}
