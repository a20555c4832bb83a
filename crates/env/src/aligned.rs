//! A growable byte buffer whose address suits direct I/O.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{fmt, slice};

use bytes::BufMut;
use bytes::buf::UninitSlice;

use crate::disk::DISK_ALIGNMENT;

/// Bytes at an address that is a multiple of [`DISK_ALIGNMENT`]; grows as a `Vec` does.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    /// Always initialised up to here.
    len: usize,
    /// A multiple of the alignment; zero means nothing is allocated.
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone and hands out references only as its own borrows allow.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; `&AlignedBuffer` only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// An empty buffer that takes no memory.
    pub const fn new() -> AlignedBuffer {
        AlignedBuffer { start: NonNull::dangling(), len: 0, capacity: 0 }
    }

    /// An empty buffer that takes at least `bytes` without growing.
    pub fn with_capacity(bytes: usize) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::new();
        buffer.reserve(bytes);
        buffer
    }

    /// `bytes` zeros.
    pub fn zeroed(bytes: usize) -> AlignedBuffer {
        let capacity = bytes.next_multiple_of(DISK_ALIGNMENT);
        if capacity == 0 {
            return AlignedBuffer::new();
        }
        let layout = layout(capacity);
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        AlignedBuffer { start, len: bytes, capacity }
    }

    /// Bytes it takes without growing.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `more` bytes behind those there are.
    pub fn reserve(&mut self, more: usize) {
        let need = self.len.checked_add(more).expect("fewer bytes than the address space");
        if need <= self.capacity {
            return;
        }
        let capacity = need.max(self.capacity * 2).next_multiple_of(DISK_ALIGNMENT);
        let layout = layout(capacity);
        // SAFETY: the layout's size is not zero, `need` being above a capacity of zero or more.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: both hold at least `len` bytes, and a fresh allocation overlaps nothing.
        unsafe { start.as_ptr().copy_from_nonoverlapping(self.start.as_ptr(), self.len) };
        self.free();
        (self.start, self.capacity) = (start, capacity);
    }

    /// Appends a copy of `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        // SAFETY: `reserve` made room for `bytes.len()` bytes behind `len`, and `bytes` cannot be borrowed from self.
        unsafe { self.start.as_ptr().add(self.len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.len += bytes.len();
    }

    /// Cuts off or fills up with zeros.
    pub fn resize(&mut self, len: usize) {
        if len > self.len {
            self.reserve(len - self.len);
            // SAFETY: `reserve` made room up to `len`.
            unsafe { self.start.as_ptr().add(self.len).write_bytes(0, len - self.len) };
        }
        self.len = len;
    }

    /// Appends zeros up to a multiple of [`DISK_ALIGNMENT`].
    pub fn pad(&mut self) {
        self.resize(self.len.next_multiple_of(DISK_ALIGNMENT));
    }

    /// Drops the bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn free(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated with this very layout, and not used after this.
            unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) };
        }
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, DISK_ALIGNMENT).expect("a size within the address space")
}

// SAFETY: `chunk_mut` is the memory behind `len` that the buffer owns, as much as `remaining_mut` says, and `advance_mut` goes no further.
unsafe impl BufMut for AlignedBuffer {
    /// What it takes without growing: it never grows by this.
    fn remaining_mut(&self) -> usize {
        self.capacity - self.len
    }

    unsafe fn advance_mut(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining_mut(), "more bytes than there was room for");
        self.len += bytes;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        // SAFETY: so many bytes behind `len` are allocated, and borrowed from self; of an empty buffer the pointer is dangling, which is
        // fine for no bytes.
        unsafe { UninitSlice::from_raw_parts_mut(self.start.as_ptr().add(self.len), self.capacity - self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        self.free();
    }
}

impl Default for AlignedBuffer {
    fn default() -> AlignedBuffer {
        AlignedBuffer::new()
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are initialised; of an empty buffer the pointer is dangling, which is fine for no bytes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way in.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(buffer: &AlignedBuffer) -> bool {
        buffer.as_ptr().addr().is_multiple_of(DISK_ALIGNMENT)
    }

    #[test]
    fn empty_takes_no_memory() {
        let buffer = AlignedBuffer::new();
        assert!(buffer.is_empty());
        assert_eq!(buffer.capacity(), 0);
        assert!(AlignedBuffer::zeroed(0).is_empty());
    }

    #[test]
    fn filling_what_is_allocated_keeps_the_address() {
        let mut buffer = AlignedBuffer::with_capacity(DISK_ALIGNMENT);
        buffer.extend_from_slice(&[7; 100]);
        let address = buffer.as_ptr();
        let room = buffer.remaining_mut();
        assert_eq!(room, DISK_ALIGNMENT - 100);
        (&mut buffer).limit(room).put_slice(&vec![8; room]);
        assert!(buffer[..100].iter().all(|byte| *byte == 7) && buffer[100..].iter().all(|byte| *byte == 8));
        assert_eq!((buffer.len(), buffer.remaining_mut(), buffer.as_ptr()), (DISK_ALIGNMENT, 0, address));
        assert_eq!(AlignedBuffer::new().remaining_mut(), 0);
    }

    #[test]
    fn growing_keeps_bytes_and_alignment() {
        let mut buffer = AlignedBuffer::with_capacity(10);
        let mut expected = Vec::new();
        for i in 0..10_000u32 {
            buffer.extend_from_slice(&i.to_le_bytes());
            expected.extend_from_slice(&i.to_le_bytes());
        }
        assert!(aligned(&buffer));
        assert_eq!(&buffer[..], &expected[..]);
        buffer.pad();
        assert_eq!(buffer.len(), 40_960);
        assert!(buffer[40_000..].iter().all(|b| *b == 0));
    }

    #[test]
    fn shrinking_and_growing_again_shows_zeros() {
        let mut buffer = AlignedBuffer::new();
        buffer.extend_from_slice(&[7; 100]);
        buffer.resize(3);
        buffer.resize(6);
        assert_eq!(&buffer[..], &[7, 7, 7, 0, 0, 0]);
        buffer.clear();
        assert!(buffer.is_empty());
        let zeroed = AlignedBuffer::zeroed(5000);
        assert!(aligned(&zeroed) && zeroed.len() == 5000 && zeroed.iter().all(|b| *b == 0));
    }
}
