//! Where lanes begin because a node has let go of what was in front: records one behind the other in the file `containers/begins` of the node's
//! first disk. Of several of a lane the one with the highest ordinal counts; behind one that does not read back nothing does.
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic       "KBGN"
//!      4      2  version     1
//!      6      2  zero
//!      8     16  node        uuid of the node that has let go of it
//!     24      8  stream
//!     32      4  streamlet
//!     36      4  lane
//!     40      8  ordinal     records below it the node has let go of itself: retention took them, or somebody deleted them
//!     48      4  zero
//!     52      4  checksum    CRC-32C of bytes 0..52
//! ```

use crate::checksum::crc32c;
use crate::wire::{put, u16_at, u32_at, u64_at};
use crate::{FormatError, LaneId, StreamId, StreamletId};

/// Bytes of a record.
pub const BEGIN_BYTES: usize = 56;
/// Its first four bytes: "KBGN".
pub const BEGIN_MAGIC: u32 = u32::from_le_bytes(*b"KBGN");
/// The version of the layout.
pub const BEGIN_VERSION: u16 = 1;

/// Where a lane begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Uuid of the node.
    pub node: [u8; 16],
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletId,
    /// The lane in that.
    pub lane: LaneId,
    /// The first ordinal that the node has not let go of.
    pub ordinal: u64,
}

impl Begin {
    /// The bytes.
    pub fn encode(&self) -> [u8; BEGIN_BYTES] {
        let mut out = [0; BEGIN_BYTES];
        put(&mut out, 0, &BEGIN_MAGIC.to_le_bytes());
        put(&mut out, 4, &BEGIN_VERSION.to_le_bytes());
        put(&mut out, 8, &self.node);
        put(&mut out, 24, &self.stream.0.to_le_bytes());
        put(&mut out, 32, &self.streamlet.0.to_le_bytes());
        put(&mut out, 36, &self.lane.0.to_le_bytes());
        put(&mut out, 40, &self.ordinal.to_le_bytes());
        let crc = crc32c(&out[..52]);
        put(&mut out, 52, &crc.to_le_bytes());
        out
    }

    /// Reads and verifies a record; what is behind it is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<Begin, FormatError> {
        FormatError::need("begin", BEGIN_BYTES, bytes.len())?;
        let bad = |field, value: u64, allowed| Err(FormatError::BadField { field, value, allowed });
        if u32_at(bytes, 0) != BEGIN_MAGIC {
            return bad("begin.magic", u32_at(bytes, 0).into(), "\"KBGN\"");
        }
        let (found, computed) = (u32_at(bytes, 52), crc32c(&bytes[..52]));
        if found != computed {
            return Err(FormatError::Checksum { what: "begin.checksum", found, computed });
        }
        if u16_at(bytes, 4) != BEGIN_VERSION {
            return bad("begin.version", u16_at(bytes, 4).into(), "1");
        }
        if u16_at(bytes, 6) != 0 || u32_at(bytes, 48) != 0 {
            return bad("begin.zero", 1, "0");
        }
        let mut node = [0; 16];
        node.copy_from_slice(&bytes[8..24]);
        Ok(Begin {
            node,
            stream: StreamId(u64_at(bytes, 24)),
            streamlet: StreamletId(u32_at(bytes, 32)),
            lane: LaneId(u32_at(bytes, 36)),
            ordinal: u64_at(bytes, 40),
        })
    }
}
