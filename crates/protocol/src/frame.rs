//! The frame: 24 bytes of header, then a body.
//!
//! ```text
//! offset  bytes  field
//!      0      4  frame_bytes   of the whole frame, these four included
//!      4      2  op            see [`crate::Op`]
//!      6      1  version       of the operation
//!      7      1  flags         1 response, 2 pushed (always with 1); the rest zero
//!      8      8  correlation   chosen by who asks, repeated in what answers
//!     16      2  status        of a response, see [`crate::Status`]; zero in a request
//!     18      6  zero
//! ```
//! A response's body is an [`crate::ErrorBody`] if `status` is not zero, whatever `op` and `version` are.

use crate::ProtocolError;

/// Bytes of a frame before its body.
pub const FRAME_HEADER_BYTES: usize = 24;
/// The largest frame that any configuration allows.
pub const FRAME_BYTES_MAX: usize = kera_format::limits::FRAME_BYTES_MAX;
/// Flag: answers a request.
pub const FLAG_RESPONSE: u8 = 1;
/// Flag: one of many answers to a subscription; more follow without being asked for.
pub const FLAG_PUSH: u8 = 2;

/// A frame's header. `op` and `status` are kept as numbers: a peer that is ahead may send some that are unknown here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameHeader {
    /// Bytes of the whole frame, the header included.
    pub frame_bytes: u32,
    /// The operation, see [`crate::Op::from_u16`].
    pub op: u16,
    /// The operation's version.
    pub version: u8,
    /// [`FLAG_RESPONSE`], [`FLAG_PUSH`].
    pub flags: u8,
    /// Chosen by who asks, repeated in what answers.
    pub correlation: u64,
    /// Of a response, see [`crate::Status::from_u16`]; zero in a request.
    pub status: u16,
}

impl FrameHeader {
    /// Reads `frame_bytes` from the first four bytes of a frame and checks it against the smallest frame and
    /// `frame_bytes_max`: how much to wait for and to make room for.
    #[inline]
    pub fn parse_length(bytes: &[u8], frame_bytes_max: usize) -> Result<usize, ProtocolError> {
        let Some(length) = bytes.first_chunk::<4>() else {
            return Err(ProtocolError::Truncated { field: "frame.frame_bytes", need: 4, have: bytes.len() });
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length < FRAME_HEADER_BYTES || length > frame_bytes_max {
            return Err(ProtocolError::FrameSize {
                bytes: length as u64,
                min: FRAME_HEADER_BYTES as u64,
                max: frame_bytes_max as u64,
            });
        }
        Ok(length)
    }

    /// Reads the header at the start of `bytes`; the body need not be there yet.
    #[inline]
    pub fn parse(bytes: &[u8], frame_bytes_max: usize) -> Result<FrameHeader, ProtocolError> {
        let frame_bytes = FrameHeader::parse_length(bytes, frame_bytes_max)? as u32;
        let Some(h) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Err(ProtocolError::Truncated { field: "frame", need: FRAME_HEADER_BYTES, have: bytes.len() });
        };
        let bad = |field, value, allowed| Err(ProtocolError::BadField { field, value, allowed });
        let flags = h[7];
        if !matches!(flags, 0 | FLAG_RESPONSE | 3) {
            return bad("frame.flags", flags.into(), "0 (request), 1 (response) or 3 (pushed response)");
        }
        let status = u16::from_le_bytes([h[16], h[17]]);
        if flags == 0 && status != 0 {
            return bad("frame.status", status.into(), "0 in a request");
        }
        if h[18..24] != [0; 6] {
            return bad("frame.reserved", u64::from_le_bytes([h[18], h[19], h[20], h[21], h[22], h[23], 0, 0]), "0");
        }
        Ok(FrameHeader {
            frame_bytes,
            op: u16::from_le_bytes([h[4], h[5]]),
            version: h[6],
            flags,
            correlation: u64::from_le_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]),
            status,
        })
    }

    /// The 24 bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut h = [0; FRAME_HEADER_BYTES];
        h[0..4].copy_from_slice(&self.frame_bytes.to_le_bytes());
        h[4..6].copy_from_slice(&self.op.to_le_bytes());
        h[6] = self.version;
        h[7] = self.flags;
        h[8..16].copy_from_slice(&self.correlation.to_le_bytes());
        h[16..18].copy_from_slice(&self.status.to_le_bytes());
        h
    }

    /// Bytes of the body.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        (self.frame_bytes as usize).saturating_sub(FRAME_HEADER_BYTES)
    }

    /// Whether it answers something.
    #[inline]
    pub fn is_response(&self) -> bool {
        self.flags & FLAG_RESPONSE != 0
    }

    /// Whether it is one of many answers to a subscription.
    #[inline]
    pub fn is_push(&self) -> bool {
        self.flags & FLAG_PUSH != 0
    }

    /// The header of the response to this request; `frame_bytes` is filled in by
    /// [`finish_frame`] or by the caller.
    #[inline]
    pub fn response(&self, status: u16) -> FrameHeader {
        FrameHeader { frame_bytes: FRAME_HEADER_BYTES as u32, flags: FLAG_RESPONSE, status, ..*self }
    }
}

/// Appends a header whose size [`finish_frame`] fills in, and returns where the frame starts in `out`.
#[inline]
pub fn begin_frame(header: &FrameHeader, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&header.to_bytes());
    start
}

/// Writes the size of the frame that starts at `start`: everything in `out` from there on, plus `bytes_elsewhere` of
/// its body that follow in buffers of their own.
///
/// # Panics
/// If the frame is larger than 4 GiB: callers bound what they put into a frame.
#[inline]
pub fn finish_frame(out: &mut [u8], start: usize, bytes_elsewhere: usize) {
    let bytes = u32::try_from(out.len() - start + bytes_elsewhere).expect("a frame is smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
}
