//! CSV input: a header line with names, then a row per record. A record's value is a JSON object with the header's
//! names; what is written like a JSON number is one, everything else is text, and all is if that is wanted: cells are looked at one by one, so
//! that `12` and `n/a` of one column are a number and a text.

use std::io::{self, BufRead, Read, Write};

use super::{CsvTypes, Picks, ROW_BYTES_MAX, Row, RowError, RowSource};
use crate::error::CliError;
use crate::output::say;
use crate::when::parse_instant;

pub(super) struct CsvRows {
    reader: ::csv::Reader<Bounded>,
    record: ::csv::ByteRecord,
    /// Names as JSON texts with a colon behind.
    labels: Vec<String>,
    key: Option<(usize, String)>,
    timestamp: Option<(usize, String)>,
    types: CsvTypes,
}

/// Bytes that the reader may take from the input in front of the end of a row.
const AHEAD_BYTES: usize = 64 << 10;

/// Input of which a row gets no more than it may have: the reader gathers a row before anybody sees how long it is, and a quote that is not closed
/// makes a row of all the rest.
struct Bounded {
    input: Box<dyn BufRead + Send>,
    left: usize,
    /// What the reader got last. The row that it has cut ends in it: it takes no more before it has used that up.
    last: Vec<u8>,
    /// Bytes that it got before.
    before: u64,
}

impl Bounded {
    fn new(input: Box<dyn BufRead + Send>) -> Bounded {
        Bounded { input, left: ROW_BYTES_MAX + AHEAD_BYTES, last: Vec::new(), before: 0 }
    }

    /// The byte in front of a place in the input, if the reader got it last.
    fn byte_in_front_of(&self, place: u64) -> Option<u8> {
        let at = place.checked_sub(self.before + 1)?;
        self.last.get(usize::try_from(at).ok()?).copied()
    }

    /// The next row begins.
    fn renew(&mut self) {
        self.left = ROW_BYTES_MAX + AHEAD_BYTES;
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other(too_long()));
        }
        let most = buffer.len().min(self.left);
        let count = self.input.read(&mut buffer[..most])?;
        self.left -= count;
        // At the end there is no more, and the last row ended before.
        if count > 0 {
            self.before += self.last.len() as u64;
            self.last.clear();
            self.last.extend_from_slice(&buffer[..count]);
        }
        Ok(count)
    }
}

fn too_long() -> String {
    format!("the row is longer than {ROW_BYTES_MAX} bytes, the limit of one record")
}

impl CsvRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, delimiter: u8, picks: &Picks) -> Result<CsvRows, CliError> {
        let input = Bounded::new(input);
        let mut reader = ::csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(input);
        let header =
            reader.headers().map_err(|error| CliError::failure(format!("line 1: the header is no CSV: {error}")))?;
        let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
        if let Some(warning) = other_delimiter(&names, delimiter) {
            say(format_args!("warning: line 1: {warning}"));
        }
        let column = |pick: &Option<String>, flag: &str| -> Result<Option<(usize, String)>, CliError> {
            let Some(name) = pick else { return Ok(None) };
            match names.iter().position(|n| n == name) {
                Some(index) => Ok(Some((index, name.clone()))),
                None => {
                    let message = format!("line 1: the header has no field `{name}`, which {flag} names");
                    Err(CliError::failure(message).next(format!("take one of: {}", names.join(", "))))
                }
            }
        };
        let (key, timestamp) = (column(&picks.key, "--key-field")?, column(&picks.timestamp, "--timestamp-field")?);
        let labels = names.iter().map(|name| format!("{}:", serde_json::Value::from(name.as_str()))).collect();
        let types = picks.csv_types.unwrap_or_default();
        Ok(CsvRows { reader, record: ::csv::ByteRecord::new(), labels, key, timestamp, types })
    }

    /// The line on which the row begins that was cut last. The reader says only where it began to look for it: in front of empty lines, and of the second half of
    /// a line end that has two. So it is counted from where it has stopped, which is behind the line end, or between its halves.
    fn line(&self) -> u64 {
        let end = self.reader.position();
        let is_behind_line = self.reader.get_ref().byte_in_front_of(end.byte()) == Some(b'\n');
        let within = self.record.as_slice().iter().filter(|byte| **byte == b'\n').count();
        end.line().saturating_sub(within as u64 + u64::from(is_behind_line))
    }

    fn write_value(&self, line: u64, out: &mut Vec<u8>) -> Result<(), RowError> {
        out.clear();
        for (index, field) in self.record.iter().enumerate() {
            out.push(if index == 0 { b'{' } else { b',' });
            out.extend_from_slice(self.labels[index].as_bytes());
            let Ok(text) = std::str::from_utf8(field) else {
                let name = self.labels[index].trim_matches(['"', ':']);
                return Err(RowError::new(line, Some(name), "the field is not UTF-8"));
            };
            if self.types == CsvTypes::Auto && is_number(text) {
                out.extend_from_slice(field);
            } else if text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') {
                out.push(b'"');
                out.extend_from_slice(field);
                out.push(b'"');
            } else {
                // Writing into a vector cannot fail.
                let _ = write!(out, "{}", serde_json::Value::from(text));
            }
        }
        out.push(b'}');
        if out.len() > ROW_BYTES_MAX {
            return Err(RowError::new(line, None, too_long()));
        }
        Ok(())
    }
}

impl RowSource for CsvRows {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let here = self.reader.position().line();
        self.reader.get_mut().renew();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(_) if self.reader.get_ref().left == 0 => {
                let message = format!("{}; is a quote not closed?", too_long());
                return Err(RowError { fatal: true, ..RowError::new(here, None, message) });
            }
            Err(error) => {
                return Err(RowError { fatal: true, ..RowError::new(here, None, format!("this is no CSV: {error}")) });
            }
        }
        row.line = self.line();
        let (found, expected) = (self.record.len(), self.labels.len());
        if found != expected {
            let message = format!("the row has {found} fields, the header has {expected}");
            let field = self.labels.get(found).map(|label| label.trim_matches(['"', ':']));
            return Err(RowError::new(row.line, field, message));
        }
        self.write_value(row.line, &mut row.value)?;
        row.key = None;
        row.timestamp_ms = None;
        if let Some((index, name)) = &self.key {
            let key = self.record.get(*index).unwrap_or_default();
            if key.is_empty() {
                return Err(RowError::new(row.line, Some(name), "the key field is empty"));
            }
            row.key = Some(key.to_vec());
        }
        if let Some((index, name)) = &self.timestamp {
            let text = String::from_utf8_lossy(self.record.get(*index).unwrap_or_default());
            row.timestamp_ms = parse_instant(&text);
            if row.timestamp_ms.is_none() {
                let message = format!("`{text}` is no time; it is like 2026-01-31T12:00:00Z, or a number since 1970");
                return Err(RowError::new(row.line, Some(name), message));
            }
        }
        Ok(true)
    }
}

/// What to say of a header that is one field with something in it that often stands between fields.
pub(super) fn other_delimiter(names: &[String], delimiter: u8) -> Option<String> {
    let [only] = names else { return None };
    let is_meant = |other: &(char, &str)| other.0 as u32 != u32::from(delimiter) && only.contains(other.0);
    let (_, flag) = [(';', "';'"), ('\t', "tab"), ('|', "'|'"), (',', "','")].into_iter().find(is_meant)?;
    let shown = only.replace('\t', "\\t");
    Some(format!("the header is one field, `{shown}`; if it is meant to be several, say --delimiter {flag}"))
}

/// Whether a text is a number as JSON writes them, short enough for every reader to take it exactly.
pub(super) fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    text.len() <= 15 && all_digits(whole) && all_digits(fraction) && (whole == "0" || !whole.starts_with('0'))
}
