//! The arena file: all segment memory of a node, in shared memory. One header page, a table with one byte per block of
//! 64 KiB, then the blocks.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic          "KERARENA"
//!      8      4  version        1
//!     12      4  header_bytes   4096
//!     16     16  node           the node's uuid
//!     32     16  boot_id        of the machine when the file was made
//!     48      8  bytes          of all blocks
//!     56      8  table_offset   4096
//!     64      8  blocks_offset  a multiple of 2 MiB
//!     72      4  block_bytes    65536
//!     76      4  checksum       CRC-32C of bytes 0..76
//! ```
//! A table byte is 0 for a free block; `0x40 + k` for the first of 2^k blocks that hold a segment; `0x80 + k` for the
//! first of 2^k blocks that are in use and hold no segment yet. The bytes of the blocks behind the first are 0. The table
//! is authoritative: what is in a block never makes it a segment.

use crate::checksum::crc32c;
use crate::wire::{put, u32_at, u64_at};
use crate::{FormatError, limits};

/// Bytes of the header page.
pub const ARENA_HEADER_BYTES: usize = 4096;
/// Bytes of a block: the smallest segment.
pub const ARENA_BLOCK_BYTES: usize = limits::SEGMENT_BYTES_MIN;
/// Where the table starts.
pub const ARENA_TABLE_OFFSET: u64 = ARENA_HEADER_BYTES as u64;
/// The largest order: 2^8 blocks are a segment of 16 MiB.
pub const ARENA_ORDER_MAX: u8 = (limits::SEGMENT_BYTES_MAX / ARENA_BLOCK_BYTES).trailing_zeros() as u8;
/// The most bytes of blocks.
pub const ARENA_BYTES_MAX: u64 = 16 << 40;

/// The field of an error that names a version that is not known.
pub const ARENA_VERSION_FIELD: &str = "arena.version";

const MAGIC: [u8; 8] = *b"KERARENA";
const VERSION: u32 = 1;
const BLOCKS_ALIGN: u64 = 2 << 20;

/// The header page of an arena file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaHeader {
    /// The node that it belongs to.
    pub node: [u8; 16],
    /// The machine's boot id when it was made.
    pub boot_id: [u8; 16],
    /// Bytes of all blocks, a multiple of [`ARENA_BLOCK_BYTES`].
    pub bytes: u64,
}

impl ArenaHeader {
    /// Where the blocks start in the file.
    pub fn blocks_offset(&self) -> u64 {
        (ARENA_TABLE_OFFSET + self.bytes / ARENA_BLOCK_BYTES as u64).next_multiple_of(BLOCKS_ALIGN)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.blocks_offset() + self.bytes
    }

    /// The header page's bytes that are not zero.
    pub fn encode(&self) -> [u8; 80] {
        let mut page = [0; 80];
        put(&mut page, 0, &MAGIC);
        put(&mut page, 8, &VERSION.to_le_bytes());
        put(&mut page, 12, &(ARENA_HEADER_BYTES as u32).to_le_bytes());
        put(&mut page, 16, &self.node);
        put(&mut page, 32, &self.boot_id);
        put(&mut page, 48, &self.bytes.to_le_bytes());
        put(&mut page, 56, &ARENA_TABLE_OFFSET.to_le_bytes());
        put(&mut page, 64, &self.blocks_offset().to_le_bytes());
        put(&mut page, 72, &(ARENA_BLOCK_BYTES as u32).to_le_bytes());
        let crc = crc32c(&page[..76]);
        put(&mut page, 76, &crc.to_le_bytes());
        page
    }

    /// Reads and verifies a header page.
    pub fn parse(page: &[u8]) -> Result<ArenaHeader, FormatError> {
        FormatError::need("arena header", 80, page.len())?;
        let bad = |field, value, allowed| Err(FormatError::BadField { field, value, allowed });
        if page[..8] != MAGIC {
            return bad("arena.magic", u64_at(page, 0), "\"KERARENA\"");
        }
        let (found, computed) = (u32_at(page, 76), crc32c(&page[..76]));
        if found != computed {
            return Err(FormatError::Checksum { what: "arena.checksum", found, computed });
        }
        if u32_at(page, 8) != VERSION {
            return bad(ARENA_VERSION_FIELD, u32_at(page, 8).into(), "1");
        }
        let bytes = u64_at(page, 48);
        if bytes == 0 || bytes > ARENA_BYTES_MAX || !bytes.is_multiple_of(ARENA_BLOCK_BYTES as u64) {
            return bad("arena.bytes", bytes, "a multiple of 64 KiB up to 16 TiB");
        }
        let mut header = ArenaHeader { node: [0; 16], boot_id: [0; 16], bytes };
        header.node.copy_from_slice(&page[16..32]);
        header.boot_id.copy_from_slice(&page[32..48]);
        if header.encode() != page[..80] {
            return bad("arena.layout", u64_at(page, 64), "the offsets that follow from the size");
        }
        Ok(header)
    }
}

/// A byte of the block table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableEntry {
    /// Free, or inside of the blocks that a byte before names.
    Free,
    /// The first of 2^order blocks that hold a segment.
    Segment(u8),
    /// The first of 2^order blocks in use that hold no segment yet.
    Reserved(u8),
}

impl TableEntry {
    /// The byte.
    pub fn to_byte(self) -> u8 {
        match self {
            TableEntry::Free => 0,
            TableEntry::Segment(order) => 0x40 | order,
            TableEntry::Reserved(order) => 0x80 | order,
        }
    }

    /// From a byte; `None` if it is none of them.
    pub fn from_byte(byte: u8) -> Option<TableEntry> {
        let order = byte & 0x3f;
        match byte >> 6 {
            0 if byte == 0 => Some(TableEntry::Free),
            1 if order <= ARENA_ORDER_MAX => Some(TableEntry::Segment(order)),
            2 if order <= ARENA_ORDER_MAX => Some(TableEntry::Reserved(order)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ArenaHeader {
        ArenaHeader { node: [7; 16], boot_id: [9; 16], bytes: 1 << 30 }
    }

    #[test]
    fn header_page_reads_back_and_lays_out_the_file() {
        let page = header().encode();
        assert_eq!(ArenaHeader::parse(&page), Ok(header()));
        assert_eq!(&page[..8], b"KERARENA");
        assert_eq!(header().blocks_offset(), 2 << 20);
        assert_eq!(header().file_bytes(), (1 << 30) + (2 << 20));
    }

    #[test]
    fn every_changed_bit_of_the_header_is_noticed() {
        let page = header().encode();
        for bit in 0..80 * 8 {
            let mut changed = page;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(ArenaHeader::parse(&changed).is_err(), "bit {bit}");
        }
        assert!(ArenaHeader::parse(&page[..79]).is_err());
    }

    #[test]
    fn every_table_byte_is_one_entry_or_none() {
        for byte in 0..=255 {
            if let Some(entry) = TableEntry::from_byte(byte) {
                assert_eq!(entry.to_byte(), byte);
            }
        }
        assert_eq!(ARENA_ORDER_MAX, 8);
        assert_eq!(TableEntry::from_byte(0x49), None);
        assert_eq!(TableEntry::from_byte(0x48), Some(TableEntry::Segment(8)));
        assert_eq!(TableEntry::from_byte(0xc0), None);
        assert_eq!(TableEntry::from_byte(0x01), None);
    }
}
