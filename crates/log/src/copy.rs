//! Copying into memory that is not read again soon. Called by [`crate::segment`] for each chunk.
//!
//! A segment is far larger than the near caches, and a byte in it is next touched when it is sent or written to disk, much
//! later. An ordinary copy first reads every line of the target from memory, only to overwrite it, and throws out of the
//! caches what the connection needs: its read buffer. Large chunks are therefore written past the caches, whole lines at a
//! time. For small ones that costs more than it saves, since every chunk ends with waiting for the last lines to leave; their
//! target lines are asked for one chunk ahead instead.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, _MM_HINT_ET0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128};

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Copies `source` into `target`, which is as long. When it returns every byte is as visible to others as after an ordinary
/// copy: what is stored afterwards (a segment's head) is seen by nobody before them.
#[inline]
pub(crate) fn copy_past_caches(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len());
    #[cfg(target_arch = "x86_64")]
    {
        let ahead = target.as_ptr().align_offset(LINE_BYTES).min(target.len());
        let whole = (target.len() - ahead) / LINE_BYTES * LINE_BYTES;
        target[..ahead].copy_from_slice(&source[..ahead]);
        let (to, from) = (target[ahead..ahead + whole].as_mut_ptr(), source[ahead..ahead + whole].as_ptr());
        for at in (0..whole).step_by(LINE_BYTES) {
            // SAFETY: both have a whole line from `at` on, and the target's starts at a multiple of 64; SSE2 is part of every
            // x86-64.
            unsafe {
                let (to, from) = (to.add(at).cast::<__m128i>(), from.add(at).cast::<__m128i>());
                let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
                let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
                _mm_stream_si128(to, a);
                _mm_stream_si128(to.add(1), b);
                _mm_stream_si128(to.add(2), c);
                _mm_stream_si128(to.add(3), d);
            }
        }
        // Such stores are not ordered with others, not even before a release, unless they are told to be.
        // SAFETY: SSE is part of every x86-64.
        unsafe { _mm_sfence() };
        target[ahead + whole..].copy_from_slice(&source[ahead + whole..]);
    }
    #[cfg(not(target_arch = "x86_64"))]
    target.copy_from_slice(source);
}

/// Says that so many bytes from `at` on will be written soon. Changes nothing.
#[inline]
pub(crate) fn prepare_to_write(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: a hint, which never faults whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_whatever_the_alignment() {
        let source: Vec<u8> = (0..1200_u32).map(|n| ((n * 7) >> 2) as u8).collect();
        for bytes in [0, 1, 15, 63, 64, 65, 127, 128, 129, 1000] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 61), (63, 64), (40, 8)] {
                let mut target = vec![0xee; 1200];
                copy_past_caches(&mut target[to..to + bytes], &source[from..from + bytes]);
                assert_eq!(target[to..to + bytes], source[from..from + bytes], "{bytes} bytes from {from} to {to}");
                let around = target[..to].iter().chain(&target[to + bytes..]);
                assert!(around.copied().all(|byte| byte == 0xee), "{bytes} bytes from {from} to {to}");
            }
        }
    }
}
