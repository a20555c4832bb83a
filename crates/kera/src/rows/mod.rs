//! Input files as records: NDJSON, JSON values of several lines, CSV, JSON arrays, lines, what `kera consume --json` prints, or one raw record. Reads a file or standard input once,
//! from front to back, in bounded memory; a file that ends in `.zst` is unpacked on the way.
//!
//! Called by `kera produce` on its one thread. A row that is malformed is an error that names file, line and field, and
//! reading goes on behind it if the caller wants to.

mod csv;
mod fields;
mod json;
mod lines;
mod records;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::encoding::KeyEncoding;
use crate::error::CliError;

/// The most bytes of one line or record of input: what fits into the largest chunk.
pub const ROW_BYTES_MAX: usize = 15 << 20;

/// How the input is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// By the file's name, or its first byte: `.ndjson .jsonl .json .csv .tsv`, else lines.
    Auto,
    /// A JSON value per line, or values of several lines each if the first one is, or one JSON array of values. The value is stored as it is written. An array that is a
    /// line, with more lines behind it, is a value.
    Ndjson,
    /// A header line, then a row per record; stored as a JSON object with the header's names.
    Csv,
    /// Every line is a value; empty ones too.
    Lines,
    /// The whole input is one value.
    Raw,
    /// What `kera consume --json` prints: key or keys, value, timestamp and version are taken over, from `_hex` fields too;
    /// "value": null is a record without a value. Headers, streamlet, lane, ordinal and time of append are not.
    Records,
}

/// What the cells of CSV become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CsvTypes {
    /// Each cell for itself: a number if it is written like one in JSON, else text. A column may have both.
    #[default]
    Auto,
    /// Every cell is text.
    Text,
}

/// How rows are taken from the input: what of one becomes a record's key and timestamp, which records have no value, and where it begins.
#[derive(Clone, Debug, Default)]
pub struct Picks {
    /// The field whose value is the key.
    pub key: Option<String>,
    /// The field whose value is the timestamp.
    pub timestamp: Option<String>,
    /// What stands between the key and the value of a line.
    pub separator: Option<String>,
    /// How keys are written there.
    pub key_encoding: KeyEncoding,
    /// The value that stands for none; of lines with a separator the key, too.
    pub null: Option<String>,
    /// What stands between two fields of CSV, if that is not what the file's name says.
    pub delimiter: Option<u8>,
    /// What the cells of CSV become, if that was said.
    pub csv_types: Option<CsvTypes>,
    /// The line, from 1, in front of which rows are passed over.
    pub from_line: Option<u64>,
}

/// One record of input. Reused from row to row.
#[derive(Debug, Default)]
pub struct Row {
    /// The line it starts on, from 1.
    pub line: u64,
    /// Whether the next one may start on the same line.
    pub shares_line: bool,
    /// The key, if one is picked.
    pub key: Option<Vec<u8>>,
    /// The timestamp, if one is picked.
    pub timestamp_ms: Option<i64>,
    /// The value.
    pub value: Vec<u8>,
    /// There is no value: the record says that its key is gone.
    pub no_value: bool,
    /// Keys behind the first one.
    pub more_keys: Vec<Vec<u8>>,
    /// The version, if there is one.
    pub version: Option<u64>,
    /// Headers that it has, which are left out.
    pub headers: u64,
}

/// What is wrong with one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// The line, from 1.
    pub line: u64,
    /// The field, if one is to blame.
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
    /// Whether no further row can be read.
    pub fatal: bool,
}

impl RowError {
    fn new(line: u64, field: Option<&str>, message: impl Into<String>) -> RowError {
        RowError { line, field: field.map(String::from), message: message.into(), fatal: false }
    }

    fn io(line: u64, error: &io::Error) -> RowError {
        RowError { line, field: None, message: format!("cannot be read: {error}"), fatal: true }
    }

    /// The error as the command reports it.
    pub fn report(&self, source: &str) -> String {
        let field = self.field.as_ref().map_or(String::new(), |field| format!(", field `{field}`"));
        format!("{source}, line {}{field}: {}", self.line, self.message)
    }
}

/// Cuts the input into rows.
pub trait RowSource: Send {
    /// Fills `row` with the next one; `false` at the end.
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError>;
}

/// Input that is open.
pub struct Input {
    /// Its name in messages.
    pub name: String,
    /// Its size on disk, if it is a file; of standard input that is one, what is behind the place where it stands.
    pub bytes: Option<u64>,
    /// Bytes of it that were cut into rows so far; of a file that is unpacked those that were read.
    pub cut: Arc<AtomicU64>,
    /// Ends it before its end.
    pub tap: Arc<Tap>,
    /// Its rows.
    pub rows: Box<dyn RowSource>,
}

/// Opens `path`, or standard input for `-`.
///
/// # Errors
/// The file cannot be opened, or the picks make no sense for its format.
pub fn open(path: &str, format: Format, picks: Picks) -> Result<Input, CliError> {
    let (read, cut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (raw, bytes): (Box<dyn Read + Send>, Option<u64>) = if path == "-" {
        (Box::new(io::stdin()), rest_of_stdin())
    } else {
        let file = File::open(path).map_err(|error| {
            CliError::failure(format!("{path} cannot be opened: {error}"))
                .next("name a file that exists, or `-` for standard input")
        })?;
        let metadata = file.metadata().map_err(|error| CliError::failure(format!("{path}: {error}")))?;
        if metadata.is_dir() {
            return Err(CliError::failure(format!("{path} is a directory")).next("name one file at a time"));
        }
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let tap = Arc::new(Tap::default());
    let counted = Counted { inner: raw, read: read.clone(), tap: tap.clone(), is_over: false };
    let name = if path == "-" { "standard input".to_owned() } else { path.to_owned() };
    let (plain_path, unpacked): (&str, Box<dyn BufRead + Send>) = match path.strip_suffix(".zst") {
        Some(plain) => {
            let decoder = zstd::stream::read::Decoder::new(counted)
                .map_err(|error| CliError::failure(format!("{path} cannot be unpacked: {error}")))?;
            (plain, Box::new(BufReader::with_capacity(1 << 18, decoder)))
        }
        None => {
            let inner = BufReader::with_capacity(1 << 18, counted);
            (path, Box::new(Taken { inner, taken: cut.clone() }))
        }
    };
    let is_packed = plain_path.len() < path.len();
    let rows = source(unpacked, plain_path, format, picks, &tap).map_err(|mut error| {
        error.message = format!("{name}: {}", error.message);
        error
    })?;
    Ok(Input { name, bytes, cut: if is_packed { read } else { cut }, tap, rows })
}

/// What of standard input is not read yet, if that is a file.
fn rest_of_stdin() -> Option<u64> {
    // Where it stands is that of all who have it open.
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    Some(metadata.len().saturating_sub(file.stream_position().ok()?))
}

/// CSV with a header line, whatever it comes from.
///
/// # Errors
/// The header is no CSV or lacks a field that is picked.
pub fn csv_source(input: Box<dyn BufRead + Send>, picks: &Picks) -> Result<Box<dyn RowSource>, CliError> {
    Ok(Box::new(csv::CsvRows::new(input, b',', picks)?))
}

/// The source for a format, looking at the name or the first byte where it is [`Format::Auto`].
fn source(
    mut input: Box<dyn BufRead + Send>,
    path: &str,
    format: Format,
    picks: Picks,
    tap: &Arc<Tap>,
) -> Result<Box<dyn RowSource>, CliError> {
    let failed = |error: io::Error| CliError::failure(format!("cannot be read: {error}"));
    let extension = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    let is_marked = take_mark(&mut input).map_err(failed)?;
    let first = first_byte(&mut input).map_err(failed)?;
    let format = match (format, extension.as_str(), first) {
        (Format::Auto, "ndjson" | "jsonl" | "json", _) => Format::Ndjson,
        (Format::Auto, "csv" | "tsv", _) => Format::Csv,
        (Format::Auto, _, Some(b'{')) => Format::Ndjson,
        (Format::Auto, _, _) => Format::Lines,
        (format, _, _) => format,
    };
    check(format, &picks)?;
    if is_marked && matches!(format, Format::Lines | Format::Raw) {
        input = Box::new(Cursor::new(MARK).chain(input));
    }
    let rest = picks.rest();
    let rows: Box<dyn RowSource> = match format {
        Format::Ndjson | Format::Auto => {
            Box::new(json::JsonRows::new(input, first == Some(b'['), picks, Arc::clone(tap)))
        }
        Format::Csv => {
            let by_name = if extension == "tsv" { b'\t' } else { b',' };
            let delimiter = picks.delimiter.unwrap_or(by_name);
            Box::new(csv::CsvRows::new(input, delimiter, &picks)?)
        }
        Format::Records => Box::new(records::RecordRows::new(input)),
        Format::Lines | Format::Raw => Box::new(lines::LineRows::new(input, format == Format::Raw, picks.separator)),
    };
    Ok(rest.of(rows))
}

/// Whether the flags make sense for the format.
fn check(format: Format, picks: &Picks) -> Result<(), CliError> {
    let fields = matches!(format, Format::Ndjson | Format::Auto | Format::Csv);
    let flag = match picks {
        Picks { key: Some(_), .. } if !fields => "--key-field",
        Picks { timestamp: Some(_), .. } if !fields => "--timestamp-field",
        Picks { separator: Some(_), .. } if format != Format::Lines => {
            let message = "--key-separator is for lines";
            return Err(CliError::usage(message).next("name the field with --key-field, or say --format lines"));
        }
        Picks { key: None, separator: None, key_encoding, .. } if *key_encoding != KeyEncoding::Text => {
            let message = "--key-encoding is for keys that --key-field names, or --key-separator";
            let next = "name them; --format records has `key_hex` for keys that are no text";
            return Err(CliError::usage(message).next(next));
        }
        Picks { null: Some(_), .. } if !matches!(format, Format::Lines | Format::Ndjson) => {
            let message = "--null-value is for lines and ndjson";
            return Err(CliError::usage(message).next("--format records takes \"value\": null"));
        }
        Picks { delimiter: Some(_), .. } | Picks { csv_types: Some(_), .. } if format != Format::Csv => {
            let flag = if picks.delimiter.is_some() { "--delimiter" } else { "--csv-types" };
            return Err(CliError::usage(format!("{flag} is for CSV")).next("say --format csv, or leave the flag out"));
        }
        Picks { from_line: Some(_), .. } if format == Format::Raw => {
            let message = "--from-line makes no sense for raw input, which is one record";
            return Err(CliError::usage(message).next("leave the flag out"));
        }
        _ => return Ok(()),
    };
    let (message, next) = match format {
        Format::Records => (format!("{flag} makes no sense for records, which say what their keys and times are"), ""),
        _ => (
            format!("{flag} needs records with fields, and lines have none"),
            "say what it is with --format ndjson or --format csv, or what is between key and value with --key-separator",
        ),
    };
    Err(CliError::usage(message).next(next))
}

/// What is done with rows of every format: which have no value, what their keys are, and from where on they are taken.
struct Rest {
    null: Option<String>,
    keys_too: bool,
    encoding: KeyEncoding,
    field: Option<String>,
    from_line: Option<u64>,
}

impl Picks {
    fn rest(&self) -> Rest {
        Rest {
            null: self.null.clone(),
            keys_too: self.separator.is_some(),
            encoding: self.key_encoding,
            field: self.key.clone(),
            from_line: self.from_line,
        }
    }
}

impl Rest {
    fn of(self, rows: Box<dyn RowSource>) -> Box<dyn RowSource> {
        let Rest { null, keys_too, encoding, field, from_line } = self;
        from_line_on(with_keys(with_null(rows, null, keys_too), encoding, field), from_line)
    }
}

/// Rows some of which have no value: those with one that stands for none. Of keys that are cut from lines it is the same.
struct NullValues {
    rows: Box<dyn RowSource>,
    null: Vec<u8>,
    keys_too: bool,
}

/// Rows of which some may stand for none.
fn with_null(rows: Box<dyn RowSource>, null: Option<String>, keys_too: bool) -> Box<dyn RowSource> {
    match null {
        Some(null) => Box::new(NullValues { rows, null: null.into_bytes(), keys_too }),
        None => rows,
    }
}

impl RowSource for NullValues {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let more = self.rows.next(row)?;
        row.no_value = row.value == self.null;
        if row.no_value {
            row.value.clear();
        }
        if self.keys_too && row.key.as_ref() == Some(&self.null) {
            row.key = None;
        }
        Ok(more)
    }
}

/// Rows whose keys are written in another way than as they are. What stands for none is none before that.
struct EncodedKeys {
    rows: Box<dyn RowSource>,
    encoding: KeyEncoding,
    field: Option<String>,
}

/// Rows whose keys are written so. `field`: where they are, for a message.
fn with_keys(rows: Box<dyn RowSource>, encoding: KeyEncoding, field: Option<String>) -> Box<dyn RowSource> {
    if encoding == KeyEncoding::Text { rows } else { Box::new(EncodedKeys { rows, encoding, field }) }
}

impl RowSource for EncodedKeys {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        let more = self.rows.next(row)?;
        if let Some(written) = row.key.take().filter(|_| more) {
            let wrong = |message: String| {
                RowError::new(row.line, self.field.as_deref(), format!("the key {message}, which --key-encoding names"))
            };
            row.key = Some(self.encoding.decode(&written).map_err(wrong)?);
        }
        Ok(more)
    }
}

/// Rows of which those in front of a line are passed over. They are cut all the same: only so it is known where a row begins, and a header is not lost.
struct FromLine {
    rows: Box<dyn RowSource>,
    first: u64,
}

/// Rows from a line on.
fn from_line_on(rows: Box<dyn RowSource>, first: Option<u64>) -> Box<dyn RowSource> {
    match first {
        Some(first) => Box::new(FromLine { rows, first }),
        None => rows,
    }
}

impl RowSource for FromLine {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        loop {
            match self.rows.next(row) {
                Ok(true) if row.line < self.first => {}
                // What is malformed there was told, or left out, by who has written what is in front of the line.
                Err(error) if error.line < self.first && !error.fatal => {}
                next => return next,
            }
        }
    }
}

/// The byte order mark that some programs begin UTF-8 with. It is part of no JSON and of no header; of lines and raw input every byte is kept.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Takes the mark off the front of the input, if there is one. Waits for no more bytes than can be part of it.
fn take_mark(input: &mut Box<dyn BufRead + Send>) -> io::Result<bool> {
    let mut taken = 0;
    while taken < MARK.len() && input.fill_buf()?.first() == Some(&MARK[taken]) {
        input.consume(1);
        taken += 1;
    }
    if taken > 0 && taken < MARK.len() {
        let rest = std::mem::replace(input, Box::new(io::empty()));
        *input = Box::new(Cursor::new(&MARK[..taken]).chain(rest));
    }
    Ok(taken == MARK.len())
}

/// The first byte that is no white space, without consuming anything but white space at the front of the first buffer.
fn first_byte(input: &mut Box<dyn BufRead + Send>) -> io::Result<Option<u8>> {
    let buffer = input.fill_buf()?;
    Ok(buffer.iter().copied().find(|b| !b.is_ascii_whitespace()))
}

/// What input comes through until it is shut. What has come by then is cut into rows all the same; only one that is not whole is left out.
#[derive(Default)]
pub struct Tap {
    state: AtomicU8,
    held: Mutex<Option<json::Held>>,
    is_handed_over: AtomicBool,
}

impl Tap {
    const OPEN: u8 = 0;
    /// More is waited for: whatever has come is cut, but for a row that is not whole, and for an array that is the first line and has
    /// nothing behind it yet. Nobody knows of that whether it is a row or all of them: it is [handed over](Tap::hand_over).
    const WAITS: u8 = 1;
    const SHUT: u8 = 2;
    /// Shut, and more was asked for: as where more is waited for.
    const DRY: u8 = 3;

    /// Lets nothing more through, also if it is waited for. Whether it is: no row is cut any more then, but for what was [held](Tap::hand_over).
    ///
    /// Whose that is is decided in the same step: who waits may get something right now, and would take it back and cut it when others have said that nothing more comes.
    pub fn shut(&self) -> bool {
        let held = self.held();
        let is_waiting = self.state.swap(Tap::SHUT, Ordering::AcqRel) == Tap::WAITS;
        self.is_handed_over.store(is_waiting && held.is_some(), Ordering::Release);
        is_waiting
    }

    /// Whether the input has ended here, maybe within a row.
    pub fn is_dry(&self) -> bool {
        self.state.load(Ordering::Acquire) == Tap::DRY
    }

    fn held(&self) -> MutexGuard<'_, Option<json::Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, held: json::Held) {
        *self.held() = Some(held);
    }

    /// `None`: somebody else cuts it.
    fn take_back(&self) -> Option<json::Held> {
        let mut held = self.held();
        if self.is_handed_over() { None } else { held.take() }
    }

    /// For whoever has shut it while more was waited for: the rows of what has come and was not cut yet, if there are some. Nobody else cuts them then.
    pub fn hand_over(&self) -> Option<Box<dyn RowSource>> {
        let mut held = self.held();
        if self.is_handed_over() { held.take().map(json::Held::into_rows) } else { None }
    }

    /// Whether somebody else cuts what has come.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Reads, unless it is shut by then. What comes while it is being shut is left out, as what is still in a pipe is.
    fn through(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let turn = |from, to| match self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.state.store(Tap::DRY, Ordering::Release);
                Err(io::Error::other("nothing more is read"))
            }
        };
        turn(Tap::OPEN, Tap::WAITS)?;
        let count = read();
        turn(Tap::WAITS, Tap::OPEN)?;
        count
    }
}

struct Counted {
    inner: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
    tap: Arc<Tap>,
    /// The end was seen. It stays one: at a terminal whoever reads on waits for the next line, and for one more Ctrl-D.
    is_over: bool,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_over {
            return Ok(0);
        }
        let count = self.tap.through(|| self.inner.read(buffer))?;
        self.is_over = count == 0 && !buffer.is_empty();
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Input of which it is counted what was taken, not what lies in its buffer: how far whoever cuts it is.
struct Taken<R> {
    inner: R,
    taken: Arc<AtomicU64>,
}

impl<R: BufRead> Read for Taken<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Taken<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.inner.consume(count);
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Reads a line into `line` without its end; `false` at the end of the input. A line over [`ROW_BYTES_MAX`] is an
/// error that is fatal, because its end is not looked for.
fn read_line(input: &mut dyn BufRead, number: u64, line: &mut Vec<u8>) -> Result<bool, RowError> {
    line.clear();
    let count = input.take(ROW_BYTES_MAX as u64 + 2).read_until(b'\n', line).map_err(|e| RowError::io(number, &e))?;
    if count == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.len() > ROW_BYTES_MAX {
        let message = format!("the line is longer than {ROW_BYTES_MAX} bytes, the limit of one record");
        return Err(RowError { fatal: true, ..RowError::new(number, None, message) });
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
