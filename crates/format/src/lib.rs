//! The bytes of KerA: ids, units, limits, and the layout of records, chunks, segments, containers and virtual logs.
//!
//! Everything that stores or ships data goes through this crate, on any thread. It does no I/O, takes no lock and
//! never panics on bytes that came from outside: what is malformed is an [`FormatError`] that names the field.
//! All integers are little-endian. `docs/formats/` describes each layout, `spec/` holds the golden bytes.

pub mod applications;
pub mod arena;
pub mod begins;
pub mod catalog;
pub mod checksum;
pub mod chunk;
pub mod cluster;
pub mod compression;
pub mod container;
mod error;
pub mod extent;
mod hash;
pub mod ids;
pub mod kafka_batch;
pub mod kafka_codec;
pub mod kafka_floors;
pub mod kafka_groups;
pub mod kafka_members;
pub mod kafka_transactions;
pub mod level;
pub mod limits;
pub mod options;
pub mod piece;
pub mod raft;
pub mod record;
pub mod segment;
pub mod settings;
mod start;
pub mod vlog;
pub mod vlog_replica;
mod wire;

pub use chunk::{BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkHeader, ChunkView};
pub use compression::Compression;
pub use error::FormatError;
pub use hash::murmur2;
pub use ids::{
    ApplicationId, Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentId, SegmentIndex, StreamId, StreamletId,
};
pub use options::{
    BatchCompression, Cleanup, Durability, Order, ReplicationMode, StreamOptions, Timestamps, copies_min,
};
pub use record::{Record, RecordView, Records};
pub use settings::Settings;

/// Rounds up to the alignment of chunks, on the wire, in memory and on disk: 8 bytes.
///
/// Overflow-free for any length below `usize::MAX - 7`, which [`limits`] guarantees for everything that was checked.
#[inline]
pub const fn align8(bytes: usize) -> usize {
    (bytes + 7) & !7
}
