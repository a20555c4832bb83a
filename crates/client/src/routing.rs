//! Which streamlet a record goes to.

/// How a producer chooses a record's streamlet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Routing {
    /// Records with a key by the hash of their primary key (see [`streamlet_of_key`]), records without one round robin:
    /// a chunk's worth to each streamlet in turn.
    #[default]
    Key,
    /// Round robin, keys or not.
    RoundRobin,
    /// All to one streamlet.
    Streamlet(u32),
}

/// The streamlet that records with `key` go to in a stream of `streamlets` times `lanes`.
///
/// The hash is murmur2 with the seed of Kafka's default partitioner, its sign bit cleared, modulo `streamlets × lanes`.
/// That is the partition that a Kafka client chooses for the same key, and partition p is in streamlet p / lanes: so
/// Kafka clients and native ones agree on a key's streamlet. It is part of the format: it never changes.
#[inline]
pub fn streamlet_of_key(key: &[u8], streamlets: u32, lanes: u32) -> u32 {
    let partitions = streamlets.saturating_mul(lanes).max(1);
    (murmur2(key) & 0x7fff_ffff) % partitions / lanes.max(1)
}

/// MurmurHash2, 32 bits, seed 0x9747b28c, as Kafka's clients compute it.
#[inline]
pub fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c_u32 ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafka_clients() {
        // From the unit tests of Kafka's and other clients' partitioners.
        for (key, hash) in [
            ("21", -973932308_i32),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash as u32, "{key}");
        }
    }

    #[test]
    fn streamlets_follow_partitions() {
        for key in ["", "a", "ab", "abc", "abcd", "abcde"] {
            let partition = (murmur2(key.as_bytes()) & 0x7fff_ffff) % 12;
            assert_eq!(streamlet_of_key(key.as_bytes(), 12, 1), partition);
            assert_eq!(streamlet_of_key(key.as_bytes(), 4, 3), partition / 3);
            assert_eq!(streamlet_of_key(key.as_bytes(), 1, 1), 0);
        }
    }
}
