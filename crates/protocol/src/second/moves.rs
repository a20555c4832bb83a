//! Of [`crate::moves`]: what a node that came back offers, before it said whether it had cut nothing.

use kera_format::{LaneId, StreamId, StreamletId};

use crate::codec::wire_struct;
use crate::first::bodies;
use crate::{OfferGroups, WholeLane};

wire_struct! {
    /// [`OfferGroups`], version 2.
    pub struct OfferGroupsV2 {
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
        /// What it has cut off behind that and could take up again.
        pub cut_off: Vec<WholeLane>,
        /// Lanes of which it has let go itself of all that was in front.
        pub let_go: Vec<LaneId>,
    }
}

impl From<&OfferGroups> for OfferGroupsV2 {
    fn from(current: &OfferGroups) -> OfferGroupsV2 {
        let OfferGroups { node, epoch, stream, streamlet, owner_epoch, .. } = *current;
        let (lanes, cut_off, let_go) = (current.lanes.clone(), current.cut_off.clone(), current.let_go.clone());
        OfferGroupsV2 { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go }
    }
}

impl From<OfferGroupsV2> for OfferGroups {
    fn from(second: OfferGroupsV2) -> OfferGroups {
        let OfferGroupsV2 { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go } = second;
        OfferGroups { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go, is_uncut: false }
    }
}

bodies!(OfferGroupsV2);
