//! `kera-bench report`, `diff` and `record`: what is made of results.

use std::process::ExitCode;

use kera_bench::BenchError;
use kera_bench::experiment::metric::Metric;
use kera_bench::experiment::ratios::{self, Change, Verdict};
use kera_bench::experiment::{Results, report};

use crate::{DiffArgs, RecordArgs, ReportArgs};

/// The exit status if something got slower.
const SLOWER: u8 = 3;

pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, BenchError> {
    let results = Results::read_all(&args.results)?;
    let first = &args.results[0];
    let beside = if first.is_dir() { first.as_path() } else { first.parent().unwrap_or(first) };
    let written = report::write(&results, args.out.as_deref().unwrap_or(beside))?;
    if args.json {
        println!("{}", serde_json::json!({ "html": written.html, "markdown": written.markdown }));
    } else {
        println!("{}\n{}", written.html.display(), written.markdown.display());
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn diff(args: &DiffArgs) -> Result<ExitCode, BenchError> {
    let (before, after) = match args.results.as_slice() {
        [after] => (&args.recorded, after),
        [before, after, ..] => (before, after),
        [] => return Err(BenchError::setting("results", "say which")),
    };
    let changes = ratios::compare(&ratios::read(before)?, &ratios::read(after)?);
    if changes.is_empty() {
        let message =
            "the two have no ratio in common: give the same experiments, with the same --quick, and a peer or a limit";
        return Err(BenchError::server("comparing", message));
    }
    if args.json {
        let text = serde_json::to_string_pretty(&changes);
        println!("{}", text.map_err(|e| BenchError::server("writing JSON", e))?);
    } else {
        print!("{}", table(&changes));
    }
    let slower = changes.iter().any(|change| change.verdict == Verdict::Slower);
    Ok(if slower { ExitCode::from(SLOWER) } else { ExitCode::SUCCESS })
}

fn table(changes: &[Change]) -> String {
    let mut text = String::new();
    let count = |verdict: Verdict| changes.iter().filter(|change| change.verdict == verdict).count();
    for change in changes.iter().filter(|change| change.verdict != Verdict::Same) {
        let at = &change.at;
        let word = if change.verdict == Verdict::Slower { "SLOWER" } else { "faster" };
        let what = if at.metric == Metric::RecordsPerS { String::new() } else { format!(" ({})", at.metric.label()) };
        let series = if at.series.is_empty() { String::new() } else { format!("{}, ", at.series) };
        text += &format!(
            "{word}  {} at {series}{}{what}: against {} {:.2}, it was {:.2}; a factor of {:.2} is forgiven\n",
            at.experiment, at.x, at.against, change.now, at.ratio, change.allowed
        );
    }
    let (slower, same, faster) = (count(Verdict::Slower), count(Verdict::Same), count(Verdict::Faster));
    text + &format!(
        "{slower} slower, {same} the same, {faster} faster, of {} ratios that both runs have\n",
        changes.len()
    )
}

pub(crate) fn record(args: &RecordArgs) -> Result<ExitCode, BenchError> {
    let recorded = ratios::of(&Results::read_all(&args.results)?);
    let text = serde_json::to_string_pretty(&recorded).map_err(|e| BenchError::server("writing JSON", e))?;
    if let Some(dir) = args.out.parent() {
        std::fs::create_dir_all(dir).map_err(|e| BenchError::io_at("creating", dir, e))?;
    }
    std::fs::write(&args.out, text + "\n").map_err(|e| BenchError::io_at("writing", &args.out, e))?;
    println!("{} ratios in {}", recorded.ratios.len(), args.out.display());
    Ok(ExitCode::SUCCESS)
}
