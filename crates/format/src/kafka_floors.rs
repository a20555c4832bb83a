//! The records that keep where the partitions of Kafka topics begin once records were deleted from their front (DeleteRecords),
//! in the system stream `_kera.floors`.
//!
//! Ordinary KerA records in ordinary chunks. The primary key says of which lane, in decimal; the last record of a key counts:
//!
//! ```text
//! floor/STREAM/STREAMLET/LANE
//! ```
//! Without a value the lane begins where its log does. A value:
//!
//! ```text
//! offset  bytes  field
//!      0      1  version   1
//!      1      7  zero
//!      8      8  ordinal   of the first record that is there
//! ```

use crate::wire::{put, u64_at};
use crate::{ChunkBuilder, FormatError, LaneId, Record, RecordView, StreamId, StreamletId};

/// The version of the layout of values.
pub const KAFKA_FLOORS_VERSION: u8 = 1;
/// Bytes of a value.
const FLOOR_BYTES: usize = 16;

/// One record: where a lane begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletId,
    /// The lane in that.
    pub lane: LaneId,
    /// The ordinal of its first record; `None`: that of its log.
    pub ordinal: Option<u64>,
}

impl Entry {
    /// Appends the record of this entry to a chunk.
    pub fn encode(&self, into: &mut ChunkBuilder) {
        let key = format!("floor/{}/{}/{}", self.stream.0, self.streamlet.0, self.lane.0);
        let value = self.ordinal.map(|ordinal| {
            let mut value = [0; FLOOR_BYTES];
            value[0] = KAFKA_FLOORS_VERSION;
            put(&mut value, 8, &ordinal.to_le_bytes());
            value
        });
        let value = value.as_ref().map(|value| &value[..]);
        into.push(&Record { keys: &[key.as_bytes()], value, ..Record::default() });
    }

    /// What a record tells.
    ///
    /// # Errors
    /// The key is not of this kind, or the value not one of this version.
    pub fn decode(record: &RecordView<'_>) -> Result<Entry, FormatError> {
        let bad = |field, value: u64, allowed| FormatError::BadField { field, value, allowed };
        let bytes = record.key().unwrap_or_default();
        let wrong = || bad("floors.key", bytes.len() as u64, "floor/…/…/…");
        let key = std::str::from_utf8(bytes).map_err(|_| wrong())?;
        let mut parts = key.strip_prefix("floor/").ok_or_else(wrong)?.split('/');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or_else(wrong);
        let (stream, streamlet, lane) = (number()?, number()?, number()?);
        let (Ok(streamlet), Ok(lane), None) = (u32::try_from(streamlet), u32::try_from(lane), parts.next()) else {
            return Err(wrong());
        };
        let ordinal = match record.value() {
            None => None,
            Some(value) => {
                FormatError::need("floor", FLOOR_BYTES, value.len())?;
                if value.len() > FLOOR_BYTES {
                    return Err(bad("floor (bytes)", value.len() as u64, "16"));
                }
                if value[0] != KAFKA_FLOORS_VERSION {
                    return Err(bad("floors.version", value[0].into(), "1"));
                }
                if value[1..8] != [0; 7] {
                    return Err(bad("floors.zero", 1, "0"));
                }
                Some(u64_at(value, 8))
            }
        };
        Ok(Entry { stream: StreamId(stream), streamlet: StreamletId(streamlet), lane: LaneId(lane), ordinal })
    }
}
