//! `kera-sim`: seeds for as long as one likes.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use kera_sim::{cluster, nodes};

/// Runs a simulated node, or a simulated cluster, with one seed after the other: real logic, simulated clocks, networks and disks, and
/// faults.
///
/// A run that breaks a promise prints its seed and ends with status 1. `kera-sim --from SEED --seeds 1` repeats it, always in
/// the same way.
#[derive(Parser)]
#[command(version, about, long_about)]
struct Arguments {
    /// A cluster of three to five nodes, with copies, instead of one node.
    #[arg(long)]
    cluster: bool,
    /// The first seed. Even ones are of durability `power` and lose power, odd ones are of durability `process`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    from: u64,
    /// How many seeds, at least one; without it as many as the time allows.
    #[arg(long, value_parser = at_least_one)]
    seeds: Option<u64>,
    /// For how many minutes, at least one; without it until all seeds are done.
    #[arg(long, value_parser = at_least_one)]
    minutes: Option<u64>,
    /// How long faults happen in a run, in simulated seconds.
    #[arg(long, default_value_t = 60)]
    trouble_s: u64,
    /// Records that each of two producers of a stream writes to each streamlet.
    #[arg(long, default_value_t = 300)]
    records: u64,
    /// Three nodes, with two or three copies of six streamlets.
    #[arg(long)]
    three: bool,
    /// Producers of a cluster have more chunks under way than a lane remembers places, and send them again early.
    #[arg(long)]
    eager: bool,
    /// Producers of a cluster give up chunks that they have sent, and skip them.
    #[arg(long)]
    impatient: bool,
    /// Only these faults, by name, with commas between. `log-rot` and `majority-lost` need `--coordinator-disks`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Time between two faults in a cluster, on average, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    fault_ms: u64,
    /// No stream of a cluster forgets what is old.
    #[arg(long)]
    keep: bool,
    /// Streams of a cluster keep so many bytes of each streamlet, and forget what is older.
    #[arg(long)]
    retention_bytes: bool,
    /// Applications read the streams of a cluster.
    #[arg(long)]
    applications: bool,
    /// The leader of a cluster evens out the nodes by itself.
    #[arg(long)]
    balance: bool,
    /// Streams of a cluster get another number of copies, some of them from one on; in the end all have several.
    #[arg(long)]
    change_copies: bool,
    /// The coordinators of a cluster have their log on their disks, and elect who leads by what is there.
    #[arg(long)]
    coordinator_disks: bool,
    /// Connections of a cluster with clients take one answer at a time, and hold others back until it is sent.
    #[arg(long)]
    narrow: bool,
    /// Nodes of a cluster that are stopped in good order answer first what is under way.
    #[arg(long)]
    finish: bool,
    /// Nodes of a cluster know some of what the coordinators decide from snapshots, and are told of it so.
    #[arg(long)]
    snapshots: bool,
    /// Nodes of a cluster are told in pieces of what becomes true, and anything may happen between two of them.
    #[arg(long)]
    in_pieces: bool,
    /// Backups of a cluster say little of lanes in one answer, so that who takes over asks for it in parts.
    #[arg(long)]
    tell_little: bool,
    /// What streams of a cluster are like: `usual`, `consumed` (kept until they are read), `unordered` (`order = none`), `one-copy`, `async` (producers do
    /// not wait for copies), `compacted` or `compacted-consumed`; applications always read those that are consumed or unordered.
    #[arg(long, default_value = "usual")]
    streams: String,
    /// A defect that is put into a cluster, by the name that `nodes::Planted` gives it: to see what is found of it.
    #[arg(long)]
    planted: Option<String>,
    /// One object a run, and one for all, as lines of JSON.
    #[arg(long)]
    json: bool,
}

/// How many of something without which nothing is run: that would end well, and show nothing.
fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("it is 1 at least: without a run nothing is shown".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("it is a whole number, 1 at least: {error}")),
    }
}

/// The faults of these names.
fn named<F: Copy>(all: &[F], name: impl Fn(F) -> &'static str, wanted: &[String]) -> Result<Vec<F>, String> {
    let of = |word: &String| {
        all.iter().copied().find(|fault| name(*fault) == word).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|fault| name(*fault)).collect();
            format!("there is no fault `{word}`; there are {}", names.join(", "))
        })
    };
    wanted.iter().map(of).collect()
}

/// The faults that are asked for: of one node, and of a cluster.
fn faults(arguments: &Arguments) -> Result<(Vec<cluster::Fault>, Vec<nodes::Fault>), String> {
    if !arguments.cluster {
        return Ok((named(cluster::Fault::ALL, cluster::Fault::name, &arguments.only)?, Vec::new()));
    }
    let of_cluster = named(nodes::Fault::ALL, nodes::Fault::name, &arguments.only)?;
    // It would never happen, and every seed would pass.
    let has_disks = arguments.coordinator_disks && !of_cluster.contains(&nodes::Fault::Remove);
    if of_cluster.contains(&nodes::Fault::LogRot) && !has_disks {
        return Err(
            "`log-rot` changes what coordinators have on their disks, which is something with --coordinator-disks \
             and without `remove` only"
                .to_owned(),
        );
    }
    let is_certain = !arguments.change_copies && !["one-copy", "async"].contains(&arguments.streams.as_str());
    let gives_up = [nodes::Fault::LastCopy, nodes::Fault::BlocksLost].iter().any(|fault| of_cluster.contains(fault));
    let may_lose_majority = has_disks && is_certain && !gives_up;
    if of_cluster.contains(&nodes::Fault::MajorityLost) && !may_lose_majority {
        return Err(
            "`majority-lost` needs --coordinator-disks, and streams with copies that producers wait for: it is not \
             played with `remove`, `last-copy`, `blocks-lost`, --change-copies, and --streams `one-copy` or `async`"
                .to_owned(),
        );
    }
    if of_cluster.contains(&nodes::Fault::BlocksLost) && (arguments.streams != "usual" || arguments.change_copies) {
        return Err("`blocks-lost` is played with --streams `usual` and without --change-copies only".to_owned());
    }
    if of_cluster.contains(&nodes::Fault::Unopened) && arguments.streams == "one-copy" {
        return Err("`unopened` is about what others take over, which nobody does where there is one copy".to_owned());
    }
    check_told(arguments, &of_cluster)?;
    Ok((Vec::new(), of_cluster))
}

/// Whether what nodes are told in pieces is played with the rest that is asked for, and streams that come and go.
fn check_told(arguments: &Arguments, only: &[nodes::Fault]) -> Result<(), String> {
    use nodes::Fault::{BlocksLost, ChangeCopies, DeleteStream, LastCopy, MajorityLost, MakeStream, Remove};
    let is_usual = arguments.streams == "usual" && !arguments.change_copies && !only.contains(&ChangeCopies);
    let has = |faults: &[nodes::Fault]| faults.iter().any(|fault| only.contains(fault));
    let comes_and_goes = has(&[MakeStream, DeleteStream]);
    if (comes_and_goes || arguments.in_pieces) && (!is_usual || has(&[LastCopy, BlocksLost, MajorityLost, Remove])) {
        return Err(
            "`make-stream`, `delete-stream` and --in-pieces are played with --streams `usual` and without --change-copies, \
             `remove`, `last-copy`, `blocks-lost` and `majority-lost` only"
                .to_owned(),
        );
    }
    if has(&[DeleteStream]) && !has(&[MakeStream]) {
        return Err("`delete-stream` deletes what `make-stream` has made: without that it does nothing".to_owned());
    }
    Ok(())
}

/// The defect of this name.
fn defect(wanted: &str) -> Result<nodes::Planted, String> {
    nodes::Planted::ALL.iter().copied().find(|planted| planted.name() == wanted).ok_or_else(|| {
        let names: Vec<String> = nodes::Planted::ALL.iter().map(|planted| planted.name()).collect();
        format!("there is no defect `{wanted}`; there are {}", names.join(", "))
    })
}

/// What streams are like, by name.
fn kind(wanted: &str) -> Result<nodes::Kind, String> {
    nodes::Kind::ALL.iter().copied().find(|kind| kind.name() == wanted).ok_or_else(|| {
        let names: Vec<&str> = nodes::Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("streams cannot be `{wanted}`; they can be {}", names.join(", "))
    })
}

/// A run, as far as the command tells of it.
struct Done {
    json: serde_json::Value,
    faults: u64,
    checks: u64,
    simulated_ms: u64,
    violation: Option<String>,
}

fn run_node(arguments: &Arguments, only: &[cluster::Fault], seed: u64) -> Done {
    let plan = cluster::Plan {
        trouble_ms: arguments.trouble_s * 1000,
        records: arguments.records,
        only: only.to_vec(),
        ..cluster::Plan::new(seed)
    };
    let report = cluster::run(&plan);
    Done {
        json: serde_json::json!({
            "seed": report.seed, "trace": format!("{:016x}", report.trace), "events": report.events,
            "simulated_ms": report.simulated_ms, "acknowledged": report.acknowledged, "checks": report.checks,
            "faults": report.faults, "starts": report.starts, "violation": report.violation,
        }),
        faults: report.faults.values().sum(),
        checks: report.checks,
        simulated_ms: report.simulated_ms,
        violation: report.violation,
    }
}

fn run_cluster(
    arguments: &Arguments,
    only: &[nodes::Fault],
    (kind, planted): (nodes::Kind, Option<nodes::Planted>),
    seed: u64,
) -> Done {
    let plan = nodes::Plan {
        trouble_ms: arguments.trouble_s * 1000,
        records: arguments.records,
        three: arguments.three,
        eager: arguments.eager,
        impatient: arguments.impatient,
        fault_us: arguments.fault_ms * 1000,
        only: only.to_vec(),
        retention: !arguments.keep,
        retention_bytes: arguments.retention_bytes,
        applications: arguments.applications,
        balances: arguments.balance,
        changes_copies: arguments.change_copies,
        coordinator_disks: arguments.coordinator_disks,
        narrow: arguments.narrow,
        finishes: arguments.finish,
        sends_snapshots: arguments.snapshots,
        in_pieces: arguments.in_pieces,
        tells_little: arguments.tell_little,
        kind,
        planted,
        ..nodes::Plan::new(seed)
    };
    let report = nodes::run(&plan);
    Done {
        json: serde_json::json!({
            "seed": report.seed, "trace": format!("{:016x}", report.trace), "events": report.events,
            "simulated_ms": report.simulated_ms, "acknowledged": report.acknowledged, "checks": report.checks,
            "faults": report.faults, "did": report.did, "violation": report.violation,
        }),
        faults: report.faults.values().sum(),
        checks: report.checks,
        simulated_ms: report.simulated_ms,
        violation: report.violation,
    }
}

fn refused(reason: &str) -> ExitCode {
    eprintln!("kera-sim: {reason}");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.cluster && cfg!(panic = "abort") {
        return refused(
            "--cluster ends threads by unwinding them, which this build cannot; use `cargo run --profile sim -p kera-sim`",
        );
    }
    let (of_node, of_cluster) = match faults(&arguments) {
        Ok(faults) => faults,
        Err(reason) => return refused(&reason),
    };
    let planted = match arguments.planted.as_deref().map(defect).transpose() {
        Ok(planted) => planted,
        Err(reason) => return refused(&reason),
    };
    let kind = match kind(&arguments.streams) {
        Ok(kind) => kind,
        Err(reason) => return refused(&reason),
    };
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
        let done = match arguments.cluster {
            true => run_cluster(&arguments, &of_cluster, (kind, planted), seed),
            false => run_node(&arguments, &of_node, seed),
        };
        runs += 1;
        faults += done.faults;
        checks += done.checks;
        simulated_ms += done.simulated_ms;
        if let Some(violation) = &done.violation {
            failed += 1;
            bar.suspend(|| eprintln!("seed {seed}: {violation}"));
        }
        if arguments.json {
            println!("{}", done.json);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// It would end well, and show nothing.
    #[test]
    fn no_runs_at_all_are_refused() {
        let why = |words: [&str; 2]| {
            let parsed = Arguments::try_parse_from(["kera-sim"].iter().chain(&words));
            parsed.err().map(|error| error.to_string()).unwrap_or_default()
        };
        for words in [["--seeds", "0"], ["--minutes", "0"]] {
            let refused = why(words);
            assert!(refused.contains(words[0]) && refused.contains("1 at least"), "{refused}");
        }
        // No seed comes behind the last one.
        assert!(why(["--from", "18446744073709551615"]).contains("--from"));
        assert_eq!(why(["--seeds", "1"]), "");
        assert_eq!(why(["--minutes", "1"]), "");
        assert_eq!(why(["--from", "18446744073709551614"]), "");
    }

    /// A run of it would pass and show nothing.
    #[test]
    fn a_fault_of_disks_that_coordinators_do_not_have_is_refused() {
        let asked = |words: &[&str]| faults(&Arguments::parse_from(["kera-sim"].iter().chain(words)));
        let refused = asked(&["--cluster", "--only", "kill,log-rot"]).expect_err("they have no disks");
        assert!(refused.contains("--coordinator-disks"), "{refused}");
        assert!(asked(&["--cluster", "--coordinator-disks", "--only", "log-rot,remove"]).is_err());
        let of = asked(&["--cluster", "--coordinator-disks", "--only", "kill,log-rot"]).expect("they have");
        assert_eq!(of.1, [nodes::Fault::Kill, nodes::Fault::LogRot]);
        assert!(asked(&["--only", "log-rot"]).is_err(), "one node has no such log");
        let lost = |more: &[&str]| {
            let mut words = vec!["--cluster", "--only", "majority-lost,kill"];
            words.extend(more);
            asked(&words).map(|(_, of_cluster)| of_cluster)
        };
        assert_eq!(
            lost(&["--coordinator-disks"]).expect("they have disks"),
            [nodes::Fault::MajorityLost, nodes::Fault::Kill]
        );
        assert!(lost(&[]).expect_err("they have no disks").contains("--coordinator-disks"));
        assert!(lost(&["--coordinator-disks", "--change-copies"]).is_err());
        assert!(lost(&["--coordinator-disks", "--streams", "async"]).is_err());
        assert!(asked(&["--cluster", "--coordinator-disks", "--only", "majority-lost,blocks-lost"]).is_err());
        assert!(asked(&["--cluster", "--only", "blocks-lost", "--streams", "compacted"]).is_err());
        assert_eq!(asked(&["--cluster", "--only", "blocks-lost"]).expect("usual").1, [nodes::Fault::BlocksLost]);
        assert!(asked(&["--cluster", "--only", "unopened", "--streams", "one-copy"]).is_err());
        assert_eq!(asked(&["--cluster", "--only", "unopened"]).expect("copies").1, [nodes::Fault::Unopened]);
        assert!(asked(&["--cluster", "--only", "delete-stream,kill"]).is_err(), "nobody makes one");
        assert!(asked(&["--cluster", "--only", "make-stream,kill", "--streams", "async"]).is_err());
        assert!(asked(&["--cluster", "--in-pieces", "--only", "kill,remove"]).is_err());
        let made = asked(&["--cluster", "--in-pieces", "--only", "make-stream,delete-stream"]).expect("usual").1;
        assert_eq!(made, [nodes::Fault::MakeStream, nodes::Fault::DeleteStream]);
        assert!(asked(&["--cluster"]).expect("all but those that have runs of their own").1.is_empty());
    }
}
