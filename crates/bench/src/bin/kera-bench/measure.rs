//! `kera-bench run`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use kera_bench::BenchError;
use kera_bench::experiment::definition::{Experiment, load_all};
use kera_bench::experiment::results::{Line, Writer};
use kera_bench::experiment::run::{self, Options, Size, Step};
use kera_bench::experiment::stop::Stop;
use kera_bench::experiment::systems::{self, Opened, Places};

use crate::RunArgs;
use crate::list::choose;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, BenchError> {
    let mut experiments = choose(load_all(&args.experiments)?, &args.names)?;
    only_values(&mut experiments, &args.values)?;
    let stop = Stop::new();
    stop.on_signals()?;
    let budget = args.minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0)).transpose();
    let budget = budget.map_err(|e| BenchError::setting("minutes", e.to_string()))?;
    let size = if args.quick { Size::Quick } else { Size::Full };
    let places = places(args)?;
    if !args.peers.is_empty() {
        eprintln!("looking for {}; what is not there yet is fetched", args.peers.join(", "));
    }
    let Opened { mut systems, missing } = systems::open(&peers(&args.peers)?, &places)?;
    for peer in &missing {
        eprintln!("{} is left out: {}", peer.system, peer.why);
    }
    let header = run::header(words_to_repeat(), size);
    let out = args.out.clone().unwrap_or_else(|| {
        let when: String = header.started.chars().filter(|c| c.is_ascii_digit() || *c == ' ').collect();
        PathBuf::from("results").join(format!("{}-{}", args.names.join("-"), when.replace(' ', "-")))
    });
    let mut writer = Writer::create(&out, header)?;
    let (mut failed, mut left_out) = (false, 0);
    let bar = bar();
    let outcome = run::run(
        &experiments,
        &mut systems,
        &missing,
        &Options {
            dir: places.dir.clone(),
            size,
            rounds: args.rounds,
            seconds: args.seconds,
            profile: args.profile,
            budget,
        },
        &stop,
        &mut |line| {
            if let Line::Skipped(skipped) = &line {
                let why = &skipped.why;
                // A peer that dies is left out; that KerA fails is what a script has to know.
                failed |= why.starts_with("failed") && skipped.system.as_deref().is_none_or(|name| name == "kera");
                left_out += usize::from(why.starts_with("failed") || why.starts_with("not reached"));
            }
            if args.json {
                println!("{}", serde_json::to_string(&line).map_err(|e| BenchError::server("writing JSON", e))?);
            }
            writer.write(&line)
        },
        &mut |step| show(&bar, step),
    );
    bar.finish_and_clear();
    drop(systems);
    let _ = std::fs::remove_dir(&args.dir);
    outcome?;
    if left_out > 0 {
        eprintln!("{left_out} measurements failed or were not reached: the report says which and why");
    }
    eprintln!("written to {}", out.display());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What it was called with, but for where things are, which is nobody else's business.
fn words_to_repeat() -> Vec<String> {
    let mut words = std::env::args().skip(1);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let is_place = |flag: &str| ["--out", "--kera", "--dir", "--peers-dir", "--experiments"].contains(&flag);
        match word.split_once('=') {
            Some((flag, _)) if is_place(flag) => {}
            None if is_place(&word) => drop(words.next()),
            _ => kept.push(word),
        }
    }
    kept
}

/// Keeps only the values that were asked for. One that no experiment has is a mistake.
fn only_values(experiments: &mut [Experiment], values: &[f64]) -> Result<(), BenchError> {
    for value in values {
        if !experiments.iter().any(|experiment| experiment.sweep.values.contains(value)) {
            let message = format!("{value} is on no axis of these experiments; `kera-bench list NAME` shows what is");
            return Err(BenchError::setting("values", message));
        }
    }
    if !values.is_empty() {
        for experiment in experiments {
            experiment.sweep.values.retain(|value| values.contains(value));
            experiment.sweep.quick.clear();
        }
    }
    Ok(())
}

fn peers(names: &[String]) -> Result<Vec<String>, BenchError> {
    if names.iter().any(|name| name == "all") {
        return Ok(systems::NAMES.map(str::to_owned).to_vec());
    }
    match names.iter().find(|name| !systems::NAMES.contains(&name.as_str())) {
        None => Ok(names.to_vec()),
        Some(name) => {
            let message = format!("`{name}` is none of: all, {}", systems::NAMES.join(", "));
            Err(BenchError::setting("peer", message))
        }
    }
}

fn places(args: &RunArgs) -> Result<Places, BenchError> {
    std::fs::create_dir_all(&args.dir).map_err(|e| BenchError::io(format!("creating {}", args.dir.display()), e))?;
    let whole =
        |path: &Path| path.canonicalize().map_err(|e| BenchError::io(format!("looking at {}", path.display()), e));
    Ok(Places {
        kera: match &args.kera {
            Some(program) => program.clone(),
            None => {
                let this = std::env::current_exe().map_err(|e| BenchError::io("finding this program", e))?;
                this.with_file_name("kera")
            }
        },
        peers: args.peers_dir.clone(),
        dir: whole(&args.dir)?,
        quick: args.quick,
    })
}

fn bar() -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed_precise}{prefix} [{bar:30}] {pos}/{len} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, step: &Step) {
    bar.set_length(step.total as u64);
    bar.set_position(step.done as u64);
    let lasting = step.text.contains("left out");
    let left = step.left.map(|left| format!(", {}:{:02} left", left.as_secs() / 60, left.as_secs() % 60));
    let left = left.unwrap_or_default();
    bar.set_prefix(left.clone());
    if bar.is_hidden() {
        eprintln!("{}/{}{left} {}", step.done, step.total, step.text);
    } else if lasting {
        bar.println(&step.text);
    } else {
        bar.set_message(step.text.clone());
    }
}
