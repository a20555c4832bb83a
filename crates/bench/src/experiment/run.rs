//! Runs experiments: at each point all systems in turns (A B A B …), the limits of the machine in the same run, and a line for
//! everything that is measured or left out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::definition::{Experiment, Point};
use super::profile::Profile;
use super::results::{Budget, FORMAT, Header, Line, Machine, Run, Skipped, utc};
use super::sample::Bound;
use super::stop::Stop;
use super::systems::{Job, Outcome, System};
use crate::BenchError;
use crate::limit::{self, DiskRate, LimitConfig};

/// Records of a run that is as small as it gets.
const TINY_RECORDS: u64 = 1000;

/// What a measurement is thought to take beside its seconds: topics, connections, syncs. Only shares of a budget follow from it.
const BESIDE_S: f64 = 1.5;
/// The share of a budget, and the least, that one measurement may take beside its seconds; without a budget only what hangs is ended. A
/// load generator that waits for what does not come has to be left the time to say so.
const LONGEST_SHARE: f64 = 0.05;
const LONGEST_LEAST: Duration = Duration::from_secs(15).saturating_add(crate::load::PATIENCE);
const LONGEST: Duration = Duration::from_secs(900);

/// How much time is spent on an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Size {
    /// As its file says.
    #[default]
    Full,
    /// The quick values of its sweep, a second each: to see, not to quote.
    Quick,
    /// Moments, with little of everything: for tests.
    Tiny,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A directory of the disk on which servers keep their data: that disk's limits are measured.
    pub dir: PathBuf,
    /// How much.
    pub size: Size,
    /// Times that each system is measured at each point; `None`: as the file says.
    pub rounds: Option<usize>,
    /// Seconds of each measurement; `None`: as the file says.
    pub seconds: Option<f64>,
    /// Whether to see where the time goes.
    pub profile: bool,
    /// How long all of it may take. First rounds come first then, of every experiment its share of the time, and further rounds as long
    /// as there is time.
    pub budget: Option<Duration>,
}

impl Options {
    fn rounds(&self, experiment: &Experiment) -> usize {
        let usual = match self.size {
            Size::Full => experiment.rounds,
            Size::Quick => experiment.rounds.min(2),
            Size::Tiny => 1,
        };
        self.rounds.unwrap_or(usual).max(1)
    }

    fn seconds(&self, experiment: &Experiment) -> f64 {
        let usual = match self.size {
            Size::Full => experiment.seconds,
            Size::Quick => experiment.seconds.min(experiment.quick_seconds),
            // Only for what cannot go by records: a server that is killed under load, which has to have begun by then.
            Size::Tiny => 6.0,
        };
        self.seconds.unwrap_or(usual)
    }

    fn warmup_seconds(&self, experiment: &Experiment) -> f64 {
        match self.size {
            Size::Full => 2.0,
            // Nodes of a cluster share the cores: it takes them longer to get going.
            Size::Quick if experiment.is_of_a_cluster() => 2.0,
            Size::Quick => 0.5,
            Size::Tiny => 0.05,
        }
    }

    /// How long the machine is left alone between two runs, once everything is synced.
    fn settle(&self) -> Duration {
        match self.size {
            Size::Full => Duration::from_secs(1),
            Size::Quick => Duration::from_millis(200),
            Size::Tiny => Duration::ZERO,
        }
    }

    /// After which time a measurement is taken for one that hangs.
    fn longest(&self, experiment: &Experiment) -> Duration {
        let beside = self.budget.map_or(LONGEST, |budget| budget.mul_f64(LONGEST_SHARE).max(LONGEST_LEAST));
        beside + Duration::from_secs_f64(self.seconds(experiment) + self.warmup_seconds(experiment))
    }

    /// Short runs need it often; a broker with a hundred threads costs a little each time.
    fn look_every(&self) -> Duration {
        Duration::from_millis(if self.size == Size::Tiny { 20 } else { 100 })
    }
}

/// A peer that was asked for and is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Which.
    pub system: String,
    /// Why, and how to get it.
    pub why: String,
}

/// What comes next, for whoever looks on.
#[derive(Clone, Debug)]
pub struct Step {
    /// In words.
    pub text: String,
    /// Measurements done.
    pub done: usize,
    /// Measurements in all, as far as is known.
    pub total: usize,
    /// What is left of the budget, if there is one.
    pub left: Option<Duration>,
}

/// The first line of results.
pub fn header(command: Vec<String>, size: Size) -> Header {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Header {
        format: FORMAT,
        program: format!("kera-bench {}", env!("CARGO_PKG_VERSION")),
        command,
        started: utc(now.as_secs()),
        quick: size != Size::Full,
        machine: Machine::this(),
    }
}

/// Runs experiments one after the other. Every line goes to `sink` as soon as it is known, every step to `progress`.
///
/// A system that fails at a point is left out there, with a line that says why; only Ctrl-C and a `sink` that fails end a run.
pub fn run(
    experiments: &[Experiment],
    systems: &mut [Box<dyn System>],
    missing: &[Missing],
    options: &Options,
    stop: &Stop,
    sink: &mut dyn FnMut(Line) -> Result<(), BenchError>,
    progress: &mut dyn FnMut(&Step),
) -> Result<(), BenchError> {
    for system in systems.iter() {
        let (version, settings) = (system.version(), system.settings());
        sink(Line::System { system: system.name().into(), version, settings })?;
    }
    let started = Instant::now();
    let mut runner = Runner { systems, options, stop, sink, progress, started, done: 0, total: 0, measured: 0 };
    let expected = experiments.iter().map(|experiment| runner.count(experiment));
    let expected = expected.collect::<Result<Vec<usize>, _>>()?;
    runner.total = expected.iter().sum();
    let mut all = Vec::new();
    for (n, experiment) in experiments.iter().enumerate() {
        (runner.sink)(Line::Experiment { experiment: Box::new(experiment.clone()) })?;
        for peer in missing.iter().filter(|peer| experiment.systems.contains(&peer.system)) {
            runner.skip(experiment, Some(&peer.system), None, peer.why.clone())?;
        }
        if let Some(needs) = &experiment.needs {
            runner.skip(experiment, None, None, format!("it needs {needs}"))?;
            continue;
        }
        let mut one = Course::new(experiment, runner.points(experiment)?);
        if options.budget.is_some() {
            one.until = runner.share_of(&experiments[n..], &expected[n..]).map(|share| Instant::now() + share);
            (0..one.points.len()).try_for_each(|point| runner.turn(&mut one, point, 0))?;
            all.push(one);
        } else {
            let rounds = options.rounds(experiment);
            (0..one.points.len() * rounds).try_for_each(|n| runner.turn(&mut one, n / rounds, n % rounds))?;
        }
    }
    runner.further_rounds(&mut all)?;
    let Some(budget) = options.budget else { return Ok(()) };
    let minutes = |time: Duration| time.as_secs_f64() / 60.0;
    let (planned, measured) = (runner.total, runner.measured);
    let took_minutes = minutes(started.elapsed());
    (runner.sink)(Line::Budget(Budget { minutes: minutes(budget), took_minutes, planned, measured }))
}

/// An experiment that is under way.
struct Course<'a> {
    experiment: &'a Experiment,
    points: Vec<Point>,
    /// For each point, of each system that was measured there: the way that was best, or none if it failed.
    ways: Vec<BTreeMap<usize, Option<&'static str>>>,
    /// For each point how long all systems together took for one round.
    took: Vec<Duration>,
    /// Until when peers may be measured in the first round.
    until: Option<Instant>,
    disk: Option<DiskRate>,
    /// Chunk sizes and rounds whose limits were measured.
    limited: Vec<(u64, usize)>,
}

impl<'a> Course<'a> {
    fn new(experiment: &'a Experiment, points: Vec<Point>) -> Course<'a> {
        let (ways, took) = (vec![BTreeMap::new(); points.len()], vec![Duration::ZERO; points.len()]);
        Course { experiment, points, ways, took, until: None, disk: None, limited: vec![] }
    }
}

struct Runner<'a> {
    systems: &'a mut [Box<dyn System>],
    options: &'a Options,
    stop: &'a Stop,
    sink: &'a mut dyn FnMut(Line) -> Result<(), BenchError>,
    progress: &'a mut dyn FnMut(&Step),
    started: Instant,
    done: usize,
    total: usize,
    measured: usize,
}

impl Runner<'_> {
    fn points(&self, experiment: &Experiment) -> Result<Vec<Point>, BenchError> {
        let mut points = experiment.points(self.options.size != Size::Full)?;
        if self.options.size == Size::Tiny {
            points.iter_mut().for_each(|point| point.workload = point.workload.clone().tiny());
            // The ends of each line are where something breaks first.
            let all = points.clone();
            points.retain(|point| {
                let of_line = |other: &&Point| other.series == point.series;
                let first = all.iter().find(of_line).map(|p| p.x);
                let last = all.iter().rev().find(of_line).map(|p| p.x);
                Some(point.x) == first || Some(point.x) == last
            });
        }
        Ok(points)
    }

    /// Measurements that an experiment takes.
    fn count(&self, experiment: &Experiment) -> Result<usize, BenchError> {
        if experiment.needs.is_some() {
            return Ok(0);
        }
        let takes = |point: &Point| {
            let here = self.systems.iter().filter(|system| point.systems.iter().any(|name| name == system.name()));
            here.filter(|system| system.leaves_out(&point.workload).is_none()).count() * self.options.rounds(experiment)
        };
        Ok(self.points(experiment)?.iter().map(takes).sum())
    }

    fn skip(
        &mut self,
        experiment: &Experiment,
        system: Option<&str>,
        point: Option<&Point>,
        why: String,
    ) -> Result<(), BenchError> {
        let at = point.map_or(String::new(), |point| format!(" at {} {}", point.series, point.x));
        self.step(format!("{}{at}: {} is left out: {why}", experiment.name, system.unwrap_or("all of it")));
        (self.sink)(Line::Skipped(Skipped {
            experiment: experiment.name.clone(),
            system: system.map(str::to_owned),
            point: point.map(|point| (point.series.clone(), point.x)),
            why,
        }))
    }

    /// What is left of the budget.
    fn left(&self) -> Option<Duration> {
        self.options.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }

    /// Of what is left, the share of the first of these experiments, by what all of them are thought to take.
    fn share_of(&self, experiments: &[Experiment], expected: &[usize]) -> Option<Duration> {
        let takes = |(experiment, count): (&Experiment, &usize)| {
            let each = self.options.seconds(experiment) + self.options.warmup_seconds(experiment) + BESIDE_S;
            each * (*count / self.options.rounds(experiment)) as f64
        };
        let takes: Vec<f64> = experiments.iter().zip(expected).map(takes).collect();
        let all: f64 = takes.iter().sum();
        Some(self.left()?.mul_f64(if all > 0.0 { takes[0] / all } else { 0.0 }))
    }

    /// Rounds behind the first, as long as there is time: at a point all systems have their turn or none.
    fn further_rounds(&mut self, all: &mut [Course<'_>]) -> Result<(), BenchError> {
        let most = all.iter().map(|one| self.options.rounds(one.experiment)).max().unwrap_or(0);
        for round in 1..most {
            for one in all.iter_mut().filter(|one| round < self.options.rounds(one.experiment)) {
                for point in 0..one.points.len() {
                    if self.left().is_none_or(|left| one.took[point] < left) {
                        self.turn(one, point, round)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// All systems at one point, once.
    fn turn(&mut self, one: &mut Course<'_>, point: usize, round: usize) -> Result<(), BenchError> {
        let chunk_bytes = one.points[point].workload.chunk_bytes;
        let is_over = self.left().is_some_and(|left| left.is_zero());
        // Short runs measure a limit once; it is the systems that need their turns.
        let is_due = !is_over && (round == 0 || self.options.size == Size::Full);
        if is_due && !one.limited.contains(&(chunk_bytes, round)) {
            one.limited.push((chunk_bytes, round));
            self.limits(one.experiment, chunk_bytes, &mut one.disk)?;
        }
        let began = Instant::now();
        for n in 0..self.systems.len() {
            self.measure(one, point, round, n)?;
        }
        one.took[point] = began.elapsed();
        Ok(())
    }

    /// Why there is no time for a system's first round, if there is none.
    fn out_of_time(&self, one: &Course<'_>, system: &str) -> Option<String> {
        let minutes = self.options.budget?.as_secs_f64() / 60.0;
        if self.left()?.is_zero() {
            return Some(format!("not reached: the {minutes} minutes were over"));
        }
        let is_late = system != "kera" && one.until.is_some_and(|until| Instant::now() >= until);
        is_late.then(|| format!("not reached: this experiment's share of the {minutes} minutes was over"))
    }

    /// One system at one point. In the first round all ways to load it are tried, later ones take the best.
    fn measure(&mut self, one: &mut Course<'_>, at: usize, round: usize, n: usize) -> Result<(), BenchError> {
        let (experiment, point, name) = (one.experiment, &one.points[at], self.systems[n].name());
        if !point.systems.iter().any(|system| system == name) {
            return Ok(());
        }
        if let Some(why) = self.systems[n].leaves_out(&point.workload) {
            return if round == 0 { self.skip(experiment, Some(name), Some(point), why) } else { Ok(()) };
        }
        let ways = match one.ways[at].get(&n) {
            Some(Some(way)) => vec![*way],
            // It failed before, or was not reached.
            Some(None) => {
                self.done += 1;
                return Ok(());
            }
            None => self.systems[n].ways(&point.workload),
        };
        if round == 0
            && let Some(why) = self.out_of_time(one, name)
        {
            self.skip(experiment, Some(name), Some(point), why)?;
            self.done += 1;
            one.ways[at].insert(n, None);
            return Ok(());
        }
        let mut found: Option<(f64, &'static str)> = None;
        for way in ways {
            self.stop.check()?;
            if let Some(value) = self.measure_way(experiment, point, round, n, way)? {
                let is_cost = experiment.plots.first().is_some_and(|metric| metric.is_cost());
                if found.is_none_or(|(best, _)| if is_cost { value < best } else { value > best }) {
                    found = Some((value, way));
                }
            }
            self.settle();
        }
        self.done += 1;
        // One, however many ways it took: as it was planned.
        self.measured += usize::from(found.is_some());
        one.ways[at].entry(n).or_insert(found.map(|(_, way)| way));
        Ok(())
    }

    /// One measurement, and what it gave by the first plot; `None` if it failed, which a line says.
    fn measure_way(
        &mut self,
        experiment: &Experiment,
        point: &Point,
        round: usize,
        n: usize,
        way: &str,
    ) -> Result<Option<f64>, BenchError> {
        let name = self.systems[n].name();
        let of = format!("{}, {} = {}", experiment.title, experiment.sweep.label, point.x);
        self.step(format!("{of}: {name} {way} ({} of {})", round + 1, self.options.rounds(experiment)));
        let stop = self.stop.within(self.options.longest(experiment));
        let job = Job {
            workload: &point.workload,
            way,
            records: (self.options.size == Size::Tiny).then_some(TINY_RECORDS),
            seconds: self.options.seconds(experiment),
            warmup_seconds: self.options.warmup_seconds(experiment),
            look_every: self.options.look_every(),
            profile: self.options.profile,
            stop: &stop,
        };
        match self.systems[n].measure(&job) {
            Ok(outcome) => {
                let run = self.run_line(experiment, point, round, n, way, &outcome);
                let value = experiment.plots.first().and_then(|metric| metric.of(&run.figures)).unwrap_or(0.0);
                (self.sink)(Line::Run(Box::new(run)))?;
                self.profile_line(experiment, point, name, &outcome)?;
                Ok(Some(value))
            }
            Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
            Err(error) => {
                self.systems[n].stop();
                self.skip(experiment, Some(name), Some(point), format!("failed: {error}"))?;
                Ok(None)
            }
        }
    }

    fn step(&mut self, text: String) {
        let left = self.left();
        (self.progress)(&Step { text, done: self.done, total: self.total, left });
    }

    fn run_line(
        &self,
        experiment: &Experiment,
        point: &Point,
        round: usize,
        n: usize,
        way: &str,
        outcome: &Outcome,
    ) -> Run {
        let mut figures = outcome.figures.clone();
        // The load's own description says the same as the workload, at length.
        if let Some(fields) = figures.as_object_mut() {
            fields.remove("config");
            let clients = super::systems::kera::clients(&point.workload);
            fields.insert("clients".into(), clients);
            fields.insert("server_cores".into(), json!(outcome.usage.server_cores));
            fields.insert("server_bytes".into(), json!(outcome.usage.server_bytes));
        }
        Run {
            experiment: experiment.name.clone(),
            series: point.series.clone(),
            x: point.x,
            system: self.systems[n].name().into(),
            round,
            way: way.to_owned(),
            workload: point.workload.clone(),
            guarantees: self.systems[n].guarantees(&point.workload),
            figures,
            bound: Bound::of(&outcome.usage),
            usage: outcome.usage.clone(),
            command: outcome.command.clone(),
        }
    }

    fn profile_line(
        &mut self,
        experiment: &Experiment,
        point: &Point,
        system: &str,
        outcome: &Outcome,
    ) -> Result<(), BenchError> {
        if !self.options.profile || outcome.seen.is_empty() {
            return Ok(());
        }
        (self.sink)(Line::Profile(Box::new(Profile {
            experiment: experiment.name.clone(),
            series: point.series.clone(),
            x: point.x,
            system: system.to_owned(),
            ..Profile::new(&outcome.seen)
        })))
    }

    fn limits(
        &mut self,
        experiment: &Experiment,
        chunk_bytes: u64,
        disk: &mut Option<DiskRate>,
    ) -> Result<(), BenchError> {
        if experiment.limits.is_empty() {
            return Ok(());
        }
        self.step(format!("{}: the limits of this machine", experiment.title));
        let millis = match self.options.size {
            Size::Full => 1000,
            Size::Quick => 250,
            Size::Tiny => 10,
        };
        // The disk is measured once: it does not depend on the chunk, and takes long.
        let wants_disk = disk.is_none() && experiment.limits.iter().any(|limit| limit.is_disk());
        let config = LimitConfig {
            frame_bytes: vec![usize::try_from(chunk_bytes).unwrap_or(usize::MAX).clamp(64, 16 << 20)],
            time: Duration::from_millis(millis),
            rounds: 1,
            disk_dir: wants_disk.then(|| self.options.dir.clone()),
            disk_bytes: if self.options.size == Size::Full { 1 << 30 } else { 64 << 20 },
        };
        let mut report = limit::run(&config, |_| ())?;
        if wants_disk {
            (*disk).clone_from(&report.disk);
        } else {
            report.disk.clone_from(disk);
        }
        let experiment = experiment.name.clone();
        (self.sink)(Line::Limit { experiment, chunk_bytes, report })
    }

    /// Lets what one side left to be written reach the disk, so that the next does not pay for it.
    fn settle(&self) {
        if self.options.size != Size::Tiny {
            rustix::fs::sync();
        }
        std::thread::sleep(self.options.settle());
    }
}

#[cfg(test)]
mod tests {
    use super::super::systems::kera::without_load;
    use super::super::workload::Workload;
    use super::*;

    const TEXT: &str = r#"
title = "t"
follows = "f"
shows = "s"
plots = ["start-ms"]
systems = ["kera", "peer"]
rounds = 2
[workload]
mode = "start"
[sweep]
knob = "arena_bytes"
label = "arena"
values = [1, 2]
"#;

    /// A system that takes a moment; `fails` of them come to nothing.
    struct Fake {
        name: &'static str,
        takes: Duration,
        fails: bool,
    }

    impl System for Fake {
        fn name(&self) -> &'static str {
            self.name
        }
        fn version(&self) -> String {
            String::new()
        }
        fn settings(&self) -> String {
            String::new()
        }
        fn guarantees(&self, _workload: &Workload) -> String {
            String::new()
        }
        fn leaves_out(&self, _workload: &Workload) -> Option<String> {
            None
        }
        fn measure(&mut self, _job: &Job<'_>) -> Result<Outcome, BenchError> {
            std::thread::sleep(self.takes);
            if self.fails {
                return Err(BenchError::server("a peer", "it died"));
            }
            Ok(without_load(Duration::from_millis(1), 0))
        }
        fn stop(&mut self) {}
    }

    /// What is written when KerA and a peer run two experiments within a time.
    fn lines(budget: Option<Duration>, peer_takes: Duration, peer_fails: bool) -> Vec<Line> {
        let experiments = ["a", "b"].map(|name| Experiment::parse(name, TEXT).unwrap());
        let fake = |name, takes, fails| Box::new(Fake { name, takes, fails }) as Box<dyn System>;
        let mut systems = [fake("kera", Duration::ZERO, false), fake("peer", peer_takes, peer_fails)];
        let options = Options { size: Size::Tiny, rounds: Some(2), budget, ..Options::default() };
        let mut lines = Vec::new();
        let mut sink = |line| {
            lines.push(line);
            Ok(())
        };
        run(&experiments, &mut systems, &[], &options, &Stop::new(), &mut sink, &mut |_| ()).unwrap();
        lines
    }

    fn runs(lines: &[Line]) -> Vec<(String, usize, String)> {
        let runs = lines.iter().filter_map(|line| match line {
            Line::Run(run) => Some((run.experiment.clone(), run.round, run.system.clone())),
            _ => None,
        });
        runs.collect()
    }

    fn skipped(lines: &[Line]) -> Vec<String> {
        let skipped = lines.iter().filter_map(|line| match line {
            Line::Skipped(skipped) => Some(format!("{:?} {}", skipped.system, skipped.why)),
            _ => None,
        });
        skipped.collect()
    }

    fn budget_of(lines: &[Line]) -> Option<Budget> {
        lines.iter().find_map(|line| if let Line::Budget(budget) = line { Some(*budget) } else { None })
    }

    #[test]
    fn within_a_time_first_rounds_of_all_experiments_come_first() {
        let within = lines(Some(Duration::from_secs(3600)), Duration::ZERO, false);
        let order: Vec<(String, usize)> = runs(&within).into_iter().map(|(name, round, _)| (name, round)).collect();
        let of = |name: &str, round| vec![(name.to_owned(), round); 4];
        assert_eq!(order, [of("a", 0), of("b", 0), of("a", 1), of("b", 1)].concat());
        let budget = budget_of(&within).unwrap();
        assert_eq!((budget.planned, budget.measured, budget.minutes), (16, 16, 60.0));
        assert!(skipped(&within).is_empty());
        let without = lines(None, Duration::ZERO, false);
        let turns: Vec<String> = runs(&without).into_iter().map(|(_, _, system)| system).collect();
        assert_eq!(turns[..4], ["kera", "peer", "kera", "peer"], "both rounds of a point, in turns");
        assert!(budget_of(&without).is_none());
    }

    #[test]
    fn what_a_time_does_not_suffice_for_is_said() {
        let none = lines(Some(Duration::ZERO), Duration::ZERO, false);
        assert!(runs(&none).is_empty());
        let said = skipped(&none);
        assert!(said.len() == 8 && said.iter().all(|why| why.contains("the 0 minutes were over")), "{said:?}");
        // The peer takes all of its experiment's share with its first measurement.
        // The more time, the less does it matter that a machine stands still meanwhile.
        let is_shared = [2, 10, 60].into_iter().map(Duration::from_secs).any(|budget| {
            let slow = lines(Some(budget), budget.mul_f64(0.6), false);
            let is_late = |why: &String| why.contains("peer") && why.contains("this experiment's share");
            let next_has_its_time = runs(&slow).iter().any(|(name, _, system)| name == "b" && system == "kera");
            skipped(&slow).iter().any(is_late) && next_has_its_time
        });
        assert!(is_shared, "the peer is late, and the next experiment has its time");
    }

    #[test]
    fn a_peer_that_dies_is_left_out_at_that_point_and_not_tried_again_there() {
        let died = lines(Some(Duration::from_secs(3600)), Duration::ZERO, true);
        assert!(runs(&died).iter().all(|(_, _, system)| system == "kera") && runs(&died).len() == 8);
        let said = skipped(&died);
        assert!(
            said.len() == 4 && said.iter().all(|why| why.contains("failed") && why.contains("it died")),
            "{said:?}"
        );
        assert_eq!(budget_of(&died).unwrap().measured, 8);
    }
}
