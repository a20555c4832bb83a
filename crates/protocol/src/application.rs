//! Applications: named sets of consumers that share a stream's groups. An application is one name on one stream; the
//! same name on another stream is another application with another id.

use crate::codec::{wire_enum, wire_struct};
use crate::first::application::JoinApplicationV1;
use crate::message::{messages, responses, versioned_messages};
use crate::{Empty, Start};
use kera_format::{ApplicationId, Cursor, GroupId, LaneId, Order, StreamId, StreamletId};

wire_struct! {
    /// Makes a consumer a member. The application is made if there is none of that name.
    pub struct JoinApplication {
        /// Its name, see [`kera_format::limits::name_is_valid`].
        pub application: String,
        /// The stream.
        pub stream: StreamId,
        /// What the consumer calls itself, for listings. At most 255 bytes.
        pub member_name: String,
        /// The member id of an earlier join, to keep its leases after a lost connection; zero: a new member.
        pub member: u64,
        /// Where to start in lanes that the application has committed nothing of.
        pub start: Start,
        /// After how long without a heartbeat its leases may go to others, in milliseconds; zero: the broker's default.
        pub lease_ms: u32,
        /// The leases that it knows of. Others that it has were given in an answer that was lost with a connection, and are free again; from here
        /// on it is given groups on this connection only. `None`: all are kept.
        pub leases: Option<Vec<u64>>,
    }
}

wire_struct! {
    /// A member.
    pub struct JoinedApplication {
        /// The application.
        pub application: ApplicationId,
        /// The member, never zero.
        pub member: u64,
        /// After how long without a heartbeat its leases may go to others, in milliseconds.
        pub lease_ms: u32,
        /// How often to send heartbeats, in milliseconds.
        pub heartbeat_ms: u32,
        /// The stream's order.
        pub order: Order,
    }
}

wire_struct! {
    /// Keeps a member and its leases alive.
    #[derive(Copy)]
    pub struct Heartbeat {
        /// The application.
        pub application: ApplicationId,
        /// The member.
        pub member: u64,
    }
}

wire_struct! {
    /// A heartbeat's answer.
    pub struct HeartbeatResponse {
        /// Leases to give back soon, with a commit, because other members have none; and leases that the member has
        /// lost.
        pub release: Vec<u64>,
        /// How many leases the member has.
        pub leases: u32,
    }
}

wire_enum! {
    /// What happens to the lease after a commit.
    pub enum AfterCommit, "0 (keep), 1 (release) or 2 (done)" {
        /// The member goes on reading the group.
        Keep = 0 => "keep",
        /// The member gives the group back, to be read on by whoever gets it next.
        Release = 1 => "release",
        /// The group has been read to its end.
        Done = 2 => "done",
    }
}

wire_struct! {
    /// How far one group has been read.
    #[derive(Copy)]
    pub struct CommitEntry {
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// The lease; zero commits for an application without members.
        pub lease: u64,
        /// Where to read on: the chunk that holds the next record.
        pub cursor: Cursor,
        /// Ordinal of the next record to process.
        pub ordinal: u64,
        /// What happens to the lease.
        pub after: AfterCommit,
    }
}

wire_struct! {
    /// Stores how far an application has read.
    pub struct CommitOffsets {
        /// The application.
        pub application: ApplicationId,
        /// The member; zero for an application without members.
        pub member: u64,
        /// At most [`crate::limits::COMMIT_ENTRIES_MAX`].
        pub entries: Vec<CommitEntry>,
    }
}

wire_struct! {
    /// What became of the entries of a commit, in their order.
    pub struct CommitResult {
        /// Status numbers, see [`crate::Status`].
        pub statuses: Vec<u16>,
    }
}

wire_struct! {
    /// Asks how far an application has read.
    pub struct FetchOffsets {
        /// The application's name.
        pub application: String,
        /// Its stream.
        pub stream: StreamId,
        /// Only these streamlets; empty: all.
        pub streamlets: Vec<StreamletId>,
    }
}

wire_struct! {
    /// How far an application has read in one group. With order `lane` there is one such group in a lane; with order
    /// `none` there can be several.
    #[derive(Copy)]
    pub struct CommittedOffset {
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// Where to read on.
        pub cursor: Cursor,
        /// Ordinal of the next record to process.
        pub ordinal: u64,
        /// Whether the group has been read to its end.
        pub done: bool,
        /// When it was committed, milliseconds since 1970.
        pub committed_ms: i64,
    }
}

wire_struct! {
    /// How far an application has read.
    pub struct CommittedOffsets {
        /// The application.
        pub application: ApplicationId,
        /// In the order of streamlet, lane and group; what nothing was committed of is left out.
        pub offsets: Vec<CommittedOffset>,
    }
}

wire_struct! {
    /// Ends a membership; its leases are free at once.
    #[derive(Copy)]
    pub struct LeaveApplication {
        /// The application.
        pub application: ApplicationId,
        /// The member.
        pub member: u64,
    }
}

wire_struct! {
    /// Lists applications.
    pub struct ListApplications {
        /// Only those of this stream; `None`: of all.
        pub stream: Option<StreamId>,
    }
}

wire_enum! {
    /// How an application is.
    pub enum ApplicationState, "0 (empty) or 1 (active)" {
        /// It has no members; its offsets are kept.
        Empty = 0 => "empty",
        /// It has members.
        Active = 1 => "active",
    }
}

wire_struct! {
    /// An application in a listing.
    pub struct ApplicationSummary {
        /// Its id.
        pub application: ApplicationId,
        /// Its name.
        pub name: String,
        /// Its stream.
        pub stream: StreamId,
        /// How it is.
        pub state: ApplicationState,
        /// Its members.
        pub members: u32,
        /// Records that can be read and are not committed yet.
        pub lag: u64,
    }
}

wire_struct! {
    /// Applications.
    pub struct ApplicationList {
        /// In the order of their names.
        pub applications: Vec<ApplicationSummary>,
    }
}

wire_struct! {
    /// Asks for an application's members, leases and lag.
    pub struct DescribeApplication {
        /// Its name.
        pub application: String,
        /// Its stream.
        pub stream: StreamId,
    }
}

wire_struct! {
    /// A member of an application.
    pub struct MemberInfo {
        /// Its id.
        pub member: u64,
        /// What it calls itself.
        pub name: String,
        /// Where it connects from.
        pub address: String,
        /// When it joined, milliseconds since 1970.
        pub joined_ms: i64,
        /// When it was last heard of.
        pub heartbeat_ms: i64,
        /// Groups it has leased.
        pub leases: u32,
    }
}

wire_struct! {
    /// A lease.
    #[derive(Copy)]
    pub struct LeaseInfo {
        /// The lease.
        pub lease: u64,
        /// The member that has it.
        pub member: u64,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// The group.
        pub group: GroupId,
        /// Since when, milliseconds since 1970.
        pub since_ms: i64,
        /// Until when, if no heartbeat comes.
        pub until_ms: i64,
    }
}

wire_struct! {
    /// How far an application is in one lane.
    #[derive(Copy)]
    pub struct LaneProgress {
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// Ordinal of the next record to process, the lowest of those committed in the lane's open ends; `None`:
        /// nothing is committed.
        pub committed_ordinal: Option<u64>,
        /// Ordinal of the record after the last one that can be read.
        pub durable_ordinal: u64,
        /// Records that can be read and are not committed.
        pub lag: u64,
    }
}

wire_struct! {
    /// An application in full.
    pub struct ApplicationDescription {
        /// Its id.
        pub application: ApplicationId,
        /// Its name.
        pub name: String,
        /// Its stream.
        pub stream: StreamId,
        /// How it is.
        pub state: ApplicationState,
        /// The stream's order.
        pub order: Order,
        /// Its members, in the order of their ids.
        pub members: Vec<MemberInfo>,
        /// Its leases, in the order of streamlet, lane and group.
        pub leases: Vec<LeaseInfo>,
        /// Lanes that were ever written to, in the order of streamlet and lane.
        pub lanes: Vec<LaneProgress>,
        /// Records that can be read and are not committed, in all lanes.
        pub lag: u64,
    }
}

wire_struct! {
    /// Forgets an application and what it has read. Refused while it has members.
    pub struct DeleteApplication {
        /// Its name.
        pub application: String,
        /// Its stream.
        pub stream: StreamId,
    }
}

wire_struct! {
    /// Sets how far an application has read. Refused while it has members; makes the application if there is none.
    pub struct ResetOffsets {
        /// Its name.
        pub application: String,
        /// Its stream.
        pub stream: StreamId,
        /// Only these streamlets; empty: all.
        pub streamlets: Vec<StreamletId>,
        /// Where it shall go on.
        pub to: Start,
        /// Only tell what would be set.
        pub dry_run: bool,
    }
}

messages! {
    Heartbeat => HeartbeatResponse;
    CommitOffsets => CommitResult;
    FetchOffsets => CommittedOffsets;
    LeaveApplication => Empty;
    ListApplications => ApplicationList;
    DescribeApplication => ApplicationDescription;
    DeleteApplication => Empty;
    ResetOffsets => CommittedOffsets;
}
versioned_messages! { JoinApplication, 1 JoinApplicationV1 => JoinedApplication; }
responses!(
    JoinedApplication,
    HeartbeatResponse,
    CommitResult,
    CommittedOffsets,
    ApplicationList,
    ApplicationDescription,
);
