//! The operations, their numbers and the versions spoken here.

use std::ops::RangeInclusive;

use kera_format::level;

use crate::ProtocolError;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $min:literal..=$max:literal;)+) => {
        /// An operation. The numbers are never used again for something else.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Op {
            $($(#[$doc])* $name = $number),+
        }

        impl Op {
            /// All operations, by number.
            pub const ALL: &'static [Op] = &[$(Op::$name),+];

            /// From the number in a frame.
            #[inline]
            pub fn from_u16(number: u16) -> Option<Op> {
                match number {
                    $($number => Some(Op::$name),)+
                    _ => None,
                }
            }

            /// Its name in documents, logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name)),+ }
            }

            /// The versions of it that there are.
            #[inline]
            fn known(self) -> RangeInclusive<u8> {
                match self { $(Op::$name => $min..=$max),+ }
            }
        }
    };
}

ops! {
    /// The first frame of a connection: who is there, what is spoken.
    Hello = 1, 1..=1;
    /// Makes a stream.
    CreateStream = 10, 1..=3;
    /// Finds a stream by name or id.
    GetStream = 11, 1..=3;
    /// Lists streams.
    ListStreams = 12, 1..=3;
    /// Changes options of a stream.
    AlterStream = 13, 1..=3;
    /// Deletes a stream and all of its data.
    DeleteStream = 14, 1..=1;
    /// Gives a producer its id, or the next epoch of an id it has.
    AllocateProducer = 15, 1..=1;
    /// Tells who owns which streamlet, and where the nodes are.
    FindOwners = 16, 1..=1;
    /// Appends chunks of any streams and streamlets.
    WriteChunks = 30, 1..=2;
    /// Reads chunks of any lanes; waits for some if there are none.
    ReadChunks = 31, 1..=1;
    /// Has chunks of lanes pushed as they become readable.
    Subscribe = 32, 1..=1;
    /// Lets a subscription push more bytes.
    Credit = 33, 1..=1;
    /// Ends a subscription.
    Unsubscribe = 34, 1..=1;
    /// Leases groups to a member of an application.
    NextGroups = 35, 1..=1;
    /// Lists the segments of a group after one; waits for the next.
    NextSegments = 36, 1..=1;
    /// Lists the groups of a streamlet.
    AvailableGroups = 37, 1..=1;
    /// Lists the segments of a group.
    AvailableSegments = 38, 1..=1;
    /// Finds where in a lane an ordinal or a time is.
    Lookup = 39, 1..=1;
    /// Tells how much is in each lane of a stream.
    StreamStats = 40, 1..=1;
    /// Makes a consumer a member of an application.
    JoinApplication = 50, 1..=2;
    /// Keeps a member and its leases alive.
    Heartbeat = 51, 1..=1;
    /// Stores how far an application has read.
    CommitOffsets = 52, 1..=1;
    /// Tells how far an application has read.
    FetchOffsets = 53, 1..=1;
    /// Gives all leases of a member back.
    LeaveApplication = 54, 1..=1;
    /// Lists applications.
    ListApplications = 55, 1..=1;
    /// Tells an application's members, leases and lag.
    DescribeApplication = 56, 1..=1;
    /// Forgets an application and what it has read.
    DeleteApplication = 57, 1..=1;
    /// Sets how far an application has read.
    ResetOffsets = 58, 1..=1;
    /// Tells how the node is.
    NodeStatus = 70, 1..=1;
    /// Tells how a node's copies on other nodes are, and what it keeps for others.
    DescribeCopies = 71, 1..=2;
    /// Tells which streamlets of a node have virtual logs of their own.
    DescribeLogs = 72, 1..=1;
    /// Asks a coordinator for its vote.
    RaftVote = 80, 1..=1;
    /// Gives entries of the coordinators' log to a node that follows.
    RaftAppend = 81, 1..=1;
    /// Gives a part of a snapshot to a node that is far behind.
    RaftSnapshot = 82, 1..=1;
    /// Hands a request on to the leader of the coordinators.
    ForwardCommand = 83, 1..=1;
    /// Makes a node part of the cluster.
    JoinCluster = 84, 1..=2;
    /// Tells the leader of the coordinators that a node lives.
    NodeAlive = 85, 1..=2;
    /// Tells how the cluster is.
    DescribeCluster = 86, 1..=2;
    /// Asks for another view of a virtual log, or gives it up.
    ChangeLog = 87, 1..=1;
    /// Tells that a broker has rebuilt what lost brokers had.
    StreamletsRebuilt = 88, 1..=2;
    /// Says which logs of lost nodes a node needs for what it rebuilds.
    RebuildNeeds = 89, 1..=1;
    /// Stores a block of a virtual log at a backup.
    StoreBlock = 90, 1..=1;
    /// Has a backup take nothing from a node and epoch any more, and tell how far its logs are.
    FenceNode = 91, 1..=2;
    /// Lists the copies of virtual logs that a backup has.
    ListReplicas = 92, 1..=1;
    /// Tells the state of lanes as a copy of a virtual log has it.
    LaneStates = 93, 1..=3;
    /// Reads blocks of a copy of a virtual log.
    ReadBlocks = 94, 1..=1;
    /// Gives files of a copy of a virtual log back.
    ReleaseBlocks = 95, 1..=1;
    /// Has a streamlet move to another broker.
    MoveStreamlet = 100, 1..=1;
    /// Has the owner of a streamlet let go of it.
    LetGo = 101, 1..=1;
    /// Makes the node that a streamlet moves to its owner.
    FinishMove = 102, 1..=1;
    /// Has a node give up its streamlets, or the cluster give up a node.
    ChangeNode = 103, 1..=1;
    /// Tells which moves would even out the brokers.
    PlanRebalance = 104, 1..=1;
    /// Tells that groups which a node held for others are gone.
    GroupsGone = 105, 1..=1;
    /// Tells which streamlets move.
    DescribeMoves = 106, 1..=1;
    /// Gives up what only a lost node had of a streamlet.
    AcceptLoss = 107, 1..=1;
    /// Tells the owner of streamlets what a transaction coordinator knows of them.
    TransactionsIn = 108, 1..=1;
    /// Asks a transaction coordinator whether a producer may write to a partition.
    ClaimPartition = 109, 1..=1;
    /// Asks a transaction coordinator whether a producer may commit offsets of a group.
    ClaimGroup = 110, 1..=1;
    /// Has a streamlet begin a new owner epoch with the owner that it has.
    RenewOwner = 112, 1..=1;
    /// Has the coordinators keep where lanes begin whose records were deleted.
    SetFloors = 113, 1..=1;
    /// Writes the markers of a transaction to partitions.
    EndInPartitions = 115, 1..=1;
    /// Ends a transaction in a consumer group.
    EndInGroup = 116, 1..=1;
    /// Says with which ends of lost logs a node is about to open streamlets.
    UseEnds = 117, 1..=1;
    /// Offers older groups to the owner that rebuilds them.
    OfferGroups = 118, 1..=3;
    /// Has a node that came back hold older groups which their owner was rebuilding.
    ReturnGroups = 119, 1..=1;
    /// Tells of which logs of lost nodes blocks are missing.
    DescribeLostLogs = 120, 1..=1;
    /// Gives up blocks of a log of which no backup is left.
    AcceptLogLoss = 121, 1..=1;
    /// Tells that a node has made the copies that are wanted of a streamlet.
    CopiesMade = 122, 1..=2;
    /// Tells which streams are about to have another number of copies.
    DescribeCopyChanges = 123, 1..=1;
    /// Tells the leader of the coordinators what a broker takes.
    NodeLoad = 124, 1..=1;
    /// Tells which moves would even out the brokers, and what comes of them.
    PlanBalance = 125, 1..=1;
    /// Gives a streamlet that cannot be opened back to the node that has come back with it.
    GiveBack = 126, 1..=2;
    /// Has one streamlet go on without blocks of a lost log that nobody gives it.
    AcceptStreamletLoss = 127, 1..=1;
}

impl Op {
    /// With which [level] of a cluster a version of it came, so that one who [speaks](level::spoken) only lower ones does not know it. What
    /// two parties say to each other they agree on by themselves: a version may be used below its level.
    fn level(self, version: u8) -> u32 {
        match (self, version) {
            (Op::JoinCluster | Op::NodeAlive | Op::DescribeCluster, 2..) => 2,
            (Op::CreateStream | Op::GetStream | Op::ListStreams | Op::AlterStream, 3..) => level::SETTINGS,
            (Op::CreateStream | Op::GetStream | Op::ListStreams | Op::AlterStream, 2) => level::ASYNCHRONOUS,
            (Op::RenewOwner | Op::DescribeLogs, _) => level::SELF_MOVES,
            (Op::SetFloors, _) => level::AGREED_FLOORS,
            (Op::RebuildNeeds, _) => level::REBUILD_NEEDS,
            (Op::StreamletsRebuilt | Op::DescribeCopies, 2..) => level::REBUILT_IN,
            (Op::UseEnds, _) => level::USED_ENDS,
            (Op::LaneStates | Op::OfferGroups, 3..) => level::GIVEN_BACK_IN_PART,
            (Op::LaneStates, 2..) => level::COMPACTED_COPIES,
            (Op::OfferGroups | Op::FenceNode, 2..) => level::CHANGED_COPIES,
            (Op::OfferGroups | Op::ReturnGroups, _) => level::RETURNED_GROUPS,
            (Op::DescribeLostLogs | Op::AcceptLogLoss, _) => level::LOST_BLOCKS,
            (Op::CopiesMade, 2..) => level::COPIED_IN,
            (Op::CopiesMade | Op::DescribeCopyChanges, _) => level::CHANGED_COPIES,
            (Op::GiveBack, 2..) => level::GIVEN_BACK_IN_PART,
            (Op::GiveBack, _) => level::GIVEN_BACK,
            (Op::AcceptStreamletLoss, _) => level::LOST_FOR_ONE,
            (Op::WriteChunks, 2..) => level::SKIPPED_NUMBERS,
            (Op::JoinApplication, 2..) => level::LOST_ENDS,
            (Op::NodeLoad | Op::PlanBalance, _) => level::OWNED_UNTIL_TAKEN,
            (Op::TransactionsIn | Op::ClaimPartition | Op::ClaimGroup | Op::EndInPartitions | Op::EndInGroup, _) => 2,
            _ => level::FIRST,
        }
    }

    /// The versions of it that are spoken here; empty if it came with a level that is not.
    #[inline]
    pub fn versions(self) -> RangeInclusive<u8> {
        let known = self.known();
        let spoken = *level::spoken().end();
        if spoken == level::NEWEST {
            return known;
        }
        let highest = known.clone().rev().find(|version| self.level(*version) <= spoken);
        *known.start()..=highest.unwrap_or(0)
    }

    /// The highest version spoken here.
    pub fn version_max(self) -> u8 {
        *self.versions().end()
    }

    /// The highest version that every node of a cluster at this [level] speaks, of those that are spoken here.
    pub fn version_at(self, level: u32) -> u8 {
        let range = self.versions();
        range.clone().rev().find(|version| self.level(*version) <= level).unwrap_or(*range.start())
    }

    /// Refuses a version that is not spoken here.
    #[inline]
    pub fn check_version(self, version: u8) -> Result<(), ProtocolError> {
        let range = self.versions();
        if range.contains(&version) {
            return Ok(());
        }
        Err(ProtocolError::Version { op: self.name(), version, min: *range.start(), max: *range.end() })
    }

    /// The highest version that both sides speak, when the other one speaks `min` to `max`.
    pub fn common_version(self, min: u8, max: u8) -> Option<u8> {
        let range = self.versions();
        let version = max.min(*range.end());
        (version >= min && version >= *range.start()).then_some(version)
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
