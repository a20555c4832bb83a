//! What a producer tells: about each chunk, and in sum.

use std::time::Duration;

use kera_format::{LaneId, StreamletId};

use crate::ClientError;

/// What became of a chunk. Given to [`ProducerBuilder::on_report`](crate::ProducerBuilder::on_report) from the producer's
/// background task.
#[derive(Clone, Debug)]
pub struct DeliveryReport {
    /// The streamlet it was for.
    pub streamlet: StreamletId,
    /// Number of its first record among all that this producer was given for the streamlet, from 0. Reports of a streamlet need not
    /// come in this order: a chunk whose first acknowledgement was lost is reported after later ones.
    pub first_record: u64,
    /// Records in it.
    pub records: u32,
    /// Its bytes as sent, header included.
    pub bytes: u32,
    /// From the first record's [`Producer::send`](crate::Producer::send) to the acknowledgement (or giving up).
    pub latency: Duration,
    /// Where it is, or why it is not there (as far as is known, see [`ClientError::could_duplicate`]).
    pub result: Result<Delivered, ClientError>,
}

/// Where acknowledged records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// Ordinal of the first record; the others follow without a gap. `None` if an earlier try was acknowledged, and the
    /// server does not remember with what.
    pub base_ordinal: Option<u64>,
    /// Whether an earlier try had been appended already, and only its acknowledgement was lost.
    pub duplicate: bool,
}

/// What a producer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Records taken.
    pub records: u64,
    /// Records acknowledged.
    pub acknowledged_records: u64,
    /// Records given up.
    pub failed_records: u64,
    /// Chunks sealed.
    pub chunks: u64,
    /// Chunks acknowledged as duplicates: an earlier try's acknowledgement had been lost.
    pub duplicate_chunks: u64,
    /// Chunks that were acknowledged and that the server does not have any more: with a stream that is replicated asynchronously the
    /// last ones before the loss of a node, with durability `process` those before a loss of power. Only those are counted behind which the
    /// producer sends something to the same streamlet, and none of which the server may only have forgotten whose they were.
    pub forgotten_chunks: u64,
    /// Chunks that were acknowledged anew although an earlier try of them, whose answer was lost, may be in the stream: the server could not tell, for it had forgotten the
    /// producer or its id. Their records may be there twice. Zero as long as each record is there once for certain.
    pub doubtful_chunks: u64,
    /// Requests sent.
    pub requests: u64,
    /// Bytes of chunks sent, retries included.
    pub sent_bytes: u64,
    /// Chunks sent again.
    pub retried_chunks: u64,
    /// Connections made again.
    pub reconnects: u64,
    /// Bytes of records and chunks that are not acknowledged yet.
    pub buffered_bytes: u64,
}
