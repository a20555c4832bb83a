//! `kera-bench list`.

use std::fmt::Write;
use std::process::ExitCode;

use kera_bench::BenchError;
use kera_bench::experiment::definition::{Experiment, load_all};
use kera_bench::experiment::metric::axis_value;

use crate::ListArgs;

pub(crate) fn list(args: &ListArgs) -> Result<ExitCode, BenchError> {
    let all = load_all(&args.experiments)?;
    let chosen = if args.names.is_empty() { all } else { choose(all, &args.names)? };
    if args.json {
        let text = serde_json::to_string_pretty(&chosen);
        println!("{}", text.map_err(|e| BenchError::server("writing JSON", e))?);
    } else if args.names.is_empty() {
        print!("{}", table(&chosen));
    } else {
        chosen.iter().for_each(|experiment| println!("{}", about(experiment)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Experiments by name. `tour`, `cluster` and `all` stand for several.
pub(crate) fn choose(all: Vec<Experiment>, names: &[String]) -> Result<Vec<Experiment>, BenchError> {
    for name in names.iter().filter(|name| !matches!(name.as_str(), "tour" | "cluster" | "all")) {
        if !all.iter().any(|experiment| experiment.name == *name) {
            let known: Vec<&str> = all.iter().map(|experiment| experiment.name.as_str()).collect();
            let message = format!("there is none called `{name}`; there are: tour, cluster, all, {}", known.join(", "));
            return Err(BenchError::setting("experiments", message));
        }
    }
    let is_chosen = |experiment: &Experiment| {
        names.iter().any(|name| match name.as_str() {
            "all" => true,
            "tour" => experiment.tour,
            "cluster" => experiment.is_of_a_cluster(),
            name => experiment.name == name,
        })
    };
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn table(experiments: &[Experiment]) -> String {
    let mut text = String::new();
    let width = experiments.iter().map(|experiment| experiment.name.len()).max().unwrap_or(0);
    let titles = experiments.iter().map(|experiment| experiment.title.len()).max().unwrap_or(0);
    for experiment in experiments {
        let Experiment { name, title, follows, .. } = experiment;
        let mark = if experiment.tour { "*" } else { " " };
        let _ = writeln!(text, "{mark} {name:<width$}  {title:<titles$}  {follows}");
        if let Some(needs) = &experiment.needs {
            let _ = writeln!(text, "  {:<width$}  - not yet: it needs {needs}", "");
        }
    }
    text += "\n* part of the quick tour. `kera-bench list NAME` says all about one.\n";
    text
}

fn about(experiment: &Experiment) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}\n", experiment.name, experiment.title);
    let _ = writeln!(text, "  follows   {}", experiment.follows);
    for (what, words) in [("shows", &experiment.shows), ("differs", &experiment.differs)] {
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        if !words.is_empty() {
            let _ = writeln!(text, "  {what:<8}  {words}");
        }
    }
    let sweep = &experiment.sweep;
    let values = |values: &[f64]| values.iter().map(|v| axis_value(&sweep.knob, *v)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "  sweeps    {}: {}", sweep.label, values(&sweep.values));
    if !sweep.quick.is_empty() {
        let _ = writeln!(text, "  --quick   {}", values(&sweep.quick));
    }
    for series in &experiment.series {
        let _ = writeln!(text, "  a line    {}: {}", series.name, series.set.to_string().trim().replace('\n', ", "));
    }
    let _ = writeln!(text, "  workload  {}", experiment.workload.to_string().trim().replace('\n', ", "));
    let _ = writeln!(text, "  systems   {}", experiment.systems.join(", "));
    let _ = writeln!(text, "  plots     {}", experiment.plots.iter().map(|m| m.label()).collect::<Vec<_>>().join("; "));
    let _ =
        writeln!(text, "  takes     {} rounds of {} s at each point and system", experiment.rounds, experiment.seconds);
    if let Some(needs) = &experiment.needs {
        let _ = writeln!(text, "  not yet   it needs {needs}");
    }
    text
}
