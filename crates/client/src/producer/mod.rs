//! The producer: records in, acknowledged chunks out.

mod buffer;
mod free;
mod front;
mod open;
mod report;
mod sender;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{CHUNK_HEADER_BYTES, Compression, ProducerEpoch, ProducerId, Record, StreamId, StreamletId, limits};
use kera_protocol::{AllocateProducer, FRAME_HEADER_BYTES, HelloResponse, StreamInfo};
use tokio::sync::oneshot;

pub use buffer::BufferSettings;
pub use front::Front;
pub use report::{Delivered, DeliveryReport, ProducerStats};

use crate::backoff::within_reason;
use crate::placement::HOME;
use crate::{Client, ClientError, Routing};
use buffer::{Buffer, Waiter};
use sender::{ReportFn, Sender, SenderSettings, Shared};

/// Bytes of a chunk unless that is set or too much for the stream.
const CHUNK_BYTES: usize = 64 << 10;

/// Settings of a producer. Made by [`Client::producer`]; the defaults work.
#[derive(Clone)]
pub struct ProducerBuilder {
    client: Client,
    stream: String,
    chunk_bytes: Option<usize>,
    linger: Duration,
    request_bytes: usize,
    in_flight: usize,
    buffer_bytes: usize,
    compression: Compression,
    routing: Routing,
    idempotent: bool,
    delivery_timeout: Duration,
    request_timeout: Duration,
    refresh: Duration,
    on_reports: Option<ReportFn>,
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
            chunk_bytes: None,
            linger: Duration::ZERO,
            request_bytes: 1 << 20,
            in_flight: 5,
            buffer_bytes: 32 << 20,
            compression: Compression::None,
            routing: Routing::default(),
            idempotent: true,
            delivery_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(30),
            refresh: Duration::from_secs(10),
            on_reports: None,
        }
    }

    /// Bytes of a chunk, header included: it is sealed before it would grow larger. A single record may be larger. Unless set, 64 KiB, or
    /// as many as the stream and the server take if that is less.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = Some(bytes);
        self
    }

    /// How long a chunk that is not full waits for more records. Zero, the default: it leaves as soon as the connection
    /// can take it, so that chunks grow only while the server is busy.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = within_reason(linger);
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

    /// Bytes of records that may wait for being acknowledged; [`Producer::send`] waits above it. Chunks that leave with few records count with
    /// what they take beside them. 32 MiB unless set.
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
    /// stream exactly once, and in order. On unless turned off; off, a retry may append a chunk twice. On, that can happen only where a server has forgotten the
    /// producer between two tries, which [`ProducerStats::doubtful_chunks`] counts.
    pub fn idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// How long a record is tried to be delivered, across reconnects, before it is given up. 120 s unless set. What has been sent is not given up
    /// before it is answered or its connection is given up: a record may so be waited for longer by a [`request_timeout`](ProducerBuilder::request_timeout), and is
    /// acknowledged all the same if the answer comes in that time.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = within_reason(timeout);
        self
    }

    /// How long a request waits for its answer before the connection is taken for dead and made again. 30 s unless set.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = within_reason(timeout);
        self
    }

    /// How often a producer that sends looks whether the stream has got more streamlets, and then sends to these as well: records with
    /// a key may go to another streamlet from there on. Every ten seconds unless set.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.refresh = within_reason(every);
        self
    }

    /// Has `report` called once for each chunk, when it is acknowledged or given up. It runs on the producer's background
    /// task: it must be quick and must not block. One that panics ends the task, and with it the producer: what is not acknowledged
    /// is given up.
    pub fn on_report(self, report: impl Fn(&DeliveryReport) + Send + Sync + 'static) -> Self {
        self.on_reports(move |reports| reports.iter().for_each(&report))
    }

    /// As [`on_report`](ProducerBuilder::on_report), with all chunks at once that an answer of the server settles. Of the
    /// two the one that is set last counts.
    pub fn on_reports(mut self, reports: impl Fn(&[DeliveryReport]) + Send + Sync + 'static) -> Self {
        self.on_reports = Some(Arc::new(reports));
        self
    }

    /// Finds the stream, gets a producer id, connects. Errors: settings outside their limits, no such stream, which takes a second to
    /// be sure of, no server.
    pub async fn build(self) -> Result<Producer, ClientError> {
        let info = self.client.find_stream(&self.stream).await?;
        let placement = self.client.placement_of_found(info.id).await?;
        let connection = match placement.is_alone() {
            true => self.client.lend(&placement, HOME).await?,
            // Nodes are connected to when there is something for them.
            false => self.client.shared().await?,
        };
        let settings = self.settings(&info, connection.hello())?;
        let (mut producer_id, mut producer_epoch) = (ProducerId(0), ProducerEpoch(0));
        if self.idempotent {
            let allocated = self.client.call(&AllocateProducer { producer_id: None }).await?;
            (producer_id, producer_epoch) = (allocated.producer_id, allocated.producer_epoch);
        }
        let hello = connection.hello();
        let request_bytes_max =
            hello.frame_bytes_max as usize - FRAME_HEADER_BYTES - kera_protocol::write::WRITE_FRONT_BYTES_MAX;
        let sender = SenderSettings {
            request_bytes: self.request_bytes.min(request_bytes_max),
            in_flight: self.in_flight.min((hello.in_flight_requests_max as usize).max(1)),
            request_timeout: self.request_timeout,
            delivery_timeout: self.delivery_timeout,
            refresh: self.refresh,
            producer_id: self.idempotent.then_some(producer_id),
        };
        let buffer = Buffer::new(settings, producer_id, producer_epoch);
        let shared = Arc::new(Shared::new(buffer, self.on_reports));
        let front = Front::new(Arc::clone(&shared));
        tokio::spawn(Sender::new(Arc::clone(&shared), self.client, connection, placement, sender).run());
        Ok(Producer { shared, front, stream: info })
    }

    /// Checks the settings against their limits, the stream's and the server's.
    fn settings(&self, info: &StreamInfo, hello: &HelloResponse) -> Result<BufferSettings, ClientError> {
        let invalid = |field, value: usize, allowed: String| ClientError::invalid(field, value, allowed);
        let segment_bytes_max = info.options.segment_bytes_max as usize;
        let largest = segment_bytes_max.saturating_sub(SEGMENT_HEADER_BYTES).min(hello.chunk_bytes_max as usize);
        let chunk_bytes_max = largest.min(limits::CHUNK_BYTES_MAX);
        let smallest = CHUNK_HEADER_BYTES + 32;
        let chunk_bytes = self.chunk_bytes.unwrap_or(CHUNK_BYTES.min(chunk_bytes_max));
        if !(smallest..=chunk_bytes_max).contains(&chunk_bytes) {
            let allowed = format!("{smallest} to {chunk_bytes_max} for this stream and server");
            return Err(invalid("chunk_bytes", chunk_bytes, allowed));
        }
        if !(1..=1_000).contains(&self.in_flight) {
            return Err(invalid("in_flight", self.in_flight, "1 to 1000".into()));
        }
        if self.buffer_bytes < chunk_bytes {
            return Err(invalid("buffer_bytes", self.buffer_bytes, format!("chunk_bytes ({chunk_bytes}) or more")));
        }
        if self.request_bytes == 0 {
            return Err(invalid("request_bytes", 0, "1 or more".into()));
        }
        if let Routing::Streamlet(streamlet) = self.routing
            && streamlet >= info.options.streamlets
        {
            return Err(invalid("streamlet", streamlet as usize, format!("below {}", info.options.streamlets)));
        }
        Ok(BufferSettings {
            stream: info.id,
            streamlets: info.options.streamlets,
            lanes: info.options.lanes,
            chunk_bytes,
            chunk_bytes_max,
            buffer_bytes: self.buffer_bytes,
            linger: self.linger,
            delivery_timeout: self.delivery_timeout,
            compression: self.compression,
            routing: self.routing,
        })
    }
}

/// Sends records to a stream. Sending takes `&mut self`, so that taking a record costs no lock: one task sends. Several
/// tasks have a producer each, which may be of the same [`Client`]; or they share one in a mutex of their own, then the
/// order between them is that in which they get it.
///
/// A background task on the runtime that built it sends the chunks. Dropped without [`close`](Producer::close), it gives up
/// what is not acknowledged.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    front: Front,
    stream: StreamInfo,
}

impl Drop for Producer {
    fn drop(&mut self) {
        let mut buffer = self.shared.buffer();
        buffer.fatal.get_or_insert(ClientError::Closed);
        let ended = buffer.ended;
        drop(buffer);
        if ended {
            // What its task missed is given up now.
            self.front.flush();
        }
        self.shared.work.notify_one();
    }
}

impl Producer {
    /// The stream it sends to, as it was when the producer was built.
    pub fn stream(&self) -> &StreamInfo {
        &self.stream
    }

    /// The stream's id.
    pub fn stream_id(&self) -> StreamId {
        self.stream.id
    }

    /// Takes a record. Completes at once while there is room in the buffer; otherwise waits until there is. Taken is not
    /// acknowledged: see [`flush`](Producer::flush), [`deliver`](Producer::deliver) and
    /// [`ProducerBuilder::on_report`]. Dropping the future before it completes takes nothing.
    ///
    /// Errors: the record is too large ([`ClientError::Record`]), the producer is fenced or closed.
    #[inline]
    pub async fn send(&mut self, record: &Record<'_>) -> Result<(), ClientError> {
        if self.try_send(record)? { Ok(()) } else { self.wait_and_push(record, None, &mut None).await }
    }

    /// Takes a record for a streamlet that the caller has chosen, otherwise as [`send`](Producer::send).
    #[inline]
    pub async fn send_to(&mut self, streamlet: StreamletId, record: &Record<'_>) -> Result<(), ClientError> {
        self.check_streamlet(streamlet)?;
        let streamlet = Some(streamlet.0);
        if self.front.push(record, streamlet)? {
            return Ok(());
        }
        self.wait_and_push(record, streamlet, &mut None).await
    }

    /// Takes a record if there is room: `Ok(false)` if there is not, and nothing was taken. Never waits.
    #[inline]
    pub fn try_send(&mut self, record: &Record<'_>) -> Result<bool, ClientError> {
        self.front.push(record, None)
    }

    /// Takes many records and waits while there is no room. Returns how many; on an error the ones before it were taken.
    pub async fn send_all<'r>(&mut self, records: impl IntoIterator<Item = Record<'r>>) -> Result<u64, ClientError> {
        let mut records = records.into_iter();
        let before = self.front.records();
        loop {
            let full;
            (records, full) = self.front.push_all(records)?;
            let Some(record) = full else { return Ok(self.front.records() - before) };
            self.wait_and_push(&record, None, &mut None).await?;
        }
    }

    /// Takes a record and waits until it is acknowledged. Dropping the future does not take it back.
    pub async fn deliver(&mut self, record: &Record<'_>) -> Result<Delivered, ClientError> {
        let (waiter, delivered) = oneshot::channel();
        self.wait_and_push(record, None, &mut Some(waiter)).await?;
        delivered.await.unwrap_or(Err(ClientError::Closed))
    }

    /// Sends everything that was taken, without waiting for linger, and waits until all of it is acknowledged. The error
    /// is the first failure since the last flush; what else there is was tried nevertheless.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let serial = self.front.flush();
        loop {
            let progress = self.shared.progress.notified();
            let mut progress = std::pin::pin!(progress);
            progress.as_mut().enable();
            {
                let mut buffer = self.shared.buffer();
                if buffer.is_settled(serial) {
                    return buffer.failed.take().map_or(Ok(()), Err);
                }
            }
            progress.await;
        }
    }

    /// Flushes, then closes the connection.
    pub async fn close(mut self) -> Result<(), ClientError> {
        self.flush().await
    }

    /// What it has done so far.
    pub fn stats(&self) -> ProducerStats {
        ProducerStats { records: self.front.records(), ..self.shared.buffer().stats }
    }

    /// What went wrong last in delivering: why it waits, while nothing is acknowledged. It may have been long ago, and be mended since.
    pub fn last_error(&self) -> Option<String> {
        self.shared.last_error()
    }

    /// Takes a record when there is room.
    async fn wait_and_push(
        &mut self,
        record: &Record<'_>,
        streamlet: Option<u32>,
        waiter: &mut Option<Waiter>,
    ) -> Result<(), ClientError> {
        loop {
            let mut progress = std::pin::pin!(self.shared.progress.notified());
            // Listening before looking, so that nothing is missed in between.
            progress.as_mut().enable();
            if self.front.push_locked(record, streamlet, waiter)? {
                return Ok(());
            }
            progress.await;
        }
    }

    #[inline]
    fn check_streamlet(&mut self, streamlet: StreamletId) -> Result<(), ClientError> {
        let streamlets = self.front.streamlets(streamlet.0);
        if streamlet.0 < streamlets {
            return Ok(());
        }
        Err(ClientError::invalid("streamlet", streamlet, format!("below {streamlets}")))
    }
}
