//! Where closed segments go: the seam to the persistence manager (thesis 7.2.1), which is in [`crate::store`].

use std::io;
use std::sync::Arc;

use kera_env::AlignedBuffer;
use kera_format::container::ContainerEntry;
use kera_format::segment::{SegmentHeader, SegmentProgress};
use kera_format::{LaneId, SegmentId, StreamId, StreamletId};

use crate::producers::ProducerMark;
use crate::recovery::{RestoreError, Restored};
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
    /// It is not known who wrote it: its index was lost, and what is left of its image does not tell; or more producers than a lane remembers wrote later.
    pub lacks_marks: bool,
}

/// Takes the bytes of large segments while they are open, so that they go to disk once (decision 0009).
pub trait WriteThrough: Send + Sync {
    /// Room for a whole segment of which nothing is durable yet. `None`: not for this one, it is too small, too many others
    /// are written so, or no disk has room. Called by the writer of a virtual log, without locks; blocks on the disk.
    fn begin(&self, segment: &Segment) -> Option<Box<dyn Extent>>;

    /// A start has met the first chunk of a segment in a virtual log, and `restored` is what became of it: gives the chunks
    /// that an extent has of this segment to `restore`, if there is one and they are needed. Returns how many it gave; `None`: there is no
    /// extent.
    fn replay(
        &self,
        id: SegmentId,
        restored: Restored,
        restore: &mut dyn FnMut(&[u8]) -> Result<Restored, RestoreError>,
    ) -> Result<Option<u64>, ReplayExtentError>;

    /// A start has met the beginning of a segment in a virtual log, and nothing else of it: it was dropped in an earlier life, and what was put
    /// back of it is to go again.
    fn gone(&self, id: SegmentId);
}

/// Why what an extent has of a segment could not be put back.
#[derive(Debug, thiserror::Error)]
pub enum ReplayExtentError {
    /// It cannot be read.
    #[error("segment {id} was written straight to {place}, and cannot be read there: {error}")]
    Unreadable {
        /// The segment.
        id: SegmentId,
        /// The container and where in it.
        place: String,
        /// What the disk said, or what is wrong with the bytes.
        error: String,
    },
    /// The log did not take it.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

/// Room on disk for one segment: its bytes go there in order, or it is given up and the rest goes elsewhere.
pub trait Extent: Send {
    /// Writes what has not been written yet of the segment's bytes up to `to`, at most its head. After an error the extent
    /// must be given up.
    fn write(&mut self, segment: &Segment, to: u32) -> io::Result<()>;

    /// Makes what was written survive a power cut. After an error the extent must be given up.
    fn sync(&mut self) -> io::Result<()>;

    /// Nothing more comes. What was synced stays until the segment is stored elsewhere.
    fn give_up(self: Box<Self>);
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

    /// The image of a segment at a place, in whole pages, not verified. Blocks on the disk, and on nothing that calls the log.
    fn read_image(&self, at: Location) -> io::Result<AlignedBuffer> {
        let _ = at;
        Err(io::Error::other("segments are not kept on disks"))
    }

    /// Writes the image of a segment, in whole pages, that takes the place of what is at `was`, to the disk of that or to another one, and syncs it: after `Ok` it survives a
    /// power cut. The log is not told. On the calling thread, without locks.
    fn write_again(&self, entry: ContainerEntry, image: &AlignedBuffer, was: Location) -> io::Result<Location> {
        let _ = (entry, image, was);
        Err(io::Error::other("segments are not kept on disks"))
    }

    /// What is at a place is lost, and others are to rebuild what the node has of it: its next start is to know that. Blocks.
    fn note_lost(&self, at: Location) -> io::Result<()> {
        let _ = at;
        Ok(())
    }

    /// A segment is in memory again that the store has not loaded: it can be evicted. Called without locks.
    fn came_back(&self, segment: &Arc<Segment>) {
        let _ = segment;
    }

    /// The stream no longer has this segment: give the disk space back. Called without locks.
    fn release(&self, id: SegmentId, at: Location);

    /// The stream no longer has this segment, and it was never stored. Called without locks.
    fn dropped(&self, id: SegmentId) {
        let _ = id;
    }

    /// A reader has begun this closed segment: where it is now, and that it will want what follows. A hint for eviction and
    /// read-ahead, given once for each reader and segment. Called without locks, often: must be quick.
    fn reading(&self, id: SegmentId) {
        let _ = id;
    }

    /// The node has let go of all of a lane in front of an ordinal: retention has taken it, or it was deleted. To be known to the next life, if it can be.
    /// Called without locks, often: must be quick.
    fn let_go(&self, stream: StreamId, streamlet: StreamletId, lane: LaneId, ordinal: u64) {
        let _ = (stream, streamlet, lane, ordinal);
    }

    /// Whether a place could not be read that tells of segments, so that there may be some of any lane which a later start finds. As of the start.
    fn lacks_some(&self) -> bool {
        false
    }
}
