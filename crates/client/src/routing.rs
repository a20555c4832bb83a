//! Which streamlet a record goes to.

use kera_format::murmur2;

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

#[cfg(test)]
mod tests {
    use super::*;

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
