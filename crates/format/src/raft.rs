//! The log that the coordinators of a cluster agree on, on the disk of one of them. `docs/formats/raft.md` lays it out.
//!
//! A file is a header and blocks. A block is what one write makes durable: it is synced before the next one is written, so a
//! block that does not read back was never acknowledged if none follows it, and is damage if one does.

use crate::checksum::crc32c;
use crate::cluster::{ClusterEntry, RaftPlace};
use crate::start::Start;
use crate::wire::{put, u16_at, u32_at, u64_at};
use crate::{FormatError, align8};

/// Bytes of a file before its first block.
pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes of a block before its records.
pub const BLOCK_HEADER_BYTES: usize = 16;
/// Bytes of a record before its body.
pub const RECORD_HEADER_BYTES: usize = 8;
/// The largest block.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;
/// With more than this records go into several blocks.
const BLOCK_BYTES: usize = 16 << 20;
/// The first four bytes of a file: "KRFT".
pub const RAFT_MAGIC: u32 = u32::from_le_bytes(*b"KRFT");
/// The version of these layouts.
pub const RAFT_VERSION: u16 = 1;

/// The first 64 bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Uuid of the node that writes it.
    pub node: [u8; 16],
    /// Number of the file; only the highest counts.
    pub generation: u64,
}

impl FileHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        put(&mut bytes, 0, &RAFT_MAGIC.to_le_bytes());
        put(&mut bytes, 4, &RAFT_VERSION.to_le_bytes());
        put(&mut bytes, 6, &(FILE_HEADER_BYTES as u16).to_le_bytes());
        put(&mut bytes, 8, &self.node);
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// Reads and verifies the first 64 bytes of a file.
    pub fn parse(bytes: &[u8]) -> Result<FileHeader, FormatError> {
        FormatError::need("raft file header", FILE_HEADER_BYTES, bytes.len())?;
        FILE_START.check(bytes)?;
        let mut node = [0; 16];
        node.copy_from_slice(&bytes[8..24]);
        Ok(FileHeader { node, generation: u64_at(bytes, 24) })
    }
}

const FILE_START: Start = Start {
    magic: (RAFT_MAGIC, "\"KRFT\""),
    version: (RAFT_VERSION, "1"),
    header_bytes: (FILE_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: ["raft_file.magic", "raft_file.checksum", "raft_file.version", "raft_file.header_bytes"],
};

/// What an entry of the log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Nothing: how a leader begins.
    Blank,
    /// Entries of the cluster's state, in order; a [`ClusterEntry::Membership`] stands alone.
    Entries(Vec<ClusterEntry>),
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Where it is.
    pub place: RaftPlace,
    /// What it holds.
    pub payload: Payload,
}

impl LogEntry {
    /// Appends `term u64, leader u64, index u64, count u32, zero u32` and the entries, numbered from 1.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.place.term, self.place.leader, self.place.index] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let entries = match &self.payload {
            Payload::Blank => &[][..],
            Payload::Entries(entries) => entries,
        };
        out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        entries.iter().zip(1..).for_each(|(entry, index)| entry.encode(index, out));
    }

    /// Reads one that takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<LogEntry, FormatError> {
        FormatError::need("raft entry", 32, bytes.len())?;
        let place = RaftPlace { term: u64_at(bytes, 0), leader: u64_at(bytes, 8), index: u64_at(bytes, 16) };
        let (count, mut at) = (u64_at(bytes, 24), 32);
        let mut entries = Vec::new();
        for expected in 1..=count {
            let (index, entry, size) = ClusterEntry::parse(&bytes[at..])?;
            if index != expected {
                let (field, allowed) = ("raft_entry.index", "numbers from 1 on");
                return Err(FormatError::BadField { field, value: index, allowed });
            }
            entries.push(entry);
            at += size;
        }
        if at != bytes.len() {
            let value = (bytes.len() - at) as u64;
            return Err(FormatError::BadField { field: "raft_entry.rest", value, allowed: "no byte behind it" });
        }
        let payload = if entries.is_empty() { Payload::Blank } else { Payload::Entries(entries) };
        Ok(LogEntry { place, payload })
    }
}

/// What a block says, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The node has voted, or follows a leader.
    Vote {
        /// In which term.
        term: u64,
        /// For whom.
        node: u64,
        /// Whether that one is the leader for sure.
        committed: bool,
    },
    /// The log has one entry more.
    Appended(LogEntry),
    /// Entries from this index on are not part of the log any more.
    Truncated {
        /// The first one.
        from: u64,
    },
    /// Entries up to here are in a snapshot.
    Purged {
        /// The last one.
        place: RaftPlace,
    },
}

impl Record {
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        let kind: u16 = match self {
            Record::Vote { term, node, committed } => {
                [*term, *node, u64::from(*committed)].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                1
            }
            Record::Appended(entry) => {
                entry.encode(out);
                2
            }
            Record::Truncated { from } => {
                out.extend_from_slice(&from.to_le_bytes());
                3
            }
            Record::Purged { place } => {
                [place.term, place.leader, place.index].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                4
            }
        };
        let record_bytes = (out.len() - start) as u32;
        put(&mut out[start..], 0, &record_bytes.to_le_bytes());
        put(&mut out[start..], 4, &kind.to_le_bytes());
    }

    fn parse(kind: u16, body: &[u8]) -> Result<Record, FormatError> {
        let need = |bytes| FormatError::need("raft record", bytes, body.len());
        Ok(match kind {
            1 => {
                need(24)?;
                Record::Vote { term: u64_at(body, 0), node: u64_at(body, 8), committed: u64_at(body, 16) != 0 }
            }
            2 => Record::Appended(LogEntry::parse(body)?),
            3 => {
                need(8)?;
                Record::Truncated { from: u64_at(body, 0) }
            }
            4 => {
                need(24)?;
                let place = RaftPlace { term: u64_at(body, 0), leader: u64_at(body, 8), index: u64_at(body, 16) };
                Record::Purged { place }
            }
            _ => {
                return Err(FormatError::BadField { field: "raft_record.kind", value: kind.into(), allowed: "1 to 4" });
            }
        })
    }
}

/// Appends a block to `out`; all parts of it are multiples of 8 bytes.
pub fn encode_block(sequence: u64, records: &[Record], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
    records.iter().for_each(|record| record.encode(out));
    seal(sequence, &mut out[start..]);
}

/// Makes a block of a place for its header and records.
fn seal(sequence: u64, block: &mut [u8]) {
    let block_bytes = block.len();
    debug_assert_eq!(align8(block_bytes), block_bytes, "records are whole words");
    put(block, 4, &(block_bytes as u32).to_le_bytes());
    put(block, 8, &sequence.to_le_bytes());
    let crc = crc32c(&block[4..]);
    put(block, 0, &crc.to_le_bytes());
}

/// Records as blocks, at least one, numbered from `sequence` on.
///
/// # Errors
/// A record that is larger than a block may be: nobody could read it.
pub fn encode_blocks(sequence: u64, records: &[Record]) -> Result<Vec<Vec<u8>>, FormatError> {
    let (mut blocks, mut block) = (Vec::new(), vec![0; BLOCK_HEADER_BYTES]);
    for record in records {
        let at = block.len();
        record.encode(&mut block);
        let (value, limit) = ((block.len() - at) as u64, (BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES) as u64);
        if value > limit {
            return Err(FormatError::OverLimit { field: "raft_record.record_bytes", value, limit });
        }
        if at > BLOCK_HEADER_BYTES && block.len() > BLOCK_BYTES {
            let rest = block.split_off(at);
            blocks.push(std::mem::replace(&mut block, vec![0; BLOCK_HEADER_BYTES]));
            block.extend_from_slice(&rest);
        }
    }
    blocks.push(block);
    (sequence..).zip(&mut blocks).for_each(|(sequence, block)| seal(sequence, block));
    Ok(blocks)
}

/// Reads and verifies the block at the start of `bytes`: its number, its records, and the bytes it takes.
pub fn parse_block(bytes: &[u8]) -> Result<(u64, Vec<Record>, usize), FormatError> {
    parse_block_within(BLOCK_BYTES_MAX, bytes)
}

/// The same of the first block of a file: earlier builds began one with all that counts in one block, however large it was.
pub fn parse_first_block(bytes: &[u8]) -> Result<(u64, Vec<Record>, usize), FormatError> {
    parse_block_within(usize::MAX, bytes)
}

fn parse_block_within(most: usize, bytes: &[u8]) -> Result<(u64, Vec<Record>, usize), FormatError> {
    FormatError::need("raft block header", BLOCK_HEADER_BYTES, bytes.len())?;
    let block_bytes = u32_at(bytes, 4) as usize;
    if !(BLOCK_HEADER_BYTES..=most).contains(&block_bytes) {
        let (field, value) = ("raft_block.block_bytes", block_bytes as u64);
        return Err(FormatError::BadField { field, value, allowed: "16 to 64 MiB" });
    }
    FormatError::need("raft block", block_bytes, bytes.len())?;
    let (found, computed) = (u32_at(bytes, 0), crc32c(&bytes[4..block_bytes]));
    if found != computed {
        return Err(FormatError::Checksum { what: "raft_block.checksum", found, computed });
    }
    let (mut records, mut at) = (Vec::new(), BLOCK_HEADER_BYTES);
    while at < block_bytes {
        FormatError::need("raft record header", RECORD_HEADER_BYTES, block_bytes - at)?;
        let record_bytes = u32_at(bytes, at) as usize;
        if record_bytes < RECORD_HEADER_BYTES {
            let (field, value) = ("raft_record.record_bytes", record_bytes as u64);
            return Err(FormatError::BadField { field, value, allowed: "8 or more" });
        }
        FormatError::need("raft record", record_bytes, block_bytes - at)?;
        let body = &bytes[at + RECORD_HEADER_BYTES..at + record_bytes];
        records.push(Record::parse(u16_at(bytes, at + 4), body)?);
        at += record_bytes;
    }
    Ok((u64_at(bytes, 8), records, block_bytes))
}

/// Whether a block is there at the start of `bytes` as somebody has written it, whatever it says: what [`parse_block`] refuses of it a later version may have written.
pub fn is_whole_block(bytes: &[u8]) -> bool {
    if bytes.len() < BLOCK_HEADER_BYTES {
        return false;
    }
    let block = bytes.get(4..u32_at(bytes, 4) as usize).unwrap_or_default();
    block.len() >= BLOCK_HEADER_BYTES - 4 && u32_at(bytes, 0) == crc32c(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::examples;
    use proptest::prelude::*;

    fn block() -> Vec<Record> {
        let place = RaftPlace { term: 3, leader: 1, index: 12 };
        let entries = examples().into_iter().map(|(_, entry)| entry).collect();
        vec![
            Record::Vote { term: 3, node: 1, committed: true },
            Record::Truncated { from: 11 },
            Record::Appended(LogEntry { place, payload: Payload::Blank }),
            Record::Appended(LogEntry { place, payload: Payload::Entries(entries) }),
            Record::Purged { place },
        ]
    }

    #[test]
    fn a_block_comes_back_and_a_flipped_bit_or_a_missing_end_is_noticed() {
        let mut bytes = Vec::new();
        encode_block(7, &block(), &mut bytes);
        assert_eq!(parse_block(&bytes), Ok((7, block(), bytes.len())));
        for end in 0..bytes.len() {
            assert!(parse_block(&bytes[..end]).is_err(), "cut at {end}");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_block(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_block_of_records_that_nobody_knows_is_whole_and_one_with_a_flipped_bit_or_without_its_end_is_not() {
        let mut bytes = Vec::new();
        encode_block(7, &block(), &mut bytes);
        put(&mut bytes, BLOCK_HEADER_BYTES + 4, &9_u16.to_le_bytes());
        seal(7, &mut bytes);
        let error = parse_block(&bytes).unwrap_err().to_string();
        assert!(error.contains("raft_record.kind is 9"), "{error}");
        assert!(is_whole_block(&bytes) && !is_whole_block(&[0; 64]));
        assert!((0..bytes.len()).all(|end| !is_whole_block(&bytes[..end])));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_whole_block(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn records_that_do_not_fit_into_a_block_are_in_several_and_one_that_fits_into_none_is_refused() {
        let large = |index, bytes| {
            let (stream, streamlet, owner_epoch) = (crate::StreamId(1), 0, 1);
            let handed = ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state: vec![0; bytes] };
            let place = RaftPlace { term: 1, leader: 1, index };
            Record::Appended(LogEntry { place, payload: Payload::Entries(vec![handed]) })
        };
        let records: Vec<Record> = (1..=600).map(|index| large(index, crate::cluster::HANDED_BYTES_MAX)).collect();
        let blocks = encode_blocks(7, &records).unwrap();
        assert!(blocks.len() > 1 && blocks.iter().all(|block| block.len() <= BLOCK_BYTES));
        let parsed: Vec<_> = blocks.iter().map(|block| parse_block(block).unwrap()).collect();
        assert_eq!(
            parsed.iter().map(|(number, ..)| *number).collect::<Vec<_>>(),
            (7..).take(blocks.len()).collect::<Vec<_>>()
        );
        assert_eq!(parsed.into_iter().flat_map(|(_, records, _)| records).collect::<Vec<_>>(), records);
        assert_eq!(encode_blocks(1, &[]).unwrap().len(), 1);
        let error = encode_blocks(1, &[large(1, BLOCK_BYTES_MAX)]).unwrap_err().to_string();
        assert!(error.contains("the limit is"), "{error}");
    }

    #[test]
    fn a_file_header_comes_back_and_a_flipped_bit_is_noticed() {
        let header = FileHeader { node: [7; 16], generation: 12 };
        let mut bytes = header.encode();
        assert_eq!(FileHeader::parse(&bytes), Ok(header));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::parse(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_records_never_panic(kind in 0u16..6, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::parse(kind, &body);
        }
    }
}
