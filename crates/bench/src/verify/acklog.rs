//! The file that says what was acknowledged. Written as acknowledgements come, so that it is right even if the
//! verifier itself is killed; read by whoever proves that all of it is there.
//!
//! It is text, one line each, fields separated by one space:
//!
//! ```text
//! kera-verify 1 RUN STREAM                                  a run starts; RUN in hexadecimal
//! ack RUN PRODUCER STREAMLET FROM END LANE ORDINAL          records FROM to END - 1 are acknowledged; LANE and ORDINAL
//!                                                           say where the first one is, or are `-`
//! lost-hope RUN PRODUCER STREAMLET FROM END                 given up: they may be in the stream or not
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kera_format::{LaneId, StreamletId};
use parking_lot::Mutex;

use super::intervals::IntervalSet;
use super::record::Source;
use crate::BenchError;

/// Where an acknowledgement said that the first record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckPlace {
    /// The lane.
    pub lane: LaneId,
    /// The first record's ordinal.
    pub ordinal: u64,
}

/// Acknowledged records of one source in one streamlet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AckedRecords {
    /// Their numbers.
    pub numbers: IntervalSet,
    /// Where they are said to be, as far as that was said.
    pub places: Vec<(Range<u64>, AckPlace)>,
    /// Numbers of records that were given up.
    pub given_up: IntervalSet,
}

/// Everything a log says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acked {
    /// By who wrote it and where it went.
    pub records: BTreeMap<(Source, StreamletId), AckedRecords>,
    /// The streams that its runs wrote to.
    pub streams: BTreeSet<String>,
}

impl Acked {
    /// How many records were acknowledged.
    pub fn count(&self) -> u64 {
        self.records.values().map(|records| records.numbers.count()).sum()
    }

    /// Refuses a log that proves nothing of a stream: it says of no record that it was acknowledged, or is about another one.
    pub fn check(&self, path: &Path, stream: &str) -> Result<(), BenchError> {
        if let Some(other) = self.streams.iter().find(|of| *of != stream) {
            let message = format!(
                "it says what was acknowledged of `{other}`, and `{stream}` is read: name that with --stream, or its log"
            );
            return Err(BenchError::server(path.display().to_string(), message));
        }
        if self.count() == 0 {
            let message = "it says of no record that it was acknowledged, so it proves nothing";
            return Err(BenchError::server(path.display().to_string(), message));
        }
        Ok(())
    }

    /// Adds an acknowledgement.
    pub fn add(&mut self, source: Source, streamlet: StreamletId, numbers: Range<u64>, place: Option<AckPlace>) {
        let records = self.records.entry((source, streamlet)).or_default();
        records.numbers.insert(numbers.clone());
        if let Some(place) = place {
            records.places.push((numbers, place));
        }
    }
}

/// Writes the log. Shared by all producers of a run.
#[derive(Debug)]
pub struct AckLog {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    line: Vec<u8>,
    /// The first thing that went wrong: reports come from places that cannot fail.
    error: Option<std::io::Error>,
}

impl AckLog {
    /// Opens the log for appending and notes that `run` starts.
    pub fn append(path: &Path, run: u64, stream: &str) -> Result<AckLog, BenchError> {
        refuse_other_stream(path, stream)?;
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)
            .map_err(|e| BenchError::io_at("opening the log of acknowledgements", path, e))?;
        let torn = torn_line(&file).map_err(|e| BenchError::io_at("reading the log of acknowledgements", path, e))?;
        if let Some((at, line)) = torn {
            if !KINDS.iter().any(|kind| line.starts_with(kind.as_bytes()) || kind.as_bytes().starts_with(&line)) {
                return Err(BenchError::server(path.display().to_string(), "its last line is none of such a log"));
            }
            file.set_len(at).map_err(|e| BenchError::io_at("writing the log of acknowledgements", path, e))?;
        }
        // In one write: a kill leaves as little of a line as may be.
        file.write_all(format!("kera-verify 1 {run:016x} {stream}\n").as_bytes())
            .map_err(|e| BenchError::io_at("writing the log of acknowledgements", path, e))?;
        let state = State { file, line: Vec::with_capacity(128), error: None };
        Ok(AckLog { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Notes that records are acknowledged. In the file when this returns.
    pub fn acknowledged(&self, source: Source, streamlet: StreamletId, numbers: Range<u64>, place: Option<AckPlace>) {
        let (run, producer, Range { start, end }) = (source.run, source.producer, numbers);
        self.write(|line| match place {
            Some(AckPlace { lane, ordinal }) => {
                writeln!(line, "ack {run:016x} {producer} {streamlet} {start} {end} {lane} {ordinal}")
            }
            None => writeln!(line, "ack {run:016x} {producer} {streamlet} {start} {end} - -"),
        });
    }

    /// Notes that records were given up.
    pub fn given_up(&self, source: Source, streamlet: StreamletId, numbers: Range<u64>) {
        let (run, producer, Range { start, end }) = (source.run, source.producer, numbers);
        self.write(|line| writeln!(line, "lost-hope {run:016x} {producer} {streamlet} {start} {end}"));
    }

    fn write(&self, put: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
        let mut state = self.state.lock();
        let State { file, line, error } = &mut *state;
        line.clear();
        let outcome = put(line).and_then(|()| file.write_all(line));
        if let Err(e) = outcome {
            error.get_or_insert(e);
        }
    }

    /// Fails if any line could not be written: then the log proves nothing.
    pub fn check(&self) -> Result<(), BenchError> {
        match self.state.lock().error.take() {
            Some(e) => Err(BenchError::io_at("writing the log of acknowledgements", &self.path, e)),
            None => Ok(()),
        }
    }
}

/// Refuses to go on with a log that is about another stream: it would prove nothing of either.
fn refuse_other_stream(path: &Path, stream: &str) -> Result<(), BenchError> {
    let begins = |line: &str| line.strip_prefix(KINDS[0])?.splitn(3, ' ').nth(2).map(str::to_owned);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(BenchError::io_at("reading the log of acknowledgements", path, error)),
    };
    let mut first = String::new();
    // What is no text is refused as no line of such a log.
    let _ = BufReader::new(file.take(LINE_BYTES_MAX)).read_line(&mut first);
    // A line that does not end is a run's that was killed while it began: the name may be cut.
    let whole = first.strip_suffix('\n').and_then(begins);
    match whole.filter(|other| other != stream) {
        Some(other) => {
            let message = format!(
                "it says what was acknowledged of `{other}`, and would prove nothing of `{stream}`: name another file with --log, or delete it"
            );
            Err(BenchError::server(path.display().to_string(), message))
        }
        None => Ok(()),
    }
}

/// How lines begin.
const KINDS: [&str; 3] = ["kera-verify ", "ack ", "lost-hope "];
/// More than a line has.
const LINE_BYTES_MAX: u64 = 4096;

/// A last line that does not end, and where it begins: its writer was killed. Nobody was told of it, so it can go; the next run's first line would
/// become its end.
fn torn_line(file: &File) -> std::io::Result<Option<(u64, Vec<u8>)>> {
    let bytes = file.metadata()?.len();
    let from = bytes.saturating_sub(LINE_BYTES_MAX);
    let mut tail = vec![0; (bytes - from) as usize];
    file.read_exact_at(&mut tail, from)?;
    let start = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line = tail.split_off(start);
    Ok((!line.is_empty()).then_some((from + start as u64, line)))
}

/// Reads a log. An incomplete last line is left out: its writer was killed, and nobody was told of that line.
pub fn read(path: &Path) -> Result<Acked, BenchError> {
    let file = File::open(path).map_err(|e| BenchError::io_at("opening the log of acknowledgements", path, e))?;
    let mut acked = Acked::default();
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    for number in 1u64.. {
        line.clear();
        let bytes = reader
            .read_line(&mut line)
            .map_err(|e| BenchError::io_at("reading the log of acknowledgements", path, e))?;
        if bytes == 0 || !line.ends_with('\n') {
            break;
        }
        if parse_line(line.trim_end(), &mut acked).is_none() {
            let what = format!("{}, line {number}", path.display());
            return Err(BenchError::server(what, format!("`{}` is no line of such a log", line.trim_end())));
        }
    }
    Ok(acked)
}

fn parse_line(line: &str, acked: &mut Acked) -> Option<()> {
    let fields: Vec<&str> = line.split(' ').collect();
    match *fields.first()? {
        "kera-verify" if fields.len() == 4 && fields[1] == "1" => {
            acked.streams.insert(fields[3].to_owned());
            Some(())
        }
        kind @ ("ack" | "lost-hope") if fields.len() == if kind == "ack" { 8 } else { 6 } => {
            let source = Source { run: u64::from_str_radix(fields[1], 16).ok()?, producer: fields[2].parse().ok()? };
            let streamlet = StreamletId(fields[3].parse().ok()?);
            let numbers = fields[4].parse().ok()?..fields[5].parse().ok()?;
            if kind == "lost-hope" {
                acked.records.entry((source, streamlet)).or_default().given_up.insert(numbers);
            } else {
                let place = match (fields[6], fields[7]) {
                    ("-", "-") => None,
                    (lane, ordinal) => {
                        Some(AckPlace { lane: LaneId(lane.parse().ok()?), ordinal: ordinal.parse().ok()? })
                    }
                };
                acked.add(source, streamlet, numbers, place);
            }
            Some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source { run: 0xabc, producer: 2 };

    #[test]
    fn what_is_noted_is_read_also_after_a_second_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        let place = AckPlace { lane: LaneId(3), ordinal: 77 };
        let log = AckLog::append(&path, SOURCE.run, "s").unwrap();
        log.acknowledged(SOURCE, StreamletId(1), 0..10, Some(place));
        log.acknowledged(SOURCE, StreamletId(1), 10..15, None);
        log.given_up(SOURCE, StreamletId(1), 15..20);
        log.check().unwrap();
        drop(log);
        let other = Source { run: 1, producer: 0 };
        AckLog::append(&path, other.run, "s").unwrap().acknowledged(other, StreamletId(0), 0..1, None);
        let acked = read(&path).unwrap();
        assert_eq!(acked.count(), 16);
        let records = &acked.records[&(SOURCE, StreamletId(1))];
        assert!(records.numbers.iter().eq(std::iter::once(0..15)));
        assert_eq!(records.places, [(0..10, place)]);
        assert_eq!(records.given_up.count(), 5);
    }

    #[test]
    fn a_log_without_acknowledgements_or_of_another_stream_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        let said = |stream: &str| read(&path).unwrap().check(&path, stream).map_err(|error| error.to_string());
        std::fs::write(&path, "").unwrap();
        assert!(said("s").unwrap_err().contains("proves nothing"));
        std::fs::write(&path, "kera-verify 1 0abc s\nlost-hope abc 2 1 0 5\n").unwrap();
        assert!(said("s").unwrap_err().contains("proves nothing"));
        std::fs::write(&path, "kera-verify 1 0abc s\nack abc 2 1 0 5 - -\n").unwrap();
        assert_eq!(said("s"), Ok(()));
        assert!(said("t").unwrap_err().contains("acknowledged of `s`, and `t` is read"));
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_a_strange_line_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        std::fs::write(&path, "kera-verify 1 0abc s\nack abc 2 1 0 5 - -\nack abc 2 1 5 99").unwrap();
        assert_eq!(read(&path).unwrap().count(), 5);
        std::fs::write(&path, "ack abc 2 1 0\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
        assert!(read(&dir.path().join("none")).is_err());
    }

    #[test]
    fn the_next_run_goes_on_behind_a_torn_line_and_touches_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        for torn in ["ack abc 2 1 5 99", "ack abc 2 1 5 9 0 7", "kera-ver", "l"] {
            std::fs::write(&path, format!("kera-verify 1 0abc s\nack abc 2 1 0 5 - -\n{torn}")).unwrap();
            let log = AckLog::append(&path, 1, "s").unwrap();
            log.acknowledged(Source { run: 1, producer: 0 }, StreamletId(0), 0..1, None);
            assert_eq!(read(&path).unwrap().count(), 6, "{torn}");
        }
        // It was killed while it began the file.
        for torn in ["kera-verify 1 ", "kera-verify 1 0abc", "kera-verify 1 0abc ", "kera-verify 1 0abc anoth"] {
            std::fs::write(&path, torn).unwrap();
            AckLog::append(&path, 1, "s").unwrap_or_else(|error| panic!("{torn}: {error}"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "kera-verify 1 0000000000000001 s\n");
        }
        for other in ["a text without an end", "one\ntwo"] {
            std::fs::write(&path, other).unwrap();
            assert!(AckLog::append(&path, 1, "s").is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
    }
}
