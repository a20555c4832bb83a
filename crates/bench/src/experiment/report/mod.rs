//! Reports of results: one HTML file with everything in it, and Markdown with the plots beside it. Only raw results go in, so a
//! report can be made again whenever it is to look better.

mod glance;
mod html;
mod markdown;
mod plot;

use std::path::{Path, PathBuf};

use super::definition::Experiment;
use super::metric::{Limit, Metric, axis_value, bytes, count, micros};
use super::profile::{Phase, Profile};
use super::ratios::{self, Ratio};
use super::results::{Budget, Results, Run, Skipped};
use super::sample::Bound;
use super::workload::Workload;
use crate::BenchError;
use plot::{LimitLine, LineOf, Panel, Plot};

/// The share of a rate that counts as having kept it.
const KEPT: f64 = 0.95;

/// A thread that waits this much longer than it wanted to, at a rate that leaves cores free, was kept from running.
const STALL_MS_MIN: f64 = 10.0;
/// It is told where it may be what a latency is made of.
const STALL_SHARE: f64 = 0.3;

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// For people with a browser.
    pub html: PathBuf,
    /// For documents.
    pub markdown: PathBuf,
}

/// Writes `report.html`, `report.md` and `plots/` into a folder.
pub fn write(results: &Results, dir: &Path) -> Result<Written, BenchError> {
    let report = Report::new(results);
    let plots = dir.join("plots");
    std::fs::create_dir_all(&plots).map_err(|e| BenchError::io_at("creating", &plots, e))?;
    let put = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).map_err(|e| BenchError::io_at("writing", &path, e)).map(|()| path)
    };
    for picture in report.sections.iter().flat_map(|section| section.pictures.iter().chain(&section.profile_pictures)) {
        put(plots.join(format!("{}.svg", picture.name)), &picture.svg)?;
    }
    if let Some(glance) = &report.glance {
        put(plots.join("glance.svg"), glance)?;
    }
    let html = put(dir.join("report.html"), &html::page(&report))?;
    let markdown = put(dir.join("report.md"), &markdown::page(&report))?;
    Ok(Written { html, markdown })
}

/// What both kinds of report say.
struct Report<'a> {
    results: &'a Results,
    sections: Vec<Section<'a>>,
    /// KerA against each peer, all experiments in one picture.
    glance: Option<String>,
    /// Experiments that were not run at all, and peers that were left out everywhere.
    skipped: Vec<&'a Skipped>,
}

struct Section<'a> {
    experiment: &'a Experiment,
    /// Knobs and their values, as they were measured.
    setup: Vec<(String, String)>,
    /// The result in a sentence.
    headline: String,
    pictures: Vec<Picture>,
    table: Table,
    costs: Table,
    /// System and what its acknowledgements mean.
    guarantees: Vec<(String, String)>,
    /// What has to be known about single points.
    notes: Vec<String>,
    skipped: Vec<&'a Skipped>,
    /// One command of each system, to do it again.
    commands: Vec<(String, String)>,
    profile_pictures: Vec<Picture>,
    waits: Vec<[String; 6]>,
}

struct Picture {
    name: String,
    about: String,
    svg: String,
}

struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// What a system is called.
fn name_of(system: &str) -> &str {
    match system {
        "kera" => "KerA",
        "kafka" => "Kafka",
        "kafka-java" => "Kafka (Java clients)",
        "nats" => "NATS JetStream",
        "redis" => "Redis Streams",
        other => other,
    }
}

impl<'a> Report<'a> {
    fn new(results: &'a Results) -> Report<'a> {
        let ratios = ratios::of(results).ratios;
        let ran = |experiment: &&Experiment| results.runs.iter().any(|run| run.experiment == experiment.name);
        let sections = results.experiments.iter().filter(ran).map(|experiment| section(results, experiment, &ratios));
        let sections: Vec<Section<'_>> = sections.collect();
        let elsewhere =
            |skipped: &&Skipped| !sections.iter().any(|section| section.experiment.name == skipped.experiment);
        let mut skipped: Vec<&Skipped> = results.skipped.iter().filter(elsewhere).collect();
        // Once, not for each of its points.
        let mut said = std::collections::BTreeSet::new();
        skipped.retain(|one| said.insert((&one.experiment, &one.system, &one.why)));
        let glance = glance::draw(sections.iter().map(|section| section.experiment), &ratios);
        Report { results, sections, glance, skipped }
    }

    /// Systems, versions and settings.
    fn systems(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let (kera, peers): (Vec<_>, Vec<_>) = self.results.systems.iter().partition(|(name, _)| *name == "kera");
        kera.into_iter()
            .chain(peers)
            .map(|(name, (version, settings))| (name_of(name), version.as_str(), settings.as_str()))
    }

    /// Of runs that kept to a time: how far they came.
    fn budgets(&self) -> Vec<String> {
        self.results.budgets.iter().map(kept_to).collect()
    }

    fn machine(&self) -> String {
        let machine = &self.results.header.machine;
        let memory = bytes(machine.memory_bytes as f64);
        format!("{}, {} cores, {memory}, Linux {}", machine.processor, machine.cores, machine.kernel)
    }
}

/// What has to be known about single runs at a point.
fn notes(results: &Results, experiment: &Experiment, (series, x, workload): &(String, f64, Workload)) -> Vec<String> {
    let here = |run: &&Run| run.experiment == experiment.name && run.series == *series && run.x == *x;
    let note = |run: &Run| {
        let who = format!("{}, {}, round {}", name_of(&run.system), point_name(experiment, series, *x), run.round + 1);
        notes_on(&run.figures, workload.rate.is_some()).into_iter().map(move |note| format!("{who}: {note}"))
    };
    results.runs.iter().filter(here).flat_map(note).collect()
}

/// What consumers did not get is part of no rate; and a time in which the machine let a waiting thread stand is part of the latencies of
/// whatever was measured meanwhile.
fn notes_on(figures: &serde_json::Value, at_a_rate: bool) -> Vec<String> {
    let at = |pointer: &str| figures.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let (removed, stall_ms) = (at("/consume/removed"), at("/stall_ms"));
    let p99_ms = at("/latency_us/p99").max(at("/consume/latency_us/p99")) / 1e3;
    let mut notes = Vec::new();
    if removed > 0.0 {
        notes.push(format!("{} records were gone before consumers had read them (kept_bytes)", count(removed)));
    }
    if at_a_rate && p99_ms >= STALL_MS_MIN && stall_ms >= STALL_MS_MIN.max(p99_ms * STALL_SHARE) {
        let p99 = micros(p99_ms * 1e3);
        notes.push(format!(
            "the machine let a waiting thread stand for up to {stall_ms:.0} ms meanwhile; 99 of 100 took up to {p99}"
        ));
    }
    notes
}

/// How far a run came that kept to a time; what is missing only if something is.
fn kept_to(budget: &Budget) -> String {
    let Budget { minutes, took_minutes, planned, measured } = *budget;
    let kept = format!("Kept to {} minutes (it took {took_minutes:.1})", (minutes * 10.0).round() / 10.0);
    if measured >= planned {
        return format!("{kept}: all {planned} measurements.");
    }
    format!(
        "{kept}: {measured} of {planned} measurements. First rounds came first; what is missing is further rounds, whose points have no \
         spread, and what is listed as left out."
    )
}

fn section<'a>(results: &'a Results, experiment: &'a Experiment, ratios: &[Ratio]) -> Section<'a> {
    let name = &experiment.name;
    let mut section = Section {
        experiment,
        setup: setup(results, experiment),
        headline: headline(results, experiment, ratios),
        pictures: experiment.plots.iter().filter_map(|&metric| picture(results, experiment, metric)).collect(),
        table: table(results, experiment, ratios),
        costs: costs(results, experiment),
        guarantees: vec![],
        notes: results.points(experiment).iter().flat_map(|at| notes(results, experiment, at)).collect(),
        skipped: results.skipped.iter().filter(|skipped| skipped.experiment == *name).collect(),
        commands: vec![],
        profile_pictures: vec![],
        waits: vec![],
    };
    for run in results.runs.iter().filter(|run| run.experiment == *name) {
        let guarantee = (name_of(&run.system).to_owned(), run.guarantees.clone());
        if !section.guarantees.contains(&guarantee) {
            section.guarantees.push(guarantee);
        }
        let system = name_of(&run.system);
        if !run.command.is_empty() && !section.commands.iter().any(|(of, _)| of == system) {
            section.commands.push((system.to_owned(), run.command.join(" ")));
        }
    }
    for (n, profile) in results.profiles.iter().filter(|profile| profile.experiment == *name).enumerate() {
        section.profile_pictures.extend(profile_picture(experiment, profile, n));
        let at = point_name(experiment, &profile.series, profile.x);
        section.waits.extend(profile.waits.iter().map(|wait| {
            [
                format!("{} {at}", name_of(&profile.system)),
                wait.phase.label().to_owned(),
                format!("{:.0} %", wait.active * 100.0),
                format!("{:.0}", wait.mib_per_s),
                format!("{:.2}", wait.cores),
                wait.waits_for.clone(),
            ]
        }));
    }
    section
}

/// What was done at all points: knobs whose value they share, the axis, and how often.
fn setup(results: &Results, experiment: &Experiment) -> Vec<(String, String)> {
    let points = results.points(experiment);
    let tables = points.iter().filter_map(|(_, _, workload)| toml::Table::try_from(workload).ok());
    let tables: Vec<toml::Table> = tables.collect();
    let Some(first) = tables.first() else { return vec![] };
    let mut said = Vec::new();
    for (knob, value) in first {
        let is_shared = tables.iter().all(|table| table.get(knob) == Some(value));
        // What follows from another knob says nothing more.
        let follows = matches!(knob.as_str(), "clients" | "chunks_bytes_in_all" | "request_chunks");
        let unused = match knob.as_str() {
            "fill_mib" => first.get("mode").and_then(toml::Value::as_str) != Some("restart"),
            "records" => first.get("mode").and_then(toml::Value::as_str) != Some("consume"),
            "consumers" => first.get("mode").and_then(toml::Value::as_str) != Some("both"),
            _ => false,
        };
        if is_shared && *knob != experiment.sweep.knob && !follows && !unused {
            let unit = ["_bytes", "_ms", "_mib"].iter().find_map(|unit| knob.strip_suffix(unit));
            said.push((unit.unwrap_or(knob).replace('_', " "), knob_value(knob, value)));
        }
    }
    let count = results.runs.iter().filter(|run| run.experiment == experiment.name).map(|run| run.round + 1).max();
    said.push(("rounds".into(), count.unwrap_or(0).to_string()));
    said
}

fn knob_value(knob: &str, value: &toml::Value) -> String {
    let number = value.as_integer().map(|whole| whole as f64).or(value.as_float());
    match (number, value) {
        (Some(number), _) => axis_value(knob, number).replace(".00 ", " "),
        (None, toml::Value::Boolean(on)) => if *on { "yes" } else { "no" }.into(),
        (None, other) => other.as_str().unwrap_or_default().to_owned(),
    }
}

fn point_name(experiment: &Experiment, series: &str, x: f64) -> String {
    let value = format!("{} {}", experiment.sweep.label, axis_value(&experiment.sweep.knob, x));
    if series.is_empty() { value } else { format!("{series}, {value}") }
}

/// The same below the axis' name.
fn place_name(experiment: &Experiment, series: &str, x: f64) -> String {
    let value = axis_value(&experiment.sweep.knob, x);
    if series.is_empty() { value } else { format!("{value}, {series}") }
}

/// KerA against each peer and limit, over all points; where there is neither, what it did.
fn headline(results: &Results, experiment: &Experiment, ratios: &[Ratio]) -> String {
    let here: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.experiment == experiment.name).collect();
    let mut names: Vec<&str> = Vec::new();
    here.iter().for_each(|ratio| {
        if !names.contains(&ratio.against.as_str()) {
            names.push(&ratio.against);
        }
    });
    let says = names.iter().map(|name| {
        let of = here.iter().filter(|ratio| ratio.against == *name).map(|ratio| ratio.ratio);
        let (least, most) = of.fold((f64::MAX, 0.0f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
        if let Some(limit) = name.strip_prefix("limit: ") {
            let (least, most) = (percent(least), percent(most));
            if least == most { format!("{least} of {limit}") } else { format!("{least} to {most} of {limit}") }
        } else {
            let (least, most) = (times(least), times(most));
            let range = if least == most { least } else { format!("{least} to {most}") };
            format!("{range} × {}", name_of(name))
        }
    });
    let says: Vec<String> = says.collect();
    let metric = experiment.plots[0];
    if !says.is_empty() {
        return format!("KerA: {} ({})", says.join("; "), metric.label());
    }
    let points = results.points(experiment);
    let figures = points.iter().filter_map(|(series, x, _)| results.figure(experiment, series, *x, "kera", metric));
    let (least, most) = figures.fold((f64::MAX, 0.0f64), |(least, most), s| (least.min(s.median), most.max(s.median)));
    let (least, most) = (metric.show(least), metric.show(most));
    if least == most {
        format!("KerA: {least} ({})", metric.label())
    } else {
        format!("KerA: {least} to {most} ({})", metric.label())
    }
}

fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 10.0 => format!("{r:.1}"),
        r => format!("{r:.2}"),
    }
}

fn percent(ratio: f64) -> String {
    if ratio < 0.02 { format!("{:.1} %", ratio * 100.0) } else { format!("{:.0} %", ratio * 100.0) }
}

/// Values of the axis that were measured, in order.
fn axis(points: &[(String, f64, Workload)]) -> Vec<f64> {
    let mut values: Vec<f64> = points.iter().map(|(_, x, _)| *x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn picture(results: &Results, experiment: &Experiment, metric: Metric) -> Option<Picture> {
    let points = results.points(experiment);
    let values = axis(&points);
    let place = |x: f64| values.iter().position(|value| *value == x).unwrap_or(0);
    let mut series: Vec<&str> = Vec::new();
    points.iter().for_each(|(name, _, _)| {
        if !series.contains(&name.as_str()) {
            series.push(name);
        }
    });
    let (mut lines, mut limits) = (Vec::new(), Vec::new());
    for system in results.systems_of(&experiment.name) {
        for (nth, name) in series.iter().enumerate() {
            let of_line = points.iter().filter(|(series, _, _)| series == name);
            let figures = of_line.filter_map(|(_, x, workload)| {
                let spread = results.figure(experiment, name, *x, &system, metric)?;
                let client =
                    workload.rate.is_none() && bound(results, experiment, name, *x, &system) == Some(Bound::Client);
                Some((place(*x), spread, client && !metric.is_cost()))
            });
            let figures: Vec<_> = figures.collect();
            if !figures.is_empty() {
                let label =
                    if name.is_empty() { name_of(&system).to_owned() } else { format!("{}: {name}", name_of(&system)) };
                lines.push(LineOf { label, colour: plot::colour(&system, nth), points: figures });
            }
        }
    }
    for &limit in &experiment.limits {
        limits.extend(limit_lines(&series, limit, &|name| {
            let of_line = points.iter().filter(|(series, _, _)| series == name);
            let values = of_line.filter_map(|(_, x, workload)| {
                Some((place(*x), results.limit(&experiment.name, workload, limit, metric)?))
            });
            values.collect()
        }));
    }
    let ticks = values.iter().map(|x| axis_value(&experiment.sweep.knob, *x)).collect();
    let svg = plot::draw(&Plot {
        title: metric.label().to_owned(),
        axis: experiment.sweep.label.clone(),
        ticks,
        lines,
        limits,
        show: &|value| metric.show(value),
    })?;
    let name = serde_json::to_value(metric).ok()?.as_str()?.to_owned();
    let about = format!("{}: {}", experiment.title, metric.label());
    Some(Picture { name: format!("{}-{name}", experiment.name), about, svg })
}

/// A limit as a line: one for all series if it is the same for them, or one for each that it differs for, as with more copies.
fn limit_lines(series: &[&str], limit: Limit, of_series: &dyn Fn(&str) -> Vec<(usize, f64)>) -> Vec<LimitLine> {
    let mut found: Vec<(&str, Vec<(usize, f64)>)> = Vec::new();
    for name in series {
        let line = of_series(name);
        let agrees = |known: &[(usize, f64)]| {
            line.iter().all(|(place, value)| known.iter().all(|(other, known)| other != place || known == value))
        };
        if line.is_empty() {
            continue;
        }
        if let Some((_, known)) = found.iter_mut().find(|(_, known)| agrees(known)) {
            let new: Vec<_> = line.iter().filter(|point| !known.contains(point)).copied().collect();
            known.extend(new);
            known.sort_by_key(|(place, _)| *place);
        } else {
            found.push((name, line));
        }
    }
    let differ = found.len() > 1;
    let lines = found.into_iter().map(|(name, points)| {
        let label = if differ { format!("{}, {name}", limit.label()) } else { limit.label().to_owned() };
        LimitLine { label, points }
    });
    lines.collect()
}

/// What held most runs of a point back.
fn bound(results: &Results, experiment: &Experiment, series: &str, x: f64, system: &str) -> Option<Bound> {
    let main = *experiment.plots.first()?;
    let runs = results.runs_at(&experiment.name, series, x, system, main);
    let times = |bound: Bound| runs.iter().filter(|run| run.bound == bound).count();
    runs.iter().map(|run| run.bound).max_by_key(|bound| times(*bound))
}

fn table(results: &Results, experiment: &Experiment, ratios: &[Ratio]) -> Table {
    let systems = results.systems_of(&experiment.name);
    let Some(&metric) = experiment.plots.first() else { return Table { head: vec![], rows: vec![] } };
    let mut head = vec![experiment.sweep.label.clone()];
    head.extend(systems.iter().map(|system| format!("{}: {}", name_of(system), metric.label())));
    head.push("KerA ÷ peers and limits".to_owned());
    let mut rows = Vec::new();
    for (series, x, _) in results.points(experiment) {
        let mut row = vec![place_name(experiment, &series, x)];
        for system in &systems {
            let figure = results.figure(experiment, &series, x, system, metric);
            row.push(figure.map_or("-".into(), |spread| {
                let around = match spread.count {
                    1 => String::new(),
                    _ => format!(" ({} to {})", metric.show(spread.least), metric.show(spread.most)),
                };
                format!("{}{around}", metric.show(spread.median))
            }));
        }
        let here = ratios.iter().filter(|r| r.experiment == experiment.name && r.series == series && r.x == x);
        let against = here.map(|ratio| match ratio.against.strip_prefix("limit: ") {
            Some(limit) => format!("{} of {limit}", percent(ratio.ratio)),
            None => format!("{} × {}", times(ratio.ratio), name_of(&ratio.against)),
        });
        row.push(against.collect::<Vec<_>>().join(", "));
        rows.push(row);
    }
    Table { head, rows }
}

/// What each system's runs cost on both sides, medians, and what held them back.
fn costs(results: &Results, experiment: &Experiment) -> Table {
    let Some(&metric) = experiment.plots.first() else { return Table { head: vec![], rows: vec![] } };
    let mut head = vec![experiment.sweep.label.clone()];
    head.extend(
        ["system", "server cores", "client cores", "server MiB", "client MiB", "held back by"].map(str::to_owned),
    );
    let mut rows = Vec::new();
    for (series, x, workload) in results.points(experiment) {
        for system in results.systems_of(&experiment.name) {
            let runs = results.runs_at(&experiment.name, &series, x, &system, metric);
            let of = |read: &dyn Fn(&super::sample::Usage) -> f64| {
                super::results::Spread::of(runs.iter().map(|run| read(&run.usage))).map(|spread| spread.median)
            };
            if runs.is_empty() {
                continue;
            }
            let is_load = workload.mode.is_load();
            let cores = |cores: Option<f64>| cores.filter(|_| is_load).map_or("-".into(), |c| format!("{c:.2}"));
            let mib = |bytes: Option<f64>| {
                bytes.filter(|bytes| *bytes > 0.0).map_or("-".into(), |b| format!("{:.0}", b / 1048576.0))
            };
            let reached = || results.figure(experiment, &series, x, &system, Metric::RecordsPerS);
            let held = match workload.rate {
                _ if !is_load => "-",
                Some(rate) if reached().is_some_and(|s| s.median < rate * KEPT) => "falls behind the rate",
                Some(_) => "the rate asked for",
                None => bound(results, experiment, &series, x, &system).map_or("-", Bound::label),
            };
            rows.push(vec![
                place_name(experiment, &series, x),
                name_of(&system).to_owned(),
                cores(of(&|usage| usage.server_cores)),
                cores(of(&|usage| usage.client_cores)),
                mib(of(&|usage| usage.server_bytes as f64)),
                mib(of(&|usage| usage.client_bytes as f64)),
                held.to_owned(),
            ]);
        }
    }
    Table { head, rows }
}

fn profile_picture(experiment: &Experiment, profile: &Profile, n: usize) -> Option<Picture> {
    let mib: fn(f64) -> String = |value| format!("{value:.0} MiB/s");
    let named = |lines: &[(&str, &Vec<f64>)]| -> plot::Lines {
        let seen = lines.iter().filter(|(_, values)| values.iter().any(|value| *value > 0.0));
        seen.map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect()
    };
    // Producer and network move the same bytes: one line says both.
    let phases = Phase::ALL.iter().filter(|phase| **phase != Phase::Producer);
    let phases = phases.filter_map(|phase| Some((phase.label().to_owned(), profile.phases.get(phase)?.clone())));
    let phases = phases.filter(|(_, values)| values.iter().any(|value| *value > 0.0));
    let busy = |values: &[f64]| values.iter().sum::<f64>() > 0.02 * values.len() as f64;
    let threads = profile.threads.iter().filter(|(_, values)| busy(values));
    let disk =
        [("disk, written", &profile.disk_written), ("disk, read", &profile.disk_read), ("loopback", &profile.loopback)];
    let panels = vec![
        Panel { title: "bytes of each phase", lines: phases.collect(), show: mib },
        Panel {
            title: "cores, by group of threads",
            lines: threads.map(|(name, values)| (name.clone(), values.clone())).collect(),
            show: |value| format!("{value:.1}"),
        },
        Panel { title: "disk and network", lines: named(&disk), show: mib },
        Panel {
            title: "share of the time in which they were busy",
            lines: named(&[
                ("all cores", &profile.machine_busy),
                ("the disk", &profile.disk_busy),
                ("virtual logs in the disk", &profile.replication_in_disk),
            ]),
            show: |value| format!("{:.0} %", value * 100.0),
        },
        Panel {
            title: "resident memory",
            lines: named(&[("server", &profile.server_mib), ("load generator", &profile.client_mib)]),
            show: |value| format!("{value:.0} MiB"),
        },
    ];
    let at = point_name(experiment, &profile.series, profile.x);
    let about = format!("Where the time goes: {}, {at}", name_of(&profile.system));
    let svg = plot::over_time(&about, &profile.at_s, panels)?;
    Some(Picture { name: format!("{}-profile-{n}", experiment.name), about, svg })
}

/// Latencies of the main side, for the details.
fn latency_of(figures: &serde_json::Value) -> Option<String> {
    let at = |pointer: &str| figures.pointer(pointer).and_then(serde_json::Value::as_f64).filter(|value| *value > 0.0);
    let (p50, p99) = (at("/latency_us/p50")?, at("/latency_us/p99")?);
    Some(format!("{} / {}", micros(p50), micros(p99)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_line_for_each_series_that_it_differs_for() {
        let lines = |of: &dyn Fn(&str) -> Vec<(usize, f64)>| {
            let found = limit_lines(&["1 copy", "the same", "3 copies"], Limit::Loopback, of);
            found.into_iter().map(|line| (line.label, line.points)).collect::<Vec<_>>()
        };
        let same = lines(&|name| if name == "3 copies" { vec![(1, 2.0)] } else { vec![(0, 3.0)] });
        assert_eq!(same, [("limit: loopback TCP".to_owned(), vec![(0, 3.0), (1, 2.0)])]);
        let apart = lines(&|name| vec![(0, if name == "3 copies" { 1.0 } else { 3.0 })]);
        assert_eq!(apart.len(), 2);
        assert_eq!(apart[1], ("limit: loopback TCP, 3 copies".to_owned(), vec![(0, 1.0)]));
        assert!(lines(&|_| vec![]).is_empty());
    }

    #[test]
    fn what_was_not_read_and_a_machine_that_stood_still_are_told() {
        let figures = |p99_us: f64, stall_ms: f64, removed: u64| {
            let consume = serde_json::json!({ "removed": removed, "latency_us": { "p99": p99_us } });
            serde_json::json!({ "stall_ms": stall_ms, "consume": consume })
        };
        let told = notes_on(&figures(197_000.0, 210.0, 0), true);
        assert!(told.len() == 1 && told[0].contains("210 ms") && told[0].contains("197.00 ms"), "{told:?}");
        assert!(notes_on(&figures(197_000.0, 210.0, 0), false).is_empty(), "as fast as it goes there is no core left");
        assert!(notes_on(&figures(197_000.0, 20.0, 0), true).is_empty(), "that was not the machine");
        assert!(notes_on(&figures(400.0, 60.0, 0), true).is_empty(), "the latencies do not show it");
        assert!(notes_on(&figures(400.0, 0.0, 1_200_000), false)[0].starts_with("1.20 M records were gone"));
    }

    #[test]
    fn a_time_that_was_enough_leaves_nothing_missing() {
        let budget = Budget { minutes: 1.6, took_minutes: 1.23, planned: 6, measured: 6 };
        assert_eq!(kept_to(&budget), "Kept to 1.6 minutes (it took 1.2): all 6 measurements.");
        let short = kept_to(&Budget { minutes: 10.0, measured: 5, ..budget });
        assert!(short.starts_with("Kept to 10 minutes") && short.contains("5 of 6") && short.contains("missing"));
    }

    #[test]
    fn values_of_knobs_are_written_with_their_units() {
        assert_eq!(knob_value("chunk_bytes", &toml::Value::Integer(16384)), "16 KiB");
        assert_eq!(knob_value("linger_ms", &toml::Value::Float(1.0)), "1 ms");
        assert_eq!(knob_value("verify_checksums", &toml::Value::Boolean(true)), "yes");
        assert_eq!(knob_value("durability", &toml::Value::String("power".into())), "power");
    }
}
