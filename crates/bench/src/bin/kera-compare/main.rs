//! KerA and Apache Kafka side by side: at each point both are measured in turns, in one run, on one machine, and the
//! medians are compared.
//!
//! Both sides run as they are used: the server in a process of its own, the load generator in another (`kera bench`
//! and `peers/rdkafka-bench`), over loopback. Nothing here is measured in this process, except for the yardstick.

mod door;
mod node;
mod peers;
mod points;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kera_bench::BenchError;

use peers::{Kafka, Kera};
use points::{Point, Scale};
use report::{Comparison, Outcome};

/// Measures KerA against Apache Kafka and writes a table and a JSON file.
#[derive(Parser)]
#[command(name = "kera-compare", version)]
#[command(after_help = "\
Examples:
  cargo run --release -p kera-bench --bin kera-compare -- --quick
  cargo run --release -p kera-bench --bin kera-compare -- --out results/full
  cargo run --release -p kera-bench --bin kera-compare -- --only produce-16k,latency --rounds 5
  cargo run --release -p kera-bench --bin kera-compare -- --door --arena-bytes 268435456 --seconds 3 --rounds 1
  cargo run --release -p kera-bench --bin kera-compare -- --list")]
struct Args {
    /// The `kera` program. [default: beside this one]
    #[arg(long, value_name = "FILE")]
    kera: Option<PathBuf>,
    /// The script that starts Kafka.
    #[arg(long, value_name = "FILE", default_value = "peers/kafka/kafka.sh")]
    kafka: PathBuf,
    /// The load generator that loads Kafka through librdkafka; that of Kafka's Java clients comes with the script.
    #[arg(long, value_name = "FILE", default_value = "peers/rdkafka-bench/target/release/rdkafka-bench")]
    rdkafka_bench: PathBuf,
    /// Leave Kafka out.
    #[arg(long)]
    no_kafka: bool,
    /// Short runs: to see that everything works, not to quote.
    #[arg(long)]
    quick: bool,
    /// Times that each side is measured at each point; the median counts. [default: 3, quick: 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of each run. [default: 10, quick: 2]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Only points whose names start with one of these.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Compare the Kafka door: the same librdkafka clients against Kafka and against KerA, at points of their own.
    #[arg(long)]
    door: bool,
    /// List the points and end.
    #[arg(long)]
    list: bool,
    /// The arena of the KerA node.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    arena_bytes: u64,
    /// Where data is kept meanwhile; both sides on the same disk.
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    dir: PathBuf,
    /// Where the results go.
    #[arg(long, value_name = "DIR", default_value = "results/compare")]
    out: PathBuf,
}

/// What a node does beside being loaded; by this name as if it were a point.
const NODE: &str = "node";

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kera-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), BenchError> {
    if args.door {
        return door::run(args);
    }
    let scale = Scale { seconds: args.seconds.unwrap_or(if args.quick { 2.0 } else { 10.0 }), quick: args.quick };
    let all = points::all(&scale);
    check_only(&args.only, &all.iter().map(|point| point.name).chain([NODE]).collect::<Vec<_>>())?;
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|prefix| name.starts_with(prefix.as_str()));
    let points: Vec<Point> = all.into_iter().filter(|point| wanted(point.name)).collect();
    if args.list {
        points.iter().for_each(|point| println!("{:<20} {}", point.name, point.title));
        println!("{NODE:<20} a node's start, memory when idle, restart after kill -9, 100,000 idle lanes");
        return Ok(());
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    let program = match &args.kera {
        Some(program) => program.clone(),
        None => beside_this_one()?,
    };
    std::fs::create_dir_all(&args.dir).map_err(|e| BenchError::io(format!("creating {}", args.dir.display()), e))?;
    let mut comparison = Comparison::new(rounds, scale.seconds, args.quick);
    let mut kera = Kera::new(program.clone(), args.dir.join("kera"), args.arena_bytes);
    let mut kafka = if args.no_kafka { None } else { Some(warm_kafka(args, &scale)?) };
    for point in &points {
        comparison.outcomes.push(measure(point, rounds, &mut kera, kafka.as_mut())?);
        comparison.write(&args.out)?;
    }
    drop((kera, kafka));
    if wanted(NODE) {
        comparison.node = Some(node::measure(&program, &args.dir, args.arena_bytes, args.quick)?);
    }
    comparison.write(&args.out)?;
    println!("{}", comparison.markdown());
    eprintln!("written to {}", args.out.display());
    Ok(())
}

/// Refuses `--only` with a name that no point begins with: what it was meant to measure would be missing from the table, and nobody told.
fn check_only(only: &[String], names: &[&str]) -> Result<(), BenchError> {
    let begins_none = |prefix: &&String| !names.iter().any(|name| name.starts_with(prefix.as_str()));
    match only.iter().find(begins_none) {
        Some(prefix) => {
            Err(BenchError::setting("only", format!("no point begins with `{prefix}`; there are {}", names.join(", "))))
        }
        None => Ok(()),
    }
}

/// A broker whose hot path is compiled, as far as it was used, and its load generators.
fn warm_kafka(args: &Args, scale: &Scale) -> Result<Kafka, BenchError> {
    let kafka = Kafka::new(&args.kafka, &args.rdkafka_bench)?;
    kafka.build_java()?;
    eprintln!("Kafka warms up");
    kafka.run_load(&points::kafka_warm_up(scale))?;
    Ok(kafka)
}

/// Both sides in turns, so that whatever the machine does meanwhile hits both.
fn measure(
    point: &Point,
    rounds: usize,
    kera: &mut Kera,
    mut kafka: Option<&mut Kafka>,
) -> Result<Outcome, BenchError> {
    let mut outcome = Outcome::new(point);
    for round in 0..rounds {
        eprintln!("{} {}/{rounds}: KerA", point.name, round + 1);
        outcome.kera.push(kera.run(point)?);
        if let Some(limit) = &point.limit {
            outcome.limit.push(limit.measure(kera.dir())?);
        }
        for (n, load) in point.kafka.iter().enumerate() {
            let Some(kafka) = kafka.as_deref_mut() else { continue };
            eprintln!("{} {}/{rounds}: Kafka, {} {}", point.name, round + 1, load.client.name(), load.words.join(" "));
            outcome.kafka_of(n).push(kafka.run_load(load)?);
        }
    }
    if let Some((kera, other)) = outcome.summary() {
        eprintln!("{}: {kera} against {other}", point.name);
    }
    Ok(outcome)
}

fn beside_this_one() -> Result<PathBuf, BenchError> {
    let this = std::env::current_exe().map_err(|e| BenchError::io("finding this program", e))?;
    let kera = this.with_file_name("kera");
    if kera.is_file() {
        Ok(kera)
    } else {
        Err(BenchError::Setting {
            flag: "kera",
            message: format!("there is no {}; build it with `cargo build --release -p kera`", kera.display()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_point_begins_with_is_refused_with_those_that_there_are() {
        for (door, known) in [(&[][..], "produce-16k"), (&["--door"][..], "16-1k-produce")] {
            let listed = |only: &str| {
                let words = ["kera-compare", "--list", "--only", only].into_iter().chain(door.iter().copied());
                run(&Args::parse_from(words)).map_err(|error| error.to_string())
            };
            assert_eq!(listed(known), Ok(()));
            let error = listed(&format!("{known},nothing")).unwrap_err();
            assert!(error.starts_with("--only: no point begins with `nothing`") && error.contains(known), "{error}");
        }
    }
}
