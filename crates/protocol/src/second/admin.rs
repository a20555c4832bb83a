//! Of [`crate::admin`]: streams before settings were kept as they were given.

use std::collections::BTreeMap;

use kera_format::{
    BatchCompression, Cleanup, Durability, Order, ReplicationMode, Settings, StreamId, StreamOptions, Timestamps,
};

use crate::codec::wire_struct;
use crate::first::admin::with_all;
use crate::first::bodies;
use crate::{AlterStream, CreateStream, StreamChanges, StreamInfo, StreamList, StreamRef};

wire_struct! {
    /// [`StreamOptions`] in version 2 of what has them.
    pub struct StreamOptionsV2 {
        /// Streamlets.
        pub streamlets: u32,
        /// Lanes of a streamlet.
        pub lanes: u32,
        /// Segments of a group.
        pub segments_per_group: u32,
        /// The largest size class of its segments.
        pub segment_bytes_max: u32,
        /// Copies, the broker's own included.
        pub replication: u32,
        /// How safe bytes are before they are acknowledged.
        pub durability: Durability,
        /// What order consumers of an application see.
        pub order: Order,
        /// How long data is kept, in milliseconds.
        pub retention_ms: Option<u64>,
        /// How much a streamlet keeps.
        pub retention_bytes: Option<u64>,
        /// Whether closed groups go as soon as every application has read them.
        pub retention_consumed: bool,
        /// How old data leaves.
        pub cleanup: Cleanup,
        /// Virtual logs of its own.
        pub virtual_logs: u32,
        /// How long a segment takes appends.
        pub segment_ms: u64,
        /// When a lane is compacted.
        pub compact_dirty_percent: u32,
        /// How long compaction leaves a record alone.
        pub compact_after_ms: u64,
        /// When a lane is compacted at the latest.
        pub compact_within_ms: Option<u64>,
        /// How long tombstones are kept.
        pub tombstone_ms: u64,
        /// The time of records that Kafka clients write.
        pub timestamps: Timestamps,
        /// How batches that Kafka clients write are kept.
        pub batch_compression: BatchCompression,
        /// When producers are answered, of a stream with copies.
        pub replication_mode: ReplicationMode,
    }
}

impl From<&StreamOptions> for StreamOptionsV2 {
    fn from(current: &StreamOptions) -> StreamOptionsV2 {
        with_all!(StreamOptionsV2, current, replication_mode: current.replication_mode)
    }
}

impl From<StreamOptionsV2> for StreamOptions {
    fn from(second: StreamOptionsV2) -> StreamOptions {
        with_all!(StreamOptions, second, replication_mode: second.replication_mode, settings: Settings::new())
    }
}

wire_struct! {
    /// [`CreateStream`], version 2.
    pub struct CreateStreamV2 {
        /// Its name.
        pub name: String,
        /// Its options.
        pub options: StreamOptionsV2,
        /// Answer with the stream that exists.
        pub if_not_exists: bool,
    }
}

impl From<&CreateStream> for CreateStreamV2 {
    fn from(current: &CreateStream) -> CreateStreamV2 {
        let CreateStream { name, options, if_not_exists } = current;
        CreateStreamV2 { name: name.clone(), options: options.into(), if_not_exists: *if_not_exists }
    }
}

impl From<CreateStreamV2> for CreateStream {
    fn from(second: CreateStreamV2) -> CreateStream {
        CreateStream { name: second.name, options: second.options.into(), if_not_exists: second.if_not_exists }
    }
}

wire_struct! {
    /// [`StreamInfo`], version 2.
    pub struct StreamInfoV2 {
        /// Its id.
        pub id: StreamId,
        /// Its name.
        pub name: String,
        /// When it was made, milliseconds since 1970.
        pub created_ms: i64,
        /// Its options.
        pub options: StreamOptionsV2,
    }
}

impl From<&StreamInfo> for StreamInfoV2 {
    fn from(current: &StreamInfo) -> StreamInfoV2 {
        let StreamInfo { id, name, created_ms, options } = current;
        StreamInfoV2 { id: *id, name: name.clone(), created_ms: *created_ms, options: options.into() }
    }
}

impl From<StreamInfoV2> for StreamInfo {
    fn from(second: StreamInfoV2) -> StreamInfo {
        let StreamInfoV2 { id, name, created_ms, options } = second;
        StreamInfo { id, name, created_ms, options: options.into() }
    }
}

wire_struct! {
    /// [`StreamList`], version 2.
    pub struct StreamListV2 {
        /// In the order of their names.
        pub streams: Vec<StreamInfoV2>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

impl From<&StreamList> for StreamListV2 {
    fn from(current: &StreamList) -> StreamListV2 {
        StreamListV2 { streams: current.streams.iter().map(Into::into).collect(), more: current.more }
    }
}

impl From<StreamListV2> for StreamList {
    fn from(second: StreamListV2) -> StreamList {
        StreamList { streams: second.streams.into_iter().map(Into::into).collect(), more: second.more }
    }
}

wire_struct! {
    /// [`StreamChanges`] in version 2 of [`AlterStream`].
    #[derive(Default)]
    pub struct StreamChangesV2 {
        /// Number of streamlets.
        pub streamlets: Option<u32>,
        /// Number of lanes.
        pub lanes: Option<u32>,
        /// Segments of groups that are opened from now on.
        pub segments_per_group: Option<u32>,
        /// Largest size class of segments that are opened from now on.
        pub segment_bytes_max: Option<u32>,
        /// Number of copies.
        pub replication: Option<u32>,
        /// How safe bytes are before they are acknowledged.
        pub durability: Option<Durability>,
        /// What order consumers see.
        pub order: Option<Order>,
        /// Retention by time.
        pub retention_ms: Option<Option<u64>>,
        /// Retention by bytes of a streamlet.
        pub retention_bytes: Option<Option<u64>>,
        /// Retention by what applications have read.
        pub retention_consumed: Option<bool>,
        /// How old data leaves.
        pub cleanup: Option<Cleanup>,
        /// Virtual logs of its own.
        pub virtual_logs: Option<u32>,
        /// How long segments that are opened from now on take appends.
        pub segment_ms: Option<u64>,
        /// When a lane is compacted.
        pub compact_dirty_percent: Option<u32>,
        /// For how long after its append compaction leaves a record alone.
        pub compact_after_ms: Option<u64>,
        /// When a lane is compacted at the latest.
        pub compact_within_ms: Option<Option<u64>>,
        /// How long tombstones are kept.
        pub tombstone_ms: Option<u64>,
        /// The time of records that Kafka clients write.
        pub timestamps: Option<Timestamps>,
        /// How batches that Kafka clients write are kept.
        pub batch_compression: Option<BatchCompression>,
        /// When producers are answered, of a stream with copies.
        pub replication_mode: Option<ReplicationMode>,
    }
}

wire_struct! {
    /// [`AlterStream`], version 2.
    pub struct AlterStreamV2 {
        /// Which.
        pub stream: StreamRef,
        /// What.
        pub changes: StreamChangesV2,
    }
}

impl From<&AlterStream> for AlterStreamV2 {
    fn from(current: &AlterStream) -> AlterStreamV2 {
        let changes = with_all!(StreamChangesV2, current.changes, replication_mode: current.changes.replication_mode);
        AlterStreamV2 { stream: current.stream.clone(), changes }
    }
}

impl From<AlterStreamV2> for AlterStream {
    fn from(second: AlterStreamV2) -> AlterStream {
        let changes = with_all!(StreamChanges, second.changes, replication_mode: second.changes.replication_mode, settings: BTreeMap::new());
        AlterStream { stream: second.stream, changes }
    }
}

bodies!(CreateStreamV2, StreamInfoV2, StreamListV2, AlterStreamV2);
