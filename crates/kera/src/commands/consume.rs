//! `kera consume`: records of a stream onto standard output.
//!
//! What was printed is committed, never what was not: output is flushed before every commit. So after a kill records may
//! be printed twice, and none is left out.

use std::future::ready;
use std::io::{self, BufWriter, Stdout, Write};
use std::time::{Duration, Instant};

use kera_client::{ClientError, CommitMode, ConsumedRecord, Consumer, Start};
use serde_json::{Value, json};

use crate::cli::{ConsumeArgs, Globals, Show};
use crate::connect::{connect, explain, find_stream};
use crate::error::CliError;
use crate::output::write_error;
use crate::when::{parse_start, show_instant};

/// Time between commits while records come.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// Records between two looks at the clock while records come without a pause.
const LOOK_EVERY: u64 = 256;

/// Runs the command.
///
/// # Errors
/// What the node says, or that it cannot be reached. A closed pipe is none.
pub async fn run(args: &ConsumeArgs, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = find_stream(&client, &args.stream).await?;
    let from = match &args.from {
        Some(text) => parse_start(text).map_err(CliError::usage)?,
        None if args.follow && args.application.is_none() => Start::Latest,
        None => Start::Earliest,
    };
    let mut builder = client.consumer(&stream.name).from(from).until_end(!args.follow).commit(CommitMode::Manual);
    if !args.streamlets.is_empty() {
        builder = builder.streamlets(args.streamlets.iter().copied());
    }
    if let Some(application) = &args.application {
        builder = builder.application(application).member_name(member_name());
    }
    let format = if globals.json { Show::Json } else { args.format };
    let mut consuming = Consuming {
        consumer: builder.build().await?,
        out: BufWriter::with_capacity(1 << 16, io::stdout()),
        format,
        commits: args.application.is_some(),
        uncommitted: 0,
        committed: Instant::now(),
    };
    let outcome = consuming.all(args.max.unwrap_or(u64::MAX)).await;
    consuming.finish(outcome).await
}

/// How the consumer is called in listings: host and process.
fn member_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

struct Consuming {
    consumer: Consumer,
    out: BufWriter<Stdout>,
    format: Show,
    commits: bool,
    /// Records printed since the last commit.
    uncommitted: u64,
    committed: Instant,
}

impl Consuming {
    async fn all(&mut self, max: u64) -> Result<(), CliError> {
        let stop = stop_signal();
        tokio::pin!(stop);
        let mut printed = 0;
        while printed < max {
            // What is there is printed without looking at anything else; only a pause flushes.
            let at_hand = tokio::select! {
                biased;
                next = self.consumer.next() => Some(next),
                () = ready(()) => None,
            };
            let next = match at_hand {
                Some(next) => next,
                None => {
                    self.out.flush().map_err(|error| write_error(&error))?;
                    let pause = if self.uncommitted > 0 {
                        COMMIT_EVERY.saturating_sub(self.committed.elapsed())
                    } else {
                        Duration::MAX
                    };
                    tokio::select! {
                        next = self.consumer.next() => next,
                        () = sleep(pause) => {
                            tokio::select! {
                                done = self.commit_meanwhile() => done?,
                                () = &mut stop => return Ok(()),
                            }
                            continue;
                        }
                        () = &mut stop => return Ok(()),
                    }
                }
            };
            let Some(record) = next? else { return Ok(()) };
            self.print(&record).map_err(|error| write_error(&error))?;
            printed += 1;
            self.uncommitted += 1;
            if printed % LOOK_EVERY == 0 {
                let is_due = self.committed.elapsed() >= COMMIT_EVERY;
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(()),
                    done = self.commit_meanwhile(), if is_due => done?,
                    () = tokio::task::yield_now(), if !is_due => {}
                }
            }
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), CliError> {
        self.out.flush().map_err(|error| write_error(&error))?;
        if self.commits && self.uncommitted > 0 {
            self.consumer.commit().await?;
        }
        self.uncommitted = 0;
        self.committed = Instant::now();
        Ok(())
    }

    /// Commits while there is more to come: a server that is away is no reason to stop, what was printed is committed when it is back.
    async fn commit_meanwhile(&mut self) -> Result<(), CliError> {
        self.out.flush().map_err(|error| write_error(&error))?;
        let done = match self.commits && self.uncommitted > 0 {
            true => self.consumer.commit().await,
            false => Ok(()),
        };
        self.committed = Instant::now();
        match done {
            Err(error) if error.retryable() => return Ok(()),
            done => done?,
        }
        self.uncommitted = 0;
        Ok(())
    }

    /// Commits what was printed, gives the groups back, and passes on how it went. Whoever does not want to wait for a server that is away
    /// stops it once more.
    async fn finish(mut self, outcome: Result<(), CliError>) -> Result<(), CliError> {
        // Printed records that did not get through a closed pipe are not committed.
        let is_printed = outcome.as_ref().err() != Some(&CliError::pipe_closed());
        let finished = async {
            let committed = if is_printed { self.commit().await } else { Ok(()) };
            let closed = self.consumer.close().await;
            committed.and(closed.map_err(|error: ClientError| explain(&error)))
        };
        let finished = tokio::select! {
            finished = finished => finished,
            () = stop_signal() => {
                let error = CliError::failure("stopped before what was printed last was committed");
                Err(error.next("the application's next consumer prints it again"))
            }
        };
        outcome.and(finished)
    }

    fn print(&mut self, record: &ConsumedRecord) -> io::Result<()> {
        let view = record.view();
        match self.format {
            Show::Raw => self.out.write_all(view.value().unwrap_or_default()),
            Show::Value => {
                self.out.write_all(view.value().unwrap_or_default())?;
                self.out.write_all(b"\n")
            }
            Show::Json => {
                serde_json::to_writer(&mut self.out, &record_json(record))?;
                self.out.write_all(b"\n")
            }
        }
    }
}

/// A record as JSON. A value that is a JSON object or array is put in as such, other text as text, other bytes in
/// hexadecimal under another name.
fn record_json(record: &ConsumedRecord) -> Value {
    let view = record.view();
    let mut json = json!({
        "streamlet": record.streamlet.0,
        "lane": record.lane.0,
        "ordinal": record.ordinal,
        "appended": show_instant(record.append_time_ms),
    });
    let keys: Vec<Value> = view.keys().map(|key| bytes_json(key).1).collect();
    match keys.len() {
        0 => {}
        1 => json["key"] = keys.into_iter().next().unwrap_or_default(),
        _ => json["keys"] = Value::Array(keys),
    }
    if record.headers().len() > 0 {
        let header = |(name, value): (&[u8], Option<&[u8]>)| {
            json!([String::from_utf8_lossy(name), value.map(|value| bytes_json(value).1)])
        };
        json["headers"] = record.headers().map(header).collect();
    }
    if let Some(version) = view.version() {
        json["version"] = version.into();
    }
    if let Some(ms) = view.timestamp_ms() {
        json["timestamp"] = show_instant(ms).into();
    }
    match view.value() {
        None => json["value"] = Value::Null,
        Some(bytes) => {
            let structured =
                matches!(bytes.first(), Some(b'{' | b'[')).then(|| serde_json::from_slice(bytes).ok()).flatten();
            let (name, value) = structured.map_or_else(|| bytes_json(bytes), |value| ("value", value));
            json[name] = value;
        }
    }
    json
}

fn bytes_json(bytes: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => ("value", text.into()),
        Err(_) => ("value_hex", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into()),
    }
}

async fn sleep(pause: Duration) {
    if pause == Duration::MAX { std::future::pending().await } else { tokio::time::sleep(pause).await }
}

/// Completes on Ctrl-C or SIGTERM.
pub async fn stop_signal() {
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}
