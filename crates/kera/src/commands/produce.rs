//! `kera produce`: records from a file or standard input into a stream.
//!
//! One thread reads and cuts the input into batches of rows; the main thread runs the producer and sends them. The
//! batches are small while the sender keeps up (so that `tail -f` is not delayed) and large while it does not.
//!
//! Who ends the command by a signal ends input without an end with it: what was taken from it until then is still sent, for nobody else has it any more. Of a
//! file the rest is left out, and where to go on is said.
//!
//! The input may have no end, so nothing is left for its end. Whenever it pauses, and once a second while it does not, the
//! command waits until all that was sent is acknowledged: how far the stream has the input in order is known to a second.
//! With the first record that is given up the command ends, so that the stream gets no hole that nobody is told of: what comes
//! behind it is not even read.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kera_client::{ClientError, Producer, Record};
use kera_server::Wishes;
use kera_server::units::{human_bytes, human_count};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::cli::{Globals, OnError, ProduceArgs};
use crate::connect::{connect, explain, find_stream};
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::output::{print, print_json, records_of, say};
use crate::rows::{self, Format, Input, Picks, Row, RowError, Tap};
use crate::signals;

/// Bytes of values after which a batch is full.
const BATCH_BYTES: usize = 256 << 10;
/// Rows after which it is.
const BATCH_ROWS: usize = 4096;
/// Batches that are read ahead.
const BATCHES_AHEAD: usize = 4;
/// Malformed records that are reported one by one when they are skipped.
const REPORTED_MAX: u64 = 20;
/// Time between two waits for all acknowledgements while input comes without a pause.
const SETTLE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at how it goes while something is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// When no input has come for so long, what is there is sent.
const PAUSE: Duration = Duration::from_millis(20);
/// Without an acknowledgement for so long, what is waited for is said.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// Of less time, in seconds, no rate is told: it would be that of the first round trip.
const RATE_FROM_S: f64 = 0.1;

/// Rows on their way from the reader to the producer, in one buffer.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    rows: Vec<RowSpan>,
    /// How many of them were sent.
    sent: usize,
}

struct RowSpan {
    line: u64,
    /// The line from which on everything is that comes behind it.
    next_line: u64,
    /// How far the input was cut when this was.
    input_bytes: u64,
    key: Option<Span>,
    more_keys: Vec<Span>,
    value: Option<Span>,
    timestamp_ms: Option<i64>,
    version: Option<u64>,
    headers: u64,
}

/// Where something is in the buffer.
type Span = std::ops::Range<usize>;

impl Rows {
    fn push(&mut self, row: &Row, input_bytes: u64) {
        let mut span = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            start..self.bytes.len()
        };
        let key = row.key.as_deref().map(&mut span);
        let more_keys = row.more_keys.iter().map(|key| span(key)).collect();
        let value = (!row.no_value).then(|| span(&row.value));
        let Row { line, timestamp_ms, version, headers, .. } = *row;
        let next_line = line + u64::from(!row.shares_line);
        self.rows.push(RowSpan { line, next_line, input_bytes, key, more_keys, value, timestamp_ms, version, headers });
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.rows.len() >= BATCH_ROWS
    }
}

enum Read {
    Rows(Rows),
    Malformed(RowError),
}

/// Runs the command.
///
/// # Errors
/// The input cannot be read or is malformed, or the node does not take it.
pub async fn run(args: &ProduceArgs, globals: &Globals) -> Result<(), CliError> {
    let picks = Picks {
        key: args.key_field.clone(),
        timestamp: args.timestamp_field.clone(),
        separator: args.key_separator.clone(),
        key_encoding: args.key_encoding,
        null: args.null_value.clone(),
        delimiter: args.delimiter,
        csv_types: args.csv_types,
        from_line: args.from_line,
    };
    // The node is asked before the input is touched: a pipe cannot be read twice.
    let client = connect(globals).await?;
    let stream = find_stream(&client, &args.stream).await?;
    if stream.name.starts_with("_kera.") {
        let message = format!("`{}` is one of the system's own streams: only nodes write to it", stream.name);
        return Err(CliError::failure(message).next("`kera stream list` shows those that can be written to"));
    }
    let Input { name, bytes, cut, tap, rows } = open_input(args, picks).await?;
    let failed = FirstFailure::default();
    let noting = failed.clone();
    let mut producer = client.producer(&stream.name);
    if let Some(bytes) = args.chunk_bytes {
        producer = producer.chunk_bytes(bytes);
    }
    let producer = producer
        .linger(Duration::from_millis(args.linger_ms))
        .compression(args.compression)
        .on_report(move |report| {
            if let Err(error) = &report.result {
                noting.note(error);
            }
        })
        .build()
        .await?;
    let mut sending = Sending {
        producer,
        failed,
        address: globals.connect.clone(),
        source: name,
        // Half a value is none.
        has_end: bytes.is_some() || args.format == Format::Raw,
        tap,
        on_error: args.on_error,
        max: args.max.unwrap_or(u64::MAX),
        pace: args.rate.map(Pace::new),
        progress: Progress::start(bytes, cut, args.max, args.quiet || globals.json),
        sent: 0,
        sent_bytes: 0,
        last_line: 0,
        next_line: args.from_line.unwrap_or(1),
        settled: Settled { records: 0, line: 0, next_line: args.from_line.unwrap_or(1), at: Instant::now() },
        quiet: Quiet { acknowledged: 0, since: Instant::now(), said: false },
        skipped: 0,
        headers: 0,
        stopped: None,
        is_cut_off: false,
    };
    let mut wishes = signals::listen(&[])?;
    let started = Instant::now();
    let outcome = sending.all(rows, &mut wishes).await;
    sending.finish(outcome, started, wishes, globals).await
}

/// Opens the input away from the runtime: a pipe may take its time.
async fn open_input(args: &ProduceArgs, picks: Picks) -> Result<Input, CliError> {
    let (file, format) = (args.file.clone(), args.format);
    // The source is made on the thread that reads it, so only its parts travel.
    let opened = tokio::task::spawn_blocking(move || rows::open(&file, format, picks));
    opened.await.map_err(|error| CliError::failure(error.to_string()))?
}

/// The first error of a record that was given up. The producer's task notes it, the command looks for it.
#[derive(Clone, Default)]
struct FirstFailure(Arc<Mutex<Option<ClientError>>>);

impl FirstFailure {
    fn note(&self, error: &ClientError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.clone());
    }

    fn get(&self) -> Option<ClientError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Up to where everything was acknowledged when it was last waited for.
struct Settled {
    records: u64,
    line: u64,
    /// Where to go on.
    next_line: u64,
    at: Instant,
}

/// For how long nothing was acknowledged although something waits.
struct Quiet {
    acknowledged: u64,
    since: Instant,
    /// It was said what is waited for.
    said: bool,
}

struct Sending {
    producer: Producer,
    failed: FirstFailure,
    address: String,
    source: String,
    /// It is a file: who stops the command has kept it from the rest. Other input may have no end, and is ended so.
    has_end: bool,
    /// Ends the input.
    tap: Arc<Tap>,
    on_error: OnError,
    max: u64,
    pace: Option<Pace>,
    progress: Progress,
    sent: u64,
    sent_bytes: u64,
    /// The line of the last record that was sent.
    last_line: u64,
    /// The line from which on everything is that was not sent: that one once more, if others may be on it.
    next_line: u64,
    settled: Settled,
    quiet: Quiet,
    skipped: u64,
    /// Headers that were left out.
    headers: u64,
    /// Why sending ended before the input did, if it did.
    stopped: Option<String>,
    /// A second signal came before everything was sent that had been read until the first one.
    is_cut_off: bool,
}

/// What there is to do next.
enum Next {
    Read(Option<Read>),
    /// Nothing is at hand, and everything is acknowledged or something was given up.
    Flushed(Result<(), ClientError>),
    Look,
    Stop,
}

/// Waits until everything is acknowledged, once nothing has come for a moment: input that comes in small parts is not sent in chunks as small.
/// Dropped before it is done it has no effect but that what was open is sealed.
async fn flush_after_pause(producer: &mut Producer) -> Result<(), ClientError> {
    tokio::time::sleep(PAUSE).await;
    producer.flush().await
}

impl Sending {
    async fn all(&mut self, source: Box<dyn rows::RowSource>, wishes: &mut Wishes) -> Result<(), CliError> {
        let ahead = Arc::new(Ahead::default());
        let (read_ahead, cut, tap) = (Arc::clone(&ahead), self.progress.counts(), Arc::clone(&self.tap));
        // Detached: it may be waiting for standard input when sending is over.
        thread::Builder::new()
            .name("kera-input".into())
            .spawn(move || read_rows(source, &read_ahead, &cut, &tap))
            .map_err(|error| CliError::failure(format!("no thread to read the input: {error}")))?;
        let outcome = self.all_of(&ahead, wishes).await;
        ahead.close();
        outcome
    }

    async fn all_of(&mut self, ahead: &Arc<Ahead>, wishes: &mut Wishes) -> Result<(), CliError> {
        loop {
            let waits = self.settled.records < self.sent;
            let next = tokio::select! {
                biased;
                _ = wishes.next() => Next::Stop,
                next = ahead.next() => Next::Read(next),
                flushed = flush_after_pause(&mut self.producer), if waits => Next::Flushed(flushed),
                () = tokio::time::sleep(LOOK_EVERY), if waits => Next::Look,
            };
            match next {
                Next::Read(None) => return Ok(()),
                Next::Read(Some(Read::Rows(mut rows))) => loop {
                    tokio::select! {
                        sent = self.send(&mut rows) => break sent?,
                        _ = wishes.next() => if self.take_signal(ahead) { return Ok(()) },
                    }
                },
                Next::Read(Some(Read::Malformed(error))) => self.malformed(&error)?,
                Next::Flushed(flushed) => self.flushed(flushed)?,
                Next::Look => self.look()?,
                Next::Stop => {
                    if self.take_signal(ahead) {
                        return Ok(());
                    }
                }
            }
            if self.sent >= self.max {
                return Ok(());
            }
            self.progress.show(self.sent);
        }
    }

    /// A signal has come. Whether nothing more is sent: the first one ends only the input, if that may have no end by itself.
    fn take_signal(&mut self, ahead: &Arc<Ahead>) -> bool {
        let is_first = self.stopped.replace("interrupted".into()).is_none();
        if self.has_end || !is_first {
            self.is_cut_off = !is_first;
            return true;
        }
        let is_waiting = self.tap.shut();
        let held = if is_waiting { self.tap.hand_over() } else { None };
        let all_is_cut = is_waiting && held.is_none();
        match held {
            Some(rows) => self.cut(rows, ahead),
            None if is_waiting => ahead.end(),
            None => {}
        }
        // Whoever has sent the signal does not wait for long.
        self.pace = None;
        if !all_is_cut || self.progress.cut.rows.load(Ordering::Relaxed) > self.producer.stats().acknowledged_records {
            self.progress.line(
                "interrupted: what was read until now is still sent; another signal, after a second, ends that at once",
            );
        }
        false
    }

    /// Has rows cut that whoever waits for more had not cut yet. On a thread of its own, for there is not always room for them.
    fn cut(&self, rows: Box<dyn rows::RowSource>, ahead: &Arc<Ahead>) {
        let (read_ahead, cut) = (Arc::clone(ahead), self.progress.counts());
        let cutting = thread::Builder::new()
            .name("kera-input".into())
            .spawn(move || read_rows(rows, &read_ahead, &cut, &Tap::default()));
        if let Err(error) = cutting {
            self.progress.line(&format!("what was read last is not sent: no thread to cut it: {error}"));
            ahead.end();
        }
    }

    /// Sends what is left of a batch. Dropped before it is done it goes on where it was.
    async fn send(&mut self, rows: &mut Rows) -> Result<(), CliError> {
        if self.producer.stats().acknowledged_records == self.sent {
            self.has_settled();
            self.quiet.since = Instant::now();
        }
        while let Some(row) = rows.rows.get(rows.sent) {
            if self.sent >= self.max {
                return Ok(());
            }
            if let Some(pace) = &mut self.pace {
                pace.wait().await;
                self.progress.show(self.sent);
            }
            let value = row.value.clone().map(|span| &rows.bytes[span]);
            let key = row.key.clone().map(|span| [&rows.bytes[span]]);
            let mut keys: &[&[u8]] = key.as_ref().map_or(&[], |key| key);
            let all_keys: Vec<&[u8]>;
            if !row.more_keys.is_empty() {
                let more = row.more_keys.iter().map(|span| &rows.bytes[span.clone()]);
                all_keys = keys.iter().copied().chain(more).collect();
                keys = &all_keys;
            }
            let (timestamp_ms, version) = (row.timestamp_ms, row.version);
            let record = Record { keys, value, timestamp_ms, version, ..Record::default() };
            self.push(&record, row.line).await?;
            self.sent += 1;
            self.sent_bytes += value.map_or(0, <[u8]>::len) as u64;
            self.headers += row.headers;
            (self.last_line, self.next_line) = (row.line, row.next_line);
            self.progress.input_bytes = row.input_bytes;
            rows.sent += 1;
            if self.pace.is_some() {
                self.settle_if_due().await?;
            }
        }
        self.settle_if_due().await
    }

    /// Has the producer take a record. It waits while there is no room, which is when nothing is acknowledged.
    async fn push(&mut self, record: &Record<'_>, line: u64) -> Result<(), CliError> {
        let failed = loop {
            match self.producer.try_send(record) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => break error,
            }
            // Dropped before it is done it has taken nothing.
            match timeout(LOOK_EVERY, self.producer.send(record)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => break error,
                Err(_) => self.look()?,
            }
        };
        let mut explained = explain(&failed);
        explained.message = format!("{}, line {line}: {}", self.source, explained.message);
        Err(explained)
    }

    async fn settle_if_due(&mut self) -> Result<(), CliError> {
        if self.settled.at.elapsed() >= SETTLE_EVERY { self.settle().await } else { Ok(()) }
    }

    /// Waits until everything that was sent is acknowledged.
    async fn settle(&mut self) -> Result<(), CliError> {
        loop {
            match timeout(LOOK_EVERY, self.producer.flush()).await {
                Ok(flushed) => return self.flushed(flushed),
                Err(_) => self.look()?,
            }
        }
    }

    fn flushed(&mut self, flushed: Result<(), ClientError>) -> Result<(), CliError> {
        if let Err(error) = flushed {
            self.failed.note(&error);
        }
        // That all is well is said here too, if it was said that it is not.
        self.look()?;
        self.has_settled();
        Ok(())
    }

    /// Everything that was sent is acknowledged.
    fn has_settled(&mut self) {
        let (line, next_line) = (self.last_line, self.next_line);
        self.settled = Settled { records: self.sent, line, next_line, at: Instant::now() };
    }

    /// Looks how it goes while something is waited for: ends with the first record that was given up, and says once that nothing is
    /// acknowledged, and once that it goes on.
    fn look(&mut self) -> Result<(), CliError> {
        if let Some(error) = self.failed.get() {
            return Err(self.given_up(&error));
        }
        let acknowledged = self.producer.stats().acknowledged_records;
        if acknowledged != self.quiet.acknowledged || acknowledged == self.sent {
            if self.quiet.said {
                self.progress.line("it goes on: records are acknowledged again");
            }
            self.quiet = Quiet { acknowledged, since: Instant::now(), said: false };
        } else if !self.quiet.said && self.quiet.since.elapsed() >= QUIET_MAX {
            let why = self.producer.last_error();
            let why = why.unwrap_or_else(|| format!("{} has not answered yet", self.address));
            self.progress.line(&format!("waiting until records are acknowledged: {why}"));
            self.quiet.said = true;
        }
        Ok(())
    }

    /// How the command ends when a record was given up.
    fn given_up(&self, error: &ClientError) -> CliError {
        let mut explained = explain(error);
        explained.message = format!("{}; {}", self.how_far(), explained.message);
        let again = self.send_again();
        explained.next_step = match explained.next_step.as_str() {
            "" => format!("`kera status` says whether a node is lost or a disk is full: see to that, then {again}"),
            first => format!("{first}; then {again}"),
        };
        explained
    }

    /// How far the stream has the input for certain.
    fn how_far(&self) -> String {
        let acknowledged = self.producer.stats().acknowledged_records;
        let Settled { records, line, .. } = self.settled;
        let behind = self.sent.saturating_sub(records);
        let of_these = match acknowledged.saturating_sub(records) {
            0 => "none was".to_owned(),
            1 => "1 was".to_owned(),
            count => format!("{} were", human_count(count)),
        };
        let sent = records_of(behind);
        match records {
            0 => format!("{}: of {sent} {of_these} acknowledged", self.source),
            _ => format!(
                "{}: up to line {line} the stream has everything ({}); of {sent} after that {of_these} acknowledged",
                self.source,
                records_of(records)
            ),
        }
    }

    fn send_again(&self) -> String {
        let line = self.settled.next_line;
        format!(
            "send from line {line} on again, with --from-line {line}; what of that has reached the stream will be there twice"
        )
    }

    fn malformed(&mut self, error: &RowError) -> Result<(), CliError> {
        let report = error.report(&self.source);
        if self.on_error == OnError::Stop || error.fatal {
            let advice = if error.fatal {
                "correct the input"
            } else {
                "correct the line, or leave such lines out with --on-error skip"
            };
            return Err(CliError::failure(report).next(advice));
        }
        self.skipped += 1;
        match self.skipped {
            ..=REPORTED_MAX => self.progress.line(&format!("skipped: {report}")),
            n if n == REPORTED_MAX + 1 => self.progress.line("skipped: more, which are only counted"),
            _ => {}
        }
        Ok(())
    }

    /// How the command ends when it was stopped before its input ended.
    fn interrupted(&self) -> CliError {
        let (message, next) = match self.last_line {
            0 => (format!("{}: interrupted before the first record was written", self.source), "send it again".into()),
            line => (
                format!("{}: interrupted; the stream has everything up to the record of line {line}", self.source),
                format!("to go on give the command again with {}", self.go_on()),
            ),
        };
        CliError { exit: EXIT_INTERRUPTED, ..CliError::failure(message).next(next) }
    }

    /// The flag with which the command goes on behind the last record that was sent.
    fn go_on(&self) -> String {
        let line = self.next_line;
        match line == self.last_line {
            true => format!("--from-line {line}; what of that line is in the stream will be there twice"),
            false => format!("--from-line {line}"),
        }
    }

    /// How the command ends when it was stopped before everything that it had read was acknowledged.
    fn cut_off(&self) -> CliError {
        let message = format!("{}; the command was stopped before the others were", self.how_far());
        CliError { exit: EXIT_INTERRUPTED, ..CliError::failure(message).next(self.send_again()) }
    }

    /// Waits for every acknowledgement, and tells how it went.
    async fn finish(
        mut self,
        outcome: Result<(), CliError>,
        started: Instant,
        mut wishes: Wishes,
        globals: &Globals,
    ) -> Result<(), CliError> {
        // What was given up is told already, and nothing behind it is waited for.
        let settled = match self.failed.get() {
            Some(_) if outcome.is_err() => Ok(()),
            _ if self.is_cut_off => Err(self.cut_off()),
            _ => tokio::select! {
                biased;
                settled = self.settle() => settled,
                _ = wishes.next() => Err(self.cut_off()),
            },
        };
        self.progress.end();
        if let Err(error) = outcome {
            return Err(self.ended_by(error, settled));
        }
        settled?;
        let cut_short = (self.has_end && self.stopped.is_some()).then(|| self.interrupted());
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        let closed = self.producer.flush().await;
        closed.map_err(|error| explain(&error))?;
        let told = self.tell(seconds, globals.json);
        // Ctrl-C ends whoever reads this, too, and then nothing can be told: that it was cut short, or that nothing was of use, is the status all the same.
        match (cut_short, self.sent, self.skipped) {
            (Some(error), ..) => Err(error),
            (None, 0, 1..) => {
                let message = format!("{}: of {} nothing could be written", self.source, records_of(self.skipped));
                Err(CliError::failure(message)
                    .next("see why the first ones were skipped; is --format what the input is?"))
            }
            _ => told,
        }
    }

    /// How the command ends that an error has ended, after it was waited for what was sent before.
    fn ended_by(&self, mut error: CliError, settled: Result<(), CliError>) -> CliError {
        if let Err(worse) = settled {
            let message = format!("{}; it ended with this: {}", worse.message, error.message);
            return CliError::failure(message).next(worse.next_step);
        }
        if self.failed.get().is_none() && self.sent > 0 {
            let before = match self.sent {
                1 => "the record before it was written".to_owned(),
                sent => format!("the {} before it were written", records_of(sent)),
            };
            let first = if error.next_step.is_empty() { String::new() } else { format!("{}; then ", error.next_step) };
            error.next_step = format!("{before}; {first}go on with {}", self.go_on());
        }
        error
    }

    /// Tells how it went.
    fn tell(&self, seconds: f64, json: bool) -> Result<(), CliError> {
        let rate = (self.sent as f64 / seconds).round() as u64;
        if json {
            return print_json(&json!({
                "records": self.sent, "value_bytes": self.sent_bytes, "skipped": self.skipped, "headers_left_out": self.headers,
                "last_line": self.last_line,
                "seconds": seconds, "records_per_second": rate,
                "interrupted": self.stopped.is_some(), "retried_chunks": self.producer.stats().retried_chunks,
            }));
        }
        let skipped = match self.skipped {
            0 => String::new(),
            count => format!(", {} skipped", human_count(count)),
        };
        let headers = match self.headers {
            0 => String::new(),
            count => format!(", {} headers left out", human_count(count)),
        };
        let how = self.stopped.as_deref().map_or(String::new(), |why| format!(" ({why})"));
        // Whoever goes on may be at the end, and so may who has mistaken the number.
        let is_behind = self.sent + self.skipped == 0 && self.next_line > 1 && self.max > 0 && self.stopped.is_none();
        let behind = match is_behind {
            true => format!("; nothing begins on line {} or behind it", human_count(self.next_line)),
            false => String::new(),
        };
        let rate = if seconds < RATE_FROM_S { String::new() } else { format!(", {} records/s", human_count(rate)) };
        print(&format!(
            "{} ({}) written and acknowledged in {seconds:.2} s{rate}{skipped}{headers}{how}{behind}\n",
            records_of(self.sent),
            human_bytes(self.sent_bytes),
        ))
    }
}

/// What was read ahead, in batches that grow while nobody takes them. The reader keeps nothing to itself: it may wait for input at any time,
/// and what came before must not wait with it.
#[derive(Default)]
struct Ahead {
    queue: Mutex<Queue>,
    more: Notify,
    room: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<Read>,
    /// Nothing more comes.
    is_over: bool,
    /// Nobody takes anything any more.
    is_closed: bool,
}

impl Ahead {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was read next; nothing at the end. Dropped before it is done it has taken nothing.
    async fn next(&self) -> Option<Read> {
        loop {
            {
                let mut queue = self.queue();
                if let Some(read) = queue.reads.pop_front() {
                    self.room.notify_one();
                    return Some(read);
                }
                if queue.is_over {
                    return None;
                }
            }
            // Who has added something since has left a permit.
            self.more.notified().await;
        }
    }

    /// Adds a row to the last batch, or a batch; waits while there is no room. Whether somebody wants it.
    fn push(&self, row: &Row, input_bytes: u64) -> bool {
        self.add(|reads| {
            if let Some(Read::Rows(rows)) = reads.back_mut()
                && !rows.is_full()
            {
                rows.push(row, input_bytes);
                return true;
            }
            let has_room = reads.len() < BATCHES_AHEAD;
            if has_room {
                let mut rows = Rows::default();
                rows.push(row, input_bytes);
                reads.push_back(Read::Rows(rows));
            }
            has_room
        })
    }

    /// The same for a row that is malformed.
    fn push_malformed(&self, error: &RowError) -> bool {
        self.add(|reads| {
            let has_room = reads.len() < BATCHES_AHEAD;
            if has_room {
                reads.push_back(Read::Malformed(error.clone()));
            }
            has_room
        })
    }

    fn add(&self, mut add: impl FnMut(&mut VecDeque<Read>) -> bool) -> bool {
        let mut queue = self.queue();
        while !queue.is_closed {
            let was_empty = queue.reads.is_empty();
            if add(&mut queue.reads) {
                if was_empty {
                    self.more.notify_one();
                }
                return true;
            }
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// Nothing more comes.
    fn end(&self) {
        self.queue().is_over = true;
        self.more.notify_one();
    }

    /// Nobody takes anything any more.
    fn close(&self) {
        self.queue().is_closed = true;
        self.room.notify_one();
    }
}

/// Reads all rows. Ends early when nobody wants them any more, or after an error that is fatal, or where the input was shut.
fn read_rows(mut source: Box<dyn rows::RowSource>, ahead: &Ahead, cut: &Counts, tap: &Tap) {
    let mut row = Row::default();
    loop {
        let goes_on = match source.next(&mut row) {
            Ok(true) => {
                cut.rows.fetch_add(1, Ordering::Relaxed);
                ahead.push(&row, cut.bytes.load(Ordering::Relaxed))
            }
            Ok(false) => false,
            // It ends with what the others cut.
            Err(_) if tap.is_handed_over() => return,
            Err(_) if tap.is_dry() => false,
            Err(error) => ahead.push_malformed(&error) && !error.fatal,
        };
        if !goes_on {
            return ahead.end();
        }
    }
}

/// Behind its time by more than this a rate begins anew.
const PACE_BEHIND_MAX: Duration = Duration::from_millis(100);

/// Keeps a rate: the n-th record leaves n / rate seconds after the first. What a pause of the input has left unused is not made up for.
struct Pace {
    started: Instant,
    per_second: u64,
    released: u64,
}

impl Pace {
    fn new(per_second: u64) -> Pace {
        Pace { started: Instant::now(), per_second, released: 0 }
    }

    async fn wait(&mut self) {
        let due = self.due(Instant::now());
        // Timers are no finer than a millisecond: records that are due by then go together.
        if due > Instant::now() + Duration::from_millis(1) {
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// When the next record leaves.
    fn due(&mut self, now: Instant) -> Instant {
        let mut due = self.started + Duration::from_secs_f64(self.released as f64 / self.per_second as f64);
        if now.saturating_duration_since(due) > PACE_BEHIND_MAX {
            (self.started, self.released, due) = (now, 0, now);
        }
        self.released += 1;
        due
    }
}

/// How much is done, from 0 to 1: of the input, or of the records that are wanted of it, whichever ends sooner.
fn share_done((input, bytes): (u64, u64), (sent, max): (u64, u64)) -> f64 {
    let of = |done: u64, all: u64| if done < all { done as f64 / all as f64 } else { 1.0 };
    of(input, bytes).max(of(sent, max))
}

/// How long the rest takes if it goes as fast as what was done since the `first` share was; nothing before anything was.
fn time_left(took: Duration, first: f64, at: f64) -> Option<Duration> {
    let left = took.as_secs_f64() * (1.0 - at) / (at - first);
    if at > first { Duration::try_from_secs_f64(left).ok() } else { None }
}

/// What was cut of the input.
#[derive(Clone, Default)]
struct Counts {
    rows: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

/// How finely the bar tells how much is done.
const BAR_STEPS: u64 = 10_000;

/// A bar on standard error while that is a terminal.
struct Progress {
    bar: ProgressBar,
    /// The input's size, if it is known.
    bytes: Option<u64>,
    /// Records after which nothing more is sent.
    max: u64,
    cut: Counts,
    /// How far the input was cut when the last record was that was sent. What was read ahead does not count: it would have the bar jump.
    input_bytes: u64,
    /// When the first record was sent, and how much was done then: what was passed over in front of it took no time.
    began: Option<(Instant, f64)>,
    shown: Instant,
}

impl Progress {
    fn start(bytes: Option<u64>, cut: Arc<AtomicU64>, max: Option<u64>, quiet: bool) -> Progress {
        let bar = bytes.map_or_else(ProgressBar::new_spinner, |_| ProgressBar::new(BAR_STEPS));
        if quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = match bytes {
            Some(_) => "{bar:32} {percent:>3}%  {msg}",
            None => "{spinner} {msg}  {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let cut = Counts { bytes: cut, ..Counts::default() };
        let max = max.unwrap_or(u64::MAX);
        Progress { bar, bytes, max, cut, input_bytes: 0, began: None, shown: Instant::now() }
    }

    fn counts(&self) -> Counts {
        self.cut.clone()
    }

    fn show(&mut self, sent: u64) {
        if self.bar.is_hidden() || self.shown.elapsed() < Duration::from_millis(50) {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.bar.elapsed().as_secs_f64().max(1e-3);
        let share = self.bytes.map(|bytes| share_done((self.input_bytes, bytes), (sent, self.max)));
        if let Some(share) = share {
            self.bar.set_position((share * BAR_STEPS as f64) as u64);
        }
        if sent > 0 && self.began.is_none() {
            self.began = share.map(|share| (self.shown, share));
        }
        let left = share.zip(self.began).and_then(|(at, (began, first))| time_left(began.elapsed(), first, at));
        let left = left.map_or(String::new(), |left| format!("  ETA {:#}", HumanDuration(left)));
        self.bar.set_message(format!(
            "{}  {} records/s{left}",
            records_of(sent),
            human_count((sent as f64 / seconds) as u64)
        ));
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| say(text));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_after_a_pause_too() {
        let mut pace = Pace::new(100);
        let started = pace.started;
        let ms = Duration::from_millis;
        let mut dues = |now: Duration, count: usize| -> Vec<Duration> {
            (0..count).map(|_| pace.due(started + now) - started).collect()
        };
        assert_eq!(dues(ms(0), 3), [0, 10, 20].map(ms));
        assert_eq!(dues(ms(100), 2), [30, 40].map(ms), "what is a little late is made up for");
        assert_eq!(dues(ms(60_000), 3), [60_000, 60_010, 60_020].map(ms));
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done_in_proportion() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(seconds(3), 0.0, 0.25), Some(seconds(9)));
        // What was passed over in front of the first record took no time.
        assert_eq!(time_left(seconds(3), 0.5, 0.75), Some(seconds(3)));
        assert_eq!(time_left(seconds(3), 0.5, 1.0), Some(seconds(0)));
        assert_eq!(time_left(seconds(3), 0.0, 0.0), None);
    }

    /// Of a large file of which the first thousand records were wanted it told how long all of it would take.
    #[test]
    fn what_is_done_is_that_of_the_input_or_of_the_records_that_are_wanted() {
        assert_eq!(share_done((100, 400), (90, u64::MAX)), 0.25);
        assert_eq!(share_done((100, 400), (90, 100)), 0.9);
        assert_eq!(share_done((300, 400), (90, 1000)), 0.75);
        assert_eq!(share_done((500, 400), (90, 1000)), 1.0, "the file grows");
        assert_eq!(share_done((0, 0), (0, u64::MAX)), 1.0, "there is nothing in it");
    }
}
