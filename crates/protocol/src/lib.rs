//! The native protocol: frames, operations with their version ranges, messages, status codes.
//!
//! Clients and roles meet only here. Everything is plain data: no sockets, no clocks, no locks, so it may be called on
//! any thread. Nothing in here panics on bytes from outside, and no count from outside takes memory before it is known
//! to fit into the bytes that are there. `docs/protocol.md` describes every operation, `spec/` holds the golden bytes.
//!
//! A frame is a [`FrameHeader`] of 24 bytes and a body. The bodies of most operations are written field by field
//! ([`codec`]); those on the hot path ([`mod@write`], [`read`]) have fixed layouts whose parts are multiples of 8 bytes, so
//! that chunks stay aligned, are used in place, and are sent without being copied.
//!
//! ```
//! use kera_protocol::{encode_request, frame, Body, FrameHeader, Hello, Message};
//!
//! let hello = Hello { client_name: "docs".into(), client_version: "0".into() };
//! let mut bytes = Vec::new();
//! encode_request(&hello, 1, 7, &mut bytes);
//!
//! let header = FrameHeader::parse(&bytes, frame::FRAME_BYTES_MAX)?;
//! assert_eq!((header.op, header.correlation), (Hello::OP as u16, 7));
//! assert_eq!(Hello::decode(header.version, &bytes[frame::FRAME_HEADER_BYTES..])?, hello);
//! # Ok::<(), kera_protocol::ProtocolError>(())
//! ```

pub mod admin;
pub mod application;
mod balance;
pub mod cluster;
pub mod codec;
mod error;
pub mod first;
pub mod frame;
pub mod groups;
pub mod hello;
pub mod limits;
mod lost;
mod message;
mod moves;
pub mod node;
mod op;
pub mod placement;
pub mod read;
pub mod replication;
pub mod second;
pub mod spec;
pub mod stats;
mod status;
pub mod transactions;
pub mod write;

pub use admin::{
    AllocateProducer, AllocatedProducer, AlterStream, CreateStream, DeleteStream, GetStream, ListStreams,
    StreamChanges, StreamInfo, StreamList, StreamRef,
};
pub use application::{
    AfterCommit, ApplicationDescription, ApplicationList, ApplicationState, ApplicationSummary, CommitEntry,
    CommitOffsets, CommitResult, CommittedOffset, CommittedOffsets, DeleteApplication, DescribeApplication,
    FetchOffsets, Heartbeat, HeartbeatResponse, JoinApplication, JoinedApplication, LaneProgress, LeaseInfo,
    LeaveApplication, ListApplications, MemberInfo, ResetOffsets,
};
pub use balance::{BalancePlan, NodeLoad, PlanBalance, PlannedMove, PlannedNode, StreamletLoad};
pub use cluster::{
    ChangeLog, ClusterDescription, DescribeCluster, ForwardCommand, ForwardedCommand, JoinCluster, JoinedCluster,
    LogChange, MemberNode, NodeAlive, NodeHeard, RaftAppend, RaftAppended, RaftBallot, RaftOutcome, RaftSnapshot,
    RaftSnapshotTaken, RaftVote, RaftVoted, RebuildNeeds, RebuildRange, SharedSetting, StreamletsRebuilt, UseEnds,
    UsedEnd,
};
pub use error::{ErrorBody, ProtocolError};
pub use frame::{FRAME_HEADER_BYTES, FrameHeader};
pub use groups::{
    AvailableGroups, AvailableSegments, GroupInfo, GroupList, LeasedGroup, LeasedGroups, NextGroups, NextSegments,
    SegmentInfo, SegmentList, SegmentPlace,
};
pub use hello::{Hello, HelloResponse, OpRange};
pub use lost::{
    AcceptLogLoss, AcceptStreamletLoss, DescribeLostLogs, LostLog, LostLogs, MissingBlocks, StreamletRange,
};
pub use message::{Body, Empty, Message, encode_error, encode_push, encode_request, encode_response};
pub use moves::{
    AcceptLoss, ChangeNode, CopiesMade, CopyChange, CopyChanges, DescribeCopyChanges, DescribeMoves, FinishMove,
    GiveBack, GroupsGone, GroupsOffered, HeldGroups, LaneFloor, LetGo, LetGone, MoveInfo, MovePlan, MoveStreamlet,
    MovesDescription, NodeChange, NodeHoldings, OfferGroups, PlanRebalance, RenewOwner, ReturnGroups, SetFloors,
    WholeLane,
};
pub use node::{
    CopiesDescription, DescribeCopies, DescribeLogs, DiskStatus, LogsDescription, NodeStatus, NodeStatusResponse,
    OwnLog, Role,
};
pub use op::Op;
pub use placement::{
    FindOwners, NodeInfo, OlderGroups, Owner, OwnerRun, Owners, StreamOwners, StreamletState, StreamletsTold,
};
pub use read::{
    Credit, ReadAnswer, ReadChunks, ReadChunksResponse, ReadChunksView, ReadEntry, Start, Subscribe, Subscribed,
    Unsubscribe,
};
pub use replication::{
    BlockHead, BlockRange, BlockStored, BlocksRead, BlocksReleased, FenceNode, LaneStateList, LaneStates, ListReplicas,
    LogEnd, LogView, NodeFenced, ProducerPlace, ReadBlocks, ReleaseBlocks, ReplicaInfo, ReplicaList, ReplicatedLane,
    SegmentPart, StoreBlock, StoreHead, StoreOutcome, StreamletRef,
};
pub use stats::{LaneStats, Lookup, LookupResult, StreamStats, StreamStatsResponse};
pub use status::{NO_MAJORITY, Status};
pub use transactions::{
    AbortedRecords, ClaimGroup, ClaimPartition, EndInGroup, EndInPartitions, EndedPartition, GroupClaimed, GroupEnded,
    OpenTransaction, OwnedStreamlet, PartitionClaimed, PartitionEnded, PartitionsEnded, TransactionsHeld,
    TransactionsIn,
};
pub use write::{ChunkResult, ChunkResults, WriteChunks, WriteChunksResponse, WriteChunksView};
