//! JSON input: a value per line, or one array of values. Values are stored as they are written.

use std::io::BufRead;

use super::fields::{key_bytes, names, pick, text};
use super::{Picks, ROW_BYTES_MAX, Row, RowError, RowSource, read_line};
use crate::when::parse_instant;

pub(super) struct JsonRows {
    input: Box<dyn BufRead + Send>,
    picks: Picks,
    line: u64,
    array: Option<Array>,
}

impl JsonRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, is_array: bool, picks: Picks) -> JsonRows {
        JsonRows { input, picks, line: 1, array: is_array.then(Array::default) }
    }
}

impl RowSource for JsonRows {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        loop {
            row.line = self.line;
            let more = match &mut self.array {
                Some(array) => array.next(&mut *self.input, &mut self.line, row)?,
                None => {
                    let more = read_line(&mut *self.input, self.line, &mut row.value)?;
                    self.line += 1;
                    more
                }
            };
            if !more {
                return Ok(false);
            }
            trim(&mut row.value);
            if !row.value.is_empty() {
                break;
            }
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
    Inside,
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
    Skip,
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
            b'\n' | b'\r' => return Step::Skip,
            _ => {}
        }
        Step::Keep
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
                if self.state == ArrayState::Before {
                    self.state = if byte == b'[' { ArrayState::Inside } else { ArrayState::Before };
                    continue;
                }
                if self.state == ArrayState::Done {
                    continue;
                }
                if row.value.iter().all(u8::is_ascii_whitespace) {
                    row.line = *line;
                }
                match scan.step(byte) {
                    Step::Keep => row.value.push(byte),
                    Step::Skip => {}
                    Step::ElementEnds => finished = true,
                    Step::ArrayEnds => {
                        self.state = ArrayState::Done;
                        finished = !row.value.iter().all(u8::is_ascii_whitespace);
                    }
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

    fn at_end(&self, line: u64) -> Result<bool, RowError> {
        if self.state == ArrayState::Done {
            return Ok(false);
        }
        Err(RowError { fatal: true, ..RowError::new(line, None, "the JSON array does not end: `]` is missing") })
    }
}
