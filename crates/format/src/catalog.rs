//! The bytes of the catalog: what the coordinator knows, kept as a snapshot and a journal of what happened since.
//!
//! Both kinds of file start with a header of 64 bytes:
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic             "KCAT"
//!      4      2  version           1
//!      6      2  header_bytes      64
//!      8     16  node              uuid of the node that writes it
//!     24      8  generation        of the catalog: one snapshot and the journal that goes on from it
//!     32      4  kind              1 snapshot, 2 journal
//!     36     24  zero
//!     60      4  checksum          CRC-32C of bytes 0..60
//! ```
//! Entries follow, back to back, each padded with zeros to a multiple of 8:
//!
//! ```text
//! offset  bytes  field
//!      0      4  checksum          CRC-32C of bytes 4..entry_bytes
//!      4      4  entry_bytes       this header and the body, without the padding
//!      8      8  index             journal: counts every change ever made; snapshot: from 1
//!     16      2  kind              what happened, see the bodies
//!     18      2  version           of the body: 2, 3 or 4 of streams created and altered, 1 of the others
//!     20      4  zero
//!     24      …  body
//! ```
//! Bodies by kind:
//!
//! ```text
//! 1 stream created     stream u64, at_ms i64, options (88 bytes), name_bytes u32, name, settings
//! 2 stream altered     stream u64, at_ms i64, options (88 bytes), settings
//! 3 stream deleted     stream u64, at_ms i64
//! 4 producers reserved below u64            every id below it may have been given out
//! 5 producer's epoch   producer u64, epoch u16, zero u16, zero u32
//! 6 counters           next_stream u64, next_index u64      snapshots only, first entry
//! 7 end                entries u64                           snapshots only, last entry: those before it
//!
//! options: streamlets u32, lanes u32, segments_per_group u32, segment_bytes_max u32, replication u32,
//!          virtual_logs u32, durability u8, order u8, cleanup u8, flags u8 (1 retention_ms is set,
//!          2 retention_bytes is set, 4 retention_consumed, 8 compact_within_ms is set), compact_dirty_percent u32,
//!          retention_ms u64, retention_bytes u64, segment_ms u64, compact_after_ms u64, compact_within_ms u64,
//!          tombstone_ms u64, timestamps u8, batch_compression u8, replication_mode u8, zero u8, zero u32
//!
//! settings: count u32, and of each, in the order of their names: name_bytes u32, name, value_bytes u32, value
//! ```
//! Bodies 1 and 2 of version 1 have the first 48 bytes of the options, zeros instead of `compact_dirty_percent`, and no
//! flag 8; what is missing has its default. They are read and not written. Those of version 2 have a zero instead of
//! `replication_mode`, and those of versions 1 to 3 no settings. Each is written in the lowest version from 2 on that can say it, so that who knows no
//! higher one can read what does not need it.

use crate::checksum::crc32c;
use crate::options::{BatchCompression, Cleanup, Durability, Order, ReplicationMode, StreamOptions, Timestamps};
use crate::settings::{self, Settings};
use crate::start::Start;
use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{FormatError, ProducerEpoch, ProducerId, StreamId, align8, level, limits};

/// Bytes of a file before its first entry.
pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes of an entry before its body.
pub const ENTRY_HEADER_BYTES: usize = 24;
/// Bytes of a stream's options in a body.
pub const OPTIONS_BYTES: usize = 88;
/// The same in a body of version 1.
const OPTIONS_BYTES_V1: usize = 48;
/// Where in the options the replication mode is.
const MODE_AT: usize = 82;
/// The most that settings take in a body.
const SETTINGS_BYTES_MAX: usize = 4 + limits::SETTINGS_MAX * 8 + limits::SETTINGS_BYTES_MAX;
/// The largest entry: a stream with the longest name and the most settings.
pub const ENTRY_BYTES_MAX: usize =
    ENTRY_HEADER_BYTES + 16 + OPTIONS_BYTES + 4 + limits::STREAM_NAME_BYTES_MAX + SETTINGS_BYTES_MAX;
/// The first four bytes of a file: "KCAT".
pub const CATALOG_MAGIC: u32 = u32::from_le_bytes(*b"KCAT");
/// The version of these layouts.
pub const CATALOG_VERSION: u16 = 1;
/// The version of bodies with options.
const OPTIONS_VERSION: u16 = 2;
/// The same for streams that are replicated asynchronously.
const OPTIONS_VERSION_ASYNC: u16 = 3;
/// The same for streams with settings.
const OPTIONS_VERSION_SETTINGS: u16 = 4;

/// What a catalog file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FileKind {
    /// The whole state at one moment.
    Snapshot = 1,
    /// What happened since.
    Journal = 2,
}

/// The first 64 bytes of a catalog file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Uuid of the node that writes it.
    pub node: [u8; 16],
    /// Of the catalog: one snapshot and the journal that goes on from it.
    pub generation: u64,
    /// What the file is.
    pub kind: FileKind,
}

impl FileHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        put(&mut bytes, 0, &CATALOG_MAGIC.to_le_bytes());
        put(&mut bytes, 4, &CATALOG_VERSION.to_le_bytes());
        put(&mut bytes, 6, &(FILE_HEADER_BYTES as u16).to_le_bytes());
        put(&mut bytes, 8, &self.node);
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        put(&mut bytes, 32, &(self.kind as u32).to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// Reads and verifies the first 64 bytes of a file.
    pub fn parse(bytes: &[u8]) -> Result<FileHeader, FormatError> {
        FormatError::need("catalog file header", FILE_HEADER_BYTES, bytes.len())?;
        FILE_START.check(bytes)?;
        let kind = match u32_at(bytes, 32) {
            1 => FileKind::Snapshot,
            2 => FileKind::Journal,
            other => {
                let (field, allowed) = ("catalog_file.kind", "1 (snapshot) or 2 (journal)");
                return Err(FormatError::BadField { field, value: other.into(), allowed });
            }
        };
        let mut node = [0; 16];
        node.copy_from_slice(&bytes[8..24]);
        Ok(FileHeader { node, generation: u64_at(bytes, 24), kind })
    }
}

const FILE_START: Start = Start {
    magic: (CATALOG_MAGIC, "\"KCAT\""),
    version: (CATALOG_VERSION, "1"),
    header_bytes: (FILE_HEADER_BYTES, "64"),
    checksum_at: 60,
    fields: ["catalog_file.magic", "catalog_file.checksum", "catalog_file.version", "catalog_file.header_bytes"],
};

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A stream came into being.
    StreamCreated {
        /// Its id, never reused.
        stream: StreamId,
        /// When, milliseconds since 1970.
        at_ms: i64,
        /// Its options.
        options: StreamOptions,
        /// Its name.
        name: String,
    },
    /// A stream has other options now.
    StreamAltered {
        /// Which.
        stream: StreamId,
        /// When, milliseconds since 1970.
        at_ms: i64,
        /// All of its options, changed or not.
        options: StreamOptions,
    },
    /// A stream is gone, its data with it.
    StreamDeleted {
        /// Which.
        stream: StreamId,
        /// When, milliseconds since 1970.
        at_ms: i64,
    },
    /// Producer ids below this may have been given out.
    ProducersReserved {
        /// The first id that has not.
        below: ProducerId,
    },
    /// A producer that came back has a higher epoch, which fences its earlier incarnation.
    ProducerEpochRaised {
        /// Which.
        producer: ProducerId,
        /// Its epoch from now on.
        epoch: ProducerEpoch,
    },
    /// First entry of a snapshot: what the other entries do not tell.
    Counters {
        /// The id that the next stream gets.
        next_stream: StreamId,
        /// The index of the next entry of the journal.
        next_index: u64,
    },
    /// Last entry of a snapshot.
    End {
        /// Entries before it.
        entries: u64,
    },
}

impl Entry {
    fn kind(&self) -> u16 {
        match self {
            Entry::StreamCreated { .. } => 1,
            Entry::StreamAltered { .. } => 2,
            Entry::StreamDeleted { .. } => 3,
            Entry::ProducersReserved { .. } => 4,
            Entry::ProducerEpochRaised { .. } => 5,
            Entry::Counters { .. } => 6,
            Entry::End { .. } => 7,
        }
    }

    fn version(&self) -> u16 {
        match self {
            Entry::StreamCreated { options, .. } | Entry::StreamAltered { options, .. } => {
                match options.replication_mode {
                    _ if !options.settings.is_empty() => OPTIONS_VERSION_SETTINGS,
                    ReplicationMode::Sync => OPTIONS_VERSION,
                    ReplicationMode::Async => OPTIONS_VERSION_ASYNC,
                }
            }
            _ => CATALOG_VERSION,
        }
    }

    /// The [level](crate::level) of a cluster from which on all of its nodes can read the entry.
    pub fn level(&self) -> u32 {
        match self.version() {
            OPTIONS_VERSION_SETTINGS => level::SETTINGS,
            OPTIONS_VERSION_ASYNC => level::ASYNCHRONOUS,
            _ => level::FIRST,
        }
    }

    fn options_mut(&mut self) -> Option<&mut StreamOptions> {
        match self {
            Entry::StreamCreated { options, .. } | Entry::StreamAltered { options, .. } => Some(options),
            _ => None,
        }
    }

    /// The entry without what a cluster of a lower [level](crate::level) than [`SETTINGS`](level::SETTINGS) does not know.
    #[must_use]
    pub fn without_settings(mut self) -> Entry {
        if let Some(options) = self.options_mut() {
            options.settings.clear();
        }
        self
    }

    /// Appends the entry with its header and padding to `out`.
    pub fn encode(&self, index: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; ENTRY_HEADER_BYTES]);
        match self {
            Entry::StreamCreated { stream, at_ms, options, name } => {
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&at_ms.to_le_bytes());
                out.extend_from_slice(&encode_options(options));
                out.extend_from_slice(&(name.len() as u32).to_le_bytes());
                out.extend_from_slice(name.as_bytes());
                put_settings(&options.settings, out);
            }
            Entry::StreamAltered { stream, at_ms, options } => {
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&at_ms.to_le_bytes());
                out.extend_from_slice(&encode_options(options));
                put_settings(&options.settings, out);
            }
            Entry::StreamDeleted { stream, at_ms } => {
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&at_ms.to_le_bytes());
            }
            Entry::ProducersReserved { below } => out.extend_from_slice(&below.0.to_le_bytes()),
            Entry::ProducerEpochRaised { producer, epoch } => {
                out.extend_from_slice(&producer.0.to_le_bytes());
                out.extend_from_slice(&u64::from(epoch.0).to_le_bytes());
            }
            Entry::Counters { next_stream, next_index } => {
                out.extend_from_slice(&next_stream.0.to_le_bytes());
                out.extend_from_slice(&next_index.to_le_bytes());
            }
            Entry::End { entries } => out.extend_from_slice(&entries.to_le_bytes()),
        }
        let entry = &mut out[start..];
        let entry_bytes = entry.len();
        put(entry, 4, &(entry_bytes as u32).to_le_bytes());
        put(entry, 8, &index.to_le_bytes());
        put(entry, 16, &self.kind().to_le_bytes());
        put(entry, 18, &self.version().to_le_bytes());
        let crc = crc32c(&entry[4..]);
        put(entry, 0, &crc.to_le_bytes());
        out.resize(start + align8(entry_bytes), 0);
    }

    /// Reads and verifies the entry at the start of `bytes`: its index, itself, and the bytes it takes with padding.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Entry, usize), FormatError> {
        FormatError::need("catalog entry header", ENTRY_HEADER_BYTES, bytes.len())?;
        let entry_bytes = u32_at(bytes, 4) as usize;
        if entry_bytes > ENTRY_BYTES_MAX {
            return Err(FormatError::OverLimit {
                field: "catalog_entry.entry_bytes",
                value: entry_bytes as u64,
                limit: ENTRY_BYTES_MAX as u64,
            });
        }
        if entry_bytes < ENTRY_HEADER_BYTES {
            return Err(FormatError::BadField {
                field: "catalog_entry.entry_bytes",
                value: entry_bytes as u64,
                allowed: "24 or more",
            });
        }
        FormatError::need("catalog entry", align8(entry_bytes), bytes.len())?;
        let (found, computed) = (u32_at(bytes, 0), crc32c(&bytes[4..entry_bytes]));
        if found != computed {
            return Err(FormatError::Checksum { what: "catalog_entry.checksum", found, computed });
        }
        let (kind, version) = (u16_at(bytes, 16), u16_at(bytes, 18));
        let options_bytes = match (kind, version) {
            (_, CATALOG_VERSION) => OPTIONS_BYTES_V1,
            (1 | 2, OPTIONS_VERSION..=OPTIONS_VERSION_SETTINGS) => OPTIONS_BYTES,
            _ => {
                return Err(FormatError::BadField {
                    field: "catalog_entry.version",
                    value: version.into(),
                    allowed: "1, of streams 2 to 4 as well",
                });
            }
        };
        let body = &bytes[ENTRY_HEADER_BYTES..entry_bytes];
        let mut entry = Entry::parse_body(kind, body, options_bytes)?;
        let settings_at =
            16 + OPTIONS_BYTES + if let Entry::StreamCreated { name, .. } = &entry { 4 + name.len() } else { 0 };
        if let Some(options) = entry.options_mut()
            && version >= OPTIONS_VERSION_ASYNC
        {
            let mode = body[16 + MODE_AT];
            options.replication_mode = ReplicationMode::from_u8(mode).ok_or(FormatError::BadField {
                field: "catalog_entry.options.replication_mode",
                value: mode.into(),
                allowed: "0 (sync) or 1 (async)",
            })?;
            if version >= OPTIONS_VERSION_SETTINGS {
                options.settings = parse_settings(&body[settings_at..])?;
            }
        }
        Ok((u64_at(bytes, 8), entry, align8(entry_bytes)))
    }

    fn parse_body(kind: u16, body: &[u8], options_bytes: usize) -> Result<Entry, FormatError> {
        let need = |bytes| FormatError::need("catalog entry body", bytes, body.len());
        match kind {
            1 => {
                need(16 + options_bytes + 4)?;
                let name_bytes = u32_at(body, 16 + options_bytes) as usize;
                let name_at = 16 + options_bytes + 4;
                need(name_at.saturating_add(name_bytes))?;
                Ok(Entry::StreamCreated {
                    stream: StreamId(u64_at(body, 0)),
                    at_ms: i64_at(body, 8),
                    options: parse_options(&body[16..16 + options_bytes])?,
                    name: parse_name(&body[name_at..name_at + name_bytes])?,
                })
            }
            2 => {
                need(16 + options_bytes)?;
                Ok(Entry::StreamAltered {
                    stream: StreamId(u64_at(body, 0)),
                    at_ms: i64_at(body, 8),
                    options: parse_options(&body[16..16 + options_bytes])?,
                })
            }
            3 => need(16).map(|()| Entry::StreamDeleted { stream: StreamId(u64_at(body, 0)), at_ms: i64_at(body, 8) }),
            4 => need(8).map(|()| Entry::ProducersReserved { below: ProducerId(u64_at(body, 0)) }),
            5 => need(16).map(|()| Entry::ProducerEpochRaised {
                producer: ProducerId(u64_at(body, 0)),
                epoch: ProducerEpoch(u16_at(body, 8)),
            }),
            6 => need(16)
                .map(|()| Entry::Counters { next_stream: StreamId(u64_at(body, 0)), next_index: u64_at(body, 8) }),
            7 => need(8).map(|()| Entry::End { entries: u64_at(body, 0) }),
            _ => Err(FormatError::BadField { field: "catalog_entry.kind", value: kind.into(), allowed: "1 to 7" }),
        }
    }
}

fn parse_name(bytes: &[u8]) -> Result<String, FormatError> {
    match std::str::from_utf8(bytes) {
        Ok(name) if limits::name_is_valid(name) => Ok(name.to_owned()),
        _ => Err(FormatError::BadField {
            field: "catalog_entry.name",
            value: bytes.len() as u64,
            allowed: "a valid stream name",
        }),
    }
}

fn encode_options(options: &StreamOptions) -> [u8; OPTIONS_BYTES] {
    let mut bytes = [0; OPTIONS_BYTES];
    put(&mut bytes, 0, &options.streamlets.to_le_bytes());
    put(&mut bytes, 4, &options.lanes.to_le_bytes());
    put(&mut bytes, 8, &options.segments_per_group.to_le_bytes());
    put(&mut bytes, 12, &options.segment_bytes_max.to_le_bytes());
    put(&mut bytes, 16, &options.replication.to_le_bytes());
    put(&mut bytes, 20, &options.virtual_logs.to_le_bytes());
    bytes[24] = options.durability as u8;
    bytes[25] = options.order as u8;
    bytes[26] = options.cleanup as u8;
    bytes[27] = u8::from(options.retention_ms.is_some())
        | u8::from(options.retention_bytes.is_some()) << 1
        | u8::from(options.retention_consumed) << 2
        | u8::from(options.compact_within_ms.is_some()) << 3;
    put(&mut bytes, 28, &options.compact_dirty_percent.to_le_bytes());
    put(&mut bytes, 32, &options.retention_ms.unwrap_or(0).to_le_bytes());
    put(&mut bytes, 40, &options.retention_bytes.unwrap_or(0).to_le_bytes());
    put(&mut bytes, 48, &options.segment_ms.to_le_bytes());
    put(&mut bytes, 56, &options.compact_after_ms.to_le_bytes());
    put(&mut bytes, 64, &options.compact_within_ms.unwrap_or(0).to_le_bytes());
    put(&mut bytes, 72, &options.tombstone_ms.to_le_bytes());
    bytes[80] = options.timestamps as u8;
    bytes[81] = options.batch_compression as u8;
    bytes[MODE_AT] = options.replication_mode as u8;
    bytes
}

/// Nothing if there are none: the version of the body says which it is.
fn put_settings(settings: &Settings, out: &mut Vec<u8>) {
    if settings.is_empty() {
        return;
    }
    out.extend_from_slice(&(settings.len() as u32).to_le_bytes());
    for text in settings.iter().flat_map(|(name, value)| [name, value]) {
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
}

/// All of `bytes`, which nothing may follow.
fn parse_settings(bytes: &[u8]) -> Result<Settings, FormatError> {
    let bad = |field, value: usize, allowed| FormatError::BadField { field, value: value as u64, allowed };
    let mut at = 0;
    let mut take = |count: usize| {
        let end = at + count;
        FormatError::need("catalog entry settings", end, bytes.len())?;
        at = end;
        Ok(&bytes[end - count..end])
    };
    let count = u32_at(take(4)?, 0) as usize;
    if !(1..=limits::SETTINGS_MAX).contains(&count) {
        return Err(bad("catalog_entry.settings", count, "1 to 64"));
    }
    let mut text = || {
        let count = u32_at(take(4)?, 0) as usize;
        let text = take(count.min(limits::SETTINGS_BYTES_MAX + 1))?;
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == count).map(str::to_owned);
        text.ok_or_else(|| bad("catalog_entry.settings.text", count, "UTF-8, 4096 bytes in all"))
    };
    let mut found = Settings::new();
    for _ in 0..count {
        let (name, value) = (text()?, text()?);
        if found.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(bad("catalog_entry.settings.name", name.len(), "behind the name before it"));
        }
        found.insert(name, value);
    }
    settings::check(&found)?;
    if at != bytes.len() {
        return Err(bad("catalog_entry.settings.rest", bytes.len() - at, "no byte behind them"));
    }
    Ok(found)
}

fn parse_options(bytes: &[u8]) -> Result<StreamOptions, FormatError> {
    let choice = |field, value: u8, allowed| FormatError::BadField { field, value: value.into(), allowed };
    let (flags, default) = (bytes[27], StreamOptions::default());
    if flags > 15 {
        return Err(choice("catalog_entry.options.flags", flags, "0 to 15"));
    }
    // Of version 1 without: what came with version 2.
    let more = (bytes.len() >= OPTIONS_BYTES).then_some(bytes);
    let more_or = |at, default| more.map_or(default, |bytes| u64_at(bytes, at));
    Ok(StreamOptions {
        streamlets: u32_at(bytes, 0),
        lanes: u32_at(bytes, 4),
        segments_per_group: u32_at(bytes, 8),
        segment_bytes_max: u32_at(bytes, 12),
        replication: u32_at(bytes, 16),
        replication_mode: default.replication_mode,
        virtual_logs: u32_at(bytes, 20),
        durability: Durability::from_u8(bytes[24])
            .ok_or_else(|| choice("catalog_entry.options.durability", bytes[24], "0 or 1"))?,
        order: Order::from_u8(bytes[25]).ok_or_else(|| choice("catalog_entry.options.order", bytes[25], "0 or 1"))?,
        cleanup: Cleanup::from_u8(bytes[26])
            .ok_or_else(|| choice("catalog_entry.options.cleanup", bytes[26], "0, 1 or 2"))?,
        retention_ms: (flags & 1 != 0).then(|| u64_at(bytes, 32)),
        retention_bytes: (flags & 2 != 0).then(|| u64_at(bytes, 40)),
        retention_consumed: flags & 4 != 0,
        segment_ms: more_or(48, default.segment_ms),
        compact_dirty_percent: more.map_or(default.compact_dirty_percent, |bytes| u32_at(bytes, 28)),
        compact_after_ms: more_or(56, default.compact_after_ms),
        settings: Settings::new(),
        compact_within_ms: more.filter(|_| flags & 8 != 0).map(|bytes| u64_at(bytes, 64)),
        tombstone_ms: more_or(72, default.tombstone_ms),
        timestamps: match more.map(|bytes| bytes[80]) {
            None => default.timestamps,
            Some(value) => Timestamps::from_u8(value)
                .ok_or_else(|| choice("catalog_entry.options.timestamps", value, "0 (create) or 1 (append)"))?,
        },
        batch_compression: match more.map(|bytes| bytes[81]) {
            None => default.batch_compression,
            Some(value) => BatchCompression::from_u8(value)
                .ok_or_else(|| choice("catalog_entry.options.batch_compression", value, "0 (producer) to 5 (zstd)"))?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options() -> impl Strategy<Value = StreamOptions> {
        let limits = any::<(Option<u64>, Option<u64>, bool, Option<u64>)>();
        let kafka = (0u8..2, 0u8..6);
        let safety = (0u8..2, 0u8..2);
        let settings = proptest::collection::btree_map("[a-z.]{1,30}", ".{0,20}", 0..8);
        (any::<[u32; 7]>(), any::<[u64; 3]>(), safety, 0u8..2, 0u8..3, limits, (kafka, settings)).prop_map(
            |(numbers, times, (durability, mode), order, cleanup, limits, (kafka, settings))| {
                let (timestamps, batch_compression) = kafka;
                let (retention_ms, retention_bytes, retention_consumed, compact_within_ms) = limits;
                StreamOptions {
                    streamlets: numbers[0],
                    lanes: numbers[1],
                    segments_per_group: numbers[2],
                    segment_bytes_max: numbers[3],
                    replication: numbers[4],
                    replication_mode: ReplicationMode::from_u8(mode).expect("0 or 1"),
                    virtual_logs: numbers[5],
                    durability: Durability::from_u8(durability).expect("0 or 1"),
                    order: Order::from_u8(order).expect("0 or 1"),
                    cleanup: Cleanup::from_u8(cleanup).expect("0, 1 or 2"),
                    retention_ms,
                    retention_bytes,
                    retention_consumed,
                    segment_ms: times[0],
                    compact_dirty_percent: numbers[6],
                    compact_after_ms: times[1],
                    compact_within_ms,
                    tombstone_ms: times[2],
                    timestamps: Timestamps::from_u8(timestamps).expect("0 or 1"),
                    batch_compression: BatchCompression::from_u8(batch_compression).expect("0 to 5"),
                    settings,
                }
            },
        )
    }

    fn entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            (any::<u64>(), any::<i64>(), options(), "[a-z._-]{3,249}").prop_map(|(stream, at_ms, options, name)| {
                Entry::StreamCreated { stream: StreamId(stream), at_ms, options, name }
            }),
            (any::<u64>(), any::<i64>(), options()).prop_map(|(stream, at_ms, options)| Entry::StreamAltered {
                stream: StreamId(stream),
                at_ms,
                options
            }),
            (any::<u64>(), any::<i64>())
                .prop_map(|(stream, at_ms)| Entry::StreamDeleted { stream: StreamId(stream), at_ms }),
            any::<u64>().prop_map(|below| Entry::ProducersReserved { below: ProducerId(below) }),
            (any::<u64>(), any::<u16>()).prop_map(|(producer, epoch)| Entry::ProducerEpochRaised {
                producer: ProducerId(producer),
                epoch: ProducerEpoch(epoch)
            }),
            (any::<u64>(), any::<u64>()).prop_map(|(next_stream, next_index)| Entry::Counters {
                next_stream: StreamId(next_stream),
                next_index
            }),
            any::<u64>().prop_map(|entries| Entry::End { entries }),
        ]
    }

    proptest! {
        #[test]
        fn any_entry_comes_back(entry in entry(), index: u64) {
            let mut bytes = Vec::new();
            entry.encode(index, &mut bytes);
            prop_assert_eq!(bytes.len() % 8, 0);
            prop_assert_eq!(Entry::parse(&bytes), Ok((index, entry, bytes.len())));
        }

        #[test]
        fn a_flipped_bit_or_a_missing_end_is_noticed(entry in entry(), at: prop::sample::Index, bit in 0u8..8) {
            let mut bytes = Vec::new();
            entry.encode(1, &mut bytes);
            let unpadded = u32_at(&bytes, 4) as usize;
            prop_assert!(Entry::parse(&bytes[..at.index(bytes.len())]).is_err());
            bytes[at.index(unpadded)] ^= 1 << bit;
            prop_assert!(Entry::parse(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Entry::parse(&bytes);
            let _ = FileHeader::parse(&bytes);
        }
    }

    #[test]
    fn a_file_header_comes_back_and_a_flipped_bit_is_noticed() {
        let header = FileHeader { node: [7; 16], generation: 12, kind: FileKind::Journal };
        let mut bytes = header.encode();
        assert_eq!(FileHeader::parse(&bytes), Ok(header));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::parse(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn golden_bytes_of_a_deleted_stream() {
        let mut bytes = Vec::new();
        Entry::StreamDeleted { stream: StreamId(0x0102), at_ms: 3 }.encode(9, &mut bytes);
        let body = b"\x28\0\0\0\x09\0\0\0\0\0\0\0\x03\0\x01\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
        assert_eq!(bytes[4..], body[..]);
        assert_eq!(bytes[..4], crc32c(body).to_le_bytes());
    }
}
