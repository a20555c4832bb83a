//! Giving memory of free blocks back to the system, when nobody has needed it for a while.
//!
//! On the thread of the lowest priority that also touches memory ahead ([`Arena::warm`]): the two are each other's opposite.
//! Memory that is touched costs writers nothing, and touching it again costs more than all else that happens to the bytes
//! that go there. So what goes is only what was free, with memory behind it, at every moment of the last minute, and
//! beyond a reserve; and nothing goes while somebody who fills whole blocks got one that had to be touched.

use super::*;

/// Turns, a second each, in which memory was not needed before it is given back: a minute, so that who comes each minute, as
/// jobs do, finds it as they left it.
pub(super) const TURNS: usize = 60;
/// Free memory that stays while the node is quiet: this share of the arena, and at most so many bytes.
const QUIET_SHARE: u64 = 64;
const QUIET_BYTES_MAX: u64 = 64 << 20;
/// What is given back in a turn at most.
const TURN_BYTES_MAX: u64 = 512 << 20;
/// What is given back at a time: 2 MiB of plain blocks, and a little more than one of roomy ones.
const GIVE_BACK_ORDER: u8 = 5;

/// How many small blocks were free, with memory behind them, when they were fewest: in each of the last turns.
pub(super) struct Lows {
    turns: [u32; TURNS],
    at: usize,
    this_turn: u32,
}

impl Default for Lows {
    fn default() -> Lows {
        Lows { turns: [0; TURNS], at: 0, this_turn: 0 }
    }
}

impl Lows {
    /// So many are free now.
    #[inline]
    pub(super) fn note(&mut self, blocks: u32) {
        self.this_turn = self.this_turn.min(blocks);
    }

    /// A turn is over, and so many are free. Returns the fewest of all turns.
    fn turn(&mut self, blocks: u32) -> u32 {
        self.turns[self.at] = self.this_turn.min(blocks);
        self.at = (self.at + 1) % TURNS;
        self.this_turn = blocks;
        self.turns.iter().copied().min().unwrap_or(0)
    }

    /// As if more had been free than there is.
    #[cfg(test)]
    pub(super) fn plenty() -> Lows {
        Lows { turns: [u32::MAX; TURNS], at: 0, this_turn: u32::MAX }
    }

    /// So many of them are gone, and nobody needed them.
    fn less(&mut self, blocks: u32) {
        self.turns.iter_mut().for_each(|turn| *turn = turn.saturating_sub(blocks));
        self.this_turn = self.this_turn.saturating_sub(blocks);
    }
}

impl Arena {
    /// Gives memory back that was free for sixty calls, beyond a reserve: what [`warm`](Arena::warm) keeps touched while the
    /// node is written to, and a 64th of the arena (at most 64 MiB) while it `is_quiet`: nobody fills segments. Returns the bytes of the blocks.
    /// For one thread, about once a second: whoever waits for memory of the machine tries again then, and it is said again that there is none.
    ///
    /// # Why nothing is lost
    ///
    /// What is given back reads as zeros afterwards, so it must be nobody's, now and for whoever attaches the file after a
    /// kill between any two instructions.
    ///
    /// - A block is on the free list only after its byte of the table says "free" ([`Arena::give_back_block`] stores that
    ///   first, under the same lock), and of one that shrinks, after the table has the smaller size. The table is what the
    ///   next process goes by: it sees no segment there, whether the memory is gone or not.
    /// - Nobody in this process has a handle of it: its last one put it on the list. Blocks that are dropped after
    ///   [`Arena::freeze`] never get there.
    /// - While its memory goes it is off the list, so that it is handed to nobody; it comes back without its marks of being
    ///   warm or held, before it can be handed out again. Whoever gets it then has its memory put there before writing.
    /// - A kill while it is off the list leaves nothing to be mended: the list is in this process only.
    pub fn give_back(&self, is_quiet: bool) -> u64 {
        self.lacks_memory.store(false, Ordering::Relaxed);
        let (most, wake) = {
            let mut state = self.state.lock();
            let wake = state.memory_may_have_come();
            let held = state.buddy.held_free_blocks();
            let spare = state.lows.turn(held);
            let quiet = ((self.header.bytes / QUIET_SHARE).min(QUIET_BYTES_MAX) / self.small_bytes() as u64) as u32;
            let kept = if is_quiet { quiet } else { self.warm_blocks() };
            (spare.saturating_sub(kept).min((TURN_BYTES_MAX / self.small_bytes() as u64) as u32), wake)
        };
        wake.call();
        if most == 0 || self.keeps_memory.load(Ordering::Relaxed) {
            return 0;
        }
        let (mut below, mut gone) = ((self.header.bytes / self.small_bytes() as u64) as u32, 0);
        while gone < most && below > 0 {
            let order = GIVE_BACK_ORDER.min((most - gone).ilog2() as u8);
            let taken = self.state.lock().buddy.take_held(&mut below, order);
            let Some((block, order)) = taken else { continue };
            let result = self.memory.give_back(self.offset(block), self.small_bytes() << order);
            let mut state = self.state.lock();
            if result.is_ok() {
                let held = state.buddy.set_empty(block, 1 << order);
                state.lows.less(held);
                gone += held;
            }
            state.buddy.free(block, order);
            let wakes = state.came_back(result.is_ok());
            drop(state);
            wakes.into_iter().for_each(Wake::call);
            if let Err(error) = result {
                tracing::info!(%error, "the arena keeps the memory that it once had: its file system takes none back");
                self.keeps_memory.store(true, Ordering::Relaxed);
                break;
            }
        }
        let bytes = u64::from(gone) * self.small_bytes() as u64;
        self.given_back_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }
}
