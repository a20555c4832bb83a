//! What the coordinator and the door say to each other: time, callers, answers, the journal, the topics, the limits.

use kafka_protocol::messages::{
    ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse, DeleteGroupsResponse, DescribeGroupsResponse,
    HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, ListGroupsResponse, OffsetCommitResponse,
    OffsetDeleteResponse, OffsetFetchResponse, SyncGroupResponse, TxnOffsetCommitResponse,
};
use kera_env::{Believed, Clock};
use kera_format::kafka_groups::Entry;
use uuid::Uuid;

/// The time of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Milliseconds of a clock that never goes back: for deadlines.
    pub mono_ms: u64,
    /// Milliseconds since 1970: for what is stored.
    pub wall_ms: i64,
    /// For what is forgotten since it is old: a clock that jumps forgets nothing.
    pub believed: Believed,
}

impl Now {
    /// What a clock says.
    pub fn of(clock: &dyn Clock) -> Now {
        Now { mono_ms: clock.monotonic_us() / 1000, wall_ms: clock.now_ms(), believed: clock.believed() }
    }
}

/// Who sent a request, and in which version of its message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// The request's version.
    pub version: i16,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connected from, as `/127.0.0.1`.
    pub host: String,
}

/// How far the journal came with an append; larger is later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mark(pub u64);

/// The journal takes nothing now: no space, or it is closed. Nothing of the append is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the journal of groups takes no records now")]
pub struct AppendFailed;

/// Where changes are kept.
pub trait Journal {
    /// Appends entries in this order, behind all earlier ones, or none of them. Does not wait until they are durable: an
    /// answer that rests on them carries the mark.
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed>;
    /// Whether it takes records of members: whoever may read it later understands them.
    fn keeps_members(&self) -> bool;
    /// Whether it takes records of members that speak the classic protocol in a group whose coordinator assigns.
    fn keeps_both_kinds(&self) -> bool;
}

/// A topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topic {
    /// Its id; another topic of the same name has another.
    pub id: Uuid,
    /// How many partitions it has.
    pub partitions: u32,
}

/// What topics there are.
pub trait Topics {
    /// The topic of this name.
    fn topic(&self, name: &str) -> Option<Topic>;
    /// The name of the topic with this id.
    fn name(&self, id: Uuid) -> Option<String>;
    /// The names of all topics that clients see.
    fn names(&self) -> Vec<String>;
    /// A number that changes whenever an answer of the others may have changed.
    fn version(&self) -> u64;
}

/// An answer to a request.
#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)]
#[non_exhaustive]
pub enum Answer {
    /// To JoinGroup.
    Join(JoinGroupResponse),
    /// To SyncGroup.
    Sync(SyncGroupResponse),
    /// To Heartbeat.
    Heartbeat(HeartbeatResponse),
    /// To LeaveGroup.
    Leave(LeaveGroupResponse),
    /// To OffsetCommit.
    Commit(OffsetCommitResponse),
    /// To OffsetFetch.
    Fetch(OffsetFetchResponse),
    /// To OffsetDelete.
    DeleteOffsets(OffsetDeleteResponse),
    /// To TxnOffsetCommit.
    TxnCommit(TxnOffsetCommitResponse),
    /// To ListGroups.
    List(ListGroupsResponse),
    /// To DescribeGroups.
    Describe(DescribeGroupsResponse),
    /// To DeleteGroups.
    Delete(DeleteGroupsResponse),
    /// To ConsumerGroupHeartbeat.
    ConsumerHeartbeat(ConsumerGroupHeartbeatResponse),
    /// To ConsumerGroupDescribe.
    ConsumerDescribe(ConsumerGroupDescribeResponse),
}

impl Answer {
    /// The same, with what another coordinator has answered to its part of the request: lists of groups are put together.
    #[must_use]
    pub fn with(mut self, other: Answer) -> Answer {
        match (&mut self, other) {
            (Answer::Fetch(all), Answer::Fetch(more)) => all.groups.extend(more.groups),
            (Answer::Describe(all), Answer::Describe(more)) => all.groups.extend(more.groups),
            (Answer::Delete(all), Answer::Delete(more)) => all.results.extend(more.results),
            (Answer::ConsumerDescribe(all), Answer::ConsumerDescribe(more)) => all.groups.extend(more.groups),
            (Answer::List(all), Answer::List(more)) => {
                all.groups.extend(more.groups);
                all.error_code = if all.error_code == 0 { more.error_code } else { all.error_code };
            }
            _ => {}
        }
        self
    }
}

/// An answer that is ready. There is exactly one for every request.
#[derive(Clone, PartialEq, Debug)]
pub struct Done {
    /// The request's.
    pub token: u64,
    /// It may leave when the journal is durable up to here; at once if there is none.
    pub after: Option<Mark>,
    /// The answer.
    pub answer: Answer,
}

/// Limits and delays. The names in the comments are those of Kafka's broker settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// The shortest session that a member of a classic group may ask for (`group.min.session.timeout.ms`).
    pub session_ms_min: i32,
    /// The longest (`group.max.session.timeout.ms`).
    pub session_ms_max: i32,
    /// How long an empty group waits for more members before its first generation (`group.initial.rebalance.delay.ms`).
    pub initial_delay_ms: u64,
    /// How long a member that joins for the first time may wait for its generation.
    pub new_member_ms: u64,
    /// Members of one group at most (`group.max.size`).
    pub members_max: usize,
    /// Groups at most.
    pub groups_max: usize,
    /// Bytes that one member may give with its protocols, and that one assignment may have.
    pub member_bytes_max: usize,
    /// Bytes of the members of all groups together: what they give, what they are called, what they have and should have, and the ids that they
    /// were promised.
    pub members_bytes_max: usize,
    /// Bytes of the offsets of all groups together, committed and pending, with their metadata: what is more is not committed, but in place of
    /// an offset that takes no less. One that is pending may wait beside the one whose place it is to take, so they take twice as much at most.
    pub offset_bytes_max: usize,
    /// Topics that one member of a consumer group may name.
    pub member_topics_max: usize,
    /// Bytes of the metadata of an offset (`offset.metadata.max.bytes`).
    pub metadata_bytes_max: usize,
    /// How long a group without members keeps its offsets (`offsets.retention.minutes`).
    pub offsets_retention_ms: i64,
    /// How often expired offsets are looked for (`offsets.retention.check.interval.ms`).
    pub offsets_check_ms: u64,
    /// How long a member of a consumer group may be silent (`group.consumer.session.timeout.ms`).
    pub consumer_session_ms: u64,
    /// How often it is asked to speak (`group.consumer.heartbeat.interval.ms`).
    pub consumer_heartbeat_ms: u64,
}

impl Default for GroupConfig {
    fn default() -> GroupConfig {
        GroupConfig {
            session_ms_min: 6_000,
            session_ms_max: 1_800_000,
            initial_delay_ms: 3_000,
            new_member_ms: 300_000,
            members_max: 10_000,
            groups_max: 100_000,
            member_bytes_max: 1 << 20,
            members_bytes_max: 256 << 20,
            offset_bytes_max: 1 << 30,
            member_topics_max: 10_000,
            metadata_bytes_max: 4_096,
            offsets_retention_ms: 7 * 24 * 3_600_000,
            offsets_check_ms: 600_000,
            consumer_session_ms: 45_000,
            consumer_heartbeat_ms: 5_000,
        }
    }
}
