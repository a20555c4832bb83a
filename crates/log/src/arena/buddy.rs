//! Which blocks of the arena are free: a buddy allocator over block numbers. Pure bookkeeping, touches no memory of the
//! arena; under the arena's lock.
//!
//! A block of order k is 2^k small blocks at a multiple of 2^k. Free blocks of an order form a list; those whose memory was
//! touched before are at its front, the one given back last first, so that the memory in use stays warm.

use kera_format::arena::ARENA_ORDER_MAX;

const ORDERS: usize = ARENA_ORDER_MAX as usize + 1;
const NONE: u32 = u32::MAX;
/// `order` of a block that is not the first of a free one.
const NOT_FREE: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct List {
    front: u32,
    back: u32,
}

/// The free blocks.
pub(super) struct Buddy {
    blocks: u32,
    order_max: u8,
    lists: [List; ORDERS],
    links: Vec<Link>,
    /// The order of a free block, at its first small block.
    order: Vec<u8>,
    /// A bit per small block: all of its memory was touched.
    warm: Vec<u64>,
    /// A bit per small block: there may be memory behind some of it. Set wherever `warm` is.
    held: Vec<u64>,
    free_blocks: u32,
    warm_free_blocks: u32,
    held_free_blocks: u32,
}

/// Small blocks that [`Buddy::take_held`] looks at in one call.
const HELD_LOOKS: u32 = 4096;

impl Buddy {
    /// `blocks` small blocks, all in use, which join up to an order; [`free`](Buddy::free) those that are not.
    pub(super) fn new(blocks: u32, order_max: u8) -> Buddy {
        debug_assert!(order_max <= ARENA_ORDER_MAX);
        Buddy {
            blocks,
            order_max,
            lists: [List { front: NONE, back: NONE }; ORDERS],
            links: vec![Link { previous: NONE, next: NONE }; blocks as usize],
            order: vec![NOT_FREE; blocks as usize],
            warm: vec![0; (blocks as usize).div_ceil(64)],
            held: vec![0; (blocks as usize).div_ceil(64)],
            free_blocks: 0,
            warm_free_blocks: 0,
            held_free_blocks: 0,
        }
    }

    /// Small blocks that are free.
    pub(super) fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    /// Small blocks that are free and warm.
    pub(super) fn warm_free_blocks(&self) -> u32 {
        self.warm_free_blocks
    }

    /// Small blocks that are free and may have memory behind them.
    pub(super) fn held_free_blocks(&self) -> u32 {
        self.held_free_blocks
    }

    /// The largest order of which there is a free block.
    pub(super) fn largest_free(&self) -> Option<u8> {
        (0..ORDERS).rev().find(|&k| self.lists[k].front != NONE).map(|k| k as u8)
    }

    /// Takes a block of `order`: the smallest warm one that is large enough, or else the smallest, split. Memory that was
    /// never touched costs more than everything else that happens to the bytes that go there, so it comes last.
    pub(super) fn allocate(&mut self, order: u8) -> Option<u32> {
        let front = |k: &u8| self.lists[*k as usize].front;
        let mut fitting = (order..=self.order_max).filter(|k| front(k) != NONE);
        let from = fitting.clone().find(|k| self.is_warm(front(k))).or_else(|| fitting.next())?;
        let mut block = self.lists[from as usize].front;
        self.unlink(block, from);
        for k in (order..from).rev() {
            let upper = block + (1 << k);
            // The half that starts warm is used, the other stays free.
            let (used, spare) =
                if self.is_warm(upper) && !self.is_warm(block) { (upper, block) } else { (block, upper) };
            self.link(spare, k);
            block = used;
        }
        self.account(block, order, false);
        Some(block)
    }

    /// Takes a block of `order` for somebody who will fill little of it, or slowly: a cold part of the smallest free block
    /// that has one, so that memory that was touched stays for those who need all of it. If there is none, a warm one.
    pub(super) fn allocate_sparse(&mut self, order: u8) -> Option<u32> {
        let cold = (order..=self.order_max).find_map(|k| {
            let List { front, back } = self.lists[k as usize];
            let ends = [back, front].into_iter().filter(|&end| end != NONE);
            ends.filter_map(|free| Some((free, k, self.first_cold(free, k)?))).next()
        });
        let Some((free, from, cold)) = cold else { return self.allocate(order) };
        let part = cold & !((1 << order) - 1);
        self.take_part(free, from, part, order);
        Some(part)
    }

    /// Takes a block of `order` that was all touched, wherever it is in a free one. Looks through all of them: for who gets no memory otherwise.
    pub(super) fn allocate_warm(&mut self, order: u8) -> Option<u32> {
        let blocks = 1 << order;
        if self.warm_free_blocks < blocks {
            return None;
        }
        let mut parts = (0..self.blocks / blocks).map(|at| at * blocks).filter(|part| self.all_warm(*part, order));
        let found = parts.find_map(|part| {
            let (free, from) = self.free_block_of(part).filter(|(_, from)| *from >= order)?;
            Some((part, free, from))
        });
        let (part, free, from) = found?;
        self.take_part(free, from, part, order);
        Some(part)
    }

    /// The first cold small block of a block.
    fn first_cold(&self, block: u32, order: u8) -> Option<u32> {
        let end = block + (1 << order);
        let mut at = block;
        while at < end {
            let cold = !self.warm[at as usize / 64] >> (at % 64);
            if cold != 0 {
                return Some(at + cold.trailing_zeros()).filter(|&cold| cold < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Takes a free block of `order` at most that may have memory behind it, from small block `below` downwards, and moves
    /// `below` to where to go on; with its order. `None`: none was found as far as this call has looked.
    pub(super) fn take_held(&mut self, below: &mut u32, order: u8) -> Option<(u32, u8)> {
        for _ in 0..HELD_LOOKS {
            let Some(at) = below.checked_sub(1) else { break };
            let upto = self.held[at as usize / 64] << (63 - at % 64);
            if upto == 0 {
                *below = at / 64 * 64;
                continue;
            }
            let held = at - upto.leading_zeros();
            *below = held;
            if let Some((free, from)) = self.free_block_of(held) {
                let order = order.min(from);
                let part = held & !((1 << order) - 1);
                *below = part;
                self.take_part(free, from, part, order);
                return Some((part, order));
            }
        }
        None
    }

    /// Takes the block of `order` that starts at `part` out of a free one of order `from`; the rest of that stays free.
    fn take_part(&mut self, free: u32, from: u8, part: u32, order: u8) {
        self.unlink(free, from);
        let mut block = free;
        for k in (order..from).rev() {
            let upper = block + (1 << k);
            let (used, spare) = if part >= upper { (upper, block) } else { (block, upper) };
            self.link(spare, k);
            block = used;
        }
        self.account(block, order, false);
    }

    /// The free block that a small block is part of, and its order.
    fn free_block_of(&self, block: u32) -> Option<(u32, u8)> {
        let order = (0..=self.order_max).find(|&k| self.order[(block & !((1 << k) - 1)) as usize] == k)?;
        Some((block & !((1 << order) - 1), order))
    }

    /// Takes a free block of `order` at most whose memory was not all touched, so that it can be; and its order.
    pub(super) fn allocate_cold(&mut self, order: u8) -> Option<(u32, u8)> {
        let (cold, free, from) = self.find_cold()?;
        let order = order.min(from);
        let part = cold & !((1 << order) - 1);
        self.take_part(free, from, part, order);
        Some((part, order))
    }

    /// The first small block that is free and cold, with the free block that it is in.
    fn find_cold(&self) -> Option<(u32, u32, u8)> {
        for (at, word) in self.warm.iter().enumerate() {
            let mut cold = !word;
            while cold != 0 {
                let block = at as u32 * 64 + cold.trailing_zeros();
                if block >= self.blocks {
                    return None;
                }
                if let Some((free, order)) = self.free_block_of(block) {
                    return Some((block, free, order));
                }
                cold &= cold - 1;
            }
        }
        None
    }

    /// Gives a block back and joins it with its free neighbours.
    pub(super) fn free(&mut self, block: u32, order: u8) {
        self.account(block, order, true);
        let (mut block, mut order) = (block, order);
        while order < self.order_max {
            let buddy = block ^ (1 << order);
            if buddy as u64 + (1 << order) > u64::from(self.blocks) || self.order[buddy as usize] != order {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.link(block, order);
    }

    /// Gives the end of a block back: from order `from` it shrinks to order `to`.
    pub(super) fn shrink(&mut self, block: u32, from: u8, to: u8) {
        for k in (to..from).rev() {
            // The lower half is still in use, so the upper cannot join.
            self.account(block + (1 << k), k, true);
            self.link(block + (1 << k), k);
        }
    }

    /// Notes that all memory of these small blocks was touched. Only of blocks that are in use, as all that changes what
    /// is behind them.
    pub(super) fn set_warm(&mut self, block: u32, count: u32) {
        for b in block..block + count {
            self.warm[b as usize / 64] |= 1 << (b % 64);
            self.held[b as usize / 64] |= 1 << (b % 64);
        }
    }

    /// Notes that there may be memory behind these small blocks.
    pub(super) fn set_held(&mut self, block: u32, count: u32) {
        for b in block..block + count {
            self.held[b as usize / 64] |= 1 << (b % 64);
        }
    }

    /// Notes that there is no memory behind these small blocks any more. Returns how many may have had some.
    pub(super) fn set_empty(&mut self, block: u32, count: u32) -> u32 {
        let mut held = 0;
        for b in block..block + count {
            held += (self.held[b as usize / 64] >> (b % 64) & 1) as u32;
            self.warm[b as usize / 64] &= !(1 << (b % 64));
            self.held[b as usize / 64] &= !(1 << (b % 64));
        }
        held
    }

    /// Whether all of a block's memory was touched.
    pub(super) fn all_warm(&self, block: u32, order: u8) -> bool {
        (block..block + (1 << order)).all(|b| self.is_warm(b))
    }

    fn is_warm(&self, block: u32) -> bool {
        self.warm[block as usize / 64] >> (block % 64) & 1 == 1
    }

    fn account(&mut self, block: u32, order: u8, free: bool) {
        let all = 1 << order;
        let warm = (block..block + all).filter(|&b| self.is_warm(b)).count() as u32;
        let held = (block..block + all).filter(|&b| self.held[b as usize / 64] >> (b % 64) & 1 == 1).count() as u32;
        if free {
            self.free_blocks += all;
            self.warm_free_blocks += warm;
            self.held_free_blocks += held;
        } else {
            self.free_blocks -= all;
            self.warm_free_blocks -= warm;
            self.held_free_blocks -= held;
        }
    }

    fn link(&mut self, block: u32, order: u8) {
        self.order[block as usize] = order;
        let list = self.lists[order as usize];
        if self.is_warm(block) {
            self.links[block as usize] = Link { previous: NONE, next: list.front };
            self.lists[order as usize].front = block;
            match list.front {
                NONE => self.lists[order as usize].back = block,
                front => self.links[front as usize].previous = block,
            }
        } else {
            self.links[block as usize] = Link { previous: list.back, next: NONE };
            self.lists[order as usize].back = block;
            match list.back {
                NONE => self.lists[order as usize].front = block,
                back => self.links[back as usize].next = block,
            }
        }
    }

    fn unlink(&mut self, block: u32, order: u8) {
        debug_assert_eq!(self.order[block as usize], order);
        self.order[block as usize] = NOT_FREE;
        let Link { previous, next } = self.links[block as usize];
        match previous {
            NONE => self.lists[order as usize].front = next,
            p => self.links[p as usize].next = next,
        }
        match next {
            NONE => self.lists[order as usize].back = previous,
            n => self.links[n as usize].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{Random, SeededRandom};

    fn all_free(blocks: u32) -> Buddy {
        let mut buddy = Buddy::new(blocks, 8);
        (0..blocks).for_each(|b| buddy.free(b, 0));
        buddy
    }

    #[test]
    fn blocks_split_and_join() {
        let mut buddy = all_free(512);
        assert_eq!(buddy.largest_free(), Some(8));
        let small = buddy.allocate(0).unwrap();
        let large = buddy.allocate(8).unwrap();
        assert_eq!(buddy.allocate(8), None);
        assert_eq!(buddy.free_blocks(), 255);
        buddy.free(small, 0);
        buddy.free(large, 8);
        assert_eq!(buddy.free_blocks(), 512);
        assert!(buddy.allocate(8).is_some() && buddy.allocate(8).is_some());
    }

    #[test]
    fn a_size_that_is_no_power_of_two_is_used_to_the_end() {
        let mut buddy = all_free(16 + 8 + 1);
        assert!(buddy.allocate(4).is_some());
        assert!(buddy.allocate(3).is_some());
        assert_eq!(buddy.allocate(0), Some(24));
        assert_eq!(buddy.allocate(0), None);
    }

    #[test]
    fn shrinking_gives_the_end_back() {
        let mut buddy = all_free(256);
        let block = buddy.allocate(8).unwrap();
        buddy.shrink(block, 8, 2);
        assert_eq!(buddy.free_blocks(), 252);
        assert_eq!(buddy.largest_free(), Some(7));
        buddy.free(block, 2);
        assert_eq!(buddy.largest_free(), Some(8));
    }

    #[test]
    fn the_block_given_back_last_is_handed_out_first() {
        let mut buddy = all_free(64);
        let blocks: Vec<u32> = (0..64).map(|_| buddy.allocate(0).unwrap()).collect();
        blocks.iter().for_each(|&b| buddy.set_warm(b, 1));
        // Apart from each other, so that they do not join.
        for &b in &[3, 17, 42] {
            buddy.free(b, 0);
        }
        assert_eq!([(); 3].map(|()| buddy.allocate(0).unwrap()), [42, 17, 3]);
    }

    #[test]
    fn warming_covers_every_free_block_once() {
        let mut buddy = all_free(300);
        let used = buddy.allocate(3).unwrap();
        let mut rounds = 0;
        while let Some((block, order)) = buddy.allocate_cold(5) {
            assert!(!buddy.all_warm(block, order));
            buddy.set_warm(block, 1 << order);
            buddy.free(block, order);
            rounds += 1;
        }
        assert!(rounds < 30, "{rounds}");
        assert_eq!(buddy.warm_free_blocks(), 292);
        assert!(!buddy.all_warm(used, 3));
    }

    #[test]
    fn what_has_memory_is_found_from_the_top_down() {
        let mut buddy = all_free(512);
        let all = [buddy.allocate(8).unwrap(), buddy.allocate(8).unwrap()];
        for (block, count) in [(3, 1), (130, 2), (300, 40)] {
            buddy.set_held(block, count);
        }
        all.iter().for_each(|&block| buddy.free(block, 8));
        assert_eq!(buddy.held_free_blocks(), 43);
        let (mut below, mut found) = (512, Vec::new());
        while below > 0 {
            if let Some((block, order)) = buddy.take_held(&mut below, 4) {
                found.push((block, buddy.set_empty(block, 1 << order)));
                buddy.free(block, order);
            }
        }
        assert_eq!(found, [(336, 4), (320, 16), (304, 16), (288, 4), (128, 2), (0, 1)]);
        assert_eq!((buddy.held_free_blocks(), buddy.free_blocks()), (0, 512));
    }

    #[test]
    fn who_fills_little_gets_cold_blocks_while_there_are_any() {
        let mut buddy = all_free(32);
        let warm = buddy.allocate(4).unwrap();
        buddy.set_warm(warm, 16);
        buddy.free(warm, 4);
        let sparse: Vec<u32> = (0..16).map(|_| buddy.allocate_sparse(0).unwrap()).collect();
        assert_eq!((buddy.warm_free_blocks(), buddy.free_blocks()), (16, 16), "{sparse:?}");
        assert!(buddy.allocate_sparse(0).is_some());
        assert_eq!(buddy.warm_free_blocks(), 15);
    }

    #[test]
    fn random_use_never_overlaps_and_never_leaks() {
        let random = SeededRandom::new(7);
        let blocks = 1024 + 77;
        let mut buddy = all_free(blocks);
        let mut owner = vec![0u32; blocks as usize];
        let mut held: Vec<(u32, u8)> = Vec::new();
        for step in 1..20_000u32 {
            let pick = random.next_u64();
            if pick.is_multiple_of(2) {
                let order = (pick >> 8) as u8 % 9;
                let mut below = (pick >> 16) as u32 % blocks + 1;
                let taken = match pick >> 60 {
                    0..6 => buddy.allocate_sparse(order).map(|block| (block, order)),
                    6..8 => buddy.take_held(&mut below, order),
                    _ => buddy.allocate(order).map(|block| (block, order)),
                };
                if let Some((block, order)) = taken {
                    assert_eq!(block % (1 << order), 0);
                    if pick >> 60 == 7 {
                        buddy.set_empty(block, 1 << order);
                    }
                    for b in block..block + (1 << order) {
                        assert_eq!(owner[b as usize], 0, "block {b} handed out twice");
                        owner[b as usize] = step;
                    }
                    held.push((block, order));
                }
            } else if !held.is_empty() {
                let at = (pick >> 8) as usize % held.len();
                let (block, order) = held[at];
                let to = if pick & 2 == 0 { 0 } else { order };
                let left = if to < order { 1 << to } else { 0 };
                for b in block + left..block + (1 << order) {
                    owner[b as usize] = 0;
                }
                if to < order {
                    buddy.shrink(block, order, to);
                    held[at] = (block, to);
                } else {
                    buddy.set_warm(block, 1 << order);
                    buddy.free(block, order);
                    held.swap_remove(at);
                }
            }
            assert_eq!(buddy.free_blocks() as usize, owner.iter().filter(|&&o| o == 0).count());
        }
        held.iter().for_each(|&(block, order)| buddy.free(block, order));
        assert_eq!(buddy.free_blocks(), blocks);
        assert_eq!(buddy.largest_free(), Some(8));
    }
}
