//! The arena file: all segment memory of a node, in shared memory. One header page, a table with one byte per block of
//! 64 or 36 KiB, then the blocks.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic          "KERARENA"
//!      8      4  version        1, or 2 if blocks have 36 KiB
//!     12      4  header_bytes   4096
//!     16     16  node           the node's uuid
//!     32     16  boot_id        of the machine when the file was made
//!     48      8  bytes          of all blocks
//!     56      8  table_offset   4096
//!     64      8  blocks_offset  a multiple of 2 MiB
//!     72      4  block_bytes    65536, or 36864
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
/// Bytes of a plain block.
pub const ARENA_BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a roomy block.
pub const ARENA_ROOMY_BLOCK_BYTES: usize = (32 << 10) + (4 << 10);
/// Where the table starts.
pub const ARENA_TABLE_OFFSET: u64 = ARENA_HEADER_BYTES as u64;
/// The largest order of roomy blocks: 2^9 of them hold a segment of 16 MiB. Of plain ones it is 8.
pub const ARENA_ORDER_MAX: u8 = BlockSize::Roomy.order_max();
/// The most bytes of blocks.
pub const ARENA_BYTES_MAX: u64 = 16 << 40;

/// The field of an error that names a version that is not known.
pub const ARENA_VERSION_FIELD: &str = "arena.version";

const MAGIC: [u8; 8] = *b"KERARENA";
const VERSION_PLAIN: u32 = 1;
const VERSION_ROOMY: u32 = 2;
const BLOCKS_ALIGN: u64 = 2 << 20;

/// How large the blocks of an arena are.
///
/// Batches of records are powers of two, 16 and 64 KiB more often than not, and segments and chunks have headers: of plain blocks such
/// a batch takes two where one and a little would do, and the rest is left over. A roomy block has the little.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// 64 KiB.
    Plain,
    /// 36 KiB.
    Roomy,
}

impl BlockSize {
    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockSize::Plain => ARENA_BLOCK_BYTES,
            BlockSize::Roomy => ARENA_ROOMY_BLOCK_BYTES,
        }
    }

    /// The order of the blocks that a segment of the largest size is in.
    pub const fn order_max(self) -> u8 {
        limits::SEGMENT_BYTES_MAX.div_ceil(self.bytes()).next_power_of_two().trailing_zeros() as u8
    }

    fn version(self) -> u32 {
        match self {
            BlockSize::Plain => VERSION_PLAIN,
            BlockSize::Roomy => VERSION_ROOMY,
        }
    }
}

/// The header page of an arena file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaHeader {
    /// The node that it belongs to.
    pub node: [u8; 16],
    /// The machine's boot id when it was made.
    pub boot_id: [u8; 16],
    /// How large its blocks are.
    pub blocks: BlockSize,
    /// Bytes of all blocks, a multiple of those of one.
    pub bytes: u64,
}

impl ArenaHeader {
    /// Where the blocks start in the file.
    pub fn blocks_offset(&self) -> u64 {
        (ARENA_TABLE_OFFSET + self.bytes / self.blocks.bytes() as u64).next_multiple_of(BLOCKS_ALIGN)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.blocks_offset() + self.bytes
    }

    /// The header page's bytes that are not zero.
    pub fn encode(&self) -> [u8; 80] {
        let mut page = [0; 80];
        put(&mut page, 0, &MAGIC);
        put(&mut page, 8, &self.blocks.version().to_le_bytes());
        put(&mut page, 12, &(ARENA_HEADER_BYTES as u32).to_le_bytes());
        put(&mut page, 16, &self.node);
        put(&mut page, 32, &self.boot_id);
        put(&mut page, 48, &self.bytes.to_le_bytes());
        put(&mut page, 56, &ARENA_TABLE_OFFSET.to_le_bytes());
        put(&mut page, 64, &self.blocks_offset().to_le_bytes());
        put(&mut page, 72, &(self.blocks.bytes() as u32).to_le_bytes());
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
        let blocks = match u32_at(page, 8) {
            VERSION_PLAIN => BlockSize::Plain,
            VERSION_ROOMY => BlockSize::Roomy,
            other => return bad(ARENA_VERSION_FIELD, other.into(), "1 or 2"),
        };
        let bytes = u64_at(page, 48);
        if bytes == 0 || bytes > ARENA_BYTES_MAX || !bytes.is_multiple_of(blocks.bytes() as u64) {
            return bad("arena.bytes", bytes, "whole blocks, of 64 KiB or in version 2 of 36 KiB, up to 16 TiB");
        }
        let mut header = ArenaHeader { node: [0; 16], boot_id: [0; 16], blocks, bytes };
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
        ArenaHeader { node: [7; 16], boot_id: [9; 16], blocks: BlockSize::Plain, bytes: 1 << 30 }
    }

    #[test]
    fn blocks_of_another_size_are_another_version() {
        let bytes = ARENA_ROOMY_BLOCK_BYTES as u64 * 1000;
        let roomy = ArenaHeader { blocks: BlockSize::Roomy, bytes, ..header() };
        let page = roomy.encode();
        assert_eq!(page[8], 2);
        assert_eq!(ArenaHeader::parse(&page), Ok(roomy));
        let mut torn = page;
        put(&mut torn, 72, &(ARENA_BLOCK_BYTES as u32).to_le_bytes());
        let crc = crc32c(&torn[..76]);
        put(&mut torn, 76, &crc.to_le_bytes());
        assert!(ArenaHeader::parse(&torn).is_err(), "a size of blocks that is not the version's");
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
        assert_eq!((BlockSize::Plain.order_max(), ARENA_ORDER_MAX), (8, 9));
        assert_eq!(TableEntry::from_byte(0x4a), None);
        assert_eq!(TableEntry::from_byte(0x49), Some(TableEntry::Segment(9)));
        assert_eq!(TableEntry::from_byte(0xc0), None);
        assert_eq!(TableEntry::from_byte(0x01), None);
    }
}
