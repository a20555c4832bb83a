//! A streamlet: the user's logical partition, Q lanes that are made when they are first used.

use std::sync::Arc;

use kera_format::{LaneId, ProducerId, StreamletId};

use crate::lane::Lane;

/// A streamlet of a stream.
pub struct Streamlet {}

impl Streamlet {
    /// Its number in the stream.
    pub fn id(&self) -> StreamletId {
        todo!()
    }
    /// A lane, made if it was never used; `None` if the streamlet has no such lane.
    pub fn lane(&self, lane: LaneId) -> Option<&Arc<Lane>> {
        let _ = lane;
        todo!()
    }
    /// The lane of a producer: its id modulo Q.
    pub fn lane_of(&self, producer: ProducerId) -> &Arc<Lane> {
        let _ = producer;
        todo!()
    }
    /// The lanes that were ever used.
    pub fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        std::iter::empty()
    }
}
