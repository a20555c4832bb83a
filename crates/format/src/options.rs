//! What a stream is asked to be: its shape, its safety, how long it keeps what.

use crate::kafka_codec::KafkaCodec;
use crate::{FormatError, Settings, limits, settings};

/// How safe bytes are before they are acknowledged. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Durability {
    /// Survives the death of every process: the bytes are in the arena, in shared memory, which is attached again.
    #[default]
    Process = 0,
    /// Survives the loss of power: the bytes are in the virtual log on disk, synced.
    Power = 1,
}

/// When the producers of a stream with copies are answered. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ReplicationMode {
    /// When all copies have what they wrote.
    #[default]
    Sync = 0,
    /// When the owner has it, as long as the copies do not lag too far behind. Readers see it when all copies have it.
    Async = 1,
}

/// What order consumers of an application see. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Order {
    /// A lane's next group is not given out before the one before it is done.
    #[default]
    Lane = 0,
    /// Every group is independent.
    None = 1,
}

/// How old data leaves a stream. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Cleanup {
    /// By the retention limits.
    #[default]
    Delete = 0,
    /// The last record of each key is kept; the retention limits of time and size do not count.
    Compact = 1,
    /// The last record of each key is kept, within the retention limits.
    CompactDelete = 2,
}

/// The time of records that Kafka clients write. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Timestamps {
    /// What the producer says.
    #[default]
    Create = 0,
    /// When the batch was appended.
    Append = 1,
}

/// How batches that Kafka clients write are kept. The numbers never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum BatchCompression {
    /// As they come.
    #[default]
    Producer = 0,
    /// Not compressed.
    None = 1,
    /// With gzip.
    Gzip = 2,
    /// With snappy.
    Snappy = 3,
    /// With LZ4.
    Lz4 = 4,
    /// With zstd.
    Zstd = 5,
}

impl BatchCompression {
    /// The codec that batches must have; `None`: any.
    pub fn codec(self) -> Option<KafkaCodec> {
        match self {
            BatchCompression::Producer => None,
            BatchCompression::None => Some(KafkaCodec::None),
            BatchCompression::Gzip => Some(KafkaCodec::Gzip),
            BatchCompression::Snappy => Some(KafkaCodec::Snappy),
            BatchCompression::Lz4 => Some(KafkaCodec::Lz4),
            BatchCompression::Zstd => Some(KafkaCodec::Zstd),
        }
    }
}

impl Cleanup {
    /// Whether the last record of each key is kept.
    pub fn compacts(self) -> bool {
        self != Cleanup::Delete
    }

    /// Whether the retention limits of time and size count.
    pub fn deletes(self) -> bool {
        self != Cleanup::Compact
    }
}

macro_rules! named {
    ($name:ident { $($variant:ident = $number:literal => $text:literal),+ }) => {
        impl $name {
            /// From the number in a message or a file.
            pub fn from_u8(value: u8) -> Option<$name> {
                match value { $($number => Some($name::$variant),)+ _ => None }
            }
            /// Its name in flags, files and messages.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(format!("`{text}` is none of: {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}
named!(Durability { Process = 0 => "process", Power = 1 => "power" });
named!(ReplicationMode { Sync = 0 => "sync", Async = 1 => "async" });
named!(Order { Lane = 0 => "lane", None = 1 => "none" });
named!(Timestamps { Create = 0 => "create", Append = 1 => "append" });
named!(BatchCompression {
    Producer = 0 => "producer",
    None = 1 => "none",
    Gzip = 2 => "gzip",
    Snappy = 3 => "snappy",
    Lz4 = 4 => "lz4",
    Zstd = 5 => "zstd"
});
named!(Cleanup { Delete = 0 => "delete", Compact = 1 => "compact", CompactDelete = 2 => "compact,delete" });

/// Of so many copies of a stream, the owner's own included, those without which nothing is acknowledged: a majority.
pub fn copies_min(copies: u32) -> u32 {
    copies / 2 + 1
}

/// The options of a stream. [`Default`] is what `kera stream create NAME` gives at a node that is alone; in a cluster of enough nodes it asks for more
/// copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// M: streamlets, each owned by one broker at a time.
    pub streamlets: u32,
    /// Q: append positions per streamlet; producer p writes to lane p mod Q.
    pub lanes: u32,
    /// P: segments of a group.
    pub segments_per_group: u32,
    /// The largest size class its segments grow to; a power of two from 64 KiB to 16 MiB.
    pub segment_bytes_max: u32,
    /// R: copies, the broker's own included.
    pub replication: u32,
    /// When producers are answered, of a stream with copies.
    pub replication_mode: ReplicationMode,
    /// How safe bytes are before they are acknowledged.
    pub durability: Durability,
    /// What order consumers of an application see.
    pub order: Order,
    /// Closed segments whose youngest chunk is older than this many milliseconds go; `None` keeps them.
    pub retention_ms: Option<u64>,
    /// A streamlet keeps at most about this many bytes; `None` is no limit.
    pub retention_bytes: Option<u64>,
    /// Closed groups go as soon as every application of the stream has read them.
    pub retention_consumed: bool,
    /// How old data leaves.
    pub cleanup: Cleanup,
    /// Virtual logs of its own; zero shares the broker's pool.
    pub virtual_logs: u32,
    /// A segment takes no more appends when it was opened so many milliseconds ago.
    pub segment_ms: u64,
    /// A lane is compacted when so many percent of its bytes came after the last pass.
    pub compact_dirty_percent: u32,
    /// Compaction leaves a record alone for so many milliseconds after its append.
    pub compact_after_ms: u64,
    /// A lane is compacted at the latest so many milliseconds after an append; `None`: when it is worth it.
    pub compact_within_ms: Option<u64>,
    /// Tombstones are kept for so many milliseconds after what they hide has gone.
    pub tombstone_ms: u64,
    /// The time of records that Kafka clients write.
    pub timestamps: Timestamps,
    /// How batches that Kafka clients write are kept.
    pub batch_compression: BatchCompression,
    /// What Kafka clients have set, as they gave it: what holds is in the fields above. At most [`limits::SETTINGS_MAX`], of
    /// [`limits::SETTINGS_BYTES_MAX`] bytes.
    pub settings: Settings,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            streamlets: 1,
            lanes: 1,
            segments_per_group: 16,
            segment_bytes_max: 8 << 20,
            replication: 1,
            replication_mode: ReplicationMode::Sync,
            durability: Durability::Process,
            order: Order::Lane,
            retention_ms: Some(7 * 24 * 3600 * 1000),
            retention_bytes: None,
            retention_consumed: false,
            cleanup: Cleanup::Delete,
            virtual_logs: 0,
            segment_ms: 7 * 24 * 3600 * 1000,
            compact_dirty_percent: 50,
            compact_after_ms: 0,
            compact_within_ms: None,
            tombstone_ms: 24 * 3600 * 1000,
            timestamps: Timestamps::Create,
            batch_compression: BatchCompression::Producer,
            settings: Settings::new(),
        }
    }
}

impl StreamOptions {
    /// The options without [`settings`](StreamOptions::settings): what holds, whoever asked for it in which words.
    #[must_use]
    pub fn without_settings(&self) -> StreamOptions {
        StreamOptions { settings: Settings::new(), ..self.clone() }
    }

    /// Whether there are settings that say which batches of Kafka clients are too large, too old or too far ahead of the clock.
    pub fn limits_batches(&self) -> bool {
        let limits = [settings::MESSAGE_BYTES_MAX, settings::BEFORE_MAX_MS, settings::AFTER_MAX_MS];
        limits.iter().any(|name| self.settings.contains_key(*name))
    }

    /// Checks every option against its limit; all mistakes at once. An empty list means that they are fine.
    pub fn check(&self) -> Vec<FormatError> {
        let mut wrong = Vec::new();
        let mut range = |field: &'static str, value: u64, limit: u64, allowed: &'static str| {
            if value == 0 {
                wrong.push(FormatError::BadField { field, value, allowed });
            } else if value > limit {
                wrong.push(FormatError::OverLimit { field, value, limit });
            }
        };
        range("streamlets", self.streamlets.into(), limits::STREAMLETS_MAX.into(), "1 to 131072");
        range("lanes", self.lanes.into(), limits::LANES_MAX.into(), "1 to 4096");
        let lanes = u64::from(self.streamlets) * u64::from(self.lanes);
        range("streamlets × lanes", lanes.max(1), limits::STREAM_LANES_MAX.into(), "1 to 1048576");
        let most = limits::SEGMENTS_PER_GROUP_MAX.into();
        range("segments_per_group", self.segments_per_group.into(), most, "1 to 65536");
        range("replication", self.replication.into(), 16, "1 to 16");
        range("retention_time", self.retention_ms.unwrap_or(1), i64::MAX as u64, "1 ms or more, or none");
        range("retention_bytes", self.retention_bytes.unwrap_or(1), i64::MAX as u64, "1 or more, or none");
        let virtual_logs = self.virtual_logs.max(1).into();
        range("virtual_logs", virtual_logs, limits::VIRTUAL_LOGS_MAX.into(), "0 (shared) to 256");
        range("segment_time", self.segment_ms, i64::MAX as u64, "1 ms or more");
        range("compact_dirty_percent", u64::from(self.compact_dirty_percent).max(1), 100, "0 to 100");
        range("compact_after", self.compact_after_ms.max(1), i64::MAX as u64, "0 ms or more");
        range("compact_within", self.compact_within_ms.unwrap_or(1), i64::MAX as u64, "1 ms or more, or none");
        range("tombstone_time", self.tombstone_ms.max(1), i64::MAX as u64, "0 ms or more");
        if self.replication_mode == ReplicationMode::Async && self.replication == 1 {
            wrong.push(FormatError::BadField {
                field: "replication_mode",
                value: self.replication_mode as u64,
                allowed: "0 (sync) of a stream with one copy",
            });
        }
        if self.replication_mode == ReplicationMode::Async && self.durability == Durability::Power {
            wrong.push(FormatError::BadField {
                field: "replication_mode",
                value: self.replication_mode as u64,
                allowed: "0 (sync) with durability power",
            });
        }
        if self.compact_within_ms.is_some_and(|within| within < self.compact_after_ms) {
            wrong.push(FormatError::BadField {
                field: "compact_within",
                value: self.compact_within_ms.unwrap_or(0),
                allowed: "not less than compact_after",
            });
        }
        wrong.extend(settings::check(&self.settings).err());
        let bytes = self.segment_bytes_max as usize;
        if !bytes.is_power_of_two() || !(limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX).contains(&bytes) {
            wrong.push(FormatError::BadField {
                field: "segment_bytes",
                value: bytes as u64,
                allowed: "a power of two from 65536 to 16777216",
            });
        }
        wrong
    }
}
