//! The lanes of one read or subscription, and how a frame is filled from them.
//!
//! Entries with something to read stand in a line; those that are read to the end leave it and come back when their lane
//! moves. Serving takes from the front and puts what has more at the back: so every lane has its turn, and quiet ones
//! cost nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kera_format::Cursor;
use kera_log::{Lane, LaneVersion, ReadError, ReadOutcome};
use kera_protocol::read::{
    ANSWER_COMMITTED, ANSWER_END_OF_GROUP, ANSWER_HOLES, ANSWER_MORE, ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED,
    write_answers,
};
use kera_protocol::{FrameHeader, ReadAnswer, ReadEntry, Status};
use kera_rpc::Outbox;

use crate::broker::Broker;
use crate::failure::{Failure, read_status};
use crate::moved::{self, Reading};
use crate::ownership::Ownership;
use crate::session::Core;
use crate::visible::{self, Shown};

/// The flags of an entry.
const ENTRY_FLAGS: u32 = ENTRY_FOLLOW_GROUPS | ENTRY_UNCOMMITTED;

/// One lane of a request.
pub(crate) struct Entry {
    pub(crate) lane: Arc<Lane>,
    /// Its slot in the session's lane table, once it waits.
    pub(crate) slot: Option<u32>,
    /// Number in the request.
    index: u32,
    cursor: Cursor,
    max_bytes: usize,
    follow: bool,
    /// Readers are shown what is not committed as well.
    uncommitted: bool,
    in_line: bool,
    /// Nothing more is read: the group ended, or the cursor cannot be read from.
    ended: bool,
}

/// What a serving has found: answers, and their data in the same order.
#[derive(Default)]
pub(crate) struct Gathered {
    answers: Vec<ReadAnswer>,
    data: Vec<Bytes>,
    pub(crate) data_bytes: usize,
    /// An answer tells something else than data.
    pub(crate) event: bool,
    /// Cursors whose data retention has taken.
    pub(crate) gone: u64,
    /// Entries that data was found for.
    pub(crate) found: Vec<u32>,
    /// Entries that are read to the end, and what they saw.
    pub(crate) quiet: Vec<(u32, LaneVersion)>,
}

impl Gathered {
    /// Empties it for the next serving.
    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        self.data.clear();
        self.found.clear();
        self.quiet.clear();
        self.data_bytes = 0;
        self.event = false;
        self.gone = 0;
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Adds the refusal of an entry that has no lane.
    pub(crate) fn refuse(&mut self, index: u32, cursor: Cursor, status: Status) {
        self.event = true;
        self.answers.push(ReadAnswer::failed(index, status, cursor, cursor));
    }

    /// Writes the frame: answers, then the data as it lies in the segments.
    pub(crate) fn send(&mut self, header: &FrameHeader, out: &mut Outbox) {
        let mut frame = out.begin(header);
        write_answers(&self.answers, frame.body());
        for data in self.data.drain(..) {
            frame.attach(data);
        }
        frame.finish();
    }
}

/// The lanes of one request.
pub(crate) struct Entries {
    pub(crate) list: Vec<Entry>,
    line: VecDeque<u32>,
    open: usize,
}

impl Entries {
    /// Resolves the lanes of a request; those that do not exist are refused into `gathered`. The line starts at entry
    /// `first`, modulo their number.
    pub(crate) fn resolve(core: &mut Core, asked: &[ReadEntry], first: usize, gathered: &mut Gathered) -> Entries {
        let mut list = Vec::with_capacity(asked.len());
        for (index, entry) in asked.iter().enumerate() {
            let found = core.streams.lane(&core.broker, entry.stream, entry.streamlet, entry.lane);
            match found {
                Ok(lane) => list.push(Entry {
                    lane: Arc::clone(lane),
                    slot: None,
                    index: index as u32,
                    cursor: entry.cursor,
                    max_bytes: if entry.max_bytes == 0 { usize::MAX } else { entry.max_bytes as usize },
                    follow: entry.flags & ENTRY_FOLLOW_GROUPS != 0,
                    uncommitted: entry.flags & ENTRY_UNCOMMITTED != 0,
                    in_line: true,
                    ended: false,
                }),
                Err(failure) => gathered.refuse(index as u32, entry.cursor, failure.status),
            }
        }
        let count = list.len() as u32;
        let first = first as u32 % count.max(1);
        Entries { line: (first..count).chain(0..first).collect(), open: list.len(), list }
    }

    /// Whether no entry can tell anything any more.
    pub(crate) fn all_ended(&self) -> bool {
        self.open == 0
    }

    /// Whether an entry stands in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// A lane has moved: its entry stands in line.
    pub(crate) fn moved(&mut self, entry: u32) {
        if let Some(found) = self.list.get_mut(entry as usize)
            && !found.in_line
            && !found.ended
        {
            found.in_line = true;
            self.line.push_back(entry);
        }
    }

    /// Reads from the entries in line until `budget` bytes are there. At most one round: an entry that has more stands
    /// at the back of the line for the next time. With `advance` cursors move, and ended entries end.
    pub(crate) fn gather(
        &mut self,
        broker: &Broker,
        budget: usize,
        frame_data_max: usize,
        advance: bool,
        into: &mut Gathered,
    ) {
        let (ownership, is_confirmed) = (broker.ownership(), broker.is_confirmed());
        for _ in 0..self.line.len() {
            if into.data_bytes >= budget {
                break;
            }
            let Some(number) = self.line.pop_front() else { break };
            let entry = &mut self.list[number as usize];
            let room = budget - into.data_bytes;
            let read = match is_confirmed {
                true => entry.read_shown(ownership, room),
                false => Ok((Reading::Elsewhere(entry.cursor), Shown::default())),
            };
            let (outcome, shown) = match read {
                Ok((Reading::Here(outcome), shown)) => (Ok(outcome), shown),
                Ok((Reading::Elsewhere(next), _)) => {
                    let owner = || ownership.hint(entry.lane.stream_id(), entry.lane.streamlet_id());
                    let hint = if is_confirmed { owner() } else { 0 };
                    entry.send_on(next, hint, advance, into);
                    entry.in_line = false;
                    self.open -= usize::from(entry.ended);
                    continue;
                }
                Err(error) => (Err(error), Shown::default()),
            };
            let fits = outcome.as_ref().map_or(true, |outcome| {
                // A first chunk may be larger than the budget, not than the frame.
                outcome.data_bytes <= room || (into.data_bytes == 0 && outcome.data_bytes <= frame_data_max)
            });
            if !fits && into.data_bytes > 0 {
                self.line.push_front(number);
                break;
            }
            let more = match outcome {
                Ok(outcome) if fits => entry.answer(outcome, shown, number, advance, into),
                Ok(outcome) => entry.fail(Status::FrameTooLarge, outcome.start, advance, into),
                Err(error) => {
                    let next = if let ReadError::Gone { earliest, .. } = &error { *earliest } else { entry.cursor };
                    entry.fail(read_status(&error), next, advance, into)
                }
            };
            if more {
                self.line.push_back(number);
            } else {
                entry.in_line = false;
            }
            self.open -= usize::from(entry.ended);
        }
    }
}

impl Entry {
    #[inline]
    fn read(&self, ownership: &Ownership, room: usize) -> Result<Reading, ReadError> {
        let max_bytes = room.min(self.max_bytes);
        let plain = moved::read_plain(&self.lane, self.cursor, max_bytes, self.follow, || ());
        plain.unwrap_or_else(|| moved::read(ownership, &self.lane, self.cursor, max_bytes, self.follow))
    }

    /// The same without what its reader may not see, and what was done for that.
    fn read_shown(&self, ownership: &Ownership, room: usize) -> Result<(Reading, Shown), ReadError> {
        // Another turn only if retention has taken what was read.
        let mut begins = None;
        loop {
            let mut reading = self.read(ownership, room)?;
            let shown = match &mut reading {
                Reading::Here(outcome) if !self.uncommitted => visible::narrow(&self.lane, outcome, &mut begins),
                _ => Some(Shown::default()),
            };
            if let Some(shown) = shown {
                return Ok((reading, shown));
            }
        }
    }

    /// Tells that another node has what comes next.
    fn send_on(&mut self, next: Cursor, hint: u64, advance: bool, into: &mut Gathered) {
        self.fail(Status::NotOwner, next, advance, into);
        if let Some(answer) = into.answers.last_mut() {
            answer.durable_ordinal = hint;
        }
    }

    /// Adds what a read has found. Whether there is more to read at once.
    fn answer(&mut self, outcome: ReadOutcome, shown: Shown, number: u32, advance: bool, into: &mut Gathered) -> bool {
        let ReadOutcome { start, data, data_bytes, next, end_of_group, at_durable_end, loading, .. } = outcome;
        let ends = end_of_group && !self.follow;
        let more = !(ends || at_durable_end || loading);
        if data_bytes > 0 || ends || shown.holes {
            let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
            into.answers.push(ReadAnswer {
                index: self.index,
                status: Status::Ok as u16,
                flags: flag(ends, ANSWER_END_OF_GROUP)
                    | flag(more, ANSWER_MORE)
                    | flag(shown.committed, ANSWER_COMMITTED)
                    | flag(shown.holes, ANSWER_HOLES),
                start,
                next,
                durable_ordinal: outcome.durable_ordinal,
                data_bytes: data_bytes as u32,
            });
            into.data.extend(data);
            into.found.push(number);
            into.data_bytes += data_bytes;
        }
        // If all was left out there are no bytes to wait for: where to go on is told at once.
        into.event |= ends || (shown.holes && data_bytes == 0);
        if advance {
            self.cursor = next;
            self.ended = ends;
        }
        if !more && !ends {
            into.quiet.push((number, outcome.version));
        }
        more
    }

    fn fail(&mut self, status: Status, next: Cursor, advance: bool, into: &mut Gathered) -> bool {
        into.event = true;
        into.gone += u64::from(status == Status::CursorGone);
        into.answers.push(ReadAnswer::failed(self.index, status, self.cursor, next));
        self.ended = advance;
        false
    }
}

/// Checks the entries of a request against the limits. `room` is how many more the connection may have.
pub(crate) fn check(asked: &[ReadEntry], room: usize) -> Result<(), Failure> {
    let limit = room.min(kera_protocol::limits::READ_ENTRIES_MAX);
    if asked.len() > limit {
        return Err(Failure::limit("entries (with those that wait on this connection)", asked.len(), limit));
    }
    if asked.is_empty() {
        return Err(Failure::argument("entries is empty, allowed is one or more"));
    }
    match asked.iter().position(|entry| entry.flags & !ENTRY_FLAGS != 0) {
        Some(at) => {
            let flags = asked[at].flags;
            Err(Failure::argument(format!("flags of entry {at} is {flags}, allowed are 0 to {ENTRY_FLAGS}")))
        }
        None => Ok(()),
    }
}
