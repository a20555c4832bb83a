//! `ReadChunks` and subscriptions: the hot path of consumers. Data is sent from the segments' memory and used where it
//! lies in the frame.
//!
//! ```text
//! body of a response and of every pushed frame
//! offset  bytes  field
//!      0      4  count
//!      4      4  zero
//!      8   56×n  answers
//!      …      …  the data of all answers, back to back, in their order
//!
//! answer
//! offset  bytes  field
//!      0      4  index            of the request's entry it answers
//!      4      2  status
//!      6      2  flags            1 end of group, 2 more can be read at once, 4 only what is committed, 8 chunks were left out
//!      8     16  start            cursor of the data's first byte: group, segment, position
//!     24     16  next             cursor to go on from
//!     40      8  durable_ordinal  of the record after the last one that can be read in the lane
//!     48      4  data_bytes       whole chunks, a multiple of 8
//!     52      4  zero
//! ```
//! Entries with nothing to tell are left out. Of a lane that transactions have written to, records of those that were aborted are
//! left out (flag 8: ordinals may jump, up to the first chunk behind), and records from the first transaction on that has not
//! ended; that both is so is what flag 4 says. With status `CursorGone`, `next` is the earliest cursor there is.

use crate::codec::{Reader, Wire, bytes_of, wire_struct};
use crate::message::{messages, responses};
use crate::spec::{Source, Trace};
use crate::{Body, Empty, ProtocolError, Status};
use bytes::Bytes;
use kera_format::chunk::Chunks;
use kera_format::{Cursor, GroupId, LaneId, SegmentIndex, StreamId, StreamletId};

/// Bytes of a body before its answers.
pub const READ_HEAD_BYTES: usize = 8;
/// Bytes of one answer.
pub const ANSWER_BYTES: usize = 56;
// Chunks behind a header, a head and any number of answers or results start aligned.
const _: () = assert!((crate::FRAME_HEADER_BYTES | READ_HEAD_BYTES | ANSWER_BYTES).is_multiple_of(8));
const _: () = assert!((crate::write::WRITE_HEAD_BYTES | crate::write::RESULTS_HEAD_BYTES).is_multiple_of(8));

/// Entry flag: at the end of a group go on with the lane's next one.
pub const ENTRY_FOLLOW_GROUPS: u32 = 1;
/// Entry flag: everything is read, records of transactions that have not ended or were aborted as well.
pub const ENTRY_UNCOMMITTED: u32 = 2;
/// Answer flag: the data ends the group, and `next` is where the lane's next group starts if it is known, or the end
/// of this group.
pub const ANSWER_END_OF_GROUP: u16 = 1;
/// Answer flag: there was more to read than the limits allowed.
pub const ANSWER_MORE: u16 = 2;
/// Answer flag: records of transactions are here only if they are committed, and `durable_ordinal` is where the first begins that
/// has not ended.
pub const ANSWER_COMMITTED: u16 = 4;
/// Answer flag: chunks were left out of the data or behind it, and their ordinals with them.
pub const ANSWER_HOLES: u16 = 8;

/// Where in a lane to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// At the first record there is.
    #[default]
    Earliest,
    /// After the last record there is.
    Latest,
    /// At the record with this number; at the first record there is when that one is gone.
    Ordinal(u64),
    /// At the first chunk appended at or after this time, milliseconds since 1970.
    TimeMs(i64),
}

impl Wire for Start {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Start::Earliest => out.push(0),
            Start::Latest => out.push(1),
            Start::Ordinal(ordinal) => {
                out.push(2);
                ordinal.put(out);
            }
            Start::TimeMs(time_ms) => {
                out.push(3);
                time_ms.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        match u8::get(from)? {
            0 => Ok(Start::Earliest),
            1 => Ok(Start::Latest),
            2 => Ok(Start::Ordinal(u64::get(from)?)),
            3 => Ok(Start::TimeMs(i64::get(from)?)),
            other => Err(from.bad(other.into(), "0 (earliest), 1 (latest), 2 (ordinal) or 3 (time)")),
        }
    }
    fn kind() -> String {
        "Start: u8 0 earliest; u8 1 latest; u8 2, then an ordinal as u64; or u8 3, then a time as i64".to_owned()
    }
    fn trace(&self, trace: &mut Trace) {
        let choice = bytes_of(self)[0];
        trace.leaf("choice", "u8", choice.to_string(), vec![choice]);
        match self {
            Start::Earliest | Start::Latest => {}
            Start::Ordinal(ordinal) => trace.inside("ordinal", ordinal),
            Start::TimeMs(time_ms) => trace.inside("time_ms", time_ms),
        }
    }
    fn sample(source: &mut Source<'_>) -> Self {
        match source.below(4) {
            0 => Start::Earliest,
            1 => Start::Latest,
            2 => Start::Ordinal(u64::sample(source)),
            _ => Start::TimeMs(i64::sample(source)),
        }
    }
}

wire_struct! {
    /// One lane to read from.
    #[derive(Copy)]
    pub struct ReadEntry {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The lane.
        pub lane: LaneId,
        /// Where to read on.
        pub cursor: Cursor,
        /// Most bytes of this lane in one answer; a first chunk that is larger comes all the same. Zero: no limit of
        /// its own.
        pub max_bytes: u32,
        /// [`ENTRY_FOLLOW_GROUPS`], [`ENTRY_UNCOMMITTED`]; the rest zero.
        pub flags: u32,
    }
}

wire_struct! {
    /// Reads from lanes. Answered as soon as `min_bytes` can be read, a lane has something else to tell (the end of its
    /// group, an error), there is some data and a lane has more that does not come with it (the next chunk does not fit, or
    /// is only on disk), or the time is up.
    pub struct ReadChunks {
        /// How long to wait for `min_bytes`, in milliseconds; zero: answer at once. Cut to
        /// [`crate::limits::WAIT_MS_MAX`].
        pub max_wait_ms: u32,
        /// Fewest bytes that are worth an answer; zero and one are the same.
        pub min_bytes: u32,
        /// Most bytes of data in the answer; a first chunk that is larger comes all the same. Zero: the server's limit.
        pub max_bytes: u32,
        /// What to read; at most [`crate::limits::READ_ENTRIES_MAX`]. Served in turn, so that none starves.
        pub entries: Vec<ReadEntry>,
    }
}

wire_struct! {
    /// Has data of lanes pushed, in frames with this request's correlation and a body as `ReadChunks` has it, as long
    /// as there is credit. A push uses up credit as much as its data has bytes; one push may overdraw it.
    pub struct Subscribe {
        /// Bytes of data that may be pushed until there is more [`Credit`].
        pub credit_bytes: u64,
        /// Most bytes of data in one push; a first chunk that is larger comes all the same. Zero: the server's limit.
        pub push_bytes_max: u32,
        /// What to read; at most [`crate::limits::READ_ENTRIES_MAX`].
        pub entries: Vec<ReadEntry>,
    }
}

wire_struct! {
    /// The subscription stands; pushes follow.
    pub struct Subscribed {
        /// Most bytes of data in one push, unless a single chunk is larger.
        pub push_bytes_max: u32,
    }
}

wire_struct! {
    /// Lets a subscription of this connection push more.
    #[derive(Copy)]
    pub struct Credit {
        /// The correlation of its `Subscribe`.
        pub subscription: u64,
        /// Bytes of data to add.
        pub credit_bytes: u64,
    }
}

wire_struct! {
    /// Ends a subscription of this connection. No push follows the answer.
    #[derive(Copy)]
    pub struct Unsubscribe {
        /// The correlation of its `Subscribe`.
        pub subscription: u64,
    }
}

messages! {
    Subscribe => Subscribed;
    Credit => Empty;
    Unsubscribe => Empty;
    ReadChunks => ReadChunksResponse;
}
responses!(Subscribed);

/// What is told about one entry of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAnswer {
    /// Number of the entry in the request.
    pub index: u32,
    /// How it went, as a number: a server that is ahead may send some that are unknown here.
    pub status: u16,
    /// [`ANSWER_END_OF_GROUP`], [`ANSWER_MORE`], [`ANSWER_COMMITTED`], [`ANSWER_HOLES`].
    pub flags: u16,
    /// Cursor of the data's first byte; the entry's own when there is no data.
    pub start: Cursor,
    /// Cursor to go on from.
    pub next: Cursor,
    /// Ordinal of the record after the last one that can be read in the lane.
    pub durable_ordinal: u64,
    /// Bytes of its data.
    pub data_bytes: u32,
}

impl ReadAnswer {
    /// An entry that cannot be read; `next` is where reading can go on, or the entry's cursor.
    pub fn failed(index: u32, status: Status, start: Cursor, next: Cursor) -> ReadAnswer {
        ReadAnswer { index, status: status as u16, flags: 0, start, next, durable_ordinal: 0, data_bytes: 0 }
    }

    /// The status, if this build knows it.
    pub fn status(&self) -> Option<Status> {
        Status::from_u16(self.status)
    }

    /// Whether the group ends here.
    pub fn end_of_group(&self) -> bool {
        self.flags & ANSWER_END_OF_GROUP != 0
    }

    /// Whether there was more to read.
    pub fn more(&self) -> bool {
        self.flags & ANSWER_MORE != 0
    }

    /// Whether records of transactions are there only if they are committed.
    pub fn committed(&self) -> bool {
        self.flags & ANSWER_COMMITTED != 0
    }

    /// Whether chunks were left out.
    pub fn holes(&self) -> bool {
        self.flags & ANSWER_HOLES != 0
    }

    /// The 56 bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; ANSWER_BYTES] {
        let cursor = |c: &Cursor| u64::from(c.segment.0) | u64::from(c.position) << 32;
        let words = [
            u64::from(self.index) | u64::from(self.status) << 32 | u64::from(self.flags) << 48,
            self.start.group.0,
            cursor(&self.start),
            self.next.group.0,
            cursor(&self.next),
            self.durable_ordinal,
            self.data_bytes.into(),
        ];
        let mut out = [0; ANSWER_BYTES];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From the 56 bytes. Unknown flags are kept.
    #[inline]
    pub fn from_bytes(bytes: &[u8; ANSWER_BYTES]) -> ReadAnswer {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let cursor = |group: u64, place: u64| Cursor {
            group: GroupId(group),
            segment: SegmentIndex(place as u32),
            position: (place >> 32) as u32,
        };
        let first = word(0);
        ReadAnswer {
            index: first as u32,
            status: (first >> 32) as u16,
            flags: (first >> 48) as u16,
            start: cursor(word(1), word(2)),
            next: cursor(word(3), word(4)),
            durable_ordinal: word(5),
            data_bytes: word(6) as u32,
        }
    }
}

/// Appends the part of a body before the data: 8 + 56 n bytes. The data follows as it is, in buffers of its own.
#[inline]
pub fn write_answers(answers: &[ReadAnswer], out: &mut Vec<u8>) {
    out.reserve(READ_HEAD_BYTES + answers.len() * ANSWER_BYTES);
    out.extend_from_slice(&(answers.len() as u64).to_le_bytes());
    for answer in answers {
        out.extend_from_slice(&answer.to_bytes());
    }
}

/// A response's or push's body in place.
#[derive(Clone, Copy, Debug)]
pub struct ReadChunksView<'a> {
    answers: &'a [[u8; ANSWER_BYTES]],
    data: &'a [u8],
}

impl<'a> ReadChunksView<'a> {
    /// Reads the head of a body and checks that the data of all answers is there, exactly.
    pub fn parse(body: &'a [u8]) -> Result<ReadChunksView<'a>, ProtocolError> {
        let Some((head, rest)) = body.split_first_chunk::<READ_HEAD_BYTES>() else {
            let field = "ReadChunksResponse";
            return Err(ProtocolError::Truncated { field, need: READ_HEAD_BYTES, have: body.len() });
        };
        let head = u64::from_le_bytes(*head);
        if head >> 32 != 0 {
            return Err(ProtocolError::BadField { field: "ReadChunksResponse.zero", value: head >> 32, allowed: "0" });
        }
        let fits = rest.len() / ANSWER_BYTES;
        if head > fits as u64 {
            let field = "ReadChunksResponse.count";
            return Err(ProtocolError::Count { field, count: head, fits: fits as u64 });
        }
        let (answers, data) = rest.split_at(head as usize * ANSWER_BYTES);
        let (answers, _) = answers.as_chunks::<ANSWER_BYTES>();
        let mut need = 0u64;
        for bytes in answers {
            let answer = ReadAnswer::from_bytes(bytes);
            if bytes[52..] != [0; 4] {
                let value = u32::from_le_bytes([bytes[52], bytes[53], bytes[54], bytes[55]]).into();
                return Err(ProtocolError::BadField { field: "ReadAnswer.zero", value, allowed: "0" });
            }
            if !answer.data_bytes.is_multiple_of(8) {
                let (field, value) = ("ReadAnswer.data_bytes", answer.data_bytes.into());
                return Err(ProtocolError::BadField { field, value, allowed: "a multiple of 8" });
            }
            need += u64::from(answer.data_bytes);
        }
        if need > data.len() as u64 {
            let field = "ReadChunksResponse.data";
            return Err(ProtocolError::Truncated { field, need: need as usize, have: data.len() });
        }
        if need < data.len() as u64 {
            return Err(ProtocolError::Trailing { bytes: data.len() - need as usize });
        }
        Ok(ReadChunksView { answers, data })
    }

    /// How many entries are answered.
    pub fn count(&self) -> usize {
        self.answers.len()
    }

    /// Bytes of all data.
    pub fn data_bytes(&self) -> usize {
        self.data.len()
    }

    /// The answers, each with its data.
    pub fn answers(&self) -> impl Iterator<Item = (ReadAnswer, &'a [u8])> + use<'a> {
        let mut rest = self.data;
        self.answers.iter().map(move |bytes| {
            let answer = ReadAnswer::from_bytes(bytes);
            let (data, after) = rest.split_at(answer.data_bytes as usize);
            rest = after;
            (answer, data)
        })
    }
}

/// A response or push whose data shares the memory of the frame it came in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadChunksResponse {
    /// What is told about the entries, each with its data: whole chunks, back to back.
    pub answers: Vec<(ReadAnswer, Bytes)>,
}

impl ReadChunksResponse {
    /// Reads a body without copying the data out of it.
    pub fn decode_shared(body: &Bytes) -> Result<ReadChunksResponse, ProtocolError> {
        let view = ReadChunksView::parse(body)?;
        let answers = view.answers().map(|(answer, data)| (answer, body.slice_ref(data))).collect();
        Ok(ReadChunksResponse { answers })
    }

    /// The chunks of one answer's data.
    pub fn chunks(data: &[u8]) -> Chunks<'_> {
        Chunks::new(data)
    }
}

impl Body for ReadChunksResponse {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        let answers: Vec<ReadAnswer> = self.answers.iter().map(|(answer, _)| *answer).collect();
        write_answers(&answers, out);
        for (_, data) in &self.answers {
            out.extend_from_slice(data);
        }
    }
    fn decode(_version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        ReadChunksResponse::decode_shared(&Bytes::copy_from_slice(body))
    }
}
