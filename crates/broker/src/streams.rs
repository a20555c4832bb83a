//! The streams a session used last, so that a chunk finds its lane without touching the log's map of streams, which all
//! threads share.

use std::sync::Arc;

use kera_format::{LaneId, StreamId, StreamletId};
use kera_log::{Lane, Log, Stream, Streamlet};
use kera_protocol::Status;

use crate::broker::Broker;
use crate::failure::Failure;

/// Streams that a session remembers. A producer's connection rarely writes to more.
const KEPT: usize = 8;

/// The last streams of one session, the most recent first. Deleted ones are forgotten when they are met.
#[derive(Default)]
pub(crate) struct StreamCache {
    kept: Vec<Arc<Stream>>,
}

impl StreamCache {
    /// The stream, if it exists and is not deleted.
    #[inline]
    pub(crate) fn get(&mut self, log: &Log, id: StreamId) -> Option<&Arc<Stream>> {
        match self.kept.first() {
            Some(first) if first.id() == id && !first.is_deleted() => {}
            _ => self.bring_to_front(log, id)?,
        }
        self.kept.first()
    }

    fn bring_to_front(&mut self, log: &Log, id: StreamId) -> Option<()> {
        self.kept.retain(|stream| !stream.is_deleted());
        if let Some(at) = self.kept.iter().position(|stream| stream.id() == id) {
            self.kept[..=at].rotate_right(1);
            return Some(());
        }
        let stream = log.stream(id)?;
        self.kept.truncate(KEPT - 1);
        self.kept.insert(0, stream);
        Some(())
    }

    /// The streamlet, or which of the two ids is wrong.
    pub(crate) fn streamlet(
        &mut self,
        broker: &Broker,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<&Arc<Streamlet>, Failure> {
        let stream = self.get(&broker.log, stream).ok_or_else(|| broker.unknown_stream(stream))?;
        stream
            .streamlet(streamlet)
            .ok_or_else(|| Failure::unknown_streamlet(stream.id(), streamlet, stream.options().streamlets))
    }

    /// The lane, or which of the three ids is wrong.
    pub(crate) fn lane(
        &mut self,
        broker: &Broker,
        stream: StreamId,
        streamlet: StreamletId,
        lane: LaneId,
    ) -> Result<&Arc<Lane>, Failure> {
        self.streamlet(broker, stream, streamlet)?.lane(lane).ok_or_else(|| {
            let message = format!("lane is {lane}, streamlet {streamlet} of stream {stream} does not have it");
            Failure::new(Status::UnknownLane, message)
        })
    }
}
