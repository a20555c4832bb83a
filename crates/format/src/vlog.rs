//! The bytes of a virtual log on disk: files of blocks, each block the chunks of one group commit (thesis 7.3).
//!
//! A file starts with a header of one 4 KiB page, of which 64 bytes are used:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KVLF"
//!      4      2  version           1
//!      6      2  header_bytes      64
//!      8     16  node              uuid of the node that writes it
//!     24      4  vlog              number of the virtual log in its node
//!     28      4  zero
//!     32      8  file              sequence of the file, from 1, never reused
//!     40      8  key               random; every block of the file repeats it
//!     48      8  first_block       sequence of its first block
//!     56      4  zero
//!     60      4  checksum          CRC-32C of bytes 0..60
//! ```
//! Blocks follow, each at a multiple of 4 KiB, in the order of their sequences, which have no holes in a virtual log:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KVBL"
//!      4      2  version           1
//!      6      2  header_bytes      64
//!      8      4  vlog
//!     12      4  chunk_count
//!     16      8  block             sequence of the block in its virtual log, from 1
//!     24      8  file              as in the file's header
//!     32      8  key               as in the file's header
//!     40      8  written_ms        since 1970
//!     48      4  chunk_bytes       of the chunks behind the header, a multiple of 8
//!     52      4  chunks_checksum   CRC-32C of the chunks
//!     56      4  unsynced          of a copy: 1 more than blocks before it were not synced when it was written; 0: not said
//!     60      4  checksum          CRC-32C of bytes 0..60
//!     64      …  chunks, back to back, stamped; then zeros up to a multiple of 4 KiB
//! ```
//! The last page of a file is its mark, of which 64 bytes are used:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KVMK"
//!      4      2  version           1
//!      6      2  header_bytes      64
//!      8      4  vlog
//!     12      4  zero
//!     16      8  file              as in the file's header
//!     24      8  key               as in the file's header
//!     32      8  end               bytes from the start of the file; no block reaches beyond
//!     40     20  zero
//!     60      4  checksum          CRC-32C of bytes 0..60
//! ```
//! It is synced before a block beyond the mark before it is written, so whoever looks for blocks need not look there.
//! One that does not read back says nothing: then they may be anywhere.
//!
//! A file that is used again keeps old blocks behind the ones written last. `file` and `key` tell them apart, and since
//! nobody outside the node knows the key, no user's bytes at a page boundary can pose as a block.

use crate::checksum::crc32c;
use crate::start::Start;
use crate::wire::{i64_at, put, u32_at, u64_at};
use crate::{FormatError, limits};

/// Blocks and the first block start at multiples of this: what direct I/O asks for.
pub const PAGE_BYTES: usize = 4096;
/// The used bytes of a file's header.
pub const FILE_HEADER_BYTES: usize = 64;
/// Numbers from here on are no blocks': who sends one to a backup asks whether it takes more of a log.
pub const QUESTIONS: u64 = 1 << 63;
/// Bytes of a block before its first chunk.
pub const BLOCK_HEADER_BYTES: usize = 64;
/// The first four bytes of a file: "KVLF".
pub const FILE_MAGIC: u32 = u32::from_le_bytes(*b"KVLF");
/// The first four bytes of a block: "KVBL".
pub const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"KVBL");
/// The first four bytes of a file's last page: "KVMK".
pub const MARK_MAGIC: u32 = u32::from_le_bytes(*b"KVMK");
/// The version of the layouts.
pub const VLOG_VERSION: u16 = 1;
/// The most bytes of chunks in a block: always enough for one chunk of the largest size.
pub const BLOCK_CHUNK_BYTES_MAX: usize = 2 * limits::SEGMENT_BYTES_MAX;

/// Rounds up to whole pages.
pub const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// The first page of a virtual log's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Uuid of the node that writes it.
    pub node: [u8; 16],
    /// Number of the virtual log in its node.
    pub vlog: u32,
    /// Sequence of the file, from 1.
    pub file: u64,
    /// Random number that every block of the file repeats.
    pub key: u64,
    /// Sequence of its first block.
    pub first_block: u64,
}

impl FileHeader {
    /// Writes the header over the first 64 bytes of `page`.
    pub fn write(&self, page: &mut [u8]) {
        put(page, 0, &FILE_MAGIC.to_le_bytes());
        put(page, 4, &VLOG_VERSION.to_le_bytes());
        put(page, 6, &(FILE_HEADER_BYTES as u16).to_le_bytes());
        put(page, 8, &self.node);
        put(page, 24, &self.vlog.to_le_bytes());
        put(page, 28, &[0; 4]);
        put(page, 32, &self.file.to_le_bytes());
        put(page, 40, &self.key.to_le_bytes());
        put(page, 48, &self.first_block.to_le_bytes());
        put(page, 56, &[0; 4]);
        let crc = crc32c(&page[..60]);
        put(page, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies a file's header.
    pub fn parse(page: &[u8]) -> Result<FileHeader, FormatError> {
        FormatError::need("virtual log file header", FILE_HEADER_BYTES, page.len())?;
        FILE_START.check(page)?;
        let mut node = [0; 16];
        node.copy_from_slice(&page[8..24]);
        Ok(FileHeader {
            node,
            vlog: u32_at(page, 24),
            file: u64_at(page, 32),
            key: u64_at(page, 40),
            first_block: u64_at(page, 48),
        })
    }
}

/// The header of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Number of the virtual log in its node.
    pub vlog: u32,
    /// Chunks in it.
    pub chunk_count: u32,
    /// Sequence of the block in its virtual log, from 1, without holes.
    pub block: u64,
    /// Sequence of the file it was written to.
    pub file: u64,
    /// The file's key.
    pub key: u64,
    /// When it was written, milliseconds since 1970.
    pub written_ms: i64,
    /// Bytes of the chunks behind the header.
    pub chunk_bytes: u32,
    /// CRC-32C of those bytes.
    pub chunks_checksum: u32,
    /// Of a copy at a backup: 1 more than blocks of its row before it were not synced when it was written. 0: not said.
    pub unsynced: u32,
}

impl BlockHeader {
    /// What the block takes in its file: header, chunks and padding to whole pages.
    pub fn total_bytes(&self) -> usize {
        pages(BLOCK_HEADER_BYTES + self.chunk_bytes as usize)
    }

    /// Writes the header over the first 64 bytes of `block`.
    pub fn write(&self, block: &mut [u8]) {
        put(block, 0, &BLOCK_MAGIC.to_le_bytes());
        put(block, 4, &VLOG_VERSION.to_le_bytes());
        put(block, 6, &(BLOCK_HEADER_BYTES as u16).to_le_bytes());
        put(block, 8, &self.vlog.to_le_bytes());
        put(block, 12, &self.chunk_count.to_le_bytes());
        put(block, 16, &self.block.to_le_bytes());
        put(block, 24, &self.file.to_le_bytes());
        put(block, 32, &self.key.to_le_bytes());
        put(block, 40, &self.written_ms.to_le_bytes());
        put(block, 48, &self.chunk_bytes.to_le_bytes());
        put(block, 52, &self.chunks_checksum.to_le_bytes());
        put(block, 56, &self.unsynced.to_le_bytes());
        let crc = crc32c(&block[..60]);
        put(block, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies a block's header. The chunks need not be there yet; see
    /// [`verify_chunks`](BlockHeader::verify_chunks).
    pub fn parse(block: &[u8]) -> Result<BlockHeader, FormatError> {
        FormatError::need("virtual log block header", BLOCK_HEADER_BYTES, block.len())?;
        BLOCK_START.check(block)?;
        let chunk_bytes = u32_at(block, 48);
        if chunk_bytes as usize > BLOCK_CHUNK_BYTES_MAX {
            return Err(FormatError::OverLimit {
                field: "vlog_block.chunk_bytes",
                value: chunk_bytes.into(),
                limit: BLOCK_CHUNK_BYTES_MAX as u64,
            });
        }
        if !chunk_bytes.is_multiple_of(8) {
            return Err(FormatError::BadField {
                field: "vlog_block.chunk_bytes",
                value: chunk_bytes.into(),
                allowed: "a multiple of 8",
            });
        }
        Ok(BlockHeader {
            vlog: u32_at(block, 8),
            chunk_count: u32_at(block, 12),
            block: u64_at(block, 16),
            file: u64_at(block, 24),
            key: u64_at(block, 32),
            written_ms: i64_at(block, 40),
            chunk_bytes,
            chunks_checksum: u32_at(block, 52),
            unsynced: u32_at(block, 56),
        })
    }

    /// Whether a page that need not read back is the first one of a block that was begun in a file: as far as a changed bit leaves that to be seen, and nothing
    /// that an earlier use of the space has left.
    pub fn was_begun(page: &[u8], file: u64, key: u64) -> bool {
        let is_long_enough = page.len() >= BLOCK_HEADER_BYTES;
        is_long_enough && u32_at(page, 0) == BLOCK_MAGIC && (u64_at(page, 24) == file || u64_at(page, 32) == key)
    }

    /// Verifies the checksum over `chunks`, the bytes behind the header without the padding.
    pub fn verify_chunks(&self, chunks: &[u8]) -> Result<(), FormatError> {
        FormatError::need("virtual log block", self.chunk_bytes as usize, chunks.len())?;
        let (found, computed) = (self.chunks_checksum, crc32c(&chunks[..self.chunk_bytes as usize]));
        if found == computed {
            Ok(())
        } else {
            Err(FormatError::Checksum { what: "vlog_block.chunks_checksum", found, computed })
        }
    }
}

/// The last page of a virtual log's file: how far its blocks may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileMark {
    /// Number of the virtual log in its node.
    pub vlog: u32,
    /// Sequence of the file.
    pub file: u64,
    /// The file's key.
    pub key: u64,
    /// Bytes from the start of the file: no block reaches beyond.
    pub end: u64,
}

impl FileMark {
    /// Writes the mark over the first 64 bytes of `page`.
    pub fn write(&self, page: &mut [u8]) {
        put(page, 0, &MARK_MAGIC.to_le_bytes());
        put(page, 4, &VLOG_VERSION.to_le_bytes());
        put(page, 6, &(FILE_HEADER_BYTES as u16).to_le_bytes());
        put(page, 8, &self.vlog.to_le_bytes());
        put(page, 12, &[0; 4]);
        put(page, 16, &self.file.to_le_bytes());
        put(page, 24, &self.key.to_le_bytes());
        put(page, 32, &self.end.to_le_bytes());
        put(page, 40, &[0; 20]);
        let crc = crc32c(&page[..60]);
        put(page, 60, &crc.to_le_bytes());
    }

    /// Reads and verifies a mark.
    pub fn parse(page: &[u8]) -> Result<FileMark, FormatError> {
        FormatError::need("virtual log file mark", FILE_HEADER_BYTES, page.len())?;
        MARK_START.check(page)?;
        Ok(FileMark { vlog: u32_at(page, 8), file: u64_at(page, 16), key: u64_at(page, 24), end: u64_at(page, 32) })
    }
}

const FILE_START: Start = Start {
    magic: (FILE_MAGIC, "\"KVLF\""),
    version: (VLOG_VERSION, "1"),
    header_bytes: (FILE_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: ["vlog_file.magic", "vlog_file.checksum", "vlog_file.version", "vlog_file.header_bytes"],
};
const BLOCK_START: Start = Start {
    magic: (BLOCK_MAGIC, "\"KVBL\""),
    version: (VLOG_VERSION, "1"),
    header_bytes: (BLOCK_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: ["vlog_block.magic", "vlog_block.checksum", "vlog_block.version", "vlog_block.header_bytes"],
};
const MARK_START: Start = Start {
    magic: (MARK_MAGIC, "\"KVMK\""),
    version: (VLOG_VERSION, "1"),
    header_bytes: (FILE_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: ["vlog_mark.magic", "vlog_mark.checksum", "vlog_mark.version", "vlog_mark.header_bytes"],
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_header_comes_back_as_it_was_written() {
        let header = FileHeader { node: *b"0123456789abcdef", vlog: 3, file: 7, key: 0x1122_3344, first_block: 99 };
        let mut page = [0; PAGE_BYTES];
        header.write(&mut page);
        assert_eq!(FileHeader::parse(&page), Ok(header));
    }

    #[test]
    fn a_block_takes_whole_pages() {
        let header = |chunk_bytes| BlockHeader {
            vlog: 0,
            chunk_count: 1,
            block: 1,
            file: 1,
            key: 1,
            written_ms: 0,
            chunk_bytes,
            chunks_checksum: 0,
            unsynced: 0,
        };
        assert_eq!(header(0).total_bytes(), 4096);
        assert_eq!(header(4032).total_bytes(), 4096);
        assert_eq!(header(4040).total_bytes(), 8192);
    }

    #[test]
    fn a_size_that_lies_is_refused_before_memory_is_taken() {
        let mut bytes = [0; 64];
        let mut header = BlockHeader {
            vlog: 0,
            chunk_count: 1,
            block: 1,
            file: 1,
            key: 1,
            written_ms: 0,
            chunk_bytes: u32::MAX - 7,
            chunks_checksum: 0,
            unsynced: 0,
        };
        header.write(&mut bytes);
        assert!(matches!(BlockHeader::parse(&bytes), Err(FormatError::OverLimit { .. })));
        header.chunk_bytes = 12;
        header.write(&mut bytes);
        assert!(matches!(BlockHeader::parse(&bytes), Err(FormatError::BadField { .. })));
    }

    #[test]
    fn golden_bytes_of_a_block_header() {
        let header = BlockHeader {
            vlog: 0x0a0b_0c0d,
            chunk_count: 2,
            block: 3,
            file: 4,
            key: 5,
            written_ms: 6,
            chunk_bytes: 8,
            chunks_checksum: 0xe306_9283,
            unsynced: 0,
        };
        let mut bytes = [0xff; 64];
        header.write(&mut bytes);
        let mut expected = Vec::new();
        expected.extend(b"KVBL\x01\x00\x40\x00\x0d\x0c\x0b\x0a\x02\x00\x00\x00");
        expected.extend(b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0");
        expected.extend(b"\x08\0\0\0\x83\x92\x06\xe3\0\0\0\0");
        assert_eq!(bytes[..60], expected);
        assert_eq!(bytes[60..], crc32c(&expected).to_le_bytes());
    }

    #[test]
    fn a_mark_comes_back_and_a_changed_one_does_not() {
        let mark = FileMark { vlog: 3, file: 7, key: 0x1122_3344, end: 8 << 20 };
        let mut page = [0; PAGE_BYTES];
        mark.write(&mut page);
        assert_eq!(FileMark::parse(&page), Ok(mark));
        page[33] ^= 1;
        let error = FileMark::parse(&page).unwrap_err().to_string();
        assert!(error.contains("vlog_mark.checksum"), "{error}");
    }

    proptest! {
        #[test]
        fn any_block_header_comes_back(vlog: u32, chunk_count: u32, block: u64, file: u64, key: u64, written_ms: i64,
                                       eighths in 0..(BLOCK_CHUNK_BYTES_MAX as u32 / 8), chunks_checksum: u32,
                                       unsynced: u32) {
            let header = BlockHeader { vlog, chunk_count, block, file, key, written_ms,
                                       chunk_bytes: eighths * 8, chunks_checksum, unsynced };
            let mut bytes = [0; 64];
            header.write(&mut bytes);
            prop_assert_eq!(BlockHeader::parse(&bytes), Ok(header));
        }

        #[test]
        fn one_flipped_bit_is_noticed(bit in 0usize..512) {
            let header = BlockHeader { vlog: 1, chunk_count: 2, block: 3, file: 4, key: 5, written_ms: 6,
                                       chunk_bytes: 8, chunks_checksum: 7, unsynced: 9 };
            let mut bytes = [0; 64];
            header.write(&mut bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(BlockHeader::parse(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BlockHeader::parse(&bytes);
            let _ = FileHeader::parse(&bytes);
            let _ = FileMark::parse(&bytes);
        }
    }
}
