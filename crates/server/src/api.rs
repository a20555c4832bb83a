//! The shapes of the admin API's JSON, which `kera … --json` prints as well: one look at streams, applications and the
//! node for programs, whichever door they come through. Plain data; the wire protocol has its own messages.

use std::collections::BTreeMap;

use kera_format::StreamOptions;
use kera_protocol::{
    ApplicationDescription, ApplicationSummary, CopyChange, LaneStats, NodeStatusResponse, StreamChanges, StreamInfo,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::identity::uuid_text;

/// An error: what was wrong, with which field and limit, and what to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorJson {
    /// What was wrong, for people.
    pub error: String,
    /// The field that is to blame, if one is.
    pub field: Option<String>,
    /// The limit it breaks, if one is.
    pub limit: Option<String>,
    /// What to do about it.
    pub next_step: String,
}

/// A stream's options. In a request every field may be left out: it keeps its value, or gets its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OptionsJson {
    /// Streamlets: partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamlets: Option<u32>,
    /// Lanes per streamlet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// Segments of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments_per_group: Option<u32>,
    /// The largest segment in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_bytes: Option<u32>,
    /// Copies. A stream that is made without saying how many gets one, in a cluster too: `kera stream create` makes three where three nodes can hold them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<u32>,
    /// `process` or `power`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// `lane` or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// How long records are kept, in milliseconds; null keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub retention_ms: Option<Option<u64>>,
    /// How many bytes a streamlet keeps; null is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub retention_bytes: Option<Option<u64>>,
    /// Whether records go once every application has read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_consumed: Option<bool>,
    /// `delete`, `compact` or `compact,delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<String>,
    /// Virtual logs of its own; zero shares the broker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_logs: Option<u32>,
    /// A segment takes no more appends when it was opened so many milliseconds ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_ms: Option<u64>,
    /// A lane is compacted when so many percent of its bytes came after the last pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_dirty_percent: Option<u32>,
    /// Compaction leaves a record alone for so many milliseconds after its append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_after_ms: Option<u64>,
    /// A lane is compacted so many milliseconds after an append at the latest; null: when it is worth it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub compact_within_ms: Option<Option<u64>>,
    /// Tombstones are kept for so many milliseconds after what they hide has gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstone_ms: Option<u64>,
    /// The time of records that Kafka clients write: `create` or `append`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamps: Option<String>,
    /// How batches that Kafka clients write are kept: `producer`, `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_compression: Option<String>,
    /// When producers are answered, of a stream with copies: `sync` or `async`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_mode: Option<String>,
    /// What Kafka clients have set, as they gave it, by its Kafka name: what holds is in the other fields. In a change null unsets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<BTreeMap<String, Option<String>>>,
}

/// Tells a field that is null from one that is not there.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl From<&StreamOptions> for OptionsJson {
    fn from(o: &StreamOptions) -> OptionsJson {
        OptionsJson {
            streamlets: Some(o.streamlets),
            lanes: Some(o.lanes),
            segments_per_group: Some(o.segments_per_group),
            segment_bytes: Some(o.segment_bytes_max),
            replication: Some(o.replication),
            durability: Some(o.durability.name().into()),
            order: Some(o.order.name().into()),
            retention_ms: Some(o.retention_ms),
            retention_bytes: Some(o.retention_bytes),
            retention_consumed: Some(o.retention_consumed),
            cleanup: Some(o.cleanup.name().into()),
            virtual_logs: Some(o.virtual_logs),
            segment_ms: Some(o.segment_ms),
            compact_dirty_percent: Some(o.compact_dirty_percent),
            compact_after_ms: Some(o.compact_after_ms),
            compact_within_ms: Some(o.compact_within_ms),
            tombstone_ms: Some(o.tombstone_ms),
            timestamps: Some(o.timestamps.name().into()),
            batch_compression: Some(o.batch_compression.name().into()),
            replication_mode: Some(o.replication_mode.name().into()),
            settings: (!o.settings.is_empty())
                .then(|| o.settings.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect()),
        }
    }
}

impl OptionsJson {
    /// What is to change.
    ///
    /// # Errors
    /// A word that is none of those allowed: the field, and the sentence.
    pub fn changes(&self) -> Result<StreamChanges, (&'static str, String)> {
        fn word<T: std::str::FromStr<Err = String>>(
            field: &'static str,
            text: Option<&String>,
        ) -> Result<Option<T>, (&'static str, String)> {
            text.map(|text| text.parse()).transpose().map_err(|error| (field, error))
        }
        Ok(StreamChanges {
            streamlets: self.streamlets,
            lanes: self.lanes,
            segments_per_group: self.segments_per_group,
            segment_bytes_max: self.segment_bytes,
            replication: self.replication,
            durability: word("durability", self.durability.as_ref())?,
            order: word("order", self.order.as_ref())?,
            retention_ms: self.retention_ms,
            retention_bytes: self.retention_bytes,
            retention_consumed: self.retention_consumed,
            cleanup: word("cleanup", self.cleanup.as_ref())?,
            virtual_logs: self.virtual_logs,
            segment_ms: self.segment_ms,
            compact_dirty_percent: self.compact_dirty_percent,
            compact_after_ms: self.compact_after_ms,
            compact_within_ms: self.compact_within_ms,
            tombstone_ms: self.tombstone_ms,
            timestamps: word("timestamps", self.timestamps.as_ref())?,
            batch_compression: word("batch_compression", self.batch_compression.as_ref())?,
            replication_mode: word("replication_mode", self.replication_mode.as_ref())?,
            settings: self.settings.clone().unwrap_or_default(),
        })
    }
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamJson {
    /// Its id, never used again.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: i64,
    /// Its options.
    pub options: OptionsJson,
    /// How many copies it is to have, while that is another number than it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_wanted: Option<u32>,
    /// How many of its streamlets have as many already; only with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_there: Option<u32>,
    /// Lost nodes that have something of the others, which wait for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replication_waits_for: Vec<u32>,
}

impl StreamJson {
    /// With how far the change of its number of copies is, if there is one.
    #[must_use]
    pub fn changing(self, change: Option<&CopyChange>) -> StreamJson {
        let Some(change) = change else { return self };
        StreamJson {
            replication_wanted: Some(change.wanted),
            replication_there: Some(change.there),
            replication_waits_for: change.waits_for.clone(),
            ..self
        }
    }
}

impl From<&StreamInfo> for StreamJson {
    fn from(info: &StreamInfo) -> StreamJson {
        StreamJson {
            id: info.id.0,
            name: info.name.clone(),
            created_ms: info.created_ms,
            options: (&info.options).into(),
            replication_wanted: None,
            replication_there: None,
            replication_waits_for: Vec::new(),
        }
    }
}

/// A stream with what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamDetailsJson {
    /// The stream.
    #[serde(flatten)]
    pub stream: StreamJson,
    /// Records that can be read.
    pub records: u64,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Lanes that were ever written to; over HTTP a page of them.
    pub lanes_used: Vec<LaneJson>,
    /// How many lanes were ever written to, also where `lanes_used` is a page of them.
    #[serde(default)]
    pub lanes_used_count: u64,
    /// Who reads it.
    pub applications: Vec<ApplicationJson>,
    /// Nodes that have some of it and could not be asked: what they have is not in the figures. A node's own answer is about what it
    /// has itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<u32>,
}

/// Records of a lane that can be read.
pub(crate) fn records_in(lane: &LaneStats) -> u64 {
    lane.durable_ordinal.saturating_sub(lane.first_ordinal)
}

impl StreamDetailsJson {
    /// From what the broker says of all of its lanes.
    pub fn new(info: &StreamInfo, lanes: &[LaneStats], applications: &[ApplicationSummary]) -> StreamDetailsJson {
        StreamDetailsJson {
            stream: info.into(),
            records: lanes.iter().map(records_in).sum(),
            bytes: lanes.iter().map(|l| l.bytes).sum(),
            lanes_used: lanes.iter().map(LaneJson::from).collect(),
            lanes_used_count: lanes.len() as u64,
            applications: applications.iter().map(|a| ApplicationJson::new(a, &info.name)).collect(),
            unheard: Vec::new(),
        }
    }
}

/// How much is in a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaneJson {
    /// The streamlet.
    pub streamlet: u32,
    /// The lane in it.
    pub lane: u32,
    /// Number of the first record that is kept.
    pub first_ordinal: u64,
    /// Number of the record after the last that can be read.
    pub durable_ordinal: u64,
    /// Number of the next record to be written.
    pub next_ordinal: u64,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Of its segments' bytes, those in memory.
    pub memory_bytes: u64,
    /// Of its segments' bytes, those on disk.
    pub disk_bytes: u64,
    /// Its groups.
    pub groups: u32,
    /// Its segments.
    pub segments: u32,
    /// When it was last written to, milliseconds since 1970.
    pub last_append_ms: i64,
    /// Compaction has compared records below with all that came after them up to here.
    pub compacted_ordinal: u64,
    /// Bytes of segments behind, the open one included.
    pub uncompacted_bytes: u64,
}

impl From<&LaneStats> for LaneJson {
    fn from(l: &LaneStats) -> LaneJson {
        LaneJson {
            streamlet: l.streamlet.0,
            lane: l.lane.0,
            first_ordinal: l.first_ordinal,
            durable_ordinal: l.durable_ordinal,
            next_ordinal: l.next_ordinal,
            bytes: l.bytes,
            memory_bytes: l.memory_bytes,
            disk_bytes: l.disk_bytes,
            groups: l.groups,
            segments: l.segments,
            last_append_ms: l.last_append_ms,
            compacted_ordinal: l.compacted_ordinal,
            uncompacted_bytes: l.uncompacted_bytes,
        }
    }
}

/// An application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplicationJson {
    /// Its name.
    pub name: String,
    /// The stream it reads.
    pub stream: String,
    /// `empty` or `active`.
    pub state: String,
    /// Its consumers.
    pub members: u32,
    /// Records that can be read and are not committed.
    pub lag: u64,
}

impl ApplicationJson {
    /// From a listing.
    pub fn new(a: &ApplicationSummary, stream: &str) -> ApplicationJson {
        ApplicationJson {
            name: a.name.clone(),
            stream: stream.into(),
            state: a.state.name().into(),
            members: a.members,
            lag: a.lag,
        }
    }
}

/// An application in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplicationDetailsJson {
    /// Its name.
    pub name: String,
    /// The stream it reads.
    pub stream: String,
    /// `empty` or `active`.
    pub state: String,
    /// `lane` or `none`.
    pub order: String,
    /// Records that can be read and are not committed.
    pub lag: u64,
    /// Its consumers.
    pub members: Vec<MemberJson>,
    /// How far it is in each lane.
    pub lanes: Vec<ProgressJson>,
    /// Nodes that own other streamlets of the stream and were not asked: how far it is in these is not told, nor which consumers it has there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<u32>,
}

/// A consumer of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberJson {
    /// Its id.
    pub member: u64,
    /// What it calls itself.
    pub name: String,
    /// Where it connects from.
    pub address: String,
    /// When it joined, milliseconds since 1970.
    pub joined_ms: i64,
    /// When it was last heard of, milliseconds since 1970.
    pub heartbeat_ms: i64,
    /// Groups that it reads.
    pub leases: u32,
}

/// How far an application is in a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressJson {
    /// The streamlet.
    pub streamlet: u32,
    /// The lane in it.
    pub lane: u32,
    /// Number of the next record to process; null if nothing is committed.
    pub committed_ordinal: Option<u64>,
    /// Number of the record after the last that can be read.
    pub durable_ordinal: u64,
    /// Records between the two.
    pub lag: u64,
}

impl ApplicationDetailsJson {
    /// From the broker's description.
    pub fn new(d: &ApplicationDescription, stream: &str) -> ApplicationDetailsJson {
        let members = d.members.iter().map(|m| MemberJson {
            member: m.member,
            name: m.name.clone(),
            address: m.address.clone(),
            joined_ms: m.joined_ms,
            heartbeat_ms: m.heartbeat_ms,
            leases: m.leases,
        });
        let lanes = d.lanes.iter().map(|l| ProgressJson {
            streamlet: l.streamlet.0,
            lane: l.lane.0,
            committed_ordinal: l.committed_ordinal,
            durable_ordinal: l.durable_ordinal,
            lag: l.lag,
        });
        ApplicationDetailsJson {
            name: d.name.clone(),
            stream: stream.into(),
            state: d.state.name().into(),
            order: d.order.name().into(),
            lag: d.lag,
            members: members.collect(),
            lanes: lanes.collect(),
            unheard: Vec::new(),
        }
    }
}

/// How the node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeJson {
    /// The node's uuid.
    pub node: String,
    /// Its incarnation, one higher after every start.
    pub epoch: u32,
    /// The version of its program.
    pub version: String,
    /// What it does.
    pub roles: Vec<String>,
    /// Whether it serves.
    pub ready: bool,
    /// What keeps it from serving, or from serving well.
    pub problems: Vec<String>,
    /// When it started, milliseconds since 1970.
    pub started_ms: i64,
    /// For how long it has been up, in milliseconds.
    pub uptime_ms: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Of those, used.
    pub arena_used_bytes: u64,
    /// Streams, but for the system's own.
    pub streams: u64,
    /// Lanes that were written to.
    pub lanes: u64,
    /// Groups.
    pub groups: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of chunks kept, in memory and on disk.
    pub stored_bytes: u64,
    /// Open connections.
    pub connections: u64,
    /// Open subscriptions.
    pub subscriptions: u64,
    /// Applications.
    pub applications: u64,
    /// Records appended since the start.
    pub appended_records: u64,
    /// Bytes of chunks appended since the start.
    pub appended_bytes: u64,
    /// Bytes of chunks sent to readers since the start.
    pub read_bytes: u64,
    /// Bytes appended and not durable yet.
    pub pending_bytes: u64,
    /// Where data is kept.
    pub disks: Vec<DiskJson>,
}

/// A directory that data is kept in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskJson {
    /// Its path on the node.
    pub path: String,
    /// Bytes of its file system.
    pub total_bytes: u64,
    /// Bytes that are free there.
    pub free_bytes: u64,
    /// Bytes that the node's own files take.
    pub used_bytes: u64,
    /// Why it is not used; empty if it is.
    pub problem: String,
}

impl From<&NodeStatusResponse> for NodeJson {
    fn from(s: &NodeStatusResponse) -> NodeJson {
        let disks = s.disks.iter().map(|d| DiskJson {
            path: d.path.clone(),
            total_bytes: d.total_bytes,
            free_bytes: d.free_bytes,
            used_bytes: d.used_bytes,
            problem: d.problem.clone(),
        });
        NodeJson {
            node: uuid_text(&s.node_id),
            epoch: s.node_epoch,
            version: s.version.clone(),
            roles: s.roles.iter().map(|role| role.name().into()).collect(),
            ready: s.ready,
            problems: s.problems.clone(),
            started_ms: s.started_ms,
            uptime_ms: s.uptime_ms,
            arena_bytes: s.arena_bytes,
            arena_used_bytes: s.arena_used_bytes,
            streams: s.streams,
            lanes: s.lanes,
            groups: s.groups,
            segments: s.segments,
            stored_bytes: s.stored_bytes,
            connections: s.connections,
            subscriptions: s.subscriptions,
            applications: s.applications,
            appended_records: s.appended_records,
            appended_bytes: s.appended_bytes,
            read_bytes: s.read_bytes,
            pending_bytes: s.pending_bytes,
            disks: disks.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_missing_are_two_things() {
        let options: OptionsJson = serde_json::from_str("{\"retention_ms\":null,\"durability\":\"power\"}").unwrap();
        let changes = options.changes().unwrap();
        assert_eq!(changes.retention_ms, Some(None));
        assert_eq!(changes.retention_bytes, None);
        assert_eq!(changes.durability, Some(kera_format::Durability::Power));
    }

    #[test]
    fn a_wrong_word_names_its_field() {
        let options = OptionsJson { order: Some("chaos".into()), ..OptionsJson::default() };
        let (field, sentence) = options.changes().unwrap_err();
        assert_eq!(field, "order");
        assert!(sentence.contains("lane, none"), "{sentence}");
    }

    #[test]
    fn options_come_back_as_they_were() {
        let options = StreamOptions { retention_bytes: Some(7), streamlets: 3, ..StreamOptions::default() };
        let text = serde_json::to_string(&OptionsJson::from(&options)).unwrap();
        let read: OptionsJson = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.changes().unwrap().apply(&StreamOptions { retention_ms: None, ..StreamOptions::default() }),
            options
        );
    }
}
