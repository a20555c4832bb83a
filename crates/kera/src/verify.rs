//! `kera verify`: flags in, a verdict and an exit status out. The proof itself is in `kera_bench`.
//!
//! Runs on the main thread, outside any async runtime: the verifier starts its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_bench::BenchError;
use kera_bench::chaos::{self, ChaosConfig, Fault};
use kera_bench::verify::{self, ConsumeConfig, ProduceConfig, ProduceProgress, Verdict};
use kera_format::{Durability, Order, StreamOptions};
use kera_server::units::parse_bytes;

use crate::bench::{ProgressLine, failed, finish};
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::output;

/// Which part of the proof.
#[derive(Subcommand)]
pub enum Command {
    /// Write self-describing records, and log what was acknowledged.
    #[command(after_long_help = "\
Examples:
  kera verify produce --log acks --seconds 60
      kill and start the node meanwhile, as often as you like
  kera verify consume --log acks

The log is appended to: several runs can be proved together. The node may go away while this runs; it is waited for.")]
    Produce(ProduceArgs),
    /// Read everything and prove that what was acknowledged is there, once, in order. Exit status 1 if not.
    #[command(after_long_help = "\
Examples:
  kera verify consume --log acks     everything, from the first record on
  kera verify consume --log acks --application audit --consumers 4")]
    Consume(ConsumeArgs),
    /// Start a node, torment it under load, and prove that it kept every promise. Exit status 1 if not.
    #[command(after_long_help = "\
Examples:
  kera verify chaos --rounds 50
      50 times kill -9 at random moments
  kera verify chaos --rounds 50 --durability power --faults kill,power
  kera verify chaos --rounds 1 --faults freeze --hold-seconds 60
  kera verify chaos --rounds 20 --segment-bytes 8MiB --chunk-bytes 256KiB
      large segments; with --durability power they are written straight to
      their containers
  kera verify chaos --rounds 5 --faults full-disk
      as root: it mounts a small file system")]
    Chaos(ChaosArgs),
}

/// `kera verify produce`.
#[derive(Args)]
pub struct ProduceArgs {
    /// The stream; made if it is missing.
    #[arg(long, value_name = "NAME", default_value = "verify")]
    stream: String,
    /// Where to log what was acknowledged.
    #[arg(long, value_name = "FILE", default_value = "kera-verify.acks")]
    log: PathBuf,
    /// Producers, each on a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 2)]
    producers: u32,
    /// Streamlets, if the stream is made.
    #[arg(long, value_name = "M", default_value_t = 4)]
    streamlets: u32,
    /// Lanes of each streamlet, if the stream is made.
    #[arg(hide_short_help = true, long, value_name = "Q", default_value_t = 1)]
    lanes: u32,
    /// Segments of a group, if the stream is made.
    #[arg(hide_short_help = true, long, value_name = "P", default_value_t = 16)]
    segments_per_group: u32,
    /// What acknowledged records survive, if the stream is made.
    #[arg(long, value_name = "process|power", default_value = "process", value_parser = parse::<Durability>)]
    durability: Durability,
    /// Whether applications get a lane's groups one after the other, if the stream is made.
    #[arg(hide_short_help = true, long, value_name = "lane|none", default_value = "lane", value_parser = parse::<Order>)]
    order: Order,
    /// Bytes of a record's value, 32 or more.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    record_bytes: usize,
    /// Bytes of a chunk.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, default_value = "4KiB")]
    chunk_bytes: usize,
    /// How long a chunk that is not full waits for more records, in milliseconds.
    #[arg(hide_short_help = true, long, value_name = "MS", default_value_t = 0)]
    linger_ms: u64,
    /// Unanswered requests of a producer.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 5)]
    in_flight: usize,
    /// Records to send. [default: as many as go into --seconds]
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// How long to send. [default: 10, or until --records are sent]
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Records per second of all producers together, at most.
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// How long the node may be away before records are given up.
    #[arg(long, value_name = "S", default_value_t = 600)]
    patience_seconds: u64,
    /// Decides how many records go to a streamlet in turn.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// `kera verify consume`.
#[derive(Args)]
pub struct ConsumeArgs {
    /// The stream.
    #[arg(long, value_name = "NAME", default_value = "verify")]
    stream: String,
    /// The log of `kera verify produce`.
    #[arg(long, value_name = "FILE", default_value = "kera-verify.acks")]
    log: PathBuf,
    /// Read as this application. [default: read everything from the first record on]
    #[arg(long, value_name = "NAME")]
    application: Option<String>,
    /// Members of the application.
    #[arg(long, value_name = "N", default_value_t = 1)]
    consumers: u32,
    /// How long an application may get nothing before what is missing is taken for lost.
    #[arg(long, value_name = "S", default_value_t = 60)]
    patience_seconds: u64,
    /// Members of the application go away without a word about this often.
    #[arg(long, value_name = "S", requires = "application")]
    crash_every_seconds: Option<u64>,
}

/// `kera verify chaos`.
#[derive(Args)]
pub struct ChaosArgs {
    /// The program whose `serve` is tormented. [default: this one]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Where everything is kept meanwhile. [default: the system's directory for temporary files]
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How many faults.
    #[arg(long, value_name = "N", default_value_t = 50)]
    rounds: u32,
    /// Which kinds: kill, power (kill and lose the memory), freeze, full-disk, stop.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', default_value = "kill", value_parser = parse::<Fault>)]
    faults: Vec<Fault>,
    /// Decides moments and kinds.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What acknowledged records survive.
    #[arg(long, value_name = "process|power", default_value = "process", value_parser = parse::<Durability>)]
    durability: Durability,
    /// Whether the application gets a lane's groups one after the other.
    #[arg(hide_short_help = true, long, value_name = "lane|none", default_value = "lane", value_parser = parse::<Order>)]
    order: Order,
    /// Streamlets.
    #[arg(long, value_name = "M", default_value_t = 4)]
    streamlets: u32,
    /// Lanes of each.
    #[arg(hide_short_help = true, long, value_name = "Q", default_value_t = 2)]
    lanes: u32,
    /// Producers.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 4)]
    producers: u32,
    /// Members of the application; with more than one, now and then one goes away without a word.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 2)]
    consumers: u32,
    /// Records per second of all producers together; 0 is as fast as it goes. [default: 20000; 100000 with full-disk]
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Bytes of a record's value, 32 or more.
    #[arg(hide_short_help = true, long, value_name = "BYTES", default_value_t = 100)]
    record_bytes: usize,
    /// Bytes of a chunk. [default: 2KiB; 16KiB with full-disk]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes)]
    chunk_bytes: Option<usize>,
    /// Bytes of the largest segments, a power of two. With 4MiB or more and --durability power those of busy lanes are
    /// written straight to their containers. [default: 128KiB, or what holds four chunks]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = segment_bytes)]
    segment_bytes: Option<u32>,
    /// The node's arena. [default: 256MiB; 32MiB with full-disk]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = parse_bytes)]
    arena_bytes: Option<u64>,
    /// Least and most time between two faults, in milliseconds.
    #[arg(hide_short_help = true, long, value_name = "MS,MS", value_delimiter = ',', num_args = 1..=2, default_value = "200,2000")]
    between_ms: Vec<u64>,
    /// How long a frozen node stays frozen, or a disk full after acknowledgements have stopped.
    #[arg(long, value_name = "S", default_value_t = 5)]
    hold_seconds: u64,
    /// How long it may take after a fault until records are acknowledged again, or with a full disk until they are not
    /// any more.
    #[arg(hide_short_help = true, long, value_name = "S", default_value_t = 60)]
    recovery_seconds: u64,
    /// The file system in memory that is made for full-disk. [default: as much as all rounds need, about 120 MiB each]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = parse_bytes)]
    disk_bytes: Option<u64>,
    /// Keep log and data although all went well.
    #[arg(long)]
    keep: bool,
    /// Say nothing while it runs.
    #[arg(long, short)]
    quiet: bool,
}

fn parse<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

fn bytes(text: &str) -> Result<usize, String> {
    usize::try_from(parse_bytes(text)?).map_err(|_| format!("{text} is too large"))
}

fn segment_bytes(text: &str) -> Result<u32, String> {
    u32::try_from(parse_bytes(text)?).map_err(|_| format!("{text} is more than 16MiB"))
}

/// Records per second.
fn rate(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number; give records per second"))?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err(format!("{text} is not a rate; give 0, as fast as it goes, or more"))
    }
}

/// Runs a command.
pub fn run(command: Command, connect: &str, json: bool) -> ExitCode {
    let done = match command {
        Command::Produce(args) => run_produce(&args, connect, json),
        Command::Consume(args) => run_consume(&args, connect, json),
        Command::Chaos(args) => run_chaos(&args, json),
    };
    finish(done, json)
}

fn run_produce(args: &ProduceArgs, connect: &str, json: bool) -> Result<(), CliError> {
    let config = ProduceConfig {
        stream: args.stream.clone(),
        options: StreamOptions {
            streamlets: args.streamlets,
            lanes: args.lanes,
            segments_per_group: args.segments_per_group,
            durability: args.durability,
            order: args.order,
            retention_ms: None,
            ..StreamOptions::default()
        },
        log: args.log.clone(),
        producers: args.producers,
        record_bytes: args.record_bytes,
        chunk_bytes: args.chunk_bytes,
        linger: Duration::from_millis(args.linger_ms),
        in_flight: args.in_flight,
        records: args.records,
        time: match (args.seconds, args.records) {
            (Some(seconds), _) => Some(Duration::from_secs(seconds)),
            (None, Some(_)) => None,
            (None, None) => ProduceConfig::default().time,
        },
        rate: args.rate,
        delivery_timeout: Duration::from_secs(args.patience_seconds),
        seed: args.seed,
    };
    let report = verify::produce(&config, connect, &Arc::new(ProduceProgress::default())).map_err(failed)?;
    let told = if json {
        output::print_json(&report)
    } else {
        output::print(&format!(
            "{} records sent, {} acknowledged, {} given up; {} retries recognised, {} reconnects; run {} in {}\n",
            report.sent,
            report.acknowledged,
            report.given_up,
            report.duplicate_chunks,
            report.reconnects,
            report.run,
            args.log.display()
        ))
    };
    match (report.given_up, report.first_error) {
        (0, _) => told,
        (n, why) => Err(CliError::failure(format!("{n} records were given up: {}", why.unwrap_or_default()))
            .next("records that were given up may be in the stream or not; what was acknowledged is in the log")),
    }
}

fn run_consume(args: &ConsumeArgs, connect: &str, json: bool) -> Result<(), CliError> {
    let config = ConsumeConfig {
        stream: args.stream.clone(),
        log: args.log.clone(),
        application: args.application.clone(),
        consumers: args.consumers,
        patience: Duration::from_secs(args.patience_seconds),
        crash_every: args.crash_every_seconds.map(Duration::from_secs),
        ..ConsumeConfig::default()
    };
    config.check().map_err(failed)?;
    if !args.log.exists() {
        let message = format!("there is no log of acknowledgements at {}", args.log.display());
        return Err(CliError::failure(message).next("`kera verify produce` writes one: give both the same --log"));
    }
    let verdict = verify::consume(&config, connect).map_err(failed)?;
    let told = if json { output::print_json(&verdict_json(&verdict)) } else { output::print(&format!("{verdict}\n")) };
    held(verdict.holds(), told)
}

/// What comes of a verdict that was told, or that nobody wanted to read: it is the status all the same.
fn held(holds: bool, told: Result<(), CliError>) -> Result<(), CliError> {
    if holds { told } else { Err(CliError::failure("not everything that was promised holds")) }
}

fn verdict_json(verdict: &Verdict) -> serde_json::Value {
    let first: Vec<String> = verdict.findings.first().iter().map(ToString::to_string).collect();
    serde_json::json!({
        "holds": verdict.holds(),
        "acknowledged": verdict.acknowledged,
        "records": verdict.seen,
        "redelivered": verdict.redelivered,
        "unacknowledged": verdict.unacknowledged,
        "foreign": verdict.foreign,
        "findings": verdict.findings.counts(),
        "first_findings": first,
    })
}

/// The node was of this command's own making: there is none to look for, but there may be a log to read.
fn chaos_failed(error: BenchError) -> CliError {
    let interrupted = "interrupted: nothing is proved";
    match error {
        BenchError::Interrupted => CliError {
            exit: EXIT_INTERRUPTED,
            ..CliError::failure(format!("{interrupted}, and nothing is left of the run"))
        },
        BenchError::Kept { error, dir } if matches!(*error, BenchError::Interrupted) => CliError {
            exit: EXIT_INTERRUPTED,
            ..CliError::failure(format!("{interrupted}; log and data are in {}", dir.display()))
        },
        BenchError::Setting { .. } => failed(error),
        BenchError::Kept { error, dir } => CliError::failure(error.to_string()).next(format!(
            "{} says what the server did; its data is beside it, remove the directory when you are done",
            dir.join("server.log").display()
        )),
        other => CliError::failure(other.to_string()),
    }
}

fn run_chaos(args: &ChaosArgs, json: bool) -> Result<(), CliError> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|e| CliError::failure(format!("finding this program: {e}")))?,
    };
    let ms =
        |at: usize| Duration::from_millis(args.between_ms.get(at).or(args.between_ms.last()).copied().unwrap_or(0));
    let mut config = ChaosConfig {
        rounds: args.rounds,
        seed: args.seed,
        durability: args.durability,
        order: args.order,
        streamlets: args.streamlets,
        lanes: args.lanes,
        producers: args.producers,
        consumers: args.consumers,
        record_bytes: args.record_bytes,
        between: (ms(0), ms(1)),
        hold: Duration::from_secs(args.hold_seconds),
        recovery: Duration::from_secs(args.recovery_seconds),
        disk_bytes: args.disk_bytes,
        keep: args.keep,
        ..ChaosConfig::for_faults(program, args.faults.clone())
    };
    if let Some(rate) = args.rate {
        config.rate = (rate > 0.0).then_some(rate);
    }
    config.chunk_bytes = args.chunk_bytes.unwrap_or(config.chunk_bytes);
    config.segment_bytes = args.segment_bytes;
    config.arena_bytes = args.arena_bytes.unwrap_or(config.arena_bytes);
    if let Some(dir) = &args.dir {
        config.dir.clone_from(dir);
    }
    config.stop.on_signals().map_err(failed)?;
    let mut line = ProgressLine::new();
    let report = chaos::run(&config, |what| {
        if !args.quiet {
            line.show(what)
        }
    });
    line.clear();
    let report = report.map_err(chaos_failed)?;
    let told = if json { output::print_json(&report) } else { output::print(&format!("{report}\n")) };
    held(report.holds, told)
}
