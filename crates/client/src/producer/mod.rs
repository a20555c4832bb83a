//! The producer: records in, acknowledged chunks out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kera_format::{Compression, LaneId, Record, StreamletId};

use crate::{Client, ClientError, Routing};

/// What became of a chunk. Given to [`ProducerBuilder::on_report`] from the producer's background task.
#[derive(Clone, Debug)]
pub struct DeliveryReport {
    /// The streamlet it was for.
    pub streamlet: StreamletId,
    /// Records in it.
    pub records: u32,
    /// Its bytes as sent, header included.
    pub bytes: u32,
    /// From the first record's [`Producer::send`] to the acknowledgement (or giving up).
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

type ReportFn = Arc<dyn Fn(&DeliveryReport) + Send + Sync>;

/// Settings of a producer. Made by [`Client::producer`]; the defaults work.
#[derive(Clone)]
pub struct ProducerBuilder {
    client: Client,
    stream: String,
    chunk_bytes: usize,
    linger: Duration,
    request_bytes: usize,
    in_flight: usize,
    buffer_bytes: usize,
    compression: Compression,
    routing: Routing,
    idempotent: bool,
    delivery_timeout: Duration,
    request_timeout: Duration,
    on_report: Option<ReportFn>,
}

impl fmt::Debug for ProducerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl ProducerBuilder {
    pub(crate) fn new(client: Client, stream: String) -> ProducerBuilder {
        ProducerBuilder {
            client,
            stream,
            chunk_bytes: 64 << 10,
            linger: Duration::ZERO,
            request_bytes: 1 << 20,
            in_flight: 5,
            buffer_bytes: 32 << 20,
            compression: Compression::None,
            routing: Routing::default(),
            idempotent: true,
            delivery_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(30),
            on_report: None,
        }
    }

    /// Bytes of a chunk, header included: it is sealed before it would grow larger. A single record may be larger. 64 KiB
    /// unless set.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes;
        self
    }

    /// How long a chunk that is not full waits for more records. Zero, the default: it leaves as soon as the connection
    /// can take it, so that chunks grow only while the server is busy.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Bytes of a request: one chunk of each streamlet in turn until they are full. 1 MiB unless set.
    pub fn request_bytes(mut self, bytes: usize) -> Self {
        self.request_bytes = bytes;
        self
    }

    /// Requests that may be unanswered at one time, 1 to 1,000; 5 unless set. Order and exactly-once do not depend on it.
    pub fn in_flight(mut self, requests: usize) -> Self {
        self.in_flight = requests;
        self
    }

    /// Bytes of records that may wait for being acknowledged; [`Producer::send`] waits above it. 32 MiB unless set.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Compresses chunks when they are sealed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How a record's streamlet is chosen.
    pub fn routing(mut self, routing: Routing) -> Self {
        self.routing = routing;
        self
    }

    /// Whether chunks carry a producer id and sequence, by which the server recognises retries: each record is in the
    /// stream exactly once, and in order. On unless turned off; off, a retry may append a chunk twice.
    pub fn idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// How long a record is tried to be delivered, across reconnects, before it is given up. 120 s unless set.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = timeout;
        self
    }

    /// How long a request waits for its answer before the connection is taken for dead and made again. 30 s unless set.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Has `report` called once for each chunk, when it is acknowledged or given up. It runs on the producer's background
    /// task: it must be quick and must not block.
    pub fn on_report(mut self, report: impl Fn(&DeliveryReport) + Send + Sync + 'static) -> Self {
        self.on_report = Some(Arc::new(report));
        self
    }

    /// Finds the stream, gets a producer id, connects. Errors: settings outside their limits, no such stream, no server.
    pub async fn build(self) -> Result<Producer, ClientError> {
        todo!()
    }
}

/// Sends records to a stream. Shared by reference or in an `Arc`; all methods may be called from many tasks, then the
/// order between tasks is that of their calls.
#[derive(Debug)]
pub struct Producer {}

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

impl Producer {
    /// Takes a record. Completes at once while there is room in the buffer; otherwise waits until there is. Taken is not
    /// acknowledged: see [`flush`](Producer::flush), [`deliver`](Producer::deliver) and
    /// [`ProducerBuilder::on_report`].
    ///
    /// Errors: the record is too large ([`ClientError::Record`]), the producer is fenced or closed.
    pub async fn send(&self, record: &Record<'_>) -> Result<(), ClientError> {
        let _ = record;
        todo!()
    }

    /// Takes a record for a streamlet that the caller has chosen.
    pub async fn send_to(&self, streamlet: StreamletId, record: &Record<'_>) -> Result<(), ClientError> {
        let _ = (streamlet, record);
        todo!()
    }

    /// Takes a record if there is room: `Ok(false)` if there is not, and nothing was taken. Never waits.
    pub fn try_send(&self, record: &Record<'_>) -> Result<bool, ClientError> {
        let _ = record;
        todo!()
    }

    /// Takes many records, cheaper than one by one. On an error the ones before it were taken.
    pub async fn send_all<'r>(&self, records: impl IntoIterator<Item = Record<'r>>) -> Result<u64, ClientError> {
        let _ = records.into_iter().next();
        todo!()
    }

    /// Takes a record and waits until it is acknowledged.
    pub async fn deliver(&self, record: &Record<'_>) -> Result<Delivered, ClientError> {
        let _ = record;
        todo!()
    }

    /// Sends everything that was taken, without waiting for linger, and waits until all of it is acknowledged. The error
    /// is the first one since the last flush; later records are still tried.
    pub async fn flush(&self) -> Result<(), ClientError> {
        todo!()
    }

    /// Flushes, then closes the connection. Without it, dropping the producer gives up what is not acknowledged.
    pub async fn close(self) -> Result<(), ClientError> {
        todo!()
    }

    /// What it has done so far.
    pub fn stats(&self) -> ProducerStats {
        todo!()
    }
}
