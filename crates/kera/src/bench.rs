//! `kera bench`: flags in, a table or JSON out. What is measured and how is in `kera_bench`.
//!
//! Runs on the main thread, outside any async runtime: the load generator starts its own.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_bench::experiment::Stop;
use kera_bench::keys::KeyDistribution;
use kera_bench::limit::{self, LimitConfig};
use kera_bench::load::{self, LoadConfig, Mode, Progress, Target};
use kera_bench::server::{Server, ServerConfig, listener_pid};
use kera_client::Compression;
use kera_format::Durability;
use kera_server::units::parse_bytes;

use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::output;

/// What to measure.
#[derive(Subcommand)]
pub enum Command {
    /// Producers: records and bytes per second, and how soon they are acknowledged.
    #[command(after_long_help = "\
Examples:
  kera bench produce --embedded
      a node of its own, ten seconds
  kera bench produce --chunk-bytes 64KiB --seconds 30
      against the node at 127.0.0.1:7070
  kera bench produce --rate 10000 --linger-ms 0 --streamlets 1
      latency at a fixed rate, open loop
  kera bench produce --streams 512 --streamlets 1 --durability power --json")]
    Produce(LoadArgs),
    /// Consumers that catch up.
    ///
    /// They read the stream that --stream names, or one that is filled first.
    #[command(after_long_help = "\
Examples:
  kera bench consume --embedded --records 20000000
  kera bench consume --stream flights --streamlets 4 --json")]
    Consume(LoadArgs),
    /// Both at once: also the time from send to receipt.
    #[command(after_long_help = "\
Examples:
  kera bench both --embedded --chunk-bytes 16KiB
  kera bench both --rate 10000 --linger-ms 0 --streamlets 1 --seconds 20")]
    Both(LoadArgs),
    /// What this machine can do without KerA.
    ///
    /// That is loopback, a bare server, memory, the disk, and the load generator alone.
    #[command(after_long_help = "\
Examples:
  kera bench limit     about half a minute
  kera bench limit --disk ./kera-data --seconds 5 --json")]
    Limit(LimitArgs),
}

/// `kera bench limit`.
#[derive(Args)]
pub struct LimitArgs {
    /// Frame sizes of the bare server.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = bytes, default_value = "1KiB,4KiB,16KiB,64KiB,256KiB")]
    frame_bytes: Vec<usize>,
    /// How long each point is measured.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Times that each frame size is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Also measure the disk of this directory.
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Bytes of the file that is written and read there.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "1GiB")]
    disk_bytes: u64,
}

/// Flags of a load.
#[derive(Args)]
pub struct LoadArgs {
    /// The stream; made if it is missing, and then deleted afterwards. [default: one of its own]
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Streams; with more than one their names get a number.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// Streamlets of each stream.
    #[arg(long, value_name = "M", default_value_t = 16)]
    streamlets: u32,
    /// Lanes of each streamlet.
    #[arg(hide_short_help = true, long, value_name = "Q", default_value_t = 1)]
    lanes: u32,
    /// Segments of a group.
    #[arg(hide_short_help = true, long, value_name = "P", default_value_t = 16)]
    segments_per_group: u32,
    /// The largest segment, a power of two from 64KiB to 16MiB.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, default_value = "8MiB")]
    segment_bytes: usize,
    /// What acknowledged records survive.
    #[arg(long, value_name = "process|power", default_value = "process", value_parser = parse::<Durability>)]
    durability: Durability,
    /// Copies of what streams hold.
    ///
    /// More than one need a cluster of at least as many nodes.
    #[arg(hide_short_help = true, long, value_name = "R", default_value_t = 1)]
    replication: u32,
    /// What a streamlet keeps. [default: everything]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = parse_bytes)]
    retention_bytes: Option<u64>,
    /// Bytes of a record's value.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "100")]
    record_bytes: usize,
    /// Bytes of a chunk, the batch that is appended as one.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "16KiB")]
    chunk_bytes: usize,
    /// Bytes of a request, which carries chunks of many streamlets.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, default_value = "1MiB")]
    request_bytes: usize,
    /// How long a chunk that is not full waits, in milliseconds.
    ///
    /// It waits for more records.
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = seconds)]
    linger_ms: f64,
    /// Unanswered requests of a producer.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 5)]
    in_flight: usize,
    /// Bytes that a producer holds unacknowledged, in all its streams together.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, default_value = "32MiB")]
    buffer_bytes: usize,
    /// How chunks are compressed.
    #[arg(hide_short_help = true, long, value_name = "none|lz4|zstd", default_value = "none", value_parser = compression)]
    compression: Compression,
    /// Give each record a checksum of its own, beside its chunk's.
    #[arg(hide_short_help = true, long)]
    checksum: bool,
    /// Consumers do not verify the checksums of chunks.
    #[arg(hide_short_help = true, long)]
    no_verify: bool,
    /// Retries are not recognised: chunks carry no producer id.
    #[arg(hide_short_help = true, long)]
    no_idempotence: bool,
    /// How keys are spread.
    #[arg(hide_short_help = true, long, value_name = "none|uniform|zipf", default_value = "none", value_parser = parse::<KeyDistribution>)]
    key_distribution: KeyDistribution,
    /// How many keys there are.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1_000_000)]
    keys: u64,
    /// Producers, each on a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    producers: u32,
    /// Consumers, each on a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    consumers: u32,
    /// Consumers share the stream as this application. [default: streamlets are dealt out]
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    application: Option<String>,
    /// Consumers ask with requests that wait, instead of having data pushed.
    #[arg(hide_short_help = true, long)]
    long_poll: bool,
    /// Bytes that the server may send to a consumer ahead of being asked.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, default_value = "8MiB")]
    credit_bytes: usize,
    /// Records to send, or to consume. [default: as many as go into --seconds]
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// How long to send. [default: 10, or until --records are sent]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// Records per second of all producers together.
    ///
    /// They are sent whatever the server does. Without it they are sent as fast as it goes.
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Seconds before the clock starts, where --records is not given. [default: 1]
    #[arg(hide_short_help = true, long, value_name = "S", value_parser = seconds)]
    warmup_seconds: Option<f64>,
    /// Records before the clock starts, on top of --records.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    warmup_records: u64,
    /// One record in this many carries a time; at a --rate as many as are useful do.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 128)]
    sample: u32,
    /// Leave the streams there.
    #[arg(hide_short_help = true, long)]
    keep: bool,
    /// Start a node for this run.
    ///
    /// It has a directory of its own that is deleted afterwards.
    #[arg(long)]
    embedded: bool,
    /// The arena of an embedded node.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = parse_bytes, requires = "embedded")]
    arena_bytes: Option<u64>,
    /// Where the directory of an embedded node is made. [default: the system's directory for temporary files]
    #[arg(hide_short_help = true, long, value_name = "DIR", requires = "embedded")]
    dir: Option<PathBuf>,
    /// A flag of `kera serve` for the embedded node, like --serve=--io-threads=2; repeatable.
    #[arg(hide_short_help = true, long, value_name = "FLAG", requires = "embedded", allow_hyphen_values = true)]
    serve: Vec<String>,
    /// The server's process, whose CPU time and memory are reported. [default: found, if it is on this host]
    #[arg(hide_short_help = true, long, value_name = "PID", conflicts_with = "embedded")]
    server_pid: Option<u32>,
}

fn parse<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

fn bytes(text: &str) -> Result<usize, String> {
    usize::try_from(parse_bytes(text)?).map_err(|_| format!("{text} is too large"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1e9).contains(&number) { Ok(number) } else { Err(format!("{text} is not between 0 and 1000000000")) }
}

fn compression(text: &str) -> Result<Compression, String> {
    let all = [Compression::None, Compression::Lz4, Compression::Zstd];
    all.into_iter().find(|c| c.name() == text).ok_or_else(|| format!("`{text}` is none of: none, lz4, zstd"))
}

impl LoadArgs {
    fn config(&self) -> LoadConfig {
        let time = match (self.seconds, self.records) {
            (Some(seconds), _) => Some(Duration::from_secs_f64(seconds)),
            (None, Some(_)) => None,
            (None, None) => LoadConfig::default().time,
        };
        LoadConfig {
            stream: self.stream.clone(),
            streams: self.streams,
            streamlets: self.streamlets,
            lanes: self.lanes,
            segments_per_group: self.segments_per_group,
            segment_bytes: u32::try_from(self.segment_bytes).unwrap_or(u32::MAX),
            durability: self.durability,
            replication: self.replication,
            retention_bytes: self.retention_bytes,
            record_bytes: self.record_bytes,
            key_distribution: self.key_distribution,
            keys: self.keys,
            record_checksum: self.checksum,
            verify_checksums: !self.no_verify,
            chunk_bytes: self.chunk_bytes,
            request_bytes: self.request_bytes,
            linger: Duration::from_secs_f64(self.linger_ms / 1e3),
            in_flight: self.in_flight,
            buffer_bytes: self.buffer_bytes,
            compression: self.compression,
            idempotent: !self.no_idempotence,
            producers: self.producers,
            consumers: self.consumers,
            application: self.application.clone(),
            credit_bytes: self.credit_bytes,
            long_poll: self.long_poll,
            records: self.records,
            time,
            warmup_records: self.warmup_records,
            warmup: self.warmup_seconds.map_or(LoadConfig::default().warmup, Duration::from_secs_f64),
            rate: self.rate,
            sample: self.sample,
            keep: self.keep,
        }
    }
}

/// Runs a command.
pub fn run(command: Command, connect: &str, json: bool) -> ExitCode {
    let done = match command {
        Command::Limit(args) => run_limit(&args, json),
        Command::Produce(args) => run_load(Mode::Produce, &args, connect, json),
        Command::Consume(args) => run_load(Mode::Consume, &args, connect, json),
        Command::Both(args) => run_load(Mode::Both, &args, connect, json),
    };
    finish(done, json)
}

/// The end of a command: its error, if it has one, and its exit status.
pub fn finish(done: Result<(), CliError>, json: bool) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.message.is_empty() {
                if json { output::say(error.to_json()) } else { output::say(&error) }
            }
            ExitCode::from(error.exit)
        }
    }
}

/// An error of the measuring side as one of the command line.
pub fn failed(error: kera_bench::BenchError) -> CliError {
    match error {
        kera_bench::BenchError::Setting { .. } => CliError::usage(error.to_string()),
        kera_bench::BenchError::Server { what, message } => {
            let (message, next_step) = crate::connect::told(&message);
            let is_away = message.starts_with("cannot connect");
            let failure = CliError::failure(format!("{what}: {message}"));
            match next_step {
                Some(next_step) => failure.next(next_step),
                None if is_away => failure.next(
                    "is a node running there? `kera status` tells, `kera serve` starts one, --embedded uses one of its own",
                ),
                None => failure,
            }
        }
        other => CliError::failure(other.to_string()),
    }
}

fn run_limit(args: &LimitArgs, json: bool) -> Result<(), CliError> {
    let config = LimitConfig {
        frame_bytes: args.frame_bytes.clone(),
        time: Duration::from_secs_f64(args.seconds),
        rounds: args.rounds,
        disk_dir: args.disk.clone(),
        disk_bytes: args.disk_bytes,
    };
    let mut line = ProgressLine::new();
    let report = limit::run(&config, |what| line.show(what)).map_err(failed)?;
    line.clear();
    if json { output::print_json(&report) } else { output::print(&report.table()) }
}

fn run_load(mode: Mode, args: &LoadArgs, connect: &str, json: bool) -> Result<(), CliError> {
    let config = args.config();
    config.check(mode).map_err(failed)?;
    let stop = Stop::new();
    stop.on_signals().map_err(failed)?;
    let embedded = if args.embedded { Some(Embedded::start(args)?) } else { None };
    let target = match &embedded {
        Some(node) => Target { address: node.server.address(), server_pid: node.server.pid() },
        None => Target { address: connect.to_owned(), server_pid: args.server_pid.or_else(|| local_pid(connect)) },
    };
    let mut line = ProgressLine::new();
    let report = load::run(mode, &config, &target, &stop, |progress: &Progress| line.show(&progress.line()));
    line.clear();
    let report = report.map_err(|error| match error {
        kera_bench::BenchError::Interrupted => interrupted(&config),
        error => failed(error),
    })?;
    let told = if json { output::print_json(&report) } else { output::print(&report.table(mode == Mode::Consume)) };
    let errors = report.main.errors + report.consume.map_or(0, |side| side.errors);
    match errors {
        0 => told,
        n => Err(CliError::failure(format!("{n} errors; the first: {}", report.first_error.unwrap_or_default()))),
    }
}

/// What a load that was stopped leaves behind.
fn interrupted(config: &LoadConfig) -> CliError {
    // It may have made none by then.
    let streams = match config.keep {
        true => "any stream that was made for it is kept, as --keep says",
        false => "no stream that was made for it is left",
    };
    let message = format!("interrupted: nothing was measured to its end; {streams}");
    CliError { exit: EXIT_INTERRUPTED, ..CliError::failure(message) }
}

/// The process behind an address of this host.
fn local_pid(address: &str) -> Option<u32> {
    let (host, port) = address.rsplit_once(':')?;
    if matches!(host, "127.0.0.1" | "localhost") { listener_pid(port.parse().ok()?) } else { None }
}

/// A node for one run. Dropped, it is gone with everything it had.
struct Embedded {
    server: Server,
    dir: PathBuf,
}

impl Embedded {
    fn start(args: &LoadArgs) -> Result<Embedded, CliError> {
        let program = std::env::current_exe().map_err(|e| CliError::failure(format!("finding this program: {e}")))?;
        let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = parent.join(format!("kera-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| CliError::failure(format!("creating {}: {e}", dir.display())))?;
        let config = ServerConfig {
            arena_bytes: args.arena_bytes,
            flags: args.serve.clone(),
            ..ServerConfig::in_dir(&program, &dir)
        };
        match Server::start(config) {
            Ok((server, _)) => Ok(Embedded { server, dir }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                Err(CliError::failure(error.to_string()))
            }
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Stopped, not killed: a graceful stop removes the arena.
        if self.server.stop(Duration::from_secs(60)).is_err() {
            let _ = self.server.kill();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// One line on standard error that is written over, if that is a terminal.
pub struct ProgressLine {
    on: bool,
    width: usize,
}

impl ProgressLine {
    /// Nothing is shown yet.
    pub fn new() -> ProgressLine {
        ProgressLine { on: std::io::stderr().is_terminal(), width: 0 }
    }

    /// Shows a text instead of the last one.
    pub fn show(&mut self, text: &str) {
        if self.on {
            let _ = write!(std::io::stderr(), "\r{text:<width$}", width = self.width);
            self.width = text.chars().count();
        }
    }

    /// Shows nothing again.
    pub fn clear(&mut self) {
        self.show("");
        if self.on {
            let _ = write!(std::io::stderr(), "\r");
        }
        self.width = 0;
    }
}
