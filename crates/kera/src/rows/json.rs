//! JSON input: a value per line, values that spread over lines, or one array of values. Values are stored as they are written, but for line ends within
//! one, which become spaces.
//!
//! The first value tells whether values spread over lines, as `jq .` prints them: it does if its first line opens more than it closes. Where it does not, each line is a
//! value, so that one that is cut off spoils no others.
//!
//! What begins with `[` may be either: lines of which the first is an array, or one array. It is lines if the array ends on the line on which it begins and
//! there is more behind that line. Where the input is [shut](Tap::shut) while that is waited for, it is all there is.

use std::io::{BufRead, Cursor, Read, empty};
use std::sync::Arc;

use super::fields::{key_bytes, names, pick, text};
use super::{Picks, ROW_BYTES_MAX, Row, RowError, RowSource, Tap, read_line};
use crate::when::parse_instant;

pub(super) struct JsonRows {
    input: Box<dyn BufRead + Send>,
    picks: Picks,
    line: u64,
    shape: Shape,
    tap: Arc<Tap>,
}

/// A first line that is an array, while it is waited for whether there is more behind it.
pub(super) struct Held {
    text: Vec<u8>,
    line: u64,
    picks: Picks,
}

impl Held {
    /// There is no more: its elements.
    pub(super) fn into_rows(self) -> Box<dyn RowSource> {
        let Held { text, line, picks } = self;
        let (input, shape) = (Box::new(Cursor::new(text)), Shape::Array(Array::default()));
        let rest = picks.rest();
        rest.of(Box::new(JsonRows { input, picks, line, shape, tap: Arc::default() }))
    }
}

enum Shape {
    /// It begins with `[`, and what that is has not been looked at yet.
    Open,
    /// It begins with something else, and whether that ends on its line has not been looked at yet.
    First,
    /// Each line is a value.
    Lines,
    /// Each value goes on until what it has opened is closed.
    Spread,
    Array(Array),
}

impl JsonRows {
    /// `opens`: the first byte is `[`. `tap`: what the input comes through.
    pub(super) fn new(input: Box<dyn BufRead + Send>, opens: bool, picks: Picks, tap: Arc<Tap>) -> JsonRows {
        JsonRows { input, picks, line: 1, shape: if opens { Shape::Open } else { Shape::First }, tap }
    }

    /// Finds out what begins with `[`. Of lines the first one is in `row` then, of an array nothing was taken. May have to wait for a second line: a
    /// first one alone could be all there is. Nobody can end that wait, so whoever shuts the input meanwhile gets the line from the tap and cuts it.
    fn look(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let mut first = Vec::new();
        while first.trim_ascii_start().is_empty() {
            self.line += u64::from(first.ends_with(b"\n"));
            first.clear();
            let most = ROW_BYTES_MAX as u64 + 2;
            let read = (&mut self.input).take(most).read_until(b'\n', &mut first);
            if read.map_err(|e| RowError::io(self.line, &e))? == 0 {
                break;
            }
        }
        let lines_behind = match is_closed(&first) {
            true => {
                self.tap.hold(Held { text: std::mem::take(&mut first), line: self.line, picks: self.picks.clone() });
                // What keeps it from being read keeps whoever looks behind the array from it again.
                let behind = self.empty_lines().unwrap_or(None);
                let Some(held) = self.tap.take_back() else {
                    return Err(RowError::new(self.line, None, "it is cut by who has shut the input"));
                };
                first = held.text;
                behind
            }
            false => None,
        };
        if let Some(empty) = lines_behind {
            self.shape = Shape::Lines;
            row.line = self.line;
            row.value = first;
            self.line += 1 + empty;
            return Ok(true);
        }
        self.shape = Shape::Array(Array::default());
        self.put_back(first);
        Ok(false)
    }

    /// What was taken to look at it is read again.
    fn put_back(&mut self, taken: Vec<u8>) {
        let rest = std::mem::replace(&mut self.input, Box::new(empty()));
        self.input = Box::new(Cursor::new(taken).chain(rest));
    }

    /// Finds out whether values spread over lines; takes nothing. Waits for no second line where the first one is a whole value.
    ///
    /// Each line is one also where the first one goes on and the second one cannot be how: it opens a value where none can stand, so the first line is cut off. And what never ends is
    /// no value either. Then each line is told of as it is.
    fn look_at_first(&mut self) -> Result<(), RowError> {
        let (mut text, mut scan, mut lines) = (Vec::new(), Scan::default(), 0);
        let is_spread = loop {
            let begin = text.len();
            let room = (ROW_BYTES_MAX + 2).saturating_sub(begin);
            let read = (&mut self.input).take(room as u64).read_until(b'\n', &mut text);
            if read.map_err(|e| RowError::io(self.line, &e))? == 0 {
                // One that is too long is told of by who gathers it.
                break room == 0 && lines > 1;
            }
            let line = &text[begin..];
            if line.trim_ascii().is_empty() {
                continue;
            }
            lines += 1;
            if lines == 2 && !may_follow(line, &text[..begin]) {
                break false;
            }
            if !scan.goes_on_behind(line) {
                break lines > 1;
            }
        };
        self.shape = if is_spread { Shape::Spread } else { Shape::Lines };
        self.put_back(text);
        Ok(())
    }

    /// The text of the next value that may spread over lines; false at the end. It ends with a line.
    fn gather_spread(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let mut scan = Scan::default();
        row.value.clear();
        loop {
            let begin = row.value.len();
            let room = (ROW_BYTES_MAX + 2).saturating_sub(begin);
            let read = (&mut self.input).take(room as u64).read_until(b'\n', &mut row.value);
            let read = read.map_err(|e| RowError::io(self.line, &e))?;
            if row.value.len() > ROW_BYTES_MAX {
                let message = format!("the value is longer than {ROW_BYTES_MAX} bytes, the limit of one record");
                return Err(RowError { fatal: true, ..RowError::new(row.line, None, message) });
            }
            match read {
                0 if begin == 0 => return Ok(false),
                0 => return Err(RowError::new(row.line, None, "the JSON value does not end: `}` or `]` is missing")),
                _ => self.line += 1,
            }
            if row.value.trim_ascii().is_empty() {
                row.value.clear();
                row.line = self.line;
                continue;
            }
            let goes_on = scan.goes_on_behind(&row.value[begin..]);
            let line_end = row.value.iter_mut().rev().take_while(|byte| matches!(**byte, b'\n' | b'\r'));
            line_end.for_each(|byte| *byte = b' ');
            if !goes_on {
                return Ok(true);
            }
        }
    }

    /// The text of the next element, of the next value, or of the next line that has any; false at the end.
    fn gather(&mut self, row: &mut Row) -> Result<bool, RowError> {
        if matches!(self.shape, Shape::First) {
            self.look_at_first()?;
        }
        row.line = self.line;
        row.shares_line = matches!(self.shape, Shape::Array(_));
        match &mut self.shape {
            Shape::Array(array) => return array.next(&mut *self.input, &mut self.line, row),
            Shape::Spread => return self.gather_spread(row),
            Shape::Open | Shape::First | Shape::Lines => {}
        }
        loop {
            row.line = self.line;
            let more = read_line(&mut *self.input, self.line, &mut row.value)?;
            self.line += 1;
            if !more || !row.value.trim_ascii().is_empty() {
                return Ok(more);
            }
        }
    }

    /// Passes over white space: how many lines ended in it, if there is something behind it.
    fn empty_lines(&mut self) -> Result<Option<u64>, RowError> {
        let mut lines = 0;
        loop {
            let buffer = self.input.fill_buf().map_err(|e| RowError::io(self.line, &e))?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let white = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            lines += buffer[..white].iter().filter(|byte| **byte == b'\n').count() as u64;
            let is_over = white < buffer.len();
            self.input.consume(white);
            if is_over {
                return Ok(Some(lines));
            }
        }
    }
}

/// Whether a whole line has the end of the array that begins it.
fn is_closed(line: &[u8]) -> bool {
    let Some(elements) = line.trim_ascii_start().strip_prefix(b"[") else { return false };
    let mut scan = Scan::default();
    line.ends_with(b"\n") && elements.iter().any(|byte| matches!(scan.step(*byte), Step::ArrayEnds))
}

/// Whether a line may go on with a value: one that opens an object or an array stands behind a name, or in an array.
fn may_follow(line: &[u8], before: &[u8]) -> bool {
    let opens = matches!(line.trim_ascii_start().first(), Some(b'{' | b'['));
    !opens || matches!(before.trim_ascii_end().last(), Some(b':' | b',' | b'['))
}

impl RowSource for JsonRows {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let has_first = matches!(self.shape, Shape::Open) && self.look(row)?;
        if !has_first && !self.gather(row)? {
            return Ok(false);
        }
        trim(&mut row.value);
        if row.value.is_empty() {
            return Err(RowError::new(row.line, None, "an element of the JSON array is empty"));
        }
        fill(row, &self.picks)?;
        Ok(true)
    }
}

/// Removes white space around the value.
fn trim(value: &mut Vec<u8>) {
    while value.last().is_some_and(u8::is_ascii_whitespace) {
        value.pop();
    }
    let front = value.iter().take_while(|b| b.is_ascii_whitespace()).count();
    value.drain(..front);
}

/// Checks the value and sets key and timestamp.
fn fill(row: &mut Row, picks: &Picks) -> Result<(), RowError> {
    let picked = pick(&row.value, picks).map_err(|error| {
        let what = error.to_string();
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        RowError::new(row.line, None, format!("this is no JSON: {what} (column {})", error.column()))
    })?;
    row.key = None;
    row.timestamp_ms = None;
    if let Some(field) = &picks.key {
        let Some(raw) = picked.key else {
            let message = format!("the key field is missing; the record has {}", names(&row.value));
            return Err(RowError::new(row.line, Some(field), message));
        };
        let Some(key) = key_bytes(raw) else {
            return Err(RowError::new(row.line, Some(field), "the key field is null"));
        };
        row.key = Some(key);
    }
    if let Some(field) = &picks.timestamp {
        let Some(raw) = picked.timestamp else {
            let message = format!("the timestamp field is missing; the record has {}", names(&row.value));
            return Err(RowError::new(row.line, Some(field), message));
        };
        let written = text(raw);
        let Some(at) = parse_instant(&written) else {
            let message = format!("`{written}` is no time; it is like 2026-01-31T12:00:00Z, or a number since 1970");
            return Err(RowError::new(row.line, Some(field), message));
        };
        row.timestamp_ms = Some(at);
    }
    Ok(())
}

/// Cuts a JSON array into its elements by following strings and brackets; whether an element is JSON is checked by
/// who gets it.
#[derive(Default)]
struct Array {
    state: ArrayState,
}

#[derive(Default, PartialEq, Clone, Copy)]
enum ArrayState {
    #[default]
    Before,
    /// In front of the first element, or of the end of an array that has none.
    First,
    /// In front of an element that there must be.
    Next,
    Done,
}

/// Where the scanner is within an element.
#[derive(Default)]
struct Scan {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

enum Step {
    Keep,
    LineEnds,
    ElementEnds,
    ArrayEnds,
}

impl Scan {
    fn step(&mut self, byte: u8) -> Step {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Step::Keep;
        }
        match byte {
            b',' if self.depth == 0 => return Step::ElementEnds,
            b']' if self.depth == 0 => return Step::ArrayEnds,
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b'\n' | b'\r' => return Step::LineEnds,
            _ => {}
        }
        Step::Keep
    }

    /// Takes a line. Whether something that was opened goes on behind it: no string does, which has no line end in it.
    fn goes_on_behind(&mut self, line: &[u8]) -> bool {
        for byte in line {
            self.step(*byte);
        }
        self.depth > 0 && !self.in_string
    }
}

impl Array {
    fn next(&mut self, input: &mut dyn BufRead, line: &mut u64, row: &mut Row) -> Result<bool, RowError> {
        row.value.clear();
        let mut scan = Scan::default();
        loop {
            let buffer = input.fill_buf().map_err(|e| RowError::io(*line, &e))?;
            if buffer.is_empty() {
                return self.at_end(*line);
            }
            let (mut used, mut finished) = (0, false);
            for &byte in buffer {
                used += 1;
                *line += u64::from(byte == b'\n');
                match self.state {
                    ArrayState::Before if byte == b'[' => self.state = ArrayState::First,
                    ArrayState::Before => {}
                    ArrayState::Done if byte.is_ascii_whitespace() => {}
                    ArrayState::Done => {
                        let message = "there is something behind the `]` that ends the JSON array";
                        return Err(RowError { fatal: true, ..RowError::new(*line, None, message) });
                    }
                    ArrayState::First | ArrayState::Next => finished = self.take(byte, *line, &mut scan, row),
                }
                if finished {
                    break;
                }
            }
            input.consume(used);
            if row.value.len() > ROW_BYTES_MAX {
                let message = format!("the element is longer than {ROW_BYTES_MAX} bytes, the limit of one record");
                return Err(RowError { fatal: true, ..RowError::new(row.line, None, message) });
            }
            if finished {
                return Ok(true);
            }
        }
    }

    /// Takes a byte of an element. Whether that ends it: an empty one too, but for that of an array without any.
    fn take(&mut self, byte: u8, line: u64, scan: &mut Scan, row: &mut Row) -> bool {
        if row.value.is_empty() {
            row.line = line;
        }
        match scan.step(byte) {
            Step::Keep | Step::LineEnds if row.value.is_empty() && byte.is_ascii_whitespace() => false,
            Step::Keep => {
                row.value.push(byte);
                false
            }
            Step::LineEnds => {
                row.value.push(b' ');
                false
            }
            Step::ElementEnds => {
                self.state = ArrayState::Next;
                true
            }
            Step::ArrayEnds => {
                let is_element = self.state == ArrayState::Next || !row.value.is_empty();
                self.state = ArrayState::Done;
                is_element
            }
        }
    }

    fn at_end(&self, line: u64) -> Result<bool, RowError> {
        if self.state == ArrayState::Done {
            return Ok(false);
        }
        Err(RowError { fatal: true, ..RowError::new(line, None, "the JSON array does not end: `]` is missing") })
    }
}
