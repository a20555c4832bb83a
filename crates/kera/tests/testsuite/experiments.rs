//! Every experiment in a tiny mode, with the real binary and no peers: so that none of them rots.

use std::path::{Path, PathBuf};

use kera_bench::experiment::definition::{Experiment, load_all};
use kera_bench::experiment::metric::{Limit, Metric};
use kera_bench::experiment::profile::Phase;
use kera_bench::experiment::ratios;
use kera_bench::experiment::report;
use kera_bench::experiment::results::{Line, Results, Writer};
use kera_bench::experiment::run::{Options, Size, header, run};
use kera_bench::experiment::stop::Stop;
use kera_bench::experiment::systems::{self, Opened, Places};
use kera_bench::experiment::workload::Safety;

fn all() -> Vec<Experiment> {
    load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")).expect("every file can be read")
}

fn places(dir: &Path) -> Places {
    let kera = PathBuf::from(env!("CARGO_BIN_EXE_kera"));
    Places { kera, peers: dir.join("none"), dir: dir.to_owned(), quick: true }
}

/// Runs experiments as small as they get and reads what was written.
fn tiny(experiments: &[Experiment], dir: &Path, profile: bool) -> Results {
    let Opened { systems: mut kera, missing } = systems::open(&[], &places(dir)).expect("the binary runs");
    let mut writer = Writer::create(&dir.join("results"), header(vec![], Size::Tiny)).unwrap();
    let options = Options { dir: dir.to_owned(), size: Size::Tiny, profile, ..Options::default() };
    let mut sink = |line: Line| writer.write(&line);
    run(experiments, &mut kera, &missing, &options, &Stop::new(), &mut sink, &mut |_| ()).expect("nobody interrupts");
    drop(kera);
    assert!(!dir.join("kera").exists(), "what the node had is gone");
    Results::read(&dir.join("results")).expect("what was written can be read")
}

/// Half of those of one node each, so that they run side by side.
fn every_nth_runs(n: usize) {
    let of_one_node = all().into_iter().filter(|experiment| !experiment.is_of_a_cluster());
    all_run(of_one_node.enumerate().filter(|(i, _)| i % 2 == n).map(|(_, e)| e).collect());
}

fn all_run(chosen: Vec<Experiment>) {
    let dir = tempfile::tempdir().unwrap();
    let results = tiny(&chosen, dir.path(), false);
    assert_eq!(results.experiments.len(), chosen.len());
    for experiment in &chosen {
        let name = &experiment.name;
        let skipped: Vec<_> = results.skipped.iter().filter(|skipped| skipped.experiment == *name).collect();
        let points = results.points(experiment);
        if experiment.needs.is_some() {
            assert!(points.is_empty() && skipped.len() == 1 && skipped[0].why.contains("needs"), "{name}: {skipped:?}");
            continue;
        }
        assert!(skipped.is_empty() && !points.is_empty(), "{name}: {skipped:?}");
        for (series, x, workload) in points {
            for &metric in &experiment.plots {
                let figure = results.figure(experiment, &series, x, "kera", metric);
                // A run of a thousand records may be over before the kernel has counted any time of the server's.
                let may_be_zero = metric == Metric::ServerNsPerRecord;
                let is_there = figure.is_some_and(|figure| figure.median > 0.0 || may_be_zero);
                assert!(is_there, "{name} {series} {x} {metric:?}: {figure:?}");
            }
            for &limit in &experiment.limits {
                let found = experiment.plots.iter().any(|m| results.limit(name, &workload, limit, *m).is_some());
                let safe = workload.durability == Safety::Power;
                assert!(found || (limit == Limit::DiskSync && !safe), "{name}: {limit:?}");
            }
        }
    }
}

#[test]
fn one_half_of_the_experiments_runs() {
    every_nth_runs(0);
}

#[test]
fn the_other_half_runs() {
    every_nth_runs(1);
}

#[test]
fn those_of_a_cluster_run() {
    let chosen: Vec<Experiment> = all().into_iter().filter(Experiment::is_of_a_cluster).collect();
    assert!(chosen.len() >= 8 && chosen.iter().any(|experiment| experiment.name == "icdcs-fig6"));
    all_run(chosen);
}

#[test]
fn a_profile_of_a_cluster_adds_its_nodes_up() {
    let mut chosen: Vec<Experiment> = all().into_iter().filter(|e| e.name == "thesis-fig8-16").collect();
    chosen[0].sweep.quick.truncate(1);
    let dir = tempfile::tempdir().unwrap();
    let results = tiny(&chosen, dir.path(), true);
    let runs = results.runs.iter().map(|run| run.figures["bytes"].as_f64().unwrap_or(0.0));
    let bytes = runs.fold(f64::MAX, f64::min);
    assert!(results.profiles.len() == 1 && bytes > 0.0, "{:?}", results.skipped);
    let profile = &results.profiles[0];
    let moved = |phase: Phase| -> f64 {
        let rates = profile.phases.get(&phase).cloned().unwrap_or_default();
        let ends = std::iter::once(0.0).chain(profile.at_s.iter().copied());
        rates.iter().zip(profile.at_s.iter().zip(ends)).map(|(rate, (end, begin))| rate * (end - begin)).sum::<f64>()
            * 1048576.0
    };
    // Eight streamlets have owners on all three nodes, and each of them only part of the bytes.
    assert!(moved(Phase::Append) >= bytes * 0.9, "{} of {bytes}: {:?}", moved(Phase::Append), profile.phases);
    assert!(moved(Phase::Replication) >= bytes * 0.9, "{} of {bytes}", moved(Phase::Replication));
    assert!(
        profile.threads.keys().any(|group| group.starts_with("server kera-backup")),
        "{:?}",
        profile.threads.keys()
    );
}

#[test]
fn the_figures_of_the_papers_are_all_listed() {
    let all = all();
    let follows: Vec<&str> = all.iter().map(|experiment| experiment.follows.as_str()).collect();
    let figures = [4, 5, 6, 7].map(|n| format!("ICDCS 2018, figure {n}"));
    let more = [3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 17].map(|n| format!("figure 8.{n}"));
    for figure in figures.iter().chain(&more) {
        assert!(
            follows.iter().any(|follows| follows.contains(figure.as_str())),
            "{figure} is followed by no experiment"
        );
    }
    assert!(all.iter().any(|experiment| experiment.tour));
}

#[test]
fn a_report_has_every_plot_every_profile_and_everything_that_was_left_out() {
    let wanted = ["thesis-fig8-4", "thesis-fig8-5", "durability"];
    let mut chosen: Vec<Experiment> = all().into_iter().filter(|e| wanted.contains(&e.name.as_str())).collect();
    let absent = chosen.iter_mut().find(|experiment| experiment.name == "thesis-fig8-5").unwrap();
    absent.needs = Some("a machine that is not there".into());
    let dir = tempfile::tempdir().unwrap();
    let results = tiny(&chosen, dir.path(), true);
    assert!(!results.profiles.is_empty());
    let written = report::write(&results, dir.path()).unwrap();
    let html = std::fs::read_to_string(&written.html).unwrap();
    let markdown = std::fs::read_to_string(&written.markdown).unwrap();
    for experiment in chosen.iter().filter(|experiment| experiment.needs.is_none()) {
        assert!(html.contains(&experiment.title) && markdown.contains(&experiment.title));
    }
    let plots: usize = chosen.iter().filter(|e| e.needs.is_none()).map(|e| e.plots.len()).sum();
    assert!(html.matches("<svg").count() > plots, "a plot for each metric, and the profiles");
    for text in ["thesis-fig8-5", "a machine that is not there", "Where the time goes", "survives loss of power"] {
        assert!(html.contains(text), "{text} is missing");
    }
    assert!(!html.contains("http://") || !html.contains("<script"), "nothing is fetched");
    for setup in ["At all points: ", "record 100 B", "rounds 1"] {
        assert!(markdown.contains(setup), "{setup} is missing");
    }
    assert!(html.contains("<div class=setup>") && html.contains("<b>Machine</b>"));
    let pictures: Vec<&str> = markdown.lines().filter(|line| line.starts_with("![")).collect();
    assert!(!pictures.is_empty(), "no picture is named");
    for line in pictures {
        let path = line.split(['(', ')']).nth(1).unwrap();
        assert!(dir.path().join(path).is_file(), "{path} is not there");
    }
    let recorded = ratios::of(&results);
    assert!(recorded.ratios.iter().all(|ratio| ratio.against.starts_with("limit")) && !recorded.ratios.is_empty());
    let same = ratios::compare(&recorded, &recorded);
    assert!(same.iter().all(|change| change.verdict == ratios::Verdict::Same));
}
