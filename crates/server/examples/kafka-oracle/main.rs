//! Asks Kafka and KerA the same random requests, and shows where their answers differ.
//!
//! ```text
//! kafka-oracle --kafka 127.0.0.1:19092 --kera 127.0.0.1:9092 [--seed 1] [--steps 1000] [--record FILE]
//! kafka-oracle --kafka 127.0.0.1:19092 --record FILE …       Kafka's answers alone, for the test that needs no Kafka
//! kafka-oracle … --only scenes                               groups of several members, and nothing else
//! kafka-oracle … --only deaths --steps 1                     members of the consumer protocol die: two minutes for each step and side
//! kafka-oracle … --only admin                                what tools of administrators ask
//! kafka-oracle … --only rolls                                groups that change their protocol while they have members
//! ```
//! Both are fresh and make no topics by themselves; `peers/kafka/oracle.sh` starts both. Ends with 1 if anything differs that
//! `answer::RULES` does not name.

mod answer;
mod batches;
mod requests;
mod scenes;
mod side;
mod steps;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use side::Side;

/// Differences that are shown in full.
const SHOWN_MAX: usize = 40;

#[derive(Default)]
struct Options {
    kafka: Option<SocketAddr>,
    kera: Option<SocketAddr>,
    seed: u64,
    steps: u64,
    record: Option<String>,
    only: Option<fn(u64, u64) -> steps::Asked>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seed: 1, steps: 1000, ..Options::default() };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} wants a value"))?;
        let wrong = |error: &dyn std::fmt::Display| format!("{name} {value}: {error}");
        match name.as_str() {
            "--kafka" => options.kafka = Some(value.parse().map_err(|e| wrong(&e))?),
            "--kera" => options.kera = Some(value.parse().map_err(|e| wrong(&e))?),
            "--seed" => options.seed = value.parse().map_err(|e| wrong(&e))?,
            "--steps" => options.steps = value.parse().map_err(|e| wrong(&e))?,
            "--record" => options.record = Some(value.clone()),
            "--only" if value == "scenes" => options.only = Some(steps::scene),
            "--only" if value == "deaths" => options.only = Some(steps::deaths),
            "--only" if value == "rolls" => options.only = Some(steps::rolls),
            "--only" if value == "settings" => options.only = Some(steps::settings),
            "--only" if value == "admin" => options.only = Some(steps::admin),
            "--only" if value == "silent" => options.only = Some(steps::silent),
            _ => {
                return Err(format!(
                    "{name} {value} is not known: --kafka, --kera, --seed, --steps, --record, --only scenes, deaths, rolls, settings, silent or admin"
                ));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kafka-oracle: {error}");
            ExitCode::from(2)
        }
    }
}

/// How many answers differ.
fn run(options: &Options) -> Result<usize, String> {
    let mut sides: Vec<Side> = options.kafka.into_iter().chain(options.kera).map(Side::new).collect();
    if sides.is_empty() {
        return Err("say --kafka, --kera or both".to_owned());
    }
    let mut record = match &options.record {
        Some(path) => Some(std::fs::File::create(path).map_err(|error| format!("{path}: {error}"))?),
        None => None,
    };
    if let Some(file) = &mut record {
        writeln!(file, "{} {}", options.seed, options.steps).map_err(|error| error.to_string())?;
    }
    let mut differences = 0;
    let prologue = steps::prologue().len() as u64;
    for number in 0..prologue + options.steps {
        let mut answers = Vec::new();
        let mut shown = String::new();
        for side in &mut sides {
            let asked = match options.only.filter(|_| number >= prologue) {
                Some(only) => only(options.seed, number),
                None => steps::nth(options.seed, number, &side.memory),
            };
            answers.push(side.ask(&asked).map_err(|error| format!("step {number}: {error}\n  {}", asked.shown()))?);
            shown = asked.shown();
        }
        if let (Some(file), Some(answer)) = (&mut record, answers.first()) {
            writeln!(file, "{answer}").map_err(|error| error.to_string())?;
        }
        if let [kafka, kera] = answers.as_slice()
            && kafka != kera
        {
            differences += 1;
            if differences <= SHOWN_MAX {
                println!("step {number}: {shown}\n  Kafka {kafka}\n  KerA  {kera}");
            }
        }
    }
    println!("seed {}: {} requests, {differences} answers differ", options.seed, prologue + options.steps);
    Ok(differences)
}
