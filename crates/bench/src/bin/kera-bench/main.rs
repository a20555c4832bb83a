//! `kera-bench`: the experiments of the papers, and our own, on KerA and its peers, in one command.
//!
//! Only flags, progress and printing are here; what is done is in `kera_bench::experiment`.

mod judge;
mod list;
mod measure;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use kera_bench::BenchError;

/// Where ratios are recorded.
const RECORDED: &str = "docs/performance/ratios.json";

/// The experiments of KerA's papers, and some of our own, on this machine: KerA and its peers in turns.
#[derive(Parser)]
#[command(name = "kera-bench", version, arg_required_else_help = true)]
#[command(after_help = "\
Begin with:
  kera-bench list                                  what there is, and which figure of which paper it follows
  kera-bench run tour --quick                      KerA alone, minutes
  kera-bench run icdcs-fig4 --peer kafka           one experiment, KerA and Kafka in turns in the same run
  kera-bench report results/NAME-DATE              plots and tables, one HTML file
  kera-bench diff results/NAME-DATE                did something get slower since ratios were recorded last?

An experiment is a file in `experiments`: write one, and `run` knows it.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What experiments there are: what each shows, and which figure of which paper it follows.
    #[command(after_help = "\
Examples:
  kera-bench list
  kera-bench list icdcs-fig7                       all about one of them
  kera-bench list --json")]
    List(ListArgs),
    /// Runs experiments, keeps the raw results, and says what was left out and why.
    #[command(after_help = "\
Examples:
  kera-bench run icdcs-fig4 --peer kafka
  kera-bench run tour --quick --peer all --minutes 10        what `make bench` does
  kera-bench run thesis-fig8-3 --values 16384 --rounds 5 --seconds 10
  kera-bench run slides-streams --values 512 --profile
  kera-bench run cluster --quick --peer kafka      three nodes, three copies, and three brokers
  kera-bench run all --out results/everything      hours

Results go to results/NAME-DATE as JSON lines, as they come: Ctrl-C keeps what was measured, stops every server that was
started and removes its directory.")]
    Run(RunArgs),
    /// Plots, tables, configuration, machine and versions of results: one HTML file, and Markdown.
    #[command(after_help = "\
Examples:
  kera-bench report results/tour-20260131-120000
  kera-bench report results/A --out site/A         instead of beside the raw results")]
    Report(ReportArgs),
    /// Did something get slower? Compares KerA ÷ peer and KerA ÷ limit of two runs, never times.
    #[command(after_help = "\
Examples:
  kera-bench diff results/B                        against what was recorded last
  kera-bench diff results/A results/B
  kera-bench diff elsewhere.json results/B

Only what both have is compared. A ratio counts as slower when it is off by more than single runs of either side were apart,
and by at least a factor of 1.4 (times: 2.5). Ends with status 3 if something is.")]
    Diff(DiffArgs),
    /// Keeps the ratios of results in a small file, for later runs to be compared with.
    #[command(after_help = "\
Example:
  kera-bench record results/quick-tour             into docs/performance/ratios.json")]
    Record(RecordArgs),
}

#[derive(Args)]
struct ReportArgs {
    /// Folders of results; several make one report.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Where the report goes. [default: the first of them]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What was written, as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DiffArgs {
    /// The later run; or the earlier one and the later one. Folders of results, or recorded ratios.
    #[arg(required = true, num_args = 1..=2)]
    results: Vec<PathBuf>,
    /// What one run alone is compared with.
    #[arg(long, value_name = "FILE", default_value = RECORDED)]
    recorded: PathBuf,
    /// JSON for programs instead of text for people.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RecordArgs {
    /// Folders of results.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The file; what it had is gone.
    #[arg(long, value_name = "FILE", default_value = RECORDED)]
    out: PathBuf,
}

#[derive(Args)]
struct ListArgs {
    /// All about these; without a name one line for each.
    names: Vec<String>,
    /// Where the experiments are.
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    experiments: PathBuf,
    /// JSON for programs instead of text for people.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArgs {
    /// Experiments by name; `tour`: those of the quick tour; `cluster`: those of several nodes; `all`: every one.
    #[arg(required = true)]
    names: Vec<String>,
    /// Peers that are measured in turns with KerA; `all` for every one that can be had.
    #[arg(long = "peer", value_name = "NAME,…", value_delimiter = ',')]
    peers: Vec<String>,
    /// Fewer points, a second each: to see, not to quote.
    #[arg(long)]
    quick: bool,
    /// Times that each system is measured at each point; the median counts. [default: as the experiment says]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of each measurement. [default: as the experiment says]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Keeps the whole run to so many minutes: first rounds come first, further ones as long as there is time. What was not reached is
    /// said. Starting what is measured is part of it, fetching peers is not.
    #[arg(long, value_name = "MIN")]
    minutes: Option<f64>,
    /// Only these values of the axis.
    #[arg(long, value_name = "X,…", value_delimiter = ',')]
    values: Vec<f64>,
    /// Where the time goes: phases of each run over CPU, memory, disk and network.
    #[arg(long)]
    profile: bool,
    /// Where the results go. [default: results/NAME-DATE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The `kera` program. [default: beside this one]
    #[arg(long, value_name = "FILE")]
    kera: Option<PathBuf>,
    /// Where the experiments are.
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    experiments: PathBuf,
    /// Where the peers' scripts and load generators are.
    #[arg(long = "peers-dir", value_name = "DIR", default_value = "peers")]
    peers_dir: PathBuf,
    /// Where servers keep their data meanwhile; all on the same disk.
    #[arg(long, value_name = "DIR", default_value = "target/kera-bench")]
    dir: PathBuf,
    /// Raw results on standard output too, a JSON object a line.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::List(args) => list::list(&args),
        Command::Run(args) => measure::run(&args),
        Command::Report(args) => judge::report(&args),
        Command::Diff(args) => judge::diff(&args),
        Command::Record(args) => judge::record(&args),
    };
    match done {
        Ok(code) => code,
        Err(BenchError::Interrupted) => {
            eprintln!("kera-bench: {}", BenchError::Interrupted);
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("kera-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
