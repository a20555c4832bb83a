//! The last ordinal of each key, in a table of bounded size. Pure.
//!
//! Keys are known by a hash of 128 bits that is keyed with a number nobody outside the node knows: two keys of one hash, which
//! would cost a record, are neither to be expected nor to be made.

use std::hash::{DefaultHasher, Hasher};

/// Bytes that one key takes.
const ENTRY_BYTES: u64 = 24;
/// By what a key is known.
pub(crate) type KeyHash = (u64, u64);

/// A place without a key.
const NONE: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Entry {
    hash: KeyHash,
    ordinal: u64,
}

/// Hashes of keys and ordinals, three quarters full at most.
pub(crate) struct OrdinalMap {
    entries: Vec<Entry>,
    keys: usize,
    keys_max: usize,
    /// Keys that there will be at most, if somebody knows.
    expected: usize,
    seed: u64,
}

impl OrdinalMap {
    /// A table of about so many bytes, at least of some hundred keys. It takes no memory before the first key.
    pub(crate) fn new(bytes: u64, seed: u64) -> OrdinalMap {
        let places = (bytes / ENTRY_BYTES).max(256) as usize;
        OrdinalMap { entries: Vec::new(), keys: 0, keys_max: places / 4 * 3, expected: usize::MAX, seed }
    }

    /// Forgets all keys and gives the memory back.
    pub(crate) fn clear(&mut self) {
        (self.entries, self.keys, self.expected) = (Vec::new(), 0, usize::MAX);
    }

    /// There will be so many keys at most: the table takes no more memory than they need. Before the first one.
    pub(crate) fn expect(&mut self, keys: u64) {
        self.expected = usize::try_from(keys).unwrap_or(usize::MAX);
    }

    /// By what it knows a key.
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let half = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(seed);
            hasher.write(key);
            hasher.finish()
        };
        (half(self.seed), half(!self.seed))
    }

    /// The place of a hash, or the one where it would go.
    fn place(&self, hash: KeyHash) -> usize {
        let places = self.entries.len();
        let mut at = ((u128::from(hash.0) * places as u128) >> 64) as usize;
        while self.entries[at].ordinal != NONE && self.entries[at].hash != hash {
            at = (at + 1) % places;
        }
        at
    }

    /// Notes that `key` has a record with this ordinal, which is higher than all before. False if there is no room.
    pub(crate) fn note(&mut self, key: &[u8], ordinal: u64) -> bool {
        if self.entries.is_empty() {
            let keys = self.keys_max.min(self.expected);
            self.entries = vec![Entry { hash: (0, 0), ordinal: NONE }; keys / 3 * 4 + 4];
        }
        let hash = self.hash(key);
        let at = self.place(hash);
        if self.entries[at].ordinal == NONE {
            if self.keys == self.keys_max.min(self.expected) {
                return false;
            }
            self.keys += 1;
        }
        self.entries[at] = Entry { hash, ordinal };
        true
    }

    /// Whether a record of `key` is known behind this ordinal.
    pub(crate) fn has_later(&self, key: &[u8], ordinal: u64) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let last = self.entries[self.place(self.hash(key))].ordinal;
        last != NONE && last > ordinal
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_last_ordinal_counts_until_there_is_no_room() {
        let mut map = OrdinalMap::new(24 * 1024, 7);
        let mut known: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut full_at = None;
        for n in 0..4_000_u64 {
            let key = format!("key {}", n * n % 1_013).into_bytes();
            if !map.note(&key, n) {
                full_at = Some(n);
                break;
            }
            known.insert(key, n);
        }
        assert_eq!((known.len(), full_at), (507, None), "squares modulo a prime: half of the keys");
        for (key, last) in &known {
            assert!(!map.has_later(key, *last) && map.has_later(key, last - 1), "{last}");
        }
        assert!(!map.has_later(b"another", 0));
        let more = (0..).take_while(|n: &u64| map.note(&n.to_be_bytes(), 9_000)).count();
        assert_eq!(507 + more, 1024 / 4 * 3);
        assert!(map.note(&0_u64.to_be_bytes(), 9_001), "a key that is there needs no room");
        map.clear();
        assert!(!map.has_later(&0_u64.to_be_bytes(), 0));
        // A table for as many as there are, each of which finds a place.
        for keys in [1, 2, 3, 100] {
            map.expect(keys);
            assert!((0..keys).all(|n| map.note(&n.to_be_bytes(), 1)));
            assert!(map.entries.len() as u64 <= keys / 3 * 4 + 4);
            assert!((0..keys).all(|n| map.has_later(&n.to_be_bytes(), 0)) && !map.has_later(b"another", 0));
            map.clear();
        }
    }
}
