//! Loads an Apache Kafka broker through librdkafka and prints one JSON object, with the same fields as `kera bench`.
//!
//! What is measured is librdkafka as its own `rdkafka_performance` drives it: `rd_kafka_produce` of a payload that is
//! never copied or freed, delivery reports for every message, `rd_kafka_consume_batch_queue` for reading. One thread
//! calls the library for each producer and each consumer; the library's own threads come on top.

mod client;
mod consume;
mod produce;
mod report;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use report::Report;

#[derive(Parser)]
#[command(about = "Loads an Apache Kafka broker through librdkafka", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a topic, produce, report, delete the topic unless --keep
    Produce(Load),
    /// Consume a topic from its beginning until --records have come
    Consume(Load),
    /// Produce and consume at once
    Both(Load),
    /// Delete a topic
    Delete(Load),
}

/// What to do to the broker. Sizes in bytes.
#[derive(Args, Clone, Serialize)]
pub(crate) struct Load {
    /// The broker
    #[arg(long, default_value = "127.0.0.1:19092")]
    pub(crate) bootstrap: String,
    /// The topic; created by produce and both
    #[arg(long, default_value = "bench")]
    pub(crate) topic: String,
    /// Partitions of the topic
    #[arg(long, default_value_t = 16)]
    pub(crate) partitions: i32,
    /// Copies of each partition
    #[arg(long, default_value_t = 1)]
    pub(crate) replication: i32,
    /// Topics, each with --partitions; their names get a number
    #[arg(long, default_value_t = 1)]
    pub(crate) topics: usize,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 100)]
    pub(crate) record_bytes: usize,
    /// batch.size
    #[arg(long, default_value_t = 16 << 10)]
    pub(crate) batch_bytes: usize,
    /// What a producer holds that is not acknowledged
    #[arg(long, default_value_t = 1 << 30)]
    pub(crate) buffer_bytes: u64,
    /// linger.ms
    #[arg(long, default_value_t = 1.0)]
    pub(crate) linger_ms: f64,
    /// Whether a record or a whole batch goes to a partition before the next partition's turn, or the library chooses
    #[arg(long, default_value = "record", value_parser = ["record", "batch", "library"])]
    pub(crate) spread: String,
    /// Records to send; with --seconds the most to send
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Stop after this time; 0: only --records counts
    #[arg(long, default_value_t = 0.0)]
    pub(crate) seconds: f64,
    /// With --seconds: seconds before the clock starts, of the same producers. What is not acknowledged when the time is over is given
    /// up and counts nowhere
    #[arg(long, default_value_t = 0.0)]
    pub(crate) warmup_seconds: f64,
    /// Records that are sent, or consumed, before the clock starts
    #[arg(long, default_value_t = 0)]
    pub(crate) warmup_records: u64,
    /// Records per second, open loop; 0: as fast as it goes
    #[arg(long, default_value_t = 0.0)]
    pub(crate) rate: f64,
    /// Producers, each with a client and a thread of its own
    #[arg(long, default_value_t = 1)]
    pub(crate) producers: usize,
    /// Consumers of `both` and `consume`; partitions are dealt out among them
    #[arg(long, default_value_t = 1)]
    pub(crate) consumers: usize,
    /// One record in this many carries a time and counts for the latencies; 1 with --rate
    #[arg(long, default_value_t = 128)]
    pub(crate) sample: u64,
    /// Keep the topic
    #[arg(long)]
    pub(crate) keep: bool,
    /// A process whose CPU time and memory are reported: the broker's
    #[arg(long, default_value_t = 0)]
    pub(crate) server_pid: u32,
    /// A librdkafka property, name=value; repeatable
    #[arg(short = 'X', long = "property")]
    pub(crate) properties: Vec<String>,
    /// A property of the topic, name=value; repeatable
    #[arg(long = "topic-property")]
    pub(crate) topic_properties: Vec<String>,
}

impl Load {
    /// Whether the clock starts and stops while producers send.
    pub(crate) fn is_timed(&self) -> bool {
        self.warmup_seconds > 0.0 && self.seconds > 0.0 && self.rate == 0.0
    }

    fn topic_names(&self) -> Vec<String> {
        if self.topics == 1 {
            return vec![self.topic.clone()];
        }
        (0..self.topics).map(|n| format!("{}-{n}", self.topic)).collect()
    }
}

fn run(command: Command) -> Result<Option<Report>, String> {
    match command {
        Command::Delete(load) => client::delete_topics(&load).map(|()| None),
        Command::Consume(load) => {
            consume::consume(&load, &AtomicU64::new(load.records + load.warmup_records)).map(Some)
        }
        Command::Produce(load) => with_topics(&load, |load| produce::produce(load)).map(Some),
        Command::Both(load) => with_topics(&load, |load| {
            let wanted = AtomicU64::new(load.records + load.warmup_records);
            std::thread::scope(|scope| {
                let consumer = scope.spawn(|| consume::consume(load, &wanted));
                let produced = produce::produce(load);
                // How many there are is known once the producers' time is over; without producers there are none to wait for.
                let sent = produced.as_ref().map_or(0, |report| report.acknowledged);
                if produced.is_err() || load.seconds > 0.0 {
                    wanted.store(sent + load.warmup_records, Ordering::Relaxed);
                }
                let produced = produced?;
                let consumed = consumer.join().map_err(|_| "the consuming thread panicked")??;
                Ok(produced.with_consumed(consumed))
            })
        })
        .map(Some),
    }
}

fn with_topics(load: &Load, work: impl FnOnce(&Load) -> Result<Report, String>) -> Result<Report, String> {
    client::create_topics(load)?;
    let result = work(load);
    if !load.keep {
        client::delete_topics(load)?;
    }
    result
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(Some(report)) => {
            println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("rdkafka-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
