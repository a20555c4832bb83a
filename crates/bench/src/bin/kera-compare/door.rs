//! The Kafka door against Kafka: the same librdkafka load generator, the same flags, both servers in turns. What counts is the
//! rate, what a MiB of payload costs the server's CPU, and what the server's process holds in memory.
//!
//! Resident memory of KerA has the touched part of its arena in it, which is in shared memory; Kafka's has its heap, and not the
//! page cache that it keeps its data in.

use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use kera_bench::BenchError;
use kera_bench::limit::median;
use kera_bench::server::{Server, ServerConfig};
use serde_json::{Value, json};

use crate::Args;
use crate::peers::{Kafka, Load, remake};

/// One point.
struct Point {
    name: String,
    words: Vec<String>,
    /// Where the rate is in the report: what is slower of `both` counts.
    both: bool,
}

/// Records per second that runs of a fixed number of records are made for.
const RECORDS_PER_S: f64 = 300_000.0;

fn points(seconds: f64) -> Vec<Point> {
    let mut points = Vec::new();
    for partitions in [16, 512, 1024] {
        for kib in [1, 4, 16, 64] {
            for (command, name) in [("produce", "produce"), ("produce-and-consume", "consume"), ("both", "both")] {
                let (records, limit_s) = if command == "produce" {
                    (1_000_000_000, seconds)
                } else {
                    // They end with the last record consumed, so they go by records.
                    ((seconds * RECORDS_PER_S) as u64, 0.0)
                };
                let words = format!(
                    "{command} --partitions {partitions} --batch-bytes {} --spread batch --records {records} \
                     --seconds {limit_s} --warmup-records 100000",
                    kib << 10
                );
                points.push(Point {
                    name: format!("{partitions}-{kib}k-{name}"),
                    words: words.split_whitespace().map(str::to_owned).collect(),
                    both: command == "both",
                });
            }
        }
    }
    points
}

/// What one run says: MiB per second, server CPU in milliseconds per MiB, resident MiB.
#[derive(Clone, Copy, Debug)]
struct Figures {
    mib_per_s: f64,
    cpu_ms_per_mib: f64,
    resident_mib: f64,
}

impl Figures {
    fn of(run: &Value, both: bool) -> Figures {
        let figure = |pointer: &str| run.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
        let mib = figure("/bytes") / f64::from(1 << 20);
        let rate = figure("/mib_per_s");
        Figures {
            mib_per_s: if both { rate.min(figure("/consume/mib_per_s")) } else { rate },
            cpu_ms_per_mib: figure("/server/cpu_seconds") * 1e3 / mib.max(1e-9),
            resident_mib: figure("/server/resident_bytes") / f64::from(1 << 20),
        }
    }

    /// The medians of several.
    fn median(all: &[Figures]) -> Figures {
        let of = |field: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = all.iter().map(field).collect();
            median(&mut values)
        };
        Figures {
            mib_per_s: of(|one| one.mib_per_s),
            cpu_ms_per_mib: of(|one| one.cpu_ms_per_mib),
            resident_mib: of(|one| one.resident_mib),
        }
    }
}

/// Measures all points, prints the table and writes it with the runs to `--out`.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let seconds = args.seconds.unwrap_or(if args.quick { 1.0 } else { 5.0 });
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    let all = points(seconds);
    crate::check_only(&args.only, &all.iter().map(|point| point.name.as_str()).collect::<Vec<_>>())?;
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|prefix| name.starts_with(prefix.as_str()));
    let points: Vec<Point> = all.into_iter().filter(|point| wanted(&point.name)).collect();
    if args.list {
        points.iter().for_each(|point| println!("{:<20} {}", point.name, point.words.join(" ")));
        return Ok(());
    }
    let program = match &args.kera {
        Some(program) => program.clone(),
        None => crate::beside_this_one()?,
    };
    let kafka = if args.no_kafka { None } else { Some(Kafka::new(&args.kafka, &args.rdkafka_bench)?) };
    if let Some(kafka) = &kafka {
        // Until its code is compiled, and its heap has been used as far as it will be.
        eprintln!("Kafka warms up");
        let words = "produce-and-consume --partitions 16 --spread batch --records 6000000 --warmup-records 100000";
        kafka.run(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())?;
    }
    let mut table = format!(
        "Medians of {rounds} rounds of about {seconds} s, both sides in turns; KerA's arena has {} MiB.\n\n\
         | partitions, batch | MiB/s: KerA | Kafka | ratio | server CPU ms/MiB: KerA | Kafka | share | resident MiB: KerA \
         | Kafka | share |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        args.arena_bytes >> 20
    );
    let mut all = Vec::new();
    for point in &points {
        let (mut kera_runs, mut kafka_runs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            eprintln!("{} {}/{rounds}", point.name, round + 1);
            kera_runs.push(run_kera(args, &program, &point.words)?);
            if let Some(kafka) = &kafka {
                kafka_runs.push(kafka.run(&point.words)?);
            }
        }
        let of = |runs: &[Value]| {
            let figures: Vec<Figures> = runs.iter().map(|run| Figures::of(run, point.both)).collect();
            Figures::median(&figures)
        };
        let row = row(&point.name, &of(&kera_runs), &of(&kafka_runs));
        eprint!("{row}");
        table += &row;
        all.push(json!({ "name": point.name, "command": point.words, "kera": kera_runs, "kafka": kafka_runs }));
    }
    drop(kafka);
    println!("{table}");
    let all = json!({ "rounds": rounds, "seconds": seconds, "arena_bytes": args.arena_bytes, "points": all });
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&args.out)?;
        std::fs::write(args.out.join("door.json"), format!("{all:#}\n"))?;
        std::fs::write(args.out.join("door.md"), &table)
    };
    write().map_err(|e| BenchError::io_at("writing to", &args.out, e))
}

fn row(name: &str, kera: &Figures, kafka: &Figures) -> String {
    let mut row = String::new();
    let _ = writeln!(
        row,
        "| {name} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} |",
        kera.mib_per_s,
        kafka.mib_per_s,
        kera.mib_per_s / kafka.mib_per_s.max(1e-9),
        kera.cpu_ms_per_mib,
        kafka.cpu_ms_per_mib,
        kera.cpu_ms_per_mib / kafka.cpu_ms_per_mib.max(1e-9),
        kera.resident_mib,
        kafka.resident_mib,
        kera.resident_mib / kafka.resident_mib.max(1e-9),
    );
    row
}

/// A node of its own for each run: what it holds in memory is of this run.
fn run_kera(args: &Args, program: &Path, words: &[String]) -> Result<Value, BenchError> {
    let dir = args.dir.join("door");
    remake(&dir)?;
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = free.map_err(|e| BenchError::io("finding a free port", e))?.to_string();
    let flags = vec!["--kafka-listen".to_owned(), address.clone()];
    let config = ServerConfig { arena_bytes: Some(args.arena_bytes), flags, ..ServerConfig::in_dir(program, &dir) };
    let (mut server, _) = Server::start(config)?;
    let pid = server.pid().map_or(String::new(), |pid| pid.to_string());
    let value = Load::new(&args.rdkafka_bench, address, pid).run(words);
    let _ = server.stop(Duration::from_secs(60));
    let _ = std::fs::remove_dir_all(&dir);
    value
}
