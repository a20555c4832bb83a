//! Of [`crate::moves`]: what a node that came back offers, before it kept what it has cut off; copies that are made, before it was said in which
//! owner epoch; and what is given back, before its owner kept anything of it.

use kera_format::{StreamId, StreamletId};

use super::bodies;
use crate::codec::wire_struct;
use crate::{CopiesMade, GiveBack, GroupsOffered, OfferGroups, WholeLane};

wire_struct! {
    /// [`OfferGroups`], version 1.
    pub struct OfferGroupsV1 {
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
    }
}

impl From<&OfferGroups> for OfferGroupsV1 {
    fn from(current: &OfferGroups) -> OfferGroupsV1 {
        let OfferGroups { node, epoch, stream, streamlet, owner_epoch, .. } = *current;
        OfferGroupsV1 { node, epoch, stream, streamlet, owner_epoch, lanes: current.lanes.clone() }
    }
}

impl From<OfferGroupsV1> for OfferGroups {
    fn from(first: OfferGroupsV1) -> OfferGroups {
        let OfferGroupsV1 { node, epoch, stream, streamlet, owner_epoch, lanes } = first;
        let (cut_off, let_go, is_uncut) = (Vec::new(), Vec::new(), false);
        OfferGroups { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go, is_uncut }
    }
}

wire_struct! {
    /// [`GroupsOffered`], version 1.
    #[derive(Copy)]
    pub struct GroupsOfferedV1 {
        /// Whether the node holds the groups.
        pub is_taken: bool,
    }
}

impl From<&GroupsOffered> for GroupsOfferedV1 {
    fn from(current: &GroupsOffered) -> GroupsOfferedV1 {
        GroupsOfferedV1 { is_taken: current.is_taken }
    }
}

impl From<GroupsOfferedV1> for GroupsOffered {
    fn from(first: GroupsOfferedV1) -> GroupsOffered {
        GroupsOffered { is_taken: first.is_taken, lacking: Vec::new() }
    }
}

wire_struct! {
    /// [`CopiesMade`], version 1.
    pub struct CopiesMadeV1 {
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
        /// With a move what [`FinishMove`](crate::FinishMove) has of the state.
        pub state: Vec<u8>,
    }
}

impl From<&CopiesMade> for CopiesMadeV1 {
    fn from(current: &CopiesMade) -> CopiesMadeV1 {
        let CopiesMade { node, epoch, stream, streamlet, copies, number, .. } = *current;
        CopiesMadeV1 { node, epoch, stream, streamlet, copies, number, state: current.state.clone() }
    }
}

impl From<CopiesMadeV1> for CopiesMade {
    fn from(first: CopiesMadeV1) -> CopiesMade {
        let CopiesMadeV1 { node, epoch, stream, streamlet, copies, number, state } = first;
        CopiesMade { node, epoch, stream, streamlet, copies, number, state, owner_epoch: 0 }
    }
}

wire_struct! {
    /// [`GiveBack`], version 1.
    #[derive(Copy)]
    pub struct GiveBackV1 {
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
    }
}

impl From<&GiveBack> for GiveBackV1 {
    fn from(current: &GiveBack) -> GiveBackV1 {
        let GiveBack { node, epoch, stream, streamlet, owner_epoch, to, to_epoch, .. } = *current;
        GiveBackV1 { node, epoch, stream, streamlet, owner_epoch, to, to_epoch }
    }
}

impl From<GiveBackV1> for GiveBack {
    fn from(first: GiveBackV1) -> GiveBack {
        let GiveBackV1 { node, epoch, stream, streamlet, owner_epoch, to, to_epoch } = first;
        GiveBack { node, epoch, stream, streamlet, owner_epoch, to, to_epoch, keeps: Vec::new() }
    }
}

bodies!(OfferGroupsV1, GroupsOfferedV1, CopiesMadeV1, GiveBackV1);
