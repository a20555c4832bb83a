//! `kera produce`: records from a file or standard input into a stream.
//!
//! One thread reads and cuts the input into batches of rows; the main thread runs the producer and sends them. The
//! batches are small while the sender keeps up (so that `tail -f` is not delayed) and large while it does not.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kera_client::{Producer, Record};
use kera_server::units::{human_bytes, human_count};
use serde_json::json;
use tokio::sync::mpsc;

use crate::cli::{Globals, OnError, ProduceArgs};
use crate::connect::{connect, explain, find_stream};
use crate::error::CliError;
use crate::output::{print, print_json};
use crate::rows::{self, Input, Picks, Row, RowError};

/// Bytes of values after which a batch is full.
const BATCH_BYTES: usize = 256 << 10;
/// Batches that are read ahead.
const BATCHES_AHEAD: usize = 4;
/// Malformed records that are reported one by one when they are skipped.
const REPORTED_MAX: u64 = 20;

/// Rows on their way from the reader to the producer, in one buffer.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    rows: Vec<RowSpan>,
}

struct RowSpan {
    line: u64,
    key: Option<(usize, usize)>,
    value: (usize, usize),
    timestamp_ms: Option<i64>,
}

impl Rows {
    fn push(&mut self, row: &Row) {
        let mut span = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            (start, self.bytes.len())
        };
        let key = row.key.as_deref().map(&mut span);
        let value = span(&row.value);
        self.rows.push(RowSpan { line: row.line, key, value, timestamp_ms: row.timestamp_ms });
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
    let picks = Picks { key: args.key_field.clone(), timestamp: args.timestamp_field.clone() };
    // The node is asked before the input is touched: a pipe cannot be read twice.
    let client = connect(globals).await?;
    let stream = find_stream(&client, &args.stream).await?;
    let Input { name, bytes, read, rows } = open_input(args, picks).await?;
    let producer = client
        .producer(&stream.name)
        .chunk_bytes(args.chunk_bytes)
        .linger(Duration::from_millis(args.linger_ms))
        .compression(args.compression)
        .build()
        .await?;
    let mut sending = Sending {
        producer,
        source: name,
        on_error: args.on_error,
        max: args.max.unwrap_or(u64::MAX),
        pace: args.rate.map(Pace::new),
        progress: Progress::start(bytes, read, args.quiet || globals.json),
        sent: 0,
        sent_bytes: 0,
        skipped: 0,
        stopped: None,
    };
    let started = Instant::now();
    let outcome = sending.all(rows).await;
    sending.finish(outcome, started, globals).await
}

/// Opens the input away from the runtime: a pipe may take its time.
async fn open_input(args: &ProduceArgs, picks: Picks) -> Result<Input, CliError> {
    let (file, format) = (args.file.clone(), args.format);
    // The source is made on the thread that reads it, so only its parts travel.
    let opened = tokio::task::spawn_blocking(move || rows::open(&file, format, picks));
    opened.await.map_err(|error| CliError::failure(error.to_string()))?
}

struct Sending {
    producer: Producer,
    source: String,
    on_error: OnError,
    max: u64,
    pace: Option<Pace>,
    progress: Progress,
    sent: u64,
    sent_bytes: u64,
    skipped: u64,
    /// Why sending ended before the input did, if it did.
    stopped: Option<String>,
}

impl Sending {
    async fn all(&mut self, source: Box<dyn rows::RowSource>) -> Result<(), CliError> {
        let (sender, mut receiver) = mpsc::channel(BATCHES_AHEAD);
        // Detached: it may be waiting for standard input when sending is over.
        thread::Builder::new()
            .name("kera-input".into())
            .spawn(move || read_rows(source, &sender))
            .map_err(|error| CliError::failure(format!("no thread to read the input: {error}")))?;
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        loop {
            let next = tokio::select! {
                next = receiver.recv() => next,
                _ = &mut interrupted => {
                    self.stopped = Some("interrupted".into());
                    return Ok(());
                }
            };
            match next {
                None => return Ok(()),
                Some(Read::Rows(rows)) => {
                    tokio::select! {
                        sent = self.send(&rows) => sent?,
                        _ = &mut interrupted => self.stopped = Some("interrupted".into()),
                    }
                }
                Some(Read::Malformed(error)) => self.malformed(&error)?,
            }
            if self.stopped.is_some() || self.sent >= self.max {
                return Ok(());
            }
            self.progress.show(self.sent);
        }
    }

    async fn send(&mut self, rows: &Rows) -> Result<(), CliError> {
        for row in &rows.rows {
            if self.sent >= self.max {
                return Ok(());
            }
            if let Some(pace) = &mut self.pace {
                pace.wait().await;
                self.progress.show(self.sent);
            }
            let value = &rows.bytes[row.value.0..row.value.1];
            let key = row.key.map(|(start, end)| [&rows.bytes[start..end]]);
            let keys: &[&[u8]] = key.as_ref().map_or(&[], |key| key);
            let record = Record { keys, value: Some(value), timestamp_ms: row.timestamp_ms, ..Record::default() };
            if let Err(error) = self.producer.send(&record).await {
                let mut explained = explain(&error);
                explained.message = format!("{}, line {}: {}", self.source, row.line, explained.message);
                return Err(explained);
            }
            self.sent += 1;
            self.sent_bytes += value.len() as u64;
        }
        Ok(())
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

    /// Waits for every acknowledgement, and tells how it went.
    async fn finish(
        mut self,
        outcome: Result<(), CliError>,
        started: Instant,
        globals: &Globals,
    ) -> Result<(), CliError> {
        let flushed = self.producer.flush().await;
        let stats = self.producer.stats();
        self.progress.end();
        if let Err(mut error) = outcome {
            if flushed.is_ok() && self.sent > 0 {
                let before = format!("the {} records before it were written; ", human_count(self.sent));
                error.next_step = before + &error.next_step;
            }
            return Err(error);
        }
        if let Err(error) = flushed {
            let mut explained = explain(&error);
            explained.message = format!(
                "{} of {} records were acknowledged: {}",
                stats.acknowledged_records, self.sent, explained.message
            );
            return Err(explained);
        }
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        let closed = self.producer.close().await;
        closed.map_err(|error| explain(&error))?;
        let rate = (self.sent as f64 / seconds) as u64;
        if globals.json {
            print_json(&json!({
                "records": self.sent, "value_bytes": self.sent_bytes, "skipped": self.skipped,
                "seconds": seconds, "records_per_second": rate,
                "interrupted": self.stopped.is_some(), "retried_chunks": stats.retried_chunks,
            }))?;
        } else {
            let skipped =
                if self.skipped > 0 { format!(", {} skipped", human_count(self.skipped)) } else { String::new() };
            let how = self.stopped.as_deref().map_or(String::new(), |why| format!(" ({why})"));
            print(&format!(
                "{} records ({}) written and acknowledged in {seconds:.2} s, {} records/s{skipped}{how}\n",
                human_count(self.sent),
                human_bytes(self.sent_bytes),
                human_count(rate),
            ))?;
        }
        Ok(())
    }
}

/// Reads all rows into batches. Ends early when nobody wants them any more, or after an error that is fatal.
fn read_rows(mut source: Box<dyn rows::RowSource>, sender: &mpsc::Sender<Read>) {
    let (mut row, mut batch) = (Row::default(), Rows::default());
    loop {
        let read = source.next(&mut row);
        if matches!(read, Ok(true)) {
            batch.push(&row);
        }
        // A sender that waits gets what there is; a busy one gets full batches.
        let idle = sender.capacity() == BATCHES_AHEAD;
        let full = batch.bytes.len() >= BATCH_BYTES || batch.rows.len() >= 4096;
        let ended = !matches!(read, Ok(true));
        if (idle || full || ended)
            && !batch.rows.is_empty()
            && sender.blocking_send(Read::Rows(std::mem::take(&mut batch))).is_err()
        {
            return;
        }
        match read {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let fatal = error.fatal;
                if sender.blocking_send(Read::Malformed(error)).is_err() || fatal {
                    return;
                }
            }
        }
    }
}

/// Keeps a rate: the n-th record leaves n / rate seconds after the first.
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
        let due = self.started + Duration::from_secs_f64(self.released as f64 / self.per_second as f64);
        self.released += 1;
        // Timers are no finer than a millisecond: records that are due by then go together.
        if due > Instant::now() + Duration::from_millis(1) {
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

/// A bar on standard error while that is a terminal.
struct Progress {
    bar: ProgressBar,
    read: Arc<AtomicU64>,
    shown: Instant,
}

impl Progress {
    fn start(bytes: Option<u64>, read: Arc<AtomicU64>, quiet: bool) -> Progress {
        let bar = bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        if quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = match bytes {
            Some(_) => "{bar:32} {percent:>3}%  {msg}  ETA {eta}",
            None => "{spinner} {msg}  {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, read, shown: Instant::now() }
    }

    fn show(&mut self, sent: u64) {
        if self.bar.is_hidden() || self.shown.elapsed() < Duration::from_millis(50) {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.bar.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_position(self.read.load(Ordering::Relaxed));
        self.bar.set_message(format!(
            "{} records  {} records/s",
            human_count(sent),
            human_count((sent as f64 / seconds) as u64)
        ));
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
