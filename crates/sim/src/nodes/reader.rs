//! A reader of one lane in a cluster: from somewhere on, in order, without a gap, at whoever owns it; and again from somewhere else.

use kera_format::{Cursor, LaneId, StreamId, StreamletId};
use kera_protocol::read::ENTRY_FOLLOW_GROUPS;
use kera_protocol::{Lookup, LookupResult, ReadChunks, ReadChunksResponse, ReadEntry, Start, Status};

use super::client::{Around, Client, Owned, PATIENCE_US, Wish};
use crate::cluster::client::{Answer, retry};
use crate::cluster::reader::check_data;
use crate::cluster::truth::{Place, Violation};

const TURN_US: u64 = 100_000;
/// How long a read waits at a node, in milliseconds.
const WAIT_MS: u32 = 300;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing is asked; at the next turn a place is looked up.
    Lost,
    LooksUp,
    Reads,
    /// The last try has failed in a way that passes.
    Rests,
}

/// See the module.
pub(super) struct Reader {
    place: Place,
    /// Reads everything once, from the first record to the end, and is done.
    is_last: bool,
    step: Step,
    owned: Owned,
    asked: (u64, u32, u64),
    cursor: Cursor,
    /// The ordinal that must come next.
    next: u64,
    /// Where the lane began when it was looked up.
    first: u64,
    from: Start,
    is_done: bool,
    last_problem: String,
}

impl Reader {
    /// One that reads for as long as the run lasts.
    pub(super) fn new(place: Place) -> Reader {
        Reader {
            place,
            is_last: false,
            step: Step::Lost,
            owned: Owned::new(StreamId(place.stream)),
            asked: (0, 0, 0),
            cursor: Cursor::default(),
            next: 0,
            first: 0,
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
        let Some(node) = self.owned.node(streamlet) else {
            self.owned.want();
            return;
        };
        let (stream, streamlet, lane) = (StreamId(stream), StreamletId(streamlet), LaneId(lane));
        let correlation = around.send(node, &Lookup { stream, streamlet, lane, at: self.from });
        (self.asked, self.step) = ((correlation, node, around.now_us), Step::LooksUp);
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
        let max_bytes = 1 << (12 + around.below(7));
        let request = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes, entries: vec![entry] };
        let node = self.asked.1;
        let correlation = around.send(node, &request);
        (self.asked, self.step) = ((correlation, node, around.now_us), Step::Reads);
    }

    fn found(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let found: LookupResult = answer.decode()?;
        around.gone(self.place, 0..found.first_ordinal)?;
        match self.from {
            Start::Ordinal(asked) if found.ordinal > asked => around.gone(self.place, asked..found.ordinal)?,
            _ => {}
        }
        if self.is_last && self.from == Start::Earliest {
            self.first = found.ordinal;
        }
        if found.ordinal > self.next && self.is_last {
            self.first = found.ordinal;
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
                    if data.is_empty() && self.is_last {
                        let (durable, end) = (one.durable_ordinal, one.end_of_group());
                        self.last_problem = format!("nothing came, durable up to {durable}, end of group: {end}");
                    }
                    if self.is_last && data.is_empty() && self.next == one.durable_ordinal && !one.end_of_group() {
                        return self.ended(around);
                    }
                }
                status @ (Status::CursorGone | Status::CursorUnknown) => {
                    // Groups that were opened and never written to are not rebuilt.
                    self.last_problem = status.name().to_owned();
                    (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
                    return Ok(());
                }
                status if status.retryable() => {
                    self.last_problem = status.name().to_owned();
                    (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
                    self.owned.want();
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
        around.truth.read_from(self.place, self.first, self.next)
    }
}

impl Client for Reader {
    fn answer(&mut self, _: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.owned.take(answer)? || answer.header.correlation != self.asked.0 || self.is_done {
            return Ok(());
        }
        if answer.status() != Status::Ok {
            retry(answer, "a read")?;
            self.last_problem = answer.error();
            self.step = Step::Rests;
            self.owned.want();
            return Ok(());
        }
        match self.step {
            Step::LooksUp => self.found(answer, around),
            Step::Reads => self.take(answer, around),
            Step::Lost | Step::Rests => Ok(()),
        }
    }

    fn lost(&mut self, node: u32, _: &mut Around<'_>) {
        self.owned.lost(node);
        if self.asked.1 == node && matches!(self.step, Step::LooksUp | Step::Reads) {
            // The ordinal is what it has; cursors of lost groups are worth nothing.
            (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
        }
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.is_done {
            return Ok(());
        }
        self.owned.look(around);
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
            _ if around.now_us > self.asked.2 + PATIENCE_US => {
                let node = self.asked.1;
                around.wishes.push(Wish::Drop(node));
                self.lost(node, around);
            }
            _ => {}
        }
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done || !self.is_last
    }

    fn state(&self) -> String {
        let node = self.owned.node(self.place.streamlet).unwrap_or(0);
        let (at, step) = (self.cursor, self.step);
        format!("reader of {} at node {node}: {} at {at:?}, {step:?}, {}", self.place, self.next, self.last_problem)
    }
}
