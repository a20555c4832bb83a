//! Streamlets that move from broker to broker because somebody asks for it: one of them, all of a node, or some to even out
//! the nodes; and what the two brokers and the coordinators say to each other meanwhile (`docs/replication.md`, "A streamlet moves").

use kera_format::{LaneId, StreamId, StreamletId};

use crate::StreamRef;
use crate::codec::{wire_enum, wire_struct};
use crate::first::moves::{CopiesMadeV1, GiveBackV1, GroupsOfferedV1, OfferGroupsV1};
use crate::message::{messages, responses, versioned_messages, versioned_responses};
use crate::second::moves::OfferGroupsV2;

wire_struct! {
    /// Has a streamlet move to another broker. Answered when that is noted; asked again it tells the same move.
    pub struct MoveStreamlet {
        /// Of which stream.
        pub stream: StreamRef,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Number of the broker that gets it.
        pub to: u32,
    }
}

wire_struct! {
    /// A move.
    #[derive(Copy)]
    pub struct MoveInfo {
        /// Its number; zero: there is none yet, or none is needed.
        pub number: u64,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Who has it.
        pub from: u32,
        /// Who gets it.
        pub to: u32,
    }
}

wire_struct! {
    /// The next owner asks the present one to let go of a streamlet: writes wait from then on.
    #[derive(Copy)]
    pub struct LetGo {
        /// Number of the move.
        pub number: u64,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
    }
}

wire_struct! {
    /// How far it is.
    pub struct LetGone {
        /// The streamlet's `StreamletState`, version 1; nothing: not all that was appended is acknowledged, ask again.
        pub state: Vec<u8>,
    }
}

wire_struct! {
    /// The next owner of a streamlet has what it needs, and asks the coordinators to make it the owner.
    pub struct FinishMove {
        /// Number of the move.
        pub number: u64,
        /// The node that gets the streamlet.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// What the coordinators keep of the state that was handed over, at most 64 KiB, from level 25 of the cluster on 512: a `StreamletState`, version 1.
        pub state: Vec<u8>,
    }
}

wire_enum! {
    /// What is to become of a node.
    pub enum NodeChange, "0 (drain), 1 (use again) or 2 (remove)" {
        /// Its streamlets go to others, and it gets none.
        Drain = 0 => "drain",
        /// It may own streamlets again.
        Use = 1 => "use",
        /// It is gone for good.
        Remove = 2 => "remove",
    }
}

wire_struct! {
    /// Changes what a node is there for.
    #[derive(Copy)]
    pub struct ChangeNode {
        /// Its number.
        pub node: u32,
        /// What becomes of it.
        pub change: NodeChange,
    }
}

wire_struct! {
    /// Asks for the moves that even out the brokers: those of [`crate::PlanBalance`], without what comes of them. Nothing is changed.
    #[derive(Copy)]
    pub struct PlanRebalance {
        /// Most moves in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// Moves that would do it, the most useful first.
    pub struct MovePlan {
        /// Them, without numbers.
        pub moves: Vec<MoveInfo>,
    }
}

wire_struct! {
    /// Groups of one owner epoch of neighbouring streamlets.
    #[derive(Copy)]
    pub struct HeldGroups {
        /// Of which stream.
        pub stream: StreamId,
        /// The first streamlet.
        pub first: u32,
        /// How many.
        pub count: u32,
        /// The owner epoch in the ids of the groups.
        pub owner_epoch: u32,
    }
}

wire_struct! {
    /// A node has no group any more of those that it held for others.
    pub struct GroupsGone {
        /// The node.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Which groups.
        pub groups: Vec<HeldGroups>,
    }
}

wire_struct! {
    /// The owner of a streamlet asks for a move of it to itself, so that it begins a new owner epoch with all that was before it acknowledged,
    /// and can go on in another virtual log. Answered when that is noted; asked again it tells the same move.
    #[derive(Copy)]
    pub struct RenewOwner {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// The owner.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
    }
}

wire_struct! {
    /// Where a lane begins.
    #[derive(Copy)]
    pub struct LaneFloor {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Which lane of it.
        pub lane: LaneId,
        /// The owner epoch in which the streamlet's owner says so.
        pub owner_epoch: u32,
        /// The ordinal of the first record that is there.
        pub ordinal: u64,
    }
}

wire_struct! {
    /// Owners say where lanes begin whose records were deleted, so that it goes with the streamlets to whoever owns them next. Those that have
    /// another owner epoch by now are left out: whoever asks sees in the coordinators' log what has become of them.
    pub struct SetFloors {
        /// The lanes, at most [`crate::limits::FLOORS_MAX`].
        pub floors: Vec<LaneFloor>,
    }
}

wire_struct! {
    /// Asks which streamlets move, and what is left at which node.
    #[derive(Copy)]
    pub struct DescribeMoves {
        /// Most moves in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// What a node has.
    #[derive(Copy)]
    pub struct NodeHoldings {
        /// The node.
        pub node: u32,
        /// Whether it is to own nothing.
        pub draining: bool,
        /// Streamlets that it owns.
        pub streamlets: u64,
        /// Streamlets that others own and of which it has older groups.
        pub held: u64,
        /// Virtual logs of it that are kept.
        pub logs: u64,
    }
}

wire_struct! {
    /// Which streamlets move, and what is left at which node.
    pub struct MovesDescription {
        /// Moves under way, by number.
        pub moves: Vec<MoveInfo>,
        /// How many there are.
        pub under_way: u64,
        /// All nodes.
        pub nodes: Vec<NodeHoldings>,
    }
}

wire_struct! {
    /// A person says that what only a lost node had of a streamlet is gone: it goes on, empty, at another broker.
    pub struct AcceptLoss {
        /// Of which stream.
        pub stream: StreamRef,
        /// Which streamlet.
        pub streamlet: StreamletId,
    }
}

wire_struct! {
    /// What a node has of a lane, without a hole.
    #[derive(Copy)]
    pub struct WholeLane {
        /// The lane.
        pub lane: LaneId,
        /// Ordinal of the first record.
        pub first_ordinal: u64,
        /// Ordinal of the record after the last.
        pub next_ordinal: u64,
    }
}

wire_struct! {
    /// A node that has come back tells the owner that rebuilds a streamlet what it has of it itself. Answered when the coordinators know that
    /// the node holds it, or never will; `NotReady` if that is not known yet.
    pub struct OfferGroups {
        /// The node.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// The owner epoch of who is asked.
        pub owner_epoch: u32,
        /// What the node has of its lanes, those that have records.
        pub lanes: Vec<WholeLane>,
        /// What it has cut off behind that and could take up again: what its log had under way when it was lost.
        pub cut_off: Vec<WholeLane>,
        /// Lanes of which it has let go itself of all that was in front: retention took it, or it was deleted.
        pub let_go: Vec<LaneId>,
        /// Whether the start of this life of it has cut nothing of the streamlet, of no lane, that of progress included: what the life before had appended is all there. False also if it does not say.
        pub is_uncut: bool,
    }
}

wire_struct! {
    /// What has become of an offer.
    pub struct GroupsOffered {
        /// Whether the node holds the groups. If not, and nothing is `lacking`, it never does for this owner epoch: it has not all, or its logs have
        /// not the copies.
        pub is_taken: bool,
        /// All that it lacks of lanes is what it has cut off: from where to where. It takes that up again, and offers all once more.
        pub lacking: Vec<WholeLane>,
    }
}

wire_struct! {
    /// The owner that rebuilds a streamlet asks the coordinators to have a node hold all older groups of it, which has come back with them.
    pub struct ReturnGroups {
        /// The owner.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// The owner epoch.
        pub owner_epoch: u32,
        /// The node that has the groups.
        pub holder: u32,
        /// Its epoch.
        pub holder_epoch: u32,
        /// What the coordinators keep of the state of the lanes when the owner took the streamlet over, at most 64 KiB, from level 25 of the cluster on 512: a `StreamletState`, version 1.
        /// It has no groups, but one of them from level 25 on if the owner has written to the streamlet in earlier owner epochs: the first one of the earliest of these. It stays with the owner, with
        /// all that is later, and is not kept.
        pub state: Vec<u8>,
    }
}

wire_struct! {
    /// Who has taken a streamlet over, and cannot open it because what it would have to read is with nobody who is there, asks the coordinators to give it back to the
    /// node that it came from, which has come back with all of it. From then on the asker does not open it in that owner epoch.
    pub struct GiveBack {
        /// Who has taken it over.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// The owner epoch in which it is not opened.
        pub owner_epoch: u32,
        /// Who gets it.
        pub to: u32,
        /// The epoch in which that node has come back.
        pub to_epoch: u32,
        /// The owner epochs of older groups that the asker held before it took the streamlet over, as the table of owners tells them apart: these groups stay with it. None below level 26 of the cluster.
        pub keeps: Vec<u32>,
    }
}

wire_struct! {
    /// A node has made as many copies as are wanted of what it holds of a streamlet; or, with the end of a move of it to itself, of all that it owns: with
    /// that the streamlet has them.
    pub struct CopiesMade {
        /// The node.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// How many, the owner's included.
        pub copies: u32,
        /// Number of the move; zero: it holds older groups.
        pub number: u64,
        /// With a move what [`FinishMove`] has of the state.
        pub state: Vec<u8>,
        /// The owner epoch of the streamlet before the node looked whether all that it holds has been copied: in a later one it may hold more. Zero: it does not
        /// say, being of an earlier version.
        pub owner_epoch: u32,
    }
}

wire_struct! {
    /// Asks which streams are about to have another number of copies.
    #[derive(Copy)]
    pub struct DescribeCopyChanges {
        /// Most streams in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// A stream that is to have another number of copies.
    pub struct CopyChange {
        /// Which stream.
        pub stream: StreamId,
        /// Its name.
        pub name: String,
        /// How many copies it had, owners' included.
        pub copies: u32,
        /// How many it is to have.
        pub wanted: u32,
        /// Its streamlets.
        pub streamlets: u32,
        /// Those that have them.
        pub there: u32,
        /// Lost nodes that have something of the others: nothing becomes of these before they are back.
        pub waits_for: Vec<u32>,
    }
}

wire_struct! {
    /// How far they are.
    pub struct CopyChanges {
        /// The streams, by number.
        pub changes: Vec<CopyChange>,
        /// Whether there are more.
        pub more: bool,
    }
}

messages! {
    MoveStreamlet => MoveInfo;
    LetGo => LetGone;
    FinishMove => crate::Empty;
    ChangeNode => crate::Empty;
    PlanRebalance => MovePlan;
    GroupsGone => crate::Empty;
    RenewOwner => MoveInfo;
    SetFloors => crate::Empty;
    DescribeMoves => MovesDescription;
    AcceptLoss => crate::Empty;
    ReturnGroups => crate::Empty;
    DescribeCopyChanges => CopyChanges;
}
versioned_messages! {
    OfferGroups, 1 OfferGroupsV1, 2 OfferGroupsV2 => GroupsOffered;
    CopiesMade, 1 CopiesMadeV1 => crate::Empty;
    GiveBack, 1 GiveBackV1 => crate::Empty;
}
responses!(MoveInfo, LetGone, MovePlan, MovesDescription, CopyChanges,);
versioned_responses! { GroupsOffered, 1 GroupsOfferedV1; }
