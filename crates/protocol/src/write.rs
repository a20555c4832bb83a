//! `WriteChunks`, the hot path of producers: chunks are used where they lie in the frame.
//!
//! ```text
//! request                              response
//! offset  bytes  field                 offset  bytes  field
//!      0      4  chunk_count                0      4  count         as many as there were chunks
//!      4      4  timeout_ms                 4      4  zero
//!      8      …  chunks, back to back       8   32×n  results, in the order of the chunks
//!
//! from version 2 on
//!      8      4  skip_count
//!     12      4  zero
//!     16   16×n  skips, in the order of their chunks
//!      …      …  chunks, back to back
//!
//! skip                                 in front of which chunks sequences are skipped
//! offset  bytes  field
//!      0      4  index         of the chunk in the request
//!      4      4  zero
//!      8      8  from          the first that is
//!
//! result
//! offset  bytes  field
//!      0      2  status
//!      2      2  flags         1: was there already, from an earlier try; 2: what is missing may be forgotten
//!      4      4  lane
//!      8      8  group
//!     16      8  base_ordinal  of the chunk's first record
//!     24      4  segment
//!     28      4  position      where the chunk starts in the segment
//! ```
//! With status `SequenceGap`, `base_ordinal` is the sequence that is expected; with `StaleEpoch`, the current epoch. Flag 2 comes with `SequenceGap` only, in answers
//! to version 2 and later, and nobody needs to look at it.

use crate::{Body, Message, Op, ProtocolError, Status};
use bytes::Bytes;
use kera_format::chunk::Skip;
use kera_format::{CHUNK_HEADER_BYTES, ChunkView, Cursor, GroupId, LaneId, SegmentIndex};

/// Bytes of the request's body before its chunks in version 1, and before the count of its skips otherwise.
pub const WRITE_HEAD_BYTES: usize = 8;
/// Bytes in front of the chunks of a request that has one skip or none, of any version, at most.
pub const WRITE_FRONT_BYTES_MAX: usize = WRITE_HEAD_BYTES + SKIP_COUNT_BYTES + SKIP_BYTES;
/// Bytes that say how many skips there are.
const SKIP_COUNT_BYTES: usize = 8;
/// Bytes of a skip.
pub const SKIP_BYTES: usize = 16;
/// Bytes of the response's body before its results.
pub const RESULTS_HEAD_BYTES: usize = 8;
/// Bytes of one result.
pub const RESULT_BYTES: usize = 32;
/// Result flag: the chunk was appended by an earlier try; the result is that one's.
pub const RESULT_DUPLICATE: u16 = 1;
/// Result flag: what is missing may be forgotten.
const RESULT_FORGOT: u16 = 2;

/// The body's first 8 bytes, for a request whose chunks follow in buffers of their own.
#[inline]
pub fn write_head(chunk_count: u32, timeout_ms: u32) -> [u8; WRITE_HEAD_BYTES] {
    (u64::from(chunk_count) | u64::from(timeout_ms) << 32).to_le_bytes()
}

/// A skip, and the number of its chunk in the request.
type Skipping = (u32, Skip);

/// Writes what is in front of the chunks of a request whose chunks follow in buffers of their own. Version 1 has no room for skips: whoever speaks it has none.
pub fn write_front(version: u8, chunk_count: u32, timeout_ms: u32, skips: &[Skipping], out: &mut Vec<u8>) {
    out.extend_from_slice(&write_head(chunk_count, timeout_ms));
    if version < 2 {
        debug_assert!(skips.is_empty(), "version 1 has no skips");
        return;
    }
    out.extend_from_slice(&(skips.len() as u64).to_le_bytes());
    for (index, Skip { from }) in skips {
        out.extend_from_slice(&u64::from(*index).to_le_bytes());
        out.extend_from_slice(&from.to_le_bytes());
    }
}

/// Reads the skips in front of the chunks, and where those begin.
fn split_skips(body: &[u8], chunk_count: u32) -> Result<(&[[u8; SKIP_BYTES]], &[u8]), ProtocolError> {
    let Some((head, rest)) = body.split_first_chunk::<SKIP_COUNT_BYTES>() else {
        let (field, need) = ("WriteChunks.skip_count", SKIP_COUNT_BYTES);
        return Err(ProtocolError::Truncated { field, need, have: body.len() });
    };
    let head = u64::from_le_bytes(*head);
    let (count, zero) = (head as u32, head >> 32);
    if zero != 0 {
        return Err(ProtocolError::BadField { field: "WriteChunks.zero", value: zero, allowed: "0" });
    }
    let fits = (rest.len() / SKIP_BYTES).min(chunk_count as usize);
    if count as usize > fits {
        let field = "WriteChunks.skip_count";
        return Err(ProtocolError::Count { field, count: count.into(), fits: fits as u64 });
    }
    let (skips, chunks) = rest.split_at(count as usize * SKIP_BYTES);
    let skips = skips.as_chunks().0;
    let mut least = 0;
    for bytes in skips {
        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        if value >> 32 != 0 {
            let field = "WriteChunks.skips.zero";
            return Err(ProtocolError::BadField { field, value: value >> 32, allowed: "0" });
        }
        if value as u32 >= chunk_count || (value as u32) < least {
            let (field, allowed) = ("WriteChunks.skips.index", "chunks of the request, in their order");
            return Err(ProtocolError::BadField { field, value: value & 0xffff_ffff, allowed });
        }
        least = value as u32 + 1;
    }
    Ok((skips, chunks))
}

fn skipping(bytes: &[u8; SKIP_BYTES]) -> Skipping {
    let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    (word(0) as u32, Skip { from: word(1) })
}

/// A request in place.
#[derive(Clone, Copy, Debug)]
pub struct WriteChunksView<'a> {
    chunk_count: u32,
    timeout_ms: u32,
    can_skip: bool,
    skips: &'a [[u8; SKIP_BYTES]],
    chunks: &'a [u8],
}

impl<'a> WriteChunksView<'a> {
    /// Reads the head of a body and checks that the count can be; chunks are read one by one as they are iterated over.
    #[inline]
    pub fn parse(version: u8, body: &'a [u8]) -> Result<WriteChunksView<'a>, ProtocolError> {
        Op::WriteChunks.check_version(version)?;
        let Some((head, chunks)) = body.split_first_chunk::<WRITE_HEAD_BYTES>() else {
            return Err(ProtocolError::Truncated { field: "WriteChunks", need: WRITE_HEAD_BYTES, have: body.len() });
        };
        let head = u64::from_le_bytes(*head);
        let (chunk_count, timeout_ms) = (head as u32, (head >> 32) as u32);
        let (skips, chunks) = match version {
            ..2 => (&[] as &[_], chunks),
            _ => split_skips(chunks, chunk_count)?,
        };
        let fits = chunks.len() / CHUNK_HEADER_BYTES;
        if chunk_count as usize > fits {
            let field = "WriteChunks.chunk_count";
            return Err(ProtocolError::Count { field, count: chunk_count.into(), fits: fits as u64 });
        }
        Ok(WriteChunksView { chunk_count, timeout_ms, can_skip: version >= 2, skips, chunks })
    }

    /// How many chunks it announces.
    #[inline]
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// For how long the broker may hold the request while there is no room, in milliseconds; zero: the broker's
    /// default.
    #[inline]
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// Whether whoever asks knows how sequences are skipped.
    #[inline]
    pub fn can_skip(&self) -> bool {
        self.can_skip
    }

    /// Which sequences the producer of a chunk skips in front of it, if it does.
    #[inline]
    pub fn skip(&self, index: u32) -> Option<Skip> {
        // They are in the order of their chunks, as `parse` has seen: a request may have as many as it has chunks.
        let found = self.skips.binary_search_by_key(&index, |bytes| skipping(bytes).0).ok()?;
        Some(skipping(&self.skips[found]).1)
    }

    /// All skips, with the numbers of their chunks.
    pub fn skips(&self) -> impl Iterator<Item = Skipping> + 'a {
        self.skips.iter().map(skipping)
    }

    /// The bytes of all chunks.
    #[inline]
    pub fn chunk_bytes(&self) -> &'a [u8] {
        self.chunks
    }

    /// The chunks in order, no checksum verified. Ends after the first error. Bytes behind the last chunk are an error
    /// too, given after the last chunk.
    #[inline]
    pub fn chunks(&self) -> WriteChunksIter<'a> {
        WriteChunksIter { chunks: self.chunks, at: 0, index: 0, chunk_count: self.chunk_count }
    }

    /// Goes on where an iterator over the same body was: its [`index`](WriteChunksIter::index) and
    /// [`offset`](WriteChunksIter::offset).
    #[inline]
    pub fn chunks_from(&self, index: u32, offset: usize) -> WriteChunksIter<'a> {
        WriteChunksIter { chunks: self.chunks, at: offset.min(self.chunks.len()), index, chunk_count: self.chunk_count }
    }
}

/// The chunks of a request, see [`WriteChunksView::chunks`].
#[derive(Clone, Debug)]
pub struct WriteChunksIter<'a> {
    chunks: &'a [u8],
    at: usize,
    index: u32,
    chunk_count: u32,
}

impl WriteChunksIter<'_> {
    /// The number of the next chunk.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Where the next chunk starts, in bytes from the first.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for WriteChunksIter<'a> {
    type Item = Result<ChunkView<'a>, ProtocolError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.chunk_count {
            let bytes = self.chunks.len() - self.at;
            self.at = self.chunks.len();
            return if bytes == 0 { None } else { Some(Err(ProtocolError::Trailing { bytes })) };
        }
        match ChunkView::parse(&self.chunks[self.at..]) {
            Ok(chunk) => {
                self.at += chunk.as_bytes().len();
                self.index += 1;
                Some(Ok(chunk))
            }
            Err(error) => {
                let index = self.index;
                (self.at, self.index) = (self.chunks.len(), self.chunk_count);
                Some(Err(ProtocolError::Chunk { index, error }))
            }
        }
    }
}

/// What became of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkResult {
    /// How it went, as a number: a server that is ahead may send some that are unknown here.
    pub status: u16,
    /// Whether it had been appended by an earlier try; the place is that one's.
    pub duplicate: bool,
    /// With [`Status::SequenceGap`]: the lane may have had the sequences that are missing, and have forgotten them, as it does when retention has taken them.
    pub forgot: bool,
    /// The lane it was appended to.
    pub lane: LaneId,
    /// Where it is; zero when it was not appended.
    pub cursor: Cursor,
    /// The lane's number of its first record; for some statuses something else, see the module.
    pub base_ordinal: u64,
}

impl ChunkResult {
    /// A chunk that was not appended. `detail` goes where the ordinal goes, see the module.
    pub fn failed(status: Status, detail: u64) -> ChunkResult {
        ChunkResult {
            status: status as u16,
            duplicate: false,
            forgot: false,
            lane: LaneId(0),
            cursor: Cursor::default(),
            base_ordinal: detail,
        }
    }

    pub(crate) fn flags(&self) -> u16 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        flag(self.duplicate, RESULT_DUPLICATE) | flag(self.forgot, RESULT_FORGOT)
    }

    /// The status, if this build knows it.
    #[inline]
    pub fn status(&self) -> Option<Status> {
        Status::from_u16(self.status)
    }

    /// The 32 bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; RESULT_BYTES] {
        let flags = self.flags();
        let first = u64::from(self.status) | u64::from(flags) << 16 | u64::from(self.lane.0) << 32;
        let last = u64::from(self.cursor.segment.0) | u64::from(self.cursor.position) << 32;
        let mut out = [0; RESULT_BYTES];
        for (to, value) in out.chunks_exact_mut(8).zip([first, self.cursor.group.0, self.base_ordinal, last]) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// From the 32 bytes. Unknown flags are ignored.
    #[inline]
    pub fn from_bytes(bytes: &[u8; RESULT_BYTES]) -> ChunkResult {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let (first, last) = (word(0), word(3));
        ChunkResult {
            status: first as u16,
            duplicate: (first >> 16) as u16 & RESULT_DUPLICATE != 0,
            forgot: (first >> 16) as u16 & RESULT_FORGOT != 0,
            lane: LaneId((first >> 32) as u32),
            cursor: Cursor {
                group: GroupId(word(1)),
                segment: SegmentIndex(last as u32),
                position: (last >> 32) as u32,
            },
            base_ordinal: word(2),
        }
    }
}

/// Writes a response's body result by result into a buffer that may have a frame's header in front.
pub struct ChunkResults<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> ChunkResults<'a> {
    /// Starts a body at the end of `out`, with room for `count` results.
    #[inline]
    pub fn begin(out: &'a mut Vec<u8>, count: u32) -> ChunkResults<'a> {
        let start = out.len();
        out.reserve(RESULTS_HEAD_BYTES + count as usize * RESULT_BYTES);
        out.extend_from_slice(&[0; RESULTS_HEAD_BYTES]);
        ChunkResults { out, start }
    }

    /// Appends the result of the next chunk.
    #[inline]
    pub fn push(&mut self, result: &ChunkResult) {
        self.out.extend_from_slice(&result.to_bytes());
    }

    /// Writes how many there are.
    #[inline]
    pub fn finish(self) {
        let count = (self.out.len() - self.start - RESULTS_HEAD_BYTES) / RESULT_BYTES;
        self.out[self.start..self.start + 4].copy_from_slice(&(count as u32).to_le_bytes());
    }
}

/// The results of a response's body, in place.
pub fn parse_results(body: &[u8]) -> Result<impl ExactSizeIterator<Item = ChunkResult> + '_, ProtocolError> {
    let Some((head, results)) = body.split_first_chunk::<RESULTS_HEAD_BYTES>() else {
        let field = "WriteChunksResponse";
        return Err(ProtocolError::Truncated { field, need: RESULTS_HEAD_BYTES, have: body.len() });
    };
    let head = u64::from_le_bytes(*head);
    if head >> 32 != 0 {
        return Err(ProtocolError::BadField { field: "WriteChunksResponse.zero", value: head >> 32, allowed: "0" });
    }
    let (results, rest) = results.as_chunks::<RESULT_BYTES>();
    let field = "WriteChunksResponse.count";
    if head > results.len() as u64 {
        return Err(ProtocolError::Count { field, count: head, fits: results.len() as u64 });
    }
    let trailing = (results.len() - head as usize) * RESULT_BYTES + rest.len();
    if trailing != 0 {
        return Err(ProtocolError::Trailing { bytes: trailing });
    }
    Ok(results.iter().map(ChunkResult::from_bytes))
}

/// A request whose chunks lie in one buffer. Producers that keep them in several build the frame themselves, with
/// [`write_head`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteChunks {
    /// For how long the broker may hold the request while there is no room, in milliseconds; zero: the broker's
    /// default.
    pub timeout_ms: u32,
    /// How many chunks there are.
    pub chunk_count: u32,
    /// Where sequences are skipped: in front of which chunks, by their numbers in the request, in order, and which. From version 2 on.
    pub skips: Vec<(u32, Skip)>,
    /// Sealed chunks, back to back.
    pub chunks: Bytes,
}

impl Body for WriteChunks {
    fn encode(&self, version: u8, out: &mut Vec<u8>) {
        write_front(version, self.chunk_count, self.timeout_ms, &self.skips, out);
        out.extend_from_slice(&self.chunks);
    }
    fn decode(version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        let view = WriteChunksView::parse(version, body)?;
        for chunk in view.chunks() {
            chunk?;
        }
        Ok(WriteChunks {
            timeout_ms: view.timeout_ms(),
            chunk_count: view.chunk_count(),
            skips: view.skips().collect(),
            chunks: Bytes::copy_from_slice(view.chunk_bytes()),
        })
    }
}

/// What became of the chunks of a request, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteChunksResponse {
    /// One for each chunk.
    pub results: Vec<ChunkResult>,
}

impl Body for WriteChunksResponse {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        let mut results = ChunkResults::begin(out, self.results.len() as u32);
        self.results.iter().for_each(|result| results.push(result));
        results.finish();
    }
    fn decode(_version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        Ok(WriteChunksResponse { results: parse_results(body)?.collect() })
    }
}

impl Message for WriteChunks {
    const OP: Op = Op::WriteChunks;
    type Response = WriteChunksResponse;
}
