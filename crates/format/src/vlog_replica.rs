//! The bytes of a virtual log's copy at a backup: files of the same blocks ([`crate::vlog`]), with the owner's node and epoch
//! in the file's header, and with a footer that says what a full file holds.
//!
//! A file starts with a page of 4 KiB, of which 96 bytes are used:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KVRF"
//!      4      2  version           1
//!      6      2  header_bytes      96
//!      8     16  cluster           uuid of the cluster
//!     24      4  node              number of the node whose virtual log it is
//!     28      4  epoch             that node's epoch
//!     32      4  vlog              number of the virtual log in that node
//!     36      4  backup            number of the node that keeps the file
//!     40      8  file              sequence of the file at the backup, from 1, never reused
//!     48      8  key               random; every block of the file repeats it
//!     56      8  first_block       sequence of its first block in the virtual log
//!     64      8  run_first         first block of the row of files without a hole that it goes on
//!     72      4  flags             bit 0: blocks are synced before they are answered
//!     76     16  zero
//!     92      4  checksum          CRC-32C of bytes 0..92
//! ```
//! Blocks follow as in a virtual log's own file: `file` and `key` are this file's, everything else and the chunks are the
//! owner's. When the file takes no more, a footer follows the last block, and behind it the last page is a mark
//! ([`crate::vlog::FileMark`]) whose `end` is where the footer starts:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KVRT"
//!      4      2  version           1
//!      6      2  header_bytes      64
//!      8      4  vlog
//!     12      4  segment_count
//!     16      8  file              as in the file's header
//!     24      8  key               as in the file's header
//!     32      8  last_block        sequence of its last block
//!     40      4  producer_count
//!     44      4  entries_checksum  CRC-32C of the entries
//!     48     12  zero
//!     60      4  checksum          CRC-32C of bytes 0..60
//!     64      …  segment_count entries of 64 bytes, then producer_count entries of 64 bytes, then zeros up to a multiple
//!                of 4 KiB
//! ```
//! A segment's entry is a run of chunks that follow one another in it:
//!
//! ```text
//!      0      8  stream
//!      8      4  streamlet
//!     12      4  lane
//!     16      8  group
//!     24      4  segment
//!     28      4  position          of the first chunk
//!     32      4  end               behind the last chunk
//!     36      4  row_end           of pieces of a compacted segment: where their row ends; else zero
//!     40      8  base_ordinal      of the first record
//!     48      8  next_ordinal      of the record after the last
//!     56      8  rewrite           of pieces of a compacted segment: of which rewriting; else zero
//! ```
//! A producer's entry is one of its last chunks in a lane:
//!
//! ```text
//!      0      8  stream
//!      8      4  streamlet
//!     12      4  lane
//!     16      8  producer_id
//!     24      8  sequence
//!     32      8  base_ordinal
//!     40      8  group
//!     48      4  segment
//!     52      4  position
//!     56      2  producer_epoch
//!     58      6  zero
//! ```

use crate::checksum::crc32c;
use crate::cluster::LogName;
use crate::start::Start;
use crate::vlog::pages;
use crate::wire::{put, u16_at, u32_at, u64_at};
use crate::{Cursor, FormatError, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentIndex, StreamId, StreamletId};

/// The used bytes of a file's header.
pub const REPLICA_HEADER_BYTES: usize = 96;
/// Where a header is in the file's first page once more, and in that of its mark: whose blocks a file has nothing else says.
pub const REPLICA_COPY_AT: usize = 2048;
/// Bytes of a footer before its entries.
pub const FOOTER_HEADER_BYTES: usize = 64;
/// Bytes of an entry of a footer.
pub const FOOTER_ENTRY_BYTES: usize = 64;
/// The first four bytes of a file: "KVRF".
pub const REPLICA_MAGIC: u32 = u32::from_le_bytes(*b"KVRF");
/// The first four bytes of a footer: "KVRT".
pub const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"KVRT");
/// The version of the layouts.
pub const REPLICA_VERSION: u16 = 1;
/// The most entries of a footer: what is read back takes no more memory than this many.
pub const FOOTER_ENTRIES_MAX: usize = 1 << 20;
/// Blocks that a log has under way at most: what is further from its end all backups of the newest view have, and those that have lost nothing
/// are not further apart. Logs make no more, and where lost logs end is decided by it.
pub const BLOCKS_UNDER_WAY_MAX: u64 = 4;

/// A virtual log of a node between two of its starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogId {
    /// Number of the node in its cluster.
    pub node: u32,
    /// The node's epoch: a new one each time it joins.
    pub epoch: u32,
    /// Number of the virtual log in the node.
    pub vlog: u32,
}

impl From<LogId> for LogName {
    fn from(LogId { node, epoch, vlog }: LogId) -> LogName {
        LogName { node, epoch, log: vlog }
    }
}

impl From<LogName> for LogId {
    fn from(LogName { node, epoch, log }: LogName) -> LogId {
        LogId { node, epoch, vlog: log }
    }
}

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "virtual log {} of node {} in epoch {}", self.vlog, self.node, self.epoch)
    }
}

/// The first page of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaHeader {
    /// Uuid of the cluster.
    pub cluster: [u8; 16],
    /// Whose virtual log it is.
    pub log: LogId,
    /// Number of the node that keeps the file.
    pub backup: u32,
    /// Sequence of the file at the backup, from 1.
    pub file: u64,
    /// Random number that every block of the file repeats.
    pub key: u64,
    /// Sequence of its first block in the virtual log.
    pub first_block: u64,
    /// First block of the row of files without a hole that it goes on: what is missing of it was given back.
    pub run_first: u64,
    /// Its blocks are synced before they are answered. If not, a loss of power may have taken what was answered.
    pub synced: bool,
}

impl ReplicaHeader {
    /// Writes the header over the first 96 bytes of `page`.
    pub fn write(&self, page: &mut [u8]) {
        page[..REPLICA_HEADER_BYTES].fill(0);
        put(page, 0, &REPLICA_MAGIC.to_le_bytes());
        put(page, 4, &REPLICA_VERSION.to_le_bytes());
        put(page, 6, &(REPLICA_HEADER_BYTES as u16).to_le_bytes());
        put(page, 8, &self.cluster);
        put(page, 24, &self.log.node.to_le_bytes());
        put(page, 28, &self.log.epoch.to_le_bytes());
        put(page, 32, &self.log.vlog.to_le_bytes());
        put(page, 36, &self.backup.to_le_bytes());
        put(page, 40, &self.file.to_le_bytes());
        put(page, 48, &self.key.to_le_bytes());
        put(page, 56, &self.first_block.to_le_bytes());
        put(page, 64, &self.run_first.to_le_bytes());
        put(page, 72, &u32::from(self.synced).to_le_bytes());
        let crc = crc32c(&page[..92]);
        put(page, 92, &crc.to_le_bytes());
    }

    /// Writes the header once more into a page, at [`REPLICA_COPY_AT`].
    pub fn write_copy(&self, page: &mut [u8]) {
        self.write(&mut page[REPLICA_COPY_AT..]);
    }

    /// Reads and verifies what [`write_copy`](ReplicaHeader::write_copy) has written.
    pub fn parse_copy(page: &[u8]) -> Result<ReplicaHeader, FormatError> {
        ReplicaHeader::parse(page.get(REPLICA_COPY_AT..).unwrap_or_default())
    }

    /// Reads and verifies a file's header.
    pub fn parse(page: &[u8]) -> Result<ReplicaHeader, FormatError> {
        FormatError::need("replica file header", REPLICA_HEADER_BYTES, page.len())?;
        FILE_START.check(page)?;
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&page[8..24]);
        Ok(ReplicaHeader {
            cluster,
            log: LogId { node: u32_at(page, 24), epoch: u32_at(page, 28), vlog: u32_at(page, 32) },
            backup: u32_at(page, 36),
            file: u64_at(page, 40),
            key: u64_at(page, 48),
            first_block: u64_at(page, 56),
            run_first: u64_at(page, 64),
            synced: u32_at(page, 72) & 1 != 0,
        })
    }
}

/// A run of chunks that follow one another in a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentRun {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletId,
    /// The lane in the streamlet.
    pub lane: LaneId,
    /// The group.
    pub group: GroupId,
    /// The segment in the group.
    pub segment: SegmentIndex,
    /// Where the first chunk starts in the segment.
    pub position: u32,
    /// Where the last chunk ends.
    pub end: u32,
    /// Ordinal of the first record.
    pub base_ordinal: u64,
    /// Ordinal of the record after the last.
    pub next_ordinal: u64,
    /// Of [pieces](crate::piece) of a compacted segment: [which rewriting](crate::piece::PieceHeader::rewrite) they are of, and places are those
    /// in its row. Zero: of chunks as they were appended.
    pub rewrite: u64,
    /// Where that row ends; zero if there is none.
    pub row_end: u32,
}

/// One of the last chunks of a producer in a lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaMark {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletId,
    /// The lane in the streamlet.
    pub lane: LaneId,
    /// Who made the chunk.
    pub producer_id: ProducerId,
    /// In which incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Its sequence, as its header has it.
    pub sequence: u64,
    /// The ordinal that it got.
    pub base_ordinal: u64,
    /// Where it is.
    pub at: Cursor,
}

/// What a full file holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footer {
    /// Number of the virtual log in its node.
    pub vlog: u32,
    /// Sequence of the file.
    pub file: u64,
    /// The file's key.
    pub key: u64,
    /// Sequence of its last block.
    pub last_block: u64,
    /// Which chunks are in it.
    pub segments: Vec<SegmentRun>,
    /// The last chunks of each producer in each lane.
    pub producers: Vec<ReplicaMark>,
}

impl Footer {
    /// Bytes that a footer with so many entries takes, padding to whole pages included.
    pub const fn total_bytes(entries: usize) -> usize {
        pages(FOOTER_HEADER_BYTES + entries * FOOTER_ENTRY_BYTES)
    }

    /// The bytes, padded to whole pages.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.segments.len() + self.producers.len();
        let mut out = vec![0; Footer::total_bytes(entries)];
        let mut at = FOOTER_HEADER_BYTES;
        for run in &self.segments {
            encode_run(run, &mut out[at..at + FOOTER_ENTRY_BYTES]);
            at += FOOTER_ENTRY_BYTES;
        }
        for mark in &self.producers {
            encode_mark(mark, &mut out[at..at + FOOTER_ENTRY_BYTES]);
            at += FOOTER_ENTRY_BYTES;
        }
        let entries_checksum = crc32c(&out[FOOTER_HEADER_BYTES..at]);
        put(&mut out, 0, &FOOTER_MAGIC.to_le_bytes());
        put(&mut out, 4, &REPLICA_VERSION.to_le_bytes());
        put(&mut out, 6, &(FOOTER_HEADER_BYTES as u16).to_le_bytes());
        put(&mut out, 8, &self.vlog.to_le_bytes());
        put(&mut out, 12, &(self.segments.len() as u32).to_le_bytes());
        put(&mut out, 16, &self.file.to_le_bytes());
        put(&mut out, 24, &self.key.to_le_bytes());
        put(&mut out, 32, &self.last_block.to_le_bytes());
        put(&mut out, 40, &(self.producers.len() as u32).to_le_bytes());
        put(&mut out, 44, &entries_checksum.to_le_bytes());
        let crc = crc32c(&out[..60]);
        put(&mut out, 60, &crc.to_le_bytes());
        out
    }

    /// Reads and verifies a footer.
    pub fn parse(bytes: &[u8]) -> Result<Footer, FormatError> {
        FormatError::need("replica footer", FOOTER_HEADER_BYTES, bytes.len())?;
        FOOTER_START.check(bytes)?;
        let (segments, producers) = (u32_at(bytes, 12) as usize, u32_at(bytes, 40) as usize);
        let entries = segments.saturating_add(producers);
        if entries > FOOTER_ENTRIES_MAX {
            let (field, value, limit) = ("replica_footer.segment_count", entries as u64, FOOTER_ENTRIES_MAX as u64);
            return Err(FormatError::OverLimit { field, value, limit });
        }
        let end = FOOTER_HEADER_BYTES + entries * FOOTER_ENTRY_BYTES;
        FormatError::need("replica footer entries", end, bytes.len())?;
        let (found, computed) = (u32_at(bytes, 44), crc32c(&bytes[FOOTER_HEADER_BYTES..end]));
        if found != computed {
            return Err(FormatError::Checksum { what: "replica_footer.entries_checksum", found, computed });
        }
        let entry = |i: usize| &bytes[FOOTER_HEADER_BYTES + i * FOOTER_ENTRY_BYTES..][..FOOTER_ENTRY_BYTES];
        Ok(Footer {
            vlog: u32_at(bytes, 8),
            file: u64_at(bytes, 16),
            key: u64_at(bytes, 24),
            last_block: u64_at(bytes, 32),
            segments: (0..segments).map(|i| decode_run(entry(i))).collect(),
            producers: (segments..entries).map(|i| decode_mark(entry(i))).collect(),
        })
    }
}

fn encode_run(run: &SegmentRun, out: &mut [u8]) {
    put(out, 0, &run.stream.0.to_le_bytes());
    put(out, 8, &run.streamlet.0.to_le_bytes());
    put(out, 12, &run.lane.0.to_le_bytes());
    put(out, 16, &run.group.0.to_le_bytes());
    put(out, 24, &run.segment.0.to_le_bytes());
    put(out, 28, &run.position.to_le_bytes());
    put(out, 32, &run.end.to_le_bytes());
    put(out, 36, &run.row_end.to_le_bytes());
    put(out, 40, &run.base_ordinal.to_le_bytes());
    put(out, 48, &run.next_ordinal.to_le_bytes());
    put(out, 56, &run.rewrite.to_le_bytes());
}

fn decode_run(bytes: &[u8]) -> SegmentRun {
    SegmentRun {
        stream: StreamId(u64_at(bytes, 0)),
        streamlet: StreamletId(u32_at(bytes, 8)),
        lane: LaneId(u32_at(bytes, 12)),
        group: GroupId(u64_at(bytes, 16)),
        segment: SegmentIndex(u32_at(bytes, 24)),
        position: u32_at(bytes, 28),
        end: u32_at(bytes, 32),
        base_ordinal: u64_at(bytes, 40),
        next_ordinal: u64_at(bytes, 48),
        rewrite: u64_at(bytes, 56),
        row_end: u32_at(bytes, 36),
    }
}

fn encode_mark(mark: &ReplicaMark, out: &mut [u8]) {
    put(out, 0, &mark.stream.0.to_le_bytes());
    put(out, 8, &mark.streamlet.0.to_le_bytes());
    put(out, 12, &mark.lane.0.to_le_bytes());
    put(out, 16, &mark.producer_id.0.to_le_bytes());
    put(out, 24, &mark.sequence.to_le_bytes());
    put(out, 32, &mark.base_ordinal.to_le_bytes());
    put(out, 40, &mark.at.group.0.to_le_bytes());
    put(out, 48, &mark.at.segment.0.to_le_bytes());
    put(out, 52, &mark.at.position.to_le_bytes());
    put(out, 56, &mark.producer_epoch.0.to_le_bytes());
}

fn decode_mark(bytes: &[u8]) -> ReplicaMark {
    ReplicaMark {
        stream: StreamId(u64_at(bytes, 0)),
        streamlet: StreamletId(u32_at(bytes, 8)),
        lane: LaneId(u32_at(bytes, 12)),
        producer_id: ProducerId(u64_at(bytes, 16)),
        producer_epoch: ProducerEpoch(u16_at(bytes, 56)),
        sequence: u64_at(bytes, 24),
        base_ordinal: u64_at(bytes, 32),
        at: Cursor {
            group: GroupId(u64_at(bytes, 40)),
            segment: SegmentIndex(u32_at(bytes, 48)),
            position: u32_at(bytes, 52),
        },
    }
}

const FILE_START: Start = Start {
    magic: (REPLICA_MAGIC, "\"KVRF\""),
    version: (REPLICA_VERSION, "1"),
    header_bytes: (REPLICA_HEADER_BYTES, "96"),
    checksum_at: 92,
    fields: ["replica_file.magic", "replica_file.checksum", "replica_file.version", "replica_file.header_bytes"],
};
const FOOTER_START: Start = Start {
    magic: (FOOTER_MAGIC, "\"KVRT\""),
    version: (REPLICA_VERSION, "1"),
    header_bytes: (FOOTER_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: [
        "replica_footer.magic",
        "replica_footer.checksum",
        "replica_footer.version",
        "replica_footer.header_bytes",
    ],
};

/// What a file of [`PowerLosses`] starts with: "KVPL".
pub const POWER_LOSSES_MAGIC: u32 = u32::from_le_bytes(*b"KVPL");
/// Most rows of blocks in a file of losses of power.
pub const POWER_LOSSES_MAX: usize = 1 << 20;

/// What a backup knows of losses of power, one small file that is replaced as a whole: since when the machine runs that its files were
/// written on, and which rows of blocks may have gone on when the power went last, without being synced.
///
/// ```text
/// offset  bytes  field
///      0      4  magic             "KVPL"
///      4      2  version           1
///      6      2  zero
///      8      4  count
///     12      4  checksum          CRC-32C of everything, these four bytes as zeros
///     16     16  boot_id           of the machine
///     32      …  count entries of 24 bytes: node, epoch and number of a virtual log (4 bytes each), zero (4 bytes), the last block
///                that was there (8 bytes)
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PowerLosses {
    /// Of the machine's run in which the backup's files were written.
    pub boot_id: [u8; 16],
    /// Rows of blocks that may have been longer, each with the last block that was found.
    pub ends: Vec<(LogId, u64)>,
}

impl PowerLosses {
    /// Bytes of a file with so many entries.
    pub const fn bytes(entries: usize) -> usize {
        32 + 24 * entries
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; PowerLosses::bytes(self.ends.len())];
        put(&mut out, 0, &POWER_LOSSES_MAGIC.to_le_bytes());
        put(&mut out, 4, &REPLICA_VERSION.to_le_bytes());
        put(&mut out, 8, &(self.ends.len() as u32).to_le_bytes());
        put(&mut out, 16, &self.boot_id);
        for ((log, end), entry) in self.ends.iter().zip(out[32..].chunks_exact_mut(24)) {
            put(entry, 0, &log.node.to_le_bytes());
            put(entry, 4, &log.epoch.to_le_bytes());
            put(entry, 8, &log.vlog.to_le_bytes());
            put(entry, 16, &end.to_le_bytes());
        }
        let crc = fences_checksum(&out);
        put(&mut out, 12, &crc.to_le_bytes());
        out
    }

    /// Reads and verifies a whole file.
    pub fn parse(bytes: &[u8]) -> Result<PowerLosses, FormatError> {
        FormatError::need("power losses", PowerLosses::bytes(0), bytes.len())?;
        let bad = |field, value: u64, allowed| Err(FormatError::BadField { field, value, allowed });
        if u32_at(bytes, 0) != POWER_LOSSES_MAGIC {
            return bad("power_losses.magic", u32_at(bytes, 0).into(), "\"KVPL\"");
        }
        let count = u32_at(bytes, 8) as usize;
        if count > POWER_LOSSES_MAX {
            let (value, limit) = (count as u64, POWER_LOSSES_MAX as u64);
            return Err(FormatError::OverLimit { field: "power_losses.count", value, limit });
        }
        let end = PowerLosses::bytes(count);
        FormatError::need("power losses", end, bytes.len())?;
        let (found, computed) = (u32_at(bytes, 12), fences_checksum(&bytes[..end]));
        if found != computed {
            return Err(FormatError::Checksum { what: "power_losses.checksum", found, computed });
        }
        if u16_at(bytes, 4) != REPLICA_VERSION {
            return bad("power_losses.version", u16_at(bytes, 4).into(), "1");
        }
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(&bytes[16..32]);
        let log = |entry: &[u8]| LogId { node: u32_at(entry, 0), epoch: u32_at(entry, 4), vlog: u32_at(entry, 8) };
        let entry = |entry: &[u8]| (log(entry), u64_at(entry, 16));
        Ok(PowerLosses { boot_id, ends: bytes[32..end].chunks_exact(24).map(entry).collect() })
    }
}

/// What a file of [`Fences`] starts with: "KVFN".
pub const FENCES_MAGIC: u32 = u32::from_le_bytes(*b"KVFN");
/// Most nodes in a fences file.
pub const FENCES_MAX: usize = 1 << 20;

/// The fences of a backup, one small file that is replaced as a whole: of each node the highest epoch from which nothing is
/// taken any more.
///
/// ```text
/// offset  bytes  field
///      0      4  magic             "KVFN"
///      4      2  version           1
///      6      2  zero
///      8      4  count
///     12      4  checksum          CRC-32C of everything, these four bytes as zeros
///     16      …  count entries of 8 bytes: node (4 bytes), epoch (4 bytes)
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fences {
    /// Node and highest fenced epoch, by node.
    pub entries: Vec<(u32, u32)>,
}

impl Fences {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 16 + 8 * self.entries.len()];
        put(&mut out, 0, &FENCES_MAGIC.to_le_bytes());
        put(&mut out, 4, &REPLICA_VERSION.to_le_bytes());
        put(&mut out, 8, &(self.entries.len() as u32).to_le_bytes());
        for ((node, epoch), entry) in self.entries.iter().zip(out[16..].chunks_exact_mut(8)) {
            put(entry, 0, &node.to_le_bytes());
            put(entry, 4, &epoch.to_le_bytes());
        }
        let crc = fences_checksum(&out);
        put(&mut out, 12, &crc.to_le_bytes());
        out
    }

    /// Reads and verifies a whole file.
    pub fn parse(bytes: &[u8]) -> Result<Fences, FormatError> {
        FormatError::need("fences", 16, bytes.len())?;
        let bad = |field, value: u64, allowed| Err(FormatError::BadField { field, value, allowed });
        if u32_at(bytes, 0) != FENCES_MAGIC {
            return bad("fences.magic", u32_at(bytes, 0).into(), "\"KVFN\"");
        }
        let count = u32_at(bytes, 8) as usize;
        if count > FENCES_MAX {
            let (value, limit) = (count as u64, FENCES_MAX as u64);
            return Err(FormatError::OverLimit { field: "fences.count", value, limit });
        }
        let end = 16 + 8 * count;
        FormatError::need("fences", end, bytes.len())?;
        let (found, computed) = (u32_at(bytes, 12), fences_checksum(&bytes[..end]));
        if found != computed {
            return Err(FormatError::Checksum { what: "fences.checksum", found, computed });
        }
        if u16_at(bytes, 4) != REPLICA_VERSION {
            return bad("fences.version", u16_at(bytes, 4).into(), "1");
        }
        let entry = |entry: &[u8]| (u32_at(entry, 0), u32_at(entry, 4));
        Ok(Fences { entries: bytes[16..end].chunks_exact(8).map(entry).collect() })
    }
}

/// Over everything, the checksum's own bytes as zeros.
fn fences_checksum(bytes: &[u8]) -> u32 {
    let mut covered = bytes.to_vec();
    covered[12..16].fill(0);
    crc32c(&covered)
}
