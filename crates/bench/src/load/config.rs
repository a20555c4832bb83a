//! What load to make: every knob of the papers, and how long to turn it.

use std::time::Duration;

use kera_client::{Compression, StreamOptions};
use kera_format::{Durability, Order, limits};
use serde::{Serialize, Serializer};

use crate::BenchError;
use crate::keys::{KEYS_MAX, KeyDistribution};
use crate::source::Shape;

/// Bytes of records after which a producer does something else.
const TURN_BYTES: usize = 128 << 10;
/// Chunks that a producer of many streams may hold for each at least.
const BUFFERED_CHUNKS_MIN: usize = 4;
/// The least rate, in records per second: a record each quarter of an hour. With far smaller ones the time at which a record is due is more than a clock can take.
pub(crate) const RATE_MIN: f64 = 0.001;

/// Which sides run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Producers only.
    Produce,
    /// Consumers only, from the first record on: of the stream that is there, or of one that is filled first.
    Consume,
    /// Both at once.
    Both,
}

/// A load. [`Default`] is what `kera bench produce` does without flags.
#[derive(Clone, Debug, Serialize)]
pub struct LoadConfig {
    /// The stream to use; made if it is missing. `None` makes one with a name of its own.
    pub stream: Option<String>,
    /// How many streams; with more than one their names get a number.
    pub streams: u32,
    /// M: streamlets of each.
    pub streamlets: u32,
    /// Q: lanes of each streamlet.
    pub lanes: u32,
    /// P: segments of a group.
    pub segments_per_group: u32,
    /// Largest segment, in bytes.
    pub segment_bytes: u32,
    /// How safe records are before they are acknowledged.
    #[serde(serialize_with = "as_text")]
    pub durability: Durability,
    /// Copies of what streams hold, the owner's own included: more than one only in a cluster of as many nodes.
    pub replication: u32,
    /// What a streamlet keeps, in bytes.
    pub retention_bytes: Option<u64>,
    /// Bytes of a record's value.
    pub record_bytes: usize,
    /// How keys are spread.
    pub key_distribution: KeyDistribution,
    /// How many keys there are.
    pub keys: u64,
    /// Whether each record has a checksum of its own, beside its chunk's.
    pub record_checksum: bool,
    /// Whether consumers verify the checksums of chunks.
    pub verify_checksums: bool,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// How long a chunk that is not full waits.
    #[serde(rename = "linger_ms", serialize_with = "as_ms")]
    pub linger: Duration,
    /// Unanswered requests of a producer.
    pub in_flight: usize,
    /// Bytes that a producer holds unacknowledged, in all streams together.
    pub buffer_bytes: usize,
    /// How chunks are compressed.
    #[serde(serialize_with = "as_name")]
    pub compression: Compression,
    /// Whether retries are recognised.
    pub idempotent: bool,
    /// Producers, each on a thread of its own.
    pub producers: u32,
    /// Consumers, each on a thread of its own.
    pub consumers: u32,
    /// The application that consumers share; `None` deals out streamlets among them.
    pub application: Option<String>,
    /// Bytes that the server may send to a consumer ahead of being asked.
    pub credit_bytes: usize,
    /// Whether consumers ask with requests that wait, instead of having data pushed.
    pub long_poll: bool,
    /// Records to send after the warm-up; `None` is no limit.
    pub records: Option<u64>,
    /// How long to send after the warm-up; `None` is no limit. At a rate all that is due by then is sent, and waited for, however late.
    #[serde(rename = "seconds", serialize_with = "as_seconds_or_none")]
    pub time: Option<Duration>,
    /// Records before the clock starts.
    pub warmup_records: u64,
    /// Time before the clock starts, if there is no limit of records.
    #[serde(rename = "warmup_seconds", serialize_with = "as_seconds")]
    pub warmup: Duration,
    /// Records per second of all producers together, open loop; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// One record in this many carries the time at which it was sent; at a rate, as many as are useful do.
    pub sample: u32,
    /// Whether the streams stay.
    pub keep: bool,
}

impl Default for LoadConfig {
    fn default() -> Self {
        let options = StreamOptions::default();
        LoadConfig {
            stream: None,
            streams: 1,
            streamlets: 16,
            lanes: 1,
            segments_per_group: options.segments_per_group,
            segment_bytes: options.segment_bytes_max,
            durability: Durability::Process,
            replication: options.replication,
            retention_bytes: None,
            record_bytes: 100,
            key_distribution: KeyDistribution::None,
            keys: 1_000_000,
            record_checksum: false,
            verify_checksums: true,
            chunk_bytes: 16 << 10,
            request_bytes: 1 << 20,
            linger: Duration::from_millis(1),
            in_flight: 5,
            buffer_bytes: 32 << 20,
            compression: Compression::None,
            idempotent: true,
            producers: 1,
            consumers: 1,
            application: None,
            credit_bytes: 8 << 20,
            long_poll: false,
            records: None,
            time: Some(Duration::from_secs(10)),
            warmup_records: 0,
            warmup: Duration::from_secs(1),
            rate: None,
            sample: 128,
            keep: false,
        }
    }
}

impl LoadConfig {
    /// Checks what the server cannot check: one error, of the first mistake.
    pub fn check(&self, mode: Mode) -> Result<(), BenchError> {
        let range = |flag: &'static str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(BenchError::setting(flag, format!("{value} is not between {least} and {most}")))
            }
        };
        let most_record = (limits::CHUNK_BYTES_MAX - kera_format::CHUNK_HEADER_BYTES - 64) as u64;
        range("record-bytes", self.record_bytes as u64, 0, most_record)?;
        range("chunk-bytes", self.chunk_bytes as u64, 128, limits::CHUNK_BYTES_MAX as u64)?;
        range("streams", self.streams.into(), 1, 100_000)?;
        range("producers", self.producers.into(), u64::from(mode != Mode::Consume), 1024)?;
        range("consumers", self.consumers.into(), u64::from(mode != Mode::Produce), 1024)?;
        range("keys", self.keys, 1, KEYS_MAX)?;
        range("sample", self.sample.into(), 1, u64::from(u32::MAX))?;
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate >= RATE_MIN)) {
            let message = format!("it must be a number of records per second, {RATE_MIN} or more");
            return Err(BenchError::setting("rate", message));
        }
        if self.records.is_none() && self.time.is_none() {
            return Err(BenchError::setting("seconds", "give --seconds or --records, or it never ends"));
        }
        let lanes = u64::from(self.streamlets) * u64::from(self.lanes);
        let readers = if self.streams > 1 { self.streams.into() } else { lanes };
        if mode != Mode::Produce && self.application.is_none() && u64::from(self.consumers) > readers {
            let message = format!("{} consumers have only {readers} lanes or streams to share", self.consumers);
            return Err(BenchError::setting("consumers", message));
        }
        let wrong = self.stream_options().check();
        match wrong.first() {
            Some(mistake) => Err(BenchError::Format(mistake.clone())),
            None => Ok(()),
        }
    }

    /// The options of the streams.
    pub fn stream_options(&self) -> StreamOptions {
        StreamOptions {
            streamlets: self.streamlets,
            lanes: self.lanes,
            segments_per_group: self.segments_per_group,
            segment_bytes_max: self.segment_bytes,
            durability: self.durability,
            replication: self.replication,
            order: if self.application.is_some() && self.consumers > 1 { Order::None } else { Order::Lane },
            retention_bytes: self.retention_bytes,
            ..StreamOptions::default()
        }
    }

    /// The part of a producer's [`buffer_bytes`](LoadConfig::buffer_bytes) that each stream has: all of them together touch no more
    /// memory than one would, but for what a stream needs to have a chunk on its way and fill another one.
    pub fn buffer_bytes_each(&self) -> usize {
        (self.buffer_bytes / self.streams.max(1) as usize).max(BUFFERED_CHUNKS_MIN * self.chunk_bytes)
    }

    /// Bytes of records that a stream gets before it is the next one's turn: what fits beside as much that is on its way.
    pub fn turn_bytes(&self) -> usize {
        (self.buffer_bytes_each() / 2).clamp(self.chunk_bytes, self.chunk_bytes.max(TURN_BYTES))
    }

    /// What records look like.
    pub fn shape(&self) -> Shape {
        Shape {
            value_bytes: self.record_bytes,
            keys: self.key_distribution,
            key_count: self.keys,
            checksum: self.record_checksum,
        }
    }

    /// The names of the streams.
    pub fn stream_names(&self, fallback: &str) -> Vec<String> {
        let name = self.stream.as_deref().unwrap_or(fallback);
        match self.streams {
            1 => vec![name.to_owned()],
            n => (0..n).map(|i| format!("{name}-{i}")).collect(),
        }
    }

    /// What a record counts as, in bytes: its value and its key.
    pub fn user_bytes_per_record(&self) -> u64 {
        self.record_bytes as u64 + if self.key_distribution == KeyDistribution::None { 0 } else { 8 }
    }

    /// Records and warm-up together, if there is a limit.
    pub fn records_in_all(&self) -> Option<u64> {
        self.records.map(|records| records.saturating_add(self.warmup_records))
    }
}

fn as_text<T: std::fmt::Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn as_name<S: Serializer>(value: &Compression, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.name())
}

fn as_ms<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.as_secs_f64() * 1e3)
}

fn as_seconds<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.as_secs_f64())
}

fn as_seconds_or_none<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|time| time.as_secs_f64()).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_streams_share_a_producers_memory() {
        let of = |streams, chunk_bytes| LoadConfig { streams, chunk_bytes, ..LoadConfig::default() };
        let one = of(1, 16 << 10);
        assert_eq!((one.buffer_bytes_each(), one.turn_bytes()), (32 << 20, 128 << 10));
        let many = of(512, 1 << 10);
        assert_eq!((many.buffer_bytes_each(), many.turn_bytes()), (64 << 10, 32 << 10));
        let large = of(512, 64 << 10);
        assert_eq!(
            (large.buffer_bytes_each(), large.turn_bytes()),
            (256 << 10, 128 << 10),
            "a chunk under way, one being filled"
        );
    }
}
