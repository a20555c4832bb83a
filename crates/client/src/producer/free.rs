//! Buffers of chunks that were acknowledged, for those that come. Under the producer's lock, with the [buffer](super::buffer).

use kera_format::align8;

use super::buffer::BufferSettings;

/// Free buffers that are kept.
const FREE_BUFFERS_MAX: usize = 1_024;
/// An open chunk's first buffer when there are too many streamlets for each to have a whole one.
const FIRST_BYTES_MIN: usize = 512;

/// Memory that is used again, of one size.
#[derive(Debug)]
pub(super) struct Free {
    buffers: Vec<Vec<u8>>,
    /// Bytes of a buffer.
    pub(super) bytes: usize,
}

impl Free {
    /// None yet, and whether there is room for a whole buffer for each streamlet.
    pub(super) fn of(settings: &BufferSettings) -> (bool, Free) {
        let streamlets = settings.streamlets.max(1) as usize;
        // Sealed chunks are padded.
        let chunk_bytes = align8(settings.chunk_bytes);
        let whole = streamlets.saturating_mul(settings.chunk_bytes) <= settings.buffer_bytes;
        let share = settings.buffer_bytes / (2 * streamlets);
        let bytes = if whole { chunk_bytes } else { share.clamp(FIRST_BYTES_MIN.min(chunk_bytes), chunk_bytes) };
        (whole, Free { buffers: Vec::new(), bytes: align8(bytes) })
    }

    /// Memory of at least so many bytes, all of it initialised.
    pub(super) fn open(&mut self, bytes: usize) -> Vec<u8> {
        let bytes = align8(bytes);
        if bytes <= self.bytes
            && let Some(mut memory) = self.buffers.pop()
        {
            memory.resize(self.bytes, 0);
            return memory;
        }
        vec![0; bytes.max(self.bytes)]
    }

    /// Memory to copy so many bytes to. What leaves early is often small: that does not keep a large buffer.
    pub(super) fn copy(&mut self, bytes: usize) -> Vec<u8> {
        if bytes >= self.bytes / 2
            && bytes <= self.bytes
            && let Some(memory) = self.buffers.pop()
        {
            return memory;
        }
        Vec::with_capacity(align8(bytes))
    }

    /// Takes memory back, unless it has another size or there is enough.
    pub(super) fn give_back(&mut self, memory: Vec<u8>) {
        if self.buffers.len() < FREE_BUFFERS_MAX && (self.bytes..=2 * self.bytes).contains(&memory.capacity()) {
            self.buffers.push(memory);
        }
    }
}
