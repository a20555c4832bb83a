//! A handle of an arena block: whoever holds it may use its bytes, the drop gives it back.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use kera_format::arena::{BlockSize, TableEntry};
use kera_format::limits;

use super::{Arena, ArenaFull, Purpose, TOUCH_BYTES, TOUCH_BYTES_FIRST, TOUCH_BYTES_SMALL, TOUCH_LARGE};

/// A block in use. Its bytes are shared memory: a [`crate::Segment`] says who may touch which of them.
pub(crate) struct Block {
    arena: Arc<Arena>,
    base: Base,
    block: u32,
    order: AtomicU8,
    purpose: Purpose,
    /// Bytes from its start that are known to have memory.
    touched: AtomicUsize,
    /// The machine had no memory for what was needed of it last.
    is_unbacked: AtomicBool,
}

/// Where a block is: a place in the arena's mapping, which lives as long as the block's handle of the arena.
struct Base(NonNull<u8>);

// SAFETY: an address. Who may touch the bytes behind it is the matter of whoever has the block.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

impl Block {
    /// A handle of a block that the arena has put into use; all of it `warm`, or nothing known to be.
    pub(super) fn new(arena: Arc<Arena>, block: u32, order: u8, purpose: Purpose, warm: bool) -> Block {
        // SAFETY: the arena hands this block out, so it lies within the mapping.
        let base = Base(unsafe { arena.memory.base().add(arena.offset(block)) });
        let touched = AtomicUsize::new(if warm { arena.small_bytes() << order } else { 0 });
        let is_unbacked = AtomicBool::new(false);
        Block { arena, base, block, order: AtomicU8::new(order), purpose, touched, is_unbacked }
    }

    /// Its first byte, at a multiple of 4 KiB.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.0
    }

    /// Bytes from its start that may be written without a signal.
    #[inline]
    pub(crate) fn touched(&self) -> usize {
        self.touched.load(Ordering::Relaxed)
    }

    /// Sees to it that bytes `from..to` may be written, given that those below `from` were. Not by two threads at once (the
    /// lane's lock sees to it). An error means that the machine has no memory for it now.
    pub(crate) fn touch(&self, from: usize, to: usize) -> Result<(), ArenaFull> {
        let at_a_time = match self.bytes() {
            TOUCH_LARGE.. => TOUCH_BYTES,
            _ if to <= TOUCH_BYTES_FIRST && self.arena.header.blocks == BlockSize::Roomy => TOUCH_BYTES_FIRST,
            _ => TOUCH_BYTES_SMALL,
        };
        let from = self.touched().max(from) / TOUCH_BYTES_SMALL * TOUCH_BYTES_SMALL;
        let to = to.next_multiple_of(at_a_time).min(self.bytes());
        if from < to {
            let touched = self.arena.touch(self.block, from, to);
            self.is_unbacked.store(touched.is_err(), Ordering::Relaxed);
            touched?;
            self.touched.store(to, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Its size.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.arena.small_bytes() << self.order.load(Ordering::Relaxed)
    }

    /// The capacity that the header of a segment in it says: a power of two, so that it may be more than the block has.
    pub(crate) fn capacity_bytes(&self) -> u32 {
        self.bytes().next_power_of_two().min(limits::SEGMENT_BYTES_MAX) as u32
    }

    /// Its first bytes, as they are.
    ///
    /// # Safety
    /// Nobody may write to them meanwhile.
    pub(crate) unsafe fn as_slice(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes());
        // SAFETY: within the block, whose memory is initialised, as all of the file is; the caller sees to the rest.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr(), bytes) }
    }

    /// Bytes from the start of the arena file.
    pub(super) fn offset(&self) -> usize {
        self.arena.offset(self.block)
    }

    /// Names the block as a segment in the table. A segment's header is in it.
    pub(crate) fn publish(&self) {
        let order = self.order.load(Ordering::Relaxed);
        self.arena.table(self.block).store(TableEntry::Segment(order).to_byte(), Ordering::Release);
    }

    /// The block is in use still, by readers, but what is in it is no segment any more: the next process must not find it.
    pub(crate) fn unpublish(&self) {
        let order = self.order.load(Ordering::Relaxed);
        self.arena.table(self.block).store(TableEntry::Reserved(order).to_byte(), Ordering::Release);
    }

    /// Gives everything back that is behind the first `bytes`, as far as sizes allow. Only for a published block; not by two
    /// threads at once (the lane's lock sees to it).
    pub(crate) fn shrink(&self, bytes: usize) {
        // What it keeps has memory, whatever was lacking behind that.
        self.is_unbacked.store(false, Ordering::Relaxed);
        let (from, to) = (self.order.load(Ordering::Relaxed), self.arena.order_of(bytes));
        if to < from {
            self.order.store(to, Ordering::Relaxed);
            self.arena.give_end_back(self.block, from, TableEntry::Segment(to), to, self.purpose);
        }
    }

    /// Keeps it from being used again: what is in it did not verify.
    pub(super) fn set_aside(mut self) {
        self.purpose = Purpose::SetAside;
    }

    /// Maps it for a walk through it.
    pub(crate) fn populate_read(&self, bytes: usize) {
        self.arena.memory.populate_read(self.offset(), bytes.next_multiple_of(4096).min(self.bytes()));
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let has_memory = !self.is_unbacked.load(Ordering::Relaxed);
        self.arena.give_back_block(self.block, self.order.load(Ordering::Relaxed), self.purpose, has_memory);
    }
}

/// A block for a segment that comes back from disk. Read the segment's image into it, then give it to
/// [`crate::Log::loaded`]; dropping it gives it back.
pub struct LoadBuffer {
    pub(crate) block: Block,
}

impl LoadBuffer {
    /// The whole block: at least the bytes asked for, aligned to 4 KiB, with whatever was in it before.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block is not published and has no other handle; its memory is initialised, as all of the file is.
        unsafe { std::slice::from_raw_parts_mut(self.block.base().as_ptr(), self.block.bytes()) }
    }
}

impl std::ops::Deref for LoadBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`.
        unsafe { std::slice::from_raw_parts(self.block.base().as_ptr(), self.block.bytes()) }
    }
}

impl std::ops::DerefMut for LoadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}
