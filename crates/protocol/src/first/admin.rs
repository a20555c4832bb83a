//! Of [`crate::admin`]: streams before they could be replicated asynchronously.

use std::collections::BTreeMap;

use kera_format::{
    BatchCompression, Cleanup, Durability, Order, ReplicationMode, Settings, StreamId, StreamOptions, Timestamps,
};

use super::bodies;
use crate::codec::wire_struct;
use crate::{AlterStream, CreateStream, StreamChanges, StreamInfo, StreamList, StreamRef};

wire_struct! {
    /// [`StreamOptions`] in version 1 of what has them.
    pub struct StreamOptionsV1 {
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
    }
}

/// The other one of the two structs, with what both have.
macro_rules! with_all {
    ($to:ident, $from:expr $(, $field:ident: $value:expr)*) => {
        $to {
            streamlets: $from.streamlets,
            lanes: $from.lanes,
            segments_per_group: $from.segments_per_group,
            segment_bytes_max: $from.segment_bytes_max,
            replication: $from.replication,
            durability: $from.durability,
            order: $from.order,
            retention_ms: $from.retention_ms,
            retention_bytes: $from.retention_bytes,
            retention_consumed: $from.retention_consumed,
            cleanup: $from.cleanup,
            virtual_logs: $from.virtual_logs,
            segment_ms: $from.segment_ms,
            compact_dirty_percent: $from.compact_dirty_percent,
            compact_after_ms: $from.compact_after_ms,
            compact_within_ms: $from.compact_within_ms,
            tombstone_ms: $from.tombstone_ms,
            timestamps: $from.timestamps,
            batch_compression: $from.batch_compression,
            $($field: $value,)*
        }
    };
}
pub(crate) use with_all;

impl From<&StreamOptions> for StreamOptionsV1 {
    fn from(current: &StreamOptions) -> StreamOptionsV1 {
        with_all!(StreamOptionsV1, current)
    }
}

impl From<StreamOptionsV1> for StreamOptions {
    fn from(first: StreamOptionsV1) -> StreamOptions {
        with_all!(StreamOptions, first, replication_mode: ReplicationMode::Sync, settings: Settings::new())
    }
}

wire_struct! {
    /// [`CreateStream`], version 1.
    pub struct CreateStreamV1 {
        /// Its name.
        pub name: String,
        /// Its options.
        pub options: StreamOptionsV1,
        /// Answer with the stream that exists.
        pub if_not_exists: bool,
    }
}

impl From<&CreateStream> for CreateStreamV1 {
    fn from(current: &CreateStream) -> CreateStreamV1 {
        let CreateStream { name, options, if_not_exists } = current;
        CreateStreamV1 { name: name.clone(), options: options.into(), if_not_exists: *if_not_exists }
    }
}

impl From<CreateStreamV1> for CreateStream {
    fn from(first: CreateStreamV1) -> CreateStream {
        CreateStream { name: first.name, options: first.options.into(), if_not_exists: first.if_not_exists }
    }
}

wire_struct! {
    /// [`StreamInfo`], version 1.
    pub struct StreamInfoV1 {
        /// Its id.
        pub id: StreamId,
        /// Its name.
        pub name: String,
        /// When it was made, milliseconds since 1970.
        pub created_ms: i64,
        /// Its options.
        pub options: StreamOptionsV1,
    }
}

impl From<&StreamInfo> for StreamInfoV1 {
    fn from(current: &StreamInfo) -> StreamInfoV1 {
        let StreamInfo { id, name, created_ms, options } = current;
        StreamInfoV1 { id: *id, name: name.clone(), created_ms: *created_ms, options: options.into() }
    }
}

impl From<StreamInfoV1> for StreamInfo {
    fn from(first: StreamInfoV1) -> StreamInfo {
        let StreamInfoV1 { id, name, created_ms, options } = first;
        StreamInfo { id, name, created_ms, options: options.into() }
    }
}

wire_struct! {
    /// [`StreamList`], version 1.
    pub struct StreamListV1 {
        /// In the order of their names.
        pub streams: Vec<StreamInfoV1>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

impl From<&StreamList> for StreamListV1 {
    fn from(current: &StreamList) -> StreamListV1 {
        StreamListV1 { streams: current.streams.iter().map(Into::into).collect(), more: current.more }
    }
}

impl From<StreamListV1> for StreamList {
    fn from(first: StreamListV1) -> StreamList {
        StreamList { streams: first.streams.into_iter().map(Into::into).collect(), more: first.more }
    }
}

wire_struct! {
    /// [`StreamChanges`] in version 1 of [`AlterStream`].
    #[derive(Default)]
    pub struct StreamChangesV1 {
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
    }
}

wire_struct! {
    /// [`AlterStream`], version 1.
    pub struct AlterStreamV1 {
        /// Which.
        pub stream: StreamRef,
        /// What.
        pub changes: StreamChangesV1,
    }
}

impl From<&AlterStream> for AlterStreamV1 {
    fn from(current: &AlterStream) -> AlterStreamV1 {
        AlterStreamV1 { stream: current.stream.clone(), changes: with_all!(StreamChangesV1, current.changes) }
    }
}

impl From<AlterStreamV1> for AlterStream {
    fn from(first: AlterStreamV1) -> AlterStream {
        let changes = with_all!(StreamChanges, first.changes, replication_mode: None, settings: BTreeMap::new());
        AlterStream { stream: first.stream, changes }
    }
}

bodies!(CreateStreamV1, StreamInfoV1, StreamListV1, AlterStreamV1);
