//! CSV input: a header line with names, then a row per record. A record's value is a JSON object with the header's
//! names; what is written like a JSON number is one, everything else is text.

use std::io::{self, BufRead, Read, Write};

use super::{Picks, ROW_BYTES_MAX, Row, RowError, RowSource};
use crate::error::CliError;
use crate::when::parse_instant;

pub(super) struct CsvRows {
    reader: ::csv::Reader<Bounded>,
    record: ::csv::ByteRecord,
    /// Names as JSON texts with a colon behind.
    labels: Vec<String>,
    key: Option<(usize, String)>,
    timestamp: Option<(usize, String)>,
}

/// Bytes that the reader may take from the input in front of the end of a row.
const AHEAD_BYTES: usize = 64 << 10;

/// Input of which a row gets no more than it may have: the reader gathers a row before anybody sees how long it is, and a quote that is not closed
/// makes a row of all the rest.
struct Bounded {
    input: Box<dyn BufRead + Send>,
    left: usize,
}

impl Bounded {
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
        Ok(count)
    }
}

fn too_long() -> String {
    format!("the row is longer than {ROW_BYTES_MAX} bytes, the limit of one record")
}

impl CsvRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, delimiter: u8, picks: &Picks) -> Result<CsvRows, CliError> {
        let mut input = Bounded { input, left: 0 };
        input.renew();
        let mut reader = ::csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(input);
        let header =
            reader.headers().map_err(|error| CliError::failure(format!("line 1: the header is no CSV: {error}")))?;
        let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
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
        Ok(CsvRows { reader, record: ::csv::ByteRecord::new(), labels, key, timestamp })
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
            if is_number(text) {
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
        row.line = self.record.position().map_or(here, ::csv::Position::line);
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

/// Whether a text is a number as JSON writes them, short enough for every reader to take it exactly.
pub(super) fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    text.len() <= 15 && all_digits(whole) && all_digits(fraction) && (whole == "0" || !whole.starts_with('0'))
}
