//! What nodes of a cluster say to each other about who is there: the coordinators' log, commands on their way to the leader, joining,
//! heartbeats, and how the cluster is (`docs/replication.md`). Spoken on the cluster's own address.

use kera_format::StreamId;
use kera_format::cluster::RaftPlace;
use kera_format::vlog_replica::LogId;

use crate::codec::{question, wire_enum, wire_fields, wire_struct};
use crate::message::{messages, responses, versioned_messages, versioned_responses};

use crate::Role;
use crate::first::cluster::{ClusterDescriptionV1, JoinClusterV1, NodeAliveV1, StreamletsRebuiltV1};

wire_fields!(RaftPlace, ["A place in the coordinators' log."], {
    term: u64, ["Term of the leader that wrote it."];
    leader: u64, ["That leader."];
    index: u64, ["Number of the entry."];
});

wire_struct! {
    /// For whom a node votes, or whom it follows.
    #[derive(Copy)]
    pub struct RaftBallot {
        /// The term.
        pub term: u64,
        /// The candidate, or the leader.
        pub node: u64,
        /// Whether it is the leader.
        pub committed: bool,
    }
}

wire_struct! {
    /// Asks a coordinator for its vote.
    #[derive(Copy)]
    pub struct RaftVote {
        /// For whom.
        pub ballot: RaftBallot,
        /// The last entry that the candidate has.
        pub last: Option<RaftPlace>,
    }
}

wire_struct! {
    /// The vote of a coordinator.
    #[derive(Copy)]
    pub struct RaftVoted {
        /// For whom it votes, or whom it follows.
        pub ballot: RaftBallot,
        /// Whether that is who has asked.
        pub granted: bool,
        /// The last entry that it has.
        pub last: Option<RaftPlace>,
    }
}

wire_struct! {
    /// Entries of the coordinators' log for one that follows; none: a sign of life.
    pub struct RaftAppend {
        /// The leader.
        pub ballot: RaftBallot,
        /// The entry before the first one.
        pub before: Option<RaftPlace>,
        /// Entries as `docs/formats/raft.md` lays them out.
        pub entries: Vec<Vec<u8>>,
        /// Up to where entries are decided.
        pub decided: Option<RaftPlace>,
    }
}

wire_enum! {
    /// What became of entries.
    pub enum RaftOutcome, "0 (all), 1 (part), 2 (conflict) or 3 (newer leader)" {
        /// All are on disk.
        All = 0 => "all",
        /// Those up to a place are.
        Part = 1 => "part",
        /// The entry before the first one is not there.
        Conflict = 2 => "conflict",
        /// The node follows a newer leader.
        NewerLeader = 3 => "newer leader",
    }
}

wire_struct! {
    /// What became of entries at a node that follows.
    #[derive(Copy)]
    pub struct RaftAppended {
        /// How it went.
        pub outcome: RaftOutcome,
        /// Part: up to where.
        pub through: Option<RaftPlace>,
        /// Newer leader: which.
        pub ballot: Option<RaftBallot>,
    }
}

wire_struct! {
    /// A part of a snapshot for a node that is too far behind.
    pub struct RaftSnapshot {
        /// The leader.
        pub ballot: RaftBallot,
        /// Up to where the snapshot goes.
        pub place: RaftPlace,
        /// Where in it this part begins.
        pub offset: u64,
        /// The part.
        pub part: Vec<u8>,
        /// Whether it is the last one.
        pub last: bool,
    }
}

wire_struct! {
    /// The part is there; the last one is answered when the snapshot is the node's state.
    #[derive(Copy)]
    pub struct RaftSnapshotTaken {
        /// Whom the node follows.
        pub ballot: RaftBallot,
    }
}

wire_struct! {
    /// A request of somebody else for the leader of the coordinators.
    pub struct ForwardCommand {
        /// The operation.
        pub op: u16,
        /// Its version.
        pub version: u8,
        /// Whether it makes a stream of the system.
        pub system: bool,
        /// Its body.
        pub body: Vec<u8>,
    }
}

wire_struct! {
    /// What came of it.
    pub struct ForwardedCommand {
        /// The status of the answer.
        pub status: u16,
        /// The body of the answer.
        pub body: Vec<u8>,
        /// The entry of the coordinators' log that must be applied before the answer is true at a node.
        pub index: u64,
    }
}

wire_struct! {
    /// A setting that all nodes share.
    pub struct SharedSetting {
        /// Its name.
        pub name: String,
        /// Its value.
        pub value: String,
    }
}

wire_struct! {
    /// A node wants to be part of the cluster: for the first time, or again.
    pub struct JoinCluster {
        /// Its number, from 1.
        pub node: u32,
        /// Its uuid.
        pub uuid: [u8; 16],
        /// What it does.
        pub roles: Vec<Role>,
        /// Its rack; empty: none.
        pub rack: String,
        /// Where other nodes reach it.
        pub cluster_address: String,
        /// Where clients reach it; empty: not at all.
        pub native_address: String,
        /// Where Kafka clients reach it; empty: not at all.
        pub kafka_address: String,
        /// Where its HTTP is; empty: nowhere.
        pub http_address: String,
        /// Settings that all nodes share, as it has them.
        pub settings: Vec<SharedSetting>,
        /// An epoch that it has not used.
        pub epoch_min: u32,
        /// Whether it has all that it acknowledged before.
        pub has_all: bool,
        /// The lowest level of a cluster that it speaks.
        pub level_min: u32,
        /// The highest level of a cluster that it speaks.
        pub level_max: u32,
    }
}

wire_struct! {
    /// The node is part of the cluster.
    #[derive(Copy)]
    pub struct JoinedCluster {
        /// Uuid of the cluster.
        pub cluster: [u8; 16],
        /// The node's epoch.
        pub epoch: u32,
        /// The entry of the coordinators' log that says so.
        pub index: u64,
    }
}

wire_struct! {
    /// A sign of life for the leader of the coordinators.
    #[derive(Copy)]
    pub struct NodeAlive {
        /// The node.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// The highest level that it lets the cluster be raised to: one that it speaks, and that its operator allows.
        pub level_max: u32,
    }
}

wire_struct! {
    /// Who is the leader, and what it thinks of the node.
    #[derive(Copy)]
    pub struct NodeHeard {
        /// Number of the leader; 0: there is none.
        pub leader: u32,
        /// Whether that incarnation of the node is part of the cluster and not fenced, as far as the asked node knows.
        pub live: bool,
    }
}

question! {
    /// Asks how the cluster is.
    DescribeCluster
}

wire_struct! {
    /// A node as the coordinators know it.
    pub struct MemberNode {
        /// Its number.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Its uuid.
        pub uuid: [u8; 16],
        /// Whether it is lost.
        pub fenced: bool,
        /// Whether it votes.
        pub votes: bool,
        /// What it does.
        pub roles: Vec<Role>,
        /// Its rack; empty: none.
        pub rack: String,
        /// Where other nodes reach it.
        pub cluster_address: String,
        /// Where clients reach it; empty: not at all.
        pub native_address: String,
        /// Streamlets that it owns.
        pub streamlets: u64,
        /// The highest level that it lets the cluster be raised to; 0: the node that was asked has not heard.
        pub level_max: u32,
    }
}

wire_struct! {
    /// How the cluster is, as one node knows it.
    pub struct ClusterDescription {
        /// Uuid of the cluster; zeros: the node is alone.
        pub cluster: [u8; 16],
        /// Number of the leader; 0: there is none that the node knows of.
        pub leader: u32,
        /// Its term.
        pub term: u64,
        /// The entry of the coordinators' log up to which the node is.
        pub applied: u64,
        /// All nodes.
        pub nodes: Vec<MemberNode>,
        /// Virtual logs that are kept.
        pub logs: u64,
        /// Streamlets that wait for a node that is lost.
        pub waiting_streamlets: u64,
        /// The level in force; 0: the node that was asked does not say.
        pub level: u32,
    }
}

wire_enum! {
    /// What a broker asks for one of its virtual logs.
    pub enum LogChange, "0 (view), 1 (add backup), 2 (give up) or 3 (give up view)" {
        /// The next view: its first block and its backups.
        View = 0 => "view",
        /// A backup has got the blocks of an older view.
        AddBackup = 1 => "add backup",
        /// Nobody needs the log any more.
        GiveUp = 2 => "give up",
        /// Nobody needs the blocks of an older view any more.
        GiveUpView = 3 => "give up view",
    }
}

wire_struct! {
    /// A broker asks the coordinators for another view of a virtual log. Asking twice is answered like asking once.
    pub struct ChangeLog {
        /// The log.
        pub log: LogId,
        /// What is asked for.
        pub change: LogChange,
        /// Number of the view, from 1. Give up: the epoch of the node that asks for it, of a log that an earlier epoch of it has left; 0: whatever it is.
        pub view: u32,
        /// View: its first block.
        pub first_block: u64,
        /// View: its backups. Add backup: the one.
        pub backups: Vec<u32>,
    }
}

wire_struct! {
    /// A broker has rebuilt what lost brokers had of streamlets that it owns, and it has all its copies again. Streamlets that are in another
    /// owner epoch by now are left out.
    pub struct StreamletsRebuilt {
        /// The broker.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Which streamlets, each with the owner epoch in which it was taken over; 0: whatever it is in.
        pub streamlets: Vec<RebuildRange>,
    }
}

wire_struct! {
    /// Neighbouring streamlets of a stream that their owner rebuilds, in one owner epoch.
    #[derive(Copy)]
    pub struct RebuildRange {
        /// The stream.
        pub stream: StreamId,
        /// The first streamlet.
        pub first: u32,
        /// How many.
        pub count: u32,
        /// The owner epoch in which they were taken over.
        pub owner_epoch: u32,
    }
}

wire_struct! {
    /// A broker says of all streamlets that it has taken over from lost brokers and not rebuilt which logs it needs for that: others may be given
    /// up meanwhile. It stands for what the broker has said before; streamlets that are not named may need any log.
    pub struct RebuildNeeds {
        /// The broker.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// The streamlets, at most [`crate::limits::REBUILD_RUNS_MAX`] ranges.
        pub streamlets: Vec<RebuildRange>,
        /// The logs, at most [`crate::limits::REBUILD_LOGS_MAX`].
        pub logs: Vec<LogId>,
    }
}

wire_struct! {
    /// The end of a virtual log of a lost broker.
    #[derive(Copy)]
    pub struct UsedEnd {
        /// The log.
        pub log: LogId,
        /// Its last block; 0: it has none.
        pub end: u64,
    }
}

wire_struct! {
    /// A broker is about to open streamlets of lost brokers with what these logs have up to their ends. When it is answered these ends are not
    /// taken back any more. Refused if one of them is another one by now: the broker asks again what the lanes had.
    pub struct UseEnds {
        /// The broker.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// The ends, at most [`crate::limits::USED_ENDS_MAX`].
        pub ends: Vec<UsedEnd>,
    }
}

versioned_messages! {
    JoinCluster, 1 JoinClusterV1 => JoinedCluster;
    NodeAlive, 1 NodeAliveV1 => NodeHeard;
    StreamletsRebuilt, 1 StreamletsRebuiltV1 => crate::Empty;
}
versioned_responses! { ClusterDescription, 1 ClusterDescriptionV1; }
messages! {
    RaftVote => RaftVoted;
    RaftAppend => RaftAppended;
    RaftSnapshot => RaftSnapshotTaken;
    ForwardCommand => ForwardedCommand;
    DescribeCluster => ClusterDescription;
    ChangeLog => crate::Empty;
    RebuildNeeds => crate::Empty;
    UseEnds => crate::Empty;
}
responses!(RaftVoted, RaftAppended, RaftSnapshotTaken, ForwardedCommand, JoinedCluster, NodeHeard);
