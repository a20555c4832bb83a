//! A stream: M streamlets that are made when they are first used, and the options they share.

use std::sync::Arc;

use kera_format::{StreamId, StreamOptions, StreamletId};

use crate::streamlet::Streamlet;

/// A stream of this node.
pub struct Stream {}

impl Stream {
    /// Its id.
    pub fn id(&self) -> StreamId {
        todo!()
    }
    /// Its options as of now.
    pub fn options(&self) -> Arc<StreamOptions> {
        todo!()
    }
    /// Whether it was deleted since this handle was taken.
    pub fn is_deleted(&self) -> bool {
        todo!()
    }
    /// A streamlet, made if it was never used; `None` if the stream has no such streamlet.
    pub fn streamlet(&self, id: StreamletId) -> Option<&Arc<Streamlet>> {
        let _ = id;
        todo!()
    }
    /// The streamlets that were ever used.
    pub fn streamlets(&self) -> impl Iterator<Item = &Arc<Streamlet>> {
        std::iter::empty()
    }
}
