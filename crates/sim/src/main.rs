//! `kera-sim`: seeds for as long as one likes.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use kera_sim::cluster::{Fault, Plan, Report, run};

/// Runs the simulated node with one seed after the other: real logic, simulated clocks, networks and disks, and faults.
///
/// A run that breaks a promise prints its seed and ends with status 1. `kera-sim --from SEED --seeds 1` repeats it, always in
/// the same way.
#[derive(Parser)]
#[command(version, about, long_about)]
struct Arguments {
    /// The first seed. Even ones are of durability `power` and lose power, odd ones are of durability `process`.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many seeds; without it as many as the time allows.
    #[arg(long)]
    seeds: Option<u64>,
    /// For how many minutes; without it until all seeds are done.
    #[arg(long)]
    minutes: Option<u64>,
    /// How long faults happen in a run, in simulated seconds.
    #[arg(long, default_value_t = 60)]
    trouble_s: u64,
    /// Records that each of two producers writes to each of two streamlets.
    #[arg(long, default_value_t = 300)]
    records: u64,
    /// Only these faults, by name, with commas between.
    #[arg(long, value_delimiter = ',', value_parser = fault)]
    only: Vec<Fault>,
    /// One object a run, and one for all, as lines of JSON.
    #[arg(long)]
    json: bool,
}

fn fault(name: &str) -> Result<Fault, String> {
    Fault::ALL.iter().copied().find(|fault| fault.name() == name).ok_or_else(|| {
        let names: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        format!("there is no fault of this name; there are {}", names.join(", "))
    })
}

fn json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "seed": report.seed, "trace": format!("{:016x}", report.trace), "events": report.events,
        "simulated_ms": report.simulated_ms, "acknowledged": report.acknowledged, "checks": report.checks,
        "faults": report.faults, "starts": report.starts, "violation": report.violation,
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    let time = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let bar = match (arguments.seeds, arguments.json) {
        (_, true) => indicatif::ProgressBar::hidden(),
        (Some(seeds), false) => indicatif::ProgressBar::new(seeds),
        (None, false) => indicatif::ProgressBar::new_spinner(),
    };
    let (mut runs, mut faults, mut checks, mut simulated_ms, mut failed) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let last = arguments.seeds.map_or(u64::MAX, |seeds| arguments.from.saturating_add(seeds));
    for seed in arguments.from..last {
        if time.is_some_and(|time| started.elapsed() >= time) {
            break;
        }
        let plan = Plan {
            trouble_ms: arguments.trouble_s * 1000,
            records: arguments.records,
            only: arguments.only.clone(),
            ..Plan::new(seed)
        };
        let report = run(&plan);
        runs += 1;
        faults += report.faults.values().sum::<u64>();
        checks += report.checks;
        simulated_ms += report.simulated_ms;
        if let Some(violation) = &report.violation {
            failed += 1;
            bar.suspend(|| eprintln!("seed {seed}: {violation}"));
        }
        if arguments.json {
            println!("{}", json(&report));
        }
        bar.inc(1);
        bar.set_message(format!("{faults} faults, {checks} checks"));
    }
    bar.finish_and_clear();
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    if arguments.json {
        let all = serde_json::json!({
            "runs": runs, "failed": failed, "faults": faults, "checks": checks, "simulated_ms": simulated_ms, "minutes": minutes,
        });
        println!("{all}");
    } else {
        let rate = |count: u64| (count as f64 / minutes.max(1e-9)).round();
        println!("{runs} runs, {failed} failed; {} simulated minutes in {minutes:.1}", simulated_ms / 60_000);
        println!("a minute: {} runs, {} faults, {} checks", rate(runs), rate(faults), rate(checks));
    }
    let _ = std::io::stdout().flush();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
