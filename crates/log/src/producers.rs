//! What a lane knows about the producers that write to it: enough to append a retried chunk once (promise 3).

use kera_format::{ProducerEpoch, ProducerId};

/// One chunk of a producer, as deduplication remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerMark {
    /// Who made it.
    pub producer_id: ProducerId,
    /// In which incarnation.
    pub producer_epoch: ProducerEpoch,
    /// Its number.
    pub sequence: u64,
    /// The ordinal that it got.
    pub base_ordinal: u64,
    /// Where it is in its segment.
    pub position: u32,
}
