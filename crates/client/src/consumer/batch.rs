//! What a consumer hands out: batches whose records are read in place, and single records.
//!
//! Everything here shares the memory that frames were received into, on whatever thread the program uses it. Nothing
//! is copied, except for payloads that were compressed.

use std::sync::Arc;

use bytes::Bytes;
use kera_format::kafka_batch::KafkaHeaders;
use kera_format::{Cursor, GroupId, LaneId, RecordView, Records, StreamletId};

use super::kafka::KafkaPart;

/// Consecutive records of one lane, as they came in one read; of compressed ones as many as unpack to a few MiB. Holds on to the memory they
/// came in.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) streamlet: StreamletId,
    pub(super) lane: LaneId,
    pub(super) chunks: Vec<BatchChunk>,
}

#[derive(Clone, Debug)]
pub(super) struct BatchChunk {
    pub(super) cursor: Cursor,
    pub(super) base_ordinal: u64,
    pub(super) append_time_ms: i64,
    /// Ordinals that the chunk covers: more than it has records if compaction has taken some.
    pub(super) ordinals: u32,
    pub(super) record_count: u32,
    /// Records of the chunk that come before where the consumer is.
    pub(super) skip: u32,
    /// KerA records, back to back.
    pub(super) payload: Bytes,
    /// What the chunk of a Kafka producer has besides.
    pub(super) kafka: Option<Arc<KafkaPart>>,
}

impl BatchChunk {
    /// Ordinal of a record, by its number in the chunk.
    fn ordinal(&self, index: u32) -> u64 {
        self.base_ordinal + u64::from(self.kafka.as_ref().map_or(index, |kafka| kafka.delta(index)))
    }

    /// How many of its records come before an ordinal.
    pub(super) fn records_before(&self, ordinal: u64) -> u32 {
        let delta = u32::try_from(ordinal.saturating_sub(self.base_ordinal)).unwrap_or(u32::MAX);
        self.kafka.as_ref().map_or(delta.min(self.record_count), |kafka| kafka.records_before(delta))
    }

    fn headers(&self, index: u32) -> KafkaHeaders<'_> {
        self.kafka.as_ref().map_or_else(KafkaHeaders::default, |kafka| kafka.headers(index))
    }

    /// Bytes that its records take beside `data`, which it was decoded from.
    pub(super) fn unpacked_bytes(&self, data: &Bytes) -> usize {
        let beside = |part: &Bytes| if data.as_ptr_range().contains(&part.as_ptr()) { 0 } else { part.len() };
        beside(&self.payload) + self.kafka.as_ref().map_or(0, |kafka| beside(kafka.records()))
    }
}

impl Batch {
    /// The streamlet.
    pub fn streamlet(&self) -> StreamletId {
        self.streamlet
    }

    /// The lane.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.record_count - chunk.skip)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ordinal of the first record.
    pub fn base_ordinal(&self) -> u64 {
        self.chunks.first().map_or(0, |chunk| chunk.ordinal(chunk.skip))
    }

    /// Where the ordinals of the batch end.
    pub fn end_ordinal(&self) -> u64 {
        self.chunks.last().map_or(0, |chunk| chunk.base_ordinal + u64::from(chunk.ordinals))
    }

    /// The records in place, in order.
    ///
    /// The layout of every record was checked before the batch was handed out.
    pub fn records(&self) -> impl Iterator<Item = BatchRecord<'_>> {
        self.chunks.iter().flat_map(|chunk| {
            let records = Records::new(&chunk.payload).flatten().take(chunk.record_count as usize);
            records.enumerate().skip(chunk.skip as usize).map(|(index, view)| BatchRecord {
                ordinal: chunk.ordinal(index as u32),
                append_time_ms: chunk.append_time_ms,
                view,
                headers: chunk.headers(index as u32),
            })
        })
    }
}

/// A record in a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    /// Its number in the lane.
    pub ordinal: u64,
    /// When its chunk was appended, milliseconds since 1970.
    pub append_time_ms: i64,
    /// Its keys, value and the rest.
    pub view: RecordView<'a>,
    headers: KafkaHeaders<'a>,
}

impl<'a> BatchRecord<'a> {
    /// Headers: names and values, which records of Kafka producers may have. Names are UTF-8 by Kafka's rules, not checked for it.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        self.headers
    }
}

/// A record on its own, sharing the memory it came in.
#[derive(Clone, Debug)]
pub struct ConsumedRecord {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// The group.
    pub group: GroupId,
    /// Its number in the lane.
    pub ordinal: u64,
    /// When its chunk was appended, milliseconds since 1970.
    pub append_time_ms: i64,
    bytes: Bytes,
    /// Where its headers are, and its number there.
    kafka: Option<(Arc<KafkaPart>, u32)>,
}

impl ConsumedRecord {
    /// Its keys, value and the rest.
    pub fn view(&self) -> RecordView<'_> {
        RecordView::parse(&self.bytes).expect("the record was parsed when it was cut out of its chunk")
    }

    /// Headers: names and values, which records of Kafka producers may have. Names are UTF-8 by Kafka's rules, not checked for it.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<&[u8]>)> {
        self.kafka.as_ref().map_or_else(KafkaHeaders::default, |(kafka, index)| kafka.headers(*index))
    }
}

/// A batch that is being taken record by record.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) batch: Batch,
    chunk: usize,
    /// Bytes and records of the chunk that are behind.
    offset: usize,
    index: u32,
}

impl Unpacked {
    pub(super) fn new(batch: Batch) -> Unpacked {
        Unpacked { batch, chunk: 0, offset: 0, index: 0 }
    }

    /// The next record, or `None` at the end of the batch.
    pub(super) fn next(&mut self) -> Option<ConsumedRecord> {
        loop {
            let chunk = self.batch.chunks.get(self.chunk)?;
            let view = match Records::new(&chunk.payload[self.offset..]).next() {
                Some(Ok(view)) if self.index < chunk.record_count => view,
                _ => {
                    (self.chunk, self.offset, self.index) = (self.chunk + 1, 0, 0);
                    continue;
                }
            };
            let start = self.offset;
            self.offset += view.as_bytes().len();
            self.index += 1;
            if self.index <= chunk.skip {
                continue;
            }
            return Some(ConsumedRecord {
                streamlet: self.batch.streamlet,
                lane: self.batch.lane,
                group: chunk.cursor.group,
                ordinal: chunk.ordinal(self.index - 1),
                append_time_ms: chunk.append_time_ms,
                bytes: chunk.payload.slice(start..self.offset),
                kafka: chunk.kafka.as_ref().map(|kafka| (Arc::clone(kafka), self.index - 1)),
            });
        }
    }

    /// The chunk and ordinal of the next record; `None` when all have been taken.
    pub(super) fn position(&self) -> Option<(Cursor, u64)> {
        let mut at = self.chunk;
        let mut index = self.index;
        loop {
            let chunk = self.batch.chunks.get(at)?;
            if index < chunk.record_count {
                return Some((chunk.cursor, chunk.ordinal(index.max(chunk.skip))));
            }
            (at, index) = (at + 1, 0);
        }
    }

    /// What has not been taken yet, as a batch.
    pub(super) fn rest(mut self) -> Batch {
        self.batch.chunks.drain(..self.chunk.min(self.batch.chunks.len()));
        if let Some(chunk) = self.batch.chunks.first_mut() {
            chunk.skip = chunk.skip.max(self.index);
        }
        self.batch.chunks.retain(|chunk| chunk.skip < chunk.record_count);
        self.batch
    }
}
