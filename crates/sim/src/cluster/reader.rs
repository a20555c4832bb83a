//! A reader of one lane: from somewhere on, in order, without a gap; and again from somewhere else.

use std::collections::BTreeSet;

use kera_format::chunk::Chunks;
use kera_format::{Cursor, LaneId, StreamId, StreamletId};
use kera_protocol::read::ENTRY_FOLLOW_GROUPS;
use kera_protocol::{Lookup, LookupResult, ReadChunks, ReadChunksResponse, ReadEntry, Start, Status};

use super::client::{Answer, Around, Client, PATIENCE_US, retry};
use super::truth::{Place, Truth, Violation};

const TURN_US: u64 = 100_000;
/// How long a read waits at the node, in milliseconds.
const WAIT_MS: u32 = 500;

enum Step {
    /// Nothing is asked; at the next turn a place is looked up.
    Lost,
    LooksUp,
    Reads,
    /// The last read has failed in a way that passes.
    Rests,
}

/// See the module.
pub(super) struct Reader {
    place: Place,
    /// Reads everything once, from the first record to the end, and is done.
    is_last: bool,
    step: Step,
    is_connected: bool,
    asked: u64,
    asked_us: u64,
    cursor: Cursor,
    /// The ordinal that must come next.
    next: u64,
    from: Start,
    is_done: bool,
    last_problem: String,
}

/// Looks at every record of an answer's data; gives the ordinal behind the last one.
pub(crate) fn check_data(truth: &mut Truth, place: Place, next: u64, data: &[u8]) -> Result<u64, Violation> {
    check_chunks(truth, place, next, data, None)
}

/// The same of a compacted lane, of which records may have been removed. Notes which ordinals are there.
pub(crate) fn check_compacted(
    truth: &mut Truth,
    place: Place,
    next: u64,
    data: &[u8],
    seen: &mut BTreeSet<u64>,
) -> Result<u64, Violation> {
    check_chunks(truth, place, next, data, Some(seen))
}

fn check_chunks(
    truth: &mut Truth,
    place: Place,
    next: u64,
    data: &[u8],
    mut compacted: Option<&mut BTreeSet<u64>>,
) -> Result<u64, Violation> {
    let wrong = |what: String| Violation(format!("{place}, at {next}: {what}"));
    let mut next = next;
    for chunk in Chunks::new(data) {
        let chunk = chunk.map_err(|error| wrong(format!("what was read is no chunk: {error}")))?;
        chunk.verify().map_err(|error| wrong(format!("a damaged chunk was served: {error}")))?;
        let stamped =
            chunk.broker().map_err(|error| wrong(format!("a chunk without its place was served: {error}")))?;
        let header = chunk.header();
        if (header.stream.0, header.streamlet.0, stamped.lane.0) != (place.stream, place.streamlet, place.lane) {
            return Err(wrong(format!("a chunk of another lane was served: {header:?}")));
        }
        let (base, end) = (stamped.base_ordinal, stamped.base_ordinal + u64::from(header.record_count));
        if base > next && compacted.is_some() {
            truth.removed_at(place, next..base);
            next = base;
        }
        if base > next || end <= next {
            return Err(wrong(format!("the chunk of records {base} to {end} came where {next} was to come")));
        }
        let payload = chunk.uncompressed().map_err(|error| wrong(format!("a chunk cannot be opened: {error}")))?;
        let mut ordinal = base;
        for record in kera_format::Records::new(&payload) {
            let record = record.map_err(|error| wrong(format!("a record cannot be read: {error}")))?;
            match (record.value(), &mut compacted) {
                (_, Some(_)) if record.is_removed() => truth.removed_at(place, ordinal..ordinal + 1),
                (Some(value), seen) => {
                    truth.read_at(place, ordinal, value)?;
                    seen.iter_mut().for_each(|seen| _ = seen.insert(ordinal));
                }
                (None, Some(seen)) => {
                    truth.tombstone_at(place, ordinal, record.timestamp_ms().unwrap_or(0).cast_unsigned())?;
                    seen.insert(ordinal);
                }
                (None, None) => return Err(wrong(format!("record {ordinal} has no value"))),
            }
            ordinal += 1;
        }
        if ordinal != end {
            return Err(wrong(format!("a chunk of {} records has {}", header.record_count, ordinal - base)));
        }
        next = end;
    }
    Ok(next)
}

impl Reader {
    /// One that reads for as long as the run lasts.
    pub(super) fn new(place: Place) -> Reader {
        Reader {
            place,
            is_last: false,
            step: Step::Lost,
            is_connected: false,
            asked: 0,
            asked_us: 0,
            cursor: Cursor::default(),
            next: 0,
            from: Start::Earliest,
            is_done: false,
            last_problem: String::new(),
        }
    }

    /// One that reads everything there is, once nobody writes any more.
    pub(super) fn last(place: Place) -> Reader {
        Reader { is_last: true, ..Reader::new(place) }
    }

    fn look_up(&mut self, around: &mut Around<'_>) {
        let Place { stream, streamlet, lane } = self.place;
        let (stream, streamlet, lane) = (StreamId(stream), StreamletId(streamlet), LaneId(lane));
        self.asked = around.send(&Lookup { stream, streamlet, lane, at: self.from });
        (self.asked_us, self.step) = (around.now_us, Step::LooksUp);
    }

    fn read(&mut self, around: &mut Around<'_>) {
        let Place { stream, streamlet, lane } = self.place;
        let entry = ReadEntry {
            stream: StreamId(stream),
            streamlet: StreamletId(streamlet),
            lane: LaneId(lane),
            cursor: self.cursor,
            max_bytes: 0,
            flags: ENTRY_FOLLOW_GROUPS,
        };
        let max_bytes = 1 << (10 + around.below(8));
        let request = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes, entries: vec![entry] };
        self.asked = around.send(&request);
        (self.asked_us, self.step) = (around.now_us, Step::Reads);
    }

    fn found(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let found: LookupResult = answer.decode()?;
        let known = around.truth.end(self.place);
        if found.first_ordinal != 0 && known > 0 {
            let first = found.first_ordinal;
            return Err(Violation(format!("{} begins at {first}, and nothing was to be deleted", self.place)));
        }
        if let Start::Ordinal(asked) = self.from
            && found.ordinal > asked
        {
            return Err(Violation(format!("{}: {asked} was asked for, {} was found", self.place, found.ordinal)));
        }
        (self.cursor, self.next) = (found.cursor, found.ordinal);
        self.read(around);
        Ok(())
    }

    fn take(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let response: ReadChunksResponse = answer.decode()?;
        for (one, data) in &response.answers {
            match one.status().expect("a status of this build") {
                Status::Ok => {
                    if !data.is_empty() {
                        self.next = check_data(around.truth, self.place, self.next, data)?;
                    }
                    self.cursor = one.next;
                    if self.is_last && data.is_empty() && self.next == one.durable_ordinal && !one.end_of_group() {
                        return self.ended(around);
                    }
                }
                status @ (Status::CursorGone | Status::CursorUnknown) => {
                    // A node that lost power may have lost the group that it had opened and nobody had written to.
                    self.last_problem = status.name().to_owned();
                    (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
                    return Ok(());
                }
                status if status.retryable() => {
                    self.last_problem = status.name().to_owned();
                    self.step = Step::Rests;
                    return Ok(());
                }
                other => return Err(Violation(format!("{}: a read is refused: {}", self.place, other.name()))),
            }
        }
        if self.is_last && response.answers.is_empty() && self.next == around.truth.end(self.place) {
            return self.ended(around);
        }
        match (self.is_last, around.below(40)) {
            (false, 0) => self.step = Step::Lost,
            _ => self.read(around),
        }
        Ok(())
    }

    fn ended(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_done = true;
        around.truth.read_whole(self.place, self.next)
    }
}

impl Client for Reader {
    fn connected(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = true;
        self.step = Step::Lost;
        around.timer(1);
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if answer.header.correlation != self.asked || self.is_done {
            return Ok(());
        }
        if answer.status() != Status::Ok {
            retry(answer, "a read")?;
            self.last_problem = answer.error();
            self.step = Step::Rests;
            return Ok(());
        }
        match self.step {
            Step::LooksUp => self.found(answer, around),
            Step::Reads => self.take(answer, around),
            Step::Lost | Step::Rests => Err(Violation("a reader got an answer and had not asked".to_owned())),
        }
    }

    fn lost(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_connected = false;
        // Where it goes on is its own business: the ordinal is what it has, cursors of lost groups are worth nothing.
        self.from = Start::Ordinal(self.next);
        around.connect();
        Ok(())
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.is_done || !self.is_connected {
            return Ok(());
        }
        match self.step {
            Step::Lost => {
                if !self.is_last {
                    let end = around.truth.end(self.place);
                    self.from = match around.below(3) {
                        0 => Start::Earliest,
                        1 if end > 0 => Start::Ordinal(around.below(end)),
                        _ => Start::Ordinal(self.next),
                    };
                }
                self.look_up(around);
            }
            Step::Rests => self.look_up(around),
            _ if around.now_us > self.asked_us + PATIENCE_US => return self.lost(around),
            _ => {}
        }
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, _: &Truth) -> bool {
        self.is_done || !self.is_last
    }

    fn state(&self) -> String {
        format!("reader of {}: at {}, {}", self.place, self.next, self.last_problem)
    }
}
