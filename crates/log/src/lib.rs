//! The log of one node: streams of streamlets of lanes of groups of segments, in an arena of shared memory, with closed
//! segments moved to disk and back (thesis chapters 6 and 7).
//!
//! What a caller does, and where it is:
//!
//! | to | call |
//! | --- | --- |
//! | write | [`Lane::append`]; when the arena is full [`Log::wait_for_space`] |
//! | know when it is safe | [`Appended::ticket`] with [`Lane::sink`] |
//! | read | [`Lane::read`], and [`Lane::wait`] when there is nothing |
//! | find a place | [`Lane::lookup_ordinal`], [`Lane::lookup_time`], [`Lane::earliest`], [`Lane::latest`] |
//! | keep it small | [`Log::retain`], [`Log::close_idle`], [`Log::close_coldest`] from the maintenance thread |
//! | move a streamlet between nodes | [`Streamlet::let_go`], [`Streamlet::hand_over`], [`Streamlet::receive`], [`Streamlet::open`] |
//! | take the streamlets of a lost node | [`Streamlet::receive_lost`], [`Streamlet::open`], then [`Log::rebuild_chunk`] |
//! | start | [`Arena::create_or_attach`], [`Log::recover`], [`Log::restore_chunk`], [`Log::finish_recovery`] |
//!
//! Everything here may be called from any thread. Nothing here waits: what cannot be done now is an outcome with a way to
//! be called back. Time comes in as arguments; disks are behind [`SegmentStore`] and [`DurabilitySink`]; the arena's
//! shared memory is the only thing of the operating system that this crate touches itself (`arena::memory`).

#[cfg(target_endian = "big")]
compile_error!("segments are little-endian in shared memory: this machine would need a translation");

mod arena;
mod attach;
pub mod compact;
mod copy;
mod copying;
mod cut_off;
mod forget;
mod given_again;
mod group;
mod lane;
mod log;
mod lookup;
mod mend;
mod producer_room;
mod producers;
mod read;
mod rebuild;
mod recovery;
mod replay;
mod retention;
mod scrub;
mod segment;
mod shared;
mod sink;
mod spans;
mod storage;
pub mod store;
mod stream;
mod streamlet;
mod tenure;
mod visibility;
mod waiters;

pub use arena::{
    Arena, ArenaConfig, ArenaError, ArenaFull, ArenaStats, Attach, BYTES_MAX as ARENA_BYTES_MAX, LoadBuffer,
};
pub use attach::{AttachedSegment, Cut, SetAside};
pub use copying::CopiedAgain;
pub use cut_off::CutOffRoom;
pub use given_again::GivenAgain;
pub use group::{GroupInfo, SegmentInfo};
pub use lane::{AppendError, Appended, Lane, LaneStats};
pub use log::{Log, LogConfig, LogStats, StreamError};
pub use lookup::{FoundTime, Lookup, newest_ms};
pub use mend::{DamagedSegment, Gathering, Mender};
pub use producers::{LaneProducer, ProducerMark, marks_of};
pub use read::{Loading, ReadError, ReadOutcome};
pub use rebuild::{AwaitedSegment, LostLane, RebuildError, Rebuilt, RebuiltCopy, Uncopied};
pub use recovery::{RecoveryReport, RestoreError, Restored};
pub use replay::Arrived;
pub use scrub::Scrubber;
pub use segment::Segment;
pub use sink::{ChunkReference, DurabilitySink, SinkDirectory, SinkError, SinkErrorKind, Ticket, behind, made_durable};
pub use storage::{Extent, Location, ReplayExtentError, SegmentStore, StoredSegment, WriteThrough};
pub use stream::Stream;
pub use streamlet::{OWN_LOGS_MAX, Streamlet};
pub use tenure::{ChunkPlace, LaneHandover, ProducerHandover, Tenure, TenureError};
pub use visibility::Visibility;
pub use waiters::{LaneVersion, Observer, SpaceVersion, Waiters, Wake};

#[cfg(test)]
mod tests;
