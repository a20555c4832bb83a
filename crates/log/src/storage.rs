//! Where closed segments go: the seam to the persistence manager (thesis 7.2.1), which is in [`crate::store`].

use std::sync::Arc;

use kera_format::SegmentId;
use kera_format::segment::{SegmentHeader, SegmentProgress};

use crate::producers::ProducerMark;
use crate::segment::Segment;

/// Where a segment's image is on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Location {
    /// Which of the node's disks.
    pub disk: u16,
    /// Which container file on it.
    pub container: u64,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes of the image: header and chunks, without padding.
    pub bytes: u64,
}

/// A segment that was found on disk at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSegment {
    /// The half of its header that never changes.
    pub header: SegmentHeader,
    /// The other half: closed, and all durable.
    pub progress: SegmentProgress,
    /// Where it is.
    pub at: Location,
    /// What [`Segment::producer_marks`] gave when it was written. Empty is allowed: then a producer whose last chunks are in
    /// it is taken for one that was not seen for long.
    pub producers: Vec<ProducerMark>,
}

/// Keeps closed segments on disk. Calls come from any thread.
pub trait SegmentStore: Send + Sync {
    /// A segment is closed and fully durable: it may be written, then [`crate::Log::persisted`] is called. Called once for
    /// each segment, in the order of a lane, under the lane's lock: only enqueue, do not call the log.
    fn closed(&self, segment: Arc<Segment>);

    /// The arena has no room for a writer: give back about `bytes` with [`crate::Log::evict`], soon. Called without locks, as
    /// often as writers fail.
    fn want_space(&self, bytes: u64);

    /// A reader needs a segment that is only on disk. Ends with exactly one [`crate::Log::loaded`] or
    /// [`crate::Log::load_failed`]; not called again for that segment before. Called without locks.
    fn load(&self, id: SegmentId, at: Location);

    /// The stream no longer has this segment: give the disk space back. Called without locks.
    fn release(&self, id: SegmentId, at: Location);

    /// A reader has begun this closed segment: where it is now, and that it will want what follows. A hint for eviction and
    /// read-ahead, given once for each reader and segment. Called without locks, often: must be quick.
    fn reading(&self, id: SegmentId) {
        let _ = id;
    }
}
