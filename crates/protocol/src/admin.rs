//! Streams and producers: what the coordinator answers.

use crate::codec::{Reader, Wire, wire_struct};
use crate::first::admin::{AlterStreamV1, CreateStreamV1, StreamInfoV1, StreamListV1};
use crate::message::{messages, responses, versioned_messages, versioned_responses};
use crate::second::admin::{AlterStreamV2, CreateStreamV2, StreamInfoV2, StreamListV2};
use crate::spec::{Source, Trace};
use crate::{Empty, ProtocolError};
use kera_format::{
    BatchCompression, Cleanup, Durability, Order, ProducerEpoch, ProducerId, ReplicationMode, Settings, StreamId,
    StreamOptions, Timestamps,
};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A stream, by what the caller knows of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamRef {
    /// Its id.
    Id(StreamId),
    /// Its name.
    Name(String),
}

impl From<StreamId> for StreamRef {
    fn from(id: StreamId) -> StreamRef {
        StreamRef::Id(id)
    }
}

impl From<&str> for StreamRef {
    fn from(name: &str) -> StreamRef {
        StreamRef::Name(name.to_owned())
    }
}

impl std::fmt::Display for StreamRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StreamRef::Id(id) => write!(f, "stream {id}"),
            StreamRef::Name(name) => write!(f, "stream `{name}`"),
        }
    }
}

impl Wire for StreamRef {
    const BYTES_MIN: usize = 5;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            StreamRef::Id(id) => {
                out.push(0);
                id.put(out);
            }
            StreamRef::Name(name) => {
                out.push(1);
                name.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        match u8::get(from)? {
            0 => Ok(StreamRef::Id(StreamId::get(from)?)),
            1 => Ok(StreamRef::Name(String::get(from)?)),
            other => Err(from.bad(other.into(), "0 (id) or 1 (name)")),
        }
    }
    fn kind() -> String {
        "StreamRef: u8 0, then the id as u64; or u8 1, then the name as text".to_owned()
    }
    fn trace(&self, trace: &mut Trace) {
        match self {
            StreamRef::Id(id) => {
                trace.leaf("choice", "u8", "0".to_owned(), vec![0]);
                trace.inside("id", id);
            }
            StreamRef::Name(name) => {
                trace.leaf("choice", "u8", "1".to_owned(), vec![1]);
                trace.inside("name", name);
            }
        }
    }
    fn sample(source: &mut Source<'_>) -> Self {
        match source.below(2) {
            0 => StreamRef::Id(StreamId::sample(source)),
            _ => StreamRef::Name(String::sample(source)),
        }
    }
}

wire_struct! {
    /// Makes a stream. With a name that exists: [`crate::Status::StreamExists`], unless `if_not_exists`.
    pub struct CreateStream {
        /// Its name, see [`kera_format::limits::name_is_valid`].
        pub name: String,
        /// Its options, see [`StreamOptions::check`].
        pub options: StreamOptions,
        /// Answer with the stream that exists, whatever its options are, instead of an error.
        pub if_not_exists: bool,
    }
}

impl CreateStream {
    /// The same without settings, unless they are kept.
    pub fn with_settings_if(&self, are_kept: bool) -> Cow<'_, CreateStream> {
        if are_kept || self.options.settings.is_empty() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(CreateStream { options: self.options.without_settings(), ..self.clone() })
    }
}

wire_struct! {
    /// A stream as the coordinator knows it.
    pub struct StreamInfo {
        /// Its id, never reused.
        pub id: StreamId,
        /// Its name.
        pub name: String,
        /// When it was made, milliseconds since 1970.
        pub created_ms: i64,
        /// Its options.
        pub options: StreamOptions,
    }
}

wire_struct! {
    /// Finds a stream.
    pub struct GetStream {
        /// Which.
        pub stream: StreamRef,
    }
}

wire_struct! {
    /// Lists streams in the order of their names, a page at a time.
    pub struct ListStreams {
        /// Only names that start so; empty: all.
        pub prefix: String,
        /// Only names after this one; empty: from the first.
        pub after: String,
        /// Most streams in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
        /// Also those of the system, whose names start with `_kera.`.
        pub system: bool,
    }
}

wire_struct! {
    /// A page of streams.
    pub struct StreamList {
        /// In the order of their names.
        pub streams: Vec<StreamInfo>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

wire_struct! {
    /// Options to change; `None` leaves one as it is. Which of them may change on a live stream is the coordinator's
    /// decision, see `docs/protocol.md`.
    #[derive(Default)]
    pub struct StreamChanges {
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
        /// Retention by time; `Some(None)` removes it.
        pub retention_ms: Option<Option<u64>>,
        /// Retention by bytes of a streamlet; `Some(None)` removes it.
        pub retention_bytes: Option<Option<u64>>,
        /// Retention by what applications have read.
        pub retention_consumed: Option<bool>,
        /// How old data leaves.
        pub cleanup: Option<Cleanup>,
        /// Virtual logs of its own.
        pub virtual_logs: Option<u32>,
        /// How long segments that are opened from now on take appends.
        pub segment_ms: Option<u64>,
        /// When a lane is compacted: so many percent of its bytes came after the last pass.
        pub compact_dirty_percent: Option<u32>,
        /// For how long after its append compaction leaves a record alone.
        pub compact_after_ms: Option<u64>,
        /// When a lane is compacted at the latest; `Some(None)` removes it.
        pub compact_within_ms: Option<Option<u64>>,
        /// How long tombstones are kept.
        pub tombstone_ms: Option<u64>,
        /// The time of records that Kafka clients write.
        pub timestamps: Option<Timestamps>,
        /// How batches that Kafka clients write are kept.
        pub batch_compression: Option<BatchCompression>,
        /// When producers are answered, of a stream with copies; from version 2 of the operation on.
        pub replication_mode: Option<ReplicationMode>,
        /// Settings as Kafka clients give them: with a value to keep, or absent to keep it no longer; from version 3 of the operation on. What they
        /// mean is said by the other fields.
        pub settings: BTreeMap<String, Option<String>>,
    }
}

impl StreamChanges {
    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == StreamChanges::default()
    }

    /// The changes of everything but settings, unless they are kept.
    pub fn with_settings_if(&self, are_kept: bool) -> Cow<'_, StreamChanges> {
        if are_kept || self.settings.is_empty() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(StreamChanges { settings: BTreeMap::new(), ..self.clone() })
    }

    /// `options` with the changes made, unchecked.
    pub fn apply(&self, options: &StreamOptions) -> StreamOptions {
        StreamOptions {
            streamlets: self.streamlets.unwrap_or(options.streamlets),
            lanes: self.lanes.unwrap_or(options.lanes),
            segments_per_group: self.segments_per_group.unwrap_or(options.segments_per_group),
            segment_bytes_max: self.segment_bytes_max.unwrap_or(options.segment_bytes_max),
            replication: self.replication.unwrap_or(options.replication),
            replication_mode: self.replication_mode.unwrap_or(options.replication_mode),
            durability: self.durability.unwrap_or(options.durability),
            order: self.order.unwrap_or(options.order),
            retention_ms: self.retention_ms.unwrap_or(options.retention_ms),
            retention_bytes: self.retention_bytes.unwrap_or(options.retention_bytes),
            retention_consumed: self.retention_consumed.unwrap_or(options.retention_consumed),
            cleanup: self.cleanup.unwrap_or(options.cleanup),
            virtual_logs: self.virtual_logs.unwrap_or(options.virtual_logs),
            segment_ms: self.segment_ms.unwrap_or(options.segment_ms),
            compact_dirty_percent: self.compact_dirty_percent.unwrap_or(options.compact_dirty_percent),
            compact_after_ms: self.compact_after_ms.unwrap_or(options.compact_after_ms),
            compact_within_ms: self.compact_within_ms.unwrap_or(options.compact_within_ms),
            tombstone_ms: self.tombstone_ms.unwrap_or(options.tombstone_ms),
            timestamps: self.timestamps.unwrap_or(options.timestamps),
            batch_compression: self.batch_compression.unwrap_or(options.batch_compression),
            settings: self.apply_settings(&options.settings),
        }
    }

    fn apply_settings(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        for (name, value) in &self.settings {
            match value {
                Some(value) => drop(settings.insert(name.clone(), value.clone())),
                None => drop(settings.remove(name)),
            }
        }
        settings
    }
}

wire_struct! {
    /// Changes options of a stream; all or none.
    pub struct AlterStream {
        /// Which.
        pub stream: StreamRef,
        /// What.
        pub changes: StreamChanges,
    }
}

wire_struct! {
    /// Deletes a stream and all of its data. Its id is never given again; its name may be.
    pub struct DeleteStream {
        /// Which.
        pub stream: StreamRef,
    }
}

wire_struct! {
    /// Asks for a producer id, or fences an id's former user by the next epoch.
    pub struct AllocateProducer {
        /// `None` asks for an id that nobody has; `Some` for the next epoch of that one.
        pub producer_id: Option<ProducerId>,
    }
}

wire_struct! {
    /// A producer's identity. Its sequences start at 0 in every streamlet.
    pub struct AllocatedProducer {
        /// The id, never zero.
        pub producer_id: ProducerId,
        /// The epoch; chunks of lower ones are refused from the first chunk of this one on.
        pub producer_epoch: ProducerEpoch,
    }
}

messages! {
    GetStream => StreamInfo;
    ListStreams => StreamList;
    DeleteStream => Empty;
    AllocateProducer => AllocatedProducer;
}
versioned_messages! {
    CreateStream, 1 CreateStreamV1, 2 CreateStreamV2 => StreamInfo;
    AlterStream, 1 AlterStreamV1, 2 AlterStreamV2 => StreamInfo;
}
responses!(AllocatedProducer);
versioned_responses! {
    StreamInfo, 1 StreamInfoV1, 2 StreamInfoV2;
    StreamList, 1 StreamListV1, 2 StreamListV2;
}
