//! The records of the load: values of a fixed size that carry the time at which they were sent, and maybe a key.
//!
//! ```text
//! value  offset  bytes  field
//!             0      8  stamp     when it was sent (or was due), see [`crate::clock::now_ns`]; zero: not measured
//!             8      …  filling   letters and digits at random; the same few values come again and again
//! ```
//! A value shorter than eight bytes carries no stamp. Making a record is a few loads and stores, far below what
//! sending it costs; `kera bench limit` measures it.

use kera_format::Record;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::keys::{KeyDistribution, Keys};

/// Bytes of the stamp at the start of a value.
pub const STAMP_BYTES: usize = 8;
/// Different values: enough that a compressor has something to do, few enough to stay in the nearest cache.
const VALUES: usize = 64;

/// What records look like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the value.
    pub value_bytes: usize,
    /// How keys are spread.
    pub keys: KeyDistribution,
    /// How many keys there are.
    pub key_count: u64,
    /// Whether each record carries a checksum of its own.
    pub checksum: bool,
}

/// Makes records, one at a time.
#[derive(Debug)]
pub struct RecordSource {
    values: Vec<u8>,
    value_bytes: usize,
    /// Where in `values` the current record's is.
    at: usize,
    key: Option<[u8; 8]>,
    keys: Keys,
    checksum: bool,
}

impl RecordSource {
    /// A source of its own for each producer; the seed decides keys and filling.
    pub fn new(shape: &Shape, seed: u64) -> RecordSource {
        let mut random = SmallRng::seed_from_u64(seed);
        let filling = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut values: Vec<u8> =
            (0..VALUES * shape.value_bytes).map(|_| filling[random.random_range(0..filling.len())]).collect();
        for value in values.chunks_exact_mut(shape.value_bytes.max(1)) {
            if let Some(stamp) = value.first_chunk_mut::<STAMP_BYTES>() {
                *stamp = [0; STAMP_BYTES];
            }
        }
        RecordSource {
            values,
            value_bytes: shape.value_bytes,
            at: 0,
            key: None,
            keys: Keys::new(shape.keys, shape.key_count, seed ^ 0x6b65_7973),
            checksum: shape.checksum,
        }
    }

    /// Makes the next record, stamped with `stamp` (zero: not measured), and gives it to `send`.
    #[inline]
    pub fn with_next<R>(&mut self, stamp: u64, send: impl FnOnce(&Record<'_>) -> R) -> R {
        self.at = if self.at + 2 * self.value_bytes <= self.values.len() { self.at + self.value_bytes } else { 0 };
        let value = &mut self.values[self.at..self.at + self.value_bytes];
        if let Some(place) = value.first_chunk_mut::<STAMP_BYTES>() {
            *place = stamp.to_le_bytes();
        }
        self.key = self.keys.pick().map(u64::to_be_bytes);
        let record = Record { value: Some(value), checksum: self.checksum, ..Record::default() };
        match &self.key {
            None => send(&record),
            Some(key) => send(&Record { keys: &[key], ..record }),
        }
    }

    /// Gives the same record once more, to a `send` that may have to wait.
    pub async fn again<R>(&self, send: impl AsyncFnOnce(&Record<'_>) -> R) -> R {
        let value = &self.values[self.at..self.at + self.value_bytes];
        let record = Record { value: Some(value), checksum: self.checksum, ..Record::default() };
        match &self.key {
            None => send(&record).await,
            Some(key) => send(&Record { keys: &[key], ..record }).await,
        }
    }
}

/// The stamp of a value that a [`RecordSource`] made; zero if it was not measured.
#[inline]
pub fn stamp_of(value: &[u8]) -> u64 {
    value.first_chunk::<STAMP_BYTES>().map_or(0, |stamp| u64::from_le_bytes(*stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(value_bytes: usize, keys: KeyDistribution) -> Shape {
        Shape { value_bytes, keys, key_count: 10, checksum: false }
    }

    #[test]
    fn a_stamp_is_on_its_record_and_on_no_other() {
        let mut source = RecordSource::new(&shape(100, KeyDistribution::None), 1);
        for i in 0..1000u64 {
            let stamp = if i % 7 == 0 { i + 1 } else { 0 };
            source.with_next(stamp, |record| {
                assert_eq!(record.encoded_bytes(), 108);
                assert_eq!(stamp_of(record.value.unwrap()), stamp);
                assert!(record.keys.is_empty());
            });
        }
    }

    #[test]
    fn small_values_and_keys_work() {
        for bytes in [0, 1, 7, 8, 9] {
            let mut source = RecordSource::new(&shape(bytes, KeyDistribution::Uniform), 1);
            source.with_next(5, |record| {
                assert_eq!(record.value.unwrap().len(), bytes);
                assert_eq!(record.keys.len(), 1);
                assert_eq!(stamp_of(record.value.unwrap()), if bytes >= 8 { 5 } else { 0 });
            });
        }
    }
}
