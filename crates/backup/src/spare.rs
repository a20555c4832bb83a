//! Memory of blocks that is used again. On many machines the kernel takes longer to hand out a page than to copy one, so that blocks in memory of their own would cost twice
//! what they cost here: those that are written, and those that are read for who rebuilds what a lost node had.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use kera_env::{AlignedBuffer, DISK_ALIGNMENT};
use parking_lot::Mutex;

/// What is kept for the next blocks.
const SPARE_BYTES: usize = 16 << 20;
/// What is less than this is copied when it is lent.
const LENT_BYTES_MIN: usize = 32 << 10;

/// Buffers that nobody uses now.
#[derive(Default)]
pub(crate) struct Spare {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The one that was used last behind all others.
    buffers: VecDeque<AlignedBuffer>,
    bytes: usize,
}

impl Spare {
    /// One that takes at least so many bytes without growing. What is in it, if anything, is of no use.
    pub(crate) fn take(&self, bytes: usize) -> AlignedBuffer {
        // None has less than a page: who wants a header alone gets one that has brought a header before.
        let bytes = bytes.next_multiple_of(DISK_ALIGNMENT);
        let fits = |buffer: &AlignedBuffer| (bytes..=4 * bytes).contains(&buffer.capacity());
        let mut kept = self.kept.lock();
        let at = kept.buffers.iter().rposition(fits);
        let Some(buffer) = at.and_then(|at| kept.buffers.remove(at)) else {
            drop(kept);
            return AlignedBuffer::with_capacity(bytes);
        };
        kept.bytes -= buffer.capacity();
        buffer
    }

    /// It is not used any more. Those that nobody has taken for longest go for it: blocks that come are not always as large as those that were there before.
    pub(crate) fn give(&self, buffer: AlignedBuffer) {
        let bytes = buffer.capacity();
        if bytes == 0 || bytes > SPARE_BYTES {
            return;
        }
        // Given back to the system when nobody waits for the lock.
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        while kept.bytes + bytes > SPARE_BYTES {
            let Some(oldest) = kept.buffers.pop_front() else { break };
            kept.bytes -= oldest.capacity();
            gone.push(oldest);
        }
        kept.bytes += bytes;
        kept.buffers.push_back(buffer);
        drop(kept);
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// A part of a buffer, without a copy if most of the buffer is in it: it comes back when nobody has the part any more.
    pub(crate) fn lend(self: &Arc<Spare>, buffer: &mut AlignedBuffer, part: Range<usize>) -> Bytes {
        if part.len() < LENT_BYTES_MIN || buffer.capacity() > 2 * part.len() {
            return Bytes::copy_from_slice(&buffer[part]);
        }
        Bytes::from_owner(Lent { buffer: std::mem::take(buffer), part, to: Arc::downgrade(self) })
    }
}

/// A buffer that somebody reads in.
struct Lent {
    buffer: AlignedBuffer,
    part: Range<usize>,
    to: Weak<Spare>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(spare) = self.to.upgrade() {
            spare.give(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_not_copied_and_comes_back_with_the_last_who_has_it() {
        let spare = Arc::new(Spare::default());
        let mut buffer = AlignedBuffer::zeroed(100_000);
        buffer[5_000] = 7;
        let at = buffer.as_ptr();
        let lent = spare.lend(&mut buffer, 4_096..100_000);
        assert_eq!((buffer.capacity(), lent.len(), lent[904]), (0, 95_904, 7));
        assert_eq!(lent.as_ptr(), at.wrapping_add(4_096));
        let other = lent.slice(904..905);
        drop(lent);
        assert_eq!((spare.bytes(), &other[..]), (0, &[7][..]), "a part of it is read in");
        drop(other);
        assert_eq!(spare.bytes(), 102_400);
        assert_eq!(spare.take(90_000).as_ptr(), at);
        assert_eq!(spare.bytes(), 0);
    }

    #[test]
    fn a_small_part_does_not_keep_a_large_buffer() {
        let spare = Arc::new(Spare::default());
        let mut buffer = AlignedBuffer::zeroed(1 << 20);
        for part in [0..LENT_BYTES_MIN - 1, 4_096..500_000] {
            let bytes = part.len();
            assert_eq!(spare.lend(&mut buffer, part).len(), bytes);
            assert_eq!(buffer.len(), 1 << 20, "it was copied");
        }
    }

    /// A source looks at a block's header before it has memory for the block, and lends that.
    #[test]
    fn a_page_for_a_header_is_one_that_was_used_before() {
        let spare = Spare::default();
        for _ in 0..3 {
            let page = spare.take(64);
            assert_eq!((page.capacity(), spare.bytes()), (DISK_ALIGNMENT, 0));
            spare.give(page);
            assert_eq!(spare.bytes(), DISK_ALIGNMENT);
        }
    }

    #[test]
    fn what_nobody_takes_makes_room_for_what_is_used() {
        let spare = Spare::default();
        (0..SPARE_BYTES / DISK_ALIGNMENT).for_each(|_| spare.give(AlignedBuffer::with_capacity(DISK_ALIGNMENT)));
        assert_eq!(spare.bytes(), SPARE_BYTES);
        spare.give(AlignedBuffer::with_capacity(1 << 20));
        assert_eq!(spare.bytes(), SPARE_BYTES);
        assert_eq!(spare.take(1 << 20).capacity(), 1 << 20);
        assert_eq!(spare.bytes(), SPARE_BYTES - (1 << 20), "it was one of those that are kept");
        // One that is more than all that is kept takes no place.
        spare.give(AlignedBuffer::with_capacity(SPARE_BYTES + 1));
        assert_eq!(spare.bytes(), SPARE_BYTES - (1 << 20));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_lent_outlives_who_lent_it() {
        let spare = Arc::new(Spare::default());
        for _ in 0..20 {
            spare.give(AlignedBuffer::with_capacity(1 << 20));
        }
        assert_eq!(spare.bytes(), SPARE_BYTES);
        spare.give(AlignedBuffer::new());
        let lent = spare.lend(&mut AlignedBuffer::zeroed(100_000), 0..100_000);
        drop(spare);
        assert!(lent.iter().all(|byte| *byte == 0));
    }
}
