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
    turn: Turn,
}

/// The records of one turn, see [`RecordSource::prepare`].
#[derive(Debug, Default)]
struct Turn {
    records: usize,
    /// The first record that is stamped, and every how many one is.
    first_stamped: usize,
    sample: usize,
    /// Records of the turn after this one that come before the next stamped one.
    until_stamped: usize,
    /// Values of those that are.
    stamped: Vec<u8>,
    /// Keys, if records have keys.
    keys: Vec<[u8; 8]>,
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
            turn: Turn::default(),
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

impl RecordSource {
    /// Prepares the next `records` records, of which one in `sample` is stamped with `stamp`. For senders that take many
    /// at once; a source is used either so or with [`with_next`](RecordSource::with_next).
    pub fn prepare(&mut self, records: usize, sample: usize, stamp: u64) {
        let turn = &mut self.turn;
        let sample = sample.max(1);
        let first = turn.until_stamped.min(sample - 1);
        let stamped = if records > first { (records - first - 1) / sample + 1 } else { 0 };
        (turn.records, turn.first_stamped, turn.sample) = (records, first, sample);
        turn.until_stamped = first + stamped * sample - records;
        turn.stamped.clear();
        for _ in 0..stamped {
            let start = turn.stamped.len();
            turn.stamped.extend_from_slice(&self.values[..self.value_bytes]);
            if let Some(place) = turn.stamped[start..].first_chunk_mut::<STAMP_BYTES>() {
                *place = stamp.to_le_bytes();
            }
        }
        turn.keys.clear();
        turn.keys.extend((0..records).map_while(|_| self.keys.pick()).map(u64::to_be_bytes));
    }

    /// The keys of the prepared records, to be lent to [`records`](RecordSource::records); empty without keys.
    pub fn key_refs(&self) -> Vec<[&[u8]; 1]> {
        self.turn.keys.iter().map(|key| [key.as_slice()]).collect()
    }

    /// The prepared records.
    #[inline]
    pub fn records<'a>(&'a self, keys: &'a [[&'a [u8]; 1]]) -> impl Iterator<Item = Record<'a>> {
        let bytes = self.value_bytes;
        let (mut at, mut stamped_at, mut until_stamped) = (0, 0, self.turn.first_stamped);
        (0..self.turn.records).map(move |i| {
            let value = if until_stamped == 0 {
                until_stamped = self.turn.sample - 1;
                stamped_at += bytes;
                &self.turn.stamped[stamped_at - bytes..stamped_at]
            } else {
                until_stamped -= 1;
                at = if at + 2 * bytes <= self.values.len() { at + bytes } else { 0 };
                &self.values[at..at + bytes]
            };
            let keys = keys.get(i).map_or(&[] as &[&[u8]], |key| key);
            Record { keys, value: Some(value), checksum: self.checksum, ..Record::default() }
        })
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
    fn turns_stamp_one_record_in_so_many_however_long_they_are() {
        for keys in [KeyDistribution::None, KeyDistribution::Uniform] {
            let mut source = RecordSource::new(&shape(100, keys), 1);
            let mut stamps = Vec::new();
            for (turn, records) in [1usize, 0, 5, 7, 13, 20, 1, 1, 40].into_iter().enumerate() {
                source.prepare(records, 7, turn as u64 + 1);
                let refs = source.key_refs();
                let before = stamps.len();
                for record in source.records(&refs) {
                    assert_eq!(record.keys.len(), usize::from(keys != KeyDistribution::None));
                    let stamp = stamp_of(record.value.unwrap());
                    assert!(stamp == 0 || stamp == turn as u64 + 1);
                    stamps.push(stamp);
                }
                assert_eq!(stamps.len(), before + records);
            }
            assert!(stamps.iter().enumerate().all(|(i, stamp)| (*stamp != 0) == (i % 7 == 0)), "{stamps:?}");
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
